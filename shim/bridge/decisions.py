"""A user's answer to a permission prompt: whether the tool call may run, and which later calls the
answer "always" allows.

"Always" means the same for every client: the narrowest rule that is known to allow the call, for
this session only. The rule never adds a wider folder or another permission mode, even if the prompt
suggests one.
"""

import os
import posixpath
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from shim.core.claude.control_responses import build_control_response_line
from shim.core.claude.permissions import ELICITATION_SUBTYPE, MAX_OPEN_PROMPTS
from shim.core.errors import FrontendError
from shim.core.policy.call_effects import CHANGE_TOOLS, CONTENT_SEARCH_TOOL, READ_TOOLS, SHELL_TOOLS
from shim.core.policy.evaluate import PolicyEvaluator
from shim.core.policy.policy import (
    MATCH_ALL_CONTENTS,
    Policy,
    Workspace,
    is_path_below,
    parse_permission_rule,
)
from shim.core.policy.suggestions import INTERACTIVE_TOOLS
from shim.core.reading.bounded_dict import BoundedDict
from shim.core.reading.values import as_dict, as_list, escape_control_chars, list_dicts

YES = "yes"
NO = "no"
ALWAYS = "always"
CHOICES_BY_INPUT = {"y": YES, "yes": YES, "n": NO, "no": NO, "a": ALWAYS, "always": ALWAYS}
DENIED_MESSAGE = "The user does not want this call to run."


class PermissionPrompt(NamedTuple):
    """A `can_use_tool` request. `permission_updates` are the updates that prevent similar prompts
    later, or (). `rules` are the rules of these updates as text.
    """

    request_id: str
    request: Mapping[str, Any]
    permission_updates: tuple[Mapping[str, Any], ...]
    rules: tuple[str, ...]

    def format_input_prompt(self) -> str:
        """Return the prompt text that is printed before the user's input."""
        always_option = ""
        if self.permission_updates:
            always_option = f", a = {self.describe_always_allow_choice('run')}"
        return escape_control_chars(f"  y = yes, n = no{always_option}: ").replace("\n", " ")

    def describe_always_allow_choice(self, scope: str) -> str:
        """Describe the effect of the answer "always". `scope` is how long the rules apply: "run" or
        "session".
        """
        return escape_control_chars(
            f"always allow {', '.join(self.rules)} in this {scope}"
        ).replace("\n", " ")

    def build_decision(self, choice: str) -> dict[str, Any]:
        """Build the body of the response for the answer `yes`, `no` or `always`."""
        if choice == NO:
            return {"behavior": "deny", "message": DENIED_MESSAGE}
        decision: dict[str, Any] = {"behavior": "allow", "updatedInput": self.request.get("input")}
        if choice == ALWAYS and self.permission_updates:
            decision["updatedPermissions"] = list(self.permission_updates)
        return decision

    def build_control_response(self, choice: str) -> dict[str, Any]:
        """Build the control_response for the answer `yes`, `no` or `always`."""
        response = {
            "subtype": "success",
            "request_id": self.request_id,
            "response": self.build_decision(choice),
        }
        return build_control_response_line(response)


class PermissionPromptQueue:
    """The permission prompts that wait for one user, from a session in the folder `cwd`. `current`
    is the oldest prompt.
    """

    def __init__(self, cwd: str) -> None:
        self.current: PermissionPrompt | None = None
        self._cwd = cwd
        self._open_requests = BoundedDict[str, Mapping[str, Any]](MAX_OPEN_PROMPTS)

    @property
    def waiting_count(self) -> int:
        """The number of prompts after the current one."""
        return max(len(self._open_requests) - 1, 0)

    def add_request(self, request_id: str, request: Mapping[str, Any]) -> bool:
        """Add a permission prompt. Return whether the current prompt has changed."""
        self._open_requests[request_id] = request
        return self._update_current()

    def remove_resolved_request(self, request_id: str) -> bool:
        """Remove a resolved permission prompt. Return whether the current prompt has changed."""
        self._open_requests.pop(request_id, None)
        return self._update_current()

    def clear(self) -> None:
        """Remove all permission prompts."""
        self._open_requests.clear()
        self._update_current()

    def _update_current(self) -> bool:
        request_id = next(iter(self._open_requests), None)
        current = self.current
        if request_id == (None if current is None else current.request_id):
            return False
        if request_id is None:
            self.current = None
        else:
            self.current = build_permission_prompt(
                request_id, self._open_requests[request_id], self._cwd
            )
        return True


