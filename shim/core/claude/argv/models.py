"""Model names on the command line: the prefix `VENDOR:MODEL`, Claude's own names, and the levels of
`--effort`.

Frontends pass Claude's names for every vendor, but other vendors never receive these names.
`[models]` in the settings maps them.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import as_list, as_str

DEFAULT_MODEL = "default"  # the vendor's default model
# Claude's short model names. The long names begin with `claude-`. A name may end with a context
# size, as in `sonnet[1m]`.
MODEL_FAMILIES = ("fable", "haiku", "opus", "sonnet")
SHORT_MODEL_NAMES = frozenset((DEFAULT_MODEL, "best", "opusplan", *MODEL_FAMILIES))
LONG_MODEL_PREFIX = "claude-"
# Further parts of the long names of Claude's models.
_OTHER_LONG_NAME_PARTS = ("instant", "latest", "mythos", "preview")
# The levels of `--effort`. They are translated into the vendor's own levels.
CLAUDE_EFFORT_LEVELS = ("low", "medium", "high", "xhigh", "max")


# The maximum number of models that a vendor can offer. A frontend shows all of them.
MAX_OFFERED_MODELS = 500
MAX_MODEL_TEXT_CHARS = 500  # longer names and descriptions are not shown


class OfferedModel(NamedTuple):
    """A model that a vendor offers. `name` is the vendor's own name for it."""

    name: str
    display_name: str = ""
    description: str = ""


def parse_offered_models(
    entries: object, name_key: str, display_key: str, description_key: str = "description"
) -> tuple[OfferedModel, ...]:
    """Parse a vendor's list of models. `name_key`, `display_key` and `description_key` are the keys
    in each entry of the list. Entries without a usable name are left out.
    """
    models = []
    for entry in as_list(entries)[:MAX_OFFERED_MODELS]:
        if not isinstance(entry, dict):
            continue
        name = _get_short_text(entry, name_key)
        if name and can_pass_model_name_as_argument(name):
            models.append(
                OfferedModel(
                    name,
                    _get_short_text(entry, display_key),
                    _get_short_text(entry, description_key),
                )
            )
    return tuple(models)


def _get_short_text(entry: Mapping[str, Any], key: str) -> str:
    """Return a text of an entry, or "" if it is missing or too long."""
    text = as_str(entry.get(key))
    if len(text) > MAX_MODEL_TEXT_CHARS:
        return ""
    return text


def is_claude_model(name: str) -> bool:
    """Return whether a model name belongs to Claude."""
    base_name = _strip_context_size(name)
    if base_name in SHORT_MODEL_NAMES:
        return True
    return base_name.startswith(LONG_MODEL_PREFIX)


def is_impossible_claude_model(name: str) -> bool:
    """Return whether a long name cannot belong to a model of Claude, so that Anthropic's API would
    answer 404.

    Each long name that was published contains a known part or a version, as in `claude-2.1`,
    `claude-v1` and `claude-sonnet-4@20250514`. A version is enough, so that the names of later
    families are accepted.
    """
    base_name = _strip_context_size(name)
    if not base_name.startswith(LONG_MODEL_PREFIX):
        return False
    if any(part in base_name for part in (*MODEL_FAMILIES, *_OTHER_LONG_NAME_PARTS)):
        return False
    parts = base_name.removeprefix(LONG_MODEL_PREFIX).split("-")
    return not any(part.removeprefix("v")[:1].isdigit() for part in parts)


def map_model_name(name: str | None, name_maps: Iterable[Mapping[str, str]]) -> str | None:
    """Return the model name to pass to a vendor other than Claude, or None for the vendor's default
    model.

    The first map in `name_maps` that has an entry for the name is used. Each map is searched for
    the name itself, for the name without its context size, and for the family of a Claude model.
    For example, an entry for `sonnet` also matches `claude-sonnet-4-5-20250929`. Without an entry,
    a Claude name becomes None, and any other name stays unchanged.
    """
    if not name:
        return None
    for name_map in name_maps:
        for key in _list_lookup_keys(name) if name_map else ():
            if key in name_map:
                return name_map[key]
    if is_claude_model(name):
        return None
    return name


def map_model_names(names: str | None, map_name: Callable[[str], str | None]) -> str | None:
    """Map a comma-separated list of model names, such as the value of `--fallback-model`. Return
    None if no name remains.
    """
    if names is None:
        return None
    model_names = filter(None, (map_name(name.strip()) for name in names.split(",")))
    return ",".join(model_names) or None


def parse_effort_level(value: object) -> str | None:
    """Return an effort level in lower case, or None if the value is not a level. The real claude
    also ignores such a value.
    """
    level_name = ""
    if isinstance(value, str):
        level_name = value.lower()
    if level_name in CLAUDE_EFFORT_LEVELS:
        return level_name
    return None


def choose_supported_effort(effort: str, supported_efforts: Collection[object]) -> str | None:
    """Return the requested effort level, or the next lower level that the vendor supports. Return
    None if the vendor supports no such level.
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


# A prefix that replaces a vendor's name. The path after the prefix is a recording or a folder of
# recordings.
REPLAY_PREFIX = "replay:"
_MODEL_NAME_CHARS = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:/@+-[]=, "
)
MAX_MODEL_NAME_CHARS = 200


class ModelRoute(NamedTuple):
    """A model name that is split into a vendor prefix and a model. A missing part is None."""

    vendor: str | None
    model: str | None


def parse_vendor_list(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list of vendor names such as `qwen, codex`."""
    return tuple(name for part in text.split(",") if (name := part.strip()))


def parse_model_route(model: str | None, vendors: Collection[str]) -> ModelRoute:
    """Split a model name into vendor and model. Only the names in `vendors` count as a prefix.

    `qwen:m1` is the model m1 of qwen, and `qwen:` is qwen's default model. `:qwen:32b` is the model
    `qwen:32b` of the current vendor. `x:32b` is the model `x:32b` of the current vendor, because no
    vendor is named x.
    """
    if not model:
        return ModelRoute(None, model)
    prefix, colon, model_name = model.partition(":")
    if colon and not prefix:
        return ModelRoute(None, model_name or None)
    if colon and prefix in vendors:
        return ModelRoute(prefix, model_name or None)
    return ModelRoute(None, model)


def resolve_model_name(model: str, vendor: str, vendors: Collection[str]) -> str | None:
    """Return the model name for a running conversation, without a vendor prefix. Raise ValueError
    if the prefix names a vendor other than the current one.
    """
    prefix_vendor, model_name = parse_model_route(model, vendors)
    if prefix_vendor not in (None, vendor):
        raise ValueError(
            f"this conversation belongs to {vendor}, which does not have {prefix_vendor}'s "
            "models; start a new conversation"
        )
    return model_name


def can_pass_model_name_as_argument(name: str) -> bool:
    """Return whether a model name is safe as a command-line argument. A name that looks like a flag
    or a path is not safe.
    """
    if len(name) > MAX_MODEL_NAME_CHARS:
        return False
    if not name[:1].isalnum():
        return False
    return _MODEL_NAME_CHARS.issuperset(name)


def check_model_name(name: str) -> None:
    """Raise ValueError if a model name must not be passed as a command-line argument."""
    if not can_pass_model_name_as_argument(name):
        raise ValueError(f"the model name {name[:60]!r} has invalid characters")
