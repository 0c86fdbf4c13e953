"""Translates the stream of `codex exec`. Data that is missing in the stream is read from codex's
own record of the thread (`codex_rollout`).

A `file_change` item only names its files, so it is written when it ends, with the file contents
from the record. Tool calls without an item in the stream are written before the next item. The
stream does not name the model. Without a record, for example in a replay, the profile's rules alone
translate the stream.
"""

from typing import Any

from shim.adapters.codex_items import CompletedCodexItems, describe_agent_states
from shim.adapters.codex_rollout import (
    CHANGE_TOOL_NAMES,
    ClaudeCall,
    CodexRollout,
    UnstreamedToolCall,
    build_file_change_tool_calls,
)
from shim.core.adapter.tools import resolve_argument_paths
from shim.core.adapter.translator import Event, Translator
from shim.core.reading.values import as_dict, get_text
from shim.core.turn.context import VendorDataReader
from shim.core.turn.outcome import ChildExit
from shim.core.turn.turn import Turn
from shim.profiles.profile import ProfileTranslator

MAX_PENDING_CHANGES = 100  # file changes that have not ended; codex makes one at a time
# Before each of these items is written, the record is searched for calls without an item. Warnings
# are not listed, because a warning may come before the record contains the start of the turn.
CHECKPOINT_ITEMS = (
    "agent_message",
    "reasoning",
    "command_execution",
    "mcp_tool_call",
    "file_change",
)
TURN_END_EVENTS = ("turn.completed", "turn.failed")


class _CodexState:
    """The translator's state: started file changes, completed items, the todo list, the thread's
    record, and the translator for a recorded app-server.
    """

    def __init__(self) -> None:
        self.pending_changes: dict[str, Event] = {}
        self.completed_items = CompletedCodexItems()
        # id and entries of the latest todo list
        self.todo_list: tuple[object, object] = (None, None)
        self.todo_list_count = 0
        self.rollout: CodexRollout | None = None
        self.server_translator: Translator | None = None


