"""The dialects of our stdout, as data."""

from collections.abc import Sequence

from shim.core.reading.typed import NamedTuple


class StreamDialect(NamedTuple):
    """The differences between dialects, apart from their encoders.

    is_flat                  its lines are not Claude's
    streams_fragments        every fragment is written, even if no partial messages were requested
    retries_broken_answers   a message is sent again if its answer was interrupted (Yume's R11)
    asks_by_line             the line of a call is the permission prompt
    reports_secret_counts    the number of removed secrets is reported on stderr
    accepts_mode_names       permission modes also have other names than Claude's, and unknown names
                             are not an error
    accepts_frames           stdin may contain messages with every input format
    answers_argument_errors  an error in the arguments also leads to a result
    default_redaction        what is redacted if no setting is made
    max_line_bytes           the limit of the line length that no setting can exceed; 0 for no limit
    program                  the name of the program if the first argument is `first_arg`
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
        """Return the name of the program that a command line of this dialect was written for."""
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
    max_line_bytes=99_999,  # its parser accepts 100 KB for a line including its LF
    program="yume-cli",
    first_arg="start",
)
DIALECTS = {dialect.name: dialect for dialect in (CLAUDE, YUME)}


def resolve_dialect(name: object) -> StreamDialect:
    """Return the dialect with this name, or Claude's dialect if there is none."""
    if isinstance(name, str):
        return DIALECTS.get(name, CLAUDE)
    return CLAUDE
