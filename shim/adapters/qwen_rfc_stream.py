"""Translates the stream of the Qwen RFC: chat completion replies, displays of tool calls, session
events and control requests.

Each line has an `object`, a `type` or an `error`. No line marks the end of a turn. A turn ends at
EOF or at the event `Finished`. If the program keeps running, the turn ends when nothing follows a
complete reply with usage for some time.
"""

from typing import Any

from shim.adapters.qwen_rfc import TOOLS, build_control_response
from shim.adapters.qwen_rfc_lines import (
    format_vendor_error,
    infer_displayed_call,
    is_complete_json,
    join_message_text,
    parse_call_arguments,
    read_display_text,
    read_event_metadata,
    read_session_fields,
    read_usage,
    translate_chat_tool_call,
)
from shim.core.adapter.tools import Arguments, translate_tool_call
from shim.core.adapter.translator import Event, Translator
from shim.core.claude.usage import Usage, parse_count_or_zero
from shim.core.reading.json_text import dump_json
from shim.core.reading.values import as_dict, as_list, as_str, get_text, list_dicts
from shim.core.turn.context import MAX_NAME_CHARS
from shim.core.turn.machine import DONE
from shim.core.turn.open_calls import normalize_call_id
from shim.core.turn.outcome import ChildExit
from shim.core.turn.tool_calls import MAX_OPEN_CALLS
from shim.core.turn.turn import Turn
from shim.profiles.run.partial_calls import PartialCalls

MAX_PENDING_REQUESTS = 1000  # a child with more unanswered requests is not waiting for answers
MAX_NOTICE_CHARS = 2000  # the maximum length of a logged text for error messages
MAX_CONTROL_ERRORS = 20  # per line
PROTOCOL_VERSION = 1  # the only version that the documents define
COMPLETION_OBJECT = "chat.completion"
CHUNK_OBJECT = "chat.completion.chunk"
THOUGHT_TYPE = "x-qwen-thought"
STOP_REASONS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}
# A reply with one of these finish reasons cannot be the last reply of its turn.
TOOL_FINISH_REASONS = frozenset(("tool_calls", "function_call"))
# The last call of a reply with one of these finish reasons may be incomplete.
CUT_FINISH_REASONS = frozenset(("length", "content_filter"))
FILTERED_MESSAGE = "The content filter stopped the reply (finish_reason content_filter)"
CONFIRMATION_SUBTYPES = frozenset(("confirm_shell_commands", "confirm_action", "quit_confirmation"))
# Lines of these kinds may come at any time, even between a reply and its usage.
INTERLEAVED_TYPES = frozenset(
    (
        "result/heartbeat",
        "result/command_hint",
        "x-qwen-terminal",
        "x-qwen-ansi",
        "control_response",
    )
)
# Session events that end the turn with a failure, and the fields of the failure.
SESSION_FAILURES: dict[str, dict[str, str]] = {
    "maxsessionturns": {"kind": "limit", "subtype": "error_max_turns"},
    "sessiontokenlimitexceeded": {"kind": "limit"},
    "loopdetected": {"kind": "vendor_error"},
    "error": {},
}

CALL_ID_PREFIX = "call_"  # displays may add this prefix to the id of a call
WAITING_STATUSES = frozenset(("pending", "validating", "scheduled", "confirming"))
RUNNING_STATUS = "executing"
FAILED_STATUSES = frozenset(("error", "canceled", "cancelled"))
FINAL_STATUSES = FAILED_STATUSES | {"success"}


