"""Runs the event loop of a terminal or script that is attached to a background session. The loop
handles the host's frames, keys and signals.
"""

import errno
import os
import select
import selectors
import signal
import sys
import termios
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from rich.console import Console

from shim.bridge.client import HostConnection
from shim.commands.sessions.terminal.composer import render_message_input
from shim.commands.sessions.terminal.input_controller import TerminalInputController
from shim.commands.sessions.terminal.keys import (
    DISABLE_PASTE_MODE,
    ENABLE_PASTE_MODE,
    PASTE_TIMEOUT_S,
    KeyParser,
)
from shim.commands.sessions.terminal.session_view import SessionView
from shim.commands.turn.wakeup import find_console_pipe_descriptor, open_signal_pipe
from shim.core.reading import MAX_LINE_BYTES
from shim.core.reading.lines import LineSplitter
from shim.io import stdin
from shim.story.terminal.screen import REFRESH_SECONDS

READ_CHUNK_BYTES = 64 * 1024
# How long to wait for more input after one read returned a complete line.
# A person needs longer to type the next key.
BURST_TIMEOUT_S = 0.05
# The wait for the next piece of a paste without start and end marks.
# A busy machine or network may delay the pieces.
PASTE_BURST_TIMEOUT_S = 0.25
MIN_PASTE_BYTES = 256  # this many bytes in one read always count as a paste
MAX_BURST_S = 5.0  # for all pieces of a paste; nothing else is handled meanwhile
# The maximum size of a paste that is read at once. Messages are always shorter.
MAX_BURST_BYTES = 4 * 1024 * 1024
MAX_WAITING_LINES = 1000  # buffered lines of piped input; the rest stays in the pipe
ANSWER_TIMEOUT_S = 30.0  # for the host's answers after the end of piped input
HANDLED_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGTSTP,
    signal.SIGCONT,
    signal.SIGWINCH,
)
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)

# Why the loop ended: the user detached, the host closed the connection, the connection was lost, a
# signal arrived, or the host did not answer.
EndReason = Literal["left", "bye", "lost", "signal", "silent"]


