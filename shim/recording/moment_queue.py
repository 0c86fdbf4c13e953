"""The moments of a run that wait to be written, bounded in bytes and in number."""

import time
from collections.abc import Mapping
from queue import Empty, SimpleQueue
from typing import Any

from shim.core.cast.records import STREAMS

QUEUE_BYTES = 64 * 1024 * 1024  # that wait for the disk; no child prints more in a second
QUEUE_MOMENTS = 200_000  # that wait, if each has a few bytes only

Moment = tuple[float, str, Any]  # seconds since the recording began, a letter, bytes or a fact
LAST, END = "last", "end"  # letters of our own: the last note; the end of the recording


class MomentQueue:
    """Takes moments from the thread of the turn and gives them to the writer's; each number is set
    by one of the two.

    With `closed` no more moments are accepted. `steps` counts what the writer has done: it grows
    while there is progress.
    """

    def __init__(self) -> None:
        self.closed = False
        self.steps = 0
        self._began = time.monotonic()
        self._queue = SimpleQueue[Moment]()
        self._handed = self._taken = 0  # bytes
        self._moments = 0

    def __len__(self) -> int:
        return self._queue.qsize()

    def stream(self, letter: str, data: bytes) -> bool:
        """Add bytes of a stream. False, and they are left out, if too much waits already."""
        self._handed += len(data)
        self._moments += 1
        if self._handed - self._taken > QUEUE_BYTES or self._moments - self.steps > QUEUE_MOMENTS:
            return False
        self._queue.put((time.monotonic() - self._began, letter, data))
        return True

    def fact(self, letter: str, fact: Mapping[str, Any]) -> None:
        if not self.closed:
            self._moments += 1
            self._queue.put((time.monotonic() - self._began, letter, fact))

    def stop(self, note: Mapping[str, Any]) -> None:
        """Accept nothing more; the note becomes the last record."""
        self.closed = True
        self._queue.put((time.monotonic() - self._began, LAST, note))

    def end(self) -> None:
        self._queue.put((time.monotonic() - self._began, END, None))

    def next(self) -> Moment:
        """Wait for a moment."""
        return self._queue.get()

    def next_now(self) -> Moment | None:
        """A moment that is there already."""
        try:
            return self._queue.get_nowait()
        except Empty:
            return None

    def taken(self, moment: Moment) -> None:
        """The writer has encoded a moment."""
        if moment[1] in STREAMS:
            self._taken += len(moment[2])
        self.steps += 1
