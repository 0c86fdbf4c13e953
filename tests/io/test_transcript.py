"""The transcript for history views: one line per message, each with the id of the previous message,
in a file that only the shim writes.
"""

import json
import os
import re
import resource
import signal
import stat
from uuid import uuid4

import pytest

from shim.core.claude.usage import MAX_COUNT, NO_USAGE, MessageUsageCounter, create_usage
from shim.core.claude.writer import StreamJsonWriter
from shim.core.yume.encoder import YumeEncoder
from shim.io import transcript as module
from shim.io.transcript import FILE_PREFIX, Transcript, encode_project_folder_name

U = "11111111-2222-4333-8444-55555555abcd"
PROMPT = "aaaaaaaa-2222-4333-8444-55555555abcd"
UUID_PREFIX = "99999999-0000-4000-8000-"
CWD = "/repo/a.b"


@pytest.fixture
def home(tmp_path):
    return tmp_path


@pytest.fixture
def file(home):
    return home / ".claude" / "projects" / "-repo-a-b" / f"{U}.jsonl"


@pytest.fixture
def transcript(home):
    return create_transcript(home)


def create_transcript(home, environment=None):
    return Transcript({"HOME": str(home)} | (environment or {}), CWD, "2.1.327")


def stream(partial=False, number=0):
    """Return the lines of a turn: thinking, text, a call, its result, and a final text."""
    writer = StreamJsonWriter(
        UUID_PREFIX.replace("0000", f"000{number}", 1),
        writes_partial_messages=partial,
        terminator=b"$\n",
    )
    writer.write_init_message(U, {"cwd": CWD})
    writer.start_message("m1", NO_USAGE)
    if partial:
        writer.start_block("thinking")
        writer.write_block_delta(b'"hm"')
    writer.write_block("thinking", b'"hm"')
    writer.write_block("text", b'"I look: {\\"type\\":\\"user\\"}\\n"')
    writer.write_tool_call("call_1", "Bash", {"command": "ls", "summary": "not a title"})
    writer.end_message("tool_use", NO_USAGE)
    writer.write_tool_result("call_1", "Bash", {"command": "ls"}, "a.txt", False)
    writer.start_message("m1", NO_USAGE)
    writer.write_block("text", b'"There is a.txt."')
    writer.write_result({"subtype": "success", "result": "There is a.txt."})
    return writer.take_bytes()


UUID_ELSEWHERE = b'{"type":"user","parent_tool_use_id":null,"uuid":"%b","more":true}\n' % U.encode()


def wrote(transcript, data=None, prompt="look around"):
    """Write a complete turn."""
    transcript.write_prompt(prompt, str(uuid4()))
    transcript.open(U)
    transcript.write_lines(stream() if data is None else data)
    transcript.close()


def entries(file):
    return [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]]


def messages(file):
    return [entry for entry in entries(file) if "uuid" in entry]


def is_chained(file):
    """Return whether each message has the id of the previous message, and the first one none."""
    read = messages(file)
    return [entry["parentUuid"] for entry in read] == [
        None,
        *(entry["uuid"] for entry in read[:-1]),
    ]


# -- the format ------------------------------------------------------------------------------------


@pytest.mark.parametrize("partial", [False, True])
def test_turn_is_written_as_a_chain_of_prompt_and_messages(transcript, file, partial):
    wrote(transcript, stream(partial))
    read = messages(file)
    assert [entry["type"] for entry in read] == [
        "user",
        "assistant",
        "assistant",
        "assistant",
        "user",
        "assistant",
    ]
    assert read[0]["message"] == {"role": "user", "content": "look around"}
    assert [entry["message"]["content"][0]["type"] for entry in read[1:]] == [
        "thinking", "text", "tool_use", "tool_result", "text",
    ]  # fmt: skip
    assert is_chained(file)


def test_message_has_the_fields_that_readers_expect(transcript, file):
    wrote(transcript)
    for entry in messages(file):
        assert entry["sessionId"] == U
        assert (entry["cwd"], entry["version"], entry["userType"]) == (CWD, "2.1.327", "external")
        assert (entry["isSidechain"], entry["shim"], entry["entrypoint"]) == (
            False,
            True,
            "sdk-cli",
        )
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry["timestamp"])


