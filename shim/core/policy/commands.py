"""What commands of a shell do, as far as rules and modes ask: who runs another, who reads, who
changes files.

The rows for what needs no question are what the real claude was seen to run unasked
(permission-parity page); a command that is missing there is asked for, which is never wider.
"""

from collections.abc import Iterator, Sequence

from shim.core.policy.rules import word_set
from shim.core.policy.shell import SCRIPTS, Command, Redirect, take_apart

# They run what their later words say. Every rest of the line counts as a command: their own options
# need no grammar. The shell's own words are among them: behind `time` or `!` the grammar takes them
# for names of commands.
RUNNERS = word_set("""
    timeout nice nohup env xargs sudo doas command builtin exec time stdbuf setsid ionice chrt taskset flock
    watch parallel busybox find strace script su chroot unshare nsenter setarch coproc trap caffeinate
    ! if then elif else fi for while until do done case select function in {
""")
FROM_STDIN = ("xargs", "parallel")  # they add words that only their stdin knows
# They run what a word of theirs says, as a script.
SHELLS = word_set("sh bash dash zsh ksh ash fish eval source . watch su script trap")

READS = word_set("""
    cat tac head tail less more nl sed awk gawk grep egrep fgrep rg zcat zgrep wc sort uniq diff cmp comm cut
    paste join base64 base32 od xxd hexdump strings jq yq file stat ls tree du find rev fold fmt column bat
    md5sum sha1sum sha256sum cksum cp mv ln source . view pr expand split
""")
CHANGES = word_set("""
    touch mkdir rmdir rm unlink mv cp ln tee truncate chmod chown install shred mkfifo mktemp sponge patch dd
    rsync split
""")
COPIES = ("cp", "mv", "ln", "install")  # into a file or a folder, which an option -t may name too
PATCHES = ("apply_patch", "applypatch")  # the files stand in what they read
EDITS_IN_PLACE = ("sed", "perl", "ruby")  # with an option -i

# Commands that need no question while their paths are inside, with the options that they may have:
# single letters, of which several may be bundled, and long names. What writes, runs something or
# reads a list of files is not among them.
_SAFE = {
    "cat": "n b E T A s", "head": "n c q v", "wc": "l w c m L", "ls": "a l h t r S R 1 d F i s A", "pwd": "P L",
    "whoami": "", "true": "", "false": "", "echo": "n", "printf": "", "sleep": "", "which": "a", "cd": "",
    "diff": "u r q N i w b B y", "stat": "c L t", "grep": "n i v r l c w o E F H h s q x A B C m e",
    "ps": "", "date": "u R", "test": "f d e r w x s z n", "sort": "n r u k t f b",
    "find": "name iname type path maxdepth mindepth size newer mtime print empty not",
    "git": "p s b n oneline stat name-only name-status cached staged short porcelain graph all no-color",
}  # fmt: skip
_SAFE_GIT = word_set("status log diff show")
_SAFE_JQ = r"\.[\w.\[\]]*"  # a path into the input and nothing that could look elsewhere
_SAFE_SED = r"(\d+,)?\d+p"
# Scripts for sed that neither run a command nor name a file: addresses, and s, y, p, d, q, = and
# their like.
_PART = r"(?:[^\\\n{0}]|\\.)*"
_ADDRESS = rf"(?:\d+|\$|/{_PART.format('/')}/)"
_SUBSTITUTION = "|".join(
    rf"[sy][{mark}]{_PART.format(mark)}[{mark}]{_PART.format(mark)}[{mark}][gpiIm0-9]*"
    for mark in "/|,#:@"
)
_SED_COMMAND = rf"(?:{_ADDRESS}(?:,[+~]?{_ADDRESS})?)?[ !]*+(?:{_SUBSTITUTION}|[pdqPDxhHgGnN=]?)"
# what is taken is never tried again
_STREAM_SED = rf"{_SED_COMMAND}(?: *+[;\n] *+{_SED_COMMAND})*+"
_SED_OPTIONS = (
    r"-[nErsiuz]+|--(quiet|silent|regexp-extended|in-place|separate|null-data|posix|debug)"
)
# The commands that the mode for edits runs inside of its folders, likewise, and the only script for
# `sed -i`.
_EDITS = {"touch": "", "mkdir": "p v", "rmdir": "p v", "rm": "r f v d R", "mv": "", "cp": ""}
_EDIT_SED = r"s/[^/\n]*/[^/\n]*/[gpiI0-9]*"
# looked through for what allows: words of their own
_PASSES = {"timeout": 1, "nice": 0, "nohup": 0, "time": 0}


