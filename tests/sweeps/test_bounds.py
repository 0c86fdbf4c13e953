"""The shim's memory is bounded. A flood of any Turn method, of any vendor event or of any frontend
line does not enlarge it. No line, not even the result, is longer than its limit.

Memory is measured as everything that can be reached from an object.
"""

import gc
import itertools
import json
import sys
import types
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from fixture_cases import SEEDS, list_fixture_cases
from policy_builder import build_evaluator
from stream_invariants import check_turns
from stream_lines import find_result
from sweeps import loop_over_rows
from turn_stage import Stage, build_session_state, build_turn_config
from yume_stream import FlatStage, summarize_flat_lines

from shim.adapters import (
    claude_flat_stream,
    claude_passthrough,
    claude_protocol_stream,
    cursor_stream,
    get_adapter,
    qwen_stream,
)
from shim.conversation.drivers.open_translation import STABLE_ID_PREFIX, STABLE_SESSION_ID
from shim.core.adapter.child_stream import ChildStream
from shim.core.claude import usage
from shim.core.claude.control import ControlSession, session_hooks
from shim.core.claude.hooks import answers, feedback
from shim.core.claude.hooks.callbacks import HookEvent
from shim.core.claude.permissions import PermissionRequest
from shim.core.claude.writer import TERMINATORS, StreamJsonWriter
from shim.core.reading import json_text
from shim.core.reading.json_text import dump_json
from shim.core.turn import (
    assistant_message,
    context,
    open_calls,
    permission_denials,
    permission_requests,
    subagents,
    tool_calls,
)
from shim.core.turn.outcome import ChildExit

LINE_BYTES = 10_000  # the smallest limit that can be configured
FEW = 20  # the limit of every counted collection, for short floods
FLOOD = 100
SAMPLES = 2
NUMBER = 987_654_321_987  # replaces a number that changes with each event
SLACK_BYTES = 15_000  # tables grow in steps
NOT_MEMORY = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType)


def reachable(*roots: object) -> int:
    """Return the bytes of everything that can be reached from the roots."""
    visited_ids: set[int] = set()
    waiting: list[object] = list(roots)
    total = 0
    while waiting:
        value = waiting.pop()
        if id(value) in visited_ids or isinstance(value, NOT_MEMORY):
            continue
        visited_ids.add(id(value))
        total += sys.getsizeof(value)
        waiting.extend(gc.get_referents(value))
    return total


