"""`shim cast list`: a row for each recording, even a broken one."""

import json
import os
import re

import pytest
import sweeps
from box import run_shim
from cast_builder import HEADER, build_case_recording, build_recording
from export_helpers import (
    SECRETS,
    build_assistant_line,
    build_init_line,
    build_result_line,
    build_session,
    build_tool_result_line,
)
from fixture_cases import find_case
from story_builder import build_text_block, build_tool_use

from tests.program.test_threats import ESCAPES, visible

HEADS = ["when", "vendor", "prompt", "turns", "tools", "lasted", "cost", "outcome", "file"]

# The escape sequences that rich itself writes. A sequence of ESCAPES would match only by chance.
COLORS = re.compile(r"\x1b\[(0|1|2|31|32|33|36)m")


@pytest.fixture
def casts(local_box):
    """Return a function that writes recordings into a folder and returns the folder."""

    def write(**files):
        folder = local_box.path / "casts"
        folder.mkdir(exist_ok=True)
        for name, data in files.items():
            (folder / f"{name}.cast").write_bytes(data)
        return str(folder)

    return write


def build_header(prompt, **header):
    """Return a header for a session with this prompt."""
    return {"argv": [*HEADER["argv"][:-1], "--", prompt], **header}


def rows_of(stdout):
    """Return the lines of a table."""
    head, *lines = stdout.decode().splitlines()
    assert head.split() == HEADS
    return lines


def list_rows(shim, *args):
    status, stdout, complaint = shim("cast", "list", *args, "--json")
    assert (status, complaint) == (0, "")
    return json.loads(stdout)


def test_recording_is_listed_as_a_row_with_its_totals(shim, casts):
    folder = casts(
        one=build_session(
            (0.5, build_init_line()),
            (1.0, build_assistant_line("m1", build_tool_use("a"), build_tool_use("b"))),
            (2.0, build_tool_result_line("a", failed=True)),
            (3.0, build_tool_result_line("b")),
            (4.0, build_result_line(total_cost_usd=0.5, usage={"output_tokens": 7})),
            **build_header("mend it"),
        )
    )
    status, stdout, _ = shim("cast", "list", folder)
    (line,) = rows_of(stdout)
    assert status == 0
    cells = [
        "2026-11-20 10:00",
        "pi",
        "mend it",
        "1",
        "2 (1 ✗)",
        "4.0 s",
        "$0.5000",
        "ok",
        "one.cast",
    ]
    assert [cell.strip() for cell in line.split("  ") if cell.strip()] == cells
    (row,) = list_rows(shim, folder)
    assert (row["turns"], row["calls"], row["failed_calls"], row["cost_usd"]) == (1, 2, 1, 0.5)
    assert (row["state"], row["outcome"], row["tokens"]) == ("whole", "ok", {"output_tokens": 7})
    assert row["duration_s"] == 4.0 and row["file"].endswith("one.cast")


def test_rows_are_sorted_by_start_time(shim, casts):
    ended = build_result_line()
    folder = casts(
        a=build_session((0.0, ended), started="2026-11-20T12:00:00.000Z"),
        b=build_session((0.0, ended), started="2026-11-20T11:00:00.000Z"),
        c=b"nothing\n",
        d=build_session((0.0, ended), started="2025-01-01T00:00:00.000Z"),
    )
    assert [os.path.basename(row["file"])[0] for row in list_rows(shim, folder)] == [
        "d",
        "b",
        "a",
        "c",
    ]


