"""One frontend of a session that lives in another process: its lines become frames, the host's
frames its lines.

Sans-IO: `heard` takes a line of the frontend's stdin, `framed` a frame of the host; what is to be
written is collected, lines for the frontend in `lines`, frames for the host in `frames`. Requests
are answered as a conversation of its own would (contract sections 3 and 6).
"""

from collections.abc import Callable, Mapping, Sequence

from shim.bridge.attach.own_process import OwnProcess
from shim.bridge.attach.own_turns import OwnTurns, Wants, Whose
from shim.core.claude.messages import NOW, read_line, read_message
from shim.core.claude.permissions import FAILED, UNASKED
from shim.core.reading.account import printable
from shim.core.reading.ids import parse_uuid
from shim.core.reading.json_text import dump
from shim.core.reading.typed import Any

OPEN_REQUESTS = 1000  # of a frontend that have no answer yet; it waits for each of them
KIND_CHARACTERS = 60  # of a line's type, in a complaint about it
# What of an `initialize` the session has to be told; the rest is answered from what the host was
# told at its begin.
TOLD = (
    "hooks",
    "sdkMcpServers",
    "mcpServers",
    "agents",
    "systemPrompt",
    "appendSystemPrompt",
    "jsonSchema",
)
INITIALIZE = "initialize"
OURS = object()  # who asked, where it was not the frontend
OTHERS = "{driver} drives it in the middle of a turn; say it again once that turn has ended"
LEFT = "the frontend has said all, and answers nothing any more"


