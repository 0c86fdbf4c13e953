"""Renders the lines below an attached session: the open permission prompt, the message that is
being typed, and the available keys.
"""

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from shim.commands.sessions.terminal.input_controller import TerminalInputController
from shim.core.reading.values import escape_control_chars
from shim.story.terminal.arguments import format_text_on_one_truncated_line
from shim.story.terminal.footer import InputCursor
from shim.story.terminal.screen import RenderedKeyboardInput

MAX_ROWS = 6  # visible rows of the typed message
MAX_WAITING_MESSAGES = 3  # visible messages that wait for their turn
MIN_COLUMNS = 8
INPUT_PREFIX = "> "


def render_message_input(
    input_controller: TerminalInputController, width: int
) -> RenderedKeyboardInput:
    """Render the input lines for a terminal of this width, with the cursor position."""
    width = max(width, MIN_COLUMNS)
    header_lines: list[RenderableType] = [Text("")]
    for text in list(input_controller.pending_messages.values())[:MAX_WAITING_MESSAGES]:
        header_lines.append(
            _build_row(f"next: {format_text_on_one_truncated_line(text)}", width, "dim")
        )
    if input_controller.prompt.request_id:
        header_lines += _draw_prompt(input_controller, width)
    text, cursor, is_beginning = crop_text_near_cursor(
        input_controller.editor.text, input_controller.editor.cursor, width
    )
    rows, row, column = wrap_rows(text, cursor, width - len(INPUT_PREFIX) - 1)
    first_row = min(max(row - MAX_ROWS + 1, 0), max(len(rows) - MAX_ROWS, 0))
    visible_rows = rows[first_row : first_row + MAX_ROWS]
    prefixes = [INPUT_PREFIX if is_beginning and not first_row else "  ", *["  "] * MAX_ROWS]
    lines = [Text(prefix + text) for prefix, text in zip(prefixes, visible_rows, strict=False)]
    footer = _build_row(" · ".join(_list_key_hints(input_controller)), width, "dim")
    rows_from_last = len(visible_rows) - (row - first_row)
    return RenderedKeyboardInput(
        Group(*header_lines, *lines, footer),
        InputCursor(rows_from_last, len(INPUT_PREFIX) + column),
    )


def crop_text_near_cursor(text: str, cursor: int, width: int) -> tuple[str, int, bool]:
    """Return the part of a text around the cursor, and the cursor position in this part. Also
    return whether the part starts at the beginning of the text.

    Small cursor movements do not change the part, so that the rows do not jump.
    """
    step = 2 * MAX_ROWS * width
    start = max(cursor // step - 1, 0) * step
    return text[start : start + 3 * step], cursor - start, start == 0


def wrap_rows(text: str, cursor: int, width: int) -> tuple[list[str], int, int]:
    """Wrap a text into rows of at most `width` cells. Return the rows, and the row and column of
    the cursor.
    """
    rows = [""]
    cells = 0
    cursor_cell = (0, 0)
    for index, character in enumerate(text):
        if index == cursor:
            cursor_cell = (len(rows) - 1, cells)
        if character == "\n":
            rows.append("")
            cells = 0
            continue
        glyph = "    "
        if character != "\t":
            glyph = escape_control_chars(character)
        glyph_width = cell_len(glyph)
        if cells + glyph_width > width:
            rows.append("")
            cells = 0
            cursor_cell = cursor_cell
            if index == cursor:
                cursor_cell = (len(rows) - 1, 0)
        rows[-1] += glyph
        cells += glyph_width
    return rows, *(cursor_cell if cursor < len(text) else (len(rows) - 1, cells))


def _draw_prompt(input_controller: TerminalInputController, width: int) -> list[RenderableType]:
    """Draw the open permission prompt and its keys. No text from the agent can follow the prompt."""
    prompt = input_controller.prompt
    more_text = ""
    if prompt.waiting_count:
        more_text = f"  (and {prompt.waiting_count} more)"
    heading = _build_row(f"? {prompt.describe_request()}", width - len(more_text), "bold yellow")
    lines: list[RenderableType] = [heading.append(more_text)]
    if input_controller.is_prompt_in_answer_grace_period:
        return [*lines, Text("")]
    if prompt.form is not None:
        return [*lines, Text("type a number or your own text, or /no to decline", style="yellow")]
    if input_controller.accepts_answer_key:
        return [
            *lines,
            Text(" · ".join([*prompt.list_key_hints(), "Tab types a message"]), style="yellow"),
        ]
    return [*lines, Text("clear the line or press Tab to answer", style="yellow")]


def _list_key_hints(input_controller: TerminalInputController) -> list[str]:
    view = input_controller.view
    hints = []
    if not view.can_control:
        hints = [
            f"{format_text_on_one_truncated_line(str(view.controller))} has control",
            "Ctrl-T takes control",
        ]
    if view.is_busy:
        hints.append("Ctrl-C interrupts")
    mode_hint = []
    if view.mode:
        mode_hint = [f"mode {format_text_on_one_truncated_line(view.mode)}"]
    return [*hints, "Ctrl-D leaves", "/help", *mode_hint]


def _build_row(text: str, width: int, style: str) -> Text:
    """Build one row of text. Text that does not fit is cut off."""
    row = Text(text, style=style)
    row.truncate(width, overflow="ellipsis")
    return row
