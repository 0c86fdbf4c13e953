"""Session ids in the form in which they are typed, and messages at which a session is resumed.
Measured with claude 2.1.329.
"""

import json

import pytest
from box import ASK, CONVERSE

from tests.commands.claude.test_dropin import run_refused_turn
from tests.conversation.test_conversation import IDLE, results, stdin, user

UPPER = "ABCDEF12-3456-4789-8ABC-DEF123456789"
LOWER = UPPER.lower()
OTHER = "11111111-2222-4333-8444-555555555555"
NOBODY = "99999999-2222-4333-8444-555555555555"


@pytest.fixture
def run(box):
    environment = {
        "SHIM_VENDOR": "demo",
        "SHIM_BIN": box.create_fake(["read"], ["record", str(box.recording)], ["out", IDLE]),
    }
    return lambda *flags: box.run_claude(*CONVERSE, *flags, stdin=stdin(user("hi")), **environment)


def transcripts(box):
    return {
        path.name: path.read_text()
        for path in box.path.rglob("*.jsonl")
        if "projects" in path.parts
    }


@pytest.mark.parametrize("typed", [UPPER, LOWER])
def test_session_id_preserves_its_letter_case(box, run, typed):
    done = run("--session-id", typed)
    assert done.status == 0, done.stderr
    assert {line["session_id"] for line in done.lines} == {typed}
    ((name, text),) = transcripts(box).items()
    assert name == f"{typed}.jsonl" and f'"sessionId":"{typed}"' in text


@pytest.mark.parametrize("typed", [UPPER, LOWER, f" {UPPER} ", f"\t{LOWER}\n"])
def test_resume_ignores_case_and_whitespace_of_the_session_id(box, run, typed):
    run("--session-id", UPPER)
    resumed_run = run("--resume", typed)
    assert (resumed_run.status, resumed_run.init["session_id"]) == (0, UPPER), resumed_run.stderr
    assert list(transcripts(box)) == [f"{UPPER}.jsonl"]
    assert run("--continue").init["session_id"] == UPPER


def test_used_session_id_is_refused_in_either_case(box, run):
    run("--session-id", UPPER)
    assert "is already in use" in run("--session-id", LOWER).stderr


@pytest.mark.parametrize("typed", [LOWER, OTHER])
def test_fork_accepts_the_same_or_another_session_id(box, run, typed):
    run("--session-id", LOWER)
    copy = run("--resume", LOWER, "--fork-session", "--session-id", typed)
    assert (copy.status, copy.init["session_id"]) == (0, typed), copy.stderr


def test_whitespace_around_a_new_session_id_is_refused(box, run):
    done = run("--session-id", f" {LOWER} ")
    assert (done.status, done.stdout) == (
        1,
        b"",
    ) and "Invalid session ID. Must be a valid UUID." in done.stderr


@pytest.mark.parametrize("point", [NOBODY, "nonsense"])
def test_resume_at_an_unknown_message_is_refused(box, run, point):
    run("--session-id", LOWER)
    done = run("--resume", LOWER, "--resume-session-at", point)
    (end,) = results(done)
    assert (done.status, end["subtype"], end["num_turns"]) == (1, "error_during_execution", 0)
    assert end["errors"] == [f"No message found with message.uuid of: {point}"]


@pytest.fixture
def two_turns(run):
    """Run two turns. Return the last message of the first turn and the prompt of the second one."""
    first = run("--session-id", LOWER)
    second = run("--resume", LOWER, "--replay-user-messages")
    assert (first.status, second.status) == (0, 0), second.stderr
    (prompt,) = [line["uuid"] for line in second.lines if line.get("isReplay")]
    return list_answers(first)[-1], prompt


def list_answers(done):
    return [line["uuid"] for line in done.lines if line["type"] == "assistant"]


def chain(text):
    """Return the ids of the messages in a transcript, and the ids of their parents."""
    lines = [json.loads(line) for line in text.splitlines()]
    return [(line["uuid"], line["parentUuid"]) for line in lines if "parentUuid" in line]


def test_resume_at_the_last_message_drops_nothing(box, run):
    last = list_answers(run("--session-id", LOWER))[-1]
    done = run("--resume", LOWER, "--resume-session-at", last)
    assert (done.status, done.stderr) == (0, "")
    assert "rebuilt_history" not in done.init["shim"]
    assert "earlier messages" not in box.read_record()["stdin"]


