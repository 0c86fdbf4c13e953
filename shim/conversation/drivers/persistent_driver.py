"""The driver for vendors whose child process serves the whole conversation.

Messages and permission decisions are written to the child's stdin.
"""

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import TaskGroup

from shim.conversation.drivers.driver import ChildDriver
from shim.conversation.drivers.launcher import ChildLauncher
from shim.conversation.drivers.permission_decider import PermissionDecider
from shim.core.adapter.child_stream import ChildStream
from shim.core.adapter.commands import (
    AskPermissionCommand,
    SendToChildCommand,
    StreamCommand,
    StreamCommands,
    TurnStage,
    WithdrawPermissionCommand,
)
from shim.core.adapter.request import ChildInput
from shim.core.claude.control import ControlSession
from shim.core.claude.control.actions import FrontendAction, PermissionDecided, SettingChanged
from shim.core.claude.hooks.callbacks import (
    HOOK_TIMEOUT_S,
    HookEvent,
    build_compaction_events,
    build_prompt_event,
)
from shim.core.claude.messages import PRIORITY_LATER, PRIORITY_NOW, BlockKinds, UserMessage
from shim.core.claude.permissions import (
    STREAM_CLOSED_TEXT,
    TURN_OVER_TEXT,
    TURN_STOPPED_TEXT,
    PermissionDecision,
    PermissionRequest,
)
from shim.core.errors import ShimError
from shim.core.policy import SESSION_START_EVENT
from shim.core.turn.outcome import STOP_HOOK_PREVENTED
from shim.io.ids import create_uuid
from shim.io.stdout import FrontendDisconnectedError, FrontendOutput
from shim.process.child import Child
from shim.process.spawn import ChildSpawnResult

if TYPE_CHECKING:
    from shim.conversation.drivers.event_hook_runner import EventHookRunner
    from shim.conversation.drivers.turn_lifecycle import TranslatorFactory
    from shim.core.claude.local_commands import LocalCommand

INTERRUPT_TIMEOUT_S = 1.5  # for a child to end an interrupted turn; then the child is stopped
# How long a child may take to read a line. Then the child is stopped.
WRITE_TIMEOUT_S = 60.0
# How long the shim waits for the child to read a line from the frontend. Then the shim handles the
# frontend's next line.
FRONTEND_LINE_WAIT_S = 0.5
# The number of times that hooks can continue a turn. A Stop hook that always blocks would never let
# the turn end.
MAX_HOOK_CONTINUATIONS = 50
# The number of heartbeats within one heartbeat timeout. Two of them may be lost without harm.
HEARTBEATS_PER_TIMEOUT = 3
# The number of output chunks that are skipped between two turns. Further output is read as part of
# the next answer.
MAX_LATE_CHUNKS = 256

# The answer to a request that needs no decision any more: the turn is over or interrupted, or the
# vendor has withdrawn the request.
UNDECIDED_DENIAL = PermissionDecision(False, ends_turn=True)


class TurnPhase(Enum):
    """The driver's current activity in a turn."""

    IDLE = auto()
    SENDING = auto()  # the child has not read the complete message
    READING = auto()


