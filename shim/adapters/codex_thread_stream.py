"""Translates the notifications and requests of `codex app-server`: items, deltas, approval requests
and the end of a turn.

    {"method":"item/started","params":{"threadId":…,"turnId":…,"item":{…}}}         (and item/completed)
    {"method":"item/agentMessage/delta","params":{"threadId":…,"itemId":…,"delta":…}}
    {"method":"item/commandExecution/requestApproval","id":0,"params":{"itemId":…,"command":…}}
    {"method":"turn/completed","params":{"threadId":…,"turn":{"id":…,"status":…,"error":…}}}

A refused tool call has no item. It is read from codex's own record of the thread (`codex_rollout`).
An item of another thread belongs to a subagent. A subagent's texts are nested in the call that
started the subagent. Its tool calls are not nested, because the frontend is asked about them.
"""

import re
from typing import Any

from shim.adapters import codex_items
from shim.adapters.codex_rollout import ClaudeCall, CodexRollout
from shim.adapters.codex_thread import (
    COMMAND_APPROVAL,
    COMPACTION,
    ELICITATION,
    MODELS,
    PATCH_APPROVAL,
    PERMISSIONS_APPROVAL,
    THREAD,
    TURN,
    USER_INPUT,
    CodexThread,
)
from shim.core.adapter.tools import resolve_argument_paths
from shim.core.adapter.translator import Event
from shim.core.claude.argv.models import parse_offered_models
from shim.core.claude.permissions import QUESTION_TOOL
from shim.core.claude.usage import create_usage
from shim.core.reading.values import as_dict, as_list
from shim.core.turn.machine import CLOSED
from shim.core.turn.open_calls import normalize_call_id
from shim.core.turn.turn import Turn
from shim.profiles.rpc.form import MAX_OPEN_REQUESTS
from shim.profiles.rpc.translator import RpcTranslator

MAX_OPEN_ITEMS = 1000  # per turn; beyond this limit, the oldest item is dropped
MAX_SUBAGENTS = 1000  # subagents whose starting call is stored
RETRY_MESSAGE = re.compile(r"Reconnecting\.\.\. (\d+)/(\d+)")
# codex's status of an MCP server → Claude's.
SERVER_STATUSES = {"ready": "connected", "failed": "failed", "cancelled": "failed"}
# Ignored notifications. They are about the session or the program, or have data that is repeated at
# the end of an item.
IGNORED_METHODS = frozenset(
    (
        "configWarning",
        "warning",
        "deprecationNotice",
        "guardianWarning",
        "remoteControl/status/changed",
        "thread/started",
        "thread/status/changed",
        "thread/readState/changed",
        "thread/settings/updated",
        "thread/name/updated",
        "thread/closed",
        "thread/goal/updated",
        "thread/goal/cleared",
        "skills/changed",
        "turn/diff/updated",
        "hook/started",
        "hook/completed",
        "serverRequest/resolved",
        "account/updated",
        "account/rateLimits/updated",
        "item/mcpToolCall/progress",
        "item/commandExecution/outputDelta",
        "item/commandExecution/terminalInteraction",
        "item/plan/delta",
        "item/fileChange/outputDelta",
        "item/fileChange/patchUpdated",
        "item/reasoning/summaryPartAdded",
        "item/reasoning/textDelta",
        "model/rerouted",
        "app/list/updated",
        "thread/environment/connected",
        "thread/environment/disconnected",
    )
)
# Missing tool calls are written before items of these types.
CHECKPOINT_ITEMS = ("agentMessage", "reasoning", "commandExecution", "fileChange", "mcpToolCall")
SILENT_ITEMS = (
    "userMessage",
    "hookPrompt",
    "functionCallOutput",
    "plan",
    "enteredReviewMode",
    "exitedReviewMode",
    "sleep",
)


