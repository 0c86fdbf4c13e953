"""Asks an installed program for its `--help` and `--version` output, and caches the answers.

A probe takes at most 2 s. A program that fails is assumed to be the newest known version. A program
that does not answer in time is assumed to lack optional flags. The answers are cached in the state
directory. The cache key contains the program's real path, timestamps and size, so that an update is
noticed, and the arguments of the probe.
"""

import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence

import orjson

from shim.core.adapter.adapter import Adapter
from shim.core.adapter.versions import LoginProbe, ModelProbe, VersionProbe
from shim.core.errors import ShimError
from shim.core.reading.values import shorten_end
from shim.process.environment import build_child_environment
from shim.process.find_program import find_program, resolve_command_prefix, runs_bundled_program
from shim.state.config import VendorSettings, get_state_dir
from shim.state.files import read_state_file, remove_file, write_state_file
from shim.state.stored_versions import store_vendor_version

PROBE_TIMEOUT_S = 2.0
# The timeout for interactive commands. Node programs need several seconds on a busy machine.
INTERACTIVE_TIMEOUT_S = 10.0
# The timeout for questions about the login or the models, which need a complete program start.
START_TIMEOUT_S = 15.0
# The timeout for the version before a turn. If the program does not answer in time, a turn that
# needs the profile's guarantees is refused. `cline --version` (3.0.65) takes 1.6 s of CPU time. It
# took 9.6 s with seven busy processes per core, and more than 10 s with ten.
VERSION_TIMEOUT_S = 20.0
KILL_TIMEOUT_S = 0.5  # for a killed program to exit
# The time between two checks whether the program has exited. The end of its pipes is not enough,
# because processes that it started may hold the pipes open forever.
POLL_INTERVAL_S = 0.02
# The size limit for stdout and for stderr. The longest known answer is 14 KB.
MAX_ANSWER_BYTES = 64 * 1024
# The number of cached answers per program. A program is asked for its help, version and models, and
# a profile may change the arguments for these questions.
MAX_ANSWERS = 8
# The size limit for a cache file. One byte may take up to six bytes in JSON.
MAX_CACHE_FILE_BYTES = MAX_ANSWERS * 2 * 6 * MAX_ANSWER_BYTES
# The exit codes of a shell or of `env` for a program that cannot run.
CANNOT_RUN_CODES = (126, 127)
# The number of programs with cached answers. The oldest are removed. Each update of a program
# counts as a new program.
MAX_CACHED_PROGRAMS = 200
HELP_ARGS = ("--help",)
MAX_FAILURE_CHARS = 200  # the length limit for an error message
MAX_LINE_CHARS = 80  # the length limit for a line of the program's output in an error message


