"""What the flags of a frontend forbid that the session which it joins does not: nobody's narrower
flags are dropped.
"""

from collections.abc import Mapping

from shim.conversation.invocation import resolve_requested_permission_mode
from shim.core.claude.argv.flags import FLAG_BY_FIELD
from shim.core.claude.argv.invocation import Invocation
from shim.core.claude.argv.paths import resolve_invocation_paths, resolve_rule_paths
from shim.core.policy.paths import resolve_rule_path
from shim.core.policy.policy import PermissionRule, parse_permission_rules
from shim.core.policy.settings import MODES_STRICTEST_FIRST, ClaudeSettings, rank_permission_mode
from shim.core.reading.typed import Any, NamedTuple
from shim.process.environment import get_working_directory
from shim.state.claude_settings import DEFAULT_SETTING_SOURCES, load_claude_settings

LIMIT_FIELDS = ("max_turns", "max_budget_usd")  # which end a turn; None is without one
# Fields of flags that a session which lives cannot be given any more, and that forbid no call: a
# word for each.
IGNORED_FIELDS = (
    *("allowed_tools", "add_dirs", "mcp_config", *LIMIT_FIELDS),
    *(
        "max_thinking_tokens",
        "thinking",
        "effort",
        "fallback_model",
        "system_prompt",
        "system_prompt_file",
    ),
    *(
        "append_system_prompt",
        "append_system_prompt_file",
        "skip_permissions",
        "allow_skip_permissions",
    ),
    *("permission_prompts", "shim_record"),
)
# the widest mode of who is forbidden bypassPermissions
WIDEST_MODE_BELOW_BYPASS = MODES_STRICTEST_FIRST[-2]
# the permission prompt tool that asks the frontend, which any session can
STDIO_PROMPT_TOOL = "stdio"
# Flags that leave a session less than it has, or keep less of it: none that lives can be given them
# any more.
REFUSED_FIELDS = (
    "strict_mcp_config",
    "no_session_persistence",
    "resume_session_at",
    "resume_drops_turn",
)
REFUSED_FLAGS = ("--agent", "--bare", "--disable-slash-commands", "--safe-mode", "--task-budget")
SETTINGS_FLAGS = ("--managed-settings",)  # with the other settings


class JoinRestrictions(NamedTuple):
    """What is to hold in the session while the frontend drives it.

    mode           a permission mode that lets less run than that of the session may; "" for none
    model          a model that the session did not begin with; "" for none
    deny           rules, as Claude writes them
    ask            likewise
    sources        where the rules come from, for a sentence
    refusals       what can be honoured by no session that lives, each for a sentence
    ignored_flags  flags that have no effect on it
    """

    mode: str = ""
    model: str = ""
    deny: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    ignored_flags: tuple[str, ...] = ()

    @property
    def has_permission_rules(self) -> bool:
        return bool(self.deny or self.ask)


def load_restrictions_of_joining_frontend(
    frontend: Invocation,
    session: Invocation,
    session_settings: ClaudeSettings,
    session_cwd: str,
    session_mode: str,
    environment: Mapping[str, str],
) -> JoinRestrictions:
    """What our flags, and settings files as they are now, forbid beyond those that a session in the
    folder `session_cwd` began with. FrontendError for a file that cannot be read; a path means what
    it meant in the folder where it was said."""
    frontend_cwd = get_working_directory()
    frontend, session = (
        resolve_invocation_paths(frontend, frontend_cwd, session_cwd),
        resolve_invocation_paths(session, session_cwd, frontend_cwd),
    )
    frontend_settings = _resolve_settings_paths(
        load_claude_settings(frontend, environment, session_cwd), frontend_cwd, session_cwd
    )
    return compute_restrictions_of_joining_frontend(
        frontend,
        frontend_settings,
        session,
        _resolve_settings_paths(session_settings, session_cwd, frontend_cwd),
        session_mode,
    )


def _resolve_settings_paths(
    settings: ClaudeSettings, source_folder: str, target_folder: str
) -> ClaudeSettings:
    deny, ask, allow = (
        resolve_rule_paths(rules, source_folder, target_folder)
        for rules in (settings.deny, settings.ask, settings.allow)
    )
    return settings._replace(deny=deny, ask=ask, allow=allow)


