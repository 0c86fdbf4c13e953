"""Behaviour that only copilot has: its permission flags, its sessions, its errors."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from frontend import END_SECONDS, DropInFrontend, check_contract, join_result_text
from model_scripts import ERROR_MESSAGES, REPLY, REPLY_AFTER_TOOL
from model_server import ModelServer
from sandbox import wait_until
from test_acp import ASKING, FrontendConversation
from test_scenarios import BYPASS, PARTIAL, is_text_delta
from vendor_setups import COPILOT

pytestmark = [pytest.mark.e2e, pytest.mark.parametrize("vendor", [COPILOT], indirect=True, ids=str)]

LONG = "[[text]] " + "many words " * 10_000 + "end"  # longer than an argument of the drop-in
DISCONNECT_SECONDS = 30.0


def get_created_file(frontend: DropInFrontend) -> Path:
    """Return the file that a script creates."""
    return frontend.folder / "made.txt"


@pytest.mark.full  # a scenario of every vendor sends the same prompts, as the SDKs do
@pytest.mark.parametrize(
    "prompt", ["-h [[text]]", "@hello.txt [[text]]", LONG], ids=["-h", "@", "long"]
)
def test_prompt_like_a_flag_or_a_file_and_a_long_prompt_reach_the_model(
    frontend: DropInFrontend, model: ModelServer, prompt: str
) -> None:
    run = frontend.run_prompt(prompt)
    check_contract(run)
    assert run.exit == 0 and len(run.texts) == 1
    (request,) = model.requests
    assert prompt in json.dumps(request.messages[-1])


def test_accept_edits_mode_does_not_allow_commands(frontend: DropInFrontend) -> None:
    command = "python3 -c \"open('made.txt', 'w')\""
    run = frontend.run_prompt(f"[[shell]] {command}", "--permission-mode", "acceptEdits")
    check_contract(run)
    assert not get_created_file(frontend).exists()
    (denial,) = run.result["permission_denials"]
    assert denial["tool_name"] == "Bash"


def test_bypass_mode_allows_files_outside_the_working_directory(
    frontend: DropInFrontend, hello_file: Path
) -> None:
    """`--allow-all-tools` alone refuses them."""
    other = Path(frontend.environment["HOME"]) / "other.txt"
    other.write_text("a file of another folder\n")
    run = frontend.run_prompt(f"[[read]] {other}", BYPASS)
    check_contract(run)
    assert "a file of another folder" in join_result_text(run.tool_results[0])


def test_copilot_allow_all_variable_does_not_widen_permissions(
    frontend: DropInFrontend,
) -> None:
    frontend.environment = {**frontend.environment, "COPILOT_ALLOW_ALL": "true"}
    run = frontend.run_prompt(f"[[write]] {get_created_file(frontend)}")
    check_contract(run)
    assert not get_created_file(frontend).exists() and run.tool_results[0]["is_error"] is True


def test_disallowed_tool_is_not_offered_to_the_model_in_bypass_mode(
    frontend: DropInFrontend, model: ModelServer
) -> None:
    """`--deny-tool bash` would be accepted, but would deny nothing."""
    run = frontend.run_prompt("[[text]] hi", BYPASS, "--disallowedTools", "Bash")
    check_contract(run)
    (request,) = model.requests
    assert "bash" not in request.offered and "view" in request.offered


@pytest.mark.parametrize(
    ("name", "tools"),
    [("mock-1", {"edit", "create", "grep"}), ("gpt-5.1-codex", {"apply_patch", "rg"})],
)
def test_disallowed_tools_are_removed_under_model_specific_names(
    frontend: DropInFrontend, model: ModelServer, name: str, tools: set[str]
) -> None:
    check_contract(frontend.run_prompt("[[text]] hi", BYPASS, "--model", name))
    check_contract(
        frontend.run_prompt(
            "[[text]] hi", BYPASS, "--model", name, "--disallowedTools", "Edit,Write,Grep"
        )
    )
    every, fewer = (request.offered for request in model.requests)
    assert tools <= set(every) and tools.isdisjoint(fewer) and "view" in fewer


def test_persistent_server_error_is_an_api_error_after_five_retries(
    frontend: DropInFrontend,
) -> None:
    """Five retries take 17 seconds; a 429 takes a minute."""
    run = frontend.run_prompt("[[error]] 500")
    check_contract(run)
    assert run.exit == 1
    assert run.result["api_error_status"] == 500 and ERROR_MESSAGES[500] in run.result["result"]
    assert run.list_lines("assistant")[-1]["error"] == "server_error"
    retries = [line for line in run.list_lines("system") if line["subtype"] == "api_retry"]
    assert len(retries) == 5


def test_missing_login_error_explains_how_to_log_in(frontend: DropInFrontend) -> None:
    frontend.environment = {
        name: value
        for name, value in frontend.environment.items()
        if not name.startswith("COPILOT_")
    }
    run = frontend.run_prompt("[[text]] hi")
    check_contract(run)
    assert run.exit == 1 and run.result["shim"]["cause"] == "auth"
    assert "/login" in run.result["result"]


def test_session_interrupted_during_its_first_reply_can_be_resumed(
    frontend: DropInFrontend, model: ModelServer
) -> None:
    """copilot reports its id only in its last line. The frontend's id is also copilot's id."""
    session = str(uuid.uuid4())
    process = frontend.start_run("[[slow]] hi", PARTIAL, "--session-id", session)
    process.read_until(is_text_delta)
    process.interrupt()
    assert process.finish(END_SECONDS).init["session_id"] == session
    assert wait_until(
        lambda: model.list_requests("slow")[0].client_left.is_set(), DISCONNECT_SECONDS
    )
    run = frontend.run_prompt("[[text]] and again", "--resume", session)
    check_contract(run)
    assert run.result["result"] == REPLY and run.init["session_id"] == session
    assert "[[slow]] hi" in json.dumps(model.requests[-1].messages)


def test_trusted_directory_runs_hooks_in_a_new_session_that_can_be_resumed(
    frontend: DropInFrontend, model: ModelServer
) -> None:
    """The folder's hooks run only in a new session: copilot does not trust a folder when it resumes
    a session.
    """
    home_folder = Path(frontend.environment["HOME"])
    hooks = frontend.folder / ".github" / "hooks" / "x.json"
    hooks.parent.mkdir(parents=True)
    hook = {"type": "command", "bash": "touch $HOME/hooked"}
    hooks.write_text(json.dumps({"version": 1, "hooks": {"sessionStart": [hook]}}))
    check_contract(frontend.run_prompt("[[text]] hi"))
    assert not (home_folder / "hooked").exists()
    (home_folder / ".config" / "shim").mkdir(parents=True)
    (home_folder / ".config" / "shim" / "config.toml").write_text(
        "[vendors.copilot]\ntrust = true\n"
    )
    session = str(uuid.uuid4())
    first = frontend.run_prompt("[[text]] hi there", "--session-id", session)
    check_contract(first)
    assert first.result["result"] == REPLY and (home_folder / "hooked").exists()
    second = frontend.run_prompt("[[text]] and again", "--resume", session)
    check_contract(second)
    assert second.result["result"] == REPLY
    assert first.init["session_id"] == second.init["session_id"] == session
    assert "[[text]] hi there" in json.dumps(model.requests[-1].messages)


@pytest.mark.full
def test_interrupted_session_in_a_trusted_directory_can_be_resumed(
    frontend: DropInFrontend, model: ModelServer
) -> None:
    config = Path(frontend.environment["HOME"]) / ".config" / "shim" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("[vendors.copilot]\ntrust = true\n")
    session = str(uuid.uuid4())
    process = frontend.start_run("[[slow]] hi", PARTIAL, "--session-id", session)
    process.read_until(is_text_delta)
    process.interrupt()
    assert process.finish(END_SECONDS).init["session_id"] == session
    run = frontend.run_prompt("[[text]] and again", "--resume", session)
    check_contract(run)
    assert run.result["result"] == REPLY and run.init["session_id"] == session


def test_commands_of_the_project_that_a_flag_excludes_are_reported(
    frontend: DropInFrontend, model: ModelServer
) -> None:
    """copilot itself reads them as its skills."""
    folder = frontend.folder / ".claude" / "commands"
    folder.mkdir(parents=True)
    (folder / "greet.md").write_text("[[text]] hello from a file\n")
    run = frontend.run_prompt("/greet", "--setting-sources", "user")
    check_contract(run)
    assert "hello from a file" in json.dumps(model.requests[-1].messages)
    (entry,) = run.init["shim"]["not_honoured"]
    assert entry["what"] == "--setting-sources for commands and skills"
    assert str(folder) in entry["reason"] and entry["reason"] in run.stderr
    assert "not_honoured" not in frontend.run_prompt("[[text]] hi").init["shim"]


def test_shell_result_contains_only_the_output_of_the_command(frontend: DropInFrontend) -> None:
    run = frontend.run_prompt("[[shell]] echo what it says", BYPASS)
    check_contract(run)
    assert join_result_text(run.tool_results[0]) == "what it says"
    assert run.result["result"] == REPLY_AFTER_TOOL


@pytest.mark.full
@pytest.mark.parametrize("mode", ["default", "dontAsk", "plan"])
@pytest.mark.parametrize("how", ["list", "gaps", "text"])
def test_search_of_several_paths_needs_permission_for_an_outside_path(
    frontend: DropInFrontend, mode: str, how: str
) -> None:
    """copilot asks about the path outside. In a text argument a space separates two paths."""
    outside = frontend.folder.parent / "outside"
    outside.mkdir()
    (outside / "elsewhere.txt").write_text("hello from elsewhere\n")
    places = {
        "list": ["hello.txt", str(outside)],
        "gaps": ["hello.txt", None, str(outside)],
        "text": f"hello.txt {outside}",
    }[how]
    conversation = FrontendConversation(frontend, *ASKING, "--permission-mode", mode)
    conversation.send(
        f"[[call]] grep {json.dumps({'pattern': 'hello', 'output_mode': 'content', 'paths': places})}"
    )
    line = conversation.until("can_use_tool", "result")
    assert (line["type"] != "result") is (mode != "dontAsk")
    if line["type"] != "result":
        assert str(outside) in line["request"]["input"]["path"]
        conversation.answer(line, allow=False)
        conversation.until("result")
    [(text, is_error)] = conversation.results()
    assert is_error
    assert "elsewhere.txt" not in text
