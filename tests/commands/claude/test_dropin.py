"""The drop-in `claude` as a process, with stand-ins for the vendors."""

import io
import json
import os
import stat
import subprocess
import sys
from types import SimpleNamespace

import pytest
from box import ANSWER, ASK, SHIM, STREAM, TELL_VERSION, TIMEOUT_S, Running
from stream_invariants import check_turns
from stream_lines import TERMINATOR, find_result

from shim.commands.turn import demo_child
from shim.conversation.drivers.open_translation import create_standalone_child_stream
from shim.core.turn.outcome import ChildExit

U = "11111111-2222-4333-8444-555555555555"
V = "99999999-2222-4333-8444-555555555555"

# Vendor → the fixture that its stand-in prints, and the answer in it.
STANDINS = {
    "acai": "acai/2026-04-text",
    "cake": "cake/2026-07-text",
    "cursor": "cursor/shape-2026.08-text-thinking",
    "pi": "pi/1.5.2-plain",
    "qwen": "qwen/0.24.4-text",
    "claude": "claude/2.1.327-text",
}


@pytest.fixture
def demo(box):
    """Return the environment of the bundled vendor with a fake program that answers at once."""
    return {
        "SHIM_VENDOR": "demo",
        "SHIM_BIN": box.create_fake(["read"], ["record", str(box.recording)], ["out", ANSWER]),
    }


def run_refused_turn(box, *args, **environment):
    """Run a turn that must not start: the stand-in of every vendor would create a file."""
    trap = box.write_program("trap", f"touch {box.path}/started\n")
    done = box.run_claude(*args, **({"SHIM_BIN": trap} | environment))
    assert not (box.path / "started").exists(), "a vendor was started"
    return done


# -- a turn of each vendor -------------------------------------------------------------------------


@pytest.mark.parametrize("vendor", STANDINS)
def test_turn_of_each_vendor_is_a_valid_claude_turn(box, vendor):
    """P21"""
    done = box.run_claude(
        *ASK, SHIM_VENDOR=vendor, SHIM_BIN=box.create_fixture_printer("standin", STANDINS[vendor])
    )
    (turn,) = check_turns(done.stdout, False, passthrough=vendor == "claude")
    assert (done.status, done.stderr) == (0, "")
    assert turn[0]["subtype"] == "init"
    assert turn[0].get("shim", {}).get("unattended", False) is (vendor in ("acai", "cake", "pi"))
    assert find_result(turn)["is_error"] is False and find_result(turn)["result"]
    assert turn[-1] == TERMINATOR


def test_demo_vendor_runs_a_complete_session(capsys, monkeypatch):
    monkeypatch.setattr(demo_child, "TOKEN_PAUSE_S", 0)
    monkeypatch.setattr(demo_child, "REPLY_PAUSE_S", 0)
    monkeypatch.setattr("sys.stdin", io.StringIO("make it nicer"))
    demo_child.main()
    translation = create_standalone_child_stream("demo", include_partial_messages=True)
    output = (
        translation.feed(capsys.readouterr().out.encode())[0]
        + translation.close(ChildExit(code=0))[0]
    )
    (turn,) = check_turns(output, True)
    assert find_result(turn)["is_error"] is False
    calls = [block["name"] for line in turn if line["type"] == "assistant" for block in line["message"]["content"]
             if block["type"] == "tool_use"]  # fmt: skip
    assert calls == ["Read", "Edit", "Bash"]


def test_partial_messages_are_streamed_when_requested(box):
    standin = box.create_fixture_printer("standin", "qwen/0.24.4-text-partial")
    done = box.run_claude(*ASK, "--include-partial-messages", SHIM_VENDOR="qwen", SHIM_BIN=standin)
    check_turns(done.stdout, True)
    assert any(line["type"] == "stream_event" for line in done.lines)


# -- formats and exit codes ------------------------------------------------------------------------


def test_json_output_is_a_single_object_with_a_newline(box, demo):
    """F1"""
    done = box.run_claude("-p", "hi", "--output-format", "json", **demo)
    assert done.stdout.count(b"\n") == 1 and done.stdout.endswith(b"}\n")
    assert json.loads(done.stdout)["result"] == "Hello."


def test_verbose_json_output_is_an_array_without_a_newline(box, demo):
    """F1"""
    done = box.run_claude("-p", "hi", "--output-format", "json", "--verbose", **demo)
    assert not done.stdout.endswith(b"\n")
    assert [line["type"] for line in json.loads(done.stdout)] == ["system", "assistant", "result"]


def test_text_output_is_the_answer_with_a_newline(box, demo):
    """F1"""
    done = box.run_claude("-p", "hi", **demo)
    assert (done.stdout, done.stderr, done.status) == (b"Hello.\n", "", 0)


@pytest.mark.parametrize(
    "args", [STREAM, ("--output-format", "json"), ()], ids=["stream", "json", "text"]
)
def test_vendor_failure_exits_with_status_1_in_every_format(box, args):
    failing = box.create_fake(["leave", 3])
    done = box.run_claude("-p", "hi", *args, SHIM_VENDOR="demo", SHIM_BIN=failing)
    assert done.status == 1
    assert b"exited with code 3" in done.stdout


