"""One agent that speaks JSON-RPC 2.0 on its stdin and stdout: what it was asked, and the session
that it holds.

Sans-IO: each method gives the bytes of whole lines. A session is opened step by step, each by the
answer to the step before: `initialize`, then `session/new` (or resume, load, fork), then the model
and the mode, then the prompt. A prompt that comes earlier waits.
"""

from collections.abc import Mapping

from shim.core.claude.argv.models import choose_supported_effort
from shim.core.claude.messages import ALL_KINDS, BlockKinds, UserMessage
from shim.core.reading.json_text import dump_json
from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import as_dict, as_list
from shim.profiles.acp.blocks import AS_FILE, build_prompt_blocks, list_accepted_block_kinds
from shim.profiles.acp.versions import (
    VERSION_1,
    VERSIONS,
    AcpTurnEndDetector,
    AcpVersion,
    build_initialize_params,
)
from shim.profiles.rpc.form import DISMISSED_RESULT, OpenElicitationForms
from shim.profiles.rpc.peer import (
    MAX_OPEN_REQUESTS,
    JsonRpcPeer,
    RpcResponse,
    parse_response,
)

INVALID_PARAMS = -32602
# the answer to a question that nobody is asked
CANCELLED_RESULT = {"outcome": {"outcome": "cancelled"}}
# An agent reads files and runs commands by itself: nothing of that is offered.
CLIENT_CAPABILITIES = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
# where the frontend can answer them
FORM_CAPABILITY: Mapping[str, Any] = {"elicitation": {"form": {}}}
# The steps of a session, and what was answered to them.
STEP_INITIALIZE, STEP_SESSION, STEP_REPLAY, STEP_SETTING, STEP_PROMPT = (
    "initialize",
    "session",
    "replay",
    "setting",
    "prompt",
)
# a setting without which the turn goes on, and its option's category
STEP_EFFORT, EFFORT_CATEGORY = "effort", "thought_level"
PROMPT_ACCEPTED, TURN_MAY_END = "taken", "may end"  # what the prompt is, and its turn, in version 2
WRONG_VERSION_TEXT = "the agent speaks version {} of its protocol, not 1 or 2"
MAX_LOGIN_METHODS = 10  # ways to log in that are told
# Asked while a session is loaded: nobody has it, and its answer stands behind what was said before
# it.
REPLAY_PROBE_METHOD = "_claude-shim/nothing"
# Methods after which an agent may send the session's history again. opencode does so after a fork.
REPLAYING_METHODS = ("load", "fork")
# such questions for one session: one is answered behind one or more of its old messages
MAX_REPLAY_PROBES = 10_000


class AcpSessionParams(NamedTuple):
    """How a session begins. `resumed_id` is the agent's own id of one that goes on, in another one
    if `is_fork`.

    `mode` is the agent's own name of a mode, `effort` a level in Claude's words, `servers` are MCP
    servers as version 1 has them. `protocol_version` of the protocol is offered to the agent.
    `document_format`: how those of a message are said. `answers_forms`: the frontend answers
    questions to the person. `only_urls`: a server that is a command is none for the agent.
    """

    cwd: str
    resumed_id: str | None = None
    is_fork: bool = False
    model: str | None = None
    mode: str | None = None
    effort: str | None = None
    servers: tuple[Mapping[str, Any], ...] = ()
    protocol_version: int = VERSION_1.number
    document_format: str = AS_FILE
    answers_forms: bool = False
    only_urls: bool = False


