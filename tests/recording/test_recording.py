"""Recordings of every kind of run with every kind of end, by real processes: a recording equals
what happened.
"""

import json
import resource
import select
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from box import (
    ANSWER,
    ASK,
    CONVERSE,
    END,
    SHIM,
    START,
    STREAM,
    TIMEOUT_S,
    Running,
    build_text_event,
    format_ndjson,
)
from cast_builder import read_cast, stream_of
from fake_secrets import SECRETS, generate_secret
from fixture_cases import FIXTURES

from shim.adapters import get_adapter
from shim.core.cast.format import STREAMS, RecordingHeader, RecordingRecord
from shim.core.cast.verify import verify_recording
from shim.process import probe
from shim.process.probe import create_program_probe
from shim.recording.recorded_run import load_recorded_run
from shim.state.config import VendorSettings
from tests.conversation.test_conversation import IDLE, user
from tests.conversation.test_conversation import request as control
from tests.conversation.test_passthrough_loop import ANSWER as REPLY
from tests.conversation.test_passthrough_loop import TURN
from tests.conversation.test_persistent_driver import (
    ASKING,
    HELLO,
    answer,
    asks,
    calls,
    question,
    result,
    returns,
    says,
)
from tests.conversation.test_persistent_driver import INIT as QWEN
from tests.program.test_abnormal_exits import standin
from tests.program.test_process import BROKEN

SESSION = "7f1c2f4e-0000-4000-8000-0000000000aa"
SECRET = f"sk-ant-api03-{generate_secret(80)}"
FULL = (
    # The free bytes of the disk: fewer than the recordings need, and more than the state needs.
    20_000
)


class Recorded:
    """A loaded recording: its header, its records and its streams."""

    def __init__(self, path: Path, *, is_complete: bool = True) -> None:
        self.path = path
        self.data = path.read_bytes()
        with path.open("rb") as file:
            verified = verify_recording(lambda: file.read(65536))
        assert not is_complete or not [
            finding for finding in verified.findings if finding.severity == "damage"
        ]
        reader, self.records = read_cast(self.data)
        assert (
            reader.header is not None
            and (reader.has_end or not is_complete)
            and not reader.skipped_lines
        )
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        self.header: RecordingHeader = reader.header

    def stream(self, letter: str) -> bytes:
        return stream_of(self.records, letter)

    def select_records(self, letter: str) -> list[RecordingRecord]:
        return [record for record in self.records if record.code == letter]

    def notes(self, kind: str) -> list[dict]:
        return [
            dict(record.fields)
            for record in self.select_records("n")
            if record.fields["kind"] == kind
        ]

    @property
    def order(self) -> str:
        """The codes of the records. Repeated codes appear once."""
        letters = [record.code for record in self.records if record.code != "n"]
        return "".join(
            letter
            for letter, before in zip(letters, ["", *letters], strict=False)
            if letter != before
        )


@pytest.fixture
def folder(box):
    """Return the folder for the recordings of a test."""
    return box.path / "casts"


@pytest.fixture
def casts(folder):
    """Return a function that loads the recordings in their order."""
    return lambda **options: [Recorded(path, **options) for path in sorted(folder.iterdir())]


@pytest.fixture
def ask(box, folder):
    """Return a function that runs a turn of one message, recorded without redaction."""

    def run(child, *args, vendor="demo", **environment):
        environment = {"SHIM_REDACT": "none", "SHIM_RECORD": f"{folder}/"} | environment
        return box.run_claude(*(args or ASK), SHIM_VENDOR=vendor, SHIM_BIN=child, **environment)

    return run


@pytest.fixture
def talk(box, folder):
    """Return a function that starts a recorded conversation."""
    return partial(
        box.start_conversation, vendor="demo", SHIM_REDACT="none", SHIM_RECORD=f"{folder}/"
    )


# -- what happened ---------------------------------------------------------------------------------


