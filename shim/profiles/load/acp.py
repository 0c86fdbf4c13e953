r"""`[acp]`: how a program is driven that speaks the Agent Client Protocol, so that a frontend is asked.

    argv = ["--acp"]          in the place of `launch.argv`; `command` likewise
    permission_args = { … }   in the place of `launch.permission_args`: a mode is missing that it
                              cannot be driven in
    server_tool = "{server}_{tool}"   how it names a tool of a server of MCP
    tool_name = "title"       where a call has its tool's name: in its first title, in front of its
                              "id", or nowhere: then its "kind" tells it, with `signs`
    signs = { bash = { kind = "execute", title = "…", keys = ["command"] } }  what each tool's calls
        are known by: their kind, the beginning of their title, keys of their input
    questions = { execute = ["commands"] }  keys that the input of a question about a call of this
                                            kind has always
    input = "content"         a call's input is JSON in its content, until it has ended (else:
                              `rawInput`)
    path = 'in "([^"]+)"'     finds the path of the file in the error of a call that names no
                              location
    denied = "ends"           a call that is denied ends the work on a prompt: the agent is told
                              why, in another one
    trailer = '\n<exit \d+>$'  what it adds to the end of what a call returned
    notices = "^Info: "       what the agent says beside its model about a call, where its model's
                              words stand
    retries = "^Info: …"      the text that the agent sends, in one piece, when it calls its model
                              again
    failures = "^Error: "     the beginning of the text that the agent sends, in one piece, at the
                              end of a failed turn; it is the reason only if the turn then ends
                              without a token of the model
    model = true              the model is set in the session, not on the command line
    modes = { plan = "plan" } Claude's modes → the agent's own, set in the session; others are as
        `default`
    usage = "session"         its usage is that of the session so far (else: of the turn)
    draft = true              version 2 of the protocol is offered, which is a draft
    documents = "image"       a document is said as an image is, where the agent loses embedded
                              files; "none": never
    addresses = true          of servers of MCP it takes those with an address, and none that is a
                              command
    asks = ["Bash", "Edit"]   the tools of which its questions say all that decides, in Claude's
                              words; "mcp__" stands for those of every server, "*" for all tools
                              that there are
    unattended = true         in the mode default it runs, without asking, calls that the real
                              claude asks about
    listed = ["Bash"]         the tools that it can run when it is driven so, in the place of the
                              profile's `listed`

Such a child is told its messages, its answers and its session through stdin.
`launch.denials.asking` makes it ask about each call in every mode, so that the policy answers, or
the frontend, and a mode can change while it runs.
"""

from collections.abc import Mapping

from shim.core.adapter.adapter import Adapter, LaunchRequest, LaunchSpec
from shim.core.adapter.tools import Tools
from shim.core.errors import FrontendError
from shim.core.policy.policy import BYPASS_MODE
from shim.core.policy.rules import ANY_TOOL, MCP_PREFIX, SUBAGENT_TOOL, PermissionRule
from shim.core.reading.typed import TYPE_CHECKING, Any
from shim.profiles.check.config_node import ConfigNode, ConfigSource
from shim.profiles.load.launch import RESUME_PATTERN, LaunchTemplate

if TYPE_CHECKING:
    from shim.core.adapter.request import ChildInput
    from shim.profiles.acp.calls import AcpToolCallFormat
    from shim.profiles.acp.translator import AcpTranslator

# Keys of other profiles: an agent that only speaks the protocol has none of them.
FORBIDDEN_KEYS = ("stream", "event", "report", "stderr", "exit_codes", "adapter", "unattended")
ACP_KEYS = (
    *(
        "command",
        "argv",
        "permission_args",
        "tool_name",
        "server_tool",
        "signs",
        "questions",
        "input",
        "denied",
    ),
    *(
        "trailer",
        "notices",
        "retries",
        "failures",
        "path",
        "model",
        "modes",
        "usage",
        "draft",
        "documents",
        "addresses",
        "asks",
        "unattended",
        "listed",
    ),
)
REPLACED_KEYS = ("command", "argv", "permission_args")
OMITTED_KEYS = ("permission_tools", "permission_env", "report")  # of a vendor that cannot ask
# what calls of known kinds are named
DEFAULT_TOOLS = ["Bash", "Edit", "Grep", "MultiEdit", "Read", "WebFetch", "Write"]
TOOL_NAME_SOURCES = ("title", "id", "kind")
SIGN_KEYS = ("kind", "title", "keys")


