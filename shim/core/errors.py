"""Errors, classified by their origin: the frontend, the vendor or the machine.

A vendor of a list that did not answer is not an error yet. `init.shim`, `result.shim` and error
texts contain it as a `FailedVendorAttempt`.
"""

from collections.abc import Iterable, Mapping, Sequence

from shim.core.reading.diagnostics import escape_control_chars
from shim.core.reading.typed import TYPE_CHECKING, Any, NamedTuple
from shim.core.reading.values import canonicalize_uuid

if TYPE_CHECKING:
    from shim.core.api_errors import TurnEndCause

# The maximum length of a vendor's reason. Every `init` and every `result` repeats it for a person.
MAX_REASON_CHARS = 300
MAX_VENDOR_NAME_CHARS = 32
MAX_SUGGESTION_INPUT_CHARS = 60  # of a misspelled word; no valid name is longer
# The kind of a recording's note about a failed attempt. If its field `started` is true, the last
# child that was recorded before the note is the child of this attempt.
NOTE_PASSED_OVER = "passed_over"


class FailedVendorAttempt(NamedTuple):
    """A vendor that was asked before and did not answer: its name, the cause that its result would
    have, and the reason in its own words.
    """

    vendor: str
    cause: "TurnEndCause"
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the attempt in `shim.tried`."""
        return {"vendor": self.vendor, "cause": self.cause, "reason": self.reason}


def create_failed_vendor_attempt(
    vendor: str, cause: "TurnEndCause", reason_text: str
) -> FailedVendorAttempt:
    """Create a `FailedVendorAttempt`. Its reason is one short printable line."""
    reason = " ".join(escape_control_chars(reason_text).split())
    if len(reason) > MAX_REASON_CHARS:
        reason = reason[: MAX_REASON_CHARS - 1] + "…"
    return FailedVendorAttempt(vendor, cause, reason)


def format_failed_attempts(attempts: Sequence[FailedVendorAttempt]) -> str:
    """Return the end of the last vendor's error if no vendor of a list answered."""
    from shim.core.api_errors import describe_cause

    return "".join(
        f"\n{attempt.vendor} did not answer either ({describe_cause(attempt.cause)}): {attempt.reason}"
        for attempt in attempts
    )


def parse_failed_attempt(fields: Mapping[str, Any]) -> FailedVendorAttempt:
    """Parse the fields of `to_json`. Any JSON is accepted, and an unknown cause is a
    `vendor_error`.
    """
    from shim.core.api_errors import CAUSES

    cause: TurnEndCause = next(
        (cause for cause in CAUSES if cause == fields.get("cause")), "vendor_error"
    )
    return create_failed_vendor_attempt(
        str(fields.get("vendor"))[:MAX_VENDOR_NAME_CHARS], cause, str(fields.get("reason"))
    )


def format_spelling_suggestion(name: str, candidates: Iterable[str], prefix: str = ", ") -> str:
    """Return the end of a sentence about an unknown word: a suggestion of the most similar
    candidate, or "" if none is similar.
    """
    from difflib import get_close_matches

    matches = get_close_matches(name[:MAX_SUGGESTION_INPUT_CHARS], list(candidates), 1)
    if matches:
        return f"{prefix}did you mean `{matches[0]}`?"
    return ""


class ShimError(Exception):
    """A failure, with a sentence for the person who can fix it.

    `str(error)` is the complete line for stderr: what was found, and what is allowed. `hint` is a
    next step, or "". `vendor` is the vendor of the turn, if known. `cause` is the cause in the
    turn's result. `failed_attempts` are the vendors of a list that were asked before that vendor.
    """

    cause: "TurnEndCause" = "refused"
    is_claude_text = False  # stderr gets the text as it is, because the real claude prints it

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        self.vendor = ""
        self.failed_attempts: tuple[FailedVendorAttempt, ...] = ()


class FrontendError(ShimError):
    """The frontend used the shim incorrectly, in a way that the real `claude` also refuses
    (contract 11).
    """


class CommandUsageError(FrontendError):
    """The arguments of a command are wrong. `shim` exits with status 2."""


class UnsupportedPermissionModeError(FrontendError):
    """The vendor does not support the permission mode. Another vendor of a list may support it."""


class UntrustedVendorVersionError(UnsupportedPermissionModeError):
    """A turn needs a guarantee of the vendor's profile that does not hold for the installed version
    of its program.
    """

    def __init__(self, message: str, hint: str, distrust_reason: str) -> None:
        """`distrust_reason` is why the guarantees do not hold for this version."""
        super().__init__(message, hint)
        self.distrust_reason = distrust_reason


class VendorError(ShimError):
    """The vendor's program is missing or does not behave as expected."""

    cause = "not_found"


class SystemResourceError(ShimError):
    """The machine lacks memory, disk space or processes. Neither the frontend nor the vendor is the
    cause.
    """

    cause = "internal"


class CliArgumentError(FrontendError):
    """An error in the arguments that the real `claude` refuses without output on stdout (contract
    F4, F6).
    """

    is_claude_text = True


class RecordingRequiredError(FrontendError):
    """The settings forbid a turn without a recording, and this turn cannot be recorded."""


class UnknownSessionError(FrontendError):
    """The session to resume does not exist. The text is Claude's (contract F7, 5.10)."""

    is_claude_text = True

    def __init__(self, session_reference: str) -> None:
        if canonicalize_uuid(session_reference):
            super().__init__(f"No conversation found with session ID: {session_reference}")
        else:
            super().__init__(
                "Error: --resume requires a valid session ID or session title when used with --print. Usage: "
                "claude -p --resume <session-id|title>. "
                f'Provided value "{session_reference}" is not a UUID and does not match any '
                "session title."
            )


class UnknownMessageError(UnknownSessionError):
    """The session does not have the message of `--resume-session-at`. The text is the real
    claude's.
    """

    def __init__(self, uuid: str) -> None:
        FrontendError.__init__(
            self, f"No message found with message.uuid of: {escape_control_chars(uuid)}"
        )


def format_error(error: ShimError) -> str:
    """Return the lines of an error for stderr: `error: TEXT`, and `hint: HINT` if it has a hint.

    A text of the real claude gets no second prefix.
    """
    text = str(error)
    if not error.is_claude_text and not text.lower().startswith("error: "):
        text = f"error: {text}"
    if error.hint:
        return f"{text}\nhint: {error.hint}"
    return text
