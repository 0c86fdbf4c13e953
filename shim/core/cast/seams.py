"""Where secrets stand in texts, and the seams between the strings that a text comes in."""

import re
from collections import deque

from shim.core.secrets.patterns import BEFORE_CHARACTERS, Pattern
from shim.core.secrets.redactor import START, Stream

SNAPSHOT_LEAST = 16  # no two fragments begin with so much of the same

Span = tuple[int, int, str]  # where a secret stands in a text, and what is said in its place


class _Spans(Stream):
    """Notes where the secrets of a whole text stand."""

    __slots__ = ("found",)

    def __init__(self) -> None:
        super().__init__({})
        self.found: list[Span] = []

    def _behind(self, pattern: Pattern, text: str, hit: re.Match[str]) -> int:
        end = super()._behind(pattern, text, hit)
        self.found.append((hit.end(1) - len(START), end - len(START), pattern.mark))
        return end


def spans(text: str) -> list[Span]:
    """The secrets of a whole text, in order."""
    stream = _Spans()
    stream.whole(text)
    return stream.found


class Entry:
    """A string that may hold a piece of a secret: where it stands, what it was, what is written of it."""

    __slots__ = ("number", "record", "spans", "text", "written")

    def __init__(self, record: int, number: int, text: str, found: list[Span]) -> None:
        self.record, self.number, self.text, self.spans = record, number, text, found
        self.written = cut_out(text, found)


class Covered:
    """What of a string its secrets have; asked for places one behind the other. `reach` is where the last one ends."""

    __slots__ = ("_at", "_spans", "reach")

    def __init__(self, found: list[Span]) -> None:
        self._spans = sorted(found)
        self._at = self.reach = 0

    def has(self, first: int, last: int) -> bool:
        """Whether one of them has the whole place."""
        while self._at < len(self._spans) and self._spans[self._at][0] <= first:
            self.reach = max(self.reach, self._spans[self._at][1])
            self._at += 1
        return last <= self.reach


def cut_out(text: str, found: list[Span]) -> str:
    """A text without some places; those that touch each other are one."""
    if not found:
        return text
    said, done = list[str](), 0
    for start, end, mark in sorted(found):
        if start >= done:
            said += text[done:start], mark
        done = max(done, end)
    return "".join(said) + text[done:]


class Place:
    """Where a key leads to.

    `own` is what is said for the key where that holds a secret; `named`: it names one; `whole`: its strings are words.
    """

    __slots__ = ("below", "named", "own", "seam", "whole")

    def __init__(self, own: str | None, *, named: bool, whole: bool) -> None:
        self.own, self.named, self.whole = own, named, whole
        self.below: dict[str, Place] = {}
        self.seam: Seam | None = None


class Seam:
    """The strings under one path, read as one text."""

    __slots__ = ("before", "counts", "entries", "held", "size", "stream")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.stream = Stream(self.counts)
        self.before: deque[str] = deque(maxlen=BEFORE_CHARACTERS)
        self.entries: list[Entry] = []  # from the first one that is held back
        self.size = 0
        self.held: list[Entry] = []  # the same text, each time longer, with an end that may become a secret

    def grows(self, text: str) -> bool:
        """Whether this is the text before it once more, with more behind it."""
        last = self.held[-1].text if self.held else ""
        return SNAPSHOT_LEAST <= len(last) < len(text) and text.startswith(last)

    def pass_by(self, text: str) -> None:
        """A string in which nothing begins, while nothing is held back, stands before the next one."""
        if text:  # an empty one may be known as harmless from an id
            text = text[-BEFORE_CHARACTERS:]
            self.stream.passed(text)
            self.before.append(text)


def count(counts: dict[str, int], mark: str) -> None:
    """Count what a mark stands for, by kind."""
    kind = mark[len("[REDACTED:") : -1]
    counts[kind] = counts.get(kind, 0) + 1
