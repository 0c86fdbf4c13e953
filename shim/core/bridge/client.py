"""One client of a hub: what waits to be written to it, how far it has come, and what it may do."""

from collections import deque
from typing import NamedTuple

from shim.core.bridge.frames import Hello, RefusedError, frame

QUEUE_LINES = 256  # that wait for a client; one who is further behind goes on from the log
QUEUE_BYTES = 2 * 1024 * 1024
# to frames of its own, which stand in no log; a client that does not read so many is a flood
REPLIES = 1024
REPLY_BYTES = 4 * 1024 * 1024


class Item(NamedTuple):
    """Frames that are written as one.

    lines     how many lines they have; 0 for other frames
    first     the number of their first whole line, 0 for none
    question  the id of the question that they ask (`asks`) or settle
    reply     they are for this client alone, and are never left out
    mark      they are `synced` with this number
    """

    data: bytes
    lines: int = 0
    first: int = 0
    question: str = ""
    asks: bool = False
    reply: bool = False
    mark: int | None = None


class Client:
    """`cursor` is the number of the last line that was queued, `mark` that of the last one before
    it came.

    `live`: it is told what is said as it is said; otherwise it reads the log. `reading` is the
    number behind which a read was asked for. `told` are the questions that it believes to be open;
    `level`: they are. `deaf`: it answers none. `muted`: it came in the middle of a block whose
    beginning it cannot be told. `stale`: the state, or who drives, changed since it was told.
    """

    __slots__ = (
        "_bytes", "_lines", "_replies", "_reply_bytes", "bad", "cursor", "deaf", "dropped", "hello", "level", "live",
        "mark", "muted", "name", "number", "queue", "reading", "since", "stale", "told",
    )  # fmt: skip

    def __init__(self, number: int, since: float) -> None:
        self.number = number
        self.since = since  # when it connected, on the clock that never goes back
        self.hello: Hello | None = None
        self.name = ""
        self.live = self.level = self.muted = self.stale = self.dropped = self.deaf = False
        self.cursor = 0
        self.mark: int | None = None
        self.reading: int | None = None
        self.told: set[str] = set()
        self.bad = 0  # frames that could not be read
        self.queue: deque[Item] = deque()
        self._lines = self._bytes = self._replies = self._reply_bytes = 0

    @property
    def drives(self) -> bool:
        """Whether it may drive."""
        return self.hello is not None and self.hello.drives

    @property
    def said(self) -> str:
        """What it calls itself; `name` is that of no other client."""
        return "" if self.hello is None else self.hello.client

    def knows(self, kind: str) -> bool:
        """Whether it understands an optional kind."""
        return self.hello is not None and kind in self.hello.knows

    @property
    def full(self) -> bool:
        """Whether as much waits for it as may. What was said at once is never cut."""
        return self._lines >= QUEUE_LINES or self._bytes >= QUEUE_BYTES

    @property
    def flooded(self) -> bool:
        """Whether it asks and does not read the answers."""
        return self._replies > REPLIES or self._reply_bytes > REPLY_BYTES

    @property
    def held(self) -> int:
        """The bytes that wait for it."""
        return self._bytes + self._reply_bytes

    def push(self, item: Item) -> None:
        """Something to be written behind all that waits."""
        self.queue.append(item)
        self._count(item, 1)

    def _count(self, item: Item, sign: int) -> None:
        if item.reply:
            self._replies += sign
            self._reply_bytes += sign * len(item.data)
        else:
            self._lines += sign * (item.lines or 1)
            self._bytes += sign * len(item.data)

    def ask(self, question: str, data: bytes) -> None:
        """A question that is open."""
        self.told.add(question)
        self.push(Item(data, question=question, asks=True))

    def settle(self, question: str, data: bytes) -> None:
        """A question that it believes to be open is settled."""
        self.told.discard(question)
        self.push(Item(data, question=question))

    def fall_behind(self, last: int) -> None:
        """Leave out what waits: it goes on from the log, which ends with number `last`."""
        left_out = [item for item in self.queue if not item.reply]
        for item in reversed(left_out):
            if item.asks:
                self.told.discard(item.question)
            elif item.question:
                self.told.add(item.question)
            elif item.mark is not None:
                self.mark = item.mark
        lost = next((item.first for item in left_out if item.first), 0)
        self.queue = deque(item for item in self.queue if item.reply)
        self._lines = self._bytes = 0
        self.cursor = lost - 1 if lost else self.cursor
        self.live = self.level = self.muted = False
        self.stale, self.reading = True, None
        self.push(Item(frame("gap", **{"from": self.cursor + 1, "to": last, "reason": "slow"})))

    def take(self, most: int) -> bytes:
        """The next frames, about `most` bytes; at least one."""
        queue = self.queue
        if len(queue) == 1:
            item = queue.popleft()
            self._count(item, -1)
            return item.data
        parts, size = list[bytes](), 0
        while queue and size < most:
            item = queue.popleft()
            self._count(item, -1)
            size += len(item.data)
            parts.append(item.data)
        return b"".join(parts)


class Roles:
    """Who may do what: one client drives, the others watch.

    `driver` is the client that drives. `owner`: only who drives, or drove last, may answer
    questions.
    """

    def __init__(self, *, owner: bool) -> None:
        self.driver: Client | None = None
        self._owner = owner
        self._last: Client | None = None

    @property
    def name(self) -> str | None:
        """The name of the client that drives."""
        return None if self.driver is None else self.driver.name

    def may_drive(self, client: Client) -> None:
        """RefusedError for a client that only watches."""
        if not client.drives:
            raise RefusedError(
                "watch-only", 'this client said hello with the role "watch"; connect with "drive"'
            )

    def drives(self, client: Client) -> None:
        """RefusedError for who may not drive now: a watcher, or one beside the driver."""
        self.may_drive(client)
        if self.driver is not None and self.driver is not client:
            raise RefusedError(
                "not-driver", f"{self.driver.name} drives this session; `take` drives instead of it"
            )

    def answers(self, client: Client) -> None:
        """RefusedError for who may not answer a question."""
        self.may_drive(client)
        if self._owner and client is not (self._last if self.driver is None else self.driver):
            raise RefusedError(
                "not-owner",
                "only who drives this session answers here (bridge_answers); `take` drives",
            )

    def may_answer(self, client: Client) -> bool:
        """Whether it may answer a question, and can."""
        try:
            self.answers(client)
        except RefusedError:
            return False
        return not client.deaf

    def give(self, client: Client | None) -> bool:
        """Another client drives, or nobody; whether that is a change."""
        if client is self.driver:
            return False
        self._last = client or self.driver
        self.driver = client
        return True
