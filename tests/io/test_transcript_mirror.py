"""The lines that copy a session's transcript to a frontend with a session store of its own."""

import json
import stat

import pytest

from shim.core.claude.subagent_log import SubagentLog
from shim.core.claude.usage import NO_USAGE, MessageUsageCounter, create_usage
from shim.core.claude.writer import StreamJsonWriter
from shim.io.stdout import FrontendOutput
from shim.io.subagent_transcripts import SubagentTranscripts
from shim.io.transcript import Transcript
from shim.io.transcript_mirror import MAX_MIRROR_LINE_BYTES, TranscriptMirror, build_mirror_lines

pytestmark = [pytest.mark.anyio]

SESSION = "11111111-2222-4333-8444-55555555abcd"
COPY = "22222222-2222-4333-8444-55555555abcd"
CWD = "/repo/a.b"
PREFIX = "99999999-0000-4000-8000-"


class MemorySink:
    """An output that stores its data."""

    def __init__(self):
        self.output = b""

    async def write(self, data):
        self.output += data


class MirroredFrontend:
    """A session whose transcript is mirrored to memory. `turn` writes a turn with a tool call."""

    def __init__(self, home, session=SESSION, forked_from="", redact=None, max_line_bytes=0):
        counter = MessageUsageCounter()
        log = SubagentLog(PREFIX)
        self.writer = StreamJsonWriter(PREFIX, usage_counter=counter, subagent_log=log)
        self.session = session
        self.memory = MemorySink()
        self.transcript = Transcript(
            {"HOME": str(home)}, CWD, "2.1.327", redact, counter, forked_from=forked_from
        )
        subagents = SubagentTranscripts(self.transcript, log, mirrored=True)
        mirror = TranscriptMirror(self.transcript, max_line_bytes, subagents)
        self.output = FrontendOutput(
            "stream-json",
            verbose=True,
            stdout=self.memory,
            transcript=self.transcript,
            mirror=mirror,
            subagent_transcripts=subagents,
        )

    async def run_turn(self, prompt, answer="Done.", together=False):
        self.transcript.write_prompt(prompt)
        steps = [
            lambda: self.writer.write_init_message(self.session, {"cwd": CWD}),
            lambda: self.writer.start_message("m1", NO_USAGE),
            lambda: self.writer.write_tool_call("call_1", "Bash", {"command": "ls"}),
            lambda: self.writer.add_usage(create_usage(1, 0, 0, 7)),
            lambda: self.writer.write_tool_result("call_1", "Bash", {}, "a.txt", False),
            lambda: self.writer.start_message("m1", NO_USAGE),
            lambda: self.writer.write_block("text", json.dumps(answer).encode()),
            lambda: self.writer.write_result({"subtype": "success", "result": answer}),
        ]
        for step in steps:
            step()
            if not together:
                await self.output.write_lines(self.writer.take_bytes())
        await self.output.write_lines(self.writer.take_bytes())

    async def run_agent(self, *, prompt="say hi"):
        """Write a call that runs a subagent, whose text is not in the stream."""
        self.transcript.write_prompt("go")
        self.writer.write_init_message(self.session, {"cwd": CWD})
        self.writer.start_message("m1", NO_USAGE)
        agent_input = {"subagent_type": "greeter", "prompt": prompt, "description": "greet"}
        self.writer.write_tool_call("call_1", "Task", agent_input)
        prompt_message = {"role": "user", "content": [{"type": "text", "text": prompt}]}
        self.writer.write_subagent_message("call_1", "user", prompt_message)
        await self.output.write_lines(self.writer.take_bytes())
        text = {"role": "assistant", "content": [{"type": "text", "text": "Hi."}]}
        self.writer.record_hidden_subagent_message("call_1", "assistant", text)
        self.writer.write_tool_result("call_1", "Task", agent_input, "Hi.", False)
        self.writer.write_result({"subtype": "success", "result": "Hi."})
        await self.output.write_lines(self.writer.take_bytes())

    @property
    def lines(self):
        return [json.loads(line) for line in self.memory.output.splitlines()]

    @property
    def mirrors(self):
        return [line for line in self.lines if line["type"] == "transcript_mirror"]

    @property
    def entries(self):
        return [entry for line in self.mirrors for entry in line["entries"]]


