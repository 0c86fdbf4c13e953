"""The drop-in as a client of a background session: what its frontend sees, and the effect on the
session.

The vendor is a stand-in that prints what qwen 0.24.4 prints. One child serves the whole
conversation.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest
from box import ASK, CONVERSE, STREAM, format_ndjson, run_shim
from host_box import HostingBox

from shim.bridge import registry
from shim.bridge.client import connect_to_session_blocking, send_frames_and_collect_answers
from shim.bridge.stop import stop_hosts
from shim.core.bridge.frames import WATCH
from shim.core.policy.serialize import serialize_settings
from shim.core.policy.settings import ClaudeSettings
from tests.bridge.test_host_connection import HEARS_LATE
from tests.conversation.test_conversation import U, request, responses, results, user
from tests.conversation.test_persistent_driver import (
    ASKING,
    HELLO,
    INIT,
    answer,
    asks,
    calls,
    question,
    read_child_stdin,
    result,
    returns,
    says,
)

BRIDGE = {"SHIM_BRIDGE": "1"}
STAYS = ["hear", "never"]


def turn(text):
    return ["out", format_ndjson(INIT, says(text), result(text))]


ASKING_CHILD = (
    *(
        HELLO,
        ["hear", "go"],
        ["out", format_ndjson(INIT, calls(), asks())],
        ["hear", "control_response"],
    ),
    *(["out", format_ndjson(returns("done"))], turn("Ok."), STAYS),
)


@pytest.fixture
def hosting_box(box):
    """Yield the box, whose hosts end with the test. Its vendor answers "one" and "two" and keeps
    running.
    """
    made = HostingBox(box)
    made.set_vendor_plan(
        HELLO, ["hear", "one"], turn("First."), ["hear", "two"], turn("Second."), STAYS
    )
    yield made
    made.stop_hosts()


def talk(living, *flags, **environment):
    """Start a frontend in a conversation."""
    return living.box.start_claude(
        *CONVERSE, *flags, stdin=subprocess.PIPE, environment={**living.environment, **environment}
    )


def start_session(living, *flags):
    """Return a running session after a one-message conversation through the bridge, and the
    frontend's output.
    """
    with talk(living, *flags, **BRIDGE) as running:
        running.send_lines(user("one"))
        done = running.end_input()
    (session,) = living.list_sessions()
    return session, done


def test_bridge_conversation_streams_normally_and_its_session_stays_running(hosting_box):
    session, done = start_session(hosting_box)
    assert (done.status, done.stderr) == (0, "")
    assert [line["type"] for line in done.lines] == ["system", "assistant", "result"]
    assert done.result["result"] == "First." and done.init["session_id"] == session.session_id
    assert session.is_running


def test_client_can_set_the_mode_right_after_a_frontend_disconnects(hosting_box, tmp_path):
    only = 'import sys\nif any("bridge.host" in word for word in sys.orig_argv):\n'
    (tmp_path / "sitecustomize.py").write_text(only + indent(HEARS_LATE, "    "))
    hosting_box.environment["PYTHONPATH"] = str(tmp_path)
    session, _ = start_session(hosting_box)
    received = send_frames_and_collect_answers(
        session.session_id, [{"kind": "mode", "mode": "plan"}], hosting_box.variables
    )
    assert received[-1]["kind"] != "refused", received


def test_short_id_resumes_the_session(hosting_box):
    session, _ = start_session(hosting_box)
    done = hosting_box.run_claude("-p", "two", "--resume", session.short_id, *STREAM)
    assert (done.status, done.stderr) == (0, "")
    assert done.result["result"] == "Second." and done.init["session_id"] == session.session_id


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), b"Second.\n"),
        (("--output-format", "json"), b'"result":"Second."'),
        (("--output-format", "json", "--verbose"), b'"result":"Second."'),
        (STREAM, b'{"type":"message_stop"}\n'),
    ],
)
def test_resume_of_a_running_session_uses_its_running_child(hosting_box, flags, expected):
    session, _ = start_session(hosting_box)
    before = hosting_box.list_children(session)
    done = hosting_box.run_claude("-p", "two", "--resume", session.session_id, *flags)
    assert (done.status, done.stderr) == (0, "")
    assert expected in done.stdout and b"First." not in done.stdout
    assert (
        hosting_box.load_session(session).is_running
        and hosting_box.list_children(session)
        and set(hosting_box.list_children(session)) <= set(before)
    )


def test_continue_joins_the_last_running_session_of_the_directory(hosting_box):
    session, _ = start_session(hosting_box)
    done = hosting_box.run_claude("-p", "two", "--continue", *STREAM)
    assert done.result["result"] == "Second." and done.init["session_id"] == session.session_id
    assert [line["type"] for line in done.lines] == [
        "system",
        "assistant",
        "result",
        "message_stop",
    ]


def test_conversation_joins_a_running_session(hosting_box):
    session, _ = start_session(hosting_box)
    with talk(
        hosting_box,
        "--resume",
        session.session_id,
        "--include-partial-messages",
        "--replay-user-messages",
    ) as running:
        running.send_lines(request("r1", "initialize"), user("two", uuid=U))
        done = running.end_input()
    assert responses(done)["r1"]["response"]["current_permission_mode"] == "default"
    kinds = [line["type"] for line in done.lines if line["type"] != "control_response"]
    assert kinds[:2] == ["system", "user"] and "stream_event" in kinds and kinds[-1] == "result"
    assert done.lines[2]["uuid"] == U


def test_explain_names_the_running_session_that_a_conversation_joins(hosting_box):
    session, _ = start_session(hosting_box)
    done = hosting_box.run_claude("--shim-explain", "-p", "two", "--resume", session.session_id)
    line = f"session     the running background session {session.short_id} receives the message"
    text = done.stdout.decode()
    assert line in text.splitlines()
    assert done.status == 0 and "command " not in text


def test_single_message_through_the_bridge_ends_its_session(hosting_box):
    done = hosting_box.run_claude("-p", "one", **BRIDGE)
    assert (done.status, done.stdout, done.stderr) == (0, b"First.\n", "")
    (session,) = hosting_box.list_sessions()
    assert hosting_box.wait_for_end(session).metadata["state"] in ("stopped", "done")


def test_resume_of_an_ended_session_restores_its_original_flags(hosting_box):
    first = (
        "--disallowedTools",
        "Bash",
        "--permission-mode",
        "plan",
        "--append-system-prompt",
        "short",
    )
    assert hosting_box.run_claude("-p", "one", *first, **BRIDGE).status == 0
    (session,) = hosting_box.list_sessions()
    hosting_box.wait_for_end(session)
    done = hosting_box.run_claude(
        "-p", "one", "--resume", session.session_id, "--append-system-prompt", "long", **BRIDGE
    )
    assert (done.status, done.stderr) == (0, "")
    args = (registry.load_session_start_data(session.folder) or {})["arguments"]
    assert args[:2] == ["--append-system-prompt", "long"] and {
        "--disallowedTools=Bash",
        "plan",
    } <= set(args)


def test_fork_through_the_bridge_inherits_denied_tools(hosting_box):
    assert (
        hosting_box.run_claude(
            "-p", "one", "--disallowedTools", "Bash", "--allowedTools", "Read", **BRIDGE
        ).status
        == 0
    )
    (session,) = hosting_box.list_sessions()
    hosting_box.wait_for_end(session)
    assert (
        hosting_box.run_claude(
            "-p", "one", "--resume", session.session_id, "--fork-session", **BRIDGE
        ).status
        == 0
    )
    (copy,) = (
        other for other in hosting_box.list_sessions() if other.session_id != session.session_id
    )
    assert (registry.load_session_start_data(copy.folder) or {})["arguments"] == [
        "--disallowedTools=Bash"
    ]


def test_resume_elsewhere_resolves_stored_paths_in_the_original_directory(hosting_box, tmp_path):
    (hosting_box.box.cwd / "s.json").write_text("{}")
    first = ("--disallowedTools", "Edit(./x/y)", "--settings", "s.json")
    assert hosting_box.run_claude("-p", "one", *first, **BRIDGE).status == 0
    (session,) = hosting_box.list_sessions()
    hosting_box.wait_for_end(session)
    argv = [
        "claude",
        "-p",
        "one",
        "--resume",
        session.session_id,
        "--disallowedTools",
        "Edit(./x/y)",
    ]
    assert run_shim(argv, env={**hosting_box.variables, **BRIDGE}, cwd=tmp_path).status == 0
    args = (registry.load_session_start_data(session.folder) or {})["arguments"]
    assert [arg.partition("=")[2] or arg for arg in args] == [
        *(
            f"Edit(/{hosting_box.box.cwd}/x/y)",
            "Edit(./x/y)",
            "--settings",
            f"{hosting_box.box.cwd}/s.json",
        ),
    ]


def test_session_survives_a_killed_frontend(hosting_box):
    with talk(hosting_box, **BRIDGE) as running:
        running.send_lines(user("one"))
        running.read_until(b'"result":"First."')
        running.send_signal(signal.SIGKILL)
        running.wait_for_status()
    (session,) = hosting_box.list_sessions()
    assert session.is_running
    assert (
        hosting_box.run_claude("-p", "two", "--resume", session.session_id).stdout == b"Second.\n"
    )


def test_sigterm_to_an_idle_frontend_ends_its_session(hosting_box):
    with talk(hosting_box, **BRIDGE) as running:
        running.send_lines(user("one"))
        running.read_until(b'"result":"First."')
        running.send_signal(signal.SIGTERM)
        assert running.wait_for_status() == 143
    (session,) = hosting_box.list_sessions()
    hosting_box.wait_for_end(session)


def test_frontend_answers_a_permission_prompt_while_a_watcher_is_connected(hosting_box):
    hosting_box.set_vendor_plan(*ASKING_CHILD)
    with talk(hosting_box, *ASKING, **BRIDGE) as running:
        running.send_lines(user("go"))
        prompt = question(running)
        (session,) = hosting_box.list_sessions()
        with connect_to_session_blocking(
            session.session_id, hosting_box.variables, role=WATCH
        ) as watcher:
            running.send_lines(
                answer(
                    prompt["request_id"], behavior="allow", updatedInput=prompt["request"]["input"]
                )
            )
            resolution = hosting_box.wait_for_frame(watcher, "settled")
        done = running.end_input()
    assert resolution["how"] == "allow" and done.result["result"] == "Ok."


def test_prompt_answered_by_another_client_is_cancelled_for_the_frontend(hosting_box):
    hosting_box.set_vendor_plan(*ASKING_CHILD)
    with talk(hosting_box, *ASKING, **BRIDGE) as running:
        running.send_lines(user("go"))
        prompt = question(running)
        (session,) = hosting_box.list_sessions()
        with connect_to_session_blocking(session.session_id, hosting_box.variables) as other:
            other.send_frame_blocking(
                {
                    "kind": "answer",
                    "id": "1",
                    "question": prompt["request_id"],
                    "decision": {"behavior": "deny"},
                }
            )
            hosting_box.wait_for_frame(other, "settled")
        done = running.end_input()
    (cancelled,) = [line for line in done.lines if line["type"] == "control_cancel_request"]
    assert cancelled["request_id"] == prompt["request_id"]


def test_host_crash_during_a_turn_writes_an_error_result(hosting_box):
    hosting_box.set_vendor_plan(
        HELLO, ["hear", "one"], ["out", format_ndjson(INIT, says("Begun."))], STAYS
    )
    with talk(hosting_box, **BRIDGE) as running:
        running.send_lines(user("one"))
        running.read_until(b"Begun.")
        (session,) = hosting_box.list_sessions()
        os.kill(session.metadata["pid"], signal.SIGKILL)
        done = running.wait_for_end()
    assert done.status == 1 and done.result["is_error"]
    assert (
        "crashed during the turn" in done.result["errors"][0]
        and session.session_id in done.result["errors"][0]
    )


def test_conversation_runs_without_the_bridge_if_no_host_can_start(hosting_box):
    hosting_box.box.state.mkdir(parents=True, mode=0o755)
    hosting_box.box.state.chmod(0o755)
    done = hosting_box.run_claude("-p", "one", **BRIDGE)
    assert (done.status, done.stdout) == (0, b"First.\n")
    assert "the conversation runs without the bridge: " in done.stderr


def test_unsupported_mode_is_refused_as_without_the_bridge(hosting_box):
    done = hosting_box.run_claude(
        *ASK, "--permission-mode", "dontAsk", **BRIDGE, SHIM_VENDOR="cursor"
    )
    plain = hosting_box.run_claude(*ASK, "--permission-mode", "dontAsk", SHIM_VENDOR="cursor")
    assert (done.status, done.stderr, done.result["errors"]) == (
        1,
        plain.stderr,
        plain.result["errors"],
    )
    assert hosting_box.list_sessions() == []


def test_unsupported_mode_can_be_changed_before_the_first_message(hosting_box):
    """claude-agent-acp does so: it starts with `--permission-mode=auto`, and asks which model
    supports it.
    """
    with talk(hosting_box, "--permission-mode=auto", **BRIDGE, SHIM_VENDOR="cursor") as running:
        running.send_lines(request("i", "initialize"))
        assert b'"supportsAutoMode":false' in running.read_until(b'"request_id":"i"')
        running.send_lines(request("p", "set_permission_mode", mode="plan"))
        running.read_until(b'"permissionMode":"plan"')
        done = running.end_input()
    assert done.status == 0
    assert len(hosting_box.list_sessions()) == 1


@pytest.mark.parametrize(
    ("flags", "environment"),
    [((), {"SHIM_BIN": "/nowhere/qwen"}), (("--resume", U), {})],
)
def test_refusal_reports_the_same_vendor_as_without_the_bridge(hosting_box, flags, environment):
    done, plain = (
        hosting_box.run_claude(*ASK, *flags, *STREAM, **environment, **more)
        for more in (BRIDGE, {})
    )
    assert plain.result["shim"]["vendor"] == "qwen", plain.result
    assert (
        done.result["shim"] == plain.result["shim"]
        and done.result["errors"] == plain.result["errors"]
    )
    assert (done.status, done.stderr) == (plain.status, plain.stderr)


def test_no_session_persistence_bypasses_the_bridge_silently(hosting_box):
    done = hosting_box.run_claude("-p", "one", "--no-session-persistence", **BRIDGE)
    assert (done.status, done.stdout, done.stderr) == (0, b"First.\n", "")
    assert hosting_box.list_sessions() == []


def test_resume_is_refused_while_another_client_runs_a_turn(
    hosting_box,
):
    """B50"""
    hosting_box.set_vendor_plan(
        HELLO, ["hear", "one"], ["out", format_ndjson(INIT, says("Begun."))], STAYS
    )
    with talk(hosting_box, **BRIDGE) as running:
        running.send_lines(user("one"))
        running.read_until(b"Begun.")
        (session,) = hosting_box.list_sessions()
        done = hosting_box.run_claude("-p", "two", "--resume", session.session_id, *STREAM)
        text = hosting_box.run_claude("-p", "two", "--resume", session.session_id)
        copy = registry.is_session_running(session.session_id, hosting_box.variables)
    assert done.status == 1 and done.stderr.startswith(
        f"Error: That session is running in the background ({session.short_id}). "
    )
    assert done.result["is_error"] and done.result["errors"][0].startswith(
        "Error: That session is running"
    )
    assert (
        "has control and a turn is running; send the message again when the turn has ended."
        in done.result["errors"][0]
    )
    assert (text.status, text.stdout) == (1, b"") and copy
    assert [line["result"] for line in results(done)[:-1]] == []


def test_resume_without_prompt_support_is_refused_while_a_prompt_waits(hosting_box):
    """B50: `same while it waits for permission`; the permission request stays open."""
    hosting_box.set_vendor_plan(*ASKING_CHILD)
    with talk(hosting_box, *ASKING, **BRIDGE) as running:
        running.send_lines(user("go"))
        prompt = question(running)
        running.send_signal(signal.SIGKILL)
        running.wait_for_status()
    (session,) = hosting_box.list_sessions()
    done = hosting_box.run_claude("-p", "hello", "--resume", session.session_id)
    assert (done.status, done.stdout) == (1, b"")
    assert done.stderr.startswith(
        f"Error: That session is running in the background ({session.short_id}). "
    )
    with connect_to_session_blocking(
        session.session_id, hosting_box.variables, role=WATCH
    ) as watcher:
        assert watcher.welcome["questions"] == [prompt["request_id"]]


SERVERS = '{"mcpServers": {"calc": {"command": "true"}}}'
# The flags of each group of the table that a running session must have been started with.
EQUAL_GROUPS = [
    ("--disallowedTools", "Write"),
    ("--tools", "Read"),
    ("--allowedTools", "Read"),
    ("--mcp-config", SERVERS),
    ("--agents", '{"reviewer": {"description": "reviews", "prompt": "Review."}}'),
    ("--max-turns", "3"),
]


@pytest.mark.parametrize("flags", EQUAL_GROUPS, ids=lambda flags: flags[0])
def test_flag_that_the_session_was_not_started_with_is_refused_by_name(hosting_box, flags):
    session, _ = start_session(hosting_box)
    done = hosting_box.run_claude("-p", "two", "--resume", session.session_id, *flags, *STREAM)
    assert done.status == 1 and done.result["is_error"]
    assert f"cannot join the background session {session.short_id}" in done.result["errors"][0]
    assert f"passes {flags[0]} " in done.stderr and f"started without {flags[0]}" in done.stderr
    assert "--fork-session" in done.stderr and f"claude stop {session.short_id}" in done.stderr
    assert hosting_box.load_session(session).is_running


@pytest.mark.parametrize("flags", EQUAL_GROUPS, ids=lambda flags: flags[0])
def test_frontend_with_the_flags_of_the_session_joins(hosting_box, flags):
    session, _ = start_session(hosting_box, *flags)
    done = hosting_box.run_claude("-p", "two", "--resume", session.session_id, *flags, *STREAM)
    assert done.status == 0 and done.result["result"] == "Second.", done
    assert "cannot join" not in done.stderr
    assert hosting_box.load_session(session).metadata["pid"] == session.metadata["pid"]


def test_refused_frontend_continues_in_a_copy(hosting_box):
    session, _ = start_session(hosting_box)
    hosting_box.set_vendor_plan(HELLO, ["hear", "two"], turn("Copied."), STAYS)
    flags = ("--resume", session.session_id, "--fork-session", "--disallowedTools", "Write")
    done = hosting_box.run_claude("-p", "two", *flags, *STREAM)
    assert (done.status, done.result["result"]) == (0, "Copied."), done
    assert hosting_box.load_session(session).is_running


def test_join_prints_the_flags_that_have_no_effect(hosting_box):
    session, _ = start_session(hosting_box)
    done = hosting_box.run_claude(
        "-p", "two", "--resume", session.session_id, "--effort", "low", "--add-dir", "/tmp"
    )
    assert (done.status, done.stdout) == (0, b"Second.\n")
    assert done.stderr.endswith("--effort, --add-dir\n")


def test_model_of_a_joining_frontend_is_set(hosting_box):
    steps = (["hear", '"small"'], ["hear", "two"], turn("Second."), STAYS)
    hosting_box.set_vendor_plan(HELLO, ["hear", "one"], turn("First."), *steps)
    session, _ = start_session(hosting_box)
    with connect_to_session_blocking(session.session_id, hosting_box.variables) as terminal:
        resume = ("--resume", session.session_id)
        done = hosting_box.run_claude("-p", "two", *resume, "--model", "small", *STREAM)
        assert (done.status, done.stderr) == (0, ""), done
        assert done.result["result"] == "Second."
        assert terminal.welcome["driver"] == terminal.welcome["client"]
        assert hosting_box.wait_for_frame(terminal, "driver")["client"] == "claude"


def test_wider_mode_of_a_joining_frontend_is_set(hosting_box):
    session, _ = start_session(hosting_box)
    mode = ("--permission-mode", "acceptEdits")
    done = hosting_box.run_claude("-p", "two", "--resume", session.session_id, *mode, *STREAM)
    assert (done.status, done.stderr) == (0, ""), done
    hosting_box.wait_for_mode(session, "acceptEdits")


@pytest.mark.parametrize(
    "flags", [("--permission-mode", "bypassPermissions"), ("--dangerously-skip-permissions",)]
)
@pytest.mark.parametrize("is_conversation", [True, False])
def test_bypass_mode_is_refused_if_the_session_does_not_permit_bypassing(
    hosting_box, flags, is_conversation
):
    session, _ = start_session(hosting_box)
    form = CONVERSE if is_conversation else ("-p", "two", *STREAM)
    done = hosting_box.run_claude(*form, "--resume", session.session_id, *flags)
    assert done.status == 1, done
    assert (
        "--permission-mode bypassPermissions was refused: bypassPermissions can be" in done.stderr
    )
    assert hosting_box.load_session(session).is_running
    hosting_box.wait_for_mode(session, "default")


def joined_in_plan(living):
    """Return a session, and the lines of a frontend that has joined it with a stricter mode."""
    living.set_vendor_plan(HELLO, ["hear", "one"], turn("First."), ["hear", "never"])
    session, _ = start_session(living)
    with talk(living, "--resume", session.session_id, "--permission-mode", "plan") as running:
        running.send_lines(request("r1", "initialize"))
        done = running.end_input()
    assert responses(done)["r1"]["response"]["current_permission_mode"] == "plan"
    return session, done


def test_mode_of_a_joining_frontend_survives_its_disconnect(hosting_box):
    session, done = joined_in_plan(hosting_box)
    assert [line["type"] for line in done.lines] == ["control_response"]
    hosting_box.wait_until_uncontrolled(session)
    hosting_box.wait_for_mode(session, "plan")


def test_frontend_waits_for_a_running_turn_and_receives_only_its_answer(hosting_box):
    gate = hosting_box.box.create_gate()
    first = (
        HELLO,
        ["hear", "one"],
        ["out", format_ndjson(INIT, says("Begun."))],
        ["wait", gate.path],
    )
    hosting_box.set_vendor_plan(
        *first, ["out", format_ndjson(result("First."))], ["hear", "two"], turn("Second."), STAYS
    )
    with talk(hosting_box, **BRIDGE) as running:
        running.send_lines(user("one"))
        running.read_until(b"Begun.")
        running.send_signal(signal.SIGKILL)
        running.wait_for_status()
    (session,) = hosting_box.list_sessions()
    args = (
        "-p",
        "two",
        "--resume",
        session.session_id,
        *STREAM,
        "--permission-prompt-tool",
        "stdio",
    )
    with (
        connect_to_session_blocking(
            session.session_id, hosting_box.variables, role=WATCH
        ) as watcher,
        hosting_box.box.start_claude(*args, environment=hosting_box.environment) as second,
    ):
        while hosting_box.wait_for_frame(watcher, "driver")["client"] is None:
            pass  # the session that was killed
        gate.open()
        done = second.wait_for_end()
    assert done.status == 0 and done.result["result"] == "Second."
    assert b"First." not in done.stdout and b"Begun." not in done.stdout


def test_sigterm_during_a_turn_writes_a_result_and_stops_the_session(hosting_box):
    hosting_box.set_vendor_plan(
        HELLO, ["hear", "one"], ["out", format_ndjson(INIT, says("Begun."))], STAYS
    )
    with talk(hosting_box, **BRIDGE) as running:
        running.send_lines(user("one"))
        running.read_until(b"Begun.")
        running.send_signal(signal.SIGTERM)
        done = running.wait_for_end()
    assert done.status == 143 and done.cause == "signal"
    (session,) = hosting_box.list_sessions()
    assert hosting_box.wait_for_end(session).metadata["state"] == "stopped"


def test_sigterm_interrupts_the_turn_and_leaves_a_joined_session_running(hosting_box):
    cut = ["out", format_ndjson(result(error="Operation cancelled."))]
    interrupted_turn = (
        ["hear", "two"],
        ["out", format_ndjson(INIT, says("Begun."))],
        ["hear", '"interrupt"'],
        cut,
        STAYS,
    )
    hosting_box.set_vendor_plan(HELLO, ["hear", "one"], turn("First."), *interrupted_turn)
    session, _ = start_session(hosting_box)
    with talk(hosting_box, "--resume", session.session_id) as running:
        running.send_lines(user("two"))
        running.read_until(b"Begun.")
        running.send_signal(signal.SIGTERM)
        done = running.wait_for_end()
    assert done.status == 143 and done.cause == "signal"
    assert hosting_box.wait_until_idle(session).is_running


def test_bridge_setting_enables_the_bridge(hosting_box):
    hosting_box.box.write_settings("bridge = true\n")
    with talk(hosting_box) as running:
        running.send_lines(user("one"))
        running.end_input()
    assert [session.is_running for session in hosting_box.list_sessions()] == [True]


def run_yume(living, session, *args, **environment):
    """Run one turn of yume-cli in a session, with the flags that Yume passes."""
    flags = ("--provider", "qwen", "--model", "m", "--cwd", str(living.box.cwd))
    done = living.box.run_shim(
        *("yume-cli", "start", *flags, "--session-id", session.session_id),
        *("--resume", session.session_id, *args),
        environment={**living.variables, **environment},
    )
    return [json.loads(line) for line in done.stdout.splitlines()], done


YUME_FORMS = [
    ("claude", ("--print", "--output-format", "stream-json", "--model", "small", "two")),
    ("yume-cli", ("--prompt", "two", "--permission-mode", "default")),
]


@pytest.mark.parametrize(("program", "args"), YUME_FORMS, ids=["claude", "yume-cli"])
def test_yume_frontend_joins_a_running_session(hosting_box, program, args):
    model = ["hear", "set_model"]
    hosting_box.set_vendor_plan(
        HELLO, ["hear", "one"], turn("First."), model, ["hear", "two"], turn("Second."), STAYS
    )
    session, _ = start_session(hosting_box)
    before = hosting_box.list_children(session)
    if program == "claude":
        resume = ("--resume", session.session_id)
        done = hosting_box.run_claude(*args, *resume, SHIM_DIALECT="yume")
        lines = done.lines
    else:
        lines, done = run_yume(hosting_box, session, *args)
    assert done.status == 0, done
    kinds = [line["type"] for line in lines]
    assert kinds[0] == "system" and kinds[-2:] == ["result", "message_stop"]
    assert "".join(line["content"] for line in lines if line["type"] == "text") == "Second."
    assert lines[0]["session_id"] == lines[-2]["session_id"] == session.session_id
    assert lines[-2]["shim"]["vendor"] == "qwen"
    assert set(hosting_box.list_children(session)) <= set(before)
    assert hosting_box.load_session(session).is_running


def test_yume_frontend_with_a_stricter_flag_is_refused_by_name(hosting_box):
    session, _ = start_session(hosting_box)
    done = hosting_box.run_claude(
        *("-p", "two", "--resume", session.session_id, *STREAM, "--disallowedTools", "Write"),
        SHIM_DIALECT="yume",
    )
    assert done.status == 1 and [line["type"] for line in done.lines][-1] == "message_stop"
    assert "passes --disallowedTools Write" in str(done.lines)
    assert hosting_box.load_session(session).is_running


def test_permission_mode_of_a_yume_frontend_is_set(hosting_box):
    session, _ = start_session(hosting_box)
    lines, done = run_yume(hosting_box, session, "--prompt", "two", "--permission-mode", "deny")
    assert done.status == 0 and lines[-1]["type"] == "message_stop", done
    hosting_box.wait_for_mode(session, "plan")


def test_prompt_in_the_turn_of_a_yume_frontend_is_denied(hosting_box):
    hosting_box.set_vendor_plan(HELLO, ["hear", "one"], turn("First."), *ASKING_CHILD[1:])
    session, _ = start_session(hosting_box)
    lines, done = run_yume(hosting_box, session, "--prompt", "go")
    assert done.status == 0 and lines[-1]["type"] == "message_stop", done
    assert "Ok." in str(lines)


def test_yume_frontend_without_a_prompt_cannot_join_a_running_session(hosting_box):
    session, _ = start_session(hosting_box)
    lines, done = run_yume(hosting_box, session)
    assert done.status == 1 and lines[-1]["type"] == "message_stop"
    assert "sends Yume frames cannot join it" in str(lines)
    assert "--prompt" in done.stderr and hosting_box.load_session(session).is_running


# A host that answers a request for another mode before it has written the line about the mode.
LATE = """
import sys
if any("bridge.host" in word for word in sys.orig_argv):
    from shim.core.bridge.hub import SessionHub
    feed = SessionHub.feed_conversation_stdout
    def feed_later(self, data):
        feed(self, b"".join(line for line in data.splitlines(True) if b'"subtype":"status"' not in line))
    SessionHub.feed_conversation_stdout = feed_later
