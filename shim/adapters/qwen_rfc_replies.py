"""The replies of the Qwen RFC: `chat.completion` and its chunks (rows 1 to 9, 21 to 23)."""

from typing import Any

import orjson

from shim.adapters.qwen_rfc_calls import QwenChatToolCallTranslator, join_message_text
from shim.adapters.qwen_rfc_tools import TOOLS, format_vendor_error
from shim.core.adapter.tools import list_claude_names
from shim.core.adapter.translator import Event
from shim.core.claude.usage import Usage, create_usage
from shim.core.reading.values import as_dict, as_str
from shim.core.turn.context import MAX_NAME_CHARS
from shim.core.turn.machine import DONE
from shim.core.turn.turn import Turn

COMPLETION_OBJECT, CHUNK_OBJECT = "chat.completion", "chat.completion.chunk"
THOUGHT_TYPE = "x-qwen-thought"
STOP_REASONS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}
# how a reply ends that cannot be the last of its turn
TOOL_FINISH_REASONS = frozenset(("tool_calls", "function_call"))
# of a reply that did: a call of it may be half
CUT_FINISH_REASONS = frozenset(("length", "content_filter"))
FILTERED_MESSAGE = "The content filter stopped the reply (finish_reason content_filter)"
MAX_CONTROL_ERRORS = 20  # that one line is read for


