"""Reads `[launch.denials]` in a profile: how a program receives deny rules when it starts.

The program receives nothing if nothing is denied and `asking` does not apply. A permission mode
denies the tools that its `permission_tools` do not list, and all MCP servers. The environment
variables in this table override all others, including variables in the user's settings.
"""

from collections.abc import Collection, Iterable, Mapping

from shim.core.adapter.adapter import LaunchRequest
from shim.core.adapter.tools import Tools
from shim.core.errors import FrontendError, UnsupportedPermissionModeError
from shim.core.policy.policy import (
    BYPASS_MODE,
    MCP_PREFIX,
    PROTECTED_NAMES,
    SHIM_FOLDERS,
    SUBAGENT_TOOL,
    PermissionRule,
)
from shim.core.reading.typed import Any, NamedTuple
from shim.profiles.check.config_node import ConfigKey, ConfigNode
from shim.profiles.compile.tools import get_claude_names
from shim.profiles.load.argv_parts import BUNDLED_FOLDER

DENIAL_KEYS = {
    "tool": ConfigKey(
        ConfigNode.read_text,
        """the text that denies one tool of the program: `'"{tool}":"deny"'`""",
    ),
    "allow": ConfigKey(
        ConfigNode.read_optional_text,
        "the text that allows one tool of the program (`{tool}`), for a program that "
        "asks before every tool",
    ),
    "asking": ConfigKey(
        ConfigNode.read_optional_text,
        "the text that makes the program ask about each call when `[acp]` drives it: "
        """`'"*":"ask"'`""",
    ),
    "server": ConfigKey(
        ConfigNode.read_optional_text,
        "the text that denies all tools of an MCP server. `{server}` is replaced by the "
        "server's name. Without this key, a turn that has a rule for an MCP server is refused",
    ),
    "server_tool": ConfigKey(
        ConfigNode.read_optional_text,
        "the text that denies one tool of an MCP server (`{server}`, `{tool}`)",
    ),
    "servers": ConfigKey(
        ConfigNode.read_optional_text, "the text that denies the tools of all MCP servers"
    ),
    "between": ConfigKey(
        ConfigNode.read_optional_text,
        "the separator that joins the texts for tools and MCP servers",
    ),
    "text": ConfigKey(
        ConfigNode.read_optional_text,
        "a template that contains the texts for all tools and servers (`{denials}`)",
    ),
    "renamed": ConfigKey(
        ConfigNode.read_text_table,
        "the tools that have a different name in the texts of this table",
    ),
    "also": ConfigKey(
        ConfigNode.read_text_list,
        "tools of the program that Claude has no name for; a permission mode or a "
        "selection of tools denies them",
    ),
    "subagents": ConfigKey(
        ConfigNode.read_bool,
        "whether the program's subagents obey the deny rules. If they do not, any rule "
        "disables subagents",
    ),
    "protected_file": ConfigKey(
        ConfigNode.read_optional_text,
        "the text that denies changes to a file or folder (`{name}`) that can make programs run",
    ),
    "protected": ConfigKey(
        ConfigNode.read_optional_text,
        "a template that contains all `protected_file` texts (`{files}`), for "
        "acceptEdits without permission prompts",
    ),
    "args": ConfigKey(
        ConfigNode.read_text_list,
        "arguments after `argv`; `{file}` is the path of a temporary file with the text",
        20,
    ),
    "suffix": ConfigKey(ConfigNode.read_optional_text, "the suffix of the temporary file's name"),
    "of_modes": ConfigKey(
        ConfigNode.read_optional_text,
        "a bundled file with the rules of the permission modes; if only a mode denies "
        "tools, no temporary file is written",
    ),
    "plain": ConfigKey(ConfigNode.read_variables, "environment variables and their values"),
    "asking_plain": ConfigKey(
        ConfigNode.read_variables,
        "environment variables and their values, which are set only if `[acp]` drives the program",
    ),
    "json": ConfigKey(
        ConfigNode.read_variables,
        "environment variables with a JSON object (`{denials}`), which is merged into the "
        "value from the environment. `{bundled}` is the folder with the bundled profiles, in the "
        "form of a URL",
    ),
}
# The longest MCP tool name, including its prefix. The program may cut a longer name.
MAX_SERVER_TOOL_CHARS = 60
_PLAIN_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-")


