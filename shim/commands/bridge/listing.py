"""Sessions that live on their own, as a table for a person."""

import os
from collections.abc import Sequence
from io import StringIO
from shutil import get_terminal_size

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shim.bridge.registry import Registered
from shim.core.reading.account import printable
from shim.story.terminal.console import PIPE_COLUMNS

STYLES = {"working": "cyan", "blocked": "yellow", "done": "green", "failed": "red", "stopped": "dim"}


def none(*, everything: bool) -> str:
    """What is said where there is no session."""
    which = "is kept" if everything else "runs"
    return f"no session {which} in the background: `claude --bg PROMPT` begins one\n"


def drawn(found: Sequence[Registered]) -> str:
    """The table; on a terminal it has colours and the terminal's width."""
    terminal = os.isatty(1)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("ID", "STATE", "VENDOR", "NAME", "WAITS FOR", "FOLDER"):
        table.add_column(column, no_wrap=column in ("ID", "STATE", "VENDOR"), overflow="fold")
    for one in found:
        facts, state = one.facts, one.facts["state"]
        living = "" if one.alive else " (ended)"
        waits = facts.get("needs") or facts.get("waitingFor") or ""
        cells = (one.id, Text(state + living, style=STYLES.get(state, "")), facts.get("vendor"), facts.get("name"))
        table.add_row(*map(_cell, (*cells, waits, _home(facts["cwd"]))))
    kept = StringIO()
    width = get_terminal_size().columns if terminal else PIPE_COLUMNS
    Console(file=kept, force_terminal=terminal, width=width, highlight=False, emoji=False).print(table)
    return "\n".join(line.rstrip() for line in kept.getvalue().splitlines()) + "\n"


def _cell(value: object) -> Text:
    return value if isinstance(value, Text) else Text(" ".join(printable(str(value or "")).split()))


def _home(folder: str) -> str:
    home = os.path.expanduser("~")
    return f"~{folder[len(home) :]}" if f"{folder}/".startswith(f"{home}/") else folder
