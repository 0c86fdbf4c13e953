"""Behaviour that only codex has: its sandbox, its trust, its record of a thread, its errors."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from frontend import DropInFrontend, DropInRun, check_contract, join_result_text
from model_scripts import EDITED, ERROR_MESSAGES, REPLY, REPLY_AFTER_TOOL, WRITTEN, ScriptedServer
from programs import install_program
from test_scenarios import usage_of
from vendor_setups import CODEX

pytestmark = [pytest.mark.e2e, pytest.mark.parametrize("vendor", [CODEX], indirect=True, ids=str)]

BYPASS = "--dangerously-skip-permissions"
# A model that codex knows. For such a model it offers `apply_patch` as a separate tool.
PATCHES = "gpt-5.5"
SANDBOX_SECONDS = 30.0


@pytest.fixture(autouse=True)
def only_here(frontend: DropInFrontend) -> None:
    """Write a person's setting. Without it, commands may write to all of /tmp, where this test
    runs.
    """
    settings = _home(frontend) / ".codex" / "config.toml"
    more = "\n[sandbox_workspace_write]\nexclude_slash_tmp = true\nexclude_tmpdir_env_var = true\n"
    settings.write_text(settings.read_text() + more)


@pytest.fixture
def sandbox(frontend: DropInFrontend) -> None:
    """Skip the test if the machine allows no sandbox, because codex can then run no command."""
    command = [str(install_program(CODEX.package).executable), "sandbox", "--", "true"]
    done = subprocess.run(
        command,
        cwd=frontend.folder,
        env=dict(frontend.environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SANDBOX_SECONDS,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"codex can make no sandbox here: {done.stderr[-300:]}")


def _home(frontend: DropInFrontend) -> Path:
    return Path(frontend.environment["HOME"])


def _distrust(frontend: DropInFrontend) -> None:
    (_home(frontend) / ".config" / "shim" / "config.toml").unlink()


# -- permission modes ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["default", "plan"])
def test_command_cannot_write_files_in_read_only_modes(
    frontend: DropInFrontend, sandbox: None, mode: str
) -> None:
    run = frontend.run_prompt("[[shell]] touch made.txt", "--permission-mode", mode)
    check_contract(run)
    assert not (frontend.folder / "made.txt").exists()
    assert run.init["permissionMode"] == mode and run.exit == 0
    (result,) = run.tool_results
    assert result["is_error"] is True and "made.txt" in join_result_text(result)
    assert run.result["result"] == REPLY_AFTER_TOOL


@pytest.mark.parametrize("model_name", ["mock-1", PATCHES])
@pytest.mark.parametrize("mode", ["default", "plan"])
def test_patch_is_denied_in_read_only_modes(
    frontend: DropInFrontend, mode: str, model_name: str
) -> None:
    made = frontend.folder / "made.txt"
    run = frontend.run_prompt(f"[[write]] {made}", "--permission-mode", mode, "--model", model_name)
    check_contract(run)
    assert not made.exists() and run.exit == 0
    (call,) = run.tool_uses
    assert call["name"] == "Write" and call["input"] == {"file_path": str(made), "content": WRITTEN}
    (result,) = run.tool_results
    assert result["is_error"] is True and "Write is not allowed" in join_result_text(result)
    (denial,) = run.result["permission_denials"]
    assert (denial["tool_use_id"], denial["tool_input"]) == (call["id"], call["input"])
    assert run.result["is_error"] is False and run.result["result"] == REPLY_AFTER_TOOL


@pytest.mark.parametrize("mode", ["acceptEdits", "bypassPermissions"])
@pytest.mark.parametrize("model_name", ["mock-1", PATCHES])
def test_edit_call_contains_the_complete_old_and_new_text(
    frontend: DropInFrontend, sandbox: None, hello_file: Path, mode: str, model_name: str
) -> None:
    before, after = EDITED
    run = frontend.run_prompt(
        f"[[edit]] {hello_file}", "--permission-mode", mode, "--model", model_name
    )
    check_contract(run)
    assert hello_file.read_text() == f"{after}\nsecond line\n"
    (call,) = run.tool_uses
    assert call["name"] == "Edit"
    assert call["input"] == {
        "file_path": str(hello_file),
        "old_string": f"{before}\nsecond line\n",
        "new_string": f"{after}\nsecond line\n",
    }
    (line,) = (line for line in run.list_lines("user"))
    assert line["tool_use_result"]["oldString"] == call["input"]["old_string"]
    assert "Updated the following files" in join_result_text(run.tool_results[0])


@pytest.mark.parametrize("mode", ["acceptEdits", "bypassPermissions"])
def test_only_bypass_mode_writes_outside_the_working_directory(
    frontend: DropInFrontend, sandbox: None, mode: str
) -> None:
    outside = frontend.folder.parent / "outside.txt"
    run = frontend.run_prompt(f"[[shell]] echo x > {outside}", "--permission-mode", mode)
    check_contract(run)
    assert outside.exists() is (mode == "bypassPermissions")
    (result,) = run.tool_results
    assert bool(result["is_error"]) is (mode != "bypassPermissions")


def test_patch_in_a_resumed_session_is_reported_in_full(
    frontend: DropInFrontend, hello_file: Path
) -> None:
    first = frontend.run_prompt(f"[[edit]] {hello_file}", BYPASS)
    made = hello_file.with_name("made.txt")
    second = frontend.run_prompt(f"[[write]] {made}", BYPASS, "--resume", first.init["session_id"])
    check_contract(second)
    assert first.tool_uses[0]["input"]["old_string"].startswith(EDITED[0])
    (call,) = second.tool_uses
    assert call["name"] == "Write" and call["input"] == {"file_path": str(made), "content": WRITTEN}
    assert second.result["usage"].items() >= usage_of(2).items()


def test_edit_denied_by_a_rule_is_not_made_and_the_turn_completes(
    frontend: DropInFrontend, hello_file: Path
) -> None:
    before = hello_file.read_text()
    run = frontend.run_prompt(f"[[edit]] {hello_file}", BYPASS, "--disallowedTools", "Edit")
    check_contract(run)
    assert hello_file.read_text() == before and run.result["result"] == REPLY_AFTER_TOOL
    (denial,) = run.result["permission_denials"]
    assert denial["tool_name"] == "Edit"


# -- trust -----------------------------------------------------------------------------------------


def test_untrusted_directory_is_refused_before_the_model_is_called(
    frontend: DropInFrontend, model: ScriptedServer
) -> None:
    _distrust(frontend)
    run = frontend.run_prompt("[[text]] hi")
    check_contract(run)
    assert run.exit == 1 and run.result["shim"]["cause"] == "refused"
    (message,) = run.result["errors"]
    assert message.startswith("Not inside a trusted directory"), (
        "nothing of codex's noise is before the reason"
    )
    assert "trust = true under [vendors.codex]" in message
    assert not model.requests


def test_git_repository_is_trusted_without_a_setting(frontend: DropInFrontend) -> None:
    _distrust(frontend)
    for name in ("objects", "refs"):
        (frontend.folder / ".git" / name).mkdir(parents=True)
    (frontend.folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    run = frontend.run_prompt("[[text]] hi")
    check_contract(run)
    assert run.exit == 0 and run.texts == [REPLY]


# -- errors ----------------------------------------------------------------------------------------


def _api_error(run: DropInRun, kind: str, cause: str) -> str:
    """Check a failed request to the model's service. Return the text of the error."""
    check_contract(run)
    assert run.exit == 1 and run.result["is_error"] is True
    assert run.list_lines("assistant")[-1]["error"] == kind
    assert run.result["shim"]["cause"] == cause
    return str(run.result["result"])


