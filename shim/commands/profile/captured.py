"""Captured output in files: lines as a program printed them, or casts, of which every child's
stdout is taken.
"""

import os
from typing import Protocol

from shim.core.cast.records import SUFFIX
from shim.core.cast.words import by_child
from shim.core.errors import FrontendError
from shim.core.reading.head_and_tail import Tail
from shim.core.turn.outcome import Exit
from shim.story.reading import Cast, child_exit

CHUNK_BYTES = 256 * 1024
FILE_BYTES = 1024 * 1024 * 1024  # of one file: as much as a cast may have
FILES = 1000  # for one call: all fixtures of this repository are half of it


class Sink(Protocol):
    """What takes the output of one child after another."""

    def begin(self, label: str) -> None: ...

    def feed(self, chunk: bytes) -> None: ...

    def end(self, child_exit: Exit | None, stderr: str | None) -> None:
        """The child ended; `stderr` is None if it was not kept."""


def read_captured(paths: list[str], sink: Sink) -> None:
    """Give a sink the children of these files. FrontendError for one that cannot be read, CastError
    for no cast.

    A file of lines does not tell how the program ended: it counts as a success without stderr.
    """
    if len(paths) > FILES:
        raise FrontendError(f"{len(paths)} files are more than the {FILES} that one call takes")
    for path in paths:
        if path.endswith(SUFFIX):
            _cast(path, sink)
        else:
            _lines(path, sink)


def _lines(path: str, sink: Sink) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise FrontendError(f"{path} cannot be read: {error.strerror}") from None
    try:
        sink.begin(path)
        size = 0
        while chunk := os.read(descriptor, CHUNK_BYTES):
            size += len(chunk)
            if size > FILE_BYTES:
                raise FrontendError(
                    f"{path} is larger than {FILE_BYTES} bytes", hint="cut it down to a few runs"
                )
            sink.feed(chunk)
        sink.end(Exit(code=0), None)
    except OSError as error:
        raise FrontendError(f"{path} cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)


def _cast(path: str, sink: Sink) -> None:
    number = 0
    for number, child in enumerate(by_child(Cast(path).records()), 1):
        sink.begin(path if number == 1 else f"{path} (child {number})")
        stderr, ended = Tail(), None
        for record in child:
            if record.letter == "o":
                sink.feed(record.data)
            elif record.letter == "e":
                stderr.add(record.data)
            elif record.letter == "x":
                ended = child_exit(record.fact)
                break
        sink.end(ended, stderr.text())
    if not number:
        raise FrontendError(
            f"{path} has no child in it", hint="`shim show` draws what the frontend was told"
        )
