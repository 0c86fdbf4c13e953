"""A session as a person reads it: the steps of what was asked, said and done, and where the time went.

Fed with Claude's events and their times, it tells how each step begins, grows and ends, so that the same drawing serves
a run that is going on and a recording. It keeps open steps and totals only; who wants all steps collects them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Kind = Literal["start", "prompt", "thinking", "text", "call", "question", "answer", "note", "error", "result"]
# What the time was spent on: the model, a tool, a person's answer, nobody (between two turns).
Spent = Literal["model", "tool", "person", "idle"]

SPANS = 10_000  # of a timeline; a picture has fewer points, and the last one grows
OPEN_CALLS = 10_000  # whose results may still come
OPEN_BLOCKS = 1000


@dataclass(slots=True)
class Step:
    """One thing that happened. `at` and `until` are seconds since the beginning; `until` is None while it goes on.

    A call has a name, its input, and with its result the output and the outcome: `ok`, `failed`, `denied`,
    `unanswered`. `extra` is what Claude adds to a result (the patch of an edit). `facts` are the fields of the event
    that a start, a note, a question, an answer or a result came from. `parent` is the call that a nested agent serves.
    """

    number: int
    kind: Kind
    at: float
    turn: int = 0
    text: str = ""
    until: float | None = None
    call: str = ""
    name: str = ""
    input: Mapping[str, Any] = field(default_factory=dict)
    output: Any = None
    extra: Any = None
    outcome: str = ""
    parent: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


class Change(NamedTuple):
    """What happened to a step: it begins, it grows by a fragment of text, it is over."""

    what: Literal["begin", "more", "end"]
    step: Step
    fragment: str = ""


class Span(NamedTuple):
    """A stretch of time, in seconds since the beginning, and what it was spent on. `step` is its call's, else 0."""

    spent: Spent
    begin: float
    end: float
    step: int = 0


@dataclass(slots=True)
class Totals:
    """The sums of a session. `tokens` has the names of Claude's usage; `seconds` is by what they were spent on."""

    turns: int = 0
    calls: int = 0
    failed_calls: int = 0
    errors: int = 0
    cost: float = 0.0
    duration: float = 0.0
    tokens: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    repairs: dict[str, int] = field(default_factory=dict)


TOKENS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


