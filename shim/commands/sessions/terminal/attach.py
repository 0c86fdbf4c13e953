"""Connects a terminal or a script to a background session, to control or to watch it."""

import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress

from shim.bridge.client import HostUnavailableError, connect_to_session_blocking
from shim.bridge.launch import SessionRunningError, respawn_session
from shim.bridge.registry import SessionRecord
from shim.bridge.relay_process import MachineUnavailableError
from shim.bridge.remote import run_session_command
from shim.bridge.session_lookup import is_session_running
from shim.commands.sessions.terminal.input_controller import TerminalInputController
from shim.commands.sessions.terminal.session_view import SessionView
from shim.commands.sessions.terminal.terminal_loop import ANSWER_TIMEOUT_S, EndReason, TerminalLoop
from shim.core.bridge.frames import DRIVE, WATCH
from shim.core.errors import FrontendError
from shim.core.reading.values import escape_control_chars
from shim.io.stderr import warn
from shim.story.terminal.console import BrokenPipeHandler, open_console

MAX_RECONNECTS = 5  # lost connections in a row
# After a host process is killed, its lock is released a moment later.
# Until then, the host seems to be running.
RECONNECT_DELAY_S = 0.2
# A network may be away for a minute or two. Each attempt takes up to 5 s of its own.
MAX_REMOTE_RECONNECTS = 20
REMOTE_RECONNECT_DELAY_S = 3.0
EXITED_TEXT = "Session {id} has exited — run {back} to resume it."  # B34
# Reasons with which a host closes the connection at a normal end. They need no explanation.
NORMAL_END_REASONS = ("stopped", "ended", "idle")


def attach_terminal_to_session(
    session: SessionRecord, environment: Mapping[str, str], resume_command: str = "claude attach"
) -> int:
    """Show a session that a person or piped input controls. Return the exit status.

    `resume_command` is the command that attaches again, for messages. If the session's host has
    exited, the session is restarted (B33).
    """
    _check_stdin(session, resume_command)
    console = open_console()
    reads_keys = console.is_terminal and not console.is_dumb_terminal and os.isatty(0)
    if not session.is_running:
        warn(f"Waking session {session.short_id}…\n")
        session = _restart_session(session, environment)
    view = SessionView(console, can_answer=True)
    loop = TerminalLoop(
        console, view, TerminalInputController(view, time.monotonic), reads_keys=reads_keys
    )
    client = "script"
    if reads_keys:
        client = "terminal"
    return _run_to_end(session, environment, loop, client, DRIVE, resume_command)


def _restart_session(session: SessionRecord, environment: Mapping[str, str]) -> SessionRecord:
    """Restart an ended session on its machine."""
    if session.machine:
        if run_session_command(session.session_id, ("claude", "respawn"), environment).status:
            raise FrontendError(f"the session {session.short_id} was not restarted")
        return session._replace(is_running=True)
    with suppress(SessionRunningError):  # another client has restarted the session
        return respawn_session(session, environment)
    return session


def _check_stdin(session: SessionRecord, command: str) -> None:
    """Raise FrontendError if stdin is closed. Otherwise another file could get its descriptor."""
    try:
        os.fstat(0)
    except OSError:
        raise FrontendError(
            "stdin is closed, so you cannot type in the session",
            hint=(
                f"`{command} {session.short_id} </dev/null` shows the session, "
                f"`shim bridge watch {session.short_id}` follows the session"
            ),
        ) from None


def watch_session_in_terminal(
    session: SessionRecord,
    environment: Mapping[str, str],
    *,
    thinking: bool = False,
    full: bool = False,
) -> int:
    """Draw a running session until the session ends or Ctrl-C is pressed, as `shim show --follow`
    draws a recording.
    """
    console = open_console()
    view = SessionView(console, draws_all=True, thinking=thinking, full=full)
    return _run_to_end(
        session, environment, TerminalLoop(console, view, None, reads_keys=False), "watcher", WATCH
    )


