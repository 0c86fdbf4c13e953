"""Which recording answers a message: it is selected by the prompt, or in the order of recording."""

import json
import subprocess

from box import STREAM
from cast_builder import build_case_recording, build_recording, read_cast, stream_of
from fixture_cases import find_case
from replay_harness import (
    START,
    build_exit_record,
    encode_control_request,
    encode_control_response,
    encode_line,
    encode_user_message,
)

from shim.core.cast.format import RecordingHeader
from shim.recording.recorded_run import load_recorded_run, parse_recorded_invocation
from shim.recording.selection import RecordingSet
from tests.recording.test_replay import TALK, write_recording


def folder(box, *recordings):
    """Write a folder of recordings, a `(prompt, fixture)` pair each, in this order. Return its
    path.
    """
    for number, (prompt, name) in enumerate(recordings):
        argv = ["-p", *STREAM, prompt]
        fixture = find_case(name)
        write_recording(
            box,
            build_case_recording(fixture, argv=argv),
            f"casts/2026112{number}T000000000Z-{fixture.vendor}.cast",
        )
    return str(box.path / "casts")


PLAIN, UNICODE, BASH = "pi/1.5.2-plain", "pi/1.5.2-unicode", "pi/1.5.2-bash"


def replay_prompt(box, path, prompt, *args):
    """Run a turn of the drop-in that replays the recordings at `path`."""
    return box.run_claude(
        "-p", *STREAM, *args, prompt, SHIM_VENDOR=f"replay:{path}", SHIM_REPLAY_SPEED="0"
    )


def golden(name):
    """Return the result text of a fixture."""
    _, records = read_cast(build_case_recording(find_case(name)))
    return json.loads(stream_of(records, "O").splitlines()[-2])["result"]


def test_recording_in_a_directory_is_selected_by_the_prompt(box):
    path = folder(box, ("a", PLAIN), ("b", BASH))
    assert replay_prompt(box, path, "b").result["result"] == golden(BASH)
    assert replay_prompt(box, path, "a").result["result"] == golden(PLAIN)


def test_unrecorded_prompt_is_an_error_that_lists_the_recorded_prompts(box):
    path = folder(box, ("a\x1b[31m", PLAIN), ("b", BASH))
    done = replay_prompt(box, path, "c\x1b]0;x\x07")
    assert done.status == 1 and done.cause == "not_found"
    assert "'c" in done.stderr and "'b'" in done.stderr and "\x1b" not in done.stderr


def test_prompt_must_match_a_recorded_prompt_exactly(box):
    path = folder(box, ("read", PLAIN), ("read it", BASH))
    assert replay_prompt(box, path, "read it").result["result"] == golden(BASH)
    done = replay_prompt(box, path, "read it all")
    assert (done.status, done.cause) == (1, "not_found")


def test_resumed_session_replays_the_next_recording_of_the_same_prompt(box):
    path = folder(box, ("go on", PLAIN), ("go on", BASH), ("go on", UNICODE))
    first = replay_prompt(box, path, "go on")
    session = first.init["session_id"]
    second = replay_prompt(box, path, "go on", "--resume", session)
    third = replay_prompt(box, path, "go on", "--resume", session)
    assert [done.result["result"] for done in (first, second, third)] == [
        golden(PLAIN),
        golden(BASH),
        golden(UNICODE),
    ]
    assert second.init["session_id"] == session == third.init["session_id"]
    assert replay_prompt(box, path, "go on", "--continue").result["result"] == golden(PLAIN), (
        "behind the last the first again"
    )


def test_resume_of_a_replayed_session_requires_the_recording(box):
    path = folder(box, ("a", PLAIN))
    session = replay_prompt(box, path, "a").init["session_id"]
    done = box.run_claude("-p", *STREAM, "b", "--resume", session)
    assert done.status == 1 and "SHIM_VENDOR=replay:PATH" in done.stderr


