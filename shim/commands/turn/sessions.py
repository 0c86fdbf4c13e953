"""Implements `shim sessions`, which lists and deletes sessions that can be resumed."""

import os
import shlex
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.text import Text

from shim.bridge import registry
from shim.commands.completion.values import complete_session
from shim.commands.help.command_groups import TitledCommandGroup
from shim.commands.help.plain_help import SimplifiedHelpCommand
from shim.core.errors import FrontendError
from shim.core.reading.diagnostics import pluralize
from shim.core.reading.json_text import parse_json_object
from shim.core.reading.values import (
    as_dict,
    as_list,
    escape_control_chars,
    format_single_line,
    is_short_session_id,
    none_if_empty,
    shorten_end,
    shorten_session_id,
)
from shim.io.transcript import build_transcript_path
from shim.state import store
from shim.state.store import StoredSession
from shim.story.events import format_content_text, format_model_name
from shim.story.terminal.console import (
    JsonOption,
    abbreviate_home,
    open_console,
    print_json,
    print_line,
)

MAX_LISTED_SESSIONS = 10  # listed without --all
DAY_SECONDS = 86_400.0  # seconds per day
MIN_ID_CHARS = 4  # the minimum length of a session id prefix
MAX_TITLE_CHARS = 80  # characters of the first prompt that are shown
# The bytes of a transcript that are searched for the first prompt. A list may have 10,000 sessions.
MAX_TITLE_BYTES = 64 * 1024

app = typer.Typer(
    name="sessions",
    cls=TitledCommandGroup,
    invoke_without_command=True,
    rich_markup_mode=None,
)


