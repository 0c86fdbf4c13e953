"""A fixture that is extracted from a recording: the child's bytes and metadata, in a folder that
the tests can use unchanged.
"""

import os
import shutil
import tomllib
from pathlib import Path
from typing import Any

import fake_secrets
import pytest
from cast_builder import build_case_recording, build_recording
from fixture_cases import Case, list_fixture_cases, read_cases, translate_case
from stream_invariants import check_turns
from sweeps import choose_few_cases, loop_over_cases, loop_over_rows

from shim.commands.cast.fixture import (
    MAX_STDIN_BYTES,
    PLACEHOLDER_PREFIX,
    extract_fixture,
    format_toml_value,
)
from shim.core.cast.encoder import CHECKPOINT_LINES
from shim.core.cast.format import RecordingError
from shim.recording.folders import verify_cast_file

SECRET = fake_secrets.BARE["github-token"][0]
ENDED = {"child": 1, "code": 3, "signal": None}
EXTRACTABLE_CASES = (fixture for fixture in list_fixture_cases() if "make" not in fixture.metadata)


def start(child: int = 1, turn: int = 1, **fields: Any) -> dict[str, Any]:
    return {
        "child": child,
        "turn": turn,
        "argv": ["/usr/local/bin/pi", "--mode", "json"],
        "cwd": "/home/user",
        **fields,
    }


def write_cast(tmp_path: Path, data: bytes, name: str = "run.cast") -> str:
    """Write a recording to a file. Return its path."""
    path = tmp_path / name
    path.write_bytes(data)
    return str(path)


def load_case_metadata(folder: str) -> dict[str, Any]:
    return tomllib.loads((Path(folder) / "case.toml").read_text(encoding="utf-8"))


@loop_over_cases(EXTRACTABLE_CASES, quick=choose_few_cases)
def test_fixture_extracted_from_a_recording_equals_the_original(case: Case, tmp_path: Path) -> None:
    fixtures_folder = tmp_path / "fixtures"
    argv = [
        "-p",
        "--output-format",
        "stream-json",
        "--verbose",
        *["--include-partial-messages"] * case.partial,
        "hi",
    ]
    path = write_cast(tmp_path, build_case_recording(case, argv=argv))
    made = extract_fixture(path, str(fixtures_folder), redact="none", name="again")
    (recorded_case,) = read_cases(fixtures_folder)
    assert (recorded_case.name, str(recorded_case.folder), recorded_case.vendor) == (
        f"{case.vendor}/again",
        made.folder,
        case.vendor,
    )
    assert recorded_case.data == case.data
    assert (recorded_case.exit, recorded_case.stderr, recorded_case.partial) == (
        case.exit,
        case.stderr,
        case.partial,
    )
    output, _ = translate_case(recorded_case)
    assert output == recorded_case.golden.read_bytes() == translate_case(case)[0]
    check_turns(output, recorded_case.partial, passthrough=recorded_case.passthrough)
    shutil.rmtree(fixtures_folder)


def test_extract_fixture_closes_all_files(tmp_path: Path) -> None:
    path = write_cast(
        tmp_path, build_recording([(0.0, "s", start()), (0.1, "o", b"{}\n"), (0.2, "x", ENDED)])
    )
    before = set(os.listdir("/dev/fd"))
    extract_fixture(path, str(tmp_path), redact="none")
    assert set(os.listdir("/dev/fd")) == before


def test_case_toml_describes_the_child_and_has_placeholders_for_the_rest(
    tmp_path: Path,
) -> None:
    moments = [
        (0.0, "s", start()),
        (0.1, "I", b"one\n"),
        (0.2, "I", b"two\n"),
        (0.3, "o", b"{}\n"),
        (0.4, "x", ENDED),
    ]
    path = write_cast(tmp_path, build_recording(moments, vendor_version="0.87.1"))
    metadata = load_case_metadata(extract_fixture(path, str(tmp_path), redact="none").folder)
    assert metadata == {
        "source": "recorded",
        "cli": "pi 0.87.1",
        "scenario": metadata["scenario"],
        "pins": metadata["pins"],
        "argv": ["pi", "--mode", "json"],
        "stdin": ["one", "two"],
        "exit": 3,
        "stderr": "",
    }
    assert metadata["scenario"].startswith(PLACEHOLDER_PREFIX) and metadata["pins"].startswith(
        PLACEHOLDER_PREFIX
    )


