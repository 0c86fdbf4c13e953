"""A vendor's question whether a call may run, and the frontend's answer (contract C9, 6.2, 6.3)."""

from collections.abc import Iterator, Mapping

from shim.core.reading.typed import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from shim.core.policy.policy import DecisionOutcome

# a call that is a question to the person: no rule and no mode answers it
QUESTION_TOOL = "AskUserQuestion"
ELICITATION_SUBTYPE = "elicitation"  # the control request of an MCP server that asks the person
PROMPT_TIMEOUT_TEXT = (
    "Nobody answered the question about this call in time (permission_timeout), so it was not run."
)
NOT_GRANTED_TEXT = "{tool} needs a permission that nobody here can be asked for, and it was not granted beforehand."
DENIED_BY_RULE_TEXT = "{tool} was denied: {why}."
PROMPT_FAILED_TEXT = "Tool permission request failed: Error: {error}"
INVALID_INPUT_TEXT = "updatedInput is {found}; it must be an object or be left out"
STREAM_CLOSED_TEXT = "Tool permission request failed: AbortError: Tool permission stream closed before response received"
TURN_OVER_TEXT = "The turn is over."
# what a dialog says of a call in a line
DESCRIPTION_KEYS = ("description", "file_path", "notebook_path", "url", "query")
TURN_STOPPED_TEXT = (  # what a call says that a question was open about when the turn was stopped (6.3)
    "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was a file edit, the "
    "new_string was NOT written to the file). STOP what you are doing and wait for the user to tell you how to proceed."
)


class PermissionRequest(NamedTuple):
    """A vendor asks whether it may run a call.

    `request` is the vendor's own id of the question, `call` the id of the call as the frontend
    knows it, `tool` and `arguments` are Claude's; `own_tool` and `own_arguments` are the vendor's.
    `refusal` says why nobody is asked.
    """

    request_id: str
    call_id: str
    tool: str
    tool_input: Mapping[str, Any]
    vendor_tool: str
    vendor_input: Mapping[str, Any]
    refusal: str = ""


class PermissionDecision(NamedTuple):
    """An answer. `changed` are other arguments in Claude's words (None: as asked); `message` is why
    it was denied.

    `interrupt`: the turn ends with it. `announced`: the frontend gave the answer itself and need
    not be told.
    """

    allow: bool
    updated_input: Mapping[str, Any] | None = None
    message: str = ""
    ends_turn: bool = False
    frontend_knows: bool = True


def build_permission_prompt(
    permission: PermissionRequest,
    shown: Mapping[str, Any],
    suggestions: list[dict[str, Any]],
    cwd: str,
) -> dict[str, Any]:
    """The `can_use_tool` request about a call whose arguments are `shown` (6.2)."""
    described = next(
        (shown[key] for key in DESCRIPTION_KEYS if isinstance(shown.get(key), str)), ""
    )
    question: dict[str, Any] = {
        "subtype": "can_use_tool",
        "tool_name": permission.tool,
        "display_name": permission.tool,
        "input": shown,
    }
    if described:
        question["description"] = described.removeprefix(f"{cwd}/")
    if permission.tool == QUESTION_TOOL:
        question["requires_user_interaction"] = True
    else:
        question["permission_suggestions"] = suggestions
    return question | {"tool_use_id": permission.call_id}


class RuleChange(NamedTuple):
    """Rules that an answer adds, replaces or removes: `how` is "add", "replace" or "remove", `kind`
    as in a policy.
    """

    operation: str
    outcome: "DecisionOutcome"
    rules: tuple[str, ...]


class FolderChange(NamedTuple):
    """Folders that an answer adds or removes."""

    operation: str
    directories: tuple[str, ...]


def parse_permission_updates(response: Mapping[str, Any]) -> "Iterator[RuleChange | FolderChange]":
    """What an answer changes of the rules and folders of the session (`updatedPermissions`, 6.3)."""
    for update in _list_updates(response):
        said, kind = str(update.get("type")), update.get("behavior")
        how = next((how for how in ("add", "replace", "remove") if said.startswith(how)), "")
        if said == f"{how}Rules" and kind in ("allow", "ask", "deny"):
            rules = (
                _format_rule(rule)
                for rule in _as_list(update.get("rules"))
                if isinstance(rule, dict)
            )
            yield RuleChange(how, kind, tuple(rule for rule in rules if rule))
        elif said == f"{how}Directories" and how != "replace":
            named = (
                one
                for one in _as_list(update.get("directories"))
                if isinstance(one, str) and one and "\0" not in one
            )
            yield FolderChange(how, tuple(named))


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def find_requested_mode(response: Mapping[str, Any]) -> object:
    """The permission mode that an answer asks for from the next call on, as it was said; None for
    none.
    """
    modes = [
        update.get("mode") for update in _list_updates(response) if update.get("type") == "setMode"
    ]
    return modes[-1] if modes else None


def _list_updates(response: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    answer = response.get("response")
    said = (
        answer.get("updatedPermissions")
        if isinstance(answer, dict) and answer.get("behavior") == "allow"
        else None
    )
    return [update for update in _as_list(said) if isinstance(update, dict)]


def _format_rule(rule: Mapping[str, Any]) -> str:
    """One rule; "" if it cannot be read, because a rule without its content would be wider."""
    name, content = rule.get("toolName"), rule.get("ruleContent")
    if not isinstance(name, str) or not isinstance(content, str | None):
        return ""
    return name if content is None else f"{name}({content})"


def parse_decision(response: Mapping[str, Any], asked: PermissionRequest) -> PermissionDecision:
    """The decision in the `response` of a control_response. One that cannot be read is a denial
    (never wider).
    """
    if response.get("subtype") == "error":
        return PermissionDecision(
            False, message=PROMPT_FAILED_TEXT.format(error=response.get("error"))
        )
    answer = response.get("response")
    if not isinstance(answer, dict):
        return PermissionDecision(
            False, message=PROMPT_FAILED_TEXT.format(error="the answer is no object")
        )
    if answer.get("behavior") == "allow":
        # Several clients send an empty object with every answer: it changes nothing. `null` is an
        # error.
        changed = answer.get("updatedInput", {})
        if not isinstance(changed, dict):
            found = "null" if changed is None else f"a {type(changed).__name__}"
            return PermissionDecision(
                False,
                message=PROMPT_FAILED_TEXT.format(error=INVALID_INPUT_TEXT.format(found=found)),
            )
        return PermissionDecision(
            True, updated_input=None if changed in ({}, asked.tool_input) else changed
        )
    message = answer.get("message")
    denial = message if isinstance(message, str) and message else "The call was denied."
    return PermissionDecision(False, message=denial, ends_turn=answer.get("interrupt") is True)
