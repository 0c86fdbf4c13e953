"""Control requests between the conversation and the clients, in both directions.

`PendingControlRequests` were put to the conversation. `ClientCallbackRouter` are what the session
asks of a
client's own program:
its hooks, and the MCP servers that live in it. Nothing ever runs unjudged because somebody left:
without the client whose hook judges a call, the call is denied.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from shim.core.bridge.client import ConnectedClient
from shim.core.bridge.frames import FrameRefusedError
from shim.core.claude.hooks.callbacks import MATCH_ALL, MAX_CALLBACKS_PER_EVENT

MAX_PENDING_REQUESTS = 100  # of one client that wait for their answer
MAX_OPEN_CALLBACKS = 1000  # that are open at once
MAX_SERVERS = 1000  # names that are remembered
HOOK_CLIENT_LEFT = "the frontend whose hook judges this call has gone"
BLOCKING_EVENT = "PreToolUse"
ID_SEPARATOR = "/"  # between the number of a client and its own name of a callback
HookGroups = dict[str, list[dict[str, Any]]]
SERVER_CLIENT_LEFT = "the frontend with this MCP server has gone"
TOO_MANY = "too many requests wait for the frontend already"


class ControlRequest(NamedTuple):
    """`client` is None for the hub's own, `request_id` the frame's id. `wants_body`: the client
    wants the whole answer.

    `undo` is to be called where the conversation refuses it.
    """

    client: ConnectedClient | None
    request_id: str
    subtype: str
    wants_body: bool = False
    undo: Callable[[], None] | None = None


class PendingControlRequests:
    """Requests by the id that the conversation knows them by."""

    def __init__(self) -> None:
        self._open: dict[str, ControlRequest] = {}

    def add(self, request_id: str, request: ControlRequest) -> None:
        """FrameRefusedError if too many of a client's wait."""
        if (
            request.client is not None
            and sum(
                pending_request.client is request.client for pending_request in self._open.values()
            )
            >= MAX_PENDING_REQUESTS
        ):
            raise FrameRefusedError(
                "too-many",
                f"{MAX_PENDING_REQUESTS} requests of this client wait for their answer already",
            )
        self._open[request_id] = request

    def is_request_pending(self, client: ConnectedClient, request_id: str) -> bool:
        """Whether a frame of a client waits for its answer."""
        return any(
            request.client is client and request.request_id == request_id
            for request in self._open.values()
        )

    def has_pending_subtype(self, subtype: str) -> bool:
        """Whether a request of this kind has no answer yet."""
        return any(request.subtype == subtype for request in self._open.values())

    def pop_answered_request(self, response: Mapping[str, Any]) -> ControlRequest | None:
        """Whose answer the body of a control_response is; None if nobody of us asked."""
        return self._open.pop(str(response.get("request_id")), None)

    def detach_client(self, client: ConnectedClient) -> None:
        """Nobody waits for the answers of a client that has gone."""
        for request_id, request in list(self._open.items()):
            if request.client is client:
                self._open[request_id] = request._replace(client=None, request_id="")


class CallbackRequest(NamedTuple):
    """`client` is None where nobody is asked."""

    request_id: str
    request: Mapping[str, Any]
    client: ConnectedClient | None


