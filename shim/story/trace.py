"""A cast as traces have it: each reply of the model with its blocks, its calls and what it cost.

A Story tells blocks as they come; a Trace sorts them into replies, and returns a reply when it is
over and all of its calls are answered. A nested agent has a lane of its own, named by the call that
it serves; "" is the main lane.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from shim.story.reading import Recording, StoryReader
from shim.story.story import TOKEN_FIELDS, Step, StepChange, Story

HELD = 1000  # items of a lane that wait for an earlier one, which is then returned unfinished
LANES = 1000  # nested agents of a session; further ones share the main lane
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class ModelReply:
    """One answer of the model. Times are seconds since the beginning: `at` when it was asked,
    `first` when it began to speak, `until` when it was over. `parts` are its texts, thoughts and
    calls in their order.

    `streamed`: it came in fragments. `usage` has the names of Claude's; `whole`: its output tokens
    are all known. `turn` counts the results of the session, from 1. `number` counts the replies.
    """

    number: int
    turn: int
    at: float
    until: float
    identity: str = ""
    model: str = ""
    parent: str = ""
    reason: str = ""
    first: float | None = None
    parts: list[Step] = field(default_factory=list)
    usage: dict[str, int] = field(default_factory=dict)
    whole: bool = False
    streamed: bool = False
    closed: bool = False

    @property
    def calls(self) -> list[Step]:
        return [part for part in self.parts if part.kind == "call"]

    def text(self, kind: str = "text") -> str:
        return "\n\n".join(part.text for part in self.parts if part.kind == kind and part.text)

    @property
    def known_usage(self) -> dict[str, int]:
        """Its tokens without a count that may be too low; {} if there are none."""
        known = {
            name: count
            for name, count in self.usage.items()
            if self.whole or name != "output_tokens"
        }
        return known if any(known.values()) else {}

    @property
    def done(self) -> bool:
        return self.closed and all(part.until is not None for part in self.parts)


Item = ModelReply | Step


class _Lane:
    """One agent's items in order; `since` is when it began to wait for the model."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.items: deque[Item] = deque()
        self.reply: ModelReply | None = None

    def take(self, everything: bool) -> Iterator[Item]:
        items = self.items
        while items:
            head = items[0]
            if isinstance(head, ModelReply) and not (head.done or everything or len(items) > HELD):
                return
            yield items.popleft()


class Replies:
    """Sorts the steps of a story into replies. Its items are Replies, and Steps that belong to
    none.
    """

    def __init__(self) -> None:
        self.replies = 0
        self.results = 0
        self.facts: Mapping[str, Any] = {}  # of the session's first init
        self._lanes: dict[str, _Lane] = {}

    def take(self, *, everything: bool = False) -> list[tuple[str, Item]]:
        """The finished items, each with its lane: those of a lane in order, nested agents before
        their callers.
        """
        lanes = reversed(self._lanes.items())
        return [(name, item) for name, lane in lanes for item in lane.take(everything)]

    def about(self, at: float, line: Mapping[str, Any]) -> None:
        """Take from a line what it says of its reply."""
        inner, parent = line.get("event"), str(line.get("parent_tool_use_id") or "")
        streamed = isinstance(inner, Mapping)
        message = inner.get("message") if isinstance(inner, Mapping) else line.get("message")
        if isinstance(message, Mapping) and message.get("model") != "<synthetic>":
            identity = str(message.get("id") or "")
            reply = self._reply(at, parent)
            if reply is None or reply.identity != identity:
                reply = self._begin(at, parent, identity)
            reply.streamed = reply.streamed or streamed
            reply.model = str(message.get("model") or reply.model)
            reply.reason = str(message.get("stop_reason") or reply.reason)
            self._count(reply, message.get("usage"), whole=bool(message.get("stop_reason")))
        elif (
            streamed
            and isinstance(inner, Mapping)
            and (reply := self._reply(at, parent)) is not None
        ):
            if inner.get("type") == "message_delta":
                delta = inner.get("delta")
                reply.reason = str(
                    (isinstance(delta, Mapping) and delta.get("stop_reason")) or reply.reason
                )
                self._count(reply, inner.get("usage"), whole=True)
            reply.until = max(at, reply.until)

    def _count(self, reply: ModelReply, usage: Any, *, whole: bool) -> None:
        """Add the tokens of a reply; a line that knows fewer than the one before changes nothing."""
        if not isinstance(usage, Mapping):
            return
        for name in TOKEN_FIELDS:
            count = usage.get(name)
            if isinstance(count, int) and count > reply.usage.get(name, 0):
                reply.usage[name] = count
        reply.whole = reply.whole or (whole and bool(reply.usage.get("output_tokens")))

    def _reply(self, at: float, parent: str) -> ModelReply | None:
        return self._lane(at, parent).reply

    def _begin(self, at: float, parent: str, identity: str) -> ModelReply:
        lane = self._lane(at, parent)
        self._close(lane, at)
        self.replies += 1
        reply = ModelReply(
            self.replies,
            self.results + 1,
            min(lane.since, at),
            at,
            identity=identity,
            parent=parent,
        )
        lane.reply = reply
        lane.items.append(reply)
        return reply

    def _close(self, lane: _Lane, at: float) -> None:
        if lane.reply is not None:
            lane.reply.closed = True
            lane.reply = None

    def turn_over(self, at: float) -> None:
        for lane in self._lanes.values():
            self._close(lane, at)
            lane.since = at

    def _lane(self, at: float, parent: str) -> _Lane:
        lane = self._lanes.get(parent)
        if lane is None:
            if len(self._lanes) > LANES:
                parent = ""
            lane = self._lanes.setdefault(parent, _Lane(at))
        return lane

    def sort(self, at: float, changes: Iterable[StepChange]) -> None:
        for what, step, _ in changes:
            if step.kind in ("text", "thinking", "call"):
                if what == "begin":
                    self._part(at, step)
                elif what == "end" and step.kind == "call":
                    self._lane(at, step.parent).since = at
            elif what == "begin":
                self._beside(at, step)

    def _part(self, at: float, step: Step) -> None:
        reply = self._reply(at, step.parent) or self._begin(at, step.parent, "")
        reply.parts.append(step)
        reply.first = at if reply.first is None else reply.first
        reply.until = max(at, reply.until)

    def _beside(self, at: float, step: Step) -> None:
        if step.kind == "start":
            self.facts = self.facts or step.facts
        lane = self._lane(at, step.parent)
        if step.kind == "prompt":
            lane.since = at
        elif step.kind in ("error", "result"):
            self._close(lane, at)
        lane.items.append(step)


