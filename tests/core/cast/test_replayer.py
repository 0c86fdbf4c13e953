"""The replay of one side of a recording, without a process and with the test's clock only."""

import pytest
from cast_builder import build_case_recording, read_cast, stream_of
from fixture_cases import FIXTURES, list_fixture_cases
from replay_harness import (
    RESULT,
    START,
    ReplayHarness,
    build_exit_record,
    build_replayer,
    build_signal_note,
    encode_control_request,
    encode_control_response,
    encode_line,
    encode_user_message,
)
from sweeps import choose_few_cases, loop_over_cases, loop_over_rows
from torture_cases import list_torture_cases as torture_cases

from shim.core.cast.protocol_lines import (
    ProtocolLine,
    parse_protocol_line,
    select_child_records,
    select_frontend_records,
)
from shim.core.cast.replayer import MAX_PENDING_LINES, NO_END_REASON, RecordingReplayer
from shim.recording.player import LINE_TIMEOUT_S, SIGNAL_TIMEOUT_S

ASKS = encode_control_request("q1", "can_use_tool", tool_name="Bash")
HELLO = encode_control_response("shim-1", ok=True)


def conversation(*later_events):
    """Return a child that received `initialize` and one message, with the later events."""
    return [
        START,
        (0.0, "I", encode_control_request("shim-1", "initialize")),
        (0.1, "o", HELLO),
        (0.2, "I", encode_user_message("hi")),
        *later_events,
    ]


@loop_over_cases(list_fixture_cases(), quick=choose_few_cases)
def test_fixture_is_replayed_byte_for_byte(case):
    _, records = read_cast(build_case_recording(case))
    harness = ReplayHarness()
    step = harness.play_to_end(
        RecordingReplayer(select_child_records(records, 1), output_streams="oe", input_stream="I")
    )
    assert harness.stdout == case.data == stream_of(records, "o")
    assert (
        b"".join(data for _, letter, data in harness.outputs if letter == "e")
        == case.stderr.encode()
    )
    if case.exit is not None:
        assert (step.kind, step.signal_name, step.exit_code or 0) == (
            "end",
            case.exit.signal,
            case.exit.code or 0,
        )


@loop_over_rows("case", [case for case in torture_cases() if len(case.data) < 3_000_000])
def test_torture_case_is_replayed_byte_for_byte(case):
    harness = ReplayHarness()
    harness.play_to_end(build_replayer([START, (0.1, "o", case.data), build_exit_record(0.2)]))
    assert harness.stdout == case.data


def test_replay_preserves_the_recorded_pauses():
    moments = [
        START,
        (1.0, "o", b"a\n"),
        (3.5, "e", b"b\n"),
        (3.5, "o", b"c\n"),
        build_exit_record(4.0),
    ]
    harness = ReplayHarness()
    harness.play_to_end(build_replayer(moments))
    assert [at for at, _, _ in harness.outputs] == [1.0, 3.5, 3.5]
    assert harness.now == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("speed", "most", "times"), [(2.0, None, [0.5, 5.5]), (0.0, None, [0, 0]), (1.0, 2.0, [1, 3])]
)
def test_replay_pauses_can_be_shortened(speed, most, times):
    harness = ReplayHarness()
    harness.play_to_end(
        build_replayer([START, (1.0, "o", b"a\n"), (11.0, "o", b"b\n"), build_exit_record(11.0)]),
        speed,
        most,
    )
    assert [at for at, _, _ in harness.outputs] == times


def test_replay_catches_up_after_a_slow_reader():
    """The next pause is shorter by the delay."""
    harness = ReplayHarness()
    script = build_replayer(
        [START, (1.0, "o", b"a\n"), (2.0, "o", b"b\n"), (3.0, "o", b"c\n"), build_exit_record(3.0)]
    )
    write = harness.write_output

    def slow(letter, data):
        write(letter, data)
        harness.now += 0.5

    harness.write_output = slow
    harness.play_to_end(script)
    assert [at for at, _, _ in harness.outputs] == [1.0, 2.0, 3.0]


def test_replay_waits_for_stdin_lines_at_the_recorded_points():
    harness = ReplayHarness(
        (5.0, "line", encode_control_request("shim-1", "initialize")),
        (60.0, "line", encode_user_message("hi")),
        (70.0, "end", b""),
    )
    harness.play_to_end(build_replayer(conversation((0.5, "o", RESULT), build_exit_record(9.0))))
    assert [(at, data) for at, _, data in harness.outputs] == [(5.1, HELLO), (60.3, RESULT)]


