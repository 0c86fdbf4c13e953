"""Run a recording through today's drop-in: with the same arguments, the same lines, and the
recorded child.

Nothing of the person who runs this takes part but the vendors that they described: home, state and
settings are a folder of its own.
"""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import IO, NamedTuple

import orjson

from shim.core.cast.difference import Difference, OutputNormalizer, compare_lines, split_output
from shim.core.cast.records import CastError, CastHeader
from shim.core.cast.words import parse_protocol_line
from shim.core.dialects import resolve_dialect
from shim.core.errors import NOTE_PASSED_OVER
from shim.io.early_signals import SIGNAL_NAMES
from shim.recording.playable_run import get_program, parse_invocation
from shim.recording.wanted import open_cast
from shim.state import own_vendors
from shim.state.config import CHOICES
from shim.story.reading import Recording

LINE_TIMEOUT_S = 20.0  # for an expected line; without a vendor nothing takes so long
QUIET_TIMEOUT_S = 2.0  # of silence, after which stdin is closed
EXIT_TIMEOUT_S = 10.0  # for the drop-in to exit
MAX_QUEUED_LINES = 10_000  # of its stdout that wait to be compared
MAX_RECORDING_BYTES = 1024 * 1024 * 1024  # of a cast: no recording is larger
SHIM_FLAGS = ("--shim-vendor", "--shim-record", "--shim-config", "--shim-log")
FILE_FLAGS = ("--settings", "--system-prompt-file", "--append-system-prompt-file")
# Who was told the session's state had asked for it, and said in which of two ways (contract 5.13).
STATE_MARKER, HOST_ONLY_MARKER = b'"subtype":"session_state_changed"', b'"sdk_host_only":true'
STATE_VARIABLES = {
    False: "CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS",
    True: "CLAUDE_CODE_SDK_READS_SESSION_STATE",
}
ReplayEvent = tuple[str, bytes]
# Notes that explain why today's output goes on after the recording ends, or differs from it.
CUT_OFF_REASON = "the recording was cut off there"
SILENCE_REASON = "the vendor said nothing for too long in it, and no check waits so long"
STOP_REASONS = {"limit": "no more was recorded", "timeout": SILENCE_REASON}


class CheckResult(NamedTuple):
    """The outcome of one cast, `ok`, `differs`, `skipped` or `failed`, and the reason."""

    path: str
    outcome: str
    line_count: int = 0
    difference: Difference | None = None
    reason: str = ""


def check_recording(path: str) -> CheckResult:
    """Run one recording again and compare, up to the first difference."""
    try:
        header, moments, children, stop = _load_events(path)
    except CastError as error:
        return CheckResult(path, "failed", reason=str(error))
    if not children:
        return CheckResult(path, "skipped", reason="no child answered in it")
    if stop == SILENCE_REASON:
        return CheckResult(path, "skipped", reason=SILENCE_REASON)
    if not any(letter == "O" for letter, _ in moments):
        return CheckResult(path, "skipped", reason="nothing was said in it")
    with tempfile.TemporaryDirectory(prefix="shim-check-") as folder:
        folder = os.path.realpath(folder)
        for name in ("home", "work"):
            os.mkdir(os.path.join(folder, name))
        _link_user_profiles(os.path.join(folder, "home", ".config", "shim"))
        running = _DropInProcess(
            _build_command(header),
            _build_environment(header, moments, os.path.abspath(path), folder),
            folder + "/work",
        )
        try:
            return _replay_and_compare(path, header, moments, running, folder + "/work", stop)
        finally:
            running.stop()


def _link_user_profiles(directory: str) -> None:
    """Let the run see the user's own profiles, as they are today."""
    own = own_vendors.get_profile_folder(os.environ)
    if os.path.isdir(own):
        os.makedirs(directory)
        with contextlib.suppress(OSError):  # without links only bundled vendors are checked
            os.symlink(own, os.path.join(directory, own_vendors.FOLDER_NAME))


