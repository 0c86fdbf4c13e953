"""The relay for another machine, as a process on this one, with a real host."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from session_hosts import TIMEOUT_S

from shim import __version__
from shim.bridge import listings, remote
from shim.bridge.ended_session import open_ended_log
from shim.bridge.machines import relay as relay_module
from shim.bridge.relay_process import MachineUnavailableError
from shim.core.bridge.frames import PROTOCOL_VERSION, encode_frame
from shim.core.bridge.relay import (
    FileArgument,
    encode_command_request,
    encode_connect_request,
    encode_sessions_request,
)
from shim.core.errors import FrontendError
from shim.state.machines import Machine

UUID = "0123abcd-0000-4000-8000-000000000001"
HELLO = {"kind": "hello", "protocol": PROTOCOL_VERSION, "client": "far", "role": "watch"}
HELLO_LINE = json.dumps(HELLO).encode() + b"\n"
COMMAND = [sys.executable, "-I", "-m", "shim", "bridge", "relay"]


@contextmanager
def start_relay(hosts, *requests):
    with subprocess.Popen(
        COMMAND,
        env=hosts.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    ) as relay:
        relay.stdin.write(b"".join(requests))
        yield relay
        relay.stdin.close()
        relay.wait(TIMEOUT_S)


def read_frame(relay):
    return json.loads(relay.stdout.readline())


def read_until(relay, kind):
    frames = [read_frame(relay)]
    while frames[-1]["kind"] != kind:
        frames.append(read_frame(relay))
    return frames


def test_relay_answers_several_requests_for_sessions(hosts):
    ended = hosts.start_session("hi")
    hosts.stop_hosts()
    running = hosts.start_session("hi")
    with start_relay(hosts, encode_sessions_request(includes_ended=False)) as relay:
        answer = read_frame(relay)
        assert answer["version"] == __version__
        assert [each["session"] for each in answer["sessions"]] == [running.session_id]
        assert answer["sessions"][0]["alive"] is True
        relay.stdin.write(encode_sessions_request(includes_ended=True))
        assert {each["session"]: each["alive"] for each in read_frame(relay)["sessions"]} == {
            running.session_id: True,
            ended.session_id: False,
        }


def test_relay_copies_frames_between_a_client_and_a_host(hosts):
    session = hosts.start_session("hi")
    with start_relay(hosts, encode_connect_request(session.session_id), HELLO_LINE) as relay:
        assert read_frame(relay)["session"] == session.session_id
        read_until(relay, "synced")
        relay.stdin.write(b'{"kind":"message","id":"1","message":{}}\n')
        refused = read_until(relay, "refused")[-1]
        assert (refused["id"], refused["reason"]) == ("1", "watch-only")
    assert relay.returncode == 0


def test_relay_sends_the_same_lines_for_an_ended_session(hosts):
    session = hosts.start_session("hi")
    hosts.wait_until(session, lambda now: now.metadata["state"] == "done")
    request = encode_connect_request(session.session_id)
    with start_relay(hosts, request, HELLO_LINE) as relay:
        lines = [each for each in read_until(relay, "synced") if each["kind"] == "line"]
    hosts.stop_hosts()
    with start_relay(hosts, request, HELLO_LINE) as relay:
        frames = read_until(relay, "bye")
    numbered = [each for each in lines if "number" in each]
    assert [each for each in frames if each["kind"] == "line"][: len(numbered)] == numbered
    last = json.dumps({"generation": 1, "number": numbered[-1]["number"]})
    after = HELLO_LINE.replace(b'"role"', f'"after": {last}, "role"'.encode())
    with start_relay(hosts, request, after) as relay:
        kinds = [each["kind"] for each in read_until(relay, "bye")]
    assert kinds[0] == "welcome"
    assert kinds.count("line") == len(frames) - len(numbered) - 3


def test_relay_runs_a_command_with_the_rest_of_its_stdin(hosts):
    session = hosts.start_session("hi")
    hosts.wait_until(session, lambda now: now.metadata["state"] == "done")
    request = encode_command_request(("claude", "stop", session.session_id), "", {})
    with start_relay(hosts, request) as relay:
        assert relay.stdout.readline() == f"stopped {session.short_id}\n".encode()
    begin = encode_command_request(("claude", "--bg", "--shim-vendor", "demo"), str(hosts.cwd), {})
    with start_relay(hosts, begin, b"a prompt on stdin") as relay:
        relay.stdin.close()
        short_id = relay.stdout.readline().split()[-1].decode()
    (record,) = [
        each
        for each in json.loads(
            subprocess.run(
                [*COMMAND[:-2], "claude", "agents", "--json"],
                env=hosts.environment,
                capture_output=True,
                check=True,
            ).stdout
        )
        if each["id"] == short_id
    ]
    assert (record["name"], record["cwd"]) == ("a prompt on stdin", str(hosts.cwd))


def test_file_argument_becomes_the_path_of_a_private_file(tmp_path):
    argv = ("claude", FileArgument("a secret"), FileArgument("b"))
    name, first, second = relay_module._write_file_arguments(argv, str(tmp_path))
    assert name == "claude"
    assert [Path(path).read_text() for path in (first, second)] == ["a secret", "b"]
    assert os.stat(first).st_mode & 0o777 == 0o600


def test_text_of_another_machine_cannot_control_the_terminal():
    fields = {"session": UUID, "state": "\x1b]52;c;", "cwd": "a\0b", "alive": True}
    (record,) = listings._parse_sessions(Machine("build", "x"), {"sessions": [fields]})
    assert "\x1b" not in record.metadata["state"]
    assert "\0" not in record.metadata["cwd"]
    assert "\x1b" not in str(MachineUnavailableError(Machine("build", "x"), "\x1b[2J"))


def test_refusal_of_a_relay_is_an_error_and_not_output():
    with pytest.raises(FrontendError, match="refused the command: does not know"):
        remote.check_relay_refusal(
            Machine("build", "x"), encode_frame("bye", reason="does not know 'x'")
        )
    remote.check_relay_refusal(Machine("build", "x"), b'{"kind":"line"}\nstopped\n')


def test_repeated_message_with_an_id_resumes_a_session_and_is_sent_once(hosts):
    session = hosts.start_session("hi")
    hosts.wait_until(session, lambda now: now.metadata["state"] == "done")
    say = ("bridge", "say", session.session_id, "--id", UUID, "--", "and now the tests")
    for _ in range(2):
        hosts.stop_hosts()
        with start_relay(hosts, encode_command_request(say, "", {})) as relay:
            assert relay.stdout.readline() == f"restarted {session.short_id}\n".encode()
        assert relay.returncode == 0
        hosts.wait_until(session, lambda now: now.metadata["status"] == "idle")
    log = open_ended_log(hosts.load_session(session))
    assert [line.count(UUID.encode()) for line in read_user_lines(log)] == [1]


def read_user_lines(log):
    lines = [entry.line for entry in log.read(0, 1000)]
    return [line for line in lines if b"and now the tests" in line]


def test_relay_refuses_unknown_requests_and_sessions(hosts):
    for request, reason in (
        (b'{"kind":"newer"}\n', "does not know the request 'newer'"),
        (b"no JSON\n", "a frame must be one line of JSON"),
        (encode_connect_request("0123abcd-0000-4000-8000-000000000001"), "there is no session"),
        (encode_command_request(("claude", "doctor"), "", {}), "does not run the command"),
    ):
        with start_relay(hosts, request) as relay:
            answer = read_frame(relay)
        assert answer["kind"] == "bye"
        assert reason in answer["reason"]
        assert relay.returncode == 1


def test_silent_host_is_relayed_as_empty_lines(hosts):
    session = hosts.start_session()
    code = (
        "from shim.bridge.machines import relay; relay.KEEPALIVE_INTERVAL_S = 0.05;"
        "raise SystemExit(relay.run_relay())"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=hosts.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    ) as relay:
        relay.stdin.write(encode_connect_request(session.session_id) + HELLO_LINE)
        read_until(relay, "synced")
        while relay.stdout.readline() != b"\n":
            pass
        relay.stdin.close()
        relay.wait(TIMEOUT_S)
