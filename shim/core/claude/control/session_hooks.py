"""Calls the hooks of a session, and stores what their answers mean for the conversation.

The hooks are callbacks in the frontend (contract C11) and commands from Claude's settings files.
The caller runs the commands, and passes their results to the control session.
"""

from collections.abc import Callable, Mapping

from shim.core.claude.control.actions import FrontendAction, ToolCallBlocked, TurnStoppedByHook
from shim.core.claude.control.session_lines import ControlOutputWriter
from shim.core.claude.hooks.answers import (
    HookDecision,
    PromptHookRejection,
    ToolCallHookDecisions,
    parse_hook_output,
    parse_prompt_hook_rejection,
)
from shim.core.claude.hooks.callbacks import (
    MAX_OPEN_HOOKS,
    HookContext,
    HookEvent,
    build_hook_input,
    build_prompt_event,
    build_stop_event,
)
from shim.core.claude.hooks.feedback import (
    HookFeedback,
    HookFeedbackQueue,
    parse_hook_feedback,
)
from shim.core.claude.permissions import CALL_TOO_LARGE_TEXT, PermissionRequest
from shim.core.claude.session_state import SessionState
from shim.core.policy import (
    PERMISSION_EVENT,
    PRE_COMPACT_EVENT,
    PRE_TOOL_EVENT,
    PROMPT_EVENT,
    RESULT_EVENT,
    RESULT_EVENTS,
)
from shim.core.policy.policy import Workspace
from shim.core.reading.bounded_dict import BoundedDict
from shim.core.reading.json_text import dump_json
from shim.core.reading.limits import shorten_line_to_fit
from shim.core.reading.typed import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from shim.core.claude.hooks.commands import HookCommandCall, HookCommandResult
    from shim.core.policy.settings_hooks import SettingsHook

CALLBACK_REFUSAL_TEXT = "[callback]"  # the real claude does not show a callback's reason
FAILED_CALLBACK_TEXT = "{event}: the hook callback {callback} failed, so it had no effect."
CHANGED_INPUT_TEXT = "a hook changed the input of {tool}, but the call runs with its original input"


class OpenHook(NamedTuple):
    """A hook that has not answered yet. `callback_id` is "" for a command."""

    event: HookEvent
    callback_id: str


