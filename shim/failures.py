"""What an error text is about: a vendor's words, put into Claude's classes (contract 5.3 and 5.8).

The first rule that matches wins; the texts are those of the recordings and of the vendor pages. A rule that is about
the model's API makes the result an API failure (contract S10); the others are the vendor's own trouble.
"""

import re
from typing import NamedTuple


class Failure(NamedTuple):
    """`cause` for `result.shim`, `error` for the assistant line, the HTTP status, and whether the API failed."""

    cause: str = ""
    error: str = "unknown"
    status: int | None = None
    api: bool = False


_AUTH = Failure("auth", "authentication_failed", None, True)
_RATE = Failure("rate_limit", "rate_limit", None, True)
_SERVER = Failure("vendor_error", "server_error", None, True)
_MODEL = Failure("vendor_error", "model_not_found", None, True)
_BILLING = Failure("rate_limit", "billing_error", None, True)
_REQUEST = Failure("vendor_error", "invalid_request", None, True)

# fmt: off
_TEXTS: tuple[tuple[str, Failure], ...] = (
    (r"credit balance|insufficient.{0,12}(quota|credit|funds)|billing",                                      _BILLING),
    (r"usage limit|rate.?limit|too many requests|quota exceeded|quota.{0,20}exhausted|resource.?exhausted",  _RATE),
    (r"(invalid|incorrect|missing|no) api.?key|api.?key (is |was )?(invalid|missing|not (set|found|provided))"
     r"|unauthori[sz]ed|authentication (required|failed|error)|not (logged|signed) in|please (log|sign) ?in"
     r"|no auth type|_API_KEY.? (is )?not set|provided api key is invalid|run '?(agent|cursor-agent)? ?login",  _AUTH),
    (r"maximum context length|context.?(length|window).{0,40}exceed|prompt is too long|too many tokens",     _REQUEST),
    (r"model.{0,60}(not found|does not exist|not exist|unavailable)|unknown model|cannot use this model",    _MODEL),
    (r"overloaded|internal server error|bad gateway|service unavailable|server.?error",                      _SERVER),
    (r"connection (error|refused|reset|closed)|ECONNREFUSED|ECONNRESET|ENOTFOUND|fetch failed|socket hang up"
     r"|other side closed|stream ended|terminated: ",                                                        _SERVER),
)
# A status code counts where an error begins or names itself, never in the middle of prose.
_STATUS = r"(?:^|error:? ?|status:? ?(?:code:? ?)?|http ?|\[|\"(?:code|status)\": ?)\s*([45]\d\d)\b"
# fmt: on

_BY_STATUS = {
    400: Failure("vendor_error", "unknown", 400, True),
    401: _AUTH,
    402: _BILLING,
    403: _AUTH,
    404: _MODEL,
    413: _REQUEST,
    429: _RATE,
}
READ_CHARACTERS = 4000  # an error says what it is about at its beginning


def classify(text: str) -> Failure:
    """The class of an error text; an empty `cause` when nothing is recognised."""
    text = text[:READ_CHARACTERS]
    status = int(found[1]) if (found := re.search(_STATUS, text, re.I)) else None
    for pattern, failure in _TEXTS:
        if re.search(pattern, text, re.I):
            return Failure(failure.cause, failure.error, status, True)
    if status is None:
        return Failure()
    failure = _BY_STATUS.get(status, _SERVER if status >= 500 else _REQUEST)
    return Failure(failure.cause, failure.error, status, True)
