"""Why another vendor may answer, and how that is told; in what every vendor here was recorded to
print.
"""

import json
from functools import cache

import pytest
from box import END, START, build_text_event, format_ndjson
from support import Stage, build_turn_config, list_fixture_cases, translate_case
from sweeps import loop_over_cases

from shim.conversation.drivers.open_translation import create_stream_translation
from shim.conversation.fallback import buffered_stream
from shim.conversation.fallback.buffered_stream import BufferedChildStream, FallbackBuffer
from shim.core.adapter.commands import RunHooksCommand, SendToChildCommand, StoreSessionCommand
from shim.core.adapter.translation import StreamTranslation
from shim.core.adapter.translator import Translator
from shim.core.claude.writer import StreamJsonWriter
from shim.core.errors import (
    MAX_REASON_CHARS,
    FrontendError,
    VendorError,
    create_failed_attempt,
    format_failed_attempts,
    parse_failed_attempt,
)
from shim.core.turn.outcome import ChildExit
from shim.core.yume.encoder import YumeEncoder


def find_failed_attempt(case):
    """What the translation of a case says of who may answer in its place, and whether anything was
    said in it.
    """
    translation = create_stream_translation(case.vendor, partial=False, stable=True)
    translation.feed(case.data)
    why = translation.find_failed_attempt(case.exit, case.stderr)
    return why, translation.turn.has_output


@cache
def outcome(case):
    """The cause of a case's failure, None where it succeeded."""
    turn = translate_case(case, False)[1].turn
    return turn.cause if turn.is_error else None


@loop_over_cases(
    case
    for case in list_fixture_cases()
    if not case.passthrough and outcome(case) in ("auth", "rate_limit")
)
def test_whoever_is_not_let_in_before_it_said_a_word_may_be_answered_for(case):
    why, has_output = find_failed_attempt(case)
    assert (why is None) is has_output
    assert why is None or (why.vendor, why.cause) == (case.vendor, outcome(case))


@loop_over_cases(
    case for case in list_fixture_cases() if not case.passthrough and outcome(case) is None
)
def test_nobody_answers_for_a_vendor_that_did(case):
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
def test_who_dies_before_its_stream_begins_could_not_start(child_exit, output, cause):
    translation = create_stream_translation("demo", partial=False, stable=True)
    translation.feed(output)
    why = translation.find_failed_attempt(child_exit, "")
    assert (why and why.cause) == cause


def test_the_words_are_one_line_that_no_terminal_obeys():
    attempt = create_failed_attempt("qwen", "auth", "one\n two\x1b[31m" + "x" * 1000)
    assert (
        len(attempt.reason) == MAX_REASON_CHARS
        and attempt.reason.startswith("one two")
        and attempt.reason.endswith("…")
    )
    assert "\x1b" not in attempt.reason
    assert json.loads(json.dumps(attempt.to_json())) == attempt._asdict()


def test_a_list_names_each_and_why():
    assert format_failed_attempts(
        [create_failed_attempt("a", "auth", "x"), create_failed_attempt("b", "not_found", "y")]
    ) == ("\na did not answer either (auth): x\nb did not answer either (not_found): y")
    assert format_failed_attempts([]) == ""


def test_a_recording_may_say_anything_of_it():
    assert parse_failed_attempt(
        create_failed_attempt("qwen", "auth", "x").to_json()
    ) == create_failed_attempt("qwen", "auth", "x")
    assert parse_failed_attempt({"cause": ["a"], "vendor": "q" * 99}) == create_failed_attempt(
        "q" * 32, "vendor_error", "None"
    )


def test_what_another_vendor_said_of_itself_is_not_the_next_ones():
    stage = Stage()
    stage.turn.start_session(session_id="s", model="m1", tools=["Read"], vendor_version="1")
    stage.finish_turn()
    then = stage.turn.create_next(build_turn_config("another"))
    assert (then.vendor_info, then.model) == ({}, "")
    assert stage.turn.create_next(stage.turn.config).vendor_info["model"] == "m1"


