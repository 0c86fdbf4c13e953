"""Authentication for the gateway: checks each HTTP request before it reaches a session.

The checks cover the server name (Host), the sender (Origin, Sec-Fetch-Site), the media type
(Content-Type), the size and the token. Each response gets headers that restrict what the browser
may do. No session data can be read without a token.
"""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any, NamedTuple

import orjson
from starlette.responses import Response

from shim.bridge.gateway.tokens import GatewayTokenFile, Role
from shim.core.reading.values import escape_control_chars

# The size limit for a request body. Messages that a person types are far smaller.
MAX_BODY_BYTES = 1024 * 1024
# Body of a request without a token. Anyone may send such requests on all connections at once.
MAX_PUBLIC_BODY_BYTES = 4096
PUBLIC_PATHS = frozenset(("/", "/openapi.json", "/login"))  # contain no session data
ASSETS_PREFIX = "/assets/"
ALLOWED_METHODS = frozenset(("GET", "POST"))
COOKIE_MAX_AGE_S = 30 * 24 * 60 * 60
PROOF_HEADER = b"x-shim-page"  # a page sends this header in addition to its cookie
# Each of these headers may occur only once in a request.
SINGLE_HEADERS = (
    PROOF_HEADER,
    b"host",
    b"origin",
    b"authorization",
    b"content-type",
    b"content-length",
)

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types worker"
)
RESPONSE_HEADERS: Mapping[str, str] = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "cache-control": "no-store",
}

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def add_default_port(host: str, *, secure: bool) -> str:
    """Return a host with its port. If the port is missing, add the default port of http
    or https.
    """
    if ":" in host.rpartition("]")[2]:
        return host
    return f"{host}:{443 if secure else 80}"


def add_default_origin_port(origin: str) -> str:
    """Return an origin with its port. An origin without a scheme, such as "null", is returned
    unchanged.
    """
    scheme, separator, host = origin.partition("://")
    if separator:
        return f"{scheme}://{add_default_port(host, secure=scheme == 'https')}"
    return origin


class GatewayHostsAndOrigins(NamedTuple):
    """The names under which browsers reach the gateway: `hosts` and `origins`, each with its port.

    Host and Origin headers may omit the default port of their scheme, and a proxy may add it.
    `add_default_port` adds a missing port before names are compared.

    `any_address_suffix` is set if the gateway listens on all addresses of this machine; any IP
    address is then accepted as the host. This is safe because DNS rebinding needs a host name: a
    page of another server cannot make the browser treat an IP address as that page's own host.
    """

    hosts: frozenset[str]
    origins: frozenset[str]
    authority: str  # the name and port for which cookies are created
    is_secure: bool = False  # browsers use https
    any_address_suffix: str = ""  # ":PORT" if any IP address is accepted


class HTTPError(Exception):
    """An error response: its status, its message, and further keys of the JSON body."""

    def __init__(self, status: int, text: str, **extra_fields: object) -> None:
        super().__init__(text)
        self.status = status
        self.extra_fields = extra_fields


class GatewayVisitor(NamedTuple):
    """The sender of a request: the role of the sender's token, and a function that checks whether
    the token is still valid.
    """

    role: Role
    is_authorized: Callable[[], bool]