class ToolDenialConfig(NamedTuple):
    """The arguments, environment variables and temporary files that pass the deny rules to one
    child.
    """

    args: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    files: tuple[str, ...] = ()


class ToolDenialTemplates:
    """The text templates in a validated `[launch.denials]`. `tools_by_mode` maps each permission
    mode that does not allow all tools to the tools that it allows, by Claude's names.
    """

    def __init__(
        self,
        node: ConfigNode,
        name: str,
        tools: Tools,
        tools_by_mode: Mapping[str, tuple[str, ...]],
    ) -> None:
        self._name = name
        self._tools = tools
        self._tools_by_mode = tools_by_mode
        self._config = node.read_keys(DENIAL_KEYS)
        self.binds_subagents = self._config["subagents"]
        if not node.source.is_bundled:  # report mistakes before a child starts
            self._check_json_variables(node)

    def can_express_rule(self, rule: PermissionRule) -> bool:
        """Return whether the program can deny what the rule names: a complete tool, an MCP server,
        or an MCP server's tool.
        """
        server, tool = _parse_server_rule(rule)
        if server:
            return bool(self._config["server_tool" if tool else "server"])
        if rule.content is not None:
            return False
        return rule.tool in {profile_tool.name for profile_tool in self._tools.values()}

    def can_run_calls_allowed_by_rule(
        self, rule: PermissionRule, request: LaunchRequest, *, runs_allowed_calls_unprompted: bool
    ) -> bool:
        """Return whether the program runs the tool calls that a rule allows.

        `runs_allowed_calls_unprompted` is true for a program that runs every tool call without
        asking, unless the call is denied.
        """
        mode = request.permission_mode
        if rule.tool == SUBAGENT_TOOL and not self.binds_subagents:
            return False
        if rule.content is not None:
            return False
        if rule.tool not in {tool.name for tool in self._tools.values()}:
            return False
        if mode == "plan" or mode not in self._tools_by_mode:
            return False
        if runs_allowed_calls_unprompted:
            return True
        return bool(self._config["allow"])

    def build_tool_denial_config(self, request: LaunchRequest) -> ToolDenialConfig:
        """Return the deny rules for a launch request, in the program's own format. Raise
        UnsupportedPermissionModeError if the program might ignore the rules. Raise FrontendError
        if their file cannot be written.
        """
        denials = self._list_denials(request)
        if request.persistent:
            denials.insert(0, self._config["asking"])
        if not denials:
            return ToolDenialConfig()
        if request.policy_bypass:
            raise UnsupportedPermissionModeError(
                f"{self._name} might not receive the deny rules: {request.policy_bypass}",
                hint=f"remove the cause, or use {BYPASS_MODE} without a rule",
            )
        mode_file = self._config["of_modes"]
        if mode_file and not request.persistent and not _has_rules(request):
            return ToolDenialConfig(self._format_args(f"{BUNDLED_FOLDER}/{mode_file}"))
        denials += self._list_allowances(request)
        text = self._join_denials(denials)
        files = self._store_rules(text, request)
        variables = self._build_variables(text, request)
        return ToolDenialConfig(self._format_args("".join(files)), variables, files)

    def _join_denials(self, denials: Iterable[str]) -> str:
        """Return the text for all tools and servers."""
        text: str = self._config["text"].replace("{denials}", self._config["between"].join(denials))
        return text

    def _format_args(self, path: str) -> tuple[str, ...]:
        """Return the arguments. `path` is the file with the text, or "" without a file."""
        return tuple(arg.replace("{file}", path) for arg in self._config["args"])

    def _store_rules(self, text: str, request: LaunchRequest) -> tuple[str, ...]:
        """Write the text to a file if the arguments name a file, and return its path. Raise
        FrontendError on failure.
        """
        if not any("{file}" in arg for arg in self._config["args"]):
            return ()
        path = request.store_text(text, self._config["suffix"])
        if path is None or "," in path:  # the program may split the argument at commas
            raise FrontendError(
                f"the rules for {self._name} could not be written to a file",
                hint="check that the disk is not full, and that the path of the state "
                "folder contains no comma",
            )
        return (path,)

    def _build_variables(self, text: str, request: LaunchRequest) -> dict[str, str]:
        """Return the environment variables that contain the text, and the constant variables."""
        variables = dict(self._config["plain"])
        if request.persistent:
            variables |= self._config["asking_plain"]
        return variables | self._merge_json_variables(text, request.environment)

    def _list_denials(self, request: LaunchRequest) -> list[str]:
        """Return the texts that deny tools and servers, in the program's format."""
        mode = request.permission_mode
        allowed_tools = self._list_tools_of_mode(request)
        denials = [
            self._config["tool"].replace("{tool}", name)
            for name in self._list_denied_tools(request, allowed_tools)
        ]
        if mode == "acceptEdits" and self._config["protected"] and not request.persistent:
            # This text comes first, because some programs apply the last matching rule.
            denials.insert(0, self._format_protected())
        if allowed_tools is not None and self._config["servers"]:
            denials.append(self._config["servers"])
        if request.policy is not None:
            denials += self._list_server_denials(request.policy.restricting_rules)
        return denials

    def _list_tools_of_mode(self, request: LaunchRequest) -> set[str] | None:
        """Return the tools that the permission mode or an allow rule allows, by Claude's names.
        Return None if the mode allows all tools.
        """
        mode = request.permission_mode
        if mode not in self._tools_by_mode or request.persistent:
            return None
        allowed_tools = set(self._tools_by_mode[mode])
        if request.policy is not None and mode != "plan":
            allowed_tools |= {rule.tool for rule in request.policy.allow if rule.content is None}
        if not self.binds_subagents:
            allowed_tools.discard(SUBAGENT_TOOL)
        return allowed_tools

    def _list_denied_tools(
        self, request: LaunchRequest, allowed_tools: set[str] | None
    ) -> list[str]:
        """Return the tools to deny, by their names in the texts. `allowed_tools` are the tools of
        the permission mode, or None for all tools.
        """
        limits: list[Collection[str]] = []
        if request.policy is not None and request.policy.only_tools is not None:
            limits.append(request.policy.only_tools)
        if allowed_tools is not None:
            limits.append(allowed_tools)
        denied_tools = []
        for name, tool in self._tools.items():
            claude_names = get_claude_names(tool)
            is_removed = not claude_names.isdisjoint(request.removed_tools)
            if is_removed or not all(claude_names.issubset(limit) for limit in limits):
                denied_tools.append(self._config["renamed"].get(name, name))
        if limits:
            denied_tools += self._config["also"]
        return list(dict.fromkeys(denied_tools))

    def _list_server_denials(self, rules: Iterable[PermissionRule]) -> list[str]:
        """Return the texts that deny the MCP servers in rules, or single tools of the servers."""
        denials = []
        for rule in rules:
            server, tool = _parse_server_rule(rule)
            if server:
                template = self._config["server_tool" if tool else "server"]
                denials.append(template.replace("{server}", server).replace("{tool}", tool))
        return denials

    def _format_protected(self) -> str:
        """Return the text that denies changes to protected files. The real claude asks about such
        changes even in acceptEdits mode.
        """
        names = [*sorted(PROTECTED_NAMES), *(path.strip("/") for path in SHIM_FOLDERS)]
        files = [self._config["protected_file"].replace("{name}", name) for name in names]
        text: str = self._config["protected"].replace(
            "{files}", self._config["between"].join(files)
        )
        return text

    def _list_allowances(self, request: LaunchRequest) -> list[str]:
        """Return the texts that allow the tools in allow rules, in the program's format."""
        policy = request.policy
        if (
            policy is None
            or not self._config["allow"]
            or request.permission_mode == "plan"
            or request.persistent
        ):
            return []
        allowed_tools = {rule.tool for rule in policy.allow if rule.content is None}
        names = [name for name, tool in self._tools.items() if tool.name in allowed_tools]
        return [
            self._config["allow"].replace("{tool}", self._config["renamed"].get(name, name))
            for name in names
        ]

    def _merge_json_variables(self, denials: str, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables whose values are JSON objects. The shim's values are
        merged over the values from the environment.
        """
        import orjson

        variables = {}
        for key, template in self._config["json"].items():
            try:
                current = orjson.loads(environment.get(key) or "{}")
            except orjson.JSONDecodeError:
                current = None
            if not isinstance(current, dict):
                raise UnsupportedPermissionModeError(
                    f"{self._name} cannot receive its rules: {key} is set and is not a JSON object",
                    hint=f"unset {key}, or write it as JSON without comments",
                )
            addition = orjson.loads(_fill_json_template(template, denials))
            variables[key] = orjson.dumps(_merge_json(current, addition)).decode()
        return variables

    def _check_json_variables(self, node: ConfigNode) -> None:
        """Raise FrontendError if a variable in `json` is not a JSON object for some rule. `node` is
        the table.
        """
        from shim.profiles.load.denial_check import DenialSample, check_json_variable

        for variable, template in self._config["json"].items():
            samples = [
                DenialSample(key, _fill_json_template(template, self._join_denials(denials)))
                for key, denials in self._list_sample_denials()
            ]
            empty_text = _fill_json_template(template, "{}")
            check_json_variable(node, variable, samples, empty_text)

    def _list_sample_denials(self) -> list[tuple[str, list[str]]]:
        """Return texts that the program could receive together, each with the key that adds the
        last of these texts.
        """
        config = self._config
        samples = []
        tool_names = [config["renamed"].get(name, name) for name in self._tools]
        for name in (*tool_names, *config["also"]):
            denial = config["tool"].replace("{tool}", name)
            samples += [("tool", [denial]), ("between", [denial, denial])]
            if config["allow"]:
                samples.append(("allow", [denial, config["allow"].replace("{tool}", name)]))
        for key in ("server", "server_tool", "servers", "asking"):
            if config[key]:
                denial = config[key].replace("{server}", "server").replace("{tool}", "tool")
                samples.append((key, [denial]))
        if config["protected"]:
            samples.append(("protected", [self._format_protected()]))
        return samples


def _fill_json_template(template: str, denials: str) -> str:
    """Return the text of a variable in `json`."""
    from urllib.parse import quote

    return template.replace("{denials}", denials).replace("{bundled}", quote(BUNDLED_FOLDER))


def _has_rules(request: LaunchRequest) -> bool:
    if request.policy is None:
        return False
    return request.policy.has_rules


def _merge_json(base: Any, override: Any) -> Any:
    """Return `base` merged with `override`. The keys and list items from `override` are last,
    because the last matching rule applies.
    """
    if isinstance(base, list) and isinstance(override, list):
        return base + override
    if not (isinstance(base, dict) and isinstance(override, dict)):
        return override
    remaining = {key: value for key, value in base.items() if key not in override}
    return remaining | {key: _merge_json(base.get(key), value) for key, value in override.items()}


def _parse_server_rule(rule: PermissionRule) -> tuple[str, str]:
    """Return the MCP server and the tool that a rule names. The tool is "" if the rule is about all
    of the server's tools. Return two empty strings for a rule that names no MCP server.

    Only names that every program spells in the same way are accepted.
    """
    if (
        rule.content is not None
        or not rule.tool.startswith(MCP_PREFIX)
        or len(rule.tool) > MAX_SERVER_TOOL_CHARS
    ):
        return "", ""
    server, _, tool = rule.tool[len(MCP_PREFIX) :].partition("__")
    if tool == "*":
        tool = ""
    if not server or tool.startswith("_"):
        return "", ""
    if not _PLAIN_CHARACTERS.issuperset(server + tool.replace("_", "")):
        return "", ""
    return server, tool
