"""What a call does, in the words that rules are about: which files it reads and changes, what it
runs.
"""

import posixpath
from collections.abc import Mapping
from itertools import islice

from shim.core.policy.commands import UNKNOWN, behind, changes, elsewhere, name_of, operands, reads
from shim.core.policy.place import Place
from shim.core.policy.shell import Command, Line, Redirect, take_apart
from shim.core.reading.typed import Any, NamedTuple

SHELL = "Bash"
# whoever denies the first denies the other, in the real one too
SHELL_TOOLS = frozenset((SHELL, "Monitor"))
# Claude's tools that look at files and that change them, with the argument that names the file.
READERS = {
    "Read": "file_path",
    "Grep": "path",
    "Glob": "path",
    "LS": "path",
    "NotebookRead": "notebook_path",
}
CHANGERS = {
    "Edit": "file_path",
    "MultiEdit": "file_path",
    "Write": "file_path",
    "Delete": "file_path",
} | {"NotebookEdit": "notebook_path"}
SEARCHES = frozenset(("Grep", "Glob", "LS"))  # without a path they begin in the working directory
SHOWS_BELOW = "Grep"  # it shows what stands in every file below its path
PARTS = 2000  # commands and redirections of a line; one that may do more is not told apart
FOLDERS = 16  # that a line's `cd` may lead to; where there are more, a relative path may be any


class Act(NamedTuple):
    """A file that a call reads or `changes`; `path` is absolute, None where it cannot be told.

    `below`: all that is in this folder is shown too.
    """

    changes: bool
    path: str | None
    below: bool = False


class Doing(NamedTuple):
    """All that a call does.

    acts      its files
    line      a shell's line, taken apart; None for another tool
    commands  all commands of the line, those that run behind others included
    """

    acts: tuple[Act, ...]
    line: Line | None = None
    commands: tuple[Command, ...] = ()


def doing(tool: str, arguments: Mapping[str, Any], place: Place) -> Doing:
    """What a call of one of Claude's tools does."""
    if tool in SHELL_TOOLS:
        return _line(arguments, place)
    if tool in CHANGERS:
        return Doing((Act(True, _path(arguments.get(CHANGERS[tool]), place)),))
    if tool in READERS:
        said = arguments.get(READERS[tool])
        if not said and tool in SEARCHES:
            said = "."
        if tool == "Glob" and isinstance(said, str):
            said = posixpath.join(said, str(arguments.get("pattern", "")).partition("*")[0])
        return Doing((Act(False, _path(said, place), below=tool == SHOWS_BELOW),))
    return Doing(())


def _path(said: object, place: Place) -> str | None:
    return place.reached(said) if isinstance(said, str) and said and "\0" not in said else None


def _line(arguments: Mapping[str, Any], place: Place) -> Doing:
    said, folder = arguments.get("command"), arguments.get("directory")
    if not isinstance(said, str):
        return Doing((), Line((), whole=False, plain=False))
    line = take_apart(said)
    start = place.absolute(folder) if isinstance(folder, str) and folder else place.cwd
    if start != place.cwd:
        # what is harmless here, or was allowed here, need not be so elsewhere
        line = line._replace(plain=False)
    found = (
        part
        for said_part in line.parts
        for part in (behind(said_part) if isinstance(said_part, Command) else (said_part,))
    )
    parts = list(islice(found, PARTS))
    if len(parts) == PARTS:
        parts.append(UNKNOWN)
    commands = tuple(part for part in parts if isinstance(part, Command))
    folders = _folders(commands, start, place)
    acts: list[Act] = []
    for part in parts:
        if isinstance(part, Redirect):
            acts += _acts(part.path, part.writes, folders, place)
            continue
        if name_of(part) is None:
            acts += [Act(False, None), Act(True, None)]
        for changed, does in ((False, reads(part)), (True, changes(part))):
            for operand in operands(part) if does else ():
                acts += _acts(operand, changed, folders, place)
    return Doing(tuple(acts), line, commands)


def _folders(commands: tuple[Command, ...], start: str, place: Place) -> set[str]:
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
    if any(map(elsewhere, commands)):
        return set()
    for _ in moves:
        for move in moves:
            target = move.words[1] if len(move.words) == 2 and move.words[0] == "cd" else None
            if target is None or target.startswith("-") or len(folders) > FOLDERS:
                return set()
            folders |= {place.absolute(target, folder) for folder in folders}
    return folders if len(folders) <= FOLDERS else set()


def _acts(said: str | None, changed: bool, folders: set[str], place: Place) -> list[Act]:
    if said is None or (not folders and not posixpath.isabs(said)):
        return [Act(changed, None)]
    return [Act(changed, place.reached(said, folder)) for folder in folders or {place.cwd}]
