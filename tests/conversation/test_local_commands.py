"""Claude's commands over a vendor: /clear, /compact, /context and /cost. Measured with claude
2.1.332.
"""

from functools import partial
from pathlib import Path

import pytest
from box import format_ndjson

from tests.conversation.test_conversation import kinds, request, results, user
from tests.conversation.test_persistent_driver import (
    HELLO,
    INIT,
    TURN,
    answer,
    read_child_stdin,
    result,
)

OLD = "11111111-1111-4111-8111-111111111111"
MESSAGE = ["hear", '"user"']


@pytest.fixture
def box(quick_box):
    return quick_box


@pytest.fixture
def talk(box):
    return partial(box.start_conversation, vendor="qwen")


def create_children(box):
    """Create a qwen whose first and second child answer one message, and record their start."""
    record = ["record", str(box.recording)]
    child = (HELLO, MESSAGE, record, TURN, ["hear", "never"])
    return box.create_fake_sequence(child, child)


def create_unused_child(box):
    """Create a program that records its start, which no test expects."""
    return box.create_fake(["record", str(box.recording)])


def send(running, *texts):
    """Send messages, each after the result of the one before."""
    for text in texts:
        running.send_lines(user(text))
        running.read_line_containing(b'"type":"result"')


def test_clear_continues_in_a_new_session_with_a_new_child(box, talk):
    with talk(create_children(box), "--session-id", OLD) as running:
        send(running, "one", "/clear", "two")
        done = running.end_input()
    reset_number = kinds(done).index("conversation_reset")
    first, cleared, second = results(done)
    assert done.lines[reset_number]["session_id"] == first["session_id"] == OLD
    assert kinds(done)[reset_number + 1 : reset_number + 3] == ["init", "result"]
    assert cleared["local_command"] == "clear"
    new_ids = {line["session_id"] for line in done.lines[reset_number + 1 :]}
    assert new_ids == {second["session_id"]} != {OLD}
    arguments = box.read_record()["arguments"]
    assert second["session_id"] in arguments and OLD not in arguments


def test_new_session_has_a_separate_transcript_without_the_command(box, talk):
    with talk(create_children(box), "--session-id", OLD) as running:
        send(running, "one", "/cost", "/clear", "two")
        new_id = results(running.end_input())[-1]["session_id"]
    home = Path(box.build_environment()["HOME"])
    texts = {path.stem: path.read_text() for path in home.glob(".claude/projects/*/*.jsonl")}
    assert set(texts) == {OLD, new_id}
    assert '"content":"one"' in texts[OLD] and '"content":"two"' not in texts[OLD]
    assert '"content":"two"' in texts[new_id] and '"content":"one"' not in texts[new_id]
    assert not any("/clear" in text or "local_command" in text for text in texts.values())


def test_session_without_a_message_after_clear_can_be_resumed(box, talk):
    with talk(create_children(box)) as running:
        send(running, "one", "/clear")
        new_id = results(running.end_input())[-1]["session_id"]
    with talk(create_children(box), "--resume", new_id) as running:
        send(running, "two")
        done = running.end_input()
    (second,) = results(done)
    assert (second["session_id"], second["is_error"]) == (new_id, False)
    assert "--resume" not in box.read_record()["arguments"]


def test_clear_ends_a_resumed_session(box, talk):
    with talk(create_children(box), "--session-id", OLD) as running:
        send(running, "one")
        running.end_input()
    with talk(create_children(box), "--resume", OLD) as running:
        send(running, "/clear", "two")
        done = running.end_input()
    assert done.lines[0]["type"] == "conversation_reset" and done.lines[0]["session_id"] == OLD
    assert OLD not in box.read_record()["arguments"]


def test_clear_drops_the_history_of_a_session_that_is_resumed_at_a_message(box, talk):
    child = box.create_fake(HELLO, MESSAGE, TURN, MESSAGE, TURN, ["hear", "never"])
    with talk(child, "--session-id", OLD) as running:
        send(running, "one", "another")
        first, *_ = (line for line in running.end_input().lines if line["type"] == "assistant")
    with talk(create_children(box), "--resume", OLD, "--resume-session-at", first["uuid"]) as run:
        send(run, "/clear", "two")
        done = run.end_input()
    last_init = [line for line in done.lines if line.get("subtype") == "init"][-1]
    assert "rebuilt_history" not in last_init["shim"]
    texts = [line["message"]["content"] for line in read_child_stdin(box) if line["type"] == "user"]
    assert texts == ["two"]


def test_clear_drops_context_messages(box, talk):
    with talk(create_children(box)) as running:
        running.send_lines(user("secret context", shouldQuery=False))
        running.read_line_containing(b'"type":"result"')
        send(running, "/clear", "two")
        running.end_input()
    texts = [line["message"]["content"] for line in read_child_stdin(box) if line["type"] == "user"]
    assert texts == ["two"]


