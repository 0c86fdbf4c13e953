"""The calls of the Qwen RFC: said whole, in fragments, or first shown by a display (rows 3, 4, 6,
10 to 12).
"""

from typing import Any

from shim.adapters.qwen_rfc_tools import (
    CALL_ID_PREFIX,
    FAILED_STATUSES,
    FINAL_STATUSES,
    TOOLS,
    infer_tool_call_from_display_event,
    is_complete_arguments_json,
    read_tool_result_display_text,
    translate_chat_tool_call,
)
from shim.core.adapter.tools import translate_tool_call
from shim.core.adapter.translator import Event, Translator
from shim.core.turn.open_calls import normalize_call_id
from shim.core.turn.tool_calls import MAX_OPEN_CALLS
from shim.core.turn.turn import Turn
from shim.profiles.run.partial_calls import is_start_of_new_tool_call

WAITING_STATUSES = frozenset(("pending", "validating", "scheduled", "confirming"))
RUNNING_STATUSES = frozenset(("executing",))


# Of one reply: more than any model asks for at once, and more than the arguments of its calls are
# long.
MAX_CALLS = 1000
MAX_FRAGMENT_BYTES = 4 * 1024 * 1024
FRAGMENT_OVERHEAD_BYTES = 64  # a fragment costs so much besides its characters


class PartialChatToolCall:
    """One call: what is known of it so far. `is_complete` until a fragment of it had to be left
    out.
    """

    __slots__ = ("call_id", "fragments", "is_complete", "name")

    def __init__(self) -> None:
        self.call_id = self.name = ""
        self.fragments: list[str] = []
        self.is_complete = True


class ChatToolCallDeltaBuffer:
    """The calls of the open reply. `dropped_count` counts those that were given up, because there
    was too much of them.
    """

    def __init__(self) -> None:
        self._by_index: dict[object, PartialChatToolCall] = {}
        self._last_call: PartialChatToolCall | None = None
        self._fragment_bytes = 0
        self.dropped_count = 0

    def __bool__(self) -> bool:
        return bool(self._by_index)

    def has_call_id(self, call_id: str) -> bool:
        return any(part.call_id == call_id for part in self._by_index.values())

    def add_tool_call_deltas(self, deltas: list[dict[str, Any]]) -> None:
        """Add the `tool_calls` of one delta. TypeError or AttributeError if they are not fragments."""
        for position, delta in enumerate(deltas):
            function = delta.get("function") or {}
            fragment = function.get("arguments") or ""
            if not isinstance(fragment, str):
                raise TypeError("the arguments of a call are no text")
            part = self._find_or_create(delta, position, is_only=len(deltas) == 1)
            if part is None:
                self.dropped_count += 1
                continue
            self._last_call = part
            part.call_id = part.call_id or normalize_call_id(delta.get("id"))
            part.name = part.name or str(function.get("name") or "")
            self._fragment_bytes += len(fragment) + FRAGMENT_OVERHEAD_BYTES
            if self._fragment_bytes > MAX_FRAGMENT_BYTES:
                part.is_complete = False
                part.fragments.clear()
            elif fragment and part.is_complete:
                part.fragments.append(fragment)

    def _find_or_create(
        self, delta: dict[str, Any], position: int, *, is_only: bool
    ) -> PartialChatToolCall | None:
        """The call that a fragment belongs to: by index, else by id, else the last one or that at
        its position.
        """
        index, delta_id = delta.get("index"), delta.get("id")
        key: object
        if index.__class__ is int:
            key = index
        elif delta_id:
            key = normalize_call_id(delta_id)
            if key not in self._by_index:
                key = next(
                    (
                        candidate_key
                        for candidate_key, part in self._by_index.items()
                        if part.call_id == key
                    ),
                    key,
                )
        elif is_only and self._last_call is not None:
            key = next(
                existing_key
                for existing_key, part in self._by_index.items()
                if part is self._last_call
            )
        else:
            key = next(iter(list(self._by_index)[position : position + 1]), position)
        part = self._by_index.get(key)
        function = delta.get("function") or {}
        previous_part = None
        if part is not None and is_start_of_new_tool_call(
            part, normalize_call_id(delta_id), function.get("name"), function.get("arguments")
        ):
            self._by_index = {
                object() if existing_key == key else existing_key: other_part
                for existing_key, other_part in self._by_index.items()
            }
            previous_part, part = part, None
        if part is None and len(self._by_index) < MAX_CALLS:
            part = self._by_index[key] = PartialChatToolCall()
            # its first piece was added to the call before it
            if previous_part is not None and not function.get("name"):
                part.call_id, part.name = previous_part.call_id, previous_part.name
        return part

    def take_complete_calls(self) -> list[tuple[str, str, str]]:
        """The whole calls in the order of their beginning, as id, name and arguments; all of them
        are forgotten.
        """
        parts = list(self._by_index.values())
        self.clear()
        self.dropped_count += sum(not (part.is_complete and part.name) for part in parts)
        return [
            (part.call_id, part.name, "".join(part.fragments))
            for part in parts
            if part.is_complete and part.name
        ]

    def clear(self) -> None:
        """The reply ended before they were complete."""
        self._by_index.clear()
        self._last_call, self._fragment_bytes = None, 0


