"""User messages that a frontend sends as stream-json (contract C14). The content is a string or a
list of content blocks.
"""

from binascii import a2b_base64
from collections.abc import Callable, Mapping, Sequence

import orjson

from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import as_dict, as_str, escape_control_chars

MAX_ROLE_CHARS = 60  # the maximum length of a message role in an error text
MAX_MEDIA_TYPE_CHARS = 60  # the maximum length of a media type in the notice about a block
# The maximum size of a decoded image or document. A larger file is not passed to any vendor.
MAX_FILE_BYTES = 20_000_000
# The accepted media types for each kind of block. Most vendors' models can read these types.
MEDIA_TYPES: Mapping[str, tuple[str, ...]] = {
    "image": ("image/png", "image/jpeg", "image/gif", "image/webp"),
    "document": ("application/pdf",),
}

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Message priorities.
PRIORITY_NOW = "now"
PRIORITY_LATER = "later"

# The kinds of blocks that a vendor accepts in addition to text: "image", "document", and "url" for
# files that are passed as a URL.
BlockKinds = frozenset[str]
TEXT_ONLY_KINDS: BlockKinds = frozenset()
ALL_KINDS: BlockKinds = frozenset(("image", "document", "url"))


class MessageBlock(NamedTuple):
    """A content block in a user message.

    kind        text, image or document; for other blocks, the block's own type
    text        the text of a text block or of a plain-text document
    media_type  the media type of the file in `data`
    data        the file in base64
    url         the file's URL, in which case `data` is empty
    title       the document's title
    problem     why the block cannot be passed to any vendor, or ""
    """

    kind: str
    text: str = ""
    media_type: str = ""
    data: str = ""
    url: str = ""
    title: str = ""
    problem: str = ""

    def is_accepted(self, accepted_kinds: BlockKinds) -> bool:
        """Return whether a vendor that accepts these kinds of blocks can receive this block."""
        if self.problem:
            return False
        if self.kind == "text":
            return True
        if self.url and "url" not in accepted_kinds:
            return False
        return self.kind in accepted_kinds

    def to_json(self) -> dict[str, Any]:
        """Return the content block in Claude's format."""
        if self.kind == "text":
            return {"type": "text", "text": self.text}
        if self.url:
            source = {"type": "url", "url": self.url}
        else:
            source = {"type": "base64", "media_type": self.media_type, "data": self.data}
        return {"type": self.kind, "source": source} | ({"title": self.title} if self.title else {})


class UserMessage(NamedTuple):
    """A message from the user.

    `text` can be passed to every vendor. `blocks` has all content blocks in order, or is empty if
    the text is the complete message. `raw_message` is the message object that the frontend sent.
    The shim returns it if the frontend requests an echo (C15). `timestamp` is the time of arrival,
    and `size_bytes` is the length of the frontend's line.

    `priority` decides what happens if a turn is running. NOW ends the running turn, and LATER waits
    for its end. With any other priority, the message is sent to the vendor during the turn if the
    vendor accepts such messages.

    If `needs_reply` is False (`shouldQuery`), the model does not answer the message. The message is
    context for the next one. `origin` is the frontend's description of the sender, which is
    repeated in the result.

    If `is_compaction` is True, the message asks the vendor to compact its context. `text` has
    instructions for the summary. If `is_from_hook` is True, a hook has written the message for the
    model. If `is_verbatim` is True (`client_composed`), the text is never treated as a command,
    because the user has not typed it.
    """

    text: str
    blocks: tuple[MessageBlock, ...] = ()
    raw_message: Mapping[str, Any] = {}
    uuid: str | None = None
    timestamp: str = ""
    size_bytes: int = 0
    priority: str = ""
    needs_reply: bool = True
    origin: Mapping[str, Any] | None = None
    is_compaction: bool = False
    is_from_hook: bool = False
    is_verbatim: bool = False

    def select_blocks(self, accepted_kinds: BlockKinds) -> tuple[MessageBlock, ...]:
        """Return the blocks whose kind the vendor accepts, in order. If only text blocks remain,
        return a single block with the message's text.
        """
        accepted_blocks = tuple(block for block in self.blocks if block.is_accepted(accepted_kinds))
        if any(block.kind != "text" for block in accepted_blocks):
            return accepted_blocks
        return (MessageBlock("text", self.text),)

    def assign_uuid(self, create_uuid: Callable[[], str]) -> "UserMessage":
        """Return the message with an id. The message's echo and the transcript contain the same id.
        The session can be resumed at this id later.
        """
        if self.uuid is None:
            return self._replace(uuid=create_uuid())
        return self

    def replace_text(self, text: str) -> "UserMessage":
        """Return a copy of the message with a different text.

        If the new text contains the original text, the parts before and after the original become
        separate blocks.
        """
        if self.text:
            before, old_text, after = text.partition(self.text)
        else:
            before = text
            old_text = ""
            after = ""
        if old_text:
            remaining_blocks = self.blocks
        else:
            remaining_blocks = tuple(
                block for block in self.blocks if block.kind != "text" or block.problem
            )
        surrounding_blocks = [
            (MessageBlock("text", surrounding_text),) if surrounding_text else ()
            for surrounding_text in (before, after)
        ]
        blocks = ()
        if self.blocks:
            blocks = (*surrounding_blocks[0], *remaining_blocks, *surrounding_blocks[1])
        return self._replace(
            text=text,
            blocks=blocks,
        )

    def prepend_context(self, context: "Sequence[UserMessage]") -> "UserMessage":
        """Return a copy of the message that starts with the texts and blocks of earlier messages."""
        if not context:
            return self
        messages = [*context, self]
        text = "\n".join(message.text for message in messages)
        blocks: tuple[MessageBlock, ...] = ()
        if any(message.blocks for message in messages):
            blocks = tuple(
                block
                for message in messages
                for block in message.blocks or (MessageBlock("text", message.text),)
            )
        return self._replace(
            text=text, blocks=blocks, size_bytes=sum(message.size_bytes for message in messages)
        )

    def describe_omitted_blocks(
        self, vendor: str, accepted_kinds: BlockKinds = TEXT_ONLY_KINDS
    ) -> str:
        """Return a notice to the user about the blocks that the vendor does not receive, with one
        line for each reason. Return "" if no block was omitted.
        """
        reasons: dict[str, dict[str, int]] = {}
        for block in self.blocks:
            if not block.is_accepted(accepted_kinds):
                kind_counts = reasons.setdefault(
                    _explain_omission(block, vendor, accepted_kinds), {}
                )
                kind_counts[block.kind] = kind_counts.get(block.kind, 0) + 1
        return "\n".join(
            f"[{_format_kind_counts(kind_counts)} left out of this message: {reason}]"
            for reason, kind_counts in reasons.items()
        )


