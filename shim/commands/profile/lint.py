"""A vendor run over captured output, and what is to be fixed in it: the core of `shim vendor
check`.

A *finding* is something that a person should look at; a *note* may well be right (a rule for what
no file has, a field that nobody needs). Samples are the vendor's words: secrets are blanked in
them, and they are cut.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import orjson

from shim.commands.profile.tracing import Path, Tracer, spelled, unread
from shim.commands.profile.watched import Verb, watched
from shim.core.adapter.translation import Translation
from shim.core.adapter.vendor import Vendor
from shim.core.claude.pen import TERMINATORS, ClaudePen
from shim.core.reading.account import printable
from shim.core.reading.json_text import dump
from shim.core.reading.lines import INBOUND_BYTES
from shim.core.secrets.redactor import Redactor
from shim.core.turn.outcome import Exit
from shim.core.turn.terms import SessionTerms, Terms, VendorTerms
from shim.profiles.compile.tools import RuledTool

SAMPLE_CHARACTERS = 200  # of a line or a value that is shown
SAMPLE_BYTES = 4096  # of a line are looked through for secrets before it is cut
KINDS = 200  # of findings of one sort: types without a rule, tools without an entry
FIELDS = 500  # that no rule reads, of all files
TYPE_CHARACTERS = 60

# What a translation counts that is no fault of a profile: it repaired what had to be, or it is how
# the vendor works.
HARMLESS = frozenset(
    ("repeated_reply", "surrogate", "joined_line", "bom", "long_integer", "second_result")
)
IDENTITY, SESSION = "00000000-0000-4000-8000-", "00000000-0000-4000-8000-000000000000"
# Claude's own tools: a call by one of these names needs no entry.
CLAUDE = frozenset(
    (
        *(
            "AskUserQuestion",
            "Bash",
            "BashOutput",
            "Edit",
            "ExitPlanMode",
            "Glob",
            "Grep",
            "KillShell",
            "LS",
        ),
        *(
            "MultiEdit",
            "NotebookEdit",
            "Read",
            "Skill",
            "Task",
            "TodoWrite",
            "WebFetch",
            "WebSearch",
            "Write",
        ),
    )
)
TEXTS = ("text", "thinking", "say", "think", "text_snapshot", "thinking_snapshot")

# What each sort of finding means, and what a person does about it.
FINDINGS: Mapping[str, str] = {
    "no_rule": "lines without a rule",
    "not_json": "lines that are no JSON",
    "repair": "lines that had to be repaired, or did not fit what was said before",
    "tool": "tools without an entry in [tools]",
    "open_call": "calls without a result",
    "orphan_result": "results without a call",
    "no_end": "runs whose end no rule says",
    "no_session": "runs without a session id",
    "empty_text": "text rules that never found a text",
}
NOTES: Mapping[str, str] = {
    "unused_rule": "rules that took no line",
    "unread_field": "fields that no rule reads",
    "remark": "remarks",
}


class Explained(NamedTuple):
    """One line of a file: the rules that took it (file:line and what they emit), and the verbs that
    were said.
    """

    place: str
    rules: tuple[tuple[str, str], ...]
    verbs: tuple[str, ...]
    sample: str


class Entry(NamedTuple):
    """One finding or note: its sort, what it is about, how often (`times`), and where it was first."""

    sort: str
    name: str
    times: int
    place: str = ""
    sample: str = ""


class Report(NamedTuple):
    """What was found in all files."""

    vendor: str
    runs: int
    lines: int
    findings: tuple[Entry, ...]
    notes: tuple[Entry, ...]
    verbs: Mapping[str, int]

    def as_json(self) -> dict[str, Any]:
        entries = {"findings": self.findings, "notes": self.notes}
        lists = {
            key: [{k: v for k, v in one._asdict().items() if v} for one in each]
            for key, each in entries.items()
        }
        return {
            "vendor": self.vendor,
            "runs": self.runs,
            "lines": self.lines,
            **lists,
            "verbs": dict(self.verbs),
        }


class _Counter:
    """Entries by sort and name, bounded."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str], list[Any]] = {}
        self._kinds: dict[str, int] = {}

    def add(self, sort: str, name: str, place: str = "", sample: str = "", count: int = 1) -> None:
        known = self.entries.get((sort, name))
        if known is None:
            self._kinds[sort] = self._kinds.get(sort, 0) + 1
            if self._kinds[sort] > KINDS:
                name = "and others"
            known = self.entries.setdefault((sort, name), [0, place, sample])
        known[0] += count

    def list(self, order: Iterable[str]) -> tuple[Entry, ...]:
        ranks = {sort: rank for rank, sort in enumerate(order)}
        found = [Entry(sort, name, *values) for (sort, name), values in self.entries.items()]
        return tuple(sorted(found, key=lambda one: (ranks[one.sort], -one.times)))


