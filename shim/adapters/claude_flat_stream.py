"""Translates the lines of a real claude to a flat dialect.

The stream has deltas, if they were requested, and a line for each complete content block. Tool
calls, tool results and messages from subagents are complete lines. A synthetic line precedes the
result of a failed request.
"""

from typing import Any

from shim.adapters.claude_protocol_stream import ClaudeProtocolTranslator
from shim.core.adapter.translator import Event, Translator
from shim.core.api_errors import TurnEndCause
from shim.core.claude.usage import parse_count_or_zero, parse_usage
from shim.core.reading.values import as_dict, as_list, as_str, list_dicts
from shim.core.turn.turn import Turn

SYNTHETIC_MODEL = "<synthetic>"
INTERRUPTED_REASONS = ("aborted_streaming", "aborted_tools")
ERROR_CAUSES: dict[str, TurnEndCause] = {
    "error_max_turns": "limit",
    "error_max_budget_usd": "limit",
}


class FlatClaudeTranslator(ClaudeProtocolTranslator):
    """Translates the output lines of one real claude process."""

    def __init__(self, turn: Turn, *, partial: bool = False) -> None:
        super().__init__(turn, partial=partial)
        self._error_event: Event = {}

    def start_turn(self, turn: Turn) -> None:
        super().start_turn(turn)
        self._error_event = {}

    def on_system(self, event: Event) -> None:
        subtype = event.get("subtype")
        if subtype == "init":
            self.start_next_turn()
            self.turn.record_vendor_session_info(
                session_id=event.get("session_id"),
                cwd=event.get("cwd"),
                model=event.get("model"),
                tools=event.get("tools"),
                mode=event.get("permissionMode"),
                vendor_version=event.get("claude_code_version"),
            )
        elif subtype == "compact_boundary":
            metadata = as_dict(event.get("compact_metadata"))
            self.turn.write_compaction(
                str(metadata.get("trigger")), parse_count_or_zero(metadata.get("pre_tokens"))
            )
        elif subtype == "api_retry":
            self._retract_reply()
            attempt, limit, delay = (
                parse_count_or_zero(event.get(key))
                for key in ("attempt", "max_retries", "retry_delay_ms")
            )
            self.turn.write_retry(
                attempt,
                limit,
                delay,
                f"{event.get('error_status') or ''} {event.get('error')}".strip(),
            )

    def _start_reply(self, message: Event) -> None:
        self._streamed_blocks.clear()
        super()._start_reply(message)

    def on_assistant(self, event: Event) -> None:
        message = event["message"]
        if message.get("model") == SYNTHETIC_MODEL:
            self._error_event = event
            return
        if parent := event.get("parent_tool_use_id"):
            self._write_nested(self.turn.get_subagent(parent), message["content"])
            return
        self.turn.update_message(message.get("model"))
        for block in message["content"]:
            kind = block["type"]
            if kind in ("text", "thinking"):
                self._write_block(kind, block[kind])
            elif kind == "tool_use":
                self.turn.add_tool_call(block.get("id"), *self.translate_tool_use(block))
            else:
                self.turn.record_unknown_event(f"block/{kind}", block)

    def on_user(self, event: Event) -> None:
        content = event["message"]["content"]
        if isinstance(content, str) or event.get("isReplay"):
            return
        parent = event.get("parent_tool_use_id")
        target = self.turn.get_subagent(parent) if parent else self.turn
        for block in content:
            if block["type"] == "tool_result":
                target.add_tool_result(
                    block.get("tool_use_id"), block.get("content", ""), bool(block.get("is_error"))
                )

    on_tool_progress = on_command_lifecycle = on_auth_status = on_rate_limit_event = (
        on_message_stop
    ) = Translator.ignore_event

    def on_result(self, event: Event) -> None:
        turn = self.turn
        for denial in list_dicts(event.get("permission_denials")):
            turn.add_denial(
                str(denial.get("tool_use_id")),
                str(denial.get("tool_name")),
                as_dict(denial.get("tool_input")),
            )
        fields: dict[str, Any] = {
            "duration_ms": event.get("duration_ms"),
            "api_ms": event.get("duration_api_ms"),
            "usage": parse_usage(event.get("usage")),
            "cost": event.get("total_cost_usd"),
            "structured_output": event.get("structured_output"),
        }
        text = as_str(event.get("result"))
        if event.get("terminal_reason") in INTERRUPTED_REASONS:
            turn.record_interrupt(**fields)
        elif event.get("is_error"):
            self._record_failure(event, text, fields)
        else:
            turn.record_turn_end(result=text, **fields)
        turn.record_vendor_completion()

    def _record_failure(self, event: Event, text: str, fields: dict[str, Any]) -> None:
        """Record the failure in a result. `text` is the result's text, and `fields` are its figures."""
        subtype = str(event.get("subtype"))
        first_error = next(iter(as_list(event.get("errors"))), "")
        status = event.get("api_error_status")
        api = None
        if subtype == "success" or self._error_event:
            api = True
        self.turn.record_failure(
            str(text or first_error or subtype),
            api=api,
            status=status if isinstance(status, int) else None,
            kind=ERROR_CAUSES.get(subtype),
            subtype=None if subtype == "success" else subtype,
            **fields,
        )
