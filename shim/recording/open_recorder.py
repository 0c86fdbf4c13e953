"""Where a run is recorded, and what the first line of its cast says. Imported only when recording
is on.
"""

import contextlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from shim import __version__
from shim.core.cast.format import CAST_SUFFIX
from shim.core.errors import RecordingRequiredError
from shim.core.reading.diagnostics import escape_control_chars
from shim.core.secrets.redactor import Redactor, redact_argv
from shim.io.ids import format_now
from shim.io.stderr import warn
from shim.recording.recorder import RunRecorder
from shim.recording.writer import RecordingLimits
from shim.state.config import ShimSettings
from shim.state.files import open_new_file

# for a unique name; its random part has 65,536 values in each millisecond of a process
MAX_NAME_ATTEMPTS = 5

# The variables whose values a cast may hold; of SHIM_* it holds the names (threats: environment).
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
    """The recorder of a run. If it cannot be recorded: None and one line on stderr;
    RecordingRequiredError if that is strict.

    `path` is a file, or a directory that gets a new file. `vendor_version` is the vendor's, if it
    is known without asking the program: no turn waits for that.
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
    except Exception as error:  # also when no thread can be started
        with contextlib.suppress(OSError):
            os.close(file_descriptor)
            os.unlink(path)
        _report_unrecorded(path, error, settings)
        return None


def explain_unrecordable_path(path: str) -> str:
    """Why no run can be recorded there; "" where one can. The file is made as for a run, and
    removed again.
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
        return "it is there already, and a recording is never overwritten"
    return getattr(error, "strerror", None) or str(error)


def _report_unrecorded(path: str, error: Exception, settings: ShimSettings) -> None:
    """Say why a run is not recorded, or raise RecordingRequiredError."""
    reason = escape_control_chars(f"the run cannot be recorded in {path}: {_describe_error(error)}")
    if settings.record_strict:
        raise RecordingRequiredError(
            reason, hint="record_strict is set; name another file or folder"
        ) from None
    warn(f"{reason}; the turn is not recorded\n")


def _select_variables(environment: Mapping[str, str]) -> dict[str, Any]:
    redact = Redactor().redact_text
    values: dict[str, Any] = {
        name: redact(environment[name]) for name in RECORDED_VARIABLES if name in environment
    }
    return values | {name: None for name in sorted(environment) if name.startswith("SHIM_")}


def _create_file(path: str, vendor: str, start_time: str) -> tuple[int, str]:
    """A new file, and its path. OSError when it cannot be made."""
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
    """Make a directory and its parents; the new ones are 0700."""
    path = path.rstrip(os.sep)
    if not path or os.path.isdir(path):
        return
    _create_folders(os.path.dirname(path))
    with contextlib.suppress(FileExistsError):  # another process made it
        os.mkdir(path, 0o700)
