"""The failures after which another vendor may answer, in the recorded output of every vendor, and
how they are reported.
"""

import json
from functools import cache

import pytest
from box import END, START, build_text_event, format_ndjson
from fixture_cases import list_fixture_cases, translate_case
from sweeps import loop_over_cases
from turn_stage import Stage, build_turn_config

from shim.adapters import get_adapter
from shim.conversation.drivers.open_translation import create_standalone_child_stream
from shim.conversation.fallback import buffered_stream
from shim.conversation.fallback.buffered_stream import BufferedChildStream, FallbackOutputBuffer
from shim.core.adapter.commands import RunHooksCommand, SendToChildCommand, StoreSessionCommand
from shim.core.adapter.translator import Translator
from shim.core.claude.writer import StreamJsonWriter
from shim.core.errors import (
    MAX_REASON_CHARS,
    FrontendError,
    VendorError,
    create_failed_vendor_attempt,
    format_failed_attempts,
    parse_failed_attempt,
)
from shim.core.turn.outcome import ChildExit
from shim.core.yume.encoder import YumeEncoder


def find_failed_attempt(case):
    """Return the failed attempt that the translation reports for a case, and whether the stream has
    output.
    """
    translation = create_standalone_child_stream(
        case.vendor, include_partial_messages=False, stable_ids=True
    )
    translation.feed(case.data)
    why = translation.find_failed_attempt(case.exit, case.stderr)
    return why, translation.turn.has_output


@cache
def outcome(case):
    """Return the cause of a case's failure, or None if it succeeded."""
    turn = translate_case(case, False)[1].turn
    return turn.end_cause if turn.is_error else None


@loop_over_cases(
    case
    for case in list_fixture_cases()
    if not case.passthrough and outcome(case) in ("auth", "rate_limit")
)
def test_auth_or_rate_limit_failure_without_output_allows_a_fallback(case):
    why, has_output = find_failed_attempt(case)
    assert (why is None) is has_output
    assert why is None or (why.vendor, why.cause) == (case.vendor, outcome(case))


@loop_over_cases(
    case for case in list_fixture_cases() if not case.passthrough and outcome(case) is None
)
def test_successful_vendor_has_no_failed_attempt(case):
    assert find_failed_attempt(case)[0] is None


@pytest.mark.parametrize(
    ("child_exit", "output", "cause"),
    [
        (ChildExit(code=1), b"", "exit_code"),
        (ChildExit(code=0), b"", "truncated"),
        (ChildExit(signal="SIGSEGV"), b"", "signal"),
        (ChildExit(code=0), b"usage: demo\n", "protocol"),
        (ChildExit(code=1), format_ndjson(START | {"session": "s"}).encode(), None),
        (None, b"", None),
    ],
)
def test_child_exit_before_the_first_event_is_a_failed_attempt(child_exit, output, cause):
    translation = create_standalone_child_stream(
        "demo", include_partial_messages=False, stable_ids=True
    )
    translation.feed(output)
    why = translation.find_failed_attempt(child_exit, "")
    assert (why and why.cause) == cause


def test_failed_attempt_reason_is_a_short_line_without_escapes():
    attempt = create_failed_vendor_attempt("qwen", "auth", "one\n two\x1b[31m" + "x" * 1000)
    assert (
        len(attempt.reason) == MAX_REASON_CHARS
        and attempt.reason.startswith("one two")
        and attempt.reason.endswith("…")
    )
    assert "\x1b" not in attempt.reason
    assert json.loads(json.dumps(attempt.to_json())) == attempt._asdict()


def test_failed_attempts_are_listed_with_their_causes():
    assert format_failed_attempts(
        [
            create_failed_vendor_attempt("a", "auth", "x"),
            create_failed_vendor_attempt("b", "not_found", "y"),
        ]
    ) == (
        "\na did not answer either (not logged in or invalid API key): x\nb did not answer either (not installed): y"
    )
    assert format_failed_attempts([]) == ""


def test_failed_attempt_is_parsed_from_any_recorded_json():
    assert parse_failed_attempt(
        create_failed_vendor_attempt("qwen", "auth", "x").to_json()
    ) == create_failed_vendor_attempt("qwen", "auth", "x")
    assert parse_failed_attempt(
        {"cause": ["a"], "vendor": "q" * 99}
    ) == create_failed_vendor_attempt("q" * 32, "vendor_error", "None")


def test_vendor_info_is_not_passed_to_another_vendor():
    stage = Stage()
    stage.turn.record_vendor_session_info(
        session_id="s", model="m1", tools=["Read"], vendor_version="1"
    )
    stage.finish_turn()
    then = stage.turn.create_next(build_turn_config("another"))
    assert (then.vendor_info, then.assistant_message.model) == ({}, "")
    assert stage.turn.create_next(stage.turn.config).vendor_info["model"] == "m1"


# -- the buffered output of a vendor that may be replaced ------------------------------------------

UUID_PREFIX = "00000000-0000-4000-8000-"
SESSION_START = START | {"session": "s"}


def claude():
    return StreamJsonWriter(UUID_PREFIX)


