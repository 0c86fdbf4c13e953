"""The profiles of acai and cake have the same output as the adapter of acai in Python, for every
fixture and for damaged streams.
"""

import pytest
import sweeps
from fixture_cases import list_fixture_cases
from handwritten_acai import ACAI, CAKE
from profile_builder import find_result_line, translate_events
from stream_invariants import check_turns
from sweeps import loop_over_cases, loop_over_rows
from turn_stage import build_turn_config

from shim.adapters import get_adapter
from shim.conversation.drivers.open_translation import STABLE_ID_PREFIX
from shim.core.adapter.child_stream import ChildStream
from shim.core.adapter.tools import translate_tool_call
from shim.core.claude.writer import TERMINATORS, StreamJsonWriter

BY_HAND = {"acai": ACAI, "cake": CAKE}
CASES = [fixture for fixture in list_fixture_cases("acai", "cake") if fixture.vendor in BY_HAND]
PARTIAL = pytest.mark.parametrize("partial", [False, True], ids=["whole", "partial"])


def translate_data(vendor, data, end, stderr, partial):
    writer = StreamJsonWriter(
        STABLE_ID_PREFIX, writes_partial_messages=partial, terminator=TERMINATORS["message_stop"]
    )
    config = build_turn_config(
        "acai", tools=vendor.listed_tools, is_unattended=True, can_retract=False
    )
    translation = ChildStream(vendor.translator_class, config, writer)
    return translation.feed(data)[0] + translation.close(end, stderr)[0]


@loop_over_cases(CASES)
@PARTIAL
def test_profile_rules_match_the_output_of_a_python_adapter(case, partial):
    by_rules = translate_data(get_adapter(case.vendor), case.data, case.exit, case.stderr, partial)
    check_turns(by_rules, partial)
    assert by_rules == translate_data(
        BY_HAND[case.vendor], case.data, case.exit, case.stderr, partial
    )


@loop_over_cases(CASES)
@PARTIAL
def test_profile_rules_match_a_python_adapter_for_truncated_streams(case, partial):
    lines = case.data.splitlines(keepends=True)
    for end in range(0, len(lines), 1 if sweeps.full else 3):
        data = b"".join(lines[:end])
        assert translate_data(get_adapter(case.vendor), data, None, "", partial) == translate_data(
            BY_HAND[case.vendor], data, None, "", partial
        )


@loop_over_rows(
    ("tool_input", "expected"),
    [
        (
            {"path": "/a", "start_line": 10, "end_line": 20},
            {"file_path": "/a", "offset": 10, "limit": 11},
        ),
        ({"path": "/a", "start_line": 3}, {"file_path": "/a", "offset": 3}),
        ({"path": "/a", "end_line": 4}, {"file_path": "/a", "limit": 4}),
        ({"path": "/a"}, {"file_path": "/a"}),
        (
            {"path": "/a", "start_line": "x", "end_line": None},
            {"file_path": "/a", "start_line": "x", "end_line": None},
        ),
    ],
)
def test_acai_line_range_becomes_offset_and_limit(tool_input, expected):
    assert translate_tool_call(get_adapter("acai").tools, "Read", tool_input) == ("Read", expected)


EDIT = {"old_text": "a", "new_text": "b"}
CLAUDES = {"old_string": "a", "new_string": "b"}


@loop_over_rows(
    ("name", "tool_input", "expected"),
    [
        ("shell", {"command": "ls", "timeout": 5}, ("Bash", {"command": "ls", "timeout": 5000})),
        (
            "Bash",
            {"command": "ls", "reason": "why"},
            ("Bash", {"command": "ls", "description": "why"}),
        ),
        ("Write", {"path": "/a", "content": "x"}, ("Write", {"file_path": "/a", "content": "x"})),
        ("Edit", {"path": "/a", "edits": [EDIT]}, ("Edit", {"file_path": "/a", **CLAUDES})),
        (
            "Edit",
            {"path": "/a", "edits": [EDIT] * 2},
            ("MultiEdit", {"file_path": "/a", "edits": [CLAUDES] * 2}),
        ),
        ("Edit", {"path": "/a", "edits": "none"}, ("Edit", {"file_path": "/a", "edits": "none"})),
        ("tb__own", {"x": 1}, ("tb__own", {"x": 1})),
    ],
)
def test_acai_tool_calls_become_claude_tool_calls(name, tool_input, expected):
    """The arguments keep their order."""
    claude, claude_input = translate_tool_call(get_adapter("acai").tools, name, tool_input)
    assert (claude, list(claude_input.items())) == (expected[0], list(expected[1].items()))


@pytest.mark.parametrize(
    ("denial", "name", "command"),
    [
        ("bash: rm -rf x", "Bash", "rm -rf x"),
        ("bash: cat <<E\nkey: value\nE", "Bash", "cat <<E\nkey: value\nE"),
        ("bash: echo " + "x" * 5000, "Bash", "echo " + "x" * 5000),
        ("bash", "Bash", ""),
    ],
)
def test_cake_denial_contains_the_full_command(denial, name, command):
    end = {
        "type": "task_complete",
        "subtype": "success",
        "is_error": False,
        "permission_denials": [denial],
    }
    (recorded_denial,) = find_result_line(translate_events(get_adapter("cake"), end))[
        "permission_denials"
    ]
    assert (recorded_denial["tool_name"], recorded_denial["tool_input"]) == (
        name,
        {"command": command},
    )