def test_message_preserves_stream_bytes_except_usage(transcript, file):
    data = stream()
    wrote(transcript, data)
    lines = [line for line in data.split(b"\n") if line.startswith(b'{"type":"assistant"')]
    written = file.read_bytes()
    assert len(lines) == 4
    for line in lines:
        before, _, after = line.partition(b'"usage":')
        assert b'",' + before[1:] in written
        assert after.partition(b"}")[2] + b"\n" in written


def test_only_the_first_line_of_a_message_has_space_for_its_usage(transcript, file):
    wrote(transcript)
    written = [
        line.partition(b'"usage":')[2].partition(b"}")[0]
        for line in file.read_bytes().split(b"\n")
        if line.startswith(b'{"requestId"') or b'"type":"assistant"' in line
    ]
    assert [b"  " in usage for usage in written] == [True, False, False, True]


# -- usage -----------------------------------------------------------------------------------------


def spend(file, home, *turns, partial=False):
    """Write a transcript of turns; each function in `turns` writes one. Return the end of the id,
    the request and the usage of each message.
    """
    usage_counter = MessageUsageCounter()
    transcript = Transcript({"HOME": str(home)}, CWD, "2", usage_counter=usage_counter)
    writer = StreamJsonWriter(
        UUID_PREFIX, writes_partial_messages=partial, usage_counter=usage_counter
    )
    writer.write_init_message(U, {"cwd": CWD})
    transcript.write_lines(writer.take_bytes())
    for turn in turns:
        turn(writer)
        transcript.write_lines(writer.take_bytes())
    transcript.close()
    return [
        (entry["message"]["id"][-1], entry["requestId"], list(entry["message"]["usage"].values()))
        for entry in messages(file)
        if entry["type"] == "assistant"
    ]


def request(number):
    return f"req_{UUID_PREFIX.replace('-', '')}{number:06x}"


USED = create_usage(100, 20, 3, 30)
NUMBERS = [100, 3, 20, 30]  # the numbers of USED in the order of a transcript
UNUSED = [0, 0, 0, 0]


def looks(writer):
    """Write a message of two lines."""
    writer.start_message("m1", USED)
    writer.write_block("text", b'"I look"')
    writer.write_tool_call("call_1", "Bash", {"command": "ls"})


def answers(writer):
    writer.start_message("m1", USED)
    writer.write_block("text", b'"There is \\"usage\\":{a.txt}."')


def concludes(total):
    return lambda writer: writer.write_result({"subtype": "success", "result": "x", "usage": total})


@pytest.mark.parametrize("partial", [False, True])
def test_usage_is_on_the_first_line_of_a_message_only(file, home, partial):
    turns = (
        looks,
        lambda writer: writer.add_usage(USED),
        answers,
        lambda writer: writer.add_usage(USED),
        concludes(create_usage(200, 40, 6, 60)),
    )
    assert spend(file, home, *turns, partial=partial) == [
        ("1", request(1), NUMBERS), ("1", request(1), UNUSED), ("2", request(2), NUMBERS),
    ]  # fmt: skip


def test_immediate_usage_is_written_with_its_lines(file, home):
    def at_once(writer):
        looks(writer)
        writer.add_usage(USED)
        answers(writer)
        writer.add_usage(USED)

    assert [numbers for _, _, numbers in spend(file, home, at_once)] == [NUMBERS, UNUSED, NUMBERS]


def test_turn_usage_is_assigned_to_the_last_message(file, home):
    turns = (looks, answers, concludes(USED), answers, concludes(USED))
    assert [numbers for _, _, numbers in spend(file, home, *turns)] == [
        UNUSED,
        UNUSED,
        NUMBERS,
        NUMBERS,
    ]


def test_unassigned_usage_is_added_to_the_last_message(file, home):
    turns = (
        answers,
        lambda writer: writer.add_usage(USED),
        answers,
        concludes(create_usage(150, 20, 3, 31)),
    )
    assert [numbers for _, _, numbers in spend(file, home, *turns)] == [NUMBERS, [50, 0, 0, 1]]


