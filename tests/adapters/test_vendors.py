"""The facts on each vendor's page that the structure of a golden does not show.

The tests compute texts, arguments, numbers and failures from the vendor's own bytes, without the
shim.
"""

from typing import Any

import pytest
from fixture_cases import SEEDS, Case, find_case, list_fixture_cases, translate_case
from stream_invariants import check_turns
from stream_lines import find_result, parse_lines
from sweeps import loop_over_cases, loop_over_rows

from shim.adapters import VENDORS, get_adapter
from shim.core.adapter.translator import Translator

PARTIAL = pytest.mark.parametrize("partial", [False, True], ids=["whole", "partial"])

# Every fixture of the seed vendors whose run failed, and why. All others succeeded. A multi-turn
# run counts by its last turn.
FAILED = {
    "acai/0.1.0-badflag": "exit_code",
    "acai/0.1.0-badjson": "vendor_error",
    "acai/0.1.0-http429": "rate_limit",
    "acai/0.1.0-nokey": "auth",
    "acai/0.1.0-sigint": "signal",
    "acai/2026-04-badresume": "exit_code",
    "acai/2026-04-http401": "auth",
    "acai/2026-04-nokey": "auth",
    "acai/2026-04-oldflags": "exit_code",
    "acai/2026-04-reasoning-object-summary-decode-error": "vendor_error",
    "acai/2026-04-sigterm": "signal",
    "acai/seed-cut-exit-0": "truncated",
    "acai/seed-cut-in-call": "vendor_error",
    "acai/seed-error-result": "rate_limit",
    "cake/2026-07-api-decode-error": "vendor_error",
    "cake/2026-07-http401": "auth",
    "cake/2026-07-json": "protocol",
    "cake/2026-07-sigint": "interrupted",
    "cake/2026-08-cutoff": "vendor_error",
    "cake/2026-08-limit-hook-reasoning": "limit",
    "cake/2026-08-replay-error": "vendor_error",
    "cursor/handmade-err-auth": "auth",
    "cursor/handmade-err-sigint-mid-tool": "exit_code",
    "cursor/handmade-err-trust": "exit_code",
    "cursor/handmade-err-usage-limit": "rate_limit",
    "cursor/handmade-result-is-error": "vendor_error",
    "cake/handmade-cut": "vendor_error",
    "cake/handmade-http429": "rate_limit",
    "cursor/handmade-cut-in-text": "vendor_error",
    "cursor/seed-cut": "vendor_error",
    "pi/handmade-e429": "rate_limit",
    "qwen/handmade-http429": "rate_limit",
    "pi/0.73.1-e401": "auth",
    "pi/0.73.1-overflowx": "vendor_error",
    "pi/0.84.0-cut-in-tool": "exit_code",
    "pi/1.5.2-claude-flags": "exit_code",
    "pi/1.5.2-e401": "auth",
    "pi/1.5.2-e500x": "vendor_error",
    "pi/1.5.2-filter": "refused",
    "pi/1.5.2-no-auth": "auth",
    "pi/1.5.2-print-text": "protocol",
    "pi/1.5.2-sess-missing": "exit_code",
    "pi/1.5.2-sess-othercwd": "truncated",
    "pi/1.5.2-sighup-stream": "exit_code",
    "pi/1.5.2-sigint-stream": "signal",
    "pi/1.5.2-sigterm-tool": "exit_code",
    "pi/1.5.2-stdin-open": "signal",
    "pi/seed-auto-compaction-failed": "vendor_error",
    "pi/seed-auto-retry-failed": "vendor_error",
    "qwen/0.15.10-http401": "auth",
    "qwen/0.15.10-sigint-group": "signal",
    "qwen/0.24.4-direct-norelaunch-sigint": "interrupted",
    "qwen/0.24.4-drop": "vendor_error",
    "qwen/0.24.4-empty": "vendor_error",
    "qwen/0.24.4-flag-claude": "exit_code",
    "qwen/0.24.4-http401": "auth",
    "qwen/0.24.4-http401-partial": "auth",
    "qwen/0.24.4-http500": "vendor_error",
    "qwen/0.24.4-in-control-first-not-init": "vendor_error",
    "qwen/0.24.4-in-garbage-later": "exit_code",
    "qwen/0.24.4-max-turns": "limit",
    "qwen/0.24.4-max-wall": "limit",
    "qwen/0.24.4-mid-error": "vendor_error",
    "qwen/0.24.4-noauth": "auth",
    "qwen/0.24.4-resume-missing": "exit_code",
    "qwen/0.24.4-sigterm-group": "signal",
    "qwen/0.24.4-tool-then-401": "auth",
}
SUCCEEDED = [fixture for fixture in list_fixture_cases(*SEEDS) if fixture.name not in FAILED]


