"""Server-sent events: a session's lines unchanged, and its steps as the page shows them.

Each stream has its own connection to the session's host, and holds at most one batch of frames. A
browser that reconnects sends the id of the last event that it received, and receives all later
events. The first stream of a session's steps renders the complete log in short slices. Later
streams reuse these steps.
"""

import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, suppress
from typing import Any, NamedTuple

import anyio
import orjson
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from shim.bridge.gateway.auth import Receive, Scope, Send
from shim.bridge.gateway.drawings import DrawnStep, SessionDrawing
from shim.bridge.gateway.hosts import LocalBackgroundSessionManager, SessionFrameStream
from shim.bridge.gateway.step_renderer import (
    build_permission_prompt_json,
    escape_control_chars_in_json,
    find_reported_permission_mode,
)
from shim.core.bridge.frames import LogCursor
from shim.core.errors import ShimError
from shim.core.reading.values import as_dict, as_list, get_text

# Comments are sent at this interval, because proxies and phones close silent connections.
HEARTBEAT_INTERVAL_S = 15.0
# A silent stream's token is checked at this interval. A replaced token ends the stream.
TOKEN_CHECK_INTERVAL_S = 1.0
RETRY_DELAY_MS = 1000  # before a browser reconnects automatically
# The maximum number of frames that are queued here for the browser.
# Further frames stay in the host's queue, which has its own limit.
MAX_WAITING_FRAMES = 64
WRITE_CHUNK_BYTES = 64 * 1024  # the maximum size of one write
# The longest time that a stream works before other streams run. About five such slices pass between
# the arrival of an event from the host and its sending to the browser.
MAX_SLICE_S = 0.0003
# The maximum number of new steps that are sent to a page after it reconnects.
# If there are more, the page discards its steps and receives the last ones.
MAX_RECONNECT_STEPS = 200
OMITTED_WELCOME_KEYS = frozenset(("initialize", "init"))  # they contain long lists
CURSOR_PATTERN = re.compile(r"(\d{1,15})-(\d{1,15})\Z")


def parse_log_cursor(text: str) -> LogCursor | None:
    """Parse an event's id, which has the form GENERATION-NUMBER. Return the log cursor, or None if
    the id is not valid.
    """
    match = CURSOR_PATTERN.match(text)
    if match:
        return LogCursor(int(match[1]), int(match[2]))
    return None


def encode_server_sent_event(kind: str, data: bytes, cursor: LogCursor | None = None) -> bytes:
    """Encode a server-sent event.

    A line break in `data` starts another `data` line. JSON has line breaks only outside of strings,
    so the parsed value does not change.
    """
    lines = b"\ndata: ".join(re.split(rb"\r\n|\r|\n", data))
    id_line = b""
    if cursor is not None:
        id_line = b"id: %d-%d\n" % cursor
    return b"event: %s\n%sdata: %s\n\n" % (kind.encode(), id_line, lines)


def encode_json_event(kind: str, value: Any, cursor: LogCursor | None = None) -> bytes:
    """Encode a server-sent event whose data is JSON."""
    return encode_server_sent_event(kind, orjson.dumps(value), cursor)


class HostFrame(NamedTuple):
    """A frame that a host sent. In a `line` frame, `raw` contains the bytes of Claude's line."""

    kind: str
    fields: Mapping[str, Any]

    @property
    def cursor(self) -> LogCursor | None:
        """The log position of a numbered line, or None for other frames."""
        number = self.fields.get("number")
        if self.kind == "line" and number:
            return LogCursor(int(self.fields["generation"]), number)
        return None

    @property
    def line(self) -> bytes:
        """Claude's line of a `line` frame, as bytes."""
        return bytes(self.fields.get("raw", b""))

    @property
    def payload(self) -> dict[str, Any]:
        """The frame's fields without its kind."""
        return {key: value for key, value in self.fields.items() if key != "kind"}


