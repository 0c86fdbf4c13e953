"""The session of one pi process that is driven through pi's RPC.

The session id is known after the responses to two requests. If a prompt arrives before that, it
waits. No prompt is sent to a pi that has not loaded the shim's permission extension, because such a
pi would not ask about its tool calls.
"""

from collections.abc import Mapping

from shim.adapters.pi import SUPPORTED_EFFORTS, TOOLS, uses_permission_extension
from shim.adapters.pi_dialogs import build_dialog_answer, build_dialog_form
from shim.core.adapter.adapter import LaunchRequest
from shim.core.adapter.tools import build_vendor_arguments
from shim.core.claude.argv.models import choose_supported_effort
from shim.core.claude.messages import TEXT_ONLY_KINDS, BlockKinds, UserMessage
from shim.core.claude.offered_commands import OfferedCommand, parse_offered_commands
from shim.core.claude.permissions import PermissionDecision, PermissionRequest
from shim.core.policy.policy import BYPASS_MODE
from shim.core.reading.json_text import dump_json
from shim.core.reading.typed import Any
from shim.core.reading.values import as_dict, as_list, get_text, list_dicts
from shim.profiles.rpc.form import MAX_OPEN_REQUESTS
from shim.profiles.rpc.session import RpcResponse, RpcSession

IMAGE_KINDS: BlockKinds = frozenset(("image",))
# The labels of the requests. A prompt waits for the responses to STATE, COMMANDS and SETTING.
STATE = "state"
COMMANDS = "commands"
MODELS = "models"
SETTING = "setting"
PROMPT, STEER, ABORT, IDLE_CHECK, CLEAR = "prompt", "steer", "abort", "rest", "clear"
COMPACTION = "compact"
# Command in a response → label of its request, for replaying a recording.
LABELS_BY_COMMAND = {
    "get_state": STATE,
    "get_commands": COMMANDS,
    "get_available_models": MODELS,
    "set_model": SETTING,
    "set_thinking_level": SETTING,
    "prompt": PROMPT,
    "abort": ABORT,
    "compact": COMPACTION,
    "clear_queue": CLEAR,
}
# A model's name may end with a colon and one of these thinking levels.
THINKING_LEVELS = frozenset(("off", "minimal", "low", "medium", "high", "xhigh", "max"))
# Commands from these sources are texts for the model. All other commands run code of extensions.
TEXT_COMMAND_SOURCES = ("prompt", "skill")
PLAN_MODE = "plan"
UNSUPPORTED_CHANGE_MESSAGE = (
    "Not run: the call was allowed with an input that pi's {tool} does not support: {input}"
)
INTERRUPTED_MESSAGE = "Interrupted by the user."


