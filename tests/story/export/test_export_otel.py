"""`shim export --to otel`: valid OTLP JSON. Its spans contain the steps of a session, but not its
texts.
"""

import json
import re
import sys

import pytest
from cast_builder import build_case_recording, build_recording
from export_helpers import (
    SECRETS,
    build_assistant_line,
    build_delta_line,
    build_init_line,
    build_result_line,
    build_session,
    build_session_with_secret,
    build_text_block,
    build_thinking_block,
    build_tool_result_line,
    build_tool_use,
    build_user_line,
    encode_events,
    export_recording,
)
from fixture_cases import Case, find_case, list_fixture_cases
from sweeps import choose_few_cases, loop_over_cases, loop_over_rows

from shim.core.cast.format import RecordingError
from shim.core.errors import FrontendError
from shim.process.installation import build_install_hint
from shim.story.export.otel import write_recording_export
from shim.story.export.otel_send import send_recording_spans
from shim.story.export.spans import MAX_SPAN_EVENTS

KINDS = {
    "stringValue": str,
    "boolValue": bool,
    "intValue": str,
    "doubleValue": float,
    "arrayValue": dict,
}


def spans_of(folder, cast, **options):
    """Return the spans of an export. Assert that their ids, times, kinds and values are valid in
    OTLP JSON, and that the parent of each span exists.
    """
    document = json.loads(export_recording(write_recording_export, folder, cast, **options))
    (resource,) = document["resourceSpans"]
    (scope,) = resource["scopeSpans"]
    spans = scope["spans"]
    _check_attributes(resource["resource"]["attributes"])
    traces = {span["spanId"]: span["traceId"] for span in spans}
    assert len(traces) == len(spans), "a span's id is its own"
    for span in spans:
        assert re.fullmatch("[0-9a-f]{32}", span["traceId"]) and re.fullmatch(
            "[0-9a-f]{16}", span["spanId"]
        )
        if "parentSpanId" in span:
            assert traces[span["parentSpanId"]] == span["traceId"], (
                "a parent is there, in the same trace"
            )
        assert span["name"] and span["kind"] in (1, 3)
        assert re.fullmatch("[0-9]+", span["startTimeUnixNano"])
        assert int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
        for event in span.get("events", []):
            assert re.fullmatch("[0-9]+", event["timeUnixNano"])
            _check_attributes(event["attributes"])
        attributes = _check_attributes(span["attributes"])
        assert {"gen_ai.operation.name", "gen_ai.provider.name"} <= set(attributes)
        assert ("error.type" in attributes) == ("status" in span)
    return spans


def _check_attributes(attributes):
    names = [attribute["key"] for attribute in attributes]
    assert len(set(names)) == len(names)
    for attribute in attributes:
        ((kind, value),) = attribute["value"].items()
        assert isinstance(value, KINDS[kind])
    return dict(zip(names, attributes, strict=True))


def read_attributes(span):
    """Return the attributes of a span as values."""
    values = {}
    for attribute in span["attributes"]:
        ((kind, value),) = attribute["value"].items()
        values[attribute["key"]] = int(value) if kind == "intValue" else value
    return values


def get_span(spans, name):
    (matching_span,) = (span for span in spans if span["name"] == name)
    return matching_span


@pytest.mark.parametrize("content", [False, True])
@loop_over_cases(list_fixture_cases(), quick=choose_few_cases)
def test_spans_of_every_fixture_are_well_formed(case: Case, content: bool, tmp_path) -> None:
    spans = spans_of(tmp_path, build_case_recording(case), redact=content, content=content)
    roots = [span for span in spans if "parentSpanId" not in span]
    assert len({span["traceId"] for span in roots}) == len(roots), "a trace has one root"