class QwenRfcTranslator(Translator):
    """Translates the output lines of one child.

    The session id and the prompt id are kept across turns. All other state belongs to one turn.
    """

    untyped = True

    def __init__(self, turn: Turn, *, partial: bool = False) -> None:
        super().__init__(turn, partial=partial)
        self._session_id = self._prompt_id = ""
        self.handlers = {
            THOUGHT_TYPE: self._write_thought,
            "x-qwen-tool-display": self._translate_display,
            "x-qwen-session-event": self._translate_session_event,
            "x-qwen-terminal": self._read_terminal_event,
            "x-qwen-ansi": self.ignore_event,
            "result/command": self._translate_command_result,
            "result/command_hint": self.ignore_event,
            "result/heartbeat": self._record_heartbeat,
            "result/cancel": self._translate_cancel_result,
            "control_request": self._answer_control_request,
            "control_response": self.ignore_event,
        }
        self._reset_state()

    def _reset_state(self) -> None:
        self._has_session = self._has_open_reply = False
        # how the last reply ended; None while a reply is open, or after a tool result
        self._stop_reason: str | None = None
        # how the last chunked reply ended; set while its usage may still come
        self._pending_stop_reason: str | None = None
        self._usage: Usage | None = None  # the last usage, which is the usage of the turn
        self._partial_calls = PartialCalls(self.turn.diagnostics)  # calls in the open reply
        # Call id → whether the call failed, for each call with this id whose display ended without
        # text. A later message may contain the call's result.
        self._unreported_results: dict[str, list[bool]] = {}
        # id of a call → number of displayed results without a message yet
        self._displayed_counts: dict[str, int] = {}
        self._prompted_calls: set[str] = set()  # calls with a permission request
        self._runs_tool = False  # a slash command started a tool and nothing else
        self._exit_code = 0  # from a terminal event
        self._notice = ""  # the last logged text

    def start_turn(self, turn: Turn) -> None:
        super().start_turn(turn)
        self._reset_state()

    # -- lines -------------------------------------------------------------------------------------

    def feed(self, event: Event) -> None:
        """Translate an event by its `object`, its `type` or its `error`, in this order."""
        kind = as_str(event.get("object"))
        event_type = event.get("type")
        metadata = read_event_metadata(event)
        is_chat = kind.startswith(COMPLETION_OBJECT)
        is_reply = is_chat or "choices" in event
        if is_reply or event_type in ("result/command", "control_request"):
            self._follow_prompt(event, metadata)
        if not self._has_session:
            self._start_session(event, metadata)
        if kind == CHUNK_OBJECT or (is_reply and not is_chat and _has_deltas(event["choices"])):
            self._translate_chunk(event, metadata)
            return
        if event_type not in INTERLEAVED_TYPES:
            self._end_reply(None)
        if is_reply:
            self._read_handshake(event, metadata)
            self._translate_completion(event, metadata)
        elif "type" in event or "error" not in event:
            self._translate_event(event)
        else:
            self._fail_fatally(event["error"])

    def _translate_event(self, event: Event) -> None:
        """Translate an event with a type. The event may be a line of its own or an annotation in a
        reply.
        """
        handler = self.handlers.get(event.get("type"))
        if handler is None:
            self.turn.record_unknown_event(event.get("type", "untyped"), event)
        else:
            handler(event)

    def _start_session(self, event: Event, metadata: dict[str, Any]) -> None:
        """Record the session. Any line may be the first, and the session id may be in one of three
        places.
        """
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
                session_id=self._session_id, **read_session_fields(event, metadata)
            )

    def _follow_prompt(self, event: Event, metadata: dict[str, Any]) -> None:
        """Start the next turn if the current turn has ended and the event belongs to a later
        prompt.
        """
        prompt_id = metadata.get("prompt_id") or event.get("prompt_id")
        if not isinstance(prompt_id, str) or prompt_id == self._prompt_id:
            return
        if self._prompt_id and self.turn.machine.state is DONE:
            self.start_next_turn()
        self._prompt_id = prompt_id[:MAX_NAME_CHARS]

    def _read_handshake(self, event: Event, metadata: dict[str, Any]) -> None:
        """Record the handshake's session metadata, which may be on any line."""
        version = metadata.get("protocol_version", PROTOCOL_VERSION)
        if "protocol_version" in metadata:
            self.turn.record_vendor_session_info(**read_session_fields(event, metadata))
        if str(version) != str(PROTOCOL_VERSION):
            self.turn.record_unknown_event(f"protocol_version/{version}", event)

    # -- complete replies --------------------------------------------------------------------------

    def _translate_completion(self, event: Event, metadata: dict[str, Any]) -> None:
        """Translate a line with a complete message. The message in a handshake is empty."""
        usage = read_usage(event, metadata)
        for choice in event.get("choices") or ():
            if choice.get("index"):
                continue
            message = choice.get("message") or choice.get("delta") or {}
            role = message.get("role")
            reason = get_text(choice, "finish_reason", "stop")
            if reason == "error":
                error = metadata.get("error") or join_message_text(message.get("content"))
                self._fail_turn(format_vendor_error(error or "error"))
            elif role == "tool":
                self._write_tool_message(message)
            elif role not in (None, "assistant"):
                self.turn.record_unknown_event(f"{COMPLETION_OBJECT}/{role}", event)
            else:
                self._write_message(message, reason, usage, event.get("model"))
                if metadata.get("error") and not message.get("content"):
                    self._write_notice(format_vendor_error(metadata["error"]))
        errors = as_list(metadata.get("control_errors"))[:MAX_CONTROL_ERRORS]
        if errors:
            self._write_notice(f"control error: {'; '.join(map(format_vendor_error, errors))}")

    def _write_message(
        self, message: dict[str, Any], reason: str, usage: Usage | None, model: Any
    ) -> None:
        turn = self.turn
        text = join_message_text(message.get("content"))
        reasoning = message.get("reasoning_content") or ""
        calls = message.get("tool_calls") or []
        self._write_thoughts(message, model)
        if text or calls or reasoning or self._has_open_reply:
            self._open_reply(model)
            turn.update_message(model, usage)
            turn.add_thinking_block(reasoning)
            turn.add_block(text)
            for call in calls:
                function = call.get("function") or {}
                self._write_call(call.get("id"), function.get("name"), function.get("arguments"))
            self._close_reply("tool_calls" if calls and reason == "stop" else reason, usage)
        elif usage is not None:  # a summary whose text was already written
            self._usage = usage
            self._pause_turn()
        self._translate_annotations(message)

    # -- replies in chunks -------------------------------------------------------------------------

    def _translate_chunk(self, event: Event, metadata: dict[str, Any]) -> None:
        """Translate a chunk of a reply. The reply's usage is in its last chunk, or in a later chunk
        without choices.
        """
        choices = event.get("choices") or ()
        usage = read_usage(event, metadata)
        if self._pending_stop_reason is not None and usage is not None:
            self._end_reply(usage)
        elif usage is not None and not choices:  # the usage for a reply that has ended
            self._usage = usage
            self._pause_turn()
        for choice in choices:
            if not choice.get("index"):
                self._write_delta(choice, usage, event.get("model"))
                if choice.get("finish_reason") == "error":
                    self._fail_turn(format_vendor_error(metadata.get("error") or "error"))

    def _write_delta(self, choice: dict[str, Any], usage: Usage | None, model: Any) -> None:
        delta = choice.get("delta") or choice.get("message") or {}
        reason = get_text(choice, "finish_reason")
        if self._pending_stop_reason is not None and (
            delta.keys() - {"role"} or reason != self._pending_stop_reason
        ):
            self._end_reply(None)
        self._write_thoughts(delta, model)
        if delta.get("role") == "tool":
            self._write_tool_message(delta)
        else:
            if fragment := delta.get("reasoning_content"):
                self._open_reply(model)
                self.turn.add_thinking(fragment)
            if fragment := delta.get("content"):
                self._open_reply(model)
                self.turn.add_text(join_message_text(fragment))
            if calls := delta.get("tool_calls"):
                self._open_reply(model)
                self._add_call_fragments(calls)
        self._translate_annotations(delta)
        if reason in ("", "error"):
            return
        if self._has_open_reply or reason not in (self._stop_reason, "tool_calls"):
            self._finish_reply(reason, usage, model)

    def _finish_reply(self, reason: str, usage: Usage | None, model: Any) -> None:
        self._open_reply(model)
        self._write_partial_calls(is_cut=reason in CUT_FINISH_REASONS)
        self.turn.end_block()
        self._pending_stop_reason = reason
        if usage is not None:
            self._end_reply(usage)

    def _end_reply(self, usage: Usage | None) -> None:
        """End a finished reply that came in chunks. `usage` is None if no usage was sent."""
        reason = self._pending_stop_reason
        self._pending_stop_reason = None
        if reason is not None:
            self._close_reply(reason, usage)

    # -- all replies -------------------------------------------------------------------------------

    def _open_reply(self, model: Any) -> None:
        """Start a reply. Write a result for each tool call that is still open, because the model
        replies only after its earlier calls have ended.
        """
        if self._has_open_reply:
            return
        self._has_open_reply = True
        self._stop_reason = None
        turn = self.turn
        turn.cancel_vendor_completion()
        if turn.open_calls:
            # a result may close another call with the same announced id
            for _ in range(len(turn.open_calls)):
                call_id, (announced_id, _, _) = next(iter(turn.open_calls.items()))
                was_denied = announced_id in turn.tool_calls.denials.entries
                failed = self._take_unreported_result(call_id, default=was_denied)
                turn.add_tool_result(call_id, "", failed)
            self._unreported_results.clear()
        self._displayed_counts.clear()
        turn.update_message(model)

    def _close_reply(self, reason: str, usage: Usage | None) -> None:
        self._has_open_reply = False
        self._stop_reason = reason
        if usage is not None:
            self._usage = usage
        if reason not in STOP_REASONS:
            self.turn.record_unknown_event(f"finish_reason/{reason}")
        self.turn.end_message(usage, STOP_REASONS.get(reason), adds_usage=False)
        if usage is not None:
            self._pause_turn()

    def _pause_turn(self) -> None:
        if self._is_complete():
            self.turn.record_possible_turn_end()

    def _resume_turn(self) -> None:
        self._stop_reason = None
        self.turn.cancel_vendor_completion()

    def _pause_after_result(self) -> None:
        """Allow the turn to end after a tool result if a slash command started the tool."""
        if self._runs_tool:
            self._stop_reason = "stop"
            self._pause_turn()

    def _is_complete(self) -> bool:
        """Return whether the turn may be complete: the last reply requested no tools, and nothing
        has followed the reply.
        """
        if self._stop_reason is None:
            return False
        if self._stop_reason in TOOL_FINISH_REASONS:
            return False
        return not (self._has_open_reply or self.turn.open_calls)

    def _write_thoughts(self, message: dict[str, Any], model: Any) -> None:
        """Write the thoughts that are among the annotations, before the reply's text is written."""
        for annotation in list_dicts(message.get("annotations")):
            if annotation.get("type") == THOUGHT_TYPE:
                self._write_thought(annotation, model)

    def _write_thought(self, event: Event, model: Any = None) -> None:
        subject = event.get("subject")
        description = event.get("description")
        self._open_reply(model)
        self.turn.add_thinking_block(
            " ".join(part for part in (f"**{subject}**" if subject else "", description) if part)
        )

    def _translate_annotations(self, message: dict[str, Any]) -> None:
        """Translate all annotations except thoughts, after the reply's text was written."""
        for annotation in list_dicts(message.get("annotations")):
            if annotation.get("type") != THOUGHT_TYPE:
                self._translate_event(annotation)

    def _write_notice(self, text: str) -> None:
        self.turn.write_system_event("informational", content=text, level="notice")

    # -- calls -------------------------------------------------------------------------------------

    def _write_call(self, call_id: Any, name: Any, arguments: Any) -> None:
        self.turn.add_tool_call(
            normalize_call_id(call_id),
            *translate_chat_tool_call(name, arguments, self.turn.diagnostics),
        )

    def _add_call_fragments(self, deltas: list[dict[str, Any]]) -> None:
        """Add the `tool_calls` fragments from one delta."""
        for position, delta in enumerate(deltas):
            function = delta.get("function") or {}
            self._partial_calls.add_fragment(
                self._choose_call_key(delta, position, is_only=len(deltas) == 1),
                normalize_call_id(delta.get("id")),
                function.get("name"),
                function.get("arguments") or "",
            )

    def _choose_call_key(self, delta: dict[str, Any], position: int, *, is_only: bool) -> Any:
        """Return the key of the tool call that a fragment belongs to. The fragment may name the
        call by index or id. Otherwise the fragment belongs to the last call, or to the call at
        the same position.
        """
        index = delta.get("index")
        call_id = normalize_call_id(delta.get("id"))
        if index.__class__ is int:
            return index
        keys = self._partial_calls.list_keys()
        if call_id:
            key = self._partial_calls.find_key(call_id)
            if key is None:
                return call_id
            return key
        if is_only and keys:
            return self._partial_calls.last_key
        if position < len(keys):
            return keys[position]
        return position

    def _write_partial_calls(self, *, is_cut: bool = False) -> None:
        """Write the open reply's tool calls, whose arguments are now complete. If the reply was cut
        off, incomplete calls are dropped.
        """
        has_nameless_call = False
        for call_id, name, arguments in self._partial_calls.take_calls():
            if not name:
                has_nameless_call = True
            elif is_cut and not is_complete_json(arguments):
                self.turn.diagnostics.record("cut_call", name)
            else:
                self._write_call(call_id, name, arguments)
        if has_nameless_call:
            self.turn.diagnostics.record("call_given_up")

    def _resolve_call_id(self, raw_id: Any) -> str:
        """Return the id with which a tool call was announced. In a display, the id may have a
        prefix.
        """
        turn = self.turn
        call_id = normalize_call_id(raw_id)
        spellings = (call_id, call_id.removeprefix(CALL_ID_PREFIX), CALL_ID_PREFIX + call_id)
        for spelling in spellings:
            if spelling in turn.open_calls or self._is_partial_call(spelling):
                return spelling
        return next(filter(turn.conversation.has_used_call_id, spellings), call_id)

    def _is_partial_call(self, call_id: str) -> bool:
        return self._partial_calls.find_key(call_id) is not None

    def _write_tool_message(self, message: dict[str, Any]) -> None:
        """Write a tool result. Ignore the message if a display has already shown the
        same result.
        """
        turn = self.turn
        call_id = self._resolve_call_id(message.get("tool_call_id"))
        name = message.get("name")
        # If this result was displayed, the message repeats it, even if a different open call now
        # has the same id.
        if self._displayed_counts.get(call_id):
            self._displayed_counts[call_id] -= 1
        elif call_id in turn.open_calls or not turn.conversation.has_used_call_id(call_id):
            self._resume_turn()
            failed = self._take_unreported_result(call_id) or bool(message.get("is_error"))
            content = join_message_text(message.get("content"))
            claude_name = None
            if isinstance(name, str):
                claude_name = translate_tool_call(TOOLS, name, {})[0]
            turn.add_tool_result(call_id, content, failed, claude_name)
            self._pause_after_result()

    def _take_unreported_result(self, call_id: str, *, default: bool = False) -> bool:
        """Return whether a display without content has reported that the first call with this id
        failed.
        """
        failures = self._unreported_results.get(call_id)
        if failures:
            return failures.pop(0)
        return default

    # -- displays ----------------------------------------------------------------------------------

    def _translate_display(self, event: Event) -> None:
        """Translate the display of a tool call. The display may be the first line about the call,
        or contain the call's result.
        """
        call_id = self._resolve_call_id(event.get("tool_call_id"))
        turn = self.turn
        status = get_text(event, "status").lower()
        if status in WAITING_STATUSES or event.get("pending"):
            return
        if status not in FINAL_STATUSES and status != RUNNING_STATUS:
            turn.record_unknown_event(f"x-qwen-tool-display/{status}", event)
            return
        if self._is_partial_call(call_id):
            self._write_partial_calls()
        if turn.find_call(call_id) is None and not turn.conversation.has_used_call_id(call_id):
            name, arguments = infer_displayed_call(event, turn.diagnostics)
            if not name and status == RUNNING_STATUS:
                return
            turn.add_tool_call(call_id, name or "unknown", arguments)
        if turn.find_call(call_id) is not None:
            self._resume_turn()
            self._write_nested_calls(call_id, event.get("result_display"))
            if status in FINAL_STATUSES:
                self._finish_display(call_id, event, status in FAILED_STATUSES)

    def _finish_display(self, call_id: str, event: Event, failed: bool) -> None:
        text = read_display_text(event)
        if text or event.get("result_display") is not None:
            self.turn.add_tool_result(call_id, text, failed)
            if len(self._displayed_counts) < MAX_OPEN_CALLS:
                self._displayed_counts[call_id] = self._displayed_counts.get(call_id, 0) + 1
            self._pause_after_result()
        elif len(self._unreported_results) < MAX_OPEN_CALLS:
            self._unreported_results.setdefault(call_id, []).append(failed)

    def _write_nested_calls(self, call_id: str, display: Any) -> None:
        """Write the tool calls of a subagent, and each call's result as soon as it is available."""
        fields = as_dict(display)
        if fields.get("kind") != "task_execution":
            return
        turn = self.turn
        for call in list_dicts(fields.get("toolCalls")):
            if not call.get("callId"):
                continue
            nested_id = normalize_call_id(call["callId"])
            subagent = turn.get_subagent(call_id)
            if not turn.conversation.has_used_call_id(nested_id):
                translated = translate_chat_tool_call(
                    call.get("name"), call.get("args"), turn.diagnostics
                )
                subagent.add_tool_call(nested_id, *translated)
            status = get_text(call, "status").lower()
            if nested_id in turn.subagents.open_calls and (
                status in FINAL_STATUSES or status == "failed"
            ):
                result = call.get("result") or call.get("resultDisplay") or call.get("error") or ""
                subagent.add_tool_result(nested_id, result, status != "success")

    # -- session events ----------------------------------------------------------------------------

    def _translate_session_event(self, event: Event) -> None:
        """Translate a session event. The RFC's documents spell the event names in two ways."""
        name = get_text(event, "event")
        key = name.replace("_", "").lower()
        text = get_text(event, "message", name)
        if key in SESSION_FAILURES:
            self._fail_turn(text, **SESSION_FAILURES[key])
        elif key == "finished":
            self._finish_session()
        elif key == "maxtokens":
            self._record_token_limit(text)
        elif key == "chatcompressed":
            tokens = as_dict(event.get("metrics")).get("original_tokens")
            self.turn.write_compaction("auto", parse_count_or_zero(tokens))
        elif key == "usercancelled":
            self._interrupt_turn()
        else:
            self.turn.record_unknown_event(f"x-qwen-session-event/{name}", event)

    def _finish_session(self) -> None:
        """End the turn, unless the event only ends a reply that requested tools."""
        if (
            not self._has_open_reply
            and not self.turn.open_calls
            and self._stop_reason not in TOOL_FINISH_REASONS
        ):
            self._end_turn()

    def _record_token_limit(self, text: str) -> None:
        if self._stop_reason == "stop":
            self._stop_reason = "length"
        self.turn.end_message(stop_reason="max_tokens")
        self._write_notice(text)

    def _interrupt_turn(self) -> None:
        self._partial_calls.take_calls()
        self._record_spent_usage()
        self.turn.record_interrupt()
        self.turn.record_vendor_completion()

    def _read_terminal_event(self, event: Event) -> None:
        """Store the exit code and the last logged text, which may be the reason for a failure. Text
        from the model or a tool is not stored, because it is also sent in a message.
        """
        if event.get("exit_code").__class__ is int:
            self._exit_code = event["exit_code"]
        text = as_str(event.get("text"))
        if text and event.get("source") not in ("assistant", "tool"):
            self._notice = text[:MAX_NOTICE_CHARS]

    def _record_heartbeat(self, event: Event) -> None:
        self.turn.record_heartbeat()

    def _translate_command_result(self, event: Event) -> None:
        """Translate the result of a slash command."""
        result = event["result"]
        kind = result.get("type")
        if kind == "submit_prompt":
            return
        if kind == "tool":
            self._runs_tool = True
        elif kind == "message":
            text = join_message_text(result.get("content"))
            self.turn.start_message()
            self.turn.add_block(text)
            if result.get("level") == "error":
                self._fail_turn(text)
            else:
                self._end_turn(local=True)
        elif kind in ("dialog", "quit", "load_history"):
            path = " ".join(map(str, as_dict(event.get("command")).get("path") or [kind]))
            action = kind.replace("_", " ")
            self._write_notice(f"/{path}: {action}, which the shim cannot show")
            self._end_turn(local=True)
        else:
            self.turn.record_unknown_event(f"result/command/{kind}", event)

    def _translate_cancel_result(self, event: Event) -> None:
        """Interrupt the turn. The result `noop` means that nothing was running when the shim sent
        the cancel request.
        """
        outcome = self.turn.outcome_tracker.outcome
        if event.get("status") != "noop":
            self._interrupt_turn()
        elif outcome is not None and outcome.kind == "interrupted":
            self.turn.record_vendor_completion()

    # -- control requests --------------------------------------------------------------------------

    def _answer_control_request(self, event: Event) -> None:
        """Ask the frontend about a permission request, and refuse any other control request. The
        fields of a request may be nested.
        """
        nested = event.get("request")
        request = event
        if isinstance(nested, dict):
            request = nested
        request_id = str(event["request_id"])
        subtype = request.get("subtype")
        if subtype == "can_use_tool":
            self._ask_permission(request_id, request)
        elif subtype in CONFIRMATION_SUBTYPES:
            command = {"command": _read_command(request)}
            self._resume_turn()
            self.turn.request_permission(
                request_id, request_id, "Bash", command, ("run_shell_command", command)
            )
        elif len(self.outbox) < MAX_PENDING_REQUESTS:
            error = {"message": f"Unsupported control request: {subtype}", "retryable": False}
            response = build_control_response(request_id, "error", error=error)
            self.outbox.append(dump_json(response) + b"\n")

    def _ask_permission(self, request_id: str, request: dict[str, Any]) -> None:
        tool = as_dict(request.get("tool"))
        name = get_text(tool, "name", get_text(request, "tool_name", "unknown"))
        raw_arguments = tool.get("arguments", request.get("input"))
        diagnostics = self.turn.diagnostics
        claude_call = translate_chat_tool_call(name, raw_arguments, diagnostics)
        vendor_call = name, as_dict(parse_call_arguments(raw_arguments, diagnostics))
        raw_id = request.get("tool_call_id") or request.get("tool_use_id") or tool.get("id")
        if raw_id:
            call_id = self._resolve_call_id(raw_id)
        else:
            call_id = self._find_requested_call(*claude_call) or request_id
        if len(self._prompted_calls) < MAX_PENDING_REQUESTS:
            self._prompted_calls.add(call_id)
        self._write_partial_calls()
        self._resume_turn()
        self.turn.request_permission(request_id, call_id, *claude_call, vendor_call)

    def _find_requested_call(self, name: str, arguments: Arguments) -> str:
        """Return the open tool call for a permission request without an id: a call with the same
        arguments, or else the first call of the same tool.
        """
        candidates = {
            call_id: call_arguments
            for call_id, (_, call_name, call_arguments) in self.turn.open_calls.items()
            if call_name == name and call_id not in self._prompted_calls
        }
        exact_matches = [key for key, value in candidates.items() if value == arguments]
        return next(iter([*exact_matches, *candidates]), "")

    # -- the end -----------------------------------------------------------------------------------

    def _fail_fatally(self, error: Any) -> None:
        """Record a fatal error. The program should exit after such an error."""
        status = as_dict(error).get("code")
        self._fail_turn(
            format_vendor_error(error), status=status if status.__class__ is int else None
        )

    def _fail_turn(self, message: str, **fields: Any) -> None:
        self._partial_calls.take_calls()
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
        usage = self._usage
        self._usage = None
        if usage is not None and self.turn.machine.state is not DONE:
            self.turn.add_usage(usage, 0.0)

    def feed_eof(self, child_exit: ChildExit | None, stderr: str) -> None:
        """End the turn if the last reply may be the turn's end, or if the program reported why it
        exited.
        """
        self._end_reply(None)
        self._partial_calls.take_calls()
        if self.turn.outcome_tracker.outcome is None:
            self._conclude_turn(child_exit, stderr)
        self._record_spent_usage()

    def _conclude_turn(self, child_exit: ChildExit | None, stderr: str) -> None:
        if self._exit_code and (child_exit is None or child_exit.code == 0):
            reason = ""
            if self._notice:
                reason = f": {self._notice}"
            message = f"qwen reported the exit code {self._exit_code}{reason}"
            self._fail_turn(message, kind="vendor_error")
        elif self._is_complete():
            self._end_turn()
        elif self._notice and child_exit is not None and child_exit.code and not stderr:
            self._fail_turn(self._notice)


def _has_deltas(choices: Any) -> bool:
    if not isinstance(choices, list):
        return False
    return all("delta" in as_dict(choice) for choice in choices)


def _read_command(request: dict[str, Any]) -> str:
    """Return the command that a confirmation request is about."""
    commands = request.get("commands")
    if isinstance(commands, list):
        return "\n".join(map(str, commands))
    texts = (request.get(key) for key in ("command", "prompt", "message", "subtype"))
    return str(next(filter(None, texts)))
