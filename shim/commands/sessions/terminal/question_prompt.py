"""Manages the open permission prompts of a session and parses a person's answers. The oldest prompt
is answered first. Does no I/O.
"""

from collections.abc import Mapping
from typing import Any

from shim.bridge.decisions import (
    ALWAYS,
    CHOICES_BY_INPUT,
    NO,
    YES,
    PermissionPrompt,
    PermissionPromptQueue,
)
from shim.core.claude.permissions import ELICITATION_SUBTYPE, QUESTION_TOOL
from shim.core.reading.values import as_dict, escape_control_chars, shorten_end
from shim.profiles.rpc.form import build_ask_user_question_input, build_elicitation_result
from shim.story.terminal.arguments import (
    MAX_QUESTION_CHARS,
    FormQuestion,
    format_arguments,
    parse_form_questions,
)

CHOICES_BY_KEY = {"y": YES, "n": NO, "a": ALWAYS}
# Answers that are typed as a line instead of a single key.
# The numbers are the same as in the real claude's list (B46).
CHOICES_BY_LINE = {**CHOICES_BY_INPUT, "1": YES, "allow": YES, "2": ALWAYS, "3": NO, "deny": NO}
MAX_ALWAYS_CHARS = 60  # in the description of the "always" key

Request = Mapping[str, Any]
Decision = dict[str, Any]


class QuestionForm:
    """A prompt with several questions, which are answered one after another with typed text."""

    def __init__(self, form_questions: list[FormQuestion]) -> None:
        self.form_questions = form_questions
        self.answers: dict[str, str] = {}

    @property
    def current_question(self) -> FormQuestion | None:
        """The first unanswered question, or None."""
        index = len(self.answers)
        if index < len(self.form_questions):
            return self.form_questions[index]
        return None

    def validate_and_store_answer(self, text: str) -> str:
        """Store the answer to the current question. If the answer is not valid, return an error
        message instead; otherwise return "".
        """
        question = self.current_question
        assert question is not None
        answer_text = text.strip()
        labels = [label for label, _ in question.options]
        tokens = [token for token in answer_text.replace(",", " ").split() if token]
        numbers = [int(token) for token in tokens if token.isdecimal() and len(token) < 4]
        if not answer_text:
            return "type a number from the list, or your own answer"
        if labels and tokens and len(numbers) == len(tokens):
            if any(not 0 < number <= len(labels) for number in numbers):
                return f"type a number from 1 to {len(labels)}, or your own answer"
            if len(numbers) > 1 and not question.allows_several:
                return "choose only one answer"
            answer_text = ", ".join(labels[number - 1] for number in dict.fromkeys(numbers))
        self.answers[question.text] = answer_text
        return ""


