"""What records a run, as far as those know it who hold its wires (`recording.recorder` has it)."""

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from subprocess import Popen

    from shim.core.turn.result import Exit


class Tap(Protocol):
    """One run; nothing waits for it."""

    def stream(self, letter: str, data: bytes) -> None:
        """Bytes of one of `core.cast.records.STREAMS`, as they came; none where the stream ends or pauses in a line."""

    def note(self, kind: str, **facts: Any) -> None:
        """Something that is in no stream."""


class Track(Protocol):
    """What one child says and is told."""

    def told(self, data: bytes) -> None:
        """Bytes that its stdin took; none when that was closed."""

    def said(self, letter: str, chunk: bytes) -> None:
        """Bytes of its stdout (`o`) or stderr (`e`); none: its end."""

    def signalled(self, name: str) -> None:
        """A signal that was sent to it."""

    def ended(self, how: "Exit") -> None:
        """Its end."""

    def close(self, process: "Popen[bytes]") -> None:
        """Nothing more is read of it: what is in its pipes by now was its last."""

    def give_up(self) -> None:
        """Nobody will know how it ended, if that is not known by now."""
