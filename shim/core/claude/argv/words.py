"""An Invocation → the words of Claude's command line again: for a conversation that another process
runs.
"""

import orjson

from shim.core.claude.argv.invocation import Invocation
from shim.core.claude.argv.parse import FLAGS, parse_argv
from shim.core.reading.json_text import dump_json
from shim.core.reading.typed import Any

# where in its session a life begins: no later one does so
RESUME_POINT_FIELDS = ("resume_session_at", "resume_drops_turn")
# What is not the conversation's own: who asks it what and in which form, which session it is, how
# our run of it is recorded and explained.
FRONTEND_FIELDS = frozenset((
    *("print_mode", "output_format", "input_format", "verbose", "partial", "replay_user_messages"),
    *("session_id", "resume", "continue_last", "fork_session", "permission_prompt_tool"),
    *RESUME_POINT_FIELDS,
    *("shim_terminator", "shim_explain", "version", "help", "background", "name"),
))  # fmt: skip

# What keeps a conversation from something, and holds in a copy of it too. A mode does where it is
# no wider than that of a conversation without flags.
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
# Keys of settings.
FORBID_BYPASS_KEY, DISABLE_HOOKS_KEY = "disableBypassPermissionsMode", "disableAllHooks"
ALLOWING_KEYS = ("allow", "additionalDirectories")
LIST_KEYS = ("deny", "ask", *ALLOWING_KEYS)


def build_conversation_args(
    invocation: Invocation, without: frozenset[str] = FRONTEND_FIELDS
) -> list[str]:
    """The words that mean the same conversation, without its prompt and without the fields
    `without`.
    """
    words: list[str] = []
    for field in FLAGS:
        if field != "other" and field not in without:
            words += _format_field(field, invocation.flag(field))
    for name, value in invocation.other_flags.other:
        words += _format_flag_value(name, _VALUE_KIND_BY_FLAG[name], value)
    words += [
        name if value is None else f"{name}={value}"
        for name, value in invocation.other_flags.unknown
    ]
    return words


def build_fork_args(invocation: Invocation) -> list[str]:
    """The words that say up to which message of its session, or of the one that it is a copy of, a
    life goes on.
    """
    return [
        word
        for field in RESUME_POINT_FIELDS
        for word in _format_field(field, invocation.flag(field))
    ]


def merge_resume_flags(begun: Invocation, asked: Invocation) -> Invocation:
    """The next life of a session that has ended: the flags that it was begun with, and behind them
    those of now.

    A flag that is left out now takes nothing back: what the session was forbidden stays so, also by
    settings that are said as JSON.
    """
    saved = build_conversation_args(begun)
    both = parse_argv([*saved, *build_conversation_args(asked)])
    lists = {
        field: both.flag(field)
        for field in FLAGS
        if field != "other" and isinstance(both.flag(field), tuple)
    }
    lists |= {"other": both.other_flags.other, "unknown": both.other_flags.unknown}
    # The last of the same words stays, so that what was said now is behind what was said before.
    once: dict[str, Any] = {
        field: tuple(dict.fromkeys(words[::-1]))[::-1] for field, words in lists.items()
    }
    once["settings"] = _merge_settings(begun.configuration.settings, asked.configuration.settings)
    if begun.rules.tools is not None and asked.rules.tools is not None:
        once["tools"] = tuple(tool for tool in asked.rules.tools if tool in begun.rules.tools)
    if asked.permissions.permission_mode is not None and not asked.permissions.skip_permissions:
        once["skip_permissions"] = False
    return both.with_flags(**once)._replace(prompt=asked.prompt, session=asked.session)


def extract_restrictions(begun: Invocation) -> Invocation:
    """What the flags of a session forbid, without what they allow: for a copy of it."""
    kept: dict[str, Any] = {field: begun.flag(field) for field in RESTRICTING_FIELDS}
    kept["settings"] = _extract_restricting_settings(begun.configuration.settings)
    if (
        begun.permissions.permission_mode in RESTRICTIVE_MODES
        and not begun.permissions.skip_permissions
    ):
        kept["permission_mode"] = begun.permissions.permission_mode
    if begun.configuration.strict_mcp_config:
        kept["mcp_config"] = begun.configuration.mcp_config
    others = tuple(one for one in begun.other_flags.other if one[0] in RESTRICTING_FLAGS)
    return Invocation().with_flags(**kept, other=others)


