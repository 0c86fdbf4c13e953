"""Converts a background session's output for a frontend that uses a flat dialect (Yume)."""

from typing import TYPE_CHECKING

from shim.core.turn.outcome import ChildExit
from shim.io.stdout import Stdout

if TYPE_CHECKING:
    from shim.core.adapter.child_stream import ChildStream


class TranslatingStdout(Stdout):
    """A stdout that translates the lines of one turn from Claude's stream-json to a
    flat dialect.
    """

    def __init__(self, child_stream: "ChildStream") -> None:
        super().__init__()
        self._child_stream = child_stream

    async def write(self, data: bytes) -> None:
        """Translate complete stream-json lines, and write the result."""
        lines, _ = self._child_stream.feed(data)
        await super().write(lines)

    async def finish(self) -> None:
        """Write the end of the turn. Must be called once, after the last line."""
        lines, _ = self._child_stream.close(ChildExit(0))
        await super().write(lines)