class QwenChatCompletionTranslator(QwenChatToolCallTranslator):
    """`_pending_stop_reason` is how a chunked reply ended whose usage may still come.

    `_usage` are the last numbers, which are the turn's (row 8).
    """

    untyped = True

    def __init__(self, turn: Turn, *, partial: bool = False) -> None:
        super().__init__(turn, partial=partial)
        self._session_id = self._prompt_id = ""

    def _reset_state(self) -> None:
        super()._reset_state()
        self._has_session = self._has_open_reply = False
        self._pending_stop_reason: str | None = None
        self._usage: Usage | None = None

    # -- who it is ---------------------------------------------------------------------------------

    def _start_session(self, event: Event, metadata: dict[str, Any]) -> None:
        """Row 1: any line may be the first, and says in one of three places whose it is."""
        session_id = (
            metadata.get("session_id")
            or event.get("session_id")
            or self._session_id
            or event.get("id")
        )
        if isinstance(session_id, str) and session_id:
            self._session_id = session_id.removeprefix("chatcmpl-")
            self._has_session = True
            self.turn.record_vendor_session_info(
                session_id=self._session_id, **self._read_session_fields(event, metadata)
            )

    def _read_session_fields(self, event: Event, metadata: dict[str, Any]) -> dict[str, Any]:
        tools = metadata.get("tools")
        tool_names = list_claude_names(TOOLS, tools) if isinstance(tools, list) else None
        return {"model": event.get("model"), "cwd": metadata.get("cwd"), "tools": tool_names}

    def _follow_prompt(self, event: Event, metadata: dict[str, Any]) -> None:
        """Another prompt's id, once the turn is over: the program answers the next one."""
        prompt_id = metadata.get("prompt_id") or event.get("prompt_id")
        if not isinstance(prompt_id, str) or prompt_id == self._prompt_id:
            return
        if self._prompt_id and self.turn.machine.state is DONE:
            self.start_next_turn()
        self._prompt_id = prompt_id[:MAX_NAME_CHARS]

    # -- whole replies -----------------------------------------------------------------------------

    def _translate_completion(self, event: Event, metadata: dict[str, Any]) -> None:
        """Rows 2 to 4, 7, 21 to 23: one message a line; that of the handshake is empty."""
        reply_usage = convert_usage(event.get("usage") or metadata.get("usage"))
        for choice in event.get("choices") or ():
            if choice.get("index"):
                continue
            message = choice.get("message") or choice.get("delta") or {}
            reason = read_stop_reason(choice) or "stop"
            if reason == "error":
                self._fail_turn(
                    format_vendor_error(
                        metadata.get("error")
                        or join_message_text(message.get("content"))
                        or "error"
                    )
                )
            elif message.get("role") == "tool":
                self._write_tool_message(message)
            elif message.get("role") not in (None, "assistant"):
                self.turn.record_unknown_event(f"{COMPLETION_OBJECT}/{message.get('role')}", event)
            else:
                self._write_message(message, reason, reply_usage, event.get("model"))
                if metadata.get("error") and not message.get("content"):
                    self._write_notice(format_vendor_error(metadata["error"]))
        errors = metadata.get("control_errors")
        if isinstance(errors, list) and errors:
            self._write_notice(
                "control error: "
                + "; ".join(format_vendor_error(error) for error in errors[:MAX_CONTROL_ERRORS])
            )

    def _write_message(
        self, message: dict[str, Any], reason: str, reply_usage: Usage | None, model: Any
    ) -> None:
        turn, text, calls = (
            self.turn,
            join_message_text(message.get("content")),
            message.get("tool_calls") or [],
        )
        annotations = list_embedded_annotation_events(message)
        reasoning = message.get("reasoning_content") or ""
        self._write_thoughts(annotations, model)
        if text or calls or reasoning or self._has_open_reply:
            self._open_reply(model)
            turn.update_message(model, reply_usage)
            turn.add_thinking_block(reasoning)
            turn.add_block(text)
            for call in calls:
                function = call.get("function") or {}
                self._write_call(call.get("id"), function.get("name"), function.get("arguments"))
            self._close_reply("tool_calls" if calls and reason == "stop" else reason, reply_usage)
        elif reply_usage is not None:  # a summary that says nothing more
            self._usage = reply_usage
            self._pause_turn()
        self._translate_annotations(annotations)

    # -- replies in chunks -------------------------------------------------------------------------

    def _translate_chunk(self, event: Event, metadata: dict[str, Any]) -> None:
        """Rows 5 to 8. The usage of a reply stands on its last chunk, or on one behind it without
        choices.
        """
        choices, reply_usage = (
            event.get("choices") or (),
            convert_usage(event.get("usage") or metadata.get("usage")),
        )
        if self._pending_stop_reason is not None and reply_usage is not None:
            self._end_reply(reply_usage)
        elif reply_usage is not None and not choices:  # it came late
            self._usage = reply_usage
            self._pause_turn()
        for choice in choices:
            if not choice.get("index"):
                self._write_delta(choice, event, reply_usage)
                if choice.get("finish_reason") == "error":
                    self._fail_turn(format_vendor_error(metadata.get("error") or "error"))

    def _write_delta(self, choice: dict[str, Any], event: Event, reply_usage: Usage | None) -> None:
        delta = choice.get("delta") or choice.get("message") or {}
        reason, model = read_stop_reason(choice), event.get("model")
        annotations = list_embedded_annotation_events(delta)
        if self._pending_stop_reason is not None and (
            delta.keys() - {"role"} or reason != self._pending_stop_reason
        ):
            self._end_reply(None)
        self._write_thoughts(annotations, model)
        if delta.get("role") == "tool":
            self._write_tool_message(delta)
        else:
            if fragment := delta.get("reasoning_content"):
                self._open_reply(model)
                self.turn.add_thinking(fragment)
            if fragment := delta.get("content"):
                self._open_reply(model)
                self.turn.add_text(
                    fragment if isinstance(fragment, str) else join_message_text(fragment)
                )
            if calls := delta.get("tool_calls"):
                self._open_reply(model)
                self._partial_calls.add_tool_call_deltas(calls)
        self._translate_annotations(annotations)
        if (
            reason
            and reason != "error"
            and (self._has_open_reply or (self._stop_reason != reason and reason != "tool_calls"))
        ):
            self._finish_reply(reason, reply_usage, model)

    def _finish_reply(self, reason: str, reply_usage: Usage | None, model: Any) -> None:
        self._open_reply(model)
        self._write_partial_calls(is_cut=reason in CUT_FINISH_REASONS)
        self.turn.end_block()
        self._pending_stop_reason = reason
        if reply_usage is not None:
            self._end_reply(reply_usage)

    def _end_reply(self, reply_usage: Usage | None) -> None:
        """End a chunked reply; `reply_usage` is None if its usage never came."""
        reason, self._pending_stop_reason = self._pending_stop_reason, None
        if reason is not None:
            self._close_reply(reason, reply_usage)

    # -- both --------------------------------------------------------------------------------------

    def _open_reply(self, model: Any) -> None:
        """The model says something: whatever it asked for before has come back by now."""
        if self._has_open_reply:
            return
        self._has_open_reply, self._stop_reason = True, None
        turn = self.turn
        turn.cancel_vendor_completion()
        if turn.open_calls:
            for _ in range(len(turn.open_calls)):
                call_id, (announced_id, _, _) = next(iter(turn.open_calls.items()))
                turn.add_tool_result(
                    call_id,
                    "",
                    self._take_unreported_result(
                        call_id, default=announced_id in turn.tool_calls.denials.entries
                    ),
                )
            self._unreported_results.clear()
        self._displayed_counts.clear()
        turn.update_message(model)

    def _close_reply(self, reason: str, reply_usage: Usage | None) -> None:
        self._has_open_reply, self._stop_reason = False, reason
        self._usage = reply_usage or self._usage
        if reason not in STOP_REASONS:
            self.turn.record_unknown_event(f"finish_reason/{reason}")
        self.turn.end_message(reply_usage, STOP_REASONS.get(reason), adds_usage=False)
        if reply_usage is not None:
            self._pause_turn()

    def _pause_turn(self) -> None:
        if self._is_complete():
            self.turn.record_possible_turn_end()

    def _is_complete(self) -> bool:
        """Whether what was said may be a whole turn: a last reply that did not ask for tools, and
        nothing after it.
        """
        return (
            self._stop_reason is not None
            and self._stop_reason not in TOOL_FINISH_REASONS
            and not (self._has_open_reply or self.turn.open_calls)
        )

    def _write_thoughts(self, annotations: list[Event], model: Any) -> None:
        for annotation in annotations:
            if annotation.get("type") == THOUGHT_TYPE:
                self._write_thought(annotation, model)

    def _write_thought(self, event: Event, model: Any = None) -> None:
        """Row 9."""
        subject, description = event.get("subject"), event.get("description")
        self._open_reply(model)
        self.turn.add_thinking_block(
            " ".join(part for part in (f"**{subject}**" if subject else "", description) if part)
        )

    def _translate_annotations(self, annotations: list[Event]) -> None:
        for annotation in annotations:
            if annotation.get("type") != THOUGHT_TYPE:
                self._translate_event(annotation)

    # -- the end -----------------------------------------------------------------------------------

    def _fail_turn(self, message: str, **fields: Any) -> None:
        self._partial_calls.clear()
        self._record_spent_usage()
        self.turn.record_failure(message or "qwen gave no reason", **fields)
        self.turn.record_vendor_completion()

    def _end_turn(self, **fields: Any) -> None:
        self._record_spent_usage()
        if self._stop_reason == "content_filter":
            self.turn.record_failure(FILTERED_MESSAGE, api=True)
        else:
            self.turn.record_turn_end(**fields)
        self.turn.record_vendor_completion()

    def _record_spent_usage(self) -> None:
        spent_usage, self._usage = self._usage, None
        if spent_usage is not None and self.turn.machine.state is not DONE:
            self.turn.add_usage(spent_usage, 0.0)

    # -- beside the conversation -------------------------------------------------------------------

    def _translate_event(self, event: Event) -> None:
        """An event with a type, in a line of its own or as an annotation."""
        raise NotImplementedError

    def _write_notice(self, text: str) -> None:
        """A notice beside the conversation."""
        self.turn.write_system_event("informational", content=text, level="notice")


