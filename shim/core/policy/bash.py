"""Parses a line of shell code into its commands, using tree-sitter's grammar of bash.

The real claude uses the same grammar.
"""

from collections.abc import Iterator
from functools import cache

from shim.core.policy.command_table import CommandRow, get_command_row
from shim.core.policy.policy import split_into_word_set
from shim.core.reading.typed import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

MAX_LINE_BYTES = 100_000  # a longer line is not parsed
MAX_NODES = 20_000
MAX_DEPTH = 200  # deeper syntax nodes are not parsed
LINE_CONTINUATION = "\\\n"

# The node types of lists, pipes and loops of plain commands. A line with only these nodes has no
# effects except those of its commands.
_PLAIN_NODE_TYPES = split_into_word_set("""
    program list pipeline command command_name redirected_statement file_redirect word string raw_string
    string_content number comment file_descriptor concatenation for_statement do_group if_statement
    elif_clause else_clause while_statement test_command variable_name negated_command test_operator
    unary_expression binary_expression herestring_redirect
""")
_LOOP_VARIABLES = split_into_word_set("a b c d e f g h i j k l m n x y z file dir name item")
# The grammar parses these words as command names. In bash, they start a compound command.
_COMPOUND_PREFIXES = (["time"], ["coproc"], ["case"])
_GLOB_CHARACTERS = frozenset("*?[{")
_ARITHMETIC_NODE_TYPES = (
    "((",
    "$((",
    "$[",
    "[",
    "subscript",
    "arithmetic_expansion",
    "c_style_for_statement",
)
_QUOTED_SUBSTITUTIONS = {
    "raw_string": ("$(", "`"),
    "string": ("\\$(", "\\`"),
    "word": ("\\$(", "\\$\\(", "\\`"),
    "ansi_c_string": ("$(", "`", "\\x", "\\u", "\\U", *(f"\\{digit}" for digit in range(8))),
}
MAX_SCRIPT_DEPTH = 5  # the limit for scripts nested in script arguments


class ShellCommand(NamedTuple):
    """One command in a line of shell code."""

    text: str  # the command without the variable assignments before it
    words: tuple[str | None, ...]  # without quotes; None for a word that only the shell knows
    has_assignments: bool = False

    @property
    def name(self) -> str | None:
        """Return the command's name without its folder, or None if only the shell knows the name."""
        if self.words:
            first_word = self.words[0]
        else:
            first_word = ""
        if first_word is None:
            return None
        return first_word.rpartition("/")[2]

    @property
    def row(self) -> CommandRow:
        """Return the command's entry in the table of command effects."""
        return get_command_row(self.name)


class ShellRedirect(NamedTuple):
    """A file that the shell opens for a command, such as the target of `>`."""

    is_write: bool
    path: str | None  # None if only the shell knows the path


class ShellLine(NamedTuple):
    """The commands and redirections in a line of shell code, in the order of its text."""

    parts: tuple[ShellCommand | ShellRedirect, ...]
    is_complete: bool  # true if the complete line was parsed
    # The line has only commands, redirections, lists, pipes and loops. So it has no effects beyond
    # those of its commands.
    is_plain: bool

    @property
    def commands(self) -> tuple[ShellCommand, ...]:
        return tuple(part for part in self.parts if isinstance(part, ShellCommand))


def parse_shell_line(line: str) -> ShellLine:
    """Return the commands and redirections in a line of shell code.

    Commands in substitutions, functions and here-documents are included.
    """
    if LINE_CONTINUATION in line:  # a word may continue on the next line
        joined_line = _parse_line(line.replace(LINE_CONTINUATION, ""))
        separate_line = _parse_line(line)
        return ShellLine(
            joined_line.parts + separate_line.parts,
            joined_line.is_complete and separate_line.is_complete,
            is_plain=False,
        )
    return _parse_line(line)


