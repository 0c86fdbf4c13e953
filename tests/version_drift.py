"""Prints the drift in recordings: events and fields that a vendor prints now and that are new to
the shim.

    python tests/version_drift.py CAST ...

Each CAST is a recording, or a folder of recordings. Run it over recordings of a version that is
newer than the tested ones, before `tested` of the vendor is raised. The exit status is 1 if
something is new, or if a recording cannot be read.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "support"))

from drift import RecordedFields, collect_handled_names, list_new_names, load_recorded_fields

from shim.adapters import get_adapter
from shim.conversation.drivers.open_translation import create_standalone_child_stream
from shim.core.cast.format import RecordingHeader
from shim.core.errors import ShimError
from shim.core.reading.lines import LineSplitter
from shim.core.reading.values import escape_control_chars
from shim.recording.folders import list_cast_paths
from shim.recording.recording_file import Recording
from shim.story.reader import parse_json_objects

# The fields of a longer line are not read, because such a line mostly consists of one text.
MAX_LINE_BYTES = 1024 * 1024
# The diagnostic for an event without a field that its handler needs.
MALFORMED_REPAIR = "malformed_event"


@dataclass
class VendorDrift:
    """The new names in the recordings of one version of a vendor."""

    vendor: str
    version: str
    recordings: set[str] = field(default_factory=set)  # paths
    events: Counter[str] = field(default_factory=Counter)  # events that are not translated
    # fields that neither rules, handlers nor fixtures have
    fields: Counter[str] = field(default_factory=Counter)
    malformed: int = 0  # events without a field that their handler needs

    def has_news(self) -> bool:
        """Return whether anything is new."""
        return bool(self.events or self.fields or self.malformed)

    def describe(self) -> Iterator[str]:
        """Yield the lines of a report for a person."""
        yield f"{self.vendor} {self.version}, recordings: {len(self.recordings)}"
        for title, counts in (
            ("events that are not translated", self.events),
            ("new fields", self.fields),
        ):
            if counts:
                names = ", ".join(f"{name} ({count})" for name, count in counts.items())
                yield f"  {title}: {names}"
        if self.malformed:
            yield f"  events without what their handler needs: {self.malformed}"
        if not self.has_news():
            yield "  nothing is new"


class ChildReader:
    """Translates the output of one child for its diagnostics, and searches each event for new
    fields.
    """

    def __init__(
        self,
        vendor: str,
        version: str | None,
        recorded_fields: RecordedFields | None,
        handled_names: frozenset[str],
    ) -> None:
        """Start reading. `recorded_fields` is None for a vendor without fixtures, whose fields are
        not searched.
        """
        self.vendor = vendor
        self._version = version
        self._recorded_fields = recorded_fields
        self._handled_names = handled_names
        self._translation = create_standalone_child_stream(
            vendor, terminator="none", stable_ids=True
        )
        self._lines = LineSplitter(MAX_LINE_BYTES)
        self._new_names: Counter[str] = Counter()

    @property
    def version(self) -> str:
        """The version in the header of the recording, or else in the child's stream."""
        version = self._version or self._translation.turn.vendor_info.get("vendor_version")
        if isinstance(version, str) and version:
            return version
        return "unknown"

    def feed(self, data: bytes) -> None:
        """Read a piece of the child's stdout."""
        self._translation.feed(data)
        if self._recorded_fields is None:
            return
        for event in parse_json_objects(b"\n".join(self._lines.feed(data))):
            self._new_names.update(
                list_new_names(event, self._recorded_fields, self._handled_names)
            )

    def finish(self) -> None:
        """End the last line, which has no newline if the child was killed."""
        self.feed(b"\n")

    def add_to(self, drift: VendorDrift) -> None:
        """Add the new names to the drift of the version. A field of an untranslated event is not
        added again.
        """
        diagnostics = self._translation.diagnostics
        drift.malformed += diagnostics.repairs.get(MALFORMED_REPAIR, 0)
        drift.events.update(diagnostics.unknown_events)
        for name, count in self._new_names.items():
            kind, colon, _ = name.partition(": ")
            if (
                kind not in diagnostics.unknown_events
                and kind.partition("/")[0] not in diagnostics.unknown_events
            ):
                counts = drift.events
                if colon:
                    counts = drift.fields
                counts[name] += count


class DriftReport:
    """The drift of many recordings, for each version of each vendor."""

    def __init__(self) -> None:
        self.drifts: dict[tuple[str, str], VendorDrift] = {}
        self._recorded = load_recorded_fields()

    def add(self, path: str) -> None:
        """Read one recording. Raise RecordingError if it cannot be read or is not a recording."""
        cast = Recording(path)
        child: ChildReader | None = None
        try:
            for record in cast.read_records():
                if record.code == "s":
                    self._close(child, path)
                    child = self._open(cast.header, record.fields.get("vendor"))
                elif record.code == "o" and child is not None:
                    child.feed(record.data)
        finally:
            cast.close()
            self._close(child, path)

    def _open(self, header: RecordingHeader, child_vendor: object) -> ChildReader | None:
        """Return a reader for a child, or None if its vendor is unknown or its lines are passed
        through.

        `child_vendor` is set if an earlier vendor of a list could not answer and this child belongs
        to a later one.
        """
        name = header.vendor
        version = header.vendor_version
        if isinstance(child_vendor, str):
            name = child_vendor
            version = None
        try:
            vendor = get_adapter(name)
        except ShimError:
            return None
        if vendor.passthrough or vendor.cli.bundled_module:
            return None
        return ChildReader(
            name,
            version,
            self._recorded.get(name),
            collect_handled_names(name, vendor.translator_class),
        )

    def _close(self, child: ChildReader | None, path: str) -> None:
        if child is None:
            return
        child.finish()
        key = (child.vendor, child.version)
        drift = self.drifts.setdefault(key, VendorDrift(*key))
        drift.recordings.add(path)
        child.add_to(drift)


def find_drift(
    paths: Iterable[str], report_error: Callable[[Exception], None] | None = None
) -> list[VendorDrift]:
    """Return the drift of recordings, given as files and folders.

    A recording that cannot be read is skipped, and its error is passed to `report_error`. Without
    that function the error is raised.
    """
    report = DriftReport()
    for path in list(list_cast_paths(paths)):
        try:
            report.add(path)
        except (ShimError, OSError) as error:
            if report_error is None:
                raise
            report_error(error)
    return list(report.drifts.values())


def main(arguments: list[str] | None = None) -> int:
    """Print the drift of the recordings that are named. A recording that cannot be read is reported
    and skipped.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("casts", nargs="+", metavar="CAST", help="recordings, or folders of them")
    errors: list[Exception] = []
    try:
        drifts = find_drift(parser.parse_args(arguments).casts, errors.append)
    except ShimError as error:
        parser.error(str(error))
    for error in errors:
        sys.stderr.write(escape_control_chars(str(error)) + "\n")
    for drift in drifts:
        for line in drift.describe():
            sys.stdout.write(escape_control_chars(line) + "\n")
    return int(bool(errors) or any(drift.has_news() for drift in drifts))


if __name__ == "__main__":
    raise SystemExit(main())
