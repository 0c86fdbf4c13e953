"""Claude's command line: contract sections 1, 4, 7, 9, 10 and 11; threats, first row."""

import ast
import inspect
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sweeps import limit_examples, loop_over_rows

from shim.core.claude.argv import flags as parser
from shim.core.claude.argv.flags import (
    ALL_SUBCOMMANDS,
    FLAGS,
    Invocation,
    parse_argv,
    split_tool_rules,
)
from shim.core.claude.argv.merge import build_conversation_args
from shim.core.errors import FrontendError, ShimError, VendorError
from shim.core.reading.values import canonicalize_uuid

ID = "15aa73b9-0a61-4047-8eb4-8b7731b03596"
OTHER_ID = "e9b0c7b1-7d8f-4a53-9a51-0d2b61b5ff00"
MCP = '{"mcpServers": {"calc": {"type": "sdk", "name": "calc"}}}'

STREAM_OUT: dict[str, Any] = {"output_format": "stream-json", "verbose": True}
STREAM: dict[str, Any] = {**STREAM_OUT, "input_format": "stream-json"}
OURS = tuple(field for field in FLAGS if field.startswith("shim_"))


def parse_fields(*args: str) -> dict[str, Any]:
    """Return the fields of the parsed arguments that differ from those of an empty command line."""
    empty = Invocation()._asdict()
    fields = parse_argv(args)._asdict()
    return {name: field for name, field in fields.items() if field != empty[name]}


# -- arguments of real clients (contract 7 and 9): each row has the argv and every field it sets ----

CLIENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "python sdk": (
        '--output-format stream-json --verbose --system-prompt "" --input-format stream-json',
        {**STREAM, "system_prompt": ""},
    ),
    "python sdk, options": (
        (
            "--output-format stream-json --verbose --append-system-prompt X --allowedTools Bash "
            "--max-turns 5 --model sonnet --permission-mode acceptEdits --include-partial-messages "
            "--input-format stream-json"
        ),
        {
            **STREAM,
            "append_system_prompt": "X",
            "allowed_tools": ("Bash",),
            "max_turns": 5,
            "model": "sonnet",
            "permission_mode": "acceptEdits",
            "partial": True,
        },
    ),
    "python sdk, can_use_tool": (
        (
            '--output-format stream-json --verbose --system-prompt "" --permission-prompt-tool stdio '
            "--input-format stream-json"
        ),
        {**STREAM, "system_prompt": "", "permission_prompt_tool": "stdio"},
    ),
    "python sdk, mcp": (
        (
            '--output-format stream-json --verbose --system-prompt "" --allowedTools mcp__calc__add '
            f"--mcp-config '{MCP}' --input-format stream-json"
        ),
        {**STREAM, "system_prompt": "", "allowed_tools": ("mcp__calc__add",), "mcp_config": (MCP,)},
    ),
    "python sdk, everything it can add": (
        (
            '--output-format stream-json --verbose --system-prompt-file p.md --tools "" '
            "--allowedTools Read,Write --max-budget-usd 1e-05 --disallowedTools 'Bash(rm *),Write' "
            f"--task-budget 9 --fallback-model haiku --betas a,b --resume={ID} --fork-session "
            f"--session-id={OTHER_ID} --settings '{{}}' --add-dir /a --add-dir /b --include-hook-events "
            "--strict-mcp-config --resume-session-at=u --resume-drops-turn=v --session-mirror "
            "--setting-sources= --plugin-dir /p --thinking adaptive --thinking-display omitted "
            "--max-thinking-tokens 0 --effort high --json-schema '{}' --extra=v --input-format "
            "stream-json"
        ),
        {
            **STREAM,
            "system_prompt_file": "p.md",
            "tools": (),
            "allowed_tools": ("Read", "Write"),
            "max_budget_usd": 1e-05,
            "disallowed_tools": ("Bash(rm *)", "Write"),
            "fallback_model": "haiku",
            "resume": ID,
            "fork_session": True,
            "resume_session_at": "u",
            "resume_drops_turn": "v",
            "session_id": OTHER_ID,
            "settings": "{}",
            "add_dirs": ("/a", "/b"),
            "strict_mcp_config": True,
            "setting_sources": "",
            "thinking": "adaptive",
            "max_thinking_tokens": 0,
            "effort": "high",
            "json_schema": "{}",
            "other_flags": (
                ("--task-budget", "9"),
                ("--betas", "a,b"),
                ("--include-hook-events", None),
                ("--session-mirror", None),
                ("--plugin-dir", "/p"),
                ("--thinking-display", "omitted"),
            ),
            "unknown_flags": (("--extra", "v"),),
        },
    ),
    "typescript sdk": ("--output-format stream-json --verbose --input-format stream-json", STREAM),
    "typescript sdk, options": (
        (
            "--output-format stream-json --verbose --input-format stream-json --max-turns=5 "
            "--model=sonnet --allowedTools=Bash --permission-mode=acceptEdits "
            "--include-partial-messages"
        ),
        {
            **STREAM,
            "max_turns": 5,
            "model": "sonnet",
            "allowed_tools": ("Bash",),
            "permission_mode": "acceptEdits",
            "partial": True,
        },
    ),
    "typescript sdk, plugins": (
        (
            "--output-format stream-json --verbose --input-format stream-json --await-initialize "
            "'--managed-settings={}' --no-session-persistence"
        ),
        {
            **STREAM,
            "no_session_persistence": True,
            "other_flags": (("--await-initialize", None), ("--managed-settings", "{}")),
        },
    ),
    "acp 0.49": (
        (
            "--output-format stream-json --verbose --input-format stream-json "
            "--permission-prompt-tool stdio --disallowedTools AskUserQuestion --tools default "
            "--setting-sources=user,project,local --permission-mode default "
            f"--allow-dangerously-skip-permissions --include-partial-messages --session-id {ID} "
            '--replay-user-messages ""'
        ),
        {
            **STREAM,
            "prompt": "",
            "permission_prompt_tool": "stdio",
            "disallowed_tools": ("AskUserQuestion",),
            "setting_sources": "user,project,local",
            "permission_mode": "default",
            "allow_skip_permissions": True,
            "partial": True,
            "session_id": ID,
            "replay_user_messages": True,
        },
    ),
    "acp 0.100": (
        (
            "--output-format stream-json --verbose --input-format stream-json "
            "--permission-prompt-tool=stdio --disallowedTools=AskUserQuestion --tools=default "
            "--setting-sources=user,project,local --permission-mode=default "
            f'--include-partial-messages --session-id={ID} --replay-user-messages ""'
        ),
        {
            **STREAM,
            "prompt": "",
            "permission_prompt_tool": "stdio",
            "disallowed_tools": ("AskUserQuestion",),
            "setting_sources": "user,project,local",
            "permission_mode": "default",
            "partial": True,
            "session_id": ID,
            "replay_user_messages": True,
        },
    ),
    "acp 0.100, its probe": (
        "auth status --json",
        {"subcommand": "auth", "subcommand_args": ("status", "--json")},
    ),
    "opcode": (
        (
            "-p 'do it' --model opus --output-format stream-json --verbose --dangerously-skip-permissions"
        ),
        {
            **STREAM_OUT,
            "prompt": "do it",
            "print_mode": True,
            "model": "opus",
            "skip_permissions": True,
        },
    ),
    "opcode, continued": (
        (
            "-c -p 'do it' --model opus --output-format stream-json --verbose --dangerously-skip-permissions"
        ),
        {
            **STREAM_OUT,
            "prompt": "do it",
            "print_mode": True,
            "continue_last": True,
            "model": "opus",
            "skip_permissions": True,
        },
    ),
    "crystal": (
        (
            "--verbose --output-format stream-json --model opus "
            f"--dangerously-skip-permissions --resume {ID} -p 'do it'"
        ),
        {
            **STREAM_OUT,
            "prompt": "do it",
            "print_mode": True,
            "model": "opus",
            "skip_permissions": True,
            "resume": ID,
        },
    ),
    "crystal, with permissions": (
        (
            "--verbose --output-format stream-json --mcp-config f.json --permission-prompt-tool "
            "mcp__x__approve --allowedTools mcp__x__approve -p 'do it'"
        ),
        {
            **STREAM_OUT,
            "prompt": "do it",
            "print_mode": True,
            "mcp_config": ("f.json",),
            "permission_prompt_tool": "mcp__x__approve",
            "allowed_tools": ("mcp__x__approve",),
        },
    ),
    "siteboon": (
        (
            "--print 'do it' --output-format stream-json --verbose --mcp-config /home/u/.claude.json "
            "--model sonnet --permission-mode plan --allowedTools Read --allowedTools "
            "'Bash(git log:*)' --disallowedTools Write"
        ),
        {
            **STREAM_OUT,
            "prompt": "do it",
            "print_mode": True,
            "mcp_config": ("/home/u/.claude.json",),
            "model": "sonnet",
            "permission_mode": "plan",
            "allowed_tools": ("Read", "Bash(git log:*)"),
            "disallowed_tools": ("Write",),
        },
    ),
    "siteboon, resumed": (
        f"--resume {ID} --output-format stream-json --verbose",
        {**STREAM_OUT, "resume": ID},
    ),
    "vibe-kanban": (
        (
            "-p --permission-prompt-tool=stdio --permission-mode=bypassPermissions --model opus "
            "--effort high --agent reviewer --verbose --output-format=stream-json "
            "--input-format=stream-json --include-partial-messages --replay-user-messages --resume "
            f"{ID} --resume-session-at {OTHER_ID}"
        ),
        {
            **STREAM,
            "print_mode": True,
            "permission_prompt_tool": "stdio",
            "permission_mode": "bypassPermissions",
            "model": "opus",
            "effort": "high",
            "partial": True,
            "replay_user_messages": True,
            "resume": ID,
            "resume_session_at": OTHER_ID,
            "other_flags": (("--agent", "reviewer"),),
        },
    ),
    "goose": (
        (
            "--input-format stream-json --output-format stream-json --verbose --mcp-config f.json "
            "--strict-mcp-config --include-partial-messages --system-prompt 'be brief' --model opus "
            "--permission-mode acceptEdits"
        ),
        {
            **STREAM,
            "mcp_config": ("f.json",),
            "strict_mcp_config": True,
            "partial": True,
            "system_prompt": "be brief",
            "model": "opus",
            "permission_mode": "acceptEdits",
        },
    ),
    "cline": (
        (
            "--system-prompt-file /tmp/s --verbose --output-format stream-json --disallowedTools "
            "Task,Bash,Glob --max-turns 1 --model opus -p"
        ),
        {
            **STREAM_OUT,
            "print_mode": True,
            "system_prompt_file": "/tmp/s",
            "disallowed_tools": ("Task", "Bash", "Glob"),
            "max_turns": 1,
            "model": "opus",
        },
    ),
    "yume": (
        f"--print --output-format stream-json --model opus --append-system-prompt P --resume {ID}",
        {
            "print_mode": True,
            "output_format": "stream-json",
            "model": "opus",
            "append_system_prompt": "P",
            "resume": ID,
        },
    ),
    "emacs": (
        (
            "--print --input-format stream-json --output-format stream-json --verbose "
            "--include-partial-messages --model opus --permission-mode manual"
        ),
        {
            **STREAM,
            "print_mode": True,
            "partial": True,
            "model": "opus",
            "permission_mode": "manual",
        },
    ),
    "claude-inline.nvim, without --verbose": (
        "-p --input-format stream-json --output-format stream-json",
        {"print_mode": True, "input_format": "stream-json", "output_format": "stream-json"},
    ),
    "sandbox-agent": (
        (
            "--print --output-format stream-json --verbose --dangerously-skip-permissions --resume "
            f"{ID} --model opus --permission-mode plan 'do it'"
        ),
        {
            **STREAM_OUT,
            "prompt": "do it",
            "print_mode": True,
            "skip_permissions": True,
            "resume": ID,
            "model": "opus",
            "permission_mode": "plan",
        },
    ),
    "t3 code's probe": (
        (
            "--output-format stream-json --verbose --input-format stream-json --strict-mcp-config "
            "--setting-sources=user,project,local --settings '{\"disableAllHooks\":true}' "
            "--no-session-persistence"
        ),
        {
            **STREAM,
            "strict_mcp_config": True,
            "setting_sources": "user,project,local",
            "settings": '{"disableAllHooks":true}',
            "no_session_persistence": True,
        },
    ),
}


