"""A vendor's permission requests, which the vendor sends before it runs tool calls."""

from collections.abc import Mapping
from typing import Any

from shim.core.claude.permissions import TURN_OVER_TEXT, PermissionRequest
from shim.core.policy.policy import normalize_tool_name
from shim.core.turn.machine import CLOSED
from shim.core.turn.open_calls import PERMISSION_REQUEST, DeferredToolCalls, normalize_call_id
from shim.core.turn.tool_calls import ToolCalls
from shim.core.turn.turn_context import TurnContext

# The maximum number of permission requests in a turn, and of requests that wait in one chunk of
# output. No real task needs more. Further requests in a turn are refused. Further requests in a
# chunk are dropped and counted, so that a flood of requests needs no more memory.
MAX_PERMISSION_REQUESTS = 1000


class PermissionRequests:
    """The permission requests of one turn. The stream reads new requests with `take_pending`, and
    the driver decides about them.
    """

    def __init__(self, context: TurnContext, tool_calls: ToolCalls) -> None:
        self._machine = context.machine
        self._config = context.config
        self._diagnostics = context.diagnostics
        self._sanitizer = context.sanitizer
        self._tool_calls = tool_calls
        self.pending: list[PermissionRequest] = []
        self._request_ids: set[str] = set()
        self.deferred_calls = DeferredToolCalls()

    def add(
        self,
        request_id: str,
        call_id: str,
        name: str,
        tool_input: Mapping[str, Any],
        vendor_call: tuple[str, Mapping[str, Any]],
        *,
        announced_call: tuple[str, Mapping[str, Any]] | None = None,
        is_unique: bool = False,
        is_deferred: bool = False,
    ) -> None:
        """Add a permission request from the vendor. `vendor_call` is the vendor's own tool name and
        arguments.

        The tool call is written to the frontend now, unless it is already open or `is_deferred` is
        set. A request that must not reach the frontend is added with a refusal, so that the vendor
        gets an answer. Only a request beyond the limit for one chunk gets no answer.
        `announced_call` is the name and arguments with which the vendor announced the call, if they
        differ from the request. `is_unique` means that no other open call has this id.
        """
        call_id = normalize_call_id(call_id)
        name = normalize_tool_name(name)
        if len(self.pending) >= MAX_PERMISSION_REQUESTS:
            self._diagnostics.record("question_left_out", call_id)
            return
        tool_input = self._sanitizer.clean(tool_input)
        table = self._tool_calls.table
        lookup_call = name, tool_input
        if announced_call is not None:
            lookup_call = (
                normalize_tool_name(announced_call[0]),
                self._sanitizer.clean(announced_call[1]),
            )
        if is_unique:
            key = next(iter(table.list_keys_of_call_id(call_id)), None)
        else:
            key = table.find_repeated_call_key(call_id, *lookup_call, PERMISSION_REQUEST)
        refusal = self._find_refusal(request_id, key, name)
        if not refusal and is_deferred:
            self.defer_call(call_id, name)
        elif not refusal:
            if key in self._tool_calls.open_calls:
                has_same_input = is_unique or announced_call is not None
                self._tool_calls.record_permission_request(
                    key, name, tool_input, has_same_input=has_same_input
                )
            else:
                key = self._tool_calls.add_tool_call(
                    call_id, name, tool_input, source=PERMISSION_REQUEST
                )
            if self._machine.state is CLOSED or key not in self._tool_calls.open_calls:
                refusal = TURN_OVER_TEXT
        written_id = call_id
        if key in self._tool_calls.open_calls:
            written_id = self._tool_calls.open_calls[key][0]
        if not refusal:
            self._request_ids.add(request_id)
        self.pending.append(
            PermissionRequest(request_id, written_id, name, tool_input, *vendor_call, refusal)
        )

    def take_pending(self) -> list[PermissionRequest]:
        """Remove and return the permission requests since the last call."""
        pending = self.pending
        self.pending = []
        return pending

    def defer_call(self, call_id: str, name: str) -> None:
        """Delay a tool call until its arguments are known. The tool runs in the frontend's
        process.
        """
        name = normalize_tool_name(name)
        tool_input = self.deferred_calls.add(call_id, name)
        if tool_input is not None:
            self._tool_calls.add_tool_call(call_id, name, tool_input, source=PERMISSION_REQUEST)

    def defer_unnamed_call(self, call_id: str, title: str, tool_input: Mapping[str, Any]) -> None:
        """Delay a tool call until its name is known. The tool may run in the frontend's process."""
        name = self.deferred_calls.add_unnamed(call_id, title, tool_input)
        if name is not None:
            self._tool_calls.add_tool_call(call_id, name, tool_input, source=PERMISSION_REQUEST)

    def write_deferred_call(self, name: str, tool_input: Mapping[str, Any]) -> None:
        """Write a deferred tool call after the frontend's MCP server has received it with its name
        and its arguments.
        """
        unnamed_id = self.deferred_calls.match_name_to_call(name, tool_input)
        if unnamed_id is not None:
            self._tool_calls.add_tool_call(unnamed_id, name, tool_input, source=PERMISSION_REQUEST)
            return
        if any(call[1:] == (name, tool_input) for call in self._tool_calls.open_calls.values()):
            return
        call_id = self.deferred_calls.match_input_to_call(name, tool_input)
        if call_id is not None:
            self._tool_calls.add_tool_call(call_id, name, tool_input, source=PERMISSION_REQUEST)

    def write_refused_call(self, call_id: str, name: str, tool_input: Mapping[str, Any]) -> None:
        """Write a deferred tool call that was refused before its arguments were known."""
        if self.deferred_calls.remove_refused_call(call_id):
            self._tool_calls.add_tool_call(call_id, name, tool_input, source=PERMISSION_REQUEST)

    def refuse_pending_requests(self) -> None:
        """Refuse the permission requests that were not taken yet, because the turn is over.

        A prompt after the result would never be answered (contract S16b).
        """
        self.pending = [
            permission._replace(refusal=permission.refusal or TURN_OVER_TEXT)
            for permission in self.pending
        ]

    def _find_refusal(self, request_id: str, key: str | None, name: str) -> str:
        """Return the reason why the frontend must not be asked, or "". `key` identifies the open
        tool call, or is None if no call is open.
        """
        if self._machine.is_over:
            return TURN_OVER_TEXT
        if request_id in self._request_ids or (
            key is not None
            and self._tool_calls.table.is_call_announced_by_source(key, PERMISSION_REQUEST)
        ):
            return "Permission for this call was already requested."
        if len(self._request_ids) >= MAX_PERMISSION_REQUESTS:
            return "Too many permission prompts in this turn."
        evaluator = self._config.evaluator
        if evaluator is not None and evaluator.is_hidden_tool(name):
            return f"{name} is not available in this session."
        return ""
