"""Parses a model's Markdown with markdown-it, into safe tokens for a terminal or a tree of elements
for a page.

HTML, entities and references remain plain text. Links that do not lead to the web remain text. An
image becomes a link to the image. Text that the parser decodes from escapes and URLs is escaped for
display as well.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from markdown_it import MarkdownIt
from markdown_it.token import Token

from shim.core.reading.values import as_list, escape_control_chars

MAX_NESTING = 40  # nested blocks; deeper text is shown as written
HTTP_SCHEME = re.compile(r"https?://", re.IGNORECASE)
BARE_URL = re.compile(r"\bhttps?://[^\s<>\"`]+")
TASK_BOX = re.compile(r"\[([ xX])\] ")
DIFF_CLASSES = {"+": "added", "-": "removed", "@": "place"}

# A text, or an element as a list: its name, its attributes (omitted if empty), and its content.
MarkdownNode: TypeAlias = "str | list[Any]"

PARSER = MarkdownIt("commonmark", {"html": False, "maxNesting": MAX_NESTING}).enable(
    ["table", "strikethrough"]
)
PARSER.disable(["html_block", "html_inline", "entity", "reference"])
PARSER.validateLink = lambda url: HTTP_SCHEME.match(url) is not None  # type: ignore[method-assign]


def parse_markdown_tokens(source: str, parser: MarkdownIt = PARSER) -> list[Token]:
    """Return the parser's tokens for a text. Their content is escaped for a terminal or a page."""
    tokens = parser.parse(escape_control_chars(source))
    _make_printable(tokens)
    return tokens


def _make_printable(tokens: Iterable[Token]) -> None:
    for token in tokens:
        token.content, token.info = (
            escape_control_chars(token.content),
            escape_control_chars(token.info),
        )
        token.attrs = {
            key: escape_control_chars(value) if isinstance(value, str) else value
            for key, value in token.attrs.items()
        }
        _make_printable(as_list(token.children))


def build_markdown_tree(source: str) -> list[MarkdownNode]:
    tokens = parse_markdown_tokens(source)
    # The parser would drop blocks at deeper levels.
    if any(token.level >= MAX_NESTING - 1 for token in tokens):
        return [["div", {"class": "said"}, escape_control_chars(source)]]
    root: list[Any] = []
    stack = [root]
    for token in _flatten_tokens(tokens):
        if token.nesting < 0:
            element = stack.pop()
            if token.type == "list_item_close":
                _add_task_box(element)
        elif token.nesting == 0:
            stack[-1] += _build_leaf_nodes(token, inside_anchor=stack[-1][:1] == ["a"])
        else:
            element = _build_element(token)
            stack[-1].append(element)
            stack.append(element if token.type != "table_open" else element[-1])
    return root


def _flatten_tokens(tokens: Iterable[Token]) -> Iterator[Token]:
    """Yield block tokens and the inline tokens within them. The tokens of hidden paragraphs (in
    tight lists) are skipped.
    """
    for token in tokens:
        if token.type == "inline":
            yield from as_list(token.children)
        elif not token.hidden:
            yield token


def _build_element(token: Token) -> list[Any]:
    if token.type == "heading_open":
        return [f"h{min(int(token.tag[1]) + 2, 6)}"]  # the page has two levels of headings
    if token.type == "table_open":
        return ["div", {"class": "table", "tabindex": 0}, ["table"]]
    if token.type == "link_open":
        return _build_anchor(str(token.attrs["href"]))
    if token.type == "ordered_list_open" and "start" in token.attrs:
        return ["ol", {"start": token.attrs["start"]}]
    return ["del" if token.tag == "s" else token.tag]


def _build_anchor(address: str, *children: MarkdownNode) -> list[Any]:
    """Build a link element, with its URL as the title."""
    attributes = {
        "href": address,
        "title": address,
        "rel": "noopener noreferrer nofollow",
        "target": "_blank",
    }
    return ["a", attributes, *children]


def _add_task_box(item: list[Any]) -> None:
    """Add a check box to a list item that is a task."""
    line = item
    if len(item) > 1 and isinstance(item[1], list) and item[1][0] == "p":
        line = item[1]
    if len(line) > 1 and isinstance(line[1], str) and (task := TASK_BOX.match(line[1])):
        line[1] = ("☐ " if task[1] == " " else "☑ ") + line[1][task.end() :]
        item.insert(1, {"class": "task"})


def _build_leaf_nodes(token: Token, *, inside_anchor: bool) -> list[MarkdownNode]:
    """Build the elements of a token that has no child tokens. If `inside_anchor` is set, the token
    is part of a link.
    """
    if token.type in ("fence", "code_block"):
        return [_build_code_block(token.content.removesuffix("\n"), token.info.split()[:1])]
    if token.type == "code_inline":
        return [["code", token.content]]
    if token.type == "image":
        address = str(token.attrs["src"])
        return [_build_anchor(address, f"image: {token.content or address}")]
    if token.type == "hr":
        return [["hr"]]
    if token.type in ("softbreak", "hardbreak"):
        return ["\n"]
    if inside_anchor:
        return [token.content]
    return list(filter(None, _linkify_urls(token.content)))


def _build_code_block(text: str, language: list[str]) -> list[Any]:
    """Build a code block. The lines of a unified diff get CSS classes."""
    if language != ["diff"]:
        language_attribute = {}
        if language:
            language_attribute = {"data-language": language[0]}
        return ["pre", {"tabindex": 0, **language_attribute}, ["code", text]]
    lines = [
        ["span", {"class": DIFF_CLASSES.get(line[:1], "same")}, f"{line}\n"]
        for line in text.split("\n")
    ]
    return ["pre", {"class": "diff", "tabindex": 0}, ["code", *lines]]


def _linkify_urls(text: str) -> Iterator[MarkdownNode]:
    """Return a text's nodes, with its URLs as links."""
    position = 0
    for match in BARE_URL.finditer(text):
        address = match[0].rstrip(".,:;!?*_~'])")
        if "(" in address and text[match.start() + len(address) :].startswith(")"):
            address += ")"
        yield text[position : match.start()]
        yield _build_anchor(address, address)
        position = match.start() + len(address)
    yield text[position:]
