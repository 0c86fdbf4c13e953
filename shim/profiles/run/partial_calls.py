"""Collects tool calls whose arguments arrive in fragments. Each tool call is written once, when it
is complete.

The fragments are not passed on as `input_json_delta`, because they contain the vendor's argument
names. If partial messages are enabled, the input of each tool call is a single delta.
"""

from typing import Any

import orjson

from shim.core.reading.diagnostics import Diagnostics

# Limits for incomplete tool calls. No model makes so many calls at once, or writes such a large
# file.
MAX_PARTIAL_CALLS = 1000
MAX_ARGUMENT_CHARS = 8 * 1024 * 1024


class _PartialCall:
    __slots__ = ("call_id", "fragments", "is_cut", "name")

    def __init__(self) -> None:
        self.call_id: Any = None
        self.name: Any = None
        self.fragments: list[str] = []
        self.is_cut = False  # whether a fragment was dropped; all later fragments are also dropped


class _NewKey:
    """A new key for a tool call. The call's original key is now used by a different call."""


class PartialCalls:
    """The tool calls in a message whose arguments are incomplete, by the vendor's key for each
    call.

    `last_key` is the key of the most recent fragment.
    """

    __slots__ = ("_calls", "_diagnostics", "_size", "last_key")

    def __init__(self, diagnostics: Diagnostics) -> None:
        self._diagnostics = diagnostics
        self._calls: dict[Any, _PartialCall] = {}
        self._size = 0
        self.last_key: Any = None

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add_fragment(self, key: Any, call_id: Any, name: Any, fragment: Any) -> None:
        """Add a fragment to the tool call `key`. Only the first id and the first name of the call
        are used. Raise TypeError if the fragment is not a string.
        """
        if fragment is not None and fragment.__class__ is not str:
            raise TypeError("a fragment of a call's input is not text")
        call = self._calls.get(key)
        if call is not None and is_start_of_new_tool_call(call, call_id, name, fragment):
            self._replace_key(key)
            if not call_id:
                call_id = call.call_id
            if not name:
                name = call.name
            call = None
        if call is None:
            if len(self._calls) >= MAX_PARTIAL_CALLS:
                self._diagnostics.record("call_left_out", str(key))
                return
            call = self._calls[key] = _PartialCall()
        self.last_key = key
        if not call.call_id:
            call.call_id = call_id
        if not call.name:
            call.name = name
        if not fragment or call.is_cut:
            return
        call.is_cut = self._size + len(fragment) > MAX_ARGUMENT_CHARS
        if call.is_cut:
            self._diagnostics.record("input_cut", str(call.name))
        else:
            call.fragments.append(fragment)
            self._size += len(fragment)

    def _replace_key(self, key: Any) -> None:
        """Assign a new key to a tool call, because a different call now uses its key."""
        self._calls = {
            _NewKey() if call_key == key else call_key: call
            for call_key, call in self._calls.items()
        }

    def list_keys(self) -> list[Any]:
        return list(self._calls)

    def find_key(self, call_id: Any) -> Any:
        """Return the key of the last tool call with this id, or None."""
        return next(
            (key for key, call in reversed(self._calls.items()) if call.call_id == call_id), None
        )

    def discard_call(self, call_id: Any) -> None:
        """Drop the fragments of a tool call that has also arrived in full."""
        for key, call in self._calls.items():
            if call.call_id == call_id:
                del self._calls[key]
                break
        if not self._calls:
            self._size = 0

    def take_calls(self, key: Any = None) -> list[tuple[Any, Any, str]]:
        """Remove all tool calls, or only the call `key`. Return the id, name and arguments of each
        removed call.
        """
        if key is None:
            calls = list(self._calls.values())
            self._calls.clear()
        else:
            calls = []
            if key in self._calls:
                calls = [self._calls.pop(key)]
        if not self._calls:
            self._size = 0
        return [(call.call_id, call.name, "".join(call.fragments)) for call in calls]

    def discard_calls(self) -> None:
        """Drop and count all tool calls, because the message was cut off before they were complete."""
        for call in self._calls.values():
            self._diagnostics.record("cut_call", str(call.name))
        self._calls.clear()
        self._size = 0


def is_start_of_new_tool_call(current_call: Any, call_id: Any, name: Any, fragment: Any) -> bool:
    """Return whether a fragment starts a new tool call. Some servers use the same id or index for
    all calls.

    A new call starts if the arguments of `current_call` are complete, and the fragment starts an
    object or has a name. A different id alone is not sufficient, because some servers send a new id
    with every fragment.
    """
    if not current_call.fragments or not current_call.fragments[-1].rstrip().endswith("}"):
        return False
    if not fragment or not fragment.lstrip().startswith("{"):
        if not name:
            return False
        if name == current_call.name and (not call_id or call_id == current_call.call_id):
            return False
    try:
        return isinstance(orjson.loads("".join(current_call.fragments)), dict)
    except orjson.JSONDecodeError:
        return False
