"""Whether a vendor keeps the rules before a call runs; a turn whose rules it would not keep is
refused.

A call that is stopped when it is seen may have run. So the vendor has to be told every rule that
narrows, by its own flags and files, or it has to ask us before each call that the rule may be
about.
"""

from shim.core.adapter.adapter import Adapter, LaunchRequest
from shim.core.errors import UnsupportedPermissionModeError
from shim.core.policy.call_effects import BASH_TOOL, CHANGE_TOOLS, READ_TOOLS, SHELL_TOOLS
from shim.core.policy.policy import (
    ANY_TOOL,
    BYPASS_MODE,
    MCP_PREFIX,
    SUBAGENT_TOOL,
    PermissionRule,
    Policy,
)
from shim.core.policy.settings import PRE_TOOL_EVENT
from shim.core.reading.typed import TYPE_CHECKING

if TYPE_CHECKING:
    from shim.core.policy.settings_hooks import SettingsHook

# What changes or shows anything outside of the conversation. A hook about all tools has to be run
# before these.
ACTING_TOOLS = SHELL_TOOLS | {
    *CHANGE_TOOLS,
    *READ_TOOLS,
    SUBAGENT_TOOL,
    MCP_PREFIX,
    "WebFetch",
    "WebSearch",
}


def check_policy_enforcement(
    adapter: Adapter, policy: Policy, request: LaunchRequest, *, late_denials: bool
) -> None:
    """PermissionModeError for the first rule that the vendor would break.

    `late_denials`: in bypassPermissions a call that breaks a rule may be stopped when it is seen
    (`[vendors.X] late_denials`). A hook of the settings is never run late.
    """
    if adapter.policy_support.has_native_rules or adapter.cli.replayed_vendor:
        return
    _check_hooks(adapter, policy, request)
    if late_denials and request.permission_mode == BYPASS_MODE:
        return
    for rule in policy.restricting_rules:
        if not can_enforce_rule(adapter, rule, request):
            raise _build_refusal(adapter, str(rule), rule.source)
    tools_rule = PermissionRule(ANY_TOOL, source="--tools")
    if policy.only_tools is not None and not (
        adapter.abilities.selects_tools or adapter.policy_support.enforces_rule(tools_rule, request)
    ):
        raise _build_refusal(adapter, "a choice of tools", tools_rule.source)


def _check_hooks(adapter: Adapter, policy: Policy, request: LaunchRequest) -> None:
    """PermissionModeError for the first hook of the settings that cannot be run before each call
    that it is about.
    """
    if not policy.hooks:
        return
    from shim.core.claude.hooks.commands import is_tool_name_list
    from shim.core.policy.settings_hooks import UNTRUSTED_REASON

    for hook in policy.hooks:
        if hook.refusal:
            trust_hint = (
                "start the real claude there once and trust the folder, "
                if hook.refusal == UNTRUSTED_REASON
                else ""
            )
            raise UnsupportedPermissionModeError(
                f"a {PRE_TOOL_EVENT} hook in {hook.source} may forbid a call, and it is not run: {hook.refusal}",
                hint=f"{trust_hint}choose the real claude, or leave the file out with --setting-sources",
            )
        missed_tools = list_tools_that_bypass_hook(adapter, hook, request)
        if missed_tools & ACTING_TOOLS or (missed_tools and is_tool_name_list(hook.matcher)):
            raise UnsupportedPermissionModeError(
                f"{adapter.name} cannot be made to run the {PRE_TOOL_EVENT} hook in {hook.source} before each call of "
                f"{', '.join(sorted(missed_tools))}",
                hint="choose a vendor that asks (`shim vendors`), leave the file out with --setting-sources, or set "
                "disableAllHooks in your own settings",
            )


def list_tools_that_bypass_hook(
    adapter: Adapter, hook: "SettingsHook", request: LaunchRequest
) -> frozenset[str]:
    """The tools that a hook is about, and that run without it; "mcp__" stands for those of all
    servers.
    """
    if adapter.policy_support.has_hook:
        return frozenset()
    from shim.core.claude.hooks.commands import is_hook_for_tool, is_tool_name_list

    vendor_tools = {*adapter.listed_tools, *(tool.name for tool in adapter.tools.values())}
    if adapter.abilities.can_limit_tools:
        vendor_tools -= {
            name for name in request.removed_tools if adapter.map_to_vendor_tool_names((name,))
        }
    affected_tools = {name for name in vendor_tools if is_hook_for_tool(hook, name)}
    if (
        MCP_PREFIX in hook.matcher or not is_tool_name_list(hook.matcher)
    ) and not adapter.policy_support.enforces_rule(PermissionRule(MCP_PREFIX), request):
        affected_tools.add(MCP_PREFIX)
    return frozenset(affected_tools) - adapter.policy_support.list_prompted_tools(request)


