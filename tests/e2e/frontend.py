"""The drop-in as a frontend sees it: a process that is started with Claude's flags and read line by line.

Every wait has a bound. What is asserted of every run, whatever it was asked, is in `check_contract` (the rules are
those of the contract: process P, stream S).
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

TURN_SECONDS = 90.0  # a turn takes one to ten seconds; a loaded machine makes it longer, a hang makes it endless
END_SECONDS = 20.0  # from an interrupt to the end of the process
GONE_SECONDS = 10.0  # from the end of the drop-in to the end of everything that it started
POLL_SECONDS = 0.05

# In the environment of every process of a run. Not SHIM_*: the drop-in keeps those from its child.
MARK = "E2E_MARK"

Line = dict[str, Any]

# S9: what the Python SDK, the TypeScript SDK and ACP together require of a result.
RESULT_KEYS = {
    "type",
    "subtype",
    "is_error",
    "duration_ms",
    "duration_api_ms",
    "num_turns",
    "stop_reason",
    "session_id",
    "total_cost_usd",
    "usage",
    "modelUsage",
    "permission_denials",
    "uuid",
}
USAGE_KEYS = {"input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"}
TERMINATOR: Line = {"type": "message_stop"}


@dataclass
class Run:
    """What one run of the drop-in said, and how it ended."""

    lines: list[Line]
    exit: int
    stderr: str

    def of_type(self, kind: str) -> list[Line]:
        return [line for line in self.lines if line["type"] == kind]

    @property
    def init(self) -> Line:
        return self.lines[0]

    @property
    def result(self) -> Line:
        (result,) = self.of_type("result")
        return result

    def blocks(self, line_type: str, block_type: str) -> list[Line]:
        """The content blocks of a kind, in order of appearance."""
        return [
            block
            for line in self.of_type(line_type)
            for block in line["message"]["content"]
            if block["type"] == block_type
        ]

    @property
    def texts(self) -> list[str]:
        """The text blocks of the assistant lines."""
        return [block["text"] for block in self.blocks("assistant", "text")]

    @property
    def tool_uses(self) -> list[Line]:
        return self.blocks("assistant", "tool_use")

    @property
    def tool_results(self) -> list[Line]:
        return self.blocks("user", "tool_result")

    @property
    def user_texts(self) -> list[str]:
        return [block["text"] for block in self.blocks("user", "text")]

    @property
    def events(self) -> list[Line]:
        return [line["event"] for line in self.of_type("stream_event")]

    @property
    def streamed_text(self) -> str:
        """The text deltas, joined."""
        return "".join(delta["text"] for delta in self._deltas("text_delta"))

    @property
    def streamed_input(self) -> str:
        """The tool-argument deltas, joined."""
        return "".join(delta["partial_json"] for delta in self._deltas("input_json_delta"))

    def _deltas(self, kind: str) -> Iterator[Line]:
        deltas = (event["delta"] for event in self.events if event["type"] == "content_block_delta")
        return (delta for delta in deltas if delta["type"] == kind)


def text_of_result(block: Line) -> str:
    """The text of a tool result, whose content is a string or a list of blocks."""
    content = block["content"]
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


@dataclass
class Frontend:
    """One isolated place to start the drop-in in: its file, a working directory, an environment."""

    claude: Path
    folder: Path
    environment: Mapping[str, str]
    arguments: Sequence[str] = ()  # flags that every run here needs
    started: list[Process] = field(default_factory=list)

    def start(self, prompt: str, *arguments: str) -> Process:
        """Starts a run as a frontend does: prompt in argv, an empty pipe as stdin."""
        argv = [str(self.claude), "-p", prompt, "--output-format", "stream-json", "--verbose"]
        argv += [*self.arguments, *arguments]
        process = Process(argv, self.folder, self.environment)
        self.started.append(process)
        return process

    def run(self, prompt: str, *arguments: str) -> Run:
        """A whole run, from the start to the end of the process."""
        return self.start(prompt, *arguments).finish()

    def processes(self) -> dict[int, str]:
        """Every live process that carries this place's mark, by id, with its command line (Linux only)."""
        mark = f"{MARK}={self.environment[MARK]}".encode()
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(entry.name)] = command.decode(errors="replace")
            except OSError:
                continue  # it ended meanwhile, or is another user's
        return found

    def runs_within(self, command: str, seconds: float = GONE_SECONDS) -> bool:
        """Whether a process with this command line is seen in time; the drop-in's own has the prompt in it."""
        return wait_until(lambda: any(line.startswith(command) for line in self.processes().values()), seconds)

    def processes_left(self) -> dict[int, str]:
        """What is still alive when everything had its time to go."""
        wait_until(lambda: not self.processes(), GONE_SECONDS)
        return self.processes()

    def close(self) -> None:
        """Ends what a failed test left behind: only processes that descend from this place's own runs."""
        for process in self.started:
            process.close()
        for number in self.processes():
            try:
                os.kill(number, signal.SIGKILL)
            except ProcessLookupError:
                continue


