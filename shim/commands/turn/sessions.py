"""`shim sessions`: the sessions that can go on, the line that goes on with each, and how to forget
one.
"""

import os
import shlex
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.text import Text

from shim.bridge import registry
from shim.commands.help.grouped import GroupedCommands
from shim.commands.help.plain import PlainCommand
from shim.core.errors import FrontendError
from shim.core.reading.account import escape_control_chars, pluralize
from shim.state import store
from shim.state.store import StoredSession
from shim.story.steps import format_model_name
from shim.story.terminal.console import JsonOption, open_console, print_json, print_line

MAX_LISTED_SESSIONS = 10  # sessions, unless all are asked for
DAY_SECONDS = 86_400.0  # seconds
MIN_ID_CHARS = 4  # characters of the beginning of an id that stand for the id

app = typer.Typer(
    name="sessions",
    cls=GroupedCommands,
    invoke_without_command=True,
    rich_markup_mode=None,
)


@app.callback()
def list_sessions(
    context: typer.Context,
    everything: Annotated[
        bool,
        typer.Option("--all", help=f"List all of them, not only the last {MAX_LISTED_SESSIONS}."),
    ] = False,
    here: Annotated[bool, typer.Option("--here", help="List those of this folder.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the sessions that can go on, with the line for each.

    The last used one stands first. A frontend that resumes a session gives the same id to `claude
    --resume`. Of one that lives on its own the line attaches to it.

    Example: shim sessions --here
    """
    if context.invoked_subcommand is not None:
        return
    found = [
        (each, session)
        for each, session in store.list_sessions(os.environ)
        if not here or session.cwd == os.getcwd()
    ]
    living = {
        one.session_id: one.short_id for one in registry.list_sessions(os.environ) if one.is_running
    }
    if as_json:
        print_json(
            [_build_report(each, session) | {"alive": each in living} for each, session in found]
        )
        return
    if not found:
        where = " of this folder" if here else ""
        print_line(
            f"no sessions{where} are kept: `shim run` and `claude` keep one for each conversation"
        )
        return
    console = open_console()
    for each, session in found[: None if everything else MAX_LISTED_SESSIONS]:
        console.print(Text(_format_session(session), style="bold"), soft_wrap=True)
        way = (
            f"claude attach {living[each]}  (it lives)"
            if each in living
            else format_resume_command(each, session)
        )
        console.print(Text(f"  {way}"), soft_wrap=True)
    if len(found) > MAX_LISTED_SESSIONS and not everything:
        console.print(
            Text(
                f"and {len(found) - MAX_LISTED_SESSIONS} more: `shim sessions --all`", style="dim"
            ),
            soft_wrap=True,
        )


@app.command(cls=PlainCommand)
def delete(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="Ids of sessions, or their beginnings.")
    ] = None,
    older: Annotated[
        float | None,
        typer.Option("--older", metavar="DAYS", help="Those not used for so many days.", min=0.0),
    ] = None,
) -> None:
    """Forget sessions: they cannot be resumed by way of the drop-in any more.

    What the vendor keeps of a session, and the history below ~/.claude, stay as they are.

    Example: shim sessions delete 1f0c --older 30
    """
    if not ids and older is None:
        raise typer.BadParameter("name sessions, or give --older DAYS", param_hint="ID")
    chosen = {each for given in ids or () for each in [_resolve_id(given)]}
    if older is not None:
        chosen |= {
            each
            for each, session in store.list_sessions(os.environ)
            if session.updated < time.time() - older * DAY_SECONDS
        }
    gone = sum(store.remove_session(each, os.environ) for each in sorted(chosen))
    print_line(f"forgot {pluralize(gone, 'session')}")


def _resolve_id(given: str) -> str:
    """The one id that begins so."""
    found = [
        each
        for each, _ in store.list_sessions(os.environ)
        if len(given) >= MIN_ID_CHARS and each.startswith(given.lower())
    ]
    if len(found) == 1:
        return found[0]
    why = (
        f"{len(found)} sessions begin with {given!r}"
        if found
        else f"no session begins with {escape_control_chars(given)!r}"
    )
    hint = f"give the whole id, or at least {MIN_ID_CHARS} characters of it; `shim sessions --all` lists them"
    raise FrontendError(why, hint=hint)


def format_resume_command(each: str, session: StoredSession) -> str:
    """What a person types to go on with a session. Vendors look for their sessions in the folder of
    the first turn.
    """
    there = (
        f"cd {shlex.quote(session.cwd)} && " if session.cwd and session.cwd != os.getcwd() else ""
    )
    return escape_control_chars(f'{there}shim run --resume {each} "PROMPT"').replace("\n", "\\n")


def _format_session(session: StoredSession) -> str:
    when = (
        time.strftime("%Y-%m-%d %H:%M", time.localtime(session.updated)) if session.updated else ""
    )
    return escape_control_chars("  ".join(_list_session_parts(when, session))).replace("\n", "\\n")


def _list_session_parts(when: str, session: StoredSession) -> Iterator[str]:
    yield from (part for part in (when, session.vendor, format_model_name(session.model)) if part)
    if session.cwd:
        home = os.path.expanduser("~")
        yield (
            f"~{session.cwd[len(home) :]}"
            if f"{session.cwd}/".startswith(f"{home}/")
            else session.cwd
        )


def _build_report(each: str, session: StoredSession) -> dict[str, Any]:
    return {
        "session_id": each,
        "vendor": session.vendor,
        "vendor_session": session.vendor_session or None,
        "model": format_model_name(session.model) or None,
        "folder": session.cwd,
        "created": session.created,
        "updated": session.updated,
        "resume": format_resume_command(each, session),
    }
