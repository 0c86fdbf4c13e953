"""A session as OpenTelemetry's spans, by the semantic conventions for GenAI of 1.41 (status:
development).

A trace for each turn, whose root is `invoke_agent`; under it a `chat` for each reply of the model
and an `execute_tool` for each call; a nested agent is an `invoke_agent` under the call that it
serves. Turns of one session share `gen_ai.conversation.id`. Messages, arguments and results are
left out unless `content` is set, as the conventions want it; then they are JSON in attributes. Ids
are hashes of the recording's first line, so that two exports have the same spans.
"""

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from shim.core.reading.json_text import dump_json
from shim.core.secrets.redactor import Redactor
from shim.story.steps import find_failure_cause
from shim.story.story import Step, format_content
from shim.story.trace import ModelReply, TracedRecording

SCHEMA = "https://opentelemetry.io/schemas/1.41.0"
SCOPE = "claude-shim"
INTERNAL, CLIENT = 1, 3  # span kinds
EVENTS = 100  # of a span: notes
CALLERS = 10_000  # calls of a session that may have started an agent
STARTERS = ("Task", "Agent")  # Claude's tools that start agents
QUEUED = 1000  # prompts that wait for their turn
MESSAGES = 1000  # input of a reply, mostly results of tools

Value = str | bool | int | float | list[str]

# The beginning of a model's name → the provider's name in the conventions; for other models the
# vendor's name is used.
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
# Claude's stop reasons → those of the conventions; others are kept.
REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_call",
    "max_tokens": "length",
    "refusal": "content_filter",
}
# The error of a call or a turn without a better name.
CALL_ERRORS = {"failed": "tool_error", "denied": "permission_denied", "unanswered": "unanswered"}


class OtelSpan(NamedTuple):
    """A span before it is written. Times are nanoseconds since 1970, ids bytes, `parent` empty for
    a root.
    """

    trace: bytes
    identity: bytes
    parent: bytes
    name: str
    kind: int
    begin: int
    end: int
    attributes: Mapping[str, Value]
    events: tuple[tuple[int, str, Mapping[str, Value]], ...] = ()
    dropped: int = 0
    failed: bool = False


