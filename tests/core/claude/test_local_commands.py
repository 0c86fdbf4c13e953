"""Claude's commands that are answered without the model. Measured with claude 2.1.332."""

import pytest
from turn_stage import Stage, build_session_state

from shim.core.claude.control.usage_reports import build_context_report
from shim.core.claude.local_commands import (
    CLEAR,
    COMPACT,
    CONTEXT,
    USAGE,
    LocalCommand,
    format_context_report,
    parse_local_command,
)
from shim.core.claude.messages import UserMessage, parse_user_message
from shim.core.claude.session_state import SessionUsage
from shim.core.claude.usage import create_usage

U = "11111111-1111-4111-8111-111111111111"
OLD = "22222222-2222-4222-8222-222222222222"


def parse(content):
    message = {"role": "user", "content": content}
    return parse_local_command(parse_user_message({"type": "user", "message": message}, ""))


@pytest.mark.parametrize(
    ("content", "command"),
    [
        ("/clear", LocalCommand("clear", CLEAR, "")),
        ("/reset", LocalCommand("reset", CLEAR, "")),
        ("/new", LocalCommand("new", CLEAR, "")),
        ("/clear\nhello", LocalCommand("clear", CLEAR, "hello")),
        ("/compact keep the names ", LocalCommand("compact", COMPACT, "keep the names")),
        ("/context", LocalCommand("context", CONTEXT, "")),
        ("/usage", LocalCommand("usage", USAGE, "")),
        ([{"type": "text", "text": "/cost"}], LocalCommand("cost", USAGE, "")),
    ],
)
def test_commands_are_recognized_with_their_aliases_and_arguments(content, command):
    assert parse(content) == command


@pytest.mark.parametrize(
    "content",
    [
        "",
        "/",
        " /clear",
        "/ clear",
        "clear",
        "/clearly",
        "/clear-all",
        "/compress",
        "/Clear",
        [{"type": "text", "text": "/clear"}, {"type": "text", "text": "hello"}],
    ],
)
def test_other_texts_are_messages(content):
    assert parse(content) is None


def test_prompt_of_the_command_line_can_be_a_command():
    assert parse_local_command(UserMessage("/cost")) == LocalCommand("cost", USAGE, "")


def test_only_a_session_that_answers_commands_recognizes_them():
    for answers_commands in (True, False):
        state = build_session_state(
            display_name="demo", session_id=U, answers_commands=answers_commands
        )
        command = state.parse_local_command(UserMessage("/clear"))
        assert (command is not None) == answers_commands


def test_context_is_a_table_with_the_reported_numbers():
    state = build_session_state(display_name="demo", session_id=U)
    state.reported_model = "m1"
    state.usage = SessionUsage(
        last_request=create_usage(3000, 100, 0, 50), context_window_tokens=1_000_000
    )
    assert format_context_report(build_context_report(state)) == (
        "## Context Usage\n\n**Model:** m1  \n**Tokens:** 3.1k / 1m (0%)\n\n"
        "### Estimated usage by category\n\n"
        "| Category | Tokens | Percentage |\n|----------|--------|------------|\n"
        "| Messages | 3.1k | 0.3% |\n| Free space | 996.9k | 99.7% |"
    )


def test_answer_has_a_synthetic_message_and_a_result_without_a_model():
    stage = Stage(terminator="none")
    stage.turn.write_local_command_answer("cost", "It was free.")
    stage.turn.finish()
    init, answer, result = stage.take_lines()
    assert (init["subtype"], answer["message"]["model"]) == ("init", "<synthetic>")
    assert answer["message"]["content"] == [{"type": "text", "text": "It was free."}]
    assert answer["local_command_source"] == (
        "<local-command-stdout>It was free.</local-command-stdout>"
    )
    assert {
        name: result[name] for name in ("result", "num_turns", "stop_reason", "local_command")
    } == {"result": "It was free.", "num_turns": 0, "stop_reason": None, "local_command": "cost"}
    assert not {"terminal_reason", "api_error_status"} & result.keys()


def test_command_that_had_no_effect_is_marked_as_failed():
    stage = Stage(terminator="none")
    stage.turn.write_local_command_answer("compact", "It cannot.", is_failed=True)
    stage.turn.finish()
    _, answer, result = stage.take_lines()
    assert answer["local_command_outcome"] == {"kind": "failed"}
    assert answer["local_command_source"] == (
        "<local-command-stderr>It cannot.</local-command-stderr>"
    )
    assert (result["is_error"], result["result"]) == (False, "It cannot.")


@pytest.mark.parametrize("fields", [{"max_budget_usd": 0.5}, {"read_answer": lambda text: 1 / 0}])
def test_limits_of_an_answer_do_not_apply_to_commands(fields):
    stage = Stage(terminator="none", **fields)
    stage.conversation.cost_usd = 1.0
    stage.turn.write_local_command_answer("cost", "It was dear.")
    assert stage.finish_with_result(None)["is_error"] is False


