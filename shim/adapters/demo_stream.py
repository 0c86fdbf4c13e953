"""Translates demo's stream. Each line is a JSON object with the type start, thinking, text, call,
result, reply or end.
"""

from shim.core.adapter.translator import Event, Translator


class DemoTranslator(Translator):
    """Translates demo's events by calling one method of the turn for each. This is the smallest
    possible translator.
    """

    def on_start(self, event: Event) -> None:
        self.turn.record_vendor_session_info(
            session_id=event["session"],
            cwd=event["cwd"],
            model=event.get("model"),
            tools=event["tools"],
        )

    def on_thinking(self, event: Event) -> None:
        self.turn.add_thinking(event["text"])

    def on_text(self, event: Event) -> None:
        self.turn.add_text(event["text"])

    def on_call(self, event: Event) -> None:
        self.turn.add_tool_call(event["id"], event["name"], event["input"])

    def on_result(self, event: Event) -> None:
        self.turn.add_tool_result(event["id"], event["output"], event.get("failed", False))

    def on_reply(self, event: Event) -> None:
        self.turn.end_message(event["usage"], event["reason"], event["cost"])

    def on_end(self, event: Event) -> None:
        self.turn.record_turn_end()
        self.turn.record_vendor_completion()
