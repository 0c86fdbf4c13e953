"""Sessions that live on their own: real vendors behind `claude --bg`, and the real claude's own beside ours.

A scripted model answers. The real one keeps its sessions in a home of its own, which has to trust the folder.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from frontend import Frontend
from place import TURN_SECONDS, wait_until
from scripts import REPLY, REPLY_AFTER_TOOL, ScriptedServer
from vendor_setups import CLAUDE_ITSELF, CODEX, GEMINI, OPENCODE, PI, QWEN, Vendor

pytestmark = pytest.mark.e2e

COMMAND_SECONDS = 60.0
FIRST = re.compile(r"^backgrounded · ([0-9a-f]{8})")
TRIED = [QWEN, *(pytest.param(each, marks=pytest.mark.full) for each in (PI, CODEX, GEMINI, OPENCODE, CLAUDE_ITSELF))]
one_vendor = pytest.mark.parametrize("vendor", TRIED, ids=str, indirect=True)


class Desk:
    """A person's terminal: `claude`, `shim`, and what they say."""

    def __init__(self, frontend: Frontend) -> None:
        self.frontend = frontend

    def run(self, *argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """A command to its end, without a terminal."""
        environment = {**self.frontend.environment, **variables}
        return subprocess.run(argv, cwd=self.frontend.folder, env=environment, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)  # fmt: skip

    def claude(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """`claude WORDS`."""
        return self.run(str(self.frontend.claude), *words, **variables)

    def shim(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`shim WORDS`."""
        return self.run(sys.executable, "-I", "-m", "shim", *words)

    def begin(self, prompt: str, *words: str) -> str:
        """The id of the session that `claude --bg` begins."""
        done = self.claude("--bg", prompt, *self.frontend.arguments, *words)
        assert done.returncode == 0, done.stderr
        found = FIRST.match(done.stdout)
        assert found, done.stdout
        return found[1]

    def agent(self, short: str) -> dict[str, Any]:
        """What `agents --json --all` says of a session."""
        listed: list[dict[str, Any]] = json.loads(self.claude("agents", "--json", "--all").stdout)
        return next((each for each in listed if each.get("id") == short), {})

    def reaches(self, short: str, happened: Callable[[Mapping[str, Any]], bool]) -> dict[str, Any]:
        """What is said of a session once something is so."""
        wait_until(lambda: happened(self.agent(short)), TURN_SECONDS)
        now = self.agent(short)
        assert happened(now), (now, self.claude("daemon", "logs").stdout, self.claude("logs", short).stdout)
        return now


@pytest.fixture
def desk(frontend: Frontend, vendor: Vendor) -> Iterator[Desk]:
    made = Desk(frontend)
    yield made
    made.claude("daemon", "stop", "--any")
    assert frontend.processes_left() == {}


def over(agent: Mapping[str, Any]) -> bool:
    return agent.get("status") == "idle" or agent.get("state") in ("failed", "stopped")


@one_vendor
def test_a_session_asks_is_answered_from_elsewhere_ends_and_goes_on(
    desk: Desk, vendor: Vendor, model: ScriptedServer
) -> None:
    begun = desk.begin("[[shell]] touch made", "--name", "maker")
    assert desk.agent(begun)["name"] == "maker"
    asked = desk.reaches(begun, lambda now: bool(now.get("waitingFor")))
    assert (asked["status"], asked["waitingFor"], asked["state"]) == ("waiting", "permission prompt", "blocked")
    (listed,) = json.loads(desk.shim("bridge", "list", "--json").stdout)
    (question,) = listed["questions"]
    assert "touch made" in json.dumps(question["request"]["input"])
    assert not (desk.frontend.folder / "made").exists()
    answered = desk.shim("bridge", "answer", "maker", "allow")
    assert (answered.returncode, answered.stdout) == (0, "allowed\n"), answered.stderr
    done = desk.reaches(begun, over)
    assert done["state"] == "done" and (desk.frontend.folder / "made").exists()
    logs = desk.claude("logs", begun)
    assert logs.returncode == 0 and REPLY_AFTER_TOOL in logs.stdout and "\x1b" not in logs.stdout

    assert desk.shim("bridge", "say", begun, "[[text]]").returncode == 0
    wait_until(lambda: bool(model.asked("text")), TURN_SECONDS)
    assert desk.reaches(begun, over)["pid"] == done["pid"]
    assert REPLY.partition("\n")[0] in desk.claude("logs", begun).stdout

    assert desk.claude("stop", begun).stdout == f"stopped {begun}\n"
    ended = desk.agent(begun)
    assert ended["state"] == "done" and "pid" not in ended
    assert desk.frontend.processes_left() == {}
    if vendor.resumes:
        assert desk.begin("[[text]]", "--resume", ended["sessionId"]) == begun
        assert desk.reaches(begun, over)["state"] == "done"
        assert len(model.asked("text")) == 2
    assert desk.claude("rm", begun).stdout == f"removed {begun}\n"
    assert desk.agent(begun) == {}


@one_vendor
def test_a_turn_that_is_stopped_leaves_no_process_and_says_so(desk: Desk, vendor: Vendor) -> None:
    begun = desk.begin("[[slow]]")
    working = desk.reaches(begun, lambda now: now.get("status") == "busy")
    assert working["state"] == "working"
    assert desk.claude("kill", begun).stdout == f"stopped {begun}\n"
    assert desk.agent(begun)["state"] == "stopped"
    assert desk.frontend.processes_left() == {}


@one_vendor
def test_what_the_api_refuses_is_a_session_that_failed(desk: Desk, vendor: Vendor) -> None:
    begun = desk.begin("[[error]] 404")
    assert desk.reaches(begun, over)["state"] == "failed"
