"""Implements `shim help`, which shows the topics in `shim/manual/`. A topic is a Markdown file that
is part of the package.
"""

import os
import re
import sys
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from shim.core.errors import format_spelling_suggestion
from shim.core.reading.values import as_list, escape_control_chars
from shim.story.terminal.console import THEME

MANUAL_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "manual")
SUFFIX = ".md"
MAX_COLUMNS = 120  # longer lines are hard to read
_LINK = re.compile(r"\[[^]]*\]\(([a-z-]+)\.md(?:#[a-z0-9_-]*)?\)")  # links to another topic
_SECTION_LINK = re.compile(r"\[([^]]*)\]\(#[a-z0-9_-]*\)")  # links within a topic


class ManualTopic(NamedTuple):
    """A file of the manual. `name` is the topic's name, and `summary` is the paragraph below its
    title.
    """

    name: str
    summary: str
    text: str


def load_manual_topics() -> list[ManualTopic]:
    """Load all topics, sorted by name."""
    topic_list = []
    for file in sorted(os.listdir(MANUAL_FOLDER)):
        if file.endswith(SUFFIX):
            with open(os.path.join(MANUAL_FOLDER, file), encoding="utf-8") as stream:
                text = stream.read()
            _title, summary, *_ = text.split("\n\n")
            topic_list.append(
                ManualTopic(file.removesuffix(SUFFIX), " ".join(summary.split()), text)
            )
    return topic_list


def list_topic_names() -> list[str]:
    """Return the names of all topics, for shell completion."""
    return [topic.name for topic in load_manual_topics()]


def show_help(
    context: typer.Context,
    name_parts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC",
            help="The topic to read, or a command.",
            autocompletion=list_topic_names,
        ),
    ] = None,
) -> None:
    """Show a topic of the manual, or the help of a command.

    Without a name it lists the topics. A terminal gets formatted text; a pipe or a file gets the
    Markdown source.

    Example: shim help add-a-vendor
    """
    all_topics = load_manual_topics()
    console = Console(highlight=False, theme=THEME)
    query = " ".join(as_list(name_parts))
    topic = next(
        (topic for topic in all_topics if topic.name == query.replace(" ", "-").lower()), None
    )
    if topic is not None:
        _print_topic(console, topic)
    elif not query:
        _print_topics(console, all_topics)
    elif (text := _find_command_help(context, as_list(name_parts))) is not None:
        sys.stdout.write(text + "\n")
    else:
        names = [topic.name for topic in all_topics]
        raise typer.BadParameter(
            f"unknown topic or command {escape_control_chars(query[:40])!r}"
            f"{format_spelling_suggestion(query, names)}"
            f"\nhint: the topics are {', '.join(names)}"
        )


def _find_command_help(context: typer.Context, command_path: list[str]) -> str | None:
    """Return the output of `shim ARGS --help`, or None if the command does not exist."""
    command = context.find_root().command
    command_context = context.find_root()
    for name in command_path:
        commands = getattr(command, "commands", {})
        if name not in commands:
            return None
        command = commands[name]
        command_context = typer.Context(command, info_name=name, parent=command_context)
    return command.get_help(command_context)


def _print_topics(console: Console, all_topics: list[ManualTopic]) -> None:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    for topic in all_topics:
        grid.add_row(topic.name, topic.summary)
    console.print("Topics (read one with `shim help TOPIC`):\n", markup=False)
    console.print(grid, markup=False)
    console.print("\nFor commands, see `shim --help` and `shim COMMAND --help`.", markup=False)


def _print_topic(console: Console, topic: ManualTopic) -> None:
    if not console.is_terminal:
        sys.stdout.write(topic.text)
        return
    from shim.story.terminal.markdown import SafeMarkdown

    text = _LINK.sub(lambda match: f"`shim help {match[1]}`", topic.text)
    text = _SECTION_LINK.sub(r"\1", text)
    console.print(SafeMarkdown(text), width=min(console.width, MAX_COLUMNS))
