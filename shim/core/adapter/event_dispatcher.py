"""Parses a child's output lines, repairs broken lines, and passes each event to the translator."""

from collections.abc import Iterable
from typing import Any

import orjson

from shim.core.adapter.translator import Translator
from shim.core.reading.diagnostics import Diagnostics
from shim.core.reading.json_repair import JsonRepairer
from shim.core.reading.values import MAX_SAMPLE_CHARS, as_dict, as_list

# Events that require an action from the user or a program. These events are never accepted from a
# repaired line, because a program other than the vendor may have written that line.
_CONTROL_TYPES = ("control_request", "control_response", "control_cancel_request")


class EventDispatcher:
    """Calls the event handlers of a child's translator.

    `translator` is replaced for a retry, or if the child's output turns out to be in a different
    dialect.
    """

    def __init__(self, translator: Translator, diagnostics: Diagnostics) -> None:
        self._diagnostics = diagnostics
        self._repairer = JsonRepairer(diagnostics)
        self.set_translator(translator)

    def set_translator(self, translator: Translator) -> None:
        """Pass all later events to this translator."""
        self.translator = translator
        self._overrides_feed = type(translator).feed is not Translator.feed

    def reset(self) -> None:
        """Drop an unfinished JSON value, so that it is not joined to the first line from the next
        child.
        """
        self._repairer = JsonRepairer(self._diagnostics)

    @property
    def non_json_output(self) -> str:
        """The output lines that were not JSON. A vendor may print the reason for a failure there."""
        return "\n".join(self._repairer.noise_lines)

    def dispatch_last_lines(self, lines: Iterable[bytes]) -> None:
        """Dispatch the last lines of the output. An unfinished JSON value is counted as a repair."""
        self.dispatch_lines(lines)
        self._repairer.close()

    def dispatch_lines(self, lines: Iterable[bytes]) -> None:
        """Parse each line once, and call the handler for its event."""
        translator = self.translator
        diagnostics = self._diagnostics
        handlers = translator.handlers
        filter_line = translator.filter_line
        feed = translator.feed
        overrides_feed = self._overrides_feed
        parse_json = orjson.loads
        needs_repair = self._repairer.has_unfinished_object
        lines = iter(lines)
        for raw in lines:
            if filter_line is not None:
                filtered = filter_line(raw)
                if filtered is None:
                    continue
                raw = filtered
            diagnostics.line = raw
            if not needs_repair:
                try:
                    event = parse_json(raw)
                except orjson.JSONDecodeError:
                    if not raw:
                        continue
                    needs_repair = True
            if needs_repair:
                needs_repair = self._repair_line(raw)
                if translator is not self.translator:
                    self.dispatch_lines(lines)
                    return
                continue
            try:
                handler = feed if overrides_feed else handlers[event["type"]]
            except (KeyError, TypeError):
                self._translate_untyped(event)
                if translator is not self.translator:
                    self.dispatch_lines(lines)
                    return
                continue
            try:
                handler(event)
            except Exception as error:
                self._record_malformed(error)
        diagnostics.line = b""

    def _repair_line(self, raw: bytes) -> bool:
        """Repair a line that is not exactly one JSON value. Return whether an unfinished value
        continues on the next line.

        A repaired value is only used if it may be an event of this session.
        """
        for value, is_torn in self._repairer.parse_malformed_line_with_torn_flags(raw):
            if not isinstance(value, dict) and not is_torn:
                self._translate_untyped(value)
            elif self._is_trustworthy(value):
                self._feed_repaired(value)
            elif is_torn or self._can_translate(value):
                self._diagnostics.record("doubtful_event", raw)
            else:
                self._translate_unknown(value)
        return self._repairer.has_unfinished_object

    def _feed_repaired(self, event: object) -> None:
        if not isinstance(event, dict):
            self._translate_untyped(event)
            return
        try:
            self.translator.feed_event_from_broken_line(event)
        except Exception as error:
            self._record_malformed(error)

    def _translate_untyped(self, event: object) -> None:
        """Translate a JSON value that has no known event type. The events in a list are translated
        one by one, because some vendors print a list in their `json` format.
        """
        is_untyped = self.translator.untyped
        candidates = as_list(event)
        items = [
            item for item in candidates if isinstance(item, dict) and (is_untyped or "type" in item)
        ]
        if items and (is_untyped or len(items) == len(candidates)):
            for item in items:
                if self._is_trustworthy(item) or not self._can_translate(item):
                    self._feed_repaired(item)
                else:
                    self._diagnostics.record("doubtful_event")
        elif isinstance(event, dict):
            self._translate_unknown(event)
        else:
            self._diagnostics.record("not_an_event")

    def _translate_unknown(self, event: dict[str, Any]) -> None:
        """Translate an event for which there is no handler. A translator for a different dialect
        may handle this event and all later events.
        """
        try:
            successor = self.translator.choose_translator_for_unknown_event(event)
        except Exception as error:
            self._record_malformed(error)
            return
        if successor is not self.translator:
            successor.outbox[:0] = self.translator.outbox
            self.set_translator(successor)
            self._feed_repaired(event)

    def _record_malformed(self, error: Exception) -> None:
        line = self._diagnostics.line[: 4 * MAX_SAMPLE_CHARS].decode("utf-8", "replace")
        self._diagnostics.record("malformed_event", f"{error!r}: {line}")

    def _can_translate(self, event: object) -> bool:
        """Return whether an event is a control message, or the translator has a handler for its
        type.
        """
        kind = as_dict(event).get("type")
        if kind is None:
            if not self.translator.untyped:
                return False
            return isinstance(event, dict)
        if not isinstance(kind, str):
            return False
        if self._overrides_feed:
            return True
        if kind in self.translator.handlers:
            return True
        return kind in _CONTROL_TYPES

    def _is_trustworthy(self, event: object) -> bool:
        """Return whether an object from a broken line may be an event of this session. A control
        message from a broken line is never trusted.
        """
        if (
            not isinstance(event, dict)
            or not self._can_translate(event)
            or event.get("type") in _CONTROL_TYPES
        ):
            return False
        vendor_session = self.translator.turn.conversation.vendor_session_id
        if vendor_session is None:
            return True
        return event.get("session_id") in (None, vendor_session)