@loop_over_rows("client", CLIENTS)
def test_arguments_of_real_clients_are_parsed(client: str) -> None:
    """P4"""
    line, expected = CLIENTS[client]
    assert parse_fields(*shlex.split(line)) == expected


CASES = sorted(Path(__file__).parents[3].glob("fixtures/claude*/*/case.toml"))
# Cases from fuzzing had no process.
FIXTURES = [case for case in CASES if "argv" in tomllib.loads(case.read_text())]


@loop_over_rows("case", FIXTURES)
def test_recorded_argv_has_unknown_flags_only_if_claude_refused_them(case: Path) -> None:
    recorded = tomllib.loads(case.read_text())
    refused = "unknown option" in recorded.get("stderr", "")
    assert bool(parse_argv(recorded["argv"][1:]).unknown_flags) == refused


# -- prompts and arguments -------------------------------------------------------------------------


def test_only_the_first_positional_is_the_prompt() -> None:
    assert parse_fields("-p", "one", "two") == {"print_mode": True, "prompt": "one"}


def test_print_flag_takes_no_value() -> None:
    assert parse_fields("-p", "--model", "opus", "hi") == {
        "print_mode": True,
        "model": "opus",
        "prompt": "hi",
    }


def test_empty_prompt_is_preserved() -> None:
    assert parse_argv(["-p", "", "two"]).prompt == ""


def test_arguments_after_a_double_dash_are_positional() -> None:
    assert parse_fields("--tools", "Bash", "--", "--model", "x", "--version") == {
        "tools": ("Bash",),
        "prompt": "--model",
    }


