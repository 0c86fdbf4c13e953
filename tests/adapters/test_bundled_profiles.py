"""The vendors that are profiles, tested with recordings of their programs: texts, calls, numbers
and command lines.

The expected values come from the vendors' own lines, read here without the shim, and from the
vendor pages.
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from fixture_cases import find_case, list_fixture_cases, translate_case
from stream_lines import find_result, parse_lines
from sweeps import loop_over_cases, loop_over_rows

from shim import adapters
from shim.adapters import VENDORS
from shim.core.adapter.tools import translate_tool_call
from shim.core.policy.policy import PROTECTED_NAMES, SHIM_FOLDERS
from tests.adapters.test_launch import launch

OTHERS = ("acai", "cake")  # seeds: covered by test_vendors, test_profile_acai and test_launch
PROFILES = tuple(
    name
    for name, reference in VENDORS.items()
    if reference.endswith(".toml") and name not in OTHERS
)
CUT = "cline/3.0.65-sigint-text"  # no full text followed its fragments
CASES = [
    fixture
    for fixture in list_fixture_cases(*PROFILES)
    if fixture.metadata.get("exit") == 0 and fixture.name != CUT
]
PARTIAL = pytest.mark.parametrize("partial", [False, True], ids=["whole", "partial"])


# -- the full text exactly once --------------------------------------------------------------------


def _codex(events: list[Any]) -> str:
    items = [event["item"] for event in events if event.get("type") == "item.completed"]
    return "".join(item["text"] for item in items if item["type"] == "agent_message")


def _deltas(kind: str, *path: str) -> Any:
    def join_values(events: list[Any]) -> str:
        values = []
        for event in events:
            if event.get("type") == kind:
                value = event
                for key in path:
                    value = value[key]
                values.append(value)
        return "".join(values)

    return join_values


def _role(key: str) -> Any:
    def join_texts(events: list[Any]) -> str:
        text = ""
        for event in events:
            if event.get("role") == "assistant" and event.get("type", "message") == "message":
                content = event[key]
                parts = (
                    content if isinstance(content, list) else [{"type": "text", "text": content}]
                )
                text += "".join(part["text"] for part in parts if part["type"] == "text")
        return text

    return join_texts


def _amp(events: list[Any]) -> str:
    blocks = [
        block
        for event in events
        if event["type"] == "assistant"
        for block in event["message"]["content"]
    ]
    return "".join(block["text"] for block in blocks if block["type"] == "text")


def _cline(events: list[Any]) -> str:
    inner = [event["event"] for event in events if event.get("type") == "agent_event"]
    return "".join(
        inner_event["text"]
        for inner_event in inner
        if inner_event["type"] == "content_end" and inner_event.get("contentType") == "text"
    )


TEXT_EXTRACTORS = {
    "amp": _amp,
    "cline": _cline,
    "codex": _codex,
    "copilot": _deltas("assistant.message", "data", "content"),
    "droid": _role("text"),
    "gemini": _role("content"),
    "kilo": _deltas("text", "part", "text"),
    "kimi": _role("content"),
    "kimi-code": _role("content"),
    "opencode": _deltas("text", "part", "text"),
    "vibe": _role("content"),
}


# copilot's own notes about a call, in the place of the model's text. They do not come from the
# model, which was a mock.
OF_COPILOT = ("Info: Operation cancelled by user", "Info: /repo/new.txt")


def _chunks(events):
    """Return the model's texts that an agent of the Agent Client Protocol reported."""
    updates = (
        event["params"]["update"] for event in events if event.get("method") == "session/update"
    )
    texts = [
        update["content"]["text"]
        for update in updates
        if update["sessionUpdate"] == "agent_message_chunk"
    ]
    return "".join(text for text in texts if text not in OF_COPILOT)


def _items(events):
    """Return the model's texts of codex's app-server: fragments, and full texts of subagents."""
    ours = next(
        event["result"]["thread"]["id"] for event in events if "thread" in event.get("result", {})
    )
    text = ""
    for event in events:
        params = event.get("params", {})
        if event.get("method") == "item/agentMessage/delta" and params["threadId"] == ours:
            text += params["delta"]
        elif event.get("method") == "item/completed" and params["threadId"] != ours:
            text += params["item"].get("text", "")
    return text


