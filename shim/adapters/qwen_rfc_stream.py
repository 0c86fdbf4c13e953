"""The whole dialect of the Qwen RFC: which line is what, how a turn ends, and what is no reply.

A line has an `object`, a `type` or an `error`. No line ends a turn: that is EOF, the event
`Finished`, or, of a program that stays for a conversation, a silence after a reply that stopped
with its usage. Numbers of rows are those of the qwen-rfc page; `qwen_rfc_replies` says what the
model said.
"""

from collections.abc import Callable
from typing import Any

from shim.adapters.qwen_rfc_calls import join_message_text
from shim.adapters.qwen_rfc_input import build_error_response
from shim.adapters.qwen_rfc_replies import (
    CHUNK_OBJECT,
    COMPLETION_OBJECT,
    TOOL_FINISH_REASONS,
    QwenChatCompletionTranslator,
    read_event_metadata,
)
from shim.adapters.qwen_rfc_tools import (
    format_vendor_error,
    parse_call_arguments,
    translate_chat_tool_call,
)
from shim.core.adapter.translator import Event
from shim.core.claude.usage import parse_count_or_zero
from shim.core.reading.json_text import dump_json
from shim.core.reading.values import as_dict
from shim.core.turn.outcome import ChildExit
from shim.core.turn.turn import Turn

MAX_PENDING_REQUESTS = 1000  # that wait for their answer; a child that asks more is not waiting
MAX_NOTICE_CHARS = 2000  # of what it logged last, which may be the reason of a failure
CONFIRMATION_SUBTYPES = frozenset(("confirm_shell_commands", "confirm_action", "quit_confirmation"))
INTERLEAVED_TYPES = frozenset(  # what may come at any moment, also between a reply and its usage
    (
        "result/heartbeat",
        "result/command_hint",
        "x-qwen-terminal",
        "x-qwen-ansi",
        "control_response",
    )
)
PROTOCOL_VERSION = 1  # the only version that the documents know


