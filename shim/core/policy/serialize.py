"""Serializes a policy and settings as text for a separate process of the shim: a hook that the
vendor runs, or a frontend that joins a session.

The text is a Python literal in ASCII. No import is needed to write it, and `ast` can parse it.
"""

from collections.abc import Callable, Iterable

from shim.core.policy.policy import PermissionRule, Policy, Workspace
from shim.core.policy.settings import ClaudeSettings
from shim.core.reading.typed import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from shim.core.policy.settings_hooks import SettingsHook

# the exceptions that parsing raises for a text that the shim did not write
PARSE_ERRORS = (SyntaxError, TypeError, RecursionError, MemoryError)


class PolicyContext(NamedTuple):
    """The data that a hook needs in addition to the policy."""

    mode: str
    session_id: str = ""  # the shim's session id, if the vendor has a different one
    transcript_path: str = ""  # a path in the folder of the session's transcripts
    mode_file: str = ""  # a file with the permission mode, if the mode can change during a call
    # Claude's names for the tools about which the vendor always asks, separated by commas
    prompted_tools: str = ""


def serialize_policy(policy: Policy, context: PolicyContext) -> str:
    """Return a policy and its context as text."""
    workspace = policy.workspace
    tool_names = None
    if policy.only_tools is not None:
        tool_names = sorted(policy.only_tools)
    rules = _to_tuples(policy.deny, policy.ask, policy.allow)
    hooks = [tuple(hook) for hook in policy.hooks]
    return ascii(
        (
            tuple(context),
            tool_names,
            rules,
            (workspace.cwd, workspace.user_home, tuple(workspace.directories)),
            hooks,
        )
    )


def parse_policy(text: str, resolve_links: Callable[[str], str]) -> tuple[Policy, PolicyContext]:
    """Parse text written by `serialize_policy`. Raise ValueError for any other text."""
    from ast import literal_eval

    try:
        context_fields, tool_names, rules, workspace_fields, hooks = literal_eval(text)
        context = PolicyContext(*map(str, context_fields))
        deny, ask, allow = (
            [_build_rule(*fields) for fields in rule_fields] for rule_fields in rules
        )
        cwd, user_home, directories = workspace_fields
        hooks = _build_hooks(hooks)
    except PARSE_ERRORS as error:
        raise ValueError(f"invalid policy: {error}") from None
    workspace = Workspace(cwd, user_home, directories, resolve_links)
    policy = Policy(
        workspace=workspace, only_tools=tool_names, deny=deny, ask=ask, allow=allow, hooks=hooks
    )
    return policy, context


def serialize_settings(settings: ClaudeSettings) -> str:
    """Return merged settings as text."""
    hooks = [tuple(hook) for hook in settings.hooks]
    return ascii(
        (
            _to_tuples(settings.deny, settings.ask, settings.allow),
            hooks,
            tuple(settings[3:6]),
            dict(settings.unsupported_keys),
        )
    )


def parse_settings(text: str) -> ClaudeSettings:
    """Parse text written by `serialize_settings`. Raise ValueError for any other text."""
    from ast import literal_eval

    try:
        rules, hooks, (mode, bypass_forbidden_by, directories), unsupported_keys = literal_eval(
            text
        )
        deny, ask, allow = (
            tuple(_build_rule(*fields) for fields in rule_fields) for rule_fields in rules
        )
        return ClaudeSettings(
            deny,
            ask,
            allow,
            mode,
            bypass_forbidden_by,
            directories,
            tuple(_build_hooks(hooks)),
            # Older versions of the shim wrote the keys without values.
            unsupported_keys
            if isinstance(unsupported_keys, dict)
            else dict.fromkeys(unsupported_keys, ""),
        )
    except PARSE_ERRORS as error:
        raise ValueError(f"invalid settings: {error}") from None


def _to_tuples(*rule_lists: Iterable[PermissionRule]) -> list[list[tuple[Any, ...]]]:
    return [[tuple(rule) for rule in rules] for rules in rule_lists]


def _build_rule(*fields: Any) -> PermissionRule:
    return PermissionRule(*fields)


def _build_hooks(hooks: list[tuple[Any, ...]]) -> "list[SettingsHook]":
    if not hooks:
        return []
    from shim.core.policy.settings_hooks import SettingsHook

    return [SettingsHook(*fields) for fields in hooks]
