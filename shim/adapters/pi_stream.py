"""Translates pi's stream. Measured with 0.73.1, 0.87.1 and 1.5.2; support for older versions
follows pi's documentation.

The stream has three formats, which are distinguished line by line. An update may repeat the
complete message (`message`, `partial`) or contain only the delta. In each format, `message_end`
contains the complete message. If the frontend reads no partial messages, updates are stored
unparsed until `message_end` replaces them. A reply that was cut off can therefore still be written.
"""

from typing import Any

from shim.adapters.pi import TOOLS, PiRpcAdapter
from shim.core.adapter.tools import resolve_argument_paths, translate_tool_call
from shim.core.adapter.translator import Event, Translator
from shim.core.claude.usage import NO_USAGE, Usage, create_usage, parse_count_or_zero, parse_dollars
from shim.core.reading.json_repair import JsonRepairer
from shim.core.reading.values import as_dict, as_str, get_text
from shim.core.turn.open_calls import normalize_call_id
from shim.core.turn.outcome import ChildExit
from shim.core.turn.tool_calls import MAX_OPEN_CALLS
from shim.core.turn.turn import Turn

UPDATE_PREFIX = b'{"type":"message_update"'
AGENT_END_PREFIX = b'{"type":"agent_end"'
# Repetitions and summaries: a `turn_end` or `agent_end` repeats complete conversations. Each tool
# result is sent twice, and the second one only matters while a call is open.
SKIPPED_PREFIXES = (
    b'{"type":"turn_end"',
    AGENT_END_PREFIX,
    b'{"type":"tool_execution_update"',
    b'{"type":"message_start","message":{"role":"user"',
    b'{"type":"message_start","message":{"role":"system"',
    b'{"type":"message_start","message":{"role":"toolResult"',
    b'{"type":"message_end","message":{"role":"user"',
    b'{"type":"message_end","message":{"role":"system"',
)
WILL_RETRY_KEY = b'"willRetry":'  # at the end of an `agent_end`, since 0.75.4
RESULT_PREFIX = b'{"type":"message_end","message":{"role":"toolResult"'
ARGUMENTS_MARKER = "Received arguments:\n"  # the model's text follows this marker
# In the cumulative formats, a line repeats the message from this key on.
REPETITION_KEY = b',"partial":'
LONG_LINE_BYTES = 1024  # shorter lines are parsed completely
DIALOG_TYPE = "extension_ui_request"
EXTENSION_NAME = "claude-shim"  # the name of the shim's extension
JOINED_EVENTS = b'}{"ty'  # a line with two events is always parsed
# Limits for a reply's stored updates. Beyond these limits, updates are translated immediately.
MAX_BUFFERED_BYTES = 2 * 1024 * 1024
MAX_BUFFERED_LINES = 8192

STOP_REASONS = {"stop": "end_turn", "toolUse": "tool_use", "length": "max_tokens"}
FINAL_REASONS = ("stop", "length")
FAILED_REASONS = ("error", "aborted")


