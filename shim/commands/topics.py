"""`shim help`: the topics of `shim/manual/`, Markdown files that ship with the package."""

import os
import re
import sys
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from shim.core.reading.account import printable

FOLDER = os.path.join(os.path.dirname(os.path.dirname(__file__)), "manual")
SUFFIX = ".md"
WIDEST = 120  # columns of a line that is still easy to read
_LINK = re.compile(r"\[[^]]*\]\(([a-z-]+)\.md(?:#[a-z-]*)?\)")  # from one topic to another


class Topic(NamedTuple):
    """One file of the manual. `name` is what a person types, `about` is the paragraph below the title."""

    name: str
    about: str
    text: str


def topics() -> list[Topic]:
    """Every topic, sorted by name."""
    found = []
    for file in sorted(os.listdir(FOLDER)):
        if file.endswith(SUFFIX):
            with open(os.path.join(FOLDER, file), encoding="utf-8") as opened:
                text = opened.read()
            _title, about, *_ = text.split("\n\n")
            found.append(Topic(file.removesuffix(SUFFIX), " ".join(about.split()), text))
    return found


def show_help(
    context: typer.Context,
    words: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC]", help="The topic to read.")] = None,
) -> None:
    """Read a topic of the manual; without TOPIC, list the topics.

    A terminal gets the text drawn; a pipe or a file gets the Markdown as it is.

    Example: shim help add-a-vendor
    """
    found = topics()
    console = Console(highlight=False)
    asked = " ".join(words or ())
    topic = next((topic for topic in found if topic.name == asked.replace(" ", "-").lower()), None)
    if topic is not None:
        _draw(console, topic)
    elif not asked:
        _list(console, found)
    else:
        commands = getattr(context.find_root().command, "commands", {})
        hint = f"`shim {asked} --help` explains the command. " if asked in commands else ""
        names = ", ".join(topic.name for topic in found)
        text = f"there is no topic {printable(asked[:40])!r}. {hint}The topics are: {names}."
        raise typer.BadParameter(text, param_hint="TOPIC")


def _list(console: Console, found: list[Topic]) -> None:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    for topic in found:
        grid.add_row(topic.name, topic.about)
    console.print("Topics, each read with `shim help TOPIC`:\n", markup=False)
    console.print(grid, markup=False)
    console.print("\nCommands: `shim --help`, and `shim COMMAND --help` for one of them.", markup=False)


def _draw(console: Console, topic: Topic) -> None:
    if not console.is_terminal:
        sys.stdout.write(topic.text)
        return
    from shim.story.terminal.markdown import SafeMarkdown

    text = _LINK.sub(lambda link: f"`shim help {link[1]}`", topic.text)
    console.print(SafeMarkdown(text), width=min(console.width, WIDEST))
