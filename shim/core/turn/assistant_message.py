"""An assistant message, also called a reply: its usage, its stop reason, and its blocks' text.

The text is stored, so that it is not written again if the vendor sends it twice.
"""

from collections.abc import Callable

from shim.core.claude.usage import NO_USAGE, Usage, get_model_usage, parse_dollars, parse_usage
from shim.core.reading.diagnostics import Diagnostics
from shim.core.reading.head_and_tail import shorten_middle
from shim.core.turn.context import MAX_NAME_CHARS
from shim.core.turn.machine import MESSAGE, NEW, READY, TEXT, THINKING, TurnState
from shim.core.turn.turn_context import TurnContext

SYNTHETIC_MODEL = "<synthetic>"  # the model of a message that no model wrote

# The limit for the stored text of a reply's blocks. No model writes a longer reply, but a vendor
# might never stop streaming.
MAX_BLOCK_CHARS = 512 * 1024
FRAGMENT_COST_CHARS = 64  # the memory overhead of a stored fragment
MAX_BLOCKS = 1000

# Limits for the stored text of a reply that may be interrupted and repeated. No real reply is
# longer, and this amount of text needs little memory.
MAX_MESSAGE_CHARS = 4 * 1024 * 1024
MAX_MESSAGE_BLOCKS = 1000

OMISSION_TEXT = "\n[…]\n"  # replaces the middle of an answer that is too long for a line

BlockKey = tuple[TurnState, object]  # the block's kind, and the vendor's key for it


class AssistantMessage:
    """The turn's current or last assistant message, and the usage of all assistant messages in the
    turn.
    """

    def __init__(
        self,
        context: TurnContext,
    ) -> None:
        self._machine = context.machine
        self._writer = context.writer
        # If the turn can be retried, a reply's text is stored until the end of the turn.
        self._can_retry = context.config.can_retry
        self._partial = context.writer.writes_partial_messages
        self._outcome_tracker = context.outcome_tracker
        self.written_blocks = WrittenBlockTexts(
            context.diagnostics, self.shorten_text_to_line_limit
        )
        self.written_text = CutMessageTextTracker()
        self.number = 0  # the number of replies so far that have a block
        self.model = ""
        self.start_usage: Usage = NO_USAGE  # the usage in the reply's lines
        self.end_usage: Usage = NO_USAGE  # the usage at the end of the reply
        self.stop_reason: str | None = None
        self.was_aborted = False  # the reply did not end normally
        self.ends_with_call = False  # the reply's last block is a tool call
        self.last_text = ""
        self.usage_by_model: dict[str, Usage] = {}  # the turn's usage by model
        self.last_usage: Usage = NO_USAGE  # the last reply's usage
        self.cost_usd = 0.0  # the turn's cost in dollars
        self.has_open_block = False  # a passthrough block has started and has not ended

    def start(self) -> None:
        """Start an assistant message. This method is called before the message's first block is
        written.
        """
        self.number += 1
        self.last_text = ""
        self.stop_reason = None
        self.ends_with_call = False
        if self.written_blocks.texts:
            self.written_blocks.clear()
        if self.written_text.char_count:
            self.written_text.clear()
        self._writer.start_message(self.model, self.start_usage)

    def write_message_stop(self) -> None:
        if self.has_open_block:
            self.has_open_block = False
            self._writer.end_block()
        if self.was_aborted or (
            self._outcome_tracker.outcome is not None and self._outcome_tracker.has_failed
        ):
            self.was_aborted = False
            self.stop_reason = None
        elif self.stop_reason is None:
            if self.ends_with_call:
                self.stop_reason = "tool_use"
            else:
                self.stop_reason = "end_turn"
        if self._partial:
            self._writer.end_message(self.stop_reason, self.end_usage)
        self.end_usage = self.start_usage = NO_USAGE
        if self.written_blocks.texts:
            self.written_blocks.clear()

    @property
    def has_ended_with_tool_calls(self) -> bool:
        """Whether the last assistant message of the turn ended with tool calls."""
        if self.ends_with_call:
            return True
        return self.stop_reason == "tool_use"

    def shorten_text_to_line_limit(self, text: str) -> str:
        """Shorten the model's answer to the maximum length of a line."""
        return shorten_middle(text, self._writer.max_bytes, OMISSION_TEXT)

    # -- reports from the vendor -------------------------------------------------------------------

    def update(self, model: str | None = None, usage: Usage | None = None) -> None:
        """Set the model and the usage so far, for the open assistant message or for the
        next one.
        """
        if model and model != self.model and isinstance(model, str) and model != SYNTHETIC_MODEL:
            self.model = model[:MAX_NAME_CHARS]
        if usage is not None:
            if usage.__class__ is not Usage:
                usage = parse_usage(usage)
            self.start_usage = usage
            state = self._machine.state
            if state is MESSAGE or state is TEXT or state is THINKING:
                self._writer.set_message_usage(usage)

    def end(
        self,
        usage: Usage | None = None,
        stop_reason: str | None = None,
        cost: float = 0.0,
        aborted: bool = False,
        adds_usage: bool = True,
    ) -> None:
        """End the assistant message (`end_message`). `usage` and `cost` belong to this message and
        are added to the turn's totals.

        If `adds_usage` is False, the usage is not added, because the vendor reports the usage of
        the complete turn at the end (`add_usage`). If `aborted` is set, the message did not end normally
        and has no stop reason (contract 6.4).
        """
        machine = self._machine
        self.was_aborted = aborted
        if usage:
            if usage.__class__ is not Usage:
                usage = parse_usage(usage)
            # In the state READY, the reply's last line was already written. The next reply gets its
            # own usage.
            if machine.state is not READY:
                self.end_usage = usage
            if adds_usage:
                self.add_usage(usage)
        if cost:
            self.cost_usd += parse_dollars(cost)
        if stop_reason:
            self.stop_reason = stop_reason
        if machine.state is not NEW:
            machine.move_to(READY)
        if self.written_text.char_count and not self._can_retry:
            self.written_text.clear()

    def add_usage(self, usage: Usage, cost_usd: float = 0.0) -> None:
        """Add an API request's usage to the totals of the current model (contract 5.3).

        Not every request results in an assistant message. Failed requests and compactions also have
        usage.
        """
        if cost_usd:
            self.cost_usd += parse_dollars(cost_usd)
        if usage.__class__ is not Usage:
            usage = parse_usage(usage)
        self._writer.add_usage(usage)
        self.last_usage = usage
        model_usage = self.usage_by_model.get(self.model)
        if model_usage is None:
            model_usage = get_model_usage(self.usage_by_model, self.model)
        model_usage["input_tokens"] += usage["input_tokens"]
        model_usage["cache_creation_input_tokens"] += usage["cache_creation_input_tokens"]
        model_usage["cache_read_input_tokens"] += usage["cache_read_input_tokens"]
        model_usage["output_tokens"] += usage["output_tokens"]


