"""Draws the steps of a story for a person: of a recording, or of a live run.

All text of vendors and models goes through `printable` and is never parsed as markup (threats:
terminal).
"""

from collections.abc import Callable, Iterable, Mapping

from rich.console import Console
from rich.text import Text

from shim.core.claude.permissions import QUESTION_TOOL
from shim.core.reading.account import escape_control_chars, pluralize
from shim.core.reading.bounded import BoundedDict
from shim.story.edits import DiffLine, find_edit_lines
from shim.story.remarks import describe_note
from shim.story.steps import MAIN_ARGUMENTS, TODO_SIGNS, format_model_name, has_only_plain_questions
from shim.story.story import Step, StepChange, Story, format_content
from shim.story.terminal.arguments import (
    DIFF_STYLES,
    HIDDEN_ARGUMENTS,
    INDENT_COLUMNS,
    MAX_ARGUMENT_CHARS,
    format_argument,
    format_arguments,
    format_call,
    format_requested_call,
    format_short_line,
    format_tool_name,
    render_full_call,
    truncate_line,
)
from shim.story.terminal.paper import Paper, Typed
from shim.story.terminal.sums import reasons, session_lines, turn_line

ARGUMENT_LINES = 12  # of a command, or of further arguments
OUTPUT_LINES = 8
OUTPUT_CHARACTERS = 1200
DIFF_LINES = 40
NOTE_CHARACTERS = 600
FULL_CHARACTERS = 1_000_000  # with `full`
NESTED = 10_000  # calls that are remembered for the depth of their agents
ERRORS = 10  # texts of a turn that are not repeated as its reason
QUOTED = 20  # characters of such a text, from which on the reason may also quote it
DEPTH = 6  # levels of nested agents
NO_VENDOR = "none"  # answers a turn that could not begin

_COUNTED = ("repair", "unknown_event", "redaction")  # notes whose counts are also in the result
_SETTLED = {
    "allow": "allowed", "deny": "denied", "timeout": "nobody answered in time: denied", "cancelled": "withdrawn",
    "interrupt": "withdrawn, the turn being interrupted", "ended": "denied, the session being over",
}  # fmt: skip
_MARKS = {
    "ok": ("✓", "green"),
    "failed": ("✗", "red"),
    "denied": ("⊘", "yellow"),
    "unanswered": ("…", "yellow"),
}
_TODO_STYLES = {"completed": "green", "in_progress": "yellow"}


