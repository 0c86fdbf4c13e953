"""Defects of a claude-like command, as changes of the transcripts of one that keeps every rule of the contract.

A defect gets each line of each stream and returns the lines in its place: objects, or the bytes of a line. What no
transcript shows, such as a command that does not answer, is a defect of `fake_claude`.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

from shim.commands.conform.process import Line, Run, read_line

Object = dict[str, Any]
Edit = Callable[[str, Object], list[Object | bytes]]

LONG = b"x" * 1_100_000


def kind_of(line: Object) -> str:
    """Return what kind of line this is: its type, with the subtype or the event's type that matters to a defect."""
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


def changed(run: Run, edit: Edit) -> Run:
    """Return a run with another stream. A run that prints no stream is returned as it is."""
    if "stream-json" not in " ".join(run.argv):
        return run
    lines: list[Line] = []
    places: list[int] = []
    for line in run.lines:
        places.append(len(lines))
        if not isinstance(line.value, dict):
            lines.append(line)
            continue
        value = json.loads(line.raw)
        for given in edit(kind_of(value), value):
            raw = given if isinstance(given, bytes) else json.dumps(given).encode()
            lines.append(read_line(line.at, raw))
    places.append(len(lines))
    return dataclasses.replace(
        run,
        lines=lines,
        stdout=bytearray(b"".join(line.raw + b"\n" for line in lines)),
        marks={name: places[place] for name, place in run.marks.items()},
        sent=[dataclasses.replace(one, position=places[one.position]) for one in run.sent],
    )


# -- what may become of a line ------------------------------------------------------------------------------------


def change(kind: str, function: Callable[[Object], object]) -> Edit:
    """Change each line of a kind."""

    def edit(actual: str, line: Object) -> list[Object | bytes]:
        if actual == kind:
            function(line)
        return [line]

    return edit


def drop(*kinds: str) -> Edit:
    """Leave out each line of some kinds."""
    return lambda kind, line: [] if kind in kinds else [line]


def follow(kind: str, more: bytes) -> Edit:
    """Put a line behind each line of a kind."""
    return lambda actual, line: [line, more] if actual == kind else [line]


def pop(*keys: str) -> Callable[[Object], object]:
    def function(line: Object) -> object:
        for key in keys[:-1]:
            line = line[key]
        return line.pop(keys[-1])

    return function


def put(value: object, *keys: str) -> Callable[[Object], object]:
    def function(line: Object) -> object:
        for key in keys[:-1]:
            line = line[key]
        line[keys[-1]] = value
        return line

    return function


def first_block(line: Object) -> Object:
    block: Object = line["message"]["content"][0]
    return block


# -- the defects --------------------------------------------------------------------------------------------------


def _two_results(kind: str, line: Object) -> list[Object | bytes]:
    return [line, line] if kind == "result" else [line]


def _stop_behind_error(kind: str, line: Object) -> list[Object | bytes]:
    return [line, b'{"type":"message_stop"}'] if kind == "result" and line["is_error"] else [line]


def _no_interrupt_line(kind: str, line: Object) -> list[Object | bytes]:
    return [] if kind == "user" and "[Request interrupted by user]" in str(line) else [line]


def _state_running(kind: str, line: Object) -> list[Object | bytes]:
    return (
        [b'{"type":"system","subtype":"session_state_changed","state":"running"}', line] if kind == "init" else [line]
    )


def _other_index(line: Object) -> None:
    line["event"]["index"] += 1


def _deltas_differ(line: Object) -> None:
    if "text" in line["event"]["delta"]:
        line["event"]["delta"]["text"] += "more"


def _text_call(line: Object) -> None:
    if first_block(line)["type"] == "tool_use":
        first_block(line)["input"] = "text"


def _text_without_text(line: Object) -> None:
    first_block(line).pop("text", None)


def _interrupt_other_result(line: Object) -> None:
    if line["subtype"] == "error_during_execution":
        line["subtype"] = "error_max_turns"


def _denial_unsaid(line: Object) -> None:
    if first_block(line)["is_error"]:
        first_block(line)["content"] = "no"


def _denies_all(line: Object) -> None:
    first_block(line).update(content="conform: denied, to see that it is", is_error=True)