@pytest.mark.parametrize("number", [9, 15])
def test_killed_vendor_exits_with_status_1(box, number):
    standin = box.write_program("standin", f"kill -{number} $$\n")
    done = box.run_claude(*ASK, SHIM_VENDOR="qwen", SHIM_BIN=standin)
    assert (done.status, done.cause) == (1, "signal")


def test_stdout_to_dev_null_is_not_an_error(box, demo):
    with box.start_claude(*ASK, environment=demo, stdout=subprocess.DEVNULL) as dropin:
        assert dropin.wait_for_status() == 0
    assert box.recording.exists()


# -- the terminator --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "environment", "expected"),
    [
        (ASK, {}, b'{"type":"message_stop"}\n'),
        (("hi", *STREAM), {}, b""),
        (ASK, {"CLAUDE_CODE_ENTRYPOINT": "sdk-py"}, b""),
        ((*ASK, "--shim-terminator", "none"), {}, b""),
        ((*ASK, "--shim-terminator=dollar"), {}, b"$\n"),
        (("hi", *STREAM), {"SHIM_TERMINATOR": "message_stop"}, b'{"type":"message_stop"}\n'),
    ],
    ids=["asked with -p", "without -p", "an SDK", "none", "dollar", "the environment's"],
)
@pytest.mark.parametrize("has_program", [True, False], ids=["a turn", "a refusal"])
def test_terminator_follows_the_result(box, demo, args, environment, expected, has_program):
    """S16b"""
    done = box.run_claude(
        *args, **(demo | environment | ({} if has_program else {"SHIM_BIN": "/nowhere"}))
    )
    assert done.status == (0 if has_program else 1)
    result = done.stdout.index(b'{"type":"result"')
    assert done.stdout[done.stdout.index(b"\n", result) + 1 :] == expected


# -- a turn that cannot start ----------------------------------------------------------------------


def test_missing_vendor_program_writes_a_result_and_exits_with_status_1(box):
    done = box.run_claude(*ASK, SHIM_VENDOR="qwen")
    assert (done.status, done.cause) == (1, "not_found")
    assert done.result["shim"]["vendor"] == "qwen"
    assert "no program called qwen" in done.result["errors"][0]
    assert "SHIM_BIN" in done.stderr


def test_missing_vendor_program_exits_with_status_127_in_text_format(box):
    done = box.run_claude("-p", "hi", SHIM_VENDOR="qwen")
    assert (done.status, done.stdout) == (127, b"")
    assert "no program called qwen" in done.stderr


def test_vendor_file_that_cannot_be_executed_is_reported_as_missing(box):
    path = box.path / "qwen"
    path.write_text("no program\n", encoding="utf-8")
    done = box.run_claude(*ASK, SHIM_VENDOR="qwen", SHIM_BIN=str(path))
    assert (done.status, done.cause) == (1, "not_found")


@pytest.mark.parametrize(
    "args", [STREAM, ("--output-format", "json"), ("--output-format", "json", "--verbose")]
)
def test_unknown_vendor_is_reported_in_every_json_format(box, args):
    done = run_refused_turn(box, "-p", "hi", *args, SHIM_VENDOR="nobody")
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    result = [
        line
        for line in (messages[0] if isinstance(messages[0], list) else messages)
        if line["type"] == "result"
    ]
    assert done.status == 1
    assert len(result) == 1 and "unknown vendor" in result[0]["errors"][0]


def test_hint_lists_programs_on_path_if_no_vendor_is_configured(box):
    box.write_program("pi", "exit 0\n")
    done = run_refused_turn(box, *ASK)
    assert (done.status, done.cause) == (1, "refused")
    assert f"pi ({box.bin}/pi)" in done.stderr


@pytest.mark.parametrize(
    ("vendor", "mode"),
    [
        *(
            (vendor, mode)
            for vendor in ("acai", "cake")
            for mode in ("plan", "acceptEdits", "dontAsk", "auto")
        ),
        *((vendor, mode) for vendor in ("pi", "cursor") for mode in ("dontAsk", "auto")),
    ],
)
def test_unsupported_mode_is_refused_before_a_child_starts(local_box, capfd, vendor, mode):
    """The test runs in this process: it checks only the refusal, which is the same code."""
    from shim.commands.claude.dropin import main

    trap = local_box.write_program("trap", f"touch {local_box.path}/started\n")
    os.environ["SHIM_BIN"] = trap
    try:
        status = main([*ASK, "--permission-mode", mode, "--shim-vendor", vendor], {})
    finally:
        del os.environ["SHIM_BIN"]
    stdout, complaint = capfd.readouterr()
    assert status == 1
    assert not (local_box.path / "started").exists(), "a vendor was started"
    assert f"does not support the permission mode {mode}" in complaint
    assert [json.loads(line)["type"] for line in stdout.splitlines()] == [
        "system",
        "result",
        "message_stop",
    ]


def test_unsupported_mode_prints_a_single_error_line_and_a_hint(box):
    done = run_refused_turn(box, *ASK, "--permission-mode", "plan", SHIM_VENDOR="acai")
    assert (done.status, done.cause) == (1, "refused")
    assert len(done.stderr.splitlines()) == 2  # the error, and its hint


