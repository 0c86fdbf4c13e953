"""The lines below a session: the question that waits, the message that is typed, and which keys do
what.
"""

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from shim.commands.sessions.terminal.talk import Talk
from shim.core.reading.account import printable
from shim.story.terminal.arguments import one_line
from shim.story.terminal.below import Cursor
from shim.story.terminal.paper import Typed

ROWS = 6  # of a message that is typed
WAITING = 3  # messages that are shown while they wait
NARROWEST = 8  # columns
MARK = "> "


def composer(talk: Talk, width: int) -> Typed:
    """What is drawn for a terminal of this width, and where its cursor is."""
    width = max(width, NARROWEST)
    above: list[RenderableType] = [Text("")]
    for text in list(talk.messages.values())[:WAITING]:
        above.append(_row(f"next: {one_line(text)}", width, "dim"))
    if talk.asking.identity:
        above += _question(talk, width)
    text, place, is_beginning = near_cursor(talk.editor.text, talk.editor.place, width)
    rows, row, column = laid_out(text, place, width - len(MARK) - 1)
    first = min(max(row - ROWS + 1, 0), max(len(rows) - ROWS, 0))
    shown = rows[first : first + ROWS]
    marks = [MARK if is_beginning and not first else "  ", *["  "] * ROWS]
    lines = [Text(mark + text) for mark, text in zip(marks, shown, strict=False)]
    below = _row(" · ".join(_keys(talk)), width, "dim")
    from_last = len(shown) - (row - first)
    return Typed(Group(*above, *lines, below), Cursor(from_last, len(MARK) + column))


def near_cursor(text: str, place: int, width: int) -> tuple[str, int, bool]:
    """Return the part of a text whose rows may be shown, the cursor's place in it, and whether it
    is the beginning.

    The part is the same while the cursor moves a little, so that the rows stay where they are.
    """
    step = 2 * ROWS * width
    start = max(place // step - 1, 0) * step
    return text[start : start + 3 * step], place - start, start == 0


def laid_out(text: str, place: int, width: int) -> tuple[list[str], int, int]:
    """A text in rows of at most `width` cells, and the row and column of the cursor at `place`."""
    rows, cells, at = [""], 0, (0, 0)
    for number, character in enumerate(text):
        if number == place:
            at = (len(rows) - 1, cells)
        if character == "\n":
            rows.append("")
            cells = 0
            continue
        shown = "    " if character == "\t" else printable(character)
        size = cell_len(shown)
        if cells + size > width:
            rows.append("")
            cells = 0
            at = (len(rows) - 1, 0) if number == place else at
        rows[-1] += shown
        cells += size
    return rows, *(at if place < len(text) else (len(rows) - 1, cells))


def _question(talk: Talk, width: int) -> list[RenderableType]:
    """The question that is asked now, which no word of the agent's can come behind, and its keys."""
    asking = talk.asking
    more = f"  (and {asking.more} more)" if asking.more else ""
    about = _row(f"? {asking.about()}", width - len(more), "bold yellow")
    lines: list[RenderableType] = [about.append(more)]
    if talk.waits:
        return [*lines, Text("")]
    if asking.form is not None:
        return [*lines, Text("a number or your own words; /no declines", style="yellow")]
    if talk.answers:
        return [*lines, Text(" · ".join([*asking.keys(), "Tab types a message"]), style="yellow")]
    return [*lines, Text("empty the line, or press Tab, to answer", style="yellow")]


def _keys(talk: Talk) -> list[str]:
    view = talk.view
    words = [] if view.drives else [f"{one_line(str(view.driver))} drives", "Ctrl-T takes over"]
    if view.busy:
        words.append("Ctrl-C interrupts")
    mode = [f"mode {one_line(view.mode)}"] if view.mode else []
    return [*words, "Ctrl-D leaves", "/help", *mode]


def _row(text: str, width: int, style: str) -> Text:
    """One row; what does not fit is left out."""
    row = Text(text, style=style)
    row.truncate(width, overflow="ellipsis")
    return row
