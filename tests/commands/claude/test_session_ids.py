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


def test_session_can_be_resumed_only_at_its_last_message(box, run):
    first = run("--session-id", LOWER)
    last = [line["uuid"] for line in first.lines if line["type"] == "assistant"][-1]
    assert run("--resume", LOWER, "--resume-session-at", last).status == 0
    done = run("--resume", LOWER, "--resume-session-at", last)
    (end,) = results(done)
    assert done.status == 1 and "demo can only resume the end of a session" in end["errors"][0]


def test_resume_drops_turn_flag_is_refused(box, run):
    first = run("--session-id", LOWER)
    last = [line["uuid"] for line in first.lines if line["type"] == "assistant"][-1]
    done = run("--resume", LOWER, "--resume-session-at", last, "--resume-drops-turn", NOBODY)
    assert done.status == 1 and results(done)[0]["errors"][0].startswith(
        "Resume rejected by --resume-drops-turn: demo "
    )


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
