"""The routes of the gateway. All but the first three need a token; JSON in, JSON out.

    GET  /                       the page; /assets/NAME are its files
    GET  /openapi.json           this list, for programs
    POST /login {token}          a cookie for a token, or for what the printed address has in its
                                 place: {role:
                                 "drive"|"watch", proof}; with the cookie every request has the
                                     proof as its header
                                 X-Shim-Page. POST /logout {} ends the cookie
    GET  /me                     {role, version, vendors: [names], installed: [names of those whose
         program is here]}
    GET  /sessions               {sessions: [SESSION…]}, the last begun first
    GET  /sessions/ID            SESSION; ID is the short id or the UUID
    POST /sessions {vendor, prompt, cwd, model?, mode?}                              201 {id,
                                                                                     session}
    GET  /sessions/ID/events     server-sent events: lines as they are (below)
    GET  /sessions/ID/steps      server-sent events: steps as the page draws them (below); ?last=N
         of what was before
    POST /sessions/ID/messages {text, id?: a UUID, take?, wake?}; `wake: true` begins a session
        again that has ended
    POST /sessions/ID/answers {question, behavior: allow|deny, message?, input?, always?}
    POST /sessions/ID/interrupt {}
    POST /sessions/ID/model {model, take?}             POST /sessions/ID/mode {mode, take?}
    POST /sessions/ID/take {}                          POST /sessions/ID/release {}
    POST /sessions/ID/stop {take?}

SESSION is {id, session, vendor, name, cwd, created, started, alive, state, status, waitingFor,
needs, detail, driver, version}: the facts of `host.json`, times in ms since 1970, null for what is
not known.

A refusal is {error: a sentence, …}: 400 it cannot be read, 401 no good token, 403 it may not be
done, 404 no such session, 409 {driver} somebody else drives (`take: true` takes the session), {by,
how} the question was settled before, or the session has ended; 413 too long, 415 no JSON, 429 too
much, 504 no word of the session.

EVENTS of a stream. `id: GENERATION-NUMBER` stands at numbered lines alone; a browser that comes
back with it as Last-Event-ID (or ?after=) goes on behind it. 204 says that the session has ended
and nothing is new.

    events: line     Claude's line, byte for byte      partial  one without a number
                     (`stream_event`)
            welcome, synced, gap, question, settled, state, driver, bye: frames of the bridge
                (core/bridge/frames.py)

    steps:  welcome  {session, id, name, vendor, cwd, model, mode, bypass, generation, number,
        state, driver,
                     questions: [ids], models: [{value, displayName}]…}
            about    {title, began: ms since 1970 of time 0, left_out: how many steps before the
                     first one}
            step     a step, new or changed: what has its `number` is replaced, else its place is by
                     `number`. The keys
                     are those of the exported page's steps: {number, kind, at, until?, turn, depth,
                         above, name,
                     outcome, main, text | trees, diff, output, fields: [[name, text]], facts:
                         [[name, text]]}, empty
                     ones left out. kind: start prompt thinking text call note error result. A call
                         without `outcome`
                     runs.
            live     {above, kind: text|thinking|call, text, name?, begin?}: grows the open text of
                     the agent that
                     serves the call `above` (0: the main one); `begin` starts another one. It is
                         gone with the next
                     step of that agent, with any result, and with a `gap`
            question {question: its id, kind: permission|ask|elicitation, tool, at, until?: when it
                is denied, main?,
                     fields?: [[name, text]],
                     diff?, message?, reason?, path?, asked?: Claude's questions with their options,
                         schema?,
                     always?: [the rules that always allows in this session]}
            settled  {question, by, how: allow|deny|timeout|interrupt|cancelled|ended}
            state    {state, status, waitingFor, needs, detail, model, mode}    driver   {client: a
                     name, or null}
            mode     {mode}: the permission mode is this one now
            totals   {turns, calls, failed, denied, errors, cost, tokens, duration, model}
            synced   {number}: what was before is told; `question`s that are open follow
            gap      {from, to, reason}: forget all steps; they are told anew. With the reason
                     `slow` only some `live`
                     is missing, and no step                                       bye  {reason}:
                                                                                   the session has
                                                                                   ended
"""

