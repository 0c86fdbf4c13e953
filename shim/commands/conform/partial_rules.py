"""Defines conformance rules about partial messages: the order of `stream_event` lines, and their
agreement with the complete lines.
"""

import json

from shim.commands.conform.observations import (
    ConformanceRuleSet,
    ObservedCommandRuns,
    ObservedTurn,
    RuleViolationError,
    fail_rule_if,
    skip_rule_if,
)
from shim.commands.conform.process import JsonObject
from shim.core.claude.grammar import (
    get_delta,
    get_fragment,
    get_parent_call_id,
    get_stream_event,
    list_content_blocks,
)
from shim.core.reading.diagnostics import pluralize

RULES = ConformanceRuleSet()


def _get_streamed_turns(observations: ObservedCommandRuns) -> list[ObservedTurn]:
    """Return the turns with partial messages. Raise RuleNotObservedError if there are none."""
    turns = [
        turn
        for turn in observations.get_turns_of_runs()
        if "--include-partial-messages" in turn.run.argv
    ]
    skip_rule_if(not turns, "no turn had partial messages")
    return turns


@RULES.register_must_rule(
    "S11",
    "With --include-partial-messages, each reply begins with message_start and ends with "
    "message_stop, with its blocks in between.",
)
def _partial_grammar(observations: ObservedCommandRuns) -> str:
    turns = [turn for turn in _get_streamed_turns(observations) if turn.result]
    replies = sum(_check_grammar(turn) for turn in turns)
    if not replies:
        successful_turns = [turn for turn in turns if not turn.is_failed]
        skip_rule_if(not successful_turns, "no turn with partial messages was completed")
        raise RuleViolationError("no reply was streamed", successful_turns[0].run)
    return f"{replies} replies in {len(turns)} turns"


def _check_grammar(turn: ObservedTurn) -> int:
    """Return the number of replies in a turn. Raise RuleViolationError if a stream event is out of
    order. Events from subagents are skipped.
    """
    reply_id = ""
    open_index = None
    has_line = False
    reply_count = 0
    for line in turn.lines:
        if get_parent_call_id(line):
            continue
        if line.get("type") == "assistant" and open_index is not None:
            has_line = True
            message = line.get("message")
            if isinstance(message, dict) and message.get("id") != reply_id:
                raise RuleViolationError(
                    "an assistant line whose message id differs from the reply's id", turn.run, line
                )
        if line.get("type") != "stream_event":
            continue
        event = get_stream_event(line)
        kind = event.get("type")
        if kind == "message_start":
            fail_rule_if(
                reply_id, "a message_start before the end of the previous reply", turn.run, line
            )
            reply_id = str(event["message"].get("id"))
            reply_count = reply_count + 1
        elif not reply_id:
            raise RuleViolationError(f"a {kind} outside of a reply", turn.run, line)
        elif kind == "content_block_start":
            fail_rule_if(
                open_index is not None,
                "a block starts before the previous block has ended",
                turn.run,
                line,
            )
            open_index = event.get("index")
            has_line = False
        elif kind in ("content_block_delta", "content_block_stop"):
            if open_index is None or event.get("index") != open_index:
                raise RuleViolationError(f"a {kind} for a block that is not open", turn.run, line)
            if kind == "content_block_stop":
                fail_rule_if(not has_line, "a block ends before its assistant line", turn.run, line)
                open_index = None
        elif kind == "message_stop":
            fail_rule_if(
                open_index is not None, "a reply ends while a block is open", turn.run, line
            )
            reply_id = ""
        elif kind == "message_delta" and open_index is not None:
            raise RuleViolationError("a message_delta while a block is open", turn.run, line)
    if reply_id:
        raise RuleViolationError("a reply without a message_stop", turn.run, turn.lines[-1])
    return reply_count


@RULES.register_must_rule("S12", "Without --include-partial-messages there is no stream_event.")
def _no_partial_unasked(observations: ObservedCommandRuns) -> str:
    runs = [
        run
        for run in observations.get_stream_json_runs()
        if "--include-partial-messages" not in run.argv
    ]
    skip_rule_if(not runs, "no run without --include-partial-messages printed a stream")
    for run in runs:
        for line in run.find_lines("stream_event"):
            raise RuleViolationError("a stream_event that was not requested", run, line)
    return pluralize(len(runs), "run")


@RULES.register_must_rule(
    "S13",
    "Each stream_event has a parent_tool_use_id, each message_start has a usage, and "
    "each message_delta has output_tokens.",
)
def _partial_fields(observations: ObservedCommandRuns) -> str:
    count = 0
    for turn in _get_streamed_turns(observations):
        for line in turn.lines:
            if line.get("type") != "stream_event":
                continue
            count += 1
            event = get_stream_event(line)
            if "parent_tool_use_id" not in line or not isinstance(event.get("type"), str):
                raise RuleViolationError(
                    "a stream_event without parent_tool_use_id or without an event", turn.run, line
                )
            if event["type"] == "message_start" and not isinstance(
                event["message"].get("usage"), dict
            ):
                raise RuleViolationError("a message_start without usage", turn.run, line)
            if event["type"] == "message_delta" and not isinstance(
                event["usage"].get("output_tokens"), int
            ):
                raise RuleViolationError(
                    "a message_delta without usage.output_tokens", turn.run, line
                )
    skip_rule_if(not count, "no reply was streamed")
    return pluralize(count, "event")


@RULES.register_should_rule(
    "S14", "The deltas of a block add up to the block in the assistant line."
)
def _deltas_add_up(observations: ObservedCommandRuns) -> str:
    count = 0
    for turn in _get_streamed_turns(observations):
        text = ""
        is_open = False
        for line in turn.lines:
            if get_parent_call_id(line):
                continue
            event = get_stream_event(line)
            if event.get("type") == "content_block_start":
                text = ""
                is_open = True
            elif event.get("type") == "content_block_delta":
                text += get_fragment(get_delta(line))[1]
            elif line.get("type") == "assistant" and is_open:
                for block in list_content_blocks(line):
                    count += 1
                    fail_rule_if(
                        not _is_same_block(text, block),
                        "the deltas differ from the assistant line",
                        turn.run,
                        line,
                    )
                is_open = False
    skip_rule_if(not count, "no block was streamed")
    return f"{count} blocks"


def _is_same_block(text: str, block: JsonObject) -> bool:
    if block.get("type") == "tool_use":
        # Claude adds default arguments to a complete tool call, so the call has at least the streamed
        # fields.
        streamed_input = json.loads(text or "{}")
        if not isinstance(streamed_input, dict):
            return False
        return set(streamed_input) <= set(block["input"])
    if block.get("type") in ("text", "thinking"):
        return bool(text == block[block["type"]])
    return True
