"""One turn: what a vendor says happened goes in as verbs, Claude's lines come out of the pen.

A vendor's translator may be naive about the order of its verbs. What must be said on the way, and
what may never be said, is decided here: one `init` first, blocks that never overlap, calls and
results in pairs, one `result` last, and nothing behind it. Pure: no clock, no file, no randomness.

    context              configuration, conversation, output, the table of states, the outcome
    turn_start           what is known of the vendor, and the user's messages
    text_blocks          text and thinking
    assistant_message    the reply that is open: usage, stop reason, what it said
    tool_calls           tool calls and results
    subagents            the agents that a call runs
    permission_requests  permissions

A part knows the context and the parts that it is built from. Only the Turn knows all parts, so it
writes the end.
"""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Literal

from shim.core.api_errors import TurnEndCause, classify_api_error
from shim.core.claude.hooks.callbacks import HookEvent
from shim.core.claude.messages import TEXT_ONLY_KINDS, BlockKinds, UserMessage
from shim.core.claude.permissions import PermissionRequest
from shim.core.claude.usage import Usage, parse_dollars
from shim.core.errors import FailedVendorAttempt
from shim.core.reading.diagnostics import Diagnostics
from shim.core.turn import outcome as outcomes
from shim.core.turn.assistant_message import AssistantMessage
from shim.core.turn.context import ConversationState, JsonSchemaAnswer, OutputWriter, TurnConfig
from shim.core.turn.machine import (
    CLOSED,
    DONE,
    ECHO,
    NEW,
    READY,
    TEXT,
    THINKING,
    TurnState,
)
from shim.core.turn.outcome import ChildExit, TurnOutcome, TurnSnapshot
from shim.core.turn.permission_requests import PermissionRequests
from shim.core.turn.result import (
    INTERRUPTED,
    INTERRUPTED_IN_TOOL,
    FinishedTurn,
    TurnResult,
    build_minimal_error_result,
    build_turn_result,
)
from shim.core.turn.subagents import Subagent, SubagentCall, SubagentTracker
from shim.core.turn.text_blocks import TextBlocks
from shim.core.turn.tool_calls import OpenCall, ToolCalls
from shim.core.turn.turn_context import TurnContext
from shim.core.turn.turn_start import TurnStart

WriteLine = Callable[[bytes, dict[str, Any]], None]  # a line without its LF, and as parsed


def forward_attribute(path: str) -> Any:
    """An attribute of one of an object's parts, read and set as the object's own; `path` is
    `forward_attribute.name`.
    """
    owner, _, name = path.rpartition(".")
    return property(
        attrgetter(path), lambda turn, value: setattr(attrgetter(owner)(turn), name, value)
    )


