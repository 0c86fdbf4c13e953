"""Formats a tool call's name and arguments for a person: in one line, in a few lines, or in full
for a permission prompt.

All text is escaped with `escape_control_chars` and drawn as plain text.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import orjson
from rich.text import Text

from shim.core.claude.permissions import QUESTION_TOOL
from shim.core.reading.json_text import dump_json
from shim.core.reading.values import as_list, escape_control_chars, get_text
from shim.story.diff import list_fully_diffed_arguments
from shim.story.edits import DiffLine, find_edit_diff_lines
from shim.story.events import (
    MAIN_ARGUMENTS,
    MAX_OPTIONS,
    MAX_QUESTIONS,
    SessionStep,
    find_main_argument,
    has_only_question_texts_and_options,
)

MAX_ARGUMENT_CHARS = 160
MAX_CALL_CHARS = 1_000_000  # in a permission prompt; a longer call does not fit into an SDK's line
# Only a background session can print its open prompts.
# In other sessions, the user cannot see the complete prompt, so only a denial is safe.
TOO_LONG_NOTE = (
    "… and {more:,} more characters, too many for a terminal: `shim bridge list --json` prints them "
    "for a background session; deny what you cannot read"
)
INDENT_COLUMNS = 4
MAX_QUESTION_CHARS = 160  # per question in the one-line form
DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan", " ": "dim"}

# Arguments that are omitted, or drawn in another form such as a diff.
HIDDEN_ARGUMENTS = frozenset(
    ("old_string", "new_string", "content", "edits", "new_source", "todos")
)


def format_arguments(tool_input: Mapping[str, Any]) -> str:
    """Format a tool call's arguments in one line: the main argument, the questions to the user, or
    all arguments.
    """
    if main := find_main_argument(tool_input):
        return format_text_on_one_truncated_line(tool_input[main])
    if has_only_question_texts_and_options(tool_input):
        return format_text_on_one_truncated_line(
            " ".join(map(_summarize_question, parse_form_questions(tool_input)))
        )
    return format_text_on_one_truncated_line(
        ", ".join(f"{name}={format_argument(value)}" for name, value in tool_input.items())
    )


def format_tool_call(step: SessionStep) -> str:
    """Format a tool call's name and arguments in one line."""
    return " ".join(filter(None, (format_tool_name(step), format_arguments(step.input))))


def format_permission_request_call(step: SessionStep) -> str:
    """Format the tool call of a permission prompt in one line. `render_tool_call_details` returns
    the rest.
    """
    return " ".join(
        filter(None, (format_text_on_one_line(step.name) or "?", format_arguments(step.input)))
    )


def format_tool_name(step: SessionStep) -> str:
    return format_text_on_one_truncated_line(step.name) or "?"


def format_argument(value: object) -> str:
    if isinstance(value, str):
        text = value
    else:
        text = dump_json(value).decode()
    return text[: 4 * MAX_ARGUMENT_CHARS]


def format_text_on_one_truncated_line(text: str) -> str:
    return truncate_argument_line(format_text_on_one_line(text))


def format_text_on_one_line(text: str) -> str:
    """Format a text in one line. The text is not shortened, because a permission decision depends
    on it.
    """
    return escape_control_chars(text).replace("\n", " ⏎ ")


def truncate_argument_line(text: str) -> str:
    omitted_chars = len(text) - MAX_ARGUMENT_CHARS
    if omitted_chars <= 0:
        return text
    return f"{text[:MAX_ARGUMENT_CHARS]}… ({omitted_chars} more characters)"


# -- questions to the user -------------------------------------------------------------------------


class FormQuestion(NamedTuple):
    """A question that the agent asks the user. `options` contains labels with descriptions. If
    `allows_several` is set, the user may choose several options.
    """

    text: str
    options: tuple[tuple[str, str], ...]
    allows_several: bool = False


def parse_form_questions(tool_input: Mapping[str, Any]) -> list[FormQuestion]:
    """Return the well-formed questions of an AskUserQuestion call."""
    questions = tool_input.get("questions")
    return [
        FormQuestion(
            str(question["question"]),
            tuple(_parse_options(question.get("options"))),
            question.get("multiSelect") is True,
        )
        for question in as_list(questions)[:MAX_QUESTIONS]
        if isinstance(question, Mapping) and question.get("question")
    ]


def _summarize_question(question: FormQuestion) -> str:
    labels = " · ".join(label for label, _ in question.options)
    if labels:
        return f"{question.text} ({labels})"
    return question.text


def _parse_options(options: Any) -> list[tuple[str, str]]:
    return [
        (str(option["label"]), get_text(option, "description"))
        for option in as_list(options)[:MAX_OPTIONS]
        if isinstance(option, Mapping) and option.get("label")
    ]


# -- tool call details -----------------------------------------------------------------------------


def render_tool_call_details(step: SessionStep) -> list[Text]:
    """Render the details of a tool call that its one-line form leaves out. For a call that asks the
    user, render its questions.
    """
    questions = []
    if step.name == QUESTION_TOOL:
        questions = parse_form_questions(step.input)
    all_lines = [line for question in questions for line in _render_question(*question)]
    if not questions or not has_only_question_texts_and_options(step.input):
        all_lines += _render_arguments(step)
    lines = list[Text]()
    total_chars = 0
    for line in all_lines:
        total_chars += len(line)
        if total_chars <= MAX_CALL_CHARS:
            lines.append(line)
    rendered_chars = sum(map(len, lines))
    if rendered_chars == total_chars:
        return lines
    return [*lines, Text(TOO_LONG_NOTE.format(more=total_chars - rendered_chars), style="red")]


def _render_arguments(step: SessionStep) -> Iterator[Text]:
    edit_lines = find_edit_diff_lines(step)
    short_text = format_arguments(step.input)
    if edit_lines:
        hidden = list_fully_diffed_arguments(step.name, step.input)
    else:
        hidden = frozenset()
    main = find_main_argument(step.input)
    for name, value in sorted(step.input.items(), key=lambda item: item[0] not in MAIN_ARGUMENTS):
        if name in hidden:
            continue
        text = escape_control_chars(value if isinstance(value, str) else _dump_indented(value))
        if name == main and text == short_text:
            continue
        first, *more_lines = text.split("\n")
        key = format_text_on_one_line(name)
        head = Text(f"{key}: ", style="dim").append(first, style="not dim")
        yield head if not more_lines else Text(f"{key}:", style="dim")
        for line in (first, *more_lines) if more_lines else ():
            yield Text(f"  {line}")
    for line in as_list(edit_lines):
        yield Text(format_diff_line(line), style=DIFF_STYLES[line.sign])


def format_diff_line(line: DiffLine) -> str:
    """Return a line of a diff with its sign. The heading of a part has no sign."""
    text = escape_control_chars(line.text)
    if line.sign == "@":
        return text
    return f"{line.sign} {text}"


def _dump_indented(value: object) -> str:
    return orjson.dumps(value, default=str, option=orjson.OPT_INDENT_2).decode()


def _render_question(
    text: str, options: tuple[tuple[str, str], ...], allows_several: bool
) -> Iterator[Text]:
    for line in escape_control_chars(text).split("\n"):
        yield Text(line, style="bold")
    for number, (label, description) in enumerate(options, 1):
        option = Text().append(f"  {number}  ", style="cyan").append(format_text_on_one_line(label))
        yield option.append(
            f"  {format_text_on_one_line(description)}" if description else "", style="dim"
        )
    if allows_several:
        yield Text("  (multiple choices allowed)", style="dim")
