"""The gateway's HTTP requests and responses. `OPERATIONS` lists the routes, and `GET /openapi.json`
describes them for programs.

Each request needs a token or a cookie. `POST /login` sets the cookie in exchange for a token, or
for the login code of the printed URL. A request with the cookie must also send the login's `proof`
in the header X-Shim-Page. Bodies and responses are JSON.

SESSION is {id, session, vendor, name, cwd, created, started, updated, alive, state, status,
waitingFor, needs, detail, driver, version, machine, away}: the metadata in `host.json`, times in ms
since 1970, null for unknown values. `updated` is the time of the last change.

An error is {error: a sentence, ...}: 400 invalid request, 401 no valid token, 403 not permitted,
404 no such session, 409 {driver} another client controls the session (`take: true` takes it), {by,
how} the prompt was resolved before, or the session has ended; 413 too long, 415 not JSON, 429 too
many requests, 504 the session did not answer.

A stream sends `id: GENERATION-NUMBER` only with numbered lines. A browser that reconnects sends its
last id as Last-Event-ID (or ?after=), and receives all later events. Status 204 means that the
session has ended and nothing is new. GET /sessions/ID/steps first sends the last ?last=N steps
(default 1,000), and at most the last 200 after a reconnection.

    events: line     Claude's line, byte for byte
            partial  a line without a number (`stream_event`)
            welcome, synced, gap, question, settled, state, driver, bye: frames of the bridge
                (core/bridge/frames.py)

    steps:  welcome  {session, id, name, vendor, cwd, model, mode, bypass, generation, number,
                     state, driver, questions: [ids], models: [{value, displayName}]...}
            about    {title, began: ms since 1970 of time 0, left_out: the number of steps before
                     the first one}
            step     a new or changed step. It replaces the step with the same `number`, or is
                     inserted by its `number`. The keys are those of the exported page's steps:
                     {number, kind, at, until?, waited?: ms until its prompt was answered, turn,
                     depth, above, name, outcome, main, text | trees, diff, output,
                     fields: [[name, text]], facts: [[name, text]]}, without empty ones.
                     kind: start prompt thinking text call note error result. A call without
                     `outcome` is running.
            live     {above, kind: text|thinking|call, text, name?, begin?}: appended to the open
                     text of the agent that serves the call `above` (0: the main agent); `begin`
                     starts a new text. The next step of that agent, a result or a `gap` removes it
            question {question: its id, kind: permission|ask|elicitation, tool, at, until?: when it
                     is denied, main?, fields?: [[name, text]], diff?, message?, reason?, path?,
                     asked?: Claude's questions with their options, schema?, always?: [the rules
                     that "always" allows in this session]}
            settled  {question, by, how: allow|deny|timeout|interrupt|cancelled|ended}
            state    {state, status, waitingFor, needs, detail, model, mode}
            driver   {client: a name, or null}
            mode     {mode}: the permission mode from now on
            totals   {turns, calls, failed, denied, errors, cost, tokens, duration, model}
            synced   {number}: the past was sent; the open `question`s follow
            gap      {from, to, reason}: remove all steps; the last ones follow, with an `about` and
                     a `synced`. With the reason `slow` only some `live` is missing, and no step
            bye      {reason}: the session has ended
"""

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import anyio
import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from shim import __version__, adapters
from shim.bridge.gateway import actions
from shim.bridge.gateway.auth import (
    App,
    AuthMiddleware,
    GatewayHostsAndOrigins,
    GatewayVisitor,
    HTTPError,
    build_error_response,
    build_set_cookie_header,
)
from shim.bridge.gateway.drawings import MAX_STORED_STEPS, SessionDrawing, SessionDrawings
from shim.bridge.gateway.hosts import LocalBackgroundSessionManager, NewSessionRequest
from shim.bridge.gateway.limits import GatewayRequestLimiter
from shim.bridge.gateway.openapi import FLAG, TEXT, Operation, build_openapi_document
from shim.bridge.gateway.step_renderer import escape_control_chars_in_json
from shim.bridge.gateway.streams import (
    EventStreamResponse,
    ServerSentEventEncoder,
    SessionStepEventEncoder,
    parse_log_cursor,
)
from shim.bridge.gateway.tokens import GatewayTokenFile
from shim.core.bridge.frames import LogCursor
from shim.core.errors import ShimError
from shim.core.policy.policy import BYPASS_MODE
from shim.core.reading.values import (
    canonicalize_uuid,
    is_short_session_id,
    is_valid_vendor_name,
    shorten_session_id,
)

