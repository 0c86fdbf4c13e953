"""Calls of tools in the frontend's own process that a vendor announces without their arguments.

The frontend is the MCP server of these tools. A call arrives there with its arguments; it is not
written before that.
"""

from collections.abc import Mapping
from typing import Any

MAX_DEFERRED_CALLS = 1000  # as many as may be open in one turn
MAX_EARLY_CALLS = 100  # calls that arrived before the vendor announced them

ToolInput = Mapping[str, Any]


class DeferredToolCalls:
    """The calls of one turn that wait for their arguments, in the order in which the vendor
    announced them.
    """

    def __init__(self) -> None:
        self._waiting_calls: dict[str, str] = {}  # the vendor's id → Claude's name of the tool
        self._early_calls: list[tuple[str, ToolInput]] = []
        self._written_ids: set[str] = set()  # ids of calls that were deferred and are written

    def add(self, call_id: str, name: str) -> ToolInput | None:
        """Add a call. Return its arguments if they arrived earlier; the call does not wait then."""
        if (
            call_id in self._waiting_calls
            or call_id in self._written_ids
            or len(self._waiting_calls) >= MAX_DEFERRED_CALLS
        ):
            return None
        for index, (early_name, tool_input) in enumerate(self._early_calls):
            if early_name == name:
                del self._early_calls[index]
                self._written_ids.add(call_id)
                return tool_input
        self._waiting_calls[call_id] = name
        return None

    def match_input_to_call(self, name: str, tool_input: ToolInput) -> str | None:
        """Return the id of the first call of this tool that waits for arguments, and stop waiting
        for them.

        Keep the arguments and return None if no call waits for them.
        """
        call_id = next(
            (
                call_id
                for call_id, waiting_name in self._waiting_calls.items()
                if waiting_name == name
            ),
            None,
        )
        if call_id is None:
            self._early_calls = [*self._early_calls[1 - MAX_EARLY_CALLS :], (name, tool_input)]
            return None
        del self._waiting_calls[call_id]
        self._written_ids.add(call_id)
        return call_id

    def remove_refused_call(self, call_id: str) -> bool:
        """Stop waiting for a call that was refused: it is written without arguments. Return whether
        it waited.
        """
        if self._waiting_calls.pop(call_id, None) is None:
            return False
        self._written_ids.add(call_id)
        return True

    def stop_waiting_for_input(self, call_id: str) -> bool:
        """Stop waiting for a call. Return whether it was written already."""
        self._waiting_calls.pop(call_id, None)
        return call_id in self._written_ids
