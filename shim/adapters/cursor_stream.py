"""Translates cursor's stream as it appears in captures and public documents.

With --stream-partial-output, cursor repeats each text segment as a complete line, at one of four
points in the stream. `_pending` is the text since the last complete line. A line with the same text
may be a delta or a repetition, so it is held in `_buffered_text` until the next event arrives. Some
builds repeat a segment only after the tool call that ends the segment has started, so `_unrepeated`
keeps the segment until then.
"""

from collections.abc import Mapping
from typing import Any

from shim.adapters.cursor_tools import SKIPPED_TOOLS, TOOLS, parse_tool_result
from shim.core.adapter.tools import translate_tool_call
from shim.core.adapter.translator import Event, Translator
from shim.core.claude.usage import Usage, create_usage
from shim.core.reading.diagnostics import Diagnostics
from shim.core.reading.json_repair import parse_json_text
from shim.core.reading.values import as_dict, get_text, list_dicts
from shim.core.turn.outcome import ChildExit
from shim.core.turn.turn import Turn

FLUSH_EVENTS = ("interaction_query", "retry")
MAX_TODOS = 1000
MAX_TODO_CHARS = 1000  # the maximum length of a todo's text
TODO_FIELDS = ("id", "content", "status", "activeForm")
# The number of characters that are compared to recognize a repeated segment. The total length is
# also compared.
MAX_PENDING_CHARS = 512 * 1024


