"""Stopping hosts: only hosts receive a signal, even if their process ids are reused."""

import os
import signal
import subprocess
import sys

import pytest

from shim.bridge import stop


@pytest.fixture
def bystander():
    """Yield a process that is unrelated to any session."""
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    ) as process:
        yield process
        assert process.poll() is None, "it was ended"


def test_stop_does_not_signal_a_process_that_reused_the_pid_of_a_host(
    hosts, bystander, monkeypatch
):
    """The host dies after the check, and another process gets its id before the pidfd is open."""
    session = hosts.start_session()
    session = hosts.wait_until(session, lambda now: now.metadata["pid"])
    opened = os.pidfd_open

    def late(pid):
        os.kill(pid, signal.SIGKILL)
        hosts.wait_for_end(session)
        return opened(bystander.pid)

    monkeypatch.setattr(os, "pidfd_open", late)
    assert stop.stop_hosts([session], hosts.environment) == []


def test_stop_ends_a_host_without_pidfd_support(hosts, monkeypatch):
    session = hosts.start_session()
    hosts.wait_until(session, lambda now: now.metadata["pid"])
    monkeypatch.delattr(os, "pidfd_open")
    assert stop.stop_hosts([session], hosts.environment) == []
    assert not hosts.load_session(session).is_running
