"""Draws the steps of a session for a person, from a recording or from a live run.

All text from vendors and models is escaped with `escape_control_chars` and never parsed as markup.
"""

from collections.abc import Callable, Iterable, Mapping

from rich.console import Console
from rich.text import Text

from shim.core.claude.permissions import QUESTION_TOOL
from shim.core.reading.bounded_dict import BoundedDict
from shim.core.reading.diagnostics import pluralize
from shim.core.reading.values import (
    as_dict,
    as_str,
    escape_control_chars,
    get_text,
    list_dicts,
    shorten_end,
)
from shim.story.edits import DiffLine, find_edit_diff_lines
from shim.story.events import (
    PROMPT_OUTCOMES,
    TODO_SIGNS,
    find_main_argument,
    format_model_name,
    has_only_question_texts_and_options,
)
from shim.story.model import SessionStep, SessionStepChange, SessionStepTracker, format_content_text
from shim.story.notes import describe_note_step
from shim.story.terminal.arguments import (
    DIFF_STYLES,
    HIDDEN_ARGUMENTS,
    INDENT_COLUMNS,
    MAX_ARGUMENT_CHARS,
    format_argument,
    format_arguments,
    format_diff_line,
    format_permission_request_call,
    format_text_on_one_truncated_line,
    format_tool_call,
    format_tool_name,
    render_tool_call_details,
    truncate_argument_line,
)
from shim.story.terminal.screen import RenderedKeyboardInput, TerminalScreen
from shim.story.terminal.totals import list_failure_reasons, render_session_totals, render_turn_end

MAX_ARGUMENT_LINES = 12  # for the main argument, and for the other arguments
MAX_OUTPUT_LINES = 8
MAX_OUTPUT_CHARS = 1200
MAX_DIFF_LINES = 40
MAX_NOTE_CHARS = 600
MAX_FULL_CHARS = 1_000_000  # per text with `full`
MAX_OPEN_CALLS = 10_000  # stored tool calls, to look up the depth of subagents
MAX_REMEMBERED_ERRORS = 10  # drawn error texts that the result need not repeat
# A result's reason is not drawn if it contains an error text of this length that was already drawn.
# A reason may contain a shorter text by chance.
MIN_QUOTED_CHARS = 20
MAX_DEPTH = 6  # nested subagents that are indented
NO_VENDOR = "none"  # the vendor name of a turn that could not start

# Kinds of notes whose counts are repeated in the turn's result.
_COUNTED_NOTES = ("repair", "unknown_event", "redaction")
_OUTCOME_SIGNS = {
    "ok": ("✓", "green"),
    "failed": ("✗", "red"),
    "denied": ("⊘", "yellow"),
    "unanswered": ("…", "yellow"),
}
_TODO_STYLES = {"completed": "green", "in_progress": "yellow"}


