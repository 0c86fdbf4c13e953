"""The requests to the relay of another machine."""

import json

import pytest

from shim.core.bridge.frames import FrameError
from shim.core.bridge.relay import (
    FULL_ACCESS,
    MAX_REQUEST_BYTES,
    FileArgument,
    RelayAccess,
    RelayRequest,
    build_access_options,
    check_relay_access,
    encode_command_request,
    encode_connect_request,
    encode_sessions_request,
    parse_access_options,
    parse_relay_request,
)
from shim.core.errors import FrontendError

UUID = "0123abcd-0000-4000-8000-000000000001"


def test_encoded_requests_can_be_parsed():
    assert parse_relay_request(encode_sessions_request(includes_ended=True)) == RelayRequest(
        "sessions", includes_ended=True
    )
    assert parse_relay_request(encode_connect_request(UUID)) == RelayRequest(
        "connect", session_id=UUID
    )
    request = parse_relay_request(
        encode_command_request(
            ("claude", "stop", UUID), "/srv", {"CLAUDE_CODE_ENTRYPOINT": "sdk-py"}
        )
    )
    assert request == RelayRequest(
        "command",
        argv=("claude", "stop", UUID),
        cwd="/srv",
        environment={"CLAUDE_CODE_ENTRYPOINT": "sdk-py"},
    )


def test_file_is_an_argument_whose_content_is_sent():
    argv = ("claude", "--bg", "--settings", FileArgument('{"a": 1}'))
    assert parse_relay_request(encode_command_request(argv, "", {})).argv == argv


def test_too_large_request_is_refused_before_it_is_sent():
    argv = ("claude", "--bg", FileArgument("x" * MAX_REQUEST_BYTES))
    with pytest.raises(FrontendError, match="too long for another machine"):
        encode_command_request(argv, "", {})


def test_only_variables_that_describe_the_frontend_are_sent_and_accepted():
    raw = encode_command_request(("claude", "rm", UUID), "", {"PATH": "/x", "SHIM_STATE": "/y"})
    assert json.loads(raw)["environment"] == {}
    hostile = {"kind": "command", "argv": ["claude", "rm"], "environment": {"LD_PRELOAD": "/x"}}
    assert parse_relay_request(json.dumps(hostile).encode()).environment == {}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"kind": "command", "argv": ["run", "x"]}, "a relay does not run the command 'run x'"),
        ({"kind": "command", "argv": ["claude", "-p"]}, "does not run the command 'claude -p'"),
        ({"kind": "command"}, "does not run the command ''"),
        ({"kind": "connect", "session": 1}, "`session` must be a string"),
        ({"kind": "newer"}, "this version of the shim does not know the request 'newer'"),
        ({}, "a frame must have a `kind`"),
    ],
)
def test_other_requests_are_refused_with_the_reason(fields, text):
    with pytest.raises(FrameError) as refused:
        parse_relay_request(json.dumps(fields).encode())
    assert text in str(refused.value)


OTHER_UUID = "0123abcd-0000-4000-8000-000000000002"
GUEST = RelayAccess(session_id=UUID)
WATCHER = RelayAccess(is_read_only=True)
NO_START = RelayAccess(may_start=False)


def can_run(access, *argv):
    try:
        check_relay_access(RelayRequest("command", argv=argv), access)
    except (FrameError, FrontendError):
        return False
    return True


def test_commands_of_a_guest_are_limited_to_its_session():
    for argv in (
        ("claude", "logs", UUID),
        ("claude", "rm", UUID),
        ("bridge", "stop", UUID),
        ("bridge", "say", UUID, "--take", "--", "more"),
        ("bridge", "answer", UUID, "--deny"),
        (
            "claude",
            "--resume",
            UUID,
            "--model",
            "opus",
            "--settings",
            FileArgument("{}"),
            "--",
            "hi",
        ),
    ):
        assert can_run(GUEST, *argv), argv
        assert can_run(NO_START, *argv), argv
        assert can_run(FULL_ACCESS, *argv), argv
        assert not can_run(RelayAccess(session_id=OTHER_UUID), *argv), argv


@pytest.mark.parametrize("access", [GUEST, NO_START], ids=["guest", "no start"])
@pytest.mark.parametrize(
    "argv",
    [
        ("bridge", "stop", UUID, OTHER_UUID),
        ("claude", "respawn", "--all"),
        ("claude", "--resume", UUID, "--resume", OTHER_UUID),
        ("claude", "--resume", UUID, f"-r{OTHER_UUID}"),
        ("claude", "--resume", UUID, f"--resume={OTHER_UUID}"),
        ("claude", "--resume", UUID, "--continue"),
        ("claude", "--resume", UUID, "--fork-session"),
        ("claude", "--resume", UUID, "--bg", "hi"),
        ("claude", "--resume", UUID, "agents"),
        ("claude", "--resume", UUID, "--shim-record", "/tmp/x"),
        ("claude", "--resume"),
    ],
)
def test_limited_command_cannot_use_or_start_other_sessions(access, argv):
    assert not can_run(access, *argv)


def test_watcher_reads_logs_only():
    assert can_run(WATCHER, "claude", "logs", UUID)
    assert not can_run(WATCHER, "claude", "logs", UUID, "more")
    for argv in (
        ("claude", "stop", UUID),
        ("claude", "--resume", UUID),
        ("claude", "--bg", "hi"),
        ("bridge", "say", UUID, "--", "hi"),
        ("bridge", "answer", UUID),
    ):
        assert not can_run(WATCHER, *argv), argv


def test_machine_must_allow_members_to_start_sessions():
    assert can_run(FULL_ACCESS, "claude", "--bg", "hi")
    assert not can_run(NO_START, "claude", "--bg", "hi")
    assert not can_run(GUEST, "claude", "--bg", "hi")


def test_access_can_be_passed_as_options():
    for access in (FULL_ACCESS, GUEST, WATCHER, NO_START, RelayAccess(True, UUID, False)):
        assert parse_access_options(build_access_options(access)) == access


@pytest.mark.parametrize(
    "options",
    [
        ("--help",),
        ("--watch", "--watch"),
        ("--session",),
        ("--session", "name"),
        ("--session", UUID.upper()),
        ("--session", "", "--watch"),
        ("--watch", "more"),
    ],
)
def test_other_options_are_left_to_the_command(options):
    assert parse_access_options(options) is None
