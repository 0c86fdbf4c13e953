"""`shim cast …`: what is done with recordings that are kept. What a command needs is imported when it is run."""

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from shim.account import printable

app = typer.Typer(
    name="cast",
    help="Recordings: check them, blank more, cut fixtures out.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def verify(
    casts: Annotated[list[str], typer.Argument(help="Casts, and folders of casts.", metavar="CAST")],
    as_json: Annotated[bool, typer.Option("--json", help="For a program.")] = False,
) -> None:
    """Prove that casts are as they were written, or say between which lines they are not.

    Exit 1 when one is damaged or cut off. It proves damage, not who wrote the file.

    Example: shim cast verify ~/casts
    """
    from shim.cast_files import cast_paths, verify_cast

    console = Console(highlight=False)
    rows: list[dict[str, Any]] = []
    damaged = False
    for path in cast_paths(casts):
        row = verify_cast(path)
        damaged = damaged or row["state"] != "intact"
        if as_json:
            rows.append(row)
            continue
        _say(console, f"{path}: {row['state']}, {row['lines']} lines")
        for found in row["findings"]:
            _say(console, f"  {_where(found['first'], found['last'])}: {found['severity']}: {found['text']}")
        if row["left_out"]:
            _say(console, f"  and {row['left_out']} more")
    if as_json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
    if damaged:
        raise typer.Exit(1)


def _where(first: int, last: int) -> str:
    return f"line {first}" if first == last else f"lines {first} to {last}"


def _say(console: Console, text: str) -> None:
    """One line, with nothing in it that a terminal obeys or rich takes for markup."""
    console.print(Text(printable(text).replace("\n", "\\n")), soft_wrap=True)
