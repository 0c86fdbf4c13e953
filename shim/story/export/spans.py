"""Converts a session to OpenTelemetry spans, following the GenAI semantic conventions 1.41 (status:
development).

Each turn is a trace with the root span `invoke_agent`. The root contains a `chat` span for each
model reply and an `execute_tool` span for each tool call. A subagent is an `invoke_agent` span
within the span of the call that started it. All turns of a session share `gen_ai.conversation.id`.

As the conventions require, messages, arguments and results are only included if `content` is set.
They are JSON in span attributes. Span ids are hashes of the recording's first line, so that
repeated exports produce the same spans.
"""

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from shim.core.reading.json_text import dump_json
from shim.core.reading.values import as_dict, as_str
from shim.core.secrets.redactor import Redactor
from shim.story.events import find_failure_cause
from shim.story.formatting import count_cached_tokens, count_input_tokens, read_count
from shim.story.model import SessionStep, format_content_text
from shim.story.replies import ModelReply, RecordingTraceReader

SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.0"
SCOPE_NAME = "claude-shim"
# Span kinds of OTLP.
KIND_INTERNAL = 1
KIND_CLIENT = 3
MAX_SPAN_EVENTS = 100  # notes per span
MAX_CALLERS = 10_000  # tool calls that may have started a subagent
AGENT_TOOLS = ("Task", "Agent")  # Claude's tools that start subagents
MAX_QUEUED_PROMPTS = 1000  # prompts that are waiting for their turn
MAX_INPUT_MESSAGES = 1000  # input messages of a reply, mostly tool results

AttributeValue = str | bool | int | float | list[str]

# Model name prefix → provider name in the conventions. For other models, the vendor's name is used.
PROVIDERS = (
    ("claude", "anthropic"),
    ("gpt-", "openai"),
    ("o1", "openai"),
    ("o3", "openai"),
    ("o4", "openai"),
    ("gemini", "gcp.gemini"),
    ("deepseek", "deepseek"),
    ("mistral", "mistral_ai"),
    ("devstral", "mistral_ai"),
    ("codestral", "mistral_ai"),
    ("grok", "x_ai"),
    ("kimi", "moonshot_ai"),
    ("command-", "cohere"),
    ("sonar", "perplexity"),
)
# Claude's stop reason → finish reason in the conventions. Other reasons are not changed.
FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_call",
    "max_tokens": "length",
    "refusal": "content_filter",
}
# The error type of a failed tool call or turn without a more specific error.
CALL_ERRORS = {"failed": "tool_error", "denied": "permission_denied", "unanswered": "unanswered"}


class OtelSpan(NamedTuple):
    """A span before it is written. Times are nanoseconds since 1970. Ids are bytes; `parent_id` is
    empty for a root span.
    """

    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    name: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: Mapping[str, AttributeValue]
    events: tuple[tuple[int, str, Mapping[str, AttributeValue]], ...] = ()
    dropped_events: int = 0
    is_failed: bool = False


