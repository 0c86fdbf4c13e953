"""Finds recordings in files and folders, verifies recordings, and redacts additional secrets in
them.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from shim.core.cast.format import CAST_SUFFIX, DAMAGE, RecordingError
from shim.core.cast.verify import RecordingFinding, verify_recording
from shim.core.claude.argv.flags import Invocation
from shim.core.reading.values import escape_control_chars
from shim.io.stderr import warn
from shim.recording.pattern_search import CustomRedactionSearch
from shim.recording.rewrite import CastRewriteResult, rewrite_cast_without_secrets
from shim.state.config import load_shim_settings
from shim.state.files import open_regular_file

CHUNK_BYTES = 256 * 1024


class NoRecordingsError(RecordingError):
    """No recordings exist: no path was given and `record` is not set, or the folder is missing or
    empty.
    """


def list_cast_paths(paths: Iterable[str]) -> Iterator[str]:
    """Yield the paths of recordings. A folder is replaced by its recordings, sorted by name.

    Raise RecordingError if a folder is missing or has no recordings. A missing file with the suffix
    `.cast` is still yielded, because the caller reports it.
    """
    for path in paths:
        if not os.path.isdir(path):
            if not path.endswith(CAST_SUFFIX) and not os.path.lexists(path):
                raise RecordingError(
                    f"{path} does not exist", hint="pass recordings, or folders of recordings"
                )
            yield path
            continue
        try:
            with os.scandir(path) as entries:
                names = sorted(entry.name for entry in entries if is_cast_file(entry))
        except OSError as error:
            raise RecordingError(f"{path} cannot be read: {error.strerror}") from None
        if not names:
            raise NoRecordingsError(
                f"{path} has no recordings: no file in it has the suffix {CAST_SUFFIX}"
            )
        yield from (os.path.join(path, name) for name in names)


def is_cast_file(entry: "os.DirEntry[str]") -> bool:
    """Return whether a folder entry is a recording file, by its suffix.

    An entry that cannot be read, such as a symbolic link to itself, is reported on stderr and
    skipped.
    """
    if not entry.name.endswith(CAST_SUFFIX):
        return False
    try:
        return entry.is_file()
    except OSError as error:
        warn(escape_control_chars(f"{entry.path} is skipped: {error.strerror}\n"))
        return False


def get_recording_folder(environment: Mapping[str, str]) -> str:
    """Return the folder in which runs are recorded.

    Raise NoRecordingsError if no folder is configured or the folder does not exist yet. Raise
    RecordingError if the path is a file.
    """
    configured = environment.get("SHIM_RECORD")
    if not configured:
        configured = load_shim_settings(Invocation(), environment).record
    hint = "pass recordings or folders, or set `record` or SHIM_RECORD to a folder"
    if not configured:
        raise NoRecordingsError(
            "no recording was named, and the setting `record` is not set", hint=hint
        )
    path = os.path.expanduser(configured)
    if os.path.isdir(path):
        return path
    printable_path = escape_control_chars(configured)
    if not os.path.lexists(path):
        raise NoRecordingsError(
            f"no recording was named, and {printable_path}, where runs are recorded, does not exist yet",
            hint=hint,
        )
    raise RecordingError(
        f"no recording was named, and {printable_path}, where runs are recorded, is not a folder",
        hint=hint,
    )


def find_newest_recording(path: str) -> str:
    """Return the newest recording in a folder. If `path` is a file, return it unchanged. Raise
    RecordingError if there is no recording.
    """
    if os.path.isdir(path):
        return max(list_cast_paths([path]), key=_get_modified_time)
    return path


def list_newest_recordings(folder: str) -> list[str]:
    """Return the recordings of a folder, newest first. Raise RecordingError if there are none."""
    return sorted(list_cast_paths([folder]), key=_get_modified_time, reverse=True)


def _get_modified_time(path: str) -> float:
    """Return the modification time of a file in seconds since 1970, or 0.0 if the file is missing."""
    try:
        return os.stat(path).st_mtime
    except OSError:  # another process has removed it
        return 0.0


class CastVerificationReport(NamedTuple):
    """The result of `shim cast verify` for one file, in a form that can be encoded as JSON.

    state     intact, damaged, cut off or unreadable
    chained   whether every checkpoint in the file matches
    cut       whether the last checkpoint is missing
    proved    the number of the last line that a checkpoint covers
    findings  the reported problems
    left_out  the number of findings beyond those in `findings`
    """

    file: str
    state: str
    chained: bool = False
    cut: bool = False
    lines: int = 0
    proved: int = 0
    findings: Sequence[Mapping[str, Any]] = ()
    left_out: int = 0


def verify_cast_file(path: str) -> CastVerificationReport:
    try:
        descriptor = open_regular_file(path)
        try:
            verifier = verify_recording(lambda: os.read(descriptor, CHUNK_BYTES))
        finally:
            os.close(descriptor)
    except OSError as error:
        finding = RecordingFinding(0, 0, DAMAGE, "unreadable", f"cannot be read: {error.strerror}")
        return CastVerificationReport(path, "unreadable", findings=[finding._asdict()])
    return CastVerificationReport(
        path,
        verifier.integrity_status,
        verifier.has_valid_hash_chain,
        verifier.is_truncated,
        verifier.line_count,
        verifier.last_proved_line,
        [finding._asdict() for finding in verifier.findings],
        verifier.omitted_findings,
    )


def redact_cast(
    path: str,
    target: str | None,
    patterns: Sequence[str],
    texts: Sequence[str],
    *,
    force: bool = False,
) -> CastRewriteResult:
    """Rewrite a recording without known secrets and without matches of the given patterns and
    texts. Raise RecordingError on failure.

    Without a `target`, the new file replaces the recording, which must not be a symbolic link.
    `force` is required if the recording is damaged, because new checkpoints would hide the damage.
    Without a target, `force` is also required if the recording has no end, because a running
    recorder would continue to write to the replaced file.
    """
    custom_search = CustomRedactionSearch(patterns, texts)
    if target is None and os.path.islink(path):
        raise RecordingError(
            f"{path} is a link", hint=f"use the file itself, {os.path.realpath(path)}"
        )
    verification = verify_cast_file(path)
    if not force and verification.state != "unreadable" and not verification.chained:
        raise RecordingError(
            f"{path} is damaged; new checksums would hide the damage",
            hint="use --force to write the file anyway",
        )
    if not force and verification.cut and target is None:
        raise RecordingError(
            f"{path} is cut off or still being recorded; later lines would be lost",
            hint="use -o FILE to write a new file, or --force if the recording has ended",
        )
    if not patterns and not texts:
        return rewrite_cast_without_secrets(path, target)
    with custom_search.limit_search_time():
        return rewrite_cast_without_secrets(path, target, custom_search)
