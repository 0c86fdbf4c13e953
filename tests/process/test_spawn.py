"""The start of a child: what it inherits from the shim, and what it does not. Real processes are
started in each of the two ways.
"""

import json
import os
import signal
import sys

import anyio
import pytest

from shim.core.errors import FrontendError
from shim.process import spawn as starting
from shim.process.child import Child
from shim.process.spawn import ChildSpawnResult, kill_child, spawn_child

SELF_PORTRAIT = """
import json, os, signal
def is_open(number):
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
print(json.dumps({
    "session": os.getsid(0) == os.getpgrp() == os.getpid(),
    "cwd": os.getcwd(),
    "files": [number for number in range(256) if is_open(number)],
    "hears": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "stdin": os.read(0, 100).decode(),
    "variable": os.environ.get("OF_THE_CHILD"),
    "ignored": [int(number) for number in range(1, 32) if signal.getsignal(number) is signal.SIG_IGN],
    "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
}))
"""


def without_sessions(*_, **__):
    raise NotImplementedError("posix_spawn: setsid unavailable on this platform")


@pytest.fixture(params=["must be owned by you", "another folder", "an old library"])
def folder(request, box, monkeypatch):
    """Return the folder in which the child is started. The parameters select the two ways of
    starting.
    """
    if request.param != "another folder":
        monkeypatch.chdir(box.cwd)
    if request.param == "an old library":
        monkeypatch.setattr(os, "posix_spawn", without_sessions)
    else:
        monkeypatch.setattr(
            starting,
            "_start_by_subprocess"
            if request.param == "must be owned by you"
            else "_start_by_posix_spawn",
            None,
        )
    return str(box.cwd)


def portrait(folder, *, feed=False):
    """Return a child's description of itself. With `feed`, its stdin has text."""
    command = [sys.executable, "-I", "-S", "-c", SELF_PORTRAIT]
    process = spawn_child(command, {"OF_THE_CHILD": "yes"}, folder, opens_stdin=feed)
    if feed:
        process.stdin.write(b"go on")
        process.stdin.close()
    stdout = process.stdout.read()
    assert process.wait() == 0, process.stderr.read()
    kill_child(process)
    return json.loads(stdout)


def test_child_has_a_separate_session_and_the_passed_environment(folder):
    report = portrait(folder)
    assert report["session"] and report["variable"] == "yes"
    assert os.path.samefile(report["cwd"], folder)


def test_child_inherits_only_the_standard_file_descriptors(folder):
    left_open = os.open(os.devnull, os.O_RDONLY)
    try:
        os.set_inheritable(left_open, True)
        assert portrait(folder)["files"] == [0, 1, 2]
    finally:
        os.close(left_open)


@pytest.mark.parametrize("feed", [True, False])
def test_stdin_of_the_child_contains_the_fed_bytes_or_is_empty(folder, feed):
    assert portrait(folder, feed=feed)["stdin"] == ("go on" if feed else "")


def test_child_handles_sigint_although_the_parent_ignores_sigint(folder):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert portrait(folder)["hears"]
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_child_inherits_no_ignored_or_blocked_signals(folder):
    numbers = (signal.SIGUSR1, signal.SIGHUP, signal.SIGTERM, signal.SIGTTOU)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    mask = signal.pthread_sigmask(
        signal.SIG_BLOCK, {signal.SIGUSR2, signal.SIGTERM, signal.SIGALRM}
    )
    try:
        child = portrait(folder)
        assert [signal.getsignal(number) for number in numbers] == [signal.SIG_IGN] * len(numbers)
        assert signal.SIGUSR2 in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler)
    python_ignores = [signal.SIGPIPE, signal.SIGXFSZ]
    assert (child["ignored"], child["blocked"]) == (python_ignores, [])


def test_child_reaped_elsewhere_is_treated_as_a_clean_exit(box):
    """The exit code is lost, so the result depends only on the output."""

    async def end():
        child = Child(
            ChildSpawnResult(spawn_child(["/bin/true"], {}, os.getcwd(), opens_stdin=False), b"")
        )
        os.waitpid(child._process.pid, 0)
        try:
            return await child.wait_for_exit()
        finally:
            child.close()

    assert anyio.run(end).code == 0


def test_failed_spawn_leaves_no_open_descriptors(folder):
    def descriptors():
        return set(os.listdir("/dev/fd"))

    before = descriptors()
    with pytest.raises(FrontendError, match="NUL"):
        spawn_child(["/bin/true", "nul\0"], {}, folder, opens_stdin=True)
    assert descriptors() == before


def test_exit_status_of_the_child_matches_the_popen_convention(folder):
    for script, code in (("exit 3", 3), ("kill -KILL $$", -signal.SIGKILL)):
        process = spawn_child(["/bin/sh", "-c", script], {}, folder, opens_stdin=False)
        assert process.wait() == process.poll() == process.returncode == code
        kill_child(process)
