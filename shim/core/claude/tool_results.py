"""`tool_use_result`, the machine-readable sibling of a tool's result (contract 5.4)."""

from collections.abc import Callable, Mapping
from typing import Any

from shim.core.reading.json_text import dump

Arguments = Mapping[str, Any]


def failure(dumped: bytes) -> bytes:
    """The member for a failed call, out of its content as JSON; nothing when that is no text."""
    if dumped[:1] != b'"':
        return b""
    prefix = b"" if dumped.startswith(b'"Error: ') else b"Error: "
    return b',"tool_use_result":"%b%b' % (prefix, dumped[1:])


def _bash(arguments: Arguments, content: str, dumped: bytes) -> bytes:
    return b'{"stdout":%b,"stderr":"","interrupted":false,"isImage":false}' % dumped


def _structured(arguments: Arguments, content: str, dumped: bytes) -> bytes:
    return dumped


def _write(arguments: Arguments, content: str, dumped: bytes) -> bytes:
    return dump(
        {
            "type": "create",
            "filePath": arguments.get("file_path", ""),
            "content": arguments.get("content", ""),
            "structuredPatch": [],
            "originalFile": None,
            "userModified": False,
        }
    )


def _edit(arguments: Arguments, content: str, dumped: bytes) -> bytes:
    return dump(
        {
            "filePath": arguments.get("file_path", ""),
            "oldString": arguments.get("old_string", ""),
            "newString": arguments.get("new_string", ""),
            "originalFile": None,
            "structuredPatch": [],
            "userModified": False,
            "replaceAll": bool(arguments.get("replace_all", False)),
        }
    )


# Read has none: its member holds the file's own text and length, and vendors print the file with their own headings.
# Tool → its member for a success, made of the call's arguments, the content, and the content as JSON: a large output
# is not dumped twice.
OUTCOMES: dict[str, Callable[[Arguments, str, bytes], bytes]] = {
    "Bash": _bash,
    "Write": _write,
    "Edit": _edit,
    "StructuredOutput": _structured,
}
