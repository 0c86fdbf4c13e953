"""The usage of a model as Claude's four numbers, its cost, and the usage of each message."""

from typing import Any

# No real count is as large. The sum of thousands of them stays below 2**53, the limit of a client's
# numbers.
MAX_COUNT = 2**40


# Claude's number for an unknown model. Clients divide by it.
CONTEXT_WINDOW_TOKENS = 200_000
# models with separate usage in a turn or a conversation; no conversation uses more
MAX_MODELS = 32
OTHER_MODEL = "other"


class Usage(dict[str, int]):
    """The four numbers of Claude's usage. `input_tokens` are those that were not cached.

    Instances are created only by `create_usage`.
    """


def create_usage(
    input_tokens: Any,
    cache_read_tokens: Any,
    cache_creation_tokens: Any,
    output_tokens: Any,
    *,
    input_includes_cached: bool = False,
) -> Usage:
    """Create the four numbers from a vendor's values. A value that is not a count is 0.

    `input_includes_cached`: the vendor's input tokens include the cached ones.
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
    # Keys are set one by one. Keyword arguments would take 50 % longer for every message.
    result = Usage()
    result["input_tokens"] = input_tokens
    result["cache_creation_input_tokens"] = cache_creation_tokens
    result["cache_read_input_tokens"] = cache_read_tokens
    result["output_tokens"] = output_tokens
    return result


def parse_count_or_zero(value: Any) -> int:
    """Return a count of tokens or milliseconds, or 0 for any other value."""
    if value.__class__ is int and 0 <= value < MAX_COUNT:
        return int(value)
    if value.__class__ is float and 0 < value < MAX_COUNT:
        return int(value)
    return 0


def parse_dollars(value: Any) -> float:
    """Return a price in dollars, or 0 for any other value."""
    is_number = value.__class__ is float or value.__class__ is int
    if is_number and 0 < value < MAX_COUNT:
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
    """Return the entry of a model in a table of usage. Beyond a limit, models share one entry."""
    if model not in usage_by_model and len(usage_by_model) >= MAX_MODELS:
        model = OTHER_MODEL
    return usage_by_model.setdefault(model, Usage(NO_USAGE))


NO_MESSAGE_ID = b""  # usage under this id belongs to the next message


class MessageUsageCounter:
    """Counts the usage of each message of a conversation, for its transcript.

    A vendor often reports usage after the lines of the message, or at the end of the turn. It is
    added to the message that was started last. `take_new_usage_by_message` returns the usage since
    the last call.
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
        """Add the part of `turn_usage` that was not counted before to the last message of the
        turn.
        """
        if any(turn_usage.values()):
            self._add_to_message(
                Usage({key: turn_usage[key] - self._turn_usage[key] for key in USAGE_KEYS})
            )
        self._start_turn()

    def take_new_usage_by_message(self) -> dict[bytes, Usage]:
        """Return the usage since the last call, by message. A number is negative if a total was
        smaller than the sum of its parts.
        """
        new_usage = {
            message_id: usage for message_id, usage in self._new_usage.items() if message_id
        }
        for message_id in new_usage:
            del self._new_usage[message_id]
        return new_usage

    def discard_current_turn_usage(self) -> None:
        """Discard the usage of the turn, because the frontend has not received any of its lines."""
        self._new_usage.clear()
        self._start_turn()

    def _add_to_message(self, usage: Usage) -> None:
        message_usage = self._new_usage.setdefault(self._message_id, Usage(NO_USAGE))
        for key in USAGE_KEYS:
            message_usage[key] += usage[key]
