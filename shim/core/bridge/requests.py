"""Control requests between the conversation and the clients, in both directions.

`Requests` were put to the conversation. `Asks` are what the session asks of a client's own program:
its hooks, and the MCP servers that live in it. Nothing ever runs unjudged because somebody left:
without the client whose hook judges a call, the call is denied.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from shim.core.bridge.client import Client
from shim.core.bridge.frames import RefusedError
from shim.core.claude.hooks.callbacks import CALLBACKS, EVERYTHING

REQUESTS = 100  # of one client that wait for their answer
ASKS = 1000  # that are open at once
SERVERS = 1000  # names that are remembered
GONE = "the frontend whose hook judges this call has gone"
JUDGES = "PreToolUse"
OF = "/"  # between the number of a client and its own name of a callback
Hooks = dict[str, list[dict[str, Any]]]
NO_SERVER = "the frontend with this MCP server has gone"
TOO_MANY = "too many requests wait for the frontend already"


class Request(NamedTuple):
    """`client` is None for the hub's own, `identity` the frame's id. `body`: the client wants the
    whole answer.

    `undo` is to be called where the conversation refuses it.
    """

    client: Client | None
    identity: str
    subtype: str
    body: bool = False
    undo: Callable[[], None] | None = None


class Requests:
    """Requests by the id that the conversation knows them by."""

    def __init__(self) -> None:
        self._open: dict[str, Request] = {}

    def add(self, identity: str, request: Request) -> None:
        """RefusedError if too many of a client's wait."""
        if (
            request.client is not None
            and sum(each.client is request.client for each in self._open.values()) >= REQUESTS
        ):
            raise RefusedError(
                "too-many", f"{REQUESTS} requests of this client wait for their answer already"
            )
        self._open[identity] = request

    def waits(self, client: Client, identity: str) -> bool:
        """Whether a frame of a client waits for its answer."""
        return any(
            each.client is client and each.identity == identity for each in self._open.values()
        )

    def pending(self, subtype: str) -> bool:
        """Whether a request of this kind has no answer yet."""
        return any(each.subtype == subtype for each in self._open.values())

    def answered(self, response: Mapping[str, Any]) -> Request | None:
        """Whose answer the body of a control_response is; None if nobody of us asked."""
        return self._open.pop(str(response.get("request_id")), None)

    def left(self, client: Client) -> None:
        """Nobody waits for the answers of a client that has gone."""
        for identity, request in list(self._open.items()):
            if request.client is client:
                self._open[identity] = request._replace(client=None, identity="")


class Ask(NamedTuple):
    """`client` is None where nobody is asked."""

    identity: str
    request: Mapping[str, Any]
    client: Client | None


