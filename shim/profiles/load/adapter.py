"""Builds the adapter for a profile. The profile is validated, and only the parts that start the
child are compiled.

PROFILE_KEYS and the other tables in `shim.profiles.schema.tables` have all keys of a profile.

A profile has no state and no code. `adapter` names a subclass of
`shim.profiles.profile.ProfileTranslator`. For a bundled profile, the class is in a module of
`shim.adapters`. For a user's profile, the class is in a file beside the profile,
`vendors/MODULE.py`.

The module is loaded from this path and never from a search path, so a working directory or a
package cannot replace it. Loading the module does not add a privilege: anyone who can write to that
folder can also write the profile, which names the program to run.

The rules for a child's output are compiled when the child runs (`compile/stream.py`). A user's
profile is compiled completely before a child starts, so that mistakes are reported early.
"""

from shim.core.reading.typed import TYPE_CHECKING, Any
from shim.profiles.check.config_node import ConfigKey, ConfigNode, ConfigSource
from shim.profiles.compile.tools import parse_tools
from shim.profiles.load.launch import LaunchTemplate
from shim.profiles.load.profile_adapter import (
    TWO_WAY_ADAPTERS,
    ProfileAdapter,
    Table,
    TranslatorLoader,
)

if TYPE_CHECKING:
    from shim.profiles.compile.rules import ProfileRuleMatchObserver

SCHEMA_VERSION = 1
PROTOCOLS = ("acp",)
PROFILE_KEYS = {
    "schema": ConfigKey.for_node("the number 1", "the version of the profile format"),
    "id": ConfigKey(
        ConfigNode.read_text, "the vendor's name, which is also the file name without `.toml`"
    ),
    "extends": ConfigKey.for_node(
        "a string", "a bundled profile that this profile extends; lists are replaced"
    ),
    "protocol": ConfigKey(
        ConfigNode.read_choice,
        "the only protocol that the program speaks. The profile then has no rules, and requires "
        "only `launch.command`",
        PROTOCOLS,
        "",
    ),
    "unattended": ConfigKey(
        ConfigNode.read_bool, "whether the vendor runs its tools without asking"
    ),
    "listed": ConfigKey(
        ConfigNode.read_text_list,
        "the tools that the vendor can run, by Claude's names; by default all tools in `[tools]`",
    ),
    "reads_commands": ConfigKey(
        ConfigNode.read_bool,
        "the program itself reads the commands and skills in the project's `.claude` folders, "
        "which no argument prevents",
    ),
    "other_tools": ConfigKey.for_node(
        "a table", "names for tools that are not in `[tools]`: `{ regex = '…', name = '…' }`"
    ),
    "unknown_tools": ConfigKey.for_node(
        "a string",
        "how calls to tools without a Claude name are written: `pass`, `hide`, or `mcp_prefix`",
        successor="[tools] or `other_tools`",
    ),
    "adapter": ConfigKey.for_node(
        "a string",
        "a class for events that rules cannot translate: `module:Class`, a subclass of "
        "`shim.profiles.profile.ProfileTranslator` in the profile's folder",
    ),
    "two_way": ConfigKey(
        ConfigNode.read_choice,
        "a bundled module with an adapter that drives the program in a mode that asks "
        "for permission",
        tuple(TWO_WAY_ADAPTERS),
        "",
    ),
    "launch": ConfigKey.for_node("a table", "how the program is started"),
    "acp": ConfigKey.for_node("a table", "how the program is driven by the Agent Client Protocol"),
    "stream": ConfigKey.for_node("a table", "settings for all events of the program"),
    "event": ConfigKey.for_node(
        "a list of tables",
        "rules for the program's events (`shim/profiles/compile/rules.py`, "
        "`shim/profiles/compile/emits.py`)",
    ),
    "report": ConfigKey.for_node(
        "a list of tables",
        "rules for the report file (`launch.report`), which is read after the program "
        "exits. A rule emits session, usage, result, error or notice",
    ),
    "stderr": ConfigKey.for_node(
        "a list of tables",
        'rules for stderr lines: `regex`, and `emit = "session"` (group `session_id`) or '
        '`emit = "error"` (group `error`, and the key `cause`)',
    ),
    "exit_codes": ConfigKey.for_node(
        "a table of strings", "exit code → the cause of the failure, if nothing else explains it"
    ),
    "tools": ConfigKey.for_node(
        "a table", "the program's tools, by Claude's names (`shim/profiles/compile/tools.py`)"
    ),
    "note": ConfigKey.for_node("any value", "a remark", successor="a comment (#)"),
}


def merge_tables(base: Table, override: Table) -> dict[str, Any]:
    """Return `base` merged with `override`. Nested tables are merged, and all other values are
    replaced.
    """
    result = dict(base)
    for key, value in override.items():
        base_value = result.get(key)
        if isinstance(value, dict) and isinstance(base_value, dict):
            result[key] = merge_tables(base_value, value)
        else:
            result[key] = value
    return result


def build_adapter(
    name: str,
    table: Table,
    source: ConfigSource,
    load_translator_class: TranslatorLoader | None = None,
    trace: "ProfileRuleMatchObserver | None" = None,
) -> ProfileAdapter:
    """Return the adapter for a profile. Raise FrontendError with file, line and key for an invalid
    value.

    `load_translator_class` imports the class that the profile names. `trace` receives each event's
    matching rules.
    """
    node = ConfigNode(source, table)
    node.read_table(PROFILE_KEYS)
    _check_schema_and_id(node, name)
    profile = node.read_keys(PROFILE_KEYS)
    if profile["protocol"]:
        from shim.profiles.load.acp import AcpOnlyAdapter, expand_acp_profile

        return AcpOnlyAdapter(build_adapter(name, expand_acp_profile(node), source))
    tool_table = parse_tools(
        node.get_child("tools"),
        node.get_child("other_tools"),
        node.get_child("unknown_tools"),
        name,
    )
    template = LaunchTemplate(node.get_child("launch"), name, tool_table)
    adapter = ProfileAdapter(node, profile, template, tool_table, load_translator_class, trace)
    if trace is not None:
        _ = adapter.translator_class
    if not source.is_bundled and node.get_child("acp").value:
        adapter.build_two_way()  # report mistakes in `[acp]` now
    return adapter


def _check_schema_and_id(node: ConfigNode, name: str) -> None:
    """Raise FrontendError if the profile has another version of the format, or another id than the
    name of its file.
    """
    schema_node = node.get_child("schema")
    version = schema_node.value
    if version.__class__ is not int or version != SCHEMA_VERSION:
        description = ""
        if not schema_node:
            description = "not there"
        raise schema_node.build_error(f"{SCHEMA_VERSION}", description=description)
    id_node = node.get_child("id")
    if id_node.read_text() != name:
        raise id_node.build_error(f"{name!r}, the name of the profile's file")
