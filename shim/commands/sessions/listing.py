"""Formats background sessions as a table for a person."""

import os
import re
from collections.abc import Sequence
from io import StringIO
from shutil import get_terminal_size

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shim.bridge.registry import SessionRecord, describe_unanswered_messages, is_metadata_damaged
from shim.core.reading.values import escape_control_chars
from shim.story.terminal.console import PIPE_COLUMNS, abbreviate_home

# In a narrower terminal, the folder column is omitted.
# With this column, there would be no space for the reason why a session is waiting.
MIN_COLUMNS_FOR_FOLDER = 100
MIN_COLUMNS_FOR_VENDOR = 60  # in a narrower terminal, the vendor column is omitted too
NAME_WIDTH_DIVISOR = 5  # names get one fifth of the terminal's width
# Matches bold text in Markdown, but not `src/**/*.py`.
_BOLD_PATTERN = re.compile(r"(?<![\w/*])\*\*(?=[^\s*/])(.+?)(?<=[^\s*/])\*\*(?![\w/*])")
STATE_STYLES = {
    "working": "cyan",
    "blocked": "yellow",
    "done": "green",
    "failed": "red",
    "damaged": "red",
    "stopped": "dim",
}

SHORTENED_HINT = (
    "prompts are shortened; see `shim bridge list --json` or `claude attach ID` for the full text"
)


def format_no_sessions_message(*, includes_ended: bool, folder: str | None = None) -> str:
    """Return the message for an empty list of sessions, either on the machine or at and below a
    folder.
    """
    state = "running "
    if includes_ended:
        state = ""
    location = ""
    if folder is not None:
        location = f" in {escape_control_chars(folder)}"
    return f"no {state}background sessions{location}; start one with `claude --bg PROMPT`\n"


def format_session_table(sessions: Sequence[SessionRecord]) -> str:
    """Return the session table as text. On a terminal, the table has colors and the terminal's
    width.
    """
    is_terminal = os.isatty(1)
    width = PIPE_COLUMNS
    if is_terminal:
        width = get_terminal_size().columns
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("ID", "STATE", "VENDOR") if width >= MIN_COLUMNS_FOR_VENDOR else ("ID", "STATE"):
        table.add_column(column, no_wrap=True)
    table.add_column(
        "NAME", no_wrap=True, overflow="ellipsis", max_width=max(width // NAME_WIDTH_DIVISOR, 1)
    )
    table.add_column("WAITS FOR", overflow="fold")
    if width >= MIN_COLUMNS_FOR_FOLDER:
        table.add_column("FOLDER", overflow="fold")
    for session in sessions:
        metadata = session.metadata
        state = session.metadata["state"]
        ended_suffix = " (ended)"
        if session.is_running:
            ended_suffix = ""
        if metadata.get("away") is not None:
            ended_suffix = " (away)"
        waiting_for = metadata.get("needs") or metadata.get("waitingFor")
        if not waiting_for:
            waiting_for = describe_unanswered_messages(metadata)
        if is_metadata_damaged(metadata):
            state = "damaged"
            ended_suffix = ""
            waiting_for = (
                f"{metadata['detail']}; `claude rm {session.short_id}` removes the session"
            )
        cells: dict[str, object] = {
            "ID": session.short_id, "STATE": Text(state + ended_suffix, style=STATE_STYLES.get(state, "")),
            "VENDOR": metadata.get("vendor"), "NAME": metadata.get("name"), "WAITS FOR": waiting_for,
            "FOLDER": abbreviate_home(metadata["cwd"]),
        }  # fmt: skip
        table.add_row(*(_build_cell(cells[str(column.header)]) for column in table.columns))
    buffer = StringIO()
    Console(
        file=buffer, force_terminal=is_terminal, width=width, highlight=False, emoji=False
    ).print(table)
    if any(session.metadata.get("waitingFor") for session in sessions if session.is_running):
        buffer.write(f"\n{SHORTENED_HINT}\n")
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def _build_cell(value: object) -> Text:
    if isinstance(value, Text):
        return value
    return Text(_BOLD_PATTERN.sub(r"\1", " ".join(escape_control_chars(str(value or "")).split())))
