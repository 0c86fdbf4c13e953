"""A child stream returns commands beside its output: each one once, and no command in the common
case.
"""

import pytest
from box import format_ndjson
from stream_lines import parse_lines, summarize_lines
from turn_stage import build_turn_config

from shim.conversation.drivers.open_translation import STABLE_ID_PREFIX
from shim.core.adapter.child_stream import ChildStream
from shim.core.adapter.commands import (
    NO_COMMANDS,
    AskPermissionCommand,
    RunHooksCommand,
    SendToChildCommand,
    SetTimeoutCommand,
    StoreSessionCommand,
    TurnStage,
)
from shim.core.adapter.translator import Translator
from shim.core.claude.hooks.callbacks import HookEvent
from shim.core.claude.messages import UserMessage
from shim.core.claude.writer import StreamJsonWriter
from shim.core.errors import VendorError


class Toy(Translator):
    """A vendor with the events of these tests."""

    def on_hello(self, event):
        self.turn.record_vendor_session_info(session_id=event["session"])

    def on_say(self, event):
        self.turn.add_block("words")

    def on_call(self, event):
        self.turn.add_tool_call("c1", "Bash", {"command": "ls"})

    def on_returned(self, event):
        self.turn.add_tool_result("c1", "a.txt")

    def on_ask(self, event):
        self.turn.request_permission("r1", "c1", "Bash", {"command": "ls"}, ("bash", {"cmd": "ls"}))

    def on_tell(self, event):
        self.outbox.append(b"a line\n")

    def on_alive(self, event):
        self.turn.record_heartbeat()

    def on_pause(self, event):
        self.turn.record_possible_turn_end()

    def on_settle(self, event):
        self.turn.record_turn_end()
        self.turn.record_vendor_completion()

    def on_go_on(self, event):
        self.turn.cancel_vendor_completion()

    def on_spend(self, event):
        self.turn.add_usage({"input_tokens": 1}, 0.0)

    def on_finish(self, event):
        self.turn.record_turn_end()
        self.turn.finish()

    def on_next(self, event):
        self.turn.record_turn_end()
        self.turn.finish()
        self.start_next_turn()


def start_child_stream(*, hooks=False, **options):
    """Start a stream that answers a message."""
    config = build_turn_config("toy")
    child_stream = ChildStream(Toy, config, StreamJsonWriter(STABLE_ID_PREFIX), **options)
    child_stream.set_user_message(UserMessage("hi"), replays_message=False, has_hooks=hooks)
    return child_stream


def fed(child_stream, *kinds):
    """Return the commands for events of these kinds in one chunk."""
    return child_stream.feed(
        format_ndjson(*({"type": kind, "session": "s"} for kind in kinds)).encode()
    )[1]


START_COMMANDS = (StoreSessionCommand("s"), SetTimeoutCommand("idle_timeout"))


def test_chunk_without_commands_returns_the_shared_empty_tuple():
    child_stream = start_child_stream()
    assert fed(child_stream, "hello") == START_COMMANDS
    assert (
        fed(child_stream, "say") is NO_COMMANDS
        and fed(child_stream, "call", "returned", "say") is NO_COMMANDS
    )


def test_timeout_command_depends_on_the_last_vendor_event():
    child_stream = start_child_stream()
    fed(child_stream, "hello")
    assert fed(child_stream, "call") == (SetTimeoutCommand("tool_timeout"),)
    assert fed(child_stream, "returned") == (SetTimeoutCommand("idle_timeout"),)
    assert fed(child_stream, "alive") == (SetTimeoutCommand("heartbeat_timeout"),)
    assert fed(child_stream, "call") is NO_COMMANDS


def test_new_message_sets_the_idle_timeout():
    child_stream = start_child_stream()
    fed(child_stream, "hello")
    child_stream.finish()
    child_stream.start_turn(build_turn_config("toy"))
    child_stream.set_user_message(UserMessage("more"), replays_message=False, has_hooks=False)
    assert fed(child_stream, "say") == (SetTimeoutCommand("idle_timeout"),)


def test_each_turn_stage_is_reported_once_when_entered():
    child_stream = start_child_stream()
    fed(child_stream, "hello")
    assert (
        fed(child_stream, "pause") == (TurnStage.PAUSED,)
        and fed(child_stream, "pause") is NO_COMMANDS
    )
    assert fed(child_stream, "go_on") == (TurnStage.RUNNING,)
    assert fed(child_stream, "settle") == (TurnStage.VENDOR_DONE,)
    assert fed(child_stream, "finish") == (StoreSessionCommand("s"), TurnStage.FINISHED)


def test_idle_timeout_finishes_a_paused_turn():
    child_stream = start_child_stream()
    fed(child_stream, "hello", "pause")
    assert child_stream.on_idle() == (b"", (TurnStage.VENDOR_DONE,))


def test_late_saved_session_is_stored_a_second_time_after_the_first_reply():
    child_stream = start_child_stream(saves_late=True)
    assert StoreSessionCommand("s") in fed(child_stream, "hello")
    assert (
        fed(child_stream, "spend") == (StoreSessionCommand("s"),)
        and fed(child_stream, "spend") is NO_COMMANDS
    )


