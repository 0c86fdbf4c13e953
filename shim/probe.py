"""What an installed program can do, by its `--help`: asked once, remembered in the state directory.

One probe of 2 s at most; a failure counts as the newest that is known. The answer is keyed by the program's real
path, time and size, so that an update is noticed.
"""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence

from shim.config import state_directory
from shim.state import read_file, write_file

PROBE_SECONDS = 2.0
KILL_SECONDS = 0.5  # for one that was killed; a kernel that is stuck may keep it
HELP_BYTES = 64 * 1024  # of a `--help`; the longest seen has 14 KB


class Probe:
    """The `--help` of one program, read when first asked for."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], child_environment: Mapping[str, str]):
        self._command = list(command)
        self._environment = environment
        self._child_environment = dict(child_environment)
        self._text: str | None = None

    def knows(self, flag: str) -> bool:
        """Whether the help names `flag`; no help at all: the newest version, which does."""
        text = self.text()
        return not text.strip() or flag in text

    def variant(self, pick: Callable[[str], str]) -> str:
        """The dialect that `pick` reads out of the help."""
        return pick(self.text())

    def text(self) -> str:
        """The help text, "" when there is none."""
        if self._text is None:
            self._text = self._remembered()
        return self._text

    def _remembered(self) -> str:
        from hashlib import sha256

        program = self._command[-1]
        try:
            status = os.stat(program)
        except OSError:
            return ""
        key = f"{os.path.realpath(program)}\0{status.st_mtime_ns}\0{status.st_size}\0{self._command[:-1]}"
        name = sha256(key.encode()).hexdigest()[:32] + ".txt"
        directory = os.path.join(state_directory(self._environment), "probes")
        known = read_file(directory, name, HELP_BYTES)
        if known is not None:
            return known.decode("utf-8", "replace")
        text = self._ask()
        if text:
            write_file(directory, name, text)
        return text.decode("utf-8", "replace")

    def _ask(self) -> bytes:
        try:
            process = subprocess.Popen(
                [*self._command, "--help"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self._child_environment,
                start_new_session=True,
            )
        except OSError:
            return b""
        try:
            text, _ = process.communicate(timeout=PROBE_SECONDS)
        except subprocess.TimeoutExpired:
            text = b""
        finally:
            _end(process)
        return text[:HELP_BYTES]


def _end(process: "subprocess.Popen[bytes]") -> None:
    import signal

    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        pass
    try:
        process.wait(KILL_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    if process.stdout:
        process.stdout.close()