class Spans:
    """Makes the spans of a cast, each when it is over."""

    def __init__(self, path: str, *, redact: bool, content: bool = False) -> None:
        self._traced = TracedRecording(path)
        self._redactor = Redactor() if redact else None
        self._content = content
        header = self._traced.header
        self._seed = hashlib.sha256(orjson.dumps(header.fields)).digest()
        self._done = 0  # turns
        self._turn: _Turn | None = None  # the current one
        self._prompts: deque[tuple[float, str]] = deque(maxlen=QUEUED)
        self._asked: dict[str, list[dict[str, Any]]] = {}  # lane → the input of its next reply
        self._nested: dict[str, _Nested] = {}
        self._callers: dict[str, _Caller] = {}  # the calls that may have started an agent
        facts = {
            "service.name": "claude-shim",
            "service.version": header.shim,
            "os.type": header.platform,
        }
        self.resource: dict[str, Value] = {
            name: self._clean(value) for name, value in facts.items() if value
        }

    def __iter__(self) -> Iterator[OtelSpan]:
        last = 0.0
        for lane, item in self._traced.read_items():
            last = max(last, item.at if item.until is None else item.until)
            if isinstance(item, ModelReply):
                yield from self._replied(lane, item)
            elif item.kind == "result":
                yield self._invoked(item.at, item)
            else:
                self._happened(lane, item)
        if self._turn is not None:
            yield self._invoked(last, None)
        for lane, nested in self._nested.items():
            agent, caller = self._agent(lane), self._callers.get(lane)
            common = self._common("invoke_agent", agent)
            when = (nested.begin, nested.end)
            inside = caller.key if caller is not None and caller.turn == nested.turn else "turn"
            yield self._span(
                nested.turn,
                f"agent {lane}",
                inside,
                f"invoke_agent {agent}",
                INTERNAL,
                when,
                common,
            )

    # -- items -------------------------------------------------------------------------------------

    def _replied(self, lane: str, reply: ModelReply) -> Iterator[OtelSpan]:
        if not lane or not self._done:
            self._open(reply.at)
        number = self._done if self._turn is None else self._turn.number
        nested = (
            self._nested.setdefault(lane, _Nested(number, reply.at, reply.until)) if lane else None
        )
        if nested is not None:  # it may run in the background, longer than its turn
            number = nested.turn
            ends = [call.until for call in reply.calls if call.until is not None]
            nested.end = max(nested.end, reply.until, *ends)
        yield self._chat(lane, number, reply)
        for call in reply.calls:
            yield self._called(lane, number, call)

    def _happened(self, lane: str, step: Step) -> None:
        if step.kind == "prompt":
            if self._turn is None or not self._turn.asked:
                self._open(step.at).asked.append(step.text)
            else:
                self._prompts.append((step.at, step.text))
            self._ask(lane, "user", [{"type": "text", "content": step.text}])
        elif step.kind in ("note", "error", "answer") and self._turn is not None:
            words = step.kind == "error" or step.name == "user"  # free text, not a name
            what = step.kind if words and not self._content else step.text
            self._turn.happened(self._traced.to_nanoseconds(step.at), self._clean(what), step.kind)

    def _open(self, at: float) -> "_Turn":
        if self._turn is None:
            self._turn = _Turn(self._done + 1, at)
        return self._turn

    def _ask(self, lane: str, role: str, parts: list[dict[str, Any]]) -> None:
        if self._content:
            asked = self._asked.setdefault(lane, [])
            if len(asked) < MESSAGES:
                asked.append({"role": role, "parts": parts})

    # -- spans -------------------------------------------------------------------------------------

    def _invoked(self, at: float, result: Step | None) -> OtelSpan:
        """The span of a turn; without a `result` the recording was cut off."""
        turn = self._open(at)
        number, self._turn = turn.number, None
        self._done += 1
        if self._prompts:
            asked, text = self._prompts.popleft()
            self._open(max(asked, at)).asked.append(text)
        facts: Mapping[str, Any] = {} if result is None else result.facts
        attributes = self._common("invoke_agent", self._traced.vendor)
        if self._traced.model:
            attributes["gen_ai.request.model"] = self._traced.model
        attributes |= _usage(facts.get("usage"))
        cost, turns = facts.get("total_cost_usd"), facts.get("num_turns")
        if isinstance(cost, int | float):
            attributes["shim.session.cost_usd"] = float(cost)
        if isinstance(turns, int):
            attributes["shim.turn.replies"] = turns
        cause = "cut_off" if result is None else find_failure_cause(facts)
        if cause:
            attributes["error.type"] = cause
        if self._content:
            said = [
                {"role": "user", "parts": [{"type": "text", "content": text}]}
                for text in turn.asked
            ]
            attributes |= {"gen_ai.input.messages": self._json(said)} if said else {}
            if result is not None and result.text:
                parts = [{"type": "text", "content": result.text}]
                answer = {
                    "role": "assistant",
                    "parts": parts,
                    "finish_reason": "error" if cause else "stop",
                }
                attributes["gen_ai.output.messages"] = self._json([answer])
        name, when = f"invoke_agent {self._traced.vendor}".strip(), (turn.begin, at)
        span = self._span(number, "turn", "", name, CLIENT, when, attributes, failed=bool(cause))
        return span._replace(events=tuple(turn.events), dropped=turn.dropped)

    def _chat(self, lane: str, turn: int, reply: ModelReply) -> OtelSpan:
        agent = self._agent(lane) if lane else self._traced.vendor
        attributes = self._common("chat", agent)
        model = reply.model or self._traced.model
        if model:
            attributes["gen_ai.request.model"] = self._traced.model or model
            attributes["gen_ai.response.model"] = model
        if reply.message_id:
            attributes["gen_ai.response.id"] = reply.message_id
        if reply.stop_reason:
            attributes["gen_ai.response.finish_reasons"] = [
                REASONS.get(reply.stop_reason, reply.stop_reason)
            ]
        attributes |= _usage(reply.reliable_usage)
        if reply.streamed and reply.first_output_at is not None:
            attributes["gen_ai.response.time_to_first_chunk"] = round(
                reply.first_output_at - reply.at, 6
            )
        if self._content:
            asked = self._asked.pop(lane, None)
            attributes |= {"gen_ai.input.messages": self._json(asked)} if asked else {}
            attributes["gen_ai.output.messages"] = self._json([_message(reply)])
        inside = f"agent {lane}" if lane else "turn"
        name = f"chat {attributes.get('gen_ai.request.model', '')}".strip()
        when = (reply.at, reply.until)
        return self._span(turn, f"reply {reply.number}", inside, name, CLIENT, when, attributes)

    def _called(self, lane: str, turn: int, call: Step) -> OtelSpan:
        attributes = self._common("execute_tool", "")
        attributes |= {
            "gen_ai.tool.name": call.name,
            "gen_ai.tool.call.id": call.call,
            "gen_ai.tool.type": "function",
        }
        key, kind = f"call {call.number}", call.input.get("subagent_type")
        if (call.call in self._nested or kind or call.name in STARTERS) and len(
            self._callers
        ) < CALLERS:
            self._callers[call.call] = _Caller(turn, key, kind if isinstance(kind, str) else "")
        failed = call.outcome in CALL_ERRORS
        if failed:
            attributes["error.type"] = CALL_ERRORS[call.outcome]
        if self._content:
            attributes["gen_ai.tool.call.arguments"] = self._json(call.input)
            attributes["gen_ai.tool.call.result"] = self._json(format_content(call.output))
        response = {
            "type": "tool_call_response",
            "id": call.call,
            "response": format_content(call.output),
        }
        self._ask(lane, "tool", [response])
        until = call.at if call.until is None else call.until
        inside = f"agent {lane}" if lane else "turn"
        name = f"execute_tool {call.name}"
        when = (call.at, until)
        return self._span(turn, key, inside, name, INTERNAL, when, attributes, failed=failed)

    def _agent(self, lane: str) -> str:
        """The name of a nested agent."""
        caller = self._callers.get(lane)
        return (caller.agent if caller is not None else "") or "subagent"

    def _common(self, operation: str, agent: str) -> dict[str, Value]:
        traced, model = self._traced, self._traced.model.rpartition("/")[2].lower()
        found = next((name for begin, name in PROVIDERS if model.startswith(begin)), traced.vendor)
        attributes: dict[str, Value] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": found or "unknown",
        }
        if agent:
            attributes["gen_ai.agent.name"] = agent
        if agent and traced.vendor_version:
            attributes["gen_ai.agent.version"] = traced.vendor_version
        if traced.session_id:
            attributes["gen_ai.conversation.id"] = traced.session_id
        return attributes

    def _span(
        self,
        turn: int,
        key: str,
        inside: str,
        name: str,
        kind: int,
        when: tuple[float, float],
        attributes: Mapping[str, Value],
        *,
        failed: bool = False,
    ) -> OtelSpan:
        begin, end = (self._traced.to_nanoseconds(at) for at in when)
        clean = {key: self._clean(value) for key, value in attributes.items()}
        identity, parent = self._hash(turn, key, 8), self._hash(turn, inside, 8) if inside else b""
        trace = self._hash(turn, "trace", 16)
        return OtelSpan(
            trace,
            identity,
            parent,
            self._clean(name),
            kind,
            begin,
            max(begin, end),
            clean,
            failed=failed,
        )

    def _hash(self, turn: int, key: str, size: int) -> bytes:
        return hashlib.sha256(b"%b %d %b" % (self._seed, turn, key.encode())).digest()[:size]

    def _json(self, value: Any) -> str:
        return dump_json(self._clean(value)).decode()

    def _clean(self, value: Any) -> Any:
        if self._redactor is None or isinstance(value, bool | int | float):
            return value
        return self._redactor.redact_value(value)


