"""PyPI programs that need a newer Python than the shim: vibe and kimi, if such a Python exists."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from frontend import DropInFrontend, check_contract, join_result_text
from model_scripts import REASONING, REPLY, REPLY_AFTER_TOOL, WRITTEN, ScriptedServer
from model_server import MODEL
from programs import find_newer_python
from test_scenarios import BYPASS, usage_of
from vendor_setups import KIMI, VIBE

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        find_newer_python() is None,
        reason="vibe and kimi need a newer Python, and there is none here",
    ),
]
only_vibe = pytest.mark.parametrize("vendor", [VIBE], indirect=True, ids=str)
only_kimi = pytest.mark.parametrize("vendor", [KIMI], indirect=True, ids=str)


@only_vibe
def test_vibe_reads_a_file_and_a_resumed_session_counts_only_new_usage(
    frontend: DropInFrontend, model: ScriptedServer, hello_file: Path
) -> None:
    """The usage of a run is in its export."""
    run = frontend.run_prompt(f"[[read]] {hello_file}")
    check_contract(run)
    assert run.exit == 0
    (call,) = run.tool_uses
    assert (call["name"], call["input"]["file_path"]) == ("Read", str(hello_file))
    assert "hello world" in join_result_text(run.tool_results[0])
    assert run.result["result"] == REPLY_AFTER_TOOL
    assert run.result["usage"].items() >= usage_of(2).items()
    assert run.result["total_cost_usd"] == pytest.approx(2 * (120 * 3 + 30 * 15) / 1_000_000)
    assert {request.model for request in model.requests} == {MODEL}
    second = frontend.run_prompt("[[text]] and again", "--resume", run.init["session_id"])
    check_contract(second)
    assert second.init["session_id"] == run.init["session_id"] and second.result["result"] == REPLY
    assert second.result["usage"].items() >= usage_of(1).items()
    assert f"[[read]] {hello_file}" in json.dumps(model.requests[-1].messages)


@only_vibe
@pytest.mark.parametrize("mode", ["default", pytest.param("acceptEdits", marks=pytest.mark.full)])
def test_vibe_writes_files_only_in_accept_edits_mode(frontend: DropInFrontend, mode: str) -> None:
    """By default it writes files."""
    made = frontend.folder / "made.txt"
    run = frontend.run_prompt(f"[[write]] {made}", "--permission-mode", mode)
    check_contract(run)
    assert run.exit == 0 and run.tool_uses[0]["name"] == "Write"
    assert made.exists() is (mode == "acceptEdits")
    assert [denial["tool_name"] for denial in run.result["permission_denials"]] == ["Write"] * (
        mode == "default"
    )


OPEN = {
    "a tool": '[tools.bash]\npermission = "always"\n',
    "a command": '[tools.bash]\nallowlist = ["touch"]\n',
    "everything": "bypass_tool_permissions = true\n",
}


@only_vibe
@pytest.mark.parametrize(
    "mode",
    [
        "default",
        pytest.param("acceptEdits", marks=pytest.mark.full),
        pytest.param(None, marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize(
    "opened", ["a tool", *(pytest.param(name, marks=pytest.mark.full) for name in list(OPEN)[1:])]
)
def test_vibe_config_widens_permissions_only_in_bypass_mode(
    frontend: DropInFrontend, mode: str | None, opened: str
) -> None:
    """Permission-parity W10."""
    config = Path(frontend.environment["VIBE_HOME"]) / "config.toml"
    original_config, added = config.read_text(), OPEN[opened]
    config.write_text(original_config + added if added.startswith("[") else added + original_config)
    flags = (BYPASS,) if mode is None else ("--permission-mode", mode)
    run = frontend.run_prompt("[[shell]] touch made", *flags)
    assert (frontend.folder / "made").exists() is (mode is None), run.tool_results


@only_vibe
@pytest.mark.full
def test_vibe_turn_limit_is_reported_as_error_max_turns(frontend: DropInFrontend) -> None:
    run = frontend.run_prompt("[[shell]] ls", "--max-turns", "1")
    check_contract(run)
    assert run.exit == 1 and run.result["subtype"] == "error_max_turns"
    assert run.result["shim"]["cause"] == "limit"


@only_kimi
@pytest.mark.parametrize(
    "prompt", [pytest.param("[[think]] hi", marks=pytest.mark.full), "-h [[think]]"]
)
def test_kimi_emits_thinking_and_a_reply(frontend: DropInFrontend, prompt: str) -> None:
    run = frontend.run_prompt(prompt)
    check_contract(run)
    assert run.exit == 0 and run.texts == [REPLY]
    assert [block["thinking"] for block in run.list_blocks("assistant", "thinking")] == [REASONING]


@only_kimi
def test_kimi_runs_tools_without_prompts_and_reports_unattended(
    frontend: DropInFrontend, model: ScriptedServer
) -> None:
    made = frontend.folder / "made.txt"
    first = frontend.run_prompt(f"[[write]] {made}")
    check_contract(first)
    assert first.init["shim"]["unattended"] is True and made.read_text() == WRITTEN
    assert first.tool_uses[0]["input"] == {"file_path": str(made), "content": WRITTEN}
    second = frontend.run_prompt("[[shell]] exit 3", BYPASS, "--resume", first.init["session_id"])
    check_contract(second)
    assert second.init["session_id"] == first.init["session_id"]
    assert second.tool_results[0]["is_error"] is True and second.result["is_error"] is False
    assert "[[write]]" in json.dumps(model.requests[-1].messages)
