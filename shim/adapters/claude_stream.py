"""Passes the lines of a real claude through. Lines that a frontend could not read are completed,
shortened or dropped.
"""

from typing import Any

from shim.adapters.claude_input import encode_control_response
from shim.adapters.claude_passthrough import PassthroughTurn
from shim.core.adapter.translator import Event, Translator
from shim.core.claude.control_responses import build_control_error
from shim.core.claude.normalize import ClaudeEventNormalizer
from shim.core.reading.json_text import dump_json
from shim.core.reading.surrogates import count_incomplete_trailing_chars, join_split_chars
from shim.core.reading.values import as_dict
from shim.core.turn.outcome import ChildExit
from shim.core.turn.turn import Turn

# The line types that every frontend reads. Up to version 0.1.39, the Python SDK stopped at any
# other type.
LEGACY_KINDS = {"assistant", "user", "stream_event", "system", "result"}
LEGACY_KINDS |= {"control_request", "control_response", "control_cancel_request"}
# More line types that may be written before the first message. Lines of all remaining types are
# dropped until then, because the Python SDK reads only a hundred lines before the answer to
# `initialize`.
EARLY_KINDS = {"auth_status", "keep_alive", "rate_limit_event"}

MAX_PENDING_REQUESTS = 1000  # the limit for refusals that wait to be sent to the child
TOO_LARGE_MESSAGE = "The tool call is too large for a permission prompt ({size} bytes)."


class ClaudeTranslator(Translator):
    """Passes a real claude's lines through.

    `_raw_line` is the current line, or None if the line had to be repaired. `_split_delta`
    describes a delta that ended in the middle of a character: its event, the key of its text, and
    the first half of the character.
    """

    def __init__(self, turn: Turn, *, partial: bool = False) -> None:
        super().__init__(turn, partial=partial)
        self._raw_line: bytes | None = None
        self._pass_line = turn.wrap_passthrough_line_writer(
            PassthroughTurn(turn).forward_claude_line
        )
        writer = turn.writer
        self._normalizer = ClaudeEventNormalizer(
            turn.diagnostics, writer.create_uuid, writer.max_bytes, turn.config.store_text
        )
        self._split_delta: tuple[Event, str, str] | None = None

    def start_turn(self, turn: Turn) -> None:
        super().start_turn(turn)
        self._pass_line = turn.wrap_passthrough_line_writer(
            PassthroughTurn(turn).forward_claude_line
        )

    def filter_line(self, raw: bytes) -> bytes | None:
        """Store the bytes of the line, which are sent to the frontend unchanged. A line that
        contains a CR is encoded again, because some frontends treat a CR as the end of a line.
        """
        stripped = raw.rstrip(b"\r")
        if b"\r" in stripped:
            self._raw_line = None
        else:
            self._raw_line = stripped
        return raw

    def feed(self, event: Event) -> None:
        raw = self._raw_line
        self._raw_line = None
        kind = event.get("type")
        if not isinstance(kind, str) or not self._accepts_line_type(kind):
            self.turn.record_unknown_event(kind, event)
            return
        if self._split_delta is not None and raw is not None:
            self._write_half_character()
        if kind == "system" and event.get("subtype") == "init":
            self.start_next_turn()
        complete_event = self._complete_event(event)
        if complete_event is None:
            return
        if raw is None or complete_event is not event:
            raw = dump_json(complete_event)
        if len(raw) <= self.turn.writer.max_bytes:
            self._write_event(raw, complete_event)
        elif kind == "control_request":
            self._refuse_oversized(complete_event, len(raw))
        else:
            for short_event in self._normalizer.split_long_event(complete_event):
                self._write_event(dump_json(short_event), short_event)

    def _accepts_line_type(self, kind: str) -> bool:
        """Return whether the frontend reads lines of this type now."""
        if kind in LEGACY_KINDS:
            return True
        if self.turn.config.rejects_unknown_lines:
            return False
        return kind in EARLY_KINDS or self.has_message

    def _complete_event(self, event: Event) -> Event | None:
        """Return the event with all fields that frontends need, or None if it must be dropped."""
        turn = self.turn
        session = turn.config.session
        session_id = turn.conversation.session_id or session.requested_id or session.new_id
        model = turn.assistant_message.model or "unknown"
        return self._normalizer.normalize_event(event, session_id, model)

    def _refuse_oversized(self, event: Event, size: int) -> None:
        """Refuse a control request that exceeds the line limit. If the request were truncated, the
        frontend's answer would contain a damaged input.
        """
        self.turn.diagnostics.record("question_too_large")
        if len(self.outbox) < MAX_PENDING_REQUESTS:
            request = event.get("request")
            request_id = str(event.get("request_id"))
            text = TOO_LARGE_MESSAGE.format(size=size)
            response = build_control_error(request_id, text)
            if isinstance(request, dict) and request.get("subtype") == "can_use_tool":
                denial = {"behavior": "deny", "message": text}
                response = {"subtype": "success", "request_id": request_id, "response": denial}
            self.outbox.append(encode_control_response(response))

    def _write_event(self, raw: bytes, event: Event) -> None:
        self._pass_line(raw, event)
        if event["type"] == "result":
            self.turn.record_vendor_completion()

    def feed_event_from_broken_line(self, event: Event) -> None:
        self._raw_line = None
        inner = event.get("event")
        delta = as_dict(inner).get("delta")
        if isinstance(delta, dict):
            self._join_split_character(event, delta)
        self.feed(event)

    def _join_split_character(self, event: Event, delta: dict[str, Any]) -> None:
        """Join a character that was split between two deltas. The character is written with the
        second delta.
        """
        for name in ("text", "thinking"):
            if isinstance(delta.get(name), str):
                split_delta = self._split_delta
                self._split_delta = None
                text = join_split_chars(
                    (split_delta[2] if split_delta and split_delta[1] == name else "") + delta[name]
                )
                if count := count_incomplete_trailing_chars(text):
                    self._split_delta = event, name, text[-count:]
                    text = text[:-count]
                delta[name] = text

    def _write_half_character(self) -> None:
        """Write half a character as a separate delta, because the other half did not arrive."""
        assert self._split_delta is not None
        (event, name, half), self._split_delta = self._split_delta, None
        inner = event["event"]
        half_event = event | {"event": inner | {"delta": inner["delta"] | {name: half}}}
        self._write_event(dump_json(half_event), half_event)

    def feed_eof(self, child_exit: ChildExit | None, stderr: str) -> None:
        if self._split_delta is not None:
            self._write_half_character()
