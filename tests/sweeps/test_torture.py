"""Output that no program should print, without processes. The real clients read it too
(`e2e/test_torture_clients.py`).
"""

import re

from stream_invariants import check_frames
from stream_lines import find_result
from sweeps import loop_over_rows
from torture import BYTES
from torture_cases import list_torture_cases

from shim.conversation.drivers.open_translation import create_standalone_child_stream
from shim.core.turn.outcome import ChildExit

PLAIN = (("serve",), ("cat", BYTES))
SLOW = (
    "pi-three-thousand-calls",
    "pi-depth-100000-never-closed",
    "claude-depth-100000-never-closed",
)
QUICK = [case for case in list_torture_cases() if case.steps == PLAIN and case.name not in SLOW]
CASES = [(case, vendor) for case in QUICK for vendor in case.vendors]


@loop_over_rows(("case", "vendor"), CASES)
def test_received_text_and_calls_are_emitted(case, vendor):
    translation = create_standalone_child_stream(
        vendor, include_partial_messages=True, stable_ids=True
    )
    output = translation.feed(case.data)[0] + translation.close(ChildExit(0))[0]
    (turn,) = check_frames(output)
    assert find_result(turn)["is_error"] is bool(case.error)
    blocks = [
        block
        for line in turn
        if line["type"] == "assistant"
        for block in line["message"]["content"]
    ]
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    expected = case.select_expected("text", vendor)
    assert expected.fullmatch(text) if isinstance(expected, re.Pattern) else text == expected
    calls = {
        block["id"]: (block["name"], block["input"])
        for block in blocks
        if block["type"] == "tool_use"
    }
    for call_id, name, tool_input in case.calls:
        assert calls[call_id][0] == name and tool_input.items() <= calls[call_id][1].items()