class ServerSentEventEncoder:
    """Encodes frames as server-sent events. This base class serves `GET /sessions/ID/events`, where
    all frames are sent unchanged.
    """

    after: LogCursor | None = None  # the host sends the lines after this position

    def __init__(self, cursor: LogCursor | None) -> None:
        self.after = cursor
        self.opening_lock = anyio.Lock()  # held until the stream is in sync
        # position of the last numbered line that the host has sent
        self._position: LogCursor | None = None

    def start(self) -> LogCursor | None:
        """Return the log position after which the host must send lines."""
        return self.after

    async def prepare(self, frame: HostFrame) -> None:
        """Do the slow or shared work for a frame. Must be called before `encode`."""

    def encode(self, frame: HostFrame) -> Iterator[bytes]:
        """Yield the events for a frame."""
        self._update_position(frame)
        if frame.kind == "bye":
            yield self._encode_bye(frame)
        elif frame.kind != "line":
            yield encode_json_event(frame.kind, frame.payload)
        elif (cursor := frame.cursor) is not None:
            yield encode_server_sent_event("line", frame.line, cursor)
        else:
            yield encode_server_sent_event("partial", frame.line)

    def _update_position(self, frame: HostFrame) -> None:
        """Record the log position of the last line that this stream has received."""
        if frame.kind == "welcome":
            self._position = self._find_start_position(frame)
        elif frame.cursor is not None:
            self._position = frame.cursor

    def _find_start_position(self, welcome: HostFrame) -> LogCursor:
        """Return the log position before the first line that the host will send."""
        if self.after is not None and self.after.number <= int(welcome.fields["number"]):
            return self.after
        return LogCursor(int(welcome.fields["generation"]), 0)

    def _encode_bye(self, frame: HostFrame) -> bytes:
        """Return the last event of a stream.

        The event's id is the position of the log's last line, even if that line produced no event.
        A browser that reconnects with this id gets status 204 if the session has ended, and stops
        reconnecting.
        """
        return encode_json_event("bye", escape_control_chars_in_json(frame.payload), self._position)


