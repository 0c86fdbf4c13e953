"""Pass-through with redaction: a real claude's lines pass unchanged except for secrets."""

import itertools
import json

import pytest
from fake_secrets import generate_secret
from fixture_cases import list_fixture_cases, translate_case
from hypothesis import given
from hypothesis import strategies as st
from passthrough_invariants import check_passed
from stream_invariants import check_frames
from sweeps import limit_examples, loop_over_cases

from shim.conversation.drivers.open_translation import create_standalone_child_stream
from shim.core.secrets import claude_lines as redacted_lines
from shim.core.turn.outcome import ChildExit
from tests.adapters.test_claude_passthrough import (
    INIT,
    assistant,
    build_tool_result,
    call,
    line,
    result,
    stream,
    text,
)

GITHUB = f"ghp_{generate_secret(36)}"
MARK = "[REDACTED:github-token]"
OPEN = [
    stream(type="message_start", message={"id": "msg_1", "model": "opus", "usage": {}}),
    stream(type="content_block_start", index=0, content_block={"type": "text", "text": ""}),
]


def delta(**fragment: str) -> str:
    kind = {"text": "text_delta", "thinking": "thinking_delta", "partial_json": "input_json_delta"}
    (name,) = fragment
    return stream(type="content_block_delta", index=0, delta={"type": kind[name], **fragment})


STOP = [stream(type="content_block_stop", index=0), stream(type="message_stop")]


def run(*lines: str, code: int | None = 0) -> list[str]:
    """Return the raw output lines with partial messages and redaction."""
    translation = create_standalone_child_stream(
        "claude", include_partial_messages=True, stable_ids=True, redact=True
    )
    output = translation.feed("".join(raw_line + "\n" for raw_line in lines).encode())[0]
    output += translation.close(None if code is None else ChildExit(code=code))[0]
    check_frames(output)
    return output.decode().splitlines()


def fragments(lines: list[str], name: str = "text") -> list[str]:
    deltas = [json.loads(raw_line).get("event", {}).get("delta", {}) for raw_line in lines]
    return [block_delta[name] for block_delta in deltas if name in block_delta]


@loop_over_cases(list_fixture_cases("claude"))
@pytest.mark.parametrize("partial", [False, True], ids=["whole", "partial"])
def test_claude_stream_without_secrets_is_passed_through_unchanged(case, partial):
    plain, _ = translate_case(case, partial)
    output, translation = translate_case(case, partial, redact=True)
    assert translation.diagnostics.redactions == {}
    if not partial:
        assert output == plain
        check_passed(case.data, output, partial)


def test_only_lines_with_a_secret_are_rewritten():
    lines = [
        INIT,
        text("hello"),
        text(f"use {GITHUB}"),
        call("t"),
        build_tool_result("t"),
        result(f"use {GITHUB}"),
    ]
    output_lines = run(*lines)
    assert [raw_line for raw_line in lines if raw_line in output_lines] == [
        lines[0],
        lines[1],
        lines[3],
        lines[4],
    ]
    assert json.loads(output_lines[2]) == json.loads(lines[2].replace(GITHUB, MARK))
    assert json.loads(output_lines[5])["result"] == f"use {MARK}"


def test_secret_split_across_deltas_is_redacted():
    pieces = [f"use {GITHUB}"[start : start + 6] for start in range(0, 44, 6)] + [" now sk"]
    output_lines = run(
        INIT,
        *OPEN,
        *(delta(text=piece) for piece in pieces),
        text(f"use {GITHUB} now sk"),
        *STOP,
        result(),
    )
    assert "".join(fragments(output_lines)) == f"use {MARK} now sk"
    message_index = next(
        number for number, raw_line in enumerate(output_lines) if '"type":"assistant"' in raw_line
    )
    assert "".join(fragments(output_lines[:message_index])) == f"use {MARK} now sk", (
        "the deltas come before their line"
    )
    uuids = [json.loads(raw_line).get("uuid") for raw_line in output_lines[:-1]]
    assert len(set(uuids)) == len(uuids)


def test_buffered_text_is_emitted_when_claude_exits_with_an_error():
    output_lines = run(INIT, *OPEN, delta(text="a "), delta(text="sk"), code=1)
    assert fragments(output_lines) == ["a ", "sk"]
    (message,) = [
        json.loads(raw_line) for raw_line in output_lines if '"type":"assistant"' in raw_line
    ]
    assert message["message"]["content"][0]["text"] == "a sk"


