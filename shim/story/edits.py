"""What a call changed in a file, by lines: from the patch that Claude adds to its result, else from its arguments."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from shim.story.steps import Step
from shim.story.unified_diff import diff_of

Sign = Literal[" ", "+", "-", "@"]  # a line that stays, comes, goes; where in the file the next lines are

_EDITORS = ("Edit", "MultiEdit", "Write", "NotebookEdit")
_NEW_FILE = "@@ -0,0 +1,"  # says nothing that its lines do not say
_SIGNS: dict[str, Sign] = {" ": " ", "+": "+", "-": "-"}


class Line(NamedTuple):
    """A line of a difference, without its end."""

    sign: Sign
    text: str


def edit_of(step: Step) -> list[Line] | None:
    """The difference that a call makes or made; None of a call that edits nothing."""
    if step.name not in _EDITORS:
        return None
    extra = step.extra if isinstance(step.extra, Mapping) else {}
    try:
        return list(_patched(extra)) or list(_asked(step, extra))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _patched(extra: Mapping[str, Any]) -> Iterator[Line]:
    """The lines of a structured patch."""
    for hunk in extra.get("structuredPatch") or ():
        numbers = [int(hunk[key]) for key in ("oldStart", "oldLines", "newStart", "newLines")]
        yield Line("@", "@@ -{},{} +{},{} @@".format(*numbers))
        for line in hunk["lines"]:
            if line[:1] in _SIGNS:
                yield Line(_SIGNS[line[0]], line[1:])


def _asked(step: Step, extra: Mapping[str, Any]) -> Iterator[Line]:
    """What the arguments say. Where in the file that is may be unknown; then two places have a gap between them."""
    difference = diff_of(step.name, step.input, extra.get("originalFile"))
    for count, line in enumerate(difference.split("\n") if difference else ()):
        if line[:1] in _SIGNS:
            yield Line(_SIGNS[line[0]], line[1:])
        elif line != "@@" and not line.startswith(_NEW_FILE):
            yield Line("@", line)
        elif count:
            yield Line("@", "…")
