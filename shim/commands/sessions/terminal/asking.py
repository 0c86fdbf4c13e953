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
from shim.core.claude.permissions import ELICITATION, QUESTION
from shim.core.reading.account import printable
from shim.profiles.rpc.form import answer, questions
from shim.story.terminal.arguments import ASKED_CHARACTERS, Asked, asked_of, shown

KEYS = {"y": YES, "n": NO, "a": ALWAYS}
# What a line may say where no key can be pressed; the numbers are those of the real one's list
# (background page, B46).
LINES = {**CHOICES_BY_INPUT, "1": YES, "allow": YES, "2": ALWAYS, "3": NO, "deny": NO}
ALWAYS_CHARACTERS = 60  # of a key's words

Request = Mapping[str, Any]
Decision = dict[str, Any]


class Form:
    """A question whose answers are words: each is asked in its turn."""

    def __init__(self, asked: list[Asked]) -> None:
        self.asked = asked
        self.answers: dict[str, str] = {}

    @property
    def now(self) -> Asked | None:
        """What is asked now; None when all is answered."""
        place = len(self.answers)
        return self.asked[place] if place < len(self.asked) else None

    def take(self, text: str) -> str:
        """Take the answer to what is asked now. Returns what is wrong with it, "" for nothing."""
        asked = self.now
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
            if len(numbers) > 1 and not asked.several:
                return "one answer can be chosen"
            said = ", ".join(labels[number - 1] for number in dict.fromkeys(numbers))
        self.answers[asked.text] = said
        return ""


class Asking:
    """What waits for an answer in a session of the folder `cwd`."""

    def __init__(self, cwd: str) -> None:
        self.form: Form | None = None
        self._questions = PermissionPromptQueue(cwd)

    @property
    def identity(self) -> str:
        """The id of the question that is asked now, "" for none."""
        return "" if self._question is None else self._question.request_id

    @property
    def more(self) -> int:
        """How many wait behind it."""
        return self._questions.waiting_count

    def asked(self, identity: str, request: Request) -> None:
        """Another question."""
        if self._questions.add(identity, request):
            self._begin()

    def settled(self, identity: str) -> None:
        """A question needs no answer any more."""
        if self._questions.resolve(identity):
            self._begin()

    @property
    def _question(self) -> PermissionPrompt | None:
        return self._questions.current

    def _begin(self) -> None:
        asked = [] if self._question is None else asked_of(form_of(self._question.request))
        self.form = (
            Form(asked) if asked and len({one.text for one in asked}) == len(asked) else None
        )

    # -- answers -----------------------------------------------------------------------------------

    def key(self, character: str) -> Decision | None:
        """The decision of a key; None if it decides nothing."""
        word = KEYS.get(character)
        return (
            None
            if self._question is None or self.form is not None or not self._may(word)
            else self._decided(word)
        )

    def line(self, text: str) -> tuple[Decision | None, str]:
        """What a line decides, and what is wrong with it. It decides nothing where there is more to
        be asked.
        """
        if self._question is None:
            return None, ""
        if self.form is not None:
            wrong = self.form.take(text)
            return (self._filled(self.form) if self.form.now is None else None), wrong
        word = LINES.get(text.strip().lower())
        return (self._decided(word), "") if self._may(word) else (None, "")

    def no(self) -> Decision:
        """The decision that says no, also to a form."""
        return self._decided(NO)

    def _may(self, word: str | None) -> bool:
        assert self._question is not None
        return word in (YES, NO) or (word == ALWAYS and bool(self._question.permission_updates))

    def _decided(self, word: str | None) -> Decision:
        assert self._question is not None
        if self._question.request.get("subtype") == ELICITATION:
            return {"action": "decline"} if word == NO else {"action": "accept", "content": {}}
        return self._question.build_decision(word or NO)

    def _filled(self, form: Form) -> Decision:
        assert self._question is not None
        request = self._question.request
        if request.get("subtype") == ELICITATION:
            return answer(_parameters(request), {"answers": form.answers})
        return {"behavior": "allow", "updatedInput": {**request["input"], "answers": form.answers}}

    # -- what a person is told ---------------------------------------------------------------------

    def about(self) -> str:
        """The question in one line: a model cannot put words between it and the keys."""
        if self._question is None:
            return ""
        request = self._question.request
        if self.form is not None and self.form.now is not None:
            place = (
                f" ({len(self.form.answers) + 1} of {len(self.form.asked)})"
                if len(self.form.asked) > 1
                else ""
            )
            return _cut(self.form.now.text) + place
        if request.get("subtype") == ELICITATION:
            return _cut(f"{request.get('mcp_server_name')} asks: {request.get('message')}")
        given = request.get("input")
        name = printable(request.get("tool_name")).replace("\n", " ")
        return f"may it run {name} {shown(given) if isinstance(given, Mapping) else ''}".rstrip()

    def keys(self) -> list[str]:
        """What can be pressed now."""
        if self._question is None or self.form is not None:
            return []
        always = [f"a {self._always(self._question)}"] if self._question.permission_updates else []
        return ["y yes", "n no", *always]

    def _always(self, question: PermissionPrompt) -> str:
        """What the key for "always" does. A long command that is allowed as it stands was shown
        already.
        """
        given, allowed = question.request.get("input"), question.describe_always("session")
        command = given.get("command") if isinstance(given, Mapping) else None
        exact = question.rules == (f"{question.request.get('tool_name')}({command})",)
        return (
            "always allow exactly this in this session"
            if exact and len(allowed) > ALWAYS_CHARACTERS
            else allowed
        )


def form_of(request: Request) -> Mapping[str, Any]:
    """The arguments of AskUserQuestion that a request has, or that stand for the form of an MCP
    server.
    """
    if request.get("subtype") == ELICITATION:
        return questions(_parameters(request)) or {}
    given = request.get("input")
    return given if request.get("tool_name") == QUESTION and isinstance(given, Mapping) else {}


def _parameters(request: Request) -> dict[str, Any]:
    schema = request.get("requested_schema")
    return {"mode": "form", "message": request.get("message"), "requestedSchema": schema}


def _cut(text: str) -> str:
    line = printable(text[: 2 * ASKED_CHARACTERS]).replace("\n", " ")
    return line if len(line) <= ASKED_CHARACTERS else f"{line[:ASKED_CHARACTERS]}…"
