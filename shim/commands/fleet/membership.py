"""Implements the commands of a member of a fleet: `shim fleet join`, `run`, `install`, `status`,
`leave` and `dial`.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shim.core.errors import CommandUsageError, FrontendError, ShimError, explain_os_error
from shim.core.reading.values import shorten_session_id
from shim.io.stderr import warn
from shim.state.config import get_home_dir, has_fleet

if TYPE_CHECKING:
    from shim.core.fleet.join_file import JoinFile

# A larger difference is reported. Only the end of a membership needs the clock.
MAX_CLOCK_DIFFERENCE_S = 60.0
ROLE_TEXTS = {
    "machine": "its sessions are shown to all members, and it may use those of other machines",
    "drive": "it may read sessions, answer prompts, and send messages",
    "watch": "it may read sessions",
}


def join_fleet(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The join file.")],
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Check that the file is for this name.")
    ] = "",
) -> None:
    """Add this machine to a fleet, and check the connection to its server.

    You can delete the join file afterwards.

    Example: shim fleet join laptop.join
    """
    from shim.bridge.listings import FleetSessionLister
    from shim.fleet import membership
    from shim.fleet.folder import check_expiry, store_join_file

    join = _read_join_file(file)
    if name and name != join.name:
        raise CommandUsageError(
            f"the join file is for {join.name}, not for {name}",
            hint=f"ask for a file with `shim fleet invite --machine {name}`",
        )
    if has_fleet(os.environ):
        raise CommandUsageError(
            "this machine has already joined a fleet", hint="leave it with `shim fleet leave`"
        )
    check_expiry(join)
    difference_s = membership.check_connection(join)
    if abs(difference_s) > MAX_CLOCK_DIFFERENCE_S:
        warn(f"the clock of this machine differs from the server's by {difference_s:.0f} s\n")
    store_join_file(join, os.environ)
    with FleetSessionLister(None, os.environ) as lister:
        lister.list_sessions(includes_ended=True)  # stores the names of the machines
    typer.echo(f"joined the fleet {join.fleet} as {join.name}: {ROLE_TEXTS[join.role]}")
    if join.session:
        typer.echo(f"only the session {join.session} is shared")
    typer.echo("the server sees the names of machines, the ids of sessions, and sizes")
    typer.echo("next: `shim fleet run`, or `shim fleet install` for a service")


def _read_join_file(path: str) -> "JoinFile":
    from shim.core.fleet.join_file import MAX_JOIN_FILE_BYTES, parse_join_file

    try:
        with open(path, "rb") as join_file:
            data = join_file.read(MAX_JOIN_FILE_BYTES)
    except OSError as error:
        raise FrontendError(f"{path} cannot be read: {explain_os_error(error)}") from None
    return parse_join_file(data, path)


def run(
    *,
    is_service: Annotated[
        bool,
        typer.Option(
            "--service", help="Exit with the status 0 if the machine is not in the fleet any more."
        ),
    ] = False,
) -> None:
    """Connect this machine to its fleet until Ctrl-C.

    It publishes the sessions of this machine, and connects other members to them. No session depends
    on it: if it ends, other machines see this one as away.

    Example: shim fleet run
    """
    from shim.fleet.folder import MembershipError
    from shim.fleet.run import run_fleet

    try:
        run_fleet(os.environ)
    except MembershipError as error:
        if not is_service:
            raise
        # A service manager would start it forever after any other status.
        warn(f"{error}\n{error.hint}\n")


def install_service() -> None:
    """Write a service of your user for `shim fleet run`. It is not started.

    On Linux it is a unit of systemd, on macOS an agent of launchd.

    Example: shim fleet install
    """
    from shim.fleet.service import write_service

    path, commands = write_service(get_home_dir(os.environ), os.environ)
    typer.echo(f"wrote {path}, with your PATH")
    typer.echo("next:")
    for command in commands:
        typer.echo(f"  {command}")


def show_status() -> None:
    """Show whether this machine is connected to its fleet, and which machines are.

    The exit status is 1 if it is not connected.

    Example: shim fleet status
    """
    from shim.bridge.listings import FleetSessionLister
    from shim.fleet import membership
    from shim.fleet.folder import require_join_file

    join = require_join_file(os.environ)
    typer.echo(f"fleet     {join.fleet}, as {join.name} ({join.role})")
    typer.echo(f"server    {join.url}")
    process = membership.load_process_status(os.environ)
    if process is None:
        typer.echo("process   `shim fleet run` does not run")
        if join.role == "machine":
            typer.echo("          other machines see this one as away")
        _check_server(join)
    else:
        typer.echo(f"process   {process.pid}, {process.problem or 'connected'}")
        _print_copies(process.copies)
        if process.problem:
            raise typer.Exit(1)
    with FleetSessionLister(None, os.environ) as lister:
        for listing in lister.list_sessions(includes_ended=False):
            state = listing.problem or f"{len(listing.sessions)} running sessions"
            typer.echo(f"machine   {listing.machine.name}: {state}")


def _print_copies(copies: Mapping[str, Any]) -> None:
    """Print how far the logs of this machine's sessions are copied."""
    if not copies:
        return
    typer.echo(f"copies    {copies['complete']} of {copies['sessions']} logs are complete")
    for fields in copies["incomplete"]:
        session = shorten_session_id(fields["session"])
        reason = f": {fields['problem']}" if fields["problem"] else ""
        typer.echo(f"          {session} is copied up to line {fields['line']:,}{reason}")


