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
    `usage` only.
    """


def create_usage(
    fresh: Any, cached: Any, written: Any, output: Any, *, input_includes_cached: bool = False
) -> Usage:
    """The four numbers from a vendor's values; a value that is not a count is 0.

    `inclusive`: the vendor's fresh tokens include the cached ones.
    """
    counts = fresh.__class__ is cached.__class__ is written.__class__ is output.__class__ is int
    if not counts or not 0 <= fresh | cached | written | output < MAX_COUNT:
        fresh, cached, written, output = (
            parse_count(fresh),
            parse_count(cached),
            parse_count(written),
            parse_count(output),
        )
    if input_includes_cached:
        fresh = fresh - cached if fresh > cached else 0
    # one key after the other: every reply makes one, and keywords cost half as much again
    made = Usage()
    made["input_tokens"] = fresh
    made["cache_creation_input_tokens"] = written
    made["cache_read_input_tokens"] = cached
    made["output_tokens"] = output
    return made


def parse_count(number: Any) -> int:
    """A count of tokens or milliseconds; 0 for any other value."""
    if number.__class__ is int and 0 <= number < MAX_COUNT:
        return int(number)
    return int(number) if number.__class__ is float and 0 < number < MAX_COUNT else 0


def parse_dollars(number: Any) -> float:
    """A price in dollars; 0 for any other value."""
    there = number.__class__ is float or number.__class__ is int
    return float(number) if there and 0 < number < MAX_COUNT else 0.0


def parse_usage(numbers: Any) -> Usage:
    if numbers.__class__ is Usage:
        return numbers
    if not isinstance(numbers, dict):
        return NO_USAGE
    return create_usage(*(numbers.get(name) for name in USAGE_KEYS))


USAGE_KEYS = (
    "input_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "output_tokens",
)
NO_USAGE = create_usage(0, 0, 0, 0)


def get_model_usage(table: dict[str, Usage], model: str) -> Usage:
    """Where the usage of a model adds up in a table of models; those that are too many share one
    place.
    """
    if model not in table and len(table) >= MAX_MODELS:
        model = OTHER_MODEL
    return table.setdefault(model, Usage(NO_USAGE))


NO_MESSAGE_ID = b""  # what is counted here belongs to the next message


class UsageCounter:
    """What each message of a conversation used, for its transcript.

    A vendor often says this only when the lines of the message were written, or for the whole turn
    at its end. It adds up under the id of the message that was begun last; `take` hands over what
    is new.
    """

    __slots__ = ("_message_id", "_new_usage", "_turn_usage")

    def __init__(self) -> None:
        self._new_usage: dict[bytes, Usage] = {}
        self._start_turn()

    def _start_turn(self) -> None:
        self._message_id = NO_MESSAGE_ID
        self._turn_usage = Usage(NO_USAGE)  # what was counted in it

    def start_message(self, message: bytes) -> None:
        """A message begins."""
        self._message_id = message
        if NO_MESSAGE_ID in self._new_usage:
            self._add_to_message(self._new_usage.pop(NO_MESSAGE_ID))

    def add_usage(self, usage: Usage) -> None:
        """The message used so much more."""
        for name in USAGE_KEYS:
            self._turn_usage[name] += usage[name]
        self._add_to_message(usage)

    def finalize_turn(self, total: Usage) -> None:
        """The turn is over and used `total`: what was not counted so far belongs to its last
        message.
        """
        if any(total.values()):
            self._add_to_message(
                Usage({name: total[name] - self._turn_usage[name] for name in USAGE_KEYS})
            )
        self._start_turn()

    def take_new_usage(self) -> dict[bytes, Usage]:
        """By message, what came since the last call; a number is negative where a total was smaller
        than its parts.
        """
        new = {message: usage for message, usage in self._new_usage.items() if message}
        for message in new:
            del self._new_usage[message]
        return new

    def discard_turn(self) -> None:
        """Forget the turn that has begun: none of its lines was given to the frontend."""
        self._new_usage.clear()
        self._start_turn()

    def _add_to_message(self, usage: Usage) -> None:
        so_far = self._new_usage.setdefault(self._message_id, Usage(NO_USAGE))
        for name in USAGE_KEYS:
            so_far[name] += usage[name]