@pytest.mark.parametrize("args", [(), ("",), ("  ",)], ids=["none", "empty", "blank"])
def test_missing_prompt_prints_the_error_of_claude(box, args):
    """F4, contract 11"""
    done = run_refused_turn(box, "-p", *args, *STREAM, SHIM_VENDOR="demo")
    assert (done.status, done.stdout) == (1, b"")
    assert done.stderr.startswith(
        "Error: Input must be provided either through stdin or as a prompt argument when using --print"
    )


def test_prompt_consumed_by_a_flag_is_named_in_the_error(box):
    """P6, F4"""
    done = run_refused_turn(
        box, "-p", *STREAM, "--disallowedTools", "Bash", "go", SHIM_VENDOR="demo"
    )
    assert (done.status, done.stdout) == (1, b"")
    assert '"go" was read as a value of --disallowedTools, not as a prompt' in done.stderr
    assert "put a prompt before --disallowedTools or after --" in done.stderr


def test_invalid_argument_exits_with_status_1_and_empty_stdout(box):
    done = run_refused_turn(box, "-p", "hi", "--output-format", "xml", SHIM_VENDOR="demo")
    assert (done.status, done.stdout) == (1, b"")
    assert "Allowed choices are text, json, stream-json." in done.stderr


def test_invalid_config_value_exits_with_status_1_and_a_result(box):
    box.write_settings("terminator = 3\n")
    done = run_refused_turn(box, *ASK, SHIM_VENDOR="demo")
    assert (done.status, done.cause) == (1, "refused")
    assert f"{box.config}:1: terminator is 3; it must be a string" in done.stderr


@pytest.mark.parametrize(
    ("toml", "error"),
    [
        ('vendr = "demo"', "unknown key `vendr` in FILE line 1, did you mean `vendor`?"),
        ('vendor = "deno"', 'FILE:1: vendor is "deno"; it must be one of '),
        (
            "[vendors.dem]\ntrust = true",
            "unknown key `vendors.dem` in FILE line 1, did you mean `demo`?",
        ),
        ('log = "verbose"', 'FILE:1: log is "verbose"; it must be one of debug, '),
        (
            '[vendors.acai]\nvariant = "flat"',
            'FILE:2: vendors.acai.variant is "flat"; it must be one of auto, ',
        ),
    ],
)
def test_config_typo_is_refused_with_file_and_line(box, toml, error):
    box.write_settings(toml + "\n")
    done = run_refused_turn(
        box, *ASK, SHIM_VENDOR="acai", SHIM_BIN=box.create_fake(["out", ANSWER])
    )
    assert (done.status, done.cause) == (1, "refused")
    assert error.replace("FILE", str(box.config)) in done.stderr
    assert error.replace("FILE", str(box.config)) in done.result["errors"][0]


@pytest.mark.parametrize(
    ("flag", "suggestion"),
    [("--shim-vendr", "--shim-vendor"), ("--shim-dialect2=yume", "--shim-dialect")],
)
def test_unknown_shim_flag_is_refused_with_a_suggestion(box, flag, suggestion):
    done = run_refused_turn(box, flag, "demo", *ASK, SHIM_VENDOR="demo")
    assert (done.status, done.stdout) == (1, b"")
    assert (
        f"error: unknown option '{flag.partition('=')[0]}', did you mean `{suggestion}`?"
        in done.stderr
    )
    assert "the shim's options are --shim-vendor, " in done.stderr


@pytest.mark.parametrize(
    "flags", [("--permision-mode", "plan"), ("--permision-mode=plan",), ("--disallowed-tool=Bash",)]
)
def test_misspelled_permission_flag_is_refused_with_a_result(box, flags):
    done = run_refused_turn(box, *ASK, *flags, SHIM_VENDOR="demo")
    assert (done.status, done.cause) == (1, "refused")
    assert f"error: unknown option '{flags[0].partition('=')[0]}', did you mean `" in done.stderr
    assert "did you mean `" in done.result["errors"][0]


@pytest.mark.parametrize("arg", ["--permission-mode plan", "--disallowedTools Bash"])
def test_permission_flag_and_value_in_a_single_argument_are_refused(box, arg):
    done = run_refused_turn(box, *ASK, arg, SHIM_VENDOR="demo")
    assert (done.status, done.cause) == (1, "refused") and "are one argument" in done.result[
        "errors"
    ][0]


def test_misspelled_permission_flag_is_refused_in_text_json_and_background(
    box,
):
    text = run_refused_turn(box, "-p", "hi", "--permision-mode", "plan", SHIM_VENDOR="demo")
    assert (text.status, text.stdout) == (1, b"") and "--permission-mode" in text.stderr
    json_run = run_refused_turn(
        box, "-p", "hi", "--output-format", "json", "--permision-mode", "plan", SHIM_VENDOR="demo"
    )
    assert json_run.status == 1 and json.loads(json_run.stdout)["is_error"]
    apart = run_refused_turn(box, "--bg", "hi", "--permision-mode", "plan", SHIM_VENDOR="demo")
    assert (apart.status, apart.stdout.strip()) == (1, b"") and "--permission-mode" in apart.stderr


