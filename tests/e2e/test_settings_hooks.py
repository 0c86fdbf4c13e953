"""The PreToolUse hooks of Claude's settings files run with the drop-in as with the real claude.

The permission table lists which vendor runs what. These tests check the input of a hook, that a
hook can change a call, and that the change leaves no trace.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from frontend import DropInFrontend, check_contract
from model_scripts import ScriptedServer
from permission_rows import BYPASS, MADE, build_hook_settings
from programs import install_program
from vendor_setups import CLAUDE_ITSELF, CODEX, COPILOT, QWEN, Vendor

pytestmark = pytest.mark.e2e
TOLD = "told.json"
CHANGED = {
    "hookEventName": "PreToolUse",
    "permissionDecision": "allow",
    "updatedInput": {"command": f"touch {MADE}2"},
}
of_all = pytest.mark.parametrize(
    "vendor",
    [pytest.param(CLAUDE_ITSELF, marks=pytest.mark.full), QWEN, CODEX, COPILOT],
    indirect=True,
    ids=str,
)


def settings(frontend: DropInFrontend, vendor: Vendor, user_settings: dict[str, Any]) -> Path:
    """Write the user's settings file. Return the folder into which hooks write."""
    if vendor is CLAUDE_ITSELF:
        frontend.claude = install_program(vendor.package).executable
        # Otherwise root may not bypass permissions.
        frontend.environment = {**frontend.environment, "IS_SANDBOX": "1"}
    home_folder = Path(frontend.environment["HOME"])
    (home_folder / ".claude").mkdir(exist_ok=True)
    (home_folder / ".claude" / "settings.json").write_text(json.dumps(user_settings))
    return home_folder


@of_all
def test_hook_receives_the_call_in_claude_format(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor
) -> None:
    home_folder = settings(
        frontend,
        vendor,
        build_hook_settings(
            f'cat > "$HOME/{TOLD}"; pwd >&2; echo "in $CLAUDE_PROJECT_DIR" >&2; exit 2'
        ),
    )
    run = frontend.run_prompt(f"[[shell]] touch {MADE}", *BYPASS)
    assert not (frontend.folder / MADE).exists()
    hook_input = json.loads((home_folder / TOLD).read_text())
    assert (
        hook_input["hook_event_name"],
        hook_input["tool_name"],
        hook_input["permission_mode"],
    ) == (
        "PreToolUse",
        "Bash",
        "bypassPermissions",
    )
    assert hook_input["tool_input"]["command"] == f"touch {MADE}"
    assert (hook_input["session_id"], hook_input["cwd"]) == (
        run.init["session_id"],
        str(frontend.folder),
    )
    assert hook_input["transcript_path"].endswith(f"/{hook_input['session_id']}.jsonl")
    (result,) = run.tool_results
    assert f"{frontend.folder}\nin {frontend.folder}" in result["content"]
    assert [denial["tool_name"] for denial in run.result["permission_denials"]] == ["Bash"]
    if vendor is not CLAUDE_ITSELF:
        check_contract(run)


@pytest.mark.full
@of_all
def test_hook_receives_the_content_written_to_a_file(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor
) -> None:
    home_folder = settings(
        frontend, vendor, build_hook_settings(f'cat > "$HOME/{TOLD}"', "Write|Edit")
    )
    path_argument = (
        MADE if vendor.relative_paths or vendor is CODEX else str(frontend.folder / MADE)
    )
    frontend.run_prompt(f"[[write]] {path_argument}", *BYPASS)
    assert (frontend.folder / MADE).exists()
    hook_input = json.loads((home_folder / TOLD).read_text())
    assert (hook_input["tool_name"], hook_input["tool_input"]["file_path"]) == (
        "Write",
        str(frontend.folder / MADE),
    )
    assert hook_input["tool_input"]["content"] == (frontend.folder / MADE).read_text()


@pytest.mark.full
@of_all
def test_original_call_never_runs_if_a_hook_changes_its_input(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor
) -> None:
    settings(
        frontend,
        vendor,
        build_hook_settings(f"echo '{json.dumps({'hookSpecificOutput': CHANGED})}'"),
    )
    frontend.run_prompt(f"[[shell]] touch {MADE}", *BYPASS)
    assert not (frontend.folder / MADE).exists()
    changed = (frontend.folder / f"{MADE}2").exists()
    # The model of a test does not know Claude's tool names.
    assert changed is (vendor in (CLAUDE_ITSELF, QWEN))


@pytest.mark.full
@pytest.mark.parametrize("vendor", [QWEN, CODEX, COPILOT], indirect=True, ids=str)
def test_interrupt_ends_a_running_hook(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor
) -> None:
    settings(frontend, vendor, build_hook_settings("exec sleep 4711"))
    process = frontend.start_run(f"[[shell]] touch {MADE}", *BYPASS)
    assert frontend.wait_for_start("sleep 4711")
    process.interrupt()
    process.finish()
    assert frontend.wait_for_end("sleep 4711")
    assert not (frontend.folder / MADE).exists()
