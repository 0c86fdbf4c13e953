"""The rules with which each vendor can be started: those that it enforces before a call runs."""

import pytest
from policy_builder import build_policy
from sweeps import loop_over_rows

from shim.adapters import get_adapter
from shim.core.adapter import enforcement
from shim.core.adapter.adapter import LaunchRequest, McpServers
from shim.core.claude.argv.flags import parse_argv
from shim.core.errors import UnsupportedPermissionModeError
from shim.core.policy.evaluate import PolicyEvaluator
from shim.core.policy.policy import parse_permission_rule
from shim.core.policy.settings_hooks import SettingsHook


def check_rules(name, rules, *, mode="default", persistent=False, late=False):
    vendor = get_adapter(name)
    removed = enforcement.list_removed_tools(vendor, rules)
    request = LaunchRequest(
        parse_argv([]),
        "",
        permission_mode=mode,
        persistent=persistent,
        policy=rules,
        removed_tools=removed,
    )
    enforcement.check_policy_enforcement(vendor, rules, request, late_denials=late)


@loop_over_rows(
    ("name", "persistent", "rules"),
    [
        ("pi", False, {"deny": ["Bash"]}),
        ("pi", False, {"ask": ["Bash"]}),
        ("pi", False, {"only": ["Read"]}),
        ("pi", False, {"deny": ["NotebookEdit"]}),
        ("qwen", False, {"deny": ["Bash", "Agent"]}),
        (
            "qwen",
            True,
            {"deny": ["Bash(touch:*)", "Edit(./secret/**)"], "ask": ["WebFetch", "Write"]},
        ),
        (
            "qwen",
            True,
            {"deny": ["Read(./secret/**)", "mcp__*__get", "Skill(x)"], "ask": ["mcp__srv"]},
        ),
        ("qwen", False, {"deny": ["mcp__srv", "mcp__srv__*", "mcp__srv__get", "mcp__srv__get_*"]}),
        ("claude", False, {"deny": ["Bash(touch:*)", "Read(./secret/**)"]}),
    ],
)
def test_enforceable_rule_is_accepted(name, persistent, rules):
    check_rules(name, build_policy(**rules), persistent=persistent)


@loop_over_rows(
    ("rule", "is_enforced"),
    [
        ("mcp__my_calc__add", True),
        ("mcp__my calc__add", True),
        ("mcp__my_calc__a*", True),
        ("mcp__my_calc", True),
        ("mcp__my_calc__*", True),
        ("mcp__my_calc__a__b", False),  # perhaps the tool `b` of a server `my_calc__a`
        ("mcp__other__add", False),
        ("mcp__*__add", False),
        ("Write", False),
    ],
)
def test_relay_enforces_only_the_rules_about_its_server(rule, is_enforced):
    """kimi-code itself enforces no rule about tools of servers."""
    vendor = get_adapter("kimi-code").build_two_way()
    policy = build_policy(deny=[rule])
    servers = McpServers({}, {"my calc": {"command": "/relay"}}, ("my calc",))
    request = LaunchRequest(parse_argv([]), "", persistent=True, policy=policy, mcp_servers=servers)
    reason = enforcement.explain_unenforceable_policy(vendor, policy, request)
    assert (not reason) is is_enforced
    assert enforcement.explain_unenforceable_policy(
        vendor, policy, request._replace(mcp_servers=McpServers())
    )


@loop_over_rows(
    ("tool", "is_prevented"),
    [("mcp__my_calc__add", True), ("mcp__my_calculator__add", False), ("Bash", True)],
)
def test_denial_of_a_call_that_reaches_a_relay_does_not_stop_the_turn(tool, is_prevented):
    vendor = get_adapter("kimi-code").build_two_way()
    servers = McpServers({}, {"my calc": {"command": "/relay"}}, ("my calc",))
    request = LaunchRequest(parse_argv([]), "", persistent=True, mcp_servers=servers)
    evaluator = PolicyEvaluator(
        build_policy(deny=[tool]), prompted_tools=vendor.list_prompted_tools(request)
    )
    assert evaluator.is_denial_enforced_by_vendor(tool) is is_prevented


@loop_over_rows(
    ("name", "persistent", "rules"),
    [
        ("pi", False, {"deny": ["Bash(touch:*)"]}),
        ("pi", False, {"deny": ["Edit(./secret/**)"]}),
        ("pi", True, {"ask": ["Bash(touch:*)"]}),
        ("qwen", False, {"deny": ["Bash(touch:*)"]}),
        ("qwen", True, {"deny": ["Skill(x)", "TodoWrite(x)"]}),
        ("qwen", False, {"ask": ["mcp__srv"]}),
        ("qwen", False, {"deny": ["mcp__*__get"]}),
        ("acai", False, {"deny": ["Bash"]}),
        ("acai", False, {"only": ["Read"]}),
    ],
)
def test_unenforceable_rule_is_refused_with_the_vendor_name(name, persistent, rules):
    with pytest.raises(UnsupportedPermissionModeError, match=f"{name} cannot enforce") as refused:
        check_rules(name, build_policy(**rules), persistent=persistent)
    assert "late_denials" in refused.value.hint


