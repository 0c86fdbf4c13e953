"""Yume's dialect and its binary as processes: one turn per process, many in one, and every kind of
failure.
"""

import json
import os
import signal
import subprocess
import sys

import pytest
from box import ANSWER, ASK, END, START, TIMEOUT_S, build_text_event, format_ndjson
from fake_secrets import generate_secret
from yume_stream import check_flat, summarize_flat_lines

from shim.conversation.yume_start import derive_session_uuid
from shim.process.install import install_drop_in_script
from tests.conversation.test_persistent_driver import (
    HELLO,
    INIT,
    VENDOR_SESSION,
    asks,
    calls,
    result,
    returns,
    says,
)

U = "11111111-2222-4333-8444-555555555555"
CALL = {"type": "call", "id": "c1", "name": "Bash", "input": {"command": "ls"}}
RESULT = {"type": "result", "id": "c1", "output": "a.txt"}


def start(box, *args, child=None, stdin=b"", **environment):
    """Run `yume-cli start ARGS` to its end, with a demo vendor that is `child`."""
    environment = {
        "SHIM_BIN": child
        or box.create_fake(["read"], ["record", str(box.recording)], ["out", ANSWER])
    } | environment
    flags = () if "--provider" in args else ("--provider", "demo")
    return box.run_shim(
        "yume-cli",
        "start",
        *flags,
        *args,
        environment=box.build_environment(**environment),
        stdin=stdin,
    )


def frames(*payloads):
    return "".join(json.dumps(frame) + "\n" for frame in payloads).encode()


def user(content):
    return {"type": "user", "content": content}


def start_with_open_stdin(box, child, *args, vendor="demo", stdin=subprocess.PIPE):
    """Start `yume-cli start` with stdin open."""
    environment = {"SHIM_BIN": child}
    return box.start_claude(
        "start", "--provider", vendor, *args, door="yume-cli", stdin=stdin, environment=environment
    )


# -- one turn per process --------------------------------------------------------------------------


def test_prompt_flag_is_sent_to_the_child(box):
    done = start(box, "--prompt", "hi there", "--model", "m9", "--session-id", U)
    assert (done.status, done.stderr) == (0, "")
    (turn,) = check_flat(done.stdout)
    assert summarize_flat_lines(turn) == [
        "init",
        "text Hello.",
        "usage",
        "result success",
        "message_stop",
    ]
    assert done.init["session_id"] == U
    assert box.read_record()["stdin"] == "hi there"


def test_stdin_text_is_sent_to_the_child_as_the_prompt(box):
    done = start(box, stdin=b'{"not": "a frame"}\nbut a prompt\n')
    assert done.status == 0 and len(check_flat(done.stdout)) == 1
    assert box.read_record()["stdin"] == '{"not": "a frame"}\nbut a prompt'


def test_cwd_flag_sets_the_working_directory_of_the_child(box):
    folder = box.path / "a b" / "project"
    folder.mkdir(parents=True)
    start(box, "--prompt", "x", "--cwd", str(folder))
    assert box.read_record()["cwd"] == str(folder)


def test_prompt_flag_completes_a_turn_without_stdin(box):
    with start_with_open_stdin(
        box, box.create_fake(["out", ANSWER]), "--prompt", "x", stdin=subprocess.DEVNULL
    ) as running:
        check_flat(running.wait_for_end().stdout)


def test_deltas_are_emitted_without_the_partial_messages_flag(box):
    child = box.create_fake(
        ["out", format_ndjson(START, build_text_event("Hel"), build_text_event("lo."), END)]
    )
    assert summarize_flat_lines(start(box, "--prompt", "x", child=child).lines)[1:3] == [
        "text Hel",
        "text lo.",
    ]


def test_lines_are_flushed_immediately(box):
    gate = box.create_gate()
    child = box.create_fake(
        ["out", format_ndjson(START, build_text_event("now"))],
        ["wait", gate.path],
        ["out", format_ndjson(END)],
    )
    with start_with_open_stdin(box, child, "--prompt", "x") as running:
        running.read_until(b'"content":"now"')
        gate.open()
        check_flat(running.wait_for_end().stdout)


def test_claude_command_writes_yume_lines_if_the_dialect_is_yume(box):
    environment = {"SHIM_VENDOR": "demo", "SHIM_BIN": box.create_fake(["out", ANSWER])}
    for flags, more in ((("--shim-dialect", "yume"), {}), ((), {"SHIM_DIALECT": "yume"})):
        done = box.run_claude(*ASK, *flags, **environment, **more)
        assert summarize_flat_lines(check_flat(done.stdout)[0])[1] == "text Hello."


