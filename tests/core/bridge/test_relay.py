"""The requests to the relay of another machine."""

import json

import pytest

from shim.core.bridge.frames import FrameError
from shim.core.bridge.relay import (
    MAX_REQUEST_BYTES,
    FileArgument,
    RelayRequest,
    encode_command_request,
    encode_connect_request,
    encode_sessions_request,
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
