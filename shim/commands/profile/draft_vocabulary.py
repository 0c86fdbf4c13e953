"""Lists the key names and event kinds by which a draft recognizes a field. Each name or kind is
used by several agent CLIs.

Names are compared without case and separators, so that toolCallId, tool_call_id and tool-call-id
are equal. In ordered lists, the most specific name comes first.
"""

from collections.abc import Mapping
from typing import Any

# The keys that name the kind of an event or a block, and the maximum length of such a kind.
KIND_KEYS = frozenset(("type", "subtype", "role", "kind", "object", "event"))
MAX_KIND_CHARS = 60

SESSION_KEYS = ("sessionid", "threadid", "conversationid", "chatid", "taskid")
CALL_ID_KEYS = ("callid", "toolcallid", "tooluseid", "toolid", "id")
NAME_KEYS = ("toolname", "functionname", "tool", "name")
INPUT_KEYS = ("input", "arguments", "args", "parameters", "params", "toolinput", "rawinput")
OUTPUT_KEYS = (
    "aggregatedoutput",
    "output",
    "result",
    "content",
    "value",
    "response",
    "stdout",
    "text",
)
TEXT_KEYS = (
    "text",
    "content",
    "delta",
    "deltacontent",
    "message",
    "response",
    "answer",
    "thinking",
    "reasoning",
    "think",
)
FINAL_KEYS = ("result", "finaltext", "text", "response")
ERROR_KEYS = ("message", "error", "text", "reason", "detail")
STATE_KEYS = ("status", "state")

THINKING_MARKERS = ("think", "reason", "thought")
NON_MODEL_MARKERS = (
    "user",
    "system",
    "human",
    "tool",
    "function",
    "exec",
    "command",
    "hook",
    "error",
    "warn",
    "log",
)
ERROR_MARKERS = ("error", "fail")
FRAGMENT_MARKERS = ("delta", "chunk", "partial", "update")
FAILURE_STATES = ("error", "failed", "failure", "declined", "denied", "cancelled", "rejected")


def normalize_name_for_comparison(name: str) -> str:
    """Return a name in lower case, without `_`, `-`, `.` and `/`."""
    return name.lower().translate(_REMOVED_CHARACTERS)


_REMOVED_CHARACTERS = str.maketrans("", "", "_-./")


def has_name_containing_marker_word(markers: tuple[str, ...], *names: str) -> bool:
    """Return whether any of the names contains any of the words."""
    return any(
        marker in normalize_name_for_comparison(name) for name in names for marker in markers
    )


def find_key_by_names(
    table: Mapping[str, Any], names: tuple[str, ...], value_type: type | tuple[type, ...] = object
) -> str | None:
    """Return the key in a table that matches the first of these names and has a value of this type,
    or None.
    """
    keys_by_name: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, value_type):
            keys_by_name.setdefault(normalize_name_for_comparison(key), key)
    return next((keys_by_name[name] for name in names if name in keys_by_name), None)
