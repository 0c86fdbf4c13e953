"""A conversation that a real claude holds itself, in Claude's own protocol: its lines pass, and its
end is certain.

The frontend's bytes go to the child as they come. The child's lines go through the pump like any
vendor's: they are written as they came where they are sound, and a turn that the child leaves
unfinished still gets its result.
"""

from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from shim.conversation.drivers.deadlines import Deadlines
from shim.conversation.drivers.driver import log_end
from shim.conversation.drivers.launcher import Launcher
from shim.conversation.exchange import PendingExchange
from shim.conversation.loop import LAST_WORDS_SECONDS, STATUS_OF_SIGNAL, Loop, said_of
from shim.core.adapter.commands import Command, Expect, Said, Stage, TellChild
from shim.core.adapter.pump import Pump
from shim.core.api_errors import Cause
from shim.core.reading.account import printable
from shim.core.reading.lines import LineSplitter
from shim.io.raw_output import COURTESY_SECONDS, offer, tell
from shim.io.stdin import Inbound
from shim.io.stdout import FrontendGoneError, Output
from shim.process import strays
from shim.process.child import Child

if TYPE_CHECKING:
    from shim.core.secrets.redactor import Stream


class StderrCopy:
    """The child's stderr on our own, as it comes; `stream` takes the secrets out of it."""

    def __init__(self, stream: "Stream | None") -> None:
        self._stream = stream
        self._deaf = False  # it was not read for a moment

    def __call__(self, chunk: bytes) -> None:
        """Copy a chunk. A frontend that has a pipe for it and does not read that pipe is waited for
        once.
        """
        text = chunk.decode("utf-8", "replace")
        data = printable(text if self._stream is None else self._stream.feed(text)).encode()
        try:
            self._deaf = bool(offer(2, data, 0.0 if self._deaf else COURTESY_SECONDS))
        except (OSError, ValueError):
            self._deaf = True

    def end(self) -> None:
        """The rest, which may have been the beginning of a secret."""
        if self._stream is not None:
            tell(printable(self._stream.flush()))


