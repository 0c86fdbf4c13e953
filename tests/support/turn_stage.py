"""A Turn without a vendor, and configurations with test values."""

from typing import Any

from stream_lines import Line, parse_lines, summarize_lines

from shim.conversation.drivers.open_translation import STABLE_ID_PREFIX, STABLE_SESSION_ID
from shim.core.adapter.child_stream import select_plain_or_redacted_turn_class
from shim.core.claude.session_state import SessionOptions, SessionState, VendorCapabilities
from shim.core.claude.writer import TERMINATORS, StreamJsonWriter
from shim.core.reading.diagnostics import Diagnostics
from shim.core.turn.context import ConversationState, SessionConfig, TurnConfig, VendorInfo
from shim.core.turn.outcome import ChildExit


def build_turn_config(vendor: str = "demo", **fields: Any) -> TurnConfig:
    """Build the configuration of a turn. Each field is set in the group that has it."""
    groups: dict[str, Any] = {
        "vendor": VendorInfo(vendor),
        "session": SessionConfig(STABLE_SESSION_ID),
    }
    config = TurnConfig(**groups)
    for name, value in fields.items():
        group = next(
            (
                group_name
                for group_name in ("vendor", "session", "limits")
                if hasattr(getattr(config, group_name), name)
            ),
            None,
        )
        value = value if group is None else getattr(config, group)._replace(**{name: value})
        config = config._replace(**{group or name: value})
    return config


class Stage:
    """A Turn with Claude's writer and stable ids. `take_lines` returns the lines since the previous
    call.
    """

    def __init__(
        self,
        *,
        partial: bool = False,
        terminator: str = "message_stop",
        limit: int = 0,
        max_bytes: int = 0,
        **config_fields: Any,
    ) -> None:
        self.writer = StreamJsonWriter(
            STABLE_ID_PREFIX,
            writes_partial_messages=partial,
            terminator=TERMINATORS[terminator],
            max_line_bytes=limit,
        )
        self.diagnostics = Diagnostics()
        self.conversation = ConversationState()
        self.config = build_turn_config(**config_fields)
        if max_bytes:
            self.writer.max_bytes = max_bytes
        turn_class = select_plain_or_redacted_turn_class(self.config)
        self.turn = turn_class(self.writer, self.config, self.conversation, self.diagnostics)
        self.bytes = b""

    def take_lines(self) -> list[Line]:
        data = self.writer.take_bytes()
        self.bytes += data
        return parse_lines(data)

    def take_summary(self) -> list[str]:
        return summarize_lines(self.take_lines())

    def finish_turn(self, code: int | None = 0, stderr: str = "") -> list[str]:
        """End the turn. Return a summary of all lines that were not taken yet."""
        self.turn.close(None if code is None else ChildExit(code=code), stderr)
        return self.take_summary()

    def finish_with_result(self, code: int | None = 0, stderr: str = "") -> Line:
        """End the turn. Return its result line."""
        self.turn.close(None if code is None else ChildExit(code=code), stderr)
        (result,) = (line for line in self.take_lines() if line["type"] == "result")
        return result


def build_session_state(**fields: Any) -> SessionState:
    """Build the state of a session. Each field is set in the group that has it."""
    rules = {name: fields.pop(name) for name in SessionOptions._fields if name in fields}
    serving = {name: fields.pop(name) for name in VendorCapabilities._fields if name in fields}
    return SessionState(SessionOptions(**rules), VendorCapabilities(**serving), **fields)
