"""Starts a session's host: a process that outlives this process, with the same environment and
working directory.

No process waits for the host's exit. The lock is acquired and the socket listens before the host
starts, and the host inherits both. If two processes start a host for the same session, only one of
them gets the lock. A client may connect immediately, and waits until the host has started.
"""

import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from shim import __version__
from shim.bridge import lock, registry, sockets
from shim.bridge.registry import SessionRecord, create_session_folder
from shim.core.claude.argv.flags import FLAG_BY_FIELD, Invocation, parse_argv
from shim.core.claude.argv.merge import extract_restricting_flags, merge_resume_flags
from shim.core.claude.argv.paths import is_json, resolve_invocation_paths
from shim.core.errors import FrontendError, explain_os_error
from shim.core.reading.json_text import dump_json
from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import as_list, escape_control_chars, get_text, shorten_session_id
from shim.io.ids import create_uuid
from shim.process.environment import get_working_directory
from shim.process.package import require_package_files_for_child

PROTOCOL_VERSION = 1  # the version of the metadata format and of the frame format
# The maximum size of stderr.log, to which all hosts of a session append.
# A host truncates the file while it runs.
MAX_STDERR_BYTES = 1024 * 1024
# Flags that may name a file. --mcp-config may name several.
FILE_FLAG_FIELDS = (
    "settings",
    "mcp_config",
    "system_prompt_file",
    "append_system_prompt_file",
    "shim_config",
)
# The time in which a host must exit after its last frame.
# Its vendor may take a while to exit, and writing a recording may take 10 s.
HOST_EXIT_TIMEOUT_S = 15.0

_started_pids: list[int] = []  # hosts that this process started; they become zombies when they exit