def test_replayed_response_uses_the_current_request_id():
    harness = ReplayHarness(
        (1.0, "line", encode_control_request("mine", "initialize")),
        (2.0, "line", encode_user_message("hi")),
        (3.0, "end", b""),
    )
    harness.play_to_end(build_replayer(conversation((0.5, "o", RESULT), build_exit_record(9.0))))
    assert harness.stdout == HELLO.replace(b"shim-1", b"mine") + RESULT


def test_replayed_message_echo_uses_the_current_uuid():
    echo = encode_line({"type": "user", "uuid": "then", "isReplay": True})
    moments = [
        START,
        (0.0, "I", encode_user_message("hi", uuid="then")),
        (0.1, "o", echo + RESULT),
        build_exit_record(0.2),
    ]
    harness = ReplayHarness((0.0, "line", encode_user_message("hi", uuid="now")), (0.0, "end", b""))
    harness.play_to_end(build_replayer(moments))
    assert harness.stdout == echo.replace(b"then", b"now") + RESULT


def test_numeric_ids_are_replaced_only_in_responses_to_the_frontend():
    """The frontend's request numbers have changed by one. The vendor numbers its own requests."""
    asks = encode_control_request(
        "2", "can_use_tool", tool_name="Bash", input={"command": "2", "options": ["3"]}
    )
    requests = [encode_control_request(str(number), f"kind{number}") for number in (1, 2, 3)]
    answers = [encode_control_response(str(number), said="2") for number in (3, 2)]
    moments = [
        START,
        *((0.0, "I", data) for data in requests),
        *((0.1, "o", data) for data in answers),
    ]
    moments += [(0.2, "I", encode_user_message("hi")), (0.3, "o", asks)]
    moments += [(0.4, "I", encode_control_response("2", behavior="allow")), (0.5, "o", RESULT)]
    now = [
        encode_control_request("1", "kind1"),
        encode_control_request("3", "kind2"),
        encode_control_request("4", "kind3"),
        encode_user_message("hi"),
    ]
    frontend_events = [
        (float(at), "line", data)
        for at, data in enumerate([*now, encode_control_response("2", behavior="allow")])
    ]
    harness = ReplayHarness(*frontend_events, (9.0, "end", b""))
    harness.play_to_end(build_replayer([*moments, build_exit_record(9.0)]))
    assert (
        harness.stdout
        == encode_control_response("4", said="2")
        + encode_control_response("3", said="2")
        + asks
        + RESULT
    )


def test_only_the_response_to_an_unsent_request_is_omitted():
    """The first request is not sent now. The response to the second one has its id in a text."""
    moments = [
        START,
        (0.0, "I", encode_control_request("1", "a")),
        (0.0, "I", encode_control_request("2", "b")),
        (0.1, "o", encode_control_response("1")),
    ]
    moments += [
        (0.1, "o", encode_control_response("2", said="1")),
        (0.2, "I", encode_user_message("hi")),
        (0.3, "o", RESULT),
    ]
    script = build_replayer([*moments, build_exit_record(9.0)])
    for request_line in (encode_control_request("2", "b"), encode_user_message("hi")):
        script.feed_line(request_line)
    harness = ReplayHarness((9.0, "end", b""))
    harness.play_to_end(script)
    assert harness.stdout == encode_control_response("2", said="1") + RESULT


def test_replay_uses_the_session_id_chosen_by_the_frontend():
    then, now = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
    lines = encode_line({"type": "system", "session_id": then}) + encode_line(
        {"type": "assistant", "session_id": then, "text": then}
    )
    harness = ReplayHarness()
    harness.play_to_end(
        build_replayer([START, (0.1, "o", lines), build_exit_record(0.2)], session_id=now)
    )
    assert harness.stdout == lines.replace(then.encode(), now.encode())


def test_replay_continues_after_the_same_decision_and_fails_after_another():
    moments = conversation(
        (0.5, "o", ASKS),
        (4.0, "I", encode_control_response("q1", behavior="allow")),
        (4.1, "o", RESULT),
        build_exit_record(5.0),
    )
    first = [
        (0.0, "line", encode_control_request("shim-1", "initialize")),
        (0.0, "line", encode_user_message("hi")),
    ]
    harness = ReplayHarness(
        *first,
        (9.0, "line", encode_control_response("q1", behavior="allow", updatedInput={})),
        (9.5, "end", b""),
    )
    assert harness.play_to_end(build_replayer(moments)).kind == "end"
    assert harness.stdout == HELLO + ASKS + RESULT
    harness = ReplayHarness(
        *first, (9.0, "line", encode_control_response("q1", behavior="deny", message="no"))
    )
    step = harness.play_to_end(build_replayer(moments))
    assert step.kind == "fail" and "allow" in step.reason and "deny" in step.reason
    assert harness.stdout == HELLO + ASKS