def test_single_dash_is_a_positional() -> None:
    assert parse_argv(["-p", "-"]).prompt == "-"


@pytest.mark.parametrize(
    "text", ["- fix this\n- then that", "-rest of the work", "-c or -v?", "--explain this=that"]
)
def test_text_that_starts_with_a_dash_is_a_prompt(text: str) -> None:
    assert parse_fields("-p", text) == {"print_mode": True, "prompt": text}


def test_flag_value_after_an_equals_sign_may_contain_spaces() -> None:
    assert parse_fields("--system-prompt=be brief", "-p", "hi") == {
        "system_prompt": "be brief",
        "print_mode": True,
        "prompt": "hi",
    }


VARIADIC = "--allowedTools --allowed-tools --disallowedTools --disallowed-tools --tools --add-dir --mcp-config --betas"


@loop_over_rows("flag", shlex.split(VARIADIC))
def test_variadic_flag_consumes_the_prompt(flag: str) -> None:
    """P6"""
    invocation = parse_argv(["-p", flag, "first", "go"])
    assert (invocation.prompt, invocation.swallowed_prompt) == (None, (flag, "go"))


def test_variadic_flag_stops_at_the_next_flag() -> None:
    assert parse_fields("--tools", "A", "B", "--verbose", "go") == {
        "tools": ("A", "B"),
        "verbose": True,
        "prompt": "go",
    }


def test_variadic_flag_with_equals_takes_a_single_value() -> None:
    assert parse_fields("--disallowedTools=Bash", "go") == {
        "disallowed_tools": ("Bash",),
        "prompt": "go",
    }


def test_swallowed_prompt_is_not_reported_if_there_is_a_prompt() -> None:
    assert parse_argv(["go", "--tools", "A", "B"]).swallowed_prompt is None


def test_required_value_of_a_variadic_flag_is_not_a_swallowed_prompt() -> None:
    assert parse_argv(["-p", "--mcp-config", "servers.json"]).swallowed_prompt is None


# -- values ----------------------------------------------------------------------------------------


def test_repeated_flag_uses_the_last_value_and_lists_accumulate() -> None:
    args = ["--model", "a", "--add-dir", "/a", "--model=b", "--add-dir", "/b", "/c", "-p", "hi"]
    assert parse_fields(*args) == {
        "model": "b",
        "add_dirs": ("/a", "/b", "/c"),
        "print_mode": True,
        "prompt": "hi",
    }


def test_flag_value_may_contain_an_equals_sign() -> None:
    assert parse_argv(["--append-system-prompt=a=b"]).append_system_prompt == "a=b"


def test_optional_value_never_starts_with_a_dash() -> None:
    assert parse_fields("--resume", "-p", "hi") == {
        "resume": "",
        "print_mode": True,
        "prompt": "hi",
    }
    assert parse_fields("-d", "-p") == {"other_flags": (("--debug", None),), "print_mode": True}
    assert parse_fields("-d", "api", "-w", "tree") == {
        "other_flags": (("--debug", "api"), ("--worktree", "tree"))
    }


@pytest.mark.parametrize("args", [["--resume", ID], ["--resume=" + ID], ["-r", ID], ["-r" + ID]])
def test_resume_accepts_every_flag_form(args: list[str]) -> None:
    """F5"""
    assert parse_fields(*args, "-p", "hi") == {"resume": ID, "print_mode": True, "prompt": "hi"}


def test_resume_accepts_a_session_title() -> None:
    assert parse_argv(["--resume", "My Session"]).resume == "My Session"


def test_short_flags_can_be_combined() -> None:
    assert parse_fields("-pcr", ID) == {"print_mode": True, "continue_last": True, "resume": ID}


def test_combined_short_flags_never_become_a_long_flag() -> None:
    assert parse_fields("-p-shim-config=./evil.toml") == {
        "print_mode": True,
        "unknown_flags": (("-p-shim-config=./evil.toml", None),),
    }


def test_switch_with_a_value_is_an_unknown_flag() -> None:
    assert parse_fields("--dangerously-skip-permissions=false") == {
        "unknown_flags": (("--dangerously-skip-permissions", "false"),)
    }


@loop_over_rows(
    ("text", "entries"),
    [
        ("Bash(git log:*, git diff:*),Read", ["Bash(git log:*, git diff:*)", "Read"]),
        ("Bash(git:*) Edit", ["Bash(git:*)", "Edit"]),
        (" Read ,, Write,", ["Read", "Write"]),
        ("Bash(python -c 'f(1), g(2)'),Read", ["Bash(python -c 'f(1), g(2)')", "Read"]),
        ("Bash(echo :( x),Read", ["Bash(echo :( x)", "Read"]),
        ("Bash(git,Read", ["Bash(git,Read"]),
        ("a),b", ["a)", "b"]),
        ("", []),
    ],
)
def test_tool_rules_are_split_only_outside_parentheses(text: str, entries: list[str]) -> None:
    assert split_tool_rules(text) == entries


