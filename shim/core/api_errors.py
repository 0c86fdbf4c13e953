"""What an error text is about: a vendor's words, put into Claude's classes (contract 5.3 and 5.8).

The first rule that matches wins; the texts are those of the recordings and of the vendor pages. A text that falls
under a rule is about the model's API, so the result is an API failure (contract S10); what no rule knows is the
vendor's own trouble. How Claude says each class is in `wording`.
"""

import re
from typing import Literal, NamedTuple, get_args

# All that `result.shim.cause` can say (hostile-input page, section 5); what each goes with is `tests/truth.py`.
Cause = Literal[
    "clean",
    "vendor_error",  # the vendor said that it failed
    "auth",
    "rate_limit",
    "limit",  # of turns, time or money, that the user set
    "denied",  # a call that must not run had begun
    "refused",  # by us before anything ran, by the vendor's trust gate, by the model's filter
    "truncated",  # it ended without a word about its end, or in the middle of its work
    "exit_code",
    "signal",
    "stall",
    "interrupted",
    "not_found",  # the vendor's program, the session
    "protocol",  # what it printed is not what it was started to print
    "internal",
]
CAUSES = frozenset(get_args(Cause))


class Failure(NamedTuple):
    """What failed: a key of KINDS, and the HTTP status where the text or the vendor names one."""

    kind: str = ""
    status: int | None = None

    @property
    def api(self) -> bool:
        """Whether it was the model's API that failed."""
        return bool(self.kind)

    @property
    def cause(self) -> Cause:
        """The cause for `result.shim`; what was not recognised is the vendor's own trouble."""
        return KINDS[self.kind].cause

    @property
    def error(self) -> str:
        """The `error` of Claude's assistant line."""
        return KINDS[self.kind].error

    @property
    def retry_error(self) -> str:
        """The `error` of an `api_retry` line, which tells an overload from other trouble of a server."""
        return "overloaded" if self.kind == "overload" else self.error

    @property
    def error_type(self) -> str | None:
        """The `api_error_type` that goes with the status; None without one."""
        if self.status is None:
            return None
        return TYPES.get(self.status, "api_error" if self.status >= 500 else "invalid_request_error")

    @property
    def reason(self) -> str:
        """The `terminal_reason` of the result."""
        return KINDS[self.kind].reason


class Kind(NamedTuple):
    """One class of failures: the cause, the `error` of the assistant line, the `terminal_reason`."""

    cause: Cause
    error: str
    reason: str = "api_error"


# fmt: off
KINDS = {
    "":           Kind("vendor_error", "unknown",               "model_error"),
    "request":    Kind("vendor_error", "unknown"),                            # 400, and what has no name of its own
    "login":      Kind("auth",         "authentication_failed"),              # nobody is logged in at all
    "key":        Kind("auth",         "authentication_failed"),              # somebody is, and is not believed
    "forbidden":  Kind("auth",         "authentication_failed"),
    "billing":    Kind("rate_limit",   "billing_error"),
    "rate":       Kind("rate_limit",   "rate_limit"),
    "model":      Kind("vendor_error", "model_not_found"),
    "too_long":   Kind("vendor_error", "invalid_request",       "prompt_too_long"),
    "too_large":  Kind("vendor_error", "invalid_request",       "image_error"),
    "invalid":    Kind("vendor_error", "invalid_request"),
    "filtered":   Kind("refused",      "invalid_request"),
    "output":     Kind("truncated",    "max_output_tokens"),
    "overload":   Kind("vendor_error", "server_error"),
    "server":     Kind("vendor_error", "server_error"),
    "refused":    Kind("vendor_error", "server_error"),                       # the connection, not the request
    "connection": Kind("vendor_error", "server_error"),
}

_TEXTS: tuple[tuple[str, str], ...] = (
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
# A status code counts where an error begins or names itself, never in the middle of prose.
_STATUS = r"(?:^|error:? ?|status:? ?(?:code:? ?)?|http ?|\[|\"(?:code|status|status_?code)\": ?)\s*([45]\d\d)\b"

_BY_STATUS = {
    400: "request", 401: "key", 402: "billing", 403: "forbidden", 404: "model", 413: "too_large", 429: "rate",
    529: "overload",
}
TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 403: "permission_error",
    404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error", 529: "overloaded_error",
}
# fmt: on

READ_CHARACTERS = 4000  # an error says what it is about at its beginning


def classify(text: str, status: int | None = None) -> Failure:
    """The class of an error text; a `status` that the vendor gives beside it counts more than one inside it."""
    text = text[:READ_CHARACTERS]
    if status is None and (found := re.search(_STATUS, text, re.I)):
        status = int(found[1])
    for pattern, kind in _TEXTS:
        if re.search(pattern, text, re.I):
            return Failure(_narrowed(kind, status), status)
    return Failure() if status is None else Failure(_by_status(status), status)


def _by_status(status: int) -> str:
    return _BY_STATUS.get(status, "server" if status >= 500 else "invalid")


def _narrowed(kind: str, status: int | None) -> str:
    """A class that the text names, when the status says which of two like ones it is."""
    if kind == "key" and status == 403:
        return "forbidden"
    if kind == "output" and status is not None:  # a request that asked for too much, not a reply that was cut
        return _by_status(status)
    return "overload" if kind == "server" and status == 529 else kind
