"""What commands of a shell do, as far as rules and modes ask: who runs another, who reads, who
changes files.

The rows for what needs no question are what the real claude was seen to run unasked
(permission-parity page); a command that is missing there is asked for, which is never wider.
"""

from collections.abc import Iterator, Sequence

from shim.core.policy.bash import MAX_SCRIPT_DEPTH, ShellCommand, ShellRedirect, parse_shell_line
from shim.core.policy.policy import split_into_word_set

# They run what their later words say. Every rest of the line counts as a command: their own options
# need no grammar. The shell's own words are among them: behind `time` or `!` the grammar takes them
# for names of commands.
RUNNER_COMMANDS = split_into_word_set("""
    timeout nice nohup env xargs sudo doas command builtin exec time stdbuf setsid ionice chrt taskset flock
    watch parallel busybox find strace script su chroot unshare nsenter setarch coproc trap caffeinate
    ! if then elif else fi for while until do done case select function in {
""")
STDIN_RUNNERS = ("xargs", "parallel")  # they add words that only their stdin knows
# They run what a word of theirs says, as a script.
SCRIPT_COMMANDS = split_into_word_set(
    "sh bash dash zsh ksh ash fish eval source . watch su script trap"
)

READ_COMMANDS = split_into_word_set("""
    cat tac head tail less more nl sed awk gawk grep egrep fgrep rg zcat zgrep wc sort uniq diff cmp comm cut
    paste join base64 base32 od xxd hexdump strings jq yq file stat ls tree du find rev fold fmt column bat
    md5sum sha1sum sha256sum cksum cp mv ln source . view pr expand split
""")
CHANGE_COMMANDS = split_into_word_set("""
    touch mkdir rmdir rm unlink mv cp ln tee truncate chmod chown install shred mkfifo mktemp sponge patch dd
    rsync split
""")
# into a file or a folder, which an option -t may name too
COPY_COMMANDS = ("cp", "mv", "ln", "install")
PATCH_COMMANDS = ("apply_patch", "applypatch")  # the files stand in what they read
IN_PLACE_EDITORS = ("sed", "perl", "ruby")  # with an option -i

# Commands that need no question while their paths are inside, with the options that they may have:
# single letters, of which several may be bundled, and long names. What writes, runs something or
# reads a list of files is not among them.
_SAFE_OPTIONS = {
    "cat": "n b E T A s", "head": "n c q v", "wc": "l w c m L", "ls": "a l h t r S R 1 d F i s A", "pwd": "P L",
    "whoami": "", "true": "", "false": "", "echo": "n", "printf": "", "sleep": "", "which": "a", "cd": "",
    "diff": "u r q N i w b B y", "stat": "c L t", "grep": "n i v r l c w o E F H h s q x A B C m e",
    "ps": "", "date": "u R", "test": "f d e r w x s z n", "sort": "n r u k t f b",
    "find": "name iname type path maxdepth mindepth size newer mtime print empty not",
    "git": "p s b n oneline stat name-only name-status cached staged short porcelain graph all no-color",
}  # fmt: skip
_SAFE_GIT_SUBCOMMANDS = split_into_word_set("status log diff show")
_SAFE_JQ_PATTERN = r"\.[\w.\[\]]*"  # a path into the input and nothing that could look elsewhere
_SAFE_SED_PATTERN = r"(\d+,)?\d+p"
# Scripts for sed that neither run a command nor name a file: addresses, and s, y, p, d, q, = and
# their like.
_SED_TEXT = r"(?:[^\\\n{0}]|\\.)*"
_SED_ADDRESS = rf"(?:\d+|\$|/{_SED_TEXT.format('/')}/)"
_SED_SUBSTITUTION = "|".join(
    rf"[sy][{delimiter}]{_SED_TEXT.format(delimiter)}[{delimiter}]{_SED_TEXT.format(delimiter)}[{delimiter}][gpiIm0-9]*"
    for delimiter in "/|,#:@"
)
_SED_COMMAND = (
    rf"(?:{_SED_ADDRESS}(?:,[+~]?{_SED_ADDRESS})?)?[ !]*+(?:{_SED_SUBSTITUTION}|[pdqPDxhHgGnN=]?)"
)
# what is taken is never tried again
_STREAM_SED_PATTERN = rf"{_SED_COMMAND}(?: *+[;\n] *+{_SED_COMMAND})*+"
_SED_OPTIONS_PATTERN = (
    r"-[nErsiuz]+|--(quiet|silent|regexp-extended|in-place|separate|null-data|posix|debug)"
)
# The commands that the mode for edits runs inside of its folders, likewise, and the only script for
# `sed -i`.
_EDIT_OPTIONS = {"touch": "", "mkdir": "p v", "rmdir": "p v", "rm": "r f v d R", "mv": "", "cp": ""}
_EDIT_SED_PATTERN = r"s/[^/\n]*/[^/\n]*/[gpiI0-9]*"
# looked through for what allows: words of their own
_WRAPPER_ARG_COUNTS = {"timeout": 1, "nice": 0, "nohup": 0, "time": 0}


