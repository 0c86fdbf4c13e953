"""The table of shell commands and their effects, used by permission rules and permission modes.

This table is the only place in the shim that knows commands by name. A command that is missing from
the table has unknown effects, and only bypassPermissions runs it without a prompt.
"""

import re
from collections.abc import Sequence

from shim.core.reading.typed import Any, NamedTuple

NO_OPTIONS = "no-options"


class SafeArguments(NamedTuple):
    """The arguments with which a command needs no prompt, provided that its paths are inside the
    workspace.
    """

    first: tuple[str, ...]  # the patterns for the first arguments, in order
    others: str  # the pattern for all other arguments
    min_others: int
    options: frozenset[str]  # the allowed options among the other arguments

    def match(self, arguments: Sequence[str]) -> bool:
        """Return whether all of a command's arguments are known to be safe."""
        others = arguments[len(self.first) :]
        if len(arguments) < len(self.first) + self.min_others:
            return False
        if not all(map(matches_pattern, self.first, arguments)):
            return False
        if not all(matches_pattern(self.others, argument) for argument in others):
            return False
        return all(self._is_known_option(word) for word in others if word.startswith("-"))

    def _is_known_option(self, word: str) -> bool:
        """Return whether a word is an allowed option, or a combination of allowed one-letter
        options that may end with a number.
        """
        letters = word[1:].rstrip("0123456789,.")
        if not word.startswith("--") and self.options.issuperset(letters):
            return True
        return word.lstrip("-") in self.options


class CommandRow(NamedTuple):
    """The effects of one shell command."""

    # With arguments that match `read_only`, the command only reads the files in its arguments. The
    # permission mode acceptEdits also runs the command with arguments that match `edits`. None
    # means that no arguments are safe.
    read_only: SafeArguments | None = None
    edits: SafeArguments | None = None

    # These fields describe a command that runs an inner command.
    runs_arguments: bool = False  # the later arguments form the inner command
    adds_stdin_arguments: bool = False  # stdin has more arguments for the inner command
    splits_argument: bool = False  # the option `-S` splits an argument into words
    runs_scripts: bool = False  # an argument or stdin is a script that the command runs
    wraps_command: bool = False  # only the inner command matters for allow rules
    wraps_after_argument: bool = False  # the inner command starts at the second argument

    # These fields describe a command that uses the files in its arguments.
    reads_files: bool = False
    changes_files: bool = False
    edits_in_place: bool = False  # the option `-i` makes the command change files
    copies_files: bool = False  # the target may be a file or a folder, or follow `-t`
    patches_files: bool = False  # stdin has the names of the changed files
    prints_arguments: bool = False  # the command prints its arguments, which are not paths

    # These fields describe a command that changes the meaning of paths or arguments.
    changes_directory: bool = False
    changes_paths: bool = False  # later paths in the line may mean other files
    changes_root: bool = False
    takes_directory: bool = False  # an option sets the command's working directory
    evaluates_arithmetic: bool = False  # bash evaluates the arguments as arithmetic