@loop_over_cases(list_fixture_cases(*SEEDS))
@PARTIAL
def test_result_is_an_error_exactly_if_the_vendor_run_failed(case, partial):
    output, _ = translate_case(case, partial)
    result = find_result(check_turns(output, partial)[-1])
    assert result["is_error"] == (case.name in FAILED)
    assert result["shim"]["cause"] == FAILED.get(case.name, "clean")


def test_every_failure_in_the_table_has_a_fixture():
    assert set(FAILED) <= {fixture.name for fixture in list_fixture_cases(*SEEDS)}


# Torture has unreadable lines. Two events of cursor are known by name only.
ODD = {"cursor/handmade-background-shell-tail"} | {
    fixture.name for fixture in list_fixture_cases() if fixture.name.startswith("torture/")
}


@loop_over_cases([fixture for fixture in SUCCEEDED if fixture.name not in ODD])
@PARTIAL
def test_successful_run_has_no_unknown_or_malformed_events(case, partial):
    """A recording of a real program has no unknown or malformed event. Only fixtures that pin a
    repair have one.
    """
    _, translation = translate_case(case, partial)
    assert translation.diagnostics.unknown_events == {}
    assert not {"malformed_event", "malformed_end", "not_an_event", "contradicted_block"} & set(
        translation.diagnostics.repairs
    )


# -- the reader's view -----------------------------------------------------------------------------


def writable(text: str) -> str:
    """Return a vendor's text as it can be written: surrogate pairs joined, lone surrogates
    replaced.
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def events(fixture: Case) -> list[dict[str, Any]]:
    """Return a vendor's events, including those inside the array of a `json` format."""
    flat: list[Any] = []
    for event in fixture.parse_events():
        flat += event if isinstance(event, list) else [event]
    return [event for event in flat if isinstance(event, dict)]


def read_acai_texts(fixture: Case) -> tuple[str, str]:
    """Return the full assistant messages, and the reasoning from its summary or its content."""
    text, thinking = "", ""
    for event in events(fixture):
        if event.get("type") == "message" and event["role"] == "assistant":
            text += event["content"]
        elif event.get("type") == "reasoning":
            parts = event.get("summary") or event.get("content") or []
            thinking += "\n\n".join(
                part if isinstance(part, str) else part["text"] for part in parts
            )
    return text, thinking


RETRY_EVENTS = ("auto_retry_start", "compaction_start", "auto_compaction_start")


def read_pi_texts(fixture: Case) -> tuple[str, str]:
    """Return the texts. `message_end` is authoritative; a truncated reply that was repeated is not
    written.
    """
    replies: list[dict[str, Any]] = []
    for event in events(fixture):
        message = event.get("message")
        if (
            event.get("type") == "message_end"
            and isinstance(message, dict)
            and message.get("role") == "assistant"
        ):
            replies.append(message)
        elif event.get("type") in RETRY_EVENTS and replies and replies[-1]["stopReason"] == "error":
            replies.pop()
    blocks = [block for assistant_message in replies for block in assistant_message["content"]]
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    return text, "".join(block["thinking"] for block in blocks if block["type"] == "thinking")


def read_cursor_texts(fixture: Case) -> tuple[str, str]:
    """Return the texts. `result` is all assistant segments joined without a separator. Thinking is
    its deltas.
    """
    (text,) = (event["result"] for event in events(fixture) if event.get("type") == "result")
    thinking = [
        event
        for event in events(fixture)
        if event.get("type") == "thinking" and event["subtype"] == "delta"
    ]
    return text, "".join(event["text"] for event in thinking)


