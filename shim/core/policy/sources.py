"""Claude's settings files, as far as they give or take permissions: what each key means, and which
file may widen.

What narrows binds from every file. What widens counts from the user's files only: a repository that
somebody cloned must not choose what runs (permission-parity page, "Rules to take from the real
one").
"""

from collections.abc import Iterable, Mapping, Sequence

from shim.core.policy.rules import Rule, parse_rule
from shim.core.reading.typed import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from shim.core.policy.settings_hooks import SettingsHook

# From the mode that lets least run to the one that lets most.
NARROWEST_FIRST = ("plan", "dontAsk", "default", "auto", "acceptEdits", "bypassPermissions")
BEFORE_A_CALL = "PreToolUse"
# Keys that restrict, which only the real claude can honour.
UNHEEDED = (
    *("sandbox", "strictPluginOnlyCustomization", "allowManagedPermissionRulesOnly"),
    *("allowedMcpServers", "deniedMcpServers", "allowManagedMcpServersOnly"),
)
# that may block something, and are not run here
OTHER_HOOKS = ("UserPromptSubmit", "PermissionRequest")


def rank(mode: str) -> int:
    """How much a mode lets run; one that nobody knows is taken for the widest."""
    return NARROWEST_FIRST.index(mode) if mode in NARROWEST_FIRST else len(NARROWEST_FIRST)


class Source(NamedTuple):
    """One settings file.

    name     what a person calls it: its path, or "--settings"
    given    its JSON object
    base     the folder that its paths with one slash begin in; "" for the working directory
    widens   it is the user's own, so that it may also allow
    trusted  its hooks may be run: it is the user's own, or the user trusts the working directory
    managed  it is the machine's
    """

    name: str
    given: Mapping[str, Any]
    base: str = ""
    widens: bool = True
    trusted: bool = True
    managed: bool = False


MAX_STYLE_CHARS = 200  # every `init` line repeats the name of the output style


class Settled(NamedTuple):
    """What the settings files say together.

    mode         the mode that the files ask for; None for none
    forbids      the name of a file that forbids bypassPermissions; "" for none
    directories  folders that a turn may work in besides its own
    hooks        the hooks that are to run before a call
    unheeded     keys that restrict and have no effect here, each with its file
    output_style the name of the output style in the files, or ""
    """

    deny: tuple[Rule, ...] = ()
    ask: tuple[Rule, ...] = ()
    allow: tuple[Rule, ...] = ()
    mode: str | None = None
    forbids: str = ""
    directories: tuple[str, ...] = ()
    hooks: "tuple[SettingsHook, ...]" = ()
    unheeded: tuple[str, ...] = ()
    output_style: str = ""


def settle(sources: Sequence[Source]) -> Settled:
    """The permissions of all settings files; the first source goes before the later ones where one
    value is wanted.
    """
    rules: dict[str, list[Rule]] = {"deny": [], "ask": [], "allow": []}
    directories: list[str] = []
    for source in sources:
        permissions = _table(source.given.get("permissions"))
        for kind, found in rules.items():
            if kind != "allow" or source.widens:
                found += [
                    parse_rule(said, source.base, source.name)
                    for said in _texts(permissions.get(kind))
                ]
        if source.widens:
            directories += _texts(permissions.get("additionalDirectories"))
    heard = [source for source in sources if _hears_hooks(source, sources)]
    return Settled(
        deny=tuple(rules["deny"]),
        ask=tuple(rules["ask"]),
        allow=tuple(rules["allow"]),
        mode=_mode(sources),
        forbids=next((source.name for source in sources if _forbids_bypass(source)), ""),
        directories=tuple(directories),
        hooks=tuple(hook for source in heard for hook in _before_calls(source)),
        unheeded=tuple(
            f"{key} in {source.name}"
            for source in sources
            for key in _unheeded(source, hooks=source in heard)
        ),
        output_style=_find_output_style(sources),
    )


def _find_output_style(sources: Iterable[Source]) -> str:
    """Return the output style of the first file that names one, or ""."""
    styles = (source.given.get("outputStyle") for source in sources)
    return next((style[:MAX_STYLE_CHARS] for style in styles if isinstance(style, str)), "")


def _mode(sources: Iterable[Source]) -> str | None:
    """The mode of the first file that names one. A file that may not widen counts only for a
    narrower mode.
    """
    named = [
        (source, _table(source.given.get("permissions")).get("defaultMode")) for source in sources
    ]
    known = [(source, "default" if mode == "manual" else mode) for source, mode in named]
    own = next(
        (mode for source, mode in known if source.widens and mode in NARROWEST_FIRST[:-1]), None
    )
    limit = NARROWEST_FIRST.index(own or "default")
    for source, mode in known:
        if mode in NARROWEST_FIRST[:limit] and not source.widens:
            return str(mode)
    return own


def _forbids_bypass(source: Source) -> bool:
    return _table(source.given.get("permissions")).get("disableBypassPermissionsMode") == "disable"


def _hears_hooks(source: Source, sources: Iterable[Source]) -> bool:
    """Whether a file's hooks count. The machine's files switch off all of them, the user's all but
    the machine's.
    """
    if (
        any(one.managed and one.given.get("allowManagedHooksOnly") is True for one in sources)
        and not source.managed
    ):
        return False
    disabling = [one for one in sources if one.widens and one.given.get("disableAllHooks") is True]
    return not any(one.managed or not source.managed for one in disabling)


def _before_calls(source: Source) -> "list[SettingsHook]":
    groups = _hooks(source).get(BEFORE_A_CALL)
    if not groups:
        return []
    from shim.core.policy.settings_hooks import parse_hooks

    return parse_hooks(groups, source.name, is_trusted=source.trusted)


def _hooks(source: Source) -> Mapping[str, Any]:
    return _table(source.given.get("hooks"))


def _unheeded(source: Source, *, hooks: bool) -> list[str]:
    """The keys of a file that restrict, and have no effect here."""
    found = [key for key in UNHEEDED if _asks(key, source.given.get(key))]
    events = _hooks(source) if hooks else {}
    return found + [f"hooks.{event}" for event in OTHER_HOOKS if events.get(event)]


def _asks(key: str, value: object) -> bool:
    """Whether a key asks for something: a table may be switched off, and an empty list may allow
    nothing.
    """
    if isinstance(value, dict):
        return bool(value) and value.get("enabled") is not False
    return bool(value) or (value == [] and key.startswith("allowed"))


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: object) -> list[str]:
    found = [value] if isinstance(value, str) else value
    return [one for one in found if isinstance(one, str) and one] if isinstance(found, list) else []
