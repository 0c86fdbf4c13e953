"""Implements `shim bridge attach` and `shim bridge watch`."""

import os
import sys
from contextlib import suppress
from itertools import chain
from typing import Annotated

import typer

from shim.bridge.client import HostUnavailableError, connect_to_session_blocking
from shim.bridge.launch import can_read_session_start_data
from shim.bridge.registry import SessionRecord
from shim.bridge.session_lookup import is_session_running, resolve_session_reference
from shim.commands.sessions.actions import SessionArgument
from shim.commands.sessions.logs import list_recording_paths
from shim.commands.sessions.terminal.attach import (
    attach_terminal_to_session,
    watch_session_in_terminal,
)
from shim.commands.turn.wakeup import find_console_pipe_descriptor
from shim.core.bridge.frames import WATCH, encode_frame
from shim.story.terminal.console import BrokenPipeHandler, open_console, print_line
from shim.story.terminal.show import draw_recording


def attach_session(session: SessionArgument) -> None:
    """Attach to a background session in this terminal.

    Shows the history, then live output. A typed line is sent as the next message. A permission
    prompt is answered with one key. Ctrl-C interrupts the turn; Ctrl-D detaches, and the session
    keeps running. If stdin is not a terminal, each line of stdin is a message.

    Example: shim bridge attach 1f0c
    """
    raise typer.Exit(
        attach_terminal_to_session(
            resolve_session_reference(session), os.environ, "shim bridge attach"
        )
    )


def watch_session(
    session: SessionArgument,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the host's frames, one per line.")
    ] = False,
    thinking: Annotated[
        bool, typer.Option("--thinking", help="Show all thinking, not only its first line.")
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Show all output, not only what fits on a screen.")
    ] = False,
) -> None:
    """Follow a background session read-only: full history, then live output.

    For an ended session, its log is shown.

    Example: shim bridge watch 1f0c
    """
    record = resolve_session_reference(session)
    if as_json:
        _print_frames(record)
    elif record.is_running or record.machine:
        raise typer.Exit(
            watch_session_in_terminal(record, os.environ, thinking=thinking, full=full)
        )
    else:
        _show_log(record, thinking=thinking, full=full)


def _print_frames(session: SessionRecord) -> None:
    """Print frames until the host closes the connection, Ctrl-C is pressed, or stdout is closed."""
    output_pipe = find_console_pipe_descriptor(open_console())
    connection = connect_to_session_blocking(
        session.session_id, os.environ, role=WATCH, client=f"watcher {os.getpid()}"
    )
    with connection, BrokenPipeHandler(), suppress(KeyboardInterrupt):
        for host_frame in chain(
            [connection.welcome], connection.read_frames(stop_descriptor=output_pipe)
        ):
            fields = {key: value for key, value in host_frame.items() if key not in ("kind", "raw")}
            sys.stdout.buffer.write(encode_frame(str(host_frame["kind"]), **fields))
            sys.stdout.flush()
            if host_frame["kind"] == "bye":
                return
        if connection.is_closed:
            is_running = is_session_running(session.session_id, os.environ)
            raise HostUnavailableError(
                session.session_id,
                "the session's host closed the connection unexpectedly",
                is_running=is_running,
            )


def _show_log(session: SessionRecord, *, thinking: bool, full: bool) -> None:
    for path in list_recording_paths(session.log_folder):
        draw_recording(path, open_console(), thinking=thinking, full=full)
    if can_read_session_start_data(session):
        command = f"claude attach {session.short_id}"
    else:
        command = f"claude --bg --resume {session.session_id}"
    print_line(f"session {session.short_id} has ended: `{command}` resumes it")