def test_tools_flag_distinguishes_default_empty_and_named_tools() -> None:
    tool_lists = [
        parse_argv(args).tools
        for args in (
            [],
            ["--tools", "default"],
            ["--tools="],
            ["--tools", ""],
            ["--tools", "Read Bash"],
        )
    ]
    assert tool_lists == [None, None, (), (), ("Read", "Bash")]


def test_default_in_a_tool_list_is_treated_as_a_name() -> None:
    assert parse_argv(["--tools", "Read,default"]).tools == ("Read", "default")


def test_max_turns_zero_means_no_limit() -> None:
    assert (
        parse_argv(["--max-turns", "0"]).max_turns,
        parse_argv(["--max-turns", "7"]).max_turns,
    ) == (None, 7)


# -- unknown flags (P5) ----------------------------------------------------------------------------


def test_last_argument_after_an_unknown_flag_is_the_prompt() -> None:
    assert parse_fields("-p", "--no-such-flag", "hi") == {
        "print_mode": True,
        "prompt": "hi",
        "unknown_flags": (("--no-such-flag", None),),
    }


def test_argument_after_an_unknown_flag_is_its_value_if_a_prompt_follows() -> None:
    """P5"""
    assert parse_fields("--x", "value", "--verbose", "hi") == {
        "verbose": True,
        "prompt": "hi",
        "unknown_flags": (("--x", "value"),),
    }


def test_unknown_flags_preserve_their_values() -> None:
    assert parse_fields("--x", "a", "--y", "b", "--z=c", "--", "hi") == {
        "prompt": "hi",
        "unknown_flags": (("--x", "a"), ("--y", "b"), ("--z", "c")),
    }


def test_unknown_flag_after_the_prompt_takes_a_value() -> None:
    assert parse_fields("hi", "--x", "value") == {
        "prompt": "hi",
        "unknown_flags": (("--x", "value"),),
    }


def test_flag_after_an_unknown_flag_is_parsed() -> None:
    assert parse_fields("--x", "--model", "opus") == {
        "model": "opus",
        "unknown_flags": (("--x", None),),
    }


# -- subcommands -----------------------------------------------------------------------------------


@loop_over_rows(
    "args",
    [["-v"], ["--version"], ["-p", "hi", "--version"], ["--max-turns", "x", "-v"], ["mcp", "-v"]],
)
def test_version_flag_is_recognized_at_any_position(args: list[str]) -> None:
    """P1"""
    assert parse_argv(args).version


@pytest.mark.parametrize(
    "args", [["--system-prompt", "-v"], ["--", "-v"], ["mcp", "add", "x", "--", "npx", "-v"]]
)
def test_version_flag_as_a_value_or_positional_is_ignored(args: list[str]) -> None:
    assert not parse_argv(args).version


def test_help_flag_is_recognized_despite_invalid_options() -> None:
    assert parse_argv(["--output-format", "xml", "-h"]).help


@loop_over_rows("subcommand", sorted(ALL_SUBCOMMANDS - {"config"}))
def test_subcommand_is_recognized_only_as_the_first_argument(subcommand: str) -> None:
    assert parse_fields(subcommand, "--json", "--max-turns", "x") == {
        "subcommand": subcommand,
        "subcommand_args": ("--json", "--max-turns", "x"),
    }
    assert parse_fields("-p", subcommand) == {"print_mode": True, "prompt": subcommand}
    assert parse_fields("--", subcommand) == {"prompt": subcommand}
    assert parse_fields("hi", subcommand) == {"prompt": "hi"}


@pytest.mark.parametrize(
    ("first_arg", "is_subcommand"),
    [("mcp", True), ("update", True), ("stop", False), ("attach", False)],
)
def test_some_subcommands_are_recognized_after_options(first_arg: str, is_subcommand: bool) -> None:
    """The real claude, 2.1.329: `--model sonnet mcp list` lists, `--model sonnet stop` is a
    prompt.
    """
    expected = (
        {"subcommand": first_arg, "subcommand_args": ("list",)}
        if is_subcommand
        else {"prompt": first_arg}
    )
    assert parse_fields("--model", "m", first_arg, "list") == {"model": "m"} | expected
    assert parse_fields("--x", first_arg, "list") == {
        "unknown_flags": (("--x", first_arg),),
        "prompt": "list",
    }


def test_config_is_a_prompt_without_a_config_action() -> None:
    assert parse_fields("config") == parse_fields("config", "please") == {"prompt": "config"}
    assert parse_fields("config", "list") == {"subcommand": "config", "subcommand_args": ("list",)}


