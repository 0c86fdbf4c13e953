"""A conversation with a child for each message; a later one goes on with the vendor's own session."""

import anyio

from shim.channels.stdout import Output
from shim.conversation.drivers.driver import ChildDriver
from shim.conversation.drivers.launcher import Launcher, Started
from shim.core.claude.control import Control
from shim.core.claude.messages import Message
from shim.core.claude.permissions import Decision, Permission
from shim.core.errors import ShimError
from shim.core.vendor.translation import Translation
from shim.process.child import Child


class OneWay(ChildDriver):
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
        self._before = self.translation
        try:
            started = started or self._launcher.start(message.text)
        except Exception as error:
            await self._refuse(message, error)
            return
        self._interrupted = self._stalled = self._again = False
        child = Child(*started)
        try:
            self.translation = translation = self._launcher.translation(self.translation)
            self._listen(translation, message)
            await self._serve(child, translation)
            unsaid = not translation.finished and self.unanswered is None
            if unsaid and not await self._end_interrupted(translation):
                await self._once_more(translation, message)
        finally:
            child.close()
            if self._launcher.report is not None:
                self._launcher.report.remove()

    async def _serve(self, child: Child, translation: Translation) -> None:
        self._deadline = self._grace = float("inf")
        self._answering = False
        self._child = child
        await self._run(child, translation)
        self._child = None

    async def _once_more(self, translation: Translation, message: Message) -> None:
        """Another child for the same message: the first one's stream was cut."""
        try:
            self._launcher.again(translation)
            started = self._launcher.start(message.text)
        except ShimError as error:
            await self._give_up(translation, error)
            return
        child = Child(*started)
        try:
            await self._serve(child, translation)
        finally:
            child.close()

    async def _run(self, child: Child, translation: Translation) -> None:
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
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
        self._grace = min(self._grace, anyio.current_time() + self._launcher.end_grace)
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
