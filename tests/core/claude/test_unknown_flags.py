"""Unknown flags: a warning with a suggestion, and a refusal of flags that resemble a permission
flag.
"""

from __future__ import annotations

import pytest
from sweeps import loop_over_rows

from shim.core.claude.argv.flags import parse_argv
from shim.core.claude.argv.unknown_flags import (
    collect_unknown_flag_warnings,
    find_similar_permission_flag,
)
from shim.core.errors import FrontendError


@loop_over_rows(
    ("typed", "flag"),
    [
        ("--permision-mode", "--permission-mode"),
        ("--permissionMode", "--permission-mode"),
        ("--Permission-Mode", "--permission-mode"),
        ("--permissions", "--permission-mode"),
        ("-permission-mode", "--permission-mode"),
        ("--disallowed-tool", "--disallowedTools"),
        ("--disallowedtools", "--disallowedTools"),
        ("--disallow", "--disallowedTools"),
        ("--allowedTool", "--allowedTools"),
        ("--ALLOWED_TOOLS", "--allowedTools"),
        ("--dangerously-skip-permission", "--dangerously-skip-permissions"),
        ("--dangerous-skip-permissions", "--dangerously-skip-permissions"),
        ("--skip-permissions", "--dangerously-skip-permissions"),
        ("--tool", "--tools"),
        ("--toosl", "--tools"),
        ("--setting", "--settings"),
        ("--setting-source", "--setting-sources"),
        ("--max-turn", "--max-turns"),
        ("--add-dirs", "--add-dir"),
        ("--strict-mcp", "--strict-mcp-config"),
        ("--restrict", "--restricted"),
    ],
)
def test_misspelled_permission_flag_is_refused(typed: str, flag: str) -> None:
    for args in ([typed, "plan"], [f"{typed}=plan"], ["-p", "hi", typed]):
        with pytest.raises(
            FrontendError, match=f"unknown option '{typed}', did you mean `{flag}`"
        ) as caught:
            collect_unknown_flag_warnings(parse_argv(args))
        assert "nothing was started" in caught.value.hint


@loop_over_rows(
    ("args", "flag"),
    [
        (["--deny-tools", "Bash"], "--disallowedTools"),
        (["--denyTools=Bash"], "--disallowedTools"),
        (["--denied-tools", "Bash"], "--disallowedTools"),
        (["--exclude-tools", "Bash"], "--disallowedTools"),
        (["--blockedTools", "Bash"], "--disallowedTools"),
        (["--no-tools"], "--disallowedTools"),
        (["--permission-rules", "x"], "--permission-mode"),
        (["--deny-permission", "x"], "--permission-mode"),
        (["--mode", "plan"], "--permission-mode"),
        (["--mode=plan"], "--permission-mode"),
        (["--perm-mode", "dontAsk"], "--permission-mode"),
        (["--defaultMode", "acceptEdits"], "--permission-mode"),
        (["--approval-mode", "plan"], "--permission-mode"),
    ],
)
def test_synonym_of_a_permission_flag_is_refused(args: list[str], flag: str) -> None:
    with pytest.raises(FrontendError, match=f"unknown option .*, did you mean `{flag}`"):
        collect_unknown_flag_warnings(parse_argv(["-p", "hi", *args]))


@loop_over_rows(
    "arg",
    [
        *(
            "--permission-mode plan",
            "--permission-mode ",
            "--permission-mode\t",
            "--disallowedTools Bash(rm:*)",
        ),
        *("--disallowedTools\nBash", "--restricted ", "--permission-mode\u00a0plan"),
        "--settings {}",
    ],
)
@loop_over_rows("before", [["-p", "hi"], ["-p"]])
def test_permission_flag_and_value_in_a_single_argument_are_refused(
    before: list[str], arg: str
) -> None:
    with pytest.raises(FrontendError, match="are one argument"):
        collect_unknown_flag_warnings(parse_argv([*before, arg, "plan"]))


@loop_over_rows(
    "arg", ["- list these", "--- a: b", "-- x", "--model opus", "--frobnicate it", "-p --tools x"]
)
def test_other_argument_with_a_space_is_the_prompt(arg: str) -> None:
    invocation = parse_argv(["-p", arg])
    assert invocation.prompt == arg and collect_unknown_flag_warnings(invocation) == []


def test_permission_flag_after_double_dash_or_as_a_value_is_text() -> None:
    for args in (
        ["--", "--permission-mode plan"],
        ["--model", "--permision-mode", "hi"],
        ["--system-prompt", "--mode plan"],
    ):
        assert collect_unknown_flag_warnings(parse_argv(["-p", *args])) == []


@loop_over_rows(
    "args",
    [
        ["--color-mode", "auto"],
        ["--mode"],
        ["--tool-timeout", "3"],
        ["--vim-mode", "on"],
        ["--no-color"],
    ],
)
def test_flag_sharing_a_word_with_a_permission_flag_only_warns(args: list[str]) -> None:
    assert len(collect_unknown_flag_warnings(parse_argv(["-p", "hi", *args]))) == 1


@loop_over_rows(
    "typed",
    [
        *(
            "--allow",
            "--mode",
            "--config",
            "--sandbox",
            "--yolo",
            "--mcp-debug",
            "--max-tokens",
            "--agent-foo",
        ),
        *("--no-such-flag", "--verbos", "--session", "--thinking-budget", "--output", "-x"),
    ],
)
def test_other_unknown_flag_only_warns(typed: str) -> None:
    assert find_similar_permission_flag(typed) is None
    (warning,) = collect_unknown_flag_warnings(parse_argv(["-p", "hi", typed, typed]))
    assert warning.startswith(
        f"warning: unknown option '{typed}' has no effect"
    ) and warning.endswith("\n")


def test_warning_suggests_the_most_similar_flag() -> None:
    (warning,) = collect_unknown_flag_warnings(parse_argv(["--verbos"]))
    assert "did you mean `--verbose`?" in warning


def test_permission_switch_with_a_value_is_refused() -> None:
    with pytest.raises(FrontendError, match="option '--restricted' takes no value, but has 'true'"):
        collect_unknown_flag_warnings(parse_argv(["--restricted=true"]))
    assert collect_unknown_flag_warnings(parse_argv(["--verbose=true"]))


def test_long_flag_is_shortened_in_the_warning() -> None:
    (warning,) = collect_unknown_flag_warnings(parse_argv(["--" + "x" * 100_000]))
    assert len(warning) < 200


# The flags of today's clients and of the real claude, in addition to those with a field of their
# own.
CLIENT_FLAGS = (
    *(
        "--session-mirror",
        "--await-initialize",
        "--managed-settings-in-initialize",
        "--debug-to-stderr",
        "--betas x",
    ),
    *(
        "--enable-auth-status",
        "--channels x",
        "--plugin-dir x",
        "--thinking adaptive",
        "--task-budget 3",
        "--agent x",
    ),
    *(
        "--initialize-fields x",
        "--project-config-root x",
        "--permission-prompts stdio",
        "--thinking-display omitted",
    ),
    *(
        "--remote-control-session-name-prefix x",
        "--plan-mode-instructions x",
        "--fast-mode on",
        "--agent-id x",
    ),
)


@loop_over_rows("flag", CLIENT_FLAGS)
def test_flags_passed_by_clients_are_supported(flag: str) -> None:
    assert collect_unknown_flag_warnings(parse_argv(["-p", *flag.split()])) == []
