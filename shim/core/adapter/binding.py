"""Whether a vendor keeps the rules before a call runs; a turn whose rules it would not keep is
refused.

A call that is stopped when it is seen may have run. So the vendor has to be told every rule that
narrows, by its own flags and files, or it has to ask us before each call that the rule may be
about.
"""

from shim.core.adapter.vendor import Adapter, LaunchRequest
from shim.core.errors import ModeError
from shim.core.policy.acts import BASH_TOOL, CHANGE_TOOLS, READ_TOOLS, SHELL_TOOLS
from shim.core.policy.policy import BYPASS_MODE, Policy
from shim.core.policy.rules import ANY_TOOL, MCP_PREFIX, SUBAGENT_TOOL, Rule
from shim.core.policy.sources import PRE_TOOL_EVENT
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


def check_enforcement(
    vendor: Adapter, policy: Policy, request: LaunchRequest, *, late_denials: bool
) -> None:
    """ModeError for the first rule that the vendor would break.

    `late`: in bypassPermissions a call that breaks a rule may be stopped when it is seen
    (`[vendors.X] late_denials`). A hook of the settings is never run late.
    """
    if vendor.policy_support.has_native_rules or vendor.cli.replayed_vendor:
        return
    _check_hooks(vendor, policy, request)
    if late_denials and request.permission_mode == BYPASS_MODE:
        return
    for rule in policy.restricting_rules:
        if not can_enforce_rule(vendor, rule, request):
            raise _build_refusal(vendor, str(rule), rule.source)
    chosen = Rule(ANY_TOOL, source="--tools")
    if policy.only_tools is not None and not (
        vendor.abilities.selects_tools or vendor.policy_support.enforces_rule(chosen, request)
    ):
        raise _build_refusal(vendor, "a choice of tools", chosen.source)


def _check_hooks(vendor: Adapter, policy: Policy, request: LaunchRequest) -> None:
    """ModeError for the first hook of the settings that cannot be run before each call that it is
    about.
    """
    if not policy.hooks:
        return
    from shim.core.claude.hooks.commands import is_tool_list
    from shim.core.policy.settings_hooks import UNTRUSTED_REASON

    for hook in policy.hooks:
        if hook.refusal:
            trust = (
                "start the real claude there once and trust the folder, "
                if hook.refusal == UNTRUSTED_REASON
                else ""
            )
            raise ModeError(
                f"a {PRE_TOOL_EVENT} hook in {hook.source} may forbid a call, and it is not run: {hook.refusal}",
                hint=f"{trust}choose the real claude, or leave the file out with --setting-sources",
            )
        missed = find_tools_without_hook(vendor, hook, request)
        if missed & ACTING_TOOLS or (missed and is_tool_list(hook.matcher)):
            raise ModeError(
                f"{vendor.name} cannot be made to run the {PRE_TOOL_EVENT} hook in {hook.source} before each call of "
                f"{', '.join(sorted(missed))}",
                hint="choose a vendor that asks (`shim vendors`), leave the file out with --setting-sources, or set "
                "disableAllHooks in your own settings",
            )


def find_tools_without_hook(
    vendor: Adapter, hook: "SettingsHook", request: LaunchRequest
) -> frozenset[str]:
    """The tools that a hook is about, and that run without it; "mcp__" stands for those of all
    servers.
    """
    if vendor.policy_support.has_hook:
        return frozenset()
    from shim.core.claude.hooks.commands import is_for_tool, is_tool_list

    own = {*vendor.listed_tools, *(tool.name for tool in vendor.tools.values())}
    if vendor.abilities.can_limit_tools:
        own -= {name for name in request.removed_tools if vendor.list_vendor_tools((name,))}
    concerned = {name for name in own if is_for_tool(hook, name)}
    if (
        MCP_PREFIX in hook.matcher or not is_tool_list(hook.matcher)
    ) and not vendor.policy_support.enforces_rule(Rule(MCP_PREFIX), request):
        concerned.add(MCP_PREFIX)
    return frozenset(concerned) - vendor.policy_support.list_prompted_tools(request)


