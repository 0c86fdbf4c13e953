"""A policy as a text, for a program of ours that judges calls in another process: a hook of a vendor.

The text is a Python literal of ASCII characters. `ast` reads it there, and nothing has to be imported to write it here.
"""

from collections.abc import Callable

from shim.core.policy.place import Place
from shim.core.policy.policy import Policy
from shim.core.policy.rules import Rule
from shim.core.reading.typed import Any


def written(policy: Policy, mode: str) -> str:
    """The text of a policy and of the permission mode."""
    place = policy.place
    only = None if policy.only is None else sorted(policy.only)
    rules = [[tuple(rule) for rule in kind] for kind in (policy.deny, policy.ask, policy.allowed)]
    return ascii((mode, only, rules, (place.cwd, place.home, tuple(place.directories))))


def read(text: str, real: Callable[[str], str]) -> tuple[Policy, str]:
    """The policy and the mode of a text. `real` resolves the links of a path. ValueError for another text."""
    from ast import literal_eval

    try:
        mode, only, rules, place = literal_eval(text)
        deny, ask, allow = ([_rule(*one) for one in kind] for kind in rules)
        cwd, home, directories = place
    except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"no policy: {error}") from None
    policy = Policy(place=Place(cwd, home, directories, real), only=only, deny=deny, ask=ask, allow=allow)
    return policy, str(mode)


def _rule(*fields: Any) -> Rule:
    return Rule(*fields)
