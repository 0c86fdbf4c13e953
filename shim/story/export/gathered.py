"""Reads a whole cast for an export: sheets, totals, and notes about what is missing."""

from collections.abc import Iterator
from typing import NamedTuple

from shim.core.reading.account import pluralize
from shim.core.secrets.redactor import describe_redactions
from shim.story.export.sheets import SessionExport
from shim.story.reading import TOO_LONG_PHRASE, Recording, StoryReader
from shim.story.steps import format_model_name
from shim.story.story import Story


class LoadedRecording(NamedTuple):
    """`about` says where the session is from, `notes` what a reader of the export should know."""

    export: SessionExport
    story: Story
    source: dict[str, str]
    notes: list[str]


def load_recording(path: str, *, redact: bool) -> LoadedRecording:
    """Read a cast, as far as it goes if it was cut off. CastError if it cannot be read."""
    cast = Recording(path)
    exported, teller = SessionExport(redact=redact), StoryReader(cast.header)
    for at, change in teller.read_changes(cast):
        exported.add_change(at, change)
    header = cast.header
    # in a fallback list a later vendor may have answered
    vendor = teller.story.vendor or header.vendor
    about = {
        "vendor": exported.format_field(vendor),
        "version": exported.format_field(
            (header.vendor_version if vendor == header.vendor else "") or ""
        ),
        "started": exported.format_field(header.started),
        "folder": exported.format_field(header.cwd),
        "shim": exported.format_field(header.shim),
        "model": exported.format_field(format_model_name(teller.story.model)),
    }
    return LoadedRecording(exported, teller.story, about, list(_list_notes(exported, cast, teller)))


def _list_notes(exported: SessionExport, cast: Recording, teller: StoryReader) -> Iterator[str]:
    skipped = cast.reader.skipped_lines
    if not cast.is_complete:
        yield "The recording was cut off: what happened behind its last line is not known."
    if skipped:
        yield f"{pluralize(skipped, 'line')} of the recording could not be read."
    if teller.skipped_lines:
        yield f"{pluralize(teller.skipped_lines, 'line')} of the session {TOO_LONG_PHRASE}."
    if any(sheet.is_truncated for sheet in exported.steps):
        yield f"Texts are cut to {exported.max_text_chars:,} characters; each says how many were left out."
    if exported.omitted_steps:
        yield f"There was no room for {exported.omitted_steps:,} steps more; the totals count them."
    if said := describe_redactions(exported.secret_counts):
        yield f"{said}."
