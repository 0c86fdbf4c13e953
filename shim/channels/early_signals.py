"""Signals that come while our own modules are loaded: noted, and obeyed as soon as somebody can say a result.

Left to Python, a SIGINT would raise in the middle of an import: a traceback, or a crash in a module written in C.
"""

import signal
from types import FrameType

NAMES = ("SIGINT", "SIGTERM", "SIGHUP")

heard: list[int] = []


def listen() -> None:
    """Note them from now on; what was ignored stays ignored."""
    for name in NAMES:
        number = getattr(signal, name)
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _note)


def forget() -> None:
    """What follows is short and says no result: a signal simply ends it, one that came already too."""
    for name in NAMES:
        number = getattr(signal, name)
        if signal.getsignal(number) is _note:
            signal.signal(number, signal.SIG_DFL)
    if heard:
        signal.raise_signal(heard[0])


def _note(number: int, frame: FrameType | None) -> None:
    heard.append(number)
