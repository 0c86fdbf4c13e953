"""The guided fuzzer: atheris (libFuzzer) with instrumented shim modules and a mutator that knows
the format.

`tests/fuzz.py` starts it as a separate process, because libFuzzer ends its own process.
"""

import sys
import time
from importlib import import_module
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(include=["shim"]):
    from fuzzing import targets
    from fuzzing.dialects import DIALECTS, PRESENT
    from shim.adapters import VENDORS, get_adapter

    for vendor in VENDORS:
        get_adapter(vendor)
    for name in PRESENT:
        import_module(DIALECTS[name].module)

from fuzzing.edits import apply_edit
from fuzzing.findings import Findings
from fuzzing.inputs import FLOOD, KNOBS, FuzzRun, build_knobs, encode_input, parse_input
from fuzzing.seeds import build_pool, group_seeds_by_target, list_seeds

INPUT_BYTES = 400_000
CORPUS_BYTES = 32_000_000  # at the start of a run
# Limits of an input from the mutator. They are large enough that the lines cost more than the
# setup.
RUNS, LINES = 24, 700
HANG_SECONDS = 60
MEMORY_MEGABYTES = 2048
SAVE_SECONDS = 2.0
NAMES = tuple(targets.TARGETS)


def main(folder: Path, seconds: int, seed: int) -> None:
    """Fuzz for `seconds`. Results are in `folder/guided.json`, the corpus in `folder/corpus`."""
    book = Findings(folder, "guided")
    saved = time.monotonic()

    def run_input(data: bytes) -> None:
        nonlocal saved
        book.check_runs(parse_input(data, NAMES))
        if time.monotonic() - saved > SAVE_SECONDS:
            book.save()
            saved = time.monotonic()

    corpus = folder / "corpus"
    corpus.mkdir(exist_ok=True)
    _prune_corpus(corpus)
    for number, run in enumerate(list_seeds()):
        (corpus / f"seed-{number:03}").write_bytes(encode_input([run]))
    args = [
        f"-max_total_time={seconds}",
        f"-seed={seed}",
        f"-max_len={INPUT_BYTES}",
        f"-timeout={HANG_SECONDS}",
        f"-rss_limit_mb={MEMORY_MEGABYTES}",
        f"-artifact_prefix={folder}/",
        "-len_control=0",
        "-reduce_inputs=0",
        "-print_final_stats=1",
        str(corpus),
    ]
    atheris.Setup([sys.argv[0], *args], run_input, custom_mutator=mutate_input)
    atheris.Fuzz()


def _prune_corpus(corpus: Path) -> None:
    """Keep the small inputs of earlier runs only, because every run starts with reading all of
    them.
    """
    remaining_bytes = CORPUS_BYTES
    for size, path in sorted((path.stat().st_size, path) for path in corpus.iterdir()):
        remaining_bytes -= size
        if remaining_bytes < 0:
            path.unlink()


def mutate_input(data: bytes, most: int, seed: int) -> bytes:
    """Return another input: edited runs, sometimes with new seeds or with a line that libFuzzer
    mutated.
    """
    chance = Random(seed)
    runs = [run for run in parse_input(data, NAMES) if run.lines]
    while len(runs) > RUNS:
        del runs[chance.randrange(len(runs))]
    for number, run in enumerate(runs):
        if chance.random() < 0.7:
            run = run._replace(lines=[line for line in run.lines if not line.startswith(FLOOD)])
        for _ in range(chance.choice((0, 1, 1, 2, 4))):
            run = apply_edit(run, chance.randrange(1 << 16), chance.getrandbits(32), build_pool())
        runs[number] = _mutate_line(run, chance) if chance.random() < 0.1 else run
    size = sum(len(run.lines) for run in runs)
    min_line_count = chance.choice((1, 50, LINES, LINES, LINES))
    while size < min_line_count and len(runs) < RUNS:
        fresh = create_run(chance)
        size += len(fresh.lines)
        runs.append(fresh)
    chance.shuffle(runs)
    while runs and len(made := encode_input(runs)) > most:
        runs.pop()
    return made if runs else data[:most]


def create_run(chance: Random) -> FuzzRun:
    """Return a seed with random settings and some edits."""
    seed = chance.choice(list_seeds())
    run = seed._replace(
        lines=list(seed.lines),
        knobs=build_knobs(**{name: chance.randrange(1 << 16) for name in KNOBS}),
    )
    # For a longer session: the lines before it, mostly without their end.
    for _ in range(chance.choice((0, 2, 8))):
        before = chance.choice(group_seeds_by_target()[run.target]).lines
        run.lines[:0] = before[: -chance.choice((1, 1, 2))] if chance.random() < 0.8 else before
    for _ in range(chance.choice((1, 2, 4, 8))):
        run = apply_edit(run, chance.randrange(1 << 16), chance.getrandbits(32), build_pool())
    return run


def _mutate_line(run: FuzzRun, chance: Random) -> FuzzRun:
    if run.lines:
        index = chance.randrange(len(run.lines))
        line = run.lines[index]
        if line:
            run.lines[index : index + 1] = bytes(atheris.Mutate(line, len(line) + 64)).split(b"\n")
    return run


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