class ClientCallbackRouter:
    """The owners, and what they were asked and have not answered."""

    def __init__(self) -> None:
        # by the number of the client that brought them
        self._hooks_by_client: dict[int, HookGroups] = {}
        self._hook_clients: dict[int, ConnectedClient] = {}  # those of them who are here
        self._server_clients: dict[str, ConnectedClient] = {}
        self._open: dict[str, CallbackRequest] = {}

    def register_client_callbacks(
        self, client: ConnectedClient, request: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Callable[[], None]]:
        """A client's `initialize`: what the conversation is to be told instead, and what undoes it.
        FrameRefusedError.

        The hooks of all clients are registered together. Those of a client that has gone go on
        denying the calls that they judge, until another client brings hooks that judge these; who
        brings none changes nothing.
        """
        hooks_before, client_hooks = (
            dict(self._hooks_by_client),
            _prefix_callbacks(client, request.get("hooks")),
        )

        def undo() -> None:
            hooks_of_left = {
                client_number: hooks
                for client_number, hooks in hooks_before.items()
                if client_number not in self._hook_clients
            }
            self._hooks_by_client = {**hooks_before, **self._hooks_by_client, **hooks_of_left}
            if client.number in hooks_before:
                self._hooks_by_client[client.number] = hooks_before[client.number]
            else:
                self._hooks_by_client.pop(client.number, None)

        if client_hooks:
            for client_number in [
                client_number
                for client_number in self._hooks_by_client
                if client_number not in self._hook_clients
            ]:
                if remaining_hooks := _select_unreplaced_hooks(
                    self._hooks_by_client.pop(client_number), client_hooks.get(BLOCKING_EVENT, ())
                ):
                    self._hooks_by_client[client_number] = remaining_hooks
            self._hooks_by_client[client.number], self._hook_clients[client.number] = (
                client_hooks,
                client,
            )
        all_hooks: HookGroups = {}
        for hooks in self._hooks_by_client.values():
            for event, groups in hooks.items():
                all_hooks[event] = [*all_hooks.get(event, ()), *groups]
        max_callbacks = max(
            (
                sum(len(group["hookCallbackIds"]) for group in groups)
                for groups in all_hooks.values()
            ),
            default=0,
        )
        if (
            client_hooks
            and len(self._hooks_by_client) > 1
            and max_callbacks > MAX_CALLBACKS_PER_EVENT
        ):
            undo()
            raise FrameRefusedError(
                "too-many",
                f"the frontends of this session have {MAX_CALLBACKS_PER_EVENT} hooks of an event already",
            )
        servers = request.get("sdkMcpServers")
        for name in servers if isinstance(servers, list) else ():
            if isinstance(name, str) and (
                name in self._server_clients or len(self._server_clients) < MAX_SERVERS
            ):
                self._server_clients[name] = client
        return {**request, **({"hooks": all_hooks} if all_hooks else {})}, undo

    def route_callback(self, request_id: str, request: Mapping[str, Any]) -> CallbackRequest:
        """Whom a request is for. With a client it is open until `pop_answered_callback`."""
        kind = request.get("subtype")
        client: ConnectedClient | None = None
        if kind == "hook_callback":
            client_number, _, callback_id = str(request.get("callback_id")).partition(ID_SEPARATOR)
            client = (
                self._hook_clients.get(int(client_number)) if client_number.isdecimal() else None
            )
            request = {**request, "callback_id": callback_id}
        elif kind == "mcp_message":
            client = self._server_clients.get(str(request.get("server_name")))
        if client is not None and len(self._open) >= MAX_OPEN_CALLBACKS:
            client = None
        callback = CallbackRequest(request_id, request, client)
        if client is not None:
            self._open[request_id] = callback
        return callback

    def pop_answered_callback(
        self, request_id: str, client: ConnectedClient
    ) -> CallbackRequest | None:
        """An answer of a client; None if it was not asked that."""
        callback = self._open.get(request_id)
        if callback is None or callback.client is not client:
            return None
        return self._open.pop(request_id)

    def cancel_callback(self, request_id: str) -> None:
        """The session wants no answer any more."""
        self._open.pop(request_id, None)

    def remove_client(self, client: ConnectedClient) -> list[CallbackRequest]:
        """A client has gone; what it was asked and has not answered."""
        if self._hook_clients.pop(client.number, None) is not None:
            blocking_hooks = self._hooks_by_client.pop(client.number, {}).get(BLOCKING_EVENT)
            if blocking_hooks:
                self._hooks_by_client[client.number] = {BLOCKING_EVENT: blocking_hooks}
        self._server_clients = {
            name: server_client
            for name, server_client in self._server_clients.items()
            if server_client is not client
        }
        orphans = [callback for callback in self._open.values() if callback.client is client]
        for callback in orphans:
            del self._open[callback.request_id]
        return orphans

    def build_fallback_response(self, callback: CallbackRequest) -> dict[str, Any]:
        """Our own answer, where no client can be asked: the body of a control_response."""
        kind = callback.request.get("subtype")
        if kind != "hook_callback":
            text = (
                SERVER_CLIENT_LEFT
                if kind == "mcp_message"
                else f"Unsupported control request subtype: {kind}"
            )
            return {"subtype": "error", "error": text}
        hook_input = callback.request.get("input")
        event = hook_input.get("hook_event_name") if isinstance(hook_input, dict) else None
        denial = {
            "hookEventName": event,
            "permissionDecision": "deny",
            "permissionDecisionReason": HOOK_CLIENT_LEFT,
        }
        return {
            "subtype": "success",
            "response": {"hookSpecificOutput": denial} if event == BLOCKING_EVENT else {},
        }


def _select_unreplaced_hooks(
    hooks: HookGroups, new_groups: Sequence[Mapping[str, Any]]
) -> HookGroups:
    """Of the hooks of a client that has gone those about calls that no others judge: of all tools,
    or of the same.
    """
    matchers = {_get_matcher(group) for group in new_groups}
    remaining_groups = [
        group
        for group in hooks.get(BLOCKING_EVENT, ())
        if matchers.isdisjoint(("", _get_matcher(group)))
    ]
    return {BLOCKING_EVENT: remaining_groups} if remaining_groups else {}


def _get_matcher(group: Mapping[str, Any]) -> str:
    """The tools that hooks are about, as they are said; "" for all."""
    matcher = group.get("matcher")
    return matcher if isinstance(matcher, str) and matcher not in MATCH_ALL else ""


def _prefix_callbacks(client: ConnectedClient, raw_hooks: object) -> HookGroups:
    """A client's hooks, with the client's number in the names of its callbacks."""
    hooks: HookGroups = {}
    for event, groups in raw_hooks.items() if isinstance(raw_hooks, dict) else ():
        for group in groups if isinstance(groups, list) else ():
            callback_ids = group.get("hookCallbackIds") if isinstance(group, dict) else None
            if isinstance(callback_ids, list) and callback_ids:
                prefixed_ids = [
                    f"{client.number}{ID_SEPARATOR}{callback_id}" for callback_id in callback_ids
                ]
                hooks[event] = [*hooks.get(event, ()), {**group, "hookCallbackIds": prefixed_ids}]
    return hooks
