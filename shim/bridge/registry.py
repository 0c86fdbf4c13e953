"""The registry of background sessions, running and ended: one folder per session in the state
directory.

The folder `<state>/bridge/<session UUID>/` (mode 0700) contains:

    host.json      the session's metadata (mode 0600)
    lock           held by the host while it runs
    socket         the host's Unix socket
    start.json     the data for resuming the session
    settings.json  the Claude settings that a host of an older version has read
    flags.json     JSON settings from the session's flags
    log/           the session's log
    stderr.log     the stderr of all hosts of the session

A life is the time from a host's start to its exit. When an ended session is resumed, its next life
starts. `generation` counts the lives.

There is no central process. Each process that looks up a session reads these files, and cleans up
after a dead host. If other users can write the registry's folder, all sessions are ignored: forged
metadata could name the process that `stop` kills.
"""

import errno
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress

import orjson

from shim.bridge import lock, sockets
from shim.core.errors import FrontendError, SystemResourceError, explain_os_error
from shim.core.policy.serialize import parse_settings as read_settings_text
from shim.core.policy.settings import ClaudeSettings
from shim.core.reading.json_text import dump_json
from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import as_dict, canonicalize_uuid, shorten_session_id, split_machine
from shim.state.config import get_state_dir
from shim.state.files import (
    can_others_write_dir,
    ensure_private_dir,
    explain_unusable_dir,
    open_regular_file,
    overwrite_file,
    replace_file,
    write_all,
)

METADATA_FILE, START_FILE, SETTINGS_FILE, FLAG_SETTINGS_FILE, LOG_FOLDER = (
    "host.json",
    "start.json",
    "settings.json",
    "flags.json",
    "log",
)
STDERR_FILE = "stderr.log"
# The size limit of start.json, whose prompt may contain an image. host.json is far smaller.
MAX_FILE_BYTES = 16 * 1024 * 1024
# The maximum number of ended sessions that are listed and stored, in addition to the running
# sessions. Sessions that ended earlier are removed.
MAX_ENDED_SESSIONS = 10_000
# Another process may create the lock file again while the folder is being removed.
REMOVE_ATTEMPTS = 3
SECONDS_PER_DAY = 24 * 60 * 60.0
HOST_DIED_DETAIL = "the session's host crashed"  # shown for a session whose host died while active
# shown for a session whose metadata cannot be read
DAMAGED_DETAIL = "damaged: the file host.json {}"
RESTORED_KEYS = ("cwd", "vendor", "name", "generation")  # metadata that is also in start.json
# the metadata of every ended session
ENDED_FIELDS = dict.fromkeys(("status", "waitingFor", "needs", "driver", "pid"))
ACTIVE_STATES = ("working", "blocked")  # states that only a running host can have


class SessionScanError(SystemResourceError):
    """Raised if the folder of the background sessions cannot be read, or if other users can write
    it. An empty list would mean that all sessions were removed.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"the background sessions of this machine cannot be listed: {reason}")


class SessionRecord(NamedTuple):
    """One background session: its UUID, its folder, whether its host is running, and its current
    metadata. For a session of another machine, the id is MACHINE:UUID, and the folder is "".

    If the host is dead, the metadata has no `status` and no `pid`. If the host died while the
    session was active, the `state` is `failed`.
    """

    session_id: str
    folder: str
    is_running: bool
    metadata: Mapping[str, Any]

    @property
    def short_id(self) -> str:
        return shorten_session_id(self.session_id)

    @property
    def machine(self) -> str:
        """The name of the session's machine, or "" for this machine."""
        return split_machine(self.session_id)[0]

    @property
    def log_folder(self) -> str:
        return os.path.join(self.folder, LOG_FOLDER)

    @property
    def stderr_path(self) -> str:
        """The file that contains the stderr of the session's hosts."""
        return os.path.join(self.folder, STDERR_FILE)


def get_bridge_folder(environment: Mapping[str, str]) -> str:
    """Return the folder that contains all session folders."""
    return os.path.join(get_state_dir(environment), "bridge")


