"""Rules for the flags of a frontend that joins a running background session.

`JOIN_TABLE` has a row for each flag that has its own rule. The session keeps the flags that it was
started with, so the flags of a joining frontend can change little. If the frontend forbids more
than the session does, the join is refused. Otherwise, the session might run a tool call that the
frontend's own `claude` would have denied. Flags that the frontend does not pass are not compared.
`shim help bridge` shows the same table.
"""

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

import orjson

from shim.core.bridge.status import shorten_first_line
from shim.core.claude.argv.flags import FLAG_BY_FIELD, Invocation
from shim.core.claude.argv.merge import FRONTEND_FIELDS
from shim.core.claude.permissions import QUESTION_TOOL
from shim.core.policy import PRE_TOOL_EVENT
from shim.core.policy.policy import PermissionRule, parse_permission_rules
from shim.core.policy.settings import ClaudeSettings
from shim.core.reading.json_text import parse_json_object
from shim.core.reading.values import as_dict

if TYPE_CHECKING:
    from shim.core.policy.settings_hooks import SettingsHook


class JoinRule(Enum):
    """The effect of a joining frontend's flag. The values are the descriptions in the manual."""

    APPLY = "changes the session, as the controller's `/mode` and `/model` do"
    EQUAL = "must be equal to the flag of the session, or the join is refused"
    REREAD = "the host reads the settings files again; settings that forbid more are refused"
    IGNORE = "has no effect; a line on stderr names the flag"


JOIN_TABLE: Mapping[str, JoinRule] = {
    "--permission-mode": JoinRule.APPLY,
    "--dangerously-skip-permissions": JoinRule.APPLY,
    "--model": JoinRule.APPLY,
    "--settings": JoinRule.REREAD,
    "--managed-settings": JoinRule.REREAD,
    "--setting-sources": JoinRule.REREAD,
    "--disallowedTools": JoinRule.EQUAL,
    "--tools": JoinRule.EQUAL,
    "--allowedTools": JoinRule.EQUAL,
    "--mcp-config": JoinRule.EQUAL,
    "--strict-mcp-config": JoinRule.EQUAL,
    "--agents": JoinRule.EQUAL,
    "--agent": JoinRule.EQUAL,
    "--json-schema": JoinRule.EQUAL,
    "--max-turns": JoinRule.EQUAL,
    "--max-budget-usd": JoinRule.EQUAL,
    "--task-budget": JoinRule.EQUAL,
    "--restricted": JoinRule.EQUAL,
    "--bare": JoinRule.EQUAL,
    "--safe-mode": JoinRule.EQUAL,
    "--disable-slash-commands": JoinRule.EQUAL,
    "--no-session-persistence": JoinRule.EQUAL,
    "--worktree": JoinRule.EQUAL,
    "--resume-session-at": JoinRule.EQUAL,
    "--resume-drops-turn": JoinRule.EQUAL,
}
# Fields for flags that take effect in the joining process itself, so the session does not need
# them. The flag for the prompt tool is not included, because a tool other than `stdio` has no
# effect there.
LOCAL_FIELDS = FRONTEND_FIELDS - {"permission_prompt_tool"}
LOCAL_PREFIX = "shim_"
RECORD_FIELD = "shim_record"
STDIO_PROMPT_TOOL = "stdio"
DEFAULT_SOURCES = ("local", "project", "user")  # used if no flag selects the settings sources
SETTINGS_FLAGS = ("--settings", "--managed-settings")
RULE_FLAGS = ("--disallowedTools", "--allowedTools")
# Flags with JSON values. Errors show only the keys, because the values may be secret.
JSON_FLAGS = ("--agents", "--json-schema", "--mcp-config")
JSON_STARTS = ("{", "[", '"')
NO_SERVERS = frozenset(('{"mcpServers":{}}',))  # the value of `--mcp-config` for no servers
_FIELD_BY_FLAG = {flag.name: field for field, flag in FLAG_BY_FIELD.items()}
RuleKey = tuple[str, str | None, str]


