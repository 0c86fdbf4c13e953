"""An Invocation is turned into arguments again."""

import json

import pytest
from sweeps import loop_over_rows

from shim.core.claude.argv.flags import parse_argv
from shim.core.claude.argv.merge import (
    build_conversation_args,
    build_resume_point_args,
    extract_restricting_flags,
    merge_resume_flags,
)

SAYINGS = [
    [
        "--model",
        "opus",
        "--permission-mode",
        "plan",
        "--max-turns",
        "3",
        "--max-budget-usd",
        "0.25",
    ],
    [
        "--allowedTools",
        "Bash(git log:*),Read",
        "--disallowed-tools",
        "Write Edit",
        "--add-dir",
        "/a",
        "/b c",
    ],
    ["--tools", ""],
    ["--tools", "Read,Bash", "--strict-mcp-config", "--mcp-config", "{}", "file.json"],
    [
        "--system-prompt",
        "",
        "--append-system-prompt",
        "-dash",
        "--settings",
        '{"a": 1}',
        "--setting-sources=",
    ],
    [
        "--dangerously-skip-permissions",
        "--json-schema",
        "{}",
        "--effort",
        "high",
        "--fallback-model",
        "x",
    ],
    [
        "--debug",
        "--debug=api",
        "--betas",
        "one",
        "two",
        "--agent",
        "-x",
        "--unheard-of=7",
        "--strange",
    ],
    ["--shim-vendor", "demo", "--shim-config", "/c.toml"],
]


@loop_over_rows("args", SAYINGS)
def test_conversation_args_round_trip(args):
    invocation = parse_argv(args)
    # There is no prompt.
    invocation = invocation._replace(swallowed_prompt=None)
    assert parse_argv(build_conversation_args(invocation)) == invocation


def test_frontend_and_session_flags_are_omitted():
    frontend = [
        "-p",
        "a prompt",
        "--output-format",
        "stream-json",
        "--input-format",
        "stream-json",
        "--verbose",
    ]
    frontend += [
        "--include-partial-messages",
        "--replay-user-messages",
        "--permission-prompt-tool",
        "stdio",
    ]
    session = [
        "--resume",
        "0b5ca2c8-6f4e-4b9a-8f5e-0d9a3b1f2c3d",
        "--fork-session",
        "--name",
        "mine",
    ]
    assert build_conversation_args(parse_argv([*frontend, *session, "--model", "opus"])) == [
        "--model",
        "opus",
    ]


def test_resume_flags_are_only_in_the_fork_args():
    invocation = parse_argv(
        [
            "--resume",
            "0b5ca2c8-6f4e-4b9a-8f5e-0d9a3b1f2c3d",
            "--resume-session-at",
            "u",
            "--model",
            "opus",
        ]
    )
    assert build_conversation_args(invocation) == ["--model", "opus"]
    assert build_resume_point_args(
        merge_resume_flags(parse_argv(["--model", "haiku"]), invocation)
    ) == [
        "--resume-session-at",
        "u",
    ]


@loop_over_rows(
    ("original", "current", "both"),
    [
        ("--disallowedTools Bash", "--disallowedTools Read", "--disallowedTools Bash,Read"),
        ("--agent a --agent b", "--agent a", "--agent b --agent a"),
        ("--tools Read,Edit", "--tools Read,Bash", "--tools Read"),
        ("--tools=", "--tools Read", "--tools="),
        ("--tools Read", "", "--tools Read"),
        ("", "--tools Read", "--tools Read"),
        ("--dangerously-skip-permissions", "--permission-mode plan", "--permission-mode plan"),
        ("--dangerously-skip-permissions", "", "--dangerously-skip-permissions"),
        (
            "--permission-mode plan --max-turns 3",
            "--permission-mode default",
            "--permission-mode default --max-turns 3",
        ),
        (
            "--managed-settings {}",
            "--managed-settings []",
            "--managed-settings {} --managed-settings []",
        ),
    ],
)
def test_resume_flags_do_not_remove_original_restrictions(original, current, both):
    merged = merge_resume_flags(parse_argv(original.split()), parse_argv(current.split()))
    assert build_conversation_args(merged) == build_conversation_args(parse_argv(both.split()))


