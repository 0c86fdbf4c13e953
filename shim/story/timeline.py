"""Where the time of a session went, in a bounded number of equal parts. Pure."""

from typing import Literal, get_args

# What the time was spent on: the model, a tool, a person's answer, nothing (between two turns).
Spent = Literal["model", "tool", "person", "idle"]
SPENT: tuple[Spent, ...] = get_args(Spent)

BUCKETS = 1024  # more than a bar has columns, on any screen
# seconds of the first buckets; a power of two, so that sums of widths are exact
SHORTEST = 1 / 1024


class Timeline:
    """Adds up what the time is spent on. Times never go back.

    Each moment is counted once: `seconds` and the buckets both add up to the whole time. When the
    buckets are full, each two become one of twice the width, so that nothing is left out however
    long a session is.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.spending: Spent = "idle"
        self._since = 0.0
        self._width = SHORTEST
        self._buckets: list[list[float]] = []  # the seconds of each, in the order of SPENT

    def spend(self, at: float, on: Spent) -> None:
        """Until `at`, in seconds since the beginning, the time went on as before; from then on it
        is spent on `on`.
        """
        begin = self._since
        if at > begin:
            self.seconds[self.spending] = self.seconds.get(self.spending, 0.0) + at - begin
            self._add(SPENT.index(self.spending), begin, at)
        self.spending, self._since = on, max(at, begin)

    def _add(self, place: int, begin: float, end: float) -> None:
        while end > BUCKETS * self._width:
            self._widen()
        last = int(end / self._width)
        while len(self._buckets) <= last:
            self._buckets.append([0.0] * len(SPENT))
        first = int(begin / self._width)
        if first == last:
            self._buckets[first][place] += end - begin
            return
        self._buckets[first][place] += (first + 1) * self._width - begin
        for bucket in self._buckets[first + 1 : last]:
            bucket[place] += self._width
        self._buckets[last][place] += end - last * self._width

    def _widen(self) -> None:
        """Halve the number of buckets."""
        self._width *= 2
        pairs = zip(self._buckets[::2], [*self._buckets[1::2], [0.0] * len(SPENT)], strict=False)
        self._buckets = [[one + other for one, other in zip(*pair, strict=True)] for pair in pairs]

    def columns(self, count: int) -> list[tuple[float, ...]]:
        """What each of `count` equal parts of the time was spent on: shares in the order of SPENT,
        which add up to 1.

        There are none of a session that took no time.
        """
        if not self._since:
            return []
        wide = self._since / count
        sums = [[0.0] * len(SPENT) for _ in range(count)]
        for number, bucket in enumerate(self._buckets):
            begin = number * self._width
            end = min(begin + self._width, self._since)
            for column in range(int(begin / wide), min(int(end / wide) + 1, count)):
                part = max(min(end, (column + 1) * wide) - max(begin, column * wide), 0.0) / (
                    end - begin or 1.0
                )
                for place, seconds in enumerate(bucket):
                    if seconds:  # most buckets have time of a single kind
                        sums[column][place] += part * seconds
        return [tuple(share / (sum(column) or 1.0) for share in column) for column in sums]
