"""The conversation loop for pass-through: a real claude reads the frontend's messages itself.

The frontend's bytes are copied to the child unchanged. The child's lines go through a child stream
as with any other vendor: valid lines are not changed, and an unfinished turn still gets a result.
"""

from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from shim.conversation.drivers.deadlines import ChildTurnDeadlines
from shim.conversation.drivers.driver import log_child_exit
from shim.conversation.drivers.launcher import ChildLauncher
from shim.conversation.loop import (
    EXIT_STATUS_BY_SIGNAL,
    FINAL_WRITE_TIMEOUT_S,
    ConversationLoop,
    explain_turn_failure,
)
from shim.conversation.pending_exchange import UnansweredRequestTracker
from shim.core.adapter.child_stream import ChildStream
from shim.core.adapter.commands import (
    SendToChildCommand,
    SetTimeoutCommand,
    StreamCommand,
    StreamOutput,
    TurnStage,
)
from shim.core.api_errors import TurnEndCause
from shim.core.reading.lines import LineSplitter
from shim.core.reading.values import escape_control_chars
from shim.io.stderr import STDERR_TIMEOUT_S, warn, write_available
from shim.io.stdin import FrontendLineSource
from shim.io.stdout import FrontendDisconnectedError, FrontendOutput
from shim.process import descendants
from shim.process.child import Child

if TYPE_CHECKING:
    from shim.core.secrets.redactor import StreamRedactor


class StderrCopier:
    """Copies the child's stderr to the shim's own stderr. `redactor` removes secrets."""

    def __init__(self, redactor: "StreamRedactor | None") -> None:
        self._redactor = redactor
        self._is_blocked = False  # the frontend is not reading its stderr pipe

    def __call__(self, chunk: bytes) -> None:
        """Copy a chunk of stderr. If the frontend does not read its stderr pipe, wait for it only
        once.
        """
        text = chunk.decode("utf-8", "replace")
        data = escape_control_chars(
            text if self._redactor is None else self._redactor.feed(text)
        ).encode()
        try:
            timeout_s = STDERR_TIMEOUT_S
            if self._is_blocked:
                timeout_s = 0.0
            self._is_blocked = bool(write_available(2, data, timeout_s))
        except (OSError, ValueError):
            self._is_blocked = True

    def flush(self) -> None:
        """Copy the remaining text, which was held back because it could be part of a secret."""
        if self._redactor is not None:
            warn(escape_control_chars(self._redactor.flush()))


