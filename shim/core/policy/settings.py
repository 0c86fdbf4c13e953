"""Merges the permissions in Claude's settings files.

Restrictions apply no matter which file sets them. Allow rules apply only if they are in the user's
own files, because a cloned repository must not choose which programs run.
"""

from collections.abc import Iterable, Mapping, Sequence

from shim.core.policy import HOOK_EVENTS, PRE_TOOL_EVENT
from shim.core.policy.policy import PermissionRule, parse_permission_rule
from shim.core.reading.typed import TYPE_CHECKING, Any, NamedTuple
from shim.core.reading.values import as_dict

if TYPE_CHECKING:
    from shim.core.policy.settings_hooks import SettingsHook

# The permission modes, ordered from the most restrictive to the least restrictive.
MODES_STRICTEST_FIRST = ("plan", "dontAsk", "default", "auto", "acceptEdits", "bypassPermissions")
# Restricting settings keys that only the real claude can apply.
UNSUPPORTED_KEYS = (
    *("sandbox", "strictPluginOnlyCustomization", "allowManagedPermissionRulesOnly"),
    *("allowedMcpServers", "deniedMcpServers", "allowManagedMcpServersOnly"),
)
COMMAND_SHELL_KEY = "disableSkillShellExecution"


def rank_permission_mode(mode: str) -> int:
    """Return the rank of a permission mode. A higher rank is less restrictive, and an unknown mode
    has the highest rank.
    """
    if mode in MODES_STRICTEST_FIRST:
        return MODES_STRICTEST_FIRST.index(mode)
    return len(MODES_STRICTEST_FIRST)


class SettingsSource(NamedTuple):
    """One settings file."""

    name: str  # the file's path, or "--settings"; used in messages
    content: Mapping[str, Any]
    base: str = ""  # the folder for paths that begin with one slash; "" for the working directory
    can_allow: bool = True  # the file belongs to the user, so its allow rules apply
    # The file's hooks may run, because the file belongs to the user, or the user trusts the working
    # directory.
    is_trusted: bool = True
    is_managed: bool = False  # the file has the machine's managed settings


MAX_STYLE_CHARS = 200  # the limit for an output style's name, which every `init` line contains


class ClaudeSettings(NamedTuple):
    """The merged settings of all settings files."""

    deny: tuple[PermissionRule, ...] = ()
    ask: tuple[PermissionRule, ...] = ()
    allow: tuple[PermissionRule, ...] = ()
    mode: str | None = None
    bypass_forbidden_by: str = ""  # the settings file that forbids bypassPermissions
    directories: tuple[str, ...] = ()  # working directories besides the current one
    hooks: "tuple[SettingsHook, ...]" = ()
    # Restrictions that the shim cannot apply. The key is "KEY in FILE", and the value is JSON.
    unsupported_keys: Mapping[str, str] = {}
    output_style: str = ""
    forbids_command_shell: bool = False  # the shell code in commands and skills must not run

    @property
    def tool_call_hooks(self) -> "tuple[SettingsHook, ...]":
        """The hooks that run before a tool call and can deny it."""
        return tuple(hook for hook in self.hooks if hook.event == PRE_TOOL_EVENT)

    @property
    def event_hooks(self) -> "tuple[SettingsHook, ...]":
        """The hooks for other events, without those that the shim cannot run."""
        return tuple(
            hook for hook in self.hooks if hook.event != PRE_TOOL_EVENT and not hook.refusal
        )

    @property
    def refused_event_hooks(self) -> "tuple[SettingsHook, ...]":
        """The hooks for other events that the shim cannot run."""
        return tuple(hook for hook in self.hooks if hook.event != PRE_TOOL_EVENT and hook.refusal)


def merge_settings(sources: Sequence[SettingsSource]) -> ClaudeSettings:
    """Merge the permissions of all settings files. For a setting with a single value, the first
    file that sets it takes precedence.
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
        hooks=tuple(hook for source in hook_sources for hook in _list_hooks(source)),
        unsupported_keys={
            f"{key} in {source.name}": value
            for source in sources
            for key, value in _find_unsupported_keys(source).items()
        },
        output_style=_find_output_style(sources),
        forbids_command_shell=any(
            source.content.get(COMMAND_SHELL_KEY) is True for source in sources
        ),
    )


def _find_output_style(sources: Iterable[SettingsSource]) -> str:
    """Return the output style from the first file that sets one, or ""."""
    styles = (source.content.get("outputStyle") for source in sources)
    return next((style[:MAX_STYLE_CHARS] for style in styles if isinstance(style, str)), "")


def _choose_mode(sources: Iterable[SettingsSource]) -> str | None:
    """Return the permission mode from the first file that sets one. A file that does not belong to
    the user can only select a more restrictive mode.
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
    """Return whether the hooks in a settings file may run.

    Managed settings can disable all hooks, or all hooks that are not in managed settings. The
    user's own files can disable only hooks that are not in managed settings.
    """
    if not source.is_managed and any(
        settings_source.content.get("allowManagedHooksOnly") is True
        for settings_source in sources
        if settings_source.is_managed
    ):
        return False
    disabling_sources = [
        settings_source
        for settings_source in sources
        if settings_source.can_allow and settings_source.content.get("disableAllHooks") is True
    ]
    if source.is_managed:
        return not any(settings_source.is_managed for settings_source in disabling_sources)
    return not disabling_sources


def _list_hooks(source: SettingsSource) -> "list[SettingsHook]":
    groups_by_event = _get_hooks(source)
    if not groups_by_event:
        return []
    from shim.core.policy.settings_hooks import parse_settings_hooks

    return [
        hook
        for event in HOOK_EVENTS
        for hook in parse_settings_hooks(
            groups_by_event.get(event), source.name, is_trusted=source.is_trusted, event=event
        )
    ]


def _get_hooks(source: SettingsSource) -> Mapping[str, Any]:
    return as_dict(source.content.get("hooks"))


def _find_unsupported_keys(source: SettingsSource) -> dict[str, str]:
    """Return the restricting settings keys that the shim cannot apply, with their values as JSON."""
    values = {
        key: source.content[key]
        for key in UNSUPPORTED_KEYS
        if _is_requested(key, source.content.get(key))
    }
    if not values:
        return {}
    import orjson

    return {
        key: orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
        for key, value in values.items()
    }


def _is_requested(key: str, value: object) -> bool:
    """Return whether the value of a settings key restricts anything. An object with `enabled:
    false` restricts nothing. An empty list of allowed items restricts everything.
    """
    if isinstance(value, dict):
        if not value:
            return False
        return value.get("enabled") is not False
    if bool(value):
        return True
    if value != []:
        return False
    return key.startswith("allowed")


def _as_texts(value: object) -> list[str]:
    values = value
    if isinstance(value, str):
        values = [value]
    if isinstance(values, list):
        return [text for text in values if isinstance(text, str) and text]
    return []