def test_other_unknown_flag_prints_a_warning_and_the_turn_runs(box, demo):
    done = box.run_claude(*ASK, "--verbos", **demo)
    assert done.status == 0 and not done.result["is_error"]
    assert (
        done.stderr
        == "warning: unknown option '--verbos' has no effect, did you mean `--verbose`?\n"
    )


def test_unknown_permission_mode_lists_the_allowed_modes(box):
    done = run_refused_turn(box, *ASK, "--permission-mode", "plam", SHIM_VENDOR="demo")
    assert (done.status, done.stdout) == (1, b"")
    assert (
        "Allowed choices are acceptEdits, auto, bypassPermissions, manual, dontAsk, plan.\n"
        in done.stderr
    )
    assert "hint: did you mean `plan`? `default` is allowed too" in done.stderr


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ("/nonexistent", "MCP config file not found: /nonexistent"),
        ("there.json", "MCP config is not a valid JSON"),
        ("{}", "mcpServers: Invalid input: expected record, received undefined"),
        ('{"mcpServers":[]}', "mcpServers: Invalid input: expected record, received array"),
        ("3", "Invalid input: expected object, received number"),
        ("/", "Failed to read file: /: Is a directory"),
    ],
)
def test_invalid_mcp_config_is_refused_with_the_message_of_claude(box, config, error):
    (box.cwd / "there.json").write_text("{bad")
    done = run_refused_turn(box, *ASK, "--mcp-config", config, SHIM_VENDOR="demo")
    assert (done.status, done.stdout) == (1, b"")
    assert done.stderr == f"Error: Invalid MCP configuration:\n{error}\n"


def test_valid_mcp_configs_are_accepted(box):
    (box.cwd / "there.json").write_text('{"mcpServers":{"own":{"command":"own"}}}')
    configs = ("there.json", '{"mcpServers":{}}', "")
    assert (
        box.run_claude(
            *ASK, "--mcp-config", *configs, SHIM_VENDOR="demo", SHIM_BIN=box.create_demo_program()
        ).status
        == 0
    )


@pytest.mark.parametrize(
    ("case", "names_source"),
    [("qwen/0.24.4-http500", True), ("qwen/0.24.4-noauth", False), (STANDINS["qwen"], False)],
)
def test_stderr_names_the_error_source_only_for_api_errors(box, case, names_source):
    done = box.run_claude(
        "-p", "hi", SHIM_VENDOR="qwen", SHIM_BIN=box.create_fixture_printer("q", case)
    )
    assert ("the error comes from qwen or its API" in done.stderr) is names_source


def test_resume_with_another_vendor_is_refused(box):
    first = box.run_claude(
        *ASK,
        "--session-id",
        U,
        SHIM_VENDOR="qwen",
        SHIM_BIN=box.create_fixture_printer("q", STANDINS["qwen"]),
    )
    assert first.status == 0
    done = run_refused_turn(box, *ASK, "--resume", U, "--shim-vendor", "pi")
    assert (done.status, done.cause) == (1, "refused")
    assert "belongs to qwen" in done.stderr


def test_closed_stderr_still_writes_a_result(box):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        with box.start_claude(*ASK, environment={"SHIM_VENDOR": "qwen"}, stderr=writer) as dropin:
            done = dropin.wait_for_end()
    finally:
        os.close(writer)
    assert (done.status, done.cause) == (1, "not_found")


def test_removed_working_directory_still_writes_a_result(box, demo):
    script = f'mkdir gone && cd gone && rmdir ../gone && exec {" ".join(SHIM)} claude "$@"'
    done = subprocess.run(
        ["/bin/sh", "-c", script, "sh", *ASK],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=box.build_environment(**demo),
        cwd=box.cwd,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert b"Traceback" not in done.stderr
    assert b'"type":"result"' in done.stdout


# -- the prompt ------------------------------------------------------------------------------------


def test_stdin_is_appended_to_the_prompt_argument(box, demo):
    """P7"""
    assert box.run_claude("-p", "first", stdin=b"second\n", **demo).status == 0
    assert box.read_record()["stdin"] == "first\nsecond\n"


def test_prompt_is_read_from_stdin(box, demo):
    assert box.run_claude("-p", stdin="grüße".encode(), **demo).status == 0
    assert box.read_record()["stdin"] == "grüße"


LESS_PATIENT = """
from shim.io import prompt
from shim.__main__ import main
assert prompt.OPTIONAL_STDIN_TIMEOUT_S == 3
prompt.OPTIONAL_STDIN_TIMEOUT_S = 0.1
main()
"""


def test_open_stdin_without_data_times_out_if_a_prompt_was_passed(box, demo):
    """P20. `test_prompt` tests the timeout of three seconds."""
    command = [sys.executable, "-P", "-c", LESS_PATIENT, "claude", "-p", "hi"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(
        command, env=box.build_environment(**demo), cwd=box.cwd, **pipes
    ) as process:
        dropin = Running(process)
        process.stdout.read()  # to its end, with stdin still open
        assert dropin.wait_for_status() == 0
        assert process.stderr.read().startswith(
            b"Warning: no stdin data received in 3s, proceeding without it."
        )
    assert box.read_record()["stdin"] == "hi"


# -- subcommands that start nothing ----------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [
        ("--version",),
        ("-v",),
        ("-p", "hi", "--version"),
        ("--no-such", "x", "-v"),
        ("auth", "status", "-v"),
    ],
)
def test_version_flag_prints_the_version_in_any_position(box, args):
    """P1"""
    done = run_refused_turn(box, *args, SHIM_VENDOR="demo")
    assert (done.status, done.stdout, done.stderr) == (0, b"2.1.332 (Claude Code)\n", "")


