"""Draws the raw lines between the frontend, the drop-in and the child process, with times."""

from collections.abc import Iterable

import orjson
from rich.console import Console
from rich.text import Text

from shim.core.cast.format import RecordingRecord
from shim.core.reading.values import escape_control_chars

MIN_TWO_COLUMN_WIDTH = 120  # narrower terminals use one column
MAX_PLAIN_CHARS = 200  # characters per line in a file or a pipe
MAX_FULL_CHARS = 2_000_000

# Each entry has a label for one column, a label for two columns with the drop-in between them,
# whether the record belongs to the child process, and a color.
_DIRECTIONS = {
    "i": ("frontend →", "→", False, "cyan"),
    "O": ("→ frontend", "←", False, "green"),
    "I": ("→ child", "→", True, "cyan"),
    "o": ("child →", "←", True, "green"),
    "e": ("stderr →", "← stderr", True, "red"),
    "s": ("start", "start", True, "yellow"),
    "x": ("exit", "exit", True, "yellow"),
    "n": ("note", "note", False, "yellow"),
}


class RawRecordRenderer:
    """Draws the records of a recording in order. Long lines are shortened unless `full` is set."""

    def __init__(self, console: Console, *, full: bool = False) -> None:
        self._console = console
        self._full = full
        self._two_columns = (
            console.is_terminal and console.width >= MIN_TWO_COLUMN_WIDTH and not full
        )
        self._has_heading = False

    def draw_record(self, record: RecordingRecord) -> None:
        direction, arrow, of_child, style = _DIRECTIONS[record.code]
        text = escape_control_chars(_format_record(record))
        time_text = f"{record.time_s:9.4f}"
        if self._two_columns:
            if not self._has_heading:
                self._has_heading = True
                self._print_row("seconds", "frontend and drop-in", "drop-in and child", "bold")
            cell = f"{arrow} {text}"
            self._print_row(time_text, *(("", cell) if of_child else (cell, "")), style)
            return
        max_chars = MAX_PLAIN_CHARS
        if self._console.is_terminal:
            max_chars = max(self._console.width - 36, 20)
        line = f"{time_text} {direction:>10}  {_truncate_line(text, MAX_FULL_CHARS if self._full else max_chars)}"
        self._print_line(line.rstrip(), style, soft_wrap=self._full)

    def flush(self) -> None:
        """Flush the output in a pipe."""
        self._console.file.flush()

    def print_notice(self, text: str) -> None:
        """Print a message from the shim that is not part of the recording."""
        self._print_line(escape_control_chars(text), "yellow")

    def close(self, notices: Iterable[str] = ()) -> None:
        """Print the notices about the recording."""
        for text in notices:
            self.print_notice(text)
        self.flush()

    def _print_line(self, text: str, style: str, *, soft_wrap: bool = False) -> None:
        if self._console.is_terminal:
            self._console.print(Text(text, style=style), soft_wrap=soft_wrap)
        else:
            self._console.file.write(text + "\n")

    def _print_row(self, time_text: str, left: str, right: str, style: str) -> None:
        cell_width = (self._console.width - 10 - 6) // 2
        line = Text(f"{time_text:>9} ", style="dim")
        for text in (left, right):
            cell = Text(_truncate_line(text.expandtabs(1), cell_width), style=style)
            cell.truncate(cell_width, pad=True)
            line.append(" │ ", style="dim").append_text(cell)
        line.rstrip()
        self._console.print(line, no_wrap=True, overflow="crop")


def _format_record(record: RecordingRecord) -> str:
    if record.code in "sxn":
        return orjson.dumps(dict(record.fields)).decode()
    data = record.data[:MAX_FULL_CHARS]
    return data.removesuffix(b"\n").decode("utf-8", "replace") + (
        "" if data.endswith(b"\n") else " (no end of line)"
    )


def _truncate_line(text: str, max_chars: int) -> str:
    """Return the beginning of a line and the number of omitted characters."""
    if len(text) <= max_chars:
        return text
    omitted_note = f"… (+{len(text) - max_chars})"
    return text[: max(max_chars - len(omitted_note), 1)] + omitted_note
