"""Writes subagent events. For each event, a profile's `stream.parent` identifies the tool call that
runs the subagent.

Claude's stream has no fragments for subagents, only complete lines. Fragments are therefore
collected until their content block is complete. A block that a vendor first streams and then prints
in full is only written once.
"""

from typing import Any, ClassVar, Protocol

from shim.core.claude.usage import NO_USAGE, Usage
from shim.core.reading.diagnostics import Diagnostics
from shim.core.turn.open_calls import STREAM, normalize_call_id
from shim.core.turn.turn import Turn

MAX_AGENTS = 100  # subagents with open blocks; above the limit, the oldest block is written
MAX_BLOCK_CHARS = 1024 * 1024  # a longer open block is written in several lines
MAX_WRITTEN_BLOCKS = 200  # written blocks that are remembered, to detect repeated blocks
MAX_CALLS = 1000  # subagent calls whose tool names are stored, for denials


class ToolCallTranslator(Protocol):
    """The interface of the rule engine that `SubagentEventWriter` uses."""

    turn: Turn
    usage_means: ClassVar[str]

    @property
    def diagnostics(self) -> Diagnostics: ...

    def translate_vendor_tool_call(self, name: Any, arguments: Any) -> tuple[str, dict[str, Any]]:
        """Return Claude's tool name and arguments for a vendor's tool call."""

    def is_hidden_tool(self, name: Any) -> bool:
        """Return whether calls to this tool are omitted from the stream."""

    def record_tool_call_denial(self, call_id: Any, name: Any, arguments: Any) -> None:
        """Record that a tool call by the main agent was denied."""


class _Block:
    __slots__ = ("fragments", "key", "kind", "size")

    def __init__(self, kind: str, key: Any) -> None:
        self.kind = kind
        self.key = key
        self.fragments: list[str] = []
        self.size = 0


