"""The scripted model with OpenAI's chat completions API, for qwen, pi and copilot."""

from __future__ import annotations

import json
from collections.abc import Iterator

from model_scripts import (
    Failure,
    Json,
    ScriptedAnswer,
    ScriptedHandler,
    ScriptedServer,
    join_message_text,
    split_text,
)

MODEL = "mock-1"
SECOND_MODEL = "mock-2"  # a conversation can be switched to this model
# 20 of the 120 tokens are cached. OpenAI includes them in the input, Claude (and pi) do not.
USAGE: Json = {
    "prompt_tokens": 120,
    "completion_tokens": 30,
    "total_tokens": 150,
    "prompt_tokens_details": {"cached_tokens": 20},
}
_ERROR_TYPES = {
    401: ("invalid_request_error", "invalid_api_key"),
    429: ("requests", "rate_limit_exceeded"),
    500: ("server_error", None),
}


class _Handler(ScriptedHandler):
    def answer_get(self) -> None:
        models = [
            {"id": name, "object": "model", "owned_by": "tests"} for name in (MODEL, SECOND_MODEL)
        ]
        self.send_json(200, {"object": "list", "data": models})

    def answer_post(self, body: Json) -> None:
        offered = [
            name
            for tool in body.get("tools") or []
            for name in _list_names(tool.get("function") or tool.get("custom") or {})
        ]
        number, request, answer = self.model.answer_request(body, offered)
        frame = {"id": f"chatcmpl-{number}", "created": 1_700_000_000, "model": request.model}
        if isinstance(answer, Failure):
            kind, code = _ERROR_TYPES[answer.status]
            error = {"message": answer.message, "type": kind, "param": None, "code": code}
            self.send_json(answer.status, {"error": error})
        elif body.get("stream"):
            self.send_events(request, self._build_events(answer, frame))
        else:
            self._send_completion(answer, frame)

    def _send_completion(self, answer: ScriptedAnswer, frame: Json) -> None:
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.tool_input)},
            }
            for call in answer.calls
        ]
        text = "".join(self.model.stream_slow_text()) if answer.slow else answer.text
        message = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
        message |= {"reasoning_content": answer.reasoning} if answer.reasoning else {}
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": "tool_calls" if calls else "stop",
        }
        self.send_json(
            200, {**frame, "object": "chat.completion", "choices": [choice], "usage": USAGE}
        )

    def _build_events(self, answer: ScriptedAnswer, frame: Json) -> Iterator[tuple[str, str]]:
        frame = {**frame, "object": "chat.completion.chunk"}
        for delta, finish_reason in self._build_deltas(answer):
            choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
            yield "", json.dumps({**frame, "choices": [choice]})
        yield "", json.dumps({**frame, "choices": [], "usage": USAGE})
        yield "", "[DONE]"

    def _build_deltas(self, answer: ScriptedAnswer) -> Iterator[tuple[Json, str | None]]:
        yield {"role": "assistant", "content": ""}, None
        for piece in split_text(answer.reasoning):
            yield {"reasoning_content": piece}, None
        for piece in self.model.stream_slow_text() if answer.slow else split_text(answer.text):
            yield {"content": piece}, None
        for index, call in enumerate(answer.calls):
            opening = {"index": index, "id": call.id, "type": "function"}
            yield (
                {"tool_calls": [{**opening, "function": {"name": call.name, "arguments": ""}}]},
                None,
            )
            for piece in split_text(json.dumps(call.tool_input)):
                yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}, None
        yield {}, "tool_calls" if answer.calls else "stop"


def _list_names(function: Json) -> Iterator[str]:
    """Return the names by which a script may find a tool: its name, and its name with each
    parameter, because two programs may share a name.
    """
    name = str(function.get("name"))
    yield name
    for parameter in (function.get("parameters") or {}).get("properties") or {}:
        yield f"{name}.{parameter}"


class ModelServer(ScriptedServer):
    """Serves OpenAI's API on a free loopback port."""

    handler = _Handler

    @property
    def url(self) -> str:
        """The base address for the configuration of a client."""
        return f"{self.address}/v1"

    def find_tool_result(self, message: Json) -> str | None:
        return join_message_text(message) if message.get("role") == "tool" else None
