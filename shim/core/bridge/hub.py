"""The hub of a session: the conversation on one side, any number of clients on the other.

Sans-IO. The host tells it what came (`add_client`, `on_client_frame`, `remove_client`,
`feed_stdout`, `tick`, `deliver_log_entries`, `close`), carries out what `take_commands` gives back,
in its order, and only then writes what `take_outgoing_frames` gives for each client of
`list_ready_clients`: so nothing is told to anybody that is not in the log. `take_outgoing_frames`
may leave commands too.

    hub = SessionHub(session, generation=2, number=log.last_number, create_id=create_uuid,
        now_ms=milliseconds, clock=time.monotonic)
    hub.send_initialize()                       # asks the conversation for its `initialize`
    hub.add_client(1); hub.on_client_frame(1, b'{"kind":"hello",…}')
    for command in hub.take_commands(): …       # the classes of `HubCommand`
    for client in hub.list_ready_clients(): socket.send(hub.take_outgoing_frames(client))
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import orjson

from shim.core.bridge.client import ConnectedClient
from shim.core.bridge.commands import AppendLogRecords, SessionHubCommand
from shim.core.bridge.frames import (
    FrameError,
    FrameRefusedError,
    encode_frame,
    encode_line_frame,
    encode_partial_line_frame,
    parse_frame,
    parse_request_id,
)
from shim.core.bridge.handlers import ClientFrameHandlers
from shim.core.bridge.hub_state import SessionHubState
from shim.core.bridge.log import STDOUT_LETTER, SessionLogEntry, SessionLogRecord
from shim.core.bridge.prompts import (
    PROMPT_SUBTYPES,
    SESSION_ENDED,
    TOO_MANY,
    PendingPrompt,
    build_prompt_denial,
    build_timeout_denial,
)
from shim.core.bridge.requests import ControlRequest
from shim.core.bridge.status import BackgroundSessionInfo
from shim.core.bridge.subscribers import LineFrame
from shim.core.reading.json_text import dump_json
from shim.core.reading.lines import MAX_LINE_BYTES, LineSplitter

MAX_OUTGOING_BYTES = 256 * 1024  # that are given for one write to a client
MAX_BAD_FRAMES = 100  # of a client that cannot be read; then it is no client
CONTROL_TYPES = ("control_request", "control_response", "control_cancel_request")


class SessionHub:
    """`generation` is this life of the host, `number` that of the last line in the log.

    `create_id` gives a fresh UUID, `now_ms` milliseconds since 1970, `clock` seconds that never go
    back. `taken_ids` are the ids of messages that former lives have taken.
    """

    def __init__(
        self,
        session: BackgroundSessionInfo,
        *,
        generation: int,
        number: int,
        create_id: Callable[[], str],
        now_ms: Callable[[], int],
        clock: Callable[[], float],
        taken_ids: Iterable[str] = (),
    ) -> None:
        self._state = SessionHubState(session, generation, number, create_id, now_ms, taken_ids)
        self._frame_handlers = ClientFrameHandlers(self._state)
        self._clock = clock
        self._lines = LineSplitter(MAX_LINE_BYTES)

    # -- what the host tells -----------------------------------------------------------------------

    def send_initialize(self) -> None:
        """The conversation can hear us: it is asked for its `initialize`."""
        self._state.send_control_request(
            {"subtype": "initialize"}, ControlRequest(None, "", "initialize")
        )
        self._state.report_metadata_changes()

    def send_first_message(self, message: Mapping[str, Any], uuid: str) -> None:
        """The message that the session was started with. FrameRefusedError as for a client's; it is
        said once, as those.
        """
        if ("", uuid) not in self._state.message_ids:
            self._state.send_message(message, uuid)
            self._state.message_ids["", uuid] = True

    def set_notice_for_new_clients(self, text: str) -> None:
        """Send a sentence about the host to all clients that connect from now on."""
        self._state.notice = text

    def add_client(self, client_number: int) -> None:
        """Somebody has connected. `client_number` is a number of the host's that never comes again."""
        client = self._state.subscribers.add_client(client_number, self._clock())
        if self._state.end_reason:
            self._state.subscribers.drop_client(client, self._state.end_reason)

    def on_client_frame(self, client_number: int, raw: bytes) -> None:
        """A line of a client, without its newline."""
        client = self._state.subscribers.clients.get(client_number)
        if client is None or client.is_dropped or not raw.strip():
            return
        frame: Mapping[str, Any] = {}
        try:
            if len(raw) > self._state.session.max_frame_bytes:
                raise FrameError(
                    f"a frame has at most {self._state.session.max_frame_bytes} bytes (max_inbound_bytes)"
                )
            frame = parse_frame(raw)
            if (frame["kind"] == "hello") != (client.hello is None):
                raise FrameError("hello is the first frame, and comes once")
            if client.hello is None:
                self._frame_handlers.welcome_client(client, frame)
            else:
                self._frame_handlers.dispatch_frame(client, frame)
        except FrameRefusedError as error:
            self._refuse_frame(client, frame, error.reason, str(error))
        except FrameError as error:
            self._refuse_frame(client, frame, "bad-frame", str(error))
            client.bad_frame_count += 1
            if client.hello is None or client.bad_frame_count >= MAX_BAD_FRAMES:
                self._state.subscribers.drop_client(client, "its frames cannot be read")

    def _refuse_frame(
        self, client: ConnectedClient, frame: Mapping[str, Any], reason: str, text: str
    ) -> None:
        try:
            request_id = parse_request_id(frame) or None
        except FrameError:
            request_id = None
        controller_fields = (
            {"driver": self._state.roles.controller_name}
            if reason in ("not-driver", "not-owner")
            else {}
        )
        self._state.subscribers.send_reply_frame(
            client,
            encode_frame("refused", id=request_id, reason=reason, text=text, **controller_fields),
        )

    def remove_client(self, client_number: int) -> None:
        """A client's connection is closed, by whichever side."""
        client = self._state.subscribers.remove_client(client_number)
        if client is None:
            return
        self._state.control_requests.detach_client(client)
        for callback in self._state.callbacks.remove_client(client):
            self._state.forward_callback_request(callback._replace(client=None))
        self._state.restrictions.remove_client(client_number)
        self._state.lift_restrictions_of_left_clients()
        if self._state.roles.controller is client:
            self._state.set_controller(None)
        self._state.deny_unanswerable_prompts()

    def feed_stdout(self, data: bytes) -> None:
        """Bytes of the conversation's stdout: lines of Claude's stream-json."""
        state, frames, records, at_ms = (
            self._state,
            list[LineFrame](),
            list[SessionLogRecord](),
            self._state.now_ms(),
        )

        def flush_lines() -> None:
            if records:
                state.commands.append(AppendLogRecords(tuple(records)))
                records.clear()
            state.subscribers.send_lines(frames)
            frames.clear()

        for raw in self._lines.feed(data):
            if not raw:
                continue
            line, json_line = _parse_line(raw)
            kind = line.get("type")
            if kind == "stream_event":
                partial_frame = encode_partial_line_frame(at_ms, json_line)
                frames.append(
                    LineFrame(
                        partial_frame,
                        0,
                        state.subscribers.partial_block.add_partial_line(line, partial_frame),
                    )
                )
            elif kind == "keep_alive":
                continue
            elif kind in CONTROL_TYPES:
                flush_lines()
                self._route_control_line(str(kind), line, raw, at_ms)
            else:
                if kind == "result" and state.prompts.open:
                    flush_lines()
                    state.resolve_all_prompts(None, "ended")
                state.subscribers.last_number += 1
                records.append(
                    SessionLogRecord(STDOUT_LETTER, at_ms, json_line, state.subscribers.last_number)
                )
                line_frame = encode_line_frame(
                    state.subscribers.last_number, state.subscribers.generation, at_ms, json_line
                )
                frames.append(LineFrame(line_frame, state.subscribers.last_number))
                self._record_line(line)
        flush_lines()
        state.lift_restrictions_of_left_clients()
        state.report_metadata_changes()

    def deliver_log_entries(
        self, client_number: int, after_number: int, entries: Sequence[SessionLogEntry]
    ) -> None:
        """What a `ReadLog` behind `after_number` has found; nothing if the log does not have it any
        more.
        """
        self._state.subscribers.deliver_log_entries(client_number, after_number, entries)

    def tick(self) -> None:
        """Time goes by: to be called at least once a second."""
        state, now_s = self._state, self._clock()
        state.report_status_detail_changes()
        state.subscribers.drop_clients_without_hello(now_s)
        for prompt_id in state.prompts.list_overdue_prompt_ids(
            now_s, state.session.prompt_timeout_s
        ):
            prompt = state.prompts.open[prompt_id]
            state.status.record_prompt_timeout(prompt.request)
            state.resolve_prompt(prompt_id, None, "timeout", build_timeout_denial(prompt))

    def close(self, reason: str, failure: str = "") -> None:
        """The session is over: open questions are denied, and everybody is told. `failure` says
        why, where nobody stopped it."""
        state = self._state
        if state.end_reason:
            return
        state.end_reason = reason
        state.resolve_all_prompts(None, "ended", SESSION_ENDED)
        state.status.record_session_end(failure, has_messages=bool(state.waiting_messages))
        state.report_metadata_changes()
        state.refuse_waiting_messages()
        for client in list(state.subscribers.clients.values()):
            state.subscribers.drop_client(client, reason)

    def count_unanswered_messages(self) -> int:
        """Return the number of messages without a result: waiting messages, and the message of the
        current turn.
        """
        return len(self._state.waiting_messages) + self._state.status.is_turn_active

    # -- what the host has to do -------------------------------------------------------------------

    def take_commands(self) -> list[SessionHubCommand]:
        """The commands since the last call."""
        commands = self._state.commands[:]
        self._state.commands.clear()
        return commands

    def list_ready_clients(self) -> list[int]:
        """The clients for whom something waits to be written; none before the commands were taken."""
        return [] if self._state.commands else self._state.subscribers.list_ready_clients()

    def take_outgoing_frames(
        self, client_number: int, max_bytes: int = MAX_OUTGOING_BYTES
    ) -> bytes:
        """The next frames for a client, about `max_bytes` bytes: at least one frame, and never a
        part of one.
        """
        return self._state.subscribers.take_outgoing_frames(client_number, max_bytes)

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
        return self._state.build_status_fields()

    # -- what a line says --------------------------------------------------------------------------

    def _record_line(self, line: Mapping[str, Any]) -> None:
        state, kind = self._state, line.get("type")
        state.subscribers.partial_block.feed_complete_line(line)
        if kind == "user" and line.get("isReplay") is True:
            state.record_answered_message(line.get("uuid"))
        elif kind == "result":
            state.turn_client_number = None
        elif kind == "system":
            self._record_system_line(line)
        state.status.record_stream_json_line(line)

    def _record_system_line(self, line: Mapping[str, Any]) -> None:
        state = self._state
        if line.get("subtype") == "init":
            state.init_line = line
            model = line.get("model")
            state.session = state.session._replace(
                model=model if isinstance(model, str) else state.session.model
            )
        mode = line.get("permissionMode")
        if isinstance(mode, str) and mode:
            state.record_reported_permission_mode(mode)

    def _route_control_line(
        self, kind: str, line: Mapping[str, Any], raw: bytes, at_ms: int
    ) -> None:
        state = self._state
        if kind == "control_response":
            self._record_response(line.get("response"))
            return
        request_id, request = str(line.get("request_id")), line.get("request")
        if kind == "control_cancel_request":
            state.callbacks.cancel_callback(request_id)
            state.resolve_prompt(request_id, None, "cancelled")
        elif not isinstance(request, dict):
            return
        elif request.get("subtype") in PROMPT_SUBTYPES:
            prompt = PendingPrompt(
                request_id, request, at_ms, self._clock(), self._find_deadline(at_ms)
            )
            if request_id in state.prompts.open:
                return
            if not state.prompts.add(prompt):
                state.send_control_response(
                    request_id,
                    {"subtype": "success", "response": build_prompt_denial(prompt, TOO_MANY)},
                )
                return
            state.append_log_record(STDOUT_LETTER, raw)
            state.subscribers.send_prompt(prompt)
            state.report_metadata_changes()
            state.deny_unanswerable_prompts()
        else:
            state.forward_callback_request(state.callbacks.route_callback(request_id, request))

    def _find_deadline(self, at_ms: int) -> int | None:
        """Return when a question that was asked at `at_ms` is denied, or None if it never is.

        Both times are milliseconds since 1970.
        """
        timeout_s = self._state.session.prompt_timeout_s
        return at_ms + round(1000 * timeout_s) if math.isfinite(timeout_s) else None

    def _record_response(self, response: object) -> None:
        """The answer to a request of ours, or of a client's."""
        state = self._state
        if not isinstance(response, dict):
            return
        request = state.control_requests.pop_answered_request(response)
        if request is None:
            return
        response_body, has_failed = response.get("response"), response.get("subtype") != "success"
        body = response_body if isinstance(response_body, dict) else {}
        if not has_failed:
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
            state.send_frame_answer(
                client, request.request_id, answer if client.accepts_frame_kind("response") else b""
            )
        elif has_failed:
            self._refuse_frame(
                client, {"id": request.request_id or None}, "failed", str(response.get("error"))
            )
        else:
            state.send_accepted_frame(client, request.request_id)

    def _apply_response(self, subtype: str, body: Mapping[str, Any]) -> None:
        """What an answer of the conversation says of it."""
        state = self._state
        if subtype == "initialize":
            state.initialize_response = body
        elif subtype == "set_model":
            state.session = state.session._replace(model=body.get("model"))
            state.subscribers.queue_state_update()
        elif subtype == "set_permission_mode" and isinstance(body.get("mode"), str):
            state.session = state.session._replace(mode=body["mode"])
            state.subscribers.queue_state_update()
        elif subtype == "cancel_async_message" and body.get("cancelled") is True:
            state.remove_waiting_message(body.get("message_uuid"))


def _parse_line(raw: bytes) -> tuple[Mapping[str, Any], bytes]:
    """A line as an object, and as the JSON that it is told as: what is none is told as a text."""
    try:
        line = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return {}, dump_json(raw.decode("utf-8", "replace"))
    return line if isinstance(line, dict) else {}, raw
