"""Control requests between the conversation and the clients, in both directions.

`Requests` were put to the conversation. `Asks` are what the session asks of a client's own program:
its hooks, and the MCP servers that live in it. Nothing ever runs unjudged because somebody left:
without the client whose hook judges a call, the call is denied.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from shim.core.bridge.client import Client
from shim.core.bridge.frames import RefusedError
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
    """`client` is None for the hub's own, `identity` the frame's id. `body`: the client wants the
    whole answer.

    `undo` is to be called where the conversation refuses it.
    """

    client: Client | None
    request_id: str
    subtype: str
    wants_body: bool = False
    undo: Callable[[], None] | None = None


class ControlRequests:
    """Requests by the id that the conversation knows them by."""

    def __init__(self) -> None:
        self._open: dict[str, ControlRequest] = {}

    def add(self, identity: str, request: ControlRequest) -> None:
        """RefusedError if too many of a client's wait."""
        if (
            request.client is not None
            and sum(each.client is request.client for each in self._open.values())
            >= MAX_PENDING_REQUESTS
        ):
            raise RefusedError(
                "too-many",
                f"{MAX_PENDING_REQUESTS} requests of this client wait for their answer already",
            )
        self._open[identity] = request

    def is_waiting(self, client: Client, identity: str) -> bool:
        """Whether a frame of a client waits for its answer."""
        return any(
            each.client is client and each.request_id == identity for each in self._open.values()
        )

    def has_pending(self, subtype: str) -> bool:
        """Whether a request of this kind has no answer yet."""
        return any(each.subtype == subtype for each in self._open.values())

    def pop_answered(self, response: Mapping[str, Any]) -> ControlRequest | None:
        """Whose answer the body of a control_response is; None if nobody of us asked."""
        return self._open.pop(str(response.get("request_id")), None)

    def detach_client(self, client: Client) -> None:
        """Nobody waits for the answers of a client that has gone."""
        for identity, request in list(self._open.items()):
            if request.client is client:
                self._open[identity] = request._replace(client=None, request_id="")


class CallbackRequest(NamedTuple):
    """`client` is None where nobody is asked."""

    request_id: str
    request: Mapping[str, Any]
    client: Client | None


