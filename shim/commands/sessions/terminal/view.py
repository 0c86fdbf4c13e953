"""A session that lives on its own, drawn from the frames of its host: what was said before, and
what is said now.

Nothing of it is obeyed by a terminal: all words of models, vendors, clients and names are drawn as
`printable` text.
"""

import io
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console

from shim.commands.sessions.terminal.asking import form_of
from shim.core.bridge.frames import Cursor
from shim.core.claude.permissions import ELICITATION, QUESTION
from shim.core.reading.account import counted
from shim.story.story import Change, Story
from shim.story.terminal.arguments import one_line
from shim.story.terminal.draw import Drawing
from shim.story.terminal.paper import Typed

STEPS_KEPT = 100  # of what was said before, of which the last screens are drawn
SCREENS = 2  # of what was said before, that are drawn on a terminal
PIPE_LINES = 200  # of it, elsewhere
MILLISECONDS = 1000.0

Frame = Mapping[str, Any]


class View:
    """Draws frames on a console. `whole`: all that was said before, as a recording is shown, and
    the sums at the end; else its last screens. `asks`: a person answers the questions here.
    """

    def __init__(
        self,
        console: Console,
        *,
        whole: bool = False,
        asks: bool = False,
        thinking: bool = False,
        full: bool = False,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._wall = wall
        self.story = Story()
        self.welcome: Frame = {}
        self.state: Frame = {}
        self.driver: str | None = None
        self.mode = ""  # the permission mode
        self.cursor: Cursor | None = None  # of the last line that was seen
        self.synced = False
        self.bye: str | None = None  # why the host closed the connection, in its own word
        self._console = console
        self._drawing = Drawing(
            console, self.story, live=True, thinking=thinking, full=full, asks=asks
        )
        self._whole = whole
        self._before = deque[Sequence[Change]](maxlen=STEPS_KEPT)
        self._steps = 0  # of what was said before
        self._began = 0
        self._drawn = 0  # a line of this number was drawn
        self._frames: dict[str, Callable[[Frame], None]] = {
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
    def busy(self) -> bool:
        """Whether a turn runs, or a question of it waits."""
        return self.state.get("status") in ("busy", "waiting")

    @property
    def me(self) -> str:
        """The name that the host has given to this client."""
        return str(self.welcome.get("client") or "")

    @property
    def drives(self) -> bool:
        """Whether this client drives, or would with its next message."""
        return self.driver in (None, self.me)

    def take(self, said: Frame) -> None:
        """Draw a frame; those of another kind say nothing to who watches."""
        handler = self._frames.get(said["kind"])
        if handler is not None:
            handler(said)

    def said(self, text: str, style: str = "yellow") -> None:
        """Draw a remark of the shim."""
        self._drawing.said(text, style)

    def typed_by(self, typed: Callable[[int], Typed] | None) -> None:
        """What a person types is shown below all else."""
        self._drawing.typed_by(typed)

    def flush(self, *, at_once: bool = False) -> None:
        """Draw what goes on now; `at_once`: a person has typed."""
        self._drawing.flush(at_once=at_once)

    def rest(self) -> None:
        """Show nothing that moves."""
        self._drawing.rest()

    def close(self, *, goes_on: bool) -> None:
        """Draw the sums, where all was drawn. `goes_on`: what is open may still be answered, as the
        session lives.
        """
        self._drawing.unended = goes_on and self.bye is None
        self._draw(self.story.close(self._at({})))
        if self._whole:
            self._drawing.close()
        self._drawing.rest()
        self._drawing.flush()

    # -- frames ------------------------------------------------------------------------------------

    def _on_welcome(self, said: Frame) -> None:
        again, self.welcome, self.synced, self.bye = bool(self.welcome), said, False, None
        self.driver, self.state = said.get("driver"), said.get("state") or {}
        self._on_mode(said.get("mode"))
        if again:
            return
        parts = (
            said.get("id"),
            said.get("name"),
            said.get("vendor"),
            said.get("model"),
            said.get("cwd"),
        )
        self._drawing.said(one_line(" · ".join(str(part) for part in parts if part)))
        if said.get("differs"):
            self._drawing.said(one_line(str(said["differs"])), "yellow")

    def _on_line(self, said: Frame) -> None:
        event, number = said.get("line"), said.get("number")
        if not isinstance(event, Mapping):
            return
        if isinstance(number, int):
            if self.cursor is not None and number <= self.cursor.number:
                return  # it is said again, behind a gap
            self.cursor = Cursor(int(said.get("generation") or 0), number)
        at = self._at(said)
        if event.get("type") == "user" and event.get("isReplay"):
            message = event.get("message")
            changes = self.story.prompt(
                at, message.get("content") if isinstance(message, Mapping) else message
            )
        else:
            changes = self.story.event(at, event)
        self._draw(changes)
        if event.get("type") == "system" and self.synced:
            self._on_mode(event.get("permissionMode"))

    def _on_mode(self, mode: object) -> None:
        """The session says its mode: a person is told of another one, whoever chose it."""
        if not isinstance(mode, str):
            return
        if self.mode and mode != self.mode:
            self.said(f"· the permission mode is {one_line(mode)} now")
        self.mode = mode

    def _on_synced(self, said: Frame) -> None:
        if not self.synced:
            self.synced = True
            self._draw_before()
            self._settle_down()

    def _on_gap(self, said: Frame) -> None:
        if said.get("reason") == "lost":
            self.said(
                f"· the lines {said.get('from')} to {said.get('to')} of the session are not kept any more"
            )

    def _on_question(self, said: Frame) -> None:
        request = said.get("request")
        if not isinstance(request, Mapping):
            return
        if request.get("subtype") == ELICITATION:
            form = form_of(request)
            name = QUESTION if form else f"the MCP server {request.get('mcp_server_name')}"
            given = form or {"message": request.get("message"), "url": request.get("url")}
            request = {"subtype": "can_use_tool", "tool_name": name, "input": given}
        line = {"type": "control_request", "request_id": said.get("question"), "request": request}
        self._draw(self.story.event(self._at(said), line))

    def _on_settled(self, said: Frame) -> None:
        by = str(said.get("by") or "")
        by = "" if by == self.me else by
        self._draw(
            self.story.settled(self._at(said), str(said.get("question")), str(said.get("how")), by)
        )

    def _on_state(self, said: Frame) -> None:
        self.state = said
        self._settle_down()

    def _on_driver(self, said: Frame) -> None:
        before, self.driver = self.driver, said.get("client")
        if self.driver == before or not self.synced:
            return
        if self.driver is not None:
            self.said(
                f"· {'you drive' if self.driver == self.me else one_line(self.driver) + ' drives'} now",
                "dim",
            )

    def _on_bye(self, said: Frame) -> None:
        self.bye = str(said.get("reason") or "")

    # -- drawing -----------------------------------------------------------------------------------

    def _at(self, said: Frame) -> float:
        """Seconds since the first frame; the story lets no time go back. What has no time of its
        own is new.
        """
        at = said.get("at")
        if not isinstance(at, int | float):
            at = self._wall() * MILLISECONDS
        self._began = self._began or int(at)
        return (at - self._began) / MILLISECONDS

    def _draw(self, changes: Sequence[Change]) -> None:
        if not (self.synced or self._whole):
            self._steps += sum(change.what == "end" for change in changes)
            if any(change.what != "more" for change in changes):
                self._before.append(changes)
            return
        for change in changes:
            self._drawing.change(change)
        if changes and self.state.get("status") != "busy":
            self._drawing.rest()

    def _settle_down(self) -> None:
        """Show that the agent is waited for, or nothing that moves."""
        if not self.synced:
            return
        if self.state.get("status") == "busy":
            self._drawing.wait("waiting for the agent")
        else:
            self._drawing.rest()

    def _draw_before(self) -> None:
        """Draw the last screens of what was said before, and how much more there is."""
        parts = deque[str]()
        steps, drawn = deque[int](), 0
        for changes in self._before:
            parts.append(self._drawn_apart(changes))
            steps.append(sum(change.what == "end" for change in changes))
        self._before.clear()
        room = SCREENS * self._console.height if self._console.is_terminal else PIPE_LINES
        kept = list[str]()
        while parts and (not kept or drawn + parts[-1].count("\n") <= room):
            kept.append(parts.pop())
            drawn += kept[-1].count("\n")
            self._steps -= steps.pop()
        if self._steps > 0:
            more = f"… {counted(self._steps, 'earlier step')}: `shim bridge watch {self.welcome.get('id')}` shows all"
            self._drawing.said(more)
        self._console.file.write("".join(reversed(kept)))
        self._console.file.flush()

    def _drawn_apart(self, changes: Sequence[Change]) -> str:
        """What some changes look like, written nowhere yet."""
        file, self._console.file = self._console.file, io.StringIO()
        try:
            for change in changes:
                self._drawing.change(change)
            self._drawing.rest()
            return self._console.file.getvalue()
        finally:
            self._console.file = file
