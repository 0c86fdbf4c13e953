"""What the rules of conformance look at, and what a rule is: an id of the contract, a sentence, a
check.

A check reads the runs and gives back what it saw, in a few words. It raises `RuleBrokenError` when
the rule is broken and `NotObservedError` when these runs do not show it: a rule about calls says
nothing of a model that called nothing. Most checks do so by `fail_if` and `skip_if`.
"""

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from shim.commands.conform.process import CommandRun, JsonObject, is_result_line
from shim.core.claude.grammar import is_init_line, list_tool_calls, list_tool_results
from shim.core.reading.diagnostics import escape_control_chars

MAX_EVIDENCE_CHARS = 400  # of the bytes sent and received that a table shows
Level = Literal["MUST", "SHOULD"]
MUST: Level = "MUST"
SHOULD: Level = "SHOULD"
RuleScope = Literal["both", "drop-in"]
BOTH: RuleScope = "both"
DROP_IN: RuleScope = "drop-in"  # the real claude does it differently, on purpose or not

CONVERSATION_TYPES = frozenset(("assistant", "user", "stream_event", "result"))


class RuleNotObservedError(Exception):
    """These runs do not show whether the rule is kept; the text says why."""


class RuleViolationError(Exception):
    """The rule is broken: what was found, in which run, and the line that shows it."""

    def __init__(
        self, problem: str, run: CommandRun | None = None, evidence: object = None
    ) -> None:
        super().__init__(problem)
        self.run = run
        self.evidence = evidence


def fail_rule_if(
    condition: object, problem: str, run: CommandRun | None = None, evidence: object = None
) -> None:
    """RuleBrokenError where the condition holds."""
    if condition:
        raise RuleViolationError(problem, run, evidence)


def skip_rule_if(condition: object, reason: str) -> None:
    """NotObservedError where the condition holds."""
    if condition:
        raise RuleNotObservedError(reason)


@dataclass(frozen=True)
class ObservedTurn:
    """The lines of one turn up to its result ({}: it never came). `following_lines` are lines
    before the next turn.
    """

    run: CommandRun
    lines: Sequence[JsonObject]
    result: JsonObject
    following_lines: Sequence[JsonObject]

    @property
    def conversation_lines(self) -> list[JsonObject]:
        """Its lines of the conversation, without those that repeat a message of the user."""
        return [line for line in self.lines if is_new_conversation_line(line)]

    @property
    def init_line(self) -> JsonObject:
        return next((line for line in self.lines if is_init_line(line)), {})

    @property
    def is_failed(self) -> bool:
        return self.result.get("is_error") is True

    def list_tool_calls(self) -> list[tuple[JsonObject, JsonObject]]:
        """Return the tool calls of the turn, each with its line."""
        return [(line, call) for line in self.lines for call in list_tool_calls(line)]

    def list_tool_results(self) -> list[tuple[JsonObject, JsonObject]]:
        """Return the tool results of the turn, each with its line."""
        return [(line, result) for line in self.lines for result in list_tool_results(line)]


# asyncio formats a task with its result, and the lines of all runs are megabytes
@dataclass(repr=False)
class ObservedCommandRuns:
    """Every run that was made, and why other runs were not."""

    runs: dict[str, CommandRun] = field(default_factory=dict)
    skip_reasons: dict[str, str] = field(default_factory=dict)
    default_reason: str = "such a run was not made"

    def get_run(self, name: str) -> CommandRun:
        """A run. NotObservedError when it was not made."""
        if name not in self.runs:
            raise RuleNotObservedError(self.skip_reasons.get(name, self.default_reason))
        return self.runs[name]

    def get_runs(self, *run_names: str) -> list[CommandRun]:
        """Those of the runs that were made. NotObservedError when none was."""
        runs = [self.runs[name] for name in run_names if name in self.runs]
        if runs:
            return runs
        return [self.get_run(run_names[0])]

    def get_stream_json_runs(self) -> list[CommandRun]:
        """The runs that print a stream and printed something. NotObservedError without any."""
        streams = [run for run in self.runs.values() if run.name in STREAM_RUNS and run.lines]
        if not streams:
            raise RuleNotObservedError("no stream was printed")
        return streams

    def get_turns_of_runs(self, *run_names: str) -> list[ObservedTurn]:
        """The turns of some runs, or of all streams. NotObservedError without any."""
        if run_names:
            runs = self.get_runs(*run_names)
        else:
            runs = self.get_stream_json_runs()
        turns = [turn for run in runs for turn in split_run_into_turns(run)]
        if not turns:
            raise RuleNotObservedError(
                "no turn was printed"
                + (f" in the run {run_names[0]}" if len(run_names) == 1 else "")
            )
        return turns

    def get_finished_turn(self, name: str, index: int = 0) -> ObservedTurn:
        """A turn that a run must have. RuleBrokenError if the run did not get so far."""
        run = self.get_run(name)
        turns = split_run_into_turns(run)
        if len(turns) <= index or not turns[index].result:
            raise RuleViolationError(f"no result came{describe_missing_output(run)}", run)
        return turns[index]


