"""Reads captured output from files: either the printed lines of a program, or recordings, from
which every child's stdout is read.
"""

import os
from typing import Protocol

from shim.core.cast.format import CAST_SUFFIX
from shim.core.cast.protocol_lines import split_records_by_child
from shim.core.errors import CommandUsageError, FrontendError
from shim.core.reading.head_and_tail import HeadTailBuffer
from shim.core.turn.outcome import ChildExit
from shim.recording.recording_file import Recording
from shim.story.reader import parse_child_exit

CHUNK_BYTES = 256 * 1024
MAX_FILE_BYTES = 1024 * 1024 * 1024  # the recorder never writes a larger file
MAX_FILES = 1000  # maximum number of files; this repository has half as many fixtures


class CapturedOutputSink(Protocol):
    """Receives the output of one child process after another."""

    def start_child_output(self, label: str) -> None: ...

    def feed(self, chunk: bytes) -> None: ...

    def end_child_output(self, child_exit: ChildExit | None, stderr: str | None) -> None:
        """End the current child's output. `stderr` is None if stderr was not recorded."""


def read_captured_files(paths: list[str], sink: CapturedOutputSink) -> None:
    """Send the child output in these files to a sink. Raise FrontendError if a file cannot be read,
    and RecordingError if a recording is not valid.

    A file with printed lines does not show how the program exited. The exit is assumed to be
    successful, without stderr.
    """
    if len(paths) > MAX_FILES:
        raise CommandUsageError(f"{len(paths)} files; at most {MAX_FILES} are allowed")
    for path in paths:
        if path.endswith(CAST_SUFFIX):
            _read_recording(path, sink)
        else:
            _read_line_file(path, sink)


def _read_line_file(path: str, sink: CapturedOutputSink) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise FrontendError(f"{path} cannot be read: {error.strerror}") from None
    try:
        sink.start_child_output(path)
        size = 0
        while chunk := os.read(descriptor, CHUNK_BYTES):
            size += len(chunk)
            if size > MAX_FILE_BYTES:
                raise FrontendError(
                    f"{path} is larger than {MAX_FILE_BYTES} bytes",
                    hint="reduce the file to a few runs",
                )
            sink.feed(chunk)
        sink.end_child_output(ChildExit(code=0), None)
    except OSError as error:
        raise FrontendError(f"{path} cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)


def _read_recording(path: str, sink: CapturedOutputSink) -> None:
    number = 0
    for number, child in enumerate(split_records_by_child(Recording(path).read_records()), 1):
        label = path
        if number != 1:
            label = f"{path} (child {number})"
        sink.start_child_output(label)
        stderr = HeadTailBuffer()
        exit_status = None
        for record in child:
            if record.code == "o":
                sink.feed(record.data)
            elif record.code == "e":
                stderr.add(record.data)
            elif record.code == "x":
                exit_status = parse_child_exit(record.fields)
                break
        sink.end_child_output(exit_status, stderr.to_text())
    if not number:
        raise FrontendError(
            f"{path} has no output of a child process",
            hint="`shim show` prints what the frontend received",
        )
