"""The output stream of a vendor in a fallback list. Output is buffered until it is certain that
this vendor answers.

A driver uses this stream like any other child stream. When the vendor answers, the buffered output
is released. If the vendor fails, its turn ends without output, and the buffer holds the reason for
the failure.
"""

from typing import Any

from shim.core.adapter.child_stream import ChildStream
from shim.core.adapter.commands import (
    NO_COMMANDS,
    AskPermissionCommand,
    StoreSessionCommand,
    StreamCommands,
    StreamOutput,
    TurnStage,
)
from shim.core.api_errors import TurnEndCause
from shim.core.errors import (
    FailedVendorAttempt,
    UnsupportedPermissionModeError,
    VendorError,
    create_failed_vendor_attempt,
)
from shim.core.turn.outcome import FALLBACK_CAUSES, ChildExit

# The size limit for buffered output. A vendor that has printed more is not replaced.
MAX_BUFFERED_BYTES = 1024 * 1024


class FallbackOutputBuffer:
    """Buffers a vendor's output as long as another vendor may still answer instead.

    `failed_attempt` is the vendor's failure, or None. `child_started` tells whether the vendor's
    child process was started before the failure.
    """

    def __init__(self, *, same_vendor: bool = False) -> None:
        """Create an inactive buffer.

        `same_vendor` means that the next candidate is another driver for the same vendor. That
        driver may take over only until the vendor's session has started.
        """
        self.is_active = False
        self.same_vendor = same_vendor
        self._reset()

    def _reset(self) -> None:
        self.failed_attempt: FailedVendorAttempt | None = None
        self.child_started = False
        self._lines: list[bytes] = []
        self._received_bytes = 0
        self._remember_commands: StreamCommands = NO_COMMANDS

    def start_buffering(self) -> None:
        """Buffer the vendor's output from now on."""
        self.is_active = True
        self._reset()

    def add_output(
        self, received_byte_count: int, lines: bytes, commands: StreamCommands
    ) -> StreamCommands:
        """Buffer translated lines, and return the commands to execute now.

        `received_byte_count` is the number of bytes that the child printed for these lines. The
        session is not stored while another vendor may take over, so commands to store it are held
        back.
        """
        self._received_bytes += received_byte_count
        self._lines.append(lines)
        store_commands = tuple(
            command for command in commands if isinstance(command, StoreSessionCommand)
        )
        if store_commands:
            self._remember_commands = store_commands
        return tuple(
            command for command in commands if not isinstance(command, StoreSessionCommand)
        )

    @property
    def is_full(self) -> bool:
        """Return whether the size limit of the buffer is exceeded."""
        return self._received_bytes > MAX_BUFFERED_BYTES

    def prepend_buffered_output(
        self, new_lines: bytes, new_commands: StreamCommands = NO_COMMANDS
    ) -> StreamOutput:
        """Stop buffering, and return the buffered output followed by the new output."""
        if not self.is_active:
            return new_lines, new_commands
        self.is_active = False
        chunks = [*self._lines, new_lines]
        remember_commands = self._remember_commands
        self._reset()
        if any(isinstance(command, StoreSessionCommand) for command in new_commands):
            remember_commands = NO_COMMANDS
        return b"".join(chunks), (*remember_commands, *new_commands)

    def discard_output(self, attempt: FailedVendorAttempt, *, child_started: bool) -> None:
        """Discard the output of a vendor that failed to answer."""
        self.is_active = False
        self._reset()
        self.failed_attempt = attempt
        self.child_started = child_started


class BufferedChildStream(ChildStream):
    """A child stream that writes into a fallback buffer.

    The arguments after `buffer` are those of ChildStream.
    """

    def __init__(self, buffer: FallbackOutputBuffer, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._buffer = buffer

    def feed(self, chunk: bytes) -> StreamOutput:
        lines, commands = super().feed(chunk)
        buffer = self._buffer
        if not buffer.is_active:
            return lines, commands
        passed_commands = buffer.add_output(len(chunk), lines, commands)
        if buffer.is_full or self._is_answering(commands):
            return buffer.prepend_buffered_output(b"", passed_commands)
        return (b"", passed_commands)

    def _is_answering(self, commands: StreamCommands) -> bool:
        """Return whether it is certain that this vendor answers the message."""
        if self.turn.has_output or TurnStage.FINISHED in commands:
            return True
        if any(isinstance(command, AskPermissionCommand) for command in commands):
            return True
        return self._buffer.same_vendor and self._find_vendor_session() is not None

    def start_retry(self, child_exit: ChildExit | None, stderr: str | None) -> bool:
        # If the child has exited, the next vendor is tried, if there is one. If the child is still
        # running, it receives the message a second time before another vendor is tried.
        if (
            self._buffer.is_active
            and stderr is not None
            and self._find_failed_attempt(child_exit, stderr) is not None
        ):
            return False
        return super().start_retry(child_exit, stderr)

    def close(self, child_exit: ChildExit | None, stderr: str = "") -> StreamOutput:
        if self._pass_on(child_exit, stderr):
            return b"", NO_COMMANDS
        return self._buffer.prepend_buffered_output(*super().close(child_exit, stderr))

    def finish(self) -> StreamOutput:
        if self._pass_on(None, None):
            return b"", NO_COMMANDS
        return self._buffer.prepend_buffered_output(*super().finish())

    def write_turn_start_error(self, error: Exception) -> bytes:
        if self._buffer.is_active and isinstance(
            error, VendorError | UnsupportedPermissionModeError
        ):
            self._buffer.discard_output(
                create_failed_vendor_attempt(self.turn.config.vendor.name, error.cause, str(error)),
                child_started=False,
            )
            return b""
        return self._buffer.prepend_buffered_output(super().write_turn_start_error(error))[0]

    def find_timeout_cause(self, stderr: str) -> TurnEndCause | None:
        """Return why a vendor that reached its timeout is still waiting for its model. Return None
        if the vendor is not waiting for its model.
        """
        if self._buffer.same_vendor:
            return "stall"
        cause = self.get_api_failure_of_retry(stderr).cause
        if cause in FALLBACK_CAUSES:
            return cause
        return None

    def release_buffered_output(self) -> StreamOutput:
        """Stop buffering because this vendor answers, and return the buffered output."""
        return self._buffer.prepend_buffered_output(b"")

    def _pass_on(self, child_exit: ChildExit | None, stderr: str | None) -> bool:
        """Discard this vendor's output if the next candidate takes over the turn. Return whether it
        does. `stderr` is None if the child process keeps running.
        """
        attempt = None
        if self._buffer.is_active:
            attempt = self._find_failed_attempt(child_exit, stderr)
        if attempt is not None:
            self._buffer.discard_output(attempt, child_started=True)
            self.writer.discard_turn()
        return attempt is not None

    def _find_failed_attempt(
        self, child_exit: ChildExit | None, stderr: str | None
    ) -> FailedVendorAttempt | None:
        """Return the failure that makes the next candidate take over the turn, or None.

        Another driver for the same vendor takes over only if this driver has not opened a session.
        """
        if self._buffer.same_vendor and self._find_vendor_session() is not None:
            return None
        return self.find_failed_attempt(
            child_exit, stderr, accepts_any_cause=self._buffer.same_vendor
        )
