"""Finds the lines that a tool call changed in a file. The change is read from the patch in the tool
result, or from the call's arguments.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from shim.core.reading.values import as_dict
from shim.story.diff import CONTEXT_LINES, FULL_CONTEXT_LINES, build_tool_call_diff
from shim.story.events import SessionStep

DiffSign = Literal[" ", "+", "-", "@"]  # unchanged, added, removed; "@" is a position

_EDIT_TOOLS = ("Edit", "MultiEdit", "Write", "NotebookEdit")
_NEW_FILE_HUNK = "@@ -0,0 +1,"  # how the hunk header of a new file starts; this header is not shown
_LINE_SIGNS: dict[str, DiffSign] = {" ": " ", "+": "+", "-": "-"}


class DiffLine(NamedTuple):
    """A line of a diff, without its line break."""

    sign: DiffSign
    text: str


def find_edit_diff_lines(step: SessionStep) -> list[DiffLine] | None:
    """Return the diff lines of a tool call, or None if the call does not edit a file."""
    if step.name not in _EDIT_TOOLS:
        return None
    extra = as_dict(step.extra)
    try:
        return list(_list_patch_lines(extra)) or list(_list_argument_diff_lines(step, extra))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _list_patch_lines(extra: Mapping[str, Any]) -> Iterator[DiffLine]:
    for hunk in extra.get("structuredPatch") or ():
        numbers = [int(hunk[key]) for key in ("oldStart", "oldLines", "newStart", "newLines")]
        yield DiffLine("@", "@@ -{},{} +{},{} @@".format(*numbers))
        for line in hunk["lines"]:
            if line[:1] in _LINE_SIGNS:
                yield DiffLine(_LINE_SIGNS[line[0]], line[1:])


def _list_argument_diff_lines(step: SessionStep, extra: Mapping[str, Any]) -> Iterator[DiffLine]:
    """Return the diff lines of the change that the arguments describe. A gap line separates two
    edits, because their positions in the file may be unknown.
    """
    context_lines = CONTEXT_LINES
    if step.kind == "question":
        context_lines = FULL_CONTEXT_LINES
    difference = build_tool_call_diff(
        step.name, step.input, extra.get("originalFile"), context_lines=context_lines
    )
    for index, line in enumerate(difference.split("\n") if difference else ()):
        if line[:1] in _LINE_SIGNS:
            yield DiffLine(_LINE_SIGNS[line[0]], line[1:])
        elif line != "@@" and not line.startswith(_NEW_FILE_HUNK):
            yield DiffLine("@", line)
        elif index:
            yield DiffLine("@", "…")
