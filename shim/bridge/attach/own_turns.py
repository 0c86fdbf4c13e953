"""Which lines of a living session one frontend is said: those of the turns that answer its own
messages.

A run of its own would have said no others. A frontend that reads up to the next result would take
the result of somebody else's turn for its own.
"""

from collections.abc import Callable, Mapping
from enum import Enum

import orjson

from shim.bridge.attach.open_reply import OpenReply
from shim.core.claude.messages import read_line
from shim.core.reading.json_text import dump
from shim.core.reading.limits import fit_line
from shim.core.reading.typed import Any, NamedTuple

PARTIAL = b'{"type":"stream_event"'  # how a partial line begins, of ours and of the real claude's
HELD_LINES = 1000  # of the head of a turn, before it shows whose it is; a real one's has some ten


class Wants(NamedTuple):
    """What a frontend is said beside its turns, by its flags and its environment.

    partial     partial messages
    replays     its own messages again, and its answers (C15)
    states      the session's state: "", "visible" or "host" (contract 5.13)
    terminator  what stands behind a result
    limit       the length in bytes that no line passes; 0 for none
    """

    partial: bool = False
    replays: bool = False
    states: str = ""
    terminator: bytes = b""
    limit: int = 0


class Whose(Enum):
    """Whose turn runs."""

    BETWEEN = "no turn runs"
    OPEN = "a turn begins, and it has not shown whose it is"
    OWN = "it answers messages of this frontend"
    OTHERS = "it answers messages of others"


