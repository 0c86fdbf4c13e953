"""The merged settings files of Claude: all restrictions, and the permissions of the user's own
files.
"""

import pytest
from sweeps import loop_over_rows

from shim.core.policy.policy import parse_permission_rule
from shim.core.policy.settings import SettingsSource, merge_settings
from shim.core.policy.settings_hooks import UNTRUSTED_REASON


def user(**content):
    return SettingsSource("user", content)


def project(**content):
    return SettingsSource("project", content, "/work", can_allow=False)


def test_allow_rules_are_read_from_user_settings_only():
    rules = {
        "deny": ["Bash(rm:*)"],
        "ask": ["Write"],
        "allow": ["Bash"],
        "additionalDirectories": ["/out"],
    }
    for source, widens in ((user, True), (project, False)):
        settings = merge_settings([source(permissions=rules)])
        assert [str(rule) for rule in settings.deny] == ["Bash(rm:*)"]
        assert [str(rule) for rule in settings.ask] == ["Write"]
        assert [str(rule) for rule in settings.allow] == (["Bash"] if widens else [])
        assert settings.directories == (("/out",) if widens else ())


def test_rule_stores_its_source_and_base_folder():
    assert merge_settings([project(permissions={"deny": ["Edit(/x)"]})]).deny == (
        parse_permission_rule("Edit(/x)", "/work", "project"),
    )


@loop_over_rows(
    ("users", "projects", "mode"),
    [
        (None, None, None),
        ("acceptEdits", None, "acceptEdits"),
        ("acceptEdits", "plan", "plan"),
        (None, "plan", "plan"),
        (None, "acceptEdits", None),
        ("plan", "acceptEdits", "plan"),
        ("manual", None, "default"),
        ("bypassPermissions", None, None),
        ("nonsense", 7, None),
    ],
)
def test_project_settings_can_only_set_a_stricter_default_mode(users, projects, mode):
    assert (
        merge_settings(
            [
                project(permissions={"defaultMode": projects}),
                user(permissions={"defaultMode": users}),
            ]
        ).mode
        == mode
    )


def test_settings_that_disable_bypass_mode_are_named_as_the_source():
    assert (
        merge_settings(
            [user(), project(permissions={"disableBypassPermissionsMode": "disable"})]
        ).bypass_forbidden_by
        == "project"
    )
    assert (
        merge_settings(
            [user(permissions={"disableBypassPermissionsMode": "no"})]
        ).bypass_forbidden_by
        == ""
    )


def test_single_rule_may_be_a_string_instead_of_a_list():
    assert [str(rule) for rule in merge_settings([user(permissions={"deny": "Bash"})]).deny] == [
        "Bash"
    ]


HOOKS = {
    "PreToolUse": [{"matcher": "Bash", "hooks": [{"command": "a"}]}, {"hooks": [{"command": "b"}]}]
}


def hooks_of(*sources):
    return [(hook.source, hook.matcher, hook.command) for hook in merge_settings(sources).hooks]


def test_hooks_are_collected_with_their_source():
    assert hooks_of(project(hooks=HOOKS)) == [("project", "Bash", "a"), ("project", "", "b")]
    assert hooks_of(user(hooks={"Stop": HOOKS["PreToolUse"]})) == [
        ("user", "Bash", "a"),
        ("user", "", "b"),
    ]


def test_only_pre_tool_use_hooks_check_tool_calls():
    settings = merge_settings([user(hooks=HOOKS | {"Stop": HOOKS["PreToolUse"][:1]})])
    assert [hook.event for hook in settings.tool_call_hooks] == ["PreToolUse", "PreToolUse"]
    assert [hook.event for hook in settings.event_hooks] == ["Stop"]


def test_hooks_of_an_untrusted_folder_are_refused():
    source = SettingsSource(
        "project", {"hooks": {"Stop": HOOKS["PreToolUse"]}}, can_allow=False, is_trusted=False
    )
    settings = merge_settings([source])
    assert settings.event_hooks == ()
    assert [hook.refusal for hook in settings.refused_event_hooks] == [UNTRUSTED_REASON] * 2


def test_session_end_hooks_have_a_short_default_timeout():
    hooks = {"SessionEnd": [{"hooks": [{"command": "a"}, {"command": "b", "timeout": 30}]}]}
    settings = merge_settings([user(hooks=hooks)])
    assert [hook.timeout_s for hook in settings.event_hooks] == [1.5, 30.0]


def build_managed_source(**content):
    return SettingsSource("managed", content, is_managed=True)


def test_disable_all_hooks_works_in_user_settings_but_not_in_project_settings():
    assert hooks_of(user(disableAllHooks=True), project(hooks=HOOKS)) == []
    assert len(hooks_of(user(hooks=HOOKS), project(hooks=HOOKS, disableAllHooks=True))) == 4


def test_managed_hooks_can_be_disabled_by_managed_settings_only():
    assert (
        len(hooks_of(build_managed_source(hooks=HOOKS), user(hooks=HOOKS, disableAllHooks=True)))
        == 2
    )
    assert (
        hooks_of(build_managed_source(hooks=HOOKS, disableAllHooks=True), user(hooks=HOOKS)) == []
    )


def test_allow_managed_hooks_only_has_effect_in_managed_settings_only():
    assert (
        len(
            hooks_of(
                build_managed_source(hooks=HOOKS, allowManagedHooksOnly=True), user(hooks=HOOKS)
            )
        )
        == 2
    )
    assert len(hooks_of(user(hooks=HOOKS, allowManagedHooksOnly=True))) == 2


def test_unsupported_restricting_key_is_listed_with_its_source():
    sandbox = {"enabled": True, "autoAllow": False}
    assert merge_settings([user(sandbox=sandbox)]).unsupported_keys == {
        "sandbox in user": '{"autoAllow":false,"enabled":true}'
    }
    assert not merge_settings([user(sandbox={"enabled": False}, model="m")]).unsupported_keys
    servers = {"allowedMcpServers": [], "deniedMcpServers": []}
    assert merge_settings([user(**servers)]).unsupported_keys == {"allowedMcpServers in user": "[]"}


def test_hooks_of_all_events_are_read_unless_hooks_are_disabled():
    events = ("UserPromptSubmit", "SubagentStop", "PermissionRequest", "Notification")
    hooks = {event: [{"hooks": [{"type": "command", "command": "exit 2"}]}] for event in events}
    settings = merge_settings([user(hooks=hooks)])
    assert [hook.event for hook in settings.event_hooks] == [
        "UserPromptSubmit",
        "PermissionRequest",
        "SubagentStop",
    ]
    assert not settings.unsupported_keys
    assert not merge_settings([user(hooks=hooks, disableAllHooks=True)]).event_hooks


@pytest.mark.parametrize(
    "broken",
    [
        {"permissions": 7},
        {"permissions": {"deny": {"Bash": 1}}},
        {"hooks": []},
        {"hooks": {"PreToolUse": 1}},
    ],
)
def test_settings_of_an_unexpected_type_are_ignored(broken):
    assert merge_settings([user(**broken)]) == merge_settings([])
