"""The input of codex's hook for a call, in Claude's terms."""

import json

import pytest
from sweeps import loop_over_rows

from shim.adapters import codex_approval_hook
from shim.adapters.codex_hook import list_hook_calls
from shim.core.policy.policy import Workspace

HERE = Workspace("/work")


def parse_calls(name, tool_input, folder="/work"):
    return list_hook_calls(
        {
            "hook_event_name": "PreToolUse",
            "cwd": folder,
            "tool_name": name,
            "tool_input": tool_input,
        },
        HERE,
    )


def patch(*lines):
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch", ""])


def test_bash_command_maps_to_a_bash_call():
    assert parse_calls("Bash", {"command": "touch x"}) == [("Bash", {"command": "touch x"})]


@pytest.mark.parametrize(
    "name", ["spawn_agent", "wait_agent", "multi_agent_v1wait_agent", "multi_agent_v1send_input"]
)
def test_subagent_tools_map_to_task(name):
    assert parse_calls(name, {}) == [("Task", {})]


def test_command_in_another_folder_includes_the_directory():
    assert parse_calls("Bash", {"command": "touch x"}, "/other") == [
        ("Bash", {"command": "touch x", "directory": "/other"})
    ]


def test_each_file_of_a_patch_is_a_separate_call():
    patch_text = patch(
        *("*** Add File: a", "+x", "*** Update File: sub/b", "*** Move to: ../c", "@@", "-1", "+2"),
        *("*** Delete File: /d", "*** End of File"),
    )
    assert parse_calls("apply_patch", {"command": patch_text}) == [
        ("Write", {"file_path": "/work/a", "content": "x\n"}),
        ("Write", {"file_path": "/work/../c"}),
        ("Edit", {"file_path": "/work/sub/b", "old_string": "1\n", "new_string": "2\n"}),
        ("Delete", {"file_path": "/d"}),
    ]


def test_each_hunk_of_a_patch_is_an_edit_with_old_and_new_text():
    patch_text = patch("*** Update File: b", "@@", " 0", "-1", "+2", "@@ def f", "+3")
    assert parse_calls("apply_patch", {"command": patch_text}) == [
        ("Edit", {"file_path": "/work/b", "old_string": "0\n1\n", "new_string": "0\n2\n"}),
        ("Edit", {"file_path": "/work/b", "old_string": "", "new_string": "3\n"}),
    ]


@pytest.mark.parametrize("line", ["  *** Add File: a", "*** Add File:a", "\t*** Add File: a \r"])
def test_patch_header_with_extra_whitespace_is_parsed(line):
    assert parse_calls("apply_patch", {"command": patch(line, "+x")}) == [
        ("Write", {"file_path": "/work/a", "content": "x\n"})
    ]


def test_added_line_that_looks_like_a_patch_header_is_content():
    assert parse_calls(
        "apply_patch", {"command": patch("*** Add File: a", "+*** Add File: b")}
    ) == [("Write", {"file_path": "/work/a", "content": "*** Add File: b\n"})]


@pytest.mark.parametrize("delimiter", ["'EOF'", '"EOF"'])
def test_apply_patch_heredoc_command_is_parsed_as_a_patch(delimiter):
    command = f"apply_patch <<{delimiter}\n{patch('*** Add File: a', '+x')}EOF\n"
    assert parse_calls("Bash", {"command": command}, "/other") == [
        ("Write", {"file_path": "/other/a", "content": "x\n"})
    ]


@loop_over_rows(
    "command",
    [
        "apply_patch <<EOF\n*** Add File: a\n+$(touch b)\nEOF",
        "apply_patch <<'EOF'\n*** Add File: a\n+x\nEOF\ntouch b",
        "apply_patch <<'EOF'\n*** Add File: a\nEOF\ntouch b\nEOF",
        "apply_patch <<'EOF' && touch b\n*** Add File: a\n+x\nEOF",
        "touch b; apply_patch <<'EOF'\n*** Add File: a\n+x\nEOF",
        "./apply_patch <<'EOF'\n*** Add File: a\n+x\nEOF",
    ],
)
def test_command_with_more_than_a_patch_stays_a_bash_call(command):
    assert parse_calls("Bash", {"command": command}) == [("Bash", {"command": command})]


def test_tool_names_are_mapped_and_unknown_tools_are_unchanged():
    assert parse_calls("spawn_agent", {"message": "hi"}) == [("Task", {"message": "hi"})]
    assert parse_calls("view_image", {"path": "a.png"}) == [("Read", {"file_path": "/work/a.png"})]
    assert parse_calls("mcp__srv__tool", {"a": 1}) == [("mcp__srv__tool", {"a": 1})]
    assert parse_calls("something_new", {"a": 1}) == [("something_new", {"a": 1})]


@loop_over_rows(
    ("name", "tool_input", "folder"),
    [
        ("Bash", {"cmd": "touch x"}, "/work"),
        ("Bash", "touch x", "/work"),
        ("apply_patch", {"command": "no patch"}, "/work"),
        ("Bash", {"command": "touch x"}, "relative"),
        ("Bash", {"command": "touch x"}, None),
        (None, {"command": "touch x"}, "/work"),
        ("view_image", {}, "/work"),
    ],
)
def test_malformed_hook_event_raises_value_error(name, tool_input, folder):
    with pytest.raises(ValueError, match=r"the (event|call|patch)"):
        parse_calls(name, tool_input, folder)


def run_asking_hook(name, **tool_input):
    """Return whether codex asks about a call, and the input that the hook changes, if codex is run
    with prompts.
    """
    event = {"tool_name": name, "tool_input": tool_input, "cwd": HERE.cwd}
    answer = codex_approval_hook.format_hook_output("", event)
    changed = json.loads(answer)["hookSpecificOutput"]["updatedInput"] if answer else None
    return codex_approval_hook.can_ask(event, "default", "srv"), changed


def test_command_gets_a_prefix_that_makes_codex_prompt():
    assert run_asking_hook("Bash", command="touch x", more=1) == (
        True,
        {"command": ": claude-shim;touch x", "more": 1},
    )


@pytest.mark.parametrize("tool", ["Bash", "apply_patch"])
def test_patch_is_unchanged_because_codex_prompts_for_patches(tool):
    patch = "*** Begin Patch\n*** Add File: a\n+x\n*** End Patch\n"
    assert run_asking_hook(
        tool, command=patch if tool != "Bash" else f"apply_patch <<'P'\n{patch}P\n"
    ) == (
        True,
        None,
    )


def test_patch_followed_by_a_command_gets_the_prefix():
    assert (
        run_asking_hook("Bash", command="apply_patch <<'P'\n*** Add File: a\nP\ntouch x")[1]
        is not None
    )


def test_codex_prompts_only_for_tools_of_the_configured_server():
    assert run_asking_hook("mcp__srv__get", path="x") == (True, None)
    assert run_asking_hook("mcp__other__get", path="x") == (False, None)
    assert run_asking_hook("view_image", path="a.png") == (False, None)


@pytest.mark.parametrize("mode", ["plan", "dontAsk"])
def test_hook_cannot_prompt_in_plan_or_dont_ask_mode(mode):
    event = {"tool_name": "Bash", "tool_input": {"command": "touch x"}, "cwd": HERE.cwd}
    assert not codex_approval_hook.can_ask(event, mode, "srv")


def test_denied_call_is_not_rewritten():
    assert (
        codex_approval_hook.format_hook_output(
            "no", {"tool_name": "Bash", "tool_input": {"command": "ls"}}
        )
        == ""
    )
