"""Background sessions that are started as a person would, and observed by a second client."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sandbox import TURN_SECONDS, Line, Sandbox, wait_until

from shim.bridge import registry
from shim.bridge.client import connect_to_session_blocking
from shim.bridge.registry import SessionRecord
from shim.core.bridge.frames import WATCH

STARTED_LINE = re.compile(r"backgrounded · ([0-9a-f]{8})")


@dataclass
class Living:
    """One background session in a sandbox."""

    sandbox: Sandbox
    uuid: str

    def read_record(self) -> SessionRecord:
        record = registry.find_session(self.uuid, self.sandbox.environment)
        assert record is not None
        return record

    @property
    def alive(self) -> bool:
        return self.read_record().is_running

    def list_children(self) -> list[int]:
        """Return the vendor's processes, which are the children of the host."""
        pid = self.read_record().metadata["pid"]
        return sorted(
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        )

    def wait_until_idle(self) -> None:
        """Wait for the end of the turn."""
        assert wait_until(lambda: self.read_record().metadata["status"] == "idle", TURN_SECONDS), (
            self.read_record()
        )

    @contextmanager
    def watch_frames(self) -> Iterator[Iterator[Line]]:
        """Return the frames for a client that only watches."""
        with connect_to_session_blocking(
            self.uuid, self.sandbox.environment, role=WATCH, replay=False
        ) as connection:
            yield connection.read_frames(TURN_SECONDS)

    def stop(self) -> None:
        """Stop the session, as a person would."""
        _run_claude(self.sandbox, "stop", self.uuid[:8])
        assert wait_until(lambda: not self.alive, TURN_SECONDS)


@contextmanager
def start_session(sandbox: Sandbox, prompt: str, *flags: str) -> Iterator[Living]:
    """Start a session with `claude --bg`, and wait for its first answer. It is stopped at the end."""
    (session_id,) = STARTED_LINE.findall(_run_claude(sandbox, "--bg", prompt, *flags))
    (record,) = registry.list_sessions_by_id_prefix(session_id, sandbox.environment)
    session = Living(sandbox, record.session_id)
    session.wait_until_idle()
    try:
        yield session
    finally:
        session.stop()


def list_running_sessions(sandbox: Sandbox) -> list[Living]:
    """Return the running sessions of a sandbox."""
    return [
        Living(sandbox, record.session_id)
        for record in registry.list_sessions(sandbox.environment)
        if record.is_running
    ]


def _run_claude(sandbox: Sandbox, *args: str) -> str:
    done = subprocess.run(
        [str(sandbox.claude), *args],
        cwd=sandbox.folder,
        env=dict(sandbox.environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TURN_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done
    return done.stdout
