"""A frontend joins the host of its session: it is let in or told why not, and its flags hold while
it is there.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import anyio

from shim.bridge import registry
from shim.bridge.attach.frontend_bridge import (
    FrontendSessionBridge,
    explain_other_client_has_control,
)
from shim.bridge.attach.local_services import split_sdk_mcp_servers
from shim.bridge.attach.loop import AttachedConversationLoop
from shim.bridge.attach.restrictions import load_restrictions_of_joining_frontend
from shim.bridge.attach.turn_filter import FrontendOutputOptions
from shim.bridge.client import HostConnection, HostUnavailableError, connect_to_session
from shim.bridge.launch import HOST_EXIT_TIMEOUT_S, read_start_invocation
from shim.bridge.registry import SessionRecord
from shim.conversation.invocation import can_prompt_frontend, choose_result_terminator_line
from shim.conversation.session_state import resolve_session_state_event_visibility
from shim.core.bridge.restrictions import find_strictest_mode
from shim.core.claude.argv.invocation import Invocation
from shim.core.claude.writer import TERMINATORS
from shim.core.errors import FrontendError, SystemResourceError
from shim.io.ids import create_uuid
from shim.io.signals import SignalRecorder, StartInterruptedError
from shim.io.stderr import warn
from shim.io.stdout import FrontendOutput, Stdout
from shim.process.environment import get_working_directory
from shim.state.claude_settings import load_claude_settings
from shim.state.config import ShimSettings

if TYPE_CHECKING:
    from shim.io.stdin import Stdin

POLL_INTERVAL_S = 0.05  # between two looks whether a host that ends is gone
BUSY_ERROR = (  # the real one's sentence (background page, B50)
    "Error: That session is running in the background ({id}). Run `claude attach {id}` to open it, or `claude stop "
    "{id}` first to resume it here. Add --fork-session to branch off a copy instead."
)
RESTRICTION_ERROR = "the session {id} runs in the background and cannot be kept to what this frontend forbids: {what}"
RESTRICTION_HINT = "`claude stop {id}` first, then the flags hold from the start; --fork-session branches off a copy"
IGNORED_FLAGS_WARNING = (
    "no effect on the session {id}, which runs in the background already: {flags}\n"
)


class SessionBusyError(FrontendError):
    """A turn runs that somebody else drives, or whose questions the frontend could not answer."""


class SessionHostEndedError(Exception):
    """A host that was to be joined has ended."""


class BackgroundSessionAttacher:
    """A frontend and the host of `session`; `owns_host`: that was begun for this frontend, whose
    flags it has.
    """

    def __init__(
        self,
        session: SessionRecord,
        invocation: Invocation,
        settings: ShimSettings,
        *,
        owns_host: bool,
    ) -> None:
        self._session = session
        self._invocation = invocation
        self._settings = settings
        self._owns_host = owns_host

    def join_and_run_conversation(
        self, signals: SignalRecorder, prompt: str | None, stdin: "Stdin | None"
    ) -> int:
        """The conversation; the exit status. HostEndedError where the host has ended meanwhile."""
        signals.is_started = True

        async def connect_and_run() -> int:
            async with await self._connect(signals) as connection:
                return await self._run_conversation(connection, signals, prompt, stdin)

        return anyio.run(connect_and_run)

    async def _connect(self, signals: SignalRecorder) -> HostConnection:
        """A connection to the host. HostEndedError for one that has ended meanwhile."""
        client_name, wants_partial = (
            os.environ.get("CLAUDE_CODE_ENTRYPOINT") or "claude",
            self._invocation.partial,
        )
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
                    f"the session could not begin: {error.reason or 'its host has ended'}"
                ) from None
            raise SessionHostEndedError from None

    async def _wait_for_host_exit(self, signals: SignalRecorder) -> None:
        """Wait until a host that is about to end has exited: two hosts must not use the same
        session of the vendor.

        Raise StartInterruptedError if a signal comes first, and SystemResourceError if the host stays.
        """
        session = self._session
        deadline = anyio.current_time() + HOST_EXIT_TIMEOUT_S
        while registry.is_session_running(session.session_id, os.environ):
            if signals.pending_signals:
                raise StartInterruptedError(signals.pending_signals[0])
            if anyio.current_time() > deadline:
                raise SystemResourceError(
                    f"the session {session.session_id} has a host that does not answer (pid {session.metadata['pid']})",
                    hint=f"`claude stop {session.short_id}` ends it",
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
            sdk_servers=sdk_servers,
        )
        frontend.on_host_frame(connection.welcome)
        if frontend.is_busy and (frontend.has_other_controller or not can_answer):
            reason = (
                f" {explain_other_client_has_control(frontend.controller)}."
                if frontend.has_other_controller
                else ""
            )
            raise SessionBusyError(BUSY_ERROR.format(id=self._session.short_id) + reason)
        if not self._owns_host:
            await self._apply_restrictions(connection, frontend)
        output = FrontendOutput(
            invocation.output_format, verbose=invocation.verbose, stdout=Stdout()
        )
        loop = AttachedConversationLoop(
            frontend, connection, output, prompt=prompt, source=source, ends_session=self._owns_host
        )
        return await loop.run(signals.pending_signals)

    async def _apply_restrictions(
        self, connection: HostConnection, frontend: FrontendSessionBridge
    ) -> None:
        """Have the session keep to what our flags forbid beyond its own while we are here, or
        refuse it.
        """
        session, welcome = self._session, frontend.welcome
        mode = str(welcome.get("chosen") or welcome.get("mode") or "default")
        session_settings = registry.load_session_claude_settings(
            session.folder, welcome.get("generation")
        )
        if session_settings is None:  # a host of another version, or one without room for a file
            session_settings = load_claude_settings(
                read_start_invocation(session), os.environ, str(session.metadata["cwd"])
            )
        restrictions = load_restrictions_of_joining_frontend(
            self._invocation,
            read_start_invocation(session),
            session_settings,
            str(session.metadata["cwd"]),
            mode,
            os.environ,
        )
        if restrictions.refusals:
            raise FrontendError(
                RESTRICTION_ERROR.format(id=session.short_id, what=restrictions.refusals[0]),
                hint=RESTRICTION_HINT.format(id=session.short_id),
            )
        if restrictions.ignored_flags:
            warn(
                IGNORED_FLAGS_WARNING.format(
                    id=session.short_id, flags=", ".join(restrictions.ignored_flags)
                )
            )
        wait_for_answer = connection.wait_for_host_answer

        async def send_restriction(restriction: str, **fields: object) -> None:
            if reason := await wait_for_answer(
                _send_and_wait(connection, frontend, {"kind": "narrow", **fields})
            ):
                raise FrontendError(
                    RESTRICTION_ERROR.format(id=session.short_id, what=f"{restriction}: {reason}"),
                    hint=RESTRICTION_HINT.format(id=session.short_id),
                )

        if restrictions.mode:
            current_mode = str(welcome.get("mode") or mode)
            strictest_mode = find_strictest_mode((restrictions.mode, current_mode))
            # of what does not change nobody is told
            frontend.turn_filter.requested_mode = (
                strictest_mode if strictest_mode != current_mode else ""
            )
            await send_restriction(
                f"the permission mode {restrictions.mode}", mode=restrictions.mode
            )
            # the line that says so comes behind the answer, maybe later
            frontend.turn_filter.mode = strictest_mode
        if restrictions.has_permission_rules:
            await send_restriction(
                ", ".join(restrictions.sources), deny=restrictions.deny, ask=restrictions.ask
            )
        if restrictions.model and (
            error := await wait_for_answer(
                _send_request(
                    connection, frontend, {"subtype": "set_model", "model": restrictions.model}
                )
            )
        ):
            warn(f"--model has no effect on the session {session.short_id}: {error}\n")

    def _build_options(self) -> FrontendOutputOptions:
        invocation = self._invocation
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


async def _send_request(
    connection: HostConnection, frontend: FrontendSessionBridge, request: Mapping[str, Any]
) -> str:
    """Have a request of ours answered; why it was refused, "" where it was done."""
    if frontend.has_other_controller:
        await connection.send_frame({"kind": "take", "id": create_uuid()})
    return await _send_and_wait(connection, frontend, {"kind": "request", "request": request})


async def _send_and_wait(
    connection: HostConnection, frontend: FrontendSessionBridge, frame: Mapping[str, Any]
) -> str:
    """Have a frame of ours obeyed; why it was refused, "" where it was done."""
    request_id = create_uuid()
    await connection.send_frame({**frame, "id": request_id})
    async for reply in connection:
        if reply.get("id") == request_id and reply["kind"] in ("accepted", "response", "refused"):
            response = reply.get("response") or {}
            return str(
                reply.get("text")
                or (response.get("error") if response.get("subtype") == "error" else "")
                or ""
            )
        line_count = len(frontend.lines)
        frontend.on_host_frame(reply)
        # what follows from our flags; a run of its own would have begun with them
        if reply["kind"] == "line":
            del frontend.lines[line_count:]
    return "its host has ended"
