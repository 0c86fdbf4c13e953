"""`shim vendor draft`: a first profile from captured output, with the recordings of every vendor.

A draft is measured by its results. One run only answers and one calls tools. The text must be
complete and equal to the shim's own translation. The calls must have the vendor's ids, names and
arguments, and each call one result.
"""

import json
import re
import tomllib
from functools import cache

import pytest
from fixture_cases import FIXTURES, ROOT, find_case, translate_case
from profile_builder import create_translation, translate_events
from stream_lines import parse_lines
from sweeps import loop_over_rows

from shim.commands.profile.draft import generate_profile_toml
from shim.commands.profile.draft_events import CapturedEventCollector
from shim.core.turn.outcome import ChildExit
from shim.profiles.check.config_node import ConfigSource
from shim.profiles.load.adapter import build_adapter
from tests.program.test_threats import ESCAPES, visible

# Vendor: a run that answers, one that calls tools, and the calls of that run from its own lines
# (id, name, arguments).
RUNS = {
    "acai": (
        "2026-04-text",
        "2026-04-files",
        [
            ("call_0", "Write", {"path": "/home/dev/project/note.txt", "content": "alpha\nbeta\n"}),
            ("call_1", "Read", {"path": "/home/dev/project/note.txt"}),
            (
                "call_2",
                "Edit",
                {
                    "path": "/home/dev/project/note.txt",
                    "edits": [{"old_text": "beta", "new_text": "gamma"}],
                },
            ),
            (
                "call_3",
                "Edit",
                {
                    "path": "/home/dev/project/note.txt",
                    "edits": [{"old_text": "nope", "new_text": "x"}],
                },
            ),
        ],
    ),
    "amp": ("handmade-tool", "handmade-tool", [("toolu_a1", "Bash", {"command": "ls"})]),
    "cake": (
        "2026-07-text",
        "2026-07-files",
        [
            ("call_0", "Write", {"path": "/home/dev/project/note.txt", "content": "alpha\nbeta\n"}),
            ("call_1", "Read", {"path": "/home/dev/project/note.txt"}),
            (
                "call_2",
                "Edit",
                {
                    "path": "/home/dev/project/note.txt",
                    "edits": [{"old_text": "beta", "new_text": "gamma"}],
                },
            ),
            (
                "call_3",
                "Edit",
                {
                    "path": "/home/dev/project/note.txt",
                    "edits": [{"old_text": "nope", "new_text": "x"}],
                },
            ),
        ],
    ),
    "claude": (
        "2.1.327-text",
        "2.1.327-tool-bash",
        [
            (
                "toolu_bash01",
                "Bash",
                {"command": "echo tool-out; echo tool-err 1>&2", "description": "Echo"},
            )
        ],
    ),
    "cline": (
        "3.0.65-text",
        "3.0.65-edit",
        [
            (
                "call_2",
                "editor",
                {"path": "/home/dev/project/new1795170613.txt", "new_text": "line one\nline two\n"},
            ),
            ("call_4", "read_files", {"files": [{"path": "/home/dev/project/a.txt"}]}),
            (
                "call_6",
                "editor",
                {"path": "/home/dev/project/a.txt", "old_text": "hello", "new_text": "HELLO"},
            ),
        ],
    ),
    "codex": (
        "0.169.0-text",
        "0.169.0-failtool",
        [("item_1", "command_execution", {"command": "/bin/bash -lc 'ls /nonexistent; exit 3'"})],
    ),
    "copilot": (
        "1.0.102-text",
        "1.0.102-edit",
        [
            (
                "call_2",
                "create",
                {
                    "path": "/home/dev/project/new1795170249.txt",
                    "file_text": "line one\nline two\n",
                },
            ),
            ("call_4", "view", {"path": "/home/dev/project/a.txt"}),
            (
                "call_6",
                "edit",
                {"path": "/home/dev/project/a.txt", "old_str": "hello", "new_str": "HELLO"},
            ),
        ],
    ),
    "cursor": (
        "shape-2026.08-text-thinking",
        "docs-read-write",
        [
            ("toolu_vrtx_01NnjaR886UcE8whekg2MGJd", "readToolCall", {"path": "README.md"}),
            (
                "toolu_vrtx_01Q3VHVnWFSKygaRPT7WDxrv",
                "writeToolCall",
                {
                    "path": "summary.txt",
                    "fileText": "# README Summary\n\nThis project contains...",
                    "toolCallId": "toolu_vrtx_01Q3VHVnWFSKygaRPT7WDxrv",
                },
            ),
        ],
    ),
    "demo": (
        "session",
        "session",
        [
            ("call_1", "Read", {"file_path": "/home/dev/project/greet.py"}),
            (
                "call_2",
                "Edit",
                {
                    "file_path": "/home/dev/project/greet.py",
                    "old_string": 'def greet(name):\n    return "Hello " + name\n',
                    "new_string": 'def greet(name: str) -> str:\n    return f"Hello, {name}!"\n',
                },
            ),
            ("call_3", "Bash", {"command": "python -m pytest -q"}),
        ],
    ),
    "droid": (
        "0.225.2-text",
        "0.225.2-edit",
        [
            (
                "call_2",
                "Create",
                {
                    "file_path": "/home/dev/project/new1795170397.txt",
                    "content": "line one\nline two\n",
                },
            ),
            ("call_4", "Read", {"file_path": "/home/dev/project/a.txt"}),
            (
                "call_6",
                "Edit",
                {"file_path": "/home/dev/project/a.txt", "old_str": "hello", "new_str": "HELLO"},
            ),
        ],
    ),
    "gemini": (
        "0.61.0-text",
        "0.61.0-edit",
        [
            (
                "write_file__write_file_1795169856226_0",
                "write_file",
                {"file_path": "/home/dev/project/new.txt", "content": "line one\nline two\n"},
            ),
            (
                "read_file__read_file_1795169856810_0",
                "read_file",
                {"file_path": "/home/dev/project/a.txt"},
            ),
            (
                "replace__replace_1795169856932_0",
                "replace",
                {
                    "file_path": "/home/dev/project/a.txt",
                    "instruction": "x",
                    "old_string": "hello",
                    "new_string": "HELLO",
                },
            ),
        ],
    ),
    "kilo": (
        "7.7.9-text",
        "7.7.9-shell",
        [("call_2", "bash", {"command": "echo out1", "description": "list"})],
    ),
    "kimi": (
        "1.49.0-text",
        "1.49.0-edit",
        [
            (
                "call_2",
                "StrReplaceFile",
                {"path": "/home/dev/project/a.txt", "edit": {"old": "hello", "new": "HELLO"}},
            )
        ],
    ),
    "kimi-code": ("2.1.0-failed", "2.1.0-tool", []),
    "opencode": (
        "1.18.33-text",
        "1.18.33-edit",
        [
            (
                "call_3",
                "write",
                {"filePath": "/home/dev/project/new.txt", "content": "line one\nline two\n"},
            ),
            ("call_5", "read", {"filePath": "/home/dev/project/a.txt"}),
            (
                "call_7",
                "edit",
                {"filePath": "/home/dev/project/a.txt", "oldString": "hello", "newString": "HELLO"},
            ),
        ],
    ),
    "pi": (
        "1.5.2-plain",
        "1.5.2-bash",
        [("call_bash", "bash", {"command": "for i in 1 2 3; do echo line$i; sleep 0.4; done"})],
    ),
    "qwen": (
        "0.24.4-text",
        "0.24.4-shell",
        [
            (
                "call_mock_169310197_0",
                "run_shell_command",
                {
                    "command": "echo hi; echo err >&2; exit 3",
                    "description": "say hi",
                    "is_background": False,
                },
            )
        ],
    ),
    "vibe": (
        "3.0.2-text",
        "3.0.2-edit",
        [
            (
                "effect-c590f458-2674-55d9-a6ba-365b3126283a",
                "file_system.write_file",
                {
                    "filePath": "/home/dev/project/new1795170494.txt",
                    "content": "line one\nline two\n",
                },
            ),
            (
                "effect-ee5f165b-beac-5629-84b6-f20eed12773e",
                "file_system.read_file",
                {"filePath": "/home/dev/project/a.txt", "offset": None, "limit": 2000},
            ),
            (
                "effect-70409aaf-b010-5b15-a859-f3384178ad56",
                "file_system.search_replace",
                {
                    "filePath": "/home/dev/project/a.txt",
                    "changes": [{"oldString": "hello", "newString": "HELLO", "replaceAll": False}],
                },
            ),
        ],
    ),
}


