"""Creates the file and the recorder of a run. This module is imported only if recording is on."""

import contextlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from shim import __version__
from shim.core.cast.format import CAST_SUFFIX
from shim.core.errors import RecordingRequiredError, explain_os_error
from shim.core.reading.values import escape_control_chars
from shim.core.secrets.redactor import Redactor, redact_argv
from shim.io.ids import format_now
from shim.io.stderr import warn
from shim.recording.recorder import RunRecorder
from shim.recording.writer import RecordingLimits
from shim.state.config import ShimSettings
from shim.state.files import open_new_file

# Attempts to create a unique file name.
# Its random part has 65,536 values per process and millisecond.
MAX_NAME_ATTEMPTS = 5

# The environment variables that are recorded with their values.
# SHIM_* variables are recorded by name only, because a value may be secret.
RECORDED_VARIABLES = ("LANG", "LC_ALL", "TERM", "CLAUDE_CODE_ENTRYPOINT")


def open_recorder(
    path: str,
    vendor: str,
    settings: ShimSettings,
    *,
    argv: Sequence[str],
    environment: Mapping[str, str],
    cwd: str,
    vendor_version: str | None = None,
) -> RunRecorder | None:
    """Return a recorder for this run. If the run cannot be recorded, print one line on stderr and
    return None. If `record_strict` is set, raise RecordingRequiredError instead.

    `path` is a file, or a directory in which a new file is created. `vendor_version` is the
    vendor's version if it is already known. The vendor's CLI is not started to determine the
    version, because that would delay the turn.
    """
    start_time = format_now()
    try:
        file_descriptor, path = _create_file(path, vendor, start_time)
    except (OSError, ValueError) as error:
        _report_unrecorded(path, error, settings)
        return None
    redacts = settings.resolve_redaction_mode() != "none"
    header = {
        "started": start_time,
        "shim": __version__,
        "vendor": vendor,
        "vendor_version": Redactor().redact_text(vendor_version) if vendor_version else None,
        "argv": redact_argv(argv),
        "cwd": cwd,
        "env": _select_variables(environment),
        "redact": settings.resolve_redaction_mode(),
        "platform": sys.platform,
        "dialect": settings.dialect,
    }
    limits = RecordingLimits(settings.record_max_bytes, settings.record_strict)
    try:
        return RunRecorder(file_descriptor, path, header, limits=limits, redact=redacts)
    except Exception as error:  # for example, no thread can be started
        with contextlib.suppress(OSError):
            os.close(file_descriptor)
            os.unlink(path)
        _report_unrecorded(path, error, settings)
        return None


def explain_unrecordable_path(path: str) -> str:
    """Return the reason that no run can be recorded at this path, or "". To check, create a file as
    a run does and remove the file again.
    """
    try:
        file_descriptor, created_path = _create_file(path, "trial", format_now())
    except (OSError, ValueError) as error:
        return _describe_error(error)
    os.close(file_descriptor)
    os.unlink(created_path)
    return ""


def _describe_error(error: Exception) -> str:
    if isinstance(error, FileExistsError):
        return "the file already exists, and a recording is never overwritten"
    return explain_os_error(error)


def _report_unrecorded(path: str, error: Exception, settings: ShimSettings) -> None:
    """Report that a run is not recorded, with the reason. Raise RecordingRequiredError if recording
    is required.
    """
    reason = escape_control_chars(f"the run cannot be recorded to {path}: {_describe_error(error)}")
    if settings.record_strict:
        raise RecordingRequiredError(
            reason, hint="record_strict is set; choose another file or folder"
        ) from None
    warn(f"{reason}; the turn is not recorded\n")


def _select_variables(environment: Mapping[str, str]) -> dict[str, Any]:
    redact = Redactor().redact_text
    values: dict[str, Any] = {
        name: redact(environment[name]) for name in RECORDED_VARIABLES if name in environment
    }
    return values | {name: None for name in sorted(environment) if name.startswith("SHIM_")}


def _create_file(path: str, vendor: str, start_time: str) -> tuple[int, str]:
    """Create a new file and return its descriptor and path. Raise OSError on failure."""
    if not path.endswith(os.sep) and not os.path.isdir(path):
        _create_folders(os.path.dirname(path))
        return open_new_file(path), path
    _create_folders(path)
    timestamp = re.sub("[-:.]", "", start_time)
    for _ in range(MAX_NAME_ATTEMPTS):
        name = f"{timestamp}-{vendor}-{os.getpid()}-{os.urandom(2).hex()}{CAST_SUFFIX}"
        with contextlib.suppress(FileExistsError):
            return open_new_file(os.path.join(path, name)), os.path.join(path, name)
    raise FileExistsError


def _create_folders(path: str) -> None:
    """Create a directory and its missing parents with mode 0700."""
    path = path.rstrip(os.sep)
    if not path or os.path.isdir(path):
        return
    _create_folders(os.path.dirname(path))
    with contextlib.suppress(FileExistsError):  # another process has created the directory
        os.mkdir(path, 0o700)