def compute_restrictions_of_joining_frontend(
    frontend: Invocation,
    frontend_settings: ClaudeSettings,
    session: Invocation,
    session_settings: ClaudeSettings,
    session_mode: str,
) -> JoinRestrictions:
    """What `frontend` forbids beyond `session`, with which the session began; `session_mode` is
    what is chosen in it now.
    """
    deny = _subtract_rules(
        _collect_deny_rules(frontend, frontend_settings),
        _collect_deny_rules(session, session_settings),
    )
    ask = _subtract_rules(frontend_settings.ask, session_settings.ask)
    if frontend.allowed_tools:  # who says nothing takes the session as it is
        ask += _subtract_rules(
            _collect_allow_rules(session, session_settings),
            _collect_allow_rules(frontend, frontend_settings),
        )
    passes_mode = frontend.permission_mode is not None or frontend.skip_permissions
    mode = (
        resolve_requested_permission_mode(frontend)
        if passes_mode
        else _find_own_settings_mode(frontend, frontend_settings, session, session_settings)
        or session_mode
    )
    # A plan is said by who wants one, whatever the session is in now; `default` by everybody who
    # chooses nothing.
    is_stricter = rank_permission_mode(mode) < rank_permission_mode(session_mode) or (
        passes_mode and rank_permission_mode(mode) < rank_permission_mode("default")
    )
    ignored_flags = _list_ignored_flags(frontend, session)
    if (
        passes_mode
        and rank_permission_mode(mode) > rank_permission_mode(session_mode)
        and not frontend.skip_permissions
    ):
        ignored_flags += ("--permission-mode",)
    mode_limit = (
        WIDEST_MODE_BELOW_BYPASS
        if frontend_settings.bypass_forbidden_by and not session_settings.bypass_forbidden_by
        else ""
    )
    return JoinRestrictions(
        mode=mode if is_stricter else mode_limit,
        model=frontend.model if frontend.model and frontend.model != session.model else "",
        deny=tuple(map(_format_rule, deny)),
        ask=tuple(map(_format_rule, ask)),
        sources=tuple(dict.fromkeys(rule.source for rule in (*deny, *ask))),
        refusals=tuple(
            _list_refusals(frontend, frontend_settings, session, session_settings, session_mode)
        ),
        ignored_flags=ignored_flags,
    )


def _list_refusals(
    frontend: Invocation,
    frontend_settings: ClaudeSettings,
    session: Invocation,
    session_settings: ClaudeSettings,
    session_mode: str,
) -> list[str]:
    refusals, tools = [], frontend.tools
    if tools is not None and not (session.tools is not None and set(session.tools) <= set(tools)):
        refusals.append("--tools leaves fewer tools")
    refusals += [
        f"{FLAG_BY_FIELD[field].name} ends a turn sooner"
        for field in LIMIT_FIELDS
        if _is_lower_limit(getattr(frontend, field), getattr(session, field))
    ]
    hook_sources = {
        hook.source for hook in frontend_settings.hooks if hook not in session_settings.hooks
    }
    refusals += [f"a hook in {source} judges calls" for source in sorted(hook_sources)]
    if frontend.json_schema is not None and frontend.json_schema != session.json_schema:
        refusals.append("--json-schema asks for another answer")
    if frontend.restricted and not session.restricted:
        refusals.append("--restricted forbids more")
    restricting_flags = [
        FLAG_BY_FIELD[field].name
        for field in REFUSED_FIELDS
        if getattr(frontend, field) and not getattr(session, field)
    ]
    if (
        frontend.strict_mcp_config
        and session.strict_mcp_config
        and set(session.mcp_config) - set(frontend.mcp_config)
    ):
        restricting_flags.append("--strict-mcp-config")
    restricting_flags += [
        name for name in _list_new_flags(frontend, session) if name in REFUSED_FLAGS
    ]
    refusals += [f"{name} leaves it less" for name in restricting_flags]
    refusals += [
        f"{key} restricts it"
        for key in frontend_settings.unsupported_keys
        if key not in session_settings.unsupported_keys
    ]
    if frontend_settings.bypass_forbidden_by and session_mode == MODES_STRICTEST_FIRST[-1]:
        refusals.append(f"{frontend_settings.bypass_forbidden_by} forbids the mode {session_mode}")
    return refusals