class Turn:
    """One turn, bound of its objects. `state`, `is_error`, `cause`, `final_text` … may be read; all
    else is verbs.

    `add_text`, `add_block`, `add_tool_call`, `add_tool_result` and `end_message` are methods of the
    objects, which saves a call for each.
    """

    def __init__(
        self,
        writer: OutputWriter,
        config: TurnConfig,
        conversation: ConversationState,
        diagnostics: Diagnostics,
    ) -> None:
        self.writer = writer
        self.conversation = conversation
        self.diagnostics = diagnostics
        self.context = context = TurnContext(writer, config, conversation, diagnostics)
        self.machine = machine = context.machine
        self.outcome_tracker = context.outcome_tracker
        self.assistant_message = message = AssistantMessage(context)
        self.turn_start = turn_start = TurnStart(context, message)
        self.text_blocks = text_blocks = TextBlocks(context, message)
        self.tool_calls = tool_calls = ToolCalls(context, message, self.finish)
        self.permission_requests = PermissionRequests(context, tool_calls)
        self.subagents = SubagentTracker(context, message, tool_calls)
        self.result: TurnResult | None = None
        # the vendor gives signs of life, so its silence says something
        self.sends_heartbeats = False
        self.open_calls: dict[str, OpenCall] = tool_calls.open_calls  # the calls without a result
        self.add_text = text_blocks.add_text
        self.add_block = text_blocks.add_block
        self.add_tool_call = tool_calls.add_tool_call
        self.add_tool_result = tool_calls.add_tool_result
        self.end_message = (
            message.end if config.limits.max_budget_usd is None else self._end_message_with_budget
        )
        machine.set_transition_actions(
            init=turn_start.write_init,
            start=self._start_message,
            text=text_blocks.start_text_block,
            thinking=text_blocks.start_thinking_block,
            close=text_blocks.write_open_block,
            stop=message.write_message_stop,
            unecho=text_blocks.finish_fully_repeated_message,
            fill=self._write_missing_results,
            end=self._write_result,
        )

    # -- what the shell and the translators read ---------------------------------------------------

    state: TurnState = forward_attribute("machine.state")
    config: TurnConfig = forward_attribute("turn_start.config")
    # what the vendor said of itself
    vendor_info: dict[str, Any] = forward_attribute("turn_start.vendor_info")
    # of the last reply, or the one that `init` named
    model: str = forward_attribute("assistant_message.model")
    message_count: int = forward_attribute("assistant_message.number")  # that said something
    last_text: str = forward_attribute("assistant_message.last_text")
    stop_reason: str | None = forward_attribute("assistant_message.stop_reason")
    has_ended_with_tool_calls: bool = forward_attribute(
        "assistant_message.has_ended_with_tool_calls"
    )
    # of the replies, by model
    usage_by_model: dict[str, Usage] = forward_attribute("assistant_message.usage_by_model")
    subagent_calls: Mapping[str, SubagentCall] = forward_attribute("subagents.open_calls")
    denials: Mapping[str, dict[str, Any]] = forward_attribute("tool_calls.denials.entries")
    denied_tool_that_ran: str = forward_attribute("tool_calls.denials.tool_that_ran")
    # that wait for the shell
    pending_permissions: list[PermissionRequest] = forward_attribute("permission_requests.pending")
    hook_events: list[HookEvent] | None = forward_attribute("tool_calls.hook_events")
    outcome: TurnOutcome | None = forward_attribute("outcome_tracker.outcome")
    is_finalized: bool = forward_attribute("outcome_tracker.is_finalized")
    is_paused: bool = forward_attribute("outcome_tracker.is_paused")
    has_started: bool = forward_attribute("outcome_tracker.has_started")
    is_terminated: bool = forward_attribute("outcome_tracker.is_terminated")

    def wrap_line_writer(self, write_line: WriteLine) -> WriteLine:
        """What the lines of a real claude are said to, where they pass: `write_line` itself."""
        return write_line

    @property
    def vendor_result_line(self) -> bytes:
        """A real claude's own result line."""
        return self.outcome_tracker.vendor_result[0]

    @property
    def is_error(self) -> bool:
        """Whether the result is an error; False before there is one."""
        return self.result is not None and self.result.is_error

    @property
    def end_cause(self) -> TurnEndCause | Literal[""]:
        """Why the turn ended; "" before it did."""
        return "" if self.result is None else self.result.cause

    @property
    def final_text(self) -> str:
        """The answer, or what went wrong; "" before there is a result."""
        return "" if self.result is None else self.result.final_text

    # -- who the vendor is -------------------------------------------------------------------------

    def record_vendor_session_info(self, **session_info: Any) -> None:
        """The vendor said who it is: session_id, model, cwd, tools (Claude's names), mode,
        slash_commands …

        The first call that carries a session id says the `init` line; facts that come later are too
        late for it.
        """
        session_id = session_info.pop("session_id", None)
        if session_id and isinstance(session_id, str):
            self.turn_start.set_vendor_session(
                session_id, self.diagnostics, is_closed=self.machine.state is CLOSED
            )
        self.turn_start.update_vendor_info(session_info)
        if session_id and self.machine.state is NEW:
            self.machine.move_to(READY)

    def set_user_message(
        self,
        message: UserMessage,
        *,
        replays: bool,
        get_accepted_kinds: Callable[[], BlockKinds] = lambda: TEXT_ONLY_KINDS,
    ) -> None:
        """The user's message that this turn answers; `replays` says it again behind the init line
        (contract C15).

        `get_accepted_kinds` gives what the vendor is given of it beside the text: known when it has
        said who it is.
        """
        (
            self.turn_start.user_message,
            self.turn_start.replays_message,
            self.turn_start.get_accepted_kinds,
        ) = message, replays, get_accepted_kinds
        # a child that stays had its session before the message, and init is said
        if self.machine.state is not NEW:
            self.turn_start.write_user_message_echo(message)
        self.writer.count_prompt_chars(message.text)

    def add_steering_message(self, message: UserMessage) -> None:
        """Another message was said to the vendor in the middle of this turn, whose result answers
        it too.

        It is said again in front of the next reply, as the real claude does: by then the vendor has
        taken it.
        """
        self.turn_start.steering_messages.append(message)
        self.writer.count_prompt_chars(message.text)

    # -- replies -----------------------------------------------------------------------------------

    def _start_message(self) -> None:
        if self.turn_start.steering_messages:
            self.turn_start.write_steering_messages()
        self.assistant_message.start()

    def start_message(self, model: str | None = None, usage: Usage | None = None) -> None:
        """A new reply begins; nothing is said before its first block."""
        if self.machine.state not in (NEW, READY, ECHO):
            self.machine.move_to(READY)
        self.assistant_message.update(model, usage)

    def update_message(self, model: str | None = None, usage: Usage | None = None) -> None:
        """The model and the usage known so far of the reply that is open or comes next."""
        self.assistant_message.update(model, usage)

    def add_usage(self, usage: Usage, cost_usd: float) -> None:
        """Usage and cost of a request that is no reply of this turn (one that failed, a
        compaction).
        """
        self.assistant_message.add_usage(usage)
        self.assistant_message.cost_usd += parse_dollars(cost_usd)

    def add_thinking(self, fragment: str, key: object = None) -> None:
        self.text_blocks.add_block_fragment(THINKING, fragment, key)

    def add_thinking_block(self, full_text: str) -> None:
        """A whole block of thinking that was never streamed."""
        self.text_blocks.add_block(full_text, THINKING)

    def update_text(self, full_text: str, key: object = None) -> None:
        """The block's text so far: says only what is new; a contradiction is counted, nothing is
        taken back.
        """
        self.text_blocks.update_block_text(TEXT, full_text, key)

    def update_thinking(self, full_text: str, key: object = None) -> None:
        """The block's thinking so far, as `update_text`."""
        self.text_blocks.update_block_text(THINKING, full_text, key)

    def end_block(self) -> None:
        """The open block is complete: its line is said now instead of at the next event."""
        self.text_blocks.end_block()

    def retract_message(self) -> None:
        """The reply was cut and comes again: what was unsaid is forgotten, what was said is not
        said twice.
        """
        self.text_blocks.retract_message()

    # -- calls -------------------------------------------------------------------------------------

    def find_call(
        self, call_id: object, name: str | None = None, tool_input: object = None
    ) -> OpenCall | None:
        """Return the open call that a result with this id, name and arguments would belong to, or
        None.
        """
        return self.tool_calls.find_call(call_id, name, tool_input)

    def replace_call_input(self, call_id: str, name: str, tool_input: Mapping[str, Any]) -> None:
        """Replace the arguments of an open call. The rules apply to the new arguments, too."""
        self.tool_calls.replace_call_input(call_id, name, tool_input)

    def fill_open_call_results(self, content: str = "") -> None:
        """The vendor never says what its open calls returned: each gets `content`."""
        self.tool_calls.write_result_for_each_open_call(content)

    def add_denial(self, call_id: str, name: str, tool_input: Mapping[str, Any]) -> None:
        """A call that was refused: an entry in the result's `permission_denials` (once per id).

        One that is said behind this breaks no rule: it never ran.
        """
        self.tool_calls.denials.add(
            self.tool_calls.denials.resolve_call_id_in_output(call_id, name, tool_input),
            name,
            tool_input,
        )

    def request_permission(
        self,
        request_id: str,
        call_id: str,
        name: str,
        tool_input: Mapping[str, Any],
        vendor_call: tuple[str, Mapping[str, Any]],
        *,
        announced_call: tuple[str, Mapping[str, Any]] | None = None,
        is_unique: bool = False,
        is_deferred: bool = False,
    ) -> None:
        """The vendor asks whether a call may run; `vendor_call` are its own name and arguments of
        it.

        A permission request may show an open call with another name: `announced_call` are the name
        and arguments with which the call was announced. `is_unique`: the adapter gives each open
        call an id of its own. `is_deferred`: the call is written when its arguments are known.
        """
        self.permission_requests.add(
            request_id,
            call_id,
            name,
            tool_input,
            vendor_call,
            announced_call=announced_call,
            is_unique=is_unique,
            is_deferred=is_deferred,
        )

    def defer_call(self, call_id: str, name: str) -> None:
        """Hold back a call of a tool in the frontend's process until its arguments are known."""
        self.permission_requests.defer_call(call_id, name)

    def write_deferred_call(self, name: str, tool_input: Mapping[str, Any]) -> None:
        """Write a call that arrived at the frontend's own server, if the call waited for its
        arguments.
        """
        self.permission_requests.write_deferred_call(name, tool_input)

    def stop_waiting_for_call_input(self, call_id: str) -> bool:
        """Stop waiting for the arguments of a call. Return whether it was written already."""
        return self.permission_requests.deferred_calls.stop_waiting_for_input(call_id)

    def record_permission_denial(
        self,
        permission: PermissionRequest,
        message: str,
        *,
        frontend_knows: bool,
        vendor_knows: bool = True,
    ) -> None:
        """Record that a permission was refused. `frontend_knows`: the frontend refused it itself
        and knows it (5.13).

        `vendor_knows`: the vendor received the denial before the call ran.
        """
        self.permission_requests.write_refused_call(
            permission.call_id, permission.tool, permission.tool_input
        )
        self.tool_calls.denials.add(permission.call_id, permission.tool, permission.tool_input)
        if not frontend_knows and self.machine.state is not CLOSED:
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
        """A call was allowed with another input only: its result will say so, and it is no denial."""
        self.tool_calls.record_denial_reason(permission.call_id, message)

    def forbid_call(self, call_id: str, reason: str) -> None:
        """The frontend forbids a call that the vendor runs without asking: the turn is stopped."""
        self.tool_calls.forbid_call(call_id, reason)

    def get_subagent(self, parent_call_id: str, usage: Usage | None = None) -> Subagent:
        """The nested agent that the call `parent_call_id` runs; `usage` is that of its reply, which
        adds up.
        """
        call = self.tool_calls.open_calls.get(parent_call_id)
        if call is not None:
            return self.subagents.get_subagent(parent_call_id, call[0], usage)
        subagent_call = self.subagents.open_calls.get(parent_call_id)
        if subagent_call is not None:
            return self.subagents.get_subagent(parent_call_id, subagent_call.call_id, usage)
        # the call has ended
        return self.subagents.get_subagent(
            self.tool_calls.denials.resolve_call_id_in_output(parent_call_id, "", {}),
            None,
            usage,
        )

    # -- beside the conversation -------------------------------------------------------------------

    def write_system_event(self, subtype: str, **fields: Any) -> None:
        """A `system` line; it never closes a block."""
        self._write_system_event(subtype, **fields)

    def _write_system_event(self, subtype: str, **fields: Any) -> None:
        if self.machine.state is NEW:
            self.machine.move_to(READY)
        if self.machine.state is CLOSED:
            self.machine.record_late_event()
        else:
            self.writer.write_system_message(subtype, self.context.sanitizer.clean(fields))

    def write_retry(self, attempt: int, max_attempts: int, delay_ms: int, message: str) -> None:
        """The vendor asks its model again (contract 5.8, `api_retry`)."""
        failure = self.outcome_tracker.retry_failure = classify_api_error(message)
        self.write_system_event(
            "api_retry",
            attempt=attempt,
            max_retries=max_attempts,
            retry_delay_ms=delay_ms,
            error_status=failure.status,
            error=failure.api_retry_error_code,
        )

    def write_compaction(self, trigger: str, tokens_before: int) -> None:
        """The vendor shortened its context; `trigger` is manual or auto, `tokens_before` the tokens
        it had.
        """
        self.write_system_event(
            "compact_boundary", compact_metadata={"trigger": trigger, "pre_tokens": tokens_before}
        )

    def record_unknown_event(self, kind: object, sample: object = "") -> None:
        """An event of the vendor that has no translation."""
        self.diagnostics.record_unknown_event(kind, sample)

    def record_heartbeat(self) -> None:
        """The vendor said that it is alive; from now on in this turn it says so while it works."""
        self.sends_heartbeats = True

    # -- the end -----------------------------------------------------------------------------------

    def record_turn_end(self, **result_fields: Any) -> None:
        """The vendor said that it is done; facts are usage, cost, duration_ms, api_ms, result,
        stop_reason …
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
        """The vendor said, or showed, that the turn failed; `kind` is the cause, else it is read
        off the text.

        `api` says whether the model's API failed (contract S10); None leaves that to the text.
        """
        self.outcome_tracker.record_failure(message, result_fields, api, kind, status, subtype)

    def stop(self, message: str, cause: TurnEndCause) -> None:
        """End the turn for this reason. What the vendor says about its end afterwards is ignored."""
        self.outcome_tracker.stop(message, cause)

    def record_interrupt(self, **result_fields: Any) -> None:
        """The frontend stopped the turn, or the vendor says so; this beats what the vendor says of
        its end.
        """
        if self.machine.is_over:
            return
        self.outcome_tracker.record_interrupt(result_fields)
        if self.outcome_tracker.is_interrupted and self.tool_calls.open_calls:
            self.tool_calls.has_interrupted_call = True

    def record_vendor_completion(self) -> None:
        """The vendor is done: the shell may give it a last moment and then end it.

        If it also said how, that stands: whatever it prints from now on is too late.
        """
        self.outcome_tracker.is_finalized = True
        if self.outcome_tracker.has_vendor_outcome and not self.machine.is_over:
            self.outcome_tracker.has_started = self.machine.state is not NEW
            self.machine.move_to(READY)
            self.machine.move_to(DONE, True)

    def cancel_vendor_completion(self) -> None:
        """The vendor goes on after all. Once it said how it ended, it is too late for that."""
        self.outcome_tracker.is_finalized = self.machine.state is DONE
        self.outcome_tracker.is_paused = False

    def record_possible_turn_end(self) -> None:
        """The vendor may be done, and has no word for it: for a child that stays, a silence is the
        end.
        """
        self.outcome_tracker.is_paused = not self.machine.is_over

    def prepare_retry(self) -> None:
        """The whole turn is asked for once more: what was said stays said, and is not said twice."""
        self.outcome_tracker.reset()
        if self.machine.state is DONE:
            self.machine.move_to(READY if self.outcome_tracker.has_started else NEW, True)
        if self.machine.state is not NEW:
            self.text_blocks.retract_message()

    def finish(self) -> None:
        """Say the result now, without waiting for the child's end."""
        self.close(None, "")

    @property
    def has_output(self) -> bool:
        """Whether anything was said or done in this turn that is the model's: a block, a call, a
        result, a question.
        """
        return bool(
            self.assistant_message.number
            or self.tool_calls.has_tool_activity
            or self.subagents.open_calls
            or self.permission_requests.pending
        )

    def close(self, child_exit: ChildExit | None, stderr: str) -> None:
        """The child's stdout is at its end. `child_exit` is None when we ended the child ourselves."""
        machine, outcome_tracker, read_answer = (
            self.machine,
            self.outcome_tracker,
            self.config.read_answer,
        )
        if machine.state is CLOSED:
            return
        if machine.state is DONE:
            machine.move_to(READY, True)
        else:
            outcome_tracker.has_started = machine.state is not NEW
        outcome_tracker.outcome = outcomes.decide_outcome(self._take_snapshot(), child_exit, stderr)
        if read_answer is not None and outcome_tracker.outcome.kind == "ended":
            outcome_tracker.outcome = self._read_structured_answer(
                read_answer, outcome_tracker.outcome
            )
        if outcome_tracker.outcome.kind == "ended" and self._is_over_budget(
            outcome_tracker.outcome
        ):
            outcome_tracker.outcome = outcomes.build_over_budget_outcome(
                self.config.limits.max_budget_usd or 0.0, outcome_tracker.outcome.fields
            )
        outcome_tracker.child_exit = child_exit
        self.permission_requests.refuse_pending_requests()
        machine.move_to(CLOSED)

    def find_failed_attempt(
        self, child_exit: ChildExit | None, stderr: str, *, any_cause: bool = False
    ) -> FailedVendorAttempt | None:
        """Why the vendor said nothing, where another may be asked; None where this turn is the
        answer.
        """
        return outcomes.find_failed_attempt(
            self._take_snapshot(), child_exit, stderr, any_cause=any_cause
        )

    def can_retry(self, child_exit: ChildExit | None, stderr: str) -> bool:
        """Whether the stream was cut, and nothing has happened that must not happen twice (Yume's
        R11).
        """
        return outcomes.can_retry_turn(self._take_snapshot(), child_exit, stderr)

    def write_internal_error(self, reason: str) -> None:
        """The end itself failed, our own mistake: a result all the same, with nothing in it that
        could fail again.
        """
        self.machine.move_to(CLOSED, True)
        config, text = self.config, f"the shim failed: {reason}"
        self.result = TurnResult(
            build_minimal_error_result(config.vendor.name, text), True, "internal", text
        )
        if not self.outcome_tracker.has_started:
            self.writer.write_init_message(
                self.conversation.session_id or config.session.new_id, {}
            )
        self.writer.write_result(self.result.line)

    def write_result_terminator_line(self) -> None:
        """Say the terminator that a passed result still owes: nothing at all comes behind it."""
        if not self.outcome_tracker.is_terminated:
            self.outcome_tracker.is_terminated = True
            self.writer.write_result_terminator_line()

    def create_next(
        self, config: TurnConfig | None = None, diagnostics: Diagnostics | None = None
    ) -> "Turn":
        """The turn after this one, in the same conversation; on other terms if there are any."""
        turn = type(self)(
            self.writer, config or self.config, self.conversation, diagnostics or self.diagnostics
        )
        if config is not None and config.vendor.name != self.config.vendor.name:
            return turn  # what another vendor said of itself is not this one's
        turn.turn_start.vendor_info = dict(self.turn_start.vendor_info)
        if config is None or config.model == self.config.model:
            turn.assistant_message.model = self.assistant_message.model
        else:
            turn.turn_start.vendor_info.pop("model", None)
        return turn

    def _end_message_with_budget(self, *args: Any, **kwargs: Any) -> None:
        self.assistant_message.end(*args, **kwargs)
        self.tool_calls.finish_if_over_budget(self.config.limits.max_budget_usd or 0.0)

    # -- the steps of the table --------------------------------------------------------------------

    def _write_missing_results(self) -> None:
        """Results that never came, and the user line of an interrupt."""
        text = self.tool_calls.write_missing_results()
        self.subagents.write_missing_tool_results(text)
        self.tool_calls.record_orphan_tool_results()
        if self.outcome_tracker.is_interrupted and not self.outcome_tracker.has_interrupt_line:
            self.writer.write_user_text(
                INTERRUPTED_IN_TOOL if self.tool_calls.has_interrupted_call else INTERRUPTED
            )

    def _write_result(self) -> None:
        """The result; a real claude's own is said as it came where nothing contradicts it."""
        outcome_tracker, message, outcome = (
            self.outcome_tracker,
            self.assistant_message,
            self.outcome_tracker.outcome,
        )
        assert outcome is not None
        vendor_line, vendor_outcome = outcome_tracker.vendor_result
        if vendor_line and outcome is vendor_outcome:
            text = message.last_text if outcome.kind == "ended" else outcome.message
            self.result = TurnResult({}, outcome.kind != "ended", outcome.cause, text)
            self.writer.write_vendor_result_line(vendor_line)
            outcome_tracker.is_terminated = False
            return
        turn_start, conversation = self.turn_start, self.conversation
        self.result = result = build_turn_result(
            FinishedTurn(
                config=self.config,
                diagnostics=self.diagnostics,
                outcome=outcome,
                child_exit=outcome_tracker.child_exit,
                has_started=outcome_tracker.has_started,
                has_output=self.has_output,
                result_count=self.tool_calls.result_count,
                has_interrupted_call=self.tool_calls.has_interrupted_call,
                stop_reason=message.stop_reason,
                last_text=message.last_text,
                model=message.model,
                vendor_version=turn_start.vendor_info.get("vendor_version")
                or self.config.vendor.version,
                denials=list(self.tool_calls.denials.entries.values()),
                usage_totals=conversation.add_turn_usage(
                    outcome.fields, message.usage_by_model, message.cost_usd, message.model
                ),
                max_bytes=self.writer.max_bytes,
                origin=None if turn_start.user_message is None else turn_start.user_message.origin,
            )
        )
        if result.api_error is not None:
            self.writer.write_api_error(*result.api_error)
        self.writer.write_result(result.line)

    def _is_over_budget(self, outcome: TurnOutcome) -> bool:
        """Return whether the session has cost more than `--max-budget-usd` allows, by the vendor's
        own count.
        """
        max_budget_usd = self.config.limits.max_budget_usd
        if max_budget_usd is None:
            return False
        spent_usd = parse_dollars(outcome.fields.get("cost")) or self.assistant_message.cost_usd
        return self.conversation.cost_usd + spent_usd > max_budget_usd

    # -- how it is done ----------------------------------------------------------------------------

    def _take_snapshot(self) -> TurnSnapshot:
        """The facts that decide how the turn ended."""
        calls, message, diagnostics = self.tool_calls, self.assistant_message, self.diagnostics
        has_effects = (
            calls.result_count
            or calls.open_calls
            or calls.table.hidden_keys
            or self.subagents.open_calls
            or self.tool_calls.denials.entries
        )
        return TurnSnapshot(
            config=self.config,
            outcome=self.outcome_tracker.outcome,
            state=self.machine.state,
            has_started=self.outcome_tracker.has_started,
            has_output=self.has_output,
            has_effects=bool(has_effects) or message.number > 1,
            is_repeatable=message.written_text.is_repeatable,
            open_call_names=outcomes.format_open_call_names(calls.open_calls)
            if calls.open_calls and message.has_ended_with_tool_calls
            else "",
            has_unknown_events=bool(diagnostics.unknown_events),
            has_misread_output=diagnostics.has_unreadable_output,
        )

    def _read_structured_answer(
        self, read_answer: Callable[[str], JsonSchemaAnswer], outcome: TurnOutcome
    ) -> TurnOutcome:
        """Contract F11, 5.11: the last text as `StructuredOutput`, or an error when it does not fit
        the schema.
        """
        if outcome.fields.get("structured_output") is not None:
            return outcome
        self.machine.move_to(READY)
        value, problem = read_answer(
            self.assistant_message.last_text or str(outcome.fields.get("result") or "")
        )
        if value is None:
            message = f"the answer does not fit --json-schema: {problem}"
            return TurnOutcome(
                "failed", message=message, cause="vendor_error", fields=outcome.fields
            )
        self.tool_calls.write_structured_answer(value)
        return outcome._replace(fields={**outcome.fields, "structured_output": value})
