"""Parses the keys of a terminal in raw mode, and edits the message that is being typed. Does no
I/O.
"""

import codecs
import re
from collections import deque
from collections.abc import Callable, Mapping

MAX_PASTE_CHARS = 1_000_000  # the rest of a longer paste is dropped
# If no input arrives for this long, a paste ends without its end mark.
# Terminals send a paste without pauses.
PASTE_TIMEOUT_S = 1.0
MAX_LINE_CHARS = 1_000_000  # per typed message
MAX_SEQUENCE_CHARS = 64  # valid escape sequences are shorter
MAX_HISTORY_LINES = 100  # earlier messages that the up arrow shows

ENTER, BACKSPACE, DELETE, LEFT, RIGHT, HOME, END, UP, DOWN = (
    "enter", "backspace", "delete", "left", "right", "home", "end", "up", "down",
)  # fmt: skip
CTRL_C, CTRL_D, CTRL_T, CTRL_Z, TAB = "ctrl-c", "ctrl-d", "ctrl-t", "ctrl-z", "tab"
NEWLINE = "newline"
_DELETE_BEFORE = "kill"
_DELETE_AFTER = "cut"
_DELETE_WORD = "word"
_PASTE_END = "\x1b[201~"  # marks the end of a paste
CTRL_C_BYTE = b"\x03"
# Keys that count as text if several lines arrive in one read.
_TEXT_BY_KEY = {ENTER: "\n", NEWLINE: "\n", TAB: "\t"}
# Escape codes for bracketed paste, in which the terminal marks the start and the end of a paste.
ENABLE_PASTE_MODE = "\x1b[?2004h"
DISABLE_PASTE_MODE = "\x1b[?2004l"

_TEXT_PATTERN = re.compile(r"[^\x00-\x1f\x7f]+")
_SEQUENCE_PATTERN = re.compile(r"\x1b(?:\[([0-9;?<>]*)([@-~])|O(.)|([\r\n])|([^\[O]))")
_UNFINISHED_PATTERN = re.compile(r"\x1b(?:\[[0-9;?<>]*|O)?\Z")
_KEYS_BY_LETTER = {"A": UP, "B": DOWN, "C": RIGHT, "D": LEFT, "F": END, "H": HOME}
_KEYS_BY_NUMBER = {"1": HOME, "3": DELETE, "4": END, "7": HOME, "8": END}
_KEYS_BY_CONTROL = {
    "\x01": HOME, "\x02": LEFT, "\x03": CTRL_C, "\x04": CTRL_D, "\x05": END, "\x06": RIGHT, "\x08": BACKSPACE,
    "\t": TAB, "\n": NEWLINE, "\x0b": _DELETE_AFTER, "\r": ENTER, "\x0e": DOWN, "\x10": UP, "\x14": CTRL_T,
    "\x15": _DELETE_BEFORE, "\x17": _DELETE_WORD, "\x1a": CTRL_Z, "\x7f": BACKSPACE,
}  # fmt: skip


class KeyboardInputText(str):
    """Text that was typed or pasted."""

    __slots__ = ()


class PastedText(KeyboardInputText):
    """Text that was pasted."""

    __slots__ = ()


