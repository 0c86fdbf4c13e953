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
    persistent: bool  # one child serves the whole conversation
    refusal_error: ShimError | None = None  # why its turns are refused


class FallbackChain:
    """The vendors called `vendor_names`, in this order. The first one is asked first.

    `skipped_attempts` are the earlier vendors that cannot start. `prepare_candidate` returns the
    candidate of a name; after that the frontend's requests are answered for that vendor.
    `same_vendor`: the names are drivers of one vendor, and the next one is used only if no session
    began.
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
        """Return whether there is another vendor after this one."""
        return self._index + 1 < len(self._vendor_names)

    @property
    def is_past_first_candidate(self) -> bool:
        """Return whether another vendor than the first is asked."""
        return self._index > 0

    def select_first_candidate(self) -> FallbackCandidate:
        self._index = 0
        return self._prepare_candidate(self._vendor_names[0])

    def select_next_candidate(self) -> FallbackCandidate:
        """Select the next vendor. Raise ShimError for an error in its settings."""
        self._index += 1
        return self._prepare_candidate(self._vendor_names[self._index])