PAGE_ASSETS_FOLDER = os.path.join(os.path.dirname(__file__), "assets")
STORY_ASSETS_FOLDER = os.path.join(
    os.path.dirname(__file__), "..", "..", "story", "export", "assets"
)
# The exported page also contains these files.
SHARED_ASSETS = ("look.css", "steps.css", "elements.js", "steps.js")
MEDIA_TYPES = {
    "css": "text/css",
    "js": "text/javascript",
    "html": "text/html",
    "svg": "image/svg+xml",
    "png": "image/png",
}
MEDIA_TYPES["webmanifest"] = "application/manifest+json"
INDEX_FILE = "index.html"
# keys from a session's metadata
SESSION_KEYS = (
    "id", "session", "vendor", "name", "cwd", "created", "started", "updated", "alive", "state", "status", "waitingFor",
    "needs", "detail", "driver", "version", "machine", "away",
)  # fmt: skip
# the default and the maximum number of past steps
DEFAULT_STEPS = 1000
MAX_STEPS = 20_000


def create_app(
    hosts: LocalBackgroundSessionManager,
    server_names: GatewayHostsAndOrigins,
    tokens: GatewayTokenFile,
    limits: GatewayRequestLimiter,
) -> App:
    """Return the gateway as an ASGI application."""
    gateway = WebGateway(hosts, server_names, tokens, limits)
    routes = [
        Route("/", gateway.serve_page),
        Route("/assets/{name}", gateway.serve_asset),
        Route("/openapi.json", gateway.serve_openapi_document),
        *(
            Route(operation.path, partial(operation.handler, gateway), methods=[operation.method])
            for operation in OPERATIONS
        ),
    ]
    handlers: dict[Any, Any] = {
        HTTPError: _respond_http_error,
        HTTPException: _respond_unknown_route,
        ShimError: _respond_shim_error,
        ClientDisconnect: _respond_disconnect,
    }
    return AuthMiddleware(
        Starlette(routes=routes, exception_handlers=handlers), server_names, tokens
    )


