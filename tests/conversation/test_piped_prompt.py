"""`cat log | claude -p "explain"`: the text of stdin follows the prompt, as with claude 2.1.329."""

import json
import subprocess

import pytest
from box import ANSWER

from shim.io import prompt
from tests.commands.claude.test_yume_cli import start
from tests.conversation.test_persistent_driver import HELLO, TURN, read_child_stdin

LOG = b"LINE 1\nLINE 2\n"
EXPLAINED = "explain\nLINE 1\nLINE 2\n"


@pytest.fixture
def box(quick_box):
    return quick_box


def create_vendor(box):
    return box.create_fake(["read"], ["record", str(box.recording)], ["out", ANSWER])


def two_way(box):
    return box.create_fake(
        HELLO, ["hear", '"user"'], ["record", str(box.recording)], TURN, ["hear", "never"]
    )


def prompts(box):
    return [line["message"]["content"] for line in read_child_stdin(box) if line["type"] == "user"]


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--output-format", "json"),
        ("--output-format", "stream-json", "--verbose"),
        ("--permission-mode", "acceptEdits"),
        ("--allowedTools", "Bash(ls:*)"),
        ("--disallowedTools=Bash(rm:*)",),
        ("--permission-prompt-tool", "stdio"),
        ("--permission-prompt-tool", "stdio", "--output-format", "json"),
    ],
)
def test_stdin_text_is_appended_to_the_prompt_of_a_two_way_vendor(box, flags):
    done = box.run_claude(
        "-p", "explain", *flags, stdin=LOG, SHIM_VENDOR="qwen", SHIM_BIN=two_way(box)
    )
    assert done.status == 0, done.stderr
    assert prompts(box) == [EXPLAINED]


def test_stdin_text_is_appended_to_the_prompt_of_a_single_message_vendor(box):
    done = box.run_claude(
        "-p", "explain", stdin=LOG, SHIM_VENDOR="demo", SHIM_BIN=create_vendor(box)
    )
    assert done.status == 0 and box.read_record()["stdin"] == EXPLAINED


def test_stdin_of_an_answering_frontend_is_not_added_to_the_prompt(box):
    flags = ("--permission-prompt-tool", "stdio", "--output-format", "stream-json", "--verbose")
    environment = {"SHIM_VENDOR": "qwen", "SHIM_BIN": two_way(box)}
    with box.start_claude(
        "-p", "explain", *flags, stdin=subprocess.PIPE, environment=environment
    ) as running:
        running.read_line_containing(b'"type":"result"')
        running.end_input()
    assert prompts(box) == ["explain"]


def test_silent_open_stdin_does_not_hang_the_turn(box, monkeypatch):
    monkeypatch.setattr(prompt, "OPTIONAL_STDIN_TIMEOUT_S", 0.05)  # this stdin stays silent
    environment = {"SHIM_VENDOR": "qwen", "SHIM_BIN": two_way(box)}
    with box.start_claude(
        "-p", "explain", "--output-format", "json", stdin=subprocess.PIPE, environment=environment
    ) as dropin:
        assert json.loads(dropin.read_on())["result"] == "Hello."
        assert dropin.wait_for_status() == 0
    assert prompts(box) == ["explain"]


def test_yume_stdin_prompt_with_a_deny_rule_starts_a_two_way_child(real_box):
    real_box.write_settings('[tools]\ndeny = ["Bash(rm:*)"]\n')
    done = start(real_box, "--provider", "qwen", child=two_way(real_box), stdin=b"go\n")
    assert done.status == 0, done.stderr
    assert prompts(real_box) == ["go"]
    args = real_box.read_record()["arguments"]
    assert "--input-format" in args
