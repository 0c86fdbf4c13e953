"""`shim cast …`, in this process. The tests check its output, its files, and its exit status."""

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path

import fake_secrets
import pytest
from box import STREAM, Box, Done, run_shim, start_shim
from cast_builder import build_recording, read_cast, stream_of
from fixture_cases import ROOT, find_case

from shim.commands.cast.command import app

COMMANDS = sorted(command.name or command.callback.__name__ for command in app.registered_commands)
INTACT = build_recording([(0.0, "i", b"hello\n")])


@pytest.fixture
def folder(local_box) -> Path:
    """Create a folder with an intact recording, a damaged one and a truncated one."""
    casts = local_box.path / "casts"
    casts.mkdir()
    (casts / "a.cast").write_bytes(INTACT)
    (casts / "b.cast").write_bytes(INTACT.replace(b"hello", b"jello"))
    (casts / "c.cast").write_bytes(INTACT[:-20])
    (casts / "notes.txt").write_text("not a recording", encoding="utf-8")
    return casts


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_has_an_example(shim, command):
    status, stdout, _ = shim("cast", command, "--help")
    assert status == 0
    assert f"Example: shim cast {command}" in stdout.decode()


@pytest.mark.parametrize("args", [(), ("verify",), ("nonsense",), ("verify", "--nope")])
def test_usage_error_exits_with_status_2_without_a_traceback(shim, args):
    status, stdout, complaint = shim("cast", *args)
    assert status == 2
    assert complaint.startswith("error: ") or "Usage: " in stdout.decode() + complaint
    assert "Traceback" not in complaint


# -- verify ----------------------------------------------------------------------------------------


def test_verify_reports_an_intact_recording(shim, folder):
    path = str(folder / "a.cast")
    assert shim("cast", "verify", path) == (0, f"{path}: intact, 3 lines\n".encode(), "")


def test_verify_reports_every_recording_of_a_folder(shim, folder):
    status, stdout, _ = shim("cast", "verify", str(folder))
    assert status == 1
    assert stdout.decode().splitlines() == [
        f"{folder}/a.cast: intact, 3 lines",
        f"{folder}/b.cast: damaged, 3 lines",
        "  lines 1 to 3: damage: the checkpoint of line 3 does not match; nothing after it can be verified",
        f"{folder}/c.cast: cut off, 2 lines",
        "  lines 1 to 3: damage: cut off after line 2: the last checkpoint is missing, "
        "and lines 1 to 2 are not verified",
        "1 intact, 1 damaged, 1 cut off",
    ]


def test_verify_json_reports_states_and_findings(shim, folder):
    status, stdout, _ = shim("cast", "verify", "--json", str(folder), "/nowhere.cast")
    rows = json.loads(stdout)
    assert status == 1
    assert [row["state"] for row in rows] == ["intact", "damaged", "cut off", "unreadable"]
    assert rows[1]["findings"][0] | {"text": ""} == {
        "first": 1, "last": 3, "severity": "damage", "kind": "changed", "text": ""
    }  # fmt: skip
    assert [row["proved"] for row in rows] == [3, 0, 0, 0]


def test_verify_exits_with_status_0_if_the_only_finding_is_a_note(shim, local_box):
    path = local_box.path / "odd.cast"
    path.write_bytes(build_recording([(0.0, "n", {}), (9e6, "n", {})]))
    status, stdout, _ = shim("cast", "verify", str(path))
    assert status == 0
    assert b"intact, 4 lines\n  line 3: note: a pause of 9000000" in stdout


def test_verify_fails_for_a_folder_without_recordings(shim, local_box):
    status, stdout, complaint = shim("cast", "verify", str(local_box.path))
    assert (status, stdout) == (1, b"")
    assert "has no recordings" in complaint


def test_verify_ignores_a_named_pipe_in_a_folder(box, folder):
    os.mkfifo(folder / "pipe.cast")
    assert b"pipe.cast" not in box.run_shim("cast", "verify", str(folder)).stdout


# -- redact ----------------------------------------------------------------------------------------

SECRET = fake_secrets.BARE["github-token"][0]
ACME_ID = "ACME-123456"


