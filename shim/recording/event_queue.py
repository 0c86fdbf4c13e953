"""The bounded queue between a run and the thread that writes its recording."""

import time
from collections.abc import Mapping
from queue import Empty, SimpleQueue
from typing import Any

from shim.core.cast.format import STREAMS

MAX_QUEUED_BYTES = 64 * 1024 * 1024  # more than a child prints in a second
MAX_QUEUED_EVENTS = 200_000  # bounds the memory for events of a few bytes

# (seconds since the start of the recording, record code, stream bytes or event fields)
RecordEvent = tuple[float, str, Any]
# Codes for the last note and for the end of the recording.
# They exist only in this queue, not in the file format.
LAST_NOTE_CODE = "last"
END_CODE = "end"


class RecordingEventQueue:
    """Passes events from the turn's thread to the writer's thread.

    closed  whether the queue rejects new events
    steps   a counter that increases while the writer makes progress

    Each counter is only changed by one thread, so that no lock is needed.
    """

    def __init__(self) -> None:
        self.closed = False
        self.steps = 0
        self._start_time_s = time.monotonic()
        self._queue = SimpleQueue[RecordEvent]()
        self._queued_bytes = self._consumed_bytes = 0
        self._event_count = 0

    def __len__(self) -> int:
        return self._queue.qsize()

    def put_bytes(self, stream_code: str, data: bytes) -> bool:
        """Add bytes of a stream. If the queue is full, drop the bytes and return False."""
        self._queued_bytes += len(data)
        self._event_count += 1
        if (
            self._queued_bytes - self._consumed_bytes > MAX_QUEUED_BYTES
            or self._event_count - self.steps > MAX_QUEUED_EVENTS
        ):
            return False
        self._queue.put((time.monotonic() - self._start_time_s, stream_code, data))
        return True

    def put_event(self, event_code: str, fields: Mapping[str, Any]) -> None:
        if not self.closed:
            self._event_count += 1
            self._queue.put((time.monotonic() - self._start_time_s, event_code, fields))

    def close_with_last_note(self, note: Mapping[str, Any]) -> None:
        """Close the queue for new events. The writer writes `note` as the last record."""
        self.closed = True
        self._queue.put((time.monotonic() - self._start_time_s, LAST_NOTE_CODE, note))

    def put_end_of_recording(self) -> None:
        self._queue.put((time.monotonic() - self._start_time_s, END_CODE, None))

    def wait_for_event(self) -> RecordEvent:
        """Wait for an event."""
        return self._queue.get()

    def take_queued_event(self) -> RecordEvent | None:
        """Return the next event if the queue has one, or None. Does not wait."""
        try:
            return self._queue.get_nowait()
        except Empty:
            return None

    def release_space_of_written_event(self, event: RecordEvent) -> None:
        """Release the queue space of an event after the writer has encoded the event."""
        if event[1] in STREAMS:
            self._consumed_bytes += len(event[2])
        self.steps += 1
