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

from shim.bridge.gateway.auth import Receive, Scope, Send
from shim.bridge.gateway.hosts import BackgroundSessionManager, SessionFrameStream
from shim.bridge.gateway.step_renderer import (
    SessionStepRenderer,
    build_permission_prompt_json,
    escape_control_chars_in_json,
    find_reported_permission_mode,
    render_step,
)
from shim.core.bridge.frames import LogCursor
from shim.core.errors import ShimError
from shim.core.reading.values import as_dict
from shim.story.export.view_model import SessionStepView

# from one comment to the next: proxies and phones give up on silent connections
HEARTBEAT_INTERVAL_S = 15.0
# between two checks of a silent stream's token: a token that was replaced ends the stream
TOKEN_CHECK_INTERVAL_S = 1.0
RETRY_DELAY_MS = 1000  # before a browser comes back by itself
# frames between the host and the browser; more wait in the host, which bounds them
MAX_WAITING_FRAMES = 64
WRITE_CHUNK_BYTES = 64 * 1024  # of events that are written at once
OMITTED_WELCOME_KEYS = frozenset(("initialize", "init"))  # of a welcome: pages of flags and tools
CURSOR_PATTERN = re.compile(r"(\d{1,15})-(\d{1,15})\Z")


def parse_log_cursor(text: str) -> LogCursor | None:
    """The cursor that an event's id says: GENERATION-NUMBER. None for anything else."""
    match = CURSOR_PATTERN.match(text)
    return LogCursor(int(match[1]), int(match[2])) if match else None


def encode_server_sent_event(kind: str, data: bytes, cursor: LogCursor | None = None) -> bytes:
    """One event. A line break inside of JSON is a blank, so that it may become one between two
    `data` lines.
    """
    lines = b"\ndata: ".join(re.split(rb"\r\n|\r|\n", data))
    id_line = b"id: %d-%d\n" % cursor if cursor is not None else b""
    return b"event: %s\n%sdata: %s\n\n" % (kind.encode(), id_line, lines)


class HostFrame(NamedTuple):
    """A frame of a host: its kind, its keys; of a line, `raw` has its bytes."""

    kind: str
    fields: Mapping[str, Any]

    @property
    def cursor(self) -> LogCursor | None:
        """Where a numbered line stands."""
        number = self.fields.get("number")
        return (
            LogCursor(int(self.fields["generation"]), number)
            if self.kind == "line" and number
            else None
        )

    @property
    def line(self) -> bytes:
        """Claude's line."""
        return bytes(self.fields.get("raw") or b"")

    @property
    def payload(self) -> dict[str, Any]:
        """Its other keys."""
        return {key: value for key, value in self.fields.items() if key != "kind"}


class ServerSentEventEncoder:
    """Makes events of frames. The base tells every frame as it is: `GET /sessions/ID/events`."""

    after: LogCursor | None = None  # what the host is asked for

    def __init__(self, cursor: LogCursor | None) -> None:
        self.after = cursor
        # position of the last numbered line that the host has sent
        self._position: LogCursor | None = None

    def encode(self, frame: HostFrame) -> Iterator[bytes]:
        """The events of a frame."""
        self._update_position(frame)
        if frame.kind == "bye":
            yield self._encode_bye(frame)
        elif frame.kind != "line":
            yield encode_server_sent_event(frame.kind, orjson.dumps(frame.payload))
        elif (cursor := frame.cursor) is not None:
            yield encode_server_sent_event("line", frame.line, cursor)
        else:
            yield encode_server_sent_event("partial", frame.line)

    def _update_position(self, frame: HostFrame) -> None:
        """Remember the position in the log up to which this stream has received lines."""
        if frame.kind == "welcome":
            self._position = self._find_start_position(frame)
        elif frame.cursor is not None:
            self._position = frame.cursor

    def _find_start_position(self, welcome: HostFrame) -> LogCursor:
        """Return the position before the first line that the host will send."""
        if self.after is not None and self.after.number <= int(welcome.fields["number"]):
            return self.after
        return LogCursor(int(welcome.fields["generation"]), 0)

    def _encode_bye(self, frame: HostFrame) -> bytes:
        """Return the last event of a stream.

        Its id is the position of the log's last line, even if that line made no event of its own. A
        browser that reconnects with this id gets status 204 if the session has ended, and does not
        reconnect again.
        """
        return encode_server_sent_event(
            "bye", orjson.dumps(escape_control_chars_in_json(frame.payload)), self._position
        )


