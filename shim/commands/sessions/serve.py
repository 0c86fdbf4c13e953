"""Implements `shim bridge serve`, which runs the gateway for browsers, phones and scripts."""

import importlib.util
import os
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shim.core.errors import SystemResourceError
from shim.core.reading.values import as_list

if TYPE_CHECKING:
    from shim.bridge.gateway.tokens import GatewayTokenFile

REQUIRED_PACKAGES = ("starlette", "uvicorn", "segno")  # packages that only the web UI needs
LOOPBACK_PREFIXES = (
    "http://127.",
    "http://localhost",
    "http://[::1]",
    "https://127.",
    "https://localhost",
    "https://[::1]",
)


def serve_gateway(
    http: Annotated[
        str,
        typer.Option(
            "--http",
            metavar="ADDRESS:PORT",
            help="The address to listen on; port 0 chooses a free port.",
        ),
    ] = "127.0.0.1:8421",
    behind_proxy: Annotated[
        bool,
        typer.Option(
            "--behind-proxy", help="A proxy with TLS forwards requests; --name sets its host name."
        ),
    ] = False,
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name", metavar="HOST", help="A host name that browsers use for the server."
        ),
    ] = None,
    tls_cert: Annotated[
        str, typer.Option(metavar="FILE", help="The certificate with its chain, in PEM format.")
    ] = "",
    tls_key: Annotated[
        str, typer.Option(metavar="FILE", help="The certificate's private key, in PEM format.")
    ] = "",
) -> None:
    """Serve the web UI and the HTTP API for the sessions of this machine and of other machines.

    Prints the address to open. On a terminal the address signs a browser in; it is valid for ten
    minutes, and the browser stays signed in. Later, `shim bridge token` prints the token for the
    sign-in page. The server stores nothing about sessions, so you can stop it with Ctrl-C and start
    it again at any time.

    By default only this machine can connect. To serve other machines, use --tls-cert and --tls-key,
    or a proxy with TLS.

    Example: shim bridge serve
    """
    if missing := [
        package for package in REQUIRED_PACKAGES if importlib.util.find_spec(package) is None
    ]:
        from shim.process.installation import build_install_hint

        raise SystemResourceError(
            f"the web UI needs packages that are not installed: {', '.join(missing)}",
            hint=build_install_hint(),
        )
    from shim.bridge.gateway import server
    from shim.bridge.gateway.hosts import LocalBackgroundSessionManager
    from shim.process.install import load_installed_dropin_options
    from shim.state.config import has_fleet
    from shim.state.machines import load_machines

    host, port = server.parse_listen_address(http)
    endpoint = server.GatewayEndpoint(
        host, port, behind_proxy, tuple(as_list(name)), tls_cert, tls_key
    )
    installed_options = load_installed_dropin_options()
    hosts = LocalBackgroundSessionManager(os.environ, installed_options)
    machines = load_machines(os.environ)
    if machines or has_fleet(os.environ):
        from shim.bridge.gateway.machines import AllMachinesSessionManager

        hosts = AllMachinesSessionManager(os.environ, installed_options, machines)
    server.run_gateway_server(
        endpoint,
        hosts,
        os.environ,
        _print_address,
    )


def _print_address(address: str, token_file: "GatewayTokenFile") -> None:
    """Print the gateway's address. The address only contains a login code if stdout is a terminal,
    because other output may be stored in a log.
    """
    if not sys.stdout.isatty():
        sys.stdout.write(f"{address}\n")
        sys.stdout.flush()
        return
    login_url = (
        f"{address}#token={token_file.load_tokens().create_login_code('drive', time.time())}"
    )
    sys.stdout.write(f"{login_url}\n")
    if address.startswith(LOOPBACK_PREFIXES):
        sys.stdout.write(
            "Only this machine can open this address. For a phone, see `shim help bridge`.\n"
        )
    else:
        _print_qr_code(login_url)
    sys.stdout.write(
        "Anyone who opens this address within ten minutes can control your sessions. Later, `shim "
        "bridge token` prints the token for the sign-in page.\nCtrl-C stops the server; "
        "sessions keep running.\n"
    )
    sys.stdout.flush()


def _print_qr_code(text: str) -> None:
    """Print the QR code of a text in black and white."""
    import io

    import segno

    output: Any = io.StringIO()
    segno.make(text, micro=False).terminal(out=output, compact=True, border=2)
    for line in output.getvalue().splitlines():
        sys.stdout.write(f"\x1b[97;40m{line}\x1b[0m\n")