def _in_initialize(function: Callable[[Object], object]) -> Edit:
    """Change the body of each answer to initialize."""

    def edit(line: Object) -> None:
        body = line["response"].get("response") or {}
        if "models" in body and "commands" in body:
            function(body)

    return change("control_response", edit)


EDITS: Mapping[str, Edit] = {
    # Bytes behind the init of a turn.
    "noise": follow("init", b"debug: hello"),
    "null": follow("init", b"null"),
    "array": follow("init", b"[1]"),
    "no-type": follow("init", b'{"a":1}'),
    "half-line": follow("init", b'{"type":"system","subty'),
    "nan": follow("init", b'{"type":"system","subtype":"x","n":NaN}'),
    "bad-utf8": follow("init", b'{"type":"system","subtype":"\xff"}'),
    "long-line": follow("init", b'{"type":"system","subtype":"%s"}' % LONG),
    "long-for-yume": follow("init", b'{"type":"system","subtype":"%s"}' % LONG[:150_000]),
    "end-line": follow("init", b'{"type":"end"}'),
    "type-last": follow("init", b'{"subtype":"x","type":"conform"}'),
    "unasked-event": follow(
        "init", b'{"type":"stream_event","event":{"type":"message_stop"},"parent_tool_use_id":null}'
    ),
    # Lines.
    "no-uuid": change("assistant", pop("uuid")),
    "other-session-id": change("assistant", put("another", "session_id")),
    "init-without-tools": change("init", pop("tools")),
    "init-with-a-tool-text": change("init", put("Bash", "tools")),
    "result-without-usage": change("result", pop("usage")),
    "result-with-a-duration-text": change("result", put("1", "duration_ms")),
    "result-without-text": change("result", lambda line: line.pop("result", None)),
    "no-message-id": change("assistant", pop("message", "id")),
    "no-counts": change("assistant", put({}, "message", "usage")),
    "no-parent": change("assistant", pop("parent_tool_use_id")),
    "two-blocks": change("assistant", lambda line: line["message"]["content"].append({"type": "text", "text": ""})),
    "stop-reason": change("assistant", put("end_turn", "message", "stop_reason")),
    "content-is-text": change("assistant", put("hello", "message", "content")),
    "text-without-text": change("assistant", _text_without_text),
    "call-without-input": change("assistant", _text_call),
    "result-without-content": change("tool", lambda line: first_block(line).pop("content")),
    "result-of-nobody": change("tool", lambda line: first_block(line).update(tool_use_id="toolu_none")),
    "no-tool-use-result": change("tool", pop("tool_use_result")),
    "denial-unsaid": change("tool", _denial_unsaid),
    "denies-all": change("tool", _denies_all),
    # The order of a turn.
    "no-init": drop("init"),
    "no-result": drop("result"),
    "two-results": _two_results,
    "talk-behind-result": follow("result", b'{"type":"user","message":{"role":"user","content":"x"}}'),
    "call-unanswered": drop("tool"),
    "no-replay": drop("replay"),
    "no-terminator": drop("message_stop"),
    "stop-behind-error": _stop_behind_error,
    "no-interrupt-line": _no_interrupt_line,
    "interrupt-other-result": change("result", _interrupt_other_result),
    "state-running": _state_running,
    # Partial messages.
    "no-message-start": drop("event message_start"),
    "no-message-stop": drop("event message_stop"),
    "block-stays-open": drop("event content_block_stop"),
    "other-message": change("event message_start", put("other", "event", "message", "id")),
    "other-index": change("event content_block_delta", _other_index),
    "deltas-differ": change("event content_block_delta", _deltas_differ),
    "event-without-parent": change("event message_start", pop("parent_tool_use_id")),
    "start-without-usage": change("event message_start", pop("event", "message", "usage")),
    "delta-without-usage": change("event message_delta", put({}, "event", "usage")),
    # The control protocol.
    "no-models": _in_initialize(put([], "models")),
    "no-account": _in_initialize(pop("account")),
    "no-pre-hook": drop("conform_before"),
    "no-stop-hook": drop("conform_stop"),
    "hook-without-event": change("conform_before", put({}, "request", "input")),
}