def test_dialect_is_read_from_the_config_file(box):
    box.write_settings('dialect = "yume"\nvendor = "demo"\n')
    check_flat(box.run_claude(*ASK, SHIM_BIN=box.create_fake(["out", ANSWER])).stdout)


def test_claude_dialect_emits_only_claude_lines(box):
    done = box.run_claude(*ASK, SHIM_VENDOR="demo", SHIM_BIN=box.create_fake(["out", ANSWER]))
    assert [line["type"] for line in done.lines] == [
        "system",
        "assistant",
        "result",
        "message_stop",
    ]


@pytest.mark.parametrize("case", ["claude/2.1.327-tool-parallel", "claude/2.1.327-text-partial"])
def test_claude_recording_is_translated_to_flat_lines(box, case):
    done = start(
        box,
        "--provider",
        "claude",
        "--prompt",
        "x",
        child=box.create_fixture_printer("claude", case),
    )
    assert done.status == 0
    (turn,) = check_flat(done.stdout)
    assert any(line["type"] == "text" for line in turn)


def test_claude_session_is_resumed_by_the_claude_session_id(box):
    child = box.create_fake(
        ["record", str(box.recording)], ["cat", _fixture("claude/2.1.327-text")]
    )
    first = start(box, "--provider", "claude", "--prompt", "x", child=child)
    assert "--include-partial-messages" in box.read_record()["arguments"]
    session = first.init["session_id"]
    start(box, "--provider", "claude", "--prompt", "y", "--resume", session, child=child)
    assert f"--resume={session}" in box.read_record()["arguments"]


def _fixture(name):
    from fixture_cases import FIXTURES

    return str(FIXTURES / name / "vendor.ndjson")


def test_huge_tool_result_is_truncated_and_stored_in_a_file(box):
    result = RESULT | {"output": "x" * 400_000}
    done = start(
        box,
        "--prompt",
        "x",
        child=box.create_fake(["out", format_ndjson(START, CALL, result, END)]),
    )
    (turn,) = check_flat(done.stdout)
    (content,) = (line["content"] for line in turn if line["type"] == "tool_result")
    path = content.partition("the full text is in ")[2].partition(" ")[0]
    with open(path, encoding="utf-8") as file:
        assert file.read() == "x" * 400_000


# -- sessions --------------------------------------------------------------------------------------


def read_child_args(box):
    """Return the arguments of the last child."""
    return box.read_record()["arguments"]


def test_frontend_session_id_resumes_the_vendor_session(box):
    for prompt, session in (("one", ()), ("two", ("--resume", "sess-123"))):
        done = start(
            box, "--session-id", "sess-123", *session, "--prompt", prompt, child=_session(box)
        )
        assert done.init["session_id"] == done.result["session_id"] == "sess-123"
    assert read_child_args(box) == ["vendor-1"]
    start(box, "--session-id", "sess-123", "--prompt", "three", child=_session(box))
    assert read_child_args(box) == ["vendor-1"], "without --resume it is the same tab all the same"


def _session(box):
    return box.create_fake(
        ["record", str(box.recording)],
        ["out", format_ndjson(START | {"session": "vendor-1"}, build_text_event("x"), END)],
    )


def test_unknown_session_ends_with_an_error_result(box):
    done = start(box, "--resume", "sess-9", "--session-id", "sess-9", "--prompt", "x")
    assert (done.status, done.cause) == (1, "not_found")
    (turn,) = check_flat(done.stdout)
    assert turn[0]["session_id"] == "sess-9"


def test_ignored_history_file_prints_a_warning(box):
    done = start(
        box,
        "--resume",
        "other",
        "--session-id",
        "new",
        "--historyFile",
        "/nowhere.json",
        "--prompt",
        "x",
    )
    assert (done.status, done.init["session_id"]) == (0, "new")
    assert done.stderr.startswith("demo: ") and "--history-file is ignored" in done.stderr


def test_session_of_another_vendor_is_refused_without_a_history_file(box):
    start(box, "--session-id", U, "--prompt", "one", child=_session(box))
    child = box.create_fixture_printer("pi", "pi/1.5.2-plain")
    args = ("--provider", "pi", "--session-id", U, "--prompt", "x")
    refused = start(box, *args, child=child)
    assert (refused.status, refused.cause) == (1, "refused")
    check_flat(refused.stdout)
    done = start(box, *args, "--history-file", "/h", child=child)
    assert done.status == 0 and done.init["session_id"] != U