class SessionRunningError(FrontendError):
    """The session already has a running host."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"the session {session_id} is already running",
            hint=(
                f"`claude attach {shorten_session_id(session_id)}` opens the session, `claude "
                f"stop {shorten_session_id(session_id)}` stops the session"
            ),
        )


class SessionSpec(NamedTuple):
    """The specification of a session to start.

    arguments   the arguments of a `claude` command, without the prompt and without the flags for
                streams and the session
    installed   the options that `shim install` wrote into the drop-in `claude` file
    cwd         the session's folder
    vendor      the name of the session's vendor, if known
    name        the session's name in lists; "" to use the beginning of the first message
    prompt      the first message: Claude's {"role": "user", "content": …}, or None
    prompt_id   the prompt's UUID, or "" for a new UUID; a prompt is sent only once, even if the
                session is resumed
    asks        permission prompts wait in the hub for any client that may answer; False: only if
                `arguments` request it
    forked      the session that this session copies; "" for none
    resumes     the UUID belongs to an existing session, which may have had no host
    beginning   flags that name the last message to keep from `forked`, or from the session
    """

    arguments: Sequence[str] = ()
    installed: Mapping[str, str] = {}
    cwd: str = ""
    vendor: str = ""
    name: str = ""
    prompt: Mapping[str, Any] | None = None
    prompt_id: str = ""
    asks: bool = True
    forked: str = ""
    resumes: bool = False
    beginning: Sequence[str] = ()


def start_host(
    spec: SessionSpec, environment: Mapping[str, str], session_id: str = ""
) -> SessionRecord:
    """Start a host for a session. If `session_id` is empty, start a new session. Return before the
    host is ready.

    Raise SessionRunningError if the session has a host, and FrontendError if no host can be
    started.
    """
    if not session_id:
        session_id = create_uuid()
    cwd = spec.cwd or get_working_directory()
    spec = spec._replace(cwd=cwd)
    if not (os.path.isdir(spec.cwd) and os.access(spec.cwd, os.X_OK)):
        raise FrontendError(
            f"cannot start a host process for session {session_id}: its folder {spec.cwd} "
            "does not exist or is not accessible",
            hint="create the folder again, or start a new session in an existing folder",
        )
    _check_utf8(session_id, spec)
    require_package_files_for_child(build_host_command())
    folder = create_session_folder(session_id, environment)
    is_new = not registry.load_or_restore_metadata(folder)
    spec = _restore_fork_source(spec, folder)
    host_lock = None
    listener = None
    try:
        host_lock = _acquire_lock(folder)
        if host_lock is None:
            raise SessionRunningError(session_id)
        # We hold the lock, so an existing socket belongs to a dead host.
        sockets.remove_host_socket(folder)
        listener = sockets.open_host_listener(folder)
        metadata = _build_metadata(session_id, folder, spec)
        registry.write_session_start_data(
            folder, {**spec._asdict(), "session": session_id, "generation": metadata["generation"]}
        )
        registry.write_metadata(folder, metadata)
        metadata = _start_process(folder, host_lock, listener, environment, metadata)
        _started_pids.append(metadata["pid"])
    except (OSError, FrontendError) as error:
        if listener is not None:
            sockets.remove_host_socket(folder)
        if is_new and (host_lock is not None or isinstance(error, lock.FileLocksUnsupportedError)):
            shutil.rmtree(folder, ignore_errors=True)  # no session was started in this new folder
        if isinstance(error, FrontendError):
            raise
        raise FrontendError(
            f"cannot start a host process for session {session_id}: "
            f"{error.filename or folder}: {explain_os_error(error)}",
            hint="set SHIM_STATE to another folder for the shim's state",
        ) from None
    finally:
        if listener is not None:
            listener.close()
        if host_lock is not None:
            os.close(host_lock)
    return SessionRecord(session_id, folder, True, metadata)


def _check_utf8(session_id: str, spec: SessionSpec) -> None:
    """Raise FrontendError if a folder or an argument is not valid UTF-8.

    A session is stored as JSON in UTF-8. Any other encoding would change the name, so that it
    refers to another folder or file.
    """
    for text in (spec.cwd, *spec.arguments):
        if (
            not text.isascii()
            and text.encode("utf-8", "surrogateescape").decode("utf-8", "replace") != text
        ):
            subject = "the argument"
            if text is spec.cwd:
                subject = "its folder"
            raise FrontendError(
                f"cannot start a host process for session {session_id}: {subject} "
                f"{escape_control_chars(text)} is not UTF-8",
                hint="rename the folder or file, or run the prompt in the foreground with `claude -p`",
            )


def _restore_fork_source(spec: SessionSpec, folder: str) -> SessionSpec:
    """Return the spec, with the fork's source added if the session was started as a fork.

    A fork that has no messages yet is created again.
    """
    start_data: Mapping[str, Any] = {}
    if spec.resumes and not (spec.forked or spec.beginning):
        start_data = registry.load_session_start_data(folder)
    forked_id = start_data.get("forked")
    fork_args = start_data.get("beginning")
    if not (isinstance(forked_id, str) and isinstance(fork_args, list)):
        return spec
    if forked_id:
        beginning = tuple(map(str, fork_args))
    else:
        beginning = ()
    return spec._replace(forked=forked_id, beginning=beginning)


def respawn_session(
    session: SessionRecord,
    environment: Mapping[str, str],
    prompt: Mapping[str, Any] | None = None,
    prompt_id: str = "",
) -> SessionRecord:
    """Resume a session in a new host, with the flags of its last host.

    Raise SessionRunningError and FrontendError like `start_host`.
    """
    spec = read_session_spec(session.folder)
    check_flag_files_exist(session, parse_argv(spec.arguments))
    # Only a copy drops its last messages again.
    # In any other session, this would also drop newer messages.
    if spec.forked:
        fork_args = spec.beginning
    else:
        fork_args = ()
    new_spec = spec._replace(prompt=prompt, prompt_id=prompt_id, resumes=True, beginning=fork_args)
    return start_host(new_spec, environment, session.session_id)


def can_read_session_start_data(session: SessionRecord) -> bool:
    """Return whether the session's original flags can still be read."""
    try:
        read_session_spec(session.folder)
    except FrontendError:
        return False
    return True


