"""A recording played as a program, and as the child of the drop-in: real processes, at once."""

import json
import os
import signal
import subprocess
import sys

import pytest
from box import PATIENCE, STREAM, Box, Done, run_shim
from casting import build_case_recording, build_recording, read_cast, stream_of
from replaying import (
    START,
    build_exit_record,
    build_signal_note,
    encode_control_request,
    encode_control_response,
    encode_line,
    encode_user_message,
)
from support import find_case, summarize_lines
from sweeps import loop_over_cases

from shim.recording import player
from shim.recording.replay_request import ReplayRequest, format_replay_args, parse_replay_args

HELLO = find_case("demo/session")
ENDS = [None, 0, 1, 3, 127, "SIGTERM", "SIGINT", "SIGKILL", "SIGSEGV", "SIG_DFL", "SIGNONSENSE"]


def write_recording(box: Box, data: bytes, name: str = "session.cast") -> str:
    """A cast in the box; its path."""
    path = box.path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return str(path)


def play(box: Box, data: bytes, *args: str, stdin: bytes = b"") -> Done:
    """`shim replay CAST --speed 0`, to its end."""
    return box.run_shim("replay", write_recording(box, data), "--speed", "0", *args, stdin=stdin)


@pytest.mark.parametrize("how", ENDS)
def test_it_ends_as_it_ended_then(box, how):
    name = how if isinstance(how, str) else None
    done = play(
        box,
        build_recording(
            [
                START,
                (0.1, "o", b"said\n"),
                (0.1, "e", b"bad\n"),
                build_exit_record(0.2, None if name else how, name),
            ]
        ),
    )
    assert done.stdout == b"said\n" and done.stderr == "bad\n"
    number = getattr(signal, name, None) if name and not name.startswith("SIG_") else None
    assert done.status == (-number if number else 1 if name else how or 0)


def test_as_claude_it_shows_the_frontends_view(box):
    data = build_case_recording(HELLO)
    done = play(box, data, "--as", "claude")
    assert done.stdout == stream_of(read_cast(data)[1], "O") and done.status == 0


@pytest.mark.parametrize("data", [b"", b"{}\n", b"no cast\n\x1b]52;c;x\x07", b'{"shimcast":99}\n'])
def test_what_is_no_cast_ends_in_a_sentence(box, data):
    done = play(box, data)
    assert done.status == 1 and done.stdout == b""
    assert done.stderr.count("\n") == 1 and "cast" in done.stderr and "\x1b" not in done.stderr


def test_a_child_that_was_not_there_is_a_sentence_too(box):
    done = play(box, build_case_recording(HELLO), "--child", "7")
    assert done.status == 1 and "no child number 7" in done.stderr


def test_a_pipe_in_the_place_of_a_cast_is_not_waited_for(box):
    os.mkfifo(box.path / "pipe")
    done = box.run_shim("replay", str(box.path / "pipe"))
    assert done.status == 1 and "not a regular file" in done.stderr


@pytest.mark.parametrize("args", [["--as", "frontend"], ["--speed", "-1"], ["--child", "0"]])
def test_a_mistake_in_the_arguments_is_usage(box, args):
    assert play(box, build_case_recording(HELLO), *args).status == 2


@pytest.mark.parametrize("side", ["vendor", "claude"])
def test_a_terminal_obeys_nothing_of_a_recording(box, side):
    planted = b"\x1b]52;c;x\x07 \x1b[2J \xc2\x9b31m \xe2\x80\xae\n"
    moments = [
        START,
        (0.1, "o", planted),
        (0.1, "e", planted),
        (0.1, "O", planted),
        build_exit_record(0.2),
    ]
    main, terminal = os.openpty()
    args = ["replay", write_recording(box, build_recording(moments)), "--speed", "0", "--as", side]
    assert run_shim(args, stdin=None, stdout=terminal, stderr=terminal).status == 0
    os.close(terminal)
    output = os.read(main, 65536)
    os.close(main)
    assert b"]52;c;x" in output
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(output.decode())


