r"""`[acp]`: how a program is driven that speaks the Agent Client Protocol, so that a frontend is
asked.

    argv = ["--acp"]          in the place of `launch.argv`; `command` likewise
    permission_args = { … }   in the place of `launch.permission_args`: a mode is missing that it
                              cannot be driven in
    server_tool = "{server}_{tool}"   how it names a tool of a server of MCP
    tool_name = "title"       where a call has its tool's name: in its first title, in front of its
                              "id", or nowhere:
                              then its "kind" tells it, with `signs`
    signs = { bash = { kind = "execute", title = "…", keys = ["command"] } }  what each tool's calls
        are known by: their
                              kind, the beginning of their title, keys of their input
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
                              end of a failed turn;
                              it is the reason only if the turn then ends without a token of the
                                  model
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
                              words; "mcp__" stands
                              for those of every server, "*" for all tools that there are
    unattended = true         in the mode default it runs, without asking, calls that the real
                              claude asks about
    listed = ["Bash"]         the tools that it can run when it is driven so, in the place of the
                              profile's `listed`

Such a child is told its messages, its answers and its session through stdin.
`launch.denials.asking` makes it ask about each call in every mode, so that the policy answers, or
the frontend, and a mode can change while it runs.
"""

from collections.abc import Mapping

from shim.core.adapter.tools import Tools
from shim.core.adapter.vendor import Adapter, LaunchRequest, LaunchSpec
from shim.core.errors import FrontendError
from shim.core.policy.policy import BYPASS_MODE
from shim.core.policy.rules import ANY_TOOL, MCP_PREFIX, SUBAGENT_TOOL, Rule
from shim.core.reading.typed import TYPE_CHECKING, Any
from shim.profiles.check.toml_errors import ConfigNode, ConfigSource
from shim.profiles.load.launch import RESUME_PATTERN, LaunchTemplate

if TYPE_CHECKING:
    from shim.core.adapter.request import ChildInput
    from shim.profiles.acp.calls import CallFormat
    from shim.profiles.acp.stream import AcpTranslator

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


def build_two_way_adapter(base: Adapter, table: Mapping[str, Any], source: ConfigSource) -> Adapter:
    """The vendor of a profile, driven by the protocol."""
    own = ConfigNode(source, table).child("acp")
    own.read_table(ACP_KEYS)
    kept = {key: value for key, value in table["launch"].items() if key not in OMITTED_KEYS}
    launch = {
        **kept,
        "prompt": {"via": "stdin"},
        **{key: own.value[key] for key in REPLACED_KEYS if key in own.value},
    }
    spot = ConfigNode(source, {**table, "launch": launch}).child("launch")
    template = LaunchTemplate(spot, base.name, base.tools)
    pattern = (
        spot.child("resume_id_pattern").read_regex()
        if spot.child("resume_id_pattern")
        else RESUME_PATTERN
    )
    modes = {
        mode: spot.child("permission_args").child(mode).read_texts(20)
        for mode in spot.child("permission_args").read_table()
    }
    asked = frozenset(own.child("asks").read_texts())

    def start(request: LaunchRequest) -> LaunchSpec:
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

    def binds(rule: Rule, request: LaunchRequest) -> bool:
        """Whether it asks about all that no table has: the tools of servers, or every tool there
        is.
        """
        return (
            ANY_TOOL
            if rule.tool == ANY_TOOL
            else MCP_PREFIX
            if rule.tool.startswith(MCP_PREFIX)
            else ""
        ) in asked

    if not source.is_bundled:  # a mistake in it is told of before anything is started
        create_acp_translator(own, base.tools)
        _build_child_input(own)
    before, listed = base.policy_support, base.listed_tools
    enforcement = before._replace(list_prompted_tools=lambda request: asked)
    if not before.has_hook:  # our hook binds it all the same
        enforcement = enforcement._replace(enforces_rule=binds, covers_subagents=False)
        # `asking` takes subagents away: what a subagent of opencode asks is put to nobody, and
        # waits for ever.
        listed = tuple(name for name in listed if name != SUBAGENT_TOOL)
    listed = own.child("listed").read_texts() or listed
    return base._replace(
        translator_ref=lambda: create_acp_translator(own, base.tools),
        child_input_ref=lambda: _build_child_input(own),
        build_launch=start,
        modes=modes,
        listed_tools=listed,
        unattended=own.child("unattended").read_bool(),
        choose_tools=None,
        abilities=base.abilities._replace(
            can_stream=True,
            can_resume=True,
            accepts_model=True,
            accepts_mcp_servers=True,
            accepts_command_servers=not own.child("addresses").read_bool(),
        ),
        policy_support=enforcement,
        # the protocol has no place for a system prompt
        session_traits=base.session_traits._replace(prefixes_system_prompt=True),
        cli=base.cli._replace(build_two_way=None),
    )


