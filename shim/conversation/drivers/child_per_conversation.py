"""A conversation with one child for all messages: it is told everything through its stdin, and asks back."""

import contextlib
from collections.abc import Mapping
from typing import Any

import anyio
from anyio.abc import TaskGroup

from shim.channels.stdout import FrontendGoneError, Output
from shim.conversation.drivers.driver import ChildDriver
from shim.conversation.drivers.launcher import Launcher
from shim.core.claude.control import Control
from shim.core.claude.messages import Message
from shim.core.claude.permissions import STOPPED, Decision, Permission
from shim.core.errors import ShimError
from shim.core.vendor.translation import Translation
from shim.process.child import Child

OBEY_SECONDS = 1.5  # for a child that was told to interrupt its turn; then it is ended
HOOK_SECONDS = 60.0  # for a frontend's hooks about a call, as the real one gives them
TELL_SECONDS = 60.0  # for a child to take what it is told; one that reads nothing for so long is ended
BEATS = 3  # questions for a sign of life in the time that one may take: two may be lost
LATE_CHUNKS = 256  # that are skipped between two turns; a child that never stops talking is pumped as its answer


class TwoWay(ChildDriver):
    """One child for the whole conversation; one that died is replaced by one that goes on with its session."""

    def __init__(self, launcher: Launcher, output: Output, control: Control, tasks: TaskGroup) -> None:
        super().__init__(launcher, output, control)
        assert launcher.vendor.speaks
        self._speech = launcher.vendor.speech()
        self._tasks: TaskGroup = tasks
        self._questions = control
        self._allowed: list[tuple[str, Mapping[str, Any] | None]] = []
        self._draining, self._feeling = anyio.CancelScope(), anyio.CancelScope()
        self._told = True
        self._turning = False
        self._outdated = False  # the child runs in another mode than is asked for by now

    async def turn(self, message: Message) -> None:
        """Say the message to the child, pump until its turn is over."""
        self._deadline = self._grace = float("inf")
        self._interrupted = self._stalled = self._again = False
        self._allowed.clear()
        self._before = self.translation
        if self._child is not None and self._outdated:
            await self._child.stop()
        if self._child is None or self._child.exit is not None or self.translation is None:
            if self._child is not None:
                await self._forget(self._child)
            try:
                child, translation = await self._begin(message)
            except Exception as error:
                await self._refuse(message, error)
                return
        else:
            child, translation = self._child, self.translation
            await self._skip_late(child, translation)
            translation.begin(self._launcher.terms())
        self._listen(translation, message)
        if await self._end_interrupted(translation):  # while the last child was being ended, or this one started
            await child.stop()
            await self._forget(child)
            return
        self._speech.follow(self._launcher.session)
        prompt = self._speech.prompt(self._launcher.asked(message.text))
        self._answering, fresh = False, not self._heard
        await self._prompt(child, prompt)
        over = await self._pump(child, translation)
        silent = not (self._answering or self._interrupted or self._stalled or translation.turn.outcome)
        if silent and not (over or fresh):  # it was about to leave when it was told
            await self._ended(child, translation)  # it may have closed its stdout and nothing more
            await self._forget(child)
            if await self._end_interrupted(translation):
                return
            try:
                child, _ = await self._begin(message, translation)
            except ShimError as error:
                await self._give_up(translation, error)
                return
            translation.anew()
            translation.turn.terms = translation.turn.terms._replace(tried=self._launcher.tried)  # of what is played
            await self._prompt(child, prompt)
            over = await self._pump(child, translation)
        if over and not self._stalled and self._cut_short(translation):
            self._answering = False
            await self._prompt(child, prompt)
            over = await self._pump(child, translation)
        if self._stalled:
            await child.stop()
        if self._stalled or not over:
            await self._close(child, translation)
            await self._forget(child)
            if not translation.finished and self.unanswered is None:
                await self._once_more(message, translation, prompt)
        elif self._passed_over(translation, None, None):
            await child.dismiss()
            await self._forget(child)
        elif translation.turn.settled and not translation.finished:
            await self._stopping(translation)
            await self._say_end(translation, translation.finish())
        else:  # ended by us, in the middle of the vendor's turn
            await child.stop(self._launcher.vendor.interrupt)
            await self._forget(child)

    async def _once_more(self, message: Message, translation: Translation, prompt: bytes) -> None:
        """Another child for the same message: the first one's stream was cut."""
        if await self._end_interrupted(translation):
            return
        try:
            self._launcher.again(translation)
            child, _ = await self._begin(message, translation)
        except ShimError as error:
            await self._give_up(translation, error)
            return
        self._answering = False
        await self._prompt(child, prompt)
        if await self._pump(child, translation) and translation.turn.settled:
            await self._stopping(translation)
            await self._say_end(translation, translation.finish())
        else:
            await self._close(child, translation)
            await self._forget(child)

    async def _skip_late(self, child: Child, translation: Translation) -> None:
        """What the child said between the turns answers nobody, and nobody is asked for it."""
        for _ in range(LATE_CHUNKS):
            if not (chunk := child.read_ready()):
                break
            translation.skip(chunk)
        for line in translation.outgoing():
            await self._tell(child, line)
        asked, translation.turn.asked = translation.turn.asked, []
        for permission in asked:
            await self._tell(child, self._speech.decide(permission, Decision(False, message=permission.refusal)))

    async def _begin(self, message: Message, translation: Translation | None = None) -> tuple[Child, Translation]:
        """A new child for a message; `translation` when the turn that it answers has begun already."""
        started = self._launcher.start(message.text, listens=True)
        self._heard = self._outdated = False
        self._deadline = self._grace = float("inf")
        self._child = child = Child(*started._replace(stdin=b""))
        self.translation = translation = translation or self._launcher.translation(self.translation)
        self._draining, self._feeling = anyio.CancelScope(), anyio.CancelScope()
        self._tasks.start_soon(self._drain, child, self._draining)
        self._tasks.start_soon(self._watch, child)
        self._tasks.start_soon(self._feel, child, self._feeling)
        await self._tell(child, self._speech.hello())
        return child, translation

    async def _drain(self, child: Child, draining: anyio.CancelScope) -> None:
        with draining:
            await child.drain()

    async def _pump(self, child: Child, translation: Translation) -> bool:
        self._turning = True
        try:
            return await super()._pump(child, translation)
        finally:
            self._turning = False

    def _resting(self, translation: Translation) -> float:
        if not translation.turn.paused or self._stalled:
            return float("inf")
        return min(self._grace, anyio.current_time() + self._launcher.end_grace)

    def _rested(self, translation: Translation) -> bool:
        if anyio.current_time() >= self._deadline or not translation.turn.paused:
            return False
        translation.rest()
        return True

    async def _feel(self, child: Child, feeling: anyio.CancelScope) -> None:
        """Ask a child for signs of life while it answers a message, if it has any."""
        beat = self._speech.heartbeat
        with feeling:
            while self._child is child and beat():
                await anyio.sleep(self._launcher.timeouts["heartbeat_timeout"] / BEATS)
                if self._turning and self._told:
                    self._speech.follow(self._launcher.session)
                    await self._tell(child, beat())

    async def _forget(self, child: Child) -> None:
        """Its stderr may be held by somebody else: nobody waits for a descriptor whose number the next child gets."""
        self._child = None
        self._draining.cancel()
        self._feeling.cancel()
        with anyio.CancelScope(shield=True):
            await child.drained.wait()
        child.close()

    async def _prompt(self, child: Child, prompt: bytes) -> None:
        """The message of the turn; a child that has not taken it whole hears no interrupt behind it."""
        self._told = False
        await self._tell(child, prompt)
        self._told = True

    async def _tell(self, child: Child, data: bytes) -> None:
        """A child that does not take what it is told is ended; the pump comes to the end of its output."""
        with anyio.move_on_after(TELL_SECONDS) as waiting:
            await child.say(data)
        if waiting.cancelled_caught:
            await child.stop("SIGTERM")

    async def _beside(self, child: Child, translation: Translation) -> None:
        await super()._beside(child, translation)
        for line in translation.outgoing():
            await self._tell(child, line)
        turn = translation.turn
        asked, turn.asked = turn.asked, []
        for permission in asked:
            decision = self._allowed_before(permission) or self._questions.ask(permission)
            await self._output.lines(self._questions.take())
            if decision is not None:
                await self.decide(permission, decision)
            elif self._questions.holds(permission):
                self._tasks.start_soon(self._release, permission)
            elif self._questions.patience:
                self._tasks.start_soon(self._expire, permission)

    async def _release(self, permission: Permission) -> None:
        """Hooks that never answer hold a question for so long and no more."""
        await anyio.sleep(HOOK_SECONDS)
        decision = self._questions.overdue(permission)
        with contextlib.suppress(FrontendGoneError):  # the turn finds out too
            await self._output.lines(self._questions.take())
            if decision is not None:
                await self.decide(permission, decision)

    async def _expire(self, permission: Permission) -> None:
        """A question that nobody answers in time is answered by us."""
        await anyio.sleep(self._questions.patience)
        decision = self._questions.expired(permission)
        if decision is not None:
            with contextlib.suppress(FrontendGoneError):
                await self.decide(permission, decision)

    def _allowed_before(self, permission: Permission) -> Decision | None:
        """A call that is made again as the frontend changed it: allowed, once."""
        call = (permission.tool, permission.arguments)
        if permission.refusal or call not in self._allowed:
            return None
        self._allowed.remove(call)
        return Decision(True)

    async def decide(self, permission: Permission, decision: Decision) -> None:
        """The answer goes to the vendor; a refusal is also the Turn's business."""
        child, translation = self._child, self.translation
        if child is None or translation is None:
            return
        try:
            answer = self._speech.decide(permission, decision)
        except ValueError as error:  # the call has to be made again; then it was allowed already
            self._allowed.append((permission.tool, decision.changed))
            decision = Decision(False, message=str(error))
            answer = self._speech.decide(permission, decision)
            translation.turn.corrected(permission, decision.message)
        else:
            if not decision.allow:
                reason = STOPPED if decision.interrupt else decision.message
                translation.turn.refused(permission, reason, announced=decision.announced)
                await self._output.lines(translation.pen.take())
        if decision.interrupt:
            translation.interrupt()
        await self._tell(child, answer)
        self._reading.deadline = self._until(translation)
        if decision.interrupt:
            await self.interrupt()

    async def interrupt(self) -> None:
        """The vendor is told; one that does not obey in time is ended."""
        if self._interrupted:
            return
        self._interrupted = True  # for a turn that has no child at this moment too
        if self.translation is None or self._child is None:
            return
        self.translation.interrupt()
        if not (self._heard and self._told):  # it is still starting, or does not read: it hears nothing either
            await self._child.stop("SIGTERM")
            return
        await self._break_off(self._child)

    async def _break_off(self, child: Child) -> None:
        self._hurry(OBEY_SECONDS)
        self._speech.follow(self._launcher.session)
        await self._tell(child, self._speech.interrupt())

    async def change(self, *, model: str | None = None, mode: str | None = None) -> None:
        """The child that is there is told; one to come is started with it."""
        said = self._speech.model(model) if mode is None else self._speech.mode(mode)
        if self._child is not None:
            self._outdated = self._outdated or said is None
            await self._tell(self._child, said or b"")

    async def stop(self) -> None:
        """Close its stdin, and make sure of its end."""
        if (child := self._child) is not None:
            await child.dismiss()
            await self._forget(child)