def read_qwen_texts(fixture: Case) -> tuple[str, str]:
    """Return the blocks of the assistant lines. Blocks of a nested agent have a parent."""
    text, thinking = "", ""
    for event in events(fixture):
        if event.get("type") == "assistant" and not event.get("parent_tool_use_id"):
            for block in event["message"]["content"]:
                text += block["text"] if block["type"] == "text" else ""
                thinking += block["thinking"] if block["type"] == "thinking" else ""
    return text, thinking


TEXT_READERS = {
    "acai": read_acai_texts,
    "cake": read_acai_texts,
    "pi": read_pi_texts,
    "cursor": read_cursor_texts,
    "qwen": read_qwen_texts,
}
# Half of a surrogate pair and a member nested too deeply have torture cases of their own.
NOT_COMPARED = {  # a plain JSON reader cannot read their lines
    "torture/pi-deep-nesting-3000",
    "torture/pi-schema-drift",
    "torture/pi-noise-lines",
    "torture/qwen-noise-and-raw-newlines",
}
COMPARED = [fixture for fixture in SUCCEEDED if fixture.name not in NOT_COMPARED]


def read_written_texts(data: bytes) -> tuple[str, str]:
    """Return all text and all thinking of the main agent's assistant lines."""
    texts = {"text": "", "thinking": ""}
    for line in parse_lines(data):
        if line["type"] == "assistant" and line["parent_tool_use_id"] is None:
            (block,) = line["message"]["content"]
            if block["type"] in texts:
                texts[block["type"]] += block[block["type"]]
    return texts["text"], texts["thinking"]


@loop_over_cases(COMPARED)
@PARTIAL
def test_model_text_and_thinking_are_emitted_completely_and_once(case, partial):
    text, thinking = TEXT_READERS[case.vendor](case)
    output, _ = translate_case(case, partial)
    assert read_written_texts(output) == (writable(text), writable(thinking))


@loop_over_rows(
    ("name", "text"),
    [
        ("pi/1.5.2-sighup-stream", "part0 part1 "),
        ("pi/1.5.2-sigint-stream", "part0 part1 "),
        ("pi/0.84.0-cut-in-tool", "Both at once."),
    ],
)
@PARTIAL
def test_text_of_an_aborted_message_is_preserved(name, text, partial):
    """Without partial messages pi's updates stay unread until their message ends. Here it never
    ends.
    """
    output, _ = translate_case(find_case(name), partial)
    assert read_written_texts(output) == (text, "")


def list_call_ids(fixture: Case) -> list[str]:
    """Return the ids of all calls of a vendor's run, each once, including those of nested
    agents.
    """
    call_ids: dict[str, None] = {}
    for event in events(fixture):
        if fixture.vendor in ("acai", "cake") and event.get("type") == "function_call":
            call_ids[event.get("call_id") or event["id"]] = None
        elif fixture.vendor == "pi" and event.get("type") == "tool_execution_start":
            call_ids[event["toolCallId"]] = None
        elif fixture.vendor == "cursor" and event.get("type") == "tool_call":
            call_ids[event["call_id"].replace("\n", "_")] = None
        elif fixture.vendor == "qwen" and event.get("type") == "assistant":
            call_ids |= {
                block["id"]: None
                for block in event["message"]["content"]
                if block["type"] == "tool_use"
            }
    return list(call_ids)


# A plan without a tool call is written as a call. An id with a raw newline is two lines here.
INVENTED = {"cursor/handmade-plan-mode", "cursor/handmade-noise-and-split-callid"}


@loop_over_cases([fixture for fixture in COMPARED if fixture.name not in INVENTED])
def test_every_tool_call_is_emitted_once(case):
    output, _ = translate_case(case, False)
    blocks = [
        block
        for line in parse_lines(output)
        if line["type"] == "assistant"
        for block in line["message"]["content"]
    ]
    assert sorted(block["id"] for block in blocks if block["type"] == "tool_use") == sorted(
        list_call_ids(case)
    )


# -- arguments -------------------------------------------------------------------------------------

