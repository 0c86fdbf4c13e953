"""Until when a child may run, and how long it may be silent."""

from collections.abc import Mapping

import anyio

NEVER = float("inf")


class ChildTurnDeadlines:
    """The deadlines of one child's turn, as times of the loop's clock; `timeouts` are seconds by
    name.

    `exit_deadline` is when the child has to be gone. `grace_deadline` is when a child that may be
    done has been silent for long enough. `timeout_name` says which timeout limits its silence until
    then.
    """

    def __init__(self, timeouts: Mapping[str, float]) -> None:
        self._timeouts = timeouts
        self._read_scope = anyio.CancelScope()
        self.reset()

    def reset(self) -> None:
        self.exit_deadline = NEVER
        self.restart_first_byte_timeout()

    def restart_first_byte_timeout(self) -> None:
        """The same child begins to answer once more."""
        self.grace_deadline = NEVER
        self.select_silence_timeout_by_name("first_byte_timeout")

    def select_silence_timeout_by_name(self, timeout_name: str) -> None:
        """From now on the child may be silent for as long as the timeout called `timeout_name`
        allows.
        """
        self.timeout_name, self.timeout_s = timeout_name, self._timeouts[timeout_name]

    def start_idle_timeout(self, idle_timeout_s: float) -> None:
        """The child may be done: it is given so long, from the first time that this was said."""
        self.grace_deadline = min(self.grace_deadline, anyio.current_time() + idle_timeout_s)

    def cancel_idle_timeout(self) -> None:
        """The child is not done."""
        self.grace_deadline = NEVER

    def shorten_exit_deadline(self, timeout_s: float) -> None:
        """The child has so long and no more, also if it is waited for at this moment."""
        self.exit_deadline = min(self.exit_deadline, anyio.current_time() + timeout_s)
        self._read_scope.deadline = min(self._read_scope.deadline, self.exit_deadline)

    @property
    def has_expired(self) -> bool:
        return anyio.current_time() >= min(self.exit_deadline, self.grace_deadline)

    def compute_read_deadline(self, *, silence_allowed: bool) -> float:
        """When the child has been silent for too long; `silence_allowed`: silence alone is no
        reason.
        """
        deadline = min(self.exit_deadline, self.grace_deadline)
        return deadline if silence_allowed else min(deadline, anyio.current_time() + self.timeout_s)

    def open_read_scope(self, *, silence_allowed: bool) -> anyio.CancelScope:
        """The scope of the next read: it ends at `compute_deadline`, which may move while it is
        waited in.
        """
        self._read_scope = anyio.CancelScope(
            deadline=self.compute_read_deadline(silence_allowed=silence_allowed)
        )
        return self._read_scope

    def update_read_scope_deadline(self, *, silence_allowed: bool) -> None:
        """What silence is allowed has changed while the child is waited for."""
        self._read_scope.deadline = self.compute_read_deadline(silence_allowed=silence_allowed)
