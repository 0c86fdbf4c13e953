"""Values as JSON bytes that any reader takes: valid UTF-8, bounded in depth, without what splits a line."""

import orjson

from shim.decode import join_surrogates

# Valid in JSON, but Node's readline and Python's splitlines break a line at them (hostile-input, section 2). Looking
# for them costs a nanosecond a byte, so only what is not ASCII is searched, and only content, never whole lines.
_SEPARATORS = (
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
    (b"\xc2\x85", b"\\u0085"),
)

DEPTH_WRITTEN = 200  # orjson stops at 254; a deeper value becomes its JSON text


def dump(value: object) -> bytes:
    """`value` as JSON bytes that are valid UTF-8, whatever strings, keys and numbers it holds."""
    try:
        dumped = orjson.dumps(value)
    except TypeError:
        dumped = orjson.dumps(_clean(value, 0))
    return dumped if dumped.isascii() else escape(dumped)


def escape(dumped: bytes) -> bytes:
    """JSON bytes without the raw characters that split lines."""
    for raw, escaped in _SEPARATORS:
        if raw in dumped:
            dumped = dumped.replace(raw, escaped)
    return dumped


def as_text(value: object) -> str:
    """A value that should have been a text, as one: "" for nothing, JSON for the rest."""
    if isinstance(value, str):
        return value
    return "" if value is None else dump(value).decode()


def as_content(value: object) -> object:
    """A tool result's content as Claude has it: a text, or a list of blocks (contract S7)."""
    blocks = value if isinstance(value, list) else ()
    if blocks and all(isinstance(block, dict) and isinstance(block.get("type"), str) for block in blocks):
        return value
    return as_text(value)


def _clean(value: object, depth: int) -> object:
    if isinstance(value, str):
        return join_surrogates(value)
    if isinstance(value, dict | list | tuple) and depth >= DEPTH_WRITTEN:
        return _as_text(value)
    if isinstance(value, dict):
        return {join_surrogates(str(key)): _clean(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item, depth + 1) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**64:
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)


def _as_text(value: object) -> str:
    import json

    try:
        return join_surrogates(json.dumps(value, ensure_ascii=False))
    except RecursionError:
        return "[nested too deeply]"
