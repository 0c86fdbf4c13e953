"""Draws the lines below a session on a terminal: the current activity, and the text that a person
is typing.

Before output is printed above the footer, the footer is erased. It is drawn again after the output,
in the same write. There is no drawing thread: the caller calls `draw` ten times a second, and after
each change. Output scrolls normally, so the terminal's scrollback stays complete.
"""

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console, RenderableType
from rich.segment import Segment, Segments

# Escape codes that hide and show the cursor.
_HIDE_CURSOR = "\x1b[?25l"
_SHOW_CURSOR = "\x1b[?25h"
_ERASE_TO_END = "\x1b[J"  # erases from the cursor to the end of the screen
# Terminal rows that the footer must leave free.
# A taller footer would scroll out of the screen, and could not be erased.
_RESERVED_ROWS = 1


class InputCursor(NamedTuple):
    """The cursor position in the footer. `rows_from_last` counts upwards from the last row, which
    is 0.
    """

    rows_from_last: int
    column: int


class TerminalFooter:
    """Draws a footer below the output of a console, which must be a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._pending_output: list[str] = []  # output since the last drawing
        self._drawn_text = ""
        self._row_widths: list[int] = []  # the width of each drawn row
        self._cursor = InputCursor(0, 0)

    @property
    def has_pending_output(self) -> bool:
        """Return whether some output is not drawn yet."""
        return bool(self._pending_output)

    def print_above(self, renderable: RenderableType) -> None:
        """Queue output to be printed above the footer by the next `draw`."""
        with self._console.capture() as captured:
            self._console.print(renderable)
        self._pending_output.append(captured.get())

    def draw(self, renderable: RenderableType, cursor: InputCursor | None = None) -> None:
        """Draw the pending output, and the footer below it. The cursor is hidden if `cursor` is
        None.
        """
        rows = self._console.render_lines(renderable, pad=False)[
            -max(self._console.height - _RESERVED_ROWS, 1) :
        ]
        with self._console.capture() as captured:
            self._console.print(Segments(_join_rows(rows)), end="")
        row_widths = [Segment.get_line_length(row) for row in rows] or [0]
        # After a full row, the cursor stays in the last column.
        position = cursor or InputCursor(0, min(row_widths[-1], self._console.width - 1))
        if cursor is not None:
            position = InputCursor(min(cursor.rows_from_last, len(row_widths) - 1), cursor.column)
        text = captured.get() + (
            _format_cursor_move(position) + _SHOW_CURSOR if cursor is not None else ""
        )
        if text == self._drawn_text and not self._pending_output and row_widths == self._row_widths:
            return
        erase_text = self._format_erase()
        self._drawn_text = text
        self._row_widths = row_widths
        self._cursor = position
        self._write(_HIDE_CURSOR + erase_text + "".join(self._pending_output) + text)

    def erase(self) -> None:
        """Erase the footer. The output above the footer remains."""
        erase_text = ""
        if self._row_widths:
            erase_text = self._format_erase() + _SHOW_CURSOR
        self._drawn_text = ""
        self._row_widths = []
        self._write(erase_text + "".join(self._pending_output))

    def _format_erase(self) -> str:
        """Return the escape codes that move to the start of the footer and erase from there.

        If the terminal has become narrower, a long row of the footer takes up several terminal
        rows.
        """
        if not self._row_widths:
            return ""
        width = max(self._console.width, 1)
        row = len(self._row_widths) - 1 - self._cursor.rows_from_last
        rows_up = sum(max(-(-row_width // width), 1) for row_width in self._row_widths[:row])
        rows_up = min(
            rows_up + self._cursor.column // width, max(self._console.height - _RESERVED_ROWS, 0)
        )
        return "\r" + (f"\x1b[{rows_up}A" if rows_up else "") + _ERASE_TO_END

    def _write(self, text: str) -> None:
        self._pending_output.clear()
        if text:
            self._console.file.write(text)
            self._console.file.flush()


def _join_rows(rows: Sequence[list[Segment]]) -> list[Segment]:
    joined = list[Segment]()
    for row in rows:
        if joined or row is not rows[0]:
            joined += [Segment.line(), *row]
        else:
            joined += row
    return joined


def _format_cursor_move(cursor: InputCursor) -> str:
    """Return the escape codes that move the cursor from the footer's last row to its position."""
    move_up = ""
    if cursor.rows_from_last:
        move_up = f"\x1b[{cursor.rows_from_last}A"
    return f"\r{move_up}" + (f"\x1b[{cursor.column}C" if cursor.column else "")
