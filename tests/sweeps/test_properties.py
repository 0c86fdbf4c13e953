"""Invariants for any input: every fixture truncated, split, repeated, shuffled and broken, and Turn
methods in any order.

The examples are the same in every run. `HYPOTHESIS_EXAMPLES=20` multiplies their number for a long
run.
"""

import json
from functools import lru_cache
from random import Random
from typing import Any

import pytest
import sweeps
from fixture_cases import SEEDS, list_fixture_cases, split_bytes
from fixture_cases import translate_case as translate
from hypothesis import given
from hypothesis import strategies as st
from policy_builder import build_evaluator
from stream_invariants import check_frames, check_turns
from stream_lines import find_result, summarize_lines
from sweeps import (
    choose_small_cases,
    iterate_rounds,
    limit_examples,
    loop_over_cases,
    split_into_chunks,
)
from turn_stage import Stage

from shim.core.claude.writer import NO_USAGE
from shim.core.turn.outcome import ChildExit

CASES = list_fixture_cases()
BYTEWISE = 60_000  # larger fixtures are split at random positions: the tested code is the same


def check(case: Any, output: bytes, partial: bool) -> list[list[dict[str, Any]]]:
    """Check a stream. The broken lines of a real claude are passed through; every other stream must
    follow all rules.
    """
    return check_frames(output) if case.passthrough else check_turns(output, partial)


# -- the same bytes in other chunks ----------------------------------------------------------------


@loop_over_cases((case for case in CASES if len(case.data) <= BYTEWISE), quick=choose_small_cases)
def test_output_is_the_same_if_fed_byte_by_byte(case):
    expected, translation = translate(case)
    pieces, second_translation = translate(case, chunks=split_bytes(case.data))
    assert pieces == expected
    assert second_translation.diagnostics.build_report() == translation.diagnostics.build_report()


@loop_over_cases(CASES, quick=choose_small_cases)
def test_output_is_the_same_for_any_split(case):
    expected, _ = translate(case, not case.partial)
    for chance in iterate_rounds(3 if sweeps.full else 2, case):
        assert (
            translate(case, not case.partial, chunks=split_into_chunks(chance, case.data, 12))[0]
            == expected
        )


# -- the state of the end --------------------------------------------------------------------------

EXITS = [
    ChildExit(code=0),
    ChildExit(code=1),
    ChildExit(code=130),
    ChildExit(signal="SIGTERM"),
    None,
]
ENDS = {
    "acai": ("result", "task_complete", "replay_error"),
    "cake": ("result", "task_complete", "replay_error"),
    "cursor": ("result",),
    "qwen": ("result",),
    "claude": ("result",),
    # Its messages have no type, so only the exit status states the end.
    "kimi-code": (None,),
}


def ends_of(case: Any) -> tuple[object, ...]:
    """Return the event types that end a turn of a vendor. For a vendor without an entry it is the
    type of its last event.
    """
    if case.vendor in ENDS:
        return ENDS[case.vendor]
    last = [event for event in events_of(case.data) if isinstance(event, dict)][-1:]
    return tuple(event.get("type") for event in last)


def has_reported_end(vendor: str, events: list[Any], ends: tuple[object, ...]) -> bool | None:
    """Return whether the vendor reported the end of the turn after everything that it started
    (vendor pages).
    """
    ended: bool | None = False
    for event in events:
        if isinstance(event, list):
            ended = has_reported_end(vendor, event, ends) or ended
        if not isinstance(event, dict):
            continue
        kind = event.get("type")
        if event.get("jsonrpc") == "2.0" or "method" in event:
            ended = _conversation_end(event, ended)
        elif vendor == "pi":
            ended = _pi_end(kind, event, bool(ended))
        elif vendor == "qwen-rfc":
            ended = _rfc_end(kind, event, ended)
        elif kind in ends:
            ended = True
        elif kind == "system" and event.get("subtype") == "init":
            ended = False
    return ended


def _conversation_end(event: dict[str, Any], ended: bool | None) -> bool | None:
    """Return the new state. An agent's response to a prompt ends its turn, and so does codex's
    `turn/completed`. The next activity of the session starts a turn.
    """
    method, result = event.get("method"), event.get("result")
    if method == "turn/completed" or (isinstance(result, dict) and "stopReason" in result):
        return True
    return (
        False
        if method in ("session/update", "session/request_permission", "turn/started")
        else ended
    )


