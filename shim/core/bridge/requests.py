"""Control requests between the conversation and the clients, in both directions.

`PendingControlRequests` stores requests to the conversation. `ClientCallbackRouter` stores the
conversation's requests to clients: to their hooks, and to the MCP servers in their processes. If a
client disconnects, the tool calls that its hooks would have checked are denied, so that no call
runs unchecked.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from shim.core.bridge.client import ConnectedClient
from shim.core.bridge.frames import FrameRefusedError
from shim.core.claude.control_responses import build_control_error
from shim.core.claude.hooks.callbacks import MATCH_ALL, MAX_CALLBACKS_PER_EVENT
from shim.core.policy import PRE_TOOL_EVENT
from shim.core.reading.values import as_dict, as_list

MODE_SUBTYPE = "set_permission_mode"
MAX_PENDING_REQUESTS = 100  # the maximum for each client
MAX_OPEN_CALLBACKS = 1000
MAX_SERVERS = 1000  # the maximum number of MCP server names
HOOK_CLIENT_LEFT = "the frontend whose hook checks this call has disconnected"
ID_SEPARATOR = "/"  # separates a client's number from its own callback id
HookGroups = dict[str, list[dict[str, Any]]]
SERVER_CLIENT_LEFT = "the frontend with this MCP server has disconnected"


class HookRegistrationChange(NamedTuple):
    """The registration of a client's hooks. If the conversation refuses the hooks, the registration
    is undone.
    """

    client_number: int
    previous_hooks: Mapping[int, HookGroups]  # all clients' hooks before the change


class ControlRequest(NamedTuple):
    """A control request from a client or the hub to the conversation."""

    client: ConnectedClient | None  # None for a request from the hub itself
    request_id: str  # the client's frame id
    subtype: str
    wants_body: bool = False  # whether the client expects the complete response
    change: HookRegistrationChange | None = None  # undone if the request is refused


class PendingControlRequests:
    """Control requests that the conversation has not answered yet, by request id."""

    def __init__(self) -> None:
        self._pending: dict[str, ControlRequest] = {}

    def check_limit(self, client: ConnectedClient | None) -> None:
        """Raise FrameRefusedError if a client already has too many pending requests."""
        if client is None:
            return
        count = sum(request.client is client for request in self._pending.values())
        if count >= MAX_PENDING_REQUESTS:
            raise FrameRefusedError(
                "too-many",
                f"{MAX_PENDING_REQUESTS} requests of this client are already waiting for an answer",
            )

    def add(self, request_id: str, request: ControlRequest) -> None:
        """Add a control request that was sent to the conversation."""
        self._pending[request_id] = request

    def is_request_pending(self, client: ConnectedClient, request_id: str) -> bool:
        """Return whether the request from this client's frame is still unanswered."""
        return any(
            request.request_id == request_id
            for request in self._pending.values()
            if request.client is client
        )

    def pop_answered_request(self, response: Mapping[str, Any]) -> ControlRequest | None:
        """Remove and return the request that a control_response answers. `response` is its body.
        Return None if the request is unknown.
        """
        return self._pending.pop(str(response.get("request_id")), None)

    def detach_client(self, client: ConnectedClient) -> None:
        """Remove a disconnected client from its pending requests. The requests stay pending."""
        for request_id, request in self._pending.items():
            if request.client is client:
                self._pending[request_id] = request._replace(client=None, request_id="")


class CallbackRequest(NamedTuple):
    """A request to a hook or an MCP server, and the client that must answer it (None if no client
    can).
    """

    request_id: str
    request: Mapping[str, Any]
    client: ConnectedClient | None


