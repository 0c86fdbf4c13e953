"""One `codex app-server`: the thread that it holds, and what it was asked. Measured with 0.169.0.

Sans-IO: each method gives the bytes of whole lines. A thread is opened step by step, each by the
answer to the step before: `initialize`, `config/read`, `hooks/list`, then `thread/start` (or
resume, fork), then `turn/start`. A message that comes earlier waits. Its lines are JSON-RPC without
the word `jsonrpc`.
"""

from collections.abc import Callable, Iterable, Mapping

from shim.adapters import codex_settings
from shim.core.claude.messages import BlockKinds, UserMessage
from shim.core.policy.policy import normalize_mcp_name
from shim.core.reading.json_text import dump_json
from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import as_dict
from shim.profiles.rpc.form import OpenElicitationForms
from shim.profiles.rpc.peer import JsonRpcPeer, RpcResponse

MAX_PENDING_REQUESTS = 1000  # of codex's that wait for their answer
MAX_MCP_SERVERS = 100  # of MCP, that are told to ask
GREETING, CONFIG, HOOKS, THREAD, TURN = "greeting", "config", "hooks", "thread", "turn"
STOPPING, STEERING, REASON, CLEANING = "stopping", "steering", "reason", "cleaning"
OPENING_STEPS = (GREETING, HOOKS, THREAD)  # steps without which there is no thread
ACCEPTED_KINDS: BlockKinds = frozenset(("image", "url"))
# it asks before each command and each patch, in every sandbox
APPROVAL_POLICY = {"approvalPolicy": "untrusted"}
# Experimental: what asks a person, `request_user_input`, and `excludeTurns`.
CLIENT_CAPABILITIES = {"experimentalApi": True, "requestAttestation": False}
# a hook that nobody has reviewed is left out without a word, also ours
BYPASS_HOOK_TRUST = "bypass_hook_trust"


class CodexThreadParams(NamedTuple):
    """How a thread begins. `resume_id` is the id of one that goes on, in another one if `fork`.

    `instructions` stand behind codex's own, `servers` of MCP beside those that codex is set up
    with: name → configuration as Claude has it. `build_hooks` gives our hooks, as codex's table,
    for the names of all servers.
    """

    cwd: str
    build_hooks: Callable[[list[str]], Mapping[str, Any]]
    resume_id: str | None = None
    fork: bool = False
    model: str | None = None
    effort: str | None = None
    instructions: str = ""
    servers: Mapping[str, Mapping[str, Any]] = {}


class ApprovalRequest(NamedTuple):
    """A request of codex's that waits. It is allowed once all its `pending_parts` are, one for each
    of its `call_ids`.
    """

    request_id: object
    kind: str
    pending_parts: set[str]
    call_ids: list[str]