"""


def test_initialize_reports_a_stricter_mode_before_the_status_line_arrives(hosting_box, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(LATE)
    hosting_box.environment["PYTHONPATH"] = str(tmp_path)
    joined_in_plan(hosting_box)


def test_running_turn_preserves_the_mode_after_its_frontend_leaves(hosting_box):
    gate = hosting_box.box.create_gate()
    slow = (
        ["hear", "two"],
        ["out", format_ndjson(INIT, says("Begun."))],
        ["wait", gate.path],
        turn("Second."),
    )
    hosting_box.set_vendor_plan(
        HELLO, ["hear", "one"], turn("First."), ["hear", "plan"], *slow, STAYS
    )
    session, _ = start_session(hosting_box)
    with talk(hosting_box, "--resume", session.session_id, "--permission-mode", "plan") as running:
        running.send_lines(user("two"))
        running.read_until(b"Begun.")
        running.process.stdout.close()
        running.process.stdout = None
        assert running.wait_for_status() == 0
    with connect_to_session_blocking(
        session.session_id, hosting_box.variables, role=WATCH, replay=False
    ) as watcher:
        gate.open()
        hosting_box.wait_for_frame(watcher, "state")
        assert watcher.welcome["mode"] == "plan"


QUICKER = """
import sys
from shim.bridge.attach import conversation
def start_twice(spec, environment, session_id, start_host=conversation.start_host):
    conversation.start_host = start_host
    start_host(spec._replace(arguments=()), environment, session_id)
    return start_host(spec, environment, session_id)
