"""Formats an Invocation as command-line arguments for Claude, and merges two Invocations."""

import orjson

from shim.core.claude.argv.flags import (
    FLAG_BY_FIELD,
    FLAG_BY_NAME,
    FLAGS,
    SINGLE_VALUE,
    Flag,
    Invocation,
    parse_argv,
)
from shim.core.reading.json_text import dump_json
from shim.core.reading.typed import Any
from shim.core.reading.values import as_dict, as_list

# Fields that name the message at which a session is resumed. A later resume does not repeat these
# fields.
RESUME_POINT_FIELDS = ("resume_session_at", "resume_drops_turn")
SESSION_FIELDS = (
    *("session_id", "resume", "continue_last", "fork_session", "background", "name"),
    *("machine", "cwd"),
    *RESUME_POINT_FIELDS,
)
# Fields that apply only to the current run and not to the conversation: the stdin and stdout
# formats, the session, and options such as `--help`.
FRONTEND_FIELDS = frozenset((
    *("print_mode", "output_format", "input_format", "verbose", "partial", "replay_user_messages"),
    *("permission_prompt_tool", "shim_terminator", "shim_explain", "version", "help"),
    *SESSION_FIELDS,
))  # fmt: skip

# Fields and flags that restrict a conversation and its copies. The permission modes in
# RESTRICTIVE_MODES are also restrictions: they allow no more than a conversation without flags.
RESTRICTING_FIELDS = (
    *(
        "disallowed_tools",
        "tools",
        "restricted",
        "strict_mcp_config",
        "max_turns",
        "max_budget_usd",
    ),
    *("settings", "setting_sources"),
)
RESTRICTING_FLAGS = (
    *(
        "--agent",
        "--agents",
        "--bare",
        "--disable-slash-commands",
        "--managed-settings",
        "--safe-mode",
    ),
    "--task-budget",
)
RESTRICTIVE_MODES = ("plan", "dontAsk", "default", "manual")
# Keys in Claude's settings.
FORBID_BYPASS_KEY = "disableBypassPermissionsMode"
DISABLE_HOOKS_KEY = "disableAllHooks"
ALLOWING_KEYS = ("allow", "additionalDirectories")
LIST_KEYS = ("deny", "ask", *ALLOWING_KEYS)


def build_conversation_args(
    invocation: Invocation, excluded_fields: frozenset[str] = FRONTEND_FIELDS
) -> list[str]:
    """Return the arguments that start the same conversation, without its prompt and without
    `excluded_fields`.
    """
    args: list[str] = []
    for field in FLAG_BY_FIELD:
        if field not in excluded_fields:
            args += _format_field(field, getattr(invocation, field))
    for name, value in invocation.other_flags:
        args += _format_flag(FLAG_BY_NAME[name], value)
    args += [
        name if value is None else f"{name}={value}" for name, value in invocation.unknown_flags
    ]
    return args


def build_resume_point_args(invocation: Invocation) -> list[str]:
    """Return the arguments that name the message at which a session or its copy is resumed."""
    return [
        arg
        for field in RESUME_POINT_FIELDS
        for arg in _format_field(field, getattr(invocation, field))
    ]


def merge_resume_flags(original: Invocation, current: Invocation) -> Invocation:
    """Return the flags for resuming an ended session: its original flags, followed by the current
    flags.

    A restriction stays in force if the current flags do not repeat it. This includes restrictions
    in JSON settings.
    """
    original_args = build_conversation_args(original)
    combined = parse_argv([*original_args, *build_conversation_args(current)])
    # The last one of several equal values is kept, so that the values from the current flags stay
    # after the values from the original flags.
    merged_fields: dict[str, Any] = {
        field: tuple(dict.fromkeys(values[::-1]))[::-1]
        for field in (*FLAGS, "unknown_flags")
        if isinstance(values := getattr(combined, field), tuple)
    }
    merged_fields["settings"] = _merge_settings(original.settings, current.settings)
    if original.tools is not None and current.tools is not None:
        merged_fields["tools"] = tuple(tool for tool in current.tools if tool in original.tools)
    if current.permission_mode is not None and not current.skip_permissions:
        merged_fields["skip_permissions"] = False
    for field in ("prompt", "no_session_persistence", *SESSION_FIELDS):
        merged_fields[field] = getattr(current, field)
    return combined._replace(**merged_fields)