def _check_server(join: "JoinFile") -> None:
    """Connect to the server once. Exit with the status 1 if this fails."""
    from shim.fleet import membership

    try:
        membership.check_connection(join)
    except ShimError as error:
        typer.echo(f"problem   {error}")
        raise typer.Exit(1) from None


def leave_fleet(
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Leave even if the entries cannot be removed.")
    ] = False,
) -> None:
    """Leave the fleet: remove this machine's entries and copied logs, and its private key.

    The key stays if the server cannot be reached, because only this key can remove the entries.

    Example: shim fleet leave
    """
    from shim.fleet import membership
    from shim.fleet.folder import remove_fleet_folder, require_join_file

    if not has_fleet(os.environ):
        require_join_file(os.environ)
    if membership.load_process_status(os.environ) is not None:
        raise CommandUsageError("`shim fleet run` still runs", hint="stop it first")
    _remove_entries(must_leave=force)
    remove_fleet_folder(os.environ)
    typer.echo("left the fleet")


def _remove_entries(*, must_leave: bool) -> None:
    """Remove this machine's entries from the fleet. Print a warning if they stay there. Raise
    FrontendError if a later attempt could remove them, unless `must_leave` is set.
    """
    from shim.fleet import membership
    from shim.fleet.folder import MembershipError, load_stored_join_file

    try:
        join = load_stored_join_file(os.environ)
        if join is not None:
            membership.remove_entries(join)
    except ShimError as error:
        if not (must_leave or isinstance(error, MembershipError)):
            raise FrontendError(
                f"the entries of this machine cannot be removed: {error}",
                hint="try again later; `shim fleet leave --force` leaves them in the registry",
            ) from None
        warn(f"the entries of this machine stay in the registry: {error}\n")


def dial(
    machine: Annotated[
        str, typer.Argument(metavar="NAME", help="The machine; without it, the fleet is listed.")
    ] = "",
) -> None:
    """Connect stdin and stdout to another machine of the fleet. Other commands start this one.

    The protocol is that of `shim bridge relay`.

    Example: shim fleet dial build01
    """
    if machine:
        from shim.fleet.dial import dial_machine

        raise typer.Exit(dial_machine(machine, os.environ))
    from shim.fleet.listing import answer_listing_requests

    raise typer.Exit(answer_listing_requests(os.environ))
