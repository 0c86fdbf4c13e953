"""Recordings of real runs, replayed to the real SDKs by the installed `claude`: no vendor, no
model, no key.

The SDK's user sees the same as during the recording, except for ids and times.
"""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clis import INSTALL_SECONDS, Cli
from model_scripts import REPLY, REPLY_AFTER_TOOL
from sandbox import MARK, Line, Sandbox
from sdk_clients import PYTHON, TYPESCRIPT, SdkClient, SdkConversation
from vendor_setups import CLAUDE_ITSELF, PI, QWEN

TESTS = Path(__file__).resolve().parent.parent
# Shared with the tests that need only Python.
sys.path.append(str(TESTS / "support"))
from box import Box  # noqa: E402
from fixture_cases import Case, list_fixture_cases  # noqa: E402
from torture import Torture  # noqa: E402
from torture_cases import list_torture_cases as torture_cases  # noqa: E402
from version_drift import find_drift  # noqa: E402

from tests.recording.test_replay_round_trip import check_case_replay, check_torture_replay  # noqa: E402

pytestmark = pytest.mark.e2e

RUNS = [
    pytest.param(client, Cli(vendor), id=f"{client}-{vendor}", marks=[pytest.mark.full] * later)
    for client in (PYTHON, TYPESCRIPT)
    for vendor in (QWEN, PI, CLAUDE_ITSELF)
    # Each client and each vendor's recording is used once.
    for later in [(client is PYTHON) is (vendor is QWEN)]
]
CHECK_SECONDS = 120.0
IDS = ("session", "id")


def converse(client: SdkClient, sandbox: Sandbox, cli: Cli, deltas: int = 1) -> SdkConversation:
    """Run five turns: text, a command that is allowed, one that is denied, one that is interrupted,
    and text again.

    The interrupt is sent after `deltas` deltas of its turn.
    """
    asks = not cli.vendor.silent
    conversation = client.connect(sandbox, partial=True, asks=asks)
    conversation.run_turn("[[think]] hi")
    for answer in (
        (conversation.allow_call, lambda: conversation.deny_call("Not today.")) if asks else ()
    ):
        start_index = len(conversation.lines)
        conversation.send_message("[[shell]] touch made.txt")
        conversation.await_saw("asked")
        answer()
        conversation.read_turn(start_index)
    if not asks:
        conversation.run_turn("[[shell]] touch made.txt")
    start_index = len(conversation.lines)
    conversation.send_message("[[slow]] hi")
    for _ in range(deltas):
        conversation.await_saw("delta")
    conversation.run_command("interrupt")
    conversation.read_turn(start_index)
    conversation.run_turn("[[text]] the last words")
    conversation.disconnect()
    return conversation


def turns(conversation: SdkConversation) -> list[list[Line]]:
    """Return the client's lines by turn, without the confirmations of commands."""
    lines_by_turn: list[list[Line]] = [[]]
    for line in conversation.lines:
        if line["saw"] in ("done", "end"):
            continue
        lines_by_turn[-1].append(line)
        if line["saw"] == "result":
            lines_by_turn.append([])
    return lines_by_turn[:-1]


def number_ids(lines_by_turn: list[list[Line]]) -> Any:
    """Replace ids by numbers."""
    ids: dict[str, str] = {}

    def replace_ids(line: Line) -> Line:
        numbered_ids = {
            key: ids.setdefault(line[key], f"<{len(ids)}>")
            for key in IDS
            if isinstance(line.get(key), str)
        }
        return {**line, **numbered_ids}

    return [[replace_ids(line) for line in turn] for turn in lines_by_turn]


@pytest.fixture
def recording_sandbox(sandbox: Sandbox, tmp_path: Path) -> Sandbox:
    """Return the same sandbox with recording switched on and redaction switched off."""
    folder = tmp_path / "casts"
    folder.mkdir()
    environment = {**sandbox.environment, "SHIM_RECORD": str(folder), "SHIM_REDACT": "none"}
    return Sandbox(sandbox.claude, sandbox.folder, environment, sandbox.started)


