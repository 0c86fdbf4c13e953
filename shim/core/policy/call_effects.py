"""Determines the effects of a tool call: the files that it reads and changes, and the commands that
it runs.
"""

import posixpath
from collections.abc import Iterator, Mapping
from itertools import islice

from shim.core.policy.bash import ShellCommand, ShellLine, ShellRedirect, parse_shell_line
from shim.core.policy.bash_commands import (
    UNKNOWN_COMMAND,
    changes_named_files,
    expand_line,
    list_path_operands,
    uses_other_working_directory,
)
from shim.core.policy.policy import Workspace
from shim.core.reading.typed import Any, NamedTuple

BASH_TOOL = "Bash"
# A rule that denies Bash also denies all of these tools, as in the real claude.
SHELL_TOOLS = frozenset((BASH_TOOL, "Monitor"))
# Claude's tools that read or change files, each with the name of its path argument.
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
SEARCH_TOOLS = frozenset(("Grep", "Glob", "LS"))  # they search the working directory by default
CONTENT_SEARCH_TOOL = "Grep"  # Grep shows the content of every file below its path
# If a shell line has more commands and redirections, any effect is assumed.
MAX_LINE_PARTS = 2000
# The limit for folders that `cd` may reach in a shell line. If there are more folders, a relative
# path may stand for any file.
MAX_FOLDERS = 16


class FileAccess(NamedTuple):
    """A file that a tool call reads or changes."""

    is_change: bool
    path: str | None  # the absolute path, or None if it may be any file
    includes_content: bool = False  # the call also shows files inside the folder


class ToolCallEffects(NamedTuple):
    """All effects of a tool call."""

    file_accesses: tuple[FileAccess, ...]
    line: ShellLine | None = None  # the parsed shell line; None if the tool is not a shell
    commands: tuple[ShellCommand, ...] = ()  # the line's commands, and the commands that these run


def analyze_tool_call(
    tool: str, tool_input: Mapping[str, Any], workspace: Workspace
) -> ToolCallEffects:
    """Return the effects of a call to one of Claude's tools."""
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
    if isinstance(path, str) and path and "\0" not in path:
        return workspace.resolve_file_path(path)
    return None


def _analyze_shell_call(tool_input: Mapping[str, Any], workspace: Workspace) -> ToolCallEffects:
    command_line = tool_input.get("command")
    if not isinstance(command_line, str):
        return ToolCallEffects((), ShellLine((), is_complete=False, is_plain=False))
    line = parse_shell_line(command_line)
    folder = tool_input.get("directory")
    start_folder = workspace.cwd
    if isinstance(folder, str) and folder:
        start_folder = workspace.make_path_absolute(folder)
    if start_folder != workspace.cwd:
        # A shell line that is allowed in the working directory may be unsafe in another folder.
        line = line._replace(is_plain=False)
    parts = list(islice(expand_line(line), MAX_LINE_PARTS))
    if len(parts) == MAX_LINE_PARTS:
        parts.append(UNKNOWN_COMMAND)
    commands = tuple(part for part in parts if isinstance(part, ShellCommand))
    folders = _list_folders(commands, start_folder, workspace)
    accesses = tuple(
        access
        for part in parts
        for is_change, path in _list_used_files(part)
        for access in _build_accesses(path, is_change, folders, workspace)
    )
    return ToolCallEffects(accesses, line, commands)


def _list_used_files(part: ShellCommand | ShellRedirect) -> Iterator[tuple[bool, str | None]]:
    """Yield each file that a command or redirection uses, as a pair: whether the file is changed,
    and the path as written in the shell line.
    """
    if isinstance(part, ShellRedirect):
        yield part.is_write, part.path
        return
    if part.name is None:
        yield from ((False, None), (True, None))
    if part.row.reads_files:
        yield from ((False, path) for path in list_path_operands(part))
    if changes_named_files(part):
        yield from ((True, path) for path in list_path_operands(part))


def _list_folders(
    commands: tuple[ShellCommand, ...], start_folder: str, workspace: Workspace
) -> set[str]:
    """Return the folders in which a command in a shell line may run. The set is empty if the folder
    may be any folder.

    A `cd` may fail or be skipped. In a loop, a function or a trap, `cd` may also run before
    commands that precede it in the text.
    """
    folders = {start_folder}
    moves = [command for command in commands if command.row.changes_directory]
    if any(map(uses_other_working_directory, commands)):
        return set()
    for _ in moves:
        for move in moves:
            target = None
            if len(move.words) == 2 and move.words[0] == "cd":
                target = move.words[1]
            if target is None or target.startswith("-") or len(folders) > MAX_FOLDERS:
                return set()
            folders |= {workspace.make_path_absolute(target, folder) for folder in folders}
    if len(folders) <= MAX_FOLDERS:
        return folders
    return set()


def _build_accesses(
    path: str | None, is_change: bool, folders: set[str], workspace: Workspace
) -> list[FileAccess]:
    if path is None or (not folders and not posixpath.isabs(path)):
        return [FileAccess(is_change, None)]
    return [
        FileAccess(is_change, workspace.resolve_file_path(path, folder))
        for folder in folders or {workspace.cwd}
    ]
