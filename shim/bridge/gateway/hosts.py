"""Background sessions of this machine: lists sessions, connects to their hosts, and starts new
sessions.

Only the logs of ended sessions are cached. Each call reads the session folders again.
"""

import errno
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import anyio

from shim.bridge import launch, registry
from shim.bridge.client import HostConnection, connect_to_session
from shim.bridge.ended_session import has_cursor_line, iterate_ended_session_frames, open_ended_log
from shim.bridge.registry import SessionRecord
from shim.core.adapter.adapter import Adapter
from shim.core.bridge.frames import DRIVE, WATCH, LogCursor
from shim.core.claude.argv.flags import Invocation
from shim.core.errors import FrontendError, ShimError
from shim.core.reading.values import none_if_empty, shorten_session_id, split_machine
from shim.process.find_program import find_program, resolve_command_prefix
from shim.process.spawn_error import create_spawn_error
from shim.state import own_profiles
from shim.state.config import ShimSettings, VendorSettings, load_shim_settings

# The names under which other clients see the gateway's connections.
CONTROLLER_NAME = "web"
WATCHER_NAME = "web reader"
READ_BATCH_FRAMES = 256  # frames of an ended session that are read at once


class NewSessionRequest(NamedTuple):
    """A request to start a session."""

    vendor: str
    prompt: str
    cwd: str
    model: str = ""
    mode: str = ""


class LocalBackgroundSessionManager:
    """Manages the background sessions of this machine. A session is a dict with the metadata from
    `host.json` and the key `alive`.

    `installed_options` are the options that `shim install` wrote into the drop-in `claude` file.
    """

    def __init__(
        self, environment: Mapping[str, str], installed_options: Mapping[str, str]
    ) -> None:
        self._environment = environment
        self._installed_options = installed_options

    def list_sessions(self) -> list[dict[str, Any]]:
        """Return all sessions. The most recently started session comes first."""
        launch.reap_exited_hosts()
        return [
            build_session_fields(session) for session in registry.list_sessions(self._environment)
        ]

    def find_sessions(self, id_prefix: str) -> list[dict[str, Any]]:
        """Return the sessions whose UUID starts with `id_prefix`, which may be a complete UUID."""
        return [
            build_session_fields(session)
            for session in registry.list_sessions_by_id_prefix(id_prefix, self._environment)
        ]

    def list_installed_vendors(self) -> list[str]:
        """Return the vendors whose program a new session can find. No program is started."""
        try:
            settings = load_shim_settings(Invocation(), self._environment, self._installed_options)
        except FrontendError:
            settings = ShimSettings()  # starting a session will report the error
        return [
            name
            for name, vendor in own_profiles.load_adapters_and_errors()[0].items()
            if vendor.cli.bundled_module
            or self._has_program(vendor, settings.get_vendor_settings(name))
        ]

    def _has_program(self, vendor: Adapter, vendor_settings: VendorSettings) -> bool:
        environment = {
            name: value for name, value in self._environment.items() if name != "SHIM_BIN"
        }
        try:
            if vendor.cli.unreleased_note:
                return False
            return bool(find_program(vendor, vendor_settings, environment, os.getcwd()))
        except ShimError:
            return False

    def start_session(self, new_session: NewSessionRequest) -> str:
        """Start a session and return its UUID. Raise VendorError if the vendor's program cannot be
        started.
        """
        self._check_program(new_session.vendor, new_session.cwd)
        args = [f"--shim-vendor={new_session.vendor}"]
        if new_session.model:
            args += [f"--model={new_session.model}"]
        if new_session.mode:
            args += [f"--permission-mode={new_session.mode}"]
        spec = launch.SessionSpec(
            arguments=args,
            installed=self._installed_options,
            cwd=new_session.cwd,
            vendor=new_session.vendor,
            prompt={"role": "user", "content": new_session.prompt},
        )
        return launch.start_host(spec, self._environment).session_id

    def _check_program(self, vendor_name: str, cwd: str) -> None:
        """Raise VendorError if the vendor's program cannot be started.

        Without this check, the session's host would start and fail immediately.
        """
        vendor = own_profiles.load_adapters_and_errors()[0].get(vendor_name)
        vendor_settings = load_shim_settings(
            Invocation(), self._environment, self._installed_options
        ).get_vendor_settings(vendor_name)
        command_prefix = resolve_command_prefix(vendor_settings.launcher, self._environment, cwd)
        if vendor is None or vendor.cli.bundled_module:
            return
        program = find_program(vendor, vendor_settings, self._environment, cwd)
        if not command_prefix and not os.access(program, os.X_OK):
            error = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            raise create_spawn_error([program], self._environment, cwd, error)

    def respawn_session(self, session_id: str, prompt: str, prompt_id: str) -> bool:
        """Resume an ended session with a message. Return False if another client has just resumed
        the session.

        `prompt_id` is the message's UUID, or "" for none. A message with a UUID is sent only once.
        Raise ShimError if the session cannot be resumed.
        """
        try:
            launch.respawn_session(
                self._load_session(session_id),
                self._environment,
                {"role": "user", "content": prompt},
                prompt_id,
            )
        except launch.SessionRunningError:
            return False
        return True

    def has_accepted_prompt(self, session_id: str, prompt_id: str) -> bool:
        """Return whether an ended session has already accepted the message with a given UUID. If
        so, the session must not be resumed to send the message again.
        """
        return prompt_id in open_ended_log(self._load_session(session_id)).list_message_ids()

    def is_cursor_at_log_end(self, session_id: str, cursor: LogCursor) -> bool:
        """Return whether the cursor is at the last line of an ended session's log."""
        log = open_ended_log(self._load_session(session_id))
        if cursor.number != log.last_line_number:
            return False
        return has_cursor_line(log, cursor)

    @asynccontextmanager
    async def connect_to_session(
        self, session_id: str, *, as_controller: bool, after: LogCursor | None = None
    ) -> AsyncIterator["SessionFrameStream"]:
        """Connect to a session. For an ended session, the stream yields its log and then `bye`.

        Raise FrontendError if the session does not exist, or if its host does not answer.
        """
        session = await anyio.to_thread.run_sync(self._load_session, session_id)
        if not session.is_running:
            yield await anyio.to_thread.run_sync(_EndedFeed, session, after)
            return
        async with connect_to_host(
            session.session_id, self._environment, as_controller=as_controller, after=after
        ) as frames:
            yield frames

    def _load_session(self, session_id: str) -> SessionRecord:
        session = registry.find_session_trusting_metadata(session_id, self._environment)
        if session is None:
            raise FrontendError(f"session {session_id} not found")
        return session


