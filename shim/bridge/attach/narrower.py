"""What the flags of a frontend forbid that the session which it joins does not: nobody's narrower
flags are dropped.
"""

from collections.abc import Mapping

from shim.conversation.invocation import resolve_mode
from shim.core.claude.argv.invocation import Invocation
from shim.core.claude.argv.rooted import resolve_invocation_paths, resolve_rule_paths
from shim.core.claude.argv.words import format_flag
from shim.core.policy.paths import resolve_rule_path
from shim.core.policy.rules import Rule, parse_rules
from shim.core.policy.sources import MODES_STRICTEST_FIRST, ClaudeSettings, rank_mode
from shim.core.reading.typed import Any, NamedTuple
from shim.process.environment import get_working_directory
from shim.state.claude_settings import DEFAULT_SETTING_SOURCES, load_settings

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
WIDEST_MODE_BELOW_BYPASS = MODES_STRICTEST_FIRST[
    -2
]  # the widest mode of who is forbidden bypassPermissions
STDIO_PROMPT_TOOL = (
    "stdio"  # the permission prompt tool that asks the frontend, which any session can
)
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

    mode      a permission mode that lets less run than that of the session may; "" for none
    model     a model that the session did not begin with; "" for none
    deny      rules, as Claude writes them
    ask       likewise
    sources   where the rules come from, for a sentence
    refused   what can be honoured by no session that lives, each for a sentence
    unheeded  flags that have no effect on it
    """

    mode: str = ""
    model: str = ""
    deny: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    ignored_flags: tuple[str, ...] = ()

    @property
    def has_rules(self) -> bool:
        return bool(self.deny or self.ask)


def load_restrictions(
    asked: Invocation,
    known: Invocation,
    known_settled: ClaudeSettings,
    cwd: str,
    mode: str,
    environment: Mapping[str, str],
) -> JoinRestrictions:
    """What our flags, and settings files as they are now, forbid beyond those that a session in the
    folder `cwd` began with. FrontendError for a file that cannot be read; a path means what it
    meant in the folder where it was said."""
    here = get_working_directory()
    asked, known = (
        resolve_invocation_paths(asked, here, cwd),
        resolve_invocation_paths(known, cwd, here),
    )
    settled = _resolve_settings_paths(load_settings(asked, environment, cwd), here, cwd)
    return compute_restrictions(
        asked, settled, known, _resolve_settings_paths(known_settled, cwd, here), mode
    )


def _resolve_settings_paths(settled: ClaudeSettings, folder: str, cwd: str) -> ClaudeSettings:
    deny, ask, allow = (
        resolve_rule_paths(rules, folder, cwd)
        for rules in (settled.deny, settled.ask, settled.allow)
    )
    return settled._replace(deny=deny, ask=ask, allow=allow)


def compute_restrictions(
    asked: Invocation,
    settled: ClaudeSettings,
    known: Invocation,
    known_settled: ClaudeSettings,
    mode: str,
) -> JoinRestrictions:
    """What `asked` forbids beyond `known`, with which the session began; `mode` is what is chosen
    in it now.
    """
    deny = _subtract_rules(
        _collect_deny_rules(asked, settled), _collect_deny_rules(known, known_settled)
    )
    ask = _subtract_rules(settled.ask, known_settled.ask)
    if asked.rules.allowed_tools:  # who says nothing takes the session as it is
        ask += _subtract_rules(
            _collect_allow_rules(known, known_settled), _collect_allow_rules(asked, settled)
        )
    given = asked.permissions.permission_mode is not None or asked.permissions.skip_permissions
    wanted = (
        resolve_mode(asked)
        if given
        else _find_own_settings_mode(asked, settled, known, known_settled) or mode
    )
    # A plan is said by who wants one, whatever the session is in now; `default` by everybody who
    # chooses nothing.
    less = rank_mode(wanted) < rank_mode(mode) or (
        given and rank_mode(wanted) < rank_mode("default")
    )
    unheeded = _list_ignored_flags(asked, known)
    if given and rank_mode(wanted) > rank_mode(mode) and not asked.permissions.skip_permissions:
        unheeded += ("--permission-mode",)
    limit = (
        WIDEST_MODE_BELOW_BYPASS
        if settled.bypass_forbidden_by and not known_settled.bypass_forbidden_by
        else ""
    )
    return JoinRestrictions(
        mode=wanted if less else limit,
        model=asked.model if asked.model and asked.model != known.model else "",
        deny=tuple(map(_format_rule, deny)),
        ask=tuple(map(_format_rule, ask)),
        sources=tuple(dict.fromkeys(rule.source for rule in (*deny, *ask))),
        refusals=tuple(_list_refusals(asked, settled, known, known_settled, mode)),
        ignored_flags=unheeded,
    )


def _list_refusals(
    asked: Invocation,
    settled: ClaudeSettings,
    known: Invocation,
    known_settled: ClaudeSettings,
    mode: str,
) -> list[str]:
    found, only = [], asked.rules.tools
    if only is not None and not (
        known.rules.tools is not None and set(known.rules.tools) <= set(only)
    ):
        found.append("--tools leaves fewer tools")
    found += [
        f"{format_flag(field)} ends a turn sooner"
        for field in LIMIT_FIELDS
        if _is_lower_limit(asked.flag(field), known.flag(field))
    ]
    hooks = {hook.source for hook in settled.hooks if hook not in known_settled.hooks}
    found += [f"a hook in {source} judges calls" for source in sorted(hooks)]
    if asked.json_schema is not None and asked.json_schema != known.json_schema:
        found.append("--json-schema asks for another answer")
    if asked.permissions.restricted and not known.permissions.restricted:
        found.append("--restricted forbids more")
    less = [
        format_flag(field)
        for field in REFUSED_FIELDS
        if asked.flag(field) and not known.flag(field)
    ]
    servers, own = asked.configuration, known.configuration
    if (
        servers.strict_mcp_config
        and own.strict_mcp_config
        and set(own.mcp_config) - set(servers.mcp_config)
    ):
        less.append("--strict-mcp-config")
    less += [name for name in _list_new_flags(asked, known) if name in REFUSED_FLAGS]
    found += [f"{name} leaves it less" for name in less]
    found += [
        f"{key} restricts it"
        for key in settled.unsupported_keys
        if key not in known_settled.unsupported_keys
    ]
    if settled.bypass_forbidden_by and mode == MODES_STRICTEST_FIRST[-1]:
        found.append(f"{settled.bypass_forbidden_by} forbids the mode {mode}")
    return found


def _is_lower_limit(limit: Any, known: Any) -> bool:
    return limit is not None and (known is None or limit < known)


def _collect_deny_rules(invocation: Invocation, settled: ClaudeSettings) -> tuple[Rule, ...]:
    return (
        *parse_rules(invocation.rules.disallowed_tools, source="--disallowedTools"),
        *settled.deny,
    )


def _collect_allow_rules(invocation: Invocation, settled: ClaudeSettings) -> tuple[Rule, ...]:
    return (*parse_rules(invocation.rules.allowed_tools, source="--allowedTools"), *settled.allow)


def _find_own_settings_mode(
    asked: Invocation, settled: ClaudeSettings, known: Invocation, known_settled: ClaudeSettings
) -> str | None:
    """The mode that settings of the frontend's own ask for; None for the session's own, which may
    have left it.
    """
    own = asked.configuration.settings not in (None, known.configuration.settings)
    return settled.mode if own or settled.mode != known_settled.mode else None


def _subtract_rules(rules: tuple[Rule, ...], known: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """The rules that are about something else than the known ones."""
    same = {(rule.tool, rule.content, rule.base) for rule in known}
    whole = {rule.tool for rule in known if rule.content is None}
    return tuple(
        rule
        for rule in rules
        if (rule.tool, rule.content, rule.base) not in same and rule.tool not in whole
    )


def _format_rule(rule: Rule) -> str:
    """A rule as words that mean the same in the session's folder."""
    # relative ones are about the session's folder
    absolute = rule.base and (rule.content or "").startswith("/")
    return str(resolve_rule_path(rule, rule.base)) if absolute else str(rule)


