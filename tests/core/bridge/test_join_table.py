"""The flags and settings of a frontend that joins a running session: every row of the table."""

import shlex

import pytest

from shim.core.bridge.join_table import (
    JOIN_TABLE,
    JoinRule,
    list_flag_differences,
    list_ignored_flags,
    list_stricter_settings,
)
from shim.core.claude.argv.flags import parse_argv
from shim.core.policy.policy import parse_permission_rules
from shim.core.policy.settings import ClaudeSettings
from shim.core.policy.settings_hooks import SettingsHook

NO_SETTINGS = ClaudeSettings()
EQUAL_FLAGS = [flag for flag, rule in JOIN_TABLE.items() if rule is JoinRule.EQUAL]
# A value of each flag, and a different value; "" for a switch.
VALUES = {
    "--disallowedTools": ("Bash", "Read"),
    "--tools": ("Bash", "Read"),
    "--allowedTools": ("Bash", "Read"),
    "--mcp-config": (
        '\'{"mcpServers": {"calc": {"command": "a"}}}\'',
        '\'{"mcpServers": {"calc": {"command": "b"}}}\'',
    ),
    "--agents": ('\'{"reviewer": {"prompt": "a"}}\'', '\'{"reviewer": {"prompt": "b"}}\''),
    "--agent": ("reviewer", "writer"),
    "--json-schema": ('\'{"type": "object"}\'', '\'{"type": "array"}\''),
    "--max-turns": ("3", "4"),
    "--max-budget-usd": ("1.5", "2"),
    "--task-budget": ("3", "4"),
    "--worktree": ("a", "b"),
    "--resume-session-at": ("x", "y"),
    "--resume-drops-turn": ("x", "y"),
}


def parse(flags):
    return parse_argv(shlex.split(flags))


def differences(flags, session_flags=""):
    return list_flag_differences(parse(flags), parse(session_flags))


def ignored(flags, session_flags=""):
    return list_ignored_flags(parse(flags), parse(session_flags))


@pytest.mark.parametrize("flag", EQUAL_FLAGS)
def test_equal_flag_joins_and_different_flag_is_refused_by_name(flag):
    value, other_value = VALUES.get(flag, ("", None))
    assert differences(f"{flag} {value}", f"{flag} {value}") == []
    assert differences("", f"{flag} {value}") == [], "a flag that is left out joins"
    (difference,) = differences(f"{flag} {value}")
    assert difference.startswith(f"the frontend passes {flag}")
    assert difference.endswith(f"but the session was started without {flag}")
    if other_value is not None:
        (difference,) = differences(f"{flag} {value}", f"{flag} {other_value}")
        assert difference.startswith(f"the frontend passes {flag}")
        assert "was started with " in difference
    assert ignored(f"{flag} {value}") == []


def test_last_value_of_a_repeated_flag_is_compared():
    flags = "--agent reviewer --agent writer"
    assert differences(flags, "--agent writer") == []
    assert differences("--agent writer --agent reviewer", flags) == [
        "the frontend passes --agent reviewer, but the session was started with --agent writer"
    ]


def test_only_a_denial_of_questions_is_not_compared():
    assert differences("--disallowedTools AskUserQuestion", "--disallowedTools Bash") == []
    (difference,) = differences("--allowedTools AskUserQuestion", "--allowedTools Bash")
    assert difference.startswith("the frontend passes --allowedTools AskUserQuestion")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--agents", '{"reviewer": {"prompt": "s3cret"}'),
        ("--agents", '["s3cret"]'),
        ("--json-schema", '"s3cret"'),
        ("--mcp-config", '{"mcpServers": {"calc": {"env": {"KEY": "s3cret"}}}}'),
    ],
)
def test_refusal_quotes_no_value_of_json(flag, value):
    (difference,) = differences(shlex.join([flag, value]), f"{flag} '{{}}'")
    assert flag in difference and "s3cret" not in difference


@pytest.mark.parametrize(
    "flags",
    ["--permission-mode plan", "--dangerously-skip-permissions", "--model opus"],
)
def test_mode_and_model_are_neither_compared_nor_ignored(flags):
    assert differences(flags) == ignored(flags) == []