class OtelSpanBuilder:
    """Builds the spans of a recording. Each span is returned when it ends."""

    def __init__(self, path: str, *, redact: bool, content: bool = False) -> None:
        self._recording = RecordingTraceReader(path)
        self._redactor = Redactor() if redact else None
        self._has_content = content
        header = self._recording.header
        self._seed = hashlib.sha256(orjson.dumps(header.fields)).digest()
        self._finished_turns = 0
        self._open_turn: _OpenTurn | None = None  # the current turn
        self._prompts: deque[tuple[float, str]] = deque(maxlen=MAX_QUEUED_PROMPTS)
        # agent → input messages of its next reply
        self._input_by_agent: dict[str, list[dict[str, Any]]] = {}
        self._nested_agents: dict[str, _NestedAgent] = {}
        self._agent_calls: dict[str, _AgentCall] = {}  # tool calls that may have started a subagent
        resource_fields = {
            "service.name": "claude-shim",
            "service.version": header.shim,
            "os.type": header.platform,
        }
        self.resource: dict[str, AttributeValue] = {
            name: self._redact(value) for name, value in resource_fields.items() if value
        }

    def __iter__(self) -> Iterator[OtelSpan]:
        last_time_s = 0.0
        for agent_id, item in self._recording.read_trace_items():
            last_time_s = max(last_time_s, item.at if item.until is None else item.until)
            if isinstance(item, ModelReply):
                yield from self._build_reply_spans(agent_id, item)
            elif item.kind == "result":
                yield self._end_turn(item.at, item)
            else:
                self._add_step(agent_id, item)
        if self._open_turn is not None:
            yield self._end_turn(last_time_s, None)
        for agent_id, nested in self._nested_agents.items():
            agent_name = self._find_agent_name(agent_id)
            agent_call = self._agent_calls.get(agent_id)
            attributes = self._build_common_attributes("invoke_agent", agent_name)
            interval_s = (nested.start_s, nested.end_s)
            parent_key = "turn"
            if agent_call is not None and agent_call.turn_number == nested.turn_number:
                parent_key = agent_call.span_key
            yield self._build_span(
                nested.turn_number,
                _get_agent_key(agent_id),
                parent_key,
                f"invoke_agent {agent_name}",
                KIND_INTERNAL,
                interval_s,
                attributes,
            )

    # -- items -------------------------------------------------------------------------------------

    def _build_reply_spans(self, agent_id: str, reply: ModelReply) -> Iterator[OtelSpan]:
        if not agent_id or not self._finished_turns:
            self._ensure_turn(reply.at)
        if self._open_turn is None:
            turn_number = self._finished_turns
        else:
            turn_number = self._open_turn.number
        nested = None
        if agent_id:
            nested = self._nested_agents.setdefault(
                agent_id, _NestedAgent(turn_number, reply.at, reply.until)
            )
        if nested is not None:  # a background subagent may outlive its turn
            turn_number = nested.turn_number
            ends = [call.until for call in reply.tool_calls if call.until is not None]
            nested.end_s = max(nested.end_s, reply.until, *ends)
        yield self._build_chat_span(agent_id, turn_number, reply)
        for call in reply.tool_calls:
            yield self._build_tool_span(agent_id, turn_number, call)

    def _add_step(self, agent_id: str, step: SessionStep) -> None:
        if step.kind == "prompt":
            if self._open_turn is None or not self._open_turn.prompts:
                self._ensure_turn(step.at).prompts.append(step.text)
            else:
                self._prompts.append((step.at, step.text))
            self._add_input_message(agent_id, _build_text_message("user", step.text))
        elif step.kind in ("note", "error", "answer") and self._open_turn is not None:
            # these steps have free text, unlike all other steps
            is_free_text = step.kind == "error" or step.name == "user"
            event_text = step.kind if is_free_text and not self._has_content else step.text
            self._open_turn.add_event(
                self._recording.convert_to_unix_nanoseconds(step.at),
                self._redact(event_text),
                step.kind,
            )

    def _ensure_turn(self, time_s: float) -> "_OpenTurn":
        if self._open_turn is None:
            self._open_turn = _OpenTurn(self._finished_turns + 1, time_s)
        return self._open_turn

    def _add_input_message(self, agent_id: str, message: dict[str, Any]) -> None:
        if self._has_content:
            messages = self._input_by_agent.setdefault(agent_id, [])
            if len(messages) < MAX_INPUT_MESSAGES:
                messages.append(message)

    # -- spans -------------------------------------------------------------------------------------

    def _end_turn(self, time_s: float, result: SessionStep | None) -> OtelSpan:
        """End the span of a turn. `result` is None if the recording was cut off before the result."""
        turn = self._ensure_turn(time_s)
        turn_number = turn.number
        self._open_turn = None
        self._finished_turns += 1
        if self._prompts:
            prompt_time_s, text = self._prompts.popleft()
            self._ensure_turn(max(prompt_time_s, time_s)).prompts.append(text)
        cause = "cut_off"
        if result is not None:
            cause = find_failure_cause(result.facts)
        result = result or SessionStep(0, "result", time_s)
        attributes = self._build_common_attributes(
            "invoke_agent", self._recording.answering_vendor_name
        )
        if self._recording.model:
            attributes["gen_ai.request.model"] = self._recording.model
        attributes |= _build_usage_attributes(result.facts.get("usage"))
        cost = result.facts.get("total_cost_usd")
        if isinstance(cost, int | float):
            attributes["shim.session.cost_usd"] = float(cost)
        if result.replies:
            attributes["shim.turn.replies"] = result.replies
        if cause:
            attributes["error.type"] = cause
        if self._has_content:
            input_messages = [_build_text_message("user", text) for text in turn.prompts]
            if input_messages:
                attributes["gen_ai.input.messages"] = self._dump_redacted(input_messages)
            if result.text:
                answer = _build_text_message("assistant", result.text)
                answer["finish_reason"] = "error" if cause else "stop"
                attributes["gen_ai.output.messages"] = self._dump_redacted([answer])
        name = f"invoke_agent {self._recording.answering_vendor_name}".strip()
        interval_s = (turn.start_s, time_s)
        span = self._build_span(
            turn_number,
            "turn",
            "",
            name,
            KIND_CLIENT,
            interval_s,
            attributes,
            is_failed=bool(cause),
        )
        return span._replace(events=tuple(turn.events), dropped_events=turn.dropped_events)

    def _build_chat_span(self, agent_id: str, turn_number: int, reply: ModelReply) -> OtelSpan:
        if agent_id:
            agent = self._find_agent_name(agent_id)
        else:
            agent = self._recording.answering_vendor_name
        attributes = self._build_common_attributes("chat", agent)
        model = reply.model or self._recording.model
        if model:
            attributes["gen_ai.request.model"] = self._recording.model or model
            attributes["gen_ai.response.model"] = model
        if reply.message_id:
            attributes["gen_ai.response.id"] = reply.message_id
        if reply.stop_reason:
            attributes["gen_ai.response.finish_reasons"] = [
                FINISH_REASONS.get(reply.stop_reason, reply.stop_reason)
            ]
        attributes |= _build_usage_attributes(reply.final_token_counts)
        if reply.streamed and reply.first_output_at is not None:
            attributes["gen_ai.response.time_to_first_chunk"] = round(
                reply.first_output_at - reply.at, 6
            )
        if self._has_content:
            input_messages = self._input_by_agent.pop(agent_id, None)
            if input_messages:
                attributes["gen_ai.input.messages"] = self._dump_redacted(input_messages)
            attributes["gen_ai.output.messages"] = self._dump_redacted(
                [_build_output_message(reply)]
            )
        return self._build_span(
            turn_number,
            f"reply {reply.number}",
            _get_agent_key(agent_id),
            f"chat {attributes.get('gen_ai.request.model', '')}".strip(),
            KIND_CLIENT,
            (reply.at, reply.until),
            attributes,
        )

    def _build_tool_span(self, agent_id: str, turn_number: int, call: SessionStep) -> OtelSpan:
        attributes = self._build_common_attributes("execute_tool", "")
        attributes |= {
            "gen_ai.tool.name": call.name,
            "gen_ai.tool.call.id": call.call,
            "gen_ai.tool.type": "function",
        }
        key = f"call {call.number}"
        kind = call.input.get("subagent_type")
        if (call.call in self._nested_agents or kind or call.name in AGENT_TOOLS) and len(
            self._agent_calls
        ) < MAX_CALLERS:
            self._agent_calls[call.call] = _AgentCall(turn_number, key, as_str(kind))
        output = format_content_text(call.output)
        failed = call.outcome in CALL_ERRORS
        if failed:
            attributes["error.type"] = CALL_ERRORS[call.outcome]
        if self._has_content:
            attributes["gen_ai.tool.call.arguments"] = self._dump_redacted(call.input)
            attributes["gen_ai.tool.call.result"] = self._dump_redacted(output)
        response = {"type": "tool_call_response", "id": call.call, "response": output}
        self._add_input_message(agent_id, {"role": "tool", "parts": [response]})
        return self._build_span(
            turn_number,
            key,
            _get_agent_key(agent_id),
            f"execute_tool {call.name}",
            KIND_INTERNAL,
            (call.at, call.at if call.until is None else call.until),
            attributes,
            is_failed=failed,
        )

    def _find_agent_name(self, agent_id: str) -> str:
        """Return the name of a subagent."""
        agent_call = self._agent_calls.get(agent_id)
        if agent_call is None or not agent_call.agent_name:
            return "subagent"
        return agent_call.agent_name

    def _build_common_attributes(self, operation: str, agent: str) -> dict[str, AttributeValue]:
        recording = self._recording
        model = self._recording.model.rpartition("/")[2].lower()
        provider = next(
            (name for prefix, name in PROVIDERS if model.startswith(prefix)),
            recording.answering_vendor_name,
        )
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": provider or "unknown",
        }
        if agent:
            attributes["gen_ai.agent.name"] = agent
        if agent and recording.vendor_version:
            attributes["gen_ai.agent.version"] = recording.vendor_version
        if recording.session_id:
            attributes["gen_ai.conversation.id"] = recording.session_id
        return attributes

    def _build_span(
        self,
        turn_number: int,
        key: str,
        parent_key: str,
        name: str,
        kind: int,
        interval_s: tuple[float, float],
        attributes: Mapping[str, AttributeValue],
        *,
        is_failed: bool = False,
    ) -> OtelSpan:
        start_ns, end_ns = (
            self._recording.convert_to_unix_nanoseconds(time_s) for time_s in interval_s
        )
        redacted = {key: self._redact(value) for key, value in attributes.items()}
        span_id = self._compute_id(turn_number, key, 8)
        parent_id = b""
        if parent_key:
            parent_id = self._compute_id(turn_number, parent_key, 8)
        trace_id = self._compute_id(turn_number, "trace", 16)
        return OtelSpan(
            trace_id,
            span_id,
            parent_id,
            self._redact(name),
            kind,
            start_ns,
            max(start_ns, end_ns),
            redacted,
            is_failed=is_failed,
        )

    def _compute_id(self, turn_number: int, key: str, byte_count: int) -> bytes:
        return hashlib.sha256(b"%b %d %b" % (self._seed, turn_number, key.encode())).digest()[
            :byte_count
        ]

    def _dump_redacted(self, value: Any) -> str:
        return dump_json(self._redact(value)).decode()

    def _redact(self, value: Any) -> Any:
        if self._redactor is None or isinstance(value, bool | int | float):
            return value
        return self._redactor.redact_value(value)


