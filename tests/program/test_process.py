"""Contract rules about the process that no single module implements: argv in, bytes and a status
out.
"""

import json
import re
import subprocess
import uuid

import pytest
from box import ANSWER, ASK, CONVERSE, END, START, STREAM, build_text_event, format_ndjson
from stream_invariants import SEPARATORS, check_turns

from shim.process import child as children
from tests.conversation.test_conversation import (
    IDLE,
    TALKING,
    kinds,
    request,
    responses,
    results,
    stdin,
    user,
)

U = "11111111-2222-4333-8444-555555555555"
MAX_CHARACTERS = 1_048_576  # of a line, as the Python SDK decodes it (P12)


@pytest.fixture
def demo(box):
    """Return the environment of the bundled vendor with a fake program that records its input and
    answers at once.
    """
    return {
        "SHIM_VENDOR": "demo",
        "SHIM_BIN": box.create_fake(["read"], ["record", str(box.recording)], ["out", ANSWER]),
    }


# -- arguments -------------------------------------------------------------------------------------


def test_print_mode_works_without_the_print_flag(box, demo):
    """P3: neither SDK passes -p. A stdout that is not a terminal is enough, and so is stream-json
    input.
    """
    assert box.run_claude("hi", **demo).stdout == b"Hello.\n"
    assert box.run_claude("hi", *STREAM, **demo).result["result"] == "Hello."
    assert box.run_claude(*CONVERSE, stdin=stdin(user("hi")), **demo).result["result"] == "Hello."


@pytest.mark.parametrize("first", [True, False], ids=["in front", "behind"])
def test_flag_values_may_use_equals_repeat_or_be_empty_on_either_side(box, demo, first):
    """P4"""
    flags = [
        "--output-format=stream-json",
        "--verbose",
        "--allowedTools",
        "Bash",
        "--allowedTools",
        "Read",
    ]
    flags += ["--system-prompt", "", "--tools", "", f"--session-id={U}"]
    done = box.run_claude(*(["hi"] * first), *flags, *(["--", "hi"] * (not first)), **demo)
    assert (done.status, done.stderr) == (0, "")
    assert (done.init["session_id"], done.init["tools"]) == (U, [])
    assert box.read_record()["stdin"] == "hi"


@pytest.mark.parametrize(
    "args",
    [("--no-such-flag",), ("--no-such=1",), ("--no-such-flag", "x"), ("-Z",), ("--verbose=yes",)],
)
def test_unknown_flag_prints_a_warning_and_is_not_passed_to_the_vendor(box, demo, args):
    """P5"""
    done = box.run_claude("-p", "hi", *args, *STREAM, **demo)
    assert (done.status, done.result["result"]) == (0, "Hello.")
    assert done.stderr.startswith("warning: ") and args[0].partition("=")[0] in done.stderr
    assert done.stderr.count("\n") == 1
    assert (box.read_record()["arguments"], box.read_record()["stdin"]) == ([], "hi")


def test_prompt_after_a_flag_with_equals_is_not_read_as_a_value(box, demo):
    """P6"""
    done = box.run_claude("--disallowedTools=Bash", "hi", **demo)
    assert (done.status, done.stdout) == (0, b"Hello.\n")
    assert box.run_claude("hi", "--disallowedTools", "Bash", "Edit", **demo).stdout == b"Hello.\n"
    assert box.run_claude("--disallowedTools", "Bash", "--", "hi", **demo).stdout == b"Hello.\n"


def test_second_positional_is_ignored(box, demo):
    """P7"""
    assert box.run_claude("first", "second", **demo).status == 0
    assert box.read_record()["stdin"] == "first"


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (
            ("-p", "hi", "--include-partial-messages"),
            "Error: --include-partial-messages requires --print and --output-format=stream-json.",
        ),
        (
            ("-p", "--input-format", "stream-json"),
            "Error: --input-format=stream-json requires output-format=stream-json.",
        ),
        (
            ("-p", "hi", *STREAM, "--replay-user-messages"),
            "Error: --replay-user-messages requires both --input-format=stream-json and --output-format=stream-json.",
        ),
        (
            ("-p", "hi", "--session-id", "nonsense"),
            "Error: Invalid session ID. Must be a valid UUID.",
        ),
        (
            ("-p", "hi", "--resume", U, "--session-id", U),
            "Error: --session-id with --continue or --resume also needs --fork-session.",
        ),
    ],
)
def test_conflicting_flags_exit_with_status_1_and_start_no_child(box, demo, args, complaint):
    """F3, F6, contract 11"""
    done = box.run_claude(*args, **demo)
    assert (done.status, done.stdout) == (1, b"")
    assert done.stderr.startswith(complaint)
    assert not box.recording.exists()


# -- bytes -----------------------------------------------------------------------------------------


