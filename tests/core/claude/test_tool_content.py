"""The output of commands in the form of the real claude. Each form was measured with claude
2.1.332.
"""

from __future__ import annotations

from sweeps import loop_over_rows

from shim.core.claude.tool_content import format_tool_result_content


@loop_over_rows(
    ("content", "expected"),
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
def test_bash_output_loses_leading_blank_lines_and_trailing_white_space(content, expected):
    assert format_tool_result_content(content, "Bash", is_failed=False) == expected
    assert format_tool_result_content(content, "Bash", is_failed=True) == expected


def test_output_of_other_tools_is_not_trimmed():
    assert format_tool_result_content("\na\n", "Read", is_failed=False) == "\na\n"
