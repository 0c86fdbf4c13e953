"""What a session is drawn on: a terminal, or plain lines that do not depend on any width.

Everything is drawn as `printable` text, never as markup (threats: terminal). The Markdown parser is imported when it is
needed.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.spinner import Spinner
from rich.text import Text

from shim.core.reading.account import printable

MARKDOWN_CHARACTERS = 50_000  # of a text that is parsed as Markdown; a longer one is drawn as it is
PREVIEW_CHARACTERS = 4000  # of the end of a streamed text
PREVIEW_LINES = 12
REFRESHES = 10  # per second, while something is awaited


class HeldLive(Live):
    """A live display that can be held still while something is printed above it.

    Its own thread draws it anew ten times a second. Without this it may do so after a print has measured how many lines
    the display has, and before the print is written: then the print erases lines above the display.
    """

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let nobody else draw."""
        with self._lock:
            yield


class Paper:
    """Draws lines and Markdown on a console. `live`: a terminal shows below what is going on now."""

    def __init__(self, console: Console, *, live: bool = False) -> None:
        self.rich = console.is_terminal
        self._console = console
        self._spinner = Spinner("dots")
        self._what = ""
        self._since = 0.0
        self._preview = ""
        self._open = False  # a line whose end a person types
        self._live = (
            HeldLive(
                console=console,
                get_renderable=self._waiting,
                refresh_per_second=REFRESHES,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            if live and self.rich
            else None
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
        self._console.file.write("".join((margin + line).rstrip() + "\n" for line in text.plain.split("\n")))

    def markdown(self, source: str, indent: int = 0) -> None:
        """Draw a text as Markdown in a terminal, else as it was written."""
        if not self.rich or len(source) > MARKDOWN_CHARACTERS:
            self.line(Text(printable(source)), indent)
            return
        from shim.story.terminal.markdown import SafeMarkdown, Shown

        self._print(Padding(Shown(SafeMarkdown(source)), (0, 0, 0, indent)))

    def _print(self, drawing: RenderableType) -> None:
        self.end_line()
        with self._live.held() if self._live is not None else nullcontext():
            self._console.print(drawing)

    def ask(self, text: str) -> None:
        """Leave the cursor behind a text, for the answer of a person. Nothing that moves is shown until then."""
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

    def flush(self) -> None:
        """Flush, for a reader of a pipe."""
        if not self.rich:
            self._console.file.flush()

    # -- what is going on ----------------------------------------------------------------------------------

    def wait(self, what: str) -> None:
        if self._live is not None and not self._open:
            if what != self._what:
                self._what, self._since = what, time.monotonic()
            self._preview = ""
            self._live.start()

    def preview(self, fragment: str) -> None:
        """Show the end of a streamed text, which is drawn when it is whole."""
        if self._live is not None and not self._open:
            self._preview = (self._preview + fragment)[-PREVIEW_CHARACTERS:]
            self._live.start()

    def rest(self) -> None:
        """Stop showing that something is awaited."""
        if self._live is not None:
            self._preview = ""
            self._live.stop()

    def _waiting(self) -> RenderableType:
        parts: list[Any] = []
        if self._preview:
            lines = Text(printable(self._preview)).wrap(self._console, max(self._console.width, 10))
            parts.append(Text(""))
            parts.append(Text("\n").join(lines[-PREVIEW_LINES:]))
        seconds = time.monotonic() - self._since
        self._spinner.update(text=Text(self._what + (f" {seconds:.0f} s" if seconds >= 2 else ""), style="dim"))
        return Group(*parts, self._spinner)
