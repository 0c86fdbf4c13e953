"""Targets for input that does not come from a vendor: the frontend's lines, the command line, the
settings file.
"""

import itertools
import os
import tempfile
from typing import Any

import orjson
from policy_builder import build_policy
from stream_invariants import SEPARATORS
from turn_stage import build_session_state

from fuzzing.dialects import DIALECTS, select_dialect
from fuzzing.inputs import FuzzRun
from shim.conversation.drivers.open_translation import STABLE_SESSION_ID
from shim.core.claude.argv.flags import Invocation, parse_argv
from shim.core.claude.control import ControlSession
from shim.core.claude.permissions import PermissionRequest
from shim.core.errors import FrontendError
from shim.core.reading.values import escape_control_chars
from shim.state import config

# -- frontend lines --------------------------------------------------------------------------------

CONTROL_BYTES = 20_000
QUESTION = PermissionRequest("q", "call_1", "Bash", {"command": "ls"}, "shell", {"command": "ls"})


def run_control(run: FuzzRun) -> int:
    """Check the frontend's lines: each is answered or skipped, and every request is answered
    exactly once.
    """
    numbers = itertools.count(1)
    session_state = build_session_state(
        display_name="pi",
        session_id=STABLE_SESSION_ID,
        mode="default",
        answers_prompts=True,
        policy=build_policy(),
        asks_permissions=bool(run.resolve_knob("terms", 2)),
        echoes_messages=bool(run.resolve_knob("limit", 2)),
        state_events=("", "visible", "host")[run.resolve_knob("exit", 3)],
        max_line_bytes=CONTROL_BYTES,
    )
    listen = DIALECTS[select_dialect(run)].listen
    control = listen(
        session_state, lambda: f"uuid-{next(numbers)}", lambda: "2026-11-20T10:00:00.000Z"
    )
    count = 0
    for line in run.expand_lines():
        if count % 8 == 3:
            control.start_turn("do it")
        if count % 8 == 5:
            control.decide_permission(
                QUESTION._replace(request_id=f"q{count}", call_id=f"call_{count}")
            )
        _check_line(control, line, select_dialect(run) == "claude")
        control.queued_messages.clear()  # The session takes them or stops reading.
        if count % 8 == 7:
            control.end_turn()
        count += 1
    control.close_input()
    _take_output(control)
    return count


def _check_line(control: ControlSession, line: bytes, answers: bool) -> None:
    """Check one line. With `answers`, the dialect has requests, and each has one answer."""
    _take_output(control)
    control.receive_line(line)
    answered = sum(event["type"] == "control_response" for event in _take_output(control))
    try:
        event = orjson.loads(line) if answers else None
    except orjson.JSONDecodeError:
        return
    if (
        isinstance(event, dict)
        and event.get("type") == "control_request"
        and isinstance(event.get("request"), dict)
    ):
        assert answered == 1, f"a request has {answered} answers (C5): {line[:400]!r}"


def _take_output(control: ControlSession) -> list[dict[str, Any]]:
    output = control.take_output()
    assert not any(separator.encode() in output for separator in SEPARATORS)
    lines = output.split(b"\n")
    assert lines.pop() == b"", "whole lines only"
    assert all(len(line) <= CONTROL_BYTES for line in lines), "no line passes the limit"
    events = [orjson.loads(line) for line in lines]
    complaints, control.warnings = control.warnings, []
    for complaint in complaints:
        assert len(complaint) < 1000 and complaint.endswith("\n"), (
            f"a complaint of {len(complaint)} characters"
        )
        assert escape_control_chars(complaint) == complaint, f"a terminal would obey {complaint!r}"
    return events


# -- the command line and the settings -------------------------------------------------------------


def run_command_line(run: FuzzRun) -> int:
    """Parse a command line, or refuse it with the shim's own error. No other exception may
    occur.
    """
    args = [line.decode("utf-8", "surrogateescape") for line in run.expand_lines()]
    try:
        invocation = parse_argv(args)
    except FrontendError as error:
        assert str(error)
    else:
        assert isinstance(invocation, Invocation)
    return len(args)


SETTINGS = os.path.join(tempfile.gettempdir(), f"shim-fuzz-{os.getpid()}.toml")


def run_settings(run: FuzzRun) -> int:
    """Parse a settings file, or refuse it with the shim's own error."""
    body = run.encode_body()
    with open(SETTINGS, "wb") as file:
        file.write(body)
    try:
        settings = config.load_shim_settings(Invocation(shim_config=SETTINGS), {})
    except FrontendError as error:
        assert str(error)
    else:
        assert settings.max_line_bytes >= config.MIN_LINE_BYTES
        assert all(value > 0 for value in settings.timeouts.values())
    finally:
        os.unlink(SETTINGS)
    return body.count(b"\n") + 1
