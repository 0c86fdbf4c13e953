"""Seeds known faults into a copy of the project, one at a time, and reports whether the tests catch
each of them.

    python tests/seeded_faults.py [--rounds N] [--out FILE] [NAME …]
    python tests/seeded_faults.py --list
    python tests/seeded_faults.py --check      report faults that do not fit the code any more
    python tests/seeded_faults.py --sound      run the tests without a fault: none may fail

The faults are in `tests/faults/*.toml`, one table for each fault:

    [turn-emits-two-results]
    area = "machine"
    module = "shim/core/turn/machine.py"
    old = "the code, which must occur exactly once"
    new = "a mistake that a person could make"
    test = "tests/core/turn/test_machine.py::test_turn_has_one_result"

`test` is the test that caught the fault the last time. It runs alone in the first round, so the whole
list takes minutes. `also` lists further edits, each with `module`, `old` and `new`. A NAME may also
be an area. A fault that makes the tests run longer than LIMIT_SECONDS counts as caught. The exit
status is 1 if a fault was missed or does not fit.
"""

import argparse
import ast
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "faults"

# Errors of the type checker for a fault that uses a name that was moved or renamed. Such a fault raises an
# exception in any test, so it proves nothing about the tests.
NAME_ERROR_CODES = ("attr-defined", "name-defined", "call-arg", "union-attr")

LIMIT_SECONDS = 1800.0  # per round; three times the duration of all tests in one process
FAREWELL_SECONDS = 20.0  # for pytest to stop the processes of its tests

PYTEST = ("-x", "-q", "-m", "not e2e", "-p", "no:cacheprovider", "-p", "no:xdist")
# is left out: it compares the list with the code, so it fails with every fault
CHECK_MODULE = "test_seeded_faults"

# The test modules, without `test_`, that should catch a fault of an area. A fault is tried against
# its own `test` first, then against the modules of its area, then against all other modules.
ROUNDS = 3
AREAS = {
    "matrix": "permission_matrix bundled_profiles startup enforcement",
    "machine": "machine turn text_blocks tool_calls result claude_passthrough",
    "speech": "text_blocks turn surrogates yume_dialect golden",
    "calls": "tool_calls call_ids subagents turn values limits golden",
    "result": "result turn api_error_texts statistics_consistency golden",
    "pens": "writer line_pieces text_blocks golden",
    "grammar": "grammar story conform",
    "decode": "json_repair lines surrogates json_text event_dispatcher child_stream torture",
    "vendors": (
        "shared_call_ids pi_stream pi_rpc_session qwen_stream qwen_input codex_thread_stream "
        "codex_hook codex_rules claude_passthrough launch vendors golden tools claude_settings "
        "acp_translator qwen_rfc profile_calls claude_flat_stream adapter_classes"
    ),
    "profiles": (
        "profile_rules profile_fields function_builder profile_calls profile profile_launch "
        "unused_keys subagent_calls golden"
    ),
    "acp": "acp_session shared_call_ids calls acp_translator acp_v2 form acp_agents rpc_fuzzer",
    "drivers": (
        "driver steering child_stream fallback_driver exit_grace timeouts fallback "
        "persistent_driver conversation frontend_messages piped_prompt suggestions plan "
        "driver_choice"
    ),
    "conversation": "messages stdout transcript message_loop passthrough_loop conversation",
    "servers": "sdk_servers relay_server sdk_server_calls acp_session",
    "control": "control hooks policy messages qwen_input",
    "policy": "policy settings enforcement",
    "secrets": (
        "redactor redacted_turn secret_cuts claude_lines secrets config transcript recorder recording threats"
    ),
    "recording": "format recorder verify old_casts cast_fixture recording",
    "replay": "replayer compare selection replay_round_trip",
    "yume": "yume_encoder yume_control yume_argv yume_dialect",
    "process": "child spawn environment head_and_tail process abnormal_exits",
    "settings": (
        "config find_program environment policy claude_settings files context transcript "
        "threats dropin"
    ),
    "exports": "export_robustness export_atif export_otel export_html replies story",
    "doctor": "doctor versions cli",
    "person": "run decisions explain context",
    "joined": (
        "turn_filter frontend_bridge join_table join_check host_joiner client_rules "
        "unanswerable_prompts control attach_conversation"
    ),
    "bridge": "hub hub_interleavings unanswerable_prompts client_rules status",
    "doors": "session_lookup stop actions background session_commands doctor_bridge",
    "host": (
        "host runner log lock sockets registry host_launch runtime socket_attacks host_failures moved_package"
    ),
    "terminal": (
        "input_controller terminal_injection keys attach attach_without_terminal footer renderer"
    ),
    "gateway": "moved_package attacks app step_renderer streams tls tokens server serve hosts",
}