def list_flag_differences(frontend: Invocation, session: Invocation) -> list[str]:
    """Return a description of each flag that must have the same value in both command lines but
    does not.

    The paths in both command lines must be resolved against the same folder.
    """
    differences = []
    for flag, rule in JOIN_TABLE.items():
        if rule is not JoinRule.EQUAL:
            continue
        value = get_flag_value(frontend, flag)
        session_value = get_flag_value(session, flag)
        if _has_value(value) and value != session_value:
            differences.append(_describe_difference(flag, value, session_value))
    return differences


def list_ignored_flags(frontend: Invocation, session: Invocation) -> list[str]:
    """Return the frontend's flags that have no effect on the session, without duplicates."""
    flags = [
        flag
        for flag, field in _FIELD_BY_FLAG.items()
        if field not in LOCAL_FIELDS
        and (field == RECORD_FIELD or not field.startswith(LOCAL_PREFIX))
    ]
    flags += [name for name, _ in (*frontend.other_flags, *frontend.unknown_flags)]
    reported_rules = (JoinRule.IGNORE, JoinRule.REREAD)
    return [
        flag
        for flag in dict.fromkeys(flags)
        if JOIN_TABLE.get(flag, JoinRule.IGNORE) in reported_rules
        and _adds_value(get_flag_value(frontend, flag), get_flag_value(session, flag))
    ]


def list_stricter_settings(
    frontend: Invocation,
    settings: ClaudeSettings,
    session: Invocation,
    session_settings: ClaudeSettings,
) -> list[str]:
    """Return a description of each restriction that the frontend's settings have and the session's
    settings do not have.

    `session_settings` are the session's current settings, after its host has reloaded the settings
    files.
    """
    session_denials = (
        *parse_permission_rules(session.disallowed_tools),
        *session_settings.deny,
    )
    stricter = [
        f"{rule.source} denies {rule}"
        for rule in _subtract_rules(settings.deny, session_denials)
        if rule.tool != QUESTION_TOOL
    ]
    stricter += [
        f"{rule.source} requires a permission prompt for {rule}"
        for rule in _subtract_rules(settings.ask, (*session_denials, *session_settings.ask))
    ]
    new_hooks = {hook for hook in settings.hooks if hook not in session_settings.hooks}
    stricter += sorted({_describe_hook(hook) for hook in new_hooks})
    stricter += [
        f"{key} restricts tool calls"
        for key, value in settings.unsupported_keys.items()
        if session_settings.unsupported_keys.get(key) != value
    ]
    if settings.bypass_forbidden_by and not session_settings.bypass_forbidden_by:
        stricter.append(f"{settings.bypass_forbidden_by} forbids the mode bypassPermissions")
    allowed_rules = (*parse_permission_rules(frontend.allowed_tools), *settings.allow)
    stricter += [
        f"{rule.source} allows {rule} in the session, but the settings of the frontend do not"
        for rule in _subtract_rules(session_settings.allow, allowed_rules)
        if rule.source not in JOIN_TABLE or _has_value(get_flag_value(frontend, rule.source))
    ]
    if has_comparable_settings(frontend, session):
        directories = {*settings.directories, *frontend.add_dirs}
        stricter += [
            f"the session may use the directory {directory}, "
            "but the settings of the frontend do not name it"
            for directory in session_settings.directories
            if directory not in directories
        ]
    return stricter


def _describe_hook(hook: "SettingsHook") -> str:
    if hook.event == PRE_TOOL_EVENT:
        return f"a hook in {hook.source} checks tool calls"
    return f"a hook in {hook.source} runs at {hook.event}"


def has_comparable_settings(frontend: Invocation, session: Invocation) -> bool:
    """Return whether the directories and the permission modes in the frontend's and the session's
    settings can be compared.

    Merged settings do not show which file or flag a value comes from. If the session has a settings
    flag that the frontend does not pass, that flag may be the source of a difference. Flags that
    the frontend does not pass are not compared, so the settings cannot be compared either.

    If the frontend selects other settings sources than the session, the settings are always
    compared.
    """
    sources = get_flag_value(frontend, "--setting-sources")
    if sources is not None and sources != get_flag_value(session, "--setting-sources"):
        return True
    return not any(
        not _has_value(get_flag_value(frontend, flag))
        for flag in SETTINGS_FLAGS
        if _has_value(get_flag_value(session, flag))
    )


