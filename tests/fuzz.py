"""`make fuzz`: both fuzzers in sequence, and their results in numbers.

    fuzz.py run --seconds 600            both fuzzers, GUIDED of the time for the guided one
    fuzz.py show INPUT                   the failure of an input, and its smallest form
    fuzz.py keep INPUT NAME SENTENCE     that form as fixtures/<vendor>/fuzz-NAME, pins SENTENCE

Failing inputs are stored in .fuzz/, and so is the guided fuzzer's corpus, which the next run
continues with.
"""

import argparse
import importlib.util
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parent / "support"))
sys.path.insert(1, str(Path(__file__).resolve().parent.parent))

from fuzzing.dialects import PRESENT
from fuzzing.findings import (
    Findings,
    find_failure,
    list_knobs_without_fixture,
    shrink_run,
    write_fixture,
)
from fuzzing.inputs import FuzzRun, encode_input, parse_input
from fuzzing.seeds import list_seeds
from fuzzing.targets import CHILDREN, TARGETS

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".fuzz"
GUIDED = 0.6  # the guided fuzzer's share of the time, because it finds more
EXIT_SECONDS = 120  # for the guided fuzzer to exit by itself
NO_WHEEL = "not run: atheris has no wheel for Python {version} on {machine}; set PYTHON=python3.11 and `make clean`"


def print_line(text: object) -> None:
    """Print one line and flush it, because a run takes minutes."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("--seconds", type=int, default=600)
    run.add_argument("--seed", type=int, default=0, help="0: another one each time")
    for name in ("show", "keep"):
        command = commands.add_parser(name)
        command.add_argument("input", type=Path)
    command.add_argument("name")
    command.add_argument("sentence")
    args = parser.parse_args()
    if args.command == "run":
        return run_fuzzers(args.seconds, args.seed or int(time.time()))
    return (
        show_failure(args.input)
        if args.command == "show"
        else keep_as_fixture(args.input, args.name, args.sentence)
    )


# -- both fuzzers ----------------------------------------------------------------------------------


def run_fuzzers(seconds: int, seed: int) -> int:
    """Run both fuzzers. Return 1 if an invariant was broken."""
    FOLDER.mkdir(exist_ok=True)
    for old in [*FOLDER.glob("guided*"), *FOLDER.glob("unguided*")]:
        old.unlink()
    print_line(
        f"seed {seed} · {len(list_seeds())} seeds · dialects: {', '.join(PRESENT)} · vendors: {', '.join(CHILDREN)}"
    )
    guided, notes, broken = Findings(FOLDER, "guided"), "", ""
    took = 0.0
    if importlib.util.find_spec("atheris") is None:
        notes = NO_WHEEL.format(
            version=platform.python_version(), machine=platform.platform(terse=True)
        )
    else:
        took, notes, broken = _run_guided(guided, int(seconds * GUIDED), seed)
    print_report("guided (atheris)", guided, took, notes)
    unguided = Findings(FOLDER, "unguided")
    started_at = time.monotonic()
    from fuzzing import hypothesis_fuzzer

    hypothesis_fuzzer.run_fuzzer(unguided, max(seconds - took, seconds * (1 - GUIDED)), seed)
    print_report("unguided (hypothesis)", unguided, time.monotonic() - started_at, "")
    total = guided.count_child_lines() + unguided.count_child_lines()
    floods = guided.floods + unguided.floods
    print_line(f"together: {total:,} child lines, {floods:,} of them repetitions of one line")
    failures = [
        *guided.failures.values(),
        *unguided.failures.values(),
        *([broken] if broken else []),
    ]
    for failure in failures:
        print_line(f"BROKEN {failure}")
    print_line(
        f"{len(failures)} broken invariants"
        + (": `tests/fuzz.py show INPUT` makes one small" if failures else "")
    )
    return 1 if failures else 0


def _run_guided(book: Findings, seconds: int, seed: int) -> tuple[float, str, str]:
    """Run the guided fuzzer. Return its duration in seconds, its coverage as text, and the cause of
    its death, if it died.
    """
    started_at = time.monotonic()
    command = [
        sys.executable,
        "-m",
        "fuzzing.atheris_fuzzer",
        str(FOLDER),
        str(seconds),
        str(seed % (1 << 31) or 1),
    ]
    log = FOLDER / "guided.log"
    with log.open("wb") as file:
        tests = ROOT / "tests"
        paths = os.pathsep.join(map(str, (ROOT, tests, tests / "support")))
        environment = {**os.environ, "PYTHONPATH": paths}
        child = subprocess.Popen(
            command,
            cwd=Path(__file__).parent,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            status = child.wait(seconds + EXIT_SECONDS)
        except subprocess.TimeoutExpired:  # The machine is busy. The findings are in the file.
            child.kill()
            child.wait()
            status = 0
    took = time.monotonic() - started_at
    book.load()
    text = log.read_text(encoding="utf-8", errors="replace")
    coverage_matches = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", text)
    coverage = (
        "{} edges and {} features covered, {} inputs kept".format(*coverage_matches[-1])
        if coverage_matches
        else "no coverage was reported"
    )
    if status:
        return took, coverage, f"the guided fuzzer ended with {status}: {text[-1500:]}"
    return took, coverage, ""


def print_report(name: str, book: Findings, took: float, notes: str) -> None:
    """Print one fuzzer's numbers."""
    rate = f", {book.count_child_lines() / took:,.0f} a second" if took else ""
    print_line(
        f"{name}: {book.count_child_lines():,} child lines in {book.runs:,} runs, {took:.0f} s{rate}"
    )
    print_line(
        "  "
        + " · ".join(f"{target} {book.lines[target]:,}" for target in TARGETS if book.lines[target])
    )
    if notes:
        print_line(f"  {notes}")


# -- one input -------------------------------------------------------------------------------------


def _find_smallest_run(path: Path) -> FuzzRun | None:
    """Return the failing run of an input in its smallest form, or None."""
    for run in parse_input(path.read_bytes(), tuple(TARGETS)):
        broken = find_failure(run)
        if broken is not None:
            return shrink_run(
                run, lambda other, name=broken[0]: (find_failure(other) or ("",))[0] == name
            )
    return None


def show_failure(path: Path) -> int:
    """Print the failure of an input and its smallest run, and write that run beside the input."""
    run = _find_smallest_run(path)
    if run is None:
        print_line("nothing in it breaks an invariant")
        return 0
    path.with_name(path.name + "-small").write_bytes(encode_input([run]))
    print_line(encode_input([run])[:4000])
    print_line((find_failure(run) or ("", "it is not stable"))[1])
    return 1


def keep_as_fixture(path: Path, name: str, sentence: str) -> int:
    """Create a fixture from the run of an input. The failure is fixed by now, so the run is used
    unchanged.
    """
    (run,) = parse_input(path.read_bytes(), tuple(TARGETS))
    if run.target not in CHILDREN or (odd := list_knobs_without_fixture(run)):
        print_line(
            f"a fixture cannot hold this run ({run.target}, {', '.join(odd) if run.target in CHILDREN else ''})"
        )
        return 1
    print_line(f"{write_fixture(run, name, sentence)}: now `make accept`, and read the golden")
    return 0


if __name__ == "__main__":
    sys.exit(main())
