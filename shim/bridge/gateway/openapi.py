"""The description of the routes for programs: OpenAPI 3.1, in JSON."""

from collections.abc import Mapping
from typing import Any

from shim import __version__

_TEXT, _FLAG = {"type": "string"}, {"type": "boolean"}
_REFUSALS = {
    "400": "it cannot be read", "401": "no good token", "403": "it may not be done", "404": "no such session",
    "409": "somebody else drives, it was settled before, or the session has ended", "413": "too long",
    "415": "no JSON", "429": "too much", "504": "no word of the session",
}  # fmt: skip


def build_openapi_document() -> dict[str, Any]:
    """The whole description."""
    session_path = {"parameters": [{"name": "id", "in": "path", "required": True, "schema": _TEXT}]}
    take_property = {"take": _FLAG}
    return {
        "openapi": "3.1.0",
        "info": {"title": "claude-shim: the bridge", "version": __version__},
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": "shim-PORT"},
                "proof": {"type": "apiKey", "in": "header", "name": "X-Shim-Page"},
            }
        },
        "security": [{"bearer": []}, {"cookie": [], "proof": []}],
        "paths": {
            "/login": {
                "post": {
                    **_describe_post("A cookie for a token", {"token": _TEXT}, ["token"]),
                    "security": [],
                }
            },
            "/logout": {"post": _describe_post("End the cookie", {})},
            "/me": {"get": _describe_get("What this token may do, and the vendors")},
            "/sessions": {
                "get": _describe_get("All sessions, the last begun first"),
                "post": _describe_post(
                    "Begin a session",
                    {"vendor": _TEXT, "prompt": _TEXT, "cwd": _TEXT, "model": _TEXT, "mode": _TEXT},
                    ["vendor", "prompt", "cwd"],
                    "201",
                ),
            },
            "/sessions/{id}": {**session_path, "get": _describe_get("One session")},
            "/sessions/{id}/events": {
                **session_path,
                "get": _describe_stream("Claude's lines as they are", ()),
            },
            "/sessions/{id}/steps": {
                **session_path,
                "get": _describe_stream("Steps as the page draws them", ("last",)),
            },
            "/sessions/{id}/messages": {
                **session_path,
                "post": _describe_post(
                    "Say a message",
                    {"text": _TEXT, "id": _TEXT, "wake": _FLAG, **take_property},
                    ["text"],
                ),
            },
            "/sessions/{id}/answers": {
                **session_path,
                "post": _describe_post(
                    "Answer a question",
                    {
                        "question": _TEXT,
                        "behavior": {"enum": ["allow", "deny"]},
                        "message": _TEXT,
                        "input": {"type": "object"},
                        "always": _FLAG,
                    },
                    ["question", "behavior"],
                ),
            },
            "/sessions/{id}/interrupt": {
                **session_path,
                "post": _describe_post("Interrupt the turn", {}),
            },
            "/sessions/{id}/model": {
                **session_path,
                "post": _describe_post(
                    "Another model", {"model": _TEXT, **take_property}, ["model"]
                ),
            },
            "/sessions/{id}/mode": {
                **session_path,
                "post": _describe_post("Another mode", {"mode": _TEXT, **take_property}, ["mode"]),
            },
            "/sessions/{id}/take": {
                **session_path,
                "post": _describe_post("Drive the session", {}),
            },
            "/sessions/{id}/release": {
                **session_path,
                "post": _describe_post("Let others drive", {}),
            },
            "/sessions/{id}/stop": {
                **session_path,
                "post": _describe_post("End the session", take_property),
            },
        },
    }


def _describe_get(summary: str) -> dict[str, Any]:
    return {"summary": summary, "responses": _describe_responses("200", "application/json")}


def _describe_stream(summary: str, extra_names: tuple[str, ...]) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "query", "schema": _TEXT} for name in ("after", *extra_names)
    ]
    parameters.append({"name": "Last-Event-ID", "in": "header", "schema": _TEXT})
    return {
        "summary": summary,
        "parameters": parameters,
        "responses": _describe_responses("200", "text/event-stream"),
    }


def _describe_post(
    summary: str,
    properties: Mapping[str, Any],
    required: list[str] | None = None,
    status: str = "200",
) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": dict(properties)}
    if required:
        schema["required"] = required
    body = {"required": bool(required), "content": {"application/json": {"schema": schema}}}
    return {
        "summary": summary,
        "requestBody": body,
        "responses": _describe_responses(status, "application/json"),
    }


def _describe_responses(status: str, media_type: str) -> dict[str, Any]:
    success = {"description": "it is done", "content": {media_type: {}}}
    return {status: success, **{code: {"description": text} for code, text in _REFUSALS.items()}}
