"""The rendered session in a pipe: each kind of step."""

import io
from typing import Any

import pytest
from fixture_cases import find_case, translate_case
from rich.console import Console
from story_builder import (
    INIT,
    Event,
    build_assistant_line,
    build_delta,
    build_message_start,
    build_permission_request,
    build_result_line,
    build_text_block,
    build_tool_result_line,
    build_tool_use,
    build_user_line,
)
from stream_lines import parse_lines
from sweeps import loop_over_rows

from shim.story.model import SessionStepTracker
from shim.story.terminal.arguments import MAX_ARGUMENT_CHARS, format_arguments
from shim.story.terminal.renderer import (
    MAX_ARGUMENT_LINES,
    MAX_DIFF_LINES,
    MAX_OUTPUT_LINES,
    TerminalSessionRenderer,
)

COLOUR = {
    "question": "Which colour?",
    "header": "Colour",
    "options": [{"label": "red"}, {"label": "blue"}],
}


def draw_events(*events: Event, **options: Any) -> str:
    """Return the rendered output of events one second apart."""
    console, story = Console(file=io.StringIO(), _environ={}), SessionStepTracker()
    drawing = TerminalSessionRenderer(console, story, **options)
    for at, event in enumerate(events):
        for change in story.add_claude_event(at, event):
            drawing.draw_step_change(change)
    for change in story.end_open_steps(len(events)):
        drawing.draw_step_change(change)
    drawing.close()
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def rows(*events: Event, **options: Any) -> list[str]:
    """Return the rendered lines that are not empty."""
    return [row for row in draw_events(*events, **options).split("\n") if row]


def test_complete_turn_is_rendered_with_calls_and_totals():
    output, _ = translate_case(find_case("pi/1.5.2-bash"), partial=True)
    text = draw_events(*parse_lines(output))
    assert "● Bash" in text and "✓" in text
    assert "asking for permission" in text
    assert "✓ done · 2 replies" in text


def test_text_deltas_are_rendered_as_a_single_text():
    assert "Hello\n\n" in draw_events(
        build_message_start(),
        build_delta("Hel"),
        build_delta("lo"),
        build_assistant_line(build_text_block("Hello")),
    )


def test_brackets_are_not_interpreted_as_markup():
    output = draw_events(
        INIT | {"model": "[blink]m"},
        build_assistant_line(
            build_text_block("[bold]x[/bold]"), build_tool_use("t", "[red]T", command="[/]")
        ),
    )
    for phrase in ("[bold]x[/bold]", "[red]T", "[/]", "[blink]m"):
        assert phrase in output


def test_controller_change_is_rendered():
    console, story = Console(file=io.StringIO(), _environ={}), SessionStepTracker()
    drawing = TerminalSessionRenderer(console, story)
    for client in ("start", None, "start", "page", None, "page"):
        for change in story.add_recorder_note(0.0, {"kind": "driver", "client": client}):
            drawing.draw_step_change(change)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "· control: page\n"


def test_failure_reason_is_rendered_once():
    wrong = build_assistant_line(build_text_block("API Error: no key"), error="server_error")
    wrong["message"]["model"] = "<synthetic>"
    ended = build_result_line(is_error=True, errors=["API Error: no key"], shim={"cause": "auth"})
    assert rows(wrong, ended)[:2] == [
        "API Error: no key",
        "✗ failed: not logged in or invalid API key · 1.0 s · 10 tokens in, 5 out",
    ]
    assert (
        rows(build_result_line(is_error=True, errors=["no key"], shim={"cause": "auth"}))[0]
        == "no key"
    )
    assert rows(
        build_result_line(
            is_error=True, result="refused", subtype="success", terminal_reason="api_error"
        )
    )[:2] == [
        "refused",
        "✗ failed: API error · 0.0 s · 10 tokens in, 5 out",
    ]


