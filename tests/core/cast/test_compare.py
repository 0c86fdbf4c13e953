"""Comparison of the recorded output with the present output, line by line."""

from replay_harness import encode_line
from sweeps import loop_over_rows

from shim.core.cast.compare import OutputNormalizer, compare_output_lines, split_output_lines


def difference(then, now):
    return compare_output_lines(
        1,
        OutputNormalizer("/then", "/now"),
        encode_line(then),
        OutputNormalizer("/then", "/now"),
        encode_line(now),
    )


@loop_over_rows(
    ("then", "now"),
    [
        ({"uuid": "a", "session_id": "b"}, {"uuid": "c", "session_id": "d"}),
        ({"duration_ms": 12, "ttft_ms": 3}, {"duration_ms": 1, "ttft_ms": 9}),
        ({"cwd": "/then", "text": "in /then/file"}, {"cwd": "/now", "text": "in /now/file"}),
        ({"text": "in /then/file"}, {"text": "in /then/file"}),
        ({"shim": {"unattended": True}}, {"shim": {"unattended": False, "replay": True}}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"claude_code_version": "1"}, {"claude_code_version": "2"}),
        ({"input": {"path": "/then/a"}}, {"input": {"path": "/now/a"}}),
        (
            {"input": {"hook_event_name": "Stop", "session_id": "a", "transcript_path": "b"}},
            {"input": {"hook_event_name": "Stop", "session_id": "c", "transcript_path": "d"}},
        ),
    ],
)
def test_run_specific_values_are_ignored(then, now):
    assert difference(then, now) is None


@loop_over_rows(
    ("then", "now", "where"),
    [
        ({"text": "a"}, {"text": "b"}, "text"),
        ({"m": {"c": [{"t": 1}]}}, {"m": {"c": [{"t": 2}]}}, "m.c[0].t"),
        ({"m": [1]}, {"m": [1, 2]}, "m[1]"),
        ({"m": 1}, {}, "m"),
        ({"duration_ms": None}, {"duration_ms": 1}, "duration_ms"),
        ({"uuid": "a", "request_id": "a"}, {"uuid": "a", "request_id": "b"}, "request_id"),
        ({"m": True}, {"m": 1}, "m"),
        ({"input": {"timeout_ms": 1}}, {"input": {"timeout_ms": 2}}, "input.timeout_ms"),
        ({"input": {"a": [{"id": "1"}]}}, {"input": {"a": [{"id": "2"}]}}, "input.a[0].id"),
        ({"tool_input": {"pid": 7}}, {"tool_input": {}}, "tool_input.pid"),
        (
            {"structured_output": {"pid": 1}},
            {"structured_output": {"pid": 2}},
            "structured_output.pid",
        ),
    ],
)
def test_difference_reports_the_json_path(then, now, where):
    result = difference(then, now)
    assert result is not None and result.where == where


def test_ids_must_correspond_consistently():
    then, now = OutputNormalizer(), OutputNormalizer()
    pairs = [
        (b'{"id":"a"}', b'{"id":"x"}'),
        (b'{"id":"b"}', b'{"id":"y"}'),
        (b'{"id":"a"}', b'{"id":"y"}'),
    ]
    results = [
        compare_output_lines(number, then, *([was, now, current_line]))
        for number, (was, current_line) in enumerate(pairs)
    ]
    assert results[:2] == [None, None] and results[2] is not None


def test_split_output_lines_accepts_json_arrays_and_lines():
    assert split_output_lines(b'[{"a":1},{"b":2}]') == [b'{"a":1}', b'{"b":2}']
    assert (
        split_output_lines(b"a\nb\n") == [b"a", b"b"]
        and split_output_lines(b"a\nb") == [b"a", b"b"]
        and split_output_lines(b"[no") == [b"[no"]
    )
