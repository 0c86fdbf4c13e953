"""Implements `shim bridge relay`, which SSH starts for the commands of another machine."""

import typer

from shim.bridge.machines.relay import run_relay


def start_relay() -> None:
    """Answer another machine over stdin and stdout. Other commands start this one with SSH.

    The protocol is one line of JSON per request. See `shim help machines`.

    Example: ssh build01 shim bridge relay
    """
    raise typer.Exit(run_relay())