def test_print_mode_recording_contains_header_streams_start_and_exit(box, ask, casts):
    done = ask(box.create_fake(["read"], ["complain", "a warning\n"], ["out", ANSWER]))
    (cast,) = casts()
    assert (cast.stream("o"), cast.stream("O")) == (ANSWER.encode(), done.stdout)
    assert (cast.stream("I"), cast.stream("e"), cast.stream("i")) == (b"hi", b"a warning\n", b"")
    header = cast.header
    assert (header.vendor, header.argv, header.cwd, header.redact) == (
        "demo",
        ASK,
        str(box.cwd),
        "none",
    )
    assert (header.dialect, header.platform, header.swept) == ("claude", sys.platform, False)
    assert header.fields["env"] == {"LANG": "C.UTF-8", **dict.fromkeys(_ours())}
    (start,), (end,) = cast.select_records("s"), cast.select_records("x")
    assert (start.fields["child"], start.fields["turn"], start.fields["cwd"]) == (
        1,
        1,
        str(box.cwd),
    )
    assert end.fields == {"child": 1, "code": 0, "signal": None}
    assert cast.order.startswith("sI") and cast.order.index("x") > cast.order.rindex("o")
    assert cast.path.name.startswith(header.started.translate(str.maketrans("", "", "-:."))[:15])
    assert cast.path.name.split("-")[1] == "demo"


def test_vendor_version_is_recorded_and_probed_only_once(box, ask, casts, monkeypatch):
    monkeypatch.setattr(probe, "PROBE_TIMEOUT_S", 30)
    calls_file = box.path / "said"
    program = box.write_program(
        "own-pi", f'echo "$@" >> {calls_file}; [ "$1" = --version ] && echo 0.87.1; exit 0\n'
    )
    ask(program, vendor="pi")
    environment = box.build_environment(SHIM_BIN=program)
    assert (
        create_program_probe(
            get_adapter("pi"), VendorSettings(), environment, str(box.cwd)
        ).ask_version(get_adapter("pi").version_probe)
        == "0.87.1"
    )
    probe_count = calls_file.read_text(encoding="utf-8").count("--version")
    ask(program, vendor="pi")
    assert calls_file.read_text(encoding="utf-8").count("--version") == probe_count == 1
    assert sorted(str(cast.header.vendor_version) for cast in casts()) == ["0.87.1", "None"]


def test_recording_has_no_version_if_the_program_is_missing(box, ask, casts):
    ask("/nowhere", vendor="pi")
    assert [cast.header.vendor_version for cast in casts()] == [None]


def _ours():
    return ("SHIM_BIN", "SHIM_RECORD", "SHIM_REDACT", "SHIM_STATE", "SHIM_VENDOR")


@pytest.mark.parametrize(
    "case", ["pi/0.87-reasoning", "qwen/0.24.4-tool", "cursor/tools", "acai/tools"]
)
def test_child_output_is_recorded_byte_for_byte(box, ask, casts, case):
    data = FIXTURES / case / "vendor.ndjson"
    if not data.exists():
        data = next((FIXTURES / case.partition("/")[0]).glob("*/vendor.ndjson"))
    done = ask(box.create_fake(["cat", str(data)]), vendor=case.partition("/")[0])
    (cast,) = casts()
    assert (cast.stream("o"), cast.stream("O")) == (data.read_bytes(), done.stdout)


def test_invalid_json_and_binary_output_is_recorded_exactly_with_repairs(box, ask, casts):
    path = box.path / "broken"
    path.write_bytes(format_ndjson(START).encode() + BROKEN + b"\x00\xff no end")
    done = ask(box.create_fake(["cat", str(path)]))
    (cast,) = casts()
    assert (cast.stream("o"), cast.stream("O")) == (path.read_bytes(), done.stdout)
    repairs = {note["repair"]: note["count"] for note in cast.notes("repair")}
    assert repairs == done.result["shim"]["repairs"] and repairs["not_json"]


def test_large_lines_and_streams_are_recorded_exactly(box, ask, casts):
    path = box.path / "large"
    lines = [
        format_ndjson(START),
        format_ndjson(build_text_event("x" * 3_000_000)),
        format_ndjson(build_text_event("ü" * 700_000)),
        format_ndjson(build_text_event("y")) * 20_000,
    ]
    path.write_text("".join([*lines, format_ndjson(END)]), encoding="utf-8")
    done = ask(box.create_fake(["cat", str(path)]))
    (cast,) = casts()
    assert done.status == 0 and (cast.stream("o"), cast.stream("O")) == (
        path.read_bytes(),
        done.stdout,
    )