NOTE = "/home/dev/project/note.txt"
PATCH = "*** Begin Patch\n*** Update File: a.py\n@@\n-x\n+y\n*** End Patch"
CALLS: list[tuple[str, str, str, dict[str, Any]]] = [
    # acai
    ("acai/0.1.0-shellok", "call_001", "Bash", {"command": "printf 'a.txt\\nb.txt\\n'"}),
    ("acai/0.1.0-badargs", "call_001", "Bash", {"raw": '{"command": "ls'}),
    ("acai/2026-04-files", "call_0", "Write", {"file_path": NOTE, "content": "alpha\nbeta\n"}),
    ("acai/2026-04-files", "call_1", "Read", {"file_path": NOTE}),
    (
        "acai/2026-04-files",
        "call_2",
        "Edit",
        {"file_path": NOTE, "old_string": "beta", "new_string": "gamma"},
    ),
    (
        "cake/2026-07-files",
        "call_3",
        "Edit",
        {"file_path": NOTE, "old_string": "nope", "new_string": "x"},
    ),
    # cursor
    (
        "cursor/handmade-tool-zoo",
        "g1",
        "Grep",
        {
            "pattern": "beta",
            "path": "/w",
            "glob": "*.txt",
            "output_mode": "content",
            "-i": False,
            "head_limit": 50,
        },
    ),
    ("cursor/handmade-tool-zoo", "gl1", "Glob", {"path": "/w", "pattern": "**/*.py"}),
    ("cursor/handmade-tool-zoo", "ls1", "LS", {"path": "/w", "ignore": []}),
    ("cursor/handmade-tool-zoo", "w1", "Write", {"file_path": "/w/new.txt", "content": "hi\n"}),
    (
        "cursor/handmade-tool-zoo",
        "e1",
        "Edit",
        {"file_path": "/w/a.py", "old_string": "old", "new_string": "new"},
    ),
    (
        "cursor/handmade-tool-zoo",
        "e2",
        "MultiEdit",
        {
            "file_path": "/w/a.py",
            "edits": [
                {"old_string": "a", "new_string": "b", "replace_all": True},
                {"old_string": "c", "new_string": "d"},
            ],
        },
    ),
    (
        "cursor/handmade-tool-zoo",
        "e3",
        "Edit",
        {"file_path": "/w/a.py", "old_string": "", "new_string": PATCH},
    ),
    ("cursor/handmade-tool-zoo", "e4", "Write", {"file_path": "/w/a.py", "content": "zzz"}),
    ("cursor/handmade-tool-zoo", "d1", "Delete", {"file_path": "/w/new.txt"}),
    ("cursor/handmade-tool-zoo", "s1", "Bash", {"command": "exit 3", "timeout": 30000}),
    (
        "cursor/handmade-tool-zoo",
        "t1",
        "TodoWrite",
        {
            "todos": [
                {"content": "First", "status": "completed", "activeForm": "First"},
                {"content": "Second", "status": "in_progress", "activeForm": "Second"},
                {"content": "Third", "status": "pending", "activeForm": "Third"},
            ]
        },
    ),
    ("cursor/handmade-tool-zoo", "m1", "mcp__falconry__get_section", {"report_key": "r"}),
    (
        "cursor/handmade-tool-zoo",
        "k1",
        "Task",
        {
            "description": "Explore repo",
            "prompt": "List the files",
            "subagent_type": "general-purpose",
        },
    ),
    ("cursor/handmade-tool-zoo", "ss1", "Grep", {"pattern": "authentication logic"}),
    ("cursor/handmade-tool-zoo", "l1", "ReadLints", {"paths": ["/w/a.py"]}),
    ("cursor/handmade-tool-zoo", "f1", "some_tool", {"q": 1}),
    ("cursor/seed-function-call", "call_f1", "list_branches", {"remote": True}),
    ("cursor/seed-function-call", "call_f2", "tool_name", {"raw": "..."}),
    # pi. Paths are resolved against the header's cwd.
    (
        "pi/0.73.1-bash",
        "call_bash",
        "Bash",
        {"command": "for i in 1 2 3; do echo line$i; sleep 0.4; done"},
    ),
    (
        "pi/1.5.2-bash-timeout",
        "call_bash_timeout",
        "Bash",
        {"command": "echo before; sleep 30", "timeout": 1000},
    ),
    ("pi/1.5.2-read", "call_read", "Read", {"file_path": "/home/dev/project/hello.txt"}),
    (
        "pi/1.5.2-write",
        "call_write",
        "Write",
        {"file_path": "/home/dev/project/sub/new.txt", "content": "first\nsecond\n"},
    ),
    (
        "pi/0.73.1-edit",
        "call_edit",
        "Edit",
        {"file_path": "/home/dev/project/edit.txt", "old_string": "world", "new_string": "mars"},
    ),
    (
        "pi/1.5.2-edit-multi",
        "call_edit_multi",
        "MultiEdit",
        {
            "file_path": "/home/dev/project/edit.txt",
            "edits": [
                {"old_string": "alpha", "new_string": "ALPHA"},
                {"old_string": "omega", "new_string": "OMEGA"},
            ],
        },
    ),
    (
        "pi/1.5.2-grep",
        "call_grep",
        "Grep",
        {
            "pattern": "world",
            "path": "/home/dev/project",
            "glob": "*.txt",
            "-i": True,
            "-C": 1,
            "head_limit": 5,
            "output_mode": "content",
        },
    ),
    # qwen
    (
        "qwen/0.24.4-shell",
        "call_mock_169310197_0",
        "Bash",
        {
            "command": "echo hi; echo err >&2; exit 3",
            "description": "say hi",
            "run_in_background": False,
        },
    ),
    (
        "qwen/0.24.4-grep",
        "call_mock_169322688_0",
        "Grep",
        {"pattern": "world", "output_mode": "content"},
    ),
    (
        "qwen/0.24.4-edit",
        "call_mock_169307762_0",
        "Edit",
        {"file_path": "/home/dev/project/hello.txt", "old_string": "world", "new_string": "mock"},
    ),
    (
        "qwen/0.24.4-todo-enabled",
        "call_mock_169950822_0",
        "TodoWrite",
        {
            "todos": [
                {"content": "first", "status": "completed", "activeForm": "first"},
                {"content": "second", "status": "in_progress", "activeForm": "second"},
                {"content": "third", "status": "pending", "activeForm": "third"},
            ]
        },
    ),
    ("qwen/0.24.4-toolcall-deferred", "call_mock_169962872_0", "CronList", {}),
    (
        "qwen/handmade-task-alias",
        "call_2d77c1_sub_0",
        "Read",
        {"file_path": "/home/dev/project/LICENSE", "offset": 1, "limit": 3},
    ),
    (
        "qwen/0.24.4-agent",
        "call_mock_169348169_0",
        "Task",
        {
            "description": "look",
            "prompt": "[[sub]] look around",
            "subagent_type": "general-purpose",
        },
    ),
]