def secret_cast(**header) -> bytes:
    """Return a recording with a known secret and a person's own secret in every place, also split
    over lines.
    """
    text_lines = [
        json.dumps({"type": "text", "text": text}).encode() + b"\n"
        for text in (f"an {ACME_ID[:6]}", f"{ACME_ID[6:]} .")
    ]
    return build_recording(
        [
            (0.0, "i", f"my {ACME_ID}\n".encode()),
            (0.1, "s", {"child": 1, "turn": 1, "argv": ["pi", ACME_ID], "cwd": f"/home/{ACME_ID}"}),
            (0.2, "I", f"{ACME_ID}\n".encode()),
            (0.3, "o", json.dumps({"key": SECRET, "own": ACME_ID, ACME_ID: 1}).encode() + b"\n"),
            (0.4, "o", text_lines[0]),
            (0.5, "o", text_lines[1]),
            (0.6, "e", f"\u00fc {ACME_ID} ".encode("latin-1") + b"\n"),
            (0.7, "n", {"kind": "note", "sample": ACME_ID}),
            (0.8, "O", json.dumps({"text": f"{ACME_ID} and {SECRET}"}).encode() + b"\n"),
            (0.9, "x", {"child": 1, "code": 0, "signal": None}),
        ],
        **{"argv": ["-p", f"about {ACME_ID}"], "cwd": f"/home/{ACME_ID}", **header},
    )


@pytest.fixture
def secrets(local_box) -> Path:
    path = local_box.path / "run.cast"
    path.write_bytes(secret_cast())
    return path


def without_chain(data: bytes) -> list[bytes]:
    return [line for line in data.splitlines() if not line.startswith(b'["h"')]


def test_redact_removes_detected_secrets_and_patterns_from_every_stream(shim, secrets):
    output = secrets.with_name("clean.cast")
    before = secrets.read_bytes()
    args = ("--pattern", "ACME-[0-9]{6}", "-o", str(output))
    status, stdout, _ = shim("cast", "redact", str(secrets), *args)
    assert status == 0 and secrets.read_bytes() == before
    clean = output.read_bytes()
    assert SECRET.encode() not in clean and ACME_ID.encode() not in clean
    _, records = read_cast(clean)
    assert ACME_ID[6:].encode() not in stream_of(records, "o"), "also where it was split over lines"
    assert ACME_ID.encode() not in stream_of(records, "e"), "also in base64"
    assert (
        stdout.decode().startswith(f"{output}: ")
        and "github-token" in stdout.decode()
        and "pattern" in stdout.decode()
    )


@pytest.mark.parametrize("kind", fake_secrets.BARE)
def test_every_secret_kind_is_redacted_in_every_stream(shim, local_box, kind):
    path = local_box.path / "run.cast"
    json_text = "".join(
        json.dumps({"text": f"a {secret} b"}) + "\n" for secret in fake_secrets.BARE[kind]
    ).encode()
    plain = "".join(f"plain {secret} text\n" for secret in fake_secrets.BARE[kind]).encode()
    child = {"child": 1, "turn": 1, "argv": ["pi"], "cwd": "/"}
    moments = [
        (0.0, "s", child),
        *((0.1, letter, data) for letter in "iIoOe" for data in (json_text, plain)),
    ]
    path.write_bytes(build_recording(moments))
    status, stdout, _ = shim("cast", "redact", str(path), "--in-place", "--json")
    assert status == 0 and json.loads(stdout)["counts"][kind] >= 10
    _, records = read_cast(path.read_bytes())
    for letter in "iIoOe":
        stream = stream_of(records, letter)
        for secret in fake_secrets.BARE[kind]:
            for line in secret.split("\n"):
                assert len(line) < 12 or line.encode() not in stream


def test_redacted_recording_is_intact_and_preserves_records(shim, secrets):
    output = secrets.with_name("clean.cast")
    assert shim("cast", "redact", str(secrets), "--text", ACME_ID, "-o", str(output))[0] == 0
    assert shim("cast", "verify", str(output))[0] == 0
    reader, records = read_cast(output.read_bytes())
    assert reader.header.swept and reader.header.redact == "casts"
    _, before = read_cast(secrets.read_bytes())
    assert [(record.time_s, record.code) for record in records] == [
        (record.time_s, record.code) for record in before
    ]
    assert output.stat().st_mode & 0o777 == 0o600