class PiTranslator(Translator):
    """Translates the output lines of one pi process. `_failed_message` is a reply that ended in an
    error; a retry may follow it.
    """

    def __init__(self, turn: Turn, *, partial: bool = False) -> None:
        super().__init__(turn, partial=partial)
        self._cwd = ""
        self._reset()

    def _reset(self) -> None:
        self._updates: list[bytes] = []
        self._update_bytes = 0
        self._failed_message: dict[str, Any] | None = None
        self._is_compacting = False
        self._compaction_error = ""
        self._last_message: dict[str, Any] | None = None
        self._has_open_reply = self._is_answered_by_extension = False
        # call id → the text that the model sent instead of JSON arguments
        self._malformed_arguments: dict[str, str] = {}
        # call id → number of results whose message has not arrived yet
        self._result_counts: dict[str, int] = {}

    def start_turn(self, turn: Turn) -> None:
        super().start_turn(turn)
        self._reset()

    def choose_translator_for_unknown_event(self, event: Event) -> Translator:
        """Return the translator for pi's RPC if the shim's extension has sent its greeting, because
        the rest of the stream is then in the RPC's format.
        """
        if event.get("type") != DIALOG_TYPE:
            return super().choose_translator_for_unknown_event(event)
        if event.get("statusKey") != EXTENSION_NAME or type(self) is not PiTranslator:
            return self
        return PiRpcAdapter().translator_class(self.turn, partial=self.partial)

    def filter_line(self, raw: bytes) -> bytes | None:
        """Return the line without repetitions. Return None to skip a line without new information,
        or an update that is stored unparsed because the frontend reads no partial messages.
        """
        if not raw.startswith(UPDATE_PREFIX):
            is_skipped = raw.startswith(SKIPPED_PREFIXES) or (
                raw.startswith(RESULT_PREFIX) and not self.turn.open_calls
            )
            if not is_skipped or JOINED_EVENTS in raw:
                return raw
            if raw.startswith(AGENT_END_PREFIX):
                self._end_run(is_newer_version=WILL_RETRY_KEY in raw[-len(WILL_RETRY_KEY) - 8 :])
            return None
        if len(raw) > LONG_LINE_BYTES:
            cut_position = raw.find(REPETITION_KEY)
            if (
                cut_position > 0
                and raw.find(b'"assistantMessageEvent":', 0, cut_position) > 0
                and b'"toolcall_' not in raw[:cut_position]
            ):
                if raw.find(JOINED_EVENTS, cut_position) > 0:
                    return raw
                raw = raw[:cut_position] + b"}}"
        if self.partial or self._update_bytes < 0 or JOINED_EVENTS in raw:
            return raw
        self._updates.append(raw)
        self._update_bytes = size = self._update_bytes + len(raw)
        if size > MAX_BUFFERED_BYTES or len(self._updates) > MAX_BUFFERED_LINES:
            self._read_updates()
            self._update_bytes = -1
        return None

    def feed_event_from_broken_line(self, event: Event) -> None:
        """Store a repaired update with the other updates. It is encoded with escapes, because it
        may contain halves of characters.
        """
        if event.get("type") != "message_update" or self.partial or self._update_bytes < 0:
            self.feed(event)
        else:
            import json

            self.filter_line(
                json.dumps({"type": "message_update"} | event, separators=(",", ":")).encode()
            )

    def _read_updates(self) -> None:
        """Translate the stored updates of a reply that was cut off, or that is too long
        to store.
        """
        updates = self._updates
        self._updates = []
        diagnostics = self.turn.diagnostics
        decoder = JsonRepairer(diagnostics)
        for raw in updates:
            diagnostics.line = raw
            for event, _ in decoder.parse_malformed_line_with_torn_flags(raw):
                try:
                    self.on_message_update(event)
                except (KeyError, TypeError):
                    diagnostics.record("malformed_event")
        decoder.close()

    # -- session and runs --------------------------------------------------------------------------

    def on_session(self, event: Event) -> None:
        self._cwd = get_text(event, "cwd")
        self.turn.record_vendor_session_info(session_id=event.get("id"), cwd=event.get("cwd"))

    def on_agent_settled(self, event: Event) -> None:
        self.turn.record_vendor_completion()

    def on_agent_start(self, event: Event) -> None:
        """Record the start of a run: the first run, a retry, a compaction or a further prompt."""
        self._has_open_reply = True
        self.turn.cancel_vendor_completion()

    on_turn_start = on_agent_start

    def on_agent_end(self, event: Event) -> None:
        self._end_run(is_newer_version="willRetry" in event)

    def _end_run(self, *, is_newer_version: bool) -> None:
        """Record that the run is complete after `agent_end`, if it is. Older versions print nothing
        after this event, and some of them never exit. Newer versions print further events if the
        run continues.
        """
        if self._is_complete():
            self.turn.record_vendor_completion()

    on_turn_end = Translator.ignore_event
    on_entry_appended = on_queue_update = on_thinking_level_changed = on_session_info_changed = (
        Translator.ignore_event
    )
    on_summarization_retry_start = on_summarization_retry_end = on_response = (
        Translator.ignore_event
    )
    on_extension_error = on_bash_execution_update = Translator.ignore_event

    # -- replies -----------------------------------------------------------------------------------

    def on_message_start(self, event: Event) -> None:
        message = event["message"]
        if message.get("role") != "assistant":
            return
        self._has_open_reply = True
        self._result_counts.clear()
        self._malformed_arguments.clear()
        self.turn.cancel_vendor_completion()
        self._write_failed_message()
        self._clear_updates()
        self.turn.start_message(model=message.get("model"))

    def on_message_update(self, event: Event) -> None:
        update = event["assistantMessageEvent"]
        kind = update["type"]
        if kind == "text_delta":
            self.turn.add_text(update["delta"], update.get("contentIndex"))
        elif kind == "thinking_delta":
            self.turn.add_thinking(update["delta"], update.get("contentIndex"))
        elif kind == "toolcall_end":
            self._announce_call(as_dict(update.get("toolCall")), kind)

    def on_message_end(self, event: Event) -> None:
        message = event["message"]
        role = message.get("role")
        if role == "toolResult":
            self._translate_result_message(message)
            return
        if role == "custom":
            # An extension sends such a message to answer a command without the model.
            self._is_answered_by_extension = True
        if role != "assistant":
            return
        reason = message.get("stopReason")
        self._last_message = message
        self._has_open_reply = False
        if reason in FAILED_REASONS:
            self._failed_message = message
            return
        if not self.partial and self._update_bytes < 0:
            self._read_updates()
        self._clear_updates()
        reply_usage = convert_usage(message.get("usage"))
        self._write_message(message, reply_usage)
        self.turn.end_message(
            reply_usage, STOP_REASONS.get(str(reason)), read_message_cost(message.get("usage"))
        )

    def _write_message(self, message: dict[str, Any], reply_usage: Usage) -> None:
        turn = self.turn
        turn.update_message(message.get("model"), reply_usage)
        content = message.get("content")
        if not content:
            content = []
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        for index, block in enumerate(content if isinstance(content, list) else [content]):
            try:
                self._write_block(index, block)
            except (AttributeError, KeyError, TypeError) as error:  # skip only this block
                turn.diagnostics.record("malformed_event", f"{error!r}: {block}")

    def _write_block(self, index: int, block: dict[str, Any]) -> None:
        kind = block.get("type")
        if kind == "text":
            self.turn.update_text(block["text"], index)
        elif kind == "thinking":
            self.turn.update_thinking(block["thinking"], index)
        elif kind == "toolCall":
            self._announce_call(block, "message_end")

    def _clear_updates(self) -> None:
        self._updates.clear()
        self._update_bytes = 0

    def _write_failed_message(self) -> None:
        """Write a reply that was cut off. No retry followed, so this reply is the last one."""
        if self._failed_message is not None:
            message = self._failed_message
            self._failed_message = None
            self._read_updates()
            self._clear_updates()
            reply_usage = convert_usage(message.get("usage"))
            self._write_message(message, reply_usage)
            self.turn.end_message(
                reply_usage, None, read_message_cost(message.get("usage")), aborted=True
            )

    def _retract_failed_message(self) -> None:
        """Retract a reply that was cut off and is retried. The reply's cost still counts."""
        if self._failed_message is not None:
            raw_usage, self._failed_message = self._failed_message.get("usage"), None
            self.turn.add_usage(convert_usage(raw_usage), read_message_cost(raw_usage))
        self._clear_updates()
        self.turn.retract_message()

    def on_auto_retry_start(self, event: Event) -> None:
        self.turn.cancel_vendor_completion()
        self._retract_failed_message()
        attempt = event.get("attempt", 1)
        limit = event.get("maxAttempts", 1)
        delay = event.get("delayMs", 0)
        self.turn.write_retry(attempt, limit, delay, get_text(event, "errorMessage"))

    def on_auto_retry_end(self, event: Event) -> None:
        if not event.get("success") and event.get("finalError"):
            self._last_message = {"stopReason": "error", "errorMessage": event["finalError"]}

    # -- tools -------------------------------------------------------------------------------------

    def _announce_call(self, call: dict[str, Any], source: str) -> None:
        """Announce a tool call. pi reports each call twice: in its reply, and when the
        call runs.
        """
        name, arguments = translate_tool_call(TOOLS, call["name"], self._read_arguments(call))
        if call["name"] in TOOLS:
            arguments = resolve_argument_paths(arguments, self._cwd)
        self.turn.add_tool_call(call.get("id"), name, arguments, source=source)

    def _read_arguments(self, call: dict[str, Any]) -> object:
        """Return a tool call's arguments, or the model's text if the arguments are not JSON.

        Since 1.6, pi replaces such arguments with `{}` and an `argumentsError` that contains the
        model's text. When the call runs, it fails immediately, and its event does not repeat the
        text.
        """
        call_id = normalize_call_id(call.get("id"))
        reason = call.get("argumentsError")
        if isinstance(reason, str) and not call.get("arguments"):
            if len(self._malformed_arguments) < MAX_OPEN_CALLS:
                self._malformed_arguments[call_id] = reason.partition(ARGUMENTS_MARKER)[2] or reason
        elif call.get("type") == "toolCall":
            self._malformed_arguments.pop(call_id, None)  # stored for an earlier call with this id
        if not call.get("arguments") and call_id in self._malformed_arguments:
            return self._malformed_arguments[call_id]
        return call.get("arguments")

    def on_tool_execution_start(self, event: Event) -> None:
        call = {
            "id": event.get("toolCallId"),
            "name": event["toolName"],
            "arguments": event.get("args"),
        }
        self._announce_call(call, "tool_execution_start")

    on_tool_execution_update = Translator.ignore_event

    def on_tool_execution_end(self, event: Event) -> None:
        call_id = normalize_call_id(event.get("toolCallId"))
        if len(self._result_counts) < MAX_OPEN_CALLS:
            self._result_counts[call_id] = self._result_counts.get(call_id, 0) + 1
        self._write_result(as_dict(event.get("result")) | event)

    def _translate_result_message(self, message: dict[str, Any]) -> None:
        """Translate a message with a tool result. A message that repeats a result is ignored. Any
        other message is the result of another call with the same id.
        """
        call_id = normalize_call_id(message.get("toolCallId"))
        if self._result_counts.get(call_id):
            self._result_counts[call_id] -= 1
        else:
            self._write_result(message)

    def _write_result(self, result: dict[str, Any]) -> None:
        turn = self.turn
        call_id = normalize_call_id(result.get("toolCallId"))
        tool = result.get("toolName")
        name = None
        if isinstance(tool, str):
            name = translate_tool_call(TOOLS, tool, {})[0]
        blocks = convert_tool_result_content(result.get("content"))
        is_error = bool(result.get("isError"))
        if turn.find_call(call_id, name) is not None:
            turn.add_tool_result(call_id, blocks, is_error, name)
        elif not turn.conversation.has_used_call_id(call_id):
            turn.add_tool_result(call_id, blocks, is_error)

    # -- compaction --------------------------------------------------------------------------------

    def on_compaction_start(self, event: Event) -> None:
        self._is_compacting = True
        self.turn.cancel_vendor_completion()
        if self._failed_message is not None:
            self._retract_failed_message()

    def on_compaction_end(self, event: Event) -> None:
        self._is_compacting = False
        result = event.get("result")
        if result:
            self._compaction_error = ""
        else:
            self._compaction_error = get_text(event, "errorMessage")
        if not result:
            return
        self._last_message = None
        trigger = "auto"
        if event.get("reason") == "manual":
            trigger = "manual"
        self.turn.write_compaction(trigger, parse_count_or_zero(result.get("tokensBefore")))
        # The tokens of a compaction belong to no reply, so only the cost is added.
        self.turn.add_usage(NO_USAGE, read_message_cost(result.get("usage")))

    on_auto_compaction_start = on_compaction_start
    on_auto_compaction_end = on_compaction_end

    # -- the end -----------------------------------------------------------------------------------

    def feed_eof(self, child_exit: ChildExit | None, stderr: str) -> None:
        """End the turn when pi exits. Older versions report the end of a turn in no other way."""
        self._conclude_turn()

    def _conclude_turn(self) -> None:
        """Record how the turn ended, based on the last reply and on a compaction that is still
        open.
        """
        last_message = as_dict(self._last_message)
        if last_message.get("stopReason") in FAILED_REASONS:
            self.turn.record_failure(
                get_text(last_message, "errorMessage", last_message["stopReason"])
            )
        elif self._compaction_error and last_message.get("stopReason") != "stop":
            self.turn.record_failure(self._compaction_error)
        elif self._is_compacting:
            self.turn.record_failure(
                "pi ended while it was compacting its context; the prompt was lost",
                kind="truncated",
            )
        self._write_failed_message()
        self._read_updates()
        if self.turn.outcome_tracker.outcome is None and self._is_complete():
            self.turn.record_turn_end()

    def _is_complete(self) -> bool:
        """Return whether the run is complete: its last reply stopped normally, and nothing was
        started after this reply.
        """
        if self._last_message is not None and not self._has_open_reply:
            if self.turn.outcome_tracker.is_finalized:
                return True
            return self._last_message.get("stopReason") in FINAL_REASONS
        if self._last_message is not None:
            return False
        if self._has_open_reply:
            return False
        if self._is_answered_by_extension:
            return True
        return self.turn.outcome_tracker.is_finalized


def read_message_cost(raw_usage: object) -> float:
    """Return the cost of a reply in dollars, as calculated by pi."""
    costs = as_dict(raw_usage).get("cost")
    if isinstance(costs, dict):
        return parse_dollars(costs.get("total"))
    return 0.0


def convert_usage(raw_usage: object) -> Usage:
    """Return Claude's usage for one reply. pi's `input` does not include cached tokens, and its
    `output` includes reasoning.
    """
    if not isinstance(raw_usage, dict):
        return NO_USAGE
    return create_usage(
        raw_usage.get("input"),
        raw_usage.get("cacheRead"),
        raw_usage.get("cacheWrite"),
        raw_usage.get("output"),
    )


def convert_tool_result_content(blocks: object) -> object:
    """Return the content of a tool result: one text if all blocks are texts, otherwise the blocks
    unchanged, because they are MCP blocks.
    """
    if not isinstance(blocks, list):
        return as_str(blocks)
    if all(isinstance(block, dict) and block.get("type") == "text" for block in blocks):
        return "\n".join(block.get("text", "") for block in blocks)
    return [block for block in blocks if isinstance(block, dict)]
