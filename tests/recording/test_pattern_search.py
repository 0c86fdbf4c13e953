"""The user's own secrets: patterns and texts, and the limits of a pattern's cost."""

import json
import signal

import pytest

from shim.core.cast.format import RecordingError
from shim.recording import pattern_search as cast_search
from shim.recording.pattern_search import MAX_PATTERN_CHARS, MAX_PATTERNS, CustomRedactionSearch


def find_matches(text: str, *patterns: str, texts: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """Return the matches in a text with their placeholders."""
    return [
        (text[start:end], placeholder)
        for start, end, placeholder in CustomRedactionSearch(patterns, texts)(text)
    ]


def test_pattern_redacts_every_match() -> None:
    matches = find_matches("id ACME-123456 and ACME-654321, not ACME-1", "ACME-[0-9]{6}")
    assert matches == [("ACME-123456", "[REDACTED:pattern]"), ("ACME-654321", "[REDACTED:pattern]")]


def test_literal_text_is_not_interpreted_as_a_pattern() -> None:
    assert find_matches("is it 1.5e3 or 1x5e3?", texts=("1.5e3",)) == [("1.5e3", "[REDACTED:text]")]


def test_longer_of_two_overlapping_texts_is_matched() -> None:
    assert find_matches("moonlight sonata", texts=("moonlight", "moonlight sonata")) == [
        ("moonlight sonata", "[REDACTED:text]")
    ]


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_text_is_matched_in_its_json_escaped_form(depth: int, ascii_only: bool) -> None:
    written = secret = 'a "quoted" M\u00f6nd\n\\'
    for _ in range(depth):
        written = json.dumps(written, ensure_ascii=ascii_only)[1:-1]
    assert find_matches(f"before {written} behind", texts=(secret,)) == [
        (written, "[REDACTED:text]")
    ]


def test_empty_match_redacts_nothing() -> None:
    assert find_matches("abc", "(?=b)|z") == []


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("(", "not a regular expression"),
        ("[", "not a regular expression"),
        ("a{99999999999}", "not a regular expression"),
        ("(?P<x", "not a regular expression"),
        ("x*", "matches the empty string"),
        ("", "matches the empty string"),
        ("a" * (MAX_PATTERN_CHARS + 1), "1001 characters"),
        ("(\x1b[2J[red]", "not a regular expression"),
    ],
)
def test_invalid_pattern_is_rejected_with_a_reason(pattern: str, expected: str) -> None:
    with pytest.raises(RecordingError, match=expected) as error:
        CustomRedactionSearch([pattern], [])
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("text", ["", "abc", "x" * (MAX_PATTERN_CHARS + 1)])
def test_text_that_is_too_short_or_too_long_is_rejected(text: str) -> None:
    with pytest.raises(RecordingError, match="characters"):
        CustomRedactionSearch([], [text])


def test_too_many_patterns_are_rejected() -> None:
    with pytest.raises(RecordingError, match="too many"):
        CustomRedactionSearch(["aaaa"] * MAX_PATTERNS, ["bbbb"])


def test_slow_pattern_times_out_and_restores_the_alarm_signal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cast_search, "SEARCH_TIMEOUT_S", 0.05)
    before = signal.getsignal(signal.SIGALRM)
    with (
        pytest.raises(RecordingError, match="took more than"),
        CustomRedactionSearch(["(a+)+$"], []).limit_search_time() as search,
    ):
        search("a" * 60 + "!")
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_completed_search_clears_its_timer() -> None:
    with CustomRedactionSearch(["a+b"], []).limit_search_time() as search:
        assert search("aab")
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
