"""yume-cli's command line: every flag of Yume's reference, and nothing that ends it."""

import pytest
from sweeps import loop_over_rows

from shim.core.yume.cli import YumeInvocation, parse_yume_argv


def test_a_whole_command_line():
    flags = """
        start --provider qwen --model m --cwd /repo --session-id s-1 --prompt hello --resume s-0
        --permission-mode interactive --history-file /h.json --api-base http://x --protocol-version 1
        --output-format stream-json --reasoning-effort high --verbose
    """
    call = parse_yume_argv(flags.split())
    assert call == YumeInvocation(
        provider="qwen",
        model="m",
        cwd="/repo",
        session="s-1",
        prompt="hello",
        resume="s-0",
        mode="interactive",
        history="/h.json",
        api_base="http://x",
        effort="high",
    )


def test_it_becomes_an_invocation_in_claudes_words():
    invocation = parse_yume_argv(
        ["start", "--provider", "openai", "--model", "m", "--permission-mode", "deny"]
    ).to_invocation()
    flag_names = (
        "shim_vendor",
        "model",
        "permission_mode",
        "output_format",
        "shim_dialect",
        "partial",
    )
    assert [invocation.get_flag(name) for name in flag_names] == [
        "codex",
        "m",
        "deny",
        "stream-json",
        "yume",
        True,
    ]
    assert invocation.prompt is None and invocation.session.session_id is None


@loop_over_rows(
    ("provider", "vendor"),
    [
        ("openai", "codex"),
        ("gemini", "gemini"),
        ("copilot", "copilot"),
        ("qwen", "qwen"),
        ("Pi", "pi"),
        ("", ""),
    ],
)
def test_providers_are_vendors(provider, vendor):
    assert parse_yume_argv(["start", "--provider", provider]).vendor_name == vendor


@pytest.mark.parametrize("flag", ["--history-file", "--historyFile", "--historyFile="])
def test_flags_are_known_in_both_spellings(flag):
    args = [flag + "/h"] if flag.endswith("=") else [flag, "/h"]
    assert parse_yume_argv(["start", *args]).history == "/h"


def test_a_prompt_is_taken_whatever_it_begins_with():
    assert parse_yume_argv(["start", "--prompt", "--verbose"]).prompt == "--verbose"
    assert parse_yume_argv(["start", "--prompt=-x", "--model", "m"]) == YumeInvocation(
        prompt="-x", model="m"
    )


def test_another_value_never_swallows_a_flag():
    call = parse_yume_argv(["start", "--resume", "--prompt", "hi"])
    assert (call.resume, call.prompt) == ("", "hi")
    assert call.warnings == ("--resume has no value and was skipped",)


@pytest.mark.parametrize("args", [["--new-thing", "7"], ["--new-thing=7"], ["--new-thing"], ["-z"]])
def test_what_is_not_known_is_noted_and_skipped_with_its_value(args):
    call = parse_yume_argv(["start", *args, "--prompt", "hi"])
    assert call.prompt == "hi" and len(call.warnings) == 1 and "is not known" in call.warnings[0]


def test_words_that_belong_to_no_flag_are_the_prompt():
    assert parse_yume_argv(["start", "say", "hi"]).prompt == "say hi"
    assert parse_yume_argv(["start", "--model", "m", "--", "--prompt", "x"]).prompt == "--prompt x"
    assert parse_yume_argv(["start", "stray", "--prompt", "hi"]).prompt == "hi"


@loop_over_rows(
    ("args", "command"),
    [
        ([], "start"),
        (["start"], "start"),
        (["--version"], "version"),
        (["start", "--version"], "version"),
        (["version"], "version"),
        (["-h"], "help"),
        (["auth", "status", "--json"], "auth"),
        (["--prompt", "hi"], "start"),
    ],
)
def test_commands(args, command):
    assert parse_yume_argv(args).command == command


def test_what_it_cannot_do_is_said():
    notes = parse_yume_argv(
        ["start", "--protocol-version", "9", "--output-format", "text"]
    ).warnings
    assert notes == (
        "protocol version 9 was asked for; this is 1",
        "--output-format text is not there; this is stream-json",
    )
