"""A cast in a file, written anew without some secrets: at the end of its recording, or whenever somebody asks.

The new file stands beside the old one until it is whole, then it takes its place (0600, temporary and rename). Every
line keeps its moment; the checkpoints are those of the new bytes.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple, TypeAlias

import orjson

from shim.core.cast.clean import Cleaner, Edit, Search, edited
from shim.core.cast.encoder import Chain, coded
from shim.core.cast.records import CHECKPOINT, LINE_BYTES, CastError, Line, read_header, read_line
from shim.core.reading.lines import LineSplitter
from shim.core.secrets.redactor import redact_argv
from shim.state.files import open_regular, replace, write_all, write_new

CHUNK_BYTES = 256 * 1024
LINES, WRITTEN_BYTES = 1000, 1024 * 1024  # that are written at once


class Rewritten(NamedTuple):
    """What was done: secrets by kind that were blanked now, lines that nobody could read, and whether some may remain.

    `lost`: more secrets were split over lines than are kept in memory; once more finds the rest.
    """

    counts: Mapping[str, int]
    skipped: int = 0
    lost: bool = False


class StoppedError(Exception):
    """There was no time to write the file to its end; the old one is as it was."""


def rewrite(source: str, target: str | None = None, search: Search | None = None) -> Rewritten:
    """Write a cast without secrets to `target`, which must not exist; without one in its own place.

    `search` finds more than what is known as a secret: the places in a text, each with what is said there instead.
    CastError when the file is no cast or cannot be read or written.
    """
    source = os.path.realpath(source)
    first = Cleaner(search)  # what was split is known when all was read
    with _reading(source) as file:
        for line, _ in _lines(file, LineSplitter(LINE_BYTES)):
            if line.streamed:
                first.clean(line.letter, line.data, line.whole)
        first.close()
    cleaner, numbers, splitter = Cleaner(search), count(), LineSplitter(LINE_BYTES)

    def changed(line: Line, raw: bytes) -> bytes:
        if line.letter == HEADER:
            return _header(raw, cleaner)
        if not line.streamed:
            return _fact(raw, cleaner)
        clean = cleaner.clean(line.letter, line.data, line.whole)
        if edits := first.edits.get(next(numbers)):
            clean = edited(clean, edits)
        return raw if clean is line.data else _again(line, raw, clean)

    with _reading(source) as file:
        _write(source, target, _copy(_lines(file, splitter), changed))
    cleaner.close()
    return Rewritten(cleaner.counts, splitter.skipped, first.lost)


def sweep(path: str, edits: Mapping[int, Sequence[Edit]], status: os.stat_result, stopped: Callable[[], bool]) -> None:
    """Make the edits in a cast of ours. CastError when that cannot be done, StoppedError when there is no time.

    `status` is that of the file as it was opened: if something else stands there now, it is left alone.
    """
    numbers = count()

    def changed(line: Line, raw: bytes) -> bytes:
        if line.letter == HEADER:
            return orjson.dumps({**orjson.loads(raw), "swept": True})
        if not line.streamed or (number := next(numbers)) not in edits:
            return raw
        return _again(line, raw, edited(line.data, edits[number]))

    with _reading(path) as file:
        if not os.path.samestat(os.fstat(file), status):
            raise CastError(f"{path} is another file by now")
        _write(path, None, _copy(_lines(file, LineSplitter(LINE_BYTES)), changed, stopped))


# -- lines ---------------------------------------------------------------------------------------------------------

HEADER = "header"  # the letter of the first line
Lines: TypeAlias = Iterator[tuple[Line, bytes]]  # what a line says, and its bytes


def _lines(file: int, splitter: LineSplitter) -> Lines:
    """The whole lines of a cast that say something. CastError if the first is no header."""
    begun = False
    while chunk := os.read(file, CHUNK_BYTES):
        for raw in splitter.feed(chunk):
            if not begun:
                begun = bool(read_header(raw))
                yield Line(HEADER), raw
            elif raw:
                yield read_line(raw), raw
    if not begun:
        read_header(b"")


def _again(line: Line, raw: bytes, data: bytes) -> bytes:
    """A record with other data, at the same moment."""
    return b"%s,%s]" % (raw[: raw.index(b",")], coded(line.letter, data, "" if line.whole else "-"))


def _fact(line: bytes, cleaner: Cleaner) -> bytes:
    """A line that is no record of a stream: a fact, a comment, or what a later version has."""
    try:
        moment = orjson.loads(line)
    except ValueError:
        text = line.decode("utf-8", "surrogateescape")
        said: str = cleaner.fact(text)
        return line if said == text else said.encode("utf-8", "surrogateescape")
    if not isinstance(moment, list):
        return line if cleaner.fact(moment) == moment else orjson.dumps(cleaner.fact(moment))
    clean = cleaner.fact([_command(part) for part in moment])
    return line if clean == moment else orjson.dumps(clean)


def _header(line: bytes, cleaner: Cleaner) -> bytes:
    facts: dict[str, Any] = orjson.loads(line)
    said = cleaner.fact(_command(facts))
    redact = facts.get("redact")
    return orjson.dumps({**said, "redact": "casts" if redact == "none" else redact, "swept": True})


def _command(fact: Any) -> Any:
    """A fact with the values of options that hold secrets blanked by position."""
    words = fact.get("argv") if isinstance(fact, dict) else None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return fact
    return {**fact, "argv": redact_argv(words)}


# -- files ---------------------------------------------------------------------------------------------------------


def _copy(
    lines: Lines,
    changed: Callable[[Line, bytes], bytes],
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[bytes]:
    """The bytes of the new file."""
    chain, waiting, size, ended = Chain(), list[bytes](), 0, False
    for line, raw in lines:
        if ended := line.letter == CHECKPOINT and bool(line.fact["end"]):
            continue
        if line.letter != CHECKPOINT:
            waiting.append(changed(line, raw) + b"\n")
            size += len(waiting[-1])
        if len(waiting) >= LINES or size >= WRITTEN_BYTES:
            if stopped():
                raise StoppedError
            yield chain.add(waiting)
            waiting.clear()
            size = 0
    yield chain.add(waiting)
    if ended:
        yield chain.end()


@contextlib.contextmanager
def _reading(path: str) -> Iterator[int]:
    try:
        file = open_regular(path, follow=False)
        try:
            yield file
        finally:
            os.close(file)
    except OSError as error:
        raise CastError(f"{path} cannot be read: {error.strerror}") from None


def _write(source: str, target: str | None, parts: Iterator[bytes]) -> None:
    """The parts into a new file, or in the place of the old one."""

    def fill(file: int) -> None:
        for part in parts:
            write_all(file, part)

    try:
        if target is None:
            replace(source, fill)
        else:
            write_new(target, fill)
    except OSError as error:
        doing = f"{source} cannot be written" if target is None else f"{target} cannot be made"
        raise CastError(f"{doing}: {error.strerror}") from None
