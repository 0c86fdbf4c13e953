"""Checks a recording: runs the current drop-in with the recorded arguments, input lines and child
output, and compares the new output with the recorded output.

The user's home, state and settings are not used. Only the user's profiles are linked into the
temporary folder of the check.
"""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import IO, NamedTuple

import orjson

from shim.core.cast.compare import (
    OutputDifference,
    OutputNormalizer,
    compare_output_lines,
    split_output_lines,
)
from shim.core.cast.format import RecordingError, RecordingHeader
from shim.core.cast.protocol_lines import parse_protocol_line
from shim.core.dialects import resolve_dialect
from shim.core.errors import NOTE_PASSED_OVER
from shim.io.signals import SIGNAL_NAMES
from shim.recording.recorded_run import get_recorded_program_name, parse_recorded_invocation
from shim.recording.recording_file import Recording
from shim.state import own_profiles
from shim.state.config import CHOICES

LINE_TIMEOUT_S = 20.0  # for an expected line; without a real vendor, lines arrive fast
QUIET_TIMEOUT_S = 2.0  # stdin is closed if no output arrives for this long
EXIT_TIMEOUT_S = 10.0  # for the drop-in to exit
MAX_QUEUED_LINES = 10_000  # stdout lines that are not compared yet
MAX_RECORDING_BYTES = 1024 * 1024 * 1024  # the recorder never writes a larger file
SHIM_FLAGS = ("--shim-vendor", "--shim-record", "--shim-config", "--shim-log")
FILE_FLAGS = ("--settings", "--system-prompt-file", "--append-system-prompt-file")
# The two ways in which a frontend requests session state events (contract 5.13).
# If a recording contains such events, the check sets the variable that requests them.
STATE_MARKER = b'"subtype":"session_state_changed"'
HOST_ONLY_MARKER = b'"sdk_host_only":true'
STATE_VARIABLES = {
    False: "CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS",
    True: "CLAUDE_CODE_SDK_READS_SESSION_STATE",
}
LinePair = tuple[bytes | None, bytes | None]  # a recorded line and the drop-in's line
ReplayEvent = tuple[str, bytes]
# The reasons why a comparison ends before the end of the run.
# STOP_REASONS maps the kinds of a recorder's notes to these reasons.
CUT_OFF_REASON = "the recording was cut off at this point"
SILENCE_REASON = "the vendor printed nothing for longer than the check's timeout"
STOP_REASONS = {"limit": "the recording has no more lines", "timeout": SILENCE_REASON}


class RecordingCheckResult(NamedTuple):
    """The outcome of checking one recording (`ok`, `differs`, `skipped` or `failed`), with the
    reason.
    """

    path: str
    outcome: str
    line_count: int = 0
    difference: OutputDifference | None = None
    reason: str = ""


def check_recording(path: str) -> RecordingCheckResult:
    """Run a recording again and compare the output, up to the first difference."""
    try:
        header, events, child_count, stop_reason = _load_events(path)
    except RecordingError as error:
        return RecordingCheckResult(path, "failed", reason=str(error))
    if not child_count:
        return RecordingCheckResult(
            path, "skipped", reason="no child process answered in this recording"
        )
    if stop_reason == SILENCE_REASON:
        return RecordingCheckResult(path, "skipped", reason=SILENCE_REASON)
    if not any(code == "O" for code, _ in events):
        return RecordingCheckResult(path, "skipped", reason="the recording has no output")
    with tempfile.TemporaryDirectory(prefix="shim-check-") as folder:
        folder = os.path.realpath(folder)
        for name in ("home", "work"):
            os.mkdir(os.path.join(folder, name))
        _link_user_profiles(os.path.join(folder, "home", ".config", "shim"))
        process = _DropInProcess(
            _build_command(header),
            _build_environment(header, events, os.path.abspath(path), folder),
            folder + "/work",
        )
        try:
            return _replay_and_compare(path, header, events, process, folder + "/work", stop_reason)
        finally:
            process.stop()


def _link_user_profiles(directory: str) -> None:
    """Link the user's profiles into the temporary folder of the check."""
    user_profiles = own_profiles.get_user_profile_folder(os.environ)
    if os.path.isdir(user_profiles):
        os.makedirs(directory)
        with contextlib.suppress(OSError):  # without links, only bundled vendors can run
            os.symlink(user_profiles, os.path.join(directory, own_profiles.FOLDER_NAME))


