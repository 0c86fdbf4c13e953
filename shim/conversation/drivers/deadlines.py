"""The deadlines of a child's turn: when it must have exited, and how long it may be silent."""

from collections.abc import Mapping

import anyio

NEVER = float("inf")


class ChildTurnDeadlines:
    """The deadlines of one child's turn, as times of the event loop. `timeouts` are seconds by
    name.

    `exit_deadline` is when the child must have exited. `grace_deadline` is when a child that may be
    done has been silent for long enough. Until then, the timeout `timeout_name` limits its silence.
    """

    def __init__(self, timeouts: Mapping[str, float]) -> None:
        self._timeouts = timeouts
        self._read_scope = anyio.CancelScope()
        self.reset()

    def reset(self) -> None:
        self.exit_deadline = NEVER
        self.restart_first_byte_timeout()

    def restart_first_byte_timeout(self) -> None:
        """Restart the timeout of the first byte, because the same child answers once more."""
        self.grace_deadline = NEVER
        self.select_silence_timeout_by_name("first_byte_timeout")

    def select_silence_timeout_by_name(self, timeout_name: str) -> None:
        """Limit the child's silence by the timeout `timeout_name` from now on."""
        self.timeout_name, self.timeout_s = timeout_name, self._timeouts[timeout_name]

    def start_idle_timeout(self, idle_timeout_s: float) -> None:
        """Start the timeout of a child that may be done. Later calls do not restart it."""
        self.grace_deadline = min(self.grace_deadline, anyio.current_time() + idle_timeout_s)

    def cancel_idle_timeout(self) -> None:
        """Cancel the idle timeout: the child is not done."""
        self.grace_deadline = NEVER

    def shorten_exit_deadline(self, timeout_s: float) -> None:
        """Set an earlier exit deadline. It also applies to a read that waits at this moment."""
        self.exit_deadline = min(self.exit_deadline, anyio.current_time() + timeout_s)
        self._read_scope.deadline = min(self._read_scope.deadline, self.exit_deadline)

    @property
    def has_expired(self) -> bool:
        return anyio.current_time() >= min(self.exit_deadline, self.grace_deadline)

    def compute_read_deadline(self, *, silence_allowed: bool) -> float:
        """Return when the child has been silent for too long. With `silence_allowed`, silence does
        not count.
        """
        deadline = min(self.exit_deadline, self.grace_deadline)
        if silence_allowed:
            return deadline
        return min(deadline, anyio.current_time() + self.timeout_s)

    def open_read_scope(self, *, silence_allowed: bool) -> anyio.CancelScope:
        """Return the cancel scope of the next read. It ends at `compute_read_deadline`, which may
        change meanwhile.
        """
        self._read_scope = anyio.CancelScope(
            deadline=self.compute_read_deadline(silence_allowed=silence_allowed)
        )
        return self._read_scope

    def update_read_scope_deadline(self, *, silence_allowed: bool) -> None:
        """Update the deadline of the running read after the allowed silence has changed."""
        self._read_scope.deadline = self.compute_read_deadline(silence_allowed=silence_allowed)