def get_flag_value(invocation: Invocation, flag: str) -> Any:
    """Return a flag's value in a form that can be compared. A missing flag is None or False.

    A deny rule for AskUserQuestion is left out, because the joining process denies such prompts
    itself.
    """
    field = _FIELD_BY_FLAG.get(flag)
    if field is None:
        pairs = (*invocation.other_flags, *invocation.unknown_flags)
        values = [_normalize_json(value or "") for name, value in pairs if name == flag]
        if flag in JOIN_TABLE:
            values = values[-1:]  # if the flag is repeated, the last value applies
        if values:
            return frozenset(values)
        return None
    value = getattr(invocation, field)
    if flag in RULE_FLAGS:
        rules = frozenset(map(str, parse_permission_rules(value)))
        if flag == "--disallowedTools":
            rules -= {QUESTION_TOOL}
        if rules:
            return rules
        return None
    if field == "setting_sources":
        return _normalize_sources(value)
    if field == "permission_prompt_tool" and value == STDIO_PROMPT_TOOL:
        return None
    if isinstance(value, tuple):
        texts = frozenset(map(_normalize_json, value))
        if texts or field == "tools":
            return texts
        return None
    if isinstance(value, str):
        return _normalize_json(value)
    return value


def _normalize_json(text: str) -> str:
    """Sort the keys in a JSON text. Return any other text unchanged."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _normalize_sources(sources: str | None) -> tuple[str, ...] | None:
    """Return the names of settings sources in sorted order. Return None for all sources, which is
    the default.
    """
    names = DEFAULT_SOURCES if sources is None else sources.split(",")
    sorted_names = tuple(sorted({name.strip() for name in names} - {""}))
    if sorted_names == DEFAULT_SOURCES:
        return None
    return sorted_names


def _has_value(value: object) -> bool:
    if value is None:
        return False
    if value is False:
        return False
    return value != ""


def _adds_value(value: object, session_value: object) -> bool:
    if isinstance(value, frozenset) and isinstance(session_value, frozenset):
        return bool(value - session_value)
    if not _has_value(value):
        return False
    return value != session_value


def _describe_difference(flag: str, value: object, session_value: object) -> str:
    """Describe the difference between the frontend's and the session's value of a flag."""
    passed_text = _format_flag(flag, value)
    if not _has_value(session_value) or session_value == NO_SERVERS:
        return f"the frontend passes {passed_text}, but the session was started without {flag}"
    session_text = _format_flag(flag, session_value)
    if session_text == passed_text:
        session_text = f"another value of {flag}"
    return f"the frontend passes {passed_text}, but the session was started with {session_text}"


def _format_flag(flag: str, value: object) -> str:
    """Format a flag with its value. If the value is JSON, only its keys are shown."""
    if isinstance(value, frozenset):
        values = sorted(value)
    else:
        values = [value]
    texts = [str(text) for text in values if text is not True and text != ""]
    if flag in JSON_FLAGS:
        texts = [_list_json_keys(text) for text in texts]
    text = shorten_first_line(",".join(texts))
    if isinstance(value, frozenset) and not value:
        text = '""'
    return f"{flag} {text}".strip()


def _list_json_keys(text: str) -> str:
    """Return the names of the MCP servers in a JSON text. If the JSON has no MCP servers, return
    its keys. A text that is not JSON is a file path and is returned unchanged.
    """
    if text.lstrip()[:1] not in JSON_STARTS:
        return text
    content = as_dict(parse_json_object(text.encode()))
    return ",".join(sorted(as_dict(content.get("mcpServers", content)))) or "{}"


def _subtract_rules(
    rules: tuple[PermissionRule, ...], session_rules: tuple[PermissionRule, ...]
) -> list[PermissionRule]:
    """Return the rules that `session_rules` do not cover. A rule is covered by an equal rule, or by
    a rule for the complete tool.
    """
    keys = {_get_rule_key(rule) for rule in session_rules}
    return [rule for rule in rules if keys.isdisjoint((_get_rule_key(rule), (rule.tool, None, "")))]


def _get_rule_key(rule: PermissionRule) -> RuleKey:
    base = ""
    if rule.content is not None:
        base = rule.base
    return rule.tool, rule.content, base
