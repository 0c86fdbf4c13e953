"""Usage of a model in Claude's four numbers, its cost, and what each message used."""

from typing import Any

# no count comes near it, and what every client's numbers can hold (2**53) is thousands of them
LARGEST = 2**40


# Claude's own number for a model that it does not know; clients divide by it
CONTEXT_WINDOW = 200_000
# whose usage is told apart in a turn and in a conversation: more than anybody routes to
MODELS = 32
OTHER_MODELS = "other"


class Usage(dict[str, int]):
    """Always all four, in Claude's meaning: input_tokens are those that were not cached. Made by
    `usage` only.
    """


def create_usage(
    fresh: Any, cached: Any, written: Any, output: Any, *, inclusive: bool = False
) -> Usage:
    """The four numbers from a vendor's values; a value that is not a count is 0.

    `inclusive`: the vendor's fresh tokens include the cached ones.
    """
    counts = fresh.__class__ is cached.__class__ is written.__class__ is output.__class__ is int
    if not counts or not 0 <= fresh | cached | written | output < LARGEST:
        fresh, cached, written, output = (
            parse_count(fresh),
            parse_count(cached),
            parse_count(written),
            parse_count(output),
        )
    if inclusive:
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
    if number.__class__ is int and 0 <= number < LARGEST:
        return int(number)
    return int(number) if number.__class__ is float and 0 < number < LARGEST else 0


def parse_dollars(number: Any) -> float:
    """A price in dollars; 0 for any other value."""
    there = number.__class__ is float or number.__class__ is int
    return float(number) if there and 0 < number < LARGEST else 0.0


def parse_usage(numbers: Any) -> Usage:
    if numbers.__class__ is Usage:
        return numbers
    if not isinstance(numbers, dict):
        return NO_USAGE
    return create_usage(*(numbers.get(name) for name in ORDER))


ORDER = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
NO_USAGE = create_usage(0, 0, 0, 0)


def place(table: dict[str, Usage], model: str) -> Usage:
    """Where the usage of a model adds up in a table of models; those that are too many share one
    place.
    """
    if model not in table and len(table) >= MODELS:
        model = OTHER_MODELS
    return table.setdefault(model, Usage(NO_USAGE))


NO_MESSAGE = b""  # what is counted here belongs to the next message


class Tally:
    """What each message of a conversation used, for its transcript.

    A vendor often says this only when the lines of the message were written, or for the whole turn
    at its end. It adds up under the id of the message that was begun last; `take` hands over what
    is new.
    """

    __slots__ = ("_message", "_new", "_turn")

    def __init__(self) -> None:
        self._new: dict[bytes, Usage] = {}
        self._begin_turn()

    def _begin_turn(self) -> None:
        self._message = NO_MESSAGE
        self._turn = Usage(NO_USAGE)  # what was counted in it

    def begin(self, message: bytes) -> None:
        """A message begins."""
        self._message = message
        if NO_MESSAGE in self._new:
            self._add(self._new.pop(NO_MESSAGE))

    def count(self, usage: Usage) -> None:
        """The message used so much more."""
        for name in ORDER:
            self._turn[name] += usage[name]
        self._add(usage)

    def settle(self, total: Usage) -> None:
        """The turn is over and used `total`: what was not counted so far belongs to its last
        message.
        """
        if any(total.values()):
            self._add(Usage({name: total[name] - self._turn[name] for name in ORDER}))
        self._begin_turn()

    def take(self) -> dict[bytes, Usage]:
        """By message, what came since the last call; a number is negative where a total was smaller
        than its parts.
        """
        new = {message: usage for message, usage in self._new.items() if message}
        for message in new:
            del self._new[message]
        return new

    def forget(self) -> None:
        """Forget the turn that has begun: none of its lines was given to the frontend."""
        self._new.clear()
        self._begin_turn()

    def _add(self, usage: Usage) -> None:
        so_far = self._new.setdefault(self._message, Usage(NO_USAGE))
        for name in ORDER:
            so_far[name] += usage[name]
