"""The dialects of our stdout, as data."""

from typing import NamedTuple


class Dialect(NamedTuple):
    """`streams`: every fragment is written, even if no partial messages were asked for.

    `retries`: a message whose answer broke off is sent once more (Yume's R11).
    `line_bytes` caps what settings allow (0: nothing does).
    """

    name: str
    streams: bool = False
    retries: bool = False
    line_bytes: int = 0


DIALECTS = {
    "claude": Dialect("claude"),
    # Yume's parser holds 100 KB of one line, its LF included.
    "yume": Dialect("yume", streams=True, retries=True, line_bytes=99_999),
}
