"""The dialects of our stdout, as data."""

from collections.abc import Sequence

from shim.core.reading.typed import NamedTuple


class Dialect(NamedTuple):
    """What differs between dialects, beside their pens.

    flat            its lines are not Claude's
    streams         every fragment is written, even if no partial messages were asked for
    retries         a message whose answer broke off is sent once more (Yume's R11)
    asks_by_line    the line of a call is the question whether the call may run
    counts_secrets  how many secrets were left out is told on stderr
    modes           other names of permission modes than Claude's are read, and none is a mistake
    frames          stdin may bring messages, whatever the input format
    answers_all     a mistake in the arguments ends in a result too
    redact          what is redacted where nothing else is set
    line_bytes      no setting allows a longer line; 0: any may
    program         the program that a command line is given to whose first word is `word`
    """

    name: str
    flat: bool = False
    streams: bool = False
    retries: bool = False
    asks_by_line: bool = False
    counts_secrets: bool = False
    modes: bool = False
    frames: bool = False
    answers_all: bool = False
    redact: str = "casts"
    line_bytes: int = 0
    program: str = "claude"
    word: str = ""

    def program_of(self, arguments: Sequence[str]) -> str:
        """The program that a command line of this dialect was given to."""
        return self.program if self.word and tuple(arguments[:1]) == (self.word,) else "claude"


CLAUDE = Dialect("claude")
YUME = Dialect(
    "yume",
    flat=True,
    streams=True,
    retries=True,
    asks_by_line=True,
    counts_secrets=True,
    modes=True,
    frames=True,
    answers_all=True,
    redact="all",
    line_bytes=99_999,  # its parser holds 100 KB of one line, its LF included
    program="yume-cli",
    word="start",
)
DIALECTS = {dialect.name: dialect for dialect in (CLAUDE, YUME)}


def dialect_called(name: object) -> Dialect:
    """The dialect of this name; Claude's where there is none."""
    return DIALECTS.get(name, CLAUDE) if isinstance(name, str) else CLAUDE
