"""How a conversation is held with a vendor: a child for each message, or one child for all of them.

Both are the same to the session: `turn` answers one message with one result, whatever happens to the child on the
way; the other methods may be called while it runs.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import anyio
from anyio.abc import TaskGroup

from shim import strays
from shim.child import Child
from shim.control import Control
from shim.ending import Exit
from shim.errors import ShimError, VendorError
from shim.hooks import Seen
from shim.launcher import Launcher, Started
from shim.messages import Message
from shim.permissions import STOPPED, Decision, Permission
from shim.sinks import Output
from shim.translation import Translation

STDERR_SECONDS = 0.2  # for the rest of stderr when stdout is at its end
OBEY_SECONDS = 2.0  # for a child that was told to interrupt its turn; then it is ended
TELL_SECONDS = 10.0  # for a child to take what it is told; one that reads nothing for so long is ended


class Driver(Protocol):
    """What the session knows of a driver. `translation` is the turn's that runs, or the last one's."""

    translation: Translation | None

    async def turn(self, message: Message) -> None:
        """Answer a message; everything but the terminator of the format has been said when this returns."""

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

    async def stop(self) -> None:
        """End the child for certain: the conversation is over, or something failed."""


class _Base:
    """What both have in common: a child, its translation, the pump between child and output."""

    def __init__(self, launcher: Launcher, output: Output, control: Control | None = None) -> None:
        self.translation: Translation | None = None
        self._launcher = launcher
        self._output = output
        self._control = control
        self._child: Child | None = None
        self._deadline = float("inf")
        self._reading = anyio.CancelScope()
        self._interrupted = False
        self._heard = False  # the child has said something; in this turn too:
        self._answering = False
        self._noted: str | None = None

    def terminate(self) -> None:
        """Tell the child to go, without waiting."""
        if self._child is not None:
            self._child.signal("SIGTERM")

    async def _refuse(self, message: Message, error: ShimError) -> None:
        """A turn that cannot begin ends in a result that says why."""
        translation = self._launcher.translation(self.translation)
        self.translation = translation
        translation.turn.answers(message, echo=self._launcher.echo)
        cause = "not_found" if isinstance(error, VendorError) else "refused"
        translation.turn.failed(f"{error}\n{error.hint}".strip(), kind=cause, api=False)
        await self._output.lines(translation.close(None))

    async def _pump(self, child: Child, translation: Translation) -> bool:
        """Until the turn is over (True), or the child's stdout is at its end or a deadline has passed (False)."""
        while not translation.finished:
            with anyio.CancelScope(deadline=self._deadline) as self._reading:
                chunk = await child.read()
            if self._reading.cancelled_caught or not chunk:
                return False
            self._heard = self._answering = True
            said = translation.feed(chunk)
            known = translation.turn.conversation.vendor_session
            if known != self._noted or translation.finished:
                self._noted = known
                self._launcher.remember(translation)
            if said:
                await self._output.lines(said)
            if translation.turn.open:
                strays.adopt()  # a turn without tools leaves no processes behind
            await self._beside(child, translation)
            if translation.turn.settled and self._settled():
                return True
        return True

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
        if self._control is not None and self._control.facts.hooks:
            translation.turn.observed = []

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
            await self._output.lines(self.translation.pen.take())
            await self._child.stop(self._launcher.vendor.interrupt)

    def _settled(self) -> bool:
        """The vendor said that it is done; whether its turn is over with that."""
        return True

    def _hurry(self, seconds: float) -> None:
        """From now on the child has so long and no more."""
        self._deadline = min(self._deadline, anyio.current_time() + seconds)
        self._reading.deadline = min(self._reading.deadline, self._deadline)

    async def _watch(self, child: Child) -> None:
        """A child that ended while something else holds its stdout: its last bytes get their grace."""
        await child.ended()
        if self._child is child:
            self._hurry(self._launcher.end_grace)

    async def _ended(self, child: Child, translation: Translation) -> Exit | None:
        """Make sure that the child is gone; how it ended, None when that was our doing."""
        if translation.finished:
            await child.stop(self._launcher.vendor.interrupt)
            return None
        deadline = min(self._deadline, anyio.current_time() + self._launcher.end_grace)
        with anyio.CancelScope(deadline=deadline):
            await child.ended()
        if child.exit is None:
            await child.stop(self._launcher.vendor.interrupt)
            return None
        return None if self._interrupted else child.exit

    async def _close(self, child: Child, translation: Translation) -> None:
        """The child's output is at its end: its end, and with it the turn's."""
        child_exit = await self._ended(child, translation)
        with anyio.move_on_after(STDERR_SECONDS):
            await child.drained.wait()
        if not translation.finished:
            await self._stopping(translation)
            await self._say_end(translation, translation.close(child_exit, child.tail.text()))