def test_row_reports_the_state_and_outcome_of_a_recording(shim, casts):
    recording = build_session(
        (0.0, build_init_line()),
        (1.0, build_assistant_line("m1", build_text_block("a"))),
        (2.0, build_result_line()),
    )
    failed = build_result_line(is_error=True, shim={"cause": "rate_limit"})
    lines = recording.split(b"\n")
    folder = casts(
        broken=b"\n".join([*lines[:2], b"[0,}", *lines[2:]]),
        cut=recording[: len(recording) - 100],
        failed=build_session((0.0, build_init_line()), (2.0, failed)),
        none=b"",
        other=b"hello\n",
        unended=build_session((0.0, build_init_line())),
        whole=recording,
    )
    os.symlink("/nowhere", os.path.join(folder, "gone.cast"))
    rows = {
        os.path.basename(row["file"])[:-5]: (row["state"], row["outcome"])
        for row in list_rows(shim, folder)
    }
    assert rows == {
        "broken": ("damaged", "ok"),
        "cut": (
            "cut off",
            "ok" if b'"result"' in recording[: len(recording) - 100].rpartition(b"\n")[0] else None,
        ),
        "failed": ("whole", "rate_limit"),
        "none": ("unreadable", None),
        "other": ("unreadable", None),
        "unended": ("whole", None),
        "whole": ("whole", "ok"),
    }
    status, stdout, complaint = shim("cast", "list", folder)
    assert (status, complaint) == (0, "")
    for phrase in (
        "damaged",
        "cut off",
        "rate_limit",
        "unreadable",
        "no turn ended",
        "not a recording",
    ):
        assert phrase in stdout.decode()


@pytest.mark.parametrize("args", [[], ["--output-format", "json"], ["--shim-dialect", "yume"]])
def test_refused_run_is_listed_as_refused(shim, local_box, args):
    """This includes a frontend that received only a sentence, or another dialect."""
    path = str(local_box.path / "one.cast")
    run_shim(["claude", "--shim-vendor", "nobody", "--shim-record", path, *args, "-p", "hello"])
    assert [(row["outcome"], row["prompt"]) for row in list_rows(shim, path)] == [
        ("refused", "hello")
    ]
    drawn = shim("show", path)[1].decode()
    assert "nobody" in drawn and '"type"' not in drawn


def test_missing_file_is_listed_as_unreadable(shim, casts):
    folder = casts(one=build_session((0.0, build_result_line())))
    (missing_row, good_row) = sorted(
        list_rows(shim, f"{folder}/gone.cast", f"{folder}/one.cast"), key=lambda row: row["state"]
    )
    assert missing_row["state"] == "unreadable" and "No such file" in missing_row["problem"]
    assert good_row["state"] == "whole"


@pytest.mark.parametrize("folder", [None, "missing", "empty"])
def test_list_without_recordings_prints_how_to_record(shim, tmp_path, monkeypatch, folder):
    (tmp_path / "empty").mkdir()
    if folder is not None:
        monkeypatch.setenv("SHIM_RECORD", f"{tmp_path}/{folder}/")
    status, stdout, complaint = shim("cast", "list")
    assert (status, complaint) == (0, "")
    assert (
        stdout.decode().startswith("No recordings yet.\n")
        and "shim run --record" in stdout.decode()
    )
    assert shim("cast", "list", "--json")[:2] == (0, b"[]\n")


def test_list_of_a_named_folder_without_recordings_fails(shim, tmp_path):
    status, stdout, complaint = shim("cast", "list", str(tmp_path))
    assert (status, stdout) == (1, b"") and f"{tmp_path} has no recordings" in complaint


def test_list_defaults_to_the_configured_record_folder(shim, casts, local_box, monkeypatch):
    folder = casts(one=build_session((0.0, build_result_line())))
    monkeypatch.setenv("SHIM_RECORD", folder + "/")
    assert len(list_rows(shim)) == 1
    monkeypatch.setenv("SHIM_RECORD", folder + "/one.cast")
    status, _, complaint = shim("cast", "list")
    assert status == 1 and "is not a folder" in complaint
    monkeypatch.delenv("SHIM_RECORD")
    settings = local_box.path / "config.toml"
    settings.write_text(f'record = "{folder}/"\n')
    monkeypatch.setenv("SHIM_CONFIG", str(settings))
    assert len(list_rows(shim)) == 1


def test_long_prompt_is_shortened_to_a_single_line(shim, casts):
    folder = casts(
        one=build_session((0.0, build_result_line()), **build_header("first\nsecond " + "x" * 5000))
    )
    (row,) = list_rows(shim, folder)
    assert row["prompt"].startswith("first second xxx") and len(row["prompt"]) == 200
    (line,) = rows_of(shim("cast", "list", folder)[1])
    assert "…" in line


