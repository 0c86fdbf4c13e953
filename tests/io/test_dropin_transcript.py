"""The transcripts of the drop-in for history views (contract F12, setting `transcripts`)."""

import json
import os

import pytest
from box import ANSWER, ASK, STREAM, format_ndjson


@pytest.fixture
def demo(box):
    return {"SHIM_VENDOR": "demo", "SHIM_BIN": box.create_fake(["read"], ["out", ANSWER])}


def files(box):
    return sorted(box.home.rglob("*.jsonl"))


def read_texts(file):
    """Return the text of each message in a transcript."""
    entries = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    contents = [entry["message"]["content"] for entry in entries if "message" in entry]
    return [content if isinstance(content, str) else content[0]["text"] for content in contents]


@pytest.mark.parametrize("args", [ASK, ("-p", "hi"), ("-p", "hi", "--output-format", "json")])
def test_turn_writes_a_transcript_with_every_output_format(box, demo, args):
    """F12."""
    done = box.run_claude(*args, **demo)
    assert (done.status, done.stderr) == (0, "")
    (file,) = files(box)
    assert read_texts(file) == ["hi", "Hello."]


def test_transcript_file_is_named_after_the_session_id(box, demo):
    done = box.run_claude(*ASK, **demo)
    (file,) = files(box)
    assert file.name == f"{done.init['session_id']}.jsonl"


def test_conversation_writes_a_single_transcript(box, demo):
    messages = [
        {"type": "user", "message": {"role": "user", "content": text}} for text in ("one", "two")
    ]
    args = ("-p", "--input-format", "stream-json", *STREAM, "--replay-user-messages")
    box.run_claude(*args, stdin=format_ndjson(*messages).encode(), **demo)
    (file,) = files(box)
    assert [text for text in read_texts(file) if text in ("one", "two")] == ["one", "two"]


def test_hook_input_contains_the_transcript_path(box, demo):
    """C11, F12."""
    hooks = {"UserPromptSubmit": [{"hookCallbackIds": ["h0"]}]}
    start = {
        "type": "control_request",
        "request_id": "i",
        "request": {"subtype": "initialize", "hooks": hooks},
    }
    message = {"type": "user", "message": {"role": "user", "content": "hi"}}
    done = box.run_claude(
        "--input-format",
        "stream-json",
        *STREAM,
        stdin=format_ndjson(start, message).encode(),
        **demo,
    )
    (hook_input,) = [
        line["request"]["input"] for line in done.lines if line["type"] == "control_request"
    ]
    (file,) = files(box)
    assert hook_input["transcript_path"] == str(file)


def test_transcripts_setting_disables_transcripts(box, demo):
    box.write_settings("transcripts = false\n")
    assert box.run_claude(*ASK, **demo).status == 0
    assert files(box) == []


def test_no_session_persistence_disables_the_transcript(box, demo):
    assert box.run_claude(*ASK, "--no-session-persistence", **demo).status == 0
    assert files(box) == []


def test_no_transcript_is_written_for_claude(box):
    program = box.create_fixture_printer("standin", "claude/2.1.327-text")
    assert box.run_claude(*ASK, SHIM_VENDOR="claude", SHIM_BIN=program).status == 0
    assert files(box) == []


def test_unwritable_transcript_does_not_fail_the_turn(box, demo):
    os.makedirs(box.home, exist_ok=True)
    (box.home / ".claude").write_text("", encoding="utf-8")
    done = box.run_claude(*ASK, **demo)
    assert (done.status, done.result["is_error"]) == (0, False)
    assert done.stderr.count("no transcript is written to ") == 1
