"""The base class for translators. The handler for an event is found with a single dictionary
lookup.
"""

from collections.abc import Callable
from typing import Any, ClassVar

from shim.core.turn.machine import CLOSED
from shim.core.turn.outcome import ChildExit
from shim.core.turn.turn import Turn

Event = dict[str, Any]


class Translator:
    """Translates a vendor's events to method calls on the Turn. Each child process has its own
    translator. `turn` is the running turn.

    A subclass has one method `on_<type>` per event type. It may define `filter_line(raw) -> raw |
    None`, which sees each line before it is parsed; None skips the line. It may override `feed` if
    events are not distinguished by `type`, or if the meaning of an event depends on the next one. A
    subclass never builds Claude's lines and never ends the stream.
    """

    # prefixes of stderr lines that never contain the reason for a failure
    ignored_stderr_prefixes: ClassVar[tuple[str, ...]] = ()
    # whether events lack a type that distinguishes them from other JSON objects
    untyped: ClassVar[bool] = False
    filter_line: ClassVar[Callable[[Any, bytes], bytes | None] | None] = None
    _handler_names: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        """Collect the names of a subclass's event handlers once, because `dir` is slow."""
        super().__init_subclass__()
        cls._handler_names = tuple(name for name in dir(cls) if name.startswith("on_"))

    def __init__(self, turn: Turn, *, partial: bool = False) -> None:
        self.turn = turn
        self.diagnostics = turn.diagnostics
        self.partial = partial
        # lines to send to a persistent child, such as answers to requests other than permission
        # requests
        self.outbox: list[bytes] = []
        # the content of the child's report file, which is set after the child has ended
        self.report: Event | None = None
        # If the frontend's lines are passed to the child, this is False until the frontend has sent
        # a message.
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
        """Return the translator for an event without a handler and for all later events: this
        translator, or a translator for a different dialect.

        If this translator is returned, it has already handled the event. A different translator
        must still handle it.
        """
        self.turn.record_unknown_event(event.get("type", "untyped"), event)
        return self

    def feed_event_from_broken_line(self, event: Event) -> None:
        self.feed(event)

    @classmethod
    def accepts_line_between_turns(cls, line: bytes) -> bool:
        """Return whether a line that arrives between two turns must be handled. For example, a
        permission request must be refused.
        """
        return b'"control_request"' in line

    def create_retry_translator(self, turn: Turn) -> "Translator":
        """Create a translator for a new child process that answers the same message."""
        return type(self)(turn, partial=self.partial)

    def take_withdrawn_permission_requests(self) -> list[str]:
        """Return the ids of permission requests that the child withdrew since the last call to this
        method.
        """
        return []

    def ignore_event(self, event: Event) -> None:
        """Ignore an event that has no meaning for Claude's frontends."""

    def feed_eof(self, child_exit: ChildExit | None, stderr: str) -> None:
        """Handle the end of the child's output. If no event has reported the outcome of the turn, a
        subclass derives the outcome here.
        """

    def start_next_turn(self) -> None:
        """Start a new turn in the same stream, because the vendor has started one. Do nothing if
        the current turn is still running.

        A turn that the shim is stopping counts as running, because the vendor may report the start
        of that turn after the interrupt.
        """
        if self.turn.outcome_tracker.is_finalized or self.turn.machine.state is CLOSED:
            self.turn.finish()
            self.turn.write_result_terminator_line()
            self.start_turn(self.turn.create_next())

    def start_turn(self, turn: Turn) -> None:
        """Set the turn for later events. A subclass also clears its state from the previous turn."""
        self.turn = turn
