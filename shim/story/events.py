"""Defines session steps, their changes, and session totals. Does no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from shim.core.reading.values import as_dict, get_text

StepKind = Literal[
    "start", "prompt", "thinking", "text", "call", "question", "answer", "note", "error", "result"
]

MAX_STREAMED_CHARS = 16 * 1024 * 1024  # characters that are stored of a block until the block ends
TOKEN_FIELDS = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)
# The arguments that describe a tool call best, in order of preference.
# The first one that is present in a call is shown beside the tool name.
MAIN_ARGUMENTS = (
    "command",
    "file_path",
    "notebook_path",
    "pattern",
    "path",
    "url",
    "query",
    "description",
    "prompt",
    "skill",
)
# Answer to a permission prompt → what became of the prompt.
PROMPT_OUTCOMES = {
    "allow": "allowed",
    "deny": "denied",
    "timeout": "denied: no answer in time",
    "interrupt": "withdrawn: the turn was interrupted",
    "cancelled": "withdrawn",
    "ended": "denied: the session ended",
}
# Todo status → sign.
TODO_SIGNS = {"completed": "☑", "in_progress": "▸", "pending": "☐"}
MAX_QUESTIONS = 20  # per tool call; the real claude asks at most four
MAX_OPTIONS = 50  # per question
# Two texts that share this many leading characters may be the same text, cut off or redacted.
MIN_SHARED_CHARS = 20


def find_main_argument(tool_input: Mapping[str, Any]) -> str:
    """Return the name of the argument that describes a tool call best, or "" if there is none. Its
    value is a text.
    """
    return next((name for name in MAIN_ARGUMENTS if isinstance(tool_input.get(name), str)), "")


@dataclass(slots=True)
class SessionStep:
    """One step of a session. Times are seconds since the start of the session.

        at, until      the start and the end; `until` is None while the step is open
        call, name     the id and the tool name of a tool call; the `name` of a note is its kind
        input          the arguments of a tool call
        output         the content of a tool result
        extra          Claude's structured tool result, such as the patch of an edit
        outcome        of a tool call: `ok`, `failed`, `denied` or `unanswered`
        parent         the tool call that runs the subagent, "" for the main agent
        facts          the fields of the event behind a start, note, question, answer, error or result
        since          of a result: when its turn was requested, or started by itself
        cost           of a result: the cost of its turn in dollars
        replies        of a result: the main agent's messages in its turn, without subagents
        prompt_wait_s  how long a tool call waited for the answer to its permission prompt

    A `thinking` step without text was hidden by the vendor.
    """

    number: int
    kind: StepKind
    at: float
    turn: int = 0
    text: str = ""
    until: float | None = None
    call: str = ""
    name: str = ""
    input: Mapping[str, Any] = field(default_factory=dict)
    output: Any = None
    extra: Any = None
    outcome: str = ""
    parent: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    since: float = 0.0
    cost: float = 0.0
    replies: int = 0
    prompt_wait_s: float = 0.0

    @property
    def run_time_s(self) -> float:
        """Return the run time of a tool call in seconds, without its wait for permission. Return
        0.0 for an open call.
        """
        if self.until is None:
            return 0.0
        return max(self.until - self.at - self.prompt_wait_s, 0.0)

    @property
    def duration_s(self) -> float:
        """Return the duration of a result's turn in seconds. If all lines arrived at the same time,
        return the duration that the result reports.
        """
        if self.at != self.since:
            return self.at - self.since
        duration_ms = self.facts.get("duration_ms")
        if isinstance(duration_ms, int | float) and 0 < duration_ms < 1e12:
            return duration_ms / 1000
        return 0.0


class SessionStepChange(NamedTuple):
    """A change of a session step: its start, an added text fragment, or its end. `denied` follows
    the end of a failed tool call if the turn's result reports that the call was denied.
    """

    phase: Literal["begin", "more", "end", "denied"]
    step: SessionStep
    fragment: str = ""


@dataclass(slots=True)
class SessionTotals:
    """The totals of a session. `tokens` uses the names of Claude's usage fields. `seconds` contains
    the time per activity.

    `failed_calls` does not include denied calls.
    """

    turns: int = 0
    calls: int = 0
    failed_calls: int = 0
    denied_calls: int = 0
    errors: int = 0
    cost_usd: float = 0.0
    duration_s: float = 0.0
    tokens: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    repairs: dict[str, int] = field(default_factory=dict)

    def add_call_outcome(self, outcome: str, count: int = 1) -> None:
        self.failed_calls += count * (outcome == "failed")
        self.denied_calls += count * (outcome == "denied")

    def add_turn_result(self, result: Mapping[str, Any]) -> None:
        """Add the result of a turn, except its cost. The caller adds up the cost, which Claude
        reports per conversation.
        """
        self.turns += 1
        self.errors += bool(result.get("is_error"))
        usage = as_dict(result.get("usage"))
        repairs = as_dict(as_dict(result.get("shim")).get("repairs"))
        for counts, sums, names in (
            (usage, self.tokens, TOKEN_FIELDS),
            (repairs, self.repairs, repairs),
        ):
            for name in names:
                count = counts.get(name)
                if isinstance(count, int) and count >= 0:
                    sums[name] = sums.get(name, 0) + count


class StreamedContentBlock:
    """A content block that is still being streamed. The text fragments are joined when the block
    ends.
    """

    __slots__ = ("char_count", "fragments", "step")

    def __init__(self, step: SessionStep) -> None:
        self.step = step
        self.fragments: list[str] = []
        self.char_count = 0

    def add_fragment(self, fragment: str) -> None:
        if self.char_count < MAX_STREAMED_CHARS:
            self.fragments.append(fragment[: MAX_STREAMED_CHARS - self.char_count])
        self.char_count += len(fragment)

    def join_text(self) -> str:
        self.fragments = ["".join(self.fragments)]
        omitted_chars = self.char_count - MAX_STREAMED_CHARS
        return self.fragments[0] + (
            f"\n… {omitted_chars} more characters" if omitted_chars > 0 else ""
        )


def is_same_block_text(streamed_text: str, full_text: str) -> bool:
    """Return whether a complete block's text matches a streamed block's text. One of the texts may
    be cut off or redacted.
    """
    if full_text.startswith(streamed_text) or streamed_text.startswith(full_text):
        return True
    prefix_chars = max(MIN_SHARED_CHARS, min(len(streamed_text), len(full_text)) // 2)
    if len(streamed_text) < prefix_chars:
        return False
    return streamed_text[:prefix_chars] == full_text[:prefix_chars]


def has_only_question_texts_and_options(tool_input: Mapping[str, Any]) -> bool:
    """Return whether an AskUserQuestion input contains nothing but question texts and their
    options.
    """
    questions = tool_input.get("questions")
    if (
        set(tool_input) != {"questions"}
        or not isinstance(questions, list)
        or not 0 < len(questions) <= MAX_QUESTIONS
    ):
        return False
    return all(map(_is_plain_question, questions))


def _is_plain_question(question: Any) -> bool:
    if not _has_only_texts(question, ("question", "header", "options", "multiSelect")):
        return False
    options = question.get("options", [])
    if not isinstance(options, list) or len(options) > MAX_OPTIONS:
        return False
    if not isinstance(question.get("multiSelect", False), bool):
        return False
    return all(
        _has_only_texts(option, ("label", "description")) and option.get("label")
        for option in options
    )


def _has_only_texts(value: object, allowed_names: tuple[str, ...]) -> bool:
    if not isinstance(value, Mapping) or not set(value).issubset(allowed_names):
        return False
    return all(
        isinstance(field_value, str)
        for name, field_value in value.items()
        if name not in ("options", "multiSelect")
    )


def find_vendor_name(event: Mapping[str, Any]) -> str:
    """Return the vendor named in an `init` or `result` event, or "". The real claude names no
    vendor.
    """
    return get_text(as_dict(event.get("shim")), "vendor")


def format_model_name(model: object) -> str:
    """Return the name of a model, or "" for the placeholder "unknown" in an early `init`."""
    if model in (None, "unknown"):
        return ""
    return str(model)


def find_failure_cause(result: Mapping[str, Any]) -> str:
    """Return why a turn failed, as reported by the shim or the real claude, or "" if the turn
    succeeded.
    """
    if not result.get("is_error"):
        return ""
    cause = as_dict(result.get("shim")).get("cause")
    causes = (cause, result.get("terminal_reason"), result.get("subtype"))
    return next(
        (
            str(cause_text)
            for cause_text in causes
            if cause_text and cause_text not in ("completed", "success")
        ),
        "error",
    )


def format_content_text(content: Any) -> str:
    """Return the content of a message or a tool result as text. Blocks without text appear as their
    type in brackets.
    """
    if not isinstance(content, list):
        if content is None:
            return ""
        return str(content)
    parts = []
    for block in content:
        text = block
        placeholder = ""
        if isinstance(block, Mapping):
            text = block.get("text")
            placeholder = f"[{block.get('type')}]"
        if not isinstance(text, str):
            text = placeholder
        parts.append(text)
    return "\n".join(parts)
