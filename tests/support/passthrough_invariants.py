"""The rules that hold for the lines of a real claude that the shim passes through."""

import json
from collections.abc import Sequence

from stream_invariants import CONVERSATION, SEPARATORS, _is_init, _list_blocks, _reject_constant

from shim.conversation.drivers.open_translation import STABLE_ID_PREFIX
from shim.core.claude.writer import TERMINATORS


def is_shim_line(line: bytes) -> bool:
    """Return whether a line of a pass-through stream was written by the shim and not by claude."""
    return (
        line == TERMINATORS["message_stop"].strip()
        or b'"uuid":"' + STABLE_ID_PREFIX.encode() in line
    )


def check_passed(came: bytes, output: bytes, partial: bool) -> None:
    """Assert that every valid JSON line of the input is in the output unchanged and in order,
    except lines that must be dropped.

    Dropped lines: those that no frontend can read, a second init, a second result, results without
    a call, conversation lines after a result, and stream events that were not requested. Any other
    output line was written by the shim or had to be repaired. Characters that split lines in Node
    and Python are escaped.
    """
    for separator in SEPARATORS:
        came = came.replace(separator.encode(), f"\\u{ord(separator):04x}".encode())
    lines = [line.rstrip(b"\r") for line in came.split(b"\n") if line.strip()]
    valid = [line for line in lines if _is_valid_line(line)]
    valid_set = set(valid)
    passed = [
        line
        for line in output.split(b"\n")
        if line in valid_set or (line and not is_shim_line(line))
    ]
    assert len(valid) < len(lines) or valid_set.issuperset(passed), "nothing is invented"
    passed = [line for line in passed if line in valid_set]
    for results in (True, False):  # a result may wait, so it is compared by itself
        selected_lines = [line for line in passed if (_read_type(line) == "result") == results]
        assert _is_subsequence(selected_lines, valid), "lines keep their order"
    lines_after_result = _find_lines_after_results(valid)
    missing = list(valid)
    for line in passed:
        missing.remove(line)
    for line in missing:
        event = json.loads(line)
        kind = event["type"]
        allowed = (
            kind == "result"
            or _is_init(event)
            or (kind == "stream_event" and not partial)
            or (
                kind == "user"
                and any(block["type"] == "tool_result" for block in _list_blocks(event))
            )
            or line in lines_after_result
            # the Python SDK fails at this line
            or (kind == "rate_limit_event" and "rate_limit_info" not in event)
        )
        assert allowed, f"lost: {line[:200]!r}"


def _is_valid_line(line: bytes) -> bool:
    try:
        event = json.loads(line.decode("utf-8"), parse_constant=_reject_constant)
        json.dumps(event, ensure_ascii=False).encode("utf-8")
    except (ValueError, AssertionError, RecursionError):
        return False
    return isinstance(event, dict) and isinstance(event.get("type"), str)


def _read_type(line: bytes) -> str:
    return str(json.loads(line)["type"])


def _is_subsequence(some: Sequence[bytes], all_lines: Sequence[bytes]) -> bool:
    remaining = iter(all_lines)
    return all(line in remaining for line in some)


def _find_lines_after_results(valid: Sequence[bytes]) -> set[bytes]:
    lines, ended = set(), False
    for line in valid:
        event = json.loads(line)
        if _is_init(event):
            ended = False
        elif event["type"] == "result":
            ended = True
        elif ended and event["type"] in CONVERSATION:
            lines.add(line)
    return lines
