"""`claude --bg` and its sessions (B1 to B8)."""

import json
import re

import pytest
from box import run_shim
from session_hosts import read_until_result

from shim.bridge import registry
from shim.core.claude.resume_point import list_branch_entries

FIRST = re.compile(r"^backgrounded · ([0-9a-f]{8})")
U = "11111111-2222-4333-8444-555555555555"


def start_background_session(desk, *args, stdin=b"", **variables):
    """Start a session with `claude --bg ARGS`. Return the session and the output."""
    done = desk.run_claude("--bg", *args, stdin=stdin, **variables)
    assert done.status == 0, done.stderr
    match = FIRST.match(done.stdout.decode())
    assert match
    (record,) = registry.list_sessions_by_id_prefix(match[1], desk.environment)
    return record, done


def test_background_prints_the_session_id_and_follow_up_commands(desk):
    """B1: a client reads the id from the first line. It is the start of the session's UUID."""
    record, done = start_background_session(desk, "write it")
    assert done.stderr == ""
    assert done.stdout.decode() == (
        f"backgrounded · {record.short_id}\n"
        "  claude agents             list sessions\n"
        f"  claude attach {record.short_id}    open in this terminal\n"
        f"  claude logs {record.short_id}      show recent output\n"
        f"  claude stop {record.short_id}      stop this session\n"
    )
    assert record.is_running and record.session_id.startswith(record.short_id)
    assert record.metadata["name"] == "write it" and record.metadata["cwd"] == str(desk.cwd)


def test_background_prints_and_stores_the_name(desk):
    """B2"""
    record, done = start_background_session(desk, "write it", "--name", "my job")
    assert done.stdout.decode().startswith(f"backgrounded · {record.short_id} · my job\n")
    assert record.metadata["name"] == "my job"


@pytest.mark.parametrize("args", [(), ("",)])
def test_background_without_a_prompt_waits_for_a_prompt(desk, args):
    """B2"""
    record, done = start_background_session(desk, *args)
    assert done.stdout.decode().startswith(
        f"backgrounded · {record.short_id} (idle — send a prompt to start)\n"
    )
    assert record.metadata["needs"] == "send a prompt to start"


@pytest.mark.parametrize(
    ("args", "stdin", "name"),
    [
        ((), b"from a pipe\n", "from a pipe"),
        (("first", "second"), b"", "first"),
        (("--bg", "--", "behind dashes"), b"", "behind dashes"),
        (("both",), b"pipe", "both pipe"),
    ],
)
def test_background_takes_the_prompt_from_the_first_argument_and_stdin(desk, args, stdin, name):
    """B8"""
    record, _ = start_background_session(desk, *args, stdin=stdin)
    assert record.metadata["name"] == name


def test_session_id_flag_is_ignored_with_a_warning(desk):
    record, done = start_background_session(desk, "hi", "--session-id", U)
    assert record.session_id != U
    assert done.stderr.startswith(
        "warning: --bg manages the session id; ignoring --session-id (use --resume <id>"
    )


def test_background_is_refused_with_print(desk):
    """B7"""
    done = desk.run_claude("-p", "hi", "--bg")
    assert (done.status, done.stdout) == (1, b"")
    assert done.stderr.startswith("--bg and --print conflict:")


def test_background_is_disabled_with_the_agent_view(desk):
    off = {"CLAUDE_CODE_DISABLE_AGENT_VIEW": "1"}
    assert (
        desk.run_claude("--bg", "hi", **off).stderr
        == "'--bg' is disabled by CLAUDE_CODE_DISABLE_AGENT_VIEW.\n"
    )
    done = desk.run_claude("agents", "--json", **off)
    assert done.stderr == "'claude agents --json' is disabled by CLAUDE_CODE_DISABLE_AGENT_VIEW.\n"
    assert desk.run_claude("stop", "x", **off).status == 1


@pytest.mark.parametrize(
    ("args", "variables", "why"),
    [
        (("--permission-mode", "nope"), {}, "argument 'nope' is invalid"),
        (
            ("--input-format", "stream-json", "--output-format", "stream-json"),
            {},
            "not as stream-json",
        ),
        (("--resume", U), {}, "No conversation found with session ID"),
        (("--shim-vendor", "qwen"), {"SHIM_BIN": "/nowhere/qwen"}, "/nowhere/qwen"),
        (("--shim-vendor", "nobody"), {}, "nobody"),
        (("--add-dir=-x",), {}, "is not a directory"),
    ],
)
def test_invalid_options_are_refused_before_the_session_starts(desk, args, variables, why):
    """The real claude exits with 0, and the session fails later (B4, B20)."""
    done = desk.run_claude("--bg", "hi", *args, **variables)
    assert (done.status, done.stdout) == (1, b"")
    assert why in done.stderr
    assert registry.list_sessions(desk.environment) == []


