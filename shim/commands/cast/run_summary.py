"""Summarizes recordings in numbers: a single run, or many runs together.

The numbers of tool names, causes and time samples are limited, so that memory use is bounded.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from shim.core.cast.format import RecordingHeader
from shim.core.reading.diagnostics import OVERFLOW_KIND
from shim.core.reading.values import (
    as_str,
    escape_control_chars,
    format_single_line,
    none_if_empty,
    shorten_end,
)
from shim.core.secrets.redactor import Redactor
from shim.story.events import find_failure_cause, find_vendor_name
from shim.story.model import SessionStep, SessionStepChange, SessionTotals

# The maximum number of different names per table (tools, vendors, causes, repairs).
# All further names are counted together under one name.
MAX_NAMES = 500
MAX_NAME_CHARS = 80
MAX_PROMPT_CHARS = 200
# If there are more samples, only every second sample is kept, then every fourth, and so on.
MAX_SAMPLES = 10_000
TOKEN_COLUMNS = {  # token count → column heading
    "input_tokens": "input",
    "cache_read_input_tokens": "cache read",
    "cache_creation_input_tokens": "cache written",
    "output_tokens": "output",
}

# The state of a recording file:
# `whole`: complete and readable
# `cut off`: the last checkpoint is missing, because the run failed or is still running
# `damaged`: some lines cannot be read (`shim cast verify` also finds changed lines)
# `unreadable`: not a recording, or not a file
RecordingState = Literal["whole", "cut off", "damaged", "unreadable"]


class DurationSamples:
    """Durations in seconds, for medians and percentiles. The results are exact if there are at most
    MAX_SAMPLES durations.
    """

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._stride = 1
        self._samples: list[float] = []

    def add_duration(self, duration_s: float) -> None:
        if self.count % self._stride == 0:
            self._samples.append(duration_s)
            if len(self._samples) > MAX_SAMPLES:
                del self._samples[1::2]
                self._stride *= 2
        self.count += 1
        self.total += duration_s

    def compute_percentile(self, fraction: float) -> float:
        """Return the duration at a percentile, or 0 if there are no durations. `fraction` is
        between 0 and 1.
        """
        if not self._samples:
            return 0.0
        ordered = sorted(self._samples)
        return ordered[min(int(fraction * len(ordered)), len(ordered) - 1)]

    def merge(self, other: "DurationSamples") -> None:
        count = self.count + other.count
        total = self.total + other.total
        for duration_s in other._samples:
            for _ in range(other._stride):
                self.add_duration(duration_s)
        self.count = count
        self.total = total

    def build_json(self) -> dict[str, float]:
        return {
            "total_s": round(self.total, 3),
            "median_s": round(self.compute_percentile(0.5), 4),
            "p95_s": round(self.compute_percentile(0.95), 4),
        }


@dataclass(slots=True)
class ToolCallCounts:
    """Counts the calls of one tool. `calls` is the total number. `times` contains the durations of
    calls that have a result.
    """

    calls: int = 0
    failed: int = 0
    denied: int = 0
    unanswered: int = 0
    times: DurationSamples = field(default_factory=DurationSamples)

    def merge(self, other: "ToolCallCounts") -> None:
        self.calls += other.calls
        self.failed += other.failed
        self.denied += other.denied
        self.unanswered += other.unanswered
        self.times.merge(other.times)

    def build_json(self) -> dict[str, Any]:
        counts = {
            field_name: getattr(self, field_name)
            for field_name in ("calls", "failed", "denied", "unanswered")
        }
        return counts | self.times.build_json()


class RecordedRunSummary:
    """The summary of one recording in numbers. Add its step changes first, and call `close` at the
    end.
    """

    def __init__(self, file: str, header: RecordingHeader | None = None) -> None:
        if header is None:
            header = RecordingHeader()
        self.file = file
        self.state: RecordingState = "whole"
        self.problem = ""
        self.started = redact_secrets_in_name(header.started)
        self.vendor = redact_secrets_in_name(header.vendor)
        self.version = redact_secrets_in_name(as_str(header.vendor_version))
        self.model = ""
        self.prompt = ""
        self.outcome = ""  # `ok` or the cause of the last turn; "" if no turn ended
        self.totals = SessionTotals()
        self.tools: dict[str, ToolCallCounts] = {}
        self.causes: dict[str, int] = {}
        self.turns = DurationSamples()

    def feed(self, changes: Iterable[SessionStepChange]) -> None:
        for change_kind, step, _ in changes:
            if change_kind == "begin":
                self._add_started_step(step)
            elif change_kind == "end" and step.kind == "call":
                self._add_call(step)
            elif change_kind == "denied":
                calls = self._get_counts(step)
                calls.failed -= 1
                calls.denied += 1

    def close(self, totals: SessionTotals, state: RecordingState) -> None:
        self.totals = totals
        self.state = state

    def _add_started_step(self, step: SessionStep) -> None:
        if step.kind == "prompt":
            if not self.prompt:
                self.prompt = format_prompt_excerpt(step.text)
        elif step.kind == "start":
            self.model = redact_secrets_in_name(step.text)
        elif step.name == "refused" and step.kind == "note":  # a refused run may have no result
            if not self.outcome:
                self.outcome = "refused"
        elif step.kind == "result":
            fields = step.facts
            cause = redact_secrets_in_name(find_failure_cause(fields))
            self.outcome = "ok"
            self._set_answering_vendor(find_vendor_name(fields))
            if cause:
                self.outcome = cause
                increment_counter(self.causes, cause)
            self.turns.add_duration(step.at - step.since)

    def _set_answering_vendor(self, vendor: str) -> None:
        """Set the vendor that answered. In a fallback list, a later vendor may have answered, and
        its version is unknown.
        """
        if vendor and redact_secrets_in_name(vendor) != self.vendor:
            self.vendor = redact_secrets_in_name(vendor)
            self.version = ""

    def _add_call(self, step: SessionStep) -> None:
        calls = self._get_counts(step)
        calls.calls += 1
        calls.failed += step.outcome == "failed"
        calls.denied += step.outcome == "denied"
        if step.outcome == "unanswered":
            calls.unanswered += 1
        elif step.until is not None:
            calls.times.add_duration(step.run_time_s)

    def _get_counts(self, step: SessionStep) -> ToolCallCounts:
        return self.tools.setdefault(
            choose_counter_key_or_overflow_key(self.tools, step.name), ToolCallCounts()
        )

    @property
    def denied_call_count(self) -> int:
        return sum(calls.denied for calls in self.tools.values())

    @property
    def outcome_text(self) -> str:
        if self.state == "whole":
            return self.outcome or "no turn ended"
        return self.state

    def build_json(self) -> dict[str, Any]:
        totals = self.totals
        return {
            "file": self.file,
            "state": self.state,
            "problem": none_if_empty(self.problem),
            "started": none_if_empty(self.started),
            "vendor": none_if_empty(self.vendor),
            "vendor_version": none_if_empty(self.version),
            "model": none_if_empty(self.model),
            "prompt": self.prompt,
            "turns": totals.turns,
            "calls": totals.calls,
            "failed_calls": sum(calls.failed for calls in self.tools.values()),
            "denied_calls": self.denied_call_count,
            "errors": totals.errors,
            "duration_s": round(totals.duration_s, 3),
            "cost_usd": totals.cost_usd,
            "tokens": totals.tokens,
            "outcome": none_if_empty(self.outcome),
        }


class RecordedRunStatistics:
    def __init__(self) -> None:
        self.runs = 0
        self.states: dict[str, int] = {}
        self.turns = DurationSamples()
        self.tools: dict[str, ToolCallCounts] = {}
        self.tokens: dict[str, int] = {}
        self.cost = 0.0
        self.seconds: dict[str, float] = {}
        self.causes: dict[str, int] = {}
        self.repairs: dict[str, int] = {}

    def add_run(self, run: RecordedRunSummary) -> None:
        self.runs += 1
        increment_counter(self.states, run.state)
        self.turns.merge(run.turns)
        for name, calls in run.tools.items():
            self.tools.setdefault(
                choose_counter_key_or_overflow_key(self.tools, name), ToolCallCounts()
            ).merge(calls)
        for name, number in run.totals.tokens.items():
            self.tokens[name] = self.tokens.get(name, 0) + number
        self.cost += run.totals.cost_usd
        for activity, seconds in run.totals.seconds.items():
            self.seconds[activity] = self.seconds.get(activity, 0.0) + seconds
        for cause, number in run.causes.items():
            increment_counter(self.causes, cause, number)
        for repair, number in run.totals.repairs.items():
            increment_counter(self.repairs, repair, number)

    @property
    def calls(self) -> ToolCallCounts:
        total = ToolCallCounts()
        for calls in self.tools.values():
            total.merge(calls)
        return total

    def build_json(self) -> dict[str, Any]:
        return {
            "runs": self.runs,
            "states": self.states,
            "turns": {"count": self.turns.count, **self.turns.build_json()},
            "calls": self.calls.build_json(),
            "tokens": self.tokens,
            "cost_usd": round(self.cost, 6),
            "seconds": {name: round(seconds, 3) for name, seconds in self.seconds.items()},
            "errors": self.causes,
            "repairs": self.repairs,
            "tools": {
                name: calls.build_json() for name, calls in sort_tools_by_total_time(self.tools)
            },
        }


def sort_tools_by_total_time(
    tools: Mapping[str, ToolCallCounts],
) -> list[tuple[str, ToolCallCounts]]:
    """Return the tools in descending order of their total time."""
    return sorted(tools.items(), key=lambda item: (-item[1].times.total, -item[1].calls, item[0]))


def increment_counter(counts: dict[str, int], name: object, number: int = 1) -> None:
    """Increase the count for a name. If there are too many names, count the name under
    OVERFLOW_KIND.
    """
    key = choose_counter_key_or_overflow_key(counts, name)
    counts[key] = counts.get(key, 0) + number


def choose_counter_key_or_overflow_key(counters: Mapping[str, Any], name: object) -> str:
    """Return the table key for a name: the name itself, or OVERFLOW_KIND if the table is full."""
    if (key := _format_line(name)) not in counters:
        key = redact_secrets_in_name(name)
    if key in counters or len(counters) < MAX_NAMES:
        return key
    return OVERFLOW_KIND


def redact_secrets_in_name(value: object) -> str:
    """Return a name as one escaped line without secrets."""
    return _format_line(Redactor().redact_text(str(value)[: 10 * MAX_NAME_CHARS]))


def _format_line(value: object) -> str:
    return format_single_line(str(value)[:MAX_NAME_CHARS]).replace("\t", " ")


def format_prompt_excerpt(text: str) -> str:
    """Return the beginning of a prompt as one line without secrets."""
    redacted_text = Redactor().redact_text(text[: 10 * MAX_PROMPT_CHARS])
    return shorten_end(" ".join(escape_control_chars(redacted_text).split()), MAX_PROMPT_CHARS)
