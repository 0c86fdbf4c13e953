"""Where the time of a session went, in a bounded number of equal parts. Pure."""

from typing import Literal, get_args

# What the time was spent on: the model, a tool, a person's answer, nothing (between two turns).
Activity = Literal["model", "tool", "person", "idle"]
ACTIVITIES: tuple[Activity, ...] = get_args(Activity)

MAX_BUCKETS = 1024  # more than a bar has columns, on any screen
# seconds of the first buckets; a power of two, so that sums of widths are exact
MIN_BUCKET_SECONDS = 1 / 1024


class Timeline:
    """Adds up what the time is spent on. Times never go back.

    Each moment is counted once: `seconds` and the buckets both add up to the whole time. When the
    buckets are full, each two become one of twice the width, so that nothing is left out however
    long a session is.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.activity: Activity = "idle"
        self._activity_start_s = 0.0
        self._bucket_seconds = MIN_BUCKET_SECONDS
        self._buckets: list[list[float]] = []  # the seconds of each, in the order of SPENT

    def switch_activity(self, at: float, on: Activity) -> None:
        """Until `at`, in seconds since the beginning, the time went on as before; from then on it
        is spent on `on`.
        """
        begin = self._activity_start_s
        if at > begin:
            self.seconds[self.activity] = self.seconds.get(self.activity, 0.0) + at - begin
            self._add_time(ACTIVITIES.index(self.activity), begin, at)
        self.activity, self._activity_start_s = on, max(at, begin)

    def _add_time(self, place: int, begin: float, end: float) -> None:
        while end > MAX_BUCKETS * self._bucket_seconds:
            self._merge_buckets()
        last = int(end / self._bucket_seconds)
        while len(self._buckets) <= last:
            self._buckets.append([0.0] * len(ACTIVITIES))
        first = int(begin / self._bucket_seconds)
        if first == last:
            self._buckets[first][place] += end - begin
            return
        self._buckets[first][place] += (first + 1) * self._bucket_seconds - begin
        for bucket in self._buckets[first + 1 : last]:
            bucket[place] += self._bucket_seconds
        self._buckets[last][place] += end - last * self._bucket_seconds

    def _merge_buckets(self) -> None:
        """Halve the number of buckets."""
        self._bucket_seconds *= 2
        pairs = zip(
            self._buckets[::2], [*self._buckets[1::2], [0.0] * len(ACTIVITIES)], strict=False
        )
        self._buckets = [[one + other for one, other in zip(*pair, strict=True)] for pair in pairs]

    def compute_columns(self, count: int) -> list[tuple[float, ...]]:
        """What each of `count` equal parts of the time was spent on: shares in the order of SPENT,
        which add up to 1.

        There are none of a session that took no time.
        """
        if not self._activity_start_s:
            return []
        wide = self._activity_start_s / count
        sums = [[0.0] * len(ACTIVITIES) for _ in range(count)]
        for number, bucket in enumerate(self._buckets):
            begin = number * self._bucket_seconds
            end = min(begin + self._bucket_seconds, self._activity_start_s)
            for column in range(int(begin / wide), min(int(end / wide) + 1, count)):
                part = max(min(end, (column + 1) * wide) - max(begin, column * wide), 0.0) / (
                    end - begin or 1.0
                )
                for place, seconds in enumerate(bucket):
                    if seconds:  # most buckets have time of a single kind
                        sums[column][place] += part * seconds
        return [tuple(share / (sum(column) or 1.0) for share in column) for column in sums]
