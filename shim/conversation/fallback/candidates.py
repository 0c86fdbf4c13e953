"""The vendors that may answer in each other's place: which one is at it, and which ones are left."""

from collections.abc import Callable, Sequence

from shim.conversation.drivers.launcher import Launcher
from shim.core.errors import Tried
from shim.core.reading.typed import NamedTuple


class Candidate(NamedTuple):
    """A vendor of the list: what starts it, and whether one child of it serves the conversation."""

    launcher: Launcher
    listens: bool


class Candidates:
    """The vendors of a list, in order; the first of `names` is at it. `skipped` are those before, that cannot start.

    `prepare` gives the candidate of a name, and from then on the frontend's questions are answered for it.
    """

    def __init__(self, names: Sequence[str], skipped: Sequence[Tried], prepare: Callable[[str], Candidate]) -> None:
        self.skipped = tuple(skipped)
        self._names = tuple(names)
        self._prepare = prepare
        self._at = 0

    @property
    def left(self) -> bool:
        """Whether there is another one."""
        return self._at + 1 < len(self._names)

    @property
    def moved(self) -> bool:
        """Whether it is not the first that is at it."""
        return self._at > 0

    def first(self) -> Candidate:
        """The one that the list begins with, again."""
        self._at = 0
        return self._prepare(self._names[0])

    def next(self) -> Candidate:
        """The next one. ShimError for a mistake in its settings."""
        self._at += 1
        return self._prepare(self._names[self._at])