class Drawing:
    """Draws the changes of a story. `live`: show what is going on now; `thinking`: show it whole,
    not as one line; `full`: do not cut output and diffs; `asks`: a person answers, so that
    questions are not cut either.
    """

    def __init__(
        self,
        console: Console,
        story: Story,
        *,
        live: bool = False,
        thinking: bool = False,
        full: bool = False,
        asks: bool = False,
    ) -> None:
        # the session goes on behind what is drawn: what is open then may still be answered
        self.unended = False
        self._paper = Paper(console, live=live)
        self._story = story
        self._thinking = thinking
        self._full = full
        self._asks = asks
        self._depths: dict[str, int] = {}
        self._running = BoundedDict[int, str](NESTED)
        self._asked: dict[str, float] = {}
        self._head = ""  # the call that was drawn last, in one line
        self._last: tuple[str, int] = "", 0  # the kind and the step that were drawn last
        self._answered = False  # a model has said or called something
        self._drove = ""  # the client that drove last
        self._noted: set[str] = set()  # kinds of notes that the result need not repeat
        self._wrong: list[str] = []  # texts of this turn that may be its reason to fail

    def change(self, change: StepChange) -> None:
        what, step, fragment = change
        if what == "more":
            self._paper.preview(fragment)
        elif what == "begin":
            self._begin(step)
        else:
            self._end(step)

    def wait(self, what: str) -> None:
        """Show that the first event is awaited."""
        self._paper.wait(escape_control_chars(what))

    def said(self, text: str, style: str = "dim") -> None:
        """Draw a remark that is not of the session."""
        self._last = "said", 0
        self._paper.line(Text(escape_control_chars(text), style=style))

    def ask(self, prompt: str) -> None:
        """Draw what stands in front of a person's answer."""
        self._paper.ask(escape_control_chars(prompt))

    def answered(self, *, typed: bool = True) -> None:
        """The person has answered, or (not `typed`) need not answer any more."""
        if not typed:
            self._paper.end_line()
        self._paper.answered()

    def rest(self, said: str = "") -> None:
        """Show nothing that moves. `said` is told elsewhere, so that the result need not repeat it."""
        self._paper.end_line()
        self._paper.rest()
        if said:
            self._drew(said)

    def typed_by(self, typed: Callable[[int], Typed] | None) -> None:
        """Show below all else what a person types at a width."""
        self._paper.typed = typed

    def flush(self, *, at_once: bool = False) -> None:
        """Flush, for a reader of a pipe; on a terminal draw what is going on now. `at_once`: a
        person has typed.
        """
        self._paper.flush(at_once=at_once)

    def close(self, ending: Iterable[str] = ()) -> None:
        """Draw the end: sums, the bar of the time, and remarks about the recording."""
        self._paper.rest()
        for text in ending:
            self._blank()
            self.said(text, "yellow")
        lines = session_lines(self._story, self._paper.width, has_output=self._answered)
        if lines:
            self._blank()
        for line in lines:
            self._paper.line(line)
        self._paper.flush()

    # -- steps -------------------------------------------------------------------------------------

    def _begin(self, step: Step) -> None:
        if step.kind == "call":
            self._call(step)

    def _end(self, step: Step) -> None:
        self._answered = self._answered or step.kind in ("text", "thinking", "call")
        draw = _DRAWN.get(step.kind)
        if draw is not None:
            draw(self, step)
        self._wait()

    def _start(self, step: Step) -> None:
        facts = step.facts
        shim = facts.get("shim") if isinstance(facts.get("shim"), Mapping) else {}
        parts = [
            self._story.vendor or "claude",
            format_model_name(facts.get("model")),
            str(facts.get("cwd") or ""),
        ]
        if parts[0] == NO_VENDOR:
            return
        self._space("start", step)
        self._paper.line(Text(escape_control_chars(" · ".join(filter(None, parts))), style="dim"))
        if isinstance(shim, Mapping) and shim.get("unattended"):
            self._paper.line(
                Text("this agent runs its tools without asking anybody", style="yellow")
            )

    def _prompt(self, step: Step) -> None:
        self._space("prompt", step)
        for line in escape_control_chars(step.text).split("\n"):
            self._paper.line(Text(f"> {line}", style="bold cyan"), self._indent(step))

    def _text(self, step: Step) -> None:
        if step.text.strip():
            self._space("text", step)
            self._paper.markdown(step.text.strip("\n"), self._indent(step))

    def _thought(self, step: Step) -> None:
        self._space("thinking", step)
        lines = [line for line in escape_control_chars(step.text).split("\n") if line.strip()]
        took = (step.until or step.at) - step.at
        facts = [f"{took:.1f} s"] if took >= 1 else []
        if not lines:
            shown = "(thinking that is not shown)"
        elif self._thinking:
            shown = "\n".join(lines)
        else:
            shown = lines[0][:MAX_ARGUMENT_CHARS] + (
                "…" if len(lines[0]) > MAX_ARGUMENT_CHARS else ""
            )
            facts += [pluralize(len(lines) - 1, "more line")] if len(lines) > 1 else []
        text = Text("∴ ", style="dim").append(shown, style="italic")
        self._paper.line(
            text.append(f"  ({', '.join(facts)})" if facts else ""), self._indent(step)
        )

    def _call(self, step: Step) -> None:
        self._space("call", step)
        indent = self._indent(step)
        if len(self._depths) < NESTED:
            self._depths[step.call] = self._depths.get(step.parent, 0) + 1
        main, others = self._arguments(step)
        head = Text("● ", style="cyan").append(format_tool_name(step), style="bold")
        self._paper.line(
            head.append(f"  {main[0]}", style="not bold default") if main else head, indent
        )
        for line in (*main[1:], *others):
            self._paper.line(Text(line, style="dim"), indent + INDENT_COLUMNS)
        if step.name == "TodoWrite":
            self._todos(step, indent + INDENT_COLUMNS)
        self._last, self._head = ("call", step.number), format_call(step)
        self._running[step.number] = format_tool_name(step)
        self._wait()

    def _arguments(self, step: Step) -> tuple[list[str], list[str]]:
        """The lines of the main argument, and those of the others."""
        if has_only_plain_questions(step.input):
            return [format_arguments(step.input)], []
        first = next(
            (name for name in MAIN_ARGUMENTS if isinstance(step.input.get(name), str)), None
        )
        main = self._cut(step.input[first], ARGUMENT_LINES) if first else []
        others = [
            format_short_line(f"{name}: {format_argument(value)}")
            for name, value in step.input.items()
            if name != first and name not in HIDDEN_ARGUMENTS and value not in (None, False, "")
        ]
        return main, others if self._full or len(others) <= ARGUMENT_LINES else [
            *others[:ARGUMENT_LINES],
            f"… {pluralize(len(others) - ARGUMENT_LINES, 'more argument')}",
        ]

    def _todos(self, step: Step, indent: int) -> None:
        todos = step.input.get("todos")
        for todo in todos if isinstance(todos, list) else ():
            if isinstance(todo, Mapping):
                status = str(todo.get("status"))
                line = format_short_line(
                    f"{TODO_SIGNS.get(status, '☐')} {format_argument(todo.get('content'))}"
                )
                self._paper.line(Text(line, style=_TODO_STYLES.get(status, "")), indent)

    def _outcome(self, step: Step) -> None:
        self._running.pop(step.number, None)
        if self.unended and step.outcome == "unanswered":
            return
        indent = self._indent(step) + 2
        mark, style = _MARKS.get(step.outcome, ("?", ""))
        said = [] if step.outcome in ("ok", "failed") else [step.outcome]
        if self._last != ("call", step.number):
            self._space("outcome", step)
            said.insert(0, format_call(step))
        said.append(f"{(step.until or step.at) - step.at:.1f} s")
        self._paper.line(
            Text(f"{mark} ", style=style).append(" · ".join(said), style="dim"), indent
        )
        lines = find_edit_lines(step)
        if lines:
            self._diff(lines, indent + 2)
        if step.outcome != "ok" or (lines is None and step.name != "TodoWrite"):
            self._output(step, indent + 2)
        self._last = "outcome", step.number

    def _diff(self, lines: list[DiffLine], indent: int) -> None:
        limit = len(lines) if self._full else DIFF_LINES
        for sign, text in lines[:limit]:
            if sign != "@":
                self._paper.line(
                    Text(
                        truncate_line(f"{sign} {escape_control_chars(text)}"),
                        style=DIFF_STYLES[sign],
                    ),
                    indent,
                )
            else:
                self._paper.line(Text(escape_control_chars(text), style=DIFF_STYLES[sign]), indent)
        if len(lines) > limit:
            self._paper.line(
                Text(f"… {pluralize(len(lines) - limit, 'more line')}", style="dim"), indent
            )

    def _output(self, step: Step, indent: int) -> None:
        text = format_content(step.output).strip("\n")
        if not text.strip():
            if step.outcome != "unanswered":
                self._paper.line(Text("(no output)", style="dim"), indent)
            return
        style = "red" if step.outcome == "failed" else "dim"
        for line in self._cut(text, OUTPUT_LINES):
            self._paper.line(Text(line, style=style), indent)

    def _question(self, step: Step) -> None:
        if len(self._asked) < NESTED:
            self._asked[step.call] = step.at
        told = format_requested_call(step) if self._asks else format_call(step)
        # Its call stands right above in full, and the question itself where the person types.
        if self._paper.typed is None or self._last[0] != "call" or self._head != told:
            self._space("question", step)
            what = f"may it run {told}"
            if step.name == QUESTION_TOOL and (self._asks or has_only_plain_questions(step.input)):
                what = "it asks you" if self._asks else format_arguments(step.input)
            self._paper.line(Text("? ", style="yellow").append(what), self._indent(step))
        for line in render_full_call(step) if self._asks else ():
            self._paper.line(line, self._indent(step) + INDENT_COLUMNS)

    def _answer(self, step: Step) -> None:
        waited = step.at - self._asked.pop(step.call, step.at)
        words = _SETTLED.get(step.text, step.text)
        response = step.facts.get("response")
        why = response.get("message") if isinstance(response, Mapping) else None
        by = step.facts.get("by")
        text = f"→ {words}{f' by {by}' if by else ''} after {waited:.1f} s" + (
            f": {why}" if isinstance(why, str) and why else ""
        )
        self._paper.line(Text(format_short_line(text), style="yellow"), self._indent(step) + 2)
        self._last = "answer", step.number

    def _note(self, step: Step) -> None:
        if step.name == "driver" and not self._taken_over(str(step.facts.get("client") or "")):
            return
        if step.name in _COUNTED:
            self._noted.add(step.name)
        elif step.name == "user":
            self._drew(step.text)
        self._space("note", step)
        text = "\n".join(
            self._cut(
                describe_note(step)[: FULL_CHARACTERS if self._full else NOTE_CHARACTERS],
                ARGUMENT_LINES,
            )
        )
        self._paper.line(Text(f"· {text}", style="yellow"), self._indent(step))

    def _taken_over(self, client: str) -> bool:
        """Whether another client drives than before: that somebody drives, or lets go, is no news
        to a person.
        """
        before, self._drove = self._drove, client or self._drove
        return bool(before) and self._drove != before

    def _error(self, step: Step) -> None:
        self._space("error", step)
        self._drew(step.text)
        self._paper.line(Text(escape_control_chars(step.text), style="red"), self._indent(step))

    def _drew(self, text: str) -> None:
        """Remember a text that the result of the turn may repeat as its reason."""
        self._wrong.append(text)
        del self._wrong[:-ERRORS]

    def _result(self, step: Step) -> None:
        self._running.clear()
        self._space("result", step)
        for reason in reasons(step.facts):
            if not any(
                text == reason or (len(text) >= QUOTED and text in reason) for text in self._wrong
            ):
                self._paper.line(Text(escape_control_chars(reason), style="red"))
        self._wrong.clear()
        for line in turn_line(step, self._noted):
            self._paper.line(line)
        self._noted.clear()

    # -- where it stands ---------------------------------------------------------------------------

    def _indent(self, step: Step) -> int:
        return INDENT_COLUMNS * min(self._depths.get(step.parent, 0), DEPTH) if step.parent else 0

    def _space(self, kind: str, step: Step) -> None:
        """Draw a blank line between two things that do not belong together."""
        last = self._last[0]
        if last and not (kind == last == "note") and not (last == "error" and kind == "result"):
            self._blank()
        self._last = kind, step.number

    def _blank(self) -> None:
        self._paper.line(Text(""))

    def _wait(self) -> None:
        if self._running:
            self._paper.wait(f"{next(reversed(self._running.values()))} is running")
        else:
            self._paper.wait("waiting for the agent")

    def _cut(self, text: str, lines: int) -> list[str]:
        """The first lines of a text that are shown, and how many are not."""
        text = escape_control_chars(text[:FULL_CHARACTERS])
        found = text.split("\n")
        if self._full:
            return found
        kept, size = list[str](), 0
        for line in found[:lines]:
            kept.append(truncate_line(line))
            size += len(kept[-1])
            if size > OUTPUT_CHARACTERS:
                break
        return kept + (
            [f"… {pluralize(len(found) - len(kept), 'more line')}"]
            if len(found) > len(kept)
            else []
        )


_DRAWN = {
    "start": Drawing._start,
    "prompt": Drawing._prompt,
    "thinking": Drawing._thought,
    "text": Drawing._text,
    "call": Drawing._outcome,
    "question": Drawing._question,
    "answer": Drawing._answer,
    "note": Drawing._note,
    "error": Drawing._error,
    "result": Drawing._result,
}
