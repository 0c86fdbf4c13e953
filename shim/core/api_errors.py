"""Classifies vendors' error texts by Claude's error classes (contract 5.3 and 5.8), and formats
errors like Claude.

The first matching pattern wins. The patterns were written for texts from recordings and from
vendors' documentation. A text that matches a pattern is about the model's API, so the result is an
API failure (contract S10). Any other text is an error of the vendor's program.

The second part of the module formats each class in Claude's words (contract 5.8), followed by the
vendor's own text. Clients check the beginning of the formatted text. ACP asks for a login after
`Please run /login`, and other clients show the text after `API Error:`. If a vendor reports no HTTP
status, the formatted text has none.
"""

import re
from typing import Literal, get_args

import orjson

from shim.core.reading.typed import NamedTuple

# All values of `result.shim.cause`. The test helper `result_consistency.py` lists the result fields
# that each cause requires.
TurnEndCause = Literal[
    "clean",
    "vendor_error",  # the vendor reported an error
    "auth",
    "rate_limit",
    "limit",  # a limit for turns, time or cost that the user set
    "denied",  # a forbidden tool call had already started
    "refused",  # the shim, the vendor's trust prompt or the model's filter refused the turn
    "truncated",  # the output ended without an end event, or before the work was done
    "exit_code",
    "signal",
    "stall",
    "interrupted",
    "not_found",  # the vendor's program or the session does not exist
    "protocol",  # the vendor's output does not have the expected format
    "internal",
]
CAUSES = frozenset(get_args(TurnEndCause))
# The causes in words, printed after "failed: " or in brackets. The cause `refused` may also mean
# the model's filter, and `not_found` may also mean an unknown session. `shim.story.terminal.totals`
# distinguishes these cases.
CAUSE_DESCRIPTIONS: dict[str, str] = {
    "vendor_error": "the vendor reported an error",
    "auth": "not logged in or invalid API key",
    "rate_limit": "rate limit reached",
    "limit": "limit reached",
    "denied": "a denied call had started",
    "refused": "could not start",
    "truncated": "the output ended early",
    "exit_code": "the vendor exited with an error",
    "signal": "stopped by a signal",
    "stall": "timed out",
    "interrupted": "interrupted",
    "not_found": "not installed",
    "protocol": "unexpected output",
    "internal": "internal error",
    "api_error": "API error",
}


def describe_cause(cause: str) -> str:
    """Return the cause of a failed turn in words. An unknown cause is returned without its
    underscores.
    """
    return CAUSE_DESCRIPTIONS.get(cause, cause.replace("_", " "))


class ApiFailure(NamedTuple):
    """A failure: a key of FAILURE_KINDS, and the HTTP status from the error text or the vendor."""

    kind: str = ""
    status: int | None = None

    @property
    def is_recognized_api_failure(self) -> bool:
        """Whether the failure is known to be a failure of the model's API."""
        return bool(self.kind)

    @property
    def cause(self) -> TurnEndCause:
        """The failure's cause in `result.shim`. An unknown error has the cause `vendor_error`."""
        return FAILURE_KINDS[self.kind].cause

    @property
    def assistant_error(self) -> str:
        """The `error` field for Claude's assistant message."""
        return FAILURE_KINDS[self.kind].error

    @property
    def api_retry_error_code(self) -> str:
        """The `error` field for an `api_retry` message. It distinguishes an overload from other
        server errors.
        """
        if self.kind == "overload":
            return "overloaded"
        return self.assistant_error

    @property
    def error_type(self) -> str | None:
        """The `api_error_type` for the failure's HTTP status, or None if there is no status."""
        if self.status is None:
            return None
        return ERROR_TYPE_BY_STATUS.get(
            self.status, "api_error" if self.status >= 500 else "invalid_request_error"
        )

    @property
    def terminal_reason(self) -> str:
        """The `terminal_reason` field for the result."""
        return FAILURE_KINDS[self.kind].terminal_reason


class ApiFailureKind(NamedTuple):
    """A class of failures: its cause, the `error` field for the assistant message, and the
    `terminal_reason` for the result.
    """

    cause: TurnEndCause
    error: str
    terminal_reason: str = "api_error"


