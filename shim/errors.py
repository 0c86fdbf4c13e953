"""Whose fault it was: the frontend that called us, or the vendor program that we called."""


class ShimError(Exception):
    """A failure with a sentence for the person who can end it.

    `str(error)` is the whole line for stderr: what was found, what is allowed. `hint` is a next step, or "".
    `vendor` is set when it is known whose turn it was.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        self.vendor = ""


class FrontendError(ShimError):
    """They called us wrongly: arguments that the real `claude` refuses too (contract 11)."""


class VendorError(ShimError):
    """The child is missing or misbehaved."""
