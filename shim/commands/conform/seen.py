"""What the rules of conformance look at, and what a rule is: an id of the contract, a sentence, a
check.

A check reads the runs and gives back what it saw, in a few words. It raises `BrokenError` when the
rule is broken and `UnseenError` when these runs do not show it: a rule about calls says nothing of
a model that called nothing. Most checks do so by `broken_if` and `unseen_if`.
"""

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from shim.commands.conform.process import Object, Run
from shim.core.reading.account import printable

EVIDENCE_CHARACTERS = 400  # of the bytes sent and received that a table shows
Level = Literal["MUST", "SHOULD"]
MUST: Level = "MUST"
SHOULD: Level = "SHOULD"
Applies = Literal["both", "drop-in"]
BOTH: Applies = "both"
DROP_IN: Applies = "drop-in"  # the real claude does it differently, on purpose or not

CONVERSATION = frozenset(("assistant", "user", "stream_event", "result"))


class UnseenError(Exception):
    """These runs do not show whether the rule is kept; the text says why."""


class BrokenError(Exception):
    """The rule is broken: what was found, in which run, and the line that shows it."""

    def __init__(self, found: str, run: Run | None = None, came: object = None) -> None:
        super().__init__(found)
        self.run = run
        self.came = came


def broken_if(condition: object, found: str, run: Run | None = None, came: object = None) -> None:
    """BrokenError where the condition holds."""
    if condition:
        raise BrokenError(found, run, came)


def unseen_if(condition: object, why: str) -> None:
    """UnseenError where the condition holds."""
    if condition:
        raise UnseenError(why)


@dataclass(frozen=True)
class Turn:
    """The lines of one turn up to its result ({}: it never came). `behind` are lines before the
    next turn.
    """

    run: Run
    lines: Sequence[Object]
    result: Object
    behind: Sequence[Object]

    @property
    def talk(self) -> list[Object]:
        """Its lines of the conversation, without those that repeat a message of the user."""
        return [line for line in self.lines if in_talk(line)]

    @property
    def init(self) -> Object:
        return next((line for line in self.lines if is_init(line)), {})

    @property
    def failed(self) -> bool:
        return self.result.get("is_error") is True

    def blocks(self, kind: str, block: str) -> Iterator[tuple[Object, Object]]:
        """Every block of a type in the lines of a type, each with its line."""
        for line in self.lines:
            if line.get("type") == kind:
                for found in blocks_of(line):
                    if found.get("type") == block:
                        yield line, found


# asyncio formats a task with its result, and the lines of all runs are megabytes
@dataclass(repr=False)
class Seen:
    """Every run that was made, and why other runs were not."""

    runs: dict[str, Run] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    reason: str = "such a run was not made"

    def run(self, name: str) -> Run:
        """A run. UnseenError when it was not made."""
        if name not in self.runs:
            raise UnseenError(self.left_out.get(name, self.reason))
        return self.runs[name]

    def made(self, *names: str) -> list[Run]:
        """Those of the runs that were made. UnseenError when none was."""
        found = [self.runs[name] for name in names if name in self.runs]
        return found or [self.run(names[0])]

    def streams(self) -> list[Run]:
        """The runs that print a stream and printed something. UnseenError without any."""
        found = [run for run in self.runs.values() if run.name in STREAMS and run.lines]
        if not found:
            raise UnseenError("no stream was printed")
        return found

    def turns(self, *names: str) -> list[Turn]:
        """The turns of some runs, or of all streams. UnseenError without any."""
        runs = self.made(*names) if names else self.streams()
        found = [turn for run in runs for turn in turns_of(run)]
        if not found:
            raise UnseenError(
                "no turn was printed" + (f" in the run {names[0]}" if len(names) == 1 else "")
            )
        return found

    def done(self, name: str, number: int = 0) -> Turn:
        """A turn that a run must have. BrokenError if the run did not get so far."""
        run = self.run(name)
        turns = turns_of(run)
        if len(turns) <= number or not turns[number].result:
            raise BrokenError(f"no result came{waited(run)}", run)
        return turns[number]


# The runs whose stdout is a stream-json stream with turns in it.
STREAMS = frozenset(
    (
        *("conversation", "queue", "tools", "interrupt"),
        *("session", "resume", "fork", "continue", "no-verbose", "max-turns", "sigterm", "sigint"),
    )
)


def waited(run: Run) -> str:
    """The end of a sentence: what we waited for in vain."""
    if run.flooded:
        return "; it printed more than is read of a run"
    if run.stuck:
        return f"; {run.stuck} was waited for in vain"
    return f"; it ended before {run.over} came" if run.over else ""


def is_init(line: Object) -> bool:
    return line.get("type") == "system" and line.get("subtype") == "init"


def in_talk(line: Object) -> bool:
    """Whether a line belongs to the conversation and repeats nothing that a client sent or a
    command printed.
    """
    return is_init(line) or (line.get("type") in CONVERSATION and not line.get("isReplay"))


