"""The session of one ACP agent. The protocol is JSON-RPC 2.0 on the agent's stdin and stdout.

A session is opened in steps: `initialize`, `session/new` (or resume, load, fork), model and mode,
and `session/prompt`. Each request is sent after the previous response. If a prompt arrives before
the session is open, the prompt waits until then.
"""

from collections.abc import Mapping

from shim.core.adapter.request import LaunchRequest
from shim.core.claude.argv.models import OfferedModel, choose_supported_effort, parse_offered_models
from shim.core.claude.messages import ALL_KINDS, BlockKinds, UserMessage
from shim.core.claude.permissions import PermissionDecision, PermissionRequest
from shim.core.reading.json_text import dump_json
from shim.core.reading.typed import Any
from shim.core.reading.values import as_dict, get_text, list_dicts
from shim.profiles.acp.blocks import AS_FILE, build_prompt_blocks, list_accepted_block_kinds
from shim.profiles.acp.servers import build_mcp_servers
from shim.profiles.acp.versions import (
    VERSION_1,
    VERSION_2,
    VERSIONS,
    AcpTurnEndDetector,
    AcpVersion,
    build_initialize_params,
)
from shim.profiles.rpc.form import DISMISSED_RESULT, MAX_OPEN_REQUESTS
from shim.profiles.rpc.session import RpcResponse, RpcSession

INVALID_PARAMS = -32602
# The response to a permission request that is not passed on to the frontend.
CANCELLED_RESULT = {"outcome": {"outcome": "cancelled"}}
# Agents read files and run commands themselves, so the shim does not offer these capabilities.
CLIENT_CAPABILITIES = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
# The capability that is offered if the frontend can answer forms.
FORM_CAPABILITY: Mapping[str, Any] = {"elicitation": {"form": {}}}
# Labels for the requests that the shim sends.
STEP_INITIALIZE, STEP_SESSION, STEP_REPLAY, STEP_SETTING, STEP_PROMPT = (
    "initialize",
    "session",
    "replay",
    "setting",
    "prompt",
)
# The label for the request that sets the effort. If the agent refuses it, the turn continues.
STEP_EFFORT = "effort"
EFFORT_CATEGORY = "thought_level"
# Labels for a response to a prompt in version 2: the prompt was accepted, or the turn may have
# ended.
PROMPT_ACCEPTED = "taken"
TURN_MAY_END = "may end"
WRONG_VERSION_TEXT = "the agent uses version {} of its protocol, not 1 or 2"
CHANGED_INPUT_REFUSAL = (
    "Not run: this agent cannot change the input of a call, and the call was allowed "
    "only with a different input."
)
MAX_LOGIN_METHODS = 10  # login methods that an error message lists
# A method that no agent has. While a session is being loaded, the shim calls this method as a probe:
# the error response arrives after the replayed messages.
REPLAY_PROBE_METHOD = "_claude-shim/nothing"
# Methods after which an agent may send the session's history again. opencode does so after a fork.
REPLAYING_METHODS = ("load", "fork")
# The limit for probes in one session. Each probe is answered after one or more replayed messages.
MAX_REPLAY_PROBES = 10_000
# Response key → request label. Recordings contain only the responses.
LABELS_BY_RESULT_KEY = {
    "stopReason": STEP_PROMPT,
    "sessionId": STEP_SESSION,
    "protocolVersion": STEP_INITIALIZE,
}


