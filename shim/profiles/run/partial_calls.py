"""Calls that come in pieces: the JSON of their arguments is gathered, and each is said once, in
Claude's words.

Fragments with a vendor's own keys would be untrue as Claude's `input_json_delta`. With partial
messages the input of such a call is one delta, like that of every call.
"""

from collections.abc import Callable
from typing import Any

import orjson

from shim.core.reading.diagnostics import Diagnostics
from shim.core.reading.json_repair import parse_json_text

# Bounds of calls that are not whole yet: more than any model makes at once, and more than it writes
# into a file.
MAX_PARTIAL_CALLS = 100
MAX_ARGUMENT_CHARS = 8 * 1024 * 1024

WriteCall = Callable[[Any, Any, Any], None]  # id, name, arguments


class _PartialCall:
    __slots__ = ("call_id", "fragments", "is_cut", "name")

    def __init__(self) -> None:
        self.call_id: Any = None
        self.name: Any = None
        self.fragments: list[str] = []
        self.is_cut = False  # a fragment is missing, so none behind it counts


class _NewKey:
    """The key of a call after another call has taken the call's own key."""


class PartialCalls:
    """The calls of a reply whose arguments are not whole yet, by the vendor's key of each."""

    __slots__ = ("_calls", "_diagnostics", "_size")

    def __init__(self, diagnostics: Diagnostics) -> None:
        self._diagnostics = diagnostics
        self._calls: dict[Any, _PartialCall] = {}
        self._size = 0

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add_fragment(self, key: Any, call_id: Any, name: Any, fragment: Any) -> None:
        """A piece of the call `key`; the first id and name count. TypeError for a fragment that is
        no text.
        """
        if fragment is not None and fragment.__class__ is not str:
            raise TypeError("a fragment of a call's input is no text")
        call = self._calls.get(key)
        if call is not None and is_start_of_new_tool_call(call, call_id, name, fragment):
            self._replace_key(key)
            call_id = call_id or call.call_id
            name = name or call.name
            call = None
        if call is None:
            if len(self._calls) >= MAX_PARTIAL_CALLS:
                self._diagnostics.record("call_left_out", str(key))
                return
            call = self._calls[key] = _PartialCall()
        call.call_id = call.call_id or call_id
        call.name = call.name or name
        if not fragment or call.is_cut:
            return
        call.is_cut = self._size + len(fragment) > MAX_ARGUMENT_CHARS
        if call.is_cut:
            self._diagnostics.record("input_cut", str(call.name))
        else:
            call.fragments.append(fragment)
            self._size += len(fragment)

    def _replace_key(self, key: Any) -> None:
        """Give a call a new key, because another call takes its key."""
        self._calls = {
            _NewKey() if call_key == key else call_key: call
            for call_key, call in self._calls.items()
        }

    def discard_call(self, call_id: Any) -> None:
        """The call `call_id` came whole: its pieces are forgotten."""
        for key, call in self._calls.items():
            if call.call_id == call_id:
                del self._calls[key]
                break
        if not self._calls:
            self._size = 0

    def write_completed_calls(self, write_call: WriteCall, key: Any = None) -> None:
        """Say all calls, or the call `key`: no more pieces of them will come."""
        calls = [self._calls.pop(key)] if key is not None and key in self._calls else []
        if key is None:
            calls = list(self._calls.values())
            self._calls.clear()
        if not self._calls:
            self._size = 0
        for call in calls:
            text = "".join(call.fragments)
            write_call(
                call.call_id,
                call.name,
                parse_json_text(text, self._diagnostics) if text.strip() else {},
            )

    def discard_calls(self) -> None:
        """The reply was cut: a call that is not whole was never made."""
        for call in self._calls.values():
            self._diagnostics.record("cut_call", str(call.name))
        self._calls.clear()
        self._size = 0


def is_start_of_new_tool_call(current_call: Any, call_id: Any, name: Any, fragment: Any) -> bool:
    """Return whether a piece begins another call than `call`: some servers give all calls the same
    id or index.

    It does if the arguments of `call` are complete, and the piece begins an object or has a name.
    Another id alone does not prove it, because some servers give every piece an id of its own.
    """
    if not current_call.fragments or not current_call.fragments[-1].rstrip().endswith("}"):
        return False
    is_other = bool(name) and (
        name != current_call.name or bool(call_id and call_id != current_call.call_id)
    )
    if not is_other and not (fragment or "").lstrip().startswith("{"):
        return False
    try:
        return isinstance(orjson.loads("".join(current_call.fragments)), dict)
    except orjson.JSONDecodeError:
        return False
