"""The recorder's interface for the code that reads and writes: the protocol of
`recording.recorder`.
"""

from typing import IO, TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from shim.core.turn.outcome import ChildExit


class RunRecordSink(Protocol):
    """The recorder of one run. No call blocks."""

    def record_stream(self, stream_code: str, data: bytes) -> None:
        """Record bytes of one of `core.cast.format.STREAMS`, unchanged. Empty bytes mean that the
        stream has ended, or pauses within a line.
        """

    def record_run_event(self, kind: str, **fields: Any) -> None:
        """Record an event that is not part of a stream."""


class PipedProcess(Protocol):
    """A process whose output is read through pipes."""

    @property
    def stdout(self) -> IO[bytes] | None: ...

    @property
    def stderr(self) -> IO[bytes] | None: ...


class ChildRecordSink(Protocol):
    """The recorder of one child."""

    def record_stdin(self, data: bytes) -> None:
        """Record bytes that were written to the child's stdin. Empty bytes mean that stdin was
        closed.
        """

    def record_output(self, stream_code: str, chunk: bytes) -> None:
        """Record bytes of the child's stdout (`o`) or stderr (`e`). Empty bytes mean the end of the
        stream.
        """

    def record_signal(self, signal_name: str) -> None: ...

    def record_exit(self, child_exit: "ChildExit") -> None: ...

    def record_remaining_output(self, process: PipedProcess) -> None:
        """Record what the pipes still contain, because nothing more is read from the child."""

    def finish(self) -> None:
        """Record the end of the child as unknown, unless it is known."""
