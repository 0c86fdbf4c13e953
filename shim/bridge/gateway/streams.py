"""Server-sent events: a session's lines as they are, and its steps as the page draws them.

One stream is one connection to the host; it holds no more than one batch of frames. A browser that
comes back says the id of the last event that it saw, and goes on behind it.
"""

import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import anyio
import orjson
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from shim.bridge.gateway.drawing import Drawing, clean, mode_of, question_of, step_of
from shim.bridge.gateway.gate import Receive, Scope, Send
from shim.bridge.gateway.hosts import Feed, Hosts
from shim.core.bridge.frames import Cursor
from shim.core.errors import ShimError
from shim.story.export.sheets import Sheet

# from one comment to the next: proxies and phones give up on silent connections
BEAT_SECONDS = 15.0
# between two checks of a silent stream's token: a token that was replaced ends the stream
TOKEN_CHECK_SECONDS = 1.0
RETRY_MS = 1000  # before a browser comes back by itself
WAITING = 64  # frames between the host and the browser; more wait in the host, which bounds them
CHUNK_BYTES = 64 * 1024  # of events that are written at once
NOT_DRAWN = frozenset(("initialize", "init"))  # of a welcome: pages of flags and tools
ID = re.compile(r"(\d{1,15})-(\d{1,15})\Z")


def cursor_of(text: str) -> Cursor | None:
    """The cursor that an event's id says: GENERATION-NUMBER. None for anything else."""
    found = ID.match(text)
    return Cursor(int(found[1]), int(found[2])) if found else None


def event(kind: str, data: bytes, cursor: Cursor | None = None) -> bytes:
    """One event. A line break inside of JSON is a blank, so that it may become one between two
    `data` lines.
    """
    lines = b"\ndata: ".join(re.split(rb"\r\n|\r|\n", data))
    at = b"id: %d-%d\n" % cursor if cursor is not None else b""
    return b"event: %s\n%sdata: %s\n\n" % (kind.encode(), at, lines)


class Frame(NamedTuple):
    """A frame of a host: its kind, its keys; of a line, `raw` has its bytes."""

    kind: str
    said: Mapping[str, Any]

    @property
    def cursor(self) -> Cursor | None:
        """Where a numbered line stands."""
        number = self.said.get("number")
        return (
            Cursor(int(self.said["generation"]), number) if self.kind == "line" and number else None
        )

    @property
    def line(self) -> bytes:
        """Claude's line."""
        return bytes(self.said.get("raw") or b"")

    @property
    def facts(self) -> dict[str, Any]:
        """Its other keys."""
        return {key: value for key, value in self.said.items() if key != "kind"}


class Teller:
    """Makes events of frames. The base tells every frame as it is: `GET /sessions/ID/events`."""

    after: Cursor | None = None  # what the host is asked for

    def __init__(self, cursor: Cursor | None) -> None:
        self.after = cursor
        # position of the last numbered line that the host has sent
        self._position: Cursor | None = None

    def tell(self, frame: Frame) -> Iterator[bytes]:
        """The events of a frame."""
        self._follow_position(frame)
        if frame.kind == "bye":
            yield self._encode_bye(frame)
        elif frame.kind != "line":
            yield event(frame.kind, orjson.dumps(frame.facts))
        elif (cursor := frame.cursor) is not None:
            yield event("line", frame.line, cursor)
        else:
            yield event("partial", frame.line)

    def _follow_position(self, frame: Frame) -> None:
        """Remember the position in the log up to which this stream has received lines."""
        if frame.kind == "welcome":
            self._position = self._find_start(frame)
        elif frame.cursor is not None:
            self._position = frame.cursor

    def _find_start(self, welcome: Frame) -> Cursor:
        """Return the position before the first line that the host will send."""
        if self.after is not None and self.after.number <= int(welcome.said["number"]):
            return self.after
        return Cursor(int(welcome.said["generation"]), 0)

    def _encode_bye(self, frame: Frame) -> bytes:
        """Return the last event of a stream.

        Its id is the position of the log's last line, even if that line made no event of its own. A
        browser that reconnects with this id gets status 204 if the session has ended, and does not
        reconnect again.
        """
        return event("bye", orjson.dumps(clean(frame.facts)), self._position)


