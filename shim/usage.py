"""Usage of a model, in Claude's four numbers."""

from collections.abc import Mapping

# Always all four, and always in Claude's meaning: input_tokens are those that were not cached.
Usage = Mapping[str, int]
NO_USAGE: Usage = {
    "input_tokens": 0,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
    "output_tokens": 0,
}


def usage(fresh: object, cached: object, written: object, output: object) -> Usage:
    """The four numbers, from whatever a vendor printed for them; what is no count is 0."""
    if fresh.__class__ is cached.__class__ is written.__class__ is output.__class__ is int and fresh >= 0:
        return {  # the usual case, at a third of the price
            "input_tokens": fresh,
            "cache_creation_input_tokens": written,
            "cache_read_input_tokens": cached,
            "output_tokens": output,
        }
    return {
        "input_tokens": _count(fresh),
        "cache_creation_input_tokens": _count(written),
        "cache_read_input_tokens": _count(cached),
        "output_tokens": _count(output),
    }


def _count(number: object) -> int:
    return int(number) if isinstance(number, int | float) and number > 0 else 0