@pytest.mark.parametrize(
    "subcommand",
    [
        "auth",
        "mcp",
        "doctor",
        "update",
        "install",
        "config list",
        "plugin",
        "agents",
        "setup-token",
    ],
)
def test_claude_subcommands_start_no_vendor(local_box, capfd, monkeypatch, subcommand):
    """F11b"""
    from shim.commands.claude import dropin

    monkeypatch.setattr(
        dropin, "prepare_conversation", lambda *_, **__: pytest.fail("a turn was started")
    )
    monkeypatch.setenv("SHIM_VENDOR", "demo")
    assert dropin.main([*subcommand.split(), "status"], {}) in (0, 1)
    assert any(capfd.readouterr())


def test_auth_status_reports_logged_in(box):
    """F11b"""
    done = run_refused_turn(box, "auth", "status", "--json", SHIM_VENDOR="qwen")
    status = json.loads(done.stdout)
    assert done.status == 0
    assert status["loggedIn"] is True
    assert status["authMethod"] == "qwen"


def test_help_lists_claude_flags_and_starts_no_vendor(box):
    done = run_refused_turn(box, "--help", SHIM_VENDOR="demo")
    assert done.status == 0
    assert b"--output-format <format>" in done.stdout


# -- sessions --------------------------------------------------------------------------------------


def test_resume_passes_the_vendor_session_id(box):
    """F5: cake has its own ids and no flag for the shim's ids. The store maps one to the other."""
    box.write_program(
        "cake",
        f'{TELL_VERSION}echo "$@" >> {box.path}/calls; exec cat {_fixture("cake/2026-07-text")}\n',
    )
    first = box.run_claude(*ASK, "--session-id", U, "--shim-vendor", "cake")
    assert first.result["session_id"] == U
    stored = json.loads((box.state / "sessions" / f"{U}.json").read_text(encoding="utf-8"))
    vendor_session = stored["vendor_session"]
    assert stored["vendor"] == "cake" and vendor_session != U
    resumed_run = box.run_claude(*ASK, "--resume", U)
    assert (resumed_run.status, resumed_run.result["session_id"]) == (0, U)
    calls = (box.path / "calls").read_text(encoding="utf-8").splitlines()
    assert "--resume" not in calls[0]
    assert f"--resume {vendor_session}" in calls[1] and U not in calls[1]


def test_forked_session_gets_a_new_id(box):
    """F5"""
    box.write_program(
        "cake",
        f'{TELL_VERSION}echo "$@" >> {box.path}/calls; exec cat {_fixture("cake/2026-07-text")}\n',
    )
    box.run_claude(*ASK, "--session-id", U, "--shim-vendor", "cake")
    forked = box.run_claude(*ASK, "--resume", U, "--fork-session")
    chosen = box.run_claude(*ASK, "--resume", U, "--fork-session", "--session-id", V)
    assert forked.status == chosen.status == 0
    assert forked.result["session_id"] not in (U, V)
    assert chosen.result["session_id"] == V
    assert (box.path / "calls").read_text(encoding="utf-8").count("--fork ") == 2


def test_fork_is_refused_if_the_vendor_cannot_fork(box):
    box.create_fixture_printer("cursor-agent", "cursor/handmade-multiturn-2")
    box.run_claude(*ASK, "--session-id", U, "--shim-vendor", "cursor")
    done = box.run_claude(*ASK, "--resume", U, "--fork-session")
    assert (done.status, done.cause) == (1, "refused")
    assert "cannot fork" in done.stderr


def test_continue_resumes_the_last_session_with_its_vendor(box):
    """F5"""
    box.write_program(
        "cake",
        f'{TELL_VERSION}echo "$@" >> {box.path}/calls; exec cat {_fixture("cake/2026-07-text")}\n',
    )
    box.run_claude(*ASK, "--session-id", U, "--shim-vendor", "cake")
    resumed_run = box.run_claude(*ASK, "--continue", SHIM_VENDOR="demo")
    assert resumed_run.result["session_id"] == U
    assert "--resume" in (box.path / "calls").read_text(encoding="utf-8").splitlines()[1]


def test_continue_starts_a_session_if_the_directory_has_none(box):
    """F5"""
    box.write_program(
        "cake",
        f'{TELL_VERSION}echo "$@" >> {box.path}/calls; exec cat {_fixture("cake/2026-07-text")}\n',
    )
    done = box.run_claude(*ASK, "--continue", "--shim-vendor", "cake")
    assert done.status == 0
    assert "--continue" not in (box.path / "calls").read_text(encoding="utf-8")


