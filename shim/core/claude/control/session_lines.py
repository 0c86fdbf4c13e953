"""Writes a control session's output: responses to control requests, and session states."""

from collections.abc import Callable, Mapping

from shim.core.claude.control.handlers import ControlRequestError
from shim.core.claude.control_responses import build_control_error, build_control_response_line
from shim.core.claude.session_state import SessionState
from shim.core.reading.json_text import dump_json
from shim.core.reading.limits import shorten_line_to_fit
from shim.core.reading.typed import Any


class ControlOutputWriter:
    def __init__(self, session_state: SessionState, create_id: Callable[[], str]) -> None:
        self.session_state: SessionState = session_state
        self.warnings: list[str] = []
        self.skipped_line_count = 0  # the number of input lines that were skipped
        self.is_running = self.has_started = False
        self.is_input_closed = False  # the frontend can no longer answer
        self._create_id = create_id
        self._lines: list[bytes] = []

    def take_output(self) -> bytes:
        """Remove and return the lines to write to stdout."""
        lines = [*self._lines, *self.session_state.sdk_servers.take_control_request_lines()]
        if self.session_state.agent_requests is not None:
            lines += self.session_state.agent_requests.take_lines()
        output = b"".join(lines)
        self._lines.clear()
        return output

    def put_back_output(self, output: bytes) -> None:
        """Put back lines that could not be written. The next `take_output` call returns these lines
        first.
        """
        if output:
            self._lines.insert(0, output)

    def write_session_state(self, state: str) -> None:
        """Write the session state if the frontend has requested state events (contract 5.13)."""
        if self.session_state.options.state_events and (self.is_running or state == "idle"):
            visibility = {}
            if self.session_state.options.state_events == "host":
                visibility = {"sdk_host_only": True}
            self.write_system_message("session_state_changed", state=state, **visibility)

    def write_system_message(self, subtype: str, **fields: object) -> None:
        """Write a `system` line."""
        line = {"type": "system", "subtype": subtype, **fields}
        self.write_line(
            line | {"uuid": self._create_id(), "session_id": self.session_state.options.session_id}
        )

    def _write_response(self, request_id: object, body: object, **envelope: object) -> None:
        """Write a successful response. `envelope` has the fields beside the response's body."""
        response = {"subtype": "success", "request_id": request_id, **envelope}
        if body is not None:
            response["response"] = body
        self.write_line(build_control_response_line(response))

    def _write_error_response(self, request_id: object, refusal: ControlRequestError) -> None:
        response = build_control_error(request_id, str(refusal))
        if refusal.code:
            response["error_code"] = refusal.code
        self.write_line(build_control_response_line(response))

    def write_line(self, line: Mapping[str, Any]) -> None:
        """Write a line. A line that is too long is shortened."""
        line_json = dump_json(line)
        if len(line_json) > self.session_state.options.max_line_bytes:
            line_json = dump_json(
                shorten_line_to_fit(line, self.session_state.options.max_line_bytes)
            )
        self._lines.append(line_json + b"\n")

    def _report_bad_line(self, text: str) -> None:
        self.skipped_line_count += 1
        self.warnings.append(f"{text}; the line was skipped\n")


class SessionStateReporter(ControlOutputWriter):
    """Writes the session states in one-shot mode, where the frontend sends no control requests."""

    def start_turn(self, _prompt: str | None) -> None:
        self.is_running = self.has_started = True
        self.write_session_state("running")

    def end_turn(self) -> None:
        self.is_running = False
        self.write_session_state("idle")