def _pi_end(kind: object, event: dict[str, Any], ended: bool) -> bool:
    """Return the new state. pi has no last event: a reply that stopped by itself ends the turn. A
    new run, reply or retry reopens it.
    """
    message = event.get("message")
    role = message.get("role") if isinstance(message, dict) else None
    if kind == "message_end" and role == "assistant":
        return message.get("stopReason") in ("stop", "length")
    if kind in ("agent_end", "agent_settled"):
        return not event.get("willRetry")
    if kind in ("compaction_end", "auto_compaction_end"):
        return ended and not event.get("willRetry")
    if kind in ("agent_start", "turn_start", "auto_retry_start") or (
        kind == "message_start" and role == "assistant"
    ):
        return False
    return ended


def _rfc_end(kind: object, event: dict[str, Any], ended: bool | None) -> bool | None:
    """Return the new state. The RFC has no last event: a stopped reply or a command's result ends
    the turn, and further output reopens it.

    None means that the tool of a command is running. Its result is the end.
    """
    if kind == "x-qwen-tool-display" and ended is None:
        return True if event.get("status") == "success" else None
    if kind in ("x-qwen-thought", "x-qwen-tool-display", "control_request"):
        return False
    if kind == "x-qwen-session-event":
        return ended or event.get("event") == "Finished"
    if kind == "result/command":
        done = (event.get("result") or {}).get("type")
        return None if done == "tool" else done in ("message", "dialog", "quit", "load_history")
    for choice in event.get("choices") or ():
        message = choice.get("message") or choice.get("delta") or {}
        has_content = (
            message.get("content") or message.get("tool_calls") or message.get("role") == "tool"
        )
        if choice.get("index") or not (
            has_content or (choice.get("finish_reason") and "delta" in choice)
        ):
            continue
        ended = choice.get("finish_reason") in ("stop", "length") and message.get("role") != "tool"
    return ended


def events_of(data: bytes) -> list[Any]:
    return [event for line in data.split(b"\n") for event in event_of(line)]


# a fixture is truncated at many positions, and its lines are read for each of them
@lru_cache(maxsize=1024)
def event_of(line: bytes) -> tuple[Any, ...]:
    """Return the event of a line, or an empty tuple if it is unreadable."""
    try:
        return (json.loads(line.decode("utf-8", "replace").lstrip("\ufeff"), strict=False),)
    except (ValueError, RecursionError):
        return ()