@loop_over_cases(CASES)
@PARTIAL
def test_text_blocks_match_the_model_text_of_the_recording(case, partial):
    lines = parse_lines(translate_case(case, partial)[0])
    model_lines = [
        line
        for line in lines
        if line["type"] == "assistant" and line["message"]["model"] != "<synthetic>"
    ]
    blocks = [block for line in model_lines for block in line["message"]["content"]]
    extract_text = (
        _chunks
        if "-acp-" in case.name
        else _items
        if "-server-" in case.name
        else TEXT_EXTRACTORS[case.vendor]
    )
    expected = extract_text([event for event in case.parse_events() if isinstance(event, dict)])
    assert "".join(block["text"] for block in blocks if block["type"] == "text") == expected


@loop_over_cases(
    [
        fixture
        for fixture in list_fixture_cases(*PROFILES)
        if fixture.metadata["source"] == "recorded"
    ]
)
def test_recordings_have_no_unknown_events_or_unexpected_repairs(case):
    """A recording of a conversation has one result per message."""
    results = [
        line["shim"] for line in parse_lines(translate_case(case)[0]) if line["type"] == "result"
    ]
    assert results
    for shim in results:
        assert shim["unknown_events"] == {}
        assert not set(shim["repairs"]) - {"not_json", "repeated_reply"}


# -- calls -----------------------------------------------------------------------------------------

HERE = "/home/dev/project"
EDIT = ("Edit", {"file_path": f"{HERE}/a.txt", "old_string": "hello", "new_string": "HELLO"}, False)
READ = ("Read", {"file_path": f"{HERE}/a.txt"}, False)
LIST = {"command": "echo out1; sleep 0.3; echo out2; echo err 1>&2"}
FAIL = {"command": "ls /nonexistent; exit 3"}
MISSING = ("Read", {"file_path": f"{HERE}/missing.txt"}, True)
TODO = [
    {"content": "a", "activeForm": "a", "status": "in_progress"},
    {"content": "b", "activeForm": "b", "status": "pending"},
]


def wrote(name):
    return ("Write", {"file_path": f"{HERE}/{name}", "content": "line one\nline two\n"}, False)


# Name, arguments, and whether the call failed, in call order.
CALLS: dict[str, list[tuple[str, dict[str, Any], bool]]] = {
    "cline/3.0.65-edit": [wrote("new1795170613.txt"), READ, EDIT],
    "cline/3.0.65-failtool": [("Bash", FAIL, True), MISSING],
    "codex/0.169.0-shell": [("Bash", LIST, False)],
    "codex/0.169.0-failtool": [("Bash", FAIL, True)],
    "codex/0.169.0-applypatch": [
        ("Edit", {"file_path": f"{HERE}/a.txt"}, False),
        ("Write", {"file_path": f"{HERE}/np.txt"}, False),
        ("Delete", {"file_path": f"{HERE}/np.txt"}, False),
    ],
    "codex/0.169.0-mcp": [("mcp__mm__echo", {"msg": "hi"}, False), ("mcp__mm__boom", {}, True)],
    "codex/0.169.0-subagent": [
        (
            "Task",
            {
                "description": "spawn_agent",
                "prompt": "say hi",
                "subagent_type": "general-purpose",
            },
            False,
        )
    ],
    "copilot/1.0.102-edit": [wrote("new1795170249.txt"), READ, EDIT],
    "copilot/1.0.102-failtool": [("Bash", FAIL | {"description": "f"}, True), MISSING],
    "copilot/1.0.102-noallow": [("Bash", {"command": "touch x", "description": "f"}, True)],
    "droid/0.225.2-edit": [wrote("new1795170397.txt"), READ, EDIT],
    "droid/0.225.2-failtool": [
        ("Bash", FAIL | {"description": "s", "timeout": 60000}, True),
        MISSING,
    ],
    "gemini/0.61.0-edit": [wrote("new.txt"), READ, EDIT],
    "gemini/0.61.0-failtool": [
        ("Bash", FAIL, False),  # the output does not state the failure
        MISSING,
        ("Edit", {"file_path": f"{HERE}/a.txt", "old_string": "zzzz", "new_string": "y"}, True),
    ],
    "gemini/0.61.0-shell": [("Bash", LIST | {"description": "list"}, False)],
    "gemini/0.61.0-todo": [("TodoWrite", {"todos": TODO}, False)],
    "kilo/7.7.9-shell": [("Bash", {"command": "echo out1", "description": "list"}, False)],
    "kimi/1.49.0-edit": [EDIT],
    "kimi/1.49.0-failtool": [("Bash", FAIL, True), MISSING],
    "opencode/1.18.33-edit": [wrote("new.txt"), READ, EDIT],
    "opencode/1.18.33-failtool": [("Bash", FAIL | {"description": "fail"}, True), MISSING],
    "opencode/1.18.33-permission": [("Bash", {"command": "echo hi", "description": "x"}, True)],
    "opencode/1.18.33-task": [
        ("Task", {"description": "sub", "prompt": "do sub", "subagent_type": "general"}, False)
    ],
    "opencode/1.18.33-todo": [("TodoWrite", {"todos": TODO}, False)],
    "vibe/3.0.2-edit": [
        wrote("new1795170494.txt"),
        ("Read", {"file_path": f"{HERE}/a.txt", "limit": 2000}, False),
        (*EDIT[:1], EDIT[1] | {"replace_all": False}, False),
    ],
    "vibe/3.0.2-failtool": [
        ("Bash", FAIL, True),
        ("Read", {"file_path": f"{HERE}/missing.txt", "limit": 2000}, True),
    ],
}


