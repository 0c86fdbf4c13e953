"""`[launch.denials]`: how a program is told beforehand which tools it does not have.

    tool = '"{tool}":"deny"'           what denies one of its own tools
    server = '"{server}_*":"deny"'     what denies all tools of a server of MCP; without it such a
                                       rule refuses the turn
    server_tool = '…{server}…{tool}…'  what denies one tool of a server
    allow = …{tool}…                   what allows one of its tools, for a program that runs none
                                       unasked
    servers = '"*_*":"deny"'           what denies the tools of all servers
    asking = '"*":"ask"'               what makes it ask about each call, where it can ask (`acp`)
    protected_file = '"*{name}":"deny"' denies changes of a file whose name makes programs run, or
        of its folder
    protected = '"edit":{{files}}'     stands around all of these, for acceptEdits without
                                       permission prompts
    between = ","                      stands between two of these
    text = "{{denials}}"               what stands around all of them
    renamed = { write = "edit" }       its tools that go by another name there
    also = ["activate_skill"]          tools without a name of Claude's; a mode or a choice of tools
                                       leaves them out
    subagents = true                   its subagents are bound as well; otherwise they are taken
                                       away under any rule
    args = ["--agent", "build"]        words of the command line behind `argv`; {file} is a file of
                                       ours with the text
    suffix = ".toml"                   how the name of this file ends
    of_modes = "modes.toml"            a file beside the profile with what the modes alone deny, so
                                       that none is written
    plain = { A = "1" }                variables that are set as they are
    json = { B = '{"x":{denials}}' }   variables with a JSON object, merged over what the variable
                                       says already

All of it is left out where nothing is denied. A mode denies what its `permission_tools` do not
name, and all servers. These variables go before any other, those of the user's settings included.
"""

from collections.abc import Mapping

from shim.core.adapter.adapter import LaunchRequest
from shim.core.adapter.tools import Tools
from shim.core.errors import FrontendError, UnsupportedPermissionModeError
from shim.core.policy.policy import BYPASS_MODE
from shim.core.policy.rules import MCP_PREFIX, SUBAGENT_TOOL, PermissionRule
from shim.core.policy.workspace import PROTECTED_NAMES, SHIM_FOLDERS
from shim.core.reading.typed import Any, NamedTuple
from shim.profiles.check.config_node import ConfigNode
from shim.profiles.compile.tools import ProfileTool
from shim.profiles.load.argv_parts import BUNDLED_FOLDER

DENIAL_KEYS = (
    *(
        "tool",
        "allow",
        "asking",
        "server",
        "server_tool",
        "servers",
        "between",
        "text",
        "renamed",
        "also",
        "subagents",
    ),
    *("protected_file", "protected"),
    *("args", "suffix", "of_modes", "plain", "json"),
)
# of a server and its tool together: a longer one may be cut by the program
MAX_SERVER_TOOL_CHARS = 60
_PLAIN_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-")


class DenialConfig(NamedTuple):
    """What a program is told: words of its command line, variables, and a file of ours that goes
    with its child.
    """

    args: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    files: tuple[str, ...] = ()


