"""Record, replay and record again: the bytes of the child are the same."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from box import STREAM, Box, Running
from cast_builder import build_case_recording, build_recording, read_cast, stream_of
from fake_secrets import BARE
from fixture_cases import Case, find_case, list_fixture_cases
from replay_harness import START, build_exit_record, encode_control_response, encode_user_message
from torture import Torture
from torture_cases import list_torture_cases as torture_cases

from tests.recording.test_replay import TALK, qwen_cast, write_recording

LARGEST = 3_000_000  # the size limit in bytes of the torture cases in this test
EVERY = 20  # Only every 20th case is tested here. The end-to-end tests have the others.
CASES = [item for item in list_fixture_cases() if item.exit is not None]
TORTURE = [item for item in torture_cases() if len(item.data) < LARGEST]


def environment(box: Box, data: bytes) -> dict[str, str]:
    """Return the environment in which the drop-in replays a recording and records the run."""
    into = box.path / "recorded"
    into.mkdir(exist_ok=True)
    path = write_recording(box, data)
    return {
        "SHIM_VENDOR": f"replay:{path}",
        "SHIM_REPLAY_SPEED": "0",
        "SHIM_RECORD": str(into),
        "SHIM_REDACT": "none",
    }


def take_recording(box: Box) -> bytes:
    """Remove the only new recording and return its data."""
    (path,) = (box.path / "recorded").iterdir()
    data = path.read_bytes()
    path.unlink()
    return data


def streams(data: bytes) -> tuple[bytes, bytes, object]:
    """Return the stdout and the stderr of a child, and its exits."""
    _, records = read_cast(data)
    ends = [
        (record.fields["code"], record.fields["signal"]) for record in records if record.code == "x"
    ]
    return stream_of(records, "o"), stream_of(records, "e"), ends


def record_replay(box: Box, data: bytes, *args: str) -> bytes:
    """Replay a recording in a run of one message. Return the new recording."""
    box.run_claude("-p", *STREAM, *args, "hi", **environment(box, data))
    return take_recording(box)


def check_case_replay(box: Box, case: Case) -> None:
    """Assert that the replay of a fixture records the same streams."""
    data = build_case_recording(case)
    now = record_replay(box, data)
    reader, records = read_cast(now)
    assert reader.header is not None and reader.header.vendor == case.vendor, (
        "it is still the vendor's recording"
    )
    # If the shim ended the child after its result, the exits differ.
    ours = any(record.fields.get("kind") == "signal" for record in records)
    compared = 2 if ours else 3
    assert streams(now)[:compared] == streams(data)[:compared]


def check_torture_replay(box: Box, torture_case: Torture, vendor: str) -> None:
    """Assert that the replay of a torture case records the same streams."""
    data = build_recording(
        [START, (0.1, "o", torture_case.data), build_exit_record(0.2)], vendor=vendor
    )
    now = record_replay(box, data)
    (replayed_stdout, complained, _), (original_stdout, complaints, _) = streams(now), streams(data)
    if any(note.fields.get("kind") == "signal" for note in read_cast(now)[1]):
        assert original_stdout.startswith(replayed_stdout), (
            "a forged result may be believed, and the child be ended behind it"
        )
    else:
        assert (replayed_stdout, complained) == (original_stdout, complaints)


@pytest.mark.parametrize("case", CASES[::EVERY], ids=lambda item: item.name)
def test_replay_of_a_fixture_records_the_same_streams(box, case):
    check_case_replay(box, case)


@pytest.mark.parametrize("torture_case", TORTURE[::EVERY], ids=lambda item: item.name)
def test_replay_of_a_torture_case_records_the_same_streams(box, torture_case):
    check_torture_replay(box, torture_case, torture_case.vendors[0])


@contextmanager
def start_recorded_replay(box: Box, data: bytes, *args: str) -> Iterator[Running]:
    """Start a conversation that replays a recording and is recorded."""
    with box.start_claude(
        *TALK, *args, stdin=subprocess.PIPE, environment=environment(box, data)
    ) as running:
        yield running


def test_replay_of_a_permission_prompt_records_the_same_streams(box):
    data = qwen_cast()
    for _ in range(2):
        with start_recorded_replay(box, data) as running:
            running.send_lines(json.loads(encode_user_message("one")))
            output_lines = running.read_until(b'"can_use_tool"').split(b"\n")
            question = json.loads(next(raw for raw in output_lines if b'"can_use_tool"' in raw))
            request_id, tool_input = question["request_id"], question["request"]["input"]
            running.send_lines(
                json.loads(
                    encode_control_response(request_id, behavior="allow", updatedInput=tool_input)
                )
            )
            running.read_until(b'"result":"first"')
            running.send_lines(json.loads(encode_user_message("two")))
            running.read_until(b'"result":"second"')
            running.end_input()
        recording = take_recording(box)
        assert streams(recording) == streams(data)
        data = recording
    done = box.run_shim("replay", write_recording(box, data), "--check")
    assert done.status == 0, done.stdout


def test_replay_of_an_interrupt_records_the_same_streams(box):
    box.write_settings('[vendors.pi]\ndriver = "one-way"\n')
    vendor_file = find_case("pi/1.5.2-sigint-stream").folder / "vendor.ndjson"
    box.create_fake(["cat", str(vendor_file)], ["hang"], name="pi")
    into = box.path / "recorded"
    into.mkdir()
    first = {"SHIM_VENDOR": "pi", "SHIM_RECORD": str(into), "SHIM_REDACT": "none"}
    data = b""
    for _ in range(3):
        chosen = environment(box, data) if data else first
        with box.start_claude(
            *TALK, "--include-partial-messages", stdin=subprocess.PIPE, environment=chosen
        ) as running:
            running.send_lines(json.loads(encode_user_message("one")))
            # Read all output first. Otherwise, each interrupt would cut it off at a different place.
            running.read_until(b"part1 ")
            running.send_lines(
                {"type": "control_request", "request_id": "r1", "request": {"subtype": "interrupt"}}
            )
            running.read_until(b'"type":"result"')
            running.end_input()
        recording = take_recording(box)
        assert not data or streams(recording) == streams(data)
        data = recording
    done = box.run_shim("replay", write_recording(box, data), "--check")
    assert done.status == 0, done.stdout


def test_replay_check_passes_for_a_run_ended_by_a_signal(box):
    vendor_file = find_case("pi/1.5.2-sigint-stream").folder / "vendor.ndjson"
    box.create_fake(["cat", str(vendor_file)], ["hang"], name="pi")
    into = box.path / "recorded"
    into.mkdir()
    chosen = {"SHIM_VENDOR": "pi", "SHIM_RECORD": str(into), "SHIM_REDACT": "none"}
    with box.start_claude(
        "-p", *STREAM, "--include-partial-messages", "hi", environment=chosen
    ) as running:
        running.read_until(b'"text_delta"')
        running.send_signal(signal.SIGINT)
        done = running.wait_for_end()
    assert done.result["shim"]["cause"] == "interrupted"
    path = write_recording(box, take_recording(box))
    done = box.run_shim("replay", path, "--check")
    assert done.status == 0, done.stdout


def test_redacted_recording_is_replayed_and_passes_the_check(box):
    into = box.path / "recorded"
    into.mkdir()
    prompt = f"my key is {BARE['anthropic-key'][0]}, use it"
    box.create_fixture_printer("pi", "pi/1.5.2-bash")
    args = ("-p", *STREAM, prompt)
    first = box.run_claude(*args, SHIM_VENDOR="pi", SHIM_RECORD=str(into))
    assert BARE["anthropic-key"][0].encode() not in b"".join(
        path.read_bytes() for path in into.iterdir()
    )
    second = box.run_claude(*args, SHIM_VENDOR=f"replay:{into}", SHIM_REPLAY_SPEED="0")
    assert second.result["result"] == first.result["result"] != ""
    done = box.run_shim("replay", str(into), "--check")
    assert done.status == 0, done.stdout


def test_replay_check_passes_for_a_yume_run_with_an_approval(box):
    chosen = environment(box, qwen_cast())
    args = [
        "start",
        "--provider",
        "qwen",
        "--model",
        "m",
        "--cwd",
        str(box.cwd),
        "--session-id",
        "tab-1",
    ]
    args += ["--permission-mode", "interactive"]
    with box.start_claude(
        *args, door="yume-cli", stdin=subprocess.PIPE, environment=chosen
    ) as running:
        running.send_lines({"type": "user", "content": "one"})
        running.read_until(b'"type":"tool_use"')
        running.send_lines({"type": "tool_approval", "id": "c1", "approved": True})
        running.read_until(b'"content":"first"')
        running.send_lines({"type": "user", "content": "two"})
        running.read_until(b'"content":"second"')
        running.end_input()
    path = write_recording(box, take_recording(box), "yume.cast")
    done = box.run_shim("replay", path, "--check")
    assert done.status == 0, done.stdout