def test_unwritable_state_folder_is_reported(desk):
    done = desk.run_claude("--bg", "hi", SHIM_STATE="/proc/nowhere")
    assert (
        done.status == 1
        and "background sessions are unavailable" in done.stderr
        and "SHIM_STATE" in done.stderr
    )


@pytest.mark.parametrize("uses_full_id", [True, False], ids=["uuid", "short id"])
def test_resume_continues_an_ended_session_with_its_stored_flags(desk, uses_full_id):
    record, _ = start_background_session(desk, "hi", "--permission-mode", "plan", "--agent", "mine")
    desk.wait_until(record, lambda now: now.metadata["pid"] is not None)
    assert desk.run_claude("stop", record.short_id).status == 0
    resumed_record, done = start_background_session(
        desk, "go on", "--resume", record.session_id if uses_full_id else record.short_id
    )
    assert (
        resumed_record.session_id == record.session_id
        and resumed_record.metadata["generation"] == 2
    )
    assert done.stderr == (
        "--agent has no effect: the session cannot run as a subagent\n"
        f"note: woke session {record.short_id} with its saved options (--permission-mode, --agent).\n"
    )
    assert registry.load_session_start_data(resumed_record.folder)["arguments"] == [
        "--permission-mode",
        "plan",
        "--agent",
        "mine",
    ]


def test_resume_resolves_relative_paths_against_each_working_directory(desk, tmp_path):
    (desk.cwd / "s.json").write_text('{"permissions": {"deny": ["WebFetch"]}}')
    record, _ = start_background_session(
        desk, "hi", "--settings", "s.json", "--disallowedTools", "Read(./x/y)"
    )
    desk.wait_until(record, lambda now: now.metadata["pid"] is not None)
    assert desk.run_claude("stop", record.short_id).status == 0
    argv = [
        "claude",
        "--bg",
        "go on",
        "--resume",
        record.session_id,
        "--add-dir",
        "more",
        "--disallowedTools",
        "Edit(./z/w)",
    ]
    done = run_shim(argv, env=desk.environment, cwd=tmp_path)
    assert done.status == 0, done.stderr
    stored_args = (registry.load_session_start_data(desk.load_session(record).folder) or {})[
        "arguments"
    ]
    assert [arg.partition("=")[2] or arg for arg in stored_args] == [
        *(
            f"Read(/{desk.cwd}/x/y)",
            f"Edit(/{tmp_path}/z/w)",
            f"{tmp_path}/more",
            "--settings",
            f"{desk.cwd}/s.json",
        ),
    ]


def test_resume_requires_new_settings_if_the_original_file_is_missing(desk):
    file = desk.cwd / "s.json"
    file.write_text("{}")
    record, _ = start_background_session(desk, "hi", "--settings", "s.json")
    desk.wait_until(record, lambda now: now.metadata["pid"] is not None)
    assert desk.run_claude("stop", record.short_id).status == 0
    file.rename(desk.cwd / "t.json")
    refused = desk.run_claude("--bg", "go on", "--resume", record.session_id)
    assert (refused.status, refused.stdout) == (1, b"")
    assert (
        f"was started with --settings, whose file {file} no longer exists" in refused.stderr
        and "restore the file" in refused.stderr
    )
    assert (
        start_background_session(
            desk, "go on", "--resume", record.session_id, "--settings", "t.json"
        )[0].metadata["generation"]
        == 2
    )


def test_resume_with_new_settings_preserves_the_original_deny_rules(desk):
    file = desk.cwd / "s.json"
    file.write_text('{"permissions": {"deny": ["Bash"], "allow": ["Read"]}}')
    record, _ = start_background_session(desk, "hi", "--settings", "s.json")
    with desk.connect(record) as connection:
        read_until_result(connection)
    copy, _ = start_background_session(desk, "other", "--resume", record.session_id)
    flag, settings_text = registry.load_session_start_data(copy.folder)["arguments"]
    assert (flag, json.loads(settings_text)) == ("--settings", {"permissions": {"deny": ["Bash"]}})
    assert desk.run_claude("stop", record.short_id).status == 0
    resumed_record, _ = start_background_session(
        desk,
        "go on",
        "--resume",
        record.session_id,
        "--settings",
        '{"permissions": {"deny": ["Write"]}}',
    )
    flag, settings_text = registry.load_session_start_data(resumed_record.folder)["arguments"]
    assert (flag, json.loads(settings_text)["permissions"]) == (
        "--settings",
        {"deny": ["Bash", "Write"], "allow": ["Read"]},
    )


