"""What each message of a conversation used, for its transcript.

A vendor often says this only when the lines of the message were written, or for the whole turn at its end.
"""

from shim.core.claude.usage import NO_USAGE, ORDER, Usage

NO_MESSAGE = b""  # what is counted here belongs to the next message


class Tally:
    """Adds up usage under the id of the message that was begun last; `take` hands over what is new."""

    __slots__ = ("_message", "_new", "_turn")

    def __init__(self) -> None:
        self._new: dict[bytes, Usage] = {}
        self._begin_turn()

    def _begin_turn(self) -> None:
        self._message = NO_MESSAGE
        self._turn = Usage(NO_USAGE)  # what was counted in it

    def begin(self, message: bytes) -> None:
        """A message begins."""
        self._message = message
        if NO_MESSAGE in self._new:
            self._add(self._new.pop(NO_MESSAGE))

    def count(self, usage: Usage) -> None:
        """The message used so much more."""
        for name in ORDER:
            self._turn[name] += usage[name]
        self._add(usage)

    def settle(self, total: Usage) -> None:
        """The turn is over and used `total`: what was not counted so far belongs to its last message."""
        if any(total.values()):
            self._add(Usage({name: total[name] - self._turn[name] for name in ORDER}))
        self._begin_turn()

    def take(self) -> dict[bytes, Usage]:
        """By message, what came since the last call; a number is negative where a total was smaller than its parts."""
        new = {message: usage for message, usage in self._new.items() if message}
        for message in new:
            del self._new[message]
        return new

    def forget(self) -> None:
        """Forget the turn that has begun: none of its lines was given to the frontend."""
        self._new.clear()
        self._begin_turn()

    def _add(self, usage: Usage) -> None:
        so_far = self._new.setdefault(self._message, Usage(NO_USAGE))
        for name in ORDER:
            so_far[name] += usage[name]
