"""Translates the output of one child process. The input is the child's bytes. The output is bytes
in Claude's format, and commands for the driver.

This module does no I/O. A driver executes the commands. `shim translate` and the self-checks use
only the bytes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shim.core.adapter.commands import (
    AskPermissionCommand,
    RunHooksCommand,
    SendToChildCommand,
    SetTimeoutCommand,
    StoreSessionCommand,
    StreamCommand,
    StreamCommands,
    StreamOutput,
    TurnStage,
    WithdrawPermissionCommand,
)
from shim.core.adapter.event_dispatcher import EventDispatcher
from shim.core.adapter.translator import Translator
from shim.core.api_errors import UNKNOWN_MODEL_TEXT, ApiFailure, classify_api_error
from shim.core.claude.messages import TEXT_ONLY_KINDS, BlockKinds, UserMessage
from shim.core.errors import FailedVendorAttempt, ShimError
from shim.core.reading import MAX_LINE_BYTES
from shim.core.reading.diagnostics import Diagnostics
from shim.core.reading.json_repair import PADDING
from shim.core.reading.lines import LineSplitter
from shim.core.turn.context import ConversationState, TurnConfig
from shim.core.turn.machine import CLOSED, NEW
from shim.core.turn.outcome import ChildExit, format_open_call_names
from shim.core.turn.turn import Turn

if TYPE_CHECKING:
    from shim.core.claude.output_writer import OutputWriter

# The limit for the steering messages of one turn. Each message is stored until the turn ends,
# because unanswered messages are sent to the next child. Their total size is bounded by
# MAX_LINE_BYTES, which the last message may exceed.
MAX_STEERING_MESSAGES = 64

# the vendor's session id, and whether that session can be resumed
ResumeInfo = tuple[str | None, bool]


def select_plain_or_redacted_turn_class(config: TurnConfig) -> type[Turn]:
    """Return the class for a conversation's turns: RedactedTurn if secrets are redacted, otherwise
    Turn.
    """
    if not config.redacts_secrets:
        return Turn
    from shim.core.secrets.redacted_turn import RedactedTurn

    return RedactedTurn


class ChildStream:
    """Translates the output of one child process to Claude's stream.

    `feed` takes chunks of any size, and `close` takes the child's exit status. Both return complete
    lines for the frontend and commands for the driver. `turn` is the turn that the child is working
    on. `resume_info` is the vendor session that was last reported to the driver.
    """

    def __init__(
        self,
        translator_class: Callable[..., Translator],
        config: TurnConfig,
        writer: "OutputWriter",
        previous_stream: "ChildStream | None" = None,
        *,
        create_splitter: Callable[[], LineSplitter] = LineSplitter,
        saves_late: bool = False,
    ) -> None:
        """Create the stream. `previous_stream` is the stream of the previous child in the same
        conversation.

        `create_splitter` creates the line splitter, which limits the length of a line. `saves_late`
        is set if the vendor can resume a session only after a complete message.
        """
        self.writer = writer
        self.diagnostics = Diagnostics()
        self.resume_info: ResumeInfo = (None, True)
        if previous_stream is not None:
            self.resume_info = previous_stream.resume_info
        self._create_splitter = create_splitter
        self._splitter = create_splitter()
        self._saves_late = saves_late
        turn = self._create_first_turn(config, previous_stream)
        self._dispatcher = EventDispatcher(
            translator_class(turn, partial=writer.writes_partial_messages), self.diagnostics
        )
        self.turn = self._dispatcher.translator.turn
        self._stage = TurnStage.RUNNING
        self._timeout_key = ""
        self._remaining_stderr: str | None = None
        self._skipped_count = 0  # the number of skipped lines between two turns
        self._first_skipped_line = b""

    def _create_first_turn(self, config: TurnConfig, previous_stream: "ChildStream | None") -> Turn:
        if previous_stream is not None:
            return previous_stream.turn.create_next(config, self.diagnostics)
        conversation = ConversationState(config.session.vendor_session_usage)
        turn_class = select_plain_or_redacted_turn_class(config)
        return turn_class(self.writer, config, conversation, self.diagnostics)

    @property
    def is_turn_open(self) -> bool:
        """Return whether the turn has started and has no result yet."""
        return self.turn.machine.state not in (NEW, CLOSED)

    @property
    def is_turn_finished(self) -> bool:
        """Return whether the turn has its result. The frontend receives no output that the child
        prints after the result.
        """
        return self.turn.machine.state is CLOSED

    @property
    def is_over_cost_budget(self) -> bool:
        """Return whether the session has cost more than `--max-budget-usd` allows."""
        max_cost_usd = self.turn.config.limits.max_budget_usd
        if max_cost_usd is None:
            return False
        return self.turn.conversation.cost_usd > max_cost_usd

    # -- the start of a turn -----------------------------------------------------------------------

    def start_turn(self, config: TurnConfig | None = None) -> None:
        """Start the child's next turn. Without `config`, the last turn's configuration is used."""
        self.diagnostics.clear()
        if self._skipped_count:
            self.diagnostics.record("late_event", self._first_skipped_line, self._skipped_count)
            self._skipped_count = 0
        self._dispatcher.translator.start_turn(self.turn.create_next(config))
        self._follow_translator()

    def set_user_message(
        self,
        message: UserMessage,
        *,
        replays_message: bool,
        has_hooks: bool,
        list_accepted_kinds: Callable[[], BlockKinds] = lambda: TEXT_ONLY_KINDS,
    ) -> None:
        """Set the user message that the turn answers.

        With `replays_message`, the message is written back to the frontend. `has_hooks` is set if
        the frontend has hooks. `list_accepted_kinds` returns the kinds of content blocks that the
        vendor accepts besides text.
        """
        self._reset_stage()
        self.turn.set_user_message(
            message, replays=replays_message, get_accepted_kinds=list_accepted_kinds
        )
        if has_hooks:
            self.turn.tool_calls.start_hook_events()

    @property
    def can_accept_steering_message(self) -> bool:
        """Return whether a user message can join the running turn. This is possible while a tool
        call runs, because the model can receive the message together with the tool result.

        The real claude does the same. A message that arrives later or exceeds the limits gets its
        own turn.
        """
        turn = self.turn
        if self._stage is not TurnStage.RUNNING or self.is_turn_finished:
            return False
        if not turn.open_calls or turn.outcome_tracker.outcome is not None:
            return False
        messages = turn.user_messages.steering_messages
        size_bytes = sum(message.size_bytes for message in messages)
        if len(messages) >= MAX_STEERING_MESSAGES:
            return False
        return size_bytes < MAX_LINE_BYTES

    def continue_with_new_child(self, failed_attempts: tuple[FailedVendorAttempt, ...]) -> None:
        """Let a new child process continue the turn. `failed_attempts` are the vendors that have
        already failed.
        """
        self._reset_stage()
        self._reset_line_buffers()
        self.turn.set_failed_attempts(failed_attempts)

    def start_retry(self, child_exit: ChildExit | None, stderr: str | None) -> bool:
        """Prepare to send the same message again if its answer was cut off (Yume's R11). Return
        whether the message can be sent again.

        `stderr` is None if the child keeps running. If this method returns False, `close` may be
        called next.
        """
        reason = ""
        if stderr is not None:
            reason = self._read_to_end(child_exit, stderr)
        turn = self.turn
        if not turn.can_retry(child_exit, reason):
            return False
        turn.prepare_retry()
        translator = self._dispatcher.translator
        if stderr is None:
            translator.start_turn(turn)
        else:
            self._reset_line_buffers()
            self._remaining_stderr = None
            self._dispatcher.set_translator(translator.create_retry_translator(turn))
        self._reset_stage()
        return True

    def continue_turn(self, visible_texts: Sequence[str]) -> None:
        """Continue a turn that the vendor has completed. The driver sends the hooks' texts to the
        child next. `visible_texts` are written to the frontend as user messages.
        """
        self.turn.continue_after_hook(visible_texts)
        self._dispatcher.translator.start_turn(self.turn)
        self._reset_stage()

    def _reset_stage(self) -> None:
        self._stage = TurnStage.RUNNING
        self._timeout_key = ""

    def _follow_translator(self) -> None:
        """Set `turn` to the translator's turn. The translator may have started a turn by itself, and
        may even have ended it.
        """
        turn = self._dispatcher.translator.turn
        if turn is not self.turn:
            self.turn = turn
            self._stage = TurnStage.RUNNING

    def _reset_line_buffers(self) -> None:
        """Drop an unfinished line, so that it is not joined to the first line from the next child."""
        self._splitter = self._create_splitter()
        self._dispatcher.reset()

    # -- the child's output ------------------------------------------------------------------------

    def feed(self, chunk: bytes) -> StreamOutput:
        """Translate a chunk of the child's stdout."""
        # No variable refers to the lines, so that a large line is freed before its output is
        # joined.
        self._dispatch_lines(self.split_lines(chunk))
        return self.take_output()

    def split_lines(self, chunk: bytes) -> list[bytes]:
        """Return the lines that a chunk of the child's stdout completes. Lines that are too long
        are dropped and counted.
        """
        lines = self._splitter.feed(chunk)
        if self._splitter.skipped_lines:
            self._record_long_lines()
        return lines

    def translate_lines(self, lines: list[bytes]) -> StreamOutput:
        """Translate complete lines of the child's stdout."""
        self._dispatch_lines(lines)
        return self.take_output()

    def translate_unterminated_line(self) -> StreamOutput:
        """Translate the end of the child's stdout if the last line has no LF."""
        self._translate_rest()
        return self.take_output()

    def skip_output_between_turns(self, chunk: bytes) -> StreamCommands:
        """Count the lines in a chunk of output that arrives between two turns, and skip them.
        Permission requests are the only exception: the driver refuses them.
        """
        late_lines = [raw for raw in self.split_lines(chunk) if raw.strip(PADDING)]
        if late_lines and not self._skipped_count:
            self._first_skipped_line = late_lines[0]
        self._skipped_count += len(late_lines)
        accepts_line = self._dispatcher.translator.accepts_line_between_turns
        self._dispatch_lines(raw for raw in late_lines if accepts_line(raw))
        return (*self._take_lines_for_child(), *self._take_permission_requests())

    def on_idle(self) -> StreamOutput:
        """End a paused turn, because a persistent child has been silent since the pause."""
        self._feed_eof(None, "")
        self.turn.record_vendor_completion()
        return b"", self._collect_commands()

    def set_vendor_run_report_file_content(self, report: Mapping[str, Any]) -> None:
        """Set the content of the child's report file (`VendorRunReportFileSpec`). Call this before
        `start_retry` and `close`.
        """
        self._dispatcher.translator.report = dict(report)

    def set_child_has_message(self, has_message: bool) -> None:
        """Set whether the child has received a message from the frontend."""
        self._dispatcher.translator.has_message = has_message

    def take_output(self) -> StreamOutput:
        """Return the lines and commands that were added since the last call."""
        return self.writer.take_bytes(), self._collect_commands()

    def _dispatch_lines(self, lines: Iterable[bytes]) -> None:
        try:
            self._dispatcher.dispatch_lines(lines)
        finally:
            self._follow_translator()

    def _record_long_lines(self) -> None:
        for _ in range(self._splitter.skipped_lines):
            self.diagnostics.record("line_too_long", self._splitter.skipped_line_head)
        self._splitter.skipped_lines = 0

    def _translate_rest(self) -> None:
        try:
            self._dispatcher.dispatch_last_lines(self._splitter.close())
        finally:
            self._follow_translator()
        self._record_long_lines()

    def _read_to_end(self, child_exit: ChildExit | None, stderr: str) -> str:
        """Translate the rest of stdout, at most once. Return the part of stderr that may contain
        the reason for a failure.
        """
        if self._remaining_stderr is not None:
            return self._remaining_stderr
        self._translate_rest()
        self._feed_eof(child_exit, stderr)
        if noise := self._dispatcher.translator.ignored_stderr_prefixes:
            stderr = "\n".join(line for line in stderr.splitlines() if not line.startswith(noise))
        if not stderr.strip() and self._dispatcher.non_json_output:
            stderr = self._dispatcher.non_json_output
        self._remaining_stderr = stderr
        return stderr

    def _feed_eof(self, child_exit: ChildExit | None, stderr: str) -> None:
        try:
            self._dispatcher.translator.feed_eof(child_exit, stderr)
        except Exception as error:
            self.diagnostics.record("malformed_end", repr(error))
        self._follow_translator()

    # -- the end -----------------------------------------------------------------------------------

    def stop_stalled_turn(self, reason: str) -> None:
        """End the turn, because the child was silent for too long.

        If the child is a real claude and has already returned its result, that result is kept.
        """
        if not self.turn.outcome_tracker.vendor_result[0]:
            self.turn.stop(self.describe_stall(reason), "stall")

    def describe_stall(self, reason: str) -> str:
        """Return the reason for a stalled turn, with the names of the tool calls that are still
        open.
        """
        open_call_names = format_open_call_names(self.turn.open_calls)
        if not open_call_names:
            return reason
        return f"{reason} while these calls were running: {open_call_names}"

    def close(self, child_exit: ChildExit | None, stderr: str = "") -> StreamOutput:
        """Return the child's last lines, after its stdout has ended. `child_exit` is None if the
        shim ended the child.

        At the end of a turn, the driver executes the commands before it writes the lines.
        """
        last_text = self.turn.assistant_message.last_text
        lines = self._close_turn(child_exit, stderr)
        return lines, self._build_last_commands(last_text)

    def finish(self) -> StreamOutput:
        """Return the last lines of a turn whose child keeps running for the next turn."""
        last_text = self.turn.assistant_message.last_text
        lines = self._end_turn(None, "")
        return lines, self._build_last_commands(last_text)

    def finish_turn_without_vendor(
        self, text: str = "", *, notice: Mapping[str, Any] | None = None
    ) -> bytes:
        """Return all lines of a successful turn whose message is not sent to the vendor. `text` is
        the turn's result.

        `notice` has the fields of an `informational` system line that precedes the result.
        """
        if notice is not None:
            self.turn.write_system_event("informational", **notice)
        self.turn.record_turn_end(result=text, unsent=True, rejected=notice is not None)
        return self._end_turn(None, "")

    def finish_with_unknown_model(self, model: str) -> bytes:
        """Return all lines of a turn that fails because its model does not exist."""
        self.turn.record_failure(UNKNOWN_MODEL_TEXT.format(model=model), api=True, status=404)
        return self._end_turn(None, "")

    def finish_conversation_reset(self, old_session_id: str, name: str) -> bytes:
        """Return all lines of a turn that ends the session `old_session_id` and continues in a new
        session.
        """
        self.turn.start_new_session(old_session_id)
        self.resume_info = (None, True)
        return self.finish_local_command(name, "")

    def finish_local_command(self, name: str, text: str, *, is_failed: bool = False) -> bytes:
        """Return all lines of a turn that answers a command of Claude without the vendor."""
        self.turn.write_local_command_answer(name, text, is_failed=is_failed)
        return self._end_turn(None, "")

    def write_turn_start_error(self, error: Exception) -> bytes:
        """Return all lines of a turn that cannot start because of a driver error."""
        if isinstance(error, ShimError):
            self.turn.stop(f"{error}\n{error.hint}".strip(), error.cause)
        else:
            self.turn.stop(f"internal error: {error!r}", "internal")
        return self._close_turn(None, "")

    def write_turn_failure(self, error: ShimError) -> StreamOutput:
        """Return the last lines of a turn that cannot continue because of a driver error."""
        lines = self.write_turn_start_error(error)
        return lines, (StoreSessionCommand(self._find_vendor_session()),)

    def find_failed_attempt(
        self, child_exit: ChildExit | None, stderr: str | None, *, accepts_any_cause: bool = False
    ) -> FailedVendorAttempt | None:
        """Return why the child did not answer. Return None if the turn must not fall back to a
        different vendor.

        `stderr` is None if the child keeps running. Otherwise the rest of its stdout is translated
        first. If this method returns None, `close` may be called next.
        """
        error_text = ""
        if stderr is not None:
            error_text = self._read_to_end(child_exit, stderr)
        return self.turn.find_failed_attempt(child_exit, error_text, any_cause=accepts_any_cause)

    def get_api_failure_of_retry(self, stderr: str) -> ApiFailure:
        """Return why the vendor repeats its request to the model. The reason is from the vendor's
        own report or from stderr.
        """
        return self.turn.retry_failure or classify_api_error(stderr)

    def _close_turn(self, child_exit: ChildExit | None, stderr: str) -> bytes:
        return self._end_turn(child_exit, self._read_to_end(child_exit, stderr))

    def _end_turn(self, child_exit: ChildExit | None, stderr: str) -> bytes:
        try:
            self.turn.close(child_exit, stderr)
        except Exception as error:
            self.turn.write_internal_error(repr(error))
        self.turn.write_result_terminator_line()
        return self.writer.take_bytes()

    # -- commands ----------------------------------------------------------------------------------

    def _build_last_commands(self, last_text: str) -> StreamCommands:
        self._stage = TurnStage.FINISHED
        store_command = StoreSessionCommand(self._find_vendor_session())
        if self.turn.command.name:
            return (store_command,)
        return (RunHooksCommand(self.turn.list_end_events(), last_text), store_command)

    def _find_vendor_session(self) -> str | None:
        return self.turn.conversation.vendor_session_id

    def _collect_commands(self) -> StreamCommands:
        """Return commands for the turn's requests and for everything that changed since the last
        call.
        """
        turn = self.turn
        stage = self._find_stage()
        commands = self._collect_changes(stage)
        hook_events = turn.tool_calls.take_hook_events()
        # No line may follow a result that reports an error.
        if hook_events and stage is not TurnStage.FINISHED:
            commands.append(RunHooksCommand(hook_events))
        commands += self._take_lines_for_child()
        commands += self._take_permission_requests()
        withdrawn_requests = self._dispatcher.translator.take_withdrawn_permission_requests()
        commands += map(WithdrawPermissionCommand, withdrawn_requests)
        return tuple(commands)

    def _find_stage(self) -> TurnStage:
        """Return the turn's current stage."""
        turn = self.turn
        if self.is_turn_finished and turn.is_terminated:
            return TurnStage.FINISHED
        # After its result, a real claude may still print other lines and the turn end line.
        if turn.outcome_tracker.is_finalized or self.is_turn_finished:
            return TurnStage.VENDOR_DONE
        if turn.outcome_tracker.is_paused:
            return TurnStage.PAUSED
        return TurnStage.RUNNING

    def _collect_changes(self, stage: TurnStage) -> list[StreamCommand]:
        """Return commands that report a new vendor session, timeout or turn stage."""
        turn = self.turn
        commands: list[StreamCommand] = []
        can_resume = not self._saves_late or bool(turn.assistant_message.usage_by_model)
        resume_info = (self._find_vendor_session(), can_resume)
        if resume_info != self.resume_info or (
            stage is TurnStage.FINISHED and stage is not self._stage
        ):
            commands.append(StoreSessionCommand(resume_info[0]))
        timeout_key = _select_timeout_key(turn)
        if timeout_key != self._timeout_key:
            commands.append(SetTimeoutCommand(timeout_key))
        if stage is not self._stage:
            commands.append(stage)
        self._stage = stage
        self._timeout_key = timeout_key
        self.resume_info = resume_info
        return commands

    def _take_lines_for_child(self) -> Iterator[SendToChildCommand]:
        translator = self._dispatcher.translator
        lines = translator.outbox
        translator.outbox = []
        return map(SendToChildCommand, lines)

    def _take_permission_requests(self) -> Iterator[AskPermissionCommand]:
        return map(AskPermissionCommand, self.turn.permission_requests.take_pending())


def _select_timeout_key(turn: Turn) -> str:
    """Return the key of the timeout that currently limits how long the child may be silent."""
    if turn.sends_heartbeats:
        return "heartbeat_timeout"
    if turn.open_calls:
        return "tool_timeout"
    return "idle_timeout"
