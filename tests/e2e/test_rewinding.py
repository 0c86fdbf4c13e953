"""A session that is resumed at an earlier message. The model never receives the dropped turn, and the
transcripts have the same messages as with the real claude, whose row is in the same table.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from clis import BARE, Cli
from model_scripts import ScriptedServer
from sandbox import Line, LineProcess, Sandbox
from vendor_setups import CODEX, COPILOT, GEMINI, KIMI_CODE, OPENCODE, PI, QWEN

pytestmark = pytest.mark.e2e

FIRST, SECOND, THIRD = (f"[[text]] {word}" for word in ("apricot", "blackberry", "clementine"))
FORK = "11111111-2222-4333-8444-555555555555"
OTHER_TURN = "99999999-2222-4333-8444-555555555555"
STREAM = ("--output-format", "stream-json", "--verbose")

rewinding = pytest.mark.parametrize(
    "cli",
    [
        *(BARE, Cli(QWEN), Cli(CODEX)),
        *(
            pytest.param(Cli(vendor), marks=pytest.mark.full)
            for vendor in (PI, GEMINI, OPENCODE, COPILOT, KIMI_CODE)
        ),
    ],
    ids=str,
    indirect=True,
)


@pytest.fixture
def cli(request: pytest.FixtureRequest) -> Cli:
    cli: Cli = request.param
    return cli


class RewoundSession:
    """A session of two turns that is resumed after the first one."""

    def __init__(self, sandbox: Sandbox, cli: Cli, service: ScriptedServer) -> None:
        self._sandbox = sandbox
        self._flags = cli.vendor.claude_flags
        self._service = service
        answers = self.run_messages(FIRST, SECOND)
        self.session_id = answers[0]["session_id"]
        self.first_answer = next(line["uuid"] for line in answers if line["type"] == "assistant")
        self.second_prompt = next(
            line["uuid"]
            for line in self.read_transcript(self.session_id)
            if line.get("message", {}).get("content") == SECOND
        )

    def run_messages(self, *prompts: str, flags: tuple[str, ...] = ()) -> list[Line]:
        """Run a conversation to its end."""
        process = self._start("--input-format", "stream-json", *flags)
        for prompt in prompts:
            message = {"role": "user", "content": prompt}
            line = {"type": "user", "message": message, "parent_tool_use_id": None}
            process.send({**line, "session_id": ""})
        return self._finish(process)

    def run_prompt(self, prompt: str, *flags: str) -> list[Line]:
        """Run one prompt in one-shot mode."""
        return self._finish(self._start(prompt, *flags))

    def _start(self, *args: str) -> LineProcess:
        self._service.requests.clear()
        argv = [str(self._sandbox.claude), "-p", *args, *STREAM, *self._flags]
        process = LineProcess(argv, self._sandbox.folder, self._sandbox.environment)
        self._sandbox.started.append(process)
        return process

    def _finish(self, process: LineProcess) -> list[Line]:
        process.close_stdin()
        process.read_to_end()
        return process.lines

    def resume(self, *flags: str, at_answer: bool = True) -> tuple[str, ...]:
        """Return the flags that resume the session, after the first answer."""
        point = ("--resume-session-at", self.first_answer) if at_answer else ()
        return ("--resume", self.session_id, *point, *flags)

    def list_model_inputs(self) -> list[str]:
        """Return the conversation's requests to the model since the last start."""
        return [json.dumps(request.body) for request in self._service.requests if request.offered]

    def read_transcript(self, session_id: str) -> list[Line]:
        home = Path(self._sandbox.environment["HOME"])
        (path,) = home.glob(f".claude/projects/*/{session_id}.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()]

    def list_branch_texts(self, session_id: str) -> list[str]:
        """Return the prompts on the current branch of a transcript."""
        entries = {
            line["uuid"]: line for line in self.read_transcript(session_id) if "uuid" in line
        }
        texts: list[str] = []
        entry = entries.get(next(reversed(entries)))
        while entry is not None:
            content = entry.get("message", {}).get("content")
            if entry["type"] == "user" and isinstance(content, str):
                texts.insert(0, content)
            entry = entries.get(entry["parentUuid"])
        return texts


@pytest.fixture
def session(sandbox: Sandbox, cli: Cli, service: ScriptedServer) -> RewoundSession:
    return RewoundSession(sandbox, cli, service)


def find_result(lines: list[Line]) -> Line:
    return next(line for line in lines if line["type"] == "result")


def assert_model_received(session: RewoundSession, *expected: str) -> None:
    inputs = session.list_model_inputs()
    assert inputs and not any(SECOND in model_input for model_input in inputs)
    assert all(text in inputs[-1] for text in expected)


@rewinding
def test_dropped_turn_is_in_no_request_of_the_fork(session: RewoundSession, cli: Cli) -> None:
    fork = ("--fork-session", "--session-id", FORK)
    flags = session.resume("--resume-drops-turn", session.second_prompt, *fork)
    lines = session.run_messages(THIRD, flags=flags)
    result = find_result(lines)
    assert (result["subtype"], result["session_id"]) == ("success", FORK)
    assert_model_received(session, FIRST, THIRD)
    assert session.list_branch_texts(FORK) == [FIRST, THIRD]
    assert session.list_branch_texts(session.session_id) == [FIRST, SECOND]
    if cli.vendor.resumes:
        session.run_messages("[[text]] damson", flags=("--resume", FORK))
        assert_model_received(session, FIRST, THIRD, "damson")


@rewinding
def test_session_continues_without_the_dropped_turn(session: RewoundSession) -> None:
    lines = session.run_prompt(THIRD, *session.resume())
    result = find_result(lines)
    assert (result["subtype"], result["session_id"]) == ("success", session.session_id)
    assert_model_received(session, FIRST, THIRD)
    session.run_prompt("[[text]] damson", *session.resume(at_answer=False))
    assert_model_received(session, FIRST, THIRD, "damson")
    assert session.list_branch_texts(session.session_id) == [FIRST, THIRD, "[[text]] damson"]


@pytest.mark.parametrize("cli", [BARE, Cli(QWEN)], ids=str, indirect=True)
def test_refused_resume_reaches_no_model(session: RewoundSession) -> None:
    lines = session.run_prompt(THIRD, *session.resume("--resume-drops-turn", OTHER_TURN))
    assert find_result(lines)["errors"][0].startswith("Resume rejected by --resume-drops-turn: ")
    lines = session.run_prompt(THIRD, "--resume", session.session_id, "--resume-session-at", FORK)
    assert find_result(lines)["errors"] == [f"No message found with message.uuid of: {FORK}"]
    assert session.list_model_inputs() == []
    assert session.list_branch_texts(session.session_id) == [FIRST, SECOND]
