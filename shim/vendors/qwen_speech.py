"""What qwen is told through its stdin while it stays for a conversation (qwen page, section 5).

`initialize` has to be the first line, else every later request stays unanswered. Model and mode change between turns.
"""

from collections.abc import Mapping
from typing import Any

from shim.dumping import dump
from shim.permissions import Decision, Permission
from shim.tools import own_arguments
from shim.vendors.qwen_tools import TOOLS

# How long it waits for a permission: as long as a person takes to come back. Its own default is 60 s.
PATIENCE_MS = 24 * 60 * 60 * 1000
MODES = {
    "default": "default",
    "plan": "plan",
    "acceptEdits": "auto-edit",
    "dontAsk": "default",
    "auto": "auto",
    "bypassPermissions": "yolo",
}
# 0.24.4 takes `updatedInput` for its records and runs the call as it was: only a refusal keeps the old input from it.
CHANGED = (
    "Not run: the user allows this call with another input only. Make the call again with exactly this input: {input}"
)


class QwenSpeech:
    """One child's ear; requests are numbered."""

    def __init__(self) -> None:
        self._number = 0

    def hello(self) -> bytes:
        """The control side is on from here."""
        return self._request(subtype="initialize", hooks=None, timeout={"canUseTool": PATIENCE_MS})

    def prompt(self, text: str) -> bytes:
        """A turn; it reads nothing but text."""
        message = {"role": "user", "content": text}
        return _line({"type": "user", "session_id": "", "message": message, "parent_tool_use_id": None})

    def interrupt(self) -> bytes:
        """It ends the turn with a result and stays."""
        return self._request(subtype="interrupt")

    def model(self, name: str) -> bytes:
        """From the next request on."""
        return self._request(subtype="set_model", model=name)

    def mode(self, name: str) -> bytes:
        """Its own names differ."""
        return self._request(subtype="set_permission_mode", mode=MODES[name])

    def decide(self, permission: Permission, decision: Decision) -> bytes:
        """Arguments that were not changed are not sent: it keeps its own. ValueError: it would run the old ones."""
        answer: dict[str, Any] = {"behavior": "allow"}
        if not decision.allow:
            answer = {"behavior": "deny", "message": decision.message or "Interrupted by the user."}
        elif decision.changed is not None:
            answer["updatedInput"] = _changed(permission, decision.changed)
        return _response({"subtype": "success", "request_id": permission.request, "response": answer})

    def _request(self, **request: object) -> bytes:
        self._number += 1
        return _line({"type": "control_request", "request_id": f"shim-{self._number}", "request": request})


def _changed(permission: Permission, changed: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answers to its question, keyed by their number (Claude's are keyed by their text)."""
    answers = changed.get("answers")
    if permission.own_tool != "ask_user_question" or not isinstance(answers, dict):
        own = own_arguments(TOOLS, permission.own_tool, permission.own_arguments, changed)
        raise ValueError(CHANGED.format(input=dump(changed if own is None else own).decode()))
    questions = permission.own_arguments.get("questions")
    numbers = {
        question.get("question"): str(number)
        for number, question in enumerate(questions if isinstance(questions, list) else ())
        if isinstance(question, dict)
    }
    return {**permission.own_arguments, "answers": {numbers.get(name, name): said for name, said in answers.items()}}


def unanswerable(request: str, subtype: object) -> bytes:
    """The answer to a request that has none: silence would let it wait."""
    return _response({"subtype": "error", "request_id": request, "error": f"Unsupported control request: {subtype}"})


def _response(response: Mapping[str, Any]) -> bytes:
    return _line({"type": "control_response", "response": response})


def _line(value: object) -> bytes:
    return dump(value) + b"\n"