def test_usage_before_the_first_message_is_assigned_to_that_message(file, home):
    def begins(writer):
        writer.add_usage(USED)

    turns = (begins, answers, concludes(USED))
    assert [numbers for _, _, numbers in spend(file, home, *turns)] == [NUMBERS]


def test_total_below_its_parts_adds_no_negative_usage(file, home):
    turns = (
        answers,
        lambda writer: writer.add_usage(USED),
        answers,
        concludes(create_usage(10, 20, 3, 30)),
    )
    assert [numbers for _, _, numbers in spend(file, home, *turns)] == [NUMBERS, UNUSED]


def test_largest_counts_fit_into_the_reserved_bytes(file, home):
    most = create_usage(*[MAX_COUNT - 1] * 4)
    assert [numbers for _, _, numbers in spend(file, home, answers, concludes(most))] == [
        [MAX_COUNT - 1] * 4
    ]
    assert is_chained(file)


def test_result_without_usage_preserves_the_message_usage(file, home):
    turns = (answers, lambda writer: writer.add_usage(USED), concludes(NO_USAGE))
    assert [numbers for _, _, numbers in spend(file, home, *turns)] == [NUMBERS]


def test_discarded_turn_leaves_no_usage_to_the_next_turn(file, home):
    def passes(writer):
        looks(writer)
        writer.add_usage(USED)
        writer.discard_turn()

    turns = (passes, answers, concludes(USED))
    assert [numbers for _, _, numbers in spend(file, home, *turns)] == [NUMBERS]


def test_resumed_session_does_not_overwrite_the_previous_turn(file, home):
    spend(file, home, answers, concludes(USED))
    before = file.read_bytes()
    spend(file, home, answers, concludes(create_usage(1, 2, 3, 4)))
    assert file.read_bytes().startswith(before)


def test_lines_of_another_process_are_preserved(file, home):
    between = b'{"type":"summary","summary":"of another process"}\n'

    def meanwhile(writer):
        with file.open("ab") as other:
            other.write(between)

    assert [numbers for _, _, numbers in spend(file, home, looks, meanwhile, answers, meanwhile, concludes(USED))] == [
        UNUSED, UNUSED, NUMBERS,
    ]  # fmt: skip
    assert file.read_bytes().count(between) == 2


def test_lines_are_appended_after_usage_is_overwritten(file, home):
    spend(file, home, answers, concludes(USED), answers, concludes(USED))
    assert is_chained(file)


def test_yume_dialect_records_the_same_usage(file, home):
    usage_counter = MessageUsageCounter()
    writer = YumeEncoder(
        UUID_PREFIX, transcript_writer=StreamJsonWriter(UUID_PREFIX, usage_counter=usage_counter)
    )
    transcript = Transcript({"HOME": str(home)}, CWD, "2", usage_counter=usage_counter)
    writer.write_init_message(U, {"cwd": CWD})
    writer.start_message("m1", NO_USAGE)
    writer.write_block("text", b'"one"')
    writer.add_usage(USED)
    writer.start_message("m1", NO_USAGE)
    writer.write_block("text", b'"two"')
    writer.write_result(
        {"subtype": "success", "result": "x", "usage": create_usage(150, 20, 3, 31)}
    )
    transcript.write_lines(writer.transcript_writer.take_bytes())
    transcript.close()
    assert [list(entry["message"]["usage"].values()) for entry in messages(file)] == [
        NUMBERS,
        [50, 0, 0, 1],
    ]


def test_tool_result_uses_the_transcript_field_name(transcript, file):
    wrote(transcript)
    (entry,) = (entry for entry in messages(file) if "toolUseResult" in entry)
    assert entry["toolUseResult"]["stdout"] == "a.txt"
    assert "tool_use_result" not in entry


def test_last_prompt_is_written_as_the_last_entry(transcript, file):
    wrote(transcript, prompt="  look\naround " + "x" * 500)
    last = entries(file)[-1]
    assert last["type"] == "last-prompt"
    assert last["lastPrompt"] == ("look around " + "x" * 500)[:200]
    assert (last["leafUuid"], last["sessionId"]) == (messages(file)[-1]["uuid"], U)