def line_ends(data: bytes, at_most: int) -> list[int]:
    """Return up to `at_most` positions after a line, evenly spread, with the first and the last."""
    ends = [position + 1 for position, byte in enumerate(data) if byte == 10] or [len(data)]
    step = max(1, len(ends) // at_most)
    return sorted({0, *ends[::step], ends[-1]})


@lru_cache(maxsize=64)
def turns_of(case: Any, partial: bool) -> list[list[dict[str, Any]]]:
    """Return the turns of a full fixture."""
    return check_frames(translate(case, partial)[0])


def check_cut(case: Any, cut: int, child_exit: ChildExit | None, partial: bool) -> None:
    prefix = case.data[:cut]
    output, _ = translate(case, partial, child_exit, prefix)
    turns = check_turns(output, partial, passthrough=case.passthrough)
    # A recording of a conversation has one turn, and so one result, per message.
    full_turns = turns_of(case, partial)
    assert len(turns) <= len(full_turns), f"cut at {cut}: no more results than messages"
    assert turns[:-1] == full_turns[: len(turns) - 1], (
        f"cut at {cut}: what has ended before the cut is said as ever"
    )
    ended = has_reported_end(case.vendor, events_of(prefix), ends_of(case))
    good_exit = child_exit is None or child_exit.code == 0
    if ended and (good_exit or case.passthrough):
        return  # The goldens cover what the vendor reported about itself.
    summary = [line[:60] for line in summarize_lines(turns[-1])[-4:]]
    assert find_result(turns[-1])["is_error"], (
        f"cut at {cut} with {child_exit}: no success without an end, but {summary}"
    )


@loop_over_cases(CASES, quick=choose_small_cases)
def test_stream_cut_after_any_line_ends_with_a_single_result(case):
    for number, cut in enumerate(line_ends(case.data, 25 if sweeps.full else 4)):
        exits = (EXITS[0], EXITS[1 + number % 4])
        for child_exit in exits if sweeps.full else exits[number // 2 % 2 :][:1]:
            check_cut(case, cut, child_exit, partial=bool(number % 2))


@loop_over_cases(CASES, quick=choose_small_cases)
def test_stream_cut_at_any_byte_ends_with_a_single_result(case):
    """P10, S1"""
    for chance in iterate_rounds(6 if sweeps.full else 2, case):
        cut = chance.randint(0, len(case.data))
        check_cut(case, cut, chance.choice(EXITS), partial=chance.random() < 0.5)


# -- broken streams --------------------------------------------------------------------------------


@loop_over_cases(CASES, quick=choose_small_cases)
def test_repeated_and_swapped_lines_preserve_the_contract(case):
    for chance in iterate_rounds(6 if sweeps.full else 2, case):
        lines = shuffle_lines(chance, case.data.split(b"\n"))
        partial = chance.random() < 0.5
        check(case, translate(case, partial, data=b"\n".join(lines))[0], partial)


def shuffle_lines(chance: Random, lines: list[bytes]) -> list[bytes]:
    """Return the lines with some repeated at other positions and some swapped."""
    for _ in range(chance.randint(1, 8)):
        here, target = chance.randrange(len(lines)), chance.randrange(len(lines))
        if chance.random() < 0.5:
            lines.insert(target, lines[here])
        else:
            lines[here], lines[target] = lines[target], lines[here]
    return lines


@loop_over_cases(CASES, quick=choose_small_cases)
def test_duplicated_lines_preserve_the_contract(case):
    twice = b"".join(line + b"\n" + line + b"\n" for line in case.data.split(b"\n"))
    for partial in (False, True):
        check(case, translate(case, partial, data=twice)[0], partial)


@loop_over_cases((case for case in CASES if case.data), quick=choose_small_cases)
def test_flipped_bytes_preserve_the_contract(case):
    """P9, P11"""
    for chance in iterate_rounds(8 if sweeps.full else 2, case):
        partial = chance.random() < 0.5
        check(
            case,
            translate(case, partial, data=flip_bytes(chance, case.data, chance.randint(1, 12)))[0],
            partial,
        )


def flip_bytes(chance: Random, data: bytes, count: int) -> bytes:
    """Return the data with `count` bytes replaced."""
    broken = bytearray(data)
    for _ in range(count):
        broken[chance.randrange(len(broken))] = chance.randrange(256)
    return bytes(broken)


ODD_VALUES: list[Any] = [
    None,
    True,
    7,
    -1,
    1.5,
    10**30,
    "",
    "x",
    "5",
    [],
    {},
    [None],
    [{}],
    {"type": "text"},
    [[["x"]]],
]


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return every path inside a JSON value, as the keys that lead to it."""
    paths = [path] if path else []
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in items:
        paths += _places(item, (*path, key))
    return paths


def _drift(event: Any, path: tuple[Any, ...], value: Any, remove: bool) -> None:
    *before, last = path
    for key in before:
        event = event[key]
    if remove:
        del event[last]
    else:
        event[last] = value


@loop_over_cases((case for case in CASES if case.vendor in SEEDS), quick=choose_small_cases)
def test_values_of_the_wrong_type_preserve_the_contract(case):
    """Vendors rename, drop and retype fields without notice (hostile-input, demands 5 and 21)."""
    for chance in iterate_rounds(25 if sweeps.full else 5, case):
        lines = [line for line in case.data.split(b"\n") if line and len(line) < 8000]
        for _ in range(chance.randint(1, 3)):
            drift(chance, lines)
        partial = chance.random() < 0.5
        check_turns(translate(case, partial, data=b"\n".join(lines))[0], partial)


def drift(chance: Random, lines: list[bytes]) -> None:
    """Replace or remove one value of one line, if there is one."""
    try:
        where = chance.randrange(len(lines))
        event = json.loads(lines[where])
        path = chance.choice(_places(event))
    except (ValueError, RecursionError, IndexError):
        return
    _drift(event, path, chance.choice(ODD_VALUES), chance.random() < 0.5)
    lines[where] = json.dumps(event).encode()


# -- Turn methods in any order ---------------------------------------------------------------------

TEXTS = st.sampled_from(
    ["a", "b", "ab", "abc", "abab", "\ud83d", "\ude00", "x\ud83d", "\ude00y", "\u2028", "é\x00"]
)
KEYS = st.sampled_from([None, None, 0, 1, "k"])
IDS = st.sampled_from(["t1", "t2", "t3", "t1~2", ""])
NAMES = st.sampled_from(["Bash", "Read", "Write", "Edit", "Hidden", "Denied", "mcp__x__y"])
ARGUMENTS = st.sampled_from(
    [{}, {"command": "ls"}, {"file_path": "/a", "content": "\ud83d", "offset": 3}, {"n": 10**30}]
)
CONTENTS = st.sampled_from(["", "out", "half \ud83d", [{"type": "text", "text": "x"}]])
USAGES = st.sampled_from([None, dict(NO_USAGE), dict.fromkeys(NO_USAGE, 3)])

VERBS = st.one_of(
    st.tuples(
        st.just("record_vendor_session_info"),
        st.fixed_dictionaries({"session_id": st.sampled_from([None, "s", "other"])}),
    ),
    st.tuples(
        st.just("start_message"),
        st.fixed_dictionaries({"model": st.sampled_from([None, "m"]), "usage": USAGES}),
    ),
    st.tuples(st.just("add_text"), st.fixed_dictionaries({"fragment": TEXTS, "block_key": KEYS})),
    st.tuples(st.just("add_thinking"), st.fixed_dictionaries({"fragment": TEXTS, "key": KEYS})),
    st.tuples(
        st.sampled_from(["add_block", "add_thinking_block"]),
        st.fixed_dictionaries({"full_text": TEXTS}),
    ),
    st.tuples(
        st.sampled_from(["update_text", "update_thinking"]),
        st.fixed_dictionaries({"full_text": TEXTS, "key": KEYS}),
    ),
    st.tuples(
        st.sampled_from(
            ["end_block", "retract_message", "record_vendor_completion", "fill_open_call_results"]
        ),
        st.just({}),
    ),
    st.tuples(
        st.just("add_tool_call"),
        st.fixed_dictionaries({"call_id": IDS, "name": NAMES, "tool_input": ARGUMENTS}),
    ),
    st.tuples(
        st.just("add_tool_result"),
        st.fixed_dictionaries(
            {"call_id": IDS, "content": CONTENTS, "is_error": st.booleans()},
            optional={"name": NAMES, "tool_input": ARGUMENTS},
        ),
    ),
    st.tuples(
        st.just("add_denial"),
        st.fixed_dictionaries({"call_id": IDS, "name": NAMES, "tool_input": ARGUMENTS}),
    ),
    st.tuples(
        st.just("end_message"),
        st.fixed_dictionaries(
            {"usage": USAGES, "stop_reason": st.sampled_from([None, "max_tokens"])}
        ),
    ),
    st.tuples(st.just("write_system_event"), st.fixed_dictionaries({"subtype": st.just("note")})),
    st.tuples(
        st.just("write_compaction"),
        st.fixed_dictionaries({"trigger": st.just("auto"), "tokens_before": st.just(9)}),
    ),
    st.tuples(st.just("record_unknown_event"), st.fixed_dictionaries({"kind": st.just("odd")})),
    st.tuples(
        st.just("record_turn_end"),
        st.fixed_dictionaries({"result": st.sampled_from([None, "told"])}),
    ),
    st.tuples(
        st.just("record_failure"),
        st.fixed_dictionaries(
            {"message": st.sampled_from(["boom", "429 slow down"])},
            optional={"kind": st.just("truncated")},
        ),
    ),
    st.tuples(st.sampled_from(["record_interrupt", "finish", "next"]), st.just({})),
    st.tuples(
        st.just("child"),
        st.fixed_dictionaries(
            {
                "parent": IDS,
                "verb": st.sampled_from(
                    [
                        "write_text_message",
                        "write_thinking_message",
                        "add_user_text",
                        "add_tool_call",
                        "add_tool_result",
                    ]
                ),
                "identity": IDS,
                "text": TEXTS,
            }
        ),
    ),
)


def perform(stage: Stage, verb: str, kwargs: dict[str, Any]) -> None:
    turn = stage.turn
    if verb == "next":
        if turn.machine.state == "closed":
            stage.turn = turn.create_next()
    elif verb == "child":
        nested = turn.get_subagent(kwargs["parent"])
        if kwargs["verb"] == "add_tool_call":
            nested.add_tool_call(kwargs["identity"], "Read", {})
        elif kwargs["verb"] == "add_tool_result":
            nested.add_tool_result(kwargs["identity"], kwargs["text"])
        else:
            getattr(nested, kwargs["verb"])(kwargs["text"])
    else:
        getattr(turn, verb)(**kwargs)


@pytest.mark.parametrize("partial", [False, True], ids=["whole", "partial"])
@limit_examples(80, full_count=1500, shrink=True)
@given(
    verbs=st.lists(VERBS, max_size=30),
    limit=st.sampled_from([None, None, 2]),
    judged=st.sampled_from([None, build_evaluator(deny=["Denied"], hidden=["Hidden"])]),
    code=st.sampled_from([0, 1, None]),
)
def test_any_order_of_turn_operations_preserves_the_contract(partial, verbs, limit, judged, code):

    stage = Stage(partial=partial, max_turns=limit, evaluator=judged)
    for verb, kwargs in verbs:
        perform(stage, verb, kwargs)
    stage.finish_turn(code)
    check_turns(stage.bytes, partial)
