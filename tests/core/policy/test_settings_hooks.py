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


def test_command_hook_fields_are_parsed():
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


def test_hook_is_formatted_with_its_matcher_and_command():
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
def test_unsupported_or_invalid_hook_has_a_refusal_reason(hook):
    assert read_hook(hook).refusal


def test_hook_of_an_untrusted_directory_is_refused():
    assert read_hook({"command": "a"}, trusted=False).refusal == UNTRUSTED_REASON


def test_async_hook_is_ignored():
    assert (
        parse_settings_hooks(
            [{"hooks": [{"command": "a", "async": True}]}], "user", is_trusted=True
        )
        == []
    )


@loop_over_rows("groups", [{}, 7, [7], [{"hooks": 7}], [{"hooks": [7]}], [{"hooks": []}]])
def test_malformed_hook_groups_are_ignored(groups):
    assert parse_settings_hooks(groups, "user", is_trusted=True) == []


def test_invalid_timeout_falls_back_to_the_default():
    assert [
        read_hook({"command": "a", "timeout": time}).timeout_s for time in ("5", -1, 0, None)
    ] == [DEFAULT_TIMEOUT_S] * 4


def test_too_many_hooks_are_refused():
    (hook,) = parse_settings_hooks(
        [{"hooks": [{"command": "a"}] * (MAX_HOOKS + 1)}], "user", is_trusted=True
    )
    assert (hook.matcher, hook.refusal) == ("", f"the file has more than {MAX_HOOKS} hooks")
