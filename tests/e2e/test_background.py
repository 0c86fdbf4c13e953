"""Background sessions: real vendors with `claude --bg`, and the real claude's own background
sessions for comparison.

A scripted model answers. The real claude stores its sessions in a separate home, which has to trust
the folder.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from frontend import DropInFrontend
from model_scripts import REPLY, REPLY_AFTER_TOOL, ScriptedServer
from programs import install_program
from sandbox import TURN_SECONDS, wait_until
from vendor_setups import CLAUDE_ITSELF, CODEX, GEMINI, OPENCODE, PI, QWEN, Vendor

pytestmark = pytest.mark.e2e

COMMAND_SECONDS = 60.0
LOOK_SECONDS = 0.4
FIRST = re.compile(r"^backgrounded · ([0-9a-f]{8})")
TESTED_VENDORS = [
    QWEN,
    *(
        pytest.param(each, marks=pytest.mark.full)
        for each in (PI, CODEX, GEMINI, OPENCODE, CLAUDE_ITSELF)
    ),
]
each_vendor = pytest.mark.parametrize("vendor", TESTED_VENDORS, ids=str, indirect=True)


class Desk:
    """A person's terminal, with the commands `claude` and `shim`."""

    def __init__(self, frontend: DropInFrontend) -> None:
        self.frontend = frontend

    def run(self, *argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, without a terminal."""
        environment = {**self.frontend.environment, **variables}
        return subprocess.run(argv, cwd=self.frontend.folder, env=environment, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)  # fmt: skip

    def claude(self, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run `claude ARGS`."""
        return self.run(str(self.frontend.claude), *args, **variables)

    def shim(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run `shim ARGS`."""
        return self.run(sys.executable, "-I", "-m", "shim", *args)

    def begin(self, prompt: str, *args: str) -> str:
        """Start a session with `claude --bg`. Return its id."""
        done = self.claude("--bg", prompt, *self.frontend.extra_args, *args)
        assert done.returncode == 0, done.stderr
        match = FIRST.match(done.stdout)
        assert match, done.stdout
        return match[1]

    def agent(self, short: str) -> dict[str, Any]:
        """Return the entry of a session in `agents --json --all`."""
        listed: list[dict[str, Any]] = json.loads(self.claude("agents", "--json", "--all").stdout)
        return next((each for each in listed if each.get("id") == short), {})

    def reaches(self, short: str, happened: Callable[[Mapping[str, Any]], bool]) -> dict[str, Any]:
        """Return the state of a session once a condition holds. Each look starts a program, so
        there are few.
        """
        wait_until(lambda: happened(self.agent(short)), TURN_SECONDS, LOOK_SECONDS)
        now = self.agent(short)
        assert happened(now), (
            now,
            self.claude("daemon", "logs").stdout,
            self.claude("logs", short).stdout,
        )
        return now


@pytest.fixture
def desk(frontend: DropInFrontend, vendor: Vendor) -> Iterator[Desk]:
    made = Desk(frontend)
    yield made
    made.claude("daemon", "stop", "--any")
    assert frontend.list_remaining_processes() == {}


def is_turn_over(agent: Mapping[str, Any]) -> bool:
    return agent.get("status") == "idle" or agent.get("state") in ("failed", "stopped")


@each_vendor
def test_background_session_can_be_answered_stopped_resumed_and_removed(
    desk: Desk, vendor: Vendor, model: ScriptedServer
) -> None:
    session_id = desk.begin("[[shell]] touch made", "--name", "maker")
    assert desk.agent(session_id)["name"] == "maker"
    agent = desk.reaches(session_id, lambda now: bool(now.get("waitingFor")))
    assert (agent["status"], agent["waitingFor"], agent["state"]) == (
        "waiting",
        "permission prompt",
        "blocked",
    )
    (listed,) = json.loads(desk.shim("bridge", "list", "--json").stdout)
    (question,) = listed["questions"]
    assert "touch made" in json.dumps(question["request"]["input"])
    assert not (desk.frontend.folder / "made").exists()
    answered = desk.shim("bridge", "answer", "maker", "allow")
    assert (answered.returncode, answered.stdout) == (0, "allowed\n"), answered.stderr
    done = desk.reaches(session_id, is_turn_over)
    assert done["state"] == "done" and (desk.frontend.folder / "made").exists()
    logs = desk.claude("logs", session_id)
    assert logs.returncode == 0 and REPLY_AFTER_TOOL in logs.stdout and "\x1b" not in logs.stdout

    assert desk.shim("bridge", "say", session_id, "[[text]]").returncode == 0
    wait_until(lambda: bool(model.list_requests("text")), TURN_SECONDS)
    assert desk.reaches(session_id, is_turn_over)["pid"] == done["pid"]
    assert REPLY.partition("\n")[0] in desk.claude("logs", session_id).stdout

    assert desk.claude("stop", session_id).stdout == f"stopped {session_id}\n"
    ended = desk.agent(session_id)
    assert ended["state"] == "done" and "pid" not in ended
    assert desk.frontend.list_remaining_processes() == {}
    if vendor.resumes:
        assert desk.begin("[[text]]", "--resume", ended["sessionId"]) == session_id
        assert desk.reaches(session_id, is_turn_over)["state"] == "done"
        assert len(model.list_requests("text")) == 2
    assert desk.claude("rm", session_id).stdout == f"removed {session_id}\n"
    assert desk.agent(session_id) == {}


@each_vendor
def test_stopped_turn_leaves_no_process_and_is_listed_as_stopped(
    desk: Desk, vendor: Vendor
) -> None:
    session_id = desk.begin("[[slow]]")
    working = desk.reaches(session_id, lambda now: now.get("status") == "busy")
    assert working["state"] == "working"
    assert desk.claude("kill", session_id).stdout == f"stopped {session_id}\n"
    assert desk.agent(session_id)["state"] == "stopped"
    assert desk.frontend.list_remaining_processes() == {}


@each_vendor
def test_session_with_a_killed_host_is_listed_as_failed_and_can_be_resumed(
    desk: Desk, vendor: Vendor, model: ScriptedServer
) -> None:
    session_id = desk.begin("[[text]] the first words")
    desk.reaches(session_id, is_turn_over)
    assert desk.shim("bridge", "say", session_id, "[[slow]]").returncode == 0
    working = desk.reaches(session_id, lambda now: now.get("status") == "busy")
    wait_until(lambda: bool(model.list_requests("slow")), TURN_SECONDS)
    os.kill(working["pid"], signal.SIGKILL)
    killed = desk.reaches(session_id, lambda now: "pid" not in now)
    assert killed["state"] == "failed"
    wait_until(lambda: desk.frontend.list_remaining_processes() == {}, TURN_SECONDS)
    assert desk.frontend.list_remaining_processes() == {}
    assert REPLY.partition("\n")[0] in desk.claude("logs", session_id).stdout
    if vendor.resumes:
        assert desk.begin("[[text]] the last words", "--resume", killed["sessionId"]) == session_id
        assert desk.reaches(session_id, is_turn_over)["state"] == "done"
        remembered = json.dumps(model.list_requests("text")[-1].messages)
        assert "the first words" in remembered and "the last words" in remembered


@each_vendor
def test_session_is_listed_as_failed_after_an_api_error(desk: Desk, vendor: Vendor) -> None:
    session_id = desk.begin("[[error]]")
    assert desk.reaches(session_id, is_turn_over)["state"] == "failed"


# -- comparison with the real claude ---------------------------------------------------------------

# Command line → what is compared: the exit status, stdout and stderr. If "…" follows, only the
# first characters are compared.
CALLS = (
    *(
        "agents",
        "agents --json",
        "agents --json --all",
        "agents --json --nope",
        "agents --json x",
        "agents --cwd",
    ),
    *(
        "agents --json --cwd /nowhere --model m",
        "logs",
        "logs zz",
        "logs 12",
        "logs 12345678",
        "logs zz y",
        "logs -x",
    ),
    *(
        "stop",
        "stop zz",
        "stop zz y",
        "stop -x",
        "kill",
        "kill zz",
        "rm…",
        "rm zz",
        "rm zz y",
        "rm -x…",
    ),
    *("respawn", "respawn zz", "respawn -x", "attach", "attach zz", "attach -x", "daemon status…"),
    *(
        "daemon stop --any",
        "daemon stop",
        "daemon stop --x",
        "daemon uninstall",
        "daemon frob…",
        "--bg -p x",
    ),
    *(
        "-p x --bg --help",
        "agents --json -- off",
        "agents -- off",
        "stop zz -- off",
        "--bg x -- off",
    ),
)
BEGINNING = 20  # characters to compare
OFF = {"CLAUDE_CODE_DISABLE_AGENT_VIEW": "1"}
IDS = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{8}\b")


class RealDesk(Desk):
    """The same terminal with the real claude, in a home that trusts the folder and the key."""

    def __init__(self, frontend: DropInFrontend, program: Path) -> None:
        super().__init__(frontend)
        home_folder = Path(frontend.environment["HOME"])
        trusted = {
            str(frontend.folder): {
                "hasTrustDialogAccepted": True,
                "hasCompletedProjectOnboarding": True,
            }
        }
        key = frontend.environment["ANTHROPIC_API_KEY"][-20:]
        keys = {"approved": [key], "rejected": []}
        claude_config = {
            "hasCompletedOnboarding": True,
            "projects": trusted,
            "customApiKeyResponses": keys,
        }
        (home_folder / ".claude.json").write_text(json.dumps(claude_config))
        self.program = program

    def claude(self, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the real claude. Root needs an environment variable for it."""
        return self.run(str(self.program), *args, IS_SANDBOX="1", **variables)


@pytest.fixture
def real(frontend: DropInFrontend, vendor: Vendor) -> Iterator[RealDesk]:
    made = RealDesk(frontend, install_program(vendor.package).executable)
    yield made
    made.claude("daemon", "stop", "--any")


itself = pytest.mark.parametrize("vendor", [CLAUDE_ITSELF], ids=str, indirect=True)


def normalize_output(done: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    """Return a command's output with ids replaced by ID, without the real claude's message about
    its service.
    """
    quiet = done.stderr.replace("Starting background service…\n", "")
    return done.returncode, IDS.sub("ID", done.stdout), IDS.sub("ID", quiet)


@pytest.mark.full
@itself
def test_invalid_command_prints_the_same_output_as_real_claude(
    desk: Desk, real: RealDesk, vendor: Vendor
) -> None:
    differ = {}
    for call in CALLS:
        args, _, off = call.removesuffix("…").partition(" -- ")
        both = [
            normalize_output(current_desk.claude(*args.split(), **(OFF if off else {})))
            for current_desk in (desk, real)
        ]
        if call.endswith("…"):
            both = [(status, out[:BEGINNING], err[:BEGINNING]) for status, out, err in both]
        if both[0] != both[1]:
            differ[call] = both
    assert differ == {}


@pytest.mark.full
@itself
def test_background_session_commands_print_the_same_output_as_real_claude(
    desk: Desk, real: RealDesk, vendor: Vendor, model: ScriptedServer
) -> None:
    outcomes = [life_of(current_desk, model) for current_desk in (desk, real)]
    assert outcomes[0] == outcomes[1]


def named_first(listing: str) -> list[dict[str, Any]]:
    """Return the list with the named job first. The real claude lists sessions in the order in
    which its workers started.
    """
    return sorted(json.loads(listing), key=lambda each: each.get("name") != "my job")


def life_of(desk: Desk, model: ScriptedServer) -> list[Any]:
    """Return the output for a session with a question, and for one that has ended, with ids
    replaced by ID.
    """
    asking_run = desk.claude(
        "--bg", "[[shell]] touch made", "--name", "my job", "--permission-mode", "manual"
    )
    idle = desk.claude("--bg")
    matches = [FIRST.match(each.stdout) for each in (asking_run, idle)]
    short, waiting = (each[1] for each in matches if each)
    agent = desk.reaches(short, lambda now: bool(now.get("waitingFor")))
    desk.reaches(waiting, lambda now: now.get("status") == "idle")
    listed = named_first(desk.claude("agents", "--json").stdout)
    states = [
        [each.get(key) for key in ("status", "waitingFor", "state", "kind")] for each in listed
    ]
    assert all(each["sessionId"].startswith(each["id"]) for each in listed)
    assert [each["name"] for each in listed] == ["my job", waiting]
    commands = [
        ("logs", "my jo"),
        ("stop", short[:5]),
        ("stop", short),
        ("kill", waiting),
        ("stop", "my job"),
    ]
    ends = [normalize_output(desk.claude(*each)) for each in commands[1:]]
    everything = named_first(desk.claude("agents", "--json", "--all").stdout)
    removed = [normalize_output(desk.claude("rm", short)) for _ in range(2)]
    remaining = json.loads(desk.claude("agents", "--json", "--all").stdout)
    respawned = [
        normalize_output(desk.claude("respawn", waiting)),
        normalize_output(desk.claude("respawn", "--all")),
    ]
    copied = normalize_output(desk.claude("--bg", "x", "--session-id", "nonsense"))
    return [
        normalize_output(asking_run), normalize_output(idle), list(agent), [list(each) for each in listed],
        states, ends,
        [list(each) for each in everything], [each["state"] for each in everything], removed, len(remaining),
        respawned, copied, normalize_output(desk.claude("agents", "--json", "--cwd", "/nowhere")),
        normalize_output(desk.claude("daemon", "stop", "--any"))[0],
        normalize_output(desk.claude("daemon", "stop", "--any")),
    ]  # fmt: skip
