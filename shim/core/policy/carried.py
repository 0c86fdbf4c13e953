"""A policy, and what it is made of, as a text for another process of ours: a hook of a vendor, a
frontend that joins.

The text is a Python literal of ASCII characters. `ast` reads it there, and nothing has to be
imported to write it here.
"""

from collections.abc import Callable, Iterable

from shim.core.policy.place import Workspace
from shim.core.policy.policy import Policy
from shim.core.policy.rules import Rule
from shim.core.policy.sources import ClaudeSettings
from shim.core.reading.typed import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from shim.core.policy.settings_hooks import SettingsHook

# what a text leads to that is none of ours
PARSE_ERRORS = (SyntaxError, TypeError, RecursionError, MemoryError)


class PolicyContext(NamedTuple):
    """What is told beside a policy.

    mode        the permission mode
    session     our id of the session, where the vendor's own is another one
    transcript  a path in the folder of its history
    mode_file   a file with the mode, where it may change while a call runs; "" where it may not
    asked       the tools about which the vendor asks all the same, in Claude's words, with commas;
                "": it asks nobody
    """

    mode: str
    session_id: str = ""
    transcript_path: str = ""
    mode_file: str = ""
    prompted_tools: str = ""


def serialize_policy(policy: Policy, known: PolicyContext) -> str:
    """The text of a policy and of what is told beside it."""
    place = policy.workspace
    only = None if policy.only_tools is None else sorted(policy.only_tools)
    rules, hooks = (
        _to_tuples(policy.deny, policy.ask, policy.allow),
        [tuple(hook) for hook in policy.hooks],
    )
    return ascii(
        (tuple(known), only, rules, (place.cwd, place.user_home, tuple(place.directories)), hooks)
    )


def parse_policy(text: str, real: Callable[[str], str]) -> tuple[Policy, PolicyContext]:
    """What `written` was given. ValueError for another text. `real` resolves the links of a path."""
    from ast import literal_eval

    try:
        told, only, rules, place, hooks = literal_eval(text)
        known = PolicyContext(*map(str, told))
        deny, ask, allow = ([_build_rule(*one) for one in kind] for kind in rules)
        cwd, home, directories = place
        hooks = _build_hooks(hooks)
    except PARSE_ERRORS as error:
        raise ValueError(f"no policy: {error}") from None
    where = Workspace(cwd, home, directories, real)
    policy = Policy(workspace=where, only_tools=only, deny=deny, ask=ask, allow=allow, hooks=hooks)
    return policy, known


def serialize_settings(settled: ClaudeSettings) -> str:
    """The text of what the settings files said together."""
    hooks = [tuple(hook) for hook in settled.hooks]
    return ascii(
        (
            _to_tuples(settled.deny, settled.ask, settled.allow),
            hooks,
            tuple(settled[3:6]),
            settled.unsupported_keys,
        )
    )


def parse_settings(text: str) -> ClaudeSettings:
    """What `written_settings` was given. ValueError for another text."""
    from ast import literal_eval

    try:
        rules, hooks, (mode, forbids, directories), unheeded = literal_eval(text)
        deny, ask, allow = (tuple(_build_rule(*one) for one in kind) for kind in rules)
        return ClaudeSettings(
            deny, ask, allow, mode, forbids, directories, tuple(_build_hooks(hooks)), unheeded
        )
    except PARSE_ERRORS as error:
        raise ValueError(f"no settings: {error}") from None


def _to_tuples(*kinds: Iterable[Rule]) -> list[list[tuple[Any, ...]]]:
    return [[tuple(rule) for rule in kind] for kind in kinds]


def _build_rule(*fields: Any) -> Rule:
    return Rule(*fields)


def _build_hooks(hooks: list[tuple[Any, ...]]) -> "list[SettingsHook]":
    if not hooks:
        return []
    from shim.core.policy.settings_hooks import SettingsHook

    return [SettingsHook(*one) for one in hooks]
