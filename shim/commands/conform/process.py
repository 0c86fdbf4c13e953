"""One run of a claude-like command, held as a frontend holds it: what was sent, what came and when,
how it ended.

Everything is bounded: each wait by the patience that the user gave, stdout by the limits below,
stderr by its head and tail. Whatever happens, the process is ended with its group.
"""

import contextlib
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from shim.process import strays
from shim.process.child import Child
from shim.process.spawn import Started, spawn

if TYPE_CHECKING:
    from shim.process.spawn import AnyProcess

# A turn that says one word prints some ten lines; thinking, tools and partial messages make it some
# hundred.
STDOUT_BYTES = 16 * 1024 * 1024
STDOUT_LINES = 100_000
LAST_BYTES_SECONDS = 1.0  # for its last bytes, if something else holds its stdout after its end
SURVIVE_SECONDS = 3.0  # until the processes that it started must be gone, too
TERMINATE_SECONDS = 2.0  # between SIGTERM and SIGKILL
KILL_SECONDS = 1.0

Object = dict[str, Any]


@dataclass(frozen=True)
class Line:
    """A line of its stdout: time of arrival, bytes without the newline, and its JSON or what is
    wrong with it.
    """

    at: float
    raw: bytes
    value: Any = None
    fault: str = ""


@dataclass(frozen=True)
class Sent:
    """Bytes that were written to its stdin, and the number of lines that it had printed by then."""

    at: float
    data: bytes
    position: int


@dataclass
class Run:
    """All that is known of one run. Times are seconds since its start.

    `exit` is its status, negative for a signal, None if we had to end it; `stuck` then says what we
    waited for. `over` says what we still waited for when it closed its stdout.
    """

    name: str
    frontend: str
    argv: tuple[str, ...]
    lines: list[Line] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    stdout: bytearray = field(default_factory=bytearray)
    stderr: str = ""
    exit: int | None = None
    stuck: str = ""
    over: str = ""
    flooded: bool = False
    signalled: str = ""
    closed_at: float | None = None
    ended_at: float | None = None
    below: int = 0
    survivors: int = 0
    marks: dict[str, int] = field(default_factory=dict)
    unstartable: str = ""

    @property
    def objects(self) -> list[Object]:
        return [line.value for line in self.lines if isinstance(line.value, dict)]

    def of_type(self, *kinds: str) -> list[Object]:
        return [value for value in self.objects if value.get("type") in kinds]

    def answer_to(self, identity: str) -> Object | None:
        """The `response` of the control_response to a request, if it came."""
        for value in self.of_type("control_response"):
            response = value.get("response")
            if isinstance(response, dict) and response.get("request_id") == identity:
                return response
        return None


class _OverError(Exception):
    """The command closed its stdout, or printed too much, before the expected line came."""


class _StuckError(Exception): ...


Answer = Callable[[Object], Object | None]
Wanted = Callable[[Object], bool]


def is_result(value: Object) -> bool:
    return value.get("type") == "result"


def answer_to(subtype: str) -> str:
    """The name of an answer that is awaited."""
    return f"the answer to {subtype}"


