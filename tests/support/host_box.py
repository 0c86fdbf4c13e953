"""A box whose sessions live on their own: its vendor, its hosts, and their ends."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from box import Box, Done
from session_hosts import PATIENCE

from shim.bridge import registry
from shim.bridge.client import HostConnection, connect_to_session_blocking
from shim.bridge.registry import SessionRecord
from shim.bridge.stop import stop_hosts
from shim.core.bridge.frames import WATCH


class HostingBox:
    """`environment` is what is said beside the box's own; `variables` are all that a host and its
    clients have.
    """

    def __init__(self, box: Box) -> None:
        self.box = box
        self.environment: dict[str, str | None] = {"SHIM_VENDOR": "qwen"}

    @property
    def variables(self) -> dict[str, str]:
        return self.box.build_environment(**self.environment)

    def set_vendor_plan(self, *steps: Any) -> None:
        """The program of the vendor does these steps, each time that it is started."""
        self.environment["SHIM_BIN"] = self.box.create_fake(*steps)

    def run_claude(self, *args: str, **environment: str | None) -> Done:
        """The drop-in, to its end."""
        return self.box.run_claude(*args, **{**self.environment, **environment})

    def list_sessions(self) -> list[SessionRecord]:
        return registry.list_sessions(self.variables)

    def load_session(self, session: SessionRecord) -> SessionRecord:
        """What is known of a session now."""
        record = registry.find_session(session.session_id, self.variables)
        assert record is not None
        return record

    def list_children(self, session: SessionRecord) -> list[int]:
        """The processes that a host has started, and that live."""
        pid = self.load_session(session).metadata["pid"]
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]

    def wait_for_frame(self, connection: HostConnection, kind: str) -> dict[str, Any]:
        """The next frame of a kind."""
        return next(frame for frame in connection.read_frames(PATIENCE) if frame["kind"] == kind)

    def wait_until(
        self, session: SessionRecord, happened: Callable[[SessionRecord], bool]
    ) -> SessionRecord:
        """Look at a session until something is so."""
        deadline = time.monotonic() + PATIENCE
        while not happened(now := self.load_session(session)):
            assert time.monotonic() < deadline, now
            time.sleep(0.01)
        return now

    def wait_until_idle(self, session: SessionRecord) -> SessionRecord:
        """Wait until no turn of a session runs."""
        return self.wait_until(session, lambda now: now.metadata["status"] == "idle")

    def wait_until_uncontrolled(self, session: SessionRecord) -> SessionRecord:
        """Wait until the frontend that drove a session has left it."""
        return self.wait_until(session, lambda now: now.metadata["driver"] is None)

    def wait_for_mode(self, session: SessionRecord, mode: str) -> None:
        """Wait until a session is in a permission mode."""
        deadline, now = time.monotonic() + PATIENCE, None
        while now != mode:
            assert time.monotonic() < deadline, now
            with connect_to_session_blocking(
                session.session_id, self.variables, role=WATCH, replay=False
            ) as connection:
                now = connection.welcome["mode"]

    def wait_for_end(self, session: SessionRecord) -> SessionRecord:
        """Wait until a host has gone."""
        return self.wait_until(session, lambda now: not now.is_running)

    def stop_hosts(self) -> None:
        """End every host, also those that are not up yet."""
        deadline, running_sessions = time.monotonic() + PATIENCE, self.list_sessions()
        while running_sessions := stop_hosts(running_sessions, self.variables):
            assert time.monotonic() < deadline, running_sessions
