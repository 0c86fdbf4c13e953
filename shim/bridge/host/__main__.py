"""Runs the host process of one background session: the drop-in's conversation loop, with a hub in
place of stdin and stdout.

The host is started by `shim/bridge/launch.py` as `python -m shim.bridge.host FOLDER LOCK SOCKET`.
LOCK and SOCKET are inherited file descriptors. The environment is inherited, too.
"""

import os
import select
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress

from shim.bridge import registry, sockets
from shim.bridge.host.runtime import REASON_STOPPED, SessionHostMetadata, SessionHostRuntime
from shim.bridge.launch import SessionSpec, read_session_spec
from shim.bridge.log import RecordedSessionLog
from shim.conversation.startup import prepare_conversation
from shim.core.bridge.frames import encode_frame
from shim.core.claude.argv.flags import Invocation, parse_argv
from shim.core.claude.argv.paths import is_json
from shim.core.claude.grammar import is_init_line
from shim.core.claude.messages import parse_json_line
from shim.core.errors import ShimError, StartInterruptedError
from shim.core.reading.values import as_dict
from shim.io.signals import SignalRecorder, start_collecting_signals
from shim.io.stderr import warn
from shim.state import store

SIGNAL_STATUSES = (143, 129)  # exit statuses of a conversation that a signal ended
# How many lines at the start of a log are searched.
# The first turn starts within these lines, after the replayed user messages.
MAX_HEAD_LINES = 1000
STARTER_TIMEOUT_S = 5.0  # the process that starts the host only writes one small file
# The maximum number of clients that receive the reason of a failed start.
MAX_PENDING_CONNECTIONS = 1000


def main(args: list[str]) -> int:
    """Run the host until its session ends. Return the exit status.

    `args` are FOLDER, LOCK and SOCKET. The last two are file descriptors.
    """
    folder = args[0]
    lock_descriptor = int(args[1])
    listener = socket.socket(fileno=int(args[2]))
    for descriptor in (lock_descriptor, listener.fileno()):
        os.set_inheritable(descriptor, False)
    start_collecting_signals()
    _wait_for_starter()
    metadata = SessionHostMetadata(folder)
    signals = SignalRecorder()
    socket_file_id = sockets.find_socket_file_id(folder)
    status = 1
    recorder = None
    try:
        signals.start_recording_signals()
        spec = read_session_spec(folder)
        os.chdir(spec.cwd)
        startup = prepare_conversation(
            _build_invocation(folder, metadata, spec), spec.installed, spec.arguments
        )
        recorder = startup.recorder
        runtime = SessionHostRuntime(folder, metadata, startup, spec, listener)
        signals.raise_if_stopped()
        status = startup.run(signals, runtime)
        state = REASON_STOPPED
        if status and status not in SIGNAL_STATUSES:
            state = "failed"
        metadata.record_end(state, runtime.runner.failure_reason)
    except StartInterruptedError:
        metadata.record_end(REASON_STOPPED)
    except Exception as error:
        signals.is_started = True
        hint = ""
        if isinstance(error, ShimError) and error.hint:
            hint = f" ({error.hint})"
        if isinstance(error, ShimError | OSError):
            reason = f"{error}{hint}"
        else:
            reason = f"internal error: {error!r}"
        warn(f"{reason}\n")
        # The end is recorded before clients are rejected.
        # A client that restarts the session immediately must find it ended.
        metadata.record_end("failed", reason)
        _reject_waiting_clients(listener, reason)
    finally:
        if sockets.find_socket_file_id(folder) == socket_file_id:
            sockets.remove_host_socket(folder)
        listener.close()
        if recorder is not None:
            signals.restart_recording_signals()
            recorder.close(lambda: True)
    return status


def _wait_for_starter() -> None:
    """Wait until the process that started this host has written the host's pid to `host.json` and
    closed the host's stdin.
    """
    if select.select([0], [], [], STARTER_TIMEOUT_S)[0]:
        os.read(0, 1)
    null_descriptor = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null_descriptor, 0)
    os.close(null_descriptor)


def _build_invocation(folder: str, metadata: SessionHostMetadata, spec: SessionSpec) -> Invocation:
    """Return the host's command line: the session, with stream-json in both directions and all
    events that a client may request.
    """
    # The hub derives the session's status from these events.
    os.environ["CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS"] = "1"
    session_id = os.path.basename(folder)
    resumed_id: str | None = None
    new_id: str | None = session_id
    fork_args: Sequence[str] = ()
    if spec.resumes and _has_vendor_session(folder, session_id, metadata):
        resumed_id = session_id
        new_id = None
        # A fork is created only once. Later hosts resume the fork itself.
        if not spec.forked:
            fork_args = spec.beginning
    elif spec.forked:
        resumed_id = spec.forked
        fork_args = spec.beginning
    if fork_args:  # the parser rejects these flags without `--resume`
        fork_args = ("--resume", str(resumed_id), *fork_args)
    invocation = parse_argv([*spec.arguments, *fork_args], dialect="claude")
    prompt_tool = "stdio" if spec.asks else invocation.permission_prompt_tool
    settings = invocation.settings
    # Settings are passed in a file, because other users can see a child's arguments, and the
    # length of arguments is limited.
    if settings and is_json(settings):
        settings = registry.write_settings_flag_file(folder, settings)
    return invocation._replace(
        prompt=None,
        print_mode=False,  # the SDKs do not pass --print in a conversation
        input_format="stream-json",
        output_format="stream-json",
        verbose=True,
        partial=True,
        replay_user_messages=True,
        continue_last=False,
        settings=settings,
        shim_dialect="claude",
        shim_terminator="none",
        resume=resumed_id,
        session_id=new_id,
        fork_session=bool(resumed_id and new_id),
        permission_prompt_tool=prompt_tool,
    )


def _has_vendor_session(folder: str, session_id: str, metadata: SessionHostMetadata) -> bool:
    """Return whether the vendor has stored the session. A vendor stores no session before its first
    turn.
    """
    if metadata.values["generation"] == 1 or store.find_session(session_id, os.environ) is not None:
        return True
    if metadata.values["vendor"] != "claude":
        return False
    log = RecordedSessionLog(
        os.path.join(folder, registry.LOG_FOLDER), metadata.values["generation"]
    )
    if log.first_line_number > 1:
        return True
    return any(_is_vendor_init(entry.line) for entry in log.read(0, MAX_HEAD_LINES))


def _is_vendor_init(line: bytes) -> bool:
    """Return whether a line is an `init` line from the real claude. The real claude has stored its
    session by the time it prints this line.

    The shim's own `init` lines contain the key `shim`.
    """
    message = as_dict(parse_json_line(line))
    if not is_init_line(message):
        return False
    return "shim" not in message


def _reject_waiting_clients(listener: socket.socket, reason: str) -> None:
    """Tell all clients that wait at the socket why the session could not be started."""
    listener.setblocking(False)
    with suppress(OSError):
        for _ in range(MAX_PENDING_CONNECTIONS):
            client_socket, _ = listener.accept()
            with client_socket, suppress(OSError):
                client_socket.setblocking(False)
                client_socket.send(encode_frame("bye", reason=reason))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