def _load_events(path: str) -> tuple[RecordingHeader, list[ReplayEvent], int, str]:
    """Return the lines of both sides in order, the number of children, and the reason if the run
    ended early.
    """
    recording = Recording(path)
    if os.fstat(recording.file_descriptor).st_size > MAX_RECORDING_BYTES:
        recording.close()
        raise RecordingError(
            f"the recording is larger than {MAX_RECORDING_BYTES} bytes, the limit of a recorder"
        )
    events: list[ReplayEvent] = []
    partial_lines: dict[str, bytes] = {}
    child_count = 0
    stop_reason = ""
    for record in recording.read_records():
        child_count += record.code == "s"
        if record.code == "n":
            kind = str(record.fields.get("kind"))
            if kind == NOTE_PASSED_OVER and record.fields.get("started") is True:
                child_count -= 1
            if not stop_reason:
                stop_reason = STOP_REASONS.get(kind, "")
        if (
            record.code == "n"
            and record.fields.get("kind") == "caught"
            and record.fields.get("signal") in SIGNAL_NAMES
        ):
            events.append(("signal", str(record.fields["signal"]).encode()))
        elif record.code in "iO":
            line = partial_lines.pop(record.code, b"") + record.data
            if line.endswith(b"\n"):
                events.append((record.code, line))
            else:
                partial_lines[record.code] = line
    events += partial_lines.items()
    if not stop_reason and not recording.reader.has_end:
        stop_reason = CUT_OFF_REASON
    return recording.header, events, child_count, stop_reason


def _build_command(header: RecordingHeader) -> list[str]:
    """Build the drop-in's command line from the recorded arguments. Arguments that name a vendor, a
    recording or a file on another machine are left out.
    """
    program = get_recorded_program_name(header)
    args = list(header.argv)
    replay_args = list[str]()
    while args:
        arg = args.pop(0)
        if arg == "--":
            replay_args += [arg, *args]
            break
        name, equals, value = arg.partition("=")
        if name in SHIM_FLAGS or name in FILE_FLAGS or (name == "--cwd" and program == "yume-cli"):
            if not equals and args:
                value = args.pop(0)
            if name not in FILE_FLAGS or not value.lstrip().startswith("{"):
                continue
            arg = f"{name}={value}"
        replay_args.append(arg)
    return [sys.executable, "-I", "-m", "shim", program, *replay_args]


