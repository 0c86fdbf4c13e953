"""Puts Yume's lines in order (R3): each tool call is directly followed by its result, and later
lines come after the result.

Vendors report parallel tool calls first, and their results in any order. Yume needs each call next
to its result, so later calls and texts wait until the result of the previous call has arrived. The
lines of each subagent are ordered separately, and start after the tool call that runs the subagent.
"""

from collections import deque
from collections.abc import Callable

# The maximum size of the lines that wait for tool results. The lines for one message need far fewer
# bytes, but a subagent may write for an hour before the result of its tool call arrives. Above the
# limit, tool calls without a result get the result TOO_LATE_TEXT.
MAX_BUFFERED_BYTES = 4 * 1024 * 1024

# the id of the tool call that runs a subagent; "" for the main agent, None for an unknown call
ParentCallId = str | None
# encodes a result from its call's id, the parent call's id, the text, and whether it is an error
EncodeResult = Callable[[str, ParentCallId, str, bool], bytes]
TOO_LATE_TEXT = (
    "[The result of this call arrived too late: too much other output was already waiting.]"
)
NO_RESULT_TEXT = "No result was reported for this call."


class AgentLinesAwaitingResults:
    """The waiting lines of one agent. `open_calls` are the written tool calls that have no result
    yet. `buffered_lines` are the lines that wait for these results.
    """

    __slots__ = ("buffered_lines", "buffered_results", "open_calls")

    def __init__(self) -> None:
        self.open_calls: dict[str, None] = {}
        # the tool call's id and its line; for other lines the id is ""
        self.buffered_lines: deque[tuple[str, bytes]] = deque()
        self.buffered_results: dict[str, bytes] = {}  # by tool call id: results of waiting calls


