"""What every vendor's translator is: handlers for its events, found by one dictionary look-up."""

from collections.abc import Callable
from typing import Any, ClassVar

from shim.core.turn.machine import CLOSED
from shim.core.turn.outcome import ChildExit
from shim.core.turn.turn import Turn

Event = dict[str, Any]


class Translator:
    """Turns a vendor's events into verbs of the Turn. One per child; `turn` is the turn that is
    running.

    A subclass has one method `on_<type>` per event type. It may define `line(raw) -> raw | None`, a
    byte test before parsing (None: skip, or remembered by itself), and override `feed` where `type`
    is not the key or the next event matters. It never builds Claude's lines and never ends the
    stream.
    """

    # how stderr lines begin that never are the reason of a failure
    ignored_stderr_prefixes: ClassVar[tuple[str, ...]] = ()
    # whether its events have no type that tells them from other objects
    untyped: ClassVar[bool] = False
    filter_line: ClassVar[Callable[[Any, bytes], bytes | None] | None] = None
    _handler_names: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        """Collect the names of the handlers once for each class, because `dir` is slow."""
        super().__init_subclass__()
        cls._handler_names = tuple(name for name in dir(cls) if name.startswith("on_"))

    def __init__(self, turn: Turn, *, partial: bool = False) -> None:
        self.turn = turn
        self.diagnostics = turn.diagnostics
        self.partial = partial
        # lines for a child that listens, where the vendor asks more than permissions
        self.outbox: list[bytes] = []
        # what the child wrote into a file for us, once it has ended
        self.report: Event | None = None
        # False until the frontend has said something, where it talks to the child itself
        self.has_message = True
        self.handlers: dict[object, Callable[[Event], None]] = {
            name.removeprefix("on_"): getattr(self, name) for name in self._handler_names
        }

    def feed(self, event: Event) -> None:
        """Handle one event; the pump calls the handler itself where this is not overridden."""
        handler = self.handlers.get(event.get("type"))
        if handler is None:
            self.turn.record_unknown_event(event.get("type"), event)
        else:
            handler(event)

    def choose_translator_for_unknown_event(self, event: Event) -> "Translator":
        """An event without a handler. Gives back who reads on: itself, or the translator of another
        dialect.

        That one is to read the event, and what follows it.
        """
        self.turn.record_unknown_event(event.get("type", "untyped"), event)
        return self

    def feed_event_from_broken_line(self, event: Event) -> None:
        self.feed(event)

    @classmethod
    def accepts_line_between_turns(cls, line: bytes) -> bool:
        """Whether a line that comes between two turns is read: a question, which has to be refused."""
        return b'"control_request"' in line

    def create_retry_translator(self, turn: Turn) -> "Translator":
        """The translator of another child, which is to answer the same message."""
        return type(self)(turn, partial=self.partial)

    def take_withdrawn_permission_requests(self) -> list[str]:
        """Questions whose answers the child does not want any more, since the last call."""
        return []

    def ignore_event(self, event: Event) -> None:
        """An event that a frontend of Claude has no use for."""

    def feed_eof(self, child_exit: ChildExit | None, stderr: str) -> None:
        """The child's output is at its end: turn the last state into an outcome, if it was one."""

    def start_next_turn(self) -> None:
        """The vendor begins a turn: another one of the same stream, if it has ended the last or its
        result is said.

        That we are stopping the last one is no end yet: a vendor may begin what it was told to
        stop.
        """
        if self.turn.outcome_tracker.is_finalized or self.turn.machine.state is CLOSED:
            self.turn.finish()
            self.turn.write_result_terminator_line()
            self.start_turn(self.turn.create_next())

    def start_turn(self, turn: Turn) -> None:
        """Another turn; what was remembered of the last one is forgotten."""
        self.turn = turn
