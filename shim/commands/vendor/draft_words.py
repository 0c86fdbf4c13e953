"""The words by which a draft recognises what a field is: names of keys and of kinds that many CLIs share.

Names are compared without case, `_`, `-` and `.`: toolCallId, tool_call_id and tool-call-id are one. In a list that is
asked in order the most telling name stands first. Nothing here names a vendor: a name has its place when two of them
use it, or a public API does.
"""

from collections.abc import Mapping
from typing import Any

# Which kind of line or of block something is.
KIND_KEYS = frozenset(("type", "subtype", "role", "kind", "contenttype", "object", "event", "hookeventname"))
KIND_CHARACTERS = 60
# What is inside of these is data, whose own `type` says nothing about the line.
OPAQUE = frozenset(
    (
        *("input", "args", "arguments", "parameters", "params", "result", "output", "metadata", "usage", "error"),
        *("state", "tokens", "display", "stats", "toolinput", "tooluseresult", "rawinput", "structuredcontent"),
    )
)

INPUT_KEYS = ("input", "arguments", "args", "parameters", "params", "toolinput", "rawinput")
NAME_KEYS = ("toolname", "functionname", "tool", "name")
# The id that a call and its result have in common.
CALL_ID_KEYS = ("callid", "toolcallid", "tooluseid", "toolid", "id")
OUTPUT_KEYS = (
    *("outputtext", "aggregatedoutput", "output", "result", "content", "value", "response", "stdout", "text"),
    "observation",
)
TEXT_KEYS = (
    *("text", "content", "delta", "deltacontent", "textdelta", "finaltext", "accumulated", "message", "response"),
    *("thinking", "think", "reasoning", "thought", "summary", "answer", "reasoningcontent", "outputtext", "words"),
)
SESSION_KEYS = ("sessionid", "threadid", "conversationid", "chatid", "taskid")
ERROR_TEXT_KEYS = ("message", "error", "text", "reason", "detail", "description", "name")

THINKING = ("think", "reason", "thought")
TOOLS = ("tool", "function", "exec", "command", "hook", "effect")
USERS = ("user", "system", "developer", "human")
ERRORS = ("error", "fail", "warn", "notice", "retry", "log", "reconnect")
ENDS = ("result", "done", "complet", "finish", "final", "end", "stop", "close", "bye", "exit", "settled")
BEGINS = ("start", "begin", "init", "created", "open", "hello", "session")
FRAGMENTS = ("delta", "chunk", "partial", "update", "progress")
FAILED = ("error", "failed", "failure", "declined", "denied", "cancelled", "canceled", "rejected", "aborted")
GOOD = ("success", "completed", "ok", "done", "succeeded", "finished", "complete")

# Claude's counts ← the names that numbers of tokens have; the first of each that is there is taken.
COUNTS: Mapping[str, tuple[str, ...]] = {
    "input_tokens": ("inputtokens", "prompttokens", "input", "prompt", "inputtokencount"),
    "cache_read_input_tokens": ("cachereadinputtokens", "cachedinputtokens", "cachereadtokens", "cacheread", "cached"),
    "cache_creation_input_tokens": (
        "cachecreationinputtokens",
        "cachewriteinputtokens",
        "cachewritetokens",
        "cachewrite",
    ),
    "output_tokens": ("outputtokens", "completiontokens", "output", "completion", "outputtokencount"),
}
COST_KEYS = ("totalcostusd", "costusd", "totalcost", "cost")
DURATION_KEYS = ("durationms", "elapsedms", "wallms")

# Claude's tool ← words in the vendor's name of it, asked in order, and where its arguments are looked for.
TOOL_WORDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("TodoWrite", ("todo",)),
    ("WebSearch", ("websearch", "googlesearch", "searchweb")),
    ("WebFetch", ("fetch",)),
    ("Edit", ("strreplace", "searchreplace", "replace", "edit", "patch")),
    ("Write", ("writefile", "createfile", "write", "create")),
    ("Read", ("readfile", "read", "view", "openfile", "cat")),
    ("Bash", ("bash", "shell", "terminal", "commandexecution", "execute", "exec", "runcommand")),
    ("Glob", ("glob", "findfile")),
    ("Grep", ("grep", "searchfile", "ripgrep")),
    ("LS", ("listdir", "listfiles", "ls")),
    ("Task", ("subagent", "agent", "task", "delegate")),
)
TOOL_ARGUMENTS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "Bash": {"command": ("command", "cmd", "script", "bashcommand"), "description": ("description",)},
    "Read": {
        "file_path": ("filepath", "path", "file", "absolutepath", "targetfile"),
        "offset": ("offset", "lineoffset"),
        "limit": ("limit",),
    },
    "Write": {
        "file_path": ("filepath", "path", "file", "absolutepath"),
        "content": ("content", "contents", "filetext", "text", "newtext"),
    },
    "Edit": {
        "file_path": ("filepath", "path", "file", "absolutepath"),
        "old_string": ("oldstring", "oldstr", "oldtext", "old", "search"),
        "new_string": ("newstring", "newstr", "newtext", "new", "replace"),
    },
    "Grep": {
        "pattern": ("pattern", "query", "regex"),
        "path": ("path", "dirpath", "directory"),
        "glob": ("glob", "include"),
    },
    "Glob": {"pattern": ("pattern", "glob"), "path": ("path", "dirpath", "directory")},
    "LS": {"path": ("path", "dirpath", "directory")},
    "WebFetch": {"url": ("url",), "prompt": ("prompt",)},
    "WebSearch": {"query": ("query",)},
    "Task": {"description": ("description",), "prompt": ("prompt",), "subagent_type": ("subagenttype", "agentname")},
    "TodoWrite": {"todos": ("todos",)},
}
TOOL_NEEDS: Mapping[str, tuple[str, ...]] = {
    "Bash": ("command",),
    "Read": ("file_path",),
    "Write": ("file_path", "content"),
    "Edit": ("file_path",),
    "Grep": ("pattern",),
    "Glob": ("pattern",),
    "LS": ("path",),
    "WebFetch": ("url",),
    "WebSearch": ("query",),
    "Task": ("prompt",),
    "TodoWrite": ("todos",),
}


def plain(name: str) -> str:
    """A name as it is compared: small letters without `_`, `-` and `.`."""
    return name.lower().replace("_", "").replace("-", "").replace(".", "").replace("/", "")


def has(words: tuple[str, ...], *names: Any) -> bool:
    """Whether one of these words stands in one of the names."""
    said = [plain(name) for name in names if isinstance(name, str)]
    return any(word in name for word in words for name in said)


def key_in(table: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    """The key of a table that has the first of these names; None when it has none."""
    known: dict[str, str] = {}
    for key in table:
        known.setdefault(plain(key), key)
    return next((known[name] for name in names if name in known), None)
