"""Translates the output of an ACP agent: session updates, permission requests, forms, and
responses.

The response to `session/prompt` ends the turn. Updates that arrive while a session is being loaded
belong to earlier turns.
"""

from collections.abc import Callable, Mapping
from re import Pattern
from typing import Any, ClassVar

from shim.core.adapter.tools import ToolMapping, Tools
from shim.core.adapter.translator import Event
from shim.core.claude.offered_commands import parse_offered_commands
from shim.core.claude.permissions import QUESTION_TOOL
from shim.core.reading.json_text import dump_json
from shim.core.reading.values import as_dict
from shim.core.turn.machine import CLOSED, TEXT
from shim.core.turn.open_calls import is_title_of_tool
from shim.core.turn.outcome import ChildExit
from shim.core.turn.turn import Turn
from shim.profiles.acp.call_list import OpenAcpToolCalls
from shim.profiles.acp.calls import (
    AcpToolCall,
    AcpToolCallFormat,
    build_todos,
    find_exit_code,
    format_content_block,
    format_raw_output,
    is_valid_content_block,
    join_text_blocks_and_strip_trailer,
    list_content_blocks,
    list_raw_output_blocks,
    was_refused,
)
from shim.profiles.acp.message_and_terminal_store import (
    MAX_CONTENT_ITEMS,
    AcpMessageAndTerminalStore,
    clear_null_fields,
)
from shim.profiles.acp.servers import resolve_mcp_tool_name
from shim.profiles.acp.session import (
    CANCELLED_RESULT,
    INVALID_PARAMS,
    PROMPT_ACCEPTED,
    STEP_PROMPT,
    STEP_SESSION,
    TURN_MAY_END,
    AcpSession,
)
from shim.profiles.acp.usage import AcpUsageTracker
from shim.profiles.rpc.form import build_ask_user_question_input
from shim.profiles.rpc.session import METHOD_NOT_FOUND, RpcResponse, format_rpc_error
from shim.profiles.rpc.translator import RpcTranslator

# The known content kinds of a tool call. A diff becomes part of the call's arguments.
WRITTEN_CONTENT_KINDS = ("content", "diff")
FAILED_STATES = ("failed", "cancelled")  # tool call states that mean failure
SUBTYPE_BY_LIMIT = {"max_turn_requests": "error_max_turns"}
STOP_REASON_BY_ACP_REASON = {"max_tokens": "max_tokens", "refusal": "refusal"}
LOGIN_REQUIRED_CODE = -32000  # the protocol's code for an agent that is not logged in
REFUSED_PATH_TEXT = (
    "{vendor} refused this file without asking. If it is outside the session's folders, add its "
    "folder with --add-dir (add_dirs or additionalDirectories in the SDKs)."
)
MAX_FAILURE_CHARS = 20_000  # the longest text about a failed turn
# The number of times that a turn continues with the reasons of denials. A model that repeats a denied
# call would never let the turn end.
MAX_DENIAL_PROMPTS = 50
# Updates that are part of the model's answer. They show that the turn continues.
ANSWER_UPDATES = (
    "agent_message_chunk",
    "agent_thought_chunk",
    "tool_call",
    "tool_call_update",
    "plan",
)
# gemini reports a mode change as model text with this prefix.
MODE_NOTICE_START = "[MODE_UPDATE]"
UNTITLED_THOUGHT = "****\n"  # the empty title that gemini writes before a thought