class TerminalLoop:
    """Runs until the connection ends or the user detaches. Input goes to `input_controller`; if it
    is None, stdin is not read. If `reads_keys` is set, the terminal is in raw mode.
    """

    def __init__(
        self,
        console: Console,
        view: SessionView,
        input_controller: TerminalInputController | None,
        *,
        reads_keys: bool,
    ) -> None:
        self.end_signal = 0  # the signal that ended the loop
        self.view = view
        self.input_controller = input_controller
        self.reads_keys = reads_keys
        self._is_terminal = console.is_terminal
        self._output_pipe = find_console_pipe_descriptor(console)
        self._received_signals: list[int] = []
        self._key_parser = KeyParser()
        self._line_splitter = LineSplitter(MAX_LINE_BYTES)
        self._waiting_lines = deque[str]()
        self._reads_stdin = input_controller is not None
        self._stdin_can_block = input_controller is not None and stdin.can_block_on_read(0)
        self._stdin_end_time = 0.0  # when piped input ended, 0.0 before
        self._last_input_time = 0.0  # when stdin was last read

    def serve_host_connection(self, connection: HostConnection) -> EndReason:
        """Serve one connection until it ends, and return the reason. The loop can serve another
        connection afterwards, even to a restarted host.
        """
        with (
            selectors.DefaultSelector() as selector,
            open_signal_pipe(HANDLED_SIGNALS, self._received_signals) as signals,
            enable_raw_terminal_mode(0) if self.reads_keys else _yield_no_settings() as settings,
        ):
            selector.register(connection, selectors.EVENT_READ)
            selector.register(signals, selectors.EVENT_READ)
            if self._output_pipe is not None:
                selector.register(self._output_pipe, selectors.EVENT_READ)
            frames, is_open = connection.read_available_frames()
            frames.insert(0, dict(connection.welcome))
            try:
                while True:
                    end_reason = self._run_round(frames, is_open=is_open)
                    if end_reason is not None:
                        return end_reason
                    ready = self._wait_for_input(selector)
                    if connection in ready:
                        frames, is_open = connection.read_available_frames()
                    else:
                        frames = []
                        is_open = True
                    # The writing end of a pipe becomes readable when the reader closes the pipe.
                    if self._output_pipe in ready:
                        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
                    if signals in ready:
                        os.read(signals, READ_CHUNK_BYTES)
                    # A signal may also arrive after `select`. Signals take precedence over the end of stdin.
                    if self._received_signals and self._react_to_signals(settings):
                        if not self.end_signal:
                            return "left"
                        return "signal"
                    if 0 in ready:
                        self._read_input()
            finally:
                self.view.set_input_renderer(None)
                self.view.stop_animation()

    def _run_round(self, frames: list[dict[str, Any]], *, is_open: bool) -> EndReason | None:
        """Handle received frames, submit waiting input, and draw. Return the reason if the loop
        must end, or None.
        """
        view = self.view
        input_controller = self.input_controller
        for frame in frames:
            (view if input_controller is None else input_controller).on_host_frame(frame)
        if view.end_reason is not None or not is_open:
            if view.end_reason is None:
                return "lost"
            return "bye"
        if input_controller is not None and view.is_synced:
            if self.reads_keys:
                view.set_input_renderer(lambda width: render_message_input(input_controller, width))
            while (
                self._waiting_lines
                and input_controller.has_no_unanswered_frames
                and not input_controller.has_left
            ):
                input_controller.submit_piped_input_line(self._waiting_lines.popleft())
            if (
                self._stdin_end_time
                and not self._waiting_lines
                and input_controller.has_no_unanswered_frames
            ):
                input_controller.has_left = True
            if input_controller.has_left:
                return "left"
        if self._stdin_end_time and time.monotonic() - self._stdin_end_time >= ANSWER_TIMEOUT_S:
            return "silent"
        view.flush(at_once=self.reads_keys)
        return None

    def _wait_for_input(self, selector: selectors.BaseSelector) -> set[Any]:
        """Wait until a descriptor is ready or the terminal must be redrawn. Return the ready
        descriptors.
        """
        wants_stdin = (
            self._reads_stdin
            and len(self._waiting_lines) < MAX_WAITING_LINES
            and (self.view.is_synced or not self.reads_keys)
        )
        if wants_stdin and not self._stdin_can_block:
            return {0, *(key.fileobj for key, _ in selector.select(0))}
        if wants_stdin != (0 in selector.get_map()):
            if wants_stdin:
                selector.register(0, selectors.EVENT_READ)
            else:
                selector.unregister(0)
        ready = {key.fileobj for key, _ in selector.select(self._find_timeout())}
        if self._key_parser.is_pasting and 0 not in ready:
            self._end_silent_paste()
        return ready

    def _find_timeout(self) -> float | None:
        """Return the seconds until the next redraw or timeout, or None for no limit."""
        if self._is_terminal and (
            self.view.is_busy
            or (
                self.input_controller is not None
                and self.input_controller.is_prompt_in_answer_grace_period
            )
        ):
            return REFRESH_SECONDS
        if self._key_parser.is_pasting:
            return PASTE_TIMEOUT_S
        if self._stdin_end_time:
            return ANSWER_TIMEOUT_S
        return None

    def _end_silent_paste(self) -> None:
        """End a paste without an end mark if no input has arrived for PASTE_TIMEOUT_S."""
        if (
            self.input_controller is not None
            and time.monotonic() - self._last_input_time >= PASTE_TIMEOUT_S
        ):
            self.input_controller.handle_pressed_keys(self._key_parser.end_paste())

    def _read_input(self) -> None:
        """Read keys from a terminal in raw mode, or lines from other input."""
        assert self.input_controller is not None
        try:
            chunk = os.read(0, READ_CHUNK_BYTES)
        except OSError:  # the terminal is closed
            chunk = b""
        self._last_input_time = time.monotonic()
        if self.reads_keys and chunk:
            self.input_controller.handle_pressed_keys(
                self._key_parser.feed(chunk if self._key_parser.is_pasting else _read_burst(chunk))
            )
            return
        for line in self._line_splitter.feed(chunk) if chunk else self._line_splitter.close():
            self._waiting_lines.append(line.decode("utf-8", "replace"))
        if not chunk:
            self._reads_stdin, self._stdin_end_time = False, time.monotonic()

    def _react_to_signals(self, settings: list[Any] | None) -> bool:
        """Handle the received signals. Return whether the loop must end."""
        signal_numbers = list(self._received_signals)
        self._received_signals[:] = []
        for signal_number in signal_numbers:
            if signal_number in ENDING_SIGNALS:
                self.end_signal = signal_number
                return True
            if signal_number == signal.SIGTSTP or (
                signal_number == signal.SIGINT and self.input_controller is None
            ):
                return True
            if signal_number == signal.SIGINT and self.input_controller is not None:
                self.input_controller.interrupt_turn()
            elif signal_number == signal.SIGCONT and settings is not None:
                _set_raw_mode(0, settings)
        if self.input_controller is None:
            return False
        return self.input_controller.has_left