class SessionStepEventEncoder(ServerSentEventEncoder):
    """Encodes a session's steps for `GET /sessions/ID/steps`. All readers of the session share the
    rendered steps.

    `cursor` is the last line that the browser has received. The stream starts with the last
    `max_steps` steps that the browser does not have. If there are more, a `gap` event comes first,
    because the steps between the browser's old steps and the new ones are missing.
    """

    def __init__(self, drawing: SessionDrawing, cursor: LogCursor | None, max_steps: int) -> None:
        super().__init__(None)
        self.opening_lock = drawing.opening_lock
        self._drawing = drawing
        self._client_cursor = cursor
        if cursor is None:
            self._max_steps = max_steps
        else:
            self._max_steps = min(max_steps, MAX_RECONNECT_STEPS)
        self._cwd = ""  # the session's folder
        self._log_number = 0  # the log's last line when the host sent its welcome
        self._is_synced = False

    def start(self) -> LogCursor | None:
        """Return the log position up to which the session's steps are rendered."""
        self.after = self._drawing.position
        return self.after

    async def prepare(self, frame: HostFrame) -> None:
        """Render the steps of a line, unless another reader's stream has rendered them."""
        if frame.cursor is not None:
            at_ms = int(frame.fields.get("at", 0))
            await self._drawing.draw_line(frame.cursor, at_ms, frame.line)

    def encode(self, frame: HostFrame) -> Iterator[bytes]:
        """Yield the events for a frame."""
        sent_number = 0
        if self._position is not None:
            sent_number = self._position.number
        self._update_position(frame)
        if frame.kind == "line":
            if self._is_synced:
                yield from self._encode_line(frame, sent_number)
        elif frame.kind == "bye":
            yield self._encode_bye(frame)
        elif frame.kind == "synced":
            self._is_synced = True
            yield from self._encode_past(self._client_cursor, frame.fields["number"])
        elif frame.kind == "question":
            prompt = build_permission_prompt_json(
                str(frame.fields.get("question")),
                as_dict(frame.fields.get("request")),
                self._cwd,
            )
            times = {key: frame.fields[key] for key in ("at", "until") if key in frame.fields}
            yield encode_json_event("question", {**prompt, **times})
        elif frame.kind == "gap":
            yield from self._encode_gap(frame)
        elif frame.kind == "welcome":
            yield from self._encode_welcome(frame)
        else:
            # The prompt's id is sent unchanged, because the client sends it in its answer.
            raw_id = {}
            if "question" in frame.fields:
                raw_id = {"question": frame.fields["question"]}
            payload = {**escape_control_chars_in_json(frame.payload), **raw_id}
            yield encode_json_event(frame.kind, payload)

    def _encode_gap(self, frame: HostFrame) -> Iterator[bytes]:
        if self._is_synced:
            # Only partial messages are missing. Every numbered line was sent.
            if frame.fields.get("reason") == "slow":
                yield encode_json_event("gap", frame.payload)
        else:
            self._drawing.reset(self._log_number)

    def _encode_welcome(self, frame: HostFrame) -> Iterator[bytes]:
        fields = frame.fields
        client_cursor = self._client_cursor
        self._cwd = get_text(fields, "cwd")
        self._log_number = int(fields["number"])
        if client_cursor is not None and (
            client_cursor.generation > fields["generation"]
            or client_cursor.number > self._log_number
        ):
            self._client_cursor = None
            yield _encode_gap_event(client_cursor.number, self._log_number, "unknown")
        payload = {
            key: value for key, value in frame.payload.items() if key not in OMITTED_WELCOME_KEYS
        }
        payload["models"] = as_list(as_dict(frame.payload.get("initialize")).get("models"))
        yield encode_json_event(
            "welcome",
            {**escape_control_chars_in_json(payload), "questions": fields.get("questions", [])},
        )

    def _encode_line(self, frame: HostFrame, sent_number: int) -> Iterator[bytes]:
        """Yield the events for a line. The steps of all lines up to `sent_number` were already
        sent.
        """
        line = frame.line
        cursor = frame.cursor
        drawing = self._drawing
        if cursor is None:
            live_part = drawing.renderer.render_partial_message(line)
            if live_part is not None:
                yield encode_json_event("live", live_part)
            return
        if mode := find_reported_permission_mode(line):
            yield encode_json_event("mode", {"mode": mode})
        if sent_number < drawing.dropped_number:
            # Other readers are far ahead, so steps that this reader needs were already dropped.
            yield from self._encode_past(LogCursor(cursor.generation, sent_number), cursor.number)
            return
        steps = drawing.list_steps(sent_number, cursor.number)
        yield from _encode_steps(steps)
        if any(step.kind == "result" for step in steps):
            yield self._encode_totals()

    def _encode_past(self, cursor: LogCursor | None, last_number: int) -> Iterator[bytes]:
        """Yield the past steps, up to a given line, that a reconnecting browser has
        not received.
        """
        drawing = self._drawing
        omitted_count = 0
        after_number = 0
        if cursor is not None:
            after_number = cursor.number
        steps = drawing.list_steps(after_number, last_number)
        if cursor is not None and (
            len(steps) > self._max_steps or cursor.number < drawing.dropped_number
        ):
            yield _encode_gap_event(cursor.number + 1, last_number, "long")
            cursor = None
            steps = drawing.list_steps(0, last_number)
        if cursor is None:
            omitted_count = max(len(steps) - self._max_steps, 0)
            steps = steps[omitted_count:]
            omitted_count += drawing.count_dropped_steps()
        overview = {
            "title": drawing.renderer.session_export.title,
            "began": drawing.renderer.start_ms,
            "left_out": omitted_count,
        }
        yield encode_json_event("about", overview)
        yield from _encode_steps(steps)
        yield self._encode_totals()
        # If the last lines have no steps, this id prevents that the browser requests them again.
        position = drawing.position
        has_last_line = bool(steps) and steps[-1].cursor.number == last_number
        if has_last_line or (position is not None and position.number != last_number):
            position = None
        yield encode_json_event("synced", {"number": last_number}, position)

    def _encode_totals(self) -> bytes:
        return encode_json_event("totals", self._drawing.renderer.build_session_totals())


def _encode_steps(steps: Sequence[DrawnStep]) -> Iterator[bytes]:
    """Yield the events for steps. Only the last step of each line gets an event id, because a
    browser with that id has received all steps of the line.
    """
    for index, step in enumerate(steps, 1):
        is_last = index == len(steps) or steps[index].cursor != step.cursor
        yield encode_server_sent_event("step", step.encode(), step.cursor if is_last else None)


def _encode_gap_event(first_number: int, last_number: int, reason: str) -> bytes:
    return encode_json_event("gap", {"from": first_number, "to": last_number, "reason": reason})


