"""Connects a frontend to the host of its session, or refuses the frontend with a reason."""

import os
from collections.abc import Mapping
from contextlib import suppress
from signal import Signals
from typing import TYPE_CHECKING, Any

import anyio

from shim.bridge import registry
from shim.bridge.attach.flat_output import TranslatingStdout
from shim.bridge.attach.frontend_bridge import (
    FrontendSessionBridge,
    explain_other_client_has_control,
)
from shim.bridge.attach.join_check import build_join_error, check_join
from shim.bridge.attach.local_services import split_sdk_mcp_servers
from shim.bridge.attach.loop import AttachedConversationLoop
from shim.bridge.attach.turn_filter import FrontendOutputOptions
from shim.bridge.client import HostConnection, HostUnavailableError, connect_to_session
from shim.bridge.launch import HOST_EXIT_TIMEOUT_S
from shim.bridge.registry import SessionRecord
from shim.conversation.drivers.open_translation import choose_result_terminator_line
from shim.conversation.plan import can_change_permission_mode, can_prompt_frontend
from shim.conversation.session_state import resolve_session_state_event_visibility
from shim.core.bridge.frames import BYPASS_REFUSED_TEXT, RELOAD_SETTINGS
from shim.core.claude.argv.flags import Invocation
from shim.core.claude.permissions import QUESTION_TOOL
from shim.core.claude.writer import TERMINATORS
from shim.core.dialects import DIALECTS
from shim.core.errors import FrontendError, StartInterruptedError, SystemResourceError
from shim.core.policy.policy import BYPASS_MODE
from shim.core.policy.serialize import parse_settings
from shim.core.policy.settings import ClaudeSettings, rank_permission_mode
from shim.core.reading.values import as_dict, get_text
from shim.io.ids import create_uuid
from shim.io.signals import SignalRecorder
from shim.io.stderr import warn
from shim.io.stdout import FrontendDisconnectedError, FrontendOutput, Stdout
from shim.process.environment import get_working_directory
from shim.state.config import ShimSettings

if TYPE_CHECKING:
    from shim.io.stdin import Stdin

POLL_INTERVAL_S = 0.05  # between checks whether a host has exited
BUSY_ERROR = (  # the same text as in the real claude (B50)
    "Error: That session is running in the background ({id}). Run `claude attach {id}` to open it, or `claude stop "
    "{id}` first to resume it here. Add --fork-session to branch off a copy instead."
)
IGNORED_FLAGS_WARNING = (
    "these flags have no effect on the running background session {id}: {flags}\n"
)


class SessionBusyError(FrontendError):
    """The frontend cannot join, because a turn is running that another client controls, or whose
    permission prompts the frontend could not answer.
    """


class SessionHostEndedError(Exception):
    """The host ended before the frontend had joined the session."""


