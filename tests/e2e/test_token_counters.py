"""Programs that count tokens, with the shim's transcripts: the count is the sum of the results, for
every vendor.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from frontend import DropInFrontend
from model_scripts import ScriptedServer
from programs import find_newer_python
from test_scenarios import BYPASS
from token_counters import COUNTERS, NAMES, Usage, read_ccusage_totals
from vendor_setups import CLAUDE_ITSELF, CODEX, PI, QWEN, VENDORS, VIBE, Vendor

pytestmark = pytest.mark.e2e

# kimi reports no usage.
ALL = (*VENDORS, *((VIBE,) if find_newer_python() is not None else ()))
QUICK = (PI,)  # each line of a message has the usage, which was once counted several times
DEMO_SECONDS = 60.0


def parameters(*vendors: Vendor) -> list[Any]:
    return [
        pytest.param(vendor, id=str(vendor), marks=() if vendor in QUICK else pytest.mark.full)
        for vendor in vendors
    ]


def home_of(frontend: DropInFrontend) -> Path:
    return Path(frontend.environment["HOME"])


def total(results: list[dict[str, Any]]) -> Usage:
    return {name: sum(result["usage"][name] for result in results) for name in NAMES}


def count_usage(home_folder: Path) -> dict[str, Usage]:
    return {name: count(home_folder) for name, count in COUNTERS.items()}


def messages(home_folder: Path) -> list[dict[str, Any]]:
    """Return the assistant lines of all transcripts."""
    lines = [
        json.loads(line)
        for file in home_folder.glob(".claude/projects/*/*.jsonl")
        for line in file.read_text().splitlines()
    ]
    return [line for line in lines if line["type"] == "assistant"]


@pytest.mark.parametrize("vendor", parameters(*ALL), indirect=True)
def test_usage_counters_match_the_results(
    frontend: DropInFrontend, vendor: Vendor, hello_file: Path
) -> None:
    """The cases are a message of several lines and a resumed session."""
    first = frontend.run_prompt(f"[[read]] {vendor.format_file_argument(hello_file)}", BYPASS)
    second = frontend.run_prompt("[[text]]", "--continue", "--include-partial-messages")
    expected = total([first.result, second.result])
    assert expected["input_tokens"] > 0 and expected["output_tokens"] > 0
    assert count_usage(home_of(frontend)) == dict.fromkeys(COUNTERS, expected)


@pytest.mark.parametrize("vendor", parameters(PI, CODEX), indirect=True)
def test_conversation_in_a_single_process_is_counted(
    frontend: DropInFrontend, hello_file: Path
) -> None:
    run = frontend.run_messages("[[text]]")
    assert count_usage(home_of(frontend)) == dict.fromkeys(COUNTERS, total([run.result]))


@pytest.mark.full
@pytest.mark.parametrize("vendor", [CODEX, QWEN], indirect=True, ids=str)
def test_ccusage_counts_a_turn_twice_unless_transcripts_are_off(frontend: DropInFrontend) -> None:
    """ccusage also reads the vendor's own log."""
    first = frontend.run_prompt("[[text]]").result["usage"]["output_tokens"]
    assert read_ccusage_totals(home_of(frontend), "daily")["output_tokens"] == 2 * first
    settings = home_of(frontend) / ".config" / "shim" / "config.toml"
    settings.parent.mkdir(parents=True, exist_ok=True)
    before = settings.read_text() if settings.exists() else ""
    settings.write_text(f"transcripts = false\n{before}")
    second = frontend.run_prompt("[[text]]").result["usage"]["output_tokens"]
    assert read_ccusage_totals(home_of(frontend), "daily")["output_tokens"] == 2 * first + second


@pytest.mark.full
@pytest.mark.parametrize("vendor", [CODEX], indirect=True, ids=str)
def test_transcript_and_usage_name_the_default_model_of_codex(
    frontend: DropInFrontend, model: ScriptedServer
) -> None:
    frontend.extra_args = ()
    run = frontend.run_prompt("[[text]]")
    (model_name,) = {request.model for request in model.requests}
    assert {line["message"]["model"] for line in messages(home_of(frontend))} == {model_name}
    assert list(run.result["modelUsage"]) == [model_name]


@pytest.mark.full
def test_demo_turn_is_counted(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "shim",
        "claude",
        "-p",
        "hi",
        "--output-format",
        "json",
        "--shim-vendor",
        "demo",
    ]
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        timeout=DEMO_SECONDS,
        check=True,
    )
    expected = total([json.loads(done.stdout)])
    assert count_usage(tmp_path) == dict.fromkeys(COUNTERS, expected)


@pytest.mark.full
@pytest.mark.parametrize("vendor", [CLAUDE_ITSELF], indirect=True, ids=str)
def test_sniffly_overcounts_the_transcript_that_claude_writes(
    frontend: DropInFrontend, hello_file: Path
) -> None:
    """claude writes a message's usage on each of its lines: here a text and a call, so sniffly has
    one request too many.
    """
    run = frontend.run_prompt(f"[[read]] {hello_file}", "--allowedTools=Read")
    expected = total([run.result])
    lines = messages(home_of(frontend))
    assert len(lines) == 3 and len({line["message"]["id"] for line in lines}) == 2
    counts = count_usage(home_of(frontend))
    assert counts.pop("sniffly") == {name: 3 * number // 2 for name, number in expected.items()}
    assert counts == dict.fromkeys(counts, expected)