def test_permission_responses_may_arrive_in_another_order():
    ask = [encode_control_request(name, "can_use_tool") for name in ("q1", "q2")]
    answers = [encode_control_response(name, behavior="allow") for name in ("q1", "q2")]
    moments = [
        START,
        (0.0, "I", encode_user_message("hi")),
        (0.1, "o", b"".join(ask)),
        (1.0, "I", b"".join(answers)),
    ]
    harness = ReplayHarness(
        (0.0, "line", encode_user_message("hi")),
        (1.0, "line", answers[1]),
        (2.0, "line", answers[0]),
        (3.0, "end", b""),
    )
    assert (
        harness.play_to_end(
            build_replayer([*moments, (1.1, "o", RESULT), build_exit_record(2.0)])
        ).kind
        == "end"
    )
    assert harness.stdout.endswith(RESULT)


def test_unrecorded_permission_response_is_ignored():
    moments = conversation((0.5, "o", ASKS), (0.6, "o", RESULT), build_exit_record(1.0))
    harness = ReplayHarness(
        (0.0, "line", encode_control_request("shim-1", "initialize")),
        (0.0, "line", encode_user_message("hi")),
        (0.4, "line", encode_control_response("q1", behavior="deny")),
        (2.0, "end", b""),
    )
    assert harness.play_to_end(build_replayer(moments)).kind == "end"
    assert harness.stdout == HELLO + ASKS + RESULT


def test_unrecorded_control_request_receives_a_success_response():
    harness = ReplayHarness(
        (0.0, "line", encode_control_request("shim-1", "initialize")),
        (0.1, "line", encode_control_request("m", "set_model", model="x")),
        (1.0, "line", encode_user_message("hi")),
        (2.0, "end", b""),
    )
    harness.play_to_end(build_replayer(conversation((0.5, "o", RESULT), build_exit_record(1.0))))
    granted = encode_line(
        {
            "type": "control_response",
            "response": {"subtype": "success", "request_id": "m", "response": {}},
        }
    )
    assert harness.stdout == HELLO + granted + RESULT


def test_recorded_request_that_is_not_sent_is_skipped():
    request_events = [
        (0.1, "I", encode_control_request("m", "set_model")),
        (0.2, "o", encode_control_response("m")),
    ]
    harness = ReplayHarness((0.0, "line", encode_user_message("hi")), (1.0, "end", b""))
    harness.play_to_end(
        build_replayer(
            [
                START,
                *request_events,
                (0.3, "I", encode_user_message("hi")),
                (0.4, "o", RESULT),
                build_exit_record(1.0),
            ]
        )
    )
    assert harness.stdout == RESULT


CUT = encode_line({"type": "result", "subtype": "error_during_execution", "is_error": True})


def test_interrupt_continues_after_the_recorded_interrupt():
    late = [(2.0 + step, "o", b"late\n") for step in range(5)]
    interrupted = [
        (9.0, "I", encode_control_request("i", "interrupt")),
        (9.2, "o", encode_control_response("i")),
        (9.3, "o", CUT),
        build_exit_record(10.0),
    ]
    harness = ReplayHarness(
        (0.0, "line", encode_control_request("shim-1", "initialize")),
        (0.0, "line", encode_user_message("hi")),
        (0.5, "line", encode_control_request("mine", "interrupt")),
        (3.0, "end", b""),
    )
    harness.play_to_end(build_replayer(conversation(*late, *interrupted)))
    assert harness.stdout == HELLO + encode_control_response("mine") + CUT
    assert [at for at, _, _ in harness.outputs] == [0.1, 0.7, 0.8]


def test_unrecorded_interrupt_ends_the_replay_with_sigint():
    harness = ReplayHarness(
        (0.0, "line", encode_control_request("shim-1", "initialize")),
        (0.0, "line", encode_user_message("hi")),
        (0.5, "line", encode_control_request("mine", "interrupt")),
    )
    step = harness.play_to_end(
        build_replayer(conversation((5.0, "o", RESULT), build_exit_record(6.0)))
    )
    assert (step.kind, step.signal_name) == ("end", "SIGINT")
    assert harness.stdout.startswith(HELLO) and RESULT not in harness.stdout


def test_interrupt_between_turns_is_answered_without_effect():
    harness = ReplayHarness(
        (0.0, "line", encode_control_request("shim-1", "initialize")),
        (0.5, "line", encode_control_request("mine", "interrupt")),
        (1.0, "line", encode_user_message("hi")),
        (3.0, "end", b""),
    )
    assert (
        harness.play_to_end(
            build_replayer(conversation((0.5, "o", RESULT), build_exit_record(6.0)))
        ).exit_code
        == 0
    )
    assert b"mine" in harness.stdout and harness.stdout.endswith(RESULT)