class Drawn(Teller):
    """The steps: `GET /sessions/ID/steps`. The host says the whole log each time, because steps
    grow out of it.

    `cursor` is what the browser has seen; of what is new to it, the last `most` steps are told at
    first. If there are more, it is told to forget what it has: behind that would be a hole.
    """

    def __init__(self, cursor: Cursor | None, most: int) -> None:
        super().__init__(None)
        self._seen = cursor
        self._most = most
        self._cwd = ""  # the session's folder
        self._drawing = Drawing()
        # by number, the last changed one last
        self._history: dict[int, tuple[Sheet, Cursor]] | None = {}
        self._steps = 0  # how many there are: the number of the last one
        self._left_out = False  # whether steps are new that are not told

    def tell(self, frame: Frame) -> Iterator[bytes]:
        """The events of a frame."""
        self._follow_position(frame)
        if frame.kind == "line":
            yield from self._line(frame)
        elif frame.kind == "bye":
            yield self._encode_bye(frame)
        elif frame.kind == "synced":
            yield from self._synced(frame)
        elif frame.kind == "question":
            asked = frame.said.get("request")
            told = question_of(
                str(frame.said.get("question")), asked if isinstance(asked, dict) else {}, self._cwd
            )
            times = {key: frame.said[key] for key in ("at", "until") if key in frame.said}
            yield event("question", orjson.dumps({**told, **times}))
        elif frame.kind == "gap":
            yield from self._gap(frame)
        elif frame.kind == "welcome":
            yield from self._welcome(frame)
        else:
            # an id is said back
            exact = {"question": frame.said["question"]} if "question" in frame.said else {}
            yield event(frame.kind, orjson.dumps({**clean(frame.facts), **exact}))

    def _gap(self, frame: Frame) -> Iterator[bytes]:
        # parts of a stream are left out, and no numbered line
        slow = frame.said.get("reason") == "slow"
        if self._history is None and slow:
            yield event("gap", orjson.dumps(frame.facts))
        elif self._history is not None and not slow and self._seen is not None:
            # without the lost lines, steps have other numbers
            self._seen, self._left_out = None, self._steps > 0
            yield event("gap", orjson.dumps(frame.facts))

    def _welcome(self, frame: Frame) -> Iterator[bytes]:
        said, seen = frame.said, self._seen
        self._cwd = str(said.get("cwd") or "")
        if seen is not None and (
            seen.generation > said["generation"] or seen.number > said["number"]
        ):
            self._seen = None
            yield event(
                "gap",
                orjson.dumps({"from": seen.number, "to": said["number"], "reason": "unknown"}),
            )
        told = {key: value for key, value in frame.facts.items() if key not in NOT_DRAWN}
        asked = frame.facts.get("initialize")
        told["models"] = asked.get("models") or [] if isinstance(asked, dict) else []
        yield event(
            "welcome", orjson.dumps({**clean(told), "questions": said.get("questions", [])})
        )

    def _line(self, frame: Frame) -> Iterator[bytes]:
        line, cursor = frame.line, frame.cursor
        if cursor is None:
            live = self._drawing.partial(line) if self._history is None else None
            if live is not None:
                yield event("live", orjson.dumps(live))
            return
        steps = self._drawing.line(int(frame.said.get("at") or 0), line)
        if self._history is not None:
            self._keep(steps, cursor)
            return
        if mode := mode_of(line):
            yield event("mode", orjson.dumps({"mode": mode}))
        # the id stands at the last step of a line: all before it were said
        for place, step in enumerate(steps, 1):
            yield event(
                "step", orjson.dumps(step_of(step)), cursor if place == len(steps) else None
            )
        if any(step.kind == "result" for step in steps):
            yield event("totals", orjson.dumps(self._drawing.totals()))

    def _keep(self, steps: list[Sheet], cursor: Cursor) -> None:
        assert self._history is not None
        for step in steps:
            self._steps = max(self._steps, step.number)
            self._history.pop(step.number, None)
            if self._seen is None or cursor.number > self._seen.number:
                self._history[step.number] = step, cursor
        while len(self._history) > self._most:
            del self._history[next(iter(self._history))]
            self._left_out = True

    def _synced(self, frame: Frame) -> Iterator[bytes]:
        history, self._history = self._history or {}, None
        if self._seen is not None and self._left_out:
            gap = {"from": self._seen.number + 1, "to": frame.said["number"], "reason": "long"}
            yield event("gap", orjson.dumps(gap))
        left_out = self._steps - len(history) if self._left_out else 0
        about = {"title": self._drawing.title, "began": self._drawing.began, "left_out": left_out}
        yield event("about", orjson.dumps(about))
        told = list(history.values())
        for place, (step, cursor) in enumerate(told, 1):
            last = place == len(told) or told[place][1] != cursor
            yield event("step", orjson.dumps(step_of(step)), cursor if last else None)
        yield event("totals", orjson.dumps(self._drawing.totals()))
        yield event("synced", orjson.dumps(frame.facts))


