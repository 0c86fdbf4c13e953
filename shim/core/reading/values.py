"""Read values of unknown type out of parsed JSON."""

from shim.core.reading.typed import Any


def as_dict(value: object) -> dict[str, Any]:
    """Return `value` if it is a dict, otherwise an empty dict."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """Return `value` if it is a list, otherwise an empty list."""
    return value if isinstance(value, list) else []


def as_str(value: object) -> str:
    """Return `value` if it is a string, otherwise an empty string."""
    return value if isinstance(value, str) else ""
