"""Checks whether a vendor can enforce a policy. If the vendor would break a restriction, the turn
is refused.

When the shim sees a tool call, the call may have run already. So the vendor must enforce every
restricting rule with its own flags and files, or ask before each call that the rule may affect.
Allow rules that the vendor cannot apply do not stop the turn; `init.shim` reports them.
"""

from collections.abc import Iterable

from shim.core.adapter.adapter import Adapter, LaunchRequest
from shim.core.errors import UnsupportedPermissionModeError
from shim.core.policy import PRE_TOOL_EVENT
from shim.core.policy.call_effects import BASH_TOOL, CHANGE_TOOLS, READ_TOOLS, SHELL_TOOLS
from shim.core.policy.policy import (
    ANY_TOOL,
    BYPASS_MODE,
    EDIT_MODE,
    MCP_PREFIX,
    PLAN_MODE,
    SUBAGENT_TOOL,
    PermissionRule,
    Policy,
    UnsupportedRule,
)
from shim.core.reading.typed import TYPE_CHECKING

if TYPE_CHECKING:
    from shim.core.policy.settings_hooks import SettingsHook

# Tools that change or read anything outside of the conversation. A hook that covers all tools must
# run before each call of these tools.
ACTING_TOOLS = SHELL_TOOLS | {
    *CHANGE_TOOLS,
    *READ_TOOLS,
    SUBAGENT_TOOL,
    MCP_PREFIX,
    "WebFetch",
    "WebSearch",
}


# The tools that can access a file named in a rule for Edit or Read.
_TOOLS_OF_FILE_RULES = {
    "Edit": (*CHANGE_TOOLS, *SHELL_TOOLS),
    "Read": (*CHANGE_TOOLS, *READ_TOOLS, *SHELL_TOOLS),
}


def check_policy_enforcement(
    adapter: Adapter, policy: Policy, request: LaunchRequest, *, late_denials: bool
) -> None:
    """Raise UnsupportedPermissionModeError for the first rule that the vendor would break.

    With `late_denials` (`[vendors.X] late_denials`) and the permission mode bypassPermissions, a
    forbidden call may be stopped after the vendor has reported it. The settings' hooks must always
    run before a call.
    """
    if _needs_no_enforcement(adapter):
        return
    _check_hooks(adapter, policy, request)
    if late_denials and request.permission_mode == BYPASS_MODE:
        return
    for rule in policy.restricting_rules:
        if not is_rule_enforced(adapter, rule, request):
            raise _build_refusal(adapter, str(rule), rule.source)
    tools_rule = PermissionRule(ANY_TOOL, source="--tools")
    if policy.only_tools is not None and not (
        adapter.abilities.selects_tools or adapter.can_enforce_rule(tools_rule, request)
    ):
        raise _build_refusal(adapter, "the tool selection", tools_rule.source)


def _needs_no_enforcement(adapter: Adapter) -> bool:
    """Return whether the vendor applies Claude's rules itself, or is a replay that runs no tools."""
    if adapter.policy_support.has_native_rules:
        return True
    return bool(adapter.cli.replayed_vendor)


def _check_hooks(adapter: Adapter, policy: Policy, request: LaunchRequest) -> None:
    """Raise UnsupportedPermissionModeError for the first hook in the settings that cannot run
    before each call of the hook's tools.
    """
    if not policy.hooks:
        return
    from shim.core.claude.hooks.commands import is_tool_name_list
    from shim.core.policy.settings_hooks import UNTRUSTED_REASON

    for hook in policy.hooks:
        if hook.refusal:
            trust_hint = ""
            if hook.refusal == UNTRUSTED_REASON:
                trust_hint = "start the real claude in this folder once and trust the folder, "
            raise UnsupportedPermissionModeError(
                f"a {PRE_TOOL_EVENT} hook in {hook.source} may deny a call, but cannot be "
                f"run: {hook.refusal}",
                hint=f"{trust_hint}choose the real claude, or exclude the file with "
                "--setting-sources",
            )
        missed_tools = list_tools_that_bypass_hook(adapter, hook, request)
        if missed_tools & ACTING_TOOLS or (missed_tools and is_tool_name_list(hook.matcher)):
            raise UnsupportedPermissionModeError(
                f"{adapter.name} cannot run the {PRE_TOOL_EVENT} hook in {hook.source} "
                f"before each call of {', '.join(sorted(missed_tools))}",
                hint="choose a vendor that asks for permission (`shim vendors`), exclude the "
                "file with --setting-sources, or set disableAllHooks in your settings",
            )


