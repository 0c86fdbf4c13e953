"""Recordings of real vendors' turns: every reader agrees on how a turn ended."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from frontend import DropInFrontend
from sandbox import TURN_SECONDS
from test_acp import FrontendConversation
from vendor_setups import CODEX, COPILOT, GEMINI, OPENCODE, PI, PI_CUMULATIVE

pytestmark = pytest.mark.e2e

FORMATS = {"text": ["--output-format", "text"], "json": ["--output-format", "json"], "stream": []}
# qwen exits so fast that the shim sends no signal, and opencode has no event for the end.
LATER = [
    pytest.param(vendor, marks=pytest.mark.full)
    for vendor in (PI_CUMULATIVE, GEMINI, CODEX, COPILOT)
]
# A program that answers the version query at once, and keeps running after its turn.
STAYS = """#!/bin/sh
[ "$*" = --version ] && exec "{program}" --version
"{program}" "$@"
exec sleep {seconds}
"""
# A vendor that has reported its end is stopped before it exits by itself.
AT_ONCE = "end_grace = 0\n"


def record(frontend: DropInFrontend, file: Path, flags: list[str]) -> int:
    """Record one turn. Return its exit status."""
    stream = [] if flags else ["--output-format", "stream-json", "--verbose"]
    argv = [
        str(frontend.claude),
        "-p",
        "[[text]]",
        *frontend.extra_args,
        *flags,
        *stream,
        "--shim-record",
        str(file),
    ]
    done = subprocess.run(
        argv, cwd=frontend.folder, env=dict(frontend.environment), stdin=subprocess.DEVNULL,
        capture_output=True, timeout=TURN_SECONDS, check=False,
    )  # fmt: skip
    return done.returncode


def shim(*args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "shim", *args],
        capture_output=True,
        text=True,
        timeout=TURN_SECONDS,
        check=True,
    )
    return done.stdout


def summary(file: Path) -> dict[str, Any]:
    (entry,) = json.loads(shim("cast", "list", "--json", str(file)))
    return {name: entry[name] for name in ("turns", "errors", "outcome", "tokens", "cost_usd")}


@pytest.mark.parametrize("vendor", [PI, *LATER], indirect=True, ids=str)
def test_successful_turn_is_summarized_equally_for_every_output_format(
    frontend: DropInFrontend, tmp_path: Path
) -> None:
    settings = Path(frontend.environment["HOME"]) / ".config" / "shim" / "config.toml"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(AT_ONCE + (settings.read_text() if settings.exists() else ""))
    stay_after_the_turn(frontend, tmp_path)
    summaries = {}
    for name, flags in FORMATS.items():
        file = tmp_path / f"{name}.cast"
        assert record(frontend, file, flags) == 0
        assert '"kind":"signal"' in file.read_text()  # the shim's signal
        summaries[name] = summary(file)
        assert (
            summaries[name]["turns"],
            summaries[name]["errors"],
            summaries[name]["outcome"],
        ) == (1, 0, "ok")
        assert "done" in shim("show", str(file)) and "failed" not in shim("show", str(file))
        assert read_turn_duration_s(file) > 0
    assert summaries["text"] == summaries["json"] == summaries["stream"]


def stay_after_the_turn(frontend: DropInFrontend, folder: Path) -> None:
    """Make the vendor's program keep running after its turn, so that the shim always ends it."""
    program, wrapper = frontend.environment["SHIM_BIN"], folder / "stays"
    wrapper.write_text(STAYS.format(program=program, seconds=int(TURN_SECONDS)))
    wrapper.chmod(0o755)
    frontend.environment = {**frontend.environment, "SHIM_BIN": str(wrapper)}


def read_turn_duration_s(file: Path) -> float:
    """Return the duration of the only turn from the statistics."""
    return float(json.loads(shim("cast", "stats", "--json", str(file)))["all"]["turns"]["total_s"])


OPAQUE = "hunter2-Zq81xPlm"  # a secret of no known format


@pytest.mark.full
@pytest.mark.parametrize("vendor", [OPENCODE], indirect=True, ids=str)
def test_recording_contains_no_secrets_of_frontend_mcp_servers(
    frontend: DropInFrontend, tmp_path: Path
) -> None:
    file, settings = tmp_path / "one.cast", tmp_path / "servers.json"
    local = {
        "command": "false",
        "args": ["--said", f"{OPAQUE}-argument"],
        "env": {"SAID": f"{OPAQUE}-variable"},
    }
    far = {"type": "http", "url": "http://127.0.0.1:9/", "headers": {"X-Said": f"{OPAQUE}-header"}}
    settings.write_text(json.dumps({"mcpServers": {"local": local, "far": far}}))
    asking = (
        "--permission-prompt-tool",
        "stdio",
        "--mcp-config",
        str(settings),
        "--shim-record",
        str(file),
    )
    conversation = FrontendConversation(frontend, *asking)
    greeting = {"subtype": "initialize", "mcpServers": {"own": far}}
    conversation.process.send(
        {"type": "control_request", "request_id": "first", "request": greeting}
    )
    conversation.send("[[text]] hi")
    conversation.until("result")
    conversation.process.close_stdin()
    conversation.process.read_to_end()
    recorded = file.read_text()
    assert "session/new" in recorded and "X-Said" in recorded
    assert OPAQUE not in recorded
