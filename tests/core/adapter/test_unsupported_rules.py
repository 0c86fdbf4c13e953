"""Allow rules without effect for a vendor, and how they are reported."""

import json

from box import ASK
from sweeps import loop_over_rows

from shim.adapters import get_adapter
from shim.core.adapter.adapter import LaunchRequest
from shim.core.adapter.enforcement import list_unsupported_rules
from shim.core.claude.argv.flags import parse_argv
from shim.core.policy.policy import Policy, Workspace, parse_permission_rules
from shim.core.policy.settings_hooks import SettingsHook


def list_unsupported(name, mode, *rules, persistent=False, ignored_keys=()):
    vendor = get_adapter(name)
    request = LaunchRequest(parse_argv([]), "", vendor.modes[mode], mode, persistent=persistent)
    policy = Policy(
        workspace=Workspace("/work"), allow=parse_permission_rules(rules, source="--allowedTools")
    )
    return [rule.what for rule in list_unsupported_rules(vendor, policy, request, ignored_keys)]


@loop_over_rows(
    ("name", "mode", "rule", "has_effect"),
    [
        ("gemini", "default", "Bash(git:*)", False),
        ("gemini", "default", "Read", True),
        ("gemini", "default", "mcp__server", False),
        ("gemini", "acceptEdits", "Edit(./src/**)", True),
        ("gemini", "default", "Edit(./src/**)", False),
        ("gemini", "bypassPermissions", "Bash(git:*)", True),
        ("gemini", "plan", "Bash(git:*)", True),  # the real claude runs nothing more there
        ("codex", "default", "Bash(git:*)", True),
        ("codex", "default", "mcp__server", False),
        ("copilot", "default", "mcp__server", True),
        ("gemini", "default", "Bash", True),
        ("opencode", "acceptEdits", "Bash", True),
        ("opencode", "acceptEdits", "Bash(git:*)", False),
        ("opencode", "acceptEdits", "Task", False),  # the calls of its subagents are not visible
        ("pi", "default", "Bash(git:*)", True),
        ("pi", "acceptEdits", "Bash(git:*)", False),
        ("demo", "default", "Bash(git:*)", True),
        ("pi", "acceptEdits", "Bash(git", False),
    ],
)
def test_support_of_an_allow_rule_depends_on_vendor_and_mode(name, mode, rule, has_effect):
    assert list_unsupported(name, mode, rule) == ([] if has_effect else [rule])


def test_valid_rules_are_supported_if_the_vendor_prompts():
    assert list_unsupported("qwen", "default", "Bash(git:*)", "mcp__server", persistent=True) == []
    assert list_unsupported("qwen", "default", "Bash(git", persistent=True) == ["Bash(git"]


def test_allowed_tool_is_listed_and_passed_to_the_vendor_except_in_plan_mode():
    gemini = get_adapter("gemini")
    for mode, is_allowed in (("default", True), ("plan", False)):
        policy = Policy(workspace=Workspace("/work"), allow=parse_permission_rules(("Bash",)))
        stored_texts: list[str] = []

        def keep(text, *suffix, stored_texts=stored_texts):
            stored_texts.append(text)
            return "/a/file"

        request = LaunchRequest(
            parse_argv([]), "hi", gemini.modes[mode], mode, policy=policy, store_text=keep
        )
        assert ("Bash" in gemini.list_available_tools(request)) is is_allowed
        gemini.build_launch(request)
        assert (
            'toolName = "run_shell_command"\ndecision = "allow"' in "".join(stored_texts)
        ) is is_allowed


def test_ignored_settings_key_is_listed_by_name():
    assert list_unsupported("pi", "default", ignored_keys=("sandbox in /x in y.json",)) == [
        "sandbox"
    ]


def test_unsupported_rules_are_in_init_and_in_results_of_denied_calls(box):
    events = [
        {"type": "init", "session_id": "s", "model": "m"},
        {"type": "tool_use", "tool_name": "run_shell_command", "tool_id": "c", "parameters": {"command": "git log"}},
        {"type": "tool_result", "tool_id": "c", "status": "error", "output": 'Tool execution for "x" denied by policy.',
         "error": {"type": "policy_violation", "message": "denied by policy"}},
        {"type": "result", "status": "success", "stats": {}},
    ]  # fmt: skip
    child = box.create_fake(["out", "".join(json.dumps(event) + "\n" for event in events)])
    settings = json.dumps({"sandbox": {"enabled": True}})
    args = ("--allowedTools", "Bash(git:*)", "Skill", "--settings", settings)
    done = box.run_claude(*ASK, *args, SHIM_VENDOR="gemini", SHIM_BIN=child)
    entries = {entry["what"]: entry for entry in done.init["shim"]["not_honoured"]}
    assert entries.keys() == {"Bash(git:*)", "Skill", "skills", "sandbox"}
    assert (
        entries["Bash(git:*)"]["source"] == "--allowedTools"
        and "gemini" in entries["Bash(git:*)"]["reason"]
    )
    assert [entry["what"] for entry in done.result["shim"]["not_honoured"]] == ["Bash(git:*)"]
    assert (
        "not_honoured"
        not in box.run_claude(*ASK, SHIM_VENDOR="gemini", SHIM_BIN=child).init["shim"]
    )


def test_unsupported_hook_names_the_uncovered_tools():
    hooks = [SettingsHook(matcher, "x", source="settings.json") for matcher in ("", "Bash")]
    unsupported = {}
    for name in ("qwen", "codex"):
        request = LaunchRequest(
            parse_argv([]),
            "",
            persistent=True,
            policy=Policy(workspace=Workspace("/work"), hooks=hooks),
        )
        unsupported[name] = list_unsupported_rules(get_adapter(name), request.policy, request, ())
    (hook_rule,) = unsupported["qwen"]
    assert (hook_rule.what, hook_rule.source) == (
        "hooks.PreToolUse",
        "settings.json",
    ) and "TodoWrite" in hook_rule.reason
    assert not {"Bash", "Edit", "Read"} & set(hook_rule.reason.replace(",", "").split())
    assert unsupported["codex"] == ()
