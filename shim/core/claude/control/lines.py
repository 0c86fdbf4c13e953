"""The lines for one frontend beside the conversation: answers to its requests, and the state of the
session.
"""

from collections.abc import Callable, Mapping

from shim.core.claude.control.answers import RefusalError
from shim.core.claude.facts import SessionState
from shim.core.reading.json_text import dump
from shim.core.reading.limits import fit_line
from shim.core.reading.typed import Any


class Lines:
    def __init__(self, facts: SessionState, mint: Callable[[], str]) -> None:
        self.facts: SessionState = facts
        self.complaints: list[str] = []
        self.unread_lines = 0  # lines of the frontend that were skipped
        self.running = self.begun = False
        self._mint = mint
        self._lines: list[bytes] = []

    def take(self) -> bytes:
        """The lines for stdout, since the last call."""
        data = b"".join((*self._lines, *self.facts.sdk_servers.take_lines()))
        self._lines.clear()
        return data

    def give_back(self, data: bytes) -> None:
        """Lines that could not be written yet: they come first at the next `take`."""
        if data:
            self._lines.insert(0, data)

    def state(self, state: str) -> None:
        """Tell the session's state to a frontend that wants to know (contract 5.13)."""
        if self.facts.options.state_events and (self.running or state == "idle"):
            hidden = {"sdk_host_only": True} if self.facts.options.state_events == "host" else {}
            self.system("session_state_changed", state=state, **hidden)

    def system(self, subtype: str, **fields: object) -> None:
        """A `system` line beside the conversation."""
        line = {"type": "system", "subtype": subtype, **fields}
        self._say(line | {"uuid": self._mint(), "session_id": self.facts.options.session_id})

    def _answer(self, identity: object, body: object) -> None:
        response = {"subtype": "success", "request_id": identity}
        if body is not None:
            response["response"] = body
        self._say({"type": "control_response", "response": response})

    def _refuse(self, identity: object, refusal: RefusalError) -> None:
        response = {"subtype": "error", "request_id": identity, "error": str(refusal)}
        if refusal.code:
            response["error_code"] = refusal.code
        self._say({"type": "control_response", "response": response})

    def _say(self, line: Mapping[str, Any]) -> None:
        dumped = dump(line)
        if len(dumped) > self.facts.options.max_line_bytes:
            dumped = dump(fit_line(line, self.facts.options.max_line_bytes))
        self._lines.append(dumped + b"\n")

    def _complain(self, text: str) -> None:
        self.unread_lines += 1
        self.complaints.append(f"{text}; the line was skipped\n")


class States(Lines):
    """The state alone, around the one message of a frontend that asks nothing."""

    def begin(self, _prompt: str) -> None:
        """The turn begins."""
        self.running = self.begun = True
        self.state("running")

    def end(self) -> None:
        """The turn is over."""
        self.running = False
        self.state("idle")
