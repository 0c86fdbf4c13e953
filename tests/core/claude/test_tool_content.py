"""What a command printed, as the real claude gives it. Each form was measured with claude 2.1.332."""

from __future__ import annotations

import pytest

from shim.core.claude.tool_content import format_content


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a\n", "a"),
        ("a\n\n\n", "a"),
        ("\n\n  a  \n\nb\n\n", "  a  \n\nb"),
        ("   \n", ""),
        ("", ""),
        ("a\r\n", "a"),
        ("\t a", "\t a"),
        ("a \t\n", "a"),
        (" \n\t\na", "a"),
    ],
)
def test_blank_lines_before_an_output_and_white_space_behind_it_are_left_out(given, expected):
    assert format_content(given, "Bash", failed=False) == expected
    assert format_content(given, "Bash", failed=True) == expected


def test_what_another_tool_returned_stays_as_it_is():
    assert format_content("\na\n", "Read", failed=False) == "\na\n"
