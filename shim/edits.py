"""What a call changed in a file, by lines: from the patch that Claude adds to its result, else from its arguments."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from shim.steps import Step

Sign = Literal[" ", "+", "-", "@"]  # a line that stays, comes, goes; where in the file the next lines are

COMPARED_LINES = 4000  # of both sides together: comparing more could take as long as it likes
CONTEXT_LINES = 3

_TEXTS = {"Write": "content", "NotebookEdit": "new_source"}  # tools that give a whole text, and where


class Line(NamedTuple):
    """A line of a difference, without its end."""

    sign: Sign
    text: str


def edit_of(step: Step) -> list[Line] | None:
    """The difference that a call makes or made; None of a call that edits nothing."""
    if step.name not in ("Edit", "MultiEdit", *_TEXTS):
        return None
    try:
        return list(_patched(step.extra)) or list(_asked(step.name, step.input))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _patched(extra: Any) -> Iterator[Line]:
    """The lines of a structured patch."""
    for hunk in extra.get("structuredPatch") or () if isinstance(extra, Mapping) else ():
        numbers = [int(hunk[key]) for key in ("oldStart", "oldLines", "newStart", "newLines")]
        yield Line("@", "@@ -{},{} +{},{} @@".format(*numbers))
        for line in hunk["lines"]:
            if line[:1] in ("+", "-", " "):
                yield Line(line[0], line[1:])


def _asked(name: str, arguments: Mapping[str, Any]) -> Iterator[Line]:
    """What the arguments say: texts to be replaced, or a whole text."""
    if name in _TEXTS:
        text = str(arguments.get(_TEXTS[name]) or "").removesuffix("\n")
        yield from (Line("+", line) for line in text.split("\n") if text)
        return
    for count, edit in enumerate(arguments["edits"] if name == "MultiEdit" else [arguments]):
        if count:
            yield Line("@", "…")
        yield from compared(str(edit.get("old_string") or ""), str(edit.get("new_string") or ""))


def compared(old: str, new: str) -> Iterator[Line]:
    """The lines of two texts, those that both have once."""
    if (old.endswith("\n") and (new.endswith("\n") or not new)) or not old:
        old, new = old.removesuffix("\n"), new.removesuffix("\n")
    before, after = old.split("\n") if old else [], new.split("\n") if new else []
    if len(before) + len(after) > COMPARED_LINES:
        yield from (Line("-", line) for line in before)
        yield from (Line("+", line) for line in after)
        return
    for count, line in enumerate(list(difflib.unified_diff(before, after, n=CONTEXT_LINES, lineterm=""))[2:]):
        sign = line[:1]
        if sign == "@":
            if count:  # where it is in the file nobody said
                yield Line("@", "…")
        else:
            yield Line("+" if sign == "+" else "-" if sign == "-" else " ", line[1:])
