"""Defines the conformance rules and the command runs that they check. A rule has a contract id, a
sentence and a check.

A check reads the runs and returns a short description of its observations. It raises
`RuleViolationError` if the rule is broken. It raises `RuleNotObservedError` if the runs do not show
whether the rule holds. For example, a rule about tool calls cannot be checked if the model called
no tool. Most checks use `fail_rule_if` and `skip_rule_if`.
"""

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from shim.commands.conform.process import CommandRun, JsonObject, is_result_line
from shim.core.claude.grammar import is_init_line, list_tool_calls, list_tool_results
from shim.core.reading.values import format_single_line, shorten_end

MAX_EVIDENCE_CHARS = 400  # per value in the printed table
Level = Literal["MUST", "SHOULD"]
MUST: Level = "MUST"
SHOULD: Level = "SHOULD"
RuleScope = Literal["both", "drop-in"]
BOTH: RuleScope = "both"
DROP_IN: RuleScope = "drop-in"  # rules that the real claude does not follow

CONVERSATION_TYPES = frozenset(("assistant", "user", "stream_event", "result"))


class RuleNotObservedError(Exception):
    """Raised if the runs do not show whether a rule holds. The message is the reason."""


class RuleViolationError(Exception):
    """Raised if a rule is broken. The message describes the problem; `run` and `evidence` show
    where it occurred.
    """

    def __init__(
        self, problem: str, run: CommandRun | None = None, evidence: object = None
    ) -> None:
        super().__init__(problem)
        self.run = run
        self.evidence = evidence


def fail_rule_if(
    condition: object, problem: str, run: CommandRun | None = None, evidence: object = None
) -> None:
    """Raise RuleViolationError if `condition` is true."""
    if condition:
        raise RuleViolationError(problem, run, evidence)


def skip_rule_if(condition: object, reason: str) -> None:
    """Raise RuleNotObservedError if `condition` is true."""
    if condition:
        raise RuleNotObservedError(reason)


@dataclass(frozen=True)
class ObservedTurn:
    """The stdout lines of one turn, up to its result. `result` is {} if the turn did not end.

    `following_lines` are the lines between this turn and the next.
    """

    run: CommandRun
    lines: Sequence[JsonObject]
    result: JsonObject
    following_lines: Sequence[JsonObject]

    @property
    def conversation_lines(self) -> list[JsonObject]:
        """The turn's conversation lines, without user messages that the command replayed."""
        return [line for line in self.lines if is_new_conversation_line(line)]

    @property
    def init_line(self) -> JsonObject:
        return next((line for line in self.lines if is_init_line(line)), {})

    @property
    def is_failed(self) -> bool:
        return self.result.get("is_error") is True

    def list_tool_calls(self) -> list[tuple[JsonObject, JsonObject]]:
        """Return the turn's tool calls as pairs of a line and a call in it."""
        return [(line, call) for line in self.lines for call in list_tool_calls(line)]

    def list_tool_results(self) -> list[tuple[JsonObject, JsonObject]]:
        """Return the turn's tool results as pairs of a line and a result in it."""
        return [(line, result) for line in self.lines for result in list_tool_results(line)]


# `repr=False` prevents asyncio from formatting the runs as the result of a task. The text of all
# lines would have several megabytes.
@dataclass(repr=False)
class ObservedCommandRuns:
    """All runs of the checked command, and the reasons for runs that were skipped."""

    runs: dict[str, CommandRun] = field(default_factory=dict)
    skip_reasons: dict[str, str] = field(default_factory=dict)
    default_reason: str = "the run that this rule needs did not take place"

    def get_run(self, name: str) -> CommandRun:
        """Return the run with this name. Raise RuleNotObservedError if the run was skipped."""
        if name not in self.runs:
            raise RuleNotObservedError(self.skip_reasons.get(name, self.default_reason))
        return self.runs[name]

    def get_runs(self, *run_names: str) -> list[CommandRun]:
        """Return the runs with these names, except skipped runs. Raise RuleNotObservedError if all
        of them were skipped.
        """
        runs = [self.runs[name] for name in run_names if name in self.runs]
        if runs:
            return runs
        return [self.get_run(run_names[0])]

    def get_stream_json_runs(self) -> list[CommandRun]:
        """Return the runs that printed stream-json. Raise RuleNotObservedError if there are none."""
        streams = [run for run in self.runs.values() if run.name in STREAM_RUNS and run.lines]
        if not streams:
            raise RuleNotObservedError("no stream was printed")
        return streams

    def get_turns_of_runs(self, *run_names: str) -> list[ObservedTurn]:
        """Return the turns of these runs. Without names, return the turns of all stream-json runs.
        Raise RuleNotObservedError if there are no turns.
        """
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
        """Return the finished turn at `index` in a run. Raise RuleViolationError if the run has no
        such turn or the turn did not end.
        """
        run = self.get_run(name)
        turns = split_run_into_turns(run)
        if len(turns) <= index or not turns[index].result:
            raise RuleViolationError(f"there is no result{describe_missing_output(run)}", run)
        return turns[index]


