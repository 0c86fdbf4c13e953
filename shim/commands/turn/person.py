"""The person at the terminal, who is asked whether a call may run: one question at a time, y, n or always."""

import os
import select
import termios
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from shim.commands.turn.granting import DENIED, granting_rule
from shim.core.reading.account import printable

ANSWER_BYTES = 4096  # a terminal hands over no longer line
WORDS = {"y": "yes", "yes": "yes", "n": "no", "no": "no", "a": "always", "always": "always"}


class Question(NamedTuple):
    """A `can_use_tool` request. `always` are the permission updates that spare later questions; () where none do."""

    line: Mapping[str, Any]
    always: tuple[Mapping[str, Any], ...]
    rules: tuple[str, ...]

    @property
    def identity(self) -> str:
        return str(self.line.get("request_id"))

    def prompt(self) -> str:
        """What stands in front of the cursor."""
        always = f", a = always allow {', '.join(self.rules)} in this run" if self.always else ""
        return printable(f"  y = yes, n = no{always}: ").replace("\n", " ")

    def answer(self, word: str) -> dict[str, Any]:
        """The control_response for `yes`, `no` or `always`."""
        decision: dict[str, Any] = {"behavior": "deny", "message": DENIED}
        if word != "no":
            decision = {"behavior": "allow", "updatedInput": self.line["request"].get("input")}
        if word == "always" and self.always:
            decision["updatedPermissions"] = list(self.always)
        response = {"subtype": "success", "request_id": self.identity, "response": decision}
        return {"type": "control_response", "response": response}


class Person:
    """Reads the answers from the terminal `descriptor`. `asked` is the question that is open."""

    def __init__(self, descriptor: int, cwd: str) -> None:
        self.descriptor = descriptor
        self.asked: Question | None = None
        self._cwd = cwd
        self._waiting = deque[Mapping[str, Any]]()

    def hear(self, line: Mapping[str, Any]) -> bool:
        """A question of the drop-in's. Returns whether it has to wait for the answer to another one."""
        if self.asked is not None:
            self._waiting.append(line)
            return True
        # What was typed before the question is no answer to it.
        termios.tcflush(self.descriptor, termios.TCIFLUSH)
        self.asked = self.question(line)
        return False

    def withdraw(self, identity: str) -> bool:
        """A question needs no answer any more. Returns whether it was the open one."""
        self._waiting = deque(line for line in self._waiting if str(line.get("request_id")) != identity)
        if self.asked is None or self.asked.identity != identity:
            return False
        self.asked = None
        return True

    def forget(self) -> None:
        """The turn is over, and with it every question."""
        self.asked = None
        self._waiting.clear()

    def next(self) -> Mapping[str, Any] | None:
        """The question that has waited longest, None if there is none."""
        return self._waiting.popleft() if self._waiting else None

    def read(self) -> str | None:
        """The answer to the open question as one of `WORDS`' values; None where the line is no answer.

        The end of input is a no.
        """
        if not select.select([self.descriptor], [], [], 0)[0]:
            return None
        data = os.read(self.descriptor, ANSWER_BYTES)
        return WORDS.get(data.decode("utf-8", "replace").strip().lower()) if data else "no"

    def question(self, line: Mapping[str, Any]) -> Question:
        """What the person is asked for a request, and what "always" would allow: as little as is known to do."""
        request = line["request"]
        rule = granting_rule(str(request.get("tool_name")), request.get("input") or {}, self._cwd)
        if rule is None:
            suggested = request.get("permission_suggestions")
            # The first of them is enough. A real claude would keep it in a settings file, for other runs too.
            ways = [one for one in suggested if isinstance(one, dict)] if isinstance(suggested, list) else []
            here = tuple({**one, "destination": "session"} for one in ways[:1])
            return Question(line, here, tuple(map(_described, here)))
        name, bracket, content = rule.partition("(")
        said = {"toolName": name} | ({"ruleContent": content[:-1]} if bracket else {})
        update = {"type": "addRules", "rules": [said], "behavior": "allow", "destination": "session"}
        return Question(line, (update,), (rule,))


def _described(update: Mapping[str, Any]) -> str:
    """A suggested permission update, for a person."""
    rules = update.get("rules")
    if update.get("type") == "addRules" and isinstance(rules, list):
        return ", ".join(
            f"{rule.get('toolName')}({rule.get('ruleContent')})"
            if rule.get("ruleContent")
            else f"{rule.get('toolName')}"
            for rule in rules
            if isinstance(rule, dict)
        )
    if update.get("type") == "setMode":
        return f"the mode {update.get('mode')}"
    return str(update.get("directories") or update.get("type"))
