"""The control requests between the conversation and the clients, in both directions.

`PendingControlRequests` has the requests to the conversation. `ClientCallbackRouter` has the
conversation's requests to the programs of clients: to their hooks, and to the MCP servers in their
processes. If the client of a hook has disconnected, the calls of that hook are denied, so that no
call runs without its check.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from shim.core.bridge.client import ConnectedClient
from shim.core.bridge.frames import FrameRefusedError
from shim.core.claude.hooks.callbacks import MATCH_ALL, MAX_CALLBACKS_PER_EVENT
from shim.core.reading.values import as_dict, as_list

MODE_SUBTYPE = "set_permission_mode"
MAX_PENDING_REQUESTS = 100  # of one client
MAX_OPEN_CALLBACKS = 1000
MAX_SERVERS = 1000  # names of MCP servers
HOOK_CLIENT_LEFT = "the frontend whose hook checks this call has disconnected"
BLOCKING_EVENT = "PreToolUse"
ID_SEPARATOR = "/"  # between the number of a client and its own name of a callback
HookGroups = dict[str, list[dict[str, Any]]]
SERVER_CLIENT_LEFT = "the frontend with this MCP server has disconnected"


class HookRegistrationChange(NamedTuple):
    """The registration of a client's hooks. It is undone if the conversation refuses it."""

    client_number: int
    previous_hooks: Mapping[int, HookGroups]  # the hooks of all clients before


class ControlRequest(NamedTuple):
    """A control request to the conversation."""

    client: ConnectedClient | None  # None for a request of the hub itself
    request_id: str  # the id of the client's frame
    subtype: str
    wants_body: bool = False  # whether the client expects the complete answer
    change: HookRegistrationChange | None = None  # undone if the request is refused


class PendingControlRequests:
    """The control requests without an answer, by the id in the conversation."""

    def __init__(self) -> None:
        self._pending: dict[str, ControlRequest] = {}

    def check_limit(self, client: ConnectedClient | None) -> None:
        """Raise FrameRefusedError if too many requests of a client wait for an answer."""
        if client is None:
            return
        count = sum(request.client is client for request in self._pending.values())
        if count >= MAX_PENDING_REQUESTS:
            raise FrameRefusedError(
                "too-many",
                f"{MAX_PENDING_REQUESTS} requests of this client are already waiting for an answer",
            )

    def add(self, request_id: str, request: ControlRequest) -> None:
        """Add a request that has been sent."""
        self._pending[request_id] = request

    def is_request_pending(self, client: ConnectedClient, request_id: str) -> bool:
        """Return whether the answer to a client's frame is pending."""
        return any(
            request.client is client and request.request_id == request_id
            for request in self._pending.values()
        )

    def pop_answered_request(self, response: Mapping[str, Any]) -> ControlRequest | None:
        """Return the request that the body of a control_response answers, or None."""
        return self._pending.pop(str(response.get("request_id")), None)

    def detach_client(self, client: ConnectedClient) -> None:
        """Keep the requests of a client that has disconnected, but without the client."""
        for request_id, request in self._pending.items():
            if request.client is client:
                self._pending[request_id] = request._replace(client=None, request_id="")


class CallbackRequest(NamedTuple):
    """A request to a hook or an MCP server, with its client or None."""

    request_id: str
    request: Mapping[str, Any]
    client: ConnectedClient | None


class ClientCallbackRouter:
    """The hooks and the MCP servers of the clients, and the requests to them without an answer."""

    def __init__(self) -> None:
        self._hooks_by_client: dict[int, HookGroups] = {}  # by the number of the client
        self._hook_clients: dict[int, ConnectedClient] = {}  # the connected clients with hooks
        self._server_clients: dict[str, ConnectedClient] = {}
        self._open: dict[str, CallbackRequest] = {}

    def register_client_callbacks(
        self, client: ConnectedClient, request: Mapping[str, Any]
    ) -> tuple[HookRegistrationChange, HookGroups]:
        """Register the hooks and the MCP servers of a client's `initialize`.

        Return the change, and the hooks of all clients for the conversation. Raise
        FrameRefusedError if there are too many hooks.

        The hooks of a disconnected client deny their calls until another client registers hooks for
        the same tools or for all tools. A client without hooks changes nothing.
        """
        client_hooks = _prefix_callbacks(client, request.get("hooks"))
        hooks_by_client = dict(self._hooks_by_client)
        if client_hooks:
            new_groups = client_hooks.get(BLOCKING_EVENT, ())
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
        """Undo a registration that the conversation has refused. Hooks that other connected clients
        have registered since then are kept.
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
        """Return a request with its client. A request with a client stays open until
        `pop_answered_callback`.
        """
        kind = request.get("subtype")
        client: ConnectedClient | None = None
        if kind == "hook_callback":
            client_number, _, callback_id = str(request.get("callback_id")).partition(ID_SEPARATOR)
            client = None
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
        """Return the request that a client answers, or None if the request was not sent to this
        client.
        """
        callback = self._open.get(request_id)
        if callback is None or callback.client is not client:
            return None
        return self._open.pop(request_id)

    def cancel_callback(self, request_id: str) -> None:
        """Drop a request that no longer needs an answer."""
        self._open.pop(request_id, None)

    def remove_client(self, client: ConnectedClient) -> list[CallbackRequest]:
        """Remove a client that has disconnected. Return the requests that it has not answered."""
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
        """Return the body of the control_response to a request without a client."""
        kind = callback.request.get("subtype")
        if kind != "hook_callback":
            text = SERVER_CLIENT_LEFT
            if kind != "mcp_message":
                text = f"Unsupported control request subtype: {kind}"
            return {"subtype": "error", "error": text}
        event = as_dict(callback.request.get("input")).get("hook_event_name")
        denial = {
            "hookEventName": event,
            "permissionDecision": "deny",
            "permissionDecisionReason": HOOK_CLIENT_LEFT,
        }
        return {
            "subtype": "success",
            "response": {"hookSpecificOutput": denial} if event == BLOCKING_EVENT else {},
        }


def _join_hooks(client_hooks: Iterable[HookGroups]) -> HookGroups:
    """Return the joined hooks of several clients."""
    all_hooks: HookGroups = {}
    for hooks in client_hooks:
        for event, groups in hooks.items():
            all_hooks[event] = [*all_hooks.get(event, ()), *groups]
    return all_hooks


def _check_hook_limit(hooks: HookGroups) -> None:
    """Raise FrameRefusedError if an event has too many callbacks."""
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
    """Return the hooks of a disconnected client that new hooks do not replace. A new hook replaces
    hooks of the same tools, or all hooks if it is for all tools.
    """
    matchers = {_get_matcher(group) for group in new_groups}
    remaining_groups = [
        group
        for group in hooks.get(BLOCKING_EVENT, ())
        if matchers.isdisjoint(("", _get_matcher(group)))
    ]
    if remaining_groups:
        return {BLOCKING_EVENT: remaining_groups}
    return {}


def _get_matcher(group: Mapping[str, Any]) -> str:
    """Return the matcher of a hook group, "" if it matches all tools."""
    matcher = group.get("matcher")
    if isinstance(matcher, str) and matcher not in MATCH_ALL:
        return matcher
    return ""


def _prefix_callbacks(client: ConnectedClient, raw_hooks: object) -> HookGroups:
    """Return a client's hooks. Each callback id gets the client's number as a prefix."""
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