def yume():
    return YumeEncoder(UUID_PREFIX, transcript_writer=StreamJsonWriter(UUID_PREFIX))


def build_buffered_stream(writer=None):
    """Build a started buffer and the demo vendor's stream whose lines go through it."""
    buffer = FallbackOutputBuffer()
    buffer.start_buffering()
    if writer is not None:
        turn_config = build_turn_config(new_id=f"{UUID_PREFIX}000000000000")
        return buffer, BufferedChildStream(buffer, Translator, turn_config, writer)
    demo = create_standalone_child_stream("demo", include_partial_messages=False, stable_ids=True)
    translator_class = get_adapter("demo").translator_class
    stream = BufferedChildStream(buffer, translator_class, demo.turn.config, demo.writer)
    return buffer, stream


def feed_events(stream, *events):
    """Return the stream's output for events of the demo vendor."""
    return stream.feed(format_ndjson(*events).encode())


@pytest.mark.parametrize("make", [claude, yume])
def test_discarded_turn_is_not_written(make):
    writer = make()
    for forgotten in (True, False):
        _, stream = build_buffered_stream(writer)
        stream.turn.record_vendor_session_info(session_id="s", model=f"model-{forgotten}")
        if forgotten:
            assert b"init" in writer.take_bytes()
            writer.discard_turn()
    stream.turn.add_block("words")
    output = writer.take_bytes()
    history_lines = (
        output if writer.transcript_writer is None else writer.transcript_writer.take_bytes()
    )
    for lines in (output, history_lines):
        assert (
            b"model-False" in lines and b"model-True" not in lines and lines.count(b'"init"') == 1
        )
    assert b"words" in output


def test_buffered_lines_and_session_are_released_with_the_first_text():
    buffer, stream = build_buffered_stream()
    output, commands = feed_events(stream, SESSION_START)
    assert output == b"" and not any(
        isinstance(command, StoreSessionCommand) for command in commands
    )
    output, commands = feed_events(stream, build_text_event("Hello."), END)
    assert (
        output.count(b'"init"') == 1
        and commands[0] == StoreSessionCommand("s")
        and not buffer.is_active
    )
    assert buffer.failed_attempt is None


def test_bytes_for_the_child_are_not_buffered():
    _, stream = build_buffered_stream()
    stream._dispatcher.translator.outbox.append(b"line\n")
    assert SendToChildCommand(b"line\n") in feed_events(stream, SESSION_START)[1]


def test_buffer_is_released_above_its_limit(monkeypatch):
    monkeypatch.setattr(buffered_stream, "MAX_BUFFERED_BYTES", 5000)
    buffer, stream = build_buffered_stream()
    feed_events(stream, SESSION_START)
    assert buffer.is_active
    output, _ = stream.feed(b"\n" * 5001)
    assert b'"init"' in output and not buffer.is_active


@pytest.mark.parametrize("is_persistent", [True, False])
def test_failed_vendor_ends_its_turn_without_output(is_persistent):
    buffer, stream = build_buffered_stream()
    feed_events(stream, SESSION_START)
    stream.turn.stop("nobody is logged in", "auth")
    assert (stream.finish() if is_persistent else stream.close(ChildExit(code=1))) == (b"", ())
    assert (
        buffer.failed_attempt == create_failed_vendor_attempt("demo", "auth", "nobody is logged in")
        and buffer.child_started
    )
    assert stream.writer.take_bytes() == b""


def test_vendor_error_is_a_failed_attempt_and_a_frontend_error_is_written():
    buffer, stream = build_buffered_stream()
    assert stream.write_turn_start_error(VendorError("it is not there")) == b""
    assert (
        buffer.failed_attempt
        == create_failed_vendor_attempt("demo", "not_found", "it is not there")
        and not buffer.child_started
    )
    buffer, stream = build_buffered_stream()
    assert (
        b"a wrong setting" in stream.write_turn_start_error(FrontendError("a wrong setting"))
        and buffer.failed_attempt is None
    )


def test_end_of_a_turn_without_a_failure_is_not_buffered():
    buffer, stream = build_buffered_stream()
    feed_events(stream, SESSION_START)
    output, commands = stream.close(None)
    assert b'"init"' in output and b'"result"' in output and buffer.failed_attempt is None
    assert [type(command) for command in commands] == [RunHooksCommand, StoreSessionCommand]


def test_failure_after_a_hidden_call_has_ended_allows_no_fallback():
    buffer, stream = build_buffered_stream(claude())
    stream.turn.add_tool_call("g", "Grep", {}, is_hidden=True)
    stream.turn.add_tool_result("g", "hidden")
    stream.turn.stop("nobody is logged in", "auth")
    assert b"nobody is logged in" in stream.close(ChildExit(code=1))[0]
    assert buffer.failed_attempt is None


def test_failure_after_the_release_is_written_and_allows_no_fallback():
    buffer, stream = build_buffered_stream()
    feed_events(stream, SESSION_START)
    output, _ = stream.release_buffered_output()
    assert b'"init"' in output
    stream.turn.stop("nobody is logged in", "auth")
    assert b"nobody is logged in" in stream.close(None)[0] and buffer.failed_attempt is None