def test_session_uuid_is_derived_deterministically_from_the_name():
    assert (
        derive_session_uuid("sess-123")
        == derive_session_uuid("sess-123")
        != derive_session_uuid("sess-124")
    )
    assert derive_session_uuid(U.upper()) == U


def test_transcript_is_written_in_claude_format(box):
    answer = format_ndjson(
        START | {"session": "v"},
        build_text_event("Hel"),
        build_text_event("lo."),
        CALL,
        RESULT,
        build_text_event("Bye."),
        END,
    )
    start(box, "--session-id", U, "--prompt", "hi there", child=box.create_fake(["out", answer]))
    (path,) = (box.home / ".claude" / "projects").glob(f"*/{U}.jsonl")
    transcript_lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    messages = [line["message"]["content"] for line in transcript_lines if "message" in line]
    assert messages[0] == "hi there"
    assert [block.get("text") or block["type"] for blocks in messages[1:] for block in blocks] == [
        "Hello.",
        "tool_use",
        "tool_result",
        "Bye.",
    ]
    uuids = [line["uuid"] for line in transcript_lines if "uuid" in line]
    assert [line["parentUuid"] for line in transcript_lines if "uuid" in line] == [
        None,
        *uuids[:-1],
    ]


# -- every failure ends with a result --------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "cause"),
    [
        (("--provider", "mistral", "--prompt", "x"), "refused"),
        (("--provider", "goose", "--prompt", "x"), "refused"),
        (("--provider", "../x", "--prompt", "x"), "refused"),
        (("--provider", "demo", "--cwd", "/does/not/exist", "--prompt", "x"), "refused"),
        (("--provider", "demo", "--session-id", "../../etc", "--prompt", "x"), "refused"),
        (("--provider", "demo", "--model", "--evil", "--prompt", "x"), ""),
        (("--provider", "demo", "--model=-x y", "--prompt", "x"), "refused"),
        (("--provider", "qwen", "--api-base", "file:///x", "--prompt", "x"), "refused"),
        (("--provider", "demo"), "refused"),
        (("--provider", "pi", "--permission-mode", "interactive", "--prompt", "x"), "refused"),
        (("--provider", "acai", "--permission-mode", "deny", "--prompt", "x"), "refused"),
    ],
)
def test_invalid_start_arguments_end_with_an_error_result(box, args, cause):
    done = start(box, *args)
    (turn,) = check_flat(done.stdout)
    if cause:
        assert (done.status, done.cause, turn[-2]["is_error"]) == (1, cause, True)
        assert done.stderr


def test_missing_vendor_program_ends_with_an_error_result(box):
    done = start(box, "--prompt", "x", child=str(box.path / "nothing"))
    assert (done.status, done.cause) == (1, "not_found")
    check_flat(done.stdout)


def test_malformed_config_ends_with_a_result(box):
    box.write_settings("vendor = [")
    check_flat(start(box, "--prompt", "x").stdout)


def test_invalid_claude_flag_ends_with_a_result_in_the_yume_dialect(box):
    done = box.run_claude("--input-format", "nonsense", SHIM_DIALECT="yume", SHIM_VENDOR="demo")
    assert done.status == 1
    check_flat(done.stdout)


def test_misspelled_flag_is_rejected_with_a_suggestion(box):
    done = start(box, "--prompt", "hi", "--permision-mode", "plan")
    (turn,) = check_flat(done.stdout)
    assert done.status == 1 and turn[-2]["is_error"] and not box.recording.exists()
    assert (
        "error: unknown option '--permision-mode', did you mean `--permission-mode`?" in done.stderr
    )


def test_r15_unknown_permission_mode_falls_back_to_default(box):
    done = start(box, "--permission-mode", "yolo", "--prompt", "x")
    assert (done.status, done.init["permissionMode"]) == (0, "default")
    assert "; using default" in done.stderr
    through = box.run_claude(*ASK, "--permission-mode", "yolo", SHIM_DIALECT="yume", SHIM_VENDOR="demo",
                         SHIM_BIN=box.create_fake(["out", ANSWER]))  # fmt: skip
    assert through.status == 0
    assert box.run_claude(*ASK, "--permission-mode", "yolo", SHIM_VENDOR="demo").status == 1, (
        "Claude's dialect refuses it"
    )


@pytest.mark.parametrize(
    ("mode", "expected"), [("deny", "plan"), ("auto", "acceptEdits"), ("default", "default")]
)
def test_yume_permission_modes_are_mapped_to_claude_modes(box, mode, expected):
    assert start(box, "--permission-mode", mode, "--prompt", "x").init["permissionMode"] == expected