class WrittenBlockTexts:
    """The text that was already written for each block of the open assistant message. If a vendor
    sends a complete block again, only the new part is written.

    `shorten_text` shortens a text to the maximum length of an answer. If too much text is stored,
    only the shortened texts and the original lengths are kept. `texts` is empty if there is nothing
    to clear.
    """

    def __init__(self, diagnostics: Diagnostics, shorten_text: Callable[[str], str]) -> None:
        self._diagnostics = diagnostics
        self._shorten_text = shorten_text
        self.texts: dict[BlockKey, list[str]] = {}
        # The original length in UTF-16 units, and the shortened text.
        self._shortened: dict[BlockKey, tuple[int, str]] = {}
        self._stored_chars = 0

    def add_block_text(self, block_kind: TurnState, block_key: object, text: str) -> None:
        self.texts.setdefault((block_kind, block_key), []).append(text)
        self._stored_chars += len(text) + FRAGMENT_COST_CHARS
        if self._stored_chars > MAX_BLOCK_CHARS:
            self._shorten_texts()
        if len(self.texts) > MAX_BLOCKS:
            self._diagnostics.record("block_forgotten")
            self.remove(*next(iter(self.texts)))

    def get_block_text(self, block_kind: TurnState, block_key: object) -> str:
        """Return a block's text, shortened to the maximum length of an answer."""
        texts = self.texts.get((block_kind, block_key))
        if texts is None:
            return ""
        _, shortened_text = self._shortened.get((block_kind, block_key), (0, ""))
        return shortened_text + "".join(texts)

    def get_written_and_comparable_text(
        self, block_kind: TurnState, block_key: object, full_text: str
    ) -> tuple[str, str]:
        """Return a block's stored text, and the part of `full_text` to compare with the stored
        text.
        """
        units, _ = self._shortened.get((block_kind, block_key), (0, ""))
        if units:
            full_text = full_text.encode("utf-16-le", "surrogatepass")[2 * units :].decode(
                "utf-16-le", "surrogatepass"
            )
        return "".join(self.texts.get((block_kind, block_key), ())), full_text

    def remove(self, block_kind: TurnState, block_key: object) -> None:
        self.texts.pop((block_kind, block_key), None)
        self._shortened.pop((block_kind, block_key), None)

    def clear(self) -> None:
        """Clear all texts when a new assistant message starts."""
        self.texts.clear()
        self._shortened.clear()
        self._stored_chars = 0

    def copy_texts(self) -> dict[BlockKey, list[str]]:
        """Return a copy of the stored texts, for use with `restore_texts`."""
        return {block: list(texts) for block, texts in self.texts.items()}

    def restore_texts(self, texts_by_block: dict[BlockKey, list[str]]) -> None:
        """Replace the stored texts with a copy that `copy_texts` returned."""
        self.clear()
        for (kind, key), texts in texts_by_block.items():
            for text in texts:
                self.add_block_text(kind, key, text)

    def _shorten_texts(self) -> None:
        for block, texts in self.texts.items():
            text = "".join(texts)
            units, shortened_text = self._shortened.get(block, (0, ""))
            # Lengths are counted in UTF-16 units. If the two surrogates of a character are joined,
            # the length in characters changes, but the length in UTF-16 units does not.
            units += len(text.encode("utf-16-le", "surrogatepass")) // 2
            self._shortened[block] = units, self._shorten_text(shortened_text + text)
            texts.clear()
        self._stored_chars = 0