class AuthMiddleware:
    """The outermost layer of the application. It checks each request, and adds headers to each
    response.
    """

    def __init__(
        self, app: App, server_names: GatewayHostsAndOrigins, tokens: GatewayTokenFile
    ) -> None:
        self._app = app
        self._server_names = server_names
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application, or refuse it."""
        if scope["type"] != "http":
            return  # a WebSocket, which uvicorn is configured not to accept
        has_started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                header_names = {name.lower() for name, _ in message["headers"]}
                extra_headers = (
                    (name.encode(), value.encode()) for name, value in RESPONSE_HEADERS.items()
                )
                message["headers"] = [
                    *message["headers"],
                    *(pair for pair in extra_headers if pair[0] not in header_names),
                ]
            await send(message)

        try:
            visitor = self._authorize(scope)
            scope.setdefault("state", {})["visitor"] = visitor
            max_bytes = MAX_BODY_BYTES
            if visitor is None:
                max_bytes = MAX_PUBLIC_BODY_BYTES
            await self._app(
                scope,
                _limit_body(receive, max_bytes),
                send_with_headers,
            )
        except HTTPError as error:
            if not has_started:
                await build_error_response(error)(scope, receive, send_with_headers)

    def _authorize(self, scope: Scope) -> GatewayVisitor | None:
        """Return the sender of a request, or None if the path is public. Raise HTTPError if the
        request is refused.
        """
        headers = _parse_headers(scope)
        path = scope["path"]
        method = scope["method"]
        if not self._accepts_host(headers.get(b"host", "")):
            host = escape_control_chars(headers.get(b"host", ""))[:100]
            raise HTTPError(
                403, f"unknown host name {host!r}; add it with `shim bridge serve --name`"
            )
        if method not in ALLOWED_METHODS:
            raise HTTPError(405, "only GET and POST are supported")
        is_public = path in PUBLIC_PATHS or path.startswith(ASSETS_PREFIX)
        self._check_sender(headers, is_page=is_public and method != "POST")
        if method == "POST":
            max_bytes = MAX_BODY_BYTES
            if is_public:
                max_bytes = MAX_PUBLIC_BODY_BYTES
            _check_body(headers, max_bytes)
        if is_public:
            return None
        visitor, uses_cookie = self._authenticate(headers)
        if uses_cookie and method == "POST" and b"origin" not in headers:
            raise HTTPError(
                403, "a POST request with a cookie must have an Origin header, as browsers send it"
            )
        if method == "POST" and visitor.role != "drive" and path != "/logout":
            raise HTTPError(403, "this token is read-only")
        return visitor

    def _accepts_host(self, host: str) -> bool:
        if host:
            host = add_default_port(host.lower(), secure=self._server_names.is_secure)
        else:
            host = ""
        if host in self._server_names.hosts:
            return True
        port_suffix = self._server_names.any_address_suffix
        if not port_suffix:
            return False
        if not host.endswith(port_suffix):
            return False
        return _is_address(host.removesuffix(port_suffix).strip("[]"))

    def _check_sender(self, headers: Mapping[bytes, str], *, is_page: bool) -> None:
        """Refuse cross-site requests, which another page sends in the user's name. Raise HTTPError
        for such a request.

        `is_page` is True for public files, to which other pages may link.
        """
        origin = headers.get(b"origin")
        scheme = "http"
        if self._server_names.is_secure:
            scheme = "https"
        # The Host header was checked before.
        local_origin = add_default_origin_port(f"{scheme}://{headers.get(b'host', '').lower()}")
        if origin is not None and add_default_origin_port(origin) not in (
            local_origin,
            *self._server_names.origins,
        ):
            raise HTTPError(403, "requests from other origins are not allowed")
        fetch_site = headers.get(b"sec-fetch-site", "none")
        is_navigation = (
            is_page
            and headers.get(b"sec-fetch-mode") == "navigate"
            and headers.get(b"sec-fetch-dest") == "document"
        )
        if fetch_site not in ("none", "same-origin") and not is_navigation:
            raise HTTPError(403, "requests from other origins are not allowed")

    def _authenticate(self, headers: Mapping[bytes, str]) -> tuple[GatewayVisitor, bool]:
        """Return the sender of a request, and whether a cookie identified the sender. Raise
        HTTPError if the request has no valid token.
        """
        bearer = headers.get(b"authorization")
        if bearer is not None:
            scheme, _, token = bearer.partition(" ")
            role = None
            if scheme.lower() == "bearer":
                role = self._tokens.load_tokens().find_role_by_token(token.strip())
            if role is None:
                raise HTTPError(
                    401, "invalid token; run `shim bridge token` to get the current one"
                )
            return GatewayVisitor(
                role, lambda: self._tokens.load_tokens().find_role_by_token(token.strip()) == role
            ), False
        cookie, proof = self._read_cookie(headers.get(b"cookie", "")), headers.get(PROOF_HEADER, "")
        authority = self._server_names.authority
        role = None
        if cookie:
            role = self._tokens.load_tokens().find_role_by_cookie(cookie, proof, authority)
        if role is None:
            raise HTTPError(401, "a token is required; run `shim bridge token` to get it")
        return GatewayVisitor(
            role,
            lambda: (
                self._tokens.load_tokens().find_role_by_cookie(cookie, proof, authority) == role
            ),
        ), True

    def _read_cookie(self, header: str) -> str:
        """Return the value of the gateway's cookie, or "" if the cookie is missing."""
        try:
            morsel = SimpleCookie(header).get(build_cookie_name(self._server_names))
        except CookieError:
            return ""
        if morsel is not None:
            return morsel.value
        return ""


def build_cookie_name(server_names: GatewayHostsAndOrigins) -> str:
    """Return the name of the gateway's cookie. The name contains the port, because browsers share
    cookies between all ports of a host.
    """
    port = server_names.authority.rpartition(":")[2]
    if server_names.is_secure:
        return f"__Host-shim-{port}"
    return f"shim-{port}"


def build_set_cookie_header(server_names: GatewayHostsAndOrigins, value: str) -> str:
    """Return the Set-Cookie header for a value. An empty value deletes the cookie."""
    parts = [
        f"{build_cookie_name(server_names)}={value}",
        "Path=/",
        f"Max-Age={COOKIE_MAX_AGE_S if value else 0}",
        "HttpOnly",
    ]
    return "; ".join([*parts, "SameSite=Strict", *(["Secure"] if server_names.is_secure else [])])


def build_error_response(error: HTTPError) -> Response:
    """Return an error as JSON. The rest of the request is not read.

    The connection is closed after status 400 and 413.
    """
    headers = {}
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.status in (400, 413):
        headers["connection"] = "close"
    body = orjson.dumps({"error": str(error), **error.extra_fields})
    return Response(body, error.status, headers, media_type="application/json")


def _parse_headers(scope: Scope) -> dict[bytes, str]:
    headers: dict[bytes, str] = {}
    for name, value in scope["headers"]:
        if name in headers and name in SINGLE_HEADERS:
            raise HTTPError(400, f"the header {name.decode('latin-1')} is repeated")
        if name in headers:
            headers[name] = f"{headers[name]}; {value.decode('latin-1')}"
        else:
            headers[name] = value.decode("latin-1")
    return headers


def _check_body(headers: Mapping[bytes, str], max_bytes: int) -> None:
    media_type, _, parameters = headers.get(b"content-type", "").partition(";")
    if media_type.strip().lower() != "application/json" or parameters.strip().lower() not in (
        "",
        "charset=utf-8",
    ):
        raise HTTPError(415, "a POST request must have the Content-Type application/json")
    length = headers.get(b"content-length", "0")
    if not length.isascii() or not length.isdigit() or int(length[:12]) > max_bytes:
        raise HTTPError(413, f"a request can have at most {max_bytes:,} bytes")


def _limit_body(receive: Receive, max_bytes: int) -> Receive:
    """Wrap the ASGI `receive` function to raise HTTPError after `max_bytes` bytes of the body. The
    Content-Length header is not trusted.
    """
    size = 0

    async def receive_limited() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > max_bytes:
            raise HTTPError(413, f"a request can have at most {max_bytes:,} bytes")
        return message

    return receive_limited


def _is_address(host: str) -> bool:
    import ipaddress

    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
