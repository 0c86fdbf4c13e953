"""Runs the host of a background session, from the host's start to its exit. A hub connects the
conversation with the clients of the session's socket.

A host exits when the conversation ends, when a client ends the session, or after the session was
idle for too long. The time from a host's start to its exit is one life of the session.
"""

import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio
import anyio.to_thread

from shim import __version__
from shim.bridge import registry, sockets
from shim.bridge.host.hub_streams import HubStdin, HubStdout
from shim.bridge.host.runner import SessionHubRunner
from shim.bridge.host.unix_server import UnixServer
from shim.bridge.launch import MAX_STDERR_BYTES, SessionSpec
from shim.bridge.log import RecordedSessionLog
from shim.conversation.preload import HOST_FOLDERS, SKIPPED_IN_HOST, preload_modules
from shim.conversation.startup import ConversationStartup
from shim.core.bridge.frames import FrameRefusedError
from shim.core.bridge.hub import SessionHub
from shim.core.bridge.status import BackgroundSessionInfo
from shim.core.errors import FrontendError
from shim.core.policy.policy import BYPASS_MODE
from shim.core.policy.serialize import serialize_settings
from shim.core.policy.settings import ClaudeSettings
from shim.core.reading.values import get_text, shorten_session_id
from shim.io.ids import create_uuid
from shim.io.signals import start_collecting_signals
from shim.io.stderr import warn
from shim.process import spawn
from shim.process.package import describe_shim_package_change
from shim.state.claude_settings import load_claude_settings

MAX_TICK_INTERVAL_S = 1.0
# The hub denies an expired prompt shortly before the conversation would, so that only the hub
# denies it. The hub ticks at least twice in this time.
PROMPT_TIMEOUT_FACTOR = 0.9
PROMPT_TIMEOUT_MARGIN_S = 10.0
MIN_TICK_INTERVAL_S = 0.01
FIRST_CHILD_TIMEOUT_S = 2.0  # after this time, modules are imported even if no child was started
# This time is short, so that all modules are imported before the child ends its first turn.
FIRST_CHILD_POLL_INTERVAL_S = 0.001
REASON_STOPPED = "stopped"
REASON_IDLE = "idle"
REASON_ENDED = "ended"
REASON_REPLACED = "the session's folder was removed, or another host took over the session"


