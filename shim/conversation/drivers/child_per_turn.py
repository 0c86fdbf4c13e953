"""A conversation with a child for each message; a later one resumes the vendor's own session."""

from typing import TYPE_CHECKING

import anyio

from shim.conversation.drivers.driver import ChildDriver
from shim.conversation.drivers.launcher import Launcher
from shim.core.adapter.commands import Stage
from shim.core.adapter.pump import Pump
from shim.core.claude.messages import Message
from shim.core.claude.permissions import Decision, Permission
from shim.core.errors import ShimError
from shim.io.stdout import Output
from shim.process.child import Child
from shim.process.spawn import Started, abandon

if TYPE_CHECKING:
    from shim.core.claude.control import Control
    from shim.core.claude.control.wishes import Chosen


class ChildPerTurn(ChildDriver):
    """A driver that starts a child for each message. The child gets nothing but the message, and
    cannot ask.
    """

    def __init__(
        self,
        launcher: Launcher,
        output: Output,
        control: "Control | None" = None,
        started: Started | None = None,
    ) -> None:
        """`started` is the first message's child, if it was started already."""
        super().__init__(launcher, output, control)
        self._started = started

    async def turn(self, message: Message) -> None:
        """Start a child, pump its answer, make sure of its end, say the result."""
        started, self._started = self._started, None
        try:
            started = started or self.launcher.start(message.text)
        except Exception as error:
            await self._refuse(message, error)
            return
        self._begin_turn()
        try:
            turns = self.launcher.turns
        except (
            OSError
        ) as error:  # without an open file left, what reads the child cannot be loaded beside it
            abandon(started.process)
            await self._refuse(message, error)
            return
        child = Child(started)
        try:
            self.pump = pump = turns.pump(self.pump)
            self._listen(pump, message)
            if not (await self._serve(child, pump) or await self._end_interrupted(pump)):
                await self._once_more(pump, message)
        finally:
            self._let_go(child)
            if self.launcher.report is not None:
                self.launcher.report.remove()

    async def _once_more(self, pump: Pump, message: Message) -> None:
        """Start another child for the same message: the stream of the first one was cut."""
        try:
            self.launcher.turns.again(pump)
            started = self.launcher.start(message.text)
        except ShimError as error:
            await self._fail(pump, error)
            return
        child = Child(started)
        try:
            await self._serve(child, pump)
        finally:
            self._let_go(child)

    async def _serve(self, child: Child, pump: Pump) -> bool:
        """Pump all that a child prints; whether the turn is over then."""
        self._deadlines.begin()
        self._answering = False
        self._child = child
        over, failure = False, None
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            for work in (child.feed, child.drain):
                tasks.start_soon(work)
            tasks.start_soon(self._watch, child)
            try:
                await self._pump(child, pump)
                over = await self._close(child, pump)
            except Exception as error:  # out of the group as it is, not as a group of one
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure
        self._child = None
        return over

    def _reach(self, stage: Stage) -> None:
        """A vendor that said that it is done has a moment to go; one that only may be done is not
        believed.
        """
        if stage is Stage.SETTLED:
            self._deadlines.rest(self.launcher.end_grace)
        else:
            self._deadlines.go_on()

    async def interrupt(self) -> None:
        """The vendor is signalled; the pump comes to the end of its output."""
        if self.pump is None or self._child is None or self._interrupted:
            return
        self._interrupted = True
        self.pump.interrupt()
        await self._child.stop(self.launcher.vendor.exit.interrupt)

    async def decide(self, permission: Permission, decision: Decision) -> None:
        """Such a child cannot ask."""

    async def change(self, chosen: "Chosen") -> None:
        """The next child is started with it. A mode binds the next call where a hook of ours judges
        it.
        """
        if chosen.what == "mode":
            self.launcher.tell_mode()

    async def stop(self) -> None:
        if self._child is not None:
            await self._child.stop(self.launcher.vendor.exit.interrupt)
            self._let_go(self._child)