# The runs whose stdout is a stream-json stream with turns in it.
STREAM_RUNS = frozenset(
    (
        *("conversation", "queue", "tools", "interrupt"),
        *("session", "resume", "fork", "continue", "no-verbose", "max-turns", "sigterm", "sigint"),
    )
)


def check_field_types(run: CommandRun, value: JsonObject, types: Mapping[str, Any]) -> None:
    """Raise RuleViolationError for a field that is missing or has another type."""
    for key, field_type in types.items():
        if not isinstance(value.get(key), field_type):
            problem = "missing"
            if key in value:
                problem = "of another type"
            raise RuleViolationError(f"{key} is {problem}", run, value)


def has_interrupt_text(lines: Iterable[JsonObject]) -> bool:
    """Return whether a user line says that the turn was interrupted."""
    return any(
        "[Request interrupted by user" in json.dumps(line)
        for line in lines
        if line.get("type") == "user"
    )


def describe_missing_output(run: CommandRun) -> str:
    """The end of a sentence: what we waited for in vain."""
    if run.is_flooded:
        return "; it printed more than is read of a run"
    if run.timed_out_on:
        return f"; {run.timed_out_on} was waited for in vain"
    if run.missing_line:
        return f"; it ended before {run.missing_line} came"
    return ""


def is_new_conversation_line(line: JsonObject) -> bool:
    """Whether a line belongs to the conversation and repeats nothing that a client sent or a
    command printed.
    """
    if is_init_line(line):
        return True
    return line.get("type") in CONVERSATION_TYPES and not line.get("isReplay")


def split_run_into_turns(run: CommandRun) -> list[ObservedTurn]:
    """A stream, cut behind each result; what follows the last one is the last turn's
    `following_lines` unless it talks.
    """
    line_groups: list[list[JsonObject]] = [[]]
    for line in run.json_lines:
        line_groups[-1].append(line)
        if is_result_line(line):
            line_groups.append([])
    turns: list[ObservedTurn] = []
    for position, lines in enumerate(line_groups):
        is_last = position == len(line_groups) - 1
        if is_last and not any(is_new_conversation_line(line) for line in lines):
            break
        following_lines: list[JsonObject] = []
        for line in () if is_last else line_groups[position + 1]:
            if is_init_line(line):
                break
            following_lines.append(line)
        turns.append(ObservedTurn(run, lines, {} if is_last else lines[-1], following_lines))
    return turns


def list_turns_with_api_error(observations: ObservedCommandRuns) -> list[ObservedTurn]:
    """The turns that failed because a request to the model did (S10)."""
    turns = [
        turn
        for run in observations.runs.values()
        if run.name in STREAM_RUNS
        for turn in split_run_into_turns(run)
    ]
    return [turn for turn in turns if turn.is_failed and turn.result.get("subtype") == "success"]


Check = Callable[[ObservedCommandRuns], str]


@dataclass(frozen=True)
class ConformanceRule:
    """A rule of the contract: its id there, whom it binds, one sentence, and the check."""

    id: str
    level: Level
    scope: RuleScope
    name: str
    text: str
    check: Check


