"""The tool calls that were refused in a turn, for `permission_denials` in the result."""

from collections.abc import Mapping
from typing import Any

from shim.core.policy.policy import normalize_tool_name
from shim.core.reading.json_text import dump_json
from shim.core.turn.context import MAX_NAME_CHARS, MAX_USED_IDS
from shim.core.turn.open_calls import compute_input_fingerprint, normalize_call_id
from shim.core.turn.turn_context import TurnContext

MAX_DENIALS = 100  # the limit for entries in `permission_denials`, which must fit into one line
# The maximum number of ids that were replaced, and of calls for each id. The ids are stored because
# a later denial has the vendor's own id.
MAX_RENAMED_CALLS = 100


class PermissionDenials:
    """Collects refused tool calls for `permission_denials` in the result. The list takes up at most
    half of the maximum line size.
    """

    def __init__(self, context: TurnContext) -> None:
        self._diagnostics = context.diagnostics
        self._sanitizer = context.sanitizer
        self._max_bytes = context.writer.max_bytes // 2
        self._used_bytes = 0
        self.entries: dict[str, dict[str, Any]] = {}  # by written id
        self._truncated_ids: set[str] = set()  # ids of entries whose arguments were omitted
        # The vendor's call ids that were written unchanged in this turn.
        self._unchanged_ids: set[str] = set()
        # vendor's id → written id, name, and fingerprint of the arguments
        self._renamed_ids: dict[str, list[tuple[str, str, int]]] = {}
        # The name of a tool that the vendor ran after it had received the denial.
        self.tool_that_ran = ""

    def add(self, call_id: str, name: str, tool_input: Mapping[str, Any]) -> None:
        """Add a refused tool call. If its arguments are too long, they are omitted."""
        call_id = normalize_call_id(call_id)
        if call_id in self.entries:
            return
        name = normalize_tool_name(name)
        clean_input = self._sanitizer.clean(tool_input)
        entry = {
            "tool_name": name[:MAX_NAME_CHARS],
            "tool_use_id": call_id,
            "tool_input": clean_input,
        }
        free_bytes = self._max_bytes - self._used_bytes
        entry_bytes = len(dump_json(entry))
        fits_in_line = entry_bytes <= free_bytes
        if not fits_in_line:
            self._diagnostics.record("denial_cut", name)
            entry["tool_input"] = {}
            entry_bytes = len(dump_json(entry))
        if len(self.entries) < MAX_DENIALS and entry_bytes <= free_bytes:
            self.entries[call_id] = entry
            self._used_bytes += entry_bytes + 1
            if not fits_in_line:
                self._truncated_ids.add(call_id)

    def has_denial(self, call_id: str, name: str, tool_input: Mapping[str, Any]) -> bool:
        """Return whether a tool call with this id, name and arguments was refused."""
        entry = self.entries.get(call_id)
        if entry is None or entry["tool_name"] != name:
            return False
        if call_id in self._truncated_ids:
            return True
        return bool(entry["tool_input"] == tool_input)

    def resolve_call_id_in_output(
        self, vendor_call_id: str, name: str, tool_input: Mapping[str, Any]
    ) -> str:
        """Return the id under which the vendor's tool call was written in this turn."""
        vendor_call_id = normalize_call_id(vendor_call_id)
        name = normalize_tool_name(name)
        renamed_calls = self._renamed_ids.get(vendor_call_id)
        if renamed_calls is None:
            return vendor_call_id
        matching_ids = [
            written_id
            for written_id, tool, call_fingerprint in renamed_calls
            if tool == name and call_fingerprint == compute_input_fingerprint(tool_input)
        ]
        if matching_ids:
            return next(
                (written_id for written_id in matching_ids if written_id not in self.entries),
                matching_ids[0],
            )
        if vendor_call_id in self._unchanged_ids:
            return vendor_call_id
        return next(
            (written_id for written_id, tool, _ in reversed(renamed_calls) if tool == name),
            renamed_calls[-1][0],
        )

    def record_call_id_in_output(
        self, vendor_call_id: str, output_call_id: str, name: str, tool_input: Mapping[str, Any]
    ) -> None:
        """Store the id under which a tool call is written. If the vendor later denies the call, the
        denial names the call by the vendor's own id.
        """
        if output_call_id == vendor_call_id:
            if len(self._unchanged_ids) >= MAX_USED_IDS:
                self._unchanged_ids.clear()
            self._unchanged_ids.add(vendor_call_id)
        elif vendor_call_id and len(self._renamed_ids) < MAX_RENAMED_CALLS:
            renamed_calls = self._renamed_ids.setdefault(vendor_call_id, [])
            renamed_calls.append((output_call_id, name, compute_input_fingerprint(tool_input)))
            del renamed_calls[:-MAX_RENAMED_CALLS]
            # The denial arrived before the call and has the vendor's own id.
            if self.has_denial(vendor_call_id, name, tool_input):
                self._rename_entry(vendor_call_id, output_call_id)

    def _rename_entry(self, old_id: str, new_id: str) -> None:
        """Replace a refused tool call's id with the id that was written to the stream."""
        if old_id != new_id and new_id not in self.entries:
            self.entries[new_id] = self.entries.pop(old_id) | {"tool_use_id": new_id}