@cache
def build_draft(vendor, few=False):
    """Build the draft from all runs of a vendor, or with `few` from the two measured runs. Return
    the draft and its vendor, without the guesses for tools.
    """
    collector = CapturedEventCollector()
    runs = [FIXTURES / vendor / name / "vendor.ndjson" for name in RUNS[vendor][:2]]
    for path in runs if few else sorted(FIXTURES.glob(f"{vendor}/*/vendor.ndjson")):
        collector.start_child_output(path.parent.name)
        collector.feed(path.read_bytes())
        collector.end_child_output(None, None)
    text = generate_profile_toml(collector, vendor)
    table = tomllib.loads(text)
    build_adapter(vendor, table, ConfigSource("draft.toml", lambda: text))
    return text, build_adapter(
        vendor, table | {"tools": {}}, ConfigSource("draft.toml", lambda: text)
    )


def translate_run(vendor, name, few=False):
    """Return a draft's result for a run: its text, its calls, and the number of results of each
    call.
    """
    translation = create_translation(build_draft(vendor, few)[1])
    data = translation.feed(find_case(name).data)[0]
    opened = set(translation.turn.open_calls)
    return summarize_lines(parse_lines(data + translation.close(ChildExit(code=0))[0]), opened)


def summarize_lines(lines, opened=()):
    assistant_lines = [
        line
        for line in lines
        if line["type"] == "assistant" and line["message"]["model"] != "<synthetic>"
    ]
    blocks = [block for line in assistant_lines for block in line["message"]["content"]]
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    calls = [
        (block["id"], block["name"], block["input"])
        for block in blocks
        if block["type"] == "tool_use"
    ]
    users = [
        block for line in lines if line["type"] == "user" for block in line["message"]["content"]
    ]
    results = [block["tool_use_id"] for block in users if block["type"] == "tool_result"]
    return text, calls, sorted(call_id for call_id in results if call_id not in opened)