def test_r10_missing_login_is_reported_as_a_system_error(box):
    child = box.write_program(
        "cursor-agent",
        "echo \"Error: Authentication required. Please run 'agent login'\" >&2\nexit 1\n",
    )
    done = start(box, "--provider", "cursor", "--prompt", "x", child=child)
    (turn,) = check_flat(done.stdout)
    assert summarize_flat_lines(turn) == [
        "init",
        "usage",
        "error",
        "result error_during_execution",
        "message_stop",
    ]
    assert turn[2]["type"] == "system"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_turn_with_a_result(box, number):
    child = box.create_fake(
        ["out", format_ndjson(START, build_text_event("half"))], ["exit_on", "SIGINT", 1], ["hang"]
    )
    with start_with_open_stdin(box, child, "--prompt", "x") as running:
        running.read_until(b"half")
        running.send_signal(number)
        done = running.wait_for_end()
    (turn,) = check_flat(done.stdout)
    assert turn[-2]["subtype"] == (
        "cancelled" if number == signal.SIGINT else "error_during_execution"
    )


# -- R11 -------------------------------------------------------------------------------------------

HALF = format_ndjson(START | {"session": "vendor-1"}, build_text_event("one "))


def test_r11_truncated_stream_is_retried_in_the_same_session(box):
    full_output = format_ndjson(
        START | {"session": "vendor-1"}, build_text_event("one "), build_text_event("two"), END
    )
    child = box.create_fake_sequence(
        [["out", HALF]],
        [
            ["record", str(box.recording)],
            ["read"],
            ["record", str(box.recording)],
            ["out", full_output],
        ],
    )
    done = start(box, "--prompt", "hello", child=child)
    (turn,) = check_flat(done.stdout)
    assert summarize_flat_lines(turn) == [
        "init",
        "text one ",
        "text two",
        "usage",
        "result success",
        "message_stop",
    ]
    assert (done.status, box.read_record()["arguments"], box.read_record()["stdin"]) == (
        0,
        ["vendor-1"],
        "hello",
    )
    assert "sending the message again" in done.stderr


def test_r11_truncated_stream_is_retried_by_the_claude_command(box):
    child = box.create_fake_sequence(
        [["out", HALF]],
        [
            [
                "out",
                format_ndjson(
                    START | {"session": "vendor-1"},
                    build_text_event("one "),
                    build_text_event("two"),
                    END,
                ),
            ]
        ],
    )
    done = box.run_claude(*ASK, SHIM_DIALECT="yume", SHIM_VENDOR="demo", SHIM_BIN=child)
    assert summarize_flat_lines(check_flat(done.stdout)[0])[1:3] == ["text one ", "text two"]


def test_r11_truncated_stream_is_retried_only_once(box):
    child = box.create_fake_sequence([["out", HALF]], [["out", HALF]], [["out", ANSWER]])
    done = start(box, "--prompt", "hello", child=child)
    (turn,) = check_flat(done.stdout)
    assert [line["code"] for line in turn if line["type"] == "error"] == ["STREAM_DISCONNECT"]
    assert summarize_flat_lines(turn).count("text one ") == 1 and done.status == 1


def test_r11_stream_truncated_after_a_tool_call_is_not_retried(box):
    child = box.create_fake_sequence([["out", format_ndjson(START, CALL)]], [["out", ANSWER]])
    (turn,) = check_flat(start(box, "--prompt", "hello", child=child).stdout)
    assert turn[-2]["is_error"] and "text Hello." not in summarize_flat_lines(turn)


def test_r11_claude_dialect_does_not_retry(box):
    child = box.create_fake_sequence([["out", HALF]], [["out", ANSWER]])
    done = box.run_claude(*ASK, SHIM_VENDOR="demo", SHIM_BIN=child)
    assert (done.status, done.cause) == (1, "truncated")


def test_r11_failed_restart_is_reported_in_the_result(box):
    path = box.path / "once"
    child = box.write_program(
        "once", f"[ -e {path} ] && exit 9\ntouch {path}\nprintf '%s' '{HALF}'\nchmod -x $0\n"
    )
    (turn,) = check_flat(start(box, "--prompt", "hello", child=child).stdout)
    assert turn[-2]["is_error"] and "could not be started" in turn[-2]["errors"][0]


