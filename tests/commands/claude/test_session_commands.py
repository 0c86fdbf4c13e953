"""`claude agents`, `logs`, `stop`, `rm`, `respawn` and `daemon` (B15 to B28, B37 to B43)."""

import json
import os
import signal

import pytest
from box import SHIM
from session_hosts import read_until_result
from terminal import on_terminal

from shim.bridge import registry
from shim.bridge.launch import SessionSpec, respawn_session, start_host

LISTED = "Run 'claude agents' to list running sessions."


@pytest.fixture
def session(desk):
    """Return a session whose first turn is over."""
    new_session = desk.start_session("hi", name="my job")
    with desk.connect(new_session) as connection:
        read_until_result(connection)
    return desk.wait_until(new_session, lambda now: now.metadata["pid"])


def agents(desk, *args):
    """Return the entries of `claude agents --json ARGS`."""
    done = desk.run_claude("agents", "--json", *args)
    assert (done.status, done.stderr) == (0, "")
    return json.loads(done.stdout)


# -- agents ----------------------------------------------------------------------------------------


def test_agents_list_is_empty_and_creates_no_state_without_sessions(desk):
    assert desk.run_claude("agents", "--json", "--all").stdout == b"[]\n"
    assert os.listdir(desk.environment["SHIM_STATE"]) == []


def test_running_session_is_listed_with_the_keys_of_claude(desk, session):
    """B15, B18"""
    (listed,) = agents(desk)
    key_order = [
        "pid",
        "id",
        "cwd",
        "kind",
        "startedAt",
        "sessionId",
        "name",
        "status",
        "waitingFor",
        "state",
    ]
    assert list(listed) == [key for key in key_order if key in listed]
    expected = {
        "pid": session.metadata["pid"],
        "id": session.short_id,
        "cwd": str(desk.cwd),
        "kind": "background",
    }
    assert expected.items() <= listed.items()
    assert listed["sessionId"] == session.session_id and listed["name"] == "my job"
    assert listed["startedAt"] == session.metadata["started"]
    assert desk.run_claude("agents", "--json").stdout.startswith(b'[\n  {\n    "pid": ')


def test_ended_session_is_listed_only_with_all_flag(desk, session):
    """B16, B18: without a process it has no pid and no status. Its time is the creation time."""
    desk.run_claude("respawn", session.short_id)
    assert (
        agents(desk)[0]["startedAt"]
        == desk.load_session(session).metadata["started"]
        > session.metadata["created"]
    )
    desk.run_claude("stop", session.short_id)
    assert agents(desk) == []
    (listed,) = agents(desk, "--all")
    assert "pid" not in listed and "status" not in listed
    assert listed["startedAt"] == session.metadata["created"]


@pytest.mark.parametrize("prompt", ["hi", None])
def test_new_session_is_listed_immediately_with_a_pid_and_status(desk, prompt):
    """The real claude does the same, also after each `respawn` and before the host's Python has
    started.
    """
    desk.run_claude("--bg", *([prompt] if prompt else []))
    for _ in range(3):
        (listed,) = agents(desk)
        assert os.path.exists(f"/proc/{listed['pid']}")
        assert listed["status"] in (("busy", "idle") if prompt else ("idle",))
        assert desk.run_claude("respawn", listed["id"]).status == 0


def test_session_can_be_stopped_before_its_host_handles_signals(desk):
    """The pid is already listed, and the host handles the signal when it has started."""
    for _ in range(3):
        desk.run_claude("--bg", "hi")
        (listed,) = agents(desk)
        assert desk.run_claude("stop", listed["id"]).stdout == f"stopped {listed['id']}\n".encode()
    assert {each["state"] for each in agents(desk, "--all")} <= {"stopped", "done"}


def damage(session, data):
    """Overwrite `host.json` with other data, or remove it."""
    path = os.path.join(session.folder, registry.METADATA_FILE)
    os.unlink(path)
    if data is not None:
        with open(path, "wb") as file:
            file.write(data)


@pytest.mark.parametrize("data", [b"", bytes(300), None], ids=["empty", "zeroed", "missing"])
def test_damaged_session_can_be_listed_logged_respawned_and_removed(desk, session, data):
    desk.run_claude("stop", session.short_id)
    damage(session, data)
    (listed,) = agents(desk, "--all")
    assert (listed["id"], listed["state"], listed["cwd"]) == (
        session.short_id,
        "failed",
        str(desk.cwd),
    )
    table = desk.run_shim("bridge", "list", "--all").stdout.decode()
    assert "damaged" in table and session.short_id in table and "host.json" in table
    assert b"Hello." in desk.run_claude("logs", session.short_id).stdout
    assert desk.run_claude("stop", session.short_id).status == 0
    assert (
        desk.run_claude("respawn", session.short_id).stdout
        == f"restarted {session.short_id}\n".encode()
    )
    restarted_session = desk.wait_until(session, lambda now: now.is_running)
    assert restarted_session.metadata["generation"] == 2 and not registry.is_metadata_damaged(
        restarted_session.metadata
    )
    desk.run_claude("stop", session.short_id)
    damage(session, data)
    assert (
        desk.run_claude("rm", session.short_id).stdout == f"removed {session.short_id}\n".encode()
    )
    assert agents(desk, "--all") == []