class OrderedToolCallOutput:
    """Orders the lines of all agents in one turn, and appends them to `output_lines`.
    `encode_result` encodes a result for a tool call whose result is missing.
    """

    def __init__(self, output_lines: list[bytes], encode_result: EncodeResult) -> None:
        self._output_lines = output_lines
        self._encode_result = encode_result
        self._outputs: dict[ParentCallId, AgentLinesAwaitingResults] = {}
        # the id of a waiting tool call → the id of the tool call that runs its agent
        self._parent_of_buffered_call: dict[str, ParentCallId] = {}
        self._buffered_bytes = 0
        self.late_result_count = 0

    def add_non_tool_line(self, parent_call_id: ParentCallId, line: bytes) -> None:
        """Add a line that is neither a tool call nor a tool result."""
        if not self._outputs or not self._must_wait(parent_call_id):
            self._output_lines.append(line)
        else:
            self._buffer_line(parent_call_id, "", line)

    def add_tool_call_line(self, parent_call_id: ParentCallId, call_id: str, line: bytes) -> None:
        """Add a tool call. If a call with the same id is still waiting, write all waiting lines
        first.
        """
        if call_id in self._parent_of_buffered_call:
            self.write_all_buffered_lines(TOO_LATE_TEXT, is_error=False)
        if self._must_wait(parent_call_id):
            self._parent_of_buffered_call[call_id] = parent_call_id
            self._buffer_line(parent_call_id, call_id, line)
        else:
            self._ensure_output(parent_call_id).open_calls[call_id] = None
            self._output_lines.append(line)

    def add_tool_result_line(self, parent_call_id: ParentCallId, call_id: str, line: bytes) -> None:
        """Add a tool result. A result that arrives too late is only counted."""
        output = self._outputs.get(parent_call_id)
        if output is not None and call_id in output.open_calls:
            del output.open_calls[call_id]
            self._output_lines.append(line)
            self._write_buffered_lines(parent_call_id)
        elif output is not None and self._parent_of_buffered_call.get(call_id) == parent_call_id:
            output.buffered_results[call_id] = line
            self._count_buffered(len(line))
        else:
            self.late_result_count += 1

    def write_buffered_call_and_ancestors(self, call_id: str) -> None:
        """Write a waiting tool call and the calls that run its subagents, because the frontend must
        answer the call's permission prompt now.
        """
        buffered_calls = []
        ancestor_id: ParentCallId = call_id
        while ancestor_id in self._parent_of_buffered_call:
            buffered_calls.append(ancestor_id)
            ancestor_id = self._parent_of_buffered_call[ancestor_id]
        for ancestor_id in reversed(buffered_calls):
            if ancestor_id not in self._parent_of_buffered_call:  # the call was already written
                continue
            parent = self._parent_of_buffered_call[ancestor_id]
            output = self._outputs[parent]
            line_call_id, line = next(
                entry for entry in output.buffered_lines if entry[0] == ancestor_id
            )
            output.buffered_lines.remove((line_call_id, line))
            self._write_buffered_line(output, line_call_id, line)
            self._write_buffered_lines(line_call_id)
            self._write_buffered_lines(parent)

    def write_all_buffered_lines(
        self, missing_result_text: str = NO_RESULT_TEXT, *, is_error: bool = True
    ) -> None:
        """Write all waiting lines. Tool calls without a result get the result
        `missing_result_text`.
        """
        while self._outputs:
            for parent, output in list(self._outputs.items()):
                for call_id in output.open_calls:
                    self._output_lines.append(
                        self._encode_result(call_id, parent, missing_result_text, is_error)
                    )
                output.open_calls.clear()
                if parent not in self._parent_of_buffered_call:
                    self._write_buffered_lines(parent)

    # -- helpers -----------------------------------------------------------------------------------

    def _ensure_output(self, parent: ParentCallId) -> AgentLinesAwaitingResults:
        output = self._outputs.get(parent)
        if output is None:
            output = self._outputs[parent] = AgentLinesAwaitingResults()
        return output

    def _must_wait(self, parent: ParentCallId) -> bool:
        """Return whether a line must wait. A line waits for an open tool call, for earlier waiting
        lines, and for the tool call that runs the line's agent.
        """
        output = self._outputs.get(parent)
        if output is not None and (output.open_calls or output.buffered_lines):
            return True
        return parent in self._parent_of_buffered_call

    def _buffer_line(self, parent: ParentCallId, call_id: str, line: bytes) -> None:
        self._ensure_output(parent).buffered_lines.append((call_id, line))
        self._count_buffered(len(line))

    def _count_buffered(self, size_bytes: int) -> None:
        self._buffered_bytes += size_bytes
        if self._buffered_bytes > MAX_BUFFERED_BYTES:
            self.write_all_buffered_lines(TOO_LATE_TEXT, is_error=False)

    def _write_buffered_line(
        self, output: AgentLinesAwaitingResults, call_id: str, line: bytes
    ) -> None:
        self._buffered_bytes -= len(line)
        self._output_lines.append(line)
        if call_id:
            del self._parent_of_buffered_call[call_id]
            output.open_calls[call_id] = None

    def _write_buffered_lines(self, parent: ParentCallId) -> None:
        """Write an agent's waiting lines, up to the next tool call without a result.

        After each call, the lines of its subagent are written, followed by the call's result if it
        has arrived.
        """
        agents: list[ParentCallId] = [parent]
        while agents:
            output = self._outputs.get(agents[-1])
            if output is None:
                agents.pop()
                continue
            for call_id in [
                open_call_id
                for open_call_id in output.open_calls
                if open_call_id in output.buffered_results
            ]:
                del output.open_calls[call_id]
                result = output.buffered_results.pop(call_id)
                self._buffered_bytes -= len(result)
                self._output_lines.append(result)
            if output.buffered_lines and not output.open_calls:
                call_id, line = output.buffered_lines.popleft()
                self._write_buffered_line(output, call_id, line)
                if call_id:
                    agents.append(call_id)
            else:
                if not (output.buffered_lines or output.open_calls):
                    del self._outputs[agents[-1]]
                agents.pop()
