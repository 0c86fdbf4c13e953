"""A failed request in Claude's terms, for every vendor (contract 5.8, 5.9, P13, S10, F10).

The table has texts of the recordings and of the vendor pages: the vendor's own text, in its stream
or on stderr, and beside it the text that a client of Claude reads.
"""

import pytest
from fixture_cases import list_fixture_cases, translate_case
from stream_lines import parse_lines
from sweeps import loop_over_rows
from turn_stage import Stage

from shim.conversation.drivers.open_translation import create_standalone_child_stream
from shim.core.api_errors import (
    FAILURE_KINDS,
    TEXT_STARTS,
    classify_api_error,
    format_api_error,
    strip_error_prefixes,
)
from shim.core.reading.json_text import dump_json
from shim.core.turn.outcome import ChildExit

LOGIN, KEY = "Not logged in · Please run /login", "Invalid API key · Fix external API key"

# Error of the assistant line, cause, terminal_reason.
AUTH = ("authentication_failed", "auth", "api_error")
SERVER = ("server_error", "vendor_error", "api_error")
RATE = ("rate_limit", "rate_limit", "api_error")
LONG = ("invalid_request", "vendor_error", "prompt_too_long")
LARGE = ("invalid_request", "vendor_error", "image_error")
FILTERED = ("invalid_request", "refused", "api_error")
MODEL = ("model_not_found", "vendor_error", "api_error")
UNKNOWN = ("unknown", "vendor_error", "api_error")
BILLING = ("billing_error", "rate_limit", "api_error")
OUTPUT = ("max_output_tokens", "truncated", "api_error")

TYPES = {
    None: None,
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "api_error",
    529: "overloaded_error",
}

