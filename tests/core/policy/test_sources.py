"""What Claude's settings files say together: everything that narrows, and what the user's own files
widen.
"""

import pytest
from sweeps import loop_over_rows

from shim.core.policy.rules import parse_permission_rule
from shim.core.policy.settings import SettingsSource, merge_settings


def user(**content):
    return SettingsSource("user", content)


def project(**content):
    return SettingsSource("project", content, "/work", can_allow=False)


def test_what_narrows_counts_from_every_file_and_what_allows_from_the_users_own():
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


def test_a_rule_knows_its_file_and_the_folder_that_its_paths_begin_in():
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
def test_a_project_may_ask_for_a_narrower_mode_only_and_no_file_for_the_widest(
    users, projects, mode
):
    assert (
        merge_settings(
            [
                project(permissions={"defaultMode": projects}),
                user(permissions={"defaultMode": users}),
            ]
        ).mode
        == mode
    )


def test_a_file_may_forbid_the_widest_mode_and_is_named():
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


def test_one_rule_need_not_stand_in_a_list():
    assert [str(rule) for rule in merge_settings([user(permissions={"deny": "Bash"})]).deny] == [
        "Bash"
    ]


HOOKS = {
    "PreToolUse": [{"matcher": "Bash", "hooks": [{"command": "a"}]}, {"hooks": [{"command": "b"}]}]
}


def hooks_of(*sources):
    return [(hook.source, hook.matcher, hook.command) for hook in merge_settings(sources).hooks]


def test_the_hooks_before_a_call_are_known_with_their_file():
    assert hooks_of(project(hooks=HOOKS)) == [("project", "Bash", "a"), ("project", "", "b")]
    assert hooks_of(user(hooks={"PostToolUse": HOOKS["PreToolUse"]})) == []


def build_managed_source(**content):
    return SettingsSource("managed", content, is_managed=True)


def test_the_users_file_switches_hooks_off_and_the_projects_does_not():
    assert hooks_of(user(disableAllHooks=True), project(hooks=HOOKS)) == []
    assert len(hooks_of(user(hooks=HOOKS), project(hooks=HOOKS, disableAllHooks=True))) == 4


def test_the_machines_hooks_are_switched_off_by_the_machines_files_alone():
    assert (
        len(hooks_of(build_managed_source(hooks=HOOKS), user(hooks=HOOKS, disableAllHooks=True)))
        == 2
    )
    assert (
        hooks_of(build_managed_source(hooks=HOOKS, disableAllHooks=True), user(hooks=HOOKS)) == []
    )


def test_only_the_machines_files_can_leave_the_machines_hooks_alone():
    assert (
        len(
            hooks_of(
                build_managed_source(hooks=HOOKS, allowManagedHooksOnly=True), user(hooks=HOOKS)
            )
        )
        == 2
    )
    assert len(hooks_of(user(hooks=HOOKS, allowManagedHooksOnly=True))) == 2


def test_a_key_that_restricts_and_has_no_effect_here_is_named_with_its_file():
    assert merge_settings([user(sandbox={"enabled": True})]).unsupported_keys == (
        "sandbox in user",
    )
    assert merge_settings([user(sandbox={"enabled": False}, model="m")]).unsupported_keys == ()
    servers = {"allowedMcpServers": [], "deniedMcpServers": []}
    assert merge_settings([user(**servers)]).unsupported_keys == ("allowedMcpServers in user",)


def test_a_hook_that_may_block_and_is_not_run_is_named_unless_hooks_are_switched_off():
    hooks = {
        event: [{"hooks": [{"type": "command", "command": "exit 2"}]}]
        for event in ("UserPromptSubmit", "Stop")
    }
    assert merge_settings([user(hooks=hooks)]).unsupported_keys == (
        "hooks.UserPromptSubmit in user",
    )
    assert merge_settings([user(hooks=hooks, disableAllHooks=True)]).unsupported_keys == ()


@pytest.mark.parametrize(
    "broken",
    [
        {"permissions": 7},
        {"permissions": {"deny": {"Bash": 1}}},
        {"hooks": []},
        {"hooks": {"PreToolUse": 1}},
    ],
)
def test_what_has_another_form_says_nothing(broken):
    assert merge_settings([user(**broken)]) == merge_settings([])