class QuestionPrompt(PermissionPromptQueue):
    """The open permission prompts of a session whose working folder is `cwd`. `form` is set while
    the current prompt is a form.
    """

    def __init__(self, cwd: str) -> None:
        super().__init__(cwd)
        self.form: QuestionForm | None = None

    @property
    def request_id(self) -> str:
        """The id of the current prompt, or ""."""
        if self.current is None:
            return ""
        return self.current.request_id

    def _update_current(self) -> bool:
        if not super()._update_current():
            return False
        self.form = None
        if self.current is not None:
            form_questions = parse_form_questions(build_question_tool_input(self.current.request))
            texts = {question.text for question in form_questions}
            if form_questions and len(texts) == len(form_questions):
                self.form = QuestionForm(form_questions)
        return True

    # -- answers -----------------------------------------------------------------------------------

    def parse_decision_key(self, character: str) -> Decision | None:
        """Return the decision for a pressed key, or None if the key is not an answer."""
        choice = CHOICES_BY_KEY.get(character)
        if self.current is None or self.form is not None or not self._accepts_choice(choice):
            return None
        return self._build_decision(choice)

    def parse_decision_line(self, text: str) -> tuple[Decision | None, str]:
        """Return the decision for a typed line, and an error message or "". The decision is None if
        the line is not an answer, or while a form has unanswered questions.
        """
        if self.current is None:
            return None, ""
        if self.form is not None:
            problem = self.form.validate_and_store_answer(text)
            return (
                self._build_form_decision(self.form) if self.form.current_question is None else None
            ), problem
        choice = CHOICES_BY_LINE.get(text.strip().lower())
        if self._accepts_choice(choice):
            return (self._build_decision(choice), "")
        return (None, "")

    def build_denial_decision(self) -> Decision:
        """Return the decision that denies the current prompt or declines the current form."""
        return self._build_decision(NO)

    def _accepts_choice(self, choice: str | None) -> bool:
        assert self.current is not None
        if choice in (YES, NO):
            return True
        return choice == ALWAYS and bool(self.current.permission_updates)

    def _build_decision(self, choice: str | None) -> Decision:
        assert self.current is not None
        if self.current.request.get("subtype") == ELICITATION_SUBTYPE:
            if choice == NO:
                return {"action": "decline"}
            return {"action": "accept", "content": {}}
        return self.current.build_decision(choice or NO)

    def _build_form_decision(self, form: QuestionForm) -> Decision:
        assert self.current is not None
        request = self.current.request
        if request.get("subtype") == ELICITATION_SUBTYPE:
            return build_elicitation_result(_build_form_params(request), {"answers": form.answers})
        return {"behavior": "allow", "updatedInput": {**request["input"], "answers": form.answers}}

    # -- text for the terminal ---------------------------------------------------------------------

    def describe_request(self) -> str:
        """Describe the current prompt in one line. The line appears directly above the answer keys,
        so that no text from a model can come between them.
        """
        if self.current is None:
            return ""
        request = self.current.request
        if self.form is not None and self.form.current_question is not None:
            position = ""
            if len(self.form.form_questions) > 1:
                position = f" ({len(self.form.answers) + 1} of {len(self.form.form_questions)})"
            return _shorten_text(self.form.current_question.text) + position
        if request.get("subtype") == ELICITATION_SUBTYPE:
            return _shorten_text(f"{request.get('mcp_server_name')} asks: {request.get('message')}")
        name = escape_control_chars(request.get("tool_name")).replace("\n", " ")
        return f"Allow {name} {format_arguments(as_dict(request.get('input')))}".rstrip()

    def list_key_hints(self) -> list[str]:
        """Return the available answer keys with their meanings."""
        if self.current is None or self.form is not None:
            return []
        always_hint = []
        if self.current.permission_updates:
            always_hint = [f"a {self._describe_always(self.current)}"]
        return ["y yes", "n no", *always_hint]

    def _describe_always(self, prompt: PermissionPrompt) -> str:
        """Describe the "always" key. If the rule allows exactly the shown command and the command
        is long, the command is not repeated.
        """
        always_text = prompt.describe_always_allow_choice("session")
        command = as_dict(prompt.request.get("input")).get("command")
        is_exact = prompt.rules == (f"{prompt.request.get('tool_name')}({command})",)
        if is_exact and len(always_text) > MAX_ALWAYS_CHARS:
            return "always allow exactly this call in this session"
        return always_text


def build_question_tool_input(request: Request) -> Mapping[str, Any]:
    """Return the AskUserQuestion input of a request. For a form from an MCP server, return an
    equivalent input.
    """
    if request.get("subtype") == ELICITATION_SUBTYPE:
        return as_dict(build_ask_user_question_input(_build_form_params(request)))
    if request.get("tool_name") != QUESTION_TOOL:
        return {}
    return as_dict(request.get("input"))


def _build_form_params(request: Request) -> dict[str, Any]:
    schema = request.get("requested_schema")
    return {"mode": "form", "message": request.get("message"), "requestedSchema": schema}


def _shorten_text(text: str) -> str:
    line = escape_control_chars(text[: 2 * MAX_QUESTION_CHARS]).replace("\n", " ")
    return shorten_end(line, MAX_QUESTION_CHARS)
