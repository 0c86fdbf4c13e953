"""A terminal, or a script, at a session that lives on its own: attached to it, or only watching."""

import os
import sys
import time
from collections.abc import Mapping

from shim.bridge import registry
from shim.bridge.link import HostGoneError, connect_to_session_blocking
from shim.bridge.registry import SessionRecord
from shim.bridge.start import SessionRunningError, respawn_session
from shim.commands.sessions.terminal.seat import ANSWER_TIMEOUT_S, EndReason, TerminalLoop
from shim.commands.sessions.terminal.talk import InputController
from shim.commands.sessions.terminal.view import SessionView
from shim.core.bridge.frames import DRIVE, WATCH
from shim.core.errors import FrontendError
from shim.core.reading.account import escape_control_chars
from shim.io.raw_output import warn
from shim.story.terminal.console import BrokenPipeHandler, open_console

MAX_RECONNECTS = 5  # connections that break in a row before we give up
# between two of them: a host that was killed seems to live for a moment, until its lock is gone
RECONNECT_DELAY_S = 0.2
EXITED_TEXT = "Session {id} has exited — run {back} to resume it."  # background page, B34
# a host's words for an end that nobody has to be told more about
NORMAL_END_REASONS = ("stopped", "ended", "idle")


def run_attach(
    one: SessionRecord, environment: Mapping[str, str], again: str = "claude attach"
) -> int:
    """Show a session and let a person, or the lines of a script, drive it. Returns the exit status.

    `again` is what comes back to it. A session whose host has ended is woken (B33).
    """
    _check_stdin(one, again)
    console = open_console()
    keyed = console.is_terminal and not console.is_dumb_terminal and os.isatty(0)
    if not one.is_running:
        warn(f"Waking session {one.short_id}…\n")
        try:
            one = respawn_session(one, environment)
        except SessionRunningError:
            pass  # somebody else was quicker
    view = SessionView(console, can_answer=True)
    seat = TerminalLoop(console, view, InputController(view, time.monotonic), reads_keys=keyed)
    return _run_to_end(one, environment, seat, "terminal" if keyed else "script", DRIVE, again)


def _check_stdin(session: SessionRecord, command: str) -> None:
    """Raise FrontendError if stdin is closed: another file would get its descriptor."""
    try:
        os.fstat(0)
    except OSError:
        raise FrontendError(
            "stdin is closed, so nothing can be typed in the session",
            hint=f"`{command} {session.short_id} </dev/null` shows the session, `shim bridge watch {session.short_id}` follows it",
        ) from None


def run_watch(
    one: SessionRecord,
    environment: Mapping[str, str],
    *,
    thinking: bool = False,
    full: bool = False,
) -> int:
    """Draw all of a living session, as `shim show --follow` draws a recording, until it ends or
    Ctrl-C comes.
    """
    console = open_console()
    view = SessionView(console, draws_all=True, thinking=thinking, full=full)
    return _run_to_end(
        one, environment, TerminalLoop(console, view, None, reads_keys=False), "watcher", WATCH
    )


def _run_to_end(
    one: SessionRecord,
    environment: Mapping[str, str],
    seat: TerminalLoop,
    client: str,
    role: str,
    again: str = "claude attach",
) -> int:
    """Serve to the end, and say what end it is. Returns the exit status."""
    with BrokenPipeHandler():
        end, living = _serve_with_reconnects(one, environment, seat, client, role)
        seat.view.close(is_running=living)
        return _report_end(one, seat, end, again, living=living)
    return 0


def _serve_with_reconnects(
    one: SessionRecord, environment: Mapping[str, str], seat: TerminalLoop, client: str, role: str
) -> tuple[EndReason, bool]:
    """Serve over as many connections as it takes. Returns how it ended, and whether the session's
    host lives.
    """
    view, talk, tries = seat.view, seat.input_controller, 0
    end: EndReason
    while True:
        before = view.cursor
        try:
            with connect_to_session_blocking(
                one.session_id,
                environment,
                role=role,
                after=before,
                client=f"{client} {os.getpid()}",
            ) as link:
                if talk is not None:
                    talk.write_frame = link.send_frame_blocking
                end = seat.serve(link)
        except HostGoneError:
            if not view.welcome:
                raise
            end = "lost"
        tries = tries + 1 if view.cursor == before else 0
        living = registry.is_session_running(one.session_id, environment)
        if end != "lost" or tries >= MAX_RECONNECTS or not living:
            return end, living
        time.sleep(RECONNECT_DELAY_S)


def _report_end(
    one: SessionRecord, seat: TerminalLoop, end: EndReason, again: str, *, living: bool
) -> int:
    view, talk = seat.view, seat.input_controller
    back = f"`{again} {one.short_id}`"
    if end == "left":
        if seat.reads_keys:
            _print_line(f"the session goes on: {again} {one.short_id}")
        return int(talk is not None and talk.has_failed and not seat.reads_keys)
    if end == "signal":
        return 128 + seat.end_signal
    if end == "bye" and view.end_reason in NORMAL_END_REASONS:
        _print_line(EXITED_TEXT.format(id=one.short_id, back=back))
        return 0
    does = "comes back to" if living else "goes on with"
    warn(
        escape_control_chars(
            f"{_explain_end(end, view, one.short_id, living=living)}. {back} {does} it.\n"
        )
    )
    return 1


def _explain_end(end: EndReason, view: SessionView, identity: str, *, living: bool) -> str:
    """What is said of an end that nobody wanted."""
    if end == "bye":
        return f"the host of session {identity} closed the connection: {view.end_reason}"
    if end == "silent":
        return f"the host of session {identity} did not answer in {ANSWER_TIMEOUT_S:g} s"
    if living:
        return f"the connection to session {identity} broke {MAX_RECONNECTS} times; the session goes on"
    return f"the host of session {identity} was killed: what was said up to here is kept, a turn that ran is lost"


def _print_line(text: str) -> None:
    sys.stdout.write(escape_control_chars(text) + "\n")
    sys.stdout.flush()
