"""A program in memory that follows a plan like those of `fake_child`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from memory_child import MemoryProgram

from shim.process.spawn import STDOUT_PIPE_BYTES

Plan = Sequence[Sequence[Any]]


class PlannedProgram(MemoryProgram):
    """A program that follows its plan until a step has to wait.

    Its steps have the names and meanings of those in `fake_child`. Steps that need a process are
    missing, and so are some others.
    """

    def __init__(
        self,
        plan: Plan,
        args: Sequence[str],
        environment: Mapping[str, str],
        cwd: str,
        gates: Counter[str],
    ) -> None:
        """Create the program; `gates` counts for each gate how many programs may still pass."""
        super().__init__()
        # (lifeline, word) for each word that it wrote to a lifeline
        self.lifeline_writes: set[tuple[str, str]] = set()
        self._gates = gates
        self._args, self._environment, self._cwd = list(args), dict(environment), cwd
        self._stdin_bytes = b""
        self._on_signal: dict[str, Callable[[], None]] = {}
        self._step_iterator = self._follow_plan(plan)

    def _run_until_wait(self) -> None:
        next(self._step_iterator, None)

    def _react_to_signal(self, name: str) -> None:
        self._on_signal.get(name, lambda: self._set_exit(signal=name))()

    def _follow_plan(self, plan: Plan) -> Iterator[None]:
        for name, *values in plan:
            step = getattr(self, f"_do_{name}", None)
            assert step is not None, (
                f"the step {name!r} needs a real process: use Box instead of MemoryBox"
            )
            yield from step(*values) or ()
            if self.exit is not None:
                return
        self._set_exit(code=0)

    # -- the steps; those that may wait are generators ---------------------------------------------

    def _read_line(self) -> Iterator[None]:
        while b"\n" not in self.unread and not self.stdin_closed:
            yield
        line, newline, remaining = self.unread.partition(b"\n")
        self.unread, self._line = remaining, bytes(line + newline)
        self._stdin_bytes += self._line

    def _do_hear(self, substring: str) -> Iterator[None]:
        while True:
            yield from self._read_line()
            if not self._line:
                self._set_exit(code=0)
            if not self._line or substring in self._line.decode():
                return

    def _do_read(self) -> Iterator[None]:
        while not self.stdin_closed:
            self._take_unread()
            yield
        self._take_unread()

    def _do_serve(self) -> Iterator[None]:
        if "--input-format" not in self._args:
            yield from self._do_read()
            return
        while True:
            yield from self._read_line()
            event = json.loads(self._line or "null")
            if event is None or event["type"] == "user":
                return
            if event["type"] == "control_request":
                answer = {
                    "subtype": "success",
                    "request_id": event["request_id"],
                    "response": {"commands": []},
                }
                yield from self._do_out(
                    json.dumps({"type": "control_response", "response": answer}) + "\n"
                )

    def _take_unread(self) -> None:
        self._stdin_bytes += self.unread
        self.unread.clear()

    def _do_wait(self, gate_name: str) -> Iterator[None]:
        while not self._gates[gate_name]:
            yield
        self._gates[gate_name] -= 1

    def _do_hang(self) -> Iterator[None]:
        while True:
            yield

    def _do_record(self, path: str) -> None:
        record = {"arguments": self._args, "environment": self._environment, "cwd": self._cwd}
        record["stdin"] = self._stdin_bytes.decode("utf-8", "replace")
        Path(path).write_text(json.dumps(record), encoding="utf-8")

    def _do_out(self, text: str) -> Iterator[None]:
        yield from self._write_stdout(text.encode(errors="surrogateescape"))

    def _do_complain(self, text: str) -> None:
        self.errors += text.encode()

    def _do_repeat(self, text: str, count: int) -> Iterator[None]:
        yield from self._write_stdout(text.encode() * count)

    def _do_fill(self, count: int) -> Iterator[None]:
        yield from self._write_stdout((b"n" * 99 + b"\n") * (count // 100))

    def _do_cat(self, path: str) -> Iterator[None]:
        yield from self._write_stdout(Path(path).read_bytes())

    def _do_say(self, fifo: str, text: str) -> None:
        self.lifeline_writes.add((fifo, text))

    def _do_ignore(self, *names: str) -> None:
        self._on_signal |= dict.fromkeys(names, lambda: None)

    def _do_out_on(self, name: str, text: str, code: int) -> None:
        def print_and_exit() -> None:
            self.output += text.encode()
            self._set_exit(code=code)

        self._on_signal[name] = print_and_exit

    def _do_close(self, *descriptors: int) -> None:
        assert descriptors == (1,), "only stdout can be closed in memory"
        self.stdout_closed = True

    def _do_die(self, name: str) -> None:
        self._set_exit(signal=name)

    def _do_leave(self, code: int) -> None:
        self._set_exit(code=code)

    def _write_stdout(self, data: bytes) -> Iterator[None]:
        while data:
            count = max(STDOUT_PIPE_BYTES - len(self.output), 0)
            self.output += data[:count]
            data = data[count:]
            if data:
                yield
