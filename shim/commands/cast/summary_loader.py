"""Loads and summarizes recording files. If a file cannot be read, its summary contains the error."""

from collections.abc import Iterable, Iterator

from shim.commands.cast.run_summary import RecordedRunSummary
from shim.core.cast.format import RecordingError
from shim.core.reading.diagnostics import pluralize
from shim.core.reading.values import format_single_line
from shim.recording.folders import list_cast_paths
from shim.recording.recording_file import Recording
from shim.story.reader import RecordedSessionStepReader
from shim.story.terminal.progress import show_progress


def load_run_summaries(paths: Iterable[str]) -> Iterator[RecordedRunSummary]:
    """Return a summary for each file, sorted by file name. Progress is shown on a terminal."""
    files = list(list_cast_paths(paths))
    with show_progress("reading recordings", len(files)) as advance:
        for path in files:
            yield load_run_summary(path)
            advance()


def load_run_summary(path: str) -> RecordedRunSummary:
    """Return the summary of a recording. If the file cannot be read, the summary's state is
    `unreadable`.
    """
    summary = RecordedRunSummary(path)
    try:
        recording = Recording(path)
        summary = RecordedRunSummary(path, recording.header)
        story_reader = RecordedSessionStepReader(recording.header)
        summary.feed(change for _, change in story_reader.read_step_changes(recording))
    except RecordingError as error:
        summary.state, summary.problem = "unreadable", format_single_line(error)
        return summary
    reader = recording.reader
    if reader.skipped_lines and (reader.has_end or reader.skipped_lines > 1):
        summary.problem = f"{pluralize(reader.skipped_lines, 'line')} cannot be read"
        summary.close(story_reader.story.totals, "damaged")
    else:
        summary.close(story_reader.story.totals, "whole" if reader.has_end else "cut off")
    return summary