def test_session_totals_use_the_singular_for_a_single_call():
    output = draw_events(
        build_assistant_line(build_tool_use("c", "Bash", command="ls")),
        build_result_line(),
        build_assistant_line(build_text_block("Hi")),
        build_result_line(),
    )
    assert "session: 2 turns · 1 call · " in output


def test_interrupt_message_is_rendered_once():
    message = "[Request interrupted by user]"
    ended = build_result_line(is_error=True, subtype="error_during_execution", errors=[message])
    assert sum(message in row for row in rows(build_user_line(message), ended)) == 1


def test_turn_cost_is_the_difference_and_session_cost_the_total():
    usage = {"input_tokens": 1000, "output_tokens": 5, "cache_read_input_tokens": 500, "x": "y"}
    drawn_rows = rows(build_result_line(0.5, usage=usage), build_result_line(0.75))
    assert drawn_rows[0] == "✓ done · 0.0 s · 1,500 tokens in (500 cached), 5 out · $0.5000"
    assert drawn_rows[1] == "✓ done · 0.0 s · 10 tokens in, 5 out · $0.2500"
    assert drawn_rows[2].startswith(
        "session: 2 turns · 1,510 tokens in (500 cached), 10 out · $0.7500"
    )


def test_replies_of_a_turn_are_the_messages_of_the_main_agent():
    def build_message(message_id: str, *blocks: Any, **fields: Any) -> Event:
        line = build_assistant_line(*blocks, **fields)
        line["message"]["id"] = message_id
        return line

    drawn_rows = rows(
        build_message("m1", build_text_block("two lines of one message")),
        build_message("m1", build_tool_use("a", "Agent")),
        build_message("m2", build_text_block("of a subagent")) | {"parent_tool_use_id": "a"},
        build_tool_result_line("a", "ok"),
        build_message("m3", build_text_block("the end")),
        build_result_line(0.5, num_turns=7),
        build_message("m4", build_text_block("another turn")),
        build_result_line(0.5, num_turns=7),
    )
    ends = [row for row in drawn_rows if row.startswith("✓ done")]
    assert "· 2 replies ·" in ends[0] and "· 1 reply ·" in ends[1]


def test_long_output_is_truncated_and_remaining_lines_are_counted():
    events = (
        build_assistant_line(build_tool_use("a")),
        build_tool_result_line("a", "\n".join(f"line {number}" for number in range(20))),
    )
    output = draw_events(*events)
    assert f"line {MAX_OUTPUT_LINES - 1}\n" in output and f"line {MAX_OUTPUT_LINES}\n" not in output
    assert f"… {20 - MAX_OUTPUT_LINES} more lines" in output
    assert "line 19\n" in draw_events(*events, full=True)


def test_long_line_is_truncated_and_remaining_characters_are_counted():
    output = draw_events(
        build_assistant_line(build_tool_use("a")), build_tool_result_line("a", "x" * 500)
    )
    assert (
        f"    {'x' * MAX_ARGUMENT_CHARS}… ({500 - MAX_ARGUMENT_CHARS} more characters)\n" in output
    )


def test_multiline_command_is_truncated():
    output = draw_events(
        build_assistant_line(build_tool_use("a", command="\n".join(map(str, range(50)))))
    )
    assert f"    {MAX_ARGUMENT_LINES - 1}\n    … {50 - MAX_ARGUMENT_LINES} more lines\n" in output


def test_thinking_is_collapsed_to_its_first_line_by_default():
    thought = build_assistant_line({"type": "thinking", "thinking": "One.\nTwo.\n\nThree."})
    assert rows(thought)[0] == "∴ One.  (2 more lines)"
    assert rows(thought, thinking=True)[:3] == ["∴ One.", "Two.", "Three."]
    assert (
        rows(build_assistant_line({"type": "redacted_thinking", "data": "x"}))[0]
        == "∴ (hidden thinking)"
    )


