"""What a call does, in the words that rules are about: which files it reads and changes, what it
runs.
"""

import posixpath
from collections.abc import Mapping
from itertools import islice

from shim.core.policy.bash import ShellCommand, ShellLine, ShellRedirect, parse_shell_line
from shim.core.policy.bash_commands import (
    UNKNOWN_COMMAND,
    can_change_files,
    can_read_files,
    expand_nested_commands,
    get_command_name,
    list_path_operands,
    uses_other_working_directory,
)
from shim.core.policy.policy import Workspace
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
# without a path they begin in the working directory
SEARCH_TOOLS = frozenset(("Grep", "Glob", "LS"))
CONTENT_SEARCH_TOOL = "Grep"  # it shows what stands in every file below its path
MAX_LINE_PARTS = 2000  # commands and redirections of a line; one that may do more is not told apart
MAX_FOLDERS = 16  # that a line's `cd` may lead to; where there are more, a relative path may be any


class FileAccess(NamedTuple):
    """A file that a call reads or `is_change`; `path` is absolute, None where it cannot be told.

    `includes_content`: all that is in this folder is shown too.
    """

    is_change: bool
    path: str | None
    includes_content: bool = False


class ToolCallEffects(NamedTuple):
    """All that a call does.

    file_accesses  its files
    line           a shell's line, taken apart; None for another tool
    commands       all commands of the line, those that run behind others included
    """

    file_accesses: tuple[FileAccess, ...]
    line: ShellLine | None = None
    commands: tuple[ShellCommand, ...] = ()


def analyze_tool_call(
    tool: str, tool_input: Mapping[str, Any], workspace: Workspace
) -> ToolCallEffects:
    """What a call of one of Claude's tools does."""
    if tool in SHELL_TOOLS:
        return _analyze_shell_call(tool_input, workspace)
    if tool in CHANGE_TOOLS:
        return ToolCallEffects(
            (FileAccess(True, _resolve_path(tool_input.get(CHANGE_TOOLS[tool]), workspace)),)
        )
    if tool in READ_TOOLS:
        path = tool_input.get(READ_TOOLS[tool])
        if not path and tool in SEARCH_TOOLS:
            path = "."
        if tool == "Glob" and isinstance(path, str):
            path = posixpath.join(path, str(tool_input.get("pattern", "")).partition("*")[0])
        return ToolCallEffects(
            (
                FileAccess(
                    False,
                    _resolve_path(path, workspace),
                    includes_content=tool == CONTENT_SEARCH_TOOL,
                ),
            )
        )
    return ToolCallEffects(())


def _resolve_path(path: object, workspace: Workspace) -> str | None:
    return (
        workspace.resolve_file_path(path)
        if isinstance(path, str) and path and "\0" not in path
        else None
    )


def _analyze_shell_call(tool_input: Mapping[str, Any], workspace: Workspace) -> ToolCallEffects:
    command_line, folder = tool_input.get("command"), tool_input.get("directory")
    if not isinstance(command_line, str):
        return ToolCallEffects((), ShellLine((), is_complete=False, is_plain=False))
    line = parse_shell_line(command_line)
    start_folder = (
        workspace.make_path_absolute(folder)
        if isinstance(folder, str) and folder
        else workspace.cwd
    )
    if start_folder != workspace.cwd:
        # what is harmless here, or was allowed here, need not be so elsewhere
        line = line._replace(is_plain=False)
    expanded = (
        part
        for line_part in line.parts
        for part in (
            expand_nested_commands(line_part)
            if isinstance(line_part, ShellCommand)
            else (line_part,)
        )
    )
    parts = list(islice(expanded, MAX_LINE_PARTS))
    if len(parts) == MAX_LINE_PARTS:
        parts.append(UNKNOWN_COMMAND)
    commands = tuple(part for part in parts if isinstance(part, ShellCommand))
    folders = _list_folders(commands, start_folder, workspace)
    accesses: list[FileAccess] = []
    for part in parts:
        if isinstance(part, ShellRedirect):
            accesses += _build_accesses(part.path, part.is_write, folders, workspace)
            continue
        if get_command_name(part) is None:
            accesses += [FileAccess(False, None), FileAccess(True, None)]
        for is_change, is_done in ((False, can_read_files(part)), (True, can_change_files(part))):
            for operand in list_path_operands(part) if is_done else ():
                accesses += _build_accesses(operand, is_change, folders, workspace)
    return ToolCallEffects(tuple(accesses), line, commands)


def _list_folders(
    commands: tuple[ShellCommand, ...], start_folder: str, workspace: Workspace
) -> set[str]:
    """The folders that a command of a line may run in, empty where that may be any.

    A `cd` may fail, stand in a branch that is not taken, or run before what stands in front of it:
    in a loop, a function, a trap.
    """
    folders = {start_folder}
    moves = [
        command
        for command in commands
        if command.words and command.words[0] in ("cd", "pushd", "popd")
    ]
    if any(map(uses_other_working_directory, commands)):
        return set()
    for _ in moves:
        for move in moves:
            target = move.words[1] if len(move.words) == 2 and move.words[0] == "cd" else None
            if target is None or target.startswith("-") or len(folders) > MAX_FOLDERS:
                return set()
            folders |= {workspace.make_path_absolute(target, folder) for folder in folders}
    return folders if len(folders) <= MAX_FOLDERS else set()


def _build_accesses(
    path: str | None, is_change: bool, folders: set[str], workspace: Workspace
) -> list[FileAccess]:
    if path is None or (not folders and not posixpath.isabs(path)):
        return [FileAccess(is_change, None)]
    return [
        FileAccess(is_change, workspace.resolve_file_path(path, folder))
        for folder in folders or {workspace.cwd}
    ]