def test_a_reader_that_goes_is_no_failure(box):
    big = build_recording(
        [START, *[(0.1, "o", b"x" * 100_000 + b"\n") for _ in range(50)], build_exit_record(0.2)]
    )
    command = [
        sys.executable,
        "-I",
        "-m",
        "shim.recording.player",
        f"--cast={write_recording(box, big)}",
        "--speed=0",
        "--",
    ]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.wait(PATIENCE) == 0 and process.stderr.read() == b""


def test_its_arguments_are_read_as_they_were_written():
    replay_request = ReplayRequest("/a b=c.cast", "claude", 3, 0.0, 1.5, True, "id")
    assert parse_replay_args([*format_replay_args(replay_request), "--speed=7"]) == replay_request
    assert parse_replay_args(format_replay_args(ReplayRequest("x"))) == ReplayRequest("x")


def test_events_come_in_their_order_and_a_line_without_its_end_is_one(monkeypatch):
    reader, writer = os.pipe()
    hearing = player.ReplayInputReader(reader)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    hearing.start()
    os.write(writer, b"one\ntw")
    assert hearing.wait_for_events(PATIENCE) == [("line", b"one")]
    os.close(writer)
    assert hearing.wait_for_events(PATIENCE) == [("line", b"tw"), ("end", b"")]
    assert hearing.wait_for_events(0.0) is None
    os.close(reader)


# -- in the drop-in --------------------------------------------------------------------------------


def ask(box: Box, data: bytes, *args: str, stdin: bytes = b"", **environment: str | None):
    """One turn of the drop-in that plays a cast."""
    chosen = {
        "SHIM_VENDOR": f"replay:{write_recording(box, data)}",
        "SHIM_REPLAY_SPEED": "0",
        **environment,
    }
    return box.run_claude("-p", *STREAM, *args, stdin=stdin, **chosen)


@loop_over_cases(
    [find_case(name) for name in ("demo/session", "pi/1.5.2-bash", "qwen/0.24.4-text")]
)
def test_a_frontend_sees_what_it_saw(box, case):
    partial = ["--include-partial-messages"] if case.partial else []
    done = ask(box, build_case_recording(case), *partial, "say hello")
    _, records = read_cast(build_case_recording(case))
    then = [json.loads(raw) for raw in stream_of(records, "O").splitlines()]
    assert summarize_lines(done.lines) == summarize_lines(then)
    assert done.init["shim"]["vendor"] == case.vendor and done.init["shim"]["replay"] is True
    assert done.init["shim"]["unattended"] is False and done.result["shim"]["replay"] is True


def test_nothing_of_a_vendor_is_needed_and_nothing_of_its_settings_taken(box):
    done = ask(
        box,
        build_case_recording(find_case("pi/1.5.2-bash")),
        "hi",
        SHIM_BIN="/nowhere",
        SHIM_ARGS="--speed=1 --cast=/x",
        PATH="/nowhere",
    )
    assert done.status == 0 and done.result["result"]


@pytest.mark.parametrize("mode", ["default", "plan", "acceptEdits", "dontAsk", "bypassPermissions"])
def test_every_mode_may_pass_because_nothing_runs(box, mode):
    assert (
        ask(
            box, build_case_recording(find_case("pi/1.5.2-bash")), "hi", "--permission-mode", mode
        ).status
        == 0
    )


def test_no_vendor_is_started_whatever_the_model_says(box):
    done = ask(box, build_case_recording(find_case("pi/1.5.2-bash")), "hi", "--model", "qwen:some")
    assert done.status == 0 and done.init["shim"]["vendor"] == "pi" and done.init["model"] == "some"