def test_r11_message_is_resent_to_a_persistent_child(box):
    connection_error = result(error="[API Error: Connection error.]")
    child = box.create_fake(
        HELLO,
        ["hear", "go"],
        ["out", format_ndjson(INIT, says("half"), connection_error)],
        ["hear", "go"],
        ["out", format_ndjson(says("half"), result("half"))],
        ["hear", "never"],
    )
    with start_with_open_stdin(box, child, vendor="qwen") as running:
        running.send_lines(user("go"))
        running.read_until(b"message_stop")
        done = running.end_input()
    (turn,) = check_flat(done.stdout)
    assert summarize_flat_lines(turn) == [
        "init",
        "text half",
        "usage",
        "result success",
        "message_stop",
    ]


# -- many turns in one process ---------------------------------------------------------------------


def test_conversation_emits_a_single_init_and_a_result_per_message(box):
    start_event = START | {"session": "v"}
    second = ["out", format_ndjson(start_event, build_text_event("two"), END)]
    child = box.create_fake_sequence(
        [["out", format_ndjson(start_event, build_text_event("one"), END)]],
        [["record", str(box.recording)], second],
    )
    with start_with_open_stdin(box, child, "--session-id", "tab-1") as running:
        running.send_lines(user("first"), "$")
        running.read_until(b"message_stop")
        running.send_lines(user("second"))
        done = running.end_input()
    first, second = check_flat(done.stdout)
    assert (done.status, done.stderr) == (0, "")
    assert summarize_flat_lines(first) == [
        "init",
        "text one",
        "usage",
        "result success",
        "message_stop",
    ]
    assert summarize_flat_lines(second) == ["text two", "usage", "result success", "message_stop"]
    assert first[0]["session_id"] == "tab-1" and box.read_record()["arguments"] == ["v"]


def test_frames_written_before_startup_are_processed(box):
    child = box.create_fake(
        ["out", format_ndjson(START | {"session": "v"}, build_text_event("x"), END)]
    )
    done = start(
        box, child=child, stdin=b"\n$\n" + frames(user("one"), {"type": "dance"}, user("two"))
    )
    assert len(check_flat(done.stdout)) == 2
    assert "unknown frame type dance" in done.stderr


@pytest.mark.parametrize(
    "content", [b"half \\ud83d", b"caf\xe9", b"a\tb"], ids=["half a character", "bytes", "a tab"]
)
def test_malformed_text_in_the_first_frame_is_repaired(box, content):
    with start_with_open_stdin(box, box.create_fake(["read"], ["out", ANSWER])) as running:
        running.process.stdin.write(b'{"type":"user","content":"%b"}\n' % content)
        running.process.stdin.flush()
        running.read_until(b'"message_stop"')
        check_flat(running.end_input().stdout)


def test_r9_turn_after_an_interrupt_succeeds(box):
    child = box.create_fake_sequence(
        [
            ["out", format_ndjson(START | {"session": "v"}, build_text_event("half"))],
            ["exit_on", "SIGINT", 1],
            ["hang"],
        ],
        [["out", format_ndjson(START | {"session": "v"}, build_text_event("next"), END)]],
    )
    with start_with_open_stdin(box, child) as running:
        running.send_lines({"type": "interrupt"}, user("one"))
        running.read_until(b"half")
        running.send_lines({"type": "interrupt"})
        running.read_until(b"message_stop")
        running.send_lines(user("two"))
        done = running.end_input()
    first, second = check_flat(done.stdout)
    assert summarize_flat_lines(first)[-3:] == ["interrupt", "result cancelled", "message_stop"]
    assert summarize_flat_lines(second)[0] == "text next"


def test_interrupt_frame_cancels_the_turn_of_a_prompt_flag(box):
    child = box.create_fake(
        ["out", format_ndjson(START, build_text_event("half"))], ["exit_on", "SIGINT", 1], ["hang"]
    )
    with start_with_open_stdin(box, child, "--prompt", "x") as running:
        running.read_until(b"half")
        running.send_lines({"type": "interrupt"})
        (turn,) = check_flat(running.wait_for_end().stdout)
    assert turn[-2]["subtype"] == "cancelled"


def test_unsupported_permission_mode_refuses_the_next_turn(box):
    box.write_settings('[vendors.pi]\ndriver = "one-way"\n')
    child = box.create_fixture_printer("pi", "pi/1.5.2-plain")
    with start_with_open_stdin(box, child, vendor="pi") as running:
        running.send_lines({"type": "set_permission_mode", "mode": "interactive"}, user("x"))
        done = running.end_input()
    (turn,) = check_flat(done.stdout)
    assert turn[-2]["is_error"] and "interactive" in turn[-2]["errors"][0]