def get_command_name(command: ShellCommand) -> str | None:
    """The name of a command without its folder; None where only the shell knows it."""
    first_word = command.words[0] if command.words else ""
    return None if first_word is None else first_word.rpartition("/")[2]


UNKNOWN_COMMAND = ShellCommand("", (None,))  # a command that cannot be told


def expand_nested_commands(
    command: ShellCommand, depth: int = 0
) -> Iterator[ShellCommand | ShellRedirect]:
    """A command and all that it may do in its turn: what a rule about any of these has to bind."""
    yield from _expand_scripts(command, depth)
    name = get_command_name(command)
    if name in RUNNER_COMMANDS:
        for start in range(1, len(command.words)):
            later_words = command.words[start:] + ((None,) if name in STDIN_RUNNERS else ())
            yield from _expand_scripts(
                ShellCommand(" ".join(word or "" for word in later_words), later_words), depth
            )


def _expand_scripts(command: ShellCommand, depth: int) -> Iterator[ShellCommand | ShellRedirect]:
    """A command and what the scripts in its words do; UNKNOWN where a word says it in a language of
    its own.
    """
    yield command
    name = get_command_name(command)
    splits_string = any(
        word is None or word.startswith(("-S", "--split")) for word in command.words[1:]
    )
    if (
        (name == "env" and splits_string)
        or name in PATCH_COMMANDS
        or (name == "sed" and not _is_stream_edit(command))
    ):
        yield UNKNOWN_COMMAND
    if name in SCRIPT_COMMANDS:
        yield from _expand_script_words(command, depth)


def _is_stream_edit(command: ShellCommand) -> bool:
    """Whether the scripts of a sed only edit its stream: others write files and run commands."""
    scripts, operand, words = [], "", list(command.words[1:])
    while words:
        word = words.pop(0)
        if word is None:
            return False
        if word in ("-e", "--expression"):
            scripts.append(words.pop(0) if words else None)
        elif word.startswith("-"):
            if not _matches_pattern(_SED_OPTIONS_PATTERN, word):
                return False
        elif not operand:
            operand = word
    return all(
        script is not None and _matches_pattern(_STREAM_SED_PATTERN, script)
        for script in scripts or [operand]
    )


def uses_other_working_directory(command: ShellCommand) -> bool:
    """Whether a command runs in another folder than the line: `env -C`, `git -C`, `chroot`."""
    name = get_command_name(command)
    if name == "chroot":
        return True
    folder_options = (
        word is None or word.startswith(("-C", "-D", "--chdir", "--wd"))
        for word in command.words[1:]
    )
    return (name in RUNNER_COMMANDS or name == "git") and any(folder_options)


def _expand_script_words(
    command: ShellCommand, depth: int
) -> Iterator[ShellCommand | ShellRedirect]:
    """What the scripts do that a shell is given as words; UNKNOWN for a script that cannot be told."""
    words = command.words[1:]
    if None in words or depth >= MAX_SCRIPT_DEPTH or _can_read_stdin_script(words):
        yield UNKNOWN_COMMAND
    for word in (
        (*words, " ".join(word or "" for word in words)) if depth < MAX_SCRIPT_DEPTH else ()
    ):
        line = parse_shell_line(word or "")
        if not line.is_complete:
            yield UNKNOWN_COMMAND
        for part in line.parts:
            yield from (
                expand_nested_commands(part, depth + 1)
                if isinstance(part, ShellCommand)
                else (part,)
            )


def _can_read_stdin_script(words: Sequence[str | None]) -> bool:
    """Whether a shell may read its script from its stdin."""
    arguments = [word for word in words if word and not word.startswith(("-", "+"))]
    return not arguments or "-s" in words or arguments[0].startswith(("/dev/", "/proc/"))


