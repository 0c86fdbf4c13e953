"""The open questions of a session, as one person at a keyboard answers them: the oldest first.
Pure.
"""

from collections.abc import Mapping
from typing import Any

from shim.bridge.answering import (
    ALWAYS,
    CHOICES_BY_INPUT,
    NO,
    YES,
    PermissionPrompt,
    PermissionPromptQueue,
)
from shim.core.claude.permissions import ELICITATION_SUBTYPE, QUESTION_TOOL
from shim.core.reading.account import escape_control_chars
from shim.profiles.rpc.form import build_form_result, build_questions
from shim.story.terminal.arguments import (
    MAX_QUESTION_CHARS,
    FormQuestion,
    format_arguments,
    parse_questions,
)

CHOICES_BY_KEY = {"y": YES, "n": NO, "a": ALWAYS}
# What a line may say where no key can be pressed; the numbers are those of the real one's list
# (background page, B46).
CHOICES_BY_LINE = {**CHOICES_BY_INPUT, "1": YES, "allow": YES, "2": ALWAYS, "3": NO, "deny": NO}
MAX_ALWAYS_CHARS = 60  # of a key's words

Request = Mapping[str, Any]
Decision = dict[str, Any]


class QuestionForm:
    """A question whose answers are words: each is asked in its turn."""

    def __init__(self, asked: list[FormQuestion]) -> None:
        self.form_questions = asked
        self.answers: dict[str, str] = {}

    @property
    def current_question(self) -> FormQuestion | None:
        """What is asked now; None when all is answered."""
        place = len(self.answers)
        return self.form_questions[place] if place < len(self.form_questions) else None

    def accept_answer(self, text: str) -> str:
        """Take the answer to what is asked now. Returns what is wrong with it, "" for nothing."""
        asked = self.current_question
        assert asked is not None
        said = text.strip()
        labels = [label for label, _ in asked.options]
        words = [word for word in said.replace(",", " ").split() if word]
        numbers = [int(word) for word in words if word.isdecimal() and len(word) < 4]
        if not said:
            return "an answer is a number of the list, or words of your own"
        if labels and words and len(numbers) == len(words):
            if any(not 0 < number <= len(labels) for number in numbers):
                return f"use a number of 1 to {len(labels)}, or words of your own"
            if len(numbers) > 1 and not asked.allows_several:
                return "one answer can be chosen"
            said = ", ".join(labels[number - 1] for number in dict.fromkeys(numbers))
        self.answers[asked.text] = said
        return ""


