"""The footer below a session: it is erased completely, after any output and after any change of the
width.
"""

import io

import pytest
from rich.console import Console
from rich.text import Text
from terminal_emulator import TerminalEmulator

from shim.story.terminal.footer import InputCursor, TerminalFooter
from shim.story.terminal.screen import RenderedKeyboardInput, TerminalScreen


class Window:
    """A console whose output is shown on an emulated terminal."""

    def __init__(self, columns: int = 20, lines: int = 6) -> None:
        self.screen = TerminalEmulator(columns, lines)
        self.console = Console(
            file=io.StringIO(), force_terminal=True, width=columns, height=lines, highlight=False
        )

    def read_rows(self) -> list[str]:
        """Feed the output to the terminal and return its rows."""
        file = self.console.file
        assert isinstance(file, io.StringIO)
        self.screen.feed(file.getvalue())
        file.seek(0)
        file.truncate()
        return self.screen.text.split("\n")

    def resize(self, columns: int) -> None:
        self.read_rows()
        self.screen.resize(columns)
        self.console.size = (columns, self.screen.lines)


def test_printed_text_stays_above_the_redrawn_footer():
    window = Window()
    footer = TerminalFooter(window.console)
    footer.draw(Text("waiting 1 s\nfor it"))
    footer.print_above(Text("hello"))
    footer.print_above(Text("you"))
    assert footer.has_pending_output
    footer.draw(Text("waiting 2 s"))
    assert window.read_rows() == ["hello", "you", "waiting 2 s"]
    footer.erase()
    assert window.read_rows() == ["hello", "you", ""] and window.screen.is_cursor_visible


def test_cursor_is_at_the_input_position():
    window = Window()
    footer = TerminalFooter(window.console)
    for number in range(9):  # more lines than the screen has
        footer.print_above(Text(f"line {number}"))
        footer.draw(Text("> ab\nkeys"), InputCursor(1, 3))
        window.read_rows()
        assert (window.screen.row, window.screen.column) == (
            number + 1,
            3,
        ) and window.screen.is_cursor_visible
    assert window.read_rows() == [*(f"line {number}" for number in range(9)), "> ab", "keys"]


def test_footer_taller_than_the_screen_shows_its_last_lines():
    window = Window(lines=4)
    footer = TerminalFooter(window.console)
    footer.draw(Text("\n".join("abcdefg")))
    footer.draw(Text("\n".join("hijklmn")))
    assert window.read_rows() == ["l", "m", "n"]


@pytest.mark.parametrize("columns", [5, 7, 19, 40])
def test_footer_is_erased_completely_after_a_resize(columns):
    window = Window(lines=12)
    footer = TerminalFooter(window.console)
    footer.print_above(Text("first"))
    footer.draw(Text("a preview as long as\nthe row\n> typed"), InputCursor(0, 7))
    window.resize(columns)
    footer.print_above(Text("next"))
    footer.draw(Text("> t"), InputCursor(0, 3))
    assert window.read_rows() == ["first", "next", "> t"]


def test_unchanged_footer_is_not_written_twice():
    window = Window()
    footer = TerminalFooter(window.console)
    footer.draw(Text("waiting"))
    window.read_rows()
    footer.draw(Text("waiting"))
    assert window.console.file.getvalue() == ""  # type: ignore[attr-defined]


# -- output without a terminal ---------------------------------------------------------------------


def test_printed_line_replaces_the_preview():
    window = Window(40)
    paper = TerminalScreen(window.console, live=True)
    paper.show_wait_message("waiting")
    paper.add_preview_fragment("some text")
    paper.flush()
    assert any("some text" in row for row in window.read_rows())
    paper.print_text(Text("a line"))
    paper.hide_wait_message()
    assert window.read_rows() == ["a line", ""]


def test_typed_input_stays_visible_after_waiting_stops():
    window = Window(40)
    paper = TerminalScreen(window.console, live=True)
    paper.render_input = lambda width: RenderedKeyboardInput(
        Text(f"> hi {width}"), InputCursor(0, 4)
    )
    paper.show_wait_message("waiting")
    paper.flush()
    paper.hide_wait_message()
    paper.flush(at_once=True)
    assert window.read_rows() == ["> hi 40"]
    paper.render_input = None
    paper.hide_wait_message()
    assert window.read_rows() == [""]


def test_dumb_terminal_receives_only_lines():
    file = io.StringIO()
    paper = TerminalScreen(
        Console(file=file, force_terminal=True, width=40, _environ={"TERM": "dumb"}), live=True
    )
    paper.show_wait_message("waiting")
    paper.add_preview_fragment("some")
    paper.print_text(Text("a line"))
    paper.flush()
    paper.hide_wait_message()
    assert file.getvalue().split() == ["a", "line"]


def test_terminal_lines_have_no_trailing_spaces():
    """A line that is padded with spaces wraps if the terminal becomes narrower, and the spaces are
    copied with the text.
    """
    file = io.StringIO()
    paper = TerminalScreen(
        Console(file=file, force_terminal=True, width=40, highlight=False, color_system=None)
    )
    paper.print_text(Text("a line\n\nand another one that is too long for forty columns"), indent=2)
    paper.print_markdown("# Title\n\n- an item\n\n```\ncode\n```")
    assert [line for line in file.getvalue().split("\n") if line.endswith(" ")] == []
