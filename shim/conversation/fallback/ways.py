"""The two ways in which one vendor can be driven: the other one answers where the first does not
start.
"""

from shim.conversation.drivers.launcher import ChildLauncher, build_serving_vendor
from shim.conversation.fallback.candidates import Candidate, FallbackChain
from shim.core.errors import FrontendError
from shim.core.policy.policy import BYPASS_MODE
from shim.state.config import ONE_WAY, TWO_WAY


def build_driver_chain(
    first: Candidate, other: ChildLauncher, *, persistent: bool
) -> FallbackChain:
    """The candidates of a vendor. `listens`: one child of the `other` launcher serves the
    conversation too.
    """
    made = {TWO_WAY: first, ONE_WAY: Candidate(other, persistent)}

    def prepare(name: str) -> Candidate:
        candidate = made[name]
        facts, vendor = candidate.launcher.state, candidate.launcher.adapter
        # the mode may have changed since the start
        wider = vendor.unattended and facts.mode != BYPASS_MODE
        if name == ONE_WAY and (wider or facts.hooks or facts.mode not in vendor.modes):
            candidate.launcher.refusal_error = FrontendError(
                f"{vendor.name} could not be driven so that it asks, and in the other way it would not ask",
                hint=f"start {vendor.name} by itself to see why, or set [vendors.{vendor.name}] driver",
            )
            return Candidate(candidate.launcher, persistent=False)
        candidate.launcher.state.switch_vendor(
            build_serving_vendor(candidate.launcher.adapter, persistent=candidate.persistent)
        )
        return candidate

    return FallbackChain((TWO_WAY, ONE_WAY), (), prepare, same_vendor=True)
