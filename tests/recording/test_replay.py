"""A recording that is replayed as a program and as the child of the drop-in, by real processes
without delays.
"""

import json
import os
import signal
import subprocess
import sys

import pytest
from box import STREAM, TIMEOUT_S, Box, Done, run_shim
from cast_builder import build_case_recording, build_recording, read_cast, stream_of
from fixture_cases import find_case
from replay_harness import (
    START,
    build_exit_record,
    build_signal_note,
    encode_control_request,
    encode_control_response,
    encode_line,
    encode_user_message,
)
from stream_lines import summarize_lines
from sweeps import loop_over_cases

from shim.recording import player
from shim.recording.replay_request import ReplayRequest, format_replay_args, parse_replay_args

HELLO = find_case("demo/session")
ENDS = [None, 0, 1, 3, 127, "SIGTERM", "SIGINT", "SIGKILL", "SIGSEGV", "SIG_DFL", "SIGNONSENSE"]


def write_recording(box: Box, data: bytes, name: str = "session.cast") -> str:
    """Write a recording into the box and return its path."""
    path = box.path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return str(path)


def play(box: Box, data: bytes, *args: str, stdin: bytes = b"") -> Done:
    """Run `shim replay CAST --speed 0` until it exits."""
    return box.run_shim("replay", write_recording(box, data), "--speed", "0", *args, stdin=stdin)


@pytest.mark.parametrize("how", ENDS)
def test_replay_exits_with_the_recorded_status_or_signal(box, how):
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


def test_replay_as_claude_prints_the_frontend_output(box):
    data = build_case_recording(HELLO)
    done = play(box, data, "--as", "claude")
    assert done.stdout == stream_of(read_cast(data)[1], "O") and done.status == 0


@pytest.mark.parametrize("data", [b"", b"{}\n", b"no cast\n\x1b]52;c;x\x07", b'{"shimcast":99}\n'])
def test_replay_of_an_invalid_recording_prints_a_single_error_line(box, data):
    done = play(box, data)
    assert done.status == 1 and done.stdout == b""
    assert done.stderr.count("\n") == 1 and "recording" in done.stderr and "\x1b" not in done.stderr


def test_replay_of_a_missing_child_number_prints_an_error(box):
    done = play(box, build_case_recording(HELLO), "--child", "7")
    assert done.status == 1 and "no child with the number 7" in done.stderr


def test_replay_refuses_a_named_pipe_without_waiting(box):
    os.mkfifo(box.path / "pipe")
    done = box.run_shim("replay", str(box.path / "pipe"))
    assert done.status == 1 and "not a regular file" in done.stderr


@pytest.mark.parametrize("args", [["--as", "frontend"], ["--speed", "-1"], ["--child", "0"]])
def test_invalid_replay_argument_exits_with_status_2(box, args):
    assert play(box, build_case_recording(HELLO), *args).status == 2


@pytest.mark.parametrize("side", ["vendor", "claude"])
def test_replay_removes_control_characters_on_a_terminal(box, side):
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


def test_replay_exits_with_status_0_if_its_reader_closes_the_pipe(box):
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
        assert process.wait(TIMEOUT_S) == 0 and process.stderr.read() == b""


def test_replay_arguments_survive_formatting_and_parsing():
    replay_request = ReplayRequest("/a b=c.cast", "claude", 3, 0.0, 1.5, True, "id")
    assert parse_replay_args([*format_replay_args(replay_request), "--speed=7"]) == replay_request
    assert parse_replay_args(format_replay_args(ReplayRequest("x"))) == ReplayRequest("x")


def test_replay_input_events_are_ordered_and_include_an_unterminated_line(monkeypatch):
    reader, writer = os.pipe()
    hearing = player.ReplayInputReader(reader)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    hearing.start()
    os.write(writer, b"one\ntw")
    assert hearing.wait_for_events(TIMEOUT_S) == [("line", b"one")]
    os.close(writer)
    assert hearing.wait_for_events(TIMEOUT_S) == [("line", b"tw"), ("end", b"")]
    assert hearing.wait_for_events(0.0) is None
    os.close(reader)


# -- in the drop-in --------------------------------------------------------------------------------


def ask(box: Box, data: bytes, *args: str, stdin: bytes = b"", **environment: str | None):
    """Run a turn of the drop-in that replays a recording."""
    chosen = {
        "SHIM_VENDOR": f"replay:{write_recording(box, data)}",
        "SHIM_REPLAY_SPEED": "0",
        **environment,
    }
    return box.run_claude("-p", *STREAM, *args, stdin=stdin, **chosen)


