"""Reads the `[acp]` table of a profile, and drives the program with the Agent Client Protocol
(ACP). The frontend can then answer the program's permission requests. ACP_KEYS has the keys of
the table.

The child receives messages, permission answers and session requests on stdin.
`launch.denials.asking` makes the child ask about each tool call in every mode. The policy or the
frontend answers. The permission mode can change while the child runs.
"""

from shim.core.adapter.adapter import LaunchRequest, LaunchSpec
from shim.core.errors import FrontendError
from shim.core.policy.policy import (
    ANY_TOOL,
    BYPASS_MODE,
    MCP_PREFIX,
    SUBAGENT_TOOL,
    PermissionRule,
    normalize_mcp_name,
)
from shim.core.reading.typed import TYPE_CHECKING, Any
from shim.profiles.check.config_node import ConfigKey, ConfigNode
from shim.profiles.load.launch import LaunchTemplate
from shim.profiles.load.profile_adapter import ProfileAdapter

if TYPE_CHECKING:
    import re

    from shim.core.adapter.request import ChildInput
    from shim.profiles.acp.calls import AcpToolCallFormat
    from shim.profiles.acp.translator import AcpTranslator

# The keys that a profile with `protocol = "acp"` must not have.
FORBIDDEN_KEYS = ("stream", "event", "report", "stderr", "exit_codes", "adapter", "unattended")
TOOL_NAME_SOURCES = ("title", "id", "kind")
SIGN_KEYS = {
    "kind": ConfigKey(ConfigNode.read_text, "the kind of the call"),
    "title": ConfigKey(ConfigNode.read_optional_text, "the beginning of the call's title"),
    "keys": ConfigKey(ConfigNode.read_text_list, "keys of the call's input", 20),
}
ACP_KEYS = {
    "command": ConfigKey.for_node("a list of strings", "replaces `launch.command`"),
    "argv": ConfigKey.for_node("a list", "replaces `launch.argv`"),
    "permission_args": ConfigKey.for_node(
        "a table of lists of strings",
        "replaces `launch.permission_args`; modes that `[acp]` does not support are left out",
    ),
    "tool_name": ConfigKey(
        ConfigNode.read_choice_defaulting_to_first,
        "where the first message about a call has the tool's name: in the title, or at "
        "the start of the id. With `kind`, the message has no tool name, and `signs` "
        "identify the tool",
        TOOL_NAME_SOURCES,
    ),
    "server_tool": ConfigKey(
        ConfigNode.read_optional_text,
        "how the agent names the tools of MCP servers: `{server}_{tool}`",
    ),
    "missing_tool": ConfigKey(
        ConfigNode.read_optional_text,
        "the title of the tool that the agent runs instead if its model calls a tool that does not "
        "exist. Such a call has failed, although the agent reports success",
    ),
    "signs": ConfigKey.for_node(
        "a table of tables", "tool → how calls of this tool are recognized"
    ),
    "questions": ConfigKey(
        ConfigNode.read_text_list_table,
        "call kind → the keys that are always in the input of a permission request for such a call",
        20,
    ),
    "input": ConfigKey(
        ConfigNode.read_choice_defaulting_to_first,
        "the field with a call's input. In `content`, the input is JSON until the call has ended",
        ("rawInput", "content"),
    ),
    "denied": ConfigKey(
        ConfigNode.read_choice_defaulting_to_first,
        "what the agent does after a denied call. `goes on`: it continues, and receives the message of "
        "a person or of a frontend's hook in a second prompt. `ends`: it ends the turn, and receives "
        "every reason in a second prompt",
        ("goes on", "ends"),
    ),
    "trailer": ConfigKey(
        ConfigNode.read_optional_regex,
        r"matches text that the agent appends to a tool result: `\n<exit \d+>$`",
    ),
    "notices": ConfigKey(
        ConfigNode.read_optional_regex,
        "matches the agent's own notices about a call, which it sends like text from the model",
    ),
    "retries": ConfigKey(
        ConfigNode.read_optional_regex,
        "matches the message that the agent sends when it retries a request to its model",
    ),
    "failures": ConfigKey(
        ConfigNode.read_optional_regex,
        "matches the beginning of the text that the agent sends, in one piece, at the "
        "end of a failed turn. The text is used as the reason only if the turn used no "
        "tokens",
    ),
    "path": ConfigKey(
        ConfigNode.read_optional_capturing_regex,
        "its first group finds the file path in the error of a call that has no location",
    ),
    "model": ConfigKey(
        ConfigNode.read_bool, "the model is set in the session, not on the command line"
    ),
    "modes": ConfigKey(
        ConfigNode.read_text_table,
        "permission mode → the agent's own mode, which is set in the session. Modes that "
        "are not listed behave like `default`",
    ),
    "usage": ConfigKey(
        ConfigNode.read_choice_defaulting_to_first,
        "whether the agent reports the usage of the turn, or of the session so far",
        ("turn", "session"),
    ),
    "draft": ConfigKey(
        ConfigNode.read_bool, "offer version 2 of the protocol, which is a draft", successor=""
    ),
    "documents": ConfigKey.for_node(
        "a string",
        "how a document is sent, for an agent that loses embedded files: `file`, `image`, or `none`",
    ),
    "compact": ConfigKey(
        ConfigNode.read_optional_text,
        "the agent's command that compacts its context: `/compact`. The user's instructions follow "
        "it",
    ),
    "loses_sessions": ConfigKey(
        ConfigNode.read_bool,
        "the agent loses the records of a session that another process resumes. The transcript is "
        "then sent as text to a new session",
    ),
    "addresses": ConfigKey(
        ConfigNode.read_bool,
        "a session of the agent accepts only MCP servers with a URL, not commands",
    ),
    "server_arguments": ConfigKey(
        ConfigNode.read_bool,
        "with `addresses`: the module of `rules` passes the servers that are commands as arguments",
    ),
    "replaces_servers": ConfigKey(
        ConfigNode.read_bool,
        "a server of the session replaces the agent's own server with the same name. The shim "
        "can then enforce rules about servers in the frontend's process, even if the agent does not "
        "ask",
    ),
    "asks": ConfigKey(
        ConfigNode.read_text_list,
        "the tools whose permission requests contain all relevant input, by Claude's "
        "names. `mcp__` matches the tools of all MCP servers, `*` matches all tools",
    ),
    "unattended": ConfigKey(
        ConfigNode.read_bool,
        "in `default` mode, the agent runs some calls without asking, although the real "
        "claude asks about such calls",
    ),
    "listed": ConfigKey(
        ConfigNode.read_text_list, "replaces `listed` when `[acp]` drives the agent"
    ),
}
REPLACED_KEYS = ("command", "argv", "permission_args")
OMITTED_KEYS = ("permission_tools", "permission_env", "report")  # for vendors that cannot ask
# The tools that can be identified by the call kinds of ACP.
DEFAULT_TOOLS = ["Bash", "Edit", "Grep", "MultiEdit", "Read", "WebFetch", "Write"]