def test_title_is_written_after_the_first_prompt_and_at_the_end(transcript, file):
    transcript.write_title("first")
    assert not file.exists()
    transcript.write_prompt("look around", str(uuid4()))
    transcript.open(U)
    assert [entry["type"] for entry in entries(file)] == ["user", "custom-title"]
    transcript.write_lines(stream())
    transcript.write_title("second")
    transcript.close()
    titles = [entry for entry in entries(file) if entry["type"] == "custom-title"]
    assert [entry["customTitle"] for entry in titles] == ["first", "second", "second"]
    assert entries(file)[-1] == titles[-1] and titles[-1]["sessionId"] == U
    assert is_chained(file)


def test_prompt_in_blocks_is_preserved(transcript, file):
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "AA=="},
    }
    content = [image, {"type": "text", "text": "what is this?"}]
    wrote(transcript, prompt=content)
    assert messages(file)[0]["message"]["content"] == content
    assert entries(file)[-1]["lastPrompt"] == "what is this?"


@pytest.mark.parametrize("is_open", [False, True])
def test_command_is_followed_by_its_text_in_a_hidden_line(transcript, file, is_open):
    header = "<command-message>fix</command-message>\n<command-name>/fix</command-name>"
    if is_open:
        transcript.open(U)
    transcript.write_prompt(header, str(uuid4()))
    transcript.write_command_text("the text of the command")
    transcript.open(U)
    transcript.write_lines(stream())
    transcript.close()
    prompt, command_text, *_ = messages(file)
    assert (prompt["message"]["content"], prompt.get("isMeta")) == (header, None)
    assert command_text["message"]["content"] == "the text of the command"
    assert command_text["isMeta"] is True
    assert is_chained(file)
    assert entries(file)[-1]["lastPrompt"] == "/fix"


@pytest.mark.parametrize(
    "content", ["", [], [{"type": "image"}], [7, None, {"text": 7}], None, 7, "\ud83d"]
)
def test_prompt_without_text_does_not_stop_the_transcript(transcript, file, content):
    wrote(transcript, prompt=content)
    assert len(messages(file)) == 6
    assert is_chained(file)


@pytest.mark.parametrize("message_id", [None, "", "7"])
def test_prompt_with_an_invalid_id_gets_a_uuid(transcript, file, message_id):
    transcript.open(U)
    transcript.write_prompt("hi", message_id)
    transcript.write_lines(stream())
    transcript.close()
    assert len(messages(file)[0]["uuid"]) == 36
    assert is_chained(file)


def test_entrypoint_names_the_frontend(home, file):
    wrote(create_transcript(home, {"CLAUDE_CODE_ENTRYPOINT": "claude-vscode"}))
    assert {entry["entrypoint"] for entry in messages(file)} == {"claude-vscode"}


# -- the written lines -----------------------------------------------------------------------------


def test_subagent_messages_are_omitted(transcript, file):
    writer = StreamJsonWriter(UUID_PREFIX)
    writer.set_session_id(U)
    writer.write_subagent_message("call_1", "user", {"role": "user", "content": "find it"})
    writer.write_subagent_message("call_1", "assistant", {"role": "assistant", "content": []})
    wrote(transcript, writer.take_bytes() + stream())
    assert len(messages(file)) == 6
    assert is_chained(file)


def test_echoed_prompt_is_written_once(transcript, file):
    replay = (
        b'{"type":"user","message":{"role":"user","content":"look around"},"parent_tool_use_id":null,"isReplay":true,'
        b'"session_id":"%b","uuid":"%b"}\n' % (U.encode(), PROMPT.encode())
    )
    wrote(transcript, replay + stream())
    assert [entry["message"]["content"] for entry in messages(file)].count("look around") == 1


