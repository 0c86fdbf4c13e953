"""Converts the events of a session to session steps, as a person reads them: prompts, texts, tool
calls and their results. Also tracks how long each activity took.

The tracker receives Claude's events with their times. It returns a change for the start, the growth
and the end of each step. One renderer can therefore draw both live runs and recordings. The tracker
stores only open steps and totals.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from shim.core.claude.grammar import (
    get_delta,
    get_fragment,
    get_parent_call_id,
    get_stream_event,
    is_permission_request,
    list_content_blocks,
    list_tool_results,
)
from shim.core.reading.values import as_dict, as_list, as_str, get_text
from shim.story.events import (
    TOKEN_FIELDS,
    SessionStep,
    SessionStepChange,
    SessionTotals,
    StepKind,
    StreamedContentBlock,
    find_vendor_name,
    format_content_text,
    is_same_block_text,
)
from shim.story.timeline import ActivityTimeline

__all__ = [
    "TOKEN_FIELDS",
    "SessionStep",
    "SessionStepChange",
    "SessionStepTracker",
    "SessionTotals",
    "StepKind",
    "format_content_text",
]

MAX_COST_USD = 1e9  # larger numbers are not plausible costs
MAX_OPEN_CALLS = 10_000  # tool calls without a result yet
# The limit for content blocks that are streamed at the same time.
# The same limit applies to streamed blocks that wait for their complete lines.
MAX_OPEN_BLOCKS = 1000

# Internal events of Claude Code that are not shown to a person.
_IGNORED_EVENTS = frozenset(
    (
        "background_tasks_changed",
        "commands_changed",
        "hook_progress",
        "hook_started",
        "session_state_changed",
        "session_title_changed",
        "status",
        "task_progress",
        "task_updated",
        "thinking_tokens",
    )
)
# The start of a replayed user line that contains the output of a command and not a prompt.
COMMAND_OUTPUT_PREFIX = "<local-command-stdout>"
# Control requests that interrupt a turn or change a setting.
_SETTING_REQUESTS = ("interrupt", "set_model", "set_permission_mode")


class SessionStepTracker:
    """Converts events to session step changes. Events must be added in the order of their times.

    A turn starts with a prompt, or with the agent's first output after a result. A prompt that
    arrives during a turn belongs to that turn.
    """

    def __init__(self) -> None:
        self.totals = SessionTotals()
        self.model = self.session_id = self.vendor = ""
        self.timeline = ActivityTimeline()
        self.totals.seconds = self.timeline.seconds
        self._time_s = 0.0
        self._step_count = 0
        self._turn_number = 0
        self._queued_prompts = 0  # prompts that arrived during a turn
        self._turn_requested_s: float | None = None  # when the current or next turn was requested
        self._reply_count = 0  # messages of the main agent in this turn
        self._last_message_id = ""
        self._open_calls: dict[str, SessionStep] = {}
        # Failed tool calls of this turn. The result of the turn may report them as denied.
        self._failed_calls: dict[str, SessionStep] = {}
        self._pending_prompts: dict[str, SessionStep] = {}
        self._open_blocks: dict[str, StreamedContentBlock] = {}  # the open block of each agent
        # agent → streamed blocks whose complete line is still missing
        self._streamed_blocks: dict[str, list[tuple[str, str]]] = {}
        # (current session id, cost of earlier sessions, cost of the current session)
        self._costs: tuple[str, float, float] = "", 0.0, 0.0

    # -- input -------------------------------------------------------------------------------------

    def add_user_prompt(self, time_s: float, content: Any) -> list[SessionStepChange]:
        """Add a prompt. `content` is a text or the content blocks of a user message."""
        self._advance_time(time_s)
        if self.timeline.activity == "idle" or not self._turn_number:
            self._turn_requested_s = self._time_s
            self._start_turn()
        else:
            self._queued_prompts += 1
        return self.collect_step_changes(
            self._add_complete_step("prompt", text=format_content_text(content))
        )

    def add_claude_event(self, time_s: float, event: Mapping[str, Any]) -> list[SessionStepChange]:
        """Add an event of Claude's stream. Only the readable part of a malformed event is used."""
        handler = _HANDLERS.get(str(event.get("type")))
        if handler is None:
            return []
        self._advance_time(time_s)
        changes: list[SessionStepChange] = []
        try:
            for change in handler(self, event):
                changes.append(change)
        except (
            AttributeError,
            KeyError,
            TypeError,
            ValueError,
            IndexError,
            ArithmeticError,
            RecursionError,
        ):
            pass
        return self.collect_step_changes(changes)

    def add_session_line(self, time_s: float, line: Mapping[str, Any]) -> list[SessionStepChange]:
        """Add a line of a background session's stream. This stream also replays the messages that
        clients sent.
        """
        if line.get("type") == "user" and line.get("isReplay"):
            content = as_dict(line.get("message")).get("content")
            if isinstance(content, str) and content.startswith(COMMAND_OUTPUT_PREFIX):
                return []
            return self.add_user_prompt(time_s, content)
        return self.add_claude_event(time_s, line)

    def add_recorder_note(self, time_s: float, note: Mapping[str, Any]) -> list[SessionStepChange]:
        """Add a recorder note, for example about a repair or a timeout."""
        self._advance_time(time_s)
        return self.collect_step_changes(self._add_note(get_text(note, "kind", "note"), facts=note))

    def add_frontend_message(
        self, time_s: float, event: Mapping[str, Any]
    ) -> list[SessionStepChange]:
        """Add a line that a frontend sent: a prompt, an answer to a permission prompt, an
        interrupt, or a change of model or permission mode. Other lines are ignored.
        """
        self._advance_time(time_s)
        if event.get("type") == "user" and isinstance(event.get("message"), Mapping):
            return self.add_user_prompt(time_s, event["message"].get("content"))
        if event.get("type") == "control_response":
            return self.collect_step_changes(self._add_answer(event.get("response")))
        request = event.get("request")
        if (
            isinstance(request, Mapping)
            and (kind := str(request.get("subtype"))) in _SETTING_REQUESTS
        ):
            return self.collect_step_changes(self._add_note(kind, facts=request))
        return []

    def add_permission_answer(
        self, time_s: float, request_id: str, outcome: str, client: str
    ) -> list[SessionStepChange]:
        """Add the outcome of a permission prompt in a session with several clients. `outcome` is
        `allow`, `deny`, or the reason why the prompt was closed without an answer.
        """
        self._advance_time(time_s)
        fields: dict[str, Any] = {"subtype": outcome}
        if outcome in ("allow", "deny"):
            fields = {"response": {"behavior": outcome}}
        return self.collect_step_changes(
            self._add_answer({"request_id": request_id, "by": client, **fields})
        )

    def end_open_steps(self, time_s: float) -> list[SessionStepChange]:
        """End all open steps at the end of the session."""
        self._advance_time(time_s)
        changes = self.collect_step_changes(self._close_all_steps())
        self.timeline.switch_activity(self._time_s, self.timeline.activity)
        return changes

    def collect_step_changes(self, changes: Iterable[SessionStepChange]) -> list[SessionStepChange]:
        """Return the changes of one `add_` method as a list. All changes pass through this method,
        so that a subclass can observe them.
        """
        return list(changes)

    # -- events ------------------------------------------------------------------------------------

    def _on_system(self, event: Mapping[str, Any]) -> Iterator[SessionStepChange]:
        kind = str(event.get("subtype"))
        if kind == "init":
            yield from self._on_init(event)
        elif kind == "permission_denied" and str(event.get("tool_use_id")) in self._open_calls:
            self._open_calls[str(event.get("tool_use_id"))].outcome = "denied"
        elif kind not in _IGNORED_EVENTS and not (
            kind == "hook_response" and not event.get("exit_code")
        ):
            yield from self._add_note(kind, facts=event)

    def _on_init(self, event: Mapping[str, Any]) -> Iterator[SessionStepChange]:
        previous_session_id = self.session_id
        self.session_id = get_text(event, "session_id")
        self.model = get_text(event, "model")
        if vendor := find_vendor_name(event):
            self.vendor = vendor
        if self._queued_prompts:
            self._ensure_turn()
        if not previous_session_id or previous_session_id != self.session_id:
            yield from self._add_complete_step("start", text=self.model, facts=event)

    def _on_stream_event(self, line: Mapping[str, Any]) -> Iterator[SessionStepChange]:
        kind = get_stream_event(line).get("type")
        parent = get_parent_call_id(line)
        if kind == "message_start":
            self._streamed_blocks.pop(parent, None)
            self._ensure_turn()
        elif kind == "content_block_delta":
            key, fragment = get_fragment(get_delta(line))
            if fragment and key != "partial_json":
                self._ensure_turn()
                yield from self._extend_block(
                    "thinking" if key == "thinking" else "text", parent, fragment
                )
        elif kind in ("content_block_start", "content_block_stop", "message_stop"):
            yield from self._close_block(parent)

    def _on_assistant(self, line: Mapping[str, Any]) -> Iterator[SessionStepChange]:
        message = line["message"]
        parent = get_parent_call_id(line)
        self._ensure_turn()
        is_error = message.get("model") == "<synthetic>" and bool(line.get("error"))
        if not parent and not is_error:
            self._count_reply(as_str(message.get("id")))
        for block in list_content_blocks(line):
            kind = str(block.get("type"))
            if kind in ("tool_use", "server_tool_use", "mcp_tool_use"):
                yield from self._close_block(parent)
                yield from self._open_call(block, parent)
            elif kind.endswith("_tool_result"):
                yield from self._add_tool_result(block, None, parent)
            elif kind == "text" and is_error:
                yield from self._close_block(parent)
                yield from self._add_complete_step(
                    "error", text=str(block.get("text")), parent=parent, facts=line
                )
            elif kind in ("text", "thinking"):
                yield from self._add_block(
                    "text" if kind == "text" else "thinking", parent, block.get(kind)
                )
            elif kind == "redacted_thinking":
                yield from self._add_block("thinking", parent, "")

    def _count_reply(self, message_id: str) -> None:
        """Count a message of the main agent once. The content blocks of a message arrive in several
        lines with the same message id.
        """
        if not message_id or message_id != self._last_message_id:
            self._reply_count += 1
        self._last_message_id = message_id

    def _add_block(
        self, kind: StepKind, parent: str, full_text: Any
    ) -> Iterator[SessionStepChange]:
        """Add a complete content block. Text that was already streamed is not reported again."""
        full_text = as_str(full_text)
        block = self._open_blocks.get(parent)
        if (
            block is not None
            and block.step.kind == kind
            and is_same_block_text(streamed_text := block.join_text(), full_text)
        ):
            if full_text.startswith(streamed_text) and len(full_text) > len(streamed_text):
                yield from self._extend_block(kind, parent, full_text[len(streamed_text) :])
            yield from self._close_block(parent)
            self._streamed_blocks[parent].pop()
            return
        yield from self._close_block(parent)
        for index, (streamed_kind, streamed_text) in enumerate(
            self._streamed_blocks.get(parent, [])
        ):
            if streamed_kind == kind and is_same_block_text(streamed_text, full_text):
                del self._streamed_blocks[parent][index]
                if not full_text.startswith(streamed_text) or len(full_text) == len(streamed_text):
                    return
                full_text = full_text[len(streamed_text) :]
                break
        if full_text or kind == "thinking":
            yield from self._add_complete_step(kind, text=full_text, parent=parent)

    def _on_user(self, line: Mapping[str, Any]) -> Iterator[SessionStepChange]:
        if line.get("isReplay"):
            return
        blocks = list_content_blocks(line)
        parent = get_parent_call_id(line)
        if isinstance(content := line["message"].get("content"), str):
            blocks = [{"type": "text", "text": content}]
        extra = None
        if len(list_tool_results(line)) == 1:
            extra = line.get("tool_use_result")
        for block in blocks:
            if block.get("type") == "tool_result":
                yield from self._add_tool_result(block, extra, parent)
            elif block.get("type") == "text":
                yield from self._add_complete_step(
                    "note",
                    text=str(block.get("text")),
                    name="user",
                    parent=parent,
                    facts=line,
                )

    def _on_control_request(self, line: Mapping[str, Any]) -> Iterator[SessionStepChange]:
        request = line["request"]
        if not is_permission_request(request):
            return
        name = str(request.get("tool_name"))
        call_id = get_text(request, "tool_use_id")
        changes = list(
            self._add_complete_step(
                "question",
                text=name,
                name=name,
                call=call_id,
                input=_get_tool_input(request),
                facts=request,
            )
        )
        if len(self._pending_prompts) < MAX_OPEN_CALLS:
            self._pending_prompts[str(line.get("request_id"))] = changes[0].step
            self.timeline.switch_activity(self._time_s, "person")
        yield from changes

    def _on_cancel(self, line: Mapping[str, Any]) -> Iterator[SessionStepChange]:
        yield from self._add_answer({"request_id": line.get("request_id"), "subtype": "withdrawn"})

    def _on_conversation_reset(self, line: Mapping[str, Any]) -> Iterator[SessionStepChange]:
        yield from self._add_note("conversation_reset", facts=line)

    def _on_rate_limit(self, line: Mapping[str, Any]) -> Iterator[SessionStepChange]:
        if line["rate_limit_info"].get("status") != "allowed":
            yield from self._add_note("rate_limit", facts=line)

    def _on_result(self, line: Mapping[str, Any]) -> Iterator[SessionStepChange]:
        yield from self._close_all_steps()
        self._streamed_blocks.clear()
        self.timeline.switch_activity(self._time_s, "idle")
        previous_cost = self.totals.cost_usd
        yield from self._add_result_totals(line)
        turn_start_s = self._turn_requested_s
        if self._queued_prompts:
            self._turn_requested_s = self._time_s
        else:
            self._turn_requested_s = None
        if turn_start_s is None:
            turn_start_s = self._time_s
        cost = self.totals.cost_usd - previous_cost
        yield from self._add_complete_step(
            "result",
            text=get_text(line, "result"),
            facts=line,
            since=turn_start_s,
            cost=cost,
            replies=self._reply_count,
        )
        self._reply_count = 0

    def _add_result_totals(self, line: Mapping[str, Any]) -> Iterator[SessionStepChange]:
        totals = self.totals
        totals.add_turn_result(line)
        for denial in as_list(line.get("permission_denials")):
            call_id = str(as_dict(denial).get("tool_use_id"))
            if (step := self._failed_calls.pop(call_id, None)) is not None:
                step.outcome = "denied"
                totals.add_call_outcome("failed", -1)
                totals.add_call_outcome("denied")
                yield SessionStepChange("denied", step)
        self._failed_calls.clear()
        cost = line.get("total_cost_usd")
        if (
            isinstance(cost, int | float) and 0 <= cost < MAX_COST_USD
        ):  # this value is the cost of the session so far
            cost_session_id, earlier_cost, session_cost = self._costs
            if cost_session_id != (session_id := str(line.get("session_id"))):
                earlier_cost = earlier_cost + session_cost
                session_cost = 0.0
            self._costs = session_id, earlier_cost, max(session_cost, float(cost))
            totals.cost_usd = earlier_cost + self._costs[2]

    # -- steps -------------------------------------------------------------------------------------

    def _create_step(self, kind: StepKind, **fields: Any) -> SessionStep:
        self._step_count += 1
        return SessionStep(self._step_count, kind, self._time_s, turn=self._turn_number, **fields)

    def _add_complete_step(self, kind: StepKind, **fields: Any) -> Iterator[SessionStepChange]:
        step = self._create_step(kind, until=self._time_s, **fields)
        yield SessionStepChange("begin", step)
        yield SessionStepChange("end", step)

    def _add_note(self, name: str, **fields: Any) -> Iterator[SessionStepChange]:
        return self._add_complete_step("note", text=name, name=name, **fields)

    def _extend_block(
        self, kind: StepKind, parent: str, fragment: str
    ) -> Iterator[SessionStepChange]:
        block = self._open_blocks.get(parent)
        if block is not None and block.step.kind != kind:
            yield from self._close_block(parent)
            block = None
        if block is None:
            if len(self._open_blocks) >= MAX_OPEN_BLOCKS:
                yield from self._close_block(next(iter(self._open_blocks)))
            block = self._open_blocks[parent] = StreamedContentBlock(
                self._create_step(kind, parent=parent)
            )
            yield SessionStepChange("begin", block.step)
        block.add_fragment(fragment)
        yield SessionStepChange("more", block.step, fragment)

    def _close_block(self, parent: str) -> Iterator[SessionStepChange]:
        block = self._open_blocks.pop(parent, None)
        if block is not None:
            step = block.step
            step.text = block.join_text()
            step.until = self._time_s
            streamed = self._streamed_blocks.setdefault(parent, [])
            streamed.append((step.kind, step.text))
            del streamed[:-MAX_OPEN_BLOCKS]
            yield SessionStepChange("end", step)

    def _close_all_steps(self) -> Iterator[SessionStepChange]:
        """End all open steps. Open tool calls get the outcome `unanswered`."""
        for key in list(self._open_blocks):
            yield from self._close_block(key)
        for prompt_step in self._pending_prompts.values():
            self._add_prompt_wait(prompt_step)
        self._pending_prompts.clear()
        calls = self._open_calls
        self._open_calls = {}
        for step in calls.values():
            yield self._close_call(step, step.outcome or "unanswered")

    def _open_call(self, block: Mapping[str, Any], parent: str) -> Iterator[SessionStepChange]:
        call_id = str(block.get("id"))
        if call_id in self._open_calls:
            return
        step = self._create_step(
            "call",
            call=call_id,
            name=str(block.get("name")),
            input=_get_tool_input(block),
            parent=parent,
        )
        self.totals.calls += 1
        yield SessionStepChange("begin", step)
        if len(self._open_calls) >= MAX_OPEN_CALLS:
            yield self._close_call(step, "unanswered")
            return
        self._open_calls[call_id] = step
        self._update_activity()

    def _add_tool_result(
        self, block: Mapping[str, Any], extra: Any, parent: str
    ) -> Iterator[SessionStepChange]:
        call_id = str(block.get("tool_use_id"))
        step = self._open_calls.get(call_id)
        content = block.get("content")
        if step is None:  # a repeated result, or a result after the end of the turn
            yield from self._add_note("late_result", call=call_id, output=content, parent=parent)
            return
        for request_id, prompt_step in list(self._pending_prompts.items()):
            if prompt_step.call == call_id:
                self._add_prompt_wait(prompt_step)
                del self._pending_prompts[request_id]
        del self._open_calls[call_id]
        step.output = content
        step.extra = extra
        outcome = "ok"
        if block.get("is_error"):
            outcome = step.outcome or "failed"
        change = self._close_call(step, outcome)
        self._update_activity()
        yield change

    def _close_call(self, step: SessionStep, outcome: str) -> SessionStepChange:
        step.until = self._time_s
        step.outcome = outcome
        self.totals.add_call_outcome(outcome)
        if outcome == "failed" and len(self._failed_calls) < MAX_OPEN_CALLS:
            self._failed_calls[step.call] = step
        return SessionStepChange("end", step)

    def _add_answer(self, response: Any) -> Iterator[SessionStepChange]:
        if not isinstance(response, Mapping):
            return
        prompt_step = self._pending_prompts.pop(str(response.get("request_id")), None)
        if prompt_step is None:
            return
        self._add_prompt_wait(prompt_step)
        answer = response.get("response")
        if isinstance(answer, Mapping):
            decision = str(answer.get("behavior"))
        else:
            decision = str(response.get("subtype"))
        if decision == "deny" and prompt_step.call in self._open_calls:
            self._open_calls[prompt_step.call].outcome = "denied"
        self._update_activity()
        yield from self._add_complete_step(
            "answer",
            text=decision,
            name=prompt_step.name,
            call=prompt_step.call,
            facts=response,
        )

    def _add_prompt_wait(self, prompt_step: SessionStep) -> None:
        """Add the time since a permission prompt was shown to its tool call's `prompt_wait_s`."""
        call = self._open_calls.get(prompt_step.call)
        if call is not None:
            call.prompt_wait_s += max(self._time_s - prompt_step.at, 0.0)

    # -- time --------------------------------------------------------------------------------------

    def _advance_time(self, time_s: float) -> None:
        """Advance the current time to `time_s`. An earlier `time_s` is ignored."""
        self._time_s = self.totals.duration_s = max(time_s, self._time_s)

    def _start_turn(self) -> None:
        self._turn_number += 1
        if self._turn_requested_s is None:
            self._turn_requested_s = self._time_s
        self._queued_prompts = max(self._queued_prompts - 1, 0)
        self.timeline.switch_activity(self._time_s, "model")

    def _ensure_turn(self) -> None:
        """Start a turn if none is running."""
        if self.timeline.activity == "idle":
            self._start_turn()

    def _update_activity(self) -> None:
        """Set the current activity from the open permission prompts and tool calls."""
        if self.timeline.activity == "idle":
            return
        if self._pending_prompts:
            self.timeline.switch_activity(self._time_s, "person")
        elif self._open_calls:
            self.timeline.switch_activity(self._time_s, "tool")
        else:
            self.timeline.switch_activity(self._time_s, "model")


_HANDLERS: dict[
    str, Callable[[SessionStepTracker, Mapping[str, Any]], Iterator[SessionStepChange]]
] = {
    "system": SessionStepTracker._on_system,
    "stream_event": SessionStepTracker._on_stream_event,
    "assistant": SessionStepTracker._on_assistant,
    "user": SessionStepTracker._on_user,
    "result": SessionStepTracker._on_result,
    "conversation_reset": SessionStepTracker._on_conversation_reset,
    "control_request": SessionStepTracker._on_control_request,
    "control_cancel_request": SessionStepTracker._on_cancel,
    "rate_limit_event": SessionStepTracker._on_rate_limit,
}


def _get_tool_input(block: Mapping[str, Any]) -> Mapping[str, Any]:
    value = block.get("input")
    if isinstance(value, Mapping):
        return value
    if value is None:
        return {}
    return {"input": value}
