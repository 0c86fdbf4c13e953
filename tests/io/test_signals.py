"""Signals before a child is started: they end the startup, but never during an import."""

import os
import signal

import pytest

from shim.core.errors import StartInterruptedError
from shim.io import signals as signal_handling
from shim.io.signals import SignalRecorder


@pytest.fixture
def signals():
    """Record signals. After the test, the previous handlers are restored."""
    before = {
        name: signal.getsignal(getattr(signal, name)) for name in signal_handling.SIGNAL_NAMES
    }
    made = SignalRecorder()
    try:
        made.start_recording_signals()
        yield made
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)


def test_signal_before_the_child_starts_ends_startup_immediately(signals):
    with pytest.raises(StartInterruptedError, match="stopped by SIGTERM before the turn started"):
        os.kill(os.getpid(), signal.SIGTERM)
    assert signals.pending_signals == [signal.SIGTERM]


def test_signal_during_an_import_ends_startup_after_the_import(signals, tmp_path, monkeypatch):
    module = "import os, signal\nos.kill(os.getpid(), signal.SIGHUP)\nWHOLE = True\n"
    (tmp_path / "interrupted_import.py").write_text(module, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    import interrupted_import

    assert interrupted_import.WHOLE and signals.pending_signals == [signal.SIGHUP]
    with pytest.raises(StartInterruptedError, match="SIGHUP"):
        signals.raise_if_stopped()
    signals.raise_if_stopped()  # the second call does not raise again


def test_signal_after_the_child_starts_stays_pending(signals):
    signals.is_started = True
    os.kill(os.getpid(), signal.SIGINT)
    signals.raise_if_stopped()
    assert signals.pending_signals == [signal.SIGINT] and signals.is_terminating()


def test_signal_received_before_listening_ends_startup(signals, monkeypatch):
    monkeypatch.setattr(signal_handling, "received_signals", [signal.SIGTERM])
    with pytest.raises(StartInterruptedError, match="SIGTERM"):
        signals.start_recording_signals()