def test_each_line_is_written_without_buffering(box):
    """P8: no output waits in a buffer for later output."""
    gate = box.create_gate()
    child = box.create_fake(
        ["out", format_ndjson(START, build_text_event("One."), *USE)],
        ["wait", gate.path],
        ["out", format_ndjson(RETURN, END)],
    )
    with box.start_claude(*ASK, environment={"SHIM_VENDOR": "demo", "SHIM_BIN": child}) as running:
        output = running.read_until(b'"tool_use"')
        assert output.endswith(b"\n") and b"\r" not in output
        assert [json.loads(line)["type"] for line in output.splitlines()] == [
            "system",
            "assistant",
            "assistant",
        ]
        gate.open()
        assert running.wait_for_end().status == 0


USE = ({"type": "call", "id": "c1", "name": "Bash", "input": {"command": "ls"}},)
RETURN = {"type": "result", "id": "c1", "output": "a"}
BROKEN = (
    b'null\n[1]\n{"a":1}\n"text"\n17\n{}\nplain words\n\n\r\n{"type":7}\n{"type":null}\n{"type":"end\n'
    b'{"type":"text","text":"bad \xff byte"}\n{"type":"text","text":"half \\ud83d"}\n{"type":"text",\n'
    b'{"type":"text","text":"line\xe2\x80\xa8separator"}\n{"type":"error","error":"x"}\n'
)


def test_stdout_is_valid_utf8_ndjson_after_broken_vendor_output(box):
    """P8, P9, P10, P11, S17: strict UTF-8, and one object with a type per line, for any output of
    the child.
    """
    path = box.path / "broken"
    path.write_bytes(
        format_ndjson(START).encode()
        + BROKEN
        + format_ndjson(build_text_event(" end"), END).encode()
    )
    for partial in (False, True):
        flags = ["--include-partial-messages"] * partial
        done = box.run_claude(
            *ASK, *flags, SHIM_VENDOR="demo", SHIM_BIN=box.create_fake(["cat", str(path)])
        )
        (turn,) = check_turns(done.stdout, partial)
        assert done.status == 0
        assert not any(separator.encode() in done.stdout for separator in SEPARATORS)
        assert {line["type"] for line in turn} <= {
            "system",
            "assistant",
            "stream_event",
            "result",
            "message_stop",
        }


@pytest.mark.parametrize("partial", [False, True], ids=["whole", "partial"])
@pytest.mark.parametrize("what", ["text", "input", "result"])
@pytest.mark.parametrize(
    ("environment", "limit"), [({}, 100_000), ({"CLAUDE_CODE_ENTRYPOINT": "sdk-py"}, 1_000_000)]
)
def test_long_values_are_split_or_truncated_to_the_line_limit(
    box, what, environment, limit, partial
):
    """P12"""
    long = "x" * (MAX_CHARACTERS + 1000)
    use = {
        "type": "call",
        "id": "c1",
        "name": "Bash",
        "input": {"command": long if what == "input" else "ls"},
    }
    back = {"type": "result", "id": "c1", "output": long if what == "result" else "a"}
    path = box.path / "long"
    path.write_text(
        format_ndjson(
            START, use, back, build_text_event(long if what == "text" else "Hello."), END
        ),
        encoding="utf-8",
    )
    flags = ["--include-partial-messages"] * partial
    child = box.create_fake(["cat", str(path)])
    done = box.run_claude(*ASK, *flags, SHIM_VENDOR="demo", SHIM_BIN=child, **environment)
    assert done.status == 0
    assert max(map(len, done.stdout.split(b"\n"))) < limit < MAX_CHARACTERS
    blocks = [
        block
        for line in done.lines
        if line["type"] == "assistant"
        for block in line["message"]["content"]
    ]
    if what == "text":
        assert "".join(block["text"] for block in blocks if block["type"] == "text") == long
        assert "characters left out" in done.result["result"]
    if what == "result":
        (spill_file,) = (box.state / "spill").rglob("*.txt")
        assert spill_file.read_text(encoding="utf-8") == long
        assert (
            str(spill_file) in done.stdout.decode() and spill_file.stat().st_mode & 0o777 == 0o600
        )
        assert done.result["shim"]["repairs"] == {"result_cut": 1}
    if what == "input":
        assert done.result["shim"]["repairs"] == {"input_cut": 1}


