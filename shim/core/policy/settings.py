"""Claude's settings files, as far as they give or take permissions: what each key means, and which
file may widen.

What narrows binds from every file. What widens counts from the user's files only: a repository that
somebody cloned must not choose what runs (permission-parity page, "Rules to take from the real
one").
"""

from collections.abc import Iterable, Mapping, Sequence

from shim.core.policy.policy import PermissionRule, parse_permission_rule
from shim.core.reading.typed import TYPE_CHECKING, Any, NamedTuple
from shim.core.reading.values import as_dict

if TYPE_CHECKING:
    from shim.core.policy.settings_hooks import SettingsHook

# From the mode that lets least run to the one that lets most.
MODES_STRICTEST_FIRST = ("plan", "dontAsk", "default", "auto", "acceptEdits", "bypassPermissions")
PRE_TOOL_EVENT = "PreToolUse"
# Keys that restrict, which only the real claude can honour.
UNSUPPORTED_KEYS = (
    *("sandbox", "strictPluginOnlyCustomization", "allowManagedPermissionRulesOnly"),
    *("allowedMcpServers", "deniedMcpServers", "allowManagedMcpServersOnly"),
)
# that may block something, and are not run here
UNSUPPORTED_HOOK_EVENTS = ("UserPromptSubmit", "PermissionRequest")


def rank_permission_mode(mode: str) -> int:
    """How much a mode lets run; one that nobody knows is taken for the widest."""
    return (
        MODES_STRICTEST_FIRST.index(mode)
        if mode in MODES_STRICTEST_FIRST
        else len(MODES_STRICTEST_FIRST)
    )


class SettingsSource(NamedTuple):
    """One settings file.

    name        what a person calls it: its path, or "--settings"
    content     its JSON object
    base        the folder that its paths with one slash begin in; "" for the working directory
    can_allow   it is the user's own, so that it may also allow
    is_trusted  its hooks may be run: it is the user's own, or the user trusts the working directory
    is_managed  it is the machine's
    """

    name: str
    content: Mapping[str, Any]
    base: str = ""
    can_allow: bool = True
    is_trusted: bool = True
    is_managed: bool = False


MAX_STYLE_CHARS = 200  # every `init` line repeats the name of the output style


class ClaudeSettings(NamedTuple):
    """What the settings files say together.

    mode                 the mode that the files ask for; None for none
    bypass_forbidden_by  the name of a file that forbids bypassPermissions; "" for none
    directories          folders that a turn may work in besides its own
    hooks                the hooks that are to run before a call
    unsupported_keys     keys that restrict and have no effect here, each with its file
    output_style         the name of the output style in the files, or ""
    """

    deny: tuple[PermissionRule, ...] = ()
    ask: tuple[PermissionRule, ...] = ()
    allow: tuple[PermissionRule, ...] = ()
    mode: str | None = None
    bypass_forbidden_by: str = ""
    directories: tuple[str, ...] = ()
    hooks: "tuple[SettingsHook, ...]" = ()
    unsupported_keys: tuple[str, ...] = ()
    output_style: str = ""


def merge_settings(sources: Sequence[SettingsSource]) -> ClaudeSettings:
    """The permissions of all settings files; the first source goes before the later ones where one
    value is wanted.
    """
    rules: dict[str, list[PermissionRule]] = {"deny": [], "ask": [], "allow": []}
    directories: list[str] = []
    for source in sources:
        permissions = as_dict(source.content.get("permissions"))
        for behavior, behavior_rules in rules.items():
            if behavior != "allow" or source.can_allow:
                behavior_rules += [
                    parse_permission_rule(text, source.base, source.name)
                    for text in _as_texts(permissions.get(behavior))
                ]
        if source.can_allow:
            directories += _as_texts(permissions.get("additionalDirectories"))
    hook_sources = [source for source in sources if _allows_hooks(source, sources)]
    return ClaudeSettings(
        deny=tuple(rules["deny"]),
        ask=tuple(rules["ask"]),
        allow=tuple(rules["allow"]),
        mode=_choose_mode(sources),
        bypass_forbidden_by=next(
            (source.name for source in sources if _is_bypass_forbidden(source)), ""
        ),
        directories=tuple(directories),
        hooks=tuple(hook for source in hook_sources for hook in _list_pre_tool_hooks(source)),
        unsupported_keys=tuple(
            f"{key} in {source.name}"
            for source in sources
            for key in _list_unsupported_keys(source, checks_hooks=source in hook_sources)
        ),
        output_style=_find_output_style(sources),
    )


