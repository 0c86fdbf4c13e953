"""The steps of sessions, drawn once for all readers, and kept for readers that return.

A drawing grows with the numbered lines of the log, so each step has the same number for all
readers. A page that reconnects needs only the lines that it has missed.
"""

import time

import anyio
import anyio.to_thread
import orjson

from shim.bridge.gateway.step_renderer import SessionStepRenderer, render_step
from shim.core.bridge.frames import LogCursor
from shim.story.export.view_model import SessionStepView

MAX_KEPT_STEPS = 1000  # of one drawing; a page shows as many when it is opened
# The limit for the average step of a drawing. So a drawing is at most as large as the largest
# exported page.
MAX_CHARS_PER_STEP = 4000
# Drawings that are kept. A person switches between fewer sessions. The text of all drawings has at
# most 128 million characters.
MAX_KEPT_DRAWINGS = 32
UNUSED_DRAWING_TTL_S = 12 * 3600.0  # a phone that slept for a night reconnects in the morning
# A longer line is drawn in a thread, because its JSON, its texts and its diff take milliseconds.
MAX_INLINE_LINE_BYTES = 16 * 1024


class DrawnStep:
    """One step after a line has changed it. `cursor` is the position of that line."""

    def __init__(self, step: SessionStepView, cursor: LogCursor) -> None:
        self.cursor = cursor
        self.kind = step.kind
        self.char_count = step.char_count
        self._step: SessionStepView | None = step
        self._json = b""

    def encode(self) -> bytes:
        """Return the step as JSON. Its Markdown is parsed for the first reader only."""
        if self._step is not None:
            self._json = orjson.dumps(render_step(self._step))
            self._step = None  # has many objects, which every garbage collection would visit
        return self._json


class SessionDrawing:
    """The last steps of one session, for all its readers.

    position        the last line that was drawn; None before the first one
    dropped_number  a line number; steps that were last changed by this line or an earlier one may
                    have been dropped
    opening_lock    held by the reader that draws the past
    """

    def __init__(self, max_steps: int = MAX_KEPT_STEPS) -> None:
        self.opening_lock = anyio.Lock()
        self._thread_lock = anyio.Lock()
        self._max_steps = max_steps
        self.reset(0)

    def reset(self, dropped_number: int) -> None:
        """Start a new drawing, because the next line does not follow the last one.

        The steps get new numbers. Readers whose position is before `dropped_number` have steps with
        old numbers.
        """
        self.renderer = SessionStepRenderer()
        self.position: LogCursor | None = None
        self.dropped_number = dropped_number
        self._step_count = 0
        self.last_use_s = time.monotonic()
        self._steps = dict[int, DrawnStep]()  # by step number; the most recently changed is last
        self._char_count = 0

    async def draw_line(self, cursor: LogCursor, at_ms: int, line: bytes) -> None:
        """Draw a line, unless another reader has drawn it."""
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
        """Remove a step. Return the number of the line that changed it last, or 0 if there is no
        such step.
        """
        drawn_step = self._steps.pop(number, None)
        if drawn_step is None:
            return 0
        self._char_count -= drawn_step.char_count
        return drawn_step.cursor.number

    def count_dropped_steps(self) -> int:
        """Return how many steps of the session are not kept."""
        return self._step_count - len(self._steps)

    def list_steps(self, after_number: int, last_number: int) -> list[DrawnStep]:
        """Return the kept steps whose last change was a line after `after_number` and up to
        `last_number`, in the order of their changes.
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
    """The drawings that a gateway keeps, by session. A drawing may be dropped while a reader still
    uses it.
    """

    def __init__(self) -> None:
        self._drawings = dict[str, SessionDrawing]()

    def get_drawing(self, session_id: str) -> SessionDrawing:
        """Return the drawing of a session. Drop drawings that were not used for
        UNUSED_DRAWING_TTL_S.
        """
        drawing = self._drawings.pop(session_id, None) or SessionDrawing()
        oldest_use_s = time.monotonic() - UNUSED_DRAWING_TTL_S
        others = sorted(self._drawings.items(), key=lambda item: item[1].last_use_s)
        self._drawings = {
            other_id: other
            for other_id, other in others[-MAX_KEPT_DRAWINGS + 1 :]
            if other.last_use_s >= oldest_use_s
        }
        self._drawings[session_id] = drawing
        return drawing
