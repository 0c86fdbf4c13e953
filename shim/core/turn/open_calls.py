"""Tool calls that wait for their results, and tool calls that wait for their arguments.

Some model servers and agents (llama.cpp, ollama, kimi and others) give several open calls the same
id, or no id. Such calls are distinguished by name and arguments, and results are assigned to them
in order.
"""

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import orjson

from shim.core.policy.policy import MCP_PREFIX
from shim.core.reading.json_text import dump_json
from shim.core.turn.context import MAX_NAME_CHARS

# The source of an announcement is the kind of event with which the vendor announces a tool call.
STREAM = "stream"  # an event that announces each call once
PERMISSION_REQUEST = "question"  # a permission request
UPDATE = "update"  # an event that replaces the arguments of an open call
MAX_SOURCES = 8  # no vendor announces a call with more kinds of events
MAX_ENDED_CALLS = 1000  # the maximum number of ended calls that are stored
MAX_ID_BITS = 512  # integers with more bits are not accepted as ids
DIGEST_BYTES = 8  # enough to distinguish the long ids of one turn

Entry = TypeVar("Entry")


def normalize_call_id(value: object) -> str:
    """Return a vendor's call id as a string that is short enough for every line. Return "" if the
    id is missing.

    A long id is shortened and gets a digest, so that two long ids with different endings stay
    different.
    """
    if isinstance(value, int) and value.__class__ is int and value.bit_length() <= MAX_ID_BITS:
        return str(value)
    if not isinstance(value, str):
        return ""
    if len(value) <= MAX_NAME_CHARS:
        return value
    from hashlib import blake2b  # rarely needed

    digest = blake2b(value.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).hexdigest()
    return f"{value[: MAX_NAME_CHARS - len(digest) - 1]}~{digest}"


def compute_input_fingerprint(tool_input: object) -> int:
    """Return a hash of a tool call's arguments. Equal arguments have equal hashes, regardless of
    the order of keys.
    """
    try:
        return hash(orjson.dumps(tool_input, option=orjson.OPT_SORT_KEYS))
    except TypeError:
        return hash(dump_json(tool_input))


class ToolCallAnnouncement:
    """An open tool call's name and arguments, as the vendor announced them."""

    __slots__ = ("call_id", "inputs_by_source", "is_forbidden", "name")

    def __init__(self, call_id: str, name: str, tool_input: object, source: str) -> None:
        self.call_id = call_id  # "" if the call has no id
        self.name = name
        self.is_forbidden = False  # whether a rule forbids arguments that were announced later
        # source → the arguments, or an int that is their fingerprint
        self.inputs_by_source: dict[str, object] = {source: tool_input}

    def has_input(self, tool_input: object) -> bool:
        """Return whether the tool call was announced with these arguments."""
        return any(
            _is_equal_input(announced_input, tool_input)
            for announced_input in self.inputs_by_source.values()
        )

    @property
    def has_any_input(self) -> bool:
        """Whether the tool call was announced with any arguments."""
        return any(self.inputs_by_source.values())

    def record_input_fingerprint_of_source(self, source: str, tool_input: object) -> None:
        """Store the arguments with which an event from `source` announced the tool call."""
        if len(self.inputs_by_source) < MAX_SOURCES or source in self.inputs_by_source:
            if tool_input:
                self.inputs_by_source[source] = compute_input_fingerprint(tool_input)
            else:
                self.inputs_by_source[source] = {}