class CodexTranslator(ProfileTranslator):
    """Adds data that is missing in the stream: the contents of edits and writes, and refused tool
    calls.
    """

    def __init__(self, turn: Turn, *, partial: bool = False) -> None:
        super().__init__(turn, partial=partial)
        self._state = _CodexState()
        if turn.config.data_dir is None:  # lines of a recorded app-server have no type
            self.untyped = True  # type: ignore[misc]

    def on_event(self, event: Event) -> bool:
        item = event.get("item")
        kind = event.get("type")
        item_type = as_dict(item).get("type")
        is_repeated = False
        if isinstance(item, dict):
            is_repeated = self._is_repeated(item, str(kind))
            if item_type == "todo_list" and not is_repeated:
                self._write_todo_list(event, item)
                return True
            if item_type == "collab_tool_call" and not is_repeated:
                states = describe_agent_states(item.get("agents_states"))
                self.handlers[event["type"]]({**event, "item": {**item, "agents_states": states}})
                return True
        data_dir = self.turn.config.data_dir
        if data_dir is None:
            if is_repeated:
                return True
            return self._translate_server_line(event)
        if item_type not in CHECKPOINT_ITEMS and kind not in TURN_END_EVENTS:
            return is_repeated
        rollout = self._open_rollout(data_dir)
        self._write_missing_calls(rollout)
        if kind in TURN_END_EVENTS:
            self._write_pending_changes()
        if is_repeated or not isinstance(item, dict) or item_type != "file_change":
            return is_repeated
        return self._translate_changes(event, item, rollout)

    def _open_rollout(self, data_dir: VendorDataReader) -> CodexRollout:
        """Return the session's record, which is opened at the first event that needs it."""
        if self._state.rollout is None:
            session_id = self.turn.conversation.vendor_session_id or ""
            self._state.rollout = CodexRollout(data_dir, session_id)
        return self._state.rollout

    def _write_missing_calls(self, rollout: CodexRollout) -> None:
        """Write the recorded tool calls that have no item in the stream."""
        missing_calls = rollout.take_unstreamed_tool_calls()
        self.turn.update_message(model=rollout.model)
        for call in missing_calls:
            self._write_missing_call(call)

    def start_turn(self, turn: Turn) -> None:
        super().start_turn(turn)
        self._state.completed_items.clear()
        self._state.todo_list = None, None

    def _is_repeated(self, item: Event, kind: str) -> bool:
        """Return whether an event repeats an item that was already completed in this turn. If the
        event completes a new item, record the item.
        """
        if self._state.completed_items.has_item(item):
            self.diagnostics.record("repeated_item", item.get("id"))
            return True
        if kind == "item.completed":
            self._state.completed_items.add_item(item)
        return False

    def _write_todo_list(self, event: Event, item: Event) -> None:
        """Write each state of a todo list as a call with a new id, because codex uses the same id
        for all states.
        """
        state = item.get("id"), item.get("items")
        if state == self._state.todo_list:
            return
        self._state.todo_list = state
        self._state.todo_list_count += 1
        state_id = f"{item.get('id')}.{self._state.todo_list_count}"
        self.handlers[event["type"]]({**event, "item": {**item, "id": state_id}})

    def on_exit(self, child_exit: ChildExit | None, stderr: str) -> None:
        self._write_pending_changes()

    def choose_translator_for_unknown_event(self, event: Event) -> Translator:
        if self.turn.config.data_dir is None and self._translate_server_line(event):
            return self
        return super().choose_translator_for_unknown_event(event)

    def _translate_server_line(self, event: Event) -> bool:
        """Translate a line from a recorded app-server. Such a line has no type. Return False for
        any other line.
        """
        if "type" in event or not ("method" in event or "id" in event):
            return False
        if self._state.server_translator is None:
            from shim.adapters.codex_thread_stream import CodexThreadTranslator

            self._state.server_translator = CodexThreadTranslator(self.turn, partial=self.partial)
        self._state.server_translator.feed(event)
        self.turn = self._state.server_translator.turn
        return True

    def _translate_changes(self, event: Event, item: Event, rollout: CodexRollout) -> bool:
        """Store a file change item until it ends, and then write it with the file contents.

        Return False if the profile's rules must translate the item.
        """
        item_id = str(item.get("id"))
        changes = _parse_changes(item)
        if changes is None:
            return False
        if event["type"] == "item.started":
            if len(self._state.pending_changes) >= MAX_PENDING_CHANGES or not self._allows_changes(
                changes
            ):
                return False
            self._state.pending_changes[item_id] = event
            return True
        self._state.pending_changes.pop(item_id, None)
        recorded = None
        if event["type"] == "item.completed":
            recorded = rollout.take_recorded_file_change({path for path, _ in changes})
        if recorded is None:
            return False
        self._write_changes(item, [path for path, _ in changes], recorded)
        return True

    def _write_changes(self, item: Event, paths: list[str], recorded: dict[str, Any]) -> None:
        """Write the tool calls for a file change item, and their results. `recorded` has the file
        contents.
        """
        failed = item.get("status") == "failed"
        output_key = "stderr" if failed else "stdout"
        output = get_text(recorded, output_key, get_text(item, "status")).strip()
        texts: dict[str, str] = {}
        for index, path in enumerate(paths):
            change = recorded["changes"][path]
            new_path = change.get("move_path")
            text = output
            if new_path and not failed:
                text = f"{output}\n{path} is now {new_path}"
            calls = build_file_change_tool_calls(path, change)
            texts |= dict.fromkeys(self._write_calls(f"{item.get('id')}:{index}", calls), text)
        for call_id, text in texts.items():
            self.turn.add_tool_result(call_id, text, failed)

    def _write_calls(
        self, item_id: str, calls: list[ClaudeCall], *, is_denied: bool = False
    ) -> list[str]:
        """Write tool calls that are missing in the stream or that the stream combines into one
        item. Return their ids.
        """
        call_ids = [
            f"{self.id_prefix}{item_id}" + (f".{number}" if number else "")
            for number in range(len(calls))
        ]
        for call_id, (name, arguments) in zip(call_ids, calls, strict=True):
            if is_denied:
                self.turn.add_denial(call_id, name, arguments)
            self.turn.add_tool_call(call_id, name, arguments)
        return call_ids

    def _write_missing_call(self, missing_call: UnstreamedToolCall) -> None:
        calls = [
            (name, resolve_argument_paths(arguments, self.turn.config.cwd))
            for name, arguments in missing_call.calls
        ]
        for call_id in self._write_calls(
            missing_call.call_id, calls, is_denied=missing_call.is_denied
        ):
            self.turn.add_tool_result(call_id, missing_call.output, missing_call.is_error)

    def _write_pending_changes(self) -> None:
        """Translate the file changes that codex has started but not completed, by the profile's rules."""
        for event in self._state.pending_changes.values():
            self.handlers[event["type"]](event)
        self._state.pending_changes.clear()

    def _allows_changes(self, changes: list[tuple[str, str]]) -> bool:
        """Return whether all changes of an item are allowed. A denied change must be written
        immediately, so that the turn is stopped.
        """
        evaluator = self.turn.config.evaluator
        if evaluator is None:
            return True
        return not any(
            evaluator.is_rule_violation(CHANGE_TOOL_NAMES.get(kind, "Edit"), {"file_path": path})
            for path, kind in changes
        )


def _parse_changes(item: Event) -> list[tuple[str, str]] | None:
    """Return the path and kind of each file change in an item, or None if the item has an unknown
    form.
    """
    changes = item.get("changes")
    if not isinstance(changes, list) or not all(isinstance(change, dict) for change in changes):
        return None
    pairs = [(change.get("path"), change.get("kind")) for change in changes]
    if all(isinstance(path, str) and isinstance(kind, str) for path, kind in pairs):
        return pairs
    return None