@app.callback()
def list_sessions(
    context: typer.Context,
    everything: Annotated[
        bool,
        typer.Option("--all", help=f"List all sessions, not only the last {MAX_LISTED_SESSIONS}."),
    ] = False,
    here: Annotated[
        bool, typer.Option("--here", help="List only sessions of this folder.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List resumable sessions, each with its resume command.

    The most recently used session is first. A frontend resumes a session by passing the same id to
    `claude --resume`. For a running background session, the command attaches to it.

    Example: shim sessions --here
    """
    if context.invoked_subcommand is not None:
        return
    stored_sessions = [
        (session_id, session)
        for session_id, session in store.list_sessions(os.environ)
        if not here or session.cwd == os.getcwd()
    ]
    running_ids = {
        record.session_id: record.short_id
        for record in registry.list_sessions(os.environ)
        if record.is_running
    }
    if as_json:
        print_json(
            [
                _build_report(session_id, session) | {"alive": session_id in running_ids}
                for session_id, session in stored_sessions
            ]
        )
        return
    if not stored_sessions:
        folder_text = ""
        if here:
            folder_text = " of this folder"
        print_line(f"no sessions{folder_text}; start one with `shim run PROMPT`")
        return
    console = open_console()
    for session_id, session in stored_sessions[: None if everything else MAX_LISTED_SESSIONS]:
        title = read_session_title(session_id, session) or "(no prompt stored)"
        console.print(Text(title, style="bold"), soft_wrap=True)
        console.print(
            Text(f"  {_format_session(session_id, session)}", style="dim"), soft_wrap=True
        )
        if session_id in running_ids:
            next_command = f"claude attach {running_ids[session_id]}  (running)"
        else:
            next_command = format_resume_command(session_id, session)
        console.print(Text(f"  {next_command}"), soft_wrap=True)
    if len(stored_sessions) > MAX_LISTED_SESSIONS and not everything:
        console.print(
            Text(
                f"and {len(stored_sessions) - MAX_LISTED_SESSIONS} more: `shim sessions --all`",
                style="dim",
            ),
            soft_wrap=True,
        )


@app.command(cls=SimplifiedHelpCommand)
def delete(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID",
            help="Session ids, or unique prefixes of them.",
            autocompletion=complete_session,
        ),
    ] = None,
    older: Annotated[
        float | None,
        typer.Option(
            "--older", metavar="DAYS", help="Delete sessions not used for this many days.", min=0.0
        ),
    ] = None,
) -> None:
    """Delete sessions, so that they can no longer be resumed.

    The vendor's own files of a session and the history below ~/.claude are kept.

    Example: shim sessions delete 1f0c --older 30
    """
    if not ids and older is None:
        raise typer.BadParameter("pass session ids or --older DAYS", param_hint="ID")
    session_ids = {session_id for prefix in as_list(ids) for session_id in [_resolve_id(prefix)]}
    if older is not None:
        session_ids |= {
            session_id
            for session_id, session in store.list_sessions(os.environ)
            if session.updated < time.time() - older * DAY_SECONDS
        }
    deleted_count = sum(
        store.remove_session(session_id, os.environ) for session_id in sorted(session_ids)
    )
    print_line(f"deleted {pluralize(deleted_count, 'session')}")


def resolve_resumed_id(session_id: str) -> str:
    """Return the full id of the stored session with this short id. Other ids are returned
    unchanged. The drop-in resolves the short ids of background sessions itself.
    """
    if not is_short_session_id(session_id.lower()):
        return session_id
    matches = _list_matching_ids(session_id)
    if len(matches) == 1:
        return matches[0]
    return session_id


def _resolve_id(prefix: str) -> str:
    """Return the only session id that starts with `prefix`. Raise FrontendError if there is none,
    or more than one.
    """
    matches = []
    if len(prefix) >= MIN_ID_CHARS:
        matches = _list_matching_ids(prefix)
    if len(matches) == 1:
        return matches[0]
    if matches:
        reason = f"{len(matches)} sessions begin with {prefix!r}"
    else:
        reason = f"no session begins with {escape_control_chars(prefix)!r}"
    hint = (
        f"pass the full id, or at least its first {MIN_ID_CHARS} characters; `shim sessions "
        "--all` lists the ids"
    )
    raise FrontendError(reason, hint=hint)


def _list_matching_ids(prefix: str) -> list[str]:
    """Return the ids of the stored sessions that start with `prefix`."""
    return [
        session_id
        for session_id, _ in store.list_sessions(os.environ)
        if session_id.startswith(prefix.lower())
    ]


def format_resume_command(session_id: str, session: StoredSession) -> str:
    """Return the shell command that resumes a session. The command changes to the folder of the
    session's first turn, because vendors look for sessions there.
    """
    change_folder = ""
    if session.cwd and session.cwd != os.getcwd():
        change_folder = f"cd {shlex.quote(session.cwd)} && "
    return format_single_line(
        f'{change_folder}shim run --resume {shorten_session_id(session_id)} "PROMPT"'
    )


def read_session_title(session_id: str, session: StoredSession) -> str:
    """Return the beginning of a session's first prompt as one line, or "" if the transcript has no
    prompt.
    """
    path = build_transcript_path(os.environ, session.cwd, session_id)
    try:
        with open(path, "rb") as file:
            lines = file.read(MAX_TITLE_BYTES).split(b"\n")
    except OSError:
        return ""
    for raw_line in lines:
        line = parse_json_object(raw_line)
        if line.get("type") == "user":
            text = format_content_text(as_dict(line.get("message")).get("content"))
            return shorten_end(" ".join(escape_control_chars(text).split()), MAX_TITLE_CHARS)
    return ""


def _format_session(session_id: str, session: StoredSession) -> str:
    return format_single_line(" · ".join(_list_session_parts(session_id, session)))


def _list_session_parts(session_id: str, session: StoredSession) -> Iterator[str]:
    yield shorten_session_id(session_id)
    if session.updated:
        yield time.strftime("%Y-%m-%d %H:%M", time.localtime(session.updated))
    yield session.vendor
    model = format_model_name(session.model)
    if model:
        yield model
    if session.cwd:
        yield abbreviate_home(session.cwd)


def _build_report(session_id: str, session: StoredSession) -> dict[str, Any]:
    return {
        "session_id": session_id,
        "id": shorten_session_id(session_id),
        "title": none_if_empty(read_session_title(session_id, session)),
        "vendor": session.vendor,
        "vendor_session": none_if_empty(session.vendor_session),
        "model": none_if_empty(format_model_name(session.model)),
        "folder": session.cwd,
        "created": session.created,
        "updated": session.updated,
        "resume": format_resume_command(session_id, session),
    }
