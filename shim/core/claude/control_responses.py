"""Builds the responses to control requests."""

from collections.abc import Mapping

from shim.core.reading.typed import Any


def build_control_error(request_id: object, error: str) -> dict[str, Any]:
    """Return the response that refuses a control request."""
    return {"subtype": "error", "request_id": request_id, "error": error}


def build_control_response_line(response: Mapping[str, Any]) -> dict[str, Any]:
    """Return the line with a response."""
    return {"type": "control_response", "response": response}
