"""Times, tokens, costs and values as text, the same in a terminal, a table, a page and a pull
request. Pure.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from shim.story.steps import TODO, TOKENS

DEPTH = 8  # levels of values in values; deeper ones are not told
WORDS = {True: "true", False: "false", None: "none"}


def duration(seconds: float, *, fine: bool = False) -> str:
    """2.3 s, 4 min 05 s, 1 h 02 min. `fine`: below a tenth of a second, 12 ms."""
    if fine and 0 < seconds < 0.1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return (
        f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
    )


def tokens_in(counts: Mapping[str, Any]) -> int:
    """All input tokens; Claude counts cached tokens apart from the others."""
    return sum(_count(counts, name) for name in TOKENS if name != "output_tokens")


def tokens_cached(counts: Mapping[str, Any]) -> int:
    """The input tokens that were read from a cache."""
    return _count(counts, "cache_read_input_tokens")


def tokens_out(counts: Mapping[str, Any]) -> int:
    return _count(counts, "output_tokens")


def tokens(counts: Mapping[str, Any], what: str = "") -> str:
    """8,571 in (3,600 cached), 171 out; `what` follows the first number."""
    read = tokens_cached(counts)
    cached = f" ({read:,} cached)" if read else ""
    return f"{tokens_in(counts):,}{what and f' {what}'} in{cached}, {tokens_out(counts):,} out"


def dollars(number: float) -> str:
    """A cost; "" if none is known."""
    return f"${number:.4f}" if number else ""


def calls(count: int, failed: int, denied: int, what: str = "") -> str:
    """6 (1 failed, 2 denied); `what` follows the first number."""
    wrong = ", ".join(
        f"{number} {word}" for number, word in ((failed, "failed"), (denied, "denied")) if number
    )
    return f"{count}{what and f' {what}'}" + (f" ({wrong})" if wrong else "")


def _count(counts: Mapping[str, Any], name: str) -> int:
    value = counts.get(name)
    return value if isinstance(value, int) else 0


# -- values ----------------------------------------------------------------------------------------


def spelled(value: Any) -> str:
    """A value in words: each entry of a mapping or a list is a line, and what is inside of one is
    indented.
    """
    return "\n".join(_lines(value, DEPTH))


def spelled_short(value: Any) -> str:
    """A value in one line."""
    return _line(value, DEPTH)


def _lines(value: Any, depth: int) -> Iterator[str]:
    if not depth:
        yield "…"
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _entry(f"{key}:", inner, depth)
    elif isinstance(value, list | tuple):
        for inner in value:
            if isinstance(inner, Mapping) and inner.keys() >= {"content", "status"}:
                yield f"{TODO.get(str(inner['status']), '☐')} {inner['content']}"
            else:
                yield from _entry("-", inner, depth)
    else:
        yield from _word(value).split("\n")


def _entry(head: str, inner: Any, depth: int) -> Iterator[str]:
    lines = list(_lines(inner, depth - 1))
    if len(lines) == 1 and not (isinstance(inner, Mapping) and head != "-"):
        yield f"{head} {lines[0]}"
    elif head == "-" and lines:
        yield f"- {lines[0]}"
        yield from (f"  {line}" for line in lines[1:])
    else:
        yield head
        yield from (f"  {line}" for line in lines)


def _line(value: Any, depth: int) -> str:
    if not depth:
        return "…"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_line(inner, depth - 1)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_line(inner, depth - 1) for inner in value)
    return _word(value)


def _word(value: Any) -> str:
    return WORDS[value] if isinstance(value, bool) or value is None else str(value)
