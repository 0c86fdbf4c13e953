"""Lines of a real claude without their secrets. A line is written again only where a secret was
found in it.
"""

from collections.abc import Callable, Iterator
from typing import Any

from shim.core.reading.json_text import dump_json
from shim.core.secrets.redactor import Redactor, Stream

Event = dict[str, Any]
Line = tuple[bytes, Event]

# An answer to such a line hands back what the line says, so these lines pass as they are.
_UNTOUCHED = ("control_request", "control_response", "control_cancel_request")
_FRAGMENTS = ("text", "thinking", "partial_json")
# Of a call's input that comes in pieces; a longer input is redacted as a text, piece by piece.
INPUT_CHARACTERS = 4 * 1024 * 1024


class RedactedLines:
    """Redacts one stream of lines; `mint` gives the uuid of a line that is ours.

    What is written again may have become longer than `room`: `short` makes several lines of it, or
    cuts it. The fragments of a call's input are JSON in pieces: they are collected and said as one
    when the block ends.
    """

    def __init__(
        self,
        redactor: Redactor,
        mint: Callable[[], str],
        room: int,
        short: Callable[[Event], Iterator[Event]],
    ) -> None:
        self._redactor = redactor
        self._again = Redactor()  # for what is said a second time: it is counted once
        self._mint = mint
        self._room = room
        self._short = short
        self._stream = Stream(self._again.counts)
        self._input: list[str] = []
        self._size = 0
        self._last: Event | None = None

    def lines(self, raw: bytes, event: Event) -> Iterator[Line]:
        """The lines that are said in the place of one line."""
        kind = event.get("type")
        if kind in _UNTOUCHED:
            yield raw, event
            return
        delta = _delta(event) if kind == "stream_event" else None
        if delta is not None:
            said = self._fragment(event, delta)
            if said:
                if said == delta:
                    yield raw, event
                else:
                    yield from self._again_written(_with(event, said))
            return
        if kind != "system" and not event.get("parent_tool_use_id"):
            yield from self.rest()
        redactor = self._again if kind in ("stream_event", "result") else self._redactor
        clean = redactor.value(event)
        if clean is event:
            yield raw, event
        else:
            yield from self._again_written(clean)

    def _again_written(self, event: Event) -> Iterator[Line]:
        """A redacted line; several where it has become too long."""
        line = dump_json(event)
        if len(line) <= self._room:
            yield line, event
            return
        for short in self._short(event):
            yield dump_json(short), short

    def rest(self) -> Iterator[Line]:
        """The lines for what was held back of a block that ends."""
        event, self._last = self._last, None
        if event is None:
            return
        delta = _delta(event) or {}
        self._size = 0
        if self._input:
            delta = delta | {"partial_json": self._whole_input()}
        elif text := self._stream.flush():
            name = next(name for name in _FRAGMENTS if name in delta)
            delta = delta | {name: text}
        else:
            return
        yield from self._again_written(_with(event, delta) | {"uuid": self._mint()})

    def _fragment(self, event: Event, delta: Event) -> Event:
        """The delta to write now; empty if all of it is held back."""
        fragment = delta.get("partial_json")
        if isinstance(fragment, str) and self._size <= INPUT_CHARACTERS:
            self._last = event
            self._size += len(fragment)
            self._input.append(fragment)
            if self._size <= INPUT_CHARACTERS:
                return {}
            said = self._stream.feed("".join(self._input))
            self._input.clear()
            return delta | {"partial_json": said} if said else {}
        for name in _FRAGMENTS:
            if isinstance(delta.get(name), str):
                self._last = event
                said = self._stream.feed(delta[name])
                return delta if said == delta[name] else delta | {name: said} if said else {}
        clean: Event = self._again.value(delta)
        return clean

    def _whole_input(self) -> str:
        """A call's input as JSON, redacted; an input that is not JSON is redacted as a text."""
        import orjson

        whole = "".join(self._input)
        self._input.clear()
        try:
            given = orjson.loads(whole)
        except orjson.JSONDecodeError:
            return self._again.text(whole)
        clean = self._again.value(given)
        return whole if clean is given else dump_json(clean).decode()


def _delta(event: Event) -> Event | None:
    inner = event.get("event")
    delta = (
        inner.get("delta")
        if isinstance(inner, dict) and inner.get("type") == "content_block_delta"
        else None
    )
    return delta if isinstance(delta, dict) else None


def _with(event: Event, delta: Event) -> Event:
    return event | {"event": event["event"] | {"delta": delta}}
