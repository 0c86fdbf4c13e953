"""A command line that means in another folder what it meant where it was said."""

import posixpath

import orjson

from shim.core.claude.argv.invocation import Invocation
from shim.core.policy.paths import resolve_rule_path
from shim.core.policy.rules import Rule, parse_rule
from shim.core.reading.json_text import dump_json
from shim.core.reading.typed import Any, NamedTuple

PATH_FIELDS = ("system_prompt_file", "append_system_prompt_file", "shim_config", "shim_record")
PATH_FLAGS = ("--debug-file", "--plugin-dir", "--project-config-root")
MANAGED_SETTINGS_FLAG = "--managed-settings"


def resolve_invocation_paths(invocation: Invocation, folder: str, cwd: str) -> Invocation:
    """What was said in `folder`, for a conversation in `cwd`. What stands inside a file of settings
    stays as it is.
    """
    if folder == cwd:
        return invocation
    root, rules, files = _PathResolver(folder), invocation.rules, invocation.configuration
    flags: dict[str, Any] = {
        name: root.resolve_path(said) for name in PATH_FIELDS if (said := invocation.flag(name))
    }
    if files.settings:
        flags["settings"] = (
            root.resolve_settings(files.settings)
            if is_json(files.settings)
            else root.resolve_path(files.settings)
        )
    return invocation.with_flags(
        **flags,
        add_dirs=tuple(map(root.resolve_directory, invocation.add_dirs)),
        allowed_tools=tuple(map(root.resolve_rule, rules.allowed_tools)),
        disallowed_tools=tuple(map(root.resolve_rule, rules.disallowed_tools)),
        mcp_config=tuple(
            said if is_json(said) else root.resolve_path(said) for said in files.mcp_config
        ),
        other=tuple(
            (name, value and root.resolve_flag_value(name, value))
            for name, value in invocation.other_flags.other
        ),
    )


def resolve_rule_paths(rules: tuple[Rule, ...], folder: str, cwd: str) -> tuple[Rule, ...]:
    """The same for rules: those of flags. What a file that is found in a folder says is about that
    folder.
    """
    if folder == cwd:
        return rules
    return tuple(
        resolve_rule_path(rule, folder) if rule.source.startswith("--") else rule for rule in rules
    )


class _PathResolver(NamedTuple):
    folder: str

    def resolve_path(self, said: str) -> str:
        return posixpath.join(self.folder, said) if said else said

    def resolve_directory(self, said: str) -> str:
        return said if said[:1] in ("~", "-") else self.resolve_path(said)

    def resolve_rule(self, said: str) -> str:
        read = parse_rule(said)
        found = resolve_rule_path(read, self.folder)
        return said if found == read else str(found)

    def resolve_flag_value(self, name: str, said: str) -> str:
        if name in PATH_FLAGS:
            return self.resolve_path(said)
        return (
            self.resolve_settings(said) if name == MANAGED_SETTINGS_FLAG and is_json(said) else said
        )

    def resolve_settings(self, said: str) -> str:
        """Settings, in the words that came if nothing of them is about a folder."""
        given = orjson.loads(said)
        permissions = given.get("permissions") if isinstance(given, dict) else None
        if not isinstance(permissions, dict):
            return said
        whole = {
            **permissions,
            **{key: self._resolve_entries(key, permissions[key]) for key in permissions},
        }
        return said if whole == permissions else dump_json({**given, "permissions": whole}).decode()

    def _resolve_entries(self, key: str, said: object) -> object:
        roots = {
            "additionalDirectories": self.resolve_directory,
            **dict.fromkeys(("allow", "ask", "deny"), self.resolve_rule),
        }.get(key)
        found = [said] if isinstance(said, str) else said
        if roots is None or not isinstance(found, list):
            return said
        whole = [roots(one) if isinstance(one, str) else one for one in found]
        return said if whole == found else whole


def is_json(text: str) -> bool:
    """Whether a flag says JSON itself, and not the name of a file."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True
