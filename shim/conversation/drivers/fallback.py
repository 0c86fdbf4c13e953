"""Several vendors for one conversation: the next of a list is asked where one cannot answer.

A vendor that cannot start, is not logged in or is rate-limited before it said a word passes the message on; the
frontend sees one turn, of the one that answered (`drivers` holds what the others printed, and drops it). Once a vendor
has answered, the conversation is its own: no other one knows what was said in it. While none has, each message is
asked of the whole list.
"""

from collections.abc import Callable

from shim.channels.raw_output import tell
from shim.conversation.drivers.candidates import Candidate, Candidates
from shim.conversation.drivers.driver import ChildDriver
from shim.core.claude.messages import Message
from shim.core.claude.permissions import Decision, Permission
from shim.core.errors import Tried
from shim.core.vendor.translation import Translation


class Fallback:
    """A driver of whichever vendor answers. `drive` makes the driver of a candidate, `driver` is the first one's."""

    def __init__(
        self,
        driver: ChildDriver,
        candidates: Candidates,
        drive: Callable[[Candidate], ChildDriver],
    ) -> None:
        self._driver = driver
        self._candidates = candidates
        self._drive = drive
        self._said: Translation | None = None  # of the last turn that the frontend saw
        self._answered = self._interrupted = False

    @property
    def translation(self) -> Translation | None:
        """Of the turn that runs, or of the last one."""
        return self._driver.translation

    async def turn(self, message: Message) -> None:
        """Ask one vendor after the other, until one has the turn."""
        self._interrupted = False
        if self._answered:
            await self._driver.turn(message)
            return
        before = list(self._candidates.skipped)
        while True:
            driver = self._driver
            driver.may_yield(self._candidates.left, tuple(before))
            await driver.turn(message)
            if driver.unanswered is None:
                break
            before.append(driver.unanswered)
            await self._driver.stop()
            if self._interrupted:
                await self.never_begin(message)
                break
            self._driver = self._next(before[-1])
        driver = self._driver
        driver.may_yield(False)
        self._said = driver.translation
        assert self._said is not None
        self._answered = self._said.turn.spoken or not self._said.turn.is_error
        if self._candidates.moved and not self._answered:
            await driver.stop()
            self._driver = self._begun(self._candidates.first())

    def _next(self, why: Tried) -> ChildDriver:
        """The driver of the next vendor, told of on stderr."""
        candidate = self._candidates.next()
        vendor = candidate.launcher.vendor
        unasked = ", which runs its tools and asks nobody" if vendor.unattended else ""
        tell(f"{why.vendor} did not answer ({why.cause}); {vendor.name} is asked{unasked}\n")
        return self._begun(candidate)

    def _begun(self, candidate: Candidate) -> ChildDriver:
        """Another vendor's driver, in the conversation as the frontend knows it."""
        driver = self._drive(candidate)
        driver.translation = self._said
        if self._said is not None:
            self._said.turn.conversation.vendor_session = None
        return driver

    async def never_begin(self, message: Message) -> None:
        """End the turn of a message that was interrupted before anybody was at it, or between two vendors."""
        await self._driver.never_begin(message)

    async def interrupt(self) -> None:
        """Stop the turn, whoever is at it."""
        self._interrupted = True
        await self._driver.interrupt()

    async def decide(self, permission: Permission, decision: Decision) -> None:
        """Give the vendor that asked the answer to its question."""
        await self._driver.decide(permission, decision)

    async def forbid(self, call: str, reason: str) -> None:
        """The frontend forbids a call that runs already."""
        await self._driver.forbid(call, reason)

    async def change(self, *, model: str | None = None, mode: str | None = None) -> None:
        """Another model or permission mode."""
        await self._driver.change(model=model, mode=mode)

    def terminate(self) -> None:
        """Tell the child to go, without waiting."""
        self._driver.terminate()

    def reap(self) -> None:
        """Let go of what the child's tools left behind."""
        self._driver.reap()

    async def stop(self) -> None:
        """End the child for certain."""
        await self._driver.stop()