def signal_run(**options):
    moments = [
        START,
        (1.0, "o", b"a\n"),
        (5.0, "o", b"b\n"),
        build_signal_note(6.0, "SIGINT"),
        (6.5, "o", b"cut\n"),
    ]
    return build_replayer([*moments, build_exit_record(7.0, None, "SIGINT")], **options)


def test_signal_continues_after_the_recorded_signal():
    harness = ReplayHarness((2.0, "signal", b"SIGINT"))
    step = harness.play_to_end(signal_run(waits_for_signals=True))
    assert harness.outputs == [(1.0, "o", b"a\n"), (2.5, "o", b"cut\n")]
    assert step.signal_name == "SIGINT" and harness.now == pytest.approx(3.0)


def test_unrecorded_signal_ends_the_replay():
    harness = ReplayHarness((2.0, "signal", b"SIGTERM"))
    step = harness.play_to_end(signal_run(waits_for_signals=True))
    assert (step.kind, step.signal_name, harness.stdout) == ("end", "SIGTERM", b"a\n")


def test_replay_waits_for_a_recorded_signal_until_a_timeout():
    harness = ReplayHarness()
    harness.play_to_end(signal_run(waits_for_signals=True))
    assert SIGNAL_TIMEOUT_S in harness.timeouts_s and harness.stdout == b"a\nb\ncut\n"
    harness = ReplayHarness()
    harness.play_to_end(signal_run())
    assert SIGNAL_TIMEOUT_S not in harness.timeouts_s and harness.stdout == b"a\nb\ncut\n"


def test_replay_does_not_wait_for_the_signal_of_an_idle_timeout():
    timeout = {"kind": "timeout", "name": "idle_timeout", "seconds": 9.0}
    moments = [
        START,
        (1.0, "o", b"a\n"),
        (10.0, "n", timeout),
        build_signal_note(10.0, "SIGINT"),
        build_exit_record(10.5, None, "SIGINT"),
    ]
    harness = ReplayHarness()
    step = harness.play_to_end(build_replayer(moments, waits_for_signals=True))
    assert (step.kind, step.signal_name) == ("end", "SIGINT") and harness.now == pytest.approx(10.5)


def test_replay_waits_for_a_stdin_line_until_a_timeout():
    harness = ReplayHarness()
    harness.play_to_end(build_replayer(conversation((0.5, "o", RESULT), build_exit_record(1.0))))
    assert harness.now > LINE_TIMEOUT_S and harness.stdout == HELLO + RESULT


def test_replay_does_not_wait_after_stdin_closes():
    harness = ReplayHarness((0.0, "end", b""))
    assert (
        harness.play_to_end(
            build_replayer(conversation((0.5, "o", RESULT), build_exit_record(1.0)))
        ).exit_code
        == 0
    )
    assert harness.now < 2.0


def test_plain_text_on_stdin_counts_as_a_single_message():
    moments = [START, (0.0, "I", b"two\nlines"), (0.1, "o", b"a\n"), build_exit_record(0.2)]
    harness = ReplayHarness((7.0, "line", b"another prompt"), (7.0, "end", b""))
    harness.play_to_end(build_replayer(moments))
    assert harness.outputs == [(7.1, "o", b"a\n")]


def test_replayed_exit_waits_for_stdin_to_close_unless_the_child_crashed():
    frontend_events = [(0.0, "line", encode_user_message("hi"))]
    harness = ReplayHarness(*frontend_events, (50.0, "end", b""))
    harness.play_to_end(
        build_replayer(
            [
                START,
                (0.0, "I", encode_user_message("hi")),
                (0.1, "o", RESULT),
                build_exit_record(9.0),
            ]
        )
    )
    assert harness.now == 50.0
    harness = ReplayHarness(*frontend_events)
    step = harness.play_to_end(
        build_replayer(
            [
                START,
                (0.0, "I", encode_user_message("hi")),
                (0.1, "o", b"half"),
                build_exit_record(9.0, None, "SIGSEGV"),
            ]
        )
    )
    assert step.signal_name == "SIGSEGV" and harness.now < 10.0


def test_message_beyond_the_recording_fails_with_a_reason():
    harness = ReplayHarness(
        (0.0, "line", encode_user_message("hi")), (1.0, "line", encode_user_message("again"))
    )
    step = harness.play_to_end(
        build_replayer(
            [
                START,
                (0.0, "I", encode_user_message("hi")),
                (0.1, "o", RESULT),
                build_exit_record(9.0),
            ]
        )
    )
    assert step.kind == "fail" and "no further message" in step.reason


