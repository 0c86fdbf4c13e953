"""Converts values for Yume: permission modes, error codes, retry delays and tool results."""

import re

from shim.core.api_errors import MAX_READ_CHARS, classify_api_error
from shim.core.reading.json_text import convert_json_to_text
from shim.core.reading.values import as_dict
from shim.core.turn.outcome import is_disconnect_message

# Yume's error code for each failure. The key is the `error` field in Claude's message about a
# failed API request, or the shim's cause.
ERROR_CODES = {
    "authentication_failed": "AUTH",
    "auth": "AUTH",
    "billing_error": "BILLING",
    "invalid_request": "INVALID_REQUEST",
    "max_output_tokens": "OUTPUT_LIMIT",
    "model_not_found": "MODEL",
    "rate_limit": "RATE_LIMIT",
    "server_error": "SERVER",
    "truncated": "STREAM_DISCONNECT",
}
# the error codes after which the same request may succeed later
RETRYABLE_CODES = ("RATE_LIMIT", "SERVER", "STREAM_DISCONNECT")

INTERACTIVE_MODE = "interactive"

# For each of Yume's permission modes: Claude's mode, and whether the frontend is asked for
# permissions. Names of Claude's modes keep their meaning.
MODES = {
    "default": ("default", False),
    INTERACTIVE_MODE: ("default", True),
    "auto": ("acceptEdits", False),
    "deny": ("plan", False),
    "plan": ("plan", False),
    "acceptEdits": ("acceptEdits", False),
    "dontAsk": ("dontAsk", False),
    "manual": ("default", True),
}

# Matches the retry delay in an error text. A number without a unit is in seconds, as in the header
# Retry-After.
_RETRY_DELAY = re.compile(
    r"(?:retry.?after|(?:try again|retry|resets?) in)\W{1,4}(\d{1,6}(?:\.\d{1,3})?) ?"
    r"(ms|milliseconds|m(?:in|inutes?)?\b|h)?",
    re.I,
)
_SECONDS_PER_UNIT = {"": 1.0, "m": 60.0, "h": 3600.0}


def parse_yume_permission_mode(name: object) -> tuple[str, bool, bool]:
    """Return Claude's permission mode for a mode name, whether the frontend is asked for
    permissions, and whether the name is valid. An unknown name means `default` (R15).

    bypassPermissions cannot be selected by any frame.
    """
    if not isinstance(name, str) or name not in MODES:
        return (*MODES["default"], False)
    return (*MODES[name], True)


def choose_yume_error_code(error: str, cause: str, message: str) -> str:
    """Return Yume's error code for a failure. `error` is Claude's name for a failed API request,
    and `cause` is the shim's cause for any failure.
    """
    if error in ("", "server_error") and (
        is_disconnect_message(message) or classify_api_error(message).kind == "connection"
    ):
        return ERROR_CODES["truncated"]
    return ERROR_CODES.get(error, ERROR_CODES.get(cause, cause.upper()))


def parse_retry_delay_s(text: str) -> float | None:
    """Return the retry delay in an error text, in seconds, or None."""
    match = _RETRY_DELAY.search(text[:MAX_READ_CHARS])
    if match is None:
        return None
    number, unit = match.groups("")
    unit = unit.lower()
    return float(number) * (
        0.001 if unit.startswith(("ms", "milli")) else _SECONDS_PER_UNIT[unit[:1]]
    )


def format_tool_result(content: object) -> str:
    """Return a tool result as a single text. Each image is replaced with its media type."""
    if not isinstance(content, list):
        return convert_json_to_text(content)
    return "\n".join(_format_block(block) for block in content)


def _format_block(block: object) -> str:
    if not isinstance(block, dict):
        return convert_json_to_text(block)
    if isinstance(block.get("text"), str):
        return str(block["text"])
    media_type = as_dict(block.get("source")).get("media_type")
    if media_type is None and "data" not in block:
        return convert_json_to_text(block)
    return f"[{block.get('type')}: {media_type or block.get('mimeType') or 'data'}]"
