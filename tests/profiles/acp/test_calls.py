"""The translation of an agent's calls to Claude's tools."""

import pytest
from sweeps import loop_over_rows

from shim.core.adapter.tools import ToolMapping
from shim.profiles.acp.calls import AcpToolCall, AcpToolCallFormat, AcpToolCallPattern

TOOLS = {
    "bash": ToolMapping("Bash"),
    "write": ToolMapping("Write", {"filePath": "file_path"}),
    "run_shell_command": ToolMapping("Bash"),
    "replace": ToolMapping("Edit"),
}


def diff(path, old, new):
    return {"type": "diff", "path": path, "oldText": old, "newText": new}


def note(text):
    return {"type": "content", "content": {"type": "text", "text": text}}


BY_TITLE, BY_ID = AcpToolCallFormat(), AcpToolCallFormat("id")


def translate_call(*updates, call_id="c1", form=BY_TITLE):
    call = AcpToolCall(call_id, form)
    for update in updates:
        call.apply_update(update)
    return call.translate_to_claude_tool(TOOLS)


def test_tool_name_is_read_from_the_first_title_and_input_from_an_update():
    first = {"title": "write", "kind": "edit", "rawInput": {}}
    then = {"title": "new.txt", "rawInput": {"filePath": "/w/new.txt", "content": "x"}}
    assert translate_call(first, then) == ("Write", {"file_path": "/w/new.txt", "content": "x"})


def test_last_nonempty_input_is_used():
    call = {"title": "bash", "kind": "execute"}
    assert translate_call(
        call, {"rawInput": {"command": "l"}}, {"rawInput": {"command": "ls"}}, {"rawInput": {}}
    ) == (
        "Bash",
        {"command": "ls"},
    )


@pytest.mark.parametrize(
    ("raw_input", "question", "expected"),
    [
        ({"filePath": "/w/a", "content": "x"}, {"filepath": "/w/a", "diff": "…"}, {"content": "x"}),
        (
            {"filePath": "/w/a", "content": "x"},
            {"filePath": "/w/a", "content": "y"},
            {"content": "y"},
        ),
        ({}, {"filePath": "/w/a", "content": "y"}, {"content": "y"}),
    ],
)
def test_input_of_a_permission_request_overrides_the_call_input(raw_input, question, expected):
    call = AcpToolCall("c1", BY_TITLE)
    call.apply_update({"title": "write", "kind": "edit", "rawInput": raw_input})
    updated_call = call.build_call_from_permission_request({"title": "/w/a", "rawInput": question})
    assert updated_call.translate_to_claude_tool(TOOLS) == (
        "Write",
        {"file_path": "/w/a"} | expected,
    )


def test_title_of_a_permission_request_overrides_the_command():
    call = AcpToolCall("run_shell_command__1", BY_ID)
    call.apply_update({"title": "ls", "kind": "execute"})
    assert call.build_call_from_permission_request({"title": "rm x"}).translate_to_claude_tool(
        TOOLS
    ) == (
        "Bash",
        {"command": "rm x"},
    )


@loop_over_rows(
    ("notes", "more"),
    [
        ("[current working directory /w]", {}),
        ("[current working directory /w] (Make it)", {"description": "Make it"}),
        ("[in /etc]", {"directory": "/etc"}),
        ("[in sub] [background]", {"directory": "sub"}),
        ("[in sub] (Make it) [background]", {"directory": "sub", "description": "Make it"}),
        *(
            (note_text, {"directory": f"/{note_text}", "description": note_text})
            for note_text in (
                "[in a] b] (Make it)",
                "[in a] (/../../etc] (Make it)",
                "[in /etc and more",
            )
        ),
        ("[in /etc] (Look)", {"directory": "/etc", "description": "Look"}),
        ("something else", {"description": "something else"}),
    ],
)
def test_command_without_an_input_is_read_from_the_title(notes, more):
    update = {"title": "ls\npwd", "kind": "execute", "content": [note(notes)]}
    result = translate_call(update, call_id="run_shell_command__1", form=BY_ID)
    assert result == ("Bash", {"command": "ls\npwd"} | more)


def test_edit_without_an_input_is_read_from_the_diff():
    options = {"call_id": "replace__1", "form": BY_ID}
    edit = {"title": "a: x => y", "kind": "edit", "content": [diff("/w/a", "x", "y")]}
    assert translate_call(edit, **options) == (
        "Edit",
        {"file_path": "/w/a", "old_string": "x", "new_string": "y"},
    )
    new = {"kind": "edit", "content": [diff("/w/a", "", "y")]}
    assert translate_call(new, **options) == ("Write", {"file_path": "/w/a", "content": "y"})


def test_edit_of_several_files_lists_all_files():
    result = translate_call(
        {"kind": "edit", "content": [diff("/w/a", "x", "y"), diff("/etc/b", "x", "y")]}, form=BY_ID
    )
    assert result == ("Edit", {"files": ["/w/a", "/etc/b"]})


def test_unknown_tool_preserves_its_name_and_input():
    assert translate_call({"title": "srv_find", "kind": "other", "rawInput": {"q": 1}}) == (
        "srv_find",
        {"q": 1},
    )


def test_permission_request_of_another_kind_overrides_the_tool():
    call = AcpToolCall("c1", BY_TITLE)
    call.apply_update({"title": "read", "kind": "read", "rawInput": {"filePath": "/w/a"}})
    updated_call = call.build_call_from_permission_request(
        {"title": "touch x", "kind": "execute", "rawInput": {"command": "touch x"}}
    )
    assert updated_call.translate_to_claude_tool(
        TOOLS | {"read": ToolMapping("Read", only_renamed=True)}
    ) == (
        "Bash",
        {"command": "touch x"},
    )