@asynccontextmanager
async def connect_to_host(
    session_id: str,
    environment: Mapping[str, str],
    *,
    as_controller: bool,
    after: LogCursor | None,
) -> AsyncIterator["SessionFrameStream"]:
    """Connect the gateway to the host of a running session, on this machine or on another one.

    A controller only sends an action, so it receives neither the log nor partial messages.
    """
    role, client = WATCH, WATCHER_NAME
    if as_controller:
        role, client = DRIVE, CONTROLLER_NAME
    async with await connect_to_session(
        session_id,
        environment,
        role=role,
        after=after,
        client=client,
        replay=not as_controller,
        partial=not as_controller,
    ) as connection:
        yield _RunningFeed(connection)


class _RunningFeed:
    """The frames of a running session, of which `welcome` is the first."""

    def __init__(self, connection: HostConnection) -> None:
        self._connection = connection

    async def __aiter__(self) -> AsyncIterator[Mapping[str, Any]]:
        """Yield frames until the connection ends."""
        yield self._connection.welcome
        async for frame in self._connection:
            yield frame

    async def send_frame(self, frame: Mapping[str, Any]) -> None:
        """Send a frame to the host. Raise FrontendError if the host has ended."""
        await self._connection.send_frame(frame)


class _EndedFeed:
    """The frames of an ended session, in the order in which a host would send them.

    The constructor reads the log, so it must be called in a worker thread.
    """

    def __init__(self, session: SessionRecord, after: LogCursor | None) -> None:
        self._frames = iterate_ended_session_frames(session, open_ended_log(session), after)

    async def __aiter__(self) -> AsyncIterator[Mapping[str, Any]]:
        while frames := await anyio.to_thread.run_sync(self._read_batch):
            for frame in frames:
                yield frame

    def _read_batch(self) -> list[Mapping[str, Any]]:
        return list(islice(self._frames, READ_BATCH_FRAMES))

    async def send_frame(self, frame: Mapping[str, Any]) -> None:
        """Raise FrontendError, because the session has no host."""
        raise FrontendError("the session has ended")


# In a `line` frame, `raw` contains Claude's line byte for byte.
SessionFrameStream: TypeAlias = _RunningFeed | _EndedFeed


def build_session_fields(session: SessionRecord) -> dict[str, Any]:
    """Build the fields of a session for the page. `machine` is None for this machine."""
    machine, uuid = split_machine(session.session_id)
    return {
        **session.metadata,
        "id": shorten_session_id(uuid),
        "session": uuid,
        "alive": session.is_running,
        "machine": none_if_empty(machine),
    }
