"""The clients of a hub: what is said to all of them, at each one's own pace.

A client reads the log until it has come to its end; from then on it is told what is said as it is
said. One that reads too slowly goes back to the log, and is told so.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from shim.core.bridge.client import Client, Item
from shim.core.bridge.commands import Command, Drop, Read
from shim.core.bridge.frames import FULL, Cursor, Hello, frame, line_frame
from shim.core.bridge.log import Entry
from shim.core.bridge.open_block import OpenBlock
from shim.core.bridge.questions import Outcome, Question, Questions

BATCH_LINES = 256  # that are read from the log at once for a client
BATCH_BYTES = 512 * 1024
# of the last lines, kept for those who fall behind a little: many of them cost no reading
RECENT_BYTES = 1024 * 1024
CLIENTS = 256  # at once; more are no persons
HELLO_SECONDS = 10.0  # that a client has for its first frame


class Spoken(NamedTuple):
    """The frame of a line: its number (0 for a partial one), and whether it ends a block."""

    data: bytes
    number: int = 0
    ends_block: bool = False


class Audience:
    """`number` is that of the last line in the log. `facts` gives the frames of what is true now:
    state and driver.
    """

    def __init__(
        self,
        commands: list[Command],
        questions: Questions,
        generation: int,
        number: int,
        facts: Callable[[], bytes],
    ) -> None:
        self.clients: dict[int, Client] = {}
        self.block = OpenBlock()
        self.generation = generation
        self.number = number
        self._inherited = number  # number of the last line of the former generations
        self._commands = commands
        self._questions = questions
        self._facts = facts
        self._ready: dict[int, None] = {}
        self._recent = deque[Spoken]()  # whole lines
        self._recent_bytes = 0

    def __iter__(self) -> Iterator[Client]:
        """Those who have said hello."""
        return (
            client
            for client in self.clients.values()
            if client.hello is not None and not client.dropped
        )

    # -- coming and going --------------------------------------------------------------------------

    def join(self, number: int, now: float) -> Client:
        client = self.clients[number] = Client(number, now)
        if len(self.clients) > CLIENTS:
            self.drop(client, f"{CLIENTS}{FULL}")
        return client

    def admit(self, client: Client, hello: Hello) -> None:
        """A client has said hello."""
        client.name = self._name(hello.client)
        client.hello = hello

    def begin(self, client: Client) -> None:
        """A client was welcomed: it is told what it has not seen."""
        assert client.hello is not None
        client.mark, after = self.number, client.hello.after
        if not client.hello.replay:
            client.cursor = self.number
        elif after is not None and self._is_known(after):
            client.cursor = after.number
        elif after is not None:
            reason = "unknown" if after.generation == self.generation else "generation"
            self.say(client, frame("gap", **{"from": 1, "to": self.number, "reason": reason}))
        self.read_on(client)

    def _is_known(self, cursor: Cursor) -> bool:
        """Return whether the log contains the line of a cursor.

        The log may have lost the last lines of a former generation in a crash of the machine. This
        generation has used the numbers of these lines again.
        """
        if cursor.generation == self.generation:
            return 0 <= cursor.number <= self.number
        return 0 < cursor.generation < self.generation and 0 <= cursor.number <= self._inherited

    def _name(self, said: str) -> str:
        """A name that nobody has, and that nobody had who settled a question: a client knows its
        own answer by it.
        """
        taken = {client.name for client in self.clients.values()} | self._questions.settlers
        count = next(
            count for count in range(1, len(taken) + 2) if self._numbered(said, count) not in taken
        )
        return self._numbered(said, count)

    @staticmethod
    def _numbered(said: str, count: int) -> str:
        return said if count == 1 else f"{said}-{count}"

    def drop(self, client: Client, reason: str) -> None:
        """Nothing more is told to a client or heard of it."""
        if not client.dropped:
            client.dropped, client.live = True, False
            client.push(Item(frame("bye", reason=reason), reply=True))
            self._ready[client.number] = None
            self._commands.append(Drop(client.number, reason))

    def silent(self, now: float) -> None:
        """Drop those who have not said hello in time."""
        for client in list(self.clients.values()):
            if client.hello is None and now - client.since >= HELLO_SECONDS:
                self.drop(client, f"no hello came in {HELLO_SECONDS:.0f} s")

    def leave(self, number: int) -> Client | None:
        self._ready.pop(number, None)
        return self.clients.pop(number, None)

    # -- what is said ------------------------------------------------------------------------------

    def say(self, client: Client, data: bytes) -> None:
        """An answer to a client's own frame."""
        if client.dropped or not data:
            return
        client.push(Item(data, reply=True))
        self._ready[client.number] = None
        if client.flooded:
            self.drop(client, "it does not read what it is answered")

    def lines(self, spoken: Sequence[Spoken]) -> None:
        """Lines of the conversation, the numbered ones in the log already; `number` counts them."""
        if not spoken:
            return
        whole = [each for each in spoken if each.number]
        self._keep(whole)
        both, numbered = _joined(spoken), _joined(whole)
        last = whole[-1].number if whole else 0
        for client in self.clients.values():
            if not client.live:
                continue
            item = both if client.hello is None or client.hello.partial else numbered
            if client.muted:
                item = self._unmuted(client, spoken)
            if item.lines:
                if client.full:
                    client.fall_behind(self.number)
                else:
                    client.push(item)
                    client.cursor = last or client.cursor
                self._ready[client.number] = None

    def _keep(self, whole: Sequence[Spoken]) -> None:
        """Keep the last lines."""
        self._recent.extend(whole)
        self._recent_bytes += sum(len(each.data) for each in whole)
        while self._recent_bytes > RECENT_BYTES:
            self._recent_bytes -= len(self._recent.popleft().data)

    def _unmuted(self, client: Client, spoken: Sequence[Spoken]) -> Item:
        """Lines without the rest of a block whose beginning a client was not told."""
        told = list[Spoken]()
        for each in spoken:
            if each.number or not client.muted:
                told.append(each)
            elif each.ends_block:
                client.muted = False
        return _joined(told)

    def asked(self, question: Question) -> None:
        """Put a question to everybody."""
        data = question.frame
        for client in self.clients.values():
            if client.live and client.level:
                if client.full:
                    client.fall_behind(self.number)
                else:
                    client.ask(question.question, data)
                self._ready[client.number] = None

    def settled(self, outcome: Outcome) -> None:
        """Tell everybody who believes a question to be open."""
        data = outcome.frame
        for client in self.clients.values():
            if client.live and outcome.question in client.told:
                if client.full:
                    client.fall_behind(self.number)
                else:
                    client.settle(outcome.question, data)
                self._ready[client.number] = None

    def changed(self) -> None:
        """The state, or who drives, is another one."""
        for client in self:
            client.stale = True
            self._ready[client.number] = None

    # -- what is written ---------------------------------------------------------------------------

    def ready(self) -> list[int]:
        return list(self._ready)

    def outgoing(self, number: int, most: int) -> bytes:
        client = self.clients.get(number)
        if client is None:
            return b""
        data = client.take(most)
        if client.hello is not None and not client.dropped and not client.full:
            if not client.live and client.reading is None:
                self.read_on(client)
            elif client.live and not client.level:
                self._level(client)
            if client.stale and not client.queue:
                client.stale = False
                data += self._facts()
        if not client.queue:
            self._ready.pop(number, None)
        return data

    def read_on(self, client: Client) -> None:
        """A client that is not in sync goes on with the log, or has come to its end."""
        if client.cursor >= self.number:
            self._in_sync(client)
        elif self._recent and client.cursor + 1 >= self._recent[0].number:
            begin, size, batch = client.cursor + 1 - self._recent[0].number, 0, list[Spoken]()
            for line in islice(self._recent, begin, begin + BATCH_LINES):
                batch.append(line)
                size += len(line.data)
                if size >= BATCH_BYTES:
                    break
            self._retell(client, batch)
        else:
            client.reading = client.cursor
            self._commands.append(Read(client.number, client.cursor, BATCH_LINES, BATCH_BYTES))

    def replayed(self, number: int, after: int, entries: Sequence[Entry]) -> None:
        """What a read behind `after` has found."""
        client = self.clients.get(number)
        if client is None or client.reading != after or client.dropped:
            return
        client.reading = None
        self._retell(client, [Spoken(line_frame(*entry), entry.number) for entry in entries])

    def _retell(self, client: Client, lines: Sequence[Spoken]) -> None:
        """Tell a client lines of the log; without any, all that it has not seen is lost."""
        said, first = list[bytes](), client.cursor + 1
        for line in lines:
            if line.number <= client.cursor or line.number > self.number:
                continue
            if line.number > client.cursor + 1:
                said.append(_lost(client.cursor + 1, line.number - 1))
            said.append(line.data)
            client.cursor = line.number
            if line.number == client.mark:
                client.push(Item(b"".join(said), len(said), first))
                said, first = [], line.number + 1
                self._synced(client)
        if not lines:
            said.append(_lost(client.cursor + 1, self.number))
            client.cursor = self.number
        if said:
            client.push(Item(b"".join(said), len(said), first))
        self._ready[client.number] = None
        if client.cursor >= self.number:
            self._in_sync(client)
        elif not client.full:
            self.read_on(client)

    def _in_sync(self, client: Client) -> None:
        client.live = True
        self._synced(client)
        if client.hello is not None and client.hello.partial:
            client.muted = self.block.untold
            if block := self.block.frames:
                client.push(Item(block, 1))
        self._level(client)

    def _synced(self, client: Client) -> None:
        if client.mark is not None:
            client.push(Item(frame("synced", number=client.mark), mark=client.mark))
            client.mark = None

    def _level(self, client: Client) -> None:
        """Tell a client what it does not know of the questions, as far as there is room."""
        missed = [(question, False) for question in client.told - self._questions.open.keys()]
        missed += [
            (question, True) for question in self._questions.open if question not in client.told
        ]
        for question, is_open in missed:
            if client.full:
                break
            if is_open:
                client.ask(question, self._questions.open[question].frame)
            else:
                outcome = self._questions.outcome(question) or Outcome(question, None, "cancelled")
                client.settle(question, outcome.frame)
        else:
            client.level = True
        self._ready[client.number] = None


def _joined(spoken: Sequence[Spoken]) -> Item:
    first = next((each.number for each in spoken if each.number), 0)
    return Item(b"".join([each.data for each in spoken]), len(spoken), first)


def _lost(first: int, last: int) -> bytes:
    return frame("gap", **{"from": first, "to": last, "reason": "lost"})
