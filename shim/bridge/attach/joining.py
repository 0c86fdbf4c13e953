"""A frontend joins the host of its session: it is let in or told why not, and its flags hold while
it is there.
"""

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import anyio

from shim.bridge import registry
from shim.bridge.attach.frontend import Frontend, driven_by
from shim.bridge.attach.loop import AttachLoop
from shim.bridge.attach.narrower import narrower_now
from shim.bridge.attach.own_process import servers
from shim.bridge.attach.own_turns import Wants
from shim.bridge.link import HostConnection, HostGoneError, connect_to_session
from shim.bridge.registry import SessionRecord
from shim.bridge.start import HOST_EXIT_TIMEOUT_S, read_start_invocation
from shim.conversation.invocation import prompts, terminator
from shim.conversation.session_facts import state_events
from shim.core.bridge.session import narrowest
from shim.core.claude.argv.invocation import Invocation
from shim.core.claude.pen import TERMINATORS
from shim.core.errors import FrontendError, MachineError
from shim.io.raw_output import tell
from shim.io.signals import Signals, StoppedError
from shim.io.stamps import fresh_uuid
from shim.io.stdout import Output, Stdout
from shim.process.environment import working_directory
from shim.state.claude_settings import permissions
from shim.state.config import Settings

if TYPE_CHECKING:
    from shim.io.stdin import Source

LOOK_SECONDS = 0.05  # between two looks whether a host that ends is gone
BUSY = (  # the real one's sentence (background page, B50)
    "Error: That session is running in the background ({id}). Run `claude attach {id}` to open it, or `claude stop "
    "{id}` first to resume it here. Add --fork-session to branch off a copy instead."
)
NARROWER = "the session {id} runs in the background and cannot be kept to what this frontend forbids: {what}"
INSTEAD = "`claude stop {id}` first, then the flags hold from the start; --fork-session branches off a copy"
UNHEEDED = "no effect on the session {id}, which runs in the background already: {flags}\n"


class BusyError(FrontendError):
    """A turn runs that somebody else drives, or whose questions the frontend could not answer."""


class EndedError(Exception):
    """A host that was to be joined has ended."""