class Wire:
    """The process as a script sees it: its stdin, the lines of its stdout, signals.

    `answer` makes the response to a control_request of its own, as an SDK would; None leaves it
    unanswered.
    """

    def __init__(self, run: Run, process: "AnyProcess", child: Child, patience: float) -> None:
        self.run = run
        self.answer: Answer = lambda request: {}
        self.patience = patience
        self._process = process
        self._child = child
        self._began = time.monotonic()
        self._news = anyio.Event()
        self._reading = anyio.CancelScope()
        self.drained = anyio.Event()
        self._finished = anyio.Event()
        self._ended = False
        self._mark = 0
        self._asked = 0
        self._below: dict[int, bytes] = {}

    def now(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self._began

    async def send(self, *values: Object) -> None:
        """Write lines to its stdin, in one write."""
        await self.send_bytes(b"".join(json.dumps(value).encode() + b"\n" for value in values))

    async def send_bytes(self, data: bytes) -> None:
        self.run.sent.append(Sent(self.now(), data, len(self.run.lines)))
        with anyio.move_on_after(self.patience) as scope:
            await self._child.say(data)
        if scope.cancelled_caught:
            raise _StuckError("it to read its stdin")

    async def ask(self, subtype: str, **fields: Any) -> Object:
        """Send a control request. Returns the `response` of its answer."""
        identity = await self.request(subtype, **fields)
        await self.until(lambda value: _answers(value, identity), answer_to(subtype), 0)
        response = self.run.answer_to(identity)
        assert response is not None
        return response

    async def request(self, subtype: str, **fields: Any) -> str:
        """Send a control request without waiting. Returns its id."""
        self._asked += 1
        identity = f"conform_{self._asked}_{subtype}"
        await self.send(
            {
                "type": "control_request",
                "request_id": identity,
                "request": {"subtype": subtype, **fields},
            }
        )
        return identity

    async def until(self, wanted: Wanted, what: str, since: int | None = None) -> Object:
        """Wait for a wanted line, after the last wanted one, or from line `since` on."""
        position = self._mark if since is None else since
        with anyio.move_on_after(self.patience):
            while True:
                while position < len(self.run.lines):
                    value = self.run.lines[position].value
                    position += 1
                    if isinstance(value, dict) and wanted(value):
                        if since is None:
                            self._mark = position
                        return value
                if self._ended:
                    raise _OverError(what)
                await self._news.wait()
        raise _StuckError(what)

    async def to_end(self) -> None:
        """Wait until it closes its stdout by itself."""
        with anyio.move_on_after(self.patience):
            await self.drained.wait()
            return
        raise _StuckError("its end")

    def mark(self, name: str) -> None:
        """Remember how many lines came until now."""
        self.run.marks[name] = len(self.run.lines)

    def close(self) -> None:
        if self.run.closed_at is None:
            self.run.closed_at = self.now()
            self._child.hang_up()

    async def stop_reading(self) -> None:
        """Close our end of its stdout, as a frontend does that wants no more."""
        self._reading.cancel()
        await self.drained.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def signal(self, name: str) -> None:
        """Send a signal to the process alone, as a frontend does. The processes below it are
        remembered.
        """
        self.run.signalled = name
        self.mark("signalled")
        self._below = strays.descendants(self._process.pid)
        self.run.below = len(self._below)
        with contextlib.suppress(OSError):
            os.kill(self._process.pid, getattr(signal, name))

    async def read(self) -> None:
        """Read the command's stdout to its end, and answer its requests."""
        with self._reading:
            await self._read()
        self._ended = True
        self._wake()
        self.drained.set()

    async def _read(self) -> None:
        stdout, taken = self.run.stdout, 0
        while chunk := await self._child.read():
            searched = len(stdout)
            stdout += chunk
            while (end := stdout.find(b"\n", max(taken, searched))) >= 0:
                await self._take(bytes(stdout[taken:end]))
                taken = end + 1
            if len(stdout) > STDOUT_BYTES or len(self.run.lines) > STDOUT_LINES:
                self.run.flooded = True
                self._finished.set()
                return
            self._wake()
        if taken < len(stdout):
            await self._take(bytes(stdout[taken:]))

    def _wake(self) -> None:
        self._news, news = anyio.Event(), self._news
        news.set()

    async def _take(self, raw: bytes) -> None:
        line = read_line(self.now(), raw)
        self.run.lines.append(line)
        value = line.value
        if (
            isinstance(value, dict)
            and value.get("type") == "control_request"
            and self.run.closed_at is None
        ):
            request = value.get("request")
            body = self.answer(request if isinstance(request, dict) else {})
            if body is not None:
                response = {
                    "subtype": "success",
                    "request_id": value.get("request_id"),
                    "response": body,
                }
                await self.send({"type": "control_response", "response": response})

    async def finish(self, script: Callable[["Wire"], Awaitable[None]]) -> None:
        try:
            await script(self)
        except _OverError as missing:
            self.run.over = str(missing)
        except _StuckError as missing:
            self.run.stuck = str(missing)
            return
        with anyio.move_on_after(self.patience):
            await self._finished.wait()
        if self.run.ended_at is None:
            self.run.stuck = "" if self.run.flooded else "its end"
            return
        await self._look_below()
        ended = await self._child.ended()
        self.run.exit = -getattr(signal, ended.signal, 1) if ended.signal else ended.code

    async def watch(self) -> None:
        """Wait for the end of the command, and stop reading a stdout that another process holds
        open.
        """
        with contextlib.suppress(ChildProcessError):  # we ended it ourselves meanwhile
            await self._child.gone()
        self.run.ended_at = self.now()
        with anyio.move_on_after(LAST_BYTES_SECONDS):
            await self.drained.wait()
        self._reading.cancel()
        self._finished.set()

    async def _look_below(self) -> None:
        """Look whether the processes that it had started at the signal are gone."""
        with anyio.move_on_after(SURVIVE_SECONDS):
            while strays.alive(self._below):
                await anyio.sleep(0.05)
        self.run.survivors = strays.alive(self._below)
        strays.end(self._below)


def _answers(value: Object, identity: str) -> bool:
    response = value.get("response")
    return value.get("type") == "control_response" and (
        isinstance(response, dict) and response.get("request_id") == identity
    )


def read_line(at: float, raw: bytes) -> Line:
    """Read a line as the strictest client does."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return Line(at, raw, None, f"byte {error.start} is not UTF-8")
    if not text.strip():
        return Line(at, raw, None, "it is blank")
    try:
        return Line(at, raw, json.loads(text, parse_constant=_no_constant))
    except (ValueError, RecursionError) as error:
        return Line(at, raw, None, f"it is not JSON: {error}")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


async def hold(
    run: Run,
    command: Sequence[str],
    environment: Mapping[str, str],
    cwd: str,
    script: Callable[[Wire], Awaitable[None]],
    patience: float,
    *,
    feed: bool,
) -> None:
    """Start the command, play the script, and fill `run`. ShimError if the command cannot be
    started.
    """
    process = spawn([*command, *run.argv], environment, cwd, feed=feed)
    child = Child(Started(process, b""))
    wire = Wire(run, process, child, patience)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wire.read)
            tasks.start_soon(wire.watch)
            tasks.start_soon(child.drain)
            await wire.finish(script)
            await _end(child)
            with anyio.move_on_after(LAST_BYTES_SECONDS):
                await child.drained.wait()
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await _end(child)
        run.stderr = child.tail.text()
        child.close()


async def _end(child: Child) -> None:
    """End it with its group and what it has started, unless it ended by itself.

    `Child.stop` cannot be used: it ends every orphan below us, and other runs have orphans below
    us.
    """
    for name, seconds in (("SIGTERM", TERMINATE_SECONDS), ("SIGKILL", KILL_SECONDS)):
        if child.exit is None:
            child.signal(name)
            with anyio.move_on_after(seconds):
                await child.ended()
