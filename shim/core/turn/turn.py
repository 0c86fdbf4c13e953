"""A turn of a conversation. Its methods record what the vendor reports, and write Claude's lines.

A vendor's translator may call the methods in any order. The Turn decides which lines must be
written before an event, and which must be omitted. `init` comes first, content blocks never
overlap, each tool call has exactly one result, and the last line is the only `result`. The Turn is
pure: it uses no clock, no files and no random numbers.

    context              configuration, conversation, output, state machine, outcome
    user_messages        the messages that the turn answers
    text_blocks          text and thinking
    assistant_message    the current reply: usage, stop reason, text
    tool_calls           tool calls and results
    subagents            the subagents that tool calls run
    permission_requests  permission requests

Each part uses the context and the parts that its constructor receives. The Turn uses all parts and
writes the end of the turn.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from shim.core.api_errors import ApiFailure, TurnEndCause, classify_api_error
from shim.core.claude.argv.models import OfferedModel
from shim.core.claude.hooks.callbacks import HookEvent, build_compaction_events
from shim.core.claude.offered_commands import OfferedCommand
from shim.core.claude.output_writer import OutputWriter
from shim.core.claude.permissions import PermissionRequest
from shim.core.claude.usage import Usage, parse_count_or_zero, parse_dollars
from shim.core.errors import FailedVendorAttempt
from shim.core.policy import STOP_EVENT, STOP_FAILURE_EVENT
from shim.core.policy.policy import SUBAGENT_TOOL
from shim.core.reading.diagnostics import Diagnostics
from shim.core.reading.values import as_str, canonicalize_uuid
from shim.core.turn import outcome as outcomes
from shim.core.turn.assistant_message import AssistantMessage
from shim.core.turn.context import (
    MAX_NAME_CHARS,
    ConversationState,
    JsonSchemaAnswer,
    TurnCommand,
    TurnConfig,
)
from shim.core.turn.init_line import build_init_fields, clean_vendor_info
from shim.core.turn.machine import (
    CLOSED,
    DONE,
    ECHO,
    NEW,
    READY,
    TEXT,
    THINKING,
    TransitionAction,
)
from shim.core.turn.outcome import ChildExit, TurnOutcome, TurnSnapshot
from shim.core.turn.permission_requests import PermissionRequests
from shim.core.turn.result import (
    INTERRUPTED,
    INTERRUPTED_IN_TOOL,
    FinishedTurn,
    TurnResult,
    add_result_fields,
    build_minimal_error_result,
    build_turn_result,
    choose_answer,
)
from shim.core.turn.subagents import Subagent, SubagentTracker
from shim.core.turn.text_blocks import TextBlocks
from shim.core.turn.tool_calls import OpenCall, ToolCalls
from shim.core.turn.turn_context import TurnContext
from shim.core.turn.user_messages import UserMessages

WriteLine = Callable[
    [bytes, dict[str, Any]], None
]  # arguments: line without its newline, parsed line


class Turn:
    """A turn of a conversation. `result` is None until the turn has ended.

    A method that a single part implements is assigned in the constructor.
    """

    def __init__(
        self,
        writer: OutputWriter,
        config: TurnConfig,
        conversation: ConversationState,
        diagnostics: Diagnostics,
        redact: Callable[[Any], Any] | None = None,
        before_move: TransitionAction | None = None,
    ) -> None:
        """`redact` returns a value without its secrets. If `redact` is None, secrets are not
        removed.

        `before_move` is called before each change of the turn's state.
        """
        self.writer = writer
        self.config = config
        self.conversation = conversation
        self.diagnostics = diagnostics
        self.context = context = TurnContext(
            writer, config, conversation, diagnostics, redact, before_move
        )
        self.machine = machine = context.machine
        self.outcome_tracker = outcome_tracker = context.outcome_tracker
        self.user_messages = user_messages = UserMessages(context)
        self.assistant_message = message = AssistantMessage(context)
        self.text_blocks = text_blocks = TextBlocks(context, message)
        self.tool_calls = tool_calls = ToolCalls(context, message, self.finish)
        self.permission_requests = permission_requests = PermissionRequests(context, tool_calls)
        self.subagents = SubagentTracker(context, message, tool_calls)
        self.vendor_info: dict[str, Any] = {}  # what the vendor reported about itself
        self.result: TurnResult | None = None
        self.retry_failure: ApiFailure | None = None  # the cause of the vendor's last API retry
        self.command = TurnCommand()
        self.sends_heartbeats = False  # whether a vendor without any output counts as hung
        self.is_terminated = True  # False if the result still needs its terminator line
        self.open_calls: dict[str, OpenCall] = tool_calls.open_calls  # calls without a result
        self.set_user_message = user_messages.set_message
        self.add_steering_message = user_messages.add_steering_message
        self.update_message = message.update
        self.add_usage = message.add_usage
        self.end_message = message.end
        if config.limits.max_budget_usd is not None:
            self.end_message = self._end_message_with_budget
        self.add_text = text_blocks.add_text
        self.add_block = text_blocks.add_block
        self.end_block = text_blocks.end_block
        self.retract_message = text_blocks.retract_message
        self.add_tool_call = tool_calls.add_tool_call
        self.add_tool_result = tool_calls.add_tool_result
        self.fill_open_call_results = tool_calls.write_result_for_each_open_call
        self.find_call = tool_calls.find_call
        self.replace_call_input = tool_calls.replace_call_input
        self.stop_for_forbidden_call = tool_calls.stop_turn_for_forbidden_call
        self.request_permission = permission_requests.add
        self.defer_call = permission_requests.defer_call
        self.defer_unnamed_call = permission_requests.defer_unnamed_call
        self.write_deferred_call = permission_requests.write_deferred_call
        self.stop_waiting_for_call_input = permission_requests.deferred_calls.stop_waiting_for_input
        self.record_unknown_event = diagnostics.record_unknown_event
        self.record_vendor_completion = outcome_tracker.record_vendor_completion
        self.cancel_vendor_completion = outcome_tracker.cancel_vendor_completion
        self.record_possible_turn_end = outcome_tracker.record_possible_turn_end
        self.stop = outcome_tracker.stop
        machine.set_transition_actions(
            init=self._write_init,
            request=self.tool_calls.report_model_request,
            start=self._start_message,
            text=text_blocks.start_text_block,
            thinking=text_blocks.start_thinking_block,
            close=text_blocks.write_open_block,
            stop=message.write_message_stop,
            unecho=text_blocks.finish_fully_repeated_message,
            fill=self._write_missing_results,
            end=self._write_result,
        )

    # -- properties for the drivers and the translators --------------------------------------------

    def wrap_passthrough_line_writer(self, write_line: WriteLine) -> WriteLine:
        """Return the function to call with each line from the real claude. This class returns
        `write_line` itself, and subclasses can wrap it.
        """
        return write_line

    @property
    def is_error(self) -> bool:
        """Whether the turn's result is an error. False while there is no result."""
        if self.result is None:
            return False
        return self.result.is_error

    @property
    def end_cause(self) -> TurnEndCause | Literal[""]:
        """The reason why the turn ended, or "" if it has not ended."""
        if self.result is None:
            return ""
        return self.result.cause

    @property
    def final_text(self) -> str:
        """The turn's answer or error text, or "" if there is no result yet."""
        if self.result is None:
            return ""
        return self.result.final_text

    # -- session -----------------------------------------------------------------------------------

    def record_vendor_session_info(self, **session_info: Any) -> None:
        """Record what the vendor reports about its session: `session_id`, `model`, `cwd`, `tools`
        (with Claude's names), `mode`, `slash_commands` and others.

        The first call with a session id writes the `init` line, which later calls do not change.
        """
        session_id = session_info.pop("session_id", None)
        if session_id and isinstance(session_id, str):
            self._set_vendor_session(session_id)
        self.vendor_info |= clean_vendor_info(session_info, self.context.sanitizer)
        for server in self.vendor_info.get("mcp_servers", ()):
            self.record_server_status(server.get("name"), server.get("status"))
        if session_id and self.machine.state is NEW:
            self.machine.move_to(READY)

    def record_context_window(self, size_tokens: object, used_tokens: object = None) -> None:
        """Record the size of the current model's context, and the tokens in it if the vendor counts
        them. Invalid numbers are ignored.
        """
        if size := parse_count_or_zero(size_tokens):
            self.conversation.context_window_tokens = size
        if used := parse_count_or_zero(used_tokens):
            self.conversation.context_tokens = used

    def record_server_status(self, name: object, status: object, error: object = "") -> None:
        """Record the status of an MCP server. `status` is one of Claude's status names."""
        if isinstance(name, str) and isinstance(status, str):
            self.conversation.record_server_status(name, status, as_str(error))

    def record_offered_commands(self, commands: tuple[OfferedCommand, ...]) -> None:
        """Record the commands that the vendor offers. If the `init` line has not been written yet,
        it will list these commands.
        """
        self.conversation.offered_commands = commands
        self.vendor_info["slash_commands"] = [
            self.context.sanitizer.clean(command.name) for command in commands
        ]

    def record_offered_models(self, models: tuple[OfferedModel, ...]) -> None:
        """Record the models that the vendor offers. An empty list is ignored."""
        if models:
            self.conversation.offered_models = models

    def _set_vendor_session(self, session_id: str) -> None:
        conversation = self.conversation
        if conversation.vendor_session_id not in (None, session_id):
            self.diagnostics.record("session_id_changed", session_id)
            if self.config.can_retry and self.machine.state is not CLOSED:
                self._change_session_id(session_id)
        conversation.vendor_session_id = session_id

    def _change_session_id(self, vendor_session_id: str) -> None:
        """Continue under the vendor's new session id, if the conversation had used the vendor's
        previous id (Yume's R12).
        """
        conversation = self.conversation
        session_id = canonicalize_uuid(vendor_session_id)
        has_vendor_id = conversation.session_id == conversation.vendor_session_id
        if session_id and conversation.session_id is not None and has_vendor_id:
            conversation.session_id = session_id
            self.writer.write_session_id_change(session_id)

    def set_failed_attempts(self, failed_attempts: tuple[FailedVendorAttempt, ...]) -> None:
        """Set the vendors that were tried before the current one, for the `init` line."""
        self.config = self.config._replace(failed_attempts=failed_attempts)

    def _write_init(self) -> None:
        """Write the init line, followed by the user's message if messages are replayed."""
        config = self.config
        conversation = self.conversation
        message = self.assistant_message
        if conversation.session_id is None:
            conversation.session_id = self._choose_session_id()
        models = (message.model, self.vendor_info.get("model"), config.model, config.default_model)
        model = next(filter(None, models), "unknown")[:MAX_NAME_CHARS]
        redact = self.context.redact
        if redact is None:
            message.model = model
        else:
            message.model = redact(model)
        fields = build_init_fields(config, self.vendor_info, model, redact)
        self.writer.write_init_message(conversation.session_id, fields)
        self.user_messages.write_message()
        if self.command.tokens_before is not None:
            self._write_compaction_status()

    def _choose_session_id(self) -> str:
        """Return the frontend's session id, the vendor's id if it is a UUID, or a new id."""
        session = self.config.session
        if session.requested_id:
            return session.requested_id
        return canonicalize_uuid(self.conversation.vendor_session_id) or session.new_id

    # -- replies -----------------------------------------------------------------------------------

    def _start_message(self) -> None:
        if self.user_messages.steering_messages:
            self.user_messages.write_steering_messages()
        self.assistant_message.start()

    def start_message(self, model: str | None = None, usage: Usage | None = None) -> None:
        """Start a new reply. Nothing is written until the reply's first block."""
        if self.machine.state not in (NEW, READY, ECHO):
            self.machine.move_to(READY)
        self.assistant_message.update(model, usage)

    def add_thinking(self, fragment: str, key: object = None) -> None:
        self.text_blocks.add_block_fragment(THINKING, fragment, key)

    def add_thinking_block(self, full_text: str) -> None:
        """Add a complete thinking block that was not streamed."""
        self.text_blocks.add_block(full_text, THINKING)

    def update_text(self, full_text: str, key: object = None) -> None:
        """Set a text block's full text so far, and write the part that is new.

        If the full text contradicts text that was already written, the contradiction is counted.
        Text that was written cannot be retracted.
        """
        self.text_blocks.update_block_text(TEXT, full_text, key)

    def update_thinking(self, full_text: str, key: object = None) -> None:
        """Set a thinking block's full text so far. It works like `update_text`."""
        self.text_blocks.update_block_text(THINKING, full_text, key)

    # -- calls -------------------------------------------------------------------------------------

    def add_denial(self, call_id: str, name: str, tool_input: Mapping[str, Any]) -> None:
        """Add a refused tool call to `permission_denials` in the result. Each id is only added
        once.

        A tool call that is announced after its denial does not violate a rule, because the call
        never ran.
        """
        self.tool_calls.denials.add(
            self.tool_calls.denials.resolve_call_id_in_output(call_id, name, tool_input),
            name,
            tool_input,
        )

    def record_permission_denial(
        self,
        permission: PermissionRequest,
        message: str,
        *,
        needs_notice: bool = False,
        vendor_knows: bool = True,
    ) -> None:
        """Record that permission for a tool call was denied.

        `needs_notice` is set if the frontend did not deny the permission itself (5.13).
        `vendor_knows` is set if the vendor received the denial before the call ran.
        """
        self.permission_requests.write_refused_call(
            permission.call_id, permission.tool, permission.tool_input
        )
        self.tool_calls.denials.add(permission.call_id, permission.tool, permission.tool_input)
        if needs_notice and self.machine.state is not CLOSED:
            self._write_system_event(
                "permission_denied",
                tool_name=permission.tool,
                tool_use_id=permission.call_id,
                message=message,
            )
        self.tool_calls.record_denial_reason(permission.call_id, message, vendor_knows=vendor_knows)

    def record_approval_with_changed_input(
        self, permission: PermissionRequest, message: str
    ) -> None:
        """Record that a tool call was only allowed with other arguments, so that the original call
        fails. `message` is the text of the call's result. The call does not count as denied.
        """
        self.tool_calls.record_denial_reason(permission.call_id, message)

    def get_subagent(self, parent_call_id: str, usage: Usage | None = None) -> Subagent:
        """Return the subagent that the tool call `parent_call_id` runs. `usage` is the usage of the
        subagent's reply and is added to the turn's usage.
        """
        call = self.tool_calls.open_calls.get(parent_call_id)
        if call is not None:
            return self.subagents.get_subagent(parent_call_id, call[0], usage)
        subagent_call = self.subagents.open_calls.get(parent_call_id)
        if subagent_call is not None:
            return self.subagents.get_subagent(parent_call_id, subagent_call.call_id, usage)
        # The tool call that runs the subagent has ended.
        return self.subagents.get_subagent(
            self.tool_calls.denials.resolve_call_id_in_output(parent_call_id, "", {}),
            None,
            usage,
        )

    def write_agent_blocks(
        self,
        tool_input: Mapping[str, Any],
        blocks: Iterable[Mapping[str, Any]],
    ) -> None:
        """Write the content blocks of a subagent that the shim runs. `tool_input` are the arguments
        of the open tool call that runs it. Without such a call, nothing is written.
        """
        subagent = self._find_agent(tool_input)
        if subagent is not None:
            for block in blocks:
                subagent.write_block(block)

    def write_agent_prompt(self, tool_input: Mapping[str, Any]) -> None:
        """Write the prompt of a subagent that the shim runs."""
        subagent = self._find_agent(tool_input)
        if subagent is not None:
            subagent.add_user_text(as_str(tool_input.get("prompt")))

    def add_agent_usage(self, usage: Usage, cost_usd: float) -> None:
        """Add the usage and the cost of a subagent that the shim ran."""
        self.assistant_message.add_usage(usage)
        self.conversation.cost_usd += cost_usd

    def _find_agent(self, tool_input: Mapping[str, Any]) -> Subagent | None:
        """Return the subagent of the first open call with these arguments, or None."""
        for key, (_, name, call_input) in self.tool_calls.open_calls.items():
            if name == SUBAGENT_TOOL and call_input == tool_input:
                return self.get_subagent(key)
        return None

    # -- system events -----------------------------------------------------------------------------

    def write_system_event(self, subtype: str, **fields: Any) -> None:
        """Write a `system` line. An open content block stays open."""
        self._write_system_event(subtype, **fields)

    def _write_system_event(self, subtype: str, **fields: Any) -> None:
        if self.machine.state is NEW:
            self.machine.move_to(READY)
        if self.machine.state is CLOSED:
            self.machine.record_late_event()
        else:
            self.writer.write_system_message(subtype, self.context.sanitizer.clean(fields))

    def write_retry(self, attempt: int, max_attempts: int, delay_ms: int, message: str) -> None:
        """Write a line that reports a retry of the vendor's API request (contract 5.8,
        `api_retry`).
        """
        self.retry_failure = failure = classify_api_error(message)
        self.write_system_event(
            "api_retry",
            attempt=attempt,
            max_retries=max_attempts,
            retry_delay_ms=delay_ms,
            error_status=failure.status,
            error=failure.api_retry_error_code,
        )

    def write_compaction(self, trigger: str, tokens_before: int) -> None:
        """Write a line that reports a compaction of the vendor's context. `trigger` is `manual` or
        `auto`. `tokens_before` is the context's size before the compaction.
        """
        if self.command.tokens_before is None:
            metadata = {"trigger": trigger, "pre_tokens": tokens_before}
            self.write_system_event("compact_boundary", compact_metadata=metadata)
            # The vendor reports the compaction when it is over, so no hook can prevent it.
            self.tool_calls.add_hook_events(build_compaction_events(trigger))
        elif tokens_before:
            # The user requested this compaction. It is reported at the end of the turn.
            self.command = self.command._replace(tokens_before=tokens_before)

    def start_compaction(self, name: str, tokens_before: int) -> None:
        """Start a turn in which the vendor only compacts its context. `name` is the command's name
        as the user typed it. `tokens_before` is the context's size, as far as it is known.
        """
        self.command = TurnCommand(name, tokens_before)
        if self.machine.state is not NEW:
            self._write_compaction_status()

    def _write_compaction_status(self) -> None:
        self.writer.write_system_message("status", {"status": "compacting"})

    def _finish_compaction(self, outcome: TurnOutcome) -> TurnOutcome:
        """Report the end of a requested compaction. Return the turn's outcome: if the vendor
        refused to compact, the reason is the answer to the user.
        """
        writer = self.writer
        if outcome.kind == "ended":
            writer.write_system_message("status", {"status": None, "compact_result": "success"})
            metadata = {"trigger": "manual", "pre_tokens": self.command.tokens_before}
            writer.write_system_message("compact_boundary", {"compact_metadata": metadata})
            writer.write_compaction_note()
            return outcome
        text = outcome.message or outcome.cause
        failure = {"status": None, "compact_result": "failed", "compact_error": text}
        writer.write_system_message("status", failure)
        if outcome.cause != "vendor_error" or outcome.is_api_error:
            return outcome
        if not self.assistant_message.last_text:
            writer.write_local_command_output(text, is_failed=True)
        return TurnOutcome("ended", fields={**outcome.fields, "result": text})

    def start_new_session(self, old_session_id: str) -> None:
        """Report the end of the session, and continue in a new session. This method is called
        before the turn's first line is written.

        `old_session_id` is the id of the session that ends.
        """
        message = self.user_messages.message
        message_id = None
        if message is not None:
            message_id = message.uuid
        self.writer.write_conversation_reset(old_session_id, message_id)
        self.conversation.start_new_session()

    def write_local_command_answer(self, name: str, text: str, *, is_failed: bool = False) -> None:
        """Write the answer to a command that needs no model, and record the turn's end. `name` is
        the command's name as the user typed it.
        """
        self.command = TurnCommand(name)
        if self.machine.state is NEW:
            self.machine.move_to(READY)
        if text:
            self.writer.write_local_command_output(
                self.context.sanitizer.clean(text), is_failed=is_failed
            )
        self.record_turn_end(result=text, unsent=True)

    def record_heartbeat(self) -> None:
        """Record a heartbeat from the vendor. After the first heartbeat, a vendor without any
        output counts as hung.
        """
        self.sends_heartbeats = True

    # -- end of the turn ---------------------------------------------------------------------------

    def record_turn_end(self, **result_fields: Any) -> None:
        """Record that the vendor has completed the turn. The fields are `usage`, `cost`,
        `duration_ms`, `api_ms`, `result`, `stop_reason` and others.
        """
        self.outcome_tracker.record_turn_end(result_fields)

    def record_failure(
        self,
        message: str,
        *,
        api: bool | None = None,
        kind: TurnEndCause | None = None,
        status: int | None = None,
        subtype: str | None = None,
        **result_fields: Any,
    ) -> None:
        """Record that the turn failed. `kind` is the cause of the failure. None means that the
        cause is derived from the message.

        `api` tells whether an API request to the model failed (contract S10). None means that this
        is also derived from the message.
        """
        self.outcome_tracker.record_failure(message, result_fields, api, kind, status, subtype)

    def record_interrupt(self, **fields: Any) -> None:
        """Record that the turn was interrupted, by the frontend or by the vendor. An interrupt
        takes precedence over the vendor's report about the turn's end.
        """
        self.outcome_tracker.record_interrupt(fields, has_open_call=bool(self.open_calls))

    def prepare_retry(self) -> None:
        """Prepare the turn for another attempt. Text that was already written will not be
        repeated.
        """
        self.outcome_tracker.reset()
        if self.machine.state is DONE:
            goal = NEW
            if self.outcome_tracker.has_started:
                goal = READY
            self.machine.move_to(goal, True)
        if self.machine.state is not NEW:
            self.text_blocks.retract_message()

    def stop_by_hook(self) -> None:
        """End the turn after a tool call, because a hook does not let it continue."""
        self.outcome_tracker.stop_by_hook()
        self.finish()

    @property
    def has_compacted(self) -> bool:
        """Whether the vendor has completed a compaction that the frontend requested."""
        outcome = self.outcome_tracker.outcome
        if outcome is None or self.command.tokens_before is None:
            return False
        return outcome.kind == "ended"

    @property
    def can_continue(self) -> bool:
        """Whether the vendor has completed the turn successfully, so that a hook can continue it. As
        in the real claude, no hook continues a turn for one of Claude's commands.
        """
        outcome = self.outcome_tracker.outcome
        if outcome is None or self.machine.state is CLOSED or self.command.name:
            return False
        if outcome.kind != "ended" or outcome.ended_by_shim:
            return False
        return self._apply_budget(outcome) is outcome

    def list_end_events(self) -> tuple[HookEvent, ...]:
        """Return the events for the hooks at the end of the turn. As in the real claude, no Stop
        hook is called after an interrupt or an error.
        """
        result = self.result
        if result is None:
            return ()
        if result.api_error is not None:
            text, error, *_ = result.api_error
            fields = {"last_assistant_message": text}
            return (HookEvent(STOP_FAILURE_EVENT, trigger=error, fields=fields),)
        if result.is_error:
            return ()
        return (HookEvent(STOP_EVENT),)

    def continue_after_hook(self, visible_texts: Sequence[str]) -> None:
        """Continue a turn that the vendor has completed, because a hook has texts for the model.
        `visible_texts` are written as user messages.
        """
        self.outcome_tracker.continue_after_hook(len(visible_texts))
        if self.machine.state is DONE:
            self.machine.move_to(READY, True)
        for text in visible_texts:
            self.writer.write_synthetic_user_text(text)
        self.tool_calls.report_model_request()

    def finish(self) -> None:
        """Write the result now, without waiting until the child process exits."""
        self.close(None, "")

    @property
    def has_output(self) -> bool:
        """Whether the model has produced any output in this turn: a content block, a tool call, a
        tool result or a permission request.
        """
        activities = (
            self.assistant_message.number,
            self.tool_calls.has_tool_activity,
            self.subagents.table.has_added_call,
            self.permission_requests.pending,
        )
        return any(activities)

    def close(self, child_exit: ChildExit | None, stderr: str) -> None:
        """End the turn after the child's stdout has ended. `child_exit` is None if the shim ended
        the child process.
        """
        machine = self.machine
        if machine.state is CLOSED:
            return
        if machine.state is DONE:
            machine.move_to(READY, True)
        else:
            self.outcome_tracker.has_started = machine.state is not NEW
        self._decide_outcome(child_exit, stderr)
        self.outcome_tracker.child_exit = child_exit
        self.permission_requests.refuse_pending_requests()
        machine.move_to(CLOSED)

    def _decide_outcome(self, child_exit: ChildExit | None, stderr: str) -> None:
        """Set the outcome of the turn. Each step sees the outcome of the previous step, because it
        may write lines that depend on the outcome.
        """
        tracker = self.outcome_tracker
        outcome = outcomes.decide_outcome(self._take_snapshot(), child_exit, stderr)
        tracker.outcome = outcome = self._add_earlier_fields(outcome)
        if outcome.kind != "ended" or self.command.name:
            return
        read_answer = self.config.read_answer
        if read_answer is not None and not outcome.ended_by_shim:
            tracker.outcome = outcome = self._read_structured_answer(read_answer, outcome)
        if outcome.kind == "ended":
            tracker.outcome = self._apply_budget(outcome)

    def find_failed_attempt(
        self, child_exit: ChildExit | None, stderr: str, *, any_cause: bool = False
    ) -> FailedVendorAttempt | None:
        """Return why the vendor gave no answer, if another vendor may be tried. Return None if the
        turn must not be repeated with another vendor.
        """
        return outcomes.find_failed_attempt(
            self._take_snapshot(), child_exit, stderr, any_cause=any_cause
        )

    def can_retry(self, child_exit: ChildExit | None, stderr: str) -> bool:
        """Return whether the turn can be retried: its stream was interrupted before the turn had
        effects that must not happen twice (Yume's R11).
        """
        return outcomes.can_retry_turn(self._take_snapshot(), child_exit, stderr)

    def write_internal_error(self, reason: str) -> None:
        """Write an error result after a bug in `close`. The result does not use the turn's data,
        which could raise an error again.
        """
        self.machine.move_to(CLOSED, True)
        config = self.config
        text = f"internal error: {reason}"
        self.result = TurnResult(
            build_minimal_error_result(config.vendor.name, text), True, "internal", text
        )
        if not self.outcome_tracker.has_started:
            session_id = self.conversation.session_id
            if not session_id:
                session_id = config.session.new_id
            self.writer.write_init_message(session_id, {})
        self.writer.write_result(self.result.line)

    def write_result_terminator_line(self) -> None:
        """Write the terminator line after a passthrough result, unless it was already written."""
        if not self.is_terminated:
            self.is_terminated = True
            self.writer.write_result_terminator_line()

    def create_next(
        self, config: TurnConfig | None = None, diagnostics: Diagnostics | None = None
    ) -> "Turn":
        """Create the conversation's next turn. If `config` is None, this turn's configuration is
        used.
        """
        if config is None:
            config = self.config
        if diagnostics is None:
            diagnostics = self.diagnostics
        turn = type(self)(self.writer, config, self.conversation, diagnostics)
        if config.vendor.name != self.config.vendor.name:
            return turn  # the reports from this turn's vendor do not apply to another vendor
        turn.vendor_info = dict(self.vendor_info)
        if config.model == self.config.model:
            turn.assistant_message.model = self.assistant_message.model
        else:
            turn.vendor_info.pop("model", None)
        return turn

    def _end_message_with_budget(self, *args: Any, **kwargs: Any) -> None:
        self.assistant_message.end(*args, **kwargs)
        self.tool_calls.finish_if_over_budget()

    # -- actions of the state machine --------------------------------------------------------------

    def _write_missing_results(self) -> None:
        """Write missing tool results, and the user line that follows an interrupt."""
        text = self.tool_calls.write_missing_results()
        self.subagents.write_missing_tool_results(text)
        self.tool_calls.record_orphan_tool_results()
        if self.outcome_tracker.is_interrupted and not self.outcome_tracker.has_interrupt_line:
            self.writer.write_user_text(
                INTERRUPTED_IN_TOOL if self.outcome_tracker.has_interrupted_call else INTERRUPTED
            )
        outcome = self.outcome_tracker.outcome
        if self.command.tokens_before is not None and outcome is not None:
            self.outcome_tracker.outcome = self._finish_compaction(outcome)

    def _write_result(self) -> None:
        """Write the turn's result. The real claude's own result is passed on unchanged unless it
        contradicts the turn's outcome.
        """
        outcome = self.outcome_tracker.outcome
        assert outcome is not None
        vendor_line, vendor_outcome = self.outcome_tracker.vendor_result
        if vendor_line and outcome is vendor_outcome:
            text = outcome.message
            if outcome.kind == "ended":
                text = self.assistant_message.last_text
            self.result = TurnResult({}, outcome.kind != "ended", outcome.cause, text)
            self.writer.write_vendor_result_line(vendor_line)
            self.is_terminated = False
            return
        self.result = result = build_turn_result(self._build_finished_turn(outcome))
        if result.api_error is not None:
            self.writer.write_api_error(*result.api_error)
        self.writer.write_result(result.line)

    def _build_finished_turn(self, outcome: TurnOutcome) -> FinishedTurn:
        """Return everything that the result depends on, and add the turn's usage to that of the
        conversation.
        """
        outcome_tracker = self.outcome_tracker
        message = self.assistant_message
        user_message = self.user_messages.message
        vendor_version = self.vendor_info.get("vendor_version")
        if not vendor_version:
            vendor_version = self.config.vendor.version
        origin = None
        if user_message is not None:
            origin = user_message.origin
        return FinishedTurn(
            config=self.config,
            diagnostics=self.diagnostics,
            outcome=outcome,
            child_exit=outcome_tracker.child_exit,
            has_started=outcome_tracker.has_started,
            has_output=self.has_output,
            result_count=self.tool_calls.result_count + outcome_tracker.hook_text_count,
            has_interrupted_call=outcome_tracker.has_interrupted_call,
            stop_reason=message.stop_reason,
            last_text=message.last_text,
            model=message.model,
            vendor_version=vendor_version,
            denials=list(self.tool_calls.denials.entries.values()),
            usage_totals=self.conversation.add_turn_usage(
                outcome.fields, message.usage_by_model, message.cost_usd, message.model
            ),
            max_bytes=self.writer.max_bytes,
            origin=origin,
            local_command=self.command.name,
        )

    def _add_earlier_fields(self, outcome: TurnOutcome) -> TurnOutcome:
        """Add the usage, cost and times that the vendor reported before a hook continued the
        turn.
        """
        for fields in self.outcome_tracker.earlier_fields:
            outcome = outcome._replace(fields=add_result_fields(fields, outcome.fields))
        return outcome

    def _apply_budget(self, outcome: TurnOutcome) -> TurnOutcome:
        """Return the outcome. If the session has cost more than `--max-budget-usd` allows, return a
        failure instead. The vendor reports the cost.
        """
        max_budget_usd = self.config.limits.max_budget_usd
        if max_budget_usd is None:
            return outcome
        spent_usd = parse_dollars(outcome.fields.get("cost"))
        if not spent_usd:
            spent_usd = self.assistant_message.cost_usd
        if self.conversation.cost_usd + spent_usd <= max_budget_usd:
            return outcome
        return outcomes.build_over_budget_outcome(max_budget_usd, outcome.fields)

    # -- helpers -----------------------------------------------------------------------------------

    def _take_snapshot(self) -> TurnSnapshot:
        """Return the state from which the turn's outcome is decided."""
        calls = self.tool_calls
        message = self.assistant_message
        diagnostics = self.diagnostics
        effects = (
            calls.has_tool_activity,
            calls.denials.entries,
            self.subagents.table.has_added_call,
            message.number > 1,
        )
        open_call_names = ""
        if calls.open_calls and message.has_ended_with_tool_calls:
            open_call_names = outcomes.format_open_call_names(calls.open_calls)
        return TurnSnapshot(
            config=self.config,
            outcome=self.outcome_tracker.outcome,
            state=self.machine.state,
            has_started=self.outcome_tracker.has_started,
            has_output=self.has_output,
            has_effects=any(effects),
            is_repeatable=message.written_text.is_repeatable,
            open_call_names=open_call_names,
            has_unknown_events=bool(diagnostics.unknown_events),
            has_misread_output=diagnostics.has_unreadable_output,
        )

    def _read_structured_answer(
        self, read_answer: Callable[[str], JsonSchemaAnswer], outcome: TurnOutcome
    ) -> TurnOutcome:
        """Write the last text as a `StructuredOutput` call. Return a failure if the text does not
        match the schema (contract F11, 5.11).
        """
        if outcome.fields.get("structured_output") is not None:
            return outcome
        self.machine.move_to(READY)
        value, problem = read_answer(choose_answer(self.assistant_message.last_text, outcome))
        if value is None:
            message = f"the answer does not match --json-schema: {problem}"
            return TurnOutcome(
                "failed", message=message, cause="vendor_error", fields=outcome.fields
            )
        self.tool_calls.write_structured_answer(value)
        return outcome._replace(fields={**outcome.fields, "structured_output": value})
