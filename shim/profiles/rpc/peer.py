"""Our side of a program that speaks JSON-RPC in lines: requests of ours with their numbers, answers
to its own.
"""

from collections.abc import Mapping

from shim.core.reading.json_text import dump_json
from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import as_dict

MAX_OPEN_REQUESTS = 1000  # of ours that are open; the answer to one beyond them is not known again
METHOD_NOT_FOUND = -32601


class RpcResponse(NamedTuple):
    """An answer: to which step, and its result, or its error."""

    request_label: str
    result: Mapping[str, Any]
    error: Mapping[str, Any] | None = None


class JsonRpcPeer:
    """The requests of ours that are open, each with the step that its answer belongs to.

    `fixed_fields` stands in each line: `jsonrpc`, where the program wants it.
    """

    def __init__(self, **fixed_fields: str) -> None:
        self._fixed_fields = fixed_fields
        self._open_steps: dict[int, str] = {}
        self.last_number = 0  # of the last of our requests

    def encode_request(self, request_label: str, method: str, **params: object) -> bytes:
        """A request, whose answer belongs to `step`."""
        self.last_number += 1
        if len(self._open_steps) < MAX_OPEN_REQUESTS:
            self._open_steps[self.last_number] = request_label
        return self._encode_line(method=method, id=self.last_number, params=params)

    def encode_notification(self, method: str, **params: object) -> bytes:
        """A notification."""
        return self._encode_line(method=method, params=params)

    def encode_response(self, request_id: object, **body: object) -> bytes:
        """The answer to a request of the program's: `result` or `error`."""
        return self._encode_line(id=request_id, **body)

    def encode_method_not_found(self, request_id: object, method: object) -> bytes:
        """The answer to a request that we have nothing for."""
        return self.encode_response(
            request_id, error={"code": METHOD_NOT_FOUND, "message": f"{method} is not offered"}
        )

    def has_open_request(self, request_label: str) -> bool:
        """Whether a request of this step is open."""
        return request_label in self._open_steps.values()

    def match_response_to_request(self, message: Mapping[str, Any]) -> RpcResponse | None:
        """An answer of the program's; None for one to nothing that was asked."""
        request_number = message.get("id")
        step = (
            self._open_steps.pop(request_number, None) if request_number.__class__ is int else None
        )
        if step is None:
            return None
        return parse_response(step, message)

    def _encode_line(self, **message: object) -> bytes:
        return dump_json({**self._fixed_fields, **message}) + b"\n"


def parse_response(request_label: str, message: Mapping[str, Any]) -> RpcResponse:
    """What an answer to a step says."""
    result, error = message.get("result"), message.get("error")
    if error is not None and not isinstance(error, dict):
        error = {"message": str(error)}
    return RpcResponse(request_label, as_dict(result), error)


def format_rpc_error(error: Mapping[str, Any]) -> str:
    """What an error says, with its details."""
    data, text = error.get("data"), str(error.get("message") or "the agent failed")
    detail = data.get("details", data.get("message")) if isinstance(data, dict) else data
    return (
        f"{text}: {detail}" if isinstance(detail, str) and detail and detail not in text else text
    )
