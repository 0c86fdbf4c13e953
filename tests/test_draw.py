"""A turn drawn for a person."""

import io

import pytest
from rich.console import Console
from support import Stage, case, parse, translate_case

from shim.draw import ARGUMENT_CHARACTERS, OUTPUT_LINES, Drawing, shown, text_of

INIT = {"type": "system", "subtype": "init", "model": "m1", "cwd": "/repo", "shim": {"vendor": "demo"}}


def drawn(*events, terminal=False):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=200, highlight=False, color_system=None)
    drawing = Drawing(console)
    for event in events:
        drawing.event(event)
    drawing.close()
    return console.file.getvalue()


def result(**facts):
    return {"type": "result", "is_error": False, "num_turns": 1, "duration_ms": 1500, "usage": {}} | facts


def test_a_turn_is_drawn_from_its_first_line_to_its_totals():
    said, _ = translate_case(case("pi/1.5.2-bash"), partial=True)
    text = drawn(*parse(said))
    assert "● Bash" in text and "✓" in text
    assert "asking anybody" in text
    assert text.splitlines()[-1].startswith("done · ")


def test_text_streams_as_it_comes():
    stage = Stage(partial=True)
    stage.turn.text("Hel")
    stage.turn.text("lo")
    stage.turn.thinking("hm")
    stage.turn.ended()
    stage.turn.closed(None, "")
    text = drawn(*stage.lines())
    assert "Hello\nhm\n" in text


def test_words_in_brackets_are_no_markup():
    delta = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "[bold]x[/bold] [link=http://e]y"}}
    call = {"type": "tool_use", "id": "t", "name": "[red]T", "input": {"command": "[/]"}}
    output = {"type": "tool_result", "tool_use_id": "t", "content": "[green]z"}
    text = drawn(
        INIT | {"model": "[blink]m"},
        {"type": "stream_event", "event": delta},
        {"type": "assistant", "message": {"content": [call]}},
        {"type": "user", "message": {"content": [output]}},
    )
    for word in ("[bold]x[/bold] [link=http://e]y", "[red]T", "[/]", "[green]z", "[blink]m"):
        assert word in text


@pytest.mark.parametrize("terminal", [True, False])
def test_escapes_are_shown_and_not_obeyed(terminal):
    evil = "\x1b]52;c;eA==\x07\x9b31m\u202e"
    delta = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": evil}}
    text = drawn(INIT | {"cwd": evil}, {"type": "stream_event", "event": delta}, result(errors=[evil], is_error=True))
    assert "\x1b]" not in text and "\x9b" not in text and "\u202e" not in text and "\x07" not in text
    assert "\\x1b]52;c;eA==\\x07\\x9b31m\\u202e" in text


def test_a_failure_says_why():
    text = drawn(INIT, result(is_error=True, errors=["no key"], shim={"cause": "auth"}))
    assert "no key" in text and "failed: auth" in text


def test_totals_count_tokens_and_money():
    text = drawn(result(usage={"input_tokens": 10, "output_tokens": 5, "x": "y"}, total_cost_usd=0.5))
    assert text == "done · 1 turns · 1.5 s · 15 tokens · $0.5000\n"


def test_of_a_long_output_the_first_lines_are_shown_and_the_rest_is_counted():
    output = {"type": "tool_result", "content": "\n".join(f"line {number}" for number in range(20))}
    text = drawn({"type": "user", "message": {"content": [output]}})
    assert f"line {OUTPUT_LINES - 1}" in text and f"line {OUTPUT_LINES}\n" not in text
    assert f"{20 - OUTPUT_LINES} more lines" in text


def test_what_happens_beside_the_conversation_is_a_line():
    text = drawn(
        {"type": "system", "subtype": "api_retry", "attempt": 2},
        {"type": "system", "subtype": "compact_boundary"},
        {"type": "system", "subtype": "anything"},
        {"type": "nobody knows"},
    )
    assert text.splitlines() == ["the model is asked again (2)", "the context was shortened"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"command": "ls\n-la", "description": "list"}, "ls ⏎ -la"),
        ({"file_path": "/a", "limit": 3}, "/a"),
        ({"a": 1, "b": [2]}, "a=1, b=[2]"),
        ({"command": 7}, "command=7"),
        ({}, ""),
        ({"command": "x" * 500}, "x" * ARGUMENT_CHARACTERS + "…"),
    ],
)
def test_arguments_are_one_line(arguments, expected):
    assert shown(arguments) == expected


def test_a_result_of_several_blocks_is_text():
    assert text_of([{"type": "text", "text": "a"}, {"type": "image"}]) == "a\n[image]"


def test_a_result_without_content_is_no_word():
    assert text_of(None) == ""