def test_unknown_session_id_is_refused_and_starts_no_vendor(box):
    """F7"""
    child = box.create_fake(["record", str(box.recording)])
    for flags, error in (
        (("--resume", U), f"No conversation found with session ID: {U}"),
        (("--resume=nonsense",), 'Provided value "nonsense" is not a UUID'),
    ):
        done = box.run_claude(*ASK, *flags, SHIM_VENDOR="pi", SHIM_BIN=child)
        assert done.status == 1
        assert error in done.stderr and error in done.result["errors"][0]
        assert (done.result["subtype"], done.result["num_turns"]) == ("error_during_execution", 0)
        assert [line["type"] for line in done.lines if line["type"] != "message_stop"] == ["result"]
    assert (
        box.run_claude(*ASK, "--resume", U, SHIM_VENDOR="pi", SHIM_BIN=child).result["session_id"]
        == U
    )
    for output_format in ("text", "json"):
        refusal = box.run_claude(
            "-p",
            "hi",
            "--output-format",
            output_format,
            "--resume",
            U,
            SHIM_VENDOR="pi",
            SHIM_BIN=child,
        )
        assert (refusal.status, refusal.stdout) == (1, b"")
    assert not box.recording.exists()


def test_used_session_id_is_refused(box):
    """F6"""
    box.create_fixture_printer("cake", STANDINS["cake"])
    box.run_claude(*ASK, "--session-id", U, "--shim-vendor", "cake")
    done = box.run_claude(*ASK, "--session-id", U, "--shim-vendor", "cake")
    assert (done.status, done.stdout) == (1, b"")
    assert f"Error: Session ID {U} is already in use." in done.stderr


def test_uppercase_session_id_is_stored_in_lower_case(box):
    box.create_fixture_printer("cake", STANDINS["cake"])
    box.run_claude(*ASK, "--session-id", U.upper(), "--shim-vendor", "cake")
    assert (box.state / "sessions" / f"{U}.json").exists()


# -- the rules of a turn ---------------------------------------------------------------------------


@pytest.mark.parametrize("vendor", ["pi", "qwen"])
def test_denied_tools_are_not_listed_in_init(box, vendor):
    standin = box.create_fixture_printer("standin", STANDINS[vendor])
    done = box.run_claude(
        *ASK, "--disallowedTools=Bash,Write", SHIM_VENDOR=vendor, SHIM_BIN=standin
    )
    assert done.status == 0
    assert done.init["tools"] and not {"Bash", "Write"} & set(done.init["tools"])


@pytest.mark.parametrize("vendor", ["acai", "cake", "cursor"])
def test_vendor_that_cannot_enforce_a_denied_tool_is_refused(box, vendor):
    standin = box.create_fixture_printer("standin", STANDINS[vendor])
    done = box.run_claude(
        *ASK, "--disallowedTools=Bash,Write", SHIM_VENDOR=vendor, SHIM_BIN=standin
    )
    assert (done.status, done.cause) == (1, "refused")
    assert f"{vendor} cannot enforce Bash (--disallowedTools)" in done.result["errors"][0]


def test_tools_denied_or_hidden_in_the_config_are_not_listed_in_init(box):
    box.write_settings(
        '[tools]\ndeny = ["Bash"]\nhide = ["Write"]\n[vendors.cursor]\nlate_denials = true\n'
    )
    args = (*ASK, "--permission-mode", "bypassPermissions")
    done = box.run_claude(
        *args,
        SHIM_VENDOR="cursor",
        SHIM_BIN=box.create_fixture_printer("standin", STANDINS["cursor"]),
    )
    assert "Read" in done.init["tools"] and not {"Bash", "Write"} & set(done.init["tools"])


def test_denied_call_stops_the_turn_of_a_vendor_without_filters(box):
    lifeline, gate = box.create_lifeline(), box.create_gate()
    call = {"type": "call", "id": "c1", "name": "Bash", "input": {"command": "rm -rf /"}}
    events = ANSWER.splitlines(keepends=True)
    forged = "".join([events[0], json.dumps(call) + "\n"])
    child_steps = (
        ["say", lifeline.path, "child"],
        ["out", forged],
        ["wait", gate.path],
        ["out", "".join(events[1:])],
    )
    environment = {"SHIM_VENDOR": "demo", "SHIM_BIN": box.create_fake(*child_steps)}
    with box.start_claude(*ASK, "--disallowedTools=Bash", environment=environment) as dropin:
        done = dropin.wait_for_end()
    assert lifeline.wait_for("child") and lifeline.wait_until_closed()
    assert done.status == 1
    assert done.result["permission_denials"][0]["tool_name"] == "Bash"
    assert "may have started" in json.dumps(done.result)


@pytest.mark.parametrize("rule", ["Bash", "Bash(*)", "Bash(:*)", "Bash()"])
def test_tool_denied_without_a_pattern_is_excluded_by_the_vendor(box, rule):
    box.create_fake(["record", str(box.recording)], name="qwen")
    box.run_claude(*ASK, f"--disallowedTools={rule}", SHIM_VENDOR="qwen")
    assert "--exclude-tools=run_shell_command" in box.read_record()["arguments"]