@pytest.mark.parametrize("settings_text", ['{"permissions"', "[]"])
def test_resume_is_refused_if_the_original_settings_are_unreadable(desk, settings_text):
    file = desk.cwd / "s.json"
    file.write_text('{"permissions": {"deny": ["Bash"]}}')
    record, _ = start_background_session(desk, "hi", "--settings", "s.json")
    with desk.connect(record) as connection:
        read_until_result(connection)
    assert desk.run_claude("stop", record.short_id).status == 0
    file.write_text(settings_text)
    refused = desk.run_claude("--bg", "go on", "--resume", record.session_id, "--settings", "{}")
    assert (
        (refused.status, refused.stdout) == (1, b"")
        and "not" in refused.stderr
        and "JSON" in refused.stderr
    )


def test_print_mode_session_can_be_resumed_in_the_background(desk):
    printed = desk.run_claude("-p", "hi", "--output-format", "json")
    session = json.loads(printed.stdout)["session_id"]
    record, done = start_background_session(desk, "go on", "--resume", session)
    assert (record.session_id, done.stderr) == (session, "")


def test_resume_of_a_running_session_starts_a_copy(desk):
    record, _ = start_background_session(desk, "hi")
    with desk.connect(record) as connection:
        read_until_result(connection)
    copy, done = start_background_session(desk, "other", "--resume", record.session_id)
    assert copy.session_id != record.session_id
    assert done.stderr == (
        f"note: session {record.short_id} is already running in the background, "
        f"so this started a copy as {copy.short_id}. "
        f"`claude attach {record.short_id}` opens the original.\n"
    )
    forked, done = start_background_session(
        desk, "other", "--resume", record.session_id, "--fork-session"
    )
    assert forked.session_id not in (record.session_id, copy.session_id) and done.stderr == ""
    assert registry.load_session_start_data(forked.folder)["forked"] == record.session_id


@pytest.mark.parametrize("fork", [(), ("--fork-session",)], ids=["living", "forked"])
def test_copy_inherits_the_deny_rules_of_its_original(desk, fork):
    managed = '{"permissions":{"deny":["Bash"]}}'
    flags = (
        "--managed-settings",
        managed,
        "--disallowedTools",
        "Write",
        "--dangerously-skip-permissions",
    )
    record, _ = start_background_session(desk, "hi", *flags)
    with desk.connect(record) as connection:
        read_until_result(connection)
    copy, _ = start_background_session(
        desk, "other", "--resume", record.session_id, "--disallowedTools", "Edit", *fork
    )
    assert registry.load_session_start_data(copy.folder)["arguments"] == [
        *("--disallowedTools=Write", "--disallowedTools=Edit", "--managed-settings", managed)
    ]


@pytest.mark.parametrize("flags", [(), ("--fork-session",)], ids=["resumed", "forked"])
def test_copy_is_refused_before_the_first_turn_of_the_original_ends(desk, flags):
    record, _ = start_background_session(desk)
    done = desk.run_claude("--bg", "other", "--resume", record.session_id, *flags)
    assert (done.status, done.stdout) == (1, b"")
    assert f"session {record.short_id} has not finished its first turn" in done.stderr


def test_copy_stores_the_resume_message_apart_from_its_flags(desk):
    record, _ = start_background_session(desk, "hi")
    with desk.connect(record) as connection:
        read_until_result(connection)
    (transcript,) = desk.box.path.rglob(f".claude/projects/*/{record.session_id}.jsonl")
    last = list_branch_entries(transcript.read_bytes())[-1].uuid
    copy, _ = start_background_session(
        desk, "other", "--resume", record.session_id, "--fork-session", "--resume-session-at", last
    )
    start_data = registry.load_session_start_data(copy.folder)
    assert (start_data["forked"], start_data["beginning"]) == (
        record.session_id,
        ["--resume-session-at", last],
    )
    assert start_data["arguments"] == []


def test_continue_copies_the_last_session_of_the_folder(desk):
    session = json.loads(desk.run_claude("-p", "hi", "--output-format", "json").stdout)[
        "session_id"
    ]
    record, done = start_background_session(desk, "go on", "--continue")
    assert registry.load_session_start_data(record.folder)["forked"] == session
    assert done.stderr.startswith(
        f"note: started a copy of that conversation as {record.short_id}. To continue a session"
    )


def test_background_session_ignores_the_dialect_of_the_environment(desk):
    record, _ = start_background_session(desk, "hi", SHIM_DIALECT="yume")
    with desk.connect(record) as connection:
        assert read_until_result(connection)[-1]["result"] == "Hello."


def test_explain_starts_no_background_session(desk):
    done = desk.run_claude("--bg", "hi", "--shim-explain")
    assert done.status == 0 and b"demo" in done.stdout
    assert registry.list_sessions(desk.environment) == []
