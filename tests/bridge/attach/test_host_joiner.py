"""A frontend that is let in to its session, or waits for a host that ends."""

import signal

import pytest

from shim.bridge.attach import host_joiner
from shim.bridge.client import HostUnavailableError
from shim.bridge.registry import SessionRecord
from shim.core.claude.argv.flags import parse_argv
from shim.io.signals import SignalRecorder, StartInterruptedError
from shim.state.config import ShimSettings


def test_signal_aborts_the_join_while_waiting_for_a_host_to_exit(monkeypatch):
    async def raise_host_error(session, environment, **hello):
        raise HostUnavailableError(session)

    signals = SignalRecorder()
    signals.pending_signals.append(signal.SIGTERM)
    monkeypatch.setattr(host_joiner, "connect_to_session", raise_host_error)
    monkeypatch.setattr(
        host_joiner.registry, "is_session_running", lambda session, environment: True
    )
    monkeypatch.setattr(host_joiner, "HOST_EXIT_TIMEOUT_S", 0.5)
    record = SessionRecord("0123abcd-0000-4000-8000-000000000001", "/gone", True, {"pid": 1})
    with pytest.raises(StartInterruptedError):
        host_joiner.SessionHostJoiner(
            record, parse_argv([]), ShimSettings(), owns_host=False
        ).join_and_run_conversation(signals, None, None)
