"""Selects which lines of a background session one frontend receives: the lines of the turns that
answer the frontend's own messages.

A conversation in the frontend's own process would have no other lines. A frontend that reads up to
the next result would otherwise mistake the result of another client's turn for its own.
"""

from collections.abc import Callable, Mapping
from enum import Enum

import orjson

from shim.bridge.attach.open_message import OpenAssistantMessage
from shim.core.claude.grammar import get_parent_call_id
from shim.core.claude.messages import parse_json_line
from shim.core.reading.json_text import dump_json
from shim.core.reading.limits import shorten_line_to_fit
from shim.core.reading.typed import Any, NamedTuple

# how a partial message line starts, in the shim's output and in the real claude's
PARTIAL_PREFIX = b'{"type":"stream_event"'
# Lines that are buffered until the turn's owner is known. A real claude writes about ten.
MAX_BUFFERED_LINES = 1000


class FrontendOutputOptions(NamedTuple):
    """The output options that a frontend sets by its flags and its environment.

    wants_partial     whether the frontend receives partial messages
    replays_messages  whether the frontend's own messages and answers are repeated (C15)
    state_events      the events with the session's state: "", "visible" or "host" (contract 5.13)
    terminator        the line that is written after a result
    max_line_bytes    the maximum length of a line; 0 for no limit
    """

    wants_partial: bool = False
    replays_messages: bool = False
    state_events: str = ""
    terminator: bytes = b""
    max_line_bytes: int = 0


class TurnOwner(Enum):
    """The client whose message the current turn answers."""

    NO_TURN = "no turn is running"
    UNKNOWN = "a turn is starting, and its origin is unknown"
    THIS_FRONTEND = "the turn answers this frontend's messages"
    OTHER_CLIENT = "the turn answers messages of other clients"