@pytest.mark.parametrize(
    ("flags", "session_flags", "passed", "allowed"),
    [
        ("--disallowedTools Bash,Write", "--disallowedTools Bash", "Bash,Write", "Bash"),
        ("--disallowedTools Bash", "--disallowedTools Bash Write", "Bash", "Bash,Write"),
        ("--disallowedTools 'Bash(rm:*)'", "--disallowedTools Bash", "Bash(rm:*)", "Bash"),
        ("--allowedTools Read", "--allowedTools Read 'Bash(git:*)'", "Read", "Bash(git:*),Read"),
        ("--tools Read", "--tools Read,Edit", "Read", "Edit,Read"),
        ("--tools=", "--tools Read", '""', "Read"),
    ],
)
def test_refusal_names_both_values_of_the_flag(flags, session_flags, passed, allowed):
    flag = session_flags.split()[0]
    assert differences(flags, session_flags) == [
        f"the frontend passes {flag} {passed}, but the session was started with {flag} {allowed}"
    ]


@pytest.mark.parametrize(
    ("flags", "session_flags"),
    [
        ("--disallowedTools Bash,Read", "--disallowedTools Read --disallowedTools Bash"),
        ("--disallowedTools 'Bash(*)' Agent", "--disallowedTools Task Bash"),
        ('--agents \'{"a": {"x": 1, "y": 2}}\'', '--agents \'{"a":{"y":2,"x":1}}\''),
        ("--disallowedTools AskUserQuestion", ""),
        ("--disallowedTools AskUserQuestion Bash", "--disallowedTools Bash"),
    ],
)
def test_flags_that_mean_the_same_are_equal(flags, session_flags):
    assert differences(flags, session_flags) == []


def test_difference_in_json_shows_its_names_and_no_values():
    config = '\'{"mcpServers": {"calc": {"env": {"TOKEN": "secret-%s"}}}}\''
    (difference,) = differences(f"--mcp-config {config % 1}", f"--mcp-config {config % 2}")
    assert difference == (
        "the frontend passes --mcp-config calc, "
        "but the session was started with another value of --mcp-config"
    )


@pytest.mark.parametrize(
    ("flags", "session_flags", "expected"),
    [
        ("--effort low --add-dir /d", "--add-dir /d", ["--effort"]),
        ("--add-dir /d /e", "--add-dir /d", ["--add-dir"]),
        ("--append-system-prompt x --system-prompt ''", "", ["--append-system-prompt"]),
        ("--chrome --betas a --betas b --nonsense --ide", "--ide", ["--betas", "--chrome", "--nonsense"]),
        ("--max-thinking-tokens 0", "--max-thinking-tokens 9", ["--max-thinking-tokens"]),
        ("--permission-prompt-tool mcp__judge__ask", "", ["--permission-prompt-tool"]),
        ("--permission-prompt-tool stdio", "", []),
        ("--setting-sources=", "", ["--setting-sources"]),
        ("--setting-sources=", "--setting-sources=", []),
        ("--setting-sources local,user,project", "", []),
        ("--setting-sources user", "--setting-sources user,project", ["--setting-sources"]),
        ("--settings '{\"effortLevel\": \"low\"}'", "", ["--settings"]),
        ("--allow-dangerously-skip-permissions", "", ["--allow-dangerously-skip-permissions"]),
        ("--shim-record f --shim-log debug --shim-dialect claude", "", ["--shim-record"]),
    ],
)  # fmt: skip
def test_other_flags_are_ignored_and_named_once(flags, session_flags, expected):
    assert sorted(ignored(flags, session_flags)) == expected
    assert differences(flags, session_flags) == []


def test_flags_of_the_joining_process_are_not_reported():
    flags = "-p --output-format stream-json --input-format stream-json --verbose --resume x"
    flags += " --include-partial-messages --replay-user-messages --fork-session"
    assert ignored(flags) == differences(flags) == []


# -- settings files --------------------------------------------------------------------------------


def stricter(settings, session_settings=NO_SETTINGS, flags="", session_flags=""):
    return list_stricter_settings(parse(flags), settings, parse(session_flags), session_settings)


