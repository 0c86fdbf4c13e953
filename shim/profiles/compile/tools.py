"""Maps the tools of a profile to Claude's tools.

    [tools.read]
    name = "Read"                                  Claude's name
    args = { file_path = "path", limit = { minus = ["end", "start"] } }   Claude's argument = a field
                                                                          of the vendor's arguments
    keep = true                                    keep all other arguments (without `keep` they are
                                                   removed)
    add = { prompt = "" }                          additional constant arguments
    alt = [ { match = { … }, name = "…", args = { … } } ]    a different Claude tool if the
                                                             conditions are true; the first match
                                                             applies

Without `args`, the arguments stay unchanged. `other_tools` renames tools that `[tools]` does not
have:

    other_tools = { regex = '^mcp_([^_]+)_(.+)$', name = 'mcp__\\1__\\2' }

`unknown_tools` applies to the remaining tools:

    pass        the call keeps its name and arguments
    mcp_prefix  the call is written as a call to an MCP tool, `mcp__VENDOR__NAME`
    hide        the call and its result are omitted, unless the call was denied
"""

from collections.abc import Callable, Iterator, Mapping

from shim.core.adapter.tools import Arguments, ToolMapping
from shim.core.reading.typed import Any
from shim.profiles.check.config_node import ConfigNode

MAX_TOOLS = 500
UNKNOWN_TOOL_POLICIES = ("pass", "hide", "mcp_prefix")
MCP_PREFIX = "mcp__"  # the prefix of MCP tool names
MAX_NAME_CHARS = 200  # `other_tools` and the prefix are not applied to a longer name
MAX_ALTERNATIVES = 20
_TOOL_KEYS = ("name", "args", "keep", "add")

ConvertFunction = Callable[[Arguments], tuple[str, Arguments]]


class ProfileTool(ToolMapping):
    """A tool whose arguments are computed from fields in the profile. The fields are compiled at
    the tool's first call, because starting the child does not need them.

    `other_names` are the names that a call may get instead of `name`.
    """

    __slots__ = ("_compile_converter", "_converter", "other_names")

    def __init__(
        self,
        name: str,
        other_names: tuple[str, ...],
        compile_converter: Callable[[], ConvertFunction],
    ) -> None:
        super().__init__(name)
        self.affected_keys = None
        self.other_names = other_names
        self._compile_converter = compile_converter
        self._converter: ConvertFunction | None = None

    def translate_arguments(self, arguments: Arguments) -> tuple[str, Arguments]:
        """Return Claude's tool name and arguments for a call. `arguments` is not modified."""
        if self._converter is None:
            self._converter = self._compile_converter()
        return self._converter(arguments)


