"""A policy as a text, for a program of ours that judges calls in another process: a hook of a vendor.

The text is a Python literal of ASCII characters. `ast` reads it there, and nothing has to be imported to write it here.
"""

from collections.abc import Callable

from shim.core.policy.place import Place
from shim.core.policy.policy import Policy
from shim.core.policy.rules import Rule
from shim.core.reading.typed import Any, NamedTuple


class Known(NamedTuple):
    """What is told beside a policy.

    mode        the permission mode
    session     our id of the session, where the vendor's own is another one
    transcript  a path in the folder of its history
    mode_file   a file with the mode, where it may change while a call runs; "" where it may not
    asked       the tools about which the vendor asks all the same, in Claude's words, with commas; "": it asks nobody
    """

    mode: str
    session: str = ""
    transcript: str = ""
    mode_file: str = ""
    asked: str = ""


def written(policy: Policy, known: Known) -> str:
    """The text of a policy and of what is told beside it."""
    place = policy.place
    only = None if policy.only is None else sorted(policy.only)
    rules = [[tuple(rule) for rule in kind] for kind in (policy.deny, policy.ask, policy.allowed)]
    hooks = [tuple(hook) for hook in policy.hooks]
    return ascii((tuple(known), only, rules, (place.cwd, place.home, tuple(place.directories)), hooks))


def read(text: str, real: Callable[[str], str]) -> tuple[Policy, Known]:
    """What `written` was given. ValueError for another text. `real` resolves the links of a path."""
    from ast import literal_eval

    try:
        told, only, rules, place, hooks = literal_eval(text)
        known = Known(*map(str, told))
        deny, ask, allow = ([_rule(*one) for one in kind] for kind in rules)
        cwd, home, directories = place
        if hooks:
            from shim.core.policy.settings_hooks import SettingsHook

            hooks = [SettingsHook(*one) for one in hooks]
    except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"no policy: {error}") from None
    where = Place(cwd, home, directories, real)
    policy = Policy(place=where, only=only, deny=deny, ask=ask, allow=allow, hooks=hooks)
    return policy, known


def _rule(*fields: Any) -> Rule:
    return Rule(*fields)
