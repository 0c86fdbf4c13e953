"""What a client's frame does: one method a kind."""

from collections.abc import Callable, Mapping
from typing import Any

from shim.core.bridge.client import Client
from shim.core.bridge.commands import End
from shim.core.bridge.conversation import Conversation
from shim.core.bridge.frames import (
    ID_CHARACTERS,
    KNOWS,
    PROTOCOL,
    FrameError,
    RefusedError,
    frame,
    identity,
    read_hello,
)
from shim.core.bridge.questions import changes_mode, read_answer
from shim.core.bridge.requests import Request
from shim.core.reading.ids import parse_uuid

Said = Mapping[str, Any]
BYPASS = "bypassPermissions"
DIFFERS = (
    "this host speaks protocol {ours} and the client {theirs}; what both know works, and a new session of the same "
    "version on both sides has all of it"
)


class Obedience:
    """RefusedError and FrameError come out of `obey`; a frame that is refused does nothing."""

    def __init__(self, conversation: Conversation) -> None:
        self._it = conversation
        self._kinds: Mapping[str, Callable[[Client, Said, str], bool]] = {
            "message": self._message,
            "answer": self._answer,
            "interrupt": self._interrupt,
            "model": self._model,
            "mode": self._mode,
            "take": self._take,
            "release": self._release,
            "end": self._end,
            "request": self._request,
            "reply": self._reply,
            "deaf": self._deaf,
        }

    def hello(self, client: Client, said: Said) -> None:
        """The first frame."""
        hello, it = read_hello(said), self._it
        it.audience.admit(client, hello)
        if hello.drives and it.roles.driver is None:
            it.give(client)
        facts: dict[str, Any] = {
            "protocol": PROTOCOL,
            "client": client.name,
            **it.session.facts(),
            "generation": it.audience.generation,
            "number": it.audience.number,
            "state": it.facts(),
            "driver": it.roles.name,
            "questions": list(it.questions.open),
            "initialize": it.initialize,
            "init": it.init,
            "knows": KNOWS,
        }
        if hello.protocol != PROTOCOL:
            facts["differs"] = DIFFERS.format(ours=PROTOCOL, theirs=hello.protocol)
        client.stale = False
        it.audience.say(client, frame("welcome", **facts))
        it.audience.begin(client)

    def obey(self, client: Client, said: Said) -> None:
        """A later frame. An unknown kind is ignored, unless its id shows that an answer is waited for."""
        mark, it = identity(said), self._it
        does = self._kinds.get(said["kind"])
        if does is None:
            if mark:
                raise RefusedError("unknown-kind", f"this host knows protocol {PROTOCOL}, and no such frame in it")
            return
        if said["kind"] != "reply" and mark:
            if it.requests.waits(client, mark):
                return
            if (client.number, mark) in it.done:
                it.repeat(client, mark)
                return
        if does(client, said, mark):
            it.accept(client, mark)

    # -- one method a kind: whether the frame is done with it ---------------------------------------------------------

    def _message(self, client: Client, said: Said, mark: str) -> bool:
        it, message = self._it, said.get("message")
        uuid = parse_uuid(mark)
        key = ("", uuid) if uuid else (client.said, mark)
        if mark and key in it.messages:
            return True
        it.roles.drives(client)
        if not isinstance(message, dict) or message.get("role") != "user":
            raise FrameError('message has `message`, an object with the role "user"')
        if not isinstance(message.get("content"), str | list):
            raise FrameError("`content` of a message is a text or a list of blocks")
        it.message(message, uuid or it.mint(), said.get("priority"))
        it.give(client)
        if mark:
            it.messages[key] = True
        return True

    def _answer(self, client: Client, said: Said, mark: str) -> bool:
        it, named = self._it, said.get("question")
        it.roles.answers(client)
        if not isinstance(named, str) or len(named) > ID_CHARACTERS:
            raise FrameError("answer has `question`, the id of a question")
        question = it.questions.open.get(named)
        if question is None:
            outcome = it.questions.outcome(named)
            if outcome is None:
                raise RefusedError("unknown-question", "no question of this session has this id")
            it.audience.say(client, outcome.frame)
            return False
        how, body = read_answer(question, said.get("decision"), bypass=it.session.bypass)
        if changes_mode(body):
            it.roles.drives(client)  # as for a frame `mode`: whoever drives is not surprised by a wider session
        it.settle(named, client.name, how, body)
        return True

    def _interrupt(self, client: Client, said: Said, mark: str) -> bool:
        it = self._it
        it.roles.may_drive(client)
        it.request({"subtype": "interrupt"}, Request(client, mark, "interrupt"))
        it.settle_all(client.name, "interrupt")
        return False

    def _model(self, client: Client, said: Said, mark: str) -> bool:
        model = said.get("model")
        if not isinstance(model, str | None):
            raise FrameError("model has `model`, a name or null")
        self._it.roles.drives(client)
        self._it.request({"subtype": "set_model", "model": model}, Request(client, mark, "set_model"))
        return False

    def _mode(self, client: Client, said: Said, mark: str) -> bool:
        self._it.roles.drives(client)
        self._allowed(said.get("mode"))
        body = {"subtype": "set_permission_mode", "mode": said.get("mode")}
        self._it.request(body, Request(client, mark, "set_permission_mode"))
        return False

    def _allowed(self, mode: object) -> None:
        if not isinstance(mode, str):
            raise FrameError("mode has `mode`, the name of a permission mode")
        if mode == BYPASS and not self._it.session.bypass:
            raise RefusedError("bypass", f"{BYPASS} can be chosen only if the session began with it")

    def _take(self, client: Client, said: Said, mark: str) -> bool:
        self._it.roles.may_drive(client)
        self._it.give(client)
        return True

    def _release(self, client: Client, said: Said, mark: str) -> bool:
        self._it.roles.may_drive(client)
        if self._it.roles.driver is client:
            self._it.give(None)
        return True

    def _end(self, client: Client, said: Said, mark: str) -> bool:
        self._it.roles.drives(client)
        self._it.commands.append(End(client.name))
        return False  # the answer is `bye`

    def _request(self, client: Client, said: Said, mark: str) -> bool:
        it, body = self._it, said.get("request")
        if not isinstance(body, dict) or not isinstance(body.get("subtype"), str) or not mark:
            raise FrameError("request has `id`, and `request` with a `subtype`")
        if body["subtype"] == "interrupt":
            it.roles.may_drive(client)
        else:
            it.roles.drives(client)
        if body["subtype"] == "set_permission_mode":
            self._allowed(body.get("mode"))
        brings = body["subtype"] == "initialize" and (body.get("hooks") or body.get("sdkMcpServers"))
        if brings and not client.knows("ask"):
            raise RefusedError("bad-frame", "hooks and servers of a client need `ask` in what it knows")
        it.request(body, Request(client, mark, body["subtype"], body=True))
        if body["subtype"] == "initialize":
            it.asks.brought(client, body)
        if body["subtype"] == "apply_flag_settings" and _narrows(body.get("settings")):
            it.narrower = client
        if body["subtype"] == "interrupt":
            it.settle_all(client.name, "interrupt")
        return False

    def _reply(self, client: Client, said: Said, mark: str) -> bool:
        it, response = self._it, said.get("response")
        it.roles.may_drive(client)
        if not isinstance(response, dict):
            raise FrameError("reply has `response`, the body of a control_response")
        if it.asks.answered(mark, client) is not None:
            it.respond(mark, response)
        return False

    def _deaf(self, client: Client, said: Said, mark: str) -> bool:
        client.deaf = True
        self._it.deny_unheard()
        return True


def _narrows(settings: object) -> bool:
    """Whether the settings of a request have rules that narrow."""
    permissions = settings.get("permissions") if isinstance(settings, dict) else None
    return isinstance(permissions, dict) and bool(permissions.get("deny") or permissions.get("ask"))
