"""Recordings in files, each as one run in numbers. A mistake in a file is said in its row."""

import os
from collections.abc import Iterable, Iterator, Mapping

from shim.commands.cast.summary import RecordedRun
from shim.core.cast.records import CastError
from shim.core.claude.argv.invocation import Invocation
from shim.core.reading.account import counted, printable
from shim.recording.folders import cast_paths
from shim.state.config import load
from shim.story.reading import Cast, Teller
from shim.story.terminal.console import one_line


def runs_of(paths: Iterable[str]) -> Iterator[RecordedRun]:
    """One run for each file, in the order of names."""
    for path in cast_paths(paths):
        yield run_of(path)


def run_of(path: str) -> RecordedRun:
    """A recording in numbers, with the state `unreadable` if it cannot be read."""
    run = RecordedRun(path)
    try:
        cast = Cast(path)
        run, teller = RecordedRun(path, cast.header), Teller(cast.header)
        run.feed(change for _, change in teller.tell(cast))
    except CastError as error:
        run.state, run.problem = "unreadable", one_line(error)
        return run
    reader = cast.reader
    if reader.skipped and (reader.ended or reader.skipped > 1):
        run.problem = f"{counted(reader.skipped, 'line')} cannot be read"
        run.close(teller.story.totals, "damaged")
    else:
        run.close(teller.story.totals, "whole" if reader.ended else "cut off")
    return run


def usual_folder(environment: Mapping[str, str]) -> str:
    """The folder that runs are recorded into. CastError if none is set."""
    chosen = environment.get("SHIM_RECORD") or load(Invocation(), environment).record
    if chosen and os.path.isdir(path := os.path.expanduser(chosen)):
        return path
    raise CastError(
        "no recording is named"
        + (f"; {printable(chosen)}, where runs are recorded, is not a folder" if chosen else ""),
        hint="name recordings or folders; without any, the folder of `record` (or SHIM_RECORD) is used",
    )