def rules(*texts, base="", source="/f"):
    return parse_permission_rules(texts, base, source)


def test_equal_settings_join():
    settings = ClaudeSettings(
        deny=rules("Bash", "Read(/x)", base="/home"),
        ask=rules("Write"),
        hooks=(SettingsHook("Bash", "./judge", source="/f"),),
        unsupported_keys={"sandbox in /f": "{}"},
        bypass_forbidden_by="/f",
    )
    assert stricter(settings, settings) == []
    assert stricter(ClaudeSettings(), settings) == []


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (ClaudeSettings(deny=rules("Bash(rm:*)")), "/f denies Bash(rm:*)"),
        (ClaudeSettings(ask=rules("Bash")), "/f requires a permission prompt for Bash"),
        (
            ClaudeSettings(hooks=(SettingsHook("Bash", "./judge", source="/f"),)),
            "a hook in /f checks tool calls",
        ),
        (
            ClaudeSettings(hooks=(SettingsHook("", "./log", source="/f", event="Stop"),)),
            "a hook in /f runs at Stop",
        ),
        (
            ClaudeSettings(unsupported_keys={"sandbox in /f": '{"enabled":true}'}),
            "sandbox in /f restricts tool calls",
        ),
        (ClaudeSettings(bypass_forbidden_by="/f"), "/f forbids the mode bypassPermissions"),
    ],
)
def test_stricter_settings_are_refused_with_the_name_of_their_file(settings, expected):
    assert stricter(settings) == [expected]


def test_rules_that_the_session_has_or_covers_are_not_stricter():
    settings = ClaudeSettings(deny=rules("Bash(rm:*)", "AskUserQuestion"), ask=rules("Read(./x)"))
    assert stricter(settings, session_flags="--disallowedTools Bash,Read") == []
    assert stricter(settings, ClaudeSettings(deny=rules("Bash(rm:*)", "Read"))) == []
    other_base = ClaudeSettings(deny=rules("Read(/x)", base="/elsewhere"))
    assert stricter(ClaudeSettings(deny=rules("Read(/x)", base="/home")), other_base) == [
        "/f denies Read(/x)"
    ]


def test_key_with_another_value_is_stricter():
    settings, session_settings = (
        ClaudeSettings(unsupported_keys={"sandbox in /f": value}) for value in ("{}", "[]")
    )
    assert stricter(settings, session_settings) == ["sandbox in /f restricts tool calls"]


ALLOWED = "allows Bash in the session, but the settings of the frontend do not"


@pytest.mark.parametrize(
    ("source", "flags", "session_flags", "expected"),
    [
        ("/f", "", "", [f"/f {ALLOWED}"]),
        ("/f", "--setting-sources=", "", [f"/f {ALLOWED}"]),
        ("/f", "--allowedTools Bash", "--allowedTools Bash", []),
        ("--settings", "--settings {}", "--settings {}", [f"--settings {ALLOWED}"]),
        ("--settings", "", "--settings {}", []),
        ("--settings", "--setting-sources=", "--settings {}", []),
    ],
)
def test_allow_rule_that_only_the_session_has_is_refused(source, flags, session_flags, expected):
    session_settings = ClaudeSettings(allow=rules("Bash", source=source))
    assert stricter(NO_SETTINGS, session_settings, flags, session_flags) == expected
    assert stricter(session_settings, session_settings, flags, session_flags) == []


@pytest.mark.parametrize(
    ("flags", "session_flags", "is_refused"),
    [
        ("", "", True),
        ("--settings {}", "--settings {}", True),
        ("--setting-sources=", "", True),
        ("--add-dir /d", "", False),
        ("", "--settings {}", False),
        ("--setting-sources=", "--settings {}", True),
    ],
)
def test_directory_that_only_the_session_has_is_refused(flags, session_flags, is_refused):
    session_settings = ClaudeSettings(directories=("/d",))
    expected = [
        "the session may use the directory /d, but the settings of the frontend do not name it"
    ]
    assert stricter(NO_SETTINGS, session_settings, flags, session_flags) == expected * is_refused
    assert stricter(session_settings, session_settings, flags, session_flags) == []
