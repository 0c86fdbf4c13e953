"""The base class for translators that apply a profile's rules. It has the actions that rules use,
and the state that these actions need for one child.
"""

from typing import TYPE_CHECKING, Any, ClassVar

from shim.core.adapter.tools import ToolMapping, Tools, translate_tool_call
from shim.core.adapter.translator import Event, Translator
from shim.core.api_errors import TurnEndCause
from shim.core.claude.usage import NO_USAGE, Usage, parse_count_or_zero
from shim.core.reading.json_repair import parse_json_text
from shim.core.turn.open_calls import STREAM
from shim.core.turn.turn import Turn
from shim.profiles.run.usage_counter import VendorUsageCounter

if TYPE_CHECKING:
    from shim.profiles.run.partial_calls import PartialCalls
    from shim.profiles.run.subagent_events import SubagentEventWriter

MAX_NOTICE_CHARS = 2000
MAX_REMEMBERED_VALUES = 1000  # values that `once` rules have already handled in the turn
MAX_COMPARED_CHARS = 20_000  # for longer values, only the beginning and the length are compared
SUBTYPE_BY_LIMIT = {
    **dict.fromkeys(("turns", "max_turns"), "error_max_turns"),
    **dict.fromkeys(("budget", "max_budget"), "error_max_budget_usd"),
}


class EventOfOtherSessionError(Exception):
    """Raised for an event from a broken line that belongs to a different session."""