import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from shim import __version__, adapters
from shim.bridge.gateway import acts
from shim.bridge.gateway.drawing import clean
from shim.bridge.gateway.gate import App, Gate, Names, Refused, Visitor, set_cookie
from shim.bridge.gateway.hosts import Hosts, NewSession
from shim.bridge.gateway.limits import Limits
from shim.bridge.gateway.openapi import document
from shim.bridge.gateway.streams import Drawn, Ended, EventStream, Teller, cursor_of
from shim.bridge.gateway.tokens import TokenFile
from shim.core.bridge.frames import Cursor
from shim.core.errors import ShimError
from shim.core.policy.policy import BYPASS
from shim.core.reading.ids import is_short_id, parse_uuid, short_id, vendor_name

ASSETS = os.path.join(os.path.dirname(__file__), "assets")
DRAWING = os.path.join(os.path.dirname(__file__), "..", "..", "story", "export", "assets")
# the drawing that the exported page has too
SHARED = ("look.css", "steps.css", "elements.js", "steps.js")
KINDS = {
    "css": "text/css",
    "js": "text/javascript",
    "html": "text/html",
    "svg": "image/svg+xml",
    "png": "image/png",
}
KINDS["webmanifest"] = "application/manifest+json"
INDEX = "index.html"
# Of the facts of a session.
SHOWN = (
    "id", "session", "vendor", "name", "cwd", "created", "started", "alive", "state", "status", "waitingFor", "needs",
    "detail", "driver", "version",
)  # fmt: skip
LAST, MOST_STEPS = 1000, 20_000  # steps of the past that are told: usually, and at most

Answer = Callable[[Request], Awaitable[Any]]


def application(hosts: Hosts, names: Names, tokens: TokenFile, limits: Limits) -> App:
    """The whole gateway as one ASGI application."""
    gateway = Gateway(hosts, names, tokens, limits)
    routes = [
        Route("/", gateway.page),
        Route("/assets/{name}", gateway.asset),
        Route("/openapi.json", gateway.openapi),
        Route("/me", gateway.me),
        Route("/login", gateway.log_in, methods=["POST"]),
        Route("/logout", gateway.log_out, methods=["POST"]),
        Route("/sessions", gateway.sessions, methods=["GET"]),
        Route("/sessions", gateway.begin, methods=["POST"]),
        Route("/sessions/{id}", gateway.session),
        Route("/sessions/{id}/events", gateway.events, methods=["GET"]),
        Route("/sessions/{id}/steps", gateway.steps, methods=["GET"]),
        *(
            Route(f"/sessions/{{id}}/{name}", gateway.act, methods=["POST"], name=name)
            for name in ACTS
        ),
    ]
    handlers: dict[Any, Any] = {
        Refused: _refused,
        HTTPException: _unknown,
        ShimError: _failed,
        ClientDisconnect: _gone,
    }
    return Gate(Starlette(routes=routes, exception_handlers=handlers), names, tokens)


# What may be posted to a session → the frame for the host, of the request's body.
ACTS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "messages": lambda body: {
        "kind": "message",
        "id": acts.read_message_id(body),
        "message": {"role": "user", "content": acts.text(body, "text", most=acts.TEXT_CHARACTERS)},
    },
    "answers": lambda body: {"kind": "answer"},
    "interrupt": lambda body: {"kind": "interrupt"},
    "model": lambda body: {"kind": "model", "model": acts.text(body, "model")},
    "mode": lambda body: {"kind": "mode", "mode": acts.text(body, "mode")},
    "take": lambda body: {"kind": "take"},
    "release": lambda body: {"kind": "release"},
    "stop": lambda body: {"kind": "end"},
}


