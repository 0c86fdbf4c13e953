"""Agents that ask the frontend for permission, most of them through their protocol: real programs,
a scripted model.

`test_scenarios` covers their one-shot mode, together with every other vendor.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from frontend import DropInFrontend
from model_scripts import REPLY, REPLY_AFTER_TOOL, ScriptedServer
from permission_rows import BYPASS
from sandbox import Line, LineProcess
from vendor_setups import CODEX, COPILOT, GEMINI, KIMI, OPENCODE, PI, QWEN, Vendor

pytestmark = pytest.mark.e2e

TALK = ("--verbose", "--input-format", "stream-json", "--output-format", "stream-json")
ASKING = ("--permission-prompt-tool", "stdio")
SAVING = (CODEX, COPILOT, GEMINI, OPENCODE, KIMI, QWEN)
FULL = [pytest.param(vendor, marks=pytest.mark.full) for vendor in (OPENCODE, KIMI, COPILOT, CODEX)]
each = pytest.mark.parametrize("vendor", [GEMINI, *FULL], ids=str, indirect=True)
allows = pytest.mark.parametrize(
    "vendor", [GEMINI, KIMI, COPILOT, *FULL[:1]], ids=str, indirect=True
)
denies = pytest.mark.parametrize("vendor", [GEMINI, COPILOT, *FULL[:2]], ids=str, indirect=True)


class FrontendConversation:
    """A frontend that stores permission requests and answers them on command."""

    def __init__(self, frontend: DropInFrontend, *flags: str) -> None:
        argv = [str(frontend.claude), *TALK, *frontend.extra_args, *flags]
        self.process = LineProcess(argv, frontend.folder, frontend.environment)
        frontend.started.append(self.process)
        self.lines: list[Line] = []

    def send(self, text: str) -> None:
        self.process.send({"type": "user", "message": {"role": "user", "content": text}})

    def order(self, **request: str) -> None:
        self.process.send({"type": "control_request", "request_id": "order", "request": request})

    def until(self, *kinds: str) -> Line:
        """Return the next line of one of these types; `can_use_tool` is a permission request."""
        while True:
            line = self.process.read_until(lambda line: True)
            self.lines.append(line)
            kind = line["request"]["subtype"] if line["type"] == "control_request" else line["type"]
            if kind in kinds:
                return line

    def answer(self, question: Line, *, allow: bool) -> None:
        allowed: Line = {"behavior": "allow", "updatedInput": question["request"]["input"]}
        answer = allowed if allow else {"behavior": "deny", "message": "rather not"}
        response = {"subtype": "success", "request_id": question["request_id"], "response": answer}
        self.process.send({"type": "control_response", "response": response})

    def results(self) -> list[tuple[str, bool]]:
        """Return the tool results, and whether they are errors."""
        blocks = [
            block
            for line in self.lines
            if line["type"] == "user"
            for block in line["message"]["content"]
        ]
        return [
            (block["content"], block["is_error"])
            for block in blocks
            if block["type"] == "tool_result"
        ]


def list_created_files(frontend: DropInFrontend) -> set[str]:
    return {path.name for path in Path(frontend.folder).iterdir()} - {"hello.txt"}


@allows
def test_tool_call_runs_only_after_the_frontend_allows_the_call(
    frontend: DropInFrontend, vendor: Vendor
) -> None:
    conversation = FrontendConversation(frontend, *ASKING)
    conversation.send("[[shell]] touch one")
    question = conversation.until("can_use_tool")
    assert question["request"]["input"]["command"] == "touch one"
    assert list_created_files(frontend) == set()
    conversation.answer(question, allow=True)
    assert conversation.until("result")["result"] == REPLY_AFTER_TOOL
    assert list_created_files(frontend) == {"one"}
    (init,) = (line for line in conversation.lines if line.get("subtype") == "init")
    assert init["shim"]["unattended"] is (vendor is KIMI), "kimi-cli reads any file without asking"
    assert ("Task" in init["tools"]) is (vendor in (CODEX, COPILOT, KIMI)), (
        "of others nobody would hear what a subagent asks"
    )


@denies
def test_model_continues_after_a_denied_tool_call(frontend: DropInFrontend) -> None:
    conversation = FrontendConversation(frontend, *ASKING)
    conversation.send("[[shell]] touch one")
    conversation.answer(conversation.until("can_use_tool"), allow=False)
    assert conversation.until("result")["result"] == REPLY_AFTER_TOOL
    assert conversation.results() == [("rather not", True)]
    assert list_created_files(frontend) == set()


@each
def test_tool_call_is_denied_without_a_permission_prompt_tool(frontend: DropInFrontend) -> None:
    conversation = FrontendConversation(frontend)
    conversation.send("[[shell]] touch one")
    result = conversation.until("result")
    assert [denial["tool_name"] for denial in result["permission_denials"]] == ["Bash"]
    assert list_created_files(frontend) == set()


@each
def test_deny_rule_applies_in_bypass_mode(frontend: DropInFrontend, vendor: Vendor) -> None:
    rules = ("--disallowedTools", "Bash(touch:*)", "Bash(echo:*)")
    conversation = FrontendConversation(frontend, *BYPASS, *rules)
    conversation.send("[[shell]] true && touch one")
    result = conversation.until("result")
    if vendor is KIMI:  # its subagents do not ask
        assert "cannot enforce Bash(touch:*)" in result["errors"][0]
        return
    assert [denial["tool_name"] for denial in result["permission_denials"]] == ["Bash"]
    conversation.send("[[shell]] mkdir two")
    conversation.until("result")
    assert list_created_files(frontend) == {"two"}
    conversation.send("[[shell]] echo out")  # a program may run a read-only command without asking
    assert conversation.until("result")["result"] == REPLY_AFTER_TOOL
    assert ("out", False) not in conversation.results()


@pytest.mark.parametrize(
    "vendor", [OPENCODE, pytest.param(GEMINI, marks=pytest.mark.full)], ids=str, indirect=True
)
def test_shell_line_without_a_program_requires_permission(frontend: DropInFrontend) -> None:
    """opencode itself does not ask about these lines."""
    frontend.environment["OPENCODE_PURE"] = "1"  # a user's setting, which disables plugins
    conversation = FrontendConversation(frontend, *ASKING)
    for line in ("> one", "cd . > one", "export -p > one"):
        conversation.send(f"[[shell]] {line}")
        question = conversation.until("can_use_tool", "result")
        assert question["type"] == "control_request", f"{line} ran without a prompt"
        assert question["request"]["input"]["command"].endswith(line)
        conversation.answer(question, allow=False)
        conversation.until("result")
    assert list_created_files(frontend) == set()
    conversation.send("[[shell]] > one")
    conversation.answer(conversation.until("can_use_tool"), allow=True)
    assert conversation.until("result")["result"] == REPLY_AFTER_TOOL
    assert list_created_files(frontend) == {"one"}


@each
def test_frontend_hook_denies_a_tool_call_in_bypass_mode(
    frontend: DropInFrontend,
) -> None:
    conversation = FrontendConversation(frontend, *BYPASS)
    hooks = {"PreToolUse": [{"matcher": "Bash", "hookCallbackIds": ["h"]}]}
    request = {"subtype": "initialize", "hooks": hooks}
    conversation.process.send(
        {"type": "control_request", "request_id": "begin", "request": request}
    )
    denial = {
        "hookEventName": "PreToolUse",
        "permissionDecision": "deny",
        "permissionDecisionReason": "rather not",
    }
    for command in ("touch one", "echo out"):  # a program may run `echo` without asking
        conversation.send(f"[[shell]] {command}")
        hook_request = conversation.until("hook_callback", "result")
        assert hook_request["type"] == "control_request", f"{command} ran without the hook"
        answer = {
            "subtype": "success",
            "request_id": hook_request["request_id"],
            "response": {"hookSpecificOutput": denial},
        }
        conversation.process.send({"type": "control_response", "response": answer})
        assert conversation.until("result")["subtype"] == "success", "the model goes on"
    assert list_created_files(frontend) == set()
    assert ("out", False) not in conversation.results()


@each
def test_accept_edits_mode_prompts_outside_the_working_directory(
    frontend: DropInFrontend,
) -> None:
    conversation = FrontendConversation(frontend, *ASKING, "--permission-mode", "acceptEdits")
    conversation.send(f"[[write]] {Path(frontend.folder) / 'in.txt'}")
    assert conversation.until("result", "can_use_tool")["type"] == "result"
    conversation.send("[[shell]] touch ../out.txt")
    conversation.answer(conversation.until("can_use_tool"), allow=False)
    conversation.until("result")
    assert list_created_files(frontend) == {"in.txt"}
    assert not (Path(frontend.folder).parent / "out.txt").exists()


@each
def test_message_after_an_interrupt_is_answered(frontend: DropInFrontend) -> None:
    conversation = FrontendConversation(frontend, *ASKING, "--include-partial-messages")
    conversation.send("[[slow]]")
    conversation.until("stream_event")
    conversation.order(subtype="interrupt")
    assert conversation.until("result")["subtype"] == "error_during_execution"
    conversation.send("[[text]] hi")
    assert conversation.until("result")["result"] == REPLY


@each
def test_third_request_to_the_model_contains_the_first_message(
    frontend: DropInFrontend, model: ScriptedServer
) -> None:
    conversation = FrontendConversation(frontend, *ASKING)
    for prompt in ("[[text]] one", "[[text]] two", "[[text]] three"):
        conversation.send(prompt)
        assert conversation.until("result")["result"] == REPLY
    assert "[[text]] one" in json.dumps(model.requests[-1].body)


@pytest.mark.parametrize(
    "vendor",
    [PI, *(pytest.param(vendor, marks=pytest.mark.full) for vendor in SAVING)],
    ids=str,
    indirect=True,
)
def test_session_resumes_between_print_mode_and_conversation(
    frontend: DropInFrontend, model: ScriptedServer
) -> None:
    """One message resumes a session of a conversation, and a conversation resumes a one-shot
    session.
    """
    alone = frontend.run_prompt("[[text]] one")
    talk = FrontendConversation(frontend, *ASKING, "--resume", alone.init["session_id"])
    talk.send("[[text]] two")
    result = talk.until("result")
    assert (result["result"], result["session_id"]) == (REPLY, alone.init["session_id"])
    talk.process.close_stdin()
    talk.process.read_to_end()
    last = frontend.run_prompt("[[text]] three", "--resume", result["session_id"])
    assert last.result["result"] == REPLY, last.result
    request_body = json.dumps(model.list_requests("text")[-1].body)
    assert "[[text]] one" in request_body and "[[text]] two" in request_body


@pytest.mark.parametrize("vendor", [QWEN], ids=str, indirect=True)
def test_minimal_acp_profile_supports_permission_prompts(
    frontend: DropInFrontend,
) -> None:
    folder = Path(frontend.environment["HOME"]) / ".config" / "shim"
    (folder / "vendors").mkdir(parents=True)
    (folder / "config.toml").touch()
    profile = 'schema = 1\nid = "mine"\nprotocol = "acp"\n[launch]\ncommand = ["qwen", "--acp"]\n'
    asks = '[acp]\nasks = ["Bash", "Edit", "Write"]\nmodes = { default = "default" }\n'
    (folder / "vendors" / "mine.toml").write_text(profile + asks)
    frontend.environment["SHIM_VENDOR"] = "mine"
    conversation = FrontendConversation(frontend, *ASKING)
    conversation.send("[[shell]] touch one")
    conversation.answer(conversation.until("can_use_tool"), allow=True)
    assert conversation.until("result")["result"] == REPLY_AFTER_TOOL
    assert list_created_files(frontend) == {"one"}


@pytest.mark.full
@pytest.mark.parametrize("vendor", [KIMI], ids=str, indirect=True)
def test_missing_login_falls_back_to_print_mode_only_in_bypass_mode(
    frontend: DropInFrontend,
) -> None:
    (Path(frontend.environment["HOME"]) / ".kimi" / "credentials" / "kimi-code.json").unlink()
    asking = FrontendConversation(frontend, *ASKING)
    asking.send("[[shell]] touch one")
    assert "Authentication required" in json.dumps(asking.until("result"))
    assert list_created_files(frontend) == set()
    bypassing = FrontendConversation(frontend, "--permission-mode", "bypassPermissions")
    bypassing.send("[[shell]] touch two")
    assert bypassing.until("result")["result"] == REPLY_AFTER_TOOL
    (init,) = (line for line in bypassing.lines if line.get("subtype") == "init")
    assert [attempt["cause"] for attempt in init["shim"]["tried"]] == ["auth"]
    assert list_created_files(frontend) == {"two"}


@pytest.mark.full
@pytest.mark.parametrize("vendor", [OPENCODE], ids=str, indirect=True)
def test_todo_list_call_contains_its_items(frontend: DropInFrontend) -> None:
    todo = {"content": "look", "status": "pending", "priority": "high"}
    conversation = FrontendConversation(frontend, *ASKING)
    conversation.send(f"[[call]] todowrite {json.dumps({'todos': [todo]})}")
    assert conversation.until("result")["result"] == REPLY_AFTER_TOOL
    blocks = [
        block
        for line in conversation.lines
        if line["type"] == "assistant"
        for block in line["message"]["content"]
    ]
    (todo_input,) = (block["input"] for block in blocks if block.get("name") == "TodoWrite")
    assert [item["content"] for item in todo_input["todos"]] == ["look"]


@pytest.mark.parametrize(
    "vendor", [COPILOT, pytest.param(OPENCODE, marks=pytest.mark.full)], ids=str, indirect=True
)
def test_write_outside_the_working_directory_prompts_once_with_its_content(
    frontend: DropInFrontend,
) -> None:
    file = Path(frontend.folder).parent / "out.txt"
    conversation = FrontendConversation(frontend, *ASKING)
    conversation.send(f"[[write]] {file}")
    question = conversation.until("can_use_tool")
    assert (
        question["request"]["input"]["file_path"] == str(file)
        and question["request"]["input"]["content"]
    )
    conversation.answer(question, allow=True)
    assert conversation.until("result")["result"] == REPLY_AFTER_TOOL
    assert file.exists()


@pytest.mark.full
@pytest.mark.parametrize("vendor", [GEMINI], ids=str, indirect=True)
def test_gemini_asks_outside_the_working_directory_only_with_add_dir(
    frontend: DropInFrontend,
) -> None:
    other_folder = Path(frontend.folder).parent / "elsewhere"
    other_folder.mkdir()
    file = other_folder / "out.txt"
    conversation = FrontendConversation(frontend, *ASKING)
    conversation.send(f"[[write]] {file}")
    assert conversation.until("result", "can_use_tool")["type"] == "result"
    assert "add its folder with --add-dir" in json.dumps(conversation.lines)
    conversation = FrontendConversation(frontend, *ASKING, "--add-dir", str(other_folder))
    conversation.send(f"[[write]] {file}")
    conversation.answer(conversation.until("can_use_tool"), allow=True)
    assert conversation.until("result")["result"] == REPLY_AFTER_TOOL
    assert file.exists()


@pytest.mark.full
@pytest.mark.parametrize("vendor", [OPENCODE], ids=str, indirect=True)
def test_command_in_another_directory_is_not_allowed_as_read_only(
    frontend: DropInFrontend,
) -> None:
    other_folder = Path(frontend.folder).parent / "elsewhere"
    other_folder.mkdir()
    (other_folder / "k").write_text("heron")
    conversation = FrontendConversation(frontend, "--permission-mode", "dontAsk")
    tool_input = {"command": "cat k", "workdir": str(other_folder), "description": "look"}
    conversation.send(f"[[call]] bash {json.dumps(tool_input)}")
    assert conversation.until("result")["result"] == REPLY_AFTER_TOOL
    assert "heron" not in json.dumps(conversation.lines)