class Checker:
    """Runs a vendor over the output of one child after another: `begin`, `feed` …, `end`; then
    `report`.

    `tracer` has the rules of a vendor that is a profile; of a module it is None, and what rules
    would say is left out. `explain` is told of every line. `remarks` are notes about the profile
    itself.
    """

    def __init__(
        self,
        vendor: Vendor,
        tracer: Tracer | None,
        explain: Callable[[Explained], None] | None = None,
        remarks: Iterable[str] = (),
    ) -> None:
        self._vendor = vendor
        self._tracer = tracer
        self._explain = explain
        self._found = _Counter()
        self._notes = _Counter()
        for remark in remarks:
            self._notes.add("remark", remark)
        self._verbs: dict[str, int] = {}
        self._unread: dict[tuple[str, Path], int] = {}
        self._used: dict[int, int] = {}
        self._spoke: dict[int, bool] = {}
        self._redactor = Redactor()
        self._known = _names(vendor)
        self._runs = self._all_lines = 0
        self._said: list[Verb] = []

    def begin(self, label: str) -> None:
        """Another child's output; `label` names it."""
        self._label, self._line = label, 0
        self._ids = False
        self._runs += 1
        vendor = self._vendor
        terms = Terms(
            vendor=VendorTerms(
                vendor.name,
                unattended=vendor.unattended,
                retracts=vendor.abilities.retracts,
                clean_exits=vendor.exit.clean_exits,
            ),
            session=SessionTerms(SESSION),
            tools=vendor.listed,
        )
        pen = ClaudePen(IDENTITY, terminator=TERMINATORS["none"])
        self._translation = Translation(
            watched(vendor.translator, self._verb), terms, pen, inbound=INBOUND_BYTES
        )

    def feed(self, chunk: bytes) -> None:
        for raw in self._translation.split(chunk):
            self._read(raw)

    def end(self, child_exit: Exit | None, stderr: str | None) -> None:
        """The child's output has ended. `stderr` is None if it was not kept."""
        self._line += 1
        self._start_line()
        self._translation.close(child_exit, stderr or "")
        account = self._translation.account
        place = self._label
        for kind, count in account.repairs.items():
            sample = self._sample(account.samples.get(kind, ""))
            if kind in ("orphan_tool_result", "second_tool_result"):
                self._found.add("orphan_result", kind.replace("_", " "), place, sample, count)
            elif kind == "not_json":
                self._found.add("not_json", "not JSON", place, sample, count)
            elif kind not in HARMLESS:
                self._found.add("repair", kind, place, sample, count)
        if not self._ids:
            self._session(stderr)
        self._explained("(the end)", b"")

    def _session(self, stderr: str | None) -> None:
        spoken = getattr(self._vendor.translator, "stderr_rules", ())
        if stderr is None and spoken:
            text = "its session id may stand on stderr, which these files do not have"
            self._notes.add("remark", text, self._label)
        elif self._tracer is not None and not any(
            rule.emit == "session" for rule in self._tracer.rules
        ):
            self._notes.add("remark", "no rule names its session, so none can go on", self._label)
        else:
            self._found.add("no_session", self._label)

    # -- one line ----------------------------------------------------------------------------------

    def _start_line(self) -> None:
        self._said.clear()
        if self._tracer is not None:
            self._tracer.begin()

    def _read(self, raw: bytes) -> None:
        self._line += 1
        self._all_lines += 1
        self._start_line()
        self._translation.read([raw])
        tracer = self._tracer
        if tracer is not None and tracer.took:
            for number in tracer.took:
                self._used[number] = self._used.get(number, 0) + 1
            self._fields(raw, tracer)
        self._explained(f"{self._label}:{self._line}", raw)

    def _explained(self, place: str, raw: bytes) -> None:
        if self._explain is None or not (raw.strip() or self._said):
            return
        tracer = self._tracer
        rules = [] if tracer is None else [tracer.rules[number] for number in tracer.took]
        taken = tuple((one.place, one.emit) for one in rules)
        verbs = tuple(self._spelled(verb) for verb in self._said)
        self._explain(
            Explained(
                place, taken, verbs, self._sample(raw[:SAMPLE_BYTES].decode("utf-8", "replace"))
            )
        )

    def _fields(self, raw: bytes, tracer: Tracer) -> None:
        """Which fields of a line no rule reads; none of a line that is ignored on purpose."""
        taken = [tracer.rules[number] for number in dict.fromkeys(tracer.took)]
        if all(one.emit == "ignore" for one in taken) or len(self._unread) >= FIELDS:
            return
        try:
            event = orjson.loads(raw)
        except orjson.JSONDecodeError:
            return
        if not isinstance(event, dict):
            return
        kind = _kind(event)
        paths = {
            path
            for one in tracer.rules
            if one.types is None or kind in one.types
            for path in one.asked
        }
        for path in unread(event, paths.union(*(one.read for one in taken), {("type",)})):
            self._unread[kind, path] = self._unread.get((kind, path), 0) + 1

    # -- one verb ----------------------------------------------------------------------------------

    def _verb(self, verb: Verb, turn: Any) -> None:
        name = verb.name
        if name in ("closed", "finish"):
            if name == "closed" or turn.outcome is not None:
                self._at_end(turn)
            return
        self._said.append(verb)
        if name == "unknown":
            kind = str(verb.values[0] if verb.values else "untyped")[:TYPE_CHARACTERS]
            line = self._translation.account.line
            self._found.add(
                "no_rule",
                kind,
                f"{self._label}:{self._line}",
                self._sample(line[:SAMPLE_BYTES].decode("utf-8", "replace")),
            )
            return
        self._verbs[name] = self._verbs.get(name, 0) + 1
        if name == "started" and verb.named.get("session_id"):
            self._ids = True
        if name == "tool_use" or (name == "tool_result" and len(verb.values) > 3):
            called = str(verb.values[1 if name == "tool_use" else 3])
            if called not in self._known and not called.startswith("mcp__"):
                self._found.add("tool", called[:TYPE_CHARACTERS], f"{self._label}:{self._line}")
        current = None if self._tracer is None else self._tracer.current
        if name in TEXTS and current is not None:
            text = verb.values[0] if verb.values else None
            self._spoke[current] = self._spoke.get(current, False) or bool(
                isinstance(text, str) and text
            )

    def _at_end(self, turn: Any) -> None:
        """Before the Turn closes what is open."""
        for _, name, _ in list(turn.open.values())[:KINDS]:
            self._found.add("open_call", str(name)[:TYPE_CHARACTERS], self._label)
        if turn.outcome is None:
            self._found.add("no_end", self._label)

    # -- all of it ---------------------------------------------------------------------------------

    def report(self) -> Report:
        tracer, notes = self._tracer, self._notes
        if self._vendor.unattended and self._vendor.speaks:
            notes.add(
                "remark",
                "it counts as an agent that may run any tool unasked: `asks` in [acp] names none",
            )
        if tracer is None:
            notes.add(
                "remark",
                "this vendor is a Python module: it has no rules to name, and what it reads is not known",
            )
        else:
            for one in tracer.rules:
                if one.number not in self._used:
                    notes.add("unused_rule", f"{one.place} {one.emit}")
                elif self._spoke.get(one.number) is False:
                    self._found.add(
                        "empty_text", f"{one.place} {one.emit}", count=self._used[one.number]
                    )
            for (kind, path), count in self._unread.items():
                notes.add("unread_field", f"{kind}: {spelled(path)}", count=count)
        return Report(
            self._vendor.name,
            self._runs,
            self._all_lines,
            self._found.list(FINDINGS),
            notes.list(NOTES),
            dict(sorted(self._verbs.items())),
        )

    def _sample(self, text: str) -> str:
        return printable(self._redactor.text(text))[:SAMPLE_CHARACTERS]

    def _spelled(self, verb: Verb) -> str:
        values = [_json(self._redactor.value(value)) for value in verb.values]
        values += [
            f"{key}={_json(self._redactor.value(value))}" for key, value in verb.named.items()
        ]
        shown = [
            one if len(one) <= SAMPLE_CHARACTERS else one[: SAMPLE_CHARACTERS - 1] + "…"
            for one in values
        ]
        return f"{f'{verb.within}> ' if verb.within else ''}{verb.name} {' '.join(shown)}".rstrip()


def _kind(event: Mapping[str, Any]) -> str:
    kind = event.get("type")
    return kind[:TYPE_CHARACTERS] if isinstance(kind, str) else "(no type)"


def _json(value: Any) -> str:
    try:
        return printable(dump(value))
    except (TypeError, ValueError, RecursionError):
        return printable(repr(value)[:SAMPLE_CHARACTERS])


def _names(vendor: Vendor) -> frozenset[str]:
    """The names that a call of this vendor may have: Claude's, and those that its table gives."""
    names = {*CLAUDE, *vendor.listed}
    for tool in vendor.tools.values():
        names.add(tool.name)
        if isinstance(tool, RuledTool):
            names.update(tool.others)
    return frozenset(names)