class WebGateway:
    """Handles the gateway's requests.

    All of its state may be lost at any time: the counters of its limits, and the rendered steps of
    recent sessions.
    """

    def __init__(
        self,
        hosts: LocalBackgroundSessionManager,
        server_names: GatewayHostsAndOrigins,
        tokens: GatewayTokenFile,
        limits: GatewayRequestLimiter,
    ) -> None:
        self._hosts = hosts
        self._server_names = server_names
        self._tokens = tokens
        self._limits = limits
        self._drawings = SessionDrawings()
        self._registry_lock = anyio.Lock()
        # The files are kept in memory, because an upgrade may replace them on disk, and a page must
        # have the same version as its server.
        self._assets = {name: _read_asset(STORY_ASSETS_FOLDER, name) for name in SHARED_ASSETS}
        self._assets |= {
            name: _read_asset(PAGE_ASSETS_FOLDER, name) for name in os.listdir(PAGE_ASSETS_FOLDER)
        }

    # -- requests without a token ------------------------------------------------------------------

    async def serve_page(self, request: Request) -> Response:
        return Response(self._assets[INDEX_FILE], media_type="text/html")

    async def serve_asset(self, request: Request) -> Response:
        """Send one of the page's files. The requested name is only looked up, and never used as a
        path.
        """
        name = request.path_params["name"]
        content = self._assets.get(name)
        media_type = MEDIA_TYPES.get(name.rpartition(".")[2])
        if content is None or media_type is None:
            raise HTTPError(404, "file not found")
        return Response(content, media_type=media_type)

    async def serve_openapi_document(self, request: Request) -> Response:
        return _build_json_response(build_openapi_document(OPERATIONS))

    async def log_in(self, request: Request) -> Response:
        """Exchange a token for a cookie, so that the page's URL needs no token."""
        token = actions.read_text_field(await _read_body(request), "token")
        tokens = self._tokens.load_tokens()
        role = tokens.find_role_by_token(token)
        if not role:
            role = tokens.find_role_by_login_code(token, time.time())
        if role is None:
            raise HTTPError(
                401,
                "invalid or expired token; run `shim bridge token` to get the current one",
            )
        authority = self._server_names.authority
        cookie = build_set_cookie_header(
            self._server_names, tokens.create_cookie_value(role, authority)
        )
        return _build_json_response(
            {"role": role, "proof": tokens.create_csrf_token(role, authority)},
            headers={"set-cookie": cookie},
        )

    # -- requests with a token ---------------------------------------------------------------------

    async def log_out(self, request: Request) -> Response:
        return _build_json_response(
            {}, headers={"set-cookie": build_set_cookie_header(self._server_names, "")}
        )

    async def serve_visitor_permissions(self, request: Request) -> Response:
        """Send the role of the visitor's token, and the vendors that a new session can use."""
        visitor_fields = {
            "role": _get_visitor(request).role,
            "version": __version__,
            "vendors": list(adapters.VENDORS),
        }
        return _build_json_response(
            {
                **visitor_fields,
                "installed": await anyio.to_thread.run_sync(self._hosts.list_installed_vendors),
            }
        )

    async def list_sessions(self, request: Request) -> Response:
        return _build_json_response(
            {
                "sessions": [
                    _select_session_keys(session)
                    for session in await self._read_registry(self._hosts.list_sessions)
                ]
            }
        )

    async def show_session(self, request: Request) -> Response:
        return _build_json_response(_select_session_keys(await self._find_session(request)))

    async def stream_session_events(self, request: Request) -> Response | EventStreamResponse:
        """Stream the lines of a session."""
        return await self._open_stream(
            request, lambda session_id, cursor: ServerSentEventEncoder(cursor)
        )

    async def stream_session_steps(self, request: Request) -> Response | EventStreamResponse:
        """Stream the rendered steps of a session."""
        step_count = request.query_params.get("last", str(DEFAULT_STEPS))
        if not step_count.isascii() or not step_count.isdigit() or int(step_count[:9]) > MAX_STEPS:
            raise HTTPError(400, f"`last` must be a number up to {MAX_STEPS:,}")
        return await self._open_stream(
            request, partial(self._create_step_encoder, max_steps=int(step_count))
        )

    def _create_step_encoder(
        self, session_id: str, cursor: LogCursor | None, *, max_steps: int
    ) -> SessionStepEventEncoder:
        """Return an encoder for the session's steps.

        If a page requests more past steps than the shared drawing contains, it gets its own
        drawing.
        """
        if cursor is None and max_steps > MAX_STORED_STEPS:
            return SessionStepEventEncoder(SessionDrawing(max_steps), None, max_steps)
        return SessionStepEventEncoder(self._drawings.get_drawing(session_id), cursor, max_steps)

    async def _open_stream(
        self,
        request: Request,
        create_encoder: Callable[[str, LogCursor | None], ServerSentEventEncoder],
    ) -> Response | EventStreamResponse:
        session = await self._find_session(request)
        cursor = parse_log_cursor(
            request.headers.get("last-event-id") or request.query_params.get("after", "")
        )
        if (
            cursor is not None
            and not session["alive"]
            and await anyio.to_thread.run_sync(
                self._hosts.is_cursor_at_log_end, session["session"], cursor
            )
        ):
            return Response(status_code=204)  # the browser then stops reconnecting
        visitor = _get_visitor(request)
        stream_slot = self._limits.reserve_event_stream(visitor.role)
        return EventStreamResponse(
            self._hosts,
            session["session"],
            create_encoder(session["session"], cursor),
            visitor.is_authorized,
            stream_slot,
        )

    async def create_session(self, request: Request) -> Response:
        """Start a session."""
        body = await self._read_posted_body(request)
        vendor = actions.read_text_field(body, "vendor")
        cwd = actions.read_text_field(body, "cwd", max_chars=4096)
        prompt = actions.read_text_field(body, "prompt", max_chars=actions.MAX_TEXT_CHARS)
        model = actions.read_text_field(body, "model", is_required=False)
        mode = actions.read_text_field(body, "mode", is_required=False)
        if not is_valid_vendor_name(vendor) or vendor not in adapters.VENDORS:
            raise HTTPError(
                400,
                f"unknown vendor {escape_control_chars_in_json(vendor)!r}; the vendors are "
                f"{', '.join(adapters.VENDORS)}",
            )
        if mode == BYPASS_MODE:
            raise HTTPError(
                403,
                f"a session with {BYPASS_MODE} cannot be started from the web; start it in "
                "a terminal",
            )
        if not os.path.isabs(cwd) or not await anyio.to_thread.run_sync(os.path.isdir, cwd):
            raise HTTPError(
                400, "`cwd` must be the absolute path of a folder that exists", field="cwd"
            )
        if model.startswith("-") or mode.startswith("-"):
            raise HTTPError(400, "a model or a mode must not begin with a dash")
        session_id = await anyio.to_thread.run_sync(
            self._hosts.start_session, NewSessionRequest(vendor, prompt, cwd, model, mode)
        )
        return _build_json_response(
            {"id": shorten_session_id(session_id), "session": session_id}, status=201
        )

    async def post_session_action(self, request: Request) -> Response:
        """Send an action to a session's host. A message may resume an ended session."""
        action_name = request.url.path.rpartition("/")[2]
        body = await self._read_posted_body(request)
        frame = ACTIONS[action_name].build_frame(body)
        take_control = actions.read_boolean_field(body, "take")
        resume_ended = actions.read_boolean_field(body, "wake")
        session = await self._find_session(request)
        if not session["alive"] and action_name == "messages" and resume_ended:
            session_id = session["session"]
            message_id = frame["id"]
            prompt = frame["message"]["content"]
            if message_id and await anyio.to_thread.run_sync(
                self._hosts.has_accepted_prompt, session_id, message_id
            ):
                return _build_json_response({"id": message_id})
            if await anyio.to_thread.run_sync(
                self._hosts.respawn_session, session_id, prompt, message_id
            ):
                return _build_json_response({"woken": True})
        elif not session["alive"]:
            raise HTTPError(409, actions.SESSION_ENDED_TEXT, state=session.get("state"))
        if action_name == "answers":
            return _build_json_response(
                await actions.answer_permission_prompt(
                    self._hosts, session["session"], actions.read_text_field(body, "question"), body
                )
            )
        return _build_json_response(
            await actions.send_action_frame_and_wait(
                self._hosts, session["session"], frame, take_control=take_control
            )
        )

    async def _read_posted_body(self, request: Request) -> dict[str, Any]:
        self._limits.check_post_rate_limit(_get_visitor(request).role)
        return await _read_body(request)

    async def _find_session(self, request: Request) -> dict[str, Any]:
        """Return the session that the request's path names by its short id or UUID. Raise HTTPError
        unless exactly one session matches.
        """
        id_prefix = request.path_params["id"].lower()
        matches = []
        if is_short_session_id(id_prefix) or canonicalize_uuid(id_prefix) == id_prefix:
            matches = await self._read_registry(self._hosts.find_sessions, id_prefix)
        if len(matches) != 1:
            status = 409
            if not matches:
                status = 404
            raise HTTPError(
                status,
                "session not found" if not matches else "pass the full session id",
            )
        return matches[0]

    async def _read_registry(
        self, read: Callable[..., list[dict[str, Any]]], *args: str
    ) -> list[dict[str, Any]]:
        """Return sessions that a function reads from their folders, in a thread. Only one thread
        reads at a time. Several threads would compete with the loop for the interpreter, and delay
        the streams of other pages.
        """
        async with self._registry_lock:
            return await anyio.to_thread.run_sync(read, *args)


