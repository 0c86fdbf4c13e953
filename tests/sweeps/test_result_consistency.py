"""The truth contract: what a turn reports about its end is consistent and agrees with what
happened.
"""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest
from box import ASK, END, START, Box, Done, build_text_event, format_ndjson, run_shim
from fixture_cases import SEEDS, list_fixture_cases
from hypothesis import given
from hypothesis import strategies as st
from result_consistency import AGREEMENTS, check_truth
from stream_invariants import check_turns
from stream_lines import find_result, parse_lines
from sweeps import limit_examples, loop_over_rows
from turn_stage import Stage

from shim.conversation.drivers.open_translation import create_standalone_child_stream
from shim.core.api_errors import CAUSES, FAILURE_KINDS
from shim.core.turn.outcome import ChildExit

CALL = {"type": "call", "id": "c1", "name": "Bash", "input": {"command": "make"}}
RESULT = {"type": "result", "id": "c1", "output": "ok"}


def test_agreements_cover_exactly_the_causes():
    assert set(AGREEMENTS) == CAUSES
    assert {kind.cause for kind in FAILURE_KINDS.values()} <= CAUSES


# -- false success ---------------------------------------------------------------------------------


def test_success_with_open_calls_is_truncated():
    """Hostile input, demand 3: stop_reason tool_use, an empty result, success."""
    stage = Stage()
    stage.turn.add_block("I'll look.")
    stage.turn.add_tool_call("t", "Bash", {})
    stage.turn.record_turn_end(result="")
    line = stage.finish_with_result()
    assert (line["shim"]["cause"], line["is_error"]) == ("truncated", True)
    assert line["errors"] == [
        "demo reported success, but these calls of its last reply have no result: Bash"
    ]


def test_truncation_error_names_at_most_eight_open_calls():
    stage = Stage()
    for number in range(10):
        stage.turn.add_tool_call(f"t{number}", "Bash", {})
    stage.turn.record_turn_end()
    (error,) = stage.finish_with_result()["errors"]
    assert error.endswith(
        " have no result: Bash, Bash, Bash, Bash, Bash, Bash, Bash, Bash and 2 more"
    )


def test_success_without_text_after_a_tool_result_is_clean():
    """An empty reply of acai is a success without a message."""
    stage = Stage()
    stage.turn.add_tool_call("t", "Bash", {})
    stage.turn.add_tool_result("t", "ok")
    stage.turn.record_turn_end()
    assert stage.finish_with_result()["shim"]["cause"] == "clean"


@pytest.mark.parametrize("fields", [{"result": "I left a plan."}, {"structured_output": {"a": 1}}])
def test_success_with_an_explicit_result_is_clean_despite_an_open_call(fields):
    stage = Stage()
    stage.turn.add_tool_call("t", "ExitPlanMode", {})
    stage.turn.record_turn_end(**fields)
    assert stage.finish_with_result()["shim"]["cause"] == "clean"


def test_open_call_followed_by_text_leaves_the_turn_clean():
    """codex#14691: the vendor continued without the result and answered."""
    stage = Stage()
    stage.turn.add_tool_call("t", "Bash", {})
    stage.turn.add_block("Never mind.")
    stage.turn.record_turn_end()
    assert stage.finish_with_result()["shim"]["cause"] == "clean"


# -- unexpected output formats ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "printed",
    [b"Usage: pi [OPTIONS]\n", b'{"hello":"world"}\n', b"[1]\n42\n", b'{"type":"banner"}\n'],
    ids=repr,
)
def test_clean_exit_without_protocol_output_is_a_protocol_error(printed):
    translation = create_standalone_child_stream(
        "pi", include_partial_messages=False, stable_ids=True
    )
    output = translation.feed(printed)[0] + translation.close(ChildExit(code=0), "")[0]
    (turn,) = check_turns(output, partial=False)
    assert check_truth(turn) == "protocol"


def test_clean_exit_without_any_output_is_truncated():
    translation = create_standalone_child_stream(
        "pi", include_partial_messages=False, stable_ids=True
    )
    (turn,) = check_turns(
        translation.feed(b"\n\n")[0] + translation.close(ChildExit(code=0), "")[0], partial=False
    )
    assert check_truth(turn) == "truncated"


