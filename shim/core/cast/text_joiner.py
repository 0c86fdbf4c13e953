"""Finds secrets in texts that come as several strings: the places of the secrets, and the seams
between strings.
"""

import re
from collections import deque

from shim.core.secrets.patterns import NAME_CONTEXT_CHARS, SecretPattern
from shim.core.secrets.redactor import TEXT_START, StreamRedactor

MIN_SNAPSHOT_CHARS = 16  # characters; two fragments of a text never share so long a beginning

SecretSpan = tuple[int, int, str]  # begin and end of a secret in a text, and its replacement


class _SecretSpanCollector(StreamRedactor):
    """Collects the places of a whole text's secrets."""

    __slots__ = ("spans",)

    def __init__(self) -> None:
        super().__init__({})
        self.spans: list[SecretSpan] = []

    def _skip_secret(self, pattern: SecretPattern, text: str, match: re.Match[str]) -> int:
        end = super()._skip_secret(pattern, text, match)
        self.spans.append(
            (match.end(1) - len(TEXT_START), end - len(TEXT_START), pattern.placeholder)
        )
        return end


def find_secret_spans(text: str) -> list[SecretSpan]:
    """The secrets of a whole text, in order."""
    collector = _SecretSpanCollector()
    collector.redact_full_text(text)
    return collector.spans


class RecordedString:
    """A string that may hold a piece of a secret: its record, its number there, its text, and what
    is written.
    """

    __slots__ = ("record_number", "spans", "string_number", "text", "written_text")

    def __init__(
        self, record_number: int, string_number: int, text: str, spans: list[SecretSpan]
    ) -> None:
        self.record_number, self.string_number, self.text, self.spans = (
            record_number,
            string_number,
            text,
            spans,
        )
        self.written_text = replace_secret_spans(text, spans)


class SecretSpanCursor:
    """What a string's own secrets cover. Ask for places in ascending order; `covered_end` is the
    end of the last cover.
    """

    __slots__ = ("_index", "_spans", "covered_end")

    def __init__(self, spans: list[SecretSpan]) -> None:
        self._spans = sorted(spans)
        self._index = self.covered_end = 0

    def is_range_covered(self, start: int, end: int) -> bool:
        """Whether the place is covered."""
        while self._index < len(self._spans) and self._spans[self._index][0] <= start:
            self.covered_end = max(self.covered_end, self._spans[self._index][1])
            self._index += 1
        return end <= self.covered_end


def replace_secret_spans(text: str, spans: list[SecretSpan]) -> str:
    """A text with its secrets replaced; secrets that overlap are one."""
    if not spans:
        return text
    parts, copied_end = list[str](), 0
    for start, end, placeholder in sorted(spans):
        if start >= copied_end:
            parts += text[copied_end:start], placeholder
        copied_end = max(copied_end, end)
    return "".join(parts) + text[copied_end:]


class JsonPathNode:
    """A path of keys.

    `redacted_key` replaces the last key if that holds a secret. `names_secret`: it names one.
    `is_token`: its strings are whole words.
    """

    __slots__ = ("children", "is_token", "joiner", "names_secret", "redacted_key")

    def __init__(self, redacted_key: str | None, *, names_secret: bool, is_token: bool) -> None:
        self.redacted_key, self.names_secret, self.is_token = redacted_key, names_secret, is_token
        self.children: dict[str, JsonPathNode] = {}
        self.joiner: TextJoiner | None = None


class TextJoiner:
    """The strings under one path, read as one text."""

    __slots__ = ("chunks", "context", "counts", "size_chars", "snapshots", "stream")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.stream = StreamRedactor(self.counts)
        self.context: deque[str] = deque(maxlen=NAME_CONTEXT_CHARS)
        self.chunks: list[RecordedString] = []  # the strings that are still undecided
        self.size_chars = 0
        # a growing text's shorter forms, whose ends may be parts of a secret
        self.snapshots: list[RecordedString] = []

    def does_text_extend_last_snapshot(self, text: str) -> bool:
        """Whether this is the previous text with more behind it."""
        last_text = self.snapshots[-1].text if self.snapshots else ""
        return MIN_SNAPSHOT_CHARS <= len(last_text) < len(text) and text.startswith(last_text)

    def add_text_without_secrets(self, text: str) -> None:
        """A string in which no secret begins came, while the seam was idle; it precedes the next
        one.
        """
        if text:  # an empty id may have marked "" as harmless
            text = text[-NAME_CONTEXT_CHARS:]
            self.stream.record_passed(text)
            self.context.append(text)


def count_redaction_placeholder(counts: dict[str, int], placeholder: str) -> None:
    """Count what a mark stands for, by kind."""
    kind = placeholder[len("[REDACTED:") : -1]
    counts[kind] = counts.get(kind, 0) + 1