class SubagentEventWriter:
    """Writes the events of all subagents in one turn. A subagent is identified by the tool call
    that runs it (`parent_call_id`).
    """

    def __init__(self, engine: ToolCallTranslator) -> None:
        self._engine = engine
        self._open_blocks: dict[str, _Block] = {}
        # (parent call, kind, key) → the text of a complete block.
        self._written_texts: dict[tuple[str, str, Any], str] = {}
        self._calls: dict[str, tuple[str, dict[str, Any]]] = {}
        # The id of a call that arrives in fragments → the id of the call that runs its subagent.
        self._parents: dict[str, str] = {}

    # -- text and thinking -------------------------------------------------------------------------

    def add_text(self, parent_call_id: str, kind: str, text: Any, key: Any, mode: str) -> None:
        """Add text to a subagent's content block. `mode` is `delta`, `cumulative` or `final`, as in
        a profile's rules. Raise TypeError if `text` is not a string.
        """
        if text is None or text == "":
            return
        if text.__class__ is not str:
            raise TypeError(f"the content of a {kind} block is not text")
        if mode == "final":
            self._write_complete(parent_call_id, kind, text, key)
            return
        block = self._open_block(parent_call_id, kind, key)
        if mode == "cumulative":
            block.fragments = [text]
            block.size = len(text)
            return
        block.fragments.append(text)
        block.size += len(text)
        if block.size > MAX_BLOCK_CHARS:
            self.write_open_blocks(parent_call_id)

    def write_open_blocks(self, parent_call_id: Any = None) -> None:
        """Write the open content block of one subagent. Without `parent_call_id`, write the open
        blocks of all subagents.
        """
        if not self._open_blocks:
            return
        if parent_call_id is None:
            for open_parent in list(self._open_blocks):
                self.write_open_blocks(open_parent)
            return
        block = self._open_blocks.pop(parent_call_id, None)
        if block is not None:
            self._write_text(parent_call_id, block.kind, "".join(block.fragments), block.key)

    def _open_block(self, parent: str, kind: str, key: Any) -> _Block:
        """Return the open content block of a subagent. A different kind or key ends the open block
        and starts a new block.
        """
        block = self._open_blocks.get(parent)
        if block is not None and (block.kind, block.key) == (kind, key):
            return block
        self.write_open_blocks(parent)
        if len(self._open_blocks) >= MAX_AGENTS:
            self.write_open_blocks(next(iter(self._open_blocks)))
        block = self._open_blocks[parent] = _Block(kind, key)
        return block

    def _write_complete(self, parent: str, kind: str, text: str, key: Any) -> None:
        """Write a complete content block, without the part that was already written from fragments."""
        block = self._open_blocks.get(parent)
        if block is not None and (block.kind, block.key) == (kind, key):
            del self._open_blocks[parent]
        else:
            self.write_open_blocks(parent)
        written = ""
        if key is not None:
            written = self._written_texts.get((parent, kind, key), "")
        if written and written.strip() == text.strip():
            return
        if not text.startswith(written):
            self._engine.diagnostics.record("contradicted_block", text)
            return
        self._write_text(parent, kind, text[len(written) :], key)

    def _write_text(self, parent: str, kind: str, text: str, key: Any) -> None:
        if key is not None:
            if len(self._written_texts) >= MAX_WRITTEN_BLOCKS:
                self._written_texts.pop(next(iter(self._written_texts)))
            self._written_texts[parent, kind, key] = (
                self._written_texts.get((parent, kind, key), "") + text
            )
        agent = self._engine.turn.get_subagent(parent)
        if kind == "text":
            agent.write_text_message(text)
        else:
            agent.write_thinking_message(text)

    def start_message(self, parent_call_id: str) -> None:
        """Start the next message of a subagent. Its blocks may reuse the keys of earlier blocks."""
        self.write_open_blocks(parent_call_id)
        self._written_texts = {
            block: text for block, text in self._written_texts.items() if block[0] != parent_call_id
        }

    def discard_block(self, parent_call_id: str) -> None:
        """Drop the open content block of a subagent, because its message was cut off and will be
        repeated.
        """
        self._open_blocks.pop(parent_call_id, None)

    # -- tool calls --------------------------------------------------------------------------------

    def write_call(
        self, parent_call_id: str, call_id: Any, name: Any, arguments: Any, source: str = STREAM
    ) -> None:
        """Write a subagent's tool call. The turn checks the call against the rules. A hidden call
        is handled as a call of the main agent.
        """
        self.write_open_blocks(parent_call_id)
        engine = self._engine
        turn = engine.turn
        claude_name, claude_arguments = engine.translate_vendor_tool_call(name, arguments)
        if engine.is_hidden_tool(name):
            turn.add_tool_call(
                call_id, claude_name, claude_arguments, is_hidden=True, source=source
            )
            return
        if call_id.__class__ is str and call_id:
            if len(self._calls) >= MAX_CALLS:
                self._calls.pop(next(iter(self._calls)))
            self._calls[call_id] = claude_name, claude_arguments
        turn.get_subagent(parent_call_id).add_tool_call(call_id, claude_name, claude_arguments)

    def record_parent_of_partial_call(self, parent_call_id: str, call_id: Any) -> None:
        """Store which subagent makes a call that arrives in fragments."""
        if call_id.__class__ is str and call_id and len(self._parents) < MAX_CALLS:
            self._parents[call_id] = parent_call_id

    def take_parent_of_partial_call(self, call_id: Any) -> str | None:
        """Return which subagent makes a call that arrived in fragments, and delete this
        information. Return None if the main agent makes the call.
        """
        if call_id.__class__ is str:
            return self._parents.pop(call_id, None)
        return None

    def write_result(
        self,
        parent_call_id: str,
        call_id: Any,
        content: Any,
        is_error: bool,
        name: Any = None,
        arguments: Any = None,
    ) -> None:
        """Write a subagent's tool result. `name` and `arguments` describe the tool call if it was
        not reported before.
        """
        self.start_message(parent_call_id)
        self.write_open_blocks(call_id)
        turn = self._engine.turn
        agent = turn.get_subagent(parent_call_id)
        # Subagents and the main agent may use the same tool call ids.
        if not agent.has_open_call(call_id):
            is_main_call = self._is_open_main_call(call_id)
            if name is not None and not is_main_call:
                self.write_call(parent_call_id, call_id, name, arguments)
                is_main_call = self._is_open_main_call(call_id)  # a hidden call
            if is_main_call:
                turn.add_tool_result(call_id, content, is_error)
                return
        self._calls.pop(call_id, None)
        agent.add_tool_result(call_id, content, is_error)

    def write_result_without_parent(self, call_id: Any, content: Any, is_error: bool) -> None:
        """Write a tool result whose event names no subagent. A subagent may still have made the
        call.
        """
        call_id = normalize_call_id(call_id)
        self.write_open_blocks(call_id or None)
        turn = self._engine.turn
        agent = None
        if not self._is_open_main_call(call_id):
            agent = turn.subagents.find_agent_with_open_call(call_id)
        if agent is None:
            turn.add_tool_result(call_id, content, is_error)
            return
        self._calls.pop(call_id, None)
        agent.add_tool_result(call_id, content, is_error)

    def _is_open_main_call(self, call_id: Any) -> bool:
        """Return whether the main agent or a hidden tool waits for the result of this call."""
        turn = self._engine.turn
        if call_id in turn.open_calls:
            return True
        return call_id in turn.tool_calls.table.hidden_keys

    def record_tool_call_denial(self, call_id: Any, name: Any, arguments: Any) -> None:
        """Record that a tool call by a subagent was denied."""
        call = None
        if call_id.__class__ is str:
            call = self._calls.get(call_id)
        if call is None:
            self._engine.record_tool_call_denial(call_id, name, arguments)
        else:
            self._engine.turn.add_denial(call_id, *call)

    # -- usage -------------------------------------------------------------------------------------

    def end_message(self, parent_call_id: str, usage: Usage | None, cost: float) -> None:
        """End a subagent's message, and add its usage to the turn.

        The usage is not added if the vendor reports totals instead of the usage for each request.
        """
        self.start_message(parent_call_id)
        if self._engine.usage_means == "request":
            self._engine.turn.add_usage(usage or NO_USAGE, cost)