@loop_over_rows("first_arg", ["version", "help", "login", "ps", "review", "new", "jobs", "status"])
def test_unsupported_subcommand_is_parsed_as_a_prompt(first_arg: str) -> None:
    assert parse_fields(first_arg) == {"prompt": first_arg}


@pytest.mark.parametrize("flag", ["--bg", "--background"])
def test_background_flag_accepts_a_name_and_an_invalid_session_id(flag: str) -> None:
    """B2, B8: any value of its session id is ignored."""
    assert parse_fields("hi", flag, "-n", "my job") == {
        "prompt": "hi",
        "background": True,
        "name": "my job",
    }
    expected = {"background": True, "session_id": "nonsense", "prompt": "hi"}
    assert parse_fields(flag, "--session-id", "nonsense", "--", "hi") == expected


@pytest.mark.parametrize(
    "args", [["-p", "--bg"], ["--background", "hi", "--print"], ["--bg", "-p", "--help"]]
)
def test_background_flag_is_refused_with_print(args: list[str]) -> None:
    """B7"""
    with pytest.raises(FrontendError, match=r"^--bg and --print conflict: --print never starts"):
        parse_argv(args)


def test_subcommand_is_recognized_after_shim_flags() -> None:
    """A user's wrapper, `exec shim claude --shim-vendor pi "$@"`, also receives ACP's `auth
    status`.
    """
    assert parse_fields("--shim-vendor", "pi", "auth", "status") == {
        "shim_vendor": "pi",
        "subcommand": "auth",
        "subcommand_args": ("status",),
    }


# -- errors ----------------------------------------------------------------------------------------

REFUSED = {
    "error: option '--max-turns <turns>' argument 'abc' is invalid. must be a number": "--max-turns abc hi",
    "error: option '--max-turns <turns>' argument '-1' is invalid. must be a number": "--max-turns -1",
    "error: option '--max-turns <turns>' argument '1_0' is invalid. must be a number": "--max-turns 1_0",
    "error: option '--max-turns <turns>' argument '٣' is invalid. must be a number": "--max-turns ٣",
    "error: option '--output-format <format>' argument 'xml' is invalid. "
    "Allowed choices are text, json, stream-json.": "-p --output-format xml hi",
    "error: option '--input-format <format>' argument 'json' is invalid. "
    "Allowed choices are text, stream-json.": "--input-format=json",
    "error: option '--permission-mode <mode>' argument 'nope' is invalid. "
    "Allowed choices are acceptEdits, auto, bypassPermissions, manual, dontAsk, plan.": "--permission-mode nope",
    "error: option '--max-budget-usd <amount>' argument '0' is invalid. "
    "--max-budget-usd must be a positive number greater than 0": "--max-budget-usd 0",
    "error: option '--max-budget-usd <amount>' argument 'nan' is invalid. "
    "--max-budget-usd must be a positive number greater than 0": "--max-budget-usd nan",
    "error: option '--max-budget-usd <amount>' argument '1_0' is invalid. "
    "--max-budget-usd must be a positive number greater than 0": "--max-budget-usd=1_0",
    "error: option '--shim-dialect <name>' argument 'flat' is invalid. "
    "Allowed choices are claude, yume.": "--shim-dialect flat",
    "error: option '--shim-terminator <name>' argument '$' is invalid. "
    "Allowed choices are auto, message_stop, dollar, none.": "--shim-terminator $",
    "error: option '--model <model>' argument missing": "-p hi --model",
    "error: option '--allowedTools, --allowed-tools <tools...>' argument missing": "--allowed-tools",
    "Error: --include-partial-messages requires --print and --output-format=stream-json.": (
        "-p --include-partial-messages hi"
    ),
    "Error: --input-format=stream-json requires output-format=stream-json.": "-p --input-format stream-json",
    "Error: --replay-user-messages requires both --input-format=stream-json and --output-format=stream-json.": (
        "-p --output-format stream-json --verbose --replay-user-messages hi"
    ),
    "Error: Invalid session ID. Must be a valid UUID.": "--session-id nonsense",
    "Error: --session-id with --continue or --resume also needs --fork-session.": (
        f"--resume {ID} --session-id {OTHER_ID}"
    ),
}


@loop_over_rows("message", REFUSED)
def test_refused_arguments_report_the_message_of_claude(message: str) -> None:
    with pytest.raises(FrontendError) as refused:
        parse_argv(REFUSED[message].split(" "))
    assert str(refused.value) == message


def test_first_of_two_errors_is_reported() -> None:
    with pytest.raises(FrontendError, match="output-format"):
        parse_argv(["--output-format", "xml", "--max-turns", "abc"])


def test_later_valid_value_does_not_hide_an_invalid_value() -> None:
    with pytest.raises(FrontendError, match="xml"):
        parse_argv(["--output-format", "xml", "--output-format", "json"])