def read_session_spec(folder: str) -> SessionSpec:
    """Return the specification with which the session was last started. Raise FrontendError if the
    specification cannot be read.

    Without its original flags, the session would run with different permissions.
    """
    start_data = registry.load_session_start_data(folder)
    if not isinstance(start_data.get("arguments"), list) or not isinstance(
        start_data.get("cwd"), str
    ):
        session_id = os.path.basename(folder)
        raise FrontendError(
            f"the start options of session {session_id} are no longer available",
            hint=f"`claude --bg --resume {session_id}` resumes the session with new flags",
        )
    return SessionSpec(**{key: start_data[key] for key in SessionSpec._fields if key in start_data})


def read_start_invocation(session: SessionRecord) -> Invocation:
    """Return the command line of the session's last host, or an empty one if it cannot be read."""
    start_data = registry.load_session_start_data(session.folder)
    return parse_argv([str(arg) for arg in as_list(start_data.get("arguments"))])


def build_resume_invocation(
    session: SessionRecord, folder: str, requested: Invocation, *, is_copy: bool = False
) -> Invocation:
    """Return the flags for resuming or forking a session in `folder`: the original flags combined
    with the new flags.

    Settings files are read if they must be compared or merged. Raise FrontendError like
    `check_flag_files_exist`.
    """
    start_invocation = read_start_invocation(session)
    if not is_copy:
        check_flag_files_exist(session, start_invocation, requested)
    start_invocation = resolve_invocation_paths(
        start_invocation, str(session.metadata["cwd"]), folder
    )
    settings = start_invocation.settings
    if (
        settings
        and (is_copy or requested.settings not in (None, settings))
        and not _is_missing_file(settings, settings)
    ):
        start_invocation = _inline_settings(start_invocation)
        requested = _inline_settings(requested)
    original = start_invocation
    if is_copy:
        original = extract_restricting_flags(start_invocation)
    return merge_resume_flags(original, requested)


def _inline_settings(invocation: Invocation) -> Invocation:
    # Imported late, because most starts read no settings file.
    from shim.state.claude_settings import load_settings_from_flag

    settings = invocation.settings
    if settings:
        return invocation._replace(settings=dump_json(load_settings_from_flag(settings)).decode())
    return invocation


def check_flag_files_exist(
    session: SessionRecord, start_invocation: Invocation, requested: Invocation | None = None
) -> None:
    """Raise FrontendError if a file that an original flag names is missing, because the file may
    contain restrictions.

    A flag in `requested` replaces the original flag, except for MCP servers, which are added.
    """
    for field in FILE_FLAG_FIELDS:
        value = getattr(start_invocation, field)
        if isinstance(value, tuple):
            file_names = value
        elif requested and getattr(requested, field):
            file_names = ()
        else:
            file_names = (value,)
        for file_name in filter(None, file_names):
            path = os.path.join(str(session.metadata["cwd"]), file_name)
            if _is_missing_file(file_name, path):
                raise FrontendError(
                    f"session {session.session_id} was started with "
                    f"{FLAG_BY_FIELD[field].name}, whose file {path} no longer exists",
                    hint="restore the file: a session resumes with its original options",
                )


def _is_missing_file(value: str, path: str) -> bool:
    """Return whether a flag's value is not JSON and the file at its `path` is missing."""
    if is_json(value):
        return False
    return not os.path.exists(path)


def reap_exited_hosts() -> None:
    """Reap host processes that have exited. Called by processes that start many hosts."""
    for pid in list(_started_pids):
        with suppress(OSError):
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                continue
        _started_pids.remove(pid)


def _acquire_lock(folder: str) -> int | None:
    """Acquire the session's lock for a new host. Return None if another host is running.

    If a host has recorded its end but has not exited yet, wait for its exit.
    """
    deadline = time.monotonic() + HOST_EXIT_TIMEOUT_S
    while (
        host_lock := lock.acquire_session_host_lock(folder)
    ) is None and time.monotonic() < deadline:
        metadata = registry.read_metadata(folder)
        if metadata is None or not registry.has_session_ended(metadata):
            break
        time.sleep(lock.POLL_INTERVAL_S)
    return host_lock