@pytest.mark.parametrize("args", [("-p", "hi"), ("-p", "hi", "--output-format", "json"),
                                   ("-p", "hi", "--output-format", "json", "--verbose")])  # fmt: skip
def test_stdout_of_text_and_json_output_is_recorded(box, ask, casts, args):
    done = ask(box.create_fake(["out", ANSWER]), *args)
    (cast,) = casts()
    assert done.stdout and cast.stream("O") == done.stdout


@pytest.mark.parametrize("args", [["--output-format", "text"], ["--output-format", "json"], STREAM])
def test_result_note_is_recorded_in_every_output_format(box, ask, casts, args):
    """The child sends its result but does not exit, so the shim ends it with a signal."""
    box.write_settings("end_grace = 0.2\n")
    ask(box.create_fake(["out", ANSWER], ["hang"]), "-p", "hi", *args)
    (cast,) = casts()
    (note,) = cast.notes("result")
    assert (note["turn"], note["result"]["is_error"], note["result"]["shim"]["cause"]) == (
        1,
        False,
        "clean",
    )
    assert note["result"]["duration_ms"] > 0 and "result" not in note["result"]
    (signal_note,), (end,) = cast.notes("signal"), cast.select_records("x")
    assert (
        signal_note["child"] == end.fields["child"] == 1
        and end.fields["signal"] == signal_note["signal"]
    )
    assert load_recorded_run(str(cast.path)).children[0].was_stopped is False


def test_prompt_from_a_pipe_is_recorded(box, folder, casts):
    done = box.run_claude(
        "-p", stdin=b"from a pipe", SHIM_VENDOR="demo",
        SHIM_BIN=box.create_fake(["read"], ["out", ANSWER]), SHIM_RECORD=f"{folder}/",
    )  # fmt: skip
    (cast,) = casts()
    assert (cast.stream("i"), cast.stream("I"), cast.stream("O")) == (
        b"from a pipe",
        b"from a pipe",
        done.stdout,
    )


def test_conversation_with_a_child_per_turn_is_a_single_recording(box, talk, casts):
    lines = [control("c1", "initialize"), user("one"), user("two")]
    with talk(box.create_fake(["read"], ["out", IDLE])) as running:
        running.send_lines(*lines)
        done = running.end_input()
    (cast,) = casts()
    assert cast.stream("O") == done.stdout and cast.stream("o") == (IDLE * 2).encode()
    assert [json.loads(line) for line in cast.stream("i").splitlines()] == lines
    assert [
        (start.fields["child"], start.fields["turn"]) for start in cast.select_records("s")
    ] == [
        (1, 1),
        (2, 2),
    ]
    assert [end.fields["child"] for end in cast.select_records("x")] == [1, 2]


def test_conversation_with_a_persistent_child_is_a_single_recording(box, talk, casts):
    turn = [
        ["out", format_ndjson(QWEN, calls(), asks())],
        ["hear", '"behavior"'],
        ["out", format_ndjson(returns("ok"), result())],
    ]
    child = box.create_fake(HELLO, ["hear", "one"], *turn, ["hear", "two"], ["out", format_ndjson(says("x"), result())],
                     ["record", str(box.recording)], ["hear", "never"])  # fmt: skip
    with talk(child, *ASKING, vendor="qwen") as running:
        running.send_lines(user("one"))
        prompt_line = question(running)
        running.send_lines(
            answer(
                prompt_line["request_id"],
                behavior="allow",
                updatedInput=prompt_line["request"]["input"],
            )
        )
        running.read_until(b'"type":"result"')
        running.send_lines(user("two"))
        done = running.end_input()
    (cast,) = casts()
    assert cast.stream("O") == done.stdout
    assert cast.stream("I").decode() == box.read_record()["stdin"]
    assert len(cast.select_records("s")) == len(cast.select_records("x")) == 1
    assert (
        cast.stream("o")
        == "".join(step[1] for step in (turn[0], turn[2])).encode()
        + format_ndjson(says("x"), result()).encode()
    )