def split_command_text(text: str) -> tuple[str, str]:
    """Split a text that begins with a command into the command's name and the arguments."""
    name, *rest = text[1:].split(None, 1) or ("",)
    return name, "".join(rest).strip()


def _explain_omission(block: MessageBlock, vendor: str, accepted_kinds: BlockKinds) -> str:
    """Return the reason why a vendor with these accepted kinds does not receive a block."""
    if block.kind in accepted_kinds:
        return block.problem or f"{vendor} does not accept files by URL"
    accepted_nouns = " and ".join(
        ["text", *(f"{kind}s" for kind in ("image", "document") if kind in accepted_kinds)]
    )
    return f"{vendor} only accepts {accepted_nouns}"


def _format_kind_counts(kind_counts: Mapping[str, int]) -> str:
    return " and ".join(
        f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in kind_counts.items()
    )


def parse_user_message(event: Mapping[str, Any], timestamp: str) -> UserMessage:
    """Parse the message in a `user` line. Raise ValueError if the message is invalid. The error has
    the real claude's text if there is one (C13).
    """
    message = event.get("message")
    role = as_dict(message).get("role")
    if not isinstance(message, dict) or role != "user":
        role_text = "undefined"
        if role is not None:
            role_text = escape_control_chars(str(role)[:MAX_ROLE_CHARS])
        raise ValueError(f"Expected message role 'user', got '{role_text}'")
    uuid = event.get("uuid")
    priority = event.get("priority")
    content = message.get("content")
    if isinstance(content, str):
        text = content
        blocks = list[MessageBlock]()
    elif isinstance(content, list):
        blocks = [_parse_block(block) for block in content]
        text = "\n".join(
            message_block.text
            for message_block in blocks
            if message_block.kind == "text" and not message_block.problem
        )
    else:
        raise ValueError("Expected message content to be a string or a list of blocks")
    user_message = UserMessage(
        text, tuple(blocks), message, uuid if isinstance(uuid, str) else None, timestamp
    )
    origin = event.get("origin")
    if isinstance(origin, dict):
        user_message = user_message._replace(origin=origin)
    user_message = user_message._replace(
        needs_reply=event.get("shouldQuery") is not False,
        is_verbatim=event.get("client_composed") is True,
    )
    if isinstance(priority, str):
        return user_message._replace(priority=priority)
    return user_message


def _parse_block(value: object) -> MessageBlock:
    """Parse a content block. If the block is invalid, its `problem` is the reason."""
    kind = as_dict(value).get("type")
    if not isinstance(value, dict) or not isinstance(kind, str):
        return MessageBlock("unknown block", problem="not a content block")
    if kind not in MEDIA_TYPES:
        text = value.get("text")
        if kind == "text" and isinstance(text, str):
            return MessageBlock(kind, text)
        return MessageBlock(kind, problem="unknown block type")
    source = value.get("source")
    title = value.get("title")
    source = as_dict(source)
    data = source.get("data")
    if source.get("type") == "text" and kind == "document" and isinstance(data, str):
        return MessageBlock("text", data)
    block = MessageBlock(kind, title=as_str(title))
    if source.get("type") == "url" and isinstance(url := source.get("url"), str) and url:
        return block._replace(url=url)
    if source.get("type") != "base64" or not isinstance(data, str) or not data:
        return block._replace(problem="the block has no base64 data")
    media_type = source.get("media_type")
    if media_type not in MEDIA_TYPES[kind]:
        type_text = str(media_type)[:MAX_MEDIA_TYPE_CHARS]
        return block._replace(
            problem=f"the media type is {type_text!r}, expected {', '.join(MEDIA_TYPES[kind])}"
        )
    return block._replace(
        media_type=str(media_type), data=data, problem=_explain_invalid_data(data)
    )


def _explain_invalid_data(data: str) -> str:
    """Return the reason why base64 data cannot be used, or "" if it is valid and small enough."""
    try:
        size_bytes = len(a2b_base64(data, strict_mode=True))
    except ValueError as error:
        return f"the data is not base64 ({error})"
    if size_bytes > MAX_FILE_BYTES:
        return f"the data has {size_bytes:,} bytes; the limit is {MAX_FILE_BYTES:,}"
    return ""


def parse_json_line(line: bytes) -> object:
    """Parse a line of JSON. Return None if the line is not JSON. Invalid bytes and escapes are
    repaired.

    A leading byte order mark is skipped, because editors and PowerShell write one before the first
    line.
    """
    line = line.removeprefix(BYTE_ORDER_MARK)
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        import json

        try:
            return json.loads(line.decode("utf-8", "replace"), strict=False)
        except (ValueError, RecursionError):
            return None
