"""Lists removed commands and options with their replacements."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class RemovedCommandOrOptionNotice(NamedTuple):
    """The error message and the hint for a removed command or option."""

    text: str  # a sentence that names the removed command or option
    hint: str  # the replacement


# The keys are command lines as typed: `shim COMMAND` for a removed command, and
# `shim COMMAND --option` for a removed option.
REMOVED: Mapping[str, RemovedCommandOrOptionNotice] = {
    "shim doctor --casts": RemovedCommandOrOptionNotice(
        "`--casts` was removed: `shim doctor` no longer searches recordings for new events "
        "and fields",
        "`shim show CAST` counts the events of a recording that were not understood",
    ),
}


def reject_removed_options(context: Any, args: Sequence[str]) -> None:
    """Raise a usage error if a command's arguments contain a removed option."""
    for arg in args:
        if arg == "--":
            return
        reject_removed_command(context, arg.partition("=")[0])


def reject_removed_command(context: Any, name: str) -> None:
    """Raise a usage error if the subcommand `name` of the context's command was removed."""
    notice = REMOVED.get(f"{context.command_path} {name}")
    # shell completion does not report errors
    if notice is not None and not context.resilient_parsing:
        context.fail(f"{notice.text}\nhint: {notice.hint}")
