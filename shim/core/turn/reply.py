"""One reply of the model: its usage, how it ended, and what its blocks said, so that nothing is
said twice.
"""

from collections.abc import Callable

from shim.core.claude.usage import NO_USAGE, Usage, get_model_usage, parse_dollars, parse_usage
from shim.core.reading.account import Diagnostics
from shim.core.reading.head_and_tail import shorten_middle
from shim.core.turn.machine import MESSAGE, NEW, READY, TEXT, THINKING, TurnMachine, TurnState
from shim.core.turn.outcome import OutcomeTracker
from shim.core.turn.terms import NAME_CHARACTERS, Pen, Terms

SYNTHETIC = "<synthetic>"  # the model of what no model said: ours to say, never a vendor's

# More than any model says in one reply; a vendor that streams without end is not remembered without
# end.
SPOKEN_CHARACTERS = 512 * 1024
PIECE_CHARACTERS = 64  # a piece costs so much besides its characters
SPOKEN_BLOCKS = 1000

# Of a reply that may be cut and come again: more than any model says in one, less than would matter
# in memory.
SAID_CHARACTERS = 4 * 1024 * 1024
SAID_BLOCKS = 1000

LEFT_OUT = "\n[…]\n"  # in the middle of an answer that is longer than a line

Block = tuple[TurnState, object]  # its kind, and the vendor's key


class Reply:
    """The reply that is open, or the last one, and what all replies of the turn used."""

    def __init__(
        self,
        machine: TurnMachine,
        pen: Pen,
        terms: Terms,
        account: Diagnostics,
        end: OutcomeTracker,
    ) -> None:
        self._machine = machine
        self._pen = pen
        self._repeats = terms.retries  # what it said is remembered to the end of the turn
        self._partial = pen.partial
        self._end = end
        self.blocks = SaidBlocks(account, self.shorten)
        self.said = SaidReply()
        self.number = 0  # of replies that said something
        self.model = ""
        self.start_usage: Usage = NO_USAGE  # said with the reply's lines
        self.end_usage: Usage = NO_USAGE  # said where it ends
        self.stop_reason: str | None = None
        self.aborted = False  # it did not end by itself
        self.asks_tools = False  # its last block is a call
        self.last_text = ""
        self.usage: dict[str, Usage] = {}  # of the turn, by model
        self.last_usage: Usage = NO_USAGE  # usage of the latest reply
        self.cost = 0.0  # of the turn, in dollars
        self.stop_due = False  # a real claude's block is open whose end has not passed

    def start(self) -> None:
        """A reply begins with its first block."""
        self.number += 1
        self.last_text = ""
        self.stop_reason = None
        self.asks_tools = False
        if self.blocks.texts:
            self.blocks.clear()
        if self.said.size:
            self.said.forget()
        self._pen.message_start(self.model, self.start_usage)

    def stop(self) -> None:
        if self.stop_due:
            self.stop_due = False
            self._pen.block_stop()
        if self.aborted or (self._end.outcome is not None and self._end.broken):
            self.aborted = False
            self.stop_reason = None
        elif self.stop_reason is None:
            self.stop_reason = "tool_use" if self.asks_tools else "end_turn"
        if self._partial:
            self._pen.message_stop(self.stop_reason, self.end_usage)
        self.end_usage = self.start_usage = NO_USAGE
        if self.blocks.texts:
            self.blocks.clear()

    @property
    def asked_tools(self) -> bool:
        """Whether it ended with calls, and no other reply came after them."""
        return self.asks_tools or self.stop_reason == "tool_use"

    def shorten(self, text: str) -> str:
        """What of an answer a line can hold."""
        return shorten_middle(text, self._pen.room, LEFT_OUT)

    # -- what the vendor says of it ----------------------------------------------------------------

    def facts(self, model: str | None, usage: Usage | None) -> None:
        """The model and the usage known so far of the reply that is open or comes next."""
        if model and model != self.model and isinstance(model, str) and model != SYNTHETIC:
            self.model = model[:NAME_CHARACTERS]
        if usage is not None:
            if usage.__class__ is not Usage:
                usage = parse_usage(usage)
            self.start_usage = usage
            state = self._machine.state
            if state is MESSAGE or state is TEXT or state is THINKING:
                self._pen.message_usage(usage)

    def over(
        self,
        usage: Usage | None = None,
        stop_reason: str | None = None,
        cost: float = 0.0,
        aborted: bool = False,
        adds: bool = True,
    ) -> None:
        """The reply is over (`message_end`); `usage` and `cost` are of this reply only and add up.

        `adds`: False where the vendor's last numbers are those of the turn, which it says at the
        end (`spent`). `aborted`: it did not end by itself, so it has no stop reason (contract 6.4).
        """
        machine = self._machine
        self.aborted = aborted
        if usage:
            if usage.__class__ is not Usage:
                usage = parse_usage(usage)
            # else its last line is said, and the next reply has numbers of its own
            if machine.state is not READY:
                self.end_usage = usage
            if adds:
                self.count(usage)
        if cost:
            self.cost += parse_dollars(cost)
        if stop_reason:
            self.stop_reason = stop_reason
        if machine.state is not NEW:
            machine.move_to(READY)
        if self.said.size and not self._repeats:
            self.said.forget()

    def count(self, usage: Usage) -> None:
        """Add the usage of one reply to its model's (contract 5.3)."""
        if usage.__class__ is not Usage:
            usage = parse_usage(usage)
        self._pen.used(usage)
        self.last_usage = usage
        counted = self.usage.get(self.model)
        if counted is None:
            counted = get_model_usage(self.usage, self.model)
        counted["input_tokens"] += usage["input_tokens"]
        counted["cache_creation_input_tokens"] += usage["cache_creation_input_tokens"]
        counted["cache_read_input_tokens"] += usage["cache_read_input_tokens"]
        counted["output_tokens"] += usage["output_tokens"]


