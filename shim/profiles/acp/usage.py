"""Converts the usage that an ACP agent reports for its session. The agent reports tokens at the end
of a turn, and the session's total cost at any time.
"""

from collections.abc import Mapping

from shim.core.claude.usage import USAGE_KEYS, Usage, create_usage, parse_dollars
from shim.core.reading.typed import Any
from shim.core.reading.values import as_dict


class AcpUsageTracker:
    """The usage of one session. `cost_usd` is the cost of the current turn in dollars, and
    `context_tokens` is the current context size.

    `is_session_total` is true if the usage that the agent reports at the end of a turn is the
    session's total.
    """

    def __init__(self, *, is_session_total: bool) -> None:
        self.cost_usd = 0.0
        self.context_tokens: Any = 0
        self._is_session_total = is_session_total
        self._session_cost_usd: float | None = None  # the session's total cost so far
        self._session_usage = create_usage(0, 0, 0, 0)

    def record_cost(self, update: Mapping[str, Any], *, is_resumed: bool) -> None:
        """Record the session's total cost. The cost of the earlier turns in a resumed session is
        unknown, so the first reported cost is not added to the turn.
        """
        cost = update.get("cost")
        amount = 0.0
        if isinstance(cost, dict) and cost.get("currency") == "USD":
            amount = parse_dollars(cost.get("amount"))
        if self._session_cost_usd is not None:
            previous_cost = self._session_cost_usd
        elif is_resumed:
            previous_cost = amount
        else:
            previous_cost = 0.0
        self.cost_usd += max(0.0, amount - previous_cost)
        self._session_cost_usd, self.context_tokens = amount, update.get("used", 0)

    def compute_turn_usage(self, result: Mapping[str, Any]) -> Usage | None:
        """Return the usage of the turn, or None if the agent did not report it. If the reported
        input and output tokens add up to the total, the input tokens include the cached tokens.
        """
        counts = result.get("usage")
        if not isinstance(counts, dict):
            return self._parse_quota(result.get("_meta"))
        input_tokens = counts.get("inputTokens")
        output_tokens = counts.get("outputTokens")
        total_tokens = counts.get("totalTokens")
        includes_cached = (
            isinstance(input_tokens, int)
            and isinstance(output_tokens, int)
            and total_tokens == input_tokens + output_tokens
        )
        reported = create_usage(
            input_tokens,
            counts.get("cachedReadTokens"),
            counts.get("cachedWriteTokens"),
            output_tokens,
            input_includes_cached=includes_cached,
        )
        if self._is_session_total:
            previous = self._session_usage
            self._session_usage = reported
            return create_usage(*(max(0, reported[key] - previous[key]) for key in USAGE_KEYS))
        return reported

    def _parse_quota(self, meta: object) -> Usage | None:
        """Return the usage from gemini's vendor-specific field, or None."""
        quota = as_dict(meta).get("quota")
        counts = as_dict(quota).get("token_count")
        if isinstance(counts, dict):
            return create_usage(counts.get("input_tokens"), 0, 0, counts.get("output_tokens"))
        return None