class OneWay(_Base):
    """A child for each message; a later one goes on with the vendor's own session."""

    def __init__(
        self, launcher: Launcher, output: Output, control: Control | None = None, started: Started | None = None
    ) -> None:
        """`started` is the first message's child, if it was started already."""
        super().__init__(launcher, output, control)
        self._started = started

    async def turn(self, message: Message) -> None:
        """Start a child, pump its answer, make sure of its end, say the result."""
        started, self._started = self._started, None
        try:
            started = started or self._launcher.start(message.text)
        except ShimError as error:
            await self._refuse(message, error)
            return
        self._deadline, self._interrupted = float("inf"), False
        self._child = child = Child(started.process, started.stdin)
        try:
            self.translation = translation = self._launcher.translation(self.translation)
            self._listen(translation, message)
            await self._run(child, translation)
        finally:
            child.close()
        self._child = None

    async def _run(self, child: Child, translation: Translation) -> None:
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(child.feed)
            tasks.start_soon(child.drain)
            tasks.start_soon(self._watch, child)
            try:
                await self._pump(child, translation)
                await self._close(child, translation)
            except Exception as error:  # out of the group as it is, not as a group of one
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    def _settled(self) -> bool:
        self._hurry(self._launcher.end_grace)
        return False

    async def interrupt(self) -> None:
        """The vendor is signalled; the pump comes to the end of its output."""
        if self.translation is None or self._child is None or self._interrupted:
            return
        self._interrupted = True
        self.translation.interrupt()
        await self._child.stop(self._launcher.vendor.interrupt)

    async def decide(self, permission: Permission, decision: Decision) -> None:
        """Such a child cannot ask."""

    async def change(self, *, model: str | None = None, mode: str | None = None) -> None:
        """The next child is started with it."""

    async def stop(self) -> None:
        """End the child for certain."""
        if self._child is not None:
            await self._child.stop(self._launcher.vendor.interrupt)
            self._child.close()


class TwoWay(_Base):
    """One child for the whole conversation; one that died is replaced by one that goes on with its session."""

    def __init__(self, launcher: Launcher, output: Output, control: Control, tasks: TaskGroup) -> None:
        super().__init__(launcher, output, control)
        assert launcher.vendor.speech is not None
        self._speech = launcher.vendor.speech()
        self._tasks = tasks
        self._questions = control
        self._allowed: list[tuple[str, Mapping[str, Any] | None]] = []
        self._draining = anyio.CancelScope()

    async def turn(self, message: Message) -> None:
        """Say the message to the child, pump until its turn is over."""
        self._deadline, self._interrupted = float("inf"), False
        self._allowed.clear()
        if self._child is None or self._child.exit is not None or self.translation is None:
            if self._child is not None:
                await self._forget(self._child)
            try:
                child, translation = await self._begin()
            except ShimError as error:
                await self._refuse(message, error)
                return
        else:
            child, translation = self._child, self.translation
            translation.begin(self._launcher.terms())
            self._skip_late(child, translation)
        self._listen(translation, message)
        prompt = self._speech.prompt(self._launcher.asked(message.text))
        self._answering, fresh = False, not self._heard
        await self._tell(child, prompt)
        over = await self._pump(child, translation)
        if not (over or fresh or self._answering or self._interrupted):  # it was about to leave when it was told
            await self._forget(child)
            child, _ = await self._begin(translation)
            await self._tell(child, prompt)
            over = await self._pump(child, translation)
        if not over:
            await self._close(child, translation)
            await self._forget(child)
        elif translation.turn.settled and not translation.finished:
            await self._stopping(translation)
            await self._say_end(translation, translation.finish())
        else:  # ended by us, in the middle of the vendor's turn
            await child.stop(self._launcher.vendor.interrupt)
            await self._forget(child)

    def _skip_late(self, child: Child, translation: Translation) -> None:
        """What the child said between the turns answers nobody."""
        while chunk := child.read_ready():
            translation.skip(chunk)

    async def _begin(self, translation: Translation | None = None) -> tuple[Child, Translation]:
        """A new child; `translation` when the turn that it answers has begun already."""
        started = self._launcher.start("", listens=True)
        self._heard = False
        self._deadline = float("inf")
        self._child = child = Child(started.process, b"")
        self.translation = translation = translation or self._launcher.translation(self.translation)
        self._draining = anyio.CancelScope()
        self._tasks.start_soon(self._drain, child, self._draining)
        self._tasks.start_soon(self._watch, child)
        await self._tell(child, self._speech.hello())
        return child, translation

    async def _drain(self, child: Child, draining: anyio.CancelScope) -> None:
        with draining:
            await child.drain()

    async def _forget(self, child: Child) -> None:
        """Its stderr may be held by somebody else: nobody waits for a descriptor whose number the next child gets."""
        self._child = None
        self._draining.cancel()
        with anyio.CancelScope(shield=True):
            await child.drained.wait()
        child.close()

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
        if decision.interrupt:
            await self.interrupt()

    async def interrupt(self) -> None:
        """The vendor is told; one that does not obey in time is ended."""
        if self.translation is None or self._child is None or self._interrupted:
            return
        self._interrupted = True
        self.translation.interrupt()
        if not self._heard:  # it is still starting, and hears nothing either
            await self._child.stop("SIGTERM")
            return
        self._hurry(OBEY_SECONDS)
        await self._tell(self._child, self._speech.interrupt())

    async def change(self, *, model: str | None = None, mode: str | None = None) -> None:
        """The child that is there is told; one to come is started with it."""
        if self._child is not None and model is not None:
            await self._tell(self._child, self._speech.model(model))
        if self._child is not None and mode is not None:
            await self._tell(self._child, self._speech.mode(mode))

    async def stop(self) -> None:
        """Close its stdin, and make sure of its end."""
        if self._child is not None:
            await self._child.dismiss()
            self._child.close()
