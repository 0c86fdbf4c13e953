"""Missing logins in the user's own recordings."""

from collections.abc import Mapping

import orjson

from shim.core.errors import ShimError
from shim.core.reading.diagnostics import MAX_SAMPLE_CHARS, escape_control_chars
from shim.recording.folders import get_recording_folder, list_newest_recordings
from shim.story.reader import Recording

# A login is only in question for vendors that were used lately, and a person waits for the
# diagnosis.
MAX_RECORDINGS = 200  # the newest ones
MAX_READ_BYTES = 64 * 1024 * 1024  # of all recordings together
AUTH = b'"cause":"auth"'  # in a result that we wrote


def collect_missing_login_messages(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the vendors whose newest recording failed because of a missing login, with their own
    message.

    Recordings that cannot be read are skipped. Without recordings the result is empty.
    """
    try:
        paths = list_newest_recordings(get_recording_folder(environment))
    except ShimError:
        # nothing is recorded, or the settings have a mistake, which the diagnosis reports
        return {}
    # vendor → its message, "" if the newest recording has no missing login
    latest: dict[str, str] = {}
    bytes_left = MAX_READ_BYTES
    for path in paths[:MAX_RECORDINGS]:
        if bytes_left <= 0:
            break
        try:
            vendor, message, bytes_read = _read_recording(path, bytes_left)
        except (ShimError, OSError):
            continue
        bytes_left -= bytes_read
        latest.setdefault(vendor, message)
    return {vendor: message for vendor, message in latest.items() if message}


def _read_recording(path: str, max_bytes: int) -> tuple[str, str, int]:
    """Return the vendor, the message of its last missing login ("" if there is none), and the bytes
    that were read.
    """
    cast = Recording(path)
    vendor, message, bytes_read = cast.header.vendor, "", 0
    try:
        for record in cast.read_records():
            bytes_read += len(record.data)
            if record.code == "O" and AUTH in record.data:
                vendor, message = _parse_refusal(record.data) or (vendor, message)
            if bytes_read >= max_bytes:
                break
    finally:
        cast.close()
    return vendor, message, bytes_read


def _parse_refusal(line: bytes) -> tuple[str, str] | None:
    """Return the vendor and its message from a result whose cause is `auth`, or None for any other
    line.
    """
    try:
        result = orjson.loads(line)
        shim = result["shim"]
        text = result.get("result") or result["errors"][0]
        if shim["cause"] != "auth":
            return None
        last_line = str(text).strip().rpartition("\n")[2]  # the lines before it are ours
        return str(shim["vendor"]), escape_control_chars(last_line)[:MAX_SAMPLE_CHARS]
    except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError):
        return None
