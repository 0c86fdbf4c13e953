"""The session of one `codex app-server` thread. Measured with 0.169.0.

A thread is opened with a sequence of requests: `initialize`, `config/read`, `hooks/list`,
`thread/start` (or resume, fork), `turn/start`. Each request is sent after the response to the
previous request. If a prompt arrives before the thread is open, it waits until then. The lines are
JSON-RPC without the field `jsonrpc`.
"""

from collections.abc import Iterable, Mapping

from shim.adapters import codex_rules, codex_settings
from shim.core.adapter.adapter import LaunchRequest
from shim.core.claude.argv.models import choose_supported_effort
from shim.core.claude.messages import BlockKinds, UserMessage
from shim.core.claude.permissions import QUESTION_TOOL, PermissionDecision, PermissionRequest
from shim.core.policy.policy import normalize_mcp_name
from shim.core.reading.json_text import dump_json
from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import as_dict, as_list, get_text
from shim.profiles.rpc.form import MAX_OPEN_REQUESTS, format_ask_user_question_result
from shim.profiles.rpc.session import RpcResponse, RpcSession

MAX_MCP_SERVERS = 100  # MCP servers that ask about their tools
GREETING, CONFIG, HOOKS, THREAD, TURN = "greeting", "config", "hooks", "thread", "turn"
MODELS = "models"
STOPPING = "stopping"
STEERING = "steering"
REASON = "reason"
COMPACTION = "compaction"
CLEANING = "cleaning"
ACCEPTED_KINDS: BlockKinds = frozenset(("image", "url"))
SUPPORTED_EFFORTS = ("low", "medium", "high", "xhigh")
# codex asks before each command and each patch, in every sandbox.
APPROVAL_POLICY = {"approvalPolicy": "untrusted"}
CLIENT_INFO = {"name": "claude-shim", "title": None, "version": "1"}
# Two experimental features need these capabilities: `request_user_input`, which asks a person, and
# `excludeTurns`.
CLIENT_CAPABILITIES = {"experimentalApi": True, "requestAttestation": False}
# Without this setting codex silently ignores every hook that has not been reviewed, including the
# shim's.
BYPASS_HOOK_TRUST = "bypass_hook_trust"
DENIED_MESSAGE = "The call was denied: {}"  # sent to the model during the turn
UNCHANGED_MESSAGE = (
    "Not run: codex cannot change the input of a call, and the call was allowed only "
    "with a different input."
)
COMMAND_APPROVAL = "item/commandExecution/requestApproval"
PATCH_APPROVAL = "item/fileChange/requestApproval"
USER_INPUT = "item/tool/requestUserInput"
ELICITATION = "mcpServer/elicitation/request"
PERMISSIONS_APPROVAL = "item/permissions/requestApproval"


class ApprovalRequest(NamedTuple):
    """An open approval request from codex. The request has one part for each of its tool calls,
    whose ids are `call_ids`. The request is allowed when `pending_parts` is empty.
    """

    request_id: object
    kind: str
    pending_parts: set[str]
    call_ids: list[str]


