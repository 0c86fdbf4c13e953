"""Rendered session steps, shared by all readers and kept for readers that reconnect.

A drawing contains the rendered steps of one session. It grows with the numbered lines of the
session's log, so each step has the same number for all readers. A page that reconnects needs only
the lines that it has missed.
"""

import time

import anyio
import anyio.to_thread
import orjson

from shim.bridge.gateway.step_renderer import SessionStepRenderer, render_step
from shim.core.bridge.frames import LogCursor
from shim.story.export.view_model import SessionStepView

MAX_STORED_STEPS = 1000  # stored steps per session; a page shows all of them when it is opened
# The limit for the average step size of a drawing.
# A drawing is therefore at most as large as the largest exported page.
MAX_CHARS_PER_STEP = 4000
# The maximum number of stored drawings. A person switches between fewer sessions. All drawings
# together have at most 128 million characters of text.
MAX_STORED_DRAWINGS = 32
UNUSED_DRAWING_TTL_S = 12 * 3600.0  # a phone that sleeps overnight reconnects in the morning
# A longer line is drawn in a thread, because its JSON, its texts and its diff take milliseconds.
MAX_INLINE_LINE_BYTES = 16 * 1024


class DrawnStep:
    """A session step after a log line has changed it. `cursor` is the position of that line."""

    def __init__(self, step: SessionStepView, cursor: LogCursor) -> None:
        self.cursor = cursor
        self.kind = step.kind
        self.char_count = step.char_count
        self._step: SessionStepView | None = step
        self._json = b""

    def encode(self) -> bytes:
        """Return the step as JSON. The step's Markdown is parsed only for its first reader."""
        if self._step is not None:
            self._json = orjson.dumps(render_step(self._step))
            self._step = None  # frees many objects that each garbage collection would have to visit
        return self._json


class SessionDrawing:
    """The most recent steps of one session, rendered for all its readers.

    position        the position of the last rendered line; None before the first line
    dropped_number  a line number; steps whose last change came from this line or an earlier one may
                    have been dropped
    opening_lock    held by the reader that renders the session's past
    """

    def __init__(self, max_steps: int = MAX_STORED_STEPS) -> None:
        self.opening_lock = anyio.Lock()
        self._thread_lock = anyio.Lock()
        self._max_steps = max_steps
        self.reset(0)

    def reset(self, dropped_number: int) -> None:
        """Discard all steps and start again, because the next line does not follow the last
        rendered line.

        The steps get new numbers. Readers with a position before `dropped_number` still have the
        old numbers.
        """
        self.renderer = SessionStepRenderer()
        self.position: LogCursor | None = None
        self.dropped_number = dropped_number
        self._step_count = 0
        self.last_use_s = time.monotonic()
        # The steps by number. The most recently changed step is last.
        self._steps = dict[int, DrawnStep]()
        self._char_count = 0

    async def draw_line(self, cursor: LogCursor, at_ms: int, line: bytes) -> None:
        """Render the steps of a line, unless another reader has already rendered them."""
        if len(line) <= MAX_INLINE_LINE_BYTES and not self._thread_lock.locked():
            self._draw_line(cursor, at_ms, line)
            return
        async with self._thread_lock:
            await anyio.to_thread.run_sync(self._draw_line, cursor, at_ms, line)

    def _draw_line(self, cursor: LogCursor, at_ms: int, line: bytes) -> None:
        if self.position is not None and cursor.number <= self.position.number:
            return
        self.position = cursor
        for step in self.renderer.update_steps_from_line(at_ms, line):
            self._step_count = max(self._step_count, step.number)
            self._remove_step(step.number)
            drawn_step = self._steps[step.number] = DrawnStep(step, cursor)
            self._char_count += drawn_step.char_count
        max_chars = self._max_steps * MAX_CHARS_PER_STEP
        while len(self._steps) > self._max_steps or self._char_count > max_chars:
            self.dropped_number = self._remove_step(next(iter(self._steps)))

    def _remove_step(self, number: int) -> int:
        """Remove a step. Return the number of the line that last changed it, or 0 if the step does
        not exist.
        """
        drawn_step = self._steps.pop(number, None)
        if drawn_step is None:
            return 0
        self._char_count -= drawn_step.char_count
        return drawn_step.cursor.number

    def count_dropped_steps(self) -> int:
        """Return the number of the session's steps that were dropped."""
        return self._step_count - len(self._steps)

    def list_steps(self, after_number: int, last_number: int) -> list[DrawnStep]:
        """Return the stored steps that last changed after line `after_number` and at line
        `last_number` or earlier, ordered by their last change.
        """
        self.last_use_s = time.monotonic()
        steps = list[DrawnStep]()
        for drawn_step in reversed(self._steps.values()):
            if drawn_step.cursor.number <= after_number:
                break
            if drawn_step.cursor.number <= last_number:
                steps.append(drawn_step)
        steps.reverse()
        return steps


class SessionDrawings:
    """The drawings of several sessions, by session. A drawing may be removed from here while a
    reader still uses it.
    """

    def __init__(self) -> None:
        self._drawings = dict[str, SessionDrawing]()

    def get_drawing(self, session_id: str) -> SessionDrawing:
        """Return the drawing of a session. Drawings that were not used for UNUSED_DRAWING_TTL_S are
        dropped.
        """
        drawing = self._drawings.pop(session_id, None) or SessionDrawing()
        oldest_use_s = time.monotonic() - UNUSED_DRAWING_TTL_S
        others = sorted(self._drawings.items(), key=lambda item: item[1].last_use_s)
        self._drawings = {
            other_id: other
            for other_id, other in others[-MAX_STORED_DRAWINGS + 1 :]
            if other.last_use_s >= oldest_use_s
        }
        self._drawings[session_id] = drawing
        return drawing