@pytest.mark.parametrize("args", [["--continue"], ["--resume"], ["--resume", ID]])
def test_session_id_with_resume_or_continue_requires_fork_session(args: list[str]) -> None:
    with pytest.raises(FrontendError, match="--fork-session"):
        parse_argv([*args, "--session-id", OTHER_ID])
    assert parse_argv([*args, "--fork-session", "--session-id", OTHER_ID]).session_id == OTHER_ID


@loop_over_rows(
    "mode", ["acceptEdits", "auto", "bypassPermissions", "default", "manual", "dontAsk", "plan"]
)
def test_every_permission_mode_is_accepted(mode: str) -> None:
    assert parse_argv(["--permission-mode", mode]).permission_mode == mode


def test_frontend_error_carries_a_hint_and_is_not_a_vendor_error() -> None:
    with pytest.raises(FrontendError) as refused:
        parse_argv(["--session-id", "x"])
    assert "8-4-4-4-12" in refused.value.hint
    assert (VendorError("gone").hint, issubclass(VendorError, ShimError)) == ("", True)
    assert not issubclass(FrontendError, VendorError)


# -- session ids -----------------------------------------------------------------------------------


def test_session_id_preserves_its_case() -> None:
    assert parse_argv(["--session-id", ID.upper()]).session_id == ID.upper()
    assert parse_argv(["--resume", f" {ID.upper()} "]).resume == ID.upper()


@loop_over_rows(
    "text",
    [
        "",
        "nonsense",
        ID[:-1],
        ID + "0",
        ID + "\n",
        " " + ID,
        "../" + ID,
        "{" + ID + "}",
        "urn:uuid:" + ID,
        ID.replace("-", ""),
        ID.replace("a", "g"),
        ID.replace("1", "१"),
        f"{0:08}-{0:028}",
    ],
)
def test_noncanonical_uuid_is_rejected(text: str) -> None:
    assert canonicalize_uuid(text) is None


@settings(deadline=None)
@given(st.uuids())
def test_uuid_is_accepted_in_either_case(value: Any) -> None:
    assert canonicalize_uuid(str(value)) == canonicalize_uuid(str(value).upper()) == str(value)


# -- the shim's flags in option position only ------------------------------------------------------


def test_shim_flags_are_parsed_among_other_flags() -> None:
    args = [
        "--shim-vendor",
        "pi",
        "--shim-record=/r",
        "--shim-dialect",
        "yume",
        "--shim-terminator",
        "none",
    ]
    assert parse_fields(*args, "--shim-config", "/c", "--shim-log", "debug", "hi") == {
        "shim_vendor": "pi",
        "shim_record": "/r",
        "shim_dialect": "yume",
        "shim_terminator": "none",
        "shim_config": "/c",
        "shim_log": "debug",
        "prompt": "hi",
    }


def test_required_value_may_look_like_a_shim_flag() -> None:
    assert parse_fields("--append-system-prompt", "--shim-config=./evil.toml", "hi") == {
        "append_system_prompt": "--shim-config=./evil.toml",
        "prompt": "hi",
    }


TEXT = st.text(max_size=6)
SMUGGLED = st.builds(
    lambda field, value, joined: [f"--{field}={value}"] if joined else [f"--{field}", value],
    st.sampled_from([field.replace("_", "-") for field in OURS]),
    TEXT,
    st.booleans(),
)
TAKES_ANYTHING = sorted(
    name
    for name, flag in parser.FLAG_BY_NAME.items()
    if "<" in flag.spelling and flag.field not in parser.FLAG_CHOICES
)


def ours(invocation: Invocation) -> list[str | None]:
    return [getattr(invocation, field) for field in OURS]


@settings(deadline=None)
@given(st.lists(SMUGGLED, max_size=3))
def test_shim_flags_after_a_double_dash_are_ignored(smuggled: list[list[str]]) -> None:
    args = [arg for pair in smuggled for arg in pair]
    assert ours(parse_argv(["-p", "--", *args])) == [None] * len(OURS)


@settings(deadline=None)
@given(st.sampled_from(TAKES_ANYTHING), SMUGGLED, st.booleans())
def test_shim_flag_inside_a_value_is_ignored(flag: str, smuggled: list[str], joined: bool) -> None:
    args = [f"{flag}={smuggled[0]}"] if joined else [flag, smuggled[0]]
    if flag.startswith("-") and not flag.startswith("--") and joined:
        args = [flag + smuggled[0]]
    try:
        invocation = parse_argv([*args, "--verbose"])
    except FrontendError:
        return
    shim_values = [value for value in ours(invocation) if value is not None]
    assert shim_values == ([smuggled[0]] if flag.startswith("--shim-") else [])


