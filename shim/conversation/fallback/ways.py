"""The two ways in which one vendor can be driven: the other one answers where the first does not start."""

from shim.conversation.drivers.launcher import Launcher, serving
from shim.conversation.fallback.candidates import Candidate, Candidates
from shim.state.config import ONE_WAY, TWO_WAY


def ways(first: Candidate, other: Launcher, *, listens: bool) -> Candidates:
    """The candidates of a vendor. `listens`: one child of the `other` launcher serves the conversation too."""
    made = {TWO_WAY: first, ONE_WAY: Candidate(other, listens)}

    def prepare(name: str) -> Candidate:
        candidate = made[name]
        candidate.launcher.facts.serve(serving(candidate.launcher.vendor, listens=candidate.listens))
        return candidate

    return Candidates((TWO_WAY, ONE_WAY), (), prepare, same_vendor=True)
