"""The base class of the translators. An event's handler is found by one dictionary lookup."""

from collections.abc import Callable
from typing import Any, ClassVar

from shim.core.turn.machine import CLOSED
from shim.core.turn.outcome import ChildExit
from shim.core.turn.turn import Turn

Event = dict[str, Any]


class Translator:
    """Translates a vendor's events to method calls on the Turn. There is one translator per child.
    `turn` is the running turn.

    A subclass has one method `on_<type>` per event type. It may define `filter_line(raw) -> raw |
    None`, a test of the bytes before they are parsed; None skips the line. It may override `feed`
    if `type` is not the key, or if an event depends on the next one. It never builds Claude's lines
    and never ends the stream.
    """

    # prefixes of stderr lines that are never the reason of a failure
    ignored_stderr_prefixes: ClassVar[tuple[str, ...]] = ()
    # whether events have no type that distinguishes them from other objects
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
        # lines for a persistent child, if the vendor sends requests besides permission requests
        self.outbox: list[bytes] = []
        # the content of the child's report file, after the child has ended
        self.report: Event | None = None
        # False until the frontend has sent a message, if its lines are passed to the child
        self.has_message = True
        self.handlers: dict[object, Callable[[Event], None]] = {
            name.removeprefix("on_"): getattr(self, name) for name in self._handler_names
        }

    def feed(self, event: Event) -> None:
        """Handle one event. If a subclass does not override this method, the dispatcher calls the
        handlers directly.
        """
        handler = self.handlers.get(event.get("type"))
        if handler is None:
            self.turn.record_unknown_event(event.get("type"), event)
        else:
            handler(event)

    def choose_translator_for_unknown_event(self, event: Event) -> "Translator":
        """Return the translator for an event without a handler and for the following events. It is
        this translator, or that of another dialect.

        This translator has handled the event. Another translator still has to handle it.
        """
        self.turn.record_unknown_event(event.get("type", "untyped"), event)
        return self

    def feed_event_from_broken_line(self, event: Event) -> None:
        self.feed(event)

    @classmethod
    def accepts_line_between_turns(cls, line: bytes) -> bool:
        """Return whether a line that arrives between two turns is handled. A permission request is,
        because it must be refused.
        """
        return b'"control_request"' in line

    def create_retry_translator(self, turn: Turn) -> "Translator":
        """Return the translator of another child that answers the same message."""
        return type(self)(turn, partial=self.partial)

    def take_withdrawn_permission_requests(self) -> list[str]:
        """Return the ids of the permission requests that the child has withdrawn since the last
        call.
        """
        return []

    def ignore_event(self, event: Event) -> None:
        """Ignore an event that Claude's frontends do not use."""

    def feed_eof(self, child_exit: ChildExit | None, stderr: str) -> None:
        """Handle the end of the child's output. A subclass derives the outcome of the turn if no
        event has reported it.
        """

    def start_next_turn(self) -> None:
        """Start another turn of the same stream, because the vendor has started one. Do nothing if
        the current turn is still running.

        A turn that the shim is stopping is still running, because the vendor may report the start
        of that turn only after the interrupt.
        """
        if self.turn.outcome_tracker.is_finalized or self.turn.machine.state is CLOSED:
            self.turn.finish()
            self.turn.write_result_terminator_line()
            self.start_turn(self.turn.create_next())

    def start_turn(self, turn: Turn) -> None:
        """Set the next turn. A subclass clears the state of the previous turn."""
        self.turn = turn
