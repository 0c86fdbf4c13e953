"""The hub of a session: the conversation on one side, any number of clients on the other.

Sans-IO. The host tells it what came (`joined`, `heard`, `left`, `said`, `tick`, `replayed`, `close`), carries out what
`take` gives back, in its order, and only then writes what `outgoing` gives for each client of `ready`: so nothing is
told to anybody that is not in the log.

    hub = Hub(facts, generation=2, number=log.last, mint=fresh_uuid, wall=milliseconds, clock=time.monotonic)
    hub.open()                                  # asks the conversation for its `initialize`
    hub.joined(1); hub.heard(1, b'{"kind":"hello",…}')
    for command in hub.take(): …                # Append, Tell, Read, Drop, Changed, End
    for client in hub.ready(): socket.send(hub.outgoing(client))
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import orjson

from shim.core.bridge.commands import Append, Command, Drop, End, Read, Tell
from shim.core.bridge.frames import (
    KNOWS,
    PROTOCOL,
    FrameError,
    Hello,
    frame,
    identity,
    line_frame,
    partial_frame,
    read_frame,
    read_hello,
)
from shim.core.bridge.log import SAID, Entry, Record
from shim.core.reading.json_text import dump
from shim.core.reading.lines import INBOUND_BYTES, LineSplitter

BATCH_LINES = 256  # that are read from the log at once for a client
OUTGOING_BYTES = 256 * 1024  # that are given for one write to a client
CONTROL = ("control_request", "control_response", "control_cancel_request", "keep_alive")


class Session(NamedTuple):
    """What a client is told of the session, and what holds for it.

    session           its UUID; `id` is how it begins
    bypass            it began with bypassPermissions, so that this mode may be chosen
    answers           who may answer questions: "any" who may drive, or the "owner", who drives or drove last
    question_seconds  a question that waits for longer is denied
    frame_bytes       no frame of a client is longer
    """

    session: str
    vendor: str = ""
    name: str = ""
    cwd: str = ""
    model: str | None = None
    mode: str = "default"
    pid: int = 0
    version: str = ""
    bypass: bool = False
    answers: str = "any"
    question_seconds: float = float("inf")
    frame_bytes: int = INBOUND_BYTES


class Hub:
    """`generation` is this life of the host, `number` that of the last line in the log.

    `mint` gives a fresh UUID, `wall` milliseconds since 1970, `clock` seconds that never go back. `known` are the ids
    of messages that former lives have taken.
    """

    def __init__(
        self,
        session: Session,
        *,
        generation: int,
        number: int,
        mint: Callable[[], str],
        wall: Callable[[], int],
        clock: Callable[[], float],
        known: Iterable[str] = (),
    ) -> None:
        self._session = session
        self._generation = generation
        self._number = number
        self._mint = mint
        self._wall = wall
        self._lines = LineSplitter(INBOUND_BYTES)
        self._commands: list[Command] = []
        self._clients: dict[int, tuple[Hello | None, list[bytes]]] = {}
        self._initialize: Any = None
        self._init: Any = None

    # -- what the host tells ------------------------------------------------------------------------------------------

    def open(self) -> None:
        """The conversation can hear us: it is asked for its `initialize`."""
        request = {"type": "control_request", "request_id": "bridge", "request": {"subtype": "initialize"}}
        self._commands.append(Tell(dump(request) + b"\n"))

    def joined(self, client: int) -> None:
        """Somebody has connected. `client` is a number of the host's that never comes again."""
        self._clients[client] = (None, [])

    def heard(self, client: int, raw: bytes) -> None:
        """A line of a client, without its newline."""
        if client not in self._clients:
            return
        try:
            said = read_frame(raw)
            mark = identity(said)
            kind = said["kind"]
            if kind == "hello":
                self._hello(client, read_hello(said))
            elif kind == "message":
                line = {"type": "user", "message": said["message"], "uuid": mark or self._mint()}
                self._commands.append(Tell(dump(line) + b"\n"))
            elif kind == "end":
                self._commands.append(End(""))
        except FrameError as error:
            self._clients[client][1].append(frame("refused", id=None, reason="bad-frame", text=str(error)))

    def left(self, client: int) -> None:
        """A client's connection is closed, by whichever side."""
        self._clients.pop(client, None)

    def said(self, data: bytes) -> None:
        """Bytes of the conversation's stdout: lines of Claude's stream-json."""
        records, frames = list[Record](), list[bytes]()
        for line in self._lines.feed(data):
            event, at = orjson.loads(line), self._wall()
            kind = event.get("type")
            if kind == "control_response" and self._initialize is None:
                self._initialize = event["response"].get("response")
            if kind == "stream_event":
                frames.append(partial_frame(at, line))
            elif kind not in CONTROL:
                self._number += 1
                records.append(Record(SAID, at, line, self._number))
                frames.append(line_frame(self._number, self._generation, at, line))
        if records:
            self._commands.append(Append(records))
        for hello, waiting in self._clients.values():
            if hello is not None:
                waiting += frames

    def replayed(self, client: int, after: int, entries: Sequence[Entry]) -> None:
        """What a `Read` has found; nothing if the log does not have it any more."""
        _, waiting = self._clients[client]
        waiting += [line_frame(*entry) for entry in entries]
        if entries:
            self._commands.append(Read(client, entries[-1].number, BATCH_LINES))
        else:
            waiting.append(frame("synced", number=self._number))

    def tick(self) -> None:
        """Time goes by: to be called about once a second."""

    def close(self, reason: str) -> None:
        """The conversation is over: open questions are denied, and everybody is told."""
        for client, (_, waiting) in self._clients.items():
            waiting.append(frame("bye", reason=reason))
            self._commands.append(Drop(client, reason))

    # -- what the host has to do --------------------------------------------------------------------------------------

    def take(self) -> list[Command]:
        """The commands since the last call."""
        taken, self._commands = self._commands, []
        return taken

    def ready(self) -> list[int]:
        """The clients for whom something waits to be written."""
        return [client for client, (_, waiting) in self._clients.items() if waiting]

    def outgoing(self, client: int, most: int = OUTGOING_BYTES) -> bytes:
        """The next frames for a client, about `most` bytes: at least one frame, and never a part of one."""
        _, waiting = self._clients.get(client, (None, []))
        data = b"".join(waiting)
        waiting.clear()
        return data

    @property
    def driver(self) -> str | None:
        """The name of the client that drives."""
        return None

    @property
    def clients(self) -> int:
        """How many have said hello."""
        return sum(hello is not None for hello, _ in self._clients.values())

    @property
    def running(self) -> bool:
        """Whether a turn runs, or a message waits for its turn."""
        return False

    def _hello(self, client: int, hello: Hello) -> None:
        waiting = self._clients[client][1]
        self._clients[client] = (hello, waiting)
        session = self._session
        waiting.append(
            frame(
                "welcome",
                protocol=PROTOCOL,
                client=hello.client,
                session=session.session,
                id=session.session[:8],
                name=session.name,
                vendor=session.vendor,
                cwd=session.cwd,
                model=session.model,
                mode=session.mode,
                pid=session.pid,
                version=session.version,
                generation=self._generation,
                number=self._number,
                state={},
                driver=None,
                questions=[],
                initialize=self._initialize,
                init=self._init,
                knows=KNOWS,
            )
        )
        after = hello.after.number if hello.after is not None else 0
        self._commands.append(Read(client, after, BATCH_LINES))
