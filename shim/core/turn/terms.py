"""What is agreed before a turn begins, and what outlives it."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from shim.core.claude.policy import Policy
from shim.core.claude.usage import NO_USAGE, Usage
from shim.core.errors import Tried
from shim.core.reading.limits import Keep

Thread = tuple[str | None, Usage]  # a vendor's session, and all that it used, where the vendor counts that
NO_THREAD: Thread = (None, NO_USAGE)
SEEN_IDS = 10_000  # tool ids remembered in a conversation; an id that comes again is a new call


class Conversation:
    """What outlives a turn: one session id, the tool ids used, cost and usage so far.

    `thread` is what the vendor's own session had used when its last turn had ended.
    """

    __slots__ = ("cost", "minted", "seen", "seen_before", "session_id", "thread", "usage", "vendor_session")

    def __init__(self, thread: Thread = NO_THREAD) -> None:
        self.session_id: str | None = None
        self.vendor_session: str | None = None
        self.seen: set[str] = set()
        self.seen_before: set[str] = set()
        self.minted = 1
        self.cost = 0.0
        self.usage: dict[str, Usage] = {}
        self.thread = thread

    def used(self, session: str) -> Usage:
        """What a session of the vendor's had used, if it is the one that is known."""
        return self.thread[1] if self.thread[0] == session else NO_USAGE

    def forget(self) -> None:
        """Forget the older half of the tool ids."""
        self.seen_before, self.seen = self.seen, set()

    def mint(self, identity: str) -> str:
        """Another id for a call whose own was used before; never the same one, whatever is forgotten."""
        while True:
            self.minted += 1
            if not self.knows(minted := f"{identity}~{self.minted}"):
                return minted

    def knows(self, identity: str) -> bool:
        """Whether a tool id was used before."""
        return identity in self.seen or identity in self.seen_before


class Home(Protocol):
    """The folder in which the vendor keeps its own records: `shim.home`, with its bounds."""

    def find(self, folder: str, ending: str) -> str | None:
        """The path in it of a file of `folder` whose name ends so."""

    def tail(self, path: str, start: int = 0) -> tuple[int, bytes]:
        """What a file in it has behind `start`, the end of it at least, and where that begins."""


class Structured(NamedTuple):
    """An answer read by `--json-schema`: its `value`, or the `fault` why it is none."""

    value: dict[str, Any] | None = None
    fault: str = ""


class Terms(NamedTuple):
    """What is agreed before a turn begins.

    `session_id` is the frontend's choice, `fresh_id` is used when neither frontend nor vendor has one.
    `thread` is what the session that goes on had used. `clock` gives milliseconds since the turn began.
    `clean_exits` are the exit codes that do not contradict a vendor's own "done" (vendor pages). `max_turns` is set
    only where the vendor cannot count for itself, `turns_asked` always; `budget` are the dollars that the session may
    cost;
    `retracts` is False for a vendor that never takes a reply back, of which less need be remembered.
    `retries`: a stream that broke off may be asked for again, so what was said is remembered to the end.
    `worded`: the vendor's errors are in Claude's words already.
    `gate` is what stderr says when the vendor's trust gate is closed, `login` how a person logs in with it.
    `home` is what the vendor writes down beside its stream; None where nothing runs here, as in a replay.
    `keep` stores a text that is too large for a line and says where.
    `redact`: no secret is said. `questions`: whether a call's own line, its input as it is, asks the frontend.
    `old_reader`: the frontend ends on a line of a kind that it does not know.
    `replays`: nothing runs, a recording is played.
    `tried` are the vendors that this turn was asked of before, in their order.
    `read` makes a structured answer of a text, where one was asked for that the vendor does not give by itself.
    """

    vendor: str
    fresh_id: str
    session_id: str | None = None
    vendor_version: str | None = None
    model: str | None = None
    cwd: str = ""
    tools: tuple[str, ...] = ()
    mode: str = "default"
    unattended: bool = False
    max_turns: int | None = None
    turns_asked: int | None = None
    budget: float | None = None
    retracts: bool = True
    retries: bool = False
    worded: bool = False
    gate: str = ""
    login: str = ""
    read: Callable[[str], Structured] | None = None
    redact: bool = False
    questions: Callable[[], bool] | None = None
    policy: Policy | None = None
    home: Home | None = None
    keep: Keep | None = None
    old_reader: bool = False
    replays: bool = False
    tried: tuple[Tried, ...] = ()
    thread: Thread = NO_THREAD
    clean_exits: frozenset[int] = frozenset({0})
    clock: Callable[[], int] = lambda: 0