@dataclass(frozen=True)
class FaultEdit:
    """One edit of the code: a text that is replaced by another one."""

    module: str
    old: str
    new: str

    def explain_mismatch(self) -> str:
        """Return why the edit does not fit the code, or ""."""
        path = ROOT / self.module
        if not path.is_file():
            return f"{self.module} is not there"
        text = path.read_text(encoding="utf-8")
        if (count := text.count(self.old)) != 1:
            return f"{self.module} has {count} times {self.old!r}"
        if path.suffix == ".py":
            try:
                ast.parse(text.replace(self.old, self.new))
            except SyntaxError as error:
                return f"{self.module} would be no Python: {error}"
        return "" if self.old != self.new else f"{self.module}: nothing is changed"


@dataclass(frozen=True)
class Fault:
    """A mistake that a person could make."""

    name: str
    area: str
    test: str  # the id of the test that caught the fault the last time, or ""
    places: tuple[FaultEdit, ...]


SOUND = Fault("no fault", "", "", ())


def read_faults() -> list[Fault]:
    """Return all faults, in the order of their files."""
    faults = []
    for path in sorted(FOLDER.glob("*.toml")):
        for name, table in tomllib.loads(path.read_text(encoding="utf-8")).items():
            places = tuple(
                FaultEdit(edit_table["module"], edit_table["old"], edit_table["new"])
                for edit_table in (table, *table.get("also", ()))
            )
            faults.append(Fault(name, table["area"], table.get("test", ""), places))
    return faults


def list_mismatches(faults: Sequence[Fault]) -> list[str]:
    """Return what no longer fits the code or the tests."""
    messages = []
    names = Counter(fault.name for fault in faults)
    for fault in faults:
        reasons = [edit.explain_mismatch() for edit in fault.places]
        if fault.area not in AREAS:
            reasons.append(f"there is no area {fault.area!r}")
        if fault.test and not has_test(fault.test):
            reasons.append(f"there is no test {fault.test}")
        if names[fault.name] > 1:
            reasons.append("another fault has the same name")
        messages += [f"{fault.name}: {reason}" for reason in reasons if reason]
    module_names = {f"test_{name}" for area in AREAS.values() for name in area.split()}
    missing_modules = sorted(module_names - set(list_test_modules()))
    return messages + [f"there is no test module {name}" for name in missing_modules]


def has_test(test_id: str) -> bool:
    """Return whether a test exists. `test_id` is `path::function` or `path::class::function`."""
    path, _, names = test_id.partition("::")
    if not (ROOT / path).is_file():
        return False
    text = (ROOT / path).read_text(encoding="utf-8")
    function_name = re.escape(names.rpartition("::")[2])
    return re.search(rf"^ *(?:async )?def {function_name}\(", text, re.MULTILINE) is not None


def list_test_modules() -> dict[str, list[str]]:
    """Return the test modules that need only Python: name → paths from the root."""
    modules: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if "e2e" not in path.parts and path.stem != CHECK_MODULE:
            modules.setdefault(path.stem, []).append(str(path.relative_to(ROOT)))
    return modules


