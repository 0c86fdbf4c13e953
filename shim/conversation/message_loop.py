"""The message loop of a conversation. It runs one turn for each message until stdin ends, a signal
arrives or the frontend disconnects.

The loop answers either the single message on the command line or any number of messages from stdin.
The driver decides whether each message gets its own child process.
"""

from collections import deque
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from shim.conversation.drivers.driver import ConversationDriver
from shim.conversation.loop import (
    EXIT_STATUS_BY_SIGNAL,
    FINAL_WRITE_TIMEOUT_S,
    ConversationLoop,
    explain_turn_failure,
)
from shim.core.adapter.child_stream import ChildStream
from shim.core.adapter.translator import Translator
from shim.core.api_errors import TurnEndCause
from shim.core.claude.hooks.callbacks import HOOK_TIMEOUT_S, HookEvent
from shim.core.claude.messages import UserMessage
from shim.core.errors import ShimError
from shim.core.policy import SESSION_END_EVENT, SESSION_START_EVENT
from shim.core.reading import MAX_LINE_BYTES
from shim.core.turn.context import SessionConfig, TurnConfig, VendorInfo
from shim.io.ids import create_uuid
from shim.io.stderr import warn
from shim.io.stdout import FrontendDisconnectedError, FrontendOutput
from shim.process import descendants

if TYPE_CHECKING:
    from shim.core.claude.command_files import CommandCall
    from shim.core.claude.control import ControlSession
    from shim.core.claude.control.actions import FrontendAction
    from shim.core.claude.control.session_lines import SessionStateReporter
    from shim.core.claude.hooks.answers import PromptHookRejection
    from shim.core.claude.local_commands import LocalCommand
    from shim.core.turn.turn import Turn
    from shim.io.stdin import FrontendLineSource
    from shim.recording.recorder import RunRecorder

# Limits for the queue of messages. While the queue is full, stdin is not read, so answers and
# interrupts are not received either. No known frontend sends so many messages ahead.
MAX_UNMEASURED_MESSAGES = 64  # up to this number, the queue's size in bytes is not checked
MAX_QUEUED_MESSAGES = 10_000
INTERRUPTED_COMMAND_TEXT = "/{name} was not sent: its shell command was interrupted"
# The total size limit for stored context messages equals the limit for a single message.
MAX_CONTEXT_BYTES = MAX_LINE_BYTES