def test_unnamed_session_is_listed_by_its_id_while_running(desk):
    session = desk.start_session()
    assert [each["name"] for each in agents(desk)] == [session.short_id]
    desk.run_claude("stop", session.short_id)
    assert "name" not in agents(desk, "--all")[0]


def test_cwd_filter_lists_sessions_at_or_below_the_folder(desk, session):
    """B16"""
    subfolder = desk.cwd / "below"
    subfolder.mkdir()
    other = desk.start_session("hi", cwd=str(subfolder))
    assert [each["id"] for each in agents(desk, "--cwd", str(desk.cwd))] == [
        session.short_id,
        other.short_id,
    ]
    assert [each["id"] for each in agents(desk, "--cwd", "below")] == [other.short_id]
    assert agents(desk, "--cwd=/nowhere") == []
    assert agents(desk, "--cwd", str(desk.cwd)[:-1]) == []


def test_killed_host_is_listed_as_failed(desk, session):
    """B17; it is never listed as working."""
    desk.environment["SHIM_BIN"] = desk.box.create_fake(["hang"])
    busy_session = desk.start_session("hi")
    pid = desk.wait_until(busy_session, lambda now: now.metadata["status"] == "busy").metadata[
        "pid"
    ]
    os.kill(pid, signal.SIGKILL)
    desk.wait_for_end(busy_session)
    (listed,) = [each for each in agents(desk, "--all") if each["id"] == busy_session.short_id]
    assert listed["state"] == "failed" and "pid" not in listed
    assert [each["id"] for each in agents(desk)] == [session.short_id]


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (
            (),
            "'claude agents' requires an interactive terminal (output is piped or redirected) — use 'claude agents",
        ),
        (("--all",), "'claude agents' requires an interactive terminal"),
        (
            ("--json", "x"),
            "error: too many arguments for 'agents'. Expected 0 arguments but got 1.",
        ),
        (("--json", "--nope"), "error: unknown option '--nope'"),
        (("--json=1",), "error: unknown option '--json=1'"),
        (("--cwd",), "error: option '--cwd <path>' argument missing"),
    ],
)
def test_invalid_agents_arguments_print_the_errors_of_claude(desk, args, error):
    """B15"""
    done = desk.run_claude("agents", *args)
    assert (done.status, done.stdout) == (1, b"")
    assert done.stderr.startswith(error)


def test_agents_ignores_flags_for_new_sessions(desk):
    assert agents(desk, "--model", "opus", "--add-dir=/x", "--restricted") == []


# -- logs, stop, rm, respawn -----------------------------------------------------------------------


def test_logs_prints_output_of_running_and_ended_sessions(desk, session):
    living = desk.run_claude("logs", session.short_id)
    assert (living.status, living.stderr) == (0, "")
    assert "Hello." in living.stdout.decode() and "\x1b" not in living.stdout.decode()
    assert "cut off" not in living.stdout.decode()
    desk.run_claude("stop", session.short_id)
    assert "Hello." in desk.run_claude("logs", "my jo").stdout.decode()


def test_logs_prints_the_reason_if_a_session_failed_before_its_first_line(desk):
    desk.environment |= {"SHIM_VENDOR": "codex", "SHIM_BIN": str(desk.box.path / "missing")}
    failed = desk.start_session("go", vendor="codex")
    desk.wait_for_end(failed)
    log_text = desk.run_claude("logs", failed.short_id).stdout.decode()
    assert "the session failed before its first output" in log_text and "missing" in log_text


def test_stop_ends_a_session_and_preserves_its_log(desk, session):
    """B26: a second stop prints the same."""
    for _ in range(2):
        done = desk.run_claude("stop", session.short_id[:4])
        assert (done.status, done.stdout.decode(), done.stderr) == (
            0,
            f"stopped {session.short_id}\n",
            "",
        )
    assert not desk.load_session(session).is_running and os.path.isdir(f"{session.folder}/log")


def test_stop_ends_a_starting_session(desk):
    new_session = start_host(
        SessionSpec(prompt={"role": "user", "content": "hi"}, cwd=str(desk.cwd)), desk.environment
    )
    assert (
        desk.run_claude("kill", new_session.short_id).stdout.decode()
        == f"stopped {new_session.short_id}\n"
    )
    assert not desk.load_session(new_session).is_running