def name_of(command: Command) -> str | None:
    """The name of a command without its folder; None where only the shell knows it."""
    first = command.words[0] if command.words else ""
    return None if first is None else first.rpartition("/")[2]


UNKNOWN = Command("", (None,))  # a command that cannot be told


def behind(command: Command, depth: int = 0) -> Iterator[Command | Redirect]:
    """A command and all that it may do in its turn: what a rule about any of these has to bind."""
    yield from _itself(command, depth)
    name = name_of(command)
    if name in RUNNERS:
        for start in range(1, len(command.words)):
            rest = command.words[start:] + ((None,) if name in FROM_STDIN else ())
            yield from _itself(Command(" ".join(word or "" for word in rest), rest), depth)


def _itself(command: Command, depth: int) -> Iterator[Command | Redirect]:
    """A command and what the scripts in its words do; UNKNOWN where a word says it in a language of
    its own.
    """
    yield command
    name = name_of(command)
    splits = any(word is None or word.startswith(("-S", "--split")) for word in command.words[1:])
    if (
        (name == "env" and splits)
        or name in PATCHES
        or (name == "sed" and not _edits_streams(command))
    ):
        yield UNKNOWN
    if name in SHELLS:
        yield from _scripts(command, depth)


def _edits_streams(command: Command) -> bool:
    """Whether the scripts of a sed only edit its stream: others write files and run commands."""
    scripts, operand, words = [], "", list(command.words[1:])
    while words:
        word = words.pop(0)
        if word is None:
            return False
        if word in ("-e", "--expression"):
            scripts.append(words.pop(0) if words else None)
        elif word.startswith("-"):
            if not _is(_SED_OPTIONS, word):
                return False
        elif not operand:
            operand = word
    return all(script is not None and _is(_STREAM_SED, script) for script in scripts or [operand])


def elsewhere(command: Command) -> bool:
    """Whether a command runs in another folder than the line: `env -C`, `git -C`, `chroot`."""
    name = name_of(command)
    if name == "chroot":
        return True
    moves = (
        word is None or word.startswith(("-C", "-D", "--chdir", "--wd"))
        for word in command.words[1:]
    )
    return (name in RUNNERS or name == "git") and any(moves)


def _scripts(command: Command, depth: int) -> Iterator[Command | Redirect]:
    """What the scripts do that a shell is given as words; UNKNOWN for a script that cannot be told."""
    words = command.words[1:]
    if None in words or depth >= SCRIPTS or _from_stdin(words):
        yield UNKNOWN
    for word in (*words, " ".join(word or "" for word in words)) if depth < SCRIPTS else ():
        line = take_apart(word or "")
        if not line.whole:
            yield UNKNOWN
        for part in line.parts:
            yield from behind(part, depth + 1) if isinstance(part, Command) else (part,)


def _from_stdin(words: Sequence[str | None]) -> bool:
    """Whether a shell may read its script from its stdin."""
    given = [word for word in words if word and not word.startswith(("-", "+"))]
    return not given or "-s" in words or given[0].startswith(("/dev/", "/proc/"))