# -- what is held of a vendor that may be replaced -------------------------------------------------

IDENTITY = "00000000-0000-4000-8000-"
BEGUN = START | {"session": "s"}


def claude():
    return StreamJsonWriter(IDENTITY)


def yume():
    return YumeEncoder(IDENTITY, transcript_writer=StreamJsonWriter(IDENTITY))


def build_buffered_stream(writer=None):
    """A hold that has begun, and the pump of the demo vendor whose lines go through it."""
    buffer = FallbackBuffer()
    buffer.start_buffering()
    translation = create_stream_translation("demo", partial=False, stable=True)
    if writer is not None:
        turn_config = build_turn_config(new_id=f"{IDENTITY}000000000000")
        translation = StreamTranslation(Translator, turn_config, writer)
    return buffer, BufferedChildStream(buffer, translation)


def feed_events(stream, *events):
    """What a pump gives for events of the demo vendor."""
    return stream.feed(format_ndjson(*events).encode())


@pytest.mark.parametrize("make", [claude, yume])
def test_a_pen_forgets_a_turn_that_nobody_was_given(make):
    writer = make()
    for forgotten in (True, False):
        _, stream = build_buffered_stream(writer)
        stream.turn.start_session(session_id="s", model=f"model-{forgotten}")
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


def test_what_is_held_comes_with_the_first_word_and_so_does_the_session():
    buffer, stream = build_buffered_stream()
    output, commands = feed_events(stream, BEGUN)
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


def test_what_a_child_is_told_is_never_held():
    _, stream = build_buffered_stream()
    stream.translation._translator.outbox.append(b"line\n")
    assert SendToChildCommand(b"line\n") in feed_events(stream, BEGUN)[1]


def test_no_more_is_held_than_is_bounded(monkeypatch):
    monkeypatch.setattr(buffered_stream, "MAX_BUFFERED_BYTES", 5000)
    buffer, stream = build_buffered_stream()
    feed_events(stream, BEGUN)
    assert buffer.is_active
    output, _ = stream.feed(b"\n" * 5001)
    assert b'"init"' in output and not buffer.is_active


@pytest.mark.parametrize("is_persistent", [True, False])
def test_a_vendor_that_does_not_answer_ends_its_turn_without_a_line(is_persistent):
    buffer, stream = build_buffered_stream()
    feed_events(stream, BEGUN)
    stream.stop_turn("nobody is logged in", "auth")
    assert (stream.finish() if is_persistent else stream.close(ChildExit(code=1))) == (b"", ())
    assert (
        buffer.failed_attempt == create_failed_attempt("demo", "auth", "nobody is logged in")
        and buffer.child_started
    )
    assert stream.translation.writer.take_bytes() == b""


def test_a_vendor_that_cannot_start_is_passed_over_and_another_mistake_is_said():
    buffer, stream = build_buffered_stream()
    assert stream.refuse_turn(VendorError("it is not there")) == b""
    assert (
        buffer.failed_attempt == create_failed_attempt("demo", "not_found", "it is not there")
        and not buffer.child_started
    )
    buffer, stream = build_buffered_stream()
    assert (
        b"a wrong setting" in stream.refuse_turn(FrontendError("a wrong setting"))
        and buffer.failed_attempt is None
    )


def test_the_end_of_a_turn_is_not_held():
    buffer, stream = build_buffered_stream()
    feed_events(stream, BEGUN)
    output, commands = stream.close(None)
    assert b'"init"' in output and b'"result"' in output and buffer.failed_attempt is None
    assert [type(command) for command in commands] == [RunHooksCommand, StoreSessionCommand]


def test_a_vendor_that_is_given_the_turn_is_not_passed_over_any_more():
    buffer, stream = build_buffered_stream()
    feed_events(stream, BEGUN)
    output, _ = stream.release()
    assert b'"init"' in output
    stream.stop_turn("nobody is logged in", "auth")
    assert b"nobody is logged in" in stream.close(None)[0] and buffer.failed_attempt is None
