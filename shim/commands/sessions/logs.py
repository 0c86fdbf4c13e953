"""What was said in a session that lives on its own, drawn as `shim show` draws a recording."""

import os
from collections import deque
from collections.abc import Iterable
from io import StringIO

from rich.console import Console

from shim.bridge.registry import SessionRecord
from shim.core.cast.records import SUFFIX, CastError
from shim.core.reading.account import printable
from shim.story.terminal.show import show

# that are shown, as the real one shows the last 500 chunks; a line says where the others are
LINES = 500
NOTHING = "nothing was said yet\n"


class LastLines(StringIO):
    """A text file that keeps its last LINES lines; `dropped` counts the others."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[str] = deque(maxlen=LINES)
        self._open = ""
        self.dropped = 0

    def write(self, text: str) -> int:
        """Keep a text."""
        *whole, self._open = (self._open + text).split("\n")
        self.dropped += max(len(self._lines) + len(whole) - LINES, 0)
        self._lines.extend(whole)
        return len(text)

    def text(self) -> str:
        """What is kept."""
        return "".join(f"{line}\n" for line in self._lines) + self._open


def casts_of(one: SessionRecord) -> list[str]:
    """The casts of a session in their order, by the numbers in their names."""
    try:
        return [
            os.path.join(one.log_folder, name)
            for name in sorted(os.listdir(one.log_folder))
            if name.endswith(SUFFIX)
        ]
    except OSError:
        return []


def recent(one: SessionRecord) -> str:
    """The last lines of a session as text, with colours on a terminal."""
    kept, terminal = LastLines(), os.isatty(1)
    console = Console(
        file=kept, force_terminal=terminal, highlight=False, markup=False, emoji=False
    )
    paths = casts_of(one)
    problems = _drawn(paths, console, alive=one.is_running)
    said = kept.text() + "".join(f"{problem}\n" for problem in problems)
    if kept.dropped:
        said = f"… {kept.dropped} lines before these: `shim show {one.log_folder}`\n" + said
    return said or _explain_empty_log(one)


def _explain_empty_log(session: SessionRecord) -> str:
    """Return why a session has no lines: the reason for its failure, if it has failed."""
    detail = session.metadata.get("detail")
    if session.is_running or session.metadata.get("state") != "failed" or not detail:
        return NOTHING
    return f"the session failed before its first line: {printable(str(detail))}\n"


def _drawn(paths: Iterable[str], console: Console, *, alive: bool) -> list[str]:
    """Draw casts one behind the other. Returns what is wrong with those that cannot be read."""
    problems, paths = [], list(paths)
    for path in paths:
        try:
            show(path, console, unended=alive and path == paths[-1])
        except CastError as error:
            problems.append(str(error))
    return problems