def get_session_folder(session_id: str, environment: Mapping[str, str]) -> str:
    """Return the path of a session's folder, which may not exist. Raise ValueError if `session_id`
    is not a UUID, because it could then refer to another path.
    """
    canonical_id = canonicalize_uuid(session_id)
    if canonical_id is None:
        raise ValueError(f"{session_id[:60]!r} is not a UUID")
    return os.path.join(get_bridge_folder(environment), canonical_id)


def create_session_folder(session_id: str, environment: Mapping[str, str]) -> str:
    """Return a session's folder, and create it if needed. Raise FrontendError if it cannot be
    created.
    """
    private_folder = get_bridge_folder(environment)
    folder = get_session_folder(session_id, environment)
    try:
        for path in (os.path.dirname(private_folder), private_folder):
            # `makedirs` applies the mode only to the last folder of the path.
            os.makedirs(path, mode=0o700, exist_ok=True)
        if ensure_private_dir(private_folder):
            os.makedirs(folder, mode=0o700, exist_ok=True)
            if ensure_private_dir(folder):
                return folder
            private_folder = folder
    except OSError as error:
        raise FrontendError(
            f"background sessions are unavailable: {error.filename or private_folder}: "
            f"{error.strerror}",
            hint="set SHIM_STATE to another folder for the shim's state",
        ) from None
    raise FrontendError(
        f"background sessions are unavailable: {explain_unusable_dir(private_folder)}",
        hint="set SHIM_STATE to another folder for the shim's state",
    )


# -- lookup ----------------------------------------------------------------------------------------


def list_sessions(environment: Mapping[str, str]) -> list[SessionRecord]:
    """Return all running sessions, and up to MAX_ENDED_SESSIONS ended sessions. The most recently
    created session comes first. Return [] if other users can write the registry's folder. Raise
    SessionScanError if the folder cannot be read.

    Clean up after dead hosts.
    """
    if can_others_write_dir(get_bridge_folder(environment)):
        return []
    return scan_sessions(environment)


def scan_sessions(environment: Mapping[str, str]) -> list[SessionRecord]:
    """Return the same sessions as `list_sessions`, but raise SessionScanError if other users can
    write the registry's folder.
    """
    running_ids, other_ids = _list_session_ids(environment)
    records = [
        record
        for session_id in running_ids + other_ids[:MAX_ENDED_SESSIONS]
        if (record := find_session_trusting_metadata(session_id, environment)) is not None
    ]
    return sorted(
        records, key=lambda record: (record.metadata["created"], record.session_id), reverse=True
    )