@loop_over_rows("name", CALLS)
@PARTIAL
def test_tool_calls_have_claude_names_inputs_and_error_flags(name, partial):
    lines = parse_lines(translate_case(find_case(name), partial)[0])
    blocks = [
        block
        for line in lines
        if line["type"] in ("assistant", "user")
        for block in line["message"]["content"]
    ]
    failed = {
        block["tool_use_id"]: block["is_error"]
        for block in blocks
        if block["type"] == "tool_result"
    }
    calls = [
        (block["name"], block["input"], failed[block["id"]])
        for block in blocks
        if block["type"] == "tool_use"
    ]
    assert calls == CALLS[name]


@pytest.mark.parametrize("name", ["opencode/1.18.33-permission", "copilot/1.0.102-noallow"])
def test_refused_tool_call_is_a_permission_denial(name):
    (denial,) = find_result(parse_lines(translate_case(find_case(name))[0]))["permission_denials"]
    assert denial["tool_name"] == "Bash"


# -- numbers ---------------------------------------------------------------------------------------

# Input, cache read and output tokens; then US dollars, and milliseconds if the vendor reports them.
NUMBERS = {
    # Cached tokens are included in inputTokens. These are the totals of the run.
    "cline/3.0.65-edit": ((3200, 800, 200), 0.0, 1013),
    # Cached tokens are included in input_tokens, reasoning in output_tokens.
    "codex/0.169.0-text": ((800, 200, 50), 0.0, 0),
    "codex/0.169.0-applypatch": ((3200, 800, 200), 0.0, 0),
    # It prints no token counts, and the time is that of the session.
    "copilot/1.0.102-edit": ((0, 0, 0), 0.0, 0),
    # Claude's own names.
    "droid/0.225.2-edit": ((3200, 800, 200), 0.0, 464),
    # `input` excludes cached tokens. Thinking is the part of total_tokens that the other counts do
    # not have.
    "gemini/0.61.0-shell": ((1600, 400, 140), 0.0, 1751),
    # Per step, with reasoning counted beside the output.
    "kilo/7.7.9-shell": ((1600, 400, 100), 0.0, 0),
    "opencode/1.18.33-shell": ((1600, 400, 100), 0.0018, 0),
    "opencode/1.18.33-permission": ((800, 200, 50), 0.0009, 0),
    "kimi/1.49.0-text": ((0, 0, 0), 0.0, 0),
    "vibe/3.0.2-text": ((0, 0, 0), 0.0, 0),
}


@loop_over_rows("name", NUMBERS)
@PARTIAL
def test_usage_cost_and_duration_are_converted_to_claude_fields(name, partial):
    (input_tokens, cached, out), dollars, milliseconds = NUMBERS[name]
    result = find_result(parse_lines(translate_case(find_case(name), partial)[0]))
    usage = result["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (
        input_tokens,
        cached,
        out,
    )
    assert (
        result["total_cost_usd"] == pytest.approx(dollars) and result["duration_ms"] == milliseconds
    )