class ConformanceRuleSet:
    """The rules of one chapter, in order."""

    def __init__(self) -> None:
        self.rules: list[ConformanceRule] = []

    def register_must_rule(
        self, rule_id: str, text: str, scope: RuleScope = BOTH, level: Level = MUST
    ) -> Callable[[Check], Check]:
        """Enter a rule that a command has to keep."""

        def register(check: Check) -> Check:
            name = check.__name__.strip("_").replace("_", "-")
            self.rules.append(ConformanceRule(rule_id, level, scope, name, text, check))
            return check

        return register

    def register_should_rule(
        self, rule_id: str, text: str, scope: RuleScope = BOTH
    ) -> Callable[[Check], Check]:
        """Enter a rule that a command should keep."""
        return self.register_must_rule(rule_id, text, scope, SHOULD)


@dataclass(frozen=True)
class ConformanceRuleResult:
    """The verdict of a rule, with the bytes sent and received, cut and made printable."""

    rule: ConformanceRule
    verdict: Literal["pass", "fail", "skipped"]
    detail: str
    run: str = ""
    input_text: str = ""
    output_text: str = ""

    def to_json(self) -> JsonObject:
        rule = self.rule
        return {
            "id": rule.id,
            "level": rule.level,
            "applies": rule.scope,
            "rule": rule.name,
            "says": rule.text,
            "verdict": self.verdict,
            "found": self.detail,
            "evidence": {"run": self.run, "sent": self.input_text, "came": self.output_text},
        }


def evaluate_conformance_rule(
    rule: ConformanceRule, observations: ObservedCommandRuns
) -> ConformanceRuleResult:
    """Check a rule. A check that fails with an exception, on any output, means that the rule is
    broken.
    """
    try:
        return ConformanceRuleResult(
            rule, "pass", format_evidence_for_terminal(rule.check(observations))
        )
    except RuleNotObservedError as reason:
        return ConformanceRuleResult(rule, "skipped", format_evidence_for_terminal(reason))
    except RuleViolationError as failure:
        run = failure.run
        if failure.evidence is not None:
            evidence = failure.evidence
        else:
            evidence = _format_output(run)
        return ConformanceRuleResult(
            rule,
            "fail",
            format_evidence_for_terminal(failure),
            run.name if run else "",
            format_run_input(run),
            format_evidence_for_terminal(evidence),
        )
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        return ConformanceRuleResult(
            rule,
            "fail",
            format_evidence_for_terminal(
                f"what came cannot be read: {error.__class__.__name__}: {error}"
            ),
        )


def format_evidence_for_terminal(value: Any) -> str:
    """A value as short text that is harmless to a terminal."""
    if isinstance(value, dict | list):
        try:
            value = json.dumps(value, ensure_ascii=False)
        except (RecursionError, ValueError):
            value = "[an object that is too deep to show]"
    if isinstance(value, bytes | bytearray):
        value = bytes(value[: 4 * MAX_EVIDENCE_CHARS]).decode("utf-8", "replace")
    text = escape_control_chars(str(value)[:MAX_EVIDENCE_CHARS].rstrip("\n")).replace("\n", "\\n")
    if len(text) < MAX_EVIDENCE_CHARS:
        return text
    return text[: MAX_EVIDENCE_CHARS - 1] + "…"


def format_run_input(run: CommandRun | None) -> str:
    """How a run was started, and the last lines that it was sent."""
    if run is None:
        return ""
    last_write = ""
    if run.stdin_writes:
        last_write = f" < {run.stdin_writes[-1].data[:MAX_EVIDENCE_CHARS].decode('utf-8', 'replace').strip()}"
    return format_evidence_for_terminal(shlex.join(run.argv) + last_write)


def _format_output(run: CommandRun | None) -> str:
    """The end of a run's output, its status and its stderr."""
    if run is None:
        return ""
    exit_text = "ended by us"
    if run.exit_status is not None:
        exit_text = f"exit {run.exit_status}"
    last_line = "nothing"
    if run.lines:
        last_line = run.lines[-1].raw[: MAX_EVIDENCE_CHARS // 2].decode("utf-8", "replace")
    stderr = ""
    if run.stderr.strip():
        stderr = f"; stderr: {run.stderr.strip()[:150]}"
    return f"{exit_text}; stdout: {last_line}{stderr}"
