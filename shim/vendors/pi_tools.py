"""pi's tools in Claude's names (pi page, section 6)."""

from shim.tools import Tool, edits, milliseconds

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
