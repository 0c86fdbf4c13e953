"""A terminal, or a script, at a session that lives on its own: attached to it, or only watching."""

import os
import sys
import time
from collections.abc import Mapping

from shim.bridge import registry
from shim.bridge.link import HostGoneError, connect_to_session_blocking
from shim.bridge.registry import SessionRecord
from shim.bridge.start import SessionRunningError, respawn_session
from shim.commands.sessions.terminal.seat import PATIENCE_SECONDS, End, Seat
from shim.commands.sessions.terminal.talk import Talk
from shim.commands.sessions.terminal.view import View
from shim.core.bridge.frames import DRIVE, WATCH
from shim.core.errors import FrontendError
from shim.core.reading.account import printable
from shim.io.raw_output import tell
from shim.story.terminal.console import ReaderMayLeave, open_console

AGAIN = 5  # connections that break in a row before we give up
# between two of them: a host that was killed seems to live for a moment, until its lock is gone
AGAIN_SECONDS = 0.2
EXITED = "Session {id} has exited — run {back} to resume it."  # background page, B34
# a host's words for an end that nobody has to be told more about
WENT = ("stopped", "ended", "idle")


def attach(one: SessionRecord, environment: Mapping[str, str], again: str = "claude attach") -> int:
    """Show a session and let a person, or the lines of a script, drive it. Returns the exit status.

    `again` is what comes back to it. A session whose host has ended is woken (B33).
    """
    _check_stdin(one, again)
    console = open_console()
    keyed = console.is_terminal and not console.is_dumb_terminal and os.isatty(0)
    if not one.is_running:
        tell(f"Waking session {one.short_id}…\n")
        try:
            one = respawn_session(one, environment)
        except SessionRunningError:
            pass  # somebody else was quicker
    view = View(console, asks=True)
    seat = Seat(console, view, Talk(view, time.monotonic), keyed=keyed)
    return _served(one, environment, seat, "terminal" if keyed else "script", DRIVE, again)


def _check_stdin(session: SessionRecord, command: str) -> None:
    """Raise FrontendError if stdin is closed: another file would get its descriptor."""
    try:
        os.fstat(0)
    except OSError:
        raise FrontendError(
            "stdin is closed, so nothing can be typed in the session",
            hint=f"`{command} {session.short_id} </dev/null` shows the session, `shim bridge watch {session.short_id}` follows it",
        ) from None


def watch(
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
    view = View(console, whole=True, thinking=thinking, full=full)
    return _served(one, environment, Seat(console, view, None, keyed=False), "watcher", WATCH)


def _served(
    one: SessionRecord,
    environment: Mapping[str, str],
    seat: Seat,
    client: str,
    role: str,
    again: str = "claude attach",
) -> int:
    """Serve to the end, and say what end it is. Returns the exit status."""
    with ReaderMayLeave():
        end, living = _to_its_end(one, environment, seat, client, role)
        seat.view.close(goes_on=living)
        return _say_end(one, seat, end, again, living=living)
    return 0


def _to_its_end(
    one: SessionRecord, environment: Mapping[str, str], seat: Seat, client: str, role: str
) -> tuple[End, bool]:
    """Serve over as many connections as it takes. Returns how it ended, and whether the session's
    host lives.
    """
    view, talk, tries = seat.view, seat.talk, 0
    end: End
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
                    talk.send = link.send_frame_blocking
                end = seat.serve(link)
        except HostGoneError:
            if not view.welcome:
                raise
            end = "lost"
        tries = tries + 1 if view.cursor == before else 0
        living = registry.is_session_running(one.session_id, environment)
        if end != "lost" or tries >= AGAIN or not living:
            return end, living
        time.sleep(AGAIN_SECONDS)


def _say_end(one: SessionRecord, seat: Seat, end: End, again: str, *, living: bool) -> int:
    view, talk = seat.view, seat.talk
    back = f"`{again} {one.short_id}`"
    if end == "left":
        if seat.keyed:
            _say(f"the session goes on: {again} {one.short_id}")
        return int(talk is not None and talk.refused and not seat.keyed)
    if end == "signal":
        return 128 + seat.signal
    if end == "bye" and view.bye in WENT:
        _say(EXITED.format(id=one.short_id, back=back))
        return 0
    does = "comes back to" if living else "goes on with"
    tell(printable(f"{_why(end, view, one.short_id, living=living)}. {back} {does} it.\n"))
    return 1


def _why(end: End, view: View, identity: str, *, living: bool) -> str:
    """What is said of an end that nobody wanted."""
    if end == "bye":
        return f"the host of session {identity} closed the connection: {view.bye}"
    if end == "silent":
        return f"the host of session {identity} did not answer in {PATIENCE_SECONDS:g} s"
    if living:
        return f"the connection to session {identity} broke {AGAIN} times; the session goes on"
    return f"the host of session {identity} was killed: what was said up to here is kept, a turn that ran is lost"


def _say(text: str) -> None:
    sys.stdout.write(printable(text) + "\n")
    sys.stdout.flush()
