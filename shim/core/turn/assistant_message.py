"""One assistant message (a reply of the model): its usage, its stop reason, and the text of its
blocks.

The texts are stored so that a repeated text is not written twice.
"""

from collections.abc import Callable

from shim.core.claude.usage import NO_USAGE, Usage, get_model_usage, parse_dollars, parse_usage
from shim.core.reading.diagnostics import Diagnostics
from shim.core.reading.head_and_tail import shorten_middle
from shim.core.turn.context import MAX_NAME_CHARS
from shim.core.turn.machine import MESSAGE, NEW, READY, TEXT, THINKING, TurnState
from shim.core.turn.turn_context import TurnContext

SYNTHETIC_MODEL = "<synthetic>"  # the model of a message that no model wrote

# Longer than any reply of a model. Limits the memory if a vendor never stops streaming.
MAX_BLOCK_CHARS = 512 * 1024
FRAGMENT_COST_CHARS = 64  # the memory of a fragment in addition to its characters
MAX_BLOCKS = 1000

# The stored text of a reply that may be interrupted and repeated. No reply is longer, and the
# memory is small.
MAX_MESSAGE_CHARS = 4 * 1024 * 1024
MAX_MESSAGE_BLOCKS = 1000

OMISSION_TEXT = "\n[…]\n"  # replaces the middle of an answer that does not fit a line

BlockKey = tuple[TurnState, object]  # the kind of the block, and the vendor's key