class MessageLoop(ConversationLoop):
    """Runs a conversation from the first message to the end.

    first_message  the message from the command line; without `source`, the only message
    control        answers the frontend's control requests
    states         reports whether a turn is running, for a run without `control`
    source         the frontend's lines from stdin
    """

    def __init__(
        self,
        driver: ConversationDriver,
        output: FrontendOutput,
        *,
        first_message: UserMessage | None = None,
        control: "ControlSession | None" = None,
        states: "SessionStateReporter | None" = None,
        source: "FrontendLineSource | None" = None,
        recorder: "RunRecorder | None" = None,
    ) -> None:
        super().__init__(output, recorder)
        self._driver = driver
        self._control = control
        self._source = source
        self._session_lines: ControlSession | SessionStateReporter | None = states
        if control is None:
            self._messages = deque[UserMessage]()
        else:
            self._session_lines = control
            self._messages = control.queued_messages
        if first_message is not None:
            self._messages.append(first_message)
        self._is_one_shot = first_message is not None
        self._reads_stdin = source is not None
        self._turn_running = False
        self._previous_turn: Turn | None = None  # the turn before the running one
        self._turn_number = 0  # the number of the running turn, or of the last one
        self._message_taken = (
            False  # a message was taken from the queue, but its turn has not started
        )
        # Context messages, which are sent together with the next message.
        self._context_messages = deque[UserMessage]()
        self._has_warned_about_context = False
        self._waits_for_hooks = False  # some UserPromptSubmit hooks have not answered yet
        self._interrupted_early = False  # an interrupt arrived before the hooks answered
        self._expansion_scope: anyio.CancelScope | None = None  # while a command is expanded

    async def _run_session(self, tasks: TaskGroup) -> int:
        """Run the turns, and make sure that the child has exited. Return the exit status."""
        if self._source is not None:
            tasks.start_soon(self._run_in_background, self._read_stdin, self._source)
        try:
            with self._work_scope:
                await self._run_turns()
            if self._error is not None:
                raise self._error
        except FrontendDisconnectedError:
            self._frontend_disconnected = True
        except Exception as error:
            await self._report_failure(error)
            await self._end_session()
            return 1
        child_driver = self._driver.active_child_driver
        if self._stop_signal is not None:
            child_driver.terminate()
            reason = f"the turn was stopped by {self._stop_signal}"
            stream = self._get_or_create_final_stream()
            await self._write_last_result(stream, reason, "signal")
        is_ended = await self._end_session()
        if self._control is not None:
            # After a conversation, no child process is needed any more. A one-shot run may leave a
            # server running.
            descendants.kill_orphans()
        if self._stop_signal is not None:
            return EXIT_STATUS_BY_SIGNAL[self._stop_signal]
        if not is_ended:
            return 1
        if self._control is not None and self._control.has_received_only_unreadable_lines:
            return 1
        stream = child_driver.stream
        if stream is None or self._is_ending or self._frontend_disconnected:
            return 0
        return int(stream.turn.is_error)

    async def _call_session_hooks(self, event: str, trigger: str) -> None:
        """Run the hooks in Claude's settings files at the start or the end of the session."""
        child_driver = self._driver.active_child_driver
        await child_driver.call_session_hooks(HookEvent(event, trigger=trigger))

    async def _run_turns(self) -> None:
        state = self._driver.active_child_driver.launcher.session_state
        await self._call_session_hooks(SESSION_START_EVENT, state.options.start_trigger)
        while (message := await self._wait_for_message()) is not None:
            command = state.parse_local_command(message)
            if self._session_lines is not None:
                # No hooks run after SIGINT, or for a command that the shim answers.
                has_hooks = command is None and not self._is_ending
                self._session_lines.start_turn(message.text if has_hooks else None)
            self._turn_running = True
            previous_stream = self._driver.active_child_driver.stream
            self._previous_turn = None if previous_stream is None else previous_stream.turn
            if self._recorder is not None:
                self._recorder.turn_number += 1
            await self._write_control_lines()
            command_call = None
            if command is None:
                command_call = state.find_command_call(message)
                if command_call is not None:
                    message = command_call.name_invocation(message)
                self._output.write_prompt_to_transcript(message)
            self._message_taken = False
            self._wake_waiters()
            await self._answer_message(message, command, command_call)
            self._turn_running = False
            if self._session_lines is not None:
                self._session_lines.end_turn()
                await self._write_control_lines()
            stream = self._driver.active_child_driver.stream
            if stream is not None:
                self._record_result(stream)
                await self._output.finish_turn(stream.turn)

    async def _answer_message(
        self,
        message: UserMessage,
        command: "LocalCommand | None",
        command_call: "CommandCall | None",
    ) -> None:
        """Run a turn for a message. No turn runs if a hook rejects the message, or if the message
        is only context for the next one.

        `command` is the command in the message that the shim answers. `command_call` is the
        invocation of a command file.
        """
        rejection = await self._wait_for_prompt_hooks()
        child_driver = self._driver.active_child_driver
        stream = child_driver.stream
        if self._is_ending or self._interrupted_early:  # interrupted before the turn started
            await child_driver.cancel_turn(message)
        elif command is not None:
            await self._answer_local_command(message, command)
        elif rejection is not None and rejection.is_error:
            await child_driver.refuse_turn(message, ShimError(rejection.text))
        elif rejection is not None:
            await child_driver.finish_turn_without_vendor(
                message, rejection.text, rejection.build_rejection_notice()
            )
            if rejection.stays_in_context:
                self._store_as_context(message)
                self._store_as_context(UserMessage(rejection.format_for_model(), is_from_hook=True))
        elif not message.needs_reply:
            await child_driver.finish_turn_without_vendor(message)
            self._store_as_context(message)
        elif stream is not None and stream.is_over_cost_budget:
            # The result reports that the budget is exhausted.
            await child_driver.finish_turn_without_vendor(message)
        elif model := child_driver.launcher.session_state.unknown_model:
            await child_driver.refuse_unknown_model(message, model)
        elif command_call is not None:
            await self._answer_command(message, command_call)
        else:
            await self._run_turn(message)

    async def _run_turn(self, message: UserMessage) -> None:
        message = self._add_context(message)
        await self._driver.run_turn(message)
        # The turn may have replaced the driver.
        self._driver.active_child_driver.clean_up_after_child()
        self._warn_about_late_context()

    async def _answer_command(self, message: UserMessage, command_call: "CommandCall") -> None:
        """Expand a command file, and run a turn for its text. An interrupt also ends the shell code
        of the command.
        """
        from shim.conversation.command_expansion import (
            CommandRefusedError,
            expand_command,
            list_ignored_fields,
        )

        child_driver = self._driver.active_child_driver
        state = child_driver.launcher.session_state
        self._expansion_scope = anyio.CancelScope()
        text = None
        try:
            with self._expansion_scope:
                text = await expand_command(command_call, child_driver.launcher)
        except CommandRefusedError as error:
            await child_driver.finish_local_command(
                message, command_call.file.name, str(error), is_failed=True
            )
            return
        finally:
            self._expansion_scope = None
        if self._is_ending:  # SIGINT has arrived
            await child_driver.cancel_turn(message)
            return
        if text is None:
            name = command_call.file.name
            reason = INTERRUPTED_COMMAND_TEXT.format(name=name)
            await child_driver.finish_local_command(message, name, reason, is_failed=True)
            return
        state.ignored_command_fields = list_ignored_fields(command_call)
        for field in state.ignored_command_fields:
            warn(f"`{field.what}` in the header of {field.source} has no effect: {field.reason}\n")
        self._output.write_command_text_to_transcript(text)
        await self._run_turn(command_call.expand_message(message, text))
        state.ignored_command_fields = ()

    async def _answer_local_command(self, message: UserMessage, command: "LocalCommand") -> None:
        """Answer one of Claude's commands. A command that starts a new session also discards the
        context messages and the texts of hooks.
        """
        from shim.conversation.drivers.local_commands import answer_local_command
        from shim.core.claude.local_commands import CLEAR

        if command.kind == CLEAR:
            self._context_messages.clear()
            if self._control is not None:
                self._control.hooks.feedback.take_model_text()
        await answer_local_command(self._driver.active_child_driver, message, command)

    def _add_context(self, message: UserMessage) -> UserMessage:
        """Put the stored context messages and the texts of hooks before a message.

        The texts of hooks are not added to a slash command, because a message that does not begin
        with the command is not recognized as a command.
        """
        context = [*self._context_messages]
        self._context_messages.clear()
        model_text = ""
        if self._control is not None and not message.text.startswith("/"):
            model_text = self._control.hooks.feedback.take_model_text()
        if model_text:
            context.append(UserMessage(model_text, is_from_hook=True))
        return message.prepend_context(context)

    def _warn_about_late_context(self) -> None:
        """Report once that the context of hooks could not be sent during a turn."""
        if self._control is None or self._has_warned_about_context:
            return
        if self._control.hooks.feedback.has_late_context:
            self._has_warned_about_context = True
            effect = "the model receives it with the next message"
            if self._is_one_shot:
                effect = "it has no effect, because this run has no other message"
            warn(f"the context of a hook was not sent during the turn: {effect}\n")

    async def _wait_for_prompt_hooks(self) -> "PromptHookRejection | None":
        """Wait until the UserPromptSubmit hooks have answered. Return the first rejection, or
        None. The message is sent without the hooks that do not answer in time.
        """
        self._interrupted_early = False
        control = self._control
        if control is None or not (
            control.hooks.is_waiting_for_prompt_hooks or control.hooks.has_command_calls
        ):
            return None
        self._waits_for_hooks = True
        await self._driver.active_child_driver.run_hook_commands()
        with anyio.move_on_after(HOOK_TIMEOUT_S):
            while control.hooks.is_waiting_for_prompt_hooks and not (
                self._is_ending or self._interrupted_early
            ):
                await self._wakeup.wait()
        self._waits_for_hooks = False
        return control.hooks.take_prompt_rejection()

    def _store_as_context(self, message: UserMessage) -> None:
        """Keep a context message until the next message is sent. The oldest context messages are
        dropped beyond MAX_CONTEXT_BYTES.
        """
        self._context_messages.append(message)
        dropped_count = 0
        while (
            sum(stored.size_bytes for stored in self._context_messages) > MAX_CONTEXT_BYTES
            and len(self._context_messages) > 1
        ):
            self._context_messages.popleft()
            dropped_count += 1
        if dropped_count:
            warn(
                f"dropped the {dropped_count} oldest messages with `shouldQuery: false`: "
                f"together, these messages were larger than {MAX_CONTEXT_BYTES} bytes\n"
            )

    def _record_result(self, stream: ChildStream) -> None:
        """Record the result of a turn. A real claude's result is not recorded here, because its
        output is recorded anyway.
        """
        result = stream.turn.result
        if self._recorder is not None and result is not None and result.line:
            self._recorder.record_turn_result(result.line)

    async def _wait_for_message(self) -> UserMessage | None:
        """Wait for the next message. Return None if there will be no more messages."""
        while self._accepts_message():
            if self._messages:
                message = self._messages.popleft().assign_uuid(create_uuid)
                self._turn_number += 1
                self._message_taken = True
                return message
            if self._is_ending or not self._reads_stdin:
                return None
            await self._wakeup.wait()
        return None

    def _accepts_message(self) -> bool:
        """Return whether a further message can have a turn. After SIGINT, only the message of a
        one-shot run has one, because each run needs a result. The turn is cancelled at once.
        """
        if self._is_one_shot:
            return self._driver.active_child_driver.stream is None
        return not self._is_ending

    # -- the frontend's lines ----------------------------------------------------------------------

    async def _read_stdin(self, source: "FrontendLineSource") -> None:
        """Read stdin until it ends, while turns are running."""
        control = self._control
        lines = source.line_splitter
        assert control is not None
        await self._write_control_lines()  # answers to earlier requests
        for line in source.received_lines:
            await self._apply_line(control, line)
        while chunk := await source.read():
            for line in lines.feed(chunk):
                await self._apply_line(control, line)
        for line in lines.close():
            await self._apply_line(control, line)
        if lines.skipped_lines:
            warn(
                f"skipped {lines.skipped_lines} lines of stdin that were too long (max_inbound_bytes)\n"
            )
        await self._execute_actions(control.close_input())
        self._reads_stdin = False
        self._wake_waiters()

    async def _apply_line(self, control: "ControlSession", line: bytes) -> None:
        """Handle one line from the frontend, and execute the resulting actions."""
        await self._execute_actions(control.receive_line(line))
        await self._driver.active_child_driver.send_steering_messages()
        await self._wait_for_turn_start(control)

    async def _execute_actions(self, actions: "list[FrontendAction]") -> None:
        """Execute the actions that result from a frontend line, after the pending session lines
        have been written. An action for a turn that has ended is skipped.
        """
        from shim.core.claude.control.actions import (
            InterruptRequested,
            SettingChanged,
            TitleChanged,
        )

        turn_number = self._turn_number
        await self._write_control_lines()
        for action in actions:
            is_turn_over = not self._turn_running or turn_number != self._turn_number
            if is_turn_over and not isinstance(action, SettingChanged | TitleChanged):
                continue
            child_driver = self._driver.active_child_driver
            match action:
                case InterruptRequested() if self._waits_for_hooks:
                    self._interrupted_early = True
                    child_driver.cancel_hook_commands()
                case InterruptRequested() if self._expansion_scope is not None:
                    self._expansion_scope.cancel()
                case InterruptRequested():
                    await self._driver.interrupt()
                case TitleChanged(title):
                    self._output.write_title_to_transcript(title)
                case _:
                    await child_driver.execute_action(action)
        self._driver.active_child_driver.resume_after_hook_answers()
        self._wake_waiters()

    async def _wait_for_turn_start(self, control: "ControlSession") -> None:
        """Wait until the turn for the last message has started, if one can start, and until the
        message queue has space.
        """
        while (
            self._message_taken
            or (control.queued_messages and not control.is_running)
            or self._is_queue_full(control)
        ):
            await self._wakeup.wait()

    def _is_queue_full(self, control: "ControlSession") -> bool:
        if len(control.queued_messages) < MAX_UNMEASURED_MESSAGES:
            return False
        max_bytes = MAX_LINE_BYTES
        if self._source is not None:
            max_bytes = self._source.max_bytes
        if sum(message.size_bytes for message in control.queued_messages) >= max_bytes:
            return True
        return len(control.queued_messages) >= MAX_QUEUED_MESSAGES

    async def _write_control_lines(self) -> None:
        if self._session_lines is None:
            return
        for complaint in self._session_lines.warnings:
            warn(complaint)
        self._session_lines.warnings.clear()
        if data := self._session_lines.take_output():
            await self._output.write_lines(data)

    # -- the end -----------------------------------------------------------------------------------

    async def _end_session(self) -> bool:
        """Make sure that the child has exited, and run the hooks at the end of the session. Return
        False after a bug in the shim. The bug is reported only on stderr, because no message needs
        a result any more.
        """
        try:
            await self._driver.active_child_driver.stop()
            await self._call_session_hooks(SESSION_END_EVENT, "other")
        except FrontendDisconnectedError:
            self._frontend_disconnected = True
        except Exception as error:
            self._warn_without_secrets(explain_turn_failure(error))
            return False
        return True

    async def _report_failure(self, error: Exception) -> None:
        """Report a bug in the shim. If a message has no result yet, an error result is written. The
        bug is reported on stderr if no turn is running or the turn already has its result.
        """
        reason = explain_turn_failure(error)
        needs_warning = True
        try:
            stream = self._get_or_create_final_stream()
            if self._turn_running and stream is not None:
                needs_warning = stream.is_turn_finished
            await self._write_last_result(stream, reason, "internal")
        except Exception as write_error:
            needs_warning = True
            self._warn_without_secrets(f"internal error: {write_error!r}")
        if needs_warning:
            self._warn_without_secrets(reason)

    def _warn_without_secrets(self, text: str) -> None:
        """Write a line to stderr. Secrets are redacted, because the stderr of a background session
        is stored in a file.
        """
        settings = self._driver.active_child_driver.launcher.context.settings
        if settings.resolve_redaction_mode() != "none":
            from shim.core.secrets.redactor import Redactor

            text = Redactor().redact_text(text)
        warn(f"{text}\n")

    def _get_or_create_final_stream(self) -> ChildStream | None:
        """Return the stream whose output must be completed before the process exits, or None. If a
        message needs a result, but its turn has no stream yet, a stream is created.
        """
        stream = self._driver.active_child_driver.stream
        if self._message_taken or (self._is_one_shot and self._turn_number == 0):
            return self._create_failure_stream(stream)
        if self._turn_running and (stream is None or stream.turn is self._previous_turn):
            return self._create_failure_stream(stream)
        if self._turn_running:
            return stream
        # Some output formats write the result of a finished turn at the end.
        if self._is_one_shot and stream is not None and stream.is_turn_finished:
            return stream
        return None

    def _create_failure_stream(self, previous_stream: ChildStream | None) -> ChildStream:
        """Return the stream for the result of a turn that ended before its own stream was created.
        It uses only a few settings, because building the complete configuration may have caused the
        failure.
        """
        launcher = self._driver.active_child_driver.launcher
        state = launcher.session_state
        distrust_reason = launcher.resume_state.version_check.distrust
        config = TurnConfig(
            VendorInfo(
                state.vendor.display_name,
                is_unattended=launcher.adapter.unattended or bool(distrust_reason),
                unattended_reason=distrust_reason,
            ),
            SessionConfig(state.options.session_id, state.options.session_id),
            model=state.model,
            cwd=launcher.context.cwd,
            mode=state.mode,
            redacts_secrets=launcher.context.settings.resolve_redaction_mode() == "all",
        )
        return ChildStream(Translator, config, launcher.writer, previous_stream)

    async def _write_last_result(
        self, stream: ChildStream | None, reason: str, cause: TurnEndCause
    ) -> None:
        """End the turn of `stream` with an error result, unless the turn already has a result. The
        lines are lost if stdout does not accept them within FINAL_WRITE_TIMEOUT_S.
        """
        lines = b""
        if stream is None:
            return
        if not stream.is_turn_finished:
            stream.turn.stop(reason, cause)
            lines, _ = stream.close(None)
            self._record_result(stream)
            if self._control is not None:
                self._control.cancel_permission_prompts()
                lines = self._control.take_output() + lines
        if self._session_lines is not None and self._session_lines.is_running:
            self._session_lines.end_turn()
        with anyio.move_on_after(FINAL_WRITE_TIMEOUT_S):
            try:
                await self._output.write_lines(lines)
                await self._write_control_lines()
                await self._output.finish_turn(stream.turn)
            except FrontendDisconnectedError:
                pass

    def _interrupt_turn(self, tasks: TaskGroup) -> None:
        self._wake_waiters()
        if self._expansion_scope is not None:
            self._expansion_scope.cancel()
        tasks.start_soon(self._driver.interrupt)
