"""Permission requests from vendors, and the frontend's decisions (contract C9, 6.2, 6.3)."""

from collections.abc import Iterator, Mapping

from shim.core.reading.typed import TYPE_CHECKING, Any, NamedTuple
from shim.core.reading.values import as_dict, as_list, list_dicts

if TYPE_CHECKING:
    from shim.core.policy.policy import DecisionOutcome

# This tool asks the user a question, so rules and permission modes cannot answer for the user.
QUESTION_TOOL = "AskUserQuestion"
ELICITATION_SUBTYPE = "elicitation"  # a control request with which an MCP server asks the user
PROMPT_TIMEOUT_TEXT = (
    "The permission prompt for this call was not answered in time (permission_timeout), so "
    "it was not run."
)
MAX_OPEN_PROMPTS = 1000  # the limit for one frontend, or for all clients of a session together
CALL_TOO_LARGE_TEXT = "The tool call is too large for a permission prompt ({size} bytes)."
TOO_MANY_PROMPTS_TEXT = (
    "Too many permission prompts are open already; this call was denied without asking."
)
DENIED_TEXT = "The call was denied."  # used if the person gives no reason
# Messages of denials that contain no reason. The second one is claude-agent-acp's for every rejection.
PLAIN_DENIAL_TEXTS = frozenset((DENIED_TEXT, "User refused permission to run tool"))
NOT_GRANTED_TEXT = (
    "{tool} needs permission, which was not granted in advance and cannot be requested here."
)
DENIED_BY_RULE_TEXT = "{tool} was denied: {why}."
PROMPT_FAILED_TEXT = "Tool permission request failed: Error: {error}"
INVALID_INPUT_TEXT = "updatedInput is {found}; it must be an object or be left out"
STREAM_CLOSED_TEXT = (
    "Tool permission request failed: AbortError: "
    "Tool permission stream closed before response received"
)
TURN_OVER_TEXT = "The turn is over."
# The arguments that a dialog can show as a description of the call, in order of preference.
DESCRIPTION_KEYS = ("description", "file_path", "notebook_path", "url", "query")
# The result of a tool call whose prompt was open when the turn was stopped (6.3).
TURN_STOPPED_TEXT = (
    "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was a file edit, the "
    "new_string was NOT written to the file). STOP what you are doing and wait for the user to tell you how to proceed."
)


class PermissionRequest(NamedTuple):
    """A vendor's request for permission to run a tool call.

    `request_id` is the vendor's request id. `call_id` is the tool call's id in the frontend's
    stream. `tool` and `tool_input` use Claude's names, and `vendor_tool` and `vendor_input` use the
    vendor's names. If `refusal` is not empty, the request must be denied without a prompt, for this
    reason.
    """

    request_id: str
    call_id: str
    tool: str
    tool_input: Mapping[str, Any]
    vendor_tool: str
    vendor_input: Mapping[str, Any]
    refusal: str = ""


class PermissionDecision(NamedTuple):
    """A decision about a permission request.

    `updated_input` replaces the call's arguments and uses Claude's names. None leaves the arguments
    unchanged. `message` is the reason for a denial. If `ends_turn` is set, the decision also ends
    the turn. If `needs_notice` is set, the frontend did not make the decision itself, and is notified
    of a denial. If `is_message_for_model` is set, the message is a reason that a person or a hook of
    the frontend gave, and the model must receive it.
    """

    allow: bool
    updated_input: Mapping[str, Any] | None = None
    message: str = ""
    ends_turn: bool = False
    needs_notice: bool = False
    is_message_for_model: bool = False


def build_permission_prompt(
    request: PermissionRequest,
    tool_input: Mapping[str, Any],
    suggestions: list[dict[str, Any]],
    cwd: str,
) -> dict[str, Any]:
    """Build the `can_use_tool` request for a tool call with the arguments `tool_input` (6.2)."""
    description = next(
        (tool_input[key] for key in DESCRIPTION_KEYS if isinstance(tool_input.get(key), str)), ""
    )
    prompt: dict[str, Any] = {
        "subtype": "can_use_tool",
        "tool_name": request.tool,
        "display_name": request.tool,
        "input": tool_input,
    }
    if description:
        prompt["description"] = description.removeprefix(f"{cwd}/")
    if request.tool == QUESTION_TOOL:
        prompt["requires_user_interaction"] = True
    else:
        prompt["permission_suggestions"] = suggestions
    return prompt | {"tool_use_id": request.call_id}


