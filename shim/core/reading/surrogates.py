"""Halves of characters: surrogates without their other half, and bytes of a character that was cut in two.

A vendor that cuts its text at 16-bit units or at bytes prints each half as a text of its own. Halves are kept as
lone surrogates (bytes as Python's `surrogateescape` has them) until the other half came; then they are a character
again, else U+FFFD.
"""

import re

_CESU = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")  # a surrogate as bytes, which UTF-8 does not have
_BYTES = re.compile("[\udc80-\udcff]+")
_SURROGATE = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_WAITS = re.compile(
    "(?:[\ud800-\udbff]|[\udcc2-\udcdf]|[\udce0-\udcef][\udc80-\udcbf]?|[\udcf0-\udcf4][\udc80-\udcbf]{0,2})\\Z"
)
LONGEST_HALF = 3


def escape_halves(data: bytes, kinds: list[str]) -> str:
    """JSON text of bytes that may be no UTF-8; what was wrong with them is added to `kinds`.

    A surrogate in bytes (CESU-8) becomes its JSON escape, so that a pair is one character when it is parsed.
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        pass
    if _CESU.search(data):
        kinds.append("cesu8")
        data = _CESU.sub(_escaped, data)
        try:
            return data.decode()
        except UnicodeDecodeError:
            pass
    kinds.append("invalid_utf8")
    return data.decode("utf-8", "surrogateescape")


def _escaped(match: re.Match[bytes]) -> bytes:
    return b"\\u%04x" % ord(match[0].decode("utf-8", "surrogatepass"))


def surrogates(text: str) -> bool:
    """Whether a text has halves that came as surrogates, not as bytes."""
    return _SURROGATE.search(text) is not None


def waiting(text: str) -> int:
    """How many characters at the end of `text` are a half that may be completed by what follows."""
    found = _WAITS.search(text[-LONGEST_HALF:])
    return len(found[0]) if found else 0


def completed(text: str) -> str:
    """`text` with the halves joined that stand side by side; the others stay."""
    if text.isascii():
        return text
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return _BYTES.sub(_character, text)


def _character(match: re.Match[str]) -> str:
    return match[0].encode("ascii", "surrogateescape").decode("utf-8", "surrogateescape")


def join_surrogates(text: str) -> str:
    """`text` as it can be written: halves joined, a half alone becomes U+FFFD."""
    if text.isascii():
        return text
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    text = _BYTES.sub(_replaced, text)
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _replaced(match: re.Match[str]) -> str:
    return match[0].encode("ascii", "surrogateescape").decode("utf-8", "replace")
