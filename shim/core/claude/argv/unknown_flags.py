"""Handles unknown flags. Most are ignored with a warning, but a misspelled permission flag is
refused.

If the shim ignored a misspelled permission flag, it would run tool calls that the user wanted to
forbid.
"""

import re
from collections.abc import Iterator

from shim.core.claude.argv.flags import (
    FLAG_BY_FIELD,
    FLAG_BY_NAME,
    MAX_FLAG_CHARS,
    SHIM_FLAG_PREFIX,
    Invocation,
)
from shim.core.errors import FrontendError, format_spelling_suggestion
from shim.core.reading.values import escape_control_chars

# Invocation fields for flags that limit which tools may run, how many turns, and the cost.
PERMISSION_FIELDS = (
    *(
        "permission_mode",
        "permission_prompts",
        "permission_prompt_tool",
        "skip_permissions",
        "allow_skip_permissions",
    ),
    *(
        "restricted",
        "allowed_tools",
        "disallowed_tools",
        "tools",
        "add_dirs",
        "mcp_config",
        "strict_mcp_config",
    ),
    *("settings", "setting_sources", "max_turns", "max_budget_usd"),
)
# Permission flags that only the real claude applies. `Invocation` has no fields for them.
PERMISSION_FLAGS_WITHOUT_FIELD = (
    *(
        "--agent",
        "--agents",
        "--bare",
        "--disable-slash-commands",
        "--managed-settings",
        "--plugin-dir",
    ),
    *("--safe-mode", "--task-budget"),
)
MIN_PREFIX_CHARS = 6  # `--allowed` means `--allowedTools`; `--allow` is ambiguous
# Shorter names resemble too many flags, so only names at a distance of one edit match them.
MIN_SIMILAR_CHARS = 8
MIN_SIMILARITY = 0.8
PROHIBITIONS = frozenset((
    *("ban", "banned", "block", "blocked", "deny", "denied", "disable", "disabled", "exclude", "excluded", "forbid"),
    *("forbidden", "no", "reject", "rejected", "without"),
))  # fmt: skip
# Values that no flag except `--permission-mode` has.
DISTINCT_MODES = ("plan", "acceptEdits", "dontAsk", "bypassPermissions")


def collect_unknown_flag_warnings(invocation: Invocation) -> list[str]:
    """Return a warning for each unknown flag. Raise FrontendError if a flag looks like a misspelled
    permission flag.
    """
    _refuse_glued_values(invocation.glued_flags)
    warnings = []
    for argument, value in invocation.unknown_flags:
        name = argument.partition("=")[0]
        flag = find_similar_permission_flag(name, value)
        if flag is not None:
            raise build_misspelled_flag_error(name, flag, value)
        suggestion = format_spelling_suggestion(
            name,
            (flag_name for flag_name in FLAG_BY_NAME if not flag_name.startswith(SHIM_FLAG_PREFIX)),
        )
        warnings.append(
            f"warning: unknown option '{_clean_name(name)}' has no effect{suggestion}\n"
        )
    return list(dict.fromkeys(warnings))


def _refuse_glued_values(arguments: tuple[str, ...]) -> None:
    """Raise FrontendError if a single argument contains both a permission flag and its value."""
    for argument in arguments:
        flag = argument.split()[0]
        if flag in _list_permission_flags():
            raise FrontendError(
                f"error: unknown option '{_clean_name(argument)}': the flag and its value are one argument",
                f"nothing was started; pass `{flag}` and its value as two arguments",
            )


def find_similar_permission_flag(name: str, value: str | None = None) -> str | None:
    """Return the permission flag that the user most likely meant with an unknown flag and its
    value, or None.
    """
    name = name[:MAX_FLAG_CHARS]
    similar_flags = [flag for flag in _list_permission_flags() if _is_similar(name, flag)]
    most_similar = max(
        similar_flags,
        key=lambda flag: _measure_similarity(
            _normalize_flag_name(name), _normalize_flag_name(flag)
        ),
        default=None,
    )
    if most_similar:
        return most_similar
    return _find_synonym(name, value)


def _find_synonym(name: str, value: str | None) -> str | None:
    """Return the permission flag for a synonym such as `--deny-tools`, `--permission-rules` or
    `--mode plan`.
    """
    name_tokens = _split_name(name)
    if name_tokens & {"tool", "tools"} and name_tokens & PROHIBITIONS:
        return "--disallowedTools"
    if name_tokens & {"permission", "permissions"} or (
        "mode" in name_tokens and value in DISTINCT_MODES
    ):
        return "--permission-mode"
    return None


def build_misspelled_flag_error(name: str, flag: str, value: str | None = None) -> FrontendError:
    """Return the error for an unknown flag that most likely stands for `flag`, a
    permission flag.
    """
    if name == flag:  # a switch with a value, such as `--restricted=true`
        return FrontendError(
            f"error: option '{flag}' takes no value, but has '{escape_control_chars(str(value)[:60])}'"
        )
    hint = (
        "nothing was started: without this permission flag, the agent could run more than you allow"
    )
    return FrontendError(
        f"error: unknown option '{_clean_name(name)}', did you mean `{flag}`?", hint
    )


def _list_permission_flags() -> Iterator[str]:
    for field in PERMISSION_FIELDS:
        yield from FLAG_BY_FIELD[field].names
    yield from PERMISSION_FLAGS_WITHOUT_FIELD


def _is_similar(name: str, flag: str) -> bool:
    """Return whether `name` is a typo or an abbreviation of `flag`, or consists of words from
    `flag`.
    """
    typed_letters = _normalize_flag_name(name)
    flag_letters = _normalize_flag_name(flag)
    if _is_one_edit_away(typed_letters, flag_letters):
        return True
    if len(typed_letters) >= MIN_PREFIX_CHARS and flag_letters.startswith(typed_letters):
        return True
    name_tokens = _split_name(name)
    if len(name_tokens) > 1 and name_tokens <= _split_name(flag):
        return True
    if len(typed_letters) < MIN_SIMILAR_CHARS:
        return False
    return _measure_similarity(typed_letters, flag_letters) >= MIN_SIMILARITY


def _is_one_edit_away(first: str, second: str) -> bool:
    """Return whether two names differ by one edit: a letter omitted, added or replaced, or two
    neighbors swapped.
    """
    short, long = sorted((first, second), key=len)
    if len(long) - len(short) > 1:
        return False
    start = next((index for index, letter in enumerate(short) if letter != long[index]), len(short))
    if len(short) < len(long):
        return short[start:] == long[start + 1 :]
    is_replaced = short[start + 1 :] == long[start + 1 :]
    is_swapped = False
    if short[start : start + 2] == long[start : start + 2][::-1]:
        is_swapped = short[start + 2 :] == long[start + 2 :]
    if is_replaced:
        return True
    return is_swapped


def _measure_similarity(first: str, second: str) -> float:
    from difflib import SequenceMatcher

    return SequenceMatcher(None, first, second).ratio()


def _normalize_flag_name(flag: str) -> str:
    """Return only the letters and digits of a flag name, in lower case. `--Allowed_Tools` and
    `--allowedTools` become equal.
    """
    return re.sub(r"[^a-z0-9]", "", flag.lower())


def _split_name(flag: str) -> set[str]:
    """Split a flag name into words in lower case: `--allowedTools` becomes `allowed` and
    `tools`.
    """
    return {token.lower() for token in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", flag)}


def _clean_name(name: str) -> str:
    return escape_control_chars(name[:MAX_FLAG_CHARS])
