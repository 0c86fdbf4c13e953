"""A vendor's question whether a call may run, and the frontend's answer (contract C9, 6.2, 6.3)."""

from collections.abc import Mapping

from shim.core.reading.typed import Any, NamedTuple

UNASKED = "{tool} needs a permission that nobody here can be asked for, and it was not granted beforehand."
RULED = "{tool} was denied: {why}."
FAILED = "Tool permission request failed: Error: {error}"
CLOSED_STREAM = "Tool permission request failed: AbortError: Tool permission stream closed before response received"
TURN_OVER = "The turn is over."
STOPPED = (  # what a call says that a question was open about when the turn was stopped (6.3)
    "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was a file edit, the "
    "new_string was NOT written to the file). STOP what you are doing and wait for the user to tell you how to proceed."
)


class Permission(NamedTuple):
    """A vendor asks whether it may run a call.

    `request` is the vendor's own id of the question, `call` the id of the call as the frontend knows it, `tool` and
    `arguments` are Claude's; `own_tool` and `own_arguments` are the vendor's. `refusal` says why nobody is asked.
    """

    request: str
    call: str
    tool: str
    arguments: Mapping[str, Any]
    own_tool: str
    own_arguments: Mapping[str, Any]
    refusal: str = ""


class Decision(NamedTuple):
    """An answer. `changed` are other arguments in Claude's words (None: as asked); `message` is why it was denied.

    `interrupt`: the turn ends with it. `announced`: the frontend gave the answer itself and need not be told.
    """

    allow: bool
    changed: Mapping[str, Any] | None = None
    message: str = ""
    interrupt: bool = False
    announced: bool = True


def added_rules(response: Mapping[str, Any]) -> dict[str, list[str]]:
    """The rules that an answer adds from now on, "allow", "ask" and "deny" (`updatedPermissions`, 6.3)."""
    found: dict[str, list[str]] = {"allow": [], "ask": [], "deny": []}
    for update in _updates(response):
        if update.get("type") == "addRules" and update.get("behavior") in found:
            rules = update.get("rules")
            said = [_rule(rule) for rule in rules if isinstance(rule, dict)] if isinstance(rules, list) else []
            found[update["behavior"]] += [rule for rule in said if rule]
    return found


def chosen_mode(response: Mapping[str, Any]) -> object:
    """The permission mode that an answer asks for from the next call on, as it was said; None for none."""
    modes = [update.get("mode") for update in _updates(response) if update.get("type") == "setMode"]
    return modes[-1] if modes else None


def _updates(response: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    answer = response.get("response")
    said = answer.get("updatedPermissions") if isinstance(answer, dict) and answer.get("behavior") == "allow" else None
    return [update for update in said if isinstance(update, dict)] if isinstance(said, list) else []


def _rule(rule: Mapping[str, Any]) -> str:
    """One rule; "" if it cannot be read, because a rule without its content would be wider."""
    name, content = rule.get("toolName"), rule.get("ruleContent")
    if not isinstance(name, str) or not isinstance(content, str | None):
        return ""
    return name if content is None else f"{name}({content})"


def read_decision(response: Mapping[str, Any], asked: Permission) -> Decision:
    """The decision in the `response` of a control_response. One that cannot be read is a denial (never wider)."""
    if response.get("subtype") == "error":
        return Decision(False, message=FAILED.format(error=response.get("error")))
    answer = response.get("response")
    if not isinstance(answer, dict):
        return Decision(False, message=FAILED.format(error="the answer is no object"))
    if answer.get("behavior") == "allow":
        changed = answer.get("updatedInput")
        if changed is not None and not isinstance(changed, dict):
            return Decision(False, message=FAILED.format(error="updatedInput is no object"))
        return Decision(True, changed=None if changed == asked.arguments else changed)
    message = answer.get("message")
    denial = message if isinstance(message, str) and message else "The call was denied."
    return Decision(False, message=denial, interrupt=answer.get("interrupt") is True)
