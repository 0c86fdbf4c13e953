"""Finds and reads the Markdown files that define Claude's commands and skills.

The user's files take precedence over the project's files. Within a project, files in the working
directory take precedence over files in the folders above it, up to the root of the repository.
"""

import os
from collections.abc import Iterator, Mapping

from shim.core.claude.argv.flags import Invocation
from shim.core.claude.command_files import (
    PROJECT_SOURCE,
    USER_SOURCE,
    CommandFile,
    CommandFiles,
    merge_command_files,
    parse_command_file,
)
from shim.core.reading.typed import NamedTuple
from shim.io.stderr import warn
from shim.state.claude_settings import (
    find_repository,
    list_setting_sources,
    resolve_claude_config_dir,
)
from shim.state.files import read_text_file

# The flags with which the real claude reads neither the user's files nor the project's files.
NO_FILES_FLAGS = frozenset(("--disable-slash-commands", "--bare", "--safe-mode"))
COMMANDS_FOLDER = "commands"
SKILLS_FOLDER = "skills"
SKILL_FILE = "SKILL.md"
SUFFIX = ".md"
# Limits for one folder of commands or skills. A prompt waits until all files have been read.
MAX_FILES = 500
MAX_FOLDERS = 500
MAX_FILE_BYTES = 256 * 1024  # larger texts do not fit into a model's context beside a conversation


class _ClaudeFolder(NamedTuple):
    """A `.claude` folder. Files outside `boundary` are not read; "" means no boundary."""

    path: str
    source: str
    boundary: str = ""


def load_command_files(
    invocation: Invocation, environment: Mapping[str, str], cwd: str
) -> CommandFiles:
    """Return the commands and skills of the user and of the project. A file that cannot be read is
    skipped with one line on stderr.
    """
    if not NO_FILES_FLAGS.isdisjoint(name for name, _ in invocation.other_flags):
        return ()
    skills: list[CommandFile] = []
    commands: list[CommandFile] = []
    for folder in _list_claude_folders(invocation, environment, cwd):
        skills += _load_skills(folder)
        for file in _load_commands(folder):
            target = skills if file.skill_folder else commands
            target.append(file)
    return merge_command_files(skills, commands)


def find_excluded_commands(
    invocation: Invocation, environment: Mapping[str, str], cwd: str
) -> tuple[str, str] | None:
    """Return the flag that excludes the commands and skills of the project, and a folder with some
    of them. Return None if the project has none, or if no flag excludes them.
    """
    flags = [name for name, _ in invocation.other_flags if name in NO_FILES_FLAGS]
    if PROJECT_SOURCE not in list_setting_sources(invocation):
        flags.append("--setting-sources")
    if not flags:
        return None
    every_source = invocation._replace(setting_sources=None)
    for folder in _list_claude_folders(every_source, environment, cwd):
        for name in (COMMANDS_FOLDER, SKILLS_FOLDER):
            path = os.path.join(folder.path, name)
            if folder.source == PROJECT_SOURCE and os.path.isdir(path):
                return flags[0], path
    return None


def _list_claude_folders(
    invocation: Invocation, environment: Mapping[str, str], cwd: str
) -> Iterator[_ClaudeFolder]:
    """Yield the folders `.claude` in order of precedence."""
    sources = list_setting_sources(invocation)
    user_folder = resolve_claude_config_dir(environment)
    if USER_SOURCE in sources:
        yield _ClaudeFolder(user_folder, USER_SOURCE)
    if PROJECT_SOURCE not in sources:
        return
    root = find_repository(cwd)
    boundary = os.path.realpath(root)
    folder = cwd
    while True:
        path = os.path.join(folder, ".claude")
        if path != user_folder:
            yield _ClaudeFolder(path, PROJECT_SOURCE, boundary)
        if folder in (root, os.path.dirname(folder)):
            return
        folder = os.path.dirname(folder)


def _load_skills(folder: _ClaudeFolder) -> Iterator[CommandFile]:
    """Yield the skills in a folder: the files `skills/NAME/SKILL.md`."""
    skills_path = os.path.join(folder.path, SKILLS_FOLDER)
    try:
        names = sorted(os.listdir(skills_path))
    except OSError:  # the usual case: there is no such folder
        return
    for name in names[:MAX_FILES]:
        skill_path = os.path.join(skills_path, name)
        text = _read_text(os.path.join(skill_path, SKILL_FILE), folder)
        if text is not None:
            yield parse_command_file(text, name, folder.source, skill_folder=skill_path)


def _load_commands(folder: _ClaudeFolder) -> Iterator[CommandFile]:
    """Yield the commands in a folder and its subfolders. A subfolder with a file SKILL.md is also a
    skill.
    """
    commands_path = os.path.join(folder.path, COMMANDS_FOLDER)
    for path in _list_command_paths(commands_path):
        text = _read_text(path, folder)
        if text is None:
            continue
        parent = os.path.dirname(path)
        if os.path.basename(path) == SKILL_FILE and parent != commands_path:
            name = _build_command_name(parent, commands_path)
            yield parse_command_file(text, name, folder.source, skill_folder=parent)
        else:
            name = _build_command_name(path.removesuffix(SUFFIX), commands_path)
            yield parse_command_file(text, name, folder.source)


def _list_command_paths(commands_path: str) -> list[str]:
    """Return the paths of the Markdown files in a folder, within the limits."""
    paths: list[str] = []
    for count, (parent, folders, names) in enumerate(os.walk(commands_path)):
        folders.sort()
        paths += [os.path.join(parent, name) for name in sorted(names) if name.endswith(SUFFIX)]
        if len(paths) >= MAX_FILES or count >= MAX_FOLDERS:
            break
    return paths[:MAX_FILES]


def _build_command_name(path: str, commands_path: str) -> str:
    """Return the name of a command. Its subfolders are separated by colons."""
    return os.path.relpath(path, commands_path).replace(os.sep, ":")


def _read_text(path: str, folder: _ClaudeFolder) -> str | None:
    """Return a file's text. Return None if the file does not exist or cannot be read.

    A link in a project must not lead out of the project, because a repository could otherwise pass
    the user's private files to the model.
    """
    if folder.boundary and not _is_inside(os.path.realpath(path), folder.boundary):
        warn(
            f"the command in {path} is skipped: the file is a link to a file outside the project\n"
        )
        return None
    try:
        return read_text_file(path, MAX_FILE_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        reason = str(error)
        if isinstance(error, OSError):
            reason = str(error.strerror)
        warn(f"the command in {path} is skipped: {reason}\n")
        return None


def _is_inside(path: str, folder: str) -> bool:
    return os.path.commonpath((path, folder)) == folder
