"""The steps of a session for a page or a pull request: without secrets, and within limits.

Each text passes three gates: secrets are blanked in the whole text, control characters are made
visible, then it is cut. If a session is larger than ROOM, all texts are cut shorter until it fits.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from shim.core.reading.account import escape_control_chars
from shim.core.secrets.redactor import Redactor
from shim.story.figures import (
    format_cost,
    format_duration,
    format_inline,
    format_tokens,
    format_value,
)
from shim.story.remarks import describe_note
from shim.story.steps import MAIN_ARGUMENTS, find_failure_cause, format_model_name
from shim.story.story import Step, StepChange, StepKind, format_content
from shim.story.unified_diff import (
    CONTEXT_LINES,
    FULL_CONTEXT_LINES,
    build_diff,
    list_diffed_arguments,
)

ROOM = 4_000_000  # characters of all texts: a phone opens a page of 5 MB at once
TEXT_CHARACTERS = 20_000  # of one text: some 400 lines
SHORTEST_CHARACTERS = 200  # texts are not cut shorter; then steps are left out
STEPS = 20_000
# where a reader finds the turns; there is room for them longer
LANDMARKS = frozenset(("prompt", "error", "result"))
MOST_LANDMARKS = 2_000  # without room for other steps
FIELDS = 100  # of a call's arguments, or of an event
FACT_CHARACTERS = 500
GROWTH_POINTS = 120  # moments of a streamed text; more make a replay no smoother
# the size of a step without its texts, and of a point of its growth
STEP_CHARACTERS, GROWTH_CHARACTERS = 150, 12
DEPTH = 4  # levels of nested agents; deeper ones are shown at this depth


class Cut(NamedTuple):
    """A text of which `left` characters were left out between `head` and `tail`."""

    head: str = ""
    left: int = 0
    tail: str = ""

    def __bool__(self) -> bool:
        return bool(self.head or self.tail)

    @property
    def size(self) -> int:
        return len(self.head) + len(self.tail)

    def whole(self) -> str:
        """The text, with a word about what was left out."""
        return (
            f"{self.head}\n… {self.left:,} characters left out …\n{self.tail}"
            if self.left
            else self.head
        )


NOTHING = Cut()


def cut(text: Cut, limit: int) -> Cut:
    """At most `limit` characters: three quarters from the beginning, the rest from the end."""
    if text.size <= limit:
        return text
    kept = limit - limit // 4
    whole = text.head + text.tail if not text.left else ""
    if whole:
        return Cut(whole[:kept], len(whole) - limit, whole[len(whole) - limit // 4 :])
    head, tail = text.head[:kept], text.tail[-(limit // 4) :]
    return Cut(head, text.left + text.size - len(head) - len(tail), tail)


@dataclass(slots=True)
class Sheet:
    """One step as it is shown. Times are milliseconds since the beginning; `growth` has times and
    the permille of the text that was there.

    `main` is the argument that describes a call best, `fields` are the others. `above` is the
    number of the step that a nested agent serves, or that a question is about.
    """

    number: int
    kind: StepKind
    at: int
    until: int | None = None
    turn: int = 0
    depth: int = 0
    above: int = 0
    name: str = ""
    outcome: str = ""
    main: str = ""
    text: Cut = NOTHING
    diff: Cut = NOTHING
    output: Cut = NOTHING
    fields: list[tuple[str, Cut]] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    growth: list[tuple[int, int]] = field(default_factory=list)

    @property
    def size(self) -> int:
        texts = self.text.size + self.diff.size + self.output.size + len(self.main)
        pairs = sum(value.size for _, value in self.fields) + sum(
            len(value) for _, value in self.facts
        )
        return STEP_CHARACTERS + texts + pairs + GROWTH_CHARACTERS * len(self.growth)

    @property
    def shortened(self) -> bool:
        return bool(
            self.text.left
            or self.diff.left
            or self.output.left
            or any(value.left for _, value in self.fields)
        )

    def cut(self, limit: int) -> None:
        self.text, self.diff, self.output = (
            cut(self.text, limit),
            cut(self.diff, limit),
            cut(self.output, limit),
        )
        self.fields = [(name, cut(value, limit)) for name, value in self.fields]


class _Open(NamedTuple):
    sheet: Sheet
    arguments: Mapping[str, Any]
    growth: list[tuple[int, int]]


class Exported:
    """The sheets of a session. `title` is the first prompt's first line; `limit` is the limit of
    each text.

    `keep` is off for whoever draws a session that goes on: `sheets` stays empty, and each change
    gives its sheet back.
    """

    def __init__(self, *, redact: bool = True, room: int = ROOM, keep: bool = True) -> None:
        self.sheets: list[Sheet] = []
        self._keep = keep
        self.title = ""
        self.limit = TEXT_CHARACTERS
        self.left_out = 0  # steps without room
        self.counts: dict[str, int] = {}  # the secrets that were found, by kind
        self._redactor = Redactor(self.counts) if redact else None
        self._room = room
        self._size = 0
        self._landmarks = 0  # that came when there was no room
        self._open: dict[int, _Open] = {}
        self._calls: dict[str, tuple[int, int]] = {}  # a call's id → its step and its depth
        self._said = ""
        # calls of this turn; its result may say that they were denied
        self._failed: list[tuple[Sheet, Step]] = []

    # -- the gates ---------------------------------------------------------------------------------

    def clean(self, text: object) -> str:
        """A printable text without secrets."""
        told = text if isinstance(text, str) else "" if text is None else str(text)
        told = self._redactor.redact_text(told) if self._redactor else told
        return escape_control_chars(told.replace("\r\n", "\n"))

    def fact(self, value: object) -> str:
        """A short text as one line."""
        text = value if isinstance(value, str) else format_inline(self._redacted(value))
        told = self.clean(text).replace("\n", " ⏎ ")
        return told if len(told) <= FACT_CHARACTERS else f"{told[:FACT_CHARACTERS]}…"

    def _text(self, text: object) -> Cut:
        return cut(Cut(self.clean(text)), self.limit)

    # -- the story ---------------------------------------------------------------------------------

    def change(self, at: float, change: StepChange) -> Sheet | None:
        """Take a change of a step, `at` seconds since the beginning. Its sheet; None if there was
        no room for it.
        """
        step = change.step
        if change.phase == "begin":
            self._begin(step)
        found = self._open.get(step.number)
        if found is None:
            return None
        if change.phase == "more":
            _grow(found.growth, _ms(at), len(change.fragment))
        elif change.phase == "end":
            del self._open[step.number]
            self._end(step, found)
        elif step.kind == "call" and not self._keep:
            # what it is asked to do is seen before it is done
            self._end_call(step, found.sheet, found.arguments)
        return found.sheet

    def step_of(self, call: str) -> int:
        """The number of the step of a call; 0 for an unknown id."""
        return self._calls.get(call, (0, 0))[0]

    def _begin(self, step: Step) -> None:
        if len(self.sheets) >= STEPS or self._size >= self._room:
            if step.kind not in LANDMARKS or self._landmarks >= MOST_LANDMARKS:
                self.left_out += 1
                return
            self._landmarks += 1
        above, depth = self._calls.get(step.parent, (0, -1)) if step.parent else (0, -1)
        sheet = Sheet(
            step.number,
            step.kind,
            _ms(step.at),
            turn=step.turn,
            above=above,
            depth=min(depth + 1, DEPTH),
        )
        if self._keep:
            self.sheets.append(sheet)
        sheet.name = self.fact(step.name)
        arguments = self._redacted(step.input)
        arguments = arguments if isinstance(arguments, Mapping) else {}
        sheet.main = self.fact(
            next(
                (
                    arguments[name]
                    for name in MAIN_ARGUMENTS
                    if isinstance(arguments.get(name), str)
                ),
                "",
            )
        )
        self._open[step.number] = _Open(sheet, arguments, [])
        if step.kind == "call":
            if len(self._calls) >= STEPS:
                del self._calls[next(iter(self._calls))]
            self._calls[step.call] = (step.number, sheet.depth)
        elif step.call and not sheet.above:
            sheet.above = self._calls.get(step.call, (0, 0))[0]

    def _redacted(self, value: Any) -> Any:
        return self._redactor.redact_value(value) if self._redactor else value

    def _end(self, step: Step, found: "_Open") -> None:
        sheet, growth = found.sheet, found.growth
        if step.kind == "note":
            step = replace(step, name=self._redacted(step.name), facts=self._redacted(step.facts))
        sheet.until = None if step.until is None else _ms(step.until)
        sheet.outcome, sheet.text = (
            step.outcome,
            self._text(describe_note(step) if step.kind == "note" else step.text),
        )
        if growth:
            whole = growth[-1][1] or 1
            sheet.growth = [(at - sheet.at, 1000 * size // whole) for at, size in growth]
        if step.kind in ("call", "question"):
            self._end_call(step, sheet, found.arguments)
            if step.outcome == "failed":
                self._failed.append((sheet, step))
        else:
            sheet.facts = list(self._facts(step))
        if step.kind == "result":
            for failed, its in self._failed:
                failed.outcome = its.outcome
            self._failed.clear()
        if step.kind == "text" and not step.parent:
            self._said = step.text
        elif step.kind == "result" and step.text == self._said:
            sheet.text = NOTHING  # it repeats the last text
        elif step.kind == "prompt":
            self.title = self.title or _first_line(sheet.text.head)
        self._fit(sheet)

    def _end_call(self, step: Step, sheet: Sheet, arguments: Mapping[str, Any]) -> None:
        before = step.extra.get("originalFile") if isinstance(step.extra, Mapping) else None
        context = FULL_CONTEXT_LINES if step.kind == "question" else CONTEXT_LINES
        difference = build_diff(step.name, arguments, self._redacted(before), context_lines=context)
        said = list_diffed_arguments(step.name, arguments) if difference else frozenset()
        sheet.diff = self._text(difference)
        told = [(name, value) for name, value in arguments.items() if name not in said]
        rest = [("…", dict(told[FIELDS:]))] if len(told) > FIELDS else []
        sheet.fields = [
            (self.fact(name), self._text(value if isinstance(value, str) else format_value(value)))
            for name, value in (*told[:FIELDS], *rest)
        ]
        sheet.output = self._text(format_content(step.output))

    def _facts(self, step: Step) -> Iterable[tuple[str, str]]:
        facts = step.facts
        for name, tell in FACTS.get(step.kind, {}).items():
            try:
                value = tell(step)
            except (AttributeError, KeyError, TypeError, ValueError, IndexError):
                continue  # an event of another shape
            if value not in (None, "", [], {}):
                yield name, self.fact(value)
        # notes of this name are a user's words, without facts
        if step.kind == "note" and step.name != "user":
            for name, value in list(facts.items())[:FIELDS]:
                if name not in NOT_TOLD and value not in (None, "", [], {}):
                    yield self.fact(str(name)), self.fact(value)

    def _fit(self, sheet: Sheet) -> None:
        """Make room for a sheet: halve the limit of all texts until the session fits."""
        if not self._keep:
            return
        self._size += sheet.size
        while self._size > self._room and self.limit > SHORTEST_CHARACTERS:
            self.limit = max(self.limit // 2, SHORTEST_CHARACTERS)
            for other in self.sheets:
                other.cut(self.limit)
            self._size = sum(other.size for other in self.sheets)


def _ms(seconds: float) -> int:
    return round(1000 * seconds)


def _first_line(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= FACT_CHARACTERS else f"{line[:FACT_CHARACTERS]}…"


def _grow(growth: list[tuple[int, int]], at: int, size: int) -> None:
    """Add a point of a text's growth; if there are too many, drop every second one."""
    size += growth[-1][1] if growth else 0
    growth.append((at, size))
    if len(growth) > 2 * GROWTH_POINTS:
        del growth[: len(growth) - 1 : 2]