def test_recording_is_overwritten_only_if_the_flag_is_set(shim, secrets):
    before = secrets.read_bytes()
    for args in ((), ("--in-place", "-o", str(secrets.with_name("x"))), ("-o", str(secrets))):
        assert shim("cast", "redact", str(secrets), *args)[0] in (1, 2)
        assert secrets.read_bytes() == before
    secrets.chmod(0o644)
    status, stdout, _ = shim("cast", "redact", str(secrets), "--in-place", "--json")
    counts = json.loads(stdout)["counts"]
    assert status == 0 and counts["github-token"] >= 2
    assert SECRET.encode() not in secrets.read_bytes() and ACME_ID.encode() in secrets.read_bytes()
    assert secrets.stat().st_mode & 0o777 == 0o600
    assert os.listdir(secrets.parent).count("run.cast") == 1 and not list(
        secrets.parent.glob("*.tmp")
    )


def test_recording_without_secrets_is_unchanged_by_redact(shim, local_box):
    path, output = local_box.path / "run.cast", local_box.path / "clean.cast"
    path.write_bytes(build_recording([(0.0, "i", b"hello\n")], redact="casts"))
    assert (
        shim("cast", "redact", str(path), "-o", str(output))[1]
        == f"{output}: no secrets found\n".encode()
    )
    assert without_chain(output.read_bytes())[1:] == without_chain(path.read_bytes())[1:]


def test_second_redact_makes_no_changes(shim, secrets):
    first, other = secrets.with_name("one.cast"), secrets.with_name("other.cast")
    shim("cast", "redact", str(secrets), "--text", ACME_ID, "-o", str(first))
    status, stdout, _ = shim("cast", "redact", str(first), "--text", ACME_ID, "-o", str(other))
    assert (status, stdout) == (0, f"{other}: no secrets found\n".encode())
    assert first.read_bytes() == other.read_bytes()


def test_redact_does_not_write_through_links_or_over_files(shim, secrets):
    victim = secrets.with_name("victim")
    victim.write_text("mine", encoding="utf-8")
    symlink, dangling = secrets.with_name("link.cast"), secrets.with_name("dangling")
    symlink.symlink_to(secrets)
    dangling.symlink_to(secrets.with_name("nowhere"))
    before = secrets.read_bytes()
    status, _, complaint = shim("cast", "redact", str(symlink), "--in-place")
    assert status == 1 and "is a link" in complaint
    for target in (victim, dangling):
        status, _, complaint = shim("cast", "redact", str(secrets), "-o", str(target))
        assert status == 1 and "cannot be created" in complaint
    assert victim.read_text(encoding="utf-8") == "mine" and secrets.read_bytes() == before
    assert not secrets.with_name("nowhere").exists() and symlink.is_symlink()


def test_redact_refuses_a_damaged_recording_without_force(shim, secrets):
    secrets.write_bytes(secrets.read_bytes().replace(b"about", b"abuot"))
    output = secrets.with_name("clean.cast")
    status, _, complaint = shim("cast", "redact", str(secrets), "-o", str(output))
    assert status == 1 and "is damaged" in complaint and not output.exists()
    assert shim("cast", "redact", str(secrets), "-o", str(output), "--force")[0] == 0


def test_redact_does_not_overwrite_an_unfinished_recording(shim, secrets):
    secrets.write_bytes(secret_cast()[:-60])
    before = secrets.read_bytes()
    status, _, complaint = shim("cast", "redact", str(secrets), "--in-place")
    assert status == 1 and "still being recorded" in complaint and secrets.read_bytes() == before
    assert shim("cast", "redact", str(secrets), "-o", str(secrets.with_name("clean.cast")))[0] == 0
    assert shim("cast", "redact", str(secrets), "--in-place", "--force")[0] == 0
    assert SECRET.encode() not in secrets.read_bytes()


def test_invalid_redact_pattern_writes_no_file(shim, secrets):
    output = secrets.with_name("clean.cast")
    status, stdout, complaint = shim(
        "cast", "redact", str(secrets), "--pattern", "(", "-o", str(output)
    )
    assert (status, stdout) == (1, b"") and "not a regular expression" in complaint
    assert not output.exists()


