"""A cast in a file, written anew without some secrets: at the end of its recording, or whenever somebody asks.

The new file stands beside the old one until it is whole, then it takes its place (0600, temporary and rename). Every
line keeps its moment; the checkpoints are those of the new bytes.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from shim.core.cast.clean import Cleaner, Edit, Search, edited
from shim.core.cast.records import LINE_BYTES, STREAMS, CastError, Chain, coded, data_of, read_header
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
        for kind, _, line in _Lines(file):
            if kind == STREAM:
                first.clean(*_split(line))
        first.close()
    cleaner = Cleaner(search)

    def changed(kind: str, number: int, line: bytes) -> bytes:
        if kind == HEADER:
            return _header(line, cleaner)
        if kind == OTHER:
            return _fact(line, cleaner)
        letter, data, whole = _split(line)
        clean = cleaner.clean(letter, data, whole)
        if number in first.edits:
            clean = edited(clean, first.edits[number])
        return line if clean is data else _again(line, letter, clean, whole)

    with _reading(source) as file:
        lines = _Lines(file)
        _write(source, target, _copy(lines, changed))
    cleaner.close()
    return Rewritten(cleaner.counts, lines.skipped, first.lost)


def sweep(path: str, edits: Mapping[int, Sequence[Edit]], status: os.stat_result, stopped: Callable[[], bool]) -> None:
    """Make the edits in a cast of ours. CastError when that cannot be done, StoppedError when there is no time.

    `status` is that of the file as it was opened: if something else stands there now, it is left alone.
    """

    def changed(kind: str, number: int, line: bytes) -> bytes:
        if kind == HEADER:
            return orjson.dumps({**orjson.loads(line), "swept": True})
        if kind == OTHER or number not in edits:
            return line
        letter, data, whole = _split(line)
        return _again(line, letter, edited(data, edits[number]), whole)

    with _reading(path) as file:
        if not os.path.samestat(os.fstat(file), status):
            raise CastError(f"{path} is another file by now")
        _write(path, None, _copy(_Lines(file), changed, stopped))


# -- lines ---------------------------------------------------------------------------------------------------------

HEADER, STREAM, CHECKPOINT, OTHER = "header", "stream", "checkpoint", "other"


class _Lines:
    """The whole lines of a cast: the kind of each, its number among the records of streams, its bytes.

    CastError when the first is no header. One that was cut off at the end is none; `skipped` were too long.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self._splitter = LineSplitter(LINE_BYTES)

    @property
    def skipped(self) -> int:
        return self._splitter.skipped

    def __iter__(self) -> Iterator[tuple[str, int, bytes]]:
        number, begun = -1, False
        while chunk := os.read(self._file, CHUNK_BYTES):
            for line in self._splitter.feed(chunk):
                if not begun:
                    begun = True
                    read_header(line)
                    yield HEADER, 0, line
                elif line.startswith(b'["h"'):
                    yield CHECKPOINT, 0, line
                elif _is_stream(line):
                    number += 1
                    yield STREAM, number, line
                elif line:
                    yield OTHER, 0, line
        if not begun:
            read_header(b"")


def _is_stream(line: bytes) -> bool:
    at = line.find(b'"') + 1
    if line[:1] != b"[" or not at or line[at : at + 1] not in _STREAMS:
        return False
    try:
        _split(line)
    except (ValueError, TypeError, LookupError, AttributeError):
        return False
    return True


_STREAMS = frozenset(letter.encode() for letter in STREAMS)


def _split(line: bytes) -> tuple[str, bytes, bool]:
    """The letter of a record, its data without the newline, and whether one follows."""
    _, code, data = orjson.loads(line)[:3]
    return code[0], data_of(code, data), "-" not in code


def _again(line: bytes, letter: str, data: bytes, whole: bool) -> bytes:
    """A record with other data, at the same moment."""
    return b"%s,%s]" % (line[: line.index(b",")], coded(letter, data, "" if whole else "-"))


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
    lines: Iterable[tuple[str, int, bytes]],
    changed: Callable[[str, int, bytes], bytes],
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[bytes]:
    """The bytes of the new file."""
    chain, waiting, size, ended = Chain(), list[bytes](), 0, False
    for kind, number, line in lines:
        if ended := kind == CHECKPOINT and line.endswith(b'"end"]'):
            continue
        if kind != CHECKPOINT:
            waiting.append(changed(kind, number, line) + b"\n")
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