@loop_over_rows(("name", "call_id", "tool", "tool_input"), CALLS)
@PARTIAL
def test_tool_call_has_claude_name_and_input(name, call_id, tool, tool_input, partial):
    output, _ = translate_case(find_case(name), partial)
    blocks = [
        block
        for line in parse_lines(output)
        if line["type"] == "assistant"
        for block in line["message"]["content"]
    ]
    (call,) = [block for block in blocks if block.get("id") == call_id]
    assert (call["name"], call["input"]) == (tool, tool_input)


FAILED_CALLS = {
    "acai/2026-04-shellfail": {"call_001": True},
    "acai/2026-04-files": {"call_0": False, "call_1": False, "call_2": False, "call_3": True},
    "cake/2026-07-badargs": {"call_001": True},
    "pi/1.5.2-bash-fail": {"call_bash_fail": True},
    "pi/1.5.2-badtool": {"call_badtool": True},
    "qwen/0.24.4-shell": {"call_mock_169310197_0": True},
    "qwen/0.24.4-read-file": {"call_mock_169302456_0": False},
}


@loop_over_rows("name", FAILED_CALLS)
def test_tool_result_is_an_error_exactly_if_the_vendor_reports_failure(name):
    output, _ = translate_case(find_case(name), False)
    users = [line for line in parse_lines(output) if line["type"] == "user"]
    results = [block for line in users for block in line["message"]["content"]]
    errors_by_id = {block["tool_use_id"]: block["is_error"] for block in results}
    assert list(errors_by_id.values()) == list(FAILED_CALLS[name].values())


# -- numbers ---------------------------------------------------------------------------------------

