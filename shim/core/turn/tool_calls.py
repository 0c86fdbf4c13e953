"""A turn's tool calls. Every tool call gets exactly one result, and every result belongs to a tool
call, regardless of the order in which they arrive.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from shim.core.claude.hooks.callbacks import HookEvent
from shim.core.claude.line_pieces import build_hook_tool_response
from shim.core.claude.tool_content import (
    SHELL_TOOL,
    format_tool_result_content,
    is_failed_mcp_result,
)
from shim.core.policy import FAILURE_EVENT, PRE_TOOL_EVENT, RESULT_EVENT
from shim.core.policy.policy import MCP_PREFIX, STRUCTURED_OUTPUT_TOOL, normalize_tool_name
from shim.core.reading.json_text import REPAIRABLE_TYPES, dump_json
from shim.core.reading.limits import MAX_CHAR_BYTES, omit_large_images, shorten_strings
from shim.core.turn.assistant_message import AssistantMessage
from shim.core.turn.context import MAX_NAME_CHARS, MAX_USED_IDS
from shim.core.turn.machine import CLOSED, MESSAGE, READY
from shim.core.turn.open_calls import (
    PERMISSION_REQUEST,
    STREAM,
    UPDATE,
    OpenToolCalls,
    ToolCallAnnouncement,
    compute_input_fingerprint,
    normalize_call_id,
)
from shim.core.turn.outcome import MAX_TURNS_TEXT
from shim.core.turn.permission_denials import PermissionDenials
from shim.core.turn.turn_context import TurnContext

if TYPE_CHECKING:
    from shim.core.policy.evaluate import PolicyEvaluator

MAX_EARLY_RESULTS = 64  # the maximum number of results that wait for their calls
# The maximum number of open calls, and the maximum size of their arguments as JSON. No agent runs
# so many calls at the same time. Beyond a limit, the older half of the calls gets an error result, which
# bounds the memory if a vendor never reports results.
MAX_OPEN_CALLS = 1000
MAX_OPEN_CALL_BYTES = 8 * 1024 * 1024
MAX_REFUSAL_CHARS = 20_000  # the maximum length of a refused call's result

UNANSWERED_TEXT = "No result was reported for this call."
INTERRUPTED_TEXT = "Interrupted while this call was running; it may have run in part or in full."
STRUCTURED_RESULT_TEXT = "Structured output provided successfully"  # contract 5.11

OpenCall = tuple[str, str, Mapping[str, Any]]  # written id, name, arguments


class UnmatchedToolResults:
    """Tool results that arrived before their tool calls."""

    def __init__(self) -> None:
        # vendor's id → the results: the content, and whether the call failed
        self._results: dict[str, list[tuple[object, bool]]] = {}
        self._count = 0

    def __bool__(self) -> bool:
        return self._count > 0

    @property
    def can_add_result(self) -> bool:
        return self._count < MAX_EARLY_RESULTS

    def add_result(self, call_id: str, content: object, is_error: bool) -> None:
        self._results.setdefault(call_id, []).append((content, is_error))
        self._count += 1

    def take_result(self, call_id: str) -> tuple[object, bool] | None:
        """Remove and return the first result with this call id. Return None if there is no such
        result.
        """
        results = self._results.get(call_id)
        if results is None:
            return None
        self._count -= 1
        if len(results) == 1:
            del self._results[call_id]
        return results.pop(0)

    def list_call_ids(self) -> list[str]:
        """Return the call ids of all stored results. If two results have the same id, the id is
        listed twice.
        """
        return [call_id for call_id, results in self._results.items() for _ in results]


class ToolCalls:
    """Writes tool calls and their results, and stores the tool calls that wait for results."""

    def __init__(
        self,
        context: TurnContext,
        assistant_message: AssistantMessage,
        finish: Callable[[], None],
    ) -> None:
        """`finish` writes the turn's result. The function is called if a limit is reached, or if a
        forbidden tool call has started.
        """
        self._context = context
        self._machine = context.machine
        self._writer = writer = context.writer
        self._config = context.config
        self._conversation = context.conversation
        self._diagnostics = context.diagnostics
        self._sanitizer = context.sanitizer
        self._assistant_message = assistant_message
        self._outcome_tracker = context.outcome_tracker
        self.denials = PermissionDenials(context)
        self._finish = finish
        # The limit for a result is half of a line, because some lines contain the result twice.
        self._max_bytes = writer.max_bytes // 2
        self.table: OpenToolCalls[OpenCall] = OpenToolCalls()
        # key → open call; the key is usually the vendor's id (see OpenToolCalls)
        self.open_calls: dict[str, OpenCall] = self.table.calls
        self.result_count = 0  # the number of results that were written
        # Calls and results for the frontend's hooks, or None if the frontend has no hooks.
        self.hook_events: list[HookEvent] | None = None
        self._open_call_bytes = 0  # an upper bound of the size of the open calls' arguments
        self._early_results = UnmatchedToolResults()
        # written id → why the call was refused, and whether the vendor received the denial before
        # the call ran
        self._refusals: dict[str, tuple[str, bool]] = {}

    def start_hook_events(self) -> None:
        """Start to collect tool calls and results for the frontend's hooks."""
        self.hook_events = []

    def add_hook_events(self, events: Iterable[HookEvent]) -> None:
        """Add events that are not about a tool call. Nothing happens if the frontend has no
        hooks.
        """
        if self.hook_events is not None:
            self.hook_events += events

    def take_hook_events(self) -> tuple[HookEvent, ...]:
        """Remove and return the hook events since the last call."""
        if not self.hook_events:
            return ()
        events = tuple(self.hook_events)
        self.hook_events = []
        return events

    # -- calls and results from the translators ----------------------------------------------------

    def add_tool_call(
        self,
        call_id: str | None,
        name: str,
        tool_input: Mapping[str, Any],
        is_hidden: bool = False,
        source: str = STREAM,
    ) -> str | None:
        """Announce a complete tool call, with Claude's names. Return the call's key in
        `open_calls`, or None if the call is not open.

        While a call is open, another announcement with the same id, name and arguments refers to
        the same call. Any other announcement is a new call with a new id. `source` is the kind of
        event that announces the call. A different kind of event may announce the same call with
        other arguments. If `is_hidden` is set, the stream omits the call and its result, unless a
        rule forbids the call.
        """
        call_id, name, tool_input = self._normalize_call(call_id, name, tool_input)
        if self.table.has_call_id(call_id):
            key = self.table.find_repeated_call_key(call_id, name, tool_input, source)
            if key is not None and not self._remove_hidden_call(key, name, tool_input):
                return self._note_repetition(key, name, tool_input, source)

        is_denied = False
        evaluator = self._config.evaluator
        if evaluator is not None:
            is_denied = self._is_new_violation(evaluator, call_id, name, tool_input)
            is_hidden |= evaluator.is_hidden_tool(name)
        if is_hidden and not is_denied:
            self.hide_call(call_id, name, tool_input, source)
            return None

        if self._machine.state is not MESSAGE and not self._machine.move_to(MESSAGE):
            return None
        key, call = self._write_call(call_id, name, tool_input, source)
        if is_denied and not (
            evaluator is not None and evaluator.is_denial_enforced_by_vendor(call[1])
        ):
            self._stop_for_forbidden_call(*call)
        elif self._early_results:
            early_result = self._early_results.take_result(call_id)
            if early_result is not None:
                self.add_tool_result(key, *early_result)
        return key

    def record_permission_request(
        self, key: str, name: str, tool_input: Mapping[str, Any], *, has_same_input: bool
    ) -> None:
        """Record a permission request for an open tool call. The call's arguments are passed to
        hooks, unless `has_same_input` is set because the hooks already have these arguments.
        """
        is_new = self.table.record_repeated_call(key, PERMISSION_REQUEST, tool_input)
        if is_new and not has_same_input and self.hook_events is not None:
            self.hook_events.append(
                HookEvent(PRE_TOOL_EVENT, self.open_calls[key][0], name, tool_input)
            )

    def replace_call_input(self, call_id: str, name: str, tool_input: Mapping[str, Any]) -> None:
        """Replace the arguments of an open tool call."""
        name = normalize_tool_name(name)
        tool_input = self._sanitizer.clean(tool_input)
        key = self.table.find_call_key_for_result(normalize_call_id(call_id))
        if key is not None and self._remove_hidden_call(key, name, tool_input):
            self.add_tool_call(call_id, name, tool_input, source=UPDATE)
            return
        key = self._find_open_key(normalize_call_id(call_id), None, None)
        if key is not None:
            self._note_repetition(key, name, tool_input, UPDATE)

    def add_tool_result(
        self,
        call_id: str | None,
        content: object,
        is_error: bool = False,
        name: str | None = None,
        tool_input: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a tool call's result. If the call was never announced, `name` and `tool_input` are
        used to announce it.

        `content` is a string, a list of Claude's blocks or MCP blocks, or a complete MCP result
        (`tool_content`). If the result arrives before its call, it is stored until the call
        arrives. A second result for the same call is counted and dropped. If several calls have the
        same id, or no id, results are assigned to them in order.
        """
        if content.__class__ is not str:
            content = self._sanitizer.clean(content)
        if call_id.__class__ is not str or len(call_id) > MAX_NAME_CHARS:
            call_id = normalize_call_id(call_id)
        if name.__class__ is str and name.startswith(MCP_PREFIX):
            name = normalize_tool_name(name)
        key = self._find_open_key(call_id, name, tool_input)
        if key is None:
            key = self._resolve_late_call(call_id, content, is_error, name, tool_input)
            if key is None:
                return
        call = self.open_calls[key]
        if self._machine.state is not READY and not self._machine.move_to(READY):
            return  # the call gets its result at the end of the turn
        # A vendor may report an interrupted call as successful.
        if self._outcome_tracker.has_interrupted_call:
            is_error = True
        if content.__class__ is not str or call[1] == SHELL_TOOL or call[1].startswith(MCP_PREFIX):
            if is_failed_mcp_result(content):
                is_error = True
            content = format_tool_result_content(content, call[1], is_failed=is_error)
        evaluator = self._config.evaluator
        if (
            evaluator is not None
            and not is_error
            and self._has_run_forbidden(evaluator, key, name, tool_input)
        ):
            if evaluator.is_denial_enforced_by_vendor(call[1]):
                self.denials.tool_that_ran = call[1]
            # The vendor ran the call although it knew the rule.
            self._stop_for_forbidden_call(*call)
            return
        if name is not None:
            self.table.record_ended_call(call_id, name, tool_input)
        self.table.remove(key)
        self._write_result_and_hook_event(call, content, is_error)
        if self._config.limits.max_turns is not None:
            self._check_max_turns(self._config.limits.max_turns)
        self._report_next_request()

    def write_result_for_each_open_call(self, result_content: str = "") -> None:
        """Write `result_content` as the result of every open tool call. This method is used for
        vendors that never report tool results.
        """
        if self.open_calls and self._machine.move_to(READY):
            calls = list(self.open_calls.values())
            self.table.remove_visible_calls()
            for call in calls:
                self._write_result(call, result_content, False)
            if self._config.limits.max_turns is not None:
                self._check_max_turns(self._config.limits.max_turns)
            self._report_next_request()

    def report_model_request(self) -> None:
        """Report with partial messages that the vendor requests a reply from its model."""
        if self._writer.writes_partial_messages:
            self._writer.write_system_message("status", {"status": "requesting"})

    def _report_next_request(self) -> None:
        """Report the request that follows the results of all calls of a reply. No request follows
        if the turn's outcome is known.
        """
        if (
            not self.open_calls
            and self._machine.state is READY
            and self._outcome_tracker.outcome is None
        ):
            self.report_model_request()

    def stop_turn_for_forbidden_call(self, call_id: str, reason: str) -> None:
        """Stop the turn after the frontend has forbidden a tool call that the vendor runs without
        asking for permission.
        """
        for written_id, name, tool_input in list(self.open_calls.values()):
            if written_id == call_id:
                self._stop_for_forbidden_call(call_id, name, tool_input, reason)
                return
        if self._machine.state is not CLOSED and self._conversation.has_used_call_id(call_id):
            self._outcome_tracker.stop(
                f"{reason}: the turn was stopped; the call has run", "denied"
            )
            self._finish()

    def enforce_rules_on_subagent_call(
        self, call_id: str, written_id: str, name: str, tool_input: Mapping[str, Any]
    ) -> bool:
        """Check a subagent's tool call against the permission rules. Stop the turn if a rule
        forbids the call.

        If the vendor knows the rule and should refuse the call itself, the turn is not stopped, and
        the return value is True. If the vendor runs the call anyway,
        `stop_turn_after_forbidden_call_ran` must be called.
        """
        evaluator = self._config.evaluator
        if (
            evaluator is None
            or not evaluator.is_rule_violation(name, tool_input)
            or self._has_denial(call_id, name, tool_input)
        ):
            return False
        if evaluator.is_denial_enforced_by_vendor(name):
            return True
        self._stop_for_forbidden_call(written_id, name, tool_input)
        return False

    def stop_turn_after_forbidden_call_ran(
        self, output_call_id: str, name: str, tool_input: Mapping[str, Any]
    ) -> None:
        """Stop the turn after the vendor has run a tool call that a rule forbids, although the
        vendor knew the rule.
        """
        self.denials.tool_that_ran = name
        self._stop_for_forbidden_call(output_call_id, name, tool_input)

    def record_denial_reason(
        self, call_id: str, message: str, *, vendor_knows: bool = False
    ) -> None:
        """Store why an open tool call was refused. The reason replaces the call's result.

        `vendor_knows` is set if the vendor received the denial before the call ran.
        """
        # The number of stored refusals is limited, because only refusals of open calls are stored.
        if any(call_id == written_id for written_id, _, _ in self.open_calls.values()):
            self._refusals[call_id] = message[:MAX_REFUSAL_CHARS], vendor_knows

    def hide_call(self, call_id: str, name: str, tool_input: object, source: str = STREAM) -> None:
        """Omit a tool call and its result from the stream."""
        if len(self.table.hidden_keys) >= MAX_USED_IDS:
            self.table.remove_calls_hidden_from_stream()
        announcement = ToolCallAnnouncement(
            call_id, name, compute_input_fingerprint(tool_input), source
        )
        self.table.add(announcement, self._writer.create_uuid(), None)

    def find_call(
        self, call_id: object, name: str | None = None, tool_input: object = None
    ) -> OpenCall | None:
        """Return the open tool call that matches a result with this id, name and arguments, or
        None.
        """
        if isinstance(name, str):
            name = normalize_tool_name(name)
        else:
            name = None
        key = self._find_open_key(normalize_call_id(call_id), name, tool_input)
        if key is None:
            return None
        return self.open_calls[key]

    @property
    def has_tool_activity(self) -> bool:
        """Whether the vendor has sent any tool call or tool result in this turn."""
        return any((self.result_count, self.table.has_added_call, self._early_results))

    # -- end of the turn ---------------------------------------------------------------------------

    def write_structured_answer(self, value: Mapping[str, Any]) -> None:
        """Write the structured answer as a tool call and its result, as Claude does (contract F11,
        5.11).
        """
        call_id = self._writer.create_uuid()
        self._machine.move_to(MESSAGE)
        self._assistant_message.ends_with_call = True
        self._writer.write_tool_call(call_id, STRUCTURED_OUTPUT_TOOL, value)
        self._machine.move_to(READY)
        self.result_count += 1
        self._writer.write_tool_result(
            call_id, STRUCTURED_OUTPUT_TOOL, value, STRUCTURED_RESULT_TEXT, False
        )

    def write_missing_results(self) -> str:
        """Write a result for each tool call that is still open at the end of the turn. Return the
        text of these results.
        """
        is_interrupted = self._outcome_tracker.is_interrupted
        text = UNANSWERED_TEXT
        if is_interrupted:
            text = INTERRUPTED_TEXT
        self._outcome_tracker.record_open_call(bool(self.open_calls))
        outcome = self._outcome_tracker.outcome
        if outcome is not None and outcome.cause == "denied":
            text = outcome.message
        for call in self.open_calls.values():
            self._write_result(call, self._refusals.get(call[0], ("", False))[0] or text, True)
        self.table.remove_visible_calls()
        return text

    def record_orphan_tool_results(self) -> None:
        """Record the tool results whose tool calls were never announced."""
        for call_id in self._early_results.list_call_ids():
            self._diagnostics.record("orphan_tool_result", call_id)

    # -- helpers -----------------------------------------------------------------------------------

    def _normalize_call(
        self, call_id: object, name: object, tool_input: Any
    ) -> tuple[str, str, Mapping[str, Any]]:
        """Return a vendor's call id, tool name and arguments in a form that can be written."""
        if call_id.__class__ is not str or len(call_id) > MAX_NAME_CHARS:
            call_id = normalize_call_id(call_id)
        if name.__class__ is not str:
            name = "unknown"
        elif len(name) > MAX_NAME_CHARS:
            name = name[:MAX_NAME_CHARS]
        if name.startswith(MCP_PREFIX):
            name = normalize_tool_name(name)
        if tool_input.__class__ is not dict:
            tool_input = {"raw": tool_input}
        for value in tool_input.values():
            if value.__class__ in REPAIRABLE_TYPES:
                return call_id, name, self._sanitizer.clean(tool_input)
        return call_id, name, tool_input

    def _is_new_violation(
        self,
        evaluator: "PolicyEvaluator",
        call_id: str,
        name: str,
        tool_input: Mapping[str, Any],
    ) -> bool:
        """Return whether a rule forbids a tool call that was not refused before. A call that was
        refused never ran, so it must not stop the turn.
        """
        if self._has_denial(call_id, name, tool_input):
            return False
        return evaluator.is_rule_violation(name, tool_input)

    def _write_call(
        self, call_id: str, name: str, tool_input: Mapping[str, Any], source: str
    ) -> tuple[str, OpenCall]:
        """Write a new tool call and store it until its result arrives. Return its key and the call
        as it was written.
        """
        # Hooks receive the vendor's arguments, because a hook's answer may be sent to the vendor.
        vendor_input = tool_input
        vendor_tool = name
        vendor_id = call_id  # not redacted, like the ids in the vendor's results
        redact = self._context.redact
        if redact is not None and not self._context.uses_call_line_as_permission_prompt:
            vendor_id = redact(vendor_id)
            name = redact(name)
            tool_input = redact(tool_input)
        if vendor_id:
            written_id = self._conversation.reserve_call_id(vendor_id, self._diagnostics)
        else:
            written_id = self._writer.create_uuid()
        self.denials.record_call_id_in_output(vendor_id, written_id, name, tool_input)

        self._assistant_message.ends_with_call = True
        cut_input = self._writer.write_tool_call(written_id, name, tool_input)
        if cut_input is not None:
            self._diagnostics.record("input_cut", name)
            tool_input = cut_input

        announced_input: object = vendor_input
        if tool_input is not vendor_input and vendor_input:
            announced_input = compute_input_fingerprint(vendor_input)
        announcement = ToolCallAnnouncement(call_id, vendor_tool, announced_input, source)
        call = (written_id, name, tool_input)
        key = self.table.add(announcement, written_id, call)
        self._open_call_bytes += self._writer.last_call_bytes
        if len(self.open_calls) > MAX_OPEN_CALLS or self._open_call_bytes > MAX_OPEN_CALL_BYTES:
            self._limit_open_calls(written_id)
            key = next((key for key, call in self.open_calls.items() if call[0] == written_id), key)
        if self.hook_events is not None:
            self.hook_events.append(HookEvent(PRE_TOOL_EVENT, written_id, name, vendor_input))
        return key, call

    def _write_result_and_hook_event(self, call: OpenCall, content: object, is_error: bool) -> None:
        """Write the result of a tool call that may have been refused, and store the event for the
        frontend's hooks.
        """
        was_refused = call[0] in self._refusals
        if was_refused:
            reason, vendor_knows = self._refusals.pop(call[0])
            if reason and is_error:
                content = reason
            if vendor_knows and not is_error:
                self.denials.tool_that_ran = call[1]
                self._diagnostics.record("denied_call_ran", call[1])
        content = self._write_result(call, content, is_error)
        if self.hook_events is None:
            return
        if not is_error:
            response = build_hook_tool_response(call[1], call[2], content)
            self.hook_events.append(HookEvent(RESULT_EVENT, *call, response))
        elif not was_refused:
            self.hook_events.append(HookEvent(FAILURE_EVENT, *call, content))

    def _write_result(self, call: OpenCall, content: object, is_error: bool) -> object:
        """Write a tool call's result. Return the content that was written."""
        if self._assistant_message.written_text.char_count:
            self._assistant_message.written_text.clear()
        self.result_count += 1
        if content.__class__ is not str or len(content) * MAX_CHAR_BYTES > self._max_bytes:
            content = self._fit_content(content)
        self._writer.write_tool_result(call[0], call[1], call[2], content, is_error)
        if not is_error:
            self._conversation.record_connected_server(call[1])
        return content

    def _fit_content(self, content: object) -> object:
        """Shorten a tool result's content so that it fits into a line (contract 5.4)."""
        if isinstance(content, str) and len(content) * MAX_CHAR_BYTES <= self._max_bytes:
            return content
        fitted = shorten_strings(
            omit_large_images(content, self._max_bytes), self._max_bytes, self._config.store_text
        )
        if fitted is not content:
            self._diagnostics.record("result_cut")
        return fitted

    def _resolve_late_call(
        self,
        call_id: str,
        content: object,
        is_error: bool,
        name: str | None,
        tool_input: Mapping[str, Any] | None,
    ) -> str | None:
        """Handle a tool result that belongs to no open tool call. Return the key of the call that
        is opened for the result, or None if no result is written.

        A missing call is only announced if `name` is set.
        """
        key = self.table.find_call_key_for_result(call_id, name, tool_input)
        if tool_input is None:
            announced_input: Mapping[str, Any] = {}
        else:
            announced_input = tool_input
        if (
            key is not None
            and name is not None
            and not is_error
            and self._remove_hidden_call(key, name, announced_input)
        ):
            key = self.add_tool_call(call_id, name, announced_input)
            if key in self.open_calls:
                return key
            return None
        if key is not None:  # the call is hidden
            self.table.remove(key)
        elif (
            call_id
            and self._conversation.has_used_call_id(call_id)
            and not self.table.differs_from_ended_call(call_id, name, tool_input)
        ):
            self._diagnostics.record("second_tool_result", call_id)
        elif name is not None:
            key = self.add_tool_call(call_id, name, announced_input)
            if key in self.open_calls:
                return key
            return None
        elif call_id and self._early_results.can_add_result:
            self._early_results.add_result(call_id, self._fit_content(content), is_error)
        else:  # a result without an id might be assigned to a later call
            self._diagnostics.record("orphan_tool_result", call_id)
        return None

    def _find_open_key(self, call_id: str, name: str | None, tool_input: object) -> str | None:
        """Return the key of the open tool call that a result belongs to, or None."""
        key = self.table.find_call_key_for_result(call_id, name, tool_input)
        if key is None and call_id and not self._conversation.has_used_call_id(call_id):
            # The vendor may have announced the call without its id.
            key = next(iter(self.table.list_keys_of_call_id("")), None)
        if key in self.open_calls:
            return key
        return None

    def _has_run_forbidden(
        self, evaluator: "PolicyEvaluator", key: str, name: str | None, tool_input: object
    ) -> bool:
        """Return whether a result proves that a forbidden tool call has run. The rules are applied
        to the open call `key` and to the call that the result itself describes.
        """
        if self.table.is_call_forbidden(key):
            return True
        call = self.open_calls[key]
        if evaluator.is_denial_enforced_by_vendor(call[1]) and evaluator.is_rule_violation(
            call[1], call[2]
        ):
            return True
        if name is None or not isinstance(tool_input, dict) or (name, tool_input) == call[1:]:
            return False
        return evaluator.is_rule_violation(name, tool_input)

    def _has_denial(self, call_id: str, name: str, tool_input: Mapping[str, Any]) -> bool:
        redact = self._context.redact
        if redact is not None:  # the denials are also redacted
            call_id = redact(call_id)
            name = redact(name)
            tool_input = redact(tool_input)
        return self.denials.has_denial(call_id, name, tool_input)

    def _note_repetition(
        self, key: str, name: str, tool_input: Mapping[str, Any], source: str
    ) -> str | None:
        """Record another announcement of an open tool call. New arguments are checked against the
        permission rules.

        Return the call's key, or None if the call is hidden.
        """
        is_new = self.table.record_repeated_call(key, source, tool_input)
        if key not in self.open_calls:
            return None
        evaluator = self._config.evaluator
        written_id = self.open_calls[key][0]
        if is_new and self.hook_events is not None:  # hooks do not have these arguments yet
            self.hook_events.append(HookEvent(PRE_TOOL_EVENT, written_id, name, tool_input))
        if (
            not is_new
            or source == PERMISSION_REQUEST
            or evaluator is None
            or not evaluator.is_rule_violation(name, tool_input)
        ):
            return key
        if evaluator.is_denial_enforced_by_vendor(name):
            self.table.mark_call_forbidden(key)
        else:
            self._stop_for_forbidden_call(written_id, name, tool_input)
        return key

    def _remove_hidden_call(self, key: str, name: str, tool_input: Mapping[str, Any]) -> bool:
        """Remove a hidden tool call if a rule forbids it, so that it can be announced. Return
        whether the call was removed.
        """
        evaluator = self._config.evaluator
        if (
            key not in self.table.hidden_keys
            or evaluator is None
            or not evaluator.is_rule_violation(name, tool_input)
        ):
            return False
        self.table.remove(key)
        return True

    def _limit_open_calls(self, newest_id: str) -> None:
        """Write results for the oldest tool calls if too many calls are open or their arguments are
        too large.
        """
        sizes = {call[0]: len(dump_json(call[2])) for call in self.open_calls.values()}
        self._open_call_bytes = sum(sizes.values())
        if (
            len(self.open_calls) <= MAX_OPEN_CALLS
            and self._open_call_bytes <= MAX_OPEN_CALL_BYTES - MAX_OPEN_CALL_BYTES // 8
        ):
            return  # at least an eighth of the limit is free, which is enough for many calls
        for written_id, size in sizes.items():
            has_few = False
            if len(self.open_calls) <= MAX_OPEN_CALLS // 2:
                has_few = self._open_call_bytes <= MAX_OPEN_CALL_BYTES // 2
            if has_few or written_id == newest_id or self._machine.state is CLOSED:
                return
            self._open_call_bytes -= size
            self._diagnostics.record("call_given_up", written_id)
            self.add_tool_result(next(iter(self.open_calls)), UNANSWERED_TEXT, True)

    def _check_max_turns(self, max_turns: int) -> None:
        """Apply `--max-turns` for vendors that do not count turns. After the limit, no further
        reply starts (contract F10).
        """
        if self._assistant_message.number >= max_turns and not self.open_calls:
            self._outcome_tracker.record_failure(
                f"{MAX_TURNS_TEXT} ({max_turns})", {}, kind="limit", subtype="error_max_turns"
            )
            self._finish()

    def finish_if_over_budget(self) -> None:
        """Apply `--max-budget-usd` for vendors that report the cost of each reply. After the budget
        is exceeded, no further reply starts.

        If the turn is already over, the budget has no effect on it (contract F10).
        """
        max_budget_usd = self._config.limits.max_budget_usd
        if max_budget_usd is None:
            return
        is_over_budget = (
            self._conversation.cost_usd + self._assistant_message.cost_usd > max_budget_usd
        )
        if is_over_budget and self.open_calls and self._outcome_tracker.outcome is None:
            amount = f"{max_budget_usd:.12f}".rstrip("0").rstrip(".")
            text = f"Reached maximum budget (${amount})"
            self._outcome_tracker.record_failure(
                text, {}, kind="limit", subtype="error_max_budget_usd"
            )
            self._finish()

    def _stop_for_forbidden_call(
        self, call_id: str, name: str, tool_input: Mapping[str, Any], reason: str = ""
    ) -> None:
        """Stop the turn after a forbidden tool call has started. Normally, such a call is denied
        before it starts.
        """
        if not reason:
            reason = f"{name} is not allowed in this session"
        text = f"{reason}: the turn was stopped; the call may have started"
        redact = self._context.redact
        if redact is not None:
            call_id, name, tool_input, text = map(redact, (call_id, name, tool_input, text))
        self.denials.add(call_id, name, tool_input)
        self._outcome_tracker.stop(text, "denied")
        self._finish()