class Joining:
    """A frontend and the host of `one`; `own`: that was begun for this frontend, whose flags it
    has.
    """

    def __init__(
        self, one: SessionRecord, invocation: Invocation, settings: Settings, *, own: bool
    ) -> None:
        self._one = one
        self._invocation = invocation
        self._settings = settings
        self._own = own

    def run(self, signals: Signals, prompt: str | None, source: "Source | None") -> int:
        """The conversation; the exit status. EndedError where the host has ended meanwhile."""
        signals.started = True

        async def conversation() -> int:
            async with await self._greeted(signals) as link:
                return await self._converse(link, signals, prompt, source)

        return anyio.run(conversation)

    async def _greeted(self, signals: Signals) -> HostConnection:
        """A connection to the host. EndedError for one that has ended meanwhile."""
        name, partial = (
            os.environ.get("CLAUDE_CODE_ENTRYPOINT") or "claude",
            self._invocation.streams.partial,
        )
        try:
            return await connect_to_session(
                self._one.session_id, os.environ, client=name, replay=False, partial=partial
            )
        except HostGoneError as error:
            self._wait_for_end(signals)
            if self._own:
                raise MachineError(
                    f"the session could not begin: {error.reason or 'its host has ended'}"
                ) from None
            raise EndedError from None

    def _wait_for_end(self, signals: Signals) -> None:
        """A host that is about to end is waited for: two must not have the same session of the
        vendor's.
        """
        one, end = self._one, time.monotonic() + HOST_EXIT_TIMEOUT_S
        while registry.is_session_running(one.session_id, os.environ):
            if signals.pending:
                raise StoppedError(signals.pending[0])
            if time.monotonic() > end:
                raise MachineError(
                    f"the session {one.session_id} has a host that does not answer (pid {one.metadata['pid']})",
                    hint=f"`claude stop {one.short_id}` ends it",
                )
            time.sleep(LOOK_SECONDS)

    async def _converse(
        self, link: HostConnection, signals: Signals, prompt: str | None, source: "Source | None"
    ) -> int:
        streams, asked = self._invocation.streams, prompts(self._invocation)
        inside, _ = servers(self._invocation, working_directory())
        frontend = Frontend(
            self._wants(), self._one.session_id, fresh_uuid, asked=asked, servers=inside
        )
        frontend.framed(link.welcome)
        if frontend.busy and (frontend.others_drive or not asked):
            why = f" {driven_by(frontend.driver)}." if frontend.others_drive else ""
            raise BusyError(BUSY.format(id=self._one.short_id) + why)
        if not self._own:
            await self._narrow(link, frontend)
        output = Output(streams.output_format, verbose=streams.verbose, stdout=Stdout())
        loop = AttachLoop(frontend, link, output, prompt=prompt, source=source, ends=self._own)
        return await loop.run(signals.pending)

    async def _narrow(self, link: HostConnection, frontend: Frontend) -> None:
        """Have the session keep to what our flags forbid beyond its own while we are here, or
        refuse it.
        """
        one, welcome = self._one, frontend.welcome
        mode = str(welcome.get("chosen") or welcome.get("mode") or "default")
        read = registry.read_settings(one.folder, welcome.get("generation"))
        if read is None:  # a host of another version, or one without room for a file
            read = permissions(read_start_invocation(one), os.environ, str(one.metadata["cwd"]))
        less = narrower_now(
            self._invocation,
            read_start_invocation(one),
            read,
            str(one.metadata["cwd"]),
            mode,
            os.environ,
        )
        if less.refused:
            raise FrontendError(
                NARROWER.format(id=one.short_id, what=less.refused[0]),
                hint=INSTEAD.format(id=one.short_id),
            )
        if less.unheeded:
            tell(UNHEEDED.format(id=one.short_id, flags=", ".join(less.unheeded)))
        patient = link.wait_for_answer

        async def narrow(what: str, **frame: object) -> None:
            if why := await patient(_answered(link, frontend, {"kind": "narrow", **frame})):
                raise FrontendError(
                    NARROWER.format(id=one.short_id, what=f"{what}: {why}"),
                    hint=INSTEAD.format(id=one.short_id),
                )

        if less.mode:
            now = str(welcome.get("mode") or mode)
            held = narrowest((less.mode, now))
            # of what does not change nobody is told
            frontend.turns.begun_with = held if held != now else ""
            await narrow(f"the permission mode {less.mode}", mode=less.mode)
            frontend.turns.mode = held  # the line that says so comes behind the answer, maybe later
        if less.rules:
            await narrow(", ".join(less.sources), deny=less.deny, ask=less.ask)
        if less.model and (
            error := await patient(
                _ask(link, frontend, {"subtype": "set_model", "model": less.model})
            )
        ):
            tell(f"--model has no effect on the session {one.short_id}: {error}\n")

    def _wants(self) -> Wants:
        streams = self._invocation.streams
        ending = TERMINATORS[terminator(self._invocation, self._settings.terminator)]
        return Wants(
            partial=streams.partial,
            replays=streams.replay_user_messages,
            states=state_events(os.environ),
            terminator=ending,
            limit=self._settings.max_line_bytes,
        )


async def _ask(link: HostConnection, frontend: Frontend, request: Mapping[str, Any]) -> str:
    """Have a request of ours answered; why it was refused, "" where it was done."""
    if frontend.others_drive:
        await link.send_frame({"kind": "take", "id": fresh_uuid()})
    return await _answered(link, frontend, {"kind": "request", "request": request})


async def _answered(link: HostConnection, frontend: Frontend, frame: Mapping[str, Any]) -> str:
    """Have a frame of ours obeyed; why it was refused, "" where it was done."""
    identity = fresh_uuid()
    await link.send_frame({**frame, "id": identity})
    async for said in link:
        if said.get("id") == identity and said["kind"] in ("accepted", "response", "refused"):
            response = said.get("response") or {}
            return str(
                said.get("text")
                or (response.get("error") if response.get("subtype") == "error" else "")
                or ""
            )
        before = len(frontend.lines)
        frontend.framed(said)
        # what follows from our flags; a run of its own would have begun with them
        if said["kind"] == "line":
            del frontend.lines[before:]
    return "its host has ended"