@loop_over_rows(
    ("original", "expected"),
    [
        (
            "--disallowedTools Bash --allowedTools Read --tools Read,Bash",
            "--disallowedTools Bash --tools Read,Bash",
        ),
        ("--tools= --restricted --max-turns 3 --max-budget-usd 2", None),
        (
            "--settings s --setting-sources=user --model x --effort low",
            "--settings s --setting-sources=user",
        ),
        (
            "--managed-settings {} --agent a --agents {} --bare --safe-mode --task-budget 3 --disable-slash-commands",
            None,
        ),
        ("--strict-mcp-config --mcp-config a", None),
        ("--mcp-config a --add-dir /d --chrome --unheard-of", ""),
        ("--permission-mode plan", None),
        ("--permission-mode default", None),
        ("--permission-mode acceptEdits", ""),
        (
            "--dangerously-skip-permissions --allow-dangerously-skip-permissions --permission-mode plan",
            "",
        ),
    ],
)
def test_only_restricting_flags_are_extracted(original, expected):
    restricted = extract_restricting_flags(parse_argv(original.split()))
    assert build_conversation_args(restricted) == build_conversation_args(
        parse_argv((original if expected is None else expected).split())
    )


DENIES = {
    "permissions": {"deny": ["Bash"], "disableBypassPermissionsMode": "disable"},
    "disableAllHooks": True,
}
HOOKS = {"PreToolUse": [{"hooks": [{"type": "command", "command": "a"}]}]}


@loop_over_rows(
    ("original", "current", "both"),
    [
        (DENIES, {"model": "m"}, {"permissions": DENIES["permissions"], "model": "m"}),
        (DENIES, DENIES, DENIES),
        (
            {
                "permissions": {"ask": "Read", "allow": ["Edit"], "defaultMode": "plan"},
                "hooks": HOOKS,
                "env": {"A": "b"},
            },
            {
                "permissions": {"deny": ["Bash"], "ask": ["Read", "Grep"]},
                "hooks": {**HOOKS, "Stop": []},
                "env": {"A": "c"},
            },
            {
                "permissions": {
                    "ask": ["Read", "Grep"],
                    "allow": ["Edit"],
                    "defaultMode": "plan",
                    "deny": ["Bash"],
                },
                "hooks": {**HOOKS, "Stop": []},
                "env": {"A": "c"},
            },
        ),
        (
            {"permissions": {"defaultMode": "plan"}},
            {"permissions": {"defaultMode": "default"}},
            None,
        ),
        ({"permissions": "odd", "hooks": []}, {"model": "m"}, {"model": "m"}),
        ({"hooks": HOOKS}, {"disableAllHooks": True}, {"hooks": HOOKS}),
        ({"model": "m"}, {"disableAllHooks": True}, {"model": "m", "disableAllHooks": True}),
    ],
)
def test_resume_settings_preserve_original_rules_and_hooks(original, current, both):
    merged = merge_resume_flags(
        *(parse_argv(["--settings", json.dumps(settings)]) for settings in (original, current))
    )
    assert json.loads(merged.settings) == (current if both is None else both)


ALLOWS = {"allow": ["Bash"], "additionalDirectories": ["/"], "defaultMode": "acceptEdits"}
PLANS = {"deny": ["Read"], "defaultMode": "plan"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"permissions": ALLOWS, "disableAllHooks": True}, None),
        (
            {"permissions": {**ALLOWS, **PLANS}, "hooks": HOOKS},
            {"hooks": HOOKS, "permissions": PLANS},
        ),
        ({"permissions": {"ask": ["Read"]}}, {"permissions": {"ask": ["Read"]}}),
    ],
)
def test_only_restricting_settings_are_extracted(settings, expected):
    restricted = extract_restricting_flags(
        parse_argv(["--settings", json.dumps(settings)])
    ).settings
    assert (restricted and json.loads(restricted)) == expected
