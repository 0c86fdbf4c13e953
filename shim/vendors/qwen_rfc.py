"""qwen-rfc: the dialect of the Qwen structured I/O RFC (October 2025), which no released program is known to speak.

`qwen --input-format stream-json --output-format stream-json`, or `stream-chunk-json` for fragments; a Qwen Chat Request
a line on stdin. Documents only (qwen-rfc page): every fixture is handmade from them. Numbers of rows are the page's.

A line has an `object`, a `type` or an `error`. No line ends a turn: that is EOF, the event `Finished`, or, of a program
that stays for a conversation, a silence after a reply that stopped with its usage. `replies` says what the model said.
"""

from typing import Any

from shim.core.errors import FrontendError
from shim.core.reading.json_text import dump
from shim.core.turn.outcome import Exit
from shim.core.turn.turn import Turn
from shim.core.vendor.translator import Event
from shim.core.vendor.vendor import Launch, Request, Vendor
from shim.vendors.qwen_rfc_control import ControlTranslator
from shim.vendors.qwen_rfc_replies import CHUNK, COMPLETION, metadata_of
from shim.vendors.qwen_rfc_speech import NEW_SESSION, RfcSpeech, user_message
from shim.vendors.qwen_rfc_tools import TOOLS, error_text

BESIDE = frozenset(  # what may come at any moment, also between a reply and its usage
    ("result/heartbeat", "result/command_hint", "x-qwen-terminal", "x-qwen-ansi", "control_response")
)
PROTOCOL = 1  # the only version that the documents know
HEARTBEAT_SECONDS = 10.0  # the RFC's own suggestion (2.4)


class RfcTranslator(ControlTranslator):
    """The whole dialect: which line is what, and how a turn ends."""

    def __init__(self, turn: Turn, *, partial: bool = False) -> None:
        super().__init__(turn, partial=partial)
        self.handlers = {
            "x-qwen-thought": self._think,
            "x-qwen-tool-display": self._display,
            "x-qwen-session-event": self._session_event,
            "x-qwen-terminal": self._terminal,
            "x-qwen-ansi": self.ignored,
            "result/command": self._command,
            "result/command_hint": self.ignored,
            "result/heartbeat": self._heartbeat,
            "result/cancel": self._cancelled,
            "control_request": self._asked,
            "control_response": self.ignored,
        }

    def feed(self, event: Event) -> None:
        """By `object`, then by `type`, then by the presence of `error` (page, last section)."""
        kind, metadata = event.get("object"), metadata_of(event)
        chat = isinstance(kind, str) and kind.startswith(COMPLETION)
        if chat or "choices" in event or event.get("type") in ("result/command", "control_request"):
            self._follow(event, metadata)
        if not self._introduced:
            self._introduce(event, metadata)
        if kind == CHUNK or (not chat and "choices" in event and _has_deltas(event["choices"])):
            self._chunk(event, metadata)
            return
        if event.get("type") not in BESIDE:
            self._end_reply(None)
        if chat or "choices" in event:
            self._agree(event, metadata)
            self._completion(event, metadata)
        elif "type" in event or "error" not in event:
            self._event(event)
        else:
            self._fatal(event["error"])

    def _event(self, event: Event) -> None:
        handler = self.handlers.get(event.get("type"))
        if handler is None:
            self.turn.unknown(event.get("type", "untyped"), event)
        else:
            handler(event)

    def _agree(self, event: Event, metadata: dict[str, Any]) -> None:
        """The handshake, wherever it comes: what it says of the session, and in which version it speaks."""
        if "protocol_version" in metadata:
            self.turn.started(**self._facts(event, metadata))
            if str(metadata["protocol_version"]) != str(PROTOCOL):
                self.turn.unknown(f"protocol_version/{metadata['protocol_version']}", event)

    # -- the end --------------------------------------------------------------------------------------------

    def _fatal(self, error: Any) -> None:
        """Row 20: the program gives up, and should end."""
        status = error.get("code") if isinstance(error, dict) else None
        self._failed(error_text(error), status=status if status.__class__ is int else None)

    def eof(self, child_exit: Exit | None, stderr: str) -> None:
        """The end of its output is the end of its turn, if the last reply may be one (row 31)."""
        self._end_reply(None)
        self._parts.forget()
        turn = self.turn
        if turn.outcome is None and self._exit and (child_exit is None or child_exit.code == 0):
            reason = f": {self._notice}" if self._notice else ""
            self._failed(f"qwen ended its work with exit code {self._exit}{reason}", kind="vendor_error")
        elif turn.outcome is None and self._complete():
            self._ended()
        elif turn.outcome is None and self._notice and child_exit is not None and child_exit.code and not stderr:
            self._failed(self._notice)
        self._spend()


def _has_deltas(choices: Any) -> bool:
    return isinstance(choices, list) and all(isinstance(choice, dict) and "delta" in choice for choice in choices)


def launch(request: Request) -> Launch:
    """Model and session stand in the request; approval modes are flags of the program, which the RFC leaves alone."""
    invocation = request.invocation
    if request.resumed and invocation.fork_session:
        raise FrontendError(
            "qwen-rfc cannot fork a session", hint="resume it without --fork-session, or start a new one"
        )
    output = "stream-chunk-json" if invocation.partial else "stream-json"
    arguments = ["--input-format", "stream-json", "--output-format", output, *request.mode]
    if request.listens:
        return Launch((*arguments, *request.flag("--model", invocation.model)))
    session = request.resumed or NEW_SESSION
    message = user_message(request.with_system_prompt(), session=session, prompt=None, model=invocation.model or None)
    return Launch(tuple(arguments), dump(message) + b"\n")


VENDOR = Vendor(
    name="qwen-rfc",
    programs=("qwen",),
    translates=lambda: RfcTranslator,
    launch=launch,
    modes={
        "default": ("--approval-mode", "default"),
        "plan": ("--approval-mode", "plan"),
        "acceptEdits": ("--approval-mode", "auto-edit"),
        "dontAsk": ("--approval-mode", "default"),
        "bypassPermissions": ("--approval-mode", "yolo"),
    },
    tools=TOOLS,
    streams=True,
    resumes=True,
    timeouts={"heartbeat_timeout": HEARTBEAT_SECONDS},
    login="start `qwen` once and choose how with /auth, or set OPENAI_API_KEY (and OPENAI_BASE_URL)",
    speaks=RfcSpeech,
    prefixes=True,
    unreleased="no released program speaks it; translated as its RFC says (2025-10)",
)