class CodexThreadTranslator(RpcTranslator):
    """Translates the output lines of one app-server process."""

    untyped = True
    session_class = CodexThread
    session: CodexThread

    def __init__(self, turn: Turn, *, partial: bool = False, session: Any = None) -> None:
        super().__init__(turn, partial=partial, session=session)
        # started items that have not ended; several may have the same id
        self._open_items: list[Event] = []
        # the started MCP calls and patches for which codex has requested approval
        self._prompted_items: list[Event] = []
        self._subagent_calls: dict[str, str] = {}  # a subagent's thread → the call that started it
        self._completed_items = codex_items.CompletedCodexItems()
        self._plan_steps: object = None
        self._plan_count = 0
        self._rollout: CodexRollout | None = None
        self._notification_handlers = {
            "item/started": self._start_item,
            "item/completed": self._complete_item,
            "item/agentMessage/delta": self._write_text_delta,
            "item/reasoning/summaryTextDelta": self._write_thinking_delta,
            "thread/tokenUsage/updated": self._record_usage,
            "thread/compacted": lambda params: self.turn.write_compaction("auto", 0),
            "turn/started": self._start_thread_turn,
            "turn/plan/updated": self._write_plan,
            "turn/completed": self._complete_turn,
            "error": self._record_retry,
            "mcpServer/startupStatus/updated": self._record_server_status,
            **dict.fromkeys(IGNORED_METHODS, self.ignore_event),
        }
        self._request_handlers = {
            COMMAND_APPROVAL: self._ask_command,
            PATCH_APPROVAL: self._ask_patch,
            ELICITATION: self._ask_server,
        }
        self._request_handlers |= {
            USER_INPUT: self._ask_person,
            PERMISSIONS_APPROVAL: self._refuse_extra_permissions,
        }

    def start_turn(self, turn: Turn) -> None:
        super().start_turn(turn)
        self._open_items.clear()
        self._prompted_items.clear()
        self._completed_items.clear()
        self._plan_steps = None
        if self.session.session_id:
            turn.record_vendor_session_info(session_id=self.session.session_id)

    @classmethod
    def accepts_line_between_turns(cls, line: bytes) -> bool:
        """Return whether a line may arrive between turns, which is true for requests and
        responses.
        """
        head = line.partition(b'"params"')[0]
        if b'"id"' in head:
            return True
        return b'"method"' not in head

    def _translate_message(self, event: Event) -> None:
        method = event.get("method")
        params = event.get("params")
        if method is None and "id" in event:
            self._read_response(event)
        elif "id" in event:
            self._answer_request(event["id"], str(method), as_dict(params))
        elif method in self._notification_handlers and isinstance(params, dict):
            self._notification_handlers[method](params)
        else:
            self.turn.record_unknown_event(method or "untyped", event)

    def feed_event_from_broken_line(self, event: Event) -> None:
        """Translate an event from a repaired line. Requests, and notifications about another
        thread, are not trusted.
        """
        params = event.get("params")
        is_main_thread = False
        if isinstance(params, dict):
            is_main_thread = params.get("threadId") == self.session.session_id
        if (
            self.session.is_initialized
            and "method" in event
            and ("id" in event or not is_main_thread)
        ):
            self.turn.diagnostics.record("doubtful_event")
            if "id" in event and len(self.outbox) < MAX_OPEN_REQUESTS:
                # without a response, codex would wait forever
                self.outbox.append(
                    self.session.encode_decline_response(event["id"], str(event["method"]))
                )
        else:
            self.feed(event)

    # -- items -------------------------------------------------------------------------------------

    def _is_main_thread(self, params: Event) -> bool:
        if params.get("threadId") == self.session.session_id:
            return True
        return not self.session.session_id

    def _write_missing_calls(self, params: Event) -> None:
        """Write new tool calls from codex's record that have no item in the stream."""
        data_dir = self.turn.config.data_dir
        if data_dir is None or not self._is_main_thread(params):
            return
        if self._rollout is None:
            self._rollout = CodexRollout(data_dir, self.session.session_id)
        for missing_call in self._rollout.take_unstreamed_tool_calls():
            calls = [
                (name, resolve_argument_paths(arguments, self.turn.config.cwd))
                for name, arguments in missing_call.calls
            ]
            for call_id, (name, arguments) in zip(
                _build_call_ids(missing_call.call_id, calls), calls, strict=True
            ):
                if missing_call.is_denied:
                    self.turn.add_denial(call_id, name, arguments)
                self.turn.add_tool_call(call_id, name, arguments)
                self.turn.add_tool_result(
                    call_id, missing_call.output, missing_call.is_error, name, arguments
                )

    def _start_item(self, params: Event) -> None:
        item = params["item"]
        if self._completed_items.has_item(item):
            self.turn.diagnostics.record("repeated_item", item.get("id"))
            return
        if item["type"] in CHECKPOINT_ITEMS:
            self._write_missing_calls(params)
        if item["type"] in SILENT_ITEMS or item["type"] in ("agentMessage", "reasoning"):
            return
        if len(self._open_items) >= MAX_OPEN_ITEMS:
            self._remove_item(self._open_items[0])
        self._open_items.append(item)
        self._announce_calls(item, "item/started")

    def _complete_item(self, params: Event) -> None:
        item = params["item"]
        kind = item["type"]
        item_id = normalize_call_id(item.get("id"))
        if kind == "agentMessage":
            self._write_full_text(params, item["text"], item_id)
        elif kind == "reasoning":
            for index, text in enumerate(as_list(item.get("summary"))):
                self._write_full_text(params, text, f"{item_id}.{index}", is_thinking=True)
        elif kind == "contextCompaction":
            self.turn.write_compaction("auto", 0)
        elif kind == "userMessage" and params.get("threadId") == self.session.session_id:
            self.session.record_accepted_steering_message()
        elif self._completed_items.has_item(item):
            self.turn.diagnostics.record("repeated_item", item_id)
        elif kind not in SILENT_ITEMS:
            self._completed_items.add_item(item)
            self._close_item(item)
            calls, (content, failed) = (
                self._list_calls(item),
                codex_items.read_item_tool_result(item),
            )
            if not calls:
                self.turn.record_unknown_event(f"item/{kind}", item)
            self._announce_calls(item, "item/completed")
            for call_id, (name, arguments) in zip(
                _build_call_ids(item_id, calls), calls, strict=True
            ):
                open_call = self.turn.find_call(call_id, name, arguments)
                self.turn.add_tool_result(call_id, content, failed, name, arguments)
                self._record_subagents(item, call_id if open_call is None else open_call[0])

    def _close_item(self, item: Event) -> None:
        """Remove the started item that has ended. If several items have the same id, prefer one
        with the same tool calls, and otherwise the first.
        """
        started_items = [
            open_item for open_item in self._open_items if open_item.get("id") == item.get("id")
        ]
        calls = self._list_calls(item)
        same_calls = [
            open_item for open_item in started_items if self._list_calls(open_item) == calls
        ]
        if started_items:
            self._remove_item((same_calls or started_items)[0])

    def _remove_item(self, item: Event) -> None:
        self._open_items = [other for other in self._open_items if other is not item]
        self._prompted_items = [other for other in self._prompted_items if other is not item]

    def _record_subagents(self, item: Event, call_id: str) -> None:
        """Record which tool call started the subagents that an item names."""
        for thread_id in as_list(item.get("receiverThreadIds")):
            if len(self._subagent_calls) < MAX_SUBAGENTS:
                self._subagent_calls.setdefault(str(thread_id), call_id)

    def _announce_calls(self, item: Event, source: str) -> None:
        """Announce the tool calls of an item when the item starts. When the item ends, announce
        only new calls.
        """
        calls = self._list_calls(item)
        for call_id, (name, arguments) in zip(
            _build_call_ids(normalize_call_id(item.get("id")), calls), calls, strict=True
        ):
            self.turn.add_tool_call(call_id, name, arguments, source=source)

    def _list_calls(self, item: Event) -> list[ClaudeCall]:
        calls = codex_items.list_item_tool_calls(item, self._working_dirs)
        if item.get("type") == "mcpToolCall":
            return calls
        return [
            (name, resolve_argument_paths(arguments, self.turn.config.cwd))
            for name, arguments in calls
        ]

    @property
    def _working_dirs(self) -> tuple[str, ...]:
        """The path of the working directory, as the shim spells it and as codex spells it."""
        return (self.turn.config.cwd, self.session.cwd)

    def _write_text_delta(self, params: Event) -> None:
        if self._is_main_thread(params):
            self.turn.add_text(params["delta"], params["itemId"])

    def _write_thinking_delta(self, params: Event) -> None:
        if self._is_main_thread(params):
            self.turn.add_thinking(
                params["delta"], f"{params['itemId']}.{params.get('summaryIndex')}"
            )

    def _write_full_text(
        self, params: Event, text: str, key: object, *, is_thinking: bool = False
    ) -> None:
        """Write a complete text. Its deltas may already have been written."""
        if self._is_main_thread(params):
            (self.turn.update_thinking if is_thinking else self.turn.update_text)(text, key)
            self.turn.end_block()
        elif (call := self._subagent_calls.get(str(params.get("threadId")))) is not None:
            agent = self.turn.get_subagent(call)
            (agent.write_thinking_message if is_thinking else agent.write_text_message)(text)

    def _write_plan(self, params: Event) -> None:
        """Write codex's plan as a todo list, if the plan has changed."""
        steps = params.get("plan")
        if (
            not self._is_main_thread(params)
            or steps == self._plan_steps
            or not isinstance(steps, list)
        ):
            return
        self._plan_steps = steps
        self._plan_count += 1
        todos = [
            {
                "content": step["step"],
                "activeForm": step["step"],
                "status": TODO_STATUSES.get(step["status"], "pending"),
            }
            for step in steps
        ]
        call_id = f"plan-{params.get('turnId')}-{self._plan_count}"
        self.turn.add_tool_call(call_id, "TodoWrite", {"todos": todos})
        self.turn.add_tool_result(call_id, "")

    def _record_usage(self, params: Event) -> None:
        """Record the usage of one model request in this turn. A resumed thread first reports the
        usage of its previous turn.
        """
        if self._is_main_thread(params) and params.get("turnId") == self.session.turn_id:
            usage = params["tokenUsage"]
            last = usage["last"]
            self.turn.record_context_window(usage.get("modelContextWindow"))
            counts = (
                last.get("inputTokens"),
                last.get("cachedInputTokens"),
                last.get("cacheWriteInputTokens"),
            )
            self.turn.end_message(
                create_usage(*counts, last.get("outputTokens"), input_includes_cached=True)
            )

    def _record_server_status(self, params: Event) -> None:
        status = SERVER_STATUSES.get(str(params.get("status")), "pending")
        self.turn.record_server_status(params.get("name"), status, params.get("error"))

    # -- approval requests -------------------------------------------------------------------------

    def _answer_request(self, request_id: object, method: str, params: Event) -> None:
        handler = self._request_handlers.get(method)
        if len(self.outbox) >= MAX_OPEN_REQUESTS:
            return
        if handler is None:
            self.outbox.append(self.session.encode_method_not_found(request_id, method))
            return
        try:
            handler(request_id, params)
        except (KeyError, TypeError, AttributeError, StopIteration):
            # A malformed request must also be answered. Otherwise, codex would wait forever.
            self.turn.record_unknown_event(method, params)
            self.outbox.append(self.session.encode_decline_response(request_id, method))

    def _ask_command(self, request_id: object, params: Event) -> None:
        item_id = normalize_call_id(params["itemId"])
        call = codex_items.build_command_tool_call(
            params.get("command"), params.get("cwd"), self._working_dirs
        )
        if params.get("kind", "command") == "command" and isinstance(params.get("command"), str):
            self._ask_frontend(request_id, COMMAND_APPROVAL, [item_id], [call], params)
        else:  # network access, or input for a running program: there is no call to show
            self.outbox.append(self.session.encode_decline_response(request_id, COMMAND_APPROVAL))

    def _ask_patch(self, request_id: object, params: Event) -> None:
        item_id = normalize_call_id(params["itemId"])
        items = [item for item in self._open_items if normalize_call_id(item.get("id")) == item_id]
        item = next(item for item in items if not self._is_prompted(item))
        self._prompted_items.append(item)
        calls = self._list_calls(item)
        self._ask_frontend(
            request_id, PATCH_APPROVAL, _build_call_ids(item_id, calls), calls, params
        )

    def _is_prompted(self, item: Event) -> bool:
        """Return whether codex has already requested approval for an item."""
        return any(prompted_item is item for prompted_item in self._prompted_items)

    def _ask_server(self, request_id: object, params: Event) -> None:
        """Ask the frontend about a call to an MCP tool, or show a form from the MCP server."""
        meta = as_dict(params.get("_meta"))
        if "codex_approval_kind" not in meta:
            key = f"form-{request_id}"
            fields = self.session.forms.open_form(key, request_id, key, params)
            if fields is not None:
                self.turn.request_permission(key, key, QUESTION_TOOL, fields, (ELICITATION, params))
                return
        call_key = params.get("serverName"), meta.get("tool_name"), meta.get("tool_params")
        matches = [
            item
            for item in self._open_items
            if not self._is_prompted(item)
            and (item.get("server"), item.get("tool"), item.get("arguments")) == call_key
        ]
        if meta.get("codex_approval_kind") != "mcp_tool_call" or not matches:
            self.outbox.append(self.session.encode_decline_response(request_id, ELICITATION))
            return
        self._prompted_items.append(matches[0])
        self._ask_frontend(
            request_id,
            ELICITATION,
            [normalize_call_id(matches[0].get("id"))],
            self._list_calls(matches[0]),
            params,
        )

    def _ask_person(self, request_id: object, params: Event) -> None:
        call = QUESTION_TOOL, codex_items.convert_to_ask_user_question_input(params["questions"])
        self._ask_frontend(
            request_id, USER_INPUT, [normalize_call_id(params["itemId"])], [call], params
        )

    def _refuse_extra_permissions(self, request_id: object, params: Event) -> None:
        """Refuse a request for permissions beyond a single call, such as another folder or network
        access.
        """
        self.outbox.append(
            self.session.encode_response(request_id, result={"permissions": {}, "scope": "turn"})
        )

    def _ask_frontend(
        self,
        request_id: object,
        kind: str,
        call_ids: list[str],
        calls: list[ClaudeCall],
        params: Event,
    ) -> None:
        """Ask the frontend about each tool call in an approval request."""
        names = self.session.split_approval_request_by_call(request_id, kind, call_ids)
        for name, call_id, (tool, arguments) in zip(names, call_ids, calls, strict=False):
            self.turn.request_permission(name, call_id, tool, arguments, (kind, params))

    # -- answers, and the end ----------------------------------------------------------------------

    def _read_response(self, event: Event) -> None:
        response = self.session.read_response(event)
        if response is None:
            self.turn.record_unknown_event("answer", event)
        elif response.error is not None:
            if response.request_label in (*self.session.opening_labels, TURN, COMPACTION):
                self._fail_turn(response.error)
        elif response.request_label == THREAD:
            self.turn.record_vendor_session_info(
                session_id=self.session.session_id, model=self.session.model
            )
        elif response.request_label == MODELS:
            self.turn.record_offered_models(
                parse_offered_models(response.result.get("data"), "id", "displayName")
            )

    def _start_thread_turn(self, params: Event) -> None:
        if self._is_main_thread(params):
            self.start_next_turn()
            self.session.set_running_turn_id(str(params["turn"]["id"]))

    def _complete_turn(self, params: Event) -> None:
        turn_fields = params["turn"]
        if not self._is_main_thread(params) or turn_fields["id"] != self.session.turn_id:
            return
        self._write_missing_calls(params)
        self.session.clear_running_turn()
        if turn_fields.get("status") == "interrupted":
            self.session.stop_background_commands(self._subagent_calls)
        if self.turn.machine.state is CLOSED:  # the shim ended the turn before codex did
            return
        status = turn_fields.get("status")
        if status == "interrupted":
            self.turn.record_interrupt()
        elif status == "failed":
            self._fail_turn(as_dict(turn_fields.get("error")))
            return
        else:
            self.turn.record_turn_end()
        self.turn.record_vendor_completion()

    def _record_retry(self, params: Event) -> None:
        """Record that codex retries its request to the model."""
        if not (self._is_main_thread(params) and params.get("willRetry")):
            return
        message = str(params["error"].get("message"))
        match = RETRY_MESSAGE.match(message)
        details = params["error"].get("additionalDetails")
        if match:
            counts = (int(match[1]), int(match[2]))
        else:
            counts = (1, 1)
        self.turn.write_retry(*counts, 0, str(details or message))
        self.turn.retract_message()

    def _fail_turn(self, error: Any) -> None:
        if self.turn.machine.state is CLOSED:
            return
        kind, status = _parse_error_info(error.get("codexErrorInfo"))
        self.turn.record_failure(str(error.get("message") or kind or "codex failed"), status=status)
        self.turn.record_vendor_completion()


