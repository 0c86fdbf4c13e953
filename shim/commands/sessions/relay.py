"""Implements `shim bridge relay`, which SSH or the fleet starts for the commands of another machine."""

from typing import Annotated

import typer

from shim.bridge.machines.relay import run_relay
from shim.core.bridge.relay import RelayAccess
from shim.core.errors import CommandUsageError
from shim.core.reading.values import canonicalize_uuid


def start_relay(
    watch: Annotated[
        bool, typer.Option("--watch", help="The other machine may only read sessions.")
    ] = False,
    session: Annotated[
        str, typer.Option("--session", metavar="UUID", help="Limit it to this session.")
    ] = "",
    no_start: Annotated[
        bool, typer.Option("--no-start", help="The other machine may not start sessions.")
    ] = False,
) -> None:
    """Answer another machine over stdin and stdout. Other commands start this one with SSH.

    The protocol is one line of JSON per request. See `shim help machines`.

    Example: ssh build01 shim bridge relay
    """
    if session and canonicalize_uuid(session) != session:
        raise CommandUsageError(f"--session must be a UUID in lower case, not {session!r}")
    access = RelayAccess(is_read_only=watch, session_id=session, may_start=not no_start)
    raise typer.Exit(run_relay(access))