def _find_output_style(sources: Iterable[SettingsSource]) -> str:
    """Return the output style of the first file that names one, or ""."""
    styles = (source.content.get("outputStyle") for source in sources)
    return next((style[:MAX_STYLE_CHARS] for style in styles if isinstance(style, str)), "")


def _choose_mode(sources: Iterable[SettingsSource]) -> str | None:
    """The mode of the first file that names one. A file that may not widen counts only for a
    narrower mode.
    """
    raw_modes = [
        (source, as_dict(source.content.get("permissions")).get("defaultMode"))
        for source in sources
    ]
    source_modes = [(source, "default" if mode == "manual" else mode) for source, mode in raw_modes]
    user_mode = next(
        (
            mode
            for source, mode in source_modes
            if source.can_allow and mode in MODES_STRICTEST_FIRST[:-1]
        ),
        None,
    )
    limit = MODES_STRICTEST_FIRST.index(user_mode or "default")
    for source, mode in source_modes:
        if mode in MODES_STRICTEST_FIRST[:limit] and not source.can_allow:
            return str(mode)
    return user_mode


def _is_bypass_forbidden(source: SettingsSource) -> bool:
    return (
        as_dict(source.content.get("permissions")).get("disableBypassPermissionsMode") == "disable"
    )


def _allows_hooks(source: SettingsSource, sources: Iterable[SettingsSource]) -> bool:
    """Whether a file's hooks count. The machine's files switch off all of them, the user's all but
    the machine's.
    """
    if (
        any(
            settings_source.is_managed
            and settings_source.content.get("allowManagedHooksOnly") is True
            for settings_source in sources
        )
        and not source.is_managed
    ):
        return False
    disabling_sources = [
        settings_source
        for settings_source in sources
        if settings_source.can_allow and settings_source.content.get("disableAllHooks") is True
    ]
    return not any(
        settings_source.is_managed or not source.is_managed for settings_source in disabling_sources
    )


def _list_pre_tool_hooks(source: SettingsSource) -> "list[SettingsHook]":
    groups = _get_hooks(source).get(PRE_TOOL_EVENT)
    if not groups:
        return []
    from shim.core.policy.settings_hooks import parse_settings_hooks

    return parse_settings_hooks(groups, source.name, is_trusted=source.is_trusted)


def _get_hooks(source: SettingsSource) -> Mapping[str, Any]:
    return as_dict(source.content.get("hooks"))


def _list_unsupported_keys(source: SettingsSource, *, checks_hooks: bool) -> list[str]:
    """The keys of a file that restrict, and have no effect here."""
    keys = [key for key in UNSUPPORTED_KEYS if _is_requested(key, source.content.get(key))]
    events = _get_hooks(source) if checks_hooks else {}
    return keys + [f"hooks.{event}" for event in UNSUPPORTED_HOOK_EVENTS if events.get(event)]


def _is_requested(key: str, value: object) -> bool:
    """Whether a key asks for something: a table may be switched off, and an empty list may allow
    nothing.
    """
    if isinstance(value, dict):
        return bool(value) and value.get("enabled") is not False
    return bool(value) or (value == [] and key.startswith("allowed"))


def _as_texts(value: object) -> list[str]:
    values = [value] if isinstance(value, str) else value
    return (
        [text for text in values if isinstance(text, str) and text]
        if isinstance(values, list)
        else []
    )