# -- approvals -------------------------------------------------------------------------------------

BOTH = (
    HELLO,
    ["hear", "go"],
    ["out", format_ndjson(INIT, calls(), asks())],
    ["hear", "control_response"],
)
AFTER = ["out", format_ndjson(returns("made it"), says("After."), result("After."))]


@pytest.mark.parametrize("prompt", [True, False], ids=["per turn", "persistent"])
def test_approved_tool_call_runs(box, prompt):
    child = box.create_fake(*BOTH, AFTER, ["record", str(box.recording)], ["hear", "never"])
    args = ("--prompt", "go") if prompt else ()
    with start_with_open_stdin(
        box, child, "--permission-mode", "interactive", *args, vendor="qwen"
    ) as running:
        if not prompt:
            running.send_lines(user("go"))
        running.read_until(b'"type":"tool_use","id":"call_1"')
        running.send_lines({"type": "tool_approval", "id": "call_1", "approved": True})
        done = running.wait_for_end() if prompt else running.end_input()
    (turn,) = check_flat(done.stdout)
    assert summarize_flat_lines(turn)[:4] == [
        "init",
        "call call_1 Bash",
        "result call_1 made it",
        "text After.",
    ]
    (answer,) = (
        json.loads(line)
        for line in box.read_record()["stdin"].splitlines()
        if "control_response" in line
    )
    assert answer["response"]["response"] == {"behavior": "allow"}


def test_r14_denied_tool_call_gets_an_error_result(box):
    denied = [
        "out",
        format_ndjson(
            returns("the vendor's words", failed=True), says("Then not."), result("Then not.")
        ),
    ]
    child = box.create_fake(*BOTH, denied, ["record", str(box.recording)], ["hear", "never"])
    with start_with_open_stdin(
        box, child, "--permission-mode", "interactive", vendor="qwen"
    ) as running:
        running.send_lines(user("go"))
        running.read_until(b'"type":"tool_use","id":"call_1"')
        running.send_lines({"type": "tool_approval", "id": "call_1", "approved": False})
        (turn,) = check_flat(running.end_input().stdout)
    assert "failed call_1 The call was denied." in summarize_flat_lines(turn)


def test_r14_stdin_end_denies_a_pending_tool_call(box):
    denied = [
        "out",
        format_ndjson(returns("no", failed=True), says("Then not."), result("Then not.")),
    ]
    child = box.create_fake(*BOTH, denied, ["hear", "never"])
    with start_with_open_stdin(
        box, child, "--permission-mode", "interactive", vendor="qwen"
    ) as running:
        running.send_lines(user("go"))
        running.read_until(b'"type":"tool_use","id":"call_1"')
        (turn,) = check_flat(running.end_input().stdout)
    assert any(entry.startswith("failed call_1 ") for entry in summarize_flat_lines(turn))


def test_r14_approval_timeout_denies_the_tool_call(box):
    """The drop-in has a shorter timeout here, because ten minutes are too long for a test."""
    denied = [
        "out",
        format_ndjson(returns("no", failed=True), says("Then not."), result("Then not.")),
    ]
    child = box.create_fake(*BOTH, denied, ["hear", "never"])
    code = (
        "import sys; from shim.core.yume import control; control.YumeControlSession.prompt_timeout_s = 0.05; "
        "from shim.commands.claude.yume_cli import main; sys.exit(main(sys.argv[1:], {}))"
    )
    args = ["start", "--provider", "qwen", "--permission-mode", "interactive", "--prompt", "go"]
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", code, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=box.build_environment(SHIM_BIN=child),
        cwd=box.cwd,
    )
    with process:
        assert process.stdout is not None
        (turn,) = check_flat(process.stdout.read())
    assert "failed call_1 This call was not approved in time." in summarize_flat_lines(turn)


def test_tool_call_is_denied_without_interactive_mode(box):
    denied = [
        "out",
        format_ndjson(returns("no", failed=True), says("Then not."), result("Then not.")),
    ]
    child = box.create_fake(*BOTH, denied, ["hear", "never"])
    with start_with_open_stdin(box, child, vendor="qwen") as running:
        running.send_lines(user("go"))
        (turn,) = check_flat(running.end_input().stdout)
    assert any("cannot be requested here" in entry for entry in summarize_flat_lines(turn))


# -- secrets ---------------------------------------------------------------------------------------

SECRET = f"ghp_{generate_secret(36)}"
COMMAND = f"printf {SECRET} > token"


