"""What the gateway asks of the hosts on this machine: which there are, a connection to one, another
one.

It keeps nothing: each question looks at the folders of the sessions again.
"""

import errno
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial as bind
from typing import Any, NamedTuple, Protocol

import anyio

from shim.bridge import registry, start
from shim.bridge.cast_log import RecordingLog
from shim.bridge.link import HostConnection, connect_to_session
from shim.bridge.registry import SessionRecord
from shim.core.adapter.vendor import Adapter
from shim.core.bridge.frames import DRIVE, WATCH, Cursor
from shim.core.claude.argv.invocation import Invocation
from shim.core.errors import FrontendError, ShimError
from shim.process.find_program import find_command_prefix, find_program
from shim.process.spawn_error import create_spawn_error
from shim.state import own_vendors
from shim.state.config import Settings, VendorSettings, load_config

CONTROLLER_NAME, WATCHER_NAME = (
    "web",
    "web reader",
)  # what other clients are told of who came through the gateway
READ_BATCH_LINES = 256  # of an ended session's log, that are read at once
STATE_KEYS = ("state", "status", "waitingFor", "needs", "detail")


class NewSession(NamedTuple):
    """A session that is to begin."""

    vendor: str
    prompt: str
    cwd: str
    model: str = ""
    mode: str = ""


class SessionFeed(Protocol):
    """What a living session says, or an ended one has said.

    A `line` frame has `raw`, Claude's line byte for byte.
    """

    def __aiter__(self) -> AsyncIterator[Mapping[str, Any]]:
        """The frames, `welcome` first, to the end of the connection."""

    async def send_frame(self, frame: Mapping[str, Any]) -> None:
        """Say a frame. FrontendError where nobody hears it."""


class Hosts(Protocol):
    """The sessions of this machine. A session is told by its facts, as `host.json` has them, and by
    `alive`.
    """

    def list_sessions(self) -> list[dict[str, Any]]:
        """All of them, the last begun first."""

    def find_sessions(self, word: str) -> list[dict[str, Any]]:
        """Those whose UUID is or begins with `word`."""

    def list_installed_vendors(self) -> list[str]:
        """The vendors whose program is on this machine, without a program being asked."""

    def start_session(self, wanted: NewSession) -> str:
        """Begin a session; its UUID. ShimError says why it cannot be."""

    def respawn_session(self, session: str, prompt: str, prompt_id: str) -> bool:
        """Begin the next life of a session that has ended, with a message. ShimError says why it
        cannot be.

        Under one UUID a message is said once; "" is none. False where somebody else was quicker to
        begin it.
        """

    def has_message(self, session: str, prompt_id: str) -> bool:
        """Whether a session that has ended has taken the message of a UUID: nothing need begin for
        it again.
        """

    def is_up_to_date(self, session: str, cursor: Cursor) -> bool:
        """Whether a session that has ended has nothing behind a cursor."""

    def connect_to_session(
        self,
        session: str,
        *,
        as_controller: bool,
        after: Cursor | None = None,
        replay: bool = True,
        partial: bool = True,
    ) -> AbstractAsyncContextManager[SessionFeed]:
        """A connection to a session; one that has ended says what it said, and `bye`.

        FrontendError where there is no such session, or its host does not answer.
        """