# -- the end ---------------------------------------------------------------------------------------

CAUSES = {
    "amp/0.0.1790142911-noauth": "exit_code",
    "cline/3.0.65-401": "auth",
    "cline/3.0.65-sigint-text": "truncated",
    "codex/0.169.0-401": "auth",
    "codex/0.169.0-429": "rate_limit",
    "codex/0.169.0-dash-prompt": "protocol",
    "codex/0.169.0-longcmd": "clean",
    "codex/0.169.0-sigint-text": "exit_code",
    "copilot/1.0.102-401": "auth",
    "copilot/1.0.102-429": "rate_limit",
    "droid/0.225.2-401": "auth",
    "droid/0.225.2-sigint-text": "truncated",
    "gemini/0.61.0-400key": "auth",
    "gemini/0.61.0-noauth": "auth",
    "gemini/0.61.0-untrusted": "refused",
    "gemini/0.61.0-sigint-tool": "truncated",
    "gemini/0.61.0-dash-prompt": "protocol",
    "kimi/1.49.0-500": "vendor_error",
    "opencode/1.18.33-401": "auth",
    "opencode/1.18.33-429": "rate_limit",
    "opencode/1.18.33-dash-prompt": "protocol",
    "opencode/1.18.33-drop": "clean",
    "opencode/1.18.33-permission": "refused",
    "opencode/1.18.33-sigint-text": "signal",
    "vibe/3.0.2-401": "auth",
    "vibe/3.0.2-sigint-text": "interrupted",
}


@loop_over_rows("name", CAUSES)
def test_result_reports_the_cause_of_the_exit(name):
    assert (
        find_result(parse_lines(translate_case(find_case(name))[0]))["shim"]["cause"]
        == CAUSES[name]
    )


def test_codex_call_id_has_a_prefix_before_the_item_number():
    """Its item numbers start at 0 in every process."""
    lines = parse_lines(translate_case(find_case("codex/0.169.0-shell"))[0])
    blocks = [
        block
        for line in lines
        if line["type"] == "assistant"
        for block in line["message"]["content"]
    ]
    (call,) = (block for block in blocks if block["type"] == "tool_use")
    assert call["id"] != "item_2" and call["id"].endswith("_item_2")


# -- command lines ---------------------------------------------------------------------------------

S = "11111111-2222-4333-8444-555555555555"
OPENCODE = ("run", "--format", "json", "--thinking")
POLICY = f"--admin-policy={adapters.__path__[0]}/gemini_policy.toml"
DENIALS = f"--admin-policy={adapters.__path__[0]}/gemini_modes.toml"
GEMINI = (
    "--output-format",
    "stream-json",
    POLICY,
    "--approval-mode",
    "default",
    "--prompt=say hi",
    DENIALS,
)
LAUNCHES = {
    "amp": (("--stream-json-thinking", "-x", "say hi"), b""),
    "cline": (("--json", "--auto-approve", "false", "say hi"), b""),
    "codex": (("exec", "--json", "-c", 'sandbox_mode="read-only"', "say hi"), b""),
    "copilot": (("--output-format", "json", "--prompt=say hi"), b""),
    "droid": (
        ("exec", "-o", "stream-json", "--only-tools", "LS,Grep,Glob,Read,TodoWrite", "say hi"),
        b"",
    ),
    "gemini": (GEMINI, b""),
    "kilo": (OPENCODE, b"say hi"),
    "kimi-code": (("--output-format", "stream-json", "-p", "say hi"), b""),
    "kimi": (("--print", "--output-format", "stream-json", "--prompt=say hi"), b""),
    "opencode": (OPENCODE, b"say hi"),
    "vibe": (("--output", "streaming", "--agent", "ask", "-p", "say hi"), b""),
}


@loop_over_rows("vendor", PROFILES)
def test_plain_prompt_launches_with_default_arguments(vendor):
    started = launch(vendor, "-p", "--output-format", "stream-json", "--verbose")
    assert (started.arguments, started.stdin) == LAUNCHES[vendor]