class AcpAdapter(ProfileAdapter):
    """The adapter for a profile whose program is driven with the Agent Client Protocol."""

    child_input_ref = "shim.profiles.acp.session:AcpSession"

    def __init__(self, base: ProfileAdapter) -> None:
        vars(self).update(vars(base))
        self._acp_node = self.node.get_child("acp")
        acp = self._acp_node.read_keys(ACP_KEYS)
        launch_node = _build_acp_launch_node(self.node)
        self._acp_template = LaunchTemplate(launch_node, self.name, self.tools)
        self._mode_tools = {}
        self.modes = launch_node.get_child("permission_args").read_text_list_table(20)
        self._prompted_tools = frozenset(acp["asks"])
        self._replaces_servers = acp["replaces_servers"]
        if not self.node.source.is_bundled:  # report mistakes before a child starts
            _ = self.translator_class
            self.create_child_input()
        if not self.policy_support.has_hook:  # a hook would also check subagent calls
            self._disable_subagents()
        if acp["listed"]:
            self.listed_tools = acp["listed"]
        self.unattended = acp["unattended"]
        self.abilities = self.abilities._replace(
            can_stream=True,
            can_resume=True,
            accepts_model=True,
            accepts_mcp_servers=True,
            accepts_command_servers=acp["server_arguments"] or not acp["addresses"],
        )
        # ACP has no field for a system prompt.
        self.session_traits = self.session_traits._replace(
            prefixes_system_prompt=True, loses_sessions=acp["loses_sessions"]
        )
        self.cli = self.cli._replace(has_two_way=False)

    def _disable_subagents(self) -> None:
        """Leave subagents out of the tools, because `asking` disables them. A permission request
        from an opencode subagent is never delivered, so the subagent would wait forever.
        """
        self.policy_support = self.policy_support._replace(covers_subagents=False)
        self.listed_tools = tuple(name for name in self.listed_tools if name != SUBAGENT_TOOL)

    def build_launch(self, request: LaunchRequest) -> LaunchSpec:
        import re

        pattern = self._acp_template.values["resume_id_pattern"]
        if request.resume_id and not re.fullmatch(pattern, request.resume_id):
            raise FrontendError(
                f"{request.resume_id[:60]!r} is not a session id of {self.name}",
                hint="start a new session",
            )
        invocation = request.invocation._replace(fork_session=False)
        return self._acp_template.build_launch(
            request._replace(resume_id=None, invocation=invocation)
        )._replace(stdin=b"", needs_stdin_pipe=True)

    @property
    def translator_class(self) -> "type[AcpTranslator]":
        from shim.profiles.acp.translator import AcpTranslator

        acp = self._acp_node.read_keys(ACP_KEYS)
        class_attributes = {
            "tools": self.tools,
            "form": _parse_call_format(acp),
            "server_tool": acp["server_tool"],
            "ends_at_denial": acp["denied"] == "ends",
            "counts_session": acp["usage"] == "session",
        }
        for name in ("trailer", "notices", "retries", "failures"):
            class_attributes[name] = _compile_pattern(acp[name])
        translator: type[AcpTranslator] = type(
            "AgentTranslator", (AcpTranslator,), class_attributes
        )
        return translator

    def create_child_input(self) -> "ChildInput":
        from shim.profiles.acp.blocks import AS_FILE, AS_IMAGE, LEFT_OUT
        from shim.profiles.acp.session import AcpSession

        acp = self._acp_node.read_keys(ACP_KEYS)
        documents = acp["documents"].read_choice((AS_FILE, AS_IMAGE, LEFT_OUT), AS_FILE)
        return AcpSession(
            acp["modes"],
            sets_model=acp["model"],
            offers_draft=acp["draft"],
            document_format=documents,
            only_urls=acp["addresses"],
            has_server_arguments=acp["server_arguments"],
            compaction_command=acp["compact"],
        )

    def list_prompted_tools(self, request: LaunchRequest) -> frozenset[str]:
        """Return the tools that the agent asks about, and the servers whose calls the shim's relays
        decide about.
        """
        if not self._replaces_servers:
            return self._prompted_tools
        names = map(normalize_mcp_name, request.mcp_servers.relay_names)
        return self._prompted_tools.union([f"{MCP_PREFIX}{name}" for name in names])

    def can_enforce_rule(self, rule: PermissionRule, request: LaunchRequest) -> bool:
        """Return whether the rule can be enforced for this agent. Without a hook, only a rule for
        all tools or for an MCP tool can be enforced. The agent must also ask about all tools, or
        about all MCP tools. The shim's relays enforce the rules about their own servers.
        """
        if self.policy_support.has_hook:
            return True
        if rule.tool == ANY_TOOL:
            return ANY_TOOL in self._prompted_tools
        if not rule.tool.startswith(MCP_PREFIX):
            return False
        if MCP_PREFIX in self._prompted_tools:
            return True
        return self._replaces_servers and rule.is_about_server(request.mcp_servers.relay_names)


