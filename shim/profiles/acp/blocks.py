"""A message as the content blocks of `session/prompt`: text, images, and files as embedded
resources.
"""

import re
from collections.abc import Mapping
from typing import Any

from shim.core.claude.messages import BlockKinds, MessageBlock, UserMessage
from shim.core.reading.values import as_dict

COMMAND_START = re.compile(r"[\s\ufeff]*[/$]")  # what JavaScript's trim leaves of a text begins so
# how a document is said: embedded, as an image is, or not at all
AS_FILE = "file"
AS_IMAGE = "image"
LEFT_OUT = "none"
# What an agent says that it can be given beside text → what that is in a message.
KIND_BY_CAPABILITY = {"image": "image", "embeddedContext": "document"}


def list_accepted_block_kinds(
    agent_info: Mapping[str, Any], document_format: str = AS_FILE
) -> BlockKinds:
    """What a message may have beside its text, by an agent's answer to `initialize`: true, or a
    table in version 2.

    `document_format`: how a document is said to it.
    """
    version1_prompt = as_dict(agent_info.get("agentCapabilities")).get("promptCapabilities")
    version2_prompt = as_dict(as_dict(agent_info.get("capabilities")).get("session")).get("prompt")
    capabilities = {**as_dict(version1_prompt), **as_dict(version2_prompt)}
    accepted = {
        kind
        for name, kind in KIND_BY_CAPABILITY.items()
        if capabilities.get(name) is True or isinstance(capabilities.get(name), dict)
    }
    return frozenset(accepted - {"document"} if document_format == LEFT_OUT else accepted)


def build_prompt_blocks(
    message: UserMessage, kinds: BlockKinds, document_format: str = AS_FILE
) -> list[dict[str, Any]]:
    """The blocks of a message for an agent that takes these kinds."""
    return [
        _build_block(part, number, document_format)
        for number, part in enumerate(message.select_blocks(kinds), 1)
    ]


def _build_block(part: MessageBlock, number: int, document_format: str) -> dict[str, Any]:
    """One block. A text that begins as a command of the agent's own is escaped: it would run it,
    and ask nobody.
    """
    if part.kind == "text":
        if COMMAND_START.match(part.text):
            text = f"\\{part.text}"
        else:
            text = part.text
        return {"type": "text", "text": text}
    if AS_IMAGE in (part.kind, document_format):
        return {"type": "image", "mimeType": part.media_type, "data": part.data}
    # An embedded file needs a name; this one leads nowhere, so that nobody reads a file of the
    # machine for it.
    uri = f"attachment:///{number}.{part.media_type.rpartition('/')[2]}"
    return {
        "type": "resource",
        "resource": {"uri": uri, "mimeType": part.media_type, "blob": part.data},
    }
