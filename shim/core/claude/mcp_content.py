"""What an MCP server returned, in the form that the real claude gives it. Measured with claude 2.1.330.

A server returns `{"content": [block, …], "structuredContent": {…}, "isError": true}`. Vendors pass on the whole result,
or only its blocks. The content of Claude's tool result is a text or a list of Claude's own blocks:

| MCP                                | Claude                                                                          |
|------------------------------------|---------------------------------------------------------------------------------|
| text                               | text, without `annotations` and `_meta`                                         |
| image, or a blob that is an image  | image with `source`; its type is read from the bytes, not from the declaration  |
| audio, another image, another blob | `[Audio from SERVER] Binary content (TYPE, N bytes), not saved`                 |
| resource_link                      | `[Resource link: NAME] URI (DESCRIPTION)`                                       |
| resource                           | `[Resource from SERVER at URI] TEXT`                                            |
| structuredContent                  | its JSON in place of the texts, after all other blocks                          |
| nothing, or only empty texts       | `(TOOL completed with no output)`                                               |
| a failed call                      | its texts, a line each; no image                                                |

The real claude saves binary content in a file and names the file. The shim keeps no such files, so it says "not saved".
"""

from binascii import a2b_base64, b2a_base64
from collections.abc import Mapping

from shim.core.policy.rules import MCP
from shim.core.reading.json_text import as_text, dump
from shim.core.reading.typed import Any

Block = dict[str, Any]

NO_OUTPUT = "({tool} completed with no output)"
NO_MESSAGE = "Unknown error"  # the result of a failed call without a text
NOT_READABLE = "[Image could not be processed: its data is not base64]"
EMPTY_IMAGE = "[Image could not be processed: Image file is empty (0 bytes)]"
STRUCTURED_KEYS = ("structuredContent", "structured_content")
ERROR_KEYS = ("isError", "is_error")
RESULT_KEYS = frozenset(("content", *STRUCTURED_KEYS, *ERROR_KEYS, "_meta", "meta"))
MEDIA_TYPE_KEYS = ("mimeType", "mime_type", "media_type", "mediaType")
PRIVATE_KEYS = frozenset(("annotations", "_meta"))  # of a block, for the program that talks to the server
# Types of blocks that may stand in the content of a tool result of Claude's.
CLAUDE_BLOCKS = frozenset(("text", "document", "search_result", "tool_reference", "web_search_result"))
# The first bytes of the images that a frontend of Claude's can show. A WebP has its length in the middle.
SIGNATURES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}
SHOWABLE = (*SIGNATURES.values(), "image/webp")


def is_mcp_result(value: object) -> bool:
    """Return whether a value is the whole result of an MCP call: its blocks, and what MCP has beside them."""
    if not isinstance(value, dict) or not RESULT_KEYS.issuperset(value):
        return False
    content = value.get("content")
    if content is None:
        return _find_structured(value) is not None
    return isinstance(content, list) and all(map(_is_block, content))


def is_failed_result(value: object) -> bool:
    """Return whether a value is the whole result of an MCP call that failed."""
    return isinstance(value, dict) and is_mcp_result(value) and any(value.get(key) is True for key in ERROR_KEYS)


def convert_result(value: object, tool: str, *, failed: bool = False) -> object:
    """Return the content of Claude's tool result for what a call returned.

    `value` is a whole result of MCP, a list of blocks, or a text; anything else is returned as it is. `tool` is
    Claude's name of the tool, which is `mcp__SERVER__TOOL` for a tool of a server.
    """
    of_server = tool.startswith(MCP)
    structured: Mapping[str, Any] | None = None
    if isinstance(value, dict) and is_mcp_result(value):
        of_server = True
        structured = _find_structured(value)
        value = value.get("content") or []
    if isinstance(value, str):
        is_empty = of_server and not failed and not value.strip()
        return NO_OUTPUT.format(tool=tool) if is_empty else value
    if not isinstance(value, list) or not all(map(_is_block, value)) or not (value or of_server):
        return value
    if structured is not None and not failed:
        blocks = convert_blocks([block for block in value if block["type"] != "text"], tool)
        text = dump(structured).decode()
        return [*blocks, _text(text)] if blocks else text
    blocks = convert_blocks(value, tool)
    if not of_server:
        return blocks
    if failed:
        return "\n".join(block["text"] for block in blocks if block["type"] == "text").rstrip() or NO_MESSAGE
    is_empty = all(block["type"] == "text" and not block["text"].strip() for block in blocks)
    return NO_OUTPUT.format(tool=tool) if is_empty else blocks


