"""Real clients join a running session with the flags that they pass, and with stricter ones.

An SDK starts a session through the bridge, leaves it and joins it again: its own flags are equal.
The editor's adapter ends its own session, so it joins one with its flags. A stricter flag is
refused by name, and the session keeps running.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence

import pytest
from acp_clients import ACPS
from background_sessions import Living, list_running_sessions, start_session
from clis import Cli
from model_scripts import REPLY, ScriptedServer
from sandbox import TURN_SECONDS, Line, Sandbox
from sdk_clients import PYTHON, TYPESCRIPT, SdkClient
from vendor_setups import QWEN

from shim.bridge import registry

pytestmark = [pytest.mark.e2e, pytest.mark.parametrize("cli", [Cli(QWEN)], ids=str)]

SDKS = pytest.mark.parametrize("client", [PYTHON, TYPESCRIPT], ids=str)
FLAGS = {"allowed": ["Read"], "denied": ["WebFetch"]}
SERVER: Line = {"name": "calc", "command": "true", "args": [], "env": []}


@pytest.fixture
def bridged(sandbox: Sandbox) -> Sandbox:
    """Return the sandbox with an environment in which clients start their sessions through the
    bridge.
    """
    environment = {**sandbox.environment, "SHIM_BRIDGE": "1"}
    return Sandbox(sandbox.claude, sandbox.folder, environment, sandbox.started)


@pytest.fixture
def stopped(sandbox: Sandbox) -> Iterator[None]:
    """Stop the sessions of the sandbox after the test."""
    yield
    for session in list_running_sessions(sandbox):
        session.stop()


def find_session(sandbox: Sandbox) -> tuple[Living, Sequence[int]]:
    """Return the only running session and the processes of its vendor."""
    (session,) = list_running_sessions(sandbox)
    session.wait_until_idle()
    return session, session.list_children()


def list_start_args(session: Living) -> list[str]:
    """Return the flags with which the session was started."""
    return list((registry.load_session_start_data(session.read_record().folder) or {})["arguments"])


def check_same_process(session: Living, children: Sequence[int]) -> None:
    """Check that the session has answered with the same vendor process as before."""
    assert session.list_children() and set(session.list_children()) <= set(children)


def check_refusal(text: str, flag: str, session: Living) -> None:
    """Check that an error names the flag and a solution, and that the session is running."""
    assert f"cannot join the background session {session.uuid[:8]}" in text, text
    assert f"the frontend passes {flag}" in text, text
    assert session.alive


@SDKS
@pytest.mark.usefixtures("stopped")
def test_sdk_client_rejoins_its_session_with_its_flags(
    client: SdkClient, cli: Cli, sandbox: Sandbox, bridged: Sandbox, service: ScriptedServer
) -> None:
    first = client.connect(bridged, asks=True, **FLAGS)
    first.run_turn("[[text]] the first words")
    first.disconnect()
    session, children = find_session(sandbox)
    assert {"--disallowedTools=WebFetch", "--allowedTools=Read"} <= set(list_start_args(session))
    second = client.connect(bridged, resume=session.uuid, asks=True, **FLAGS)
    turn = second.run_turn("[[text]] and again")
    second.disconnect()
    assert turn.result["text"] == REPLY and turn.init["session"] == session.uuid
    check_same_process(session, children)


@SDKS
@pytest.mark.parametrize(
    ("flags", "flag"),
    [
        ({"denied": ["Bash"]}, "--disallowedTools Bash"),
        ({"allowed": ["Read"]}, "--allowedTools Read"),
    ],
    ids=["denied", "allowed"],
)
def test_sdk_client_with_a_stricter_flag_is_refused_by_name(
    client: SdkClient,
    cli: Cli,
    flags: dict[str, list[str]],
    flag: str,
    sandbox: Sandbox,
    service: ScriptedServer,
) -> None:
    with start_session(sandbox, "[[text]] the first words") as session:
        refused = client.connect(
            sandbox, once="[[text]] and again", resume=session.uuid, **flags
        ).finish()
        check_refusal(str(refused.list_lines("exception")), flag, session)
        assert not refused.list_lines("text")


EDITOR_FLAGS = ("--disallowedTools=AskUserQuestion", "--permission-mode=default")


@pytest.mark.parametrize("session_flags", [EDITOR_FLAGS, ()], ids=["equal", "without flags"])
def test_editor_joins_a_session_with_its_flags(
    cli: Cli, sandbox: Sandbox, service: ScriptedServer, session_flags: tuple[str, ...]
) -> None:
    """claude-agent-acp passes --disallowedTools, --tools, --setting-sources and --permission-mode.
    It changes the mode, so the vendor's process may be another one.
    """
    with start_session(sandbox, "[[text]] the first words", *session_flags) as session:
        pid = session.read_record().metadata["pid"]
        editor = ACPS[-1].connect(sandbox)
        editor.open_session(resume=session.uuid)
        prompt = editor.run_prompt("[[text]] and again")
        editor.shut_down()
        assert prompt.error is None and prompt.text == REPLY
        assert session.alive and session.read_record().metadata["pid"] == pid
        assert "the first words" in json.dumps(service.list_requests("text")[-1].messages)


def test_editor_with_another_server_is_refused_by_name(
    cli: Cli, sandbox: Sandbox, service: ScriptedServer
) -> None:
    with start_session(sandbox, "[[text]] the first words") as session:
        editor = ACPS[-1].connect(sandbox)
        with pytest.raises(AssertionError) as refusal:
            editor.open_session(resume=session.uuid, servers=[SERVER])
        editor.shut_down()
        check_refusal(str(refusal.value), "--mcp-config calc", session)


def run_yume(sandbox: Sandbox, session: Living, *flags: str) -> list[Line]:
    """Run one turn in Yume's dialect with the flags that Yume passes to a real claude."""
    done = subprocess.run(
        [
            *(str(sandbox.claude), "--print", "--output-format", "stream-json"),
            *("--model", "mock-1", "--append-system-prompt", "Be short."),
            *("--resume", session.uuid, *flags, "[[text]] and again"),
        ],
        cwd=sandbox.folder,
        env={**sandbox.environment, "SHIM_DIALECT": "yume"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TURN_SECONDS,
        check=False,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_yume_joins_a_session_and_is_refused_with_a_stricter_flag(
    cli: Cli, sandbox: Sandbox, service: ScriptedServer
) -> None:
    with start_session(sandbox, "[[text]] the first words") as session:
        children = session.list_children()
        lines = run_yume(sandbox, session)
        assert "".join(line["content"] for line in lines if line["type"] == "text") == REPLY
        assert [line["type"] for line in lines[-2:]] == ["result", "message_stop"]
        assert not lines[-2]["is_error"] and lines[0]["session_id"] == session.uuid
        check_same_process(session, children)
        refused = run_yume(sandbox, session, "--disallowedTools=Bash")
        assert refused[-2]["is_error"] and refused[-1]["type"] == "message_stop"
        check_refusal(str(refused), "--disallowedTools Bash", session)