class Gateway:
    """The answers to requests. It keeps what may be lost: how much of its limits is used."""

    def __init__(self, hosts: Hosts, names: Names, tokens: TokenFile, limits: Limits) -> None:
        self._hosts = hosts
        self._names = names
        self._tokens = tokens
        self._limits = limits
        # The files are kept in memory: an upgrade may replace them, and a page has to fit its
        # server.
        self._assets = {name: _read_asset(DRAWING, name) for name in SHARED}
        self._assets |= {name: _read_asset(ASSETS, name) for name in os.listdir(ASSETS)}

    # -- what anybody may have ---------------------------------------------------------------------

    async def page(self, request: Request) -> Response:
        return Response(self._assets[INDEX], media_type="text/html")

    async def asset(self, request: Request) -> Response:
        """A file of the page. Its name is looked up, and never becomes a path."""
        name = request.path_params["name"]
        content, kind = self._assets.get(name), KINDS.get(name.rpartition(".")[2])
        if content is None or kind is None:
            raise Refused(404, "there is no such file")
        return Response(content, media_type=kind)

    async def openapi(self, request: Request) -> Response:
        return _json(document())

    async def log_in(self, request: Request) -> Response:
        """A cookie for a token, so that the token need not stand in the page's address."""
        token = acts.text(await _body(request), "token")
        tokens = self._tokens.current()
        role = tokens.role(token) or tokens.role_of_way_in(token, time.time())
        if role is None:
            raise Refused(
                401,
                "this token is unknown, or too old; `shim bridge token` shows the one that is good",
            )
        authority = self._names.authority
        cookie = set_cookie(self._names, tokens.cookie(role, authority))
        return _json(
            {"role": role, "proof": tokens.proof(role, authority)}, headers={"set-cookie": cookie}
        )

    # -- with a token ------------------------------------------------------------------------------

    async def log_out(self, request: Request) -> Response:
        return _json({}, headers={"set-cookie": set_cookie(self._names, "")})

    async def me(self, request: Request) -> Response:
        """What this visitor may do, and what a new session may be of."""
        told = {
            "role": _visitor(request).role,
            "version": __version__,
            "vendors": list(adapters.VENDORS),
        }
        return _json({**told, "installed": await anyio.to_thread.run_sync(self._hosts.installed)})

    async def sessions(self, request: Request) -> Response:
        return _json(
            {
                "sessions": [
                    _shown(one) for one in await anyio.to_thread.run_sync(self._hosts.sessions)
                ]
            }
        )

    async def session(self, request: Request) -> Response:
        return _json(_shown(await self._found(request)))

    async def events(self, request: Request) -> Ended | EventStream:
        """The lines of a session."""
        return await self._stream(request, Teller)

    async def steps(self, request: Request) -> Ended | EventStream:
        """The drawn steps of a session."""
        last = request.query_params.get("last", str(LAST))
        if not last.isascii() or not last.isdigit() or int(last[:9]) > MOST_STEPS:
            raise Refused(400, f"`last` must be a number up to {MOST_STEPS:,}")
        return await self._stream(request, lambda cursor: Drawn(cursor, int(last)))

    async def _stream(
        self, request: Request, teller: Callable[[Cursor | None], Teller]
    ) -> Ended | EventStream:
        found = await self._found(request)
        cursor = cursor_of(
            request.headers.get("last-event-id") or request.query_params.get("after", "")
        )
        if cursor is not None and not found["alive"] and self._hosts.seen(found["session"], cursor):
            return Ended()
        visitor = _visitor(request)
        place = self._limits.stream(visitor.role)
        return EventStream(self._hosts, found["session"], teller(cursor), visitor.still, place)

    async def begin(self, request: Request) -> Response:
        """Another session."""
        body = await self._posted(request)
        vendor, cwd = acts.text(body, "vendor"), acts.text(body, "cwd", most=4096)
        prompt = acts.text(body, "prompt", most=acts.TEXT_CHARACTERS)
        model, mode = acts.text(body, "model", needed=False), acts.text(body, "mode", needed=False)
        if not vendor_name(vendor) or vendor not in adapters.VENDORS:
            raise Refused(
                400,
                f"there is no vendor {clean(vendor)!r}; there are {', '.join(adapters.VENDORS)}",
            )
        if mode == BYPASS:
            raise Refused(
                403, f"a session with {BYPASS} is not begun from the web; begin it on the machine"
            )
        if not os.path.isabs(cwd) or not os.path.isdir(cwd):
            raise Refused(
                400, "`cwd` must be the absolute path of a folder that exists", field="cwd"
            )
        if model.startswith("-") or mode.startswith("-"):
            raise Refused(400, "neither a model nor a mode begins with a dash")
        session = await anyio.to_thread.run_sync(
            self._hosts.start, NewSession(vendor, prompt, cwd, model, mode)
        )
        return _json({"id": short_id(session), "session": session}, status=201)

    async def act(self, request: Request) -> Response:
        """Something posted to a session."""
        name = request.url.path.rpartition("/")[2]
        body = await self._posted(request)
        frame = ACTS[name](body)
        take = acts.read_flag(body, "take")
        wake = acts.read_flag(body, "wake")
        found = await self._found(request)
        if not found["alive"] and name == "messages" and wake:
            session, message_id = found["session"], frame["id"]
            prompt = frame["message"]["content"]
            if message_id and await anyio.to_thread.run_sync(
                self._hosts.taken, session, message_id
            ):
                return _json({"id": message_id})
            if await anyio.to_thread.run_sync(self._hosts.wake, session, prompt, message_id):
                return _json({"woken": True})
        elif not found["alive"]:
            raise Refused(409, acts.ENDED, state=found.get("state"))
        if name == "answers":
            return _json(
                await acts.answer(self._hosts, found["session"], acts.text(body, "question"), body)
            )
        return _json(await acts.act(self._hosts, found["session"], frame, take=take))

    async def _posted(self, request: Request) -> dict[str, Any]:
        self._limits.post(_visitor(request).role)
        return await _body(request)

    async def _found(self, request: Request) -> dict[str, Any]:
        """The session that the address names, by its short id or its UUID."""
        word = request.path_params["id"].lower()
        named = is_short_id(word) or parse_uuid(word) == word
        found = await anyio.to_thread.run_sync(self._hosts.find, word) if named else []
        if len(found) != 1:
            raise Refused(
                404 if not found else 409,
                "there is no such session" if not found else "give the whole id",
            )
        return found[0]