def test_interrupt_is_recorded_with_the_signal_sent_to_the_child(box, talk, casts):
    with talk(
        box.create_fake(["out", format_ndjson(START, build_text_event("I am "))], ["hang"])
    ) as running:
        running.send_lines(user("go"))
        running.read_until(b"init")
        running.send_lines(control("c1", "interrupt"))
        running.read_until(b'"type":"result"')
        done = running.end_input()
    (cast,) = casts()
    assert cast.stream("O") == done.stdout
    assert cast.notes("signal") == [{"kind": "signal", "child": 1, "signal": "SIGINT"}]
    assert cast.select_records("x")[0].fields == {"child": 1, "code": None, "signal": "SIGINT"}


def test_real_claude_conversation_is_recorded_byte_for_byte(box, talk, casts):
    child = box.create_fake(
        ["hear", "initialize"],
        ["out", format_ndjson(REPLY)],
        ["hear", "one"],
        ["out", TURN],
        ["leave", 0],
    )
    with talk(child, vendor="claude") as running:
        running.send_lines(
            '{"type":"control_request",  "request_id":"i","request":{"subtype":"initialize"}}',
            user("one"),
        )
        done = running.end_input()
    (cast,) = casts()
    assert (
        cast.stream("o")
        == cast.stream("O")
        == done.stdout
        == (format_ndjson(REPLY) + TURN).encode()
    )
    assert cast.stream("i") == cast.stream("I") and cast.stream("i").count(b"\n") == 2


def test_response_sent_before_a_child_starts_is_recorded(box, folder, casts):
    done = box.run_claude(*CONVERSE, stdin=json.dumps(control("c1", "initialize")).encode() + b"\n", SHIM_VENDOR="demo",
                      SHIM_BIN=box.create_fake(["hang"]), SHIM_RECORD=f"{folder}/")  # fmt: skip
    (cast,) = casts()
    assert b'"control_response"' in done.stdout and cast.stream("O") == done.stdout
    assert cast.stream("i").startswith(b'{"type": "control_request"') and not cast.select_records(
        "s"
    )


@pytest.mark.parametrize("args", [("--prompt", "hi"), ()])
def test_yume_run_is_recorded_in_the_yume_dialect(box, folder, casts, args):
    environment = box.build_environment(
        SHIM_BIN=box.create_fake(["read"], ["out", ANSWER]), SHIM_RECORD=f"{folder}/"
    )
    command = ("start", "--provider", "demo", *args)
    stdin = b"" if args else b'{"type":"user","content":"hi"}\n'
    done = box.run_shim("yume-cli", *command, environment=environment, stdin=stdin)
    (cast,) = casts()
    assert (cast.header.dialect, cast.header.argv, cast.header.redact) == ("yume", command, "all")
    assert (cast.stream("O"), cast.stream("i"), cast.stream("o")) == (
        done.stdout,
        stdin,
        ANSWER.encode(),
    )


def test_refused_yume_run_is_recorded(box, folder, casts):
    environment = box.build_environment(
        SHIM_BIN=box.create_fake(["read"]), SHIM_RECORD=f"{folder}/"
    )
    args = ("start", "--provider", "qwen", "--api-base", "ftp://x", "--prompt", "hi")
    done = box.run_shim("yume-cli", *args, environment=environment)
    (cast,) = casts()
    assert (
        done.status == 1
        and cast.stream("O") == done.stdout
        and cast.notes("refused")
        and not cast.select_records("s")
    )


@pytest.mark.parametrize(
    ("args", "environment"),
    [
        (ASK, {"SHIM_VENDOR": "nobody"}),
        ((*ASK, "--resume", SESSION), {"SHIM_VENDOR": "demo"}),
        (ASK, {"SHIM_VENDOR": "qwen", "SHIM_BIN": "/nowhere/qwen"}),
        ((*ASK, "--permission-mode", "plan"), {"SHIM_VENDOR": "acai"}),
        ((*ASK, "--session-id", "nonsense"), {"SHIM_VENDOR": "demo"}),
        (("-p", "", *STREAM), {"SHIM_VENDOR": "demo"}),
        (("-p", "hi", "--output-format", "none"), {"SHIM_VENDOR": "demo"}),
        (ASK, {"SHIM_VENDOR": "demo", "SHIM_IDLE_TIMEOUT": "no number"}),
    ],
)
def test_refused_run_is_recorded_with_its_reason(box, folder, casts, args, environment):
    done = box.run_claude(*args, SHIM_RECORD=f"{folder}/", **environment)
    (cast,) = casts()
    assert done.status == 1 and cast.stream("O") == done.stdout and not cast.select_records("s")
    assert cast.header.argv == args and cast.notes("refused")[0]["text"] in done.stderr


