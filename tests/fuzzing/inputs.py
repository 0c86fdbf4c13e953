"""One input of the fuzzers: some runs, each with a first line that says how it is started, then its
bytes.

    FS pi 1 0 2 0 0 1 17 0
    {"type":"session", ...

A file of this format is what the guided fuzzer keeps, so an artifact can be read and edited. What
cannot be parsed means the first of each choice: every file is an input.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

START = b"\x1c"  # before a run's first line
# before a line that comes many times: `<count> <line>`, with the number in place of every %d
FLOOD = b"\x10"
FLOOD_LINES = 12_000  # more than any table of the Turn holds
RUN_BYTES = 8 * 1024 * 1024  # of a run, floods and all: what is longer is not fuzzing but waiting
KNOB_LARGEST = 1 << 16

KNOBS = ("partial", "dialect", "exit", "stderr", "terms", "limit", "cut", "turns")


class FuzzRun(NamedTuple):
    """What one target is fed: a vendor's name (or another target's), how it is set up, and its
    lines.
    """

    target: str
    knobs: tuple[int, ...]
    lines: list[bytes]

    def resolve_knob(self, name: str, choices: int) -> int:
        """The choice that a knob makes among so many."""
        return self.knobs[KNOBS.index(name)] % choices

    def encode_body(self) -> bytes:
        """The bytes of the run, floods written out; the last line has no LF of its own."""
        return b"\n".join(self.expand_lines())

    def expand_lines(self) -> Iterator[bytes]:
        """The lines of the run, floods written out."""
        remaining_bytes, flooded = RUN_BYTES, False
        for line in self.lines:
            # One flood in a run: a second one says no more, and would take the time of other lines.
            for expanded_line in (
                _expand_flood(line, 1 if flooded else FLOOD_LINES)
                if line.startswith(FLOOD)
                else (line,)
            ):
                remaining_bytes -= len(expanded_line)
                if remaining_bytes < 0:
                    return
                yield expanded_line
            flooded = flooded or line.startswith(FLOOD)

    def count_flood_lines(self) -> int:
        """How many of its lines are repetitions."""
        return next((_count_flood(line) for line in self.lines if line.startswith(FLOOD)), 0)

    def replace_knobs(self, **knobs: int) -> "FuzzRun":
        """The same lines, set up otherwise."""
        values = list(self.knobs)
        for name, value in knobs.items():
            values[KNOBS.index(name)] = value % KNOB_LARGEST
        return self._replace(knobs=tuple(values))


def build_knobs(**chosen: int) -> tuple[int, ...]:
    """A value for each knob, 0 for those not named."""
    return tuple(chosen.get(name, 0) for name in KNOBS)


def parse_input(data: bytes, targets: Sequence[str]) -> list[FuzzRun]:
    """The runs of an input."""
    runs: list[FuzzRun] = []
    for line in data.split(b"\n"):
        if line.startswith(START) or not runs:
            runs.append(_parse_header(line, targets))
        if not line.startswith(START):
            runs[-1].lines.append(line)
    return runs


def encode_input(runs: Iterable[FuzzRun]) -> bytes:
    """Runs as an input."""
    return b"\n".join(
        b"\n".join(
            [
                b"%b%b %b"
                % (START, run.target.encode(), b" ".join(b"%d" % value for value in run.knobs)),
                *run.lines,
            ]
        )
        for run in runs
    )


def _parse_header(line: bytes, targets: Sequence[str]) -> FuzzRun:
    tokens = line[1:].decode("ascii", "replace").split() if line.startswith(START) else []
    target = (
        tokens[0]
        if tokens and tokens[0] in targets
        else targets[len(tokens[0]) % len(targets) if tokens else 0]
    )
    values = [
        int(token) % KNOB_LARGEST if token.isascii() and token.isdigit() and len(token) < 9 else 0
        for token in tokens[1:]
    ]
    return FuzzRun(target, tuple([*values, *(0 for _ in KNOBS)][: len(KNOBS)]), [])


def _count_flood(line: bytes) -> int:
    count = line[1:].split(b" ", 1)[0]
    return min(int(count), FLOOD_LINES) if count.isdigit() and len(count) < 9 else 1


def _expand_flood(line: bytes, most: int) -> Iterator[bytes]:
    text = line[1:].split(b" ", 1)[-1]
    return (text.replace(b"%d", b"%d" % number) for number in range(min(_count_flood(line), most)))