@pytest.mark.parametrize("terminal", [False, True])
def test_markup_and_escapes_in_a_recording_are_not_interpreted(shim, casts, monkeypatch, terminal):
    hostile_text = f"{ESCAPES} [red]no markup[/red] [link=http://e]x"
    failed = build_result_line(is_error=True, shim={"cause": hostile_text})
    folder = casts(
        one=build_session(
            (0.0, build_init_line(model=hostile_text)),
            (1.0, failed),
            **build_header(hostile_text, vendor=hostile_text, started=hostile_text),
        ),
        two=f"{hostile_text}\n".encode(),
    )
    os.rename(
        os.path.join(folder, "two.cast"),
        os.path.join(folder, f"two\n{ESCAPES.replace('/', '')}.cast"),
    )
    if terminal:
        monkeypatch.setattr("shim.story.terminal.console.Console", _terminal())
    table = shim("cast", "list", folder)[1].decode()
    table = COLORS.sub("", table)
    visible(table)
    assert "[red]no markup" in table and len(table.splitlines()) == 3


def _terminal():
    """Return rich's Console for a wide terminal."""
    from rich.console import Console

    return lambda **options: Console(**{"force_terminal": True, "width": 400, **options})


@pytest.mark.parametrize("columns", [40, 60, 80, 120, 250])
def test_table_fits_the_terminal_width(shim, casts, monkeypatch, columns):
    folder = casts(
        one=build_case_recording(find_case("pi/1.5.2-bash"), **build_header("please " * 40)),
        two=build_recording([], vendor="a-vendor-with-a-long-name"),
        three=b"nothing\n",
    )
    monkeypatch.setattr(
        "shim.story.terminal.console.Console",
        lambda **options: _terminal()(**options | {"width": columns, "no_color": True}),
    )
    table = shim("cast", "list", folder)[1].decode()
    lines = [COLORS.sub("", line) for line in table.splitlines()]
    assert len(lines) == 4 and all(len(line) <= columns for line in lines)
    if columns >= 60:
        assert all("…" not in line[:11] for line in lines), "a name may be cut, a time is not"
    if columns >= 100:
        assert "please please" in "".join(lines)


@pytest.mark.parametrize("secret", SECRETS[:5])
def test_secret_in_a_prompt_is_redacted(shim, casts, secret):
    folder = casts(
        one=build_session((0.0, build_result_line()), **build_header(f"use {secret} now"))
    )
    for args in ((), ("--json",)):
        assert secret.encode() not in shim("cast", "list", folder, *args)[1]


def named_by(secret):
    """Return a session with this secret in everything that has a name."""
    failed = build_result_line(
        is_error=True, shim={"cause": f"c {secret} c", "repairs": {f"r {secret} r": 1}}
    )
    moments = (
        (0.0, build_init_line(model=f"m {secret} m")),
        (1.0, build_assistant_line("m1", build_tool_use("a", f"t {secret} t"))),
        (2.0, failed),
    )
    return build_session(*moments, vendor=f"v {secret} v", vendor_version=f"1 {secret}")


WHERE = (("list",), ("list", "--json"), ("stats",), ("stats", "--json"), ("stats", "--to", "html"))


@pytest.mark.parametrize("args", WHERE, ids=" ".join)
def test_secret_in_a_name_is_redacted_in_lists_and_statistics(shim, casts, args):
    # Few enough that no table is truncated.
    groups = [SECRETS[at : at + 5] for at in range(0, len(SECRETS), 5)]
    if not sweeps.full:
        groups = groups[WHERE.index(args) % 2 :: 2]
    for secrets in groups:
        folder = casts(
            **{f"cast{number}": named_by(secret) for number, secret in enumerate(secrets)}
        )
        status, stdout, _ = shim("cast", *args, folder)
        assert status == 0 and [secret for secret in secrets if secret in stdout.decode()] == []
