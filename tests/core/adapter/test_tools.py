"""A vendor's tools in Claude's terms. test_vendors tests the table of each vendor."""

import pytest
from sweeps import loop_over_rows

from shim.adapters.pi import TOOLS as PI
from shim.adapters.qwen import TOOLS as QWEN
from shim.core.adapter.tools import (
    ToolMapping,
    build_edit_list_converter,
    build_vendor_arguments,
    convert_seconds_to_ms,
    convert_to_claude_todos,
    convert_zero_based_read_offset,
    list_claude_names,
    list_vendor_tool_names,
    translate_tool_call,
)
from shim.core.policy.evaluate import PolicyEvaluator
from shim.core.policy.policy import Policy, Workspace, parse_permission_rules

TABLE = {
    "sh": ToolMapping("Bash", {"cmd": "command"}, convert={"timeout": convert_seconds_to_ms}),
    "shell": ToolMapping("Bash"),
    "cat": ToolMapping("Read", {"path": "file_path"}, only_renamed=True),
    "find": ToolMapping("Glob", drop=("limit",), extra={"sorted": True}),
}


def test_tool_missing_from_the_table_is_passed_unchanged():
    assert translate_tool_call(TABLE, "unheard_of", {"a": 1}) == ("unheard_of", {"a": 1})


def test_plain_table_entry_renames_the_tool_without_copying_its_input():
    tool_input = {"command": "ls"}
    name, claude = translate_tool_call(TABLE, "shell", tool_input)
    assert (name, claude) == ("Bash", {"command": "ls"})
    assert claude is tool_input, "no copy where nothing changes (house: speed)"


def test_mapped_keys_are_renamed_and_other_keys_are_preserved():
    assert translate_tool_call(TABLE, "sh", {"cmd": "ls", "why": "x"}) == (
        "Bash",
        {"command": "ls", "why": "x"},
    )


def test_strict_table_entry_drops_unlisted_keys():
    assert translate_tool_call(TABLE, "cat", {"path": "/a", "requestId": "x"}) == (
        "Read",
        {"file_path": "/a"},
    )


@pytest.mark.parametrize("order", [1, -1])
def test_conflicting_values_of_two_alias_keys_are_all_reported(order):
    """It is unknown which key the vendor reads, so a policy must check both values."""
    tool_input = dict([("cmd", "rm x"), ("command", "ls")][::order])
    assert translate_tool_call(TABLE, "sh", tool_input) == (
        "Bash",
        {"command": list(tool_input.values())},
    )
    paths = dict([("absolute_path", "/w/in"), ("file_path", "/out"), ("path", "/w/in")][::order])
    name, claude = translate_tool_call(QWEN, "read_file", paths)
    policy = Policy(workspace=Workspace("/w"), deny=parse_permission_rules(("Read(//secret/**)",)))
    assert (name, sorted(claude["file_path"])) == ("Read", ["/out", "/w/in"])
    assert PolicyEvaluator(policy).evaluate_tool_call(name, claude, "default").outcome == "deny"
    assert (
        PolicyEvaluator(Policy(workspace=Workspace("/w")))
        .evaluate_tool_call(name, claude, "default")
        .outcome
        == "ask"
    )


def test_equal_values_of_two_alias_keys_are_merged():
    assert translate_tool_call(TABLE, "sh", {"cmd": "ls", "command": "ls"}) == (
        "Bash",
        {"command": "ls"},
    )


@pytest.mark.parametrize("order", [1, -1])
def test_key_that_the_vendor_tool_ignores_does_not_set_file_path(order):
    for name in ("read", "write", "edit"):
        tool_input = dict([("path", "/out"), ("file_path", "/w/in"), ("edits", "x")][::order])
        assert translate_tool_call(PI, name, tool_input)[1]["file_path"] == "/out"
        assert "file_path" not in translate_tool_call(PI, name, {"file_path": "/w/in"})[1]


def test_table_entry_can_drop_and_add_keys():
    assert translate_tool_call(TABLE, "find", {"pattern": "*", "limit": 3}) == (
        "Glob",
        {"pattern": "*", "sorted": True},
    )


@pytest.mark.parametrize(
    ("tool_input", "expected"),
    [({"timeout": 2}, 2000), ({"timeout": 0.5}, 500), ({"timeout": "x"}, "x")],
)
def test_numeric_timeout_is_converted_to_milliseconds(tool_input, expected):
    assert translate_tool_call(TABLE, "sh", tool_input) == ("Bash", {"timeout": expected})


def test_missing_or_null_value_is_not_converted():
    assert translate_tool_call(TABLE, "sh", {"timeout": None}) == ("Bash", {"timeout": None})
    assert translate_tool_call(TABLE, "sh", {}) == ("Bash", {})


@pytest.mark.parametrize("name", list(TABLE))
def test_translation_does_not_modify_the_vendor_arguments(name):
    tool_input = {"cmd": "ls", "path": "/a", "timeout": 1, "limit": 2}
    before = dict(tool_input)
    translate_tool_call(TABLE, name, tool_input)
    assert tool_input == before


