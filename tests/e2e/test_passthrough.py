"""The real claude, started by the drop-in: faults that only pass-through can have."""

from __future__ import annotations

import time

import pytest
from frontend import END_SECONDS, TERMINATOR, DropInFrontend
from model_scripts import ScriptedServer
from sandbox import TURN_SECONDS, Line, LineProcess, wait_until
from vendor_setups import CLAUDE_ITSELF

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.parametrize("vendor", [CLAUDE_ITSELF], indirect=True, ids=str),
]

STREAM = ("--output-format", "stream-json", "--verbose")
EARLY = 12  # interrupts, each at another moment of its start


def idle(line: Line) -> bool:
    return line.get("subtype") == "session_state_changed" and line["state"] == "idle"


def test_terminator_follows_the_idle_state_event_after_the_result(
    frontend: DropInFrontend,
) -> None:
    frontend.environment = {**frontend.environment, "CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS": "1"}
    run = frontend.run_prompt("[[text]]")
    assert [line["type"] for line in run.lines[-3:]] == ["result", "system", "message_stop"]
    assert idle(run.lines[-2]) and run.lines[-1] == TERMINATOR
    assert run.exit == 0


@pytest.mark.full
def test_interrupt_result_of_claude_is_passed_through(
    frontend: DropInFrontend, model: ScriptedServer
) -> None:
    """Without partial messages, no part of the reply was written before the signal."""
    process = frontend.start_run("[[slow]]")
    assert wait_until(lambda: bool(model.requests), TURN_SECONDS)
    process.interrupt()
    run = process.finish(END_SECONDS)
    assert "shim" not in run.result and run.result["subtype"] == "error_during_execution"
    assert run.user_texts == ["[Request interrupted by user]"] and run.exit == 0


@pytest.mark.full
@pytest.mark.parametrize("conversation", [False, True])
def test_interrupt_during_startup_produces_a_single_interrupt_result(
    frontend: DropInFrontend, conversation: bool
) -> None:
    """claude then ends without a result: before its `init`, after it, or after its line about the
    interrupt.
    """
    for attempt in range(EARLY):
        flags = ("--input-format", "stream-json") if conversation else ("[[slow]]",)
        process = LineProcess(
            [str(frontend.claude), "-p", *flags, *STREAM], frontend.folder, frontend.environment
        )
        frontend.started.append(process)
        if conversation:
            process.send({"type": "user", "message": {"role": "user", "content": "[[slow]]"}})
        else:
            process.close_stdin()
        frontend.wait_for_start(str(frontend.environment["SHIM_BIN"]))
        time.sleep(attempt / EARLY)  # the test varies these moments
        process.interrupt()
        process.read_to_end(END_SECONDS)
        (result,) = [line for line in process.lines if line["type"] == "result"]
        texts = [
            block["text"]
            for line in process.lines
            if line["type"] == "user"
            for block in line["message"]["content"]
        ]
        assert texts == ["[Request interrupted by user]"], process.lines
        assert result["subtype"] == "error_during_execution" and result["num_turns"] == 2, result