Tell = Callable[[Step], Any]
# The facts of a step, by its kind.
FACTS: Mapping[StepKind, Mapping[str, Tell]] = {
    "start": {
        "model": lambda step: format_model_name(step.facts.get("model")),
        "folder": lambda step: step.facts.get("cwd"),
        "permission mode": lambda step: step.facts.get("permissionMode"),
        "tools": lambda step: len(step.facts["tools"]),
        "session": lambda step: step.facts.get("session_id"),
    },
    "answer": {
        "message": lambda step: step.facts["response"].get("message"),
        "error": lambda step: step.facts.get("error"),
    },
    "result": {
        "failed": lambda step: find_failure_cause(step.facts),
        "errors": lambda step: "\n".join(map(str, step.facts.get("errors") or ())),
        "replies": lambda step: step.facts.get("num_turns"),
        "time": lambda step: format_duration(step.duration_s) if step.duration_s else None,
        "tokens": lambda step: (
            format_tokens(step.facts["usage"]) if any(step.facts["usage"].values()) else None
        ),
        "cost": lambda step: format_cost(step.cost),
        "denied": lambda step: ", ".join(
            str(denied.get("tool_name")) for denied in step.facts["permission_denials"]
        ),
    },
}
# Fields of a note that are for programs, or that its title shows.
NOT_TOLD = frozenset(
    ("type", "subtype", "uuid", "session_id", "kind", "parent_tool_use_id", "request_id", "message")
)