@pytest.mark.parametrize(
    ("tool_input", "expected"),
    [(None, {}), ("{broken", {"raw": "{broken"}), ([1], {"raw": [1]}), (0, {"raw": 0})],
)
def test_arguments_that_are_not_an_object_are_wrapped_in_raw(tool_input, expected):
    """`input` must be an object (contract S6). The model's text is not lost."""
    assert translate_tool_call({}, "t", tool_input) == ("t", expected)


def test_vendor_tool_names_are_listed_as_claude_names_without_duplicates():
    assert list_claude_names(TABLE, ["sh", "shell", "cat", "other", 7, None]) == [
        "Bash",
        "Read",
        "other",
    ]


@pytest.mark.parametrize("names", [None, "sh", {"sh": 1}, 7])
def test_tool_names_that_are_not_a_list_yield_an_empty_list(names):
    assert list_claude_names(TABLE, names) == []


def test_claude_tool_names_are_mapped_to_vendor_tool_names():
    assert list_vendor_tool_names(TABLE, ("Bash", "Nothing")) == ["sh", "shell"]


RESHAPE = build_edit_list_converter("old", "new", "all")


@loop_over_rows(
    ("tool_input", "name", "expected"),
    [
        (
            {"file_path": "/a", "edits": [{"old": "x", "new": "y"}]},
            "Edit",
            {"file_path": "/a", "old_string": "x", "new_string": "y"},
        ),
        (
            {
                "file_path": "/a",
                "edits": [{"old": "x", "new": "y"}, {"old": "1", "new": "2", "all": True}],
            },
            "MultiEdit",
            {
                "file_path": "/a",
                "edits": [
                    {"old_string": "x", "new_string": "y"},
                    {"old_string": "1", "new_string": "2", "replace_all": True},
                ],
            },
        ),
        (
            {"file_path": "/a", "old": "x", "new": "y", "all": True},
            "Edit",
            {"file_path": "/a", "old_string": "x", "new_string": "y", "replace_all": True},
        ),
        ({"file_path": "/a", "edits": "broken"}, "Edit", {"file_path": "/a", "edits": "broken"}),
        (
            {"file_path": "/a", "edits": ["broken"]},
            "Edit",
            {"file_path": "/a", "edits": ["broken"]},
        ),
        ({"file_path": "/a", "edits": []}, "MultiEdit", {"file_path": "/a", "edits": []}),
    ],
)
def test_single_edit_becomes_edit_and_several_edits_become_multiedit(tool_input, name, expected):
    assert RESHAPE(tool_input) == (name, expected)


@pytest.mark.parametrize(("line", "expected"), [(0, 1), (9, 10), (None, None), ("x", "x")])
def test_zero_based_line_becomes_a_line_counted_from_1(line, expected):
    """qwen counts lines from 0."""
    assert convert_zero_based_read_offset(line) == expected


def test_vendor_todos_become_claude_todos():
    """The todos of cursor and qwen."""
    vendor_todos = [
        {"id": "1", "content": "a", "status": "TODO_STATUS_IN_PROGRESS"},
        {"content": "b", "status": "completed", "activeForm": "doing b"},
        {"content": "c"},
    ]
    assert convert_to_claude_todos(vendor_todos) == [
        {"content": "a", "status": "in_progress", "activeForm": "a"},
        {"content": "b", "status": "completed", "activeForm": "doing b"},
        {"content": "c", "status": "pending", "activeForm": "c"},
    ]


@loop_over_rows("items", ["x", None, 7, ["x"], [{"content": "a"}, 7]])
def test_unreadable_todos_are_passed_unchanged(items):
    assert convert_to_claude_todos(items) == items


# -- back to the vendor's terms --------------------------------------------------------------------


A = "/a"
WRITE = {"file_path": A, "content": ""}


@loop_over_rows(
    ("name", "vendor_input", "changed", "expected"),
    [
        ("run_shell_command", {"command": "a"}, {"command": "b"}, {"command": "b"}),
        (
            "run_shell_command",
            {"command": "a", "is_background": False},
            {"command": "a", "run_in_background": True},
            {"command": "a", "is_background": True},
        ),
        (
            "read_file",
            {"path": A, "offset": 0},
            {"file_path": A, "offset": 5},
            {"path": A, "offset": 4},
        ),
        ("read_file", {"absolute_path": A}, {"file_path": "/b"}, {"absolute_path": "/b"}),
        ("write_file", WRITE | {"content": "x"}, WRITE, WRITE),
        (
            "grep_search",
            {"pattern": "x", "limit": 3},
            {"pattern": "x", "output_mode": "content"},
            {"pattern": "x"},
        ),
        ("mcp__a__b", {"x": 1}, {"x": 2}, {"x": 2}),
        ("todo_write", {"todos": []}, {"todos": [{"content": "a"}]}, None),
        ("grep_search", {"pattern": "x"}, {"pattern": "x"}, None),
    ],
)
def test_changed_arguments_are_translated_back_if_the_table_supports_them(
    name, vendor_input, changed, expected
):
    """The result is translated again and equals the change. It is None if a table cannot express
    the change.
    """
    assert build_vendor_arguments(QWEN, name, vendor_input, changed) == expected
    if expected is not None and name in QWEN:
        assert translate_tool_call(QWEN, name, expected) == (QWEN[name].name, changed)