def test_child_stream_does_not_store_a_resumed_session():
    last_stream = start_child_stream()
    fed(last_stream, "hello")
    child_stream = start_child_stream(previous_stream=last_stream)
    assert fed(child_stream, "hello") == (SetTimeoutCommand("idle_timeout"),)


def test_hooks_receive_calls_and_results_in_order():
    child_stream = start_child_stream(hooks=True)
    (observe,) = (
        command
        for command in fed(child_stream, "hello", "call", "returned")
        if isinstance(command, RunHooksCommand)
    )
    assert [event.name for event in observe.events] == ["PreToolUse", "PostToolUse"]
    assert fed(start_child_stream(), "hello", "call") == (
        StoreSessionCommand("s"),
        SetTimeoutCommand("tool_timeout"),
    ), "a frontend without hooks"


def test_no_hook_runs_in_a_chunk_that_finishes_the_turn():
    """S16b"""
    child_stream = start_child_stream(hooks=True)
    commands = fed(child_stream, "hello", "call", "finish")
    assert TurnStage.FINISHED in commands and not any(
        isinstance(command, RunHooksCommand) for command in commands
    )


def test_turn_end_runs_the_stop_hook_and_stores_the_session():
    child_stream = start_child_stream()
    fed(child_stream, "hello", "say", "settle")
    output, commands = child_stream.finish()
    assert summarize_lines(parse_lines(output)) == ["end:success words"]
    assert commands == (RunHooksCommand((HookEvent("Stop"),), "words"), StoreSessionCommand("s"))


def test_permission_request_and_child_line_are_each_sent_once():
    child_stream = start_child_stream()
    *_, send_command, ask_command = fed(child_stream, "hello", "tell", "ask")
    assert send_command == SendToChildCommand(b"a line\n")
    assert (
        isinstance(ask_command, AskPermissionCommand)
        and ask_command.permission.request_id == "r1"
        and not ask_command.permission.refusal
    )
    assert fed(child_stream, "say") is NO_COMMANDS


def test_permission_request_between_two_turns_is_refused():
    child_stream = start_child_stream()
    fed(child_stream, "hello", "settle")
    child_stream.finish()
    (ask_command,) = child_stream.skip_output_between_turns(
        b'{"type":"say"}\n{"type":"ask","as":"control_request"}\n'
    )
    assert (
        ask_command.permission.refusal
        and child_stream.skip_output_between_turns(b'{"type":"tell"}\n') == ()
    )


def test_forbidden_call_ends_the_turn():
    child_stream = start_child_stream()
    fed(child_stream, "hello", "call")
    child_stream.turn.stop_for_forbidden_call("c1", "no")
    output, commands = child_stream.take_output()
    assert b'"result"' in output and commands == (
        StoreSessionCommand("s"),
        SetTimeoutCommand("idle_timeout"),
        TurnStage.FINISHED,
    )


def test_turn_that_cannot_start_reports_the_error_and_its_hint():
    output = start_child_stream().write_turn_start_error(
        VendorError("toy is not there", hint="install it")
    )
    assert b"toy is not there\\ninstall it" in output
    assert b"internal error: ZeroDivisionError" in start_child_stream().write_turn_start_error(
        ZeroDivisionError("x")
    )


def test_stalled_turn_reports_the_open_calls():
    child_stream = start_child_stream()
    fed(child_stream, "hello", "call")
    child_stream.stop_stalled_turn("toy said nothing")
    assert b"toy said nothing while these calls were running: Bash" in child_stream.close(None)[0]


def test_turn_started_by_the_child_is_the_turn_of_the_stream():
    child_stream = start_child_stream()
    turn = child_stream.turn
    child_stream.feed(format_ndjson({"type": "next"}).encode())
    assert child_stream.turn is not turn
    turn = child_stream.turn
    child_stream.feed(b'{"type":"next"}')
    assert child_stream.turn is turn, "the line is not complete"
    child_stream.translate_unterminated_line()
    assert child_stream.turn is not turn


def test_turn_is_followed_if_a_later_line_cannot_be_filtered():
    def fail_at_the_second_line(raw):
        if b"bad" in raw:
            raise ZeroDivisionError
        return raw

    class Strict(Toy):
        filter_line = staticmethod(fail_at_the_second_line)

    child_stream = ChildStream(Strict, build_turn_config("toy"), StreamJsonWriter(STABLE_ID_PREFIX))
    turn = child_stream.turn
    with pytest.raises(ZeroDivisionError):
        child_stream.feed(b'{"type":"next"}\n{"type":"bad"}\n')
    assert child_stream.turn is not turn


def test_turn_started_by_the_child_reports_its_finished_stage():
    """Both turns end in one chunk, as in a recording that is replayed without pauses."""
    child_stream = start_child_stream()
    assert TurnStage.FINISHED in fed(child_stream, "hello", "settle", "finish")
    child_stream.start_turn()
    assert TurnStage.FINISHED in fed(child_stream, "say", "settle", "finish")
