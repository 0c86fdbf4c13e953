"""Any content of a recording: every export is valid or reports that the file is not a recording,
and the list has an entry for it.
"""

import json
from pathlib import Path

import pytest
from atif_schema import check_trajectory
from cast_builder import build_case_recording
from export_helpers import export_recording
from fixture_cases import FIXTURES, find_case
from hypothesis import given
from hypothesis import strategies as st
from sweeps import limit_examples

from shim.adapters import VENDORS
from shim.commands.cast.summary_loader import load_run_summary
from shim.core.cast.format import RecordingError
from shim.story.events import SessionStep, SessionStepChange
from shim.story.export import atif as export_atif
from shim.story.export import ndjson as export_ndjson
from shim.story.export.view_model import SessionExport
from tests.story.export.test_export_otel import spans_of

OLD = sorted((FIXTURES / "casts").rglob("*.cast"))
CASES = (
    "pi/1.5.2-bash",
    "claude/2.1.327-tool-agent",
    "qwen/0.24.4-in-two-turns",
    "cake/2026-07-parallel",
)
CASTS = [build_case_recording(find_case(name)) for name in CASES]
SEEDS = [
    data.encode()
    for data in (
        '"',
        "null",
        "{}",
        "[]",
        "-1",
        "1e400",
        '"\\ud800"',
        "\x1b[31m",
        "\n",
        '"parent_tool_use_id":"x"',
    )
]


def check(folder: Path, cast: bytes) -> None:
    run = load_run_summary(str(_write_recording(folder, cast)))
    json.dumps(run.build_json())
    try:
        export_recording(export_ndjson.write_recording_export, folder, cast)
    except RecordingError as error:
        if run.state == "unreadable":
            return
        assert "did not receive Claude's stream" in str(error)
    for redact in (False, True):
        check_trajectory(
            json.loads(
                export_recording(export_atif.write_recording_export, folder, cast, redact=redact)
            )
        )
        spans_of(folder, cast, redact=redact, content=True)
        if run.vendor in VENDORS:
            export_recording(export_ndjson.write_recording_export, folder, cast, redact=redact)


def _write_recording(folder: Path, cast: bytes) -> Path:
    file = folder / "any.cast"
    file.write_bytes(cast)
    return file


@pytest.mark.parametrize("path", OLD, ids=lambda path: path.name)
def test_every_stored_recording_can_be_exported(path, tmp_path):
    check(tmp_path, path.read_bytes())


def test_stored_recordings_exist():
    assert OLD


@limit_examples(30, full_count=200)
@given(data=st.data())
def test_corrupted_recording_is_exported_or_rejected(data, tmp_path):
    cast = bytearray(data.draw(st.sampled_from(CASTS)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(cast) - 1))
        cast[at : at + data.draw(st.integers(0, 60))] = data.draw(
            st.sampled_from(SEEDS) | st.binary(max_size=4)
        )
    check(tmp_path, bytes(cast[: data.draw(st.just(len(cast)) | st.integers(0, len(cast)))]))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False)
    | st.sampled_from(["", "x", "\u202e", "a" * 99]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "id", "text", "x"]), inner)
    ),
    max_leaves=5,
)


@limit_examples(30, full_count=200)
@given(data=st.data())
def test_recording_with_arbitrary_event_fields_is_exported(data, tmp_path):
    """Replaces values in the lines of the frontend, because a real claude may send values that we
    do not know.
    """
    lines = data.draw(st.sampled_from(CASTS)).split(b"\n")
    line_numbers = [number for number, line in enumerate(lines) if b'"O"' in line[:20]]
    for _ in range(data.draw(st.integers(1, 3))):
        number = data.draw(st.sampled_from(line_numbers))
        record_event = json.loads(lines[number])
        event = json.loads(record_event[2]) if record_event[2].startswith("{") else {}
        places = list(_places(event))
        if places:
            holder, key = data.draw(st.sampled_from(places))
            holder[key] = data.draw(VALUES)
        lines[number] = json.dumps([record_event[0], record_event[1], json.dumps(event)]).encode()
    check(tmp_path, b"\n".join(lines))


def _places(value):
    """Yield every place in a value: its container and its key."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, key
        if isinstance(item, dict | list):
            yield from _places(item)


def test_steps_above_the_size_limit_are_counted_as_omitted():
    session_export = SessionExport(max_chars=0)
    for number in range(3):
        session_export.add_step_change(
            0.0, SessionStepChange("begin", SessionStep(number, "note", 0.0))
        )
    assert (session_export.steps, session_export.omitted_steps) == ([], 3)