def operands(command: Command) -> Iterator[str | None]:
    """The words behind a command's name that may be paths, also those in `--option=PATH` and
    `of=PATH`; None for a word that cannot be told."""
    for word in command.words[1:]:
        if word is None:
            yield None
        elif word.startswith("-") or "=" in word:
            if "=" in word:
                yield word.partition("=")[2]
            elif "/" in word or (
                name_of(command) in COPIES and not word.startswith("--") and "t" in word
            ):
                # `-f/path`, `-tFOLDER`: which letters are the option's is the command's own grammar
                yield None
        else:
            yield word
    if name_of(command) in COPIES:  # in a folder each gets its own name
        *sources, target = [
            word for word in command.words[1:] if word is None or not word.startswith("-")
        ] or [None]
        for source in sources:
            yield (
                None
                if source is None or target is None
                else f"{target}/{source.rstrip('/').rpartition('/')[2]}"
            )


def reads(command: Command) -> bool:
    name = name_of(command)
    return name is None or name in READS


def changes(command: Command) -> bool:
    """Whether a command changes the files that it names."""
    name = name_of(command)
    in_place = name in EDITS_IN_PLACE and any(
        word and word.startswith(("-i", "--in-place")) for word in command.words
    )
    return name is None or name in CHANGES or in_place


def harmless(command: Command) -> bool:
    """Whether a command only looks at what it names: literal words, and options that are known to
    change nothing.
    """
    if command.assigns or not command.words or None in command.words:
        return False
    name, *rest = (word or "" for word in command.words)
    if name == "git":
        return rest[:1] != [] and rest[0] in _SAFE_GIT and _known(rest[1:], _SAFE["git"])
    if name == "sed":
        return (
            len(rest) >= 2 and rest[0] == "-n" and _is(_SAFE_SED, rest[1]) and _known(rest[2:], "")
        )
    if name == "jq":
        return rest[:1] != [] and _is(_SAFE_JQ, rest[0]) and _known(rest[1:], "")
    if name == "node":
        return rest == ["--version"]
    if name in ("date", "ps"):
        return _known(rest, _SAFE[name]) and all(word.startswith(("+", "-")) for word in rest)
    if name == "test" and any("[" in word for word in rest):
        return False  # bash evaluates an index, and what stands in it
    return name in _SAFE and _known(rest, _SAFE[name])


def _known(words: Sequence[str], options: str) -> bool:
    """Whether all options among the words are known ones, or bundles of known letters with a number
    behind.
    """
    known = options.split()
    letters = {option for option in known if len(option) == 1}
    return all(
        word.lstrip("-") in known
        or (not word.startswith("--") and set(word[1:].rstrip("0123456789,.")) <= letters)
        for word in words
        if word.startswith("-")
    )


def _is(pattern: str, word: str) -> bool:
    import re

    return re.fullmatch(pattern, word, re.ASCII) is not None


def edits(command: Command) -> bool:
    """Whether a command is one that the mode for edits runs inside of its folders."""
    if command.assigns or not command.words or None in command.words:
        return False
    name, *rest = (word or "" for word in command.words)
    if name == "sed":
        return (
            len(rest) >= 3 and rest[0] == "-i" and _is(_EDIT_SED, rest[1]) and _known(rest[2:], "")
        )
    return name in _EDITS and _known(rest, _EDITS[name])


def unwrapped(command: Command) -> Command | None:
    """A command without the few runners that add nothing to it, for what allows; None where a word
    cannot be told.

    A word that only the shell knows may be anything, so no rule but a whole one allows its command.
    """
    words, text = command.words, command.text
    if command.assigns or None in words or "\\" in text or "\n" in text:
        return None
    while words and words[0] in _PASSES:
        skip = 1 + _PASSES[words[0] or ""]
        if any(word and word.startswith("-") for word in words[: skip + 1]):
            return None
        words, text = words[skip:], text.split(None, skip)[-1] if len(words) > skip else ""
    return Command(text, words)