class AssistantMessage:
    """The open reply, or the last one, and the usage of all replies of the turn."""

    def __init__(
        self,
        context: TurnContext,
    ) -> None:
        self._machine = context.machine
        self._writer = context.writer
        # the text of a reply is then stored until the end of the turn
        self._can_retry = context.config.can_retry
        self._partial = context.writer.writes_partial_messages
        self._outcome_tracker = context.outcome_tracker
        self.written_blocks = WrittenBlockTexts(
            context.diagnostics, self.shorten_text_to_line_limit
        )
        self.written_text = CutMessageTextTracker()
        self.number = 0  # the number of replies with a block
        self.model = ""
        self.start_usage: Usage = NO_USAGE  # written with the reply's lines
        self.end_usage: Usage = NO_USAGE  # written at the end of the reply
        self.stop_reason: str | None = None
        self.was_aborted = False  # the reply did not end normally
        self.ends_with_call = False  # its last block is a call
        self.last_text = ""
        self.usage_by_model: dict[str, Usage] = {}  # of the turn, by model
        self.last_usage: Usage = NO_USAGE  # usage of the latest reply
        self.cost_usd = 0.0  # of the turn, in dollars
        self.has_open_block = False  # a block of a real claude has started, but not ended

    def start(self) -> None:
        """Start a reply. Called with its first block."""
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
        """Whether the reply ended with calls, and no other reply followed."""
        if self.ends_with_call:
            return True
        return self.stop_reason == "tool_use"

    def shorten_text_to_line_limit(self, text: str) -> str:
        """Shorten an answer so that it fits into a line."""
        return shorten_middle(text, self._writer.max_bytes, OMISSION_TEXT)

    # -- reports of the vendor ---------------------------------------------------------------------

    def update(self, model: str | None = None, usage: Usage | None = None) -> None:
        """Set the model and the current usage of the open reply, or of the next one."""
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
        """End the reply (`end_message`). `usage` and `cost` are those of this reply. They are added
        to the totals.

        `adds_usage`: False if the vendor reports the usage of the whole turn at its end
        (`add_usage`). `aborted`: the reply did not end normally, so it has no stop reason (contract
        6.4).
        """
        machine = self._machine
        self.was_aborted = aborted
        if usage:
            if usage.__class__ is not Usage:
                usage = parse_usage(usage)
            # In READY, the reply's last line was already written, and the next reply has its own
            # usage.
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
        """Add the usage of one request to the usage of its model (contract 5.3).

        The request may have no reply in the turn, like a failed request or a compaction.
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
    """The texts of the blocks of the open reply. If a vendor sends a complete block again, only its
    new part is written.

    `shorten_text` shortens a text to the length of an answer. If too much text is stored, only the
    shortened texts and the full lengths are kept. `texts` is empty if there is nothing to clear.
    """

    def __init__(self, diagnostics: Diagnostics, shorten_text: Callable[[str], str]) -> None:
        self._diagnostics = diagnostics
        self._shorten_text = shorten_text
        self.texts: dict[BlockKey, list[str]] = {}
        # the length in UTF-16 units, and the text shortened to the length of an answer
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
        """Return the text of a block, shortened to the length of an answer."""
        texts = self.texts.get((block_kind, block_key))
        if texts is None:
            return ""
        _, shortened_text = self._shortened.get((block_kind, block_key), (0, ""))
        return shortened_text + "".join(texts)

    def get_written_and_comparable_text(
        self, block_kind: TurnState, block_key: object, full_text: str
    ) -> tuple[str, str]:
        """Return the stored text of a block, and the part of `full_text` to compare with it."""
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
        """Clear all texts, because another reply starts."""
        self.texts.clear()
        self._shortened.clear()
        self._stored_chars = 0

    def copy_texts(self) -> dict[BlockKey, list[str]]:
        """Return a copy of the texts for `restore_texts`."""
        return {block: list(texts) for block, texts in self.texts.items()}

    def restore_texts(self, texts_by_block: dict[BlockKey, list[str]]) -> None:
        """Replace the texts with a copy from `copy_texts`."""
        self.clear()
        for (kind, key), texts in texts_by_block.items():
            for text in texts:
                self.add_block_text(kind, key, text)

    def _shorten_texts(self) -> None:
        for block, texts in self.texts.items():
            text = "".join(texts)
            units, shortened_text = self._shortened.get(block, (0, ""))
            # Lengths are counted in UTF-16, because joining the two halves of a character (two
            # surrogates) changes the length in characters, but not in UTF-16.
            units += len(text.encode("utf-16-le", "surrogatepass")) // 2
            self._shortened[block] = units, self._shorten_text(shortened_text + text)
            texts.clear()
        self._stored_chars = 0


class CutMessageTextTracker:
    """The text of the open reply, by kind of block. It is compared with the repetition of an
    incomplete reply, so that no text is written twice.

    `char_count` is in characters. It is 0 if there is nothing to clear.
    """

    def __init__(self) -> None:
        self.char_count = 0
        self.is_repeatable = True  # the complete text is stored
        self._texts: list[str] = []
        self._thinking_texts: list[str] = []
        # the text of the incomplete reply, and how many of its characters were repeated
        self._cut_texts: dict[TurnState, tuple[str, int]] = {}

    def add_block_text(self, block_kind: TurnState, text: str) -> None:
        """Store the text of a block. If the reply becomes too long, its text is no longer
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
        """Clear the texts, because the reply cannot be repeated any more."""
        self._texts.clear()
        self._thinking_texts.clear()
        self.char_count = 0

    def start_comparing_with_cut_message(self) -> bool:
        """Start to compare the next text with the incomplete reply. Return False if that reply has
        no text.
        """
        self._cut_texts = {
            TEXT: ("".join(self._texts), 0),
            THINKING: ("".join(self._thinking_texts), 0),
        }
        return any(text for text, _ in self._cut_texts.values())

    def restart_comparing_with_cut_message(self) -> bool:
        """Restart the comparison, because the repetition was also incomplete."""
        self._cut_texts = {kind: (text, 0) for kind, (text, _) in self._cut_texts.items()}
        return any(text for text, _ in self._cut_texts.values())

    def get_cut_text_and_repeated_chars(self, block_kind: TurnState) -> tuple[str, int]:
        """Return the text of the incomplete reply, and how many of its characters were repeated."""
        return self._cut_texts.get(block_kind, ("", 0))

    def set_repeated_char_count(self, block_kind: TurnState, char_count: int) -> None:
        """Set how many characters of the incomplete reply were repeated."""
        self._cut_texts[block_kind] = (
            self.get_cut_text_and_repeated_chars(block_kind)[0],
            char_count,
        )

    def get_repeated_text_by_block_kind(self) -> dict[TurnState, str]:
        """Return the text that was repeated so far, by kind of block."""
        return {kind: text[:position] for kind, (text, position) in self._cut_texts.items()}

    def stop_comparing_with_cut_message(self) -> None:
        """Stop the comparison, because the next text is new."""
        self._cut_texts = {}
