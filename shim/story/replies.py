"""Collects the model replies of a recording for traces, each with its content blocks, tool calls
and usage.

A SessionStepTracker returns steps in the order of their arrival. A SessionTrace assigns the steps
to model replies. It returns a reply when the reply has ended and all of its tool calls have
results. Each subagent has its own queue, which is named after the call that runs the subagent. The
main agent's queue is "".
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from shim.core.claude.grammar import get_parent_call_id, get_stream_event
from shim.core.reading.values import as_dict, get_text
from shim.recording.recording_file import Recording
from shim.story.model import TOKEN_FIELDS, SessionStep, SessionStepChange, SessionStepTracker
from shim.story.reader import RecordedSessionStepReader

# The number of items in an agent's queue that may wait for an unfinished reply.
# Beyond this number, the reply is returned unfinished.
MAX_WAITING_ITEMS = 1000
MAX_AGENTS = 1000  # subagents per session; any further subagents share the main agent's queue
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class ModelReply:
    """One model reply. Times are seconds since the start of the session.

    number           counts the replies from 1
    turn             the number of the turn, from 1
    at               when the reply was requested
    first_output_at  when the first output arrived, or None
    until            when the reply ended
    parts            text, thinking and tool call steps in order
    streamed         whether the reply arrived in fragments
    usage            token counts by Claude's names
    has_final_usage  whether the count of output tokens is final
    """

    number: int
    turn: int
    at: float
    until: float
    message_id: str = ""
    model: str = ""
    parent: str = ""
    stop_reason: str = ""
    first_output_at: float | None = None
    parts: list[SessionStep] = field(default_factory=list)
    usage: dict[str, int] = field(default_factory=dict)
    has_final_usage: bool = False
    streamed: bool = False
    is_closed: bool = False

    @property
    def tool_calls(self) -> list[SessionStep]:
        return [part for part in self.parts if part.kind == "call"]

    def join_part_texts(self, kind: str = "text") -> str:
        return "\n\n".join(part.text for part in self.parts if part.kind == kind and part.text)

    @property
    def final_token_counts(self) -> dict[str, int]:
        """Return the reply's token counts, without an output count that may be too low. Return {}
        if no counts are left.
        """
        reliable = {
            name: count
            for name, count in self.usage.items()
            if self.has_final_usage or name != "output_tokens"
        }
        if any(reliable.values()):
            return reliable
        return {}

    @property
    def is_complete(self) -> bool:
        return self.is_closed and all(part.until is not None for part in self.parts)


TraceItem = ModelReply | SessionStep


class _AgentQueue:
    """One agent's replies and steps, in order. `waiting_since` is the time at which the agent
    started to wait for the model, in seconds.
    """

    def __init__(self, waiting_since: float) -> None:
        self.waiting_since = waiting_since
        self.items: deque[TraceItem] = deque()
        self.reply: ModelReply | None = None

    def pop_ready(self, include_unfinished: bool) -> Iterator[TraceItem]:
        items = self.items
        while items:
            head = items[0]
            if isinstance(head, ModelReply) and not (
                head.is_complete or include_unfinished or len(items) > MAX_WAITING_ITEMS
            ):
                return
            yield items.popleft()


class ModelReplyCollector:
    """Assigns session steps to model replies. Its items are replies, and steps that belong to no
    reply.
    """

    def __init__(self) -> None:
        self.reply_count = 0
        self.result_count = 0
        self.init_fields: Mapping[str, Any] = {}  # fields of the first `init`
        self._queues: dict[str, _AgentQueue] = {}

    def pop_finished_items(
        self, *, include_unfinished: bool = False
    ) -> list[tuple[str, TraceItem]]:
        """Remove and return the finished items, each with the name of its agent's queue. The order
        within a queue is kept. Items of subagents precede items of their callers.
        """
        queues = reversed(self._queues.items())
        return [
            (agent, item) for agent, queue in queues for item in queue.pop_ready(include_unfinished)
        ]

    def add_message_line(self, time_s: float, line: Mapping[str, Any]) -> None:
        """Read a reply's metadata from a message line or a stream event."""
        event = get_stream_event(line)
        parent = get_parent_call_id(line)
        message = as_dict((event or line).get("message"))
        if message and message.get("model") != "<synthetic>":
            message_id = get_text(message, "id")
            reply = self._find_reply(time_s, parent)
            if reply is None or reply.message_id != message_id:
                reply = self._start_reply(time_s, parent, message_id)
            if event:
                reply.streamed = True
            reply.model = get_text(message, "model", reply.model)
            reply.stop_reason = get_text(message, "stop_reason", reply.stop_reason)
            self._add_usage(reply, message.get("usage"), is_final=bool(message.get("stop_reason")))
        elif event and (reply := self._find_reply(time_s, parent)) is not None:
            if event.get("type") == "message_delta":
                delta = as_dict(event.get("delta"))
                reply.stop_reason = get_text(delta, "stop_reason", reply.stop_reason)
                self._add_usage(reply, event.get("usage"), is_final=True)
            reply.until = max(time_s, reply.until)

    def _add_usage(self, reply: ModelReply, usage: Any, *, is_final: bool) -> None:
        """Update a reply's token counts. A count that is lower than the previous count is ignored."""
        if not isinstance(usage, Mapping):
            return
        for name in TOKEN_FIELDS:
            count = usage.get(name)
            if isinstance(count, int) and count > reply.usage.get(name, 0):
                reply.usage[name] = count
        if is_final and reply.usage.get("output_tokens"):
            reply.has_final_usage = True

    def _find_reply(self, time_s: float, parent: str) -> ModelReply | None:
        return self._get_queue(time_s, parent).reply

    def _start_reply(self, time_s: float, parent: str, message_id: str) -> ModelReply:
        queue = self._get_queue(time_s, parent)
        self._close_reply(queue)
        self.reply_count += 1
        reply = ModelReply(
            self.reply_count,
            self.result_count + 1,
            min(queue.waiting_since, time_s),
            time_s,
            message_id=message_id,
            parent=parent,
        )
        queue.reply = reply
        queue.items.append(reply)
        return reply

    def _close_reply(self, queue: _AgentQueue) -> None:
        if queue.reply is not None:
            queue.reply.is_closed = True
            queue.reply = None

    def close_open_replies(self, time_s: float) -> None:
        for queue in self._queues.values():
            self._close_reply(queue)
            queue.waiting_since = time_s

    def _get_queue(self, time_s: float, parent: str) -> _AgentQueue:
        queue = self._queues.get(parent)
        if queue is None:
            if len(self._queues) > MAX_AGENTS:
                parent = ""
            queue = self._queues.setdefault(parent, _AgentQueue(time_s))
        return queue

    def add_step_changes(self, time_s: float, changes: Iterable[SessionStepChange]) -> None:
        for phase, step, _ in changes:
            if step.kind in ("text", "thinking", "call"):
                if phase == "begin":
                    self._add_part(time_s, step)
                elif phase == "end" and step.kind == "call":
                    self._get_queue(time_s, step.parent).waiting_since = time_s
            elif phase == "begin":
                self._add_other_step(time_s, step)

    def _add_part(self, time_s: float, step: SessionStep) -> None:
        reply = self._find_reply(time_s, step.parent) or self._start_reply(time_s, step.parent, "")
        reply.parts.append(step)
        if reply.first_output_at is None:
            reply.first_output_at = time_s
        reply.until = max(time_s, reply.until)

    def _add_other_step(self, time_s: float, step: SessionStep) -> None:
        if step.kind == "start" and not self.init_fields:
            self.init_fields = step.facts
        queue = self._get_queue(time_s, step.parent)
        if step.kind == "prompt":
            queue.waiting_since = time_s
        elif step.kind in ("error", "result"):
            self._close_reply(queue)
        queue.items.append(step)