def _secretive(box):
    ask_step = ["out", format_ndjson(INIT, calls(command=COMMAND), asks(command=COMMAND))]
    after = ["out", format_ndjson(returns(SECRET), says(f"It is {SECRET}."), result("After."))]
    return box.create_fake(
        HELLO, ["hear", "go"], ask_step, ["hear", "control_response"], after, ["hear", "never"]
    )


def test_secrets_are_redacted_by_default_and_counted_on_stderr(box):
    child = box.create_fake(
        ["read"],
        [
            "out",
            format_ndjson(
                START,
                build_text_event(f"It is {SECRET[:9]}"),
                build_text_event(f"{SECRET[9:]}."),
                END,
            ),
        ],
    )
    done = start(box, "--prompt", "x", child=child)
    assert SECRET.encode() not in done.stdout and b"[REDACTED:github-token]." in done.stdout
    assert done.stderr == "demo: 1 secret was redacted: 1 github-token\n"
    done = start(box, "--prompt", "x", child=child, SHIM_REDACT="none")
    assert SECRET[9:].encode() in done.stdout
    assert done.stderr == ""


def test_tool_call_that_needs_approval_is_not_redacted(box):
    with start_with_open_stdin(
        box, _secretive(box), "--permission-mode", "interactive", vendor="qwen"
    ) as running:
        running.send_lines(user("go"))
        running.read_until(b'"type":"tool_use","id":"call_1"')
        running.send_lines({"type": "tool_approval", "id": "call_1", "approved": True})
        done = running.end_input()
    (turn,) = check_flat(done.stdout)
    (call,) = (line for line in turn if line["type"] == "tool_use")
    assert call["input"] == {"command": COMMAND}
    assert done.stdout.count(SECRET.encode()) == 1
    assert "secrets were redacted" in done.stderr


def test_tool_call_without_approval_is_redacted(box):
    with start_with_open_stdin(box, _secretive(box), vendor="qwen") as running:
        running.send_lines(user("go"))
        done = running.end_input()
    assert len(check_flat(done.stdout)) == 1 and SECRET.encode() not in done.stdout


def test_persistent_vendor_reports_the_requested_session_id(box):
    child = box.create_fake(
        HELLO,
        ["hear", "go"],
        ["out", format_ndjson(INIT, says("x"), result("x"))],
        ["hear", "never"],
    )
    with start_with_open_stdin(
        box, child, "--session-id", VENDOR_SESSION, vendor="qwen"
    ) as running:
        running.send_lines(user("go"))
        assert running.end_input().init["session_id"] == VENDOR_SESSION


def _split_recording(name):
    """Return the lines of a recording before and after the answer that it waited for."""
    with open(_fixture(name), encoding="utf-8") as file:
        lines = file.readlines()
    request_index = next(number for number, line in enumerate(lines) if "can_use_tool" in line)
    return "".join(lines[: request_index + 1]), "".join(lines[request_index + 1 :])


@pytest.mark.parametrize("approved", [True, False])
def test_approval_decision_is_sent_to_a_recorded_claude(box, approved):
    before, after = _split_recording(f"claude/2.1.327-perm-stdio-{'allow' if approved else 'deny'}")
    child = box.create_fake(
        HELLO, ["hear", '"user"'], ["out", before], ["hear", "control_response"], ["out", after],
        ["record", str(box.recording)], ["hear", "never"],
    )  # fmt: skip
    with start_with_open_stdin(
        box, child, "--permission-mode", "interactive", vendor="claude"
    ) as running:
        running.send_lines(user("go"))
        call = json.loads(next(line for line in before.splitlines() if "can_use_tool" in line))[
            "request"
        ]["tool_use_id"]
        running.read_until(b'"type":"tool_use","id":"' + call.encode())
        running.send_lines({"type": "tool_approval", "id": call, "approved": approved})
        (turn,) = check_flat(running.end_input().stdout)
    (tool_result,) = (line for line in turn if line["type"] == "tool_result")
    assert tool_result["is_error"] is not approved
    assert "--permission-prompt-tool=stdio" in box.read_record()["arguments"]
    (answer,) = (
        json.loads(line)
        for line in box.read_record()["stdin"].splitlines()
        if "control_response" in line
    )
    assert answer["response"]["response"]["behavior"] == ("allow" if approved else "deny")


# -- the binary ------------------------------------------------------------------------------------


def run(path, *args, **options):
    return subprocess.run(
        [path, *args],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=TIMEOUT_S,
        check=False,
        **options,
    )