def list_tools_that_bypass_hook(
    adapter: Adapter, hook: "SettingsHook", request: LaunchRequest
) -> frozenset[str]:
    """Return the tools that a hook should check but that the vendor runs without calling the hook.
    "mcp__" stands for the tools of all MCP servers.
    """
    if adapter.policy_support.has_hook:
        return frozenset()
    from shim.core.claude.hooks.callbacks import matches_tool_name
    from shim.core.claude.hooks.commands import is_tool_name_list

    tools = {name for name in _list_vendor_tools(adapter) if matches_tool_name(hook.matcher, name)}
    if (
        MCP_PREFIX in hook.matcher or not is_tool_name_list(hook.matcher)
    ) and not adapter.can_enforce_rule(PermissionRule(MCP_PREFIX), request):
        tools.add(MCP_PREFIX)
    return _list_unprompted_tools(adapter, tools, request)


def _list_vendor_tools(adapter: Adapter) -> frozenset[str]:
    return frozenset((*adapter.listed_tools, *(tool.name for tool in adapter.tools.values())))


def _list_unprompted_tools(
    adapter: Adapter, tools: Iterable[str], request: LaunchRequest
) -> frozenset[str]:
    """Return the vendor's tools that run without asking the shim first."""
    unprompted_tools = frozenset(tools) - adapter.list_prompted_tools(request)
    if not adapter.abilities.can_limit_tools:
        return unprompted_tools
    mapped_tools = {tool.name for tool in adapter.tools.values()}
    return unprompted_tools - mapped_tools.intersection(request.removed_tools)


def is_rule_enforced(adapter: Adapter, rule: PermissionRule, request: LaunchRequest) -> bool:
    """Return whether the shim or the vendor applies a rule before any affected tool call can run."""
    if adapter.can_enforce_rule(rule, request) or adapter.accepts_rule(rule):
        return True
    return not _list_unprompted_tools(adapter, list_tools_affected_by_rule(adapter, rule), request)


def list_tools_affected_by_rule(adapter: Adapter, rule: PermissionRule) -> frozenset[str]:
    """Return Claude's names for the vendor's tools whose calls a rule may affect."""
    vendor_tools = _list_vendor_tools(adapter)
    if rule.tool == ANY_TOOL:
        return vendor_tools
    if rule.content is None and (rule.tool.startswith(MCP_PREFIX) or "*" in rule.tool):
        return frozenset((rule.tool,))
    tools = {BASH_TOOL: SHELL_TOOLS}.get(rule.tool, frozenset((rule.tool,)))
    if rule.content is not None:
        tools = tools.union(_TOOLS_OF_FILE_RULES.get(rule.tool, ()), (SUBAGENT_TOOL,))
    return tools & vendor_tools


def list_removed_tools(adapter: Adapter, policy: Policy) -> tuple[str, ...]:
    """Return Claude's names for the tools that must be removed from the vendor.

    If the vendor never asks, the tools in ask rules are removed. If there is any restriction,
    subagents are removed unless the shim sees their tool calls.
    """
    removed_tools = set(policy.removed_tools)
    if not (adapter.child_input_ref or adapter.policy_support.has_native_rules):
        removed_tools |= {rule.tool for rule in policy.ask if rule.content is None}
    if policy.has_restrictions and not (
        adapter.policy_support.covers_subagents or adapter.policy_support.has_native_rules
    ):
        # The vendor does not ask before it runs a shell tool other than Bash.
        removed_tools |= {SUBAGENT_TOOL, *SHELL_TOOLS} - {BASH_TOOL}
    return tuple(sorted(removed_tools))