# -- the end ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "steps",
    [
        [["out", ANSWER]],
        [["out", ANSWER], ["leave", 3]],
        [["out", ANSWER], ["die", "SIGKILL"]],
        [["out", TALKING]],
        [["out", TALKING], ["leave", 3]],
        [["out", TALKING], ["die", "SIGKILL"]],
        [["leave", 1]],
        [["leave", 0]],
    ],
    ids=[
        "good",
        "good, then 3",
        "good, then killed",
        "cut",
        "cut, then 3",
        "cut, then killed",
        "1",
        "nothing",
    ],
)
@pytest.mark.parametrize("entrypoint", ["", "sdk-py"])
def test_exit_status_matches_is_error_of_the_last_result(box, steps, entrypoint):
    """P13, P14, S16b: an error result comes before exit status 1, and an SDK receives nothing after
    that result.
    """
    done = box.run_claude(
        *ASK,
        CLAUDE_CODE_ENTRYPOINT=entrypoint,
        SHIM_VENDOR="demo",
        SHIM_BIN=box.create_fake(["read"], *steps),
    )
    assert done.status == int(done.result["is_error"])
    if entrypoint:
        assert done.lines[-1]["type"] == "result"


def test_idle_conversation_exits_after_stdin_is_closed(box):
    """P15, P16: the shim runs until stdin is closed, and no child of the vendor delays its exit."""
    init, done = (
        {"type": "system", "subtype": "init", "session_id": U, "tools": [], "model": "m1"},
        {
            "type": "result",
            "subtype": "success",
            "is_error": False,
            "result": "Hello.",
            "session_id": U,
        },
    )
    child = box.create_fake(
        ["hear", "initialize"],
        ["hear", "go"],
        ["out", format_ndjson(init, done)],
        ["hear", "never"],
    )
    environment = {"SHIM_VENDOR": "qwen", "SHIM_BIN": child}
    with box.start_claude(*CONVERSE, stdin=subprocess.PIPE, environment=environment) as running:
        running.send_lines(user("go"))
        running.read_until(b'"type":"result"')
        assert running.process.poll() is None
        running.process.stdin.close()
        running.process.stdin = None
        # The slack is for the machine, not for the shim.
        assert running.process.wait(timeout=children.IDLE_EXIT_TIMEOUT_S + 3) == 0


def test_idle_child_shutdown_timeouts_fit_within_the_sdk_timeout():
    """P16: the TypeScript SDK terminates the shim 2 s after it has closed stdin."""
    total_s = (
        children.IDLE_EXIT_TIMEOUT_S
        + children.IDLE_TERMINATE_TIMEOUT_S
        + children.IDLE_KILL_TIMEOUT_S
    )
    assert total_s <= 1.8


# -- conversations ---------------------------------------------------------------------------------


def test_every_line_has_a_unique_random_uuid(box, demo):
    """S3"""
    for flags in ((), ("--include-partial-messages",)):
        done = box.run_claude("hi", *STREAM, *flags, **demo)
        uuids = [uuid.UUID(line["uuid"]) for line in done.lines]
        assert {value.version for value in uuids} == {4}
        assert len(set(uuids)) == len(done.lines)


def test_interleaved_messages_and_initialize_requests_are_all_answered(box):
    """C2, C1, S2: every line that a frontend writes at once is answered, and no init line comes
    before the first message.
    """
    child = box.create_fake(["read"], ["out", IDLE])
    lines = (
        request("a", "initialize"),
        user("one"),
        request("b", "initialize"),
        user("two"),
        request("c", "initialize"),
    )
    done = box.run_claude(*CONVERSE, stdin=stdin(*lines), SHIM_VENDOR="demo", SHIM_BIN=child)
    bodies = [responses(done)[request_id]["response"] for request_id in "abc"]
    assert all(
        {"commands", "agents", "models", "account", "output_style"} <= body.keys()
        for body in bodies
    )
    assert kinds(done)[0] == "control_response"
    assert [kind for kind in kinds(done) if kind != "control_response"] == [
        "init",
        "assistant",
        "result",
    ] * 2
    assert [line["result"] for line in results(done)] == ["Hello.", "Hello."]


def test_message_received_during_a_turn_starts_the_next_turn(box):
    """C16"""
    gate = box.create_gate()
    busy = [
        ["out", TALKING],
        ["wait", gate.path],
        ["out", format_ndjson(build_text_event("done."), END)],
    ]
    child = box.create_fake_sequence(busy, [["out", IDLE]])
    environment = {"SHIM_VENDOR": "demo", "SHIM_BIN": child}
    with box.start_claude(
        *CONVERSE, "--include-partial-messages", stdin=subprocess.PIPE, environment=environment
    ) as running:
        running.send_lines(user("one"))
        running.read_until(b"I am ")
        running.send_lines(user("two"), request("m", "mcp_status"))
        running.read_until(b'"request_id":"m"')
        gate.open()
        done = running.end_input()
    frame = [kind for kind in kinds(done) if kind in ("init", "result")]
    assert frame == ["init", "result"] * 2
    assert [line["result"] for line in results(done)] == ["I am done.", "Hello."]


