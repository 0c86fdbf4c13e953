"""pi with its RPC, where the frontend is asked: the real program, a scripted model, and a person's
own pi setup.

Real clients test the abilities of every two-way vendor (`test_clients`, `test_dialogs`).
"""

from __future__ import annotations

import json
import os
import select
import shutil
from pathlib import Path

import pytest
from frontend import DropInFrontend
from model_scripts import REPLY, REPLY_AFTER_TOOL, ScriptedServer
from sandbox import TURN_SECONDS, LineProcess
from test_acp import ASKING, FrontendConversation, list_created_files
from vendor_setups import PI, PI_CUMULATIVE

pytestmark = pytest.mark.e2e

STREAM = ("--output-format", "stream-json", "--verbose")
BYPASS = ("--permission-mode", "bypassPermissions")
only_pi = pytest.mark.parametrize("vendor", [PI], ids=str, indirect=True)
both = pytest.mark.parametrize(
    "vendor", [PI, pytest.param(PI_CUMULATIVE, marks=pytest.mark.full)], ids=str, indirect=True
)
full = pytest.mark.full
# A person's own extension. It changes calls, asks questions itself, and has a tool and a command.
EXTENSION = """
import { writeFileSync } from "node:fs";
export default function (pi) {
  const parameters = { type: "object", properties: { text: { type: "string" } } };
  const text = (words) => ({ content: [{ type: "text", text: words }], details: {} });
  pi.registerTool({ name: "own_tool", label: "Own", description: "Makes a file", parameters,
    async execute(_id, { text: name }) { writeFileSync(name, "x"); return text("made"); } });
  pi.registerTool({ name: "own_question", label: "Own", description: "Asks", parameters,
    async execute(_id, _given, _signal, _update, { ui }) { return text(`said ${await ui.confirm("Sure?", "")}`); } });
  pi.registerCommand("own", { description: "x", async handler() { writeFileSync("commanded", "x"); } });
  pi.on("tool_call", ({ toolName, input }) => {
    if (toolName === "bash" && input.command.includes("widen")) input.command = "touch widened";
  });
}
"""


# A program that is pi, except that it does not load the extensions in its arguments.
WITHOUT_EXTENSIONS = """#!/bin/sh
left=$#
while [ "$left" -gt 0 ]; do
  if [ "$1" = -e ]; then shift 2; left=$((left - 2)); else set -- "$@" "$1"; shift; left=$((left - 1)); fi
done
exec {pi} "$@"
"""


@pytest.fixture
def frontend_with_extension(frontend: DropInFrontend) -> DropInFrontend:
    """Add an extension to pi's home."""
    folder = Path(frontend.environment["PI_CODING_AGENT_DIR"]) / "extensions"
    folder.mkdir()
    (folder / "own.js").write_text(EXTENSION)
    return frontend


class SingleMessageConversation(FrontendConversation):
    """A frontend with its message on the command line and its answers on stdin."""

    def __init__(self, frontend: DropInFrontend, *flags: str) -> None:
        argv = [str(frontend.claude), *frontend.extra_args, *flags]
        self.process = LineProcess(argv, frontend.folder, frontend.environment)
        frontend.started.append(self.process)
        self.lines = []


def settings(frontend: DropInFrontend, text: str) -> None:
    config = Path(frontend.environment["HOME"]) / ".config" / "shim" / "config.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(text)


@both
def test_command_is_denied_if_no_permission_prompt_is_available(frontend: DropInFrontend) -> None:
    conversation = FrontendConversation(frontend)
    conversation.send("[[shell]] touch one")
    result = conversation.until("result")
    assert [denial["tool_name"] for denial in result["permission_denials"]] == ["Bash"]
    (init,) = (line for line in conversation.lines if line.get("subtype") == "init")
    assert init["shim"]["unattended"] is False
    assert list_created_files(frontend) == set()


@both
def test_prompt_is_not_sent_if_the_permission_extension_is_missing(
    frontend: DropInFrontend, model: ScriptedServer
) -> None:
    pi = Path(frontend.environment["SHIM_BIN"])
    without = frontend.folder.parent / "pi"
    without.write_text(WITHOUT_EXTENSIONS.format(pi=pi))
    without.chmod(0o755)
    frontend.environment["SHIM_BIN"] = str(without)
    conversation = FrontendConversation(frontend, *ASKING, *BYPASS)
    conversation.send("[[shell]] touch one")
    result = conversation.until("result")
    assert result["is_error"] and "did not load the shim's extension" in json.dumps(result)
    assert model.requests == [] and list_created_files(frontend) == set()