def _list_ignored_flags(asked: Invocation, known: Invocation) -> tuple[str, ...]:
    """The flags that would have widened or changed the session, each by its name."""
    found = [
        format_flag(field)
        for field in IGNORED_FIELDS
        if _is_new_value(asked.flag(field), known.flag(field))
    ]
    tools, own = asked.rules.tools, known.rules.tools
    found += ["--tools"] if tools is not None and own is not None and set(tools) > set(own) else []
    found += (
        ["--permission-prompt-tool"]
        if asked.permissions.permission_prompt_tool not in (None, STDIO_PROMPT_TOOL)
        else []
    )
    sources = asked.configuration.setting_sources
    found += (
        ["--setting-sources"]
        if sources is not None and _parse_setting_sources(asked) != _parse_setting_sources(known)
        else []
    )
    return (
        *found,
        *(
            name
            for name in _list_new_flags(asked, known)
            if name not in (*REFUSED_FLAGS, *SETTINGS_FLAGS)
        ),
    )


def _parse_setting_sources(invocation: Invocation) -> set[str]:
    said = invocation.configuration.setting_sources
    return {
        name.strip() for name in (DEFAULT_SETTING_SOURCES if said is None else said).split(",")
    } - {""}


def _list_new_flags(asked: Invocation, known: Invocation) -> list[str]:
    """The flags without a field that the session did not begin with, each once."""
    own = {*known.other_flags.other, *known.other_flags.unknown}
    given = (*asked.other_flags.other, *asked.other_flags.unknown)
    return list(dict.fromkeys(name for name, value in given if (name, value) not in own))


def _is_new_value(value: object, known: object) -> bool:
    if isinstance(value, tuple) and isinstance(known, tuple):
        return bool(set(value) - set(known))
    return value not in (None, "") and value is not False and value != known
