"""`tool_use_result`, the machine-readable form beside a tool's result (contract 5.4, S8)."""

import pytest
from sweeps import loop_over_rows
from turn_stage import Stage


def sibling(
    name: str, tool_input: dict, content: object, failed: bool = False, limit: int = 0
) -> object:
    """Return the value beside a result, or "absent"."""
    stage = Stage(limit=limit)
    stage.turn.add_tool_call("t", name, tool_input)
    stage.take_lines()
    stage.turn.add_tool_result("t", content, failed)
    return stage.take_lines()[-1].get("tool_use_result", "absent")


def test_bash_tool_use_result_contains_stdout():
    """S8"""
    assert sibling("Bash", {"command": "ls"}, "a\nb") == {
        "stdout": "a\nb",
        "stderr": "",
        "interrupted": False,
        "isImage": False,
    }


def test_read_has_no_tool_use_result():
    assert sibling("Read", {"file_path": "/a", "offset": 5}, "x\ny\nz") == "absent"


def test_write_tool_use_result_contains_path_and_content():
    """S8"""
    assert sibling("Write", {"file_path": "/a", "content": "x"}, "written") == {
        "type": "create",
        "filePath": "/a",
        "content": "x",
        "structuredPatch": [],
        "originalFile": None,
        "userModified": False,
    }


@pytest.mark.parametrize(("extra_input", "every"), [({}, False), ({"replace_all": True}, True)])
def test_edit_tool_use_result_contains_both_strings(extra_input, every):
    """S8"""
    assert sibling(
        "Edit", {"file_path": "/a", "old_string": "x", "new_string": "y"} | extra_input, "edited"
    ) == {
        "filePath": "/a",
        "oldString": "x",
        "newString": "y",
        "originalFile": None,
        "structuredPatch": [],
        "userModified": False,
        "replaceAll": every,
    }


@pytest.mark.parametrize("name", ["Bash", "Read", "mcp__x__y"])
def test_tool_use_result_of_a_failure_is_its_text_with_a_prefix(name):
    """S8"""
    assert sibling(name, {}, "no such file", True) == "Error: no such file"
    assert sibling(name, {}, 'quo"te\n!', True) == 'Error: quo"te\n!'
    assert sibling(name, {}, "", True) == "Error: "


@pytest.mark.parametrize("name", ["Glob", "Grep", "constructor"])
def test_tool_without_a_result_format_has_no_tool_use_result(name):
    assert sibling(name, {}, "out") == "absent"


def test_tool_use_result_of_an_mcp_tool_has_its_blocks():
    blocks = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert sibling("mcp__x__y", {}, blocks) == blocks
    assert sibling("mcp__x__y", {}, {"structuredContent": {}}) == "absent"


def test_large_blocks_of_an_mcp_tool_are_written_once():
    blocks = [{"type": "image", "source": {"data": "x" * 300_000}}]
    assert sibling("mcp__x__y", {}, blocks, limit=1_000_000) == "absent"


@pytest.mark.parametrize("failed", [False, True])
def test_result_of_content_blocks_has_no_tool_use_result(failed):
    """An image stays in the result itself."""
    assert sibling("Read", {}, [{"type": "image", "source": {}}], failed) == "absent"


@loop_over_rows(
    "tool_input",
    [
        {"file_path": "\ud83d", "content": "\ud83d", "old_string": "\ud83d"},
        {"file_path": 10**30, "content": {"x": float("nan")}, "offset": "x"},
        {"file_path": ["x"], "offset": None},
    ],
)
@loop_over_rows("name", ["Bash", "Read", "Write", "Edit"])
def test_arguments_of_an_unexpected_type_do_not_raise(name, tool_input):
    assert sibling(name, tool_input, "out") is not None