class SessionStepEventEncoder(ServerSentEventEncoder):
    """The steps: `GET /sessions/ID/steps`. The host says the whole log each time, because steps
    grow out of it.

    `cursor` is what the browser has seen; of what is new to it, the last `max_steps` steps are told
    at first. If there are more, it is told to forget what it has: behind that would be a hole.
    """

    def __init__(self, cursor: LogCursor | None, max_steps: int) -> None:
        super().__init__(None)
        self._client_cursor = cursor
        self._max_steps = max_steps
        self._cwd = ""  # the session's folder
        self._renderer = SessionStepRenderer()
        # by number, the last changed one last
        self._history: dict[int, tuple[SessionStepView, LogCursor]] | None = {}
        self._last_step_number = 0  # how many there are: the number of the last one
        self._has_omitted_steps = False  # whether steps are new that are not told

    def encode(self, frame: HostFrame) -> Iterator[bytes]:
        """The events of a frame."""
        self._update_position(frame)
        if frame.kind == "line":
            yield from self._encode_line(frame)
        elif frame.kind == "bye":
            yield self._encode_bye(frame)
        elif frame.kind == "synced":
            yield from self._encode_synced(frame)
        elif frame.kind == "question":
            request = frame.fields.get("request")
            prompt = build_permission_prompt_json(
                str(frame.fields.get("question")),
                as_dict(request),
                self._cwd,
            )
            times = {key: frame.fields[key] for key in ("at", "until") if key in frame.fields}
            yield encode_server_sent_event("question", orjson.dumps({**prompt, **times}))
        elif frame.kind == "gap":
            yield from self._encode_gap(frame)
        elif frame.kind == "welcome":
            yield from self._encode_welcome(frame)
        else:
            # an id is said back
            raw_id = {"question": frame.fields["question"]} if "question" in frame.fields else {}
            yield encode_server_sent_event(
                frame.kind, orjson.dumps({**escape_control_chars_in_json(frame.payload), **raw_id})
            )

    def _encode_gap(self, frame: HostFrame) -> Iterator[bytes]:
        # parts of a stream are left out, and no numbered line
        is_slow = frame.fields.get("reason") == "slow"
        if self._history is None and is_slow:
            yield encode_server_sent_event("gap", orjson.dumps(frame.payload))
        elif self._history is not None and not is_slow and self._client_cursor is not None:
            # without the lost lines, steps have other numbers
            self._client_cursor, self._has_omitted_steps = None, self._last_step_number > 0
            yield encode_server_sent_event("gap", orjson.dumps(frame.payload))

    def _encode_welcome(self, frame: HostFrame) -> Iterator[bytes]:
        fields, client_cursor = frame.fields, self._client_cursor
        self._cwd = str(fields.get("cwd") or "")
        if client_cursor is not None and (
            client_cursor.generation > fields["generation"]
            or client_cursor.number > fields["number"]
        ):
            self._client_cursor = None
            yield encode_server_sent_event(
                "gap",
                orjson.dumps(
                    {"from": client_cursor.number, "to": fields["number"], "reason": "unknown"}
                ),
            )
        payload = {
            key: value for key, value in frame.payload.items() if key not in OMITTED_WELCOME_KEYS
        }
        initialize = frame.payload.get("initialize")
        payload["models"] = initialize.get("models") or [] if isinstance(initialize, dict) else []
        yield encode_server_sent_event(
            "welcome",
            orjson.dumps(
                {**escape_control_chars_in_json(payload), "questions": fields.get("questions", [])}
            ),
        )

    def _encode_line(self, frame: HostFrame) -> Iterator[bytes]:
        line, cursor = frame.line, frame.cursor
        if cursor is None:
            live_part = (
                self._renderer.render_partial_message(line) if self._history is None else None
            )
            if live_part is not None:
                yield encode_server_sent_event("live", orjson.dumps(live_part))
            return
        steps = self._renderer.update_steps_from_line(int(frame.fields.get("at") or 0), line)
        if self._history is not None:
            self._store_history(steps, cursor)
            return
        if mode := find_reported_permission_mode(line):
            yield encode_server_sent_event("mode", orjson.dumps({"mode": mode}))
        # the id stands at the last step of a line: all before it were said
        for index, step in enumerate(steps, 1):
            yield encode_server_sent_event(
                "step", orjson.dumps(render_step(step)), cursor if index == len(steps) else None
            )
        if any(step.kind == "result" for step in steps):
            yield encode_server_sent_event(
                "totals", orjson.dumps(self._renderer.build_session_totals())
            )

    def _store_history(self, steps: list[SessionStepView], cursor: LogCursor) -> None:
        assert self._history is not None
        for step in steps:
            self._last_step_number = max(self._last_step_number, step.number)
            self._history.pop(step.number, None)
            if self._client_cursor is None or cursor.number > self._client_cursor.number:
                self._history[step.number] = step, cursor
        while len(self._history) > self._max_steps:
            del self._history[next(iter(self._history))]
            self._has_omitted_steps = True

    def _encode_synced(self, frame: HostFrame) -> Iterator[bytes]:
        history, self._history = self._history or {}, None
        if self._client_cursor is not None and self._has_omitted_steps:
            gap = {
                "from": self._client_cursor.number + 1,
                "to": frame.fields["number"],
                "reason": "long",
            }
            yield encode_server_sent_event("gap", orjson.dumps(gap))
        omitted_count = self._last_step_number - len(history) if self._has_omitted_steps else 0
        overview = {
            "title": self._renderer.session_export.title,
            "began": self._renderer.start_ms,
            "left_out": omitted_count,
        }
        yield encode_server_sent_event("about", orjson.dumps(overview))
        history_steps = list(history.values())
        for index, (step, cursor) in enumerate(history_steps, 1):
            is_last = index == len(history_steps) or history_steps[index][1] != cursor
            yield encode_server_sent_event(
                "step", orjson.dumps(render_step(step)), cursor if is_last else None
            )
        yield encode_server_sent_event(
            "totals", orjson.dumps(self._renderer.build_session_totals())
        )
        yield encode_server_sent_event("synced", orjson.dumps(frame.payload))