@pytest.mark.parametrize("fork", [(), ("--fork-session", "--session-id", OTHER)])
def test_resume_at_an_earlier_message_drops_the_later_ones(box, run, two_turns, fork):
    last, prompt = two_turns
    before = transcripts(box)[f"{LOWER}.jsonl"]
    done = run("--resume", LOWER, "--resume-session-at", last, "--resume-drops-turn", prompt, *fork)
    session_id = fork[-1] if fork else LOWER
    assert (done.status, done.init["session_id"]) == (0, session_id), done.stderr
    assert done.init["shim"]["rebuilt_history"] is True
    assert "the kept messages are sent as text" in done.stderr
    record = box.read_record()
    assert record["stdin"].count("Message of the assistant: Hello.") == 1
    assert LOWER not in record["arguments"], "the vendor's session still has the dropped turn"

    after = transcripts(box)
    assert after[f"{LOWER}.jsonl"].startswith(before)
    added = chain(after[f"{session_id}.jsonl"].removeprefix(before))
    if fork:
        assert after[f"{LOWER}.jsonl"] == before
        assert prompt not in after[f"{OTHER}.jsonl"]
        added = added[2:]
    assert added[0][1] == last and added[1] == (list_answers(done)[0], added[0][0])

    later = run("--resume", session_id)
    assert (later.status, later.stderr) == (0, "")
    assert "earlier messages" not in box.read_record()["stdin"]


def test_dropped_messages_are_unknown_after_a_resume(run, two_turns):
    last, prompt = two_turns
    run("--resume", LOWER, "--resume-session-at", last)
    (end,) = results(run("--resume", LOWER, "--resume-session-at", prompt))
    assert end["errors"] == [f"No message found with message.uuid of: {prompt}"]


def test_resume_that_would_drop_another_turn_is_refused(box, run, two_turns):
    before = transcripts(box)
    done = run(
        *("--resume", LOWER, "--fork-session", "--resume-session-at", two_turns[0]),
        *("--resume-drops-turn", NOBODY),
    )
    (end,) = results(done)
    assert (done.status, end["subtype"]) == (1, "error_during_execution")
    assert end["errors"][0].startswith("Resume rejected by --resume-drops-turn: ")
    assert transcripts(box) == before


def test_resume_at_a_message_needs_a_transcript(box, run):
    last = list_answers(run("--session-id", LOWER))[-1]
    for path in box.path.rglob("*.jsonl"):
        path.unlink()
    (end,) = results(run("--resume", LOWER, "--resume-session-at", last))
    assert "the session has no transcript" in end["errors"][0]


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--resume-session-at", OTHER), "Error: --resume-session-at requires --resume"),
        (
            ("--continue", "--resume-session-at", OTHER),
            "Error: --resume-session-at requires --resume",
        ),
        (("--resume-drops-turn", OTHER), "Error: --resume-drops-turn requires --resume-session-at"),
    ],
)
def test_resume_point_flags_require_resume(box, flags, text):
    done = run_refused_turn(box, *ASK, *flags, SHIM_VENDOR="demo")
    assert (done.status, done.stdout, done.stderr.strip()) == (1, b"", text)


def test_fork_transcript_starts_with_the_original_history(box, run):
    run("--session-id", LOWER)
    original = transcripts(box)[f"{LOWER}.jsonl"]
    run("--resume", LOWER, "--fork-session", "--session-id", OTHER)
    copy = transcripts(box)[f"{OTHER}.jsonl"]
    assert copy.startswith(original.replace(LOWER, OTHER)) and len(copy) > len(original)
    assert LOWER not in copy and transcripts(box)[f"{LOWER}.jsonl"] == original
    lines = [json.loads(line) for line in copy.splitlines()]
    messages = [line for line in lines if "parentUuid" in line]
    assert [line["parentUuid"] for line in messages[1:]] == [line["uuid"] for line in messages[:-1]]


def test_clear_after_a_resume_drops_the_earlier_messages_too(box, run, two_turns):
    environment = {
        "SHIM_VENDOR": "demo",
        "SHIM_BIN": box.create_fake(["read"], ["record", str(box.recording)], ["out", IDLE]),
    }
    done = box.run_claude(
        *(*CONVERSE, "--resume", LOWER, "--resume-session-at", two_turns[0]),
        stdin=stdin(user("hi"), user("/clear"), user("again")),
        **environment,
    )
    new_id = results(done)[-1]["session_id"]
    assert done.status == 0 and new_id != LOWER
    assert "earlier messages" not in box.read_record()["stdin"]
    assert chain(transcripts(box)[f"{new_id}.jsonl"])[0][1] is None


@pytest.mark.parametrize(("value", "is_reported"), [("true", True), ("1", True), ("false", False)])
def test_file_checkpoints_are_reported_as_without_effect(box, value, is_reported):
    done = box.run_claude(
        *ASK,
        SHIM_VENDOR="demo",
        SHIM_BIN=box.create_fake(["read"], ["out", IDLE]),
        CLAUDE_CODE_ENABLE_SDK_FILE_CHECKPOINTING=value,
    )
    assert done.status == 0
    assert ("demo stores no checkpoints of files" in done.stderr) is is_reported


def test_vendor_without_the_session_receives_the_transcript(box, run, two_turns):
    """The first turn failed after a resume at an earlier message."""
    (record,) = box.path.rglob(f"sessions/{LOWER}.json")
    record.write_text(json.dumps({**json.loads(record.read_text()), "vendor_session": ""}))
    done = run("--resume", LOWER)
    assert "demo has not stored the session: a new session" in done.stderr
    assert box.read_record()["stdin"].count("Message of the assistant: Hello.") == 2
    assert done.init["shim"]["rebuilt_history"] is True
