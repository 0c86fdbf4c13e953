"""Completes command lines of the drop-in `claude`.

The script that `shim completion` prints runs `python -m shim.commands.claude.completion SHELL
ARGS…`. It does not run `claude`, because the real claude would treat the arguments as a prompt. The
last argument is the incomplete one. Typer is not imported.
"""

import sys
from collections.abc import Callable, Sequence

from shim.commands.claude.claude_help import EXTRA_FLAG_TEXTS, FLAG_TEXTS, SUBCOMMAND_TEXTS
from shim.commands.completion.values import (
    Completion,
    complete_background_session,
    complete_session,
    complete_vendor,
)
from shim.core.claude.argv.flags import (
    FLAG_BY_FIELD,
    FLAG_BY_NAME,
    FLAG_CHOICES,
    SINGLE_VALUE,
    Flag,
)
from shim.core.claude.argv.models import CLAUDE_EFFORT_LEVELS
from shim.io.stderr import LOG_LEVELS

# Invocation field → values of its flag.
FIELD_CHOICES = {
    **FLAG_CHOICES,
    "permission_mode": ("default", *FLAG_CHOICES["permission_mode"]),
    "effort": CLAUDE_EFFORT_LEVELS,
    "setting_sources": ("user", "project", "local"),
    "shim_log": LOG_LEVELS,
}
# Subcommand → values of its first argument.
SUBCOMMAND_CHOICES = {
    "agents": ("--json", "--all", "--cwd"),
    "auth": ("status", "login", "logout"),
    "config": ("list",),
    "daemon": ("status", "logs", "stop"),
    "mcp": ("list",),
    "plugin": ("list",),
}
SESSION_SUBCOMMANDS = ("attach", "logs", "stop", "kill", "rm", "respawn")


def complete_claude_args(args: Sequence[str]) -> list[Completion]:
    """Return the completions of the last argument. If the list is empty, the shell completes file
    names.
    """
    *previous, incomplete = args
    return [
        completion
        for completion in _list_completions(previous, incomplete)
        if completion[0].startswith(incomplete)
    ]


def _list_completions(previous: Sequence[str], incomplete: str) -> list[Completion]:
    flag = None
    if previous:
        flag = FLAG_BY_NAME.get(previous[-1])
    if flag is not None and _takes_value(flag, incomplete):
        return _list_flag_values(flag, incomplete)
    if incomplete.startswith("-"):
        return _list_flags()
    if not previous:
        return list(SUBCOMMAND_TEXTS.items())
    if previous[0] in SESSION_SUBCOMMANDS and len(previous) == 1:
        return complete_background_session()
    if len(previous) == 1:
        return [(choice, "") for choice in SUBCOMMAND_CHOICES.get(previous[0], ())]
    return []


def _takes_value(flag: Flag, incomplete: str) -> bool:
    """Return whether the argument after a flag is the flag's value. The value of a flag with an
    optional value does not start with a dash.
    """
    if flag.arity == SINGLE_VALUE:
        return True
    if "<" in flag.spelling:
        return True
    return "[" in flag.spelling and not incomplete.startswith("-")


def _list_flag_values(flag: Flag, incomplete: str) -> list[Completion]:
    if flag.field == "shim_vendor":
        return complete_vendor(incomplete)
    if flag.field == "resume":
        return complete_session()
    return [(choice, "") for choice in FIELD_CHOICES.get(flag.field, ())]


def _list_flags() -> list[Completion]:
    """Return the flags that have an effect, as listed by `claude --help`."""
    flags = [
        (name, text) for field, text in FLAG_TEXTS.items() for name in FLAG_BY_FIELD[field].names
    ]
    return [*flags, *EXTRA_FLAG_TEXTS.items()]


def _format_for_bash(value: str, description: str) -> str:
    return value


def _format_for_zsh(value: str, description: str) -> str:
    escaped_value = value.replace("\\", "\\\\").replace(":", "\\:")
    if description:
        return f"{escaped_value}:{description}"
    return escaped_value


def _format_for_fish(value: str, description: str) -> str:
    return f"{value}\t{description}"


FORMATTERS: dict[str, Callable[[str, str], str]] = {
    "bash": _format_for_bash,
    "zsh": _format_for_zsh,
    "fish": _format_for_fish,
}


def main(argv: Sequence[str]) -> None:
    """Print the completions, one per line, in the format that the shell's script expects."""
    shell, *args = argv
    format_completion = FORMATTERS[shell]
    lines = [format_completion(*completion) for completion in complete_claude_args(args or [""])]
    sys.stdout.write("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main(sys.argv[1:])