class _Caller(NamedTuple):
    """A call that may have started an agent: its turn, its span, and the agent's name."""

    turn: int
    key: str
    agent: str


@dataclass(slots=True)
class _Nested:
    """An agent that a call started: the turn in which it began, and its time."""

    turn: int
    begin: float
    end: float


@dataclass(slots=True)
class _Turn:
    number: int
    begin: float
    asked: list[str] = field(default_factory=list)
    events: list[tuple[int, str, Mapping[str, Value]]] = field(default_factory=list)
    dropped: int = 0

    def happened(self, at: int, what: str, kind: str) -> None:
        """Add an event: a note."""
        if len(self.events) < EVENTS:
            self.events.append((at, f"shim.{kind}", {"shim.what": what}))
        else:
            self.dropped += 1


def _usage(usage: Any) -> dict[str, Value]:
    """The conventions count cached tokens as input; Claude counts them apart."""
    if not isinstance(usage, Mapping):
        return {}
    names = (
        "input_tokens",
        "cache_read_input_tokens",
        "cache_creation_input_tokens",
        "output_tokens",
    )
    counts = {name: usage[name] for name in names if isinstance(usage.get(name), int)}
    said: dict[str, Value] = {}
    given, read, made = (counts.get(name, 0) for name in names[:3])
    if given or read or made:
        said["gen_ai.usage.input_tokens"] = given + read + made
    if read:
        said["gen_ai.usage.cache_read.input_tokens"] = read
    if made:
        said["gen_ai.usage.cache_creation.input_tokens"] = made
    if "output_tokens" in counts:
        said["gen_ai.usage.output_tokens"] = counts["output_tokens"]
    return said


def _message(reply: ModelReply) -> dict[str, Any]:
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
    reason = REASONS.get(reply.stop_reason, reply.stop_reason) or (
        "tool_call" if reply.calls else "stop"
    )
    return {"role": "assistant", "parts": parts, "finish_reason": reason}