class PermissionRuleChange(NamedTuple):
    """A change of the permission rules, which an answer to a permission prompt requests.

    `operation` is "add", "replace" or "remove". `outcome` is what the rules decide, such as "deny".
    """

    operation: str
    outcome: "DecisionOutcome"
    rules: tuple[str, ...]


class WorkingDirectoryChange(NamedTuple):
    """A change of the working directories, which an answer to a permission prompt requests."""

    operation: str
    directories: tuple[str, ...]


def parse_permission_updates(
    response: Mapping[str, Any],
) -> "Iterator[PermissionRuleChange | WorkingDirectoryChange]":
    """Yield the changes to rules and directories in a permission decision (`updatedPermissions`,
    6.3).
    """
    for update in _list_updates(response):
        update_type = str(update.get("type"))
        outcome = update.get("behavior")
        operation = next(
            (
                operation
                for operation in ("add", "replace", "remove")
                if update_type.startswith(operation)
            ),
            "",
        )
        if update_type == f"{operation}Rules" and outcome in ("allow", "ask", "deny"):
            rules = (
                _format_rule(rule)
                for rule in as_list(update.get("rules"))
                if isinstance(rule, dict)
            )
            yield PermissionRuleChange(operation, outcome, tuple(rule for rule in rules if rule))
        elif update_type == f"{operation}Directories" and operation != "replace":
            directories = (
                directory
                for directory in as_list(update.get("directories"))
                if isinstance(directory, str) and directory and "\0" not in directory
            )
            yield WorkingDirectoryChange(operation, tuple(directories))


def find_requested_permission_mode(response: Mapping[str, Any]) -> object:
    """Return the permission mode that an answer sets for later tool calls, or None. The mode is not
    validated.
    """
    modes = [
        update.get("mode") for update in _list_updates(response) if update.get("type") == "setMode"
    ]
    if modes:
        return modes[-1]
    return None


def _list_updates(response: Mapping[str, Any]) -> list[dict[str, Any]]:
    answer = as_dict(response.get("response"))
    if answer.get("behavior") == "allow":
        return list_dicts(answer.get("updatedPermissions"))
    return []


def _format_rule(rule: Mapping[str, Any]) -> str:
    """Format a permission rule as text. Return "" if the rule is invalid. The rule's content is
    never dropped, because a rule without content allows more.
    """
    name = rule.get("toolName")
    content = rule.get("ruleContent")
    if not isinstance(name, str) or not isinstance(content, str | None):
        return ""
    if content is None:
        return name
    return f"{name}({content})"


def parse_permission_decision(response: Mapping[str, Any]) -> PermissionDecision:
    """Parse the permission decision in a control_response's `response`.

    An invalid response counts as a denial, so that it can never grant permissions.
    """
    if response.get("subtype") == "error":
        return _deny_failed_prompt(response.get("error"))
    answer = response.get("response")
    if not isinstance(answer, dict):
        return _deny_failed_prompt("the answer is not an object")
    if answer.get("behavior") == "allow":
        # Several clients send an empty object with every answer. An empty object leaves the
        # arguments unchanged, while `null` is an error.
        updated_input = answer.get("updatedInput", {})
        if isinstance(updated_input, dict):
            return PermissionDecision(True, updated_input=updated_input or None)
        type_text = "null"
        if updated_input is not None:
            type_text = f"a {type(updated_input).__name__}"
        return _deny_failed_prompt(INVALID_INPUT_TEXT.format(found=type_text))
    message = answer.get("message")
    ends_turn = answer.get("interrupt") is True
    if isinstance(message, str) and message:
        return PermissionDecision(
            False,
            message=message,
            ends_turn=ends_turn,
            is_message_for_model=message not in PLAIN_DENIAL_TEXTS,
        )
    return PermissionDecision(False, message=DENIED_TEXT, ends_turn=ends_turn)


def _deny_failed_prompt(error: object) -> PermissionDecision:
    return PermissionDecision(False, message=PROMPT_FAILED_TEXT.format(error=error))
