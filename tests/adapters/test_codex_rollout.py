"""File changes that codex's stream leaves out. They are read from its record of the thread.

The lines of the record are those of codex 0.169.0, shortened to what the shim reads.
`tests/e2e/test_codex.py` proves that a real codex writes them in time.
"""

import json
from types import SimpleNamespace

import pytest
from policy_builder import build_evaluator
from profile_builder import find_result_line
from stream_lines import parse_lines, summarize_lines
from sweeps import loop_over_rows
from turn_stage import build_turn_config

from shim.adapters import get_adapter
from shim.adapters.codex_rollout import (
    DAY_OFFSETS,
    MAX_SEARCHES,
    CodexRollout,
    find_turn_before_prompts,
    split_diff_hunks,
)
from shim.conversation.drivers.open_translation import STABLE_ID_PREFIX, create_output_writer
from shim.core.adapter.child_stream import ChildStream
from shim.core.turn.outcome import ChildExit
from shim.process.vendor_data_dir import VendorDataDir
from shim.recording.replay_adapter import build_replay_adapter

THREAD = "01a20174-71a6-7fd0-b4cf-cf7873a5a0f9"  # started on 2026-11-22
HERE = "/home/dev/project"
BEGIN = {"type": "thread.started", "thread_id": THREAD}
USED = {"input_tokens": 120, "cached_input_tokens": 20, "output_tokens": 30}
DONE = {"type": "turn.completed", "usage": USED}
A, NEW = f"{HERE}/a.txt", f"{HERE}/new.txt"
TWO = {
    A: {
        "type": "update",
        "unified_diff": "@@ -1,2 +1,2 @@\n-hello world\n+HELLO world\n second\n",
        "move_path": None,
    },
    NEW: {"type": "add", "content": "line one\nline two\n"},
}
SUCCESS = "Success. Updated the following files:\nA new.txt\nM a.txt\n"


def record(kind, **payload):
    return {
        "timestamp": "2026-11-22T04:12:18.290Z",
        "type": "event_msg",
        "payload": {"type": kind, **payload},
    }


TASK_STARTED = record("task_started", turn_id="t")


def build_file_change(item_id, changes, status="completed", stdout=SUCCESS, stderr=""):
    """Return a line of the record: the changed files."""
    item = {"type": "FileChange", "id": item_id, "changes": changes}
    return record(
        "item_completed", item={**item, "status": status, "stdout": stdout, "stderr": stderr}
    )


def item(kind, item_id, *paths, status="completed", what="update"):
    """Return a line of the stream: a file change that starts or has ended."""
    changes = [{"path": path, "kind": what} for path in paths]
    fields = {"id": item_id, "type": "file_change", "changes": changes, "status": status}
    return {"type": f"item.{kind}", "item": fields}


def build_file_change_items(item_id, *paths, **more):
    return [item("started", item_id, *paths, **more), item("completed", item_id, *paths, **more)]


@pytest.fixture
def records(tmp_path):
    """Return a function that writes lines to the record of the thread. It returns the configuration
    that a launcher would pass.
    """

    def put(*lines, day="22", **config_fields):
        folder = tmp_path / ".codex" / "sessions" / "2026" / "11" / day
        folder.mkdir(parents=True)
        text = "".join((entry if isinstance(entry, str) else dump(entry)) + "\n" for entry in lines)
        (folder / f"rollout-2026-11-22T04-12-18-{THREAD}.jsonl").write_text(text, encoding="utf-8")
        data_dir = VendorDataDir("CODEX_HOME", ".codex", {"HOME": str(tmp_path)})
        return build_turn_config("codex", data_dir=data_dir, **config_fields)

    return put


def dump(value):
    return json.dumps(value, separators=(",", ":"))


def lines(config, *events, code=0):
    translation = ChildStream(
        get_adapter("codex").translator_class,
        config,
        create_output_writer("claude", STABLE_ID_PREFIX),
    )
    data = "".join(dump(event) + "\n" for event in (BEGIN, *events)).encode()
    return parse_lines(
        translation.feed(data)[0]
        + translation.close(None if code is None else ChildExit(code=code))[0]
    )


