"""Implements `shim bridge token`, which prints and replaces the gateway's tokens."""

import os
import sys
from typing import Annotated

import typer


def show_token(
    watch: Annotated[bool, typer.Option("--watch", help="Print the read-only token.")] = False,
    new: Annotated[
        bool,
        typer.Option(
            "--new", help="Replace the token, and sign out everyone who used the old one."
        ),
    ] = False,
) -> None:
    """Print the token that signs a browser or a script in to `shim bridge serve`.

    A browser passes the token in the address, after #. A script sends `Authorization: Bearer
    TOKEN`. A new token takes effect without a restart of the server.

    Example: shim bridge token --watch --new
    """
    from shim.bridge.gateway.tokens import GatewayTokenFile

    token_file = GatewayTokenFile(os.environ)
    if new:
        tokens = token_file.replace_token("watch" if watch else "drive")
    else:
        tokens = token_file.load_tokens()
    sys.stdout.write(f"{tokens.watch if watch else tokens.drive}\n")