def test_spilled_result_and_idle_timeout_are_recorded_as_notes(box, folder, casts):
    child = box.create_fake(
        ["out", format_ndjson(START, {"type": "call", "id": "c1", "name": "Bash", "input": {}})],
        ["out", format_ndjson({"type": "result", "id": "c1", "output": "x" * 200_000})], ["hang"],
    )  # fmt: skip
    box.write_settings(f'record = "{folder}/"\nidle_timeout = 0.2\n')
    box.run_claude(*ASK, SHIM_VENDOR="demo", SHIM_BIN=child)
    (cast,) = casts()
    assert cast.notes("spill")[0]["characters"] == 200_000
    assert cast.notes("timeout") == [{"kind": "timeout", "name": "idle_timeout", "seconds": 0.2}]
    assert cast.notes("signal")[0]["signal"] == "SIGINT"


# -- the path of a recording -----------------------------------------------------------------------


def test_record_path_precedence_is_flag_environment_installed_settings(box, tmp_path):
    child = box.create_fake(["out", ANSWER])
    settings_folder = box.home / "from settings"
    box.write_settings('record = "~/from settings/"\n')
    baked = ["--installed", f"record={tmp_path / 'baked'}/", "claude", *ASK]

    def run(*args, **environment):
        box.run_shim(
            *args,
            environment=box.build_environment(SHIM_VENDOR="demo", SHIM_BIN=child, **environment),
        )
        folders = {
            path for path in tmp_path.glob("*/") if path.is_dir() and any(path.glob("*.cast"))
        }
        folders |= {settings_folder} if settings_folder.exists() else set()
        for path in folders:
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
        return {path.name for path in folders}

    assert run("claude", *ASK) == {"from settings"}
    assert run(*baked) == {"baked"}
    assert run(*baked, SHIM_RECORD=str(tmp_path / "environment") + "/") == {"environment"}
    flag_args = (*baked, "--shim-record", str(tmp_path / "flag") + "/")
    assert run(*flag_args, SHIM_RECORD=str(tmp_path / "environment") + "/") == {"flag"}


def test_relative_record_path_is_resolved_against_the_working_directory(box, ask):
    assert ask(box.create_fake(["out", ANSWER]), SHIM_RECORD="deep/down/one.cast").status == 0
    assert Recorded(Path(box.cwd) / "deep" / "down" / "one.cast").stream("o") == ANSWER.encode()
    assert stat.S_IMODE((Path(box.cwd) / "deep").stat().st_mode) == 0o700


@pytest.mark.parametrize("value", ["casts/", "./one.cast"])
def test_relative_record_path_in_the_settings_is_refused(box, value):
    box.write_settings(f'record = "{value}"\n')
    done = box.run_claude(*ASK, SHIM_VENDOR="demo", SHIM_BIN=box.create_fake(["out", ANSWER]))
    assert done.status == 1 and "record is" in done.stderr and "an absolute path" in done.stderr


def test_concurrent_runs_create_separate_recordings(box, ask, casts):
    child = box.create_fake(["out", ANSWER])
    with ThreadPoolExecutor(4) as pool:
        done = [future.result() for future in [pool.submit(ask, child) for _ in range(6)]]
    recordings = casts()
    assert len(recordings) == 6 and {cast.stream("O") for cast in recordings} == {
        process.stdout for process in done
    }


def test_existing_file_is_not_overwritten_and_the_turn_continues(box, ask):
    path = box.path / "mine"
    path.write_text("mine")
    done = ask(box.create_fake(["out", ANSWER]), SHIM_RECORD=str(path))
    assert done.status == 0 and path.read_text() == "mine"
    assert (
        "already exists, and a recording is never overwritten; the turn is not recorded"
        in done.stderr
    )
    assert done.stderr.count("\n") == 1


def test_symlink_at_the_record_path_is_not_followed(box, ask):
    target, link = box.path / "target", box.path / "one.cast"
    link.symlink_to(target)
    assert ask(box.create_fake(["out", ANSWER]), SHIM_RECORD=str(link)).status == 0
    assert not target.exists() and link.is_symlink()


