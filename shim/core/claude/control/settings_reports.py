"""Builds the responses about Claude's settings and the permission rules (contract 6.1)."""

from collections.abc import Iterable, Mapping

from shim.core.claude.session_state import SessionState
from shim.core.policy.policy import ANSWER_SOURCE, FLAGS_SOURCE, PermissionRule
from shim.core.policy.settings import SettingsSource
from shim.core.reading.typed import Any
from shim.core.reading.values import as_dict, as_list

# The real claude's names for the settings sources, from the lowest precedence to the highest.
USER, PROJECT, LOCAL = "userSettings", "projectSettings", "localSettings"
FLAG, MANAGED = "flagSettings", "policySettings"
SOURCE_ORDER = (USER, PROJECT, LOCAL, FLAG, MANAGED)
SAVED_SOURCES = (USER, PROJECT, LOCAL)
SESSION_SOURCE, ARGUMENT_SOURCE = "session", "cliArg"
LOCAL_FILE_SUFFIX = ".local.json"


def build_settings_report(state: SessionState, sources: Iterable[SettingsSource]) -> dict[str, Any]:
    """Return the settings of each of Claude's settings files, and their merged values. The shim
    applies only some of them.
    """
    settings_by_source: dict[str, dict[str, Any]] = {}
    for source in reversed(list(sources)):
        settings = settings_by_source.setdefault(name_settings_source(source), {})
        settings |= _merge_settings(settings, source.content)
    if state.flag_settings:
        settings = settings_by_source.setdefault(FLAG, {})
        settings |= state.flag_settings
    names = [name for name in SOURCE_ORDER if name in settings_by_source]
    effective: dict[str, Any] = {}
    for name in names:
        effective = _merge_settings(effective, settings_by_source[name])
    return {
        "effective": effective,
        "sources": [{"source": name, "settings": settings_by_source[name]} for name in names],
        "applied": {"model": state.resolve_model_name(), "effort": state.effort},
    }


def build_rule_report(state: SessionState, sources: Iterable[SettingsSource]) -> dict[str, Any]:
    """Return the permission rules that are in force, each with its source."""
    source_names = {source.name: name_settings_source(source) for source in sources}
    rules = []
    directories: list[dict[str, str]] = []
    policy = state.policy
    if policy is not None:
        for behavior, group in (
            ("ask", policy.ask),
            ("deny", policy.deny),
            ("allow", policy.allow),
        ):
            rules += [_describe_rule(behavior, rule, source_names) for rule in group]
        directories = [
            {"path": path, "source": ARGUMENT_SOURCE} for path in policy.workspace.directories
        ]
    return {
        "state": {
            "rules": rules,
            "workspaceDirectories": directories,
            "originalCwd": state.options.cwd,
            "managedOnly": False,
        }
    }


def name_settings_source(source: SettingsSource) -> str:
    """Return the real claude's name of a settings source."""
    if source.is_managed:
        return MANAGED
    if not source.base:
        return FLAG
    if source.name.endswith(LOCAL_FILE_SUFFIX):
        return LOCAL
    if source.can_allow:
        return USER
    return PROJECT


def _describe_rule(
    behavior: str, rule: PermissionRule, source_names: Mapping[str, str]
) -> dict[str, str]:
    source = source_names.get(rule.source, ARGUMENT_SOURCE)
    if rule.source == ANSWER_SOURCE:
        source = SESSION_SOURCE
    elif rule.source == FLAGS_SOURCE:
        source = FLAG
    editability = "readonly"
    if source in SAVED_SOURCES:
        editability = "persistent"
    elif source in (SESSION_SOURCE, ARGUMENT_SOURCE):
        editability = "session"
    return {
        "behavior": behavior,
        "source": source,
        "rule": str(rule),
        "editability": editability,
    }


def _merge_settings(lower: Mapping[str, Any], higher: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in which the higher source takes precedence. Objects are merged, and lists
    are joined.
    """
    merged = dict(lower)
    for key, value in higher.items():
        if isinstance(value, dict):
            merged[key] = _merge_settings(as_dict(merged.get(key)), value)
        elif isinstance(value, list):
            older = as_list(merged.get(key))
            merged[key] = [*older, *(item for item in value if item not in older)]
        else:
            merged[key] = value
    return merged