def expand_acp_profile(spot: ConfigNode) -> dict[str, Any]:
    """The table of a profile with `protocol = "acp"`, with all that any profile has."""
    for key in FORBIDDEN_KEYS:
        if spot.child(key):
            raise spot.child(key).build_error(
                'left out of a profile with `protocol = "acp"`', description="there"
            )
    table, own = dict(spot.read_table()), dict(spot.child("acp").read_table(ACP_KEYS))
    launch = {"argv": [], "prompt": {"via": "stdin"}, **spot.child("launch").read_table()}
    asks, given = bool(own.get("asks")), "permission_args" in launch or "permission_args" in own
    if not given:  # a mode below the widest needs an agent that asks
        plan = asks and "plan" in spot.child("acp").child("modes").read_table()
        narrow = ("acceptEdits", "dontAsk", *(("plan",) if plan else ())) if asks else ()
        own["permission_args"] = {mode: [] for mode in ("default", *narrow, BYPASS_MODE)}
    own.setdefault("model", "{model}" not in str(launch["argv"]))
    unasked = [{"match": {"jsonrpc": {"exists": True}}, "emit": "ignore"}]
    del table["protocol"]
    return {
        "listed": DEFAULT_TOOLS,
        **table,
        "unattended": not asks,
        "launch": launch,
        "acp": own,
        "event": unasked,
    }


def build_acp_agent(base: Adapter, table: Mapping[str, Any], source: ConfigSource) -> Adapter:
    """An agent that only speaks the protocol. What it runs unasked is not known, unless its `asks`
    say so.
    """
    made = build_two_way_adapter(base, table, source)
    return made._replace(
        unattended=base.unattended,
        cli=made.cli._replace(two_way_help_texts=(), always_keeps_child=True),
    )


def create_acp_translator(own: ConfigNode, tools: Tools) -> "type[AcpTranslator]":
    """The translator, with what `[acp]` says of this agent."""
    from shim.profiles.acp.stream import AcpTranslator

    facts = {
        "tools": tools,
        "form": _parse_call_format(own),
        "server_tool": own.child("server_tool").read_text(""),
        "ends_at_denial": own.child("denied").read_choice(("goes on", "ends"), "goes on") == "ends",
        "trailer": own.child("trailer").compile_pattern() if own.child("trailer") else None,
        "notices": own.child("notices").compile_pattern() if own.child("notices") else None,
        "retries": own.child("retries").compile_pattern() if own.child("retries") else None,
        "failures": own.child("failures").compile_pattern() if own.child("failures") else None,
        "counts_session": own.child("usage").read_choice(("turn", "session"), "turn") == "session",
    }
    made: type[AcpTranslator] = type("AgentTranslator", (AcpTranslator,), facts)
    return made


def _parse_call_format(own: ConfigNode) -> "CallFormat":
    from shim.profiles.acp.calls import CallFormat, CallSignature

    signs = {name: own.child("signs").child(name) for name in own.child("signs").read_table()}
    for one in signs.values():
        one.read_table(SIGN_KEYS)
    asked = own.child("questions")
    return CallFormat(
        own.child("tool_name").read_choice(TOOL_NAME_SOURCES, TOOL_NAME_SOURCES[0]),
        {
            name: CallSignature(
                one.child("kind").read_text(),
                one.child("title").read_text(""),
                one.child("keys").read_texts(20),
            )
            for name, one in signs.items()
        },
        {kind: asked.child(kind).read_texts(20) for kind in asked.read_table()},
        own.child("input").read_choice(("rawInput", "content"), "rawInput") == "content",
        own.child("path").compile_pattern() if own.child("path") else None,
    )


def _build_child_input(own: ConfigNode) -> "ChildInput":
    from shim.profiles.acp.blocks import AS_FILE, AS_IMAGE, LEFT_OUT
    from shim.profiles.acp.speech import AcpInput

    modes = {
        mode: own.child("modes").child(mode).read_text() for mode in own.child("modes").read_table()
    }
    documents = own.child("documents").read_choice((AS_FILE, AS_IMAGE, LEFT_OUT), AS_FILE)
    return AcpInput(
        modes,
        sets_model=own.child("model").read_bool(),
        offers_draft=own.child("draft").read_bool(),
        document_format=documents,
        only_urls=own.child("addresses").read_bool(),
    )
