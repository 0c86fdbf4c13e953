"""`tool_use_result`, the machine-readable sibling of a tool's result (contract 5.4)."""

from collections.abc import Callable, Mapping
from typing import Any

from shim.dumping import dump

Arguments = Mapping[str, Any]


def tool_use_result(name: str, arguments: Arguments, content: object, dumped: bytes, failed: bool) -> bytes | None:
    """The sibling as JSON bytes, or None where Claude has none for this tool.

    `dumped` is `content` as JSON already: a large output is not dumped twice.
    """
    if failed:
        if dumped[:1] != b'"' or dumped.startswith(b'"Error: '):
            return dumped if dumped[:1] == b'"' else None
        return b'"Error: ' + dumped[1:]
    if not isinstance(content, str):
        return None
    shape = _SHAPES.get(name)
    return shape(arguments, content, dumped) if shape else None


def _bash(arguments: Arguments, content: str, dumped: bytes) -> bytes:
    return b'{"stdout":%b,"stderr":"","interrupted":false,"isImage":false}' % dumped


def _read(arguments: Arguments, content: str, dumped: bytes) -> bytes:
    start, lines = arguments.get("offset"), content.count("\n") + 1
    file = dump(
        {
            "filePath": arguments.get("file_path", ""),
            "numLines": lines,
            "startLine": start if isinstance(start, int) else 1,
            "totalLines": lines,
        }
    )
    return b'{"type":"text","file":%b,"content":%b}}' % (file[:-1], dumped)


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


_SHAPES: dict[str, Callable[[Arguments, str, bytes], bytes]] = {
    "Bash": _bash,
    "Read": _read,
    "Write": _write,
    "Edit": _edit,
}
