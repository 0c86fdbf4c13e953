"""Deadlines for a child process during a turn: when it must have exited, and how long it may be
silent.
"""

from collections.abc import Mapping

import anyio

NEVER = float("inf")


class ChildTurnDeadlines:
    """Deadlines for one child during a turn, in event-loop time. `timeouts` maps timeout names to
    seconds.

        exit_deadline   when the child must have exited
        grace_deadline  when a child that may be done counts as done
        timeout_name    the name of the timeout that currently limits the child's silence
    """

    def __init__(self, timeouts: Mapping[str, float]) -> None:
        self._timeouts = timeouts
        self._read_scope = anyio.CancelScope()
        self.reset()

    def reset(self) -> None:
        self.exit_deadline = NEVER
        self.restart_first_byte_timeout()

    def restart_first_byte_timeout(self) -> None:
        """Restart the first-byte timeout, because the message is sent to the same child a second
        time.
        """
        self.grace_deadline = NEVER
        self.select_silence_timeout_by_name("first_byte_timeout")

    def select_silence_timeout_by_name(self, timeout_name: str) -> None:
        """Set which timeout limits the child's silence."""
        self.timeout_name, self.timeout_s = timeout_name, self._timeouts[timeout_name]

    def start_idle_timeout(self, idle_timeout_s: float) -> None:
        """Start the idle timeout of a child that may be done. If the timeout is already running, it
        is not restarted.
        """
        self.grace_deadline = min(self.grace_deadline, anyio.current_time() + idle_timeout_s)

    def cancel_idle_timeout(self) -> None:
        """Cancel the idle timeout because the child is not done."""
        self.grace_deadline = NEVER

    def shorten_exit_deadline(self, timeout_s: float) -> None:
        """Set an earlier exit deadline, which also applies to a read that is already waiting."""
        self.exit_deadline = min(self.exit_deadline, anyio.current_time() + timeout_s)
        self._read_scope.deadline = min(self._read_scope.deadline, self.exit_deadline)

    @property
    def has_expired(self) -> bool:
        return anyio.current_time() >= min(self.exit_deadline, self.grace_deadline)

    def compute_read_deadline(self, *, silence_allowed: bool) -> float:
        """Return when a read must end. With `silence_allowed`, the silence timeout is ignored."""
        deadline = min(self.exit_deadline, self.grace_deadline)
        if silence_allowed:
            return deadline
        return min(deadline, anyio.current_time() + self.timeout_s)

    def open_read_scope(self, *, silence_allowed: bool) -> anyio.CancelScope:
        """Return a cancel scope for the next read. Its deadline may be updated while the read is
        waiting.
        """
        self._read_scope = anyio.CancelScope(
            deadline=self.compute_read_deadline(silence_allowed=silence_allowed)
        )
        return self._read_scope

    def update_read_scope_deadline(self, *, silence_allowed: bool) -> None:
        """Update the deadline of the current read after `silence_allowed` has changed."""
        self._read_scope.deadline = self.compute_read_deadline(silence_allowed=silence_allowed)