class OpenToolCalls(Generic[Entry]):
    """The open tool calls of a turn or of its subagents.

    `calls` has an entry for each open tool call that is visible. If several open calls have the
    same id, the oldest call's key is the id itself, and later calls have other keys. When the
    oldest call ends, the next call takes over its key.
    """

    def __init__(self) -> None:
        self.calls: dict[str, Entry] = {}
        self.hidden_keys: dict[str, None] = {}  # keys of calls that the stream omits
        self.has_added_call = False  # a call was added in this turn; it may have ended
        self._announcements: dict[str, ToolCallAnnouncement] = {}  # by key
        # the vendor's id → the name and the fingerprint of the arguments of a call that has ended
        self._ended_calls: dict[str, tuple[str, int]] = {}
        # the vendor's id → keys of later calls with the same id; "" → calls without an id
        self._later_keys: dict[str, list[str]] = {}

    def has_call_id(self, call_id: str) -> bool:
        """Return whether any open or hidden tool call has this id."""
        if call_id in self.calls:
            return True
        if call_id in self.hidden_keys:
            return True
        return call_id in self._later_keys

    def list_keys_of_call_id(self, call_id: str) -> list[str]:
        """Return the keys of all open and hidden tool calls with an id, oldest first.

        `call_id` may also be the key of a later call with the same id.
        """
        keys = list(self._later_keys.get(call_id, []))
        is_used = call_id in self.calls or call_id in self.hidden_keys
        if call_id and is_used and self._get_id(call_id) == call_id:
            keys.insert(0, call_id)
        if not keys and call_id in self.calls:
            keys = [call_id]
        return keys

    def find_repeated_call_key(
        self,
        call_id: str,
        name: str,
        tool_input: object,
        source: str = STREAM,
        accepts_key: Callable[[str], bool] | None = None,
    ) -> str | None:
        """Return the key of the open tool call that the vendor announces again, or None for a new
        tool call.

        Announcements with equal names and arguments are for the same call. A different kind of
        event (`source`) may announce the same call with other arguments, and arguments may be added
        to a call that had none. A call without an id is announced only once by each kind of event.
        """
        keys = [
            key
            for key in self.list_keys_of_call_id(call_id)
            if accepts_key is None or accepts_key(key)
        ]
        same_name = [(key, self._announcements[key]) for key in keys if key in self._announcements]
        same_name = [
            (key, announcement) for key, announcement in same_name if announcement.name == name
        ]
        same_input = [
            (key, announcement)
            for key, announcement in same_name
            if announcement.has_input(tool_input)
        ]
        for key, announcement in same_input:
            if source not in announcement.inputs_by_source:
                return key
        if call_id and same_input:
            return same_input[0][0]
        for key, announcement in same_name:
            if source not in announcement.inputs_by_source or (
                call_id and not announcement.has_any_input
            ):
                return key
        if not call_id and source == PERMISSION_REQUEST:
            return self._find_unrequested_call(name, tool_input)
        return None

    def _find_unrequested_call(self, name: str, tool_input: object) -> str | None:
        """Return the key of the first open tool call with this name and these arguments that has no
        permission request yet, or None.
        """
        for key in self.calls:
            announcement = self._announcements.get(key)
            if (
                announcement is None
                or announcement.name != name
                or not announcement.has_input(tool_input)
            ):
                continue
            if not self.is_call_announced_by_source(key, PERMISSION_REQUEST):
                return key
        return None

    def is_call_announced_by_source(self, call_key: str, source: str) -> bool:
        """Return whether an event from this source has announced the tool call."""
        announcement = self._announcements.get(call_key)
        if announcement is None:
            return False
        return source in announcement.inputs_by_source

    def record_repeated_call(self, call_key: str, source: str, tool_input: object) -> bool:
        """Store another announcement of an open tool call. Return whether its arguments are new."""
        announcement = self._announcements[call_key]
        is_new = not announcement.has_input(tool_input)
        if is_new or source not in announcement.inputs_by_source:
            announcement.record_input_fingerprint_of_source(source, tool_input)
        return is_new

    def mark_call_forbidden(self, call_key: str) -> None:
        """Mark a tool call as forbidden after a rule has matched arguments that were announced
        later.
        """
        self._announcements[call_key].is_forbidden = True

    def is_call_forbidden(self, call_key: str) -> bool:
        """Return whether a tool call was marked as forbidden."""
        announcement = self._announcements.get(call_key)
        if announcement is None:
            return False
        return announcement.is_forbidden

    def add(self, announcement: ToolCallAnnouncement, spare_key: str, entry: Entry | None) -> str:
        """Add a tool call and return its key. If `entry` is None, the call is hidden.

        `spare_key` is used as the key if the call's id is empty or already in use.
        """
        self.has_added_call = True
        call_id = announcement.call_id
        key = call_id
        if not key:
            key = spare_key
        if not call_id or key in self.calls or key in self.hidden_keys:
            while key in self.calls or key in self.hidden_keys or key == call_id:
                key = spare_key = f"{spare_key}~"
            self._later_keys.setdefault(call_id, []).append(key)
        if entry is None:
            self.hidden_keys[key] = None
        else:
            self.calls[key] = entry
        self._announcements[key] = announcement
        return key

    def find_call_key_for_result(
        self,
        call_id: str,
        name: str | None = None,
        tool_input: object = None,
        accepts_key: Callable[[str], bool] | None = None,
    ) -> str | None:
        """Return the key of the tool call that a result belongs to, or None if no call waits for
        this result.

        The result belongs to the oldest call with the same id, and preferably with the same name
        and arguments. A result without an id belongs to a call without an id. If all open calls
        have ids, such a result belongs to any open call.
        """
        is_only_call = call_id in self.calls and call_id not in self._later_keys
        if is_only_call and accepts_key is None and (name is None or tool_input is None):
            return call_id  # the usual case, without the lists below
        keys = self.list_keys_of_call_id(call_id)
        if not keys and not call_id:
            keys = list(self.calls)
        if accepts_key is not None:
            keys = [key for key in keys if accepts_key(key)]
        same_name = [
            key
            for key in keys
            if key in self._announcements and self._announcements[key].name == name
        ]
        if call_id and name is not None and tool_input is not None and not same_name:
            return None  # the result is for a call that is not open
        if len(keys) > 1 and name is not None:
            same_input = [
                key
                for key in same_name
                if tool_input is not None and self._announcements[key].has_input(tool_input)
            ]
            keys = same_input or same_name or keys
        # Prefer the call that was announced most often, because it has progressed furthest.
        if len(keys) > 1:
            most_sources = max(map(self._count_sources, keys))
            keys = [key for key in keys if self._count_sources(key) == most_sources]
        if keys:
            return keys[0]
        return None

    def _count_sources(self, key: str) -> int:
        """Return how many kinds of events, except permission requests, have announced a
        tool call.
        """
        announcement = self._announcements.get(key)
        if announcement is None:
            return 0
        return len(announcement.inputs_by_source.keys() - {PERMISSION_REQUEST})

    def record_ended_call(self, call_id: str, name: str, tool_input: object) -> None:
        """Store the name and arguments that a tool call's result contained."""
        if len(self._ended_calls) >= MAX_ENDED_CALLS:
            self._ended_calls.clear()
        self._ended_calls[call_id] = name, compute_input_fingerprint(tool_input)

    def differs_from_ended_call(self, call_id: str, name: str | None, tool_input: object) -> bool:
        """Return whether a result's name or arguments differ from those of the ended tool call with
        the same id.
        """
        ended_call = self._ended_calls.get(call_id)
        if ended_call is None:
            return False
        if name is None:
            return False
        return ended_call != (name, compute_input_fingerprint(tool_input))

    def remove(self, key: str) -> None:
        """Remove a tool call. The next call with the same id takes over the removed call's key."""
        self.calls.pop(key, None)
        self.hidden_keys.pop(key, None)
        announcement = self._announcements.pop(key, None)
        call_id = key
        if announcement is not None:
            call_id = announcement.call_id
        later_keys = self._later_keys.get(call_id)
        if later_keys is None:
            return
        if key in later_keys:
            later_keys.remove(key)
        elif later_keys:
            self._rename_key(later_keys.pop(0), call_id)
        if not later_keys:
            del self._later_keys[call_id]

    def remove_calls_hidden_from_stream(self) -> None:
        for key in list(self.hidden_keys):
            self.remove(key)

    def remove_visible_calls(self) -> None:
        """Remove all tool calls that are not hidden."""
        for key in reversed(list(self.calls)):  # newest first, so that no call's key changes
            self.remove(key)

    def _get_id(self, key: str) -> str:
        announcement = self._announcements.get(key)
        if announcement is None:
            return key
        return announcement.call_id

    def _rename_key(self, old_key: str, new_key: str) -> None:
        """Change a tool call's key. Its position among the open calls stays the same."""
        self._announcements[new_key] = self._announcements.pop(old_key)
        if old_key in self.hidden_keys:
            del self.hidden_keys[old_key]
            self.hidden_keys[new_key] = None
            return
        entries = [(new_key if key == old_key else key, entry) for key, entry in self.calls.items()]
        self.calls.clear()
        self.calls.update(entries)


