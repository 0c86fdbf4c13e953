"""codex as a module by hand, as far as its ordinary runs go: what its profile is measured beside."""

from typing import Any

from shim.core.adapter.translator import Event, Translator
from shim.core.adapter.vendor import Adapter, LaunchSpec
from shim.core.claude.usage import create_usage
from shim.core.turn.turn import Turn
from shim.profiles.run.values import unwrap_shell

CHANGES = {"add": "Write", "update": "Edit", "delete": "Delete"}


class CodexByHand(Translator):
    """Whole items; usage is the total of a thread that begins here."""

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

    def _translate_message(self, item: Any, whole: bool) -> None:
        self.turn.add_block(item["text"])

    def _translate_reasoning(self, item: Any, whole: bool) -> None:
        self.turn.add_thinking_block(item["text"])

    def _translate_command(self, item: Any, whole: bool) -> None:
        own = self._id_prefix + item["id"]
        self.turn.add_tool_call(own, "Bash", {"command": unwrap_shell(item["command"])})
        if whole:
            self.turn.add_tool_result(
                own, item["aggregated_output"], item["status"] in ("failed", "declined")
            )

    def _translate_change(self, item: Any, whole: bool) -> None:
        for index, change in enumerate(item["changes"]):
            own = f"{self._id_prefix}{item['id']}:{index}"
            self.turn.add_tool_call(own, CHANGES[change["kind"]], {"file_path": change["path"]})
        if whole:
            for index in range(len(item["changes"])):
                self.turn.add_tool_result(
                    f"{self._id_prefix}{item['id']}:{index}",
                    item["status"],
                    item["status"] == "failed",
                )

    def _translate_mcp_call(self, item: Any, whole: bool) -> None:
        own = self._id_prefix + item["id"]
        self.turn.add_tool_call(own, f"mcp__{item['server']}__{item['tool']}", item["arguments"])
        if whole:
            said = item["error"]["message"] if item["error"] else item["result"]["content"]
            self.turn.add_tool_result(own, said, item["status"] == "failed")

    def _translate_plan(self, item: Any, whole: bool) -> None:
        states = {True: "completed", False: "pending"}
        todos = [
            {"content": one["text"], "activeForm": one["text"], "status": states[one["completed"]]}
            for one in item["items"]
        ]
        self.turn.add_tool_result(
            self._id_prefix + item["id"], "", False, "TodoWrite", {"todos": todos}
        )

    def _ignore_warning(self, item: Any, whole: bool) -> None:
        """Nothing is said."""

    def _start_session(self, event: Event) -> None:
        self.turn.start_session(session_id=event["thread_id"])

    def _finish_turn(self, event: Event) -> None:
        found = event["usage"]
        counted = create_usage(
            found["input_tokens"], found["cached_input_tokens"], found["cache_write_input_tokens"],
            found["output_tokens"], input_includes_cached=True,
        )  # fmt: skip
        self.turn.record_end(usage=counted, duration_ms=None, result=None)
        self.turn.finalize()


CODEX = Adapter(
    name="codex",
    programs=("codex",),
    translator_ref=lambda: CodexByHand,
    build_launch=lambda request: LaunchSpec(()),
    modes={},
    listed_tools=("Bash", "Delete", "Edit", "Task", "TodoWrite", "WebSearch", "Write"),
)
