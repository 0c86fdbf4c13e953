"""Rules of partial messages: the grammar of `stream_event` lines, and that they say what the whole
lines say.
"""

import json

from shim.commands.conform.process import Object
from shim.commands.conform.seen import (
    Book,
    BrokenError,
    Seen,
    Turn,
    blocks_of,
    broken_if,
    unseen_if,
)
from shim.core.reading.account import counted

BOOK = Book()


def _event(line: Object) -> Object:
    event = line.get("event")
    return event if isinstance(event, dict) else {}


def _streamed(seen: Seen) -> list[Turn]:
    """The turns with partial messages. UnseenError when there is none."""
    turns = [turn for turn in seen.turns() if "--include-partial-messages" in turn.run.argv]
    unseen_if(not turns, "no turn with partial messages")
    return turns


@BOOK.must(
    "S11",
    "With --include-partial-messages each reply is message_start … message_stop, its blocks in between.",
)
def _partial_grammar(seen: Seen) -> str:
    turns = [turn for turn in _streamed(seen) if turn.result]
    replies = sum(_check_grammar(turn) for turn in turns)
    if not replies:
        good = [turn for turn in turns if not turn.failed]
        unseen_if(not good, "no turn with partial messages came to its end")
        raise BrokenError("no reply was streamed", good[0].run)
    return f"{replies} replies in {len(turns)} turns"


def _check_grammar(turn: Turn) -> int:
    """The number of replies. Events of nested agents are skipped."""
    reply, opened, said, count = "", None, False, 0
    for line in turn.lines:
        if line.get("parent_tool_use_id"):
            continue
        if line.get("type") == "assistant" and opened is not None:
            said = True
            message = line.get("message")
            if isinstance(message, dict) and message.get("id") != reply:
                raise BrokenError(
                    "an assistant line in a reply that has another id", turn.run, line
                )
        if line.get("type") != "stream_event":
            continue
        event = _event(line)
        kind = event.get("type")
        if kind == "message_start":
            broken_if(reply, "a message_start inside a reply", turn.run, line)
            reply, count = str(event["message"].get("id")), count + 1
        elif not reply:
            raise BrokenError(f"a {kind} outside of a reply", turn.run, line)
        elif kind == "content_block_start":
            broken_if(opened is not None, "a block inside another", turn.run, line)
            opened, said = event.get("index"), False
        elif kind in ("content_block_delta", "content_block_stop"):
            if opened is None or event.get("index") != opened:
                raise BrokenError(f"a {kind} of a block that is not open", turn.run, line)
            if kind == "content_block_stop":
                broken_if(not said, "a block ends before its assistant line", turn.run, line)
                opened = None
        elif kind == "message_stop":
            broken_if(opened is not None, "a reply ends with a block open", turn.run, line)
            reply = ""
        elif kind == "message_delta" and opened is not None:
            raise BrokenError("a message_delta with a block open", turn.run, line)
    if reply:
        raise BrokenError("a reply without its message_stop", turn.run, turn.lines[-1])
    return count


@BOOK.must("S12", "Without --include-partial-messages there is no stream_event.")
def _no_partial_unasked(seen: Seen) -> str:
    runs = [run for run in seen.streams() if "--include-partial-messages" not in run.argv]
    unseen_if(not runs, "no stream without partial messages")
    for run in runs:
        for line in run.of_type("stream_event"):
            raise BrokenError("a stream_event that nobody asked for", run, line)
    return counted(len(runs), "run")


@BOOK.must(
    "S13",
    "A stream_event has parent_tool_use_id, message_start a usage, message_delta its output_tokens.",
)
def _partial_fields(seen: Seen) -> str:
    count = 0
    for turn in _streamed(seen):
        for line in turn.lines:
            if line.get("type") != "stream_event":
                continue
            count += 1
            event = _event(line)
            if "parent_tool_use_id" not in line or not isinstance(event.get("type"), str):
                raise BrokenError(
                    "a stream_event without parent_tool_use_id or without an event", turn.run, line
                )
            if event["type"] == "message_start" and not isinstance(
                event["message"].get("usage"), dict
            ):
                raise BrokenError("a message_start without usage", turn.run, line)
            if event["type"] == "message_delta" and not isinstance(
                event["usage"].get("output_tokens"), int
            ):
                raise BrokenError("a message_delta without usage.output_tokens", turn.run, line)
    unseen_if(not count, "no reply was streamed")
    return counted(count, "event")


@BOOK.should("S14", "The deltas of a block, put together, are the block of its assistant line.")
def _deltas_add_up(seen: Seen) -> str:
    count = 0
    for turn in _streamed(seen):
        text, found = "", False
        for line in turn.lines:
            if line.get("parent_tool_use_id"):
                continue
            event = _event(line)
            if event.get("type") == "content_block_start":
                text, found = "", True
            elif event.get("type") == "content_block_delta":
                delta = event["delta"]
                text += str(
                    delta.get("text") or delta.get("thinking") or delta.get("partial_json") or ""
                )
            elif line.get("type") == "assistant" and found:
                for block in blocks_of(line):
                    count += 1
                    broken_if(
                        not _same(text, block),
                        "the deltas say something else than the line",
                        turn.run,
                        line,
                    )
                found = False
    unseen_if(not count, "no block was streamed")
    return f"{count} blocks"


def _same(text: str, block: Object) -> bool:
    if block.get("type") == "tool_use":
        # Claude adds defaults of a tool to a call, so the call has at least the fields that were
        # streamed.
        streamed = json.loads(text or "{}")
        return isinstance(streamed, dict) and set(streamed) <= set(block["input"])
    if block.get("type") in ("text", "thinking"):
        return bool(text == block[block["type"]])
    return True
