"""One input of the fuzzers: some runs. The first line of a run describes its start; its bytes
follow.

    FS pi 1 0 2 0 0 1 17 0
    {"type":"session", ...

The guided fuzzer stores files in this format, so an artifact can be read and edited. An unreadable
part means the first choice, so every file is a valid input.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

START = b"\x1c"  # before a run's first line
# Before a line that is repeated: `<count> <line>`, with the number in place of every %d.
FLOOD = b"\x10"
FLOOD_LINES = 12_000  # more than any table of the Turn can hold
RUN_BYTES = 8 * 1024 * 1024  # of a run including floods: fuzzing a longer run takes too long
KNOB_LARGEST = 1 << 16

KNOBS = ("partial", "dialect", "exit", "stderr", "terms", "limit", "cut", "turns")


class FuzzRun(NamedTuple):
    """The input of one target: the name of a vendor or another target, its settings, and its
    lines.
    """

    target: str
    knobs: tuple[int, ...]
    lines: list[bytes]

    def resolve_knob(self, name: str, choices: int) -> int:
        """Return the selected choice of `choices`."""
        return self.knobs[KNOBS.index(name)] % choices

    def encode_body(self) -> bytes:
        """Return the bytes of the run with its floods expanded. The last line has no LF."""
        return b"\n".join(self.expand_lines())

    def expand_lines(self) -> Iterator[bytes]:
        """Yield the lines of the run with its floods expanded."""
        remaining_bytes, flooded = RUN_BYTES, False
        for line in self.lines:
            # One flood per run: a second one finds nothing new and takes the time of other lines.
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
        """Return how many of the lines are repetitions."""
        return next((_count_flood(line) for line in self.lines if line.startswith(FLOOD)), 0)

    def replace_knobs(self, **knobs: int) -> "FuzzRun":
        """Return the same lines with other settings."""
        values = list(self.knobs)
        for name, value in knobs.items():
            values[KNOBS.index(name)] = value % KNOB_LARGEST
        return self._replace(knobs=tuple(values))


def build_knobs(**chosen: int) -> tuple[int, ...]:
    """Return a value for each setting, 0 for those that are not named."""
    return tuple(chosen.get(name, 0) for name in KNOBS)


def parse_input(data: bytes, targets: Sequence[str]) -> list[FuzzRun]:
    runs: list[FuzzRun] = []
    for line in data.split(b"\n"):
        if line.startswith(START) or not runs:
            runs.append(_parse_header(line, targets))
        if not line.startswith(START):
            runs[-1].lines.append(line)
    return runs


def encode_input(runs: Iterable[FuzzRun]) -> bytes:
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
