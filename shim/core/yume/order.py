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
MAX_BUFFERED_BYTES = 4 * 1024 * 1024

# the call that a nested agent belongs to; "" is the main conversation, None an unknown call
ParentCallId = str | None
EncodeResult = Callable[
    [str, ParentCallId, str, bool], bytes
]  # id, parent, text, whether it is an error
TOO_LATE_TEXT = "[The result of this call came too late: too much other output was waiting for it.]"
NO_RESULT_TEXT = "No result was reported for this call."


class AgentOutput:
    """One agent's lines. `said` are calls that wait for a result, `held` are lines that wait for
    these calls.
    """

    __slots__ = ("buffered_lines", "buffered_results", "open_calls")

    def __init__(self) -> None:
        self.open_calls: dict[str, None] = {}
        self.buffered_lines: deque[tuple[str, bytes]] = (
            deque()
        )  # the id of a call or "", and its line
        self.buffered_results: dict[str, bytes] = {}  # of calls that are held


class OrderedOutput:
    """All lanes of one turn. `out` takes the lines in their order; `answer` makes a result that
    never came.
    """

    def __init__(self, out: list[bytes], answer: EncodeResult) -> None:
        self._output_lines = out
        self._encode_result = answer
        self._outputs: dict[ParentCallId, AgentOutput] = {}
        self._parent_of_buffered_call: dict[
            str, ParentCallId
        ] = {}  # a call that waits to be written → its parent
        self._buffered_bytes = 0
        self.late_result_count = 0

    def add_line(self, parent: ParentCallId, line: bytes) -> None:
        """Take a line that is neither a call nor a result."""
        if not self._outputs or not self._must_wait(parent):
            self._output_lines.append(line)
        else:
            self._buffer_line(parent, "", line)

    def add_call(self, parent: ParentCallId, identity: str, line: bytes) -> None:
        """Take a call. A call whose id comes again while it waits is written after all waiting
        lines.
        """
        if identity in self._parent_of_buffered_call:
            self.write_all(TOO_LATE_TEXT, failed=False)
        if self._must_wait(parent):
            self._parent_of_buffered_call[identity] = parent
            self._buffer_line(parent, identity, line)
        else:
            self._ensure_output(parent).open_calls[identity] = None
            self._output_lines.append(line)

    def add_result(self, parent: ParentCallId, identity: str, line: bytes) -> None:
        """Take a result. A result of a call that was given up is counted."""
        lane = self._outputs.get(parent)
        if lane is not None and identity in lane.open_calls:
            del lane.open_calls[identity]
            self._output_lines.append(line)
            self._write_buffered_lines(parent)
        elif lane is not None and self._parent_of_buffered_call.get(identity) == parent:
            lane.buffered_results[identity] = line
            self._count_buffered(len(line))
        else:
            self.late_result_count += 1

    def write_call_now(self, identity: str) -> None:
        """Write a waiting call and its parents, because the frontend is asked about it now."""
        waiting = []
        call: ParentCallId = identity
        while call in self._parent_of_buffered_call:
            waiting.append(call)
            call = self._parent_of_buffered_call[call]
        for call in reversed(waiting):
            if call not in self._parent_of_buffered_call:  # it was written with its parent
                continue
            parent = self._parent_of_buffered_call[call]
            lane = self._outputs[parent]
            said, line = next(entry for entry in lane.buffered_lines if entry[0] == call)
            lane.buffered_lines.remove((said, line))
            self._write_buffered_line(lane, said, line)
            self._write_buffered_lines(said)
            self._write_buffered_lines(parent)

    def write_all(self, text: str = NO_RESULT_TEXT, *, failed: bool = True) -> None:
        """Write all waiting lines. Calls without a result are answered with `text`."""
        while self._outputs:
            for parent, lane in list(self._outputs.items()):
                for identity in lane.open_calls:
                    self._output_lines.append(self._encode_result(identity, parent, text, failed))
                lane.open_calls.clear()
                if parent not in self._parent_of_buffered_call:
                    self._write_buffered_lines(parent)

    # -- how it is done ----------------------------------------------------------------------------

    def _ensure_output(self, parent: ParentCallId) -> AgentOutput:
        lane = self._outputs.get(parent)
        if lane is None:
            lane = self._outputs[parent] = AgentOutput()
        return lane

    def _must_wait(self, parent: ParentCallId) -> bool:
        """Whether a line must wait: for an open call, for earlier waiting lines, or for its agent's
        own call.
        """
        lane = self._outputs.get(parent)
        return (
            lane is not None and bool(lane.open_calls or lane.buffered_lines)
        ) or parent in self._parent_of_buffered_call

    def _buffer_line(self, parent: ParentCallId, identity: str, line: bytes) -> None:
        self._ensure_output(parent).buffered_lines.append((identity, line))
        self._count_buffered(len(line))

    def _count_buffered(self, size: int) -> None:
        self._buffered_bytes += size
        if self._buffered_bytes > MAX_BUFFERED_BYTES:
            self.write_all(TOO_LATE_TEXT, failed=False)

    def _write_buffered_line(self, lane: AgentOutput, identity: str, line: bytes) -> None:
        self._buffered_bytes -= len(line)
        self._output_lines.append(line)
        if identity:
            del self._parent_of_buffered_call[identity]
            lane.open_calls[identity] = None

    def _write_buffered_lines(self, parent: ParentCallId) -> None:
        """Write the waiting lines of a lane, up to the next call without a result.

        The lines of a call's agent follow the call, and then its result, if it has come.
        """
        agents: list[ParentCallId] = [parent]
        while agents:
            lane = self._outputs.get(agents[-1])
            if lane is None:
                agents.pop()
                continue
            for identity in [call for call in lane.open_calls if call in lane.buffered_results]:
                del lane.open_calls[identity]
                result = lane.buffered_results.pop(identity)
                self._buffered_bytes -= len(result)
                self._output_lines.append(result)
            if lane.buffered_lines and not lane.open_calls:
                identity, line = lane.buffered_lines.popleft()
                self._write_buffered_line(lane, identity, line)
                if identity:
                    agents.append(identity)
            else:
                if not (lane.buffered_lines or lane.open_calls):
                    del self._outputs[agents[-1]]
                agents.pop()