ARGS = st.lists(
    st.one_of(
        st.sampled_from(sorted(parser.FLAG_BY_NAME)),
        st.builds("{}={}".format, st.sampled_from(sorted(parser.FLAG_BY_NAME)), TEXT),
        st.sampled_from(
            ["", "-", "--", "---", "--=", "-=", "--x", "-xyz", "-pc", "hi", "stream-json", "auth"]
        ),
        st.sampled_from(
            [ID, "0", "1e999", "9" * 5000, "\ud800", "\x00", "default", "Bash(", "a b"]
        ),
        TEXT,
        TEXT.map("-".__add__),
    ),
    max_size=12,
)


@limit_examples(80, full_count=1000, shrink=True)
@given(ARGS)
@example(["--max-turns", "9" * 5000])
@example(["-" + "p" * 100_000])
@example(["--disallowedTools=" + "(" * 100_000])
def test_arbitrary_arguments_are_parsed_or_raise_frontend_error(args: list[str]) -> None:
    try:
        invocation = parse_argv(args)
    except FrontendError as refused:
        assert str(refused).startswith(
            ("error: option '", "error: unknown option '", "Error: ", "--bg")
        )
        return
    assert invocation.prompt is None or invocation.prompt in args
    assert parse_argv(tuple(args)) == invocation
    assert hash(invocation) == hash(parse_argv(args))


@limit_examples(80, full_count=1000, shrink=True)
@given(ARGS)
@example(["--tools="])
@example(["--tools", "Bash(a b", "Read"])
@example(["--resume", "--from-pr", "-d"])
@example(["--max-budget-usd", "1e3", "--betas", "a", "b"])
def test_conversation_args_parse_to_the_same_invocation(args: list[str]) -> None:
    try:
        invocation = parse_argv(args)
    except FrontendError:
        return
    if not invocation.subcommand:
        second_invocation = parse_argv(build_conversation_args(invocation, frozenset()))
        not_repeated = ("prompt", "swallowed_prompt", "unknown_flags", "glued_flags")
        fields = {field: getattr(invocation, field) for field in not_repeated}
        assert second_invocation._replace(**fields) == invocation


# -- the module itself -----------------------------------------------------------------------------


def test_every_invocation_field_has_a_flag_and_claude_flags_are_supported() -> None:
    fields = set(Invocation._fields)
    derived = {"prompt", "subcommand", "subcommand_args"} | {
        "swallowed_prompt",
        "unknown_flags",
        "glued_flags",
    }
    assert set(FLAGS) == fields - derived
    contract = (
        "--add-dir --agent --agents --allow-dangerously-skip-permissions --allowedTools --allowed-tools "
        "--append-system-prompt --autocompact --ax-screen-reader --bg --background --bare --betas --brief "
        "--chrome --no-chrome --cloud -c --continue --dangerously-skip-permissions -d --debug --debug-file "
        "--desktop --disable-slash-commands --disallowedTools --disallowed-tools --effort --environment "
        "--exclude-dynamic-system-prompt-sections --fallback-model --file --fork-session "
        "--forward-subagent-text --from-pr -h --help --ide --include-hook-events --include-partial-messages "
        "--input-format --json-schema --max-budget-usd --mcp-config --model -n --name "
        "--no-session-persistence --output-format --permission-mode --permission-prompt-tool "
        "--permission-prompts --plugin-dir --plugin-url -p --print --prompt-suggestions --remote-control "
        "--replay-user-messages --restricted -r --resume --safe-mode --session-id --setting-sources "
        "--settings --strict-mcp-config --system-prompt --system-prompt-snapshot --teleport --tmux --tools "
        "--verbose -v --version -w --worktree --max-turns --system-prompt-file "
        "--append-system-prompt-file --thinking --thinking-display --max-thinking-tokens --task-budget "
        "--resume-session-at --resume-drops-turn --session-mirror --await-initialize --initialize-fields "
        "--project-config-root --managed-settings --channels --sdk-url"
    )
    assert set(contract.split()) <= set(parser.FLAG_BY_NAME)


def test_invocation_is_immutable() -> None:
    with pytest.raises(AttributeError):
        parse_argv([]).model = "x"  # type: ignore[misc]


def test_argv_parser_imports_only_pure_modules() -> None:
    """It uses no file, clock or environment, and imports only what a turn imports anyway."""
    nodes = list(ast.walk(ast.parse(inspect.getsource(parser))))
    imported = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    imported |= {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    ours = {
        "shim.core.dialects",
        "shim.core.errors",
        "shim.core.reading.values",
        "shim.core.reading.typed",
    }
    assert imported == {"collections.abc", *ours}
    code = "import sys, shim.core.claude.argv.flags; print(*{'typer', 'rich', 'pathlib', 'anyio'} & set(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.strip() == ""
