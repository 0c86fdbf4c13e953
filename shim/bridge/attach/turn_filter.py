"""Which lines of a living session one frontend is said: those of the turns that answer its own
messages.

A run of its own would have said no others. A frontend that reads up to the next result would take
the result of somebody else's turn for its own.
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

# how a partial line begins, of ours and of the real claude's
PARTIAL_PREFIX = b'{"type":"stream_event"'
# of the head of a turn, before it shows whose it is; a real one's has some ten
MAX_BUFFERED_LINES = 1000


class FrontendOutputOptions(NamedTuple):
    """What a frontend is said beside its turns, by its flags and its environment.

    wants_partial     partial messages
    replays_messages  its own messages again, and its answers (C15)
    state_events      the session's state: "", "visible" or "host" (contract 5.13)
    terminator        what stands behind a result
    max_line_bytes    the length in bytes that no line passes; 0 for none
    """

    wants_partial: bool = False
    replays_messages: bool = False
    state_events: str = ""
    terminator: bytes = b""
    max_line_bytes: int = 0


class TurnOwner(Enum):
    """Whose turn runs."""

    NO_TURN = "no turn runs"
    UNKNOWN = "a turn begins, and it has not shown whose it is"
    THIS_FRONTEND = "it answers messages of this frontend"
    OTHER_CLIENT = "it answers messages of others"


class FrontendTurnFilter:
    """The frontend's view of the session's turns.

    `create_id` gives a fresh uuid. `is_controller`: the frontend drives, so that a turn without a
    message is its own too. `mode` is the session's last permission mode, "" before it was said;
    `requested_mode` the one that its own flags ask for, whose change it is not told. `waiting_ids`
    are the uuids of its messages that have no result yet, `answering_ids` those that the turn
    answers. `result` is the last result that it was said, and its line.
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
        """Whether every message has its result."""
        return not self.waiting_ids and self.owner is not TurnOwner.THIS_FRONTEND

    def record_joined_session(self, init_line: bytes, *, is_running: bool) -> None:
        """The session as it is found; `init` is its last one, "" where it has had no turn."""
        self._init_line, self.owner = (
            init_line,
            TurnOwner.OTHER_CLIENT if is_running else TurnOwner.NO_TURN,
        )

    def add_unanswered_message_id(self, message_id: str) -> None:
        """A message goes to the session."""
        self.waiting_ids[message_id] = None

    def remove_unanswered_message_id(self, message_id: str) -> bool:
        """The session does not take a message; whether it was still waiting."""
        return self.waiting_ids.pop(message_id, self) is None

    def filter_line(self, raw: bytes) -> list[bytes]:
        """A line of the session, without its LF; what the frontend is said, likewise."""
        if raw.startswith(PARTIAL_PREFIX):
            if self.owner is TurnOwner.UNKNOWN:
                self._buffer_line(raw)
                return self._decide_owner() if self.is_controller else []
            return (
                self._pass_partial(raw)
                if self.owner is TurnOwner.THIS_FRONTEND and self._options.wants_partial
                else []
            )
        line = parse_json_line(raw)
        if not isinstance(line, dict):
            return []
        if isinstance(mode := line.get("permissionMode"), str) and line.get("type") == "system":
            self.mode = mode
        match line.get("type"), line.get("subtype"):
            case ("system", "session_state_changed") | ("message_stop", _):
                return []  # each frontend has its own
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
            return [self._fit_line(raw)] if self.is_controller else []
        if self.owner is TurnOwner.UNKNOWN:
            self._buffer_line(raw)
            return [] if line.get("type") == "system" else self._decide_owner()
        if line.get("type") == "assistant" and not get_parent_call_id(line):
            self._open_message.clear_completed_block_text()
        return [self._fit_line(raw)] if self.owner is TurnOwner.THIS_FRONTEND else []

    def build_session_state_lines(self, state: str) -> list[bytes]:
        """The session's state, for a frontend that wants to know."""
        if not self._options.state_events:
            return []
        visibility = {"sdk_host_only": True} if self._options.state_events == "host" else {}
        line = {"type": "system", "subtype": "session_state_changed", "state": state, **visibility}
        return [dump_json(line | {"uuid": self._create_id(), "session_id": self._session_id})]

    def build_permission_denied_lines(
        self, request: Mapping[str, Any], message: str
    ) -> list[bytes]:
        """A call of the frontend's own turn that nobody could be asked about."""
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
        """A result of ours, in the place of one that does not come any more; every message has its
        result then.

        What the session still says of a turn that ran is not the frontend's any more.
        """
        lines = [] if self.owner is not TurnOwner.UNKNOWN else self._release_buffered()
        next_owner = (
            TurnOwner.OTHER_CLIENT if self.owner is TurnOwner.THIS_FRONTEND else TurnOwner.NO_TURN
        )
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
        if self.owner is TurnOwner.THIS_FRONTEND:  # a real claude may say it twice
            return [self._fit_line(raw)]
        self._init_line, self.owner = raw, TurnOwner.UNKNOWN
        self._buffered_lines = [raw]
        return []

    def _buffer_line(self, raw: bytes) -> None:
        if len(self._buffered_lines) < MAX_BUFFERED_LINES:
            self._buffered_lines.append(raw)

    def _on_replayed_message(self, raw: bytes, message_id: object) -> list[bytes]:
        """A message that the turn answers, also one that was said into it."""
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
        """A turn that names no message is whose it is that drives."""
        if self.is_controller:
            return self._release_buffered()
        self.owner, self._buffered_lines = TurnOwner.OTHER_CLIENT, []
        return []

    def _release_buffered(self) -> list[bytes]:
        buffered_lines = (
            self._buffered_lines
            if self.owner is TurnOwner.UNKNOWN
            else [self._init_line]
            if self._init_line
            else []
        )
        self.owner, self._buffered_lines = TurnOwner.THIS_FRONTEND, []
        lines = self.build_session_state_lines("running")
        for raw in buffered_lines:
            if not raw.startswith(PARTIAL_PREFIX):
                lines.append(self._fit_line(raw))
            elif self._options.wants_partial:
                lines += self._pass_partial(raw)
        return lines

    def _end_turn(self, raw: bytes, line: Mapping[str, Any]) -> list[bytes]:
        lines = self._decide_owner() if self.owner is TurnOwner.UNKNOWN else []
        if self.owner is not TurnOwner.THIS_FRONTEND and not (
            self.owner is TurnOwner.NO_TURN and self.is_controller and self.waiting_ids
        ):
            self.owner = TurnOwner.NO_TURN
            return []
        # one that was not said again is the oldest
        for message_id in self.answering_ids or list(self.waiting_ids)[:1]:
            self.waiting_ids.pop(message_id, None)
        self.answering_ids.clear()
        return [*lines, *self._build_result_lines(self._fit_line(raw), line)]

    def _build_result_lines(self, raw: bytes, line: Mapping[str, Any]) -> list[bytes]:
        self.owner = TurnOwner.NO_TURN
        self.result, self.result_line = line, raw + b"\n"
        terminator = self._options.terminator.rstrip(b"\n")
        return [raw, *([terminator] if terminator else []), *self.build_session_state_lines("idle")]

    def _fit_line(self, raw: bytes) -> bytes:
        """A line of a session whose own limit is another."""
        max_bytes = self._options.max_line_bytes
        return (
            raw
            if not max_bytes or len(raw) <= max_bytes
            else dump_json(shorten_line_to_fit(orjson.loads(raw), max_bytes))
        )
