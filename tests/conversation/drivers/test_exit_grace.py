"""A vendor that reported its end gets a grace period unless it continues. A slow frontend affects
that period.
"""

import subprocess

import pytest
from box import ASK, END, START, build_text_event, format_ndjson
from stream_lines import parse_lines, summarize_lines
from torture import (
    DONE,
    INIT,
    PI_HEAD,
    PI_TAIL,
    build_assistant_line,
    build_claude_turn,
    build_pi_delta,
    build_pi_message_end,
    encode_line,
)

from shim.adapters.claude_stream import ClaudeTranslator
from shim.conversation.drivers.open_translation import create_standalone_child_stream
from shim.process.environment import is_sdk_rejecting_unknown_messages

COMPACTION = encode_line({"type": "compaction_start", "reason": "threshold"})
COMPACTED = encode_line(
    {
        "type": "compaction_end",
        "reason": "threshold",
        "result": {"tokensBefore": 5},
        "willRetry": True,
    }
)
SECOND_REPLY = encode_line({"type": "agent_start"}) + build_pi_message_end("more") + PI_TAIL


@pytest.fixture
def box(quick_box):
    return quick_box


def list_done_states(vendor, *chunks):
    """Return, for each chunk, whether the vendor seems to be done after it."""
    translation = create_standalone_child_stream(vendor, stable_ids=True)
    return [
        bool(translation.feed(chunk)[0] + b".") and translation.turn.outcome_tracker.is_finalized
        for chunk in chunks
    ]


def test_pi_turn_is_finished_at_agent_end_until_the_agent_continues():
    """Older versions end with `agent_end`, and some never exit. A compaction may come after it."""
    chunks = (PI_HEAD + build_pi_message_end("hi"), PI_TAIL, COMPACTION, COMPACTED, SECOND_REPLY)
    assert list_done_states("pi", *chunks) == [False, True, False, False, True]


def test_pi_turn_is_not_finished_after_a_failed_message_that_may_be_retried():
    assert list_done_states(
        "pi", PI_HEAD + build_pi_message_end("hi", reason="error") + PI_TAIL
    ) == [False]


def test_pi_tool_result_before_its_tool_call_is_buffered():
    result = encode_line(
        {
            "type": "tool_execution_end",
            "toolCallId": "c1",
            "toolName": "bash",
            "result": {"content": "ok"},
        }
    )
    call = build_pi_message_end(
        {"type": "toolCall", "id": "c1", "name": "bash", "arguments": {}}, reason="toolUse"
    )
    translation = create_standalone_child_stream("pi", stable_ids=True)
    summary = summarize_lines(parse_lines(translation.feed(PI_HEAD + result + call)[0]))
    assert summary[-2:] == ["call:c1 Bash", "result:c1 ok"]


def test_claude_turn_is_finished_by_its_result_event():
    assert list_done_states(
        "claude", build_claude_turn(build_assistant_line("hi"), end=None), encode_line(DONE)
    ) == [False, True]


def test_qwen_events_after_the_result_are_counted_as_late():
    failed = DONE | {"subtype": "error_during_execution", "is_error": True}
    translation = create_standalone_child_stream("qwen", stable_ids=True)
    output = (
        translation.feed(
            build_claude_turn(build_assistant_line("hi"))
            + encode_line(build_assistant_line("LATE"))
            + encode_line(failed)
        )[0]
        + translation.close(None)[0]
    )
    assert summarize_lines(parse_lines(output)) == ["init", "text:hi", "end:success hi", "."]
    assert translation.diagnostics.repairs["late_event"] == 2


def test_next_qwen_turn_is_translated():
    translation = create_standalone_child_stream("qwen", stable_ids=True)
    output = (
        translation.feed(
            build_claude_turn(build_assistant_line("one"))
            + build_claude_turn(build_assistant_line("two"))
        )[0]
        + translation.close(None)[0]
    )
    assert [
        entry for entry in summarize_lines(parse_lines(output)) if entry.startswith("text")
    ] == [
        "text:one",
        "text:two",
    ]