class CodexThread:
    """One thread. It is greeted again when another child takes its place."""

    accepted_block_kinds = ACCEPTED_KINDS

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self.outbox: list[bytes] = []
        self.thread_id = self.turn_id = ""
        self.cwd = ""  # as codex names it
        self.is_greeted = False  # False where a recording is read, of which our half is not known
        self.can_accept_prompts = True  # whether a thread is there, or may come
        self.peer = JsonRpcPeer()
        self._params = CodexThreadParams("", lambda servers: {})
        self._waiting_message: UserMessage | None = None
        self._configured_servers: Mapping[str, Any] = {}  # of MCP, that codex is set up with
        self.pending_steering_count = 0  # messages of this turn that codex has not taken
        self._is_stopped = False  # the turn that is about to begin is not wanted any more
        self._default_model: str | None = None
        # the model that the next turn is to have, where it is another one
        self._next_model: str | None = None
        self._requests_by_part: dict[str, ApprovalRequest] = {}  # by each part
        self.forms = (
            OpenElicitationForms()
        )  # what MCP servers want to know, and all answers of a person

    def encode_handshake(self, params: CodexThreadParams) -> bytes:
        self._reset()  # another child knows nothing of what was before
        self.is_greeted, self._params = True, params
        client = {"name": "claude-shim", "title": None, "version": "1"}
        return self.peer.encode_request(
            GREETING, "initialize", clientInfo=client, capabilities=CLIENT_CAPABILITIES
        )

    def encode_prompt(self, message: UserMessage) -> bytes:
        """The message of a turn; nothing yet while there is no thread."""
        self.turn_id, self._is_stopped, self.pending_steering_count = "", False, 0
        if not self.thread_id:
            self._waiting_message = message
            return b""
        options: dict[str, object] = {} if self._next_model is None else {"model": self._next_model}
        if self._params.effort is not None:
            options["effort"] = self._params.effort
        self._next_model = None
        return self.peer.encode_request(
            TURN,
            "turn/start",
            threadId=self.thread_id,
            input=_convert_message(message),
            **APPROVAL_POLICY,
            **options,
        )

    def encode_steering_message(self, message: UserMessage) -> bytes | None:
        """A message into the turn that runs; None where no turn is known to run."""
        if not self.turn_id:
            return None
        self.pending_steering_count += 1
        params = {
            "threadId": self.thread_id,
            "expectedTurnId": self.turn_id,
            "input": _convert_message(message),
        }
        return self.peer.encode_request(STEERING, "turn/steer", **params)

    def record_accepted_steering_message(self) -> None:
        """A message stands in the thread: what was accepted before that is lost when the turn is
        interrupted.
        """
        self.pending_steering_count = max(0, self.pending_steering_count - 1)

    def encode_denial_reason_message(self, text: str) -> bytes:
        """Words for the model about a call that was denied: codex tells it only that the call was."""
        if not self.turn_id:
            return b""
        params = {
            "threadId": self.thread_id,
            "expectedTurnId": self.turn_id,
            "input": _convert_message(UserMessage(text)),
        }
        return self.peer.encode_request(REASON, "turn/steer", **params)

    def encode_interrupt(self) -> bytes:
        """Stop the turn: codex ends it by itself. A message that waits is never said."""
        self._waiting_message, self._is_stopped = None, True
        if not self.turn_id:  # it is stopped when codex names it
            return b""
        return self.peer.encode_request(
            STOPPING, "turn/interrupt", threadId=self.thread_id, turnId=self.turn_id
        )

    def encode_model_change(self, name: str | None) -> bytes | None:
        """Another model from the next turn on, None is codex's own; gives back None where that one
        is not known.
        """
        self._params = self._params._replace(model=name)
        if not self.thread_id:
            return b""
        self._next_model = self._default_model if name is None else name
        return None if self._next_model is None else b""

    def encode_effort_change(self, level: str) -> bytes:
        """Another effort from the next turn on."""
        self._params = self._params._replace(effort=level)
        return b""

    @property
    def model(self) -> str | None:
        """The model that answers: the one that was asked for, or codex's own."""
        return self._params.model or self._default_model

    def set_running_turn_id(self, turn_id: str) -> None:
        """codex named the turn that runs."""
        if turn_id == self.turn_id:
            return
        self.turn_id = turn_id
        if self._is_stopped:
            self.outbox.append(self.encode_interrupt())

    def clear_running_turn(self) -> None:
        """The turn has ended."""
        self.turn_id = ""
        self.forms.requests.clear()

    def stop_background_commands(self, thread_ids: Iterable[str] = ()) -> None:
        """End the background commands of an interrupted turn, and those of its subagents'
        `thread_ids`.

        On an interrupt, codex itself ends only the call that it waits for. Background commands
        would run until the conversation ends.
        """
        if self.is_greeted:
            for thread_id in (self.thread_id, *thread_ids):
                self.outbox.append(
                    self.peer.encode_request(
                        CLEANING, "thread/backgroundTerminals/clean", threadId=thread_id
                    )
                )

    # -- its questions -----------------------------------------------------------------------------

    def split_approval_request_by_call(
        self, request_id: object, kind: str, call_ids: list[str]
    ) -> list[str]:
        """The names under which the parts of a question wait for `encode_permission_response`; none where it
        was refused at once.
        """
        if not call_ids or len(self._requests_by_part) + len(call_ids) > MAX_PENDING_REQUESTS:
            self.outbox.append(self.encode_decline_response(request_id, kind))
            return []
        request_key = dump_json(request_id).decode()
        part_names = [f"{request_key}.{index}" for index in range(len(call_ids))]
        request = ApprovalRequest(request_id, kind, set(part_names), call_ids)
        self._requests_by_part |= dict.fromkeys(part_names, request)
        return part_names

    def encode_permission_response(
        self,
        part_name: str,
        *,
        allow: bool,
        stop: bool,
        answers: Mapping[str, Any] | None = None,
        result_text: str = "",
    ) -> bytes:
        """The answer to a part of a question. What would allow more than this call is never chosen.

        `answers` are those of a person, `result_text` the same for whom the call is shown to.
        """
        request = self._requests_by_part.pop(part_name, None)
        if request is None:
            return b""
        if allow:
            request.pending_parts.discard(part_name)
            if request.pending_parts:
                return b""
            if request.kind == USER_INPUT:
                self.forms.results.append((request.call_ids[0], result_text, False))
            return self.peer.encode_response(
                request.request_id, result=_build_approval(request.kind, answers or {})
            )
        for other in request.pending_parts:
            self._requests_by_part.pop(other, None)
        if request.kind == USER_INPUT:
            self.forms.results.append((request.call_ids[0], "", True))
        return self.encode_decline_response(request.request_id, request.kind, stop=stop)

    def encode_form_answer(
        self, form_name: str, answered_input: Mapping[str, Any] | None, *, allow: bool, stop: bool
    ) -> bytes:
        """The answer to a form of a server's."""
        request_id = self.forms.requests[form_name][0]
        form_answer = self.forms.close_form_with_response(
            form_name, answered_input, allow=allow, ends_turn=stop
        )
        return self.peer.encode_response(
            request_id, result={"content": None, **form_answer, "_meta": None}
        )

    def encode_decline_response(
        self, request_id: object, kind: str, *, stop: bool = False
    ) -> bytes:
        """No, in the words of a question. `encode_stop`: the turn is to end with it."""
        if kind == USER_INPUT:
            return self.peer.encode_response(request_id, result={"answers": {}})
        if kind == ELICITATION:
            result = {"action": "cancel" if stop else "decline", "content": None, "_meta": None}
            return self.peer.encode_response(request_id, result=result)
        return self.peer.encode_response(
            request_id, result={"decision": "cancel" if stop else "decline"}
        )

    # -- the steps ---------------------------------------------------------------------------------

    def read_response(self, message: Mapping[str, Any]) -> RpcResponse | None:
        """An answer of codex's; None for one to nothing that was asked."""
        response = (
            self.peer.match_response_to_request(message)
            if self.is_greeted
            else _infer_response(message)
        )
        if response is None:
            return None
        if response.request_label == HOOKS and response.error is None:
            response = self._open_thread(response)
        if response.error is not None:
            if response.request_label in OPENING_STEPS:
                self._waiting_message, self.can_accept_prompts = None, False
            if response.request_label != CONFIG:
                return response
        if response.request_label == THREAD:
            self.thread_id = str(as_dict(response.result.get("thread")).get("id") or "")
            self.cwd = str(response.result.get("cwd") or "")
            model = response.result.get("model")
            if self._params.model is None and isinstance(model, str):
                self._default_model = model
        if self.is_greeted:
            self._continue_opening(response)
        return response

    def _continue_opening(self, response: RpcResponse) -> None:
        if response.request_label == GREETING:
            cwd = self._params.cwd
            self.outbox += [
                self.peer.encode_notification("initialized"),
                self.peer.encode_request(CONFIG, "config/read", cwd=cwd),
            ]
        elif response.request_label == CONFIG:
            self._configured_servers = as_dict(
                as_dict(response.result.get("config")).get("mcp_servers")
            )
            self.outbox.append(
                self.peer.encode_request(HOOKS, "hooks/list", cwds=[self._params.cwd])
            )
        elif response.request_label == THREAD and self._waiting_message is not None:
            message, self._waiting_message = self._waiting_message, None
            self.outbox.append(self.encode_prompt(message))
        elif response.request_label == TURN:
            self.set_running_turn_id(str(as_dict(response.result.get("turn")).get("id") or ""))

    def _open_thread(self, response: RpcResponse) -> RpcResponse:
        """Open the thread, where the hooks that codex lists can be kept from deciding."""
        params, configured_servers = self._params, self._configured_servers
        added_servers = {
            normalize_mcp_name(name): codex_settings.convert_mcp_server_config(server)
            for name, server in params.servers.items()
        }
        server_names = [
            name
            for name in {**added_servers, **configured_servers}
            if name == normalize_mcp_name(name)
        ][:MAX_MCP_SERVERS]
        hooks = params.build_hooks(server_names)
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
        self.outbox.append(self._encode_thread_start(config))
        return response

    def _encode_thread_start(self, config: Mapping[str, Any]) -> bytes:
        """A new thread with these settings, or the one that goes on."""
        params = self._params
        fields: dict[str, object] = {"cwd": params.cwd, "config": config, **APPROVAL_POLICY}
        if params.model is not None:
            fields["model"] = params.model
        if params.instructions:
            fields["developerInstructions"] = params.instructions
        if params.resume_id is None:
            return self.peer.encode_request(THREAD, "thread/start", **fields)
        operation = "fork" if params.fork else "resume"
        return self.peer.encode_request(
            THREAD, f"thread/{operation}", threadId=params.resume_id, excludeTurns=True, **fields
        )


