"""A policy as a text, for a program of ours that judges calls in another process: a hook of a vendor.

The text is a Python literal of ASCII characters. `ast` reads it there, and nothing has to be imported to write it here.
"""

from collections.abc import Callable

from shim.core.policy.place import Place
from shim.core.policy.policy import Policy
from shim.core.policy.rules import Rule
from shim.core.reading.typed import Any


def written(policy: Policy, mode: str, session: str = "", transcript: str = "") -> str:
    """The text of a policy, of the permission mode, and of what hooks are told of the session."""
    place = policy.place
    only = None if policy.only is None else sorted(policy.only)
    rules = [[tuple(rule) for rule in kind] for kind in (policy.deny, policy.ask, policy.allowed)]
    hooks = [tuple(hook) for hook in policy.hooks]
    return ascii((mode, only, rules, (place.cwd, place.home, tuple(place.directories)), hooks, (session, transcript)))


def read(text: str, real: Callable[[str], str]) -> tuple[Policy, str, tuple[str, str]]:
    """What `written` was given: the policy, the mode, the session's id and transcript. ValueError for another text.

    `real` resolves the links of a path.
    """
    from ast import literal_eval

    try:
        mode, only, rules, place, hooks, (session, transcript) = literal_eval(text)
        deny, ask, allow = ([_rule(*one) for one in kind] for kind in rules)
        cwd, home, directories = place
        if hooks:
            from shim.core.policy.settings_hooks import SettingsHook

            hooks = [SettingsHook(*one) for one in hooks]
    except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"no policy: {error}") from None
    where = Place(cwd, home, directories, real)
    policy = Policy(place=where, only=only, deny=deny, ask=ask, allow=allow, hooks=hooks)
    return policy, str(mode), (str(session), str(transcript))


def _rule(*fields: Any) -> Rule:
    return Rule(*fields)
