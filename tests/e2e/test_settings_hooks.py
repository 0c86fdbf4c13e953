"""The hooks of Claude's settings files run with the drop-in as with the real claude.

The permission table lists which vendor runs PreToolUse hooks. The tests of these hooks check the
input of a hook, that a hook can change a call, and that the change leaves no trace.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from frontend import DropInFrontend, DropInRun, check_contract
from model_scripts import REPLY, ScriptedServer
from permission_rows import BYPASS, MADE, build_hook_settings
from programs import install_program
from sandbox import Line
from test_acp import FrontendConversation
from test_hook_feedback import build_context, count_in_last_request
from vendor_setups import CLAUDE_ITSELF, CODEX, COPILOT, GEMINI, OPENCODE, PI, QWEN, Vendor

pytestmark = pytest.mark.e2e
HOOK_INPUT_FILE = "told.json"
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

full = pytest.mark.full
in_conversations = pytest.mark.parametrize(
    "vendor",
    [QWEN, *(pytest.param(vendor, marks=full) for vendor in (CODEX, PI, GEMINI, CLAUDE_ITSELF))],
    indirect=True,
    ids=str,
)
with_a_single_message = pytest.mark.parametrize(
    "vendor",
    [CODEX, *(pytest.param(vendor, marks=full) for vendor in (QWEN, PI, CLAUDE_ITSELF))],
    indirect=True,
    ids=str,
)
EVENTS = (
    "SessionStart",
    "UserPromptSubmit",
    "PostToolUse",
    "PostToolUseFailure",
    "Stop",
    "SessionEnd",
)
LOG = "events.log"
# Blocks the end of a turn that no hook has continued yet.
STOP_ONCE = (
    """grep -q '"stop_hook_active": *false' && { echo run the tests >&2; exit 2; }; exit 0"""
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
            f'cat > "$HOME/{HOOK_INPUT_FILE}"; pwd >&2; echo "in $CLAUDE_PROJECT_DIR" >&2; exit 2'
        ),
    )
    run = frontend.run_prompt(f"[[shell]] touch {MADE}", *BYPASS)
    assert not (frontend.folder / MADE).exists()
    hook_input = json.loads((home_folder / HOOK_INPUT_FILE).read_text())
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
        frontend, vendor, build_hook_settings(f'cat > "$HOME/{HOOK_INPUT_FILE}"', "Write|Edit")
    )
    path_argument = (
        MADE if vendor.relative_paths or vendor is CODEX else str(frontend.folder / MADE)
    )
    frontend.run_prompt(f"[[write]] {path_argument}", *BYPASS)
    assert (frontend.folder / MADE).exists()
    hook_input = json.loads((home_folder / HOOK_INPUT_FILE).read_text())
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


# -- the hooks of other events ---------------------------------------------------------------------


def build_event_hooks(**commands: str) -> dict[str, Any]:
    """Return settings in which each event has one hook command."""
    return {
        "hooks": {
            event: [{"hooks": [{"type": "command", "command": command}]}]
            for event, command in commands.items()
        }
    }


def log_events(*events: str) -> dict[str, Any]:
    """Return settings whose hooks write their input to the log."""
    return build_event_hooks(**dict.fromkeys(events, f'cat >> "$HOME/{LOG}"'))


def read_log(home_folder: Path) -> list[Line]:
    text = (home_folder / LOG).read_text()
    decoder = json.JSONDecoder()
    inputs = []
    while text := text.strip():
        hook_input, end = decoder.raw_decode(text)
        inputs.append(hook_input)
        text = text[end:]
    return inputs


def converse(frontend: DropInFrontend, *prompts: str) -> DropInRun:
    """Run a conversation. Each message is sent after the previous result."""
    conversation = FrontendConversation(frontend)
    for prompt in prompts:
        conversation.send(prompt)
        conversation.until("result")
    process = conversation.process
    process.close_stdin()
    status = process.read_to_end()
    return DropInRun(process.lines, status, process.stderr)


def list_run_hooks(run: DropInRun) -> list[tuple[str, str]]:
    return [
        (line["subtype"], line["hook_name"])
        for line in run.list_lines("system")
        if line["subtype"].startswith("hook_")
    ]


@in_conversations
def test_hooks_of_all_events_run_in_a_conversation(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor
) -> None:
    home_folder = settings(frontend, vendor, log_events(*EVENTS))
    frontend.extra_args = BYPASS
    # qwen loses the output of a command that exits at once, if the machine is busy.
    shell_prompt = "[[shell]] echo out; sleep 0.5"
    run = converse(frontend, shell_prompt, "/clear", "[[text]] hello")
    inputs = read_log(home_folder)
    assert [hook_input["hook_event_name"] for hook_input in inputs] == [
        *("SessionStart", "UserPromptSubmit", "PostToolUse", "Stop", "SessionEnd"),
        *("SessionStart", "UserPromptSubmit", "Stop", "SessionEnd"),
    ]
    start, prompt, result, stop, end, restart, *_, last = inputs
    assert (start["source"], end["reason"]) == ("startup", "clear")
    assert (restart["source"], last["reason"]) == ("clear", "other")
    assert prompt["prompt"] == shell_prompt
    assert (result["tool_name"], result["tool_response"]["stdout"]) == ("Bash", "out")
    assert stop["stop_hook_active"] is False
    assert len({start["session_id"], end["session_id"]}) == 1
    assert restart["session_id"] == last["session_id"] != start["session_id"]
    assert list_run_hooks(run) == [
        ("hook_started", "SessionStart:startup"),
        ("hook_response", "SessionStart:startup"),
        ("hook_started", "SessionStart:clear"),
        ("hook_response", "SessionStart:clear"),
    ]


@in_conversations
def test_hooks_add_context_and_continue_the_turn(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor
) -> None:
    context = json.dumps(build_context("UserPromptSubmit", "it rains"))
    commands = {
        "SessionStart": "echo monday",
        "UserPromptSubmit": f"echo '{context}'",
        "Stop": STOP_ONCE,
    }
    settings(frontend, vendor, build_event_hooks(**commands))
    run = frontend.run_messages("[[text]] hello")
    assert (run.result["result"], run.result["num_turns"]) == (REPLY, 2)
    assert count_in_last_request(model, "SessionStart:startup hook success: monday") == 1
    assert count_in_last_request(model, "UserPromptSubmit hook additional context: it rains") == 1
    assert count_in_last_request(model, "Stop hook feedback:") == 1
    (feedback,) = [line for line in run.lines if line.get("isSynthetic")]
    assert feedback["message"]["content"][0]["text"] == (
        f"Stop hook feedback:\n[{STOP_ONCE}]: run the tests\n"
    )


@in_conversations
def test_hooks_of_a_tool_result_reach_the_model(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor
) -> None:
    settings(frontend, vendor, build_event_hooks(PostToolUse="echo lint failed >&2; exit 2"))
    frontend.extra_args = BYPASS
    run = frontend.run_messages("[[shell]] echo out")
    assert run.result["terminal_reason"] == "completed"
    text = "PostToolUse:Bash hook blocking error from command: "
    assert count_in_last_request(model, text) == 1


@pytest.mark.parametrize(
    "vendor", [CODEX, pytest.param(CLAUDE_ITSELF, marks=full)], indirect=True, ids=str
)
def test_hooks_run_around_a_compaction(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor
) -> None:
    commands = dict.fromkeys(("PreCompact", "PostCompact", "SessionStart"), f'cat >> "$HOME/{LOG}"')
    home_folder = settings(frontend, vendor, build_event_hooks(**commands))
    run = converse(frontend, "[[text]] hello", "/compact")
    assert run.lines[-1]["subtype"] == "success"
    inputs = [(hook["hook_event_name"], hook.get("source")) for hook in read_log(home_folder)]
    assert inputs == [
        *(("SessionStart", "startup"), ("PreCompact", None)),
        *(("SessionStart", "compact"), ("PostCompact", None)),
    ]
    settings(frontend, vendor, build_event_hooks(PreCompact="echo not now >&2; exit 2"))
    run = converse(frontend, "[[text]] hello", "/compact")
    assert run.lines[-1]["result"].rstrip() == (
        "Compaction blocked by PreCompact hook: [echo not now >&2; exit 2]: not now"
    )


@full
@in_conversations
def test_hook_of_a_tool_result_ends_the_turn(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor
) -> None:
    commands = {"PostToolUse": """echo '{"continue":false}'""", "Stop": f'cat >> "$HOME/{LOG}"'}
    home_folder = settings(frontend, vendor, build_event_hooks(**commands))
    frontend.extra_args = BYPASS
    run = frontend.run_messages("[[shell]] echo out")
    assert (run.result["result"], run.result["terminal_reason"]) == ("", "hook_stopped")
    assert not (home_folder / LOG).exists(), "no Stop hook runs"


@with_a_single_message
def test_hooks_run_for_a_single_message(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor
) -> None:
    home_folder = settings(frontend, vendor, log_events(*EVENTS))
    run = frontend.run_prompt("[[shell]] exit 3", *BYPASS)
    assert [hook_input["hook_event_name"] for hook_input in read_log(home_folder)] == [
        *("SessionStart", "UserPromptSubmit", "PostToolUseFailure", "Stop", "SessionEnd")
    ]
    assert run.result["subtype"] == "success"


@with_a_single_message
def test_rejected_message_does_not_reach_the_model(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor
) -> None:
    settings(frontend, vendor, build_event_hooks(UserPromptSubmit="echo no secrets >&2; exit 2"))
    run = frontend.run_prompt("[[text]] hello")
    assert run.result["result"] == (
        "UserPromptSubmit operation blocked by hook:\n"
        "[echo no secrets >&2; exit 2]: no secrets\n\n\nOriginal prompt: [[text]] hello"
    )
    assert (run.exit, run.result["num_turns"]) == (0, 0)
    assert not [request for request in model.requests if request.offered]


@pytest.mark.parametrize("vendor", [CODEX], indirect=True, ids=str)
def test_hooks_of_an_untrusted_folder_are_named_and_do_not_run(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor
) -> None:
    project_folder = frontend.folder / ".claude"
    project_folder.mkdir()
    content = json.dumps(build_event_hooks(SessionStart="touch made"))
    (project_folder / "settings.json").write_text(content)
    run = frontend.run_prompt("[[text]] hello")
    assert run.result["result"] == REPLY
    assert not (frontend.folder / "made").exists()
    (entry,) = run.init["shim"]["not_honoured"]
    assert entry["what"] == "hooks.SessionStart"
    assert "not trusted" in entry["reason"]
    assert entry["reason"] in run.stderr


@full
@pytest.mark.parametrize("vendor", [QWEN, CODEX, CLAUDE_ITSELF], indirect=True, ids=str)
def test_interrupt_ends_a_hook_before_the_message(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor
) -> None:
    settings(frontend, vendor, build_event_hooks(UserPromptSubmit="exec sleep 4712"))
    process = frontend.start_run("[[text]] hello")
    assert frontend.wait_for_start("sleep 4712")
    process.interrupt()
    process.finish()
    assert frontend.wait_for_end("sleep 4712")
    assert not [request for request in model.requests if request.offered]


@pytest.mark.parametrize(
    "vendor",
    [GEMINI, *(pytest.param(vendor, marks=full) for vendor in (QWEN, CODEX, PI, OPENCODE))],
    indirect=True,
    ids=str,
)
def test_hook_blocks_a_read_only_command_in_a_conversation(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor
) -> None:
    """Some programs run such a command without asking, unless the shim prevents this."""
    settings(frontend, vendor, build_hook_settings("exit 2", "Bash"))
    for flags in (BYPASS, ()):
        frontend.extra_args = flags
        run = frontend.run_messages("[[shell]] echo out")
        (result,) = run.tool_results
        assert result["is_error"] and result["content"] != "out"


@full
@in_conversations
def test_hook_before_a_call_adds_context_or_ends_the_turn(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor
) -> None:
    if vendor is CODEX:
        pytest.skip("codex runs these hooks in the shim's hook, which only decides about the call")
    output = json.dumps(build_context("PreToolUse", "it rains") | {"systemMessage": "watch out"})
    settings(frontend, vendor, build_hook_settings(f"echo '{output}'", "Bash"))
    frontend.extra_args = BYPASS
    run = converse(frontend, "[[shell]] touch first", "[[text]] next")
    assert count_in_last_request(model, "PreToolUse:Bash hook additional context: it rains") == 1
    (notice,) = [line for line in run.lines if line.get("subtype") == "informational"]
    assert notice["content"] == "PreToolUse:Bash says: watch out"
    settings(frontend, vendor, build_hook_settings("""echo '{"continue":false}'""", "Bash"))
    run = frontend.run_messages("[[shell]] touch made")
    assert run.result["terminal_reason"] == "hook_stopped"
    assert (frontend.folder / "made").exists()


@in_conversations
@pytest.mark.parametrize("answer", ["allow", "deny", "exit code 2"])
def test_permission_hook_of_the_settings_decides_about_a_call(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor, answer: str
) -> None:
    """Without a permission prompt. As with the real claude, exit code 2 decides nothing."""
    decision = {"behavior": answer, "message": "too sour"}
    output = {"hookEventName": "PermissionRequest", "decision": decision}
    command = (
        f"cat > \"$HOME/{HOOK_INPUT_FILE}\"; echo '{json.dumps({'hookSpecificOutput': output})}'"
    )
    if answer == "exit code 2":
        command = "echo too sour >&2; exit 2"
    settings(frontend, vendor, build_event_hooks(PermissionRequest=command))
    run = frontend.run_messages(f"[[shell]] touch {MADE}")
    assert (run.result["subtype"], run.result["terminal_reason"]) == ("success", "completed")
    assert (frontend.folder / MADE).exists() is (answer == "allow")
    denied = [denial["tool_name"] for denial in run.result["permission_denials"]]
    assert denied == ([] if answer == "allow" else ["Bash"])
    is_reason_received = any("too sour" in json.dumps(request.body) for request in model.requests)
    assert is_reason_received is (answer == "deny")
    if answer == "exit code 2":
        return
    hook_input = json.loads((Path(frontend.environment["HOME"]) / HOOK_INPUT_FILE).read_text())
    assert hook_input["hook_event_name"] == "PermissionRequest"
    assert hook_input["tool_input"]["command"] == f"touch {MADE}"
    assert hook_input["permission_suggestions"]
