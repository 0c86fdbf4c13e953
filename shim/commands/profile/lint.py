"""Translates captured output with a vendor's adapter and reports what to fix, for `shim vendor
check`.

A *finding* is something that a person should look at. A *note* may be correct as it is, for example
a rule that no file needs or a field that no rule reads. Samples are text from the vendor; they are
redacted and shortened.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from shim.commands.profile.rule_tracer import (
    FieldPath,
    RuleTracer,
    find_unread_paths,
    format_field_path,
)
from shim.commands.profile.turn_observer import TurnMethodCall, create_observed_translator_class
from shim.core.adapter.adapter import Adapter
from shim.core.adapter.child_stream import ChildStream
from shim.core.claude.writer import TERMINATORS, StreamJsonWriter
from shim.core.reading import MAX_LINE_BYTES
from shim.core.reading.json_text import dump_json, parse_json_object
from shim.core.reading.lines import LineSplitter
from shim.core.reading.values import as_str, escape_control_chars, shorten_end
from shim.core.secrets.redactor import Redactor
from shim.core.turn.context import SessionConfig, TurnConfig, VendorInfo
from shim.core.turn.outcome import ChildExit
from shim.profiles.compile.tools import ProfileTool

MAX_SAMPLE_CHARS = 200  # per line or value in the report
MAX_SAMPLE_BYTES = 4096  # searched for secrets before a line is shortened
# The maximum number of findings per kind, for example of tools without an entry.
MAX_KINDS = 200
MAX_FIELDS = 500  # unread fields in all files together
MAX_TYPE_CHARS = 60

# Repairs that do not indicate a defect in a profile. The vendor's output makes them necessary.
HARMLESS_REPAIRS = frozenset(
    ("repeated_reply", "surrogate", "joined_line", "bom", "long_integer", "second_result")
)
ID_PREFIX = "00000000-0000-4000-8000-"
SAMPLE_SESSION_ID = "00000000-0000-4000-8000-000000000000"
# Claude's tools. A profile needs no entry for these names.
CLAUDE_TOOLS = frozenset(
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
TEXT_VERBS = ("text", "thinking", "say", "think", "text_snapshot", "thinking_snapshot")

# Kind of finding → title in the report.
FINDING_TITLES: Mapping[str, str] = {
    "no_rule": "lines without a rule",
    "not_json": "lines that are not JSON",
    "repair": "lines that were repaired, or that do not fit earlier lines",
    "tool": "tools without an entry in [tools]",
    "open_call": "calls without a result",
    "orphan_result": "results without a call",
    "no_end": "runs whose end no rule reports",
    "no_session": "runs without a session id",
    "empty_text": "text rules that never matched a text",
}
NOTE_TITLES: Mapping[str, str] = {
    "unused_rule": "rules that matched no line",
    "unread_field": "fields that no rule reads",
    "remark": "remarks",
}


class LineExplanation(NamedTuple):
    """Explains one line of a file: the rules that matched it (file:line and what they emit), and
    the Turn methods that were called.
    """

    place: str
    rules: tuple[tuple[str, str], ...]
    verbs: tuple[str, ...]
    sample: str


class LintReportEntry(NamedTuple):
    """A finding or note: its kind, its subject, how often it occurred (`times`), and the place
    where it first occurred.
    """

    sort: str
    name: str
    times: int
    place: str = ""
    sample: str = ""


class LintReport(NamedTuple):
    """The findings and notes about all captured files."""

    vendor: str
    run_count: int
    line_count: int
    findings: tuple[LintReportEntry, ...]
    notes: tuple[LintReportEntry, ...]
    verb_counts: Mapping[str, int]

    def format_json(self) -> dict[str, Any]:
        entries = {"findings": self.findings, "notes": self.notes}
        lists = {
            key: [{k: v for k, v in entry._asdict().items() if v} for entry in entries_of_kind]
            for key, entries_of_kind in entries.items()
        }
        return {
            "vendor": self.vendor,
            "runs": self.run_count,
            "lines": self.line_count,
            **lists,
            "verbs": dict(self.verb_counts),
        }


class _EntryCounter:
    """Counts findings or notes by kind and name, up to a limit."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str], list[Any]] = {}
        self._kind_counts: dict[str, int] = {}

    def add_entry(
        self, sort: str, name: str, location: str = "", sample: str = "", count: int = 1
    ) -> None:
        entry = self.entries.get((sort, name))
        if entry is None:
            self._kind_counts[sort] = self._kind_counts.get(sort, 0) + 1
            if self._kind_counts[sort] > MAX_KINDS:
                name = "and others"
            entry = self.entries.setdefault((sort, name), [0, location, sample])
        entry[0] += count

    def list_entries(self, order: Iterable[str]) -> tuple[LintReportEntry, ...]:
        ranks = {sort: order_index for order_index, sort in enumerate(order)}
        entries = [
            LintReportEntry(sort, name, *values) for (sort, name), values in self.entries.items()
        ]
        return tuple(sorted(entries, key=lambda entry: (ranks[entry.sort], -entry.times)))


