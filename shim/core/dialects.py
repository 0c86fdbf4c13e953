"""The dialects of our stdout, as data."""

from collections.abc import Sequence

from shim.core.reading.typed import NamedTuple


class StreamDialect(NamedTuple):
    """What differs between dialects, beside their pens.

    is_flat                  its lines are not Claude's
    streams_fragments        every fragment is written, even if no partial messages were asked for
    retries_broken_answers   a message whose answer broke off is sent once more (Yume's R11)
    asks_by_line             the line of a call is the question whether the call may run
    reports_secret_counts    how many secrets were left out is told on stderr
    accepts_mode_names       other names of permission modes than Claude's are read, and none is a
                             mistake
    accepts_frames           stdin may bring messages, whatever the input format
    answers_argument_errors  a mistake in the arguments ends in a result too
    default_redaction        what is redacted where nothing else is set
    max_line_bytes           no setting allows a longer line; 0: any may
    program                  the program that a command line is given to whose first word is
                             `first_arg`
    """

    name: str
    is_flat: bool = False
    streams_fragments: bool = False
    retries_broken_answers: bool = False
    asks_by_line: bool = False
    reports_secret_counts: bool = False
    accepts_mode_names: bool = False
    accepts_frames: bool = False
    answers_argument_errors: bool = False
    default_redaction: str = "casts"
    max_line_bytes: int = 0
    program: str = "claude"
    first_arg: str = ""

    def resolve_program_name(self, argv: Sequence[str]) -> str:
        """The program that a command line of this dialect was given to."""
        if self.first_arg and tuple(argv[:1]) == (self.first_arg,):
            return self.program
        return "claude"


CLAUDE = StreamDialect("claude")
YUME = StreamDialect(
    "yume",
    is_flat=True,
    streams_fragments=True,
    retries_broken_answers=True,
    asks_by_line=True,
    reports_secret_counts=True,
    accepts_mode_names=True,
    accepts_frames=True,
    answers_argument_errors=True,
    default_redaction="all",
    max_line_bytes=99_999,  # its parser holds 100 KB of one line, its LF included
    program="yume-cli",
    first_arg="start",
)
DIALECTS = {dialect.name: dialect for dialect in (CLAUDE, YUME)}


def resolve_dialect(name: object) -> StreamDialect:
    """The dialect of this name; Claude's where there is none."""
    if isinstance(name, str):
        return DIALECTS.get(name, CLAUDE)
    return CLAUDE