class ProgramProbe:
    """Asks one program for its version, help text and models. Each answer is loaded on first use.

    `command` is the program with its command prefix.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        child_environment: Mapping[str, str],
        timeout_s: float | None = None,
        *,
        cache_only: bool = False,
    ) -> None:
        """Create a probe. `timeout_s` is the time limit for an answer (None means PROBE_TIMEOUT_S).

        With `cache_only`, the program is never started, and only cached answers are available.
        """
        self._cache_only = cache_only
        self.is_answer_missing = False  # the requested answer is not cached
        self._command = list(command)
        self._environment = environment
        self._child_environment = dict(child_environment)
        self._help_text: str | None = None
        if timeout_s is None:
            self._timeout_s = PROBE_TIMEOUT_S
        else:
            self._timeout_s = timeout_s
        self.failure = ""  # why the last question had no answer
        # Whether `failure` is the first line of an answer that contains no version.
        self.has_answer = False
        self.cannot_run = False  # the program cannot run at all
        self.has_timed_out = False  # the program did not exit in time
        self._help_timed_out = False  # the question for the help text timed out
        self.has_succeeded = False  # the program exited with status 0

    @property
    def program(self) -> str:
        return self._command[-1]

    def accepts_flag(self, flag: str) -> bool:
        """Return whether the program's help text contains `flag`.

        A program without a help text is assumed to be the newest version, which has the flag. A
        program that did not answer in time may be any version. It is assumed to lack the flag,
        because an unknown flag would end the turn.
        """
        help_text = self.get_help_text()
        if flag in help_text:
            return True
        if self._help_timed_out:
            return False
        return not help_text.strip()

    def get_help_text(self) -> str:
        """Return the program's help text, or "" if the program did not print one."""
        if self._help_text is None:
            self._help_text = self.get_command_output(HELP_ARGS)
            self._help_timed_out = self.has_timed_out
        return self._help_text

    def ask_version(self, version_probe: VersionProbe, *, refresh: bool = False) -> str | None:
        """Return the program's version, or None if it reports none. With `refresh`, ignore a cached
        answer.
        """
        answer = self.get_command_output(version_probe.args, refresh=refresh, cache_failures=False)
        version = version_probe.parse_version(answer)
        self.has_answer = version is None and bool(answer.strip())
        if self.has_answer:
            self.failure = _get_first_line(answer)
        if not self.is_answer_missing and (version or refresh):
            store_vendor_version(version_probe, self._command, self._environment, version)
        return version

    def describe_version_failure(self, version_probe: VersionProbe) -> str:
        """Describe why the program's version could not be determined."""
        question = " ".join((os.path.basename(self.program), *version_probe.args))
        if not self.has_answer:
            return f"`{question}`: {self.failure or 'the program printed nothing'}"
        return f"`{question}` printed {shorten_end(self.failure, MAX_LINE_CHARS)!r}"

    def find_cached_version(self, version_probe: VersionProbe) -> str | None:
        """Return the program's cached version, or None. The program is not started."""
        answer = self._load_answers(self._build_cache_key()).get(" ".join(version_probe.args))
        if answer:
            return version_probe.parse_version(answer)
        return None

    def cache_models(self, model_probe: ModelProbe) -> None:
        """Ask the program for its models, and cache the answer for `list_cached_models`."""
        if model_probe.args:
            usual_timeout_s = self._timeout_s
            self._timeout_s = max(self._timeout_s, START_TIMEOUT_S)
            self.get_command_output(model_probe.args, refresh=True)
            self._timeout_s = usual_timeout_s

    def list_cached_models(self, model_probe: ModelProbe) -> list[str]:
        """Return the program's cached models. The program is not started."""
        if model_probe.args:
            return model_probe.parse_models(
                self._load_answers(self._build_cache_key()).get(" ".join(model_probe.args), "")
            )
        return []

    def find_login_error(self, login_probe: LoginProbe) -> str | None:
        """Ask the program whether the user is logged in. Return the program's message if the login
        is missing, "" if the user is logged in, and None if there is no answer (see `failure`).
        """
        usual_timeout_s = self._timeout_s
        self._timeout_s = max(self._timeout_s, START_TIMEOUT_S)
        answer = self._run_program(login_probe.args, login_probe.environment).decode(
            "utf-8", "replace"
        )
        self._timeout_s = usual_timeout_s
        message = login_probe.find_missing_login_message(answer)
        if message or self.has_succeeded:
            return message
        if not self.failure:
            self.failure = _get_first_line(answer)
        return None

    def get_command_output(
        self, args: Sequence[str], *, refresh: bool = False, cache_failures: bool = True
    ) -> str:
        """Run the program with `args`, and return its stdout followed by its stderr. Return "" if
        the program failed.

        With `cache_failures`, the output is cached even if the exit status is not 0.
        """
        key = self._build_cache_key()
        question = " ".join(args)
        cached_answers = self._load_answers(key)
        if question in cached_answers and not refresh:
            return cached_answers[question]
        self.is_answer_missing = self._cache_only
        text = ""
        if not self._cache_only:
            text = self._run_program(args).decode("utf-8", "replace")
        if text and key and (cache_failures or self.has_succeeded):
            answers = {**dict(list(cached_answers.items())[: MAX_ANSWERS - 1]), question: text}
            write_state_file(self._cache_dir, key, orjson.dumps(answers))
            _remove_old_answers(self._cache_dir)
        return text

    @property
    def _cache_dir(self) -> str:
        return os.path.join(get_state_dir(self._environment), "probes")

    def _build_cache_key(self) -> str:
        """Return the file name for the program's cached answers, or "" if the program does not
        exist.
        """
        from hashlib import sha256

        program = self._command[-1]
        try:
            status = os.stat(program)
        except OSError:
            return ""
        times = f"{status.st_mtime_ns}\0{status.st_ctime_ns}"
        key = f"{os.path.realpath(program)}\0{times}\0{status.st_size}\0{self._command[:-1]}"
        return sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:32] + ".json"

    def _load_answers(self, key: str) -> dict[str, str]:
        data = None
        if key:
            data = read_state_file(self._cache_dir, key, MAX_CACHE_FILE_BYTES)
        try:
            answers = {}
            if data:
                answers = orjson.loads(data)
        except orjson.JSONDecodeError:
            return {}
        if not isinstance(answers, dict) or not all(
            isinstance(text, str) for text in answers.values()
        ):
            return {}
        return answers

    def _run_program(self, args: Sequence[str], environment: Mapping[str, str] = {}) -> bytes:
        self.failure = ""
        self.cannot_run = False
        self.has_timed_out = False
        self.has_succeeded = False
        try:
            process = subprocess.Popen(
                [*self._command, *args],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**self._child_environment, **environment},
                start_new_session=True,
            )
        except OSError as error:
            self.failure = f"the program cannot be started: {error.strerror}"
            self.cannot_run = True
            return b""
        try:
            output, has_ended = _read_output(process, self._timeout_s)
            status = process.poll()
        finally:
            _kill_program(process)
        if not has_ended:
            self.failure = f"the program did not answer within {self._timeout_s:g} s"
            self.has_timed_out = True
            return b""
        if status in CANNOT_RUN_CODES:
            self.failure = _get_first_line(output.decode("utf-8", "replace")) or f"exit {status}"
            self.cannot_run = True
            return b""
        if not output.strip():
            self.failure = f"the program printed nothing and exited with status {status}"
        self.has_succeeded = status == 0
        return output


