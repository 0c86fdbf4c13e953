"""The rules for any stream in Yume's dialect, and helpers to produce one (Yume's reference, R1 to
R15).
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from fixture_cases import FROM_CASE, Case, _FromCase
from stream_lines import Line
from turn_stage import build_turn_config

from shim.conversation.drivers.open_translation import (
    STABLE_ID_PREFIX,
    create_standalone_child_stream,
)
from shim.core.adapter.child_stream import ChildStream
from shim.core.reading.diagnostics import Diagnostics
from shim.core.turn.context import ConversationState
from shim.core.turn.outcome import ChildExit
from shim.core.turn.turn import Turn
from shim.core.yume.encoder import YumeEncoder

SCENARIOS = (
    "text-only",
    "single-tool",
    "multi-tool",
    "parallel-tool",
    "tool-error",
    "interrupt",
    "auth-failure",
    "rate-limit",
    "session-resume",
    "stream-disconnect",
)
MOST_BYTES = 100_000
STOP: Line = {"type": "message_stop"}
SUBTYPES = ("init", "session_id", "compact_boundary", "error")
NUMBERS = (
    "input_tokens",
    "output_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
)


def translate_flat(
    case: Case,
    child_exit: ChildExit | _FromCase | None = FROM_CASE,
    data: bytes | None = None,
    chunks: Iterable[bytes] | None = None,
) -> tuple[bytes, ChildStream]:
    """Return the shim's output for a case in Yume's dialect, with stable ids."""
    translation = create_standalone_child_stream(case.vendor, dialect="yume", stable_ids=True)
    if chunks is None:
        chunks = (case.data if data is None else data,)
    outputs = [translation.feed(chunk)[0] for chunk in chunks]
    if (
        case.metadata.get("yume") == "interrupt"
        and translation.turn.outcome_tracker.outcome is None
    ):
        translation.turn.record_interrupt()  # caused by the frontend, so no vendor's recording shows it
    ending = case.exit if isinstance(child_exit, _FromCase) else child_exit
    outputs.append(translation.close(ending, case.stderr)[0])
    return b"".join(outputs), translation


class FlatStage:
    """A Turn with Yume's writer and stable ids."""

    def __init__(self, *, limit: int = 0, **config_fields: Any) -> None:
        self.encoder = YumeEncoder(STABLE_ID_PREFIX, max_line_bytes=limit)
        self.turn = Turn(
            self.encoder,
            build_turn_config(**{"can_retry": True} | config_fields),
            ConversationState(),
            Diagnostics(),
        )
        self.bytes = b""

    def take_lines(self) -> list[Line]:
        """Return the lines since the previous call."""
        data = self.encoder.take_bytes()
        self.bytes += data
        return [json.loads(line) for line in data.splitlines()]

    def finish_turn(self, code: int | None = 0, stderr: str = "") -> list[Line]:
        """End the turn. Return the lines that were not taken yet."""
        self.turn.close(None if code is None else ChildExit(code=code), stderr)
        return self.take_lines()


def summarize_flat_lines(lines: Iterable[Line]) -> list[str]:
    """Return a flat stream as short texts, one for each line."""
    return [_summarize_line(line) for line in lines]


def _summarize_line(line: Line) -> str:
    kind = line["type"]
    parent = f"{line['parent_tool_use_id']}>" if "parent_tool_use_id" in line else ""
    formatters = {
        "text": lambda: f"text {line['content']}",
        "thinking": lambda: f"think {line['thought']}",
        "tool_use": lambda: f"call {line['id']} {line['name']}",
        "tool_result": lambda: (
            f"{'failed' if line['is_error'] else 'result'} {line['tool_use_id']} {line['content']}"
        ),
        "system": lambda: line["subtype"],
        "error": lambda: f"error {line['code']}",
        "result": lambda: f"result {line['subtype']}",
    }
    return parent + (formatters[kind]() if kind in formatters else kind)


def check_flat(data: bytes, *, exposed: bool = False) -> list[list[Line]]:
    """Assert the rules that hold for every stream and any output of a vendor. Return the turns.

    With `exposed`, a call may be announced while another call is open, because the frontend was
    asked about it.
    """
    text = data.decode("utf-8")
    assert text.endswith("\n") and "\r" not in text
    assert not any(separator in text for separator in ("\u2028", "\u2029", "\x85")), (
        "separators are escaped"
    )
    lines = []
    for raw in data.split(b"\n")[:-1]:
        assert len(raw) + 1 < MOST_BYTES, f"a line of {len(raw)} bytes: {raw[:80]!r}"
        line = json.loads(raw, parse_constant=_reject_constant)
        json.dumps(line, ensure_ascii=False).encode("utf-8")
        _check_shape(line)
        lines.append(line)
    inits = [
        number
        for number, line in enumerate(lines)
        if line.get("subtype") == "init" and line["type"] == "system"
    ]
    assert inits == [0], f"R1: init once, and first, not at {inits}"
    assert lines[-1] == STOP, "R7: the stream ends with the terminator"
    _check_ids(lines)
    turns: list[list[Line]] = [[]]
    for line in lines:
        turns[-1].append(line)
        if line == STOP:
            turns.append([])
    assert turns.pop() == []
    for turn in turns:
        _check_end(turn)
    _check_order(lines, exposed)
    return turns