class PassthroughLoop(Loop):
    """One child for the whole conversation. `stream` takes the secrets out of its stderr."""

    def __init__(
        self,
        launcher: Launcher,
        child: Child,
        output: Output,
        source: Inbound,
        stream: "Stream | None" = None,
    ) -> None:
        super().__init__(output, launcher.recorder)
        self._launcher = launcher
        self._child = child
        self._pump: Pump = launcher.turns.pump(None)
        self._pump.translation.asked(False)
        self._source = source
        self._stderr = StderrCopy(stream)
        self._exchange = PendingExchange()
        self._deadlines = Deadlines(launcher.timeouts)
        self._deadlines.listen("idle_timeout")
        self._answers: list[bytes] = []  # ours, to what the frontend could not be asked
        self._between = True  # two lines of the frontend's
        self._hung_up = False  # the frontend has said all

    async def _work(self, tasks: TaskGroup) -> int:
        for work in (self._copy, self._drain, self._watch):
            tasks.start_soon(self._beside, work)
        try:
            with self._working:
                await self._serve()
                with anyio.move_on_after(self._launcher.end_grace):
                    await self._child.ended()
                await self._unfinished("")
            if self._fault is not None:
                raise self._fault
        except FrontendGoneError:
            self._gone = True
        except Exception as error:  # our own mistake: the frontend still gets its one result
            self._fault = error
            await self._last_words(said_of(error), "internal")
            tell(f"{said_of(error)}\n")
        if self._stopped_by is not None:
            self._child.signal("SIGTERM")
            await self._last_words(f"the turn was stopped by {self._stopped_by}", "signal")
        ended = self._child.exit
        await self._child.stop("SIGTERM")
        self._child.close()
        log_end(self._launcher.setup.log, self._child)
        if self._stopped_by is not None:
            return STATUS_OF_SIGNAL[self._stopped_by]
        if self._fault is not None:
            return 1
        if self._gone or self._ending:
            return 0
        failed = int(self._pump.failed)
        if ended is None:  # it had answered, and did not go by itself
            return failed if self._pump.finished else 1
        return 1 if ended.code is None else ended.code or failed

    # -- the frontend's bytes ----------------------------------------------------------------------

    async def _copy(self) -> None:
        """Copy the frontend's bytes to the child; close the child's stdin where they end."""
        lines = LineSplitter()
        while chunk := await self._source.read():
            for line in lines.feed(chunk):
                if self._exchange.read_frontend_line(line):
                    self._pump.translation.asked(True)
            self._look_again()
            self._between = chunk.endswith(b"\n")
            await self._child.say(chunk)
            await self._answer()
        self._child.hang_up()
        self._hung_up = True
        self._expect_end()

    async def _answer(self) -> None:
        """Give the child our own answers, between two lines of the frontend's."""
        while self._answers and self._between:
            await self._child.say(self._answers.pop(0))

    # -- the child's lines -------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Pump until the child's stdout is at its end, or the child is silent although an answer is
        due, or is done.
        """
        pump, exchange = self._pump, self._exchange
        while True:
            with self._deadlines.reading(patient=self._patient) as reading:
                chunk = await self._child.read()
            if reading.cancelled_caught and not self._deadlines.passed:
                await self._stall()
                return
            if reading.cancelled_caught or not chunk:
                break
            lines = pump.translation.split(chunk)
            for line in lines:
                exchange.read_child_line(line)
            await self._say(pump.read(lines))
            await self._answer()
            self._expect_end()
        await self._say(pump.drain())

    async def _say(self, given: Said) -> None:
        said, commands = given
        for command in commands:
            said += self._carry_out(command)
        await self._output.lines(said)

    def _carry_out(self, command: Command) -> bytes:
        """Carry out a command of the pump's; gives back the lines that it leads to.

        `Remember` is not carried out: a real claude keeps its own sessions.
        """
        match command:
            case Expect(timeout):
                self._deadlines.listen(timeout)
            case TellChild(line):
                self._exchange.record_answer(line)
                self._answers.append(line)
            case Stage.SETTLED:  # nothing contradicts the result that came with this
                said, _ = self._pump.finish()
                self._ended()
                return said
            case Stage.FINISHED:
                self._ended()
        return b""

    def _ended(self) -> None:
        """A turn has its result."""
        self._launcher.turns.note_account(self._pump)
        self._exchange.end_turn()
        strays.reap(self._child.pids)

    async def _drain(self) -> None:
        try:
            await self._child.drain(self._stderr)
        finally:
            self._stderr.end()

    # -- silence, and the end ----------------------------------------------------------------------

    @property
    def _patient(self) -> bool:
        """Whether the child may be silent for any time: between two turns, and while a person is
        asked.
        """
        return self._exchange.is_asking or not (self._pump.begun or self._exchange.awaits_result)

    def _look_again(self) -> None:
        self._deadlines.look_again(patient=self._patient)

    def _expect_end(self) -> None:
        """Once its stdin is closed, a child that has answered every message gets a moment to end by
        itself.
        """
        self._deadlines.go_on()
        if self._hung_up and not self._exchange.awaits_result and not self._pump.begun:
            self._deadlines.rest(self._launcher.end_grace)
        self._look_again()

    async def _watch(self) -> None:
        """Give a child that has ended a moment for its last bytes: another process may still hold
        its stdout.
        """
        await self._child.ended()
        self._deadlines.hurry(self._launcher.end_grace)

    async def _stall(self) -> None:
        """Interrupt, then end a child that printed nothing for too long; its turn gets a result."""
        name, seconds = self._deadlines.name, self._deadlines.seconds
        if self._recorder is not None:
            self._recorder.note("timeout", name=name, seconds=seconds)
        reason = self._pump.stall_reason(f"claude said nothing for {seconds:g} s ({name})")
        await self._child.stop(self._launcher.vendor.exit.interrupt)
        await self._unfinished(reason, "stall")

    async def _unfinished(self, reason: str, cause: Cause | None = None) -> None:
        """Give a result to a turn that has begun, or whose message was sent, and that has none."""
        pump = self._pump
        if not pump.begun:
            if not self._exchange.awaits_result:
                return
            if pump.finished:
                pump.begin()
        self._exchange.end_turn()
        if cause is not None:
            pump.stop(reason, cause)
        said, _ = pump.close(self._child.exit if cause is None else None, self._child.tail.text())
        await self._output.lines(said)

    async def _last_words(self, reason: str, cause: Cause) -> None:
        with anyio.move_on_after(LAST_WORDS_SECONDS):
            try:
                await self._unfinished(reason, cause)
            except FrontendGoneError:
                pass

    def _interrupt(self, tasks: TaskGroup) -> None:
        self._pump.interrupt()  # a claude that starts is ended by that, and says nothing
        tasks.start_soon(self._child.stop, self._launcher.vendor.exit.interrupt)
