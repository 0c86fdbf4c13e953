"""Rewrites a recording without secrets, when it ends or for `shim cast redact`.

The new file has mode 0600. It replaces the old file only when it is complete. Every record keeps
its time. The checkpoints are computed again.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple, TypeAlias

import orjson

from shim.core.cast.encoder import RecordingHashChain, encode_record_data
from shim.core.cast.format import (
    CHECKPOINT,
    MAX_LINE_BYTES,
    RecordingError,
    RecordingLine,
    parse_recording_header,
    parse_recording_line,
    strip_bom,
)
from shim.core.cast.secrets import RecordingRedactor, SecretSearch, StringEdit, apply_string_edits
from shim.core.reading.lines import LineSplitter
from shim.core.reading.values import as_dict
from shim.core.secrets.redactor import redact_argv
from shim.state.files import open_regular_file, replace_file, write_all, write_new_file

CHUNK_BYTES = 256 * 1024
# The size of one write.
MAX_BATCH_LINES = 1000
MAX_BATCH_BYTES = 1024 * 1024


class CastRewriteResult(NamedTuple):
    """The result of a rewrite.

    counts   the number of redacted secrets by kind
    skipped  the number of lines that were too long to read
    lost     whether more secrets were split over lines than fit into memory; another rewrite redacts
             the rest
    """

    counts: Mapping[str, int]
    skipped: int = 0
    lost: bool = False


class CastRewriteStoppedError(Exception):
    """The rewrite was stopped before the new file was complete. The old file is unchanged."""


def rewrite_cast_without_secrets(
    source: str, target: str | None = None, custom_search: SecretSearch | None = None
) -> CastRewriteResult:
    """Write a copy of a recording without secrets to `target`, which must not exist. Without a
    target, replace the recording.

    `custom_search` finds additional secrets in a text. Raise RecordingError if the file is not a
    recording, or cannot be read or written.
    """
    source = os.path.realpath(source)
    # A first pass is needed: secrets that are split over lines are only known after the last line.
    first_redactor = RecordingRedactor(custom_search)
    with _open_source(source) as file_descriptor:
        for line, _ in _read_lines(file_descriptor, LineSplitter(MAX_LINE_BYTES)):
            if line.is_stream_record:
                first_redactor.redact_record(line.code, line.data, line.has_newline)
        first_redactor.close()
    redactor = RecordingRedactor(custom_search)
    splitter = LineSplitter(MAX_LINE_BYTES)

    def redact_line(line: RecordingLine, raw: bytes) -> bytes:
        if line.code == HEADER_CODE:
            return _redact_header(raw, redactor)
        if not line.is_stream_record:
            return _redact_other_line(raw, redactor)
        redacted = redactor.redact_record(line.code, line.data, line.has_newline)
        if edits := first_redactor.edits.get(redactor.record_number):
            redacted = apply_string_edits(redacted, edits)
        if redacted is line.data:
            return raw
        return _replace_data(line, raw, redacted)

    with _open_source(source) as file_descriptor:
        _write_file(
            source, target, _encode_copy(_read_lines(file_descriptor, splitter), redact_line)
        )
    redactor.close()
    return CastRewriteResult(
        redactor.secret_counts, splitter.skipped_lines, first_redactor.has_lost_edits
    )


def redact_split_secrets(
    path: str,
    edits: Mapping[int, Sequence[StringEdit]],
    status: os.stat_result,
    is_stopped: Callable[[], bool],
) -> None:
    """Apply edits to a file that the shim has recorded. Raise RecordingError on failure, and
    CastRewriteStoppedError if `is_stopped` returns True.

    `status` is the file status of the recording. If another file has replaced the recording, that
    file is not changed.
    """
    record_numbers = count()

    def edit_line(line: RecordingLine, raw: bytes) -> bytes:
        if line.code == HEADER_CODE:
            return orjson.dumps({**orjson.loads(raw), "swept": True})
        if not line.is_stream_record or (record_number := next(record_numbers)) not in edits:
            return raw
        return _replace_data(line, raw, apply_string_edits(line.data, edits[record_number]))

    with _open_source(path) as file_descriptor:
        if not os.path.samestat(os.fstat(file_descriptor), status):
            raise RecordingError(f"{path} was replaced by another file in the meantime")
        _write_file(
            path,
            None,
            _encode_copy(
                _read_lines(file_descriptor, LineSplitter(MAX_LINE_BYTES)), edit_line, is_stopped
            ),
        )


# -- lines -----------------------------------------------------------------------------------------

HEADER_CODE = "header"  # the record code of the first line
CastLines: TypeAlias = Iterator[tuple[RecordingLine, bytes]]  # parsed lines with their bytes


def _read_lines(file_descriptor: int, splitter: LineSplitter) -> CastLines:
    """Yield the complete lines that are not empty. Raise RecordingError if the first line is not a
    recording header.
    """
    has_header = False
    while chunk := os.read(file_descriptor, CHUNK_BYTES):
        for raw in splitter.feed(chunk):
            if not has_header:
                has_header = bool(parse_recording_header(raw))
                yield RecordingLine(HEADER_CODE), strip_bom(raw)
            elif raw:
                yield parse_recording_line(raw), raw
    if not has_header:
        parse_recording_header(b"")


def _replace_data(line: RecordingLine, raw: bytes, data: bytes) -> bytes:
    """Return a copy of a record with the same time and new data."""
    code_suffix = "-"
    if line.has_newline:
        code_suffix = ""
    return b"%s,%s]" % (
        raw[: raw.index(b",")],
        encode_record_data(line.code, data, code_suffix),
    )


def _redact_other_line(line: bytes, redactor: RecordingRedactor) -> bytes:
    """Redact a line that is not a stream record: an event, a comment, or a record code from a later
    format version.
    """
    try:
        value = orjson.loads(line)
    except ValueError:
        text = line.decode("utf-8", "surrogateescape")
        redacted_text: str = redactor.redact_json_fields(text)
        if redacted_text == text:
            return line
        return redacted_text.encode("utf-8", "surrogateescape")
    fields = value
    if isinstance(value, list):
        fields = [_redact_command_line(part) for part in value]
    redacted = redactor.redact_json_fields(fields)
    if redacted == value:
        return line
    return orjson.dumps(redacted)


def _redact_header(line: bytes, redactor: RecordingRedactor) -> bytes:
    fields: dict[str, Any] = orjson.loads(line)
    redacted_fields = redactor.redact_json_fields(_redact_command_line(fields))
    redaction_mode = fields.get("redact")
    redact = redaction_mode
    if redaction_mode == "none":
        redact = "casts"
    return orjson.dumps(
        {
            **redacted_fields,
            "redact": redact,
            "swept": True,
        }
    )


def _redact_command_line(fields: Any) -> Any:
    """Return the event fields with the secret option values in `argv` redacted."""
    argv = as_dict(fields).get("argv")
    if not isinstance(argv, list) or not all(isinstance(arg, str) for arg in argv):
        return fields
    return {**fields, "argv": redact_argv(argv)}


# -- files -----------------------------------------------------------------------------------------


def _encode_copy(
    lines: CastLines,
    transform: Callable[[RecordingLine, bytes], bytes],
    is_stopped: Callable[[], bool] = lambda: False,
) -> Iterator[bytes]:
    """Yield the bytes of the new file: the transformed lines and new checkpoints."""
    hash_chain = RecordingHashChain()
    pending_lines: list[bytes] = []
    size_bytes = 0
    has_end = False
    for line, raw in lines:
        if has_end := line.code == CHECKPOINT and bool(line.fields["end"]):
            continue
        if line.code != CHECKPOINT:
            pending_lines.append(transform(line, raw) + b"\n")
            size_bytes += len(pending_lines[-1])
        if len(pending_lines) >= MAX_BATCH_LINES or size_bytes >= MAX_BATCH_BYTES:
            if is_stopped():
                raise CastRewriteStoppedError
            yield hash_chain.encode_lines_with_checkpoints(pending_lines)
            pending_lines.clear()
            size_bytes = 0
    yield hash_chain.encode_lines_with_checkpoints(pending_lines)
    if has_end:
        yield hash_chain.encode_end_checkpoint()


@contextlib.contextmanager
def _open_source(path: str) -> Iterator[int]:
    try:
        file_descriptor = open_regular_file(path, follow_links=False)
        try:
            yield file_descriptor
        finally:
            os.close(file_descriptor)
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error.strerror}") from None


def _write_file(source: str, target: str | None, chunks: Iterator[bytes]) -> None:
    """Write the chunks to `target`, or replace `source` if there is no target."""

    def write_chunks(file_descriptor: int) -> None:
        for chunk in chunks:
            write_all(file_descriptor, chunk)

    try:
        if target is None:
            replace_file(source, write_chunks)
        else:
            write_new_file(target, write_chunks)
    except OSError as error:
        if target is None:
            problem = f"{source} cannot be written"
        else:
            problem = f"{target} cannot be created"
        raise RecordingError(f"{problem}: {error.strerror}") from None