# -- events after the end --------------------------------------------------------------------------


def late_verbs(stage: Stage) -> None:
    """Send every event that a vendor may still send."""
    turn = stage.turn
    turn.start_message(model="other")
    turn.add_text("late")
    turn.add_thinking("late")
    turn.add_block("late")
    turn.update_text("late", 0)
    turn.add_tool_call("late", "Bash", {})
    turn.add_tool_result("late", "late")
    turn.add_tool_result("t", "late")
    turn.add_tool_result("invented", "late", name="Bash")
    turn.retract_message()
    turn.get_subagent("t").write_text_message("late")
    turn.get_subagent("t").add_tool_call("n2", "Bash", {})
    turn.get_subagent("t").add_tool_result("n1", "late")
    turn.fill_open_call_results("late")
    turn.end_message()
    turn.record_failure("late")
    turn.record_turn_end(result="late")
    turn.record_vendor_completion()


@pytest.mark.parametrize("partial", [False, True], ids=["whole", "partial"])
def test_events_after_the_vendor_end_are_counted_and_not_written(partial):
    """The outcome does not change. A late event is counted and not printed."""
    stage = Stage(partial=partial)
    stage.turn.add_tool_call("t", "Task", {})
    stage.turn.get_subagent("t").add_tool_call("n1", "Bash", {})
    stage.turn.add_text("Done.")
    stage.turn.record_turn_end()
    stage.turn.record_vendor_completion()
    late_verbs(stage)
    line = stage.finish_with_result()
    assert b"late" not in stage.bytes.replace(b"late_event", b"")
    assert (line["result"], line["shim"]["cause"]) == ("Done.", "clean")
    assert line["shim"]["repairs"]["late_event"] > 10
    check_turns(stage.bytes, partial)


def test_second_end_does_not_change_the_cause():
    stage = Stage()
    stage.turn.record_failure("it broke")
    stage.turn.record_vendor_completion()
    stage.turn.record_turn_end(result="all is well")
    stage.turn.record_interrupt()
    assert stage.finish_with_result()["shim"]["cause"] == "vendor_error"


def test_system_event_after_the_end_is_written_before_the_result():
    """cursor sends system events after the end of a turn."""
    stage = Stage()
    stage.turn.add_block("Done.")
    stage.turn.record_turn_end()
    stage.turn.record_vendor_completion()
    stage.turn.write_system_event("note")
    assert stage.finish_turn() == ["init", "text:Done.", "system:note", "end:success Done.", "."]


def test_vendor_may_continue_after_an_end_without_an_outcome():
    """For pi's `agent_settled`: the last reply states the outcome and may come after it."""
    stage = Stage()
    stage.turn.add_block("One.")
    stage.turn.record_vendor_completion()
    stage.turn.add_block("Two.")
    stage.turn.record_turn_end()
    assert stage.finish_with_result()["result"] == "Two."


def test_text_after_an_interrupt_is_written():
    """pi also settles after an interrupt, and the rest of the reply is read at its end."""
    stage = Stage()
    stage.turn.start_message()
    stage.turn.record_interrupt()
    stage.turn.record_vendor_completion()
    stage.turn.add_block("Half a")
    assert "text:Half a" in stage.finish_turn(None)


# -- the cause of the end --------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["record_failure", "record_interrupt", "record_turn_end"])
def test_vendor_events_during_a_stop_do_not_change_the_cause(verb):
    stage = Stage()
    stage.turn.add_block("hi")
    stage.turn.stop("too long", "stall")
    getattr(stage.turn, verb)(
        **({"message": "429 Too many requests"} if verb == "record_failure" else {}), duration_ms=9
    )
    line = stage.finish_with_result(None)
    assert (line["shim"]["cause"], line["errors"], line["duration_ms"]) == (
        "stall",
        ["too long"],
        9,
    )