def extract_restricting_flags(original: Invocation) -> Invocation:
    """Return only the flags that restrict a session. They also apply to a copy of the session."""
    restrictions: dict[str, Any] = {field: getattr(original, field) for field in RESTRICTING_FIELDS}
    restrictions["settings"] = _extract_restricting_settings(original.settings)
    if original.permission_mode in RESTRICTIVE_MODES and not original.skip_permissions:
        restrictions["permission_mode"] = original.permission_mode
    if original.strict_mcp_config:
        restrictions["mcp_config"] = original.mcp_config
    restricting_flags = tuple(pair for pair in original.other_flags if pair[0] in RESTRICTING_FLAGS)
    return Invocation(**restrictions, other_flags=restricting_flags)


def _merge_settings(original_json: str | None, current_json: str | None) -> str | None:
    """Return the original settings, overridden by the current settings. Rules and hooks from both
    are kept.
    """
    original = _parse_settings_object(original_json)
    current = _parse_settings_object(current_json)
    if original_json == current_json or original is None or current is None:
        if current_json:
            return current_json
        return original_json
    original_hooks, current_hooks = (
        as_dict(settings.get("hooks")) for settings in (original, current)
    )
    original_permissions, current_permissions = (
        as_dict(settings.get("permissions")) for settings in (original, current)
    )
    permissions = {
        **original_permissions,
        **current_permissions,
        **{
            key: _join_unique(original_permissions.get(key), current_permissions.get(key))
            for key in LIST_KEYS
        },
    }
    if FORBID_BYPASS_KEY in original_permissions:
        permissions[FORBID_BYPASS_KEY] = original_permissions[FORBID_BYPASS_KEY]
    merged = {key: value for key, value in original.items() if key != DISABLE_HOOKS_KEY} | current
    if original_hooks:  # current settings must not disable the session's original hooks
        merged.pop(DISABLE_HOOKS_KEY, None)
    merged["permissions"] = {key: value for key, value in permissions.items() if value != []}
    merged["hooks"] = {
        event: _join_unique(original_hooks.get(event), current_hooks.get(event))
        for event in {**original_hooks, **current_hooks}
    }
    return dump_json({key: value for key, value in merged.items() if value != {}}).decode()


def _extract_restricting_settings(settings_json: str | None) -> str | None:
    """Return the settings without the keys that grant permissions."""
    settings = _parse_settings_object(settings_json)
    if settings is None:
        return settings_json
    permissions = {
        key: value
        for key, value in as_dict(settings.get("permissions")).items()
        if key not in ALLOWING_KEYS
    }
    if permissions.get("defaultMode") not in RESTRICTIVE_MODES:
        permissions.pop("defaultMode", None)
    restricting = {
        key: value
        for key, value in settings.items()
        if key not in (DISABLE_HOOKS_KEY, "permissions")
    }
    if permissions:
        restricting["permissions"] = permissions
    if restricting == settings:
        return settings_json
    if restricting:
        return dump_json(restricting).decode()
    return None


def _parse_settings_object(settings_json: str | None) -> dict[str, Any] | None:
    if settings_json is None:
        return None
    try:
        settings = orjson.loads(settings_json)
    except orjson.JSONDecodeError:
        return None
    if isinstance(settings, dict):
        return settings
    return None


def _join_unique(*values: object) -> list[Any]:
    """Return the elements of all lists without duplicates. A string counts as a list with one
    element.
    """
    lists = ([value] if isinstance(value, str) else as_list(value) for value in values)
    entries = [entry for entry_list in lists for entry in entry_list]
    return [entry for index, entry in enumerate(entries) if entry not in entries[:index]]


def _format_field(field: str, value: object) -> list[str]:
    flag = FLAG_BY_FIELD[field]
    if value is None or value is False:
        return []
    if value == ():
        # `--tools=` allows no tools, while a missing flag allows all of them.
        if field == "tools":
            return [f"{flag.name}="]
        return []
    if isinstance(value, tuple):
        return [f"{flag.name}={entry}" for entry in value]
    return _format_flag(flag, None if value is True else str(value))


def _format_flag(flag: Flag, value: str | None) -> list[str]:
    if value is None:
        return [flag.name]
    if flag.arity == SINGLE_VALUE:
        return [flag.name, value]
    return [f"{flag.name}={value}"]
