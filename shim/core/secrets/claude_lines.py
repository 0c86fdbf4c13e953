"""Redacts the output lines of a real claude. Lines without secrets stay unchanged."""

from collections.abc import Callable, Iterator
from typing import Any

from shim.core.claude.grammar import get_delta, get_fragment, get_parent_call_id
from shim.core.reading.json_text import dump_json
from shim.core.secrets.redactor import Redactor, StreamRedactor

Event = dict[str, Any]
RedactedLine = tuple[bytes, Event]

# The types of lines that stay unchanged, because the frontend's answer may repeat their values.
_UNCHANGED_TYPES = ("control_request", "control_response", "control_cancel_request")
# The length up to which a tool call's input is buffered. A longer input is redacted as text, in
# fragments.
MAX_INPUT_CHARS = 4 * 1024 * 1024


class ClaudeLineRedactor:
    """Redacts a stream of output lines. `create_uuid` creates the UUID for an additional line.

    A redacted line may be longer than the original line. If it exceeds `max_bytes`,
    `split_long_line` splits or shortens it.

    The fragments of a tool call's input are buffered, because each fragment is an incomplete piece
    of JSON. At the end of the content block they are written as one fragment.
    """

    def __init__(
        self,
        redactor: Redactor,
        create_uuid: Callable[[], str],
        max_bytes: int,
        split_long_line: Callable[[Event], Iterator[Event]],
    ) -> None:
        self._redactor = redactor
        # for repeated texts, whose secrets must not be counted twice
        self._uncounted_redactor = Redactor()
        self._create_uuid = create_uuid
        self._max_bytes = max_bytes
        self._split_long_line = split_long_line
        self._stream_redactor = StreamRedactor(self._uncounted_redactor.counts)
        self._input_fragments: list[str] = []
        self._input_chars = 0
        self._last_event: Event | None = None

    def redact_line(self, line: bytes, event: Event) -> Iterator[RedactedLine]:
        """Yield the redacted lines that replace an output line."""
        kind = event.get("type")
        if kind in _UNCHANGED_TYPES:
            yield line, event
            return
        if delta := get_delta(event):
            redacted_delta = self._redact_fragment(event, delta)
            if redacted_delta:
                if redacted_delta == delta:
                    yield line, event
                else:
                    yield from self._encode_redacted(_replace_delta(event, redacted_delta))
            return
        if kind != "system" and not get_parent_call_id(event):
            yield from self.flush()
        redactor = self._redactor
        if kind in ("stream_event", "result"):
            redactor = self._uncounted_redactor
        redacted_event = redactor.redact_value(event)
        if redacted_event is event:
            yield line, event
        else:
            yield from self._encode_redacted(redacted_event)

    def _encode_redacted(self, event: Event) -> Iterator[RedactedLine]:
        """Yield the redacted line, or several lines if the redacted line is too long."""
        line = dump_json(event)
        if len(line) <= self._max_bytes:
            yield line, event
            return
        for split_event in self._split_long_line(event):
            yield dump_json(split_event), split_event

    def flush(self) -> Iterator[RedactedLine]:
        """Yield a line with the buffered text at the end of a content block. Yield nothing if no
        text is buffered.
        """
        event = self._last_event
        if event is None:
            return
        self._last_event = None
        delta = get_delta(event)
        self._input_chars = 0
        if self._input_fragments:
            delta = delta | {"partial_json": self._redact_input()}
        elif text := self._stream_redactor.flush():
            delta = delta | {get_fragment(delta)[0]: text}
        else:
            return
        yield from self._encode_redacted(
            _replace_delta(event, delta) | {"uuid": self._create_uuid()}
        )

    def _redact_fragment(self, event: Event, delta: Event) -> Event:
        """Return the delta to write now, or {} if all of its text is buffered."""
        key, fragment = get_fragment(delta)
        if not key:
            redacted_delta: Event = self._uncounted_redactor.redact_value(delta)
            return redacted_delta
        self._last_event = event
        if key == "partial_json" and self._input_chars <= MAX_INPUT_CHARS:
            self._input_chars += len(fragment)
            self._input_fragments.append(fragment)
            if self._input_chars <= MAX_INPUT_CHARS:
                return {}
            fragment = "".join(self._input_fragments)
            self._input_fragments.clear()
        redacted_text = self._stream_redactor.feed(fragment)
        if redacted_text or not fragment:
            return delta | {key: redacted_text}
        return {}

    def _redact_input(self) -> str:
        """Return a tool call's input as redacted JSON. Input that is not JSON is redacted as text."""
        import orjson

        full_text = "".join(self._input_fragments)
        self._input_fragments.clear()
        try:
            tool_input = orjson.loads(full_text)
        except orjson.JSONDecodeError:
            return self._uncounted_redactor.redact_text(full_text)
        redacted_input = self._uncounted_redactor.redact_value(tool_input)
        if redacted_input is tool_input:
            return full_text
        return dump_json(redacted_input).decode()


def _replace_delta(event: Event, delta: Event) -> Event:
    return event | {"event": event["event"] | {"delta": delta}}
