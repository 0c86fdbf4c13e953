"""The recorder as our channels see it: the protocol of `recording.recorder`."""

from typing import IO, TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from shim.core.turn.outcome import ChildExit


class RunTap(Protocol):
    """The recorder of one run. No call waits."""

    def stream(self, letter: str, data: bytes) -> None:
        """Bytes of one of `core.cast.records.STREAMS`, as they came. No bytes: the stream ends, or
        pauses in a line.
        """

    def note(self, kind: str, **facts: Any) -> None:
        """An event that is in no stream."""


class PipedProcess(Protocol):
    """A process whose output is read through pipes."""

    @property
    def stdout(self) -> IO[bytes] | None: ...

    @property
    def stderr(self) -> IO[bytes] | None: ...


class ChildTap(Protocol):
    """The recorder of one child."""

    def told(self, data: bytes) -> None:
        """Bytes that its stdin took. No bytes: its stdin was closed."""

    def said(self, letter: str, chunk: bytes) -> None:
        """Bytes of its stdout (`o`) or stderr (`e`). No bytes: the end of it."""

    def signalled(self, name: str) -> None: ...

    def ended(self, how: "ChildExit") -> None: ...

    def close(self, process: PipedProcess) -> None:
        """Nothing more is read from the child. What is in its pipes by now was its last."""

    def give_up(self) -> None:
        """Record the end of the child as unknown, unless it is known by now."""