def ours(name):
    return summarize_lines(parse_lines(translate_case(find_case(name), partial=False)[0]))


def normalize_call_id(call_id):
    """Return the vendor's form of an id: without the shim's prefix for a codex process, and without
    cline's list index.
    """
    return re.sub(r"^[0-9a-f]{6}_(?=item_)|:0$", "", call_id)


# -- the results of a draft ------------------------------------------------------------------------


def holds(vendor, few):
    """Return what a draft finds in a vendor's runs, in the words of the printed table."""
    plain, tools, expected = RUNS[vendor]
    text, *_ = translate_run(vendor, f"{vendor}/{plain}", few)
    tools_text, calls, results = translate_run(vendor, f"{vendor}/{tools}", few)
    our_text, *_ = ours(f"{vendor}/{plain}")
    our_tools_text, our_calls, our_results = ours(f"{vendor}/{tools}")
    return {
        "text": bool(our_text) and text == our_text,
        "text among calls": bool(our_tools_text) and tools_text == our_tools_text,
        "calls": calls == expected,
        "our ids": [item[0] for item in calls]
        == [normalize_call_id(item[0]) for item in our_calls],
        "results": results
        == sorted(normalize_call_id(item) for item in our_results)
        == sorted(item[0] for item in calls),
    }


# Vendors without a simple format: calls without a name or arguments of their own (codex, cursor),
# calls in nested lists (cline) or before they are complete (copilot), results inside other values
# (vibe), texts that may be fragments (kimi).
NOT_PLAIN = {"cline", "codex", "copilot", "cursor", "kimi", "kimi-code", "vibe"}


@pytest.mark.parametrize("few", [False, True], ids=["all runs", "two runs"])
def test_drafts_translate_text_and_calls_of_vendors_with_plain_events(few):
    results = {vendor: holds(vendor, few) for vendor in RUNS if vendor not in NOT_PLAIN}
    assert {
        vendor: [what for what, good in row.items() if not good] for vendor, row in results.items()
    } == {vendor: [] for vendor in results}


def test_run_table_contains_every_vendor_with_fixtures():
    folders = {path.parent.parent.name for path in FIXTURES.glob("*/*/vendor.ndjson")}
    assert folders - {"torture", "qwen-rfc"} == set(RUNS)


@loop_over_rows("vendor", RUNS)
def test_draft_has_a_rule_for_every_event_of_its_fixture(vendor):
    """Events that the draft does not understand are at least listed as ignored."""
    _, tools, _ = RUNS[vendor]
    translation = create_translation(build_draft(vendor)[1])
    translation.feed(find_case(f"{vendor}/{tools}").data)
    assert translation.diagnostics.unknown_events == {}


def test_draft_code_contains_no_vendor_names():
    names = {name for name in RUNS if name not in ("amp", "claude", "demo", "pi")}
    for path in sorted((ROOT / "shim" / "commands" / "profile").glob("draft*.py")):
        tokens = set(re.findall(r"[a-z]+", path.read_text(encoding="utf-8").lower()))
        assert not tokens & names, path.name


# -- formats without a recording -------------------------------------------------------------------