def _load_events(path: str) -> tuple[CastHeader, list[ReplayEvent], int, str]:
    """The lines of both sides in order, the number of children, and the reason if the run ended too
    soon.
    """
    descriptor = open_cast(path)
    try:
        size = os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
    if size > MAX_RECORDING_BYTES:
        raise CastError(
            f"the cast is larger than {MAX_RECORDING_BYTES} bytes, which is more than is ever recorded"
        )
    cast = Recording(path)
    moments: list[ReplayEvent] = []
    rests: dict[str, bytes] = {}
    children, stop = 0, ""
    for record in cast.read_records():
        children += record.code == "s"
        if record.code == "n":
            children -= (
                record.fields.get("kind") == NOTE_PASSED_OVER
                and record.fields.get("started") is True
            )
            stop = stop or STOP_REASONS.get(str(record.fields.get("kind")), "")
        if (
            record.code == "n"
            and record.fields.get("kind") == "caught"
            and record.fields.get("signal") in SIGNAL_NAMES
        ):
            moments.append(("signal", str(record.fields["signal"]).encode()))
        elif record.code in "iO":
            line = rests.pop(record.code, b"") + record.data
            if line.endswith(b"\n"):
                moments.append((record.code, line))
            else:
                rests[record.code] = line
    moments += rests.items()
    return cast.header, moments, children, stop or ("" if cast.is_complete else CUT_OFF_REASON)


def _build_command(header: CastHeader) -> list[str]:
    """The arguments of the drop-in, without those that name a vendor, a recording or a file of
    another machine.
    """
    door = get_program(header)
    words, kept = list(header.argv), list[str]()
    while words:
        word = words.pop(0)
        if word == "--":
            kept += [word, *words]
            break
        name, equals, value = word.partition("=")
        if name in SHIM_FLAGS or name in FILE_FLAGS or (name == "--cwd" and door == "yume-cli"):
            value = value if equals else words.pop(0) if words else ""
            if name not in FILE_FLAGS or not value.lstrip().startswith("{"):
                continue
            word = f"{name}={value}"
        kept.append(word)
    return [sys.executable, "-I", "-m", "shim", door, *kept]


def _build_environment(
    header: CastHeader, moments: Sequence[ReplayEvent], path: str, folder: str
) -> dict[str, str]:
    """The environment of the drop-in. A recording keeps no values; a variable whose effect it shows
    is set.
    """
    home = os.path.join(folder, "home")
    chosen = {
        "HOME": home,
        "CLAUDE_CONFIG_DIR": os.path.join(home, ".claude"),
        "XDG_CONFIG_HOME": os.path.join(home, ".config"),
        "SHIM_STATE": os.path.join(home, "state"),
        "SHIM_VENDOR": f"replay:{path}",
        "SHIM_REPLAY_SPEED": "0",
        "PATH": os.defpath,
        "LANG": "C.UTF-8",
    }
    if header.dialect in CHOICES["dialect"]:
        chosen["SHIM_DIALECT"] = header.dialect
    if header.redact in CHOICES["redact"]:
        chosen["SHIM_REDACT"] = header.redact
    entrypoint = header.environment.get("CLAUDE_CODE_ENTRYPOINT")
    if isinstance(entrypoint, str) and "\0" not in entrypoint:
        chosen["CLAUDE_CODE_ENTRYPOINT"] = entrypoint
    states = [line for letter, line in moments if letter == "O" and STATE_MARKER in line]
    if states:
        chosen[STATE_VARIABLES[HOST_ONLY_MARKER in states[0]]] = "1"
    return chosen


