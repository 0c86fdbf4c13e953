"""A folder of recordings compared with today's drop-in, and what counts as a difference."""

import json
import subprocess
from types import SimpleNamespace

import pytest
from box import Box, start_shim
from cast_builder import build_case_recording, build_recording, read_cast
from fixture_cases import find_case
from replay_harness import encode_line

from shim.commands.cast import check
from shim.core.cast.format import STREAMS
from tests.recording.test_replay import (
    STREAM,
    TALK,
    encode_control_response,
    encode_user_message,
    qwen_cast,
    write_recording,
)

PI = find_case("pi/1.5.2-bash")


def record_cast(box, data, *args, stdin=b""):
    """Return a recording with the drop-in's output for it, as the recorder would have written
    it.
    """
    header, records = read_cast(data)
    assert header.header is not None
    header_fields = dict(header.header.fields)
    environment = {
        "SHIM_VENDOR": f"replay:{write_recording(box, data, 'before.cast')}",
        "SHIM_REPLAY_SPEED": "0",
    }
    done = box.run_claude(*args, stdin=stdin, **environment)
    moments = [
        (record.time_s, record.code, record.data if record.code in STREAMS else record.fields)
        for record in records
    ]
    child_events = [
        (time_s, letter, content) for time_s, letter, content in moments if letter != "O"
    ]
    at = child_events[-1][0]
    header_fields |= {"argv": list(args), "cwd": str(box.cwd)}
    header_fields.pop("shimcast")
    return build_recording(
        [(0.0, "i", stdin), *child_events, (at, "O", done.stdout)], **header_fields
    )


@pytest.fixture(scope="module")
def hello(tmp_path_factory):
    """Return a recording of a greeting by the current drop-in."""
    hello_box = Box(tmp_path_factory.mktemp("hello"))
    yield record_cast(hello_box, build_case_recording(PI), "-p", *STREAM, "hello")
    hello_box.close()


@pytest.fixture
def check_casts(shim, monkeypatch):
    """Run `shim replay … --check` in this process, with forks of the drop-in; return the exit
    status and stdout.
    """

    def start(command, **options):
        assert command[1:4] == ["-I", "-m", "shim"]
        return start_shim(command[4:], **options)

    monkeypatch.setattr(
        check, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": start})
    )

    def run(*args):
        status, printed, _ = shim("replay", *args, "--check")
        return status, printed.decode()

    return run


@pytest.fixture
def report(check_casts):
    """Run `shim replay … --check --json`; return the exit status and the report."""

    def run(*paths):
        status, printed = check_casts(*paths, "--json")
        return status, json.loads(printed)

    return run


FORMATS = [
    ("text",),
    ("json",),
    ("json", "--verbose"),
    ("stream-json", "--verbose"),
    ("stream-json", "--verbose", "--include-partial-messages"),
]


@pytest.mark.parametrize("args", FORMATS, ids=" ".join)
def test_check_succeeds_for_an_unchanged_recording_in_every_output_format(box, args, report):
    data = record_cast(box, build_case_recording(PI), "-p", "--output-format", *args, "say hello")
    status, summary = report(write_recording(box, data))
    assert summary["casts"][0]["outcome"] == "ok", summary
    assert status == 0 and summary["ok"] == 1 and summary["casts"][0]["lines"] > 0


def test_prompt_from_stdin_is_replayed(box, report):
    data = record_cast(box, build_case_recording(PI), "-p", *STREAM, stdin=b"say\nhello\n")
    assert report(write_recording(box, data))[1]["ok"] == 1


def test_recorded_shim_flags_are_removed_before_the_check(box, report, hello):
    data = hello
    argv = ["-p", "--shim-vendor", "pi", *STREAM, "--shim-record=/x", "hello"]
    _, records = read_cast(data)
    events = [
        (event.time_s, event.code, event.data if event.code in STREAMS else event.fields)
        for event in records
    ]
    assert (
        report(write_recording(box, build_recording(events, argv=argv, cwd=str(box.cwd))))[1]["ok"]
        == 1
    )


