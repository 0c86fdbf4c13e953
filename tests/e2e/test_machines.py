"""Background sessions of other machines, over real SSH servers on loopback."""

from __future__ import annotations

import json
import random
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, require_programs
from fleet_lab import FleetLab
from frontend import DropInFrontend
from model_scripts import REPLY_AFTER_TOOL
from sandbox import MARK, TURN_SECONDS, Sandbox, wait_until
from sdk_clients import PYTHON, TYPESCRIPT, SdkClient
from session_page import Page, Served
from ssh_machines import CuttingProxy, SshLab
from terminal import on_terminal
from vendor_setups import QWEN

from shim.bridge.client import HostUnavailableError, connect_to_session_blocking
from shim.bridge.relay_process import MachineUnavailableError
from shim.core.bridge.frames import WATCH, LogCursor
from shim.process.install import install_drop_in_script

pytestmark = pytest.mark.e2e

COMMAND_SECONDS = 120.0
LOOK_SECONDS = 0.5
STARTED_PATTERN = re.compile(r"backgrounded · ([0-9a-f]{8})")
SHIM = (sys.executable, "-I", "-m", "shim")
# The cuts of a connection in one test.
CUTS = [8, pytest.param(50, marks=pytest.mark.full)]


# Most tests run over SSH and over a NATS server.
Lab = SshLab | FleetLab
OVER_SSH_AND_NATS = pytest.mark.parametrize("lab", [SshLab, FleetLab], indirect=True)


@pytest.fixture
def lab(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Lab]:
    folder = tmp_path / "lab"
    folder.mkdir()
    lab = getattr(request, "param", SshLab)(folder)
    yield lab
    lab.close()