def test_buffered_text_is_emitted_when_a_call_is_forbidden():
    translation = create_standalone_child_stream(
        "claude", include_partial_messages=True, stable_ids=True, redact=True
    )
    lines = (INIT, call("t"), *OPEN, delta(text="a "), delta(text="sk"))
    output = translation.feed("".join(raw_line + "\n" for raw_line in lines).encode())[0]
    translation.turn.stop_for_forbidden_call("t", f"no {GITHUB}")
    output += translation.take_output()[0]
    output += translation.feed(f"{delta(text='-late')}\n".encode())[0]
    output += translation.close(None)[0]
    check_frames(output)
    output_lines = output.decode().splitlines()
    assert fragments(output_lines) == ["a ", "sk"]
    turn_result = json.loads(output_lines[-2])
    assert turn_result["type"] == "result" and f"no {MARK}: " in turn_result["errors"][0]


def test_tool_input_deltas_are_merged_into_a_single_redacted_delta():
    tool_input = json.dumps({"command": f'say "{GITHUB}"', "password": "hunter2"})
    block = stream(
        type="content_block_start",
        index=0,
        content_block={"type": "tool_use", "id": "t", "name": "Bash"},
    )
    pieces = [
        delta(partial_json=tool_input[start : start + 5]) for start in range(0, len(tool_input), 5)
    ]
    output_lines = run(
        INIT, OPEN[0], block, *pieces, call("t"), *STOP, build_tool_result("t"), result()
    )
    (fragment,) = fragments(output_lines, "partial_json")
    assert json.loads(fragment) == {
        "command": f'say "{MARK}"',
        "password": "[REDACTED:assigned-secret]",
    }


def test_truncated_tool_input_is_redacted_as_text():
    output_lines = run(
        INIT, *OPEN[:1], delta(partial_json=f'{{"command":"{GITHUB} x'), *STOP, result()
    )
    assert fragments(output_lines, "partial_json") == [f'{{"command":"{MARK} x']


def test_control_request_is_passed_through_unredacted():
    question = line(
        "control_request",
        request_id="q",
        request={
            "subtype": "can_use_tool",
            "tool_name": "Bash",
            "input": {"command": f"echo {GITHUB}"},
        },
    )
    output_lines = run(INIT, call("t"), question, build_tool_result("t"), result())
    assert question in output_lines


def test_subagent_message_does_not_close_the_open_text_block():
    inner = assistant({"type": "text", "text": f"x {GITHUB}"}, parent="p")
    output_lines = run(
        INIT,
        *OPEN,
        delta(text=GITHUB[:9]),
        inner,
        delta(text=GITHUB[9:]),
        text(GITHUB),
        *STOP,
        result(),
    )
    assert fragments(output_lines) == [MARK]
    assert not [raw_line for raw_line in output_lines if GITHUB in raw_line]


@limit_examples(60)
@given(
    at=st.lists(st.integers(0, 80), max_size=12),
    name=st.sampled_from(["text", "thinking", "partial_json"]),
)
def test_planted_secret_is_redacted_for_any_delta_boundaries(at, name):
    full_text = (
        json.dumps({"a": f"so {GITHUB} it is"}) if name == "partial_json" else f"so {GITHUB} it is"
    )
    places = [0, *sorted({position % len(full_text) for position in at}), len(full_text)]
    pieces = [full_text[start:end] for start, end in itertools.pairwise(places) if end > start]
    output_lines = run(INIT, *OPEN, *(delta(**{name: piece}) for piece in pieces), *STOP, result())
    assert "".join(fragments(output_lines, name)).replace(" ", "") == full_text.replace(
        GITHUB, MARK
    ).replace(" ", "")


@pytest.mark.parametrize("small", [False, True], ids=["whole", "as it comes"])
def test_collected_and_grown_lines_stay_within_the_line_limit(monkeypatch, small):
    if small:
        monkeypatch.setattr(redacted_lines, "MAX_INPUT_CHARS", 500)
    tool_input = json.dumps({"content": "x" * 30_000, "key": f"so {GITHUB} it is"})
    pieces = [
        delta(partial_json=tool_input[start : start + 1000])
        for start in range(0, len(tool_input), 1000)
    ]
    translation = create_standalone_child_stream(
        "claude", include_partial_messages=True, stable_ids=True, redact=True, max_line_bytes=10_000
    )
    block = {"type": "tool_result", "tool_use_id": "t", "content": "pwd=a1b2c3; " * 700}
    grown = line("user", message={"role": "user", "content": [block]})
    lines = [INIT, OPEN[0], *pieces, *STOP, call("t"), grown, result()]
    output = (
        translation.feed("".join(raw_line + "\n" for raw_line in lines).encode())[0]
        + translation.close(ChildExit(code=0))[0]
    )
    check_frames(output, limit=10_000)
    collected = "".join(fragments(output.decode().splitlines(), "partial_json"))
    assert collected.replace(" ", "") == tool_input.replace(GITHUB, MARK).replace(" ", "")