def can_enforce_rule(adapter: Adapter, rule: PermissionRule, request: LaunchRequest) -> bool:
    """Whether no call that a rule is about runs before it was judged."""
    if adapter.policy_support.enforces_rule(rule, request) or adapter.policy_support.accepts_rule(
        rule
    ):
        return True
    tools = list_tools_affected_by_rule(adapter, rule)
    if adapter.abilities.can_limit_tools:
        tools -= {
            name for name in request.removed_tools if adapter.map_to_vendor_tool_names((name,))
        }
    return tools <= adapter.policy_support.list_prompted_tools(request)


def list_tools_affected_by_rule(adapter: Adapter, rule: PermissionRule) -> frozenset[str]:
    """The tools of a vendor, in Claude's words, whose calls a rule may be about."""
    vendor_tools = frozenset(adapter.listed_tools) | {tool.name for tool in adapter.tools.values()}
    if rule.tool == ANY_TOOL:
        return vendor_tools
    if rule.content is None and (rule.tool.startswith(MCP_PREFIX) or "*" in rule.tool):
        return frozenset((rule.tool,))
    if rule.content is None:
        return vendor_tools & (SHELL_TOOLS if rule.tool == BASH_TOOL else {rule.tool})
    tool_names = set(SHELL_TOOLS) if rule.tool == BASH_TOOL else {rule.tool}
    if rule.tool == "Edit":
        tool_names |= {*CHANGE_TOOLS, *SHELL_TOOLS}
    elif rule.tool == "Read":
        tool_names |= {*CHANGE_TOOLS, *READ_TOOLS, *SHELL_TOOLS}
    return frozenset(tool_names) & vendor_tools | (frozenset((SUBAGENT_TOOL,)) & vendor_tools)


def list_removed_tools(adapter: Adapter, policy: Policy) -> tuple[str, ...]:
    """Claude's names of the tools that a vendor is not to have.

    A rule that asks takes its tool away from a vendor that never asks, and any rule takes subagents
    away whose calls nobody sees.
    """
    removed_tools = set(policy.removed_tools)
    if not (adapter.child_input_ref or adapter.policy_support.has_native_rules):
        removed_tools |= {rule.tool for rule in policy.ask if rule.content is None}
    if policy.has_restrictions and not (
        adapter.policy_support.covers_subagents or adapter.policy_support.has_native_rules
    ):
        # a second shell is asked about by nobody
        removed_tools |= {SUBAGENT_TOOL, *SHELL_TOOLS} - {BASH_TOOL}
    return tuple(sorted(removed_tools))


def explain_unenforceable_policy(adapter: Adapter, policy: Policy, request: LaunchRequest) -> str:
    """Why a vendor would not keep a policy in the middle of a conversation; "" if it would."""
    try:
        check_policy_enforcement(
            adapter,
            policy,
            request._replace(policy=policy, removed_tools=list_removed_tools(adapter, policy)),
            late_denials=False,
        )
    except UnsupportedPermissionModeError as error:
        return str(error)
    return ""


def needs_restart_for_rules(
    adapter: Adapter,
    old_rules: tuple[PermissionRule, ...],
    new_rules: tuple[PermissionRule, ...],
    prompted_tools: frozenset[str],
) -> bool:
    """Whether a child that was told the rules `old_rules` has to be told those of now by its start.

    It need not where it asks before each call that a new rule is about; `prompted_tools` are the
    tools that it asks about.
    """
    is_rule_lifted = any(rule not in new_rules for rule in old_rules)
    return is_rule_lifted or any(
        rule not in old_rules and not list_tools_affected_by_rule(adapter, rule) <= prompted_tools
        for rule in new_rules
    )


def _build_refusal(adapter: Adapter, rule: str, source: str) -> UnsupportedPermissionModeError:
    return UnsupportedPermissionModeError(
        f"{adapter.name} cannot be kept to {rule} ({source}) before a call runs",
        hint="choose a vendor that asks before it runs a tool (`shim vendors`), a rule about the whole tool, or, with "
        f"bypassPermissions, [vendors.{adapter.name}] late_denials = true: then a call is stopped once it is seen",
    )
