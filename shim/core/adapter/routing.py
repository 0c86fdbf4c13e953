"""Names of vendors: a prefix `VENDOR:MODEL`, a list in SHIM_VENDOR (surface page, The vendor of a
turn).
"""

from collections.abc import Collection

from shim.core.reading.typed import NamedTuple

# in a vendor's place: the path behind it is a recording, or a folder of them
REPLAY_PREFIX = "replay:"
_MODEL_NAME_CHARS = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:/@+-[]=, "
)
MAX_MODEL_NAME_CHARS = 200


class ModelRoute(NamedTuple):
    """A model's name without its prefix, and the vendor of the prefix. None stands for a missing
    part.
    """

    vendor: str | None
    model: str | None


def parse_vendor_list(text: str) -> tuple[str, ...]:
    """The names of a list such as `qwen, codex`."""
    return tuple(name for part in text.split(",") if (name := part.strip()))


def parse_model_route(model: str | None, vendors: Collection[str]) -> ModelRoute:
    """Split a model's name. `vendors` are the names that count as a prefix.

    `qwen:m1` is m1 of qwen, `qwen:` is qwen's default model. `:qwen:32b` is the model `qwen:32b` of
    the vendor that answers, and so is `x:32b`, because no vendor is called x.
    """
    prefix, colon, model_name = (model or "").partition(":")
    if colon and not prefix:
        return ModelRoute(None, model_name or None)
    if colon and prefix in vendors:
        return ModelRoute(prefix, model_name or None)
    return ModelRoute(None, model)


def resolve_model_name(model: str, vendor: str, vendors: Collection[str]) -> str | None:
    """The model's name for a running conversation. ValueError if the prefix names another vendor."""
    prefix_vendor, model_name = parse_model_route(model, vendors)
    if prefix_vendor not in (None, vendor):
        raise ValueError(
            f"this conversation is {vendor}'s, and {prefix_vendor}'s models are not its own; start a new one"
        )
    return model_name


def can_pass_model_name_as_argument(name: str) -> bool:
    """Whether a name may become an argument: it cannot be taken for a flag or a path."""
    return (
        len(name) <= MAX_MODEL_NAME_CHARS
        and name[:1].isalnum()
        and _MODEL_NAME_CHARS.issuperset(name)
    )


def check_model_name(name: str) -> None:
    """Raise ValueError for a name that must not become an argument."""
    if not can_pass_model_name_as_argument(name):
        raise ValueError(f"the model name {name[:60]!r} has characters that no model name has")
