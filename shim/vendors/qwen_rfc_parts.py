"""Tool calls that come in fragments, and perhaps without an id or an index (qwen-rfc page, 3)."""

from typing import Any

# Of one reply: more than any model asks for at once, and more than the arguments of its calls are long.
CALLS = 1000
FRAGMENT_BYTES = 4 * 1024 * 1024
PIECE_BYTES = 64  # a fragment costs so much besides its characters


class Part:
    """One call: what is known of it so far. `whole` until a fragment of it had to be left out."""

    __slots__ = ("fragments", "identity", "name", "whole")

    def __init__(self) -> None:
        self.identity = self.name = ""
        self.fragments: list[str] = []
        self.whole = True


class Parts:
    """The calls of the open reply. `lost` counts those that were given up, because there was too much of them."""

    def __init__(self) -> None:
        self._by_index: dict[object, Part] = {}
        self._last: Part | None = None
        self._size = 0
        self.lost = 0

    def __bool__(self) -> bool:
        return bool(self._by_index)

    def has(self, identity: str) -> bool:
        """Whether one of the calls has this id."""
        return any(part.identity == identity for part in self._by_index.values())

    def add(self, deltas: list[dict[str, Any]]) -> None:
        """The `tool_calls` of one delta. TypeError or AttributeError for what is no fragment."""
        for position, delta in enumerate(deltas):
            function = delta.get("function") or {}
            fragment = function.get("arguments") or ""
            if not isinstance(fragment, str):
                raise TypeError("the arguments of a call are no text")
            part = self._part(delta, position, alone=len(deltas) == 1)
            if part is None:
                self.lost += 1
                continue
            self._last = part
            part.identity = part.identity or str(delta.get("id") or "")
            part.name = part.name or str(function.get("name") or "")
            self._size += len(fragment) + PIECE_BYTES
            if self._size > FRAGMENT_BYTES:
                part.whole = False
                part.fragments.clear()
            elif fragment and part.whole:
                part.fragments.append(fragment)

    def _part(self, delta: dict[str, Any], position: int, *, alone: bool) -> Part | None:
        """The call that a fragment belongs to: by index, else by id, else the last one or that at its position."""
        index, identity = delta.get("index"), delta.get("id")
        key: object
        if index.__class__ is int:
            key = index
        elif identity:
            key = str(identity)
            if key not in self._by_index:
                key = next((at for at, part in self._by_index.items() if part.identity == key), key)
        elif alone and self._last is not None:
            return self._last
        else:
            key = next(iter(list(self._by_index)[position : position + 1]), position)
        part = self._by_index.get(key)
        if part is None and len(self._by_index) < CALLS:
            part = self._by_index[key] = Part()
        return part

    def take(self) -> list[tuple[str, str, str]]:
        """The whole calls in the order of their beginning, as id, name and arguments; all of them are forgotten."""
        parts = list(self._by_index.values())
        self.forget()
        self.lost += sum(not (part.whole and part.name) for part in parts)
        return [(part.identity, part.name, "".join(part.fragments)) for part in parts if part.whole and part.name]

    def forget(self) -> None:
        """The reply ended before they were complete."""
        self._by_index.clear()
        self._last, self._size = None, 0