def test_text_of_a_hook_is_written_as_a_hidden_message(transcript, file):
    writer = StreamJsonWriter(UUID_PREFIX)
    writer.set_session_id(U)
    writer.write_synthetic_user_text("Stop hook feedback:\nrun the tests")
    wrote(transcript, writer.take_bytes())
    entry = messages(file)[1]
    assert entry["message"]["content"][0]["text"] == "Stop hook feedback:\nrun the tests"
    assert entry["isMeta"] is True and "isSynthetic" not in entry


def test_interrupt_is_written_as_a_message(transcript, file):
    writer = StreamJsonWriter(UUID_PREFIX)
    writer.set_session_id(U)
    writer.write_user_text("[Request interrupted by user]")
    wrote(transcript, writer.take_bytes())
    assert messages(file)[1]["message"]["content"][0]["text"] == "[Request interrupted by user]"


def test_api_error_is_written_as_a_message(transcript, file):
    writer = StreamJsonWriter(UUID_PREFIX)
    writer.set_session_id(U)
    writer.write_api_error("API Error: 529", "overloaded", 529)
    wrote(transcript, writer.take_bytes())
    line = messages(file)[1]
    assert line["message"]["content"][0]["text"] == "API Error: 529"
    assert line["isApiErrorMessage"] is True
    assert "requestId" not in line  # Like a real claude, because the message is not from a model.


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"$\n",
        b"\n",
        b"$\n\n$\n",
        b'{"type":"a',
        b"x" * 50,
        b'{"type":"user",}\n',
        UUID_ELSEWHERE,
    ],
)
def test_invalid_line_is_omitted(transcript, file, data):
    wrote(transcript, data + (b"\n" if data and not data.endswith(b"\n") else b"") + stream())
    assert len(messages(file)) == 6
    assert is_chained(file)


def test_file_is_the_same_for_any_grouping_of_lines(home):
    lines = stream(partial=True).splitlines(keepends=True)
    files = []
    for size in (1, 3, len(lines)):
        folder = home / str(size)
        transcript = create_transcript(folder)
        transcript.write_prompt("hi", PROMPT)
        transcript.open(U)
        for at in range(0, len(lines), size):
            transcript.write_lines(b"".join(lines[at : at + size]))
        transcript.close()
        (written,) = folder.rglob("*.jsonl")
        files.append(re.sub(rb'"timestamp":"[^"]*"', b"", written.read_bytes()))
    assert files[0] == files[1] == files[2]


# -- several turns and processes -------------------------------------------------------------------


def test_file_is_not_created_without_a_session_id_and_a_message(transcript, home):
    transcript.write_prompt("hi", PROMPT)
    transcript.write_lines(stream().partition(b"\n")[2])
    transcript.write_lines(b"$\n")
    assert os.listdir(home) == []
    create_transcript(home).open(U)
    assert os.listdir(home) == []


@pytest.mark.parametrize(
    "before", [b"", b"$\n", b'{"type":"system","subtype":"status","session_id":"x"}\n']
)
def test_session_id_is_taken_from_the_first_init(transcript, file, before):
    transcript.write_prompt("hi", PROMPT)
    transcript.write_lines(before + stream())
    transcript.write_lines(stream(number=1).replace(U.encode(), PROMPT.encode()))
    transcript.close()
    assert [name.name for name in file.parent.iterdir()] == [file.name]
    assert len(messages(file)) == 11
    assert is_chained(file)


def test_invalid_session_id_creates_no_file(transcript, home):
    for session_id in ("", "../../x", "nonsense"):
        transcript.open(session_id)
        transcript.write_prompt("hi", PROMPT)
    assert os.listdir(home) == []


def test_second_open_preserves_the_session_id(transcript, file):
    transcript.open(U)
    transcript.open("22222222-2222-4333-8444-55555555abcd")
    wrote(transcript)
    assert len(messages(file)) == 6


def test_resumed_session_continues_its_file(home, file):
    wrote(create_transcript(home))
    wrote(create_transcript(home), stream(number=1), prompt="and now?")
    assert [entry["type"] for entry in entries(file)].count("last-prompt") == 2
    assert len(messages(file)) == 12
    assert is_chained(file)
    assert entries(file)[-1]["lastPrompt"] == "and now?"


