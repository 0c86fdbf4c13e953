"""Resolves relative paths in a command line, so that the command line can be used in another
folder.
"""

import posixpath

import orjson

from shim.core.claude.argv.flags import Invocation
from shim.core.policy.paths import resolve_rule_path
from shim.core.policy.policy import PermissionRule, parse_permission_rule
from shim.core.reading.json_text import dump_json
from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import as_dict

PATH_FIELDS = ("system_prompt_file", "append_system_prompt_file", "shim_config", "shim_record")
PATH_FLAGS = ("--debug-file", "--plugin-dir", "--project-config-root")
MANAGED_SETTINGS_FLAG = "--managed-settings"


def resolve_invocation_paths(
    invocation: Invocation, source_folder: str, target_folder: str
) -> Invocation:
    """Resolve an invocation's paths against `source_folder`, so that the invocation can be used in
    `target_folder`.

    Paths inside settings files are not changed.
    """
    if source_folder == target_folder:
        return invocation
    resolver = _PathResolver(source_folder)
    settings = invocation.settings
    flags: dict[str, Any] = {
        name: resolver.resolve_path(path)
        for name in PATH_FIELDS
        if (path := getattr(invocation, name))
    }
    if settings and is_json(settings):
        flags["settings"] = resolver.resolve_settings(settings)
    elif settings:
        flags["settings"] = resolver.resolve_path(settings)
    return invocation._replace(
        **flags,
        add_dirs=tuple(map(resolver.resolve_directory, invocation.add_dirs)),
        allowed_tools=tuple(map(resolver.resolve_rule, invocation.allowed_tools)),
        disallowed_tools=tuple(map(resolver.resolve_rule, invocation.disallowed_tools)),
        mcp_config=tuple(
            config if is_json(config) else resolver.resolve_path(config)
            for config in invocation.mcp_config
        ),
        other_flags=tuple(
            (name, resolver.resolve_flag_value(name, value))
            for name, value in invocation.other_flags
        ),
    )


def resolve_rule_paths(
    rules: tuple[PermissionRule, ...], source_folder: str, target_folder: str
) -> tuple[PermissionRule, ...]:
    """Resolve the paths in tool rules against `source_folder`, so that the rules can be used in
    `target_folder`.

    Only rules from flags change. A rule in a folder's settings file applies to that folder.
    """
    if source_folder == target_folder:
        return rules
    return tuple(
        resolve_rule_path(rule, source_folder) if rule.source.startswith("--") else rule
        for rule in rules
    )


class _PathResolver(NamedTuple):
    folder: str

    def resolve_path(self, path: str) -> str:
        if path:
            return posixpath.join(self.folder, path)
        return path

    def resolve_directory(self, path: str) -> str:
        if path[:1] in ("~", "-"):
            return path
        return self.resolve_path(path)

    def resolve_rule(self, text: str) -> str:
        rule = parse_permission_rule(text)
        resolved = resolve_rule_path(rule, self.folder)
        if resolved == rule:
            return text
        return str(resolved)

    def resolve_flag_value(self, name: str, value: str | None) -> str | None:
        if not value:
            return value
        if name in PATH_FLAGS:
            return self.resolve_path(value)
        if name == MANAGED_SETTINGS_FLAG and is_json(value):
            return self.resolve_settings(value)
        return value

    def resolve_settings(self, settings_json: str) -> str:
        """Return JSON settings with resolved paths. If no path changes, the text is returned
        unchanged.
        """
        settings = orjson.loads(settings_json)
        permissions = as_dict(settings).get("permissions")
        if not isinstance(permissions, dict):
            return settings_json
        resolved = {
            **permissions,
            **{key: self._resolve_entries(key, permissions[key]) for key in permissions},
        }
        if resolved == permissions:
            return settings_json
        return dump_json({**settings, "permissions": resolved}).decode()

    def _resolve_entries(self, key: str, value: object) -> object:
        resolve = {
            "additionalDirectories": self.resolve_directory,
            **dict.fromkeys(("allow", "ask", "deny"), self.resolve_rule),
        }.get(key)
        entries = value
        if isinstance(value, str):
            entries = [value]
        if resolve is None or not isinstance(entries, list):
            return value
        resolved = [resolve(entry) if isinstance(entry, str) else entry for entry in entries]
        if resolved == entries:
            return value
        return resolved


def is_json(text: str) -> bool:
    """Return whether a flag's value is JSON, not a file name."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True
