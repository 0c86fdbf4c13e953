"""Recordings in numbers: one run, and many runs added up.

Everything kept has a bound, for any recording: names of tools, causes, samples of times.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from shim.core.cast.records import Header
from shim.core.reading.account import OVERFLOW, printable
from shim.core.secrets.redactor import Redactor
from shim.story.steps import answered_by, cause_of
from shim.story.story import Change, Step, Totals

NAMES = 500  # of tools, vendors, causes, repairs; further names are counted together
NAME_CHARACTERS = 80
PROMPT_CHARACTERS = 200
SAMPLES = 10_000  # of times; beyond that every second one is kept, then every fourth, and so on
TOKENS = {  # the kinds of tokens, and what their columns are called
    "input_tokens": "input",
    "cache_read_input_tokens": "cache read",
    "cache_creation_input_tokens": "cache written",
    "output_tokens": "output",
}
TURN_CALLS = 10_000  # that failed; the result may say that they were denied

# `whole`, `cut off` (its last checkpoint is missing: it ended badly or goes on), `damaged` (lines
# that nobody can read; `shim cast verify` finds what changed and can still be read), `unreadable`
# (no cast, or no file).
State = Literal["whole", "cut off", "damaged", "unreadable"]


class Times:
    """Times in seconds, for medians and percentiles. They are exact for up to SAMPLES times."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._stride = 1
        self._kept: list[float] = []

    def add(self, seconds: float) -> None:
        if self.count % self._stride == 0:
            self._kept.append(seconds)
            if len(self._kept) > SAMPLES:
                del self._kept[1::2]
                self._stride *= 2
        self.count += 1
        self.total += seconds

    def at(self, share: float) -> float:
        """The percentile for a share from 0 to 1; 0 without any time."""
        if not self._kept:
            return 0.0
        ordered = sorted(self._kept)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)]

    def merge(self, other: "Times") -> None:
        count, total = self.count + other.count, self.total + other.total
        for seconds in other._kept:
            for _ in range(other._stride):
                self.add(seconds)
        self.count, self.total = count, total

    def report(self) -> dict[str, float]:
        return {
            "total_s": round(self.total, 3),
            "median_s": round(self.at(0.5), 4),
            "p95_s": round(self.at(0.95), 4),
        }


@dataclass(slots=True)
class CallCounts:
    """The calls of a tool. The rest of `calls` went well; `times` are those of answered calls."""

    calls: int = 0
    failed: int = 0
    denied: int = 0
    unanswered: int = 0
    times: Times = field(default_factory=Times)

    def merge(self, other: "CallCounts") -> None:
        self.calls += other.calls
        self.failed += other.failed
        self.denied += other.denied
        self.unanswered += other.unanswered
        self.times.merge(other.times)

    def report(self) -> dict[str, Any]:
        counts = {name: getattr(self, name) for name in ("calls", "failed", "denied", "unanswered")}
        return counts | self.times.report()


class RecordedRun:
    """One recording in numbers. Feed it the changes of its story, then `close`."""

    def __init__(self, file: str, header: Header | None = None) -> None:
        header = Header() if header is None else header
        self.file = file
        self.state: State = "whole"
        self.problem = ""
        self.started = short(header.started)
        self.vendor = short(header.vendor)
        self.version = short(header.vendor_version or "")
        self.model = ""
        self.prompt = ""
        self.outcome = ""  # of its last turn: `ok` or the cause; "" if none ended
        self.totals = Totals()
        self.tools: dict[str, CallCounts] = {}
        self.causes: dict[str, int] = {}
        self.turns = Times()
        self._failed: list[tuple[Step, CallCounts]] = []

    def feed(self, changes: Iterable[Change]) -> None:
        for what, step, _ in changes:
            if what == "begin":
                self._begun(step)
            elif what == "end" and step.kind == "call":
                self._called(step)

    def close(self, totals: Totals, state: State) -> None:
        self.totals, self.state = totals, state

    def _begun(self, step: Step) -> None:
        if step.kind == "prompt":
            self.prompt = self.prompt or excerpt(step.text)
        elif step.kind == "start":
            self.model = short(step.text)
        elif step.name == "refused" and step.kind == "note":  # perhaps no result says so
            self.outcome = self.outcome or "refused"
        elif step.kind == "result":
            facts = step.facts
            cause = short(cause_of(facts))
            self.outcome = cause or "ok"
            self._answered(answered_by(facts))
            if cause:
                count(self.causes, cause)
            self.turns.add(step.at - step.since)
            self._settle()

    def _answered(self, vendor: str) -> None:
        """In a fallback list this may be a later vendor, whose version is unknown."""
        if vendor and short(vendor) != self.vendor:
            self.vendor, self.version = short(vendor), ""

    def _called(self, step: Step) -> None:
        calls = self.tools.setdefault(named(self.tools, step.name), CallCounts())
        calls.calls += 1
        calls.failed += step.outcome == "failed"
        calls.denied += step.outcome == "denied"
        if step.outcome == "unanswered":
            calls.unanswered += 1
        elif step.until is not None:
            calls.times.add(max(step.until - step.at, 0.0))
        if step.outcome == "failed" and len(self._failed) < TURN_CALLS:
            self._failed.append((step, calls))

    def _settle(self) -> None:
        """Count calls as denied that the result names: Claude answers a denied call with an error."""
        for step, calls in self._failed:
            if step.outcome == "denied":
                calls.failed -= 1
                calls.denied += 1
        self._failed.clear()

    @property
    def denied(self) -> int:
        return sum(calls.denied for calls in self.tools.values())

    @property
    def verdict(self) -> str:
        return (self.outcome or "no turn ended") if self.state == "whole" else self.state

    def report(self) -> dict[str, Any]:
        totals = self.totals
        return {
            "file": self.file,
            "state": self.state,
            "problem": self.problem or None,
            "started": self.started or None,
            "vendor": self.vendor or None,
            "vendor_version": self.version or None,
            "model": self.model or None,
            "prompt": self.prompt,
            "turns": totals.turns,
            "calls": totals.calls,
            "failed_calls": sum(calls.failed for calls in self.tools.values()),
            "denied_calls": self.denied,
            "errors": totals.errors,
            "duration_s": round(totals.duration, 3),
            "cost_usd": totals.cost,
            "tokens": totals.tokens,
            "outcome": self.outcome or None,
        }


