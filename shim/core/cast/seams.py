"""Finds secrets in texts that come as several strings: the places of the secrets, and the seams
between strings.
"""

import re
from collections import deque

from shim.core.secrets.patterns import BEFORE_CHARACTERS, Pattern
from shim.core.secrets.redactor import START, Stream

SNAPSHOT_LEAST = 16  # characters; two fragments of a text never share so long a beginning

SecretSpan = tuple[int, int, str]  # begin and end of a secret in a text, and its replacement


class _SecretSpans(Stream):
    """Collects the places of a whole text's secrets."""

    __slots__ = ("found",)

    def __init__(self) -> None:
        super().__init__({})
        self.found: list[SecretSpan] = []

    def _behind(self, pattern: Pattern, text: str, hit: re.Match[str]) -> int:
        end = super()._behind(pattern, text, hit)
        self.found.append((hit.end(1) - len(START), end - len(START), pattern.mark))
        return end


def spans(text: str) -> list[SecretSpan]:
    """The secrets of a whole text, in order."""
    stream = _SecretSpans()
    stream.whole(text)
    return stream.found


class Fragment:
    """A string that may hold a piece of a secret: its record, its number there, its text, and what
    is written.
    """

    __slots__ = ("number", "record", "spans", "text", "written")

    def __init__(self, record: int, number: int, text: str, found: list[SecretSpan]) -> None:
        self.record, self.number, self.text, self.spans = record, number, text, found
        self.written = cut_out(text, found)


class Covered:
    """What a string's own secrets cover. Ask for places in ascending order; `reach` is the end of
    the last cover.
    """

    __slots__ = ("_at", "_spans", "reach")

    def __init__(self, found: list[SecretSpan]) -> None:
        self._spans = sorted(found)
        self._at = self.reach = 0

    def has(self, first: int, last: int) -> bool:
        """Whether the place is covered."""
        while self._at < len(self._spans) and self._spans[self._at][0] <= first:
            self.reach = max(self.reach, self._spans[self._at][1])
            self._at += 1
        return last <= self.reach


def cut_out(text: str, found: list[SecretSpan]) -> str:
    """A text with its secrets replaced; secrets that overlap are one."""
    if not found:
        return text
    said, done = list[str](), 0
    for start, end, mark in sorted(found):
        if start >= done:
            said += text[done:start], mark
        done = max(done, end)
    return "".join(said) + text[done:]


class KeyPath:
    """A path of keys.

    `own` replaces the last key if that holds a secret. `named`: it names one. `whole`: its strings
    are whole words.
    """

    __slots__ = ("below", "named", "own", "seam", "whole")

    def __init__(self, own: str | None, *, named: bool, whole: bool) -> None:
        self.own, self.named, self.whole = own, named, whole
        self.below: dict[str, KeyPath] = {}
        self.seam: Seam | None = None


class Seam:
    """The strings under one path, read as one text."""

    __slots__ = ("before", "counts", "entries", "held", "size", "stream")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.stream = Stream(self.counts)
        self.before: deque[str] = deque(maxlen=BEFORE_CHARACTERS)
        self.entries: list[Fragment] = []  # the strings that are still undecided
        self.size = 0
        # a growing text's shorter forms, whose ends may be parts of a secret
        self.held: list[Fragment] = []

    def grows(self, text: str) -> bool:
        """Whether this is the previous text with more behind it."""
        last = self.held[-1].text if self.held else ""
        return SNAPSHOT_LEAST <= len(last) < len(text) and text.startswith(last)

    def pass_by(self, text: str) -> None:
        """A string in which no secret begins came, while the seam was idle; it precedes the next
        one.
        """
        if text:  # an empty id may have marked "" as harmless
            text = text[-BEFORE_CHARACTERS:]
            self.stream.passed(text)
            self.before.append(text)


def count(counts: dict[str, int], mark: str) -> None:
    """Count what a mark stands for, by kind."""
    kind = mark[len("[REDACTED:") : -1]
    counts[kind] = counts.get(kind, 0) + 1
