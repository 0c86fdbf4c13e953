"""A box for background sessions: their vendor, their hosts, and how they end."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from box import Box, Done
from session_hosts import TIMEOUT_S

from shim.bridge import registry
from shim.bridge.client import HostConnection, connect_to_session_blocking
from shim.bridge.registry import SessionRecord
from shim.bridge.stop import stop_hosts
from shim.core.bridge.frames import WATCH


class HostingBox:
    """A box whose hosts are stopped with it.

    `environment` has variables in addition to those of the box. `variables` is the complete
    environment of a host and its clients.
    """

    def __init__(self, box: Box) -> None:
        self.box = box
        self.environment: dict[str, str | None] = {"SHIM_VENDOR": "qwen"}

    @property
    def variables(self) -> dict[str, str]:
        return self.box.build_environment(**self.environment)

    def set_vendor_plan(self, *steps: Any) -> None:
        """Let the vendor's program run these steps at each start."""
        self.environment["SHIM_BIN"] = self.box.create_fake(*steps)

    def run_claude(self, *args: str, **environment: str | None) -> Done:
        """Run the drop-in to its end."""
        return self.box.run_claude(*args, **{**self.environment, **environment})

    def list_sessions(self) -> list[SessionRecord]:
        return registry.list_sessions(self.variables)

    def load_session(self, session: SessionRecord) -> SessionRecord:
        """Return the current record of a session."""
        record = registry.find_session(session.session_id, self.variables)
        assert record is not None
        return record

    def list_children(self, session: SessionRecord) -> list[int]:
        """Return the ids of the running child processes of a host."""
        pid = self.load_session(session).metadata["pid"]
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]

    def wait_for_frame(self, connection: HostConnection, kind: str) -> dict[str, Any]:
        """Return the next frame of a kind."""
        return next(frame for frame in connection.read_frames(TIMEOUT_S) if frame["kind"] == kind)

    def wait_until(
        self, session: SessionRecord, happened: Callable[[SessionRecord], bool]
    ) -> SessionRecord:
        """Wait until a condition holds for a session. Return its record."""
        deadline = time.monotonic() + TIMEOUT_S
        while not happened(now := self.load_session(session)):
            assert time.monotonic() < deadline, now
            time.sleep(0.01)
        return now

    def wait_until_idle(self, session: SessionRecord) -> SessionRecord:
        """Wait until no turn of a session is running."""
        return self.wait_until(session, lambda now: now.metadata["status"] == "idle")

    def wait_until_uncontrolled(self, session: SessionRecord) -> SessionRecord:
        """Wait until the controller of a session has disconnected."""
        return self.wait_until(session, lambda now: now.metadata["driver"] is None)

    def wait_for_mode(self, session: SessionRecord, mode: str) -> None:
        """Wait until a session is in a permission mode."""
        deadline, now = time.monotonic() + TIMEOUT_S, None
        while now != mode:
            assert time.monotonic() < deadline, now
            with connect_to_session_blocking(
                session.session_id, self.variables, role=WATCH, replay=False
            ) as connection:
                now = connection.welcome["mode"]

    def wait_for_end(self, session: SessionRecord) -> SessionRecord:
        """Wait until the host of a session has exited."""
        return self.wait_until(session, lambda now: not now.is_running)

    def stop_hosts(self) -> None:
        """Stop every host, including hosts that are still starting."""
        deadline, running_sessions = time.monotonic() + TIMEOUT_S, self.list_sessions()
        while running_sessions := stop_hosts(running_sessions, self.variables):
            assert time.monotonic() < deadline, running_sessions