class AcpSession(RpcSession):
    """The session of one agent that the shim drives with the Agent Client Protocol."""

    changes_call_input = False

    opening_labels = (STEP_INITIALIZE, STEP_SESSION, STEP_SETTING)

    def __init__(
        self,
        modes: Mapping[str, str] = {},
        *,
        sets_model: bool = False,
        offers_draft: bool = False,
        document_format: str = AS_FILE,
        only_urls: bool = False,
        has_server_arguments: bool = False,
        compaction_command: str = "",
    ) -> None:
        """Create a session that is not open yet.

        modes               maps Claude's permission modes to the agent's modes; for a mode that is
                            missing here, the entry for `default` is used
        sets_model          set the model in the session, because the agent has no flag for it
        offers_draft        offer version 2 of the protocol
        document_format     how a document is sent
        only_urls           a session does not accept MCP servers that are started by a command
        has_server_arguments  with `only_urls`: the agent's arguments name the other servers
        compaction_command  the agent's command that compacts its context, or ""
        """
        self._modes = modes
        self._sets_model = sets_model
        self._offered_version = VERSION_2 if offers_draft else VERSION_1
        self._document_format = document_format
        self._only_urls = only_urls
        self._has_server_arguments = has_server_arguments
        self._compaction_command = compaction_command
        super().__init__()

    def _reset(self) -> None:
        super()._reset()
        self.is_loading = False  # whether the agent is replaying earlier turns
        self.has_replayed = False  # whether a message was replayed since the last probe
        self.is_resumed = False  # whether the session had turns before this child started
        self.is_fork = False
        self.unreachable_servers: list[str] = []  # MCP servers that the agent cannot reach
        self.protocol_version: AcpVersion = VERSION_1
        self.prompt_progress = AcpTurnEndDetector()  # only used with version 2
        self.agent_info: Mapping[str, Any] = {}  # the result of `initialize`
        self.can_ask_user = False  # whether the frontend can answer forms
        self.denied_calls: list[str] = []  # denied calls, whose end the agent may never report
        # The reasons why calls were denied. ACP does not pass a reason to the agent's model.
        self.denial_reasons: list[str] = []
        self.must_send_reasons = False  # a person or a hook wrote one of the reasons
        # The permission requests that the agent has cancelled.
        self.withdrawn_requests: list[str] = []
        self._mode = ""
        self._settings: dict[str, str | None] = {}  # the agent's names for the model and the mode
        self._effort: str | None = None
        self._resumed_id: str | None = None
        self._servers: tuple[Mapping[str, Any], ...] = ()  # MCP servers in the format of version 1
        # The result of the request that created, resumed, loaded or forked the session.
        self._session_result: Mapping[str, Any] = {}
        self._open_requests: dict[str, tuple[object, str, str, list[dict[str, Any]]]] = {}
        self._allowed_calls: dict[str, str] = {}  # open call id → the call text that was allowed

    def _encode_opening(self, request: LaunchRequest) -> bytes:
        invocation = request.invocation
        self._mode = request.permission_mode
        model = None
        if self._sets_model:
            model = invocation.model
        self._settings = {
            "model": model,
            "mode": self._map_mode(self._mode),
        }
        self._effort = invocation.effort
        self._resumed_id = request.resume_id
        self.is_resumed = request.resume_id is not None
        self.is_fork = bool(request.resume_id and invocation.fork_session)
        self._servers = build_mcp_servers(request.mcp_servers.all_servers)
        self.can_ask_user = request.can_ask_user()
        capabilities = {**CLIENT_CAPABILITIES, **(FORM_CAPABILITY if self.can_ask_user else {})}
        return self.encode_request(
            STEP_INITIALIZE,
            "initialize",
            **build_initialize_params(self._offered_version.number, capabilities),
        )

    # -- encoding, for the driver ------------------------------------------------------------------

    @property
    def can_compact(self) -> bool:
        return bool(self._compaction_command)

    def _encode_ready_prompt(self, message: UserMessage) -> bytes:
        self._allowed_calls.clear()
        self.denied_calls.clear()
        self._clear_denial_reasons()
        self.prompt_progress.record_sent_prompt(self.last_request_number + 1)
        if message.is_compaction:
            text = f"{self._compaction_command} {message.text}".rstrip()
            prompt_blocks = [{"type": "text", "text": text}]
        else:
            prompt_blocks = build_prompt_blocks(
                message, self.accepted_block_kinds, self._document_format
            )
        return self.encode_request(
            STEP_PROMPT, "session/prompt", sessionId=self.session_id, prompt=prompt_blocks
        )

    def encode_interrupt(self) -> bytes:
        """Return the notification that stops the turn, and drop a waiting user message. The agent
        then sends its response to the open prompt.
        """
        self._waiting_message = None
        self._allowed_calls.clear()
        self._clear_denial_reasons()
        if not self.session_id:
            return b""
        return self.encode_notification("session/cancel", sessionId=self.session_id)

    def encode_model_change(self, name: str | None) -> bytes | None:
        return self._encode_setting_change("model", name)

    def encode_permission_mode_change(self, name: str) -> bytes | None:
        """Return the request that sets the agent's mode, or b"" if the mode stays the same.

        Most of Claude's permission modes map to the same agent mode, because the agent asks about
        each call in every mode.
        """
        previous_mode = self._map_mode(self._mode)
        self._mode = name
        agent_mode = self._map_mode(name)
        if agent_mode == previous_mode:
            return b""
        return self._encode_setting_change("mode", agent_mode)

    def _map_mode(self, name: str) -> str | None:
        return self._modes.get(name, self._modes.get("default"))

    def _encode_setting_change(self, category: str, value: str | None) -> bytes | None:
        """Return the request that sets the model or the mode. The value None restores the initial
        value. Return None if the initial value is unknown.

        Before the session is open, store the value and return b"".
        """
        self._settings[category] = value
        if not self.session_id:
            return b""
        if value is None:
            value = self.find_initial_setting(category)
        if value is None:
            return None
        return self._encode_setting(category, value)

    def encode_effort_change(self, level: str | None) -> bytes:
        """Return the request that sets the effort. The value None restores the initial effort."""
        self._effort = level
        if self.session_id:
            return b"".join(self._encode_effort())
        return b""

    @property
    def _is_ready(self) -> bool:
        return bool(self.session_id) and not (self.is_loading or self.is_changing_settings)

    @property
    def is_changing_settings(self) -> bool:
        """Return whether a change to the model, the mode or the effort still waits for the agent's
        confirmation.
        """
        return self.has_open_request(STEP_SETTING, STEP_EFFORT)

    @property
    def model(self) -> str | None:
        """The model for the next turn, or None if it is unknown."""
        return self._settings.get("model") or self.find_initial_setting("model")

    @property
    def mcp_server_names(self) -> list[str]:
        return [server["name"] for server in self._servers]

    @property
    def accepted_block_kinds(self) -> BlockKinds:
        """The content block kinds that the agent accepts. Until the agent has reported them, all
        kinds are included.
        """
        if not self.agent_info:
            return ALL_KINDS
        return list_accepted_block_kinds(self.agent_info, self._document_format)

    @property
    def login_methods(self) -> list[str]:
        """The names of the agent's login methods."""
        methods = list_dicts(self.agent_info.get("authMethods"))[:MAX_LOGIN_METHODS]
        return [
            str(method.get("name") or method.get("id") or method.get("methodId"))
            for method in methods
        ]

    # -- state for the translator ------------------------------------------------------------------

    def _infer_request_label(self, response: Mapping[str, Any]) -> str | None:
        result = response.get("result")
        if "error" in response:
            return STEP_PROMPT
        if not isinstance(result, dict):
            return None
        labels = (label for key, label in LABELS_BY_RESULT_KEY.items() if key in result)
        return next(labels, STEP_SETTING)

    def _apply_response(self, response: RpcResponse, message: Mapping[str, Any]) -> RpcResponse:
        step, result, error = response
        if error is not None and step not in (STEP_REPLAY, STEP_EFFORT):
            self._waiting_message = None
            return response
        response = RpcResponse(step, result)
        if step == STEP_INITIALIZE and not self._negotiate_version(result):
            text = WRONG_VERSION_TEXT.format(result.get("protocolVersion"))
            return response._replace(error={"message": text})
        if step == STEP_PROMPT and not self.protocol_version.answer_ends_turn:
            may_end = self.prompt_progress.record_prompt_and_detect_turn_end(
                message["id"], is_answered=True
            )
            request_label = PROMPT_ACCEPTED
            if may_end:
                request_label = TURN_MAY_END
            return RpcResponse(request_label, result)
        if self.is_initialized:
            self._advance_steps(step, result)
        elif step == STEP_SESSION:
            self.session_id = get_text(result, "sessionId")
            self._session_result = result
        return response

    def _negotiate_version(self, agent_info: Mapping[str, Any]) -> bool:
        """Store the protocol version that the agent chose. Return whether the shim supports it."""
        version_number = agent_info.get("protocolVersion")
        self.protocol_version = VERSIONS.get(
            version_number if version_number.__class__ is int else 0, VERSION_1
        )
        self.agent_info = agent_info
        return version_number == self.protocol_version.number

    def convert_state_to_prompt_response(self, update: Mapping[str, Any]) -> RpcResponse:
        """Return the prompt response that a session state implies in version 2. The state may end
        the turn.
        """
        ends_turn = self.prompt_progress.detect_turn_end(
            update.get("state"), self.has_open_request(STEP_PROMPT)
        )
        if not self.is_initialized:  # recordings do not contain the shim's requests
            ends_turn = "stopReason" in update
        if ends_turn is None:
            return RpcResponse(TURN_MAY_END, update)
        request_label = PROMPT_ACCEPTED
        if ends_turn:
            request_label = STEP_PROMPT
        return RpcResponse(request_label, update)

    def record_user_message_echo(self) -> None:
        """Record that the agent has echoed the user's message. The echo shows that the prompt is in
        the conversation.
        """
        self.prompt_progress.record_prompt_and_detect_turn_end(
            self.last_request_number, is_answered=False
        )

    # -- permission requests and forms -------------------------------------------------------------

    def reply_to_request(self, request_id: object, **body: object) -> None:
        """Answer an agent's request without asking the frontend.

        A request that reuses the id of an open permission request gets no answer. The agent would
        mistake such an answer for the user's decision about the open request.
        """
        if not self._is_open_request(dump_json(request_id).decode()):
            self.outbox.append(self.encode_response(request_id, **body))

    def register_permission_request(
        self, request_id: object, call_id: str, options: object, call_text: str = ""
    ) -> str | None:
        """Store a permission request until it is answered. Return its key, or None if the frontend
        need not be asked.

        A request that reuses the id of an open request is ignored. A request above the limit is
        cancelled. An agent may ask several times about one call, once for each action. If a call
        was allowed, it stays allowed as long as `call_text`, which the frontend sees, is the same.
        """
        request_key = dump_json(request_id).decode()
        if self._is_open_request(request_key):
            return None
        if len(self._open_requests) >= MAX_OPEN_REQUESTS:
            self.reply_to_request(request_id, result=CANCELLED_RESULT)
            return None
        self._open_requests[request_key] = (
            request_id,
            call_id,
            call_text,
            list_dicts(options),
        )
        if self._allowed_calls.get(call_id) == call_text:
            self.outbox.append(self._encode_choice(request_key, PermissionDecision(allow=True)))
            return None
        return request_key

    def register_form_request(
        self, request_id: object, call_id: str, params: Mapping[str, Any]
    ) -> str | None:
        """Store a form until it is answered. Return its key, or None if the form was dismissed."""
        request_key = dump_json(request_id).decode()
        if self._is_open_request(request_key) or len(self.forms.requests) >= MAX_OPEN_REQUESTS:
            self.reply_to_request(request_id, result=DISMISSED_RESULT)
            return None
        self.forms.requests[request_key] = request_id, call_id, params
        return request_key

    def is_awaiting_permission(self, call_id: str) -> bool:
        """Return whether this call has an open permission request."""
        return any(request[1] == call_id for request in self._open_requests.values())

    def _is_open_request(self, request_key: str) -> bool:
        """Return whether an open permission request or form has this key."""
        if request_key in self._open_requests:
            return True
        return request_key in self.forms.requests

    def discard_allowed_call(self, call_id: str) -> None:
        """Discard the stored permission for a call, because a later call may have the same id."""
        self._allowed_calls.pop(call_id, None)

    def discard_allowed_calls(self) -> None:
        """Discard the stored permissions for all calls at the end of the turn."""
        self._allowed_calls.clear()

    def _clear_denial_reasons(self) -> None:
        self.denial_reasons.clear()
        self.must_send_reasons = False

    def encode_denial_reasons_prompt(self) -> bytes:
        """Return a prompt that tells the agent's model why calls were denied. The model continues
        with this prompt.
        """
        lines = [f"A tool call was not allowed: {reason}" for reason in self.denial_reasons]
        return self._encode_ready_prompt(
            UserMessage("\n".join([*lines, "Continue without this call."]))
        )

    def _encode_decision(
        self, permission: PermissionRequest, decision: PermissionDecision
    ) -> bytes:
        """Return the response to a permission request, which chooses one of the agent's options.
        Raise ValueError if the decision changes the tool's input.
        """
        if decision.allow and decision.updated_input is not None:
            raise ValueError(CHANGED_INPUT_REFUSAL)
        return self._encode_choice(permission.request_id, decision)

    def _encode_choice(self, request_key: str, decision: PermissionDecision) -> bytes:
        """Return the response that chooses one of the agent's options. Never choose an option that
        allows more than this one call.
        """
        if request_key not in self._open_requests:
            return b""
        request_id, call_id, call_text, options = self._open_requests.pop(request_key)
        if decision.allow:
            self._allowed_calls[call_id] = call_text
        else:
            self.denied_calls.append(call_id)
            if decision.message and not decision.ends_turn:
                self.denial_reasons.append(decision.message)
                self.must_send_reasons |= decision.is_message_for_model
        option_kinds = ("allow_once",) if decision.allow else ("reject_once", "reject_always")
        option = next(
            (
                candidate
                for option_kind in option_kinds
                for candidate in options
                if candidate.get("kind") == option_kind
            ),
            None,
        )
        outcome: dict[str, Any] = {"outcome": "cancelled"}
        if option is not None and not decision.ends_turn:
            outcome = {"outcome": "selected", "optionId": option.get("optionId")}
        return self.encode_response(request_id, result={"outcome": outcome})

    # -- opening the session -----------------------------------------------------------------------

    def _advance_steps(self, step: str, result: Mapping[str, Any]) -> None:
        if step == STEP_INITIALIZE:
            self.outbox.append(self._encode_session_request(result))
        elif step == STEP_SESSION:
            self.session_id = str(result.get("sessionId") or self._resumed_id or "")
            self._session_result = result
            self._continue_loading()
        elif step == STEP_REPLAY:
            self.is_loading = self.has_replayed and self.last_request_number < MAX_REPLAY_PROBES
            self.has_replayed = False
            self._continue_loading()

    def _continue_loading(self) -> None:
        """Queue the next probe request while the agent replays earlier turns. After the replay,
        queue the requests for the settings.
        """
        if self.is_loading:
            self.outbox.append(self.encode_request(STEP_REPLAY, REPLAY_PROBE_METHOD))
        else:
            self.outbox += self._encode_settings()

    def _encode_session_request(self, agent_info: Mapping[str, Any]) -> bytes:
        """Return the request that creates, resumes, loads or forks a session, depending on the
        agent's capabilities.
        """
        reachable = [server for server in self._servers if "url" in server or not self._only_urls]
        converted = [
            (server["name"], self.protocol_version.convert_server(server, agent_info))
            for server in reachable
        ]
        self.unreachable_servers = [name for name, config in converted if config is None]
        if not self._has_server_arguments:
            self.unreachable_servers += [
                server["name"] for server in self._servers if server not in reachable
            ]
        session_fields = {
            "cwd": self.working_dir,
            "mcpServers": [config for _, config in converted if config is not None],
        }
        if self._resumed_id is None:
            return self.encode_request(STEP_SESSION, "session/new", **session_fields)
        method = self.protocol_version.choose_method(agent_info, self.is_fork)
        self.is_loading = method in REPLAYING_METHODS
        return self.encode_request(
            STEP_SESSION, f"session/{method}", sessionId=self._resumed_id, **session_fields
        )

    def _encode_settings(self) -> list[bytes]:
        """Return the requests that set the model, the mode and the effort, if they differ from the
        session's initial values.
        """
        model = self._settings["model"]
        mode = self._settings["mode"]
        requests = []
        if model not in (None, self.find_initial_setting("model")):
            requests.append(self._encode_setting("model", model))
        # An agent without modes has no initial mode.
        if mode is not None and self.find_initial_setting("mode") not in (None, mode):
            requests.append(self._encode_setting("mode", mode))
        if self._effort is None:
            return requests
        return [*requests, *self._encode_effort()]

    def _encode_effort(self) -> list[bytes]:
        """Return the request that sets the effort, in a list. If the agent lacks this level, set
        the next lower level. Return [] if the agent has no option for the effort.
        """
        option = self._find_option(EFFORT_CATEGORY)
        level = self._effort
        if option is None:
            return []
        values = [choice.get("value") for choice in list_dicts(option.get("options"))]
        if level is None:
            value = option.get("currentValue")
        else:
            value = choose_supported_effort(level, values)
        if value is None:
            return []
        return [self._encode_option(STEP_EFFORT, option, value)]

    def _encode_setting(self, category: str, value: str | None) -> bytes:
        option = self._find_option(category)
        if option is not None:
            return self._encode_option(STEP_SETTING, option, value)
        return self.encode_request(
            STEP_SETTING,
            f"session/set_{category}",
            **{"sessionId": self.session_id, f"{category}Id": value},
        )

    def _encode_option(self, step: str, option: Mapping[str, Any], value: object) -> bytes:
        fields = {
            "sessionId": self.session_id,
            "configId": option.get(self.protocol_version.option_key),
            "value": value,
        }
        return self.encode_request(
            step, "session/set_config_option", **fields, **self.protocol_version.value_fields
        )

    def _find_option(self, category: str) -> Mapping[str, Any] | None:
        """Return the agent's configuration option for the model, the mode or the effort, or None."""
        options = list_dicts(self._session_result.get("configOptions"))
        return next((option for option in options if option.get("category") == category), None)

    def list_offered_models(self) -> tuple[OfferedModel, ...]:
        """Return the models that the agent offers, or () if it does not list them."""
        option = self._find_option("model")
        if option is not None:
            return parse_offered_models(option.get("options"), "value", "name")
        models = as_dict(self._session_result.get("models")).get("availableModels")
        return parse_offered_models(models, "modelId", "name")

    def find_initial_setting(self, category: str) -> str | None:
        """Return the session's initial model or mode, or None if the agent has not reported it."""
        option = self._find_option(category)
        mode_id = as_dict(self._session_result.get(f"{category}s")).get(
            f"current{category.capitalize()}Id"
        )
        value = mode_id
        if option is not None:
            value = option.get("currentValue")
        if isinstance(value, str):
            return value
        return None

    def _encode_line(self, **message: object) -> bytes:
        return super()._encode_line(**{"jsonrpc": "2.0", **message})
