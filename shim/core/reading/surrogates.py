"""Incomplete characters: lone surrogates, and bytes of a character that was split.

A vendor that splits its text at 16-bit units or at bytes prints each half of a character in another
text. A half is stored as a lone surrogate (a byte as in Python's `surrogateescape`) until the other
half arrives. Without the other half it becomes U+FFFD.
"""

import re

_CESU_SURROGATE = rb"\xed[\xa0-\xbf][\x80-\xbf]"  # a surrogate as bytes, which is not valid UTF-8
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

    A surrogate in bytes (CESU-8) becomes its JSON escape, so that a pair is parsed as one
    character.
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
    """Return whether a text has lone surrogates that do not represent bytes."""
    return re.search(_SURROGATE, text) is not None


def count_incomplete_trailing_chars(text: str) -> int:
    """Return how many characters at the end of `text` are an incomplete character that the next
    text may complete.
    """
    match = re.search(_UNFINISHED_END, text[-MAX_HALF_CHARS:])
    if match:
        return len(match[0])
    return 0


def join_split_chars(text: str) -> str:
    """Return `text` with adjacent halves joined. Other halves are not changed."""
    if text.isascii():
        return text
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return re.sub(_BYTE_HALVES, _decode_byte_halves, text)


def _decode_byte_halves(match: re.Match[str]) -> str:
    return match[0].encode("ascii", "surrogateescape").decode("utf-8", "surrogateescape")


def replace_lone_surrogates(text: str) -> str:
    """Return `text` in a form that can be encoded. Adjacent halves are joined, and other halves
    become U+FFFD.
    """
    if text.isascii():
        return text
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    text = re.sub(_BYTE_HALVES, _decode_with_replacement, text)
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _decode_with_replacement(match: re.Match[str]) -> str:
    return match[0].encode("ascii", "surrogateescape").decode("utf-8", "replace")
