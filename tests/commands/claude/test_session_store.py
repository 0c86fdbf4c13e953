"""Sessions of frontends with a session store: the mirrored transcript, and a resume from it on a
machine that does not have the session.
"""

import json
import shutil

import pytest
from box import CONVERSE

from tests.conversation.test_conversation import IDLE, results, stdin, user

SESSION = "11111111-2222-4333-8444-555555555555"
COPY = "22222222-2222-4333-8444-555555555555"
LATER = "2099-01-01T00:00:00.000Z"


class Machine:
    """A machine with its own state folder. Both machines have the same project."""

    def __init__(self, box, name):
        self._box = box
        self.home = box.path / name
        child = box.create_fake(["read"], ["record", str(box.recording)], ["out", IDLE])
        self._environment = {
            "SHIM_VENDOR": "demo",
            "SHIM_BIN": child,
            "SHIM_STATE": str(self.home / "state"),
            "CLAUDE_CONFIG_DIR": str(self.home / "claude"),
        }

    def run_prompt(self, prompt, *flags):
        return self._box.run_claude(
            *CONVERSE, *flags, "--session-mirror", stdin=stdin(user(prompt)), **self._environment
        )

    @property
    def transcript(self):
        (path,) = self.home.glob(f"claude/projects/*/{SESSION}.jsonl")
        return path

    def load_store(self, entries, project):
        """Write a transcript like the SDKs do before they resume a session."""
        shutil.rmtree(self.home / "claude", ignore_errors=True)
        folder = self.home / "claude" / "projects" / project
        folder.mkdir(parents=True)
        lines = [json.dumps(entry, separators=(",", ":")) for entry in entries]
        (folder / f"{SESSION}.jsonl").write_text("\n".join(lines) + "\n")


@pytest.fixture
def first_machine(box):
    return Machine(box, "first")


@pytest.fixture
def second_machine(box):
    return Machine(box, "second")


def list_mirrored(done):
    return [
        entry
        for line in done.lines
        if line["type"] == "transcript_mirror"
        for entry in line["entries"]
    ]


def read_entries(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def keep_order(entry):
    return entry


def sort_members(entry):
    return dict(sorted(entry.items()))


def test_transcript_is_mirrored_before_the_result(first_machine):
    done = first_machine.run_prompt("hi", "--session-id", SESSION)
    assert done.status == 0, done.stderr
    assert list_mirrored(done) == read_entries(first_machine.transcript)
    paths = {line["filePath"] for line in done.lines if line["type"] == "transcript_mirror"}
    assert paths == {str(first_machine.transcript)}
    kinds = [line["type"] for line in done.lines]
    assert kinds.index("transcript_mirror") < kinds.index("result")


@pytest.mark.parametrize("reorder", [keep_order, sort_members])
def test_session_is_resumed_from_a_store_on_another_machine(
    box, first_machine, second_machine, reorder
):
    entries = list_mirrored(first_machine.run_prompt("the first question", "--session-id", SESSION))
    stored = [reorder(entry) for entry in entries]
    second_machine.load_store(stored, first_machine.transcript.parent.name)
    done = second_machine.run_prompt("the second question", "--resume", SESSION)
    assert (done.status, done.init["session_id"]) == (0, SESSION), done.stderr
    assert "demo does not have the session" in done.stderr
    assert done.init["shim"]["rebuilt_history"] is True
    sent = box.read_record()["stdin"]
    assert "Message of the user: the first question" in sent
    assert sent.count("Message of the assistant: Hello.") == 1
    assert sent.index("the first question") < sent.index("the second question")

    added = list_mirrored(done)
    assert added == read_entries(second_machine.transcript)[len(stored) :]
    messages = [entry for entry in entries if "uuid" in entry]
    assert added[0]["parentUuid"] == messages[-1]["uuid"]

    later = second_machine.run_prompt("the third question", "--resume", SESSION)
    assert (later.status, later.stderr) == (0, "")
    assert "the first question" not in box.read_record()["stdin"]


def test_fork_from_a_store_has_the_history(box, first_machine, second_machine):
    entries = list_mirrored(first_machine.run_prompt("the first question", "--session-id", SESSION))
    second_machine.load_store(entries, first_machine.transcript.parent.name)
    done = second_machine.run_prompt(
        "more", "--resume", SESSION, "--fork-session", "--session-id", COPY
    )
    assert (done.status, done.init["session_id"]) == (0, COPY), done.stderr
    assert "Message of the user: the first question" in box.read_record()["stdin"]
    messages = [entry for entry in list_mirrored(done) if "uuid" in entry]
    assert len(messages) == 4 and {entry["sessionId"] for entry in messages} == {COPY}


def test_session_that_another_machine_has_continued_is_rebuilt(box, first_machine):
    entries = list_mirrored(first_machine.run_prompt("the first question", "--session-id", SESSION))
    project = first_machine.transcript.parent.name
    last = [entry for entry in entries if "uuid" in entry][-1]
    prompt = {
        **entries[0],
        "parentUuid": last["uuid"],
        "uuid": COPY,
        "timestamp": LATER,
        "message": {"role": "user", "content": "a question to another machine"},
    }
    first_machine.load_store([*entries, prompt], project)
    done = first_machine.run_prompt("the third question", "--resume", SESSION)
    assert done.status == 0 and "another machine has continued the session" in done.stderr
    assert "Message of the user: a question to another machine" in box.read_record()["stdin"]


def test_session_that_no_other_machine_has_continued_is_resumed(box, first_machine):
    entries = list_mirrored(first_machine.run_prompt("the first question", "--session-id", SESSION))
    first_machine.load_store(entries, first_machine.transcript.parent.name)
    done = first_machine.run_prompt("the second question", "--resume", SESSION)
    assert (done.status, done.stderr) == (0, "")
    assert "the first question" not in box.read_record()["stdin"]


def test_transcript_of_a_real_claude_is_not_resumed(first_machine, second_machine):
    entries = list_mirrored(first_machine.run_prompt("hi", "--session-id", SESSION))
    real = [{key: entry[key] for key in entry if key != "shim"} for entry in entries]
    second_machine.load_store(real, first_machine.transcript.parent.name)
    done = second_machine.run_prompt("more", "--resume", SESSION)
    (result,) = results(done)
    assert done.status == 1
    assert result["errors"] == [f"No conversation found with session ID: {SESSION}"]
    assert read_entries(second_machine.transcript) == real


def test_session_without_persistence_is_not_mirrored(first_machine):
    done = first_machine.run_prompt("hi", "--no-session-persistence")
    assert (done.status, list_mirrored(done), done.stderr) == (0, [], "")


def test_store_without_transcripts_is_reported_as_empty(box, first_machine):
    box.write_settings("transcripts = false\n")
    done = first_machine.run_prompt("hi")
    assert (done.status, list_mirrored(done)) == (0, [])
    assert "transcripts = false in config.toml" in done.stderr
    (entry,) = done.init["shim"]["not_honoured"]
    assert "--session-mirror" in json.dumps(entry)