class Frontend:
    """A frontend and its host, in between.

    `asked`: it answers questions. `complaints` are lines for stderr. `bye` is why the host has
    ended, "" before. `refusal` is why the session did not take the last message. `awaited` are the
    ids of frames by which it stops something, and which its host has not answered.
    """

    def __init__(
        self,
        wants: Wants,
        session: str,
        mint: Callable[[], str],
        *,
        asked: bool,
        servers: Sequence[str] = (),
    ) -> None:
        """`servers` are the MCP servers of its own process that its command line names."""
        self.turns = OwnTurns(wants, session, mint)
        self.lines: list[bytes] = []
        self.frames: list[Mapping[str, Any]] = []
        self.complaints: list[str] = []
        self.welcome: Mapping[str, Any] = {}
        self.driver: str | None = None
        self.busy = False
        self.bye = self.refusal = ""
        self.awaited: set[str] = set()
        self._wants = wants
        self._mint = mint
        self._asked = asked
        self._process = OwnProcess(servers)
        self._closed = False
        self._open: dict[str, object] = {}  # our id of a request → the frontend's
        self._answers: dict[str, str] = {}  # our id of an answer → the question
        self._questions: dict[str, Mapping[str, Any]] = {}  # those of the session that are open
        self._put: set[str] = set()  # those that were put to the frontend
        # messages that were said while another drove a turn
        self._hasty: dict[str, Mapping[str, Any]] = {}

    @property
    def drives(self) -> bool:
        return self.driver is not None and self.driver == self.welcome.get("client")

    @property
    def others_drive(self) -> bool:
        return self.driver is not None and not self.drives

    @property
    def unanswered(self) -> bool:
        """Whether a request of the frontend's waits for its answer."""
        return bool(self._open)

    # -- what the frontend says --------------------------------------------------------------------

    def heard(self, raw: bytes) -> None:
        """One line of stdin, without its LF."""
        if not raw.strip():
            return
        event = read_line(raw)
        kind = event.get("type") if isinstance(event, dict) else None
        if not isinstance(event, dict) or (event and not isinstance(kind, str)):
            shown = "unknown" if event is None else printable(str(kind)[:KIND_CHARACTERS])
            self._complain(f"Error parsing streaming input line (type={shown}, {len(raw)} chars)")
        elif kind == "user":
            self._message(event)
        elif kind == "control_request":
            self._request(event)
        elif kind == "control_response":
            self._response(event)

    def say(self, text: str) -> None:
        """The one message of the command line."""
        self._send(self._mint(), {"role": "user", "content": text})

    def closed(self) -> None:
        """The frontend's stdin has ended: it answers nothing any more."""
        self._closed = True
        self._deafen()
        for identity in self._process.asks:
            self._reply(identity, {"subtype": "error", "request_id": identity, "error": LEFT})
        self._process.asks.clear()

    def _deafen(self) -> None:
        """No question can be put to the frontend: others who are attached may answer, else it is
        denied.
        """
        self._frame("deaf", id=self._mint())

    def interrupt(self) -> None:
        """The turn is to be stopped."""
        self.awaited.add(identity := self._mint())
        self._frame("interrupt", id=identity)

    def take_back(self) -> None:
        """No message that waits for its turn is to be answered any more."""
        for uuid in [uuid for uuid in self.turns.waiting if uuid not in self.turns.taken]:
            self._open[mine := self._mint()] = OURS
            self.awaited.add(mine)
            self._frame(
                "request",
                id=mine,
                request={"subtype": "cancel_async_message", "message_uuid": uuid},
            )
            self.turns.refused(uuid)
        self._process.held.clear()

    def _message(self, event: Mapping[str, Any]) -> None:
        try:
            message = read_message(event, "")
        except ValueError as error:
            self._complain(f"Error: {error}")
            return
        if message.priority == NOW and self.turns.whose is Whose.OWN:
            self.interrupt()
        given = {} if not message.priority else {"priority": message.priority}
        self._send(parse_uuid(message.uuid or "") or self._mint(), message.message, **given)

    def _send(self, identity: str, message: Mapping[str, Any], **given: str) -> None:
        self.turns.sent(identity)
        if self._process.untaken or len(self._process.held) >= OPEN_REQUESTS:
            self.turns.refused(identity)
            self.refusal = self._process.untaken or "Too many messages wait already"
        elif self._process.comes:
            self._process.held[identity] = {"message": message, **given}
        else:
            if self.others_drive and self.busy and len(self._hasty) < OPEN_REQUESTS:
                self._hasty[identity] = {"message": message, **given}
            self._take_idle()
            self._frame("message", id=identity, message=message, **given)

    def _again(self, identity: str) -> bool:
        """Say a message once more whose turn was over when it was refused: we had not heard of
        that. Whether it is.
        """
        hasty = self._hasty.pop(identity, None)
        if hasty is None or self.busy or identity not in self.turns.waiting:
            return False
        self._take_idle()
        self._frame("message", id=identity, **hasty)
        return True

    def _take_idle(self) -> None:
        """Drive a session that another frontend drives, where no turn runs."""
        if self.others_drive and not self.busy:
            self._frame("take", id=self._mint())

    def _brought(self, identity: str, refused: str) -> None:
        """The session has taken what an `initialize` brings, or refused it: messages behind it go,
        or are not said.
        """
        for message, given in self._process.taken(identity, refused).items():
            self._send(
                message, given["message"], **{key: given[key] for key in given if key != "message"}
            )

    def _request(self, event: Mapping[str, Any]) -> None:
        request, identity = event.get("request"), event.get("request_id")
        if not isinstance(request, dict):
            self._complain("Error: Missing request on control_request")
            return
        subtype, mine = request.get("subtype"), self._mint()
        if subtype == INITIALIZE and self._process.servers:
            inside = request.get("sdkMcpServers")
            request = {
                **request,
                "sdkMcpServers": [
                    *(inside if isinstance(inside, list) else ()),
                    *self._process.servers,
                ],
            }
        if (
            subtype == INITIALIZE
            and not any(request.get(key) for key in TOLD)
            and self.welcome.get(INITIALIZE)
        ):
            current = {
                "current_permission_mode": self.turns.mode or self.welcome.get("mode") or "default"
            }
            self._answer(identity, {**self.welcome[INITIALIZE], **current})
            return
        if len(self._open) >= OPEN_REQUESTS:
            self._refuse(identity, "Too many requests are open already")
            return
        self._open[mine] = identity
        if subtype == INITIALIZE and self._process.bring(mine, request):
            self._take_idle()
        self._frame("request", id=mine, request=request)

    def _response(self, event: Mapping[str, Any]) -> None:
        response = event.get("response")
        if not isinstance(response, dict):
            return
        if self._wants.replays:
            self._say(event)
        identity = str(response.get("request_id"))
        if identity in self._process.asks:
            self._process.asks.discard(identity)
            self._reply(identity, response)
        elif identity in self._put:
            self._put.discard(identity)
            self._questions.pop(identity, None)
            if response.get("subtype") == "error":
                self._deny(identity, FAILED.format(error=response.get("error")))
            else:
                self._decide(identity, response.get("response"))
            self._resume()

    # -- what the host says ------------------------------------------------------------------------

    def framed(self, said: Mapping[str, Any]) -> None:
        """One frame; `raw` in that of a line is Claude's own line, byte for byte."""
        match said.get("kind"):
            case "line":
                self.lines += self.turns.line(said["raw"])
            case "welcome":
                self._welcomed(said)
            case "question":
                self._question(str(said.get("question")), said.get("request"))
            case "settled":
                self._settled(
                    str(said.get("question")),
                    denied=said.get("how") == "deny" and said.get("by") is None,
                )
            case "ask":
                self._ask(str(said.get("id")), said.get("request"))
            case "accepted":
                self.awaited.discard(str(said.get("id")))
                self._answers.pop(str(said.get("id")), None)
                self._hasty.pop(str(said.get("id")), None)
            case "response":
                self._answered(str(said.get("id")), said.get("response"))
            case "refused":
                self._refused(str(said.get("id")), _why(said))
            case "state":
                self.busy = said.get("status") in ("busy", "waiting")
            case "driver":
                self._driven(said.get("client"))
            case "bye":
                self.bye = str(said.get("reason") or "ended")

    def _welcomed(self, said: Mapping[str, Any]) -> None:
        self.welcome = said
        state = said.get("state") or {}
        self.busy = state.get("status") in ("busy", "waiting")
        init = said.get("init")
        self.turns.attach(dump(init) if init else b"", running=self.busy)
        self._driven(said.get("driver"))
        if not self._asked:
            self._deafen()

    def _driven(self, client: object) -> None:
        self.driver = client if isinstance(client, str) else None
        self.turns.driving = self.drives
        if not self.others_drive:
            for question, request in self._questions.items():
                self._put_question(question, request)

    def _question(self, question: str, request: object) -> None:
        if not isinstance(request, dict):
            return
        self._questions[question] = request
        if not self.others_drive:  # who else drives is asked about what it drives
            self._put_question(question, request)

    def _put_question(self, question: str, request: Mapping[str, Any]) -> None:
        """Put a question to the frontend, if it is asked at all; else it waits for others who are
        attached.
        """
        if not self._asked or self._closed or question in self._put:
            return
        line = dump({"type": "control_request", "request_id": question, "request": request})
        if self._wants.limit and len(line) > self._wants.limit:
            return  # never cut: somebody else may see all of it
        self._put.add(question)
        self.lines += [*self.turns.state("requires_action"), line]

    def _settled(self, question: str, *, denied: bool) -> None:
        """A question has its answer; one that was put to the frontend, which did not give it, is
        taken back.

        `denied`: nobody could answer it, which a frontend that was not asked is told (contract
        5.13).
        """
        request = self._questions.pop(question, None)
        if denied and request is not None and not self._asked:
            self.lines += self.turns.denied(request, UNASKED.format(tool=request.get("tool_name")))
        if question in self._put:
            self._put.discard(question)
            self._say({"type": "control_cancel_request", "request_id": question})
            self._resume()

    def _resume(self) -> None:
        if not self._put and self.turns.whose is Whose.OWN:
            self.lines += self.turns.state("running")

    def _ask(self, identity: str, request: object) -> None:
        if self._closed:
            self._reply(identity, {"subtype": "error", "request_id": identity, "error": LEFT})
            return
        self._process.asks.add(identity)
        self._say({"type": "control_request", "request_id": identity, "request": request})

    def _answered(self, identity: str, response: object) -> None:
        self.awaited.discard(identity)
        if identity not in self._open or not isinstance(response, dict):
            return
        body = response.get("response")
        if isinstance(body, dict) and body.get("cancelled") is True:
            self.turns.refused(str(body.get("message_uuid")))
        asked = self._open.pop(identity)
        self._brought(
            identity, str(response.get("error")) if response.get("subtype") == "error" else ""
        )
        if asked is not OURS:
            self._say({"type": "control_response", "response": {**response, "request_id": asked}})

    def _refused(self, identity: str, reason: str) -> None:
        self.awaited.discard(identity)
        if identity in self._open:
            if (asked := self._open.pop(identity)) is not OURS:
                self._refuse(asked, reason)
            self._brought(identity, reason)
        elif identity in self._answers:  # one that cannot be read is a denial (never wider)
            self._deny(self._answers.pop(identity), FAILED.format(error=reason))
        elif not self._again(identity) and self.turns.refused(identity):
            self.refusal = reason

    # -- lines and frames --------------------------------------------------------------------------

    def _frame(self, kind: str, **keys: object) -> None:
        self.frames.append({"kind": kind, **keys})

    def _reply(self, identity: str, response: Mapping[str, Any]) -> None:
        self._frame("reply", id=identity, response=response)

    def _decide(self, question: str, decision: object) -> None:
        identity = self._mint()
        if len(self._answers) < OPEN_REQUESTS:
            self._answers[identity] = question
        self._frame("answer", id=identity, question=question, decision=decision)

    def _deny(self, question: str, message: str) -> None:
        decision = {"behavior": "deny", "message": message}
        self._frame("answer", id=self._mint(), question=question, decision=decision)

    def _answer(self, identity: object, body: object) -> None:
        response = {"subtype": "success", "request_id": identity}
        self._say(
            {
                "type": "control_response",
                "response": response if body is None else response | {"response": body},
            }
        )

    def _refuse(self, identity: object, text: str) -> None:
        response = {"subtype": "error", "request_id": identity, "error": text}
        self._say({"type": "control_response", "response": response})

    def _say(self, line: Mapping[str, Any]) -> None:
        self.lines.append(dump(line))

    def _complain(self, text: str) -> None:
        self.complaints.append(f"{text}; the line was skipped\n")


def driven_by(driver: object) -> str:
    """Who drives the session, and when it takes a message."""
    return OTHERS.format(driver=printable(str(driver)))


def _why(refused: Mapping[str, Any]) -> str:
    """Why the host refuses a frame, in words for who knows nothing of frames."""
    if refused.get("reason") == "not-driver" and refused.get("driver"):
        return driven_by(refused["driver"])
    return str(refused.get("text") or refused.get("reason"))
