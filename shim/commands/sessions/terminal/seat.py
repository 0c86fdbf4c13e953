"""The loop of a terminal, or of a script, at a session that lives on its own: its host, the keys,
the signals.
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

from shim.bridge.link import HostConnection
from shim.commands.sessions.terminal.composer import composer
from shim.commands.sessions.terminal.keys import PASTE_OFF, PASTE_ON, PASTE_SECONDS, Keys
from shim.commands.sessions.terminal.talk import Talk
from shim.commands.sessions.terminal.view import View
from shim.commands.turn.waiting import pipe_of, woken_by
from shim.core.reading.lines import INBOUND_BYTES, LineSplitter
from shim.io import stdin
from shim.story.terminal.paper import REFRESH_SECONDS

CHUNK_BYTES = 64 * 1024
# the wait after a line that came in one read; a person is slower with the next key
BURST_SECONDS = 0.05
# the wait for the next piece of a paste without marks, on a busy machine or network
PASTE_BURST_SECONDS = 0.25
PASTE_BURST_BYTES = 256  # so many bytes in one read are a paste, whatever they contain
MAX_BURST_SECONDS = 5.0  # for all pieces of a paste, because nothing else is served meanwhile
# so much of a paste is read before it is handled; a message is shorter
BURST_BYTES = 4 * 1024 * 1024
LINES = 1000  # of a script that wait; the rest waits in its pipe
PATIENCE_SECONDS = 30.0  # for the host's answers once a script has said all
SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGTSTP,
    signal.SIGCONT,
    signal.SIGWINCH,
)
ENDING = (signal.SIGTERM, signal.SIGHUP)

# How it ended: the person left, the host said goodbye, the connection broke, a signal came, the
# host did not answer.
End = Literal["left", "bye", "lost", "signal", "silent"]


class Seat:
    """`talk`: what is typed goes to it; without one nothing is read. `keyed`: the terminal hands
    over every key.
    """

    def __init__(self, console: Console, view: View, talk: Talk | None, *, keyed: bool) -> None:
        self.signal = 0  # the one that ended us
        self.view = view
        self.talk = talk
        self.keyed = keyed
        self._live = console.is_terminal
        self._reader = pipe_of(console)
        self._heard: list[int] = []
        self._keys = Keys()
        self._splitter = LineSplitter(INBOUND_BYTES)
        self._lines = deque[str]()
        self._reads = talk is not None
        self._stdin_waits = talk is not None and stdin.waits(0)
        self._ended = 0.0  # when a script had said all
        self._typed_at = 0.0  # when the last bytes came from stdin

    def serve(self, link: HostConnection) -> End:
        """Serve until it ends; the host can be another one the next time."""
        with (
            selectors.DefaultSelector() as selector,
            woken_by(SIGNALS, self._heard) as signals,
            every_key(0) if self.keyed else _nothing() as settings,
        ):
            selector.register(link, selectors.EVENT_READ)
            selector.register(signals, selectors.EVENT_READ)
            if self._reader is not None:
                selector.register(self._reader, selectors.EVENT_READ)
            frames, going = link.read_available_frames()
            frames.insert(0, dict(link.welcome))
            try:
                while True:
                    end = self._round(frames, going=going)
                    if end is not None:
                        return end
                    ready = self._wait(selector)
                    frames, going = link.read_available_frames() if link in ready else ([], True)
                    # all that a pipe's writing end tells: nobody reads any more
                    if self._reader in ready:
                        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
                    if signals in ready:
                        os.read(signals, CHUNK_BYTES)
                    # A signal may come behind what is ready, before the end of stdin is obeyed.
                    if self._heard and self._signalled(settings):
                        return "left" if not self.signal else "signal"
                    if 0 in ready:
                        self._typed()
            finally:
                self.view.typed_by(None)
                self.view.rest()

    def _round(self, frames: list[dict[str, Any]], *, going: bool) -> End | None:
        """Take what the host said, say what is next, draw it. Returns whether and how it is over."""
        view, talk = self.view, self.talk
        for frame in frames:
            (view if talk is None else talk).take(frame)
        if view.bye is not None or not going:
            return "lost" if view.bye is None else "bye"
        if talk is not None and view.synced:
            if self.keyed:
                view.typed_by(lambda width: composer(talk, width))
            while self._lines and talk.settled and not talk.left:
                talk.line(self._lines.popleft())
            if self._ended and not self._lines and talk.settled:
                talk.left = True
            if talk.left:
                return "left"
        if self._ended and time.monotonic() - self._ended >= PATIENCE_SECONDS:
            return "silent"
        view.flush(at_once=self.keyed)
        return None

    def _wait(self, selector: selectors.BaseSelector) -> set[Any]:
        """What is ready, at the latest when something that moves has to be drawn anew."""
        wanted = self._reads and len(self._lines) < LINES and (self.view.synced or not self.keyed)
        if wanted and not self._stdin_waits:
            return {0, *(key.fileobj for key, _ in selector.select(0))}
        if wanted != (0 in selector.get_map()):
            if wanted:
                selector.register(0, selectors.EVENT_READ)
            else:
                selector.unregister(0)
        ready = {key.fileobj for key, _ in selector.select(self._find_timeout())}
        if self._keys.is_pasting and 0 not in ready:
            self._end_silent_paste()
        return ready

    def _find_timeout(self) -> float | None:
        """Return the seconds until something that moves has to be drawn, or a wait is over; None
        for no limit.
        """
        moves = self._live and (self.view.busy or (self.talk is not None and self.talk.waits))
        if moves:
            return REFRESH_SECONDS
        if self._keys.is_pasting:
            return PASTE_SECONDS
        return PATIENCE_SECONDS if self._ended else None

    def _end_silent_paste(self) -> None:
        """End a paste without its end mark after PASTE_SECONDS of silence."""
        if self.talk is not None and time.monotonic() - self._typed_at >= PASTE_SECONDS:
            self.talk.press(self._keys.end_paste())

    def _typed(self) -> None:
        """Keys, or lines."""
        assert self.talk is not None
        try:
            chunk = os.read(0, CHUNK_BYTES)
        except OSError:  # the terminal has gone
            chunk = b""
        self._typed_at = time.monotonic()
        if self.keyed and chunk:
            self.talk.press(self._keys.feed(chunk if self._keys.is_pasting else _read_burst(chunk)))
            return
        for line in self._splitter.feed(chunk) if chunk else self._splitter.close():
            self._lines.append(line.decode("utf-8", "replace"))
        if not chunk:
            self._reads, self._ended = False, time.monotonic()

    def _signalled(self, settings: list[Any] | None) -> bool:
        """Obey the signals that came. Returns whether it is over."""
        heard, self._heard[:] = list(self._heard), []
        for number in heard:
            if number in ENDING:
                self.signal = number
                return True
            if number == signal.SIGTSTP or (number == signal.SIGINT and self.talk is None):
                return True
            if number == signal.SIGINT and self.talk is not None:
                self.talk.interrupt()
            elif number == signal.SIGCONT and settings is not None:
                _hand_over_keys(0, settings)
        return self.talk is not None and self.talk.left


def _read_burst(chunk: bytes) -> bytes:
    """Return a chunk of keys, and the rest of a paste that it starts.

    A terminal without paste marks sends a long paste in pieces. A person types one key at a time,
    so a single key is returned at once.
    """
    pieces, size, until = [chunk], len(chunk), time.monotonic() + MAX_BURST_SECONDS
    is_paste = _is_paste(chunk)
    while (
        size < BURST_BYTES
        and time.monotonic() < until
        and (is_paste or (size > 1 and b"\r" in chunk))
    ):
        if not select.select([0], [], [], PASTE_BURST_SECONDS if is_paste else BURST_SECONDS)[0]:
            break
        try:
            more = os.read(0, CHUNK_BYTES)
        except OSError:
            more = b""
        if not more:
            break
        pieces.append(more)
        size += len(more)
        is_paste = True
    return b"".join(pieces)


def _is_paste(chunk: bytes) -> bool:
    """Return whether keys that came at once were pasted without paste marks: several lines, or many
    characters.
    """
    text = chunk.strip(b"\r")
    return b"\x1b" not in chunk and (len(text) > PASTE_BURST_BYTES or b"\r" in text)


def set_terminal(descriptor: int, settings: list[Any]) -> None:
    """Set a terminal's attributes.

    The system stops a background process here until it is in the foreground again. The signal that
    continues the process interrupts the call, and Python does not repeat it.
    """
    while True:
        try:
            termios.tcsetattr(descriptor, termios.TCSADRAIN, settings)
            return
        except termios.error as error:
            if error.args[0] != errno.EINTR:
                raise


@contextmanager
def every_key(descriptor: int) -> Iterator[list[Any]]:
    """Have a terminal hand over every key at once, Ctrl-C too, and show none of them. Its settings
    come back behind.
    """
    settings = termios.tcgetattr(descriptor)
    try:
        _hand_over_keys(descriptor, settings)
        yield settings
    finally:
        sys.stdout.write(PASTE_OFF)
        sys.stdout.flush()
        set_terminal(descriptor, settings)


def _hand_over_keys(descriptor: int, settings: list[Any]) -> None:
    """What `settings` are, but for what a terminal does with keys."""
    wanted = [*settings[:6], list(settings[6])]
    wanted[0] &= ~(termios.ICRNL | termios.IXON)
    wanted[3] &= ~(termios.ICANON | termios.ECHO | termios.ISIG | termios.IEXTEN)
    wanted[6][termios.VMIN], wanted[6][termios.VTIME] = 1, 0
    set_terminal(descriptor, wanted)
    sys.stdout.write(PASTE_ON)
    sys.stdout.flush()


@contextmanager
def _nothing() -> Iterator[None]:
    yield None
