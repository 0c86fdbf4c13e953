"""The stream of a vendor in a list. Its output is buffered while another vendor may still take its
place.

A driver uses it like any other stream. When the turn certainly belongs to the vendor, the buffered
output is released. If the vendor does not answer, its turn ends without a line, and the buffer has
the reason.
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

# The limit for the buffered output. A vendor that has printed more is not replaced.
MAX_BUFFERED_BYTES = 1024 * 1024


class FallbackOutputBuffer:
    """The output of a vendor that another vendor may still replace.

    `failed_attempt` is the reason to ask another vendor. `child_started` is whether a child was
    started before that.
    """

    def __init__(self, *, same_vendor: bool = False) -> None:
        """`same_vendor`: the next candidate is another driver of the same vendor. It may replace
        this one until a session begins.
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
        """Buffer the lines for `byte_count` bytes of a child. Return the commands to execute now.

        No session is stored while another vendor may replace this one.
        """
        self._received_bytes += received_byte_count
        self._lines.append(lines)
        self._remember_commands = (
            tuple(command for command in commands if isinstance(command, StoreSessionCommand))
            or self._remember_commands
        )
        return tuple(
            command for command in commands if not isinstance(command, StoreSessionCommand)
        )

    @property
    def is_full(self) -> bool:
        """Return whether the buffer has reached its limit."""
        return self._received_bytes > MAX_BUFFERED_BYTES

    def prepend_buffered_output(
        self, new_lines: bytes, new_commands: StreamCommands = NO_COMMANDS
    ) -> StreamOutput:
        """Return the buffered output followed by the new output, because this vendor answers."""
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
        """Discard the lines of a vendor that does not answer."""
        self.is_active = False
        self._reset()
        self.failed_attempt = attempt
        self.child_started = child_started


class BufferedChildStream(ChildStream):
    """The stream of a vendor in a list. The other arguments are those of ChildStream."""

    def __init__(self, buffer: FallbackOutputBuffer, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._buffer = buffer

    def feed(self, chunk: bytes) -> StreamOutput:
        lines, commands = super().feed(chunk)
        buffer = self._buffer
        if not buffer.is_active:
            return lines, commands
        passed_commands = buffer.add_output(len(chunk), lines, commands)
        has_output = self.turn.has_output or any(
            isinstance(command, AskPermissionCommand) or command is TurnStage.FINISHED
            for command in commands
        )
        if not has_output:
            has_output = buffer.same_vendor and self._find_vendor_session() is not None
        if has_output or buffer.is_full:
            return buffer.prepend_buffered_output(b"", passed_commands)
        return (b"", passed_commands)

    def start_retry(self, child_exit: ChildExit | None, stderr: str | None) -> bool:
        # If the child has exited, another vendor is asked, if there is one. A child that stays is
        # asked once more first.
        is_passed_on = (
            self._buffer.is_active
            and stderr is not None
            and self._find_failed_attempt(child_exit, stderr) is not None
        )
        if is_passed_on:
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
        """Return why a vendor that has used its time still waits for its model, or None if it does
        anything else.
        """
        if self._buffer.same_vendor:
            return "stall"
        cause = self.get_api_failure_of_retry(stderr).cause
        if cause in FALLBACK_CAUSES:
            return cause
        return None

    def release_buffered_output(self) -> StreamOutput:
        """Release the output, because this vendor answers."""
        return self._buffer.prepend_buffered_output(b"")

    def _pass_on(self, child_exit: ChildExit | None, stderr: str | None) -> bool:
        """Return whether the turn goes to another vendor. `stderr` is None if the child stays."""
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
        """Return why the turn goes to another vendor, or to another driver of the same vendor if
        this one has opened no session. Return None if it does not go on to another one.
        """
        if self._buffer.same_vendor and self._find_vendor_session() is not None:
            return None
        return self.find_failed_attempt(
            child_exit, stderr, accepts_any_cause=self._buffer.same_vendor
        )
