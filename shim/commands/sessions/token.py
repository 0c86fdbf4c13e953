"""`shim bridge token`: shows the gateway's tokens, and replaces them."""

import os
import sys
from typing import Annotated

import typer


def show_token(
    watch: Annotated[bool, typer.Option("--watch", help="The token that may only watch.")] = False,
    new: Annotated[
        bool, typer.Option("--new", help="Replace it; whoever came in with the old one is out.")
    ] = False,
) -> None:
    """Show the token with which a browser or a script comes in to `shim bridge serve`.

    A browser takes it in the address, behind #. A script sends it as `Authorization: Bearer TOKEN`.
    Nobody needs to restart a server for a new one.

    Example: shim bridge token --watch --new
    """
    from shim.bridge.gateway.tokens import GatewayTokenFile

    token_file = GatewayTokenFile(os.environ)
    tokens = (
        token_file.replace_token("watch" if watch else "drive") if new else token_file.load_tokens()
    )
    sys.stdout.write(f"{tokens.watch if watch else tokens.drive}\n")
