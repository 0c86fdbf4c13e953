"""Builds the response with a file's content, for clients that show files of the session."""

import posixpath
from base64 import b64encode
from collections.abc import Mapping

from shim.core.claude.session_state import SessionState
from shim.core.reading.typed import Any

READ_TOOL = "Read"
DEFAULT_MAX_BYTES = 1024 * 1024  # the real claude's limit without `max_bytes`


def build_file_report(state: SessionState, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a file that the rules allow to be read without a prompt. Raise ValueError
    for any other file, and OSError if the file cannot be read.
    """
    requested_path = request.get("path")
    if not isinstance(requested_path, str) or not requested_path:
        raise ValueError("path must be a string")
    path = posixpath.normpath(posixpath.join(state.options.cwd, requested_path))
    decision = state.evaluate_tool_call(READ_TOOL, {"file_path": path})
    if decision.outcome != "allow" or state.options.read_file is None:
        raise ValueError(f"read denied: {requested_path}")
    max_bytes = _parse_max_bytes(request.get("max_bytes"))
    data = state.options.read_file(path, max_bytes + 1)
    report: dict[str, Any] = {"contents": "", "absPath": path}
    if len(data) > max_bytes:
        data = data[:max_bytes]
        report["truncated"] = True
    if request.get("encoding") == "base64":
        report |= {"contents": b64encode(data).decode(), "encoding": "base64"}
    else:
        text = data.decode("utf-8", "replace")
        report |= {"contents": text, "lossy": text.encode() != data}
    return report | {"requested_path": requested_path}


def _parse_max_bytes(value: object) -> int:
    """Return the requested limit. If it is invalid or too large, return the default limit."""
    if isinstance(value, int) and 0 < value < DEFAULT_MAX_BYTES:
        return value
    return DEFAULT_MAX_BYTES