COMMAND_APPROVAL = "item/commandExecution/requestApproval"
PATCH_APPROVAL = "item/fileChange/requestApproval"
USER_INPUT = "item/tool/requestUserInput"
ELICITATION = "mcpServer/elicitation/request"
PERMISSIONS_APPROVAL = "item/permissions/requestApproval"


def _build_approval(kind: str, answers: Mapping[str, Any]) -> dict[str, Any]:
    """Yes to this call alone, in the words of a question."""
    if kind == USER_INPUT:
        return {"answers": answers}
    if kind == ELICITATION:
        return {"action": "accept", "content": {}, "_meta": None}
    return {"decision": "accept"}


def _convert_message(message: UserMessage) -> list[dict[str, Any]]:
    """A message as codex takes it: texts, and images by their address or as they are."""
    inputs: list[dict[str, Any]] = []
    for part in message.select_blocks(ACCEPTED_KINDS):
        if part.kind == "image":
            inputs.append(
                {"type": "image", "url": part.url or f"data:{part.media_type};base64,{part.data}"}
            )
        else:
            inputs.append({"type": "text", "text": part.text, "text_elements": []})
    return inputs


def _infer_response(message: Mapping[str, Any]) -> RpcResponse | None:
    """An answer in a recording, whose step shows in its form."""
    result = message.get("result")
    if isinstance(result, dict) and isinstance(result.get("thread"), dict):
        return RpcResponse(THREAD, result)
    return RpcResponse(CONFIG, {})
