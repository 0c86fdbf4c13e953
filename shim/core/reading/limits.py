"""Keeps lines within their limit: long texts in pieces, long strings by head and tail (contract
P12, surface page).

Sizes are bytes of JSON, as a line has them. A note in a cut text says how much is missing, and
where the whole is if it was kept.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shim.core.reading.json_text import dump_json, map_leaves

CUT_NOTE = "\n[… {count:,} characters left out{where} …]\n"
OMITTED_IMAGE_TEXT = (
    "[an image of {size:,} bytes is left out: it is longer than a line may be (max_line_bytes)]"
)
MAX_NOTE_BYTES = 600  # of the note, with a path
MAX_ENVELOPE_BYTES = 3000  # of a line around its content: ids, model, usage
MAX_CHAR_BYTES = 6  # bytes of one character as JSON
MIN_CUT_BYTES = 200  # bytes; a shorter string, such as a name or an id, is never cut

StoreText = Callable[[str], str | None]  # stores a whole text, returns its path


def split_text(text: str, room: int) -> Iterator[str]:
    """`text` in pieces of at most `room` bytes each."""
    start, most = 0, max(room - 2, 1)
    while start < len(text):
        piece = _find_fitting_part(text[start : start + most], room)
        yield piece
        start += len(piece)


def _find_fitting_part(text: str, room: int, *, tail: bool = False) -> str:
    """The beginning of a text, or its end, that fits `room` bytes; one character at least."""
    part, count = text, len(text)
    while (dumped := len(dump_json(part))) > room and count > 1:
        count = max(1, min(count - 1, count * room // dumped - 8))
        part = text[-count:] if tail else text[:count]
    return part


def cut_text(text: str, room: int, keep: StoreText | None = None) -> str:
    """`text` if it fits `room` bytes, else its head and tail around a note."""
    if len(text) * MAX_CHAR_BYTES + 2 <= room or (
        len(text) <= room and len(dump_json(text)) <= room
    ):
        return text
    path = keep(text) if keep is not None else None
    half = max((room - MAX_NOTE_BYTES) // 2, 1)
    head = next(split_text(text[: half + 1], half))
    tail = _find_fitting_part(text[-half:], half, tail=True)
    count = len(text) - len(head) - len(tail)
    return (
        head
        + CUT_NOTE.format(count=count, where=f"; the whole is in {path}" if path else "")
        + tail
    )


def fit_value(value: Any, room: int, keep: StoreText | None = None) -> Any:
    """`value` with its longest strings cut so that it fits `room` bytes; as a cut text if that is
    not enough.
    """
    if isinstance(value, str) and len(value) > room >= MIN_CUT_BYTES + MAX_NOTE_BYTES:
        return cut_text(value, room, keep)  # without a copy: it may be large
    size = len(dump_json(value))
    if size <= room:
        return value
    try:
        lengths = sorted(len(dump_json(text)) for text in _iterate_strings(value))
        longest = _compute_share(lengths, room - (size - sum(lengths)))
        if longest >= MIN_CUT_BYTES + MAX_NOTE_BYTES:
            return map_leaves(value, str, lambda text: cut_text(text, longest, keep))
    except RecursionError:
        pass
    return cut_text(dump_json(value).decode(), room, keep)


def fit_images(content: Any, room: int) -> Any:
    """A call's result in which an image that has no room is a line about it: half of an image is
    none.
    """
    if not isinstance(content, list):
        return content
    fitted: list[Any] = []
    for block in content:
        size = (
            len(dump_json(block)) if isinstance(block, dict) and block.get("type") == "image" else 0
        )
        fits = size <= room
        fitted.append(
            block if fits else {"type": "text", "text": OMITTED_IMAGE_TEXT.format(size=size)}
        )
        room -= size if fits else 0
    return content if fitted == content else fitted


def fit_line(line: Mapping[str, Any], room: int) -> Any:
    """A whole line that fits `room` bytes and is still an object: strings are cut, then long lists
    shortened.
    """
    fitted = fit_value(line, room)
    return fitted if isinstance(fitted, dict) else shorten_value(line, room)


def shorten_value(value: Any, room: int) -> Any:
    """`value` with fewer members, where shorter strings are not enough; of what has no room the
    beginning is kept.

    A list stays a list, and an object an object: readers expect that.
    """
    try:
        return _shorten_recursively(value, room)
    except RecursionError:
        return type(value)() if isinstance(value, dict | list) else None


def _shorten_recursively(value: Any, room: int) -> Any:
    if isinstance(value, str):
        return next(split_text(value, room), "") if room > 2 else ""
    if isinstance(value, dict):
        return _shorten_members(value, room - 2)
    if isinstance(value, list | tuple):
        kept: list[Any] = []
        left = room - 2
        for item in value:
            size = len(dump_json(item)) + 1
            if size > left and not kept:
                item = _shorten_recursively(item, left - 1)
                size = len(dump_json(item)) + 1
            if size > left:
                break
            kept.append(item)
            left -= size
        return kept
    return value


def _shorten_members(members: dict[str, Any], room: int) -> dict[str, Any]:
    """Large members share the room that small ones leave; of very many members the first are kept."""
    sizes = {
        name: len(dump_json(name)) + len(dump_json(item)) + 2 for name, item in members.items()
    }
    share, kept = max(_compute_share(sorted(sizes.values()), room), MIN_CUT_BYTES), {}
    for name, item in members.items():
        size = sizes[name]
        if size > share:
            item = _shorten_recursively(item, share - len(dump_json(name)) - 2)
            size = len(dump_json(name)) + len(dump_json(item)) + 2
        if size > room:
            break
        kept[name] = item
        room -= size
    return kept


def _compute_share(lengths: list[int], room: int) -> int:
    """How long each string may be, so that all of them fit together."""
    for position, length in enumerate(lengths):
        share = room // (len(lengths) - position)
        if length > share:
            return share
        room -= length
    return room


def _iterate_strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _iterate_strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _iterate_strings(item)