def calls(events):
    """Return the name and arguments of every call."""
    blocks = [
        block
        for line in events
        if line["type"] == "assistant"
        for block in line["message"]["content"]
    ]
    return [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]


EDIT = (
    "Edit",
    {"file_path": A, "old_string": "hello world\nsecond\n", "new_string": "HELLO world\nsecond\n"},
)
WRITE = ("Write", {"file_path": NEW, "content": "line one\nline two\n"})


def test_file_change_emits_tool_calls_with_contents_and_results(records):
    output = lines(
        records(TASK_STARTED, build_file_change("c1", TWO)),
        *build_file_change_items("item_0", A, NEW),
        DONE,
    )
    assert calls(output) == [EDIT, WRITE]
    results = [line for line in output if line["type"] == "user"]
    assert [line["message"]["content"][0]["content"] for line in results] == [SUCCESS.strip()] * 2
    assert results[0]["tool_use_result"]["oldString"] == "hello world\nsecond\n"
    assert results[1]["tool_use_result"]["content"] == "line one\nline two\n"


@pytest.mark.parametrize("day", ["21", "22", "23"])
def test_rollout_is_read_from_date_folders_of_adjacent_days(records, day):
    assert (
        calls(
            lines(
                records(TASK_STARTED, build_file_change("c1", TWO), day=day),
                *build_file_change_items("item_0", A, NEW),
                DONE,
            )
        )[0]
        == EDIT
    )


def test_change_with_several_hunks_emits_an_edit_per_hunk(records):
    diff = "@@ -3,3 +3,3 @@\n line2\n-line3\n+LINE3\n line4\n@@ -39,2 +39,2 @@\n line38\n-line39\n+LINE39\n"
    config = records(
        TASK_STARTED,
        build_file_change("c1", {A: {"type": "update", "unified_diff": diff, "move_path": None}}),
    )
    output = lines(config, *build_file_change_items("item_0", A), DONE)
    pairs = [
        (tool_input["old_string"], tool_input["new_string"]) for _, tool_input in calls(output)
    ]
    assert pairs == [
        ("line2\nline3\nline4\n", "line2\nLINE3\nline4\n"),
        ("line38\nline39\n", "line38\nLINE39\n"),
    ]
    assert len(summarize_lines(output)) == len(["init", *["call"] * 2, *["result"] * 2, "end"])


def test_result_of_a_moved_file_reports_its_new_path(records):
    change = {
        "type": "update",
        "unified_diff": TWO[A]["unified_diff"],
        "move_path": f"{HERE}/b.txt",
    }
    output = lines(
        records(TASK_STARTED, build_file_change("c1", {A: change})),
        *build_file_change_items("item_0", A),
        DONE,
    )
    (result,) = (line for line in output if line["type"] == "user")
    assert f"{A} is now {HERE}/b.txt" in result["message"]["content"][0]["content"]


def test_deleted_file_emits_a_delete_call_without_contents(records):
    config = records(
        TASK_STARTED, build_file_change("c1", {A: {"type": "delete", "content": "hello\n"}})
    )
    assert calls(lines(config, *build_file_change_items("item_0", A, what="delete"), DONE)) == [
        ("Delete", {"file_path": A})
    ]


def test_failed_file_change_reports_its_stderr(records):
    why = f"Failed to write file {NEW}\n"
    config = records(
        TASK_STARTED,
        build_file_change("c1", {NEW: TWO[NEW]}, status="failed", stdout="", stderr=why),
    )
    output = lines(config, *build_file_change_items("item_0", NEW, status="failed"), DONE)
    (block,) = (line["message"]["content"][0] for line in output if line["type"] == "user")
    assert block["is_error"] and block["content"] == why.strip()