# fmt: off
# Vendor, its text, class, status, the start of Claude's text.
TABLE = [
    # qwen 0.24.4, 0.15.10.
    ("qwen", "[API Error: 401 Incorrect API key provided: sk-x.]", AUTH, 401, KEY),
    ("qwen", "[API Error: 500 Internal mock error]", SERVER, 500, "API Error: 500 Internal mock error"),
    ("qwen", "[API Error: 429 Rate limit reached]",
     RATE, 429, "API Error: Request rejected (429) · Rate limit reached"),
    ("qwen", "[API Error: Model stream ended without a finish reason.]",
     SERVER, None, "API Error: Model stream ended without a finish reason."),
    ("qwen", "[API Error: Model stream ended with empty response text.]",
     SERVER, None, "API Error: Model stream ended with empty response text."),
    ("qwen", "[API Error: Connection error. (cause: connect ECONNREFUSED 127.0.0.1:1)]",
     SERVER, None, "API Error: Connection refused — Connection error. (cause"),
    ("qwen", "No auth type is selected. Please configure an auth type (e.g. via settings or `--auth-type`)",
     AUTH, None, LOGIN),
    # pi 0.73.1, 1.5.2.
    ("pi", "401 Incorrect API key provided: sk-x.", AUTH, 401, KEY + " · 401 Incorrect API key provided: sk-x."),
    ("pi", '401: {"message":"Incorrect API key provided: sk-x.","type":"invalid_request_error","code":"x"}',
     AUTH, 401, KEY + " · 401 Incorrect API key provided: sk-x."),
    ("pi", '429: {"message":"Rate limit reached for requests","type":"rate_limit_error","code":"rate_limit_exceeded"}',
     RATE, 429, "API Error: Request rejected (429) · Rate limit reached for requests"),
    ("pi", '500: {"message":"The server had an error","type":"server_error"}',
     SERVER, 500, "API Error: 500 The server had an error"),
    ("pi", "529 overloaded_error", SERVER, 529, "API Error: 529 Overloaded. "),
    ("pi", "503 Service Unavailable", SERVER, 503, "API Error: 503 Service Unavailable"),
    ("pi", "400 This model's maximum context length is 8000 tokens. However, your messages",
     LONG, 400, "Prompt is too long · 400 This model's maximum"),
    ("pi", "prompt is too long: 203117 tokens > 200000 maximum", LONG, None, "Prompt is too long: 203117 tokens"),
    ("pi", "Connection error.", SERVER, None, "API Error: Connection error"),
    ("pi", "terminated: other side closed (UND_ERR_SOCKET)", SERVER, None, "API Error: Connection error — terminated"),
    ("pi", "terminated", SERVER, None, "API Error: Connection error — terminated"),
    ("pi", "No API key found for the selected model.\n\nUse /login to log into a provider", AUTH, None, LOGIN),
    ("pi", "Provider finish_reason: content_filter", FILTERED, None, "API Error: Provider finish_reason"),
    # cursor (its page; no recording could be made).
    ("cursor", "Error: Authentication required. Please run 'agent login' first, or set CURSOR_API_KEY",
     AUTH, None, LOGIN),
    ("cursor", "⚠ Warning: The provided API key is invalid.", AUTH, None, KEY),
    ("cursor", "Error: You've hit your usage limit\nGet Cursor Pro for more",
     RATE, None, "API Error: Rate limited\nYou've hit your usage limit\nGet"),
    ("cursor", "Cannot use this model: gpt-9. Available models: auto",
     MODEL, None, "There's an issue with the selected model (m-1). Cannot use"),
    ("cursor", "ActionRequiredError: Named models unavailable on your plan",
     MODEL, None, "There's an issue with the selected model (m-1). Action"),
    ("cursor", "Error: Connection lost. Please try again.",
     SERVER, None, "API Error: Connection error — Connection lost. Please"),
    # acai 0.1.0 and 2026-04, cake 2026-07.
    ("acai", 'minimax/m2\n\n{\n  "error": {\n    "code": 429,\n    "message": "Rate limit exceeded"\n  }\n}',
     RATE, 429, "API Error: Request rejected (429) · Rate limit exceeded"),
    ("cake", 'mock-model\n\n{\n  "error": {\n    "code": 401,\n    "message": "No auth credentials found"\n  }\n}',
     AUTH, 401, KEY + " · 401 No auth credentials found"),
    ("acai", "thread 'main' (8207) panicked at src/x.rs:189:38:\nError: OPENROUTER_API_KEY not set.",
     AUTH, None, LOGIN),
    ("acai", "Error: Environment variable 'OPENROUTER_API_KEY' is not set. Please set it", AUTH, None, LOGIN),
    ("acai", "API request failed: rate limit exceeded", RATE, None, "API Error: Rate limited · API request failed"),
    ("acai", "error sending request for url (http://127.0.0.1/): tcp connect error: Connection refused (os error 111)",
     SERVER, None, "API Error: Connection refused — error sending"),
    ("cake", "Error: connection closed before message completed",
     SERVER, None, "API Error: Connection error — connection closed"),
    # codex 0.169.0, gemini 0.61.0, opencode 1.18.33.
    ("codex", "unexpected status 401 Unauthorized: mock error 401, url: http://127.0.0.1:8000/v1/responses",
     AUTH, 401, KEY),
    ("codex", "exceeded retry limit, last status: 429 Too Many Requests",
     RATE, 429, "API Error: Request rejected (429)"),
    ("codex", "Missing environment variable: `MOCK_KEY`.", AUTH, None, LOGIN),
    ("codex", "Your access token could not be refreshed. Please log out and sign in again.", AUTH, None, LOGIN),
    ("codex", "We’re currently experiencing high demand, which may cause temporary errors.",
     SERVER, None, "API Error: We’re currently"),
    ("codex", "Selected model is at capacity. Please try a different model.",
     SERVER, None, "API Error: Overloaded. "),
    ("codex", "Codex ran out of room in the model's context window. Start a new thread.",
     LONG, None, "Prompt is too long"),
    ("codex", "unexpected status 404 Not Found: The model `m` does not exist or you do not have access to it.",
     MODEL, 404, "There's an issue with the selected model"),
    ("codex", "stream disconnected before completion: Transport error: network error: error decoding response body",
     SERVER, None, "API Error: stream disconnected"),
    ("codex", "Reconnecting... waiting for network (Connection failed: error sending request)",
     SERVER, None, "API Error: Connection error — "),
    ("gemini", '[API Error: {"error":{"code":400,"message":"API key not valid.","status":"INVALID_ARGUMENT"}}]',
     AUTH, 400, KEY + " · 400 API key not valid."),
    ("gemini", '[API Error: {"error":{"code":401,"message":"mock error 401","status":"UNAUTHENTICATED"}}]',
     AUTH, 401, KEY + " · 401 mock error 401"),
    ("gemini", "When using Gemini API, you must specify the GEMINI_API_KEY environment variable.", AUTH, None, LOGIN),
    ("gemini", "Please set an Auth method in your ~/.gemini/settings.json or specify one of the following environment "
     "variables before running: GEMINI_API_KEY, GOOGLE_GENAI_USE_VERTEXAI, GOOGLE_GENAI_USE_GCA", AUTH, None, LOGIN),
    ("gemini", "Invalid auth method selected.", AUTH, None, LOGIN),
    ("opencode", '{"name":"APIError","data":{"message":"mock error 429","statusCode":429}}',
     RATE, 429, "API Error: Request rejected (429) · mock error 429"),
    # The rest of contract 5.8.
    ("any", "400 bad request mock", UNKNOWN, 400, "API Error: 400 bad request mock"),
    ("any", "400 Your credit balance is too low to access the API",
     BILLING, 400, "Credit balance is too low · 400 Your credit"),
    ("any", "403 Forbidden", AUTH, 403, "Failed to authenticate. API Error: 403 Forbidden"),
    ("any", "404 page not found", MODEL, 404, "There's an issue with the selected model (m-1). 404 page"),
    ("any", "413 Payload Too Large", LARGE, 413, "Request too large. 413 Payload"),
    ("any", "Response stopped: output token limit", OUTPUT, None, "API Error: Response stopped"),
]
# fmt: on


