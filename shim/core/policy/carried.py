"""A policy, and what it is made of, as a text for another process of ours: a hook of a vendor, a
frontend that joins.

The text is a Python literal of ASCII characters. `ast` reads it there, and nothing has to be
imported to write it here.
"""

from collections.abc import Callable, Iterable

from shim.core.policy.place import Place
from shim.core.policy.policy import Policy
from shim.core.policy.rules import Rule
from shim.core.policy.sources import Settled
from shim.core.reading.typed import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from shim.core.policy.settings_hooks import SettingsHook

# what a text leads to that is none of ours
UNREADABLE = (SyntaxError, TypeError, RecursionError, MemoryError)


class Known(NamedTuple):
    """What is told beside a policy.

    mode        the permission mode
    session     our id of the session, where the vendor's own is another one
    transcript  a path in the folder of its history
    mode_file   a file with the mode, where it may change while a call runs; "" where it may not
    asked       the tools about which the vendor asks all the same, in Claude's words, with commas;
                "": it asks nobody
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
    rules, hooks = (
        _plain(policy.deny, policy.ask, policy.allowed),
        [tuple(hook) for hook in policy.hooks],
    )
    return ascii(
        (tuple(known), only, rules, (place.cwd, place.home, tuple(place.directories)), hooks)
    )


def read(text: str, real: Callable[[str], str]) -> tuple[Policy, Known]:
    """What `written` was given. ValueError for another text. `real` resolves the links of a path."""
    from ast import literal_eval

    try:
        told, only, rules, place, hooks = literal_eval(text)
        known = Known(*map(str, told))
        deny, ask, allow = ([_rule(*one) for one in kind] for kind in rules)
        cwd, home, directories = place
        hooks = _hooks(hooks)
    except UNREADABLE as error:
        raise ValueError(f"no policy: {error}") from None
    where = Place(cwd, home, directories, real)
    policy = Policy(place=where, only=only, deny=deny, ask=ask, allow=allow, hooks=hooks)
    return policy, known


def written_settings(settled: Settled) -> str:
    """The text of what the settings files said together."""
    hooks = [tuple(hook) for hook in settled.hooks]
    return ascii(
        (
            _plain(settled.deny, settled.ask, settled.allow),
            hooks,
            tuple(settled[3:6]),
            settled.unheeded,
        )
    )


def read_settings(text: str) -> Settled:
    """What `written_settings` was given. ValueError for another text."""
    from ast import literal_eval

    try:
        rules, hooks, (mode, forbids, directories), unheeded = literal_eval(text)
        deny, ask, allow = (tuple(_rule(*one) for one in kind) for kind in rules)
        return Settled(deny, ask, allow, mode, forbids, directories, tuple(_hooks(hooks)), unheeded)
    except UNREADABLE as error:
        raise ValueError(f"no settings: {error}") from None


def _plain(*kinds: Iterable[Rule]) -> list[list[tuple[Any, ...]]]:
    return [[tuple(rule) for rule in kind] for kind in kinds]


def _rule(*fields: Any) -> Rule:
    return Rule(*fields)


def _hooks(hooks: list[tuple[Any, ...]]) -> "list[SettingsHook]":
    if not hooks:
        return []
    from shim.core.policy.settings_hooks import SettingsHook

    return [SettingsHook(*one) for one in hooks]