def check_flat(
    measure: Callable[[], int], step: Callable[[int], object], flood: int = FLOOD
) -> None:
    """Check that a second flood of the same size does not increase the memory."""
    numbers = itertools.count()
    peaks = []
    for _ in range(2):
        peak = 0
        for _ in range(SAMPLES):
            for _ in range(flood // SAMPLES):
                step(next(numbers))
            peak = max(peak, measure())
        peaks.append(peak)
    first, second = peaks
    assert second <= first * 1.05 + SLACK_BYTES, (
        f"{first} bytes after {flood}, {second} after {2 * flood}"
    )


LIMITS = [
    (context, "MAX_USED_IDS"),
    (permission_denials, "MAX_USED_IDS"),
    (tool_calls, "MAX_USED_IDS"),
    (tool_calls, "MAX_EARLY_RESULTS"),
    (permission_requests, "MAX_PERMISSION_REQUESTS"),
    (tool_calls, "MAX_OPEN_CALLS"),
    (open_calls, "MAX_ENDED_CALLS"),
    (permission_denials, "MAX_DENIALS"),
    (usage, "MAX_MODELS"),
    (assistant_message, "MAX_BLOCKS"),
    (subagents, "MAX_SUBAGENT_CALLS"),
    (assistant_message, "MAX_MESSAGE_BLOCKS"),
    (answers, "MAX_OPEN_HOOKS"),
    (session_hooks, "MAX_OPEN_HOOKS"),
    (feedback, "MAX_TEXTS"),
    (claude_passthrough, "MAX_FOLLOWED_CALLS"),
    (claude_protocol_stream, "MAX_STREAMED_BLOCKS"),
    (claude_protocol_stream, "MAX_PENDING_REQUESTS"),
    (cursor_stream, "MAX_TODOS"),
]
BYTES = [
    (assistant_message, "MAX_MESSAGE_CHARS"),
    (assistant_message, "MAX_BLOCK_CHARS"),
    (tool_calls, "MAX_OPEN_CALL_BYTES"),
    (cursor_stream, "MAX_PENDING_CHARS"),
    (qwen_stream, "MAX_ERROR_CHARS"),
]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce every limit."""
    for module, name in LIMITS:
        assert 10 <= getattr(module, name) <= 100_000
        monkeypatch.setattr(module, name, FEW)
    for module, name in BYTES:
        assert getattr(module, name) <= 16 * 1024 * 1024
        monkeypatch.setattr(module, name, 10_000)


# -- the Turn --------------------------------------------------------------------------------------

LONG = "x" * 3000


def once(stage: Stage, name: str, /, *args: Any, **kwargs: Any) -> None:
    getattr(stage.turn, name)(*args, **kwargs)


def ask_permission(stage: Stage, number: int) -> None:
    call_id = f"t{number}"
    stage.turn.request_permission(f"r{number}", call_id, "Bash", {"command": LONG}, ("shell", {}))


def ask_and_take_permission(stage: Stage, number: int) -> None:
    ask_permission(stage, number)
    stage.turn.permission_requests.pending = []


def refuse_call(stage: Stage, number: int) -> None:
    stage.turn.add_tool_call(f"t{number}", "Bash", {})
    stage.turn.record_permission_denial(
        PermissionRequest(f"r{number}", f"t{number}", "Bash", {"a": LONG}, "shell", {}),
        LONG,
    )


def write_overlapping_blocks(stage: Stage, number: int) -> None:
    stage.turn.add_text("a", 0)
    stage.turn.add_thinking("b", 1)


def answer_call(stage: Stage, number: int) -> None:
    stage.turn.add_tool_call(f"t{number}", "Write", {"content": LONG})
    stage.turn.add_tool_result(f"t{number}", LONG)


def answer_nested_call(stage: Stage, number: int) -> None:
    child = stage.turn.get_subagent("t")
    child.add_tool_call(f"n{number}" + LONG, "Read", {"path": LONG})
    child.add_tool_result(f"n{number}" + LONG, LONG)


def spend_tokens(stage: Stage, number: int) -> None:
    stage.turn.start_message(model=f"m{number}" * 30)
    stage.turn.add_block("a")
    stage.turn.end_message({"input_tokens": 1, "output_tokens": 1})


FLOODS: dict[str, Callable[[Stage, int], None]] = {
    "calls that stay open": lambda stage, n: once(
        stage, "add_tool_call", f"t{n}", "Bash", {"command": "ls"}
    ),
    "large calls that stay open": lambda stage, n: once(
        stage, "add_tool_call", f"t{n}", "Write", {"content": LONG}
    ),
    "calls with odd arguments": lambda stage, n: once(
        stage, "add_tool_call", f"t{n}", "Write", {f"k{n}": [n] * 300}
    ),
    "calls with long ids": lambda stage, n: once(
        stage, "add_tool_call", f"{n}" + LONG, "Bash" + LONG, {}
    ),
    "calls answered": answer_call,
    "the same id again and again": lambda stage, n: (
        once(stage, "add_tool_call", "t", "Bash", {}),
        once(stage, "add_tool_result", "t", "ok"),
    )[0],
    "hidden calls": lambda stage, n: once(stage, "add_tool_call", f"t{n}" + LONG, "Hidden", {}),
    "results before calls": lambda stage, n: once(stage, "add_tool_result", f"t{n}" + LONG, LONG),
    "large results before calls": lambda stage, n: once(
        stage, "add_tool_result", f"t{n}", LONG * 20
    ),
    "results without calls": lambda stage, n: once(
        stage, "add_tool_result", f"t{n}", LONG, name="Read", tool_input={}
    ),
    "denials": lambda stage, n: once(
        stage, "add_denial", f"t{n}" + LONG, "Bash" + LONG, {"command": LONG}
    ),
    "questions": ask_permission,
    "questions that are taken": ask_and_take_permission,
    "refusals": refuse_call,
    "nested calls": lambda stage, n: stage.turn.get_subagent("t").add_tool_call(
        f"n{n}" + LONG, "Read", {"path": LONG}
    ),
    "nested calls answered": answer_nested_call,
    "nested parents": lambda stage, n: stage.turn.get_subagent(f"p{n}").write_text_message("a"),
    "nested results": lambda stage, n: stage.turn.get_subagent("t").add_tool_result(f"n{n}", LONG),
    "models": spend_tokens,
    "text of one block": lambda stage, n: once(stage, "add_text", LONG, 0),
    "text of no block": lambda stage, n: once(stage, "add_text", LONG),
    "blocks of one reply": lambda stage, n: once(stage, "add_text", "a" * 20, n),
    "overlapping blocks": write_overlapping_blocks,
    "whole blocks": lambda stage, n: once(stage, "add_block", LONG),
    "snapshots": lambda stage, n: once(stage, "update_text", LONG, n),
    "a snapshot that grows": lambda stage, n: once(stage, "update_text", "a" * n, 0),
    "thinking": lambda stage, n: once(stage, "add_thinking", LONG, 0),
    "replies taken back": lambda stage, n: (
        once(stage, "add_text", f"{n}" + LONG, n),
        once(stage, "retract_message"),
    )[0],
    "sessions": lambda stage, n: once(
        stage, "record_vendor_session_info", session_id=f"s{n}", model=f"m{n}", cwd=LONG
    ),
    "notes": lambda stage, n: once(stage, "write_system_event", f"note{n}", **{f"k{n}": LONG}),
    "unknown events": lambda stage, n: once(stage, "record_unknown_event", f"kind{n}" + LONG, LONG),
    "verdicts": lambda stage, n: once(stage, "record_failure", f"{n} it broke", detail=LONG),
    "retries": lambda stage, n: once(stage, "write_retry", n, n, n, "it broke"),
}


@pytest.mark.parametrize("partial", [False, True], ids=["whole", "partial"])
@loop_over_rows("name", FLOODS)
def test_repeated_turn_method_does_not_grow_memory(small, name, partial):
    stage = Stage(partial=partial, limit=LINE_BYTES, evaluator=build_evaluator(hidden=["Hidden"]))
    stage.turn.record_vendor_session_info(session_id="s")
    chunks = []

    def step(number: int) -> None:
        FLOODS[name](stage, number)
        chunks.append(stage.writer.take_bytes())

    check_flat(lambda: reachable(stage.turn), step)
    stage.turn.close(ChildExit(code=0), "")
    output = b"".join(chunks) + stage.writer.take_bytes()
    assert max(map(len, output.split(b"\n"))) <= LINE_BYTES
    check_turns(output, partial)


@loop_over_rows("name", FLOODS)
def test_repeated_turn_method_does_not_grow_memory_across_turns(small, name):
    stage = Stage(limit=LINE_BYTES)

    def step(number: int) -> None:
        FLOODS[name](stage, number)
        if number % 5 == 4:
            stage.turn.close(ChildExit(code=0), "")
            stage.turn = stage.turn.create_next()
            stage.diagnostics.clear()
        stage.writer.take_bytes()

    check_flat(lambda: reachable(stage.turn), step)


# -- every vendor's translator ---------------------------------------------------------------------

PADDING = 600
IDENTITIES = ("id", "_id", "Id", "key", "name", "model", "uuid", "content", "index")


@cache
def kinds(vendor: str) -> dict[str, dict[str, Any]]:
    """Return the first event of every kind in a vendor's fixtures."""
    events: dict[str, dict[str, Any]] = {}
    for case in list_fixture_cases(vendor):
        for event in case.parse_events():
            if isinstance(event, dict) and len(json.dumps(event)) < 3000:
                events.setdefault(_kind(event), event)
    return events


def _kind(event: dict[str, Any]) -> str:
    """Return the key by which a vendor tells events apart: the nested types, and the names of tools
    and queries.
    """
    parts = [str(event.get("type")), str(event.get("subtype", ""))]
    for inner in (
        event.get("message"),
        event.get("event"),
        event.get("assistantMessageEvent"),
        event.get("request"),
    ):
        if isinstance(inner, dict):
            parts += [
                str(inner.get(name, "")) for name in ("type", "role", "stopReason", "subtype")
            ]
            content = inner.get("content")
            parts += (
                [str(block.get("type")) for block in content[:1]]
                if isinstance(content, list)
                else []
            )
            parts += [
                str(inner[name].get("type"))
                for name in ("delta", "content_block")
                if isinstance(inner.get(name), dict)
            ]
    parts += list(event.get("tool_call") or event.get("query") or ())[:1]
    return "/".join(part for part in parts if part)


def renumber_event(value: Any, number: int, key: str = "") -> Any:
    """Return the event with other ids, names and contents."""
    if isinstance(value, dict):
        return {name: renumber_event(item, number, name) for name, item in value.items()}
    if isinstance(value, list):
        return [renumber_event(item, number, key) for item in value]
    if isinstance(value, str) and key.endswith(IDENTITIES) and key not in ("type", "session_id"):
        return f"{value}-{number}"
    if isinstance(value, str) and key in ("text", "thinking", "delta", "output", "error"):
        return value + "x" * PADDING
    if isinstance(value, int) and not isinstance(value, bool) and key in ("index", "contentIndex"):
        return number
    return value


def vendor_floods() -> Iterator[tuple[str, str]]:
    return ((vendor, kind) for vendor in (*SEEDS, "claude") for kind in kinds(vendor))


def open_small_translation(vendor: str, *, partial: bool = False) -> ChildStream:
    """Create a translation with the smallest lines, in the middle of a turn."""
    writer = StreamJsonWriter(
        STABLE_ID_PREFIX,
        writes_partial_messages=partial,
        terminator=TERMINATORS["message_stop"],
        max_line_bytes=LINE_BYTES,
    )
    agreed = build_turn_config(vendor, can_retract=get_adapter(vendor).abilities.can_repeat_reply)
    return ChildStream(get_adapter(vendor).translator_class, agreed, writer)


def check_events(translation: ChildStream, *events: dict[str, Any]) -> None:
    """Check that repeated events with changing ids enlarge nothing and that every line is short."""
    longest = 0
    placeholder = b"%d" % NUMBER
    lines = [json.dumps(renumber_event(event, NUMBER)).encode() + b"\n" for event in events]

    def step(number: int) -> None:
        nonlocal longest
        for line in lines:
            output = translation.feed(line.replace(placeholder, b"%d" % number))[0]
            longest = max(longest, *map(len, output.split(b"\n")))

    check_flat(lambda: reachable(translation), step)
    output = translation.close(ChildExit(code=0), "")[0]
    if translation.turn.config.vendor.name != "claude":  # a real claude's lines are not limited
        assert max(longest, *map(len, output.split(b"\n"))) <= LINE_BYTES


@loop_over_rows(("vendor", "kind"), vendor_floods())
def test_repeated_vendor_event_does_not_grow_memory(small, vendor, kind):
    check_events(open_small_translation(vendor, partial=len(kind) % 2 == 0), kinds(vendor)[kind])


def stream(**event: Any) -> dict[str, Any]:
    return {"type": "stream_event", "event": event}


def delta(text: str) -> dict[str, Any]:
    return stream(type="content_block_delta", delta={"type": "text_delta", "text": text})


def todo(**item: Any) -> dict[str, Any]:
    tool_input = {
        "merge": True,
        "todos": [{"content": "do", "status": "TODO_STATUS_PENDING"} | item],
    }
    call = {"updateTodosToolCall": {"args": tool_input}}
    return {"type": "tool_call", "subtype": "completed", "call_id": "c", "tool_call": call}


LASTING = {
    "blocks that never end in a reply": ("qwen", [stream(type="content_block_start"), delta("a")]),
    "an error that never ends": ("qwen", [delta("[API Error: ")]),
    "requests that nobody answers": (
        "qwen",
        [{"type": "control_request", "request_id": "r", "request": {"subtype": "odd" * 50}}],
    ),
    "questions that nobody answers": (
        "qwen",
        [
            {
                "type": "control_request",
                "request_id": "r",
                "request": {
                    "subtype": "can_use_tool",
                    "tool_name": "Bash",
                    "tool_use_id": "t",
                    "input": {"text": ""},
                },
            }
        ],
    ),
    "a segment that never ends": (
        "cursor",
        [
            {
                "type": "assistant",
                "timestamp_ms": 1,
                "message": {"content": [{"type": "text", "text": "a"}]},
            }
        ],
    ),
    "todos": ("cursor", [todo(id="1")]),
    "long todos": ("cursor", [todo(id="1", text="")]),
    "odd todos": ("cursor", [todo(id="1", key={"text": ""})]),
}


@pytest.mark.parametrize("partial", [False, True], ids=["whole", "partial"])
@pytest.mark.parametrize("name", LASTING)
def test_vendor_state_that_never_ends_does_not_grow_memory(small, name, partial):
    vendor, events = LASTING[name]
    check_events(open_small_translation(vendor, partial=partial), *events)


# -- the frontend ----------------------------------------------------------------------------------


def create_control(**fields: Any) -> ControlSession:
    """Create a frontend with a hook for every call, in the middle of a turn."""
    minted = itertools.count()
    settings = {
        "display_name": "demo",
        "session_id": STABLE_SESSION_ID,
        "mode": "default",
        "answers_prompts": True,
        "asks_permissions": True,
    }
    control = ControlSession(
        build_session_state(**(settings | fields), max_line_bytes=LINE_BYTES),
        lambda: f"id{next(minted)}",
        lambda: "now",
    )
    hooks = {event: [{"hookCallbackIds": ["h1"]}] for event in ("PreToolUse", "PostToolUse")}
    request = {"subtype": "initialize", "hooks": hooks}
    control.receive_line(
        json.dumps({"type": "control_request", "request_id": "r", "request": request}).encode()
    )
    control.start_turn("go")
    return control


def run_call(control: ControlSession, number: int) -> None:
    control.hooks.send_callbacks(HookEvent("PreToolUse", f"t{number}", "Bash", {"command": LONG}))
    control.hooks.send_callbacks(
        HookEvent("PostToolUse", f"t{number}", "Bash", {"command": LONG}, LONG)
    )
    control.hooks.record_executed_call(f"t{number}" + LONG)


def deny_by_hook(control: ControlSession, number: int) -> None:
    control.hooks.send_callbacks(HookEvent("PreToolUse", f"t{number}", "Bash", {"command": LONG}))
    request_id = json.loads(control.take_output().splitlines()[-1])["request_id"]
    decision = {
        "hookSpecificOutput": {"permissionDecision": "deny", "permissionDecisionReason": LONG}
    }
    answer = {"subtype": "success", "request_id": request_id, "response": decision}
    control.receive_line(json.dumps({"type": "control_response", "response": answer}).encode())


def send_odd_request(control: ControlSession, number: int) -> None:
    request = {"subtype": f"odd{number}", "text": LONG}
    control.receive_line(
        json.dumps(
            {"type": "control_request", "request_id": f"r{number}", "request": request}
        ).encode()
    )


def send_noise(control: ControlSession, number: int) -> None:
    control.receive_line(b"no JSON" + LONG.encode())
    control.warnings.clear()


CONTROL_TRAFFIC = {
    "hooks that are never answered": run_call,
    "hooks that deny": deny_by_hook,
    "requests": send_odd_request,
    "noise": send_noise,
}


@pytest.mark.parametrize("asks", [True, False], ids=["asks", "runs"])
@pytest.mark.parametrize("name", CONTROL_TRAFFIC)
def test_repeated_control_traffic_does_not_grow_memory(small, name, asks):
    control = create_control(asks_permissions=asks)

    def step(number: int) -> None:
        CONTROL_TRAFFIC[name](control, number)
        control.take_output()

    check_flat(lambda: reachable(control), step)


# -- the real limits -------------------------------------------------------------------------------

MANY = 4000  # more than may be open, pending or denied


def test_result_stays_within_the_line_limit_for_any_number_of_entries():
    stage = Stage(limit=LINE_BYTES)
    for number in range(MANY):
        stage.turn.add_tool_call(f"t{number}", "Bash", {"command": "ls"})
        stage.turn.add_denial(f"t{number}", "Bash", {"command": "ls"})
        stage.turn.record_unknown_event(f"\x01{number}" * 20)
        stage.diagnostics.record(f"\x02{number}" * 20)
        if number % 40 == 0:
            stage.turn.start_message(model=f"\x03{number}" * 20)
            stage.turn.add_block("a")
            stage.turn.end_message({"input_tokens": 1, "output_tokens": 1})
    stage.turn.close(ChildExit(code=0), "")
    data = stage.writer.take_bytes()
    assert max(map(len, data.split(b"\n"))) <= LINE_BYTES
    (turn,) = check_turns(data, partial=False)
    result = find_result(turn)
    assert (
        result["permission_denials"]
        and result["modelUsage"]
        and result["shim"]["cause"] == "truncated"
    )
    assert sum(line["type"] == "user" for line in turn) == MANY, "every call has its result"
    assert result["usage"]["output_tokens"] == MANY // 40, "nothing is lost of the sum"


def test_memory_of_large_open_calls_is_bounded():
    stage = Stage(limit=1_000_000)
    for number in range(150):
        stage.turn.add_tool_call(f"t{number}", "Write", {"content": f"{number}" * 100_000})
        stage.writer.take_bytes()
    assert reachable(stage.turn) < 2 * tool_calls.MAX_OPEN_CALL_BYTES
    assert f"t{149}" in stage.turn.open_calls, "the newest is the one that may still be answered"


def test_memory_of_early_results_and_denials_is_bounded():
    stage = Stage(limit=LINE_BYTES)
    for number in range(tool_calls.MAX_EARLY_RESULTS):
        stage.turn.add_tool_result(f"e{number}", f"{number}" * 200_000)
    for number in range(permission_denials.MAX_DENIALS):
        stage.turn.add_denial(f"d{number}", "Write", {"content": f"{number}" * 200_000})
    assert reachable(stage.turn) < 1_500_000
    assert len(stage.finish_with_result()["permission_denials"]) > 10


@pytest.mark.parametrize(
    "value", [[[1]] * 50_000, {f"k{n}": n for n in range(50_000)}, ["x"] * 50_000], ids=type
)
def test_line_with_long_collections_is_truncated_to_valid_json(value):
    """Truncated strings are not enough here. A list stays a list, and an object stays an object."""
    writer = StreamJsonWriter(STABLE_ID_PREFIX, max_line_bytes=LINE_BYTES)
    writer.write_init_message("s", {"tools": list(map(str, range(50_000)))})
    writer.write_system_message("note", {"value": value})
    stage = Stage(limit=LINE_BYTES)
    stage.turn.get_subagent("t").add_tool_call("n", "Odd", {"value": value})
    stage.turn.record_turn_end(structured_output=value, result="x")
    stage.turn.close(ChildExit(code=0), "")
    for line in (writer.take_bytes() + stage.writer.take_bytes()).splitlines():
        assert len(line) < LINE_BYTES
        event = json.loads(line)
        assert event["type"] in ("system", "assistant", "user", "result", "message_stop")
        if "message" in event:
            assert event["message"]["content"][0]["type"]
        if "value" in event:
            assert type(event["value"]) is type(value) and event["value"]


def test_full_text_after_a_long_stream_emits_only_the_new_text(small):
    """Only the length of the emitted text of a long block is stored."""
    stage = Stage(partial=True, limit=LINE_BYTES)
    parts = [f"word {number} \U0001f600 " for number in range(3000)]
    for part in parts:
        stage.turn.add_text(part[:8], 0)
        stage.turn.add_text(part[8:], 0)
    stage.turn.update_text("".join(parts) + "the end", 0)
    stage.turn.record_turn_end()
    stage.turn.close(ChildExit(code=0), "")
    deltas = [
        line["event"]["delta"] for line in stage.take_lines() if "delta" in line.get("event", {})
    ]
    assert "".join(delta.get("text", "") for delta in deltas) == "".join(parts) + "the end"


def test_streamed_blocks_of_an_unfinished_qwen_message_are_bounded():
    translation = open_small_translation("qwen")
    for _ in range(claude_protocol_stream.MAX_STREAMED_BLOCKS + 100):
        translation.feed(b"".join(json.dumps(event).encode() + b"\n" for event in LASTING_BLOCKS))
    assert (
        len(translation._dispatcher.translator._streamed_blocks)
        == claude_protocol_stream.MAX_STREAMED_BLOCKS
    )


LASTING_BLOCKS = LASTING["blocks that never end in a reply"][1]


def test_text_of_an_unfinished_claude_block_is_bounded():
    translation = open_small_translation("claude", partial=True)
    block_start = stream(
        type="content_block_start", index=0, content_block={"type": "text", "text": ""}
    )
    for event in (block_start, *[stream(index=0, **delta("x" * PADDING)["event"])] * 200):
        translation.feed(json.dumps(event).encode() + b"\n")
    assert reachable(translation.turn.text_blocks.fragments) < 2 * LINE_BYTES


def test_call_id_reused_while_its_first_call_is_queued_preserves_the_order(small):
    stage = FlatStage()
    stage.turn.record_vendor_session_info(session_id=STABLE_SESSION_ID)
    stage.turn.add_tool_call("open", "Bash", {})
    for call_id in ("a", *(f"b{number}" for number in range(3 * context.MAX_USED_IDS)), "a"):
        stage.turn.add_tool_call(call_id, "Bash", {})
        stage.turn.add_tool_result(call_id, "")
    stage.turn.record_turn_end()
    summaries = summarize_flat_lines(stage.finish_turn())
    assert summaries[-1] == "message_stop"


def test_open_calls_near_the_size_limit_are_not_measured_for_each_new_call(monkeypatch):
    stage = Stage()
    for number in range(40):
        stage.turn.add_tool_call(f"b{number}", "Bash", {"a": "x" * 5000})
    size = sum(len(dump_json(call[2])) for call in stage.turn.open_calls.values())
    monkeypatch.setattr(tool_calls, "MAX_OPEN_CALL_BYTES", size + 10)
    measured = []
    monkeypatch.setattr(
        tool_calls, "dump_json", lambda value: measured.append(value) or dump_json(value)
    )
    for number in range(500):
        stage.turn.add_tool_call(f"s{number}", "Bash", {})
        stage.turn.add_tool_result(f"s{number}", "")
    assert len(measured) < 200


def test_long_integers_of_a_line_are_searched_once(monkeypatch):
    looked = []
    monkeypatch.setattr(
        json_text, "find_long_integer_digits_by_float", lambda line: looked.append(line) or {}
    )
    stage = Stage()
    stage.diagnostics.line = b"a line"
    for number in range(10):
        stage.turn.add_tool_call(f"t{number}", "Bash", {"a": 1e30})
    assert looked == [b"a line"]


def test_streamed_blocks_of_a_flat_claude_message_are_bounded(monkeypatch):
    monkeypatch.setattr(claude_protocol_stream, "MAX_STREAMED_BLOCKS", FEW)
    flat = claude_flat_stream.FlatClaudeTranslator(Stage().turn)
    inner = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}}
    for _ in range(FLOOD):
        flat.on_stream_event({"event": {"type": "content_block_start"}})
        flat.on_stream_event({"event": inner})
    assert len(flat._streamed_blocks) == FEW