def blocks_of(line: Object) -> list[Object]:
    """The content blocks of an assistant or user line; empty if its content is not a list."""
    message = line.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    return (
        [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    )


def turns_of(run: Run) -> list[Turn]:
    """A stream, cut behind each result; what follows the last one is the last turn's `behind`
    unless it talks.
    """
    cuts: list[list[Object]] = [[]]
    for line in run.objects:
        cuts[-1].append(line)
        if line.get("type") == "result":
            cuts.append([])
    found: list[Turn] = []
    for position, lines in enumerate(cuts):
        last = position == len(cuts) - 1
        if last and not any(in_talk(line) for line in lines):
            break
        behind: list[Object] = []
        for line in () if last else cuts[position + 1]:
            if is_init(line):
                break
            behind.append(line)
        found.append(Turn(run, lines, {} if last else lines[-1], behind))
    return found


def api_failures(seen: Seen) -> list[Turn]:
    """The turns that failed because a request to the model did (S10)."""
    turns = [turn for run in seen.runs.values() if run.name in STREAMS for turn in turns_of(run)]
    return [turn for turn in turns if turn.failed and turn.result.get("subtype") == "success"]


Check = Callable[[Seen], str]


@dataclass(frozen=True)
class Rule:
    """A rule of the contract: its id there, whom it binds, one sentence, and the check."""

    id: str
    level: Level
    applies: Applies
    name: str
    says: str
    check: Check


class Book:
    """The rules of one chapter, in order."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []

    def must(
        self, identity: str, says: str, applies: Applies = BOTH, level: Level = MUST
    ) -> Callable[[Check], Check]:
        """Enter a rule that a command has to keep."""

        def entered(check: Check) -> Check:
            name = check.__name__.strip("_").replace("_", "-")
            self.rules.append(Rule(identity, level, applies, name, says, check))
            return check

        return entered

    def should(self, identity: str, says: str, applies: Applies = BOTH) -> Callable[[Check], Check]:
        """Enter a rule that a command should keep."""
        return self.must(identity, says, applies, SHOULD)


@dataclass(frozen=True)
class Finding:
    """The verdict of a rule, with the bytes sent and received, cut and made printable."""

    rule: Rule
    verdict: Literal["pass", "fail", "skipped"]
    found: str
    run: str = ""
    sent: str = ""
    came: str = ""

    def as_json(self) -> Object:
        rule = self.rule
        return {
            "id": rule.id,
            "level": rule.level,
            "applies": rule.applies,
            "rule": rule.name,
            "says": rule.says,
            "verdict": self.verdict,
            "found": self.found,
            "evidence": {"run": self.run, "sent": self.sent, "came": self.came},
        }


def judge(rule: Rule, seen: Seen) -> Finding:
    """Check a rule. A check that fails with an exception, on any output, means that the rule is
    broken.
    """
    try:
        return Finding(rule, "pass", shown(rule.check(seen)))
    except UnseenError as reason:
        return Finding(rule, "skipped", shown(reason))
    except BrokenError as broken:
        run = broken.run
        came = broken.came if broken.came is not None else _all_that_came(run)
        return Finding(
            rule, "fail", shown(broken), run.name if run else "", sent_to(run), shown(came)
        )
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        return Finding(
            rule, "fail", shown(f"what came cannot be read: {error.__class__.__name__}: {error}")
        )


def shown(value: Any) -> str:
    """A value as short text that is harmless to a terminal."""
    if isinstance(value, dict | list):
        try:
            value = json.dumps(value, ensure_ascii=False)
        except (RecursionError, ValueError):
            value = "[an object that is too deep to show]"
    if isinstance(value, bytes | bytearray):
        value = bytes(value[: 4 * EVIDENCE_CHARACTERS]).decode("utf-8", "replace")
    text = printable(str(value)[:EVIDENCE_CHARACTERS].rstrip("\n")).replace("\n", "\\n")
    return text if len(text) < EVIDENCE_CHARACTERS else text[: EVIDENCE_CHARACTERS - 1] + "…"


def sent_to(run: Run | None) -> str:
    """How a run was started, and the last lines that it was sent."""
    if run is None:
        return ""
    last = (
        f" < {run.sent[-1].data[:EVIDENCE_CHARACTERS].decode('utf-8', 'replace').strip()}"
        if run.sent
        else ""
    )
    return shown(shlex.join(run.argv) + last)


def _all_that_came(run: Run | None) -> str:
    """The end of a run's output, its status and its stderr."""
    if run is None:
        return ""
    ended = "ended by us" if run.exit is None else f"exit {run.exit}"
    last = (
        run.lines[-1].raw[: EVIDENCE_CHARACTERS // 2].decode("utf-8", "replace")
        if run.lines
        else "nothing"
    )
    stderr = f"; stderr: {run.stderr.strip()[:150]}" if run.stderr.strip() else ""
    return f"{ended}; stdout: {last}{stderr}"