class SaidBlocks:
    """What the blocks of the open reply said: a vendor that sends the whole of a block again says
    only what is new.

    `shorten` makes of a long text what an answer can hold. Beyond a limit it is known how much was
    said, not what. `texts` is empty when there is nothing to clear.
    """

    def __init__(self, account: Diagnostics, shorten: Callable[[str], str]) -> None:
        self._account = account
        self._shorten = shorten
        self.texts: dict[Block, list[str]] = {}
        # UTF-16 units, and the text as far as an answer can hold it
        self._told: dict[Block, tuple[int, str]] = {}
        self._size = 0

    def add(self, kind: TurnState, key: object, text: str) -> None:
        self.texts.setdefault((kind, key), []).append(text)
        self._size += len(text) + PIECE_CHARACTERS
        if self._size > SPOKEN_CHARACTERS:
            self._tell()
        if len(self.texts) > SPOKEN_BLOCKS:
            self._account.record("block_forgotten")
            self.drop(*next(iter(self.texts)))

    def before(self, kind: TurnState, key: object) -> str:
        """What a block said, as far as an answer can hold it."""
        texts = self.texts.get((kind, key))
        if texts is None:
            return ""
        _, told = self._told.get((kind, key), (0, ""))
        return told + "".join(texts)

    def compare(self, kind: TurnState, key: object, full: str) -> tuple[str, str]:
        """What is remembered of a block, and what of `full` has to be compared with it."""
        units, _ = self._told.get((kind, key), (0, ""))
        if units:
            full = full.encode("utf-16-le", "surrogatepass")[2 * units :].decode(
                "utf-16-le", "surrogatepass"
            )
        return "".join(self.texts.get((kind, key), ())), full

    def drop(self, kind: TurnState, key: object) -> None:
        self.texts.pop((kind, key), None)
        self._told.pop((kind, key), None)

    def clear(self) -> None:
        """Forget all of them: another reply begins."""
        self.texts.clear()
        self._told.clear()
        self._size = 0

    def copy(self) -> dict[Block, list[str]]:
        """What is remembered word by word, for `restore`."""
        return {block: list(texts) for block, texts in self.texts.items()}

    def restore(self, copied: dict[Block, list[str]]) -> None:
        """Remember what was copied, and nothing else."""
        self.clear()
        for (kind, key), texts in copied.items():
            for text in texts:
                self.add(kind, key, text)

    def _tell(self) -> None:
        for block, texts in self.texts.items():
            text = "".join(texts)
            units, told = self._told.get(block, (0, ""))
            # Joining the two halves of a character changes its length, but not in UTF-16.
            units += len(text.encode("utf-16-le", "surrogatepass")) // 2
            self._told[block] = units, self._shorten(told + text)
            texts.clear()
        self._size = 0


class SaidReply:
    """What the open reply said, by kind: where it is cut and comes again, nothing is said twice.

    `size` is in characters; 0 when there is nothing to forget.
    """

    def __init__(self) -> None:
        self.size = 0
        self.repeatable = True  # all that was said is remembered
        self._text: list[str] = []
        self._thinking: list[str] = []
        # what the cut reply said, and how much of it came again
        self._cut: dict[TurnState, tuple[str, int]] = {}

    def keep(self, kind: TurnState, text: str) -> None:
        """A block was said; too much is not remembered."""
        texts = self._text if kind is TEXT else self._thinking
        texts.append(text)
        self.size += len(text)
        if self.size > SAID_CHARACTERS or len(texts) > SAID_BLOCKS:
            self.forget()
            self.repeatable = False

    def forget(self) -> None:
        """It will not come again."""
        self._text.clear()
        self._thinking.clear()
        self.size = 0

    def cut(self) -> bool:
        """The reply was cut: what it said is compared with what comes. False where it had said
        nothing.
        """
        self._cut = {TEXT: ("".join(self._text), 0), THINKING: ("".join(self._thinking), 0)}
        return any(text for text, _ in self._cut.values())

    def cut_again(self) -> bool:
        """The reply was cut while it was repeated."""
        self._cut = {kind: (text, 0) for kind, (text, _) in self._cut.items()}
        return any(text for text, _ in self._cut.values())

    def expected(self, kind: TurnState) -> tuple[str, int]:
        """What the cut reply said, and how many of its characters came again."""
        return self._cut.get(kind, ("", 0))

    def repeated(self, kind: TurnState, position: int) -> None:
        """So much of what the cut reply said came again."""
        self._cut[kind] = self.expected(kind)[0], position

    def all_repeated(self) -> dict[TurnState, str]:
        """What came again so far, by kind."""
        return {kind: text[:position] for kind, (text, position) in self._cut.items()}

    def end_of_repeat(self) -> None:
        """What comes now is new."""
        self._cut = {}
