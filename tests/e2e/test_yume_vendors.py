"""Yume's own binary with real vendor programs: one turn per process and many in one, approvals,
interrupts, resume.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from clis import build_isolated_environment, remember_answers
from model_scripts import REPLY, REPLY_AFTER_TOOL, ScriptedServer
from programs import install_program
from sandbox import Line, LineProcess, Sandbox
from vendor_setups import CLAUDE_ITSELF, GEMINI, PI, QWEN, Vendor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from yume_stream import check_flat, summarize_flat_lines

pytestmark = pytest.mark.e2e

TabStarter = Callable[..., "Tab"]
only_asking = pytest.mark.parametrize("yume", [QWEN, CLAUDE_ITSELF], indirect=True, ids=str)
only_qwen = pytest.mark.parametrize("yume", [QWEN], indirect=True, ids=str)


class Tab(LineProcess):
    """A running yume-cli."""

    def finish(self) -> list[list[Line]]:
        """Close stdin and read to the end. Return the turns, which satisfy every rule."""
        self.close_stdin()
        code = self.read_to_end()
        data = b"".join(
            json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in self.lines
        )
        turns = check_flat(data.replace("\u2028".encode(), b"\\u2028"), exposed=True)
        failed = turns[-1][-2]["is_error"] and turns[-1][-2]["subtype"] != "cancelled"
        assert (code == 1) == failed, self.describe_failure(f"left with {code}")
        return turns


# gemini is started for each turn, as pi is.
@pytest.fixture(
    params=[QWEN, PI, pytest.param(GEMINI, marks=pytest.mark.full), CLAUDE_ITSELF], ids=str
)
def yume(
    request: pytest.FixtureRequest, hello_file: Path, tmp_path: Path
) -> Iterator[tuple[Sandbox, Vendor, ScriptedServer]]:
    """Install yume-cli with a real program and a model for it."""
    vendor: Vendor = request.param
    with vendor.server() as server:
        program = install_program(vendor.package)
        environment = build_isolated_environment(vendor, program, server.url, tmp_path)
        environment |= {"SHIM_BIN": str(program.executable), "SHIM_STATE": str(tmp_path / "state")}
        remember_answers(vendor, tmp_path / "state")
        command = [
            sys.executable,
            "-m",
            "shim",
            "install",
            "--as",
            "yume-cli",
            "--to",
            str(tmp_path / "bin"),
        ]
        subprocess.run(command, env=environment, cwd=environment["HOME"], timeout=60, check=True)
        sandbox = Sandbox(tmp_path / "bin" / "yume-cli", hello_file.parent, environment)
        yield sandbox, vendor, server
        remaining = (
            sandbox.list_remaining_processes()
            if all(process.ended for process in sandbox.started)
            else {}
        )
        sandbox.close()
        assert remaining == {}


@pytest.fixture
def start(yume: tuple[Sandbox, Vendor, ScriptedServer]) -> TabStarter:
    sandbox, vendor, _ = yume

    def start_tab(*args: str) -> Tab:
        model_flags: Sequence[str] = (
            [*vendor.claude_flags] if "--model" in vendor.claude_flags else []
        )
        argv = [
            str(sandbox.claude),
            "start",
            "--provider",
            vendor.name,
            "--cwd",
            str(sandbox.folder),
            *model_flags,
            *args,
        ]
        tab = Tab(argv, Path(os.sep), sandbox.environment)
        sandbox.started.append(tab)
        return tab

    return start_tab


def join_text(turn: Sequence[Line]) -> str:
    return "".join(line["content"] for line in turn if line["type"] == "text")


def message(text: str) -> dict[str, Any]:
    return {"type": "user", "content": text}


def is_stop(line: Line) -> bool:
    return line["type"] == "message_stop"


def test_single_turn_process_resumes_its_session(start: TabStarter) -> None:
    session = str(uuid.uuid4())
    (first,) = start("--session-id", session, "--prompt", "[[text]] hi").finish()
    assert join_text(first) == REPLY and first[0]["session_id"] == session
    assert sum(line["type"] == "text" for line in first) > 1, "it is streamed"
    assert not any("estimated" in line for line in first if line["type"] == "usage")
    (second,) = start(
        "--session-id", session, "--resume", session, "--prompt", "[[text]] again"
    ).finish()
    assert join_text(second) == REPLY and second[0]["session_id"] == session


def test_second_turn_in_a_process_includes_the_first_message(
    start: TabStarter, yume: tuple[Sandbox, Vendor, ScriptedServer]
) -> None:
    tab = start("--session-id", "tab-7")
    for text in ("[[text]] one", "[[text]] two"):
        tab.send(message(text))
        tab.read_until(is_stop)
    first, second = tab.finish()
    assert join_text(first) == join_text(second) == REPLY and first[0]["session_id"] == "tab-7"
    messages = json.dumps(yume[2].requests[-1].messages, ensure_ascii=False)
    assert "[[text]] one" in messages and "[[text]] two" in messages, (
        "the second turn knows the first"
    )


def test_parallel_tool_calls_are_emitted_sequentially(
    start: TabStarter, yume: tuple[Sandbox, Vendor, ScriptedServer]
) -> None:
    sandbox, vendor, _ = yume
    file = vendor.format_file_argument(sandbox.folder / "hello.txt")
    (turn,) = start("--prompt", f"[[parallel]] {file} {file}").finish()
    kinds = [line["type"] for line in turn if line["type"].startswith("tool")]
    assert kinds == ["tool_use", "tool_result", "tool_use", "tool_result"]
    calls = [line for line in turn if line["type"] == "tool_use"]
    assert all(
        call["name"] == "Read" and call["input"]["file_path"].endswith("hello.txt")
        for call in calls
    )
    assert join_text(turn).endswith(REPLY_AFTER_TOOL)


@only_asking
@pytest.mark.parametrize("approved", [True, False], ids=["approved", "denied"])
def test_tool_call_runs_only_after_approval(
    start: TabStarter, yume: tuple[Sandbox, Vendor, ScriptedServer], approved: bool
) -> None:
    sandbox, _, _ = yume
    tab = start("--permission-mode", "interactive", "--prompt", "[[shell]] touch made.txt")
    call = tab.read_until(lambda line: line["type"] == "tool_use")
    assert not (sandbox.folder / "made.txt").exists()
    tab.send({"type": "tool_approval", "id": call["id"], "approved": approved})
    tab.read_until(is_stop)
    (turn,) = tab.finish()
    (result,) = (line for line in turn if line["type"] == "tool_result")
    assert result["is_error"] is not approved
    assert (sandbox.folder / "made.txt").exists() is approved


def test_turn_after_an_interrupt_succeeds(start: TabStarter) -> None:
    tab = start()
    tab.send(message("[[slow]] hi"))
    tab.read_until(lambda line: line["type"] == "text")
    tab.send({"type": "interrupt"})
    tab.read_until(is_stop)
    tab.send(message("[[text]] next"))
    tab.read_until(is_stop)
    first, second = tab.finish()
    assert summarize_flat_lines(first)[-3:] == ["interrupt", "result cancelled", "message_stop"]
    assert join_text(second) == REPLY


def test_rejected_api_key_is_reported_as_a_system_error(start: TabStarter) -> None:
    (turn,) = start("--prompt", "[[error]] hi").finish()
    error, result = turn[-3], turn[-2]
    assert (error["type"], error["subtype"], error["code"]) == ("system", "error", "AUTH")
    assert result["is_error"]