def _read_burst(chunk: bytes) -> bytes:
    """Return a chunk of typed input. If the chunk starts a paste, also read the rest of the paste.

    A terminal without bracketed paste sends a long paste in several pieces. Typed keys arrive one
    at a time, so a single key is returned at once.
    """
    pieces = [chunk]
    size = len(chunk)
    deadline = time.monotonic() + MAX_BURST_S
    is_paste = _is_paste(chunk)
    while (
        size < MAX_BURST_BYTES
        and time.monotonic() < deadline
        and (is_paste or (size > 1 and b"\r" in chunk))
    ):
        if not select.select([0], [], [], PASTE_BURST_TIMEOUT_S if is_paste else BURST_TIMEOUT_S)[
            0
        ]:
            break
        try:
            next_chunk = os.read(0, READ_CHUNK_BYTES)
        except OSError:
            next_chunk = b""
        if not next_chunk:
            break
        pieces.append(next_chunk)
        size += len(next_chunk)
        is_paste = True
    return b"".join(pieces)


def _is_paste(chunk: bytes) -> bool:
    """Return whether the keys of one read were pasted in a terminal without bracketed paste.
    Several lines or many characters count as a paste.
    """
    text = chunk.strip(b"\r")
    if b"\x1b" in chunk:
        return False
    if len(text) > MIN_PASTE_BYTES:
        return True
    return b"\r" in text


def set_terminal_attributes(descriptor: int, settings: list[Any]) -> None:
    """Set a terminal's attributes, and retry if a signal interrupts the call.

    If this process runs in the background, the system stops the process until it is in the
    foreground again. The signal that continues the process interrupts the call, which Python does
    not retry.
    """
    while True:
        try:
            termios.tcsetattr(descriptor, termios.TCSADRAIN, settings)
            return
        except termios.error as error:
            if error.args[0] != errno.EINTR:
                raise


@contextmanager
def enable_raw_terminal_mode(descriptor: int) -> Iterator[list[Any]]:
    """Put a terminal into raw mode without echo. Ctrl-C is also read as a key. The terminal's
    settings are restored at the end of the context.
    """
    settings = termios.tcgetattr(descriptor)
    try:
        _set_raw_mode(descriptor, settings)
        yield settings
    finally:
        sys.stdout.write(DISABLE_PASTE_MODE)
        sys.stdout.flush()
        set_terminal_attributes(descriptor, settings)


def _set_raw_mode(descriptor: int, settings: list[Any]) -> None:
    """Put a terminal into raw mode, starting from its `settings`, and enable bracketed paste."""
    raw_settings = [*settings[:6], list(settings[6])]
    raw_settings[0] &= ~(termios.ICRNL | termios.IXON)
    raw_settings[3] &= ~(termios.ICANON | termios.ECHO | termios.ISIG | termios.IEXTEN)
    raw_settings[6][termios.VMIN] = 1
    raw_settings[6][termios.VTIME] = 0
    set_terminal_attributes(descriptor, raw_settings)
    sys.stdout.write(ENABLE_PASTE_MODE)
    sys.stdout.flush()


@contextmanager
def _yield_no_settings() -> Iterator[None]:
    yield None
