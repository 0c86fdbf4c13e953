"""Helpers for tests of the bridge: a state folder, hosts that are stopped with it, and the frames
of a client.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from shim.bridge import registry
from shim.bridge.client import HostConnection, connect_to_session_blocking
from shim.bridge.launch import SessionSpec, reap_exited_hosts, start_host
from shim.bridge.registry import SessionRecord
from shim.bridge.stop import stop_hosts

# No test takes so long unless something hangs. Two processes have to start one after the other.
TIMEOUT_S = 60.0


class Hosting:
    """Hosts with their own state folder and home."""

    def __init__(self, path: Path, **variables: str) -> None:
        self.cwd = path / "work"
        self.cwd.mkdir(parents=True)
        state = path / "state"
        state.mkdir(mode=0o700)
        base_environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SHIM_", "CLAUDE"))
        }
        here = {"HOME": str(path), "SHIM_STATE": str(state), "SHIM_VENDOR": "demo"}
        self.environment = {**base_environment, **here, **variables}

    def start_session(
        self, prompt: str | None = None, session: str = "", **fields: Any
    ) -> SessionRecord:
        """Start a host. `fields` are those of `SessionSpec`."""
        message = None if prompt is None else {"role": "user", "content": prompt}
        return start_host(
            SessionSpec(**{"prompt": message, "cwd": str(self.cwd), **fields}),
            self.environment,
            session,
        )

    def connect(self, session: SessionRecord, **hello: Any) -> HostConnection:
        """Connect to a host."""
        return connect_to_session_blocking(session.session_id, self.environment, **hello)

    def load_session(self, session: SessionRecord) -> SessionRecord:
        """Return the current record of a session."""
        record = registry.find_session(session.session_id, self.environment)
        assert record is not None
        return record

    def wait_until(
        self, session: SessionRecord, happened: Callable[[SessionRecord], bool]
    ) -> SessionRecord:
        """Wait until a condition holds for a session. Return its record."""
        deadline = time.monotonic() + TIMEOUT_S
        while not happened(now := self.load_session(session)):
            assert time.monotonic() < deadline, now
            time.sleep(0.01)
        return now

    def wait_for_end(self, session: SessionRecord) -> SessionRecord:
        """Wait until the host of a session has exited."""
        now = self.wait_until(session, lambda now: not now.is_running)
        reap_exited_hosts()
        return now

    @contextmanager
    def halt_host(self, session: SessionRecord) -> Iterator[int]:
        """Stop the process of a host with SIGSTOP within this context. It does not respond and
        writes no files.
        """
        pid: int = self.wait_until(session, lambda now: now.metadata["pid"] is not None).metadata[
            "pid"
        ]
        os.kill(pid, signal.SIGSTOP)
        try:
            self.wait_until(session, lambda now: _is_stopped(pid))
            yield pid
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def stop_hosts(self) -> None:
        """Stop all running hosts, including hosts that are still starting."""
        deadline, running_sessions = (
            time.monotonic() + TIMEOUT_S,
            registry.list_sessions(self.environment),
        )
        while running_sessions := stop_hosts(running_sessions, self.environment):
            assert time.monotonic() < deadline, running_sessions
        reap_exited_hosts()


def _is_stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(") ")[2].startswith("T")


def wait_for_frame(connection: HostConnection, kind: str, **keys: Any) -> dict[str, Any]:
    """Return the next frame of a kind with these values."""
    for came in connection.read_frames(TIMEOUT_S):
        if came["kind"] == kind and all(came.get(key) == value for key, value in keys.items()):
            return came
    raise AssertionError(f"no {kind} came")


def select_claude_lines(frames: Iterator[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Return Claude's complete lines among frames."""
    return (frame["line"] for frame in frames if frame["kind"] == "line" and "number" in frame)


def read_until_result(connection: HostConnection) -> list[Mapping[str, Any]]:
    """Return Claude's complete lines up to the next result."""
    messages = []
    for line in select_claude_lines(connection.read_frames(TIMEOUT_S)):
        messages.append(line)
        if line["type"] == "result":
            return messages
    raise AssertionError("no result came")
