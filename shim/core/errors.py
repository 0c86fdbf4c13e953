"""The shim's errors, classified by their origin: the frontend, the vendor or the machine.

The user may configure a list of vendors. Each vendor is a fallback for the vendors before it in the
list. If a vendor fails and a fallback is left, no error is raised. The failure becomes a
`FailedVendorAttempt`, which `init.shim`, `result.shim` and error texts include.
"""

from collections.abc import Iterable, Mapping, Sequence

from shim.core.reading.typed import TYPE_CHECKING, Any, NamedTuple
from shim.core.reading.values import canonicalize_uuid, escape_control_chars, shorten_end

if TYPE_CHECKING:
    from shim.core.api_errors import TurnEndCause

# The maximum length of a vendor's reason. Every `init` and every `result` message repeats the
# reason.
MAX_REASON_CHARS = 300
MAX_VENDOR_NAME_CHARS = 32
MAX_SUGGESTION_INPUT_CHARS = 60  # no valid name is longer
# The kind of the recorder note about a failed attempt. If the note's field `started` is true, the
# last child process recorded before the note belongs to this attempt.
NOTE_PASSED_OVER = "passed_over"


def explain_os_error(error: Exception) -> str:
    """Return the system's message for an error, without the path. For an error that is not from
    the system, return its text.
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)


class FailedVendorAttempt(NamedTuple):
    """A vendor that did not answer, so that the next vendor in the list was tried: the vendor's
    name, the cause of the failure, and the vendor's own reason.
    """

    vendor: str
    cause: "TurnEndCause"
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return the attempt's entry in `shim.tried`."""
        return {"vendor": self.vendor, "cause": self.cause, "reason": self.reason}


def create_failed_vendor_attempt(
    vendor: str, cause: "TurnEndCause", reason_text: str
) -> FailedVendorAttempt:
    """Create a `FailedVendorAttempt`. The reason is shortened to one line of printable text."""
    reason = " ".join(escape_control_chars(reason_text).split())
    return FailedVendorAttempt(vendor, cause, shorten_end(reason, MAX_REASON_CHARS))


def format_failed_attempts(attempts: Sequence[FailedVendorAttempt]) -> str:
    """Return a line for each failed attempt. The lines are added to the error text of a turn that
    no configured vendor has answered.
    """
    from shim.core.api_errors import describe_cause

    return "".join(
        f"\n{attempt.vendor} did not answer either ({describe_cause(attempt.cause)}): {attempt.reason}"
        for attempt in attempts
    )


def parse_failed_attempt(fields: Mapping[str, Any]) -> FailedVendorAttempt:
    """Parse an object written by `to_json`. Any JSON is accepted, and an unknown cause becomes
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
    """Return a suggestion for an error about an unknown word: the candidate with the most similar
    spelling. Return "" if no candidate is similar.
    """
    from difflib import get_close_matches

    matches = get_close_matches(name[:MAX_SUGGESTION_INPUT_CHARS], list(candidates), 1)
    if matches:
        return f"{prefix}did you mean `{matches[0]}`?"
    return ""


class ShimError(Exception):
    """An error with a sentence for the person who can fix it.

    `str(error)` is the complete line for stderr: what was found, and what is allowed. `hint` is a
    next step, or "". `vendor` is the turn's vendor, if known. `cause` is the cause in the turn's
    result. `failed_attempts` are the vendors that failed before `vendor` was started.
    """

    cause: "TurnEndCause" = "refused"
    is_claude_text = False  # the text is the real claude's and is printed unchanged

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        self.vendor = ""
        self.failed_attempts: tuple[FailedVendorAttempt, ...] = ()


class FrontendError(ShimError):
    """The frontend used the shim incorrectly. The real `claude` refuses the same use (contract 11)."""


class CommandUsageError(FrontendError):
    """A command has wrong arguments. `shim` exits with status 2."""


class StartInterruptedError(ShimError):
    """A signal arrived before a child was started."""

    def __init__(self, signal_number: int, signal_name: str) -> None:
        super().__init__(f"stopped by {signal_name} before the turn started")
        self.signal_number = signal_number


class UnsupportedPermissionModeError(FrontendError):
    """The vendor does not support the permission mode. If several vendors are configured, the next
    vendor may support it.
    """


class UntrustedVendorVersionError(UnsupportedPermissionModeError):
    """A turn needs a guarantee from the vendor's profile, but the guarantee does not hold for the
    installed version of the vendor's program.
    """

    def __init__(self, message: str, hint: str, distrust_reason: str) -> None:
        """Create the error. `distrust_reason` is the reason why the guarantees do not hold for the
        installed version.
        """
        super().__init__(message, hint)
        self.distrust_reason = distrust_reason


class VendorError(ShimError):
    """The vendor's program is missing or does not behave as expected."""

    cause = "not_found"


class SystemResourceError(ShimError):
    """The machine has too little memory or disk space, or too many processes. Neither the frontend
    nor the vendor is the cause.
    """

    cause = "internal"


class CliArgumentError(FrontendError):
    """An argument error that the real `claude` reports only on stderr, with no output on stdout
    (contract F4, F6).
    """

    is_claude_text = True


class RecordingRequiredError(FrontendError):
    """The settings require a recording of every turn, but this turn cannot be recorded."""


class UnknownSessionError(FrontendError):
    """The session to resume does not exist. The error text is Claude's (contract F7, 5.10)."""

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
    """The session does not contain the message named by `--resume-session-at`. The error text is
    the real claude's.
    """

    def __init__(self, uuid: str) -> None:
        FrontendError.__init__(
            self, f"No message found with message.uuid of: {escape_control_chars(uuid)}"
        )


class ResumeRejectedError(UnknownSessionError):
    """The session cannot be resumed at a message without dropping more than the turn named by
    `--resume-drops-turn`. Frontends match the beginning of the error text, which is Claude's.
    """

    def __init__(self, reason: str) -> None:
        FrontendError.__init__(
            self, f"Resume rejected by --resume-drops-turn: {escape_control_chars(reason)}"
        )


def format_error(error: ShimError) -> str:
    """Return the lines that report an error on stderr: `error: TEXT`, and `hint: HINT` if there is
    a hint.

    An error text of the real claude is printed without the prefix `error: `.
    """
    text = str(error)
    if not error.is_claude_text and not text.lower().startswith("error: "):
        text = f"error: {text}"
    if error.hint:
        return f"{text}\nhint: {error.hint}"
    return text
