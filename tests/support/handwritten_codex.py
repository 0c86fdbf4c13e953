"""A handwritten adapter for ordinary runs of codex. The speed of its profile is compared with it."""

from typing import Any

from shim.core.adapter.adapter import Adapter, LaunchSpec
from shim.core.adapter.translator import Event, Translator
from shim.core.claude.usage import create_usage
from shim.core.turn.turn import Turn
from shim.profiles.run.values import unwrap_shell_command

CHANGES = {"add": "Write", "update": "Edit", "delete": "Delete"}


class CodexByHand(Translator):
    """Translates complete items. Usage is the total of a thread that starts here."""

    def __init__(self, turn: Turn, *, partial: bool = False) -> None:
        super().__init__(turn, partial=partial)
        self._id_prefix = f"{turn.writer.create_uuid()[-6:]}_"
        self._items = {
            "agent_message": self._translate_message,
            "reasoning": self._translate_reasoning,
            "command_execution": self._translate_command,
            "file_change": self._translate_change,
            "mcp_tool_call": self._translate_mcp_call,
            "todo_list": self._translate_plan,
            "error": self._ignore_warning,
        }
        self.handlers = {
            "thread.started": self._start_session,
            "turn.started": self.ignore_event,
            "item.started": self._translate_item,
            "item.completed": self._translate_item,
            "turn.completed": self._finish_turn,
        }

    def _translate_item(self, event: Event) -> None:
        item = event["item"]
        self._items[item["type"]](item, event["type"] == "item.completed")

    def _translate_message(self, item: Any, is_completed: bool) -> None:
        self.turn.add_block(item["text"])

    def _translate_reasoning(self, item: Any, is_completed: bool) -> None:
        self.turn.add_thinking_block(item["text"])

    def _translate_command(self, item: Any, is_completed: bool) -> None:
        call_id = self._id_prefix + item["id"]
        self.turn.add_tool_call(call_id, "Bash", {"command": unwrap_shell_command(item["command"])})
        if is_completed:
            self.turn.add_tool_result(
                call_id, item["aggregated_output"], item["status"] in ("failed", "declined")
            )

    def _translate_change(self, item: Any, is_completed: bool) -> None:
        for index, change in enumerate(item["changes"]):
            call_id = f"{self._id_prefix}{item['id']}:{index}"
            self.turn.add_tool_call(call_id, CHANGES[change["kind"]], {"file_path": change["path"]})
        if is_completed:
            for index in range(len(item["changes"])):
                self.turn.add_tool_result(
                    f"{self._id_prefix}{item['id']}:{index}",
                    item["status"],
                    item["status"] == "failed",
                )

    def _translate_mcp_call(self, item: Any, is_completed: bool) -> None:
        call_id = self._id_prefix + item["id"]
        self.turn.add_tool_call(
            call_id, f"mcp__{item['server']}__{item['tool']}", item["arguments"]
        )
        if is_completed:
            content = item["error"]["message"] if item["error"] else item["result"]["content"]
            self.turn.add_tool_result(call_id, content, item["status"] == "failed")

    def _translate_plan(self, item: Any, is_completed: bool) -> None:
        states = {True: "completed", False: "pending"}
        todos = [
            {
                "content": todo["text"],
                "activeForm": todo["text"],
                "status": states[todo["completed"]],
            }
            for todo in item["items"]
        ]
        self.turn.add_tool_result(
            self._id_prefix + item["id"], "", False, "TodoWrite", {"todos": todos}
        )

    def _ignore_warning(self, item: Any, is_completed: bool) -> None:
        pass

    def _start_session(self, event: Event) -> None:
        self.turn.record_vendor_session_info(session_id=event["thread_id"])

    def _finish_turn(self, event: Event) -> None:
        raw_usage = event["usage"]
        converted_usage = create_usage(
            raw_usage["input_tokens"], raw_usage["cached_input_tokens"], raw_usage["cache_write_input_tokens"],
            raw_usage["output_tokens"], input_includes_cached=True,
        )  # fmt: skip
        self.turn.record_turn_end(usage=converted_usage, duration_ms=None, result=None)
        self.turn.record_vendor_completion()


class HandwrittenCodex(Adapter):
    name = "codex"
    programs = ("codex",)
    translator_class = CodexByHand
    listed_tools = ("Bash", "Delete", "Edit", "Task", "TodoWrite", "WebSearch", "Write")

    def build_launch(self, request):
        return LaunchSpec(())


CODEX = HandwrittenCodex()