def test_changes_of_the_same_file_are_emitted_in_order(records):
    other = {
        A: {"type": "update", "unified_diff": "@@ -2 +2 @@\n-second\n+2nd\n", "move_path": None}
    }
    config = records(
        TASK_STARTED, build_file_change("c1", {A: TWO[A]}), build_file_change("c2", other)
    )
    output = lines(
        config, *build_file_change_items("item_0", A), *build_file_change_items("item_1", A), DONE
    )
    assert [tool_input["new_string"] for _, tool_input in calls(output)] == [
        "HELLO world\nsecond\n",
        "2nd\n",
    ]


@pytest.mark.parametrize(
    "before",
    [
        [TASK_STARTED, build_file_change("c0", {A: TWO[A]}), TASK_STARTED],
        [TASK_STARTED, build_file_change("c0", {NEW: TWO[NEW]})],
        [TASK_STARTED, dump(build_file_change("c0", {A: TWO[A]}))[:-9]],
        [
            TASK_STARTED,
            '{"type":"FileChange"',
            '["type":"FileChange"]',
            dump({"payload": {"item": {"type": "FileChange"}}}),
        ],
        [TASK_STARTED, record("agent_message", message=dump(build_file_change("c0", {A: TWO[A]})))],
        [],
    ],
    ids=["an earlier turn's", "another file's", "a cut one", "broken ones", "a quoted one", "none"],
)
def test_change_missing_from_the_rollout_is_emitted_without_contents(records, before):
    output = lines(records(*before), *build_file_change_items("item_0", A), DONE)
    assert calls(output) == [("Edit", {"file_path": A})]
    assert find_result_line(output)["shim"]["repairs"] == {}


def test_unfinished_change_is_emitted_as_failed_at_the_end(records):
    config = records(TASK_STARTED, build_file_change("c1", TWO))
    for end in ([DONE], []):
        output = lines(config, item("started", "item_0", A, NEW), *end, code=0 if end else 1)
        assert calls(output) == [("Edit", {"file_path": A}), ("Edit", {"file_path": NEW})]
        assert [summary.partition(":")[0] for summary in summarize_lines(output)][-3:-1] == [
            "failed",
            "failed",
        ]


def test_denied_change_stops_the_turn_when_the_change_starts(records):
    config = records(
        TASK_STARTED, build_file_change("c1", TWO), evaluator=build_evaluator(deny=("Edit",))
    )
    translation = ChildStream(
        get_adapter("codex").translator_class,
        config,
        create_output_writer("claude", STABLE_ID_PREFIX),
    )
    output = translation.feed(f"{dump(BEGIN)}\n{dump(item('started', 'item_0', A))}\n".encode())[0]
    assert translation.is_turn_finished, "before the change has ended"
    assert find_result_line(parse_lines(output))["shim"]["cause"] == "denied"


def test_change_has_contents_when_another_tool_is_denied(records):
    config = records(
        TASK_STARTED, build_file_change("c1", TWO), evaluator=build_evaluator(deny=("Bash",))
    )
    assert calls(lines(config, *build_file_change_items("item_0", A, NEW), DONE)) == [EDIT, WRITE]


@pytest.mark.parametrize(
    "changes", [None, [], ["x"], [{"path": 1, "kind": "add"}], [{"path": A}], {"path": A}]
)
def test_malformed_change_list_does_not_fail_the_turn(records, changes):
    events = build_file_change_items("item_0", A)
    for event in events:
        event["item"]["changes"] = changes
    output = lines(records(TASK_STARTED, build_file_change("c1", TWO)), *events, DONE)
    assert summarize_lines(output)[-1].startswith("end:success")


@pytest.mark.parametrize(
    "thread", ["x", "../../../../etc", "ffffffff-ffff-7fff-bfff-ffffffffffff", ""]
)
def test_rollout_is_not_read_for_an_invalid_thread_id(records, thread):
    """Threat: session ids from the vendor's output that become file names."""
    config = records(TASK_STARTED, build_file_change("c1", TWO))
    translation = ChildStream(
        get_adapter("codex").translator_class,
        config,
        create_output_writer("claude", STABLE_ID_PREFIX),
    )
    events = [
        {"type": "thread.started", "thread_id": thread},
        *build_file_change_items("item_0", A),
        DONE,
    ]
    data = translation.feed("".join(dump(event) + "\n" for event in events).encode())[0]
    assert calls(parse_lines(data + translation.close(ChildExit(code=0))[0])) == [
        ("Edit", {"file_path": A})
    ]


