"""What an installed program says of itself, by its `--help` and `--version`: asked once, then
remembered.

One probe of 2 s at most; a failure counts as the newest that is known, and a program that is too
slow as one that knows no flag. The answers are kept in the state directory, keyed by the program's
real path, times and size, so that an update is noticed; each stands under the arguments that were
asked with.
"""

import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence

import orjson

from shim.core.adapter.vendor import Adapter
from shim.core.adapter.versions import LoginProbe, ModelProbe, VersionProbe
from shim.core.errors import ShimError
from shim.process.environment import build_child_environment
from shim.process.find_program import find_command_prefix, find_program
from shim.state.config import VendorSettings, state_directory
from shim.state.files import read_file, remove, write_file
from shim.state.known_versions import remember_version

PROBE_SECONDS = 2.0
# where a person waits, and not a turn: programs in Node may need some on a busy machine
INTERACTIVE_TIMEOUT_S = 10.0
# for a program to look for its login or its models, which is a whole start of it
START_SECONDS = 15.0
KILL_SECONDS = 0.5  # for a killed program to be gone, unless the kernel is stuck
# between two looks at a program: the processes that it started may hold its pipes for ever
LOOK_SECONDS = 0.02
HELP_BYTES = 64 * 1024  # of an answer, of stdout and of stderr each; the longest seen has 14 KB
ANSWERS = 8  # of one program; there are two questions, and a profile may change the second
# of a file of answers, where each byte may take six in JSON
KEPT_BYTES = ANSWERS * 2 * 6 * HELP_BYTES
NEVER_RAN = (126, 127)  # the exit codes of a shell or of `env` when the interpreter is missing
# programs, those that were asked last; each update of a program counts as another
PROBES_KEPT = 200
HELP = ("--help",)
FAILURE_CHARACTERS = 200  # of an error text that comes instead of an answer