HIDDEN = {
    "claude": "claude/2.1.327-tool-bash-partial",
    "qwen": "qwen/0.24.4-partial-parallel",
    "pi": "pi/1.5.2-parallel",
}


@pytest.mark.parametrize("partial", [False, True], ids=["whole", "partial"])
@pytest.mark.parametrize("vendor", HIDDEN)
def test_hidden_call_and_its_result_are_omitted(box, vendor, partial):
    """S16c"""
    flags = ["--include-partial-messages"] * partial
    standin = box.create_fixture_printer("standin", HIDDEN[vendor])
    environment = {"SHIM_VENDOR": vendor, "SHIM_BIN": standin}
    full_run = box.run_claude(*ASK, *flags, **environment)
    names = {
        block["name"]
        for line in full_run.lines
        for block in _blocks(line)
        if block["type"] == "tool_use"
    }
    assert names
    box.write_settings(f"[tools]\nhide = {json.dumps(sorted(names))}\n")
    done = box.run_claude(*ASK, *flags, **environment)
    assert done.status == full_run.status == 0
    kinds = [block["type"] for line in done.lines for block in _blocks(line)]
    assert "tool_use" not in kinds and "tool_result" not in kinds
    assert not names & set(done.init["tools"])
    assert b"input_json_delta" not in done.stdout
    assert done.result["result"] == full_run.result["result"]


def _blocks(line):
    """Return the content blocks of a line, and the one that a stream event opens."""
    content = (line.get("message") or {}).get("content") or []
    opened = (line.get("event") or {}).get("content_block")
    return [*(content if isinstance(content, list) else []), *([opened] if opened else [])]


def test_tools_denied_in_the_config_are_passed_to_claude(box):
    box.write_settings('[tools]\ndeny = ["Bash"]\n')
    box.create_fake(["record", str(box.recording)], name="claude")
    box.run_claude(*ASK, "--disallowedTools=Read", SHIM_VENDOR="claude")
    assert {"--disallowedTools=Read", "--disallowedTools=Bash"} <= set(
        box.read_record()["arguments"]
    )


# -- settings and the log --------------------------------------------------------------------------


def test_config_args_and_env_are_passed_to_the_child(box, demo):
    box.write_settings('[vendors.demo]\nargs = ["--a"]\nenv = {FROM = "settings"}\n')
    box.run_claude("-p", "hi", SHIM_ARGS="--b 'c d'", **demo)
    record = box.read_record()
    assert record["arguments"] == ["--a", "--b", "c d"]
    assert record["environment"]["FROM"] == "settings"


def test_launcher_prefixes_the_vendor_command(box, demo):
    prefix_program = box.write_program("launcher", f'echo "$@" > {box.path}/launched; exec "$@"\n')
    box.write_settings(f'[vendors.demo]\nlauncher = ["{prefix_program}"]\n')
    assert box.run_claude("-p", "hi", **demo).status == 0
    assert (box.path / "launched").read_text(encoding="utf-8").strip() == demo["SHIM_BIN"]


@pytest.mark.parametrize("mode", ["default", "plan", "bypassPermissions"])
def test_mode_that_needs_a_policy_file_is_refused_with_a_launcher(box, mode):
    """Without its policy file gemini lets its model leave a mode, and reports nothing
    (test_bundled).
    """
    prefix_program = box.write_program(
        "launcher", f"shift; {TELL_VERSION}echo started > {box.path}/launched; exit 3\n"
    )
    gemini = box.write_program("gemini", "exit 3\n")
    box.write_settings(f'[vendors.gemini]\nbin = "{gemini}"\nlauncher = ["{prefix_program}"]\n')
    done = box.run_claude(*ASK, "--permission-mode", mode, SHIM_VENDOR="gemini")
    assert done.status == 1 and done.result["is_error"]
    assert (box.path / "launched").exists() is (mode == "bypassPermissions")
    assert (done.result["shim"]["cause"] == "refused") is (mode != "bypassPermissions")


@pytest.mark.parametrize("mode", ["default", "plan", "bypassPermissions"])
def test_mode_is_refused_if_machine_policies_can_override_the_mode(box, mode):
    """gemini ignores the shim's policies if the machine's administrator has any, and reports it
    only on stderr.
    """
    policies, gemini = (
        box.path / "policies",
        box.write_program("gemini", f"{TELL_VERSION}echo started > {box.path}/started; exit 3\n"),
    )
    policies.mkdir()
    box.write_settings(f'[vendors.own]\nbin = "{gemini}"\n')
    vendors = box.config.parent / "vendors"
    vendors.mkdir()
    places = ", ".join(f'{system} = "{policies}"' for system in ("linux", "darwin"))
    profile = (
        f'schema = 1\nid = "own"\nextends = "gemini"\n[launch]\noverruled_by = {{ {places} }}\n'
    )
    (vendors / "own.toml").write_text(profile, encoding="utf-8")
    args = (*ASK, "--permission-mode", mode)
    assert box.run_claude(*args, SHIM_VENDOR="own").status == 1 and (box.path / "started").exists()
    (box.path / "started").unlink()
    (policies / "their.toml").touch()
    done = box.run_claude(*args, SHIM_VENDOR="own")
    assert (box.path / "started").exists() is (mode == "bypassPermissions")
    assert (done.result["shim"]["cause"] == "refused") is (mode != "bypassPermissions")
    assert (str(policies) in done.result["errors"][0]) is (mode != "bypassPermissions")