def plan_rounds(area: str, recorded_test: str, max_rounds: int) -> list[list[str]]:
    """Return the tests of each round: the recorded test, the modules of the area, all others.

    Without an area, the second round has the modules of all areas.
    """
    modules = list_test_modules()
    names = AREAS[area] if area else " ".join(AREAS.values())
    area_modules = [modules.pop(f"test_{name}") for name in dict.fromkeys(names.split())]
    rounds = [
        [recorded_test] if recorded_test else [],
        [path for paths in area_modules for path in paths],
        [path for paths in modules.values() for path in paths],
    ]
    return [tests for tests in rounds if tests][:max_rounds]


# -- a copy ----------------------------------------------------------------------------------------


class Copy:
    """A copy of the tracked files, including uncommitted changes, with its own Python, because a
    test may start Python with `-I`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tree, self.temporary = folder / "tree", folder / "tmp"
        self.temporary.mkdir()
        names = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
        ).stdout
        for name in names.decode().split("\0"):
            # A file may have been removed without a commit.
            if name and (ROOT / name).is_file():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, self.tree / name, follow_symlinks=False)
        venv.create(folder / "python", symlinks=True)
        (packages,) = (folder / "python").glob("lib/python*/site-packages")
        ours = [path for path in sys.path if path.endswith("-packages")]
        (packages / "copy.pth").write_text(
            "\n".join([str(self.tree), *ours]) + "\n", encoding="utf-8"
        )

    @contextmanager
    def seed_faults(self, *faults: Fault) -> Iterator[list[Fault]]:
        """Apply faults to the copy within this context. Yield those that do not fit, because of the
        faults before them.
        """
        places = [edit for fault in faults for edit in fault.places]
        sound = {
            path: path.read_text(encoding="utf-8")
            for path in {self.tree / target.module for target in places}
        }
        try:
            yield [fault for fault in faults if not all(map(self._apply_edit, fault.places))]
        finally:
            for path, text in sound.items():
                path.write_text(text, encoding="utf-8")

    def _apply_edit(self, edit: FaultEdit) -> bool:
        """Apply one edit. Return False if its old text is not in the code."""
        path = self.tree / edit.module
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(edit.old, edit.new), encoding="utf-8")
        return edit.old in text

    def list_missing_names(self, faults: Sequence[Fault]) -> list[str]:
        """Return the type checker's messages about missing names. Each run has as many faults as
        fit together.
        """
        messages: list[str] = []
        while faults:
            with self.seed_faults(*faults) as remaining_faults:
                command = [sys.executable, "-m", "mypy", "--cache-dir", str(self.folder / "types")]
                mypy_run = subprocess.run(
                    command, cwd=self.tree, capture_output=True, text=True, check=False
                )
            assert mypy_run.returncode < 2, mypy_run.stdout + mypy_run.stderr
            messages += [
                line
                for line in mypy_run.stdout.splitlines()
                if line.endswith(tuple(f"[{code}]" for code in NAME_ERROR_CODES))
            ]
            faults = remaining_faults
        return messages

    def run_tests(self, paths: Sequence[str]) -> tuple[int | None, str]:
        """Run some tests. Return the exit status and the output. The status is None if the time
        limit was exceeded.
        """
        command = [self.folder / "python" / "bin" / "python", "-m", "pytest", *PYTEST, *paths]
        environment = {**os.environ, "PYTHONPATH": str(self.tree), "TMPDIR": str(self.temporary)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        with tempfile.TemporaryFile() as output_file:
            process = subprocess.Popen(
                command,
                cwd=self.tree,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output_file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            status = None
            try:
                status = process.wait(LIMIT_SECONDS)
            except subprocess.TimeoutExpired:
                pass
            finally:
                self._end_processes(process)
            output_file.seek(0)
            return status, output_file.read().decode("utf-8", "replace")

    def _end_processes(self, process: "subprocess.Popen[bytes]") -> None:
        """Interrupt pytest first, so that its tests stop their processes. Then kill all processes
        of the copy that are still running.
        """
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(FAREWELL_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        folder = str(self.folder)
        for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
            if not name.isdecimal() or int(name) == os.getpid():
                continue
            try:
                environment = Path(f"/proc/{name}/environ").read_bytes()
                if folder.encode() in environment or os.readlink(f"/proc/{name}/cwd").startswith(
                    folder
                ):
                    os.kill(int(name), signal.SIGKILL)
            except OSError:
                continue  # it has exited, or belongs to another user


# -- a run -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FaultResult:
    """The result for a fault, the test that failed first, and the duration in seconds.

    The result is `caught`, `hung`, `missed`, or `killed` if another process killed pytest, which
    proves nothing.
    """

    fault: Fault
    outcome: str
    seconds: float
    test: str = ""

    def __str__(self) -> str:
        return "\t".join(
            (self.outcome, f"{self.seconds:.1f}", self.fault.area, self.fault.name, self.test)
        )


def try_fault(fault: Fault, copy: Copy, max_rounds: int) -> FaultResult:
    """Run the tests on the copy with the fault, in at most `max_rounds` rounds."""
    start_s = time.monotonic()
    with copy.seed_faults(fault):
        for tests in plan_rounds(fault.area, fault.test, max_rounds):
            status, output = copy.run_tests(tests)
            if status != 0:
                outcome = "hung" if status is None else "caught" if status > 0 else "killed"
                return FaultResult(
                    fault, outcome, time.monotonic() - start_s, find_first_failure(output)
                )
    return FaultResult(fault, "missed", time.monotonic() - start_s)


def find_first_failure(output: str) -> str:
    """Return the first test that failed, or the last line of a run that could not start."""
    if match := re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE):
        return match[1]
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1][:120] if lines else ""


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults or areas; else all")
    parser.add_argument(
        "--rounds",
        type=int,
        default=ROUNDS,
        help="how many rounds of tests are run: the test that caught the fault, its area, all others",
    )
    parser.add_argument("--out", default=os.devnull, help="a file for the verdicts, a line each")
    parser.add_argument("--list", action="store_true", help="say the names")
    parser.add_argument(
        "--check",
        action="store_true",
        help="only see whether every fault fits the code and its types",
    )
    parser.add_argument(
        "--sound", action="store_true", help="run the tests over a copy without a fault"
    )
    options = parser.parse_args()
    faults = read_faults()
    if unknown := set(options.names) - {entry.name for entry in faults} - set(AREAS):
        parser.error(f"there is no fault and no area {', '.join(sorted(unknown))}")
    faults = [
        entry
        for entry in faults
        if not options.names or entry.name in options.names or entry.area in options.names
    ]
    if options.list:
        print_lines(*(f"{entry.area}\t{entry.name}" for entry in faults))
        return 0
    if wrong := list_mismatches(faults):
        print_lines(*wrong)
        return 1
    missed = 0
    with (
        tempfile.TemporaryDirectory(prefix="faults-") as name,
        open(options.out, "a", encoding="utf-8") as file,
    ):
        copy = Copy(Path(name).resolve())
        if options.check:
            wrong = copy.list_missing_names(faults)
            print_lines(*wrong or [f"{len(faults)} faults fit"])
            return int(bool(wrong))
        if options.sound:
            result = try_fault(SOUND, copy, options.rounds)
            print_lines("sound" if result.outcome == "missed" else str(result))
            return int(result.outcome != "missed")
        for fault in faults:
            result = try_fault(fault, copy, options.rounds)
            missed += result.outcome in ("missed", "killed")
            print_lines(str(result))
            file.write(f"{result}\n")
            file.flush()
    print_lines(f"{len(faults) - missed} of {len(faults)} faults were noticed")
    return int(missed > 0)


def print_lines(*lines: str) -> None:
    """Print lines and flush them."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
