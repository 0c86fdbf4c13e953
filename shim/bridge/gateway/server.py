"""Runs the gateway's HTTP server: its address, its host names and its certificate."""

import asyncio
import errno
import gc
import ipaddress
import os
import re
import resource
import socket
import ssl
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import uvicorn

from shim import __version__
from shim.bridge.gateway.app import create_app
from shim.bridge.gateway.auth import GatewayHostsAndOrigins, add_default_port
from shim.bridge.gateway.connections import ACCEPT_BACKLOG, MAX_HEAD_BYTES, GatewayConnection
from shim.bridge.gateway.hosts import LocalBackgroundSessionManager
from shim.bridge.gateway.limits import GatewayRequestLimiter
from shim.bridge.gateway.tokens import GatewayTokenFile
from shim.conversation.preload import SERVER_FOLDERS, preload_modules
from shim.core.errors import CommandUsageError, FrontendError, SystemResourceError, explain_os_error
from shim.io.stderr import warn
from shim.process.package import describe_shim_package_change

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8421
# Connections that wait to be accepted. Clients beyond this number retry after a second.
LISTEN_BACKLOG = 2048
KEEP_ALIVE_TIMEOUT_S = 5
# A connection is counted only after its TLS handshake, so the handshake has its own time limit.
TLS_HANDSHAKE_TIMEOUT_S = 10.0
SHUTDOWN_TIMEOUT_S = 1  # for open streams; browsers reconnect automatically
HOST_NAME_PATTERN = re.compile(r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?")
SHORTAGE_REPORT_INTERVAL_S = 60.0  # between warnings about missing file descriptors
# The longest time that the event loop waits for a thread that reads a log or renders a step.
THREAD_SWITCH_INTERVAL_S = 0.001
UPGRADE_CHECK_TICKS = 10  # ticks between checks of the version; uvicorn ticks every 0.1 s
# Modules that only commands for a terminal or a file need.
UNNEEDED_MODULES = (
    "shim.bridge.attach",
    "shim.story.terminal",
    "shim.story.export.command",
    "shim.story.export.otel",
)
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


class GatewayEndpoint(NamedTuple):
    """The address to listen on, and the names under which browsers reach the gateway.

    host, port                  the address; port 0 selects any free port
    has_proxy                   whether a proxy with TLS forwards requests to the gateway
    names                       further host names of the gateway, with the port unless it is the
                                default port
    certificate_file, key_file  the files with the certificate and its key; "" without TLS
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    has_proxy: bool = False
    names: tuple[str, ...] = ()
    certificate_file: str = ""
    key_file: str = ""


def parse_listen_address(text: str) -> tuple[str, int]:
    """Parse ADDRESS:PORT, ADDRESS or PORT, and return the address and the port. Raise FrontendError
    if the text has another form.
    """
    host, colon, port = text.rpartition(":")
    if not text:
        raise _build_address_error(text)
    if not colon:
        if text.isdigit():
            host = DEFAULT_HOST
            port = text
        else:
            host = text
            port = str(DEFAULT_PORT)
    elif host.startswith("[") != host.endswith("]") or (":" in host and not host.startswith("[")):
        raise _build_address_error(text)
    host = host.strip("[]") or DEFAULT_HOST
    if not port.isascii() or not port.isdigit() or int(port[:9]) > 65535:
        raise _build_address_error(text)
    if host == "localhost":
        host = DEFAULT_HOST
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise _build_address_error(text) from None
    return host, int(port)


def _build_address_error(text: str) -> CommandUsageError:
    return CommandUsageError(
        f"invalid value for --http: {text!r} is not an address to listen on",
        hint="use ADDRESS:PORT with a numeric address, such as 127.0.0.1:8421 or [::1]:8421",
    )


def check_endpoint_security(endpoint: GatewayEndpoint) -> None:
    """Check the options of an endpoint. Raise CommandUsageError if other machines could read the
    traffic, or if the gateway could not check the host name of requests.
    """
    if bool(endpoint.certificate_file) != bool(endpoint.key_file):
        raise CommandUsageError(
            "--tls-cert and --tls-key must be used together", hint="pass both options, or neither"
        )
    address = ipaddress.ip_address(endpoint.host)
    if not address.is_loopback and not endpoint.certificate_file and not endpoint.has_proxy:
        raise CommandUsageError(
            f"--http {endpoint.host} is reachable from the network; without TLS anyone on "
            "the path could read your token and sessions",
            hint="pass --tls-cert and --tls-key, or --behind-proxy if a proxy with TLS forwards "
            "requests",
        )
    if endpoint.has_proxy and not endpoint.names:
        raise CommandUsageError(
            "--behind-proxy requires the host name that browsers use",
            hint="pass --name, such as --name shim.example.org",
        )
    for name in endpoint.names:
        if not HOST_NAME_PATTERN.fullmatch(name):
            raise CommandUsageError(
                f"invalid value for --name: {name!r} is not a host name",
                hint="use the part of the address between https:// and the next slash, such as "
                "shim.example.org or box:8421",
            )


def build_server_names(endpoint: GatewayEndpoint, port: int) -> GatewayHostsAndOrigins:
    """Return the host names of an endpoint. `port` is the port on which the server listens."""
    is_secure = bool(endpoint.certificate_file)
    address = ipaddress.ip_address(endpoint.host)
    if address.version == 6:
        address_text = f"[{endpoint.host}]"
    else:
        address_text = endpoint.host
    local_names = [
        *(LOOPBACK_NAMES if address.is_loopback else ()),
        *(() if address.is_unspecified else (address_text,)),
    ]
    hosts = {f"{name}:{port}" for name in local_names}
    origins = {f"{'https' if is_secure else 'http'}://{host}" for host in hosts}
    for name in (name.lower() for name in endpoint.names):
        has_no_port = ":" not in name.rpartition("]")[2]
        if has_no_port and not endpoint.has_proxy:
            host = f"{name}:{port}"
        else:
            host = add_default_port(name, secure=True)
        hosts.add(host)
        origins.add(f"{'https' if is_secure or endpoint.has_proxy else 'http'}://{host}")
    default_name = f"{LOOPBACK_NAMES[0] if address.is_unspecified else address_text}:{port}"
    primary_name = default_name
    if endpoint.names:
        primary_name = endpoint.names[0].lower()
    authority = primary_name
    if ":" not in primary_name.rpartition("]")[2]:
        authority = f"{primary_name}:{443 if is_secure or endpoint.has_proxy else port}"
    any_address_suffix = ""
    if address.is_unspecified:
        any_address_suffix = f":{port}"
    return GatewayHostsAndOrigins(
        frozenset(hosts),
        frozenset(origins),
        authority,
        is_secure or endpoint.has_proxy,
        any_address_suffix,
    )


def build_gateway_url(
    endpoint: GatewayEndpoint, server_names: GatewayHostsAndOrigins, port: int
) -> str:
    """Return the gateway's URL, as shown to users."""
    name = server_names.authority
    if endpoint.names:
        name = endpoint.names[0].lower()
        if ":" not in name and not endpoint.has_proxy:
            name = f"{name}:{port}"
    return f"{'https' if server_names.is_secure else 'http'}://{name}/"


def open_listening_socket(endpoint: GatewayEndpoint) -> socket.socket:
    """Open the listening socket. Raise SystemResourceError if the address cannot be used."""
    if ":" in endpoint.host:
        family = socket.AF_INET6
    else:
        family = socket.AF_INET
    # asyncio sets TCP_NODELAY only for a socket that was created with an explicit protocol.
    # Without it, Nagle's algorithm and the browser's delayed acknowledgement hold a small event
    # back for 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((endpoint.host, endpoint.port))
        listener.listen(LISTEN_BACKLOG)
    except OSError as error:
        listener.close()
        raise SystemResourceError(
            f"cannot listen on {endpoint.host}:{endpoint.port}: {error.strerror}",
            hint="another process may use the port: choose another port with --http, or port 0 "
            "for any free port",
        ) from None
    return listener


def run_gateway_server(
    endpoint: GatewayEndpoint,
    hosts: LocalBackgroundSessionManager,
    environment: Mapping[str, str],
    report_url: Callable[[str, GatewayTokenFile], None],
) -> None:
    """Serve until SIGINT or SIGTERM. `report_url` is called with the gateway's URL as soon as the
    URL can be opened.

    Raise FrontendError or SystemResourceError if the server cannot be started.
    """
    check_endpoint_security(endpoint)
    preload_modules(SERVER_FOLDERS, environment, UNNEEDED_MODULES)
    tokens = GatewayTokenFile(environment)
    tokens.load_tokens()
    if endpoint.certificate_file:
        _check_certificate(endpoint)
    with open_listening_socket(endpoint) as listener:
        port = listener.getsockname()[1]
        server = create_gateway_server(endpoint, hosts, tokens, listener)
        # Import uvicorn's modules now, because an upgrade may replace the files at any time.
        server.config.load()
        report_url(build_gateway_url(endpoint, build_server_names(endpoint, port), port), tokens)
        gc.freeze()  # a full collection of all modules takes 40 ms
        sys.setswitchinterval(THREAD_SWITCH_INTERVAL_S)
        asyncio.run(server.serve(sockets=[listener]))


def create_gateway_server(
    endpoint: GatewayEndpoint,
    hosts: LocalBackgroundSessionManager,
    tokens: GatewayTokenFile,
    listener: socket.socket,
) -> uvicorn.Server:
    """Return the server for a listening socket."""
    server_names = build_server_names(endpoint, listener.getsockname()[1])
    limits = GatewayRequestLimiter()
    config = uvicorn.Config(
        create_app(hosts, server_names, tokens, limits),
        http=GatewayConnection,
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,  # requests are not logged, because their paths contain session ids
        # Only errors in our own code are printed to stderr. Invalid requests are not.
        log_level="error",
        access_log=False,
        proxy_headers=False,  # client addresses reported by a proxy are not used
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_TIMEOUT_S,
        timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        ssl_certfile=endpoint.certificate_file,
        ssl_keyfile=endpoint.key_file,
    )
    return GatewayServer(config, limits)


class GatewayServer(uvicorn.Server):
    """A uvicorn server that ends its event streams when it shuts down. Otherwise the streams would
    stay open forever.
    """

    def __init__(self, config: uvicorn.Config, limits: GatewayRequestLimiter) -> None:
        super().__init__(config)
        self._limits = limits
        self._has_reported_upgrade = False
        self._next_shortage_report = 0.0

    async def on_tick(self, counter: int) -> bool:
        """Check every second whether the package was upgraded. Return whether the server must shut
        down.

        Uvicorn calls this method every 0.1 s.
        """
        if counter % UPGRADE_CHECK_TICKS == 0:
            self._report_upgrade()
        return await super().on_tick(counter)

    def _report_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Report an error that asyncio caught.

        Missing file descriptors are reported at most once per SHORTAGE_REPORT_INTERVAL_S, because
        asyncio retries.
        """
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
        elif loop.time() >= self._next_shortage_report:
            self._next_shortage_report = loop.time() + SHORTAGE_REPORT_INTERVAL_S
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            warn(
                f"no connection can be accepted at the moment: all {limit} file "
                "descriptors are in use (`ulimit -n`)\n"
            )

    def _report_upgrade(self) -> None:
        """Report, only once, that the package's files were replaced or removed."""
        if self._has_reported_upgrade:
            return
        change = describe_shim_package_change()
        if not change:
            return
        self._has_reported_upgrade = True
        warn(
            f"{change}; this server keeps running version {__version__} until you restart "
            "`shim bridge serve`\n"
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen. Clients that do not complete the TLS handshake in time
        are disconnected.
        """
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._report_loop_error)
        await super().startup(sockets=[])
        create_connection = partial(GatewayConnection, {}, self.config, self.server_state, {})
        for listener in sockets or ():
            self.servers.append(
                await loop.create_server(
                    create_connection,
                    sock=listener,
                    ssl=self.config.ssl,
                    ssl_handshake_timeout=TLS_HANDSHAKE_TIMEOUT_S if self.config.is_ssl else None,
                    backlog=ACCEPT_BACKLOG,
                )
            )
            # asyncio uses one number for both limits, so the listen backlog is now ACCEPT_BACKLOG.
            listener.listen(LISTEN_BACKLOG)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the event streams and shut down the server."""
        self._limits.cancel_open_streams()
        await super().shutdown(sockets=sockets)


def _check_certificate(endpoint: GatewayEndpoint) -> None:
    """Raise FrontendError if the certificate or the key cannot be used."""
    try:
        for path in (endpoint.certificate_file, endpoint.key_file):
            os.stat(path)
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            endpoint.certificate_file, endpoint.key_file, password=lambda: ""
        )
    except OSError as error:  # SSLError is a subclass
        location = error.filename or f"{endpoint.certificate_file} and {endpoint.key_file}"
        raise FrontendError(
            f"{location}: {explain_os_error(error)}",
            hint="--tls-cert needs the certificate with its chain and --tls-key its private "
            "key, both in PEM format without a password",
        ) from None
