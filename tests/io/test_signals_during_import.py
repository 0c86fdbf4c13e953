"""Signals that arrive while the modules of the shim are imported."""

import signal
import subprocess
import sys

import pytest
from box import ASK, TIMEOUT_S, Done
from yume_stream import check_flat

# The signal is sent as soon as signals are collected. dropin, argv and all other modules are
# imported later.
EARLY = """
import os, sys
from shim.io import signals
from shim.__main__ import main
start_collecting_signals = signals.start_collecting_signals
def start_and_send():
    start_collecting_signals()
    os.kill(os.getpid(), NUMBER)
signals.start_collecting_signals = start_and_send
main()
"""


def run_with_signal(box, number, *args, before=None, program="claude"):
    code = EARLY.replace("NUMBER", str(int(number)))
    process = subprocess.run(
        [sys.executable, "-P", "-c", code, program, *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=box.build_environment(
            SHIM_VENDOR="demo", SHIM_BIN=box.create_fake(["record", str(box.recording)], ["hang"])
        ),
        cwd=box.cwd,
        preexec_fn=before,
        timeout=TIMEOUT_S,
        check=False,
    )
    return Done(process.returncode, process.stdout, process.stderr.decode())


@pytest.mark.parametrize(
    ("number", "status", "cause"),
    [
        (signal.SIGINT, 0, "interrupted"),
        (signal.SIGTERM, 143, "signal"),
        (signal.SIGHUP, 129, "signal"),
    ],
)
def test_signal_during_import_ends_with_a_result(box, number, status, cause):
    done = run_with_signal(box, number, *ASK)
    assert (done.status, done.cause, done.stderr) == (status, cause, "")
    assert not box.recording.exists(), "nothing was started any more"


def test_yume_cli_ends_with_a_result_after_sigterm_during_import(box):
    done = run_with_signal(box, signal.SIGTERM, "start", "--prompt", "x", program="yume-cli")
    (turn,) = check_flat(done.stdout)
    assert (done.status, turn[-2]["shim"]["cause"], done.stderr) == (143, "signal", "")
    assert not box.recording.exists()
    assert (
        run_with_signal(box, signal.SIGTERM, "--version", program="yume-cli").status
        == -signal.SIGTERM
    )


@pytest.mark.parametrize("args", [("-p", "--help"), ("-p", "--version")])
def test_help_and_version_are_terminated_by_an_early_signal(box, args):
    done = run_with_signal(box, signal.SIGTERM, *args)
    assert (done.status, done.stdout, done.stderr) == (-signal.SIGTERM, b"", "")


def test_inherited_ignored_signal_stays_ignored(box):
    def nohup():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    assert run_with_signal(box, signal.SIGHUP, "-p", "--version", before=nohup).status == 0