def list_path_operands(command: ShellCommand) -> Iterator[str | None]:
    """The words behind a command's name that may be paths, also those in `--option=PATH` and
    `of=PATH`; None for a word that cannot be told."""
    for word in command.words[1:]:
        if word is None:
            yield None
        elif word.startswith("-") or "=" in word:
            if "=" in word:
                yield word.partition("=")[2]
            elif "/" in word or (
                get_command_name(command) in COPY_COMMANDS
                and not word.startswith("--")
                and "t" in word
            ):
                # `-f/path`, `-tFOLDER`: which letters are the option's is the command's own grammar
                yield None
        else:
            yield word
    if get_command_name(command) in COPY_COMMANDS:  # in a folder each gets its own name
        *sources, target = [
            word for word in command.words[1:] if word is None or not word.startswith("-")
        ] or [None]
        for source in sources:
            yield (
                None
                if source is None or target is None
                else f"{target}/{source.rstrip('/').rpartition('/')[2]}"
            )


def can_read_files(command: ShellCommand) -> bool:
    name = get_command_name(command)
    return name is None or name in READ_COMMANDS


def can_change_files(command: ShellCommand) -> bool:
    """Whether a command changes the files that it names."""
    name = get_command_name(command)
    is_in_place_edit = name in IN_PLACE_EDITORS and any(
        word and word.startswith(("-i", "--in-place")) for word in command.words
    )
    return name is None or name in CHANGE_COMMANDS or is_in_place_edit


def is_read_only(command: ShellCommand) -> bool:
    """Whether a command only looks at what it names: literal words, and options that are known to
    change nothing.
    """
    if command.has_assignments or not command.words or None in command.words:
        return False
    name, *arguments = (word or "" for word in command.words)
    if name == "git":
        return (
            arguments[:1] != []
            and arguments[0] in _SAFE_GIT_SUBCOMMANDS
            and _has_only_safe_options(arguments[1:], _SAFE_OPTIONS["git"])
        )
    if name == "sed":
        return (
            len(arguments) >= 2
            and arguments[0] == "-n"
            and _matches_pattern(_SAFE_SED_PATTERN, arguments[1])
            and _has_only_safe_options(arguments[2:], "")
        )
    if name == "jq":
        return (
            arguments[:1] != []
            and _matches_pattern(_SAFE_JQ_PATTERN, arguments[0])
            and _has_only_safe_options(arguments[1:], "")
        )
    if name == "node":
        return arguments == ["--version"]
    if name in ("date", "ps"):
        return _has_only_safe_options(arguments, _SAFE_OPTIONS[name]) and all(
            word.startswith(("+", "-")) for word in arguments
        )
    if name == "test" and any("[" in word for word in arguments):
        return False  # bash evaluates an index, and what stands in it
    return name in _SAFE_OPTIONS and _has_only_safe_options(arguments, _SAFE_OPTIONS[name])


def _has_only_safe_options(words: Sequence[str], options: str) -> bool:
    """Whether all options among the words are known ones, or bundles of known letters with a number
    behind.
    """
    safe_options = options.split()
    letters = {option for option in safe_options if len(option) == 1}
    return all(
        word.lstrip("-") in safe_options
        or (not word.startswith("--") and set(word[1:].rstrip("0123456789,.")) <= letters)
        for word in words
        if word.startswith("-")
    )


def _matches_pattern(pattern: str, word: str) -> bool:
    import re

    return re.fullmatch(pattern, word, re.ASCII) is not None


def is_safe_edit_command(command: ShellCommand) -> bool:
    """Whether a command is one that the mode for edits runs inside of its folders."""
    if command.has_assignments or not command.words or None in command.words:
        return False
    name, *arguments = (word or "" for word in command.words)
    if name == "sed":
        return (
            len(arguments) >= 3
            and arguments[0] == "-i"
            and _matches_pattern(_EDIT_SED_PATTERN, arguments[1])
            and _has_only_safe_options(arguments[2:], "")
        )
    return name in _EDIT_OPTIONS and _has_only_safe_options(arguments, _EDIT_OPTIONS[name])


def strip_command_wrappers(command: ShellCommand) -> ShellCommand | None:
    """A command without the few runners that add nothing to it, for what allows; None where a word
    cannot be told.

    A word that only the shell knows may be anything, so no rule but a whole one allows its command.
    """
    words, text = command.words, command.text
    if command.has_assignments or None in words or "\\" in text or "\n" in text:
        return None
    while words and words[0] in _WRAPPER_ARG_COUNTS:
        skip_count = 1 + _WRAPPER_ARG_COUNTS[words[0] or ""]
        if any(word and word.startswith("-") for word in words[: skip_count + 1]):
            return None
        words, text = (
            words[skip_count:],
            text.split(None, skip_count)[-1] if len(words) > skip_count else "",
        )
    return ShellCommand(text, words)
