"""The lines below a session on a terminal: what goes on now, and what a person types.

They are erased before something is said above them, and are drawn again behind it, in one write. No
thread draws: who draws calls `draw` ten times a second, or when there is news. The terminal scrolls
by itself, so that all that was said stays where a terminal keeps it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console, RenderableType
from rich.segment import Segment, Segments

_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"  # the cursor
_ERASE = "\x1b[J"  # from the cursor to the end of the screen
_LESS = 1  # lines of the screen that stay above, or the terminal scrolls what has to be erased


class Cursor(NamedTuple):
    """Where a person types: a row counted from the last one, which is 0, and a column."""

    from_last: int
    column: int


class Below:
    """Draws below the last line of a console, which has to be a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._above: list[str] = []  # said since the last drawing
        self._drawn = ""
        self._cells: list[int] = []  # of each row that is drawn
        self._cursor = Cursor(0, 0)

    @property
    def waits(self) -> bool:
        """Whether something was said that is not drawn yet."""
        return bool(self._above)

    def say(self, drawing: RenderableType) -> None:
        """Draw lines above, with the next drawing."""
        with self._console.capture() as captured:
            self._console.print(drawing)
        self._above.append(captured.get())

    def draw(self, drawing: RenderableType, cursor: Cursor | None = None) -> None:
        """Draw what was said and, below it, what goes on now. Without a `cursor` none is shown."""
        rows = self._console.render_lines(drawing, pad=False)[
            -max(self._console.height - _LESS, 1) :
        ]
        with self._console.capture() as captured:
            self._console.print(Segments(_joined(rows)), end="")
        cells = [Segment.get_line_length(row) for row in rows] or [0]
        # it stays on a row that is full
        place = cursor or Cursor(0, min(cells[-1], self._console.width - 1))
        if cursor is not None:
            place = Cursor(min(cursor.from_last, len(cells) - 1), cursor.column)
        shown = captured.get() + (_moved(place) + _SHOW if cursor is not None else "")
        if shown == self._drawn and not self._above and cells == self._cells:
            return
        erased = self._erased()
        self._drawn, self._cells, self._cursor = shown, cells, place
        self._write(_HIDE + erased + "".join(self._above) + shown)

    def stop(self) -> None:
        """Erase it; what was said stays."""
        erased = self._erased() + _SHOW if self._cells else ""
        self._drawn, self._cells = "", []
        self._write(erased + "".join(self._above))

    def _erased(self) -> str:
        """Go to the first column of the first row, and erase from there.

        A terminal that became narrower since has broken a long row into several.
        """
        if not self._cells:
            return ""
        width = max(self._console.width, 1)
        row = len(self._cells) - 1 - self._cursor.from_last
        up = sum(max(-(-cells // width), 1) for cells in self._cells[:row])
        up = min(up + self._cursor.column // width, max(self._console.height - _LESS, 0))
        return "\r" + (f"\x1b[{up}A" if up else "") + _ERASE

    def _write(self, text: str) -> None:
        self._above.clear()
        if text:
            self._console.file.write(text)
            self._console.file.flush()


def _joined(rows: Sequence[list[Segment]]) -> list[Segment]:
    joined = list[Segment]()
    for row in rows:
        joined += [Segment.line(), *row] if joined or row is not rows[0] else row
    return joined


def _moved(cursor: Cursor) -> str:
    """From the end of the last row to the cursor."""
    up = f"\x1b[{cursor.from_last}A" if cursor.from_last else ""
    return f"\r{up}" + (f"\x1b[{cursor.column}C" if cursor.column else "")