class OwnTurns:
    """The frontend's view of the session's turns.

    `mint` gives a fresh uuid. `driving`: the frontend drives, so that a turn without a message is
    its own too. `mode` is the session's last permission mode, "" before it was said; `begun_with`
    the one that its own flags ask for, whose change it is not told. `waiting` are the uuids of its
    messages that have no result yet, `taken` those that the turn answers. `result` is the last
    result that it was said, and its line.
    """

    def __init__(self, wants: Wants, session: str, mint: Callable[[], str]) -> None:
        self.driving = False
        self.waiting: dict[str, None] = {}
        self.taken: set[str] = set()
        self.result: Mapping[str, Any] = {}
        self.result_line = b""
        self.mode = self.begun_with = ""
        self.whose = Whose.BETWEEN
        self._wants = wants
        self._session = session
        self._mint = mint
        self._init = b""
        self._held: list[bytes] = []
        self._reply = OpenReply()

    @property
    def idle(self) -> bool:
        """Whether every message has its result."""
        return not self.waiting and self.whose is not Whose.OWN

    def attach(self, init: bytes, *, running: bool) -> None:
        """The session as it is found; `init` is its last one, "" where it has had no turn."""
        self._init, self.whose = init, Whose.OTHERS if running else Whose.BETWEEN

    def sent(self, identity: str) -> None:
        """A message goes to the session."""
        self.waiting[identity] = None

    def refused(self, identity: str) -> bool:
        """The session does not take a message; whether it was still waiting."""
        return self.waiting.pop(identity, self) is None

    def line(self, raw: bytes) -> list[bytes]:
        """A line of the session, without its LF; what the frontend is said, likewise."""
        if raw.startswith(PARTIAL):
            if self.whose is Whose.OPEN:
                self._hold(raw)
                return self._decide() if self.driving else []
            return self._partial(raw) if self.whose is Whose.OWN and self._wants.partial else []
        line = read_line(raw)
        if not isinstance(line, dict):
            return []
        if isinstance(mode := line.get("permissionMode"), str) and line.get("type") == "system":
            self.mode = mode
        match line.get("type"), line.get("subtype"):
            case ("system", "session_state_changed") | ("message_stop", _):
                return []  # each frontend has its own
            case ("system", "init"):
                return self._begin(raw)
            case ("result", _):
                return self._end(raw, line)
            case ("user", _) if line.get("isReplay") is True:
                return self._echo(raw, line.get("uuid"))
        if self.whose is Whose.BETWEEN:
            if (
                self.begun_with
                and line.get("subtype") == "status"
                and line.get("permissionMode") == self.begun_with
            ):
                self.begun_with = ""
                return []
            return [self._fit(raw)] if self.driving else []
        if self.whose is Whose.OPEN:
            self._hold(raw)
            return [] if line.get("type") == "system" else self._decide()
        if line.get("type") == "assistant" and line.get("parent_tool_use_id") is None:
            self._reply.whole()
        return [self._fit(raw)] if self.whose is Whose.OWN else []

    def state(self, state: str) -> list[bytes]:
        """The session's state, for a frontend that wants to know."""
        if not self._wants.states:
            return []
        hidden = {"sdk_host_only": True} if self._wants.states == "host" else {}
        line = {"type": "system", "subtype": "session_state_changed", "state": state, **hidden}
        return [dump(line | {"uuid": self._mint(), "session_id": self._session})]

    def denied(self, request: Mapping[str, Any], message: str) -> list[bytes]:
        """A call of the frontend's own turn that nobody could be asked about."""
        if self.whose is not Whose.OWN:
            return []
        line = {
            "type": "system",
            "subtype": "permission_denied",
            "tool_name": request.get("tool_name"),
        }
        line |= {
            "tool_use_id": request.get("tool_use_id"),
            "message": message,
            "session_id": self._session,
        }
        return [dump(line | {"uuid": self._mint()})]

    def conclude(self, line: Mapping[str, Any]) -> list[bytes]:
        """A result of ours, in the place of one that does not come any more; every message has its
        result then.

        What the session still says of a turn that ran is not the frontend's any more.
        """
        shown = [] if self.whose is not Whose.OPEN else self._show()
        rest = Whose.OTHERS if self.whose is Whose.OWN else Whose.BETWEEN
        self.taken.clear()
        self.waiting.clear()
        about = {"parent_tool_use_id": None, "session_id": self._session}
        shown += [
            dump({**missing, **about, "uuid": self._mint()}) for missing in self._reply.close()
        ]
        shown += self._concluded(dump(line), line)
        self.whose = rest
        return shown

    def _partial(self, raw: bytes) -> list[bytes]:
        line = read_line(raw)
        if isinstance(line, dict):
            self._reply.partial(line)
        return [raw]

    def _begin(self, raw: bytes) -> list[bytes]:
        if self.whose is Whose.OWN:  # a real claude may say it twice
            return [self._fit(raw)]
        self._init, self.whose = raw, Whose.OPEN
        self._held = [raw]
        return []

    def _hold(self, raw: bytes) -> None:
        if len(self._held) < HELD_LINES:
            self._held.append(raw)

    def _echo(self, raw: bytes, identity: object) -> list[bytes]:
        """A message that the turn answers, also one that was said into it."""
        shown: list[bytes] = []
        if isinstance(identity, str) and identity in self.waiting:
            self.taken.add(identity)
            if self.whose is not Whose.OWN:
                shown = self._show()
        elif self.whose is Whose.OPEN:
            self.whose, self._held = Whose.OTHERS, []
        if self.whose is Whose.OWN and self._wants.replays:
            shown.append(self._fit(raw))
        return shown

    def _decide(self) -> list[bytes]:
        """A turn that names no message is whose it is that drives."""
        if self.driving:
            return self._show()
        self.whose, self._held = Whose.OTHERS, []
        return []

    def _show(self) -> list[bytes]:
        held = self._held if self.whose is Whose.OPEN else [self._init] if self._init else []
        self.whose, self._held = Whose.OWN, []
        shown = self.state("running")
        for raw in held:
            if not raw.startswith(PARTIAL):
                shown.append(self._fit(raw))
            elif self._wants.partial:
                shown += self._partial(raw)
        return shown

    def _end(self, raw: bytes, line: Mapping[str, Any]) -> list[bytes]:
        shown = self._decide() if self.whose is Whose.OPEN else []
        if self.whose is not Whose.OWN and not (
            self.whose is Whose.BETWEEN and self.driving and self.waiting
        ):
            self.whose = Whose.BETWEEN
            return []
        # one that was not said again is the oldest
        for identity in self.taken or list(self.waiting)[:1]:
            self.waiting.pop(identity, None)
        self.taken.clear()
        return [*shown, *self._concluded(self._fit(raw), line)]

    def _concluded(self, raw: bytes, line: Mapping[str, Any]) -> list[bytes]:
        self.whose = Whose.BETWEEN
        self.result, self.result_line = line, raw + b"\n"
        terminator = self._wants.terminator.rstrip(b"\n")
        return [raw, *([terminator] if terminator else []), *self.state("idle")]

    def _fit(self, raw: bytes) -> bytes:
        """A line of a session whose own limit is another."""
        limit = self._wants.limit
        return raw if not limit or len(raw) <= limit else dump(fit_line(orjson.loads(raw), limit))
