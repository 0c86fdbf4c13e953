"""What is to be played of which recording: as data, and as arguments of the stand-in; opening the recording."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from shim.core.cast.records import CastError, Reader, Record
from shim.state.files import open_regular

CHUNK_BYTES = 256 * 1024


class Wanted(NamedTuple):
    """What is to be played, and how. `child` is the n-th of the recording; `side` is vendor or claude.

    `report` is the path for the child's file about its run, "" if it is not read.
    `folder` holds recordings of which the one that begins with the first message is played instead.
    `speed` 2 is twice as fast, 0 without pauses; `max_gap` limits a pause, in seconds.
    """

    path: str
    side: str = "vendor"
    child: int = 1
    speed: float = 1.0
    max_gap: float | None = None
    signals: bool = False
    session: str = ""
    folder: str = ""
    report: str = ""


def open_cast(path: str) -> int:
    """A descriptor of a recording. CastError if it is not a regular file or cannot be read."""
    try:
        return open_regular(path)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        hint = "a cast is a file; `shim claude --shim-record FILE` makes one"
        raise CastError(f"{path!r} cannot be read: {why}", hint=hint) from None


def records_of(path: str) -> Iterator[Record]:
    """The records of a cast, read as they are asked for. CastError when it cannot be read or is none."""
    descriptor = open_cast(path)
    try:
        reader = Reader()
        while chunk := os.read(descriptor, CHUNK_BYTES):
            yield from reader.feed(chunk)
        reader.close()
    except OSError as error:
        raise CastError(f"{path!r} cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)


def words_of(wanted: Wanted) -> list[str]:
    """The arguments of the stand-in; arguments behind them are ignored."""
    options: Mapping[str, str] = {
        "--as": wanted.side,
        "--child": str(wanted.child),
        "--speed": repr(wanted.speed),
        "--max-gap": "" if wanted.max_gap is None else repr(wanted.max_gap),
        "--session": wanted.session,
        "--folder": wanted.folder,
        "--report": wanted.report,
    }
    words = [f"{name}={value}" for name, value in options.items() if value]
    return [f"--cast={wanted.path}", *words, *(["--signals"] if wanted.signals else []), "--"]


def read_words(words: Sequence[str]) -> Wanted:
    own = list(words)[: words.index("--")] if "--" in words else words
    found = dict(word.partition("=")[::2] for word in own)
    return Wanted(
        path=found.get("--cast", ""),
        side=found.get("--as", "vendor"),
        child=int(found.get("--child", "1")),
        speed=float(found.get("--speed", "1")),
        max_gap=float(found["--max-gap"]) if "--max-gap" in found else None,
        signals="--signals" in found,
        session=found.get("--session", ""),
        folder=found.get("--folder", ""),
        report=found.get("--report", ""),
    )