class AcpTranslator(RpcTranslator):
    """Translates the output lines of one ACP agent."""

    untyped = True
    session_class = AcpSession
    session: AcpSession
    tools: ClassVar[Tools] = {}
    form: ClassVar[AcpToolCallFormat] = AcpToolCallFormat()
    server_tool: ClassVar[str] = ""  # the agent's format for MCP tool names
    counts_session: ClassVar[bool] = False  # whether the reported usage is the session's total
    ends_at_denial: ClassVar[bool] = False  # whether a denied call ends the agent's turn
    trailer: ClassVar[Pattern[str] | None] = None  # text that the agent appends to a tool result
    # Matches the agent's own text about a tool call, which is mixed with the model's text.
    notices: ClassVar[Pattern[str] | None] = None

    # Matches the text that the agent writes when it retries a model request.
    retries: ClassVar[Pattern[str] | None] = None
    # Matches the start of the text that the agent writes when a turn has failed.
    failures: ClassVar[Pattern[str] | None] = None

    def __init__(self, turn: Turn, *, partial: bool = False, session: Any = None) -> None:
        super().__init__(turn, partial=partial, session=session)
        self._usage = AcpUsageTracker(is_session_total=self.counts_session)
        self._plan_count = 0
        self._reset_turn_state()
        self._update_handlers: dict[object, Callable[[Event], None]] = {
            "agent_message_chunk": lambda update: self._translate_chunk(update, self.turn.add_text),
            "agent_thought_chunk": lambda update: self._translate_chunk(
                update, self.turn.add_thinking
            ),
            "tool_call": self._translate_call,
            "tool_call_update": self._translate_call,
            "plan": self._translate_plan,
            "user_message_chunk": self._record_user_message,
            "usage_update": self._record_usage_update,
            "available_commands_update": self._record_commands,
            **dict.fromkeys(("current_mode_update", "config_option_update"), self.ignore_event),
            "session_info_update": self.ignore_event,
            # Updates that only version 2 sends.
            "agent_message": lambda update: self._translate_full_message(
                update, self.turn.add_text
            ),
            "agent_thought": lambda update: self._translate_full_message(
                update, self.turn.add_thinking
            ),
            "user_message": self._record_user_message,
            "compaction_update": self._translate_compaction,
            **dict.fromkeys(("compaction_summary_chunk", "notice"), self.ignore_event),
            "tool_call_content_chunk": self._add_call_content,
            "plan_update": lambda update: self._translate_plan(update["plan"]),
            "state_update": self._translate_state,
            "terminal_update": lambda update: self._upserts.apply_terminal_update(update),
            "terminal_output_chunk": lambda update: self._upserts.append_terminal_output(update),
        }

    def _reset_turn_state(self) -> None:
        self._calls = OpenAcpToolCalls(self.form)
        self._upserts = AcpMessageAndTerminalStore()
        # The result of a paused turn. The turn ends with this result if the agent stays silent.
        self._pending_end: Mapping[str, Any] | None = None
        self._last_plan: object = None
        self._server_names: list[str] | None = None
        self._failure_text = ""  # the failure reason if the turn ends now
        self._retry_count = 0
        self._denial_prompt_count = 0

    def _record_commands(self, update: Event) -> None:
        """Record the agent's slash commands."""
        self.turn.record_offered_commands(parse_offered_commands(update.get("availableCommands")))

    def _record_usage_update(self, update: Event) -> None:
        """Record the session's cost, and the size of the model's context."""
        self._usage.record_cost(update, is_resumed=self.session.is_resumed)
        self.turn.record_context_window(update.get("size"), update.get("used"))

    def start_turn(self, turn: Turn) -> None:
        super().start_turn(turn)
        self._reset_turn_state()
        self.session.prompt_progress.reset()
        self._usage.cost_usd = 0.0
        if self.session.session_id:
            turn.record_vendor_session_info(
                session_id=self.session.session_id, mcp_servers=self._list_unreachable_servers()
            )

    def take_withdrawn_permission_requests(self) -> list[str]:
        requests = self.session.withdrawn_requests
        self.session.withdrawn_requests = []
        return requests

    @classmethod
    def accepts_line_between_turns(cls, line: bytes) -> bool:
        """Return whether a line may arrive between turns: a request, a response, or a batch.
        Updates are only accepted in a batch, which may also contain requests and responses.
        """
        if b'"sessionUpdate"' not in line:
            return True
        return line.startswith(b"[")

    def feed(self, event: Event | list[Event]) -> None:
        """Translate one line, which is a message or a batch of messages (JSON-RPC 2.0)."""
        if isinstance(event, list):
            self._translate_batch(event)
        else:
            super().feed(event)

    def _translate_message(self, event: Event) -> None:
        method = event.get("method")
        if not self.session.is_initialized and method in (
            "session/update",
            "session/request_permission",
        ):
            self.start_next_turn()
        if method is None and "id" in event:
            self._apply_response(event)
        elif "id" in event:
            self._answer_request(event)
        elif method == "session/update":
            self._translate_update(event["params"])
        elif method == "$/cancel_request":
            self.session.withdrawn_requests.append(dump_json(event["params"]["requestId"]).decode())
        else:
            self.turn.record_unknown_event(method or "untyped", event)

    def _translate_batch(self, events: list[Event]) -> None:
        """Translate each message in a batch. A malformed message does not stop the others."""
        for event in events:
            try:
                super().feed(event)
            except Exception as error:
                self.diagnostics.record("malformed_event", repr(error))

    def feed_event_from_broken_line(self, event: Event) -> None:
        """Translate an event from a repaired line. Requests and messages for other sessions are not
        trusted, because the line may be forged.
        """
        session_id = as_dict(event.get("params")).get("sessionId")
        if (
            self.session.is_initialized
            and "method" in event
            and ("id" in event or session_id != self.session.session_id)
        ):
            self.diagnostics.record("doubtful_event")
            if "id" in event:  # without an answer, the agent would wait forever
                self.session.reply_to_request(event["id"], result=CANCELLED_RESULT)
                self.outbox += self.session.take_outbox()
        else:
            self.feed(event)

    # -- updates -----------------------------------------------------------------------------------

    def _translate_update(self, params: Mapping[str, Any]) -> None:
        update = params["update"]
        kind = update.get("sessionUpdate")
        handler = self._update_handlers.get(kind)
        if self.session.is_loading:
            self.session.has_replayed = True
            return
        if handler is None:
            self.turn.record_unknown_event(f"session/update/{kind}", update)
        elif (
            params.get("sessionId") in (self.session.session_id, "") or not self.session.session_id
        ):
            if self._failure_text and kind in ANSWER_UPDATES:
                self._write_failure_text()
            handler(update)

    def _translate_chunk(self, update: Event, write_text: Callable[..., None]) -> None:
        """Write a fragment of the model's text. Text from the agent itself, such as a notice about
        a mode change, is omitted.
        """
        content = update["content"]
        if self.session.is_changing_settings and str(content.get("text")).startswith(
            MODE_NOTICE_START
        ):
            return
        if (text := format_content_block(content)) is None:
            self.turn.record_unknown_event(f"content/{content.get('type')}", content)
            return
        if self.notices is not None and self.notices.fullmatch(text):
            return
        if self.retries is not None and self.retries.fullmatch(text):
            self._retry_count += 1
            self.turn.write_retry(self._retry_count, self._retry_count, 0, text)
            return
        if (
            self.failures is not None
            and self.turn.machine.state is not TEXT
            and self.failures.match(text)
        ):
            self._failure_text = text
            return
        self._end_denied_calls()
        message_id = update.get("messageId")
        write_text(text.removeprefix(UNTITLED_THOUGHT), message_id if self._uses_upserts else None)
        if self._uses_upserts:
            self._upserts.append_message_text(str(message_id), text)

    def _write_failure_text(self) -> None:
        """Write text that was held back as a possible failure reason. The turn has continued, so
        the text is model output.
        """
        text = self._failure_text
        self._failure_text = ""
        self._end_denied_calls()
        self.turn.add_text(text)

    def _translate_full_message(self, update: Event, write_text: Callable[..., None]) -> None:
        """Write the new part of a message that the agent has sent in full."""
        if "content" not in update:
            return
        self._end_denied_calls()
        message_id = str(update["messageId"])
        blocks = update["content"] or ()
        new_text = self._upserts.update_message_and_get_new_text(
            message_id,
            "".join(text for block in blocks if (text := format_content_block(block)) is not None),
        )
        if new_text is None:
            self.diagnostics.record("contradicted_block", message_id)
        elif new_text:
            write_text(new_text, message_id)

    def _end_denied_calls(self) -> None:
        """End all denied calls once the agent has continued, because some agents never report the
        end of a denied call.
        """
        for call_id in self.session.denied_calls:
            if call_id in self.turn.open_calls:
                self.turn.add_tool_result(call_id, "", True)
                self._calls.end_call_by_id(call_id)
        self.session.denied_calls.clear()

    @property
    def _uses_upserts(self) -> bool:
        """Return whether the agent's updates replace earlier values by id, as in version 2."""
        return not self.session.protocol_version.answer_ends_turn

    def _translate_state(self, update: Event) -> None:
        self._apply_turn_step(self.session.convert_state_to_prompt_response(update))

    def _apply_turn_step(self, response: RpcResponse) -> None:
        """End the turn, or pause the turn until the agent continues or stays silent."""
        was_paused = self._pending_end is not None
        if response.request_label == TURN_MAY_END:
            self._pending_end = response.result
        else:
            self._pending_end = None
        if response.request_label == STEP_PROMPT:
            self._end_turn(response.result)
        elif self._pending_end is not None:
            self.turn.record_possible_turn_end()
        elif was_paused:
            self.turn.cancel_vendor_completion()

    def feed_eof(self, child_exit: ChildExit | None, stderr: str) -> None:
        """End a paused turn, because the agent is silent or has exited."""
        if self._pending_end is not None:
            self._end_turn(self._pending_end)

    def _record_user_message(self, update: Event) -> None:
        self.session.record_user_message_echo()

    def _translate_compaction(self, update: Event) -> None:
        if update.get("status") == "completed":
            self.turn.write_compaction("auto", self._usage.context_tokens)

    def _translate_call(self, update: Event) -> None:
        status = update.get("status")
        is_over = status in ("completed", *FAILED_STATES)
        if update["sessionUpdate"] == "tool_call":
            call = self._calls.start_call(update, self._create_call_id)
        elif self._calls.is_for_ended_call(update):
            if is_over:
                self.diagnostics.record("second_tool_result", str(update.get("toolCallId")))
            return
        else:
            call = self._calls.find_call_for_update(update, self._create_call_id)
        previous_input = call.input
        if self._uses_upserts:
            clear_null_fields(call, update)
        call.apply_update(update)
        if call.is_written and call.input is not previous_input and call.input != previous_input:
            self.turn.replace_call_input(call.call_id, *self._translate_tool(call))
        if (
            call.has_input
            or is_over
            or self._needs_name(call)
            or (status == "in_progress" and not self.form.input_in_content)
        ):
            self._write_call(call, is_over=is_over)
        if is_over:
            is_error = (
                status in FAILED_STATES
                or find_exit_code(call.raw_output) != 0
                or self._upserts.has_failed_terminal(call)
                or call.is_missing
            )
            result = self._build_result(call)
            if is_error and call.has_refused_path:
                result = (
                    f"{result}\n{REFUSED_PATH_TEXT.format(vendor=self.turn.config.vendor.name)}"
                )
            if is_error and was_refused(call.raw_output):
                self._record_refused_call(call)
            self.turn.add_tool_result(call.call_id, result, is_error)
            self._calls.end_call(call)
            self.session.discard_allowed_call(call.call_id)

    def _record_refused_call(self, call: AcpToolCall) -> None:
        """Add a call that the agent refused to `permission_denials`."""
        written_call = self.turn.find_call(call.call_id)
        if written_call is not None:
            self.turn.add_denial(*written_call)

    def _create_call_id(self, agent_id: str) -> str:
        """Return a new id for a tool call that has no id, or whose id is already used."""
        if agent_id:
            return self.turn.conversation.create_unused_call_id(agent_id)
        return self.turn.writer.create_uuid()

    def _add_call_content(self, update: Event) -> None:
        """Add a content item to a tool call's output."""
        call = self._calls.find_call_for_update(update, self._create_call_id)
        if len(call.output) < MAX_CONTENT_ITEMS:
            call.output = call.content = [*call.output, update["content"]]

    def _write_call(self, call: AcpToolCall, *, is_over: bool = False) -> None:
        if call.is_written:
            return
        name, arguments = self._translate_tool(call)
        if not is_over and self._needs_input(call, name):
            self.turn.defer_call(call.call_id, name)
            return
        if not is_over and self._needs_name(call):
            self.turn.defer_unnamed_call(call.call_id, call.title, call.input)
            return
        call.is_written = True
        if self._needs_name(call) and (tool := self._find_tool_by_title(call)):
            name, arguments = tool, call.input
        if not self.turn.stop_waiting_for_call_input(call.call_id):
            self.turn.add_tool_call(call.call_id, name, arguments)

    def _needs_input(self, call: AcpToolCall, name: str) -> bool:
        """Return whether a tool call must wait for its input. The input for a tool that runs in the
        frontend's process arrives separately, when the agent calls the tool there.
        """
        if call.has_input or name not in self.turn.config.session.list_servers()[1]:
            return False
        evaluator = self.turn.config.evaluator
        if evaluator is None:
            return True
        return not (evaluator.is_rule_violation(name, {}) or evaluator.is_hidden_tool(name))

    def _needs_name(self, call: AcpToolCall) -> bool:
        """Return whether a tool call must wait for its name. If the agent reports no tool names, the
        call may be for a tool in the frontend's process. The name is known when the agent calls the
        tool there.
        """
        if call.vendor_tool or self.form.name_source != "kind":
            return False
        return bool(self.turn.config.session.list_servers()[1])

    def _find_tool_by_title(self, call: AcpToolCall) -> str:
        """Return the tool in the frontend's process whose name is the title of an ended call, or "".
        The call did not reach the tool, for example because a rule denies it.

        Return "" if the title is also a value in the call's input, because then the model may have
        written the title.
        """
        if call.title in call.input.values():
            return ""
        names = [
            name
            for name in self.turn.config.session.list_servers()[1]
            if is_title_of_tool(call.title, name)
        ]
        if len(names) == 1:
            return names[0]
        return ""

    def _translate_tool(self, call: AcpToolCall) -> tuple[str, dict[str, Any]]:
        """Return Claude's tool name and arguments for a tool call. Tools from the MCP servers that
        the shim passed to the agent are included.
        """
        claude_name = ""
        if call.vendor_tool not in self.tools:
            claude_name = self._resolve_server_tool(call.vendor_tool)
        return call.translate_to_claude_tool(
            {call.vendor_tool: ToolMapping(claude_name)} if claude_name else self.tools
        )

    def _resolve_server_tool(self, vendor_tool: str) -> str:
        """Return Claude's name for an MCP server's tool, or "" for any other tool."""
        if not self.server_tool:
            return ""
        if self._server_names is None:
            self._server_names = [
                *self.session.mcp_server_names,
                *self.turn.config.session.list_server_names(),
            ]
        return resolve_mcp_tool_name(
            self.server_tool, self._server_names, vendor_tool, self.turn.config.evaluator
        )

    def _build_result(self, call: AcpToolCall) -> object:
        """Return the result of a tool call: its content, or its raw output if it has no content.

        Content and raw output may come from different updates. The raw output is preferred if it
        starts with the content and is longer.
        """
        blocks = join_text_blocks_and_strip_trailer(self._list_result_blocks(call), self.trailer)
        raw_text = format_raw_output(call.raw_output)
        if not blocks:
            return raw_text
        if len(blocks) > 1 or blocks[0]["type"] != "text":
            return blocks
        text = str(blocks[0]["text"])
        if len(raw_text) > len(text) and raw_text.startswith(text) and self.trailer is None:
            return raw_text
        return text

    def _list_result_blocks(self, call: AcpToolCall) -> list[dict[str, Any]]:
        """Return a tool call's content blocks that can be written to the stream. Count all other
        blocks as unknown.
        """
        if self._uses_upserts:
            blocks = self._upserts.list_output_content_blocks(call)
        else:
            self._count_unknown_items(call)
            blocks = list_content_blocks(call.output)
        for block in blocks:
            if not is_valid_content_block(block):
                self.turn.record_unknown_event(f"content/{block['type']}", block)
        complete_blocks = [block for block in blocks if is_valid_content_block(block)]
        if any(block["type"] != "text" for block in complete_blocks):
            return complete_blocks
        return list_raw_output_blocks(call.raw_output) or complete_blocks

    def _count_unknown_items(self, call: AcpToolCall) -> None:
        for item in call.output:
            kind = as_dict(item).get("type")
            if kind not in WRITTEN_CONTENT_KINDS:
                self.turn.record_unknown_event(f"tool_content/{kind}", item)

    def _translate_plan(self, update: Event) -> None:
        """Write the agent's plan as a todo list if the plan has changed."""
        entries = update["entries"]
        if entries == self._last_plan:
            return
        self._last_plan = entries
        self._plan_count += 1
        call_id = f"plan_{self.turn.writer.create_uuid()[-6:]}_{self._plan_count}"
        self.turn.add_tool_call(call_id, "TodoWrite", {"todos": build_todos(entries)})
        self.turn.add_tool_result(call_id, "The plan was noted.")

    # -- requests from the agent -------------------------------------------------------------------

    def _answer_request(self, event: Event) -> None:
        request_id = event["id"]
        params = event.get("params")
        method = event["method"]
        if self._failure_text:
            self._write_failure_text()
        if (
            method == "elicitation/create"
            and self.session.can_ask_user
            and isinstance(params, dict)
        ):
            self._ask_form(request_id, params)
        elif method == "session/request_permission" and isinstance(params, dict):
            try:
                self._ask_permission(request_id, params)
            except Exception:  # without an answer, the agent would wait forever
                self.session.reply_to_request(request_id, result=CANCELLED_RESULT)
                raise
        else:
            self.session.reply_to_request(
                request_id,
                error={"code": METHOD_NOT_FOUND, "message": f"{method} is not supported"},
            )

    def _is_current_session(self, params: Event) -> bool:
        return bool(params.get("sessionId", self.session.session_id) == self.session.session_id)

    def _ask_form(self, request_id: object, params: Event) -> None:
        """Show a form to the user as a call to Claude's AskUserQuestion tool."""
        questions_input = build_ask_user_question_input(params)
        if questions_input is None or not self._is_current_session(params):
            self.session.reply_to_request(
                request_id,
                error={
                    "code": INVALID_PARAMS,
                    "message": "only forms of this session are supported",
                },
            )
            return
        call_id = f"ask_{self.turn.writer.create_uuid()[-12:]}"
        request_key = self.session.register_form_request(request_id, call_id, params)
        if request_key is not None:
            self.turn.request_permission(
                request_key, call_id, QUESTION_TOOL, questions_input, ("elicitation/create", params)
            )

    def _ask_permission(self, request_id: object, params: Event) -> None:
        subject = self.session.protocol_version.parse_subject(params, request_id)
        if subject is None or not self._is_current_session(params):
            self.turn.record_unknown_event("session/request_permission", params)
            self.session.reply_to_request(request_id, result=CANCELLED_RESULT)
            return
        call = self._calls.find_call_for_permission(
            subject.call, self._create_call_id, self.session.is_awaiting_permission
        )
        # A request that matches several calls is cancelled, because its input may belong to the
        # wrong call.
        if call is None or (self.form.input_in_content and call.start_count > 1):
            self.session.reply_to_request(request_id, result=CANCELLED_RESULT)
            return
        requested_call = (
            AcpToolCall(call.call_id, self.form) if subject.is_complete else call
        ).build_call_from_permission_request(subject.call, self.session.working_dir)
        translated = self._translate_tool(requested_call)
        if translated[0] == QUESTION_TOOL:
            # The options of this request are the answers to a question. To allow the request would
            # mean to choose one of them.
            self.session.reply_to_request(request_id, result=CANCELLED_RESULT)
            return
        call_text = dump_json([*translated, requested_call.requested_file]).decode()
        request_key = self.session.register_permission_request(
            request_id, call.call_id, params.get("options"), call_text
        )
        if request_key is not None:
            is_deferred = self._needs_input(requested_call, translated[0])
            if not is_deferred:
                self.turn.stop_waiting_for_call_input(call.call_id)
            call.is_written = not is_deferred
            if call.requested_input is None:
                call.requested_input = requested_call.input
            vendor_call = requested_call.vendor_tool, requested_call.input
            self.turn.request_permission(
                request_key,
                call.call_id,
                *translated,
                vendor_call,
                is_unique=True,
                is_deferred=is_deferred,
            )

    # -- responses ---------------------------------------------------------------------------------

    def _apply_response(self, event: Event) -> None:
        response = self.session.read_response(event)
        if response is None:
            self.turn.record_unknown_event("answer", event)
        elif response.error is not None:
            self._fail_prompt(response)
        elif response.request_label == STEP_SESSION:
            session = self.session
            self.turn.record_vendor_session_info(
                session_id=session.session_id,
                model=session.model,
                mcp_servers=self._list_unreachable_servers(),
            )
            self.turn.record_offered_models(session.list_offered_models())
        elif response.request_label in (STEP_PROMPT, PROMPT_ACCEPTED, TURN_MAY_END):
            self._apply_turn_step(response)

    def _list_unreachable_servers(self) -> list[dict[str, str]] | None:
        return [
            {"name": name, "status": "failed"} for name in self.session.unreachable_servers
        ] or None

    def _needs_denial_reasons(self, stop_reason: object) -> bool:
        """Return whether the turn must continue so that the model learns why calls were denied."""
        session = self.session
        if not session.denial_reasons or self._denial_prompt_count >= MAX_DENIAL_PROMPTS:
            return False
        if self.ends_at_denial:
            return True
        return session.must_send_reasons and stop_reason == "end_turn"

    def _end_turn(self, result: Mapping[str, Any]) -> None:
        self.session.discard_allowed_calls()
        turn = self.turn
        reason = result.get("stopReason")
        if turn.machine.state is CLOSED:  # the shim has already ended the turn
            return
        usage = self._usage.compute_turn_usage(result)
        if self._failure_text and not (usage and usage["output_tokens"]):
            text = self._failure_text[:MAX_FAILURE_CHARS]
            self._failure_text = ""
            self._fail_turn({"message": text.partition(": ")[2]})
            return
        if self._failure_text:
            self._write_failure_text()
        turn.end_message(usage, STOP_REASON_BY_ACP_REASON.get(str(reason)), self._usage.cost_usd)
        if self._needs_denial_reasons(reason) and self.turn.machine.state is not CLOSED:
            self._denial_prompt_count += 1
            self._usage.cost_usd = 0.0
            self.outbox.append(self.session.encode_denial_reasons_prompt())
            return
        if reason == "cancelled":
            turn.record_interrupt()
        elif reason == "error":
            self._fail_turn(as_dict(result.get("error")))
            return
        elif reason in SUBTYPE_BY_LIMIT:
            turn.record_failure(
                "the turn has reached its limit of requests",
                kind="limit",
                subtype=SUBTYPE_BY_LIMIT[reason],
            )
        else:
            turn.record_turn_end()
        turn.record_vendor_completion()

    def _fail_prompt(self, response: RpcResponse) -> None:
        self.session.discard_allowed_calls()
        if self.turn.machine.state is not CLOSED:
            self._fail_turn(as_dict(response.error))

    def _fail_turn(self, error: Mapping[str, Any]) -> None:
        code = error.get("code")
        text = format_rpc_error(error)
        if code == LOGIN_REQUIRED_CODE:
            login_hint = ""
            if self.session.login_methods:
                login_hint = f" (login methods: {', '.join(self.session.login_methods)})"
            self.turn.record_failure(text + login_hint, api=True, kind="auth")
        else:
            status = None
            if isinstance(code, int) and 400 <= code < 600:
                status = code
            self.turn.record_failure(text, status=status, api=True if status else None)
        self.turn.record_vendor_completion()
