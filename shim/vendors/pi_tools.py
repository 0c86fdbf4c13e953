"""pi's tools in Claude's names, and what they return (pi page, section 6)."""

from shim.core.reading.typed import Any
from shim.core.vendor.tools import Tool, edits, milliseconds

TOOLS = {
    "read": Tool("Read", {"path": "file_path"}),
    "bash": Tool("Bash", convert={"timeout": milliseconds}),
    "write": Tool("Write", {"path": "file_path"}),
    "edit": Tool("Edit", {"path": "file_path"}, reshape=edits("oldText", "newText")),
    "grep": Tool(
        "Grep",
        {"ignoreCase": "-i", "context": "-C", "limit": "head_limit"},
        drop=("literal",),
        extra={"output_mode": "content"},
    ),
    "find": Tool("Glob", drop=("limit",)),
    "ls": Tool("LS", drop=("limit",)),
}
BUILT_IN = ("read", "bash", "edit", "write")  # on without being asked for; grep, find and ls are not
ALL = (*BUILT_IN, "grep", "find", "ls")


def content(blocks: object) -> object:
    """A tool result's content: one text as a string, images as Claude's image blocks."""
    if not isinstance(blocks, list):
        return blocks if isinstance(blocks, str) else ""
    if all(isinstance(block, dict) and block.get("type") == "text" for block in blocks):
        return "\n".join(block.get("text", "") for block in blocks)
    return [_block(block) for block in blocks if isinstance(block, dict)]


def _block(block: dict[str, Any]) -> dict[str, Any]:
    if block.get("type") != "image":
        return block
    source = {"type": "base64", "media_type": block.get("mimeType"), "data": block.get("data")}
    return {"type": "image", "source": source}