def test_killed_session_continues_after_its_last_message(home, file):
    killed = create_transcript(home)
    killed.open(U)
    killed.write_prompt("hi", PROMPT)
    killed.write_lines(stream())
    wrote(create_transcript(home), stream(number=1))
    assert len(messages(file)) == 12
    assert is_chained(file)


def test_truncated_line_does_not_affect_other_lines(home, file):
    wrote(create_transcript(home))
    data = file.read_bytes()
    file.write_bytes(data + b'{"parentUuid":"cut off he')
    wrote(create_transcript(home), stream(number=1))
    assert file.read_bytes().startswith(data + b'{"parentUuid":"cut off he\n{"parentUuid":')
    file.write_bytes(file.read_bytes().replace(b'{"parentUuid":"cut off he\n', b""))
    assert is_chained(file)


@pytest.mark.parametrize("size", [10, module.TAIL_BYTES])
def test_chain_continues_after_lines_of_another_claude(home, file, size):
    wrote(create_transcript(home))
    theirs = {
        "parentUuid": messages(file)[-1]["uuid"],
        "type": "user",
        "uuid": U,
        "toolUseResult": "x" * size,
    }
    last = {"type": "last-prompt", "lastPrompt": "theirs", "leafUuid": U, "sessionId": U}
    with file.open("a", encoding="utf-8") as opened:
        opened.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in (theirs, last))
    wrote(create_transcript(home), stream(number=1))
    assert len(messages(file)) == 13
    assert is_chained(file)


def test_file_and_folders_are_private(transcript, home, file):
    before = os.umask(0)
    try:
        wrote(transcript)
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for folder in (file.parent, file.parent.parent, file.parent.parent.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


# -- the path of the transcript --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cwd", "name"),
    [
        ("/repo/a.b", "-repo-a-b"),
        ("/", "-"),
        ("/w/odd é~x_y.z+(1) 日本", "-w-odd---x-y-z--1----"),
        ("/w/emoji😀", "-w-emoji--"),  # an emoji has two UTF-16 units
        ("/w/e\u0301", "-w-e-"),
        ("/w/\udcff", "-w--"),
        ("/" + "a" * 199, "-" + "a" * 199),
        ("/" + "a" * 200, "-" + "a" * 199 + "-b6ymvl"),
    ],
)
def test_project_folder_is_encoded_like_claude(cwd, name):
    assert encode_project_folder_name(cwd) == name


def test_claude_config_dir_is_used(home):
    wrote(create_transcript(home, {"CLAUDE_CONFIG_DIR": str(home / "chosen")}))
    assert (home / "chosen" / "projects" / "-repo-a-b" / f"{U}.jsonl").exists()
    assert not (home / ".claude").exists()


def test_transcript_is_not_written_without_a_home_folder(home, monkeypatch, capfd):
    monkeypatch.chdir(home)
    monkeypatch.setattr(module.os.path, "expanduser", lambda path: path)
    wrote(Transcript({}, str(home), "2"))
    assert os.listdir(home) == []
    assert capfd.readouterr().err == ""


def test_symlinked_claude_folder_is_followed(home, transcript, file):
    (home / "dotfiles").mkdir()
    os.symlink(home / "dotfiles", home / ".claude")
    wrote(transcript)
    assert len(messages(file)) == 6


# -- files that are not modified -------------------------------------------------------------------


def expect_refusal(transcript, capfd):
    """Assert that the turn continues and that stderr reports once that no transcript is written."""
    wrote(transcript)
    assert capfd.readouterr().err.count("no transcript is written to ") == 1


@pytest.mark.parametrize(
    "data", [b"", b"precious\n", b'{"parentUuid":null,"isSidechain":false,"type":"user"}\n']
)
def test_file_of_another_program_is_not_modified(transcript, file, capfd, data):
    file.parent.mkdir(parents=True)
    file.write_bytes(data)
    expect_refusal(transcript, capfd)
    assert file.read_bytes() == data


