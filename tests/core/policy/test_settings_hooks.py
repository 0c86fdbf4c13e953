"""The hooks of Claude's settings files, as they are written."""

from sweeps import loop_over_rows

from shim.core.policy.settings_hooks import (
    DEFAULT_TIMEOUT_S,
    MAX_HOOKS,
    UNTRUSTED_REASON,
    SettingsHook,
    parse_settings_hooks,
)


def read_hook(hook, matcher=None, *, trusted=True):
    (settings_hook,) = parse_settings_hooks(
        [{"matcher": matcher, "hooks": [hook]}], "user", is_trusted=trusted
    )
    return settings_hook


def test_a_command_is_read_with_all_that_it_says():
    assert read_hook({"type": "command", "command": "true"}) == SettingsHook(
        "", "true", timeout_s=DEFAULT_TIMEOUT_S, source="user"
    )
    raw_hook = {
        "command": "a",
        "args": ["b"],
        "if": "Bash(ls:*)",
        "timeout": 5,
        "onFailure": "block",
    }
    assert read_hook(raw_hook, "Bash") == SettingsHook(
        "Bash", "a", ("b",), "Bash(ls:*)", 5.0, True, "user"
    )


def test_a_hook_is_shown_with_its_tools_and_its_command():
    assert str(read_hook({"command": "check", "args": ["-a"]}, "Bash")) == "Bash: check -a"
    assert str(read_hook({"command": "check it"})) == "every tool: check it"


@loop_over_rows(
    "hook",
    [
        {"type": "prompt", "prompt": "is it good?"},
        {"type": "http", "url": "http://a.b"},
        {"type": "command", "command": "a", "shell": "powershell"},
        {"type": "command"},
        {"command": "a", "args": "b"},
        {"command": "a", "if": 7},
    ],
)
def test_what_cannot_be_run_here_says_so(hook):
    assert read_hook(hook).refusal


def test_a_program_of_a_folder_that_is_not_trusted_is_not_run():
    assert read_hook({"command": "a"}, trusted=False).refusal == UNTRUSTED_REASON


def test_a_hook_that_nobody_waits_for_is_left_out():
    assert (
        parse_settings_hooks(
            [{"hooks": [{"command": "a", "async": True}]}], "user", is_trusted=True
        )
        == []
    )


@loop_over_rows("groups", [{}, 7, [7], [{"hooks": 7}], [{"hooks": [7]}], [{"hooks": []}]])
def test_what_has_another_form_is_no_hook(groups):
    assert parse_settings_hooks(groups, "user", is_trusted=True) == []


def test_a_time_that_is_none_is_the_usual_one():
    assert [
        read_hook({"command": "a", "timeout": time}).timeout_s for time in ("5", -1, 0, None)
    ] == [DEFAULT_TIMEOUT_S] * 4


def test_so_many_hooks_that_nobody_wrote_them_are_refused():
    (hook,) = parse_settings_hooks(
        [{"hooks": [{"command": "a"}] * (MAX_HOOKS + 1)}], "user", is_trusted=True
    )
    assert (hook.matcher, hook.refusal) == ("", f"there are more than {MAX_HOOKS} of them")