def test_late_denials_require_bypass_mode_and_the_setting():
    rules = build_policy(deny=["Bash(touch:*)"])
    check_rules("pi", rules, mode="bypassPermissions", late=True)
    for mode, late in (("bypassPermissions", False), ("acceptEdits", True), ("default", True)):
        with pytest.raises(UnsupportedPermissionModeError):
            check_rules("pi", rules, mode=mode, late=late)


@loop_over_rows(
    "name",
    ["claude", "codex", "copilot", "gemini", "kimi", "kimi-code", "opencode", "pi", "qwen", "vibe"],
)
def test_ask_user_question_can_be_denied(name):
    """Zed's adapter does so in every session with an editor that shows no forms."""
    vendor, rules = get_adapter(name), build_policy(deny=["AskUserQuestion"])
    vendor = vendor.build_two_way() if vendor.cli.has_two_way else vendor
    request = LaunchRequest(
        parse_argv([]), "", permission_mode="default", persistent=True, policy=rules
    )
    enforcement.check_policy_enforcement(
        vendor,
        rules,
        request._replace(removed_tools=enforcement.list_removed_tools(vendor, rules)),
        late_denials=False,
    )


def build_hook_policy(*matchers, refusal=""):
    return build_policy(
        hooks=[
            SettingsHook(matcher, "x", source="settings.json", refusal=refusal)
            for matcher in matchers
        ]
    )


@loop_over_rows(
    "matcher", ["Bash", "Edit|Write", "", "*", ".*", "mcp__.*", "mcp__srv__tool", "Agent"]
)
def test_hook_is_accepted_for_vendors_that_wait_for_a_decision(matcher):
    """Permission-parity W8, W14"""
    check_rules("qwen", build_hook_policy(matcher), persistent=True)
    check_rules("codex", build_hook_policy(matcher))
    check_rules("copilot", build_hook_policy(matcher))
    check_rules("demo", build_hook_policy(matcher))


@loop_over_rows(
    ("name", "matcher", "persistent"),
    [
        *[
            ("pi", "Bash", False),
            ("gemini", "Bash", False),
            ("opencode", "", False),
            ("qwen", "Bash", False),
        ],
        *[("qwen", "TodoWrite", True), ("gemini", "mcp__.*", False)],
    ],
)
def test_unenforceable_hook_is_refused_with_its_settings_file(name, matcher, persistent):
    with pytest.raises(UnsupportedPermissionModeError, match=rf"{name} .* hook in settings\.json"):
        check_rules(
            name,
            build_hook_policy("Read(x)", matcher),
            persistent=persistent,
            mode="bypassPermissions",
            late=True,
        )


def test_hook_for_tools_the_vendor_lacks_is_accepted():
    check_rules("pi", build_hook_policy("mcp__.*", "NotebookEdit", "mcp__srv__tool|WebFetch"))


def test_untrusted_hook_is_refused_for_every_vendor():
    for name in ("qwen", "codex"):
        with pytest.raises(
            UnsupportedPermissionModeError,
            match=r"settings\.json may deny a call, .*: not trusted",
        ):
            check_rules(name, build_hook_policy("Bash", refusal="not trusted"), persistent=True)


def test_deny_rule_removes_subagent_tools_if_their_calls_are_not_reported():
    assert enforcement.list_removed_tools(
        get_adapter("qwen"), build_policy(deny=["Bash(touch:*)"])
    ) == ("Monitor", "Task")
    assert (
        enforcement.list_removed_tools(get_adapter("demo"), build_policy(deny=["Bash(touch:*)"]))
        == ()
    )


def test_path_rule_affects_every_tool_that_accesses_files():
    pi = get_adapter("pi")
    assert enforcement.list_tools_affected_by_rule(pi, parse_permission_rule("Edit(./x)")) == {
        "Bash",
        "Edit",
        "MultiEdit",
        "Write",
    }
    assert enforcement.list_tools_affected_by_rule(pi, parse_permission_rule("Read(./x)")) >= {
        "Bash",
        "Edit",
        "Read",
        "Write",
    }
    assert enforcement.list_tools_affected_by_rule(pi, parse_permission_rule("Bash(x)")) == {"Bash"}