# fmt: off
FAILURE_KINDS = {
    "":           ApiFailureKind("vendor_error", "unknown",               "model_error"),
    # the HTTP status is 400, and the error text names no known reason
    "request":    ApiFailureKind("vendor_error", "unknown"),
    # the user is not logged in
    "login":      ApiFailureKind("auth",         "authentication_failed"),
    # the API rejected the user's login
    "key":        ApiFailureKind("auth",         "authentication_failed"),
    "forbidden":  ApiFailureKind("auth",         "authentication_failed"),
    "billing":    ApiFailureKind("rate_limit",   "billing_error"),
    "rate":       ApiFailureKind("rate_limit",   "rate_limit"),
    "model":      ApiFailureKind("vendor_error", "model_not_found"),
    "too_long":   ApiFailureKind("vendor_error", "invalid_request",       "prompt_too_long"),
    "too_large":  ApiFailureKind("vendor_error", "invalid_request",       "image_error"),
    "invalid":    ApiFailureKind("vendor_error", "invalid_request"),
    "filtered":   ApiFailureKind("refused",      "invalid_request"),
    "output":     ApiFailureKind("truncated",    "max_output_tokens"),
    "overload":   ApiFailureKind("vendor_error", "server_error"),
    "server":     ApiFailureKind("vendor_error", "server_error"),
    # the connection failed, so there was no HTTP response
    "refused":    ApiFailureKind("vendor_error", "server_error"),
    "connection": ApiFailureKind("vendor_error", "server_error"),
}

_KIND_PATTERNS: tuple[tuple[str, str], ...] = (
    (r"credit balance|insufficient.{0,12}(quota|credit|funds|balance)|billing|payment required",          "billing"),
    (r"usage limit|rate.?limit|too many requests|quota exceeded|quota.{0,20}exhausted|resource.?exhausted","rate"),
    (r"not (logged|signed) in|please (log|sign) ?in|run '?(agent|cursor-agent)? ?login|authentication required"
     r"|(missing|no) api.?key|api.?key (is |was )?(missing|required|not (set|found|provided))|no auth type"
     r"|_API_KEY.? (is )?not set|must specify the \w{1,40}_API_KEY|set an auth method|invalid auth method"
     r"|^missing environment variable|missing bearer|sign in again|no authentication information",         "login"),
    (r"(invalid|incorrect) api.?key|api.?key (is |was )?(invalid|not valid)|unauthori[sz]ed|unauthenticated"
     r"|authentication (failed|error)|provided api key is invalid",                                       "key"),
    (r"maximum context length|context.?(length|window).{0,40}exceed|prompt is too long|too many tokens"
     r"|context overflow|ran out of room in the model",                                                   "too_long"),
    (r"(?<!metadata for )model (?!metadata).{0,60}(not found|does not exist|not exist|unavailable)|unknown model"
     r"|cannot use this model|models unavailable|model is not supported",                                 "model"),
    (r"content.?filter|content.?policy|safety (system|filter)",                                           "filtered"),
    (r"(maximum|max) (output|completion) tokens|output token (limit|maximum)",                            "output"),
    (r"overloaded|model is at capacity",                                                                  "overload"),
    (r"internal server error|bad gateway|service unavailable|server.?error"
     r"|stream (ended|disconnected)|experiencing high demand",                                            "server"),
    (r"connection refused|ECONNREFUSED|connect.{0,30} refused|could(n't| not) connect to",                "refused"),
    (r"connection (error|reset|closed|lost|failed|aborted)|ECONNRESET|ENOTFOUND|ETIMEDOUT|EAI_AGAIN|fetch failed"
     r"|socket hang up|other side closed|terminated: |^terminated$|network error"
     r"|error sending request|request timed out",                                                         "connection"),
)
# Matches an HTTP status at the beginning of an error text or after a label, but not within a
# sentence.
_STATUS_PATTERN = (
    r"(?:^|error:? ?|status:? ?(?:code:? ?)?|http ?|\[|\"(?:code|status|status_?code)\": ?)"
    r"\s*([45]\d\d)\b"
)

_KIND_BY_STATUS = {
    400: "request", 401: "key", 402: "billing", 403: "forbidden", 404: "model", 413: "too_large", 429: "rate",
    529: "overload",
}
ERROR_TYPE_BY_STATUS = {
    400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 403: "permission_error",
    404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error", 529: "overloaded_error",
}
# fmt: on

MAX_READ_CHARS = 4000  # enough to classify an error text


def classify_api_error(text: str, status: int | None = None) -> ApiFailure:
    """Return the failure class for an error text. A `status` from the vendor takes precedence over
    a status in the text.
    """
    text = text[:MAX_READ_CHARS]
    if status is None and (match := re.search(_STATUS_PATTERN, text, re.I)):
        status = int(match[1])
    for pattern, kind in _KIND_PATTERNS:
        if re.search(pattern, text, re.I):
            return ApiFailure(_refine_kind(kind, status), status)
    if status is None:
        return ApiFailure()
    return ApiFailure(_classify_status(status), status)


def _classify_status(status: int) -> str:
    return _KIND_BY_STATUS.get(status, "server" if status >= 500 else "invalid")