# The runs that print a conversation in stream-json format.
STREAM_RUNS = frozenset(
    (
        *("conversation", "queue", "tools", "interrupt"),
        *("session", "resume", "fork", "continue", "no-verbose", "max-turns", "sigterm", "sigint"),
    )
)


def check_field_types(run: CommandRun, value: JsonObject, types: Mapping[str, Any]) -> None:
    """Raise RuleViolationError if a field is missing or has the wrong type."""
    for key, field_type in types.items():
        if not isinstance(value.get(key), field_type):
            problem = "missing"
            if key in value:
                problem = "of the wrong type"
            raise RuleViolationError(f"{key} is {problem}", run, value)


def has_interrupt_text(lines: Iterable[JsonObject]) -> bool:
    """Return whether a user line reports that the turn was interrupted."""
    return any(
        "[Request interrupted by user" in json.dumps(line)
        for line in lines
        if line.get("type") == "user"
    )


def describe_missing_output(run: CommandRun) -> str:
    """Return the end of an error sentence, which states what output the command failed to print."""
    if run.is_flooded:
        return "; the command printed more than the limit for a run"
    if run.timed_out_on:
        return f"; timed out waiting for {run.timed_out_on}"
    if run.missing_line:
        return f"; the command exited before {run.missing_line}"
    return ""


def is_new_conversation_line(line: JsonObject) -> bool:
    """Return whether a line is part of the conversation. Replayed user messages are not."""
    if is_init_line(line):
        return True
    if line.get("type") not in CONVERSATION_TYPES:
        return False
    return not line.get("isReplay")


def split_run_into_turns(run: CommandRun) -> list[ObservedTurn]:
    """Split a run's stream into turns, which end with a result.

    Lines after the last result are its turn's `following_lines`. If they contain conversation
    lines, they are an unfinished turn instead.
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
        result = {}
        if not is_last:
            result = lines[-1]
        turns.append(ObservedTurn(run, lines, result, following_lines))
    return turns


def list_turns_with_api_error(observations: ObservedCommandRuns) -> list[ObservedTurn]:
    """Return the turns that failed because an API request to the model failed (S10)."""
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
    """A rule of the contract, with its id, level, scope, sentence and check."""

    id: str
    level: Level
    scope: RuleScope
    name: str
    text: str
    check: Check


class ConformanceRuleSet:
    """The rules of one chapter of the contract, in order."""

    def __init__(self) -> None:
        self.rules: list[ConformanceRule] = []

    def register_must_rule(
        self, rule_id: str, text: str, scope: RuleScope = BOTH, level: Level = MUST
    ) -> Callable[[Check], Check]:
        """Register the decorated check as a rule that a command must follow."""

        def register(check: Check) -> Check:
            name = check.__name__.strip("_").replace("_", "-")
            self.rules.append(ConformanceRule(rule_id, level, scope, name, text, check))
            return check

        return register

    def register_should_rule(
        self, rule_id: str, text: str, scope: RuleScope = BOTH
    ) -> Callable[[Check], Check]:
        """Register the decorated check as a rule that a command should follow."""
        return self.register_must_rule(rule_id, text, scope, SHOULD)


@dataclass(frozen=True)
class ConformanceRuleResult:
    """The result of checking a rule. The sent and received bytes are shortened and escaped."""

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
    """Check a rule and return the result. If the check raises an unexpected exception, the rule
    counts as broken, because every check can process any valid output.
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
                f"the output cannot be read: {error.__class__.__name__}: {error}"
            ),
        )


def format_evidence_for_terminal(value: Any) -> str:
    """Return a value as a short text without terminal control characters."""
    if isinstance(value, dict | list):
        try:
            value = json.dumps(value, ensure_ascii=False)
        except (RecursionError, ValueError):
            value = "[an object that is too deep to show]"
    if isinstance(value, bytes | bytearray):
        value = bytes(value[: 4 * MAX_EVIDENCE_CHARS]).decode("utf-8", "replace")
    line = format_single_line(str(value)[: 4 * MAX_EVIDENCE_CHARS].rstrip("\n"))
    return shorten_end(line, MAX_EVIDENCE_CHARS)


def format_run_input(run: CommandRun | None) -> str:
    """Return a run's command line and the last lines that were sent to its stdin."""
    if run is None:
        return ""
    last_write = ""
    if run.stdin_writes:
        last_write = f" < {run.stdin_writes[-1].data[:MAX_EVIDENCE_CHARS].decode('utf-8', 'replace').strip()}"
    return format_evidence_for_terminal(shlex.join(run.argv) + last_write)


def _format_output(run: CommandRun | None) -> str:
    """Return a run's exit status, the last line of its stdout, and its stderr."""
    if run is None:
        return ""
    exit_text = "stopped by the checker"
    if run.exit_status is not None:
        exit_text = f"exit {run.exit_status}"
    last_line = "nothing"
    if run.lines:
        last_line = run.lines[-1].raw[: MAX_EVIDENCE_CHARS // 2].decode("utf-8", "replace")
    stderr = ""
    if run.stderr.strip():
        stderr = f"; stderr: {run.stderr.strip()[:150]}"
    return f"{exit_text}; stdout: {last_line}{stderr}"
