"""The ordered candidates for answering a message: several vendors, or several drivers of one
vendor.

Candidates are tried one at a time. The next candidate is tried only if the current one fails to
answer.
"""

from collections.abc import Callable, Sequence

from shim.conversation.drivers.launcher import ChildLauncher
from shim.core.errors import FailedVendorAttempt, ShimError
from shim.core.reading.typed import NamedTuple


class FallbackCandidate(NamedTuple):
    """A vendor or driver that can be tried, with its launcher."""

    launcher: ChildLauncher
    persistent: bool  # one child serves the whole conversation
    refusal_error: ShimError | None = None  # why its turns are refused


class FallbackChain:
    """The candidates for answering a message, in the order in which they are tried.

    vendor_names       the names of the candidates
    skipped_attempts   the vendors earlier in the list that cannot start, with the reasons
    prepare_candidate  returns the candidate for a name, and switches the session to it
    same_vendor        the names are drivers of one vendor; the next driver is used only if no
                       session has started
    """

    def __init__(
        self,
        vendor_names: Sequence[str],
        skipped_attempts: Sequence[FailedVendorAttempt],
        prepare_candidate: Callable[[str], FallbackCandidate],
        *,
        same_vendor: bool = False,
    ) -> None:
        self.skipped_attempts = tuple(skipped_attempts)
        self.same_vendor = same_vendor
        self._vendor_names = tuple(vendor_names)
        self._prepare_candidate = prepare_candidate
        self._index = 0

    @property
    def has_next_candidate(self) -> bool:
        """Return whether the chain has another candidate after the current one."""
        return self._index + 1 < len(self._vendor_names)

    @property
    def is_past_first_candidate(self) -> bool:
        """Return whether the current candidate comes after the first."""
        return self._index > 0

    def select_first_candidate(self) -> FallbackCandidate:
        self._index = 0
        return self._prepare_candidate(self._vendor_names[0])

    def select_next_candidate(self) -> FallbackCandidate:
        """Select the next candidate. Raise ShimError if its vendor's settings have an error."""
        self._index += 1
        return self._prepare_candidate(self._vendor_names[self._index])
