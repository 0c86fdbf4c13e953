"""Stops session hosts with SIGTERM, and with SIGKILL if they do not exit. Only the lock shows
whether a host is running.
"""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from shim.bridge import registry
from shim.bridge.registry import ACTIVE_STATES, SessionRecord

SIGTERM_TIMEOUT_S = 8.0  # the turn and its child must end, and the last frames are sent
SIGKILL_TIMEOUT_S = 2.0  # until the kernel releases a killed host's lock
POLL_INTERVAL_S = 0.01  # between checks whether a host has exited


def stop_hosts(
    sessions: Sequence[SessionRecord], environment: Mapping[str, str]
) -> list[SessionRecord]:
    """Stop the hosts of several sessions in parallel. Return the sessions that could not be
    stopped.
    """
    running = _signal_hosts(sessions, signal.SIGTERM, SIGTERM_TIMEOUT_S, environment)
    if not running:
        return []
    survivors = _signal_hosts(running, signal.SIGKILL, SIGKILL_TIMEOUT_S, environment)
    surviving_ids = {session.session_id for session in survivors}
    for session in running:
        if session.session_id not in surviving_ids:
            _record_as_stopped(session)
    return survivors


def describe_unanswered_messages(session: SessionRecord, environment: Mapping[str, str]) -> str:
    """Describe the messages that a stopped session had not answered. Return "" if there
    are none.
    """
    stopped = registry.find_session(session.session_id, environment)
    if stopped is not None and session.is_running:
        return registry.describe_unanswered_messages(stopped.metadata)
    return ""


def _signal_hosts(
    sessions: Sequence[SessionRecord],
    signal_number: signal.Signals,
    timeout_s: float,
    environment: Mapping[str, str],
) -> list[SessionRecord]:
    """Send a signal to each host once, and wait until the hosts have exited. Return the hosts that
    are still running.
    """
    deadline = time.monotonic() + timeout_s
    signalled_pids = set[int]()
    running = list(sessions)
    while running:
        records = (registry.find_session(session.session_id, environment) for session in running)
        running = [record for record in records if record is not None and record.is_running]
        for session in running:
            pid = session.metadata.get("pid")  # None if the host has not started yet
            if (
                isinstance(pid, int)
                and pid > 1
                and pid not in signalled_pids
                and _send_signal(session, pid, signal_number, environment)
            ):
                signalled_pids.add(pid)
        if not running or time.monotonic() > deadline:
            break
        time.sleep(POLL_INTERVAL_S)
    return running


def _send_signal(
    session: SessionRecord, pid: int, signal_number: signal.Signals, environment: Mapping[str, str]
) -> bool:
    """Send a signal to the host. Return whether it was sent. Another process that has reused the
    host's pid is never signaled.
    """
    if not hasattr(os, "pidfd_open"):
        with suppress(OSError):
            os.kill(pid, signal_number)
        return True
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        # The host is still running and has this pid. The pidfd, which was opened earlier, therefore
        # refers to the host and not to a process that reused the pid.
        record = registry.find_session(session.session_id, environment)
        if record is None or not record.is_running or record.metadata.get("pid") != pid:
            return False
        with suppress(OSError):
            signal.pidfd_send_signal(pidfd, signal_number)
        return True
    finally:
        os.close(pidfd)


def _record_as_stopped(session: SessionRecord) -> None:
    """Mark a session as stopped after its host was killed. Sessions that had finished keep their
    state.
    """
    metadata = registry.read_metadata(session.folder)
    if metadata is not None and session.metadata["state"] in ACTIVE_STATES:
        with suppress(OSError):
            registry.write_metadata(
                session.folder, {**metadata, "state": "stopped", "detail": "stopped"}
            )
