"""Runs a claude-like command as a frontend does, and records what was sent, what was received and
when, and how the command exited.

Each wait is limited by the user's timeout, stdout by the limits below, and stderr to its start and
end. In every case the process is stopped together with its process group.
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

from shim.core.reading.values import as_dict
from shim.process import descendants
from shim.process.child import Child
from shim.process.spawn import ChildSpawnResult, spawn_child

if TYPE_CHECKING:
    from shim.process.spawn import AnyProcess

# A turn with a reply of one word prints about ten lines. With thinking, tools and partial messages
# it prints several hundred.
MAX_STDOUT_BYTES = 16 * 1024 * 1024
MAX_STDOUT_LINES = 100_000
DRAIN_TIMEOUT_S = 1.0  # for the last bytes, if another process holds stdout open
DESCENDANTS_TIMEOUT_S = 3.0  # for the exit of the processes that the command started
SIGTERM_TIMEOUT_S = 2.0  # between SIGTERM and SIGKILL
SIGKILL_TIMEOUT_S = 1.0

JsonObject = dict[str, Any]


@dataclass(frozen=True)
class CommandStdoutLine:
    """A line of the command's stdout: its arrival time, its bytes without the newline, and its JSON
    or the error in it.
    """

    time_s: float
    raw: bytes
    value: Any = None
    error: str = ""


@dataclass(frozen=True)
class StdinWrite:
    """Bytes that were written to stdin, and the number of stdout lines that had arrived by then."""

    time_s: float
    data: bytes
    line_count: int


@dataclass
class CommandRun:
    """All data about one run. Times are in seconds since its start.

    `exit_status` is negative for a signal, and None if the process had to be stopped;
    `timed_out_on` then names the expected output. `missing_line` names the line that was expected
    when the command closed its stdout.
    """

    name: str
    frontend: str
    argv: tuple[str, ...]
    lines: list[CommandStdoutLine] = field(default_factory=list)
    stdin_writes: list[StdinWrite] = field(default_factory=list)
    stdout: bytearray = field(default_factory=bytearray)
    stderr: str = ""
    exit_status: int | None = None
    timed_out_on: str = ""
    missing_line: str = ""
    is_flooded: bool = False
    sent_signal: str = ""
    closed_at: float | None = None
    ended_at: float | None = None
    descendant_count: int = 0
    survivor_count: int = 0
    line_counts: dict[str, int] = field(default_factory=dict)
    start_error: str = ""

    @property
    def json_lines(self) -> list[JsonObject]:
        return [line.value for line in self.lines if isinstance(line.value, dict)]

    def find_lines(self, *types: str) -> list[JsonObject]:
        return [value for value in self.json_lines if value.get("type") in types]

    def find_control_response(self, request_id: str) -> JsonObject | None:
        """Return the `response` of the control_response to a request, or None."""
        lines = (line for line in self.json_lines if _is_answer_to(line, request_id))
        return next((line["response"] for line in lines), None)


class _StdoutClosedError(Exception):
    """The command closed its stdout, or printed too much, before the expected line came."""


class _WaitTimeoutError(Exception): ...


AnswerRequest = Callable[[JsonObject], JsonObject | None]
LineMatcher = Callable[[JsonObject], bool]


def is_result_line(value: JsonObject) -> bool:
    return value.get("type") == "result"


def describe_awaited_control_response(subtype: str) -> str:
    """Return the description of an expected control response."""
    return f"the answer to {subtype}"


class ClaudeProcess:
    """The process as a script uses it: its stdin, the lines of its stdout, and signals.

    `answer_request` builds the response to a control request of the process, as an SDK would. None
    leaves the request unanswered.
    """

    def __init__(
        self, run: CommandRun, process: "AnyProcess", child: Child, timeout_s: float
    ) -> None:
        self.run = run
        self.answer_request: AnswerRequest = lambda request: {}
        self.timeout_s = timeout_s
        self._process = process
        self._child = child
        self._start_time = time.monotonic()
        self._new_output = anyio.Event()
        self._read_scope = anyio.CancelScope()
        self.stdout_ended = anyio.Event()
        self._exited = anyio.Event()
        self._stdout_closed = False
        self._matched_line_count = 0
        self._request_count = 0
        self._descendants: dict[int, bytes] = {}

    def measure_elapsed_s(self) -> float:
        """Return the seconds since the start of the process."""
        return time.monotonic() - self._start_time

    async def send_lines(self, *values: JsonObject) -> None:
        """Write lines to stdin in a single write."""
        await self.send_bytes(b"".join(json.dumps(value).encode() + b"\n" for value in values))

    async def send_bytes(self, data: bytes) -> None:
        self.run.stdin_writes.append(
            StdinWrite(self.measure_elapsed_s(), data, len(self.run.lines))
        )
        with anyio.move_on_after(self.timeout_s) as scope:
            await self._child.write_stdin(data)
        if scope.cancelled_caught:
            raise _WaitTimeoutError("it to read its stdin")

    async def send_control_request_and_wait(self, subtype: str, **fields: Any) -> JsonObject:
        """Send a control request. Return the `response` of its answer."""
        request_id = await self.send_control_request(subtype, **fields)
        await self.wait_for_stdout_line(
            lambda value: _is_answer_to(value, request_id),
            describe_awaited_control_response(subtype),
            0,
        )
        response = self.run.find_control_response(request_id)
        assert response is not None
        return response

    async def send_control_request(self, subtype: str, **fields: Any) -> str:
        """Send a control request without waiting for the answer. Return its id."""
        self._request_count += 1
        request_id = f"conform_{self._request_count}_{subtype}"
        await self.send_lines(
            {
                "type": "control_request",
                "request_id": request_id,
                "request": {"subtype": subtype, **fields},
            }
        )
        return request_id

    async def wait_for_stdout_line(
        self, matches: LineMatcher, description: str, first_line: int | None = None
    ) -> JsonObject:
        """Wait for a matching line. Raise _WaitTimeoutError if it does not come in time, and
        _StdoutClosedError if stdout ends before it.

        The search starts after the previous match, or at line `first_line`.
        """
        if first_line is None:
            position = self._matched_line_count
        else:
            position = first_line
        with anyio.move_on_after(self.timeout_s):
            while True:
                while position < len(self.run.lines):
                    value = self.run.lines[position].value
                    position += 1
                    if isinstance(value, dict) and matches(value):
                        if first_line is None:
                            self._matched_line_count = position
                        return value
                if self._stdout_closed:
                    raise _StdoutClosedError(description)
                await self._new_output.wait()
        raise _WaitTimeoutError(description)

    async def wait_for_stdout_end(self) -> None:
        """Wait until the process closes its stdout. Raise _WaitTimeoutError if it does not do so in
        time.
        """
        with anyio.move_on_after(self.timeout_s):
            await self.stdout_ended.wait()
            return
        raise _WaitTimeoutError("its end")

    def record_stdout_line_count(self, checkpoint_name: str) -> None:
        """Record how many lines have arrived, under a name."""
        self.run.line_counts[checkpoint_name] = len(self.run.lines)

    def close_stdin(self) -> None:
        if self.run.closed_at is None:
            self.run.closed_at = self.measure_elapsed_s()
            self._child.close_stdin()

    async def close_stdout(self) -> None:
        """Close the reading end of stdout, as a frontend does that needs no more output."""
        self._read_scope.cancel()
        await self.stdout_ended.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def send_signal(self, signal_name: str) -> None:
        """Send a signal to the process alone, as a frontend does. Record the descendants of the
        process.
        """
        self.run.sent_signal = signal_name
        self.record_stdout_line_count("signalled")
        self._descendants = descendants.find_descendant_start_times(self._process.pid)
        self.run.descendant_count = len(self._descendants)
        with contextlib.suppress(OSError):
            os.kill(self._process.pid, getattr(signal, signal_name))

    async def read_stdout_and_answer_requests(self) -> None:
        """Read stdout to its end, and answer the control requests in it."""
        with self._read_scope:
            await self._read_lines()
        self._stdout_closed = True
        self._notify_waiters()
        self.stdout_ended.set()

    async def _read_lines(self) -> None:
        stdout = self.run.stdout
        taken_bytes = 0
        while chunk := await self._child.read_stdout():
            searched_bytes = len(stdout)
            stdout += chunk
            while (end := stdout.find(b"\n", max(taken_bytes, searched_bytes))) >= 0:
                await self._add_line(bytes(stdout[taken_bytes:end]))
                taken_bytes = end + 1
            if len(stdout) > MAX_STDOUT_BYTES or len(self.run.lines) > MAX_STDOUT_LINES:
                self.run.is_flooded = True
                self._exited.set()
                return
            self._notify_waiters()
        if taken_bytes < len(stdout):
            await self._add_line(bytes(stdout[taken_bytes:]))

    def _notify_waiters(self) -> None:
        self._new_output, old_event = anyio.Event(), self._new_output
        old_event.set()

    async def _add_line(self, raw: bytes) -> None:
        line = parse_stdout_line(self.measure_elapsed_s(), raw)
        self.run.lines.append(line)
        value = as_dict(line.value)
        if value.get("type") == "control_request" and self.run.closed_at is None:
            body = self.answer_request(as_dict(value.get("request")))
            if body is not None:
                response = {
                    "subtype": "success",
                    "request_id": value.get("request_id"),
                    "response": body,
                }
                await self.send_lines({"type": "control_response", "response": response})

    async def run_stdin_script(self, script: Callable[["ClaudeProcess"], Awaitable[None]]) -> None:
        try:
            await script(self)
        except _StdoutClosedError as error:
            self.run.missing_line = str(error)
        except _WaitTimeoutError as error:
            self.run.timed_out_on = str(error)
            return
        with anyio.move_on_after(self.timeout_s):
            await self._exited.wait()
        if self.run.ended_at is None:
            if self.run.is_flooded:
                self.run.timed_out_on = ""
            else:
                self.run.timed_out_on = "its end"
            return
        await self._check_descendants()
        child_exit = await self._child.wait_for_exit()
        if child_exit.signal:
            self.run.exit_status = -getattr(signal, child_exit.signal, 1)
        else:
            self.run.exit_status = child_exit.code

    async def wait_for_process_exit(self) -> None:
        """Wait for the exit of the process. Then stop reading stdout, which another process may
        hold open.
        """
        with contextlib.suppress(ChildProcessError):  # it has been stopped meanwhile
            await self._child.wait_for_exit_without_reaping()
        self.run.ended_at = self.measure_elapsed_s()
        with anyio.move_on_after(DRAIN_TIMEOUT_S):
            await self.stdout_ended.wait()
        self._read_scope.cancel()
        self._exited.set()

    async def _check_descendants(self) -> None:
        """Count the processes that were descendants at the signal and are still running."""
        with anyio.move_on_after(DESCENDANTS_TIMEOUT_S):
            while descendants.count_running_processes(self._descendants):
                await anyio.sleep(0.05)
        self.run.survivor_count = descendants.count_running_processes(self._descendants)
        descendants.kill_running_processes(self._descendants)


def _is_answer_to(value: JsonObject, request_id: str) -> bool:
    response = as_dict(value.get("response"))
    if value.get("type") != "control_response":
        return False
    return response.get("request_id") == request_id


def parse_stdout_line(time_s: float, raw: bytes) -> CommandStdoutLine:
    """Parse a line as strictly as the strictest frontend does."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return CommandStdoutLine(time_s, raw, None, f"byte {error.start} is not UTF-8")
    if not text.strip():
        return CommandStdoutLine(time_s, raw, None, "it is blank")
    try:
        return CommandStdoutLine(time_s, raw, json.loads(text, parse_constant=_reject_constant))
    except (ValueError, RecursionError) as error:
        return CommandStdoutLine(time_s, raw, None, f"it is not JSON: {error}")


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


