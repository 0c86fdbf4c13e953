"""The lines below a session: the question that waits, the message that is typed, and which keys do
what.
"""

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from shim.commands.sessions.terminal.talk import InputController
from shim.core.reading.account import escape_control_chars
from shim.story.terminal.arguments import format_short_line
from shim.story.terminal.below import InputCursor
from shim.story.terminal.paper import TypedInput

MAX_ROWS = 6  # of a message that is typed
MAX_WAITING_MESSAGES = 3  # messages that are shown while they wait
MIN_COLUMNS = 8  # columns
INPUT_PREFIX = "> "


def draw_composer(talk: InputController, width: int) -> TypedInput:
    """What is drawn for a terminal of this width, and where its cursor is."""
    width = max(width, MIN_COLUMNS)
    above: list[RenderableType] = [Text("")]
    for text in list(talk.pending_messages.values())[:MAX_WAITING_MESSAGES]:
        above.append(_build_row(f"next: {format_short_line(text)}", width, "dim"))
    if talk.prompt.request_id:
        above += _draw_prompt(talk, width)
    text, place, is_beginning = cut_near_cursor(talk.editor.text, talk.editor.cursor, width)
    rows, row, column = wrap_rows(text, place, width - len(INPUT_PREFIX) - 1)
    first = min(max(row - MAX_ROWS + 1, 0), max(len(rows) - MAX_ROWS, 0))
    shown = rows[first : first + MAX_ROWS]
    marks = [INPUT_PREFIX if is_beginning and not first else "  ", *["  "] * MAX_ROWS]
    lines = [Text(mark + text) for mark, text in zip(marks, shown, strict=False)]
    below = _build_row(" · ".join(_list_key_hints(talk)), width, "dim")
    from_last = len(shown) - (row - first)
    return TypedInput(
        Group(*above, *lines, below), InputCursor(from_last, len(INPUT_PREFIX) + column)
    )


def cut_near_cursor(text: str, place: int, width: int) -> tuple[str, int, bool]:
    """Return the part of a text whose rows may be shown, the cursor's place in it, and whether it
    is the beginning.

    The part is the same while the cursor moves a little, so that the rows stay where they are.
    """
    step = 2 * MAX_ROWS * width
    start = max(place // step - 1, 0) * step
    return text[start : start + 3 * step], place - start, start == 0


def wrap_rows(text: str, place: int, width: int) -> tuple[list[str], int, int]:
    """A text in rows of at most `width` cells, and the row and column of the cursor at `place`."""
    rows, cells, at = [""], 0, (0, 0)
    for number, character in enumerate(text):
        if number == place:
            at = (len(rows) - 1, cells)
        if character == "\n":
            rows.append("")
            cells = 0
            continue
        shown = "    " if character == "\t" else escape_control_chars(character)
        size = cell_len(shown)
        if cells + size > width:
            rows.append("")
            cells = 0
            at = (len(rows) - 1, 0) if number == place else at
        rows[-1] += shown
        cells += size
    return rows, *(at if place < len(text) else (len(rows) - 1, cells))


def _draw_prompt(talk: InputController, width: int) -> list[RenderableType]:
    """The question that is asked now, which no word of the agent's can come behind, and its keys."""
    asking = talk.prompt
    more = f"  (and {asking.waiting_count} more)" if asking.waiting_count else ""
    about = _build_row(f"? {asking.describe_request()}", width - len(more), "bold yellow")
    lines: list[RenderableType] = [about.append(more)]
    if talk.is_in_grace_period:
        return [*lines, Text("")]
    if asking.form is not None:
        return [*lines, Text("a number or your own words; /no declines", style="yellow")]
    if talk.accepts_answer_key:
        return [
            *lines,
            Text(" · ".join([*asking.list_key_hints(), "Tab types a message"]), style="yellow"),
        ]
    return [*lines, Text("empty the line, or press Tab, to answer", style="yellow")]


def _list_key_hints(talk: InputController) -> list[str]:
    view = talk.view
    words = (
        []
        if view.can_control
        else [f"{format_short_line(str(view.controller))} drives", "Ctrl-T takes over"]
    )
    if view.is_busy:
        words.append("Ctrl-C interrupts")
    mode = [f"mode {format_short_line(view.mode)}"] if view.mode else []
    return [*words, "Ctrl-D leaves", "/help", *mode]


def _build_row(text: str, width: int, style: str) -> Text:
    """One row; what does not fit is left out."""
    row = Text(text, style=style)
    row.truncate(width, overflow="ellipsis")
    return row
