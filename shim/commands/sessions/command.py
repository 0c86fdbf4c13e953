"""Registers the `shim bridge` commands for background sessions."""

import typer

from shim.commands.help.command_groups import TitledCommandGroup
from shim.commands.help.plain_help import SimplifiedHelpCommand
from shim.commands.sessions.actions import (
    answer_permission_prompt,
    list_sessions,
    send_message_to_session,
    stop_sessions,
)
from shim.commands.sessions.attach import attach_session, watch_session
from shim.commands.sessions.relay import start_relay
from shim.commands.sessions.serve import serve_gateway
from shim.commands.sessions.token import show_token

app = typer.Typer(
    name="bridge",
    help="List and control background sessions.\n\nExample: shim bridge list",
    cls=TitledCommandGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
)

for name, command in (
    ("list", list_sessions),
    ("attach", attach_session),
    ("watch", watch_session),
    ("say", send_message_to_session),
    ("answer", answer_permission_prompt),
    ("stop", stop_sessions),
    ("serve", serve_gateway),
    ("token", show_token),
    ("relay", start_relay),
):
    app.command(name, cls=SimplifiedHelpCommand)(command)