def test_rate_limit_error_is_not_retried(frontend: DropInFrontend, model: ScriptedServer) -> None:
    run = frontend.run_prompt("[[error]] 429")
    assert "429 Too Many Requests" in _api_error(run, "rate_limit", "rate_limit")
    assert run.result["api_error_status"] == 429
    assert len(model.list_requests("error")) == 1


def test_server_error_is_retried_and_then_reported(
    frontend: DropInFrontend, model: ScriptedServer
) -> None:
    run = frontend.run_prompt("[[error]] 500")
    assert "high demand" in _api_error(run, "server_error", "vendor_error")
    assert run.result["api_error_status"] is None, "it says no number"
    (retry,) = (line for line in run.list_lines("system") if line["subtype"] == "api_retry")
    assert (retry["attempt"], retry["max_retries"]) == (1, 1)
    assert len(model.list_requests("error")) == 4, (
        "each of two tries is a request that is sent twice"
    )


def test_temporary_server_error_does_not_appear_in_the_reply(
    frontend: DropInFrontend, model: ScriptedServer
) -> None:
    run = frontend.run_prompt("[[once]] 500")
    check_contract(run)
    assert run.exit == 0 and run.texts == [REPLY]
    assert len(model.list_requests("once")) == 2


def test_missing_model_is_named_in_the_error(frontend: DropInFrontend) -> None:
    message = _api_error(frontend.run_prompt("[[error]] 404"), "model_not_found", "vendor_error")
    assert (
        message.startswith("There's an issue with the selected model (mock-1)")
        and ERROR_MESSAGES[404] in message
    )


