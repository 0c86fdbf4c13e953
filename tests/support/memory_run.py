"""Runs the real loop and the real drivers in memory, with a program that answers each line of its
stdin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import anyio
import anyio.lowlevel
import pytest
from memory_child import MemoryChild, MemoryProgram

from shim.conversation.drivers import launcher, per_turn_driver, persistent_driver
from shim.conversation.drivers.launcher import ChildLauncher
from shim.conversation.startup import prepare_conversation
from shim.core.claude.argv.flags import parse_argv
from shim.io.signals import SignalRecorder


class Responder(Protocol):
    """Defines what a program prints."""

    def build_greeting(self) -> bytes:
        """Return what it prints before it reads anything."""

    def answer_line(self, line: bytes) -> bytes:
        """Return what it prints after it has received one line on its stdin."""

    @property
    def waits(self) -> bool:
        """Return whether it reads its stdin, and does not exit after its first output."""


# (command, environment, folder) → responder
Starts = Callable[[Sequence[str], Mapping[str, str], str], Responder]


class RespondingProgram(MemoryProgram):
    """A program that prints what a `Responder` returns, and exits at the end of its stdin."""

    def __init__(self, responder: Responder) -> None:
        super().__init__()
        self._responder = responder
        self.output += responder.build_greeting()
        if not responder.waits:
            self._set_exit(code=0)

    def _run_until_wait(self) -> None:
        *lines, partial_line = bytes(self.unread).split(b"\n")
        self.unread = bytearray(partial_line)
        for line in lines:
            self.output += self._responder.answer_line(line)
        if self.stdin_closed:
            self._set_exit(code=0)


class MemoryOutput:
    """The frontend of a conversation in memory. `data` has all bytes that it received."""

    has_failed = False

    def __init__(self) -> None:
        self.data = b""

    async def wait_for_disconnect(self) -> None:
        await anyio.sleep_forever()

    async def write(self, data: bytes) -> None:
        self.data += data
        await anyio.lowlevel.checkpoint()


class MemoryEnds:
    """Replaces file descriptors 0 and 1. There is no stdin."""

    source: Any = None

    def __init__(self) -> None:
        self.stdout = MemoryOutput()

    @asynccontextmanager
    async def serve_clients(self, stop):
        yield


class MemoryLauncher(ChildLauncher):
    """A launcher that does not start a program for its help."""

    uses_remembered_help = True


def run_in_memory(
    monkeypatch: pytest.MonkeyPatch, args: Sequence[str], vendor: str, starts: Starts
) -> bytes:
    """Run `claude ARGS` with a vendor whose program is created by `starts`. Return what the
    frontend received.

    Raise ShimError if the turn is refused before a child is started.
    """

    def spawn_child(
        command: Sequence[str], environment: Mapping[str, str], cwd: str, **options: Any
    ) -> MemoryProgram:
        return RespondingProgram(starts(command, environment, cwd))

    with monkeypatch.context() as patch:
        patch.setattr(launcher, "spawn_child", spawn_child)
        patch.setattr(launcher, "become_subreaper", lambda: None)
        for driver in (per_turn_driver, persistent_driver):
            patch.setattr(driver, "Child", MemoryChild)
        ends = MemoryEnds()
        prepare_conversation(
            parse_argv(args), {"vendor": vendor}, launcher_class=MemoryLauncher
        ).run(SignalRecorder(), ends)
    return ends.stdout.data