def create_program_probe(
    adapter: Adapter,
    settings: VendorSettings,
    environment: Mapping[str, str],
    cwd: str,
    timeout_s: float | None = None,
    *,
    cache_only: bool = False,
) -> ProgramProbe:
    """Create a probe for the program that a turn would start. Raise ShimError if the program or its
    command prefix cannot be found.

    `timeout_s` and `cache_only` have the same meaning as for `ProgramProbe`.
    """
    command = [
        *resolve_command_prefix(settings.launcher, environment, cwd),
        find_program(adapter, settings, environment, cwd),
    ]
    variables = build_child_environment(adapter, settings, environment)
    return ProgramProbe(command, environment, variables, timeout_s, cache_only=cache_only)


def find_cached_version(
    adapter: Adapter, settings: VendorSettings, environment: Mapping[str, str], cwd: str
) -> str | None:
    """Return the cached version of the program that a turn would start, or None. The program is not
    started, and no error is raised.
    """
    if runs_bundled_program(adapter, environment):
        return None
    try:
        return create_program_probe(adapter, settings, environment, cwd).find_cached_version(
            adapter.version_probe
        )
    except (ShimError, OSError, ValueError):
        return None


def find_unsupported_argument(
    adapter: Adapter, settings: VendorSettings, environment: Mapping[str, str], cwd: str
) -> str:
    """Return the first argument for two-way mode that the program's cached help text does not
    mention, or "".
    """
    args = adapter.cli.two_way_help_texts
    if not args or runs_bundled_program(adapter, environment):
        return ""
    try:
        probe = create_program_probe(adapter, settings, environment, cwd, cache_only=True)
        return next(
            (
                arg
                for arg in args
                if not probe.accepts_flag(arg if arg.startswith("-") else f" {arg}")
            ),
            "",
        )
    except (ShimError, OSError, ValueError):
        return ""


def list_cached_models(
    adapter: Adapter, settings: VendorSettings, environment: Mapping[str, str], cwd: str
) -> list[str]:
    """Return the cached models of the program that a turn would start, without starting it."""
    if adapter.cli.replayed_vendor:
        return []
    try:
        return create_program_probe(adapter, settings, environment, cwd).list_cached_models(
            adapter.cli.model_probe
        )
    except (ShimError, OSError, ValueError):
        return []


def _read_output(process: "subprocess.Popen[bytes]", timeout_s: float) -> tuple[bytes, bool]:
    """Return the first MAX_ANSWER_BYTES of stdout and of stderr, and whether the program exited in
    time.
    """
    pipes = [pipe for pipe in (process.stdout, process.stderr) if pipe is not None]
    output_by_descriptor = {pipe.fileno(): bytearray() for pipe in pipes}
    open_descriptors = list(output_by_descriptor)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        has_ended = process.poll() is not None
        ready = []
        if open_descriptors:
            ready = select.select(open_descriptors, [], [], 0 if has_ended else POLL_INTERVAL_S)[0]
        if has_ended and not ready:
            return b"\n".join(
                bytes(output) for output in output_by_descriptor.values() if output
            ), True
        if not open_descriptors:
            time.sleep(POLL_INTERVAL_S)
        for descriptor in ready:
            chunk = os.read(descriptor, MAX_ANSWER_BYTES)
            if not chunk:
                open_descriptors.remove(descriptor)
            output_by_descriptor[descriptor] += chunk[
                : MAX_ANSWER_BYTES - len(output_by_descriptor[descriptor])
            ]
    return b"", False


def _remove_old_answers(directory: str) -> None:
    """Remove the oldest cached answers, so that answers of MAX_CACHED_PROGRAMS programs remain."""
    try:
        names = [os.path.join(directory, name) for name in os.listdir(directory)]
        if len(names) > MAX_CACHED_PROGRAMS:
            for path in sorted(names, key=os.path.getmtime)[: len(names) - MAX_CACHED_PROGRAMS]:
                remove_file(path)
    except OSError:  # another process has removed a file meanwhile
        return


def _get_first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:MAX_FAILURE_CHARS]


def _kill_program(process: "subprocess.Popen[bytes]") -> None:
    import signal

    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        pass
    try:
        process.wait(KILL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        pass
    for pipe in (process.stdout, process.stderr):
        if pipe:
            pipe.close()
