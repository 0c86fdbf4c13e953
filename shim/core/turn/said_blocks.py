"""What the blocks of the open reply said: a vendor that sends the whole of a block again says only what is new.

Beyond a limit it is known how much was said, not what.
"""

from collections.abc import Callable

from shim.core.reading.account import Account

# More than any model says in one reply; a vendor that streams without end is not remembered without end.
SPOKEN_CHARACTERS = 512 * 1024
PIECE_CHARACTERS = 64  # a piece costs so much besides its characters
SPOKEN_BLOCKS = 1000

Block = tuple[str, object]  # text or thinking, and the vendor's key


class Spoken:
    """The blocks of one reply, by kind and key. `shorten` makes of a long text what an answer can hold.

    `blocks` may be read: it is empty when there is nothing to clear.
    """

    __slots__ = ("_account", "_shorten", "_size", "_told", "blocks")

    def __init__(self, account: Account, shorten: Callable[[str], str]) -> None:
        self._account = account
        self._shorten = shorten
        self.blocks: dict[Block, list[str]] = {}
        self._told: dict[Block, tuple[int, str]] = {}
        self._size = 0

    def add(self, kind: str, key: object, text: str) -> None:
        """A block said `text`."""
        self.blocks.setdefault((kind, key), []).append(text)
        self._size += len(text) + PIECE_CHARACTERS
        if self._size > SPOKEN_CHARACTERS:
            self._tell()
        if len(self.blocks) > SPOKEN_BLOCKS:
            self._account.repaired("block_forgotten")
            self.drop(*next(iter(self.blocks)))

    def before(self, kind: str, key: object) -> str:
        """What a block said, as far as an answer can hold it."""
        texts = self.blocks.get((kind, key))
        if texts is None:
            return ""
        _, told = self._told.get((kind, key), (0, ""))
        return told + "".join(texts)

    def compare(self, kind: str, key: object, full: str) -> tuple[str, str]:
        """What is remembered of a block, and what of `full` has to be compared with it."""
        units, _ = self._told.get((kind, key), (0, ""))
        if units:
            full = full.encode("utf-16-le", "surrogatepass")[2 * units :].decode("utf-16-le", "surrogatepass")
        return "".join(self.blocks.get((kind, key), ())), full

    def drop(self, kind: str, key: object) -> None:
        """Forget one block."""
        self.blocks.pop((kind, key), None)
        self._told.pop((kind, key), None)

    def clear(self) -> None:
        """Forget all of them: another reply begins."""
        self.blocks.clear()
        self._told.clear()
        self._size = 0

    def copy(self) -> "Spoken":
        """The same, of its own."""
        other = Spoken(self._account, self._shorten)
        for (kind, key), texts in self.blocks.items():
            for text in texts:
                other.add(kind, key, text)
        return other

    def _tell(self) -> None:
        for block, texts in self.blocks.items():
            text = "".join(texts)
            units, told = self._told.get(block, (0, ""))
            # Joining the two halves of a character changes its length, but not in UTF-16.
            units += len(text.encode("utf-16-le", "surrogatepass")) // 2
            self._told[block] = units, self._shorten(told + text)
            texts.clear()
        self._size = 0