def test_edit_is_rendered_as_the_applied_patch_or_the_requested_patch():
    edit = {"file_path": "/a", "old_string": "x", "new_string": "y"}
    patch = {
        "oldStart": 7,
        "oldLines": 2,
        "newStart": 7,
        "newLines": 2,
        "lines": [" a", "-x", "+y"],
    }
    made = rows(
        build_assistant_line(build_tool_use("a", "Edit", **edit)),
        build_tool_result_line("a", "updated", extra={"structuredPatch": [patch]}),
    )
    assert made[2:6] == ["    @@ -7,2 +7,2 @@", "      a", "    - x", "    + y"]
    unpatched_rows = rows(
        build_assistant_line(build_tool_use("a", "Edit", **edit)),
        build_tool_result_line("a", "updated"),
    )
    assert unpatched_rows[2:4] == ["    - x", "    + y"] and "updated" not in "".join(
        unpatched_rows
    )
    failed = rows(
        build_assistant_line(build_tool_use("a", "Edit", **edit)),
        build_tool_result_line("a", "no such text", failed=True),
    )
    assert failed[2:5] == ["    - x", "    + y", "    no such text"]


def test_long_diff_is_truncated_and_remaining_lines_are_counted():
    events = (
        build_assistant_line(build_tool_use("a", "Write", file_path="/a", content="x\n" * 100)),
        build_tool_result_line("a", "written"),
    )
    assert f"    … {100 - MAX_DIFF_LINES} more lines" in rows(*events)
    assert len([row for row in rows(*events, full=True) if row == "    + x"]) == 100


def test_todos_are_rendered_as_a_checklist():
    todos = [
        {"content": "one", "status": "completed"},
        {"content": "two", "status": "in_progress"},
        {"content": "3"},
    ]
    assert rows(build_assistant_line(build_tool_use("a", "TodoWrite", todos=todos)))[:4] == [
        "● TodoWrite",
        "    ☑ one",
        "    ▸ two",
        "    ☐ 3",
    ]


def test_subagent_is_indented_under_its_parent_call():
    nested = build_assistant_line(
        build_text_block("I look."), build_tool_use("b", "Grep", pattern="x"), parent="t"
    )
    deeper = build_assistant_line(build_tool_use("c", "Read", file_path="/a"), parent="b")
    drawn_rows = rows(
        build_assistant_line(build_tool_use("t", "Task", description="count")),
        nested,
        deeper,
        build_tool_result_line("b"),
        build_tool_result_line("t"),
    )
    assert drawn_rows[:7] == [
        "● Task  count",
        "    I look.",
        "    ● Grep  x",
        "        ● Read  /a",
        "      ✓ Grep x · 2.0 s",
        "        out",
        "  ✓ Task count · 4.0 s",
    ]


def test_outcome_that_does_not_follow_its_call_names_the_call():
    drawn_rows = rows(
        build_assistant_line(
            build_tool_use("a", command="one"), build_tool_use("b", command="two")
        ),
        build_tool_result_line("b"),
        build_tool_result_line("a", failed=True),
    )
    assert drawn_rows == [
        "● Bash  one",
        "● Bash  two",
        "  ✓ 1.0 s",
        "    out",
        "  ✗ Bash one · 2.0 s",
        "    out",
        *drawn_rows[-2:],
    ]


def test_system_event_is_rendered_as_a_single_line():
    drawn_rows = rows(
        {
            "type": "system",
            "subtype": "api_retry",
            "attempt": 2,
            "max_retries": 3,
            "error": "overloaded",
        },
        {"type": "system", "subtype": "compact_boundary"},
        {"type": "system", "subtype": "any_thing", "color": "blue", "uuid": "u"},
        {"type": "nobody knows"},
    )
    assert drawn_rows[:3] == [
        "· retrying the request to the model (2 of 3): overloaded",
        "· the context was compacted (auto)",
        "· any thing: color blue",
    ]


