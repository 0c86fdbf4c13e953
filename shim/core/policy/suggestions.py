"""Suggests permission rules that would have allowed a tool call, as the real claude does.

The real claude would store most of these rules in the project's settings. In the shim they end with
the session, and their `destination` is "session".
"""

import posixpath
import re
from collections.abc import Iterator, Mapping

from shim.core.policy.bash_commands import is_read_only
from shim.core.policy.call_effects import (
    BASH_TOOL,
    CHANGE_TOOLS,
    READ_TOOLS,
    SEARCH_TOOLS,
    analyze_tool_call,
)
from shim.core.policy.evaluate import DOMAIN_PREFIX, PolicyEvaluator, parse_url_host
from shim.core.policy.policy import EDIT_MODE, PermissionRule, Policy
from shim.core.reading.typed import Any

# Every call of these tools asks the user a question.
INTERACTIVE_TOOLS = ("AskUserQuestion", "ExitPlanMode")
# matches the second word of a command such as `git push` or `npm run`
SUBCOMMAND_PATTERN = r"[a-z][a-z0-9]*(-[a-z0-9]+)*"
# The limit for a suggestion. A longer suggestion would be unreadable in a prompt.
MAX_COMMANDS = 5
MAX_RULE_CHARS = 500


def suggest_rule_updates(
    policy: Policy, tool: str, tool_input: Mapping[str, Any], mode: str, *, can_edit: bool
) -> list[dict[str, Any]]:
    """Return the permission updates that would have allowed a tool call. `can_edit` is set if the
    permission mode can be changed to acceptEdits.
    """
    if tool in INTERACTIVE_TOOLS:
        return []
    updates = []
    rules = tuple(_suggest_rules(policy, tool, tool_input))
    if rules and _allows_call(policy.with_permissions(rules), tool, tool_input, mode):
        rule_fields = [
            {"toolName": rule.tool, **({"ruleContent": rule.content} if rule.content else {})}
            for rule in rules
        ]
        updates.append(
            {
                "type": "addRules",
                "rules": rule_fields,
                "behavior": "allow",
                "destination": "session",
            }
        )
    if tool in READ_TOOLS or not (can_edit or mode == EDIT_MODE):
        return updates
    folders = list_folders_outside_workspace(policy, tool, tool_input)
    if _allows_call(policy.with_permissions(directories=folders), tool, tool_input, EDIT_MODE):
        if folders:
            updates.append(
                {"type": "addDirectories", "directories": list(folders), "destination": "session"}
            )
        if mode != EDIT_MODE:
            updates.append({"type": "setMode", "mode": EDIT_MODE, "destination": "session"})
    return updates


def list_folders_outside_workspace(
    policy: Policy, tool: str, tool_input: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the folders outside the workspace that contain a tool call's files."""
    accesses = analyze_tool_call(tool, tool_input, policy.workspace).file_accesses
    paths = [
        access.path
        for access in accesses
        if access.path is not None and not policy.workspace.is_path_inside(access.path)
    ]
    # A search tool's path is already a folder.
    folders = paths if tool in SEARCH_TOOLS else map(posixpath.dirname, paths)
    return tuple(folder for folder in dict.fromkeys(folders) if folder != "/")


def _allows_call(policy: Policy, tool: str, tool_input: Mapping[str, Any], mode: str) -> bool:
    return PolicyEvaluator(policy).evaluate_tool_call(tool, tool_input, mode).outcome == "allow"


def _suggest_rules(
    policy: Policy, tool: str, tool_input: Mapping[str, Any]
) -> Iterator[PermissionRule]:
    """Yield rules that allow a tool call and similar calls. Yield nothing for a file change,
    because the permission mode acceptEdits allows file changes.
    """
    effects = analyze_tool_call(tool, tool_input, policy.workspace)
    if effects.line is not None:
        commands = [command for command in effects.line.commands if not is_read_only(command)]
        texts = [_format_command_rule(command.words, command.text) for command in commands]
        is_readable = len(texts) <= MAX_COMMANDS and sum(map(len, texts)) <= MAX_RULE_CHARS
        if (
            tool == BASH_TOOL
            and effects.line.is_plain
            and is_readable
            and not any("*" in command.text for command in commands)
        ):
            yield from (PermissionRule(BASH_TOOL, text) for text in dict.fromkeys(texts))
    elif tool in READ_TOOLS:
        yield from (
            PermissionRule("Read", f"/{folder.rstrip('/')}/**")
            for folder in list_folders_outside_workspace(policy, tool, tool_input)
        )
    elif tool == "WebFetch":
        if host := parse_url_host(tool_input.get("url")):
            yield PermissionRule(tool, DOMAIN_PREFIX + host)
    elif tool not in CHANGE_TOOLS:
        yield PermissionRule(tool)


def _format_command_rule(words: tuple[str | None, ...], text: str) -> str:
    """Return the text in parentheses for a rule that allows a command: its name and subcommand with
    any arguments, or its complete text.
    """
    if (
        len(words) > 1
        and words[0]
        and words[1]
        and re.fullmatch(SUBCOMMAND_PATTERN, words[1], re.ASCII)
    ):
        return f"{words[0]} {words[1]} *"
    return text