class CallbackRouter:
    """The owners, and what they were asked and have not answered."""

    def __init__(self) -> None:
        self._hooks_by_client: dict[
            int, HookGroups
        ] = {}  # by the number of the client that brought them
        self._hook_clients: dict[int, Client] = {}  # those of them who are here
        self._server_clients: dict[str, Client] = {}
        self._open: dict[str, CallbackRequest] = {}

    def register_client(
        self, client: Client, request: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Callable[[], None]]:
        """A client's `initialize`: what the conversation is to be told instead, and what undoes it.
        RefusedError.

        The hooks of all clients are registered together. Those of a client that has gone go on
        denying the calls that they judge, until another client brings hooks that judge these; who
        brings none changes nothing.
        """
        before, own = dict(self._hooks_by_client), _prefix_callbacks(client, request.get("hooks"))

        def undo() -> None:
            gone = {
                number: hooks
                for number, hooks in before.items()
                if number not in self._hook_clients
            }
            self._hooks_by_client = {**before, **self._hooks_by_client, **gone}
            if client.number in before:
                self._hooks_by_client[client.number] = before[client.number]
            else:
                self._hooks_by_client.pop(client.number, None)

        if own:
            for number in [
                number for number in self._hooks_by_client if number not in self._hook_clients
            ]:
                if left := _select_unreplaced_hooks(
                    self._hooks_by_client.pop(number), own.get(BLOCKING_EVENT, ())
                ):
                    self._hooks_by_client[number] = left
            self._hooks_by_client[client.number], self._hook_clients[client.number] = own, client
        whole: HookGroups = {}
        for hooks in self._hooks_by_client.values():
            for event, groups in hooks.items():
                whole[event] = [*whole.get(event, ()), *groups]
        most = max(
            (sum(len(group["hookCallbackIds"]) for group in groups) for groups in whole.values()),
            default=0,
        )
        if own and len(self._hooks_by_client) > 1 and most > MAX_CALLBACKS_PER_EVENT:
            undo()
            raise RefusedError(
                "too-many",
                f"the frontends of this session have {MAX_CALLBACKS_PER_EVENT} hooks of an event already",
            )
        servers = request.get("sdkMcpServers")
        for name in servers if isinstance(servers, list) else ():
            if isinstance(name, str) and (
                name in self._server_clients or len(self._server_clients) < MAX_SERVERS
            ):
                self._server_clients[name] = client
        return {**request, **({"hooks": whole} if whole else {})}, undo

    def route(self, identity: str, request: Mapping[str, Any]) -> CallbackRequest:
        """Whom a request is for. With a client it is open until `answered`."""
        kind = request.get("subtype")
        client: Client | None = None
        if kind == "hook_callback":
            number, _, callback = str(request.get("callback_id")).partition(ID_SEPARATOR)
            client = self._hook_clients.get(int(number)) if number.isdecimal() else None
            request = {**request, "callback_id": callback}
        elif kind == "mcp_message":
            client = self._server_clients.get(str(request.get("server_name")))
        if client is not None and len(self._open) >= MAX_OPEN_CALLBACKS:
            client = None
        ask = CallbackRequest(identity, request, client)
        if client is not None:
            self._open[identity] = ask
        return ask

    def pop_answered(self, identity: str, client: Client) -> CallbackRequest | None:
        """An answer of a client; None if it was not asked that."""
        ask = self._open.get(identity)
        if ask is None or ask.client is not client:
            return None
        return self._open.pop(identity)

    def cancel(self, identity: str) -> None:
        """The session wants no answer any more."""
        self._open.pop(identity, None)

    def remove_client(self, client: Client) -> list[CallbackRequest]:
        """A client has gone; what it was asked and has not answered."""
        if self._hook_clients.pop(client.number, None) is not None:
            judging = self._hooks_by_client.pop(client.number, {}).get(BLOCKING_EVENT)
            if judging:
                self._hooks_by_client[client.number] = {BLOCKING_EVENT: judging}
        self._server_clients = {
            name: owner for name, owner in self._server_clients.items() if owner is not client
        }
        orphans = [ask for ask in self._open.values() if ask.client is client]
        for ask in orphans:
            del self._open[ask.request_id]
        return orphans

    def build_fallback_response(self, ask: CallbackRequest) -> dict[str, Any]:
        """Our own answer, where no client can be asked: the body of a control_response."""
        kind = ask.request.get("subtype")
        if kind != "hook_callback":
            text = (
                SERVER_CLIENT_LEFT
                if kind == "mcp_message"
                else f"Unsupported control request subtype: {kind}"
            )
            return {"subtype": "error", "error": text}
        said = ask.request.get("input")
        event = said.get("hook_event_name") if isinstance(said, dict) else None
        denied = {
            "hookEventName": event,
            "permissionDecision": "deny",
            "permissionDecisionReason": HOOK_CLIENT_LEFT,
        }
        return {
            "subtype": "success",
            "response": {"hookSpecificOutput": denied} if event == BLOCKING_EVENT else {},
        }


def _select_unreplaced_hooks(hooks: HookGroups, judging: Sequence[Mapping[str, Any]]) -> HookGroups:
    """Of the hooks of a client that has gone those about calls that no others judge: of all tools,
    or of the same.
    """
    matchers = {_get_matcher(group) for group in judging}
    left = [
        group
        for group in hooks.get(BLOCKING_EVENT, ())
        if matchers.isdisjoint(("", _get_matcher(group)))
    ]
    return {BLOCKING_EVENT: left} if left else {}


def _get_matcher(group: Mapping[str, Any]) -> str:
    """The tools that hooks are about, as they are said; "" for all."""
    said = group.get("matcher")
    return said if isinstance(said, str) and said not in MATCH_ALL else ""


def _prefix_callbacks(client: Client, given: object) -> HookGroups:
    """A client's hooks, with the client's number in the names of its callbacks."""
    found: HookGroups = {}
    for event, groups in given.items() if isinstance(given, dict) else ():
        for group in groups if isinstance(groups, list) else ():
            callbacks = group.get("hookCallbackIds") if isinstance(group, dict) else None
            if isinstance(callbacks, list) and callbacks:
                named = [f"{client.number}{ID_SEPARATOR}{callback}" for callback in callbacks]
                found[event] = [*found.get(event, ()), {**group, "hookCallbackIds": named}]
    return found
