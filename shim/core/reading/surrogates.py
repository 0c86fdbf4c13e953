"""Joins characters that were split between two texts: surrogate pairs, and the bytes of a UTF-8
character.

Some vendors split their text at 16-bit units or at bytes, so that each half of a character is in a
different text. The first half is stored as a lone surrogate until the second half arrives. A half
that is a byte is stored as in Python's `surrogateescape`. If the second half never arrives, the
first half becomes U+FFFD.
"""

import re

_CESU_SURROGATE = rb"\xed[\xa0-\xbf][\x80-\xbf]"  # matches a surrogate that is encoded as bytes
_BYTE_HALVES = "[\udc80-\udcff]+"
_SURROGATE = "[\ud800-\udc7f\udd00-\udfff]"
_UNFINISHED_END = (
    "(?:[\ud800-\udbff]|[\udcc2-\udcdf]|[\udce0-\udcef][\udc80-\udcbf]?"
    "|[\udcf0-\udcf4][\udc80-\udcbf]{0,2})\\Z"
)
MAX_HALF_CHARS = 3


def decode_json_bytes(data: bytes, repair_kinds: list[str]) -> str:
    """Decode JSON text that may be invalid UTF-8. The kinds of repairs are appended to
    `repair_kinds`.

    A surrogate that is encoded as bytes (CESU-8) becomes a JSON escape, so that a surrogate pair is
    parsed as one character.
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        pass
    if re.search(_CESU_SURROGATE, data):
        repair_kinds.append("cesu8")
        data = re.sub(_CESU_SURROGATE, _escape_surrogate, data)
        try:
            return data.decode()
        except UnicodeDecodeError:
            pass
    repair_kinds.append("invalid_utf8")
    return data.decode("utf-8", "surrogateescape")


def _escape_surrogate(match: re.Match[bytes]) -> bytes:
    return b"\\u%04x" % ord(match[0].decode("utf-8", "surrogatepass"))


def has_lone_surrogates(text: str) -> bool:
    """Return whether a text has lone surrogates, except those that represent bytes."""
    return re.search(_SURROGATE, text) is not None


def count_incomplete_trailing_chars(text: str) -> int:
    """Return the number of characters at the end of `text` that are part of an incomplete
    character. The next text may complete that character.
    """
    match = re.search(_UNFINISHED_END, text[-MAX_HALF_CHARS:])
    if match:
        return len(match[0])
    return 0


def join_split_chars(text: str) -> str:
    """Return `text` with adjacent halves of a character joined. Halves without a counterpart stay
    unchanged.
    """
    if text.isascii():
        return text
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return re.sub(_BYTE_HALVES, _decode_byte_halves, text)


def _decode_byte_halves(match: re.Match[str]) -> str:
    return match[0].encode("ascii", "surrogateescape").decode("utf-8", "surrogateescape")


def replace_lone_surrogates(text: str) -> str:
    """Return `text` in a form that can be encoded as UTF-8. Adjacent halves of a character are
    joined, and a half without a counterpart becomes U+FFFD.
    """
    if text.isascii():
        return text
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    text = re.sub(_BYTE_HALVES, _decode_with_replacement, text)
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _decode_with_replacement(match: re.Match[str]) -> str:
    return match[0].encode("ascii", "surrogateescape").decode("utf-8", "replace")
