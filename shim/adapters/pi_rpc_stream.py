"""Translates pi's RPC: the events of its stream, responses to requests, and dialogs of its
extensions.

A run ends with `agent_settled`. Versions before 0.80.4 do not have this event. They report a retry
or a compaction immediately after `agent_end`, so the run has ended if nothing follows for some
time.
"""

from typing import Any

import orjson

from shim.adapters.pi import TOOLS
from shim.adapters.pi_dialogs import DIALOG_METHODS
from shim.adapters.pi_rpc_session import (
    ABORT,
    COMPACTION,
    IDLE_CHECK,
    MODELS,
    PROMPT,
    SETTING,
    STATE,
    STEER,
    PiRpcSession,
)
from shim.adapters.pi_stream import DIALOG_TYPE, EXTENSION_NAME, PiTranslator
from shim.core.adapter.tools import Arguments, resolve_argument_paths, translate_tool_call
from shim.core.adapter.translator import Event
from shim.core.claude.argv.models import OfferedModel, parse_offered_models
from shim.core.claude.permissions import QUESTION_TOOL
from shim.core.reading.values import as_dict, list_dicts
from shim.core.turn.open_calls import normalize_call_id
from shim.core.turn.outcome import ChildExit
from shim.core.turn.turn import Turn
from shim.profiles.rpc.form import MAX_OPEN_REQUESTS
from shim.profiles.rpc.session import RpcResponse
from shim.profiles.rpc.translator import RpcTranslator

NO_EXTENSION_MESSAGE = (
    "pi did not load the shim's extension, which asks before each tool call, so no message "
    "was sent to its model; run `pi` directly to see why, or set [vendors.pi] driver = "
    '"one-way" (it never asks)'
)
EARLY_DIALOG_MESSAGE = (
    "pi exited at start: one of your extensions opens a dialog in session_start, before pi "
    'reads any answer; remove that extension, or set [vendors.pi] driver = "one-way", '
    "in which pi opens no dialogs"
)
# The prefix for an extension's tool that has the name of one of Claude's tools.
FOREIGN_TOOL_PREFIX = "mcp__pi__"
HANDLED_DISPOSITION = "handled"  # an extension has handled the message, so no run starts