class CodexThread(RpcSession):
    """The session of one codex thread. `session_id` is the thread's id."""

    opening_labels = (GREETING, HOOKS, THREAD)
    accepted_block_kinds = ACCEPTED_KINDS
    can_compact = True
    accepts_steering = True
    changes_call_input = False

    def _reset(self) -> None:
        super()._reset()
        self.turn_id = ""
        self.cwd = ""  # the working directory as codex spells it
        # The child's launch request, and the same request with the current permission mode.
        self._launch_request: LaunchRequest | None = None
        self._mode_request: LaunchRequest | None = None
        self._model: str | None = None
        self._effort: str | None = None
        self._default_model: str | None = None
        self._next_model: str | None = None  # the model of the next turn, if it changes
        self._configured_servers: Mapping[str, Any] = {}  # MCP servers from codex's own settings
        self._is_stopped = False  # the turn was interrupted while it was starting
        self._requests_by_part: dict[str, ApprovalRequest] = {}

    def _encode_opening(self, request: LaunchRequest) -> bytes:
        self._launch_request = self._mode_request = request
        self._model = request.invocation.model
        effort = request.invocation.effort
        if effort is not None:
            self._effort = choose_supported_effort(effort, SUPPORTED_EFFORTS)
        return self.encode_request(
            GREETING, "initialize", clientInfo=CLIENT_INFO, capabilities=CLIENT_CAPABILITIES
        )

    # -- encoding for the driver --------------------------------------------------------------------

    def encode_prompt(self, message: UserMessage) -> bytes:
        self.turn_id = ""
        self._is_stopped = False
        self.undelivered_count = 0
        return super().encode_prompt(message)

    def _encode_ready_prompt(self, message: UserMessage) -> bytes:
        if message.is_compaction:
            # codex has no field for instructions about the summary.
            return self.encode_request(COMPACTION, "thread/compact/start", threadId=self.session_id)
        options: dict[str, object] = {}
        if self._next_model is not None:
            options = {"model": self._next_model}
        if self._effort is not None:
            options["effort"] = self._effort
        self._next_model = None
        return self.encode_request(
            TURN,
            "turn/start",
            threadId=self.session_id,
            input=_convert_message(message),
            **APPROVAL_POLICY,
            **options,
        )

    def encode_steering_message(self, message: UserMessage) -> bytes | None:
        if not self.turn_id:
            return None
        self.undelivered_count += 1
        return self._encode_steering(STEERING, message)

    def _encode_steering(self, label: str, message: UserMessage) -> bytes:
        params = {
            "threadId": self.session_id,
            "expectedTurnId": self.turn_id,
            "input": _convert_message(message),
        }
        return self.encode_request(label, "turn/steer", **params)

    def record_accepted_steering_message(self) -> None:
        """Record that a message has been added to the thread. codex drops all other messages when
        the turn is interrupted.
        """
        self.undelivered_count = max(0, self.undelivered_count - 1)

    def encode_interrupt(self) -> bytes:
        """Encode an interrupt of the turn, and drop the waiting message. A turn without an id is
        interrupted as soon as codex sends the id.
        """
        self._waiting_message = None
        self._is_stopped = True
        if not self.turn_id:
            return b""
        return self.encode_request(
            STOPPING, "turn/interrupt", threadId=self.session_id, turnId=self.turn_id
        )

    def encode_model_change(self, name: str | None) -> bytes | None:
        """Set the model for the following turns. Return None for the default model if codex has not
        reported which model that is.
        """
        self._model = name
        if not self.session_id:
            return b""
        if name is None:
            self._next_model = self._default_model
        else:
            self._next_model = name
        if self._next_model is None:
            return None
        return b""

    def encode_effort_change(self, level: str | None) -> bytes | None:
        """Set the effort level for the following turns. Return None for codex's default level,
        which is unknown, and for a level that codex does not have.
        """
        if level is None:
            return None
        supported_level = choose_supported_effort(level, SUPPORTED_EFFORTS)
        if supported_level is None:
            return None
        self._effort = supported_level
        return b""

    def encode_permission_mode_change(self, name: str) -> bytes | None:
        """Return b"" if both permission modes need the same arguments for codex, because codex asks
        about each tool call in every mode. Otherwise return None.
        """
        request = self._mode_request
        if request is None or request.policy_bypass:
            return None
        self._mode_request = request._replace(permission_mode=name)
        old_arguments = codex_rules.build_app_server_arguments(request)
        new_arguments = codex_rules.build_app_server_arguments(self._mode_request)
        if new_arguments == old_arguments:
            return b""
        return None

    @property
    def model(self) -> str | None:
        """The model that answers, or None before codex has reported it."""
        return self._model or self._default_model

    def set_running_turn_id(self, turn_id: str) -> None:
        if turn_id == self.turn_id:
            return
        self.turn_id = turn_id
        if self._is_stopped:
            self.outbox.append(self.encode_interrupt())

    def clear_running_turn(self) -> None:
        self.turn_id = ""
        self.forms.requests.clear()

    def stop_background_commands(self, thread_ids: Iterable[str] = ()) -> None:
        """Stop the background commands of an interrupted turn and of its subagents (`thread_ids`).

        On an interrupt, codex itself only stops the call that it is waiting for. Background
        commands would keep running until the conversation ends.
        """
        if self.is_initialized:
            for thread_id in (self.session_id, *thread_ids):
                self.outbox.append(
                    self.encode_request(
                        CLEANING, "thread/backgroundTerminals/clean", threadId=thread_id
                    )
                )

    # -- approval requests -------------------------------------------------------------------------

    def split_approval_request_by_call(
        self, request_id: object, kind: str, call_ids: list[str]
    ) -> list[str]:
        """Return the ids of an approval request's parts, one for each tool call. Return an empty
        result if the request was declined because too many requests are open.
        """
        if not call_ids or len(self._requests_by_part) + len(call_ids) > MAX_OPEN_REQUESTS:
            self.outbox.append(self.encode_decline_response(request_id, kind))
            return []
        request_key = dump_json(request_id).decode()
        part_names = [f"{request_key}.{index}" for index in range(len(call_ids))]
        request = ApprovalRequest(request_id, kind, set(part_names), call_ids)
        self._requests_by_part |= dict.fromkeys(part_names, request)
        return part_names

    def _encode_decision(
        self, permission: PermissionRequest, decision: PermissionDecision
    ) -> bytes:
        """Encode the answer to one part of an approval request: allow only this call, or deny it.
        Raise ValueError if the input was changed.
        """
        answers: Mapping[str, Any] = {}
        if decision.allow and decision.updated_input is not None:
            if permission.tool != QUESTION_TOOL:
                raise ValueError(UNCHANGED_MESSAGE)
            from shim.adapters.codex_items import build_user_input_answers

            answers = build_user_input_answers(permission.vendor_input, decision.updated_input)
        part_name = permission.request_id
        request = self._requests_by_part.pop(part_name, None)
        if request is None:
            return b""
        request.pending_parts.discard(part_name)
        if decision.allow:
            if request.pending_parts:
                return b""
            self._record_user_input(
                request, format_ask_user_question_result(decision.updated_input)
            )
            return self.encode_response(
                request.request_id, result=_build_approval(request.kind, answers)
            )
        for other in request.pending_parts:
            self._requests_by_part.pop(other, None)
        self._record_user_input(request, None)
        return self.encode_decline_response(
            request.request_id, request.kind, stop=decision.ends_turn
        ) + self._encode_denial_reason(permission, decision)

    def _record_user_input(self, request: ApprovalRequest, result_text: str | None) -> None:
        """Record the user's answers as the result of the call. None means that the user dismissed
        the question.
        """
        if request.kind == USER_INPUT:
            self.forms.results.append((request.call_ids[0], result_text or "", result_text is None))

    def _encode_denial_reason(
        self, permission: PermissionRequest, decision: PermissionDecision
    ) -> bytes:
        """Encode a message that tells the model why a call was denied, because codex only reports
        the denial. A subagent cannot receive the reason.
        """
        is_main_thread = permission.vendor_input.get("threadId") == self.session_id
        if not (is_main_thread and self.turn_id and decision.message) or decision.ends_turn:
            return b""
        return self._encode_steering(REASON, UserMessage(DENIED_MESSAGE.format(decision.message)))

    def _encode_form_result(self, request_id: object, result: Mapping[str, Any]) -> bytes:
        return self.encode_response(request_id, result={"content": None, **result, "_meta": None})

    def encode_decline_response(
        self, request_id: object, kind: str, *, stop: bool = False
    ) -> bytes:
        """Encode a response that declines a request of this kind. If `stop` is set, also end the
        turn.
        """
        action = "decline"
        if stop:
            action = "cancel"
        result: dict[str, Any] = {"decision": action}
        if kind == USER_INPUT:
            result = {"answers": {}}
        elif kind == ELICITATION:
            result = {"action": action, "content": None, "_meta": None}
        return self.encode_response(request_id, result=result)

    # -- opening -----------------------------------------------------------------------------------

    def _infer_request_label(self, response: Mapping[str, Any]) -> str | None:
        thread = as_dict(response.get("result")).get("thread")
        if isinstance(thread, dict):
            return THREAD
        return CONFIG

    def _apply_response(self, response: RpcResponse, message: Mapping[str, Any]) -> RpcResponse:
        label, result, error = response
        if error is not None and label != CONFIG:
            return response
        if label == THREAD:
            if self._has_later_turns(result):
                return response._replace(error={"message": "codex did not drop the later turns"})
            self._record_thread(result)
        if not self.is_initialized:
            return response
        if label == THREAD:
            self._open_labels[MODELS] = MODELS
            self.outbox.append(self._encode_line(method="model/list", id=MODELS, params={}))
        elif label == GREETING:
            self.outbox += [
                self.encode_notification("initialized"),
                self.encode_request(CONFIG, "config/read", cwd=self.working_dir),
            ]
        elif label == CONFIG:
            self._configured_servers = as_dict(as_dict(result.get("config")).get("mcp_servers"))
            self.outbox.append(self.encode_request(HOOKS, "hooks/list", cwds=[self.working_dir]))
        elif label == HOOKS:
            return self._open_thread(response)
        elif label == TURN:
            self.set_running_turn_id(get_text(as_dict(result.get("turn")), "id"))
        return response

    def _has_later_turns(self, result: Mapping[str, Any]) -> bool:
        """Return whether codex kept turns that it should have dropped. An old version of codex
        ignores the parameter `lastTurnId`.
        """
        request = self._launch_request
        if request is None or not request.rewind_target:
            return False
        turns = as_list(as_dict(result.get("thread")).get("turns"))
        return not turns or as_dict(turns[-1]).get("id") != request.rewind_target

    def _record_thread(self, result: Mapping[str, Any]) -> None:
        self.session_id = get_text(as_dict(result.get("thread")), "id")
        self.cwd = get_text(result, "cwd")
        model = result.get("model")
        if self._model is None and isinstance(model, str):
            self._default_model = model

    def _open_thread(self, response: RpcResponse) -> RpcResponse:
        """Queue the request that opens the thread. Return an error if codex lists a hook that
        cannot be disabled.
        """
        request = self._launch_request
        configured_servers = self._configured_servers
        assert request is not None
        added_servers = {
            normalize_mcp_name(name): codex_settings.convert_mcp_server_config(server)
            for name, server in request.mcp_servers.all_servers.items()
        }
        server_names = [
            name
            for name in {**added_servers, **configured_servers}
            if name == normalize_mcp_name(name)
        ][:MAX_MCP_SERVERS]
        hooks = codex_rules.build_approval_hook_settings(request, server_names)
        try:
            state = codex_settings.build_disabled_hook_states(
                response.result, has_shim_hook=bool(hooks)
            )
        except ValueError as error:
            return response._replace(error={"message": str(error)})
        config: dict[str, Any] = {BYPASS_HOOK_TRUST: True, "hooks": {**hooks, "state": state}}
        config["mcp_servers"] = codex_settings.build_mcp_server_tables(
            added_servers, configured_servers, server_names
        )
        self.outbox.append(self._encode_thread_start(request, config))
        return response

    def _encode_thread_start(self, request: LaunchRequest, config: Mapping[str, Any]) -> bytes:
        """Encode the request that starts, resumes or forks a thread with these settings."""
        fields: dict[str, object] = {
            "cwd": self.working_dir,
            "config": config,
            **APPROVAL_POLICY,
        }
        if self._model is not None:
            fields["model"] = self._model
        invocation = request.invocation
        instructions = list(
            filter(None, (invocation.system_prompt, invocation.append_system_prompt))
        )
        if instructions:
            fields["developerInstructions"] = "\n\n".join(instructions)
        if request.resume_id is None:
            return self.encode_request(THREAD, "thread/start", **fields)
        operation = "resume"
        if request.resume_id and invocation.fork_session:
            operation = "fork"
        if request.rewind_target:
            fields["lastTurnId"] = request.rewind_target
        return self.encode_request(
            THREAD,
            f"thread/{operation}",
            threadId=request.resume_id,
            excludeTurns=not request.rewind_target,
            **fields,
        )


def _build_approval(kind: str, answers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the response that allows only this call."""
    if kind == USER_INPUT:
        return {"answers": answers}
    if kind == ELICITATION:
        return {"action": "accept", "content": {}, "_meta": None}
    return {"decision": "accept"}


def _convert_message(message: UserMessage) -> list[dict[str, Any]]:
    """Return a message as codex's inputs: texts, and images by URL or with their data."""
    inputs: list[dict[str, Any]] = []
    for part in message.select_blocks(ACCEPTED_KINDS):
        if part.kind == "image":
            url = part.url
            if not url:
                url = f"data:{part.media_type};base64,{part.data}"
            inputs.append({"type": "image", "url": url})
        else:
            inputs.append({"type": "text", "text": part.text, "text_elements": []})
    return inputs
