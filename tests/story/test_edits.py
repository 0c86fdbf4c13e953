"""The lines that a call changes in a file."""

from typing import Any

import pytest

from shim.story.edits import find_edit_diff_lines
from shim.story.events import SessionStep

HUNK = {
    "oldStart": 1,
    "oldLines": 1,
    "newStart": 1,
    "newLines": 1,
    "lines": ["-x", "+y", "\\ No newline"],
}


def format_edit(name: str, extra: Any = None, **tool_input: Any) -> list[str] | None:
    lines = find_edit_diff_lines(
        SessionStep(1, "call", 0.0, name=name, input=tool_input, extra=extra)
    )
    return None if lines is None else [f"{line.sign}{line.text}" for line in lines]


def test_unchanged_lines_are_printed_once() -> None:
    assert format_edit("Edit", old_string="a\nb\nc\n", new_string="a\nB\nc\n") == [
        " a",
        "-b",
        "+B",
        " c",
    ]


def test_gap_separates_distant_changes() -> None:
    old = "\n".join(map(str, range(30)))
    lines = format_edit(
        "Edit", old_string=old, new_string=old.replace("3\n", "x\n", 1).replace("27", "y")
    )
    assert lines is not None and lines.count("@…") == 1 and lines[0] == " 0"


def test_original_file_adds_line_numbers() -> None:
    lines = format_edit("Edit", {"originalFile": "1\n2\nold\n"}, old_string="old", new_string="new")
    assert lines == ["@@@ -3,1 +3,1 @@", "-old", "+new"]


def test_new_content_is_formatted_as_added_lines() -> None:
    assert format_edit("Write", content="a\nb\n") == ["+a", "+b"]
    assert format_edit("NotebookEdit", new_source="a") == ["+a"]
    assert format_edit("Write", content="") == []


def test_multi_edit_parts_are_separated_by_a_gap() -> None:
    edits = [{"old_string": "a", "new_string": "b"}, {"old_string": "", "new_string": "c\n"}]
    assert format_edit("MultiEdit", edits=edits) == ["-a", "+b", "@…", "+c"]


def test_structured_patch_takes_precedence_over_the_input() -> None:
    patched = format_edit("Edit", {"structuredPatch": [HUNK]}, old_string="a", new_string="b")
    assert patched == ["@@@ -1,1 +1,1 @@", "-x", "+y"]


@pytest.mark.parametrize(
    ("name", "extra", "expected"),
    [
        ("Bash", None, None),
        ("Edit", {"structuredPatch": [{"oldStart": "x"}]}, None),
        ("Edit", {"structuredPatch": 7}, None),
        ("Edit", 7, ["-a", "+b"]),
    ],
)
def test_other_tools_and_malformed_patches_return_none(
    name: str, extra: Any, expected: Any
) -> None:
    assert format_edit(name, extra, old_string="a", new_string="b") == expected