class _AgentCall(NamedTuple):
    """A tool call that may have started a subagent, with its turn, its span, and the agent's name."""

    turn_number: int
    span_key: str
    agent_name: str


@dataclass(slots=True)
class _NestedAgent:
    """A subagent, with the turn in which it started and its times."""

    turn_number: int
    start_s: float
    end_s: float


@dataclass(slots=True)
class _OpenTurn:
    number: int
    start_s: float
    prompts: list[str] = field(default_factory=list)
    events: list[tuple[int, str, Mapping[str, AttributeValue]]] = field(default_factory=list)
    dropped_events: int = 0

    def add_event(self, time_ns: int, text: str, kind: str) -> None:
        """Add a session note as a span event."""
        if len(self.events) < MAX_SPAN_EVENTS:
            self.events.append((time_ns, f"shim.{kind}", {"shim.what": text}))
        else:
            self.dropped_events += 1


def _get_agent_key(agent_id: str) -> str:
    """Return the key of the span in which an agent works."""
    if agent_id:
        return f"agent {agent_id}"
    return "turn"


def _build_usage_attributes(usage: object) -> dict[str, AttributeValue]:
    """Return the token counts. OpenTelemetry's input tokens include cached tokens."""
    counts = as_dict(usage)
    totals = {
        "gen_ai.usage.input_tokens": count_input_tokens(counts),
        "gen_ai.usage.cache_read.input_tokens": count_cached_tokens(counts),
        "gen_ai.usage.cache_creation.input_tokens": read_count(
            counts, "cache_creation_input_tokens"
        ),
    }
    attributes: dict[str, AttributeValue] = {name: count for name, count in totals.items() if count}
    if isinstance(counts.get("output_tokens"), int):
        attributes["gen_ai.usage.output_tokens"] = counts["output_tokens"]
    return attributes


def _build_text_message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def _build_output_message(reply: ModelReply) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    for part in reply.parts:
        if part.kind == "call":
            parts.append(
                {"type": "tool_call", "id": part.call, "name": part.name, "arguments": part.input}
            )
        else:
            parts.append(
                {"type": "reasoning" if part.kind == "thinking" else "text", "content": part.text}
            )
    finish_reason = FINISH_REASONS.get(reply.stop_reason, reply.stop_reason)
    if not finish_reason:
        finish_reason = "stop"
        if reply.tool_calls:
            finish_reason = "tool_call"
    return {"role": "assistant", "parts": parts, "finish_reason": finish_reason}