def _run_to_end(
    session: SessionRecord,
    environment: Mapping[str, str],
    loop: TerminalLoop,
    client: str,
    role: str,
    resume_command: str = "claude attach",
) -> int:
    """Run the terminal loop to its end, and print how it ended. Return the exit status."""
    with BrokenPipeHandler():
        end, is_running = _serve_with_reconnects(session, environment, loop, client, role)
        loop.view.close(is_running=is_running)
        return _report_end(session, loop, end, resume_command, is_running=is_running)
    return 0


def _serve_with_reconnects(
    session: SessionRecord,
    environment: Mapping[str, str],
    loop: TerminalLoop,
    client: str,
    role: str,
) -> tuple[EndReason, bool]:
    """Run the terminal loop, and reconnect if the connection is lost. Return how the loop ended,
    and whether the host is still running.
    """
    view = loop.view
    input_controller = loop.input_controller
    attempts = 0
    max_attempts, delay_s = MAX_RECONNECTS, RECONNECT_DELAY_S
    if session.machine:
        max_attempts, delay_s = MAX_REMOTE_RECONNECTS, REMOTE_RECONNECT_DELAY_S
    end: EndReason
    while True:
        previous_cursor = view.cursor
        try:
            with connect_to_session_blocking(
                session.session_id,
                environment,
                role=role,
                after=previous_cursor,
                client=f"{client} {os.getpid()}",
            ) as connection:
                if input_controller is not None:
                    input_controller.write_frame = connection.send_frame_blocking
                end = loop.serve_host_connection(connection)
        except (HostUnavailableError, MachineUnavailableError):
            if not view.welcome or attempts >= max_attempts:
                raise
            end = "lost"
        if view.cursor == previous_cursor:
            attempts = attempts + 1
        else:
            attempts = 0
        is_running = _is_host_running(session, environment, end)
        if end != "lost" or attempts >= max_attempts or not is_running:
            return end, is_running
        time.sleep(delay_s)


def _is_host_running(
    session: SessionRecord, environment: Mapping[str, str], end: EndReason
) -> bool:
    """Return whether the session's host is running after the terminal loop has ended. While another
    machine does not answer, its host is assumed to be running.
    """
    if session.machine and end != "lost":
        return end != "bye"  # a host sends `bye` when it exits
    try:
        return is_session_running(session.session_id, environment)
    except MachineUnavailableError:
        return True


def _report_end(
    session: SessionRecord,
    loop: TerminalLoop,
    end: EndReason,
    resume_command: str,
    *,
    is_running: bool,
) -> int:
    view = loop.view
    input_controller = loop.input_controller
    command = f"`{resume_command} {session.short_id}`"
    if end == "left":
        if loop.reads_keys:
            _print_line(f"the session keeps running: {resume_command} {session.short_id}")
        if input_controller is not None and input_controller.has_failed and not loop.reads_keys:
            return 1
        return 0
    if end == "signal":
        return 128 + loop.end_signal
    was_over = not session.is_running  # the log of an ended session was shown
    if end == "bye" and (was_over or view.end_reason in NORMAL_END_REASONS):
        _print_line(EXITED_TEXT.format(id=session.short_id, back=command))
        return 0
    verb_phrase = "resumes"
    if is_running:
        verb_phrase = "returns to"
    warn(
        escape_control_chars(
            f"{_explain_end(end, view, session.short_id, is_running=is_running)}. {command} {verb_phrase} it.\n"
        )
    )
    return 1


def _explain_end(end: EndReason, view: SessionView, session_name: str, *, is_running: bool) -> str:
    """Return a message that explains an unexpected end."""
    if end == "bye":
        return f"the host of session {session_name} closed the connection: {view.end_reason}"
    if end == "silent":
        return f"the host of session {session_name} did not respond within {ANSWER_TIMEOUT_S:g} s"
    if is_running:
        return (
            f"the connection to session {session_name} was lost too often; the "
            "session keeps running"
        )
    return (
        f"the host of session {session_name} was killed: the output up to this point is kept, "
        "but a running turn is lost"
    )


def _print_line(text: str) -> None:
    sys.stdout.write(escape_control_chars(text) + "\n")
    sys.stdout.flush()