def test_reset_has_the_id_of_the_session_that_ends_and_later_lines_the_new_id():
    stage = Stage(terminator="none", requested_id=U)
    stage.conversation.session_id = OLD
    stage.conversation.vendor_session_id = "v1"
    stage.conversation.cost_usd = 2.0
    stage.conversation.usage_by_model = {"m1": create_usage(1, 2, 3, 4)}
    message = UserMessage("/clear", uuid=OLD.replace("2", "3"))
    stage.turn.set_user_message(message, replays=False)
    stage.turn.start_new_session(OLD)
    stage.turn.write_local_command_answer("clear", "")
    stage.turn.finish()
    reset, init, result = stage.take_lines()
    assert reset["type"] == "conversation_reset"
    assert (reset["session_id"], reset["trigger"]) == (OLD, "clear")
    assert reset["user_message_uuid"] == message.uuid
    assert reset["new_conversation_id"] == reset["uuid"]
    assert init["session_id"] == result["session_id"] == U
    assert (result["result"], result["total_cost_usd"], result["modelUsage"]) == ("", 0.0, {})
    assert stage.conversation.vendor_session_id is None


def test_lines_after_a_reset_have_the_new_session_id_although_the_usage_is_the_same():
    stage = Stage(terminator="none", requested_id=OLD)
    stage.turn.add_text("one")
    stage.finish_turn()
    config = stage.config._replace(session=stage.config.session._replace(requested_id=U))
    stage.turn = stage.turn.create_next(config)
    stage.turn.start_new_session(OLD)
    stage.turn.write_local_command_answer("clear", "")
    stage.turn.finish()
    stage.take_lines()
    stage.turn = stage.turn.create_next(config)
    stage.turn.add_text("two")
    stage.turn.close(None, "")
    assert {line["session_id"] for line in stage.take_lines()} == {U}


# -- compaction ------------------------------------------------------------------------------------


def start_compaction(**fields):
    stage = Stage(terminator="none", **fields)
    stage.turn.start_compaction("compact", 120)
    stage.turn.record_vendor_session_info(session_id="v1")
    return stage


def test_compaction_has_the_lines_of_the_real_claude():
    stage = start_compaction()
    stage.turn.record_turn_end()
    stage.turn.finish()
    init, start, end, boundary, note, result = stage.take_lines()
    assert (init["subtype"], start["status"]) == ("init", "compacting")
    assert (end["status"], end["compact_result"]) == (None, "success")
    assert boundary["compact_metadata"] == {"trigger": "manual", "pre_tokens": 120}
    assert note["message"]["content"] == "<local-command-stdout>Compacted </local-command-stdout>"
    assert note["isReplay"] is True
    assert (result["result"], result["num_turns"], result["local_command"]) == ("", 0, "compact")


def test_requested_compaction_is_reported_once_with_the_tokens_that_the_vendor_counts():
    stage = start_compaction()
    stage.turn.write_compaction("auto", 700)
    stage.turn.write_compaction("auto", 0)
    stage.turn.record_turn_end()
    stage.turn.finish()
    boundaries = [line for line in stage.take_lines() if line.get("subtype") == "compact_boundary"]
    (boundary,) = boundaries
    assert boundary["compact_metadata"] == {"trigger": "manual", "pre_tokens": 700}


def test_compaction_of_a_running_session_reports_its_start_after_init():
    stage = Stage(terminator="none")
    stage.turn.record_vendor_session_info(session_id="v1")
    stage.turn.start_compaction("compact", 0)
    init, start = stage.take_lines()
    assert (init["subtype"], start["status"]) == ("init", "compacting")


def test_refused_compaction_is_answered_with_the_reason_of_the_vendor():
    stage = start_compaction()
    stage.turn.record_failure("The session is too small")
    stage.turn.finish()
    _, _, end, answer, result = stage.take_lines()
    assert (end["compact_result"], end["compact_error"]) == ("failed", "The session is too small")
    assert answer["local_command_outcome"] == {"kind": "failed"}
    assert (result["is_error"], result["result"]) == (False, "The session is too small")


def test_reason_that_the_vendor_has_written_is_not_repeated():
    stage = start_compaction()
    stage.turn.add_text("It was not beneficial.")
    stage.turn.record_failure("It was not beneficial.")
    stage.turn.finish()
    lines = stage.take_lines()
    assert [line["type"] for line in lines].count("assistant") == 1
    assert lines[-1]["result"] == "It was not beneficial."


@pytest.mark.parametrize("code", [1, None])
def test_compaction_without_an_end_is_an_error(code):
    stage = start_compaction()
    result = stage.finish_with_result(code)
    assert result["is_error"] is True


def test_interrupted_compaction_is_an_interrupted_turn():
    stage = start_compaction()
    stage.turn.record_interrupt()
    assert stage.finish_with_result(None)["terminal_reason"] == "aborted_streaming"
