"""Builds the responses about the context, the usage and the cost (contract 6.1).

Parts that no vendor reports are zero or empty, in the shape that the real claude uses.
"""

from collections.abc import Mapping

from shim.core.claude.session_state import SessionState
from shim.core.claude.usage import CONTEXT_WINDOW_TOKENS, Usage, format_model_usage
from shim.core.reading.typed import Any

# The real claude draws the context as a grid of this size.
GRID_ROWS = 10
GRID_COLUMNS = 20
USED_COLOR = "promptBorder"
FREE_COLOR = "inactive"


def build_context_report(state: SessionState) -> dict[str, Any]:
    """Return the size of the context. If the vendor does not count the tokens in its context, the
    tokens of its last request are used. No vendor reports what its context consists of, so all
    tokens count as messages.
    """
    usage = state.usage
    max_tokens = CONTEXT_WINDOW_TOKENS
    if usage.context_window_tokens:
        max_tokens = usage.context_window_tokens
    total_tokens = usage.context_tokens
    if not total_tokens:
        total_tokens = sum(usage.last_request.values())
    used_tokens = min(total_tokens, max_tokens)
    categories = [
        {
            "id": "messages",
            "name": "Messages",
            "tokens": used_tokens,
            "color": USED_COLOR,
            "kind": "used",
        },
        {
            "id": "free_space",
            "name": "Free space",
            "tokens": max_tokens - used_tokens,
            "color": FREE_COLOR,
            "kind": "free",
        },
    ]
    empty_lists = ("memoryFiles", "mcpTools", "mcpInstructions", "agents")
    return {
        "categories": categories,
        "totalTokens": total_tokens,
        "maxTokens": max_tokens,
        "rawMaxTokens": max_tokens,
        "percentage": _compute_percentage(used_tokens, max_tokens),
        "gridRows": _build_grid(categories, max_tokens),
        "model": state.resolve_model_name(),
        "isAutoCompactEnabled": False,
        **{name: [] for name in empty_lists},
        "messageBreakdown": _build_message_breakdown(used_tokens),
        "apiUsage": _format_last_request(usage.last_request),
    }


def build_usage_report(state: SessionState) -> dict[str, Any]:
    """Return the cost and the usage of the session. No vendor reports limits of a subscription."""
    usage = state.usage
    return {
        "session": {
            "total_cost_usd": usage.cost_usd,
            "total_api_duration_ms": usage.api_duration_ms,
            "total_duration_ms": state.options.elapsed_ms(),
            "total_lines_added": 0,
            "total_lines_removed": 0,
            "model_usage": format_model_usage(
                usage.by_model, usage.cost_usd, usage.context_window_by_model
            ),
        },
        "subscription_type": None,
        "rate_limits_available": False,
        "rate_limits": None,
        "behaviors": None,
    }


def build_cost_report(state: SessionState) -> dict[str, Any]:
    """Return the cost and the usage of the session as text."""
    usage = state.usage
    cost = f"${usage.cost_usd:.4f}"
    if usage.by_model and not usage.cost_usd:
        cost = f"not reported by {state.vendor.display_name}"
    lines = [
        f"Estimated cost:        {cost}",
        f"Total duration (API):  {_format_seconds(usage.api_duration_ms)}",
        f"Total duration (wall): {_format_seconds(state.options.elapsed_ms())}",
    ]
    if not usage.by_model:
        lines.append("Usage:                 0 input, 0 output, 0 cache read, 0 cache write")
        return {"text": "\n".join(lines)}
    lines.append("Usage by model:")
    lines += [f"     {model}:  {_format_counts(used)}" for model, used in usage.by_model.items()]
    return {"text": "\n".join(lines)}


def _compute_percentage(tokens: int, max_tokens: int) -> int:
    return round(100 * tokens / max_tokens)


def _build_grid(categories: list[dict[str, Any]], max_tokens: int) -> list[list[dict[str, Any]]]:
    """Return the squares of the context's grid, row by row. A category with tokens has at least one
    square.
    """
    square_count = GRID_ROWS * GRID_COLUMNS
    squares: list[dict[str, Any]] = []
    for category in categories:
        tokens = category["tokens"]
        share = square_count * tokens / max_tokens
        count = round(share)
        if tokens:
            count = max(1, count)
        square = {
            "color": category["color"],
            "isFilled": True,
            "categoryName": category["name"],
            "tokens": tokens,
            "percentage": _compute_percentage(tokens, max_tokens),
            "squareFullness": min(1, share),
        }
        squares += [square] * count
    squares = squares[:square_count]
    return [squares[start : start + GRID_COLUMNS] for start in range(0, len(squares), GRID_COLUMNS)]


def _build_message_breakdown(used_tokens: int) -> dict[str, Any]:
    """Return the breakdown of the messages' tokens, all of which are unattributed."""
    unknown_parts = (
        "toolCallTokens",
        "toolResultTokens",
        "attachmentTokens",
        "assistantMessageTokens",
        "userMessageTokens",
        "redirectedContextTokens",
    )
    return {
        **dict.fromkeys(unknown_parts, 0),
        "unattributedTokens": used_tokens,
        "toolCallsByType": [],
        "attachmentsByType": [],
    }


def _format_last_request(usage: Mapping[str, int]) -> Mapping[str, int] | None:
    """Return the usage of the last request, or None if there was none."""
    if any(usage.values()):
        return usage
    return None


def _format_counts(usage: Usage) -> str:
    return (
        f"{usage['input_tokens']} input, {usage['output_tokens']} output, "
        f"{usage['cache_read_input_tokens']} cache read, "
        f"{usage['cache_creation_input_tokens']} cache write"
    )


def _format_seconds(duration_ms: int) -> str:
    return f"{round(duration_ms / 1000)}s"
