"""Which allow rules a vendor cannot be told, and which keys of the settings have no effect: said in
`init.shim`.
"""

from collections.abc import Iterable

from shim.core.adapter.adapter import Adapter, LaunchRequest
from shim.core.policy.call_effects import CHANGE_TOOLS, READ_TOOLS
from shim.core.policy.policy import BYPASS_MODE, PermissionRule, Policy, UnsupportedRule

PLAN_MODE = "plan"  # no rule allows a change in it, with the real claude neither


def list_unsupported_rules(
    adapter: Adapter, policy: Policy, request: LaunchRequest, ignored_keys: Iterable[str]
) -> tuple[UnsupportedRule, ...]:
    """What of the rules that allow, and of the keys that restrict, changes nothing in a turn of
    this vendor.

    `ignored_keys` are `ClaudeSettings.ignored_keys`.
    """
    unsupported_rules = [
        UnsupportedRule(str(rule), rule.source, reason)
        for rule in policy.allow
        if (reason := _explain_unsupported_rule(adapter, rule, request))
    ]
    unsupported_keys = [
        UnsupportedRule(key, source, "only the real claude can honour it")
        for key, _, source in (entry.partition(" in ") for entry in ignored_keys)
    ]
    return tuple(
        dict.fromkeys(
            unsupported_rules + unsupported_keys + _list_unsupported_hooks(adapter, policy, request)
        )
    )


def _list_unsupported_hooks(
    adapter: Adapter, policy: Policy, request: LaunchRequest
) -> list[UnsupportedRule]:
    """The hooks of the settings that do not run before every tool: those that only talk, since
    others are refused.
    """
    if not policy.hooks or adapter.policy_support.has_native_rules or adapter.cli.replayed_vendor:
        return []
    from shim.core.adapter.enforcement import list_tools_that_bypass_hook

    missed_hooks = [
        (hook.source, tools)
        for hook in policy.hooks
        if (tools := sorted(list_tools_that_bypass_hook(adapter, hook, request)))
    ]
    return [
        UnsupportedRule(
            "hooks.PreToolUse", source, f"{adapter.name} does not ask before {', '.join(tools)}"
        )
        for source, tools in missed_hooks
    ]


def _explain_unsupported_rule(
    adapter: Adapter, rule: PermissionRule, request: LaunchRequest
) -> str:
    """Why a vendor would not run unasked what a rule allows; "" where it does, or asks us."""
    if (
        adapter.policy_support.has_native_rules
        or adapter.cli.replayed_vendor
        or request.permission_mode in (BYPASS_MODE, PLAN_MODE)
    ):
        return ""
    if "(" in rule.tool:
        return "it cannot be read as a rule"
    if (
        request.persistent
        or adapter.policy_support.list_prompted_tools(request)
        or adapter.policy_support.can_hook_apply_allow_rule(rule)
    ):
        return ""  # the policy answers its questions, or its hook
    if adapter.policy_support.allows_unprompted(rule, request):
        return ""
    available_tools = adapter.list_available_tools(request)
    if rule.tool in available_tools and (
        adapter.unattended
        or rule.tool in READ_TOOLS
        or (request.permission_mode == "acceptEdits" and rule.tool in CHANGE_TOOLS)
    ):
        return ""
    return f"{adapter.name} cannot be told to run it unasked, and asks nobody in the mode {request.permission_mode}"
