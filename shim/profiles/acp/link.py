"""One agent that speaks JSON-RPC 2.0 on its stdin and stdout: what it was asked, and the session
that it holds.

Sans-IO: each method gives the bytes of whole lines. A session is opened step by step, each by the
answer to the step before: `initialize`, then `session/new` (or resume, load, fork), then the model
and the mode, then the prompt. A prompt that comes earlier waits.
"""

from collections.abc import Mapping

from shim.core.claude.argv.models import choose_effort
from shim.core.claude.messages import ALL_KINDS, BlockKinds, UserMessage
from shim.core.reading.json_text import dump_json
from shim.core.reading.typed import Any, NamedTuple
from shim.profiles.acp.blocks import FILE, blocks, takes
from shim.profiles.acp.versions import FIRST, VERSIONS, Version, Work, greeting
from shim.profiles.rpc.form import DISMISSED, Forms
from shim.profiles.rpc.peer import REQUESTS, Heard, Peer, answered, table

INVALID_PARAMS = -32602
CANCELLED = {"outcome": {"outcome": "cancelled"}}  # the answer to a question that nobody is asked
# An agent reads files and runs commands by itself: nothing of that is offered.
ABILITIES = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
FORMS: Mapping[str, Any] = {"elicitation": {"form": {}}}  # where the frontend can answer them
# The steps of a session, and what was answered to them.
GREETING, SESSION, REPLAY, SETTING, PROMPT = "initialize", "session", "replay", "setting", "prompt"
# a setting without which the turn goes on, and its option's category
EFFORT, LEVEL = "effort", "thought_level"
TAKEN, MAY_END = "taken", "may end"  # what the prompt is, and its turn, in version 2
STRANGER = "the agent speaks version {} of its protocol, not 1 or 2"
LOGINS = 10  # ways to log in that are told
# Asked while a session is loaded: nobody has it, and its answer stands behind what was said before
# it.
NOTHING = "_claude-shim/nothing"
# Methods after which an agent may send the session's history again. opencode does so after a fork.
REPLAYING = ("load", "fork")
# such questions for one session: one is answered behind one or more of its old messages
REPLAYS = 10_000


class Opening(NamedTuple):
    """How a session begins. `resume` is the agent's own id of one that goes on, in another one if
    `fork`.

    `mode` is the agent's own name of a mode, `effort` a level in Claude's words, `servers` are MCP
    servers as version 1 has them. `version` of the protocol is offered to the agent. `documents`:
    how those of a message are said. `asks`: the frontend answers questions to the person.
    `addresses`: a server that is a command is none for the agent.
    """

    cwd: str
    resume: str | None = None
    fork: bool = False
    model: str | None = None
    mode: str | None = None
    effort: str | None = None
    servers: tuple[Mapping[str, Any], ...] = ()
    version: int = FIRST.number
    documents: str = FILE
    asks: bool = False
    addresses: bool = False


