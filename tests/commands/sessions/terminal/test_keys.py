"""A person's input: keys and text from the bytes of a terminal, and the edited line."""

from types import SimpleNamespace

import pytest

from shim.commands.sessions.terminal import keys
from shim.commands.sessions.terminal.keys import KeyboardInputText, KeyParser, LineEditor


def read_keys(*chunks: bytes) -> list[str]:
    parser = KeyParser()
    return [key for chunk in chunks for key in parser.feed(chunk)]


def type_keys(*chunks: bytes) -> tuple[LineEditor, list[str]]:
    """Return the editor and the completed messages."""
    editor, messages = LineEditor(), []
    for key in read_keys(*chunks):
        if (done := editor.apply_key_and_take_message(key)) is not None:
            messages.append(done)
    return editor, messages


@pytest.mark.parametrize(
    ("data", "key"),
    [
        (b"\r", keys.ENTER), (b"\x7f", keys.BACKSPACE), (b"\x1b[A", keys.UP), (b"\x1bOB", keys.DOWN),
        (b"\x1b[C", keys.RIGHT), (b"\x1b[1;5D", keys.LEFT), (b"\x1b[3~", keys.DELETE), (b"\x1b[H", keys.HOME),
        (b"\x1b[4~", keys.END), (b"\x03", keys.CTRL_C), (b"\x04", keys.CTRL_D), (b"\x1a", keys.CTRL_Z),
        (b"\x14", keys.CTRL_T), (b"\t", keys.TAB),
    ],
)  # fmt: skip
def test_key_is_parsed_from_complete_and_split_bytes(data, key):
    assert read_keys(data) == [key]
    if not data.startswith(b"\x1b"):
        return
    assert read_keys(data[:2], *(data[at : at + 1] for at in range(2, len(data)))) == [key]


def test_unsupported_escape_sequences_are_dropped():
    assert read_keys(b"\x1b[200;x", b"\x1bx\x00\x1b[15~a") == ["a"]
    assert read_keys(b"\x1b", b"y") == ["y"]  # Esc, then y
    # no escape sequence is so long, so it is text
    assert len(read_keys(b"\x1b[" + b"1" * 500, b"A")) == 2


def test_utf8_character_split_over_two_chunks_is_decoded():
    assert read_keys("é".encode()[:1], "é".encode()[1:] + b"\xff") == ["é�"]


@pytest.mark.parametrize("cut", range(1, 25))
def test_paste_split_at_any_byte_is_plain_text(cut):
    data = b"\x1b[200~y\r\nrm\x1b[A\x03\x1b[201~z"
    assert "".join(read_keys(data[:cut], data[cut:])) in ("y\nrm[Az",)
    assert all(isinstance(key, KeyboardInputText) for key in read_keys(data[:cut], data[cut:]))


def test_unterminated_paste_ends_with_ctrl_c_or_end_paste():
    terminal = KeyParser()
    assert terminal.feed(b"\x1b[200~lost") == [] and terminal.is_pasting
    assert terminal.feed(b"\x03") == ["lost", keys.CTRL_C] and not terminal.is_pasting
    terminal.feed(b"\x1b[200~lost")
    assert terminal.feed(b"\x03\x03") == ["lost", keys.CTRL_C, keys.CTRL_C], (
        "pressed twice while nothing was read"
    )
    terminal.feed(b"\x1b[200~one\r\ntwo")
    assert terminal.end_paste() == ["one\ntwo"]
    assert terminal.feed(b"x") == ["x"] and terminal.end_paste() == []


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"one\rtwo\rthree\rfour\r", ["one\ntwo\nthree\nfour", keys.ENTER]),
        (b"one\rtwo", ["one\ntwo"]),
        (b"\rone", ["\none"]),
        (b"one\n\ttwo\rthree", ["one\n\ttwo\nthree"]),
        (b"one\r", ["one", keys.ENTER]),
        (b"one\r\x1b[Atwo", ["one", keys.ENTER, keys.UP, "two"]),
    ],
)
def test_lines_that_arrive_together_are_a_single_paste(data, expected):
    assert read_keys(data) == expected


def test_long_multiline_input_is_parsed_in_linear_time():
    """Copying the rest of the text for each line took minutes for a megabyte."""
    rests = []

    class Counting(str):
        __slots__ = ()

        def __getitem__(self, index):
            rests.append(index)
            return Counting(super().__getitem__(index))

        def __radd__(self, before):
            return Counting(before + str(self))

    terminal = KeyParser()
    terminal._decoder = SimpleNamespace(decode=lambda data: Counting(data.decode()))
    assert terminal.feed(b"a\r" * 1000) == ["\n".join("a" * 1000), keys.ENTER]
    assert not [index for index in rests if isinstance(index, slice) and index.stop is None]


def test_endless_paste_is_truncated_and_still_ends(monkeypatch):
    monkeypatch.setattr(keys, "MAX_PASTE_CHARS", 10)
    assert read_keys(b"\x1b[200~" + b"x" * 50, b"y" * 50 + b"\x1b[20", b"1~z") == ["x" * 10, "z"]


def test_line_is_edited_and_submitted_with_enter():
    editor, messages = type_keys(b"helo you", b"\x1b[D" * 5, b"l\x05!", b"\x17", b"there\r")
    assert messages == ["hello there"]
    assert (editor.text, editor.cursor) == ("", 0)


def test_arrow_up_recalls_previous_messages():
    editor, messages = type_keys(b"one\r", b"two\r", b"\x1b[A\x1b[A\x1b[A")
    assert (editor.text, messages) == ("one", ["one", "two"])
    for key in read_keys(b"\x1b[B"):
        editor.apply_key_and_take_message(key)
    assert editor.text == "two"


def test_message_can_have_several_lines():
    assert type_keys(b"a\nb\x1b\rc\r")[1] == ["a\nb\nc"]


def test_line_length_is_limited(monkeypatch):
    monkeypatch.setattr(keys, "MAX_LINE_CHARS", 5)
    assert type_keys(b"abcdefgh", b"ij")[0].text == "abcde"


@pytest.mark.parametrize(
    ("data", "text", "cursor"),
    [(b"\x01\x7fa", "aone two", 1), (b"\x02\x0b", "one tw", 6), (b"\x02\x15", "o", 0), (b"\x02\x1b[3~", "one tw", 6),
     (b"\x1b[H\x1b[C\x1b[3~", "oe two", 1)],
)  # fmt: skip
def test_editing_keys_change_text_and_cursor(data, text, cursor):
    editor, _ = type_keys(b"one two", data)
    assert (editor.text, editor.cursor) == (text, cursor)
