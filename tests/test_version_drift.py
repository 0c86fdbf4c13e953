"""The maintainers' report of new events and fields in recordings (`version_drift.py`)."""

import json

import pytest
from box import ANSWER
from cast_builder import build_case_recording, build_recording
from fixture_cases import find_case
from terminal_injection import BAD, VISIBLE_FRAGMENTS, find_control_characters
from version_drift import find_drift, main

from shim.core.cast.format import RecordingError

NEW = {"type": "thread.archived", "thread_id": "1"}
RICHER = {"type": "turn.started", "weather": {"sun": 1}}


def record(*events, vendor="codex", version="0.170.0"):
    """Return a recording of a child that printed these events."""
    lines = b"".join(
        (event if isinstance(event, bytes) else json.dumps(event).encode()) + b"\n"
        for event in events
    )
    moments = [
        (0.0, "s", {"child": 1, "turn": 1}),
        (0.1, "o", lines),
        (0.2, "x", {"child": 1, "code": 0}),
    ]
    return build_recording(moments, vendor=vendor, vendor_version=version)


@pytest.fixture
def write_casts(tmp_path):
    """Return a function that writes recordings into a folder and returns the folder."""

    def write(**recordings):
        for name, data in recordings.items():
            (tmp_path / f"{name}.cast").write_bytes(data)
        return str(tmp_path)

    return write


def find_single_drift(folder):
    (drift,) = find_drift([folder])
    return drift


def test_new_events_and_fields_are_counted_per_vendor_and_version(write_casts):
    folder = write_casts(
        one=record(NEW, NEW, RICHER),
        two=record(NEW),
        three=record(RICHER, version=None),
        four=build_case_recording(find_case("pi/1.5.2-bash"), vendor_version="1.5.2"),
    )
    drifts = {(drift.vendor, drift.version): drift for drift in find_drift([folder])}
    tested = drifts["codex", "0.170.0"]
    assert len(tested.recordings) == 2
    assert (tested.events, tested.fields) == ({"thread.archived": 3}, {"turn.started: weather": 1})
    unknown = drifts["codex", "unknown"]
    assert (unknown.events, unknown.fields) == ({}, {"turn.started: weather": 1})
    assert not drifts["pi", "1.5.2"].has_news()


def test_events_of_each_child_are_counted_for_its_vendor(write_casts):
    """If the first vendor of a list cannot answer, the same recording also contains a child of the
    next one.
    """
    lines = (json.dumps(NEW) + "\n").encode()
    children = [
        ({"child": 1}, 1),
        ({"child": 2, "vendor": "codex"}, 2),
        ({"child": 3, "vendor": "codex"}, 1),
    ]
    moments = [
        moment
        for fact, count in children
        for moment in ((0.1, "s", fact), (0.2, "o", lines * count))
    ]
    folder = write_casts(one=build_recording(moments, vendor="pi", vendor_version="1.5.2"))
    counts = {
        (drift.vendor, drift.version): (len(drift.recordings), drift.events)
        for drift in find_drift([folder])
    }
    assert counts == {
        ("pi", "1.5.2"): (1, {"thread.archived": 1}),
        ("codex", "unknown"): (1, {"thread.archived": 3}),
    }


def test_every_turn_of_a_conversation_is_read(write_casts):
    init = {"type": "system", "subtype": "init", "session_id": "x", "qwen_code_version": "0.99.0"}
    turn = [
        init,
        {"type": "whim"},
        {"type": "result", "subtype": "success", "is_error": False, "result": "x"},
    ]
    drift = find_single_drift(
        write_casts(one=record(*turn, *turn, *turn, vendor="qwen", version=None))
    )
    assert (drift.version, drift.events) == ("0.99.0", {"whim": 3})


def test_malformed_events_are_counted_as_drift(write_casts):
    drift = find_single_drift(
        write_casts(one=record({"type": "assistant", "message": "no object"}, vendor="qwen"))
    )
    assert drift.malformed == 1


def test_passthrough_vendors_have_no_drift(write_casts):
    folder = write_casts(real=record(NEW, vendor="claude"), demo=record(NEW, vendor="demo"))
    assert find_drift([folder]) == []


def test_recordings_of_an_unknown_vendor_are_ignored(write_casts):
    assert find_drift([write_casts(one=record(NEW, vendor="nobody-here"))]) == []


def test_fields_of_a_very_long_line_are_not_read(write_casts):
    large = {
        "type": "item.completed",
        "item": {"id": "1", "type": "agent_message", "text": "x" * 3_000_000, "new": 1},
    }
    drift = find_single_drift(write_casts(one=record(large, NEW, ANSWER.encode().strip())))
    assert drift.events["thread.archived"] == 1
    assert not any("new" in name for name in drift.fields)


def test_last_line_without_a_newline_is_read(write_casts):
    children = [
        (0.0, "s", {"child": 1}),
        (0.1, "o", json.dumps(NEW).encode()),
        (0.2, "x", {"child": 1, "code": None, "signal": "SIGKILL"}),
        (0.2, "s", {"child": 2}),
        (0.3, "o", json.dumps(RICHER).encode()),
    ]
    drift = find_single_drift(write_casts(one=build_recording(children, vendor="codex")))
    assert (drift.events, drift.fields) == ({"thread.archived": 1}, {"turn.started: weather": 1})


def test_truncated_recording_is_read_to_its_end(write_casts):
    assert find_single_drift(write_casts(torn=record(NEW)[:400])).events == {"thread.archived": 1}


def test_unreadable_recording_raises_an_error(write_casts):
    with pytest.raises(RecordingError):
        find_drift([write_casts(bad=b"not a recording\n")])


# -- the script ------------------------------------------------------------------------------------


def test_script_prints_new_events_and_exits_with_status_1(write_casts, capsys):
    assert main([write_casts(one=record(NEW, RICHER))]) == 1
    assert capsys.readouterr().out == (
        "codex 0.170.0, recordings: 1\n"
        "  events that are not translated: thread.archived (1)\n"
        "  new fields: turn.started: weather (1)\n"
    )


def test_script_succeeds_if_nothing_is_new(write_casts, capsys):
    assert main([write_casts(one=record({"type": "turn.started"}))]) == 0
    assert "nothing is new" in capsys.readouterr().out


def test_script_reports_unreadable_recordings_and_reads_the_others(write_casts, capsys):
    folder = write_casts(bad=b"not a recording\n", good=record({"type": "turn.started"}))
    assert main([folder]) == 1
    printed = capsys.readouterr()
    assert "bad.cast" in printed.err
    assert "nothing is new" in printed.out


def test_directory_without_recordings_is_a_usage_error(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path)])
    assert ended.value.code == 2
    assert "has no recordings" in capsys.readouterr().err


def test_names_from_a_recording_are_printed_without_control_characters(write_casts, capsys):
    main([write_casts(one=record({"type": BAD}, {"type": "turn.started", BAD: 1}, version=BAD))])
    printed = capsys.readouterr().out
    assert find_control_characters(printed) == []
    assert any(form in printed for form in VISIBLE_FRAGMENTS)
