"""The scripted model with Google's Gemini API, for gemini."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import unquote

from model_scripts import (
    Failure,
    Json,
    ModelRequest,
    ScriptedAnswer,
    ScriptedHandler,
    ScriptedServer,
    split_text,
)

# Gemini's counts: the prompt includes cached tokens, and the reply does not include thoughts.
USAGE: Json = {
    "promptTokenCount": 120,
    "cachedContentTokenCount": 20,
    "candidatesTokenCount": 25,
    "thoughtsTokenCount": 5,
    "totalTokenCount": 150,
}
_ERROR_STATUSES = {401: "UNAUTHENTICATED", 429: "RESOURCE_EXHAUSTED", 500: "INTERNAL"}


class _Handler(ScriptedHandler):
    def answer_get(self) -> None:
        self._send_error(404, "There is nothing here.")

    def answer_post(self, body: Json) -> None:
        model, _, method = unquote(self.path).partition("?")[0].rpartition("/")[2].partition(":")
        if method == "countTokens":
            self.send_json(200, {"totalTokens": USAGE["promptTokenCount"]})
        elif method not in ("generateContent", "streamGenerateContent"):
            self.answer_get()
        else:
            self._send_answer({**body, "model": model, "messages": _convert_messages(body)}, method)

    def _send_answer(self, body: Json, method: str) -> None:
        declared = [
            declaration
            for tool in body.get("tools") or []
            for declaration in tool.get("functionDeclarations") or []
        ]
        _, request, answer = self.model.answer_request(
            body, [str(declaration.get("name")) for declaration in declared]
        )
        if isinstance(answer, Failure):
            self._send_error(answer.status, answer.message)
        elif method == "streamGenerateContent":
            self.send_events(
                request, (("", json.dumps(event)) for event in self._build_events(answer, request))
            )
        else:
            schema = (body.get("generationConfig") or {}).get("responseJsonSchema")
            text = json.dumps(_fill_schema(schema)) if schema else answer.text
            self.send_json(
                200, {**_build_candidate([{"text": text}], request, "STOP"), "usageMetadata": USAGE}
            )

    def _send_error(self, status: int, message: str) -> None:
        error = {
            "code": status,
            "message": message,
            "status": _ERROR_STATUSES.get(status, "NOT_FOUND"),
        }
        self.send_json(status, {"error": error})

    def _build_events(self, answer: ScriptedAnswer, request: ModelRequest) -> Iterator[Json]:
        if answer.reasoning:  # complete, because gemini trims each fragment of a thought
            yield _build_candidate([{"text": answer.reasoning, "thought": True}], request)
        for piece in self.model.stream_slow_text() if answer.slow else split_text(answer.text):
            yield _build_candidate([{"text": piece}], request)
        calls = [
            {"functionCall": {"id": call.id, "name": call.name, "args": call.tool_input}}
            for call in answer.calls
        ]
        yield {**_build_candidate(calls or [{"text": ""}], request, "STOP"), "usageMetadata": USAGE}


def _fill_schema(schema: Json) -> Json:
    """Return an answer with the requested schema. gemini asks for the difficulty of a prompt before
    it selects a model.
    """
    values = {"INTEGER": 10, "STRING": "It is short."}
    return {name: values[value["type"].upper()] for name, value in schema["properties"].items()}


def _build_candidate(parts: list[Json], request: ModelRequest, reason: str | None = None) -> Json:
    candidate = {"index": 0, "content": {"role": "model", "parts": parts}}
    return {
        "candidates": [candidate | ({"finishReason": reason} if reason else {})],
        "modelVersion": request.model,
    }


def _convert_messages(body: Json) -> list[Json]:
    """Convert the conversation to the form that the scripts read. Gemini has `contents`, and a
    tool's results have the role of the user.
    """
    return [
        {
            "role": "assistant" if content.get("role") == "model" else "user",
            "content": [part for part in content.get("parts") or [] if "text" in part],
            "results": [
                part["functionResponse"]
                for part in content.get("parts") or []
                if "functionResponse" in part
            ],
        }
        for content in body.get("contents") or []
    ]


class GeminiServer(ScriptedServer):
    """Serves Google's API on a free loopback port."""

    handler = _Handler

    def find_tool_result(self, message: Json) -> str | None:
        results = message.get("results")
        return json.dumps(results[-1].get("response"), ensure_ascii=False) if results else None
