"""Parses the header of a Markdown file, which defines one of Claude's commands, skills or
subagents.
"""

import re

from shim.core.reading.typed import NamedTuple

# A header line is a field, or continues the field above it. The lines between `---` are the header.
_HEADER = re.compile(r"\ufeff?---[ \t]*\r?\n(.*?)(?:\r?\n)?---[ \t]*(?:\r?\n|$)(.*)", re.DOTALL)
_FIELD = re.compile(r"([A-Za-z][\w-]*):(?:[ \t]+(.*))?$")
_COMMENT = re.compile(r"\s#.*$")
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}

HeaderValue = str | list[str]


class MarkdownFile(NamedTuple):
    """The header fields of a Markdown file, and the text below the header."""

    fields: dict[str, HeaderValue]
    body: str


def parse_markdown_file(text: str) -> MarkdownFile:
    """Split a Markdown file into its header fields and its body. Without a header, the complete
    text is the body.
    """
    match = _HEADER.match(text)
    if match is None:
        return MarkdownFile({}, text)
    return MarkdownFile(parse_header_fields(match[1]), match[2])


def parse_header_fields(header: str) -> dict[str, HeaderValue]:
    """Parse the part of YAML that headers of Markdown files use: one field per line, whose value is
    a text, a list, or a text over several lines.

    A value that is not valid YAML counts as text, as in the real claude. Objects are left out.
    """
    fields: dict[str, HeaderValue] = {}
    lines = header.splitlines()
    position = 0
    while position < len(lines):
        match = _FIELD.match(lines[position])
        position += 1
        if match is None:
            continue
        block = []
        while position < len(lines) and _continues_field(lines[position]):
            block.append(lines[position])
            position += 1
        name, text = match.groups("")
        value = _parse_header_value(text.strip(), block)
        if value is not None:
            fields[name] = value
    return fields


def _continues_field(line: str) -> bool:
    """Return whether a line belongs to the field above it."""
    return not line.strip() or line[0] in " \t-"


def _parse_header_value(text: str, block: list[str]) -> HeaderValue | None:
    """Return the value of a field: its text in the first line, and the lines below it."""
    if text[:1] in ("|", ">"):
        return _join_block(text, block)
    items = [line.strip() for line in block if line.strip()]
    if not text and items and all(item.startswith("-") for item in items):
        return [_parse_scalar(item[1:].strip()) for item in items]
    if _is_list(text):
        return [_parse_scalar(item.strip()) for item in _split_items(text[1:-1])]
    if text.startswith("{"):
        return None
    return _parse_scalar(" ".join((text, *items)).strip())


def _is_list(text: str) -> bool:
    """Return whether a text is one list in brackets. `[file] [level]` is a text."""
    return text.startswith("[") and text.find("]") == len(text) - 1


def _join_block(style: str, block: list[str]) -> str:
    """Join the lines of a text over several lines. `style` begins with `|`, which keeps the line
    breaks, or with `>`.
    """
    indents = [len(line) - len(line.lstrip()) for line in block if line.strip()]
    texts = [line[min(indents, default=0) :].rstrip() for line in block]
    separator = "\n"
    if style[0] == ">":
        separator = " "
    text = separator.join(texts).strip("\n ")
    if style[1:2] == "-":
        return text
    return f"{text}\n"


def _split_items(text: str) -> list[str]:
    """Split the items of a list at commas that are not inside quotes or parentheses."""
    return re.findall(r"""(?:"[^"]*"|'[^']*'|\([^)]*\)|[^,])+""", text)


def _parse_scalar(text: str) -> str:
    """Return a text without its quotes, or without the comment after it."""
    quote = text[:1]
    end = -1
    if quote in ("'", '"'):
        end = text.find(quote, 1)
    if quote == "'" and end > 0:
        return text[1 : text.rindex("'")].replace("''", "'")
    if quote == '"' and end > 0:
        inner = text[1 : text.rindex('"')]
        return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[0]), inner)
    return _COMMENT.sub("", text)
