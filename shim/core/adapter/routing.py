"""Names of vendors: a prefix `VENDOR:MODEL`, a list in SHIM_VENDOR (surface page, The vendor of a
turn).
"""

from collections.abc import Collection

from shim.core.reading.typed import NamedTuple

PLAYS = "replay:"  # in a vendor's place: the path behind it is a recording, or a folder of them
_MODEL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:/@+-[]=, ")
MODEL_CHARACTERS = 200


class Routed(NamedTuple):
    """A model's name without its prefix, and the vendor of the prefix. None stands for a missing
    part.
    """

    vendor: str | None
    model: str | None


def listed(text: str) -> tuple[str, ...]:
    """The names of a list such as `qwen, codex`."""
    return tuple(name for part in text.split(",") if (name := part.strip()))


def routed(model: str | None, vendors: Collection[str]) -> Routed:
    """Split a model's name. `vendors` are the names that count as a prefix.

    `qwen:m1` is m1 of qwen, `qwen:` is qwen's default model. `:qwen:32b` is the model `qwen:32b` of
    the vendor that answers, and so is `x:32b`, because no vendor is called x.
    """
    prefix, colon, rest = (model or "").partition(":")
    if colon and not prefix:
        return Routed(None, rest or None)
    if colon and prefix in vendors:
        return Routed(prefix, rest or None)
    return Routed(None, model)


def chosen(model: str, vendor: str, vendors: Collection[str]) -> str | None:
    """The model's name for a running conversation. ValueError if the prefix names another vendor."""
    named, rest = routed(model, vendors)
    if named not in (None, vendor):
        raise ValueError(
            f"this conversation is {vendor}'s, and {named}'s models are not its own; start a new one"
        )
    return rest


def may_be_told(name: str) -> bool:
    """Whether a name may become an argument: it cannot be taken for a flag or a path."""
    return len(name) <= MODEL_CHARACTERS and name[:1].isalnum() and _MODEL.issuperset(name)


def check_model(name: str) -> None:
    """Raise ValueError for a name that must not become an argument."""
    if not may_be_told(name):
        raise ValueError(f"the model name {name[:60]!r} has characters that no model name has")