class SessionAction(NamedTuple):
    """An action that a POST performs on a session."""

    summary: str
    # Builds the frame for the host from the request's body.
    build_frame: Callable[[dict[str, Any]], dict[str, Any]]
    properties: Mapping[str, Any] = {}  # JSON schemas of the body's properties
    required: tuple[str, ...] = ()  # names of required properties


def _build_message_frame(body: dict[str, Any]) -> dict[str, Any]:
    message_id = actions.read_message_id(body)
    text = actions.read_text_field(body, "text", max_chars=actions.MAX_TEXT_CHARS)
    message = {"role": "user", "content": text}
    return {"kind": "message", "id": message_id, "message": message}


TAKE = {"take": FLAG}
ACTIONS = {
    "messages": SessionAction(
        "Send a message",
        _build_message_frame,
        {"text": TEXT, "id": TEXT, "wake": FLAG, **TAKE},
        ("text",),
    ),
    "answers": SessionAction(
        "Answer a permission prompt",
        lambda body: {"kind": "answer"},
        {
            "question": TEXT,
            "behavior": {"enum": ["allow", "deny"]},
            "message": TEXT,
            "input": {"type": "object"},
            "always": FLAG,
        },
        ("question", "behavior"),
    ),
    "interrupt": SessionAction("Interrupt the turn", lambda body: {"kind": "interrupt"}),
    "model": SessionAction(
        "Another model",
        lambda body: {"kind": "model", "model": actions.read_text_field(body, "model")},
        {"model": TEXT, **TAKE},
        ("model",),
    ),
    "mode": SessionAction(
        "Another mode",
        lambda body: {"kind": "mode", "mode": actions.read_text_field(body, "mode")},
        {"mode": TEXT, **TAKE},
        ("mode",),
    ),
    "take": SessionAction("Take control of the session", lambda body: {"kind": "take"}),
    "release": SessionAction("Release control", lambda body: {"kind": "release"}),
    "stop": SessionAction("Stop the session", lambda body: {"kind": "end"}, TAKE),
}
OPERATIONS = (
    Operation(
        "post",
        "/login",
        WebGateway.log_in,
        "Exchange a token for a cookie",
        {"token": TEXT},
        ("token",),
        needs_token=False,
    ),
    Operation("post", "/logout", WebGateway.log_out, "Delete the cookie"),
    Operation(
        "get",
        "/me",
        WebGateway.serve_visitor_permissions,
        "The permissions of this token, and the vendors",
    ),
    Operation("get", "/sessions", WebGateway.list_sessions, "All sessions, newest first"),
    Operation(
        "post",
        "/sessions",
        WebGateway.create_session,
        "Start a session",
        {"vendor": TEXT, "prompt": TEXT, "cwd": TEXT, "model": TEXT, "mode": TEXT},
        ("vendor", "prompt", "cwd"),
        status="201",
    ),
    Operation("get", "/sessions/{id}", WebGateway.show_session, "One session"),
    Operation(
        "get",
        "/sessions/{id}/events",
        WebGateway.stream_session_events,
        "Claude's stream-json lines, unchanged",
        query=("after",),
    ),
    Operation(
        "get",
        "/sessions/{id}/steps",
        WebGateway.stream_session_steps,
        "The session's steps, as the page shows them",
        query=("after", "last"),
    ),
    *(
        Operation(
            "post",
            f"/sessions/{{id}}/{name}",
            WebGateway.post_session_action,
            action.summary,
            action.properties,
            action.required,
        )
        for name, action in ACTIONS.items()
    ),
)