# codex's names for errors of the model's service → the equivalent HTTP status. codex reports a
# status number only for errors without a name.
ERROR_STATUSES = {
    "badRequest": 400,
    "contextWindowExceeded": 400,
    "unauthorized": 401,
    "modelNotFound": 404,
    "rateLimitExceeded": 429,
    "usageLimitExceeded": 429,
    "internalServerError": 500,
    "serverOverloaded": 529,
}


def _parse_error_info(info: object) -> tuple[str, int | None]:
    """Return the kind of an error, or "", and its HTTP status, or None.

    codex writes `"modelNotFound"` or `{"other": {"httpStatusCode": 404}}`.
    """
    if isinstance(info, dict):
        kind, details = next(iter(info.items()), ("", None))
        status = as_dict(details).get("httpStatusCode")
        return str(kind), status if isinstance(status, int) else ERROR_STATUSES.get(str(kind))
    if isinstance(info, str):
        return info, ERROR_STATUSES.get(info)
    return "", None


TODO_STATUSES = {"completed": "completed", "inProgress": "in_progress"}


def _build_call_ids(item_id: str, calls: list[ClaudeCall]) -> list[str]:
    """Return an id for each tool call of an item. The first call has the same id as the item."""
    return [f"{item_id}:{index}" if index and item_id else item_id for index in range(len(calls))]
