"""A policy, and what it is made of, as a text for another process of ours: a hook of a vendor, a
frontend that joins.

The text is a Python literal of ASCII characters. `ast` reads it there, and nothing has to be
imported to write it here.
"""

from collections.abc import Callable, Iterable

from shim.core.policy.policy import PermissionRule, Policy, Workspace
from shim.core.policy.settings import ClaudeSettings
from shim.core.reading.typed import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from shim.core.policy.settings_hooks import SettingsHook

# what a text leads to that is none of ours
PARSE_ERRORS = (SyntaxError, TypeError, RecursionError, MemoryError)


class PolicyContext(NamedTuple):
    """What is told beside a policy.

    mode             the permission mode
    session_id       our id of the session, where the vendor's own is another one
    transcript_path  a path in the folder of its history
    mode_file        a file with the mode, where it may change while a call runs; "" where it may
                     not
    prompted_tools   the tools about which the vendor asks all the same, in Claude's words, with
                     commas; "": it asks nobody
    """

    mode: str
    session_id: str = ""
    transcript_path: str = ""
    mode_file: str = ""
    prompted_tools: str = ""


def serialize_policy(policy: Policy, context: PolicyContext) -> str:
    """The text of a policy and of what is told beside it."""
    workspace = policy.workspace
    tool_names = None if policy.only_tools is None else sorted(policy.only_tools)
    rules, hooks = (
        _to_tuples(policy.deny, policy.ask, policy.allow),
        [tuple(hook) for hook in policy.hooks],
    )
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
    """What `serialize_policy` was given. ValueError for another text. `resolve_links` resolves the
    links of a path.
    """
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
        raise ValueError(f"no policy: {error}") from None
    workspace = Workspace(cwd, user_home, directories, resolve_links)
    policy = Policy(
        workspace=workspace, only_tools=tool_names, deny=deny, ask=ask, allow=allow, hooks=hooks
    )
    return policy, context


def serialize_settings(settings: ClaudeSettings) -> str:
    """The text of what the settings files said together."""
    hooks = [tuple(hook) for hook in settings.hooks]
    return ascii(
        (
            _to_tuples(settings.deny, settings.ask, settings.allow),
            hooks,
            tuple(settings[3:6]),
            settings.unsupported_keys,
        )
    )


def parse_settings(text: str) -> ClaudeSettings:
    """What `serialize_settings` was given. ValueError for another text."""
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
            unsupported_keys,
        )
    except PARSE_ERRORS as error:
        raise ValueError(f"no settings: {error}") from None


def _to_tuples(*rule_lists: Iterable[PermissionRule]) -> list[list[tuple[Any, ...]]]:
    return [[tuple(rule) for rule in rules] for rules in rule_lists]


def _build_rule(*fields: Any) -> PermissionRule:
    return PermissionRule(*fields)


def _build_hooks(hooks: list[tuple[Any, ...]]) -> "list[SettingsHook]":
    if not hooks:
        return []
    from shim.core.policy.settings_hooks import SettingsHook

    return [SettingsHook(*fields) for fields in hooks]