def test_control_responses_use_the_envelope_of_real_claude(box):
    """C4"""
    lines = (request("good", "mcp_status"), request("bad", "no_such"))
    done = box.run_claude(*CONVERSE, stdin=stdin(*lines), SHIM_VENDOR="demo", SHIM_BIN="/bin/true")
    assert done.lines == [
        {
            "type": "control_response",
            "response": {
                "subtype": "success",
                "request_id": "good",
                "response": {"mcpServers": []},
            },
        },
        {
            "type": "control_response",
            "response": {
                "subtype": "error",
                "request_id": "bad",
                "error": "Unsupported control request subtype: no_such",
                "error_code": "unsupported_request",
            },
        },
    ]


def test_resume_of_an_unknown_session_exits_while_stdin_is_open(box):
    """F7"""
    child = box.create_fake(["record", str(box.recording)])
    environment = {"SHIM_VENDOR": "demo", "SHIM_BIN": child}
    with box.start_claude(
        *CONVERSE, "--resume", U, stdin=subprocess.PIPE, environment=environment
    ) as running:
        assert running.wait_for_status() == 1  # stdin is still open
        done = running.wait_for_end()
    assert kinds(done) == ["result"]
    assert (done.result["session_id"], done.result["errors"]) == (
        U,
        [f"No conversation found with session ID: {U}"],
    )
    assert not box.recording.exists()


# -- the options of a turn -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "tools"),
    [
        ((), ["Read", "Bash"]),
        (("--tools", "default"), ["Read", "Bash"]),
        (("--tools", ""), []),
        (("--tools", "Bash,NoSuchTool"), ["Bash"]),
        (("--disallowedTools", "Bash"), ["Read"]),
        (("--disallowedTools", "Bash(rm *)"), ["Read", "Bash"]),
        (("--allowedTools", "Edit"), ["Read", "Bash"]),
        (("--permission-prompt-tool", "stdio"), ["Read", "Bash"]),
    ],
)
def test_init_lists_only_tools_that_the_flags_permit(box, demo, args, tools):
    """F8: the real claude adds its own tools to some of these lists. Vendors have no such tools, so
    none are added.
    """
    done = box.run_claude("hi", *STREAM, *args, "--permission-mode", "plan", **demo)
    assert done.init["tools"] == tools
    assert done.init["permissionMode"] == "plan"


def test_init_reports_the_vendor_model_name_or_the_requested_model(box):
    """F9"""
    nameless = {name: value for name, value in START.items() if name != "model"}
    for start, model in ((nameless, "zzz"), (START | {"model": "zzz-2026"}, "zzz-2026")):
        child = box.create_fake(
            ["read"], ["out", format_ndjson(start, build_text_event("Hello."), END)]
        )
        done = box.run_claude("hi", *STREAM, "--model", "zzz", SHIM_VENDOR="demo", SHIM_BIN=child)
        assert (done.status, done.init["model"]) == (0, model)


@pytest.mark.parametrize(
    ("limit", "reached"), [("0", False), ("1", True), ("2", True), ("3", False)]
)
def test_max_turns_ends_a_turn_that_would_continue(box, limit, reached):
    """F10: zero means no limit."""
    replies = [event for number in (1, 2) for event in (_call(number), _return(number))]
    child = box.create_fake(
        ["read"], ["out", format_ndjson(START, *replies, build_text_event("Done."), END)]
    )
    done = box.run_claude("hi", *STREAM, "--max-turns", limit, SHIM_VENDOR="demo", SHIM_BIN=child)
    assert done.status == int(reached)
    if reached:
        assert (done.result["subtype"], done.result["is_error"]) == ("error_max_turns", True)
        assert done.result["errors"] == [f"Reached maximum number of turns ({limit})"]
        assert done.result["num_turns"] == int(limit) + 1
        assert done.result["terminal_reason"] == "max_turns"
    else:
        assert (done.result["subtype"], done.result["result"]) == ("success", "Done.")


def _call(number):
    return USE[0] | {"id": f"c{number}"}


def _return(number):
    return RETURN | {"id": f"c{number}"}


def test_every_line_starts_with_its_type_key(box):
    """S15: readers look for `{"type":"assistant"` at the start of a line."""
    child = box.create_fake(
        ["read"],
        [
            "out",
            format_ndjson(
                START, build_text_event("One."), *USE, RETURN, build_text_event("Two."), END
            ),
        ],
    )
    environment = {"SHIM_VENDOR": "demo", "SHIM_BIN": child}
    lines = (
        request("a", "initialize"),
        request("p", "set_permission_mode", mode="plan"),
        user("hi"),
    )
    done = box.run_claude(
        *CONVERSE, "--include-partial-messages", stdin=stdin(*lines), **environment
    )
    assert all(re.match(rb'\{"type":"[a-z_]+"', line) for line in done.stdout.splitlines())