def build_acp_adapter(base: Adapter, table: Mapping[str, Any], source: ConfigSource) -> Adapter:
    """The vendor of a profile, driven by the protocol."""
    acp_node = ConfigNode(source, table).child("acp")
    acp_node.read_table(ACP_KEYS)
    base_launch = {key: value for key, value in table["launch"].items() if key not in OMITTED_KEYS}
    launch_table = {
        **base_launch,
        "prompt": {"via": "stdin"},
        **{key: acp_node.value[key] for key in REPLACED_KEYS if key in acp_node.value},
    }
    launch_node = ConfigNode(source, {**table, "launch": launch_table}).child("launch")
    template = LaunchTemplate(launch_node, base.name, base.tools)
    pattern = (
        launch_node.child("resume_id_pattern").read_regex()
        if launch_node.child("resume_id_pattern")
        else RESUME_PATTERN
    )
    modes = {
        mode: launch_node.child("permission_args").child(mode).read_texts(20)
        for mode in launch_node.child("permission_args").read_table()
    }
    prompted_tools = frozenset(acp_node.child("asks").read_texts())

    def build_launch(request: LaunchRequest) -> LaunchSpec:
        import re

        if request.resume_id and not re.fullmatch(pattern, request.resume_id):
            raise FrontendError(
                f"{request.resume_id[:60]!r} is no session id of {base.name}",
                hint="start a new session",
            )
        invocation = request.invocation.with_flags(fork_session=False)
        return template.build_launch(
            request._replace(resume_id=None, invocation=invocation)
        )._replace(stdin=b"", needs_stdin_pipe=True)

    def binds_rule(rule: PermissionRule, request: LaunchRequest) -> bool:
        """Whether it asks about all that no table has: the tools of servers, or every tool there
        is.
        """
        return (
            ANY_TOOL
            if rule.tool == ANY_TOOL
            else MCP_PREFIX
            if rule.tool.startswith(MCP_PREFIX)
            else ""
        ) in prompted_tools

    if not source.is_bundled:  # a mistake in it is told of before anything is started
        create_acp_translator_class(acp_node, base.tools)
        _build_child_input(acp_node)
    base_support, tools = base.policy_support, base.listed_tools
    policy_support = base_support._replace(list_prompted_tools=lambda request: prompted_tools)
    if not base_support.has_hook:  # our hook binds it all the same
        policy_support = policy_support._replace(enforces_rule=binds_rule, covers_subagents=False)
        # `asking` takes subagents away: what a subagent of opencode asks is put to nobody, and
        # waits for ever.
        tools = tuple(name for name in tools if name != SUBAGENT_TOOL)
    tools = acp_node.child("listed").read_texts() or tools
    return base._replace(
        translator_ref=lambda: create_acp_translator_class(acp_node, base.tools),
        child_input_ref=lambda: _build_child_input(acp_node),
        build_launch=build_launch,
        modes=modes,
        listed_tools=tools,
        unattended=acp_node.child("unattended").read_bool(),
        choose_tools=None,
        abilities=base.abilities._replace(
            can_stream=True,
            can_resume=True,
            accepts_model=True,
            accepts_mcp_servers=True,
            accepts_command_servers=not acp_node.child("addresses").read_bool(),
        ),
        policy_support=policy_support,
        # the protocol has no place for a system prompt
        session_traits=base.session_traits._replace(prefixes_system_prompt=True),
        cli=base.cli._replace(build_two_way=None),
    )


