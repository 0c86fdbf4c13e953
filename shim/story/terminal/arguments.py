"""A call's name and arguments as a person reads them: in one line, in a few, or whole where they
are asked about.

All of it is `printable`, and is drawn as text only (threats: terminal).
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import orjson
from rich.text import Text

from shim.core.claude.permissions import QUESTION_TOOL
from shim.core.reading.account import escape_control_chars
from shim.core.reading.json_text import dump_json
from shim.story.edits import find_edit_lines
from shim.story.steps import (
    MAIN_ARGUMENTS,
    MAX_OPTIONS,
    MAX_QUESTIONS,
    Step,
    has_only_plain_questions,
)
from shim.story.unified_diff import list_diffed_arguments

MAX_ARGUMENT_CHARS = 160
MAX_CALL_CHARS = 1_000_000  # of a call that is asked about; no frontend's question is longer
# A session on its own is listed; elsewhere nothing but a no is safe.
TOO_LONG_NOTE = (
    "… and {more:,} more characters, too many for a terminal: `shim bridge list --json` has them if the session lives "
    "on its own; say no to what you cannot read"
)
INDENT_COLUMNS = 4
MAX_QUESTION_CHARS = 160  # of a question, where one line says it
DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan", " ": "dim"}

# Arguments that are drawn in another way, or not at all.
HIDDEN_ARGUMENTS = frozenset(
    ("old_string", "new_string", "content", "edits", "new_source", "todos")
)


def format_arguments(arguments: Mapping[str, Any]) -> str:
    """A call's arguments in one line: the main one, what it asks a person, or all."""
    for name in MAIN_ARGUMENTS:
        if isinstance(arguments.get(name), str):
            return format_short_line(arguments[name])
    if has_only_plain_questions(arguments):
        return format_short_line(" ".join(map(_summarize_question, parse_questions(arguments))))
    return format_short_line(
        ", ".join(f"{name}={format_argument(value)}" for name, value in arguments.items())
    )


def format_call(step: Step) -> str:
    """A call in one line."""
    return " ".join(filter(None, (format_tool_name(step), format_arguments(step.input))))


def format_requested_call(step: Step) -> str:
    """A call that is asked about: `whole` has what its one line cuts, but for the name."""
    return " ".join(
        filter(None, (format_full_line(step.name) or "?", format_arguments(step.input)))
    )


def format_tool_name(step: Step) -> str:
    return format_short_line(step.name) or "?"


def format_argument(value: object) -> str:
    text = value if isinstance(value, str) else dump_json(value).decode()
    return text[: 4 * MAX_ARGUMENT_CHARS]


def format_short_line(text: str) -> str:
    return truncate_line(format_full_line(text))


def format_full_line(text: str) -> str:
    """A text in one line, and all of it: what decides is never cut."""
    return escape_control_chars(text).replace("\n", " ⏎ ")


def truncate_line(text: str) -> str:
    more = len(text) - MAX_ARGUMENT_CHARS
    return text if more <= 0 else f"{text[:MAX_ARGUMENT_CHARS]}… ({more} more characters)"


# -- what a call asks ------------------------------------------------------------------------------


class FormQuestion(NamedTuple):
    """One question. `options` are labels with what they mean; `several` may be chosen."""

    text: str
    options: tuple[tuple[str, str], ...]
    allows_several: bool = False


def parse_questions(arguments: Mapping[str, Any]) -> list[FormQuestion]:
    """The questions of a call, as far as they can be read."""
    found = arguments.get("questions")
    return [
        FormQuestion(
            str(one["question"]),
            tuple(_parse_options(one.get("options"))),
            one.get("multiSelect") is True,
        )
        for one in (found if isinstance(found, list) else ())[:MAX_QUESTIONS]
        if isinstance(one, Mapping) and one.get("question")
    ]


def _summarize_question(asked: FormQuestion) -> str:
    labels = " · ".join(label for label, _ in asked.options)
    return f"{asked.text} ({labels})" if labels else asked.text


def _parse_options(said: Any) -> list[tuple[str, str]]:
    return [
        (str(one["label"]), str(one.get("description") or ""))
        for one in (said if isinstance(said, list) else ())[:MAX_OPTIONS]
        if isinstance(one, Mapping) and one.get("label")
    ]


# -- whole -----------------------------------------------------------------------------------------


def render_full_call(step: Step) -> list[Text]:
    """All that a call would do and its one line does not say; for what asks a person, its
    questions.
    """
    asked = parse_questions(step.input) if step.name == QUESTION_TOOL else []
    found = [line for one in asked for line in _render_question(*one)]
    if not asked or not has_only_plain_questions(step.input):
        found += _render_arguments(step)
    lines, size = list[Text](), 0
    for line in found:
        size += len(line)
        if size <= MAX_CALL_CHARS:
            lines.append(line)
    kept = sum(map(len, lines))
    return (
        lines
        if kept == size
        else [*lines, Text(TOO_LONG_NOTE.format(more=size - kept), style="red")]
    )


def _render_arguments(step: Step) -> Iterator[Text]:
    change, said = find_edit_lines(step), format_arguments(step.input)
    hidden = list_diffed_arguments(step.name, step.input) if change else frozenset()
    main = next((name for name in MAIN_ARGUMENTS if isinstance(step.input.get(name), str)), "")
    for name, value in sorted(step.input.items(), key=lambda item: item[0] not in MAIN_ARGUMENTS):
        if name in hidden:
            continue
        text = escape_control_chars(value if isinstance(value, str) else _dump_indented(value))
        if name == main and text == said:
            continue
        first, *rest = text.split("\n")
        key = format_full_line(name)
        head = Text(f"{key}: ", style="dim").append(first, style="not dim")
        yield head if not rest else Text(f"{key}:", style="dim")
        for line in (first, *rest) if rest else ():
            yield Text(f"  {line}")
    for sign, text in change or ():
        yield Text(
            escape_control_chars(text) if sign == "@" else f"{sign} {escape_control_chars(text)}",
            style=DIFF_STYLES[sign],
        )


def _dump_indented(value: object) -> str:
    return orjson.dumps(value, default=str, option=orjson.OPT_INDENT_2).decode()


def _render_question(
    text: str, options: tuple[tuple[str, str], ...], several: bool
) -> Iterator[Text]:
    for line in escape_control_chars(text).split("\n"):
        yield Text(line, style="bold")
    for number, (label, about) in enumerate(options, 1):
        option = Text().append(f"  {number}  ", style="cyan").append(format_full_line(label))
        yield option.append(f"  {format_full_line(about)}" if about else "", style="dim")
    if several:
        yield Text("  (several may be chosen)", style="dim")
