"""The names of models on the command line: the prefix `VENDOR:MODEL`, Claude's own names, and the
levels of `--effort`.

Frontends pass Claude's names whatever the vendor is, and no other vendor receives them. `[models]`
in the settings maps them (surface page, Models).
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from shim.core.reading.typed import NamedTuple

DEFAULT_MODEL = "default"  # the model that a vendor uses by itself
# Claude's short names; its long ones begin with `claude-`. Each may end in the size of a context,
# as in `sonnet[1m]`.
MODEL_FAMILIES = ("fable", "haiku", "opus", "sonnet")
SHORT_MODEL_NAMES = frozenset((DEFAULT_MODEL, "best", "opusplan", *MODEL_FAMILIES))
LONG_MODEL_PREFIX = "claude-"
# How hard the model is to try (`--effort`): levels that a vendor is told in its own words.
CLAUDE_EFFORT_LEVELS = ("low", "medium", "high", "xhigh", "max")


def is_claude_model(name: str) -> bool:
    """Whether a model's name is one of Claude's."""
    base_name = _strip_context_size(name)
    if base_name in SHORT_MODEL_NAMES:
        return True
    return base_name.startswith(LONG_MODEL_PREFIX)


def map_model_name(name: str | None, name_maps: Iterable[Mapping[str, str]]) -> str | None:
    """What a vendor that is not claude is told for a model's name; None is the vendor's own
    default.

    The first of `name_maps` that has the name counts: as it was said, without the size of its
    context, or, of a name of Claude's, its family (`sonnet` stands for `claude-sonnet-4-5-20250929`
    too).
    """
    if not name:
        return None
    for name_map in name_maps:
        for key in _list_lookup_keys(name) if name_map else ():
            if key in name_map:
                return name_map[key]
    return None if is_claude_model(name) else name


def map_model_names(names: str | None, map_name: Callable[[str], str | None]) -> str | None:
    """The same for a list with commas, such as that of `--fallback-model`; None where nothing is
    left of it.
    """
    return (
        ",".join(
            model_name
            for raw_name in (names or "").split(",")
            if (model_name := map_name(raw_name.strip()))
        )
        or None
    )


def parse_effort_level(value: object) -> str | None:
    """A level as it is written; None for any other word, which the real claude ignores too."""
    level_name = ""
    if isinstance(value, str):
        level_name = value.lower()
    if level_name in CLAUDE_EFFORT_LEVELS:
        return level_name
    return None


def choose_supported_effort(effort: str, supported_efforts: Collection[object]) -> str | None:
    """The level of those that a vendor has: the asked one or the next below it; None where there is
    none.
    """
    return next(
        (
            candidate
            for candidate in reversed(
                CLAUDE_EFFORT_LEVELS[: CLAUDE_EFFORT_LEVELS.index(effort) + 1]
            )
            if candidate in supported_efforts
        ),
        None,
    )


def _strip_context_size(name: str) -> str:
    return name.partition("[")[0].lower()


def _list_lookup_keys(name: str) -> Iterable[str]:
    yield name
    base_name = _strip_context_size(name)
    yield base_name
    if is_claude_model(name):
        yield from (family for family in MODEL_FAMILIES if family in base_name)


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
    if len(name) > MAX_MODEL_NAME_CHARS:
        return False
    if not name[:1].isalnum():
        return False
    return _MODEL_NAME_CHARS.issuperset(name)


def check_model_name(name: str) -> None:
    """Raise ValueError for a name that must not become an argument."""
    if not can_pass_model_name_as_argument(name):
        raise ValueError(f"the model name {name[:60]!r} has characters that no model name has")