def test_unwritable_record_folder_does_not_fail_the_turn(box, ask):
    (box.path / "file").write_text("")
    done = ask(box.create_fake(["out", ANSWER]), SHIM_RECORD=str(box.path / "file" / "casts") + "/")
    assert done.status == 0 and done.result["result"] == "Hello."
    assert "cannot be recorded" in done.stderr and done.stderr.count("\n") == 1


def test_strict_recording_that_cannot_start_refuses_the_turn(box, ask):
    box.write_settings("record_strict = true\n")
    path = box.path / "one.cast"
    path.write_text("mine")
    done = ask(box.create_fake(["record", str(box.recording)]), SHIM_RECORD=str(path))
    assert done.status == 1 and done.cause == "refused" and not box.recording.exists()
    assert done.stderr.count("cannot be recorded") == 1


def test_invalid_record_file_name_does_not_fail_the_turn(box):
    box.write_settings(f'record = "{box.path}/a\\u0000\\u001b[31m"\n')
    done = box.run_claude(*ASK, SHIM_VENDOR="demo", SHIM_BIN=box.create_fake(["out", ANSWER]))
    assert done.status == 0 and done.result["result"] == "Hello."
    assert (
        "cannot be recorded" in done.stderr
        and "\x1b" not in done.stderr
        and done.stderr.count("\n") == 1
    )


def test_thread_start_failure_of_the_recorder_does_not_fail_the_turn(box, folder):
    code = (
        "import threading\n"
        "def full(thread): raise RuntimeError('no room for a thread')\n"
        "threading.Thread.start = full\n"
        "from shim.__main__ import main\n"
        "main()"
    )
    environment = box.build_environment(
        SHIM_VENDOR="demo", SHIM_BIN=box.create_fake(["out", ANSWER]), SHIM_RECORD=f"{folder}/"
    )
    done = subprocess.run([*SHIM[:-2], "-c", code, "claude", *ASK], env=environment, cwd=box.cwd,
                          capture_output=True, text=True, timeout=TIMEOUT_S)  # fmt: skip
    assert done.returncode == 0 and '"result":"Hello."' in done.stdout
    assert "no room for a thread; the turn is not recorded" in done.stderr and not list(
        folder.iterdir()
    )


# -- how a run ends --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["one message", "one way", "two way", "relay"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_ended_by_a_signal_has_a_complete_recording(box, folder, casts, how, number):
    environment, args = standin(box, how)
    environment |= {"SHIM_RECORD": f"{folder}/", "SHIM_REDACT": "none"}
    stdin = subprocess.DEVNULL if how == "one message" else subprocess.PIPE
    with box.start_claude(*args, stdin=stdin, environment=environment) as running:
        _begin(running, how)
        running.send_signal(number)
        done = running.wait_for_end()
    (cast,) = casts()
    assert cast.stream("O") == done.stdout
    name = signal.Signals(number).name
    assert cast.notes("caught") == [{"kind": "caught", "signal": name}]
    assert cast.select_records("x")[0].fields["signal"] == cast.notes("signal")[0]["signal"]


def _begin(running: Running, how: str) -> None:
    if how != "one message":
        running.send_lines(user("go"))
    running.read_until(b"caf" if how == "relay" else b"I am ")


def _await_in_cast(folder: Path, text: bytes) -> None:
    """Wait until the only recording in `folder` contains `text`. Fail after `TIMEOUT_S` seconds."""
    deadline = time.monotonic() + TIMEOUT_S
    while not any(text in path.read_bytes() for path in folder.iterdir()):
        assert time.monotonic() < deadline, f"{text!r} was never recorded"
        select.select([], [], [], 0.01)


def test_killed_run_leaves_a_readable_recording(box, folder, casts):
    environment, args = standin(box, "one message")
    with box.start_claude(
        *args, environment=environment | {"SHIM_RECORD": f"{folder}/"}
    ) as running:
        output = running.read_until(b"I am ")
        # A thread writes the recording, so the frontend may have output that is not recorded yet.
        _await_in_cast(folder, rb'I am \"}"]')
        running.send_signal(signal.SIGKILL)
        running.process.wait()
    (cast,) = casts(is_complete=False)
    assert cast.stream("o").endswith(b'"I am "}\n') and output.startswith(cast.stream("O"))
    assert not cast.select_records("x") and cast.select_records("s")