class ToolTable(Mapping[str, ToolMapping]):
    """A table of tools by name. For a tool that is not in the table, it derives Claude's name with
    a regular expression, or by adding a prefix.
    """

    def __init__(
        self, table: Mapping[str, ToolMapping], regex: str, name: str, prefix: str
    ) -> None:
        self._table = table
        self._regex = regex
        self._name = name
        self._prefix = prefix

    def get(self, key: str, default: Any = None) -> Any:
        """Return the tool that is stored under `key`. If there is none, return a tool with a
        derived name, or `default` if no name can be derived.
        """
        tool = self._table.get(key)
        if tool is not None:
            return tool
        if key.__class__ is not str or len(key) > MAX_NAME_CHARS:
            return default
        if self._regex:
            import re

            if match := re.fullmatch(self._regex, key):
                return ToolMapping(match.expand(self._name))
        if self._prefix and not key.startswith(MCP_PREFIX):
            return ToolMapping(f"{self._prefix}{key}")
        return default

    def __getitem__(self, key: str) -> ToolMapping:
        return self._table[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


def get_claude_names(tool: ToolMapping) -> set[str]:
    """Return all Claude tool names that calls of one of the program's tools may have."""
    if isinstance(tool, ProfileTool):
        return {tool.name, *tool.other_names}
    return {tool.name}


def parse_tools(
    node: ConfigNode, other_tools: ConfigNode, unknown_tools: ConfigNode, vendor: str
) -> Mapping[str, ToolMapping]:
    """Return the tools in `[tools]`. The result also applies `other_tools` and `unknown_tools` to
    all other tools. Raise FrontendError for an invalid value.
    """
    entries = node.read_table()
    if len(entries) > MAX_TOOLS:
        raise node.build_error(
            f"a table with at most {MAX_TOOLS} tools", f"a table with {len(entries)} tools"
        )
    table = {name: _parse_tool(node.get_child(name)) for name in entries}
    prefix = ""
    if unknown_tools.read_choice(UNKNOWN_TOOL_POLICIES, UNKNOWN_TOOL_POLICIES[0]) == "mcp_prefix":
        prefix = f"{MCP_PREFIX}{vendor}__"
    if not other_tools:
        if prefix:
            return ToolTable(table, "", "", prefix)
        return table
    other_tools.read_table(("regex", "name"))
    regex = other_tools.get_child("regex").read_text()
    name = other_tools.get_child("name").read_text()
    if not other_tools.source.is_bundled:
        _check_groups(other_tools, name)
    return ToolTable(table, regex, name, prefix)


def _check_groups(other_tools: ConfigNode, name: str) -> None:
    """Raise FrontendError if the replacement name refers to a group that its pattern does not have."""
    import re

    pattern = other_tools.get_child("regex").compile_pattern()
    try:
        pattern.sub(name, "")
        re.compile(pattern.pattern + "|").fullmatch("")
        if any(int(group) > pattern.groups for group in re.findall(r"\\(\d+)", name)):
            raise re.error("no such group")
    except (re.error, IndexError) as error:
        raise other_tools.get_child("name").build_error(
            f"a name with groups of the pattern ({error})"
        ) from None


def _parse_tool(node: ConfigNode) -> ToolMapping:
    node.read_table((*_TOOL_KEYS, "alt"))
    name = node.get_child("name").read_text()
    alternatives = _parse_alternatives(node.get_child("alt"))

    def compile_converter() -> ConvertFunction:
        from shim.profiles.compile.tool_arguments import compile_tool_argument_converter

        return compile_tool_argument_converter(node, alternatives)

    if not node.source.is_bundled:
        # Report mistakes in a user's profile before a child starts. Tests compile the bundled profiles.
        compile_converter()
    if not (alternatives or node.get_child("args") or node.get_child("add")):
        return ToolMapping(name)
    if (
        not alternatives
        and node.get_child("keep").read_bool()
        and (renaming := _find_plain_renaming(node.get_child("args").read_table())) is not None
    ):
        return ToolMapping(
            name, renaming[0], convert=renaming[1], extra=node.get_child("add").read_table()
        )
    return ProfileTool(
        name,
        tuple(alternative.get_child("name").read_text(name) for alternative in alternatives),
        compile_converter,
    )


def _parse_alternatives(node: ConfigNode) -> list[ConfigNode]:
    """Return the nodes of the other Claude tools that a call may become."""
    alternatives = node.read_items(MAX_ALTERNATIVES)
    for alternative in alternatives:
        alternative.read_table((*_TOOL_KEYS, "match"))
        if not alternative.get_child("match"):
            raise alternative.build_error("a table with `match`", "a table without `match`")
    return alternatives


def _create_multiplier(factor: float) -> Callable[[Any], Any]:
    def convert_value(value: Any) -> Any:
        from shim.profiles.run.values import multiply_if_number

        return multiply_if_number(value, factor)

    return convert_value


def _find_plain_renaming(
    table: Mapping[str, Any],
) -> tuple[dict[str, str], dict[str, Callable[[Any], Any]]] | None:
    """Return the renamings and multiplications in a table of fields, if a plain ToolMapping can
    apply them. Return None if the table has any other field.
    """
    renames: dict[str, str] = {}
    converters: dict[str, Callable[[Any], Any]] = {}
    for claude_name, value in table.items():
        path = value
        if isinstance(value, dict) and set(value) == {"path", "times"}:
            path = value.get("path")
        if not isinstance(path, str) or not path.isidentifier() or path in renames:
            return None
        renames[path] = claude_name
        if path is not value:
            converters[claude_name] = _create_multiplier(value["times"])
    return {
        vendor_name: claude_key
        for vendor_name, claude_key in renames.items()
        if vendor_name != claude_key
    }, converters
