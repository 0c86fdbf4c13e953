"""Draws a background session from its host's frames: the history, and the running turn.

All text from models, vendors, clients and names is escaped with `escape_control_chars`, so that it
cannot control the terminal.
"""

import io
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console

from shim.commands.sessions.terminal.question_prompt import build_question_tool_input
from shim.core.bridge.frames import LogCursor
from shim.core.claude.permissions import ELICITATION_SUBTYPE, QUESTION_TOOL
from shim.core.reading.diagnostics import pluralize
from shim.core.reading.values import as_dict, get_text
from shim.story.model import SessionStepChange, SessionStepTracker
from shim.story.terminal.arguments import format_text_on_one_truncated_line
from shim.story.terminal.renderer import TerminalSessionRenderer
from shim.story.terminal.screen import RenderedKeyboardInput

MAX_HISTORY_STEPS = 100  # stored history steps; only the last screens are drawn
MAX_HISTORY_SCREENS = 2  # history screens on a terminal
MAX_PIPE_LINES = 200  # history lines in a pipe
MS_PER_SECOND = 1000.0

Frame = Mapping[str, Any]


class SessionView:
    """Draws the host's frames on a console.

    If `draws_all` is set, the complete history and the totals are drawn, as for a recording.
    Otherwise only the last screens of the history are drawn. If `can_answer` is set, a person can
    answer prompts in this view.
    """

    def __init__(
        self,
        console: Console,
        *,
        draws_all: bool = False,
        can_answer: bool = False,
        thinking: bool = False,
        full: bool = False,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._wall_clock = wall_clock
        self.story = SessionStepTracker()
        self.welcome: Frame = {}
        self.state: Frame = {}
        self.controller: str | None = None
        self.mode = ""  # the session's permission mode
        self.cursor: LogCursor | None = None  # the position of the last received line
        self.is_synced = False
        self.end_reason: str | None = None  # the host's reason for closing the connection
        self._console = console
        self._renderer = TerminalSessionRenderer(
            console, self.story, live=True, thinking=thinking, full=full, is_interactive=can_answer
        )
        self._draws_all = draws_all
        self._history = deque[Sequence[SessionStepChange]](maxlen=MAX_HISTORY_STEPS)
        self._history_steps = 0  # the number of history steps, including steps that are not stored
        self._start_ms = 0
        self._handlers: dict[str, Callable[[Frame], None]] = {
            "welcome": self._on_welcome,
            "line": self._on_line,
            "synced": self._on_synced,
            "gap": self._on_gap,
            "question": self._on_question,
            "settled": self._on_settled,
            "state": self._on_state,
            "driver": self._on_driver,
            "bye": self._on_bye,
        }

    @property
    def is_busy(self) -> bool:
        """Return whether a turn is running or waiting for an answer to a prompt."""
        return self.state.get("status") in ("busy", "waiting")

    @property
    def client_name(self) -> str:
        """Return the name that the host has given to this client."""
        return get_text(self.welcome, "client")

    @property
    def can_control(self) -> bool:
        """Return whether this client is the controller, or would become the controller with its
        next message.
        """
        return self.controller in (None, self.client_name)

    def on_host_frame(self, frame: Frame) -> None:
        """Draw a frame from the host. Frames of unknown kinds are ignored."""
        handler = self._handlers.get(frame["kind"])
        if handler is not None:
            handler(frame)

    def draw_shim_notice(self, text: str, style: str = "yellow") -> None:
        """Print a message from the shim that is not part of the session."""
        self._renderer.print_notice(text, style)

    def set_input_renderer(
        self, render_input: Callable[[int], RenderedKeyboardInput] | None
    ) -> None:
        """Show the typed input below the session. `render_input` receives the width and returns the
        rendered input.
        """
        self._renderer.show_typed_input(render_input)

    def flush(self, *, at_once: bool = False) -> None:
        """Draw the current activity. If `at_once` is set, draw without delay, because a person has
        typed.
        """
        self._renderer.flush(at_once=at_once)

    def stop_animation(self) -> None:
        """Hide the current activity."""
        self._renderer.hide_wait_message()

    def close(self, *, is_running: bool) -> None:
        """End the view, and print the totals if the complete history was drawn. If `is_running` is
        set, the session is still running, so open prompts may still be answered.
        """
        self._renderer.is_running = is_running and self.end_reason is None
        self._draw_changes(self.story.end_open_steps(self._compute_elapsed({})))
        if self._draws_all:
            self._renderer.close()
        self._renderer.hide_wait_message()
        self._renderer.flush()

    # -- frames ------------------------------------------------------------------------------------

    def _on_welcome(self, frame: Frame) -> None:
        is_reconnect = bool(self.welcome)
        self.welcome = frame
        self.is_synced = False
        self.end_reason = None
        self.controller, self.state = frame.get("driver"), as_dict(frame.get("state"))
        self._on_mode(frame.get("mode"))
        if is_reconnect:
            return
        parts = (
            frame.get("id"),
            frame.get("name"),
            frame.get("vendor"),
            frame.get("model"),
            frame.get("cwd"),
        )
        self._renderer.print_notice(
            format_text_on_one_truncated_line(" · ".join(str(part) for part in parts if part))
        )
        if frame.get("differs"):
            self._renderer.print_notice(
                format_text_on_one_truncated_line(str(frame["differs"])), "yellow"
            )

    def _on_line(self, frame: Frame) -> None:
        event = frame.get("line")
        number = frame.get("number")
        if not isinstance(event, Mapping):
            return
        if isinstance(number, int):
            if self.cursor is not None and number <= self.cursor.number:
                return  # the host repeats lines after a gap
            self.cursor = LogCursor(int(frame.get("generation", 0)), number)
        elapsed_s = self._compute_elapsed(frame)
        self._draw_changes(self.story.add_session_line(elapsed_s, event))
        if event.get("type") == "system" and self.is_synced:
            self._on_mode(event.get("permissionMode"))

    def _on_mode(self, mode: object) -> None:
        """Print the permission mode if a client has changed it."""
        if not isinstance(mode, str):
            return
        if self.mode and mode != self.mode:
            self.draw_shim_notice(f"· permission mode: {format_text_on_one_truncated_line(mode)}")
        self.mode = mode

    def _on_synced(self, frame: Frame) -> None:
        if not self.is_synced:
            self.is_synced = True
            self._draw_history()
            self._update_activity()

    def _on_gap(self, frame: Frame) -> None:
        if frame.get("reason") == "lost":
            self.draw_shim_notice(
                f"· lines {frame.get('from')} to {frame.get('to')} of the session are no "
                "longer available"
            )

    def _on_question(self, frame: Frame) -> None:
        request = frame.get("request")
        if not isinstance(request, Mapping):
            return
        if request.get("subtype") == ELICITATION_SUBTYPE:
            form = build_question_tool_input(request)
            name = QUESTION_TOOL
            if not form:
                name = f"the MCP server {request.get('mcp_server_name')}"
            tool_input = form or {"message": request.get("message"), "url": request.get("url")}
            request = {"subtype": "can_use_tool", "tool_name": name, "input": tool_input}
        line = {"type": "control_request", "request_id": frame.get("question"), "request": request}
        self._draw_changes(self.story.add_claude_event(self._compute_elapsed(frame), line))

    def _on_settled(self, frame: Frame) -> None:
        resolver = get_text(frame, "by")
        if resolver == self.client_name:
            resolver = ""
        self._draw_changes(
            self.story.add_permission_answer(
                self._compute_elapsed(frame),
                str(frame.get("question")),
                str(frame.get("how")),
                resolver,
            )
        )

    def _on_state(self, frame: Frame) -> None:
        self.state = frame
        self._update_activity()

    def _on_driver(self, frame: Frame) -> None:
        previous = self.controller
        self.controller = frame.get("client")
        if self.controller == previous or not self.is_synced:
            return
        if self.controller is not None:
            is_this_client = self.controller == self.client_name
            text = "you have control"
            if not is_this_client:
                text = f"{format_text_on_one_truncated_line(self.controller)} has control"
            self.draw_shim_notice(f"· {text} now", "dim")

    def _on_bye(self, frame: Frame) -> None:
        self.end_reason = get_text(frame, "reason")

    # -- drawing -----------------------------------------------------------------------------------

    def _compute_elapsed(self, frame: Frame) -> float:
        """Return the seconds from the first frame to this frame. For a frame without a time, use
        the current time.
        """
        time_ms = frame.get("at")
        if not isinstance(time_ms, int | float):
            time_ms = self._wall_clock() * MS_PER_SECOND
        if not self._start_ms:
            self._start_ms = int(time_ms)
        return (time_ms - self._start_ms) / MS_PER_SECOND

    def _draw_changes(self, changes: Sequence[SessionStepChange]) -> None:
        if not (self.is_synced or self._draws_all):
            self._history_steps += sum(change.phase == "end" for change in changes)
            if any(change.phase != "more" for change in changes):
                self._history.append(changes)
            return
        for change in changes:
            self._renderer.draw_step_change(change)
        if changes and self.state.get("status") != "busy":
            self._renderer.hide_wait_message()

    def _update_activity(self) -> None:
        """Show or hide the current activity, depending on whether the agent is working."""
        if not self.is_synced:
            return
        if self.state.get("status") == "busy":
            self._renderer.show_wait_message("waiting for the agent")
        else:
            self._renderer.hide_wait_message()

    def _draw_history(self) -> None:
        """Draw the last screens of the history, and the number of omitted steps."""
        parts = deque[str]()
        steps = deque[int]()
        line_count = 0
        for changes in self._history:
            parts.append(self._render_changes(changes))
            steps.append(sum(change.phase == "end" for change in changes))
        self._history.clear()
        max_lines = MAX_PIPE_LINES
        if self._console.is_terminal:
            max_lines = MAX_HISTORY_SCREENS * self._console.height
        visible_parts = list[str]()
        while parts and (not visible_parts or line_count + parts[-1].count("\n") <= max_lines):
            visible_parts.append(parts.pop())
            line_count += visible_parts[-1].count("\n")
            self._history_steps -= steps.pop()
        if self._history_steps > 0:
            more_text = (
                f"… {pluralize(self._history_steps, 'earlier step')}: `shim bridge watch "
                f"{self.welcome.get('id')}` shows all steps"
            )
            self._renderer.print_notice(more_text)
        self._console.file.write("".join(reversed(visible_parts)))
        self._console.file.flush()

    def _render_changes(self, changes: Sequence[SessionStepChange]) -> str:
        """Render step changes to a text without printing them."""
        file = self._console.file
        self._console.file = io.StringIO()
        try:
            for change in changes:
                self._renderer.draw_step_change(change)
            self._renderer.hide_wait_message()
            return self._console.file.getvalue()
        finally:
            self._console.file = file