class PiRpcTranslator(RpcTranslator, PiTranslator):
    """Translates the output lines of one pi process. A recording does not contain the requests that
    were sent to pi.
    """

    session_class = PiRpcSession
    session: PiRpcSession
    _is_older_version = False  # whether this pi has no event `agent_settled`

    def start_turn(self, turn: Turn) -> None:
        super().start_turn(turn)
        self._write_start()

    def _write_start(self) -> None:
        self._cwd = self.session.working_dir
        if self.session.session_id:
            if self.session.text_commands:
                self.turn.record_offered_commands(self.session.text_commands)
            # a model that the frontend requests takes precedence
            default_model = None
            if self.session.model and not self.turn.config.model:
                default_model = self.session.model
            self.turn.record_vendor_session_info(
                session_id=self.session.session_id, model=default_model
            )
            self.turn.record_context_window(self.session.context_window_tokens)

    @classmethod
    def accepts_line_between_turns(cls, line: bytes) -> bool:
        """Return whether a line may arrive between turns, which is true for dialogs and
        responses.
        """
        if DIALOG_TYPE.encode() in line:
            return True
        return b'"response"' in line

    def feed_event_from_broken_line(self, event: Event) -> None:
        """Translate an event from a repaired line. Dialogs and responses are not trusted, because
        the line may be forged.
        """
        kind = event.get("type")
        if not self.session.is_initialized or kind not in (DIALOG_TYPE, "response"):
            super().feed_event_from_broken_line(event)
            return
        self.turn.diagnostics.record("doubtful_event")
        if kind == DIALOG_TYPE and event.get("method") in DIALOG_METHODS:
            self._refuse_request(event.get("id"))

    # -- runs --------------------------------------------------------------------------------------

    def on_agent_start(self, event: Event) -> None:
        if not self.session.is_initialized:
            self.start_next_turn()
        self.session.is_running = True
        self._has_run_ended = False
        if self.session.is_stopping:  # pi was idle when it was interrupted
            self.outbox.append(self.session.encode_interrupt())
        super().on_agent_start(event)

    def on_agent_settled(self, event: Event) -> None:
        self._has_run_ended = True
        if self.session.is_running and not self.session.has_pending_abort_or_steering:
            self._finish_turn()

    def _reset(self) -> None:
        super()._reset()
        self._has_run_ended = False  # set when a run ends, cleared if the run continues

    def _end_run(self, *, is_newer_version: bool) -> None:
        self._has_run_ended = True
        self._is_older_version = not is_newer_version
        if not self.session.has_pending_abort_or_steering:
            if self._is_older_version and self._is_complete():
                self._finish_turn()
            else:
                self.turn.record_possible_turn_end()

    def on_compaction_end(self, event: Event) -> None:
        super().on_compaction_end(event)
        if self._is_older_version and self._has_run_ended and not event.get("willRetry"):
            self.turn.record_possible_turn_end()

    on_auto_compaction_end = on_compaction_end

    def _finish_turn(self) -> None:
        self.session.is_running = False
        if not self.turn.outcome_tracker.is_finalized:
            self._conclude_turn()
            self.turn.record_vendor_completion()

    def _is_complete(self) -> bool:
        """Return whether the run is complete. A compaction may still follow the run's
        last reply.
        """
        if super()._is_complete():
            return True
        if not self._has_run_ended:
            return False
        if self._last_message is not None:
            return False
        return not self._has_open_reply

    def feed_eof(self, child_exit: ChildExit | None, stderr: str) -> None:
        """End the turn when pi exits, or after a silence if pi reports no other end."""
        self.session.is_running = False
        if self.session.is_starting and self.session.has_early_dialog:
            self.turn.record_failure(EARLY_DIALOG_MESSAGE, kind="refused")
        super().feed_eof(child_exit, stderr)

    # -- responses ---------------------------------------------------------------------------------

    def on_response(self, event: Event) -> None:
        response = self.session.read_response(event)
        if response is None:
            self.turn.record_unknown_event("response", event)
        elif response.error is not None and response.request_label != STEER:
            self._fail_request(response)
        elif response.request_label == STATE:
            self._write_start()
        elif response.request_label == MODELS:
            self.turn.record_offered_models(_parse_models(response.result.get("models")))
        elif response.request_label == PROMPT:
            self._record_prompt_response(response.result.get("disposition"))
        elif response.request_label == COMPACTION:
            self._is_answered_by_extension = True
            self._finish_turn()
        elif response.request_label == STEER:
            if self._has_run_ended:
                self.outbox += [self.session.encode_idle_state_request()]
        elif response.request_label == IDLE_CHECK:
            if not (
                response.result.get("isStreaming")
                or self.session.has_pending_prompt
                or (self.session.is_running and not self._has_run_ended)
            ):
                self._is_answered_by_extension = True
                self._finish_turn()
        elif (
            response.request_label == ABORT
            and not self.session.has_pending_prompt
            and (self._has_run_ended or not self.session.is_running)
        ):
            self._finish_turn()

    def _record_prompt_response(self, disposition: object) -> None:
        """Record that pi has accepted a message. If the response does not say what pi did with the
        message, ask whether pi is running.
        """
        if disposition == HANDLED_DISPOSITION:
            self._is_answered_by_extension = True
            self._finish_turn()
        elif disposition is not None:
            self.session.is_running = True
        elif self.session.is_initialized and not self.session.is_running:
            self.outbox.append(self.session.encode_idle_state_request())

    def _fail_request(self, response: RpcResponse) -> None:
        """Fail the turn if pi refused a prompt, or a setting that a prompt waits for."""
        text = as_dict(response.error)["message"]
        if response.request_label == STATE:
            self.turn.record_failure(
                text if self.session.is_extension_loaded else NO_EXTENSION_MESSAGE,
                kind="refused",
            )
        elif response.request_label in (PROMPT, SETTING, COMPACTION):
            self.turn.record_failure(text)
        else:
            return
        self.session.is_running = False
        self.turn.record_vendor_completion()

    # -- dialogs -----------------------------------------------------------------------------------

    def on_extension_ui_request(self, event: Event) -> None:
        request_id = event.get("id")
        method = event.get("method")
        if method == "setStatus" and event.get("statusKey") == EXTENSION_NAME:
            self.session.is_extension_loaded = True
        elif method == "input" and event.get("title") == EXTENSION_NAME:
            self._ask_permission(str(request_id), event)
        elif method in DIALOG_METHODS:
            self._open_dialog(str(request_id), event)

    def _open_dialog(self, request_id: str, event: Event) -> None:
        """Show a dialog of an extension other than the shim's as a call to Claude's question tool.
        While pi starts, it does not read answers.
        """
        if self.session.is_starting:
            self.session.has_early_dialog = True
            self._refuse_request(request_id)
            return
        call_id = f"ask_{request_id[-12:]}"
        tool_input = self.session.register_extension_dialog(request_id, call_id, event)
        if tool_input is None:
            self._refuse_request(request_id)
        else:
            self.turn.request_permission(
                request_id, call_id, QUESTION_TOOL, tool_input, (DIALOG_TYPE, event)
            )

    def _ask_permission(self, request_id: str, event: Event) -> None:
        """Request permission for a tool call that the shim's extension asks about."""
        try:
            call_fields = orjson.loads(event["placeholder"])
            call_id = normalize_call_id(call_fields["call"])
            vendor_tool = str(call_fields["tool"])
            tool_input = call_fields["input"]
            name, arguments = translate_tool_call(TOOLS, vendor_tool, tool_input)
            if vendor_tool in TOOLS:
                arguments = resolve_argument_paths(arguments, self._cwd)
            announced = name, arguments
            if self._is_foreign_tool(vendor_tool, call_fields.get("replaced"), name, arguments):
                vendor_tool = name = f"{FOREIGN_TOOL_PREFIX}{vendor_tool}"
                arguments = translate_tool_call({}, vendor_tool, tool_input)[1]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self.turn.diagnostics.record(
                "malformed_event", f"{error!r}: {event.get('placeholder')}"
            )
            self._refuse_request(request_id)
            return
        if not self.session.add_permission_request(request_id):
            self._refuse_request(request_id)
            return
        self.turn.request_permission(
            request_id,
            call_id,
            name,
            arguments,
            (vendor_tool, tool_input),
            announced_call=announced,
        )

    def _is_foreign_tool(
        self, vendor_tool: str, replaced: object, name: str, arguments: Arguments
    ) -> bool:
        """Return whether an extension's tool has the name of one of Claude's tools. A mode or a
        rule for Claude's tool would then allow the extension's tool.

        If a rule restricts the call, the tool keeps its name, so that the rule applies.
        """
        if replaced is not True and (vendor_tool in TOOLS or not vendor_tool[:1].isupper()):
            return False
        evaluator = self.turn.config.evaluator
        if evaluator is None:
            return True
        return evaluator.find_restricting_decision(name, arguments) is None

    def _refuse_request(self, request_id: Any) -> None:
        if self.session.is_initialized and len(self.outbox) < MAX_OPEN_REQUESTS:
            self.outbox.append(self.session.encode_response(request_id, cancelled=True))


def _parse_models(entries: object) -> tuple[OfferedModel, ...]:
    """Parse pi's list of models. A model's name contains its provider, as in `--model`."""
    named_entries = [
        {**entry, "name": f"{entry.get('provider')}/{entry.get('id')}"}
        for entry in list_dicts(entries)
    ]
    return parse_offered_models(named_entries, "name", "name")