def test_missing_exit_and_long_stdin_are_reported_as_gaps(tmp_path: Path) -> None:
    moments = [(0.0, "s", start()), (0.1, "I", b"x" * MAX_STDIN_BYTES + b"\n"), (0.2, "o", b"{}\n")]
    path = write_cast(tmp_path, build_recording(moments, end=False))
    metadata = load_case_metadata(extract_fixture(path, str(tmp_path), redact="none").folder)
    assert "exit" not in metadata and "stdin" not in metadata
    assert metadata["gap"].split("; ") == [
        "the recording was cut off",
        "how the program exited is unknown",
        f"the program's stdin ({MAX_STDIN_BYTES + 1} bytes) is omitted",
    ]


def test_child_is_selected_by_number_or_turn(tmp_path: Path) -> None:
    moments = []
    for child, turn in ((1, 1), (2, 2), (3, 2)):
        line = b'{"n":%d}\n' % child
        moments += [
            (child, "s", start(child, turn)),
            (child, "o", line),
            (child, "x", {**ENDED, "child": child}),
        ]
    path = write_cast(tmp_path, build_recording(moments))

    def cut(name: str, **which: int) -> bytes:
        made = extract_fixture(path, str(tmp_path), redact="none", name=name, **which)
        return (Path(made.folder) / "vendor.ndjson").read_bytes()

    assert cut("third", child_number=3) == b'{"n":3}\n'
    assert cut("first", turn_number=1) == b'{"n":1}\n'
    with pytest.raises(
        RecordingError, match=r"2 child processes match; the recording has 1 \(turn 1, 8 bytes\), 2"
    ):
        cut("second", turn_number=2)
    with pytest.raises(RecordingError, match="no child process matches"):
        cut("fourth", child_number=4)
    with pytest.raises(RecordingError, match="3 child processes match"):
        cut("all")
    assert sorted(folder.name for folder in (tmp_path / "pi").iterdir()) == ["first", "third"]


def test_output_after_the_exit_of_the_child_is_omitted(tmp_path: Path) -> None:
    path = write_cast(
        tmp_path, build_recording([*RECORDS, (0.3, "o", b"late\n"), (0.4, "e", b"late\n")])
    )
    made = extract_fixture(path, str(tmp_path), redact="none")
    assert (
        b"late" not in (Path(made.folder) / "vendor.ndjson").read_bytes()
        and load_case_metadata(made.folder)["stderr"] == ""
    )


@pytest.mark.parametrize("where", ["argv", "stdin", "stderr", "vendor_version"])
def test_secrets_are_redacted_in_case_toml(tmp_path: Path, where: str) -> None:
    argv = ["pi", SECRET] if where == "argv" else ["pi"]
    moments = [(0.0, "s", start(argv=argv)), (0.1, "o", b"{}\n"), (0.2, "x", ENDED)]
    if where in ("stdin", "stderr"):
        moments.insert(1, (0.1, "I" if where == "stdin" else "e", f"a {SECRET}\n".encode()))
    version = SECRET if where == "vendor_version" else "1"
    path = write_cast(tmp_path, build_recording(moments, vendor_version=version))
    text = (
        Path(extract_fixture(path, str(tmp_path), redact="casts").folder) / "case.toml"
    ).read_text()
    assert SECRET not in text and "[REDACTED:github-token]" in text


RECORDS = [(0.0, "s", start()), (0.1, "o", b'{"key":"%s"}\n' % SECRET.encode()), (0.2, "x", ENDED)]


def test_unredacted_recording_requires_a_redact_option(tmp_path: Path) -> None:
    path = write_cast(tmp_path, build_recording(RECORDS, redact="none"))
    with pytest.raises(RecordingError, match="recorded without redaction") as error:
        extract_fixture(path, str(tmp_path))
    assert "--redact none" in error.value.hint
    assert not (tmp_path / "pi").exists()
    made = extract_fixture(path, str(tmp_path), redact="none", name="with")
    assert (
        SECRET in (Path(made.folder) / "vendor.ndjson").read_text() and made.redacted_counts == {}
    )
    made = extract_fixture(path, str(tmp_path), redact="casts", name="without")
    assert dict(made.redacted_counts) == {"github-token": 1}
    assert load_case_metadata(made.folder)["gap"] == "1 secret was redacted: 1 github-token"
    assert sorted(file.name for file in Path(made.folder).iterdir()) == [
        "case.toml",
        "claude.ndjson",
        "vendor.ndjson",
    ]
    assert not any(SECRET in file.read_text() for file in Path(made.folder).iterdir())


