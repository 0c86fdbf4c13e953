"""The diagnostics of a run: counts of all repairs and unknown events, each with an example."""

from shim.core.reading.values import MAX_SAMPLE_CHARS, escape_control_chars

# Limits for the diagnostics, because a vendor may print anything. The number of kinds is enough to
# find a problem, and a sample fits into one line of a log.
MAX_KINDS = 64
OVERFLOW_KIND = "other"
NON_EVENT_REPAIRS = frozenset(
    ("not_json", "not_an_event", "line_too_long", "cut_line", "doubtful_event", "malformed_event")
)


class Diagnostics:
    """Counts repairs and unknown events by kind, and stores the first sample of each kind. There
    are at most 64 kinds, and a sample has at most 200 characters.

    `repairs` counts what was repaired, shortened or skipped. `unknown_events` counts the vendor's
    events that have no translation. `redactions` counts the removed secrets, which have no sample.
    `line` is the line that is currently being parsed, and the default sample.
    """

    __slots__ = ("line", "redactions", "repairs", "samples", "unknown_events")

    def __init__(self) -> None:
        self.line = b""
        self.repairs: dict[str, int] = {}
        self.unknown_events: dict[str, int] = {}
        self.redactions: dict[str, int] = {}
        self.samples: dict[str, str] = {}

    @property
    def has_unreadable_output(self) -> bool:
        """Whether the vendor printed text that is not an event, or an event of an unknown kind."""
        if bool(self.unknown_events):
            return True
        return not NON_EVENT_REPAIRS.isdisjoint(self.repairs)

    def record(self, kind: str, sample: object = "", count: int = 1) -> None:
        """Add to the count for a kind of repair. Only the first `sample` (text or bytes) is stored."""
        self._add_count(self.repairs, kind, sample, count)

    def record_unknown_event(self, kind: object, sample: object = "") -> None:
        """Count a vendor event that has no translation."""
        self._add_count(self.unknown_events, str(kind), sample)

    def _add_count(self, counts: dict[str, int], kind: str, sample: object, count: int = 1) -> None:
        kind = escape_control_chars(kind[:MAX_SAMPLE_CHARS])[:MAX_SAMPLE_CHARS]
        if kind not in counts:
            if len(counts) >= MAX_KINDS:
                kind = OVERFLOW_KIND
            if kind not in self.samples and (sample_text := self._format_sample(sample)):
                self.samples[kind] = sample_text
        counts[kind] = counts.get(kind, 0) + count

    def _format_sample(self, sample: object) -> str:
        """Return the beginning of a sample. If the sample is an event, use the text of its line,
        because the event may be too large or too deeply nested to print.
        """
        if not sample or not isinstance(sample, str | bytes):
            sample = self.line or sample
        if not isinstance(sample, str | bytes):
            try:
                if sample:
                    sample = str(sample)
                else:
                    sample = ""
            except (RecursionError, ValueError):
                return ""
        return escape_control_chars(sample[: 4 * MAX_SAMPLE_CHARS])[:MAX_SAMPLE_CHARS]

    def clear(self) -> None:
        """Clear all counts before the child's next turn."""
        for counts in (self.repairs, self.unknown_events, self.redactions, self.samples):
            counts.clear()

    def build_report(self) -> dict[str, object]:
        """Return a JSON-ready object that maps each kind to its count and first sample."""
        redactions = {}
        if self.redactions:
            redactions = {"redacted": dict(self.redactions)}
        return redactions | {
            "repairs": {
                kind: self._build_entry(kind, count) for kind, count in self.repairs.items()
            },
            "unknown_events": {
                kind: self._build_entry(kind, count) for kind, count in self.unknown_events.items()
            },
        }

    def _build_entry(self, kind: str, count: int) -> dict[str, object]:
        sample = self.samples.get(kind)
        if sample is None:
            return {"count": count}
        return {"count": count, "first": sample}


def pluralize(count: int, noun: str) -> str:
    """Return a count with its noun, such as "1 line" or "2 lines". `noun` is in the singular."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
