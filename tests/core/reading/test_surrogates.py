"""Lone surrogates: joined if both halves arrive, replaced otherwise."""

from hypothesis import given
from hypothesis import strategies as some
from sweeps import loop_over_rows

from shim.core.reading.surrogates import (
    count_incomplete_trailing_chars,
    decode_json_bytes,
    join_split_chars,
    replace_lone_surrogates,
)


def text_of(data: bytes) -> str:
    return decode_json_bytes(data, [])


@loop_over_rows(
    ("data", "count"),
    [
        (b"a", 0),
        (b"caf\xc3\xa9", 0),
        (b"x\xf0", 1),
        (b"x\xf0\x9f", 2),
        (b"x\xf0\x9f\x98", 3),
        (b"\xe4\xb8", 2),
        (b"\xc3", 1),
        (b"\x98\x80", 0),
        (b"\xff", 0),
    ],
)
def test_unfinished_utf8_bytes_are_counted(data, count):
    assert count_incomplete_trailing_chars(text_of(data)) == count


@loop_over_rows(
    ("text", "count"), [("\ud83d", 1), ("\ude00", 0), ("a\ud83db", 0), ("", 0), ("😀", 0)]
)
def test_unfinished_high_surrogate_is_counted(text, count):
    assert count_incomplete_trailing_chars(text) == count


@given(some.text(some.characters(codec="utf-8"), min_size=1, max_size=8), some.data())
def test_text_split_at_any_byte_is_joined(text, data):
    encoded = text.encode()
    cut = data.draw(some.integers(0, len(encoded)))
    first, second = text_of(encoded[:cut]), text_of(encoded[cut:])
    assert join_split_chars(first + second) == text
    assert replace_lone_surrogates(first + second) == text
    if encoded[:cut].decode("utf-8", "ignore") != first:
        assert count_incomplete_trailing_chars(first) > 0


@given(some.binary(max_size=12))
def test_invalid_bytes_are_replaced_as_python_does(data):
    expected = data.decode("utf-8", "replace")
    if b"\xed" not in data:
        assert replace_lone_surrogates(text_of(data)) == expected
    replace_lone_surrogates(text_of(data)).encode()


@given(some.text(some.characters(), max_size=8))
def test_any_text_can_be_encoded_after_replacement(text):
    replace_lone_surrogates(text).encode()
    if text.isascii():
        assert replace_lone_surrogates(text) is text