def read_entries(home, session=SESSION):
    path = home / ".claude" / "projects" / "-repo-a-b" / f"{session}.jsonl"
    return str(path), [json.loads(line) for line in path.read_text().splitlines()]


async def test_entries_of_a_turn_come_before_its_result(tmp_path):
    frontend = MirroredFrontend(tmp_path)
    await frontend.run_turn("look around")
    path, entries = read_entries(tmp_path)
    assert [line["type"] for line in frontend.lines] == [
        *("system", "assistant", "user", "transcript_mirror"),
        *("assistant", "transcript_mirror", "result"),
    ]
    for line in frontend.mirrors:
        assert line.keys() == {"type", "filePath", "entries"} and line["filePath"] == path
    assert frontend.entries == entries
    assert [entry["type"] for entry in entries] == [
        *("user", "assistant", "user", "assistant", "last-prompt"),
    ]


async def test_entries_come_before_a_result_in_the_same_write(tmp_path):
    frontend = MirroredFrontend(tmp_path)
    await frontend.run_turn("look around", together=True)
    assert [line["type"] for line in frontend.lines][-2:] == ["transcript_mirror", "result"]
    assert frontend.entries == read_entries(tmp_path)[1]


async def test_entry_has_the_usage_that_was_reported_after_its_message(tmp_path):
    frontend = MirroredFrontend(tmp_path)
    await frontend.run_turn("look around")
    call = frontend.entries[1]
    assert call["message"]["usage"]["output_tokens"] == 7


async def test_each_entry_is_mirrored_once_in_several_turns_and_runs(tmp_path):
    frontend = MirroredFrontend(tmp_path)
    await frontend.run_turn("one")
    await frontend.run_turn("two")
    frontend.transcript.close()
    resumed = MirroredFrontend(tmp_path)
    await resumed.run_turn("three")
    assert frontend.entries + resumed.entries == read_entries(tmp_path)[1]
    assert len(frontend.entries) == 10 and len(resumed.entries) == 5


async def test_fork_is_mirrored_with_its_history(tmp_path):
    await MirroredFrontend(tmp_path).run_turn("one")
    fork = MirroredFrontend(tmp_path, COPY, forked_from=read_entries(tmp_path)[0])
    await fork.run_turn("two")
    path, entries = read_entries(tmp_path, COPY)
    assert fork.entries == entries and len(entries) == 10
    assert {line["filePath"] for line in fork.mirrors} == {path}


async def test_session_after_clear_is_mirrored_to_a_new_file(tmp_path):
    frontend = MirroredFrontend(tmp_path)
    await frontend.run_turn("one, which is longer than the next prompt")
    frontend.output.start_new_session()
    frontend.session = COPY
    await frontend.run_turn("two")
    assert frontend.entries[:5] == read_entries(tmp_path)[1]
    path, entries = read_entries(tmp_path, COPY)
    assert frontend.entries[5:] == entries and len(entries) == 5
    assert frontend.mirrors[-1]["filePath"] == path


async def test_secret_in_a_prompt_is_not_mirrored(tmp_path):
    def redact(value):
        return json.loads(json.dumps(value).replace("hunter2", "[redacted]"))

    frontend = MirroredFrontend(tmp_path, redact=redact)
    await frontend.run_turn("my password is hunter2")
    assert b"hunter2" not in frontend.memory.output
    assert frontend.entries[0]["message"]["content"] == "my password is [redacted]"


async def test_line_without_a_transcript_file_has_no_mirror(tmp_path):
    (tmp_path / ".claude").write_text("no folder")
    frontend = MirroredFrontend(tmp_path)
    await frontend.run_turn("look around")
    assert [line["type"] for line in frontend.lines] == [
        *("system", "assistant", "user", "assistant", "result"),
    ]


