"""The parser of Claude's lines, with recorded streams of the real claude. The expected facts are
written by hand.
"""

import json

from fixture_cases import FIXTURES
from sweeps import loop_over_rows

from shim.core.claude import grammar

NO_PARTS = (
    {},
    {"message": None, "event": None, "result": None, "errors": None},
    {"message": [], "event": [], "errors": {}},
    {"type": "assistant", "message": {"content": "text"}},
    {"type": "user", "message": {"content": [None, "text", 1]}},
    {"type": "stream_event", "event": {"type": "content_block_delta", "delta": "text"}},
    {"type": "stream_event", "event": {"type": "message_delta", "delta": {"text": "no"}}},
)


def load_lines(recording):
    data = (FIXTURES / "claude" / recording / "vendor.ndjson").read_bytes()
    return [json.loads(line) for line in data.splitlines()]


def list_types(lines):
    return [line["type"] for line in lines]


def test_init_lines_start_turns():
    lines = load_lines("2.1.327-in-two-msgs-sequential")
    assert [grammar.is_init_line(line) for line in lines] == [True, False, False] * 2
    lines = load_lines("2.1.327-think-partial")
    assert [line["subtype"] for line in lines if grammar.is_init_line(line)] == ["init"]


def test_permission_requests_and_hook_calls():
    allowed = load_lines("2.1.327-perm-stdio-allow")
    requests = [
        line["request"] for line in allowed if grammar.is_permission_request(line.get("request"))
    ]
    assert [(request["tool_name"], request["tool_use_id"]) for request in requests] == [
        ("Bash", "toolu_bashrm1")
    ]
    hooked = load_lines("2.1.327-hooks-callback")
    assert list_types(hooked).count("control_request") == 3
    assert not any(grammar.is_permission_request(line.get("request")) for line in hooked)


def test_lines_of_subagent_name_its_call():
    parents = [grammar.get_parent_call_id(line) for line in load_lines("2.1.327-tool-agent")]
    assert [index for index, parent in enumerate(parents) if parent] == [6, 7, 9, 10]
    assert set(parents) == {"", "toolu_agent1"}


def test_blocks_calls_and_results():
    lines = load_lines("2.1.327-tool-parallel")
    blocks = [[block["type"] for block in grammar.list_content_blocks(line)] for line in lines]
    assert [kinds for kinds in blocks if kinds] == [
        ["text"],
        ["tool_use"],
        ["tool_use"],
        ["tool_result"],
        ["tool_result"],
        ["text"],
    ]
    calls = [call for line in lines for call in grammar.list_tool_calls(line)]
    assert [(call["id"], call["name"]) for call in calls] == [
        ("toolu_par1", "Bash"),
        ("toolu_par2", "Read"),
    ]
    results = [result for line in lines for result in grammar.list_tool_results(line)]
    assert [result["tool_use_id"] for result in results] == ["toolu_par2", "toolu_par1"]


def test_first_text_is_not_blank():
    answer = load_lines("2.1.327-tool-parallel")[1]["message"]["content"]
    assert grammar.find_first_text(answer) == "Two at once."
    blocks = [None, {"type": "image"}, {"type": "text", "text": " "}, *answer]
    assert grammar.find_first_text(blocks) == "Two at once."
    assert grammar.find_first_text("a text") == "a text"
    assert grammar.find_first_text(None) == grammar.find_first_text([{}]) == ""


def collect_fragments(recording):
    """Return the fragments of a recorded stream, joined by key."""
    texts = {}
    for line in load_lines(recording):
        key, text = grammar.get_fragment(grammar.get_delta(line))
        texts[key] = texts.get(key, "") + text
    return texts


def test_fragments_are_text_thinking_and_input():
    assert collect_fragments("2.1.327-think-partial") == {
        "": "",
        "thinking": "Let me think about it.",
        "text": "Thought answer.",
    }
    assert collect_fragments("2.1.197-bash-partial") == {
        "": "",
        "partial_json": '{"command": "echo only", "description": "Echo"}',
        "text": "Done.",
    }


def test_stream_events_and_deltas_of_blocks():
    lines = load_lines("2.1.327-think-partial")
    kinds = [event["type"] for event in map(grammar.get_stream_event, lines) if event]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    deltas = [delta["type"] for delta in map(grammar.get_delta, lines) if delta]
    assert deltas == ["thinking_delta"] * 5 + ["signature_delta"] + ["text_delta"] * 2


@loop_over_rows(
    ("recording", "expected"),
    [
        ("2.1.327-tool-parallel", "Both done."),
        ("2.1.327-api-err400", "API Error: 400 bad request mock"),
        ("2.1.327-max-turns-2", "Reached maximum number of turns (2)"),
    ],
)
def test_result_text_is_answer_or_first_error(recording, expected):
    (result,) = (line for line in load_lines(recording) if line["type"] == "result")
    assert grammar.get_result_text(result) == expected


@loop_over_rows("line", NO_PARTS)
def test_missing_parts_are_empty(line):
    assert not grammar.is_init_line(line)
    assert not grammar.is_permission_request(line.get("message"))
    assert grammar.get_parent_call_id(line) == grammar.get_result_text(line) == ""
    assert grammar.list_content_blocks(line) == []
    assert grammar.list_tool_calls(line) == grammar.list_tool_results(line) == []
    assert grammar.get_fragment(grammar.get_delta(line)) == ("", "")
