"""Formats the list of commands in `shim --help`: in titled groups, each command with its full
summary.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from shim.commands.help.plain_help import SimplifiedHelpGroup
from shim.core.reading.values import as_str

# Title → command names. Each title is a task of the user.
COMMAND_GROUPS = {
    "Get started": ("install", "uninstall", "vendors", "doctor", "demo"),
    "Run an agent": ("run", "explain", "sessions", "bridge", "fleet"),
    "Read and use recordings": ("show", "replay", "export", "cast"),
    "Develop a vendor or a frontend": ("translate", "vendor", "conform"),
    "Documentation and completion": ("help", "completion"),
}
OTHERS_TITLE = "Commands"


class TitledCommandGroup(SimplifiedHelpGroup):
    """A command group that lists its commands under titles. Commands without a title come last."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands for `--help`."""
        command_names = self.list_commands(ctx)
        widest = max(map(len, command_names), default=0)
        for title, names in group_command_names(command_names):
            commands = [(f"{name:{widest}}", self.get_command(ctx, name)) for name in names]
            rows = [
                (name, format_help_summary(as_str(command.help)))
                for name, command in commands
                if command and not command.hidden
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def group_command_names(names: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Return the command names under each title, in the order of COMMAND_GROUPS."""
    remaining = list(names)
    for title, members in COMMAND_GROUPS.items():
        yield title, [name for name in members if name in remaining]
        remaining = [name for name in remaining if name not in members]
    yield OTHERS_TITLE, remaining


def format_help_summary(text: str) -> str:
    """Return the first paragraph of a help text as one line."""
    return " ".join(text.split("\n\n")[0].split())
