"""Calls of tools in the frontend's own process that a vendor begins without their arguments.

The arguments are known when the vendor's call arrives at its server, which is the frontend: until then the call is not
written.
"""

from collections.abc import Mapping
from typing import Any

DEFERRED_CALLS = 1000  # of one turn, as many as may be open
EARLY_ARGUMENTS = 100  # of calls that arrived before the vendor announced them

Arguments = Mapping[str, Any]


class DeferredCalls:
    """The calls of one turn that wait for their arguments, in the order in which the vendor announced them."""

    def __init__(self) -> None:
        self._waiting: dict[str, str] = {}  # the vendor's id → Claude's name of the tool
        self._early: list[tuple[str, Arguments]] = []
        self._written: set[str] = set()  # ids of calls that were deferred and are written

    def add(self, call: str, name: str) -> Arguments | None:
        """Add a call. Return its arguments if they arrived earlier; the call does not wait then."""
        if call in self._waiting or call in self._written or len(self._waiting) >= DEFERRED_CALLS:
            return None
        for number, (early_name, arguments) in enumerate(self._early):
            if early_name == name:
                del self._early[number]
                self._written.add(call)
                return arguments
        self._waiting[call] = name
        return None

    def reveal(self, name: str, arguments: Arguments) -> str | None:
        """Return the id of the first call of a tool that waits for these arguments, and note that it has them."""
        call = next((call for call, waiting_name in self._waiting.items() if waiting_name == name), None)
        if call is None:
            self._early = [*self._early[1 - EARLY_ARGUMENTS :], (name, arguments)]
            return None
        del self._waiting[call]
        self._written.add(call)
        return call

    def refuse(self, call: str) -> bool:
        """A call was refused, and is to be written without its arguments. Return whether it waited for them."""
        if self._waiting.pop(call, None) is None:
            return False
        self._written.add(call)
        return True

    def end(self, call: str) -> bool:
        """A call waits no longer. Return whether it was written already."""
        self._waiting.pop(call, None)
        return call in self._written