def _is_lower_limit(frontend_limit: Any, session_limit: Any) -> bool:
    return frontend_limit is not None and (session_limit is None or frontend_limit < session_limit)


def _collect_deny_rules(
    invocation: Invocation, settings: ClaudeSettings
) -> tuple[PermissionRule, ...]:
    return (
        *parse_permission_rules(invocation.disallowed_tools, source="--disallowedTools"),
        *settings.deny,
    )


def _collect_allow_rules(
    invocation: Invocation, settings: ClaudeSettings
) -> tuple[PermissionRule, ...]:
    return (
        *parse_permission_rules(invocation.allowed_tools, source="--allowedTools"),
        *settings.allow,
    )


def _find_own_settings_mode(
    frontend: Invocation,
    frontend_settings: ClaudeSettings,
    session: Invocation,
    session_settings: ClaudeSettings,
) -> str | None:
    """The mode that settings of the frontend's own ask for; None for the session's own, which may
    have left it.
    """
    has_other_settings = frontend.settings not in (
        None,
        session.settings,
    )
    return (
        frontend_settings.mode
        if has_other_settings or frontend_settings.mode != session_settings.mode
        else None
    )


def _subtract_rules(
    rules: tuple[PermissionRule, ...], existing: tuple[PermissionRule, ...]
) -> tuple[PermissionRule, ...]:
    """The rules that are about something else than the known ones."""
    existing_keys = {(rule.tool, rule.content, rule.base) for rule in existing}
    covered_tools = {rule.tool for rule in existing if rule.content is None}
    return tuple(
        rule
        for rule in rules
        if (rule.tool, rule.content, rule.base) not in existing_keys
        and rule.tool not in covered_tools
    )


def _format_rule(rule: PermissionRule) -> str:
    """A rule as words that mean the same in the session's folder."""
    # relative ones are about the session's folder
    is_absolute = rule.base and (rule.content or "").startswith("/")
    return str(resolve_rule_path(rule, rule.base)) if is_absolute else str(rule)


def _list_ignored_flags(frontend: Invocation, session: Invocation) -> tuple[str, ...]:
    """The flags that would have widened or changed the session, each by its name."""
    names = [
        FLAG_BY_FIELD[field].name
        for field in IGNORED_FIELDS
        if _is_new_value(getattr(frontend, field), getattr(session, field))
    ]
    tools, session_tools = frontend.tools, session.tools
    names += (
        ["--tools"]
        if tools is not None and session_tools is not None and set(tools) > set(session_tools)
        else []
    )
    names += (
        ["--permission-prompt-tool"]
        if frontend.permission_prompt_tool not in (None, STDIO_PROMPT_TOOL)
        else []
    )
    sources = frontend.setting_sources
    names += (
        ["--setting-sources"]
        if sources is not None
        and _parse_setting_sources(frontend) != _parse_setting_sources(session)
        else []
    )
    return (
        *names,
        *(
            name
            for name in _list_new_flags(frontend, session)
            if name not in (*REFUSED_FLAGS, *SETTINGS_FLAGS)
        ),
    )


def _parse_setting_sources(invocation: Invocation) -> set[str]:
    value = invocation.setting_sources
    return {
        name.strip() for name in (DEFAULT_SETTING_SOURCES if value is None else value).split(",")
    } - {""}


def _list_new_flags(frontend: Invocation, session: Invocation) -> list[str]:
    """The flags without a field that the session did not begin with, each once."""
    session_flags = {*session.other_flags, *session.unknown_flags}
    frontend_flags = (*frontend.other_flags, *frontend.unknown_flags)
    return list(
        dict.fromkeys(name for name, value in frontend_flags if (name, value) not in session_flags)
    )


def _is_new_value(value: object, session_value: object) -> bool:
    if isinstance(value, tuple) and isinstance(session_value, tuple):
        return bool(set(value) - set(session_value))
    return value not in (None, "") and value is not False and value != session_value
