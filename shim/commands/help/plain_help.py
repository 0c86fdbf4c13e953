"""Formats a command's help in the usual notation, with PROMPT and [FILE] in the usage line, and
TEXT and NUMBER for option values.
"""

import re
from typing import Any

from typer.core import TyperCommand, TyperGroup

from shim.commands.help.removed import reject_removed_command, reject_removed_options

# Since version 0.29, Typer writes {prompt} for a required argument in usage lines, and `prompt <str>`
# and `--wait <float range>` in lists.
_ARGUMENT_NAME = re.compile(r"\{(\w+)\}|\[(\w+)\](?=\.\.\.| |$)", re.MULTILINE)
_VALUE_TYPE = re.compile(r" <(?:list\[)?(?:str|int|float)(?: range)?\]?>")
_NUMBER_TYPES = ("int", "float")


def format_usage_line(text: str) -> str:
    """Return a usage line with argument names in capital letters."""
    return _ARGUMENT_NAME.sub(
        lambda match: match[1].upper() if match[1] else f"[{match[2].upper()}]", text
    )


def format_help_page(text: str) -> str:
    """Return a help page with plain value names. The columns stay aligned."""
    usage, gap, body = text.partition("\n\n")
    return format_usage_line(usage) + gap + "\n".join(map(_format_row, body.split("\n")))


def _format_row(line: str) -> str:
    match = _VALUE_TYPE.search(line)
    if match is None:
        return line
    name = line[: match.start()]
    if not line.lstrip().startswith("-"):
        name = name.upper()
        value_name = ""
    elif any(type_name in match[0] for type_name in _NUMBER_TYPES):
        value_name = "NUMBER"
    else:
        value_name = "TEXT"
    return f"{name} {value_name:{len(match[0]) - 1}}{line[match.end() :]}"


class SimplifiedHelpCommand(TyperCommand):
    """A command with a plain help page."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. For a removed option, raise a usage error that names its
        replacement.
        """
        reject_removed_options(ctx, args)
        return super().parse_args(ctx, args)

    def get_usage(self, ctx: Any) -> str:
        return format_usage_line(super().get_usage(ctx))

    def get_help(self, ctx: Any) -> str:
        return format_help_page(super().get_help(ctx))


class SimplifiedHelpGroup(TyperGroup):
    """A command group with a plain help page."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by its name. For a removed command, raise a usage error that names its
        replacement.
        """
        reject_removed_command(ctx, cmd_name)
        return super().get_command(ctx, cmd_name)

    def get_usage(self, ctx: Any) -> str:
        return format_usage_line(super().get_usage(ctx))

    def get_help(self, ctx: Any) -> str:
        return format_help_page(super().get_help(ctx))