@loop_over_rows(
    ("vendor", "flags", "resume", "expected"),
    [
        (
            "codex",
            ("--model", "m1"),
            S,
            ("exec", "resume", S, "--json", "-c", 'sandbox_mode="read-only"', "-m", "m1"),
        ),
        (
            "gemini",
            ("--session-id", S, "--add-dir", "/d"),
            None,
            ("--session-id", S, "--include-directories", "/d"),
        ),
        ("gemini", ("--permission-mode", "plan"), S, ("--approval-mode", "plan", "--resume", S)),
        (
            "opencode",
            ("--model", "p/m", "--fork-session"),
            "ses_0Ab",
            (*OPENCODE, "-m", "p/m", "-s", "ses_0Ab", "--fork"),
        ),
        (
            "copilot",
            ("--disallowedTools", "Bash,Edit"),
            S,
            (f"--resume={S}", "--excluded-tools=bash,edit,apply_patch"),
        ),
        ("copilot", ("--disallowedTools", "Write"), None, ("--excluded-tools=create,apply_patch",)),
        (
            "copilot",
            ("--permission-mode", "acceptEdits", "--session-id", S),
            None,
            ("--allow-tool=write", f"--session-id={S}"),
        ),
        (
            "copilot",
            ("--permission-mode", "plan", "--add-dir", "/d"),
            None,
            ("--plan", "--add-dir=/d"),
        ),
        ("copilot", ("--dangerously-skip-permissions",), None, ("--allow-all",)),
        ("droid", ("--disallowedTools", "Read"), None, ("--only-tools", "LS,Grep,Glob,TodoWrite")),
        (
            "droid",
            ("--dangerously-skip-permissions", "--tools", "Read,Bash"),
            None,
            ("--only-tools", "Execute,Read"),
        ),
        ("droid", (), S, ("--fork", S)),
        ("cline", ("--permission-mode", "plan"), None, ("--plan", "--auto-approve", "false")),
        ("vibe", ("--dangerously-skip-permissions",), S, ("--auto-approve", "--resume", S)),
        (
            "vibe",
            ("--permission-mode", "acceptEdits", "--max-turns", "3"),
            None,
            ("accept-edits", "--max-turns", "3"),
        ),
        ("vibe", ("--disallowedTools", "Write"), None, ("--disabled-tools", "write_file")),
        (
            "vibe",
            ("--dangerously-skip-permissions", "--tools", "Read"),
            None,
            ("--enabled-tools", "file_read", "--enabled-tools", "read_file"),
        ),
        ("kimi", ("--dangerously-skip-permissions",), S, ("-y", "-r", S)),
    ],
)
def test_claude_flags_are_converted_to_vendor_flags(vendor, flags, resume, expected):
    started = launch(vendor, *flags, resume_id=resume).arguments
    assert " ".join(expected) in " ".join(started)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([11, 20], {"offset": 11, "limit": 10}),
        ([11, -1], {"offset": 11}),
        ([11], {"offset": 11}),
        (None, {}),
    ],
)
def test_copilot_view_range_is_converted_to_offset_and_limit(lines, expected):
    """The vendor's argument is [start, end], with -1 for the end of the file."""
    tool_input = {"path": "/a"} | ({"view_range": lines} if lines else {})
    assert translate_tool_call(adapters.get_adapter("copilot").tools, "view", tool_input) == (
        "Read",
        {"file_path": "/a"} | expected,
    )


@pytest.mark.parametrize("subcommand", ["auth", "config", "history", "version"])
def test_cline_prompt_is_not_parsed_as_a_subcommand(subcommand):
    """Threat: a prompt that is a subcommand. Measured with 3.0.65: with a space at its start, each
    of these is a prompt; without the space, cline runs the subcommand.
    """
    assert launch("cline", "-p", prompt=subcommand).arguments[-1] == f" {subcommand}"


def test_gemini_policy_file_denies_plan_and_edit_tools():
    """It starts even if the file is missing, and then its model can approve its own plans."""
    rules = tomllib.loads(Path(POLICY.partition("=")[2]).read_text())["rule"]
    assert [(rule["toolName"], rule["decision"]) for rule in rules] == [
        (["enter_plan_mode", "exit_plan_mode"], "deny"),
        (["write_file", "replace"], "deny"),
    ]