def test_recording_of_a_resumed_session_is_checked_without_local_session_state(box, report):
    session = "33333333-3333-4333-8333-333333333333"
    data = build_case_recording(PI, argv=["-p", *STREAM, "--resume", session, "hello"])
    recording = record_cast(box, data, "-p", *STREAM, "--resume", session, "hello")
    assert b"No conversation" not in recording
    assert report(write_recording(box, recording))[1]["ok"] == 1


def test_yume_recording_is_checked_with_its_recorded_arguments(box, report):
    argv = [
        "start",
        "--provider",
        "pi",
        "--model",
        "m",
        "--cwd",
        str(box.cwd),
        "--session-id",
        "tab-1",
        "--prompt",
        "hello",
    ]
    environment = box.build_environment(
        SHIM_VENDOR=f"replay:{write_recording(box, build_case_recording(PI))}",
        SHIM_REPLAY_SPEED="0",
    )
    done = box.run_shim("yume-cli", *argv, environment=environment)
    _, records = read_cast(build_case_recording(PI))
    moments = [
        (event.time_s, event.code, event.data or event.fields)
        for event in records
        if event.code != "O"
    ]
    header_fields = {"argv": argv, "dialect": "yume", "cwd": str(box.cwd)}
    data = build_recording([*moments, (moments[-1][0], "O", done.stdout)], **header_fields)
    status, summary = report(write_recording(box, data))
    assert status == 0, summary


def test_conversation_with_a_permission_prompt_is_checked_in_recorded_order(box, report):
    argv = [*TALK]
    allow = encode_control_response("q1", behavior="allow", updatedInput={"command": "ls"})
    frontend = [encode_user_message("one"), allow, encode_user_message("two")]
    _, records = read_cast(qwen_cast())
    moments = [
        (event.time_s, event.code, event.data or event.fields)
        for event in records
        if event.code != "i"
    ]
    data = write_recording(box, build_recording(moments, vendor="qwen", argv=argv))
    environment = {"SHIM_VENDOR": f"replay:{data}", "SHIM_REPLAY_SPEED": "0"}
    chunks = []
    with box.start_claude(*argv, stdin=subprocess.PIPE, environment=environment) as running:
        running.send_lines(json.loads(frontend[0]))
        chunks.append(running.read_until(b'"can_use_tool"'))
        stdout = chunks[0]
        request_id = json.loads(
            next(raw for raw in stdout.split(b"\n") if b'"can_use_tool"' in raw)
        )["request_id"]
        running.send_lines(json.loads(allow.replace(b"q1", request_id.encode())))
        stdout = running.read_until(b'"result":"first"')
        before = stdout
        running.send_lines(json.loads(frontend[2]))
        running.read_until(b'"result":"second"')
        stdout = running.end_input().stdout
    prompt_end = stdout.index(b"\n", stdout.index(b'"can_use_tool"')) + 1
    first = stdout.index(b"\n", stdout.index(b'"result":"first"')) + 1
    answer = allow.replace(b"q1", request_id.encode())
    run_events = [
        (0.0, "i", frontend[0]),
        (0.1, "O", stdout[:prompt_end]),
        (0.2, "i", answer),
        (0.3, "O", stdout[prompt_end:first]),
        (0.4, "i", frontend[2]),
        (0.5, "O", stdout[first:]),
    ]
    assert before in stdout
    status, summary = report(
        write_recording(
            box,
            build_recording([*run_events, *moments], vendor="qwen", argv=argv, cwd=str(box.cwd)),
            "b.cast",
        )
    )
    assert status == 0, summary


