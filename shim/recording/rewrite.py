"""Writes a cast anew without some secrets: at the end of a recording, or for `shim cast redact`.

The new file is 0600, and replaces the old one when it is whole. Every record keeps its time; the
checkpoints are made anew.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple, TypeAlias

import orjson

from shim.core.cast.clean import CastRedactor, SecretSearch, StringEdit, apply_edits
from shim.core.cast.encoder import HashChain, encode_data
from shim.core.cast.records import (
    CHECKPOINT,
    MAX_LINE_BYTES,
    CastError,
    CastLine,
    parse_cast_line,
    parse_header,
    strip_bom,
)
from shim.core.reading.lines import LineSplitter
from shim.core.secrets.redactor import redact_argv
from shim.state.files import open_regular, replace_file, write_all, write_new_file

CHUNK_BYTES = 256 * 1024
MAX_BATCH_LINES, MAX_BATCH_BYTES = 1000, 1024 * 1024  # written at once


class RewriteResult(NamedTuple):
    """`counts` are the blanked secrets by kind, `skipped` the lines that were too long to read.

    `lost`: more secrets were split over lines than fit into memory; another run blanks the rest.
    """

    counts: Mapping[str, int]
    skipped: int = 0
    lost: bool = False


class RewriteStoppedError(Exception):
    """A signal came before the new file was finished; the old one is unchanged."""


def rewrite_cast(
    source: str, target: str | None = None, custom_search: SecretSearch | None = None
) -> RewriteResult:
    """Write a cast without secrets to `target`, which must not exist, or without a `target` over
    itself.

    `search` finds further secrets in a text. CastError if the file is no cast, or cannot be read or
    written.
    """
    source = os.path.realpath(source)
    first = CastRedactor(
        custom_search
    )  # secrets that are split over lines are known after the last line
    with _open_source(source) as file:
        for line, _ in _read_lines(file, LineSplitter(MAX_LINE_BYTES)):
            if line.is_stream:
                first.redact_record(line.code, line.data, line.has_newline)
        first.close()
    cleaner, numbers, splitter = CastRedactor(custom_search), count(), LineSplitter(MAX_LINE_BYTES)

    def changed(line: CastLine, raw: bytes) -> bytes:
        if line.code == HEADER_CODE:
            return _redact_header(raw, cleaner)
        if not line.is_stream:
            return _redact_other_line(raw, cleaner)
        clean = cleaner.redact_record(line.code, line.data, line.has_newline)
        if edits := first.edits.get(next(numbers)):
            clean = apply_edits(clean, edits)
        return raw if clean is line.data else _replace_data(line, raw, clean)

    with _open_source(source) as file:
        _write_file(source, target, _encode_copy(_read_lines(file, splitter), changed))
    cleaner.close()
    return RewriteResult(cleaner.secret_counts, splitter.skipped_lines, first.has_lost_edits)


def redact_split_secrets(
    path: str,
    edits: Mapping[int, Sequence[StringEdit]],
    status: os.stat_result,
    stopped: Callable[[], bool],
) -> None:
    """Make the edits in a cast that we recorded. CastError if that fails, StoppedError if `stopped`
    says so.

    `status` is that of the recorded file: a file that has replaced it is left alone.
    """
    numbers = count()

    def changed(line: CastLine, raw: bytes) -> bytes:
        if line.code == HEADER_CODE:
            return orjson.dumps({**orjson.loads(raw), "swept": True})
        if not line.is_stream or (number := next(numbers)) not in edits:
            return raw
        return _replace_data(line, raw, apply_edits(line.data, edits[number]))

    with _open_source(path) as file:
        if not os.path.samestat(os.fstat(file), status):
            raise CastError(f"{path} was replaced by another file meanwhile")
        _write_file(
            path,
            None,
            _encode_copy(_read_lines(file, LineSplitter(MAX_LINE_BYTES)), changed, stopped),
        )


# -- lines -----------------------------------------------------------------------------------------

HEADER_CODE = "header"  # the letter of the first line
CastLines: TypeAlias = Iterator[tuple[CastLine, bytes]]  # a line as it was read, and its bytes


def _read_lines(file: int, splitter: LineSplitter) -> CastLines:
    """The lines of a cast that are whole and not empty. CastError if the first is no header."""
    begun = False
    while chunk := os.read(file, CHUNK_BYTES):
        for raw in splitter.feed(chunk):
            if not begun:
                begun = bool(parse_header(raw))
                yield CastLine(HEADER_CODE), strip_bom(raw)
            elif raw:
                yield parse_cast_line(raw), raw
    if not begun:
        parse_header(b"")


def _replace_data(line: CastLine, raw: bytes, data: bytes) -> bytes:
    """A record with the same time and other data."""
    return b"%s,%s]" % (
        raw[: raw.index(b",")],
        encode_data(line.code, data, "" if line.has_newline else "-"),
    )


def _redact_other_line(line: bytes, cleaner: CastRedactor) -> bytes:
    """A line that is no record of a stream: a fact, a comment, or a code of a later version."""
    try:
        moment = orjson.loads(line)
    except ValueError:
        text = line.decode("utf-8", "surrogateescape")
        said: str = cleaner.redact_fields(text)
        return line if said == text else said.encode("utf-8", "surrogateescape")
    if not isinstance(moment, list):
        return (
            line
            if cleaner.redact_fields(moment) == moment
            else orjson.dumps(cleaner.redact_fields(moment))
        )
    clean = cleaner.redact_fields([_redact_command_line(part) for part in moment])
    return line if clean == moment else orjson.dumps(clean)


def _redact_header(line: bytes, cleaner: CastRedactor) -> bytes:
    facts: dict[str, Any] = orjson.loads(line)
    said = cleaner.redact_fields(_redact_command_line(facts))
    redact = facts.get("redact")
    return orjson.dumps({**said, "redact": "casts" if redact == "none" else redact, "swept": True})


def _redact_command_line(fact: Any) -> Any:
    """A fact whose `argv` has no values of options that take secrets."""
    words = fact.get("argv") if isinstance(fact, dict) else None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return fact
    return {**fact, "argv": redact_argv(words)}


# -- files -----------------------------------------------------------------------------------------


def _encode_copy(
    lines: CastLines,
    changed: Callable[[CastLine, bytes], bytes],
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[bytes]:
    chain, waiting, size, ended = HashChain(), list[bytes](), 0, False
    for line, raw in lines:
        if ended := line.code == CHECKPOINT and bool(line.fields["end"]):
            continue
        if line.code != CHECKPOINT:
            waiting.append(changed(line, raw) + b"\n")
            size += len(waiting[-1])
        if len(waiting) >= MAX_BATCH_LINES or size >= MAX_BATCH_BYTES:
            if stopped():
                raise RewriteStoppedError
            yield chain.add_lines(waiting)
            waiting.clear()
            size = 0
    yield chain.add_lines(waiting)
    if ended:
        yield chain.encode_end()


@contextlib.contextmanager
def _open_source(path: str) -> Iterator[int]:
    try:
        file = open_regular(path, follow_links=False)
        try:
            yield file
        finally:
            os.close(file)
    except OSError as error:
        raise CastError(f"{path} cannot be read: {error.strerror}") from None


def _write_file(source: str, target: str | None, parts: Iterator[bytes]) -> None:
    """Write the parts into `target`, or over `source`."""

    def fill(file: int) -> None:
        for part in parts:
            write_all(file, part)

    try:
        if target is None:
            replace_file(source, fill)
        else:
            write_new_file(target, fill)
    except OSError as error:
        doing = f"{source} cannot be written" if target is None else f"{target} cannot be made"
        raise CastError(f"{doing}: {error.strerror}") from None
