"""Measures how long each activity of a session took, in a limited number of equal time buckets.
Does no I/O.
"""

from typing import Literal, get_args

# The activities that a session spends time on: the model replies, a tool runs, a person must answer,
# or nothing happens between two turns.
Activity = Literal["model", "tool", "person", "idle"]
ACTIVITIES: tuple[Activity, ...] = get_args(Activity)

MAX_BUCKETS = 1024  # more than the columns of any timeline bar
# The initial width of a bucket in seconds. It is a power of two, so that sums of widths are exact.
MIN_BUCKET_SECONDS = 1 / 1024


class ActivityTimeline:
    """Adds up the time of each activity. Times must not decrease.

    All time is counted exactly once: `seconds` and the buckets both add up to the total time. When
    all buckets are used, neighboring buckets are merged in pairs and the bucket width doubles. A
    session of any length therefore fits.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.activity: Activity = "idle"
        self._activity_start_s = 0.0
        self._bucket_seconds = MIN_BUCKET_SECONDS
        self._buckets: list[list[float]] = []  # in the order of ACTIVITIES

    def switch_activity(self, time_s: float, activity: Activity) -> None:
        """Add the time up to `time_s` to the current activity, then switch to `activity`. Times are
        seconds since the start of the session.
        """
        start_s = self._activity_start_s
        if time_s > start_s:
            self.seconds[self.activity] = self.seconds.get(self.activity, 0.0) + time_s - start_s
            self._add_time(ACTIVITIES.index(self.activity), start_s, time_s)
        self.activity, self._activity_start_s = activity, max(time_s, start_s)

    def _add_time(self, activity_index: int, start_s: float, end_s: float) -> None:
        while end_s > MAX_BUCKETS * self._bucket_seconds:
            self._merge_buckets()
        last_bucket = int(end_s / self._bucket_seconds)
        while len(self._buckets) <= last_bucket:
            self._buckets.append([0.0] * len(ACTIVITIES))
        first = int(start_s / self._bucket_seconds)
        if first == last_bucket:
            self._buckets[first][activity_index] += end_s - start_s
            return
        self._buckets[first][activity_index] += (first + 1) * self._bucket_seconds - start_s
        for bucket in self._buckets[first + 1 : last_bucket]:
            bucket[activity_index] += self._bucket_seconds
        self._buckets[last_bucket][activity_index] += end_s - last_bucket * self._bucket_seconds

    def _merge_buckets(self) -> None:
        """Merge neighboring buckets in pairs, and double the bucket width."""
        self._bucket_seconds *= 2
        pairs = zip(
            self._buckets[::2], [*self._buckets[1::2], [0.0] * len(ACTIVITIES)], strict=False
        )
        self._buckets = [
            [left + right for left, right in zip(*pair, strict=True)] for pair in pairs
        ]

    def compute_activity_shares_by_column(self, column_count: int) -> list[tuple[float, ...]]:
        """Divide the session into `column_count` equal columns. Return each column's shares of time
        per activity, in the order of ACTIVITIES. The shares of a column add up to 1.

        Return an empty list for a session without any duration.
        """
        if not self._activity_start_s:
            return []
        column_seconds = self._activity_start_s / column_count
        sums = [[0.0] * len(ACTIVITIES) for _ in range(column_count)]
        for bucket_number, bucket in enumerate(self._buckets):
            start_s = bucket_number * self._bucket_seconds
            end_s = min(start_s + self._bucket_seconds, self._activity_start_s)
            for column in range(
                int(start_s / column_seconds), min(int(end_s / column_seconds) + 1, column_count)
            ):
                fraction = max(
                    min(end_s, (column + 1) * column_seconds)
                    - max(start_s, column * column_seconds),
                    0.0,
                ) / (end_s - start_s or 1.0)
                for activity_index, seconds in enumerate(bucket):
                    if seconds:  # most buckets contain only one activity
                        sums[column][activity_index] += fraction * seconds
        return [tuple(share / (sum(column) or 1.0) for share in column) for column in sums]