class AcpOnlyAdapter(AcpAdapter):
    """The adapter for an agent that only supports the Agent Client Protocol.

    The agent may run a tool without asking, unless `asks` in its profile lists the tool.
    """

    def __init__(self, base: ProfileAdapter) -> None:
        super().__init__(base)
        self.unattended = base.unattended
        self.cli = self.cli._replace(two_way_help_texts=(), always_keeps_child=True)


def _build_acp_launch_node(node: ConfigNode) -> ConfigNode:
    """Return the `[launch]` table of a profile with the replacements in its `[acp]` table."""
    acp_table = node.get_child("acp").read_table()
    launch_table = node.get_child("launch").read_table()
    acp_launch_table = {
        **{key: value for key, value in launch_table.items() if key not in OMITTED_KEYS},
        "prompt": {"via": "stdin"},
        **{key: acp_table[key] for key in REPLACED_KEYS if key in acp_table},
    }
    table = {**node.value, "launch": acp_launch_table}
    return ConfigNode(node.source, table).get_child("launch")


def expand_acp_profile(node: ConfigNode) -> dict[str, Any]:
    """Return the table of a profile with `protocol = "acp"`, with all keys that the shim needs
    added. Raise FrontendError for a key that such a profile must not have.
    """
    for key in FORBIDDEN_KEYS:
        if node.get_child(key):
            raise node.get_child(key).build_error(
                'left out of a profile with `protocol = "acp"`', description="there"
            )
    table = dict(node.read_table())
    acp_table = dict(node.get_child("acp").read_table(ACP_KEYS))
    launch_table = {"argv": [], "prompt": {"via": "stdin"}, **node.get_child("launch").read_table()}
    has_questions = bool(acp_table.get("asks"))
    if "permission_args" not in launch_table and "permission_args" not in acp_table:
        strict_modes: tuple[str, ...] = ()
        if has_questions:  # strict permission modes need an agent that asks
            strict_modes = _list_strict_modes(node.get_child("acp"))
        acp_table["permission_args"] = {
            mode: [] for mode in ("default", *strict_modes, BYPASS_MODE)
        }
    acp_table.setdefault("model", "{model}" not in str(launch_table["argv"]))
    ignored_events = [{"match": {"jsonrpc": {"exists": True}}, "emit": "ignore"}]
    del table["protocol"]
    return {
        "listed": DEFAULT_TOOLS,
        **table,
        "unattended": not has_questions,
        "launch": launch_table,
        "acp": acp_table,
        "event": ignored_events,
    }


def _list_strict_modes(acp_node: ConfigNode) -> tuple[str, ...]:
    """Return the strict permission modes of an agent that asks for permission."""
    if "plan" in acp_node.get_child("modes").read_table():
        return ("acceptEdits", "dontAsk", "plan")
    return ("acceptEdits", "dontAsk")


def _parse_call_format(acp: dict[str, Any]) -> "AcpToolCallFormat":
    from shim.profiles.acp.calls import AcpToolCallFormat, AcpToolCallPattern

    signs: ConfigNode = acp["signs"]
    return AcpToolCallFormat(
        acp["tool_name"],
        {
            name: AcpToolCallPattern(*signs.get_child(name).read_keys(SIGN_KEYS).values())
            for name in signs.read_table()
        },
        acp["questions"],
        acp["input"] == "content",
        _compile_pattern(acp["path"]),
        acp["missing_tool"],
    )


def _compile_pattern(text: str) -> "re.Pattern[str] | None":
    import re

    if text:
        return re.compile(text)
    return None