def test_missing_rollout_is_searched_a_limited_number_of_times():
    """`codex exec --ephemeral` writes no record. A folder may have thousands of others."""
    searched_folders = []

    class Nowhere:
        def find_file(self, folder, ending):
            searched_folders.append(folder)

    record = CodexRollout(Nowhere(), "0198c0de-0000-7000-8000-000000000000")
    for _ in range(5 * MAX_SEARCHES):
        assert record.take_unstreamed_tool_calls() == []
    assert len(searched_folders) == MAX_SEARCHES * len(DAY_OFFSETS)


def test_warning_before_the_turn_emits_no_calls_of_the_previous_turn(records):
    """The record of a resumed thread ends with its previous turn."""
    warning = {
        "type": "item.completed",
        "item": {"id": "item_0", "type": "error", "message": "Model metadata"},
    }
    config = records(TASK_STARTED, *build_call_records("exec_command", shell("touch x"), EXITED))
    translation = ChildStream(
        get_adapter("codex").translator_class,
        config,
        create_output_writer("claude", STABLE_ID_PREFIX),
    )
    assert (
        calls(parse_lines(translation.feed(f"{dump(BEGIN)}\n{dump(warning)}\n".encode())[0])) == []
    )


def test_rollout_is_not_read_without_a_data_dir():
    output = lines(build_turn_config("codex"), *build_file_change_items("item_0", A), DONE)
    assert calls(output) == [("Edit", {"file_path": A})]


# -- calls that are missing from the stream --------------------------------------------------------

ADD = f"*** Begin Patch\n*** Add File: made.txt\n+x\n+\n*** Update File: {A}\n@@\n one\n-two\n+2\n*** End Patch\n"
AGENT_MESSAGE = {
    "type": "item.completed",
    "item": {"id": "item_9", "type": "agent_message", "text": "So."},
}
PATCHED = [
    ("Write", {"file_path": f"{HERE}/made.txt", "content": "x\n\n"}),
    ("Edit", {"file_path": A, "old_string": "one\ntwo\n", "new_string": "one\n2\n"}),
]
EXITED = (
    "Chunk ID: 6750ad\nWall time: 0.0000 seconds\nProcess exited with code 1\n"
    "Output:\ntouch: Read-only file system\n"
)


def build_call_records(name, raw_input, output, call_id="c1"):
    """Return two lines of the record: a call and its output."""
    more = {"input": raw_input} if name == "apply_patch" else {"arguments": raw_input}
    kind = "custom_tool_call" if name == "apply_patch" else "function_call"
    output = record(f"{kind}_output", call_id=call_id, output=output)
    return [record(kind, name=name, call_id=call_id, **more), output]


def shell(command):
    return json.dumps({"cmd": command})


REJECTED = (
    "patch rejected: writing is blocked by read-only sandbox; rejected by user approval settings"
)


@pytest.mark.parametrize(
    ("name", "raw_input", "output", "expected"),
    [
        ("exec_command", shell("touch x"), EXITED, [("Bash", {"command": "touch x"})]),
        ("apply_patch", ADD, REJECTED, PATCHED),
        ("exec_command", shell(f"apply_patch <<'EOF'\n{ADD}EOF"), REJECTED, PATCHED),
        ("apply_patch", ADD, f"apply_patch verification failed: no lines in {A}", PATCHED),
        (
            "apply_patch",
            "x",
            "apply_patch verification failed: x",
            [("apply_patch", {"input": "x"})],
        ),
        ("update_plan", "{}", "unsupported call: update_plan", [("update_plan", {})]),
        (
            "exec_command",
            "{}",
            "failed to parse function arguments: missing field `cmd`",
            [("exec_command", {})],
        ),
        (
            "exec_command",
            "{",
            "failed to parse function arguments: EOF",
            [("exec_command", {"raw": "{"})],
        ),
    ],
)
def test_call_without_an_item_is_emitted_with_its_error(records, name, raw_input, output, expected):
    events = lines(
        records(TASK_STARTED, *build_call_records(name, raw_input, output), cwd=HERE),
        AGENT_MESSAGE,
        DONE,
    )
    assert calls(events) == expected
    results = [line["message"]["content"][0] for line in events if line["type"] == "user"]
    assert all(result["is_error"] and result["content"] in output for result in results)
    assert len(find_result_line(events)["permission_denials"]) == (
        len(expected) if output == REJECTED else 0
    )
    assert [summary.partition(":")[0] for summary in summarize_lines(events)][-2:] == [
        "text",
        "end",
    ]