def test_redact_pattern_timeout_leaves_the_recording_unchanged(shim, secrets, monkeypatch):
    monkeypatch.setattr("shim.recording.pattern_search.SEARCH_TIMEOUT_S", 0.05)
    secrets.write_bytes(build_recording([(0.0, "i", b"a" * 60 + b"!\n")]))
    before = secrets.read_bytes()
    status, _, complaint = shim("cast", "redact", str(secrets), "--pattern", "(a+)+$", "--in-place")
    assert status == 1 and "took more than" in complaint
    assert secrets.read_bytes() == before and os.listdir(secrets.parent).count("run.cast") == 1


# -- fixture ---------------------------------------------------------------------------------------


def test_fixture_writes_a_case_and_prints_the_remaining_steps(shim, secrets):
    to = secrets.with_name("fixtures")
    args = ("cast", "fixture", str(secrets), "--to", str(to), "--name", "own", "--redact", "casts")
    status, stdout, complaint = shim(*args)
    assert (status, complaint) == (0, "")
    assert stdout.decode().splitlines()[0].startswith(f"wrote {to}/pi/own; ")
    assert "`scenario` and `pins`" in stdout.decode()
    assert sorted(os.listdir(to / "pi" / "own")) == ["case.toml", "claude.ndjson", "vendor.ndjson"]
    assert not any(
        SECRET in path.read_text(errors="replace") for path in (to / "pi" / "own").iterdir()
    )
    assert shim(*args)[0] == 1, "it already exists"


def test_fixture_requires_redact_for_an_unredacted_recording(shim, secrets):
    status, stdout, complaint = shim(
        "cast", "fixture", str(secrets), "--to", str(secrets.with_name("fixtures"))
    )
    assert (status, stdout) == (1, b"")
    assert "recorded without redaction" in complaint and "--redact none" in complaint
    assert (
        shim("cast", "fixture", str(secrets), "--to", str(secrets.parent), "--redact", "some")[0]
        == 2
    )


@pytest.mark.parametrize(
    "name", ["pi/1.5.2-bash", "acai/2026-04-http401", "cursor/handmade-err-auth"]
)
def test_fixture_of_a_recorded_run_matches_the_vendor_output(box, name):
    """Record, verify and extract: the drop-in with a program that prints a fixture, and then the
    fixture again.
    """
    fixture_case = find_case(name)
    path = box.path / "run.cast"
    ended = ["leave", fixture_case.exit.code]
    fake = box.create_fake(
        ["cat", str(fixture_case.folder / "vendor.ndjson")],
        ["complain", fixture_case.stderr],
        ended,
    )
    record = ("--shim-record", str(path))
    box.run_claude(
        "-p",
        "hi",
        *STREAM,
        *record,
        SHIM_VENDOR=fixture_case.vendor,
        SHIM_BIN=fake,
        SHIM_REDACT="none",
    )
    assert box.run_shim("cast", "verify", str(path)).status == 0
    assert (
        box.run_shim(
            "cast", "fixture", str(path), "--to", str(box.path), "--name", "cut", "--redact", "none"
        ).status
        == 0
    )
    folder = box.path / fixture_case.vendor / "cut"
    assert (folder / "vendor.ndjson").read_bytes() == fixture_case.data
    metadata = tomllib.loads((folder / "case.toml").read_text(encoding="utf-8"))
    assert (metadata["exit"], metadata["stderr"]) == (fixture_case.exit.code, fixture_case.stderr)


# -- terminal control sequences, and rich markup ---------------------------------------------------

