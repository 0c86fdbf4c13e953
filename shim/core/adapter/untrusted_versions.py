"""Decides what a vendor may do whose installed version is not trusted.

A profile was tested with certain versions of a program. These versions asked before a tool ran, and
obeyed permission modes and rules. An unrelated program with the same name, or a different major
version, may behave differently. In that case the session is reported as unattended, and a turn that
needs a guarantee is refused.
"""

from shim.core.adapter.adapter import Adapter
from shim.core.adapter.versions import VersionCheck
from shim.core.errors import UntrustedVendorVersionError
from shim.core.policy.policy import BYPASS_MODE, Policy

DEFAULT_MODE = "default"


def describe_executed_denied_call(adapter: Adapter, version: str | None, tool: str) -> str:
    """Return the reason why a version of a program is no longer trusted after the program ran a
    denied tool call.
    """
    if version:
        subject = f"version {version} of {adapter.name}"
    else:
        subject = adapter.name
    return (
        f"{subject} ran a denied {tool} call, so it is not trusted until you run `shim doctor "
        f"{adapter.name}`"
    )


def mark_version_distrusted(check: VersionCheck, reason: str) -> VersionCheck:
    """Return a version check that marks the version as distrusted, because its program ran a denied
    tool call.
    """
    return check._replace(distrust=reason, withdrawn=True)


def describe_required_vendor_guarantee(
    adapter: Adapter, policy: Policy, mode: str, *, prompts: bool, hooks: bool, late_denials: bool
) -> str:
    """Return a description of the guarantee that a turn needs from its vendor. Return "" if the
    turn needs no guarantee.

    `prompts` is set if the frontend expects permission prompts. `hooks` is set if the frontend
    expects its hooks to run before tool calls. `late_denials` is set if, in the permission mode
    bypassPermissions, the turn may be stopped after a forbidden call was reported.
    """
    if mode not in (DEFAULT_MODE, BYPASS_MODE) and not _is_as_wide_as_bypass(adapter, mode):
        return f"the permission mode {mode}"
    if prompts and mode != BYPASS_MODE:
        return "a permission prompt (--permission-prompt-tool; background sessions always have it)"
    if hooks and mode != BYPASS_MODE:
        return "a PreToolUse hook of the frontend"
    if policy.hooks:
        return f"a PreToolUse hook ({policy.hooks[0].source})"
    if late_denials and mode == BYPASS_MODE:
        return ""
    if policy.restricting_rules:
        rule = policy.restricting_rules[0]
        return f"the rule {rule} ({rule.source})"
    if policy.only_tools is None:
        return ""
    return "the tool selection (--tools)"


def _is_as_wide_as_bypass(adapter: Adapter, mode: str) -> bool:
    """Return whether the permission mode is acceptEdits and allows as much as bypassPermissions.
    This is the case if the program gets the same arguments in both modes and never asks.
    """
    has_same_arguments = False
    if adapter.modes.get(mode) is not None:
        has_same_arguments = adapter.modes.get(mode) == adapter.modes.get(BYPASS_MODE)
    if mode != "acceptEdits":
        return False
    if not has_same_arguments:
        return False
    if adapter.child_input_ref:
        return False
    return not adapter.policy_support.has_native_rules


def build_untrusted_version_error(
    adapter: Adapter, guarantee: str, check: VersionCheck
) -> UntrustedVendorVersionError:
    """Return the error for a turn that needs a guarantee that does not hold for the installed
    version.
    """
    tested = f"Install a tested version ({adapter.version_probe.tested_range or 'any other'}), or"
    if check.withdrawn:
        remedy = f"{tested} run `shim doctor {adapter.name}` and review the commands that it ran"
    else:
        remedy = (
            f"{tested} set [vendors.{adapter.name}] trust_version = true if you know that "
            "this program enforces permission rules"
        )
    install = ""
    if adapter.cli.install_command:
        install = f"install {adapter.name} with `{adapter.cli.install_command}`; "
    alternatives = (
        "a turn without rules, hooks and permission prompts can use any version in "
        f"{DEFAULT_MODE} or {BYPASS_MODE}, and may run tools without asking"
    )
    return UntrustedVendorVersionError(
        f"{guarantee} cannot be guaranteed: {check.distrust}. {remedy}",
        hint=f"{install}{alternatives}; `shim doctor {adapter.name}` shows the details",
        distrust_reason=check.distrust,
    )


def list_modes_for_untrusted_version(
    permission_modes: tuple[str, ...], *, can_ask_permission: bool
) -> tuple[str, ...]:
    """Return the permission modes in which a vendor can run even if its guarantees do not hold."""
    return tuple(
        mode
        for mode in permission_modes
        if mode == BYPASS_MODE or (mode == DEFAULT_MODE and not can_ask_permission)
    )