class DenialTemplates:
    """A checked `[launch.denials]`. `tools_by_mode` are the tools of each mode that does not have
    all, in Claude's words.
    """

    def __init__(
        self,
        node: ConfigNode,
        name: str,
        tools: Tools,
        tools_by_mode: Mapping[str, tuple[str, ...]],
    ) -> None:
        node.read_table(DENIAL_KEYS)
        self._name, self._tools, self._tools_by_mode = name, tools, tools_by_mode
        self._templates = {
            key: node.child(key).read_text("")
            for key in (
                *("tool", "allow", "asking", "server", "server_tool", "servers", "between", "text"),
                *("protected_file", "protected"),
            )
        }
        self._renames = {
            tool: node.child("renamed").child(tool).read_text()
            for tool in node.child("renamed").read_table()
        }
        self._unnamed_tools = node.child("also").read_texts()
        self._args, self._file_suffix = (
            node.child("args").read_texts(20),
            node.child("suffix").read_text(""),
        )
        self._modes_file = node.child("of_modes").read_text("")
        self._plain_variables = {
            key: node.child("plain").child(key).read_text()
            for key in node.child("plain").read_table()
        }
        self._json_variables = {
            key: node.child("json").child(key).read_text()
            for key in node.child("json").read_table()
        }
        self.binds_subagents = node.child("subagents").read_bool()

    def can_express_rule(self, rule: PermissionRule) -> bool:
        """Whether the program can be told of a rule: about a whole tool, a server of MCP, or a tool
        of a server.
        """
        server, tool = _parse_server_rule(rule)
        if server:
            return bool(self._templates["server_tool" if tool else "server"])
        return rule.content is None and rule.tool in {
            profile_tool.name for profile_tool in self._tools.values()
        }

    def can_apply_allow_rule(
        self, rule: PermissionRule, request: LaunchRequest, *, runs_unasked: bool
    ) -> bool:
        """Whether the program runs what a rule allows. `runs_unasked`: it runs by itself what it is
        not denied.
        """
        mode = request.permission_mode
        is_tool = rule.content is None and rule.tool in {tool.name for tool in self._tools.values()}
        if rule.tool == SUBAGENT_TOOL and not self.binds_subagents:
            return False
        return (
            is_tool
            and mode in self._tools_by_mode
            and mode != "plan"
            and (runs_unasked or bool(self._templates["allow"]))
        )

    def build_denial_config(self, request: LaunchRequest) -> DenialConfig:
        """What the program is told under a request. PermissionModeError where the program might not
        hear it.
        """
        denials = ([self._templates["asking"]] if request.persistent else []) + self._list_denials(
            request
        )
        if not denials:
            return DenialConfig()
        if request.policy_bypass:
            raise UnsupportedPermissionModeError(
                f"{self._name} might not hear what it must not run: {request.policy_bypass}",
                hint=f"remove what is named, or ask for {BYPASS_MODE} without a rule",
            )
        if self._modes_file and not request.persistent and not _has_rules(request):
            return DenialConfig(
                tuple(
                    arg.replace("{file}", f"{BUNDLED_FOLDER}/{self._modes_file}")
                    for arg in self._args
                )
            )
        text = self._templates["text"].replace(
            "{denials}", self._templates["between"].join(denials + self._list_allowances(request))
        )
        files: tuple[str, ...] = ()
        if any("{file}" in arg for arg in self._args):
            path = request.store_text(text, self._file_suffix)
            if path is None or "," in path:  # a comma may end the path there
                raise FrontendError(
                    f"the rules for {self._name} could not be written to a file of ours",
                    hint="is the disk full, or has the path of our state folder a comma in it?",
                )
            files = (path,)
        args = tuple(arg.replace("{file}", "".join(files)) for arg in self._args)
        return DenialConfig(
            args,
            {**self._plain_variables, **self._merge_json_variables(text, request.environment)},
            files,
        )

    def _list_denials(self, request: LaunchRequest) -> list[str]:
        """What denies each thing that is denied, in the program's words."""
        policy, mode = request.policy, request.permission_mode
        removed_tools, chosen_tools = (
            set(request.removed_tools),
            None if policy is None else policy.only_tools,
        )
        allowed_tools: set[str] | None = (
            set(self._tools_by_mode[mode])
            if mode in self._tools_by_mode and not request.persistent
            else None
        )
        if allowed_tools is not None and policy is not None and mode != "plan":
            allowed_tools |= {rule.tool for rule in policy.allow if rule.content is None}
        if allowed_tools is not None and not self.binds_subagents:
            allowed_tools.discard(SUBAGENT_TOOL)
        denied_tools = {
            self._renames.get(name, name): None
            for name, tool in self._tools.items()
            for names in (
                {tool.name, *(tool.other_names if isinstance(tool, ProfileTool) else ())},
            )
            if not names.isdisjoint(removed_tools)
            or (chosen_tools is not None and not names <= chosen_tools)
            or (allowed_tools is not None and not names <= allowed_tools)
        }
        if allowed_tools is not None or chosen_tools is not None:
            denied_tools |= dict.fromkeys(self._unnamed_tools)
        denials = [self._templates["tool"].replace("{tool}", name) for name in denied_tools]
        if mode == "acceptEdits" and self._templates["protected"] and not request.persistent:
            # first: in some programs the last matching rule decides
            denials.insert(0, self._format_protected())
        if allowed_tools is not None and self._templates["servers"]:
            denials.append(self._templates["servers"])
        for rule in () if policy is None else policy.restricting_rules:
            server, tool = _parse_server_rule(rule)
            if server:
                template = self._templates["server_tool" if tool else "server"]
                denials.append(template.replace("{server}", server).replace("{tool}", tool))
        return denials

    def _format_protected(self) -> str:
        """Return the text that denies changes of the files that the real claude asks about in
        acceptEdits.
        """
        names = [*sorted(PROTECTED_NAMES), *(path.strip("/") for path in SHIM_FOLDERS)]
        files = [self._templates["protected_file"].replace("{name}", name) for name in names]
        return self._templates["protected"].replace(
            "{files}", self._templates["between"].join(files)
        )

    def _list_allowances(self, request: LaunchRequest) -> list[str]:
        """What allows each tool that a rule allows, in the program's words."""
        policy = request.policy
        if (
            policy is None
            or not self._templates["allow"]
            or request.permission_mode == "plan"
            or request.persistent
        ):
            return []
        allowed_tools = {rule.tool for rule in policy.allow if rule.content is None}
        names = [name for name, tool in self._tools.items() if tool.name in allowed_tools]
        return [
            self._templates["allow"].replace("{tool}", self._renames.get(name, name))
            for name in names
        ]

    def _merge_json_variables(self, denials: str, environment: Mapping[str, str]) -> dict[str, str]:
        """The variables with a JSON object: ours behind what each has already, so that ours counts."""
        import orjson

        variables = {}
        for key, template in self._json_variables.items():
            try:
                current = orjson.loads(environment.get(key) or "{}")
            except orjson.JSONDecodeError:
                current = None
            if not isinstance(current, dict):
                raise UnsupportedPermissionModeError(
                    f"{self._name} cannot be told its rules: {key} is set, and it is no JSON object",
                    hint=f"unset {key}, or write it as JSON without comments",
                )
            addition = orjson.loads(template.replace("{denials}", denials))
            variables[key] = orjson.dumps(_merge_json(current, addition)).decode()
        return variables


