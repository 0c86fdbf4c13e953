"""A call that changes a file as a unified diff: lines that begin with `@@`, `+`, `-` or a space."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

# difflib takes quadratic time; a longer change is shown as all old lines, then all new ones.
MAX_COMPARED_LINES = 2000
CONTEXT_LINES = 3
FULL_CONTEXT_LINES = 1_000_000  # lines of context: all that stays is shown, as a question needs it
MAX_EDITS = 200  # of one call; nobody reads more
_EDIT_FIELDS = frozenset(("old_string", "new_string"))


def build_diff(
    name: str,
    arguments: Mapping[str, Any],
    before: Any = None,
    *,
    context_lines: int = CONTEXT_LINES,
) -> str:
    """What Edit, MultiEdit, Write or NotebookEdit change; "" for any other call.

    `before` is the whole old file, if it is known: then the hunks have line numbers.
    """
    before = before if isinstance(before, str) else ""
    hunks: list[str] = []
    if name == "Write" and isinstance(arguments.get("content"), str):
        return "\n".join(_format_hunks(before, arguments["content"], 1, context_lines))
    for old, new in _list_edits(name, arguments):
        found = before.find(old) if old else -1
        line = before.count("\n", 0, found) + 1 if found >= 0 else 0
        hunks += _format_hunks(old, new, line, context_lines)
        before = before.replace(old, new, 1) if found >= 0 else before
    return "\n".join(hunks)


def list_diffed_arguments(name: str, arguments: Mapping[str, Any]) -> frozenset[str]:
    """The arguments that `diff_of` shows all of: none whose value has a part that is in no line of
    the diff.

    A vendor may run what Claude's tool does not know (qwen's `edit` has `old_string` beside
    `edits`), so whoever is asked sees every other argument as it is.
    """
    edits = arguments.get("edits")
    if name in ("Write", "NotebookEdit"):
        key = "content" if name == "Write" else "new_source"
        text = arguments.get(key)
        return frozenset((key,)) if isinstance(text, str) and text else frozenset()
    if name == "Edit" and not edits:
        return (
            _EDIT_FIELDS
            if _is_fully_diffed({key: arguments[key] for key in _EDIT_FIELDS if key in arguments})
            else frozenset()
        )
    if name not in ("Edit", "MultiEdit") or not isinstance(edits, list) or len(edits) > MAX_EDITS:
        return frozenset()
    return frozenset(("edits",)) if all(map(_is_fully_diffed, edits)) else frozenset()


def _is_fully_diffed(edit: object) -> bool:
    """Whether a diff says all of an edit."""
    if (
        not isinstance(edit, Mapping)
        or not set(edit) <= _EDIT_FIELDS
        or not all(isinstance(one, str) for one in edit.values())
    ):
        return False
    return bool(edit.get("old_string", "") != edit.get("new_string", ""))


def _list_edits(name: str, arguments: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    edits = arguments.get("edits")
    if name == "NotebookEdit":
        edits = [{"new_string": arguments.get("new_source")}]
    elif name == "Edit":
        edits = edits or [arguments]
    elif name != "MultiEdit":
        return
    for edit in edits[:MAX_EDITS] if isinstance(edits, list) else ():
        if isinstance(edit, Mapping):
            old, new = edit.get("old_string") or "", edit.get("new_string") or ""
            if isinstance(old, str) and isinstance(new, str):
                yield old, new


def _format_hunks(old: str, new: str, line: int, context: int) -> Iterator[str]:
    """The hunks of one change; `line` is its first line in the file, 0 if unknown."""
    before, after = old.split("\n") if old else [], new.split("\n") if new else []
    if before[-1:] in ([], [""]) and after[-1:] in ([], [""]):
        before, after = before[:-1], after[:-1]
    if max(len(before), len(after)) > MAX_COMPARED_LINES:
        yield "@@"
        yield from (f"-{text}" for text in before)
        yield from (f"+{text}" for text in after)
        return
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=len(before) > 200)
    for group in matcher.get_grouped_opcodes(context):
        yield _format_hunk_header(group, line)
        for tag, old_from, old_to, new_from, new_to in group:
            if tag == "equal":
                yield from (f" {text}" for text in before[old_from:old_to])
                continue
            yield from (f"-{text}" for text in before[old_from:old_to])
            yield from (f"+{text}" for text in after[new_from:new_to])


def _format_hunk_header(group: list[Any], line: int) -> str:
    if not line:
        return "@@"
    first, last = group[0], group[-1]
    begin, end, new_begin, new_end = first[1], last[2], first[3], last[4]
    if end == begin:
        return f"@@ -{line + begin - 1},0 +{line + new_begin},{new_end - new_begin} @@"
    return f"@@ -{line + begin},{end - begin} +{line + new_begin},{new_end - new_begin} @@"