class ProfileRuleEngine(Translator):
    """The actions of profile rules that need more than one method call on the Turn."""

    usage_means: ClassVar[str] = "none"
    marks_ids: ClassVar[bool] = False
    counts_replies: ClassVar[bool] = False  # whether a rule reports the end of each message
    # Whether calls to tools that are missing in the profile are omitted.
    hides: ClassVar[bool] = False
    late: ClassVar[bool] = False  # whether tool results may arrive after the next message, or never
    tools: ClassVar[Tools] = {}
    server_tool: ClassVar[str] = ""  # the vendor's format for MCP tool names

    def __init__(self, turn: Turn, *, partial: bool = False) -> None:
        super().__init__(turn, partial=partial)
        if self.marks_ids:
            self.id_prefix = f"{turn.writer.create_uuid()[-6:]}_"
        else:
            self.id_prefix = ""
        self.vendor_session: object = None
        self.last_notice = ""
        self.usage_counter = VendorUsageCounter(self.usage_means, turn.conversation)
        self.buffered_blocks: list[tuple[str, str]] = []
        self.reports_results = False  # whether the vendor has reported any tool result
        self.partial_calls: PartialCalls | None = None
        # The number of the current block of each kind. It is the block's key if the vendor sends no
        # keys, and streams each block before it sends the complete block.
        self.block_keys = {"text": 0, "thinking": 0}
        self.is_doubtful = False  # whether the current event is from a broken line
        self._value_hashes: set[int] = set()
        self._nested: SubagentEventWriter | None = None
        self._server_names: list[str] | None = None

    @property
    def subagent_events(self) -> "SubagentEventWriter":
        """The writer for subagent events. `stream.parent` identifies these events."""
        if self._nested is None:
            from shim.profiles.run.subagent_events import SubagentEventWriter

            self._nested = SubagentEventWriter(self)
        return self._nested

    def reset_for_next_turn(self) -> None:
        """Clear the state that belongs to the previous turn."""
        self._value_hashes.clear()
        self.buffered_blocks.clear()
        self.partial_calls = self._nested = self._server_names = None
        self.vendor_session = None
        self.last_notice = ""
        self.usage_counter.start_turn()

    def is_first_occurrence_in_turn(self, values: tuple[Any, ...]) -> bool:
        """Return whether these values occur for the first time in this turn."""
        value_hash = hash(tuple(map(_shorten, values)))
        if value_hash in self._value_hashes:
            return False
        if len(self._value_hashes) >= MAX_REMEMBERED_VALUES:
            self._value_hashes.clear()
        self._value_hashes.add(value_hash)
        return True

    # -- sessions ----------------------------------------------------------------------------------

    def feed_event_from_broken_line(self, event: Event) -> None:
        """Handle an event from a broken line. An event from a different session is dropped and
        counted, because the line may be forged.
        """
        self.is_doubtful = True
        try:
            self.feed(event)
        except EventOfOtherSessionError:
            self.diagnostics.record("doubtful_event")
        finally:
            self.is_doubtful = False

    def check_event_session_id(self, session_id: Any) -> None:
        """Raise EventOfOtherSessionError if an event from a broken line has the id of a different
        session.
        """
        if session_id and self.turn.conversation.vendor_session_id not in (None, session_id):
            raise EventOfOtherSessionError

    def set_vendor_session_id(self, session_id: Any) -> None:
        """Record a new session id that the vendor has reported."""
        if self.is_doubtful:
            self.check_event_session_id(session_id)
        self.vendor_session = session_id
        self.turn.record_vendor_session_info(session_id=session_id)

    def remove_hidden_tools(self, tool_names: Any) -> Any:
        """Return a list of tool names without the hidden tools, whose calls are omitted from the
        stream.
        """
        if tool_names.__class__ is list:
            return [name for name in tool_names if not self.is_hidden_tool(name)]
        return tool_names

    # -- content blocks ----------------------------------------------------------------------------

    def update_content_block(self, kind: str, text: Any, key: Any, is_final: bool) -> None:
        """Update a content block with its complete text so far. `is_final` ends the block."""
        if text is None:
            return
        (self.turn.update_text if kind == "text" else self.turn.update_thinking)(text, key)
        if is_final:
            self.turn.end_block()
            self.block_keys[kind] += 1

    def write_complete_content_block(self, text: Any, kind: str) -> None:
        """Write a complete content block. If tool calls are open, buffer the block until the next
        event, because the tool results may arrive after the block. Raise TypeError if `text` is
        not a string.
        """
        if self.buffered_blocks:
            self.write_buffered_blocks()
        if not self.turn.open_calls:
            self.turn.add_block(text, kind)
        elif text.__class__ is str:
            self.buffered_blocks.append((kind, text))
        else:
            raise TypeError(f"the content of a {kind} block is not text")

    def write_buffered_blocks(self, *, fill_results: bool = True) -> None:
        """Write the buffered content blocks. With `fill_results`, write substitute results for the
        open tool calls first, because the real results can no longer arrive.
        """
        if fill_results and self.turn.open_calls:
            self.turn.fill_open_call_results()
        for kind, text in self.buffered_blocks:
            self.turn.add_block(text, kind)
        self.buffered_blocks.clear()

    def translate_vendor_tool_call(self, name: Any, arguments: Any) -> tuple[str, dict[str, Any]]:
        """Return Claude's tool name and arguments for a vendor's tool call. Tools from the
        configured MCP servers are included.
        """
        if not self.server_tool or name.__class__ is not str or name in self.tools:
            return translate_tool_call(self.tools, name, arguments)
        from shim.profiles.acp.servers import resolve_mcp_tool_name

        if self._server_names is None:
            self._server_names = self.turn.config.session.list_server_names()
        claude_name = resolve_mcp_tool_name(
            self.server_tool, self._server_names, name, self.turn.config.evaluator
        )
        tools = {name: ToolMapping(claude_name)} if claude_name else self.tools
        return translate_tool_call(tools, name, arguments)

    # -- tool calls --------------------------------------------------------------------------------

    def is_hidden_tool(self, name: Any) -> bool:
        """Return whether calls to this tool are omitted from the stream."""
        if not self.hides:
            return False
        if name.__class__ is not str:
            return False
        return self.tools.get(name) is None

    @property
    def oldest_open_call_id(self) -> str:
        """The id of the oldest open tool call, or "" if no call is open."""
        return next(iter(self.turn.open_calls), "")

    def write_call(
        self, call_id: Any, name: Any, arguments: Any, source: str = STREAM
    ) -> str | None:
        """Write a tool call. Return its key in the turn's open calls, or None if the call is hidden
        or a subagent made it.
        """
        if self.partial_calls is not None:
            self.partial_calls.discard_call(call_id)
        if (
            self._nested is not None
            and (parent := self._nested.take_parent_of_partial_call(call_id)) is not None
        ):
            self._nested.write_call(parent, call_id, name, arguments)
            return None
        if self.buffered_blocks:
            self.write_buffered_blocks_before_call()
        return self.turn.add_tool_call(
            call_id,
            *self.translate_vendor_tool_call(name, arguments),
            is_hidden=self.is_hidden_tool(name),
            source=source,
        )

    def write_buffered_blocks_before_call(self) -> None:
        """Write the buffered content blocks before a tool call. If text was buffered, open calls
        get substitute results. If only thinking was buffered, they stay open.
        """
        self.write_buffered_blocks(
            fill_results=any(kind == "text" for kind, _ in self.buffered_blocks)
        )

    def add_call_fragment(self, key: Any, call_id: Any, name: Any, fragment: Any) -> None:
        if self.partial_calls is None:
            from shim.profiles.run.partial_calls import PartialCalls

            self.partial_calls = PartialCalls(self.diagnostics)
        self.partial_calls.add_fragment(key, call_id, name, fragment)

    def finish_partial_calls(self, key: Any = None, *, is_complete: bool = True) -> None:
        """Write the tool calls that arrived in fragments: all of them, or only the call `key`. If
        `is_complete` is false, drop all of them instead.
        """
        if self.partial_calls is None:
            return
        if not is_complete:
            self.partial_calls.discard_calls()
            return
        for call_id, name, text in self.partial_calls.take_calls(key):
            arguments = {}
            if text.strip():
                arguments = parse_json_text(text, self.diagnostics)
            self.write_call(call_id, name, arguments)

    def write_result_with_call(
        self, call_id: Any, content: Any, is_error: bool, name: Any, arguments: Any
    ) -> None:
        """Write a tool result. If the tool call was not reported before, write the call first."""
        if self.is_hidden_tool(name):
            key = self.write_call(call_id, name, arguments)
            if key in self.turn.open_calls:  # a rule forbids the call
                self.turn.add_tool_result(key, content, is_error)
        else:
            self.turn.add_tool_result(
                call_id, content, is_error, *self.translate_vendor_tool_call(name, arguments)
            )

    def record_tool_call_denial(self, call_id: Any, name: Any, arguments: Any) -> None:
        claude_name, arguments = self.translate_vendor_tool_call(name, arguments)
        if claude_name.__class__ is not str:
            claude_name = "unknown"
        call = None
        if call_id and name is not None:
            call = self.turn.find_call(call_id, claude_name, arguments)
        elif call_id:
            call = self.turn.find_call(call_id)
        if call is not None:
            self.turn.add_denial(*call)
            return
        self.turn.add_denial(str(call_id or claude_name), claude_name, arguments)

    def write_open_subagent_blocks(self) -> None:
        """Write the open content blocks of all subagents, because the output has ended."""
        if self._nested is not None:
            self._nested.write_open_blocks()

    # -- usage, results and errors -----------------------------------------------------------------

    def end_message(self, usage: Usage | None, stop_reason: Any, cost: float) -> None:
        """End a model message. `usage` and `cost` are the figures that the vendor reported."""
        self.finish_partial_calls()
        reason = None
        if isinstance(stop_reason, str):
            reason = stop_reason
        if self.usage_means == "request":
            self.turn.end_message(usage, reason, cost)
            return
        self.usage_counter.record(usage, cost)
        if reason:
            self.turn.end_message(None, reason)

    def end_turn(
        self,
        usage: Usage | None,
        cost: float,
        *,
        is_error: Any = None,
        error: Any = None,
        code: Any = None,
        text: Any = None,
        duration_ms: Any = None,
        stop_reason: Any = None,
        limit: Any = None,
        interrupted: Any = None,
    ) -> None:
        """End the turn, because the vendor has reported its end. The parameters are the fields of a
        `result` rule.
        """
        has_failed = bool(interrupted or is_error)
        self.finish_partial_calls(is_complete=not has_failed)
        self.write_open_subagent_blocks()
        if self.late:
            # After a successful turn, tool calls are only open if the vendor never reports results.
            self.write_buffered_blocks(fill_results=not has_failed and not self.reports_results)
        fields = self.usage_counter.build_turn_usage_fields(usage, cost)
        fields |= {"duration_ms": parse_count_or_zero(duration_ms) or None, "result": text}
        if isinstance(stop_reason, str):
            self.turn.end_message(None, stop_reason)
        if interrupted:
            self.turn.record_interrupt(**fields)
        elif is_error and not (error or text) and self.has_failed:
            # The reason for the failure has already been reported.
            self.turn.outcome_tracker.add_fields(fields)
        elif is_error:
            kind: TurnEndCause | None = "limit"
            if limit is None:
                kind = None
            error_text = str(error or text or self.last_notice or "error")
            subtype = SUBTYPE_BY_LIMIT.get(str(limit))
            self.turn.record_failure(
                error_text, kind=kind, status=_as_status(code), subtype=subtype, **fields
            )
        else:
            self.turn.record_turn_end(**fields)
        self.turn.record_vendor_completion()

    def fail_turn(self, text: Any, code: Any, kind: TurnEndCause | None) -> None:
        """Record that the turn has failed. If a failed result follows, its reason replaces this
        one. If that result has no reason, this reason is kept and the result's fields are added.
        """
        self.turn.record_failure(str(text or "error"), kind=kind, status=_as_status(code))

    def record_notice(self, text: Any) -> None:
        """Store a text that becomes the error text if the turn fails without a reason."""
        self.last_notice = str(text or "")[:MAX_NOTICE_CHARS]

    def record_retry(self, attempt: Any, max_attempts: Any, delay_ms: Any, text: Any) -> None:
        """Record that the vendor is repeating its request to the model."""
        numbers = [parse_count_or_zero(number) for number in (attempt, max_attempts, delay_ms)]
        self.record_notice(text)
        self.turn.write_retry(
            numbers[0] or 1, numbers[1] or numbers[0] or 1, numbers[2], self.last_notice
        )

    def record_compaction(self, trigger: Any, tokens: Any) -> None:
        self.turn.write_compaction(
            "manual" if trigger == "manual" else "auto", parse_count_or_zero(tokens)
        )

    def add_unreported_usage_to_turn(self) -> None:
        """Add the last reported usage totals to the turn, if the vendor's result did not include
        them.
        """
        if self.usage_counter.has_unreported_usage:
            fields = self.usage_counter.build_turn_usage_fields(None, 0.0)
            self.turn.add_usage(fields["usage"] or NO_USAGE, fields.get("cost", 0.0))

    @property
    def has_failed(self) -> bool:
        outcome = self.turn.outcome_tracker.outcome
        if outcome is None:
            return False
        return outcome.kind == "failed"


def _shorten(value: Any) -> Any:
    if value.__class__ is str:
        return value[:MAX_COMPARED_CHARS], len(value)
    if value is None or isinstance(value, (int, float)):
        return value
    return str(value)[:MAX_COMPARED_CHARS]


def _as_status(code: Any) -> int | None:
    if code.__class__ is int:
        return code
    return None