def _read_asset(folder: str, name: str) -> bytes:
    with open(os.path.join(folder, name), "rb") as file:
        return file.read()


def _get_visitor(request: Request) -> GatewayVisitor:
    visitor: GatewayVisitor = request.state.visitor
    return visitor


async def _read_body(request: Request) -> dict[str, Any]:
    """Return the JSON object in a request's body, or {} for an empty body."""
    body_bytes = await request.body()
    if not body_bytes:
        return {}
    try:
        body = orjson.loads(body_bytes)
    except orjson.JSONDecodeError as error:
        raise HTTPError(400, f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise HTTPError(400, "the body must be a JSON object")
    return body


def _select_session_keys(metadata: dict[str, Any]) -> dict[str, Any]:
    return {key: escape_control_chars_in_json(metadata.get(key)) for key in SESSION_KEYS}


def _build_json_response(
    value: object, *, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return Response(orjson.dumps(value), status, headers, media_type="application/json")


def _respond_http_error(request: Request, error: HTTPError) -> Response:
    return build_error_response(error)


def _respond_unknown_route(request: Request, error: HTTPException) -> Response:
    text = {404: "not found", 405: "method not allowed"}.get(error.status_code, error.detail)
    return _build_json_response({"error": text}, status=error.status_code)


def _respond_shim_error(request: Request, error: ShimError) -> Response:
    return _build_json_response(
        {
            "error": escape_control_chars_in_json(str(error)),
            **({"hint": escape_control_chars_in_json(error.hint)} if error.hint else {}),
        },
        status=409,
    )


def _respond_disconnect(request: Request, error: ClientDisconnect) -> Response:
    return Response(status_code=400)