def test_symlink_at_the_file_path_is_not_followed(transcript, home, file, capfd):
    victim = home / "victim"
    victim.write_bytes(FILE_PREFIX + b"}\n")
    file.parent.mkdir(parents=True)
    os.symlink(victim, file)
    expect_refusal(transcript, capfd)
    assert victim.read_bytes() == FILE_PREFIX + b"}\n"


def test_hard_link_at_the_file_path_is_not_written(transcript, home, file, capfd):
    victim = home / "victim"
    victim.write_bytes(FILE_PREFIX + b"}\n")
    file.parent.mkdir(parents=True)
    os.link(victim, file)
    expect_refusal(transcript, capfd)
    assert victim.read_bytes() == FILE_PREFIX + b"}\n"


def test_symlink_at_the_project_folder_is_not_followed(transcript, home, file, capfd):
    (home / "elsewhere").mkdir()
    file.parent.parent.mkdir(parents=True)
    os.symlink(home / "elsewhere", file.parent)
    expect_refusal(transcript, capfd)
    assert os.listdir(home / "elsewhere") == []


def test_pipe_at_the_file_path_does_not_block(transcript, file, capfd):
    file.parent.mkdir(parents=True)
    os.mkfifo(file)
    expect_refusal(transcript, capfd)


@pytest.mark.parametrize("depth", [0, 1])
def test_world_writable_folder_is_refused(transcript, file, capfd, depth):
    file.parent.mkdir(parents=True)
    os.chmod(file.parents[depth], 0o777)
    expect_refusal(transcript, capfd)
    assert not file.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_file_or_folder_of_another_user_is_refused(home, file, capfd):
    wrote(create_transcript(home))
    before = file.read_bytes()
    os.chown(file, 65534, 65534)
    expect_refusal(create_transcript(home), capfd)
    assert file.read_bytes() == before
    file.unlink()
    os.chown(file.parent, 65534, 65534)
    expect_refusal(create_transcript(home), capfd)
    assert not file.exists()


# -- failures --------------------------------------------------------------------------------------


def test_file_at_the_claude_folder_path_disables_the_transcript(transcript, home, capfd):
    (home / ".claude").write_text("", encoding="utf-8")
    expect_refusal(transcript, capfd)


def test_full_disk_stops_the_transcript_until_the_next_turn(transcript, home, file, capfd):
    transcript.open(U)
    transcript.write_prompt("hi", PROMPT)
    size = file.stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, limits[1]))
        transcript.write_lines(stream())
        assert capfd.readouterr().err.count("no transcript is written to ") == 1
        transcript.write_lines(stream())
        transcript.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert capfd.readouterr().err == ""
    assert file.stat().st_size == size + 100
    wrote(create_transcript(home), stream(number=1))
    lines = file.read_bytes().split(b"\n")[:-1]
    assert json.loads(lines[2])["parentUuid"] == PROMPT


def test_file_size_is_limited(transcript, file, capfd, monkeypatch):
    monkeypatch.setattr(module, "MAX_FILE_BYTES", 5_000)
    transcript.open(U)
    transcript.write_prompt("hi", PROMPT)
    for _ in range(10):
        transcript.write_lines(stream())
    transcript.close()
    assert 0 < file.stat().st_size <= 5_000
    assert capfd.readouterr().err.count("no transcript is written to ") == 1
    assert is_chained(file)


def test_file_size_limit_includes_earlier_turns(home, file, capfd, monkeypatch):
    wrote(create_transcript(home))
    before = file.stat().st_size
    monkeypatch.setattr(module, "MAX_FILE_BYTES", before + 100)
    expect_refusal(create_transcript(home), capfd)
    assert file.stat().st_size == before


def test_broken_stderr_pipe_does_not_raise(transcript, home, monkeypatch):
    (home / ".claude").write_text("", encoding="utf-8")
    reading, writing = os.pipe()
    os.close(reading)
    saved_stderr = os.dup(2)
    try:
        os.dup2(writing, 2)
        wrote(transcript)
    finally:
        os.dup2(saved_stderr, 2)
        os.close(saved_stderr)
        os.close(writing)


def test_transcript_leaks_no_descriptors(transcript):
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    wrote(transcript)
    after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert after == before
