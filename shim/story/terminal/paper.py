"""What a session is drawn on: a terminal, or plain lines that do not depend on any width.

Everything is drawn as `printable` text, never as markup (threats: terminal). The Markdown parser is
imported when it is needed.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.spinner import Spinner
from rich.style import Style
from rich.text import Text

from shim.core.reading.account import escape_control_chars
from shim.story.terminal.below import Footer, InputCursor

MARKDOWN_CHARACTERS = 50_000  # of a text that is parsed as Markdown; a longer one is drawn as it is
PREVIEW_CHARACTERS = 4000  # of the end of a streamed text
PREVIEW_LINES = 12
REFRESH_SECONDS = 0.1  # between two drawings of what is awaited; who draws calls `flush` as often
FASTEST_SECONDS = 0.04  # between two drawings of a text that is streamed, however fast that is


class Typed(NamedTuple):
    """What a person types, below all else, and where the cursor stands in it."""

    lines: RenderableType
    cursor: InputCursor


class Ragged(NamedTuple):
    """A drawing without the spaces at the ends of its lines.

    A terminal that becomes narrower would break them off as empty lines, and who copies a line
    would have them too.
    """

    drawing: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for row in console.render_lines(self.drawing, options, pad=False):
            while row and not _seen(row[-1].style):
                text, style, control = row.pop()
                if text := text.rstrip(" "):
                    row.append(Segment(text, style, control))
                    break
            yield from row
            yield Segment.line()


def _seen(style: Style | None) -> bool:
    """Whether a space of this style is not blank."""
    return style is not None and bool(style.bgcolor or style.reverse or style.underline)


class Paper:
    """Draws lines and Markdown on a console. `live`: a terminal shows below what is going on now.

    `typed` gives what a person types at a width, which is always shown then.
    """

    def __init__(self, console: Console, *, live: bool = False) -> None:
        self.rich = console.is_terminal
        self.typed: Callable[[int], Typed] | None = None
        self._console = console
        self._spinner = Spinner("dots")
        self._what = ""
        self._since = 0.0
        self._preview = ""
        self._open = False  # a line whose end a person types
        self._moves = False  # something is awaited
        self._drawn_at = 0.0
        self._below = (
            Footer(console) if live and self.rich and not console.is_dumb_terminal else None
        )

    @property
    def width(self) -> int:
        """The width of a bar, fixed without a terminal."""
        return self._console.width if self.rich else 100

    def line(self, text: Text, indent: int = 0) -> None:
        """Draw lines. A terminal wraps a long one at its indentation; elsewhere it stays long."""
        if self.rich:
            self._print(Padding(text, (0, 0, 0, indent)))
            return
        margin = " " * indent
        self._console.file.write(
            "".join((margin + line).rstrip() + "\n" for line in text.plain.split("\n"))
        )

    def markdown(self, source: str, indent: int = 0) -> None:
        """Draw a text as Markdown in a terminal, else as it was written."""
        if not self.rich or len(source) > MARKDOWN_CHARACTERS:
            self.line(Text(escape_control_chars(source)), indent)
            return
        from shim.story.terminal.markdown import SafeMarkdown, Shown

        self._print(Padding(Shown(SafeMarkdown(source)), (0, 0, 0, indent)))

    def _print(self, drawing: RenderableType) -> None:
        self.end_line()
        ragged = Ragged(drawing)
        if self._below is not None and self._shows:
            self._below.print_above(ragged)
        else:
            self._console.print(ragged)

    def ask(self, text: str) -> None:
        """Leave the cursor behind a text, for the answer of a person. Nothing that moves is shown
        until then.
        """
        self.rest()
        self.end_line()
        self._open = True
        self._console.file.write(text)
        self._console.file.flush()

    def answered(self) -> None:
        """The person has ended the line."""
        self._open = False

    def end_line(self) -> None:
        """End a line that waits for a person, because something else is to be drawn."""
        if self._open:
            self._open = False
            self._console.file.write("\n")

    def flush(self, *, at_once: bool = False) -> None:
        """Flush, for a reader of a pipe; on a terminal draw what is going on now. `at_once`: a
        person has typed.
        """
        if not self.rich:
            self._console.file.flush()
        elif self._below is not None and self._shows:
            now = time.monotonic()
            if at_once or self._below.has_pending_output or now - self._drawn_at >= FASTEST_SECONDS:
                self._drawn_at = now
                typed = None if self.typed is None else self.typed(self._console.width)
                self._below.draw(self._goes_on(typed), None if typed is None else typed.cursor)

    # -- what is going on --------------------------------------------------------------------------

    @property
    def _shows(self) -> bool:
        return not self._open and (self._moves or self.typed is not None)

    def wait(self, what: str) -> None:
        if self._below is not None and not self._open:
            if what != self._what or not self._moves:
                self._what, self._since = what, time.monotonic()
            self._preview = ""
            self._moves = True

    def preview(self, fragment: str) -> None:
        """Show the end of a streamed text, which is drawn when it is whole."""
        if self._below is not None and not self._open:
            self._preview = (self._preview + fragment)[-PREVIEW_CHARACTERS:]
            self._moves = True

    def rest(self) -> None:
        """Stop showing that something is awaited."""
        self._preview, self._moves = "", False
        if self._below is not None and not self._shows:
            self._below.erase()

    def _goes_on(self, typed: Typed | None) -> RenderableType:
        parts: list[Any] = []
        if self._preview:
            lines = Text(escape_control_chars(self._preview)).wrap(
                self._console, max(self._console.width, 10)
            )
            parts.append(Text(""))
            parts.append(Text("\n").join(lines[-PREVIEW_LINES:]))
        if self._moves:
            seconds = time.monotonic() - self._since
            self._spinner.update(
                text=Text(self._what + (f" {seconds:.0f} s" if seconds >= 2 else ""), style="dim")
            )
            parts.append(self._spinner)
        return Group(*parts, *(() if typed is None else (typed.lines,)))
