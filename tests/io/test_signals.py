"""Signals before there is a child: they end the start, but never in the middle of an import."""

import os
import signal

import pytest

from shim.io import early_signals
from shim.io.signals import SignalRecorder, StartStoppedError


@pytest.fixture
def signals():
    """Listening; afterwards every signal is handled as before."""
    before = {name: signal.getsignal(getattr(signal, name)) for name in early_signals.SIGNAL_NAMES}
    made = SignalRecorder()
    try:
        made.start_listening()
        yield made
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)


def test_a_signal_before_there_is_a_child_ends_the_start_at_once(signals):
    with pytest.raises(StartStoppedError, match="stopped by SIGTERM before the turn began"):
        os.kill(os.getpid(), signal.SIGTERM)
    assert signals.pending_signals == [signal.SIGTERM]


def test_a_signal_in_the_middle_of_an_import_ends_the_start_behind_it(
    signals, tmp_path, monkeypatch
):
    module = "import os, signal\nos.kill(os.getpid(), signal.SIGHUP)\nWHOLE = True\n"
    (tmp_path / "interrupted_import.py").write_text(module, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    import interrupted_import

    assert interrupted_import.WHOLE and signals.pending_signals == [signal.SIGHUP]
    with pytest.raises(StartStoppedError, match="SIGHUP"):
        signals.raise_if_stopped()
    signals.raise_if_stopped()  # told once is enough


def test_a_signal_behind_the_start_of_the_child_waits_for_the_loop(signals):
    signals.is_started = True
    os.kill(os.getpid(), signal.SIGINT)
    signals.raise_if_stopped()
    assert signals.pending_signals == [signal.SIGINT] and signals.is_terminating()


def test_a_signal_that_came_before_we_listened_ends_the_start_too(signals, monkeypatch):
    monkeypatch.setattr(early_signals, "received_signals", [signal.SIGTERM])
    with pytest.raises(StartStoppedError, match="SIGTERM"):
        signals.start_listening()
