"""Loads a complete recording for an export: its steps, its totals, and remarks about missing parts."""

from collections.abc import Iterator
from typing import NamedTuple

from shim.core.reading.diagnostics import pluralize
from shim.core.reading.values import as_str
from shim.core.secrets.redactor import describe_redactions
from shim.recording.recording_file import Recording
from shim.story.events import format_model_name
from shim.story.export.view_model import SessionExport
from shim.story.model import SessionStepTracker
from shim.story.reader import TOO_LONG_PHRASE, RecordedSessionStepReader


class LoadedRecording(NamedTuple):
    """A recording that was loaded for an export. `source` describes the origin of the session.
    `notes` are remarks for the reader of the export.
    """

    export: SessionExport
    story: SessionStepTracker
    source: dict[str, str]
    notes: list[str]


def load_recording(path: str, *, redact: bool) -> LoadedRecording:
    """Load a recording up to its end or to where it was cut off. Raise RecordingError if the
    recording cannot be read.
    """
    recording = Recording(path)
    export = SessionExport(redact=redact)
    reader = RecordedSessionStepReader(recording.header)
    for time_s, change in reader.read_step_changes(recording):
        export.add_step_change(time_s, change)
    header = recording.header
    # In a fallback list, a later vendor than the header's may have answered.
    vendor = reader.story.vendor or header.vendor
    version = ""
    if vendor == header.vendor:
        version = as_str(header.vendor_version)
    source = {
        "vendor": export.format_field_value(vendor),
        "version": export.format_field_value(version),
        "started": export.format_field_value(header.started),
        "folder": export.format_field_value(header.cwd),
        "shim": export.format_field_value(header.shim),
        "model": export.format_field_value(format_model_name(reader.story.model)),
    }
    return LoadedRecording(
        export, reader.story, source, list(_list_notes(export, recording, reader))
    )


def _list_notes(
    export: SessionExport, recording: Recording, reader: RecordedSessionStepReader
) -> Iterator[str]:
    skipped = recording.reader.skipped_lines
    if not recording.reader.has_end:
        yield "The recording was cut off: what happened after its last line is unknown."
    if skipped:
        yield f"{pluralize(skipped, 'line')} of the recording could not be read."
    if reader.skipped_line_count:
        yield f"{pluralize(reader.skipped_line_count, 'line')} of the session {TOO_LONG_PHRASE}."
    if any(step.is_truncated for step in export.steps):
        yield (
            f"Texts are shortened to {export.max_text_chars:,} characters; each shortened text states how "
            "many were omitted."
        )
    if export.omitted_steps:
        yield (
            f"{export.omitted_steps:,} more steps are omitted for size; the totals include them."
        )
    if secrets_summary := describe_redactions(export.secret_counts):
        yield f"{secrets_summary}."