class SessionHostMetadata:
    """The session's metadata, stored in `host.json`. A failed write does not end the session."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._socket_file_id = sockets.find_socket_file_id(folder)
        self.values = registry.load_or_restore_metadata(folder)

    def update(self, changes: Mapping[str, Any]) -> None:
        """Update metadata values. Write the file only if a value has changed."""
        if self.owns_session_folder and any(
            self.values.get(key) != value for key, value in changes.items()
        ):
            updated_ms = round(1000 * time.time())
            self.values = {**self.values, **changes, "updated": updated_ms}
            with suppress(OSError):
                registry.write_metadata(self._folder, self.values)

    def restore_file(self) -> None:
        """Write the metadata file again if it is missing or damaged. Other commands find a session
        by this file.
        """
        if self.owns_session_folder and registry.read_metadata(self._folder) is None:
            with suppress(OSError):
                registry.write_metadata(self._folder, self.values)

    @property
    def owns_session_folder(self) -> bool:
        """Whether the session's folder still belongs to this host. The folder may have been
        removed, and created again by another host.
        """
        return sockets.find_socket_file_id(self._folder) == self._socket_file_id

    def record_end(self, state: str, detail: str = "") -> None:
        """Record that the host ends.

        `state` is the new state if the session was active. A finished session keeps its state. If
        the host failed, `detail` is the reason, and the state becomes `failed`.
        """
        end_fields = {}
        if self.values.get("state") in registry.ACTIVE_STATES:
            end_fields = {"state": state}
        if detail:
            end_fields = {"state": "failed", "detail": detail}
        self.update({**registry.ENDED_FIELDS, **end_fields})


class SessionHostRuntime:
    """One life of a background session: the transport of its conversation, with a hub and
    a socket.
    """

    def __init__(
        self,
        folder: str,
        metadata: SessionHostMetadata,
        startup: ConversationStartup,
        spec: SessionSpec,
        listener: socket.socket,
    ) -> None:
        settings = startup.settings
        recorder = startup.recorder
        values = metadata.values
        session_id = os.path.basename(folder)
        self.source = HubStdin(settings.max_inbound_bytes, recorder)
        self.end_reason = REASON_ENDED
        self._metadata = metadata
        self._first_prompt = spec.prompt, spec.prompt_id or create_uuid()
        self._idle_timeout_s = settings.bridge.idle_timeout_s
        self._retention_days = settings.bridge.retention_days
        self._last_use = time.monotonic()
        self._stop_event = anyio.Event()
        clock_offset = time.time() - time.monotonic()
        clock = time.monotonic
        self._log = RecordedSessionLog(
            os.path.join(folder, registry.LOG_FOLDER),
            values["generation"],
            {"vendor": startup.adapter.display_name, "cwd": startup.cwd, "session": session_id},
        )
        timeout_s = settings.resolve_timeout_s(
            "permission_timeout", startup.adapter.name, startup.adapter.timeouts_s
        )
        prompt_timeout_s = max(
            PROMPT_TIMEOUT_FACTOR * timeout_s, timeout_s - PROMPT_TIMEOUT_MARGIN_S
        )
        self._tick_interval_s = max(
            MIN_TICK_INTERVAL_S, min(MAX_TICK_INTERVAL_S, (timeout_s - prompt_timeout_s) / 2)
        )
        claude_settings = _load_conversation_settings(startup)
        name = get_text(values, "name")
        hub = SessionHub(
            _describe_session(startup, claude_settings, session_id, name, prompt_timeout_s),
            self._log.load_history(),
            create_id=create_uuid,
            # The system clock may jump, but the timestamps of lines must not.
            now_ms=lambda: round((clock_offset + clock()) * 1000),
            clock=clock,
        )
        self.runner = SessionHubRunner(
            hub,
            self._log,
            send_line=self.source.put,
            update_metadata=metadata.update,
            end_session=partial(self._stop_session, REASON_STOPPED),
            reload_settings=partial(_reload_settings, startup, claude_settings),
        )
        self.stdout = HubStdout(self.runner, recorder)
        self._server = UnixServer(listener, self.runner, self.source)
        self._folder = folder
        self._startup = startup
        self._upgrade_notice = ""  # the notice about replaced package files; "" before an upgrade
        metadata.update(
            {
                "pid": os.getpid(),
                "vendor": startup.adapter.display_name,
                "cwd": startup.cwd,
                "version": __version__,
            }
        )

    @asynccontextmanager
    async def serve_clients(self, stop: Callable[[], None]) -> AsyncIterator[None]:
        """Serve clients while the conversation runs. When it ends, send them `bye`.

        `stop` ends the conversation.
        """
        runner = self.runner
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._wait_for_stop, stop)
            for work in (
                self._server.accept_clients,
                runner.run_write_loop,
                self._run_ticks,
                self._remove_old_sessions,
                self._preload,
            ):
                tasks.start_soon(work)
            runner.hub.send_initialize()
            self._send_first_prompt()
            runner.run_hub_commands()
            try:
                yield
            finally:
                # The loop no longer handles signals, and a signal must not cut off the last frames.
                start_collecting_signals()
                with anyio.CancelScope(shield=True):
                    reason = runner.failure_reason or self.end_reason
                    await runner.close_clients(reason)
                    self._log.close()
                tasks.cancel_scope.cancel()

    async def _preload(self) -> None:
        """Import all modules that this host may need, because an upgrade may replace their files.

        The modules are imported while the first child process starts, which takes longer.
        """
        with anyio.move_on_after(FIRST_CHILD_TIMEOUT_S):
            while self._first_prompt[0] is not None and not spawn.running_pids:
                await anyio.sleep(FIRST_CHILD_POLL_INTERVAL_S)
        validator_modules = (
            ("jsonschema", "jsonschema_specifications")
            if self._startup.invocation.json_schema
            else ()
        )
        preload_modules(HOST_FOLDERS, os.environ, SKIPPED_IN_HOST, validator_modules)

    def _report_upgrade(self) -> None:
        """Report, only once, that the package's files were replaced or removed. The report goes to
        stderr and to new clients.
        """
        if self._upgrade_notice:
            return
        change = describe_shim_package_change()
        if not change:
            return
        session_name = shorten_session_id(os.path.basename(self._folder))
        self._upgrade_notice = (
            f"{change}; this session keeps running version {__version__} until you run "
            f"`claude respawn {session_name}`"
        )
        warn(f"{self._upgrade_notice}\n")
        self.runner.hub.set_notice_for_new_clients(self._upgrade_notice)

    def _send_first_prompt(self) -> None:
        message, uuid = self._first_prompt
        if message is None:
            return
        try:
            self.runner.hub.send_first_message(message, uuid)
        except FrameRefusedError as error:
            warn(f"the prompt was rejected: {error}\n")

    def _stop_session(self, reason: str) -> None:
        """End the session. A running turn is stopped as if by a signal."""
        if self.end_reason == REASON_ENDED:
            self.end_reason = reason
            self._stop_event.set()

    async def _wait_for_stop(self, stop: Callable[[], None]) -> None:
        await self._stop_event.wait()
        stop()

    async def _run_ticks(self) -> None:
        """Run the host's periodic tasks. End the session if it has been idle for too long."""
        while True:
            await anyio.sleep(self._tick_interval_s)
            self.runner.hub.apply_timeouts_and_report_changes()
            self.runner.run_hub_commands()
            self.runner.close_unresponsive_clients()
            truncate_stderr()
            self._report_upgrade()
            self._metadata.restore_file()
            if not self._metadata.owns_session_folder:
                self._stop_session(REASON_REPLACED)
            if self.runner.hub.is_busy or any(self.runner.hub.subscribers):
                self._last_use = time.monotonic()
            elif time.monotonic() - self._last_use >= self._idle_timeout_s:
                self.end_reason = REASON_IDLE
                self.runner.hub.close(REASON_IDLE)  # clients that connect after this receive `bye`
                self.runner.run_hub_commands()
                self.source.close()

    async def _remove_old_sessions(self) -> None:
        """Remove sessions that ended long ago. Every host does this at its start."""
        retention_days = self._retention_days
        await anyio.to_thread.run_sync(
            registry.remove_old_sessions, os.environ, retention_days, abandon_on_cancel=True
        )


