"""`shim export --to asciicast`: the rendered session with its times, for `asciinema play`."""

import os
from pathlib import Path
from typing import Any

import orjson
import pytest
from export_helpers import SECRETS, build_session_with_secret, export_recording
from session_builder import build_full_session

from shim.story.export.asciicast import COLUMNS, write_recording_export


def _export(folder: Path, cast: bytes, **options: Any) -> tuple[dict[str, Any], list[list[Any]]]:
    header, *events = export_recording(write_recording_export, folder, cast, **options).splitlines()
    return orjson.loads(header), [orjson.loads(event) for event in events]


def test_export_has_a_header_and_output_events_of_version_2(tmp_path):
    header, events = _export(tmp_path, build_full_session().build_recording())
    assert (header["version"], header["width"]) == (2, COLUMNS)
    assert header["timestamp"] > 0 and header["idle_time_limit"] > 0
    assert all(kind == "o" for _, kind, _ in events)
    times = [time_s for time_s, _, _ in events]
    assert times == sorted(times) and times[-1] > times[0]


def test_lines_end_with_a_carriage_return_and_have_colors(tmp_path):
    _, events = _export(tmp_path, build_full_session().build_recording())
    output = "".join(text for _, _, text in events)
    assert output.count("\r\n") == output.count("\n") > 10
    assert "\x1b[" in output and "pytest" in output


@pytest.mark.parametrize("secret", SECRETS)
def test_secrets_are_redacted_before_the_session_is_drawn(tmp_path, secret):
    cast = build_session_with_secret(secret)
    _, events = _export(tmp_path, cast, redact=True)
    # A long secret is wrapped, so its lines are compared.
    output = "".join(text for _, _, text in events).replace("\r\n", "").replace(" ", "")
    assert secret[:12].replace(" ", "") not in output
    _, events = _export(tmp_path, cast, redact=False)
    output = "".join(text for _, _, text in events).replace("\r\n", "").replace(" ", "")
    assert secret[:12].replace(" ", "") in output


def test_redacted_copy_is_removed_after_the_export(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    _export(tmp_path, build_full_session().build_recording(), redact=True)
    assert os.listdir(folder) == []


def test_recording_that_was_cut_off_is_exported_up_to_its_end(tmp_path):
    cast = build_full_session().build_recording()
    lines = cast.splitlines(keepends=True)
    _, events = _export(tmp_path, b"".join(lines[: len(lines) // 2]), redact=True)
    assert events