class _DropInProcess:
    """The drop-in, and its stdout in lines."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], cwd: str) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command,
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.DEVNULL,
            env=dict(environment),
            cwd=cwd,
        )
        self._has_ended = False
        self._lines: queue.Queue[bytes | None] = queue.Queue(MAX_QUEUED_LINES)
        assert self._process.stdout is not None
        threading.Thread(
            target=self._read_stdout, args=(self._process.stdout,), daemon=True
        ).start()

    def _read_stdout(self, stdout: IO[bytes]) -> None:
        for line in stdout:
            self._lines.put(line)
        self._lines.put(None)

    def write_line(self, line: bytes) -> None:
        """Write a line to its stdin. If it does not read any more, its output will show that."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write(line)
                self._process.stdin.flush()

    def send_signal(self, name: str) -> None:
        if self._process.poll() is None:
            self._process.send_signal(getattr(signal, name))

    def close_stdin(self) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._process.stdin = None

    def read_line(self, seconds: float) -> bytes | None:
        """Its next line; None at its end. TimeoutError without any."""
        if self._has_ended:
            return None
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError from None
        self._has_ended = line is None
        return line

    def stop(self) -> None:
        """End it for certain."""
        self.close_stdin()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(EXIT_TIMEOUT_S)
            self._process.kill()
        with contextlib.suppress(TimeoutError):
            # so that the thread that reads it need not wait for room
            while self.read_line(EXIT_TIMEOUT_S) is not None:
                pass
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def _replay_and_compare(
    path: str,
    header: CastHeader,
    moments: Sequence[ReplayEvent],
    running: _DropInProcess,
    cwd: str,
    stop: str,
) -> CheckResult:
    """Send the recorded lines in their time and compare the output. `stop` says why the comparison
    ends early.
    """
    invocation = parse_invocation(header)
    sides = OutputNormalizer(header.cwd, cwd), OutputNormalizer(header.cwd, cwd)
    streams = invocation.streams.output_format == "stream-json"
    talks = (
        invocation.streams.input_format == "stream-json"
        or invocation.permissions.permission_prompt_tool == "stdio"
    )
    talks = talks or resolve_dialect(header.dialect).accepts_frames
    told = [line for letter, line in moments if letter == "i"]
    if not streams and any(letter == "signal" for letter, _ in moments):
        return CheckResult(path, "skipped", reason="this format does not show where a signal came")
    if not (talks and streams):
        for line in told:
            running.write_line(line)
        running.close_stdin()
        told = []
    if not streams:
        was = split_output(b"".join(line for letter, line in moments if letter == "O"))
        try:
            said = split_output(b"".join(iter(lambda: running.read_line(LINE_TIMEOUT_S), None)))
        except TimeoutError:
            return CheckResult(path, "failed", reason="the drop-in did not come to its end")
        return _compare_outputs(path, was, said, sides)
    number, left = 0, len(told)
    for letter, line in [*moments, ("end", b"")]:
        if letter == "i" and told:
            running.write_line(_replace_request_id(line, *sides))
            left -= 1
        elif letter == "signal":
            running.send_signal(line.decode())
        if letter in ("i", "signal"):
            continue
        if letter == "end" and stop:
            break
        if letter == "end":
            running.close_stdin()
        try:
            now = _read_next_line(running, last=not left)
        except TimeoutError:
            now = None
        if letter == "end" and now is None:
            break
        number += 1
        difference = compare_lines(number, sides[0], line if letter == "O" else None, sides[1], now)
        if difference is not None:
            return CheckResult(path, "differs", number, difference)
    return CheckResult(path, "ok", number, reason=stop)


def _replace_request_id(line: bytes, then: OutputNormalizer, now: OutputNormalizer) -> bytes:
    """A line of the frontend, with today's id of the question that it answers."""
    identity = parse_protocol_line(line).id
    asked = now.find_id(then.find_shared_name(identity))
    return line.replace(orjson.dumps(identity), orjson.dumps(asked)) if asked else line


def _read_next_line(running: _DropInProcess, *, last: bool) -> bytes | None:
    """The next line. If no line is left to be sent, stdin is closed, because it may wait for that."""
    if last:
        with contextlib.suppress(TimeoutError):
            return running.read_line(QUIET_TIMEOUT_S)
        running.close_stdin()
    return running.read_line(LINE_TIMEOUT_S)


def _compare_outputs(
    path: str,
    was: Sequence[bytes],
    said: Sequence[bytes],
    sides: tuple[OutputNormalizer, OutputNormalizer],
) -> CheckResult:
    for number, (one, other) in enumerate(zip_longest(was, said), 1):
        difference = compare_lines(number, sides[0], one, sides[1], other)
        if difference is not None:
            return CheckResult(path, "differs", number, difference)
    return CheckResult(path, "ok", len(was))