class SessionHooks:
    """The hooks of a session.

    feedback        the feedback that the model has not received yet
    call_decisions  the decisions about the turn's tool calls
    """

    def __init__(
        self,
        session_state: SessionState,
        output: ControlOutputWriter,
        create_id: Callable[[], str],
    ) -> None:
        self.feedback = HookFeedbackQueue()
        self.call_decisions = ToolCallHookDecisions()
        self._state = session_state
        self._output = output
        self._create_id = create_id
        # The hooks that may decide about a tool call, by the id of their request: callbacks, and the
        # commands of PermissionRequest hooks. They have a table of their own, so that hooks with
        # feedback cannot evict a hook that may still deny a call.
        self._open_call_hooks = BoundedDict[str, OpenHook](MAX_OPEN_HOOKS)
        # The callbacks whose feedback the turn waits for, by the id of their request.
        self._open_feedback_hooks = BoundedDict[str, OpenHook](MAX_OPEN_HOOKS)
        self._command_calls: list[HookCommandCall] = []
        self._permission_calls: list[HookCommandCall] = []
        self._executed_calls = BoundedDict[str, None](MAX_OPEN_HOOKS)
        self._call_starts = BoundedDict[str, int](MAX_OPEN_HOOKS)  # call id → elapsed ms
        self._waits_for_prompt_hooks = False  # the user's message is not sent yet
        self._prompt_rejection: PromptHookRejection | None = None  # the first one
        self._compaction_refusal = ""  # why a hook command has blocked a compaction

    @property
    def has_hooks(self) -> bool:
        """Whether the frontend or Claude's settings files have hooks."""
        state = self._state
        if state.policy is not None and state.policy.hooks:
            return True
        return bool(state.hooks or state.options.event_hooks)

    # -- calls -------------------------------------------------------------------------------------

    def call_hooks(self, event: HookEvent) -> None:
        """Call the frontend's hooks for an event, and request the hook commands from Claude's
        settings files (`take_command_calls`).
        """
        if not self.has_hooks:
            return
        event = self._complete_event(event)
        self.send_callbacks(event)
        self._command_calls += self._create_command_calls(event)

    def call_prompt_hooks(self, prompt: str) -> None:
        """Call the UserPromptSubmit hooks for a message that is sent after their answers."""
        self._waits_for_prompt_hooks = True
        self._prompt_rejection = None
        self.call_hooks(build_prompt_event(prompt))

    def call_stop_hooks(self, last_text: str, *, has_continued: bool) -> None:
        """Ask the Stop hooks whether the turn may end. `feedback` receives their answers."""
        self.feedback.stops_turn = False
        self.call_hooks(build_stop_event(last_text, has_continued=has_continued))

    def call_permission_hooks(
        self, request: PermissionRequest, tool_input: Mapping[str, Any]
    ) -> bool:
        """Call the PermissionRequest hooks for a tool call: the callbacks, and the hook commands
        (`take_permission_calls`). Return whether one of them may decide.
        """
        suggestions = self._state.suggest_permission_updates(request.tool, tool_input)
        event = HookEvent(
            PERMISSION_EVENT,
            request.call_id,
            request.tool,
            tool_input,
            fields={"permission_suggestions": suggestions},
        ).resolve_paths(self._state.options.cwd)
        calls = self._create_command_calls(event)
        self._permission_calls += calls
        for call in calls:
            if not call.hook.runs_in_background:
                self._open_call_hooks[call.call_id] = OpenHook(event, "")
        self.send_callbacks(event)
        return self.is_waiting_for_call_hook(PERMISSION_EVENT, request.call_id)

    def _complete_event(self, event: HookEvent) -> HookEvent:
        """Return an event with absolute paths and, for a tool result, with the call's duration."""
        event = event.resolve_paths(self._state.options.cwd)
        if event.name == PROMPT_EVENT:
            self._state.prompt_id = self._create_id()
        elif event.name == PRE_TOOL_EVENT:
            self.start_call(event.call_id)
        elif event.name in RESULT_EVENTS and event.call_id in self._call_starts:
            start_ms = self._call_starts.pop(event.call_id)
            duration_ms = self._state.options.elapsed_ms() - start_ms
            return event._replace(duration_ms=max(duration_ms, 0))
        return event

    def start_call(self, call_id: str) -> None:
        """Record that a tool call may start to run now. Hooks and prompts before the call do not
        count in its duration.
        """
        self._call_starts[call_id] = self._state.options.elapsed_ms()

    def build_context(self) -> HookContext:
        """Return the members of a hook's input that describe the session."""
        state = self._state
        return HookContext(
            state.options.session_id,
            state.options.find_transcript(),
            state.mode,
            state.options.cwd,
            state.prompt_id,
            state.effort,
        )

    def send_callbacks(self, event: HookEvent) -> None:
        """Send an event to the frontend's hook callbacks."""
        if self._output.is_input_closed or not self._state.hooks:
            return
        for callback_id in self._state.hooks.list_callback_ids(event):
            request = {
                "subtype": "hook_callback",
                "callback_id": callback_id,
                "input": build_hook_input(event, self.build_context()),
                "tool_use_id": event.call_id or self._create_id(),
            }
            request_id = self._create_id()
            line = {"type": "control_request", "request_id": request_id, "request": request}
            if event.name == PRE_TOOL_EVENT:
                self._ask_before_call(event, line)
                continue
            table = self._open_feedback_hooks
            if event.name == PERMISSION_EVENT:
                table = self._open_call_hooks
            table[request_id] = OpenHook(event, callback_id)
            self._output.write_line(line)

    def _ask_before_call(self, event: HookEvent, line: dict[str, Any]) -> None:
        """Send a tool call to a PreToolUse callback.

        If the vendor asks for permission, a call with too much input is denied. Its input is not
        shortened, because the hook might return the shortened arguments, and the vendor would run
        them.
        """
        size_bytes = len(dump_json(line)) + 1
        max_bytes = self._state.options.max_line_bytes
        if size_bytes > max_bytes:
            if self._state.asks_permissions:
                reason = CALL_TOO_LARGE_TEXT.format(size=size_bytes)
                self.call_decisions.add_decision(event.call_id, HookDecision(False, reason))
                return
            line = shorten_line_to_fit(line, max_bytes)
            event = event._replace(tool_input=line["request"]["input"]["tool_input"])
        callback_id = line["request"]["callback_id"]
        self._open_call_hooks[line["request_id"]] = OpenHook(event, callback_id)
        self._output.write_line(line)

    def _create_command_calls(self, event: HookEvent) -> "list[HookCommandCall]":
        """Return the hook commands from Claude's settings files that must run for an event."""
        hooks = self._state.options.event_hooks
        if not hooks or self._state.vendor.runs_settings_hooks:
            return []
        from shim.core.claude.hooks.commands import HookCommandCall, select_hooks

        workspace = Workspace(self._state.options.cwd)
        if self._state.policy is not None:
            workspace = self._state.policy.workspace
        selected_hooks = select_hooks(hooks, event, workspace)
        if not selected_hooks:
            return []
        stdin = dump_json(build_hook_input(event, self.build_context())) + b"\n"
        return [HookCommandCall(hook, event, stdin, self._create_id()) for hook in selected_hooks]

    @property
    def has_command_calls(self) -> bool:
        """Whether hook commands must run now."""
        return bool(self._command_calls)

    def take_command_calls(self) -> "list[HookCommandCall]":
        """Return the hook commands that must run now, and remove them."""
        calls = self._command_calls
        self._command_calls = []
        return calls

    def take_permission_calls(self) -> "list[HookCommandCall]":
        """Return the commands of PermissionRequest hooks that must run now, and remove them."""
        calls = self._permission_calls
        self._permission_calls = []
        return calls

    # -- open hooks --------------------------------------------------------------------------------

    def pop_open_hook(self, request_id: str) -> OpenHook | None:
        """Remove and return a hook that is answered now. Return None if it is not open."""
        hook = self._open_call_hooks.pop(request_id, None)
        return hook or self._open_feedback_hooks.pop(request_id, None)

    def is_waiting_for_call_hook(self, event_name: str, call_id: str) -> bool:
        """Return whether a hook that may decide about a tool call is still unanswered."""
        return any(
            hook.event.name == event_name and hook.event.call_id == call_id
            for hook in self._open_call_hooks.values()
        )

    def is_running_command(self, call_id: str) -> bool:
        """Return whether a command of a PermissionRequest hook is running for a tool call."""
        return any(
            hook.event.call_id == call_id and not hook.callback_id
            for hook in self._open_call_hooks.values()
        )

    @property
    def is_waiting_for_prompt_hooks(self) -> bool:
        """Whether a UserPromptSubmit hook must still answer before the message is sent."""
        if not self._waits_for_prompt_hooks:
            return False
        return any(hook.event.name == PROMPT_EVENT for hook in self._open_feedback_hooks.values())

    @property
    def is_waiting_for_feedback(self) -> bool:
        """Whether a hook is still unanswered whose feedback the turn waits for."""
        return bool(self._open_feedback_hooks)

    def skip_feedback(self) -> None:
        """Ignore the answers of the hooks whose feedback the turn has waited for."""
        self._open_feedback_hooks.clear()

    def skip_call_hooks(self, call_id: str) -> None:
        """Ignore the answers of the hooks before a tool call that are still unanswered."""
        for request_id, hook in [*self._open_call_hooks.items()]:
            if hook.event.name == PRE_TOOL_EVENT and hook.event.call_id == call_id:
                del self._open_call_hooks[request_id]

    def skip_open_hooks(self) -> None:
        """Ignore the answers of all hooks that are still unanswered."""
        self._open_call_hooks.clear()
        self._open_feedback_hooks.clear()

    def end_turn(self) -> None:
        """Ignore open hooks, and clear what belongs to the turn's message and its tool calls."""
        self.skip_open_hooks()
        self._waits_for_prompt_hooks = False
        self.call_decisions.clear()
        self._executed_calls.clear()
        self.feedback.end_turn()

    # -- answers -----------------------------------------------------------------------------------

    def accept_answer(self, hook: OpenHook, response: Mapping[str, Any]) -> list[FrontendAction]:
        """Process the response of a callback, except for a PermissionRequest hook's decision.
        Return the resulting actions.
        """
        event = hook.event
        answer = response.get("response")
        self._report_invalid_answer(hook, response)
        if event.name == PERMISSION_EVENT:
            return []
        if event.name == PROMPT_EVENT:
            self._reject_prompt(event, answer)
        elif event.name == PRE_TOOL_EVENT:
            self._add_call_decision(event, answer)
        return self._store_feedback(event, parse_hook_feedback(event, answer))

    def _report_invalid_answer(self, hook: OpenHook, response: Mapping[str, Any]) -> None:
        """Warn the user about a hook that answered with an error. The hook has no effect."""
        if response.get("subtype") == "error" and self._output.is_running:
            text = FAILED_CALLBACK_TEXT.format(event=hook.event.name, callback=hook.callback_id)
            self._output.write_system_message(
                "informational", content=text, level="warning", tag="hook_callback_failed"
            )

    def _add_call_decision(self, event: HookEvent, answer: object) -> None:
        """Store a PreToolUse callback's decision."""
        self.start_call(event.call_id)
        decision = parse_hook_output(answer)
        if decision.updated_input == event.tool_input:
            # The vendor has these arguments, but perhaps with relative paths.
            decision = decision._replace(updated_input=None)
        if not self._state.asks_permissions and decision.updated_input is not None:
            decision = HookDecision(False, CHANGED_INPUT_TEXT.format(tool=event.tool))
        self.call_decisions.add_decision(event.call_id, decision)

    def find_late_action(self, call_id: str) -> FrontendAction | None:
        """Return the action that results from the decision about a tool call for which the vendor
        does not ask, or None.
        """
        decision = self.call_decisions.get_decision(call_id)
        is_executed = call_id in self._executed_calls
        is_blocked = decision.allow is False or decision.requires_prompt
        if is_blocked and (is_executed or not self._state.asks_permissions):
            return ToolCallBlocked(call_id, decision.reason)
        if decision.stops_turn and is_executed:
            return TurnStoppedByHook()
        return None

    def record_executed_call(self, call_id: str) -> FrontendAction | None:
        """Record that a tool call has run. Return an action if a hook had denied the call or ends
        the turn, otherwise None.
        """
        self._executed_calls[call_id] = None
        decision = self.call_decisions.get_decision(call_id)
        if decision.allow is False:
            return ToolCallBlocked(call_id, decision.reason)
        if decision.stops_turn:
            return TurnStoppedByHook()
        return None

    def _store_feedback(self, event: HookEvent, feedback: HookFeedback) -> list[FrontendAction]:
        """Store the texts that a hook has for the model, and show its message to the user."""
        self.feedback.add(feedback)
        if feedback.notice and self._output.is_running:
            level = "warning" if feedback.is_failure else "notice"
            self._output.write_system_message("informational", content=feedback.notice, level=level)
        if feedback.stops_turn and event.name == RESULT_EVENT:
            return [TurnStoppedByHook()]
        return []

    def _reject_prompt(self, event: HookEvent, answer: object, reason: str = "") -> None:
        """Store the rejection of the user's message, if a hook's answer is the first rejection.
        `reason` replaces the answer's reason.
        """
        if self._prompt_rejection is not None or not self._waits_for_prompt_hooks:
            return
        rejection = parse_prompt_hook_rejection(answer, event.fields["prompt"])
        if rejection is not None and reason:
            rejection = rejection._replace(reason=reason)
        self._prompt_rejection = rejection

    def take_prompt_rejection(self) -> PromptHookRejection | None:
        """Return the first rejection of the user's message by a hook, and remove it. Return None if
        no hook has rejected the message. Answers that arrive later are ignored.
        """
        self._waits_for_prompt_hooks = False
        rejection = self._prompt_rejection
        self._prompt_rejection = None
        return rejection

    # -- results of commands -----------------------------------------------------------------------

    def report_start(self, call: "HookCommandCall") -> None:
        """Tell the frontend that a hook command has started."""
        from shim.core.claude.hooks.commands import build_started_fields, is_reported

        if is_reported(call.event, reports_all=self._state.options.shows_hook_events):
            self._output.write_system_message("hook_started", **build_started_fields(call))

    def report_result(self, call: "HookCommandCall", result: "HookCommandResult") -> None:
        """Tell the frontend the result of a hook command."""
        from shim.core.claude.hooks.commands import build_response_fields, is_reported

        if is_reported(call.event, reports_all=self._state.options.shows_hook_events):
            fields = build_response_fields(call, result)
            self._output.write_system_message("hook_response", **fields)

    def accept_result(
        self, call: "HookCommandCall", result: "HookCommandResult"
    ) -> list[FrontendAction]:
        """Process the result of a hook command, except for a PermissionRequest hook. Return the
        resulting actions.
        """
        from shim.core.claude.hooks.commands import format_block_reason, parse_hook_result

        answer = parse_hook_result(call.hook, call.event, result)
        if call.event.name == PROMPT_EVENT:
            self._reject_prompt(call.event, answer.output, answer.reason)
        if call.event.name == PRE_COMPACT_EVENT and not self._compaction_refusal:
            self._compaction_refusal = format_block_reason(call.hook, answer)
        feedback = parse_hook_feedback(call.event, answer.output, call.hook.format_command_line())
        if answer.text:
            feedback = feedback._replace(texts=(answer.text,))
        return self._store_feedback(call.event, feedback)

    def accept_result_before_call(
        self, event: HookEvent, hook: "SettingsHook", result: "HookCommandResult"
    ) -> None:
        """Store the texts that a PreToolUse command has for the model and the user. The caller
        passes its decision to `ControlSession.apply_hook_decision`.
        """
        from shim.core.claude.hooks.commands import parse_hook_stdout

        output = parse_hook_stdout(result.stdout, event.name)
        self._store_feedback(event, parse_hook_feedback(event, output, hook.format_command_line()))

    def take_compaction_refusal(self) -> str:
        """Return the reason of the hook that has blocked a compaction, and remove it."""
        refusal = self._compaction_refusal
        self._compaction_refusal = ""
        return refusal or CALLBACK_REFUSAL_TEXT