@pytest.mark.parametrize("kind", ["casts", "all"])
def test_extraction_redacts_secrets_that_the_recording_missed(tmp_path: Path, kind: str) -> None:
    made = extract_fixture(
        write_cast(tmp_path, build_recording(RECORDS, redact=kind)), str(tmp_path)
    )
    assert SECRET not in (Path(made.folder) / "vendor.ndjson").read_text()


def test_existing_fixture_folder_is_not_overwritten(tmp_path: Path) -> None:
    path = write_cast(tmp_path, build_recording(RECORDS))
    (tmp_path / "pi" / "run").mkdir(parents=True)
    with pytest.raises(RecordingError, match="already exists"):
        extract_fixture(path, str(tmp_path), redact="none")
    (tmp_path / "pi" / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RecordingError, match="already exists"):
        extract_fixture(path, str(tmp_path), redact="none", name="link")
    assert not (tmp_path / "elsewhere").exists() and not list((tmp_path / "pi" / "run").iterdir())


def test_damaged_recording_is_rejected(tmp_path: Path) -> None:
    path = write_cast(tmp_path, build_recording(RECORDS).replace(b"key", b"kez"))
    with pytest.raises(RecordingError, match="is damaged"):
        extract_fixture(path, str(tmp_path), redact="none")


def test_damaged_and_truncated_recording_is_rejected(tmp_path: Path) -> None:
    lines = [(0.1, "o", b"{}\n")] * CHECKPOINT_LINES
    data = build_recording([(0.0, "s", start()), *lines], end=False)
    path = write_cast(tmp_path, data.replace(b"/home/user", b"/home/uzer"))
    assert verify_cast_file(path).cut
    with pytest.raises(RecordingError, match="is damaged"):
        extract_fixture(path, str(tmp_path), redact="none")


def test_recording_without_a_child_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="no output of a child process"):
        extract_fixture(write_cast(tmp_path, build_recording([])), str(tmp_path), redact="none")


@pytest.mark.parametrize(
    "name", ["../evil", "/tmp/evil", "-x", "a/b", ".", "..", "a\x1b[31m", "a:b"]
)
def test_case_name_cannot_leave_the_vendor_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(RecordingError, match="is not a valid case name"):
        extract_fixture(
            write_cast(tmp_path, build_recording(RECORDS)), str(tmp_path), redact="none", name=name
        )


@pytest.mark.parametrize("vendor", ["../evil", "/tmp/evil", "", "a/b", ".."])
def test_vendor_name_cannot_leave_the_fixtures_folder(tmp_path: Path, vendor: str) -> None:
    with pytest.raises(RecordingError, match="is not a valid vendor name"):
        extract_fixture(
            write_cast(tmp_path, build_recording(RECORDS, vendor=vendor)),
            str(tmp_path / "to"),
            redact="none",
        )
    assert not (tmp_path / "to").exists()


def test_fixture_of_an_unknown_vendor_has_no_golden_file(tmp_path: Path) -> None:
    made = extract_fixture(
        write_cast(tmp_path, build_recording(RECORDS, vendor="novel")), str(tmp_path), redact="none"
    )
    assert not made.has_golden and sorted(file.name for file in Path(made.folder).iterdir()) == [
        "case.toml",
        "vendor.ndjson",
    ]


def test_partial_fixture_is_removed_after_a_write_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shim.commands.cast.fixture._write_golden", full)
    with pytest.raises(RecordingError, match="cannot be written: No space left"):
        extract_fixture(
            write_cast(tmp_path, build_recording(RECORDS)), str(tmp_path), redact="none"
        )
    assert not list((tmp_path / "pi").iterdir())


@loop_over_rows(
    "value", ["", 'a"b\\c\n\r\t\x00\x1f\x7f\x9f\u2028\u202eü\U0001f600', ["x", "\x7f"], [], 3, True]
)
def test_toml_values_round_trip_and_are_printable(value: object) -> None:
    assert tomllib.loads(f"key = {format_toml_value(value)}\n") == {"key": value}
    assert format_toml_value(value).isprintable()