def _describe_session(
    startup: ConversationStartup,
    claude_settings: ClaudeSettings,
    session_id: str,
    name: str,
    prompt_timeout_s: float,
) -> BackgroundSessionInfo:
    """Return the session's description, which clients receive when the host starts."""
    invocation = startup.invocation
    mode = startup.mode
    has_mode_flag = invocation.skip_permissions or invocation.permission_mode is not None
    if claude_settings.mode and not has_mode_flag:
        mode = claude_settings.mode
    can_bypass = invocation.skip_permissions or invocation.allow_skip_permissions
    if not can_bypass:
        can_bypass = mode == BYPASS_MODE
    return BackgroundSessionInfo(
        session_id,
        vendor=startup.adapter.display_name,
        name=name,
        cwd=startup.cwd,
        model=invocation.model,
        mode=mode,
        pid=os.getpid(),
        version=__version__,
        has_vendor_settings=_reads_settings_itself(startup),
        can_bypass=can_bypass,
        answer_policy=startup.settings.bridge.answered_by,
        prompt_timeout_s=prompt_timeout_s,
        max_frame_bytes=startup.settings.max_inbound_bytes,
    )


def _reads_settings_itself(startup: ConversationStartup) -> bool:
    """Return whether the vendor is a real claude, which reads Claude's settings files itself and
    reloads them when they change.
    """
    if not startup.adapter.passthrough:
        return False
    return not startup.vendor_list.has_several


def _load_conversation_settings(startup: ConversationStartup) -> ClaudeSettings:
    """Return the values from Claude's settings files that the conversation uses."""
    if not _reads_settings_itself(startup):
        return startup.claude_settings
    return _load_settings(startup, ClaudeSettings())


def _load_settings(startup: ConversationStartup, default: ClaudeSettings) -> ClaudeSettings:
    """Return the current values from Claude's settings files, or `default` if the files cannot
    be read.
    """
    try:
        return load_claude_settings(startup.invocation, startup.environment, startup.cwd)
    except (FrontendError, OSError):  # OSError is raised if the folder was removed
        return default


def _reload_settings(startup: ConversationStartup, claude_settings: ClaudeSettings) -> str:
    """Return the settings text that a real claude applies now.

    `claude_settings` are the settings at the session's start. The result contains their mode,
    because a frontend applies the mode from its settings files only if it differs from the mode at
    the session's start.
    """
    settings = _load_settings(startup, claude_settings)
    return serialize_settings(settings._replace(mode=claude_settings.mode))


def truncate_stderr(descriptor: int = 2) -> None:
    """Truncate the host's stderr file to zero length if it is larger than MAX_STDERR_BYTES."""
    with suppress(OSError):
        if os.fstat(descriptor).st_size > MAX_STDERR_BYTES:
            os.ftruncate(descriptor, 0)