def _parse_line(line: str, script_depth: int = 0) -> ShellLine:
    """Parse a line of shell code. `script_depth` is the nesting depth of scripts in arguments, and
    0 for the line itself.
    """
    data = line.encode("utf-8", "surrogatepass")
    if len(data) > MAX_LINE_BYTES or b"\0" in data:
        return ShellLine((), is_complete=False, is_plain=False)
    root = _load_parser().parse(data).root_node
    parts: list[ShellCommand | ShellRedirect] = []
    hidden_words: list[str | None] = []  # quoted words with a substitution
    is_complete = not root.has_error
    is_plain = True
    end_offset = 0
    has_arithmetic = False
    for node_count, (node, depth) in enumerate(_walk_nodes(root)):
        if node_count > MAX_NODES or depth > MAX_DEPTH:
            return ShellLine(tuple(parts), is_complete=False, is_plain=False)
        # The grammar skips some characters as blanks or comments, but the shell does not.
        if not node.children:
            skipped_bytes = data[end_offset : node.start_byte].replace(
                LINE_CONTINUATION.encode(), b""
            )
            if skipped_bytes.strip(b" \t\n") or (
                node.type == "comment" and not _can_start_comment(data, node.start_byte)
            ):
                is_complete = False
            end_offset = max(end_offset, node.end_byte)
        if _can_be_misread(node, data):
            is_complete = False
        if not _is_plain_node(node):
            is_plain = False
        if _uses_arithmetic(node):
            has_arithmetic = True
        if _has_quoted_substitution(node):
            hidden_words.append(_resolve_word(node))
        part = _convert_node(node)
        if part is not None:
            parts.append(part)
    if data[end_offset:].strip(b" \t\n"):
        is_complete = False
    for word in hidden_words if has_arithmetic else ():
        if word is None or script_depth >= MAX_SCRIPT_DEPTH:
            is_complete = False
        else:
            inner_line = _parse_line(word, script_depth + 1)
            parts += inner_line.parts
            is_complete &= inner_line.is_complete
    return ShellLine(tuple(parts), is_complete, is_plain and is_complete)


def _can_be_misread(node: "Node", data: bytes) -> bool:
    """Return whether the shell may parse a syntax node differently from the grammar."""
    if node.is_missing:
        return True
    if node.type == "heredoc_end":  # nothing else may be on the delimiter's line
        return data[node.end_byte : node.end_byte + 1] not in (b"", b"\n")
    if node.type == "word":  # a word cannot contain a newline
        return "\n" in _decode_text(node).replace(LINE_CONTINUATION, "")
    # The grammar mistakes the end of the first pattern in a `case` statement for the end of the
    # surrounding node.
    if node.type == "command":
        words = [_decode_text(child) for child in node.named_children]
        if words[:1] not in _COMPOUND_PREFIXES:
            return False
        return "case" in words
    return False


def _is_plain_node(node: "Node") -> bool:
    if node.type in ("&", "|&", "&>", "&>>", "((", "{"):
        return False
    if not node.is_named:
        return True
    if node.type not in _PLAIN_NODE_TYPES:
        return False
    return _is_without_effect(node)


def _uses_arithmetic(node: "Node") -> bool:
    """Return whether bash evaluates any word in a syntax node as arithmetic. During this
    evaluation, bash also runs substitutions in quoted words.
    """
    if node.type == "test_operator":
        return _decode_text(node) in ("-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-v", "-R")
    if node.type in ("command_name", "declare", "typeset", "local", "export", "readonly", "unset"):
        return get_command_row(_decode_text(node)).evaluates_arithmetic
    return node.type in _ARITHMETIC_NODE_TYPES


def _has_quoted_substitution(node: "Node") -> bool:
    """Return whether a quoted word contains a substitution. Bash runs the substitution if it
    evaluates the word as arithmetic.
    """
    if node.type == "concatenation":
        return any(map(_has_quoted_substitution, node.named_children))
    text = _decode_text(node)
    return any(escape in text for escape in _QUOTED_SUBSTITUTIONS.get(node.type, ()))


def _can_start_comment(data: bytes, offset: int) -> bool:
    """Return whether a shell comment may start at an offset: at the start of the line, after a
    blank, or after the end of a command.
    """
    if offset == 0:
        return True
    return data[offset - 1] in b" \t\n;&|()"


