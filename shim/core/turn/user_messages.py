"""The user messages that one turn answers."""

from collections.abc import Callable

from shim.core.claude.messages import TEXT_ONLY_KINDS, BlockKinds, UserMessage
from shim.core.turn.machine import NEW
from shim.core.turn.turn_context import TurnContext


class UserMessages:
    """The message of the turn, and the steering messages that were sent to the vendor during it."""

    def __init__(self, context: TurnContext) -> None:
        self._machine = context.machine
        self._writer = context.writer
        self._vendor_name = context.config.vendor.name
        self.message: UserMessage | None = None
        self.steering_messages: list[UserMessage] = []
        self._get_accepted_kinds: Callable[[], BlockKinds] = lambda: TEXT_ONLY_KINDS
        self._replays_messages = False
        self._answered_count = 0  # steering messages before the last reply
        self._taken_count = 0  # answered steering messages that the caller has taken

    def set_message(
        self,
        message: UserMessage,
        *,
        replays: bool,
        get_accepted_kinds: Callable[[], BlockKinds] = lambda: TEXT_ONLY_KINDS,
    ) -> None:
        """Set the message that the turn answers. If `replays`, it is written after the init line
        (contract C15).

        `get_accepted_kinds` returns the kinds of blocks that the vendor accepts in addition to
        text. It is called after the vendor has reported them.
        """
        self.message = message
        self._replays_messages = replays
        self._get_accepted_kinds = get_accepted_kinds
        # A persistent child may already have reported its session, which writes the init line.
        if self._machine.state is not NEW:
            self.write_message()
        self._writer.count_prompt_chars(message.text)

    def add_steering_message(self, message: UserMessage) -> None:
        """Add a message that was sent to the vendor during the turn. The turn's result also answers
        it.

        It is written before the next reply, as in the real claude, because the vendor has then
        read it.
        """
        self.steering_messages.append(message)
        self._writer.count_prompt_chars(message.text)

    def write_message(self) -> None:
        """Write the message of the turn, if there is one."""
        if self.message is not None:
            self._write_message(self.message)

    def write_steering_messages(self) -> None:
        """Write the steering messages that the vendor has read. Called when a reply starts."""
        for message in self.steering_messages[self._answered_count :]:
            self._write_message(message)
        self._answered_count = len(self.steering_messages)

    def take_answered_messages(self) -> list[UserMessage]:
        """Return the steering messages that were answered since the last call, because a reply
        followed them.
        """
        messages = self.steering_messages[self._taken_count : self._answered_count]
        self._taken_count = self._answered_count
        return messages

    @property
    def unanswered_steering_message_count(self) -> int:
        """The number of steering messages that no reply has followed."""
        return len(self.steering_messages) - self._answered_count

    def _write_message(self, message: UserMessage) -> None:
        """Write a message if messages are replayed, and a notice about its omitted blocks."""
        if self._replays_messages:
            self._writer.echo_user_message(message.raw_message, message.uuid, message.timestamp)
        notice = message.describe_omitted_blocks(self._vendor_name, self._get_accepted_kinds())
        if notice:
            self._writer.write_synthetic_message(notice)
