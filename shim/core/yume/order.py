"""The order of Yume's lines (its R3): a call, its result, then the lines after it.

Vendors say parallel calls first and their results in any order; here each call waits until the one
before it was answered, and so does text. A nested agent's lines are a lane of their own, which
begins when its call was said.
"""

from collections import deque
from collections.abc import Callable

# What waits for a result, in bytes: calls and texts of one reply are far below, an agent that talks
# on for an hour while a call of its is open is not. Beyond, the open calls are answered by
# TOO_LATE.
HELD_BYTES = 4 * 1024 * 1024

# the call that a nested agent belongs to; "" is the main conversation, None an unknown call
Parent = str | None
Answer = Callable[[str, Parent, str, bool], bytes]  # id, parent, text, whether it is an error
TOO_LATE = "[The result of this call came too late: too much other output was waiting for it.]"
UNANSWERED = "No result was reported for this call."


class Lane:
    """One agent's lines. `said` are calls that wait for a result, `held` are lines that wait for
    these calls.
    """

    __slots__ = ("held", "results", "said")

    def __init__(self) -> None:
        self.said: dict[str, None] = {}
        self.held: deque[tuple[str, bytes]] = deque()  # the id of a call or "", and its line
        self.results: dict[str, bytes] = {}  # of calls that are held


class Lanes:
    """All lanes of one turn. `out` takes the lines in their order; `answer` makes a result that
    never came.
    """

    def __init__(self, out: list[bytes], answer: Answer) -> None:
        self._out = out
        self._answer = answer
        self._lanes: dict[Parent, Lane] = {}
        self._home: dict[str, Parent] = {}  # a call that waits to be written → its parent
        self._bytes = 0
        self.late = 0

    def say(self, parent: Parent, line: bytes) -> None:
        """Take a line that is neither a call nor a result."""
        if not self._lanes or not self._blocked(parent):
            self._out.append(line)
        else:
            self._hold(parent, "", line)

    def call(self, parent: Parent, identity: str, line: bytes) -> None:
        """Take a call. A call whose id comes again while it waits is written after all waiting
        lines.
        """
        if identity in self._home:
            self.settle(TOO_LATE, failed=False)
        if self._blocked(parent):
            self._home[identity] = parent
            self._hold(parent, identity, line)
        else:
            self._lane(parent).said[identity] = None
            self._out.append(line)

    def result(self, parent: Parent, identity: str, line: bytes) -> None:
        """Take a result. A result of a call that was given up is counted."""
        lane = self._lanes.get(parent)
        if lane is not None and identity in lane.said:
            del lane.said[identity]
            self._out.append(line)
            self._drain(parent)
        elif lane is not None and self._home.get(identity) == parent:
            lane.results[identity] = line
            self._count(len(line))
        else:
            self.late += 1

    def expose(self, identity: str) -> None:
        """Write a waiting call and its parents, because the frontend is asked about it now."""
        waiting = []
        call: Parent = identity
        while call in self._home:
            waiting.append(call)
            call = self._home[call]
        for call in reversed(waiting):
            if call not in self._home:  # it was written with its parent
                continue
            parent = self._home[call]
            lane = self._lanes[parent]
            said, line = next(entry for entry in lane.held if entry[0] == call)
            lane.held.remove((said, line))
            self._say_call(lane, said, line)
            self._drain(said)
            self._drain(parent)

    def settle(self, text: str = UNANSWERED, *, failed: bool = True) -> None:
        """Write all waiting lines. Calls without a result are answered with `text`."""
        while self._lanes:
            for parent, lane in list(self._lanes.items()):
                for identity in lane.said:
                    self._out.append(self._answer(identity, parent, text, failed))
                lane.said.clear()
                if parent not in self._home:
                    self._drain(parent)

    # -- how it is done ----------------------------------------------------------------------------

    def _lane(self, parent: Parent) -> Lane:
        lane = self._lanes.get(parent)
        if lane is None:
            lane = self._lanes[parent] = Lane()
        return lane

    def _blocked(self, parent: Parent) -> bool:
        """Whether a line must wait: for an open call, for earlier waiting lines, or for its agent's
        own call.
        """
        lane = self._lanes.get(parent)
        return (lane is not None and bool(lane.said or lane.held)) or parent in self._home

    def _hold(self, parent: Parent, identity: str, line: bytes) -> None:
        self._lane(parent).held.append((identity, line))
        self._count(len(line))

    def _count(self, size: int) -> None:
        self._bytes += size
        if self._bytes > HELD_BYTES:
            self.settle(TOO_LATE, failed=False)

    def _say_call(self, lane: Lane, identity: str, line: bytes) -> None:
        self._bytes -= len(line)
        self._out.append(line)
        if identity:
            del self._home[identity]
            lane.said[identity] = None

    def _drain(self, parent: Parent) -> None:
        """Write the waiting lines of a lane, up to the next call without a result.

        The lines of a call's agent follow the call, and then its result, if it has come.
        """
        agents: list[Parent] = [parent]
        while agents:
            lane = self._lanes.get(agents[-1])
            if lane is None:
                agents.pop()
                continue
            for identity in [call for call in lane.said if call in lane.results]:
                del lane.said[identity]
                result = lane.results.pop(identity)
                self._bytes -= len(result)
                self._out.append(result)
            if lane.held and not lane.said:
                identity, line = lane.held.popleft()
                self._say_call(lane, identity, line)
                if identity:
                    agents.append(identity)
            else:
                if not (lane.held or lane.said):
                    del self._lanes[agents[-1]]
                agents.pop()