class ProfileLinter:
    """Translates the output of one child after another. `build_report` returns the findings and
    notes.

    `tracer` holds a profile's rules. It is None for an adapter in Python, which has no rules to
    report. `on_explanation` is called for every line. `remarks` are notes about the profile itself.
    """

    def __init__(
        self,
        adapter: Adapter,
        tracer: RuleTracer | None,
        on_explanation: Callable[[LineExplanation], None] | None = None,
        remarks: Iterable[str] = (),
    ) -> None:
        self._adapter = adapter
        self._tracer = tracer
        self._on_explanation = on_explanation
        self._findings = _EntryCounter()
        self._notes = _EntryCounter()
        for remark in remarks:
            self._notes.add_entry("remark", remark)
        self._verb_counts: dict[str, int] = {}
        self._unread_counts: dict[tuple[str, FieldPath], int] = {}
        self._match_counts: dict[int, int] = {}
        self._has_text_by_rule: dict[int, bool] = {}
        self._redactor = Redactor()
        self._tool_names = _list_tool_names(adapter)
        self._run_count = self._line_count = 0
        self._verbs_of_line: list[TurnMethodCall] = []

    def start_child_output(self, label: str) -> None:
        """Start the output of the next child. `label` names the child in the report."""
        self._label = label
        self._line_number = 0
        self._has_session_id = False
        self._run_count += 1
        adapter = self._adapter
        config = TurnConfig(
            vendor=VendorInfo(
                adapter.name,
                is_unattended=adapter.unattended,
                can_retract=adapter.abilities.can_repeat_reply,
                clean_exit_codes=adapter.shutdown.clean_exit_codes,
            ),
            session=SessionConfig(SAMPLE_SESSION_ID),
            tools=adapter.listed_tools,
        )
        writer = StreamJsonWriter(ID_PREFIX, terminator=TERMINATORS["none"])
        self._child_stream = ChildStream(
            create_observed_translator_class(adapter.translator_class, self._record_verb),
            config,
            writer,
            create_splitter=partial(LineSplitter, MAX_LINE_BYTES),
        )

    def feed(self, chunk: bytes) -> None:
        for line in self._child_stream.split_lines(chunk):
            self._read_line(line)

    def end_child_output(self, child_exit: ChildExit | None, stderr: str | None) -> None:
        """End the current child's output. `stderr` is None if stderr was not recorded."""
        self._line_number += 1
        self._start_line()
        self._child_stream.close(child_exit, as_str(stderr))
        diagnostics = self._child_stream.diagnostics
        location = self._label
        for kind, count in diagnostics.repairs.items():
            sample = self._format_sample(diagnostics.samples.get(kind, ""))
            if kind in ("orphan_tool_result", "second_tool_result"):
                self._findings.add_entry(
                    "orphan_result", kind.replace("_", " "), location, sample, count
                )
            elif kind == "not_json":
                self._findings.add_entry("not_json", "not JSON", location, sample, count)
            elif kind not in HARMLESS_REPAIRS:
                self._findings.add_entry("repair", kind, location, sample, count)
        if not self._has_session_id:
            self._check_session(stderr)
        self._explain_line("(the end)", b"")

    def _check_session(self, stderr: str | None) -> None:
        stderr_rules = getattr(self._adapter.translator_class, "stderr_rules", ())
        if stderr is None and stderr_rules:
            text = "the session id may be on stderr, which is not in these files"
            self._notes.add_entry("remark", text, self._label)
        elif self._tracer is not None and not any(
            rule.emit == "session" for rule in self._tracer.rules
        ):
            self._notes.add_entry(
                "remark",
                "no rule reports a session id, so the vendor's sessions cannot be resumed",
                self._label,
            )
        else:
            self._findings.add_entry("no_session", self._label)

    # -- lines -------------------------------------------------------------------------------------

    def _start_line(self) -> None:
        self._verbs_of_line.clear()
        if self._tracer is not None:
            self._tracer.clear_matched_rules()

    def _read_line(self, line: bytes) -> None:
        self._line_number += 1
        self._line_count += 1
        self._start_line()
        self._child_stream.translate_lines([line])
        tracer = self._tracer
        if tracer is not None and tracer.matched_numbers:
            for number in tracer.matched_numbers:
                self._match_counts[number] = self._match_counts.get(number, 0) + 1
            self._count_unread_fields(line, tracer)
        self._explain_line(f"{self._label}:{self._line_number}", line)

    def _explain_line(self, location: str, line: bytes) -> None:
        if self._on_explanation is None or not (line.strip() or self._verbs_of_line):
            return
        tracer = self._tracer
        rules = []
        if tracer is not None:
            rules = [tracer.rules[number] for number in tracer.matched_numbers]
        matched_rules = tuple((rule.location, rule.emit) for rule in rules)
        verbs = tuple(self._format_verb(verb) for verb in self._verbs_of_line)
        self._on_explanation(
            LineExplanation(
                location,
                matched_rules,
                verbs,
                self._format_sample(line[:MAX_SAMPLE_BYTES].decode("utf-8", "replace")),
            )
        )

    def _count_unread_fields(self, line: bytes, tracer: RuleTracer) -> None:
        """Count the fields of a line that no rule reads. Lines that match an `ignore` rule are
        skipped.
        """
        matched_rules = [tracer.rules[number] for number in dict.fromkeys(tracer.matched_numbers)]
        if (
            all(rule.emit == "ignore" for rule in matched_rules)
            or len(self._unread_counts) >= MAX_FIELDS
        ):
            return
        event = parse_json_object(line)
        kind = _describe_kind(event)
        paths = {
            path
            for rule in tracer.rules
            if rule.types is None or kind in rule.types
            for path in rule.condition_paths
        }
        for path in find_unread_paths(
            event, paths.union(*(rule.read_paths for rule in matched_rules), {("type",)})
        ):
            self._unread_counts[kind, path] = self._unread_counts.get((kind, path), 0) + 1

    # -- method calls ------------------------------------------------------------------------------

    def _record_verb(self, verb: TurnMethodCall, turn: Any) -> None:
        name = verb.name
        if name in ("closed", "finish"):
            if name == "closed" or turn.outcome_tracker.outcome is not None:
                self._check_open_calls(turn)
            return
        self._verbs_of_line.append(verb)
        if name == "unknown":
            kind = str(verb.args[0] if verb.args else "untyped")[:MAX_TYPE_CHARS]
            line = self._child_stream.diagnostics.line
            self._findings.add_entry(
                "no_rule",
                kind,
                f"{self._label}:{self._line_number}",
                self._format_sample(line[:MAX_SAMPLE_BYTES].decode("utf-8", "replace")),
            )
            return
        self._verb_counts[name] = self._verb_counts.get(name, 0) + 1
        if name == "started" and verb.kwargs.get("session_id"):
            self._has_session_id = True
        if name == "tool_use" or (name == "tool_result" and len(verb.args) > 3):
            tool_name = str(verb.args[1 if name == "tool_use" else 3])
            if tool_name not in self._tool_names and not tool_name.startswith("mcp__"):
                self._findings.add_entry(
                    "tool", tool_name[:MAX_TYPE_CHARS], f"{self._label}:{self._line_number}"
                )
        current = None
        if self._tracer is not None:
            current = self._tracer.current_number
        if name in TEXT_VERBS and current is not None:
            text = None
            if verb.args:
                text = verb.args[0]
            self._has_text_by_rule.setdefault(current, False)
            if isinstance(text, str) and text:
                self._has_text_by_rule[current] = True

    def _check_open_calls(self, turn: Any) -> None:
        """Report tool calls without a result, before the Turn closes them."""
        for _, name, _ in list(turn.open_calls.values())[:MAX_KINDS]:
            self._findings.add_entry("open_call", str(name)[:MAX_TYPE_CHARS], self._label)
        if turn.outcome_tracker.outcome is None:
            self._findings.add_entry("no_end", self._label)

    # -- report ------------------------------------------------------------------------------------

    def build_report(self) -> LintReport:
        tracer = self._tracer
        notes = self._notes
        if self._adapter.unattended and self._adapter.child_input_ref:
            notes.add_entry(
                "remark",
                "`asks` in [acp] is empty, so the shim assumes that this agent may run "
                "any tool without asking",
            )
        if tracer is None:
            notes.add_entry(
                "remark",
                "this vendor is a Python module: its rules and the fields it reads are unknown",
            )
        else:
            for rule in tracer.rules:
                if rule.number not in self._match_counts:
                    notes.add_entry("unused_rule", f"{rule.location} {rule.emit}")
                elif self._has_text_by_rule.get(rule.number) is False:
                    self._findings.add_entry(
                        "empty_text",
                        f"{rule.location} {rule.emit}",
                        count=self._match_counts[rule.number],
                    )
            for (kind, path), count in self._unread_counts.items():
                notes.add_entry("unread_field", f"{kind}: {format_field_path(path)}", count=count)
        return LintReport(
            self._adapter.name,
            self._run_count,
            self._line_count,
            self._findings.list_entries(FINDING_TITLES),
            notes.list_entries(NOTE_TITLES),
            dict(sorted(self._verb_counts.items())),
        )

    def _format_sample(self, text: str) -> str:
        return escape_control_chars(self._redactor.redact_text(text))[:MAX_SAMPLE_CHARS]

    def _format_verb(self, verb: TurnMethodCall) -> str:
        values = [_format_json(self._redactor.redact_value(value)) for value in verb.args]
        values += [
            f"{key}={_format_json(self._redactor.redact_value(value))}"
            for key, value in verb.kwargs.items()
        ]
        shortened = [shorten_end(value_text, MAX_SAMPLE_CHARS) for value_text in values]
        return f"{f'{verb.parent_id}> ' if verb.parent_id else ''}{verb.name} {' '.join(shortened)}".rstrip()


def _describe_kind(event: Mapping[str, Any]) -> str:
    kind = event.get("type")
    if isinstance(kind, str):
        return kind[:MAX_TYPE_CHARS]
    return "(no type)"


def _format_json(value: Any) -> str:
    try:
        return escape_control_chars(dump_json(value))
    except (TypeError, ValueError, RecursionError):
        return escape_control_chars(repr(value)[:MAX_SAMPLE_CHARS])


def _list_tool_names(adapter: Adapter) -> frozenset[str]:
    """Return the tool names that this vendor's calls may have: Claude's tools and the tools in the
    vendor's tool table.
    """
    names = {*CLAUDE_TOOLS, *adapter.listed_tools}
    for tool in adapter.tools.values():
        names.add(tool.name)
        if isinstance(tool, ProfileTool):
            names.update(tool.other_names)
    return frozenset(names)