@only_pi
@full
def test_configured_pi_gate_variable_is_ignored(frontend: DropInFrontend) -> None:
    settings(frontend, '[vendors.pi]\nenv = { PI_GATE = "{}" }\n')
    frontend.environment["PI_GATE"] = "{}"
    conversation = FrontendConversation(frontend)
    conversation.send("[[shell]] touch one")
    assert conversation.until("result")["permission_denials"]
    assert list_created_files(frontend) == set()


@only_pi
@full
def test_deny_rule_applies_in_bypass_mode(
    frontend: DropInFrontend,
) -> None:
    conversation = FrontendConversation(frontend, *BYPASS, "--disallowedTools", "Bash(touch:*)")
    conversation.send("[[shell]] true && touch one")
    conversation.until("result")
    conversation.send("[[shell]] mkdir two")
    conversation.until("result")
    assert list_created_files(frontend) == {"two"}


@only_pi
@full
def test_edit_outside_the_working_directory_needs_permission(
    frontend: DropInFrontend,
) -> None:
    conversation = FrontendConversation(frontend, *ASKING, "--permission-mode", "acceptEdits")
    conversation.send("[[write]] in.txt")
    assert conversation.until("result", "can_use_tool")["type"] == "result"
    conversation.send(f"[[write]] {frontend.folder.parent / 'out.txt'}")
    question = conversation.until("can_use_tool")
    assert question["request"]["input"]["file_path"] == str(frontend.folder.parent / "out.txt")
    conversation.answer(question, allow=False)
    conversation.until("result")
    assert (
        list_created_files(frontend) == {"in.txt"}
        and not (frontend.folder.parent / "out.txt").exists()
    )


@both
@full
def test_command_changed_by_another_extension_is_not_run(
    frontend_with_extension: DropInFrontend,
) -> None:
    conversation = FrontendConversation(frontend_with_extension, *ASKING)
    conversation.send("[[shell]] touch one # widen")
    conversation.answer(conversation.until("can_use_tool"), allow=True)
    conversation.until("result")
    assert list_created_files(frontend_with_extension) <= {"one"}
    assert all(failed for _, failed in conversation.results())


@only_pi
@full
def test_tool_of_a_user_extension_needs_permission(frontend_with_extension: DropInFrontend) -> None:
    conversation = FrontendConversation(frontend_with_extension, *ASKING)
    conversation.send('[[call]] own_tool {"text": "one"}')
    question = conversation.until("can_use_tool")
    assert (question["request"]["tool_name"], question["request"]["input"]) == (
        "own_tool",
        {"text": "one"},
    )
    conversation.answer(question, allow=False)
    conversation.until("result")
    conversation.send('[[call]] own_tool {"text": "two"}')
    conversation.answer(conversation.until("can_use_tool"), allow=True)
    conversation.until("result")
    assert list_created_files(frontend_with_extension) == {"two"}


@both
@full
@pytest.mark.parametrize("answer", ["Yes", "No", None])
def test_dialog_of_a_user_extension_becomes_a_user_question(
    frontend_with_extension: DropInFrontend, answer: str | None
) -> None:
    conversation = FrontendConversation(
        frontend_with_extension, *(ASKING if answer else ()), *BYPASS
    )
    conversation.send("[[call]] own_question {}")
    if answer:
        request = conversation.until("can_use_tool")
        assert request["request"]["tool_name"] == "AskUserQuestion"
        (question,) = request["request"]["input"]["questions"]
        request["request"]["input"]["answers"] = {question["question"]: answer}
        conversation.answer(request, allow=True)
    assert conversation.until("result")["result"] == REPLY_AFTER_TOOL
    assert (f"said {answer == 'Yes'}".lower(), False) in conversation.results()