def _merge_settings(begun: str | None, asked: str | None) -> str | None:
    """Settings of a session's begin and those of now, whose keys go before the others; the rules
    and hooks of both hold."""
    before, now = _parse_settings_object(begun), _parse_settings_object(asked)
    if begun == asked or before is None or now is None:
        return asked or begun
    hooks, own = (_as_dict(one.get("hooks")) for one in (before, now))
    rules, given = (_as_dict(one.get("permissions")) for one in (before, now))
    permissions = {
        **rules,
        **given,
        **{key: _join_unique(rules.get(key), given.get(key)) for key in LIST_KEYS},
    }
    if FORBID_BYPASS_KEY in rules:
        permissions[FORBID_BYPASS_KEY] = rules[FORBID_BYPASS_KEY]
    both = {key: value for key, value in before.items() if key != DISABLE_HOOKS_KEY} | now
    if hooks:  # nobody switches them off
        both.pop(DISABLE_HOOKS_KEY, None)
    both["permissions"] = {key: value for key, value in permissions.items() if value != []}
    both["hooks"] = {
        event: _join_unique(hooks.get(event), own.get(event)) for event in {**hooks, **own}
    }
    return dump_json({key: value for key, value in both.items() if value != {}}).decode()


def _extract_restricting_settings(said: str | None) -> str | None:
    """The same settings without what they allow."""
    given = _parse_settings_object(said)
    if given is None:
        return said
    permissions = {
        key: value
        for key, value in _as_dict(given.get("permissions")).items()
        if key not in ALLOWING_KEYS
    }
    if permissions.get("defaultMode") not in RESTRICTIVE_MODES:
        permissions.pop("defaultMode", None)
    kept = {
        key: value for key, value in given.items() if key not in (DISABLE_HOOKS_KEY, "permissions")
    }
    kept |= {"permissions": permissions} if permissions else {}
    return said if kept == given else dump_json(kept).decode() if kept else None


def _parse_settings_object(said: str | None) -> dict[str, Any] | None:
    try:
        found = orjson.loads(said or "")
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _as_dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _join_unique(*values: object) -> list[Any]:
    """The elements of lists, each once; a text is a list of it."""
    lists = (
        [value] if isinstance(value, str) else value if isinstance(value, list) else []
        for value in values
    )
    whole = [one for found in lists for one in found]
    return [one for place, one in enumerate(whole) if one not in whole[:place]]


def _format_field(field: str, value: object) -> list[str]:
    name, arity = _parse_flag_spelling(FLAGS[field])
    if value is None or value is False or (value == () and field != "tools"):
        return []
    if isinstance(value, tuple):  # no tool is not every tool
        return [f"{name}={one}" for one in value] or [f"{name}="]
    return _format_flag_value(name, arity, None if value is True else str(value))


def _format_flag_value(name: str, arity: str, value: str | None) -> list[str]:
    if value is None:
        return [name]
    return [name, value] if arity == "<" else [f"{name}={value}"]


def _parse_flag_spelling(flag: str) -> tuple[str, str]:
    """The first long name of a row, and what it takes: "<" one word, "[" maybe one, "..." many, "-"
    none.
    """
    words = flag.split()
    return _find_long_name(flag), "..." if words[-1].endswith("...>") else words[-1][0]


def _find_long_name(flag: str) -> str:
    return next(word.rstrip(",") for word in flag.split() if word.startswith("--"))


def format_flag(field: str) -> str:
    """The long name of the flag of a field, `--add-dir` for `add_dirs`."""
    return _find_long_name(FLAGS[field])


_VALUE_KIND_BY_FLAG = dict(
    _parse_flag_spelling(flag)
    for flag in FLAGS["other"].replace("\n", "|").split("|")
    if flag.strip()
)
