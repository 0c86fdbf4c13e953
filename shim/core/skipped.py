"""A vendor of a list that did not answer, and why: how `init.shim`, `result.shim` and an error say it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shim.core.api_errors import CAUSES, Cause
from shim.core.reading.account import printable

# Of a vendor's words why it did not answer: they stand in each init and each result, and are for a person to read.
REASON_CHARACTERS = 300
NAME_CHARACTERS = 32  # of a vendor
PASSED_OVER = "passed_over"  # the kind of a recording's note that says it; `started`: the child before it was its own


class Tried(NamedTuple):
    """One vendor that was asked before: its name, the cause that its own result would have had, its words."""

    vendor: str
    cause: Cause
    reason: str

    def fact(self) -> dict[str, Any]:
        """As JSON, for `shim.tried`."""
        return {"vendor": self.vendor, "cause": self.cause, "reason": self.reason}


def tried(vendor: str, cause: Cause, words: str) -> Tried:
    """With the words on one line, safe to print, and no more than a person reads."""
    reason = " ".join(printable(words).split())
    if len(reason) > REASON_CHARACTERS:
        reason = reason[: REASON_CHARACTERS - 1] + "…"
    return Tried(vendor, cause, reason)


def listed(before: Sequence[Tried]) -> str:
    """What stands behind the error of the last vendor of a list when none of them answered."""
    return "".join(f"\n{it.vendor} did not answer either ({it.cause}): {it.reason}" for it in before)


def read_tried(fact: Mapping[str, Any]) -> Tried:
    """The reverse of `fact`, whatever a file says."""
    cause: Cause = next((cause for cause in CAUSES if cause == fact.get("cause")), "vendor_error")
    return tried(str(fact.get("vendor"))[:NAME_CHARACTERS], cause, str(fact.get("reason")))