class AcpSession:
    """One agent. It is greeted again when another child takes its place."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self.outbox: list[bytes] = []
        self.session_id = ""
        self.is_loading = False  # what the agent says now was said in an earlier turn
        self.unreachable_servers: list[str] = []  # servers of MCP that the agent cannot reach
        self.has_replayed = False  # it said something of an earlier turn since it was asked last
        # False where a recording is read, of which our half is not known
        self.is_initialized = False
        self.protocol_version: AcpVersion = VERSION_1
        self.prompt_progress = AcpTurnEndDetector()  # of version 2
        self.agent_info: Mapping[str, Any] = {}  # what it said of itself
        self.open_forms = OpenElicitationForms()
        # questions whose answers the agent does not want any more
        self.withdrawn_requests: list[str] = []
        self._params = AcpSessionParams("")
        self._peer = JsonRpcPeer(jsonrpc="2.0")
        self._waiting_message: UserMessage | None = None
        # what the agent said of the session when it began
        self._session_result: Mapping[str, Any] = {}
        self._open_requests: dict[str, tuple[object, str, str, list[Mapping[str, Any]]]] = {}
        self._allowed_calls: dict[str, str] = {}  # open calls → what of each was allowed
        self.can_accept_prompts = True  # whether a session is there, or may come
        self.denied_calls: list[str] = []  # calls whose end the agent may never say
        # why calls were denied, which the agent's model was not told
        self.denial_reasons: list[str] = []

    def encode_initialize(self, params: AcpSessionParams) -> bytes:
        self._reset()  # another child knows nothing of what was before
        self.is_initialized, self._params = True, params
        capabilities = {**CLIENT_CAPABILITIES, **(FORM_CAPABILITY if params.answers_forms else {})}
        return self._peer.encode_request(
            STEP_INITIALIZE,
            "initialize",
            **build_initialize_params(params.protocol_version, capabilities),
        )

    def encode_prompt(self, message: UserMessage) -> bytes:
        """The message of a turn; nothing yet while there is no session."""
        if not self._is_ready:
            self._waiting_message = message
            return b""
        self._waiting_message = None
        return self._encode_prompt(message)

    def encode_cancel(self) -> bytes:
        """Stop the turn; the agent answers its prompt. A prompt that waits is never said."""
        self._waiting_message = None
        self._allowed_calls.clear()  # what was allowed is not allowed again behind it
        self.denial_reasons.clear()
        return (
            self._peer.encode_notification("session/cancel", sessionId=self.session_id)
            if self.session_id
            else b""
        )

    def encode_setting_change(self, category: str, value: str | None) -> bytes | None:
        """Another model or mode; None: the agent's own, which is the one that the session began
        with.

        Gives back None where that is not known. A session that is not open yet begins with it.
        """
        change: dict[str, Any] = {category: value}
        self._params = self._params._replace(**change)
        if not self.session_id:
            return b""
        value = self.find_initial_setting(category) if value is None else value
        return None if value is None else self._encode_setting(category, value)

    def encode_effort_change(self, level: str | None) -> bytes:
        """How hard the model is to try; None: as hard as when the session began."""
        self._params = self._params._replace(effort=level)
        return b"".join(self._encode_effort()) if self.session_id else b""

    @property
    def can_frontend_answer_forms(self) -> bool:
        """Whether the frontend answers questions to the person."""
        return self._params.answers_forms

    @property
    def _is_ready(self) -> bool:
        """Whether the agent can be given a message."""
        return bool(self.session_id) and not (self.is_loading or self.is_changing_settings)

    @property
    def is_changing_settings(self) -> bool:
        """Whether the agent has not answered yet that it has another model, mode or effort."""
        return self._peer.has_open_request(STEP_SETTING) or self._peer.has_open_request(STEP_EFFORT)

    @property
    def model(self) -> str | None:
        """The model that answers: the one that was asked for, or the agent's own."""
        return self._params.model or self.find_initial_setting("model")

    @property
    def mcp_server_names(self) -> list[str]:
        """The names of the servers of MCP that the agent was given."""
        return [server["name"] for server in self._params.servers]

    @property
    def accepted_block_kinds(self) -> BlockKinds:
        """What a message may have beside its text; everything until the agent has said what it
        takes.
        """
        return (
            list_accepted_block_kinds(self.agent_info, self._params.document_format)
            if self.agent_info
            else ALL_KINDS
        )

    @property
    def login_methods(self) -> list[str]:
        """The agent's ways to log in, in its words."""
        methods = [
            method
            for method in as_list(self.agent_info.get("authMethods"))
            if isinstance(method, dict)
        ][:MAX_LOGIN_METHODS]
        return [
            str(method.get("name") or method.get("id") or method.get("methodId"))
            for method in methods
        ]

    @property
    def is_resumed(self) -> bool:
        """Whether the session had turns before this child."""
        return self._params.resumed_id is not None

    def read_response(self, message: Mapping[str, Any]) -> RpcResponse | None:
        """An answer of the agent's; None for one to nothing that was asked."""
        response = self._peer.match_response_to_request(message)
        if (
            response is None
            and not self.is_initialized
            and (guessed_step := _guess_step(message)) is not None
        ):
            response = parse_response(guessed_step, message)
        if response is None:
            return None
        step, result, error = response
        if error is not None and step not in (STEP_REPLAY, STEP_EFFORT):
            self._waiting_message, self.can_accept_prompts = (
                None,
                self.can_accept_prompts and step == STEP_PROMPT,
            )
            return response
        if step == STEP_INITIALIZE and not self._negotiate_version(result):
            self._waiting_message, self.can_accept_prompts = None, False
            return RpcResponse(
                step, result, {"message": WRONG_VERSION_TEXT.format(result.get("protocolVersion"))}
            )
        if step == STEP_PROMPT and not self.protocol_version.answer_ends_turn:
            return RpcResponse(
                TURN_MAY_END
                if self.prompt_progress.record_prompt_and_detect_turn_end(
                    message["id"], is_answered=True
                )
                else PROMPT_ACCEPTED,
                result,
            )
        if self.is_initialized:
            self._advance_steps(step, result)
        elif step == STEP_SESSION:
            self.session_id, self._session_result = str(result.get("sessionId") or ""), result
        return RpcResponse(step, result)

    def _negotiate_version(self, agent_info: Mapping[str, Any]) -> bool:
        """Whether the version that the agent chose is one of ours."""
        version_number = agent_info.get("protocolVersion")
        self.protocol_version = VERSIONS.get(
            version_number if version_number.__class__ is int else 0, VERSION_1
        )
        self.agent_info = agent_info
        return version_number == self.protocol_version.number

    def convert_state_to_prompt_response(self, update: Mapping[str, Any]) -> RpcResponse:
        """A state of the session, in version 2: the answer to the prompt where it ends the turn, or
        may end it.
        """
        ends_turn = self.prompt_progress.detect_turn_end(
            update.get("state"), self._peer.has_open_request(STEP_PROMPT)
        )
        if not self.is_initialized:  # it is not known what the agent was asked
            ends_turn = "stopReason" in update
        return RpcResponse(
            TURN_MAY_END if ends_turn is None else STEP_PROMPT if ends_turn else PROMPT_ACCEPTED,
            update,
        )

    def record_user_message_echo(self) -> None:
        """The agent says the user's message again: the prompt has its place."""
        self.prompt_progress.record_prompt_and_detect_turn_end(
            self._peer.last_number, is_answered=False
        )

    def reply_to_request(self, request_id: object, **body: object) -> None:
        """Answer a request without a question to anybody.

        One with the id of an open question has no answer: it would be taken for the answer to that
        question.
        """
        if not self._is_open_request(dump_json(request_id).decode()):
            self.outbox.append(self._peer.encode_response(request_id, **body))

    def register_permission_request(
        self, request_id: object, call_id: str, options: object, call_text: str = ""
    ) -> str | None:
        """The name under which a question about a call is kept until `encode_permission_response`; None where
        nobody is to be asked.

        It has its answer by now where too many are open, and none where its id is that of an open
        question. A call may be asked about again, for each thing that it does: the answer is the
        same as long as the frontend would be shown the same `call_text`.
        """
        request_key = dump_json(request_id).decode()
        # an answer to this id would be taken for the answer to the open question
        if self._is_open_request(request_key):
            return None
        if len(self._open_requests) >= MAX_OPEN_REQUESTS:
            self.reply_to_request(request_id, result=CANCELLED_RESULT)
            return None
        self._open_requests[request_key] = (
            request_id,
            call_id,
            call_text,
            [option for option in as_list(options) if isinstance(option, dict)],
        )
        if self._allowed_calls.get(call_id) == call_text:
            self.outbox.append(
                self.encode_permission_response(request_key, allow=True, ends_turn=False)
            )
            return None
        return request_key

    def register_form_request(
        self, request_id: object, call_id: str, params: Mapping[str, Any]
    ) -> str | None:
        """The name under which a form is kept until `encode_form_answer`; None where nobody is to
        be asked, as for a question.
        """
        request_key = dump_json(request_id).decode()
        if self._is_open_request(request_key) or len(self.open_forms.requests) >= MAX_OPEN_REQUESTS:
            self.reply_to_request(request_id, result=DISMISSED_RESULT)
            return None
        self.open_forms.requests[request_key] = request_id, call_id, params
        return request_key

    def encode_form_answer(
        self,
        request_key: str,
        updated_input: Mapping[str, Any] | None,
        *,
        allow: bool,
        ends_turn: bool,
    ) -> bytes | None:
        """The answer to a form, by the arguments of Claude's question that came back; None for what
        is no form.
        """
        if request_key not in self.open_forms.requests:
            return None
        request_id = self.open_forms.requests[request_key][0]
        return self._peer.encode_response(
            request_id,
            result=self.open_forms.close_form_with_response(
                request_key, updated_input, allow=allow, ends_turn=ends_turn
            ),
        )

    def is_awaiting_permission(self, call_id: str) -> bool:
        """Return whether a permission request for a call waits for its answer."""
        return any(request[1] == call_id for request in self._open_requests.values())

    def _is_open_request(self, request_key: str) -> bool:
        """Whether the frontend is asked something under this name."""
        return request_key in self._open_requests or request_key in self.open_forms.requests

    def discard_allowed_call(self, call_id: str) -> None:
        """A call has ended: another one may have the same id."""
        self._allowed_calls.pop(call_id, None)

    def encode_denial_reasons_prompt(self) -> bytes:
        """A prompt with the reasons of the calls that were denied, so that the agent's model goes
        on.
        """
        lines = [f"A call was not allowed: {reason}" for reason in self.denial_reasons]
        return self._encode_prompt(UserMessage("\n".join([*lines, "Go on without it."])))

    def encode_permission_response(
        self, request_key: str, *, allow: bool, ends_turn: bool, reason: str = ""
    ) -> bytes:
        """The answer to a question. What would allow more than this call is never chosen."""
        if request_key not in self._open_requests:
            return b""
        request_id, call_id, call_text, options = self._open_requests.pop(request_key)
        if allow:
            self._allowed_calls[call_id] = call_text
        else:
            self.denied_calls.append(call_id)
            self.denial_reasons += [reason] if reason and not ends_turn else []
        option_kinds = ("allow_once",) if allow else ("reject_once", "reject_always")
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
        if option is not None and not ends_turn:
            outcome = {"outcome": "selected", "optionId": option.get("optionId")}
        return self._peer.encode_response(request_id, result={"outcome": outcome})

    def discard_allowed_calls(self) -> None:
        """The turn is over: nothing that was allowed in it is allowed again."""
        self._allowed_calls.clear()

    # -- the steps ---------------------------------------------------------------------------------

    def _advance_steps(self, step: str, result: Mapping[str, Any]) -> None:
        if step == STEP_INITIALIZE:
            self.outbox.append(self._encode_session_request(result))
        elif step == STEP_SESSION:
            self.session_id = str(result.get("sessionId") or self._params.resumed_id or "")
            self._session_result = result
            self.outbox += (
                [self._peer.encode_request(STEP_REPLAY, REPLAY_PROBE_METHOD)]
                if self.is_loading
                else self._encode_settings()
            )
        elif step == STEP_REPLAY:
            self.is_loading = self.has_replayed and self._peer.last_number < MAX_REPLAY_PROBES
            self.has_replayed = False
            self.outbox += (
                [self._peer.encode_request(STEP_REPLAY, REPLAY_PROBE_METHOD)]
                if self.is_loading
                else self._encode_settings()
            )
        if self._is_ready and self._waiting_message is not None:
            message, self._waiting_message = self._waiting_message, None
            self.outbox.append(self._encode_prompt(message))

    def _encode_session_request(self, agent_info: Mapping[str, Any]) -> bytes:
        """A new session, or the one that goes on, in the way that the agent has for it."""
        params = self._params
        reachable = [server for server in params.servers if "url" in server or not params.only_urls]
        converted = [
            (server["name"], self.protocol_version.convert_server(server, agent_info))
            for server in reachable
        ]
        self.unreachable_servers = [
            server["name"] for server in params.servers if server not in reachable
        ]
        self.unreachable_servers += [name for name, config in converted if config is None]
        session_fields = {
            "cwd": params.cwd,
            "mcpServers": [config for _, config in converted if config is not None],
        }
        if params.resumed_id is None:
            return self._peer.encode_request(STEP_SESSION, "session/new", **session_fields)
        method = self.protocol_version.choose_method(agent_info, params.is_fork)
        self.is_loading = method in REPLAYING_METHODS
        return self._peer.encode_request(
            STEP_SESSION, f"session/{method}", sessionId=params.resumed_id, **session_fields
        )

    def _encode_settings(self) -> list[bytes]:
        """What sets the model and the mode, where they are not what the session begins with."""
        model, mode = self._params.model, self._params.mode
        requests = (
            [self._encode_setting("model", model)]
            if model not in (None, self.find_initial_setting("model"))
            else []
        )
        if mode is not None and self.find_initial_setting("mode") not in (None, mode):
            # None: it has no modes
            requests.append(self._encode_setting("mode", mode))
        return requests if self._params.effort is None else [*requests, *self._encode_effort()]

    def _encode_effort(self) -> list[bytes]:
        """What sets the effort, for an agent that has an option for it with such a level, or one
        below it.
        """
        option, level = self._find_option(EFFORT_CATEGORY), self._params.effort
        if option is None:
            return []
        values = [
            choice.get("value")
            for choice in as_list(option.get("options"))
            if isinstance(choice, dict)
        ]
        value = (
            option.get("currentValue") if level is None else choose_supported_effort(level, values)
        )
        return [] if value is None else [self._encode_option(STEP_EFFORT, option, value)]

    def _encode_setting(self, category: str, value: str | None) -> bytes:
        option = self._find_option(category)
        if option is not None:
            return self._encode_option(STEP_SETTING, option, value)
        return self._peer.encode_request(
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
        return self._peer.encode_request(
            step, "session/set_config_option", **fields, **self.protocol_version.value_fields
        )

    def _find_option(self, category: str) -> Mapping[str, Any] | None:
        """The agent's option for the model, the mode or the effort, where it has options."""
        options = (
            option
            for option in as_list(self._session_result.get("configOptions"))
            if isinstance(option, dict)
        )
        return next((option for option in options if option.get("category") == category), None)

    def find_initial_setting(self, category: str) -> str | None:
        """The model or the mode that the session began with."""
        option = self._find_option(category)
        mode_id = as_dict(self._session_result.get(f"{category}s")).get(
            f"current{category.capitalize()}Id"
        )
        value = mode_id if option is None else option.get("currentValue")
        return value if isinstance(value, str) else None

    def _encode_prompt(self, message: UserMessage) -> bytes:
        self._allowed_calls.clear()
        self.denied_calls.clear()
        self.denial_reasons.clear()
        self.prompt_progress.record_sent_prompt(self._peer.last_number + 1)
        prompt_blocks = build_prompt_blocks(
            message, self.accepted_block_kinds, self._params.document_format
        )
        return self._peer.encode_request(
            STEP_PROMPT, "session/prompt", sessionId=self.session_id, prompt=prompt_blocks
        )


def _guess_step(message: Mapping[str, Any]) -> str | None:
    """The step that an answer belongs to, by its form."""
    result = message.get("result")
    if "error" in message:
        return STEP_PROMPT
    if not isinstance(result, dict):
        return None
    return next((step for key, step in _STEP_BY_KEY.items() if key in result), STEP_SETTING)


_STEP_BY_KEY = {
    "stopReason": STEP_PROMPT,
    "sessionId": STEP_SESSION,
    "protocolVersion": STEP_INITIALIZE,
}