def test_noted_repair_is_not_repeated_in_the_result():
    shim = {"repairs": {"not_json": 2}, "unknown_events": {"x": 1}}
    console, story = Console(file=io.StringIO(), _environ={}), SessionStepTracker()
    drawing = TerminalSessionRenderer(console, story)
    for change in story.add_recorder_note(
        0, {"kind": "repair", "repair": "not_json", "count": 2}
    ) + story.add_claude_event(0, build_result_line(shim=shim)):
        drawing.draw_step_change(change)
    for change in story.add_claude_event(0, build_result_line(shim=shim)):
        drawing.draw_step_change(change)
    assert isinstance(console.file, io.StringIO)
    repair_rows = [
        row
        for row in console.file.getvalue().split("\n")
        if "not json" in row or "understood" in row
    ]
    assert repair_rows == [
        "· repaired: not json 2",
        "not understood: x 1",
        "repaired: not json 2",
        "not understood: x 1",
    ]


def test_empty_session_renders_nothing():
    assert draw_events() == ""


@loop_over_rows(
    ("tool_input", "expected"),
    [
        ({"command": "ls\n-la", "description": "list"}, "ls ⏎ -la"),
        ({"file_path": "/a", "limit": 3}, "/a"),
        ({"a": 1, "b": [2]}, "a=1, b=[2]"),
        ({"command": 7}, "command=7"),
        ({"a": {"b": None, "c": [True, "ü"]}}, 'a={"b":null,"c":[true,"ü"]}'),
        ({"questions": [COLOUR, {"question": "Sure?"}]}, "Which colour? (red · blue) Sure?"),
        ({}, ""),
        (
            {"command": "x" * 500},
            "x" * MAX_ARGUMENT_CHARS + f"… ({500 - MAX_ARGUMENT_CHARS} more characters)",
        ),
    ],
)
def test_arguments_are_formatted_on_a_single_line(tool_input, expected):
    assert format_arguments(tool_input) == expected


def test_ask_user_question_is_rendered_as_its_question():
    came = rows(
        build_assistant_line(build_tool_use("c", "AskUserQuestion", questions=[COLOUR])),
        build_permission_request("q", "c", "AskUserQuestion", questions=[COLOUR]),
    )
    assert came[:2] == [
        "● AskUserQuestion  Which colour? (red · blue)",
        "? Which colour? (red · blue)",
    ]
    assert "? Allow AskUserQuestion" in draw_events(
        build_permission_request("q", "c", "AskUserQuestion", questions=[COLOUR], more=1)
    )


EDIT = {"old_string": "a", "new_string": "b"}
HIDDEN_IN_A_CHANGE = [
    ("Edit", {"file_path": "a", "old_string": "x", "new_string": "EVIL", "edits": [EDIT]}),
    ("Edit", {"file_path": "a", "old_string": 1, "new_string": ["EVIL"]}),
    (
        "MultiEdit",
        {"file_path": "a", "edits": [EDIT] * 200 + [{"old_string": "x", "new_string": "EVIL"}]},
    ),
    ("MultiEdit", {"file_path": "a", "edits": [EDIT, {"old_string": ["x"], "new_string": "EVIL"}]}),
    ("MultiEdit", {"file_path": "a", "edits": [EDIT, EDIT | {"replace": "EVIL"}]}),
    ("MultiEdit", {"file_path": "a", "edits": [EDIT, "EVIL"]}),
    ("MultiEdit", {"file_path": "a", "edits": [EDIT], "new_string": "EVIL"}),
    ("Write", {"file_path": "a", "content": "b", "new_string": "EVIL"}),
    ("Write", {"file_path": "a", "content": "b", "edits": ["EVIL"]}),
    ("NotebookEdit", {"notebook_path": "a", "new_source": "b", "content": "EVIL"}),
    ("Write", {"file_path": "EVIL", "path": "EVIL", "content": "b"}),
    ("AskUserQuestion", {"questions": [{"question": "?"}, {"said": "EVIL"}]}),
    ("AskUserQuestion", {"questions": [{"question": "?"}], "other": "EVIL"}),
    (
        "AskUserQuestion",
        {"questions": [{"question": "?", "options": [{"label": "a", "preview": "EVIL"}]}]},
    ),
    ("AskUserQuestion", {"questions": [{"question": "?"}] * 20 + [{"question": "EVIL"}]}),
]


