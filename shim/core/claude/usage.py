"""Usage of a model in Claude's four numbers, its cost, and what each message used."""

from typing import Any

# no count comes near it, and what every client's numbers can hold (2**53) is thousands of them
MAX_COUNT = 2**40


# Claude's own number for a model that it does not know; clients divide by it
CONTEXT_WINDOW_TOKENS = 200_000
# whose usage is told apart in a turn and in a conversation: more than anybody routes to
MAX_MODELS = 32
OTHER_MODEL = "other"


class Usage(dict[str, int]):
    """Always all four, in Claude's meaning: input_tokens are those that were not cached. Made by
    `create_usage` only.
    """


def create_usage(
    input_tokens: Any,
    cache_read_tokens: Any,
    cache_creation_tokens: Any,
    output_tokens: Any,
    *,
    input_includes_cached: bool = False,
) -> Usage:
    """The four numbers from a vendor's values; a value that is not a count is 0.

    `input_includes_cached`: the vendor's fresh tokens include the cached ones.
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
        input_tokens, cache_read_tokens, cache_creation_tokens, output_tokens = (
            parse_count_or_zero(input_tokens),
            parse_count_or_zero(cache_read_tokens),
            parse_count_or_zero(cache_creation_tokens),
            parse_count_or_zero(output_tokens),
        )
    if input_includes_cached:
        input_tokens = input_tokens - cache_read_tokens if input_tokens > cache_read_tokens else 0
    # one key after the other: every reply makes one, and keywords cost half as much again
    result = Usage()
    result["input_tokens"] = input_tokens
    result["cache_creation_input_tokens"] = cache_creation_tokens
    result["cache_read_input_tokens"] = cache_read_tokens
    result["output_tokens"] = output_tokens
    return result


def parse_count_or_zero(value: Any) -> int:
    """A count of tokens or milliseconds; 0 for any other value."""
    if value.__class__ is int and 0 <= value < MAX_COUNT:
        return int(value)
    return int(value) if value.__class__ is float and 0 < value < MAX_COUNT else 0


def parse_dollars(value: Any) -> float:
    """A price in dollars; 0 for any other value."""
    is_number = value.__class__ is float or value.__class__ is int
    return float(value) if is_number and 0 < value < MAX_COUNT else 0.0


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
    """Where the usage of a model adds up in a table of models; those that are too many share one
    place.
    """
    if model not in usage_by_model and len(usage_by_model) >= MAX_MODELS:
        model = OTHER_MODEL
    return usage_by_model.setdefault(model, Usage(NO_USAGE))


NO_MESSAGE_ID = b""  # what is counted here belongs to the next message


class MessageUsageCounter:
    """What each message of a conversation used, for its transcript.

    A vendor often says this only when the lines of the message were written, or for the whole turn
    at its end. It adds up under the id of the message that was begun last; `take_new_usage` hands
    over what is new.
    """

    __slots__ = ("_message_id", "_new_usage", "_turn_usage")

    def __init__(self) -> None:
        self._new_usage: dict[bytes, Usage] = {}
        self._start_turn()

    def _start_turn(self) -> None:
        self._message_id = NO_MESSAGE_ID
        self._turn_usage = Usage(NO_USAGE)  # what was counted in it

    def start_message(self, message_id: bytes) -> None:
        """A message begins."""
        self._message_id = message_id
        if NO_MESSAGE_ID in self._new_usage:
            self._add_to_message(self._new_usage.pop(NO_MESSAGE_ID))

    def add_usage(self, usage: Usage) -> None:
        """The message used so much more."""
        for key in USAGE_KEYS:
            self._turn_usage[key] += usage[key]
        self._add_to_message(usage)

    def add_uncounted_turn_usage(self, turn_usage: Usage) -> None:
        """The turn is over and used `turn_usage`: what was not counted so far belongs to its last
        message.
        """
        if any(turn_usage.values()):
            self._add_to_message(
                Usage({key: turn_usage[key] - self._turn_usage[key] for key in USAGE_KEYS})
            )
        self._start_turn()

    def take_new_usage_by_message(self) -> dict[bytes, Usage]:
        """By message, what came since the last call; a number is negative where a total was smaller
        than its parts.
        """
        new_usage = {
            message_id: usage for message_id, usage in self._new_usage.items() if message_id
        }
        for message_id in new_usage:
            del self._new_usage[message_id]
        return new_usage

    def discard_current_turn_usage(self) -> None:
        """Forget the turn that has begun: none of its lines was given to the frontend."""
        self._new_usage.clear()
        self._start_turn()

    def _add_to_message(self, usage: Usage) -> None:
        message_usage = self._new_usage.setdefault(self._message_id, Usage(NO_USAGE))
        for key in USAGE_KEYS:
            message_usage[key] += usage[key]
