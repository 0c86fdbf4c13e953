"""`init.tools` lists the tools that can run, in each mode and with the rules that add tools to
it.
"""

import pytest
from sweeps import loop_over_rows

from shim.adapters import VENDORS, get_adapter
from shim.core.adapter.adapter import LaunchRequest
from shim.core.claude.argv.flags import parse_argv
from shim.core.policy.policy import Policy, Workspace, parse_permission_rules
from shim.core.policy.settings_hooks import SettingsHook

CHANGES = {"Write", "Edit", "MultiEdit", "Delete", "NotebookEdit"}
READ_ONLY = ("default", "plan", "dontAsk")
# Each call goes through the shim's hook, so a rule or a hook of the settings adds to the mode.
HOOKED = ("codex", "copilot")
# They list their tools themselves, or have one mode.
NOT_COMPUTED = {"claude", "qwen", "qwen-rfc", "replay", "demo"}
NEVER_ASKS = {"pi", "acai", "cake", "kimi", "kimi-code", "opencode", "kilo"}
# Their own settings decide what runs in their default mode. The shim does not read these settings.
WIDER = {"cursor", "cline", "amp"}


def available(name, mode, hooks=(), **rules):
    vendor, kinds = (
        get_adapter(name),
        {kind: parse_permission_rules(texts) for kind, texts in rules.items()},
    )
    policy = Policy(workspace=Workspace("/work", "/home"), hooks=hooks, **kinds)
    mode_arguments = vendor.resolve_permission_mode_args(mode)
    request = LaunchRequest(
        parse_argv(["-p", "hi"]),
        "hi",
        mode_arguments=mode_arguments,
        permission_mode=mode,
        policy=policy,
    )
    return set(vendor.list_available_tools(request))


def cells(modes):
    return [
        (name, mode)
        for name in VENDORS
        if name not in NOT_COMPUTED
        for mode in modes
        if mode in get_adapter(name).modes
    ]


@loop_over_rows(("name", "mode"), cells(READ_ONLY))
def test_edit_tools_are_not_listed_in_read_only_modes(name, mode):
    if mode != "plan" and name in NEVER_ASKS | WIDER:
        assert available(name, mode) == set(get_adapter(name).listed_tools)
    else:
        assert not available(name, mode) & CHANGES


@loop_over_rows(("name", "mode"), cells(["acceptEdits"]))
def test_edit_tools_are_listed_in_accept_edits_mode(name, mode):
    assert available(name, mode) & CHANGES


@loop_over_rows(("name", "mode"), cells(["bypassPermissions"]))
def test_all_tools_are_listed_in_bypass_permissions_mode(name, mode):
    assert available(name, mode) == set(get_adapter(name).listed_tools)


@pytest.mark.parametrize("mode", READ_ONLY)
def test_codex_lists_only_sandboxed_tools_in_read_only_modes(mode):
    assert available("codex", mode) == {"Bash", "Task", "TodoWrite"}


def test_cursor_lists_only_read_only_tools_in_plan_mode():
    assert available("cursor", "plan") == {"Read", "Grep", "Glob", "LS", "TodoWrite", "Task"}


@loop_over_rows("name", HOOKED)
# Nothing adds tools to plan mode.
@loop_over_rows(("mode", "adds"), [("default", {"Write"}), ("dontAsk", {"Write"}), ("plan", set())])
def test_allow_rule_or_hook_lists_a_tool_except_in_plan_mode(name, mode, adds):
    assert available(name, mode, allow=["Write"]) - available(name, mode) == adds
    assert (
        available(name, mode, hooks=[SettingsHook("Write", "exit 0")]) - available(name, mode)
        == adds
    )


def test_codex_lists_web_search_only_with_an_allow_rule():
    assert "WebSearch" in available("codex", "default", allow=["WebSearch"])
    assert "WebSearch" not in available("codex", "acceptEdits")
