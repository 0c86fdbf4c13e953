"""Renders a model's Markdown on a terminal, without control sequences.

HTML, images and entities are not interpreted. The rendered text is escaped once more.
"""

import os

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import Heading, Markdown, TableElement
from rich.segment import Segment
from rich.table import Table

from shim.core.reading.values import escape_control_chars
from shim.story.markdown import parse_markdown_tokens
from shim.story.terminal.console import is_light_terminal

_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
_PARSER.disable(["html_block", "html_inline", "image", "autolink", "entity", "reference"])


class _LeftHeading(Heading):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _FoldedTable(TableElement):
    """A table that wraps long words instead of truncating them."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in super().__rich_console__(console, options):
            for column in table.columns if isinstance(table, Table) else ():
                column.overflow = "fold"
            yield table


class SafeMarkdown(Markdown):
    """Markdown that shows link addresses as text, and leaves HTML and images as written."""

    elements = {**Markdown.elements, "heading_open": _LeftHeading, "table_open": _FoldedTable}  # noqa: RUF012 - as rich has it

    def __init__(self, source: str) -> None:
        code_theme = "ansi_dark"
        if is_light_terminal(os.environ):
            code_theme = "ansi_light"
        super().__init__("", code_theme=code_theme, hyperlinks=False)
        self.markup = escape_control_chars(source)
        self.parsed = parse_markdown_tokens(self.markup, _PARSER)


class ControlCodeFilter:
    """A Rich renderable that removes control sequences and links from rendered text."""

    def __init__(self, renderable: RenderableType) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for text, style, control in console.render(self._renderable, options):
            if not control:
                yield Segment(
                    escape_control_chars(text),
                    style.update_link(None) if style and style.link else style,
                )