def test_installed_yume_cli_handles_start_version_and_auth_status(box):
    path, _ = install_drop_in_script(str(box.bin), "yume-cli", {"vendor": "demo"}, force=False)
    environment = box.build_environment(SHIM_BIN=box.create_fake(["out", ANSWER]))
    done = run(path, "start", "--prompt", "hi", env=environment, cwd=box.cwd)
    assert done.returncode == 0, done.stderr
    check_flat(done.stdout)
    version = run(path, "--version", env=environment, cwd=box.cwd)
    assert version.stdout == b"0.1.0 (yume-cli)\n"
    status = run(path, "auth", "status", "--provider", "qwen", env=environment, cwd=box.cwd)
    assert (
        json.loads(status.stdout)["loggedIn"] is True
        and json.loads(status.stdout)["authMethod"] == "qwen"
    )


def test_installed_claude_uses_its_configured_dialect(box):
    path, _ = install_drop_in_script(
        str(box.bin), "claude", {"vendor": "demo", "dialect": "yume"}, force=False
    )
    environment = box.build_environment(SHIM_BIN=box.create_fake(["out", ANSWER]))
    check_flat(run(path, *ASK, env=environment, cwd=box.cwd).stdout)
    other = run(path, *ASK, "--shim-dialect", "claude", env=environment, cwd=box.cwd)
    assert b'"type":"assistant"' in other.stdout


def test_translate_writes_the_yume_dialect(box):
    done = box.run_shim(
        "translate", "pi", _fixture("pi/1.5.2-plain"), "--dialect", "yume", "--stable-ids"
    )
    with open(_fixture("pi/1.5.2-plain").replace("vendor.ndjson", "yume.ndjson"), "rb") as golden:
        assert done.stdout == golden.read()


def test_terminal_output_of_run_ignores_the_dialect(box):
    environment = box.build_environment(
        SHIM_DIALECT="yume", SHIM_BIN=box.create_fake(["out", ANSWER])
    )
    assert b"Hello." in box.run_shim("run", "-v", "demo", "hi", environment=environment).stdout


def test_help_lists_the_flags(box):
    done = box.run_shim("yume-cli", "--help")
    assert done.status == 0 and b"--permission-mode" in done.stdout


def test_yume_modules_are_imported_only_for_the_yume_dialect(box):
    code = (
        "import sys; from shim.__main__ import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "sys.stderr.write(' '.join(sorted(m for m in sys.modules if m.startswith('shim.core.yume.'))))"
    )
    environment = box.build_environment(
        SHIM_VENDOR="demo", SHIM_BIN=box.create_fake(["out", ANSWER])
    )
    done = run(sys.executable, "-c", code, "claude", *ASK, env=environment, cwd=os.getcwd())
    assert done.stderr == b""
    environment["SHIM_DIALECT"] = "yume"
    done = run(sys.executable, "-c", code, "claude", *ASK, env=environment, cwd=os.getcwd())
    assert b"shim.core.yume.encoder" in done.stderr


@pytest.mark.parametrize("base", ["http://127.0.0.1:9/v1", ""])
def test_api_base_is_set_in_the_environment_of_the_child(box, base):
    child = box.create_fake(["record", str(box.recording)], ["cat", _fixture("qwen/0.24.4-text")])
    args = ("--api-base", base) if base else ()
    start(box, "--provider", "qwen", "--prompt", "x", *args, child=child)
    assert box.read_record()["environment"].get("OPENAI_BASE_URL", "") == base


def test_truncated_reply_is_not_retried_if_the_vendor_has_no_sessions(box):
    """R11 repeats a message only if the conversation can be resumed."""
    init, says_first, first, says_second, says_other, other = (
        {name: value for name, value in line.items() if name != "session_id"}
        for line in (
            INIT,
            says("First."),
            result("First."),
            says("Sec"),
            says("Who are you?"),
            result("Who are you?"),
        )
    )
    cut = [
        HELLO,
        ["hear", "one"],
        ["out", format_ndjson(init, says_first, first)],
        ["hear", "two"],
        ["out", format_ndjson(init, says_second)],
        ["leave", 0],
    ]
    fresh = [
        HELLO,
        ["hear", "two"],
        ["record", str(box.recording)],
        ["out", format_ndjson(init, says_other, other)],
    ]
    with start_with_open_stdin(box, box.create_fake_sequence(cut, fresh), vendor="qwen") as running:
        running.send_lines(user("one"))
        running.read_until(b'"message_stop"')
        running.send_lines(user("two"))
        running.end_input()
    assert not box.recording.exists()