def _has_rules(request: LaunchRequest) -> bool:
    return request.policy is not None and request.policy.has_rules


def _merge_json(base: Any, override: Any) -> Any:
    """One JSON value over another. A key of ours stands last, because the last rule that matches
    counts.
    """
    if not (isinstance(base, dict) and isinstance(override, dict)):
        return override
    remaining = {key: value for key, value in base.items() if key not in override}
    return remaining | {key: _merge_json(base.get(key), value) for key, value in override.items()}


def _parse_server_rule(rule: PermissionRule) -> tuple[str, str]:
    """The server of MCP, and its tool or "" for all, that a rule names as a whole; "" twice for any
    other rule.

    Only names that no program spells differently.
    """
    if (
        rule.content is not None
        or not rule.tool.startswith(MCP_PREFIX)
        or len(rule.tool) > MAX_SERVER_TOOL_CHARS
    ):
        return "", ""
    server, _, tool = rule.tool[len(MCP_PREFIX) :].partition("__")
    tool = "" if tool == "*" else tool
    is_plain = (
        bool(server)
        and _PLAIN_CHARACTERS.issuperset(server)
        and _PLAIN_CHARACTERS.issuperset(tool.replace("_", ""))
    )
    return (server, tool) if is_plain and not tool.startswith("_") else ("", "")