def test_protected_files_are_denied_when_edits_are_accepted():
    names = [*sorted(PROTECTED_NAMES), *(path.strip("/") for path in SHIM_FOLDERS)]
    _, rule = tomllib.loads(Path(POLICY.partition("=")[2]).read_text())["rule"]
    pattern = re.compile(rule["argsPattern"])
    for name in names:
        for path in (name, f"sub/{name}", f"/w/{name.upper()}/x"):
            assert pattern.search(f'{{\0"content":"x"\0,\0"file_path":"{path}"\0}}'), path
        assert not pattern.search(
            f'"content":"/{name}/ \\"file_path\\":\\"{name}\\"","file_path":"my{name}"'
        ), name
    for vendor in ("opencode", "kilo"):
        started = launch(vendor, "--permission-mode", "acceptEdits")
        permissions = json.loads(
            {**started.environment, **started.enforced_environment}[f"{vendor.upper()}_PERMISSION"]
        )
        expected = {"*": "allow"} | {
            pattern: "deny" for name in names for pattern in (f"*{name}", f"*{name}/*")
        }
        assert permissions["edit"] == expected


@loop_over_rows("tool", ["grep", "glob", "rg"])
@loop_over_rows(
    ("paths", "expected"),
    [("/a", "/a"), (["/a"], "/a"), (["a", "/b"], ["a", "/b"]), ([], None), (None, None)],
)
def test_copilot_search_reports_all_searched_paths(tool, paths, expected):
    tool_input = translate_tool_call(
        adapters.get_adapter("copilot").tools, tool, {"pattern": "x", "paths": paths}
    )[1]
    assert (tool_input.get("path") or None) == expected


@pytest.mark.parametrize(
    ("vendor", "mode", "denied"),
    [
        ("opencode", "plan", {"bash*", "edit*", "task*", "webfetch*"}),
        ("opencode", "acceptEdits", {"bash*", "edit", "task*", "webfetch*"}),
        ("kilo", "acceptEdits", {"bash*", "edit"}),
        ("opencode", "default", set()),
    ],
)
def test_denied_tools_of_a_mode_are_set_in_the_environment(vendor, mode, denied):
    """opencode's plan agent runs commands, and edits are accepted together with them."""
    started = launch(vendor, "--permission-mode", mode)
    permissions = json.loads(
        {**started.environment, **started.enforced_environment}.get(
            f"{vendor.upper()}_PERMISSION", "{}"
        )
    )
    # Claude has no names for these.
    unnamed = {"*_*", "codesearch*", "lsp*", "question*", "websearch*"}
    assert permissions.keys() - unnamed == denied
    assert {value for key, value in permissions.items() if key != "edit"} <= {"deny"}


@loop_over_rows("vendor", PROFILES)
@loop_over_rows("prompt", ["-h", "-hello world", "--yolo x", "@file"])
def test_prompt_is_not_parsed_as_a_flag(vendor, prompt):
    """Threat: a prompt that starts with - or @."""
    started = launch(vendor, prompt=prompt)
    assert prompt not in started.arguments
    matches = [arg for arg in started.arguments if arg == f" {prompt}"]
    assert len(matches) == 1 or started.stdin == prompt.encode()


@loop_over_rows("vendor", [name for name in PROFILES if name not in ("amp", "cline")])
def test_invalid_resume_id_is_rejected(vendor):
    from shim.core.errors import FrontendError

    with pytest.raises(FrontendError, match="is not a session id"):
        launch(vendor, resume_id="../../x")


BYPASSES = (
    "yolo",
    "skip-permissions",
    "allow-all",
    "bypass",
    "--auto ",
    "-y ",
    "auto-approve true",
    "auto-approve -",
)


@loop_over_rows("vendor", PROFILES)
def test_only_bypass_mode_adds_bypass_flags(vendor):
    """No mode ever becomes a less restrictive one."""
    from shim.adapters import get_adapter

    for mode, mode_args in get_adapter(vendor).modes.items():
        command_line = " ".join(launch(vendor, "--permission-mode", mode).arguments)
        if mode == "bypassPermissions":
            # it has no more restrictive mode in one-shot mode
            assert mode_args or vendor == "kimi-code"
        else:
            assert not [flag for flag in BYPASSES if flag in command_line]