class Link:
    """One agent. It is greeted again when another child takes its place."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self.outbox: list[bytes] = []
        self.session = ""
        self.loading = False  # what the agent says now was said in an earlier turn
        self.left_out: list[str] = []  # servers of MCP that the agent cannot reach
        self.replayed = False  # it said something of an earlier turn since it was asked last
        self.greeted = False  # False where a recording is read, of which our half is not known
        self.version: Version = FIRST
        self.work = Work()  # of version 2
        self.agent: Mapping[str, Any] = {}  # what it said of itself
        self.forms = Forms()
        self.taken_back: list[str] = []  # questions whose answers the agent does not want any more
        self._opening = Opening("")
        self._peer = Peer(jsonrpc="2.0")
        self._waiting: UserMessage | None = None
        self._options: Mapping[str, Any] = {}  # what the agent said of the session when it began
        self._questions: dict[str, tuple[object, str, str, list[Mapping[str, Any]]]] = {}
        self._allowed: dict[str, str] = {}  # open calls → what of each was allowed
        self.usable = True  # whether a session is there, or may come
        self.refused: list[str] = []  # calls whose end the agent may never say
        self.reasons: list[str] = []  # why calls were denied, which the agent's model was not told

    def greet(self, opening: Opening) -> bytes:
        self._reset()  # another child knows nothing of what was before
        self.greeted, self._opening = True, opening
        abilities = {**ABILITIES, **(FORMS if opening.asks else {})}
        return self._peer.ask(GREETING, "initialize", **greeting(opening.version, abilities))

    def prompt(self, message: UserMessage) -> bytes:
        """The message of a turn; nothing yet while there is no session."""
        if not self._ready:
            self._waiting = message
            return b""
        self._waiting = None
        return self._prompt(message)

    def cancel(self) -> bytes:
        """Stop the turn; the agent answers its prompt. A prompt that waits is never said."""
        self._waiting = None
        self._allowed.clear()  # what was allowed is not allowed again behind it
        self.reasons.clear()
        return self._peer.tell("session/cancel", sessionId=self.session) if self.session else b""

    def set(self, category: str, value: str | None) -> bytes | None:
        """Another model or mode; None: the agent's own, which is the one that the session began
        with.

        Gives back None where that is not known. A session that is not open yet begins with it.
        """
        changed: dict[str, Any] = {category: value}
        self._opening = self._opening._replace(**changed)
        if not self.session:
            return b""
        value = self.current(category) if value is None else value
        return None if value is None else self._setting(category, value)

    def effort(self, level: str | None) -> bytes:
        """How hard the model is to try; None: as hard as when the session began."""
        self._opening = self._opening._replace(effort=level)
        return b"".join(self._effort()) if self.session else b""

    @property
    def asks(self) -> bool:
        """Whether the frontend answers questions to the person."""
        return self._opening.asks

    @property
    def _ready(self) -> bool:
        """Whether the agent can be given a message."""
        return bool(self.session) and not (self.loading or self.setting)

    @property
    def setting(self) -> bool:
        """Whether the agent has not answered yet that it has another model, mode or effort."""
        return self._peer.waits(SETTING) or self._peer.waits(EFFORT)

    @property
    def model(self) -> str | None:
        """The model that answers: the one that was asked for, or the agent's own."""
        return self._opening.model or self.current("model")

    @property
    def servers(self) -> list[str]:
        """The names of the servers of MCP that the agent was given."""
        return [one["name"] for one in self._opening.servers]

    @property
    def takes(self) -> BlockKinds:
        """What a message may have beside its text; everything until the agent has said what it
        takes.
        """
        return takes(self.agent, self._opening.documents) if self.agent else ALL_KINDS

    @property
    def logins(self) -> list[str]:
        """The agent's ways to log in, in its words."""
        methods = [one for one in _list(self.agent.get("authMethods")) if isinstance(one, dict)][
            :LOGINS
        ]
        return [str(one.get("name") or one.get("id") or one.get("methodId")) for one in methods]

    @property
    def resumed(self) -> bool:
        """Whether the session had turns before this child."""
        return self._opening.resume is not None

    def hear(self, message: Mapping[str, Any]) -> Heard | None:
        """An answer of the agent's; None for one to nothing that was asked."""
        heard = self._peer.heard(message)
        if heard is None and not self.greeted and (form := _step_of(message)) is not None:
            heard = answered(form, message)
        if heard is None:
            return None
        step, result, error = heard
        if error is not None and step not in (REPLAY, EFFORT):
            self._waiting, self.usable = None, self.usable and step == PROMPT
            return heard
        if step == GREETING and not self._speaks(result):
            self._waiting, self.usable = None, False
            return Heard(step, result, {"message": STRANGER.format(result.get("protocolVersion"))})
        if step == PROMPT and not self.version.answers:
            return Heard(
                MAY_END if self.work.placed(message["id"], answered=True) else TAKEN, result
            )
        if self.greeted:
            self._go_on(step, result)
        elif step == SESSION:
            self.session, self._options = str(result.get("sessionId") or ""), result
        return Heard(step, result)

    def _speaks(self, agent: Mapping[str, Any]) -> bool:
        """Whether the version that the agent chose is one of ours."""
        chosen = agent.get("protocolVersion")
        self.version = VERSIONS.get(chosen if chosen.__class__ is int else 0, FIRST)
        self.agent = agent
        return chosen == self.version.number

    def state(self, update: Mapping[str, Any]) -> Heard:
        """A state of the session, in version 2: the answer to the prompt where it ends the turn, or
        may end it.
        """
        ends = self.work.reach(update.get("state"), self._peer.waits(PROMPT))
        if not self.greeted:  # it is not known what the agent was asked
            ends = "stopReason" in update
        return Heard(MAY_END if ends is None else PROMPT if ends else TAKEN, update)

    def inserted(self) -> None:
        """The agent says the user's message again: the prompt has its place."""
        self.work.placed(self._peer.number, answered=False)

    def reply(self, identity: object, **body: object) -> None:
        """Answer a request without a question to anybody.

        One with the id of an open question has no answer: it would be taken for the answer to that
        question.
        """
        if not self._asks(dump_json(identity).decode()):
            self.outbox.append(self._peer.answer(identity, **body))

    def question(self, identity: object, call: str, options: object, words: str = "") -> str | None:
        """The name under which a question about a call is kept until `decide`; None where nobody is
        to be asked.

        It has its answer by now where too many are open, and none where its id is that of an open
        question. A call may be asked about again, for each thing that it does: the answer is the
        same as long as the frontend would be shown the same `words`.
        """
        request = dump_json(identity).decode()
        # an answer to this id would be taken for the answer to the open question
        if self._asks(request):
            return None
        if len(self._questions) >= REQUESTS:
            self.reply(identity, result=CANCELLED)
            return None
        self._questions[request] = (
            identity,
            call,
            words,
            [one for one in _list(options) if isinstance(one, dict)],
        )
        if self._allowed.get(call) == words:
            self.outbox.append(self.decide(request, allow=True, stop=False))
            return None
        return request

    def form(self, identity: object, call: str, params: Mapping[str, Any]) -> str | None:
        """The name under which a form is kept until `fill`; None where nobody is to be asked, as
        for a question.
        """
        request = dump_json(identity).decode()
        if self._asks(request) or len(self.forms.open) >= REQUESTS:
            self.reply(identity, result=DISMISSED)
            return None
        self.forms.open[request] = identity, call, params
        return request

    def fill(
        self, request: str, changed: Mapping[str, Any] | None, *, allow: bool, stop: bool
    ) -> bytes | None:
        """The answer to a form, by the arguments of Claude's question that came back; None for what
        is no form.
        """
        if request not in self.forms.open:
            return None
        identity = self.forms.open[request][0]
        return self._peer.answer(
            identity, result=self.forms.close(request, changed, allow=allow, stop=stop)
        )

    def is_undecided(self, call: str) -> bool:
        """Return whether a permission request for a call waits for its answer."""
        return any(question[1] == call for question in self._questions.values())

    def _asks(self, request: str) -> bool:
        """Whether the frontend is asked something under this name."""
        return request in self._questions or request in self.forms.open

    def over(self, call: str) -> None:
        """A call has ended: another one may have the same id."""
        self._allowed.pop(call, None)

    def explain(self) -> bytes:
        """A prompt with the reasons of the calls that were denied, so that the agent's model goes
        on.
        """
        said = [f"A call was not allowed: {reason}" for reason in self.reasons]
        return self._prompt(UserMessage("\n".join([*said, "Go on without it."])))

    def decide(self, request: str, *, allow: bool, stop: bool, reason: str = "") -> bytes:
        """The answer to a question. What would allow more than this call is never chosen."""
        if request not in self._questions:
            return b""
        identity, call, words, options = self._questions.pop(request)
        if allow:
            self._allowed[call] = words
        else:
            self.refused.append(call)
            self.reasons += [reason] if reason and not stop else []
        kinds = ("allow_once",) if allow else ("reject_once", "reject_always")
        chosen = next((one for kind in kinds for one in options if one.get("kind") == kind), None)
        outcome: dict[str, Any] = {"outcome": "cancelled"}
        if chosen is not None and not stop:
            outcome = {"outcome": "selected", "optionId": chosen.get("optionId")}
        return self._peer.answer(identity, result={"outcome": outcome})

    def end(self) -> None:
        """The turn is over: nothing that was allowed in it is allowed again."""
        self._allowed.clear()

    # -- the steps ---------------------------------------------------------------------------------

    def _go_on(self, step: str, result: Mapping[str, Any]) -> None:
        if step == GREETING:
            self.outbox.append(self._begin(result))
        elif step == SESSION:
            self.session = str(result.get("sessionId") or self._opening.resume or "")
            self._options = result
            self.outbox += [self._peer.ask(REPLAY, NOTHING)] if self.loading else self._settings()
        elif step == REPLAY:
            self.loading = self.replayed and self._peer.number < REPLAYS
            self.replayed = False
            self.outbox += [self._peer.ask(REPLAY, NOTHING)] if self.loading else self._settings()
        if self._ready and self._waiting is not None:
            message, self._waiting = self._waiting, None
            self.outbox.append(self._prompt(message))

    def _begin(self, agent: Mapping[str, Any]) -> bytes:
        """A new session, or the one that goes on, in the way that the agent has for it."""
        opening = self._opening
        reached = [one for one in opening.servers if "url" in one or not opening.addresses]
        told = [(one["name"], self.version.server(one, agent)) for one in reached]
        self.left_out = [one["name"] for one in opening.servers if one not in reached]
        self.left_out += [name for name, server in told if server is None]
        place = {
            "cwd": opening.cwd,
            "mcpServers": [server for _, server in told if server is not None],
        }
        if opening.resume is None:
            return self._peer.ask(SESSION, "session/new", **place)
        way = self.version.way(agent, opening.fork)
        self.loading = way in REPLAYING
        return self._peer.ask(SESSION, f"session/{way}", sessionId=opening.resume, **place)

    def _settings(self) -> list[bytes]:
        """What sets the model and the mode, where they are not what the session begins with."""
        model, mode = self._opening.model, self._opening.mode
        lines = (
            [self._setting("model", model)] if model not in (None, self.current("model")) else []
        )
        if mode is not None and self.current("mode") not in (None, mode):  # None: it has no modes
            lines.append(self._setting("mode", mode))
        return lines if self._opening.effort is None else [*lines, *self._effort()]

    def _effort(self) -> list[bytes]:
        """What sets the effort, for an agent that has an option for it with such a level, or one
        below it.
        """
        option, level = self._option(LEVEL), self._opening.effort
        if option is None:
            return []
        able = [one.get("value") for one in _list(option.get("options")) if isinstance(one, dict)]
        value = option.get("currentValue") if level is None else choose_effort(level, able)
        return [] if value is None else [self._choose(EFFORT, option, value)]

    def _setting(self, category: str, value: str | None) -> bytes:
        option = self._option(category)
        if option is not None:
            return self._choose(SETTING, option, value)
        return self._peer.ask(
            SETTING,
            f"session/set_{category}",
            **{"sessionId": self.session, f"{category}Id": value},
        )

    def _choose(self, step: str, option: Mapping[str, Any], value: object) -> bytes:
        said = {
            "sessionId": self.session,
            "configId": option.get(self.version.option),
            "value": value,
        }
        return self._peer.ask(step, "session/set_config_option", **said, **self.version.value)

    def _option(self, category: str) -> Mapping[str, Any] | None:
        """The agent's option for the model, the mode or the effort, where it has options."""
        options = (
            one for one in _list(self._options.get("configOptions")) if isinstance(one, dict)
        )
        return next((one for one in options if one.get("category") == category), None)

    def current(self, category: str) -> str | None:
        """The model or the mode that the session began with."""
        option = self._option(category)
        said = table(self._options.get(f"{category}s")).get(f"current{category.capitalize()}Id")
        found = said if option is None else option.get("currentValue")
        return found if isinstance(found, str) else None

    def _prompt(self, message: UserMessage) -> bytes:
        self._allowed.clear()
        self.refused.clear()
        self.reasons.clear()
        self.work.begin(self._peer.number + 1)
        said = blocks(message, self.takes, self._opening.documents)
        return self._peer.ask(PROMPT, "session/prompt", sessionId=self.session, prompt=said)


def _step_of(message: Mapping[str, Any]) -> str | None:
    """The step that an answer belongs to, by its form."""
    result = message.get("result")
    if "error" in message:
        return PROMPT
    if not isinstance(result, dict):
        return None
    return next((step for key, step in _SIGNS.items() if key in result), SETTING)


_SIGNS = {"stopReason": PROMPT, "sessionId": SESSION, "protocolVersion": GREETING}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
