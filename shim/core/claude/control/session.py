"""The control session: it answers the frontend's lines, and decides permission requests.

The session does no I/O. `receive_line` takes one line and returns the actions that the caller must
execute. `take_output` returns the lines that the caller must write. Every control_request gets a
response. The response to an unknown request is the real claude's error (contract C5). An invalid
line is skipped with a warning on stderr, whereas the real claude exits (C13).
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from shim.core.claude.control.actions import (
    FrontendAction,
    InterruptRequested,
    PermissionDecided,
    SettingChanged,
    TitleChanged,
)
from shim.core.claude.control.handlers import REQUEST_HANDLERS, ControlRequestError, ResponseBody
from shim.core.claude.control.permission_gate import (
    FrontendDecisionRequired,
    PendingPermission,
    PermissionGate,
    PermissionPromptAbilities,
    WaitForHooks,
)
from shim.core.claude.control.session_hooks import OpenHook, SessionHooks
from shim.core.claude.control.session_lines import ControlOutputWriter
from shim.core.claude.hooks.answers import HookDecision, find_permission_hook_decision
from shim.core.claude.hooks.callbacks import HookEvent
from shim.core.claude.messages import (
    BYTE_ORDER_MARK,
    PRIORITY_NOW,
    UserMessage,
    parse_json_line,
    parse_user_message,
)
from shim.core.claude.permissions import (
    CALL_TOO_LARGE_TEXT,
    MAX_OPEN_PROMPTS,
    PROMPT_TIMEOUT_TEXT,
    QUESTION_TOOL,
    STREAM_CLOSED_TEXT,
    TOO_MANY_PROMPTS_TEXT,
    TURN_OVER_TEXT,
    PermissionDecision,
    PermissionRequest,
    build_permission_prompt,
    find_requested_permission_mode,
    parse_permission_decision,
    parse_permission_updates,
)
from shim.core.claude.session_state import SessionState
from shim.core.policy import PERMISSION_EVENT, PRE_TOOL_EVENT
from shim.core.reading.bounded_dict import BoundedDict
from shim.core.reading.json_text import dump_json
from shim.core.reading.typed import TYPE_CHECKING, Any, NamedTuple
from shim.core.reading.values import as_dict, escape_control_chars

if TYPE_CHECKING:
    from shim.core.claude.hooks.commands import HookCommandCall, HookCommandResult

MAX_MESSAGE_IDS = 10_000  # more are not needed, because a client repeats only recent messages
MAX_TYPE_CHARS = 60  # the maximum length of a line's type in a warning


class _ChildSettings(NamedTuple):
    """The settings that a child receives when it starts."""

    effort: str | None
    rules: object  # the permission rules that deny a tool call or require a prompt
    servers: object  # the MCP servers
    model: str | None


class ControlSession(ControlOutputWriter):
    """A frontend's control session.

    `queued_messages` are the messages that wait for a turn. `warnings` are lines for stderr.
    `create_id` returns a new UUID. `format_now` returns the current time as ISO text.
    """

    def __init__(
        self,
        session_state: SessionState,
        create_id: Callable[[], str],
        format_now: Callable[[], str],
        load_accepted_ids: Callable[[], Iterable[str]] | None = None,
    ) -> None:
        """`load_accepted_ids` returns the ids of messages that the resumed session has accepted."""
        super().__init__(session_state, create_id)
        self.queued_messages: deque[UserMessage] = deque()
        self._line_count = 0
        self._format_now = format_now
        self._pending: dict[str, PendingPermission] = {}  # by the vendor's request id
        self._requests_with_new_prompt: list[PermissionRequest] = []
        self.hooks = SessionHooks(session_state, self, create_id)
        self._gate = PermissionGate(session_state, self._prompt_abilities)
        # The ids of accepted messages. A message with a known id is not answered again.
        self._accepted_message_ids = BoundedDict[str, None](MAX_MESSAGE_IDS)
        self._load_accepted_ids = load_accepted_ids

    # -- input from the frontend -------------------------------------------------------------------

    def receive_line(self, line: bytes) -> list[FrontendAction]:
        """Process one line from stdin, without its newline. Return the resulting actions."""
        if not line.removeprefix(BYTE_ORDER_MARK).strip():
            return []
        self._line_count += 1
        event = parse_json_line(line)
        kind = as_dict(event).get("type")
        if not isinstance(event, dict) or (event and not isinstance(kind, str)):
            if event is None:
                kind = "unknown"
            else:
                kind = escape_control_chars(str(kind)[:MAX_TYPE_CHARS])
            self._report_bad_line(
                f"Error parsing streaming input line (type={kind}, {len(line)} chars)"
            )
        elif kind == "user":
            return self._accept_message(event, len(line))
        elif kind == "control_request":
            return self._answer_request(event)
        elif kind == "control_response":
            return self._accept_control_response(event)
        return []

    @property
    def has_received_only_unreadable_lines(self) -> bool:
        """Whether the frontend has sent lines, but only lines that cannot be parsed."""
        return 0 < self._line_count == self.skipped_line_count

    def close_input(self) -> list[FrontendAction]:
        """Handle the end of the frontend's stdin. All open and future permission requests are
        refused.
        """
        self.is_input_closed = True
        has_open_prompts = bool(self._list_open_prompts())
        self.hooks.skip_open_hooks()
        self.session_state.sdk_servers.close()
        actions = self._refuse_open_requests(STREAM_CLOSED_TEXT)
        if has_open_prompts:
            self.write_session_state("running")
        return actions

    @property
    def requests_with_open_prompt(self) -> list[PermissionRequest]:
        """The permission requests whose prompts the frontend has not answered yet."""
        return [pending.request for pending in self._list_open_prompts()]

    def _list_open_prompts(self) -> list[PendingPermission]:
        return [pending for pending in self._pending.values() if pending.prompt_id is not None]

    def cancel_permission_prompts(self) -> None:
        """Cancel the open permission prompts at the end of a turn. The cancellations must be
        written before the result (contract S16b).
        """
        for pending in self._list_open_prompts():
            self._cancel_prompt(pending)

    def _accept_message(self, event: Mapping[str, Any], size_bytes: int) -> list[FrontendAction]:
        try:
            message = parse_user_message(event, self._format_now())._replace(size_bytes=size_bytes)
        except ValueError as error:
            self._report_bad_line(f"Error: {error}")
            return []
        if message.uuid is not None and self._is_repeated(message.uuid):
            self._echo_message(message)
            return []
        if message.priority != PRIORITY_NOW or not self.is_running:
            self.queued_messages.append(message)
            return []
        self.queued_messages.appendleft(message)
        return [*self._refuse_open_requests(""), InterruptRequested()]

    def _is_repeated(self, uuid: str) -> bool:
        """Return whether this conversation, or the conversation that it resumes, has already
        accepted a message with this id.
        """
        if self._load_accepted_ids is not None:
            for accepted_id in self._load_accepted_ids():
                self._accepted_message_ids[accepted_id] = None
            self._load_accepted_ids = None
        if uuid in self._accepted_message_ids:
            return True
        self._accepted_message_ids[uuid] = None
        return False

    def _echo_message(self, message: UserMessage) -> None:
        """Echo a repeated message if the frontend has requested echoes."""
        if self.session_state.options.echoes_messages:
            self.write_line(
                {
                    "type": "user",
                    "message": message.raw_message,
                    "session_id": self.session_state.options.session_id,
                    "parent_tool_use_id": None,
                    "uuid": message.uuid,
                    "timestamp": message.timestamp,
                    "isReplay": True,
                }
            )

    def _answer_request(self, event: Mapping[str, Any]) -> list[FrontendAction]:
        request = event.get("request")
        request_id = event.get("request_id")
        if not isinstance(request, dict):
            self._report_bad_line("Error: Missing request on control_request")
            return []
        subtype = request.get("subtype")
        if subtype == "interrupt":
            return self._interrupt_turn(
                request_id, cancels_queue=request.get("cancel_queued") is True
            )
        old_settings = self._get_child_settings()
        try:
            body = self._handle_request(subtype, request)
        except ControlRequestError as refusal:
            self._write_error_response(request_id, refusal)
            return []
        open_requests = {}
        if subtype == "initialize":
            open_requests = self._describe_open_requests()
        self._write_response(request_id, body, **open_requests)
        actions = self._list_changed_settings(old_settings)
        if subtype == "set_model":
            return [SettingChanged("model", self.session_state.model)]
        if subtype == "set_permission_mode":
            return self._report_mode()
        title = request.get("title")
        if subtype in ("rename_session", "initialize") and title and isinstance(title, str):
            self.write_system_message("session_title_changed", title=title)
            actions.append(TitleChanged(title))
        return actions

    def _get_child_settings(self) -> _ChildSettings:
        state = self.session_state
        rules = None
        if state.policy is not None:
            rules = state.policy.restricting_rules
        servers = state.sdk_servers.names, state.server_revision
        return _ChildSettings(state.effort, rules, servers, state.model)

    def _list_changed_settings(self, old: _ChildSettings) -> list[FrontendAction]:
        """Return an action for each setting of a child that a request has changed."""
        new = self._get_child_settings()
        actions: list[FrontendAction] = []
        if new.effort != old.effort:
            actions.append(SettingChanged("effort", new.effort))
        if new.rules != old.rules:
            actions.append(SettingChanged("rules", None))
        if self.has_started and new.servers != old.servers:
            actions.append(SettingChanged("servers", None))
        if new.model != old.model:
            actions.append(SettingChanged("model", new.model))
        return actions

    def _report_mode(self) -> list[FrontendAction]:
        """Report the permission mode to the frontend. Return the action for its change."""
        mode = self.session_state.mode
        self.write_system_message("status", status=None, permissionMode=mode)
        return [SettingChanged("mode", mode)]

    def _handle_request(self, subtype: object, request: Mapping[str, Any]) -> ResponseBody:
        """Call the handler for a request. Return the body of the response, or raise
        ControlRequestError.
        """
        if isinstance(subtype, str):
            handler = REQUEST_HANDLERS.get(subtype)
            if handler is not None:
                return handler(self, request)
            from shim.core.claude.control.state_handlers import STATE_HANDLERS

            state_handler = STATE_HANDLERS.get(subtype)
            if state_handler is not None:
                return state_handler(self.session_state, request)
        raise ControlRequestError(
            f"Unsupported control request subtype: {subtype}", "unsupported_request"
        )

    def _describe_open_requests(self) -> dict[str, Any]:
        """Return the open permission prompts, for a frontend that sends `initialize` again."""
        return {
            "pending_permission_requests": [
                pending.prompt_line for pending in self._list_open_prompts()
            ],
            "pending_user_dialog_requests": [],
        }

    @property
    def session_status(self) -> str:
        """The session's status: "idle", "running", or "requires_action" if it waits for the
        frontend's answer.
        """
        if self._list_open_prompts():
            return "requires_action"
        if self.is_running:
            return "running"
        return "idle"

    def _interrupt_turn(self, request_id: object, *, cancels_queue: bool) -> list[FrontendAction]:
        """Interrupt the turn. If `cancels_queue` is set, drop the messages that wait for a turn."""
        has_open_prompts = bool(self._list_open_prompts())
        actions = []
        if self.is_running:
            actions = self._refuse_open_requests("")
        queued_ids = [message.uuid for message in self.queued_messages if message.uuid]
        receipt: dict[str, Any] = {"still_queued": queued_ids}
        if cancels_queue:
            self.queued_messages.clear()
            receipt = {"still_queued": [], "cancelled": queued_ids}
        self._write_response(request_id, receipt)
        if has_open_prompts:
            self.write_session_state("running")
        if self.is_running:
            return [*actions, InterruptRequested()]
        return []

    def _accept_control_response(self, event: Mapping[str, Any]) -> list[FrontendAction]:
        response = event.get("response")
        if not isinstance(response, dict):
            return []
        if self.session_state.options.echoes_messages:
            self.write_line(event)
        request_id = str(response.get("request_id"))
        if self.session_state.sdk_servers.accept_frontend_response(request_id, response):
            return []
        agent_requests = self.session_state.agent_requests
        if agent_requests is not None and agent_requests.accept_frontend_response(
            request_id, response
        ):
            # A rule that a person adds in an answer also applies to the session.
            self.session_state.apply_permission_updates(parse_permission_updates(response))
            return []
        hook = self.hooks.pop_open_hook(request_id)
        if hook is not None:
            return self._accept_hook_response(hook, response)
        action = self._accept_answer(request_id, parse_permission_decision(response))
        if action is None:
            return []
        # The permission updates take effect with the next tool call.
        self.session_state.apply_permission_updates(parse_permission_updates(response))
        return [action, *self._apply_requested_mode(response)]

    def _accept_answer(
        self, prompt_id: str, answer: PermissionDecision
    ) -> PermissionDecided | None:
        """Close the prompt that the frontend answered. Return the resulting action, or None if the
        prompt is not open.
        """
        for pending in self._list_open_prompts():
            if pending.prompt_id == prompt_id:
                request = pending.request
                hook_decision = self._merge_hook_decisions(pending)
                self.hooks.start_call(request.call_id)
                del self._pending[request.request_id]
                self._write_running_state()
                decision = self._gate.check_answer(request, answer, hook_decision)
                return PermissionDecided(request, decision)
        return None

    def _accept_hook_response(
        self, hook: OpenHook, response: Mapping[str, Any]
    ) -> list[FrontendAction]:
        """Process the response of a hook callback. Return the resulting actions."""
        actions = self.hooks.accept_answer(hook, response)
        if hook.event.name == PERMISSION_EVENT:
            return self._accept_permission_hook_answer(hook.event, response.get("response"))
        if hook.event.name == PRE_TOOL_EVENT:
            return self._continue_after_call_hook(hook.event.call_id)
        return actions

    def _continue_after_call_hook(self, call_id: str) -> list[FrontendAction]:
        """Decide about a tool call if all PreToolUse callbacks have answered."""
        if self.hooks.is_waiting_for_call_hook(PRE_TOOL_EVENT, call_id):
            return []
        waiting = [
            pending
            for pending in self._pending.values()
            if pending.request.call_id == call_id and pending.prompt_id is None
        ]
        if waiting:
            return [
                PermissionDecided(pending.request, decision)
                for pending in waiting
                if (decision := self._decide(pending)) is not None
            ]
        action = self.hooks.find_late_action(call_id)
        return [] if action is None else [action]

    def _accept_permission_hook_answer(
        self, event: HookEvent, answer: object
    ) -> list[FrontendAction]:
        """Decide about a tool call by the answer of a PermissionRequest hook. A rule that denies the
        call still applies. The prompt for the call is withdrawn.
        """
        pending = self._find_pending_frontend_decision(event.call_id)
        if pending is None:
            return []
        request = pending.request
        hook_decision = find_permission_hook_decision(answer)
        if hook_decision is None:
            if pending.fallback_denial is None or self.hooks.is_waiting_for_call_hook(
                PERMISSION_EVENT, event.call_id
            ):
                return []
            del self._pending[request.request_id]
            return [PermissionDecided(request, pending.fallback_denial)]
        if pending.prompt_id is None:
            del self._pending[request.request_id]
        else:
            self._cancel_prompt(pending)
        response = {"response": hook_decision}
        decision = self._gate.check_answer(
            request, parse_permission_decision(response), self._merge_hook_decisions(pending)
        )
        decision = decision._replace(needs_notice=pending.prompt_id is None)
        self.hooks.start_call(event.call_id)
        self.session_state.apply_permission_updates(parse_permission_updates(response))
        return [PermissionDecided(request, decision), *self._apply_requested_mode(response)]

    def _find_pending_frontend_decision(self, call_id: str) -> PendingPermission | None:
        """Return the request for a tool call that only the frontend can decide, or None."""
        for pending in self._pending.values():
            waits_for_frontend = (
                pending.prompt_id is not None or pending.fallback_denial is not None
            )
            if waits_for_frontend and pending.request.call_id == call_id:
                return pending
        return None

    def _apply_requested_mode(self, response: Mapping[str, Any]) -> list[FrontendAction]:
        """Change to the permission mode that an answer requests, if the session allows
        that mode.
        """
        mode = find_requested_permission_mode(response)
        if mode is None:
            return []
        try:
            REQUEST_HANDLERS["set_permission_mode"](self, {"mode": mode})
        except ControlRequestError as error:
            self.warnings.append(f"{error}\n")
            return []
        return self._report_mode()

    def _refuse_open_requests(self, message: str) -> list[FrontendAction]:
        """Refuse all open permission requests.

        If `message` is empty, the reason is an interrupt, and the frontend's prompts are also
        cancelled (C10).
        """
        denial = PermissionDecision(False, message=message)
        if not message:
            denial = PermissionDecision(False, message=self._interrupt_text, ends_turn=True)
            for pending in self._list_open_prompts():
                self._withdraw_prompt(pending)
        # Requests with an open prompt are refused first.
        refused = sorted(self._pending.values(), key=lambda pending: pending.prompt_id is None)
        self._pending.clear()
        self.hooks.skip_open_hooks()
        return [PermissionDecided(pending.request, denial) for pending in refused]

    # -- permission requests -----------------------------------------------------------------------

    # The maximum time that a prompt stays open. Subclasses may set a limit.
    prompt_timeout_s = float("inf")
    _prompt_abilities = PermissionPromptAbilities()
    _timeout_text = PROMPT_TIMEOUT_TEXT
    _interrupt_text = ""  # the denial message after an interrupt

    def expire_prompt(self, request: PermissionRequest) -> PermissionDecision | None:
        """Cancel the prompt for a permission request that has waited too long. Return the denial,
        or None if no prompt is open.
        """
        for pending in self._list_open_prompts():
            if pending.request is request:
                self._cancel_prompt(pending)
                return PermissionDecision(False, message=self._timeout_text)
        return None

    def withdraw_request(self, request_id: str) -> PermissionRequest | None:
        """Remove a permission request that the vendor has withdrawn, and cancel its prompt. Return
        the request, or None if it is already decided.
        """
        pending = self._pending.get(request_id)
        if pending is None:
            return None
        if pending.prompt_id is None:  # the request still waits for hooks
            del self._pending[request_id]
        else:
            self._cancel_prompt(pending)
        return pending.request

    def _cancel_prompt(self, pending: PendingPermission) -> None:
        del self._pending[pending.request.request_id]
        self._withdraw_prompt(pending)
        self._write_running_state()

    def _withdraw_prompt(self, pending: PendingPermission) -> None:
        """Tell the frontend to close a permission prompt."""
        line = {"type": "control_cancel_request", "request_id": pending.prompt_id}
        self._lines.append(dump_json(line) + b"\n")

    def _write_running_state(self) -> None:
        if not self._list_open_prompts():
            self.write_session_state("running")

    def decide_permission(
        self, request: PermissionRequest, *, has_hook_commands: bool = False
    ) -> PermissionDecision | None:
        """Decide about a vendor's tool call, or ask the frontend. Return None if the decision is
        made later.

        The frontend's hook callbacks were already sent when the tool call was written
        (`SessionHooks.call_hooks`). If `has_hook_commands` is set, the caller must run the hook
        commands next and pass their result to `apply_hook_decision`.
        """
        return self._decide(PendingPermission(request, runs_commands=has_hook_commands))

    def _decide(self, pending: PendingPermission) -> PermissionDecision | None:
        """Decide about a tool call, ask the frontend, or wait for hooks."""
        request = pending.request
        outcome = self._gate.decide(
            request,
            self._merge_hook_decisions(pending),
            has_open_hooks=pending.runs_commands
            or self.hooks.is_waiting_for_call_hook(PRE_TOOL_EVENT, request.call_id),
            prompt_error=self._find_prompt_error(),
        )
        if isinstance(outcome, WaitForHooks):
            self._pending[request.request_id] = pending
            return None
        self._pending.pop(request.request_id, None)
        if isinstance(outcome, FrontendDecisionRequired):
            return self._ask_frontend(pending, outcome)
        return outcome

    def _ask_frontend(
        self, pending: PendingPermission, required: FrontendDecisionRequired
    ) -> PermissionDecision | None:
        """Ask the frontend by a prompt, if it shows prompts, and by its PermissionRequest hooks.
        Return a decision if the frontend cannot be asked.
        """
        request = pending.request
        denial = required.fallback_denial
        if denial is None:
            denial = self._write_prompt(pending, required.tool_input)
            if denial is not None:
                return denial
            self._requests_with_new_prompt.append(request)
        if request.tool == QUESTION_TOOL or not self.hooks.has_hooks:
            return denial
        if not self.hooks.call_permission_hooks(request, required.tool_input):
            return denial
        if denial is not None:
            self._pending[request.request_id] = pending._replace(fallback_denial=denial)
        return None

    def take_requests_with_new_prompt(self) -> list[PermissionRequest]:
        """Return the requests whose prompts were written since the last call. The caller starts the
        timeouts of these prompts.
        """
        requests = self._requests_with_new_prompt
        self._requests_with_new_prompt = []
        return requests

    def _merge_hook_decisions(self, pending: PendingPermission) -> HookDecision:
        call_decision = self.hooks.call_decisions.get_decision(pending.request.call_id)
        return call_decision.merge(pending.command_decision)

    def _find_prompt_error(self) -> str:
        """Return the reason why the frontend cannot be asked now, or ""."""
        if self.is_input_closed:
            return STREAM_CLOSED_TEXT
        if len(self._list_open_prompts()) >= MAX_OPEN_PROMPTS:
            return TOO_MANY_PROMPTS_TEXT
        return ""

    def _write_prompt(
        self, pending: PendingPermission, tool_input: Mapping[str, Any]
    ) -> PermissionDecision | None:
        """Ask the frontend about a tool call. Return a denial if the prompt cannot be written."""
        request = pending.request
        prompt_id = self._create_id()
        suggestions = self.session_state.suggest_permission_updates(request.tool, tool_input)
        prompt = build_permission_prompt(
            request, tool_input, suggestions, self.session_state.options.cwd
        )
        line = {"type": "control_request", "request_id": prompt_id, "request": prompt}
        line_json = dump_json(line) + b"\n"
        if len(line_json) > self.session_state.options.max_line_bytes:
            message = CALL_TOO_LARGE_TEXT.format(size=len(line_json))
            return PermissionDecision(False, message=message)
        self._pending[request.request_id] = pending._replace(prompt_id=prompt_id, prompt_line=line)
        self.write_session_state("requires_action")
        self._lines.append(line_json)
        return None

    def accept_hook_result(
        self, call: "HookCommandCall", result: "HookCommandResult"
    ) -> list[FrontendAction]:
        """Process the result of a hook command. Return the resulting actions."""
        from shim.core.claude.hooks.commands import parse_hook_stdout

        self.hooks.report_result(call, result)
        if call.hook.runs_in_background:
            return []
        if call.event.name != PERMISSION_EVENT:
            return self.hooks.accept_result(call, result)
        if self.hooks.pop_open_hook(call.call_id) is None:
            return []
        # As with the real claude, only the decision in the output counts. No exit code denies the
        # call.
        output = parse_hook_stdout(result.stdout, call.event.name)
        return self._accept_permission_hook_answer(call.event, output)

    @property
    def has_undecided_requests(self) -> bool:
        """Whether a permission request waits for hooks or for the frontend's answer."""
        return bool(self._pending)

    def is_awaiting_hook_decisions(self, request: PermissionRequest) -> bool:
        """Return whether a permission request is waiting for a hook."""
        # The vendor may reuse a request id in a later turn.
        pending = self._pending.get(request.request_id)
        if pending is None or pending.request is not request:
            return False
        return pending.prompt_id is None

    def decide_permission_without_hooks(
        self, request: PermissionRequest
    ) -> PermissionDecision | None:
        """Decide about a permission request without the hooks that did not answer in time."""
        if not self.is_awaiting_hook_decisions(request):
            return None
        denial = self._pending[request.request_id].fallback_denial
        if denial is not None:
            del self._pending[request.request_id]
            return denial
        self.hooks.skip_call_hooks(request.call_id)
        return self._decide(self._pending[request.request_id])

    def apply_hook_decision(
        self, request: PermissionRequest, decision: HookDecision
    ) -> tuple[bool, PermissionDecision | None]:
        """Continue a permission request with the decision of the hook commands from settings files.

        Return (False, None) if the request is not waiting for hook commands. Otherwise return True
        and the decision, or None instead of the decision if it is made later.
        """
        pending = self._pending.get(request.request_id)
        if pending is None or not pending.runs_commands or pending.request is not request:
            return False, None
        if decision.allow is False:  # other requests for the same call are also denied
            self.hooks.call_decisions.add_decision(request.call_id, decision)
        elif decision.stops_turn:
            self.hooks.call_decisions.add_decision(request.call_id, HookDecision(stops_turn=True))
        return True, self._decide(pending._replace(runs_commands=False, command_decision=decision))

    def start_turn(self, prompt: str | None) -> None:
        """Start a turn for the user's message, and call the UserPromptSubmit hooks. `prompt` is None
        if no hooks run for the message.
        """
        self.is_running = self.has_started = True
        self.session_state.sdk_servers.initialize_servers()
        self.write_session_state("running")
        if prompt is not None:
            self.hooks.call_prompt_hooks(prompt)

    def end_turn(self) -> None:
        """End the turn after its result was written. The session state changes from "running" to
        "idle" (contract S18).
        """
        self.is_running = False
        self._pending.clear()
        self.hooks.end_turn()
        if self.session_state.agent_requests is not None:
            self.session_state.agent_requests.stop_runs(TURN_OVER_TEXT)
        self.write_session_state("idle")