class QuestionPrompt:
    """What waits for an answer in a session of the folder `cwd`."""

    def __init__(self, cwd: str) -> None:
        self.form: QuestionForm | None = None
        self._queue = PermissionPromptQueue(cwd)

    @property
    def request_id(self) -> str:
        """The id of the question that is asked now, "" for none."""
        return "" if self._current_prompt is None else self._current_prompt.request_id

    @property
    def waiting_count(self) -> int:
        """How many wait behind it."""
        return self._queue.waiting_count

    def add_request(self, identity: str, request: Request) -> None:
        """Another question."""
        if self._queue.add(identity, request):
            self._start_current()

    def resolve_request(self, identity: str) -> None:
        """A question needs no answer any more."""
        if self._queue.resolve(identity):
            self._start_current()

    @property
    def _current_prompt(self) -> PermissionPrompt | None:
        return self._queue.current

    def _start_current(self) -> None:
        asked = (
            []
            if self._current_prompt is None
            else parse_questions(build_form_input(self._current_prompt.request))
        )
        self.form = (
            QuestionForm(asked)
            if asked and len({one.text for one in asked}) == len(asked)
            else None
        )

    # -- answers -----------------------------------------------------------------------------------

    def decide_by_key(self, character: str) -> Decision | None:
        """The decision of a key; None if it decides nothing."""
        word = CHOICES_BY_KEY.get(character)
        return (
            None
            if self._current_prompt is None
            or self.form is not None
            or not self._accepts_choice(word)
            else self._build_decision(word)
        )

    def decide_by_line(self, text: str) -> tuple[Decision | None, str]:
        """What a line decides, and what is wrong with it. It decides nothing where there is more to
        be asked.
        """
        if self._current_prompt is None:
            return None, ""
        if self.form is not None:
            wrong = self.form.accept_answer(text)
            return (
                self._build_form_decision(self.form) if self.form.current_question is None else None
            ), wrong
        word = CHOICES_BY_LINE.get(text.strip().lower())
        return (self._build_decision(word), "") if self._accepts_choice(word) else (None, "")

    def build_refusal(self) -> Decision:
        """The decision that says no, also to a form."""
        return self._build_decision(NO)

    def _accepts_choice(self, word: str | None) -> bool:
        assert self._current_prompt is not None
        return word in (YES, NO) or (
            word == ALWAYS and bool(self._current_prompt.permission_updates)
        )

    def _build_decision(self, word: str | None) -> Decision:
        assert self._current_prompt is not None
        if self._current_prompt.request.get("subtype") == ELICITATION_SUBTYPE:
            return {"action": "decline"} if word == NO else {"action": "accept", "content": {}}
        return self._current_prompt.build_decision(word or NO)

    def _build_form_decision(self, form: QuestionForm) -> Decision:
        assert self._current_prompt is not None
        request = self._current_prompt.request
        if request.get("subtype") == ELICITATION_SUBTYPE:
            return build_form_result(_build_form_params(request), {"answers": form.answers})
        return {"behavior": "allow", "updatedInput": {**request["input"], "answers": form.answers}}

    # -- what a person is told ---------------------------------------------------------------------

    def describe_request(self) -> str:
        """The question in one line: a model cannot put words between it and the keys."""
        if self._current_prompt is None:
            return ""
        request = self._current_prompt.request
        if self.form is not None and self.form.current_question is not None:
            place = (
                f" ({len(self.form.answers) + 1} of {len(self.form.form_questions)})"
                if len(self.form.form_questions) > 1
                else ""
            )
            return _shorten_text(self.form.current_question.text) + place
        if request.get("subtype") == ELICITATION_SUBTYPE:
            return _shorten_text(f"{request.get('mcp_server_name')} asks: {request.get('message')}")
        given = request.get("input")
        name = escape_control_chars(request.get("tool_name")).replace("\n", " ")
        return f"may it run {name} {format_arguments(given) if isinstance(given, Mapping) else ''}".rstrip()

    def list_key_hints(self) -> list[str]:
        """What can be pressed now."""
        if self._current_prompt is None or self.form is not None:
            return []
        always = (
            [f"a {self._describe_always(self._current_prompt)}"]
            if self._current_prompt.permission_updates
            else []
        )
        return ["y yes", "n no", *always]

    def _describe_always(self, question: PermissionPrompt) -> str:
        """What the key for "always" does. A long command that is allowed as it stands was shown
        already.
        """
        given, allowed = question.request.get("input"), question.describe_always("session")
        command = given.get("command") if isinstance(given, Mapping) else None
        exact = question.rules == (f"{question.request.get('tool_name')}({command})",)
        return (
            "always allow exactly this in this session"
            if exact and len(allowed) > MAX_ALWAYS_CHARS
            else allowed
        )


def build_form_input(request: Request) -> Mapping[str, Any]:
    """The arguments of AskUserQuestion that a request has, or that stand for the form of an MCP
    server.
    """
    if request.get("subtype") == ELICITATION_SUBTYPE:
        return build_questions(_build_form_params(request)) or {}
    given = request.get("input")
    return given if request.get("tool_name") == QUESTION_TOOL and isinstance(given, Mapping) else {}


def _build_form_params(request: Request) -> dict[str, Any]:
    schema = request.get("requested_schema")
    return {"mode": "form", "message": request.get("message"), "requestedSchema": schema}


def _shorten_text(text: str) -> str:
    line = escape_control_chars(text[: 2 * MAX_QUESTION_CHARS]).replace("\n", " ")
    return line if len(line) <= MAX_QUESTION_CHARS else f"{line[:MAX_QUESTION_CHARS]}…"