def test_missing_api_key_error_explains_how_to_log_in(frontend: DropInFrontend) -> None:
    frontend.environment = {**frontend.environment, "MOCK_KEY": ""}
    message = _api_error(frontend.run_prompt("[[text]] hi"), "authentication_failed", "auth")
    assert (
        message.startswith("Not logged in · Please run /login")
        and "hint: run `codex login`" in message
    )
    assert "Missing environment variable" in message


def test_resume_of_a_lost_thread_is_an_error(
    frontend: DropInFrontend, model: ScriptedServer
) -> None:
    first = frontend.run_prompt("[[text]] hi")
    shutil.rmtree(_home(frontend) / ".codex" / "sessions")
    for file in (_home(frontend) / ".codex").glob("*.sqlite*"):
        file.unlink()
    run = frontend.run_prompt("[[text]] hi", "--resume", first.init["session_id"])
    check_contract(run)
    assert run.exit == 1 and "no rollout found for thread id" in run.result["errors"][0]
    assert len(model.requests) == 1


# -- prompts and texts -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prompt", ["-h [[text]] hi", "-", "@hello.txt [[text]] hi", "resume [[text]] hi"]
)
def test_prompt_is_never_parsed_as_a_flag_or_a_command(
    frontend: DropInFrontend, model: ScriptedServer, prompt: str
) -> None:
    run = frontend.run_prompt(prompt)
    check_contract(run)
    assert run.exit == 0
    message = model.requests[-1].messages[-1]
    assert message["content"][0]["text"] == prompt


def test_long_prompt_on_stdin_reaches_the_model_completely(
    frontend: DropInFrontend, model: ScriptedServer
) -> None:
    (frontend.folder.parent / "prompt").write_text("x" * 200_000 + "\n[[text]] hi")
    with (frontend.folder.parent / "prompt").open("rb") as prompt:
        argv = [str(frontend.claude), "-p", "--output-format", "text", *frontend.extra_args]
        done = subprocess.run(
            argv,
            cwd=frontend.folder,
            env=dict(frontend.environment),
            stdin=prompt,
            capture_output=True,
            text=True,
            timeout=90,
            check=True,
        )
    assert done.stdout.strip() == REPLY
    (request,) = model.list_requests("text")
    assert sum(len(part["text"]) for part in request.messages[-1]["content"]) >= 200_000


def test_large_command_output_is_a_single_complete_result(frontend: DropInFrontend) -> None:
    run = frontend.run_prompt("[[shell]] seq 1 30000", BYPASS)
    check_contract(run)
    (result,) = run.tool_results
    text = join_result_text(result)
    assert text.startswith("1\n2\n") and text.rstrip().endswith("30000")


@pytest.mark.full
@pytest.mark.parametrize(
    ("mode", "changes"), [("default", False), ("plan", False), ("acceptEdits", True)]
)
def test_edit_tools_are_listed_only_if_the_sandbox_allows_writes(
    frontend: DropInFrontend, mode: str, changes: bool
) -> None:
    made = frontend.folder / "made.txt"
    run = frontend.run_prompt(f"[[write]] {made}", "--permission-mode", mode)
    assert made.exists() is changes
    assert {"Write", "Edit", "Delete"}.isdisjoint(run.init["tools"]) is not changes
    assert {"Bash", "Task", "TodoWrite"} <= set(run.init["tools"])
