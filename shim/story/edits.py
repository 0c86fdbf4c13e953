"""The lines that a call changed in a file: from the patch in its result, else from its arguments."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from shim.story.steps import Step
from shim.story.unified_diff import CONTEXT_LINES, WHOLE, diff_of

Sign = Literal[" ", "+", "-", "@"]  # a line that stays, is new, is gone; a place in the file

_EDITORS = ("Edit", "MultiEdit", "Write", "NotebookEdit")
_NEW_FILE = "@@ -0,0 +1,"  # adds nothing to the lines of a new file
_SIGNS: dict[str, Sign] = {" ": " ", "+": "+", "-": "-"}


class DiffLine(NamedTuple):
    """A line of a difference, without its end."""

    sign: Sign
    text: str


def edit_of(step: Step) -> list[DiffLine] | None:
    """The lines of a call's change; None if it edits nothing."""
    if step.name not in _EDITORS:
        return None
    extra = step.extra if isinstance(step.extra, Mapping) else {}
    try:
        return list(_patched(extra)) or list(_asked(step, extra))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _patched(extra: Mapping[str, Any]) -> Iterator[DiffLine]:
    for hunk in extra.get("structuredPatch") or ():
        numbers = [int(hunk[key]) for key in ("oldStart", "oldLines", "newStart", "newLines")]
        yield DiffLine("@", "@@ -{},{} +{},{} @@".format(*numbers))
        for line in hunk["lines"]:
            if line[:1] in _SIGNS:
                yield DiffLine(_SIGNS[line[0]], line[1:])


def _asked(step: Step, extra: Mapping[str, Any]) -> Iterator[DiffLine]:
    """The change as the arguments describe it. Places in the file may be unknown; a gap stands
    between two of them.
    """
    context = WHOLE if step.kind == "question" else CONTEXT_LINES
    difference = diff_of(step.name, step.input, extra.get("originalFile"), context=context)
    for count, line in enumerate(difference.split("\n") if difference else ()):
        if line[:1] in _SIGNS:
            yield DiffLine(_SIGNS[line[0]], line[1:])
        elif line != "@@" and not line.startswith(_NEW_FILE):
            yield DiffLine("@", line)
        elif count:
            yield DiffLine("@", "…")
