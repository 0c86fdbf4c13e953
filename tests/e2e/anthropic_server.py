"""The scripted model with Anthropic's Messages API, for the real claude."""

from __future__ import annotations

import json
from collections.abc import Iterator
from uuid import uuid4

from model_scripts import (
    Failure,
    Json,
    ModelRequest,
    ScriptedAnswer,
    ScriptedHandler,
    ScriptedServer,
    join_message_text,
    split_text,
)

USAGE: Json = {
    "input_tokens": 100,
    "output_tokens": 30,
    "cache_read_input_tokens": 20,
    "cache_creation_input_tokens": 0,
}
_ERROR_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "api_error",
}


class _Handler(ScriptedHandler):
    def end_headers(self) -> None:
        """Add a request id, which each response of Anthropic has. The real claude stores it in its
        transcript.
        """
        self.send_header("request-id", f"req_{uuid4().hex}")
        super().end_headers()

    def answer_get(self) -> None:
        self._send_error(404, "not_found_error", "There is nothing here.")

    def answer_post(self, body: Json) -> None:
        path = self.path.partition("?")[0]
        if path == "/v1/messages/count_tokens":
            self.send_json(200, {"input_tokens": USAGE["input_tokens"]})
        elif path != "/v1/messages":
            self.answer_get()
        else:
            self._send_answer(body)

    def _send_answer(self, body: Json) -> None:
        offered = [str(tool.get("name")) for tool in body.get("tools") or []]
        number, request, answer = self.model.answer_request(body, offered)
        if isinstance(answer, Failure):
            self._send_error(answer.status, _ERROR_TYPES[answer.status], answer.message)
        elif body.get("stream"):
            self.send_events(
                request,
                (
                    (event["type"], json.dumps(event))
                    for event in self._build_events(answer, request, number)
                ),
            )
        else:
            self.send_json(
                200,
                {
                    **self._build_message(request, number),
                    "content": self._build_content(answer),
                    "usage": USAGE,
                },
            )

    def _send_error(self, status: int, kind: str, message: str) -> None:
        self.send_json(status, {"type": "error", "error": {"type": kind, "message": message}})

    def _build_message(self, request: ModelRequest, number: int) -> Json:
        return {
            "id": f"msg_{number:04}",
            "type": "message",
            "role": "assistant",
            "model": request.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**USAGE, "output_tokens": 1},
        }

    def _build_content(self, answer: ScriptedAnswer) -> list[Json]:
        text = "".join(self.model.stream_slow_text()) if answer.slow else answer.text
        calls = [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": call.tool_input}
            for call in answer.calls
        ]
        return [{"type": "text", "text": text}, *calls]

    def _build_events(
        self, answer: ScriptedAnswer, request: ModelRequest, number: int
    ) -> Iterator[Json]:
        yield {"type": "message_start", "message": self._build_message(request, number)}
        for index, (block, deltas) in enumerate(self._build_blocks(answer)):
            yield {"type": "content_block_start", "index": index, "content_block": block}
            for delta in deltas:
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        delta = {"stop_reason": "tool_use" if answer.calls else "end_turn", "stop_sequence": None}
        yield {
            "type": "message_delta",
            "delta": delta,
            "usage": {"output_tokens": USAGE["output_tokens"]},
        }
        yield {"type": "message_stop"}

    def _build_blocks(self, answer: ScriptedAnswer) -> Iterator[tuple[Json, Iterator[Json]]]:
        if answer.reasoning:
            thinking = [
                {"type": "thinking_delta", "thinking": piece}
                for piece in split_text(answer.reasoning)
            ]
            signature = {"type": "signature_delta", "signature": "c2lnbmVkIGJ5IGEgdGVzdA=="}
            yield (
                {"type": "thinking", "thinking": "", "signature": ""},
                iter([*thinking, signature]),
            )
        chunks = self.model.stream_slow_text() if answer.slow else iter(split_text(answer.text))
        yield (
            {"type": "text", "text": ""},
            ({"type": "text_delta", "text": chunk} for chunk in chunks),
        )
        for call in answer.calls:
            parts = split_text(json.dumps(call.tool_input))
            deltas = ({"type": "input_json_delta", "partial_json": part} for part in parts)
            yield {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}, deltas


class AnthropicServer(ScriptedServer):
    """Serves Anthropic's API on a free loopback port."""

    handler = _Handler

    def find_tool_result(self, message: Json) -> str | None:
        content = message.get("content")
        results = (
            [part for part in content if part.get("type") == "tool_result"]
            if isinstance(content, list)
            else []
        )
        return join_message_text(results[-1]) if results else None