class ProgramProbe:
    """The answers of one program, each read when first asked for. `command` is the program behind
    its launcher.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        child_environment: Mapping[str, str],
        seconds: float | None = None,
        *,
        remembered: bool = False,
    ) -> None:
        """`seconds` is how long an answer is waited for; None: PROBE_SECONDS.

        `remembered`: nothing is started, and a question that was never answered has no answer.
        """
        self._remembered = remembered
        self.missed = False  # an answer was wanted that is not remembered
        self._command = list(command)
        self._environment = environment
        self._child_environment = dict(child_environment)
        self._text: str | None = None
        self._seconds = PROBE_SECONDS if seconds is None else seconds
        self.failure = ""  # why the last question had no answer;
        self.answered = False  # whether `failure` is the first line of an answer without a version
        self.broken = False  # whether that is because it cannot run at all
        self.late = False  # whether that is because it did not end in time
        self._late = False  # whether it was so with the help
        self.ended_well = False  # whether it ended with exit 0

    @property
    def program(self) -> str:
        return self._command[-1]

    def knows(self, flag: str) -> bool:
        """Whether the help names `flag`. A program without help counts as the newest version, which
        knows the flag.

        Where it did not answer in time it may be any version: a flag that it does not know would
        end its turn.
        """
        text = self.text()
        return flag in text or not (text.strip() or self._late)

    def text(self) -> str:
        """The help text, "" when there is none."""
        if self._text is None:
            self._text = self.answer(HELP)
            self._late = self.late
        return self._text

    def version(self, how: VersionProbe, *, anew: bool = False) -> str | None:
        """Its version; None when the program does not say it. `anew` asks although an answer is
        remembered.
        """
        answer = self.answer(how.args, anew=anew, failures=False)
        found = how.parse_version(answer)
        self.answered = found is None and bool(answer.strip())
        if self.answered:
            self.failure = _line(answer)
        if not self.missed and (found or anew):
            remember_version(how, self._command, self._environment, found)
        return found

    def known_version(self, how: VersionProbe) -> str | None:
        """Its version, if an answer is remembered. Nothing is started."""
        answer = self._answers(self._key()).get(" ".join(how.args))
        return how.parse_version(answer) if answer else None

    def ask_models(self, how: ModelProbe) -> None:
        """Remember what the program says of its models, for `known_models`."""
        if how.args:
            seconds, self._seconds = self._seconds, max(self._seconds, START_SECONDS)
            self.answer(how.args, anew=True)
            self._seconds = seconds

    def known_models(self, how: ModelProbe) -> list[str]:
        """Its models, as far as an answer is remembered. Nothing is started."""
        return (
            how.parse_models(self._answers(self._key()).get(" ".join(how.args), ""))
            if how.args
            else []
        )

    def missing_login(self, how: LoginProbe) -> str | None:
        """Its words for a missing login, asked anew; "" where it finds one, None where it does not
        say (`failure`).
        """
        seconds, self._seconds = self._seconds, max(self._seconds, START_SECONDS)
        answer = self._ask(how.args, how.environment).decode("utf-8", "replace")
        self._seconds = seconds
        words = how.find_refusal(answer)
        if words or self.ended_well:
            return words
        self.failure = self.failure or _line(answer)
        return None

    def answer(self, args: Sequence[str], *, anew: bool = False, failures: bool = True) -> str:
        """Return the output of the program when it is started with `args`: stdout, then stderr; ""
        if that failed.

        `failures`: an answer with another exit status than 0 is remembered, too.
        """
        key, question = self._key(), " ".join(args)
        known = self._answers(key)
        if question in known and not anew:
            return known[question]
        self.missed = self._remembered
        text = "" if self._remembered else self._ask(args).decode("utf-8", "replace")
        if text and key and (failures or self.ended_well):
            answers = {**dict(list(known.items())[: ANSWERS - 1]), question: text}
            write_file(self._directory, key, orjson.dumps(answers))
            _forget(self._directory)
        return text

    @property
    def _directory(self) -> str:
        return os.path.join(state_directory(self._environment), "probes")

    def _key(self) -> str:
        """The name of the file of its answers; "" when there is no such program."""
        from hashlib import sha256

        program = self._command[-1]
        try:
            status = os.stat(program)
        except OSError:
            return ""
        times = f"{status.st_mtime_ns}\0{status.st_ctime_ns}"
        key = f"{os.path.realpath(program)}\0{times}\0{status.st_size}\0{self._command[:-1]}"
        return sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:32] + ".json"

    def _answers(self, key: str) -> dict[str, str]:
        data = read_file(self._directory, key, KEPT_BYTES) if key else None
        try:
            known = orjson.loads(data) if data else {}
        except orjson.JSONDecodeError:
            return {}
        if not isinstance(known, dict) or not all(isinstance(text, str) for text in known.values()):
            return {}
        return known

    def _ask(self, args: Sequence[str], environment: Mapping[str, str] = {}) -> bytes:
        self.failure, self.broken, self.late, self.ended_well = "", False, False, False
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
            self.failure, self.broken = f"it cannot be started: {error.strerror}", True
            return b""
        try:
            said, seen = _read(process, self._seconds)
            status = process.poll()
        finally:
            _end(process)
        if not seen:
            self.failure, self.late = f"it did not answer in {self._seconds:g} s", True
            return b""
        if status in NEVER_RAN:
            self.failure, self.broken = (
                _line(said.decode("utf-8", "replace")) or f"exit {status}",
                True,
            )
            return b""
        if not said.strip():
            self.failure = f"it said nothing and ended with exit {status}"
        self.ended_well = status == 0
        return said


def create_probe(
    vendor: Adapter,
    settings: VendorSettings,
    environment: Mapping[str, str],
    cwd: str,
    seconds: float | None = None,
    *,
    remembered: bool = False,
) -> ProgramProbe:
    """The probe of the program that a turn would start. ShimError when the program or its launcher
    is not there.

    `seconds` is how long it is waited for, where that is not as usual; `remembered` as `Probe` has
    it.
    """
    command = [
        *find_command_prefix(settings.launcher, environment, cwd),
        find_program(vendor, settings, environment, cwd),
    ]
    variables = build_child_environment(vendor, settings, environment)
    return ProgramProbe(command, environment, variables, seconds, remembered=remembered)


def find_cached_version(
    vendor: Adapter, settings: VendorSettings, environment: Mapping[str, str], cwd: str
) -> str | None:
    """The version of that program, if an answer is remembered. Nothing is started, and no error is
    raised.
    """
    if vendor.cli.bundled_module and (
        vendor.cli.replayed_vendor or not environment.get("SHIM_BIN")
    ):
        return None
    try:
        return create_probe(vendor, settings, environment, cwd).known_version(vendor.version_probe)
    except (ShimError, OSError, ValueError):
        return None


def find_unknown_argument(
    vendor: Adapter, settings: VendorSettings, environment: Mapping[str, str], cwd: str
) -> str:
    """The first word of its two-way command that the remembered help of that program does not name;
    "" for none.
    """
    words = vendor.cli.two_way_help_texts
    if not words or (vendor.cli.bundled_module and not environment.get("SHIM_BIN")):
        return ""
    try:
        probe = create_probe(vendor, settings, environment, cwd, remembered=True)
        return next(
            (
                word
                for word in words
                if not probe.knows(word if word.startswith("-") else f" {word}")
            ),
            "",
        )
    except (ShimError, OSError, ValueError):
        return ""


def known_models(
    vendor: Adapter, settings: VendorSettings, environment: Mapping[str, str], cwd: str
) -> list[str]:
    """The models of that program, likewise."""
    if vendor.cli.replayed_vendor:
        return []
    try:
        return create_probe(vendor, settings, environment, cwd).known_models(vendor.cli.model_probe)
    except (ShimError, OSError, ValueError):
        return []


def _read(process: "subprocess.Popen[bytes]", seconds: float) -> tuple[bytes, bool]:
    """The first HELP_BYTES of its stdout, then of its stderr, and whether the program ended in
    time.
    """
    pipes = [pipe for pipe in (process.stdout, process.stderr) if pipe is not None]
    said = {pipe.fileno(): bytearray() for pipe in pipes}
    still = list(said)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        ready = select.select(still, [], [], 0 if ended else LOOK_SECONDS)[0] if still else []
        if ended and not ready:
            return b"\n".join(bytes(one) for one in said.values() if one), True
        if not still:
            time.sleep(LOOK_SECONDS)
        for descriptor in ready:
            chunk = os.read(descriptor, HELP_BYTES)
            if not chunk:
                still.remove(descriptor)
            said[descriptor] += chunk[: HELP_BYTES - len(said[descriptor])]
    return b"", False


def _forget(directory: str) -> None:
    """Forget the oldest answers, beyond PROBES_KEPT programs."""
    try:
        names = [os.path.join(directory, name) for name in os.listdir(directory)]
        if len(names) > PROBES_KEPT:
            for path in sorted(names, key=os.path.getmtime)[: len(names) - PROBES_KEPT]:
                remove(path)
    except OSError:  # another process forgot one just now
        return


def _line(said: str) -> str:
    return said.strip().partition("\n")[0][:FAILURE_CHARACTERS]


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
    for pipe in (process.stdout, process.stderr):
        if pipe:
            pipe.close()
