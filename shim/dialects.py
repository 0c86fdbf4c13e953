"""The dialects of our stdout, as data: what a frontend gets without asking for it."""

from typing import NamedTuple


class Dialect(NamedTuple):
    """`streams`: every fragment is said, whether or not partial messages were asked for.

    `retries`: a stream that broke off is asked for once more (Yume's R11). `line_bytes` caps what settings allow (0:
    nothing does). `redact` is the default of the setting of that name.
    """

    name: str
    streams: bool = False
    retries: bool = False
    line_bytes: int = 0
    redact: str = "casts"


DIALECTS = {
    "claude": Dialect("claude"),
    # Yume's parser holds 100 KB of one line, its LF included.
    "yume": Dialect("yume", streams=True, retries=True, line_bytes=99_999, redact="all"),
}
