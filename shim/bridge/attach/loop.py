"""The loop of a drop-in whose conversation lives in a host: between the frontend's stdin and
stdout, and the host.

The host does what a conversation of our own would do; here lines and frames pass, and the end is
certain: whatever becomes of the host, every message of the frontend gets its one result.
"""

from collections.abc import Mapping
from typing import Any

import anyio
from anyio.abc import TaskGroup

from shim.bridge.attach.frontend import Frontend
from shim.bridge.attach.own_turns import Whose
from shim.bridge.link import ANSWER_TIMEOUT_S, HostConnection, HostGoneError, NoAnswerError
from shim.conversation.loop import LAST_WORDS_SECONDS, STATUS_OF_SIGNAL, Loop, said_of
from shim.core.api_errors import Cause
from shim.core.turn.result import INTERRUPTED, bare
from shim.io.raw_output import tell
from shim.io.stamps import fresh_uuid
from shim.io.stdin import Source
from shim.io.stdout import FrontendGoneError, Output

# From the end of stdin to a SIGTERM that only hurries who is leaving: both SDKs wait for longer. A
# frontend that kills us closes its pipes in the same moment.
LEAVING_SECONDS = 1.0
END_SECONDS = 5.0  # for a host to end its child and itself, once its frontend has what it wanted
DIED = "the process that holds the session died in the middle of the turn; `claude --resume {session}` goes on with it"
ENDED = "the session was ended in the middle of the turn ({why}); `claude --resume {session}` goes on with it"
REFUSED = "the session does not take the message: {why}"
HUNG_UP = "the frontend was ended by {signal}; the session goes on, and `claude --resume {session}` joins it"
OVER = "the session has ended ({why}); `claude --resume {session}` goes on with it\n"


