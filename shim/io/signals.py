"""Signals from our first moment to the loop: without a child they end the start, with one they wait
for the loop.
"""

import signal
from types import FrameType

from shim.core.errors import ShimError
from shim.io import early_signals

IMPORTING = "<frozen importlib._bootstrap>"  # the file of the frames that import a module


class StoppedError(ShimError):
    """A signal came before there was a child."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name} before the turn began")
        self.number = number


class Signals:
    """`pending` are the signals that wait for the loop; `started` is set when a signal must not end
    the start any more.

    A signal in the middle of an import waits for `check`: modules written in C may crash when they
    are interrupted.
    """

    def __init__(self) -> None:
        self.pending: list[int] = []
        self.started = False

    def listen(self) -> None:
        """From now on they are ours."""
        early_signals.install_handler(self._caught)
        if early_signals.received_signals:
            self._caught(early_signals.received_signals.pop(0), None)

    def listen_again(self) -> None:
        """The loop is over: forget the signals that it has handled, and note new ones."""
        self.started = True
        self.pending.clear()
        self.listen()

    def ended(self) -> bool:
        """Whether we were told to end; from now on a signal only says so."""
        self.started = True
        return bool(self.pending)

    def check(self) -> None:
        """StoppedError for a signal that came while a module was imported."""
        if self.pending and not self.started:
            self.started = True  # one error is enough
            raise StoppedError(self.pending[0])

    def _caught(self, number: int, frame: FrameType | None) -> None:
        self.pending.append(number)
        while frame is not None and frame.f_code.co_filename != IMPORTING:
            frame = frame.f_back
        if frame is None:
            self.check()
