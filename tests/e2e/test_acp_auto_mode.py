"""Zed's adapter starts every session with `--permission-mode=auto`, which most vendors lack."""

from __future__ import annotations

import pytest
from acp_clients import ACPS
from clis import BARE, Cli
from model_scripts import REPLY, ScriptedServer
from sandbox import Sandbox
from vendor_setups import (
    CLAUDE_ITSELF,
    CODEX,
    COPILOT,
    GEMINI,
    KIMI,
    KIMI_CODE,
    OPENCODE,
    PI,
    QWEN,
    VIBE,
)

pytestmark = pytest.mark.e2e

LACKING = (PI, OPENCODE, COPILOT, KIMI, KIMI_CODE, VIBE)
later = pytest.mark.full
PROMPTING_CLIS = [
    Cli(CODEX),
    *(
        pytest.param(Cli(vendor), marks=later)
        for vendor in (GEMINI, PI, OPENCODE, COPILOT, KIMI, KIMI_CODE)
    ),
]


@pytest.mark.parametrize(
    ("cli", "mode"),
    [
        (Cli(GEMINI), "default"),
        (Cli(CODEX), "default"),
        *[pytest.param(Cli(vendor), "default", marks=later) for vendor in LACKING],
        *[pytest.param(cli, "auto", marks=later) for cli in (Cli(QWEN), Cli(CLAUDE_ITSELF), BARE)],
    ],
    ids=str,
)
def test_session_opens_in_auto_mode_or_falls_back_to_default(sandbox: Sandbox, mode: str) -> None:
    editor = ACPS[-1].connect(sandbox)
    editor.open_session(auto=True)
    prompt = editor.run_prompt("[[text]] hi")
    editor.shut_down()
    assert prompt.error is None and prompt.text == REPLY
    assert editor.opened["modes"]["currentModeId"] == mode


@pytest.mark.parametrize("cli", PROMPTING_CLIS, ids=str)
def test_command_in_auto_mode_session_triggers_a_permission_prompt(
    sandbox: Sandbox, service: ScriptedServer
) -> None:
    editor = ACPS[-1].connect(sandbox)
    editor.open_session(auto=True)
    prompt = editor.run_prompt("[[shell]] touch one", choice="reject_once")
    editor.shut_down()
    assert len(prompt.permission_requests) == 1 and not (sandbox.folder / "one").exists()