@loop_over_cases(list_fixture_cases("qwen"))
def test_spans_of_a_truncated_recording_are_well_formed(case: Case, tmp_path) -> None:
    recording = build_case_recording(case)
    for share in (3, 7):
        spans_of(tmp_path, recording[: len(recording) * share // 10 + recording.index(b"\n")])


TURN = (
    (0.5, build_init_line(model="claude-opus-5-5")),
    (
        1.5,
        build_assistant_line(
            "m1",
            build_thinking_block("hm"),
            build_text_block("I look."),
            build_tool_use("c1", command="ls"),
            model="claude-opus-5-5",
        ),
    ),
    (2.0, build_tool_result_line("c1", "a b", failed=True)),
    (
        3.0,
        build_assistant_line(
            "m2",
            build_text_block("Two files."),
            stop_reason="end_turn",
            usage={"input_tokens": 3, "output_tokens": 9},
        ),
    ),
    (
        3.5,
        build_result_line(
            total_cost_usd=0.25,
            usage={"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 5},
        ),
    ),
)


def test_turn_is_an_agent_span_with_chat_and_tool_spans(tmp_path):
    spans = spans_of(tmp_path, build_session(*TURN, vendor_version="1.2"))
    agent, tool, (first, second) = (
        get_span(spans, "invoke_agent pi"),
        get_span(spans, "execute_tool Bash"),
        [span for span in spans if span["name"].startswith("chat ")],
    )
    assert {span["parentSpanId"] for span in (tool, first, second)} == {agent["spanId"]}
    assert (agent["kind"], tool["kind"], first["kind"]) == (3, 1, 3)
    agent_attributes = read_attributes(agent)
    assert agent_attributes["gen_ai.operation.name"] == "invoke_agent"
    assert (agent_attributes["gen_ai.agent.name"], agent_attributes["gen_ai.agent.version"]) == (
        "pi",
        "1.2",
    )
    assert agent_attributes["gen_ai.conversation.id"] == "s-1"
    assert (
        agent_attributes["gen_ai.usage.input_tokens"],
        agent_attributes["gen_ai.usage.output_tokens"],
    ) == (7, 5)
    assert agent_attributes["gen_ai.usage.cache_read.input_tokens"] == 4
    assert agent_attributes["shim.session.cost_usd"] == 0.25
    assert (
        first["name"] == "chat claude-opus-5-5"
        and read_attributes(first)["gen_ai.provider.name"] == "anthropic"
    )
    assert int(first["endTimeUnixNano"]) - int(first["startTimeUnixNano"]) == 1_500_000_000
    answered = read_attributes(second)
    assert answered["gen_ai.response.finish_reasons"] == {"values": [{"stringValue": "stop"}]}
    assert (answered["gen_ai.response.id"], answered["gen_ai.response.model"]) == ("m2", "m-1")
    assert answered["gen_ai.usage.output_tokens"] == 9
    called = read_attributes(tool)
    assert (called["gen_ai.tool.name"], called["gen_ai.tool.call.id"]) == ("Bash", "c1")
    assert (called["error.type"], tool["status"]) == ("tool_error", {"code": 2})
    assert int(tool["endTimeUnixNano"]) - int(tool["startTimeUnixNano"]) == 500_000_000
    assert tool["startTimeUnixNano"] == "1795168801500000000"  # 2026-11-20T10:00:01.5Z


def test_message_content_is_exported_only_with_the_content_option(tmp_path):
    error = build_assistant_line("m3", build_text_block("It broke: a b."), model="<synthetic>") | {
        "error": "unknown"
    }
    cast = build_session(
        *TURN[:-1],
        (3.1, build_user_line("hm hm")),
        (3.2, error),
        (3.5, build_result_line(is_error=True, errors=["It broke: a b."])),
    )
    plain = json.dumps(spans_of(tmp_path, cast))
    for phrase in ("say hello", "I look", "hm", "ls", "a b", "Two files"):
        assert f'"{phrase}' not in plain and f"{phrase}." not in plain
    spans = spans_of(tmp_path, cast, content=True)
    chats = [read_attributes(span) for span in spans if span["name"].startswith("chat ")]
    assert json.loads(chats[0]["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "say hello"}]}
    ]
    assert json.loads(chats[0]["gen_ai.output.messages"]) == [
        {
            "role": "assistant",
            "finish_reason": "tool_call",
            "parts": [
                {"type": "reasoning", "content": "hm"},
                {"type": "text", "content": "I look."},
                {"type": "tool_call", "id": "c1", "name": "Bash", "arguments": {"command": "ls"}},
            ],
        }
    ]
    assert json.loads(chats[1]["gen_ai.input.messages"]) == [
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "a b"}]}
    ]
    tool = read_attributes(get_span(spans, "execute_tool Bash"))
    assert json.loads(tool["gen_ai.tool.call.arguments"]) == {"command": "ls"}
    assert json.loads(tool["gen_ai.tool.call.result"]) == "a b"


def test_subagent_span_is_a_child_of_its_call_span(tmp_path):
    spans = spans_of(tmp_path, build_case_recording(find_case("claude/2.1.327-tool-agent")))
    inner, outer = (
        get_span(spans, "invoke_agent general-purpose"),
        get_span(spans, "execute_tool Agent"),
    )
    assert inner["parentSpanId"] == outer["spanId"]
    assert get_span(spans, "execute_tool Bash")["parentSpanId"] == inner["spanId"]
    assert [span["name"] for span in spans if "parentSpanId" not in span] == ["invoke_agent claude"]


def test_each_turn_is_a_trace_with_the_same_conversation_id(tmp_path):
    argv = ["-p", "--output-format", "stream-json", "--input-format", "stream-json", "--verbose"]
    user_message = {"type": "user", "message": {"role": "user", "content": "go"}}
    moments = [(0.0, "i", encode_events(user_message)), (0.1, "i", encode_events(user_message))]
    moments += [
        (
            1.0,
            "O",
            encode_events(
                build_init_line(),
                build_assistant_line("m1", build_text_block("a")),
                build_result_line(),
            ),
        )
    ]
    moments += [
        (
            2.0,
            "O",
            encode_events(
                build_init_line(),
                build_assistant_line("m2", build_text_block("b")),
                build_result_line(),
            ),
        )
    ]
    spans = spans_of(tmp_path, build_recording(moments, argv=argv))
    first, second = (span for span in spans if span["name"] == "invoke_agent pi")
    assert first["traceId"] != second["traceId"]
    assert (
        read_attributes(first)["gen_ai.conversation.id"]
        == read_attributes(second)["gen_ai.conversation.id"]
    )
    assert second["startTimeUnixNano"] == first["endTimeUnixNano"]


def test_export_is_deterministic_and_span_ids_differ_between_recordings(tmp_path):
    first_recording, other = (
        build_session(*TURN),
        build_session(*TURN, started="2026-11-20T10:00:01.000Z"),
    )
    assert export_recording(write_recording_export, tmp_path, first_recording) == export_recording(
        write_recording_export, tmp_path, first_recording
    )
    ids = [
        {span["spanId"] for span in spans_of(tmp_path, cast)} for cast in (first_recording, other)
    ]
    assert not ids[0] & ids[1]


def test_truncated_turn_has_error_type_cut_off(tmp_path):
    agent = get_span(spans_of(tmp_path, build_session(*TURN[:3], end=False)), "invoke_agent pi")
    assert read_attributes(agent)["error.type"] == "cut_off"


def test_failed_turn_has_its_cause_as_error_type(tmp_path):
    ended = build_result_line(
        is_error=True, subtype="error_during_execution", shim={"cause": "rate_limit"}
    )
    agent = get_span(spans_of(tmp_path, build_session(*TURN[:-1], (4.0, ended))), "invoke_agent pi")
    assert read_attributes(agent)["error.type"] == "rate_limit"


def test_streamed_reply_has_the_time_to_first_chunk(tmp_path):
    start = {
        "type": "stream_event",
        "event": {"type": "message_start", "message": {"id": "m1", "model": "m-1"}},
    }
    events = [
        (0.0, build_init_line()),
        (1.0, start),
        (2.0, build_delta_line("a")),
        (5.0, build_delta_line("b")),
        (6.0, build_result_line()),
    ]
    (chat,) = (
        span
        for span in spans_of(tmp_path, build_session(*events))
        if span["name"].startswith("chat")
    )
    assert read_attributes(chat)["gen_ai.response.time_to_first_chunk"] == 2.0


def test_complete_reply_has_no_time_to_first_chunk(tmp_path):
    events = [
        (0.0, build_init_line()),
        (1.0, build_assistant_line("m1", build_text_block("a"))),
        (2.0, build_assistant_line("m1", build_text_block("b"))),
        (6.0, build_result_line()),
    ]
    (chat,) = (
        span
        for span in spans_of(tmp_path, build_session(*events))
        if span["name"].startswith("chat")
    )
    assert "gen_ai.response.time_to_first_chunk" not in read_attributes(chat)


def test_span_events_are_limited_and_dropped_events_are_counted(tmp_path):
    notes = [(1.0, "n", {"kind": "repair"})] * (MAX_SPAN_EVENTS + 7)
    turn = [
        (
            0.5,
            "O",
            encode_events(build_init_line(), build_assistant_line("m1", build_text_block("a"))),
        ),
        *notes,
        (2.0, "O", encode_events(build_result_line())),
    ]
    agent = get_span(spans_of(tmp_path, build_recording(turn)), "invoke_agent pi")
    assert len(agent["events"]) == MAX_SPAN_EVENTS and agent["droppedEventsCount"] == 7


@pytest.mark.parametrize("content", [False, True])
@loop_over_rows("secret", SECRETS)
def test_secrets_are_redacted_in_exported_spans(secret, content, tmp_path):
    cast = build_session_with_secret(secret)
    assert (secret in json.dumps(spans_of(tmp_path, cast, content=True))) is True
    assert secret not in json.dumps(spans_of(tmp_path, cast, redact=True, content=content))


def test_export_of_a_file_that_is_not_a_recording_raises_an_error(tmp_path):
    with pytest.raises(RecordingError, match="not a recording"):
        export_recording(write_recording_export, tmp_path, encode_events(build_init_line()))


def test_export_command_accepts_content_only_for_otel(shim, local_box):
    file = local_box.path / "one.cast"
    file.write_bytes(build_session(*TURN))
    status, plain, _ = shim("export", str(file), "--to", "otel")
    assert status == 0 and b"gen_ai.input.messages" not in plain
    assert b"gen_ai.input.messages" in shim("export", str(file), "--to", "otel", "--content")[1]
    status, output, complaint = shim("export", str(file), "--to", "atif", "--content")
    assert (status, output) == (2, b"") and "--to otel" in complaint


def test_sending_spans_without_the_otel_extra_names_the_extra(shim, local_box, monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    file = local_box.path / "one.cast"
    file.write_bytes(build_session(*TURN))
    status, output, complaint = shim(
        "export", str(file), "--to", "otel", "--endpoint", "http://127.0.0.1:9"
    )
    assert (status, output) == (1, b"") and build_install_hint("otel") in complaint


@pytest.mark.parametrize("endpoint", ["localhost:4318", "file:///etc/passwd", "", "https://"])
def test_endpoint_that_is_not_an_http_url_is_refused(endpoint, tmp_path):
    with pytest.raises(FrontendError, match="not an http or https URL"):
        send_recording_spans(str(tmp_path / "none"), endpoint, redact=True)
