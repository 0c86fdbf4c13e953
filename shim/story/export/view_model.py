"""Prepares the steps of a session for an HTML page or a pull request: without secrets, and within
size limits.

Each text is first redacted, then escaped, then shortened. If a session is larger than
MAX_TOTAL_CHARS, all texts are shortened until the session fits.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from shim.core.reading.values import as_dict, as_list, escape_control_chars, shorten_end
from shim.core.secrets.redactor import Redactor
from shim.story.diff import (
    CONTEXT_LINES,
    FULL_CONTEXT_LINES,
    build_tool_call_diff,
    list_arguments_beside_diff,
)
from shim.story.events import find_failure_cause, find_main_argument, format_model_name
from shim.story.formatting import (
    format_cost,
    format_duration,
    format_single_line_value,
    format_token_counts,
    format_value_as_lines,
)
from shim.story.model import SessionStep, SessionStepChange, StepKind, format_content_text
from shim.story.notes import describe_note_step

# The limit for all texts together. A phone opens a page of 5 MB without delay.
MAX_TOTAL_CHARS = 4_000_000
MAX_TEXT_CHARS = 20_000  # per text, about 400 lines
MIN_TEXT_CHARS = 200  # texts are not shortened further; steps are omitted instead
MAX_STEPS = 20_000
# The steps that mark the turns. When there is no more space, these steps are still stored.
LANDMARK_KINDS = frozenset(("prompt", "error", "result"))
MAX_EXTRA_LANDMARKS = 2_000  # landmark steps that are stored when there is no space for other steps
MAX_FIELDS = 100  # per tool call or event
MAX_FIELD_CHARS = 500
MAX_GROWTH_POINTS = 120  # per streamed text; more would not make a replay smoother
# The size of a step without its texts, and the size of a growth point.
STEP_OVERHEAD_CHARS = 150
GROWTH_POINT_CHARS = 12
MAX_DEPTH = 4  # levels of subagents; subagents at deeper levels are shown at this level


class TruncatedText(NamedTuple):
    """A text whose middle may be left out. `omitted_chars` is the number of characters missing
    between `head` and `tail`.
    """

    head: str = ""
    omitted_chars: int = 0
    tail: str = ""

    def __bool__(self) -> bool:
        return bool(self.head or self.tail)

    @property
    def char_count(self) -> int:
        return len(self.head) + len(self.tail)

    def format_text(self) -> str:
        """Return the text with a note in place of the omitted part."""
        if self.omitted_chars:
            return f"{self.head}\n… {self.omitted_chars:,} characters left out …\n{self.tail}"
        return self.head


EMPTY_TEXT = TruncatedText()


def truncate_text(text: TruncatedText, max_chars: int) -> TruncatedText:
    """Shorten a text to `max_chars` characters. Three quarters are taken from the beginning, the
    rest from the end.
    """
    if text.char_count <= max_chars:
        return text
    head_chars = max_chars - max_chars // 4
    full_text = ""
    if not text.omitted_chars:
        full_text = text.head + text.tail
    if full_text:
        return TruncatedText(
            full_text[:head_chars],
            len(full_text) - max_chars,
            full_text[len(full_text) - max_chars // 4 :],
        )
    head = text.head[:head_chars]
    tail = text.tail[-(max_chars // 4) :]
    return TruncatedText(head, text.omitted_chars + text.char_count - len(head) - len(tail), tail)


@dataclass(slots=True)
class SessionStepView:
    """A session step as shown on a page. Times are milliseconds since the start of the session.

    main    the argument that describes a tool call best
    fields  the other arguments of a tool call
    above   the number of the tool call step that a subagent's step or a permission prompt belongs
            to, or 0
    growth  how a streamed text grew: pairs of the time since the step's start and the permille of
            the text received so far
    waited  how long a tool call waited for permission
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
    text: TruncatedText = EMPTY_TEXT
    diff: TruncatedText = EMPTY_TEXT
    output: TruncatedText = EMPTY_TEXT
    fields: list[tuple[str, TruncatedText]] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    growth: list[tuple[int, int]] = field(default_factory=list)
    waited: int = 0

    @property
    def char_count(self) -> int:
        text_chars = (
            self.text.char_count + self.diff.char_count + self.output.char_count + len(self.main)
        )
        pair_chars = sum(value.char_count for _, value in self.fields) + sum(
            len(value) for _, value in self.facts
        )
        return STEP_OVERHEAD_CHARS + text_chars + pair_chars + GROWTH_POINT_CHARS * len(self.growth)

    @property
    def is_truncated(self) -> bool:
        texts = [self.text, self.diff, self.output, *(value for _, value in self.fields)]
        return any(text.omitted_chars for text in texts)

    def truncate_texts(self, max_chars: int) -> None:
        self.text, self.diff, self.output = (
            truncate_text(self.text, max_chars),
            truncate_text(self.diff, max_chars),
            truncate_text(self.output, max_chars),
        )
        self.fields = [(name, truncate_text(value, max_chars)) for name, value in self.fields]


class _OpenStep(NamedTuple):
    step_view: SessionStepView
    tool_input: Mapping[str, Any]
    growth: list[tuple[int, int]]