class KeyParser:
    """Parses the bytes that a terminal sends. Bytes that are neither a known key nor text are
    ignored.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unparsed = ""
        self._paste: str | None = None  # the text of an unfinished paste

    @property
    def is_pasting(self) -> bool:
        """Return whether a paste has started and its end mark has not arrived yet."""
        return self._paste is not None

    def end_paste(self) -> list[str]:
        """End a paste whose end mark is missing, and return the pasted text. The next bytes are
        parsed as keys again.
        """
        keys = list[str]()
        if self._paste is not None:
            keys.append(_clean_paste(self._paste))
            self._paste = None
        return keys

    def feed(self, data: bytes) -> list[str]:
        """Return the pressed keys: names of keys, and `KeyboardInputText` for typed characters.
        Consecutive characters are returned as one text.

        Several lines in one read are returned as one paste, because a terminal without bracketed
        paste sends pasted lines like typed ones. If a read contains only Ctrl-C, it ends a paste
        whose end mark is missing.
        """
        if self.is_pasting and not data.strip(CTRL_C_BYTE):
            return [*self.end_paste(), *[CTRL_C] * len(data)]
        return _join_burst(self._read_keys(data))

    def _read_keys(self, data: bytes) -> list[str]:
        pending = self._unparsed
        text = self._decoder.decode(data)
        # A single Esc looks like the start of an escape sequence.
        # The next read starts with another key, unless it continues the sequence.
        if not (pending == "\x1b" and text[:1] not in "[O"):
            text = pending + text
        self._unparsed = ""
        # The text is parsed by index.
        # Copying the rest after each line would take minutes for a megabyte.
        keys = list[str]()
        index = 0
        while index < len(text):
            if self._paste is not None:
                index = self._read_paste(text, index, keys)
            elif (match := _TEXT_PATTERN.match(text, index)) is not None:
                keys.append(KeyboardInputText(match[0]))
                index = match.end()
            elif text[index] == "\x1b":
                index = self._read_sequence(text, index, keys)
            else:
                if text[index] in _KEYS_BY_CONTROL:
                    keys += [_KEYS_BY_CONTROL[text[index]]]
                index += 1
        return keys

    def _read_sequence(self, text: str, index: int, keys: list[str]) -> int:
        """Parse the escape sequence at `index` and append its key. Return the position after the
        sequence.
        """
        match = _SEQUENCE_PATTERN.match(text, index)
        if match is None:
            if _UNFINISHED_PATTERN.match(text, index) and len(text) - index < MAX_SEQUENCE_CHARS:
                self._unparsed = text[index:]  # the rest of the sequence has not arrived
                return len(text)
            return index + 1
        numbers, final, single, newline, _ = match.groups()
        key = NEWLINE if newline else _KEYS_BY_LETTER.get(single or final or "")
        if final == "~":
            key = _KEYS_BY_NUMBER.get(numbers)
            if numbers == "200":
                self._paste = ""
            else:
                self._paste = None
        if key is not None:
            keys += [key]
        return match.end()

    def _read_paste(self, text: str, index: int, keys: list[str]) -> int:
        """Read pasted text at `index`, up to the end mark, which may arrive later. Return the
        position after the text.
        """
        assert self._paste is not None
        stored_chars = len(self._paste)
        combined = self._paste + text[index:]
        pasted, end_sequence, _ = combined.partition(_PASTE_END)
        if not end_sequence:
            stored = combined[:MAX_PASTE_CHARS]
            # The end mark may be split over two reads, so the last characters are kept even if
            # the paste is too long.
            if len(stored) == len(combined):
                self._paste = stored
            else:
                self._paste = stored + combined[-len(_PASTE_END) + 1 :]
            return len(text)
        self._paste = None
        keys.append(_clean_paste(pasted))
        return index + len(pasted) + len(end_sequence) - stored_chars


def _clean_paste(text: str) -> PastedText:
    """Return pasted text with a limited length, with LF line breaks, and without control
    characters.
    """
    text = text[:MAX_PASTE_CHARS].replace("\r\n", "\n").replace("\r", "\n")
    return PastedText(
        "".join(
            character
            for character in text
            if character in "\n\t" or (character >= " " and character != "\x7f")
        )
    )


def _join_burst(keys: list[str]) -> list[str]:
    """Join several lines of one read into one paste. An Enter at the end remains a key.

    If the read contains an editing key, such as an arrow, the keys are returned unchanged, because
    a person has typed them in advance.
    """
    last_text = max(
        (index for index, key in enumerate(keys) if isinstance(key, KeyboardInputText)), default=-1
    )
    burst = keys[: last_text + 1]
    if ENTER not in burst or not all(
        key in _TEXT_BY_KEY for key in burst if not isinstance(key, KeyboardInputText)
    ):
        return keys
    text = "".join(
        key if isinstance(key, KeyboardInputText) else _TEXT_BY_KEY[key] for key in burst
    )
    return [PastedText(text), *keys[last_text + 1 :]]


class LineEditor:
    """The message that is being typed, which may have several lines. `cursor` is an index into the
    text.
    """

    def __init__(self) -> None:
        self.text = ""
        self.cursor = 0
        self._history = deque[str](maxlen=MAX_HISTORY_LINES)
        self._history_index = 0  # how many messages back in the history

    def apply_key_and_take_message(self, key: str) -> str | None:
        """Apply a key. If the key completes the message, return the message and clear the editor;
        otherwise return None.
        """
        if isinstance(key, KeyboardInputText):
            self._insert_text(key)
        elif key == NEWLINE:
            self._insert_text("\n")
        elif key == ENTER:
            return self._finish_line()
        elif key in (UP, DOWN):
            step = -1
            if key == UP:
                step = 1
            self._show_history(step)
        elif key in _EDITS_BY_KEY:
            self.text, self.cursor = _EDITS_BY_KEY[key](self.text, self.cursor)
        return None

    def set_text(self, text: str) -> None:
        """Set the text, and place the cursor at its end."""
        self.text, self.cursor, self._history_index = text, len(text), 0

    def _insert_text(self, text: str) -> None:
        text = text[: max(MAX_LINE_CHARS - len(self.text), 0)]
        self.text = self.text[: self.cursor] + text + self.text[self.cursor :]
        self.cursor += len(text)

    def _finish_line(self) -> str:
        text = self.text
        if text.strip():
            self._history.append(text)
        self.set_text("")
        return text

    def _show_history(self, step: int) -> None:
        """Show an earlier or later message from the history."""
        index = min(max(self._history_index + step, 0), len(self._history))
        if index != self._history_index:
            self.set_text(self._history[-index] if index else "")
            self._history_index = index


def _delete_word_before(text: str, cursor: int) -> tuple[str, int]:
    head = text[:cursor].rstrip()
    head = head[: max(head.rfind(" "), head.rfind("\n")) + 1]
    return head + text[cursor:], len(head)


# Key → function that returns the new text and cursor position.
_EDITS_BY_KEY: Mapping[str, Callable[[str, int], tuple[str, int]]] = {
    BACKSPACE: lambda text, cursor: (
        text[: max(cursor - 1, 0)] + text[cursor:],
        max(cursor - 1, 0),
    ),
    DELETE: lambda text, cursor: (text[:cursor] + text[cursor + 1 :], cursor),
    LEFT: lambda text, cursor: (text, max(cursor - 1, 0)),
    RIGHT: lambda text, cursor: (text, min(cursor + 1, len(text))),
    HOME: lambda text, cursor: (text, 0),
    END: lambda text, cursor: (text, len(text)),
    _DELETE_BEFORE: lambda text, cursor: (text[cursor:], 0),
    _DELETE_AFTER: lambda text, cursor: (text[:cursor], cursor),
    _DELETE_WORD: _delete_word_before,
}