def test_unresponsive_host_is_killed(desk, monkeypatch):
    from shim.bridge import stop

    monkeypatch.setattr(stop, "SIGTERM_TIMEOUT_S", 0.2)
    desk.environment["SHIM_BIN"] = desk.box.create_fake(["hang"])
    session = desk.start_session("hi")
    with desk.halt_host(session):
        assert stop.stop_hosts([desk.load_session(session)], desk.environment) == []
    now = desk.load_session(session)
    assert (now.is_running, now.metadata["state"]) == (False, "stopped")


def test_stop_does_not_signal_another_process_with_the_recorded_pid(desk, session):
    """The metadata of a running host names another process, which must not receive a signal."""
    from shim.bridge import stop

    os.kill(session.metadata["pid"], signal.SIGKILL)
    desk.wait_for_end(session)
    registry.write_metadata(
        session.folder, {**session.metadata, "pid": os.getpid(), "state": "working"}
    )
    assert stop.stop_hosts([session], desk.environment) == []


def test_rm_removes_a_session_and_preserves_its_conversation(desk, session):
    """B27, B29"""
    done = desk.run_claude("rm", session.short_id)
    assert (done.status, done.stdout.decode(), done.stderr) == (
        0,
        f"removed {session.short_id}\n",
        "",
    )
    assert agents(desk, "--all") == [] and not os.path.exists(session.folder)
    second_run = desk.run_claude("rm", session.short_id)
    assert (second_run.status, second_run.stderr) == (
        1,
        f"No session matching '{session.short_id}'\n",
    )
    assert desk.run_claude("-p", "hi", "--resume", session.session_id).status == 0


def test_respawn_starts_a_new_host_with_the_next_generation(desk, session):
    """B28"""
    done = desk.run_claude("respawn", session.short_id)
    assert (done.status, done.stdout.decode(), done.stderr) == (
        0,
        f"restarted {session.short_id}\n",
        "",
    )
    restarted_session = desk.wait_until(session, lambda now: now.is_running and now.metadata["pid"])
    assert (
        restarted_session.metadata["generation"] == 2
        and restarted_session.metadata["pid"] != session.metadata["pid"]
    )
    assert desk.run_claude("respawn", "--all").stdout.decode() == f"restarted {session.short_id}\n"
    assert desk.load_session(session).metadata["generation"] == 3


def test_respawned_fork_preserves_its_session_id(desk, session):
    copy = desk.start_session("more", forked=session.session_id)
    with desk.connect(copy) as connection:
        read_until_result(connection)
    desk.run_claude("stop", copy.short_id)
    restarted_session = respawn_session(
        desk.load_session(copy), desk.environment, {"role": "user", "content": "again"}
    )
    with desk.connect(restarted_session, partial=False) as connection:
        messages = read_until_result(connection)
    assert {line["session_id"] for line in messages} == {copy.session_id} and not messages[-1][
        "is_error"
    ]


def test_respawn_all_without_sessions_prints_a_message(desk):
    assert desk.run_claude("respawn", "--all").stdout == b"no running sessions to restart\n"


@pytest.mark.parametrize(
    ("command_line", "error"),
    [
        ("logs", "Usage: claude logs <id|name>"),
        ("attach", "Usage: claude attach <id|name>"),
        ("stop", "Usage: claude stop <id>"),
        ("kill", "Usage: claude stop <id>"),
        ("rm", "Usage: claude rm <id>"),
        ("respawn", "usage: claude respawn <id>|--all"),
        ("stop -x", "unknown option '-x'\nUsage: claude stop <id>"),
        ("respawn -x", "unknown option '-x'\nUsage: claude respawn <id>|--all"),
        ("logs zz", f"No session matching 'zz'. {LISTED}"),
        ("attach zz", f"No session matching 'zz'. {LISTED}"),
        ("stop zz", f"No session matching 'zz'. {LISTED}"),
        ("rm zz", "No session matching 'zz'"),
        ("respawn zz", "No session matching 'zz'"),
        (
            "stop zz y z",
            f"warning: extra arguments ignored: y z\nNo session matching 'zz'. {LISTED}",
        ),
    ],
)
def test_invalid_session_commands_print_the_errors_of_claude(desk, command_line, error):
    """B23 to B25"""
    done = desk.run_claude(*command_line.split())
    assert (done.status, done.stdout, done.stderr) == (1, b"", f"{error}\n")


# -- daemon ----------------------------------------------------------------------------------------