def test_command_of_an_execute_call_is_translated_to_bash():
    call = AcpToolCall("c1", BY_TITLE)
    call.apply_update({"title": "read", "kind": "execute", "rawInput": {"command": "touch x"}})
    assert call.translate_to_claude_tool(
        TOOLS | {"read": ToolMapping("Read", only_renamed=True)}
    ) == (
        "Bash",
        {"command": "touch x"},
    )


IN_CONTENT = AcpToolCallFormat(input_in_content=True)
BY_KIND = AcpToolCallFormat(
    "kind", {"bash": AcpToolCallPattern("execute", keys=("command",))}, {"execute": ("commands",)}
)


def test_input_in_the_content_is_available_once_complete():
    call = AcpToolCall("c1", IN_CONTENT)
    call.apply_update(
        {"title": "bash", "status": "in_progress", "content": [note('{"command": "a}')]}
    )
    assert not call.has_input
    call.apply_update(
        {"title": "bash: a}b", "status": "in_progress", "content": [note('{"command": "a}b"}')]}
    )
    call.apply_update({"status": "completed", "content": [note('{"of": "the result"}')]})
    assert call.translate_to_claude_tool(TOOLS) == ("Bash", {"command": "a}b"})


def test_unnamed_tool_is_identified_by_kind_and_permission_request_keys():
    first = {
        "sessionUpdate": "tool_call",
        "title": "Look",
        "kind": "execute",
        "rawInput": {"command": "ls"},
    }
    call = AcpToolCall("c1", BY_KIND)
    call.apply_update(first)
    question = {"kind": "execute", "rawInput": {"command": "ls", "commands": ["ls"]}}
    assert call.build_call_from_permission_request(question).translate_to_claude_tool(TOOLS) == (
        "Bash",
        {"command": "ls"},
    )
    assert call.build_call_from_permission_request(first).translate_to_claude_tool(TOOLS) == (
        "unknown",
        {"title": "Look", "command": "ls"},
    )
    assert (
        AcpToolCall("c2", BY_KIND)
        .build_call_from_permission_request(question)
        .translate_to_claude_tool(TOOLS)[0]
        == "unknown"
    )


@pytest.mark.parametrize("order", [1, -1])
def test_conflicting_command_keys_yield_a_list_of_commands(order):
    raw_input = dict([("cmd", "rm x"), ("command", "ls")][::order])
    call = AcpToolCall("c1", BY_TITLE)
    call.apply_update({"title": "sh", "kind": "execute", "rawInput": raw_input})
    name, tool_input = call.translate_to_claude_tool(
        {"sh": ToolMapping("Bash", {"cmd": "command"})}
    )
    assert (name, tool_input["command"]) == ("Bash", list(raw_input.values()))


SEARCHES = AcpToolCallFormat(
    "kind", {"look": AcpToolCallPattern("read", "Searching ", ("pattern",))}, {"read": ("path",)}
)


@loop_over_rows(
    ("raw_input", "paths"),
    [
        ({"places": "/out"}, {"path": "/out"}),
        ({}, {"path": "/out"}),
        ({"places": "a /out"}, {"path": ["a /out", "/out"]}),
        ({"places": ["a", "/out"]}, {"path": ["a", "/out"]}),
        ({"places": ["a", "b"]}, {"path": [["a", "b"], "/out"]}),
    ],
)
def test_path_of_a_permission_request_is_added_to_the_call_paths(raw_input, paths):
    call = AcpToolCall("c1", SEARCHES)
    call.apply_update(
        {
            "sessionUpdate": "tool_call",
            "title": "Searching x",
            "kind": "read",
            "rawInput": {"pattern": "x"} | raw_input,
        }
    )
    updated_call = call.build_call_from_permission_request(
        {"title": "Access", "kind": "read", "rawInput": {"path": "/out"}}
    )
    tools = {"look": ToolMapping("Grep", {"places": "path"})}
    assert updated_call.translate_to_claude_tool(tools) == ("Grep", {"pattern": "x"} | paths)


def test_path_of_the_call_does_not_hide_the_path_of_the_permission_request():
    call = AcpToolCall("c1", SEARCHES)
    raw_input = {"pattern": "x", "places": "a /out", "path": "a"}
    call.apply_update(
        {
            "sessionUpdate": "tool_call",
            "title": "Searching x",
            "kind": "read",
            "rawInput": raw_input,
        }
    )
    updated_call = call.build_call_from_permission_request(
        {"title": "Access", "kind": "read", "rawInput": {"path": "/out"}}
    )
    tools = {"look": ToolMapping("Grep", {"places": "path"}, drop=("path",))}
    assert updated_call.translate_to_claude_tool(tools)[1]["path"] == ["a /out", "/out"]
    tools = {"look": ToolMapping("Read", {"path": "file_path"}, only_renamed=True)}
    assert updated_call.translate_to_claude_tool(tools) == ("Read", {"file_path": "/out"})


def test_call_of_a_missing_tool_keeps_its_name_and_has_failed():
    """opencode 1.18 runs `invalid` instead, and reports success."""
    call = AcpToolCall("c1", AcpToolCallFormat(missing_tool="invalid"))
    call.apply_update({"title": "bash", "kind": "execute", "rawInput": {}})
    assert not call.is_missing
    call.apply_update({"title": "invalid", "rawInput": {"tool": "bash", "error": "unavailable"}})
    call.apply_update({"title": "Invalid Tool", "status": "completed"})
    assert call.is_missing
    assert call.translate_to_claude_tool(TOOLS)[0] == "Bash"
    assert "error" not in call.translate_to_claude_tool(TOOLS)[1]
