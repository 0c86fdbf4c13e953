"""A dictionary with a maximum number of entries."""

from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class BoundedDict(dict[Key, Value]):
    """A dictionary that keeps the last `max_entries` keys. A new key replaces the oldest key."""

    def __init__(self, max_entries: int) -> None:
        super().__init__()
        self._max_entries = max_entries

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        if len(self) > self._max_entries:
            del self[next(iter(self))]
