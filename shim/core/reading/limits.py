"""Keeps output lines within their size limit. Long texts are split, and long strings keep only
their beginning and end (contract P12).

Sizes are in bytes of JSON. A note in a shortened text has the number of omitted characters, and the
path of the complete text if it was stored.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shim.core.reading.json_text import dump_json, map_json_leaves

CUT_NOTE = "\n[… {count:,} characters left out{where} …]\n"
OMITTED_IMAGE_TEXT = (
    "[an image of {size:,} bytes is left out: it exceeds the limit for a line (max_line_bytes)]"
)
MAX_NOTE_BYTES = 600  # the limit for the note in a shortened text, including a path
MAX_ENVELOPE_BYTES = 3000  # space for a line's ids, model and usage
MAX_CHAR_BYTES = 6  # the maximum number of bytes for one character in JSON
MIN_CUT_BYTES = 200  # a shorter string, such as a name or an id, is never cut

StoreText = Callable[[str], str | None]  # stores a text in a file, and returns its path


def split_text(text: str, max_bytes: int) -> Iterator[str]:
    """Split `text` into pieces of at most `max_bytes` bytes each."""
    start = 0
    max_chars = max(max_bytes - 2, 1)
    while start < len(text):
        piece = _find_fitting_part(text[start : start + max_chars], max_bytes)
        yield piece
        start += len(piece)


def _find_fitting_part(text: str, max_bytes: int, *, from_end: bool = False) -> str:
    """Return the longest beginning or end of a text that fits into `max_bytes` bytes. The result
    has at least one character.
    """
    part = text
    count = len(text)
    while (size_bytes := len(dump_json(part))) > max_bytes and count > 1:
        count = max(1, min(count - 1, count * max_bytes // size_bytes - 8))
        if from_end:
            part = text[-count:]
        else:
            part = text[:count]
    return part


def omit_middle(text: str, max_bytes: int, store_text: StoreText | None = None) -> str:
    """Return `text` if it has at most `max_bytes` bytes. Otherwise return its beginning and end
    with a note about the omitted middle.
    """
    if len(text) * MAX_CHAR_BYTES + 2 <= max_bytes or (
        len(text) <= max_bytes and len(dump_json(text)) <= max_bytes
    ):
        return text
    path = None
    if store_text is not None:
        path = store_text(text)
    half = max((max_bytes - MAX_NOTE_BYTES) // 2, 1)
    head = next(split_text(text[: half + 1], half))
    tail = _find_fitting_part(text[-half:], half, from_end=True)
    omitted_chars = len(text) - len(head) - len(tail)
    where = ""
    if path:
        where = f"; the full text is in {path}"
    return head + CUT_NOTE.format(count=omitted_chars, where=where) + tail


def shorten_strings(value: Any, max_bytes: int, store_text: StoreText | None = None) -> Any:
    """Return `value` with its longest strings shortened, so that it fits into `max_bytes` bytes. If
    that is not enough, return its shortened JSON text.
    """
    if isinstance(value, str) and len(value) > max_bytes >= MIN_CUT_BYTES + MAX_NOTE_BYTES:
        return omit_middle(value, max_bytes, store_text)  # avoids a copy of a large string
    size_bytes = len(dump_json(value))
    if size_bytes <= max_bytes:
        return value
    try:
        sizes = sorted(len(dump_json(text)) for text in _iterate_strings(value))
        max_string_bytes = _compute_share(sizes, max_bytes - (size_bytes - sum(sizes)))
        if max_string_bytes >= MIN_CUT_BYTES + MAX_NOTE_BYTES:
            return map_json_leaves(
                value, str, lambda text: omit_middle(text, max_string_bytes, store_text)
            )
    except RecursionError:
        pass
    return omit_middle(dump_json(value).decode(), max_bytes, store_text)


def omit_large_images(content: Any, max_bytes: int) -> Any:
    """Return a tool result's content. Each image that does not fit into `max_bytes` bytes is
    replaced with a line of text.
    """
    if not isinstance(content, list):
        return content
    fitted: list[Any] = []
    for block in content:
        size_bytes = 0
        if isinstance(block, dict) and block.get("type") == "image":
            size_bytes = len(dump_json(block))
        is_fitting = size_bytes <= max_bytes
        fitted.append(
            block
            if is_fitting
            else {"type": "text", "text": OMITTED_IMAGE_TEXT.format(size=size_bytes)}
        )
        if is_fitting:
            max_bytes -= size_bytes
    if fitted == content:
        return content
    return fitted


def shorten_line_to_fit(line: Mapping[str, Any], max_bytes: int) -> Any:
    """Return a line's JSON object, shortened to fit into `max_bytes` bytes. Strings are shortened
    first. If that is not enough, list items and object members are dropped.
    """
    fitted = shorten_strings(line, max_bytes)
    if isinstance(fitted, dict):
        return fitted
    return drop_excess_members(line, max_bytes)


def drop_excess_members(value: Any, max_bytes: int) -> Any:
    """Drop members of `value` if shorter strings are not enough.

    A list stays a list, and an object stays an object, because parsers expect that type.
    """
    try:
        return _shorten_recursively(value, max_bytes)
    except RecursionError:
        if isinstance(value, dict | list):
            return type(value)()
        return None


def _shorten_recursively(value: Any, max_bytes: int) -> Any:
    if isinstance(value, str):
        if max_bytes > 2:
            return next(split_text(value, max_bytes), "")
        return ""
    if isinstance(value, dict):
        return _shorten_members(value, max_bytes - 2)
    if isinstance(value, list | tuple):
        items: list[Any] = []
        free_bytes = max_bytes - 2
        for item in value:
            size_bytes = len(dump_json(item)) + 1
            if size_bytes > free_bytes and not items:
                item = _shorten_recursively(item, free_bytes - 1)
                size_bytes = len(dump_json(item)) + 1
            if size_bytes > free_bytes:
                break
            items.append(item)
            free_bytes -= size_bytes
        return items
    return value


def _shorten_members(members: dict[str, Any], budget_bytes: int) -> dict[str, Any]:
    """Shorten the members of an object. Small members stay unchanged, and large members share the
    remaining bytes. If there are too many members, only the first members are kept.
    """
    sizes = {
        name: len(dump_json(name)) + len(dump_json(item)) + 2 for name, item in members.items()
    }
    share_bytes = max(_compute_share(sorted(sizes.values()), budget_bytes), MIN_CUT_BYTES)
    shortened = {}
    for name, item in members.items():
        size_bytes = sizes[name]
        if size_bytes > share_bytes:
            item = _shorten_recursively(item, share_bytes - len(dump_json(name)) - 2)
            size_bytes = len(dump_json(name)) + len(dump_json(item)) + 2
        if size_bytes > budget_bytes:
            break
        shortened[name] = item
        budget_bytes -= size_bytes
    return shortened


def _compute_share(sizes: list[int], budget_bytes: int) -> int:
    """Return the maximum size for each string, so that all strings together fit into the budget."""
    for position, size_bytes in enumerate(sizes):
        share_bytes = budget_bytes // (len(sizes) - position)
        if size_bytes > share_bytes:
            return share_bytes
        budget_bytes -= size_bytes
    return budget_bytes


def _iterate_strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _iterate_strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _iterate_strings(item)
