"""yume-cli's command line: every flag of Yume's reference, and no flag that ends it."""

import pytest
from sweeps import loop_over_rows

from shim.core.yume.cli import YumeInvocation, parse_yume_argv


def test_all_flags_are_parsed():
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


def test_yume_invocation_converts_to_a_claude_invocation():
    invocation = parse_yume_argv(
        ["start", "--provider", "openai", "--model", "m", "--permission-mode", "deny"]
    ).to_claude_invocation()
    flag_names = (
        "shim_vendor",
        "model",
        "permission_mode",
        "output_format",
        "shim_dialect",
        "partial",
    )
    assert [getattr(invocation, name) for name in flag_names] == [
        "codex",
        "m",
        "deny",
        "stream-json",
        "yume",
        True,
    ]
    assert invocation.prompt is None and invocation.session_id is None


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
def test_provider_maps_to_a_vendor(provider, vendor):
    assert parse_yume_argv(["start", "--provider", provider]).vendor_name == vendor


@pytest.mark.parametrize("flag", ["--history-file", "--historyFile", "--historyFile="])
def test_flags_are_accepted_in_kebab_and_camel_case(flag):
    args = [flag + "/h"] if flag.endswith("=") else [flag, "/h"]
    assert parse_yume_argv(["start", *args]).history == "/h"


def test_prompt_may_start_with_a_dash():
    assert parse_yume_argv(["start", "--prompt", "--verbose"]).prompt == "--verbose"
    assert parse_yume_argv(["start", "--prompt=-x", "--model", "m"]) == YumeInvocation(
        prompt="-x", model="m"
    )


def test_missing_flag_value_does_not_consume_the_next_flag():
    call = parse_yume_argv(["start", "--resume", "--prompt", "hi"])
    assert (call.resume, call.prompt) == ("", "hi")
    assert call.warnings == ("--resume has no value and was skipped",)


@pytest.mark.parametrize("args", [["--new-thing", "7"], ["--new-thing=7"], ["--new-thing"], ["-z"]])
def test_unknown_flag_is_skipped_with_a_warning(args):
    call = parse_yume_argv(["start", *args, "--prompt", "hi"])
    assert call.prompt == "hi" and len(call.warnings) == 1 and "unknown flag" in call.warnings[0]


def test_positional_arguments_are_the_prompt():
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
def test_arguments_select_the_command(args, command):
    assert parse_yume_argv(args).command == command


def test_unsupported_version_and_output_format_produce_warnings():
    notes = parse_yume_argv(
        ["start", "--protocol-version", "9", "--output-format", "text"]
    ).warnings
    assert notes == (
        "protocol version 9 was requested; using 1",
        "--output-format text is not supported; using stream-json",
    )