@pytest.mark.parametrize("partial", [False, True], ids=["whole", "partial"])
@pytest.mark.parametrize("channel", ["stream", "stderr"])
@loop_over_rows(("vendor", "error_text", "expected", "status", "prefix"), TABLE)
def test_contract_s10_vendor_error_is_reported_as_a_claude_api_error(
    vendor, error_text, expected, status, prefix, channel, partial
):
    stage = Stage(partial=partial, vendor=vendor, model="m-1", login_command="do so")
    if channel == "stream":
        stage.turn.record_failure(error_text)
        stage.turn.close(ChildExit(code=0), "")
    else:
        stage.turn.close(ChildExit(code=1), error_text)
    line, result = [line for line in stage.take_lines() if line["type"] in ("assistant", "result")]
    text = result["result"]
    assert text.startswith(prefix)
    assert line["message"]["content"] == [{"type": "text", "text": text}]
    assert (line["message"]["model"], line["is_api_error_message"]) == ("<synthetic>", True)
    assert (line["error"], result["shim"]["cause"], result["terminal_reason"]) == expected
    assert (result["subtype"], result["is_error"], "errors" in result) == ("success", True, False)
    assert result["api_error_status"] == line.get("api_error_status") == status
    assert result.get("api_error_type") == line.get("api_error_type") == TYPES[status]


@loop_over_rows(("vendor", "error_text"), [row[:2] for row in TABLE])
def test_vendor_error_text_is_included_in_the_message(vendor, error_text):
    message = format_api_error(
        classify_api_error(error_text), error_text, vendor=vendor, login_hint="", model="m-1"
    )
    essence = strip_error_prefixes(error_text, classify_api_error(error_text).status)
    assert essence.lower().removeprefix("prompt is too long") in message.lower()


@loop_over_rows(("vendor", "error_text"), [row[:2] for row in TABLE])
def test_login_text_appears_only_in_login_errors(vendor, error_text):
    """ACP maps the substring to authRequired. A wrong key, a limit or a broken line must not
    contain it.
    """
    failure = classify_api_error(error_text)
    message = format_api_error(failure, error_text, vendor=vendor, login_hint="", model="")
    assert ("Please run /login" in message) is (failure.kind == "login")


def test_login_error_contains_the_login_hint():
    message = format_api_error(
        classify_api_error("Not logged in"),
        "Not logged in",
        vendor="cursor",
        login_hint="run `agent login`",
        model="",
    )
    assert (
        message
        == "Not logged in · Please run /login\nhint: run `agent login`\ncursor: Not logged in"
    )


@loop_over_rows("vendor", ["acai", "cake", "claude", "cursor", "pi", "qwen"])
def test_every_vendor_has_a_login_hint(vendor):
    from shim.adapters import get_adapter

    assert get_adapter(vendor).login_hint


@pytest.mark.parametrize(
    "error_text", ["Connection error. (cause: fetch failed)", "Connection refused by 127.0.0.1"]
)
def test_error_prefix_is_not_repeated(error_text):
    assert (
        format_api_error(
            classify_api_error(error_text), error_text, vendor="v", login_hint="", model=""
        )
        == f"API Error: {error_text}"
    )


def test_every_failure_kind_has_a_message():
    assert set(TEXT_STARTS) <= set(FAILURE_KINDS)
    for kind in set(FAILURE_KINDS) - {""}:
        message = format_api_error(
            classify_api_error("")._replace(kind=kind, status=500),
            "words",
            vendor="v",
            login_hint="",
            model="m",
        )
        assert message.endswith("words") and "{" not in message