class Story:
    """Feed it events in the order of their times; each call gives back the changes that it makes."""

    def __init__(self) -> None:
        self.totals = Totals()
        self.timeline: list[Span] = []
        self.model = self.session = self.vendor = ""
        self._number = 0
        self._turn = 0
        self._calls: dict[str, Step] = {}
        self._blocks: dict[str, Step] = {}  # of nested agents and of ours: one block is open for each
        self._streamed: set[str] = set()  # replies whose blocks were streamed: their lines say nothing new
        self._reply = ""
        self._asking: dict[str, Step] = {}
        self._spending: Spent = "idle"
        self._since = 0.0
        self._at = 0.0

    # -- what may happen ---------------------------------------------------------------------------------------

    def prompt(self, at: float, content: Any) -> list[Change]:
        """Somebody asks: a text, or the content blocks of a user's message."""
        self._turn += 1
        self._spend(at, "model")
        return [*self._whole(at, "prompt", text=text_of(content))]

    def event(self, at: float, event: Mapping[str, Any]) -> list[Change]:
        """One of Claude's events, as a frontend gets them."""
        handler = getattr(self, f"_on_{event.get('type')}", None)
        self._at = max(at, self._at)
        try:
            return [] if handler is None else list(handler(at, event))
        except (AttributeError, KeyError, TypeError, ValueError, IndexError):
            return []  # a foreign line of a Claude-like shape: what is known of it was told

    def note(self, at: float, fact: Mapping[str, Any]) -> list[Change]:
        """A note of the recorder's: a repair, a timeout."""
        kind = str(fact.get("kind") or "note")
        return [*self._whole(at, "note", text=kind, facts=fact)]

    def sent(self, at: float, event: Mapping[str, Any]) -> list[Change]:
        """A line that a frontend sent: a prompt, an answer to a question, an interrupt."""
        if event.get("type") == "user" and isinstance(event.get("message"), Mapping):
            return self.prompt(at, event["message"].get("content"))
        if event.get("type") == "control_response":
            return list(self._answered(at, event.get("response")))
        request = event.get("request")
        if isinstance(request, Mapping) and request.get("subtype") == "interrupt":
            return [*self._whole(at, "note", text="interrupt", facts=event)]
        return []

    def close(self, at: float) -> list[Change]:
        """Nothing more happens: what is open is over."""
        changes = [change for key in list(self._blocks) for change in self._end_block(at, key)]
        for step in list(self._calls.values()):
            step.until, step.outcome = at, "unanswered"
            changes.append(Change("end", step))
        self._calls.clear()
        self._spend(at, self._spending)
        self.totals.duration = max(self.totals.duration, at)
        return changes

    # -- events ------------------------------------------------------------------------------------------------

    def _on_system(self, at: float, event: Mapping[str, Any]) -> Iterator[Change]:
        if event.get("subtype") != "init":
            text = str(event.get("subtype"))
            if text not in ("session_state_changed", "status"):
                yield from self._whole(at, "note", text=text, facts=event)
            return
        known = self.session
        self.session, self.model = str(event.get("session_id") or ""), str(event.get("model") or "")
        shim = event.get("shim")
        self.vendor = str(shim.get("vendor") or "") if isinstance(shim, Mapping) else self.vendor
        if known != self.session:
            yield from self._whole(at, "start", text=self.model, facts=event)

    def _on_stream_event(self, at: float, line: Mapping[str, Any]) -> Iterator[Change]:
        event, parent = line["event"], str(line.get("parent_tool_use_id") or "")
        kind = event.get("type")
        if kind == "message_start":
            self._reply = str(event["message"].get("id"))
            self._model(at)
        elif kind == "content_block_delta":
            delta = event["delta"]
            for name in ("text", "thinking"):
                if isinstance(fragment := delta.get(name), str) and fragment:
                    self._streamed.add(self._reply)
                    yield from self._grow(at, "text" if name == "text" else "thinking", parent, fragment)
        elif kind == "content_block_stop":
            yield from self._end_block(at, parent)
        elif kind == "message_stop":
            self._streamed.clear()

    def _on_assistant(self, at: float, line: Mapping[str, Any]) -> Iterator[Change]:
        message, parent = line["message"], str(line.get("parent_tool_use_id") or "")
        self._model(at)
        synthetic = message.get("model") == "<synthetic>"
        for block in message["content"]:
            kind = block.get("type")
            if kind == "tool_use":
                yield from self._end_block(at, parent)
                yield from self._call(at, block, parent)
            elif kind in ("text", "thinking") and str(message.get("id")) not in self._streamed:
                yield from self._end_block(at, parent)
                told: Kind = "error" if synthetic and line.get("error") else "text" if kind == "text" else "thinking"
                yield from self._whole(at, told, text=str(block.get(kind) or ""), parent=parent)

    def _on_user(self, at: float, line: Mapping[str, Any]) -> Iterator[Change]:
        content, parent = line["message"].get("content"), str(line.get("parent_tool_use_id") or "")
        if line.get("isReplay"):
            return
        if isinstance(content, str):
            yield from self._whole(at, "note", text=content, parent=parent)
            return
        for block in content:
            if block.get("type") == "tool_result":
                yield from self._result_of(at, block, line.get("tool_use_result"))
            elif block.get("type") == "text":
                yield from self._whole(at, "note", text=str(block.get("text")), parent=parent)

    def _on_control_request(self, at: float, line: Mapping[str, Any]) -> Iterator[Change]:
        request = line["request"]
        if request.get("subtype") == "can_use_tool":
            changes = list(
                self._whole(
                    at,
                    "question",
                    text=str(request.get("tool_name")),
                    name=str(request.get("tool_name")),
                    call=str(request.get("tool_use_id") or ""),
                    input=request.get("input") or {},
                    facts=request,
                )
            )
            if len(self._asking) < OPEN_CALLS:
                self._asking[str(line.get("request_id"))] = changes[0].step
            self._spend(at, "person")
            yield from changes

    def _on_result(self, at: float, line: Mapping[str, Any]) -> Iterator[Change]:
        for key in list(self._blocks):
            yield from self._end_block(at, key)
        for step in list(self._calls.values()):
            step.until, step.outcome = at, "unanswered"
            yield Change("end", step)
        self._calls.clear()
        self._asking.clear()
        totals = self.totals
        totals.turns += 1
        totals.errors += bool(line.get("is_error"))
        cost = line.get("total_cost_usd")
        if isinstance(cost, int | float):  # a total of the conversation
            totals.cost = max(totals.cost, float(cost))
        usage: Mapping[str, Any] = line.get("usage") or {}
        for name in TOKENS:
            if isinstance(count := usage.get(name), int):
                totals.tokens[name] = totals.tokens.get(name, 0) + count
        shim = line.get("shim")
        repairs = shim.get("repairs") if isinstance(shim, Mapping) else None
        for name, count in repairs.items() if isinstance(repairs, Mapping) else ():
            totals.repairs[name] = totals.repairs.get(name, 0) + int(count)
        self._spend(at, "idle")
        yield from self._whole(at, "result", text=str(line.get("result") or ""), facts=line)

    # -- steps -------------------------------------------------------------------------------------------------

    def _step(self, at: float, kind: Kind, **fields: Any) -> Step:
        self._number += 1
        return Step(self._number, kind, at, turn=self._turn, **fields)

    def _whole(self, at: float, kind: Kind, **fields: Any) -> Iterator[Change]:
        step = self._step(at, kind, until=at, **fields)
        yield Change("begin", step)
        yield Change("end", step)

    def _grow(self, at: float, kind: Kind, parent: str, fragment: str) -> Iterator[Change]:
        step = self._blocks.get(parent)
        if step is not None and step.kind != kind:
            yield from self._end_block(at, parent)
            step = None
        if step is None:
            step = self._step(at, kind, parent=parent)
            if len(self._blocks) < OPEN_BLOCKS:
                self._blocks[parent] = step
            yield Change("begin", step)
        self._parts(step).append(fragment)
        yield Change("more", step, fragment)

    def _parts(self, step: Step) -> list[str]:
        """The fragments of an open block: joined once, at its end."""
        if not isinstance(step.extra, list):
            step.extra = []
        parts: list[str] = step.extra
        return parts

    def _end_block(self, at: float, parent: str) -> Iterator[Change]:
        step = self._blocks.pop(parent, None)
        if step is not None:
            step.text, step.extra, step.until = "".join(self._parts(step)), None, at
            yield Change("end", step)

    def _call(self, at: float, block: Mapping[str, Any], parent: str) -> Iterator[Change]:
        step = self._step(
            at, "call", call=str(block["id"]), name=str(block["name"]), input=block.get("input") or {}, parent=parent
        )
        self.totals.calls += 1
        if len(self._calls) < OPEN_CALLS:
            self._calls[step.call] = step
        self._spend(at, "tool")
        yield Change("begin", step)

    def _result_of(self, at: float, block: Mapping[str, Any], extra: Any) -> Iterator[Change]:
        step = self._calls.pop(str(block.get("tool_use_id")), None)
        if step is None:
            return
        failed = bool(block.get("is_error"))
        step.output, step.extra, step.until = block.get("content"), extra, at
        step.outcome = step.outcome or ("failed" if failed else "ok")
        self.totals.failed_calls += failed
        self._add(Span("tool", step.at, at, step.number))
        if not self._calls:
            self._spend(at, "model")
        yield Change("end", step)

    def _answered(self, at: float, response: Any) -> Iterator[Change]:
        if not isinstance(response, Mapping):
            return
        asked = self._asking.pop(str(response.get("request_id")), None)
        if asked is None:
            return
        answer = response.get("response")
        behaviour = str(answer.get("behavior")) if isinstance(answer, Mapping) else str(response.get("subtype"))
        if behaviour == "deny" and asked.call in self._calls:
            self._calls[asked.call].outcome = "denied"
        self._spend(at, "tool" if self._calls else "model")
        yield from self._whole(at, "answer", text=behaviour, name=asked.name, call=asked.call, facts=response)

    # -- time --------------------------------------------------------------------------------------------------

    def _model(self, at: float) -> None:
        if self._spending == "idle":
            self._spend(at, "model")

    def _spend(self, at: float, on: Spent) -> None:
        """From now on the time is spent on something else; calls have spans of their own, which may overlap."""
        spent, begin = self._spending, self._since
        if at > begin:
            self.totals.seconds[spent] = self.totals.seconds.get(spent, 0.0) + at - begin
            if spent != "tool":
                self._add(Span(spent, begin, at))
        self._spending, self._since = on, max(at, begin)

    def _add(self, span: Span) -> None:
        if len(self.timeline) < SPANS:
            self.timeline.append(span)
        else:
            last = self.timeline[-1]
            self.timeline[-1] = last._replace(end=max(last.end, span.end))


def text_of(content: Any) -> str:
    """The content of a message or of a result as text; what is none is named in brackets."""
    if not isinstance(content, list):
        return "" if content is None else str(content)
    parts = []
    for block in content:
        text = block.get("text") if isinstance(block, Mapping) else block
        parts.append(text if isinstance(text, str) else f"[{block.get('type')}]" if isinstance(block, Mapping) else "")
    return "\n".join(parts)
