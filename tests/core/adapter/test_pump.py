"""What the pump gives the shell beside the bytes: commands, each once, and nothing in the common
case.
"""

from box import format_ndjson
from support import build_turn_config, parse_lines, summarize_lines

from shim.conversation.drivers.open_translation import STABLE_ID_PREFIX
from shim.core.adapter.commands import (
    NO_COMMANDS,
    AskPermission,
    RunHooks,
    SendToChild,
    SetTimeout,
    StoreSession,
    TurnStage,
)
from shim.core.adapter.pump import ChildStream
from shim.core.adapter.translation import StreamTranslation
from shim.core.adapter.translator import Translator
from shim.core.claude.hooks.callbacks import HookEvent
from shim.core.claude.messages import UserMessage
from shim.core.claude.pen import StreamJsonWriter
from shim.core.errors import VendorError


class Toy(Translator):
    """A vendor whose events are what a test is about."""

    def on_hello(self, event):
        self.turn.start_session(session_id=event["session"])

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
        self.turn.set_paused()

    def on_settle(self, event):
        self.turn.record_end()
        self.turn.finalize()

    def on_go_on(self, event):
        self.turn.reopen()

    def on_spend(self, event):
        self.turn.add_usage({"input_tokens": 1}, 0.0)

    def on_finish(self, event):
        self.turn.record_end()
        self.turn.finish()


def start_child_stream(*, hooks=False, **facts):
    """A pump that answers a message."""
    terms = build_turn_config("toy")
    child_stream = ChildStream(
        StreamTranslation(Toy, terms, StreamJsonWriter(STABLE_ID_PREFIX)), **facts
    )
    child_stream.answer_message(UserMessage("hi"), echo=False, hooks=hooks)
    return child_stream


def fed(pump, *kinds):
    """The commands for events of these kinds in one chunk."""
    return pump.feed(format_ndjson(*({"type": kind, "session": "s"} for kind in kinds)).encode())[1]


BEGUN = (StoreSession("s"), SetTimeout("idle_timeout"))


def test_a_chunk_that_asks_for_nothing_gives_the_one_empty_tuple():
    pump = start_child_stream()
    assert fed(pump, "hello") == BEGUN
    assert fed(pump, "say") is NO_COMMANDS and fed(pump, "call", "returned", "say") is NO_COMMANDS


def test_the_silence_that_is_allowed_follows_what_the_vendor_does():
    pump = start_child_stream()
    fed(pump, "hello")
    assert fed(pump, "call") == (SetTimeout("tool_timeout"),)
    assert fed(pump, "returned") == (SetTimeout("idle_timeout"),)
    assert fed(pump, "alive") == (SetTimeout("heartbeat_timeout"),)
    assert fed(pump, "call") is NO_COMMANDS


def test_a_new_message_says_the_allowed_silence_again():
    pump = start_child_stream()
    fed(pump, "hello")
    pump.finish()
    pump.start_turn(build_turn_config("toy"))
    pump.answer_message(UserMessage("more"), echo=False, hooks=False)
    assert fed(pump, "say") == (SetTimeout("idle_timeout"),)


def test_each_stage_is_said_when_it_begins():
    pump = start_child_stream()
    fed(pump, "hello")
    assert fed(pump, "pause") == (TurnStage.PAUSED,) and fed(pump, "pause") is NO_COMMANDS
    assert fed(pump, "go_on") == (TurnStage.RUNNING,)
    assert fed(pump, "settle") == (TurnStage.VENDOR_DONE,)
    assert fed(pump, "finish") == (StoreSession("s"), TurnStage.FINISHED)


def test_a_silence_settles_a_turn_that_was_paused():
    pump = start_child_stream()
    fed(pump, "hello", "pause")
    assert pump.on_idle() == (b"", (TurnStage.VENDOR_DONE,))


def test_a_session_that_can_only_go_on_after_a_reply_is_remembered_again_then():
    pump = start_child_stream(saves_late=True)
    assert StoreSession("s") in fed(pump, "hello")
    assert fed(pump, "spend") == (StoreSession("s"),) and fed(pump, "spend") is NO_COMMANDS


def test_the_pump_of_a_later_child_says_a_session_that_is_known_no_more():
    pump = start_child_stream(known=("s", True))
    assert fed(pump, "hello") == (SetTimeout("idle_timeout"),)


def test_hooks_hear_of_calls_and_results_in_their_order():
    pump = start_child_stream(hooks=True)
    (observe,) = (it for it in fed(pump, "hello", "call", "returned") if isinstance(it, RunHooks))
    assert [one.name for one in observe.events] == ["PreToolUse", "PostToolUse"]
    assert fed(start_child_stream(), "hello", "call") == (
        StoreSession("s"),
        SetTimeout("tool_timeout"),
    ), "a frontend without hooks"


def test_hooks_hear_of_nothing_behind_a_result():
    """S16b"""
    pump = start_child_stream(hooks=True)
    commands = fed(pump, "hello", "call", "finish")
    assert TurnStage.FINISHED in commands and not any(isinstance(it, RunHooks) for it in commands)


def test_the_end_of_a_turn_is_observed_and_its_session_remembered():
    pump = start_child_stream()
    fed(pump, "hello", "say", "settle")
    said, commands = pump.finish()
    assert summarize_lines(parse_lines(said)) == ["end:success words"]
    assert commands == (RunHooks((HookEvent("Stop"),), "words"), StoreSession("s"))


def test_a_question_is_asked_once_and_a_line_is_told_once():
    pump = start_child_stream()
    *_, told, asked = fed(pump, "hello", "tell", "ask")
    assert told == SendToChild(b"a line\n")
    assert (
        isinstance(asked, AskPermission)
        and asked.permission.request_id == "r1"
        and not asked.permission.refusal
    )
    assert fed(pump, "say") is NO_COMMANDS


def test_between_two_turns_questions_are_refused_and_nothing_else_is_read():
    pump = start_child_stream()
    fed(pump, "hello", "settle")
    pump.finish()
    (asked,) = pump.skip_bytes(b'{"type":"say"}\n{"type":"ask","as":"control_request"}\n')
    assert asked.permission.refusal and pump.skip_bytes(b'{"type":"tell"}\n') == ()


def test_a_call_that_is_forbidden_ends_the_turn():
    pump = start_child_stream()
    fed(pump, "hello", "call")
    said, commands = pump.forbid_call("c1", "no")
    assert b'"result"' in said and commands == (
        StoreSession("s"),
        SetTimeout("idle_timeout"),
        TurnStage.FINISHED,
    )


def test_a_turn_that_cannot_begin_says_the_error_and_what_to_do():
    said = start_child_stream().refuse_turn(VendorError("toy is not there", hint="install it"))
    assert b"toy is not there\\ninstall it" in said
    assert b"the shim failed: ZeroDivisionError" in start_child_stream().refuse_turn(
        ZeroDivisionError("x")
    )


def test_a_turn_that_is_stalled_names_the_calls_that_are_open():
    pump = start_child_stream()
    fed(pump, "hello", "call")
    pump.stop_stalled_turn("toy said nothing")
    assert b"toy said nothing while these calls were open: Bash" in pump.close(None)[0]


def test_a_turn_that_the_child_began_by_itself_has_stages_of_its_own():
    """Both turns end in their chunk, as those of a recording do that is played at once."""
    pump = start_child_stream()
    assert TurnStage.FINISHED in fed(pump, "hello", "settle", "finish")
    pump.translation.start_turn()
    assert TurnStage.FINISHED in fed(pump, "say", "settle", "finish")
