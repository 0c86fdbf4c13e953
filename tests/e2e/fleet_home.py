"""A fleet with a machine and a user, and what tests read of it over a connection of their own."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest
from fleet_lab import FleetLab
from test_machines import LOOK_SECONDS, TURN_SECONDS, run_shim, start_demo, wait_for_state

from shim.core.fleet import subjects
from shim.core.fleet.copied_line import CopyReader
from shim.core.fleet.join_file import JoinFile, get_read_key
from shim.core.fleet.roles import WATCH
from shim.fleet.buckets import BucketError
from shim.fleet.connection import FleetConnection, FleetUnavailableError, connect_to_fleet
from shim.fleet.folder import require_join_file, store_join_file
from shim.fleet.log_stream import read_log_messages
from shim.fleet.view import FleetView

AWAY_SECONDS = 15.0  # until a machine that has died is shown as away
UUID = "0123abcd-0000-4000-8000-000000000001"
Result = TypeVar("Result")


@dataclass
class Home:
    """A fleet with the machine `build`, which has the vendor demo, and the user `here`."""

    lab: FleetLab
    folder: Path
    build: dict[str, str] = field(default_factory=dict)
    here: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.build = self.create_environment("build")
        self.here = self.lab.build_environment(["build"])
        self.lab.start_machine("build", self.build)

    def create_environment(self, name: str) -> dict[str, str]:
        """Return the environment of a machine with a state folder of its own."""
        state = self.folder / f"{name}-state"
        state.mkdir(mode=0o700)
        return {
            "PATH": self.lab.build_environment([])["PATH"],
            "SHIM_STATE": str(state),
            "SHIM_CONFIG": "/dev/null",
            "HOME": str(self.folder),
        }

    def start_session(self) -> dict[str, Any]:
        """Start a session on `build`, and return it when its turn has ended."""
        start_demo(self.here, "--machine", "build", "--cwd", str(self.folder))
        return wait_for_state(self.here, "done")

    def join_as(self, join: JoinFile) -> dict[str, str]:
        """Return the environment of a member with a join file."""
        environment = self.create_environment(f"{join.name}-{random.randrange(10**9)}")
        store_join_file(join, environment)
        return environment


@contextmanager
def run_home(
    folder: Path, create_home: Callable[[FleetLab, Path], Home] | None = None
) -> Iterator[Any]:
    """Run a fleet with its machine until the end of the block. Then stop its sessions."""
    lab_folder = folder / "lab"
    lab_folder.mkdir()
    lab = FleetLab(lab_folder)
    try:
        home = (create_home or Home)(lab, folder)
        yield home
        run_shim(home.build, "claude", "daemon", "stop", "--any")
    finally:
        lab.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with run_home(tmp_path) as home:
        yield home


def run_connected(join: JoinFile, use: Callable[[FleetConnection], Awaitable[Result]]) -> Result:
    """Run a coroutine function with a connection of a member."""

    async def run() -> Result:
        async with connect_to_fleet(join) as connection:
            return await use(connection)

    return asyncio.run(run())


async def wait_for(is_met: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait until a condition is met. Raise TimeoutError if this takes longer than TURN_SECONDS."""
    with anyio.fail_after(TURN_SECONDS):
        while True:
            result = is_met()
            if await result if inspect.isawaitable(result) else result:
                return
            await asyncio.sleep(LOOK_SECONDS)


def has_copied_messages(home: Home, uuid: str) -> bool:
    """Return whether the fleet has a message with a line of a session of `build`."""

    async def read(connection: FleetConnection) -> bool:
        subject = subjects.build_log_subject("home", "build", uuid)
        return any(
            [message.data async for message in read_log_messages(connection.client, subject)]
        )

    return run_connected(home.lab.invite(f"reader{random.randrange(10**9)}", WATCH), read)


def read_copied_lines(home: Home, uuid: str) -> list[tuple[int, bytes]]:
    """Return the lines of the copy that the fleet has of a session of `build`."""

    async def read(connection: FleetConnection) -> list[tuple[int, bytes]]:
        view = FleetView(connection.join)
        await view.load(connection)
        public_key = view.machines["build"].public_key
        subject = subjects.build_log_subject("home", "build", uuid)
        reader = CopyReader(get_read_key(connection.join), subject, public_key, 0)
        lines = []
        async for message in read_log_messages(connection.client, subject):
            if not message.data:
                continue  # the copy was removed
            line = reader.read(message.headers, message.data)
            assert line is not None, "a line is stored twice, or is damaged"
            assert reader.missing_numbers is None
            lines.append((line.number, line.line))
        return lines

    try:
        return run_connected(require_join_file(home.here), read)
    except (BucketError, FleetUnavailableError):
        return []