@pytest.fixture
def machine(lab: Lab, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Start the machine `build`, which has only the vendor demo. Return its environment."""
    state = tmp_path / "build-state"
    state.mkdir(mode=0o700)
    environment = {"SHIM_STATE": str(state), "SHIM_CONFIG": "/dev/null", "HOME": str(tmp_path)}
    lab.start_machine("build", environment)
    yield environment
    run_shim(lab.build_environment(["build"]) | environment, "claude", "daemon", "stop", "--any")


def run_shim(environment: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SHIM, *args],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )


def list_agents(environment: dict[str, str], *args: str) -> list[dict[str, Any]]:
    done = run_shim(environment, "claude", "agents", "--json", *args)
    assert done.returncode == 0, done.stderr
    sessions: list[dict[str, Any]] = json.loads(done.stdout)
    return sessions


def start_demo(environment: dict[str, str], *args: str) -> str:
    done = run_shim(environment, "claude", "--bg", "--shim-vendor", "demo", *args, "hello")
    assert done.returncode == 0, done.stderr
    return STARTED_PATTERN.findall(done.stdout)[0]


def wait_for_state(environment: dict[str, str], state: str) -> dict[str, Any]:
    """Return the only listed session once it has a state."""
    listed: list[dict[str, Any]] = []

    def has_state() -> bool:
        listed[:] = list_agents(environment, "--all")
        return [each["state"] for each in listed] == [state]

    assert wait_until(has_state, TURN_SECONDS, LOOK_SECONDS), listed
    return listed[0]


@OVER_SSH_AND_NATS
@pytest.mark.parametrize("vendor", [QWEN], ids=str, indirect=True)
def test_session_of_another_machine_is_started_answered_and_removed(
    lab: Lab, frontend: DropInFrontend
) -> None:
    lab.start_machine("build", frontend.environment)
    here = lab.build_environment(["build"])
    start = ("claude", "--bg", "--machine", "build", "--cwd", str(frontend.folder))
    started = run_shim(
        here, *start, "--shim-vendor", "qwen", *frontend.extra_args, "[[shell]] touch made"
    )
    assert started.returncode == 0, started.stderr
    session_id = STARTED_PATTERN.findall(started.stdout)[0]
    waiting = wait_for_state(here, "blocked")
    assert (waiting["id"], waiting["machine"]) == (session_id, "build")
    assert "pid" not in waiting
    assert not (frontend.folder / "made").exists()

    # Two machines answer: the second one is told who was first.
    answered = run_shim(here, "bridge", "answer", f"build:{session_id}", "allow")
    assert (answered.returncode, answered.stdout) == (0, "allowed\n"), answered.stderr
    there = dict(frontend.environment)
    late = run_shim(there, "bridge", "answer", session_id, "deny")
    assert late.returncode == 1
    assert "already answered: allow, by shim bridge answer" in late.stderr
    wait_for_state(here, "done")
    assert (frontend.folder / "made").exists()

    assert REPLY_AFTER_TOOL in run_shim(here, "claude", "logs", session_id).stdout
    assert run_shim(here, "claude", "stop", session_id).stdout == f"stopped {session_id}\n"
    assert run_shim(here, "claude", "rm", f"build:{session_id}").stdout == f"removed {session_id}\n"
    # A machine of a fleet publishes the change in a moment.
    assert wait_until(lambda: list_agents(here, "--all") == [], TURN_SECONDS, LOOK_SECONDS)
    lab.close()
    assert frontend.list_remaining_processes() == {}


@OVER_SSH_AND_NATS
@pytest.mark.parametrize("vendor", [QWEN], ids=str, indirect=True)
def test_session_of_another_machine_is_answered_and_resumed_on_the_page(
    lab: Lab, frontend: DropInFrontend
) -> None:
    require_programs()
    lab.start_machine("build", frontend.environment)
    here = lab.build_environment(["build"])
    start = ("claude", "--bg", "--machine", "build", "--cwd", str(frontend.folder))
    started = run_shim(
        here, *start, "--shim-vendor", "qwen", *frontend.extra_args, "[[shell]] touch made"
    )
    session_id = STARTED_PATTERN.findall(started.stdout)[0]
    browser = Browser("127.0.0.1")
    browser.wait_timeout_s = TURN_SECONDS
    served = Served(here)
    page = Page(browser, served)
    try:
        page.open_page()
        page.wait_for_text("build · qwen", ".where")
        browser.click(f"[data-id='{session_id}']")
        page.wait_for_questions()
        browser.click(".choose .strong")
        page.wait_for_text(REPLY_AFTER_TOOL, "#steps")
        assert (frontend.folder / "made").exists()
        run_shim(here, "claude", "stop", session_id)
        browser.wait_until(lambda: browser.run_script("return list.sessions[0].alive") is False)
        page.type_text("[[text]]")
        browser.click("#send")
        browser.wait_until(lambda: len(browser.find_elements("#steps .result")) == 2)
        assert page.list_errors() == []
    finally:
        browser.close()
        served.kill()
        run_shim(here, "claude", "rm", session_id)
    lab.close()
    assert frontend.list_remaining_processes() == {}


@pytest.mark.parametrize("client", [PYTHON, TYPESCRIPT], ids=str)
@OVER_SSH_AND_NATS
@pytest.mark.parametrize("vendor", [QWEN], ids=str, indirect=True)
def test_sdk_client_joins_a_session_of_another_machine(
    client: SdkClient, lab: Lab, frontend: DropInFrontend, tmp_path: Path
) -> None:
    lab.start_machine("build", frontend.environment)
    here = {**lab.build_environment(["build"]), MARK: frontend.environment[MARK]}
    start = ("claude", "--bg", "--machine", "build", "--cwd", str(frontend.folder))
    run_shim(
        here, *start, "--shim-vendor", "qwen", *frontend.extra_args, "[[text]] the first words"
    )
    session = wait_for_state(here, "done")
    install_drop_in_script(str(tmp_path / "here"), "claude", {}, force=False)
    local = Sandbox(tmp_path / "here" / "claude", frontend.folder, here)
    conversation = client.connect(local, resume=f"build:{session['sessionId']}", asks=True)
    start_index = len(conversation.lines)
    conversation.send_message("[[shell]] touch made")
    request = conversation.await_saw("asked")
    assert request["input"]["command"] == "touch made"
    conversation.allow_call()
    turn = conversation.read_turn(start_index)
    assert turn.init["session"] == session["sessionId"]
    assert (frontend.folder / "made").exists()
    conversation.disconnect()
    assert [each["state"] for each in list_agents(here)] == ["done"]
    run_shim(here, "claude", "rm", session["id"])
    lab.close()
    assert frontend.list_remaining_processes() == {}
    local.close()


@OVER_SSH_AND_NATS
def test_session_of_another_machine_is_attached_and_resumed(
    lab: Lab, machine: dict[str, str], tmp_path: Path
) -> None:
    here = lab.build_environment(["build"])
    session_id = start_demo(here, "--machine", "build", "--cwd", str(tmp_path))
    with on_terminal(
        (*SHIM, "claude", "attach", f"build:{session_id}"),
        env=here,
        cwd=str(tmp_path),
        timeout_s=TURN_SECONDS,
    ) as terminal:
        terminal.wait_for_text("the three tests pass")
        terminal.type_keys("/leave\r")
        terminal.wait_for_text(f"claude attach build:{session_id}")
    done = wait_for_state(here, "done")
    for reference in (f"build:{session_id}", done["sessionId"]):
        resumed = run_shim(
            here, "claude", "-p", "--resume", reference, "--output-format", "json", "go on"
        )
        assert resumed.returncode == 0, resumed.stderr
        result = json.loads(resumed.stdout)
        assert (result["subtype"], result["session_id"]) == ("success", done["sessionId"])
    assert run_shim(here, "claude", "-p", "--resume", "build:dead0000", "x").returncode == 1
    run_shim(here, "claude", "stop", session_id)
    watched = run_shim(here, "bridge", "watch", f"build:{session_id}")
    assert (watched.returncode, watched.stderr) == (0, "")
    assert "the three tests pass" in watched.stdout
    assert f"Session build:{session_id} has exited" in watched.stdout


def test_sessions_of_this_machine_are_printed_before_a_silent_machine_answers(
    lab: SshLab, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        lab.add_host("silent", silent.getsockname()[1])
        here = lab.build_environment(["silent"])
        session_id = start_demo(here)
        listing = subprocess.Popen(
            [*SHIM, "claude", "agents", "--json", "--all"],
            env=here,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        assert listing.stdout is not None
        first = listing.stdout.readline() + listing.stdout.readline() + listing.stdout.readline()
        assert listing.poll() is None
        output, errors = listing.communicate(timeout=COMMAND_SECONDS)
    (entry,) = json.loads(first + output)
    assert entry["id"] == session_id
    assert b"the machine silent does not answer" in errors
    run_shim(here, "claude", "daemon", "stop", "--any")


@OVER_SSH_AND_NATS
def test_machine_that_is_off_is_listed_with_the_time_of_its_last_answer(
    lab: Lab, machine: dict[str, str], tmp_path: Path
) -> None:
    here = lab.build_environment(["build"])
    session_id = start_demo(here, "--machine", "build", "--cwd", str(tmp_path))
    done = wait_for_state(here, "done")
    lab.close()
    done_later = run_shim(here, "claude", "agents", "--json", "--all")
    (entry,) = json.loads(done_later.stdout)
    assert entry == {**done, "away": entry["away"]}
    assert entry["away"] >= done["startedAt"]
    assert "the machine build does not answer: " in done_later.stderr
    refused = run_shim(here, "claude", "logs", f"build:{session_id}")
    assert refused.returncode == 1
    assert "the machine build does not answer: " in refused.stderr
    resumed = run_shim(
        here, "claude", "-p", "--resume", f"build:{session_id}", "--output-format", "json", "x"
    )
    result = json.loads(resumed.stdout)
    assert result["is_error"]
    assert "the machine build does not answer: " in result["errors"][0]


@pytest.mark.parametrize("cut_count", CUTS)
def test_watcher_loses_and_repeats_no_line_when_the_connection_is_cut(
    lab: SshLab, machine: dict[str, str], tmp_path: Path, cut_count: int
) -> None:
    port = lab.start_machine("direct", machine)
    proxy = CuttingProxy(port)
    lab.add_host("cut", proxy.port)
    start_demo(lab.build_environment(["build"]), "--machine", "build", "--cwd", str(tmp_path))
    session = wait_for_state(lab.build_environment(["build"]), "done")
    here = lab.build_environment(["build", "cut"])
    uuid = session["sessionId"]
    expected = read_lines(here, f"build:{uuid}", None)
    choose = random.Random(cut_count)
    received: list[tuple[int, bytes]] = []
    while proxy.cut_count < cut_count:
        # A login needs about 3 kB. The history of the session has about 20 kB.
        proxy.cut_after = choose.randrange(2_000, 25_000)
        if proxy.cut_count % 5 == 4:
            received = []  # read the history from its beginning
        received += read_lines(here, f"cut:{uuid}", received)
    proxy.cut_after = None
    received += read_lines(here, f"cut:{uuid}", received)
    assert received == expected
    proxy.close()


def read_lines(
    environment: dict[str, str], session_id: str, received: list[tuple[int, bytes]] | None
) -> list[tuple[int, bytes]]:
    """Return the lines after the received ones, until all are there or the connection is lost."""
    lines: list[tuple[int, bytes]] = []
    cursor = None
    if received:
        cursor = LogCursor(1, received[-1][0])
    try:
        with connect_to_session_blocking(
            session_id, environment, role=WATCH, after=cursor, partial=False
        ) as connection:
            for frame in connection.read_frames(TURN_SECONDS):
                if frame["kind"] == "line":
                    lines.append((frame["number"], frame["raw"]))
                if frame["kind"] == "synced":
                    break
    except (HostUnavailableError, MachineUnavailableError):
        pass
    return lines
