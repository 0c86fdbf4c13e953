"""Finds the commands that a shell command itself runs, and the paths in its arguments."""

from collections.abc import Iterator, Sequence

from shim.core.policy.bash import (
    MAX_SCRIPT_DEPTH,
    ShellCommand,
    ShellLine,
    ShellRedirect,
    parse_shell_line,
)
from shim.core.policy.command_table import SafeArguments, get_command_row, matches_pattern

# Matches sed scripts that neither run a command nor name a file. Such a script consists of
# addresses and of commands such as s, y, p, d, q and =.
_SED_TEXT = r"(?:[^\\\n{0}]|\\.)*"
_SED_ADDRESS = rf"(?:\d+|\$|/{_SED_TEXT.format('/')}/)"
_SED_SUBSTITUTION = "|".join(
    rf"[sy][{delimiter}]{_SED_TEXT.format(delimiter)}[{delimiter}]{_SED_TEXT.format(delimiter)}[{delimiter}][gpiIm0-9]*"
    for delimiter in "/|,#:@"
)
_SED_COMMAND = (
    rf"(?:{_SED_ADDRESS}(?:,[+~]?{_SED_ADDRESS})?)?[ !]*+(?:{_SED_SUBSTITUTION}|[pdqPDxhHgGnN=]?)"
)
# The quantifiers are possessive, so that a long script is matched in linear time.
_STREAM_SED_PATTERN = rf"{_SED_COMMAND}(?: *+[;\n] *+{_SED_COMMAND})*+"
_SED_OPTIONS_PATTERN = (
    r"-[nErsiuz]+|--(quiet|silent|regexp-extended|in-place|separate|null-data|posix|debug)"
)

UNKNOWN_COMMAND = ShellCommand("", (None,))  # a command that may have any effect


def expand_line(line: ShellLine, depth: int = 0) -> Iterator[ShellCommand | ShellRedirect]:
    """Yield the commands and redirections in a line of shell code. Also yield all commands that
    these commands may run.

    A deny or ask rule that matches one of these commands applies to the complete line.
    """
    for part in line.parts:
        if isinstance(part, ShellRedirect):
            yield part
        else:
            yield from _expand_command(part, depth)


def _expand_command(command: ShellCommand, depth: int) -> Iterator[ShellCommand | ShellRedirect]:
    yield from _expand_scripts(command, depth)
    if not command.row.runs_arguments:
        return
    stdin_arguments = (None,) if command.row.adds_stdin_arguments else ()
    # Any later argument may be the start of the inner command. So the options of the outer
    # command need not be parsed.
    for start in range(1, len(command.words)):
        words = command.words[start:] + stdin_arguments
        yield from _expand_scripts(ShellCommand(_join_words(words), words), depth)


def _expand_scripts(command: ShellCommand, depth: int) -> Iterator[ShellCommand | ShellRedirect]:
    """Yield a command, and the commands and redirections of the scripts in its arguments."""
    yield command
    if _has_unknown_effects(command):
        yield UNKNOWN_COMMAND
    if not command.row.runs_scripts:
        return
    words = command.words[1:]
    if None in words or depth >= MAX_SCRIPT_DEPTH or _can_read_stdin_script(words):
        yield UNKNOWN_COMMAND
    if depth >= MAX_SCRIPT_DEPTH:
        return
    for script in filter(None, (*words, _join_words(words))):
        line = parse_shell_line(script)
        if not line.is_complete:
            yield UNKNOWN_COMMAND
        yield from expand_line(line, depth + 1)


def _join_words(words: Sequence[str | None]) -> str:
    return " ".join(word or "" for word in words)


def _has_unknown_effects(command: ShellCommand) -> bool:
    """Return whether a command's effects depend on a language of its own, such as sed's script
    language.
    """
    if command.row.splits_argument:
        return _may_have_argument(command, ("-S", "--split"))
    if command.name == "sed":
        return not _is_stream_edit(command)
    return command.row.patches_files


def _may_have_argument(command: ShellCommand, prefixes: tuple[str, ...]) -> bool:
    """Return whether an argument starts with one of the prefixes. An argument whose value only the
    shell knows may start with any text.
    """
    arguments = command.words[1:]
    if None in arguments:
        return True
    return any(word.startswith(prefixes) for word in arguments if word)