class BackgroundSessionAttacher:
    """Connects a frontend to the host of `session`.

    `owns_host` is set if the host was started for this frontend, with the frontend's flags.
    """

    def __init__(
        self,
        session: SessionRecord,
        invocation: Invocation,
        settings: ShimSettings,
        *,
        owns_host: bool,
        display_name: str = "",
    ) -> None:
        self._session = session
        self._invocation = invocation
        self._settings = settings
        self._owns_host = owns_host
        self._display_name = display_name
        is_flat = DIALECTS[settings.dialect].is_flat
        self._is_translated = is_flat and invocation.output_format == "stream-json"

    def join_and_run_conversation(
        self, signals: SignalRecorder, prompt: str | None, stdin: "Stdin | None"
    ) -> int:
        """Join the session and run the conversation. Return the exit status. Raise
        SessionHostEndedError if the host ends before the frontend has joined.
        """
        signals.is_started = True

        async def connect_and_run() -> int:
            async with await self._connect(signals) as connection:
                return await self._run_conversation(connection, signals, prompt, stdin)

        return anyio.run(connect_and_run)

    async def _connect(self, signals: SignalRecorder) -> HostConnection:
        """Connect to the host. Raise SessionHostEndedError if the host has ended."""
        client_name = os.environ.get("CLAUDE_CODE_ENTRYPOINT") or "claude"
        wants_partial = self._invocation.partial
        try:
            return await connect_to_session(
                self._session.session_id,
                os.environ,
                client=client_name,
                replay=False,
                partial=wants_partial,
            )
        except HostUnavailableError as error:
            await self._wait_for_host_exit(signals)
            if self._owns_host:
                raise SystemResourceError(
                    f"the session could not start: {error.reason or 'its host has exited'}"
                ) from None
            raise SessionHostEndedError from None

    async def _wait_for_host_exit(self, signals: SignalRecorder) -> None:
        """Wait until a host that is shutting down has exited, because two hosts must not use the
        same vendor session.

        Raise StartInterruptedError if a signal arrives first, and SystemResourceError if the host
        does not exit in time.
        """
        session = self._session
        deadline = anyio.current_time() + HOST_EXIT_TIMEOUT_S
        while registry.is_session_running(session.session_id, os.environ):
            if signals.pending_signals:
                received = Signals(signals.pending_signals[0])
                raise StartInterruptedError(received, received.name)
            if anyio.current_time() > deadline:
                raise SystemResourceError(
                    f"the host process of session {session.session_id} does not respond "
                    f"(pid {session.metadata['pid']})",
                    hint=f"`claude stop {session.short_id}` stops the session",
                )
            await anyio.sleep(POLL_INTERVAL_S)

    async def _run_conversation(
        self,
        connection: HostConnection,
        signals: SignalRecorder,
        prompt: str | None,
        source: "Stdin | None",
    ) -> int:
        invocation = self._invocation
        can_answer = can_prompt_frontend(invocation)
        sdk_servers, _ = split_sdk_mcp_servers(self._invocation, get_working_directory())
        frontend = FrontendSessionBridge(
            self._build_options(),
            self._session.session_id,
            create_uuid,
            can_answer=can_answer,
            denies_questions=QUESTION_TOOL in invocation.disallowed_tools,
            sdk_servers=sdk_servers,
        )
        frontend.on_host_frame(connection.welcome)
        self._check_is_joinable(frontend)
        if not self._owns_host:
            try:
                await self._join_session(connection, frontend)
            except HostUnavailableError:
                await self._wait_for_host_exit(signals)
                raise SessionHostEndedError from None
        stdout = self._open_stdout()
        output = FrontendOutput(invocation.output_format, verbose=invocation.verbose, stdout=stdout)
        loop = AttachedConversationLoop(
            frontend, connection, output, prompt=prompt, source=source, ends_session=self._owns_host
        )
        status = await loop.run(signals.pending_signals)
        if isinstance(stdout, TranslatingStdout):
            with suppress(FrontendDisconnectedError):
                await stdout.finish()
        return status

    def _check_is_joinable(self, frontend: FrontendSessionBridge) -> None:
        """Raise SessionBusyError if a turn is running, and either another client has control or the
        frontend cannot answer permission prompts.
        """
        if not frontend.is_busy:
            return
        if frontend.has_other_controller:
            raise self._build_busy_error(frontend.controller)
        if not can_prompt_frontend(self._invocation):
            raise SessionBusyError(BUSY_ERROR.format(id=self._session.short_id))

    def _build_busy_error(self, controller_name: object) -> SessionBusyError:
        """Return the error for a frontend that tries to join during another client's turn."""
        reason = explain_other_client_has_control(controller_name)
        return SessionBusyError(f"{BUSY_ERROR.format(id=self._session.short_id)} {reason}.")

    def _open_stdout(self) -> Stdout:
        if not self._is_translated:
            return Stdout()
        from shim.conversation.drivers.open_translation import create_standalone_child_stream

        return TranslatingStdout(
            create_standalone_child_stream(
                "claude",
                dialect=self._settings.dialect,
                display_name=self._display_name,
                serving_vendor=str(self._session.metadata["vendor"]),
                session_id=self._session.session_id,
                max_line_bytes=self._settings.max_line_bytes,
                redact=self._settings.resolve_redaction_mode() == "all",
            )
        )

    async def _join_session(
        self, connection: HostConnection, frontend: FrontendSessionBridge
    ) -> None:
        """Compare the frontend's flags and settings files with the session's, and apply the
        frontend's mode and model.

        Raise FrontendError if the frontend forbids something that the session allows, and
        SessionBusyError if another client has started a turn.
        """
        session = self._session
        session_settings = await self._load_session_settings(connection, frontend)
        self._check_is_joinable(frontend)  # a turn may have started since the welcome
        current_mode = frontend.get_permission_mode()
        request = check_join(self._invocation, session, session_settings, current_mode, os.environ)
        if request.ignored_flags:
            flags = ", ".join(request.ignored_flags)
            warn(IGNORED_FLAGS_WARNING.format(id=session.short_id, flags=flags))
        if request.mode == BYPASS_MODE and frontend.welcome.get("bypass") is False:
            # The host would refuse the mode too, but only after the frontend had taken control.
            self._report_refused_mode(request.mode, current_mode, BYPASS_REFUSED_TEXT)
        if request.mode:
            if request.mode != current_mode:
                # A change that the frontend's own flags request is not reported to the frontend.
                frontend.turn_filter.requested_mode = request.mode
            frame = {"kind": "mode", "mode": request.mode}
            if reason := await self._send_setting(connection, frontend, frame):
                self._report_refused_mode(request.mode, current_mode, reason)
            else:
                # The session's line that reports the change may arrive later.
                frontend.turn_filter.mode = request.mode
        if request.model:
            frame = {"kind": "model", "model": request.model}
            if reason := await self._send_setting(connection, frontend, frame):
                warn(f"--model has no effect on the session {session.short_id}: {reason}\n")

    async def _load_session_settings(
        self, connection: HostConnection, frontend: FrontendSessionBridge
    ) -> ClaudeSettings | None:
        """Ask the host to reload Claude's settings files. Return the settings that the session
        applies.

        Return None if the session runs a real claude, and its host has an older version that does
        not report these settings. Other hosts of older versions stored the settings that they read
        at their start. If the stored settings are missing, all restrictive settings of the frontend
        count as new.
        """
        response: Mapping[str, Any] = {}
        if "response" in frontend.welcome.get("knows", ()):
            request = {"kind": "request", "request": {"subtype": RELOAD_SETTINGS}}
            reply = await connection.wait_for_host_answer(_exchange(connection, frontend, request))
            response = as_dict(reply.get("response"))
        if response.get("subtype") == "success":
            settings = as_dict(response.get("response")).get("settings")
            if settings is None:
                return None
            return parse_settings(str(settings))
        generation = frontend.welcome.get("generation")
        return registry.load_session_claude_settings(self._session.folder, generation)

    async def _send_setting(
        self, connection: HostConnection, frontend: FrontendSessionBridge, frame: Mapping[str, Any]
    ) -> str:
        """Take control and change a setting. Return the reason if the host refuses the change, else
        "".

        Raise SessionBusyError if another client has control and its turn is running.
        """
        reply: Mapping[str, Any] = {}
        for request in ({"kind": "take", "if_idle": True}, frame):
            reply = await connection.wait_for_host_answer(_exchange(connection, frontend, request))
            if reply.get("reason") == "not-driver":
                raise self._build_busy_error(reply.get("driver"))
        return get_text(reply, "text")

    def _report_refused_mode(self, mode: str, current_mode: str, reason: str) -> None:
        """Report that the session cannot use the frontend's permission mode, by raising
        FrontendError.

        Only print a warning if the frontend is in a conversation and its mode is less restrictive
        than the session's, except for bypassPermissions. Such a frontend can select another mode
        later, as it can without a background session.
        """
        session = self._session
        is_wider = rank_permission_mode(mode) > rank_permission_mode(current_mode)
        can_wait = can_change_permission_mode(self._invocation) and mode != BYPASS_MODE
        if not (is_wider and can_wait):
            text = f"--permission-mode {mode} was refused: {reason}"
            raise build_join_error(session, text)
        warn(f"the session {session.short_id} stays in the mode {current_mode}: {reason}\n")

    def _build_options(self) -> FrontendOutputOptions:
        invocation = self._invocation
        if self._is_translated:
            return FrontendOutputOptions(wants_partial=True)
        terminator_bytes = TERMINATORS[
            choose_result_terminator_line(invocation, self._settings.terminator)
        ]
        return FrontendOutputOptions(
            wants_partial=invocation.partial,
            replays_messages=invocation.replay_user_messages,
            state_events=resolve_session_state_event_visibility(os.environ),
            terminator=terminator_bytes,
            max_line_bytes=self._settings.max_line_bytes,
        )


async def _exchange(
    connection: HostConnection, frontend: FrontendSessionBridge, frame: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Send a frame and return the host's answer. Raise HostUnavailableError if the host ends before
    it answers.
    """
    request_id = create_uuid()
    await connection.send_frame({**frame, "id": request_id})
    async for reply in connection:
        if reply.get("id") == request_id and reply["kind"] in ("accepted", "response", "refused"):
            return reply
        line_count = len(frontend.lines)
        frontend.on_host_frame(reply)
        # The lines that report these changes are dropped. In a new conversation, the settings would
        # already apply at the start, and no lines would report them.
        if reply["kind"] == "line":
            del frontend.lines[line_count:]
    raise HostUnavailableError(connection.session_id)
