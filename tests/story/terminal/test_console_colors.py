"""Colors that are readable on dark and on light terminals."""

import io
import re

import pytest
from rich.console import Console

from shim.story.terminal.console import THEME, is_light_terminal
from shim.story.terminal.markdown import SafeMarkdown

MARKDOWN = "Run `make`, then:\n\n```python\nreturn 1\n```\n\n    indented\n"


def _render_markdown() -> str:
    console = Console(
        file=io.StringIO(), force_terminal=True, color_system="standard", theme=THEME, _environ={}
    )
    console.print(SafeMarkdown(MARKDOWN))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("colors", ["", "15;0", "0;15"])
def test_code_has_no_background_color(monkeypatch, colors):
    monkeypatch.setenv("COLORFGBG", colors)
    codes = {
        code for sequence in re.findall(r"\x1b\[([0-9;]*)m", _render_markdown())
        for code in sequence.split(";")
    }  # fmt: skip
    assert not codes & {str(number) for number in (*range(40, 48), *range(100, 108))}


def test_code_of_a_light_terminal_has_darker_colors(monkeypatch):
    monkeypatch.setenv("COLORFGBG", "15;0")
    dark = _render_markdown()
    monkeypatch.setenv("COLORFGBG", "0;15")
    assert _render_markdown() != dark


@pytest.mark.parametrize(
    ("value", "is_light"),
    [("0;15", True), ("0;default;7", True), ("15;0", False), ("", False), ("15", True)],
)
def test_background_is_the_last_number_of_colorfgbg(value, is_light):
    assert is_light_terminal({"COLORFGBG": value}) is is_light
