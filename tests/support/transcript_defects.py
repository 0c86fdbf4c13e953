"""Defects of a claude-like command, as edits of the transcripts of a command that follows every
rule of the contract.

A defect is a function that is called with each line of a stream and returns its replacement:
objects, or the bytes of lines. Defects that a transcript cannot show, such as a command that does
not answer, are in `fake_claude`.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

from shim.commands.conform.process import CommandRun, CommandStdoutLine, parse_stdout_line

Object = dict[str, Any]
Edit = Callable[[str, Object], list[Object | bytes]]

LONG_TEXT = b"x" * 1_100_000


def classify_line(line: Object) -> str:
    """Return the kind of a line: its type, or a narrower kind if a defect needs it."""
    kind = str(line["type"])
    if kind == "system" and line.get("subtype") == "init":
        return "init"
    if kind == "user" and "tool_use_result" in line:
        return "tool"
    if kind == "user" and line.get("isReplay"):
        return "replay"
    if kind == "stream_event":
        return f"event {line['event']['type']}"
    if kind == "control_request":
        return str(line["request"].get("callback_id", line["request"]["subtype"]))
    return kind


def apply_edit(run: CommandRun, edit: Edit) -> CommandRun:
    """Return a copy of a run with an edited stream. A run that prints no stream-json is returned as
    it is.
    """
    if "stream-json" not in " ".join(run.argv):
        return run
    lines: list[CommandStdoutLine] = []
    positions: list[int] = []  # old index of a line → new index
    for line in run.lines:
        positions.append(len(lines))
        if not isinstance(line.value, dict):
            lines.append(line)
            continue
        value = json.loads(line.raw)
        for replacement in edit(classify_line(value), value):
            raw = (
                replacement if isinstance(replacement, bytes) else json.dumps(replacement).encode()
            )
            lines.append(parse_stdout_line(line.time_s, raw))
    positions.append(len(lines))
    return dataclasses.replace(
        run,
        lines=lines,
        stdout=bytearray(b"".join(line.raw + b"\n" for line in lines)),
        line_counts={name: positions[index] for name, index in run.line_counts.items()},
        stdin_writes=[
            dataclasses.replace(message, line_count=positions[message.line_count])
            for message in run.stdin_writes
        ],
    )


# -- edits of lines --------------------------------------------------------------------------------


def change_lines(kind: str, function: Callable[[Object], object]) -> Edit:
    """Change each line of a kind."""

    def edit_line(actual: str, line: Object) -> list[Object | bytes]:
        if actual == kind:
            function(line)
        return [line]

    return edit_line


def drop_lines(*kinds: str) -> Edit:
    """Remove each line of some kinds."""
    return lambda kind, line: [] if kind in kinds else [line]


def insert_after(kind: str, inserted: bytes) -> Edit:
    """Insert a line after each line of a kind."""
    return lambda actual, line: [line, inserted] if actual == kind else [line]


def pop_key(*keys: str) -> Callable[[Object], object]:
    def pop_from_line(line: Object) -> object:
        for key in keys[:-1]:
            line = line[key]
        return line.pop(keys[-1])

    return pop_from_line


def set_key(value: object, *keys: str) -> Callable[[Object], object]:
    def set_in_line(line: Object) -> object:
        for key in keys[:-1]:
            line = line[key]
        line[keys[-1]] = value
        return line

    return set_in_line


def get_first_block(line: Object) -> Object:
    block: Object = line["message"]["content"][0]
    return block


# -- the defects -----------------------------------------------------------------------------------


def _repeat_result(kind: str, line: Object) -> list[Object | bytes]:
    return [line, line] if kind == "result" else [line]


def _add_stop_after_error(kind: str, line: Object) -> list[Object | bytes]:
    return [line, b'{"type":"message_stop"}'] if kind == "result" and line["is_error"] else [line]


def _drop_interrupt_line(kind: str, line: Object) -> list[Object | bytes]:
    return [] if kind == "user" and "[Request interrupted by user]" in str(line) else [line]


def _add_state_line(kind: str, line: Object) -> list[Object | bytes]:
    return (
        [b'{"type":"system","subtype":"session_state_changed","state":"running"}', line]
        if kind == "init"
        else [line]
    )


def _shift_index(line: Object) -> None:
    line["event"]["index"] += 1


def _change_text_delta(line: Object) -> None:
    if "text" in line["event"]["delta"]:
        line["event"]["delta"]["text"] += "more"


def _set_text_input(line: Object) -> None:
    if get_first_block(line)["type"] == "tool_use":
        get_first_block(line)["input"] = "text"


def _remove_text(line: Object) -> None:
    get_first_block(line).pop("text", None)


def _change_interrupt_result(line: Object) -> None:
    if line["subtype"] == "error_during_execution":
        line["subtype"] = "error_max_turns"


def _hide_denial(line: Object) -> None:
    if get_first_block(line)["is_error"]:
        get_first_block(line)["content"] = "no"


def _deny_all(line: Object) -> None:
    get_first_block(line).update(content="conform: this call is denied on purpose", is_error=True)


def _change_initialize(function: Callable[[Object], object]) -> Edit:
    """Change the body of each response to `initialize`."""

    def change_body(line: Object) -> None:
        body = line["response"].get("response") or {}
        if "models" in body and "commands" in body:
            function(body)

    return change_lines("control_response", change_body)


EDITS: Mapping[str, Edit] = {
    # Bytes after the init of a turn.
    "noise": insert_after("init", b"debug: hello"),
    "null": insert_after("init", b"null"),
    "array": insert_after("init", b"[1]"),
    "no-type": insert_after("init", b'{"a":1}'),
    "half-line": insert_after("init", b'{"type":"system","subty'),
    "nan": insert_after("init", b'{"type":"system","subtype":"x","n":NaN}'),
    "bad-utf8": insert_after("init", b'{"type":"system","subtype":"\xff"}'),
    "long-line": insert_after("init", b'{"type":"system","subtype":"%s"}' % LONG_TEXT),
    "long-for-yume": insert_after(
        "init", b'{"type":"system","subtype":"%s"}' % LONG_TEXT[:150_000]
    ),
    "end-line": insert_after("init", b'{"type":"end"}'),
    "type-last": insert_after("init", b'{"subtype":"x","type":"conform"}'),
    "unasked-event": insert_after(
        "init", b'{"type":"stream_event","event":{"type":"message_stop"},"parent_tool_use_id":null}'
    ),
    # Lines.
    "no-uuid": change_lines("assistant", pop_key("uuid")),
    "other-session-id": change_lines("assistant", set_key("another", "session_id")),
    "init-without-tools": change_lines("init", pop_key("tools")),
    "init-with-a-tool-text": change_lines("init", set_key("Bash", "tools")),
    "result-without-usage": change_lines("result", pop_key("usage")),
    "result-with-a-duration-text": change_lines("result", set_key("1", "duration_ms")),
    "result-without-text": change_lines("result", lambda line: line.pop("result", None)),
    "no-message-id": change_lines("assistant", pop_key("message", "id")),
    "no-counts": change_lines("assistant", set_key({}, "message", "usage")),
    "no-parent": change_lines("assistant", pop_key("parent_tool_use_id")),
    "two-blocks": change_lines(
        "assistant", lambda line: line["message"]["content"].append({"type": "text", "text": ""})
    ),
    "stop-reason": change_lines("assistant", set_key("end_turn", "message", "stop_reason")),
    "content-is-text": change_lines("assistant", set_key("hello", "message", "content")),
    "text-without-text": change_lines("assistant", _remove_text),
    "call-without-input": change_lines("assistant", _set_text_input),
    "result-without-content": change_lines(
        "tool", lambda line: get_first_block(line).pop("content")
    ),
    "result-of-nobody": change_lines(
        "tool", lambda line: get_first_block(line).update(tool_use_id="toolu_none")
    ),
    "no-tool-use-result": change_lines("tool", pop_key("tool_use_result")),
    "denial-unsaid": change_lines("tool", _hide_denial),
    "denies-all": change_lines("tool", _deny_all),
    # The order of a turn.
    "no-init": drop_lines("init"),
    "no-result": drop_lines("result"),
    "two-results": _repeat_result,
    "talk-behind-result": insert_after(
        "result", b'{"type":"user","message":{"role":"user","content":"x"}}'
    ),
    "call-unanswered": drop_lines("tool"),
    "no-replay": drop_lines("replay"),
    "no-terminator": drop_lines("message_stop"),
    "stop-behind-error": _add_stop_after_error,
    "no-interrupt-line": _drop_interrupt_line,
    "interrupt-other-result": change_lines("result", _change_interrupt_result),
    "state-running": _add_state_line,
    # Partial messages.
    "no-message-start": drop_lines("event message_start"),
    "no-message-stop": drop_lines("event message_stop"),
    "block-stays-open": drop_lines("event content_block_stop"),
    "other-message": change_lines(
        "event message_start", set_key("other", "event", "message", "id")
    ),
    "other-index": change_lines("event content_block_delta", _shift_index),
    "deltas-differ": change_lines("event content_block_delta", _change_text_delta),
    "event-without-parent": change_lines("event message_start", pop_key("parent_tool_use_id")),
    "start-without-usage": change_lines(
        "event message_start", pop_key("event", "message", "usage")
    ),
    "delta-without-usage": change_lines("event message_delta", set_key({}, "event", "usage")),
    # The control protocol.
    "no-models": _change_initialize(set_key([], "models")),
    "no-account": _change_initialize(pop_key("account")),
    "no-pre-hook": drop_lines("conform_before"),
    "no-stop-hook": drop_lines("conform_stop"),
    "hook-without-event": change_lines("conform_before", set_key({}, "request", "input")),
}