def can_enforce_rule(vendor: Adapter, rule: Rule, request: LaunchRequest) -> bool:
    """Whether no call that a rule is about runs before it was judged."""
    if vendor.policy_support.enforces_rule(rule, request) or vendor.policy_support.accepts_rule(
        rule
    ):
        return True
    tools = list_affected_tools(vendor, rule)
    if vendor.abilities.can_limit_tools:
        tools -= {name for name in request.removed_tools if vendor.list_vendor_tools((name,))}
    return tools <= vendor.policy_support.list_prompted_tools(request)


def list_affected_tools(vendor: Adapter, rule: Rule) -> frozenset[str]:
    """The tools of a vendor, in Claude's words, whose calls a rule may be about."""
    own = frozenset(vendor.listed_tools) | {tool.name for tool in vendor.tools.values()}
    if rule.tool == ANY_TOOL:
        return own
    if rule.content is None and (rule.tool.startswith(MCP_PREFIX) or "*" in rule.tool):
        return frozenset((rule.tool,))
    if rule.content is None:
        return own & (SHELL_TOOLS if rule.tool == BASH_TOOL else {rule.tool})
    named = set(SHELL_TOOLS) if rule.tool == BASH_TOOL else {rule.tool}
    if rule.tool == "Edit":
        named |= {*CHANGE_TOOLS, *SHELL_TOOLS}
    elif rule.tool == "Read":
        named |= {*CHANGE_TOOLS, *READ_TOOLS, *SHELL_TOOLS}
    return frozenset(named) & own | (frozenset((SUBAGENT_TOOL,)) & own)


def list_removed_tools(vendor: Adapter, policy: Policy) -> tuple[str, ...]:
    """Claude's names of the tools that a vendor is not to have.

    A rule that asks takes its tool away from a vendor that never asks, and any rule takes subagents
    away whose calls nobody sees.
    """
    gone = set(policy.removed_tools)
    if not (vendor.child_input_ref or vendor.policy_support.has_native_rules):
        gone |= {rule.tool for rule in policy.ask if rule.content is None}
    if policy.has_restrictions and not (
        vendor.policy_support.covers_subagents or vendor.policy_support.has_native_rules
    ):
        gone |= {SUBAGENT_TOOL, *SHELL_TOOLS} - {
            BASH_TOOL
        }  # a second shell is asked about by nobody
    return tuple(sorted(gone))


def explain_unenforceable(vendor: Adapter, policy: Policy, request: LaunchRequest) -> str:
    """Why a vendor would not keep a policy in the middle of a conversation; "" if it would."""
    try:
        check_enforcement(
            vendor,
            policy,
            request._replace(policy=policy, removed_tools=list_removed_tools(vendor, policy)),
            late_denials=False,
        )
    except ModeError as error:
        return str(error)
    return ""


def needs_restart(
    vendor: Adapter, before: tuple[Rule, ...], now: tuple[Rule, ...], asked: frozenset[str]
) -> bool:
    """Whether a child that was told the rules `before` has to be told those of now by its start.

    It need not where it asks before each call that a new rule is about; `asked` are the tools that
    it asks about.
    """
    lifted = any(rule not in now for rule in before)
    return lifted or any(
        rule not in before and not list_affected_tools(vendor, rule) <= asked for rule in now
    )


def _build_refusal(vendor: Adapter, rule: str, source: str) -> ModeError:
    return ModeError(
        f"{vendor.name} cannot be kept to {rule} ({source}) before a call runs",
        hint="choose a vendor that asks before it runs a tool (`shim vendors`), a rule about the whole tool, or, with "
        f"bypassPermissions, [vendors.{vendor.name}] late_denials = true: then a call is stopped once it is seen",
    )
