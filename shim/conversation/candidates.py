"""Builds the fallback chain of a conversation: either several vendors, or several drivers of one
vendor.
"""

from shim.adapters import get_adapter
from shim.conversation.drivers.launcher import ChildLauncher
from shim.conversation.fallback.chain import FallbackCandidate, FallbackChain
from shim.conversation.plan import ConversationPlan, can_keep_child, select_driver
from shim.conversation.session_state import build_vendor_capabilities
from shim.conversation.vendor_list import FallbackVendorList
from shim.core.errors import FrontendError
from shim.core.policy.policy import BYPASS_MODE
from shim.process.twin_vendors import choose_adapter_of_installed_cli
from shim.state.config import ONE_WAY, TWO_WAY


def build_vendor_chain(
    launcher: ChildLauncher, plan: ConversationPlan, vendor_list: FallbackVendorList
) -> FallbackChain:
    """Return the fallback chain for a list of vendors. `launcher` starts the first vendor's
    children.
    """
    names = vendor_list.remaining_names
    candidates = {names[0]: FallbackCandidate(launcher, plan.persistent)}

    def prepare_candidate(vendor_name: str) -> FallbackCandidate:
        if vendor_name not in candidates:
            candidates[vendor_name] = _create_candidate(vendor_name, launcher, plan, vendor_list)
        candidate = candidates[vendor_name]
        _switch_vendor(candidate)
        return candidate

    return FallbackChain(names, vendor_list.skipped_attempts, prepare_candidate)


def _create_candidate(
    vendor_name: str,
    first_launcher: ChildLauncher,
    plan: ConversationPlan,
    vendor_list: FallbackVendorList,
) -> FallbackCandidate:
    """Return the fallback candidate for a later vendor of the list.

    An error in the vendor's settings is reported by the candidate's first turn.
    """
    context = first_launcher.context
    settings = context.settings
    environment = vendor_list.build_environment(vendor_name)
    adapter = choose_adapter_of_installed_cli(
        get_adapter(vendor_name, without_passthrough=True),
        settings.get_vendor_settings(vendor_name),
        environment,
        context.cwd,
        without_passthrough=True,
        cache_only=first_launcher.uses_remembered_help,
    )
    adapter = select_driver(adapter, context.invocation, settings, environment, context.cwd).adapter
    launcher = first_launcher.create_for_adapter(adapter, environment)
    try:
        vendor_list.require_permission_prompts(adapter)
    except FrontendError as error:
        return FallbackCandidate(launcher, persistent=False, refusal_error=error)
    return FallbackCandidate(launcher, can_keep_child(adapter, plan.request))


def build_driver_fallback_chain(
    first_launcher: ChildLauncher, fallback_launcher: ChildLauncher, plan: ConversationPlan
) -> FallbackChain:
    """Return the fallback chain for one vendor: first the two-way driver, then the one-way driver
    if the two-way driver does not start.
    """
    is_persistent = can_keep_child(fallback_launcher.adapter, plan.request)
    candidates = {
        TWO_WAY: FallbackCandidate(first_launcher, plan.persistent),
        ONE_WAY: FallbackCandidate(fallback_launcher, is_persistent),
    }
    state = first_launcher.session_state

    def prepare_candidate(driver_name: str) -> FallbackCandidate:
        candidate = candidates[driver_name]
        adapter = candidate.launcher.adapter
        # The permission mode may have changed since the conversation started.
        runs_more = adapter.unattended and state.mode != BYPASS_MODE
        if driver_name == ONE_WAY and (runs_more or state.hooks or state.mode not in adapter.modes):
            error = FrontendError(
                f"{adapter.name}'s two-way mode failed, and its one-way mode cannot ask "
                "for permission",
                hint=f"run {adapter.name} directly to see why, or set driver under [vendors.{adapter.name}]",
            )
            return FallbackCandidate(candidate.launcher, persistent=False, refusal_error=error)
        _switch_vendor(candidate)
        return candidate

    return FallbackChain((TWO_WAY, ONE_WAY), (), prepare_candidate, same_vendor=True)


def _switch_vendor(candidate: FallbackCandidate) -> None:
    """Switch the session to the candidate's vendor."""
    launcher = candidate.launcher
    launcher.session_state.switch_vendor(
        build_vendor_capabilities(launcher.adapter, persistent=candidate.persistent)
    )