def build_decision_body(
    behavior: str,
    request: Mapping[str, Any],
    cwd: str,
    *,
    message: str = "",
    replacement_input: Mapping[str, Any] | None = None,
    always: bool = False,
) -> dict[str, Any]:
    """Build the body of an `allow` or `deny` response. Raise FrontendError if the arguments
    contradict each other.

    `request` is the permission request, or {} if it is no longer open; the host then reports which
    client answered it. `replacement_input` replaces the tool call's input, or contains the answers
    to a form.
    """
    if behavior == "allow" and message:
        raise FrontendError(
            "a message can only be used with `deny`",
            hint="leave the message out, and send it after the answer",
        )
    if behavior == "deny" and (always or replacement_input is not None):
        raise FrontendError(
            "a changed input and `always` can only be used with `allow`", hint="leave both out"
        )
    if request.get("subtype") == ELICITATION_SUBTYPE:
        if always:
            raise FrontendError(
                "a request from an MCP server cannot be answered with `always`",
                hint="leave out `always`",
            )
        if behavior == "deny":
            return {"action": "decline"}
        return {"action": "accept", **({"content": replacement_input} if replacement_input else {})}
    if behavior == "deny":
        return {"behavior": "deny", **({"message": message} if message else {})}
    decision: dict[str, Any] = {
        "behavior": "allow",
        **({"updatedInput": replacement_input} if replacement_input is not None else {}),
    }
    if always and request:
        # If the input was replaced, the rule must match the call that runs, not the requested call.
        final_request = request
        if replacement_input is not None:
            final_request = {**request, "input": replacement_input, "permission_suggestions": None}
        prompt = build_permission_prompt("", final_request, cwd)
        if not prompt.permission_updates:
            raise FrontendError(
                "`always` is not possible: no rule matches exactly this call",
                hint="leave out `always`",
            )
        decision["updatedPermissions"] = list(prompt.permission_updates)
    return decision


def build_permission_prompt(
    request_id: str, request: Mapping[str, Any], cwd: str
) -> PermissionPrompt:
    """Build the permission prompt for a request from a session in the folder `cwd`."""
    tool = str(request.get("tool_name"))
    if request.get("subtype") == ELICITATION_SUBTYPE or tool in INTERACTIVE_TOOLS:
        # The answer to one of these calls does not apply to later calls.
        return PermissionPrompt(request_id, request, (), ())
    rule = find_narrowest_allow_rule(tool, as_dict(request.get("input")), cwd)
    if rule is not None:
        name, separator, content = rule.partition("(")
        rules = [{"toolName": name} | ({"ruleContent": content[:-1]} if separator else {})]
    else:
        # The first suggestion is enough. A real claude would store it in a settings file, and it
        # would then also apply to other sessions.
        suggestions = list_dicts(request.get("permission_suggestions"))
        rules = next(filter(None, map(_extract_allow_rules, suggestions)), [])
    return PermissionPrompt(
        request_id,
        request,
        (_build_rule_update(rules),) if rules else (),
        tuple(map(_format_rule, rules)),
    )


def _build_rule_update(rules: list[dict[str, str]]) -> dict[str, Any]:
    return {"type": "addRules", "rules": rules, "behavior": "allow", "destination": "session"}


def _extract_allow_rules(suggestion: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the rules of a suggested permission update that only allows calls, or [] for any other
    suggestion.

    Rules for files are not used, because they would allow a wider folder than the prompt shows.
    """
    if suggestion.get("type") != "addRules" or suggestion.get("behavior") != "allow":
        return []
    allow_rules = list[dict[str, str]]()
    for rule in map(as_dict, as_list(suggestion.get("rules"))):
        name = rule.get("toolName")
        content = rule.get("ruleContent")
        if (
            not isinstance(name, str)
            or not isinstance(content, str | None)
            or name in READ_TOOLS
            or name in CHANGE_TOOLS
        ):
            return []
        if name in SHELL_TOOLS and content in MATCH_ALL_CONTENTS:  # any command
            return []
        allow_rules.append({"toolName": name} | ({"ruleContent": content} if content else {}))
    return allow_rules


def _format_rule(rule: Mapping[str, str]) -> str:
    if "ruleContent" in rule:
        return f"{rule['toolName']}({rule['ruleContent']})"
    return rule["toolName"]


def find_narrowest_allow_rule(tool: str, tool_input: Mapping[str, Any], cwd: str) -> str | None:
    """Return the narrowest rule that allows a tool call in the mode `default`, or None if no such
    rule is known.
    """
    workspace = Workspace(cwd, os.path.expanduser("~"), (), os.path.realpath)
    for rule in _list_candidate_rules(tool, tool_input, cwd):
        policy = Policy(workspace=workspace, allow=(parse_permission_rule(rule),))
        if (
            PolicyEvaluator(policy, asks_for_all=True)
            .evaluate_tool_call(tool, tool_input, "default")
            .outcome
            == "allow"
        ):
            return rule
    return None


def _list_candidate_rules(tool: str, tool_input: Mapping[str, Any], cwd: str) -> list[str]:
    if tool in SHELL_TOOLS:
        command = tool_input.get("command")
        # A `*` in the command would match other commands, too.
        if isinstance(command, str) and not set(command) & set("*\n"):
            return [f"{tool}({command})"]
        return []
    path = next(
        (
            value
            for key in ("file_path", "notebook_path", "path")
            if isinstance(value := tool_input.get(key), str)
        ),
        "",
    )
    if tool in CHANGE_TOOLS or tool in READ_TOOLS:
        rule_tool = "Read"
        if tool in CHANGE_TOOLS:
            rule_tool = "Edit"
        path = posixpath.normpath(posixpath.join(cwd, path))
        if is_path_below(path, cwd):
            return [f"{rule_tool}(./**)"]
        if set(path) & set("*?[!\\"):
            return []
        # A rule for a folder applies to all files in it, but the prompt does not show them.
        if tool != CONTENT_SEARCH_TOOL and os.path.isdir(path):
            return []
        return [f"{rule_tool}(/{path})"]
    if tool == "WebFetch":
        url = tool_input.get("url")
        host = None
        if isinstance(url, str):
            host = urlsplit(url).hostname
        if host:
            return [f"WebFetch(domain:{host})"]
        return []
    return [tool]
