"""Warns about keys and operators in a user's profile that no bundled profile uses.

Such keys still work, but a later version may remove them.
"""

from collections.abc import Iterator, Mapping

from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import as_dict, as_list
from shim.profiles.check.config_node import (
    ConfigKeys,
    ConfigSource,
    find_key_line,
    format_as_toml,
    format_key_path,
)
from shim.profiles.compile.emits import COMMON_RULE_KEYS
from shim.profiles.schema.tables import PROFILE_TABLES, map_unused_keys_to_successors

# The tables whose keys are defined by the shim. In all other tables, the profile's author chooses
# the keys.
_TABLES = (
    *(name for name in PROFILE_TABLES if name != "acp.signs"),
    *("launch.overruled_by", "other_tools"),
)
# The operators whose value is a field or a list of fields.
_WITH_FIELDS = ("path", "join", "plus", "minus", "any", "all", "not", "foreach")
_OF_FIELDS = ("object", "item")  # operators whose value is a table of fields
_PLAIN_FIELDS = ("mode", "cause")  # keys of rules whose value is a keyword and not a field


class ProfileKey(NamedTuple):
    """A key that occurs in a profile."""

    # The key's name in the schema, such as `launch.stdin`, `event.text.block` or `field.times`. The
    # keys of [[report]] have the same names as the keys of [[event]].
    name: str
    keys: ConfigKeys  # the key's location in the file


def build_unused_key_warnings(profile: Mapping[str, Any], source: ConfigSource) -> dict[str, str]:
    """Return a warning for each key in a profile that no bundled profile uses, in the order of the
    keys' names.
    """
    successors = map_unused_keys_to_successors()
    unused_keys: dict[str, ConfigKeys] = {}
    for name, keys in list_profile_keys(profile):
        if name in successors:
            unused_keys.setdefault(name, keys)
    if not unused_keys:
        return {}
    text = source.read_text()
    warnings: dict[str, str] = {}
    for name, keys in unused_keys.items():
        key_text = format_key_path(keys)
        if name.startswith("emit."):
            key_text = f"{key_text} = {format_as_toml(name.removeprefix('emit.'))}"
        successor = ""
        if successors[name]:
            successor = f"; write {successors[name]} instead"
        warnings[name] = (
            f"{source.path}:{find_key_line(text, keys)}: no bundled profile uses `{key_text}`, "
            f"and a later version may remove it{successor}"
        )
    return warnings


def list_profile_keys(profile: Mapping[str, Any]) -> Iterator[ProfileKey]:
    """Yield each key and operator in a profile that the shim defines."""
    for table in _TABLES:
        keys: ConfigKeys = ()
        if table:
            keys = tuple(table.split("."))
        for key in _get(profile, keys):
            yield ProfileKey(f"{table}.{key}".lstrip("."), (*keys, key))
    for table in ("launch", "acp"):
        yield from _list_items(profile, (table, "argv"), "argv")
    yield from _list_named(profile, ("launch", "variants"))
    yield from _list_named(profile, ("acp", "signs"))
    yield from _list_items(profile, ("stderr",), "stderr")
    for key in ("event", "report"):
        for number, rule in enumerate(as_list(profile.get(key))):
            yield from _list_rule(rule, (key, number))
    for name, tool in _get(profile, ("tools",)).items():
        yield from _list_tool(tool, ("tools", name))
        for number, other in enumerate(as_list(as_dict(tool).get("alt"))):
            yield from _list_tool(other, ("tools", name, "alt", number))
    yield from _list_field(_get(profile, ("stream",)).get("parent"), ("stream", "parent"))


def _list_items(profile: Mapping[str, Any], keys: ConfigKeys, name: str) -> Iterator[ProfileKey]:
    """Yield the keys of all tables in a list."""
    for number, item in enumerate(as_list(_get(profile, keys[:-1]).get(str(keys[-1])))):
        for key in as_dict(item):
            yield ProfileKey(f"{name}.{key}", (*keys, number, key))


def _list_named(profile: Mapping[str, Any], keys: ConfigKeys) -> Iterator[ProfileKey]:
    """Yield the keys of all subtables. The table's own keys are names that the author chose, and
    are not included.
    """
    for name, table in _get(profile, keys).items():
        for key in as_dict(table):
            yield ProfileKey(f"{'.'.join(map(str, keys))}.{key}", (*keys, name, key))


def _list_rule(rule: object, at: ConfigKeys) -> Iterator[ProfileKey]:
    table = as_dict(rule)
    emit = table.get("emit")
    for key, value in table.items():
        keys = (*at, key)
        if key == "emit":
            yield ProfileKey(f"emit.{emit}", keys)
        if key in COMMON_RULE_KEYS:
            yield ProfileKey(f"event.{key}", keys)
            continue
        yield ProfileKey(f"event.{emit}.{key}", keys)
        if key == "usage":
            for count, field in as_dict(value).items():
                yield ProfileKey(f"usage.{count}", (*keys, count))
                yield from _list_field(field, (*keys, count))
        elif key not in _PLAIN_FIELDS:
            yield from _list_field(value, keys)
    for key in ("match", "item_match"):
        yield from _list_conditions(table.get(key), (*at, key))


def _list_tool(tool: object, at: ConfigKeys) -> Iterator[ProfileKey]:
    table = as_dict(tool)
    for key in table:
        yield ProfileKey(f"tools.{key}", (*at, key))
    for name, field in as_dict(table.get("args")).items():
        yield from _list_field(field, (*at, "args", name))
    yield from _list_conditions(table.get("match"), (*at, "match"))


def _list_conditions(conditions: object, at: ConfigKeys) -> Iterator[ProfileKey]:
    for path, condition in as_dict(conditions).items():
        for operator in as_dict(condition):
            yield ProfileKey(f"condition.{operator}", (*at, path, operator))


def _list_field(field: object, at: ConfigKeys) -> Iterator[ProfileKey]:
    for operator, value in as_dict(field).items():
        keys = (*at, operator)
        yield ProfileKey(f"field.{operator}", keys)
        if operator in _OF_FIELDS and isinstance(value, dict):
            for name, inner in value.items():
                yield from _list_field(inner, (*keys, name))
        elif operator in _WITH_FIELDS or operator in _OF_FIELDS:
            yield from _list_field(value, keys)
            for number, inner in enumerate(as_list(value)):
                yield from _list_field(inner, (*keys, number))


def _get(profile: Mapping[str, Any], keys: ConfigKeys) -> Mapping[str, Any]:
    """Return the table at a key path, or {} if it is missing."""
    table = profile
    for key in keys:
        table = as_dict(table.get(str(key)))
    return table