class Statistic:
    def __init__(self) -> None:
        self.runs = 0
        self.states: dict[str, int] = {}
        self.turns = Times()
        self.tools: dict[str, CallCounts] = {}
        self.tokens: dict[str, int] = {}
        self.cost = 0.0
        self.seconds: dict[str, float] = {}
        self.causes: dict[str, int] = {}
        self.repairs: dict[str, int] = {}

    def add(self, run: RecordedRun) -> None:
        self.runs += 1
        count(self.states, run.state)
        self.turns.merge(run.turns)
        for name, calls in run.tools.items():
            self.tools.setdefault(named(self.tools, name), CallCounts()).merge(calls)
        for name, number in run.totals.tokens.items():
            self.tokens[name] = self.tokens.get(name, 0) + number
        self.cost += run.totals.cost
        for spent, seconds in run.totals.seconds.items():
            self.seconds[spent] = self.seconds.get(spent, 0.0) + seconds
        for cause, number in run.causes.items():
            count(self.causes, cause, number)
        for repair, number in run.totals.repairs.items():
            count(self.repairs, repair, number)

    @property
    def calls(self) -> CallCounts:
        together = CallCounts()
        for calls in self.tools.values():
            together.merge(calls)
        return together

    def report(self) -> dict[str, Any]:
        return {
            "runs": self.runs,
            "states": self.states,
            "turns": {"count": self.turns.count, **self.turns.report()},
            "calls": self.calls.report(),
            "tokens": self.tokens,
            "cost_usd": round(self.cost, 6),
            "seconds": {name: round(seconds, 3) for name, seconds in self.seconds.items()},
            "errors": self.causes,
            "repairs": self.repairs,
            "tools": {name: calls.report() for name, calls in by_time(self.tools)},
        }


def by_time(tools: Mapping[str, CallCounts]) -> list[tuple[str, CallCounts]]:
    """The tools in the order of their total time, the longest first."""
    return sorted(tools.items(), key=lambda each: (-each[1].times.total, -each[1].calls, each[0]))


def count(counts: dict[str, int], name: object, number: int = 1) -> None:
    """Count under a name, or under OVERFLOW if there are too many names."""
    key = named(counts, name)
    counts[key] = counts.get(key, 0) + number


def named(table: Mapping[str, Any], name: object) -> str:
    """The name of an entry in a table."""
    if (key := _line(name)) not in table:
        key = short(name)
    return key if key in table or len(table) < NAMES else OVERFLOW


def short(value: object) -> str:
    """A name as one printable line without secrets."""
    return _line(Redactor().text(str(value)[: 10 * NAME_CHARACTERS]))


def _line(value: object) -> str:
    return printable(str(value)[:NAME_CHARACTERS]).replace("\n", "\\n").replace("\t", " ")


def excerpt(text: str) -> str:
    """The beginning of a prompt as one line without secrets."""
    clean = Redactor().text(text[: 10 * PROMPT_CHARACTERS])
    line = " ".join(printable(clean).split())
    return line if len(line) <= PROMPT_CHARACTERS else line[: PROMPT_CHARACTERS - 1] + "…"