def _list_session_ids(environment: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the UUIDs of the sessions that may be running, and the UUIDs of all others. The others
    are sorted by the last change of their folder, the most recent first.

    A host exits if its socket file is removed, so a folder without a socket file has no running
    session. Running sessions are therefore found quickly, without reading the files of all folders.

    Raise SessionScanError if the registry's folder cannot be read, or if other users can write it.
    """
    running_ids = list[str]()
    other_ids = list[tuple[float, str]]()
    bridge_folder = get_bridge_folder(environment)
    if can_others_write_dir(bridge_folder):
        raise SessionScanError(explain_unusable_dir(bridge_folder))
    try:
        with os.scandir(bridge_folder) as entries:
            for entry in entries:
                if canonicalize_uuid(entry.name) != entry.name:
                    continue
                if os.path.lexists(os.path.join(entry.path, sockets.SOCKET_FILE)):
                    running_ids.append(entry.name)
                    continue
                with suppress(OSError):
                    other_ids.append((entry.stat(follow_symlinks=False).st_mtime, entry.name))
    except FileNotFoundError:
        return [], []  # there was no session yet
    except OSError as error:
        raise SessionScanError(f"{bridge_folder}: {explain_os_error(error)}") from None
    return running_ids, [session_id for _, session_id in sorted(other_ids, reverse=True)]


def is_session_unreadable(session_id: str, environment: Mapping[str, str]) -> bool:
    """Return whether a session exists, but is not listed, because its files cannot be read now. For
    example, this process has opened too many files.
    """
    if canonicalize_uuid(session_id) != session_id:
        return False
    if find_session_trusting_metadata(session_id, environment) is not None:
        return False
    try:
        os.lstat(get_session_folder(session_id, environment))
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def find_session_trusting_metadata(
    session_id: str, environment: Mapping[str, str]
) -> SessionRecord | None:
    """Return the session like `find_session`, but skip the lock check if the metadata says that the
    session has ended. Without the lock check, many ended sessions can be listed quickly.

    The host of such a session may hold the lock slightly longer, but it accepts no more clients.
    """
    folder = os.path.join(get_bridge_folder(environment), session_id)
    metadata = read_metadata(folder)
    if metadata is not None and has_session_ended(metadata):
        return SessionRecord(session_id, folder, False, metadata)
    return find_session(session_id, environment)


def has_session_ended(metadata: Mapping[str, Any]) -> bool:
    """Return whether the metadata shows that the session has ended, either normally or after its
    dead host was cleaned up.
    """
    if metadata["state"] in ACTIVE_STATES:
        return False
    return not (metadata.get("status") or metadata.get("pid"))


def find_session(session_id: str, environment: Mapping[str, str]) -> SessionRecord | None:
    """Return the session with a UUID, or None if no background session has had this UUID. Clean up
    after a dead host.
    """
    canonical_id = canonicalize_uuid(session_id)
    bridge_folder = get_bridge_folder(environment)
    if canonical_id is None or can_others_write_dir(bridge_folder):
        return None
    folder = os.path.join(bridge_folder, canonical_id)
    metadata = read_metadata(folder)
    if metadata is None:
        return _find_damaged_session(canonical_id, folder)
    try:
        with lock.probe_session_host_lock(folder) as is_dead:
            if is_dead:
                metadata = _clean_up_dead_host(folder, read_metadata(folder) or metadata)
    except OSError:
        is_dead = not sockets.is_host_listening(folder)
        # Without the lock, no file is written.
        if is_dead:
            metadata = _end_metadata(metadata)
    return SessionRecord(canonical_id, folder, not is_dead, metadata)


def _find_damaged_session(session_id: str, folder: str) -> SessionRecord | None:
    """Return a session whose metadata cannot be read, for example because of a system crash or a
    full disk.

    Return None if the session does not exist, or if its host is running. A running host writes its
    metadata again.
    """
    metadata = restore_metadata(folder)
    try:
        with lock.probe_session_host_lock(folder) as is_dead:
            if is_dead and metadata is not None:
                return SessionRecord(session_id, folder, False, metadata)
            return None
    except OSError:
        return None


def load_or_restore_metadata(folder: str) -> dict[str, Any]:
    """Return a session's metadata. If it cannot be read, return the metadata that replaces it.
    Return {} if the session never existed.
    """
    metadata = read_metadata(folder)
    if metadata is None:
        metadata = restore_metadata(folder)
    return as_dict(metadata)


def restore_metadata(folder: str) -> dict[str, Any] | None:
    """Return metadata that replaces damaged metadata, built from the session's other files. Return
    None if the session never existed.
    """
    file_names = [
        file_name
        for file_name in (METADATA_FILE, START_FILE, LOG_FOLDER)
        if os.path.lexists(os.path.join(folder, file_name))
    ]
    if not file_names:
        return None
    start_data = load_session_start_data(folder)
    written_ms = round(
        1000 * max(os.lstat(os.path.join(folder, file_name)).st_mtime for file_name in file_names)
    )
    reason = "is missing"
    if METADATA_FILE in file_names:
        reason = "cannot be read"
    session_id = os.path.basename(folder)
    data = {
        **{key: start_data.get(key) for key in RESTORED_KEYS},
        "id": shorten_session_id(session_id),
        "created": written_ms,
        "started": written_ms,
        "detail": DAMAGED_DETAIL.format(reason),
    }
    return parse_metadata(data, session_id)


def is_metadata_damaged(metadata: Mapping[str, Any]) -> bool:
    """Return whether the session's metadata file could not be read."""
    if metadata.get("protocol") is not None:
        return False
    return str(metadata.get("detail")).startswith(DAMAGED_DETAIL.partition("{")[0])


def list_sessions_by_id_prefix(
    reference: str, environment: Mapping[str, str]
) -> list[SessionRecord]:
    """Return the sessions whose UUID or short id starts with a text."""
    reference = reference.lower()
    if canonicalize_uuid(reference) is not None:
        session = find_session(reference, environment)
        if session is None:
            return []
        return [session]
    return [
        session
        for session in list_sessions(environment)
        if reference and session.session_id.startswith(reference)
    ]


def is_session_running(session_id: str, environment: Mapping[str, str]) -> bool:
    """Return whether a session has a running host."""
    session = find_session(session_id, environment)
    if session is None:
        return False
    return session.is_running


def _clean_up_dead_host(folder: str, metadata: dict[str, Any]) -> dict[str, Any]:
    """Remove the files that a dead host left in the session's folder. Return the session's
    metadata. The caller must hold the shared lock.
    """
    sockets.remove_host_socket(folder)
    if has_session_ended(metadata):
        return metadata
    metadata = _end_metadata(metadata)
    with suppress(OSError):
        write_metadata(folder, metadata)
    return metadata


def _end_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of a session after its host has died."""
    died = {}
    if metadata["state"] in ACTIVE_STATES:
        died = {"state": "failed", "detail": HOST_DIED_DETAIL}
    return {**metadata, **ENDED_FIELDS, **died}


def describe_unanswered_messages(metadata: Mapping[str, Any]) -> str:
    """Describe the messages that were still unanswered when the session ended. Return "" if there
    were none.
    """
    count = metadata.get("unanswered") or 0
    if count:
        return f"{count} {'message was' if count == 1 else 'messages were'} not answered"
    return ""


# -- removal ---------------------------------------------------------------------------------------


def remove_old_sessions(environment: Mapping[str, str], days: float) -> int:
    """Remove sessions that ended more than `days` ago, and the oldest ended sessions beyond
    MAX_ENDED_SESSIONS. Return the number of removed sessions.

    Running sessions are never removed. Nothing is removed if the registry's folder cannot be read.
    """
    ended_sessions = list[tuple[float, SessionRecord]]()
    removed_count = 0
    try:
        running_ids, other_ids = _list_session_ids(environment)
    except SessionScanError:
        return 0
    for session_id in running_ids + other_ids:
        session = find_session_trusting_metadata(session_id, environment)
        if session is not None and not session.is_running:
            with suppress(OSError):
                ended_sessions.append((_read_change_time(session.folder), session))
    oldest = time.time() - days * SECONDS_PER_DAY
    for index, (ended_at, session) in enumerate(
        sorted(ended_sessions, key=lambda item: item[0], reverse=True)
    ):
        if ended_at < oldest or index >= MAX_ENDED_SESSIONS:
            with suppress(lock.FileLocksUnsupportedError):
                removed_count += remove_session(session)
    return removed_count


def _read_change_time(folder: str) -> float:
    """Return when the session's metadata was last written, in seconds since 1970. If there is no
    metadata, return when the session's folder last changed.
    """
    try:
        return os.stat(os.path.join(folder, METADATA_FILE)).st_mtime
    except FileNotFoundError:
        return os.stat(folder).st_mtime


def remove_session(session: SessionRecord) -> bool:
    """Remove all files of a session. Return True if no files are left, even if another process
    removed them. Return False if the host is running.

    Raise FileLocksUnsupportedError if the filesystem has no file locks.
    """
    try:
        host_lock = lock.acquire_session_host_lock(session.folder)
    except OSError:
        return not os.path.lexists(session.folder)
    if host_lock is None:
        return not os.path.lexists(session.folder)
    try:
        sockets.remove_host_socket(session.folder)
        for _ in range(REMOVE_ATTEMPTS):
            shutil.rmtree(session.folder, ignore_errors=True)
            if not os.path.lexists(session.folder):
                return True
    finally:
        os.close(host_lock)
    return False


# -- files -----------------------------------------------------------------------------------------

# Key → the allowed types of its value. A value that is missing or has another type is replaced
# with None, or with the default in _DEFAULTS.
_TEXT_TYPES = (str,)
_NUMBER_TYPES = (int, float)
_KEY_TYPES: Mapping[str, tuple[type, ...]] = {
    "id": _TEXT_TYPES, "session": _TEXT_TYPES, "cwd": _TEXT_TYPES, "vendor": _TEXT_TYPES,
    "name": _TEXT_TYPES, "created": _NUMBER_TYPES, "started": _NUMBER_TYPES,
    "updated": _NUMBER_TYPES, "pid": (int,), "generation": (int,),
    "status": _TEXT_TYPES, "waitingFor": _TEXT_TYPES, "state": _TEXT_TYPES, "needs": _TEXT_TYPES,
    "detail": _TEXT_TYPES, "driver": _TEXT_TYPES, "version": _TEXT_TYPES, "unanswered": (int,),
}  # fmt: skip
_DEFAULTS: Mapping[str, Any] = {
    "created": 0,
    "started": 0,
    "generation": 0,
    "state": "failed",
    "cwd": "",
    "vendor": "",
}


def read_metadata(folder: str) -> dict[str, Any] | None:
    """Return a session's metadata, or None if it cannot be read."""
    data = _load_json_object(os.path.join(folder, METADATA_FILE))
    if not data:
        return None
    return parse_metadata(data, os.path.basename(folder))


def parse_metadata(data: Mapping[str, Any], session_id: str) -> dict[str, Any]:
    """Return a session's metadata from JSON. A value of the wrong type is replaced with None or its
    default.
    """
    metadata = {
        key: data[key] if isinstance(data.get(key), types) else _DEFAULTS.get(key)
        for key, types in _KEY_TYPES.items()
    }
    return {**metadata, "protocol": data.get("protocol"), "session": session_id}


def write_metadata(folder: str, metadata: Mapping[str, Any]) -> None:
    """Replace a session's metadata. Raise OSError if it cannot be written.

    A full disk may have no space for a new file. The old file is then overwritten, because
    otherwise a failed session would look finished.
    """
    path = os.path.join(folder, METADATA_FILE)
    data = dump_json(metadata)
    try:
        replace_file(path, lambda file: write_all(file, data))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        overwrite_file(path, data)


def load_session_start_data(session_folder: str) -> dict[str, Any]:
    """Return the data with which the session was last started, or {} if it cannot be read."""
    return _load_json_object(os.path.join(session_folder, START_FILE))


def write_session_start_data(session_folder: str, start_data: Mapping[str, Any]) -> None:
    """Store the data with which the session is started. Raise OSError if it cannot be written.

    Raise FrontendError if the data is larger than the limit for reading it. The previous data then
    stays unchanged.
    """
    data = dump_json(start_data)
    if len(data) > MAX_FILE_BYTES:
        raise FrontendError(
            f"the start options of a session can have at most {MAX_FILE_BYTES:,} bytes; "
            f"this prompt and its flags have {len(data):,}",
            hint="put the text into a file, and refer to the file in the prompt",
        )
    replace_file(os.path.join(session_folder, START_FILE), lambda file: write_all(file, data))


def load_session_claude_settings(folder: str, host_generation: object) -> ClaudeSettings:
    """Return the Claude settings that a host of an older version stored, or empty settings.

    Hosts of the current version report their settings in the answer to `reload_settings`.
    """
    data = _load_json_object(os.path.join(folder, SETTINGS_FILE))
    try:
        if data["generation"] == host_generation:
            return read_settings_text(str(data["settings"]))
    except (KeyError, ValueError):
        pass
    return ClaudeSettings()


def write_settings_flag_file(session_folder: str, settings_json: str) -> str:
    """Write the JSON value of `--settings` to a file. Return the file's path. Raise OSError if it
    cannot be written.
    """
    path = os.path.join(session_folder, FLAG_SETTINGS_FILE)
    replace_file(path, lambda file: write_all(file, settings_json.encode()))
    return path


def _load_json_object(path: str) -> dict[str, Any]:
    """Return the JSON object in a file, or {} if the file cannot be read."""
    try:
        with open(open_regular_file(path, follow_links=False), "rb") as file:
            return as_dict(orjson.loads(file.read(MAX_FILE_BYTES)))
    except (OSError, ValueError):
        return {}
