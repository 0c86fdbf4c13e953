"""The host of one session: the conversation loop of the drop-in, with a hub in the place of stdin
and stdout.

A process of its own: `python -m shim.bridge.host FOLDER LOCK SOCKET`, which `start.py` begins. The
last two are descriptors that it inherits, and so is its environment.
"""

import os
import select
import socket
import sys
from contextlib import suppress

from shim.bridge import registry, sockets
from shim.bridge.host.runtime import REASON_STOPPED, SessionHostMetadata, SessionHostRuntime
from shim.bridge.launch import SessionSpec, read_session_spec
from shim.bridge.log import RecordedSessionLog
from shim.conversation.startup import prepare_conversation
from shim.core.bridge.frames import encode_frame
from shim.core.claude.argv.flags import parse_argv
from shim.core.claude.argv.invocation import Invocation
from shim.core.claude.argv.paths import is_json
from shim.core.claude.grammar import is_init_line
from shim.core.claude.messages import parse_json_line
from shim.core.errors import ShimError
from shim.core.reading.values import as_dict
from shim.io import early_signals
from shim.io.signals import SignalRecorder, StartInterruptedError
from shim.io.stderr import warn
from shim.state import store

SIGNAL_STATUSES = (143, 129)  # statuses of a conversation that a signal ended
# of a log, among which the first turn begins: before it only messages are said again
MAX_HEAD_LINES = 1000
STARTER_TIMEOUT_S = 5.0  # the process that starts the host only has to write one small file
MAX_PENDING_CONNECTIONS = 1000  # connections that are told why a host could not begin


def main(args: list[str]) -> int:
    """Run one life: `FOLDER LOCK SOCKET`, the last two are descriptors. The exit status."""
    folder, lock_descriptor, listener = (
        args[0],
        int(args[1]),
        socket.socket(fileno=int(args[2])),
    )
    for descriptor in (lock_descriptor, listener.fileno()):
        os.set_inheritable(descriptor, False)
    early_signals.start_collecting_signals()
    _wait_for_starter()
    metadata, signals, socket_file_id = (
        SessionHostMetadata(folder),
        SignalRecorder(),
        sockets.find_socket_file_id(folder),
    )
    status, recorder = 1, None
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
        metadata.record_end(
            "failed" if status and status not in SIGNAL_STATUSES else REASON_STOPPED,
            runtime.runner.failure_reason or None,
        )
    except StartInterruptedError:
        metadata.record_end(REASON_STOPPED)
    except Exception as error:
        signals.is_started = True
        hint = f" ({error.hint})" if isinstance(error, ShimError) and error.hint else ""
        reason = (
            f"{error}{hint}"
            if isinstance(error, ShimError | OSError)
            else f"the shim failed: {error!r}"
        )
        warn(f"{reason}\n")
        # before anybody is told: who then begins it again finds that it has ended
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
    """Wait until the process that starts this host has written its pid to the facts, and has closed
    its stdin.
    """
    if select.select([0], [], [], STARTER_TIMEOUT_S)[0]:
        os.read(0, 1)
    null_descriptor = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null_descriptor, 0)
    os.close(null_descriptor)


def _build_invocation(folder: str, metadata: SessionHostMetadata, spec: SessionSpec) -> Invocation:
    """The command line of this life: stream-json both ways, all that a client may want, and the
    session.
    """
    os.environ["CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS"] = "1"  # the hub tells by them what waits
    session_id = os.path.basename(folder)
    resumed_id: str | None = None
    new_id: str | None = session_id
    if spec.resumes and _has_vendor_session(folder, session_id, metadata):
        resumed_id, new_id = session_id, None
    elif spec.forked:
        resumed_id = spec.forked
    # a copy that goes on is not copied again
    is_first_run = resumed_id == (spec.forked or session_id)
    fork_args = spec.beginning if is_first_run else ()
    if fork_args:  # these flags are refused without `--resume`
        fork_args = ("--resume", str(resumed_id), *fork_args)
    invocation = parse_argv([*spec.arguments, *fork_args], dialect="claude")
    prompt_tool = "stdio" if spec.asks else invocation.permission_prompt_tool
    settings = invocation.settings
    if settings and is_json(settings):  # other users see a child's words, and those have a limit
        settings = registry.write_settings_flag_file(folder, settings)
    return invocation._replace(
        prompt=None,
        print_mode=False,  # as the SDKs hold a conversation
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
    """Whether the vendor has the session: a life that ended before its first turn began left none."""
    if metadata.values["generation"] == 1 or store.find_session(session_id, os.environ) is not None:
        return True
    if metadata.values["vendor"] != "claude":
        return False
    log = RecordedSessionLog(
        os.path.join(folder, registry.LOG_FOLDER), metadata.values["generation"]
    )
    return log.first_line_number > 1 or any(
        _is_vendor_init(entry.line) for entry in log.read(0, MAX_HEAD_LINES)
    )


def _is_vendor_init(line: bytes) -> bool:
    """Whether a line is a real claude's own init of a turn, with which it keeps its session; those
    of ours name us.
    """
    message = as_dict(parse_json_line(line))
    return is_init_line(message) and "shim" not in message


def _reject_waiting_clients(listener: socket.socket, reason: str) -> None:
    """Tell those who wait at the socket why there is no session."""
    listener.setblocking(False)
    with suppress(OSError):
        for _ in range(MAX_PENDING_CONNECTIONS):
            client_socket, _ = listener.accept()
            with client_socket, suppress(OSError):
                client_socket.setblocking(False)
                client_socket.send(encode_frame("bye", reason=reason))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
