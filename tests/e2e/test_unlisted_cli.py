"""A real CLI without a bundled profile, run only by its user's profile; and real programs in place
of each other.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clis import build_isolated_environment
from model_scripts import REPLY, REPLY_AFTER_TOOL
from model_server import MODEL, ModelServer
from programs import CLAUDE, install_program
from vendor_setups import QWEN

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from stream_invariants import check_turns
from stream_lines import parse_lines, summarize_lines

pytestmark = pytest.mark.e2e

GROK = "@vibe-kit/grok-cli"
PROFILE = Path(__file__).resolve().parent.parent / "profiles" / "grok.toml"
TURN_SECONDS = 120.0
STREAM = ("--output-format", "stream-json", "--verbose")

USER = {"type": "user", "session_id": "", "parent_tool_use_id": None}

Claude = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture
def claude(model: ModelServer, hello_file: Path, tmp_path: Path) -> Claude:
    """Return `claude` for the vendors of the settings. grok and qwen use the same address, each
    from its own variables.
    """
    programs = {
        "grok": install_program(GROK),
        "qwen": install_program(QWEN.package),
        "claude": install_program(CLAUDE),
    }
    qwen = programs["qwen"]
    environment = build_isolated_environment(QWEN, qwen, model.url, tmp_path)
    environment |= {
        "GROK_BASE_URL": model.url,
        "GROK_API_KEY": "x",
        "SHIM_STATE": str(tmp_path / "state"),
    }
    config = Path(environment["HOME"]) / ".config" / "shim"
    (config / "vendors").mkdir(parents=True)
    shutil.copy(PROFILE, config / "vendors")
    bins = "".join(
        f"[vendors.{name}]\nbin = {json.dumps(str(program.executable))}\n"
        for name, program in programs.items()
    )
    (config / "config.toml").write_text(f'vendor = ["grok", "qwen"]\n{bins}', encoding="utf-8")

    def run(
        *args: str, stdin_text: str = "", without: str = "", **more: str
    ) -> list[dict[str, Any]]:
        done = subprocess.run(
            [sys.executable, "-m", "shim", "claude", *args, *STREAM],
            input=stdin_text.encode(),
            capture_output=True,
            env={name: value for name, value in (environment | more).items() if name != without},
            cwd=hello_file.parent,
            timeout=TURN_SECONDS,
            check=False,
        )
        assert done.stdout, done.stderr.decode()
        if not stdin_text:
            check_turns(done.stdout, False)
        return parse_lines(done.stdout)

    return run


def test_unlisted_vendor_answers_a_prompt(claude: Claude, model: ModelServer) -> None:
    lines = claude("-p", "[[text]] hi", "--model", f"grok:{MODEL}")
    assert summarize_lines(lines) == ["init", f"text:{REPLY}", f"end:success {REPLY}", "."]
    assert lines[0]["shim"]["vendor"] == "grok" and model.requests[-1].model == MODEL


def test_unlisted_vendor_runs_tools(claude: Claude) -> None:
    entries = summarize_lines(
        claude("-p", "[[shell]] echo made by a tool", "--shim-vendor", "grok", "--model", MODEL)
    )
    assert [entry.split(":")[0] for entry in entries] == [
        "init",
        "text",
        "call",
        "result",
        "text",
        "end",
        ".",
    ]
    assert "made by a tool" in entries[3] and entries[4] == f"text:{REPLY_AFTER_TOOL}"


def test_next_real_vendor_answers_if_the_first_is_not_logged_in(claude: Claude) -> None:
    lines = claude("-p", "[[text]] hi", without="GROK_API_KEY")
    assert lines[0]["shim"]["vendor"] == "qwen" and lines[0]["model"] == MODEL
    assert [(attempt["vendor"], attempt["cause"]) for attempt in lines[0]["shim"]["tried"]] == [
        ("grok", "auth")
    ]
    assert summarize_lines(lines)[-2] == f"end:success {REPLY}"


@pytest.mark.parametrize(
    "is_conversation",
    [pytest.param(False, marks=pytest.mark.full), True],
    ids=["one message", "a conversation"],
)
def test_qwen_answers_if_real_claude_is_not_logged_in(
    claude: Claude, is_conversation: bool
) -> None:
    if is_conversation:
        messages = [
            USER | {"message": {"role": "user", "content": f"[[text]] {item}"}}
            for item in ("one", "two")
        ]
        stdin_text = "".join(json.dumps(message) + "\n" for message in messages)
        lines = claude(
            "--input-format", "stream-json", stdin_text=stdin_text, SHIM_VENDOR="claude,qwen"
        )
    else:
        lines = claude("-p", "[[text]] hi", SHIM_VENDOR="claude,qwen")
    inits = [line["shim"] for line in lines if line.get("subtype") == "init"]
    assert [item["vendor"] for item in inits] == ["qwen"] * (1 + is_conversation)
    assert [(item["vendor"], item["cause"]) for item in inits[0]["tried"]] == [("claude", "auth")]
    assert "tried" not in inits[-1] or not is_conversation
    assert [line["result"] for line in lines if line["type"] == "result"] == [REPLY] * (
        1 + is_conversation
    )


def test_result_lists_both_vendors_if_authentication_fails_for_both(claude: Claude) -> None:
    lines = claude("-p", "[[error]] 401")
    result = lines[-2]
    assert result["is_error"] and result["shim"]["vendor"] == "qwen"
    assert "grok did not answer either (not logged in or invalid API key)" in result["result"]