CHUNKS = [
    {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"role": "assistant"}}]},
    {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "Hel"}}]},
    {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "lo"}}]},
    {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": " you."}}]},
]
COMPLETION = [
    {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello."}}],
    },
]
BIRD = [
    {"type": "wake", "thread_id": "perch-1"},
    {"type": "peck", "call_id": "p1", "name": "beak", "args": {"cmd": "ls"}},
    {"type": "pecked", "call_id": "p1", "output": "seeds", "exit_code": 0},
    {"type": "say", "text": "Seeds."},
    {"type": "done", "usage": {"input_tokens": 5, "output_tokens": 2}},
]


def draft_from_events(*runs):
    collector = CapturedEventCollector()
    for events in runs:
        collector.start_child_output("run")
        collector.feed(
            "".join(
                (event if isinstance(event, str) else json.dumps(event)) + "\n" for event in events
            ).encode()
        )
        collector.end_child_output(None, None)
    text = generate_profile_toml(collector, "own")
    return text, build_adapter("own", tomllib.loads(text), ConfigSource("draft.toml", lambda: text))


@pytest.mark.parametrize(
    ("events", "expected"),
    [(CHUNKS, "Hello you."), (COMPLETION, "Hello."), (BIRD, "Seeds.")],
    ids=["chunks", "completion", "bird"],
)
def test_other_event_shapes_are_recognized(events, expected):
    _, vendor = draft_from_events(events)
    text, *_ = summarize_lines(translate_events(vendor, *events))
    assert text == expected


def test_draft_lists_event_kinds_with_their_fields_and_todo_lines():
    token = "ghp_" + "a1B2" * 9
    text, vendor = draft_from_events(
        [*BIRD, {"type": "moult", "feathers": 3, "of": {"key": token}}]
    )
    assert '# peck (1 event)\n#   type = "peck"\n#   call_id = "p1"' in text
    assert '# TODO "beak" = { name = "…" }   its arguments: cmd' in text
    assert "#   feathers = 3" in text and "# TODO: this event is ignored." in text
    assert token not in text, "a secret of a run is not said in a draft"
    assert summarize_lines(translate_events(vendor, *BIRD))[1:] == (
        [("p1", "beak", {"cmd": "ls"})],
        ["p1"],
    )


@loop_over_rows(
    "events",
    [
        (),
        ("no json", "[1]", "{"),
        ({},),
        ({"a": {"b": [1, [2, {"c": "d"}]]}},),
        ({"type": ESCAPES, "text": ESCAPES, "role": "assistant"},),
        ({"type": 'x"\n[event]', "text": "a", "id": "1", "name": 'a"b]\n', "input": {'k."x': 1}},),
        (
            {"type": "say", "text": "a", "session.id": "s"},
            {"type": "say", "text": None},
            {"type": "say", "text": ["a"]},
        ),
    ],
)
def test_any_output_produces_a_draft_that_compiles(events):
    text, _ = draft_from_events(events)
    visible(text)
    assert "TODO" in text


# -- the command -----------------------------------------------------------------------------------


def test_written_draft_can_be_checked_and_is_not_overwritten(shim, local_box):
    files = []
    for number in range(2):
        path = local_box.path / f"run{number}.ndjson"
        path.write_text("".join(json.dumps(event) + "\n" for event in BIRD), encoding="utf-8")
        files.append(str(path))
    # A folder that does not exist yet.
    profile_path = str(local_box.path / "vendors" / "parrot.toml")
    status, stdout, complaint = shim("vendor", "draft", *files, "-o", profile_path)
    assert (status, complaint) == (0, "")
    assert b"complete its TODO lines" in stdout
    status, report, complaint = shim("vendor", "check", profile_path, *files, "--json")
    assert complaint == ""
    check_report = json.loads(report)
    assert {event["sort"]: event["name"] for event in check_report["findings"]} == {"tool": "beak"}
    assert (status, check_report["verbs"]["tool_result"], check_report["verbs"]["say"]) == (1, 2, 2)
    status, _, complaint = shim("vendor", "draft", *files, "-o", profile_path)
    assert status == 1 and "already exists" in complaint


def test_draft_is_printed_to_stdout_without_an_output_file(shim, local_box):
    path = local_box.path / "run.ndjson"
    path.write_text("".join(json.dumps(event) + "\n" for event in BIRD), encoding="utf-8")
    status, text, _ = shim("vendor", "draft", str(path), "--id", "bird")
    assert status == 0
    assert tomllib.loads(text.decode())["id"] == "bird"
    status, _, complaint = shim("vendor", "draft", str(path), "--id", "No Name")
    assert status == 2 and "may have only lower-case letters" in complaint