class AttachLoop(Loop):
    """One frontend of one host.

    A SIGTERM ends the session of the frontend; well behind the end of stdin it only hurries one
    that is leaving.

    `prompt` is the one message of the command line, and `source` brings only answers then; without
    it the messages come from `source`. `ends`: the session is the frontend's own, and ends with it
    where it is ended on purpose.
    """

    def __init__(
        self,
        frontend: Frontend,
        link: HostConnection,
        output: Output,
        *,
        prompt: str | None,
        source: Source | None,
        ends: bool,
    ) -> None:
        super().__init__(output)
        self._frontend = frontend
        self._link = link
        self._prompt = prompt
        self._source = source
        self._ends = ends
        self._listening = source is not None
        self._silent_since = float("inf")  # since when stdin is at its end
        self._lost = False  # the host has gone
        self._writing = anyio.Lock()
        self._sending = anyio.Lock()

    async def _work(self, tasks: TaskGroup) -> int:
        try:
            with self._working:
                if self._prompt is not None:
                    self._frontend.say(self._prompt)
                await self._flush()
                tasks.start_soon(self._beside, self._follow)
                if self._source is not None:
                    tasks.start_soon(self._beside, self._listen)
                await self._until_answered()
            if self._fault is not None:
                raise self._fault
        except FrontendGoneError:
            self._gone = True
        except Exception as error:
            await self._last_words(said_of(error), "internal")
            tell(f"{said_of(error)}\n")
            return 1
        await self._go()
        if self._stopped_by is not None:
            return STATUS_OF_SIGNAL[self._stopped_by]
        failed = self._frontend.turns.result.get("is_error") or (
            self._lost and not self._frontend.bye
        )
        return 1 if failed and not self._ending and not self._gone else 0

    async def _until_answered(self) -> None:
        """Wait until every message has its result, and no other can come."""
        frontend, turns = self._frontend, self._frontend.turns
        while True:
            if frontend.refusal:
                await self._conclude(REFUSED.format(why=frontend.refusal), "refused")
                frontend.refusal = ""
            if self._lost:
                await self._without_host()
                return
            over = self._prompt is not None or not self._listening or self._ending
            if over and turns.idle and not frontend.unanswered:
                await self._flush()  # the last of it may be on its way
                return
            await self._news.wait()

    async def _without_host(self) -> None:
        """The host has gone: the turn that ran has no result but ours."""
        frontend, session = self._frontend, str(self._frontend.welcome.get("session"))
        if not frontend.turns.idle:
            text = (
                ENDED.format(why=frontend.bye, session=session)
                if frontend.bye
                else DIED.format(session=session)
            )
            await self._conclude(text, "signal" if frontend.bye else "internal")
        elif self._listening:
            tell(OVER.format(why=frontend.bye or "its process died", session=session))

    # -- lines and frames --------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Read what the host says until it has gone."""
        async for frame in self._link:
            self._frontend.framed(frame)
            await self._flush()
            self._tell_news()
        self._lost = True
        self._tell_news()

    async def _listen(self) -> None:
        """Read stdin to its end."""
        source, frontend = self._source, self._frontend
        assert source is not None
        for raw in source.heard:
            frontend.heard(raw)
            await self._flush()
        while chunk := await source.read():
            for raw in source.lines.feed(chunk):
                frontend.heard(raw)
                await self._flush()
            self._tell_news()
        for raw in source.lines.close():
            frontend.heard(raw)
        if source.lines.skipped:
            tell(
                f"skipped {source.lines.skipped} lines of stdin that were too long (max_inbound_bytes)\n"
            )
        frontend.closed()
        await self._flush()
        self._listening, self._silent_since = False, anyio.current_time()
        self._tell_news()

    async def _flush(self) -> None:
        """Write what waits: lines for the frontend, and frames for the host, which may not take
        them for long.
        """
        await self._write()
        await self._send()

    async def _send(self) -> None:
        async with self._sending:
            frames, self._frontend.frames = self._frontend.frames, []
            try:
                for frame in frames:
                    await self._link.send_frame(frame)
            except HostGoneError:
                pass  # `_follow` finds out too

    async def _write(self) -> None:
        async with self._writing:
            frontend = self._frontend
            for complaint in frontend.complaints:
                tell(complaint)
            frontend.complaints.clear()
            lines, frontend.lines = frontend.lines, []
            if lines:
                await self._output.lines(b"".join(line + b"\n" for line in lines))
            if result := frontend.turns.result:
                text = result.get("result")
                said = (
                    text
                    if isinstance(text, str)
                    else "\n".join(map(str, result.get("errors") or ()))
                )
                await self._output.close(said, frontend.turns.result_line)

    # -- ends --------------------------------------------------------------------------------------

    async def _conclude(self, reason: str, cause: Cause) -> None:
        """A result of ours, for what has none."""
        self._add_result(reason, cause)
        await self._write()

    def _add_result(self, reason: str, cause: Cause) -> None:
        welcome = self._frontend.welcome
        session = {"session_id": welcome.get("session"), "uuid": fresh_uuid()}
        line = {"type": "result", **bare(str(welcome.get("vendor")), reason, cause), **session}
        self._frontend.lines += self._frontend.turns.conclude(line)

    async def _last_words(self, reason: str, cause: Cause) -> None:
        if self._frontend.turns.idle:
            return
        with anyio.move_on_after(LAST_WORDS_SECONDS):
            try:
                await self._conclude(reason, cause)
            except FrontendGoneError:
                pass

    async def _go(self) -> None:
        """Leave the session: it goes on, unless it is the frontend's own and was ended on purpose."""
        left = anyio.current_time() - self._silent_since >= LEAVING_SECONDS
        frontend, stopped = self._frontend, self._stopped_by == "SIGTERM" and not left
        runs = frontend.turns.whose is Whose.OWN or bool(frontend.turns.waiting)
        answered = self._prompt is not None and not self._gone and self._stopped_by is None
        last: list[Mapping[str, Any]] = []
        if self._ends and (stopped or answered) and not frontend.others_drive:
            last.append({"kind": "end", "id": fresh_uuid()})
        elif stopped and runs and not frontend.others_drive:
            # what it asked for; the session stays
            last.append({"kind": "interrupt", "id": fresh_uuid()})
        frames, frontend.frames = [*frontend.frames, *last], []
        waiting = frontend.awaited = {str(frame["id"]) for frame in last}
        try:
            with anyio.move_on_after(LAST_WORDS_SECONDS if self._stopped_by else END_SECONDS):
                for frame in frames:
                    await self._link.send_frame(frame)
                # a connection that is closed before may take them with it
                while waiting and not self._lost:
                    await self._news.wait()
        except HostGoneError:
            pass
        if self._stopped_by is not None:  # where the host has not ended the turn by now
            session = self._frontend.welcome.get("session")
            stays = HUNG_UP.format(signal=self._stopped_by, session=session)
            await self._last_words(
                f"the turn was stopped by {self._stopped_by}" if last else stays, "signal"
            )

    def _interrupt(self, tasks: TaskGroup) -> None:
        """A SIGINT: the turn of this frontend is interrupted, and its result is the end."""
        turns, waited = self._frontend.turns, not self._frontend.turns.idle
        self._frontend.take_back()
        if turns.whose is Whose.OWN:
            self._frontend.interrupt()
        elif waited:
            self._add_result(INTERRUPTED, "interrupted")
        tasks.start_soon(self._beside, self._obeyed)
        self._tell_news()

    async def _obeyed(self) -> None:
        """Have the host hear of the interrupt. NoAnswerError where it does not: then nothing would
        ever end.
        """
        await self._write()
        answers = "accepted" in self._frontend.welcome.get("knows", ())
        with anyio.move_on_after(ANSWER_TIMEOUT_S):
            await self._send()
            while answers and self._frontend.awaited and not self._lost:
                await self._news.wait()
            return
        raise NoAnswerError(self._link.session_id, self._link.pid)