def test_different_output_is_reported_with_its_line_without_escape_sequences(
    box, report, check_casts, hello
):
    data = hello.replace(b"Done with bash.", b"Done \\u001b[31mwith zsh.")
    path = write_recording(box, data)
    status, summary = report(path)
    (row,) = summary["casts"]
    assert status == 1 and row["outcome"] == "differs" and summary["differs"] == 1
    # The child has the changed text too, so only the shim's output differs.
    data = hello
    changed = data.replace(b'\\"num_turns\\":2', b'\\"num_turns\\":9\\u001b')
    assert changed != data
    status, printed = check_casts(write_recording(box, changed))
    assert status == 1 and "line " in printed and "\x1b" not in printed


def test_missing_and_extra_lines_are_reported_as_differences(box, report, hello):
    data = hello
    _, records = read_cast(data)
    moments = [(event.time_s, event.code, event.data or event.fields) for event in records]
    header_fields = {"argv": ["-p", *STREAM, "hello"], "cwd": str(box.cwd)}
    more = [*moments, (9.0, "O", encode_line({"type": "one more"}))]
    fewer = [
        event
        for event in moments
        if b'"type":"message_stop"' not in (event[2] if isinstance(event[2], bytes) else b"")
    ]
    for changed in (more, fewer):
        status, summary = report(write_recording(box, build_recording(changed, **header_fields)))
        assert status == 1 and "no such line" in json.dumps(summary), summary


def test_truncated_recording_is_checked_up_to_its_last_line(box, report, hello):
    """The recording was interrupted, or grew too large. Today's output after that point is not a
    difference.
    """
    _, records = read_cast(hello)
    moments = [(event.time_s, event.code, event.data or event.fields) for event in records]
    shared = {"argv": ["-p", *STREAM, "hello"], "cwd": str(box.cwd)}
    ours = [event for event in moments if event[1] == "O"]
    vendors = [event for event in moments if event[1] in "so"]
    cut = [*vendors[:-3], *ours[:2]]
    limit = [*cut, (9.0, "n", {"kind": "limit", "bytes": 10_000})]
    other = [*vendors[:-3], ours[0], (9.0, "O", ours[1][2].replace(b"bash", b"zsh"))]
    for moments, end, outcome in (
        (cut, False, "ok"),
        (limit, True, "ok"),
        (other, False, "differs"),
    ):
        status, summary = report(write_recording(box, build_recording(moments, end=end, **shared)))
        assert (status, summary["casts"][0]["outcome"]) == (int(outcome != "ok"), outcome), summary
        assert ("reason" in summary["casts"][0]) is (outcome == "ok")


def test_run_that_ended_by_idle_timeout_is_skipped_with_a_reason(box, report):
    note = {"kind": "timeout", "name": "idle_timeout", "seconds": 900.0}
    moments = [
        (0.0, "s", {"child": 1}),
        (1.0, "n", note),
        (1.0, "O", encode_line({"type": "result"})),
    ]
    status, summary = report(write_recording(box, build_recording(moments)))
    assert (
        status == 0
        and summary["skipped"] == 1
        and "printed nothing for longer" in summary["casts"][0]["reason"]
    )


def test_every_recording_of_a_folder_is_checked_and_reported(box, report, hello):
    good = hello
    write_recording(box, good, "all/1.cast")
    write_recording(box, b"no cast\n", "all/2.cast")
    write_recording(box, build_recording([(0.0, "O", b"{}\n")]), "all/3.cast")
    status, summary = report(str(box.path / "all"))
    assert [row["outcome"] for row in summary["casts"]] == [
        "ok",
        "failed",
        "skipped",
    ] and status == 1
    done = box.run_shim("replay", str(box.path / "home"), "--check")
    assert done.status == 1 and "has no recordings" in done.stderr


def test_check_ignores_user_settings_and_leaves_the_home_directory_unchanged(box, report, hello):
    data = hello
    before = sorted(box.home.rglob("*"))
    box.write_settings('vendor = "nonsense"\nmax_line_bytes = 10000\n')
    existing_paths = {*before, *box.home.rglob("*")}
    assert report(write_recording(box, data))[0] == 0
    assert set(box.home.rglob("*")) <= existing_paths
