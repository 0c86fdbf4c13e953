"""The hub's side of the conversation: what it is told, what of that is logged, and what follows
from it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from shim.core.bridge.client import ClientRoles, ConnectedClient
from shim.core.bridge.commands import (
    AppendLogRecords,
    SessionHubCommand,
    UpdateSessionMetadata,
    WriteStdin,
)
from shim.core.bridge.frames import FrameRefusedError, encode_frame
from shim.core.bridge.log import NOTE_LETTER, STDIN_LETTER, SessionLogEntry, SessionLogRecord
from shim.core.bridge.prompts import PendingPrompts, build_prompt_denial
from shim.core.bridge.requests import (
    CallbackRequest,
    ClientCallbackRouter,
    ControlRequest,
    PendingControlRequests,
)
from shim.core.bridge.status import (
    BackgroundSessionInfo,
    SessionRestrictions,
    SessionStatus,
    derive_session_name,
)
from shim.core.bridge.subscribers import SessionSubscribers
from shim.core.claude.messages import parse_json_line
from shim.core.claude.permissions import NOT_GRANTED_TEXT
from shim.core.reading.bounded_dict import BoundedDict
from shim.core.reading.json_text import dump_json

UNANSWERED_TEXT = "the session ended before this message had its turn: it was not answered"
# of frames that were obeyed: one of them that comes again is obeyed no second time
MAX_STORED_IDS = 1000
MAX_STORED_ANSWER_BYTES = 4096  # of an answer that is kept for a frame that comes again
MAX_WAITING_MESSAGES = 1000  # messages that wait for their turn
EMPTY_BODY: Mapping[str, Any] = {}
PRIORITIES = ("now", "next", "later")


def list_accepted_message_ids(entries: Iterable[SessionLogEntry]) -> Iterator[str]:
    """The ids of the messages that the session has taken, as far as these lines of the log tell."""
    for entry in entries:
        if b'"isReplay":true' in entry.line:
            line = parse_json_line(entry.line)
            if (
                isinstance(line, dict)
                and line.get("isReplay") is True
                and isinstance(line.get("uuid"), str)
            ):
                yield line["uuid"]


class SessionHubState:
    """What the hub knows of the session, and how it talks to it.

    `waiting_messages` are the messages that were told and not yet taken: their uuid and their size;
    `message_senders` are the clients that said them, and under which id. `message_ids` are the ids
    of those that were told; `frame_answers` are other frames by client and id, with what each was
    answered.
    """

    def __init__(
        self,
        session: BackgroundSessionInfo,
        generation: int,
        number: int,
        create_id: Callable[[], str],
        now_ms: Callable[[], int],
        taken_ids: Iterable[str],
    ) -> None:
        self.session = session
        self.create_id = create_id
        self.now_ms = now_ms
        self.commands: list[SessionHubCommand] = []
        self.prompts = PendingPrompts()
        self.subscribers = SessionSubscribers(
            self.commands, self.prompts, generation, number, self._encode_state
        )
        self.roles = ClientRoles(owner_answers=session.answer_policy == "owner")
        self.callbacks = ClientCallbackRouter()
        self.control_requests = PendingControlRequests()
        self.status = SessionStatus()
        self.initialize_response: Any = None
        self.init_line: Any = None
        self.end_reason = ""  # why the session is over
        self.notice = ""  # a sentence about the host, for clients that connect
        self.restrictions = SessionRestrictions(session.mode)
        self.waiting_messages: dict[str, int] = {}
        self.message_senders: dict[str, tuple[ConnectedClient, str]] = {}
        # whose message the turn answers: 0 for nobody's here, None where it names none
        self.turn_client_number: int | None = None
        self.message_ids = BoundedDict[tuple[str, str], bool](MAX_STORED_IDS)
        self.frame_answers = BoundedDict[tuple[int, str], bytes](MAX_STORED_IDS)
        self._metadata: Mapping[str, Any] = {}
        for message_id in taken_ids:
            self.message_ids["", message_id] = True

    # -- what is told to it ------------------------------------------------------------------------

    def queue_stdin_line(self, line: Mapping[str, Any]) -> bytes:
        """A line of its stdin; gives back the line, without its newline."""
        data = dump_json(line)
        self.commands.append(WriteStdin(data + b"\n"))
        return data

    def append_log_record(self, stream_letter: str, data: bytes) -> None:
        """Something for the log that has no number."""
        self.commands.append(
            AppendLogRecords((SessionLogRecord(stream_letter, self.now_ms(), data),))
        )

    def send_message(self, message: Mapping[str, Any], uuid: str, priority: object = None) -> None:
        """A person's message. FrameRefusedError if too many wait."""
        line: dict[str, Any] = {
            "type": "user",
            "message": message,
            "parent_tool_use_id": None,
            "uuid": uuid,
        }
        if priority in PRIORITIES:
            line["priority"] = priority
        data = dump_json(line)
        max_bytes = self.session.max_frame_bytes
        if len(self.waiting_messages) >= MAX_WAITING_MESSAGES or (
            self.waiting_messages and sum(self.waiting_messages.values()) + len(data) > max_bytes
        ):
            raise FrameRefusedError(
                "too-many",
                f"{len(self.waiting_messages)} messages wait for their turn already; send it later",
            )
        if not self.session.name:
            self.session = self.session._replace(name=derive_session_name(message))
        self.waiting_messages[uuid] = len(data)
        self.append_log_record(STDIN_LETTER, data)
        self.commands.append(WriteStdin(data + b"\n"))
        self.status.record_waiting_message()
        self.report_metadata_changes()

    def send_control_request(
        self, body: Mapping[str, Any], pending_request: ControlRequest
    ) -> None:
        """A control request. FrameRefusedError if too many of its client's wait."""
        request_id = self.create_id()
        self.control_requests.add(request_id, pending_request)
        self.queue_stdin_line(
            {"type": "control_request", "request_id": request_id, "request": body}
        )

    def send_control_response(self, request_id: str, response: Mapping[str, Any]) -> bytes:
        """Answer a request of the session's; gives back the line."""
        return self.queue_stdin_line(
            {"type": "control_response", "response": {**response, "request_id": request_id}}
        )

    # -- questions and asks ------------------------------------------------------------------------

    def resolve_prompt(
        self,
        prompt_id: str,
        client_name: str | None,
        outcome_kind: str,
        answer_body: Mapping[str, Any] | None = None,
    ) -> None:
        """Settle an open question, with an answer of ours or a client's, or because the session
        wants none.
        """
        outcome = self.prompts.resolve(prompt_id, client_name, outcome_kind)
        if outcome is None:
            return
        if answer_body is not None:
            line = {"subtype": "success", "request_id": prompt_id, "response": answer_body}
            data = dump_json({"type": "control_response", "response": line})
            self.append_log_record(STDIN_LETTER, data)
        self.append_log_record(NOTE_LETTER, dump_json({"kind": "settled", **outcome._asdict()}))
        if answer_body is not None:
            self.commands.append(WriteStdin(data + b"\n"))
        self.subscribers.send_prompt_outcome(outcome)
        self.report_metadata_changes()

    def resolve_all_prompts(
        self, client_name: str | None, outcome_kind: str, message: str = ""
    ) -> None:
        """Settle every open question; with a `message` each is denied."""
        for prompt in list(self.prompts.open.values()):
            self.resolve_prompt(
                prompt.prompt_id,
                client_name,
                outcome_kind,
                build_prompt_denial(prompt, message) if message else None,
            )

    def deny_unanswerable_prompts(self) -> None:
        """Deny what nobody who is here can answer, if who drives cannot: a run of its own would
        have denied it.

        A question of a turn that answers somebody else waits: it is none of the driver's.
        """
        controller = self.roles.controller
        if controller is not None and self.turn_client_number not in (None, controller.number):
            return
        if (
            controller is None
            or not controller.declines_prompts
            or any(map(self.roles.can_answer_prompts, self.subscribers))
        ):
            return
        for prompt in list(self.prompts.open.values()):
            message = NOT_GRANTED_TEXT.format(tool=prompt.request.get("tool_name"))
            self.resolve_prompt(
                prompt.prompt_id, None, "deny", build_prompt_denial(prompt, message)
            )

    def lift_restrictions_of_left_clients(self) -> None:
        """What clients forbade that have gone holds no longer, once no turn runs or waits that
        began under it.
        """
        if (
            not self.status.is_turn_active
            and not self.waiting_messages
            and self.restrictions.lift_restrictions_of_left_clients()
        ):
            self.send_changed_restrictions()

    def send_changed_restrictions(self) -> None:
        """Have the conversation keep to what all clients forbid, as far as it was not told."""
        if self.restrictions.mode != self.restrictions.sent_mode:
            self.send_permission_mode(ControlRequest(None, "", "set_permission_mode"))
        if self.restrictions.rules != self.restrictions.sent_rules:
            self.send_permission_rules({}, ControlRequest(None, "", "apply_flag_settings"))

    def send_permission_mode(
        self, request: ControlRequest, body: Mapping[str, Any] = EMPTY_BODY
    ) -> None:
        """The narrowest of the mode that is chosen and of what the clients let it be.
        FrameRefusedError as `send_control_request`.
        """
        self.send_control_request(
            {**body, "subtype": "set_permission_mode", "mode": self.restrictions.mode}, request
        )
        self.restrictions.sent_mode = self.restrictions.mode

    def send_permission_rules(self, settings: Mapping[str, Any], request: ControlRequest) -> None:
        """The rules of all clients, if there ever were any, beside other settings.
        FrameRefusedError as `send_control_request`.
        """
        sent_settings, (deny, ask) = dict(settings), self.restrictions.rules
        if deny or ask or self.restrictions.sent_rules != ((), ()):
            sent_settings["permissions"] = {"deny": deny, "ask": ask}
        self.send_control_request(
            {"subtype": "apply_flag_settings", "settings": sent_settings}, request
        )
        self.restrictions.sent_rules = deny, ask

    def record_reported_permission_mode(self, mode: str) -> None:
        """The conversation says which mode it is in. Where nobody told it that, its agent has
        chosen it.
        """
        self.session = self.session._replace(mode=mode)
        if mode != self.restrictions.sent_mode and not self.control_requests.has_pending_subtype(
            "set_permission_mode"
        ):
            self.restrictions.set_chosen_mode(mode)
            self.restrictions.sent_mode = mode
            self.send_changed_restrictions()

    def forward_callback_request(self, callback: CallbackRequest) -> None:
        """Put a request of the session's to the client whose it is, or answer it."""
        if callback.client is None:
            self.send_control_response(
                callback.request_id, self.callbacks.build_fallback_response(callback)
            )
        else:
            self.subscribers.send_reply_frame(
                callback.client,
                encode_frame("ask", id=callback.request_id, request=callback.request),
            )

    # -- what is true now --------------------------------------------------------------------------

    def build_status_fields(self) -> dict[str, Any]:
        """The keys of a `state` frame."""
        return self.status.build_status_fields(
            [prompt.request for prompt in self.prompts.open.values()], bool(self.waiting_messages)
        )

    def _encode_state(self) -> bytes:
        settings = {"model": self.session.model, "mode": self.session.mode}
        return encode_frame("state", **self.build_status_fields(), **settings) + encode_frame(
            "driver", client=self.roles.controller_name
        )

    def report_metadata_changes(self) -> None:
        """Tell whoever wants to know, if the state or the driver is another one; of the detail
        alone `report_detail_changes`.
        """
        metadata = self._collect_metadata()
        if {**metadata, "detail": self._metadata.get("detail")} != self._metadata:
            self._report_metadata(metadata)

    def report_status_detail_changes(self) -> None:
        """Tell of a detail that changed: at a tick, not with every call."""
        metadata = self._collect_metadata()
        if metadata != self._metadata:
            self._report_metadata(metadata)

    def _collect_metadata(self) -> dict[str, Any]:
        """What `host.json` keeps of what is true now."""
        return {
            **self.build_status_fields(),
            "driver": self.roles.controller_name,
            "name": self.session.name or None,
        }

    def _report_metadata(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self.commands.append(UpdateSessionMetadata(metadata))
        self.subscribers.queue_state_update()

    def set_controller(self, client: ConnectedClient | None) -> None:
        """Another client drives, or nobody."""
        if self.roles.set_controller(client):
            self.append_log_record(
                NOTE_LETTER, dump_json({"kind": "driver", "client": self.roles.controller_name})
            )
            self.report_metadata_changes()
            self.deny_unanswerable_prompts()

    def remove_waiting_message(self, uuid: object) -> int | None:
        """A message that the session has taken, or given back, is no longer waiting; the client
        whose it is.
        """
        was_waiting = self.waiting_messages.pop(str(uuid), None) is not None
        sender = self.message_senders.pop(str(uuid), None)
        return sender[0].number if sender else 0 if was_waiting else None

    def refuse_waiting_messages(self) -> None:
        """The session ends: whoever said a message that waits is told that nobody answers it, and
        so is the log.
        """
        if not self.waiting_messages:
            return
        for uuid in self.waiting_messages:
            self.append_log_record(NOTE_LETTER, dump_json({"kind": "unanswered", "message": uuid}))
            client, request_id = self.message_senders.pop(uuid, (None, ""))
            if client is not None and client.number in self.subscribers.clients:
                self.subscribers.send_reply_frame(
                    client,
                    encode_frame("refused", id=request_id, reason="ended", text=UNANSWERED_TEXT),
                )
        self.commands.append(
            UpdateSessionMetadata({**self._metadata, "unanswered": len(self.waiting_messages)})
        )

    def record_answered_message(self, uuid: object) -> None:
        """The session answers a message, also one that is said into its turn: a turn is whose it
        was first.
        """
        client_number = self.remove_waiting_message(uuid)
        self.turn_client_number = (
            client_number if self.turn_client_number is None else self.turn_client_number
        )

    # -- what a client is answered -----------------------------------------------------------------

    def send_accepted_frame(self, client: ConnectedClient, request_id: str) -> None:
        """What a frame asked for was done."""
        if request_id:
            self.send_frame_answer(
                client,
                request_id,
                encode_frame("accepted", id=request_id)
                if client.accepts_frame_kind("accepted")
                else b"",
            )

    def send_frame_answer(self, client: ConnectedClient, request_id: str, answer: bytes) -> None:
        """The answer to a frame, which is the answer to the same frame again too."""
        stored_answer = answer
        if len(answer) > MAX_STORED_ANSWER_BYTES:
            stored_answer = encode_frame(
                "refused",
                id=request_id,
                reason="bad-frame",
                text="this was answered already; use another id",
            )
        self.frame_answers[client.number, request_id] = stored_answer
        self.subscribers.send_reply_frame(client, answer)

    def resend_frame_answer(self, client: ConnectedClient, request_id: str) -> None:
        """A frame that was obeyed came again."""
        self.subscribers.send_reply_frame(client, self.frame_answers[client.number, request_id])