def _is_stream_edit(command: ShellCommand) -> bool:
    """Return whether all scripts of a sed command only edit sed's output. Other sed scripts write
    files or run commands.
    """
    scripts: list[str] = []
    operand = ""
    words = list(command.words[1:])
    while words:
        word = words.pop(0)
        if word is None:
            return False
        if word in ("-e", "--expression"):
            script = words.pop(0) if words else None
            if script is None:
                return False
            scripts.append(script)
        elif word.startswith("-"):
            if not matches_pattern(_SED_OPTIONS_PATTERN, word):
                return False
        elif not operand:
            operand = word
    if not scripts:
        scripts = [operand]
    return all(matches_pattern(_STREAM_SED_PATTERN, script) for script in scripts)


def _can_read_stdin_script(words: Sequence[str | None]) -> bool:
    """Return whether a shell that is started with these arguments may read its script from stdin."""
    operands = [word for word in words if word and not word.startswith(("-", "+"))]
    if not operands:
        return True
    if "-s" in words:
        return True
    return operands[0].startswith(("/dev/", "/proc/"))


def uses_other_working_directory(command: ShellCommand) -> bool:
    """Return whether a command may run another command in a different folder, as `env -C` and
    `chroot` do.
    """
    row = command.row
    if row.changes_root:
        return True
    if not (row.runs_arguments or row.takes_directory):
        return False
    return _may_have_argument(command, ("-C", "-D", "--chdir", "--wd"))


def list_path_operands(command: ShellCommand) -> Iterator[str | None]:
    """Yield the arguments that may be paths, including those in `--option=PATH` and `of=PATH`.

    Yield None for an argument whose value only the shell knows.
    """
    arguments = command.words[1:]
    copies_files = command.row.copies_files
    for word in arguments:
        if word is None:
            yield None
        elif "=" in word:
            yield word.partition("=")[2]
        elif not word.startswith("-"):
            yield word
        elif "/" in word or (copies_files and not word.startswith("--") and "t" in word):
            # In arguments such as `-f/path` and `-tFOLDER`, only the command knows where the option
            # ends and the path begins.
            yield None
    if copies_files:  # a file keeps its name when it is copied into a folder
        operands = [word for word in arguments if word is None or not word.startswith("-")]
        for source in operands[:-1]:
            if source is None or operands[-1] is None:
                yield None
            else:
                yield f"{operands[-1]}/{source.rstrip('/').rpartition('/')[2]}"


def changes_named_files(command: ShellCommand) -> bool:
    """Return whether a command changes the files named in its arguments."""
    if command.row.changes_files:
        return True
    if not command.row.edits_in_place:
        return False
    return any(word.startswith(("-i", "--in-place")) for word in command.words if word)


def is_read_only(command: ShellCommand) -> bool:
    """Return whether a command has no effect except reading the files named in its arguments."""
    return _has_safe_arguments(command, command.row.read_only)


def is_safe_edit_command(command: ShellCommand) -> bool:
    """Return whether the permission mode acceptEdits runs a command without a prompt if its files
    are inside the workspace.
    """
    return _has_safe_arguments(command, command.row.edits)


def _has_safe_arguments(command: ShellCommand, safe_arguments: SafeArguments | None) -> bool:
    if safe_arguments is None or command.has_assignments or command.name != command.words[0]:
        return False
    arguments = [word for word in command.words[1:] if word is not None]
    if None in command.words:
        return False
    return safe_arguments.match(arguments)


def strip_command_wrappers(command: ShellCommand) -> ShellCommand | None:
    """Return a command without its wrappers, for matching with allow rules. A wrapper only runs the
    command that follows it.

    Return None if only the shell knows one of the command's words. Such a command is only allowed
    by a rule that allows every call of the tool.
    """
    words = command.words
    text = command.text
    if command.has_assignments or None in words or "\\" in text or "\n" in text:
        return None
    while words:
        row = get_command_row(words[0])
        if not (row.wraps_command or row.wraps_after_argument):
            break
        skip_count = 1 + row.wraps_after_argument
        if any(word.startswith("-") for word in words[: skip_count + 1] if word):
            return None
        words = words[skip_count:]
        if words:
            text = text.split(None, skip_count)[-1]
        else:
            text = ""
    return ShellCommand(text, words)