# -- permission prompts ----------------------------------------------------------------------------


def question(name: str, **tool_input: Any) -> list[str]:
    """Return the lines of a permission prompt in an interactive terminal."""
    return rows(build_permission_request("q", "c", name, **tool_input), is_interactive=True)


def test_simple_call_is_prompted_on_a_single_line():
    assert question("Bash", command="touch x") == ["? Allow Bash touch x"]


@pytest.mark.parametrize(
    "hidden",
    [{"command": "ls" + " " * 200 + "; rm -rf ~"}, {"command": "ls\n" * 50 + "rm -rf ~"},
     {"command": "ls", "env": {"a": [{"b": "rm -rf ~"}]}}, {"other": "rm -rf ~"}],
)  # fmt: skip
def test_prompt_contains_the_complete_command_and_arguments(hidden):
    assert any("rm -rf ~" in row for row in question("Bash", **hidden))


def test_file_change_prompt_contains_all_lines():
    content = "".join(f"line {number}\n" for number in range(200))
    question_rows = question("Write", file_path="a.py", content=content)
    assert question_rows[0] == "? Allow Write a.py" and "    + line 199" in question_rows
    question_rows = question(
        "Edit", file_path="a.py", old_string="a\n", new_string="b\n", content="rm -rf ~"
    )
    assert (
        "    - a" in question_rows
        and "    + b" in question_rows
        and "    content: rm -rf ~" in question_rows
    )


@loop_over_rows(("name", "tool_input"), HIDDEN_IN_A_CHANGE)
def test_prompt_contains_input_that_the_diff_omits(name, tool_input):
    assert any("EVIL" in row for row in question(name, **tool_input))


def test_prompt_diff_includes_unchanged_lines_between_changes():
    old = "\n".join(map(str, range(100)))
    new = old.replace("3\n", "x\n", 1).replace("97", "y")
    assert "      50" in question("Edit", file_path="a", old_string=old, new_string=new)


@pytest.mark.parametrize("key", ["k" * 300 + "EVIL"])
def test_prompt_truncates_neither_names_nor_keys(key):
    assert key in question(f"mcp__files__{key}", command="ls")[0]
    assert any(key in row for row in question("Bash", **{"command": "ls", key: "1"}))
    assert any(
        key in row
        for row in question("AskUserQuestion", questions=[{"question": "?", "options": [key]}])
    )


def test_too_long_prompt_warns_about_truncation():
    last_row = question("Bash", command=f"{'x' * 99}\n" * 12_000)[-1]
    assert "deny what you cannot read" in last_row and "more characters" in last_row
    assert "shim bridge list --json" in last_row


def test_ask_user_question_prompt_lists_its_options():
    asks = {
        "question": "Which\ncolour?",
        "options": [{"label": "red", "description": "warm"}, {"label": "blue"}],
    }
    assert question("AskUserQuestion", questions=[asks | {"multiSelect": True}]) == [
        "? the agent asks",
        "    Which",
        "    colour?",
        "      1  red  warm",
        "      2  blue",
        "      (multiple choices allowed)",
    ]
    assert "questions" in question("AskUserQuestion", questions="none")[1]


def test_prompt_resolution_names_the_client_or_timeout():
    console, story = Console(file=io.StringIO(), _environ={}), SessionStepTracker()
    drawing = TerminalSessionRenderer(console, story)
    for how, by in (("allow", "the page"), ("timeout", "")):
        for change in (
            *story.add_claude_event(1, build_permission_request("q", "c")),
            *story.add_permission_answer(3, "q", how, by),
        ):
            drawing.draw_step_change(change)
    assert isinstance(console.file, io.StringIO)
    answers = [row.strip() for row in console.file.getvalue().split("\n") if "→" in row]
    assert answers == [
        "→ allowed by the page after 2.0 s",
        "→ denied: no answer in time after 0.0 s",
    ]