class QwenChatToolCallTranslator(Translator):
    """`_choose_stop_reason` is how the last reply ended: None while one is open, or after a tool's
    result.

    `_partial_calls` are the calls of the open reply that come in fragments. `_unreported_results`:
    calls that are over, whose display showed nothing: a message may say what they returned.
    """

    def __init__(self, turn: Turn, *, partial: bool = False) -> None:
        super().__init__(turn, partial=partial)
        self._reset_state()

    def _reset_state(self) -> None:
        self._stop_reason: str | None = None
        self._partial_calls = ChatToolCallDeltaBuffer()
        self._unreported_results: dict[str, list[bool]] = {}
        # id of a call → number of displayed results without a message yet
        self._displayed_counts: dict[str, int] = {}

    def start_turn(self, turn: Turn) -> None:
        super().start_turn(turn)
        self._reset_state()

    def _write_call(self, call_id: Any, name: Any, arguments: Any) -> None:
        self.turn.add_tool_call(
            normalize_call_id(call_id),
            *translate_chat_tool_call(name, arguments, self.turn.diagnostics),
        )

    def _write_partial_calls(self, *, is_cut: bool = False) -> None:
        """The calls of the open reply, now that their arguments are complete; `is_cut`: one may be
        half, which is none.
        """
        for call_id, name, arguments in self._partial_calls.take_complete_calls():
            if is_cut and not is_complete_arguments_json(arguments):
                self.turn.diagnostics.record("cut_call", name)
            else:
                self._write_call(call_id, name, arguments)
        if self._partial_calls.dropped_count:
            self.turn.diagnostics.record("call_given_up")
            self._partial_calls.dropped_count = 0

    def _resolve_call_id(self, raw_id: Any) -> str:
        """The id of a call under which it was said, with or without the prefix that displays add."""
        turn, call_id = self.turn, normalize_call_id(raw_id)
        spellings = (call_id, call_id.removeprefix(CALL_ID_PREFIX), CALL_ID_PREFIX + call_id)
        for spelling in spellings:
            if spelling in turn.open_calls or self._partial_calls.has_call_id(spelling):
                return spelling
        return next(
            (spelling for spelling in spellings if turn.conversation.has_used_call_id(spelling)),
            call_id,
        )

    def _write_tool_message(self, message: dict[str, Any]) -> None:
        """Row 4: a message of the tool's; a display may have said the same before."""
        call_id, turn = self._resolve_call_id(message.get("tool_call_id")), self.turn
        # this message repeats a displayed result; another open call may have its id
        if self._displayed_counts.get(call_id):
            self._displayed_counts[call_id] -= 1
        elif call_id in turn.open_calls or not turn.conversation.has_used_call_id(call_id):
            self._resume_turn()
            name = message.get("name")
            options: dict[str, Any] = (
                {"name": translate_tool_call(TOOLS, name, {})[0]} if isinstance(name, str) else {}
            )
            failed = self._take_unreported_result(call_id, default=False) or bool(
                message.get("is_error")
            )
            turn.add_tool_result(
                call_id, join_message_text(message.get("content")), failed, **options
            )
            self._pause_after_result()

    def _resume_turn(self) -> None:
        self._stop_reason = None
        self.turn.cancel_vendor_completion()

    def _pause_after_result(self) -> None: ...

    def _translate_display(self, event: Event) -> None:
        """Rows 10 to 12."""
        call_id, turn = self._resolve_call_id(event.get("tool_call_id")), self.turn
        status = str(event.get("status") or "").lower()
        if status in WAITING_STATUSES or event.get("pending"):
            return
        if status not in FINAL_STATUSES and status not in RUNNING_STATUSES:
            turn.record_unknown_event(f"x-qwen-tool-display/{status}", event)
            return
        if self._partial_calls.has_call_id(call_id):
            self._write_partial_calls()
        if turn.find_call(call_id) is None and not turn.conversation.has_used_call_id(call_id):
            name, arguments = infer_tool_call_from_display_event(event, turn.diagnostics)
            if not name and status in RUNNING_STATUSES:
                return
            turn.add_tool_call(call_id, name or "unknown", arguments)
        if turn.find_call(call_id) is not None:
            self._resume_turn()
            self._write_nested_calls(call_id, event.get("result_display"))
            if status in FINAL_STATUSES:
                self._finish_display(call_id, event, status in FAILED_STATUSES)

    def _finish_display(self, call_id: str, event: Event, failed: bool) -> None:
        text = read_tool_result_display_text(event)
        if text or event.get("result_display") is not None:
            self.turn.add_tool_result(call_id, text, failed)
            if len(self._displayed_counts) < MAX_OPEN_CALLS:
                self._displayed_counts[call_id] = self._displayed_counts.get(call_id, 0) + 1
            self._pause_after_result()
        elif len(self._unreported_results) < MAX_OPEN_CALLS:
            self._unreported_results.setdefault(call_id, []).append(failed)

    def _take_unreported_result(self, call_id: str, *, default: bool) -> bool:
        """Return whether the first call with this id failed, according to a display without
        content.
        """
        failures = self._unreported_results.get(call_id)
        return failures.pop(0) if failures else default

    def _write_nested_calls(self, call_id: str, display: Any) -> None:
        """The calls of a nested agent, each said once, with its result as soon as it has one."""
        if not isinstance(display, dict) or display.get("kind") != "task_execution":
            return
        turn = self.turn
        for nested_call in display.get("toolCalls") or ():
            if not isinstance(nested_call, dict) or not nested_call.get("callId"):
                continue
            nested_id, child = normalize_call_id(nested_call["callId"]), turn.get_subagent(call_id)
            if not turn.conversation.has_used_call_id(nested_id):
                child.add_tool_call(
                    nested_id,
                    *translate_chat_tool_call(
                        nested_call.get("name"), nested_call.get("args"), turn.diagnostics
                    ),
                )
            status = str(nested_call.get("status") or "").lower()
            if (
                status in ("success", *FAILED_STATUSES, "failed")
                and nested_id in turn.subagents.open_calls
            ):
                result = (
                    nested_call.get("result")
                    or nested_call.get("resultDisplay")
                    or nested_call.get("error")
                    or ""
                )
                child.add_tool_result(nested_id, result, status != "success")


def join_message_text(content: Any) -> str:
    """The text of a message: a string, or the text parts of a list."""
    if isinstance(content, list):
        return "".join(
            part["text"]
            for part in content
            if isinstance(part, dict) and isinstance(part.get("text"), str)
        )
    if content is not None and not isinstance(content, str):
        raise TypeError("the content of a message is no text")
    return content or ""
