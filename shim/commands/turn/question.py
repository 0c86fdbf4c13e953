"""A question of a person's: whether a call may run, and what "always" would allow: as little as is known to do."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from shim.commands.turn.granting import DENIED, granting_rule
from shim.core.reading.account import printable

YES, NO, ALWAYS = "yes", "no", "always"
WORDS = {"y": YES, "yes": YES, "n": NO, "no": NO, "a": ALWAYS, "always": ALWAYS}


class Question(NamedTuple):
    """A `can_use_tool` request. `always` are the permission updates that spare later questions; () where none do."""

    identity: str
    request: Mapping[str, Any]
    always: tuple[Mapping[str, Any], ...]
    rules: tuple[str, ...]

    def prompt(self) -> str:
        """What stands in front of the cursor."""
        always = f", a = {self.allowed('run')}" if self.always else ""
        return printable(f"  y = yes, n = no{always}: ").replace("\n", " ")

    def allowed(self, where: str) -> str:
        """What "always" does; `where` it holds."""
        return printable(f"always allow {', '.join(self.rules)} in this {where}").replace("\n", " ")

    def decision(self, word: str) -> dict[str, Any]:
        """The body of the answer for `yes`, `no` or `always`."""
        if word == NO:
            return {"behavior": "deny", "message": DENIED}
        decision: dict[str, Any] = {"behavior": "allow", "updatedInput": self.request.get("input")}
        if word == ALWAYS and self.always:
            decision["updatedPermissions"] = list(self.always)
        return decision

    def answer(self, word: str) -> dict[str, Any]:
        """The control_response for `yes`, `no` or `always`."""
        response = {"subtype": "success", "request_id": self.identity, "response": self.decision(word)}
        return {"type": "control_response", "response": response}


def question_of(identity: str, request: Mapping[str, Any], cwd: str) -> Question:
    """The question of a request in a session of the folder `cwd`."""
    given = request.get("input")
    rule = granting_rule(str(request.get("tool_name")), given if isinstance(given, Mapping) else {}, cwd)
    if rule is None:
        suggested = request.get("permission_suggestions")
        # The first of them is enough. A real claude would keep it in a settings file, for other runs too.
        ways = [one for one in suggested if isinstance(one, dict)] if isinstance(suggested, list) else []
        here = tuple({**one, "destination": "session"} for one in ways[:1])
        return Question(identity, request, here, tuple(map(_described, here)))
    name, bracket, content = rule.partition("(")
    said = {"toolName": name} | ({"ruleContent": content[:-1]} if bracket else {})
    update = {"type": "addRules", "rules": [said], "behavior": "allow", "destination": "session"}
    return Question(identity, request, (update,), (rule,))


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