def _build_environment(
    header: RecordingHeader, events: Sequence[ReplayEvent], path: str, folder: str
) -> dict[str, str]:
    """Build the drop-in's environment. A recording does not contain the values of variables, so a
    variable is only set if the recording shows its effect.
    """
    home = os.path.join(folder, "home")
    variables = {
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
        variables["SHIM_DIALECT"] = header.dialect
    if header.redact in CHOICES["redact"]:
        variables["SHIM_REDACT"] = header.redact
    entrypoint = header.environment.get("CLAUDE_CODE_ENTRYPOINT")
    if isinstance(entrypoint, str) and "\0" not in entrypoint:
        variables["CLAUDE_CODE_ENTRYPOINT"] = entrypoint
    state_lines = [line for code, line in events if code == "O" and STATE_MARKER in line]
    if state_lines:
        variables[STATE_VARIABLES[HOST_ONLY_MARKER in state_lines[0]]] = "1"
    return variables


class _DropInProcess:
    """A drop-in process whose stdout is read line by line."""

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
        """Write a line to the drop-in's stdin. Errors are ignored: if the drop-in no longer reads,
        its output shows the problem.
        """
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

    def read_line(self, timeout_s: float) -> bytes | None:
        """Return the next line, or None at the end of the output. Raise TimeoutError if no line
        arrives in time.
        """
        if self._has_ended:
            return None
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError from None
        self._has_ended = line is None
        return line

    def stop(self) -> None:
        """Stop the drop-in and wait until it has exited."""
        self.close_stdin()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(EXIT_TIMEOUT_S)
            self._process.kill()
        with contextlib.suppress(TimeoutError):
            # Otherwise the thread that reads stdout could block on a full queue.
            while self.read_line(EXIT_TIMEOUT_S) is not None:
                pass
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def _replay_and_compare(
    path: str,
    header: RecordingHeader,
    events: Sequence[ReplayEvent],
    process: _DropInProcess,
    cwd: str,
    stop_reason: str,
) -> RecordingCheckResult:
    """Send the recorded lines at their times and compare the output. `stop_reason` explains why the
    comparison ends before the end of the run.
    """
    invocation = parse_recorded_invocation(header)
    normalizers = OutputNormalizer(header.cwd, cwd), OutputNormalizer(header.cwd, cwd)
    prints_stream_json = invocation.output_format == "stream-json"
    is_interactive = (
        invocation.input_format == "stream-json"
        or invocation.permission_prompt_tool == "stdio"
        or resolve_dialect(header.dialect).accepts_frames
    )
    input_lines = [line for code, line in events if code == "i"]
    if not prints_stream_json and any(code == "signal" for code, _ in events):
        return RecordingCheckResult(
            path, "skipped", reason="this recording format does not store when a signal arrived"
        )
    if not (is_interactive and prints_stream_json):
        for line in input_lines:
            process.write_line(line)
        process.close_stdin()
        input_lines = []
    if prints_stream_json:
        pairs = _replay_events(
            events, process, normalizers, stop_reason, sends_input=bool(input_lines)
        )
        return _compare_outputs(path, pairs, normalizers, stop_reason)
    recorded_lines = split_output_lines(b"".join(line for code, line in events if code == "O"))
    try:
        current_lines = split_output_lines(
            b"".join(iter(lambda: process.read_line(LINE_TIMEOUT_S), None))
        )
    except TimeoutError:
        return RecordingCheckResult(path, "failed", reason="the drop-in did not finish")
    return _compare_outputs(path, zip_longest(recorded_lines, current_lines), normalizers)


def _replay_events(
    events: Sequence[ReplayEvent],
    process: _DropInProcess,
    normalizers: tuple[OutputNormalizer, OutputNormalizer],
    stop_reason: str,
    *,
    sends_input: bool,
) -> Iterator[LinePair]:
    """Send the recorded lines and signals at their times. Yield each recorded output line with the
    drop-in's line.
    """
    remaining_inputs = 0
    if sends_input:
        remaining_inputs = sum(code == "i" for code, _ in events)
    for code, line in events:
        if code == "signal":
            process.send_signal(line.decode())
        elif code == "O":
            yield line, _read_next_line(process, is_last=not remaining_inputs)
        elif sends_input:
            process.write_line(_replace_request_id(line, *normalizers))
            remaining_inputs -= 1
    if stop_reason:
        return
    process.close_stdin()
    extra_line = _read_next_line(process, is_last=not remaining_inputs)
    if extra_line is not None:
        yield None, extra_line


def _replace_request_id(
    line: bytes, recorded_normalizer: OutputNormalizer, current_normalizer: OutputNormalizer
) -> bytes:
    """Return a frontend's answer with the recorded request id replaced by the id of the current
    request.
    """
    recorded_id = parse_protocol_line(line).id
    current_id = current_normalizer.find_raw_id(recorded_normalizer.find_normalized_id(recorded_id))
    if current_id:
        return line.replace(orjson.dumps(recorded_id), orjson.dumps(current_id))
    return line


def _read_next_line(process: _DropInProcess, *, is_last: bool) -> bytes | None:
    """Return the next output line, or None at the end or after a timeout. If there are no more
    lines to send, close stdin, because the drop-in may be waiting for that.
    """
    with contextlib.suppress(TimeoutError):
        if is_last:
            with contextlib.suppress(TimeoutError):
                return process.read_line(QUIET_TIMEOUT_S)
            process.close_stdin()
        return process.read_line(LINE_TIMEOUT_S)
    return None


def _compare_outputs(
    path: str,
    pairs: Iterable[LinePair],
    normalizers: tuple[OutputNormalizer, OutputNormalizer],
    stop_reason: str = "",
) -> RecordingCheckResult:
    line_number = 0
    for line_number, (recorded_line, current_line) in enumerate(pairs, 1):
        difference = compare_output_lines(
            line_number, normalizers[0], recorded_line, normalizers[1], current_line
        )
        if difference is not None:
            return RecordingCheckResult(path, "differs", line_number, difference)
    return RecordingCheckResult(path, "ok", line_number, reason=stop_reason)