def test_strict_sdk_receives_no_line_of_an_unknown_type():
    new = encode_line({"type": "unheard-of"})
    for old, passed in ((False, True), (True, False)):
        translation = create_standalone_child_stream("claude", stable_ids=True)
        turn = translation.turn
        turn.config = turn.config._replace(rejects_unknown_lines=old)
        assert (new in translation.feed(encode_line(INIT) + new)[0]) is passed
    assert ClaudeTranslator.filter_line is not None


@pytest.mark.parametrize(
    ("version", "old"),
    [
        ("0.1.0", True),
        ("0.1.39", True),
        ("0.1.40", False),
        ("0.2.186", False),
        ("", False),
        ("0.1.0rc1", False),
    ],
)
def test_python_sdk_up_to_0_1_39_is_strict(version, old):
    assert (
        is_sdk_rejecting_unknown_messages(
            {"CLAUDE_CODE_ENTRYPOINT": "sdk-py", "CLAUDE_AGENT_SDK_VERSION": version}
        )
        is old
    )
    assert not is_sdk_rejecting_unknown_messages(
        {"CLAUDE_CODE_ENTRYPOINT": "sdk-ts", "CLAUDE_AGENT_SDK_VERSION": version}
    )


def test_vendor_that_continues_is_not_terminated_after_the_end_grace(memory_box):
    memory_box.write_settings("end_grace = 1\n")
    done_for_now, compacting, compacted = (
        memory_box.create_gate(),
        memory_box.create_lifeline(),
        memory_box.create_gate(),
    )
    child = memory_box.create_fake(
        ["read"],
        ["out", (PI_HEAD + build_pi_delta("hi") + build_pi_message_end("hi") + PI_TAIL).decode()],
        ["wait", done_for_now.path],
        ["out", COMPACTION.decode()],
        ["say", compacting.path, "compacting"],
        ["wait", compacted.path],
        ["out", (COMPACTED + SECOND_REPLY).decode()],
    )
    with memory_box.start_claude(
        *ASK, environment={"SHIM_VENDOR": "pi", "SHIM_BIN": child}
    ) as running:
        running.read_until(b'"text":"hi"')
        done_for_now.open()
        compacting.wait_for("compacting")
        before = running.read_until(b"")
        running.pass_time(20)  # it may be silent for longer
        assert running.read_until(b"") == before
        compacted.open()
        done = running.wait_for_end()
    assert (done.result["result"], done.cause) == ("more", "clean")


def test_vendor_that_does_not_exit_is_terminated_after_the_end_grace(box):
    lifeline = box.create_lifeline()
    box.write_settings("end_grace = 0.2\n")
    output = PI_HEAD + build_pi_message_end("hi") + PI_TAIL
    child_steps = [
        ["say", lifeline.path, "child"],
        ["ignore", "SIGTERM"],
        ["read"],
        ["out", output.decode()],
        ["hang"],
    ]
    done = box.run_claude(*ASK, SHIM_VENDOR="pi", SHIM_BIN=box.create_fake(*child_steps))
    assert lifeline.wait_until_closed()
    assert (done.result["result"], done.cause, done.status) == ("hi", "clean", 0)


def test_slow_frontend_does_not_trigger_the_idle_timeout(memory_box):
    memory_box.write_settings("first_byte_timeout = 30\nidle_timeout = 0.6\nend_grace = 0.1\n")
    long_text = "word " * 300_000
    path = memory_box.path / "words"
    path.write_text(
        format_ndjson(
            START,
            *[build_text_event(long_text[at : at + 1000]) for at in range(0, len(long_text), 1000)],
            END,
        )
    )
    environment = {"SHIM_VENDOR": "demo", "SHIM_BIN": memory_box.create_fake(["cat", str(path)])}
    with memory_box.start_claude(*ASK, stdout=subprocess.PIPE, environment=environment) as running:
        running.read_until(b"init")
        running.pass_time(1000)
        done = running.wait_for_end()
    blocks = [
        block
        for line in done.lines
        if line["type"] == "assistant"
        for block in line["message"]["content"]
    ]
    assert "".join(block["text"] for block in blocks) == long_text
    assert (done.cause, done.status) == ("clean", 0)
