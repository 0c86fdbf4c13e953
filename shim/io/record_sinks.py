"""Protocols of the recorder for code that reads and writes streams. `recording.recorder` implements
them.
"""

from typing import IO, TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from shim.core.turn.outcome import ChildExit


class RunRecordSink(Protocol):
    """Records one run. No method blocks."""

    def record_stream(self, stream_code: str, data: bytes) -> None:
        """Record bytes of one of `core.cast.format.STREAMS`, unchanged. Empty bytes mean that the
        stream has ended, or has paused in the middle of a line.
        """

    def record_run_event(self, kind: str, **fields: Any) -> None:
        """Record an event that does not belong to a stream."""


class PipedProcess(Protocol):
    """A process whose output is read through pipes."""

    @property
    def stdout(self) -> IO[bytes] | None: ...

    @property
    def stderr(self) -> IO[bytes] | None: ...


class ChildRecordSink(Protocol):
    """Records one child process."""

    def record_stdin(self, data: bytes) -> None:
        """Record bytes that were written to the child's stdin. Empty bytes mean that stdin was
        closed.
        """

    def record_output(self, stream_code: str, chunk: bytes) -> None:
        """Record bytes from the child's stdout (`o`) or stderr (`e`). Empty bytes mean the end of
        the stream.
        """

    def record_signal(self, signal_name: str) -> None: ...

    def record_exit(self, child_exit: "ChildExit") -> None: ...

    def record_remaining_output(self, process: PipedProcess) -> None:
        """Record the bytes that are left in the child's pipes, because no other code reads them."""

    def finish(self) -> None:
        """Finish the recording of the child. If its exit was not reported, record the exit as
        unknown.
        """