class PassthroughLoop(ConversationLoop):
    """Runs one child process for the whole conversation. `redactor` removes secrets from the
    child's stderr.
    """

    def __init__(
        self,
        launcher: ChildLauncher,
        child: Child,
        output: FrontendOutput,
        source: FrontendLineSource,
        redactor: "StreamRedactor | None" = None,
    ) -> None:
        super().__init__(output, launcher.recorder)
        self._launcher = launcher
        self._child = child
        self._stream: ChildStream = launcher.turn_lifecycle.open_child_stream(None)
        self._stream.set_child_has_message(False)
        self._source = source
        self._stderr_copier = StderrCopier(redactor)
        self._exchange = UnansweredRequestTracker()
        self._deadlines = ChildTurnDeadlines(launcher.timeouts)
        self._deadlines.select_silence_timeout_by_name("idle_timeout")
        # The shim's own answers to requests that the frontend cannot receive.
        self._pending_answers: list[bytes] = []
        self._at_line_start = True  # the last line that was written to the child is complete
        self._stdin_closed = False  # the frontend has closed stdin

    async def _run_session(self, tasks: TaskGroup) -> int:
        for task in (self._copy_stdin, self._copy_stderr, self._watch_child_exit):
            tasks.start_soon(self._run_in_background, task)
        try:
            with self._work_scope:
                await self._read_output()
                with anyio.move_on_after(self._launcher.exit_timeout_s):
                    await self._child.wait_for_exit()
                await self._finish_open_turn("")
            if self._error is not None:
                raise self._error
        except FrontendDisconnectedError:
            self._frontend_disconnected = True
        except Exception as error:  # a bug in the shim: the frontend still gets a result
            self._error = error
            await self._write_last_result(explain_turn_failure(error), "internal")
            warn(f"{explain_turn_failure(error)}\n")
        if self._stop_signal is not None:
            self._child.send_signal("SIGTERM")
            await self._write_last_result(f"the turn was stopped by {self._stop_signal}", "signal")
        child_exit = self._child.child_exit
        await self._child.stop("SIGTERM")
        self._child.close()
        log_child_exit(self._launcher.context.log, self._child)
        if self._stop_signal is not None:
            return EXIT_STATUS_BY_SIGNAL[self._stop_signal]
        if self._error is not None:
            return 1
        if self._frontend_disconnected or self._is_ending:
            return 0
        turn_status = int(self._stream.turn.is_error)
        if child_exit is None:  # the child had to be stopped
            if self._stream.is_turn_finished:
                return turn_status
            return 1
        if child_exit.code is None:
            return 1
        return child_exit.code or turn_status

    # -- the frontend's bytes ----------------------------------------------------------------------

    async def _copy_stdin(self) -> None:
        """Copy the frontend's bytes to the child. At the end of input, close the child's stdin."""
        splitter = LineSplitter()
        while chunk := await self._source.read():
            for line in splitter.feed(chunk):
                if self._exchange.track_frontend_message_or_response(line):
                    self._stream.set_child_has_message(True)
            self._update_deadline()
            self._at_line_start = chunk.endswith(b"\n")
            await self._child.write_stdin(chunk)
            await self._write_answers()
        self._child.close_stdin()
        self._stdin_closed = True
        self._update_exit_grace()

    async def _write_answers(self) -> None:
        """Send the shim's own answers to the child, between two lines from the frontend."""
        while self._pending_answers and self._at_line_start:
            await self._child.write_stdin(self._pending_answers.pop(0))

    # -- the child's lines -------------------------------------------------------------------------

    async def _read_output(self) -> None:
        """Translate the child's output until the output ends, the child is done, or the child stays
        silent for too long although an answer is missing.
        """
        stream = self._stream
        exchange = self._exchange
        while True:
            with self._deadlines.open_read_scope(
                silence_allowed=self._allows_silence
            ) as read_scope:
                chunk = await self._child.read_stdout()
            if read_scope.cancelled_caught and not self._deadlines.has_expired:
                await self._end_stalled_turn()
                return
            if read_scope.cancelled_caught or not chunk:
                break
            lines = stream.split_lines(chunk)
            for line in lines:
                exchange.track_child_control_line(line)
            await self._write_output(stream.translate_lines(lines))
            await self._write_answers()
            self._update_exit_grace()
        await self._write_output(stream.translate_unterminated_line())

    async def _write_output(self, output: StreamOutput) -> None:
        lines, commands = output
        for command in commands:
            lines += self._execute_command(command)
        await self._output.write_lines(lines)

    def _execute_command(self, command: StreamCommand) -> bytes:
        """Execute a stream command. Return the lines that result from it.

        `StoreSessionCommand` is ignored, because a real claude stores its own sessions.
        """
        match command:
            case SetTimeoutCommand(timeout):
                self._deadlines.select_silence_timeout_by_name(timeout)
            case SendToChildCommand(line):
                self._exchange.record_permission_answer(line)
                self._pending_answers.append(line)
            case TurnStage.VENDOR_DONE:  # the result that arrived with this stage is final
                lines, _ = self._stream.finish()
                self._finish_turn()
                return lines
            case TurnStage.FINISHED:
                self._finish_turn()
        return b""

    def _finish_turn(self) -> None:
        """Finish a turn after its result."""
        self._launcher.turn_lifecycle.record_diagnostics(self._stream)
        self._exchange.clear_unanswered_requests()
        descendants.reap_orphans(self._child.pids)

    async def _copy_stderr(self) -> None:
        try:
            await self._child.drain_stderr(self._stderr_copier)
        finally:
            self._stderr_copier.flush()

    # -- silence, and the end ----------------------------------------------------------------------

    @property
    def _allows_silence(self) -> bool:
        """Return whether the child may stay silent indefinitely: between two turns, and while a
        permission prompt is open.
        """
        if self._exchange.has_open_permission_request:
            return True
        return not (self._stream.is_turn_open or self._exchange.awaits_result)

    def _update_deadline(self) -> None:
        self._deadlines.update_read_scope_deadline(silence_allowed=self._allows_silence)

    def _update_exit_grace(self) -> None:
        """Start the exit timeout of a child that has answered every message and whose stdin is
        closed.
        """
        self._deadlines.cancel_idle_timeout()
        if (
            self._stdin_closed
            and not self._exchange.awaits_result
            and not self._stream.is_turn_open
        ):
            self._deadlines.start_idle_timeout(self._launcher.exit_timeout_s)
        self._update_deadline()

    async def _watch_child_exit(self) -> None:
        """Wait until the child exits, and limit the wait for its remaining output. Another process
        may keep the child's stdout open.
        """
        await self._child.wait_for_exit()
        self._deadlines.shorten_exit_deadline(self._launcher.exit_timeout_s)

    async def _end_stalled_turn(self) -> None:
        """Interrupt and stop a child that has been silent for too long. Its turn still gets a
        result.
        """
        timeout_name = self._deadlines.timeout_name
        timeout_s = self._deadlines.timeout_s
        if self._recorder is not None:
            self._recorder.record_run_event("timeout", name=timeout_name, seconds=timeout_s)
        reason = self._stream.describe_stall(
            f"claude printed nothing for {timeout_s:g} s ({timeout_name})"
        )
        await self._child.stop(self._launcher.adapter.shutdown.interrupt_signal)
        await self._finish_open_turn(reason, "stall")

    async def _finish_open_turn(self, reason: str, cause: TurnEndCause | None = None) -> None:
        """Write a result for an unfinished turn. A turn is unfinished if it has started, or if its
        message was sent.
        """
        stream = self._stream
        if not stream.is_turn_open:
            if not self._exchange.awaits_result:
                return
            if stream.is_turn_finished:
                stream.start_turn()
        self._exchange.clear_unanswered_requests()
        if cause is not None:
            stream.turn.stop(reason, cause)
        lines, _ = stream.close(
            self._child.child_exit if cause is None else None, self._child.stderr_tail.to_text()
        )
        await self._output.write_lines(lines)

    async def _write_last_result(self, reason: str, cause: TurnEndCause) -> None:
        with anyio.move_on_after(FINAL_WRITE_TIMEOUT_S):
            try:
                await self._finish_open_turn(reason, cause)
            except FrontendDisconnectedError:
                pass

    def _interrupt_turn(self, tasks: TaskGroup) -> None:
        # If claude is interrupted while it is starting, it exits without a result.
        self._stream.turn.record_interrupt()
        tasks.start_soon(self._child.stop, self._launcher.adapter.shutdown.interrupt_signal)
