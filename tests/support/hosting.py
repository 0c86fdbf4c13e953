"""What the tests of the bridge share: a state of its own, hosts that are ended with it, and what a
client hears.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from shim.bridge import registry
from shim.bridge.link import HostConnection, connect_to_session_blocking
from shim.bridge.registry import SessionRecord
from shim.bridge.start import SessionSpec, reap_hosts, start_host
from shim.bridge.stop import stop_hosts

# no test takes so long unless something hangs: two processes have to begin, one behind the other
PATIENCE = 60.0


class Hosting:
    """Hosts in a state folder and a home of their own."""

    def __init__(self, path: Path, **variables: str) -> None:
        self.cwd = path / "work"
        self.cwd.mkdir(parents=True)
        state = path / "state"
        state.mkdir(mode=0o700)
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SHIM_", "CLAUDE"))
        }
        here = {"HOME": str(path), "SHIM_STATE": str(state), "SHIM_VENDOR": "demo"}
        self.environment = {**kept, **here, **variables}

    def start_session(
        self, prompt: str | None = None, session: str = "", **wanted: Any
    ) -> SessionRecord:
        """Begin a host; `wanted` are fields of `Wanted`."""
        message = None if prompt is None else {"role": "user", "content": prompt}
        return start_host(
            SessionSpec(**{"prompt": message, "cwd": str(self.cwd), **wanted}),
            self.environment,
            session,
        )

    def connect(self, one: SessionRecord, **hello: Any) -> HostConnection:
        """A connection to it."""
        return connect_to_session_blocking(one.session_id, self.environment, **hello)

    def load_session(self, one: SessionRecord) -> SessionRecord:
        """What is known of it now."""
        found = registry.find_session(one.session_id, self.environment)
        assert found is not None
        return found

    def wait_until(
        self, one: SessionRecord, happened: Callable[[SessionRecord], bool]
    ) -> SessionRecord:
        """Look at a session until something is so."""
        deadline = time.monotonic() + PATIENCE
        while not happened(now := self.load_session(one)):
            assert time.monotonic() < deadline, now
            time.sleep(0.01)
        return now

    def wait_for_end(self, one: SessionRecord) -> SessionRecord:
        """Wait until its host has gone."""
        now = self.wait_until(one, lambda now: not now.is_running)
        reap_hosts()
        return now

    @contextmanager
    def halt_host(self, one: SessionRecord) -> Iterator[int]:
        """The process of its host, which stands still meanwhile: it hears nobody, and writes none
        of its files.
        """
        pid: int = self.wait_until(one, lambda now: now.metadata["pid"] is not None).metadata["pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            self.wait_until(one, lambda now: _is_stopped(pid))
            yield pid
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def stop_hosts(self) -> None:
        """End all that live, also those that are not up yet."""
        deadline, left = time.monotonic() + PATIENCE, registry.list_sessions(self.environment)
        while left := stop_hosts(left, self.environment):
            assert time.monotonic() < deadline, left
        reap_hosts()


def _is_stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(") ")[2].startswith("T")


def wait_for_frame(link: HostConnection, kind: str, **keys: Any) -> dict[str, Any]:
    """The next frame of a kind, with these values."""
    for came in link.read_frames(PATIENCE):
        if came["kind"] == kind and all(came.get(key) == value for key, value in keys.items()):
            return came
    raise AssertionError(f"no {kind} came")


def select_claude_lines(frames: Iterator[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Claude's whole lines among frames."""
    return (one["line"] for one in frames if one["kind"] == "line" and "number" in one)


def read_until_result(link: HostConnection) -> list[Mapping[str, Any]]:
    """Claude's whole lines up to the next result."""
    found = []
    for line in select_claude_lines(link.read_frames(PATIENCE)):
        found.append(line)
        if line["type"] == "result":
            return found
    raise AssertionError("no result came")
