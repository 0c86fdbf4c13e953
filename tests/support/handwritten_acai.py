"""A handwritten adapter of acai and its successor cake. Their profiles are compared with it.

It prints complete messages only. A `role: tool` message is the result of the oldest open call;
0.1.0 never prints the results of calls. A message may come before the output of an earlier call, as
in the example of acai's documentation, so a text is held for one event while calls are open.
"""

import re
from typing import Any

from shim.core.adapter.adapter import Adapter, LaunchSpec
from shim.core.adapter.tools import (
    Arguments,
    ToolMapping,
    build_edit_list_converter,
    convert_seconds_to_ms,
    list_claude_names,
    translate_tool_call,
)
from shim.core.adapter.translator import Event, Translator
from shim.core.claude.usage import Usage, create_usage
from shim.core.reading.json_repair import parse_json_text
from shim.core.reading.json_text import dump_json
from shim.core.turn.outcome import ChildExit
from shim.core.turn.turn import Turn


def convert_line_range(tool_input: Arguments) -> tuple[str, Arguments]:
    """Convert the Read{start_line, end_line} of acai and cake to offset and limit."""
    start, end = tool_input.pop("start_line", None), tool_input.pop("end_line", None)
    if isinstance(start, int):
        tool_input["offset"] = start
    if isinstance(end, int):
        tool_input["limit"] = end - (start if isinstance(start, int) else 1) + 1
    return "Read", tool_input


TOOLS = {
    "shell": ToolMapping("Bash", convert={"timeout": convert_seconds_to_ms}),
    "Shell": ToolMapping("Bash", convert={"timeout": convert_seconds_to_ms}),
    "Bash": ToolMapping(
        "Bash", {"reason": "description"}, convert={"timeout": convert_seconds_to_ms}
    ),
    "Read": ToolMapping("Read", {"path": "file_path"}, reshape=convert_line_range),
    "Write": ToolMapping("Write", {"path": "file_path"}),
    "Edit": ToolMapping(
        "Edit", {"path": "file_path"}, reshape=build_edit_list_converter("old_text", "new_text")
    ),
}
FAILED = re.compile(r"\[exit:(-?[1-9]\d*) \| ")  # the footer of a failed shell command
LIMITS = {"max_turns": "error_max_turns"}


class AcaiTranslator(Translator):
    """Translates all three dialects, which differ in the first and the last event."""

    def __init__(self, turn: Turn, *, partial: bool = False) -> None:
        super().__init__(turn, partial=partial)
        self._buffered_blocks: list[tuple[str, str]] = []
        self._answers = False

    def _flush_blocks(self, *, fill: bool = True) -> None:
        if fill and self.turn.open_calls:
            self.turn.fill_open_call_results()
        for kind, text in self._buffered_blocks:
            (self.turn.add_block if kind == "text" else self.turn.add_thinking_block)(text)
        self._buffered_blocks.clear()

    def on_init(self, event: Event) -> None:
        tools = list_claude_names(TOOLS, event.get("tools"))
        self.turn.record_vendor_session_info(
            session_id=event.get("session_id"), cwd=event.get("cwd"), tools=tools
        )

    def on_task_start(self, event: Event) -> None:
        self.turn.record_vendor_session_info(session_id=event.get("session_id"))

    def on_message(self, event: Event) -> None:
        role = event["role"]
        if role == "tool":
            oldest = event.get("call_id") or next(iter(self.turn.open_calls), "")
            self.on_function_call_output({"call_id": oldest, "output": event.get("content")})
            return
        if self._buffered_blocks:
            self._flush_blocks()
        if role == "assistant":
            if self.turn.open_calls:
                if event["content"].__class__ is not str:
                    raise TypeError("the content of a message is not text")
                self._buffered_blocks.append(("text", event["content"]))
            else:
                self.turn.add_block(event["content"])

    def on_reasoning(self, event: Event) -> None:
        if self._buffered_blocks:
            self._flush_blocks()
        parts = event.get("summary") or event.get("content") or []
        texts = [part if isinstance(part, str) else part.get("text", "") for part in parts]
        if self.turn.open_calls:
            self._buffered_blocks.append(("thinking", "\n\n".join(texts)))
        else:
            self.turn.add_thinking_block("\n\n".join(texts))

    def on_function_call(self, event: Event) -> None:
        if self._buffered_blocks:
            # Thinking between two calls of a batch does not end the batch, because their outputs may come
            # together.
            self._flush_blocks(fill=any(kind == "text" for kind, _ in self._buffered_blocks))
        tool_input = event.get("arguments")
        if isinstance(tool_input, str):
            tool_input = parse_json_text(tool_input, self.turn.diagnostics)
        name, claude = translate_tool_call(TOOLS, event["name"], tool_input)
        self.turn.add_tool_call(event.get("call_id") or event.get("id", ""), name, claude)

    def on_function_call_output(self, event: Event) -> None:
        text = event.get("output")
        if text.__class__ is not str:
            text = dump_json(self.turn.sure(text)).decode()
        failed = text.startswith("Error:") or (
            "[exit:" in text and FAILED.search(text, len(text) - 80) is not None
        )
        self._answers = True
        self.turn.add_tool_result(event.get("call_id", ""), text, failed)
        if self._buffered_blocks and not self.turn.open_calls:
            self._flush_blocks()

    def on_result(self, event: Event) -> None:
        failed = event.get("is_error", not event.get("success"))
        # Only the oldest dialect, which does not print the results of calls, leaves calls open at a
        # successful end.
        self._flush_blocks(fill=not failed and not self._answers)
        fields: dict[str, Any] = {
            "usage": convert_usage(event.get("usage")),
            "duration_ms": event.get("duration_ms"),
            "result": event.get("result"),
        }
        for denial in map(str, event.get("permission_denials") or ()):
            tool, _, detail = denial.partition(": ")
            self.turn.add_denial(denial, tool.capitalize(), {"command": detail})
        if event.get("subtype") == "interrupted":
            self.turn.record_interrupt(**fields)
        elif failed:
            subtype = LIMITS.get(str(event.get("limit")))
            message = str(event.get("error") or event.get("subtype") or "error").removeprefix(
                "Error: "
            )
            self.turn.record_failure(
                message, kind="limit" if "limit" in event else None, subtype=subtype, **fields
            )
        else:
            self.turn.record_turn_end(**fields)
        self.turn.record_vendor_completion()

    on_task_complete = on_result

    def on_replay_error(self, event: Event) -> None:
        self.turn.record_failure(str(event.get("error")), api=False)

    on_hook_event = on_session_meta = on_prompt_context = on_skill_activated = (
        Translator.ignore_event
    )

    def feed_eof(self, child_exit: ChildExit | None, stderr: str) -> None:
        self._flush_blocks(fill=False)


def convert_usage(raw_usage: object) -> Usage | None:
    """Return Claude's usage. acai's input_tokens include the cached tokens."""
    if not isinstance(raw_usage, dict):
        return None
    details = raw_usage.get("input_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    return create_usage(
        raw_usage.get("input_tokens"),
        cached,
        0,
        raw_usage.get("output_tokens"),
        input_includes_cached=True,
    )


class HandwrittenAcai(Adapter):
    name = "acai"
    programs = ("acai",)
    translator_class = AcaiTranslator
    tools = TOOLS
    listed_tools = ("Bash", "Edit", "Read", "Write")

    def build_launch(self, request):
        return LaunchSpec(())


ACAI = HandwrittenAcai()
CAKE = ACAI.copy_with(name="cake", programs=("cake",))
