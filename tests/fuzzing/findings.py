"""The results of a fuzzer: counts per target, one input per distinct failure, and fixtures made
from them.
"""

import json
import os
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fixture_cases import FIXTURES

from fuzzing.dialects import PRESENT
from fuzzing.inputs import KNOBS, FuzzRun, encode_input
from fuzzing.targets import CHILDREN, EXITS, STDERRS, TARGETS

MAX_FAILURES = 50  # distinct failures: a fuzzer that finds more has found one mistake often
SHRINK_TRIES = 3000


def find_failure(run: FuzzRun) -> tuple[str, str] | None:
    """Return the failure of a run: a short name, the same for the same mistake, and the traceback.
    Return None without a failure.
    """
    try:
        TARGETS[run.target](run)
    except Exception as error:
        return _name_failure(error), "".join(traceback.format_exception(error))[-4000:]
    return None


def _name_failure(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1]
    return f"{type(error).__name__} in {os.path.basename(last.filename)}:{last.name}:{last.lineno}"


class Findings:
    """The results of one fuzzer in a file, because a guided fuzzer ends without a final report."""

    def __init__(self, folder: Path, name: str) -> None:
        self.lines: Counter[str] = Counter()
        self.floods = 0
        self.runs = 0
        self.failures: dict[str, str] = {}
        self._folder = folder
        self._name = name
        folder.mkdir(parents=True, exist_ok=True)

    def check_runs(self, runs: Sequence[FuzzRun]) -> None:
        """Run everything in an input. A failure is stored with its input, once."""
        for run in runs:
            self.run_check(
                run.target, encode_input([run]), lambda run=run: TARGETS[run.target](run)
            )
            self.floods += run.count_flood_lines() if run.target in CHILDREN else 0

    def run_check(
        self, target: str, tested_input: bytes | str, run: Callable[[], int | None]
    ) -> None:
        """Call `run` and store `tested_input` if it fails."""
        self.runs += 1
        try:
            self.lines[target] += run() or 0
        except Exception as error:
            name = _name_failure(error)
            if name not in self.failures and len(self.failures) < MAX_FAILURES:
                path = self._folder / f"{self._name}-{len(self.failures) + 1}"
                path.write_bytes(
                    tested_input
                    if isinstance(tested_input, bytes)
                    else tested_input.encode("utf-8", "replace")
                )
                self.failures[name] = f"{path}: {target}: {str(error)[:500]}"
                self.save()

    def count_child_lines(self) -> int:
        """Return the number of fuzzed lines of vendors' children."""
        return sum(self.lines[name] for name in CHILDREN)

    def save(self) -> None:
        """Write all results to the file."""
        book = {
            "lines": self.lines,
            "floods": self.floods,
            "runs": self.runs,
            "failures": self.failures,
        }
        path = self._folder / f"{self._name}.json"
        path.with_suffix(".new").write_text(json.dumps(book), encoding="utf-8")
        path.with_suffix(".new").replace(path)

    def load(self) -> None:
        """Load the results that another process wrote."""
        path = self._folder / f"{self._name}.json"
        if path.exists():
            book: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            self.lines = Counter(book["lines"])
            self.floods, self.runs, self.failures = book["floods"], book["runs"], book["failures"]


# -- from an input to a fixture --------------------------------------------------------------------


def shrink_run(run: FuzzRun, fails: Callable[[FuzzRun], bool]) -> FuzzRun:
    """Return a smaller run that still fails: fewer lines, default settings, shorter lines."""
    tries = iter(range(SHRINK_TRIES))

    def is_failing(other: FuzzRun) -> bool:
        return next(tries, None) is not None and fails(other)

    size = max(len(run.lines) // 2, 1)
    while size:
        start = 0
        while start < len(run.lines):
            other = run._replace(lines=run.lines[:start] + run.lines[start + size :])
            if is_failing(other):
                run = other
            else:
                start += size
        size //= 2
    for name in KNOBS:
        if is_failing(other := run.replace_knobs(**{name: 0})):
            run = other
    for number in range(len(run.lines)):
        run = _shorten_line(run, number, is_failing)
    return run


def _shorten_line(run: FuzzRun, number: int, still: Callable[[FuzzRun], bool]) -> FuzzRun:
    size = len(run.lines[number]) // 2
    while size:
        start = 0
        while start < len(line := run.lines[number]):
            lines = [
                *run.lines[:number],
                line[:start] + line[start + size :],
                *run.lines[number + 1 :],
            ]
            if still(other := run._replace(lines=lines)):
                run = other
            else:
                start += size
        size //= 2
    return run


def write_fixture(run: FuzzRun, name: str, pins: str) -> Path:
    """Write the run as `fixtures/<vendor>/fuzz-<name>/`. `make accept` creates its golden."""
    folder = FIXTURES / run.target / f"fuzz-{name}"
    folder.mkdir()
    (folder / "vendor.ndjson").write_bytes(run.encode_body())
    child_exit = EXITS[run.resolve_knob("exit", len(EXITS))]
    fields: dict[str, object] = {
        "source": "synthetic",
        "cli": f"{run.target}-shaped lines, found by fuzzing",
        "scenario": "lines that broke an invariant when they were found",
        "pins": pins,
    }
    if run.resolve_knob("partial", 2):
        fields["partial"] = True
    if child_exit is not None:
        fields["exit"] = child_exit.signal or child_exit.code
    fields["stderr"] = STDERRS[run.resolve_knob("stderr", len(STDERRS))]
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in fields.items())
    (folder / "case.toml").write_text(text, encoding="utf-8")
    return folder


def list_knobs_without_fixture(run: FuzzRun) -> list[str]:
    """Return the settings of a run that a fixture cannot hold. A case with one of them needs its
    own test.
    """
    plain = {"partial", "exit", "stderr", "cut"}
    names = [name for name in KNOBS if name not in plain and run.knobs[KNOBS.index(name)]]
    return names if len(PRESENT) > 1 else [name for name in names if name != "dialect"]