def _build_metadata(session_id: str, folder: str, spec: SessionSpec) -> dict[str, Any]:
    """Build the session's metadata for a new host."""
    from shim.core.bridge.status import (
        derive_session_name,  # imported late, because commands that start no host do not need it
    )

    previous = registry.load_or_restore_metadata(folder)
    now_ms = int(time.time() * 1000)
    vendor = spec.vendor or previous.get("vendor", "")
    name = spec.name or get_text(previous, "name")
    if not name and spec.prompt is not None:
        name = derive_session_name(spec.prompt)
    created = previous.get("created") or now_ms
    progress = {"status": "busy", "state": "working", "needs": None}
    if spec.prompt is None:
        progress = {"status": "idle", "state": "blocked", "needs": "send a prompt to start"}
    return {
        "protocol": PROTOCOL_VERSION,
        "id": shorten_session_id(session_id),
        "session": session_id,
        "cwd": spec.cwd,
        "vendor": vendor,
        "name": name or None,
        "created": created,
        "started": now_ms,
        "pid": None,
        "generation": previous.get("generation", 0) + 1,
        "waitingFor": None,
        **progress,
        "detail": "starting…",
        "driver": None,
        "version": __version__,
    }


def _start_process(
    folder: str,
    host_lock: int,
    listener: socket.socket,
    environment: Mapping[str, str],
    metadata: dict[str, Any],
) -> dict[str, Any]:
    """Start the host process, write its pid to the metadata, and return the metadata.

    The host waits for EOF on its stdin before it reads the metadata. The session therefore has a
    pid as soon as it is listed.
    """
    stdin, stdin_writer = os.pipe()
    try:
        metadata = {**metadata, "pid": _spawn_host(folder, host_lock, listener, environment, stdin)}
        with suppress(OSError):  # if the disk is full, the host tries again
            registry.write_metadata(folder, metadata)
    finally:
        os.close(stdin)
        os.close(stdin_writer)
    return metadata


def _spawn_host(
    folder: str, host_lock: int, listener: socket.socket, environment: Mapping[str, str], stdin: int
) -> int:
    """Start the host in its own POSIX session, without this process's terminal, pipes and signals.
    Return the host's pid.

    Signals are blocked until the host handles them, because another process may read the pid and
    stop the host immediately.
    """
    from shim.io.signals import SIGNAL_NAMES

    # Imported late, because commands that start no host do not need it.
    from shim.process.spawn import DEFAULT_SIGNALS, disable_descriptor_inheritance

    disable_descriptor_inheritance()
    stderr_descriptor = _open_stderr_file(os.path.join(folder, registry.STDERR_FILE))
    local_descriptors = (host_lock, listener.fileno())
    # In the host, the descriptors have other numbers. The originals therefore stay non-inheritable,
    # and a process that another thread starts does not inherit them.
    host_descriptors = [
        descriptor
        for descriptor in range(3, 8)
        if descriptor not in (stderr_descriptor, *local_descriptors)
    ][:2]
    argv = [*build_host_command(), folder, *map(str, host_descriptors)]
    try:
        return os.posix_spawn(
            argv[0],
            argv,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, stdin, 0),
                *((os.POSIX_SPAWN_DUP2, stderr_descriptor, descriptor) for descriptor in (1, 2)),
                *(
                    (os.POSIX_SPAWN_DUP2, local_descriptor, descriptor)
                    for local_descriptor, descriptor in zip(
                        local_descriptors, host_descriptors, strict=True
                    )
                ),
            ],
            setsid=True,
            setsigmask=[getattr(signal, signal_name) for signal_name in SIGNAL_NAMES],
            # Also SIGHUP: `nohup` should only affect the command that starts the host.
            setsigdef=DEFAULT_SIGNALS,
        )
    finally:
        os.close(stderr_descriptor)


def build_host_command() -> list[str]:
    """Return the command that starts a host, with the same Python and the same isolation flags as
    this process.
    """
    return [sys.executable, "-I" if sys.flags.isolated else "-P", "-m", "shim.bridge.host"]


def _open_stderr_file(path: str) -> int:
    """Open the file for a host's stderr in append mode. Truncate the file if it is too large."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    if os.fstat(descriptor).st_size > MAX_STDERR_BYTES:
        os.ftruncate(descriptor, 0)
    return descriptor