def test_neither_a_model_nor_the_settings_nor_an_installed_file_names_a_recording(box):
    path = write_recording(box, build_case_recording(HELLO))
    done = box.run_claude(
        "-p",
        *STREAM,
        "hi",
        "--model",
        f"replay:{path}",
        SHIM_VENDOR="demo",
        SHIM_BIN=box.create_demo_program(),
    )
    assert "replay" not in done.result["shim"]
    box.write_settings(f'vendor = "replay:{path}"')
    done = box.run_claude("-p", *STREAM, "hi")
    assert done.status == 1 and "SHIM_VENDOR or --shim-vendor only" in done.stderr
    box.write_settings("")
    done = box.run_shim("--installed", f"vendor=replay:{path}", "claude", "-p", *STREAM, "hi")
    assert done.status == 1 and "SHIM_VENDOR or --shim-vendor only" in done.stderr
    assert box.run_shim("install", "--vendor", f"replay:{path}").status == 1


def test_our_own_flag_names_one_and_stands_above_the_environment(box):
    path = write_recording(box, build_case_recording(HELLO))
    done = box.run_claude(
        "-p",
        *STREAM,
        "hi",
        "--shim-vendor",
        f"replay:{path}",
        SHIM_VENDOR="pi",
        SHIM_REPLAY_SPEED="0",
    )
    assert done.init["shim"] == {"vendor": "demo", "unattended": False, "replay": True}
    done = box.run_claude("-p", *STREAM, "hi", "--shim-vendor", "pi", SHIM_VENDOR=f"replay:{path}")
    assert done.cause == "not_found" and "pi" in done.stderr


@pytest.mark.parametrize("path", ["", "/nowhere.cast", "/dev/zero", "~/x.cast", "pipe", "."])
def test_a_path_that_is_no_recording_is_refused_in_a_result(box, path):
    os.mkfifo(box.cwd / "pipe")
    done = box.run_claude("-p", *STREAM, "hi", SHIM_VENDOR=f"replay:{path}")
    assert done.status == 1 and done.result["is_error"] and "hint:" in done.stderr


def test_a_cast_of_an_unknown_vendor_is_refused_and_its_name_obeys_nothing(box):
    done = ask(box, build_case_recording(HELLO, vendor="\x1b]52;c;x\x07"), "hi")
    assert done.status == 1 and "the unknown vendor" in done.stderr and "\x1b" not in done.stderr


def test_a_speed_that_is_none_is_named(box):
    done = ask(box, build_case_recording(HELLO), "hi", SHIM_REPLAY_SPEED="fast")
    assert done.status == 1 and "SHIM_REPLAY_SPEED is 'fast'" in done.stderr


QWEN_INIT = encode_line(
    {
        "type": "system",
        "subtype": "init",
        "session_id": "11111111-1111-4111-8111-111111111111",
        "model": "m",
    }
)
QWEN_RESULT = encode_line(
    {"type": "result", "subtype": "success", "is_error": False, "result": "done", "duration_ms": 1}
)
CALL = {"type": "tool_use", "id": "c1", "name": "run_shell_command", "input": {"command": "ls"}}


def reply(*blocks):
    """A reply of qwen's."""
    usage = {"input_tokens": 1, "output_tokens": 1}
    return encode_line(
        {
            "type": "assistant",
            "message": {"id": "m", "model": "m", "content": list(blocks), "usage": usage},
        }
    )


def qwen_cast(behavior="allow"):
    """Two messages to a qwen that stays; the first one asks for a permission."""
    question = encode_control_request(
        "q1",
        "can_use_tool",
        tool_name="run_shell_command",
        tool_use_id="c1",
        input={"command": "ls"},
    )
    content = [{"type": "tool_result", "tool_use_id": "c1", "content": "file", "is_error": False}]
    moments = [
        START,
        (0.0, "I", encode_control_request("shim-1", "initialize") + encode_user_message("one")),
        (0.1, "o", encode_control_response("shim-1") + QWEN_INIT + reply(CALL) + question),
        (5.0, "I", encode_control_response("q1", behavior=behavior)),
        (5.1, "o", encode_line({"type": "user", "message": {"role": "user", "content": content}})),
        (5.2, "o", reply({"type": "text", "text": "first"}) + QWEN_RESULT),
        (9.0, "I", encode_user_message("two")),
        (9.1, "o", QWEN_INIT + reply({"type": "text", "text": "second"}) + QWEN_RESULT),
        build_exit_record(10.0),
    ]
    argv = ["--output-format", "stream-json", "--verbose", "--input-format", "stream-json"]
    frontend = [(0.0, "i", encode_user_message("one") + encode_user_message("two"))]
    return build_recording([*frontend, *moments], vendor="qwen", argv=argv)


