"""Runs a claude-compatible command as a frontend does. Records what was sent and received, when,
and how the command exited.

Each wait has a timeout, the amount of stdout is limited, and only the start and the end of stderr
are kept. The process and its process group are always stopped at the end.
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

# Limits for the stdout of a run. A turn with a reply of one word prints about ten lines. A turn with
# thinking, tools and partial messages prints several hundred lines.
MAX_STDOUT_BYTES = 16 * 1024 * 1024
MAX_STDOUT_LINES = 100_000
DRAIN_TIMEOUT_S = 1.0  # for the rest of stdout, if another process holds it open
DESCENDANTS_TIMEOUT_S = 3.0  # for the exit of the command's descendants
SIGTERM_TIMEOUT_S = 2.0  # between SIGTERM and SIGKILL
SIGKILL_TIMEOUT_S = 1.0

JsonObject = dict[str, Any]


@dataclass(frozen=True)
class CommandStdoutLine:
    """A line of the command's stdout: its arrival time, its bytes without the newline, and its JSON
    value or the parse error.
    """

    time_s: float
    raw: bytes
    value: Any = None
    error: str = ""


@dataclass(frozen=True)
class StdinWrite:
    """Bytes that were written to stdin, with the number of stdout lines that had arrived before."""

    time_s: float
    data: bytes
    line_count: int


@dataclass
class CommandRun:
    """Everything that was observed in one run of the command. Times are seconds since the start of
    the run.

        exit_status   the exit status; negative for a signal, None if the process had to be stopped
        timed_out_on  the output that the run timed out waiting for, or ""
        missing_line  the line that was expected when the command closed its stdout, or ""
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
    ended_at: float = 0.0  # 0 before the exit
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
        """Return the `response` object of the answer to a control request, or None."""
        lines = (line for line in self.json_lines if _is_answer_to(line, request_id))
        return next((line["response"] for line in lines), None)


class _StdoutClosedError(Exception):
    """Raised if the command closes its stdout or prints too much before the expected line arrives."""


class _WaitTimeoutError(Exception): ...


AnswerRequest = Callable[[JsonObject], JsonObject | None]
LineMatcher = Callable[[JsonObject], bool]


def is_result_line(value: JsonObject) -> bool:
    return value.get("type") == "result"


def describe_awaited_control_response(subtype: str) -> str:
    """Return a description of the control response that is awaited."""
    return f"the answer to {subtype}"


class ClaudeProcess:
    """The running command, as a scenario script uses it. A script can write to stdin, wait for
    stdout lines, and send signals.

    `answer_request` builds the response to a control request from the command, as an SDK would. If
    the function returns None, the request is not answered.
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
        self._matched_line_count = 0
        self._request_count = 0
        self._descendants: dict[int, bytes] = {}

    def measure_elapsed_s(self) -> float:
        """Return the seconds since the start of the process."""
        return time.monotonic() - self._start_time

    async def send_lines(self, *values: JsonObject) -> None:
        """Write JSON lines to stdin in a single write."""
        await self.send_bytes(b"".join(json.dumps(value).encode() + b"\n" for value in values))

    async def send_bytes(self, data: bytes) -> None:
        self.run.stdin_writes.append(
            StdinWrite(self.measure_elapsed_s(), data, len(self.run.lines))
        )
        with anyio.move_on_after(self.timeout_s) as scope:
            await self._child.write_stdin(data)
        if scope.cancelled_caught:
            raise _WaitTimeoutError("the command to read its stdin")

    async def send_control_request_and_wait(self, subtype: str, **fields: Any) -> JsonObject:
        """Send a control request and return the `response` object of the answer."""
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
        """Send a control request without waiting for the answer. Return the request id."""
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
        """Wait for a matching stdout line. Raise _WaitTimeoutError after the timeout, and
        _StdoutClosedError if stdout ends first.

        The search starts after the previously matched line, or at line number `first_line`.
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
                if self.stdout_ended.is_set():
                    raise _StdoutClosedError(description)
                await self._new_output.wait()
        raise _WaitTimeoutError(description)

    async def wait_for_stdout_end(self) -> None:
        """Wait until the process closes its stdout. Raise _WaitTimeoutError after the timeout."""
        with anyio.move_on_after(self.timeout_s):
            await self.stdout_ended.wait()
            return
        raise _WaitTimeoutError("its end")

    def record_stdout_line_count(self, checkpoint_name: str) -> None:
        """Record the current number of stdout lines under a checkpoint name."""
        self.run.line_counts[checkpoint_name] = len(self.run.lines)

    def close_stdin(self) -> None:
        if self.run.closed_at is None:
            self.run.closed_at = self.measure_elapsed_s()
            self._child.close_stdin()

    async def close_stdout(self) -> None:
        """Close the reading end of stdout, like a frontend that needs no more output."""
        self._read_scope.cancel()
        await self.stdout_ended.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def send_signal(self, signal_name: str) -> None:
        """Send a signal to the process only, as a frontend does, and remember its current
        descendants.
        """
        self.run.sent_signal = signal_name
        self.record_stdout_line_count("signalled")
        self._descendants = descendants.find_descendant_start_times(self._process.pid)
        self.run.descendant_count = len(self._descendants)
        with contextlib.suppress(OSError):
            os.kill(self._process.pid, getattr(signal, signal_name))

    async def read_stdout_and_answer_requests(self) -> None:
        """Read stdout to its end and answer the control requests in it."""
        with self._read_scope:
            await self._read_lines()
        self.stdout_ended.set()
        self._notify_waiters()

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
        if not self.run.ended_at:
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
        """Wait until the process has exited, and stop reading stdout shortly afterwards. Another
        process may still hold stdout open.
        """
        # Another task may have stopped the process meanwhile.
        with contextlib.suppress(ChildProcessError):
            await self._child.wait_for_exit_without_reaping()
        self.run.ended_at = self.measure_elapsed_s()
        with anyio.move_on_after(DRAIN_TIMEOUT_S):
            await self.stdout_ended.wait()
        self._read_scope.cancel()
        self._exited.set()

    async def _check_descendants(self) -> None:
        """Count the descendants that are still running some time after the signal, and kill them."""
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
    """Parse a stdout line as strictly as the strictest frontend does."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return CommandStdoutLine(time_s, raw, None, f"byte {error.start} is not UTF-8")
    if not text.strip():
        return CommandStdoutLine(time_s, raw, None, "the line is blank")
    try:
        return CommandStdoutLine(time_s, raw, json.loads(text, parse_constant=_reject_constant))
    except (ValueError, RecursionError) as error:
        return CommandStdoutLine(time_s, raw, None, f"the line is not JSON: {error}")


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
    """Start the command, run the script, and fill in `run`. Raise ShimError if the command cannot
    be started.
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
    """Stop the process, its process group and its descendants if the process is still running.

    `Child.stop` cannot be used, because it would also stop orphaned processes of other runs.
    """
    for signal_name, timeout_s in (("SIGTERM", SIGTERM_TIMEOUT_S), ("SIGKILL", SIGKILL_TIMEOUT_S)):
        if child.child_exit is None:
            child.send_signal(signal_name)
            with anyio.move_on_after(timeout_s):
                await child.wait_for_exit()
