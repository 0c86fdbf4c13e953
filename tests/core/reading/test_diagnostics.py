"""The diagnostics of a run: bounded, because a vendor's output is untrusted text."""

import pytest
from sweeps import loop_over_rows

from shim.core.reading.diagnostics import MAX_KINDS, OVERFLOW_KIND, Diagnostics
from shim.core.reading.values import MAX_SAMPLE_CHARS, escape_control_chars


def test_repairs_and_unknown_events_are_counted_separately_by_kind():
    diagnostics = Diagnostics()
    diagnostics.record("bom")
    diagnostics.record("bom")
    diagnostics.record_unknown_event("new_event")
    assert diagnostics.repairs == {"bom": 2}
    assert diagnostics.unknown_events == {"new_event": 1}


def test_first_sample_of_a_kind_is_stored():
    diagnostics = Diagnostics()
    diagnostics.record("json", b"first")
    diagnostics.record("json", b"second")
    assert diagnostics.build_report()["repairs"] == {"json": {"count": 2, "first": "first"}}


def test_kind_without_a_sample_reports_only_its_count():
    diagnostics = Diagnostics()
    diagnostics.record("bom")
    assert diagnostics.build_report() == {"repairs": {"bom": {"count": 1}}, "unknown_events": {}}


def test_kinds_over_the_limit_are_counted_as_overflow():
    diagnostics = Diagnostics()
    for number in range(1000):
        diagnostics.record_unknown_event(f"kind{number}", f"sample{number}")
    assert (MAX_KINDS, MAX_SAMPLE_CHARS) == (64, 200)
    assert len(diagnostics.unknown_events) <= MAX_KINDS + 1
    assert len(diagnostics.samples) <= MAX_KINDS + 1
    assert diagnostics.unknown_events[OVERFLOW_KIND] == 1000 - MAX_KINDS
    assert sum(diagnostics.unknown_events.values()) == 1000


def test_recorded_kind_is_counted_after_the_limit_is_reached():
    diagnostics = Diagnostics()
    for number in range(MAX_KINDS):
        diagnostics.record(f"kind{number}")
    diagnostics.record("kind0")
    assert diagnostics.repairs["kind0"] == 2
    assert OVERFLOW_KIND not in diagnostics.repairs


@pytest.mark.parametrize("sample", ["x" * 10_000, b"x" * 10_000, {"x": "y" * 10_000}])
def test_samples_and_kinds_are_truncated_to_200_characters(sample):
    diagnostics = Diagnostics()
    diagnostics.record("k" * 10_000, sample)
    ((kind, count),) = diagnostics.repairs.items()
    assert (len(kind), count) == (MAX_SAMPLE_CHARS, 1)
    assert len(diagnostics.samples[kind]) == MAX_SAMPLE_CHARS


def test_kind_of_any_type_is_converted_to_a_string():
    diagnostics = Diagnostics()
    for kind in (None, 7, ["x"], {"a": 1}, "\ud83d"):
        diagnostics.record_unknown_event(kind)
    assert sum(diagnostics.unknown_events.values()) == 5
    assert all(isinstance(kind, str) for kind in diagnostics.unknown_events)
    "".join(diagnostics.unknown_events).encode("utf-8")


@loop_over_rows(
    ("text", "expected"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x1b]52;c;c2VjcmV0\x07", "\\x1b]52;c;c2VjcmV0\\x07"),
        ("\r\x00\x7f\x9b", "\\x0d\\x00\\x7f\\x9b"),
        ("a\u202eb\u2066c\u200fd\u061c", "a\\u202eb\\u2066c\\u200fd\\u061c"),
        ("a\u2028b\u2029c\x85d", "a\\u2028b\\u2029c\\x85d"),
        ("half \ud83d", "half ?"),
        ("Grüße, 日本", "Grüße, 日本"),
        (b"caf\xe9", "caf\ufffd"),
        (7, "7"),
    ],
)
def test_terminal_control_characters_are_escaped(text, expected):
    """Threat: escape sequences for a terminal, such as OSC 52, and characters that change the text
    direction.
    """
    assert escape_control_chars(text) == expected