def _refine_kind(kind: str, status: int | None) -> str:
    """Return the failure kind for an error text. If two kinds have similar texts, the HTTP status
    decides.
    """
    if kind == "key" and status == 403:
        return "forbidden"
    # With an HTTP status, the request was too large. Without one, the answer was cut off.
    if kind == "output" and status is not None:
        return _classify_status(status)
    if kind == "server" and status == 529:
        return "overload"
    return kind


# The beginning of Claude's error text for each failure kind. {status} is a text such as "500 ", or
# "". {model} is the requested model. The vendor's text follows, separated by " · " or a newline
# unless the beginning ends with a space.
TEXT_STARTS = {
    "key": "Invalid API key · Fix external API key",
    "forbidden": "Failed to authenticate. API Error: {status}",
    "billing": "Credit balance is too low",
    "model": "There's an issue with the selected model ({model}). ",
    "too_long": "Prompt is too long",
    "too_large": "Request too large. ",
    "overload": "API Error: {status}Overloaded. "
    "This is a server-side issue, usually temporary — try again in a moment. ",
    "refused": "API Error: Connection refused — ",
    "connection": "API Error: Connection error — ",
}
UNKNOWN_MODEL_TEXT = (
    TEXT_STARTS["model"]
    + "Claude has no model of this name. Choose a different model with --model."
)
NOT_LOGGED_IN_TEXT = "Not logged in · Please run /login"
_API_ERROR_PREFIX = "API Error: "
_ERROR_PREFIXES = ("API Error:", "Error:")
_BRACKETED_PREFIX = "[API Error:"  # printed by qwen and gemini


def format_api_error(
    failure: ApiFailure, message: str, *, vendor: str, login_hint: str, model: str
) -> str:
    """Return the error text that Claude would write. `login_hint` says how to log in with this
    vendor, or is "" if that is unknown.
    """
    if failure.kind == "login":
        hint_line = ""
        if login_hint:
            hint_line = f"\nhint: {login_hint}"
        return f"{NOT_LOGGED_IN_TEXT}{hint_line}\n{vendor}: {strip_error_prefixes(message, None)}"
    detail = strip_error_prefixes(message, failure.status)
    status_text = ""
    status_prefix = ""
    if failure.status is not None:
        status_text = str(failure.status)
        status_prefix = f"{status_text} "
    if failure.kind == "rate":
        start = "API Error: Rate limited"
        if status_text:
            start = f"API Error: Request rejected ({status_text})"
    else:
        start = TEXT_STARTS.get(failure.kind, "API Error: {status}")
        start = start.format(status=status_prefix, model=model or "unknown")
    if start.endswith(" — ") and detail.lower().startswith(
        start.removeprefix(_API_ERROR_PREFIX).removesuffix(" — ").lower()
    ):
        start = _API_ERROR_PREFIX  # the vendor's text already starts with the rest of Claude's text
    if status_text not in start and not detail.startswith(start):
        detail = f"{status_text} {detail}".rstrip()
    return _join_texts(start, detail)


def _join_texts(start: str, detail: str) -> str:
    if not detail or detail.lower() == start.lower():
        return start.rstrip(" —")
    if detail.lower().startswith(start.lower()):
        return start + detail[len(start) :]
    if start.endswith(" "):
        return start + detail
    if "\n" in detail:
        return f"{start}\n{detail}"
    return f"{start} · {detail}"


def strip_error_prefixes(message: str, status: int | None) -> str:
    """Return an error text without the parts that are repeated in Claude's own text: prefixes, the
    HTTP status, and the surrounding JSON body.
    """
    detail = message.strip()
    if detail.startswith(_BRACKETED_PREFIX):
        detail = detail[1:].removesuffix("]")
    while detail.startswith(_ERROR_PREFIXES):
        detail = detail.partition(":")[2].lstrip()
    detail = _find_body_message(detail) or detail
    if (
        status is not None
        and detail.startswith(status_text := str(status))
        and not detail[len(status_text) :][:1].isalnum()
    ):
        detail = detail[len(status_text) :].lstrip(": ")
    return detail


def _find_body_message(text: str) -> str:
    """Return the message in the JSON body at the end of an error text, or ""."""
    start = text.find("{")
    if start < 0 or len(text) > MAX_READ_CHARS or not text.rstrip(' "\n').endswith("}"):
        return ""
    try:
        body = orjson.loads(text[start : text.rindex("}") + 1])
    except orjson.JSONDecodeError:
        return ""
    for key in ("error", "data"):  # used by APIs and by opencode's own errors
        if isinstance(body.get(key), dict):
            body = body[key]
    message = body.get("message")
    if isinstance(message, str):
        return message.strip()
    return ""
