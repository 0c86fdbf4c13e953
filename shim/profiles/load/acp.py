"""`[acp]`: how a program is driven that speaks the Agent Client Protocol, so that a frontend is asked.

    argv = ["--acp"]          in the place of `launch.argv`; `command` likewise
    permission_args = { … }   in the place of `launch.permission_args`: a mode is missing that it cannot be driven in
    server_tool = "{server}_{tool}"   how it names a tool of a server of MCP
    tool_name = "title"       where a call has its tool's name: in its first title, or in front of its "id"
    model = true              the model is set in the session, not on the command line
    modes = { plan = "plan" } Claude's modes → the agent's own, set in the session; others are as `default`
    usage = "session"         its usage is that of the session so far (else: of the turn)
    draft = true              version 2 of the protocol is offered, which is a draft
    documents = "image"       a document is said as an image is: beside an embedded file the agent would lose images
    asks = ["Bash", "Edit"]   the tools of which its questions say all that decides, in Claude's words

Such a child is told its messages, its answers and its session through stdin. `launch.denials.asking` makes it ask about
each call in every mode, so that the policy answers, or the frontend, and a mode can change while it runs.
"""

from collections.abc import Mapping

from shim.core.errors import FrontendError
from shim.core.policy.rules import EVERYTHING, MCP, Rule
from shim.core.reading.typed import TYPE_CHECKING, Any
from shim.core.vendor.tools import Tools
from shim.core.vendor.vendor import Launch, Request, Vendor
from shim.profiles.check.toml_errors import Source, Spot
from shim.profiles.load.launch import RESUME_PATTERN, Template

if TYPE_CHECKING:
    from shim.core.vendor.request import Speech
    from shim.profiles.acp.stream import AcpTranslator

KEYS = (
    *("command", "argv", "permission_args", "tool_name", "server_tool", "model", "modes", "usage", "draft"),
    *("documents", "asks"),
)
IN_PLACE = ("command", "argv", "permission_args")
LEFT_OUT = ("permission_tools", "permission_env", "report")  # of a vendor that cannot ask
PLACES = ("title", "id")


def two_way(base: Vendor, table: Mapping[str, Any], source: Source) -> Vendor:
    """The vendor of a profile, driven by the protocol."""
    own = Spot(source, table).at("acp")
    own.table(KEYS)
    kept = {key: value for key, value in table["launch"].items() if key not in LEFT_OUT}
    launch = {**kept, "prompt": {"via": "stdin"}, **{key: own.value[key] for key in IN_PLACE if key in own.value}}
    spot = Spot(source, {**table, "launch": launch}).at("launch")
    template = Template(spot, base.name, base.tools)
    pattern = spot.at("resume_id_pattern").regex() if spot.at("resume_id_pattern") else RESUME_PATTERN
    modes = {mode: spot.at("permission_args").at(mode).texts(20) for mode in spot.at("permission_args").table()}
    asked = frozenset(own.at("asks").texts())

    def start(request: Request) -> Launch:
        import re

        if request.resume and not re.fullmatch(pattern, request.resume):
            raise FrontendError(f"{request.resume[:60]!r} is no session id of {base.name}", hint="start a new session")
        invocation = request.invocation.with_flags(fork_session=False)
        return template.start(request._replace(resume=None, invocation=invocation))._replace(stdin=b"", pipe=True)

    def binds(rule: Rule, request: Request) -> bool:
        """It asks about every call of a server of MCP, and about every tool there is."""
        return rule.tool.startswith(MCP) or rule.tool == EVERYTHING

    return base._replace(
        translates=lambda: reader(own, base.tools),
        speaks=lambda: _speech(own),
        launch=start,
        modes=modes,
        unattended=False,
        chooses=None,
        abilities=base.abilities._replace(streams=True, resumes=True, takes_model=True, servers=True),
        enforcement=base.enforcement._replace(asks=lambda request: asked, binds=binds, subagents=False),
        program=base.program._replace(two_way=None),
    )


def reader(own: Spot, tools: Tools) -> "type[AcpTranslator]":
    """The translator, with what `[acp]` says of this agent."""
    from shim.profiles.acp.stream import AcpTranslator

    facts = {
        "tools": tools,
        "names_in_title": own.at("tool_name").choice(PLACES, PLACES[0]) == PLACES[0],
        "server_tool": own.at("server_tool").text(""),
        "counts_session": own.at("usage").choice(("turn", "session"), "turn") == "session",
    }
    made: type[AcpTranslator] = type("AgentTranslator", (AcpTranslator,), facts)
    return made


def _speech(own: Spot) -> "Speech":
    from shim.profiles.acp.speech import AcpSpeech

    modes = {mode: own.at("modes").at(mode).text() for mode in own.at("modes").table()}
    inline = own.at("documents").choice(("file", "image"), "file") == "image"
    return AcpSpeech(modes, model=own.at("model").switch(), draft=own.at("draft").switch(), inline=inline)