def test_truncated_recording_is_replayed_and_then_fails():
    harness = ReplayHarness()
    step = harness.play_to_end(build_replayer([START, (0.1, "o", b"a\n")]))
    assert (step.kind, step.reason, harness.stdout) == ("fail", NO_END_REASON, b"a\n")


def test_each_child_is_replayed_separately():
    second = (2.0, "s", {"child": 2, "turn": 2, "argv": [], "cwd": "/"})
    moments = [
        START,
        (0.1, "o", b"one\n"),
        build_exit_record(1.0),
        second,
        (2.1, "o", b"two\n"),
        build_exit_record(3.0, 3, child=2),
    ]
    harness = ReplayHarness()
    assert harness.play_to_end(build_replayer(moments, child=2)).exit_code == 3
    assert harness.stdout == b"two\n"


def test_frontend_replay_writes_the_recorded_frontend_output():
    _, records = read_cast(build_case_recording(next(iter(list_fixture_cases("qwen")))))
    harness = ReplayHarness()
    assert harness.play_to_end(
        RecordingReplayer(select_frontend_records(records), output_streams="O", input_stream="i")
    ).exit_code in (0, 1)
    assert harness.stdout == stream_of(records, "O") != b""


def test_frontend_replay_exits_with_the_status_of_the_last_result():
    from cast_builder import build_recording

    _, records = read_cast(
        build_recording(
            [
                (0.0, "i", encode_user_message("hi")),
                (0.5, "O", RESULT),
                (1.0, "i", encode_user_message("b")),
                (2.0, "O", CUT),
            ]
        )
    )
    harness = ReplayHarness(
        (0.0, "line", encode_user_message("hi")),
        (0.0, "line", encode_user_message("b")),
        (9.0, "end", b""),
    )
    assert (
        harness.play_to_end(
            RecordingReplayer(
                select_frontend_records(records), output_streams="O", input_stream="i"
            )
        ).exit_code
        == 1
    )
    assert harness.stdout == RESULT + CUT


@pytest.mark.parametrize(
    "path", sorted((FIXTURES / "casts").glob("*.cast")), ids=lambda path: path.stem
)
def test_old_recordings_can_be_replayed(path):
    _, records = read_cast(path.read_bytes())
    children = sum(record.code == "s" for record in records)
    output = b""
    for number in range(1, children + 1):
        harness = ReplayHarness()
        harness.play_to_end(
            RecordingReplayer(
                select_child_records(records, number), output_streams="oe", input_stream="I"
            ),
            speed=0.0,
        )
        output += harness.stdout
    assert output == b"".join(_read_child_output(records))


def _read_child_output(records):
    running = False
    for record in records:
        running = record.code == "s" or (running and record.code != "x")
        if running and record.code == "o":
            yield record.data


def test_number_of_pending_input_lines_is_bounded():
    script = build_replayer([START, (0.1, "o", b"a\n"), build_exit_record(0.2)])
    for number in range(3 * MAX_PENDING_LINES):
        script.feed_line(encode_control_request(str(number), "set_model"))
        script.feed_line(encode_control_request(str(number), "interrupt"))
    assert len(script._live_input.lines) == len(script._live_input.responses) == MAX_PENDING_LINES


@loop_over_rows(
    "raw",
    [b"", b"text", b"{", b"[1]", b'{"type":7}', b'{"type":"control_request","request":3}', b"{}"],
)
def test_protocol_line_kind_is_a_string_for_any_input(raw):
    assert isinstance(parse_protocol_line(raw).kind, str)


@loop_over_rows(
    ("raw", "expected"),
    [
        (b'{"id":"shim-3","type":"prompt","message":"hi"}', ProtocolLine("user")),
        (b'{"id":"shim-4","type":"abort"}', ProtocolLine("abort")),
        (
            b'{"type":"extension_ui_response","id":"q","value":"{\\"allow\\":true}"}',
            ProtocolLine("control_response", "q", "allow"),
        ),
        (
            b'{"type":"extension_ui_response","id":"q","value":"[]"}',
            ProtocolLine("control_response", "q", "deny"),
        ),
        (
            b'{"type":"extension_ui_response","id":"q","cancelled":true}',
            ProtocolLine("control_response", "q", "deny"),
        ),
    ],
)
def test_pi_protocol_lines_map_to_common_kinds(raw, expected):
    assert parse_protocol_line(raw) == expected