class CursorTranslator(Translator):
    """Translates the output lines of one cursor-agent process.

    `_pending` is the text written since the last complete line. `_buffered_text` is a line that may
    repeat this text.
    """

    def __init__(self, turn: Turn, *, partial: bool = False) -> None:
        super().__init__(turn, partial=partial)
        self._pending: list[str] = []
        self._pending_length = 0
        self._fragment_count = 0  # the number of fragments in the pending text
        self._unrepeated = ""
        self._unrepeated_length = 0
        self._unrepeated_is_streamed = False  # whether the segment came in several fragments
        self._buffered_text: str | None = None
        self._written_chars = 0
        self._plan_query: dict[str, Any] | None = None
        self._last_query: dict[str, Any] = {}
        self._todos: dict[str, dict[str, Any]] = {}

    def feed(self, event: Event) -> None:
        if self._buffered_text is not None:
            text = self._buffered_text
            self._buffered_text = None
            if event.get("type") in FLUSH_EVENTS:
                self._clear_pending()
            else:
                self._write_text(text)
        handler = self.handlers.get(event.get("type"))
        if handler is None:
            self.turn.record_unknown_event(event.get("type"), event)
        else:
            handler(event)

    def on_system(self, event: Event) -> None:
        if event.get("subtype") != "init":
            self.turn.record_unknown_event(f"system/{event.get('subtype')}", event)
            return
        self.turn.record_vendor_session_info(
            session_id=event.get("session_id"),
            cwd=event.get("cwd"),
            model=event.get("model"),
            key_source=event.get("apiKeySource"),
        )

    on_user = Translator.ignore_event

    def on_thinking(self, event: Event) -> None:
        if event.get("subtype") == "delta":
            self.turn.add_thinking(get_text(event, "text"))
        else:
            self.turn.end_block()

    def on_assistant(self, event: Event) -> None:
        content = event["message"]["content"]
        if len(content) == 1:
            text = content[0]["text"]
        else:
            text = "".join(part.get("text", "") for part in content)
        if "timestamp_ms" in event and "model_call_id" not in event:
            if (
                self._pending_length == len(text)
                and self._pending_length
                and text.startswith("".join(self._pending))
            ):
                self._buffered_text = text
            else:
                self._write_text(text)
            return
        text = self._strip_repetition(text, from_model="model_call_id" in event)
        if not text:
            return
        if not self._pending_length:
            self._written_chars += len(text)
            # The block stays open, because one text may arrive as several lines.
            self.turn.add_text(text)
            return
        if text.startswith("".join(self._pending)):
            self._written_chars += len(text) - self._pending_length
            self.turn.add_text(text[self._pending_length :])
        else:
            self.turn.diagnostics.record("contradicted_block", text)
        self._clear_pending()
        self.turn.end_block()

    def _strip_repetition(self, text: str, *, from_model: bool) -> str:
        """Return the part of a segment's text that is new.

        cursor may send a complete segment again, after the event that ended the segment. If the
        segment was not streamed, a line without a model call id may be another reply with the same
        text, so it is not treated as a repetition.
        """
        pending = "".join(self._pending)
        if not self._unrepeated or not text.startswith(self._unrepeated):
            return text
        if pending and text.startswith(pending):
            return text
        if not (from_model or self._unrepeated_is_streamed):
            return text
        self._unrepeated = ""
        return text[self._unrepeated_length :]

    def _end_segment(self) -> None:
        """End the text segment because another event has arrived. The segment may be repeated
        later.
        """
        if self._pending:
            self._unrepeated = "".join(self._pending)
            self._unrepeated_length = self._pending_length
            self._unrepeated_is_streamed = self._fragment_count > 1
        self._clear_pending()

    def _write_text(self, text: str) -> None:
        if self._pending_length < MAX_PENDING_CHARS:
            self._pending.append(text)
        self._fragment_count += 1
        self._pending_length += len(text)
        self._written_chars += len(text)
        self.turn.add_text(text)

    def _clear_pending(self) -> None:
        if self._pending:
            self._pending.clear()
            self._pending_length = self._fragment_count = 0

    def on_tool_call(self, event: Event) -> None:
        self._end_segment()
        call = event["tool_call"]
        kind = "unknownToolCall"
        for key in call:
            if key.endswith("ToolCall") or key == "function":
                kind = key
                break
        body = as_dict(call[kind])
        call_id = str(event.get("call_id") or call.get("toolCallId") or "").replace("\n", "_")
        name, arguments = self._resolve_call(kind, call, body, event.get("call_id"))
        if event.get("subtype") == "started":
            self._plan_query = None
            self.turn.add_tool_call(call_id, name, arguments)
            return
        open_call = self.turn.find_call(call_id, name, arguments)
        if (
            open_call is not None and not arguments
        ):  # the event for the call's end may lack the arguments
            name, arguments = open_call[1:]
        content, failed, is_denied = parse_tool_result(name, as_dict(body.get("result")))
        if is_denied and name not in SKIPPED_TOOLS:
            self.turn.add_denial(call_id, name, arguments)
        self.turn.add_tool_result(call_id, content, failed, name, arguments)

    def _resolve_call(
        self, kind: str, call: Event, body: Event, call_id: object
    ) -> tuple[str, Mapping[str, Any]]:
        arguments = body.get("args")
        if not arguments and self._last_query.get("toolCallId") == call.get("toolCallId", call_id):
            arguments = self._last_query
        if kind == "updateTodosToolCall" and isinstance(arguments, dict):
            arguments = self._merge_todos(arguments)
        if kind == "function":
            kind = str(body.get("name"))
            arguments = _parse_arguments(body.get("arguments"), self.turn.diagnostics)
        name, claude_arguments = translate_tool_call(TOOLS, kind, arguments)
        if kind not in TOOLS and kind.endswith("ToolCall"):
            name = kind[: -len("ToolCall")]
            name = name[:1].upper() + name[1:]
        return name, claude_arguments

    def _merge_todos(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the complete todo list after an update. An update with `merge` contains only the
        changed entries.
        """
        if not arguments.get("merge"):
            self._todos.clear()
        for item in list_dicts(arguments.get("todos")):
            fields = {
                name: str(item[name])[:MAX_TODO_CHARS] for name in TODO_FIELDS if name in item
            }
            todo_id = fields.get("id", "")
            if todo_id in self._todos or len(self._todos) < MAX_TODOS:
                self._todos[todo_id] = self._todos.get(todo_id, {}) | fields
        return {"todos": list(self._todos.values())}

    def feed_eof(self, child_exit: ChildExit | None, stderr: str) -> None:
        if self._buffered_text is not None:
            self._write_text(self._buffered_text)

    def on_interaction_query(self, event: Event) -> None:
        """Store the arguments of a request that the CLI answers itself.

        The arguments may not be sent again: no tool call repeats a plan, and a call that was
        rejected before it started has no other arguments.
        """
        self._end_segment()
        for name, query in as_dict(event.get("query")).items():
            if isinstance(query, dict) and isinstance(query.get("args"), dict):
                self._last_query = query["args"] | {
                    "toolCallId": query.get("toolCallId", query["args"].get("toolCallId"))
                }
                if name == "createPlanRequestQuery":
                    self._plan_query = self._last_query

    def on_connection(self, event: Event) -> None:
        """Ignore events about a lost or restored network connection. The turn continues."""

    def on_retry(self, event: Event) -> None:
        self._end_segment()

    def on_result(self, event: Event) -> None:
        if self._plan_query is not None:
            plan = self._plan_query
            tool_input = {"plan": plan.get("plan", "")}
            self.turn.add_tool_call(plan.get("toolCallId"), "ExitPlanMode", tool_input)
            self.turn.add_tool_result(
                plan.get("toolCallId"), "", name="ExitPlanMode", tool_input=tool_input
            )
        text = event.get("result")
        failed = event.get("is_error")
        if not failed:
            failed = event.get("subtype") != "success"
        if isinstance(text, str) and not self._written_chars and not failed:
            self.turn.add_block(text)
        fields: dict[str, Any] = {
            "usage": convert_usage(event.get("usage")),
            "duration_ms": event.get("duration_ms"),
            "api_ms": event.get("duration_api_ms"),
            "result": text,
        }
        if failed:
            self.turn.record_failure(
                str(text or event.get("error") or event.get("subtype")), **fields
            )
        else:
            self.turn.record_turn_end(**fields)
        self.turn.record_vendor_completion()


def _parse_arguments(arguments: object, diagnostics: Diagnostics) -> object:
    if not isinstance(arguments, str):
        return arguments
    value = parse_json_text(arguments, diagnostics)
    if isinstance(value, str):
        return {"raw": value}
    return value


def convert_usage(raw_usage: object) -> Usage | None:
    """Return the usage of a turn, or None if there is no usage. `inputTokens` does not include the
    cached tokens.
    """
    if not isinstance(raw_usage, dict):
        return None
    names = ("inputTokens", "cacheReadTokens", "cacheWriteTokens", "outputTokens")
    return create_usage(*(raw_usage.get(name) for name in names))
