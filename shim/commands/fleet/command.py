"""Registers the `shim fleet` commands. The packages of the extra `fleet` are imported when a command
needs them.
"""

import importlib.util

import typer

from shim.commands.fleet.administration import (
    create_fleet,
    invite_member,
    revoke_member,
    start_server,
)
from shim.commands.fleet.membership import (
    dial,
    install_service,
    join_fleet,
    leave_fleet,
    run,
    show_status,
)
from shim.commands.help.plain_help import SimplifiedHelpCommand, SimplifiedHelpGroup
from shim.core.errors import SystemResourceError

REQUIRED_PACKAGES = ("nats", "nacl", "cryptography")

app = typer.Typer(
    name="fleet",
    help="Use the sessions of many machines through a NATS server.\n\nExample: shim fleet status",
    cls=SimplifiedHelpGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def check_packages() -> None:
    """Raise SystemResourceError if the extra `fleet` is not installed."""
    missing = [name for name in REQUIRED_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        from shim.process.installation import build_install_hint

        raise SystemResourceError(
            f"the fleet needs packages that are not installed: {', '.join(missing)}",
            hint=build_install_hint("fleet"),
        )


for name, command in (
    ("init", create_fleet),
    ("server", start_server),
    ("invite", invite_member),
    ("revoke", revoke_member),
    ("join", join_fleet),
    ("run", run),
    ("install", install_service),
    ("status", show_status),
    ("leave", leave_fleet),
    ("dial", dial),
):
    app.command(name, cls=SimplifiedHelpCommand)(command)
