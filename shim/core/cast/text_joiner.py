"""Finds secrets in a single text, and in a text that is joined from several strings. A found secret
is a span: its start, its end, and its replacement.
"""

import re
from collections import deque

from shim.core.secrets.patterns import NAME_CONTEXT_CHARS, SecretPattern
from shim.core.secrets.redactor import TEXT_START, StreamRedactor

# In practice, two fragments of a streamed text never start with the same 16 characters.
MIN_SNAPSHOT_CHARS = 16

SecretSpan = tuple[int, int, str]  # a secret's start and end, and its replacement


class _SecretSpanCollector(StreamRedactor):
    """Collects the spans of all secrets in a complete text."""

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
    """Return the spans of the secrets in a complete text, in order."""
    collector = _SecretSpanCollector()
    collector.redact_full_text(text)
    return collector.spans


class RecordedString:
    """A recorded string that may contain a part of a secret.

    `string_number` is the string's number in its record. `written_text` is the string's text in the
    file after all edits.
    """

    __slots__ = ("record_number", "spans", "string_number", "text", "written_text")

    def __init__(
        self, record_number: int, string_number: int, text: str, spans: list[SecretSpan]
    ) -> None:
        self.record_number = record_number
        self.string_number = string_number
        self.text = text
        self.spans = spans
        self.written_text = replace_secret_spans(text, spans)


class SecretSpanCursor:
    """Reads the spans of a string's own secrets in ascending order. `covered_end` is the end of the
    last span.
    """

    __slots__ = ("_index", "_spans", "covered_end")

    def __init__(self, spans: list[SecretSpan]) -> None:
        self._spans = sorted(spans)
        self._index = self.covered_end = 0

    def is_range_covered(self, start: int, end: int) -> bool:
        """Return whether one of the spans covers a range of the string. The ranges must be passed
        in ascending order.
        """
        while self._index < len(self._spans) and self._spans[self._index][0] <= start:
            self.covered_end = max(self.covered_end, self._spans[self._index][1])
            self._index += 1
        return end <= self.covered_end


def replace_secret_spans(text: str, spans: list[SecretSpan]) -> str:
    """Return a text with its secrets replaced. Overlapping secrets are replaced together."""
    if not spans:
        return text
    parts: list[str] = []
    copied_end = 0
    for start, end, placeholder in sorted(spans):
        if start >= copied_end:
            parts += text[copied_end:start], placeholder
        copied_end = max(copied_end, end)
    return "".join(parts) + text[copied_end:]


class JsonPathNode:
    """A path of JSON keys.

    `redacted_key` replaces the path's last key if that key contains a secret. `names_secret` is
    true if the key's name shows that its value is a secret. `is_token` is true if the strings at
    the path are complete, and never fragments of a text.
    """

    __slots__ = ("children", "is_token", "joiner", "names_secret", "redacted_key")

    def __init__(
        self,
        redacted_key: str | None = None,
        *,
        names_secret: bool = False,
        is_token: bool = False,
    ) -> None:
        self.redacted_key = redacted_key
        self.names_secret = names_secret
        self.is_token = is_token
        self.children: dict[str, JsonPathNode] = {}
        self.joiner: TextJoiner | None = None


class TextJoiner:
    """Joins the strings at one path of JSON keys into a single text."""

    __slots__ = ("chunks", "context", "size_chars", "snapshots", "stream")

    def __init__(self) -> None:
        self.stream = StreamRedactor({})
        self.context: deque[str] = deque(maxlen=NAME_CONTEXT_CHARS)
        self.chunks: list[RecordedString] = []  # strings that may contain a part of a secret
        self.size_chars = 0
        # earlier, shorter versions of a growing text, which may end with a part of a secret
        self.snapshots: list[RecordedString] = []

    def does_text_extend_last_snapshot(self, text: str) -> bool:
        """Return whether a text starts with the last stored text and continues it."""
        last_text = ""
        if self.snapshots:
            last_text = self.snapshots[-1].text
        if not MIN_SNAPSHOT_CHARS <= len(last_text) < len(text):
            return False
        return text.startswith(last_text)

    def add_text_without_secrets(self, text: str) -> None:
        """Add a string in which no secret starts. Only called while `chunks` is empty."""
        if text:  # the cache of safe texts may contain the empty text
            text = text[-NAME_CONTEXT_CHARS:]
            self.stream.record_passed(text)
            self.context.append(text)