def read_agent(home):
    folder = home / ".claude" / "projects" / "-repo-a-b" / SESSION / "subagents"
    (transcript,) = folder.glob("agent-*.jsonl")
    (metadata,) = folder.glob("agent-*.meta.json")
    assert metadata.name == transcript.name.replace(".jsonl", ".meta.json")
    assert stat.S_IMODE(transcript.stat().st_mode) == stat.S_IMODE(metadata.stat().st_mode) == 0o600
    entries = [json.loads(line) for line in transcript.read_text().splitlines()]
    return transcript, entries, json.loads(metadata.read_text())


async def test_subagent_has_a_transcript_and_metadata(tmp_path):
    frontend = MirroredFrontend(tmp_path)
    await frontend.run_agent()
    transcript, (prompt, text), metadata = read_agent(tmp_path)
    agent_id = transcript.name.removeprefix("agent-").removesuffix(".jsonl")
    for entry in (prompt, text):
        assert entry["isSidechain"] is True and entry["agentId"] == agent_id
        assert entry["sessionId"] == SESSION and entry["cwd"] == CWD
    assert prompt["parentUuid"] is None and text["parentUuid"] == prompt["uuid"]
    assert prompt["type"] == "user" and text["type"] == "assistant"
    assert text["message"]["content"] == [{"type": "text", "text": "Hi."}]
    (echo,) = [line for line in frontend.lines if line.get("parent_tool_use_id") == "call_1"]
    assert echo["uuid"] == prompt["uuid"]
    assert metadata["toolUseId"] == "call_1" and metadata["agentType"] == "greeter"
    assert metadata["finished"] is True


async def test_subagent_is_mirrored_with_its_metadata_before_the_result(tmp_path):
    frontend = MirroredFrontend(tmp_path)
    await frontend.run_agent()
    transcript, entries, metadata = read_agent(tmp_path)
    mirrored = [line for line in frontend.mirrors if line["filePath"] == str(transcript)]
    copies = [entry for line in mirrored for entry in line["entries"]]
    assert [entry for entry in copies if entry["type"] != "agent_metadata"] == entries
    assert copies[0]["type"] == "agent_metadata"
    assert copies[-1] == {"type": "agent_metadata", **metadata}
    assert frontend.lines[-1]["type"] == "result"


async def test_secret_in_a_subagent_is_not_stored(tmp_path):
    def redact(value):
        return json.loads(json.dumps(value).replace("hunter2", "[redacted]"))

    frontend = MirroredFrontend(tmp_path, redact=redact)
    await frontend.run_agent(prompt="use hunter2")
    _, (prompt, _), _ = read_agent(tmp_path)
    assert prompt["message"]["content"] == [{"type": "text", "text": "use [redacted]"}]


async def test_symlink_at_the_subagents_folder_is_not_followed(tmp_path, capfd):
    session = tmp_path / ".claude" / "projects" / "-repo-a-b" / SESSION
    session.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (session / "subagents").symlink_to(tmp_path / "elsewhere")
    frontend = MirroredFrontend(tmp_path)
    await frontend.run_agent()
    assert not list((tmp_path / "elsewhere").iterdir())
    assert "no transcripts of subagents are written" in capfd.readouterr().err
    assert frontend.lines[-1]["type"] == "result"


def test_many_entries_are_split_over_several_lines():
    entries = [json.dumps({"n": n, "text": "x" * 1000}).encode() for n in range(1000)]
    lines = list(build_mirror_lines("/f", entries))
    assert len(lines) > 1 and max(map(len, lines)) < MAX_MIRROR_LINE_BYTES + 4096
    copies = [entry for line in lines for entry in json.loads(line)["entries"]]
    assert copies == [json.loads(entry) for entry in entries]


def test_long_entry_is_shortened_to_the_longest_line():
    entry = json.dumps({"uuid": "u", "text": "x" * 5000}).encode()
    (line,) = build_mirror_lines("/f", [b"", entry], max_line_bytes=2000)
    assert len(line) <= 2000
    (copy,) = json.loads(line)["entries"]
    assert copy["uuid"] == "u" and copy["text"].startswith("xxx")