def test_daemon_status_reports_not_running_and_counts_sessions(desk, session):
    """B38: programs parse the first line."""
    done = desk.run_claude("daemon", "status")
    assert (done.status, done.stderr) == (1, "")
    assert (
        done.stdout.startswith(b"not running\n")
        and b"each background session is its own process" in done.stdout
    )
    assert b"running:     1\n" in done.stdout


def test_daemon_stop_ends_sessions_only_with_any_flag(desk, session):
    """B39 to B41"""
    plain_stop = desk.run_claude("daemon", "stop")
    assert plain_stop.status == 1 and plain_stop.stderr.startswith(
        "no background service is installed, but 1 background session"
    )
    stop_without_workers = desk.run_claude("daemon", "stop", "--any", "--keep-workers")
    assert (
        stop_without_workers.status == 0
        and stop_without_workers.stdout.startswith(b"stopped\n")
        and desk.load_session(session).is_running
    )
    ended = desk.run_claude("daemon", "stop", "--any")
    assert (ended.status, ended.stdout) == (0, b"stopped (ended 1 background session)\n")
    assert not desk.load_session(session).is_running
    assert desk.run_claude("daemon", "stop", "--any").stdout == b"no daemon running\n"


def test_daemon_logs_prints_the_stderr_of_hosts(desk, session):
    with open(f"{session.folder}/stderr.log", "a", encoding="utf-8") as file:
        file.write("a warning\x1b[2J\n")
    assert (
        desk.run_claude("daemon", "logs")
        .stdout.decode()
        .endswith(f"[{session.short_id}] a warning\\x1b[2J\n")
    )


@pytest.mark.parametrize(
    ("command_line", "status", "expected"),
    [
        ("daemon", 1, "claude daemon: there is no daemon"),
        ("daemon run", 1, "claude daemon run: there is no daemon"),
        ("daemon install", 1, "`claude daemon install` is disabled"),
        ("daemon uninstall", 0, "uninstalled\n"),
        (
            "daemon frob",
            1,
            "unknown subcommand: frob\n\nUsage: claude daemon [subcommand] [options]",
        ),
        ("daemon stop --x", 0, "warning: extra arguments ignored: --x\n"),
    ],
)
def test_daemon_subcommands_exit_with_a_status_and_message(desk, command_line, status, expected):
    """B37, B43"""
    done = desk.run_claude(*command_line.split())
    assert done.status == status and (done.stderr or done.stdout.decode()).startswith(expected)


# -- terminal output, and hostile text -------------------------------------------------------------

HOSTILE = "job\x1b]0;owned\x07\x1b[2J\u202e[red]x[/red]"


@pytest.fixture
def screen(desk):
    """Return a function that runs `claude ARGS` on a terminal. It returns the exit status and the
    drawn text.
    """

    def run_on_terminal(*args):
        with on_terminal([*SHIM, "claude", *args], env=desk.environment, cwd=desk.cwd) as terminal:
            return terminal.wait_for_exit(), terminal.drawn

    return run_on_terminal


def test_agents_table_and_logs_are_colored_on_a_terminal(desk, session, screen):
    status, drawn = screen("agents")
    assert status == 0 and session.short_id in drawn and "my job" in drawn and "\x1b[" in drawn
    status, drawn = screen("logs", session.short_id)
    assert status == 0 and "Hello." in drawn and "\x1b[" in drawn
    status, drawn = screen("stop", session.short_id)
    assert (status, drawn) == (0, f"stopped {session.short_id}\r\n")
    assert "no running background sessions" in screen("agents")[1]
    status, drawn = screen("--bg", "--name", "other")
    assert (
        status == 0
        and "backgrounded · \x1b[36m" in drawn
        and "(idle — send a prompt to start)" in drawn
    )


def test_session_names_are_printed_without_control_characters(desk, screen):
    """A name comes from a prompt, which may come from any source."""
    session, other = desk.start_session(HOSTILE, name=HOSTILE), desk.start_session(name=HOSTILE)
    for args in (
        ("agents",),
        ("logs", session.short_id),
        ("logs", "job"),
        ("--bg", "--name", HOSTILE),
        ("stop", HOSTILE),
    ):
        _, drawn = screen(*args)
        assert "\x1b]" not in drawn and "\x1b[2J" not in drawn and "\u202e" not in drawn, args
    for args in (("bridge", "list"), ("bridge", "stop", "job"), ("doctor", "demo")):
        done = desk.run_shim(*args)
        assert "\x1b" not in done.stdout.decode() + done.stderr, args
    assert other.short_id in desk.run_shim("bridge", "list").stdout.decode()
    assert "[red]x[/red]" in desk.run_shim("bridge", "list").stdout.decode()
    assert {each["name"] for each in agents(desk)} == {HOSTILE}
