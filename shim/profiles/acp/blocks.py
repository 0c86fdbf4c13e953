"""Converts a user message to the content blocks of an ACP `session/prompt` request: text, images,
and files as embedded resources.
"""

import re
from collections.abc import Mapping
from typing import Any

from shim.core.claude.messages import BlockKinds, MessageBlock, UserMessage
from shim.core.reading.values import as_dict

# The start of an agent's slash command. JavaScript's `trim` removes the same whitespace.
COMMAND_START = re.compile(r"[\s\ufeff]*[/$]")
# How a document is sent to the agent: embedded, in an image block, or not at all.
AS_FILE = "file"
AS_IMAGE = "image"
LEFT_OUT = "none"
# The kind of message block that an agent with this capability accepts.
KIND_BY_CAPABILITY = {"image": "image", "embeddedContext": "document"}


def list_accepted_block_kinds(
    agent_info: Mapping[str, Any], document_format: str = AS_FILE
) -> BlockKinds:
    """Return the content block kinds that an agent accepts besides text, from its `initialize`
    result. An agent reports a capability as `true` or, in version 2, as an object.

    `document_format` defines how documents are sent to the agent.
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
    """Return the content blocks of a user message, for an agent that accepts these block kinds."""
    return [
        _build_block(part, number, document_format)
        for number, part in enumerate(message.select_blocks(kinds), 1)
    ]


def _build_block(part: MessageBlock, number: int, document_format: str) -> dict[str, Any]:
    """Return one content block. Text that looks like one of the agent's slash commands is escaped,
    because the agent would run the command without asking.
    """
    if part.kind == "text":
        if COMMAND_START.match(part.text):
            text = f"\\{part.text}"
        else:
            text = part.text
        return {"type": "text", "text": text}
    if AS_IMAGE in (part.kind, document_format):
        return {"type": "image", "mimeType": part.media_type, "data": part.data}
    # An embedded file needs a URI. This URI does not name a real file, so that the agent never reads a
    # local file instead.
    uri = f"attachment:///{number}.{part.media_type.rpartition('/')[2]}"
    return {
        "type": "resource",
        "resource": {"uri": uri, "mimeType": part.media_type, "blob": part.data},
    }
