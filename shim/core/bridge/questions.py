"""The questions of a session as state: each is open until it is settled, once."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from shim.core.bridge.frames import RefusedError, encode_frame
from shim.core.claude.permissions import ELICITATION, UNANSWERED
from shim.core.policy.policy import BYPASS
from shim.core.reading.bounded import Bounded

ASKING = ("can_use_tool", ELICITATION)  # the control requests that a person answers
OPEN = 1000  # questions at once; the conversation asks no more
SETTLED = 1000  # that are remembered, for whoever answers too late
LEFT = "The session has ended."
TOO_MANY = "Too many questions are open already; this one was put to nobody."
PASSED = {  # the keys of an answer that are passed on; all others are left out
    "allow": ("behavior", "updatedInput", "updatedPermissions"),
    "deny": ("behavior", "message", "interrupt"),
}
# what may not be another's in an answer
NAMING = ("toolUseID", "tool_use_id", "tool_name", "request_id", "question")


class Question(NamedTuple):
    """`request` is the body of Claude's request; `at` is in milliseconds since 1970, `since` on the
    steady clock.

    `until` is when the question is denied if it is not answered, in milliseconds since 1970, or
    None.
    """

    question: str
    request: Mapping[str, Any]
    at: int
    since: float
    until: int | None = None

    @property
    def frame(self) -> bytes:
        limit = {} if self.until is None else {"until": self.until}
        return encode_frame(
            "question", question=self.question, at=self.at, **limit, request=self.request
        )


class Outcome(NamedTuple):
    """Who settled a question, and how (None: nobody of the clients)."""

    question: str
    by: str | None
    how: str

    @property
    def frame(self) -> bytes:
        return encode_frame("settled", **self._asdict())


class Questions:
    """`open` are those that wait, in their order."""

    def __init__(self) -> None:
        self.open: dict[str, Question] = {}
        self._settled = Bounded[str, Outcome](SETTLED)
        self.last: Outcome | None = None  # how the last question was settled

    def add(self, question: Question) -> bool:
        """Whether it is new and there is room."""
        if question.question in self._settled or len(self.open) >= OPEN:
            return False
        self.open[question.question] = question
        return True

    def settle(self, question: str, by: str | None, how: str) -> Outcome | None:
        """Settle one that is open; None if it is not."""
        if self.open.pop(question, None) is None:
            return None
        outcome = self._settled[question] = self.last = Outcome(question, by, how)
        return outcome

    def outcome(self, question: str) -> Outcome | None:
        """How one was settled, as far as that is remembered."""
        return self._settled.get(question)

    @property
    def settlers(self) -> set[str]:
        """The names of the clients that have settled questions, as far as that is remembered."""
        return {outcome.by for outcome in self._settled.values() if outcome.by is not None}

    def overdue(self, now: float, seconds: float) -> list[str]:
        """Those that wait for longer than they may."""
        return [each.question for each in self.open.values() if now - each.since >= seconds]


def read_answer(
    question: Question, decision: object, *, bypass: bool
) -> tuple[str, dict[str, Any]]:
    """How a decision settles a question, and the body of Claude's answer. RefusedError for one that
    cannot be read.

    The call that it allows is the question's own; `bypass`: it may choose the mode
    bypassPermissions.
    """
    if not isinstance(decision, dict):
        raise RefusedError("bad-decision", "a decision is an object")
    request = question.request
    if request.get("subtype") == ELICITATION:
        return _elicited(decision)
    named = {"toolUseID": request.get("tool_use_id"), "tool_use_id": request.get("tool_use_id")}
    named |= {
        "tool_name": request.get("tool_name"),
        "request_id": question.question,
        "question": question.question,
    }
    for key in NAMING:
        if key in decision and decision[key] != named[key]:
            raise RefusedError("bad-decision", f"`{key}` names another call than the question's")
    how = decision.get("behavior")
    if how not in PASSED:
        raise RefusedError("bad-decision", 'a decision has `behavior`, "allow" or "deny"')
    body = {key: decision[key] for key in PASSED[how] if decision.get(key) is not None}
    if not isinstance(body.get("updatedInput", {}), dict):
        raise RefusedError("bad-decision", "`updatedInput` is an object")
    if not isinstance(body.get("message", ""), str):
        raise RefusedError("bad-decision", "`message` is a text")
    check_updates(body, bypass=bypass)
    if how == "allow":
        body.setdefault("updatedInput", request.get("input"))
    else:
        body.setdefault("message", "The call was denied.")
    if request.get("tool_use_id") is not None:
        body["toolUseID"] = request["tool_use_id"]
    return how, body


def _elicited(decision: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    action = decision.get("action")
    if decision.get("behavior") == "deny":
        action = "decline"
    if action not in ("accept", "decline", "cancel"):
        raise RefusedError(
            "bad-decision", 'a decision has `action`, "accept", "decline" or "cancel"'
        )
    body = {"action": action}
    if action == "accept" and isinstance(decision.get("content"), dict):
        body["content"] = decision["content"]
    return "allow" if action == "accept" else "deny", body


def denial(question: Question, message: str) -> dict[str, Any]:
    """The body of our own answer to a question that nobody answered."""
    if question.request.get("subtype") == ELICITATION:
        return {"action": "cancel"}
    return {
        "behavior": "deny",
        "message": message,
        "toolUseID": question.request.get("tool_use_id"),
    }


def late(question: Question) -> dict[str, Any]:
    """The denial of a question that waited for too long."""
    return denial(question, UNANSWERED)


def changes_mode(body: Mapping[str, Any]) -> bool:
    """Whether an answer that was read chooses another permission mode."""
    updates = body.get("updatedPermissions")
    return updates is not None and (
        not isinstance(updates, list)
        or any(
            not isinstance(one, dict) or one.get("type") == "setMode" or "mode" in one
            for one in updates
        )
    )


def check_updates(body: Mapping[str, Any], *, bypass: bool) -> None:
    """RefusedError for an answer that lets a session do more than it may since its begin."""
    updates = body.get("updatedPermissions")
    if not bypass and _widens(updates):
        raise RefusedError("bypass", f"{BYPASS} can be chosen only if the session began with it")
    if isinstance(updates, list) and any(
        isinstance(update, dict) and _takes_back(update) for update in updates
    ):
        raise RefusedError(
            "wider",
            "no answer takes back a rule that denies or asks but one of this session's answers",
        )


def hook_grant(answer: object) -> Mapping[str, Any] | None:
    """What a hook allows, as the body of an answer to a question about its call; None where it
    allows nothing.
    """
    said = _table(answer)
    specific = _table(said.get("hookSpecificOutput"))
    decision = specific.get("decision")  # of the event PermissionRequest
    if _allows(decision):
        return _table(decision)
    return (
        {}
        if _allows(specific.get("permissionDecision")) or said.get("decision") == "approve"
        else None
    )


def without_grant(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The same answer of a hook, that allows nothing."""
    said = {key: value for key, value in answer.items() if key != "decision" or value != "approve"}
    if specific := _table(said.get("hookSpecificOutput")):
        kept = (
            key
            for key in specific
            if key not in ("decision", "permissionDecision") or not _allows(specific[key])
        )
        said["hookSpecificOutput"] = {key: specific[key] for key in kept}
    return said


def _allows(decision: object) -> bool:
    return decision == "allow" or _table(decision).get("behavior") == "allow"


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _widens(updates: object) -> bool:
    """Whether changes of the permissions choose the widest mode, or cannot be read."""
    if updates is None:
        return False
    if not isinstance(updates, list):
        return True
    return any(not isinstance(update, dict) or update.get("mode") == BYPASS for update in updates)


def _takes_back(update: Mapping[str, Any]) -> bool:
    """Whether a change of the permissions may remove a rule that narrows, which a flag or a
    settings file has said.
    """
    removes = update.get("type") in ("removeRules", "replaceRules")
    return removes and update.get("behavior") != "allow" and update.get("destination") != "session"