def expand_acp_profile(node: ConfigNode) -> dict[str, Any]:
    """The table of a profile with `protocol = "acp"`, with all that any profile has."""
    for key in FORBIDDEN_KEYS:
        if node.child(key):
            raise node.child(key).build_error(
                'left out of a profile with `protocol = "acp"`', description="there"
            )
    table, acp_table = dict(node.read_table()), dict(node.child("acp").read_table(ACP_KEYS))
    launch_table = {"argv": [], "prompt": {"via": "stdin"}, **node.child("launch").read_table()}
    has_questions, has_modes = (
        bool(acp_table.get("asks")),
        "permission_args" in launch_table or "permission_args" in acp_table,
    )
    if not has_modes:  # a mode below the widest needs an agent that asks
        supports_plan = has_questions and "plan" in node.child("acp").child("modes").read_table()
        strict_modes = (
            ("acceptEdits", "dontAsk", *(("plan",) if supports_plan else ()))
            if has_questions
            else ()
        )
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


def build_acp_only_adapter(
    base: Adapter, table: Mapping[str, Any], source: ConfigSource
) -> Adapter:
    """An agent that only speaks the protocol. What it runs unasked is not known, unless its `asks`
    say so.
    """
    adapter = build_acp_adapter(base, table, source)
    return adapter._replace(
        unattended=base.unattended,
        cli=adapter.cli._replace(two_way_help_texts=(), always_keeps_child=True),
    )


def create_acp_translator_class(acp_node: ConfigNode, tools: Tools) -> "type[AcpTranslator]":
    """The translator, with what `[acp]` says of this agent."""
    from shim.profiles.acp.translator import AcpTranslator

    class_attributes = {
        "tools": tools,
        "form": _parse_call_format(acp_node),
        "server_tool": acp_node.child("server_tool").read_text(""),
        "ends_at_denial": acp_node.child("denied").read_choice(("goes on", "ends"), "goes on")
        == "ends",
        "trailer": acp_node.child("trailer").compile_pattern()
        if acp_node.child("trailer")
        else None,
        "notices": acp_node.child("notices").compile_pattern()
        if acp_node.child("notices")
        else None,
        "retries": acp_node.child("retries").compile_pattern()
        if acp_node.child("retries")
        else None,
        "failures": acp_node.child("failures").compile_pattern()
        if acp_node.child("failures")
        else None,
        "counts_session": acp_node.child("usage").read_choice(("turn", "session"), "turn")
        == "session",
    }
    translator: type[AcpTranslator] = type("AgentTranslator", (AcpTranslator,), class_attributes)
    return translator


def _parse_call_format(acp_node: ConfigNode) -> "AcpToolCallFormat":
    from shim.profiles.acp.calls import AcpToolCallFormat, AcpToolCallPattern

    signs = {
        name: acp_node.child("signs").child(name) for name in acp_node.child("signs").read_table()
    }
    for sign in signs.values():
        sign.read_table(SIGN_KEYS)
    questions = acp_node.child("questions")
    return AcpToolCallFormat(
        acp_node.child("tool_name").read_choice(TOOL_NAME_SOURCES, TOOL_NAME_SOURCES[0]),
        {
            name: AcpToolCallPattern(
                sign.child("kind").read_text(),
                sign.child("title").read_text(""),
                sign.child("keys").read_texts(20),
            )
            for name, sign in signs.items()
        },
        {kind: questions.child(kind).read_texts(20) for kind in questions.read_table()},
        acp_node.child("input").read_choice(("rawInput", "content"), "rawInput") == "content",
        acp_node.child("path").compile_pattern() if acp_node.child("path") else None,
    )


def _build_child_input(acp_node: ConfigNode) -> "ChildInput":
    from shim.profiles.acp.blocks import AS_FILE, AS_IMAGE, LEFT_OUT
    from shim.profiles.acp.child_input import AcpChildInput

    modes = {
        mode: acp_node.child("modes").child(mode).read_text()
        for mode in acp_node.child("modes").read_table()
    }
    documents = acp_node.child("documents").read_choice((AS_FILE, AS_IMAGE, LEFT_OUT), AS_FILE)
    return AcpChildInput(
        modes,
        sets_model=acp_node.child("model").read_bool(),
        offers_draft=acp_node.child("draft").read_bool(),
        document_format=documents,
        only_urls=acp_node.child("addresses").read_bool(),
    )