class LocalHosts:
    """The sessions of this machine's own registry. `installed` is what `shim install` baked into
    the drop-in.
    """

    def __init__(self, environment: Mapping[str, str], installed: Mapping[str, str]) -> None:
        self._environment = environment
        self._installed_options = installed

    def list_sessions(self) -> list[dict[str, Any]]:
        """All of them, the last begun first."""
        start.reap_hosts()
        return [_build_session_fields(one) for one in registry.list_sessions(self._environment)]

    def find_sessions(self, word: str) -> list[dict[str, Any]]:
        """Those whose UUID is or begins with `word`."""
        return [
            _build_session_fields(one)
            for one in registry.list_sessions_by_id(word, self._environment)
        ]

    def list_installed_vendors(self) -> list[str]:
        """The vendors whose program is on this machine, as a session that is begun here would find
        it.
        """
        try:
            settings = load_config(Invocation(), self._environment, self._installed_options)
        except FrontendError:
            settings = Settings()  # the session that is begun says what is wrong with them
        return [
            name
            for name, vendor in own_vendors.load_all_adapters()[0].items()
            if vendor.cli.bundled_module
            or self._has_program(vendor, settings.get_vendor_settings(name))
        ]

    def _has_program(self, vendor: Adapter, own: VendorSettings) -> bool:
        searched = {name: value for name, value in self._environment.items() if name != "SHIM_BIN"}
        try:
            return not vendor.cli.unreleased_note and bool(
                find_program(vendor, own, searched, os.getcwd())
            )
        except ShimError:
            return False

    def start_session(self, wanted: NewSession) -> str:
        """Start a session and return its UUID. Raise VendorError if the vendor's program cannot be
        started.
        """
        self._check_program(wanted.vendor, wanted.cwd)
        words = [f"--shim-vendor={wanted.vendor}"]
        words += [f"--model={wanted.model}"] if wanted.model else []
        words += [f"--permission-mode={wanted.mode}"] if wanted.mode else []
        host = start.SessionSpec(
            arguments=words,
            installed=self._installed_options,
            cwd=wanted.cwd,
            vendor=wanted.vendor,
            prompt={"role": "user", "content": wanted.prompt},
        )
        return start.start_host(host, self._environment).session_id

    def _check_program(self, name: str, cwd: str) -> None:
        """Raise VendorError if the program cannot be started, so that no host is started that fails
        at once.
        """
        vendor = own_vendors.load_all_adapters()[0].get(name)
        own = load_config(
            Invocation(), self._environment, self._installed_options
        ).get_vendor_settings(name)
        launcher = find_command_prefix(own.launcher, self._environment, cwd)
        if vendor is None or vendor.cli.bundled_module:
            return
        program = find_program(vendor, own, self._environment, cwd)
        if not launcher and not os.access(program, os.X_OK):
            error = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            raise create_spawn_error([program], self._environment, cwd, error)

    def respawn_session(self, session: str, prompt: str, prompt_id: str) -> bool:
        """Begin the next life of a session that has ended."""
        try:
            start.respawn_session(
                self._load_session(session),
                self._environment,
                {"role": "user", "content": prompt},
                prompt_id,
            )
        except start.SessionRunningError:
            return False
        return True

    def has_message(self, session: str, prompt_id: str) -> bool:
        """Whether a session that has ended has taken the message of a UUID."""
        return prompt_id in _open_log(self._load_session(session)).list_message_ids()

    def is_up_to_date(self, session: str, cursor: Cursor) -> bool:
        """Whether a session that has ended has nothing behind a cursor."""
        log = _open_log(self._load_session(session))
        return cursor.number == log.last_number and _has_cursor_line(log, cursor)

    @asynccontextmanager
    async def connect_to_session(
        self,
        session: str,
        *,
        as_controller: bool,
        after: Cursor | None = None,
        replay: bool = True,
        partial: bool = True,
    ) -> AsyncIterator[SessionFeed]:
        """A connection to a session."""
        one = await anyio.to_thread.run_sync(self._load_session, session)
        if not one.is_running:
            yield _EndedFeed(one, after, await anyio.to_thread.run_sync(_open_log, one))
            return
        role = DRIVE if as_controller else WATCH
        hello = {
            "client": CONTROLLER_NAME if as_controller else WATCHER_NAME,
            "replay": replay,
            "partial": partial,
        }
        async with await connect_to_session(
            one.session_id, self._environment, role=role, after=after, **hello
        ) as link:
            yield _RunningFeed(link)

    def _load_session(self, session: str) -> SessionRecord:
        one = registry.peek_session(session, self._environment)
        if one is None:
            raise FrontendError(f"there is no session {session}")
        return one


class _RunningFeed:
    """A connection to a living host."""

    def __init__(self, link: HostConnection) -> None:
        self._connection = link

    async def __aiter__(self) -> AsyncIterator[Mapping[str, Any]]:
        yield self._connection.welcome
        async for frame in self._connection:
            yield frame

    async def send_frame(self, frame: Mapping[str, Any]) -> None:
        await self._connection.send_frame(frame)


class _EndedFeed:
    """What an ended session said, as its host would say it."""

    def __init__(self, one: SessionRecord, after: Cursor | None, log: RecordingLog) -> None:
        self._session = one
        self._after_number = (
            after.number if after is not None and _has_cursor_line(log, after) else 0
        )
        self._has_gap = after is not None and not _has_cursor_line(log, after)
        self._log = log

    async def __aiter__(self) -> AsyncIterator[Mapping[str, Any]]:
        facts, last = self._session.metadata, self._log.last_number
        state = {key: facts.get(key) for key in STATE_KEYS}
        told = {
            key: facts.get(key)
            for key in ("session", "vendor", "name", "cwd", "generation", "version")
        }
        yield {"kind": "welcome", **told, "id": self._session.short_id, "number": last, "state": state, "driver": None,
               "questions": []}  # fmt: skip
        if self._has_gap:
            yield {"kind": "gap", "from": 0, "to": last, "reason": "unknown"}
        after = self._after_number
        while entries := await anyio.to_thread.run_sync(
            bind(self._log.read, after, READ_BATCH_LINES)
        ):
            for entry in entries:
                after = entry.number
                yield {"kind": "line", "number": after, "generation": entry.generation, "at": entry.at_ms,
                       "raw": entry.line}  # fmt: skip
        yield {"kind": "synced", "number": last}
        yield {"kind": "bye", "reason": str(facts.get("detail") or facts.get("state") or "ended")}

    async def send_frame(self, frame: Mapping[str, Any]) -> None:
        raise FrontendError("the session has ended")


def _build_session_fields(one: SessionRecord) -> dict[str, Any]:
    return {**one.metadata, "id": one.short_id, "session": one.session_id, "alive": one.is_running}


def _has_cursor_line(log: RecordingLog, cursor: Cursor) -> bool:
    """Return whether a log has the line of a cursor, from the same life of the session, or is as
    empty as the cursor.

    A line that was lost in a crash of the machine has a number that a later life has used again.
    """
    if cursor.number == 0:
        return True
    entries = log.read(cursor.number - 1, 1)
    return bool(entries) and (entries[0].number, entries[0].generation) == (
        cursor.number,
        cursor.generation,
    )


def _open_log(one: SessionRecord) -> RecordingLog:
    """The log of a session that has ended. FrontendError where it cannot be read."""
    try:
        return RecordingLog(one.log_folder, int(one.metadata["generation"]))
    except OSError as error:
        raise FrontendError(f"what the session said cannot be read: {error.strerror}") from None