def test_session_of_another_vendor_is_not_resumed_by_a_replay(box):
    box.create_fixture_printer("pi", "pi/1.5.2-plain")
    session = box.run_claude("-p", *STREAM, "hi", SHIM_VENDOR="pi").init["session_id"]
    done = replay_prompt(box, folder(box, ("a", PLAIN)), "a", "--resume", session)
    assert done.status == 1 and "belongs to pi" in done.stderr


def test_unknown_session_is_an_error_in_a_replay(box):
    done = replay_prompt(
        box, folder(box, ("a", PLAIN)), "a", "--resume", "99999999-9999-4999-8999-999999999999"
    )
    assert done.status == 1 and "No conversation found" in done.stderr


def test_conversation_messages_are_answered_by_matching_recordings(box):
    path = folder(box, ("a", PLAIN), ("b", BASH), ("a", UNICODE))
    environment = {"SHIM_VENDOR": f"replay:{path}", "SHIM_REPLAY_SPEED": "0"}
    with box.start_claude(*TALK, stdin=subprocess.PIPE, environment=environment) as running:
        for prompt in ("b", "a", "a"):
            running.send_lines(json.loads(encode_user_message(prompt)))
        done = running.end_input()
    assert [event["result"] for event in done.lines if event["type"] == "result"] == [
        golden(BASH),
        golden(UNICODE),
        golden(PLAIN),
    ]


def test_yume_replays_a_recording_of_another_provider(box):
    path = folder(box, ("a", PLAIN))
    environment = box.build_environment(SHIM_VENDOR=f"replay:{path}", SHIM_REPLAY_SPEED="0")
    args = [
        "start",
        "--provider",
        "gemini",
        "--model",
        "x",
        "--cwd",
        str(box.cwd),
        "--session-id",
        "tab-1",
    ]
    done = box.run_shim("yume-cli", *args, "--prompt", "a", environment=environment)
    assert done.status == 0 and b'"type":"result"' in done.stdout


# -- the contents of a recording -------------------------------------------------------------------

SECOND = (2.0, "s", {"child": 2, "turn": 2, "argv": [], "cwd": "/"})
THIRD = (3.0, "s", {"child": 3, "turn": 2, "argv": [], "cwd": "/"})
LISTENS = ["--input-format", "stream-json", *STREAM]


def test_recorded_child_has_the_prompt_of_its_turn(box):
    stdin_events = [(0.0, "i", encode_user_message("one") + encode_user_message("two"))]
    children = [
        START,
        build_exit_record(1.0),
        SECOND,
        build_exit_record(2.5, child=2),
        THIRD,
        build_exit_record(4.0, child=3),
    ]
    run = load_recorded_run(
        write_recording(box, build_recording([*stdin_events, *children], argv=LISTENS))
    )
    assert [child.prompt for child in run.children] == ["one", "two", "two"]
    assert [child.number for child in run.children] == [1, 2, 3]


def test_recorded_prompt_combines_the_command_line_and_stdin(box):
    data = build_recording(
        [(0.0, "i", b"a file\nof lines\n"), START, build_exit_record(1.0)],
        argv=["-p", *STREAM, "read it"],
    )
    assert (
        load_recorded_run(write_recording(box, data)).children[0].prompt
        == "read it\na file\nof lines\n"
    )
    answers = build_recording(
        [START, (0.0, "i", b'{"type":"control_response"}\n'), build_exit_record(1.0)],
        argv=["-p", *TALK[:3], "ask"],
    )
    assert load_recorded_run(write_recording(box, answers)).children[0].prompt.startswith("ask")


def test_invalid_recorded_invocation_has_no_prompt():
    assert (
        parse_recorded_invocation(RecordingHeader(argv=("--output-format", "nonsense"))).prompt
        is None
    )
    yume = RecordingHeader(argv=("start", "--provider", "pi", "--prompt", "x"), dialect="yume")
    assert parse_recorded_invocation(yume).prompt == "x"


def test_single_recording_continues_with_its_next_child_for_any_prompt(box):
    children = [START, build_exit_record(1.0), SECOND, build_exit_record(2.5, child=2)]
    stdin_events = [(0.0, "i", encode_user_message("one") + encode_user_message("two"))]
    path = write_recording(box, build_recording([*stdin_events, *children], argv=LISTENS))
    recordings = RecordingSet(path, "/", {"HOME": "/"})
    first = recordings.select_recorded_child("anything", "")
    assert first.number == 1 and recordings.select_recorded_child("more", first.id).number == 2
    assert recordings.select_recorded_child("two", "").number == 2