def test_recording_is_complete_if_the_frontend_closes_stdout(box, folder, casts):
    environment, args = standin(box, "one message")
    with box.start_claude(
        *args, environment=environment | {"SHIM_RECORD": f"{folder}/"}
    ) as running:
        running.read_until(b"I am ")
        assert running.process.stdout is not None
        running.process.stdout.close()
        running.process.stdout = None
        running.process.wait(TIMEOUT_S)
    (cast,) = casts()
    assert cast.select_records("x")[0].fields["child"] == 1


def _small_disk():
    """Limit the size of the files that the process writes. The test also sets
    PYTHONDONTWRITEBYTECODE, so that Python does not write its compiled modules.
    """
    resource.setrlimit(resource.RLIMIT_FSIZE, (FULL, FULL))


@pytest.mark.parametrize("strict", [False, True])
def test_full_disk_stops_the_recording_and_fails_the_turn_only_if_strict(box, folder, strict):
    box.write_settings(f"record_strict = {str(strict).lower()}\ntranscripts = false\n")
    gate = box.create_gate()
    child = box.create_fake(
        ["out", format_ndjson(START)], ["repeat", format_ndjson(build_text_event("word ")), 3000],
        ["wait", gate.path], ["out", format_ndjson(END)],
    )  # fmt: skip
    environment = {
        "SHIM_VENDOR": "demo",
        "SHIM_BIN": child,
        "SHIM_RECORD": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with box.start_claude(*ASK, environment=environment, preexec_fn=_small_disk) as running:
        # The message is printed during the turn.
        line = "" if strict else running.process.stderr.readline().decode()
        if not strict:
            gate.open()
        done = running.wait_for_end()
    line = done.result["errors"][0] if strict else line
    assert line.startswith(f"the recording {folder} stopped: File too large")
    assert folder.stat().st_size <= FULL and "recording" not in done.stderr
    if strict:
        assert (done.status, done.cause) == (1, "internal") and done.result["is_error"]
    else:
        assert done.status == 0 and done.result["result"] == "word " * 3000
        assert line.endswith("the turn continues without a recording\n")


def test_strict_recording_that_fails_after_the_result_fails_the_run(box, folder):
    """The disk is full when the end of the recording is written, after the turn has sent its
    result.
    """
    box.write_settings("record_strict = true\n")
    code = (
        "from shim.core.cast import encoder as cast\n"
        "def full(chain): raise OSError(28, 'No space left on device')\n"
        "cast.RecordingHashChain.encode_end_checkpoint = full\n"
        "from shim.__main__ import main\n"
        "main()"
    )
    environment = box.build_environment(
        SHIM_VENDOR="demo", SHIM_BIN=box.create_fake(["out", ANSWER]), SHIM_RECORD=f"{folder}/"
    )
    done = subprocess.run([*SHIM[:-2], "-c", code, "claude", *ASK], env=environment, cwd=box.cwd,
                          capture_output=True, text=True, timeout=TIMEOUT_S)  # fmt: skip
    assert '"result":"Hello."' in done.stdout and done.returncode == 1
    assert "stopped: No space left on device" in done.stderr and done.stderr.count("\n") == 1


def test_recording_stops_at_record_max_bytes(box, ask, casts):
    box.write_settings("record_max_bytes = 30000\n")
    done = ask(
        box.create_fake(
            ["out", format_ndjson(START)],
            ["repeat", format_ndjson(build_text_event("word ")), 3000],
            ["out", format_ndjson(END)],
        )
    )
    (cast,) = casts()
    assert done.status == 0 and done.result["result"] == "word " * 3000
    assert done.stderr.count("\n") == 1 and "record_max_bytes" in done.stderr
    assert cast.notes("limit") == [{"kind": "limit", "bytes": 30000}]
    assert len(cast.data) < 40_000


# -- secrets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("redact", ["casts", "all"])
def test_planted_secrets_are_redacted_in_the_recording_and_the_log(box, folder, redact):
    """The secrets are in a prompt, a tool's output, stderr and the environment. They are whole or
    split over deltas and lines.
    """
    events, stderr, hidden, prompts = [START], "", [], []
    for number, (_, before, secret, suffix) in enumerate(SECRETS):
        secret_text = f"{before}{secret}{suffix}"
        hidden.append(secret)
        middle = len(before) + len(secret) // 2
        call = {
            "type": "call",
            "id": f"c{number}",
            "name": "Bash",
            "input": {"command": f"use {secret_text} here"},
        }
        events += [
            call,
            {"type": "result", "id": f"c{number}", "output": f"it is {secret_text} there"},
        ]
        events += [
            build_text_event("so: "),
            build_text_event(f" {secret_text[:middle]}"),
            build_text_event(f"{secret_text[middle:]} "),
            build_text_event("and. "),
        ]
        stderr += f"warning: {secret_text} \n"
        prompts.append(f" {secret_text} ")
    out, complaint = box.path / "out", box.path / "complaint"
    out.write_text(format_ndjson(*events, END), encoding="utf-8")
    complaint.write_text(stderr, encoding="utf-8")
    child = box.write_program("vendor", f"cat >/dev/null; cat {complaint} >&2; exec cat {out}\n")
    log = box.path / "log"
    environment = {
        "SHIM_LOG": f"debug:{log}",
        "SHIM_REDACT": redact,
        "ANTHROPIC_API_KEY": SECRET,
        "TERM": SECRET,
    }
    box.run_claude("-p", f"do {SECRET}", *STREAM, "--settings", '{"apiKey": "1"}', stdin="".join(prompts).encode(),
               SHIM_VENDOR="demo", SHIM_BIN=child, SHIM_RECORD=f"{folder}/", **environment)  # fmt: skip
    (cast,) = [Recorded(path) for path in folder.iterdir()]
    texts = [
        cast.data.decode(),
        *(cast.stream(letter).decode() for letter in STREAMS),
        log.read_text(),
    ]
    texts += [
        json.dumps(cast.header.fields),
        json.dumps([dict(record.fields) for record in cast.records]),
    ]
    texts.append(
        "".join(json.loads(line).get("text", "") for line in cast.stream("o").splitlines())
    )
    for secret in [*hidden, SECRET]:
        for form in {secret, json.dumps(secret)[1:-1], json.dumps(json.dumps(secret)[1:-1])[1:-1]}:
            assert not [
                recorded_text
                for recorded_text in texts
                if (form in recorded_text and len(form) > 7) or f" {form} " in recorded_text
            ], form
    assert cast.header.swept and cast.notes("redaction")[0]["counts"]["anthropic-key"] > 3
    assert SECRET not in str(cast.header.fields) and "[REDACTED:argument]" in cast.header.argv


def test_nothing_is_redacted_if_redaction_is_disabled(box, ask, casts):
    ask(
        box.create_fake(["read"], ["out", format_ndjson(START, build_text_event(SECRET), END)]),
        "-p",
        f"do {SECRET}",
    )
    (cast,) = casts()
    assert SECRET.encode() in cast.stream("o") and SECRET.encode() in cast.stream("I")


# -- without a recording ---------------------------------------------------------------------------


WRITES = (
    "recording.recorder",
    "recording.writer",
    "recording.event_queue",
    "recording.open_recorder",
    "recording.rewrite",
    "core.cast.format",
    "core.cast.secrets",
    "core.secrets.redactor",
)


def test_recording_modules_are_imported_only_if_the_run_is_recorded(box):
    code = "import sys; from shim.__main__ import main\ntry: main()\nfinally: sys.stderr.write(' '.join(sys.modules))"
    environment = box.build_environment(
        SHIM_VENDOR="demo", SHIM_BIN=box.create_fake(["out", ANSWER])
    )
    for extra, is_imported in (({}, False), ({"SHIM_RECORD": str(box.path / "one.cast")}, True)):
        done = subprocess.run([*SHIM[:-2], "-c", code, "claude", *ASK], env=environment | extra, cwd=box.cwd,
                              capture_output=True, text=True, timeout=TIMEOUT_S, check=True)  # fmt: skip
        modules = set(done.stderr.split())
        for name in WRITES:
            assert (f"shim.{name}" in modules) is is_imported, name