# Input, cache read, cache creation and output tokens; US dollars.
NUMBERS = {
    # Cached tokens are included in input_tokens.
    "acai/0.1.0-shellok": ((180, 100, 0, 35), 0.0),
    "cake/2026-07-parallel": ((250, 0, 0, 29), 0.0),
    # Cached tokens are not included in inputTokens.
    "cursor/shape-2026.08-text-thinking": ((14390, 6144, 0, 31), 0.0),
    "cursor/shape-2026.08-shell-ok": ((17905, 23040, 0, 131), 0.0),
    # The sum over replies, with reasoning included in output.
    "pi/1.5.2-plain": ((1000, 200, 0, 34), 0.00357),
    "pi/1.5.2-bash": ((2000, 400, 0, 68), 0.00714),
    # Cached tokens are included. Hidden requests and older turns in `result.usage` are not counted.
    "qwen/0.24.4-text": ((100, 20, 0, 30), 0.0),
    "qwen/0.24.4-parallel": ((200, 40, 0, 60), 0.0),
    "qwen/0.24.4-resume": ((100, 20, 0, 30), 0.0),
}


@loop_over_rows("name", NUMBERS)
@PARTIAL
def test_usage_and_cost_match_claude_semantics(name, partial):
    (input_tokens, read, created, out), dollars = NUMBERS[name]
    output, _ = translate_case(find_case(name), partial)
    result = find_result(parse_lines(output))
    assert result["usage"] == {
        "input_tokens": input_tokens,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": created,
        "output_tokens": out,
    }
    assert result["total_cost_usd"] == pytest.approx(dollars)
    (model,) = result["modelUsage"].values()
    assert (model["inputTokens"], model["outputTokens"]) == (input_tokens, out)


@pytest.mark.parametrize(
    ("name", "turns"),
    [
        ("acai/0.1.0-parallel", 3),
        ("pi/1.5.2-parallel", 4),
        ("qwen/0.24.4-parallel", 3),
        ("cursor/shape-2026.08-shell-ok", 2),
    ],
)
def test_num_turns_counts_results_of_parallel_calls(name, turns):
    """Contract 5.3: 1 + the number of tool results."""
    output, _ = translate_case(find_case(name), False)
    assert find_result(parse_lines(output))["num_turns"] == turns


# -- identity of a session -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "acai/0.1.0-shellok",
            {"tools": ["Bash"], "permissionMode": "default"},
        ),
        ("acai/2026-04-shellok", {"tools": ["Bash", "Edit", "Read", "Write"]}),
        ("pi/1.5.2-plain", {"cwd": "/home/dev/project"}),
        ("qwen/0.24.4-text", {"model": "mock-model", "cwd": "/home/dev/project"}),
    ],
)
def test_init_contains_the_metadata_reported_by_the_vendor(name, expected):
    init = parse_lines(translate_case(find_case(name))[0])[0]
    assert {key: init[key] for key in expected} == expected


@loop_over_rows("vendor", SEEDS)
def test_init_uses_the_vendor_session_id_if_the_id_is_a_uuid(vendor):
    for fixture in SUCCEEDED:
        if fixture.vendor != vendor:
            continue
        first = next(
            (
                event
                for event in events(fixture)
                if event.get("session_id") or event.get("type") == "session"
            ),
            {},
        )
        session_id = first.get("session_id") or first.get("id")
        if session_id and len(session_id) == 36:
            assert parse_lines(translate_case(fixture)[0])[0]["session_id"] == session_id


# -- the tool table --------------------------------------------------------------------------------


@loop_over_rows("name", VENDORS)
def test_every_adapter_defines_the_required_attributes(name):
    vendor = get_adapter(name)
    assert vendor.name == name
    assert issubclass(vendor.translator_class, Translator)
    assert "default" in vendor.modes or name == "claude"
    assert all(isinstance(program, str) and program for program in vendor.programs)
    assert vendor.translator_class.__doc__


@loop_over_rows("name", VENDORS)
def test_adapter_lists_only_tools_from_its_tool_table(name):
    """init.tools is accurate: every listed tool is in the tool table or has the vendor's own
    name.
    """
    vendor = get_adapter(name)
    tool_names = {tool.name for tool in vendor.tools.values()} | {"MultiEdit", "Write"}
    assert not vendor.tools or set(vendor.listed_tools) <= tool_names