class ClientCallbackRouter:
    """The clients' hooks and MCP servers, and the unanswered requests to them."""

    def __init__(self) -> None:
        self._hooks_by_client: dict[int, HookGroups] = {}  # by client number
        self._hook_clients: dict[int, ConnectedClient] = {}  # connected clients that have hooks
        self._server_clients: dict[str, ConnectedClient] = {}
        self._open: dict[str, CallbackRequest] = {}

    def register_client_callbacks(
        self, client: ConnectedClient, request: Mapping[str, Any]
    ) -> tuple[HookRegistrationChange, HookGroups]:
        """Register the hooks and MCP servers from a client's `initialize` request.

        Return the change, and the hooks of all clients, which are sent to the conversation. Raise
        FrameRefusedError if there are too many hooks.

        After a client has disconnected, its hooks deny their tool calls until another client
        registers hooks for the same tools or for all tools. A client without hooks does not change
        this.
        """
        client_hooks = _prefix_callbacks(client, request.get("hooks"))
        hooks_by_client = dict(self._hooks_by_client)
        if client_hooks:
            new_groups = client_hooks.get(PRE_TOOL_EVENT, ())
            left_clients = [n for n in hooks_by_client if n not in self._hook_clients]
            for client_number in left_clients:
                remaining = _select_unreplaced_hooks(hooks_by_client.pop(client_number), new_groups)
                if remaining:
                    hooks_by_client[client_number] = remaining
            hooks_by_client[client.number] = client_hooks
        all_hooks = _join_hooks(hooks_by_client.values())
        if client_hooks and len(hooks_by_client) > 1:
            _check_hook_limit(all_hooks)
        if client_hooks:
            self._hook_clients[client.number] = client
        change = HookRegistrationChange(client.number, self._hooks_by_client)
        self._hooks_by_client = hooks_by_client
        self._register_servers(client, request.get("sdkMcpServers"))
        return change, all_hooks

    def _register_servers(self, client: ConnectedClient, names: object) -> None:
        for name in as_list(names):
            if isinstance(name, str) and (
                name in self._server_clients or len(self._server_clients) < MAX_SERVERS
            ):
                self._server_clients[name] = client

    def restore_hooks(self, change: HookRegistrationChange) -> None:
        """Undo a hook registration that the conversation has refused. Hooks that other connected
        clients have registered in the meantime are kept.
        """
        previous_hooks = change.previous_hooks
        client_number = change.client_number
        hooks_of_left = {
            number: hooks
            for number, hooks in previous_hooks.items()
            if number not in self._hook_clients
        }
        hooks_by_client = {**previous_hooks, **self._hooks_by_client, **hooks_of_left}
        if client_number in previous_hooks:
            hooks_by_client[client_number] = previous_hooks[client_number]
        else:
            hooks_by_client.pop(client_number, None)
        self._hooks_by_client = hooks_by_client

    def route_callback(self, request_id: str, request: Mapping[str, Any]) -> CallbackRequest:
        """Find the client for a request from the conversation. If there is a client, the request
        stays open until `pop_answered_callback`.
        """
        kind = request.get("subtype")
        client: ConnectedClient | None = None
        if kind == "hook_callback":
            client_number, _, callback_id = str(request.get("callback_id")).partition(ID_SEPARATOR)
            if client_number.isdecimal():
                client = self._hook_clients.get(int(client_number))
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
        """Remove and return the request that a client answers. Return None if the request was not
        sent to this client.
        """
        callback = self._open.get(request_id)
        if callback is None or callback.client is not client:
            return None
        return self._open.pop(request_id)

    def cancel_callback(self, request_id: str) -> None:
        """Remove a request that needs no answer any more."""
        self._open.pop(request_id, None)

    def remove_client(self, client: ConnectedClient) -> list[CallbackRequest]:
        """Remove a client that has disconnected. Return the requests that the client has not
        answered.
        """
        if self._hook_clients.pop(client.number, None) is not None:
            blocking_hooks = self._hooks_by_client.pop(client.number, {}).get(PRE_TOOL_EVENT)
            if blocking_hooks:
                self._hooks_by_client[client.number] = {PRE_TOOL_EVENT: blocking_hooks}
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
        """Build the response to a request that no client can answer."""
        kind = callback.request.get("subtype")
        if kind != "hook_callback":
            text = SERVER_CLIENT_LEFT
            if kind != "mcp_message":
                text = f"Unsupported control request subtype: {kind}"
            return build_control_error(callback.request_id, text)
        event = as_dict(callback.request.get("input")).get("hook_event_name")
        denial = {
            "hookEventName": event,
            "permissionDecision": "deny",
            "permissionDecisionReason": HOOK_CLIENT_LEFT,
        }
        return {
            "subtype": "success",
            "response": {"hookSpecificOutput": denial} if event == PRE_TOOL_EVENT else {},
        }


def _join_hooks(client_hooks: Iterable[HookGroups]) -> HookGroups:
    """Return the hooks of several clients in one table."""
    all_hooks: HookGroups = {}
    for hooks in client_hooks:
        for event, groups in hooks.items():
            all_hooks[event] = [*all_hooks.get(event, ()), *groups]
    return all_hooks


def _check_hook_limit(hooks: HookGroups) -> None:
    """Raise FrameRefusedError if too many callbacks are registered for an event."""
    for groups in hooks.values():
        if sum(len(group["hookCallbackIds"]) for group in groups) > MAX_CALLBACKS_PER_EVENT:
            raise FrameRefusedError(
                "too-many",
                f"the frontends of this session already have {MAX_CALLBACKS_PER_EVENT} "
                "hooks for one event",
            )


def _select_unreplaced_hooks(
    hooks: HookGroups, new_groups: Sequence[Mapping[str, Any]]
) -> HookGroups:
    """Return the hooks of a disconnected client that stay in force after new hooks were registered.
    A new hook replaces old hooks for the same tools. A new hook for all tools replaces all old
    hooks.
    """
    matchers = {_get_matcher(group) for group in new_groups}
    remaining_groups = [
        group
        for group in hooks.get(PRE_TOOL_EVENT, ())
        if matchers.isdisjoint(("", _get_matcher(group)))
    ]
    if remaining_groups:
        return {PRE_TOOL_EVENT: remaining_groups}
    return {}


def _get_matcher(group: Mapping[str, Any]) -> str:
    """Return a hook group's matcher, or "" if the group applies to all tools."""
    matcher = group.get("matcher")
    if isinstance(matcher, str) and matcher not in MATCH_ALL:
        return matcher
    return ""


def _prefix_callbacks(client: ConnectedClient, raw_hooks: object) -> HookGroups:
    """Return a client's hooks with the client's number as a prefix of each callback id."""
    hooks: HookGroups = {}
    for event, groups in as_dict(raw_hooks).items():
        for group in as_list(groups):
            callback_ids = as_dict(group).get("hookCallbackIds")
            if isinstance(callback_ids, list) and callback_ids:
                prefixed_ids = [
                    f"{client.number}{ID_SEPARATOR}{callback_id}" for callback_id in callback_ids
                ]
                hooks[event] = [*hooks.get(event, ()), {**group, "hookCallbackIds": prefixed_ids}]
    return hooks