def test_separate_status_code_is_used():
    """opencode reports `statusCode` beside its message."""
    failure = classify_api_error("mock error 401", 401)
    assert (failure.assistant_error, failure.status, failure.cause) == (
        "authentication_failed",
        401,
        "auth",
    )


def test_vendor_status_overrides_a_number_in_the_text():
    assert classify_api_error("500 oops", 429).kind == "rate"


@loop_over_rows(
    "error_text",
    ["{", "x {", '{"message": 5}', '{"error": []}', "{}", "401 {]}", '"{}"', "{" * 3000],
)
def test_malformed_error_body_is_returned_unchanged(error_text):
    assert strip_error_prefixes(error_text, None) == error_text


def test_retry_reports_overloaded_and_the_result_server_error():
    """Contract 5.8: the two lines have different words for a 529."""
    stage = Stage()
    stage.turn.write_retry(1, 2, 527, "529 overloaded_error")
    stage.turn.record_failure("529 overloaded_error")
    stage.turn.close(ChildExit(code=1), "")
    lines = stage.take_lines()
    retry = next(line for line in lines if line.get("subtype") == "api_retry")
    assert (retry["error"], retry["error_status"]) == ("overloaded", 529)
    assert next(line for line in lines if line["type"] == "assistant")["error"] == "server_error"


def test_qwen_retry_without_numbers_writes_no_api_retry():
    """Contract 5.8: an api_retry contains attempt, limit, delay and status. qwen does not report
    them, so no line is written.
    """
    case = next(
        case for case in list_fixture_cases("qwen") if case.name.startswith("qwen/0.24.4-drop")
    )
    output, _ = translate_case(case)
    assert not [line for line in parse_lines(output) if line.get("subtype") == "api_retry"]


def test_failed_context_compaction_is_reported_as_prompt_too_long():
    translation = create_standalone_child_stream("pi", stable_ids=True)
    error_text = "Context overflow recovery failed after one compact-and-retry attempt."
    translation.feed(
        dump_json({"type": "compaction_end", "reason": "overflow", "errorMessage": error_text})
        + b"\n"
    )
    result = parse_lines(translation.close(ChildExit(code=0))[0])[-2]
    assert (result["subtype"], result["terminal_reason"]) == ("success", "prompt_too_long")
    assert result["result"] == f"Prompt is too long · {error_text}"


# -- limits ----------------------------------------------------------------------------------------


def test_contract_f10_claude_limit_message_precedes_the_vendor_message():
    stage = Stage(requested_max_turns=5)
    stage.turn.add_text("hi")
    stage.turn.record_failure(
        "max_turns limit exceeded after 5 turns", kind="limit", subtype="error_max_turns"
    )
    stage.turn.close(ChildExit(code=0), "")
    result = stage.take_lines()[-2]
    assert result["errors"] == [
        "Reached maximum number of turns (5)",
        "max_turns limit exceeded after 5 turns",
    ]
    assert (result["subtype"], result["terminal_reason"], "result" in result) == (
        "error_max_turns",
        "max_turns",
        False,
    )


def reply(stage, cost, *, call):
    """Add one reply with this cost, with or without a call."""
    stage.turn.add_text("hi")
    if call:
        stage.turn.add_tool_call(f"c{cost}", "Bash", {"command": "ls"})
    stage.turn.end_message(None, None, cost)


def test_contract_f10_turn_ends_when_a_tool_call_exceeds_the_budget():
    stage = Stage(max_budget_usd=0.000001)
    reply(stage, 0.0008, call=True)
    result = stage.take_lines()[-2]
    assert (result["subtype"], result["errors"]) == (
        "error_max_budget_usd",
        ["Reached maximum budget ($0.000001)"],
    )
    assert (result["terminal_reason"], result["shim"]["cause"]) == ("budget_exhausted", "limit")
    assert (result["is_error"], result["total_cost_usd"]) == (True, 0.0008)


@pytest.mark.parametrize(("cost", "call"), [(0.5, True), (2.0, False)])
def test_turn_continues_within_budget_or_without_a_tool_call(cost, call):
    stage = Stage(max_budget_usd=1.0)
    reply(stage, cost, call=call)
    assert stage.turn.outcome_tracker.outcome is None


def test_budget_includes_the_cost_of_earlier_turns():
    """Contract 5.3: total_cost_usd is the cost of the session so far."""
    stage = Stage(max_budget_usd=1.0)
    stage.conversation.cost_usd = 0.9
    reply(stage, 0.2, call=True)
    assert stage.turn.outcome_tracker.outcome.subtype == "error_max_budget_usd"