def stage(tmp_path: Path, recorded: Sandbox) -> Sandbox:
    """Return another sandbox, whose drop-in has no vendor, without any of the vendor's files."""
    root = tmp_path / "stage"
    for name in ("home", "work"):
        (root / name).mkdir(parents=True)
    copied_names = ("LANG", "PATH")
    environment = {name: recorded.environment[name] for name in copied_names}
    environment |= {
        "HOME": str(root / "home"),
        "SHIM_STATE": str(root / "state"),
        MARK: str(uuid.uuid4()),
    }
    install = [sys.executable, "-m", "shim", "install", "--to", str(root / "bin")]
    subprocess.run(
        install,
        env=environment,
        cwd=root,
        stdin=subprocess.DEVNULL,
        timeout=INSTALL_SECONDS,
        check=True,
    )
    environment |= {"SHIM_VENDOR": f"replay:{casts(tmp_path)}", "SHIM_REPLAY_SPEED": "0"}
    return Sandbox(root / "bin" / "claude", root / "work", environment)


def as_claude(tmp_path: Path, sandbox: Sandbox) -> Sandbox:
    """Return the same sandbox with a `claude` that replays the frontend's lines and does not use
    the drop-in.
    """
    program = tmp_path / "stage" / "bin" / "played"
    play = f"{sys.executable} -I -m shim replay {casts(tmp_path)} --as claude --speed 0"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = -v ] && exec echo "2.1.327 (Claude Code)"\nexec {play}\n'
    )
    program.chmod(0o755)
    return Sandbox(program, sandbox.folder, sandbox.environment, sandbox.started)


def casts(tmp_path: Path) -> Path:
    """Return the only recording."""
    (path,) = (tmp_path / "casts").iterdir()
    return path


@pytest.mark.parametrize(("client", "cli"), RUNS)
def test_recorded_conversation_replays_identically_to_an_sdk(
    client: SdkClient, cli: Cli, recording_sandbox: Sandbox, tmp_path: Path
) -> None:
    then = turns(converse(client, recording_sandbox, cli))
    cut = then[-2]
    deltas = sum(line["saw"] == "delta" for line in cut)
    replay_sandbox = stage(tmp_path, recording_sandbox)
    try:
        now = turns(converse(client, replay_sandbox, cli, deltas))
        claude_turns = turns(converse(client, as_claude(tmp_path, replay_sandbox), cli, deltas))
        remaining = replay_sandbox.list_remaining_processes()
    finally:
        replay_sandbox.close()
    assert then[-1][-1]["text"] == REPLY and then[1][-1]["text"] == REPLY_AFTER_TOOL
    assert cut[-1]["subtype"] == "error_during_execution"
    assert number_ids(now) == number_ids(then)
    assert claude_turns == then, "to the id"
    assert not (replay_sandbox.folder / "made.txt").exists(), "a replay runs nothing"
    assert remaining == {}
    check = subprocess.run(
        [sys.executable, "-m", "shim", "replay", str(casts(tmp_path)), "--check"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=CHECK_SECONDS,
        check=False,
    )
    assert check.returncode == 0, check.stdout.decode()
    news = [drift for drift in find_drift([str(casts(tmp_path))]) if drift.has_news()]
    assert news == [], "a version that was tested prints nothing new"


# -- every fixture and every torture case, through the drop-in twice -------------------------------


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    """Yield a new box, as the tests without real programs have it."""
    new_box = Box(tmp_path)
    yield new_box
    new_box.close()


FIXTURES = [case for case in list_fixture_cases() if case.exit is not None]
TORTURE = [(case, vendor) for case in torture_cases() for vendor in case.vendors]


@pytest.mark.full
@pytest.mark.parametrize("case", FIXTURES, ids=lambda case: case.name)
def test_every_fixture_is_rerecorded_byte_for_byte(box: Box, case: Case) -> None:
    check_case_replay(box, case)


@pytest.mark.full
@pytest.mark.parametrize(
    ("case", "vendor"), TORTURE, ids=[f"{vendor}-{case.name}" for case, vendor in TORTURE]
)
def test_every_torture_case_is_rerecorded_byte_for_byte(
    box: Box, case: Torture, vendor: str
) -> None:
    check_torture_replay(box, case, vendor)
