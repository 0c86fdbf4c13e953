"""Formats a tool call that changes a file as a unified diff."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from shim.core.reading.values import as_list, as_str

# difflib takes quadratic time. Longer changes are shown as all old lines, followed by all new lines.
MAX_COMPARED_LINES = 2000
CONTEXT_LINES = 3
FULL_CONTEXT_LINES = 1_000_000  # for permission prompts, whose diffs contain all unchanged lines
MAX_EDITS = 200  # edits per tool call; a person does not read more
_EDIT_FIELDS = frozenset(("old_string", "new_string"))


def build_tool_call_diff(
    tool_name: str,
    tool_input: Mapping[str, Any],
    old_text: Any = None,
    *,
    context_lines: int = CONTEXT_LINES,
) -> str:
    """Return the change of an Edit, MultiEdit, Write or NotebookEdit call as a diff, or "" for
    other calls.

    `old_text` is the file's complete old text, if known. With it, the hunks have line numbers.
    """
    old_text = as_str(old_text)
    hunks: list[str] = []
    if tool_name == "Write" and isinstance(tool_input.get("content"), str):
        return "\n".join(_format_hunks(old_text, tool_input["content"], 1, context_lines))
    for old, new in _list_edits(tool_name, tool_input):
        position = -1
        if old:
            position = old_text.find(old)
        line = 0
        if position >= 0:
            line = old_text.count("\n", 0, position) + 1
        hunks += _format_hunks(old, new, line, context_lines)
        if position >= 0:
            old_text = old_text.replace(old, new, 1)
    return "\n".join(hunks)


def list_arguments_beside_diff(
    tool_name: str, tool_input: Mapping[str, Any], diff: str, max_count: int
) -> list[tuple[str, Any]]:
    """Return the arguments of a tool call that its diff does not show. All arguments beyond
    `max_count` are returned as one argument with the name "…".
    """
    diffed = frozenset[str]()
    if diff:
        diffed = list_fully_diffed_arguments(tool_name, tool_input)
    arguments = [(name, value) for name, value in tool_input.items() if name not in diffed]
    if len(arguments) <= max_count:
        return arguments
    return [*arguments[:max_count], ("…", dict(arguments[max_count:]))]


def list_fully_diffed_arguments(tool_name: str, tool_input: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the arguments that `build_tool_call_diff` shows completely.

    A permission prompt shows all other arguments unchanged. A vendor's tool may have arguments that
    Claude's tool does not have, such as `old_string` beside `edits` in qwen's `edit`.
    """
    edits = tool_input.get("edits")
    if tool_name in ("Write", "NotebookEdit"):
        key = "new_source"
        if tool_name == "Write":
            key = "content"
        text = tool_input.get(key)
        if isinstance(text, str) and text:
            return frozenset((key,))
        return frozenset()
    if tool_name == "Edit" and not edits:
        if _is_fully_diffed({key: tool_input[key] for key in _EDIT_FIELDS if key in tool_input}):
            return _EDIT_FIELDS
        return frozenset()
    if (
        tool_name not in ("Edit", "MultiEdit")
        or not isinstance(edits, list)
        or len(edits) > MAX_EDITS
    ):
        return frozenset()
    if all(map(_is_fully_diffed, edits)):
        return frozenset(("edits",))
    return frozenset()


def _is_fully_diffed(edit: object) -> bool:
    """Return whether the diff shows all of an edit's arguments."""
    if (
        not isinstance(edit, Mapping)
        or not set(edit) <= _EDIT_FIELDS
        or not all(isinstance(text, str) for text in edit.values())
    ):
        return False
    return bool(edit.get("old_string", "") != edit.get("new_string", ""))


def _list_edits(tool: str, tool_input: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    edits = tool_input.get("edits")
    if tool == "NotebookEdit":
        edits = [{"new_string": tool_input.get("new_source")}]
    elif tool == "Edit":
        if not edits:
            edits = [tool_input]
    elif tool != "MultiEdit":
        return
    for edit in as_list(edits)[:MAX_EDITS]:
        if isinstance(edit, Mapping):
            old = as_str(edit.get("old_string"))
            new = as_str(edit.get("new_string"))
            if isinstance(old, str) and isinstance(new, str):
                yield old, new


def _format_hunks(old: str, new: str, first_line: int, context_lines: int) -> Iterator[str]:
    """Format the diff hunks of one change. `first_line` is the line number of the change in the
    file, or 0 if unknown.
    """
    old_lines = []
    if old:
        old_lines = old.split("\n")
    new_lines = []
    if new:
        new_lines = new.split("\n")
    if old_lines[-1:] in ([], [""]) and new_lines[-1:] in ([], [""]):
        old_lines = old_lines[:-1]
        new_lines = new_lines[:-1]
    if max(len(old_lines), len(new_lines)) > MAX_COMPARED_LINES:
        yield "@@"
        yield from (f"-{text}" for text in old_lines)
        yield from (f"+{text}" for text in new_lines)
        return
    matcher = difflib.SequenceMatcher(None, old_lines, new_lines, autojunk=len(old_lines) > 200)
    for group in matcher.get_grouped_opcodes(context_lines):
        yield _format_hunk_header(group, first_line)
        for operation, old_from, old_to, new_from, new_to in group:
            if operation == "equal":
                yield from (f" {text}" for text in old_lines[old_from:old_to])
                continue
            yield from (f"-{text}" for text in old_lines[old_from:old_to])
            yield from (f"+{text}" for text in new_lines[new_from:new_to])


def _format_hunk_header(group: list[Any], first_line: int) -> str:
    if not first_line:
        return "@@"
    first_opcode = group[0]
    last_opcode = group[-1]
    old_start = first_opcode[1]
    old_end = last_opcode[2]
    new_start = first_opcode[3]
    new_end = last_opcode[4]
    if old_end == old_start:
        return (
            f"@@ -{first_line + old_start - 1},0 +{first_line + new_start},{new_end - new_start} @@"
        )
    return f"@@ -{first_line + old_start},{old_end - old_start} +{first_line + new_start},{new_end - new_start} @@"
