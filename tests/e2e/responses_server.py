"""The scripted model with OpenAI's Responses API, for codex."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from model_scripts import (
    PATCHING,
    Failure,
    Json,
    ModelRequest,
    ScriptedAnswer,
    ScriptedCall,
    ScriptedHandler,
    ScriptedServer,
    join_message_text,
    split_text,
)

# The numbers of `model_server.USAGE`. The input includes cached tokens; the output would include
# reasoning.
USAGE: Json = {
    "input_tokens": 120,
    "input_tokens_details": {"cached_tokens": 20},
    "output_tokens": 30,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 150,
}
Delta = tuple[str, str, str]  # (event, name of its index, fragment)
_ERROR_TYPES = {
    401: ("invalid_request_error", "invalid_api_key"),
    404: ("invalid_request_error", "model_not_found"),
    429: ("requests", "rate_limit_exceeded"),
    500: ("server_error", None),
}


class _Handler(ScriptedHandler):
    def answer_get(self) -> None:
        self.send_json(
            404, {"error": {"message": "There is nothing here.", "type": "invalid_request_error"}}
        )

    def answer_post(self, body: Json) -> None:
        if self.path.partition("?")[0] != "/v1/responses":
            self.answer_get()
            return
        tools = body.get("tools") or []
        offered = [str(tool.get("name")) for tool in tools]
        number, request, answer = self.model.answer_request(
            {**body, "messages": body.get("input")}, offered
        )
        if isinstance(answer, Failure):
            kind, code = _ERROR_TYPES[answer.status]
            error = {"message": answer.message, "type": kind, "param": None, "code": code}
            self.send_json(answer.status, {"error": error})
            return
        free = {str(tool.get("name")) for tool in tools if tool.get("type") == "custom"}
        events = self._build_events(answer, request, number, free)
        self.send_events(request, ((event["type"], json.dumps(event)) for event in events))

    def _build_events(
        self, answer: ScriptedAnswer, request: ModelRequest, number: int, free: set[str]
    ) -> Iterator[Json]:
        response = {"id": f"resp_{number:04}", "object": "response", "model": request.model}
        yield {
            "type": "response.created",
            "response": {**response, "status": "in_progress", "output": []},
        }
        output = []
        for index, (item, deltas) in enumerate(self._build_items(answer, number, free)):
            started_item = {**item, "status": "in_progress"}
            yield {
                "type": "response.output_item.added",
                "output_index": index,
                "item": started_item,
            }
            parts = []
            for kind, key, piece in deltas:
                parts.append(piece)
                yield {
                    "type": kind,
                    "item_id": item["id"],
                    "output_index": index,
                    key: 0,
                    "delta": piece,
                }
            completed_item = _complete_item(item, "".join(parts))
            output.append(completed_item)
            yield {
                "type": "response.output_item.done",
                "output_index": index,
                "item": completed_item,
            }
        yield {
            "type": "response.completed",
            "response": {**response, "status": "completed", "output": output, "usage": USAGE},
        }

    def _build_items(
        self, answer: ScriptedAnswer, number: int, free: set[str]
    ) -> Iterator[tuple[Json, Iterator[Delta]]]:
        """Build the items of a reply without content, each with its deltas."""
        if answer.reasoning:
            item = {"id": f"rs_{number:04}", "type": "reasoning", "summary": []}
            yield (
                item,
                _build_deltas(
                    "response.reasoning_summary_text.delta",
                    "summary_index",
                    split_text(answer.reasoning),
                ),
            )
        if answer.text or answer.slow:
            item = {"id": f"msg_{number:04}", "type": "message", "role": "assistant", "content": []}
            chunks = self.model.stream_slow_text() if answer.slow else split_text(answer.text)
            yield item, _build_deltas("response.output_text.delta", "content_index", chunks)
        for position, call in enumerate(answer.calls):
            name, arguments_text = _encode_call(call, free)
            # Tools of a server, and those for subagents, have a namespace.
            space, _, tool_name = name.rpartition(".")
            base_item = {"id": f"fc_{number:04}_{position}", "call_id": call.id, "name": tool_name}
            if space:
                base_item["namespace"] = space
            if name in free:
                item = {**base_item, "type": "custom_tool_call", "input": ""}
                event = "response.custom_tool_call_input.delta"
            else:
                item = {**base_item, "type": "function_call", "arguments": ""}
                event = "response.function_call_arguments.delta"
            yield item, _build_deltas(event, "sequence_number", split_text(arguments_text))


def _encode_call(call: ScriptedCall, free: set[str]) -> tuple[str, str]:
    """Encode the name and the arguments of a call. If the request offers the tool for patches, a
    patch is a text for that tool.
    """
    prefix, end = PATCHING
    command = str(call.tool_input.get("cmd"))
    if "apply_patch" in free and command.startswith(prefix):
        return "apply_patch", command.removeprefix(prefix).removesuffix(end)
    return call.name, json.dumps(call.tool_input)


def _build_deltas(event: str, index: str, chunks: Sequence[str] | Iterator[str]) -> Iterator[Delta]:
    return ((event, index, chunk) for chunk in chunks)


def _complete_item(item: Json, text: str) -> Json:
    """Return an item with the content of its deltas."""
    parts: dict[str, Any] = {
        "reasoning": {"summary": [{"type": "summary_text", "text": text}]},
        "message": {"content": [{"type": "output_text", "text": text, "annotations": []}]},
        "function_call": {"arguments": text},
        "custom_tool_call": {"input": text},
    }
    return {**item, **parts[item["type"]], "status": "completed"}


class ResponsesServer(ScriptedServer):
    """Serves OpenAI's Responses API on a free loopback port."""

    handler = _Handler

    @property
    def url(self) -> str:
        """The base address for the configuration of a client."""
        return f"{self.address}/v1"

    def find_tool_result(self, message: Json) -> str | None:
        if message.get("type") not in ("function_call_output", "custom_tool_call_output"):
            return None
        output = message.get("output")
        return output if isinstance(output, str) else join_message_text({"content": output})