def _is_without_effect(node: "Node") -> bool:
    """Return whether a syntax node has no effects beyond those of the commands in it. A loop has
    more effects if it assigns a variable that changes which commands run.
    """
    if node.type == "for_statement":
        variable, *words = (_decode_text(child) for child in node.named_children)
        if variable not in _LOOP_VARIABLES:
            return False
        return all({"[", "$"}.isdisjoint(word) for word in words[:-1])
    if node.type != "test_command":
        return True
    return _decode_text(node).startswith("[ ")


@cache
def _load_parser() -> "Parser":
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


def _walk_nodes(root: "Node") -> "Iterator[tuple[Node, int]]":
    """Yield the nodes of a syntax tree in order, each with its depth. The walk uses no recursion,
    because a line may be deeply nested.
    """
    stack = [(root, 0)]
    while stack:
        node, depth = stack.pop()
        yield node, depth
        stack += [(child, depth + 1) for child in reversed(node.children)]


def _convert_node(node: "Node") -> ShellCommand | ShellRedirect | None:
    if node.type == "command":
        return _build_command(node)
    if node.type in ("declaration_command", "unset_command", "test_command"):
        if node.type == "test_command":
            leaves = [
                child
                for child, _ in _walk_nodes(node)
                if child.is_named and not child.named_children
            ]
            return ShellCommand(_decode_text(node), ("test", *map(_resolve_word, leaves)))
        return ShellCommand(
            _decode_text(node),
            (_decode_text(node.children[0]), *map(_resolve_word, node.named_children)),
        )
    if node.type == "file_redirect":
        operator = next((_decode_text(child) for child in node.children if not child.is_named), "")
        path = node.child_by_field_name("destination")
        if (
            operator in ("<&", ">&")
            and path is not None
            and _decode_text(path).rstrip("-").isdigit()
        ):
            return None  # the redirection's target is a file descriptor, not a file
        return ShellRedirect(
            operator not in ("<", "<&"), None if path is None else _resolve_word(path)
        )
    return None


def _build_command(node: "Node") -> ShellCommand:
    words: list[str | None] = []
    start_offset = node.start_byte
    has_assignments = False
    for child in node.named_children:
        if child.type == "variable_assignment" and not words:
            has_assignments = True
            start_offset = child.end_byte
        elif child.type == "command_name":
            words.append(
                _resolve_word(child.named_children[0])
                if child.named_children
                else _resolve_word(child)
            )
        elif not child.type.endswith("_redirect"):
            words.append(_resolve_word(child))
    text = _decode_text(node, start_offset - node.start_byte).strip()
    return ShellCommand(text, tuple(words), has_assignments)


def _decode_text(node: "Node", start_offset: int = 0) -> str:
    """Return a syntax node's text, without its first `start_offset` bytes."""
    return (node.text or b"")[start_offset:].decode("utf-8", "replace")


def _resolve_word(node: "Node") -> str | None:
    """Return a shell word without its quotes. Return None if only the shell knows its value, as for
    a variable or a glob.
    """
    text = _decode_text(node)
    if node.type == "test_operator":
        return text
    if node.type in ("word", "number"):
        if (
            node.children
            or not _GLOB_CHARACTERS.isdisjoint(text)
            or (text[:1] == "~" and text[1:2] not in ("", "/"))
        ):
            return None
        return _unescape(text)
    if node.type == "raw_string":
        return text[1:-1]
    if node.type == "string":
        if any(child.type != "string_content" for child in node.named_children):
            return None
        return _unescape(text[1:-1], is_quoted=True)
    if node.type in ("concatenation", "command_name"):
        parts = [_resolve_word(child) for child in node.children]
        if None in parts:
            return None
        return "".join(part for part in parts if part is not None)
    return None


def _unescape(text: str, *, is_quoted: bool = False) -> str:
    import re

    text = text.replace("\\\n", "")
    return re.sub(r'\\([$`"\\])' if is_quoted else r"\\(.)", r"\1", text, flags=re.DOTALL)
