"""The whole dialect of the Qwen RFC: which line is what, how a turn ends, and what is no reply.

A line has an `object`, a `type` or an `error`. No line ends a turn: that is EOF, the event
`Finished`, or, of a program that stays for a conversation, a silence after a reply that stopped
with its usage. Numbers of rows are those of the qwen-rfc page; `qwen_rfc_replies` says what the
model said.
"""

from collections.abc import Callable
from typing import Any

from shim.adapters.qwen_rfc_calls import words
from shim.adapters.qwen_rfc_replies import ASKING, CHUNK, COMPLETION, RepliesTranslator, metadata_of
from shim.adapters.qwen_rfc_speech import failure
from shim.adapters.qwen_rfc_tools import called, error_text, own
from shim.core.adapter.translator import Event
from shim.core.claude.usage import count
from shim.core.reading.json_text import dump
from shim.core.turn.outcome import Exit
from shim.core.turn.turn import Turn

REQUESTS = 1000  # that wait for their answer; a child that asks more is not waiting
NOTICE_CHARACTERS = 2000  # of what it logged last, which may be the reason of a failure
CONFIRMATIONS = frozenset(("confirm_shell_commands", "confirm_action", "quit_confirmation"))
BESIDE = frozenset(  # what may come at any moment, also between a reply and its usage
    (
        "result/heartbeat",
        "result/command_hint",
        "x-qwen-terminal",
        "x-qwen-ansi",
        "control_response",
    )
)
PROTOCOL = 1  # the only version that the documents know