class QwenRfcTranslator(QwenChatCompletionTranslator):
    """`_exit_code` is the exit code that a terminal event told of, `_notice` what was logged last.

    `_runs_tool`: a command started a tool, and nothing more. `_prompted_calls` are the calls that
    were asked about.
    """

    def __init__(self, turn: Turn, *, partial: bool = False) -> None:
        super().__init__(turn, partial=partial)
        self.handlers = {
            "x-qwen-thought": self._write_thought,
            "x-qwen-tool-display": self._translate_display,
            "x-qwen-session-event": self._translate_session_event,
            "x-qwen-terminal": self._read_terminal_event,
            "x-qwen-ansi": self.ignore_event,
            "result/command": self._translate_command_result,
            "result/command_hint": self.ignore_event,
            "result/heartbeat": self._record_heartbeat,
            "result/cancel": self._translate_cancel_result,
            "control_request": self._answer_control_request,
            "control_response": self.ignore_event,
        }
        self._session_event_handlers: dict[str, Callable[[str, Event], None]] = {
            "finished": self._finish_session,
            "maxtokens": self._record_token_limit,
            "chatcompressed": self._record_compaction,
            "usercancelled": self._interrupt_turn,
            "maxsessionturns": lambda text, event: self._fail_turn(
                text, kind="limit", subtype="error_max_turns"
            ),
            "sessiontokenlimitexceeded": lambda text, event: self._fail_turn(text, kind="limit"),
            "loopdetected": lambda text, event: self._fail_turn(text, kind="vendor_error"),
            "error": lambda text, event: self._fail_turn(text),
        }

    def _reset_state(self) -> None:
        super()._reset_state()
        self._exit_code = 0
        self._notice = ""
        self._runs_tool = False
        self._prompted_calls: set[str] = set()

    def feed(self, event: Event) -> None:
        """By `object`, then by `type`, then by the presence of `error` (page, last section)."""
        kind, metadata = event.get("object"), read_event_metadata(event)
        is_chat = isinstance(kind, str) and kind.startswith(COMPLETION_OBJECT)
        if (
            is_chat
            or "choices" in event
            or event.get("type") in ("result/command", "control_request")
        ):
            self._follow_prompt(event, metadata)
        if not self._has_session:
            self._start_session(event, metadata)
        if kind == CHUNK_OBJECT or (
            not is_chat and "choices" in event and _has_deltas(event["choices"])
        ):
            self._translate_chunk(event, metadata)
            return
        if event.get("type") not in INTERLEAVED_TYPES:
            self._end_reply(None)
        if is_chat or "choices" in event:
            self._read_handshake(event, metadata)
            self._translate_completion(event, metadata)
        elif "type" in event or "error" not in event:
            self._translate_event(event)
        else:
            self._fail_fatally(event["error"])

    def _translate_event(self, event: Event) -> None:
        handler = self.handlers.get(event.get("type"))
        if handler is None:
            self.turn.record_unknown_event(event.get("type", "untyped"), event)
        else:
            handler(event)

    def _read_handshake(self, event: Event, metadata: dict[str, Any]) -> None:
        """The handshake, wherever it comes: what it says of the session, and in which version it
        speaks.
        """
        if "protocol_version" in metadata:
            self.turn.record_vendor_session_info(**self._read_session_fields(event, metadata))
            if str(metadata["protocol_version"]) != str(PROTOCOL_VERSION):
                self.turn.record_unknown_event(
                    f"protocol_version/{metadata['protocol_version']}", event
                )

    # -- what happens to the session ---------------------------------------------------------------

    def _translate_session_event(self, event: Event) -> None:
        """Rows 14 to 19; the texts spell the names in two ways."""
        name = str(event.get("event") or "")
        handler = self._session_event_handlers.get(name.replace("_", "").lower())
        if handler is None:
            self.turn.record_unknown_event(f"x-qwen-session-event/{name}", event)
        else:
            handler(str(event.get("message") or name), event)

    def _finish_session(self, text: str, event: Event) -> None:
        """It ends the turn, unless it only ends a reply that asked for tools."""
        if (
            not self._has_open_reply
            and not self.turn.open_calls
            and self._stop_reason not in TOOL_FINISH_REASONS
        ):
            self._end_turn()

    def _record_token_limit(self, text: str, event: Event) -> None:
        if self._stop_reason == "stop":
            self._stop_reason = "length"
        self.turn.end_message(stop_reason="max_tokens")
        self._write_notice(text)

    def _record_compaction(self, text: str, event: Event) -> None:
        metrics = event.get("metrics")
        self.turn.write_compaction(
            "auto",
            parse_count_or_zero(metrics.get("original_tokens") if isinstance(metrics, dict) else 0),
        )

    def _interrupt_turn(self, text: str, event: Event) -> None:
        self._partial_calls.clear()
        self._record_spent_usage()
        self.turn.record_interrupt()
        self.turn.record_vendor_completion()

    def _read_terminal_event(self, event: Event) -> None:
        """Row 13: what the model said is in its message already; a log may be the reason of a
        failure.
        """
        if event.get("exit_code").__class__ is int:
            self._exit_code = event["exit_code"]
        text = event.get("text")
        if isinstance(text, str) and text and event.get("source") not in ("assistant", "tool"):
            self._notice = text[:MAX_NOTICE_CHARS]

    def _record_heartbeat(self, event: Event) -> None:
        """Row 28."""
        self.turn.record_heartbeat()

    # -- control -----------------------------------------------------------------------------------

    def _answer_control_request(self, event: Event) -> None:
        """Rows 24 to 26, in the flat form and the nested one."""
        nested = event.get("request")
        request = nested if isinstance(nested, dict) else event
        request_id, subtype = str(event["request_id"]), request.get("subtype")
        if subtype == "can_use_tool":
            self._ask_permission(request_id, request)
        elif subtype in CONFIRMATION_SUBTYPES:
            command = {"command": _read_command(request)}
            self._resume_turn()
            self.turn.request_permission(
                request_id, request_id, "Bash", command, ("run_shell_command", command)
            )
        elif len(self.outbox) < MAX_PENDING_REQUESTS:
            refusal = build_error_response(request_id, f"Unsupported control request: {subtype}")
            self.outbox.append(dump_json(refusal) + b"\n")

    def _ask_permission(self, request_id: str, request: dict[str, Any]) -> None:
        tool = request.get("tool")
        tool = as_dict(tool)
        name = str(tool.get("name") or request.get("tool_name") or "unknown")
        raw_arguments = tool.get("arguments", request.get("input"))
        diagnostics = self.turn.diagnostics
        claude_name, arguments = translate_chat_tool_call(name, raw_arguments, diagnostics)
        raw_id = request.get("tool_call_id") or request.get("tool_use_id") or tool.get("id")
        call_id = (
            self._resolve_call_id(raw_id)
            if raw_id
            else self._find_meant_call(claude_name, arguments) or request_id
        )
        if len(self._prompted_calls) < MAX_PENDING_REQUESTS:
            self._prompted_calls.add(call_id)
        self._write_partial_calls()
        self._resume_turn()
        self.turn.request_permission(
            request_id,
            call_id,
            claude_name,
            arguments,
            (name, parse_call_arguments(raw_arguments, diagnostics) or {}),
        )

    def _find_meant_call(self, name: str, arguments: dict[str, Any]) -> str:
        """The open call of a question without an id: one with the same arguments, else the first of
        that name.
        """
        candidates = [
            (call_id, open_call)
            for call_id, open_call in self.turn.open_calls.items()
            if open_call[1] == name
        ]
        exact_matches = [
            call_id
            for call_id, open_call in candidates
            if call_id not in self._prompted_calls and open_call[2] == arguments
        ]
        return next(
            iter(
                exact_matches
                or [call_id for call_id, _ in candidates if call_id not in self._prompted_calls]
            ),
            "",
        )

    def _translate_cancel_result(self, event: Event) -> None:
        """Row 29: `noop` says that nothing was running, so what we stopped was over."""
        outcome = self.turn.outcome_tracker.outcome
        if event.get("status") != "noop":
            self._interrupt_turn("", event)
        elif outcome is not None and outcome.kind == "interrupted":
            self.turn.record_vendor_completion()

    def _translate_command_result(self, event: Event) -> None:
        """Row 27: what a slash command did."""
        result = event["result"]
        kind = result.get("type")
        if kind == "submit_prompt":
            return
        if kind == "tool":
            self._runs_tool = True
        elif kind == "message":
            text = join_message_text(result.get("content"))
            self.turn.start_message()
            self.turn.add_block(text)
            if result.get("level") == "error":
                self._fail_turn(text)
            else:
                self._end_turn(local=True)
        elif kind in ("dialog", "quit", "load_history"):
            path = (event.get("command") or {}).get("path") or [kind]
            self._write_notice(
                f"/{' '.join(map(str, path))}: {kind.replace('_', ' ')}, which has nothing to show here"
            )
            self._end_turn(local=True)
        else:
            self.turn.record_unknown_event(f"result/command/{kind}", event)

    def _pause_after_result(self) -> None:
        if self._runs_tool:
            self._stop_reason = "stop"
            self._pause_turn()

    # -- the end -----------------------------------------------------------------------------------

    def _fail_fatally(self, error: Any) -> None:
        """Row 20: the program gives up, and should end."""
        status = as_dict(error).get("code")
        self._fail_turn(
            format_vendor_error(error), status=status if status.__class__ is int else None
        )

    def feed_eof(self, child_exit: ChildExit | None, stderr: str) -> None:
        """The end of its output is the end of its turn, if the last reply may be one (row 31)."""
        self._end_reply(None)
        self._partial_calls.clear()
        turn = self.turn
        if (
            turn.outcome_tracker.outcome is None
            and self._exit_code
            and (child_exit is None or child_exit.code == 0)
        ):
            reason = f": {self._notice}" if self._notice else ""
            self._fail_turn(
                f"qwen ended its work with exit code {self._exit_code}{reason}", kind="vendor_error"
            )
        elif turn.outcome_tracker.outcome is None and self._is_complete():
            self._end_turn()
        elif (
            turn.outcome_tracker.outcome is None
            and self._notice
            and child_exit is not None
            and child_exit.code
            and not stderr
        ):
            self._fail_turn(self._notice)
        self._record_spent_usage()


def _has_deltas(choices: Any) -> bool:
    return isinstance(choices, list) and all(
        isinstance(choice, dict) and "delta" in choice for choice in choices
    )


def _read_command(request: dict[str, Any]) -> str:
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