TALK = (*STREAM, "--input-format", "stream-json", "--permission-prompt-tool", "stdio")


def start_replay(box, data, *args):
    """A conversation of the drop-in that plays a cast."""
    environment = {"SHIM_VENDOR": f"replay:{write_recording(box, data)}", "SHIM_REPLAY_SPEED": "0"}
    return box.start_claude(*TALK, *args, stdin=subprocess.PIPE, environment=environment)


def test_permissions_and_messages_go_to_a_child_that_stays(box):
    with start_replay(box, qwen_cast()) as running:
        running.send_lines(
            {"type": "control_request", "request_id": "r1", "request": {"subtype": "initialize"}}
        )
        running.send_lines(json.loads(encode_user_message("one")))
        output_lines = running.read_until(b'"can_use_tool"').split(b"\n")
        question = json.loads(next(raw for raw in output_lines if b'"can_use_tool"' in raw))
        answer = {"behavior": "allow", "updatedInput": question["request"]["input"]}
        running.send_lines(json.loads(encode_control_response(question["request_id"], **answer)))
        running.read_until(b'"result":"first"')
        running.send_lines(json.loads(encode_user_message("two")))
        running.read_until(b'"result":"second"')
        done = running.end_input()
    assert done.status == 0
    assert [event["result"] for event in done.lines if event["type"] == "result"] == [
        "first",
        "second",
    ]


def test_another_answer_than_the_recorded_one_ends_in_an_error_that_says_so(box):
    with start_replay(box, qwen_cast()) as running:
        running.send_lines(json.loads(encode_user_message("one")))
        output_lines = running.read_until(b'"can_use_tool"').split(b"\n")
        question = json.loads(next(raw for raw in output_lines if b'"can_use_tool"' in raw))
        running.send_lines(
            json.loads(
                encode_control_response(question["request_id"], behavior="deny", message="no")
            )
        )
        running.read_until(b'"type":"result"')
        done = running.end_input()
    assert done.result["is_error"] and "goes on with allow" in json.dumps(done.result)


def test_a_message_more_than_was_recorded_ends_in_not_found(box):
    with start_replay(box, build_case_recording(find_case("pi/1.5.2-plain"))) as running:
        running.send_lines(json.loads(encode_user_message("one")))
        running.read_until(b'"type":"result"')
        running.send_lines(json.loads(encode_user_message("two")))
        running.read_until(b'"not_found"')
        done = running.end_input()
    assert "no more than" in json.dumps(done.lines[-1])


def test_an_interrupt_goes_to_what_was_recorded_behind_it(box):
    head = find_case("pi/1.5.2-sigint-stream").data
    data = build_recording(
        [
            START,
            (0.1, "o", head),
            build_signal_note(1.0, "SIGINT"),
            (1.1, "e", b"Bye\n"),
            build_exit_record(1.2, None, "SIGINT"),
        ],
        vendor="pi",
    )
    with start_replay(box, data, "--include-partial-messages") as running:
        running.send_lines(json.loads(encode_user_message("one")))
        running.read_until(b'"stream_event"')
        running.send_lines(
            {"type": "control_request", "request_id": "r1", "request": {"subtype": "interrupt"}}
        )
        running.read_until(b'"type":"result"')
        done = running.end_input()
    assert (
        done.result["subtype"] == "error_during_execution"
        and done.result["shim"]["cause"] == "interrupted"
    )
