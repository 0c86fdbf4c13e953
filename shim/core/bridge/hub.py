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

from shim.core.bridge.audience import LineFrame
from shim.core.bridge.client import Client
from shim.core.bridge.commands import AppendRecords, HubCommand
from shim.core.bridge.conversation import HubState
from shim.core.bridge.frames import (
    FrameError,
    RefusedError,
    encode_frame,
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
        self._it = HubState(session, generation, number, mint, wall, known)
        self._obedience = Obedience(self._it)
        self._clock = clock
        self._lines = LineSplitter(INBOUND_BYTES)

    # -- what the host tells -----------------------------------------------------------------------

    def open(self) -> None:
        """The conversation can hear us: it is asked for its `initialize`."""
        self._it.send_request({"subtype": "initialize"}, Request(None, "", "initialize"))
        self._it.report_changes()

    def prompt(self, message: Mapping[str, Any], uuid: str) -> None:
        """The message that the session was started with. RefusedError as for a client's; it is said
        once, as those.
        """
        if ("", uuid) not in self._it.message_ids:
            self._it.send_message(message, uuid)
            self._it.message_ids["", uuid] = True

    def set_notice(self, text: str) -> None:
        """Send a sentence about the host to all clients that connect from now on."""
        self._it.notice = text

    def joined(self, client: int) -> None:
        """Somebody has connected. `client` is a number of the host's that never comes again."""
        joined = self._it.subscribers.add_client(client, self._clock())
        if self._it.end_reason:
            self._it.subscribers.drop_client(joined, self._it.end_reason)

    def heard(self, client: int, raw: bytes) -> None:
        """A line of a client, without its newline."""
        heard = self._it.subscribers.clients.get(client)
        if heard is None or heard.is_dropped or not raw.strip():
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
            heard.bad_frame_count += 1
            if heard.hello is None or heard.bad_frame_count >= BAD_FRAMES:
                self._it.subscribers.drop_client(heard, "its frames cannot be read")

    def _refuse(self, client: Client, said: Mapping[str, Any], reason: str, text: str) -> None:
        try:
            mark = identity(said) or None
        except FrameError:
            mark = None
        driver = (
            {"driver": self._it.roles.controller_name}
            if reason in ("not-driver", "not-owner")
            else {}
        )
        self._it.subscribers.send_frame(
            client, encode_frame("refused", id=mark, reason=reason, text=text, **driver)
        )

    def left(self, client: int) -> None:
        """A client's connection is closed, by whichever side."""
        gone = self._it.subscribers.remove_client(client)
        if gone is None:
            return
        self._it.control_requests.left(gone)
        for ask in self._it.callbacks.left(gone):
            self._it.forward_callback(ask._replace(client=None))
        self._it.restrictions.left(client)
        self._it.release_restrictions()
        if self._it.roles.controller is gone:
            self._it.set_controller(None)
        self._it.deny_unanswerable_prompts()

    def said(self, data: bytes) -> None:
        """Bytes of the conversation's stdout: lines of Claude's stream-json."""
        it, spoken, records, at = self._it, list[LineFrame](), list[Record](), self._it.now_ms()

        def tell() -> None:
            if records:
                it.commands.append(AppendRecords(tuple(records)))
                records.clear()
            it.subscribers.send_lines(spoken)
            spoken.clear()

        for raw in self._lines.feed(data):
            if not raw:
                continue
            line, shown = _read(raw)
            kind = line.get("type")
            if kind == "stream_event":
                partial = partial_frame(at, shown)
                spoken.append(
                    LineFrame(partial, 0, it.subscribers.partial_block.partial(line, partial))
                )
            elif kind == "keep_alive":
                continue
            elif kind in CONTROL:
                tell()
                self._control(str(kind), line, raw, at)
            else:
                if kind == "result" and it.prompts.open:
                    tell()
                    it.resolve_all_prompts(None, "ended")
                it.subscribers.last_number += 1
                records.append(Record(SAID, at, shown, it.subscribers.last_number))
                whole = line_frame(it.subscribers.last_number, it.subscribers.generation, at, shown)
                spoken.append(LineFrame(whole, it.subscribers.last_number))
                self._whole(line)
        tell()
        it.release_restrictions()
        it.report_changes()

    def replayed(self, client: int, after: int, entries: Sequence[Entry]) -> None:
        """What a `Read` behind `after` has found; nothing if the log does not have it any more."""
        self._it.subscribers.deliver_log_entries(client, after, entries)

    def tick(self) -> None:
        """Time goes by: to be called at least once a second."""
        it, now = self._it, self._clock()
        it.report_details()
        it.subscribers.drop_silent_clients(now)
        for overdue in it.prompts.overdue(now, it.session.question_seconds):
            question = it.prompts.open[overdue]
            it.status.time_out(question.request)
            it.resolve_prompt(overdue, None, "timeout", late(question))

    def close(self, reason: str, failed: str = "") -> None:
        """The session is over: open questions are denied, and everybody is told. `failed` says why,
        where nobody stopped it."""
        it = self._it
        if it.end_reason:
            return
        it.end_reason = reason
        it.resolve_all_prompts(None, "ended", LEFT)
        it.status.end(failed, messages=bool(it.waiting_messages))
        it.report_changes()
        it.refuse_waiting_messages()
        for client in list(it.subscribers.clients.values()):
            it.subscribers.drop_client(client, reason)

    def count_unanswered(self) -> int:
        """Return the number of messages without a result: waiting messages, and the message of the
        current turn.
        """
        return len(self._it.waiting_messages) + self._it.status.active

    # -- what the host has to do -------------------------------------------------------------------

    def take(self) -> list[HubCommand]:
        """The commands since the last call."""
        taken = self._it.commands[:]
        self._it.commands.clear()
        return taken

    def ready(self) -> list[int]:
        """The clients for whom something waits to be written; none before the commands were taken."""
        return [] if self._it.commands else self._it.subscribers.list_ready()

    def outgoing(self, client: int, most: int = OUTGOING_BYTES) -> bytes:
        """The next frames for a client, about `most` bytes: at least one frame, and never a part of
        one.
        """
        return self._it.subscribers.take_outgoing(client, most)

    @property
    def driver(self) -> str | None:
        """The name of the client that drives."""
        return self._it.roles.controller_name

    @property
    def clients(self) -> int:
        """How many have said hello."""
        return sum(1 for _ in self._it.subscribers)

    @property
    def running(self) -> bool:
        """Whether a turn runs, or a message waits for its turn."""
        return self._it.status.active or bool(self._it.waiting_messages)

    @property
    def facts(self) -> dict[str, Any]:
        """The state, as in a `state` frame."""
        return self._it.format_status()

    # -- what a line says --------------------------------------------------------------------------

    def _whole(self, line: Mapping[str, Any]) -> None:
        it, kind = self._it, line.get("type")
        it.subscribers.partial_block.whole(line)
        if kind == "user" and line.get("isReplay") is True:
            it.record_answered_message(line.get("uuid"))
        elif kind == "result":
            it.turn_client_number = None
        elif kind == "system":
            self._system(line)
        it.status.line(line)

    def _system(self, line: Mapping[str, Any]) -> None:
        it = self._it
        if line.get("subtype") == "init":
            it.init_line = line
            model = line.get("model")
            it.session = it.session._replace(
                model=model if isinstance(model, str) else it.session.model
            )
        mode = line.get("permissionMode")
        if isinstance(mode, str) and mode:
            it.record_reported_mode(mode)

    def _control(self, kind: str, line: Mapping[str, Any], raw: bytes, at: int) -> None:
        it = self._it
        if kind == "control_response":
            self._response(line.get("response"))
            return
        identity, request = str(line.get("request_id")), line.get("request")
        if kind == "control_cancel_request":
            it.callbacks.cancelled(identity)
            it.resolve_prompt(identity, None, "cancelled")
        elif not isinstance(request, dict):
            return
        elif request.get("subtype") in ASKING:
            question = Question(identity, request, at, self._clock(), self._find_limit(at))
            if identity in it.prompts.open:
                return
            if not it.prompts.add(question):
                it.send_response(
                    identity, {"subtype": "success", "response": denial(question, TOO_MANY)}
                )
                return
            it.log_record(SAID, raw)
            it.subscribers.send_prompt(question)
            it.report_changes()
            it.deny_unanswerable_prompts()
        else:
            it.forward_callback(it.callbacks.route(identity, request))

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
        request = it.control_requests.answered(response)
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
            answer = encode_frame(
                "response",
                id=request.identity,
                response={**response, "request_id": request.identity},
            )
            it.finish_frame(
                client, request.identity, answer if client.accepts_kind("response") else b""
            )
        elif failed:
            self._refuse(
                client, {"id": request.identity or None}, "failed", str(response.get("error"))
            )
        else:
            it.accept_frame(client, request.identity)

    def _learn(self, subtype: str, body: Mapping[str, Any]) -> None:
        """What an answer of the conversation says of it."""
        it = self._it
        if subtype == "initialize":
            it.initialize_response = body
        elif subtype == "set_model":
            it.session = it.session._replace(model=body.get("model"))
            it.subscribers.queue_state_update()
        elif subtype == "set_permission_mode" and isinstance(body.get("mode"), str):
            it.session = it.session._replace(mode=body["mode"])
            it.subscribers.queue_state_update()
        elif subtype == "cancel_async_message" and body.get("cancelled") is True:
            it.remove_waiting(body.get("message_uuid"))


def _read(raw: bytes) -> tuple[Mapping[str, Any], bytes]:
    """A line as an object, and as the JSON that it is told as: what is none is told as a text."""
    try:
        line = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return {}, dump(raw.decode("utf-8", "replace"))
    return line if isinstance(line, dict) else {}, raw