def _reject_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def _check_ids(lines: Sequence[Line]) -> None:
    for kind in ("tool_use", "text"):
        ids = [line["id"] for line in lines if line["type"] == kind]
        assert len(set(ids)) == len(ids), f"R4: no id of a {kind} is used twice"


def _check_end(turn: Sequence[Line]) -> None:
    kinds = [line["type"] for line in turn]
    assert kinds.count("result") == 1, f"R7: one result, not {kinds.count('result')}"
    assert kinds[-2:] == ["result", "message_stop"], (
        f"R7: the result is the last word, not {kinds[-3:]}"
    )
    assert kinds.count("usage") == 1, "R6: one usage"
    result = turn[-2]
    failed = [line for line in turn if line["type"] == "error" or line.get("subtype") == "error"]
    if result["subtype"] == "cancelled":
        assert kinds[-3] == "interrupt" and result["is_error"] and not failed, "R9"
    else:
        assert "interrupt" not in kinds
        assert bool(failed) == result["is_error"] and len(failed) <= 1, "R10: an error is told once"
        assert result["is_error"] == (result["subtype"] != "success")
    assert result["is_error"] == (result["shim"]["cause"] != "clean")
    assert result["usage"] == {
        name: value for name, value in turn[kinds.index("usage")].items() if name != "type"
    }


def _check_order(lines: Sequence[Line], exposed: bool) -> None:
    """Assert R3 for each agent: a call is followed by its result before other lines."""
    call_ids: set[str] = set()
    answered: set[str] = set()
    waiting: dict[object, list[str]] = {}
    for line in lines:
        kind = line["type"]
        parent_id = line.get("parent_tool_use_id", "")
        open_calls = waiting.setdefault(parent_id, [])
        if kind == "tool_result":
            assert line["tool_use_id"] in open_calls, (
                f"R3: a result for {line['tool_use_id']}, which is not open"
            )
            open_calls.remove(line["tool_use_id"])
            answered.add(line["tool_use_id"])
        elif kind in ("text", "thinking", "tool_use", "usage", "result"):
            allowed = exposed and kind == "tool_use"
            assert not open_calls or allowed, f"R3: {kind} before the result of {open_calls}"
        if kind == "tool_use":
            call_ids.add(line["id"])
            open_calls.append(line["id"])
        if isinstance(parent_id, str) and parent_id:
            assert parent_id in call_ids, "a nested agent speaks behind its call"
        if kind == "result":
            assert call_ids == answered, f"R3: calls without a result: {call_ids - answered}"


def _check_shape(line: Line) -> None:
    kind = line["type"]
    keys = set(line) - {"type"}
    parent = {"parent_tool_use_id"} & keys
    if parent:
        assert kind in ("text", "thinking", "tool_use", "tool_result")
        keys -= parent
    if kind == "text":
        assert (
            keys == {"content", "id"}
            and isinstance(line["content"], str)
            and line["id"].startswith("chunk-")
        )
        assert line["content"]
    elif kind == "thinking":
        assert (
            keys == {"is_thinking", "thought"}
            and line["is_thinking"] is True
            and isinstance(line["thought"], str)
        )
    elif kind == "tool_use":
        assert keys == {"id", "name", "input"} and isinstance(line["input"], dict), "R5"
        assert isinstance(line["id"], str) and isinstance(line["name"], str)
    elif kind == "tool_result":
        assert keys == {"tool_use_id", "content", "is_error"}
        assert isinstance(line["content"], str) and isinstance(line["is_error"], bool)
    elif kind == "usage":
        _check_usage({name: line[name] for name in keys})
    elif kind == "system":
        assert line["subtype"] in SUBTYPES and isinstance(line["session_id"], str)
        if line["subtype"] == "init":
            assert all(isinstance(line[key], str) for key in ("model", "cwd", "permissionMode"))
            assert all(isinstance(tool, str) for tool in line["tools"])
        elif line["subtype"] == "compact_boundary":
            metadata = line["compact_metadata"]
            assert metadata["trigger"] in ("auto", "manual") and isinstance(
                metadata["pre_tokens"], int
            ), "R12"
        elif line["subtype"] == "error":
            assert line["message"] and line["code"] == "AUTH", "R10"
    elif kind == "error":
        assert isinstance(line["message"], str) and line["code"].isupper()
    elif kind == "result":
        assert isinstance(line["is_error"], bool) and isinstance(line["subtype"], str)
        _check_usage(line["usage"])
        assert not line["is_error"] or line["subtype"] == "cancelled" or line["errors"]
    else:
        assert line in ({"type": "interrupt"}, STOP), f"a line of type {kind}"


def _check_usage(usage: Line) -> None:
    assert set(usage) - {"estimated"} == set(NUMBERS)
    assert all(isinstance(usage[name], int) and usage[name] >= 0 for name in NUMBERS)
    assert usage.get("estimated", True) is True
    assert any(usage[name] for name in NUMBERS) or "estimated" in usage, (
        "R6: what nobody counted is marked"
    )
