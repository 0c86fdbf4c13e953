"""Connects one frontend to a session in another process. Lines from the frontend become frames for
the session's host, and frames from the host become lines for the frontend.

Sans-IO: `on_stdin_line` takes a line from the frontend's stdin, and `on_host_frame` takes a frame
from the host. Output is collected in `lines` (for the frontend) and `frames` (for the host).
Control requests are answered as in a conversation without a background session (contract sections 3
and 6).
"""

from collections.abc import Callable, Mapping, Sequence

from shim.bridge.attach.local_services import FrontendHooksAndMcpServers
from shim.bridge.attach.turn_filter import FrontendOutputOptions, FrontendTurnFilter, TurnOwner
from shim.core.claude.control_responses import build_control_error, build_control_response_line
from shim.core.claude.messages import PRIORITY_NOW, parse_json_line, parse_user_message
from shim.core.claude.permissions import (
    DENIED_BY_RULE_TEXT,
    NOT_GRANTED_TEXT,
    PROMPT_FAILED_TEXT,
    QUESTION_TOOL,
)
from shim.core.reading.json_text import dump_json
from shim.core.reading.typed import Any
from shim.core.reading.values import (
    as_dict,
    as_list,
    canonicalize_uuid,
    escape_control_chars,
    get_text,
)

# The maximum number of a frontend's unanswered requests. A frontend normally waits for each answer.
MAX_OPEN_REQUESTS = 1000
MAX_TYPE_CHARS = 60  # length of a line's type in a warning about the line
# An `initialize` request with one of these keys must be sent to the session.
# Any other `initialize` is answered here, with the response from the host's `welcome` frame.
SESSION_INITIALIZE_KEYS = (
    "hooks",
    "sdkMcpServers",
    "mcpServers",
    "agents",
    "systemPrompt",
    "appendSystemPrompt",
    "jsonSchema",
)
INITIALIZE = "initialize"
INTERNAL_REQUEST = object()  # marks a request that the shim itself sent
OTHER_CONTROLLER_TEXT = (
    "{driver} has control and a turn is running; send the message again when the turn has ended"
)
FRONTEND_LEFT_ERROR = "the client closed its input and can no longer answer"


