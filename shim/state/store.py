"""Stores which vendor session belongs to each of Claude's session ids, in one small file per
session.

Vendors use their own session ids, and frontends may choose ids, too. A session file is written at
the end of a turn, and read when the session is resumed.
"""

import os
import time
from collections.abc import Iterator, Mapping

import orjson

from shim.core.claude.usage import NO_USAGE, Usage
from shim.core.claude.usage import parse_usage as parse_stored_usage
from shim.core.reading.json_text import dump_json
from shim.core.reading.typed import NamedTuple
from shim.core.reading.values import (
    canonicalize_uuid,
    is_valid_vendor_name,
    validate_vendor_session_id,
)
from shim.core.turn.context import VendorSessionUsage
from shim.state.config import get_state_dir
from shim.state.files import (
    ensure_usable_dir,
    list_modification_times_and_paths,
    read_newest_state_files,
    read_state_file,
    remove_file,
    write_state_file,
)

MAX_RECORD_BYTES = 64 * 1024
MAX_SESSIONS = 10_000
MAX_WRITE_TIME_S = 3600.0  # an incomplete file that is older was abandoned by its process
PRUNE_INTERVAL_RUNS = 64  # old sessions are removed once in this many runs

_SUFFIX = ".json"


class StoredSession(NamedTuple):
    """A stored session.

    vendor          the name of the vendor
    vendor_session  the vendor's own session id; "" if the vendor has stored nothing yet, in which
                    case the session is resumed as a new one
    cwd             the working directory
    model           the model
    created         the creation time in seconds since 1970
    used            the token usage of the vendor's session, if the vendor reports a total for the
                    session instead of the usage of each turn
    updated         the time of the last change in seconds since 1970; 0 before the first change
    shown           Claude's session id as the frontend spelled it; "" if it is in lower case
    """

    vendor: str
    vendor_session: str
    cwd: str = ""
    model: str = ""
    created: float = 0.0
    used: Usage = NO_USAGE
    updated: float = 0.0
    shown: str = ""

    @property
    def vendor_session_usage(self) -> VendorSessionUsage:
        """The vendor's session id, and the session's token usage so far."""
        return self.vendor_session, self.used


def find_session(session_id: str, environment: Mapping[str, str]) -> StoredSession | None:
    """Return the session with this Claude session id, or None if the shim did not create it."""
    canonical_id = canonicalize_uuid(session_id)
    if canonical_id is None:
        return None
    return _read_session(_get_sessions_dir(environment), canonical_id)


def find_last_session(
    cwd: str, environment: Mapping[str, str], vendor: str | None = None
) -> tuple[str, StoredSession] | None:
    """Return the last session in `cwd`, with its Claude session id, or None.

    If `vendor` is given, only sessions of this vendor are considered.
    """
    cwd = _escape_path(cwd)
    for session_id, session in list_sessions(environment):
        if session.cwd == cwd and vendor in (None, session.vendor):
            return session_id, session
    return None


def list_sessions(environment: Mapping[str, str]) -> Iterator[tuple[str, StoredSession]]:
    """Return all stored sessions with their Claude session ids, most recently used first."""
    for name, data in read_newest_state_files(
        _get_sessions_dir(environment), _SUFFIX, MAX_SESSIONS, MAX_RECORD_BYTES
    ):
        session_id = name.removesuffix(_SUFFIX)
        session = _parse_session(data)
        if session is not None and canonicalize_uuid(session_id) == session_id:
            yield session_id, session


def remove_session(session_id: str, environment: Mapping[str, str]) -> bool:
    """Remove a session from the store. Return False if the session no longer exists.

    The id must come from `list_sessions`.
    """
    return remove_file(os.path.join(_get_sessions_dir(environment), session_id + _SUFFIX))


def store_session(session_id: str, session: StoredSession, environment: Mapping[str, str]) -> bool:
    """Store a session. Return False if it cannot be stored, or if the vendor's session id would be
    unsafe as a command-line argument.

    The creation time of an existing session does not change.
    """
    canonical_id = canonicalize_uuid(session_id)
    if canonical_id is None or not _is_storable(session.vendor_session):
        return False
    directory = _get_sessions_dir(environment)
    now_s = time.time()
    created = session.created
    if not created:
        previous = _read_session(directory, canonical_id)
        if previous is not None:
            created = previous.created
    if not created:
        created = now_s
    spelled_id = session_id
    if session_id == canonical_id:
        spelled_id = ""
    record = session._replace(
        created=created, updated=now_s, cwd=_escape_path(session.cwd), shown=spelled_id
    )._asdict()
    is_stored = write_state_file(directory, canonical_id + _SUFFIX, dump_json(record))
    if os.getpid() % PRUNE_INTERVAL_RUNS == 0:
        remove_old_sessions(directory)
    return is_stored


def remove_old_sessions(directory: str) -> None:
    """Remove the oldest sessions beyond 10,000, and incomplete files from killed processes."""
    entries = list_modification_times_and_paths(directory)
    session_paths = [path for _, path in entries if not path.endswith(".tmp")]
    abandoned_paths = [
        path
        for changed_at_s, path in entries
        if path.endswith(".tmp") and changed_at_s < time.time() - MAX_WRITE_TIME_S
    ]
    for path in [*session_paths[: max(0, len(session_paths) - MAX_SESSIONS)], *abandoned_paths]:
        remove_file(path)


def _read_session(directory: str, canonical_id: str) -> StoredSession | None:
    return _parse_session(
        read_state_file(directory, canonical_id + _SUFFIX, MAX_RECORD_BYTES) or b""
    )


def _parse_session(data: bytes) -> StoredSession | None:
    try:
        record = orjson.loads(data)
        session = StoredSession(
            str(record["vendor"]),
            str(record["vendor_session"]),
            str(record.get("cwd", "")),
            str(record.get("model", "")),
            float(record.get("created", 0.0)),
            parse_stored_usage(record.get("used")),
            float(record.get("updated", 0.0)),
            str(record.get("shown", "")),
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return None
    if is_valid_vendor_name(session.vendor) and _is_storable(session.vendor_session):
        return session
    return None


def _escape_path(cwd: str) -> str:
    """Return a folder path as text. Bytes that are not valid UTF-8 are escaped."""
    return os.fsencode(cwd).decode("utf-8", "backslashreplace")


def _is_storable(vendor_session: str) -> bool:
    if not vendor_session:
        return True
    return validate_vendor_session_id(vendor_session) is not None


def _get_sessions_dir(environment: Mapping[str, str]) -> str:
    return os.path.join(get_state_dir(environment), "sessions")


def can_store_sessions(environment: Mapping[str, str]) -> bool:
    """Return whether the session store is writable."""
    return ensure_usable_dir(_get_sessions_dir(environment))
