"""Which session of a vendor stands behind a session id of Claude's: one small file each.

A vendor has ids of its own; a frontend may choose its own too. What is written at the end of a turn is looked up when
the session is resumed (surface page, State).
"""

import os
import time
from collections.abc import Mapping
from typing import NamedTuple

import orjson

from shim.core.claude.usage import NO_USAGE, Usage
from shim.core.claude.usage import known as known_usage
from shim.core.ids import parse_uuid, vendor_id, vendor_name
from shim.core.reading.json_text import dump
from shim.core.turn.terms import Thread
from shim.state.config import state_directory
from shim.state.files import newest_files, read_file, remove, usable, write_file

RECORD_BYTES = 64 * 1024
SESSIONS_KEPT = 10_000
WRITING_SECONDS = 3600.0  # nobody writes a small file for so long
PRUNE_EVERY = 64  # one run in so many looks for old ones

_SUFFIX = ".json"


class Session(NamedTuple):
    """What is known of a session: who answers, the vendor's own id for it, where and with what it ran.

    `vendor_session` is "" where the vendor kept nothing of it yet: it goes on as a new one. `used` is all that it had
    used, where the vendor counts that and not each turn.
    """

    vendor: str
    vendor_session: str
    cwd: str = ""
    model: str = ""
    created: float = 0.0
    used: Usage = NO_USAGE

    @property
    def thread(self) -> Thread:
        """The vendor's session, and what it had used."""
        return self.vendor_session, self.used


def look_up(session_id: str, environment: Mapping[str, str]) -> Session | None:
    """The session behind Claude's id, if we made it."""
    canonical = parse_uuid(session_id)
    return None if canonical is None else _read(_directory(environment), canonical)


def last(cwd: str, environment: Mapping[str, str], vendor: str | None = None) -> tuple[str, Session] | None:
    """Claude's id and the session that was last used in `cwd`, with whichever vendor or with this one."""
    directory, cwd = _directory(environment), _told(cwd)
    for name, data in newest_files(directory, _SUFFIX, SESSIONS_KEPT, RECORD_BYTES):
        session_id, session = name.removesuffix(_SUFFIX), _parse(data)
        if session is None or session.cwd != cwd or vendor not in (None, session.vendor):
            continue
        if parse_uuid(session_id) == session_id:
            return session_id, session
    return None


def remember(session_id: str, session: Session, environment: Mapping[str, str]) -> bool:
    """Keep a session; False when it cannot be kept, or when the vendor's id may never become an argument.

    When it was made stays what it was, whether or not the caller knows it.
    """
    canonical = parse_uuid(session_id)
    if canonical is None or not _storable(session.vendor_session):
        return False
    directory, now = _directory(environment), time.time()
    known = None if session.created else _read(directory, canonical)
    created = session.created or (known and known.created) or now
    record = session._replace(created=created, cwd=_told(session.cwd))._asdict() | {"updated": now}
    kept = write_file(directory, canonical + _SUFFIX, dump(record))
    if os.getpid() % PRUNE_EVERY == 0:
        prune(directory)
    return kept


def prune(directory: str) -> None:
    """Forget the oldest sessions beyond 10,000, and what a process that was killed had begun to write."""
    found: list[tuple[float, str]] = []
    begun: list[tuple[float, str]] = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    kind = begun if entry.name.endswith(".tmp") else found
                    kind.append((entry.stat(follow_symlinks=False).st_mtime, entry.path))
                except OSError:
                    continue  # another process forgot it just now
    except OSError:
        return
    for _, path in sorted(found)[: max(0, len(found) - SESSIONS_KEPT)]:
        remove(path)
    for changed, path in begun:
        if changed < time.time() - WRITING_SECONDS:
            remove(path)


def _read(directory: str, canonical: str) -> Session | None:
    return _parse(read_file(directory, canonical + _SUFFIX, RECORD_BYTES) or b"")


def _parse(data: bytes) -> Session | None:
    try:
        record = orjson.loads(data)
        known = Session(
            str(record["vendor"]),
            str(record["vendor_session"]),
            str(record.get("cwd", "")),
            str(record.get("model", "")),
            float(record.get("created", 0.0)),
            known_usage(record.get("used")),
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return None
    return known if vendor_name(known.vendor) and _storable(known.vendor_session) else None


def _told(cwd: str) -> str:
    """A folder's name as text; a byte of it that is none is written out."""
    return os.fsencode(cwd).decode("utf-8", "backslashreplace")


def _storable(vendor_session: str) -> bool:
    return not vendor_session or vendor_id(vendor_session) is not None


def _directory(environment: Mapping[str, str]) -> str:
    return os.path.join(state_directory(environment), "sessions")


def available(environment: Mapping[str, str]) -> bool:
    """Whether sessions can be kept here at all."""
    return usable(_directory(environment))