class FrontendSessionBridge:
    """Translates between one frontend and the host of its session.

    can_answer        whether the frontend answers permission prompts
    warnings          lines for stderr
    end_reason        why the host has ended; "" while it runs
    refusal           why the session did not accept the last message
    pending_stop_ids  ids of frames that stop something, and that the host has not answered yet
    """

    def __init__(
        self,
        options: FrontendOutputOptions,
        session_id: str,
        create_id: Callable[[], str],
        *,
        can_answer: bool,
        denies_questions: bool = False,
        sdk_servers: Sequence[str] = (),
    ) -> None:
        """Create the bridge.

        `denies_questions` is set if the frontend denies AskUserQuestion. `sdk_servers` are the MCP
        servers from the frontend's command line that run in the frontend's own process.
        """
        self.turn_filter = FrontendTurnFilter(options, session_id, create_id)
        self.lines: list[bytes] = []
        self.frames: list[Mapping[str, Any]] = []
        self.warnings: list[str] = []
        self.welcome: Mapping[str, Any] = {}
        self.controller: str | None = None
        self.is_busy = False
        self.end_reason = self.refusal = ""
        self.pending_stop_ids: set[str] = set()
        self._options = options
        self._create_id = create_id
        self._can_answer = can_answer
        self._denies_questions = denies_questions
        self._local_services = FrontendHooksAndMcpServers(sdk_servers)
        self._is_stdin_closed = False
        self._open_requests: dict[str, object] = {}  # our request id → the frontend's request id
        self._prompt_ids_by_answer: dict[str, str] = {}  # our answer id → the prompt's id
        self._open_prompts: dict[str, Mapping[str, Any]] = {}  # all open prompts of the session
        self._forwarded_prompts: set[str] = set()  # ids of prompts that were sent to the frontend
        # messages that were sent while another client's turn was running
        self._early_messages: dict[str, Mapping[str, Any]] = {}

    @property
    def is_controller(self) -> bool:
        if self.controller is None:
            return False
        return self.controller == self.welcome.get("client")

    @property
    def has_other_controller(self) -> bool:
        if self.controller is None:
            return False
        return not self.is_controller

    @property
    def has_open_requests(self) -> bool:
        """Whether a request from the frontend has not been answered yet."""
        return bool(self._open_requests)

    # -- input from the frontend -------------------------------------------------------------------

    def on_stdin_line(self, line: bytes) -> None:
        """Handle one line from the frontend's stdin, without its LF."""
        if not line.strip():
            return
        event = parse_json_line(line)
        kind = as_dict(event).get("type")
        if not isinstance(event, dict) or (event and not isinstance(kind, str)):
            type_name = "unknown"
            if event is not None:
                type_name = escape_control_chars(str(kind)[:MAX_TYPE_CHARS])
            self._add_warning(
                f"Error parsing streaming input line (type={type_name}, {len(line)} chars)"
            )
        elif kind == "user":
            self._on_user_message(event)
        elif kind == "control_request":
            self._on_control_request(event)
        elif kind == "control_response":
            self._on_control_response(event)

    def send_prompt(self, text: str) -> None:
        """Send the prompt of a one-shot run, which comes from the command line."""
        self._send_message(self._create_id(), {"role": "user", "content": text})

    def on_stdin_end(self) -> None:
        """Handle the end of the frontend's stdin, after which the frontend cannot answer any
        request.
        """
        self._is_stdin_closed = True
        self._send_deaf()
        for request_id in self._local_services.open_request_ids:
            self._send_reply(request_id, build_control_error(request_id, FRONTEND_LEFT_ERROR))
        self._local_services.open_request_ids.clear()

    def _send_deaf(self) -> None:
        """Tell the host that this frontend cannot answer permission prompts.

        Other attached clients may answer them. If no client can, the host denies them.
        """
        self._add_frame("deaf", id=self._create_id())

    def get_permission_mode(self) -> str:
        """Return the session's current permission mode."""
        if self.turn_filter.mode:
            return self.turn_filter.mode
        return get_text(self.welcome, "mode", "default")

    def send_interrupt(self) -> None:
        """Ask the host to interrupt the turn."""
        self.pending_stop_ids.add(request_id := self._create_id())
        self._add_frame("interrupt", id=request_id)

    def cancel_waiting_messages(self) -> None:
        """Cancel all messages that are queued for a later turn."""
        for uuid in [
            uuid
            for uuid in self.turn_filter.waiting_ids
            if uuid not in self.turn_filter.answering_ids
        ]:
            self._open_requests[request_id := self._create_id()] = INTERNAL_REQUEST
            self.pending_stop_ids.add(request_id)
            self._add_frame(
                "request",
                id=request_id,
                request={"subtype": "cancel_async_message", "message_uuid": uuid},
            )
            self.turn_filter.remove_unanswered_message_id(uuid)
        self._local_services.waiting_messages.clear()

    def _on_user_message(self, event: Mapping[str, Any]) -> None:
        try:
            message = parse_user_message(event, "")
        except ValueError as error:
            self._add_warning(f"Error: {error}")
            return
        if message.priority == PRIORITY_NOW and self.turn_filter.owner is TurnOwner.THIS_FRONTEND:
            self.send_interrupt()
        options = {}
        if message.priority:
            options = {"priority": message.priority}
        self._send_message(
            canonicalize_uuid(message.uuid) or self._create_id(),
            message.raw_message,
            **options,
        )

    def _send_message(self, message_id: str, message: Mapping[str, Any], **options: str) -> None:
        self.turn_filter.add_unanswered_message_id(message_id)
        refusal = self._local_services.refusal
        if not refusal and len(self._local_services.waiting_messages) >= MAX_OPEN_REQUESTS:
            refusal = "Too many messages are already waiting"
        if refusal:
            self.turn_filter.remove_unanswered_message_id(message_id)
            self.refusal = refusal
        elif self._local_services.is_initialize_pending:
            self._local_services.waiting_messages[message_id] = {"message": message, **options}
        else:
            if (
                self.has_other_controller
                and self.is_busy
                and len(self._early_messages) < MAX_OPEN_REQUESTS
            ):
                self._early_messages[message_id] = {"message": message, **options}
            self._take_control_if_idle()
            self._add_frame("message", id=message_id, message=message, **options)

    def _resend_message(self, message_id: str) -> bool:
        """Send a refused message again if the other client's turn is over by now. Return whether
        the message was sent.

        The host refused the message because it arrived before the shim knew that the turn had
        ended.
        """
        early_message = self._early_messages.pop(message_id, None)
        if early_message is None or self.is_busy or message_id not in self.turn_filter.waiting_ids:
            return False
        self._take_control_if_idle()
        self._add_frame("message", id=message_id, **early_message)
        return True

    def _take_control_if_idle(self) -> None:
        """Take control from another client if no turn is running. The host checks this condition
        again, because a turn may have started meanwhile.
        """
        if self.has_other_controller and not self.is_busy:
            self._add_frame("take", id=self._create_id(), if_idle=True)

    def _finish_initialize(self, request_id: str, refusal: str) -> None:
        """Handle the session's answer to an `initialize` request. Send the messages that waited for
        the answer, or refuse them if the session refused the request.
        """
        for message_id, fields in self._local_services.take_messages_awaiting_initialize(
            request_id, refusal
        ).items():
            self._send_message(message_id, **fields)

    def _on_control_request(self, event: Mapping[str, Any]) -> None:
        request = event.get("request")
        frontend_id = event.get("request_id")
        if not isinstance(request, dict):
            self._add_warning("Error: Missing request on control_request")
            return
        subtype = request.get("subtype")
        request_id = self._create_id()
        if subtype == INITIALIZE and self._local_services.servers:
            request = {
                **request,
                "sdkMcpServers": [
                    *as_list(request.get("sdkMcpServers")),
                    *self._local_services.servers,
                ],
            }
        if (
            subtype == INITIALIZE
            and not any(request.get(key) for key in SESSION_INITIALIZE_KEYS)
            and self.welcome.get(INITIALIZE)
        ):
            body = {
                **self.welcome[INITIALIZE],
                "current_permission_mode": self.get_permission_mode(),
            }
            self._write_response(
                {"subtype": "success", "request_id": frontend_id, "response": body}
            )
            return
        if len(self._open_requests) >= MAX_OPEN_REQUESTS:
            self._write_response(
                build_control_error(frontend_id, "Too many requests are already open")
            )
            return
        self._open_requests[request_id] = frontend_id
        if subtype == INITIALIZE and self._local_services.record_initialize_of_local_services(
            request_id, request
        ):
            self._take_control_if_idle()
        self._add_frame("request", id=request_id, request=request)

    def _on_control_response(self, event: Mapping[str, Any]) -> None:
        response = event.get("response")
        if not isinstance(response, dict):
            return
        if self._options.replays_messages:
            self._write_line(event)
        request_id = str(response.get("request_id"))
        if request_id in self._local_services.open_request_ids:
            self._local_services.open_request_ids.discard(request_id)
            self._send_reply(request_id, response)
        elif request_id in self._forwarded_prompts:
            self._forwarded_prompts.discard(request_id)
            self._open_prompts.pop(request_id, None)
            if response.get("subtype") == "error":
                self._send_denial(
                    request_id, PROMPT_FAILED_TEXT.format(error=response.get("error"))
                )
            else:
                self._send_decision(request_id, response.get("response"))
            self._report_running()

    # -- frames from the host ----------------------------------------------------------------------

    def on_host_frame(self, frame: Mapping[str, Any]) -> None:
        """Handle one frame from the host. In a `line` frame, `raw` is Claude's line, byte
        for byte.
        """
        frame_id = str(frame.get("id"))
        match frame.get("kind"):
            case "line":
                self.lines += self.turn_filter.filter_line(frame["raw"])
            case "welcome":
                self._on_welcome(frame)
            case "question":
                self._on_prompt(str(frame.get("question")), frame.get("request"))
            case "settled":
                self._on_prompt_resolved(
                    str(frame.get("question")),
                    is_denied=frame.get("how") == "deny" and frame.get("by") is None,
                )
            case "ask":
                self._on_host_request(frame_id, frame.get("request"))
            case "accepted":
                self.pending_stop_ids.discard(frame_id)
                self._prompt_ids_by_answer.pop(frame_id, None)
                self._early_messages.pop(frame_id, None)
            case "response":
                self._on_request_response(frame_id, frame.get("response"))
            case "refused":
                self._on_refused(frame_id, _explain_refusal(frame))
            case "state":
                self.is_busy = frame.get("status") in ("busy", "waiting")
            case "driver":
                self._set_controller(frame.get("client"))
            case "bye":
                self.end_reason = get_text(frame, "reason", "ended")

    def _on_welcome(self, frame: Mapping[str, Any]) -> None:
        self.welcome = frame
        state = as_dict(frame.get("state"))
        self.is_busy = state.get("status") in ("busy", "waiting")
        init = frame.get("init")
        init_line = b""
        if init:
            init_line = dump_json(init)
        self.turn_filter.record_joined_session(init_line, is_running=self.is_busy)
        self._set_controller(frame.get("driver"))
        if not self._can_answer:
            self._send_deaf()

    def _set_controller(self, client: object) -> None:
        if isinstance(client, str):
            self.controller = client
        else:
            self.controller = None
        self.turn_filter.is_controller = self.is_controller
        if not self.has_other_controller:
            for prompt_id, request in self._open_prompts.items():
                self._forward_prompt(prompt_id, request)

    def _on_prompt(self, prompt_id: str, request: object) -> None:
        if not isinstance(request, dict):
            return
        self._open_prompts[prompt_id] = request
        if not self.has_other_controller:  # another controller answers the prompts of its own turns
            self._forward_prompt(prompt_id, request)

    def _forward_prompt(self, prompt_id: str, request: Mapping[str, Any]) -> None:
        """Send a permission prompt to the frontend, if the frontend can answer prompts. Otherwise
        the prompt waits for other attached clients.
        """
        if not self._can_answer or self._is_stdin_closed or prompt_id in self._forwarded_prompts:
            return
        if self._denies_questions and request.get("tool_name") == QUESTION_TOOL:
            if self.turn_filter.owner is TurnOwner.THIS_FRONTEND:
                text = DENIED_BY_RULE_TEXT.format(tool=QUESTION_TOOL, why="--disallowedTools")
                self._send_denial(prompt_id, text)
            return
        line = dump_json({"type": "control_request", "request_id": prompt_id, "request": request})
        if self._options.max_line_bytes and len(line) > self._options.max_line_bytes:
            return  # another client may be able to show the complete prompt
        self._forwarded_prompts.add(prompt_id)
        self.lines += [*self.turn_filter.build_session_state_lines("requires_action"), line]

    def _on_prompt_resolved(self, prompt_id: str, *, is_denied: bool) -> None:
        """Handle the end of a permission prompt. If the frontend has the prompt and has not
        answered it, cancel the frontend's request.

        `is_denied` means that no client could answer the prompt, so it was denied. A frontend that
        does not answer prompts is then informed about the denial (contract 5.13).
        """
        request = self._open_prompts.pop(prompt_id, None)
        if is_denied and request is not None and not self._can_answer:
            self.lines += self.turn_filter.build_permission_denied_lines(
                request, NOT_GRANTED_TEXT.format(tool=request.get("tool_name"))
            )
        if prompt_id in self._forwarded_prompts:
            self._forwarded_prompts.discard(prompt_id)
            self._write_line({"type": "control_cancel_request", "request_id": prompt_id})
            self._report_running()

    def _report_running(self) -> None:
        if not self._forwarded_prompts and self.turn_filter.owner is TurnOwner.THIS_FRONTEND:
            self.lines += self.turn_filter.build_session_state_lines("running")

    def _on_host_request(self, request_id: str, request: object) -> None:
        if self._is_stdin_closed:
            self._send_reply(request_id, build_control_error(request_id, FRONTEND_LEFT_ERROR))
            return
        self._local_services.open_request_ids.add(request_id)
        self._write_line({"type": "control_request", "request_id": request_id, "request": request})

    def _on_request_response(self, request_id: str, response: object) -> None:
        self.pending_stop_ids.discard(request_id)
        if request_id not in self._open_requests or not isinstance(response, dict):
            return
        body = response.get("response")
        if isinstance(body, dict) and body.get("cancelled") is True:
            self.turn_filter.remove_unanswered_message_id(str(body.get("message_uuid")))
        frontend_id = self._open_requests.pop(request_id)
        refusal = ""
        if response.get("subtype") == "error":
            refusal = str(response.get("error"))
        self._finish_initialize(request_id, refusal)
        if frontend_id is not INTERNAL_REQUEST:
            self._write_response({**response, "request_id": frontend_id})

    def _on_refused(self, request_id: str, reason: str) -> None:
        self.pending_stop_ids.discard(request_id)
        if request_id in self._open_requests:
            if (frontend_id := self._open_requests.pop(request_id)) is not INTERNAL_REQUEST:
                self._write_response(build_control_error(frontend_id, reason))
            self._finish_initialize(request_id, reason)
        elif request_id in self._prompt_ids_by_answer:
            # The host could not read the answer.
            # A denial is sent instead, because it never permits more than the answer did.
            self._send_denial(
                self._prompt_ids_by_answer.pop(request_id), PROMPT_FAILED_TEXT.format(error=reason)
            )
        elif not self._resend_message(request_id) and self.turn_filter.remove_unanswered_message_id(
            request_id
        ):
            self.refusal = reason

    # -- lines and frames --------------------------------------------------------------------------

    def _add_frame(self, kind: str, **fields: object) -> None:
        self.frames.append({"kind": kind, **fields})

    def _send_reply(self, request_id: str, response: Mapping[str, Any]) -> None:
        self._add_frame("reply", id=request_id, response=response)

    def _send_decision(self, prompt_id: str, decision: object) -> None:
        answer_id = self._create_id()
        if len(self._prompt_ids_by_answer) < MAX_OPEN_REQUESTS:
            self._prompt_ids_by_answer[answer_id] = prompt_id
        self._add_frame("answer", id=answer_id, question=prompt_id, decision=decision)

    def _send_denial(self, prompt_id: str, message: str) -> None:
        decision = {"behavior": "deny", "message": message}
        self._add_frame("answer", id=self._create_id(), question=prompt_id, decision=decision)

    def _write_response(self, response: Mapping[str, Any]) -> None:
        self._write_line(build_control_response_line(response))

    def _write_line(self, line: Mapping[str, Any]) -> None:
        self.lines.append(dump_json(line))

    def _add_warning(self, text: str) -> None:
        self.warnings.append(f"{text}; the line was skipped\n")


def explain_other_client_has_control(controller_name: object) -> str:
    """Return a sentence that names the client that has control, and says when the session will
    accept a message.
    """
    return OTHER_CONTROLLER_TEXT.format(driver=escape_control_chars(str(controller_name)))


def _explain_refusal(frame: Mapping[str, Any]) -> str:
    """Return the reason why the host refused a frame, as a sentence without protocol terms."""
    if frame.get("reason") == "not-driver" and frame.get("driver"):
        return explain_other_client_has_control(frame["driver"])
    return get_text(frame, "text", get_text(frame, "reason"))
