"""Real clients with background sessions: the SDKs and an editor's adapter resume one.

Every client sees the same in a session that was started through the bridge as in any other
(`test_clients`).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from acp_clients import ACPS, AcpClient
from background_sessions import list_running_sessions, start_session
from clis import CLIS, Cli
from model_scripts import REPLY, REPLY_AFTER_TOOL, ScriptedServer
from sandbox import EXIT_SECONDS, Line, Sandbox, wait_until
from sdk_clients import PYTHON, TYPESCRIPT, SdkClient
from test_sdk_servers import NAME, call
from vendor_setups import CODEX, OPENCODE, PI_CUMULATIVE, QWEN, Vendor

pytestmark = pytest.mark.e2e

LIVES = [
    cli
    for cli in CLIS
    if not cli.bare and cli.vendor is not PI_CUMULATIVE and not cli.is_dialog_only
]
ADAPTER = ACPS[-1]


def cells(
    clients: Sequence[SdkClient | AcpClient], *, asks: bool = False, among: Sequence[Vendor] = ()
) -> pytest.MarkDecorator:
    """Return cells of every client with every vendor, or with some. `make e2e` tests the first
    client with qwen.
    """
    chosen = [
        cli
        for cli in LIVES
        if not (asks and cli.vendor.silent) and (not among or cli.vendor in among)
    ]
    return pytest.mark.parametrize(
        ("client", "cli"),
        [
            pytest.param(
                client,
                cli,
                id=f"{client}-{cli}",
                marks=[pytest.mark.full] * (cli.vendor is not QWEN or client is not clients[0]),
            )
            for client in clients
            for cli in chosen
        ],
    )


@cells([PYTHON, TYPESCRIPT])
def test_sdk_client_resumes_a_background_session(
    client: SdkClient, cli: Cli, sandbox: Sandbox, service: ScriptedServer
) -> None:
    with start_session(sandbox, "[[text]] the first words") as session:
        children = session.list_children()
        conversation = client.connect(sandbox, resume=session.uuid)
        turn = conversation.run_turn("[[text]] and again")
        second_turn = conversation.run_turn("[[text]] once more")
        conversation.disconnect()
        assert turn.kinds[-3:] == ["init", "text", "result"]
        assert turn.result["text"] == second_turn.result["text"] == REPLY
        assert turn.init["session"] == session.uuid
        assert "the first words" in json.dumps(service.list_requests("text")[-1].messages)
        assert set(session.list_children()) <= set(children), (
            "the same process of the vendor's has answered"
        )
        assert session.list_children()


@cells([PYTHON, TYPESCRIPT], asks=True)
def test_sdk_client_answers_a_permission_prompt_of_a_watched_session(
    client: SdkClient, cli: Cli, sandbox: Sandbox, service: ScriptedServer
) -> None:
    with (
        start_session(sandbox, "[[text]] the first words") as session,
        session.watch_frames() as frames,
    ):
        conversation = client.connect(sandbox, resume=session.uuid, asks=True)
        start_index = len(conversation.lines)
        conversation.send_message("[[shell]] touch made.txt")
        conversation.await_saw("asked")
        conversation.allow_call()
        turn = conversation.read_turn(start_index)
        conversation.disconnect()
        (question, resolution) = _question(frames)
        assert question["request"]["subtype"] == "can_use_tool"
        assert resolution["how"] == "allow" and resolution["question"] == question["question"]
        assert turn.result["text"] == REPLY_AFTER_TOOL
        assert (sandbox.folder / "made.txt").exists()
        assert session.alive


def _question(frames: object) -> tuple[Line, Line]:
    """Return the next permission request and how it was resolved."""
    question: Line = next(frame for frame in frames if frame["kind"] == "question")  # type: ignore[attr-defined]
    return question, next(frame for frame in frames if frame["kind"] == "settled")  # type: ignore[attr-defined]


@cells([ADAPTER])
def test_editor_resumes_a_background_session(
    client: AcpClient, cli: Cli, sandbox: Sandbox, service: ScriptedServer
) -> None:
    with start_session(sandbox, "[[text]] the first words") as session:
        editor = client.connect(sandbox)
        editor.open_session(resume=session.uuid)
        prompt = editor.run_prompt("[[text]] and again")
        editor.shut_down()
        assert prompt.error is None and prompt.text == REPLY
        assert "the first words" in json.dumps(service.list_requests("text")[-1].messages)
        assert session.alive


@cells([PYTHON, TYPESCRIPT])
def test_session_survives_a_disconnect_and_is_resumed_by_a_second_client(
    client: SdkClient, cli: Cli, sandbox: Sandbox, service: ScriptedServer
) -> None:
    bridged = Sandbox(
        sandbox.claude, sandbox.folder, {**sandbox.environment, "SHIM_BRIDGE": "1"}, sandbox.started
    )
    first = client.connect(bridged)
    session_of = first.run_turn("[[text]] the first words").init["session"]
    first.disconnect()
    (session,) = list_running_sessions(sandbox)
    assert session.uuid == session_of
    children = session.list_children()
    second = client.connect(sandbox, resume=session.uuid)
    turn = second.run_turn("[[text]] and again")
    second.disconnect()
    assert (
        turn.result["text"] == REPLY
        and session.list_children()
        and set(session.list_children()) <= set(children)
    )
    session.stop()


@cells([PYTHON])
def test_print_mode_through_the_bridge_leaves_no_running_session(
    client: SdkClient, cli: Cli, sandbox: Sandbox, hello_file: Path
) -> None:
    environment = {**sandbox.environment, "SHIM_BRIDGE": "1"}
    argv = [str(sandbox.claude), "-p", "[[text]] hi", *cli.vendor.claude_flags]
    done = subprocess.run(
        argv,
        cwd=sandbox.folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=90,
        check=False,
    )
    assert (done.returncode, done.stdout.decode()) == (0, f"{REPLY}\n"), done
    assert wait_until(lambda: not list_running_sessions(sandbox), EXIT_SECONDS)


@cells([PYTHON], asks=True, among=(QWEN, CODEX, OPENCODE))
def test_sdk_tools_of_a_joining_client_are_available(
    client: SdkClient, cli: Cli, sandbox: Sandbox
) -> None:
    """The vendor's child receives the tools when it starts, so only the next child has them. gemini
    cannot resume a session that is so new.
    """
    with start_session(sandbox, "[[text]] the first words") as session:
        conversation = client.connect(sandbox, resume=session.uuid, asks=True, serves=NAME)
        start_index = len(conversation.lines)
        conversation.send_message(call(cli, 2, 3))
        conversation.await_saw("asked")
        conversation.allow_call()
        turn = conversation.read_turn(start_index)
        conversation.disconnect()
        assert [line["input"] for line in turn.list_lines("ran")] == [{"a": 2, "b": 3}]
        assert turn.result["text"] == REPLY_AFTER_TOOL
        assert session.alive


@cells([TYPESCRIPT, PYTHON], asks=True)
def test_message_of_a_second_client_is_refused_until_the_turn_ends(
    client: SdkClient, cli: Cli, sandbox: Sandbox, service: ScriptedServer
) -> None:
    with start_session(sandbox, "[[text]] the first words") as session:
        controller = (PYTHON if client is TYPESCRIPT else TYPESCRIPT).connect(
            sandbox, resume=session.uuid, asks=True
        )
        other = client.connect(sandbox, resume=session.uuid, asks=True)
        # Some clients start their claude with the first message.
        assert other.run_turn("[[text]] hello").result["text"] == REPLY
        start_index = len(controller.lines)
        controller.send_message("[[shell]] touch driven.txt")
        controller.await_saw("asked")
        refused = other.run_turn("[[text]] in between")
        assert (
            "has control and a turn is running; send the message again when the turn has ended"
            in str(refused.result)
        )
        assert refused.kinds[-1] == "result" and "text" not in refused.kinds
        controller.allow_call()
        assert controller.read_turn(start_index).result["text"] == REPLY_AFTER_TOOL
        assert other.run_turn("[[text]] and again").result["text"] == REPLY
        controller.disconnect()
        other.disconnect()
        assert session.alive and (sandbox.folder / "driven.txt").exists()


@cells([PYTHON, TYPESCRIPT], asks=True)
def test_sdk_hook_denies_calls_also_after_its_client_disconnects(
    client: SdkClient, cli: Cli, sandbox: Sandbox
) -> None:
    with start_session(sandbox, "[[text]] the first words") as session:
        judging = client.connect(sandbox, resume=session.uuid, asks=True, judges="Bash")
        turn = judging.run_turn("[[shell]] touch judged.txt")
        judging.disconnect()
        assert [line["input"]["command"] for line in turn.list_lines("judged")] == [
            "touch judged.txt"
        ]
        assert turn.result["denied"] == ["Bash"] and turn.result["text"] == REPLY_AFTER_TOOL
        other = client.connect(sandbox, resume=session.uuid, asks=True)
        turn = other.run_turn("[[shell]] touch unjudged.txt")
        other.disconnect()
        assert turn.result["denied"] == ["Bash"] and not turn.list_lines("asked")
        assert turn.result["text"] == REPLY_AFTER_TOOL and session.alive
    assert not list(sandbox.folder.glob("*judged.txt"))