async def run_command_with_script(
    run: CommandRun,
    command: Sequence[str],
    environment: Mapping[str, str],
    cwd: str,
    script: Callable[[ClaudeProcess], Awaitable[None]],
    timeout_s: float,
    *,
    has_stdin: bool,
) -> None:
    """Start the command, run the script, and fill `run`. Raise ShimError if the command cannot be
    started.
    """
    process = spawn_child([*command, *run.argv], environment, cwd, opens_stdin=has_stdin)
    child = Child(ChildSpawnResult(process, b""))
    claude_process = ClaudeProcess(run, process, child, timeout_s)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(claude_process.read_stdout_and_answer_requests)
            tasks.start_soon(claude_process.wait_for_process_exit)
            tasks.start_soon(child.drain_stderr)
            await claude_process.run_stdin_script(script)
            await _end_process(child)
            with anyio.move_on_after(DRAIN_TIMEOUT_S):
                await child.stderr_drained.wait()
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await _end_process(child)
        run.stderr = child.stderr_tail.to_text()
        child.close()


async def _end_process(child: Child) -> None:
    """Stop the process, its process group and its descendants, unless it has exited.

    `Child.stop` cannot be used, because it would also stop the orphans of other runs.
    """
    for signal_name, timeout_s in (("SIGTERM", SIGTERM_TIMEOUT_S), ("SIGKILL", SIGKILL_TIMEOUT_S)):
        if child.child_exit is None:
            child.send_signal(signal_name)
            with anyio.move_on_after(timeout_s):
                await child.wait_for_exit()
