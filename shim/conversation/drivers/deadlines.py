"""Until when a child may run, and how long it may be silent."""

from collections.abc import Mapping

import anyio

NEVER = float("inf")


class Deadlines:
    """The deadlines of one child's turn, as times of the loop's clock; `timeouts` are seconds by
    name.

    `end` is when the child has to be gone. `grace` is when a child that may be done has been silent
    for long enough. `name` says which timeout limits its silence until then.
    """

    def __init__(self, timeouts: Mapping[str, float]) -> None:
        self._timeouts = timeouts
        self._reading = anyio.CancelScope()
        self.begin()

    def begin(self) -> None:
        self.end = NEVER
        self.again()

    def again(self) -> None:
        """The same child begins to answer once more."""
        self.grace = NEVER
        self.listen("first_byte_timeout")

    def listen(self, name: str) -> None:
        """From now on the child may be silent for as long as the timeout called `name` allows."""
        self.name, self.seconds = name, self._timeouts[name]

    def rest(self, seconds: float) -> None:
        """The child may be done: it is given so long, from the first time that this was said."""
        self.grace = min(self.grace, anyio.current_time() + seconds)

    def go_on(self) -> None:
        """The child is not done."""
        self.grace = NEVER

    def hurry(self, seconds: float) -> None:
        """The child has so long and no more, also if it is waited for at this moment."""
        self.end = min(self.end, anyio.current_time() + seconds)
        self._reading.deadline = min(self._reading.deadline, self.end)

    @property
    def passed(self) -> bool:
        return anyio.current_time() >= min(self.end, self.grace)

    def until(self, *, patient: bool) -> float:
        """When the child has been silent for too long; `patient`: silence alone is no reason."""
        last = min(self.end, self.grace)
        return last if patient else min(last, anyio.current_time() + self.seconds)

    def reading(self, *, patient: bool) -> anyio.CancelScope:
        """The scope of the next read: it ends at `until`, which may move while it is waited in."""
        self._reading = anyio.CancelScope(deadline=self.until(patient=patient))
        return self._reading

    def look_again(self, *, patient: bool) -> None:
        """What silence is allowed has changed while the child is waited for."""
        self._reading.deadline = self.until(patient=patient)
