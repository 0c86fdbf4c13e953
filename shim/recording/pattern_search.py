"""Searches recorded texts for the regular expressions and literal texts that a user wants to
redact.

A search that takes too long for one text raises an error. Some expressions double their search time
with each character, and only a time limit can detect them.
"""

import contextlib
import json
import re
import signal
from collections.abc import Iterator, Sequence
from types import FrameType

from shim.core.cast.format import RecordingError
from shim.core.cast.text_joiner import SecretSpan
from shim.core.reading.values import format_single_line

MAX_PATTERNS = 100  # expressions and texts in one search
MAX_PATTERN_CHARS = 1000
MIN_TEXT_CHARS = 4  # a shorter text would match inside too many words
# The time limit for one text of at most a few MB.
# The search for an efficient expression processes 10 MB per second.
SEARCH_TIMEOUT_S = 5.0
PATTERN_PLACEHOLDER = "[REDACTED:pattern]"
TEXT_PLACEHOLDER = "[REDACTED:text]"


class CustomRedactionSearch:
    """Searches for regular expressions and literal texts. The JSON-escaped form of a literal text
    matches too.

    The constructor raises RecordingError if there are too many expressions and texts, or if an
    expression is invalid, is too long or matches the empty text.
    """

    def __init__(self, patterns: Sequence[str], texts: Sequence[str]) -> None:
        if len(patterns) + len(texts) > MAX_PATTERNS:
            raise RecordingError(
                f"{len(patterns) + len(texts)} patterns and texts are too many: at most {MAX_PATTERNS} are allowed"
            )
        self._patterns = [(_compile_pattern(pattern), PATTERN_PLACEHOLDER) for pattern in patterns]
        if texts:
            forms = {form for text in texts for form in _list_json_forms(text)}
            alternatives = "|".join(map(re.escape, sorted(forms, key=len, reverse=True)))
            self._patterns.insert(0, (re.compile(alternatives), TEXT_PLACEHOLDER))

    def __call__(self, text: str) -> list[SecretSpan]:
        signal.setitimer(signal.ITIMER_REAL, SEARCH_TIMEOUT_S)
        try:
            return [
                (match.start(), match.end(), placeholder)
                for pattern, placeholder in self._patterns
                for match in pattern.finditer(text)
                if match.end() > match.start()
            ]
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    @contextlib.contextmanager
    def limit_search_time(self) -> Iterator["CustomRedactionSearch"]:
        """Raise RecordingError if a search inside this context takes too long. The limit only works
        in the main thread.
        """

        def raise_timeout(signal_number: int, frame: FrameType | None) -> None:
            raise RecordingError(
                f"a pattern took more than {SEARCH_TIMEOUT_S:g} seconds for one text",
                hint="avoid nested repetitions such as (a+)+; use limits such as a{1,100}",
            )

        previous_handler = signal.signal(signal.SIGALRM, raise_timeout)
        try:
            yield self
        finally:
            signal.signal(signal.SIGALRM, previous_handler)


def _compile_pattern(pattern: str) -> re.Pattern[str]:
    excerpt = format_single_line(pattern[:60])
    if len(pattern) > MAX_PATTERN_CHARS:
        raise RecordingError(
            f"the pattern {excerpt!r}… has {len(pattern)} characters: at most {MAX_PATTERN_CHARS} are allowed"
        )
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise RecordingError(
            f"{excerpt!r} is not a regular expression: {error}", hint="use --text for literal text"
        ) from None
    if compiled.search("") is not None:
        raise RecordingError(
            f"the pattern {excerpt!r} matches the empty string, so it would match everywhere"
        )
    return compiled


def _list_json_forms(text: str) -> set[str]:
    """Return a text together with its JSON-escaped forms, escaped once and twice. Raise
    RecordingError if the text is too short or too long.
    """
    if not MIN_TEXT_CHARS <= len(text) <= MAX_PATTERN_CHARS:
        excerpt = format_single_line(text[:60])
        raise RecordingError(
            f"the text {excerpt!r} has {len(text)} characters: {MIN_TEXT_CHARS} to {MAX_PATTERN_CHARS} are allowed"
        )
    forms = {text}
    for _ in range(2):
        forms |= {
            json.dumps(form, ensure_ascii=ascii_only)[1:-1]
            for form in forms
            for ascii_only in (True, False)
        }
    return forms
