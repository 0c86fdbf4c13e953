"""Events of nested agents: a profile's `stream.parent` says which call runs the agent that an event belongs to.

Claude's stream has whole lines for a nested agent and no fragments. Fragments are gathered here until their block is
complete, and a block that a vendor streams and then prints whole is written once.
"""

from typing import Any, ClassVar, Protocol

from shim.core.claude.usage import NO_USAGE, Usage
from shim.core.reading.account import Account
from shim.core.turn.open_calls import STREAM
from shim.core.turn.turn import Turn

AGENTS = 100  # nested agents with an open block; beyond that the oldest block is written
BLOCK_CHARACTERS = 1024 * 1024  # of an open block; a longer one is written in several lines
WRITTEN_BLOCKS = 200  # that are compared with a repetition
CALLS = 1000  # open calls of nested agents whose names are kept for a denial


class Translating(Protocol):
    """What is needed of the engine that reads the events."""

    turn: Turn
    usage_means: ClassVar[str]

    @property
    def account(self) -> Account: ...

    def translate(self, name: Any, arguments: Any) -> tuple[str, dict[str, Any]]:
        """Return a call in Claude's words."""

    def hidden(self, name: Any) -> bool:
        """Return whether calls of a tool are left out of the stream."""

    def denied(self, own: Any, name: Any, arguments: Any) -> None:
        """A call of the main agent was refused."""


class _Block:
    __slots__ = ("fragments", "key", "kind", "size")

    def __init__(self, kind: str, key: Any) -> None:
        self.kind = kind
        self.key = key
        self.fragments: list[str] = []
        self.size = 0


class NestedEvents:
    """The open blocks and calls of all nested agents of one turn, by the call that runs each agent."""

    def __init__(self, engine: Translating) -> None:
        self._engine = engine
        self._open: dict[str, _Block] = {}
        self._written: dict[tuple[str, str, Any], str] = {}  # (parent, kind, key) → the text of a complete block
        self._calls: dict[str, tuple[str, dict[str, Any]]] = {}
        self._pieces: dict[str, str] = {}  # ids of calls that come in pieces → the call that runs their agent

    # -- text and thinking ------------------------------------------------------------------------------------------

    def text(self, parent: str, kind: str, text: Any, key: Any, mode: str) -> None:
        """Add to a block. `mode` is delta, cumulative or final, as in a rule of a profile."""
        if text is None or text == "":
            return
        if text.__class__ is not str:
            raise TypeError(f"a block of {kind} is no text")
        if mode == "final":
            self._complete(parent, kind, text, key)
            return
        block = self._block(parent, kind, key)
        if mode == "cumulative":
            block.fragments, block.size = [text], len(text)
            return
        block.fragments.append(text)
        block.size += len(text)
        if block.size > BLOCK_CHARACTERS:
            self.flush(parent)

    def flush(self, parent: Any = None) -> None:
        """Write the open block of an agent; without `parent`, those of all agents."""
        if not self._open:
            return
        if parent is None:
            for each in list(self._open):
                self.flush(each)
            return
        block = self._open.pop(parent, None)
        if block is not None:
            self._write(parent, block.kind, "".join(block.fragments), block.key)

    def _block(self, parent: str, kind: str, key: Any) -> _Block:
        """Return the open block of an agent; another kind or key is another block."""
        block = self._open.get(parent)
        if block is not None and (block.kind, block.key) == (kind, key):
            return block
        self.flush(parent)
        if len(self._open) >= AGENTS:
            self.flush(next(iter(self._open)))
        block = self._open[parent] = _Block(kind, key)
        return block

    def _complete(self, parent: str, kind: str, text: str, key: Any) -> None:
        """Write a whole block, or what is new of one whose fragments were written."""
        block = self._open.get(parent)
        if block is not None and (block.kind, block.key) == (kind, key):
            del self._open[parent]
        else:
            self.flush(parent)
        written = "" if key is None else self._written.get((parent, kind, key), "")
        if written and written.strip() == text.strip():
            return
        if not text.startswith(written):
            self._engine.account.repaired("contradicted_block", text)
            return
        self._write(parent, kind, text[len(written) :], key)

    def _write(self, parent: str, kind: str, text: str, key: Any) -> None:
        if key is not None:
            if len(self._written) >= WRITTEN_BLOCKS:
                self._written.pop(next(iter(self._written)))
            self._written[parent, kind, key] = self._written.get((parent, kind, key), "") + text
        agent = self._engine.turn.child(parent)
        if kind == "text":
            agent.text(text)
        else:
            agent.thinking(text)

    def reply(self, parent: str) -> None:
        """Another reply of an agent begins: its blocks may have the names of earlier ones."""
        self.flush(parent)
        for block in [each for each in self._written if each[0] == parent]:
            del self._written[block]

    def retract(self, parent: str) -> None:
        """The reply of an agent was cut and comes again: its open block was not written and is dropped."""
        self._open.pop(parent, None)

    # -- calls ------------------------------------------------------------------------------------------------------

    def call(self, parent: str, own: Any, name: Any, arguments: Any, source: str = STREAM) -> None:
        """Write a call. One that a rule forbids is the Turn's business, as a call of the main agent is."""
        self.flush(parent)
        engine, turn = self._engine, self._engine.turn
        claude, given = engine.translate(name, arguments)
        judge = turn.terms.judge
        if engine.hidden(name) or (judge is not None and judge.denies(claude, given)):
            turn.tool_use(own, claude, given, hidden=engine.hidden(name), source=source)
            return
        if own.__class__ is str and own:
            if len(self._calls) >= CALLS:
                self._calls.pop(next(iter(self._calls)))
            self._calls[own] = claude, given
        turn.child(parent).tool_use(own, claude, given)

    def piece(self, parent: str, own: Any) -> None:
        """A call of an agent comes in pieces."""
        if own.__class__ is str and own and len(self._pieces) < CALLS:
            self._pieces[own] = parent

    def take_piece(self, own: Any) -> str | None:
        """Return the parent of a call that came in pieces and is whole now."""
        return self._pieces.pop(own, None) if own.__class__ is str else None

    def result(
        self, parent: str, own: Any, content: Any, failed: bool, name: Any = None, arguments: Any = None
    ) -> None:
        """Write what a call of an agent returned. `name` and `arguments` replace a call that was not announced."""
        self.reply(parent)
        self.flush(own)
        turn = self._engine.turn
        agent = turn.child(parent)
        if not agent.has_call(own):  # its calls may have the ids of the main agent's calls
            if own in turn.open or own in turn.calls.table.hidden:
                turn.tool_result(own, content, failed)
                return
            if name is not None:
                self.call(parent, own, name, arguments)
        self._calls.pop(own, None)
        agent.tool_result(own, content, failed)

    def denied(self, own: Any, name: Any, arguments: Any) -> None:
        """A call of an agent was refused."""
        known = self._calls.get(own) if own.__class__ is str else None
        if known is None:
            self._engine.denied(own, name, arguments)
        else:
            self._engine.turn.denied(own, *known)

    # -- numbers ----------------------------------------------------------------------------------------------------

    def replied(self, parent: str, counted: Usage | None, cost: float) -> None:
        """A reply of an agent is over. Usage of requests adds up; a total of an agent is not the total of the turn."""
        self.reply(parent)
        if self._engine.usage_means == "request":
            self._engine.turn.spent(counted or NO_USAGE, cost)