class Ended:
    """The answer to who has seen all of a session that has ended: a browser does not come back."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


class EventStream:
    """The response with a stream: an ASGI application for one request.

    `still` says whether the visitor's token is good; it is asked every TOKEN_CHECK_SECONDS and
    before every write. `place` is one among the streams that may be open; Refused where there is
    none.
    """

    def __init__(
        self,
        hosts: Hosts,
        session: str,
        teller: Teller,
        still: Callable[[], bool],
        place: AbstractContextManager[None],
    ) -> None:
        self._hosts = hosts
        self._session = session
        self._teller = teller
        self._still = still
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer until the browser goes, the host goes, the token is replaced, or the server ends."""
        with self._place:
            await self._answer(receive, send)
        await send({"type": "http.response.body", "body": b""})

    async def _answer(self, receive: Receive, send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            # a proxy that compresses waits for the first kilobytes
            (b"cache-control", b"no-store, no-transform"),
            (b"x-accel-buffering", b"no"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send(
            {"type": "http.response.body", "body": b"retry: %d\n\n" % RETRY_MS, "more_body": True}
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_until_gone, receive, tasks)
            await self._write(send, tasks)
            tasks.cancel_scope.cancel()

    async def _write(self, send: Send, tasks: TaskGroup) -> None:
        into, out_of = anyio.create_memory_object_stream[Frame](WAITING)
        with into, out_of:
            tasks.start_soon(self._read, into)
            written = anyio.current_time()
            while True:
                chunk = b""
                with anyio.move_on_after(min(TOKEN_CHECK_SECONDS, BEAT_SECONDS)):
                    try:
                        frame = await out_of.receive()
                    except anyio.EndOfStream:
                        return
                    # a long history takes a second to draw, and others wait for the loop
                    if frame.kind == "synced":
                        chunk = await anyio.to_thread.run_sync(self._told, frame)
                    else:
                        chunk = self._told(frame)
                    chunk += b"".join(self._more(out_of, CHUNK_BYTES - len(chunk)))
                if not self._still():
                    return
                if not chunk and anyio.current_time() - written >= BEAT_SECONDS:
                    chunk = b": still here\n\n"
                if chunk:
                    written = anyio.current_time()
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})

    def _told(self, frame: Frame) -> bytes:
        return b"".join(self._teller.tell(frame))

    def _more(self, frames: MemoryObjectReceiveStream[Frame], room: int) -> Iterator[bytes]:
        """The events of what waits already, about `room` bytes."""
        while room > 0:
            try:
                frame = frames.receive_nowait()
            except (anyio.WouldBlock, anyio.EndOfStream):
                return
            for said in self._teller.tell(frame):
                room -= len(said)
                yield said

    async def _read(self, into: MemoryObjectSendStream[Frame]) -> None:
        with into:
            try:
                async with self._hosts.connect(
                    self._session, drive=False, after=self._teller.after
                ) as feed:
                    async for frame in frames(feed):
                        await into.send(frame)
            except (ShimError, OSError):
                pass  # the host has gone: the browser comes back, and is told how it ended


async def frames(feed: Feed) -> AsyncIterator[Frame]:
    """The frames of a connection."""
    async for said in feed:
        yield Frame(str(said["kind"]), said)


async def _until_gone(receive: Receive, tasks: TaskGroup) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    tasks.cancel_scope.cancel()
