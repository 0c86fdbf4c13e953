"""The HTTP operations of the gateway, and their description in OpenAPI 3.1."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple

from shim import __version__

TEXT = {"type": "string"}
FLAG = {"type": "boolean"}
_ERRORS = {
    "400": "malformed request", "401": "missing or invalid token", "403": "not permitted", "404": "session not found",
    "409": "another client has control, the prompt was already answered, or the session has ended", "413": "too long",
    "415": "no JSON", "429": "too much", "504": "the session does not respond",
}  # fmt: skip
_SECURITY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "cookie": {"type": "apiKey", "in": "cookie", "name": "shim-PORT"},
    "proof": {"type": "apiKey", "in": "header", "name": "X-Shim-Page"},
}
_SESSION_ID = {"name": "id", "in": "path", "required": True, "schema": TEXT}


class Operation(NamedTuple):
    """One HTTP method of a path."""

    method: str  # in lower case, as in OpenAPI
    path: str
    # The function that is called with the gateway and a request.
    handler: Callable[..., Awaitable[Any]]
    summary: str
    properties: Mapping[str, Any] = {}  # JSON schemas of a POST body's properties
    required: tuple[str, ...] = ()  # names of required properties
    query: tuple[str, ...] = ()  # query parameters of an event stream
    status: str = "200"
    needs_token: bool = True


def build_openapi_document(operations: Iterable[Operation]) -> dict[str, Any]:
    """Return the OpenAPI document that describes the operations."""
    paths = dict[str, dict[str, Any]]()
    for operation in operations:
        parameters = {}
        if "{id}" in operation.path:
            parameters = {"parameters": [_SESSION_ID]}
        path = paths.setdefault(operation.path, parameters)
        path[operation.method] = _describe_operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "claude-shim: the bridge", "version": __version__},
        "components": {"securitySchemes": _SECURITY_SCHEMES},
        "security": [{"bearer": []}, {"cookie": [], "proof": []}],
        "paths": paths,
    }


def _describe_operation(operation: Operation) -> dict[str, Any]:
    description: dict[str, Any] = {"summary": operation.summary}
    if operation.query:
        description["parameters"] = [
            *({"name": name, "in": "query", "schema": TEXT} for name in operation.query),
            {"name": "Last-Event-ID", "in": "header", "schema": TEXT},
        ]
    if operation.method == "post":
        schema = {"type": "object", "properties": operation.properties}
        if operation.required:
            schema["required"] = operation.required
        description["requestBody"] = {
            "required": bool(operation.required),
            "content": {"application/json": {"schema": schema}},
        }
    media_type = "application/json"
    if operation.query:
        media_type = "text/event-stream"
    errors = {status: {"description": text} for status, text in _ERRORS.items()}
    description["responses"] = {
        operation.status: {"description": "success", "content": {media_type: {}}},
        **errors,
    }
    if not operation.needs_token:
        description["security"] = []
    return description