class Asks:
    """The owners, and what they were asked and have not answered."""

    def __init__(self) -> None:
        self._hooks: dict[int, Hooks] = {}  # by the number of the client that brought them
        self._owners: dict[int, Client] = {}  # those of them who are here
        self._servers: dict[str, Client] = {}
        self._open: dict[str, Ask] = {}

    def brought(
        self, client: Client, request: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Callable[[], None]]:
        """A client's `initialize`: what the conversation is to be told instead, and what undoes it.
        RefusedError.

        The hooks of all clients are registered together. Those of a client that has gone go on
        denying the calls that they judge, until another client brings hooks that judge these; who
        brings none changes nothing.
        """
        before, own = dict(self._hooks), _named(client, request.get("hooks"))

        def undo() -> None:
            gone = {number: hooks for number, hooks in before.items() if number not in self._owners}
            self._hooks = {**before, **self._hooks, **gone}
            if client.number in before:
                self._hooks[client.number] = before[client.number]
            else:
                self._hooks.pop(client.number, None)

        if own:
            for number in [number for number in self._hooks if number not in self._owners]:
                if left := _unjudged(self._hooks.pop(number), own.get(JUDGES, ())):
                    self._hooks[number] = left
            self._hooks[client.number], self._owners[client.number] = own, client
        whole: Hooks = {}
        for hooks in self._hooks.values():
            for event, groups in hooks.items():
                whole[event] = [*whole.get(event, ()), *groups]
        most = max(
            (sum(len(group["hookCallbackIds"]) for group in groups) for groups in whole.values()),
            default=0,
        )
        if own and len(self._hooks) > 1 and most > CALLBACKS:
            undo()
            raise RefusedError(
                "too-many",
                f"the frontends of this session have {CALLBACKS} hooks of an event already",
            )
        servers = request.get("sdkMcpServers")
        for name in servers if isinstance(servers, list) else ():
            if isinstance(name, str) and (name in self._servers or len(self._servers) < SERVERS):
                self._servers[name] = client
        return {**request, **({"hooks": whole} if whole else {})}, undo

    def route(self, identity: str, request: Mapping[str, Any]) -> Ask:
        """Whom a request is for. With a client it is open until `answered`."""
        kind = request.get("subtype")
        client: Client | None = None
        if kind == "hook_callback":
            number, _, callback = str(request.get("callback_id")).partition(OF)
            client = self._owners.get(int(number)) if number.isdecimal() else None
            request = {**request, "callback_id": callback}
        elif kind == "mcp_message":
            client = self._servers.get(str(request.get("server_name")))
        if client is not None and len(self._open) >= ASKS:
            client = None
        ask = Ask(identity, request, client)
        if client is not None:
            self._open[identity] = ask
        return ask

    def answered(self, identity: str, client: Client) -> Ask | None:
        """An answer of a client; None if it was not asked that."""
        ask = self._open.get(identity)
        if ask is None or ask.client is not client:
            return None
        return self._open.pop(identity)

    def cancelled(self, identity: str) -> None:
        """The session wants no answer any more."""
        self._open.pop(identity, None)

    def left(self, client: Client) -> list[Ask]:
        """A client has gone; what it was asked and has not answered."""
        if self._owners.pop(client.number, None) is not None:
            judging = self._hooks.pop(client.number, {}).get(JUDGES)
            if judging:
                self._hooks[client.number] = {JUDGES: judging}
        self._servers = {
            name: owner for name, owner in self._servers.items() if owner is not client
        }
        orphans = [ask for ask in self._open.values() if ask.client is client]
        for ask in orphans:
            del self._open[ask.identity]
        return orphans

    def unasked(self, ask: Ask) -> dict[str, Any]:
        """Our own answer, where no client can be asked: the body of a control_response."""
        kind = ask.request.get("subtype")
        if kind != "hook_callback":
            text = (
                NO_SERVER
                if kind == "mcp_message"
                else f"Unsupported control request subtype: {kind}"
            )
            return {"subtype": "error", "error": text}
        said = ask.request.get("input")
        event = said.get("hook_event_name") if isinstance(said, dict) else None
        denied = {
            "hookEventName": event,
            "permissionDecision": "deny",
            "permissionDecisionReason": GONE,
        }
        return {
            "subtype": "success",
            "response": {"hookSpecificOutput": denied} if event == JUDGES else {},
        }


def _unjudged(hooks: Hooks, judging: Sequence[Mapping[str, Any]]) -> Hooks:
    """Of the hooks of a client that has gone those about calls that no others judge: of all tools,
    or of the same.
    """
    matchers = {_matcher(group) for group in judging}
    left = [group for group in hooks.get(JUDGES, ()) if matchers.isdisjoint(("", _matcher(group)))]
    return {JUDGES: left} if left else {}


def _matcher(group: Mapping[str, Any]) -> str:
    """The tools that hooks are about, as they are said; "" for all."""
    said = group.get("matcher")
    return said if isinstance(said, str) and said not in EVERYTHING else ""


def _named(client: Client, given: object) -> Hooks:
    """A client's hooks, with the client's number in the names of its callbacks."""
    found: Hooks = {}
    for event, groups in given.items() if isinstance(given, dict) else ():
        for group in groups if isinstance(groups, list) else ():
            callbacks = group.get("hookCallbackIds") if isinstance(group, dict) else None
            if isinstance(callbacks, list) and callbacks:
                named = [f"{client.number}{OF}{callback}" for callback in callbacks]
                found[event] = [*found.get(event, ()), {**group, "hookCallbackIds": named}]
    return found
