"""Flags that the shim does not know: which are ignored with a warning, and which are refused.

A misspelled permission flag is refused, because ignoring it would run what the user wanted to forbid.
"""

import re
from collections.abc import Iterator

from shim.core.claude.argv.invocation import Invocation
from shim.core.claude.argv.parse import FLAGS, OURS, list_flag_names
from shim.core.errors import FrontendError, meant
from shim.core.reading.account import printable

# Fields of the flags that decide what may run, and how much of it.
PERMISSION_FIELDS = (
    *("permission_mode", "permission_prompts", "permission_prompt_tool", "skip_permissions", "allow_skip_permissions"),
    *("restricted", "allowed_tools", "disallowed_tools", "tools", "add_dirs", "mcp_config", "strict_mcp_config"),
    *("settings", "setting_sources", "max_turns", "max_budget_usd"),
)
# The same, for flags that only the real claude obeys.
PERMISSION_FLAGS_WITHOUT_FIELD = (
    *("--agent", "--agents", "--bare", "--disable-slash-commands", "--managed-settings", "--plugin-dir"),
    *("--safe-mode", "--task-budget"),
)
MAX_FLAG_CHARS = 60  # of an unknown flag, in a message and in a comparison; no known name is longer
MIN_PREFIX_CHARS = 6  # `--allowed` means `--allowedTools`; `--allow` is too short to tell
MIN_SIMILAR_CHARS = 8  # shorter names are similar to too many others: only one edit is accepted
MIN_SIMILARITY = 0.8
FORBIDDING_WORDS = frozenset((
    *("ban", "banned", "block", "blocked", "deny", "denied", "disable", "disabled", "exclude", "excluded", "forbid"),
    *("forbidden", "no", "reject", "rejected", "without"),
))  # fmt: skip
MODES_ONLY_HERE = ("plan", "acceptEdits", "dontAsk", "bypassPermissions")  # values that no flag but ours has


def check_unknown_flags(invocation: Invocation) -> list[str]:
    """Return a warning for each unknown flag. Raise FrontendError for a misspelled permission flag."""
    _refuse_glued(invocation.leftovers.glued)
    warnings = []
    for word, value in invocation.leftovers.unknown:
        name = word.partition("=")[0]
        flag = find_permission_flag(name, value)
        if flag is not None:
            raise explain_misspelled(name, flag, value)
        suggestion = meant(name, (known for known in list_flag_names() if not known.startswith(OURS)))
        warnings.append(f"warning: {_shown(name)} is not known here and has no effect{suggestion}\n")
    return list(dict.fromkeys(warnings))


def _refuse_glued(words: tuple[str, ...]) -> None:
    """Raise FrontendError for a permission flag that is one word together with its value."""
    for word in words:
        flag = word.split()[0]
        if flag in _permission_flags():
            raise FrontendError(
                f"error: unknown option '{_shown(word)}': the flag and its value are one word",
                f"give `{flag}` and its value as two words; nothing was started",
            )


def find_permission_flag(name: str, value: str | None = None) -> str | None:
    """Return the permission flag that an unknown flag with this value most likely means, or None."""
    name = name[:MAX_FLAG_CHARS]
    near = [flag for flag in _permission_flags() if _is_near(name, flag)]
    nearest = max(near, key=lambda flag: _similarity(_letters(name), _letters(flag)), default=None)
    return nearest or _find_synonym(name, value)


def _find_synonym(name: str, value: str | None) -> str | None:
    """Return the permission flag that another name stands for: `--deny-tools`, `--permission-rules`, `--mode plan`."""
    words = _words(name)
    if words & {"tool", "tools"} and words & FORBIDDING_WORDS:
        return "--disallowedTools"
    if words & {"permission", "permissions"} or ("mode" in words and value in MODES_ONLY_HERE):
        return "--permission-mode"
    return None


def explain_misspelled(name: str, flag: str, value: str | None = None) -> FrontendError:
    """Return the error for an unknown flag that most likely means the permission flag `flag`."""
    if name == flag:  # a switch with a value, such as `--restricted=true`
        return FrontendError(f"error: option '{flag}' takes no value, and was given '{printable(str(value)[:60])}'")
    hint = "nothing was started, because without this permission flag more might run than you want"
    return FrontendError(f"error: unknown option '{_shown(name)}', did you mean `{flag}`?", hint)


def _permission_flags() -> Iterator[str]:
    for field in PERMISSION_FIELDS:
        yield from re.findall(r"--[\w-]+", FLAGS[field])
    yield from PERMISSION_FLAGS_WITHOUT_FIELD


def _is_near(name: str, flag: str) -> bool:
    """Return whether `name` is a typo, an abbreviation or a selection of the words of `flag`."""
    typed, letters = _letters(name), _letters(flag)
    if _is_one_edit_away(typed, letters):
        return True
    if len(typed) >= MIN_PREFIX_CHARS and letters.startswith(typed):
        return True
    words = _words(name)
    if len(words) > 1 and words <= _words(flag):
        return True
    return len(typed) >= MIN_SIMILAR_CHARS and _similarity(typed, letters) >= MIN_SIMILARITY


def _is_one_edit_away(one: str, other: str) -> bool:
    """Return whether a letter was left out, added, replaced, or exchanged with its neighbour."""
    if len(one) > len(other):
        one, other = other, one
    if len(other) - len(one) > 1:
        return False
    start = next((place for place, letter in enumerate(one) if letter != other[place]), len(one))
    if len(one) < len(other):
        return one[start:] == other[start + 1 :]
    swapped = one[start : start + 2] == other[start : start + 2][::-1] and one[start + 2 :] == other[start + 2 :]
    return swapped or one[start + 1 :] == other[start + 1 :]


def _similarity(one: str, other: str) -> float:
    from difflib import SequenceMatcher

    return SequenceMatcher(None, one, other).ratio()


def _letters(flag: str) -> str:
    """Return the name without dashes and case: `--Allowed_Tools` and `--allowedTools` are the same."""
    return re.sub(r"[^a-z0-9]", "", flag.lower())


def _words(flag: str) -> set[str]:
    """Return the words of a name, in lower case: of `--allowedTools` they are `allowed` and `tools`."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", flag)}


def _shown(name: str) -> str:
    return printable(name[:MAX_FLAG_CHARS])
