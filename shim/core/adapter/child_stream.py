"""The pump: a child's bytes in, Claude's bytes and commands for the shell out. Pure.

It is the one place that reads what a Turn leaves for the shell. A driver carries the commands out
and asks the Turn nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shim.core.adapter.commands import (
    NO_COMMANDS,
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
from shim.core.adapter.translation import StreamTranslation
from shim.core.api_errors import ApiFailure, Cause, classify_api_error
from shim.core.claude.hooks.callbacks import HookEvent
from shim.core.claude.messages import TEXT_ONLY_KINDS, BlockKinds, UserMessage
from shim.core.claude.permissions import PermissionRequest
from shim.core.errors import FailedVendorAttempt, ShimError
from shim.core.reading.lines import MAX_LINE_BYTES
from shim.core.turn.context import TurnConfig
from shim.core.turn.machine import CLOSED, NEW
from shim.core.turn.outcome import ChildExit, format_open_call_names
from shim.core.turn.turn import Turn

# Said into one turn: each is kept until it ends, since another child has to be told those that were
# not answered. Their bytes have a limit too, MAX_LINE_BYTES, which the last of them may pass.
MAX_STEERED_MESSAGES = 64

ResumeInfo = tuple[str | None, bool]  # the vendor's session, and whether it can go on


class ChildStream:
    """The translation of a child, for a shell that serves that child.

    `saves_late`: the vendor can resume a session only once a reply was complete. `resume_info` is
    what the pump of the child before had told of the session.
    """

    def __init__(
        self,
        translation: StreamTranslation,
        *,
        saves_late: bool = False,
        resume_info: ResumeInfo = (None, True),
    ) -> None:
        self.translation = translation
        self.resume_info = resume_info
        self._saves_late = saves_late
        self._turn = translation.turn  # the one that `_stage` is about
        self._stage = TurnStage.RUNNING
        self._timeout_key = ""

    @property
    def turn(self) -> Turn:
        return self.translation.turn

    @property
    def is_turn_open(self) -> bool:
        """Whether the turn has begun and its result is not said."""
        return self.turn.state not in (NEW, CLOSED)

    @property
    def is_turn_finished(self) -> bool:
        """Whether the result of the turn is said."""
        return self.translation.is_finished

    @property
    def has_turn_outcome(self) -> bool:
        """Whether it is known how the turn ends."""
        return self.turn.outcome is not None

    @property
    def has_failed(self) -> bool:
        return self.turn.is_error

    @property
    def is_over_cost_budget(self) -> bool:
        """Return whether the session has cost more than `--max-budget-usd` allows."""
        max_cost_usd = self.turn.config.limits.max_budget_usd
        return max_cost_usd is not None and self.turn.conversation.cost_usd > max_cost_usd

    @property
    def has_model_output(self) -> bool:
        """Whether anything of the model's was said or done in this turn."""
        return self.turn.has_output

    # -- a turn begins -----------------------------------------------------------------------------

    def start_turn(self, config: TurnConfig | None = None) -> None:
        """The next turn of the same child, on the terms of the last one where there are no others."""
        self.translation.start_turn(config)

    def set_user_message(
        self,
        message: UserMessage,
        *,
        replays_message: bool,
        has_hooks: bool,
        list_accepted_kinds: Callable[[], BlockKinds] = lambda: TEXT_ONLY_KINDS,
    ) -> None:
        """The turn answers `message`, of which the vendor `list_accepted_kinds` more than its text.

        `replays_message`: the message is said again. `has_hooks`: the frontend has some.
        """
        self._reset_stage()
        self.turn.set_user_message(
            message, replays=replays_message, get_accepted_kinds=list_accepted_kinds
        )
        if has_hooks:
            self.turn.hook_events = []

    @property
    def can_accept_steering_message(self) -> bool:
        """Whether a call of the turn runs, whose end the model hears together with a message, as
        the real one's does.

        A message that comes while the model says its last words has a turn of its own; so has one
        beyond the limits.
        """
        is_running = (
            self._stage is TurnStage.RUNNING
            and bool(self.turn.open_calls)
            and not (self.has_turn_outcome or self.is_turn_finished)
        )
        is_below_limit = len(self.steered_messages) < MAX_STEERED_MESSAGES
        return (
            is_running
            and is_below_limit
            and sum(message.size_bytes for message in self.steered_messages) < MAX_LINE_BYTES
        )

    def add_steered_message(self, message: UserMessage) -> None:
        """A message was said to the child in the middle of the turn."""
        self.turn.add_steering_message(message)

    @property
    def steered_messages(self) -> list[UserMessage]:
        """The messages that were said to the child in the middle of the turn."""
        return self.turn.turn_start.steering_messages

    def take_answered_steered_messages(self) -> list[UserMessage]:
        """Those that a reply has followed since the last call."""
        opening = self.turn.turn_start
        if not opening.new_steering_messages:
            return []
        fresh, opening.new_steering_messages = opening.new_steering_messages, []
        return fresh

    @property
    def unanswered_steered_message_count(self) -> int:
        """How many of them no reply has followed."""
        return len(self.steered_messages) - self.turn.turn_start.written_count

    def continue_with_new_child(self, failed_attempts: tuple[FailedVendorAttempt, ...]) -> None:
        """Another child continues the turn; `failed_attempts` are the vendors that were asked
        before it.
        """
        self._reset_stage()
        self.translation.reset_line_buffers()
        self.turn.config = self.turn.config._replace(failed_attempts=failed_attempts)

    def start_retry(self, child_exit: ChildExit | None, stderr: str | None) -> bool:
        """Make ready for the same message once more, if the stream of its answer was cut; see
        `StreamTranslation.start_retry`.
        """
        is_ready = self.translation.start_retry(child_exit, stderr)
        if is_ready:
            self._reset_stage()
        return is_ready

    def _reset_stage(self) -> None:
        self._stage, self._timeout_key = TurnStage.RUNNING, ""

    # -- what the child says -----------------------------------------------------------------------

    def feed(self, chunk: bytes) -> StreamOutput:
        """The lines and the commands for a chunk of the child's stdout."""
        lines = self.translation.feed(chunk)
        return lines, self._collect_commands()

    def translate_lines(self, lines: list[bytes]) -> StreamOutput:
        """The lines and the commands for lines of the child, as `StreamTranslation.split` gives
        them.
        """
        claude_lines = self.translation.translate_lines(lines)
        return claude_lines, self._collect_commands()

    def drain(self) -> StreamOutput:
        """What the end of the child's stdout adds: a last line without its end."""
        lines = self.translation.drain()
        return lines, self._collect_commands()

    def skip_output_between_turns(self, chunk: bytes) -> StreamCommands:
        """The commands for bytes between two turns: only questions are read there, to be refused."""
        self.translation.skip_output_between_turns(chunk)
        return (
            *map(SendToChildCommand, self.translation.take_child_stdin_lines()),
            *self._take_permission_requests(),
        )

    def on_idle(self) -> StreamOutput:
        """A child that stays has been silent since the turn was paused: the vendor is done."""
        self.translation.on_idle()
        return b"", self._collect_commands()

    def set_vendor_run_report(self, report: Mapping[str, Any]) -> None:
        """What the child wrote about its run into a file; before `start_retry` and `close`."""
        self.translation.set_vendor_run_report(report)

    # -- what the frontend says --------------------------------------------------------------------

    def record_permission_denial(
        self,
        permission: PermissionRequest,
        message: str,
        *,
        frontend_knows: bool,
        vendor_knows: bool = True,
    ) -> StreamOutput:
        """Record that a permission was refused. `announced`: the frontend refused it itself and
        knows it.

        `vendor_knows`: the vendor receives the denial before the call runs.
        """
        self.turn.record_permission_denial(
            permission, message, frontend_knows=frontend_knows, vendor_knows=vendor_knows
        )
        return self._take_output()

    def write_deferred_call(self, tool: str, arguments: Mapping[str, Any]) -> StreamOutput:
        """Write a call that arrived at the frontend's own server, if the call waited for its
        arguments.
        """
        self.turn.write_deferred_call(tool, arguments)
        return self._take_output()

    def record_input_correction(self, permission: PermissionRequest, message: str) -> None:
        """A call was allowed with another input only; `message` is what its result will say."""
        self.turn.record_input_correction(permission, message)

    def forbid_call(self, call_id: str, reason: str) -> StreamOutput:
        """The frontend forbids a call that runs already: the turn ends."""
        self.turn.forbid_call(call_id, reason)
        return self._take_output()

    def interrupt(self) -> None:
        self.translation.interrupt()

    # -- the end -----------------------------------------------------------------------------------

    def stop_turn(self, reason: str, cause: Cause) -> None:
        """End the turn for this reason. What the vendor says about its end afterwards is ignored."""
        self.turn.stop(reason, cause)

    def stop_stalled_turn(self, reason: str) -> None:
        """The child was silent for too long: we end the turn.

        A real claude that gave its result may have had more to do: that result stands.
        """
        if not self.turn.vendor_result_line:
            self.stop_turn(self.describe_stall(reason), "stall")

    def describe_stall(self, reason: str) -> str:
        """A reason with the names of the calls that are open."""
        open_call_names = format_open_call_names(self.turn.open_calls)
        return reason + (
            f" while these calls were open: {open_call_names}" if open_call_names else ""
        )

    def close(self, child_exit: ChildExit | None, stderr: str = "") -> StreamOutput:
        """The last lines, now that stdout is at its end. `child_exit` is None when we ended the
        child.

        The commands of an end are carried out before its lines are said.
        """
        last_text = self.turn.last_text
        return self.translation.close(child_exit, stderr), self._build_last_commands(last_text)

    def finish(self) -> StreamOutput:
        """The last lines of a turn whose child stays for the next one."""
        last_text = self.turn.last_text
        return self.translation.finish_turn(), self._build_last_commands(last_text)

    def finish_turn_without_vendor(
        self, text: str = "", *, notice: Mapping[str, Any] | None = None
    ) -> bytes:
        """Return all lines of a successful turn whose message is not sent to the vendor;
        `last_text` is its result.

        `notice` are the fields of an `informational` system line before the result.
        """
        if notice is not None:
            self.turn.write_system_event("informational", **notice)
        self.turn.record_end(result=text, unsent=True)
        return self.translation.finish_turn()

    def write_turn_start_error(self, error: Exception) -> bytes:
        """All lines of a turn that cannot begin, because of an error of the shell."""
        if isinstance(error, ShimError):
            self.stop_turn(f"{error}\n{error.hint}".strip(), error.cause)
        else:
            self.stop_turn(f"the shim failed: {error!r}", "internal")
        return self.translation.close(None)

    def write_turn_failure(self, error: ShimError) -> StreamOutput:
        """The last lines of a turn that cannot go on, because of an error of the shell."""
        return self.write_turn_start_error(error), (
            StoreSessionCommand(self._find_vendor_session()),
        )

    def find_failed_attempt(
        self, child_exit: ChildExit | None, stderr: str | None, *, accepts_any_cause: bool = False
    ) -> FailedVendorAttempt | None:
        """Why another vendor may answer in the place of this one; see
        `StreamTranslation.find_failed_attempt`.
        """
        return self.translation.find_failed_attempt(
            child_exit, stderr, accepts_any_cause=accepts_any_cause
        )

    def get_api_failure_of_retry(self, stderr: str) -> ApiFailure:
        """What the vendor asks its model again for, by its own words or by what it printed on
        stderr.
        """
        return self.turn.retry_failure or classify_api_error(stderr)

    # -- commands ----------------------------------------------------------------------------------

    def _take_output(self) -> StreamOutput:
        return self.translation.writer.take_bytes(), self._collect_commands()

    def _build_last_commands(self, last_text: str) -> StreamCommands:
        self._stage = TurnStage.FINISHED
        return RunHooksCommand((HookEvent("Stop"),), last_text), StoreSessionCommand(
            self._find_vendor_session()
        )

    def _find_vendor_session(self) -> str | None:
        return self.turn.conversation.vendor_session_id

    def _collect_commands(self) -> StreamCommands:
        """What the Turn wants done, and what has changed since the last time."""
        translation, turn = self.translation, self.translation.turn
        # the child began another one by itself, and may have ended it already
        if turn is not self._turn:
            self._turn, self._stage = turn, TurnStage.RUNNING
        if translation.is_finished and turn.is_terminated:
            stage = TurnStage.FINISHED
        elif turn.is_finalized or translation.is_finished:
            # a passed result may have lines beside it, then its terminator
            stage = TurnStage.VENDOR_DONE
        else:
            stage = TurnStage.PAUSED if turn.is_paused else TurnStage.RUNNING
        timeout_key = (
            "heartbeat_timeout"
            if turn.sends_heartbeats
            else "tool_timeout"
            if turn.open_calls
            else "idle_timeout"
        )
        resume_info = (
            turn.conversation.vendor_session_id,
            not self._saves_late or bool(turn.usage_by_model),
        )
        has_changed = (
            stage is not self._stage
            or timeout_key != self._timeout_key
            or resume_info != self.resume_info
        )
        lines, withdrawn_requests = (
            translation.take_child_stdin_lines(),
            translation.take_withdrawn_permission_requests(),
        )
        if not (
            has_changed
            or lines
            or turn.pending_permissions
            or turn.hook_events
            or withdrawn_requests
        ):
            return NO_COMMANDS
        commands: list[StreamCommand] = []
        if resume_info != self.resume_info or (
            stage is TurnStage.FINISHED and stage is not self._stage
        ):
            commands.append(StoreSessionCommand(resume_info[0]))
        if timeout_key != self._timeout_key:
            commands.append(SetTimeoutCommand(timeout_key))
        if stage is not self._stage:
            commands.append(stage)
        self._stage, self._timeout_key, self.resume_info = stage, timeout_key, resume_info
        if turn.hook_events:
            events, turn.hook_events = tuple(turn.hook_events), []
            if stage is not TurnStage.FINISHED:  # nothing follows an error result (contract S16b)
                commands.append(RunHooksCommand(events))
        return (
            *commands,
            *map(SendToChildCommand, lines),
            *self._take_permission_requests(),
            *map(WithdrawPermissionCommand, withdrawn_requests),
        )

    def _take_permission_requests(self) -> Iterator[AskPermissionCommand]:
        permissions, self.turn.pending_permissions = self.turn.pending_permissions, []
        return map(AskPermissionCommand, permissions)
