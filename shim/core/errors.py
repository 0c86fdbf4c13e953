"""Whose fault it was: the frontend that called us, or the vendor program that we called."""

from shim.core.api_errors import Cause
from shim.core.ids import parse_uuid
from shim.core.skipped import Tried


class ShimError(Exception):
    """A failure with a sentence for the person who can end it.

    `str(error)` is the whole line for stderr: what was found, what is allowed. `hint` is a next step, or "".
    `vendor` is set when it is known whose turn it was; `cause` is what its result says (surface page); `tried` are the
    vendors of a list that were asked before that one.
    """

    cause: Cause = "refused"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        self.vendor = ""
        self.tried: tuple[Tried, ...] = ()


class FrontendError(ShimError):
    """They called us wrongly: arguments that the real `claude` refuses too (contract 11)."""


class ModeError(FrontendError):
    """A vendor has no way to honour the permission mode; another one of a list may have."""


class VendorError(ShimError):
    """The child is missing or misbehaved."""

    cause = "not_found"


class MachineError(ShimError):
    """The machine has nothing left: neither the frontend nor the vendor could have done better."""

    cause = "internal"


class ArgumentError(FrontendError):
    """A mistake in the arguments that the real `claude` refuses with nothing on stdout (contract F4, F6)."""


class UnrecordedError(FrontendError):
    """The settings want no turn that is not recorded, and this one cannot be."""


class UnknownSessionError(FrontendError):
    """A session that is to go on and that nobody knows; Claude's words for it (contract F7, 5.10)."""

    def __init__(self, given: str) -> None:
        if parse_uuid(given):
            super().__init__(f"No conversation found with session ID: {given}")
        else:
            super().__init__(
                "Error: --resume requires a valid session ID or session title when used with --print. Usage: "
                f'claude -p --resume <session-id|title>. Provided value "{given}" is not a UUID and does not match '
                "any session title."
            )
