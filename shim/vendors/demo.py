"""demo: bundled, needs nothing; plays a small session as a real child process, with real pauses.

Its child (`demo_child`) prints the events below, one JSON object a line: start, thinking, text, call, result, reply,
end. The vocabulary is this file's own.
"""

from shim.core.vendor.translator import Event, Translator
from shim.core.vendor.vendor import Launch, Request, Vendor, as_stdin


class DemoTranslator(Translator):
    """Event → verb, one to one: the smallest translator there is."""

    def on_start(self, event: Event) -> None:
        self.turn.started(session_id=event["session"], cwd=event["cwd"], model=event.get("model"), tools=event["tools"])

    def on_thinking(self, event: Event) -> None:
        self.turn.thinking(event["text"])

    def on_text(self, event: Event) -> None:
        self.turn.text(event["text"])

    def on_call(self, event: Event) -> None:
        self.turn.tool_use(event["id"], event["name"], event["input"])

    def on_result(self, event: Event) -> None:
        self.turn.tool_result(event["id"], event["output"], event.get("failed", False))

    def on_reply(self, event: Event) -> None:
        self.turn.message_end(event["usage"], event["reason"], event["cost"])

    def on_end(self, event: Event) -> None:
        self.turn.ended()
        self.turn.settle()


def launch(request: Request) -> Launch:
    """The child gets the prompt on stdin, and the id of a session that goes on; a play has no memory."""
    identity = request.resumed or request.invocation.session_id
    return Launch((identity,) if identity else (), as_stdin(request.prompt))


VENDOR = Vendor(
    name="demo",
    programs=(),
    bundled="shim.commands.demo_child",
    translator=DemoTranslator,
    launch=launch,
    modes=dict.fromkeys(("default", "plan", "acceptEdits", "dontAsk", "auto", "bypassPermissions"), ()),
    listed=("Read", "Edit", "Bash"),
    streams=True,
    resumes=True,
)