def test_call_without_an_item_is_emitted_once(records):
    config = records(TASK_STARTED, *build_call_records("exec_command", shell("touch x"), EXITED))
    assert len(calls(lines(config, AGENT_MESSAGE, AGENT_MESSAGE, DONE))) == 1


def test_command_with_exit_code_0_is_not_an_error(records):
    config = records(
        TASK_STARTED,
        *build_call_records("exec_command", shell("true"), EXITED.replace("code 1", "code 0")),
    )
    (block,) = (
        line["message"]["content"][0] for line in lines(config, DONE) if line["type"] == "user"
    )
    assert not block["is_error"]


@pytest.mark.parametrize(
    "entries",
    [
        build_call_records(
            "exec_command", shell("x"), "Chunk ID: 1\nProcess running with session ID 7\nOutput:\n"
        ),
        build_call_records("write_stdin", "{}", EXITED),
        build_call_records("view_image", "{}", "attached"),
        build_call_records("exec_command", shell("x"), [{"type": "input_image"}]),
        build_call_records("exec_command", shell("x"), EXITED)[1:],
        build_call_records("exec_command", shell("x"), EXITED)[:1],
        [*build_call_records("exec_command", shell("x"), EXITED), TASK_STARTED],
    ],
    ids=[
        "still runs",
        "a poll",
        "another tool",
        "no text",
        "no call",
        "no output",
        "an earlier turn",
    ],
)
def test_incomplete_or_unrelated_rollout_call_is_not_emitted(records, entries):
    assert calls(lines(records(TASK_STARTED, *entries), AGENT_MESSAGE, DONE)) == []


def test_command_with_a_completed_item_is_not_emitted_from_the_rollout(records):
    call, output = build_call_records("exec_command", shell("x"), EXITED)
    done = record("item_completed", item={"type": "CommandExecution", "id": "c1"})
    assert calls(lines(records(TASK_STARTED, call, done, output), AGENT_MESSAGE, DONE)) == []


def test_partial_rollout_line_is_read_when_complete(records, tmp_path):
    config = records(TASK_STARTED)
    (file,) = tmp_path.rglob("*.jsonl")
    text = "".join(
        dump(entry) + "\n" for entry in build_call_records("exec_command", shell("touch x"), EXITED)
    )
    translation = ChildStream(
        get_adapter("codex").translator_class,
        config,
        create_output_writer("claude", STABLE_ID_PREFIX),
    )
    data = translation.feed(dump(BEGIN).encode() + b"\n")[0]
    for piece in (text[:-9], text[-9:]):
        with file.open("a", encoding="utf-8") as growing:
            growing.write(piece)
        data += translation.feed(dump(AGENT_MESSAGE).encode() + b"\n")[0]
    assert [name for name, _ in calls(parse_lines(data))] == ["Bash"]


@loop_over_rows(
    ("diff", "expected"),
    [
        ("", []),
        ("@@ -0,0 +1 @@\n+x\n", [("", "x\n")]),
        ("@@ -1,3 +1,3 @@\n a\n \n-b\n+c\n", [("a\n\nb\n", "a\n\nc\n")]),
        ("@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n", [("a", "b\n")]),
        ("@@ -1,2 +1,2 @@\n-x\n+y\n a\n\\ No newline at end of file\n", [("x\na", "y\na")]),
        ("@@ -1 +1 @@\n-@@ -1 @@\n+a\x0bb\u2028c\r\n", [("@@ -1 @@\n", "a\x0bb\u2028c\r\n")]),
    ],
)
def test_split_hunks_returns_old_and_new_text_pairs(diff, expected):
    assert list(split_diff_hunks(diff)) == expected


