"""Stores the messages and terminals that version 2 of ACP updates by id. An update contains the
full value, or a part to append.

Output that was written to the frontend cannot be changed. For an updated message, only the new text
is therefore written.
"""

import binascii
from collections.abc import Mapping

from shim.core.reading.typed import Any
from shim.core.reading.values import as_dict
from shim.profiles.acp.calls import AcpToolCall, list_content_blocks

MAX_MESSAGES = 100  # messages that are stored in a turn, to find the new text in an update
MAX_MESSAGE_CHARS = 200_000  # updates of a longer message are ignored
MAX_TERMINALS = 100
MAX_TERMINAL_BYTES = 200_000  # the last bytes that are kept of one terminal's output
MAX_CONTENT_ITEMS = 1000  # content items of one tool call
# The tool call fields that an update can set to null.
NULLABLE_KEYS = ("title", "kind", "rawInput", "content", "locations")


class AcpMessageAndTerminalStore:
    """The messages and terminals of one turn, by id."""

    def __init__(self) -> None:
        self._messages: dict[str, str] = {}
        self._terminals: dict[str, bytes] = {}
        self._exits: dict[str, object] = {}

    def append_message_text(self, message_id: str, text: str) -> None:
        """Append text to a stored message. The caller writes the text to the frontend."""
        self._store_text(message_id, self._messages.get(message_id, "") + text)

    def update_message_and_get_new_text(self, message_id: str, full_text: str) -> str | None:
        """Store a message's full text and return the part that is new. Return None if the text
        contradicts the part that was already written, or if that part is too long.
        """
        written = self._messages.get(message_id, "")
        if not full_text.startswith(written) or len(written) > MAX_MESSAGE_CHARS:
            return None
        self._store_text(message_id, full_text)
        return full_text[len(written) :]

    def _store_text(self, message_id: str, text: str) -> None:
        if message_id not in self._messages and len(self._messages) >= MAX_MESSAGES:
            self._messages.pop(next(iter(self._messages)))
        if len(text) <= MAX_MESSAGE_CHARS:
            self._messages[message_id] = text
        else:
            self._messages[message_id] = " " * (MAX_MESSAGE_CHARS + 1)

    def apply_terminal_update(self, update: Mapping[str, Any]) -> None:
        """Store a terminal's output so far, and the exit status of its program."""
        terminal_id = str(update["terminalId"])
        previous_output = b""
        if "output" not in update:
            previous_output = self._terminals.get(terminal_id, b"")
        self._store_output(terminal_id, previous_output, as_dict(update.get("output")).get("data"))
        if isinstance(exit_status := update.get("exitStatus"), dict):
            self._exits[terminal_id] = exit_status.get("signal") or exit_status.get("exitCode")

    def append_terminal_output(self, update: Mapping[str, Any]) -> None:
        """Append bytes to a terminal's output."""
        terminal_id = str(update["terminalId"])
        self._store_output(terminal_id, self._terminals.get(terminal_id, b""), update["data"])

    def _store_output(self, terminal_id: str, previous_output: bytes, data: object) -> None:
        if terminal_id not in self._terminals and len(self._terminals) >= MAX_TERMINALS:
            self._exits.pop(oldest_id := next(iter(self._terminals)), None)
            self._terminals.pop(oldest_id)
        decoded = b""
        if isinstance(data, str):
            decoded = binascii.a2b_base64(data)
        self._terminals[terminal_id] = (previous_output + decoded)[-MAX_TERMINAL_BYTES:]

    def list_output_content_blocks(self, tool_call: AcpToolCall) -> list[dict[str, Any]]:
        """Return a call's output as content blocks: the call's own blocks, terminal output, and
        file patches.
        """
        return [block for item in tool_call.output for block in self._convert_item(as_dict(item))]

    def _convert_item(self, item: Mapping[str, Any]) -> list[dict[str, Any]]:
        if item.get("type") == "terminal":
            output = self._terminals.get(str(item.get("terminalId")), b"").decode(
                "utf-8", "replace"
            )
            if output:
                return [{"type": "text", "text": output}]
            return []
        patch = as_dict(item.get("patch")).get("text")
        if item.get("type") == "diff" and isinstance(patch, str):
            if patch:
                return [{"type": "text", "text": patch}]
            return []
        return list_content_blocks([item])

    def has_failed_terminal(self, call: AcpToolCall) -> bool:
        """Return whether a program in one of the call's terminals exited with an error."""
        terminal_ids = (
            str(item.get("terminalId"))
            for item in call.output
            if as_dict(item).get("type") == "terminal"
        )
        return any(self._exits.get(terminal_id) for terminal_id in terminal_ids)


def clear_null_fields(call: AcpToolCall, update: Mapping[str, Any]) -> None:
    """Clear the fields of a tool call that an update sets to null."""
    null_keys = {key for key in NULLABLE_KEYS if key in update and update[key] is None}
    if "title" in null_keys:
        call.title = ""
    if "kind" in null_keys:
        call.kind = ""
    if "rawInput" in null_keys:
        call.input = {}
    if "content" in null_keys:
        call.content = call.output = []
    if "locations" in null_keys:
        call.paths = []
