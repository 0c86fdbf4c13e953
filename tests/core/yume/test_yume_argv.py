"""yume-cli's command line: every flag of Yume's reference, and nothing that ends it."""

import pytest
from sweeps import each

from shim.core.yume.argv import Call, parse


def test_a_whole_command_line():
    flags = """
        start --provider qwen --model m --cwd /repo --session-id s-1 --prompt hello --resume s-0
        --permission-mode interactive --history-file /h.json --api-base http://x --protocol-version 1
        --output-format stream-json --reasoning-effort high --verbose
    """
    call = parse(flags.split())
    assert call == Call(
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
    invocation = parse(
        ["start", "--provider", "openai", "--model", "m", "--permission-mode", "deny"]
    ).invocation()
    named = ("shim_vendor", "model", "permission_mode", "output_format", "shim_dialect", "partial")
    assert [invocation.flag(name) for name in named] == [
        "codex",
        "m",
        "deny",
        "stream-json",
        "yume",
        True,
    ]
    assert invocation.prompt is None and invocation.session.session_id is None


@each(
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
    assert parse(["start", "--provider", provider]).vendor == vendor


@pytest.mark.parametrize("flag", ["--history-file", "--historyFile", "--historyFile="])
def test_flags_are_known_in_both_spellings(flag):
    words = [flag + "/h"] if flag.endswith("=") else [flag, "/h"]
    assert parse(["start", *words]).history == "/h"


def test_a_prompt_is_taken_whatever_it_begins_with():
    assert parse(["start", "--prompt", "--verbose"]).prompt == "--verbose"
    assert parse(["start", "--prompt=-x", "--model", "m"]) == Call(prompt="-x", model="m")


def test_another_value_never_swallows_a_flag():
    call = parse(["start", "--resume", "--prompt", "hi"])
    assert (call.resume, call.prompt) == ("", "hi")
    assert call.notes == ("--resume has no value and was skipped",)


@pytest.mark.parametrize(
    "words", [["--new-thing", "7"], ["--new-thing=7"], ["--new-thing"], ["-z"]]
)
def test_what_is_not_known_is_noted_and_skipped_with_its_value(words):
    call = parse(["start", *words, "--prompt", "hi"])
    assert call.prompt == "hi" and len(call.notes) == 1 and "is not known" in call.notes[0]


def test_words_that_belong_to_no_flag_are_the_prompt():
    assert parse(["start", "say", "hi"]).prompt == "say hi"
    assert parse(["start", "--model", "m", "--", "--prompt", "x"]).prompt == "--prompt x"
    assert parse(["start", "stray", "--prompt", "hi"]).prompt == "hi"


@each(
    ("words", "command"),
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
def test_commands(words, command):
    assert parse(words).command == command


def test_what_it_cannot_do_is_said():
    notes = parse(["start", "--protocol-version", "9", "--output-format", "text"]).notes
    assert notes == (
        "protocol version 9 was asked for; this is 1",
        "--output-format text is not there; this is stream-json",
    )