@loop_over_cases(
    [find_case(name) for name in ("demo/session", "pi/1.5.2-bash", "qwen/0.24.4-text")]
)
def test_replay_emits_the_recorded_frontend_output(box, case):
    partial = ["--include-partial-messages"] if case.partial else []
    done = ask(box, build_case_recording(case), *partial, "say hello")
    _, records = read_cast(build_case_recording(case))
    then = [json.loads(raw) for raw in stream_of(records, "O").splitlines()]
    assert summarize_lines(done.lines) == summarize_lines(then)
    assert done.init["shim"]["vendor"] == case.vendor and done.init["shim"]["replay"] is True
    assert done.init["shim"]["unattended"] is False and done.result["shim"]["replay"] is True


def test_replay_ignores_the_program_and_arguments_of_the_vendor(box):
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
def test_replay_accepts_every_permission_mode(box, mode):
    assert (
        ask(
            box, build_case_recording(find_case("pi/1.5.2-bash")), "hi", "--permission-mode", mode
        ).status
        == 0
    )


def test_vendor_prefix_of_the_model_starts_no_vendor_in_a_replay(box):
    done = ask(box, build_case_recording(find_case("pi/1.5.2-bash")), "hi", "--model", "qwen:some")
    assert done.status == 0 and done.init["shim"]["vendor"] == "pi" and done.init["model"] == "some"


def test_model_settings_and_installation_cannot_select_a_recording(box):
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
    assert done.status == 1 and "only with SHIM_VENDOR or --shim-vendor" in done.stderr
    box.write_settings("")
    done = box.run_shim("--installed", f"vendor=replay:{path}", "claude", "-p", *STREAM, "hi")
    assert done.status == 1 and "only with SHIM_VENDOR or --shim-vendor" in done.stderr
    assert box.run_shim("install", "--vendor", f"replay:{path}").status == 2


def test_shim_vendor_flag_selects_a_recording_over_the_environment(box):
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
def test_invalid_replay_path_is_refused_with_an_error_result(box, path):
    os.mkfifo(box.cwd / "pipe")
    done = box.run_claude("-p", *STREAM, "hi", SHIM_VENDOR=f"replay:{path}")
    assert done.status == 1 and done.result["is_error"] and "hint:" in done.stderr


def test_recording_of_an_unknown_vendor_is_refused_without_escapes(box):
    done = ask(box, build_case_recording(HELLO, vendor="\x1b]52;c;x\x07"), "hi")
    assert done.status == 1 and "the unknown vendor" in done.stderr and "\x1b" not in done.stderr


def test_invalid_replay_speed_is_reported(box):
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
    """Build a reply of qwen."""
    usage = {"input_tokens": 1, "output_tokens": 1}
    return encode_line(
        {
            "type": "assistant",
            "message": {"id": "m", "model": "m", "content": list(blocks), "usage": usage},
        }
    )


def qwen_cast(behavior="allow"):
    """Build a recording of two messages to a persistent qwen. The first turn has a permission
    prompt.
    """
    question = encode_control_request(
        "q1",
        "can_use_tool",
        tool_name="run_shell_command",
        tool_use_id="c1",
        input={"command": "ls"},
    )
    content = [{"type": "tool_result", "tool_use_id": "c1", "content": "file", "is_error": False}]
    subtypes = ("initialize", "get_available_models", "get_context_usage")
    handshake = b"".join(
        encode_control_request(f"shim-{number}", subtype)
        for number, subtype in enumerate(subtypes, 1)
    )
    responses = b"".join(encode_control_response(f"shim-{number}") for number in (1, 2, 3))
    moments = [
        START,
        (0.0, "I", handshake + encode_user_message("one")),
        (0.1, "o", responses + QWEN_INIT + reply(CALL) + question),
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
    """Start a conversation of the drop-in that replays a recording."""
    environment = {"SHIM_VENDOR": f"replay:{write_recording(box, data)}", "SHIM_REPLAY_SPEED": "0"}
    return box.start_claude(*TALK, *args, stdin=subprocess.PIPE, environment=environment)


def test_replay_of_a_persistent_child_accepts_permissions_and_messages(box):
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


def test_answer_that_differs_from_the_recorded_answer_ends_in_an_error(box):
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
    assert done.result["is_error"] and "continues with allow" in json.dumps(done.result)


def test_message_beyond_the_recorded_messages_ends_in_an_error(box):
    with start_replay(box, build_case_recording(find_case("pi/1.5.2-plain"))) as running:
        running.send_lines(json.loads(encode_user_message("one")))
        running.read_until(b'"type":"result"')
        running.send_lines(json.loads(encode_user_message("two")))
        running.read_until(b'"not_found"')
        done = running.end_input()
    assert "none is left for" in json.dumps(done.lines[-1])


def test_interrupt_continues_the_replay_after_the_recorded_signal(box):
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