def test_frontend_interrupt_remains_the_cause_after_a_stop():
    stage = Stage()
    stage.turn.add_block("hi")
    stage.turn.record_interrupt()
    stage.turn.stop("too long", "stall")
    assert stage.finish_with_result(None)["shim"]["cause"] == "interrupted"


@pytest.mark.parametrize("api", [True, False])
def test_rate_limit_cause_requires_an_api_failure(api):
    """Contract S10: a rate limit is reported as an API failure or not at all."""
    stage = Stage()
    stage.turn.record_failure("429 Too many requests", api=api)
    stage.turn.close(ChildExit(code=1), "")
    assert check_truth(stage.take_lines()) == ("rate_limit" if api else "vendor_error")


@loop_over_rows(
    ("child_exit", "noted"),
    [
        (ChildExit(code=0), {}),
        (None, {}),
        (ChildExit(code=7), {"exit_code": 7}),
        (ChildExit(code=1), {"exit_code": 1}),
        (ChildExit(signal="SIGSEGV"), {"signal": "SIGSEGV"}),
    ],
)
@loop_over_rows("good", [True, False])
def test_nonzero_exit_is_recorded_in_the_result(child_exit, noted, good):
    """This holds even if the vendor's page does not call the status an error."""
    stage = Stage(clean_exit_codes=frozenset({0, 7}))
    stage.turn.add_block("hi")
    (stage.turn.record_turn_end if good else lambda: stage.turn.record_failure("it broke"))()
    stage.turn.close(child_exit, "")
    shim = stage.take_lines()[-2]["shim"]
    assert {name: shim[name] for name in ("exit_code", "signal") if name in shim} == noted


# -- any events, any exit --------------------------------------------------------------------------

EXITS = st.one_of(
    st.none(),
    st.sampled_from(
        [
            ChildExit(code=0),
            ChildExit(code=0),
            ChildExit(code=0),
            ChildExit(code=1),
            ChildExit(code=130),
        ]
    ),
    st.integers(0, 255).map(lambda code: ChildExit(code=code)),
    st.sampled_from(["SIGTERM", "SIGKILL", "SIGINT", "SIGSEGV", "SIGPIPE"]).map(
        lambda name: ChildExit(signal=name)
    ),
)
STDERR = st.sampled_from(
    [
        "",
        "",
        "some warning\n",
        "Error: Invalid API key",
        "429 Too many requests",
        "prompt is too long",
        "Reached max session turns for this session.",
        "Operation cancelled.",
        "⚠ Workspace Trust Required",
        "credit balance is too low",
        "\x1b[31mpanicked\x1b[0m",
        "x" * 30_000,
    ]
)


@cache
def pool(vendor: str) -> tuple[bytes, ...]:
    """Return every distinct line of a vendor's fixtures that is short enough to shuffle."""
    lines = {
        line
        for case in list_fixture_cases(vendor)
        for line in case.data.split(b"\n")
        if line and len(line) < 4000
    }
    return tuple(sorted(lines))


