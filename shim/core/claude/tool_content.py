"""The content of tool results, in the form of the real claude."""

from shim.core.claude.mcp_content import convert_mcp_result_to_claude
from shim.core.reading.json_text import convert_to_tool_result_content

SHELL_TOOL = "Bash"


def format_tool_result_content(value: object, tool: str, *, is_failed: bool) -> object:
    """Return the result of a tool call as Claude's content: a text, or a list of Claude's blocks."""
    content = convert_to_tool_result_content(
        convert_mcp_result_to_claude(value, tool, is_error=is_failed)
    )
    return (
        trim_command_output(content) if tool == SHELL_TOOL and isinstance(content, str) else content
    )


def trim_command_output(text: str) -> str:
    """Return a command's output without leading blank lines and trailing white space."""
    if text[-1:].isspace():
        text = text.rstrip()
    if text[:1].isspace():
        blank_chars = len(text) - len(text.lstrip())
        text = text[text.rfind("\n", 0, blank_chars) + 1 :]
    return text