HOSTILE = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\x1b[38;5;201m[red]evil[/red]\u202e\x9b31m"


@pytest.fixture(params=["piped", "terminal"])
def run_cast(request, box):
    """Run `shim cast …`. Return its status and its visible output without the shim's own
    colours.
    """

    def call(*args: str) -> tuple[int, str]:
        if request.param == "piped":
            done = box.run_shim("cast", *args)
            output = done.stdout.decode() + done.stderr
        else:
            status, output = on_terminal(box, "cast", *args)
            done = Done(status, b"", "")
        assert "\x1b[38;5;201m" not in output and "\x1b[2J" not in output
        output = re.sub("\x1b\\[[0-9;]*m", "", output).replace("\r\n", "\n")
        assert "\n" in output and all(
            character.isprintable() or character == "\n" for character in output
        ), ascii(output)
        return done.status, output

    return call


def on_terminal(box: Box, *args: str) -> tuple[int, str]:
    """Run `shim ARGS` with a terminal for its output, which must be small."""
    ours, its = os.openpty()
    try:
        environment = {**box.build_environment(), "TERM": "xterm-256color", "COLUMNS": "300"}
        done = run_shim(args, stdout=its, stderr=its, env=environment, cwd=box.cwd)
        os.close(its)
        output = b""
        try:
            while chunk := os.read(ours, 65536):
                output += chunk
        except OSError:  # the end of a terminal
            pass
        return done.status, output.decode()
    finally:
        os.close(ours)


@pytest.fixture
def hostile(box) -> str:
    """Write a recording with hostile text in every quoted field, and in its name. Return its
    path.
    """
    path = box.path / "evil[bold]\x1b[38;5;201m\x9b2J.cast"
    started = {
        "child": HOSTILE,
        "turn": HOSTILE,
        "argv": [HOSTILE],
        "cwd": HOSTILE,
        "vendor": HOSTILE,
    }
    ended = {"child": HOSTILE, "code": HOSTILE, "signal": HOSTILE}
    moments = [
        (0.0, "s", started),
        (0.1, "e", HOSTILE.encode()),
        (0.2, "x", ended),
        (0.3, "s", started),
        (0.4, "o", f"{HOSTILE} {SECRET}\n".encode()),
        (0.5, "x", ended),
        (0.6, "n", {"kind": HOSTILE}),
    ]
    header = dict.fromkeys(
        ("vendor", "vendor_version", "cwd", "redact", "started", "shim"), HOSTILE
    )
    path.write_bytes(build_recording(moments, **header, argv=[HOSTILE]))
    return str(path)


def test_verify_escapes_terminal_sequences_and_markup(run_cast, hostile):
    lines = f'[0.1,{json.dumps(HOSTILE)},""]\n{{{HOSTILE}\n{HOSTILE}\n'.encode()
    Path(hostile).write_bytes(build_recording([], end=False) + lines)
    status, output = run_cast("verify", hostile)
    assert status == 1
    assert "[red]evil[/red]" in output and "evil[bold]\\x1b[38;5;201m\\x9b2J.cast" in output


def test_redact_escapes_terminal_sequences_and_markup(run_cast, hostile):
    status, output = run_cast("redact", hostile, "--text", HOSTILE, "-o", f"{hostile}[red].cast")
    assert status == 0
    assert "evil[bold]\\x1b[38;5;201m\\x9b2J.cast[red].cast: " in output
    for args in (("--pattern", f"({HOSTILE}"), ("--text", "[/]")):
        status, output = run_cast("redact", hostile, *args, "--in-place")
        assert status == 1 and ("not a regular expression" in output or "[/]" in output)


def test_fixture_escapes_terminal_sequences_and_markup(run_cast, hostile, box):
    to = f"{box.path}/to [red]\x1b[38;5;201m"
    status, output = run_cast("fixture", hostile, "--to", to, "--redact", "none")
    assert status == 1 and "2 child processes match" in output and "evil[bold]\\x1b" in output
    path = box.path / "one.cast"
    child = {"child": 1, "turn": 1, "argv": [HOSTILE], "cwd": HOSTILE}
    path.write_bytes(
        build_recording(
            [(0.0, "s", child), (0.1, "e", HOSTILE.encode())], vendor_version=HOSTILE, vendor="pi"
        )
    )
    status, output = run_cast("fixture", str(path), "--to", to, "--redact", "none")
    assert status == 0 and "to [red]\\x1b[38;5;201m/pi/one" in output
    case_toml = Path(to, "pi", "one", "case.toml").read_text(encoding="utf-8")
    assert case_toml.replace("\n", "").isprintable()


def test_verify_and_folder_modules_are_not_imported_at_module_level():
    text = (ROOT / "shim" / "commands" / "cast" / "command.py").read_text(encoding="utf-8")
    head = text[: text.index("\napp = ")]
    assert "recording.folders" not in head and "cast.verify" not in head


# -- the reader of the output ----------------------------------------------------------------------


WRITING = (
    ("show",),
    ("show", "--raw"),
    ("export", "--to", "html"),
    ("export", "--to", "otel"),
    ("cast", "list"),
    ("cast", "list", "--json"),
    ("cast", "stats"),
    ("cast", "stats", "--to", "html"),
    ("cast", "verify"),
)


@pytest.mark.parametrize("args", WRITING, ids=" ".join)
def test_full_disk_is_reported_without_a_traceback(args, tmp_path):
    (tmp_path / "a.cast").write_bytes(build_recording([(0.1, "O", b'{"type":"result"}\n' * 2000)]))
    with open("/dev/full", "wb") as full:
        done = run_shim([*args, str(tmp_path / "a.cast")], stdout=full)
    assert (done.status, done.stderr) == (
        1,
        "error: cannot write the output: No space left on device\n",
    )


@pytest.mark.parametrize("args", WRITING, ids=" ".join)
@pytest.mark.parametrize("closed", [(1,), (0, 1, 2)])
def test_command_exits_cleanly_if_stdout_is_closed(args, closed, tmp_path):
    cast = build_recording([(0.1, "O", b"words\n")])
    (tmp_path / "a.cast").write_bytes(cast)
    done = run_shim([*args, str(tmp_path / "a.cast")], closed=closed)
    assert (done.status, done.stdout, done.stderr) == (0, b"", "")
    assert (tmp_path / "a.cast").read_bytes() == cast


@pytest.mark.parametrize("args", WRITING, ids=" ".join)
def test_closed_output_pipe_prints_no_traceback(args, tmp_path):
    (tmp_path / "a.cast").write_bytes(build_recording([(0.1, "O", b'{"type":"result"}\n' * 2000)]))
    with start_shim(
        [*args, str(tmp_path / "a.cast")], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode in (0, 1)


READERS = [
    *(("cast", command) for command in COMMANDS if command != "fixture"),
    ("cast", "fixture", "--to", "fixtures"), ("replay",), ("replay", "--check"), ("show",), ("show", "--raw"),
    ("show", "--follow"), ("export", "--to", "markdown"),
]  # fmt: skip


@pytest.mark.parametrize("args", READERS, ids=" ".join)
def test_pipe_or_device_is_rejected_as_a_recording(box, args):
    os.mkfifo(box.cwd / "pipe")
    added = ("-o", "new.cast") if args[-1] == "redact" else ()
    for path in ("pipe", "/dev/zero"):
        done = box.run_shim(*args, path, *added)
        assert done.status == (0 if args[-1] in ("list", "stats") else 1)
        assert any(
            reason in done.stdout.decode() + done.stderr
            for reason in ("not a regular file", "unreadable")
        )


def test_unreadable_folder_entry_is_reported_and_skipped(box, folder):
    for damaged in "bc":
        (folder / f"{damaged}.cast").unlink()
    (folder / "loop.cast").symlink_to("loop.cast")
    done = box.run_shim("cast", "verify", str(folder))
    assert (done.status, done.stderr) == (
        0,
        f"{folder}/loop.cast is skipped: Too many levels of symbolic links\n",
    )
    assert "intact" in done.stdout.decode() and "loop" not in done.stdout.decode()
    for args in (("cast", "list"), ("cast", "stats"), ("show",)):
        done = box.run_shim(*args, str(folder))
        assert done.status == 0 and done.stdout, done
    replay = box.run_claude("-p", "hi", SHIM_VENDOR="replay", SHIM_REPLAY=str(folder))
    assert "Too many levels" not in replay.stdout.decode()


def test_recording_with_a_byte_order_mark_is_accepted(box, folder):
    path, copy = folder / "a.cast", folder / "copy"
    path.write_bytes(b"\xef\xbb\xbf" + INTACT)
    verification = box.run_shim("cast", "verify", str(path))
    assert (
        verification.status == 0
        and b"intact" in verification.stdout
        and b"byte order mark" in verification.stdout
    )
    assert box.run_shim("show", str(path)).status == 0
    assert (
        box.run_shim("cast", "redact", str(path), "-o", str(copy), "--text", "no such text").status
        == 0
    )
    assert copy.read_bytes().startswith(b'{"shimcast"')
