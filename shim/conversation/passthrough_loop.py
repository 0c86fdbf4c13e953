"""A conversation that the child holds itself, in Claude's own protocol: bytes both ways, and a certain end.

The translation follows what passes, so that a turn that the child leaves unfinished still gets its result. Where
nothing was asked of us (no terminator, nothing hidden) the child's lines are written as they came.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from shim.channels.raw_output import COURTESY_SECONDS, offer, tell
from shim.channels.stdin import Source
from shim.channels.stdout import FrontendGoneError, Output
from shim.conversation.loop import LAST_WORDS_SECONDS, STATUS_OF_SIGNAL, Loop, said_of
from shim.core.errors import Cause
from shim.core.reading.account import printable
from shim.core.reading.lines import LineSplitter
from shim.core.turn.machine import CLOSED, NEW
from shim.core.turn.outcome import open_calls
from shim.core.vendor.translation import Translation
from shim.process import strays
from shim.process.child import Child

if TYPE_CHECKING:
    from shim.core.secrets.redactor import Stream
    from shim.recording.recorder import Recorder

# What the frontend's and the child's lines are looked at for: who waits for whom. Nothing else of them is read.
MESSAGE = re.compile(rb'"type"\s*:\s*"user"')
ANSWER = re.compile(rb'"type"\s*:\s*"control_response"')
QUESTION = b'{"type":"control_request"'  # as the real one writes it
CANCEL = b'{"type":"control_cancel_request"'
IDENTITY = re.compile(rb'"request_id"\s*:\s*"([^"]{1,100})"')
QUESTIONS = 1000  # that wait for their answers and are told apart


class Relay(Loop):
    """One child for all. `plain`: its lines pass as they are. `end_grace` is what it has to end after its stdout.

    `timeouts`: how long it may be silent while somebody waits for it. Between two turns, and while a person is asked,
    nobody does.
    """

    def __init__(
        self,
        child: Child,
        translation: Translation,
        output: Output,
        source: Source,
        *,
        plain: bool,
        interrupt: str,
        end_grace: float,
        timeouts: Mapping[str, float],
        stream: "Stream | None" = None,
        note: Callable[[Translation], None] = lambda translation: None,
        recorder: "Recorder | None" = None,
    ) -> None:
        """`stream` takes the secrets out of the child's stderr, `note` hears of turns that are over."""
        super().__init__(output, recorder)
        self._note = note
        self._child = child
        self._translation = translation
        self._source = source
        self._plain = plain
        if plain:
            translation.pass_on()
        translation.asked(False)
        self._hung_up = self._deaf = False
        self._first_signal = interrupt
        self._end_grace = end_grace
        self._timeouts = timeouts
        self._heard = LineSplitter()
        self._answers: list[bytes] = []  # ours, to what the frontend could not be asked
        self._between = True  # two lines of the frontend's
        self._stream = stream
        self._overdue = float("inf")  # when nothing more is expected
        self._waiting = anyio.CancelScope()
        self._awaited = False
        self._asking: set[bytes] = set()  # the questions that nobody answered yet
        self._answered: object = None  # the last turn that has its result
        self._patience = ""

    async def _work(self, tasks: TaskGroup) -> int:
        for work in (self._copy, self._drain, self._watch):
            tasks.start_soon(self._beside, work)
        try:
            with self._working:
                await self._pump()
                with anyio.move_on_after(self._end_grace):
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
        if self._stopped_by is not None:
            return STATUS_OF_SIGNAL[self._stopped_by]
        if self._fault is not None:
            return 1
        if self._gone or self._ending:
            return 0
        failed = int(self._translation.turn.is_error)
        if ended is None:  # it had answered, and did not go by itself
            return failed if self._translation.finished else 1
        return 1 if ended.code is None else ended.code or failed

    async def _beside(self, work: Callable[[], Awaitable[None]]) -> None:
        """A mistake beside the pump ends it too."""
        try:
            await work()
        except Exception as error:
            self._fault = error
            self._working.cancel()

    async def _copy(self) -> None:
        """The frontend's bytes, to their end, which is the child's too."""
        while chunk := await self._source.read():
            for raw in self._heard.feed(chunk):
                if MESSAGE.search(raw) is not None:
                    self._awaited = True
                    self._translation.asked(True)
                if self._asking and ANSWER.search(raw) is not None:
                    self._asking.difference_update(IDENTITY.findall(raw))
            self._waiting.deadline = self._until()
            self._between = chunk.endswith(b"\n")
            await self._child.say(chunk)
            await self._answer()
        self._child.hang_up()
        self._hung_up = True
        self._expect_end()

    def _expect_end(self) -> None:
        """Nobody says anything any more: a child that has answered everything is over, whether it knows or not."""
        turn = self._translation.turn
        if self._hung_up and not self._awaited and turn.state in (NEW, CLOSED):
            self._overdue = anyio.current_time() + self._end_grace
        elif self._child.exit is None:
            self._overdue = float("inf")
        self._waiting.deadline = self._until()

    async def _drain(self) -> None:
        try:
            await self._child.drain(self._complain)
        finally:
            if self._stream is not None:
                tell(printable(self._stream.flush()))

    def _complain(self, chunk: bytes) -> None:
        """Its stderr is ours. A frontend that has a pipe for it and does not read it is waited for once."""
        text = chunk.decode("utf-8", "replace")
        data = printable(text if self._stream is None else self._stream.feed(text)).encode()
        try:
            self._deaf = bool(offer(2, data, 0.0 if self._deaf else COURTESY_SECONDS))
        except (OSError, ValueError):
            self._deaf = True

    async def _watch(self) -> None:
        """A child that ended while something else holds its stdout: its last bytes get their grace."""
        await self._child.ended()
        self._overdue = anyio.current_time() + self._end_grace
        self._waiting.deadline = self._until()

    async def _pump(self) -> None:
        translation = self._translation
        while True:
            with anyio.CancelScope(deadline=self._until()) as self._waiting:
                chunk = await self._child.read()
            if self._waiting.cancelled_caught and anyio.current_time() < self._overdue:
                await self._stall()
                return
            if self._waiting.cancelled_caught or not chunk:
                break
            lines = translation.split(chunk)
            for raw in lines:
                self._note_question(raw)
            said = translation.read(lines)
            for answer in translation.outgoing():
                self._asking.difference_update(IDENTITY.findall(answer)[:1])
                self._answers.append(answer)
            await self._say(said)
            await self._answer()
            self._expect_end()
        await self._say(translation.drain())

    async def _answer(self) -> None:
        """Say to the child what is ours to say, where no line of the frontend's is unfinished."""
        while self._answers and self._between:
            await self._child.say(self._answers.pop(0))

    def _note_question(self, raw: bytes) -> None:
        """Who is asked may take their time; a question that was taken back waits for nobody."""
        if raw.startswith(QUESTION) and len(self._asking) < QUESTIONS:
            self._asking.update(IDENTITY.findall(raw)[:1])
        elif self._asking and raw.startswith(CANCEL):
            self._asking.difference_update(IDENTITY.findall(raw)[:1])

    async def _say(self, said: bytes) -> None:
        translation = self._translation
        if translation.turn.stated and not translation.finished:
            said += translation.finish()
        if translation.finished and self._answered is not translation.turn:
            self._answered = translation.turn
            self._note(translation)
            self._awaited = False
            self._asking.clear()
            strays.reap(self._child.pids)
        await self._output.lines(translation.passed() if self._plain else said)

    def _until(self) -> float:
        """When the child has been silent for too long."""
        turn = self._translation.turn
        begun = turn.state not in (NEW, CLOSED)
        if self._asking or not (begun or self._awaited):
            return self._overdue
        self._patience = "tool_timeout" if begun and turn.open else "idle_timeout"
        return min(self._overdue, anyio.current_time() + self._timeouts[self._patience])

    async def _stall(self) -> None:
        """It said nothing for too long: it is interrupted, then ended."""
        turn = self._translation.turn
        if self._recorder is not None:
            self._recorder.note("timeout", name=self._patience, seconds=self._timeouts[self._patience])
        reason = f"claude said nothing for {self._timeouts[self._patience]:g} s ({self._patience})"
        if turn.open:
            reason += f" while these calls were open: {open_calls(turn.open)}"
        await self._child.stop(self._first_signal)
        await self._unfinished(reason, "stall")

    async def _unfinished(self, reason: str, cause: Cause | None = None) -> None:
        """A turn that was begun, or asked for, and has no result gets one."""
        if self._translation.turn.state in (NEW, CLOSED):
            if not self._awaited:
                return
            if self._translation.finished:
                self._translation.begin()
        self._awaited = False
        if cause is not None:
            self._translation.turn.stopped(reason, cause)
        child_exit = self._child.exit if cause is None else None
        await self._output.lines(self._translation.close(child_exit, self._child.tail.text()))

    async def _last_words(self, reason: str, cause: Cause) -> None:
        with anyio.move_on_after(LAST_WORDS_SECONDS):
            try:
                await self._unfinished(reason, cause)
            except FrontendGoneError:
                pass

    def _interrupt(self, tasks: TaskGroup) -> None:
        tasks.start_soon(self._child.stop, self._first_signal)
