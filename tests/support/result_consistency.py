"""Checks that the end of a turn is consistent: the cause, `is_error`, `subtype`, texts and the exit
status.

The rules come from the contract (S10, P13, 5.3, 5.8, 6.4, F10) and from the list of causes, not
from the code.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

Line = dict[str, Any]


class Agreement(NamedTuple):
    """The fields of a result that match a cause.

    `api` is True if the cause must be a failure of the model's API (S10), None if it may be one.
    """

    is_error: bool
    subtypes: tuple[str, ...]
    reasons: tuple[str, ...]
    api: bool | None = False


API = ("success",)
BROKEN = ("error_during_execution",)
REQUEST = ("api_error", "prompt_too_long", "image_error")

AGREEMENTS = {
    "clean": Agreement(False, ("success",), ("completed",)),
    "vendor_error": Agreement(True, (*API, *BROKEN), ("model_error", *REQUEST), None),
    "auth": Agreement(True, API, ("api_error",), True),
    "rate_limit": Agreement(True, API, ("api_error",), True),
    "limit": Agreement(
        True,
        ("error_max_turns", "error_max_budget_usd", *BROKEN),
        ("max_turns", "budget_exhausted"),
    ),
    "denied": Agreement(True, BROKEN, ("model_error",)),
    "refused": Agreement(True, (*API, *BROKEN), ("model_error", "api_error"), None),
    "truncated": Agreement(True, (*API, *BROKEN), ("model_error", "api_error"), None),
    "exit_code": Agreement(True, BROKEN, ("model_error",)),
    "signal": Agreement(True, BROKEN, ("model_error",)),
    "stall": Agreement(True, BROKEN, ("model_error",)),
    "interrupted": Agreement(True, BROKEN, ("aborted_streaming", "aborted_tools")),
    "not_found": Agreement(True, BROKEN, ("model_error",)),
    "protocol": Agreement(True, BROKEN, ("model_error",)),
    "internal": Agreement(True, BROKEN, ("model_error",)),
}
# The exit statuses of causes that are not 1 for an error and 0 otherwise (P13).
STATUSES = {"interrupted": (0, 1), "signal": (1, 129, 143)}


def check_truth(turn: Sequence[Line], status: int | None = None) -> str:
    """Assert that the last lines of a turn and the exit status are consistent. Return the cause."""
    (result,) = (line for line in turn if line["type"] == "result")
    cause = result["shim"]["cause"]
    assert cause in AGREEMENTS, f"{cause!r} is no cause"
    agreed = AGREEMENTS[cause]
    assert result["is_error"] is agreed.is_error, f"{cause} with is_error {result['is_error']}"
    assert result["subtype"] in agreed.subtypes, f"{cause} with {result['subtype']}"
    assert result["terminal_reason"] in agreed.reasons, f"{cause} with {result['terminal_reason']}"
    _check_texts(turn, result, agreed)
    _check_exit(result, cause)
    if status is not None:
        assert status in STATUSES.get(cause, (int(agreed.is_error),)), (
            f"{cause} with exit status {status}"
        )
    return str(cause)


def _check_texts(turn: Sequence[Line], result: Line, agreed: Agreement) -> None:
    """Assert that an API failure has a synthetic line and a result with its text, and any other
    error has `errors` (S10).
    """
    synthetic = [
        line for line in turn if line["type"] == "assistant" and line.get("is_api_error_message")
    ]
    api = result["subtype"] == "success" and result["is_error"]
    assert len(synthetic) == int(api), "the line of an API failure goes with its result"
    assert agreed.api is None or api is agreed.api
    if result["subtype"] == "success":
        assert "errors" not in result and isinstance(result["result"], str)
    else:
        assert "result" not in result and result["errors"] and all(result["errors"])
    if api:
        assert synthetic[0]["message"]["content"][0]["text"] == result["result"]
        assert result["stop_reason"] in ("stop_sequence", "refusal")


def _check_exit(result: Line, cause: str) -> None:
    """Assert that the result names an unsuccessful exit of the child, and that the cause matches
    it.
    """
    shim = result["shim"]
    assert shim.get("exit_code") != 0 and not ("exit_code" in shim and "signal" in shim)
    if cause == "exit_code":
        assert (
            "exit_code" in shim and f"exited with code {shim['exit_code']}" in result["errors"][0]
        )
    if cause == "clean":
        assert "signal" not in shim


def check_calls(lines: Sequence[Line]) -> list[Any]:
    """Assert that each call of a stream has a unique id and one result. Return the contents of the
    results.
    """
    blocks = [block for line in lines for block in _list_blocks(line)]
    calls = [block["id"] for block in blocks if block.get("type") == "tool_use"]
    results = [block for block in blocks if block.get("type") == "tool_result"]
    duplicates = {call_id for call_id in calls if calls.count(call_id) > 1}
    assert not duplicates, f"several calls have these ids: {duplicates}"
    answered = [block["tool_use_id"] for block in results]
    assert sorted(answered) == sorted(calls), f"calls {calls} have the results of {answered}"
    return [block["content"] for block in results]


def _list_blocks(line: Line) -> list[Line]:
    message = line.get("message") if line.get("type") in ("assistant", "user") else None
    content = message.get("content") if isinstance(message, dict) else None
    return (
        [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    )