def _read_asset(folder: str, name: str) -> bytes:
    with open(os.path.join(folder, name), "rb") as file:
        return file.read()


def _visitor(request: Request) -> Visitor:
    visitor: Visitor = request.state.visitor
    return visitor


async def _body(request: Request) -> dict[str, Any]:
    """The object in a request's body; an empty body is an empty object."""
    try:
        found = orjson.loads(await request.body() or b"{}")
    except orjson.JSONDecodeError as error:
        raise Refused(400, f"the body is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise Refused(400, "the body must be an object of JSON")
    return found


def _shown(facts: dict[str, Any]) -> dict[str, Any]:
    return {key: clean(facts.get(key)) for key in SHOWN}


def _json(value: object, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value), status, headers, media_type="application/json")


def _refused(request: Request, refusal: Refused) -> Response:
    close = {"connection": "close"} if refusal.status in (400, 413) else None
    return _json({"error": str(refusal), **refusal.more}, status=refusal.status, headers=close)


def _unknown(request: Request, error: HTTPException) -> Response:
    text = {404: "there is nothing here", 405: "this is not done here"}.get(
        error.status_code, error.detail
    )
    return _json({"error": text}, status=error.status_code)


def _failed(request: Request, error: ShimError) -> Response:
    return _json(
        {"error": clean(str(error)), **({"hint": clean(error.hint)} if error.hint else {})},
        status=409,
    )


def _gone(request: Request, error: ClientDisconnect) -> Response:
    return Response(status_code=400)
