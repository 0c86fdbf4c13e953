"""A person in a background session without any process: frames and keys are fed in, and a screen is
drawn.
"""

import io
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from terminal_emulator import TerminalEmulator

from shim.commands.sessions.terminal.composer import render_message_input
from shim.commands.sessions.terminal.input_controller import ANSWER_GRACE_S, TerminalInputController
from shim.commands.sessions.terminal.keys import KeyParser
from shim.commands.sessions.terminal.session_view import SessionView

NOW = 1_000_000.0  # seconds since 1970
ME = "terminal 1"
WELCOME = {
    "kind": "welcome", "client": ME, "session": "1f0c2ab4-5d36-4e6f-8a7b-90c1d2e3f405", "id": "1f0c2ab4",
    "generation": 1, "number": 0, "vendor": "demo", "name": "a test", "cwd": "/repo", "driver": ME, "questions": [],
    "state": {"state": "working", "status": "idle"},
}  # fmt: skip


class Sitting:
    """A terminal with these columns and lines. `sent_frames` are the frames that were sent to the
    host.
    """

    def __init__(
        self, columns: int = 80, lines: int = 40, colours: str | None = None, **options: Any
    ) -> None:
        self.now = NOW
        self.sent_frames: list[dict[str, Any]] = []
        self.written = ""
        self.screen = TerminalEmulator(columns, lines)
        self.console = Console(
            file=io.StringIO(), force_terminal=True, width=columns, height=lines, highlight=False, markup=False,
            emoji=False, color_system=colours, _environ={},
        )  # fmt: skip
        self.view = SessionView(
            self.console, **{"can_answer": True, "wall_clock": lambda: self.now, **options}
        )
        self.talk = TerminalInputController(self.view, lambda: self.now)
        self.talk.write_frame = lambda frame: self.sent_frames.append(dict(frame))
        self._keys = KeyParser()
        self._number = 0

    def receive_frames(self, *frames: Mapping[str, Any]) -> None:
        """Handle frames of the host, and draw like the terminal loop."""
        for frame in frames:
            self.talk.on_host_frame(frame)
        if self.view.is_synced:
            self.view.set_input_renderer(lambda width: render_message_input(self.talk, width))
        self.flush_console()

    def start_session(self, *frames: Mapping[str, Any], **welcome: Any) -> "Sitting":
        """Receive the first frames of a session. `welcome` has fields of the first one."""
        self.receive_frames({**WELCOME, **welcome}, *frames, {"kind": "synced", "number": 0})
        return self

    def receive_line(self, event: Mapping[str, Any], **frame: Any) -> None:
        """Receive a line of the conversation. It is numbered unless it is a partial line."""
        if event["type"] != "stream_event":
            self._number += 1
            frame = {"number": self._number, "generation": 1, **frame}
        self.receive_frames({"kind": "line", "at": self.now * 1000, "line": event, **frame})

    def receive_permission_request(
        self, name: str, question: str = "q1", **tool_input: Any
    ) -> None:
        """Receive a permission prompt, and wait until a key can answer it."""
        request = {
            "subtype": "can_use_tool",
            "tool_name": name,
            "tool_use_id": "t",
            "input": tool_input,
        }
        self.receive_frames(
            {"kind": "question", "question": question, "at": self.now * 1000, "request": request}
        )
        self.advance_time(ANSWER_GRACE_S)

    def advance_time(self, seconds: float) -> None:
        self.now += seconds
        self.flush_console()

    def press_keys(self, *keys: str | bytes) -> None:
        """Press keys. The keys of one argument come in one read."""
        for key in keys:
            self.talk.handle_pressed_keys(
                self._keys.feed(key.encode() if isinstance(key, str) else key)
            )
        self.flush_console()

    def resize(self, columns: int) -> None:
        self.screen.resize(columns)
        self.console.size = (columns, self.screen.lines)
        self.flush_console()

    def flush_console(self) -> None:
        self.view.flush(at_once=True)
        file = self.console.file
        assert isinstance(file, io.StringIO)
        self.screen.feed(file.getvalue())
        self.written += file.getvalue()
        file.seek(0)
        file.truncate()

    @property
    def screen_text(self) -> str:
        """All lines of the screen, including those that were scrolled away."""
        return self.screen.text

    @property
    def answers(self) -> list[dict[str, Any]]:
        """The decisions that were sent to the host."""
        return [frame["decision"] for frame in self.sent_frames if frame["kind"] == "answer"]
