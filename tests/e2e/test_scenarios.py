"""Real vendor programs with the installed drop-in: a turn as a frontend sees it.

The programs are those pinned in `package.json`. The model is scripted (`scripts`), so every word of
a reply is known. Traits state what a vendor cannot do (`vendor_setups`), and the tests assert what
happens instead.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest
from frontend import END_SECONDS, DropInFrontend, Process, check_contract, join_result_text
from model_scripts import (
    ERROR_MESSAGE,
    ERROR_MESSAGES,
    ERROR_STATUS,
    REASONING,
    REPLY,
    REPLY_AFTER_TOOL,
    WRITTEN,
    ScriptedServer,
    join_message_text,
)
from model_server import MODEL, SECOND_MODEL, USAGE
from sandbox import EXIT_SECONDS, TURN_SECONDS, Line, wait_until
from vendor_setups import (
    CODEX,
    COPILOT,
    GEMINI,
    OPENCODE,
    PI,
    PI_CUMULATIVE,
    QWEN_NO_RELAUNCH,
    VENDORS,
    Vendor,
)

pytestmark = pytest.mark.e2e

PARTIAL = "--include-partial-messages"
BYPASS = "--dangerously-skip-permissions"
# A command that runs for ever: qwen refuses a bare `sleep`.
ENDLESS_COMMAND = "tail -f hello.txt"
COMMAND_THAT_FAILS = "echo said before it failed; exit 3"

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="processes are found in /proc"
)


def parametrize_vendors(*vendors: Vendor, later: Sequence[Vendor] = ()) -> pytest.MarkDecorator:
    """Parametrize a test with these vendors. `later` vendors run only in `make full`."""
    cells = [
        pytest.param(each, id=str(each), marks=[pytest.mark.full] * (each in later))
        for each in vendors
    ]
    return pytest.mark.parametrize("vendor", cells, indirect=True)


def forms(*, partial: bool) -> pytest.MarkDecorator:
    """Parametrize a test without and with partial messages. One of the two runs only in `make
    full`.
    """
    cells = [
        pytest.param(
            is_partial,
            id="partial" if is_partial else "whole",
            marks=[pytest.mark.full] * (is_partial is not partial),
        )
        for is_partial in (False, True)
    ]
    return pytest.mark.parametrize("partial", cells)


# Each form is tested with every vendor, but not by every test: partial messages add lines to the
# full ones.
mostly_full, mostly_partial = forms(partial=False), forms(partial=True)
# A run of opencode takes 4 s of CPU. If another run proves the same, only `make full` runs it.
cheap_stand = parametrize_vendors(*VENDORS, later=[PI_CUMULATIVE, OPENCODE])
# For tests in which an older pi behaves as the newest does.
newest_stands = parametrize_vendors(*VENDORS, later=[PI_CUMULATIVE])
only_gemini = parametrize_vendors(GEMINI)
PRICED = (PI, PI_CUMULATIVE, OPENCODE)
who_gives_up = parametrize_vendors(
    *(each for each in VENDORS if each.gives_up and each.quotes_errors), later=[PI_CUMULATIVE]
)
retrying_vendors = parametrize_vendors(
    *(vendor for vendor in VENDORS if vendor.retries_rate_limit), later=[PI_CUMULATIVE, OPENCODE]
)
who_denies = parametrize_vendors(*(vendor for vendor in VENDORS if not vendor.unattended))
who_denies_commands = parametrize_vendors(
    *(vendor for vendor in VENDORS if not (vendor.unattended or vendor.sandboxed))
)


def usage_of(requests: int) -> Line:
    """Return the model's usage in Claude's terms: cached tokens are counted separately from the
    input.
    """
    cached = USAGE["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": requests * (USAGE["prompt_tokens"] - cached),
        "output_tokens": requests * USAGE["completion_tokens"],
        "cache_read_input_tokens": requests * cached,
        "cache_creation_input_tokens": 0,
    }


def is_text_delta(line: Line) -> bool:
    return (
        line["type"] == "stream_event"
        and line["event"].get("delta", {}).get("type") == "text_delta"
    )


def begin_slowly(frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor) -> Process:
    """Start a run and return it in the middle of a reply. A vendor without partial output has
    printed nothing by then.
    """
    process = frontend.start_run("[[slow]] hi", PARTIAL)
    if vendor.fragments:
        process.read_until(is_text_delta)
    else:
        assert wait_until(lambda: bool(model.list_requests("slow")), TURN_SECONDS)
    return process


def is_tool_use(line: Line) -> bool:
    return line["type"] == "assistant" and line["message"]["content"][0]["type"] == "tool_use"


@mostly_full
def test_turn_reports_working_directory_text_usage_and_cost(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor, partial: bool
) -> None:
    run = frontend.run_prompt("[[text]] hi", *[PARTIAL] * partial)
    check_contract(run, partial=partial)
    assert run.exit == 0
    assert run.init["cwd"] == str(frontend.folder)
    assert run.init["permissionMode"] == "default"
    assert run.init["model"].endswith(MODEL)
    assert vendor.reader in run.init["tools"]
    assert run.init["shim"]["vendor"] == vendor.name
    assert run.init["shim"]["unattended"] is vendor.unattended
    assert run.texts == [REPLY]
    assert run.result["subtype"] == "success" and run.result["is_error"] is False
    assert run.result["result"] == REPLY
    assert run.result["num_turns"] == 1
    assert run.result["usage"].items() >= usage_of(1).items()
    if vendor in PRICED:
        assert run.result["total_cost_usd"] == pytest.approx(
            (100 * 3 + 30 * 15 + 20 * 0.3) / 1_000_000
        )
    assert len(model.list_requests("text")) == 1
    (line,) = run.list_lines("assistant")
    assert line["message"]["model"].endswith(MODEL)
    if partial:
        assert run.streamed_text == REPLY


@mostly_partial
def test_reasoning_and_tool_call_are_translated_with_the_tool_result(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor, hello_file: Path, partial: bool
) -> None:
    run = frontend.run_prompt(
        f"[[ponder]] {vendor.format_file_argument(hello_file)}", *[PARTIAL] * partial
    )
    check_contract(run, partial=partial)
    assert run.exit == 0
    assert [block["thinking"] for block in run.list_blocks("assistant", "thinking")] == [
        REASONING
    ] * vendor.thinks
    kinds = [line["message"]["content"][0]["type"] for line in run.list_lines("assistant")]
    assert kinds == [*["thinking"] * vendor.thinks, "text", "tool_use", "text"]
    (call,) = run.tool_uses
    assert call["name"] == vendor.reader
    assert call["input"] == vendor.read_input(hello_file)
    (result,) = run.tool_results
    assert result["tool_use_id"] == call["id"]
    assert not result.get("is_error")
    visible_lines = hello_file.read_text().splitlines() if vendor.shows_files else []
    assert all(line in join_result_text(result) for line in visible_lines)
    assert run.result["result"] == run.texts[-1] == REPLY_AFTER_TOOL
    assert run.result["num_turns"] == 2
    assert run.result["usage"].items() >= usage_of(2).items()
    assert len(model.list_requests("ponder")) == 2
    if partial:
        assert json.loads(run.streamed_input) == call["input"]
        assert run.streamed_text == "".join(run.texts)


@mostly_full
@newest_stands
def test_each_parallel_call_has_its_result_and_a_single_call_fails(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor, hello_file: Path, partial: bool
) -> None:
    other = hello_file.with_name("other.txt")
    other.write_text("another file\n")
    missing = hello_file.with_name("missing.txt")
    names = [vendor.format_file_argument(file) for file in (hello_file, other, missing)]
    run = frontend.run_prompt(f"[[parallel]] {' '.join(names)}", *[PARTIAL] * partial)
    check_contract(run, partial=partial)
    assert run.exit == 0
    results = {result["tool_use_id"]: result for result in run.tool_results}
    # Some vendors print calls in the order in which they end.
    results_by_input = {str(call["input"]): results[call["id"]] for call in run.tool_uses}
    first, second, third = (str(vendor.read_input(file)) for file in (hello_file, other, missing))
    assert results_by_input.keys() == {first, second, third}
    texts = {name: join_result_text(result) for name, result in results_by_input.items()}
    assert (
        "hello world" in texts[first] and "another file" in texts[second]
    ) or not vendor.shows_files
    assert [results_by_input[name].get("is_error", False) for name in (first, second, third)] == [
        False,
        False,
        True,
    ]
    assert "missing.txt" in texts[third] or not vendor.names_files
    assert run.result["subtype"] == "success" and run.result["is_error"] is False
    assert run.result["result"] == REPLY_AFTER_TOOL
    assert len(model.list_requests("parallel")) == 2


@newest_stands
def test_written_file_is_reported_as_a_write_call(frontend: DropInFrontend, vendor: Vendor) -> None:
    made = frontend.folder / "made.txt"
    run = frontend.run_prompt(
        f"[[write]] {vendor.format_file_argument(made)}", "--permission-mode", "acceptEdits"
    )
    check_contract(run)
    assert run.exit == 0
    assert run.init["permissionMode"] == "acceptEdits"
    (call,) = run.tool_uses
    assert call["name"] == "Write" and call["input"] == {"file_path": str(made), "content": WRITTEN}
    assert made.read_text() == WRITTEN
    assert not run.tool_results[0].get("is_error")


@newest_stands
def test_failing_command_is_a_failed_tool_result_in_a_successful_turn(
    frontend: DropInFrontend, vendor: Vendor
) -> None:
    run = frontend.run_prompt(f"[[shell]] {COMMAND_THAT_FAILS}", BYPASS)
    check_contract(run)
    assert run.exit == 0
    assert run.init["permissionMode"] == "bypassPermissions"
    (call,) = run.tool_uses
    assert call["name"] == "Bash"
    assert call["input"]["command"] == COMMAND_THAT_FAILS
    (result,) = run.tool_results
    assert result.get("is_error", False) is vendor.says_exit_codes
    assert "said before it failed" in join_result_text(result)
    assert run.result["is_error"] is False
    assert run.result["result"] == REPLY_AFTER_TOOL


@who_denies_commands
def test_command_without_permission_is_denied_and_the_turn_succeeds(
    frontend: DropInFrontend,
) -> None:
    run = frontend.run_prompt("[[shell]] touch made.txt")
    check_contract(run)
    assert run.exit == 0
    (call,) = run.tool_uses
    (result,) = run.tool_results
    assert result["is_error"] is True
    assert run.result["is_error"] is False
    (denial,) = run.result["permission_denials"]
    assert denial["tool_name"] == call["name"] == "Bash"
    assert denial["tool_use_id"] == call["id"]
    assert not (frontend.folder / "made.txt").exists()


@mostly_full
@newest_stands
def test_model_service_error_is_reported_as_an_api_error(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor, partial: bool
) -> None:
    run = frontend.run_prompt("[[error]] hi", *[PARTIAL] * partial)
    check_contract(run, partial=partial)
    assert run.exit == 1
    assert run.result["subtype"] == "success" and run.result["is_error"] is True
    assert str(ERROR_STATUS) in run.result["result"]
    assert ERROR_MESSAGE in run.result["result"] or not vendor.quotes_errors
    assert run.result["api_error_status"] == ERROR_STATUS
    (line,) = run.list_lines("assistant")
    assert line["message"]["model"] == "<synthetic>"
    assert line["error"] == "authentication_failed"
    assert run.texts == [run.result["result"]]
    assert len(model.list_requests("error")) == vendor.attempts


@pytest.mark.parametrize(("status", "kind"), [(429, "rate_limit"), (500, "server_error")])
@who_gives_up
def test_persistent_http_error_is_reported_with_its_error_kind(
    frontend: DropInFrontend, status: int, kind: str
) -> None:
    run = frontend.run_prompt(f"[[error]] {status}")
    check_contract(run)
    assert run.exit == 1
    assert run.result["is_error"] is True and run.result["api_error_status"] == status
    assert ERROR_MESSAGES[status] in run.result["result"]
    assert run.list_lines("assistant")[-1]["error"] == kind


@retrying_vendors
def test_temporary_rate_limit_is_retried_without_a_trace_in_the_reply(
    frontend: DropInFrontend, model: ScriptedServer
) -> None:
    run = frontend.run_prompt("[[once]] 429")
    check_contract(run)
    assert run.exit == 0
    assert run.texts == [REPLY]
    assert run.result["subtype"] == "success" and run.result["is_error"] is False
    assert len(model.list_requests("once")) == 2


@needs_proc
def test_interrupt_during_a_reply_closes_the_reply_and_ends_the_vendor(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor
) -> None:
    # As for a user, qwen starts itself twice more. All of its processes must exit.
    environment = {
        name: value for name, value in frontend.environment.items() if name != QWEN_NO_RELAUNCH
    }
    frontend.environment = environment
    process = begin_slowly(frontend, model, vendor)
    assert frontend.list_processes()
    process.interrupt()
    run = process.finish(END_SECONDS)
    check_contract(run, partial=True)
    assert run.exit == 0
    assert run.texts == [run.streamed_text] * vendor.fragments
    assert run.streamed_text.startswith("word0 ") is vendor.fragments
    assert run.user_texts == ["[Request interrupted by user]"]
    assert run.result["subtype"] == "error_during_execution" and run.result["is_error"] is True
    assert frontend.list_remaining_processes() == {}
    (request,) = model.list_requests("slow")
    assert request.client_left.wait(EXIT_SECONDS)


@needs_proc
@cheap_stand
def test_sigterm_reports_an_error_exits_with_143_and_ends_the_vendor(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor
) -> None:
    process = begin_slowly(frontend, model, vendor)
    process.terminate()
    run = process.finish(END_SECONDS)
    check_contract(run, partial=True)
    assert run.exit == 143
    assert run.texts == [run.streamed_text] * vendor.fragments
    assert run.result["is_error"] is True
    assert frontend.list_remaining_processes() == {}
    (request,) = model.list_requests("slow")
    assert request.client_left.wait(EXIT_SECONDS)


@needs_proc
@cheap_stand
def test_interrupt_during_a_command_ends_the_command(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor
) -> None:
    process = frontend.start_run(f"[[shell]] {ENDLESS_COMMAND}", BYPASS)
    if vendor.announces:
        process.read_until(is_tool_use)
    # A vendor that does not announce calls shows nothing else.
    assert frontend.wait_for_start(ENDLESS_COMMAND, TURN_SECONDS)
    process.interrupt()
    run = process.finish(END_SECONDS)
    check_contract(run)
    assert run.exit == 0
    assert [result["is_error"] for result in run.tool_results] == [True] * vendor.announces
    assert run.user_texts == [f"[Request interrupted by user{' for tool use' * vendor.announces}]"]
    assert run.result["subtype"] == "error_during_execution" and run.result["is_error"] is True
    assert frontend.list_remaining_processes() == {}
    assert len(model.list_requests("shell")) == 1


RESUMED = [
    pytest.param(
        vendor,
        chosen,
        id=f"{vendor}-{'chosen' if chosen else 'any'}-id",
        marks=[pytest.mark.full] * later,
    )
    for vendor in VENDORS
    for chosen in (False, True)
    # For the other vendors, `test_clients`, `test_codex` or `test_background` resumes a session
    # without a chosen id.
    for later in [not chosen and vendor is not COPILOT]
]


@pytest.mark.parametrize(("vendor", "chosen"), RESUMED, indirect=["vendor"])
def test_resumed_conversation_preserves_its_session_id_and_messages(
    frontend: DropInFrontend, model: ScriptedServer, chosen: bool
) -> None:
    # pi 0.73.1 accepts no session id, so the drop-in maps one id to the other
    session = str(uuid.uuid4())
    first = frontend.run_prompt("[[text]] hi", *["--session-id", session] * chosen)
    check_contract(first)
    assert first.init["session_id"] == session or not chosen
    second = frontend.run_prompt("[[text]] and again", "--resume", first.init["session_id"])
    check_contract(second)
    assert second.init["session_id"] == first.init["session_id"]
    assert second.result["result"] == REPLY
    assert second.result["usage"].items() >= usage_of(1).items()
    messages = json.dumps(model.list_requests("text")[-1].messages, ensure_ascii=False)
    assert "[[text]] hi" in messages and "[[text]] and again" in messages and "ünïcödé" in messages


@cheap_stand
def test_model_flag_selects_the_model(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor
) -> None:
    run = frontend.run_prompt("[[text]] hi", "--model", vendor.second_model)
    check_contract(run)
    assert run.exit == 0 and run.init["model"].endswith(SECOND_MODEL)
    assert [request.model for request in model.list_requests("text")] == [SECOND_MODEL]


# Quotes and a backslash, because some programs build a command line from the text; a dash and an at
# sign at the start, because some read flags and files; 200 KB, because Linux has no argument of
# that length.
AWKWARD = (
    '-v [[text]] he said "hi" to C:\\new',
    "@hello.txt [[text]] what?",
    f"[[text]] {'long words ' * 19_000}",
)


@newest_stands
def test_model_receives_awkward_prompts_unchanged(
    frontend: DropInFrontend, model: ScriptedServer, hello_file: Path
) -> None:
    run = frontend.run_messages(*AWKWARD)
    results = run.list_lines("result")
    assert [result["subtype"] for result in results] == ["success"] * len(AWKWARD), json.dumps(
        results
    )
    assert [result["result"] for result in results] == [REPLY] * len(AWKWARD)
    requests = model.list_requests("text")
    assert len(requests) == len(AWKWARD)
    for prompt, request in zip(AWKWARD, requests, strict=True):
        texts = [
            join_message_text(message) for message in request.messages if message["role"] == "user"
        ]
        assert any(prompt.strip() in text for text in texts), texts


# The permission matrix has both calls for every vendor. Here both are tested if a vendor asks,
# otherwise one of them.
FULL_ONLY_PLANS = {(GEMINI, "write"), (OPENCODE, "write"), (CODEX, "shell"), (COPILOT, "shell")}
PLANNED = [
    pytest.param(vendor, script, id=f"{script}-{vendor}", marks=[pytest.mark.full] * later)
    for vendor in VENDORS
    for script in ("write", "shell")
    for later in [vendor is PI_CUMULATIVE or (vendor, script) in FULL_ONLY_PLANS]
]


@pytest.mark.parametrize(("vendor", "script"), PLANNED, indirect=["vendor"])
def test_plan_mode_does_not_change_files(
    frontend: DropInFrontend, vendor: Vendor, script: str
) -> None:
    made = frontend.folder / "made.txt"
    change = {"write": vendor.format_file_argument(made), "shell": "touch made.txt"}[script]
    run = frontend.run_prompt(f"[[{script}]] {change}", "--permission-mode", "plan")
    check_contract(run)
    assert run.init["permissionMode"] == "plan"
    assert {"Write", "Bash"}.isdisjoint(run.init["tools"]) or not vendor.unattended
    assert not made.exists()
    assert run.exit == 0 and run.result["result"] == REPLY_AFTER_TOOL


@parametrize_vendors(PI, OPENCODE, GEMINI)
def test_accept_edits_mode_denies_commands(frontend: DropInFrontend) -> None:
    run = frontend.run_prompt("[[shell]] touch made.txt", "--permission-mode", "acceptEdits")
    check_contract(run)
    assert "Write" in run.init["tools"] and "Bash" not in run.init["tools"]
    assert not (frontend.folder / "made.txt").exists()
    (result,) = run.tool_results
    assert result["is_error"] is True


@who_denies
def test_write_that_needs_a_permission_prompt_is_denied(
    frontend: DropInFrontend, vendor: Vendor
) -> None:
    made = frontend.folder / "made.txt"
    run = frontend.run_prompt(f"[[write]] {vendor.format_file_argument(made)}")
    check_contract(run)
    assert not made.exists()
    assert [denial["tool_name"] for denial in run.result["permission_denials"]] == ["Write"]


@parametrize_vendors(OPENCODE)
@pytest.mark.parametrize(
    "flag", [[], pytest.param([BYPASS], marks=pytest.mark.full)], ids=["default", "bypass"]
)
def test_opencode_rejects_reads_outside_the_folder_unless_bypassed(
    frontend: DropInFrontend, flag: list[str]
) -> None:
    """The path is outside the folder. The turn ends at once. opencode runs everything else without
    asking.
    """
    outside = frontend.folder.parent / "outside.txt"
    outside.write_text("far away\n")
    run = frontend.run_prompt(f"[[read]] {outside}", *flag)
    check_contract(run)
    (result,) = run.tool_results
    assert ("far away" in join_result_text(result)) is bool(flag)
    assert run.result["is_error"] is not bool(flag)
    if not flag:
        assert (
            run.result["shim"]["cause"] == "refused" and "auto-rejecting" in run.result["errors"][0]
        )
        assert [denial["tool_name"] for denial in run.result["permission_denials"]] == ["Read"]


@only_gemini
@pytest.mark.parametrize(
    "mode", ["default", "plan", pytest.param("acceptEdits", marks=pytest.mark.full)]
)
def test_model_cannot_approve_its_plan(frontend: DropInFrontend, mode: str) -> None:
    """Only gemini approves its own plan if it cannot ask, and then it runs everything."""
    run = frontend.run_prompt("[[unplan]] touch made.txt", "--permission-mode", mode)
    check_contract(run)
    assert [call["name"] for call in run.tool_uses] == [
        "EnterPlanMode",
        "Write",
        "ExitPlanMode",
        "Bash",
    ]
    assert not (frontend.folder / "made.txt").exists()
    denied = [denial["tool_name"] for denial in run.result["permission_denials"]]
    assert {"EnterPlanMode", "ExitPlanMode", "Bash"} <= set(denied)


@only_gemini
@pytest.mark.parametrize("trusted", [False, True])
def test_folder_is_trusted_only_if_the_settings_enable_trust(
    frontend: DropInFrontend, trusted: bool
) -> None:
    home_folder = Path(frontend.environment["HOME"])
    security = {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": True}}
    (home_folder / ".gemini" / "settings.json").write_text(json.dumps({"security": security}))
    if trusted:
        (home_folder / ".config" / "shim").mkdir(parents=True)
        (home_folder / ".config" / "shim" / "config.toml").write_text(
            "[vendors.gemini]\ntrust = true\n"
        )
    run = frontend.run_prompt("[[text]] hi")
    check_contract(run)
    assert run.result["is_error"] is not trusted
    if not trusted:
        assert run.result["shim"]["cause"] == "refused"
        assert "trust = true under [vendors.gemini]" in run.result["errors"][0]


@parametrize_vendors(OPENCODE)
@pytest.mark.full
def test_vendor_uses_the_working_directory_instead_of_the_pwd_variable(
    frontend: DropInFrontend,
) -> None:
    """opencode works in the folder that PWD names. The drop-in is started without a shell, because
    a shell corrects PWD.
    """
    (frontend.folder.parent / "other").mkdir()
    flags = [
        "--output-format",
        "stream-json",
        "--verbose",
        *frontend.extra_args,
        BYPASS,
        "--shim-vendor",
        "opencode",
    ]
    process = Process(
        [sys.executable, "-m", "shim", "claude", "-p", "[[shell]] touch made.txt", *flags],
        frontend.folder,
        {**frontend.environment, "PWD": str(frontend.folder.parent / "other")},
    )
    frontend.started.append(process)
    run = process.finish()
    assert (run.exit, run.init["cwd"]) == (0, str(frontend.folder))
    assert (frontend.folder / "made.txt").exists()


@only_gemini
@pytest.mark.full
def test_unsupported_allow_rule_is_listed_in_init_and_result(
    frontend: DropInFrontend,
) -> None:
    run = frontend.run_prompt("[[shell]] touch made.txt", "--allowedTools", "Bash(touch:*)")
    assert not (frontend.folder / "made.txt").exists()
    for line in (run.init, run.result):
        (ignored_rule,) = line["shim"]["not_honoured"]
        assert (ignored_rule["what"], ignored_rule["source"]) == ("Bash(touch:*)", "--allowedTools")


@parametrize_vendors(GEMINI, OPENCODE, later=[OPENCODE])
def test_tool_allowed_without_a_pattern_is_added_in_accept_edits_mode(
    frontend: DropInFrontend,
) -> None:
    """Permission-parity N2, N3"""
    run = frontend.run_prompt(
        "[[shell]] touch made.txt", "--permission-mode", "acceptEdits", "--allowedTools", "Bash"
    )
    assert (frontend.folder / "made.txt").exists()
    assert {"Bash", "Write", "Read"} <= set(run.init["tools"]) and "not_honoured" not in run.init[
        "shim"
    ]
    other = frontend.run_prompt(
        "[[shell]] touch other.txt", "--permission-mode", "plan", "--allowedTools", "Bash"
    )
    assert not (frontend.folder / "other.txt").exists() and other.init["permissionMode"] == "plan"


@only_gemini
@pytest.mark.full
def test_allowed_tool_does_not_allow_other_tools(frontend: DropInFrontend) -> None:
    frontend.run_prompt(f"[[write]] {frontend.folder / 'made.txt'}", "--allowedTools", "Bash")
    frontend.run_prompt(
        "[[shell]] touch made.txt", "--allowedTools", "Bash", "--disallowedTools", "Bash"
    )
    assert not (frontend.folder / "made.txt").exists()