class Trace(Story):
    """A story that is also sorted into `replies`."""

    def __init__(self) -> None:
        super().__init__()
        self.replies = Replies()

    def event(self, at: float, event: Mapping[str, Any]) -> list[StepChange]:
        kind = event.get("type")
        if kind in ("assistant", "stream_event"):
            self.replies.about(at, event)
        changes = super().event(at, event)
        if kind == "result":
            self.replies.results += 1
            self.replies.turn_over(at)
        return changes

    def close(self, at: float) -> list[StepChange]:
        changes = super().close(at)
        self.replies.turn_over(at)
        return changes

    def told(self, at: float, changes: Iterable[StepChange]) -> list[StepChange]:
        told = super().told(at, changes)
        self.replies.sort(at, told)
        return told


class TracedCast:
    """A cast that is read once as a trace. CastError if it cannot be read."""

    def __init__(self, path: str) -> None:
        self._cast = Recording(path)
        self.header = self._cast.header
        self.trace = Trace()
        self._began = _moment(self.header.started)

    def items(self) -> Iterator[tuple[str, Item]]:
        """The items, each with its agent's lane; those of a lane in order."""
        teller = StoryReader(self.header)
        teller.story = self.trace
        for record in self._cast.read_records():
            teller.feed(record)
            yield from self.trace.replies.take()
        teller.close()
        yield from self.trace.replies.take(everything=True)

    @property
    def cut(self) -> bool:
        """Whether the recording lacks its end or has unreadable lines; known after the last item."""
        return not self._cast.reader.has_end or bool(self._cast.reader.skipped_lines)

    @property
    def model(self) -> str:
        """The model of the session, or ""."""
        name = str(self.trace.replies.facts.get("model") or "")
        return "" if name == "unknown" else name  # an init that came before the model was known

    @property
    def vendor(self) -> str:
        """The vendor that answered; in a fallback list it may be a later one than the header's."""
        return self.trace.vendor or self.header.vendor

    @property
    def session(self) -> str:
        return str(self.trace.replies.facts.get("session_id") or "")

    @property
    def version(self) -> str:
        """The vendor's version, or ""; a real claude's is in its init."""
        passed = not self.trace.replies.facts.get("shim")
        said: Any = self.trace.replies.facts.get("claude_code_version") if passed else ""
        recorded = self.header.vendor_version if self.vendor == self.header.vendor else ""
        return recorded or str(said or "")

    def iso(self, at: float) -> str | None:
        """ISO 8601 in UTC to the millisecond; None if the recording's beginning is unknown."""
        if self._began is None:
            return None
        try:
            return (
                (self._began + timedelta(seconds=at))
                .isoformat(timespec="milliseconds")
                .replace("+00:00", "Z")
            )
        except OverflowError:
            return None

    def nanoseconds(self, at: float) -> int:
        """Since 1970; since the recording's beginning if that is unknown."""
        began = 0 if self._began is None else (self._began - EPOCH) // timedelta(microseconds=1)
        return min(max(began * 1000 + round(at * 1e9), 0), 2**63 - 1)


def _moment(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