class SessionExport:
    """Collects the steps of a session for an export.

    title           the first line of the first prompt
    max_text_chars  the current limit per text
    keeps_steps     False for a session that is still running: `steps` remains empty, and the caller
                    uses the step that `add_step_change` returns
    """

    def __init__(
        self, *, redact: bool = True, max_chars: int = MAX_TOTAL_CHARS, keeps_steps: bool = True
    ) -> None:
        self.steps: list[SessionStepView] = []
        self._keeps_steps = keeps_steps
        self.title = ""
        self.max_text_chars = MAX_TEXT_CHARS
        self.omitted_steps = 0  # steps that did not fit
        self.secret_counts: dict[str, int] = {}  # kind of secret → number of redactions
        self._redactor = Redactor(self.secret_counts) if redact else None
        self._max_chars = max_chars
        self._char_count = 0
        self._extra_landmarks = 0  # landmarks that were stored beyond the limit
        self._open_steps: dict[int, _OpenStep] = {}
        # call id → step number and depth
        self._step_and_depth_by_call: dict[str, tuple[int, int]] = {}
        self._last_text = ""
        # Failed tool calls of this turn. The result of the turn may report them as denied.
        self._failed_calls: dict[int, SessionStepView] = {}

    # -- texts -------------------------------------------------------------------------------------

    def sanitize_text(self, text: object) -> str:
        """Return a text without secrets and with control characters escaped."""
        if isinstance(text, str):
            cleaned = text
        elif text is None:
            cleaned = ""
        else:
            cleaned = str(text)
        if self._redactor:
            cleaned = self._redactor.redact_text(cleaned)
        return escape_control_chars(cleaned.replace("\r\n", "\n"))

    def format_field_value(self, value: object) -> str:
        """Return a value as one short line."""
        text = value
        if not isinstance(value, str):
            text = format_single_line_value(self._redact(value))
        return shorten_end(self.sanitize_text(text).replace("\n", " ⏎ "), MAX_FIELD_CHARS)

    def _truncate_clean_text(self, text: object) -> TruncatedText:
        return truncate_text(TruncatedText(self.sanitize_text(text)), self.max_text_chars)

    # -- steps -------------------------------------------------------------------------------------

    def add_step_change(self, time_s: float, change: SessionStepChange) -> SessionStepView | None:
        """Apply a step change, `time_s` seconds after the start of the session. Return the step, or
        None if the export has no space for the step.
        """
        step = change.step
        if change.phase == "denied":
            return self._deny_failed_call(step)
        if change.phase == "begin":
            self._start_step(step)
        open_step = self._open_steps.get(step.number)
        if open_step is None:
            return None
        if change.phase == "more":
            _add_growth(open_step.growth, _to_ms(time_s), len(change.fragment))
        elif change.phase == "end":
            del self._open_steps[step.number]
            self._end_step(step, open_step)
        elif step.kind == "call" and not self._keeps_steps:
            # The page shows a running tool call before its result arrives.
            self._fill_call(step, open_step.step_view, open_step.tool_input)
        return open_step.step_view

    def _deny_failed_call(self, step: SessionStep) -> SessionStepView | None:
        step_view = self._failed_calls.get(step.number)
        if step_view is not None:
            step_view.outcome = step.outcome
        return step_view

    def find_call_step_number(self, call_id: str) -> int:
        """Return the step number of a tool call, or 0 for an unknown call id."""
        return self._step_and_depth_by_call.get(call_id, (0, 0))[0]

    def _start_step(self, step: SessionStep) -> None:
        if len(self.steps) >= MAX_STEPS or self._char_count >= self._max_chars:
            if step.kind not in LANDMARK_KINDS or self._extra_landmarks >= MAX_EXTRA_LANDMARKS:
                self.omitted_steps += 1
                return
            self._extra_landmarks += 1
        if step.parent:
            parent_number, depth = self._step_and_depth_by_call.get(step.parent, (0, -1))
        else:
            parent_number = 0
            depth = -1
        step_view = SessionStepView(
            step.number,
            step.kind,
            _to_ms(step.at),
            turn=step.turn,
            above=parent_number,
            depth=min(depth + 1, MAX_DEPTH),
        )
        if self._keeps_steps:
            self.steps.append(step_view)
        step_view.name = self.format_field_value(step.name)
        tool_input = as_dict(self._redact(step.input))
        main_argument = tool_input.get(find_main_argument(tool_input), "")
        step_view.main = self.format_field_value(main_argument)
        self._open_steps[step.number] = _OpenStep(step_view, tool_input, [])
        if step.kind == "call":
            if len(self._step_and_depth_by_call) >= MAX_STEPS:
                del self._step_and_depth_by_call[next(iter(self._step_and_depth_by_call))]
            self._step_and_depth_by_call[step.call] = (step.number, step_view.depth)
        elif step.call and not step_view.above:
            step_view.above = self._step_and_depth_by_call.get(step.call, (0, 0))[0]

    def _redact(self, value: Any) -> Any:
        if self._redactor:
            return self._redactor.redact_value(value)
        return value

    def _end_step(self, step: SessionStep, open_step: "_OpenStep") -> None:
        step_view = open_step.step_view
        growth = open_step.growth
        if step.kind == "note":
            step = replace(step, name=self._redact(step.name), facts=self._redact(step.facts))
        if step.until is None:
            step_view.until = None
        else:
            step_view.until = _to_ms(step.until)
            step_view.waited = _to_ms(step.prompt_wait_s)
        step_view.outcome, step_view.text = (
            step.outcome,
            self._truncate_clean_text(
                describe_note_step(step) if step.kind == "note" else step.text
            ),
        )
        if growth:
            full_size = growth[-1][1] or 1
            step_view.growth = [
                (time_s - step_view.at, 1000 * size // full_size) for time_s, size in growth
            ]
        if step.kind in ("call", "question"):
            self._fill_call(step, step_view, open_step.tool_input)
            if step.outcome == "failed":
                self._failed_calls[step.number] = step_view
        else:
            step_view.facts = list(self._list_fields(step))
        if step.kind == "result":
            self._failed_calls.clear()
        if step.kind == "text" and not step.parent:
            self._last_text = step.text
        elif step.kind == "result" and step.text == self._last_text:
            step_view.text = EMPTY_TEXT  # the result repeats the agent's last text
        elif step.kind == "prompt" and not self.title:
            self.title = _find_first_line(step_view.text.head)
        self._shrink_to_fit(step_view)

    def _fill_call(
        self, step: SessionStep, step_view: SessionStepView, tool_input: Mapping[str, Any]
    ) -> None:
        old_text = as_dict(step.extra).get("originalFile")
        context_lines = CONTEXT_LINES
        if step.kind == "question":
            context_lines = FULL_CONTEXT_LINES
        difference = build_tool_call_diff(
            step.name, tool_input, self._redact(old_text), context_lines=context_lines
        )
        step_view.diff = self._truncate_clean_text(difference)
        step_view.fields = [
            (
                self.format_field_value(name),
                self._truncate_clean_text(
                    value if isinstance(value, str) else format_value_as_lines(value)
                ),
            )
            for name, value in list_arguments_beside_diff(
                step.name, tool_input, difference, MAX_FIELDS
            )
        ]
        step_view.output = self._truncate_clean_text(format_content_text(step.output))

    def _list_fields(self, step: SessionStep) -> Iterable[tuple[str, str]]:
        fields = step.facts
        for name, read_field in FIELD_READERS.get(step.kind, {}).items():
            try:
                value = read_field(step)
            except (AttributeError, KeyError, TypeError, ValueError, IndexError):
                continue  # the event has an unexpected structure
            if value not in (None, "", [], {}):
                yield name, self.format_field_value(value)
        # The note "user" is a text of a user message and has no fields.
        if step.kind == "note" and step.name != "user":
            for name, value in list(fields.items())[:MAX_FIELDS]:
                if name not in HIDDEN_FIELDS and value not in (None, "", [], {}):
                    yield self.format_field_value(str(name)), self.format_field_value(value)

    def _shrink_to_fit(self, step_view: SessionStepView) -> None:
        """Add the size of a new step. If the session is too large, halve the limit per text until
        the session fits or MIN_TEXT_CHARS is reached.
        """
        if not self._keeps_steps:
            return
        self._char_count += step_view.char_count
        while self._char_count > self._max_chars and self.max_text_chars > MIN_TEXT_CHARS:
            self.max_text_chars = max(self.max_text_chars // 2, MIN_TEXT_CHARS)
            for step in self.steps:
                step.truncate_texts(self.max_text_chars)
            self._char_count = sum(step.char_count for step in self.steps)


def _to_ms(seconds: float) -> int:
    return round(1000 * seconds)


def _find_first_line(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return shorten_end(line, MAX_FIELD_CHARS)


def _add_growth(growth: list[tuple[int, int]], time_ms: int, size: int) -> None:
    """Add a text's current size to the points of its growth. If there are too many points, remove
    every second point.
    """
    if growth:
        size += growth[-1][1]
    growth.append((time_ms, size))
    if len(growth) > 2 * MAX_GROWTH_POINTS:
        del growth[: len(growth) - 1 : 2]


ReadField = Callable[[SessionStep], Any]
# Step kind → functions that read the fields of a step.
FIELD_READERS: Mapping[StepKind, Mapping[str, ReadField]] = {
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
        "errors": lambda step: "\n".join(map(str, as_list(step.facts.get("errors")))),
        "replies": lambda step: step.replies or None,
        "time": lambda step: format_duration(step.duration_s) if step.duration_s else None,
        "tokens": lambda step: (
            format_token_counts(step.facts["usage"]) if any(step.facts["usage"].values()) else None
        ),
        "cost": lambda step: format_cost(step.cost),
        "denied": lambda step: ", ".join(
            str(denied.get("tool_name")) for denied in step.facts["permission_denials"]
        ),
    },
}
# Note fields that are only useful for programs, or that the note's title already shows.
HIDDEN_FIELDS = frozenset(
    ("type", "subtype", "uuid", "session_id", "kind", "parent_tool_use_id", "request_id", "message")
)
