"""Checks external values: the types in parsed JSON, ids before their first use, and texts before they
are shown.
"""

from collections.abc import Mapping

from shim.core.reading.typed import Any

MAX_SAMPLE_CHARS = 200  # of a program's output in a message; it fits into one line of a log
MAX_NUMBER = 2**53  # the largest number in the settings; seconds and bytes are far below


def as_dict(value: object) -> dict[str, Any]:
    """Return `value` if it is a dict, otherwise an empty dict."""
    if isinstance(value, dict):
        return value
    return {}


def as_list(value: object) -> list[Any]:
    """Return `value` if it is a list, otherwise an empty list."""
    if isinstance(value, list):
        return value
    return []


def list_dicts(value: object) -> list[dict[str, Any]]:
    """Return the dicts in `value`, or an empty list if it is not a list."""
    return [item for item in as_list(value) if isinstance(item, dict)]


def as_str(value: object) -> str:
    """Return `value` if it is a string, otherwise an empty string."""
    if isinstance(value, str):
        return value
    return ""


def get_text(fields: Mapping[str, Any], key: str, default: str = "") -> str:
    """Return the text stored under `key`. Return `default` if the key is missing, or if its value
    is empty or not a string.
    """
    value = fields.get(key)
    if value and isinstance(value, str):
        return value
    return default


def none_if_empty(text: str) -> str | None:
    """Return `text`, or None if it is empty."""
    if text:
        return text
    return None


_UUID_GROUP_LENGTHS = (8, 4, 4, 4, 12)
_SHORT_ID_CHARS = 8  # the length of a short session id (B1)
_HEX_DIGITS = frozenset("0123456789abcdef")


def canonicalize_uuid(text: str | None) -> str | None:
    """Return `text` as a canonical UUID (8-4-4-4-12, lower case). Return None if it is not a UUID.
    This check ensures that a session id is not a path or a flag.
    """
    if text is None:
        return None
    text = text.lower()
    groups = text.split("-")
    if tuple(map(len, groups)) != _UUID_GROUP_LENGTHS or not _HEX_DIGITS.issuperset(
        "".join(groups)
    ):
        return None
    return text


def validate_uuid(text: str | None) -> str | None:
    """Return `text` unchanged if it is a UUID in upper or lower case, otherwise None."""
    if canonicalize_uuid(text) is not None:
        return text
    return None


def shorten_session_id(session_id: str) -> str:
    """Return a session's short id: the beginning of its UUID, after the name of its machine."""
    machine, uuid = split_machine(session_id)
    if machine:
        return f"{machine}:{uuid[:_SHORT_ID_CHARS]}"
    return session_id[:_SHORT_ID_CHARS]


def split_machine(session_id: str) -> tuple[str, str]:
    """Split MACHINE:ID into the name of the machine, which is "" for this machine, and the id."""
    machine, _, uuid = session_id.rpartition(":")
    return machine, uuid


def is_short_session_id(text: str) -> bool:
    """Return whether a text has the format of a short session id."""
    if len(text) != _SHORT_ID_CHARS:
        return False
    return _HEX_DIGITS.issuperset(text)


_VENDOR_ID_FIRST_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
_VENDOR_ID_CHARS = _VENDOR_ID_FIRST_CHARS | frozenset("._:-")
MAX_VENDOR_ID_CHARS = 128


def validate_vendor_session_id(value: object) -> str | None:
    """Return a vendor's session id if it is safe as a command-line argument
    (`^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`), otherwise None.
    """
    if not isinstance(value, str) or not 0 < len(value) <= MAX_VENDOR_ID_CHARS:
        return None
    if value[0] in _VENDOR_ID_FIRST_CHARS and _VENDOR_ID_CHARS.issuperset(value):
        return value
    return None


def is_valid_vendor_name(text: str) -> bool:
    """Return whether `text` is a valid vendor name (`^[a-z][a-z0-9-]{0,31}$`). The name becomes
    part of file names.
    """
    if not 0 < len(text) <= 32:
        return False
    if not "a" <= text[0] <= "z":
        return False
    return frozenset("abcdefghijklmnopqrstuvwxyz0123456789-").issuperset(text)


# The escapes for characters that can change how a terminal, a log or a web page shows text: C0
# except newline and tab, DEL, C1, the bidirectional controls and the zero-width marks.
_ESCAPES = {
    code: f"\\x{code:02x}"
    for code in (*range(0x20), *range(0x7F, 0xA0))
    if code not in (0x09, 0x0A)
} | {
    code: f"\\u{code:04x}"
    for code in (
        0x061C,
        0x200E,
        0x200F,
        0x2028,
        0x2029,
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
    )
}


def escape_control_chars(value: object) -> str:
    """Return `value` (text, bytes or any object) as text, with all characters escaped that would
    control a terminal.
    """
    if isinstance(value, bytes):
        value = value[: 4 * MAX_SAMPLE_CHARS].decode("utf-8", "replace")
    if isinstance(value, str):
        text = value
    else:
        text = str(value)
    return text.translate(_ESCAPES).encode("utf-8", "replace").decode("utf-8")


def format_single_line(value: object) -> str:
    """Return a value as one line of text without control characters."""
    return escape_control_chars(value).replace("\n", "\\n")


def shorten_end(text: str, max_chars: int) -> str:
    """Return `text` if it has at most `max_chars` characters. Otherwise return its beginning and an
    ellipsis.
    """
    if len(text) <= max_chars:
        return text
    return text[: max_chars - 1] + "…"


_COLOR_CODES = r"\x1b\[[0-9;]{0,40}m"


def strip_ansi_colors(text: str) -> str:
    """Return a program's output without colors and with control characters escaped."""
    import re

    return escape_control_chars(re.sub(_COLOR_CODES, "", text))