SAYS = {
    "type": "item.completed",
    "item": {"id": "item_0", "type": "agent_message", "text": "hello"},
}


def context(**payload):
    return {"timestamp": "2026-11-22T04:12:18.290Z", "type": "turn_context", "payload": payload}


def test_model_is_read_from_the_rollout(records):
    output = lines(records(TASK_STARTED, context(cwd=HERE, model="gpt-6")), SAYS, DONE)
    assert [line["message"]["model"] for line in output if line["type"] == "assistant"] == ["gpt-6"]
    assert list(output[-1]["modelUsage"]) == ["gpt-6"]


def test_model_of_the_latest_turn_is_used(records):
    output = lines(
        records(TASK_STARTED, context(model="old"), TASK_STARTED, context(model="new")), SAYS, DONE
    )
    assert list(output[-1]["modelUsage"]) == ["new"]


@pytest.mark.parametrize("entries", [[], [context(cwd=HERE)], [{"type": "turn_context"}]])
def test_model_is_unknown_if_the_rollout_names_none(records, entries):
    output = lines(records(TASK_STARTED, *entries), SAYS, DONE)
    assert list(output[-1]["modelUsage"]) == ["unknown"]


def test_replay_adapter_has_no_data_dir():
    """A replay runs nothing. The person's own codex is not involved."""

    recorded = build_replay_adapter(
        "codex",
        SimpleNamespace(child_id="", build_launch=get_adapter("demo").build_launch),
        persistent=True,
        without_passthrough=False,
    )
    assert recorded.environment.data_dir is None


# -- the prompts of a thread -----------------------------------------------------------------------


def build_prompt(turn, text):
    content = [{"type": "text", "text": text, "text_elements": []}]
    return record("item_completed", turn_id=turn, item={"type": "UserMessage", "content": content})


THREE_PROMPTS = (build_prompt("u1", "one"), build_prompt("u2", "two"), build_prompt("u3", "three"))


@loop_over_rows(
    ("prompts", "turn"),
    [
        (("three",), "u2"),
        (("two", "three"), "u1"),
        (("one", "two", "three"), ""),  # no turn is before them
        (("two",), ""),  # the thread has another last prompt
        ((), ""),
        (("zero", "one", "two", "three"), ""),
    ],
)
def test_rollout_names_the_turn_before_the_last_prompts(tmp_path_factory, prompts, turn):
    data_dir = write_prompts(tmp_path_factory.mktemp("home"), *THREE_PROMPTS)
    assert find_turn_before_prompts(data_dir, THREAD, prompts) == turn


def write_prompts(home, *entries):
    folder = home / ".codex" / "sessions" / "2026" / "11" / "22"
    folder.mkdir(parents=True)
    text = "".join(f"{dump(entry)}\n" for entry in entries)
    (folder / f"rollout-2026-11-22T04-12-18-{THREAD}.jsonl").write_text(text, encoding="utf-8")
    return VendorDataDir("CODEX_HOME", ".codex", {"HOME": str(home)})


def test_prompt_that_was_sent_into_a_turn_starts_no_turn(tmp_path):
    """codex can only drop complete turns."""
    data_dir = write_prompts(tmp_path, build_prompt("u1", "one"), build_prompt("u1", "two"))
    assert find_turn_before_prompts(data_dir, THREAD, ("two",)) == ""


def test_damaged_prompts_in_a_rollout_are_skipped(tmp_path):
    damaged = record("item_completed", item={"type": "UserMessage", "content": None})
    data_dir = write_prompts(tmp_path, damaged, *THREE_PROMPTS)
    assert find_turn_before_prompts(data_dir, THREAD, ("three",)) == "u2"
    assert find_turn_before_prompts(data_dir, "no-thread", ("three",)) == ""
