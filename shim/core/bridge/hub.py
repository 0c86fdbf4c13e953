"""The hub of a background session. It connects one conversation with any number of clients.

The hub does no I/O. `SessionHub` contains the state, and the operations that several handlers
share. The handlers are functions: those for frames from clients are in `handlers.py`, and those for
the conversation's stdout are in `conversation_lines.py`.

The host reports events to the hub and executes the commands from `take_commands` in order.
Afterwards, for each client in `list_ready_clients`, the host writes the frames from
`take_outgoing_frames`. This order ensures that a client never receives a line that is not in the
log. `take_outgoing_frames` may also add commands.

    hub = SessionHub(session, LogHistory(generation=2, last_number=log.last_number),
        create_id=create_uuid, now_ms=milliseconds, clock=time.monotonic)
    hub.send_initialize()                       # sends `initialize` to the conversation
    hub.add_client(1)
    on_client_frame(hub, 1, b'{"kind":"hello",…}')
    for command in hub.take_commands(): …       # the classes of `SessionHubCommand`
    for client in hub.list_ready_clients(): socket.send(hub.take_outgoing_frames(client))
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from shim.core.bridge.client import ClientRoles, ConnectedClient
from shim.core.bridge.commands import (
    AppendLogRecordsCommand,
    SessionHubCommand,
    UpdateSessionMetadataCommand,
    WriteStdinCommand,
)
from shim.core.bridge.frames import FrameRefusedError, encode_frame
from shim.core.bridge.log import NOTE_LETTER, STDIN_LETTER, LogHistory, SessionLogRecord
from shim.core.bridge.prompts import (
    SESSION_ENDED,
    PendingPrompts,
    build_prompt_denial,
)
from shim.core.bridge.requests import (
    CallbackRequest,
    ClientCallbackRouter,
    ControlRequest,
    PendingControlRequests,
)
from shim.core.bridge.status import BackgroundSessionInfo, SessionStatus, derive_session_name
from shim.core.bridge.subscribers import SessionSubscribers
from shim.core.claude.control_responses import build_control_response_line
from shim.core.claude.permissions import NOT_GRANTED_TEXT, PROMPT_TIMEOUT_TEXT
from shim.core.reading import MAX_LINE_BYTES
from shim.core.reading.bounded_dict import BoundedDict
from shim.core.reading.json_text import dump_json
from shim.core.reading.lines import LineSplitter

MAX_OUTGOING_BYTES = 256 * 1024  # the maximum size of one write to a client
MAX_WAITING_MESSAGES = 1000  # the maximum number of messages that wait for their turns
# The maximum number of stored message ids, and of stored answers to frames. A frame with a stored
# id is not processed again.
MAX_STORED_IDS = 1000
MAX_STORED_ANSWER_BYTES = 4096  # longer answers are not stored for repeated frames
PRIORITIES = ("now", "next", "later")
UNANSWERED_TEXT = "the session ended before this message was handled; it was not answered"


class QueuedUserMessage(NamedTuple):
    """A user message that was sent to the conversation and is waiting for its turn."""

    size_bytes: int
    client_number: int = 0  # 0 if the host sent the message, or if its frame had no id
    request_id: str = ""  # the client's frame id


class SessionHub:
    """The state of a background session.

    `create_id` returns a new UUID. `now_ms` returns the milliseconds since 1970. `clock` returns a
    monotonic time in seconds.
    """

    def __init__(
        self,
        session: BackgroundSessionInfo,
        history: LogHistory,
        *,
        create_id: Callable[[], str],
        now_ms: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        self.session = session
        self.create_id = create_id
        self.now_ms = now_ms
        self.clock = clock
        self.commands: list[SessionHubCommand] = []
        self.stdout_splitter = LineSplitter(MAX_LINE_BYTES)
        self.prompts = PendingPrompts()
        self.subscribers = SessionSubscribers(self.commands, self.prompts, history)
        self.roles = ClientRoles(owner_answers=session.answer_policy == "owner")
        self.callbacks = ClientCallbackRouter()
        self.control_requests = PendingControlRequests()
        self.status = SessionStatus()
        self.initialize_response: Any = None
        self.init_line: Any = None
        self.connect_notice = ""  # a sentence about the host for new clients
        self.end_reason = ""  # why the session has ended; "" while it is running
        self.waiting_messages: dict[str, QueuedUserMessage] = {}  # by message UUID
        # The number of the client whose message the current turn answers: 0 if the host sent the
        # message or if its frame had no id, None if the turn does not answer a known message.
        self.turn_client_number: int | None = None
        # The ids of accepted messages. A key is ("", UUID), or the client's name and its frame id.
        self.message_ids = BoundedDict[tuple[str, str], bool](MAX_STORED_IDS)
        for message_id in history.message_ids:
            self.message_ids["", message_id] = True
        # The stored answers to other frames, by client number and frame id.
        self.frame_answers = BoundedDict[tuple[int, str], bytes](MAX_STORED_IDS)
        self._metadata: Mapping[str, Any] = {}

    # -- events from the host ----------------------------------------------------------------------

    def send_initialize(self) -> None:
        """Send an `initialize` request to the conversation. The conversation must already be
        reading its stdin.
        """
        self.send_control_request({"subtype": "initialize"}, ControlRequest(None, "", "initialize"))
        self.report_metadata_changes()

    def send_first_message(self, message: Mapping[str, Any], uuid: str) -> None:
        """Send the session's first message, unless an earlier host has already sent it.

        Raise FrameRefusedError if too many messages are waiting.
        """
        if ("", uuid) not in self.message_ids:
            self.send_message(message, uuid)
            self.message_ids["", uuid] = True

    def set_notice_for_new_clients(self, text: str) -> None:
        """Set a sentence about the host that every new client receives in the `welcome` frame."""
        self.connect_notice = text

    def add_client(self, client_number: int) -> None:
        """Add a client that has connected. The host must not use a client number twice."""
        client = self.subscribers.add_client(client_number, self.clock())
        if self.end_reason:
            self.subscribers.drop_client(client, self.end_reason)

    def apply_timeouts_and_report_changes(self) -> None:
        """Deny overdue prompts, drop clients that sent no hello frame in time, and report changes.
        The host calls this method at least once a second.
        """
        now_s = self.clock()
        self.report_metadata_changes(with_detail=True)
        self.subscribers.drop_clients_without_hello(now_s)
        for prompt_id in self.prompts.list_overdue_prompt_ids(now_s, self.session.prompt_timeout_s):
            prompt = self.prompts.open[prompt_id]
            self.status.record_prompt_timeout(prompt.request)
            self.resolve_prompt(
                prompt_id, None, "timeout", build_prompt_denial(prompt, PROMPT_TIMEOUT_TEXT)
            )

    def close(self, reason: str, failure: str = "") -> None:
        """End the session. Open prompts are denied, and all clients receive a `bye` frame.

        If the session has ended by itself, `failure` is the reason. Otherwise `failure` is "".
        """
        if self.end_reason:
            return
        self.end_reason = reason
        self.resolve_all_prompts(None, "ended", SESSION_ENDED)
        self.status.record_session_end(failure, has_messages=bool(self.waiting_messages))
        self.report_metadata_changes()
        self._refuse_waiting_messages()
        for client in list(self.subscribers.clients.values()):
            self.subscribers.drop_client(client, reason)

    def take_commands(self) -> list[SessionHubCommand]:
        """Remove and return the commands since the last call."""
        commands = self.commands[:]
        self.commands.clear()
        return commands

    def list_ready_clients(self) -> list[int]:
        """Return the numbers of the clients that have frames to write. As long as commands are
        waiting to be taken, the list is empty.
        """
        if self.commands:
            return []
        return self.subscribers.list_ready_clients()

    def take_outgoing_frames(
        self, client_number: int, max_bytes: int = MAX_OUTGOING_BYTES
    ) -> bytes:
        """Remove and return a client's next frames: at least one complete frame, and about
        `max_bytes` bytes.
        """
        data = self.subscribers.take_outgoing_frames(client_number, max_bytes)
        if self.subscribers.take_stale_state_flag(client_number):
            data += self._encode_state()
        return data

    # -- the current state -------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether a turn is running, or a message is waiting for its turn."""
        if self.status.is_turn_active:
            return True
        return bool(self.waiting_messages)

    def count_unanswered_messages(self) -> int:
        """Return the number of user messages without a result. These are the waiting messages and
        the current turn's message.
        """
        return len(self.waiting_messages) + self.status.is_turn_active

    def build_status_fields(self) -> dict[str, Any]:
        """Return the status fields of a `state` frame."""
        requests = [prompt.request for prompt in self.prompts.open.values()]
        return self.status.build_status_fields(requests, bool(self.waiting_messages))

    def _encode_state(self) -> bytes:
        state = encode_frame(
            "state",
            **self.build_status_fields(),
            model=self.session.model,
            mode=self.session.mode,
        )
        return state + encode_frame("driver", client=self.roles.controller_name)

    def report_metadata_changes(self, *, with_detail: bool = False) -> None:
        """Update `host.json` and notify the clients if the session's status, controller or name has
        changed.

        The status detail changes often. A change that affects only the detail is ignored unless
        `with_detail` is set, which happens about once a second.
        """
        metadata = {
            **self.build_status_fields(),
            "driver": self.roles.controller_name,
            "name": self.session.name or None,
        }
        old_detail = {}
        if not with_detail:
            old_detail = {"detail": self._metadata.get("detail")}
        if {**metadata, **old_detail} != self._metadata:
            self._metadata = metadata
            self.commands.append(UpdateSessionMetadataCommand(metadata))
            self.subscribers.queue_state_update()

    # -- the conversation and the log --------------------------------------------------------------

    def queue_stdin_line(self, line: Mapping[str, Any]) -> None:
        """Queue a command that writes a line to the conversation's stdin."""
        self.commands.append(WriteStdinCommand(dump_json(line) + b"\n"))

    def append_log_record(self, stream_letter: str, data: bytes) -> None:
        """Append a record to the session log. The record has no line number."""
        self.commands.append(
            AppendLogRecordsCommand((SessionLogRecord(stream_letter, self.now_ms(), data),))
        )

    def append_note_to_session_log(self, kind: str, **fields: object) -> None:
        """Append a note to the session log."""
        self.append_log_record(NOTE_LETTER, dump_json({"kind": kind, **fields}))

    def send_control_request(self, body: Mapping[str, Any], request: ControlRequest) -> None:
        """Send a control request to the conversation.

        Raise FrameRefusedError if the client already has too many pending requests.
        """
        self.control_requests.check_limit(request.client)
        request_id = self.create_id()
        self.control_requests.add(request_id, request)
        self.queue_stdin_line(
            {"type": "control_request", "request_id": request_id, "request": body}
        )

    def send_control_response(self, request_id: str, response: Mapping[str, Any]) -> None:
        """Send the response to one of the conversation's control requests."""
        self.queue_stdin_line(build_control_response_line({**response, "request_id": request_id}))

    def forward_callback(self, callback: CallbackRequest) -> None:
        """Forward a callback request to its client. If the request has no client, a fallback
        response is sent to the conversation.
        """
        if callback.client is None:
            response = self.callbacks.build_fallback_response(callback)
            self.send_control_response(callback.request_id, response)
            return
        frame = encode_frame("ask", id=callback.request_id, request=callback.request)
        self.subscribers.send_reply_frame(callback.client, frame)

    # -- messages ----------------------------------------------------------------------------------

    def send_message(
        self,
        message: Mapping[str, Any],
        uuid: str,
        *,
        priority: object = None,
        client_number: int = 0,
        request_id: str = "",
    ) -> None:
        """Log a user message and send it to the conversation.

        Raise FrameRefusedError if too many messages are waiting.
        """
        line: dict[str, Any] = {
            "type": "user",
            "message": message,
            "parent_tool_use_id": None,
            "uuid": uuid,
        }
        if priority in PRIORITIES:
            line["priority"] = priority
        data = dump_json(line)
        self._check_message_limits(len(data))
        if not self.session.name:
            self.session = self.session._replace(name=derive_session_name(message))
        self.waiting_messages[uuid] = QueuedUserMessage(len(data), client_number, request_id)
        self.append_log_record(STDIN_LETTER, data)
        self.commands.append(WriteStdinCommand(data + b"\n"))
        self.status.record_queued_user_message()
        self.report_metadata_changes()

    def _check_message_limits(self, size_bytes: int) -> None:
        """Raise FrameRefusedError if no further message may wait. If no message is waiting, any
        size is accepted.
        """
        count = len(self.waiting_messages)
        waiting_bytes = sum(message.size_bytes for message in self.waiting_messages.values())
        if count >= MAX_WAITING_MESSAGES or (
            count and waiting_bytes + size_bytes > self.session.max_frame_bytes
        ):
            raise FrameRefusedError(
                "too-many", f"{count} messages are already queued; send this message later"
            )

    def remove_waiting_message(self, uuid: object) -> int | None:
        """Remove a waiting message that the conversation has accepted or cancelled.

        Return the number of the client that sent the message. Return 0 if the host sent the message
        or its frame had no id, and None if the message is not waiting.
        """
        message = self.waiting_messages.pop(str(uuid), None)
        if message is None:
            return None
        return message.client_number

    def _refuse_waiting_messages(self) -> None:
        """Report the waiting messages as unanswered, because the session ends. The report is
        written to the log and to `host.json`, and sent to the clients that sent these messages.
        """
        if not self.waiting_messages:
            return
        for uuid, message in self.waiting_messages.items():
            self.append_note_to_session_log("unanswered", message=uuid)
            client = self.subscribers.clients.get(message.client_number)
            if client is not None:
                self.refuse_frame(client, message.request_id, "ended", UNANSWERED_TEXT)
        unanswered = {**self._metadata, "unanswered": len(self.waiting_messages)}
        self.commands.append(UpdateSessionMetadataCommand(unanswered))

    # -- prompts and the controller ----------------------------------------------------------------

    def resolve_prompt(
        self,
        prompt_id: str,
        client_name: str | None,
        outcome_kind: str,
        answer_body: Mapping[str, Any] | None = None,
    ) -> None:
        """Resolve an open prompt, log its outcome, and send the outcome to the clients.

        `answer_body` is the answer for the conversation, or None if the conversation expects no
        answer.
        """
        outcome = self.prompts.resolve(prompt_id, client_name, outcome_kind)
        if outcome is None:
            return
        response = b""
        if answer_body is not None:
            fields = {"subtype": "success", "request_id": prompt_id, "response": answer_body}
            response = dump_json(build_control_response_line(fields))
            self.append_log_record(STDIN_LETTER, response)
        self.append_note_to_session_log("settled", **outcome._asdict())
        if response:
            self.commands.append(WriteStdinCommand(response + b"\n"))
        self.subscribers.send_permission_prompt_outcome(outcome)
        self.report_metadata_changes()

    def resolve_all_prompts(
        self, client_name: str | None, outcome_kind: str, message: str = ""
    ) -> None:
        """Resolve all open prompts. If `message` is set, it becomes the reason of each denial."""
        for prompt in list(self.prompts.open.values()):
            body = None
            if message:
                body = build_prompt_denial(prompt, message)
            self.resolve_prompt(prompt.prompt_id, client_name, outcome_kind, body)

    def deny_unanswerable_prompts(self) -> None:
        """Deny the open prompts if the controller does not answer prompts and no other client may
        answer them.

        A conversation without the bridge also denies such prompts. If the current turn answers
        another client's message, the prompts stay open for that client.
        """
        controller = self.roles.controller
        if controller is None or not controller.declines_prompts:
            return
        if self.turn_client_number not in (None, controller.number):
            return
        if any(map(self.roles.can_answer_prompts, self.subscribers)):
            return
        for prompt in list(self.prompts.open.values()):
            message = NOT_GRANTED_TEXT.format(tool=prompt.request.get("tool_name"))
            body = build_prompt_denial(prompt, message)
            self.resolve_prompt(prompt.prompt_id, None, "deny", body)

    def set_controller(self, client: ConnectedClient | None) -> None:
        """Set the client that controls the session. None means that no client has control."""
        if self.roles.set_controller(client):
            self.append_note_to_session_log("driver", client=self.roles.controller_name)
            self.report_metadata_changes()
            self.deny_unanswerable_prompts()

    # -- answers to a client's frames --------------------------------------------------------------

    def send_accepted_frame(self, client: ConnectedClient, request_id: str) -> None:
        """Send an `accepted` frame in answer to a client's frame, if that frame has an id."""
        if request_id:
            self.send_frame_answer(client, request_id, "accepted")

    def send_frame_answer(
        self, client: ConnectedClient, request_id: str, kind: str, **fields: object
    ) -> None:
        """Send the answer to a client's frame, if the client understands this kind of answer. The
        answer is stored, and is sent again if the client repeats the frame.
        """
        answer = b""
        if kind in client.hello.optional_kinds:
            answer = encode_frame(kind, id=request_id, **fields)
        stored_answer = answer
        if len(answer) > MAX_STORED_ANSWER_BYTES:
            text = "this id was already used; use another id"
            stored_answer = encode_frame("refused", id=request_id, reason="bad-frame", text=text)
        self.frame_answers[client.number, request_id] = stored_answer
        self.subscribers.send_reply_frame(client, answer)

    def send_settings(self, client_number: int, request_id: str, settings: str) -> None:
        """Send the text of the reloaded settings to the client that requested it."""
        client = self.subscribers.clients.get(client_number)
        if client is not None:
            response = {"subtype": "success", "response": {"settings": settings}}
            self.send_frame_answer(client, request_id, "response", response=response)

    def refuse_frame(
        self, client: ConnectedClient, request_id: str, reason: str, text: str
    ) -> None:
        """Refuse a client's frame. `request_id` is the frame's id, or "" if it has none. `reason`
        is one of the keywords in FrameRefusedError.
        """
        fields: dict[str, Any] = {"id": request_id or None, "reason": reason, "text": text}
        if reason in ("not-driver", "not-owner"):
            fields["driver"] = self.roles.controller_name
        self.subscribers.send_reply_frame(client, encode_frame("refused", **fields))
