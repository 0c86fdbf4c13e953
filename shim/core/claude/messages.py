"""User messages as a frontend sends them in stream-json input (contract C14): a text, or blocks."""

from collections.abc import Mapping

import orjson

from shim.core.reading.account import printable
from shim.core.reading.typed import Any, NamedTuple

ROLE_CHARACTERS = 60  # of a message's role, in a complaint about it


class Message(NamedTuple):
    """One user message.

    `text` is what every vendor can be given; `left_out` counts, by kind, the blocks that have no text. `message` is
    the frontend's own object, for the echo that it may ask for (C15); `timestamp` is when it came, `size` its bytes.
    """

    text: str
    left_out: Mapping[str, int] = {}
    message: Mapping[str, Any] = {}
    uuid: str | None = None
    timestamp: str = ""
    size: int = 0

    def notice(self, vendor: str) -> str:
        """One line for the user about blocks that the vendor cannot be given; "" if none was left out."""
        if not self.left_out:
            return ""
        kinds = " and ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in self.left_out.items())
        return f"[{kinds} left out of this message: {vendor} can only be given text]"


def read_message(event: Mapping[str, Any], timestamp: str) -> Message:
    """The message of a `user` line. ValueError has the real claude's words where it has some (C13)."""
    message = event.get("message")
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(message, dict) or role != "user":
        found = "undefined" if role is None else printable(str(role)[:ROLE_CHARACTERS])
        raise ValueError(f"Expected message role 'user', got '{found}'")
    uuid = event.get("uuid")
    content = message.get("content")
    if isinstance(content, str):
        texts, left_out = [content], dict[str, int]()
    elif isinstance(content, list):
        texts, left_out = _read_blocks(content)
    else:
        raise ValueError("Expected message content to be a string or a list of blocks")
    return Message("\n".join(texts), left_out, message, uuid if isinstance(uuid, str) else None, timestamp)


def _read_blocks(blocks: list[Any]) -> tuple[list[str], dict[str, int]]:
    texts: list[str] = []
    left_out: dict[str, int] = {}
    for block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        text = _text(block) if kind in ("text", "document") else None
        if text is not None:
            texts.append(text)
        else:
            kind = kind if isinstance(kind, str) else "unknown block"
            left_out[kind] = left_out.get(kind, 0) + 1
    return texts, left_out


def _text(block: Mapping[str, Any]) -> str | None:
    """The text of a text block, or of a document that is plain text."""
    if block["type"] == "text":
        text = block.get("text")
    else:
        source = block.get("source")
        plain = isinstance(source, dict) and source.get("type") == "text"
        text = source.get("data") if plain and isinstance(source, dict) else None
    return text if isinstance(text, str) else None


def read_line(raw: bytes) -> object:
    """A line as an object, with broken bytes and escapes repaired; None if it is not JSON."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        import json

        try:
            return json.loads(raw.decode("utf-8", "replace"), strict=False)
        except (ValueError, RecursionError):
            return None
