"""The two ways in which one vendor can be driven: the other one answers where the first does not
start.
"""

from shim.conversation.drivers.launcher import ChildLauncher, build_frontend_vendor_info
from shim.conversation.fallback.chain import FallbackCandidate, FallbackChain
from shim.core.errors import FrontendError
from shim.core.policy.policy import BYPASS_MODE
from shim.state.config import ONE_WAY, TWO_WAY


def build_driver_fallback_chain(
    prompting_candidate: FallbackCandidate,
    non_prompting_launcher: ChildLauncher,
    *,
    persistent: bool,
) -> FallbackChain:
    """The candidates of a vendor. `persistent`: one child of the `one_way_launcher` launcher serves
    the conversation too.
    """
    candidates = {
        TWO_WAY: prompting_candidate,
        ONE_WAY: FallbackCandidate(non_prompting_launcher, persistent),
    }

    def prepare_candidate(driver_name: str) -> FallbackCandidate:
        candidate = candidates[driver_name]
        state, adapter = candidate.launcher.session_state, candidate.launcher.adapter
        # the mode may have changed since the start
        runs_more = adapter.unattended and state.mode != BYPASS_MODE
        if driver_name == ONE_WAY and (runs_more or state.hooks or state.mode not in adapter.modes):
            candidate.launcher.refusal_error = FrontendError(
                f"{adapter.name} could not be driven so that it asks, and in the other way it would not ask",
                hint=f"start {adapter.name} by itself to see why, or set [vendors.{adapter.name}] driver",
            )
            return FallbackCandidate(candidate.launcher, persistent=False)
        candidate.launcher.session_state.switch_vendor(
            build_frontend_vendor_info(candidate.launcher.adapter, persistent=candidate.persistent)
        )
        return candidate

    return FallbackChain((TWO_WAY, ONE_WAY), (), prepare_candidate, same_vendor=True)
