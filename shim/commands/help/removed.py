"""Commands and options that were removed, and what to use now."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class RemovedCommandOrOptionNotice(NamedTuple):
    """Two texts for a person who types a removed command or option."""

    text: str  # one sentence: what was removed
    hint: str  # what to use now


# The keys are typed command lines: `shim COMMAND` for a command, `shim COMMAND --option` for an
# option.
REMOVED: Mapping[str, RemovedCommandOrOptionNotice] = {
    "shim doctor --casts": RemovedCommandOrOptionNotice(
        "`--casts` was removed: `shim doctor` no longer searches recordings for new events "
        "and fields",
        "`shim show CAST` counts the events of a recording that were not understood",
    ),
}


def reject_removed_options(context: Any, args: Sequence[str]) -> None:
    """Raise a usage error if the arguments of a command have a removed option."""
    for arg in args:
        if arg == "--":
            return
        reject_removed_command(context, arg.partition("=")[0])


def reject_removed_command(context: Any, name: str) -> None:
    """Raise a usage error if `name`, typed after the command of the context, was removed."""
    notice = REMOVED.get(f"{context.command_path} {name}")
    # a shell's completion reports no errors
    if notice is not None and not context.resilient_parsing:
        context.fail(f"{notice.text}\nhint: {notice.hint}")
