"""The data that all parts of a turn share."""

from collections.abc import Callable
from typing import Any

from shim.core.claude.output_writer import OutputWriter
from shim.core.reading.diagnostics import Diagnostics
from shim.core.reading.json_text import JsonSanitizer
from shim.core.turn.context import ConversationState, TurnConfig
from shim.core.turn.machine import TransitionAction, TurnStateMachine
from shim.core.turn.outcome import TurnOutcomeTracker


class TurnContext:
    """A turn's shared data: its configuration, conversation, output, state and outcome."""

    __slots__ = (
        "config",
        "conversation",
        "diagnostics",
        "machine",
        "outcome_tracker",
        "redact",
        "sanitizer",
        "writer",
    )

    def __init__(
        self,
        writer: OutputWriter,
        config: TurnConfig,
        conversation: ConversationState,
        diagnostics: Diagnostics,
        redact: Callable[[Any], Any] | None,
        before_move: TransitionAction | None,
    ) -> None:
        """`redact` returns a value without its secrets. If `redact` is None, secrets are not
        removed.

        `before_move` is called before each change of the turn's state.
        """
        self.writer = writer
        self.config = config
        self.conversation = conversation
        self.diagnostics = diagnostics
        self.redact = redact
        self.sanitizer = JsonSanitizer(diagnostics)
        self.machine = TurnStateMachine(diagnostics, before_move)
        self.outcome_tracker = TurnOutcomeTracker(self.machine)

    @property
    def uses_call_line_as_permission_prompt(self) -> bool:
        """Whether the line with a tool call also serves as the permission prompt. In this case, the
        call's input is not redacted, because the frontend decides based on the input.
        """
        if self.config.asks_by_line is None:
            return False
        return self.config.asks_by_line()
