"""Converts tool results to the content that the real claude writes. Measured with claude 2.1.330.

An MCP server returns `{"content": [block, …], "structuredContent": {…}, "isError": true}`. Vendors
pass on either the complete result or only its blocks. A tool result's content in Claude's format is
a string or a list of Claude's own blocks:

- text: text, without `annotations` and `_meta`
- an image, or a blob that is an image: an image with `source`; the image type is read from the
  bytes, or from the declaration if the bytes are not recognized
- audio, another image, another blob: `[Audio from SERVER] Binary content (TYPE, N bytes), not saved`
- resource_link: `[Resource link: NAME] URI (DESCRIPTION)`
- resource: `[Resource from SERVER at URI] TEXT`
- structuredContent: its JSON, which replaces the texts and follows all other blocks
- no content, or only empty texts: `(TOOL completed with no output)`
- a failed call: its texts, one per line, without images

The real claude saves binary content in a file and names the file in the text. The shim does not
save the content and writes "not saved".
"""

from binascii import a2b_base64, b2a_base64
from collections.abc import Mapping

from shim.core.policy.policy import MCP_PREFIX
from shim.core.reading.json_text import (
    convert_json_to_text,
    convert_to_tool_result_content,
    dump_json,
)
from shim.core.reading.typed import Any
from shim.core.reading.values import get_text

Block = dict[str, Any]

NO_OUTPUT_TEXT = "({tool} completed with no output)"
NO_ERROR_TEXT = "Unknown error"  # used for a failed call without a text
UNREADABLE_IMAGE_TEXT = "[Image could not be processed: its data is not base64]"
EMPTY_IMAGE_TEXT = "[Image could not be processed: Image file is empty (0 bytes)]"
STRUCTURED_KEYS = ("structuredContent", "structured_content")
ERROR_KEYS = ("isError", "is_error")
RESULT_KEYS = frozenset(("content", *STRUCTURED_KEYS, *ERROR_KEYS, "_meta", "meta"))
MEDIA_TYPE_KEYS = ("mimeType", "mime_type", "media_type", "mediaType")
PRIVATE_KEYS = frozenset(("annotations", "_meta"))  # block keys that the model must not see
# The block types that Claude accepts in a tool result.
CLAUDE_BLOCK_TYPES = frozenset(
    ("text", "document", "search_result", "tool_reference", "web_search_result")
)
# The first bytes of image files that a frontend can show. WebP is not listed, because its signature
# has the file's length in the middle.
IMAGE_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
}
SHOWABLE_IMAGE_TYPES = (*IMAGE_SIGNATURES.values(), "image/webp")


def is_mcp_result(value: object) -> bool:
    """Return whether a value is a complete MCP result: an object that has content blocks or
    structured content, and only keys that MCP defines.
    """
    if not isinstance(value, dict) or not RESULT_KEYS.issuperset(value):
        return False
    content = value.get("content")
    if content is None:
        return _find_structured(value) is not None
    if not isinstance(content, list):
        return False
    return all(map(_is_block, content))


def is_failed_mcp_result(value: object) -> bool:
    """Return whether a value is a complete MCP result with an error."""
    if not isinstance(value, dict):
        return False
    if not is_mcp_result(value):
        return False
    return any(value.get(key) is True for key in ERROR_KEYS)


def convert_mcp_result_to_claude(value: object, tool: str, *, is_error: bool = False) -> object:
    """Convert a tool call's result to content in Claude's format.

    `value` is a complete MCP result, a list of blocks, or a string. Any other value is returned
    unchanged. `tool` is Claude's name for the tool, which is `mcp__SERVER__TOOL` for an MCP tool.
    """
    is_mcp = tool.startswith(MCP_PREFIX)
    structured: Mapping[str, Any] | None = None
    if isinstance(value, dict) and is_mcp_result(value):
        is_mcp = True
        structured = _find_structured(value)
        value = value.get("content")
        if not value:
            value = []
    if isinstance(value, str):
        if is_error or not is_mcp:
            return value
        if not value.strip():
            return NO_OUTPUT_TEXT.format(tool=tool)
        return [_build_text_block(value)]  # the vendor reports only the text of the blocks
    if not isinstance(value, list) or not all(map(_is_block, value)) or not (value or is_mcp):
        return value
    if structured is not None and not is_error:
        blocks = convert_mcp_blocks_to_claude(
            [block for block in value if block["type"] != "text"], tool
        )
        text = dump_json(structured).decode()
        if blocks:
            return [*blocks, _build_text_block(text)]
        return text
    blocks = convert_mcp_blocks_to_claude(value, tool)
    if not is_mcp:
        return blocks
    if is_error:
        return (
            "\n".join(block["text"] for block in blocks if block["type"] == "text").rstrip()
            or NO_ERROR_TEXT
        )
    is_empty = all(block["type"] == "text" and not block["text"].strip() for block in blocks)
    if is_empty:
        return NO_OUTPUT_TEXT.format(tool=tool)
    return blocks


def convert_mcp_blocks_to_claude(blocks: list[Block], tool: str) -> list[Block]:
    """Convert MCP content blocks to Claude's blocks. Blocks of a type that Claude supports stay
    unchanged.
    """
    server = ""
    if tool.startswith(MCP_PREFIX):
        server = tool[len(MCP_PREFIX) :].partition("__")[0]
    origin = ""
    if server:
        origin = f" from {server}"
    return [converted for block in blocks for converted in _convert_block(block, origin)]


