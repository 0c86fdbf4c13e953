"""The recorder as our channels see it: the protocol of `recording.recorder`."""

from typing import IO, TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from shim.core.turn.outcome import ChildExit


class RunRecordSink(Protocol):
    """The recorder of one run. No call waits."""

    def record_stream(self, stream_code: str, data: bytes) -> None:
        """Bytes of one of `core.cast.format.STREAMS`, as they came. No bytes: the stream ends, or
        pauses in a line.
        """

    def record_run_event(self, kind: str, **fields: Any) -> None:
        """An event that is in no stream."""


class PipedProcess(Protocol):
    """A process whose output is read through pipes."""

    @property
    def stdout(self) -> IO[bytes] | None: ...

    @property
    def stderr(self) -> IO[bytes] | None: ...


class ChildRecordSink(Protocol):
    """The recorder of one child."""

    def record_stdin(self, data: bytes) -> None:
        """Bytes that its stdin took. No bytes: its stdin was closed."""

    def record_output(self, stream_code: str, chunk: bytes) -> None:
        """Bytes of its stdout (`o`) or stderr (`e`). No bytes: the end of it."""

    def record_signal(self, signal_name: str) -> None: ...

    def record_exit(self, child_exit: "ChildExit") -> None: ...

    def record_remaining_output(self, process: PipedProcess) -> None:
        """Nothing more is read from the child. What is in its pipes by now was its last."""

    def finish(self) -> None:
        """Record the end of the child as unknown, unless it is known by now."""
