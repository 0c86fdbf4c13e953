"""Calls that come in pieces: the JSON of their arguments is gathered, and each is said once, in
Claude's words.

Fragments with a vendor's own keys would be untrue as Claude's `input_json_delta`. With partial
messages the input of such a call is one delta, like that of every call.
"""

from collections.abc import Callable
from typing import Any

import orjson

from shim.core.reading.account import Diagnostics
from shim.core.reading.decode import parse_json_text

# Bounds of calls that are not whole yet: more than any model makes at once, and more than it writes
# into a file.
CALLS = 100
CHARACTERS = 8 * 1024 * 1024

Say = Callable[[Any, Any, Any], None]  # id, name, arguments


class _Part:
    __slots__ = ("cut", "fragments", "identity", "name")

    def __init__(self) -> None:
        self.identity: Any = None
        self.name: Any = None
        self.fragments: list[str] = []
        self.cut = False  # a fragment is missing, so none behind it counts


class _NewKey:
    """The key of a call after another call has taken the call's own key."""


class Parts:
    """The calls of a reply whose arguments are not whole yet, by the vendor's key of each."""

    __slots__ = ("_account", "_calls", "_size")

    def __init__(self, account: Diagnostics) -> None:
        self._account = account
        self._calls: dict[Any, _Part] = {}
        self._size = 0

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, key: Any, identity: Any, name: Any, fragment: Any) -> None:
        """A piece of the call `key`; the first id and name count. TypeError for a fragment that is
        no text.
        """
        if fragment is not None and fragment.__class__ is not str:
            raise TypeError("a fragment of a call's input is no text")
        part = self._calls.get(key)
        if part is not None and begins_another(part, identity, name, fragment):
            self._replace_key(key)
            identity = identity or part.identity
            name = name or part.name
            part = None
        if part is None:
            if len(self._calls) >= CALLS:
                self._account.record("call_left_out", str(key))
                return
            part = self._calls[key] = _Part()
        part.identity = part.identity or identity
        part.name = part.name or name
        if not fragment or part.cut:
            return
        part.cut = self._size + len(fragment) > CHARACTERS
        if part.cut:
            self._account.record("input_cut", str(part.name))
        else:
            part.fragments.append(fragment)
            self._size += len(fragment)

    def _replace_key(self, key: Any) -> None:
        """Give a call a new key, because another call takes its key."""
        self._calls = {
            _NewKey() if known == key else known: part for known, part in self._calls.items()
        }

    def whole(self, identity: Any) -> None:
        """The call `identity` came whole: its pieces are forgotten."""
        for key, part in self._calls.items():
            if part.identity == identity:
                del self._calls[key]
                break
        if not self._calls:
            self._size = 0

    def say(self, say: Say, key: Any = None) -> None:
        """Say all calls, or the call `key`: no more pieces of them will come."""
        calls = [self._calls.pop(key)] if key is not None and key in self._calls else []
        if key is None:
            calls = list(self._calls.values())
            self._calls.clear()
        if not self._calls:
            self._size = 0
        for part in calls:
            text = "".join(part.fragments)
            say(
                part.identity,
                part.name,
                parse_json_text(text, self._account) if text.strip() else {},
            )

    def drop(self) -> None:
        """The reply was cut: a call that is not whole was never made."""
        for part in self._calls.values():
            self._account.record("cut_call", str(part.name))
        self._calls.clear()
        self._size = 0


def begins_another(part: Any, identity: Any, name: Any, fragment: Any) -> bool:
    """Return whether a piece begins another call than `part`: some servers give all calls the same
    id or index.

    It does if the arguments of `part` are complete, and the piece begins an object or has a name.
    Another id alone does not prove it, because some servers give every piece an id of its own.
    """
    if not part.fragments or not part.fragments[-1].rstrip().endswith("}"):
        return False
    is_other = bool(name) and (name != part.name or bool(identity and identity != part.identity))
    if not is_other and not (fragment or "").lstrip().startswith("{"):
        return False
    try:
        return isinstance(orjson.loads("".join(part.fragments)), dict)
    except orjson.JSONDecodeError:
        return False