def _convert_block(block: Block, origin: str) -> list[Block]:
    """Convert one MCP content block to Claude's blocks. `origin` is " from SERVER", or "" if the
    server is unknown.
    """
    kind = block["type"]
    if kind == "text":
        return [_convert_text(block)]
    if kind == "image" and isinstance(block.get("source"), dict):
        return [block]
    if isinstance(block.get("data"), str):
        heading = f"[{kind.capitalize()}{origin}] "
        return [
            _convert_binary(
                block["data"], _read_media_type(block), heading, is_image=kind == "image"
            )
        ]
    if kind == "resource_link":
        return [_build_text_block(_describe_link(block))]
    resource = block.get("resource")
    if kind == "resource" and isinstance(resource, dict):
        return _convert_resource(resource, origin)
    if kind in CLAUDE_BLOCK_TYPES:
        return [block]
    return [_build_text_block(convert_json_to_text(block))]


def _convert_text(block: Block) -> Block:
    """Return a text block without the keys that the model must not see."""
    if isinstance(block.get("text"), str) and PRIVATE_KEYS.isdisjoint(block):
        return block
    return {
        key: value for key, value in block.items() if key not in PRIVATE_KEYS
    } | _build_text_block(convert_json_to_text(block.get("text")))


def _convert_resource(resource: Mapping[str, Any], origin: str) -> list[Block]:
    """Convert an embedded resource to its text, its image, or a sentence that describes
    its data.
    """
    heading = f"[Resource{origin} at {convert_json_to_text(resource.get('uri'))}] "
    blob = resource.get("blob")
    if not isinstance(blob, str):
        return [_build_text_block(heading + convert_json_to_text(resource.get("text")))]
    block = _convert_binary(blob, _read_media_type(resource), heading, is_image=False)
    if block["type"] == "image":
        return [_build_text_block(heading), block]
    return [block]


def _convert_binary(data: str, declared: str, heading: str, *, is_image: bool) -> Block:
    """Convert a supported image to an image block. Other data becomes a text block that describes
    the data.

    `is_image` is set if the server declared the data as an image.
    """
    content, data = _decode_base64(data)
    type_text = declared or "unknown type"
    if content is None:
        return _build_text_block(
            UNREADABLE_IMAGE_TEXT if is_image else f"{heading}Binary content ({type_text})"
        )
    if is_image and not content:
        return _build_text_block(EMPTY_IMAGE_TEXT)
    media_type = _recognize_image(content)
    if not media_type and declared in SHOWABLE_IMAGE_TYPES and content:
        media_type = declared
    if media_type:
        return {
            "type": "image",
            "source": {"type": "base64", "media_type": media_type, "data": data},
        }
    return _build_text_block(
        f"{heading}Binary content ({type_text}, {len(content)} bytes), not saved"
    )


def _decode_base64(data: str) -> tuple[bytes | None, str]:
    """Decode base64. Return the bytes and the text as standard base64. If the text is not base64,
    the bytes are None.

    Line breaks, data URLs, the URL-safe alphabet and missing padding are accepted, because some
    servers send them.
    """
    try:
        return a2b_base64(data, strict_mode=True), data
    except ValueError:
        pass
    encoded = data
    if data.startswith("data:"):
        encoded = data.partition(";base64,")[2]
    encoded = "".join(encoded.split()).replace("-", "+").replace("_", "/").rstrip("=")
    padding = "=" * (-len(encoded) % 4)
    try:
        content = a2b_base64(encoded + padding, strict_mode=True)
    except ValueError:
        return None, data
    return content, b2a_base64(content, newline=False).decode()


def _recognize_image(content: bytes) -> str:
    """Return the media type of an image, based on its first bytes. Return "" if the bytes are not a
    known image.
    """
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return next(
        (media_type for start, media_type in IMAGE_SIGNATURES.items() if content.startswith(start)),
        "",
    )


def _read_media_type(block: Mapping[str, Any]) -> str:
    """Return a block's declared media type without parameters, or ""."""
    declared = next((block[key] for key in MEDIA_TYPE_KEYS if isinstance(block.get(key), str)), "")
    media_type = str(declared).partition(";")[0].strip().lower()
    if media_type == "image/jpg":
        return "image/jpeg"
    return media_type


def _describe_link(block: Block) -> str:
    """Return a text that describes a resource link."""
    uri = convert_json_to_text(block.get("uri"))
    name = get_text(block, "name", get_text(block, "title", uri))
    text = f"[Resource link: {name}] {uri}"
    description = block.get("description")
    if isinstance(description, str):
        return f"{text} ({description})"
    return text


def _find_structured(result: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return a result's structured content, or None."""
    return next((result[key] for key in STRUCTURED_KEYS if isinstance(result.get(key), dict)), None)


def _is_block(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    return isinstance(value.get("type"), str)


def _build_text_block(text: str) -> Block:
    return {"type": "text", "text": text}


SHELL_TOOL = "Bash"


def format_tool_result_content(value: object, tool: str, *, is_failed: bool) -> object:
    """Format a tool call's result as content in Claude's format: a string or a list of Claude's
    blocks.
    """
    content = convert_to_tool_result_content(
        convert_mcp_result_to_claude(value, tool, is_error=is_failed)
    )
    if tool == SHELL_TOOL and isinstance(content, str):
        return trim_command_output(content)
    return content


def trim_command_output(text: str) -> str:
    """Remove leading blank lines and trailing white space from a command's output."""
    if text[-1:].isspace():
        text = text.rstrip()
    if text[:1].isspace():
        blank_chars = len(text) - len(text.lstrip())
        text = text[text.rfind("\n", 0, blank_chars) + 1 :]
    return text