class SessionTrace(SessionStepTracker):
    """A session step tracker that also collects model replies in `replies`."""

    def __init__(self) -> None:
        super().__init__()
        self.replies = ModelReplyCollector()

    def add_claude_event(self, time_s: float, event: Mapping[str, Any]) -> list[SessionStepChange]:
        kind = event.get("type")
        if kind in ("assistant", "stream_event"):
            self.replies.add_message_line(time_s, event)
        changes = super().add_claude_event(time_s, event)
        if kind == "result":
            self.replies.result_count += 1
            self.replies.close_open_replies(time_s)
        return changes

    def end_open_steps(self, time_s: float) -> list[SessionStepChange]:
        changes = super().end_open_steps(time_s)
        self.replies.close_open_replies(time_s)
        return changes

    def collect_step_changes(self, changes: Iterable[SessionStepChange]) -> list[SessionStepChange]:
        emitted = super().collect_step_changes(changes)
        self.replies.add_step_changes(self._time_s, emitted)
        return emitted


class RecordingTraceReader:
    """Reads a recording once, as a trace. Raise RecordingError if the recording cannot be read."""

    def __init__(self, path: str) -> None:
        self._recording = Recording(path)
        self.header = self._recording.header
        self.trace = SessionTrace()
        self._start_time = _parse_time(self.header.started)

    def read_trace_items(self) -> Iterator[tuple[str, TraceItem]]:
        """Yield replies and other steps, each with the name of its agent's queue. The order within
        a queue is kept.
        """
        story_reader = RecordedSessionStepReader(self.header)
        story_reader.story = self.trace
        for record in self._recording.read_records():
            story_reader.feed(record)
            yield from self.trace.replies.pop_finished_items()
        story_reader.close()
        yield from self.trace.replies.pop_finished_items(include_unfinished=True)

    @property
    def is_incomplete(self) -> bool:
        """Return whether the recording has no end or has unreadable lines. Only valid after all
        items have been read.
        """
        if not self._recording.reader.has_end:
            return True
        return bool(self._recording.reader.skipped_lines)

    @property
    def model(self) -> str:
        """Return the session's model, or "" if unknown."""
        name = get_text(self.trace.replies.init_fields, "model")
        # an early `init` does not know the model yet
        if name == "unknown":
            return ""
        return name

    @property
    def answering_vendor_name(self) -> str:
        """Return the name of the vendor that answered. In a fallback list, a later vendor than the
        header's may have answered.
        """
        return self.trace.vendor or self.header.vendor

    @property
    def session_id(self) -> str:
        return get_text(self.trace.replies.init_fields, "session_id")

    @property
    def vendor_version(self) -> str:
        """Return the vendor's version, or "" if unknown. For the real claude, the version is read
        from `init`.
        """
        if self.header.vendor_version and self.answering_vendor_name == self.header.vendor:
            return self.header.vendor_version
        init_fields = self.trace.replies.init_fields
        if init_fields.get("shim"):
            return ""
        return get_text(init_fields, "claude_code_version")

    def format_iso_time(self, time_s: float) -> str | None:
        """Format a time as ISO 8601 in UTC with milliseconds. Return None if the start time of the
        recording is unknown.
        """
        if self._start_time is None:
            return None
        try:
            return (
                (self._start_time + timedelta(seconds=time_s))
                .isoformat(timespec="milliseconds")
                .replace("+00:00", "Z")
            )
        except OverflowError:
            return None

    def convert_to_unix_nanoseconds(self, time_s: float) -> int:
        """Convert a time to nanoseconds since 1970. If the start time of the recording is unknown,
        they count from the start of the recording.
        """
        start_us = 0
        if self._start_time is not None:
            start_us = (self._start_time - EPOCH) // timedelta(microseconds=1)
        return min(max(start_us * 1000 + round(time_s * 1e9), 0), 2**63 - 1)


def _parse_time(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    if time.tzinfo is None:
        return time.replace(tzinfo=UTC)
    return time.astimezone(UTC)
