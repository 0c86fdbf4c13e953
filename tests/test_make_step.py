"""A step of the Makefile prints one line with its duration, and its output only if it fails."""

import os
import pty
import re
import select
import subprocess
import sys

from fixture_cases import ROOT

STEP = ROOT / ".ci" / "step.py"
TIMEOUT_S = 30.0


def run_step(*command):
    return subprocess.run(
        [sys.executable, str(STEP), "Installing", *command],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_successful_step_prints_its_duration_and_no_output():
    done = run_step("sh", "-c", "echo downloading; echo warning >&2")
    assert done.returncode == 0 and done.stderr == ""
    assert re.fullmatch(r"Installing \.\.\. \d+ s\n", done.stdout)


def test_failed_step_prints_the_output_and_keeps_the_status():
    done = run_step("sh", "-c", "echo first; echo no such package >&2; exit 3")
    assert done.returncode == 3
    assert re.fullmatch(
        r"Installing \.\.\. failed after \d+ s\nfirst\nno such package\n", done.stdout
    )


def test_missing_program_is_reported():
    done = run_step("no-such-program")
    assert (done.returncode, done.stdout) == (
        127,
        "Installing ... failed\nno-such-program: No such file or directory\n",
    )


def test_terminal_shows_the_last_line_of_the_output():
    main_end, step_end = pty.openpty()
    with subprocess.Popen(
        [sys.executable, str(STEP), "Installing", "sh", "-c", "echo rich 15; read line"],
        stdin=step_end,
        stdout=step_end,
    ) as process:
        os.close(step_end)
        output = b""
        while b"rich 15" not in output:
            output += read_terminal(main_end)
        os.write(main_end, b"\n")
        while re.search(rb"Installing \.\.\. \d+ s\r\n$", output) is None:
            output += read_terminal(main_end)
    os.close(main_end)
    assert process.returncode == 0


def read_terminal(descriptor):
    assert select.select([descriptor], [], [], TIMEOUT_S)[0], "no output in time"
    return os.read(descriptor, 4096)