@only_pi
@full
def test_extension_command_is_sent_to_the_model_as_text(
    frontend_with_extension: DropInFrontend, model: ScriptedServer
) -> None:
    conversation = FrontendConversation(frontend_with_extension, *ASKING)
    conversation.send("/own [[text]] hi")
    assert conversation.until("result")["result"] == REPLY
    assert list_created_files(frontend_with_extension) == set() and "\\\\/own" in json.dumps(
        model.requests[-1].body
    )


@only_pi
@full
def test_project_extensions_are_not_loaded(frontend: DropInFrontend) -> None:
    folder = frontend.folder / ".pi" / "extensions"
    folder.mkdir(parents=True)
    (folder / "own.js").write_text(
        EXTENSION.replace("export default", 'writeFileSync("brought", "x");\nexport default')
    )
    conversation = FrontendConversation(frontend, *ASKING)
    conversation.send("[[text]] hi")
    assert conversation.until("result")["result"] == REPLY
    shutil.rmtree(frontend.folder / ".pi")
    assert list_created_files(frontend) == set()


@both
@full
def test_message_during_a_turn_steers_the_running_turn(
    frontend: DropInFrontend, model: ScriptedServer
) -> None:
    conversation = FrontendConversation(frontend, *ASKING)
    conversation.send("[[shell]] touch one")
    question = conversation.until("can_use_tool")
    conversation.send("[[text]] rather say this")
    conversation.answer(question, allow=True)
    assert conversation.until("result")["result"] == REPLY
    body = json.dumps(model.requests[-1].body)
    assert "rather say this" in body and "touch one" in body
    assert (
        list_created_files(frontend) == {"one"}
        and sum(line["type"] == "result" for line in conversation.lines) == 1
    )


@both
@full
def test_interrupt_ends_the_command_and_the_next_message_is_answered(
    frontend: DropInFrontend,
) -> None:
    conversation = FrontendConversation(frontend, *ASKING)
    os.mkfifo(frontend.folder / "begun")
    fifo = os.open(frontend.folder / "begun", os.O_RDONLY | os.O_NONBLOCK)
    conversation.send("[[shell]] echo now > begun; sleep 30")
    conversation.answer(conversation.until("can_use_tool"), allow=True)
    assert select.select([fifo], [], [], TURN_SECONDS)[0]
    os.close(fifo)
    conversation.order(subtype="interrupt")
    assert conversation.until("result")["subtype"] == "error_during_execution"
    conversation.send("[[shell]] touch two")
    conversation.answer(conversation.until("can_use_tool"), allow=True)
    assert conversation.until("result")["result"] == REPLY_AFTER_TOOL
    assert list_created_files(frontend) == {"begun", "two"}


@only_pi
@full
def test_api_error_fails_the_turn_and_the_next_turn_succeeds(
    frontend: DropInFrontend,
) -> None:
    conversation = FrontendConversation(frontend)
    conversation.send("[[error]] 401")
    assert conversation.until("result")["is_error"]
    conversation.send("[[once]] 500")
    result = conversation.until("result")
    assert result["result"] == REPLY
    assert any(line.get("subtype") == "api_retry" for line in conversation.lines)


@both
@full
def test_conversation_continues_after_a_compaction(frontend: DropInFrontend) -> None:
    folder = Path(frontend.environment["PI_CODING_AGENT_DIR"])
    models = json.loads((folder / "models.json").read_text())
    for model_entry in models["providers"]["mock"]["models"]:
        model_entry["contextWindow"] = 1100
    (folder / "models.json").write_text(json.dumps(models))
    compaction = {"enabled": True, "reserveTokens": 1000, "keepRecentTokens": 20}
    original_settings = json.loads((folder / "settings.json").read_text())
    (folder / "settings.json").write_text(
        json.dumps({**original_settings, "compaction": compaction})
    )
    conversation = FrontendConversation(frontend)
    for text in ("one", "two", "three"):
        conversation.send(f"[[text]] {text}")
        assert conversation.until("result")["result"] == REPLY
    assert any(line.get("subtype") == "compact_boundary" for line in conversation.lines)


@only_pi
@full
def test_single_prompt_with_permission_prompts_requests_permission(
    frontend: DropInFrontend,
) -> None:
    conversation = SingleMessageConversation(
        frontend, "-p", "[[shell]] touch one", *STREAM, *ASKING
    )
    conversation.answer(conversation.until("can_use_tool"), allow=False)
    conversation.until("result")
    assert list_created_files(frontend) == set()