def read_stop_reason(choice: dict[str, Any]) -> str:
    """How a reply ended; "" for an unfinished reply."""
    reason = choice.get("finish_reason")
    return as_str(reason)


def list_embedded_annotation_events(message: dict[str, Any]) -> list[Event]:
    """The events that stand inside a message or a delta."""
    return [
        annotation
        for annotation in message.get("annotations") or ()
        if isinstance(annotation, dict)
    ]


def read_event_metadata(event: Event) -> dict[str, Any]:
    """What a line says about itself, in `metadata` or in `system_fingerprint` (an object, or one in
    a string).
    """
    raw_metadata = event.get("metadata")
    metadata = as_dict(raw_metadata)
    fingerprint = event.get("system_fingerprint")
    if isinstance(fingerprint, str) and fingerprint.startswith("{"):
        try:
            fingerprint = orjson.loads(fingerprint)
        except orjson.JSONDecodeError:
            fingerprint = None
    return {**fingerprint, **metadata} if isinstance(fingerprint, dict) else metadata


def convert_usage(raw_usage: object) -> Usage | None:
    """Row 8: the prompt includes the cached tokens. None without any count."""
    if not isinstance(raw_usage, dict):
        return None
    details = raw_usage.get("prompt_tokens_details")
    cached_tokens = details.get("cached_tokens") if isinstance(details, dict) else 0
    converted = create_usage(
        raw_usage.get("prompt_tokens"),
        cached_tokens,
        0,
        raw_usage.get("completion_tokens"),
        input_includes_cached=True,
    )
    return converted if any(converted.values()) else None