class EventStreamResponse:
    """A response with an event stream: an ASGI application for one request.

    is_authorized  returns whether the visitor's token is still valid. It is called every
                   TOKEN_CHECK_INTERVAL_S and before each write; one call stats the token file
    slot           reserves one of a limited number of streams. Entering it raises HTTPError if
                   all are in use
    """

    def __init__(
        self,
        hosts: LocalBackgroundSessionManager,
        session_id: str,
        encoder: ServerSentEventEncoder,
        is_authorized: Callable[[], bool],
        slot: AbstractContextManager[None],
    ) -> None:
        self._hosts = hosts
        self._session_id = session_id
        self._encoder = encoder
        self._is_authorized = is_authorized
        self._slot = slot
        self._is_synced = anyio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the browser or the host disconnects, the token is replaced, or the
        server shuts down.
        """
        with self._slot:
            await self._send_response(receive, send)
        await send({"type": "http.response.body", "body": b""})

    async def _send_response(self, receive: Receive, send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            # a compressing proxy would hold back the first kilobytes
            (b"cache-control", b"no-store, no-transform"),
            (b"x-accel-buffering", b"no"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send(
            {
                "type": "http.response.body",
                "body": b"retry: %d\n\n" % RETRY_DELAY_MS,
                "more_body": True,
            }
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_wait_for_disconnect, receive, tasks)
            await self._write_events(send, tasks)
            tasks.cancel_scope.cancel()

    async def _write_events(self, send: Send, tasks: TaskGroup) -> None:
        sender, receiver = anyio.create_memory_object_stream[HostFrame](MAX_WAITING_FRAMES)
        with sender, receiver:
            tasks.start_soon(self._read_frames, sender)
            last_write = anyio.current_time()
            async for chunk in self._encode_chunks(receiver):
                if not self._is_authorized():
                    return
                if not chunk and anyio.current_time() - last_write >= HEARTBEAT_INTERVAL_S:
                    chunk = b": still here\n\n"
                if chunk:
                    last_write = anyio.current_time()
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def _encode_chunks(
        self, frames: MemoryObjectReceiveStream[HostFrame]
    ) -> AsyncIterator[bytes]:
        """Yield the encoded events for the host's frames. Yield b"" periodically while no frames
        arrive.

        After MAX_SLICE_S the event loop runs other streams, even while a long history is encoded.
        """
        while True:
            frame = None
            with anyio.move_on_after(min(TOKEN_CHECK_INTERVAL_S, HEARTBEAT_INTERVAL_S)):
                try:
                    frame = await frames.receive()
                except anyio.EndOfStream:
                    return
            deadline = anyio.current_time() + MAX_SLICE_S
            events = list[bytes]()
            size_bytes = 0
            while frame is not None:
                await self._encoder.prepare(frame)
                for event in self._encoder.encode(frame):
                    events.append(event)
                    size_bytes += len(event)
                    if size_bytes >= WRITE_CHUNK_BYTES or anyio.current_time() >= deadline:
                        yield b"".join(events)
                        await anyio.sleep(0)
                        deadline = anyio.current_time() + MAX_SLICE_S
                        size_bytes = 0
                        events.clear()
                if frame.kind == "synced":
                    self._is_synced.set()
                frame = None
                if anyio.current_time() < deadline:
                    with suppress(anyio.WouldBlock, anyio.EndOfStream):
                        frame = frames.receive_nowait()
            yield b"".join(events)

    async def _read_frames(self, sender: MemoryObjectSendStream[HostFrame]) -> None:
        with sender:
            try:
                async with AsyncExitStack() as opening:
                    await opening.enter_async_context(self._encoder.opening_lock)
                    await self._send_host_frames(sender, opening)
            except (ShimError, OSError):
                pass  # the host has exited; the browser reconnects and receives the reason
            except anyio.ClosedResourceError:
                pass  # the browser has disconnected

    async def _send_host_frames(
        self, sender: MemoryObjectSendStream[HostFrame], opening: AsyncExitStack
    ) -> None:
        async with self._hosts.connect_to_session(
            self._session_id, as_controller=False, after=self._encoder.start()
        ) as feed:
            async for frame in read_frames(feed):
                try:
                    sender.send_nowait(frame)  # `send` would cost a loop iteration per frame
                except anyio.WouldBlock:
                    await sender.send(frame)
                if frame.kind == "synced":
                    await self._is_synced.wait()
                    await opening.aclose()


async def read_frames(feed: SessionFrameStream) -> AsyncIterator[HostFrame]:
    """Yield the frames that arrive on a host connection."""
    async for fields in feed:
        yield HostFrame(str(fields["kind"]), fields)


async def _wait_for_disconnect(receive: Receive, tasks: TaskGroup) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    tasks.cancel_scope.cancel()