@cache
def verdicts(vendor: str) -> tuple[bytes, ...]:
    """Return the lines that state how a turn or a reply ended. They are few, and the tests are
    about them.
    """
    marks = (
        b'"type":"result"',
        b'"type":"task_complete"',
        b'"stopReason":"',
        b'"type":"agent_settled"',
    )
    lines = [
        line
        for line in pool(vendor)
        if any(marker in line.replace(b": ", b":") for marker in marks)
    ]
    good = [line for line in lines if good_ends(vendor, read([line]))]
    bad = [line for line in lines if line not in good]
    return tuple(good + bad * (1 + len(good) // max(1, len(bad))))


def good_ends(vendor: str, events: list[Any]) -> list[Any]:
    """Return the events with which a vendor reports a successful end (vendor pages)."""
    objects = [event for event in events if isinstance(event, dict)]
    return (
        []
        if vendor == "pi" and _pi_failed(objects)
        else [event for event in objects if _is_good_end(vendor, event)]
    )


def _pi_failed(events: list[dict[str, Any]]) -> bool:
    """Return whether pi's last reply failed. A compaction replaces the reply before it."""
    failed = False
    for event in events:
        message = event.get("message") or {}
        if event.get("type") == "message_end" and message.get("role") == "assistant":
            failed = message.get("stopReason") in ("error", "aborted")
        elif event.get("type") in ("compaction_end", "auto_compaction_end") and event.get("result"):
            failed = False
    return failed


def _is_good_end(vendor: str, event: dict[str, Any]) -> bool:
    kind = event.get("type")
    if vendor == "pi":
        message = event.get("message") or {}
        is_reply = kind == "message_end" and message.get("role") in ("assistant", "custom")
        return kind == "agent_settled" or (
            is_reply and message.get("stopReason") not in ("error", "aborted")
        )
    if vendor in ("acai", "cake"):
        failed = event.get("is_error", not event.get("success"))
        return kind in ("result", "task_complete") and not failed
    text = str(event.get("result") or "")
    good = kind == "result" and not event.get("is_error") and not text.startswith("[API Error: ")
    return good and (vendor != "cursor" or event.get("subtype") == "success")


def read(lines: list[bytes]) -> list[Any]:
    """Return the objects of the lines, including those inside a list of events."""
    events: list[Any] = []
    for line in lines:
        try:
            event = json.loads(line.decode("utf-8", "replace").lstrip("\ufeff"), strict=False)
        except (ValueError, RecursionError):
            continue
        events += event if isinstance(event, list) else [event]
    return events


def plain(line: bytes) -> bool:
    """Return whether a line can be read here. The meaning of a line that needs a repair is
    unknown.
    """
    return not line.strip() or (line.lstrip().startswith(b"{") and bool(read([line])))


@pytest.mark.parametrize("vendor", SEEDS)
@limit_examples(30, full_count=70)
@given(data=st.data())
def test_any_events_and_exit_produce_a_consistent_result(vendor, data):
    """The truth contract, for every vendor."""
    drawn = st.one_of(st.sampled_from(pool(vendor)), st.sampled_from(verdicts(vendor)))
    lines = data.draw(st.lists(drawn, max_size=8), label="lines")
    if data.draw(st.booleans(), label="fixture"):
        case = data.draw(st.sampled_from(list_fixture_cases(vendor)))
        case_lines = [line for line in case.data.split(b"\n") if len(line) < 4000][:60]
        cut = data.draw(st.one_of(st.just(len(case_lines)), st.integers(0, len(case_lines))))
        lines = case_lines[:cut] + lines[: data.draw(st.integers(0, 3))]
    child_exit, stderr = data.draw(EXITS, label="exit"), data.draw(STDERR, label="stderr")
    partial = data.draw(st.booleans(), label="partial")
    translation = create_standalone_child_stream(
        vendor, include_partial_messages=partial, stable_ids=True
    )
    output = (
        b"".join(translation.feed(line + b"\n")[0] for line in lines)
        + translation.close(child_exit, stderr)[0]
    )
    turns = check_turns(output, partial)
    cause, result = check_truth(turns[-1]), find_result(turns[-1])
    bad_exit = child_exit is not None and (child_exit.code != 0 or child_exit.signal is not None)
    if cause == "clean":
        assert not bad_exit, "a non-zero exit is an error: no page of these vendors says otherwise"
        has_good_end = good_ends(vendor, read(lines)) or not all(map(plain, lines))
        assert has_good_end, "no success without a word about the end"
    if bad_exit:
        assert result["shim"].get("exit_code") == child_exit.code
        assert result["shim"].get("signal") == child_exit.signal
    if cause in ("exit_code", "protocol"):
        assert child_exit is not None and child_exit.signal is None
    if cause == "signal":
        assert child_exit is not None and child_exit.signal is not None
    assert cause not in ("stall", "not_found", "internal"), "the child alone cannot be the reason"


# -- the real drop-in ------------------------------------------------------------------------------

GOOD = (START, build_text_event("Hello."), END)
CUT = (START, build_text_event("Hel"))
IN_CALL = (START, CALL)
EMPTY_HANDED = (START, CALL, END)
NOTHING_TO_ADD = (START, CALL, RESULT, END)
AUTH = "Error: Invalid API key\n"
# The child's output, its exit and its stderr → the cause, and a word of stderr that the frontend
# must receive.
PROCESSES: list[tuple[Any, Any, str, str, str]] = [
    (GOOD, 0, "", "clean", ""),
    (GOOD, 0, "some warning\n", "clean", ""),
    (GOOD, 0, AUTH, "clean", ""),
    (GOOD, 1, "", "exit_code", ""),
    (GOOD, 7, "the disk is full\n", "exit_code", "the disk is full"),
    (GOOD, 255, AUTH, "exit_code", "Invalid API key"),
    (GOOD, "SIGKILL", "", "signal", ""),
    (GOOD, "SIGSEGV", "core dumped\n", "signal", "core dumped"),
    (CUT, 0, "", "truncated", ""),
    (CUT, 0, "some warning\n", "truncated", "some warning"),
    (CUT, 1, "", "exit_code", ""),
    (CUT, 3, "why\n", "exit_code", "why"),
    (CUT, 1, AUTH, "auth", "Invalid API key"),
    (CUT, 0, "429 Too many requests\n", "rate_limit", "Too many requests"),
    (CUT, "SIGTERM", AUTH, "signal", "Invalid API key"),
    (CUT, "SIGABRT", "", "signal", ""),
    (IN_CALL, 0, "", "truncated", ""),
    (IN_CALL, 2, "", "exit_code", ""),
    (IN_CALL, "SIGKILL", "", "signal", ""),
    (EMPTY_HANDED, 0, "", "truncated", "Bash"),
    (EMPTY_HANDED, 1, "", "exit_code", ""),
    (NOTHING_TO_ADD, 0, "", "clean", ""),
    ((), 0, "", "truncated", ""),
    ((), 0, "only a word\n", "truncated", "only a word"),
    ((), 1, "no such option\n", "exit_code", "no such option"),
    ((), 2, AUTH, "auth", "Invalid API key"),
    ((), 127, "", "exit_code", ""),
    ((), "SIGKILL", "", "signal", ""),
    ("Usage: demo [OPTIONS]\n", 0, "", "protocol", "Usage: demo"),
    ("Usage: demo [OPTIONS]\n", 1, "", "exit_code", "Usage: demo"),
    ('{"type":"start"\n', 0, "", "protocol", ""),
]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> list[Done]:
    """Run every process of the table to its end, a few in parallel."""

    def turn(number: int) -> Done:
        printed, ending, stderr, _, _ = PROCESSES[number]
        folder = tmp_path_factory.mktemp(f"truth{number}")
        box = Box(folder)
        steps = [
            ["out", printed if isinstance(printed, str) else format_ndjson(*printed)],
            ["complain", stderr],
        ]
        steps.append(["die", ending] if isinstance(ending, str) else ["leave", ending])
        environment = box.build_environment(SHIM_VENDOR="demo", SHIM_BIN=box.create_fake(*steps))
        return run_shim(["claude", *ASK], env=environment, cwd=box.cwd, timeout_s=60)

    with ThreadPoolExecutor(min(4, (os.cpu_count() or 1) + 1)) as pool:
        return list(pool.map(turn, range(len(PROCESSES))))


@pytest.mark.parametrize(
    "number", range(len(PROCESSES)), ids=[f"{row[1]}-{row[3]}" for row in PROCESSES]
)
def test_exit_status_matches_the_result(ran, number):
    """P13, P14"""
    _, ending, _, cause, expected_text = PROCESSES[number]
    done = ran[number]
    lines = parse_lines(done.stdout)
    assert check_truth(lines, done.status) == cause
    assert done.stderr == "", "what there is to say stands in the result"
    result = find_result(lines)
    assert expected_text in (result["result"] if "result" in result else result["errors"][0])
    noted = (
        {"signal": ending} if isinstance(ending, str) else {"exit_code": ending} if ending else {}
    )
    assert {
        name: result["shim"][name] for name in ("exit_code", "signal") if name in result["shim"]
    } == noted
