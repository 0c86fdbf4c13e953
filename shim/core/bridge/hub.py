"""The hub of a session: the conversation on one side, any number of clients on the other.

Sans-IO. The host tells it what came (`joined`, `heard`, `left`, `said`, `tick`, `replayed`,
`close`), carries out what `take` gives back, in its order, and only then writes what `outgoing`
gives for each client of `ready`: so nothing is told to anybody that is not in the log. `outgoing`
may leave commands too.

    hub = Hub(session, generation=2, number=log.last, mint=fresh_uuid, wall=milliseconds,
        clock=time.monotonic)
    hub.open()                                  # asks the conversation for its `initialize`
    hub.joined(1); hub.heard(1, b'{"kind":"hello",…}')
    for command in hub.take(): …                # Append, Tell, Read, Drop, Changed, End
    for client in hub.ready(): socket.send(hub.outgoing(client))
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import orjson

from shim.core.bridge.audience import Spoken
from shim.core.bridge.client import Client
from shim.core.bridge.commands import Append, Command
from shim.core.bridge.conversation import Conversation
from shim.core.bridge.frames import (
    FrameError,
    RefusedError,
    frame,
    identity,
    line_frame,
    partial_frame,
    read_frame,
)
from shim.core.bridge.log import SAID, Entry, Record
from shim.core.bridge.obedience import Obedience
from shim.core.bridge.questions import ASKING, LEFT, TOO_MANY, Question, denial, late
from shim.core.bridge.requests import Request
from shim.core.bridge.session import Session
from shim.core.reading.json_text import dump
from shim.core.reading.lines import INBOUND_BYTES, LineSplitter

OUTGOING_BYTES = 256 * 1024  # that are given for one write to a client
BAD_FRAMES = 100  # of a client that cannot be read; then it is no client
CONTROL = ("control_request", "control_response", "control_cancel_request")


class Hub:
    """`generation` is this life of the host, `number` that of the last line in the log.

    `mint` gives a fresh UUID, `wall` milliseconds since 1970, `clock` seconds that never go back.
    `known` are the ids of messages that former lives have taken.
    """

    def __init__(
        self,
        session: Session,
        *,
        generation: int,
        number: int,
        mint: Callable[[], str],
        wall: Callable[[], int],
        clock: Callable[[], float],
        known: Iterable[str] = (),
    ) -> None:
        self._it = Conversation(session, generation, number, mint, wall, known)
        self._obedience = Obedience(self._it)
        self._clock = clock
        self._lines = LineSplitter(INBOUND_BYTES)

    # -- what the host tells -----------------------------------------------------------------------

    def open(self) -> None:
        """The conversation can hear us: it is asked for its `initialize`."""
        self._it.request({"subtype": "initialize"}, Request(None, "", "initialize"))
        self._it.changed()

    def prompt(self, message: Mapping[str, Any], uuid: str) -> None:
        """The message that the session was started with. RefusedError as for a client's; it is said
        once, as those.
        """
        if ("", uuid) not in self._it.messages:
            self._it.message(message, uuid)
            self._it.messages["", uuid] = True

    def set_notice(self, text: str) -> None:
        """Send a sentence about the host to all clients that connect from now on."""
        self._it.notice = text

    def joined(self, client: int) -> None:
        """Somebody has connected. `client` is a number of the host's that never comes again."""
        joined = self._it.audience.join(client, self._clock())
        if self._it.ended:
            self._it.audience.drop(joined, self._it.ended)

    def heard(self, client: int, raw: bytes) -> None:
        """A line of a client, without its newline."""
        heard = self._it.audience.clients.get(client)
        if heard is None or heard.dropped or not raw.strip():
            return
        said: Mapping[str, Any] = {}
        try:
            if len(raw) > self._it.session.frame_bytes:
                raise FrameError(
                    f"a frame has at most {self._it.session.frame_bytes} bytes (max_inbound_bytes)"
                )
            said = read_frame(raw)
            if (said["kind"] == "hello") != (heard.hello is None):
                raise FrameError("hello is the first frame, and comes once")
            if heard.hello is None:
                self._obedience.hello(heard, said)
            else:
                self._obedience.obey(heard, said)
        except RefusedError as error:
            self._refuse(heard, said, error.reason, str(error))
        except FrameError as error:
            self._refuse(heard, said, "bad-frame", str(error))
            heard.bad += 1
            if heard.hello is None or heard.bad >= BAD_FRAMES:
                self._it.audience.drop(heard, "its frames cannot be read")

    def _refuse(self, client: Client, said: Mapping[str, Any], reason: str, text: str) -> None:
        try:
            mark = identity(said) or None
        except FrameError:
            mark = None
        driver = {"driver": self._it.roles.name} if reason in ("not-driver", "not-owner") else {}
        self._it.audience.say(client, frame("refused", id=mark, reason=reason, text=text, **driver))

    def left(self, client: int) -> None:
        """A client's connection is closed, by whichever side."""
        gone = self._it.audience.leave(client)
        if gone is None:
            return
        self._it.requests.left(gone)
        for ask in self._it.asks.left(gone):
            self._it.forward(ask._replace(client=None))
        self._it.ceilings.left(client)
        self._it.release()
        if self._it.roles.driver is gone:
            self._it.give(None)
        self._it.deny_unheard()

    def said(self, data: bytes) -> None:
        """Bytes of the conversation's stdout: lines of Claude's stream-json."""
        it, spoken, records, at = self._it, list[Spoken](), list[Record](), self._it.wall()

        def tell() -> None:
            if records:
                it.commands.append(Append(tuple(records)))
                records.clear()
            it.audience.lines(spoken)
            spoken.clear()

        for raw in self._lines.feed(data):
            if not raw:
                continue
            line, shown = _read(raw)
            kind = line.get("type")
            if kind == "stream_event":
                partial = partial_frame(at, shown)
                spoken.append(Spoken(partial, 0, it.audience.block.partial(line, partial)))
            elif kind == "keep_alive":
                continue
            elif kind in CONTROL:
                tell()
                self._control(str(kind), line, raw, at)
            else:
                if kind == "result" and it.questions.open:
                    tell()
                    it.settle_all(None, "ended")
                it.audience.number += 1
                records.append(Record(SAID, at, shown, it.audience.number))
                whole = line_frame(it.audience.number, it.audience.generation, at, shown)
                spoken.append(Spoken(whole, it.audience.number))
                self._whole(line)
        tell()
        it.release()
        it.changed()

    def replayed(self, client: int, after: int, entries: Sequence[Entry]) -> None:
        """What a `Read` behind `after` has found; nothing if the log does not have it any more."""
        self._it.audience.replayed(client, after, entries)

    def tick(self) -> None:
        """Time goes by: to be called at least once a second."""
        it, now = self._it, self._clock()
        it.later()
        it.audience.silent(now)
        for overdue in it.questions.overdue(now, it.session.question_seconds):
            question = it.questions.open[overdue]
            it.situation.time_out(question.request)
            it.settle(overdue, None, "timeout", late(question))

    def close(self, reason: str, failed: str = "") -> None:
        """The session is over: open questions are denied, and everybody is told. `failed` says why,
        where nobody stopped it."""
        it = self._it
        if it.ended:
            return
        it.ended = reason
        it.settle_all(None, "ended", LEFT)
        it.situation.end(failed, messages=bool(it.waiting))
        it.changed()
        it.unanswered()
        for client in list(it.audience.clients.values()):
            it.audience.drop(client, reason)

    def count_unanswered(self) -> int:
        """Return the number of messages without a result: waiting messages, and the message of the
        current turn.
        """
        return len(self._it.waiting) + self._it.situation.active

    # -- what the host has to do -------------------------------------------------------------------

    def take(self) -> list[Command]:
        """The commands since the last call."""
        taken = self._it.commands[:]
        self._it.commands.clear()
        return taken

    def ready(self) -> list[int]:
        """The clients for whom something waits to be written; none before the commands were taken."""
        return [] if self._it.commands else self._it.audience.ready()

    def outgoing(self, client: int, most: int = OUTGOING_BYTES) -> bytes:
        """The next frames for a client, about `most` bytes: at least one frame, and never a part of
        one.
        """
        return self._it.audience.outgoing(client, most)

    @property
    def driver(self) -> str | None:
        """The name of the client that drives."""
        return self._it.roles.name

    @property
    def clients(self) -> int:
        """How many have said hello."""
        return sum(1 for _ in self._it.audience)

    @property
    def running(self) -> bool:
        """Whether a turn runs, or a message waits for its turn."""
        return self._it.situation.active or bool(self._it.waiting)

    @property
    def facts(self) -> dict[str, Any]:
        """The state, as in a `state` frame."""
        return self._it.facts()

    # -- what a line says --------------------------------------------------------------------------

    def _whole(self, line: Mapping[str, Any]) -> None:
        it, kind = self._it, line.get("type")
        it.audience.block.whole(line)
        if kind == "user" and line.get("isReplay") is True:
            it.begun(line.get("uuid"))
        elif kind == "result":
            it.turn_of = None
        elif kind == "system":
            self._system(line)
        it.situation.line(line)

    def _system(self, line: Mapping[str, Any]) -> None:
        it = self._it
        if line.get("subtype") == "init":
            it.init = line
            model = line.get("model")
            it.session = it.session._replace(
                model=model if isinstance(model, str) else it.session.model
            )
        mode = line.get("permissionMode")
        if isinstance(mode, str) and mode:
            it.reported(mode)

    def _control(self, kind: str, line: Mapping[str, Any], raw: bytes, at: int) -> None:
        it = self._it
        if kind == "control_response":
            self._response(line.get("response"))
            return
        identity, request = str(line.get("request_id")), line.get("request")
        if kind == "control_cancel_request":
            it.asks.cancelled(identity)
            it.settle(identity, None, "cancelled")
        elif not isinstance(request, dict):
            return
        elif request.get("subtype") in ASKING:
            question = Question(identity, request, at, self._clock(), self._find_limit(at))
            if identity in it.questions.open:
                return
            if not it.questions.add(question):
                it.respond(identity, {"subtype": "success", "response": denial(question, TOO_MANY)})
                return
            it.record(SAID, raw)
            it.audience.asked(question)
            it.changed()
            it.deny_unheard()
        else:
            it.forward(it.asks.route(identity, request))

    def _find_limit(self, at: int) -> int | None:
        """Return when a question that was asked at `at` is denied, or None if it never is.

        Both times are milliseconds since 1970.
        """
        seconds = self._it.session.question_seconds
        return at + round(1000 * seconds) if math.isfinite(seconds) else None

    def _response(self, response: object) -> None:
        """The answer to a request of ours, or of a client's."""
        it = self._it
        if not isinstance(response, dict):
            return
        request = it.requests.answered(response)
        if request is None:
            return
        said, failed = response.get("response"), response.get("subtype") != "success"
        body = said if isinstance(said, dict) else {}
        if not failed:
            self._learn(request.subtype, body)
        elif request.undo is not None:
            request.undo()
        client = request.client
        if client is None:
            return
        if request.body:
            answer = frame(
                "response",
                id=request.identity,
                response={**response, "request_id": request.identity},
            )
            it.finish(client, request.identity, answer if client.knows("response") else b"")
        elif failed:
            self._refuse(
                client, {"id": request.identity or None}, "failed", str(response.get("error"))
            )
        else:
            it.accept(client, request.identity)

    def _learn(self, subtype: str, body: Mapping[str, Any]) -> None:
        """What an answer of the conversation says of it."""
        it = self._it
        if subtype == "initialize":
            it.initialize = body
        elif subtype == "set_model":
            it.session = it.session._replace(model=body.get("model"))
            it.audience.changed()
        elif subtype == "set_permission_mode" and isinstance(body.get("mode"), str):
            it.session = it.session._replace(mode=body["mode"])
            it.audience.changed()
        elif subtype == "cancel_async_message" and body.get("cancelled") is True:
            it.taken(body.get("message_uuid"))


def _read(raw: bytes) -> tuple[Mapping[str, Any], bytes]:
    """A line as an object, and as the JSON that it is told as: what is none is told as a text."""
    try:
        line = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return {}, dump(raw.decode("utf-8", "replace"))
    return line if isinstance(line, dict) else {}, raw