class NoContentResponse:
    """The answer to who has seen all of a session that has ended: a browser does not come back."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


class EventStreamResponse:
    """The response with a stream: an ASGI application for one request.

    `is_authorized` says whether the visitor's token is good; it is asked every
    TOKEN_CHECK_INTERVAL_S and before every write. `slot` is one among the streams that may be open;
    Refused where there is none.
    """

    def __init__(
        self,
        hosts: BackgroundSessionManager,
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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer until the browser goes, the host goes, the token is replaced, or the server ends."""
        with self._slot:
            await self._send_response(receive, send)
        await send({"type": "http.response.body", "body": b""})

    async def _send_response(self, receive: Receive, send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            # a proxy that compresses waits for the first kilobytes
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
            while True:
                chunk = b""
                with anyio.move_on_after(min(TOKEN_CHECK_INTERVAL_S, HEARTBEAT_INTERVAL_S)):
                    try:
                        frame = await receiver.receive()
                    except anyio.EndOfStream:
                        return
                    # a long history takes a second to draw, and others wait for the loop
                    if frame.kind == "synced":
                        chunk = await anyio.to_thread.run_sync(self._encode_frame, frame)
                    else:
                        chunk = self._encode_frame(frame)
                    chunk += b"".join(
                        self._encode_waiting(receiver, WRITE_CHUNK_BYTES - len(chunk))
                    )
                if not self._is_authorized():
                    return
                if not chunk and anyio.current_time() - last_write >= HEARTBEAT_INTERVAL_S:
                    chunk = b": still here\n\n"
                if chunk:
                    last_write = anyio.current_time()
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})

    def _encode_frame(self, frame: HostFrame) -> bytes:
        return b"".join(self._encoder.encode(frame))

    def _encode_waiting(
        self, frames: MemoryObjectReceiveStream[HostFrame], remaining_bytes: int
    ) -> Iterator[bytes]:
        """The events of what waits already, about `remaining_bytes` bytes."""
        while remaining_bytes > 0:
            try:
                frame = frames.receive_nowait()
            except (anyio.WouldBlock, anyio.EndOfStream):
                return
            for event in self._encoder.encode(frame):
                remaining_bytes -= len(event)
                yield event

    async def _read_frames(self, sender: MemoryObjectSendStream[HostFrame]) -> None:
        with sender:
            try:
                async with self._hosts.connect_to_session(
                    self._session_id, as_controller=False, after=self._encoder.after
                ) as feed:
                    async for frame in read_frames(feed):
                        await sender.send(frame)
            except (ShimError, OSError):
                pass  # the host has gone: the browser comes back, and is told how it ended


async def read_frames(feed: SessionFrameStream) -> AsyncIterator[HostFrame]:
    """The frames of a connection."""
    async for fields in feed:
        yield HostFrame(str(fields["kind"]), fields)


async def _wait_for_disconnect(receive: Receive, tasks: TaskGroup) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    tasks.cancel_scope.cancel()
