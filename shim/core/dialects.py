"""The dialects of the shim's stdout, defined as data."""

from collections.abc import Sequence

from shim.core.reading.typed import NamedTuple


class StreamDialect(NamedTuple):
    """The differences between dialects, apart from their encoders.

    is_flat                  the dialect has its own line format instead of Claude's
    streams_fragments        every fragment is written, even if no partial messages were requested
    retries_broken_answers   a message is sent again if its answer was interrupted (Yume's R11)
    asks_by_line             the line with a tool call is also the permission prompt
    reports_secret_counts    the number of removed secrets is reported on stderr
    accepts_mode_names       permission modes may have names other than Claude's; an unknown name is
                             not an error
    accepts_frames           stdin may contain messages, for every value of `--input-format`
    answers_argument_errors  the shim also writes a result if the arguments are invalid
    default_redaction        the default value of the setting `redact`
    max_line_bytes           the maximum length of a line, which settings cannot increase; 0 for no
                             limit
    program                  the name of the program whose command line starts with `first_arg`
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
        """Return the name of the program for which a command line in this dialect was written."""
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
    max_line_bytes=99_999,  # Yume accepts lines of 100 KB, including the LF
    program="yume-cli",
    first_arg="start",
)
DIALECTS = {dialect.name: dialect for dialect in (CLAUDE, YUME)}


def resolve_dialect(name: object) -> StreamDialect:
    """Return the dialect with this name. If the name is unknown, return Claude's dialect."""
    if isinstance(name, str):
        return DIALECTS.get(name, CLAUDE)
    return CLAUDE
