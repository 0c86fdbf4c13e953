"""Implements `shim vendors`, which prints the vendors on this machine as a table of 80 columns.
With `--all`, it also prints the abilities of every vendor.
"""

import os
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from shim.commands.doctor.vendor_rows import (
    build_vendor_table_rows,
    describe_missing_permission_prompts,
)
from shim.core.policy.policy import PERMISSION_MODES
from shim.core.reading.values import escape_control_chars
from shim.story.terminal.console import JsonOption, open_table_console, print_json, show_status

# On a narrower terminal, table columns are separated by one space instead of two.
MIN_WIDE_COLUMNS = 100
# The width of the name column in a terminal.
# The longest bundled vendor name has 8 characters; names of custom vendors may have 32.
MAX_NAME_COLUMNS = 14
# Ability → column heading.
ABILITY_HEADINGS = {
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
    "✓ native  ~ done by the shim  – unsupported or refused. All turns can be interrupted.",
    "parts: partial messages (with ~, only complete blocks) · asks: prompts before a tool runs",
    "tools, turns: limits (with ~, the shim stops the turn) · dirs: --add-dir",
    "system: --system-prompt (with ~, it precedes the prompt) · cost: --max-budget-usd",
    "JSON: --json-schema (with ~, the shim asks for JSON in the prompt and validates the answer)",
)
TESTED_LABELS = {"tested": "yes", "older": "older", "newer": "newer", "unknown": "?"}
ASKING_LEGEND = (
    "asks: yes, before a tool runs · interactive: in conversations, not one-shot",
    "no: calls that need a prompt are denied · never: every tool is auto-approved",
)


def list_vendors(
    every: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Show every vendor with its install command, features and permission modes.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the vendors installed on this machine.

    With --all or --json, vendors that are not installed are listed too, with what each can do.

    Example: shim vendors --all
    """
    with show_status("checking versions …"):
        rows = build_vendor_table_rows(os.environ, os.getcwd())
    if as_json:
        print_json(rows)
    else:
        print_vendor_table(rows, shows_all=every)


def print_vendor_table(rows: Sequence[dict[str, Any]], *, shows_all: bool) -> None:
    """Print the installed vendors, and warnings about vendors that never ask for permission. If
    `shows_all` is set, print all vendors with their abilities and permission modes.
    """
    console = open_table_console()

    def print_text(text: str, style: str = "") -> None:
        console.print(
            Text(escape_control_chars(text), style=style), soft_wrap=not console.is_terminal
        )

    def print_table(table: Table) -> None:
        console.print(table)
        console.print()

    gap = 1
    if console.width >= MIN_WIDE_COLUMNS:
        gap = 2
    rows = sorted(rows, key=lambda row: (row["program"] is None, row["program"] == "bundled"))
    installed_rows = [row for row in rows if row["program"] is not None]
    print_table(_build_vendor_table(rows if shows_all else installed_rows, gap))
    for line in ASKING_LEGEND:
        print_text(line, "dim")
    if shows_all:
        console.print()
        print_table(_build_ability_table(rows, gap))
        for line in LEGEND:
            print_text(line, "dim")
        console.print()
        print_table(_build_mode_table(rows, gap))
    elif len(installed_rows) < len(rows):
        absent_names = ", ".join(row["name"] for row in rows[len(installed_rows) :])
        print_text(f"not installed: {absent_names}", "dim")
        print_text("`shim vendors --all` shows their install commands and features", "dim")
    for row in rows if shows_all else installed_rows:
        if row["distrust"]:
            print_text(f"{row['distrust']}; the program may run tools without asking")
        elif row["unattended"]:
            print_text(
                describe_missing_permission_prompts(
                    row["name"], asks_in_conversation=row["talks"], is_unsure=row["unsure"]
                )
            )
        if row["lacks"]:
            print_text(
                f"{row['name']}: this version lacks {row['lacks']}, so it runs in one-shot mode "
                "and never asks for permission"
            )
        if row["note"]:
            print_text(f"{row['name']}: {row['note']}")


def _create_table(gap: int, *headings: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
    table.add_column(headings[0], no_wrap=True, overflow="ellipsis", max_width=MAX_NAME_COLUMNS)
    for heading in headings[1:]:
        table.add_column(heading, no_wrap=True)
    return table


def _build_vendor_table(rows: Sequence[dict[str, Any]], gap: int) -> Table:
    """Build the vendor table. Each row has the version, whether the version was tested, whether the
    vendor asks for permission, and the program or the install command.
    """
    table = _create_table(gap, "vendor", "version", "tested", "asks")
    table.add_column("program", overflow="fold")
    for row in rows:
        is_external = row["program"] not in (None, "bundled")
        version = ""
        if is_external:
            version = row["version"] or "unknown"
        style = "yellow"
        if row["place"] == "tested":
            style = ""
        tested_cell = Text(
            TESTED_LABELS[row["place"]] if is_external else "",
            style=style,
        )
        if row["talks"]:
            asking_label = "interactive"
        elif row["unattended"]:
            asking_label = "never"
        elif "permission requests" in row["can"]:
            asking_label = "yes"
        else:
            asking_label = "no"
        style = "dim"
        if row["program"]:
            style = ""
        program_cell = Text(
            escape_control_chars(row["program"] or row["install"] or "not found"),
            style=style,
        )
        table.add_row(
            _format_text(row["name"]),
            _format_text(version),
            tested_cell,
            _format_text(asking_label),
            program_cell,
        )
    return table


def _build_ability_table(rows: Sequence[dict[str, Any]], gap: int) -> Table:
    table = _create_table(gap, "vendor", *ABILITY_HEADINGS.values())
    for row in rows:
        cells = [
            _format_support(name in row["can"], name in row["emulated"])
            for name in ABILITY_HEADINGS
        ]
        table.add_row(_format_text(row["name"]), *cells)
    return table


def _build_mode_table(rows: Sequence[dict[str, Any]], gap: int) -> Table:
    table = _create_table(gap, "vendor", *PERMISSION_MODES)
    for row in rows:
        table.add_row(
            _format_text(row["name"]),
            *(_format_support(mode in row["modes"]) for mode in PERMISSION_MODES),
        )
    return table


def _format_support(is_supported: bool, is_emulated: bool = False) -> Text:
    if is_supported:
        return Text("✓", style="green")
    if is_emulated:
        return Text("~", style="yellow")
    return Text("–", style="dim")


def _format_text(text: str) -> Text:
    return Text(escape_control_chars(text))