class TerminalSessionRenderer:
    """Draws session step changes on a terminal or as plain lines.

    live            show the current activity below the session
    thinking        show the complete thinking instead of one line
    full            do not shorten output and diffs
    is_interactive  a person answers permission prompts, so they are shown in full
    """

    def __init__(
        self,
        console: Console,
        story: SessionStepTracker,
        *,
        live: bool = False,
        thinking: bool = False,
        full: bool = False,
        is_interactive: bool = False,
    ) -> None:
        # If set, the session continues after the drawn part.
        # Open tool calls and permission prompts may still be answered.
        self.is_running = False
        self._screen = TerminalScreen(console, live=live)
        self._story = story
        self._thinking = thinking
        self._full = full
        self._is_interactive = is_interactive
        self._depths: dict[str, int] = {}
        self._running_calls = BoundedDict[int, str](MAX_OPEN_CALLS)
        self._prompt_times: dict[str, float] = {}
        self._last_call_line = ""  # the last drawn tool call, in one line
        self._last_drawn: tuple[str, int] = "", 0  # (kind, number) of the last drawn step
        self._has_output = False  # a model has replied or called a tool
        self._last_controller = ""  # the last client in control
        self._drawn_notes: set[str] = set()  # kinds of notes that the result need not repeat
        self._error_texts: list[str] = []  # drawn texts that the result need not repeat

    def draw_step_change(self, change: SessionStepChange) -> None:
        phase, step, fragment = change
        if phase == "more":
            self._screen.add_preview_fragment(fragment)
        elif phase == "begin":
            self._start_step(step)
        elif phase == "end":
            self._end_step(step)

    def show_wait_message(self, message: str) -> None:
        """Show a wait message until the first event arrives."""
        self._screen.show_wait_message(escape_control_chars(message))

    def print_notice(self, text: str, style: str = "dim") -> None:
        """Print a message from the shim that is not part of the session."""
        self._last_drawn = "said", 0
        self._print_text(text, style)

    def show_input_prompt(self, prompt: str) -> None:
        """Show the prompt for a person's answer."""
        self._screen.show_input_prompt(escape_control_chars(prompt))

    def end_input_prompt(self, *, has_answered: bool = True) -> None:
        """End the input prompt. `has_answered` is False if the prompt was closed without an answer."""
        if not has_answered:
            self._screen.end_open_input_prompt_line()
        self._screen.end_input_prompt()

    def hide_wait_message(self, printed_text: str = "") -> None:
        """Hide the current activity. The caller prints `printed_text` elsewhere, so the turn's
        result will not repeat it.
        """
        self._screen.end_open_input_prompt_line()
        self._screen.hide_wait_message()
        if printed_text:
            self._remember_error(printed_text)

    def show_typed_input(self, render_input: Callable[[int], RenderedKeyboardInput] | None) -> None:
        """Show the typed input below the session. `render_input` receives the width and returns the
        rendered input.
        """
        self._screen.render_input = render_input

    def flush(self, *, at_once: bool = False) -> None:
        """Flush the output in a pipe, or redraw the current activity on a terminal. If `at_once` is
        set, redraw without delay, because a person has typed.
        """
        self._screen.flush(at_once=at_once)

    def close(self, notices: Iterable[str] = ()) -> None:
        """Draw the end of the session: the notices, the totals, and the timeline."""
        self._screen.hide_wait_message()
        for text in notices:
            self._draw_blank_line()
            self.print_notice(text, "yellow")
        lines = render_session_totals(self._story, self._screen.width, has_output=self._has_output)
        if lines:
            self._draw_blank_line()
        for line in lines:
            self._screen.print_text(line)
        self._screen.flush()

    # -- steps -------------------------------------------------------------------------------------

    def _start_step(self, step: SessionStep) -> None:
        if step.kind == "call":
            self._draw_call(step)

    def _end_step(self, step: SessionStep) -> None:
        if step.kind in ("text", "thinking", "call"):
            self._has_output = True
        draw = _DRAW_METHODS.get(step.kind)
        if draw is not None:
            draw(self, step)
        self._show_current_wait()

    def _draw_start(self, step: SessionStep) -> None:
        fields = step.facts
        shim_fields = as_dict(fields.get("shim"))
        parts = [
            self._story.vendor or "claude",
            format_model_name(fields.get("model")),
            get_text(fields, "cwd"),
        ]
        if parts[0] == NO_VENDOR:
            return
        self._separate_from_last("start", step)
        self._print_text(" · ".join(filter(None, parts)), "dim")
        if isinstance(shim_fields, Mapping) and shim_fields.get("unattended"):
            self._print_text("this agent runs its tools without asking for permission", "yellow")

    def _draw_prompt(self, step: SessionStep) -> None:
        self._separate_from_last("prompt", step)
        for line in step.text.split("\n"):
            self._print_text(f"> {line}", "bold cyan", self._compute_indent(step))

    def _draw_text(self, step: SessionStep) -> None:
        if step.text.strip():
            self._separate_from_last("text", step)
            self._screen.print_markdown(step.text.strip("\n"), self._compute_indent(step))

    def _draw_thinking(self, step: SessionStep) -> None:
        self._separate_from_last("thinking", step)
        lines = [line for line in escape_control_chars(step.text).split("\n") if line.strip()]
        duration_s = 0.0
        if step.until:
            duration_s = step.until - step.at
        details = []
        if duration_s >= 1:
            details = [f"{duration_s:.1f} s"]
        if not lines:
            thinking_text = "(hidden thinking)"
        elif self._thinking:
            thinking_text = "\n".join(lines)
        else:
            thinking_text = shorten_end(lines[0], MAX_ARGUMENT_CHARS)
            if len(lines) > 1:
                details += [pluralize(len(lines) - 1, "more line")]
        text = Text("∴ ", style="dim").append(thinking_text, style="italic")
        self._screen.print_text(
            text.append(f"  ({', '.join(details)})" if details else ""), self._compute_indent(step)
        )

    def _draw_call(self, step: SessionStep) -> None:
        self._separate_from_last("call", step)
        indent = self._compute_indent(step)
        if len(self._depths) < MAX_OPEN_CALLS:
            self._depths[step.call] = self._depths.get(step.parent, 0) + 1
        main, others = self._format_argument_lines(step)
        head = Text("● ", style="cyan").append(format_tool_name(step), style="bold")
        self._screen.print_text(
            head.append(f"  {main[0]}", style="not bold default") if main else head, indent
        )
        for line in (*main[1:], *others):
            self._print_text(line, "dim", indent + INDENT_COLUMNS)
        if step.name == "TodoWrite":
            self._draw_todos(step, indent + INDENT_COLUMNS)
        self._last_drawn, self._last_call_line = ("call", step.number), format_tool_call(step)
        self._running_calls[step.number] = format_tool_name(step)
        self._show_current_wait()

    def _format_argument_lines(self, step: SessionStep) -> tuple[list[str], list[str]]:
        """Return two lists of lines: for the tool call's main argument, and for its other
        arguments.
        """
        if has_only_question_texts_and_options(step.input):
            return [format_arguments(step.input)], []
        main_name = find_main_argument(step.input)
        main = []
        if main_name:
            main = self._truncate_lines(step.input[main_name], MAX_ARGUMENT_LINES)
        others = [
            format_text_on_one_truncated_line(f"{name}: {format_argument(value)}")
            for name, value in step.input.items()
            if name != main_name and name not in HIDDEN_ARGUMENTS and value not in (None, False, "")
        ]
        return main, others if self._full or len(others) <= MAX_ARGUMENT_LINES else [
            *others[:MAX_ARGUMENT_LINES],
            f"… {pluralize(len(others) - MAX_ARGUMENT_LINES, 'more argument')}",
        ]

    def _draw_todos(self, step: SessionStep, indent: int) -> None:
        for todo in list_dicts(step.input.get("todos")):
            status = str(todo.get("status"))
            line = format_text_on_one_truncated_line(
                f"{TODO_SIGNS.get(status, '☐')} {format_argument(todo.get('content'))}"
            )
            self._print_text(line, _TODO_STYLES.get(status, ""), indent)

    def _draw_outcome(self, step: SessionStep) -> None:
        self._running_calls.pop(step.number, None)
        if self.is_running and step.outcome == "unanswered":
            return
        indent = self._compute_indent(step) + 2
        sign, style = _OUTCOME_SIGNS.get(step.outcome, ("?", ""))
        parts = []
        if step.outcome not in ("ok", "failed"):
            parts = [step.outcome]
        if self._last_drawn != ("call", step.number):
            self._separate_from_last("outcome", step)
            parts.insert(0, format_tool_call(step))
        parts.append(f"{step.run_time_s:.1f} s")
        self._screen.print_text(
            Text(f"{sign} ", style=style).append(" · ".join(parts), style="dim"), indent
        )
        lines = find_edit_diff_lines(step)
        if lines:
            self._draw_diff(lines, indent + 2)
        if step.outcome != "ok" or (lines is None and step.name != "TodoWrite"):
            self._draw_output(step, indent + 2)
        self._last_drawn = "outcome", step.number

    def _draw_diff(self, lines: list[DiffLine], indent: int) -> None:
        limit = MAX_DIFF_LINES
        if self._full:
            limit = len(lines)
        for line in lines[:limit]:
            text = truncate_argument_line(format_diff_line(line))
            self._print_text(text, DIFF_STYLES[line.sign], indent)
        if len(lines) > limit:
            self._print_text(f"… {pluralize(len(lines) - limit, 'more line')}", "dim", indent)

    def _draw_output(self, step: SessionStep, indent: int) -> None:
        text = format_content_text(step.output).strip("\n")
        if not text.strip():
            if step.outcome != "unanswered":
                self._print_text("(no output)", "dim", indent)
            return
        style = "dim"
        if step.outcome == "failed":
            style = "red"
        for line in self._truncate_lines(text, MAX_OUTPUT_LINES):
            self._print_text(line, style, indent)

    def _draw_question(self, step: SessionStep) -> None:
        if len(self._prompt_times) < MAX_OPEN_CALLS:
            self._prompt_times[step.call] = step.at
        if self._is_interactive:
            call_line = format_permission_request_call(step)
        else:
            call_line = format_tool_call(step)
        # If the call was just drawn, it is not drawn again: the prompt appears in the input area.
        if (
            self._screen.render_input is None
            or self._last_drawn[0] != "call"
            or self._last_call_line != call_line
        ):
            self._separate_from_last("question", step)
            question = f"Allow {call_line}"
            if step.name == QUESTION_TOOL and (
                self._is_interactive or has_only_question_texts_and_options(step.input)
            ):
                question = "the agent asks"
                if not self._is_interactive:
                    question = format_arguments(step.input)
            self._screen.print_text(
                Text("? ", style="yellow").append(question), self._compute_indent(step)
            )
        for line in render_tool_call_details(step) if self._is_interactive else ():
            self._screen.print_text(line, self._compute_indent(step) + INDENT_COLUMNS)

    def _draw_answer(self, step: SessionStep) -> None:
        waited_s = step.at - self._prompt_times.pop(step.call, step.at)
        outcome = PROMPT_OUTCOMES.get(step.text, step.text)
        reason = as_str(as_dict(step.facts.get("response")).get("message"))
        client = step.facts.get("by")
        text = f"→ {outcome}{f' by {client}' if client else ''} after {waited_s:.1f} s" + (
            f": {reason}" if reason else ""
        )
        line = format_text_on_one_truncated_line(text)
        self._print_text(line, "yellow", self._compute_indent(step) + 2)
        self._last_drawn = "answer", step.number

    def _draw_note(self, step: SessionStep) -> None:
        if step.name == "driver" and not self._is_new_controller(get_text(step.facts, "client")):
            return
        if step.name in _COUNTED_NOTES:
            self._drawn_notes.add(step.name)
        elif step.name == "user":
            self._remember_error(step.text)
        self._separate_from_last("note", step)
        text = "\n".join(
            self._truncate_lines(
                describe_note_step(step)[: MAX_FULL_CHARS if self._full else MAX_NOTE_CHARS],
                MAX_ARGUMENT_LINES,
            )
        )
        self._print_text(f"· {text}", "yellow", self._compute_indent(step))

    def _is_new_controller(self, client: str) -> bool:
        """Return whether a different client now controls the session. If the same client releases
        and takes control again, the controller is not new.
        """
        previous = self._last_controller
        if client:
            self._last_controller = client
        if not previous:
            return False
        return self._last_controller != previous

    def _draw_error(self, step: SessionStep) -> None:
        self._separate_from_last("error", step)
        self._remember_error(step.text)
        self._print_text(step.text, "red", self._compute_indent(step))

    def _remember_error(self, text: str) -> None:
        """Store an error text that was already drawn, so that the turn's result does not repeat it."""
        self._error_texts.append(text)
        del self._error_texts[:-MAX_REMEMBERED_ERRORS]

    def _draw_result(self, step: SessionStep) -> None:
        self._running_calls.clear()
        self._separate_from_last("result", step)
        for reason in list_failure_reasons(step.facts):
            if not any(
                text == reason or (len(text) >= MIN_QUOTED_CHARS and text in reason)
                for text in self._error_texts
            ):
                self._print_text(reason, "red")
        self._error_texts.clear()
        for line in render_turn_end(step, self._drawn_notes):
            self._screen.print_text(line)
        self._drawn_notes.clear()

    # -- layout ------------------------------------------------------------------------------------

    def _print_text(self, text: str, style: str, indent: int = 0) -> None:
        self._screen.print_text(Text(escape_control_chars(text), style=style), indent)

    def _compute_indent(self, step: SessionStep) -> int:
        if step.parent:
            return INDENT_COLUMNS * min(self._depths.get(step.parent, 0), MAX_DEPTH)
        return 0

    def _separate_from_last(self, kind: str, step: SessionStep) -> None:
        """Draw a blank line before a step that is unrelated to the previous step."""
        last = self._last_drawn[0]
        if last and not (kind == last == "note") and not (last == "error" and kind == "result"):
            self._draw_blank_line()
        self._last_drawn = kind, step.number

    def _draw_blank_line(self) -> None:
        self._screen.print_text(Text(""))

    def _show_current_wait(self) -> None:
        if self._running_calls:
            self._screen.show_wait_message(
                f"{next(reversed(self._running_calls.values()))} is running"
            )
        else:
            self._screen.show_wait_message("waiting for the agent")

    def _truncate_lines(self, text: str, max_lines: int) -> list[str]:
        """Return the first lines of a text, followed by a line with the number of omitted lines."""
        text = escape_control_chars(text[:MAX_FULL_CHARS])
        all_lines = text.split("\n")
        if self._full:
            return all_lines
        visible_lines = list[str]()
        char_count = 0
        for line in all_lines[:max_lines]:
            visible_lines.append(truncate_argument_line(line))
            char_count += len(visible_lines[-1])
            if char_count > MAX_OUTPUT_CHARS:
                break
        return visible_lines + (
            [f"… {pluralize(len(all_lines) - len(visible_lines), 'more line')}"]
            if len(all_lines) > len(visible_lines)
            else []
        )


_DRAW_METHODS = {
    "start": TerminalSessionRenderer._draw_start,
    "prompt": TerminalSessionRenderer._draw_prompt,
    "thinking": TerminalSessionRenderer._draw_thinking,
    "text": TerminalSessionRenderer._draw_text,
    "call": TerminalSessionRenderer._draw_outcome,
    "question": TerminalSessionRenderer._draw_question,
    "answer": TerminalSessionRenderer._draw_answer,
    "note": TerminalSessionRenderer._draw_note,
    "error": TerminalSessionRenderer._draw_error,
    "result": TerminalSessionRenderer._draw_result,
}
