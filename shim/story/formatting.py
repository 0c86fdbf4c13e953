"""Formats times, token counts, costs and values for terminals, tables, pages and pull requests.
Does no I/O.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from shim.story.events import TODO_SIGNS, TOKEN_FIELDS

MAX_DEPTH = 8  # deeper nested values are not shown
LITERAL_TEXTS = {True: "true", False: "false", None: "none"}


def format_duration(seconds: float, *, with_ms: bool = False) -> str:
    """Format a duration, for example "2.3 s", "4 min 05 s" or "1 h 02 min". If `with_ms` is set,
    durations under 0.1 s are in milliseconds ("12 ms").
    """
    if with_ms and 0 < seconds < 0.1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, remaining_seconds = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {remaining_seconds:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def count_input_tokens(usage: Mapping[str, Any]) -> int:
    """Return the number of all input tokens, including cached tokens, which Claude counts
    separately.
    """
    return sum(read_count(usage, name) for name in TOKEN_FIELDS if name != "output_tokens")


def count_cached_tokens(usage: Mapping[str, Any]) -> int:
    """Return the number of input tokens that were read from a cache."""
    return read_count(usage, "cache_read_input_tokens")


def count_output_tokens(usage: Mapping[str, Any]) -> int:
    return read_count(usage, "output_tokens")


def format_token_counts(usage: Mapping[str, Any], unit: str = "") -> str:
    """Format token counts, for example "8,571 in (3,600 cached), 171 out". `unit` follows the first
    number.
    """
    cached_count = count_cached_tokens(usage)
    cached_text = ""
    if cached_count:
        cached_text = f" ({cached_count:,} cached)"
    unit_text = ""
    if unit:
        unit_text = f" {unit}"
    return f"{count_input_tokens(usage):,}{unit_text} in{cached_text}, {count_output_tokens(usage):,} out"


def format_cost(cost_usd: float) -> str:
    """Format a cost, or return "" if the cost is unknown."""
    if cost_usd:
        return f"${cost_usd:.4f}"
    return ""


def format_call_counts(count: int, failed: int, denied: int, unit: str = "") -> str:
    """Format the number of tool calls, for example "6 (1 failed, 2 denied)". `unit` follows the
    first number.
    """
    failures = ", ".join(
        f"{number} {label}" for number, label in ((failed, "failed"), (denied, "denied")) if number
    )
    unit_text = ""
    if unit:
        unit_text = f" {unit}"
    return f"{count}{unit_text}" + (f" ({failures})" if failures else "")


def read_count(counts: Mapping[str, Any], name: str) -> int:
    """Return a count, or 0 if it is missing."""
    value = counts.get(name)
    if isinstance(value, int):
        return value
    return 0


# -- values ----------------------------------------------------------------------------------------


def format_value_as_lines(value: Any) -> str:
    """Format a JSON value as lines, one for each entry of a mapping or a list. Nested values are
    indented.
    """
    return "\n".join(_format_lines(value, MAX_DEPTH))


def format_single_line_value(value: Any) -> str:
    """Format a JSON value as one line."""
    return _format_inline(value, MAX_DEPTH)


def _format_lines(value: Any, depth: int) -> Iterator[str]:
    if not depth:
        yield "…"
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _format_entry(f"{key}:", inner, depth)
    elif isinstance(value, list | tuple):
        for inner in value:
            if isinstance(inner, Mapping) and inner.keys() >= {"content", "status"}:
                yield f"{TODO_SIGNS.get(str(inner['status']), '☐')} {inner['content']}"
            else:
                yield from _format_entry("-", inner, depth)
    else:
        yield from _format_scalar(value).split("\n")


def _format_entry(head: str, inner: Any, depth: int) -> Iterator[str]:
    lines = list(_format_lines(inner, depth - 1))
    if len(lines) == 1 and not (isinstance(inner, Mapping) and head != "-"):
        yield f"{head} {lines[0]}"
    elif head == "-" and lines:
        yield f"- {lines[0]}"
        yield from (f"  {line}" for line in lines[1:])
    else:
        yield head
        yield from (f"  {line}" for line in lines)


def _format_inline(value: Any, depth: int) -> str:
    if not depth:
        return "…"
    if isinstance(value, Mapping):
        return ", ".join(
            f"{key} {_format_inline(inner, depth - 1)}" for key, inner in value.items()
        )
    if isinstance(value, list | tuple):
        return ", ".join(_format_inline(inner, depth - 1) for inner in value)
    return _format_scalar(value)


def _format_scalar(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return LITERAL_TEXTS[value]
    return str(value)