class FrontendTurnFilter:
    """One frontend's view of the session's turns.

    create_id       returns a new UUID
    is_controller   whether the frontend has control; if so, a turn that names no message also
                    belongs to the frontend
    mode            the session's last permission mode, or "" before the first one
    requested_mode  the mode from the frontend's own flags; this change is not reported to it
    waiting_ids     UUIDs of the frontend's messages that have no result yet
    answering_ids   UUIDs of the frontend's messages that the current turn answers
    result          the last result that was sent to the frontend
    result_line     the line of that result
    """

    def __init__(
        self, options: FrontendOutputOptions, session_id: str, create_id: Callable[[], str]
    ) -> None:
        self.is_controller = False
        self.waiting_ids: dict[str, None] = {}
        self.answering_ids: set[str] = set()
        self.result: Mapping[str, Any] = {}
        self.result_line = b""
        self.mode = self.requested_mode = ""
        self.owner = TurnOwner.NO_TURN
        self._options = options
        self._session_id = session_id
        self._create_id = create_id
        self._init_line = b""
        self._buffered_lines: list[bytes] = []
        self._open_message = OpenAssistantMessage()

    @property
    def is_idle(self) -> bool:
        """Whether all of the frontend's messages have their results."""
        if self.waiting_ids:
            return False
        return self.owner is not TurnOwner.THIS_FRONTEND

    def record_joined_session(self, init_line: bytes, *, is_running: bool) -> None:
        """Record the session's state when the frontend joins. `init_line` is the session's last
        `init` line, or empty if the session has had no turn.
        """
        self._init_line = init_line
        if is_running:
            self.owner = TurnOwner.OTHER_CLIENT
        else:
            self.owner = TurnOwner.NO_TURN

    def add_unanswered_message_id(self, message_id: str) -> None:
        """Record that a message from the frontend is sent to the session."""
        self.waiting_ids[message_id] = None

    def remove_unanswered_message_id(self, message_id: str) -> bool:
        """Record that the session did not accept a message. Return whether the message was still
        waiting for its result.
        """
        return self.waiting_ids.pop(message_id, self) is None

    def filter_line(self, raw: bytes) -> list[bytes]:
        """Return the lines to send to the frontend for one line of the session, without
        their LFs.
        """
        if raw.startswith(PARTIAL_PREFIX):
            if self.owner is TurnOwner.UNKNOWN:
                self._buffer_line(raw)
                if self.is_controller:
                    return self._decide_owner()
                return []
            if self.owner is TurnOwner.THIS_FRONTEND and self._options.wants_partial:
                return self._pass_partial(raw)
            return []
        line = parse_json_line(raw)
        if not isinstance(line, dict):
            return []
        if line.get("status") == "requesting" and not self._options.wants_partial:
            return []  # Claude writes these lines with partial messages only
        if isinstance(mode := line.get("permissionMode"), str) and line.get("type") == "system":
            self.mode = mode
        match line.get("type"), line.get("subtype"):
            case ("system", "session_state_changed") | ("message_stop", _):
                return []  # this line is created separately for each frontend
            case ("system", "init"):
                return self._start_turn(raw)
            case ("result", _):
                return self._end_turn(raw, line)
            case ("user", _) if line.get("isReplay") is True:
                return self._on_replayed_message(raw, line.get("uuid"))
        if self.owner is TurnOwner.NO_TURN:
            if (
                self.requested_mode
                and line.get("subtype") == "status"
                and line.get("permissionMode") == self.requested_mode
            ):
                self.requested_mode = ""
                return []
            if self.is_controller:
                return [self._fit_line(raw)]
            return []
        if self.owner is TurnOwner.UNKNOWN:
            self._buffer_line(raw)
            if line.get("type") == "system":
                return []
            return self._decide_owner()
        if line.get("type") == "assistant" and not get_parent_call_id(line):
            self._open_message.clear_completed_block_text()
        if self.owner is TurnOwner.THIS_FRONTEND:
            return [self._fit_line(raw)]
        return []

    def build_session_state_lines(self, state: str) -> list[bytes]:
        """Return the line that reports the session's state, or [] if the frontend did not request
        state events.
        """
        if not self._options.state_events:
            return []
        visibility = {}
        if self._options.state_events == "host":
            visibility = {"sdk_host_only": True}
        line = {"type": "system", "subtype": "session_state_changed", "state": state, **visibility}
        return [dump_json(line | {"uuid": self._create_id(), "session_id": self._session_id})]

    def build_permission_denied_lines(
        self, request: Mapping[str, Any], message: str
    ) -> list[bytes]:
        """Return the line that reports a denied tool call, or [] during another client's turn."""
        if self.owner is not TurnOwner.THIS_FRONTEND:
            return []
        line = {
            "type": "system",
            "subtype": "permission_denied",
            "tool_name": request.get("tool_name"),
        }
        line |= {
            "tool_use_id": request.get("tool_use_id"),
            "message": message,
            "session_id": self._session_id,
        }
        return [dump_json(line | {"uuid": self._create_id()})]

    def end_turn_with_result(self, result_line: Mapping[str, Any]) -> list[bytes]:
        """Return the lines that end the frontend's turn with `result_line`, because the session
        will send no result. The result answers all waiting messages.

        Later output of the interrupted turn is not sent to the frontend.
        """
        lines = []
        if self.owner is TurnOwner.UNKNOWN:
            lines = self._release_buffered()
        if self.owner is TurnOwner.THIS_FRONTEND:
            next_owner = TurnOwner.OTHER_CLIENT
        else:
            next_owner = TurnOwner.NO_TURN
        self.answering_ids.clear()
        self.waiting_ids.clear()
        common_fields = {"parent_tool_use_id": None, "session_id": self._session_id}
        lines += [
            dump_json({**closing_line, **common_fields, "uuid": self._create_id()})
            for closing_line in self._open_message.build_message_closing_lines()
        ]
        lines += self._build_result_lines(dump_json(result_line), result_line)
        self.owner = next_owner
        return lines

    def _pass_partial(self, raw: bytes) -> list[bytes]:
        line = parse_json_line(raw)
        if isinstance(line, dict):
            self._open_message.add_partial_line(line)
        return [raw]

    def _start_turn(self, raw: bytes) -> list[bytes]:
        if self.owner is TurnOwner.THIS_FRONTEND:  # a real claude may write `init` twice
            return [self._fit_line(raw)]
        self._init_line = raw
        self.owner = TurnOwner.UNKNOWN
        self._buffered_lines = [raw]
        return []

    def _buffer_line(self, raw: bytes) -> None:
        if len(self._buffered_lines) < MAX_BUFFERED_LINES:
            self._buffered_lines.append(raw)

    def _on_replayed_message(self, raw: bytes, message_id: object) -> list[bytes]:
        """Handle a message that the current turn answers. The message may also have been sent
        during the turn.
        """
        lines: list[bytes] = []
        if isinstance(message_id, str) and message_id in self.waiting_ids:
            self.answering_ids.add(message_id)
            if self.owner is not TurnOwner.THIS_FRONTEND:
                lines = self._release_buffered()
        elif self.owner is TurnOwner.UNKNOWN:
            self.owner, self._buffered_lines = TurnOwner.OTHER_CLIENT, []
        if self.owner is TurnOwner.THIS_FRONTEND and self._options.replays_messages:
            lines.append(self._fit_line(raw))
        return lines

    def _decide_owner(self) -> list[bytes]:
        """Assign a turn that names no message to the controller. Return the lines to send to the
        frontend.
        """
        if self.is_controller:
            return self._release_buffered()
        self.owner = TurnOwner.OTHER_CLIENT
        self._buffered_lines = []
        return []

    def _release_buffered(self) -> list[bytes]:
        if self.owner is TurnOwner.UNKNOWN:
            buffered_lines = self._buffered_lines
        elif self._init_line:
            buffered_lines = [self._init_line]
        else:
            buffered_lines = []
        self.owner = TurnOwner.THIS_FRONTEND
        self._buffered_lines = []
        lines = self.build_session_state_lines("running")
        for raw in buffered_lines:
            if not raw.startswith(PARTIAL_PREFIX):
                lines.append(self._fit_line(raw))
            elif self._options.wants_partial:
                lines += self._pass_partial(raw)
        return lines

    def _end_turn(self, raw: bytes, line: Mapping[str, Any]) -> list[bytes]:
        lines = []
        if self.owner is TurnOwner.UNKNOWN:
            lines = self._decide_owner()
        if self.owner is not TurnOwner.THIS_FRONTEND and not (
            self.owner is TurnOwner.NO_TURN and self.is_controller and self.waiting_ids
        ):
            self.owner = TurnOwner.NO_TURN
            return []
        # A turn that names no message answers the oldest waiting message.
        for message_id in self.answering_ids or list(self.waiting_ids)[:1]:
            self.waiting_ids.pop(message_id, None)
        self.answering_ids.clear()
        return [*lines, *self._build_result_lines(self._fit_line(raw), line)]

    def _build_result_lines(self, raw: bytes, line: Mapping[str, Any]) -> list[bytes]:
        self.owner = TurnOwner.NO_TURN
        self.result = line
        self.result_line = raw + b"\n"
        terminator = self._options.terminator.rstrip(b"\n")
        return [raw, *([terminator] if terminator else []), *self.build_session_state_lines("idle")]

    def _fit_line(self, raw: bytes) -> bytes:
        """Shorten a line to the frontend's length limit, which may differ from the
        session's limit.
        """
        max_bytes = self._options.max_line_bytes
        if not max_bytes or len(raw) <= max_bytes:
            return raw
        return dump_json(shorten_line_to_fit(orjson.loads(raw), max_bytes))