def _is_equal_input(announced_input: object, tool_input: Any) -> bool:
    if announced_input.__class__ is int:
        return bool(announced_input == compute_input_fingerprint(tool_input))
    return bool(announced_input == tool_input)


MAX_DEFERRED_CALLS = 1000  # equal to the limit for open calls in a turn
# The limit for calls that reach the MCP server before the vendor announces them.
MAX_EARLY_CALLS = 100

ToolInput = Mapping[str, Any]


class DeferredToolCalls:
    """A turn's tool calls that were announced without arguments or without the tool's name, in
    order.

    The tools belong to an MCP server in the frontend's process. Such a call is written when the MCP
    server receives it together with its name and arguments.
    """

    def __init__(self) -> None:
        self._waiting_calls: dict[str, str] = {}  # vendor's call id → Claude's tool name
        # Vendor's call id → title and arguments of a call without a name.
        self._unnamed_calls: dict[str, tuple[str, ToolInput]] = {}
        self._early_calls: list[tuple[str, ToolInput]] = []
        self._written_ids: set[str] = set()  # ids of deferred calls that were written

    def add(self, call_id: str, name: str) -> ToolInput | None:
        """Add a tool call that was announced without arguments. If the arguments have already
        arrived, return them. Otherwise the call waits for its arguments.
        """
        if (
            call_id in self._waiting_calls
            or call_id in self._written_ids
            or len(self._waiting_calls) >= MAX_DEFERRED_CALLS
        ):
            return None
        for index, (early_name, tool_input) in enumerate(self._early_calls):
            if early_name == name:
                del self._early_calls[index]
                self._written_ids.add(call_id)
                return tool_input
        self._waiting_calls[call_id] = name
        return None

    def add_unnamed(self, call_id: str, title: str, tool_input: ToolInput) -> str | None:
        """Add a tool call that was announced without the tool's name. If the call has already
        arrived, return its name. Otherwise the call waits for its name.
        """
        if call_id in self._written_ids or len(self._unnamed_calls) >= MAX_DEFERRED_CALLS:
            return None
        indexes = [
            index
            for index, (_, early_input) in enumerate(self._early_calls)
            if early_input == tool_input
        ]
        indexes.sort(key=lambda index: not is_title_of_tool(title, self._early_calls[index][0]))
        if not indexes:
            self._unnamed_calls[call_id] = title, tool_input
            return None
        self._written_ids.add(call_id)
        return self._early_calls.pop(indexes[0])[0]

    def match_name_to_call(self, name: str, tool_input: ToolInput) -> str | None:
        """Return the id of a call that waits for its name and has these arguments, and stop waiting
        for the name. Return None if there is no such call.

        A call whose title contains the name is preferred.
        """
        call_ids = [
            call_id
            for call_id, (_, waiting_input) in self._unnamed_calls.items()
            if waiting_input == tool_input
        ]
        call_ids.sort(
            key=lambda call_id: not is_title_of_tool(self._unnamed_calls[call_id][0], name)
        )
        if not call_ids:
            return None
        del self._unnamed_calls[call_ids[0]]
        self._written_ids.add(call_ids[0])
        return call_ids[0]

    def match_input_to_call(self, name: str, tool_input: ToolInput) -> str | None:
        """Return the id of the first call of this tool that waits for arguments, and stop waiting
        for them.

        If no call is waiting, store the arguments and return None.
        """
        call_id = next(
            (
                call_id
                for call_id, waiting_name in self._waiting_calls.items()
                if waiting_name == name
            ),
            None,
        )
        if call_id is None:
            self._early_calls = [*self._early_calls[1 - MAX_EARLY_CALLS :], (name, tool_input)]
            return None
        del self._waiting_calls[call_id]
        self._written_ids.add(call_id)
        return call_id

    def remove_refused_call(self, call_id: str) -> bool:
        """Stop waiting for the arguments of a refused tool call, so that the call can be written
        without them. Return whether the call was waiting.
        """
        if self._waiting_calls.pop(call_id, None) is None:
            return False
        self._written_ids.add(call_id)
        return True

    def stop_waiting_for_input(self, call_id: str) -> bool:
        """Stop waiting for a tool call's arguments or name. Return whether the call was already
        written.
        """
        self._waiting_calls.pop(call_id, None)
        self._unnamed_calls.pop(call_id, None)
        return call_id in self._written_ids


def is_title_of_tool(title: str, name: str) -> bool:
    """Return whether a vendor's title of a call is a spelling of Claude's tool name, such as
    `server-tool` for `mcp__server__tool`.
    """
    return _join_letters_and_digits(title) == _join_letters_and_digits(
        name.removeprefix(MCP_PREFIX)
    )


def _join_letters_and_digits(text: str) -> str:
    return "".join([letter for letter in text if letter.isalnum()])