class Process:
    """A running drop-in."""

    def __init__(self, argv: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.lines: list[Line] = []
        self._queue: queue.Queue[bytes | None] = queue.Queue()
        self._process = subprocess.Popen(
            argv,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._stderr: list[bytes] = []
        self._threads = [
            threading.Thread(target=self._read_stdout, daemon=True),
            threading.Thread(target=self._read_stderr, daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        _pipe(self._process.stdin).close()

    def _read_stdout(self) -> None:
        for line in _pipe(self._process.stdout):
            self._queue.put(line)
        self._queue.put(None)

    def _read_stderr(self) -> None:
        self._stderr.append(_pipe(self._process.stderr).read())

    def read_until(self, wanted: Callable[[Line], bool], seconds: float = TURN_SECONDS) -> None:
        """Reads up to the first line that is wanted."""
        deadline = time.monotonic() + seconds
        while True:
            line = self._next(deadline)
            assert line is not None, self._complaint("ended before the awaited line came")
            if wanted(line):
                return

    def interrupt(self) -> None:
        """What Ctrl-C or a frontend's stop button does."""
        self._process.send_signal(signal.SIGINT)

    def terminate(self) -> None:
        """What a frontend does that wants the process gone."""
        self._process.terminate()

    def finish(self, seconds: float = TURN_SECONDS) -> Run:
        """Reads to the end of stdout, and waits for the process."""
        deadline = time.monotonic() + seconds
        while self._next(deadline) is not None:
            pass
        try:
            code = self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise AssertionError(self._complaint("closed its stdout and did not end")) from None
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return Run(self.lines, code, self._said_on_stderr())

    def _next(self, deadline: float) -> Line | None:
        try:
            raw = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise AssertionError(self._complaint("is silent for too long")) from None
        if raw is None:
            return None
        line = json.loads(raw)  # P8-P11: UTF-8 JSON, one object per line, each with a type
        assert isinstance(line, dict) and isinstance(line.get("type"), str), raw
        assert raw.endswith(b"\n") and not raw.endswith(b"\r\n"), raw
        self.lines.append(line)
        return line

    def _said_on_stderr(self) -> str:
        return b"".join(self._stderr).decode(errors="replace")

    def _complaint(self, what: str) -> str:
        tail = "\n".join(json.dumps(line)[:300] for line in self.lines[-5:])
        return f"the drop-in {what}; its last lines:\n{tail}\nstderr:\n{self._said_on_stderr()}"

    def close(self) -> None:
        """Ends the process if a failed test left it running: asked first, so that it ends its child."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(5)
        for thread in self._threads:
            thread.join(5)
        if not any(thread.is_alive() for thread in self._threads):
            _pipe(self._process.stdout).close()
            _pipe(self._process.stderr).close()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether the condition came true in time."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            return False
        pause.wait(POLL_SECONDS)
    return True


def check_contract(run: Run, *, partial: bool = False) -> None:
    """What holds for every run of one turn, whatever was asked and however it ended."""
    kinds = [line["type"] for line in run.lines]
    inits = [line for line in run.of_type("system") if line["subtype"] == "init"]
    assert inits == [run.init]
    assert kinds.count("result") == 1
    assert kinds[-2] == "result" and run.lines[-1] == TERMINATOR  # `-p` with text input has the terminator
    said = run.lines[:-1]
    assert {line["session_id"] for line in said} == {run.init["session_id"]}
    assert len({line["uuid"] for line in said}) == len(said)
    _check_result(run)
    _check_tools(run)
    if partial:
        _check_events(run)
    else:
        assert "stream_event" not in kinds


def _check_result(run: Run) -> None:
    result = run.result
    assert result.keys() >= RESULT_KEYS
    assert result["usage"].keys() >= USAGE_KEYS
    if result["subtype"] == "success":
        assert isinstance(result["result"], str)
    else:
        assert result["is_error"] and result["errors"] and "result" not in result


def _check_tools(run: Run) -> None:
    """S16c: every call has exactly one result, and the result comes after it."""
    open_calls: set[str] = set()
    for line in run.of_type("assistant") + run.of_type("user"):
        assert line["parent_tool_use_id"] is None
    for line in run.lines:
        if line["type"] not in ("assistant", "user"):
            continue
        for block in line["message"]["content"]:
            if block["type"] == "tool_use":
                assert block["id"] not in open_calls
                open_calls.add(block["id"])
            elif block["type"] == "tool_result":
                open_calls.remove(block["tool_use_id"])
    assert not open_calls


def _check_events(run: Run) -> None:
    """S11: blocks are numbered from 0, closed in order, and said whole before they are closed."""
    reply: list[Line] | None = None  # the blocks of the open reply
    block_open = said_whole = False
    for line in run.lines:
        if line["type"] == "assistant" and line["message"]["model"] != "<synthetic>":
            assert reply is not None and block_open and not said_whole
            (block,) = line["message"]["content"]
            assert block["type"] == reply[-1]["type"]
            said_whole = True
        if line["type"] != "stream_event":
            continue
        assert line["parent_tool_use_id"] is None
        event = line["event"]
        match event["type"]:
            case "message_start":
                assert reply is None and event["message"]["usage"].keys() >= USAGE_KEYS
                reply = []
            case "content_block_start":
                assert reply is not None and not block_open and event["index"] == len(reply)
                reply.append(event["content_block"])
                block_open, said_whole = True, False
            case "content_block_delta":
                assert reply is not None and block_open and event["index"] == len(reply) - 1 and not said_whole
            case "content_block_stop":
                assert reply is not None and block_open and said_whole and event["index"] == len(reply) - 1
                block_open = False
            case "message_delta":
                assert reply is not None and not block_open and "output_tokens" in event["usage"]
            case "message_stop":
                assert reply is not None and not block_open
                reply = None
            case other:
                raise AssertionError(f"Claude has no such event: {other}")
    assert reply is None
