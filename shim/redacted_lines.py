"""Lines of a real claude without their secrets: parsed, redacted, written again only where something was found."""

from collections.abc import Callable, Iterator
from typing import Any

from shim.dumping import dump
from shim.redact import Redactor, Stream

Event = dict[str, Any]
Line = tuple[bytes, Event]

# Answers to these hand back what is in them, so they pass as they are.
_UNTOUCHED = ("control_request", "control_response", "control_cancel_request")
_FRAGMENTS = ("text", "thinking")


class RedactedLines:
    """Redacts one stream of lines; `mint` gives the uuid of a line that is ours.

    The fragments of a call's input are JSON in pieces: they are collected and said as one when the block ends.
    """

    def __init__(self, redactor: Redactor, mint: Callable[[], str]) -> None:
        self._redactor = redactor
        self._again = Redactor()  # what is said twice is counted once
        self._mint = mint
        self._stream = Stream(self._again.counts)
        self._input: list[str] = []
        self._last: Event | None = None

    def lines(self, raw: bytes, event: Event) -> Iterator[Line]:
        """What is said for one line."""
        kind = event.get("type")
        if kind in _UNTOUCHED:
            yield raw, event
            return
        delta = _delta(event) if kind == "stream_event" else None
        if delta is not None:
            said = self._fragment(event, delta)
            if said:
                yield (raw, event) if said == delta else (dump(changed := _with(event, said)), changed)
            return
        if kind != "system" and not event.get("parent_tool_use_id"):
            yield from self.rest()
        redactor = self._again if kind in ("stream_event", "result") else self._redactor
        clean = redactor.value(event)
        yield (raw, event) if clean is event else (dump(clean), clean)

    def rest(self) -> Iterator[Line]:
        """What was held back of a block that ends."""
        event, self._last = self._last, None
        if event is None:
            return
        delta = _delta(event) or {}
        if self._input:
            delta = delta | {"partial_json": self._whole_input()}
        elif text := self._stream.flush():
            name = next(name for name in _FRAGMENTS if name in delta)
            delta = delta | {name: text}
        else:
            return
        line = _with(event, delta) | {"uuid": self._mint()}
        yield dump(line), line

    def _fragment(self, event: Event, delta: Event) -> Event:
        """The delta to say now, an empty one for none."""
        fragment = delta.get("partial_json")
        if isinstance(fragment, str):
            self._last = event
            self._input.append(fragment)
            return {}
        for name in _FRAGMENTS:
            if isinstance(delta.get(name), str):
                self._last = event
                said = self._stream.feed(delta[name])
                return delta if said == delta[name] else delta | {name: said} if said else {}
        clean: Event = self._again.value(delta)
        return clean

    def _whole_input(self) -> str:
        """A call's input as JSON; as a text where it is none."""
        import orjson

        whole = "".join(self._input)
        self._input.clear()
        try:
            given = orjson.loads(whole)
        except orjson.JSONDecodeError:
            return self._again.text(whole)
        clean = self._again.value(given)
        return whole if clean is given else dump(clean).decode()


def _delta(event: Event) -> Event | None:
    inner = event.get("event")
    delta = inner.get("delta") if isinstance(inner, dict) and inner.get("type") == "content_block_delta" else None
    return delta if isinstance(delta, dict) else None


def _with(event: Event, delta: Event) -> Event:
    return event | {"event": event["event"] | {"delta": delta}}