def explain_unenforceable_policy(adapter: Adapter, policy: Policy, request: LaunchRequest) -> str:
    """Return the reason why the vendor cannot enforce a policy that was changed during the
    conversation. Return "" if the vendor can enforce the policy.
    """
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
    """Return whether a child that was started with `old_rules` must be restarted to apply
    `new_rules`.

    A new rule needs no restart if the child asks before each call that the rule may affect.
    `prompted_tools` are the tools about which the child asks.
    """
    is_rule_lifted = any(rule not in new_rules for rule in old_rules)
    if is_rule_lifted:
        return True
    return any(
        not list_tools_affected_by_rule(adapter, rule) <= prompted_tools
        for rule in new_rules
        if rule not in old_rules
    )


def _build_refusal(adapter: Adapter, rule: str, source: str) -> UnsupportedPermissionModeError:
    return UnsupportedPermissionModeError(
        f"{adapter.name} cannot enforce {rule} ({source}) before a call runs",
        hint="choose a vendor that asks before it runs a tool (`shim vendors`), use a rule for "
        f"the whole tool, or, with bypassPermissions, set [vendors.{adapter.name}] "
        "late_denials = true, which stops a call when the vendor reports it",
    )


def list_unsupported_rules(
    adapter: Adapter, policy: Policy, request: LaunchRequest, ignored_keys: Iterable[str]
) -> tuple[UnsupportedRule, ...]:
    """Return the allow rules, settings keys and hooks that have no effect on a vendor's turn.

    `ignored_keys` are `ClaudeSettings.unsupported_keys`.
    """
    unsupported_rules = [
        UnsupportedRule(str(rule), rule.source, reason)
        for rule in policy.allow
        if (reason := _explain_unsupported_rule(adapter, rule, request))
    ]
    unsupported_keys = [
        UnsupportedRule(key, source, "only the real claude supports it")
        for key, _, source in (entry.partition(" in ") for entry in ignored_keys)
    ]
    # A turn with a hook that may block a call was refused earlier. The remaining hooks only write
    # messages.
    hooks = () if _needs_no_enforcement(adapter) else policy.hooks
    unsupported_hooks = [
        UnsupportedRule(
            "hooks.PreToolUse",
            hook.source,
            f"{adapter.name} does not ask for permission before these tools run: {', '.join(sorted(tools))}",
        )
        for hook in hooks
        if (tools := list_tools_that_bypass_hook(adapter, hook, request))
    ]
    return tuple(dict.fromkeys(unsupported_rules + unsupported_keys + unsupported_hooks))


def _explain_unsupported_rule(
    adapter: Adapter, rule: PermissionRule, request: LaunchRequest
) -> str:
    """Return the reason why an allow rule has no effect on the vendor. Return "" if the calls that
    the rule matches run without a prompt.
    """
    mode = request.permission_mode
    # As in the real claude, no rule allows changes in the permission mode plan.
    if _needs_no_enforcement(adapter) or mode in (BYPASS_MODE, PLAN_MODE):
        return ""
    if "(" in rule.tool:
        return "the text is not a valid rule"
    if (
        request.persistent
        or adapter.list_prompted_tools(request)
        or adapter.can_hook_apply_allow_rule(rule)
        or adapter.allows_unprompted(rule, request)
    ):
        return ""
    if rule.tool in adapter.list_available_tools(request) and (
        adapter.unattended
        or rule.tool in READ_TOOLS
        or (mode == EDIT_MODE and rule.tool in CHANGE_TOOLS)
    ):
        return ""
    return f"{adapter.name} cannot auto-approve single calls, and does not ask in the mode {mode}"
