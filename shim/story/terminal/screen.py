"""Draws a session on a terminal, or as plain lines of unlimited width.

All text is escaped with `escape_control_chars` and is never parsed as markup. The Markdown parser
is imported on first use.
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

from shim.core.reading.values import escape_control_chars
from shim.story.terminal.footer import InputCursor, TerminalFooter

MAX_MARKDOWN_CHARS = 50_000  # longer texts are drawn as plain text
MAX_PREVIEW_CHARS = 4000  # the preview shows the end of a streamed text
MAX_PREVIEW_LINES = 12
# The redraw interval while the agent is working. The caller must call `flush` this often.
REFRESH_SECONDS = 0.1
MIN_REDRAW_SECONDS = 0.04  # the shortest redraw interval for streamed text


class RenderedKeyboardInput(NamedTuple):
    """The text that a person is typing below the session, and the cursor position in that text."""

    lines: RenderableType
    cursor: InputCursor


class TrailingSpaceFilter(NamedTuple):
    """A Rich renderable that removes trailing spaces from each line.

    A terminal that becomes narrower would wrap trailing spaces into empty lines. Trailing spaces
    would also be copied with the text.
    """

    renderable: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for row in console.render_lines(self.renderable, options, pad=False):
            while row and not _is_visible_space(row[-1].style):
                text, style, control = row.pop()
                if text := text.rstrip(" "):
                    row.append(Segment(text, style, control))
                    break
            yield from row
            yield Segment.line()


def _is_visible_space(style: Style | None) -> bool:
    """Return whether spaces in this style are visible."""
    if style is None:
        return False
    return bool(style.bgcolor or style.reverse or style.underline)


class TerminalScreen:
    """Draws lines and Markdown on a console. If `live` is set, a terminal also shows the current
    activity below them.

    If `render_input` is set, the typed input is always shown. `render_input` receives the width and
    returns the rendered input.
    """

    def __init__(self, console: Console, *, live: bool = False) -> None:
        self.is_terminal = console.is_terminal
        self.render_input: Callable[[int], RenderedKeyboardInput] | None = None
        self._console = console
        self._spinner = Spinner("dots")
        self._wait_message = ""
        self._wait_start = 0.0
        self._preview = ""
        self._has_open_prompt = False  # an input prompt is waiting for an answer
        self._is_waiting = False  # the agent or a tool is working
        self._drawn_at = 0.0
        self._footer = (
            TerminalFooter(console)
            if live and self.is_terminal and not console.is_dumb_terminal
            else None
        )

    @property
    def width(self) -> int:
        """Return the width of the timeline bar: the terminal's width, or a fixed width without a
        terminal.
        """
        if self.is_terminal:
            return self._console.width
        return 100

    def print_text(self, text: Text, indent: int = 0) -> None:
        """Print lines of text. On a terminal, long lines wrap at the indentation; in other outputs
        they are not wrapped.
        """
        if self.is_terminal:
            self._print(Padding(text, (0, 0, 0, indent)))
            return
        margin = " " * indent
        self._console.file.write(
            "".join((margin + line).rstrip() + "\n" for line in text.plain.split("\n"))
        )

    def print_markdown(self, source: str, indent: int = 0) -> None:
        """Print text as Markdown on a terminal, and as plain text in other outputs."""
        if not self.is_terminal or len(source) > MAX_MARKDOWN_CHARS:
            self.print_text(Text(escape_control_chars(source)), indent)
            return
        from shim.story.terminal.markdown import ControlCodeFilter, SafeMarkdown

        self._print(Padding(ControlCodeFilter(SafeMarkdown(source)), (0, 0, 0, indent)))

    def _print(self, renderable: RenderableType) -> None:
        self.end_open_input_prompt_line()
        trimmed = TrailingSpaceFilter(renderable)
        if self._footer is not None and self._has_footer:
            self._footer.print_above(trimmed)
        else:
            self._console.print(trimmed)

    def show_input_prompt(self, text: str) -> None:
        """Print a prompt and leave the cursor after it, where the person types the answer. Live
        drawing pauses until the prompt ends.
        """
        self.hide_wait_message()
        self.end_open_input_prompt_line()
        self._has_open_prompt = True
        self._console.file.write(text)
        self._console.file.flush()

    def end_input_prompt(self) -> None:
        """Resume live drawing after the person has entered an answer."""
        self._has_open_prompt = False

    def end_open_input_prompt_line(self) -> None:
        """Close an unanswered input prompt with a line break, so that other output can be printed."""
        if self._has_open_prompt:
            self._has_open_prompt = False
            self._console.file.write("\n")

    def flush(self, *, at_once: bool = False) -> None:
        """Flush the output in a pipe, or redraw the current activity on a terminal. If `at_once` is
        set, redraw without delay, because a person has typed.
        """
        if not self.is_terminal:
            self._console.file.flush()
        elif self._footer is not None and self._has_footer:
            now = time.monotonic()
            if (
                at_once
                or self._footer.has_pending_output
                or now - self._drawn_at >= MIN_REDRAW_SECONDS
            ):
                self._drawn_at = now
                typed = None
                if self.render_input is not None:
                    typed = self.render_input(self._console.width)
                cursor = None
                if typed is not None:
                    cursor = typed.cursor
                self._footer.draw(self._render_footer(typed), cursor)

    # -- the current activity ----------------------------------------------------------------------

    @property
    def _has_footer(self) -> bool:
        if self._has_open_prompt:
            return False
        if self._is_waiting:
            return True
        return self.render_input is not None

    def show_wait_message(self, message: str) -> None:
        if self._footer is not None and not self._has_open_prompt:
            if message != self._wait_message or not self._is_waiting:
                self._wait_message, self._wait_start = message, time.monotonic()
            self._preview = ""
            self._is_waiting = True

    def add_preview_fragment(self, fragment: str) -> None:
        """Add streamed text to the preview, which shows the end of the text until the text is
        complete.
        """
        if self._footer is not None and not self._has_open_prompt:
            self._preview = (self._preview + fragment)[-MAX_PREVIEW_CHARS:]
            self._is_waiting = True

    def hide_wait_message(self) -> None:
        """Remove the wait message and the preview."""
        self._preview = ""
        self._is_waiting = False
        if self._footer is not None and not self._has_footer:
            self._footer.erase()

    def _render_footer(self, typed: RenderedKeyboardInput | None) -> RenderableType:
        parts: list[Any] = []
        if self._preview:
            lines = Text(escape_control_chars(self._preview)).wrap(
                self._console, max(self._console.width, 10)
            )
            parts.append(Text(""))
            parts.append(Text("\n").join(lines[-MAX_PREVIEW_LINES:]))
        if self._is_waiting:
            seconds = time.monotonic() - self._wait_start
            self._spinner.update(
                text=Text(
                    self._wait_message + (f" {seconds:.0f} s" if seconds >= 2 else ""), style="dim"
                )
            )
            parts.append(self._spinner)
        return Group(*parts, *(() if typed is None else (typed.lines,)))