class RfcTranslator(RepliesTranslator):
    """`_exit` is the exit code that a terminal event told of, `_notice` what was logged last.

    `_runs`: a command started a tool, and nothing more. `_questions` are the calls that were asked
    about.
    """

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
        self._session_events: dict[str, Callable[[str, Event], None]] = {
            "finished": self._finished_event,
            "maxtokens": self._cut,
            "chatcompressed": self._compressed,
            "usercancelled": self._stopped,
            "maxsessionturns": lambda text, event: self._failed(
                text, kind="limit", subtype="error_max_turns"
            ),
            "sessiontokenlimitexceeded": lambda text, event: self._failed(text, kind="limit"),
            "loopdetected": lambda text, event: self._failed(text, kind="vendor_error"),
            "error": lambda text, event: self._failed(text),
        }

    def _forget(self) -> None:
        super()._forget()
        self._exit = 0
        self._notice = ""
        self._runs = False
        self._questions: set[str] = set()

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
        """The handshake, wherever it comes: what it says of the session, and in which version it
        speaks.
        """
        if "protocol_version" in metadata:
            self.turn.started(**self._facts(event, metadata))
            if str(metadata["protocol_version"]) != str(PROTOCOL):
                self.turn.unknown(f"protocol_version/{metadata['protocol_version']}", event)

    # -- what happens to the session ---------------------------------------------------------------

    def _session_event(self, event: Event) -> None:
        """Rows 14 to 19; the texts spell the names in two ways."""
        name = str(event.get("event") or "")
        handler = self._session_events.get(name.replace("_", "").lower())
        if handler is None:
            self.turn.unknown(f"x-qwen-session-event/{name}", event)
        else:
            handler(str(event.get("message") or name), event)

    def _finished_event(self, text: str, event: Event) -> None:
        """It ends the turn, unless it only ends a reply that asked for tools."""
        if not self._replying and not self.turn.open and self._reason not in ASKING:
            self._ended()

    def _cut(self, text: str, event: Event) -> None:
        if self._reason == "stop":
            self._reason = "length"
        self.turn.message_end(stop_reason="max_tokens")
        self._note(text)

    def _compressed(self, text: str, event: Event) -> None:
        metrics = event.get("metrics")
        self.turn.compacted(
            "auto", count(metrics.get("original_tokens") if isinstance(metrics, dict) else 0)
        )

    def _stopped(self, text: str, event: Event) -> None:
        self._parts.forget()
        self._spend()
        self.turn.interrupted()
        self.turn.settle()

    def _terminal(self, event: Event) -> None:
        """Row 13: what the model said is in its message already; a log may be the reason of a
        failure.
        """
        if event.get("exit_code").__class__ is int:
            self._exit = event["exit_code"]
        text = event.get("text")
        if isinstance(text, str) and text and event.get("source") not in ("assistant", "tool"):
            self._notice = text[:NOTICE_CHARACTERS]

    def _heartbeat(self, event: Event) -> None:
        """Row 28."""
        self.turn.heartbeat()

    # -- control -----------------------------------------------------------------------------------

    def _asked(self, event: Event) -> None:
        """Rows 24 to 26, in the flat form and the nested one."""
        nested = event.get("request")
        request = nested if isinstance(nested, dict) else event
        identity, subtype = str(event["request_id"]), request.get("subtype")
        if subtype == "can_use_tool":
            self._may_run(identity, request)
        elif subtype in CONFIRMATIONS:
            command = {"command": _command_of(request)}
            self._go_on()
            self.turn.permission(
                identity, identity, "Bash", command, ("run_shell_command", command)
            )
        elif len(self.outbox) < REQUESTS:
            refusal = failure(identity, f"Unsupported control request: {subtype}")
            self.outbox.append(dump(refusal) + b"\n")

    def _may_run(self, identity: str, request: dict[str, Any]) -> None:
        tool = request.get("tool")
        tool = tool if isinstance(tool, dict) else {}
        name = str(tool.get("name") or request.get("tool_name") or "unknown")
        given = tool.get("arguments", request.get("input"))
        account = self.turn.account
        claude, arguments = called(name, given, account)
        said = request.get("tool_call_id") or request.get("tool_use_id") or tool.get("id")
        call = self._identity(said) if said else self._meant(claude, arguments) or identity
        if len(self._questions) < REQUESTS:
            self._questions.add(call)
        self._say_parts()
        self._go_on()
        self.turn.permission(identity, call, claude, arguments, (name, own(given, account) or {}))

    def _meant(self, name: str, arguments: dict[str, Any]) -> str:
        """The open call of a question without an id: one with the same arguments, else the first of
        that name.
        """
        waiting = [(call, said) for call, said in self.turn.open.items() if said[1] == name]
        same = [
            call for call, said in waiting if call not in self._questions and said[2] == arguments
        ]
        return next(iter(same or [call for call, _ in waiting if call not in self._questions]), "")

    def _cancelled(self, event: Event) -> None:
        """Row 29: `noop` says that nothing was running, so what we stopped was over."""
        outcome = self.turn.outcome
        if event.get("status") != "noop":
            self._stopped("", event)
        elif outcome is not None and outcome.kind == "interrupted":
            self.turn.settle()

    def _command(self, event: Event) -> None:
        """Row 27: what a slash command did."""
        result = event["result"]
        kind = result.get("type")
        if kind == "submit_prompt":
            return
        if kind == "tool":
            self._runs = True
        elif kind == "message":
            text = words(result.get("content"))
            self.turn.message()
            self.turn.say(text)
            if result.get("level") == "error":
                self._failed(text)
            else:
                self._ended(local=True)
        elif kind in ("dialog", "quit", "load_history"):
            path = (event.get("command") or {}).get("path") or [kind]
            self._note(
                f"/{' '.join(map(str, path))}: {kind.replace('_', ' ')}, which has nothing to show here"
            )
            self._ended(local=True)
        else:
            self.turn.unknown(f"result/command/{kind}", event)

    def _answered(self) -> None:
        if self._runs:
            self._reason = "stop"
            self._pause()

    # -- the end -----------------------------------------------------------------------------------

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
            self._failed(
                f"qwen ended its work with exit code {self._exit}{reason}", kind="vendor_error"
            )
        elif turn.outcome is None and self._complete():
            self._ended()
        elif (
            turn.outcome is None
            and self._notice
            and child_exit is not None
            and child_exit.code
            and not stderr
        ):
            self._failed(self._notice)
        self._spend()


def _has_deltas(choices: Any) -> bool:
    return isinstance(choices, list) and all(
        isinstance(choice, dict) and "delta" in choice for choice in choices
    )


def _command_of(request: dict[str, Any]) -> str:
    """What a confirmation is about, as a command."""
    commands = request.get("commands")
    if isinstance(commands, list):
        return "\n".join(map(str, commands))
    return str(
        next(
            (request[key] for key in ("command", "prompt", "message") if request.get(key)),
            request["subtype"],
        )
    )