# A row has four columns: names, effects, read-only arguments, and edit arguments. Effects are
# fields of CommandRow. The argument columns contain `-` for none, or any of these:
#   =PATTERN    the pattern for the next of the first arguments
#   :PATTERN    the pattern for all remaining arguments
#   +           at least one other argument is required
#   NAME        an option; letters can be combined and followed by a number
#   no-options  no option is allowed
# Measurements showed that the real claude runs a command with its read-only arguments without a
# prompt. Options that write, run something or read a list of files are excluded. Keywords such as
# `then` have rows, because the grammar of `bash.py` parses them as command names after `time` or
# `!`.
_TABLE = r"""
cat                                 ; reads_files ; n b E T A s
diff                                ; reads_files ; u r q N i w b B y
grep                                ; reads_files ; n i v r l c w o E F H h s q x A B C m e
head                                ; reads_files ; n c q v
jq                                  ; reads_files ; =\.[\w.\[\]]* no-options
ls                                  ; reads_files ; a l h t r S R 1 d F i s A
sort                                ; reads_files ; n r u k t f b
stat                                ; reads_files ; c L t
wc                                  ; reads_files ; l w c m L
awk base32 base64 bat cksum cmp column comm cut du egrep expand fgrep file fmt fold gawk hexdump ; reads_files
join less md5sum more nl od paste pr rev rg sha1sum sha256sum strings tac tail tree uniq view    ; reads_files
xxd yq zcat zgrep                   ; reads_files
sed                                 ; reads_files edits_in_place ; =-n =(\d+,)?\d+p no-options ; \
                                      =-i =s/[^/\n]*/[^/\n]*/[gpiI0-9]* + no-options
perl ruby                           ; edits_in_place
cp mv                               ; reads_files changes_files copies_files changes_paths ; - ; no-options
ln                                  ; reads_files changes_files copies_files
install                             ; changes_files copies_files
mkdir rmdir                         ; changes_files ; - ; p v
rm                                  ; changes_files ; - ; r f v d R
touch                               ; changes_files ; - ; no-options
split                               ; reads_files changes_files
apply_patch applypatch              ; patches_files
chmod chown dd mkfifo mktemp patch rsync shred sponge tee truncate unlink ; changes_files

false sleep true whoami             ; ; no-options
date                                ; ; u R :[+-](?s:.*)
git                                 ; takes_directory ; =status|log|diff|show p s b n oneline stat name-only \
                                      name-status cached staged short porcelain graph all no-color
node                                ; ; =--version :(?!) no-options
ps                                  ; ; :[+-](?s:.*) no-options
pwd                                 ; ; P L
which                               ; ; a
echo                                ; prints_arguments ; n
printf                              ; prints_arguments evaluates_arithmetic ; no-options
test                                ; evaluates_arithmetic ; f d e r w x s z n :[^\[]*
[ declare export let local mapfile read readarray readonly typeset unset wait ; evaluates_arithmetic
cd                                  ; changes_directory changes_paths ; no-options
popd pushd                          ; changes_directory changes_paths

env                                 ; runs_arguments splits_argument
find                                ; runs_arguments reads_files ; name iname type path maxdepth mindepth size newer \
                                      mtime print empty not
nice nohup time                     ; runs_arguments wraps_command
timeout                             ; runs_arguments wraps_after_argument
parallel xargs                      ; runs_arguments adds_stdin_arguments
chroot                              ; runs_arguments changes_root
script su trap watch                ; runs_arguments runs_scripts
builtin busybox caffeinate chrt command coproc doas exec flock ionice nsenter setarch setsid ; runs_arguments
stdbuf strace sudo taskset unshare  ; runs_arguments
! case do done elif else fi for function if in select then until while {  ; runs_arguments
ash bash dash eval fish ksh sh zsh  ; runs_scripts
. source                            ; runs_scripts reads_files
"""


def _parse_table() -> dict[str, CommandRow]:
    rows: dict[str, CommandRow] = {}
    for line in _TABLE.replace("\\\n", "").splitlines():
        if line:
            names, effects, *arguments = line.split(";")
            fields: dict[str, Any] = dict.fromkeys(effects.split(), True)
            for field, text in zip(("read_only", "edits"), arguments, strict=False):
                fields[field] = _parse_safe_arguments(text.split())
            rows |= dict.fromkeys(names.split(), CommandRow(**fields))
    return rows


def _parse_safe_arguments(tokens: list[str]) -> SafeArguments | None:
    if tokens in ([], ["-"]):
        return None
    patterns = [token for token in tokens if token[0] in "=:"]
    return SafeArguments(
        first=tuple(token[1:] for token in patterns if token[0] == "="),
        others=next((token[1:] for token in patterns if token[0] == ":"), "(?s:.*)"),
        min_others=tokens.count("+"),
        options=frozenset(tokens).difference(patterns, ("+", NO_OPTIONS)),
    )


def matches_pattern(pattern: str, word: str) -> bool:
    return re.fullmatch(pattern, word, re.ASCII) is not None


_NO_ROW = CommandRow()
_UNKNOWN_ROW = CommandRow(reads_files=True, changes_files=True)
_ROWS = _parse_table()


def get_command_row(name: str | None) -> CommandRow:
    """Return the effects of the command with this name. `name` is None if only the shell knows the
    name.
    """
    if name is None:
        return _UNKNOWN_ROW
    return _ROWS.get(name, _NO_ROW)