def test_suffix_after_a_recorded_prompt_is_ignored_if_allowed(box):
    path = folder(box, ("a", PLAIN), ("b", BASH))
    recordings = RecordingSet(path, "/", {"HOME": "/"})
    assert (
        recordings.select_recorded_child(
            "b\n\nAnswer with JSON", "", allows_prompt_suffix=True
        ).prompt
        == "b"
    )


# -- a child that starts before the first message --------------------------------------------------


def write_relayed_recordings(box, *prompts):
    """Write a folder of conversations with a real claude, each of one message. Return its path."""
    for number, prompt in enumerate(prompts):
        init = {
            "type": "system",
            "subtype": "init",
            "session_id": SESSION,
            "model": "m",
            "tools": [],
        }
        result = {
            "type": "result",
            "subtype": "success",
            "is_error": False,
            "result": f"said {prompt}",
        }
        ready, answer_lines = (
            encode_control_response("hello", commands=[]),
            encode_line(init) + encode_line({**result, "session_id": SESSION}),
        )
        relay_events = [
            (0.0, "I", encode_control_request("hello", "initialize")),
            (0.1, "o", ready),
            (0.2, "I", encode_user_message(prompt)),
        ]
        data = build_recording(
            [
                (0.0, "i", encode_user_message(prompt)),
                START,
                *relay_events,
                (0.3, "o", answer_lines),
                build_exit_record(1.0),
            ],
            vendor="claude",
            argv=LISTENS,
        )
        write_recording(box, data, f"claudes/{number}.cast")
    return str(box.path / "claudes")


SESSION = "11111111-1111-4111-8111-111111111111"


def relay(box, path, prompt):
    """Run a conversation of one message that replays the recordings at `path`."""
    environment = {"SHIM_VENDOR": f"replay:{path}", "SHIM_REPLAY_SPEED": "0"}
    with box.start_claude(*LISTENS, stdin=subprocess.PIPE, environment=environment) as running:
        running.send_lines(json.loads(encode_control_request("mine", "initialize")))
        running.read_until(b'"mine"')
        running.send_lines(json.loads(encode_user_message(prompt)))
        running.read_until(b'"type":"result"')
        return running.end_input()


def test_claude_conversation_is_selected_by_its_first_message(box):
    path = write_relayed_recordings(box, "a", "b", "c")
    assert relay(box, path, "b").result["result"] == "said b"
    assert relay(box, path, "a").result["result"] == "said a"


def test_unrecorded_first_message_ends_in_an_error_result(box):
    done = relay(box, write_relayed_recordings(box, "a"), "x\x1b[31m")
    assert done.result["is_error"] and "no recording starts with this message" in json.dumps(
        done.result
    )


def test_uninterrupted_recording_is_preferred_to_an_interrupted_recording(box):
    """An interrupted recording is selected only if no other recording has the prompt."""
    path = folder(box, ("go", PLAIN), ("go", BASH), ("stop", UNICODE))
    for cast in sorted((box.path / "casts").iterdir())[::2]:
        lines = cast.read_bytes().splitlines(keepends=True)
        index = next(index for index, line in enumerate(lines) if b'"x"' in line)
        stop = b'[0,"n",{"kind":"signal","child":1,"signal":"SIGINT"}]\n'
        cast.write_bytes(b"".join([*lines[:index], stop, *lines[index:]]))
    recordings = RecordingSet(path, str(box.path), {})
    assert [
        recordings.select_recorded_child(prompt, "").recording_id[:8] for prompt in ("go", "stop")
    ] == [
        "20261121",
        "20261122",
    ]
    first = sorted((box.path / "casts").iterdir())[0]
    assert RecordingSet(str(first), str(box.path), {}).select_recorded_child("go", "").was_stopped
    assert replay_prompt(box, path, "go").result["result"] == golden(BASH)