class CutMessageTextTracker:
    """Stores the open assistant message's text, by kind of block. If the message is interrupted and
    the vendor repeats it, the new text is compared with the stored text, so that no text is
    written twice.

    `char_count` is the number of stored characters. 0 means that there is nothing to clear.
    """

    def __init__(self) -> None:
        self.char_count = 0
        self.is_repeatable = True  # whether the complete text is stored
        self._texts: list[str] = []
        self._thinking_texts: list[str] = []
        # The interrupted message's text, and how many of its characters were repeated.
        self._cut_texts: dict[TurnState, tuple[str, int]] = {}

    def add_block_text(self, block_kind: TurnState, text: str) -> None:
        """Store a block's text. If the assistant message becomes too long, its text is no longer
        stored.
        """
        if block_kind is TEXT:
            texts = self._texts
        else:
            texts = self._thinking_texts
        texts.append(text)
        self.char_count += len(text)
        if self.char_count > MAX_MESSAGE_CHARS or len(texts) > MAX_MESSAGE_BLOCKS:
            self.clear()
            self.is_repeatable = False

    def clear(self) -> None:
        """Clear the stored text, because the vendor can no longer repeat the message."""
        self._texts.clear()
        self._thinking_texts.clear()
        self.char_count = 0

    def start_comparing_with_cut_message(self) -> bool:
        """Start to compare the following text with the interrupted message. Return False if the
        interrupted message has no text.
        """
        self._cut_texts = {
            TEXT: ("".join(self._texts), 0),
            THINKING: ("".join(self._thinking_texts), 0),
        }
        return any(text for text, _ in self._cut_texts.values())

    def restart_comparing_with_cut_message(self) -> bool:
        """Restart the comparison after the repeated message was also interrupted. Return False if
        the interrupted message has no text.
        """
        self._cut_texts = {kind: (text, 0) for kind, (text, _) in self._cut_texts.items()}
        return any(text for text, _ in self._cut_texts.values())

    def get_cut_text_and_repeated_chars(self, block_kind: TurnState) -> tuple[str, int]:
        """Return the interrupted message's text, and how many of its characters the vendor has
        repeated.
        """
        return self._cut_texts.get(block_kind, ("", 0))

    def set_repeated_char_count(self, block_kind: TurnState, char_count: int) -> None:
        """Set how many characters of the interrupted message the vendor has repeated."""
        self._cut_texts[block_kind] = (
            self.get_cut_text_and_repeated_chars(block_kind)[0],
            char_count,
        )

    def get_repeated_text_by_block_kind(self) -> dict[TurnState, str]:
        """Return the text that the vendor has repeated so far, by kind of block."""
        return {kind: text[:position] for kind, (text, position) in self._cut_texts.items()}

    def stop_comparing_with_cut_message(self) -> None:
        """Stop the comparison with the interrupted message, because the following text is new."""
        self._cut_texts = {}