conversation.start_host = start_twice
from shim.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("flags", "status", "expected"),
    [((), 0, b"First."), (("--tools", "Read"), 1, b"passes --tools Read")],
    ids=["joins", "is refused if it forbids more"],
)
def test_frontend_joins_a_session_that_another_process_just_started(
    hosting_box, flags, status, expected
):
    session, _ = start_session(hosting_box)
    stop_hosts([session], hosting_box.variables)
    argv = [
        sys.executable,
        "-P",
        "-c",
        QUICKER,
        "claude",
        "-p",
        "one",
        "--resume",
        session.session_id,
        *flags,
        *STREAM,
    ]
    environment = {**hosting_box.variables, **BRIDGE}
    done = subprocess.run(
        argv,
        env=environment,
        cwd=hosting_box.box.cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    assert done.returncode == status and expected in done.stdout, done
    assert hosting_box.load_session(session).is_running, "the session of who was quicker was ended"


def test_original_flags_apply_if_the_host_cannot_start(hosting_box):
    session, _ = start_session(hosting_box, "--permission-mode", "plan")
    stop_hosts([session], hosting_box.variables)
    hosting_box.set_vendor_plan(
        ["record", str(hosting_box.box.recording)], HELLO, ["hear", "one"], turn("First."), STAYS
    )
    script = QUICKER.replace(
        "    conversation.start_host = start_host\n",
        "    raise conversation.FrontendError('no host', hint='do this')\n",
    )
    argv = [
        sys.executable,
        "-P",
        "-c",
        script,
        "claude",
        "-p",
        "one",
        "--resume",
        session.session_id,
        *STREAM,
    ]
    environment = {**hosting_box.variables, **BRIDGE}
    done = subprocess.run(
        argv,
        env=environment,
        cwd=hosting_box.box.cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    assert done.returncode == 0 and b"without the bridge: no host; do this" in done.stderr, done
    assert "plan" in hosting_box.box.read_record()["arguments"]


def test_resume_is_refused_if_the_original_settings_file_is_missing(hosting_box):
    file = hosting_box.box.cwd / "s.json"
    file.write_text('{"permissions": {"deny": ["Bash"]}}')
    session, _ = start_session(hosting_box, "--settings", "s.json")
    file.unlink()
    stop_hosts([session], hosting_box.variables)
    done = hosting_box.run_claude("-p", "two", "--resume", session.session_id, *STREAM, **BRIDGE)
    assert (
        done.status == 1
        and f"was started with --settings, whose file {file} no longer exists" in str(done.result)
    )
    assert not hosting_box.load_session(session).is_running


@pytest.mark.parametrize("flag", ["--mcp-config", "--settings"])
def test_join_succeeds_after_a_flag_file_was_deleted(hosting_box, flag):
    """The host has already read the file. A program may write such a file for one start only."""
    file = hosting_box.box.cwd / "flag.json"
    file.write_text('{"mcpServers": {}}')
    session, _ = start_session(hosting_box, flag, "flag.json")
    file.unlink()
    done = hosting_box.run_claude("-p", "two", "--resume", session.session_id, *STREAM)
    assert (done.status, done.result["result"]) == (0, "Second."), done


NEW_SETTINGS = {"permissions": {"deny": ["Bash(touch:*)"]}}


@pytest.mark.parametrize("source", ["own", "folder", "flag"])
def test_host_applies_changed_settings_files_for_a_joining_frontend(hosting_box, source):
    record, flags = ["record", str(hosting_box.box.recording)], ()
    first = [HELLO, ["hear", "one"], turn("First."), STAYS]
    denied = ["out", format_ndjson(returns("no", failed=True), says("Ok."), result("Ok."))]
    hosting_box.environment["SHIM_BIN"] = hosting_box.box.create_fake_sequence(
        first, [*ASKING_CHILD[:4], record, denied, STAYS]
    )
    file = {
        "own": hosting_box.box.home / ".claude" / "settings.json",
        "folder": hosting_box.box.cwd / ".claude" / "settings.local.json",
        "flag": hosting_box.box.cwd / "s.json",
    }[source]
    file.parent.mkdir(exist_ok=True)
    if source == "flag":
        flags = ("--settings", "s.json")
    file.write_text("{}")
    session, _ = start_session(hosting_box, *flags)
    file.write_text(json.dumps(NEW_SETTINGS))
    with talk(hosting_box, *ASKING, *flags, "--resume", session.session_id) as running:
        running.send_lines(user("go"))
        done = running.end_input()
    (decided,) = [
        line["response"]["response"]
        for line in read_child_stdin(hosting_box.box)
        if line["type"] == "control_response"
    ]
    assert decided["behavior"] == "deny" and not any(
        line["type"] == "control_request" for line in done.lines
    )


def test_settings_that_only_the_frontend_reads_are_refused(hosting_box):
    """The host has another configuration folder, so it does not read this file."""
    session, _ = start_session(hosting_box)
    folder = hosting_box.box.home / "other"
    folder.mkdir()
    (folder / "settings.json").write_text(json.dumps(NEW_SETTINGS))
    resume, variables = ("--resume", session.session_id), {"CLAUDE_CONFIG_DIR": str(folder)}
    done = hosting_box.run_claude("-p", "two", *resume, **variables)
    assert done.status == 1
    assert f"{folder}/settings.json denies Bash(touch:*)" in done.stderr


def test_settings_of_a_claude_session_are_those_of_its_host(hosting_box):
    """The frontend has another configuration folder, and a real claude does not read it."""
    hosting_box.set_vendor_plan(STAYS)
    hosting_box.environment["SHIM_VENDOR"] = "claude"
    folder = hosting_box.box.home / "other"
    folder.mkdir()
    (folder / "settings.json").write_text(json.dumps(NEW_SETTINGS))
    with talk(hosting_box, **BRIDGE) as running:
        running.end_input()
    (session,) = hosting_box.list_sessions()
    resume, variables = ("--resume", session.session_id), {"CLAUDE_CONFIG_DIR": str(folder)}
    done = hosting_box.run_claude("-p", "two", *resume, **variables)
    assert done.status == 1
    assert f"{folder}/settings.json denies Bash(touch:*)" in done.stderr


def test_join_is_refused_if_a_hook_was_added_after_the_session_started(
    hosting_box,
):
    session, _ = start_session(hosting_box)
    folder = hosting_box.box.home / ".claude"
    folder.mkdir(exist_ok=True)
    hooks = {"PreToolUse": [{"hooks": [{"type": "command", "command": "false"}]}]}
    (folder / "settings.json").write_text(json.dumps({"hooks": hooks}))
    done = hosting_box.run_claude("-p", "two", "--resume", session.session_id)
    assert (done.status, done.stdout) == (
        1,
        b"",
    ) and f"a hook in {folder}/settings.json checks tool calls" in done.stderr


# A host of an older version: it cannot read the settings again, and has stored what it read.
OLD_HOST = """
import sys
if any("bridge.host" in word for word in sys.orig_argv):
    from shim.core.claude.control import state_handlers
    del state_handlers.STATE_HANDLERS["reload_settings"]
"""


@pytest.mark.parametrize("stored", [True, False])
def test_frontend_joins_a_host_that_cannot_reload_settings(hosting_box, tmp_path, stored):
    (tmp_path / "sitecustomize.py").write_text(OLD_HOST)
    hosting_box.environment["PYTHONPATH"] = str(tmp_path)
    folder = hosting_box.box.home / ".claude"
    folder.mkdir(exist_ok=True)
    (folder / "settings.json").write_text(json.dumps({"permissions": {"defaultMode": "plan"}}))
    session, _ = start_session(hosting_box)
    if stored:
        text = serialize_settings(ClaudeSettings(mode="plan"))
        data = json.dumps({"generation": 1, "settings": text})
        (Path(session.folder) / registry.SETTINGS_FILE).write_text(data)
    resume = ("--resume", session.session_id)
    with talk(hosting_box, *resume) as running:
        running.send_lines(user("two"))
        done = running.end_input()
    assert (done.status, done.stderr) == (0, "")
    (folder / "settings.json").write_text(json.dumps(NEW_SETTINGS))
    done = hosting_box.run_claude("-p", "three", *resume)
    assert done.status == 1 and "denies Bash(touch:*)" in done.stderr