def test_commands_call_no_prompt_hooks(box, talk):
    hooks = {"UserPromptSubmit": [{"matcher": None, "hookCallbackIds": ["h0"]}]}
    with talk(create_unused_child(box)) as running:
        running.send_lines(request("r1", "initialize", hooks=hooks))
        send(running, "/cost", "/clear")
        done = running.end_input()
    assert "control_request" not in kinds(done)


def test_cost_and_context_start_no_child(box, talk):
    with talk(create_unused_child(box)) as running:
        send(running, "/cost", "/context", "/usage")
        done = running.end_input()
    texts = [line["result"] for line in results(done)]
    assert texts[0].startswith("Estimated cost:") and texts[1].startswith("## Context Usage")
    assert [line["local_command"] for line in results(done)] == ["cost", "context", "usage"]
    assert done.status == 0 and not box.recording.exists()


def test_compact_names_the_vendor_that_cannot(box, talk):
    with talk(create_unused_child(box), vendor="demo") as running:
        send(running, "/compact")
        done = running.end_input()
    assert results(done)[0]["result"] == "demo cannot compact its context on request"


@pytest.mark.parametrize("command", ["/cost", "/clear"])
def test_command_in_print_mode_starts_no_child(box, command):
    done = box.run_claude("-p", command, SHIM_VENDOR="qwen", SHIM_BIN=create_unused_child(box))
    assert done.status == 0 and not box.recording.exists()


def test_disabled_commands_reach_no_vendor(box, talk):
    with talk(create_unused_child(box), "--disable-slash-commands") as running:
        send(running, "/clear")
        done = running.end_input()
    assert "conversation_reset" not in kinds(done)
    assert "--disable-slash-commands" in results(done)[0]["result"]
    assert not box.recording.exists()


# -- compaction ------------------------------------------------------------------------------------


def create_compacting_child(box, outcome):
    """Create a qwen that answers a message, and then ends a compaction with this result."""
    return box.create_fake(
        HELLO,
        MESSAGE,
        TURN,
        ["hear", "/compress"],
        ["record", str(box.recording)],
        ["out", format_ndjson(INIT, outcome)],
        MESSAGE,
        TURN,
        ["hear", "never"],
    )


def test_compact_sends_the_command_of_the_vendor_with_the_instructions(box, talk):
    with talk(create_compacting_child(box, result("Compressed."))) as running:
        send(running, "one", "/compact keep the names", "two")
        done = running.end_input()
    texts = [line["message"]["content"] for line in read_child_stdin(box) if line["type"] == "user"]
    assert texts[-1] == "/compress keep the names"
    _, compaction, second = results(done)
    assert (compaction["local_command"], compaction["num_turns"]) == ("compact", 0)
    assert "compact_boundary" in kinds(done)
    assert second["result"] == "Hello." and "local_command" not in second


def test_reason_why_the_vendor_did_not_compact_is_the_answer(box, talk):
    refusal = result(error="Compression was not beneficial.")
    with talk(create_compacting_child(box, refusal)) as running:
        send(running, "one", "/compact", "two")
        done = running.end_input()
    assert results(done)[1]["result"] == "Compression was not beneficial."
    assert "compact_boundary" not in kinds(done)


def test_compact_before_the_first_message_starts_no_child(box, talk):
    with talk(create_unused_child(box)) as running:
        send(running, "/compact")
        done = running.end_input()
    assert results(done)[0]["result"] == "There are no messages to compact"
    assert not box.recording.exists()


def test_compact_calls_no_stop_hook(box, talk):
    hooks = {"Stop": [{"matcher": None, "hookCallbackIds": ["h0"]}]}
    with talk(create_compacting_child(box, result("Compressed."))) as running:
        running.send_lines(request("r1", "initialize", hooks=hooks), user("one"))
        stop_hook = running.read_line_containing(b'"callback_id":"h0"')
        running.send_lines(answer(stop_hook["request_id"]))
        running.read_line_containing(b'"type":"result"')
        send(running, "/compact")
        done = running.end_input()
    assert kinds(done).count("control_request") == 1


def test_compact_in_print_mode_resumes_the_session_in_two_way_mode(box, talk):
    with talk(create_children(box), "--session-id", OLD) as running:
        send(running, "one")
        running.end_input()
    child = box.create_fake(
        HELLO, ["hear", "/compress"], ["out", format_ndjson(INIT, result("Compressed."))]
    )
    flags = ("--output-format", "stream-json", "--verbose")
    done = box.run_claude(
        "-p", "--resume", OLD, *flags, "/compact", SHIM_VENDOR="qwen", SHIM_BIN=child
    )
    assert "compact_boundary" in kinds(done) and done.status == 0
