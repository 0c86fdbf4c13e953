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
    encode_line_frame,
    encode_partial_frame,
    parse_frame,
    parse_request_id,
)
from shim.core.bridge.log import STDOUT_LETTER, LogEntry, LogRecord
from shim.core.bridge.obedience import FrameHandlers
from shim.core.bridge.questions import (
    PROMPT_SUBTYPES,
    SESSION_ENDED,
    TOO_MANY,
    PendingPrompt,
    build_denial,
    build_timeout_denial,
)
from shim.core.bridge.requests import ControlRequest
from shim.core.bridge.session import HubSession
from shim.core.reading.json_text import dump_json
from shim.core.reading.lines import MAX_LINE_BYTES, LineSplitter

MAX_OUTGOING_BYTES = 256 * 1024  # that are given for one write to a client
MAX_BAD_FRAMES = 100  # of a client that cannot be read; then it is no client
CONTROL_TYPES = ("control_request", "control_response", "control_cancel_request")


class Hub:
    """`generation` is this life of the host, `number` that of the last line in the log.

    `mint` gives a fresh UUID, `wall` milliseconds since 1970, `clock` seconds that never go back.
    `known` are the ids of messages that former lives have taken.
    """

    def __init__(
        self,
        session: HubSession,
        *,
        generation: int,
        number: int,
        create_id: Callable[[], str],
        now_ms: Callable[[], int],
        clock: Callable[[], float],
        taken_ids: Iterable[str] = (),
    ) -> None:
        self._state = HubState(session, generation, number, create_id, now_ms, taken_ids)
        self._frame_handlers = FrameHandlers(self._state)
        self._clock = clock
        self._lines = LineSplitter(MAX_LINE_BYTES)

    # -- what the host tells -----------------------------------------------------------------------

    def open(self) -> None:
        """The conversation can hear us: it is asked for its `initialize`."""
        self._state.send_request({"subtype": "initialize"}, ControlRequest(None, "", "initialize"))
        self._state.report_changes()

    def send_prompt(self, message: Mapping[str, Any], uuid: str) -> None:
        """The message that the session was started with. RefusedError as for a client's; it is said
        once, as those.
        """
        if ("", uuid) not in self._state.message_ids:
            self._state.send_message(message, uuid)
            self._state.message_ids["", uuid] = True

    def set_notice(self, text: str) -> None:
        """Send a sentence about the host to all clients that connect from now on."""
        self._state.notice = text

    def add_client(self, client: int) -> None:
        """Somebody has connected. `client` is a number of the host's that never comes again."""
        joined = self._state.subscribers.add_client(client, self._clock())
        if self._state.end_reason:
            self._state.subscribers.drop_client(joined, self._state.end_reason)

    def on_client_frame(self, client: int, raw: bytes) -> None:
        """A line of a client, without its newline."""
        heard = self._state.subscribers.clients.get(client)
        if heard is None or heard.is_dropped or not raw.strip():
            return
        said: Mapping[str, Any] = {}
        try:
            if len(raw) > self._state.session.max_frame_bytes:
                raise FrameError(
                    f"a frame has at most {self._state.session.max_frame_bytes} bytes (max_inbound_bytes)"
                )
            said = parse_frame(raw)
            if (said["kind"] == "hello") != (heard.hello is None):
                raise FrameError("hello is the first frame, and comes once")
            if heard.hello is None:
                self._frame_handlers.welcome_client(heard, said)
            else:
                self._frame_handlers.dispatch_frame(heard, said)
        except RefusedError as error:
            self._refuse_frame(heard, said, error.reason, str(error))
        except FrameError as error:
            self._refuse_frame(heard, said, "bad-frame", str(error))
            heard.bad_frame_count += 1
            if heard.hello is None or heard.bad_frame_count >= MAX_BAD_FRAMES:
                self._state.subscribers.drop_client(heard, "its frames cannot be read")

    def _refuse_frame(
        self, client: Client, said: Mapping[str, Any], reason: str, text: str
    ) -> None:
        try:
            mark = parse_request_id(said) or None
        except FrameError:
            mark = None
        driver = (
            {"driver": self._state.roles.controller_name}
            if reason in ("not-driver", "not-owner")
            else {}
        )
        self._state.subscribers.send_frame(
            client, encode_frame("refused", id=mark, reason=reason, text=text, **driver)
        )

    def remove_client(self, client: int) -> None:
        """A client's connection is closed, by whichever side."""
        gone = self._state.subscribers.remove_client(client)
        if gone is None:
            return
        self._state.control_requests.detach_client(gone)
        for ask in self._state.callbacks.remove_client(gone):
            self._state.forward_callback(ask._replace(client=None))
        self._state.restrictions.remove_client(client)
        self._state.release_restrictions()
        if self._state.roles.controller is gone:
            self._state.set_controller(None)
        self._state.deny_unanswerable_prompts()

    def feed_stdout(self, data: bytes) -> None:
        """Bytes of the conversation's stdout: lines of Claude's stream-json."""
        it, spoken, records, at = (
            self._state,
            list[LineFrame](),
            list[LogRecord](),
            self._state.now_ms(),
        )

        def tell() -> None:
            if records:
                it.commands.append(AppendRecords(tuple(records)))
                records.clear()
            it.subscribers.send_lines(spoken)
            spoken.clear()

        for raw in self._lines.feed(data):
            if not raw:
                continue
            line, shown = _parse_line(raw)
            kind = line.get("type")
            if kind == "stream_event":
                partial = encode_partial_frame(at, shown)
                spoken.append(
                    LineFrame(partial, 0, it.subscribers.partial_block.add_partial(line, partial))
                )
            elif kind == "keep_alive":
                continue
            elif kind in CONTROL_TYPES:
                tell()
                self._route_control_line(str(kind), line, raw, at)
            else:
                if kind == "result" and it.prompts.open:
                    tell()
                    it.resolve_all_prompts(None, "ended")
                it.subscribers.last_number += 1
                records.append(LogRecord(STDOUT_LETTER, at, shown, it.subscribers.last_number))
                whole = encode_line_frame(
                    it.subscribers.last_number, it.subscribers.generation, at, shown
                )
                spoken.append(LineFrame(whole, it.subscribers.last_number))
                self._record_line(line)
        tell()
        it.release_restrictions()
        it.report_changes()

    def deliver_log_entries(self, client: int, after: int, entries: Sequence[LogEntry]) -> None:
        """What a `Read` behind `after` has found; nothing if the log does not have it any more."""
        self._state.subscribers.deliver_log_entries(client, after, entries)

    def tick(self) -> None:
        """Time goes by: to be called at least once a second."""
        it, now = self._state, self._clock()
        it.report_details()
        it.subscribers.drop_silent_clients(now)
        for overdue in it.prompts.list_overdue(now, it.session.prompt_timeout_s):
            question = it.prompts.open[overdue]
            it.status.record_timeout(question.request)
            it.resolve_prompt(overdue, None, "timeout", build_timeout_denial(question))

    def close(self, reason: str, failed: str = "") -> None:
        """The session is over: open questions are denied, and everybody is told. `failed` says why,
        where nobody stopped it."""
        it = self._state
        if it.end_reason:
            return
        it.end_reason = reason
        it.resolve_all_prompts(None, "ended", SESSION_ENDED)
        it.status.record_end(failed, has_messages=bool(it.waiting_messages))
        it.report_changes()
        it.refuse_waiting_messages()
        for client in list(it.subscribers.clients.values()):
            it.subscribers.drop_client(client, reason)

    def count_unanswered(self) -> int:
        """Return the number of messages without a result: waiting messages, and the message of the
        current turn.
        """
        return len(self._state.waiting_messages) + self._state.status.is_turn_active

    # -- what the host has to do -------------------------------------------------------------------

    def take_commands(self) -> list[HubCommand]:
        """The commands since the last call."""
        taken = self._state.commands[:]
        self._state.commands.clear()
        return taken

    def list_ready_clients(self) -> list[int]:
        """The clients for whom something waits to be written; none before the commands were taken."""
        return [] if self._state.commands else self._state.subscribers.list_ready()

    def take_outgoing(self, client: int, most: int = MAX_OUTGOING_BYTES) -> bytes:
        """The next frames for a client, about `most` bytes: at least one frame, and never a part of
        one.
        """
        return self._state.subscribers.take_outgoing(client, most)

    @property
    def controller_name(self) -> str | None:
        """The name of the client that drives."""
        return self._state.roles.controller_name

    @property
    def client_count(self) -> int:
        """How many have said hello."""
        return sum(1 for _ in self._state.subscribers)

    @property
    def is_busy(self) -> bool:
        """Whether a turn runs, or a message waits for its turn."""
        return self._state.status.is_turn_active or bool(self._state.waiting_messages)

    @property
    def status_fields(self) -> dict[str, Any]:
        """The state, as in a `state` frame."""
        return self._state.format_status()

    # -- what a line says --------------------------------------------------------------------------

    def _record_line(self, line: Mapping[str, Any]) -> None:
        it, kind = self._state, line.get("type")
        it.subscribers.partial_block.end_with_line(line)
        if kind == "user" and line.get("isReplay") is True:
            it.record_answered_message(line.get("uuid"))
        elif kind == "result":
            it.turn_client_number = None
        elif kind == "system":
            self._record_system_line(line)
        it.status.record_line(line)

    def _record_system_line(self, line: Mapping[str, Any]) -> None:
        it = self._state
        if line.get("subtype") == "init":
            it.init_line = line
            model = line.get("model")
            it.session = it.session._replace(
                model=model if isinstance(model, str) else it.session.model
            )
        mode = line.get("permissionMode")
        if isinstance(mode, str) and mode:
            it.record_reported_mode(mode)

    def _route_control_line(self, kind: str, line: Mapping[str, Any], raw: bytes, at: int) -> None:
        it = self._state
        if kind == "control_response":
            self._record_response(line.get("response"))
            return
        identity, request = str(line.get("request_id")), line.get("request")
        if kind == "control_cancel_request":
            it.callbacks.cancel(identity)
            it.resolve_prompt(identity, None, "cancelled")
        elif not isinstance(request, dict):
            return
        elif request.get("subtype") in PROMPT_SUBTYPES:
            question = PendingPrompt(identity, request, at, self._clock(), self._find_deadline(at))
            if identity in it.prompts.open:
                return
            if not it.prompts.add(question):
                it.send_response(
                    identity, {"subtype": "success", "response": build_denial(question, TOO_MANY)}
                )
                return
            it.log_record(STDOUT_LETTER, raw)
            it.subscribers.send_prompt(question)
            it.report_changes()
            it.deny_unanswerable_prompts()
        else:
            it.forward_callback(it.callbacks.route(identity, request))

    def _find_deadline(self, at: int) -> int | None:
        """Return when a question that was asked at `at` is denied, or None if it never is.

        Both times are milliseconds since 1970.
        """
        seconds = self._state.session.prompt_timeout_s
        return at + round(1000 * seconds) if math.isfinite(seconds) else None

    def _record_response(self, response: object) -> None:
        """The answer to a request of ours, or of a client's."""
        it = self._state
        if not isinstance(response, dict):
            return
        request = it.control_requests.pop_answered(response)
        if request is None:
            return
        said, failed = response.get("response"), response.get("subtype") != "success"
        body = said if isinstance(said, dict) else {}
        if not failed:
            self._apply_response(request.subtype, body)
        elif request.undo is not None:
            request.undo()
        client = request.client
        if client is None:
            return
        if request.wants_body:
            answer = encode_frame(
                "response",
                id=request.request_id,
                response={**response, "request_id": request.request_id},
            )
            it.finish_frame(
                client, request.request_id, answer if client.accepts_kind("response") else b""
            )
        elif failed:
            self._refuse_frame(
                client, {"id": request.request_id or None}, "failed", str(response.get("error"))
            )
        else:
            it.accept_frame(client, request.request_id)

    def _apply_response(self, subtype: str, body: Mapping[str, Any]) -> None:
        """What an answer of the conversation says of it."""
        it = self._state
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


def _parse_line(raw: bytes) -> tuple[Mapping[str, Any], bytes]:
    """A line as an object, and as the JSON that it is told as: what is none is told as a text."""
    try:
        line = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return {}, dump_json(raw.decode("utf-8", "replace"))
    return line if isinstance(line, dict) else {}, raw
