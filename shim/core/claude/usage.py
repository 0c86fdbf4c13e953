"""Model usage as Claude's four token counts, the cost, and the usage of each message."""

from collections.abc import Mapping
from typing import Any

# Real counts are smaller. Even the sum of thousands of counts stays below 2**53, the largest
# integer that JavaScript clients can represent.
MAX_COUNT = 2**40


# The context size that Claude reports for an unknown model. It is not 0, because clients divide by
# it.
CONTEXT_WINDOW_TOKENS = 200_000
# The maximum number of models with separate usage in a conversation. No real conversation uses
# more.
MAX_MODELS = 32
OTHER_MODEL = "other"
# The output limit that Claude reports for an unknown model. It is not 0, because clients divide by
# it (contract 5.3, ACP).
MAX_OUTPUT_TOKENS = 32_000


class Usage(dict[str, int]):
    """Claude's four token counts. `input_tokens` does not include cached tokens.

    Instances are only created by `create_usage`.
    """


def create_usage(
    input_tokens: Any,
    cache_read_tokens: Any,
    cache_creation_tokens: Any,
    output_tokens: Any,
    *,
    input_includes_cached: bool = False,
) -> Usage:
    """Create a Usage from a vendor's token counts. Values that are not valid counts become 0.

    If `input_includes_cached` is set, the vendor's input tokens include the cached tokens.
    """
    are_integers = (
        input_tokens.__class__
        is cache_read_tokens.__class__
        is cache_creation_tokens.__class__
        is output_tokens.__class__
        is int
    )
    if (
        not are_integers
        or not 0
        <= input_tokens | cache_read_tokens | cache_creation_tokens | output_tokens
        < MAX_COUNT
    ):
        input_tokens = parse_count_or_zero(input_tokens)
        cache_read_tokens = parse_count_or_zero(cache_read_tokens)
        cache_creation_tokens = parse_count_or_zero(cache_creation_tokens)
        output_tokens = parse_count_or_zero(output_tokens)
    if input_includes_cached:
        if input_tokens > cache_read_tokens:
            input_tokens = input_tokens - cache_read_tokens
        else:
            input_tokens = 0
    # Separate assignments are used, because keyword arguments would take 50 % longer.
    result = Usage()
    result["input_tokens"] = input_tokens
    result["cache_creation_input_tokens"] = cache_creation_tokens
    result["cache_read_input_tokens"] = cache_read_tokens
    result["output_tokens"] = output_tokens
    return result


def parse_count_or_zero(value: Any) -> int:
    """Return a number of tokens or milliseconds as an integer, or 0 for an invalid value."""
    if value.__class__ is int and 0 <= value < MAX_COUNT:
        return int(value)
    if value.__class__ is float and 0 < value < MAX_COUNT:
        return int(value)
    return 0


def parse_dollars(value: Any) -> float:
    """Return an amount in dollars, or 0 for an invalid value."""
    if value.__class__ in (float, int) and 0 < value < MAX_COUNT:
        return float(value)
    return 0.0


def parse_usage(value: Any) -> Usage:
    if value.__class__ is Usage:
        return value
    if not isinstance(value, dict):
        return NO_USAGE
    return create_usage(*(value.get(key) for key in USAGE_KEYS))


USAGE_KEYS = (
    "input_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "output_tokens",
)
NO_USAGE = create_usage(0, 0, 0, 0)


def get_model_usage(usage_by_model: dict[str, Usage], model: str) -> Usage:
    """Return a model's entry in a table of usage by model. If the table is full, all further models
    share one entry.
    """
    if model not in usage_by_model and len(usage_by_model) >= MAX_MODELS:
        model = OTHER_MODEL
    return usage_by_model.setdefault(model, Usage(NO_USAGE))


def format_model_usage(
    usage_by_model: Mapping[str, Usage],
    cost_usd: float,
    context_window_by_model: Mapping[str, int],
) -> dict[str, dict[str, Any]]:
    """Return the usage by model in the format for clients (contract 5.3). Only the session's total
    cost is known, so a model's cost is only reported if the session used a single model.
    """
    is_single_model = len(usage_by_model) == 1
    return {
        model: {
            "inputTokens": usage["input_tokens"],
            "outputTokens": usage["output_tokens"],
            "cacheReadInputTokens": usage["cache_read_input_tokens"],
            "cacheCreationInputTokens": usage["cache_creation_input_tokens"],
            "webSearchRequests": 0,
            "costUSD": cost_usd if is_single_model else 0,
            "contextWindow": context_window_by_model.get(model, CONTEXT_WINDOW_TOKENS),
            "maxOutputTokens": MAX_OUTPUT_TOKENS,
        }
        for model, usage in usage_by_model.items()
    }


NO_MESSAGE_ID = b""  # the key for usage that will be added to the next message


class MessageUsageCounter:
    """Counts the usage of each message in a conversation, for the transcript.

    A vendor often reports usage after the message's lines, or at the end of the turn. Such usage is
    added to the message that was started last.
    """

    __slots__ = ("_message_id", "_new_usage", "_turn_usage")

    def __init__(self) -> None:
        self._new_usage: dict[bytes, Usage] = {}
        self._start_turn()

    def _start_turn(self) -> None:
        self._message_id = NO_MESSAGE_ID
        self._turn_usage = Usage(NO_USAGE)  # the usage that was counted in this turn

    def start_message(self, message_id: bytes) -> None:
        self._message_id = message_id
        if NO_MESSAGE_ID in self._new_usage:
            self._add_to_message(self._new_usage.pop(NO_MESSAGE_ID))

    def add_usage(self, usage: Usage) -> None:
        """Add usage to the current message."""
        for key in USAGE_KEYS:
            self._turn_usage[key] += usage[key]
        self._add_to_message(usage)

    def add_uncounted_turn_usage(self, turn_usage: Usage) -> None:
        """Add the part of `turn_usage` that was not counted yet to the turn's last message."""
        if any(turn_usage.values()):
            self._add_to_message(
                Usage({key: turn_usage[key] - self._turn_usage[key] for key in USAGE_KEYS})
            )
        self._start_turn()

    def take_new_usage_by_message(self) -> dict[bytes, Usage]:
        """Return the usage since the last call, by message id. A count is negative if the total
        count for the turn was smaller than the sum of the counts for its messages.
        """
        new_usage = {
            message_id: usage for message_id, usage in self._new_usage.items() if message_id
        }
        for message_id in new_usage:
            del self._new_usage[message_id]
        return new_usage

    def discard_current_turn_usage(self) -> None:
        """Discard the turn's usage. The frontend has not received any of the turn's lines."""
        self._new_usage.clear()
        self._start_turn()

    def _add_to_message(self, usage: Usage) -> None:
        message_usage = self._new_usage.setdefault(self._message_id, Usage(NO_USAGE))
        for key in USAGE_KEYS:
            message_usage[key] += usage[key]
