"""The capability table of `shim vendors`, for a person: three narrow tables, because a terminal has 80 columns."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from shim.commands.doctor.capabilities import ASKS_NOBODY
from shim.core.policy.policy import MODES
from shim.core.reading.account import printable
from shim.story.terminal.console import table_console

WIDE_COLUMNS = 100  # of a terminal with room between the columns
NAME_COLUMNS = 14  # of a vendor's name in a terminal: the longest bundled one has 8, a user's may have 32
# Ability → the head of its column.
HEADS = {
    "partial messages": "parts",
    "resume": "resume",
    "fork": "fork",
    "permission requests": "asks",
    "tool limits": "tools",
    "turn limit": "turns",
    "model": "model",
    "directories": "dirs",
    "system prompt": "system",
    "MCP servers": "MCP",
    "JSON schema": "JSON",
    "budget": "cost",
}
LEGEND = (
    "✓ by itself  ~ with our help  – not at all, or refused; all can be interrupted",
    "parts: partial messages; ~ whole blocks · asks: you, before a tool runs",
    "tools, turns: limits; ~ the shim stops the turn · dirs: --add-dir",
    "system: --system-prompt; ~ put before the prompt · cost: --max-budget-usd",
    "JSON: --json-schema; ~ the prompt asks for it, and the answer is checked",
)
TRIED = {"older": "older than tested", "newer": "newer than tested"}


def draw_vendors(rows: Sequence[dict[str, Any]]) -> None:
    """Print the program of each vendor, its abilities, its permission modes, and the vendors that never ask."""
    console = table_console()

    def show(table: Table) -> None:
        console.print(table)
        console.print()

    gap = 2 if console.width >= WIDE_COLUMNS else 1
    show(_found(rows, gap))
    show(_abilities(rows, gap))
    for line in LEGEND:
        console.print(Text(line, style="dim"), soft_wrap=True)
    console.print()
    show(_modes(rows, gap))
    for row in rows:
        if row["unattended"]:
            console.print(Text(printable(ASKS_NOBODY.format(name=row["name"]))), soft_wrap=True)
        if row["note"]:
            console.print(Text(printable(f"{row['name']}: {row['note']}")), soft_wrap=True)


def _table(gap: int, *heads: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
    table.add_column(heads[0], no_wrap=True, overflow="ellipsis", max_width=NAME_COLUMNS)
    for head in heads[1:]:
        table.add_column(head, no_wrap=True)
    return table


def _found(rows: Sequence[dict[str, Any]], gap: int) -> Table:
    """Where each vendor is and how it is driven. A long path is folded."""
    table = _table(gap, "vendor", "version")
    table.add_column("found", overflow="fold")
    table.add_column("a process serves", no_wrap=True)
    for row in rows:
        version = row["version"] or ("" if row["program"] in (None, "bundled") else "unknown")
        tried = TRIED.get(row["place"], "")
        found = Text(printable(row["program"] or "not found"), style="" if row["program"] else "dim")
        if tried:
            found.append(f" ({tried}: {row['tested']})", style="yellow")
        driven = row["driven"].removeprefix("one process ")
        table.add_row(_text(row["name"]), _text(version), found, _text(driven))
    return table


def _abilities(rows: Sequence[dict[str, Any]], gap: int) -> Table:
    table = _table(gap, "vendor", *HEADS.values())
    for row in rows:
        marks = [_mark(name in row["can"], name in row["emulated"]) for name in HEADS]
        table.add_row(_text(row["name"]), *marks)
    return table


def _modes(rows: Sequence[dict[str, Any]], gap: int) -> Table:
    table = _table(gap, "vendor", *MODES)
    for row in rows:
        table.add_row(_text(row["name"]), *(_mark(mode in row["modes"]) for mode in MODES))
    return table


def _mark(itself: bool, helped: bool = False) -> Text:
    return Text("✓", style="green") if itself else Text("~", style="yellow") if helped else Text("–", style="dim")


def _text(text: str) -> Text:
    return Text(printable(text))
