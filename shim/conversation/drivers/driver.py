"""How a conversation is held with a vendor: a child for each message, or one child for all of them.

Both are the same to the session: `turn` answers one message with one result, whatever happens to the child on the
way; the other methods may be called while it runs.
"""

from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from shim.channels.raw_output import tell
from shim.channels.stdout import Output
from shim.conversation.drivers.launcher import Launcher
from shim.core.api_errors import classify
from shim.core.claude.control import Control
from shim.core.claude.hooks import Seen
from shim.core.claude.messages import Message
from shim.core.claude.permissions import Decision, Permission
from shim.core.errors import PASSED_OVER, ModeError, ShimError, Tried, VendorError, tried
from shim.core.turn.result import UNANSWERED_CAUSES, Exit, open_calls
from shim.core.vendor.translation import Translation
from shim.process import strays
from shim.process.child import Child

SILENT_SECONDS = 0.2  # for the last bytes of a child that ended before it said anything
# While another vendor may answer in a vendor's place, nothing that it says reaches the frontend before its first word.
# A frontend is told who is at it after so long, or so much, and then nobody takes its place any more. A login that is
# missing shows in a second or two; a rate limit is often waited for, and counts as one that is final after this time.
HOLD_SECONDS = 30.0
HOLD_BYTES = 1024 * 1024
LATE_BYTES = 1024 * 1024  # the most that a pipe holds: what an ended child wrote is read, however slow our reader is
STDERR_SECONDS = 0.2  # for the rest of stderr when stdout is at its end


class Driver(Protocol):
    """What the session knows of a driver."""

    @property
    def translation(self) -> Translation | None:
        """Of the turn that runs, or of the last one."""

    async def turn(self, message: Message) -> None:
        """Answer a message; everything but the terminator of the format has been said when this returns."""

    async def never_begin(self, message: Message) -> None:
        """End the turn of a message that was interrupted before anybody was at it."""

    async def interrupt(self) -> None:
        """Stop the turn that runs; it ends with its result."""

    async def decide(self, permission: Permission, decision: Decision) -> None:
        """Give the vendor the answer to its question."""

    async def forbid(self, call: str, reason: str) -> None:
        """The frontend forbids a call that runs already: the turn is stopped."""

    async def change(self, *, model: str | None = None, mode: str | None = None) -> None:
        """Another model or permission mode; for a child that stays, at once."""

    def terminate(self) -> None:
        """Tell the child to go, without waiting."""

    def reap(self) -> None:
        """Let go of what the child's tools left behind and has ended."""

    async def stop(self) -> None:
        """End the child for certain: the conversation is over, or something failed."""


