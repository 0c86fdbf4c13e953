"""Ends hosts: they are asked by a signal and, if they do not end, killed. Only the lock says
whether one lives.
"""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from shim.bridge import registry
from shim.bridge.registry import ACTIVE_STATES, SessionRecord

SIGTERM_TIMEOUT_S = 8.0  # for the turn to be interrupted, its child ended and the last words said
SIGKILL_TIMEOUT_S = 2.0  # for the lock of a killed process to be free
POLL_INTERVAL_S = 0.01  # between two looks


def stop_hosts(
    wanted: Sequence[SessionRecord], environment: Mapping[str, str]
) -> list[SessionRecord]:
    """End the hosts of these sessions, all at once. Returns those that could not be ended."""
    left = _signal_hosts(wanted, signal.SIGTERM, SIGTERM_TIMEOUT_S, environment)
    if not left:
        return []
    stubborn = _signal_hosts(left, signal.SIGKILL, SIGKILL_TIMEOUT_S, environment)
    living = {one.session_id for one in stubborn}
    for one in left:
        if one.session_id not in living:
            _record_as_stopped(one)
    return stubborn


def describe_unanswered_messages(one: SessionRecord, environment: Mapping[str, str]) -> str:
    """What is said of the messages that a session which was ended had not taken; "" where there
    were none.
    """
    now = registry.find_session(one.session_id, environment)
    return (
        registry.describe_unanswered_messages(now.metadata)
        if now is not None and one.is_running
        else ""
    )


def _signal_hosts(
    wanted: Sequence[SessionRecord],
    number: signal.Signals,
    seconds: float,
    environment: Mapping[str, str],
) -> list[SessionRecord]:
    """Send each host a signal once and wait until it is dead. Returns those that live, as they are
    now.
    """
    deadline, told = time.monotonic() + seconds, set[int]()
    left = list(wanted)
    while left:
        looked = (registry.find_session(one.session_id, environment) for one in left)
        left = [one for one in looked if one is not None and one.is_running]
        for one in left:
            pid = one.metadata.get("pid")  # a host that is not up yet has said none
            if (
                isinstance(pid, int)
                and pid > 1
                and pid not in told
                and _send_signal(one, pid, number, environment)
            ):
                told.add(pid)
        if not left or time.monotonic() > deadline:
            break
        time.sleep(POLL_INTERVAL_S)
    return left


def _send_signal(
    one: SessionRecord, pid: int, number: signal.Signals, environment: Mapping[str, str]
) -> bool:
    """Send the host a signal; never to another process that has got its number meanwhile."""
    if not hasattr(os, "pidfd_open"):
        with suppress(OSError):
            os.kill(pid, number)
        return True
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        # The process that we hold now had this number while the host still lived: it is the host.
        again = registry.find_session(one.session_id, environment)
        if again is None or not again.is_running or again.metadata.get("pid") != pid:
            return False
        with suppress(OSError):
            signal.pidfd_send_signal(process, number)
        return True
    finally:
        os.close(process)


def _record_as_stopped(one: SessionRecord) -> None:
    """A killed host could not say how it ended: it was stopped, unless its work was over before."""
    facts = registry.read_metadata(one.folder)
    if facts is not None and one.metadata["state"] in ACTIVE_STATES:
        with suppress(OSError):
            registry.write_metadata(one.folder, {**facts, "state": "stopped", "detail": "stopped"})
