"""The user messages that a turn answers."""

from collections.abc import Callable

from shim.core.claude.messages import TEXT_ONLY_KINDS, BlockKinds, UserMessage
from shim.core.turn.machine import NEW
from shim.core.turn.turn_context import TurnContext


class UserMessages:
    """The user message that started the turn, and the steering messages that were sent to the
    vendor during the turn.
    """

    def __init__(self, context: TurnContext) -> None:
        self._machine = context.machine
        self._writer = context.writer
        self._vendor_name = context.config.vendor.name
        self.message: UserMessage | None = None
        self.steering_messages: list[UserMessage] = []
        self._get_accepted_kinds: Callable[[], BlockKinds] = lambda: TEXT_ONLY_KINDS
        self._replays_messages = False
        # the number of steering messages that were sent before the last reply started
        self._answered_count = 0
        self._taken_count = 0  # the number of answered messages that the caller has taken

    def set_message(
        self,
        message: UserMessage,
        *,
        replays: bool,
        get_accepted_kinds: Callable[[], BlockKinds] = lambda: TEXT_ONLY_KINDS,
    ) -> None:
        """Set the user message that the turn answers. If `replays` is set, the message is written
        after the init line (contract C15).

        `get_accepted_kinds` returns the kinds of blocks that the vendor accepts in addition to
        text. The function is called after the vendor has reported these kinds.
        """
        self.message = message
        self._replays_messages = replays
        self._get_accepted_kinds = get_accepted_kinds
        # The init line was already written if a persistent child has reported its session.
        if self._machine.state is not NEW:
            self.write_message()
        self._writer.count_prompt_chars(message.text)

    def add_steering_message(self, message: UserMessage) -> None:
        """Add a user message that was sent to the vendor during the turn. The turn's result also
        answers this message.

        As in the real claude, the message is written before the next reply, because the vendor has
        read the message by that time.
        """
        self.steering_messages.append(message)
        self._writer.count_prompt_chars(message.text)

    def write_message(self) -> None:
        """Write the user message that started the turn, if there is one."""
        if self.message is not None:
            self._write_message(self.message)

    def write_steering_messages(self) -> None:
        """Write the steering messages that the vendor has read. This method is called when a reply
        starts.
        """
        for message in self.steering_messages[self._answered_count :]:
            self._write_message(message)
        self._answered_count = len(self.steering_messages)

    def take_answered_messages(self) -> list[UserMessage]:
        """Return the steering messages that were answered since the last call. A message counts as
        answered when a reply has started after it.
        """
        messages = self.steering_messages[self._taken_count : self._answered_count]
        self._taken_count = self._answered_count
        return messages

    @property
    def unanswered_steering_message_count(self) -> int:
        """The number of steering messages that have no reply yet."""
        return len(self.steering_messages) - self._answered_count

    def _write_message(self, message: UserMessage) -> None:
        """Write a user message if messages are replayed. If blocks were omitted, write a notice
        about them.
        """
        if self._replays_messages and not message.is_from_hook:
            self._writer.echo_user_message(message.raw_message, message.uuid, message.timestamp)
        notice = message.describe_omitted_blocks(self._vendor_name, self._get_accepted_kinds())
        if notice:
            self._writer.write_synthetic_message(notice)
