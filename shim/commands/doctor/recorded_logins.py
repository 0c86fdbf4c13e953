"""Searches the user's recordings for vendors that were not logged in."""

from collections.abc import Mapping

from shim.core.claude.grammar import get_result_text
from shim.core.errors import ShimError
from shim.core.reading.json_text import parse_json_object
from shim.core.reading.values import MAX_SAMPLE_CHARS, as_dict, escape_control_chars
from shim.recording.folders import get_recording_folder, list_newest_recordings
from shim.recording.recording_file import Recording, RecordingReadBudget
from shim.story.events import find_vendor_name

# Limits for the search.
# The user waits for the diagnosis, and a missing login is only likely for recently used vendors.
MAX_RECORDINGS = 200  # the newest recordings
MAX_READ_BYTES = 64 * 1024 * 1024  # for all recordings together
CAUSE = b'"cause":'  # part of every result that the shim writes


def collect_missing_login_messages(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the vendors whose newest recording failed because of a missing login, with the
    vendors' messages.

    Recordings that cannot be read are skipped. Without recordings, the result is empty.
    """
    try:
        paths = list_newest_recordings(get_recording_folder(environment))
    except ShimError:
        # No recordings exist, or the settings have an error that the diagnosis reports.
        return {}
    # Vendor → message, "" if no login is missing in the newest recording.
    latest: dict[str, str] = {}
    budget = RecordingReadBudget(MAX_READ_BYTES)
    for path in paths[:MAX_RECORDINGS]:
        if budget.bytes_left <= 0:
            break
        try:
            latest = _read_recording(path, budget) | latest
        except (ShimError, OSError):
            continue
    return {vendor: message for vendor, message in latest.items() if message}


def _read_recording(path: str, budget: RecordingReadBudget) -> dict[str, str]:
    """Return the vendors in a recording, each with the message of its last result. The message is
    "" unless the result is about a missing login.
    """
    cast = Recording(path, budget=budget)
    messages: dict[str, str] = {}
    try:
        for record in cast.read_records():
            if record.code == "O" and CAUSE in record.data:
                messages.update(_parse_result(record.data))
    finally:
        cast.close()
    if messages:
        return messages
    return {cast.header.vendor: ""}


def _parse_result(line: bytes) -> dict[str, str]:
    """Return a result's vendor with its message, or {} for any other line. The message is "" unless
    the cause is `auth`.
    """
    result = parse_json_object(line)
    vendor = find_vendor_name(result)
    if not vendor:
        return {}
    if as_dict(result["shim"]).get("cause") != "auth":
        return {vendor: ""}
    # Earlier lines are text from the shim.
    last_line = get_result_text(result).strip().rpartition("\n")[2]
    return {vendor: escape_control_chars(last_line)[:MAX_SAMPLE_CHARS]}
