"""What a call does, in the words that rules are about: which files it reads and changes, what it
runs.
"""

import posixpath
from collections.abc import Mapping
from itertools import islice

from shim.core.policy.commands import (
    UNKNOWN_COMMAND,
    can_change_files,
    can_read_files,
    expand_command,
    get_command_name,
    has_other_folder,
    list_operands,
)
from shim.core.policy.place import Workspace
from shim.core.policy.shell import ShellCommand, ShellLine, ShellRedirect, parse_shell_line
from shim.core.reading.typed import Any, NamedTuple

BASH_TOOL = "Bash"
# whoever denies the first denies the other, in the real one too
SHELL_TOOLS = frozenset((BASH_TOOL, "Monitor"))
# Claude's tools that look at files and that change them, with the argument that names the file.
READ_TOOLS = {
    "Read": "file_path",
    "Grep": "path",
    "Glob": "path",
    "LS": "path",
    "NotebookRead": "notebook_path",
}
CHANGE_TOOLS = {
    "Edit": "file_path",
    "MultiEdit": "file_path",
    "Write": "file_path",
    "Delete": "file_path",
} | {"NotebookEdit": "notebook_path"}
SEARCH_TOOLS = frozenset(
    ("Grep", "Glob", "LS")
)  # without a path they begin in the working directory
CONTENT_SEARCH_TOOL = "Grep"  # it shows what stands in every file below its path
MAX_LINE_PARTS = 2000  # commands and redirections of a line; one that may do more is not told apart
MAX_FOLDERS = 16  # that a line's `cd` may lead to; where there are more, a relative path may be any


class FileAccess(NamedTuple):
    """A file that a call reads or `changes`; `path` is absolute, None where it cannot be told.

    `below`: all that is in this folder is shown too.
    """

    is_change: bool
    path: str | None
    includes_content: bool = False


class CallEffects(NamedTuple):
    """All that a call does.

    acts      its files
    line      a shell's line, taken apart; None for another tool
    commands  all commands of the line, those that run behind others included
    """

    file_accesses: tuple[FileAccess, ...]
    line: ShellLine | None = None
    commands: tuple[ShellCommand, ...] = ()


def analyze_call(tool: str, arguments: Mapping[str, Any], place: Workspace) -> CallEffects:
    """What a call of one of Claude's tools does."""
    if tool in SHELL_TOOLS:
        return _analyze_shell_call(arguments, place)
    if tool in CHANGE_TOOLS:
        return CallEffects(
            (FileAccess(True, _resolve_path(arguments.get(CHANGE_TOOLS[tool]), place)),)
        )
    if tool in READ_TOOLS:
        said = arguments.get(READ_TOOLS[tool])
        if not said and tool in SEARCH_TOOLS:
            said = "."
        if tool == "Glob" and isinstance(said, str):
            said = posixpath.join(said, str(arguments.get("pattern", "")).partition("*")[0])
        return CallEffects(
            (
                FileAccess(
                    False, _resolve_path(said, place), includes_content=tool == CONTENT_SEARCH_TOOL
                ),
            )
        )
    return CallEffects(())


def _resolve_path(said: object, place: Workspace) -> str | None:
    return place.resolve_file(said) if isinstance(said, str) and said and "\0" not in said else None


def _analyze_shell_call(arguments: Mapping[str, Any], place: Workspace) -> CallEffects:
    said, folder = arguments.get("command"), arguments.get("directory")
    if not isinstance(said, str):
        return CallEffects((), ShellLine((), is_complete=False, is_plain=False))
    line = parse_shell_line(said)
    start = place.make_absolute(folder) if isinstance(folder, str) and folder else place.cwd
    if start != place.cwd:
        # what is harmless here, or was allowed here, need not be so elsewhere
        line = line._replace(is_plain=False)
    found = (
        part
        for said_part in line.parts
        for part in (
            expand_command(said_part) if isinstance(said_part, ShellCommand) else (said_part,)
        )
    )
    parts = list(islice(found, MAX_LINE_PARTS))
    if len(parts) == MAX_LINE_PARTS:
        parts.append(UNKNOWN_COMMAND)
    commands = tuple(part for part in parts if isinstance(part, ShellCommand))
    folders = _list_folders(commands, start, place)
    acts: list[FileAccess] = []
    for part in parts:
        if isinstance(part, ShellRedirect):
            acts += _build_accesses(part.path, part.is_write, folders, place)
            continue
        if get_command_name(part) is None:
            acts += [FileAccess(False, None), FileAccess(True, None)]
        for changed, does in ((False, can_read_files(part)), (True, can_change_files(part))):
            for operand in list_operands(part) if does else ():
                acts += _build_accesses(operand, changed, folders, place)
    return CallEffects(tuple(acts), line, commands)


def _list_folders(commands: tuple[ShellCommand, ...], start: str, place: Workspace) -> set[str]:
    """The folders that a command of a line may run in, empty where that may be any.

    A `cd` may fail, stand in a branch that is not taken, or run before what stands in front of it:
    in a loop, a function, a trap.
    """
    folders = {start}
    moves = [
        command
        for command in commands
        if command.words and command.words[0] in ("cd", "pushd", "popd")
    ]
    if any(map(has_other_folder, commands)):
        return set()
    for _ in moves:
        for move in moves:
            target = move.words[1] if len(move.words) == 2 and move.words[0] == "cd" else None
            if target is None or target.startswith("-") or len(folders) > MAX_FOLDERS:
                return set()
            folders |= {place.make_absolute(target, folder) for folder in folders}
    return folders if len(folders) <= MAX_FOLDERS else set()


def _build_accesses(
    said: str | None, changed: bool, folders: set[str], place: Workspace
) -> list[FileAccess]:
    if said is None or (not folders and not posixpath.isabs(said)):
        return [FileAccess(changed, None)]
    return [
        FileAccess(changed, place.resolve_file(said, folder)) for folder in folders or {place.cwd}
    ]