@pytest.mark.parametrize("mode", ["default", "bypassPermissions"])
def test_mode_is_refused_if_a_machine_file_can_disable_the_hook(box, mode):
    """codex skips the shim's hook without a message if its administrator allows managed hooks
    only.
    """
    codex = box.write_program("codex", f"{TELL_VERSION}echo started > {box.path}/started; exit 3\n")
    file = box.path / "requirements.toml"
    box.write_settings(f'[vendors.own]\nbin = "{codex}"\n')
    vendors = box.config.parent / "vendors"
    vendors.mkdir()
    places = ", ".join(f'{system} = ["{file}"]' for system in ("linux", "darwin"))
    profile = (
        f'schema = 1\nid = "own"\nextends = "codex"\n[launch]\noverruled_by = {{ {places} }}\n'
    )
    (vendors / "own.toml").write_text(profile, encoding="utf-8")
    args = (*ASK, "--permission-mode", mode)
    box.run_claude(*args, SHIM_VENDOR="own")
    assert (box.path / "started").exists()
    (box.path / "started").unlink()
    file.touch()
    done = box.run_claude(*args, SHIM_VENDOR="own")
    assert (box.path / "started").exists() is (mode == "bypassPermissions")
    assert (f"{file} takes precedence over the shim's file" in done.result["errors"][0]) is (
        mode != "bypassPermissions"
    )


@pytest.mark.parametrize("to_file", [False, True])
def test_log_is_never_written_to_stdout(box, demo, to_file):
    """P8"""
    log = box.path / "shim.log"
    done = box.run_claude(*ASK, SHIM_LOG=f"info:{log}" if to_file else "info", **demo)
    check_turns(done.stdout, False)
    log_text = log.read_text(encoding="utf-8") if to_file else done.stderr
    assert [json.loads(line)["event"] for line in log_text.splitlines()] == [
        "child started",
        "turn ended",
    ]
    assert done.stderr == "" or not to_file
    assert not to_file or stat.S_IMODE(log.stat().st_mode) == 0o600


def read_log_events(done):
    return {line["event"]: line for line in map(json.loads, done.stderr.splitlines())}


def test_debug_log_contains_command_timing_stderr_and_vendor_source(box):
    child = box.create_fake(["read"], ["complain", "deep trouble\n"], ["out", ANSWER])
    environment = {"SHIM_VENDOR": "pi", "SHIM_BIN": child, "SHIM_ARGS": "--api-key hush"}
    done = box.run_claude(*ASK, "--shim-log", "debug", **environment)
    log_events = read_log_events(done)
    assert (
        log_events["vendor chosen"]["place"] == "SHIM_VENDOR"
        and log_events["vendor chosen"]["level"] == "debug"
    )
    assert (
        log_events["command"]["argv"][0] == child
        and "[REDACTED:argument]" in log_events["command"]["argv"]
    )
    assert "hush" not in done.stderr
    ended = log_events["child ended"]
    assert ended["stderr"] == "deep trouble\n" and ended["code"] == 0
    assert 0 <= ended["first_output_s"] <= ended["seconds"]
    assert log_events["turn ended"]["ms"] >= 0


def test_info_log_contains_only_child_start_and_turn_end(box, demo):
    assert set(read_log_events(box.run_claude(*ASK, "--shim-log", "info", **demo))) == {
        "child started",
        "turn ended",
    }


def test_concurrent_turns_do_not_block_each_other(box):
    gate = box.create_gate()
    waiting = box.create_fake(["wait", gate.path], ["out", ANSWER])
    with box.start_claude(*ASK, environment={"SHIM_VENDOR": "demo", "SHIM_BIN": waiting}) as slow:
        assert (
            box.run_claude(
                "-p", "hi", SHIM_VENDOR="demo", SHIM_BIN=box.create_fake(["out", ANSWER])
            ).status
            == 0
        )
        gate.open()
        assert slow.wait_for_end().status == 0


def _fixture(case):
    from fixture_cases import ROOT

    return ROOT / "fixtures" / case / "vendor.ndjson"


@pytest.mark.parametrize(("status", "expected"), [(143, True), (129, True), (0, False), (1, False)])
def test_recorder_does_not_wait_after_a_signal_exit_status(monkeypatch, status, expected):
    """The signal was for the loop. The sender may kill the shim a moment later."""
    from shim.commands.claude import dropin
    from shim.core.claude.argv.flags import Invocation

    class Recorder:
        def close(self, is_terminating):
            self.was_stopped = is_terminating()
            return True

    recorder = Recorder()
    started = SimpleNamespace(recorder=recorder, run=lambda signals: status)
    monkeypatch.setattr(dropin.SignalRecorder, "start_recording_signals", lambda signals: None)
    assert dropin.run_conversation(Invocation(), lambda: started, {}, ()) == status
    assert recorder.was_stopped is expected
