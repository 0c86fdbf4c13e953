"""The session of one child process that exchanges requests and responses with the shim (ACP, codex,
pi).

The driver uses the session to encode the frontend's messages. The translator uses the session to
read the child's responses. The session does no I/O: each method returns the bytes of complete
lines, or queues them in `outbox`.
"""

from collections.abc import Callable, Mapping

from shim.core.adapter.request import ChildInput, LaunchRequest
from shim.core.claude.messages import UserMessage
from shim.core.claude.permissions import PermissionDecision, PermissionRequest
from shim.core.reading.json_text import dump_json
from shim.core.reading.typed import TYPE_CHECKING, Any, NamedTuple
from shim.core.reading.values import as_dict, get_text
from shim.profiles.rpc.form import MAX_OPEN_REQUESTS, OpenElicitationForms

if TYPE_CHECKING:
    from shim.core.adapter.translator import Translator
    from shim.core.turn.turn import Turn

METHOD_NOT_FOUND = -32601


class RpcResponse(NamedTuple):
    """The response to one of the shim's requests: the label of the request, and the result or the
    error.
    """

    request_label: str
    result: Mapping[str, Any]
    error: Mapping[str, Any] | None = None


class RpcSession(ChildInput):
    """Opens a child's session in steps. Each request is sent after the previous response. A prompt
    waits until the session is ready.

        request_id_prefix   the prefix for the ids of the shim's requests; "" for integer ids
        opening_labels      the labels of the requests that must succeed before a prompt can be sent
    """

    request_id_prefix: str = ""
    opening_labels: tuple[str, ...] = ()
    can_accept_prompts = True

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        """Clear the state that belongs to the previous child."""
        self.can_accept_prompts = True  # whether the session is open, or can still be opened
        self.outbox: list[bytes] = []
        self.session_id = ""
        self.working_dir = ""
        # False for a recording, because recordings do not contain the shim's requests.
        self.is_initialized = False
        self.forms = OpenElicitationForms()
        self.last_request_number = 0
        self.undelivered_count = 0  # steering messages that the child has not accepted yet
        self._waiting_message: UserMessage | None = None
        self._open_labels: dict[object, str] = {}

    @property
    def _is_ready(self) -> bool:
        """Return whether a prompt can be sent."""
        return bool(self.session_id)

    # -- encoding, for the driver ------------------------------------------------------------------

    def encode_handshake(self, request: LaunchRequest) -> bytes:
        self._reset()
        self.is_initialized = True
        if request.policy is not None:
            self.working_dir = request.policy.workspace.cwd
        return self._encode_opening(request)

    def _encode_opening(self, request: LaunchRequest) -> bytes:
        """Return the lines with the first requests, which open the session."""
        raise NotImplementedError

    def create_translator_factory(
        self, translator: "type[Translator]"
    ) -> "Callable[..., Translator]":
        create_translator: Any = translator  # the class has the parameter `session`
        return lambda turn, partial: create_translator(turn, partial=partial, session=self)

    def encode_prompt(self, message: UserMessage) -> bytes:
        """Return the line that sends the turn's message. If the session is not ready, store the
        message and return b"".
        """
        if not self._is_ready:
            self._waiting_message = message
            return b""
        self._waiting_message = None
        return self._encode_ready_prompt(message)

    def _encode_ready_prompt(self, message: UserMessage) -> bytes:
        raise NotImplementedError

    def pop_undelivered_message_count(self) -> int:
        count, self.undelivered_count = self.undelivered_count, 0
        return count

    def encode_permission_response(
        self, permission: PermissionRequest, decision: PermissionDecision
    ) -> bytes:
        """Return the line that answers a form or a permission request."""
        key = permission.request_id
        if key not in self.forms.requests:
            return self._encode_decision(permission, decision)
        request_id = self.forms.requests[key][0]
        return self._encode_form_result(request_id, self.forms.close_form(key, decision))

    def _encode_decision(
        self, permission: PermissionRequest, decision: PermissionDecision
    ) -> bytes:
        raise NotImplementedError

    def _encode_form_result(self, request_id: object, result: Mapping[str, Any]) -> bytes:
        return self.encode_response(request_id, result=result)

    # -- decoding, for the translator --------------------------------------------------------------

    def read_response(self, message: Mapping[str, Any]) -> RpcResponse | None:
        """Return the response to an open request, or None if no open request has this id.

        Also queue the next request that is needed to open the session.
        """
        request_id = message.get("id")
        label = None
        if request_id.__class__ in (int, str):
            label = self._open_labels.pop(request_id, None)
        if label is None and not self.is_initialized:
            label = self._infer_request_label(message)
        if label is None:
            return None
        response = self._apply_response(self._parse_response(label, message), message)
        if response.error is not None and label in self.opening_labels:
            self._waiting_message = None
            self.can_accept_prompts = False
        elif self._waiting_message is not None and self._is_ready:
            self.outbox.append(self.encode_prompt(self._waiting_message))
        return response

    def _infer_request_label(self, response: Mapping[str, Any]) -> str | None:
        """Return the label of a request, inferred from its response, or None if the response has no
        known form. Recordings do not contain the requests.
        """
        raise NotImplementedError

    def _parse_response(self, label: str, message: Mapping[str, Any]) -> RpcResponse:
        result = message.get("result")
        error = message.get("error")
        if error is not None and not isinstance(error, dict):
            error = {"message": str(error)}
        return RpcResponse(label, as_dict(result), error)

    def _apply_response(self, response: RpcResponse, message: Mapping[str, Any]) -> RpcResponse:
        """Store the session properties from a response, and queue the next request. Return the
        response for the translator.
        """
        raise NotImplementedError

    def take_outbox(self) -> list[bytes]:
        lines = self.outbox
        self.outbox = []
        return lines

    def write_form_results(self, turn: "Turn") -> None:
        """Write the user's answers to forms as tool results, because the child does not report
        them.
        """
        for call_id, text, is_error in self.forms.results:
            turn.add_tool_result(call_id, text, is_error)
        self.forms.results.clear()

    # -- lines -------------------------------------------------------------------------------------

    def encode_request(self, request_label: str, method: str, **params: object) -> bytes:
        return self._encode_line(
            method=method, id=self._add_open_request(request_label), params=params
        )

    def _add_open_request(self, request_label: str) -> int | str:
        """Register a request under a new id, and return the id."""
        self.last_request_number += 1
        request_id: int | str = self.last_request_number
        if self.request_id_prefix:
            request_id = f"{self.request_id_prefix}{request_id}"
        if len(self._open_labels) < MAX_OPEN_REQUESTS:
            self._open_labels[request_id] = request_label
        return request_id

    def has_open_request(self, *request_labels: str) -> bool:
        """Return whether an open request has one of these labels."""
        return not set(request_labels).isdisjoint(self._open_labels.values())

    def encode_notification(self, method: str, **params: object) -> bytes:
        return self._encode_line(method=method, params=params)

    def encode_response(self, request_id: object, **body: object) -> bytes:
        """Return the line that responds to one of the child's requests. `body` is `result` or
        `error`.
        """
        return self._encode_line(id=request_id, **body)

    def encode_method_not_found(self, request_id: object, method: object) -> bytes:
        error = {"code": METHOD_NOT_FOUND, "message": f"{method} is not supported"}
        return self.encode_response(request_id, error=error)

    def _encode_line(self, **message: object) -> bytes:
        return dump_json(message) + b"\n"


def format_rpc_error(error: Mapping[str, Any]) -> str:
    """Return the text and the details of a JSON-RPC error."""
    data = error.get("data")
    text = get_text(error, "message", "the agent failed")
    detail = data
    if isinstance(data, dict):
        detail = data.get("details", data.get("message"))
    if isinstance(detail, str) and detail and detail not in text:
        return f"{text}: {detail}"
    return text
