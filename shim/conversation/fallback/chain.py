"""The candidates that may answer in each other's place: vendors, or the drivers of one vendor.

One candidate is asked at a time; the next one is asked if it does not answer.
"""

from collections.abc import Callable, Sequence

from shim.conversation.drivers.launcher import ChildLauncher
from shim.core.errors import FailedVendorAttempt, ShimError
from shim.core.reading.typed import NamedTuple


class FallbackCandidate(NamedTuple):
    """A vendor that may answer."""

    launcher: ChildLauncher
    persistent: bool  # one child of it serves the whole conversation
    refusal_error: ShimError | None = None  # why its turns are refused


class FallbackChain:
    """The vendors called `vendor_names`, in this order; the first one is asked first.

    `skipped_attempts` are vendors that stood before them and cannot start. `prepare_candidate`
    gives the candidate of a name; from then on the frontend's questions are answered for that
    vendor. `same_vendor`: the names are ways of one vendor, and the next way is only taken where no
    session began.
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
        """Whether there is another vendor behind the one that is asked."""
        return self._index + 1 < len(self._vendor_names)

    @property
    def is_past_first_candidate(self) -> bool:
        """Whether another vendor than the first is asked."""
        return self._index > 0

    def select_first_candidate(self) -> FallbackCandidate:
        self._index = 0
        return self._prepare_candidate(self._vendor_names[0])

    def select_next_candidate(self) -> FallbackCandidate:
        """Go on to the next vendor. ShimError for a mistake in its settings."""
        self._index += 1
        return self._prepare_candidate(self._vendor_names[self._index])