class PiRpcSession(RpcSession):
    """The session of one pi process. The permission mode is not sent to pi, because the shim's
    extension asks about each tool call in every mode.
    """

    request_id_prefix = "shim-"
    opening_labels = (STATE, SETTING)
    accepted_block_kinds: BlockKinds = IMAGE_KINDS
    can_compact = True
    accepts_steering = True

    def _reset(self) -> None:
        super()._reset()
        self.model = ""
        self.context_window_tokens: object = None  # the model's context size, as pi reports it
        self.accepted_block_kinds = IMAGE_KINDS
        self.text_commands: tuple[OfferedCommand, ...] = ()  # commands that are texts for the model
        self.is_extension_loaded = False  # the shim's extension has reported that it is loaded
        self.has_early_dialog = False  # an extension opened a dialog while pi started
        self.is_running = False
        self.is_stopping = False
        self._uses_extension = True  # no prompt is sent before the extension is loaded
        self._chooses_model = False  # pi was started without a model, so it chooses the model
        self._can_ask_user = False
        self._mode = ""
        self._default_model = ""  # the model that pi chose, as `provider/model`
        self._has_steering_messages = False
        self._open_questions: set[str] = set()

    def _encode_opening(self, request: LaunchRequest) -> bytes:
        self._mode = request.permission_mode
        self._uses_extension = uses_permission_extension(request)
        self._chooses_model = request.invocation.model is None
        self._can_ask_user = request.can_ask_user()
        return (
            self.encode_request(STATE, "get_state")
            + self.encode_request(COMMANDS, "get_commands")
            + self.encode_request(MODELS, "get_available_models")
        )

    # -- encoding for the driver --------------------------------------------------------------------

    def encode_prompt(self, message: UserMessage) -> bytes:
        self.is_stopping = self._has_steering_messages = False
        self.undelivered_count = 0
        return super().encode_prompt(message)

    def _encode_ready_prompt(self, message: UserMessage) -> bytes:
        """Encode the waiting prompt. If an extension has started a run, the prompt waits until that
        run ends.
        """
        if message.is_compaction:
            options = {"customInstructions": message.text} if message.text else {}
            return self.encode_request(COMPACTION, "compact", **options)
        return self._encode_message(PROMPT, message, "followUp")

    def encode_steering_message(self, message: UserMessage) -> bytes | None:
        """Encode a message that is added to the current run. Return None if no run can read the
        message now. If the run has just ended, pi starts a new run.
        """
        if not (self.is_running and self._is_ready) or self.is_stopping:
            return None
        self._has_steering_messages = True
        return self._encode_message(STEER, message, "steer")

    def encode_interrupt(self) -> bytes:
        """Encode an abort of the run, and drop the waiting message. pi responds when the run has
        stopped.

        Unread steering messages are withdrawn, because pi 0.73 would keep them for the next
        message.
        """
        self._waiting_message = None
        self.is_stopping = True
        return (
            self.encode_request(CLEAR, "clear_queue") if self._has_steering_messages else b""
        ) + self.encode_request(ABORT, "abort")

    def encode_model_change(self, name: str | None) -> bytes | None:
        """Encode a change of the model, which takes effect at the next request. The name is
        `provider/model`, with an optional thinking level after a colon. Return None for a name
        without a provider.
        """
        provider, separator, model = (self._default_model if name is None else name).partition("/")
        if not separator:
            return None
        level = model.rpartition(":")[2]
        if level not in THINKING_LEVELS:
            return self.encode_request(SETTING, "set_model", provider=provider, modelId=model)
        model = model.rpartition(":")[0]
        return self.encode_request(
            SETTING, "set_model", provider=provider, modelId=model
        ) + self._encode_thinking_level(level)

    def encode_effort_change(self, level: str | None) -> bytes | None:
        """Encode a change of the thinking level, which takes effect at the next request. Return
        None for pi's default level, which has no name, and for a level that pi does not have.
        """
        if level is None:
            return None
        supported_level = choose_supported_effort(level, SUPPORTED_EFFORTS)
        if supported_level is None:
            return None
        return self._encode_thinking_level(supported_level)

    def _encode_thinking_level(self, level: str) -> bytes:
        return self.encode_request(SETTING, "set_thinking_level", level=level)

    def encode_permission_mode_change(self, name: str) -> bytes | None:
        """Return b"" if the child can continue in the new mode, or None if a new child must be
        started. The shim's extension asks about each call in every mode, and only plan mode has
        different tools.
        """
        old_mode = self._mode
        self._mode = name
        if not self._uses_extension and name != BYPASS_MODE:
            return None
        if name == old_mode:
            return b""
        if self._uses_extension and PLAN_MODE not in (name, old_mode):
            return b""
        return None

    def encode_idle_state_request(self) -> bytes:
        """Encode a request that asks whether pi is running. A message that an extension has
        answered starts no run.
        """
        return self.encode_request(IDLE_CHECK, "get_state")

    @property
    def is_starting(self) -> bool:
        """Return whether pi is still running the start hooks of its extensions."""
        return self.has_open_request(STATE)

    @property
    def _is_ready(self) -> bool:
        if not self.session_id:
            return False
        return not self.has_open_request(STATE, COMMANDS, SETTING)

    @property
    def has_pending_prompt(self) -> bool:
        """Return whether a message was sent and pi has not reported yet whether it starts a run."""
        return self.has_open_request(PROMPT, IDLE_CHECK)

    @property
    def has_pending_abort_or_steering(self) -> bool:
        """Return whether pi has not yet responded to an abort or a steering message."""
        return self.has_open_request(STEER, ABORT)

    # -- state for the translator ------------------------------------------------------------------

    def _infer_request_label(self, response: Mapping[str, Any]) -> str | None:
        return LABELS_BY_COMMAND.get(str(response.get("command")))

    def _parse_response(self, label: str, message: Mapping[str, Any]) -> RpcResponse:
        error = None
        if message.get("success") is not True:
            text = get_text(message, "error", f"pi refused {message.get('command')}")
            error = {"message": text}
        return RpcResponse(label, as_dict(message.get("data")), error)

    def _apply_response(self, response: RpcResponse, message: Mapping[str, Any]) -> RpcResponse:
        label, data, error = response
        if label == STATE and error is None:
            if self.is_initialized and self._uses_extension and not self.is_extension_loaded:
                return response._replace(error={"message": "ungated"})
            self._record_state(data)
        elif label == SETTING and "contextWindow" in data:
            self.context_window_tokens = data["contextWindow"]
        elif label == STEER:
            self.undelivered_count += error is not None
        elif label == CLEAR:
            self.undelivered_count += len(as_list(data.get("steering")))
        elif label == COMMANDS:
            self._record_commands(data)
        return response

    def _record_state(self, data: Mapping[str, Any]) -> None:
        model = data.get("model")
        self.session_id = get_text(data, "sessionId")
        if not isinstance(model, dict):
            return
        self.model = get_text(model, "id")
        self.context_window_tokens = model.get("contextWindow")
        if self._chooses_model:
            self._default_model = f"{model.get('provider')}/{self.model}"
        if "image" in as_list(model.get("input")):
            self.accepted_block_kinds = IMAGE_KINDS
        else:
            self.accepted_block_kinds = TEXT_ONLY_KINDS

    def _record_commands(self, data: Mapping[str, Any]) -> None:
        """Store pi's commands that are prompts. A name that is also an extension's command is left
        out.
        """
        commands = list_dicts(data.get("commands"))
        programs = {
            command.get("name")
            for command in commands
            if command.get("source") not in TEXT_COMMAND_SOURCES
        }
        self.text_commands = parse_offered_commands(
            [command for command in commands if command.get("name") not in programs]
        )

    # -- permission requests and dialogs -----------------------------------------------------------

    def add_permission_request(self, request_id: str) -> bool:
        """Store a permission request until it is answered. Return False if too many requests are
        open.
        """
        if len(self._open_questions) >= MAX_OPEN_REQUESTS:
            return False
        self._open_questions.add(request_id)
        return True

    def register_extension_dialog(
        self, request_id: str, call_id: str, dialog: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        """Store a dialog of an extension other than the shim's until it is answered. Return the
        arguments for Claude's question tool, or None if the user cannot be asked.
        """
        if not self._can_ask_user:
            return None
        return self.forms.open_form(request_id, request_id, call_id, build_dialog_form(dialog))

    def _encode_decision(
        self, permission: PermissionRequest, decision: PermissionDecision
    ) -> bytes:
        """Encode the answer to the shim's extension. Raise ValueError if the input was changed in a
        way that pi's tool has no arguments for.
        """
        answer: dict[str, Any] = {"allow": decision.allow}
        if not decision.allow:
            answer["reason"] = decision.message or INTERRUPTED_MESSAGE
        elif decision.updated_input is not None:
            answer["input"] = _convert_changed_input(permission, decision.updated_input)
        request_id = permission.request_id
        if request_id not in self._open_questions:
            return b""
        self._open_questions.discard(request_id)
        return self.encode_response(request_id, **{"value": dump_json(answer).decode()})

    def _encode_form_result(self, request_id: object, result: Mapping[str, Any]) -> bytes:
        return self.encode_response(request_id, **build_dialog_answer(result))

    def encode_response(self, request_id: object, **body: object) -> bytes:
        """Encode the answer to an extension's dialog."""
        return self._encode_line(type="extension_ui_response", id=request_id, **body)

    # -- lines -------------------------------------------------------------------------------------

    def encode_request(self, request_label: str, method: str, **params: object) -> bytes:
        return self._encode_line(id=self._add_open_request(request_label), type=method, **params)

    def _encode_message(self, label: str, message: UserMessage, behaviour: str) -> bytes:
        images = [
            {"type": "image", "data": part.data, "mimeType": part.media_type}
            for part in message.select_blocks(self.accepted_block_kinds)
            if part.kind == "image"
        ]
        options = {}
        if images:
            options = {"images": images}
        return self.encode_request(
            label,
            "prompt",
            message=self._escape_command(message.text),
            streamingBehavior=behaviour,
            **options,
        )

    def _escape_command(self, text: str) -> str:
        """Escape a message that starts with a `/` command, unless the command is a text for the
        model. A command of an extension would otherwise run without a permission prompt.
        """
        name = text[1:].split(maxsplit=1)[:1]
        command_names = {command.name for command in self.text_commands}
        if text.startswith("/") and not command_names.intersection(name):
            return f"\\{text}"
        return text


def _convert_changed_input(
    permission: PermissionRequest, changed: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return a changed tool input as arguments for pi's tool."""
    vendor_arguments = build_vendor_arguments(
        TOOLS, permission.vendor_tool, permission.vendor_input, changed
    )
    if vendor_arguments is None:
        raise ValueError(
            UNSUPPORTED_CHANGE_MESSAGE.format(
                tool=permission.vendor_tool, input=dump_json(changed).decode()
            )
        )
    return vendor_arguments