class ChildDriver:
    """What both have in common: a child, its translation, the pump between child and output.

    `yields`: another vendor may answer in the place of this one, for as long as it has said nothing. Such a turn leaves
    `unanswered`, and nothing of it was said.
    """

    yields = False
    unanswered: Tried | None = None

    def __init__(self, launcher: Launcher, output: Output, control: Control | None = None) -> None:
        self.translation: Translation | None = None
        self.launcher = self._launcher = launcher
        self._output = output
        self._control = control
        self._child: Child | None = None
        self._deadline = float("inf")
        self._grace = float("inf")  # of a vendor that said that it is done; over when it goes on
        self._reading = anyio.CancelScope()
        self._tasks: TaskGroup | None = None
        self._interrupted = self._stalled = False
        self._again = False  # this turn is said for the second time
        self._heard = False  # the child has said something; in this turn too:
        self._answering = False
        self._patience = ""
        self._before: Translation | None = None  # of the last turn that was said
        self._held_until = float("inf")
        self._held_bytes = 0
        self._noted: tuple[str | None, bool] = (None, True)

    def may_yield(self, yields: bool, before: tuple[Tried, ...] = ()) -> None:
        """Of the turn that comes: whether another vendor may answer it, and who was asked before this one."""
        self.yields, self.unanswered = yields, None
        self._launcher.tried = before

    async def turn(self, message: Message) -> None:
        """Answer a message."""
        raise NotImplementedError

    async def interrupt(self) -> None:
        """Stop the turn that runs."""
        raise NotImplementedError

    async def decide(self, permission: Permission, decision: Decision) -> None:
        """Give the vendor the answer to its question."""
        raise NotImplementedError

    async def change(self, *, model: str | None = None, mode: str | None = None) -> None:
        """Another model or permission mode."""
        raise NotImplementedError

    async def stop(self) -> None:
        """End the child for certain."""
        raise NotImplementedError

    def terminate(self) -> None:
        """Tell the child to go, without waiting."""
        if self._child is not None:
            self._child.signal("SIGTERM")

    def reap(self) -> None:
        """Let go of what the child's tools left behind and has ended."""
        strays.reap(self._child.pids if self._child is not None else set())

    async def _refuse(self, message: Message, error: Exception) -> None:
        """A turn that cannot begin ends in a result that says why, our own mistake too."""
        if self.yields and isinstance(error, VendorError | ModeError):
            self._let_go(tried(self._launcher.vendor.shown, error.cause, str(error)), started=False)
            return
        translation = self._unbegun(message)
        if isinstance(error, ShimError):
            translation.turn.stopped(f"{error}\n{error.hint}".strip(), error.cause)
        else:
            translation.turn.stopped(f"the shim failed: {error!r}", "internal")
        await self._output.lines(translation.close(None))

    async def _give_up(self, translation: Translation, error: ShimError) -> None:
        """The child that the turn needs to go on cannot be started."""
        translation.turn.stopped(f"{error}\n{error.hint}".strip(), error.cause)
        await self._say_end(translation, translation.close(None))

    async def _pump(self, child: Child, translation: Translation) -> bool:
        """Until the turn is over (True), or the child's stdout is at its end or a deadline has passed (False)."""
        late = 0
        while not translation.finished:
            with anyio.CancelScope(deadline=self._until(translation)) as self._reading:
                chunk = await child.read()
            if self._reading.cancelled_caught:
                if self.yields and anyio.current_time() >= self._held_until:
                    if self._waits_in_vain(child, translation):
                        return False
                    await self._output.lines(self._commit(translation))
                    continue
                if anyio.current_time() >= min(self._deadline, self._grace):
                    return self._rested(translation)
                chunk = child.read_ready()  # we may have been stopped ourselves, while it was not
                if not chunk:
                    self._stall(child, translation)
                    continue
            if not chunk:
                return False
            late = late + len(chunk) if anyio.current_time() >= min(self._deadline, self._grace) else 0
            if late > LATE_BYTES:
                return False
            self._heard = self._answering = True
            said = translation.feed(chunk)
            if self.yields:
                self._held_bytes += len(chunk)
                if translation.turn.spoken or translation.finished or self._held_bytes > HOLD_BYTES:
                    said = self._commit(translation)
            goes_on = bool(translation.turn.usage) or not self._launcher.vendor.saves_late
            known = translation.turn.conversation.vendor_session, goes_on
            if (known != self._noted or translation.finished) and not self.yields:
                self._noted = known
                self._launcher.remember(translation)
            if said:
                await self._output.lines(said)
            else:
                await anyio.lowlevel.checkpoint()  # a flood that says nothing holds nobody up
            await self._beside(child, translation)
            if not translation.turn.settled:
                self._grace = self._resting(translation)
            elif self._settled():
                return True
        return True

    def _until(self, translation: Translation) -> float:
        """When the child has been silent for too long; while a person is asked it may be silent for ever.

        One that said that it is done has its grace, one that is being ended the time of that.
        """
        deadline = min(self._deadline, self._grace)
        if self.yields:
            deadline = min(deadline, self._held_until)
        if translation.turn.settled or self._stalled or (self._control is not None and self._control.asking):
            return deadline
        if not self._answering:
            self._patience = "first_byte_timeout"
        elif translation.turn.beating:
            self._patience = "heartbeat_timeout"
        else:
            self._patience = "tool_timeout" if translation.turn.open else "idle_timeout"
        return min(deadline, anyio.current_time() + self._launcher.timeouts[self._patience])

    def _stall(self, child: Child, translation: Translation) -> None:
        """The child said nothing for too long: it is interrupted, then ended; what it says meanwhile is heard."""
        turn, name = translation.turn, self._patience
        seconds, waiting = self._launcher.timeouts[name], open_calls(turn)
        text = f"{self._launcher.vendor.name} said nothing for {seconds:g} s ({name})"
        if self._launcher.recorder is not None:
            self._launcher.recorder.note("timeout", name=name, seconds=seconds)
        if not turn.stated:  # a real claude that gave its result may have had more to do; that result stands
            turn.stopped(text + (f" while these calls were open: {waiting}" if waiting else ""), "stall")
        self._stalled = True
        assert self._tasks is not None
        self._tasks.start_soon(self._break_off, child)

    async def _break_off(self, child: Child) -> None:
        """The vendor's own way of interrupting its turn, and then the end of its group."""
        await child.stop(self._launcher.vendor.interrupt)

    async def _beside(self, child: Child, translation: Translation) -> None:
        """What has to be done after each chunk: the frontend's hooks hear of calls and results."""
        seen = translation.turn.observed
        if seen and self._control is not None:
            translation.turn.observed = []
            if translation.finished:  # nothing follows an error result (contract S16b)
                return
            forbidden = None
            for one in seen:
                self._control.observe(one)
                if one.event == "PostToolUse":
                    forbidden = forbidden or self._control.ran(one.call)
            await self._output.lines(self._control.take())
            if forbidden is not None:
                await self.forbid(forbidden.call, forbidden.reason)

    def _listen(self, translation: Translation, message: Message) -> None:
        """The turn that begins answers `message`; it notes what the frontend has hooks for."""
        translation.turn.answers(message, echo=self._launcher.echo)
        if self.yields:
            translation.pen.hold()
            self._held_until, self._held_bytes = anyio.current_time() + HOLD_SECONDS, 0
        if self._control is not None and self._control.facts.hooks:
            translation.turn.observed = []

    def _commit(self, translation: Translation) -> bytes:
        """The vendor is the one that answers: what it said so far."""
        self.yields = False
        translation.pen.release()
        return translation.pen.take()

    def _waits_in_vain(self, child: Child, translation: Translation) -> bool:
        """Whether the vendor only waits for a model that may not be asked now, as it says itself or on stderr."""
        waits = translation.turn.waits or classify(child.tail.text())
        if waits.cause not in UNANSWERED_CAUSES:
            return False
        name = self._launcher.vendor.shown
        translation.turn.stopped(f"{name} said nothing in {HOLD_SECONDS:g} s but that it waits", waits.cause)
        self._deadline = anyio.current_time()
        return True

    def _passed_over(self, translation: Translation, child_exit: Exit | None, stderr: str | None) -> bool:
        """Whether the turn is another vendor's; without `stderr` the child has said how its turn ended, and stays."""
        if not self.yields or self._interrupted or self._stalled or translation.finished:
            return False
        why = translation.unanswered(child_exit, stderr)
        if why is not None:
            self._launcher.note_account(translation)
            self._let_go(why, started=True)
        return why is not None

    def _let_go(self, why: Tried, *, started: bool) -> None:
        """The turn is another vendor's; a signal that comes now finds one that has not begun."""
        self.unanswered = why
        if self._launcher.recorder is not None:
            self._launcher.recorder.note(PASSED_OVER, started=started, **why.fact())
        self._launcher.pen.drop()
        self._launcher.pen.release()
        self.translation = self._launcher.translation(self._before)

    async def never_begin(self, message: Message) -> None:
        """End the turn of a message that was interrupted before anybody was at it."""
        translation = self._unbegun(message)
        translation.interrupt()
        await self._output.lines(translation.close(None))

    def _unbegun(self, message: Message) -> Translation:
        """The turn of a message that no child is at."""
        self.translation = translation = self._launcher.translation(self.translation)
        translation.turn.answers(message, echo=self._launcher.echo)
        return translation

    async def _end_interrupted(self, translation: Translation) -> bool:
        """End a turn that was interrupted while no child was at it; whether it was."""
        if self._interrupted:
            translation.interrupt()
            await self._stopping(translation)
            await self._say_end(translation, translation.close(None))
        return self._interrupted

    async def _say_end(self, translation: Translation, said: bytes) -> None:
        """The last lines of a turn; a frontend that has them may go on with the session at once, elsewhere."""
        self._launcher.remember(translation)
        await self._output.lines(said)

    async def _stopping(self, translation: Translation) -> None:
        """The turn is over but for its result."""
        if self._control is not None and self._control.facts.hooks:
            self._control.observe(Seen("Stop"), last=translation.turn.last_text)
            await self._output.lines(self._control.take())

    async def forbid(self, call: str, reason: str) -> None:
        """Said at once; the pump sees that the turn is over when the child has gone."""
        if self.translation is not None and self._child is not None:
            self.translation.turn.forbid(call, reason)
            if self.translation.finished:
                self._launcher.remember(self.translation)
            await self._output.lines(self.translation.pen.take())
            await self._child.stop(self._launcher.vendor.interrupt)

    def _settled(self) -> bool:
        """The vendor said that it is done; whether its turn is over with that."""
        return True

    def _resting(self, translation: Translation) -> float:
        """Until when a vendor that may be done has to be silent to be believed; only one that stays is."""
        return float("inf")

    def _rested(self, translation: Translation) -> bool:
        """It was silent for so long; whether its turn is over with that."""
        return False

    def _hurry(self, seconds: float) -> None:
        """From now on the child has so long and no more."""
        self._deadline = min(self._deadline, anyio.current_time() + seconds)
        self._reading.deadline = min(self._reading.deadline, self._deadline)

    async def _watch(self, child: Child) -> None:
        """A child that ended while something else holds its stdout: its last bytes get their grace."""
        await child.ended()
        if self._child is child:
            self._hurry(self._launcher.end_grace if self._answering else SILENT_SECONDS)

    async def _ended(self, child: Child, translation: Translation) -> Exit | None:
        """Make sure that the child is gone; how it ended, None when that was our doing."""
        if translation.finished:
            await child.stop(self._launcher.vendor.interrupt)
            return None
        deadline = min(self._deadline, self._grace, anyio.current_time() + self._launcher.end_grace)
        with anyio.CancelScope(deadline=deadline):
            await child.ended()
        if child.exit is None:
            await child.stop("SIGTERM" if self._interrupted else self._launcher.vendor.interrupt)
            return None
        return None if self._interrupted or self._stalled else child.exit

    def _cut_short(self, translation: Translation, child_exit: Exit | None = None, stderr: str | None = None) -> bool:
        """Whether the message is to be said once more: the dialect wants it, and nothing but a text was cut (R11).

        Without `stderr` the child has said how its turn ended, and stays.
        """
        if not self._launcher.retries or self._again or self._interrupted or self._stalled or translation.finished:
            return False
        self._again = translation.retry(child_exit, stderr)
        if self._again and self._launcher.recorder is not None:
            self._launcher.recorder.note("retry")
        if self._again:
            tell(f"{self._launcher.vendor.name}: the stream was cut; the message is said once more\n")
        return self._again

    async def _close(self, child: Child, translation: Translation) -> None:
        """The child's output is at its end: its end, and with it the turn's; not when the turn begins again."""
        child_exit = await self._ended(child, translation)
        with anyio.move_on_after(STDERR_SECONDS):
            await child.drained.wait()
        stderr = child.tail.text()
        file = self._launcher.report
        if file is not None and (report := file.take()) is not None:
            translation.reported(report)
        if self._passed_over(translation, child_exit, stderr):
            return
        if not translation.finished and not self._cut_short(translation, child_exit, stderr):
            await self._stopping(translation)
            await self._say_end(translation, translation.close(child_exit, stderr))