class PersistentDriver(ChildDriver):
    """Runs one child process for the whole conversation.

    If the child exits, it is replaced by a new child, which resumes the vendor's session.
    """

    def __init__(
        self,
        launcher: ChildLauncher,
        output: FrontendOutput,
        control: ControlSession,
        tasks: TaskGroup,
        create_stream: Callable[..., ChildStream] = ChildStream,
        first_child: ChildSpawnResult | None = None,
        hook_commands: "EventHookRunner | None" = None,
    ) -> None:
        """Create the driver. `first_child` is a child that was already started for the first
        message.
        """
        super().__init__(launcher, output, control, create_stream, hook_commands)
        assert launcher.adapter.child_input_ref
        self._child_input: ChildInput = launcher.adapter.create_child_input()
        self._tasks: TaskGroup = tasks
        self._phase = TurnPhase.IDLE
        self._needs_restart = False  # a setting has changed that the running child cannot apply
        self._first_child = first_child
        self._permissions = PermissionDecider(
            self, self._send_decision, output, control, tasks, hook_commands
        )
        self._compaction_command: LocalCommand | None = None  # the command of the running turn
        self._hooks_answered = anyio.Event()
        self._waits_for_hooks = False  # the vendor has completed its turn, but hooks are running
        self._service_scope = anyio.CancelScope()  # for tasks that run as long as the child

    @property
    def _control_session(self) -> ControlSession:
        assert self._control is not None
        return self._control

    def _encode_prompt(self, message: UserMessage) -> UserMessage:
        """Return the message with its text replaced by the prompt for the vendor."""
        if message.is_compaction:
            return message
        return message.replace_text(self.launcher.build_vendor_prompt(message.text))

    def _get_translator_factory(self) -> "TranslatorFactory":
        return self._child_input.create_translator_factory

    def _list_accepted_kinds(self) -> BlockKinds:
        return self._child_input.accepted_block_kinds

    async def run_turn(self, message: UserMessage) -> None:
        """Send a message to the child, and translate the child's output until the turn is over."""
        self._reset_turn()
        self._deadlines.reset()
        self._permissions.call_decisions.finish_turn()
        prepared = await self._prepare_child(message)
        if prepared is None:
            return
        child, stream = prepared
        self._start_turn(stream, message)
        if self._compaction_command is not None:
            from shim.core.claude.control.usage_reports import build_context_report

            tokens = build_context_report(self._control_session.session_state)["totalTokens"]
            stream.turn.start_compaction(self._compaction_command.name, tokens)
        # An interrupt may have arrived while the old child was stopped or the new one was started.
        if await self._finish_if_interrupted(stream):
            await child.stop()
            await self._release_child(child)
            return
        resume_state = self.launcher.resume_state
        had_system_prompt = resume_state.has_system_prompt
        had_history = resume_state.has_history
        await self._answer_message(child, stream, message)
        # The system prompt and the history are sent with the message. After an error, the model may
        # not have received the message.
        if stream.turn.is_error:
            resume_state.has_system_prompt = had_system_prompt
            resume_state.has_history = had_history
        self._requeue_messages(self._list_unread_messages(stream))

    async def _prepare_child(self, message: UserMessage) -> tuple[Child, ChildStream] | None:
        """Return the child that answers a message, and its stream with a new turn. The running child
        is used if it can apply the current settings. Return None if the turn was refused.
        """
        child = self._child
        if child is not None and (self._needs_restart or not self._child_input.can_accept_prompts):
            await child.stop()
        if child is None or child.child_exit is not None or self.stream is None:
            if child is not None:
                await self._release_child(child)
            try:
                return await self._start_child(message)
            except Exception as error:
                await self.refuse_turn(message, error)
                return None
        # A changed mode or rule may need a guarantee that this version of the vendor lacks.
        try:
            self.launcher.check_version_enforces_permissions()
        except ShimError as error:
            await self.refuse_turn(message, error)
            return None
        await self._skip_late_output(child, self.stream)
        self.stream.start_turn(self.launcher.turn_lifecycle.build_turn_config())
        return child, self.stream

    async def compact_context(self, message: UserMessage, command: "LocalCommand") -> None:
        """Ask the vendor to compact its context."""
        from shim.core.claude.local_commands import NOTHING_TO_COMPACT_TEXT

        if not self._child_input.can_compact:
            await super().compact_context(message, command)
        elif not self.launcher.vendor_session_id:
            await self.finish_local_command(
                message, command.name, NOTHING_TO_COMPACT_TEXT, is_failed=True
            )
        elif refusal := await self._find_compaction_refusal(command):
            await self.finish_local_command(message, command.name, refusal, is_failed=True)
        else:
            self._compaction_command = command
            request = message._replace(text=command.arguments, blocks=(), is_compaction=True)
            await self.run_turn(request)
            self._compaction_command = None

    async def _find_compaction_refusal(self, command: "LocalCommand") -> str:
        """Call the hooks before a compaction. Return why one of them blocks it, or ""."""
        from shim.core.claude.local_commands import COMPACTION_BLOCKED_TEXT

        before, _ = build_compaction_events("manual", command.arguments or None)
        feedback = self._control_session.hooks.feedback
        feedback.stops_turn = False
        await self.call_session_hooks(before)
        reason = self._control_session.hooks.take_compaction_refusal()
        if feedback.stops_turn:
            return COMPACTION_BLOCKED_TEXT.format(reason=reason)
        return ""

    async def _call_hooks_after_compaction(self, stream: ChildStream) -> None:
        """Call the hooks after a compaction that the frontend has requested."""
        if not stream.turn.has_compacted:
            return
        _, after = build_compaction_events("manual")
        fields = {"model": stream.turn.assistant_message.model}
        await self.call_session_hooks(
            HookEvent(SESSION_START_EVENT, trigger="compact", fields=fields)
        )
        await self.call_session_hooks(after)

    async def call_session_hooks(self, event: HookEvent) -> None:
        """Call the hooks for an event of the session, and wait for the frontend's answers."""
        await super().call_session_hooks(event)
        if self._control is not None and self._control.hooks.is_waiting_for_feedback:
            self._interrupted = False  # an earlier turn may have been interrupted
            await self._wait_for_hook_answers()

    async def _answer_message(
        self, child: Child, stream: ChildStream, message: UserMessage
    ) -> None:
        """Run a turn, from sending the prompt to writing the result."""
        self._child_input.set_vendor_session_id(self.launcher.vendor_session_id)
        prompt = self._encode_prompt(message)
        is_new_child = not self._child_has_output
        is_done = await self._send_message(child, stream, prompt)
        if self._is_silent(stream) and not (is_done or is_new_child):
            # The child was already exiting when the message was sent, or it has closed its stdout.
            await self._ensure_child_exit(child)
            await self._release_child(child)
            if await self._finish_if_interrupted(stream):
                return
            try:
                child, prompt = await self._restart_child(message, stream, prompt)
            except ShimError as error:
                await self._fail_turn(stream, error)
                return
            # A replayed turn lists the vendors that failed before this one.
            stream.continue_with_new_child(self.launcher.resume_state.failed_attempts)
            is_done = await self._send_message(child, stream, prompt)
        if is_done and not self._stalled and self._retry_if_cut(stream):
            self._deadlines.restart_first_byte_timeout()
            is_done = await self._send_message(child, stream, prompt)
        if is_done and not self._stalled:
            await self._call_hooks_after_compaction(stream)
            is_done = await self._continue_for_hooks(child, stream)
        if self._stalled:
            await child.stop()
            is_done = False
        if not await self._end_turn(child, stream, is_done=is_done):
            await self._repeat_message(stream, message, prompt)

    def _is_silent(self, stream: ChildStream) -> bool:
        """Return whether the turn has no output and no reason for that."""
        if self._turn_has_output or self._interrupted or self._stalled:
            return False
        return stream.turn.outcome_tracker.outcome is None

    async def _repeat_message(
        self, stream: ChildStream, message: UserMessage, prompt: UserMessage
    ) -> None:
        """Send a message to a new child, because the output stream of the last child was cut off."""
        if await self._finish_if_interrupted(stream):
            return
        try:
            self.launcher.turn_lifecycle.prepare_retry(stream)
            child, prompt = await self._restart_child(message, stream, prompt)
        except ShimError as error:
            await self._fail_turn(stream, error)
            return
        is_done = await self._send_message(child, stream, prompt)
        await self._end_turn(
            child, stream, is_done=is_done and self._stage is TurnStage.VENDOR_DONE
        )

    async def _continue_for_hooks(self, child: Child, stream: ChildStream) -> bool:
        """Continue the turn as long as its hooks have texts that the model must answer. Return
        whether the turn is over.
        """
        for count in range(MAX_HOOK_CONTINUATIONS):
            message = await self._find_hook_message(stream, has_continued=count > 0)
            if message is None:
                return True
            visible_texts = self._control_session.hooks.feedback.take_visible_texts()
            stream.continue_turn(visible_texts)
            self._stage = TurnStage.RUNNING
            await self.write_output_and_run_commands(*stream.take_output())
            if not await self._send_message(child, stream, self._encode_prompt(message)):
                return False
            if self._stalled:
                return True
        return True

    async def _find_hook_message(
        self, stream: ChildStream, *, has_continued: bool
    ) -> UserMessage | None:
        """Wait for the hooks of tool results, and ask the Stop hooks. Return the message that the
        model must answer before the turn ends, or None.
        """
        feedback = self._control_session.hooks.feedback
        if self._interrupted or not stream.turn.can_continue:
            return None
        await self._wait_for_hook_answers()
        if not feedback.needs_answer and stream.turn.can_continue and not self._interrupted:
            self._runs_stop_hooks_at_end = False
            self._control_session.hooks.call_stop_hooks(
                stream.turn.assistant_message.last_text, has_continued=has_continued
            )
            await self._output.write_lines(self._control_session.take_output())
            await self._wait_for_hook_answers()
            if feedback.stops_turn:
                stream.turn.outcome_tracker.set_terminal_reason(STOP_HOOK_PREVENTED)
        if self._interrupted or not feedback.needs_answer or not stream.turn.can_continue:
            return None
        return UserMessage(feedback.take_model_text(), is_from_hook=True)

    async def _wait_for_hook_answers(self) -> None:
        """Wait until the frontend's hooks have answered, as long as the real claude waits."""
        hooks = self._control_session.hooks
        self._waits_for_hooks = True
        await self.run_hook_commands()
        with anyio.move_on_after(HOOK_TIMEOUT_S):
            while hooks.is_waiting_for_feedback and not self._interrupted:
                self._hooks_answered = anyio.Event()
                await self._hooks_answered.wait()
        self._waits_for_hooks = False
        hooks.skip_feedback()

    def resume_after_hook_answers(self) -> None:
        self._permissions.start_prompt_tasks()
        self._hooks_answered.set()

    async def _end_turn(self, child: Child, stream: ChildStream, *, is_done: bool) -> bool:
        """End a turn. Return False if the message must be sent to a new child.

        `is_done` means that the turn is over. Otherwise the child's stdout has ended.
        """
        self._permissions.cancel_waits()
        if not is_done:
            is_closed = await self._close_turn(child, stream)
            await self._release_child(child)
            return is_closed
        if self._stage is TurnStage.VENDOR_DONE:
            # The turn is over. Answer the vendor's open permission requests with a denial.
            for request in self._control_session.requests_with_open_prompt:
                await self._deny_request(child, request, UNDECIDED_DENIAL)
            await self._write_turn_end(*stream.finish())
        else:  # the shim ended the turn before the vendor did
            await child.stop(self.launcher.adapter.shutdown.interrupt_signal)
            await self._release_child(child)
        return True

    async def _skip_late_output(self, child: Child, stream: ChildStream) -> None:
        """Skip output that the child printed between two turns, because it belongs to no message.
        Permission requests in this output are denied.
        """
        for _ in range(MAX_LATE_CHUNKS):
            if not (chunk := child.read_available_stdout()):
                break
            for command in stream.skip_output_between_turns(chunk):
                match command:
                    case SendToChildCommand(line):
                        await self._write_to_child(child, line)
                    case AskPermissionCommand(request):
                        denial = PermissionDecision(False, message=request.refusal)
                        await self._deny_request(child, request, denial)

    async def _start_child(
        self, message: UserMessage, stream: ChildStream | None = None
    ) -> tuple[Child, ChildStream]:
        """Start a child for a message. `stream` is the stream of the running turn, or None if the
        turn has not started.
        """
        spawned = self._first_child
        self._first_child = None
        if not spawned:
            self.launcher.rebuild_lost_session()
            spawned = self.launcher.start_child(message.text, persistent=True)
        self._child_has_output = self._needs_restart = False
        self._deadlines.reset()
        if stream is not None:
            # The new child has not received messages that were sent into the running turn.
            self._requeue_messages(stream.turn.user_messages.steering_messages)
        self._child = child = Child(spawned._replace(stdin_bytes=b""))
        if not stream:
            stream = self.open_stream(self.stream)
        self._service_scope = anyio.CancelScope()
        self._tasks.start_soon(self._service_child, child, self._service_scope)
        self._tasks.start_soon(self._watch_child_exit, child)
        await self._write_to_child(
            child, self._child_input.encode_handshake(self.launcher.last_request)
        )
        return child, stream

    async def _restart_child(
        self, message: UserMessage, stream: ChildStream, prompt: UserMessage
    ) -> tuple[Child, UserMessage]:
        """Start another child in the middle of a turn. Return the child and the prompt to send: a
        session that is rebuilt needs its history again.
        """
        if self.launcher.rebuild_lost_session():
            stream.turn.conversation.vendor_session_id = None
            prompt = self._encode_prompt(message)
        child, _ = await self._start_child(message, stream)
        return child, prompt

    async def _service_child(self, child: Child, scope: anyio.CancelScope) -> None:
        """Read the child's stderr and send heartbeats, until `scope` is cancelled."""
        with scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(child.drain_stderr)
                tasks.start_soon(self._send_heartbeats, child)

    async def _send_heartbeats(self, child: Child) -> None:
        """Send heartbeats while the child answers a message, if the child's protocol has
        heartbeats.
        """
        build_heartbeat = self._child_input.encode_heartbeat
        while self._child is child and build_heartbeat():
            await anyio.sleep(self.launcher.timeouts["heartbeat_timeout"] / HEARTBEATS_PER_TIMEOUT)
            if self._phase is TurnPhase.READING:
                self._child_input.set_vendor_session_id(self.launcher.vendor_session_id)
                await self._write_to_child(child, build_heartbeat())

    async def _release_child(self, child: Child) -> None:
        """Close the pipes of a child that has exited.

        Another process may still hold the child's stderr open. Reading stderr stops here, before
        the next child gets the same file descriptor.
        """
        self._child = None
        self._service_scope.cancel()
        with anyio.CancelScope(shield=True):
            await child.stderr_drained.wait()
        self._close_child(child)

    # -- the child's output ------------------------------------------------------------------------

    async def _read_turn_output(self, child: Child, stream: ChildStream) -> bool:
        self._phase = TurnPhase.READING
        try:
            return await super()._read_turn_output(child, stream)
        finally:
            self._phase = TurnPhase.IDLE

    @property
    def _is_turn_done(self) -> bool:
        return self._stage in (TurnStage.VENDOR_DONE, TurnStage.FINISHED)

    def _apply_stage(self, stage: TurnStage) -> None:
        """Start the idle timeout if the turn is paused. A paused turn counts as done after a short
        silence.
        """
        if stage is TurnStage.PAUSED and not self._stalled:
            self._deadlines.start_idle_timeout(self.launcher.exit_timeout_s)
        else:
            self._deadlines.cancel_idle_timeout()

    async def _finish_on_deadline(self, stream: ChildStream) -> bool:
        if (
            anyio.current_time() >= self._deadlines.exit_deadline
            or self._stage is not TurnStage.PAUSED
        ):
            return False
        await self.write_output_and_run_commands(*stream.on_idle())
        return True

    async def _execute_after_write(self, command: StreamCommand) -> None:
        child = self._child
        match command:
            case SendToChildCommand(line) if child is not None:
                await self._write_to_child(child, line)
            case AskPermissionCommand(request):
                await self._decide_request(request)
            case WithdrawPermissionCommand(request_id) if child is not None:
                withdrawn_request = await self._permissions.withdraw_request(request_id)
                if withdrawn_request is not None:
                    await self._deny_request(child, withdrawn_request, UNDECIDED_DENIAL)
            case _:
                await super()._execute_after_write(command)

    # -- permission requests -----------------------------------------------------------------------

    async def _decide_request(self, request: PermissionRequest) -> None:
        """Decide a permission request from the vendor: by rules, hooks or the frontend."""
        # The frontend is not asked after the result (contract S16b) or after an interrupt.
        if self._stage is TurnStage.FINISHED:
            refusal = request.refusal
            if not refusal:
                refusal = TURN_OVER_TEXT
            request = request._replace(refusal=refusal)
        elif self._interrupted:
            await self._send_decision(request, UNDECIDED_DENIAL)
            return
        await self._permissions.decide(request)

    async def _deny_request(
        self, child: Child, request: PermissionRequest, denial: PermissionDecision
    ) -> None:
        """Deny a permission request about which nothing is asked. The vendor waits for an answer."""
        await self._write_to_child(
            child, self._child_input.encode_permission_response(request, denial)
        )

    async def decide_tool_call(
        self, tool: str, tool_input: Mapping[str, Any]
    ) -> PermissionDecision:
        """Decide whether a call to one of the frontend's own tools may run.

        If the vendor has already asked for permission for this call, return the decision that it
        received. If the vendor asked without the call's arguments, it received a preliminary
        approval, and the real decision is made here.
        """
        if self.stream is not None and self._phase is TurnPhase.READING:
            try:
                self.stream.turn.write_deferred_call(tool, tool_input)
                await self.write_output_and_run_commands(*self.stream.take_output())
            except FrontendDisconnectedError:  # the turn also detects the disconnect
                return PermissionDecision(False, message=STREAM_CLOSED_TEXT)
        call_decisions = self._permissions.call_decisions
        earlier_grant = call_decisions.take_decision(tool, tool_input)
        if earlier_grant is not None:
            return earlier_grant
        request_id, answer = call_decisions.add_pending_request()
        call_id = self._find_open_call(tool, tool_input) or request_id
        try:
            await self._decide_request(
                PermissionRequest(request_id, call_id, tool, tool_input, tool, tool_input)
            )
            return await answer.wait_for_decision()
        except FrontendDisconnectedError:
            # The turn also detects the disconnect. An error raised here would end all relays.
            return PermissionDecision(False, message=STREAM_CLOSED_TEXT)
        finally:
            call_decisions.discard_pending_request(request_id)

    def _find_open_call(self, tool: str, tool_input: Mapping[str, Any]) -> str | None:
        """Return the id of the tool's open call with these arguments, or None.

        If no call matches, return a call that was announced without arguments.
        """
        if self.stream is None:
            return None
        calls = [call for call in self.stream.turn.open_calls.values() if call[1] == tool]
        for announced_input in (tool_input, {}):
            for call_id, _, call_input in calls:
                if call_input == announced_input:
                    return call_id
        return None

    async def execute_action(self, action: FrontendAction) -> None:
        if isinstance(action, PermissionDecided):
            await self._send_decision(action.request, action.decision)
        else:
            await super().execute_action(action)

    async def _send_decision(
        self, request: PermissionRequest, decision: PermissionDecision
    ) -> None:
        """Send a permission decision to the vendor. A denial is also recorded in the turn. If the
        decision ends the turn, the turn is interrupted.
        """
        child = self._child
        stream = self.stream
        self._permissions.stop_prompt_timeout(request)
        if child is None or stream is None:
            return
        call_fields = {"tool": request.tool, "input": request.tool_input, "call": request.call_id}
        self.launcher.context.log(
            "decided", level="debug", **call_fields, allowed=decision.allow, why=decision.message
        )
        try:
            answer = self._encode_answer(request, decision)
        except ValueError as error:
            # This vendor cannot change a call's arguments. The call is denied. If the model repeats
            # the call with the changed arguments, that call is allowed once.
            self._permissions.call_decisions.allow_call_once(
                request.tool, decision.updated_input or {}, PermissionDecision(True)
            )
            decision = PermissionDecision(False, message=str(error))
            answer = self._child_input.encode_permission_response(request, decision)
            stream.turn.record_approval_with_changed_input(request, decision.message)
        else:
            if not decision.allow:
                reason = TURN_STOPPED_TEXT
                if not decision.ends_turn:
                    reason = decision.message
                # An empty answer means that the vendor is not waiting for an answer.
                vendor_knows = bool(answer)
                stream.turn.record_permission_denial(
                    request, reason, needs_notice=decision.needs_notice, vendor_knows=vendor_knows
                )
                await self.write_output_and_run_commands(*stream.take_output())
        if decision.ends_turn:
            stream.turn.record_interrupt()
        await self._forward_line_to_child(child, answer)
        self._deadlines.update_read_scope_deadline(silence_allowed=self._allows_silence)
        if decision.ends_turn:
            await self.interrupt()

    def _encode_answer(self, request: PermissionRequest, decision: PermissionDecision) -> bytes:
        """Encode a permission decision for the vendor. Return b"" if the vendor is not waiting for
        an answer.

        If a call to one of the frontend's own tools is waiting, it receives the decision here, with
        any changed arguments.
        """
        if self._permissions.call_decisions.resolve_pending_request(request.request_id, decision):
            return b""
        if (
            decision.allow
            and request.vendor_input
            and self._control_session.session_state.receives_calls_of(request.tool)
        ):
            self._permissions.call_decisions.allow_call_once(
                request.tool, request.tool_input, decision
            )
            decision = decision._replace(updated_input=None)
        return self._child_input.encode_permission_response(request, decision)

    # -- the child's input -------------------------------------------------------------------------

    async def write_output_and_run_commands(self, lines: bytes, commands: StreamCommands) -> None:
        user_messages = (
            () if self.stream is None else self.stream.turn.user_messages.take_answered_messages()
        )
        for message in user_messages:
            if message.is_from_hook:
                continue
            self._output.write_prompt_to_transcript(message)
            self._control_session.hooks.call_hooks(build_prompt_event(message.text))
            await self._output.write_lines(self._control_session.take_output())
            await self.run_hook_commands()
        await super().write_output_and_run_commands(lines, commands)
        await self.send_steering_messages()

    async def send_steering_messages(self) -> None:
        """Send queued messages into the running turn while one of its tool calls is running.
        Otherwise each message waits for a turn of its own.
        """
        await self._send_hook_texts()
        while True:
            stream = self._find_steerable_stream()
            if stream is None or not stream.can_accept_steering_message:
                return
            message = self._find_steering_message()
            if message is None:
                return
            line = self._child_input.encode_steering_message(self._encode_prompt(message))
            if line is None:
                return
            self._control_session.queued_messages.remove(message)
            await self._steer_turn(stream, message.assign_uuid(create_uuid), line)

    def _find_steerable_stream(self) -> ChildStream | None:
        """Return the stream of the running turn if the child can read a further message now, or
        None.
        """
        if self._interrupted or self._stalled or self._child is None:
            return None
        if self._phase is not TurnPhase.READING:
            return None
        return self.stream

    def _find_steering_message(self) -> UserMessage | None:
        """Return the first queued message that may be sent into the running turn, or None. A
        command, a message without a reply, and all later messages wait for the next turn.
        """
        state = self._control_session.session_state
        for message in self._control_session.queued_messages:
            if message.priority in (PRIORITY_NOW, PRIORITY_LATER):
                continue
            if (
                not message.needs_reply
                or state.parse_local_command(message) is not None
                or state.find_command_call(message) is not None
            ):
                return None
            return message
        return None

    async def _steer_turn(self, stream: ChildStream, message: UserMessage, line: bytes) -> None:
        """Send a message into the running turn. `line` is the encoded message."""
        assert self._child is not None
        stream.turn.add_steering_message(message)
        await self._forward_line_to_child(self._child, line)

    async def _send_hook_texts(self) -> None:
        """Send the texts of hooks into the running turn if the vendor accepts messages during a
        turn. If the vendor has already requested its last reply, it continues the turn to answer
        the texts.
        """
        stream = self._find_steerable_stream()
        if stream is None or self._stage is not TurnStage.RUNNING:
            return
        feedback = self._control_session.hooks.feedback
        needs_answer = feedback.needs_answer
        model_text = feedback.take_model_text()
        if not model_text:
            return
        message = UserMessage(model_text, is_from_hook=True)
        line = self._child_input.encode_steering_message(message)
        if line is None:
            feedback.put_back(model_text)
            feedback.needs_answer = needs_answer
            return
        await self._steer_turn(stream, message, line)

    def _list_unread_messages(self, stream: ChildStream) -> list[UserMessage]:
        """Return the messages that were sent into the turn but not answered in it.

        A vendor that is interrupted may accept a message and then drop it. The real claude sends
        such a message again in the next turn.
        """
        count = max(
            self._child_input.pop_undelivered_message_count(),
            stream.turn.user_messages.unanswered_steering_message_count if self._interrupted else 0,
        )
        if count:
            return stream.turn.user_messages.steering_messages[-count:]
        return []

    def _requeue_messages(self, messages: list[UserMessage]) -> None:
        """Put messages that were sent into the turn back at the head of the message queue."""
        for message in reversed(messages):
            if message.is_from_hook:
                self._control_session.hooks.feedback.put_back(message.text)
            else:
                self._control_session.queued_messages.appendleft(message)

    async def _write_to_child(self, child: Child, lines: bytes) -> None:
        """Write to the child's stdin. A child that does not read in time is stopped, which ends its
        turn.
        """
        with anyio.move_on_after(WRITE_TIMEOUT_S) as timeout_scope:
            await child.write_stdin(lines)
        if timeout_scope.cancelled_caught:
            await child.stop("SIGTERM")

    async def _forward_line_to_child(self, child: Child, line: bytes) -> None:
        """Write an answer, a message or a setting of the frontend to the child. If the child does
        not read the line soon, writing continues in the background, because the frontend's next
        line may be an interrupt.
        """
        is_written = anyio.Event()

        async def write_line() -> None:
            await self._write_to_child(child, line)
            is_written.set()

        self._tasks.start_soon(write_line)
        with anyio.move_on_after(FRONTEND_LINE_WAIT_S):
            await is_written.wait()

    async def _interrupt_child(self, child: Child) -> None:
        self._deadlines.shorten_exit_deadline(INTERRUPT_TIMEOUT_S)
        self._child_input.set_vendor_session_id(self.launcher.vendor_session_id)
        await self._write_to_child(child, self._child_input.encode_interrupt())

    async def apply_setting_change(self, change: SettingChanged) -> None:
        """Send a changed setting to the running child, or schedule a restart of the child before
        its next message.
        """
        # The child's input keeps the setting for the next child, too.
        line = self._encode_setting_change(change)
        if self._child is not None:
            self._needs_restart |= line is None or self._needs_other_launch(change)
            await self._forward_line_to_child(self._child, line or b"")

    def _encode_setting_change(self, change: SettingChanged) -> bytes | None:
        """Encode a changed setting for the running child. Return b"" if nothing must be sent, and
        None if the child can apply the setting only when it starts.
        """
        launcher = self.launcher
        match change:
            case SettingChanged("mode", mode):
                # If there are rules, the launch arguments depend on the permission mode.
                if launcher.policy.has_rules and launcher.adapter.policy_support.has_wider_modes:
                    return None
                return self._child_input.encode_permission_mode_change(str(mode))
            case SettingChanged("model", model):
                return self._child_input.encode_model_change(model)
            case SettingChanged("effort", level):
                return self._child_input.encode_effort_change(level)
            case SettingChanged("servers"):
                return None
        return b""

    def _needs_other_launch(self, change: SettingChanged) -> bool:
        """Return whether the vendor must be launched with other arguments after a change."""
        from shim.core.adapter.enforcement import needs_restart_for_rules

        adapter = self.launcher.adapter
        resume_state = self.launcher.resume_state
        if change.setting == "mode":
            # Only one of the old and the new mode may need the shim's policy check.
            return adapter.needs_external_policy_check(
                str(change.value)
            ) != adapter.needs_external_policy_check(resume_state.launch_mode)
        # The child knows only the rules from its launch. It asks for permission for calls that
        # newer rules restrict.
        return change.setting == "rules" and needs_restart_for_rules(
            adapter,
            resume_state.restricting_rules,
            self.launcher.policy.restricting_rules,
            resume_state.prompted_tools,
        )

    async def _send_message(self, child: Child, stream: ChildStream, prompt: UserMessage) -> bool:
        """Send the turn's message to the child, and read the answer. Return whether the turn is
        over.
        """
        self._turn_has_output = False
        self._phase = TurnPhase.SENDING
        await self._write_to_child(child, self._child_input.encode_prompt(prompt))
        return await self._read_turn_output(child, stream)

    async def interrupt(self) -> None:
        """Interrupt the turn. A child that does not react in time is stopped."""
        self._permissions.cancel_waits()
        self.cancel_hook_commands()
        if self._interrupted:
            return
        self._interrupted = True  # set even if no child is running
        self._hooks_answered.set()
        if self.stream is None or self._child is None:
            return
        self.stream.turn.record_interrupt()
        if self._waits_for_hooks:
            return
        # A child that is still starting or has not read the message would not read an interrupt.
        if not self._child_has_output or self._phase is TurnPhase.SENDING:
            await self._child.stop("SIGTERM")
            return
        await self._interrupt_child(self._child)

    async def stop_turn_for_hook(self) -> None:
        """Interrupt the turn, because a hook ends it after a tool call. The child keeps running,
        because some vendors do not store a session before its first turn is over.
        """
        if self.stream is not None:
            self._runs_stop_hooks_at_end = False
            self.stream.turn.outcome_tracker.stop_by_hook()
            await self.interrupt()

    async def stop(self) -> None:
        """Close the child's stdin, and make sure that it exits."""
        if (child := self._child) is not None:
            await child.shut_down_idle_process()
            await self._release_child(child)
        self._remove_attachments()