def convert_blocks(blocks: list[Block], tool: str) -> list[Block]:
    """Return blocks of MCP as Claude's; a block that Claude has is not changed."""
    server = tool[len(MCP) :].partition("__")[0] if tool.startswith(MCP) else ""
    origin = f" from {server}" if server else ""
    return [converted for block in blocks for converted in _convert_block(block, origin)]


def _convert_block(block: Block, origin: str) -> list[Block]:
    """Return one block of MCP as Claude's blocks; `origin` names the server in a text."""
    kind = block["type"]
    if kind == "text":
        return [_convert_text(block)]
    if kind == "image" and isinstance(block.get("source"), dict):
        return [block]
    if isinstance(block.get("data"), str):
        heading = f"[{kind.capitalize()}{origin}] "
        return [_convert_binary(block["data"], _media_type(block), heading, is_image=kind == "image")]
    if kind == "resource_link":
        return [_text(_describe_link(block))]
    resource = block.get("resource")
    if kind == "resource" and isinstance(resource, dict):
        return _convert_resource(resource, origin)
    return [block] if kind in CLAUDE_BLOCKS else [_text(as_text(block))]


def _convert_text(block: Block) -> Block:
    """Return a block of text without what is not for the model."""
    if isinstance(block.get("text"), str) and PRIVATE_KEYS.isdisjoint(block):
        return block
    return {key: value for key, value in block.items() if key not in PRIVATE_KEYS} | _text(as_text(block.get("text")))


def _convert_resource(resource: Mapping[str, Any], origin: str) -> list[Block]:
    """Return an embedded resource: its text, its image, or what kind of data it is."""
    heading = f"[Resource{origin} at {as_text(resource.get('uri'))}] "
    blob = resource.get("blob")
    if not isinstance(blob, str):
        return [_text(heading + as_text(resource.get("text")))]
    block = _convert_binary(blob, _media_type(resource), heading, is_image=False)
    return [_text(heading), block] if block["type"] == "image" else [block]


def _convert_binary(data: str, declared: str, heading: str, *, is_image: bool) -> Block:
    """Return an image that can be shown as a block, and any other data as a sentence about it.

    `is_image` is whether the server calls the data an image.
    """
    content, data = _decode(data)
    if content is None:
        return _text(NOT_READABLE if is_image else f"{heading}Binary content ({declared or 'unknown type'})")
    if is_image and not content:
        return _text(EMPTY_IMAGE)
    media_type = _recognize_image(content) or (declared if declared in SHOWABLE and content else "")
    if media_type:
        return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}
    return _text(f"{heading}Binary content ({declared or 'unknown type'}, {len(content)} bytes), not saved")


def _decode(data: str) -> tuple[bytes | None, str]:
    """Return the bytes of base64 and its plain spelling; None for a text that is not base64.

    Servers also send line breaks, data URLs, the alphabet for URLs, and leave the padding out.
    """
    try:
        return a2b_base64(data, strict_mode=True), data
    except ValueError:
        pass
    spelled = "".join(data.partition(";base64,")[2].split() if data.startswith("data:") else data.split())
    spelled = spelled.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        content = a2b_base64(spelled + "=" * (-len(spelled) % 4), strict_mode=True)
    except ValueError:
        return None, data
    return content, b2a_base64(content, newline=False).decode()


def _recognize_image(content: bytes) -> str:
    """Return the media type of an image by its first bytes; "" for data of another kind."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return next((media_type for start, media_type in SIGNATURES.items() if content.startswith(start)), "")


def _media_type(described: Mapping[str, Any]) -> str:
    """Return the declared media type of data, without its parameters; "" if none is declared."""
    declared = next((described[key] for key in MEDIA_TYPE_KEYS if isinstance(described.get(key), str)), "")
    media_type = str(declared).partition(";")[0].strip().lower()
    return "image/jpeg" if media_type == "image/jpg" else media_type


def _describe_link(block: Block) -> str:
    """Return the text for a link to a resource."""
    uri, description = as_text(block.get("uri")), block.get("description")
    name = as_text(block.get("name") or block.get("title") or uri)
    return f"[Resource link: {name}] {uri}" + (f" ({description})" if isinstance(description, str) else "")


def _find_structured(result: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the structured content of a result; None without one."""
    return next((result[key] for key in STRUCTURED_KEYS if isinstance(result.get(key), dict)), None)


def _is_block(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("type"), str)


def _text(text: str) -> Block:
    return {"type": "text", "text": text}
