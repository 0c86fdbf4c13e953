"""The classification of error texts. The texts are those of the vendor pages and the fixtures."""

from sweeps import loop_over_rows

from shim.core.api_errors import classify_api_error

AUTH = ("auth", "authentication_failed")
RATE = ("rate_limit", "rate_limit")
BILLING = ("rate_limit", "billing_error")
SERVER = ("vendor_error", "server_error")
MODEL = ("vendor_error", "model_not_found")
REQUEST = ("vendor_error", "invalid_request")

TEXTS = [
    # cursor
    (
        "Authentication required. Please run 'agent login' first, or set CURSOR_API_KEY environment variable.",
        AUTH,
        None,
    ),
    ("Authentication required. Please run 'cursor-agent login' first.", AUTH, None),
    ("⚠ Warning: The provided API key is invalid.", AUTH, None),
    ("\x1b[33m⚠ Warning: The provided API key is invalid.\x1b[39m", AUTH, None),
    ("Cannot use this model: gpt-9. Available models: auto, …", MODEL, None),
    ("ActionRequiredError: Named models unavailable on your plan", MODEL, None),
    ("Error: You've hit your usage limit", RATE, None),
    # qwen
    ("401 Incorrect API key provided: dummy.", AUTH, 401),
    ("No auth type is selected. Please configure an auth type (e.g. via settings)", AUTH, None),
    ("Connection error. (cause: fetch failed)", SERVER, None),
    ("500 Internal mock error", SERVER, 500),
    ("Model stream ended without a finish reason.", SERVER, None),
    # pi
    ('401: {"message":"Incorrect API key provided: dummy."}', AUTH, 401),
    ('429: {"message":"Rate limit reached for requests","type":"rate_limit_error"}', RATE, 429),
    ("429 Rate limit reached for requests", RATE, 429),
    ("503 Service Unavailable", SERVER, 503),
    ("prompt is too long: 203117 tokens > 200000 maximum", REQUEST, None),
    ("No API key found for the selected model.\n\nUse /login to log into a provider", AUTH, None),
    ("529 overloaded_error", SERVER, 529),
    # acai
    ("API request failed: rate limit exceeded", RATE, None),
    ("Error: OPENROUTER_API_KEY not set.", AUTH, None),
    ("Error: Environment variable 'OPENROUTER_API_KEY' is not set", AUTH, None),
    # copilot 1.0.102 and amp, run without a login and without a network.
    (
        "Error: No authentication information found.\n\nCopilot can be authenticated with",
        AUTH,
        None,
    ),
    ("Could not connect to local model provider at http://127.0.0.1:9/v1.", SERVER, None),
    ("Error: Couldn't connect to the Amp server at http://127.0.0.1:9.", SERVER, None),
    # contract 5.8, by status.
    ("403 Forbidden", AUTH, 403),
    ("404 page not found", MODEL, 404),
    ("413 Payload", REQUEST, 413),
    ("402 Payment Required", BILLING, 402),
    ("422 Unprocessable", REQUEST, 422),
    ("502 hm", SERVER, 502),
    ("Error: 429", RATE, 429),
    ("HTTP 401", AUTH, 401),
    ("status code: 500", SERVER, 500),
    ("Your credit balance is too low", BILLING, None),
    ("You have insufficient quota", BILLING, None),
    ("connect ECONNREFUSED 127.0.0.1:8080", SERVER, None),
    ("socket hang up", SERVER, None),
    ("This model's maximum context length is 8192 tokens", REQUEST, None),
    ("The model `x` does not exist", MODEL, None),
]


@loop_over_rows(("text", "kind", "status"), TEXTS)
def test_error_text_is_classified_with_cause_and_status(text, kind, status):
    failure = classify_api_error(text)
    assert (failure.cause, failure.assistant_error) == kind
    assert failure.status == status
    assert failure.is_recognized_api_failure


@loop_over_rows(
    "text",
    [
        "",
        "it broke",
        "Workspace Trust Required",
        "Error: Workspace directory does not exist: /nowhere",
        "Unknown argument: verbose",
        "Error: Session 550e8400 not found in this directory",
        "No saved session found with ID 550e8400",
        "error decoding response body: expected value at line 1 column 1",
        "I fixed all 404 links and 500 tests in the file",
        "Wrote 429 bytes",
        "Reached max session turns for this session.",
        "Run aborted: wall-clock budget of 3s exceeded (--max-wall-time).",
        "panicked at src/main.rs:401:5",
    ],
)
def test_text_without_an_api_failure_is_not_classified_as_an_api_failure(text):
    failure = classify_api_error(text)
    assert (failure.kind, failure.cause, failure.is_recognized_api_failure) == (
        "",
        "vendor_error",
        False,
    )


def test_token_limit_error_of_a_request_is_not_a_truncated_reply():
    assert (
        classify_api_error(
            "400 max_tokens is beyond the maximum output tokens of this model"
        ).assistant_error
        == "unknown"
    )
    assert (
        classify_api_error("the reply reached the maximum output tokens").assistant_error
        == "max_output_tokens"
    )


def test_status_400_is_classified_as_unknown():
    """Contract 5.8."""
    failure = classify_api_error("400 bad request mock")
    assert (failure.assistant_error, failure.status, failure.is_recognized_api_failure) == (
        "unknown",
        400,
        True,
    )


def test_only_the_start_of_the_text_is_classified():
    """A long text must not take time, and text far from its start must not change the class."""
    assert classify_api_error("it broke " + "x" * 100_000 + " rate limit").kind == ""


def test_repetitive_text_is_classified():
    """No pattern has unbounded backtracking: a hostile text must not block the shim."""
    for text in ("quota" * 5000, "model " * 5000, "insufficient " * 5000, "api key " * 5000):
        assert classify_api_error(text).cause in ("vendor_error", "auth", "rate_limit")
