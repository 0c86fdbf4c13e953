"""The recordings in `fixtures/casts/`: later versions of the format still read, verify and show
them the same way.
"""

import hashlib
from pathlib import Path

import pytest
from cast_builder import read_cast, stream_of
from fixture_cases import FIXTURES
from stream_lines import parse_lines, summarize_lines

from shim.core.cast.format import FORMAT_VERSION
from shim.core.cast.verify import RecordingVerifier
from shim.recording.recording_file import Recording
from shim.story.model import SessionStep
from shim.story.reader import RecordedSessionStepReader

CASTS = FIXTURES / "casts"
# Name → format version and checksum. Every version has files here, and no file is ever changed.
OLD_CASTS = {
    "minimal": (1, "26e775f0049a76d6abd21402fd6135bf938d5933672a334071761d3ca8ef1ba5"),
    "full": (1, "6c1a1e5229dcc2ec1fbbc4d26711e925d6099eaf7d3c1ec0ebd67f42519d19da"),
    "odd": (1, "b4faf65929341c514529a1d9e773ec0de5195a568848e7c8074e72df23533602"),
}


def data_of(name: str) -> bytes:
    return (CASTS / f"{name}.cast").read_bytes()


def verify_recording(name: str) -> RecordingVerifier:
    verifier = RecordingVerifier()
    verifier.feed(data_of(name))
    verifier.close()
    return verifier


def read_steps(name: str) -> list[SessionStep]:
    """Return the steps of a recording."""
    cast = Recording(str(CASTS / f"{name}.cast"))
    teller = RecordedSessionStepReader(cast.header)
    changes = [
        change for record in cast.read_records() for change in teller.feed(record)
    ] + teller.close()
    return [change.step for change in changes if change.phase == "begin"]


def test_table_lists_every_file_and_format_version() -> None:
    assert {path.stem for path in CASTS.glob("*.cast")} == set(OLD_CASTS)
    assert {version for version, _ in OLD_CASTS.values()} == set(range(1, FORMAT_VERSION + 1))


@pytest.mark.parametrize("name", OLD_CASTS)
def test_old_recording_is_unchanged(name: str) -> None:
    assert hashlib.sha256(data_of(name)).hexdigest() == OLD_CASTS[name][1], (
        "an old cast is never written again"
    )


@pytest.mark.parametrize("name", OLD_CASTS)
def test_old_recording_is_readable(name: str) -> None:
    reader, _ = read_cast(data_of(name))
    assert reader.header is not None and reader.header.version == OLD_CASTS[name][0]
    assert (reader.skipped_lines == 0 and reader.has_end) == (name != "odd")


@pytest.mark.parametrize("name", ["minimal", "full"])
def test_intact_old_recording_has_no_findings(name: str) -> None:
    assert verify_recording(name).findings == []


def test_minimal_recording_contains_the_prompt() -> None:
    assert [(step.kind, step.text) for step in read_steps("minimal")] == [("prompt", "hi")]


def test_full_recording_has_every_code_and_a_middle_checkpoint() -> None:
    codes = [
        line.partition(b'"')[2].partition(b'"')[0].decode()
        for line in data_of("full").splitlines()[1:]
    ]
    assert set("iIoOensxh") | {"o-", "ob", "o-b"} <= set(codes)
    assert codes.count("h") == 2 and codes[-1] == "h"


def test_full_recording_preserves_its_bytes() -> None:
    _, records = read_cast(data_of("full"))
    assert stream_of(records, "e").endswith(
        b"no newline behind this " + b"\xe2\x82" + b"Error: \xc3\x28 is no UTF-8\n"
    )
    assert b'{"type":"assistant","uuid":"cut\x00\x01\xfe' in stream_of(records, "o")
    assert [
        (record.fields["code"], record.fields["signal"]) for record in records if record.code == "x"
    ] == [
        (None, "SIGINT"),
        (3, None),
        (0, None),
    ]
    summary = summarize_lines(
        line for line in parse_lines(stream_of(records, "O")) if "control" not in line["type"]
    )
    assert summary[-2:] == ["text:Once more: 18 files.", "end:success Once more: 18 files."]


def test_full_recording_contains_every_step_of_its_session() -> None:
    steps = read_steps("full")
    assert [step.text for step in steps if step.kind == "prompt"] == [
        "write the greeting down, then look at it",
        "count the files, one folder after the other",
        "and now?",
        "once more, please",
    ]
    assert [step.text for step in steps if step.kind == "answer"] == ["allow"]
    assert [(step.name, step.outcome) for step in steps if step.kind == "call"] == [
        ("Write", "ok"),
        ("Bash", "ok"),
        *[("Glob", "failed" if number == 7 else "ok") for number in range(12)],
    ]
    assert len([step for step in steps if step.kind == "result"]) == 4


def test_odd_recording_is_read_with_findings() -> None:
    reader, records = read_cast(data_of("odd"))
    assert reader.header is not None and reader.header.fields["labels"] == ["old"]
    assert b"\xff\xfe no text\n" in stream_of(records, "o") and b"half a line\n" in stream_of(
        records, "o"
    )
    assert {finding.kind for finding in verify_recording("odd").findings} == {
        *(
            "header",
            "changed",
            "cut",
            "comment",
            "unknown_code",
            "base64",
            "time",
            "no_record",
            "not_json",
            "more",
        ),
        "order",
    }
    assert verify_recording("odd").integrity_status == "damaged"


def test_odd_recording_steps_are_readable() -> None:
    assert [(step.kind, step.text) for step in read_steps("odd")][-1] == ("text", "Still here.")
    assert Path(CASTS / "README.md").read_text(encoding="utf-8").count("\n") == 2
