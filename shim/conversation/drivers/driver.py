"""The base classes of the drivers. A driver runs one child process per message, or one child for
all messages.

`run_turn` answers one message with exactly one result, whatever happens to the child. The other
methods may be called during a turn. `ChildStream` translates the child's output into lines for the
frontend and commands. The driver writes the lines and executes the commands.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import anyio
from anyio.abc import TaskGroup

from shim.conversation.drivers.deadlines import ChildTurnDeadlines
from shim.conversation.drivers.launcher import ChildLauncher
from shim.core.adapter.child_stream import ChildStream
from shim.core.adapter.commands import (
    RunHooksCommand,
    SetTimeoutCommand,
    StoreSessionCommand,
    StreamCommand,
    StreamCommands,
    TurnStage,
)
from shim.core.api_errors import TurnEndCause
from shim.core.claude.hooks.callbacks import HookEvent, build_stop_event
from shim.core.claude.messages import TEXT_ONLY_KINDS, BlockKinds, UserMessage
from shim.core.claude.permissions import NOT_GRANTED_TEXT, PermissionDecision
from shim.core.errors import ShimError
from shim.core.policy import RESULT_EVENTS, SESSION_END_EVENT, SESSION_START_EVENT, STOP_EVENT
from shim.core.turn.outcome import ChildExit
from shim.io.stderr import SILENT_LOG, LogFunction, warn
from shim.io.stdout import FrontendDisconnectedError, FrontendOutput
from shim.process import descendants
from shim.process.child import Child

if TYPE_CHECKING:
    from shim.conversation.drivers.event_hook_runner import EventHookRunner
    from shim.conversation.drivers.turn_lifecycle import TranslatorFactory
    from shim.core.claude.control import ControlSession
    from shim.core.claude.control.actions import FrontendAction, SettingChanged
    from shim.core.claude.local_commands import LocalCommand
    from shim.core.claude.usage import Usage

SILENT_EXIT_TIMEOUT_S = 0.2  # for the stdout of a child that exited before printing anything
# The capacity of a pipe, so that all output that a child wrote before it exited is read.
MAX_LATE_BYTES = 1024 * 1024
MAX_LOGGED_STDERR_CHARS = 2000  # the length limit for stderr in the log
STDERR_TIMEOUT_S = 0.2  # for the remaining stderr after stdout has ended


class ConversationDriver(Protocol):
    """Answers the messages of a session, with a single driver or a fallback chain of drivers."""

    @property
    def active_child_driver(self) -> "ChildDriver":
        """Return the driver whose child is answering."""

    async def run_turn(self, message: UserMessage) -> None:
        """Answer a message. When this returns, all lines of the turn have been written."""

    async def interrupt(self) -> None:
        """Interrupt the running turn. The turn still writes its result."""


class ChildDriver:
    """The base class of the drivers that run a child process. It reads the child's stream and
    executes the stream's commands.
    """

    def __init__(
        self,
        launcher: ChildLauncher,
        output: FrontendOutput,
        control: "ControlSession | None" = None,
        create_stream: Callable[..., ChildStream] = ChildStream,
        hook_commands: "EventHookRunner | None" = None,
    ) -> None:
        """Create the driver. `create_stream` takes the arguments of ChildStream. `hook_commands`
        runs the hooks in Claude's settings files, if there are any.
        """
        self.active_child_driver = self
        self._create_stream = create_stream
        # The stream of the running turn or of the last turn; None before the first turn.
        self.stream: ChildStream | None = None
        self.launcher = launcher
        self._output = output
        self._control = control
        self._hook_commands = hook_commands
        self._child: Child | None = None
        self._deadlines = ChildTurnDeadlines(launcher.timeouts)
        self._tasks: TaskGroup | None = None
        self._child_has_output = False  # the child has printed something
        self._reset_turn()

    def _reset_turn(self) -> None:
        """Reset the state that belongs to a single turn."""
        self._interrupted = self._stalled = False
        self._is_retry = False  # the message was sent to the vendor a second time
        self._turn_has_output = False  # the child has printed something in this turn
        self._stage = TurnStage.RUNNING
        self._runs_stop_hooks_at_end = True  # the Stop hooks were not called yet

    def open_stream(self, previous_stream: ChildStream | None) -> ChildStream:
        """Open the stream for a turn. `previous_stream` is the stream of the previous child."""
        self.stream = self.launcher.turn_lifecycle.open_child_stream(
            previous_stream, self._get_translator_factory(), self._create_stream
        )
        return self.stream

    def _get_translator_factory(self) -> "TranslatorFactory | None":
        """Return the function that wraps the vendor's translator class, or None."""
        return None

    async def decide_tool_call(
        self, tool: str, tool_input: Mapping[str, Any]
    ) -> PermissionDecision:
        """Decide, by the rules alone, whether a call to one of the frontend's own tools may run.
        The frontend is not asked.
        """
        state = self.launcher.session_state
        allowed = state.evaluate_tool_call(tool, tool_input).outcome == "allow"
        message = ""
        if not allowed:
            message = NOT_GRANTED_TEXT.format(tool=tool)
        return PermissionDecision(allowed, message=message)

    async def write_agent_prompt(self, tool_input: Mapping[str, Any]) -> None:
        """Write the prompt of a subagent that the shim runs. `tool_input` are the arguments of the
        call that runs it.
        """
        if self.stream is not None:
            self.stream.turn.write_agent_prompt(tool_input)
            await self._write_agent_output(self.stream)

    async def write_agent_blocks(
        self, tool_input: Mapping[str, Any], blocks: Sequence[Mapping[str, Any]]
    ) -> None:
        """Write the content blocks of a subagent that the shim runs."""
        if self.stream is not None and blocks:
            self.stream.turn.write_agent_blocks(tool_input, blocks)
            await self._write_agent_output(self.stream)

    async def _write_agent_output(self, stream: ChildStream) -> None:
        with contextlib.suppress(FrontendDisconnectedError):  # the turn also detects this
            await self.write_output_and_run_commands(*stream.take_output())

    def add_agent_usage(self, usage: "Usage", cost_usd: float) -> None:
        """Add to the turn the usage and the cost of a subagent that the shim ran."""
        if self.stream is not None and not self.stream.is_turn_finished:
            self.stream.turn.add_agent_usage(usage, cost_usd)

    async def run_turn(self, message: UserMessage) -> None:
        """Answer a message. When this returns, all lines of the turn have been written."""
        raise NotImplementedError

    async def interrupt(self) -> None:
        """Interrupt the running turn. The turn still writes its result."""
        raise NotImplementedError

    async def apply_setting_change(self, change: "SettingChanged") -> None:
        """Apply a changed model, permission mode or effort. A persistent child receives the change
        at once.
        """
        raise NotImplementedError

    async def stop(self) -> None:
        """Stop the child, at the end of the conversation or after a failure."""
        raise NotImplementedError

    def resume_after_hook_answers(self) -> None:
        """Start the timeouts of new permission prompts and the commands of PermissionRequest hooks,
        and wake a turn that waits for hooks. This class does nothing, because it asks no permission
        and does not wait for hooks.
        """

    async def send_steering_messages(self) -> None:
        """Do nothing, because a one-message child cannot read further messages."""

    def terminate(self) -> None:
        """Send SIGTERM to the child, without waiting."""
        if self._child is not None:
            self._child.send_signal("SIGTERM")

    def clean_up_after_child(self) -> None:
        """Remove the attachments of the answered message, and reap exited processes that were
        started by the child's tools.
        """
        self._remove_attachments()
        if self._child is not None:
            excluded_pids = self._child.pids
        else:
            excluded_pids = set()
        descendants.reap_orphans(excluded_pids)

    def _remove_attachments(self) -> None:
        """Remove the attachments of the answered message, if there are any."""
        if "attachments" in self.launcher.__dict__:
            self.launcher.attachments.clear()

    def _close_child(self, child: Child) -> None:
        """Close the shim's pipe ends of a child that has exited or was told to exit."""
        child.close()
        log_child_exit(self.launcher.context.log, child)

    def peek_stderr(self) -> str:
        """Return the tail of the child's stderr so far."""
        if self._child is None:
            return ""
        return self._child.stderr_tail.to_text()

    # -- lines and commands of the stream ----------------------------------------------------------

    async def write_output_and_run_commands(self, lines: bytes, commands: StreamCommands) -> None:
        """Write lines to the frontend, and execute the stream commands that belong to them."""
        for command in commands:
            self._execute_before_write(command)
        if TurnStage.FINISHED in commands:
            lines = self._withdraw_prompts() + lines
        if lines:
            await self._output.write_lines(lines)
        else:
            # Output without lines for the frontend must not block the loop.
            await anyio.lowlevel.checkpoint()
        for command in commands:
            await self._execute_after_write(command)

    def _execute_before_write(self, command: StreamCommand) -> None:
        """Execute a command that must take effect before the lines are written to the frontend."""
        match command:
            case StoreSessionCommand() if self.stream is not None:
                self.launcher.turn_lifecycle.store_session(self.stream)
                if tool := self.stream.turn.tool_calls.denials.tool_that_ran:
                    self.launcher.report_executed_denied_tool(tool)
            case SetTimeoutCommand(timeout):
                self._deadlines.select_silence_timeout_by_name(timeout)
            case TurnStage():
                self._stage = command
                self._apply_stage(command)

    def _apply_stage(self, stage: TurnStage) -> None:
        raise NotImplementedError

    async def _execute_after_write(self, command: StreamCommand) -> None:
        """Execute a command that must wait until the lines have been written to the frontend."""
        match command:
            case RunHooksCommand(hook_events) if self._control is not None:
                await self._call_hooks(self._control, hook_events)

    async def _call_hooks(
        self, control: "ControlSession", hook_events: "tuple[HookEvent, ...]"
    ) -> None:
        """Call the hooks of the frontend and of Claude's settings files. Stop the turn if a tool
        call has run although a hook had denied it, or if a hook wants the turn to end after a tool
        call.
        """
        action: FrontendAction | None = None
        for event in hook_events:
            control.hooks.call_hooks(event)
            if action is None and event.name in RESULT_EVENTS:
                action = control.hooks.record_executed_call(event.call_id)
        await self._output.write_lines(control.take_output())
        command_actions = await self.run_hook_commands()
        if action is None and command_actions:
            action = command_actions[0]
        if action is not None:
            await self.execute_action(action)

    async def execute_action(self, action: "FrontendAction") -> None:
        """Execute an action that results from a frontend's line or a hook's answer. This class
        ignores decisions about permission requests, because its child cannot ask.
        """
        from shim.core.claude.control.actions import (
            SettingChanged,
            ToolCallBlocked,
            TurnStoppedByHook,
        )

        match action:
            case ToolCallBlocked(call_id, reason):
                await self.forbid_running_tool_call(call_id, reason)
            case TurnStoppedByHook():
                await self.stop_turn_for_hook()
            case SettingChanged():
                await self.apply_setting_change(action)

    async def run_hook_commands(self) -> "Sequence[FrontendAction]":
        """Run the hook commands that were requested, until all of them have exited. Return the
        actions that result from their answers.
        """
        if self._hook_commands is None:
            return ()
        return await self._hook_commands.run_requested_commands()

    def cancel_hook_commands(self) -> None:
        """End the hook commands that are running. Their answers have no effect."""
        if self._hook_commands is not None:
            self._hook_commands.cancel_running_commands()

    async def _write_turn_end(self, lines: bytes, commands: StreamCommands) -> None:
        """Write the last lines of a turn. The session is stored first, because the frontend may
        resume it as soon as the result arrives.
        """
        for command in commands:
            if isinstance(command, RunHooksCommand) and self._control is not None:
                lines = await self._call_last_hooks(self._control, command) + lines
            self._execute_before_write(command)
        await self._output.write_lines(self._withdraw_prompts() + lines)

    async def _call_last_hooks(self, control: "ControlSession", command: RunHooksCommand) -> bytes:
        """Call the Stop hooks of a turn that the hooks cannot continue. Return the lines for the
        frontend.
        """
        if self._runs_stop_hooks_at_end:
            for event in command.events:
                if event.name == STOP_EVENT:
                    event = build_stop_event(command.last_text)
                control.hooks.call_hooks(event)
            await self.run_hook_commands()
        return control.take_output()

    def _withdraw_prompts(self) -> bytes:
        """Cancel the open permission prompts, and return the lines that report this. These lines
        must precede the result.
        """
        if self._control is None:
            return b""
        self._control.cancel_permission_prompts()
        return self._control.take_output()

    async def _read_turn_output(self, child: Child, stream: ChildStream) -> bool:
        """Read and translate the child's stdout until the turn is over.

        Return False if stdout ends or a deadline passes before that.
        """
        late_bytes = 0
        while not self._is_turn_done:
            with self._deadlines.open_read_scope(
                silence_allowed=self._allows_silence
            ) as read_scope:
                chunk = await child.read_stdout()
            if read_scope.cancelled_caught:
                if self._deadlines.has_expired:
                    return await self._finish_on_deadline(stream)
                # If this process was suspended, the child may have printed output meanwhile.
                chunk = child.read_available_stdout()
                if not chunk:
                    self._end_stalled_turn(child, stream)
                    continue
            if not chunk:
                return False
            if self._deadlines.has_expired:
                late_bytes = late_bytes + len(chunk)
            else:
                late_bytes = 0
            if late_bytes > MAX_LATE_BYTES:
                return False
            self._child_has_output = self._turn_has_output = True
            await self.write_output_and_run_commands(*stream.feed(chunk))
        return True

    @property
    def _is_turn_done(self) -> bool:
        """Whether the turn needs no more output from its child."""
        return self._stage is TurnStage.FINISHED

    @property
    def _allows_silence(self) -> bool:
        """Whether the child may be silent: it is done, it is being stopped, or a permission prompt
        is open.
        """
        if self._stalled or self._stage in (TurnStage.VENDOR_DONE, TurnStage.FINISHED):
            return True
        if self._control is None:
            return False
        return self._control.has_undecided_requests

    def _end_stalled_turn(self, child: Child, stream: ChildStream) -> None:
        """Interrupt and stop a child that has been silent for too long. Its remaining output is
        still read.
        """
        timeout_name = self._deadlines.timeout_name
        timeout_s = self._deadlines.timeout_s
        if self.launcher.recorder is not None:
            self.launcher.recorder.record_run_event("timeout", name=timeout_name, seconds=timeout_s)
        stream.stop_stalled_turn(
            f"{self.launcher.adapter.name} printed nothing for {timeout_s:g} s ({timeout_name})"
        )
        self._stalled = True
        assert self._tasks is not None
        self._tasks.start_soon(self._interrupt_child, child)

    async def _interrupt_child(self, child: Child) -> None:
        """Send the vendor's interrupt signal, then stop the child's process group."""
        await child.stop(self.launcher.adapter.shutdown.interrupt_signal)

    async def _finish_on_deadline(self, stream: ChildStream) -> bool:
        """Handle an expired deadline. Return whether the turn is over."""
        return False

    # -- the start of a turn -----------------------------------------------------------------------

    def _start_turn(self, stream: ChildStream, message: UserMessage) -> None:
        """Start the turn in which the child will answer a message."""
        has_hooks = self._control is not None and self._control.hooks.has_hooks
        self._set_user_message(stream, message, has_hooks=has_hooks)

    def _start_turn_without_vendor(self, stream: ChildStream, message: UserMessage) -> None:
        """Start a turn for a message that is not sent to the child. The turn calls no hooks."""
        self._set_user_message(stream, message, has_hooks=False)

    def _set_user_message(
        self, stream: ChildStream, message: UserMessage, *, has_hooks: bool
    ) -> None:
        """Set the message that the stream's turn will answer."""
        stream.set_user_message(
            message,
            replays_message=self.launcher.turn_lifecycle.replays_user_messages,
            has_hooks=has_hooks,
            list_accepted_kinds=self._list_accepted_kinds,
        )

    def _list_accepted_kinds(self) -> BlockKinds:
        """Return the kinds of content blocks that the child accepts in addition to text."""
        return TEXT_ONLY_KINDS

    def _create_unstarted_stream(self, message: UserMessage) -> ChildStream:
        """Create a stream for a message that no child will answer."""
        stream = self.open_stream(self.stream)
        self._start_turn_without_vendor(stream, message)
        return stream

    async def refuse_turn(self, message: UserMessage, error: Exception) -> None:
        """End a turn that cannot start. Its result reports the error, even if the error is a bug in
        the shim.
        """
        await self._output.write_lines(
            self._create_unstarted_stream(message).write_turn_start_error(error)
        )

    async def cancel_turn(self, message: UserMessage) -> None:
        """End the turn for a message that was interrupted before any child could answer it."""
        stream = self._create_unstarted_stream(message)
        stream.turn.record_interrupt()
        lines, _ = stream.close(None)
        await self._output.write_lines(lines)

    async def finish_turn_without_vendor(
        self, message: UserMessage, text: str = "", notice: Mapping[str, Any] | None = None
    ) -> None:
        """End the turn successfully with `text`, without sending the message to the vendor."""
        stream = self._open_turn_without_vendor(message)
        await self._output.write_lines(stream.finish_turn_without_vendor(text, notice=notice))

    async def refuse_unknown_model(self, message: UserMessage, model: str) -> None:
        """Fail the turn as the real claude does for a model that does not exist. The message is not
        sent to the vendor.
        """
        stream = self._open_turn_without_vendor(message)
        await self._output.write_lines(stream.finish_with_unknown_model(model))
        warn(
            f"the model {model} was not requested from {self.launcher.adapter.name}: add it under "
            "[models] in config.toml to choose a model for it\n"
        )

    def _open_turn_without_vendor(self, message: UserMessage) -> ChildStream:
        """Return the stream for a message that is not sent to the vendor. A running child keeps
        running for the next message.
        """
        if self._child is None or self.stream is None:
            return self._create_unstarted_stream(message)
        self.stream.start_turn(self.launcher.turn_lifecycle.build_turn_config())
        self._start_turn_without_vendor(self.stream, message)
        return self.stream

    # -- commands of Claude ------------------------------------------------------------------------

    async def compact_context(self, message: UserMessage, command: "LocalCommand") -> None:
        """Compact the vendor's context. This class answers that the vendor cannot do this."""
        from shim.core.claude.local_commands import NO_COMPACTION_TEXT

        text = NO_COMPACTION_TEXT.format(vendor=self.launcher.adapter.display_name)
        await self.finish_local_command(message, command.name, text, is_failed=True)

    async def finish_local_command(
        self,
        message: UserMessage,
        command_name: str,
        text: str,
        *,
        is_failed: bool = False,
    ) -> None:
        """Answer a command with a text. With `is_failed`, the text is the reason why the command
        had no effect.
        """
        stream = self._open_turn_without_vendor(message)
        lines = stream.finish_local_command(command_name, text, is_failed=is_failed)
        await self._output.write_lines(lines, in_transcript=False)

    async def start_new_session(self, message: UserMessage, command: "LocalCommand") -> None:
        """End the session, and continue in a new one without history. The next message starts a new
        child.
        """
        launcher = self.launcher
        old_session_id = launcher.session_state.options.session_id
        if self.stream is not None and self.stream.turn.conversation.session_id:
            old_session_id = self.stream.turn.conversation.session_id
        await self.stop()
        await self.call_session_hooks(HookEvent(SESSION_END_EVENT, trigger="clear"))
        launcher.start_new_session()
        if not launcher.session_state.options.keeps_session_id:
            self._output.start_new_session()
        stream = self._open_turn_without_vendor(message)
        lines = stream.finish_conversation_reset(old_session_id, command.name)
        launcher.turn_lifecycle.store_empty_session(stream)
        # As with the real claude, the hooks of the new session run after the line about the reset.
        reset_line, newline, turn_lines = lines.partition(b"\n")
        await self._output.write_lines(reset_line + newline, in_transcript=False)
        await self.call_session_hooks(HookEvent(SESSION_START_EVENT, trigger="clear"))
        await self._output.write_lines(turn_lines, in_transcript=False)

    async def call_session_hooks(self, event: HookEvent) -> None:
        """Call the hooks of the frontend and of Claude's settings files for an event of the
        session.
        """
        if self._control is None:
            return
        self._control.hooks.call_hooks(event)
        if lines := self._control.take_output():
            await self._output.write_lines(lines)
        await self.run_hook_commands()

    async def _finish_if_interrupted(self, stream: ChildStream) -> bool:
        """End the turn if it was interrupted while no child was running. Return whether the turn
        was ended.
        """
        if self._interrupted:
            stream.turn.record_interrupt()
            await self._write_turn_end(*stream.close(None))
        return self._interrupted

    # -- the end -----------------------------------------------------------------------------------

    async def forbid_running_tool_call(self, call_id: str, reason: str) -> None:
        """Write the result of a forbidden tool call at once, and stop the child.

        `_read_turn_output` returns when the child has exited.
        """
        if self.stream is not None and self._child is not None:
            self.stream.turn.stop_for_forbidden_call(call_id, reason)
            await self._write_result_and_stop(self.stream, self._child)

    async def stop_turn_for_hook(self) -> None:
        """Write the result of a turn that a hook ends after a tool call, and stop the child.

        `_read_turn_output` returns when the child has exited.
        """
        if self.stream is not None and self._child is not None:
            self._runs_stop_hooks_at_end = False
            self.stream.turn.stop_by_hook()
            await self._write_result_and_stop(self.stream, self._child)

    async def _write_result_and_stop(self, stream: ChildStream, child: Child) -> None:
        await self.write_output_and_run_commands(*stream.take_output())
        await child.stop(self.launcher.adapter.shutdown.interrupt_signal)

    def abandon_turn(self, reason: str, cause: TurnEndCause) -> None:
        """End the running turn and stop its child. `reason` is reported in the result."""
        if self.stream is not None:
            self.stream.turn.stop(reason, cause)
            self._deadlines.shorten_exit_deadline(0)

    async def _watch_child_exit(self, child: Child) -> None:
        """Wait until the child exits, and limit the wait for its remaining output. Another process
        may keep the child's stdout open.
        """
        await child.wait_for_exit()
        if self._child is child:
            timeout_s = SILENT_EXIT_TIMEOUT_S
            if self._turn_has_output:
                timeout_s = self.launcher.exit_timeout_s
            self._deadlines.shorten_exit_deadline(timeout_s)

    async def _ensure_child_exit(self, child: Child) -> ChildExit | None:
        """Make sure that the child has exited. Return its exit, or None if the shim stopped the
        child.
        """
        if self._stage is TurnStage.FINISHED:
            await child.stop(self.launcher.adapter.shutdown.interrupt_signal)
            return None
        deadlines = self._deadlines
        deadline = min(
            deadlines.exit_deadline,
            deadlines.grace_deadline,
            anyio.current_time() + self.launcher.exit_timeout_s,
        )
        with anyio.CancelScope(deadline=deadline):
            await child.wait_for_exit()
        if child.child_exit is None:
            await child.stop(
                "SIGTERM" if self._interrupted else self.launcher.adapter.shutdown.interrupt_signal
            )
            return None
        if self._interrupted or self._stalled:
            return None
        return child.child_exit

    def _retry_if_cut(
        self, stream: ChildStream, child_exit: ChildExit | None = None, stderr: str | None = None
    ) -> bool:
        """Prepare a retry if the dialect allows retries and only text was cut off (R11). Return
        whether the message must be sent again.

        `stderr` is None if the child reported the end of its turn and keeps running.
        """
        if self._is_retry or not self.launcher.turn_lifecycle.retries_interrupted_streams:
            return False
        if self._interrupted or self._stalled or self._stage is TurnStage.FINISHED:
            return False
        self._is_retry = stream.start_retry(child_exit, stderr)
        if self._is_retry:
            self._stage = TurnStage.RUNNING
            if self.launcher.recorder is not None:
                self.launcher.recorder.record_run_event("retry")
            warn(
                f"{self.launcher.adapter.name}: the stream was cut off; sending the message again\n"
            )
        return self._is_retry

    async def _close_turn(self, child: Child, stream: ChildStream) -> bool:
        """End the turn after its child's stdout has ended, and make sure that the child has exited.
        Return False if the message must be sent again.
        """
        child_exit = await self._ensure_child_exit(child)
        with anyio.move_on_after(STDERR_TIMEOUT_S):
            await child.stderr_drained.wait()
        stderr = child.stderr_tail.to_text()
        report_file = self.launcher.report_file
        if report_file is not None and (report := report_file.read_and_remove()) is not None:
            stream.set_vendor_run_report_file_content(report)
        if self._stage is TurnStage.FINISHED:
            return True
        if self._retry_if_cut(stream, child_exit, stderr):
            return False
        await self._write_turn_end(*stream.close(child_exit, stderr))
        return True

    async def _fail_turn(self, stream: ChildStream, error: ShimError) -> None:
        """End a turn because no further child can be started for it."""
        await self._write_turn_end(*stream.write_turn_failure(error))


def log_child_exit(log: LogFunction, child: Child) -> None:
    """Log how a child exited, with its timing and the tail of its stderr."""
    if log is not SILENT_LOG:
        first_output_s = None
        if child.first_output_delay_s is not None:
            first_output_s = round(child.first_output_delay_s, 3)
        lifetime_s = round(anyio.current_time() - child.start_time_s, 3)
        child_exit = child.child_exit or ChildExit()
        stderr = child.stderr_tail.to_text()
        # Log complete lines only, because a secret is not recognized in part of a line.
        if len(stderr) > MAX_LOGGED_STDERR_CHARS:
            stderr = stderr[-MAX_LOGGED_STDERR_CHARS:].partition("\n")[2]
        log(
            "child ended",
            level="debug",
            code=child_exit.code,
            signal=child_exit.signal,
            first_output_s=first_output_s,
            seconds=lifetime_s,
            stderr=stderr,
        )
