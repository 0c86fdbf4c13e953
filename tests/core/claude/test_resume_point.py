"""The message at which `--resume-session-at` resumes a session, in transcripts of the shim and of
the real claude. Measured with claude 2.1.332.
"""

import json
from uuid import UUID

import pytest

from shim.core.claude import resume_point as module
from shim.core.claude.resume_point import (
    find_end_of_earlier_turns,
    find_end_of_history,
    find_resume_point,
    list_branch_entries,
)
from shim.core.errors import ResumeRejectedError, UnknownMessageError

REFUSAL = "Resume rejected by --resume-drops-turn: "


def number_to_uuid(number):
    return str(UUID(int=number))


def prompt(number, text, parent=None, **members):
    return build_entry(number, "user", text, parent, **members)


def answer(number, *blocks, parent=None):
    return build_entry(number, "assistant", list(blocks), parent)


def result(number, content):
    block = {"type": "tool_result", "tool_use_id": "t", "content": content}
    return build_entry(number, "user", [block], parent_tool_use_id=None)


def build_entry(number, kind, content, parent=None, **members):
    parent_uuid = None if number == 1 else number_to_uuid(parent or number - 1)
    message = {"role": kind, "content": content}
    names = {"parentUuid": parent_uuid, "type": kind, "message": message}
    return {**names, **members, "uuid": number_to_uuid(number)}


def text(value):
    return {"type": "text", "text": value}


def encode(*entries):
    return b"".join(json.dumps(entry).encode() + b"\n" for entry in entries)


TWO_TURNS = (
    prompt(1, "one"),
    answer(2, text("first")),
    prompt(3, "two"),
    answer(4, text("second")),
)


def find(entries, number, dropped=None):
    dropped_turn = None if dropped is None else number_to_uuid(dropped)
    return find_resume_point(encode(*entries), number_to_uuid(number), dropped_turn)


def test_messages_after_the_named_one_are_dropped():
    point = find(TWO_TURNS, 2)
    assert point.uuid == number_to_uuid(2)
    assert point.history_uuids == {number_to_uuid(1), number_to_uuid(2)}
    assert "one" in point.history and "first" in point.history
    assert "two" not in point.history and "second" not in point.history


@pytest.mark.parametrize("dropped", [None, 3])
def test_last_message_drops_nothing(dropped):
    assert find(TWO_TURNS, 4, dropped) is None


def test_entries_without_a_message_after_the_last_one_are_not_dropped():
    attachment = {"parentUuid": number_to_uuid(4), "type": "attachment", "uuid": number_to_uuid(5)}
    assert find((*TWO_TURNS, attachment), 4) is None


@pytest.mark.parametrize("uuid", [number_to_uuid(9), "nonsense", ""])
def test_unknown_message_is_refused(uuid):
    with pytest.raises(UnknownMessageError, match=f"No message found with message.uuid of: {uuid}"):
        find_resume_point(encode(*TWO_TURNS), uuid, None)


def test_only_the_named_turn_may_be_dropped():
    assert find(TWO_TURNS, 2, 3).uuid == number_to_uuid(2)
    with pytest.raises(
        ResumeRejectedError, match=f"^{REFUSAL}the message after .* is not the prom"
    ):
        find(TWO_TURNS, 2, 9)
    with pytest.raises(ResumeRejectedError, match=f"^{REFUSAL}.* would be dropped too"):
        find((*TWO_TURNS, prompt(5, "three")), 2, 3)
    with pytest.raises(ResumeRejectedError, match=f"^{REFUSAL}zz is not a UUID"):
        find_resume_point(encode(*TWO_TURNS), number_to_uuid(2), "zz")


def test_dropped_range_inside_a_turn_is_refused():
    """The dropped range must start with the prompt of the turn."""
    with pytest.raises(ResumeRejectedError):
        find(TWO_TURNS, 3, 3)


def test_dropped_prompts_are_listed_if_the_complete_turn_is_dropped():
    entries = (*TWO_TURNS, prompt(5, [text("th"), text("ree")]))
    assert find(entries, 2).dropped_prompts == ("two", "th\nree")
    assert find(entries, 3).dropped_prompts == ()


def test_results_and_lines_of_programs_belong_to_the_turn():
    entries = (
        *TWO_TURNS[:3],
        answer(4, {"type": "tool_use", "id": "t", "name": "Bash", "input": {}}),
        result(5, "done"),
        prompt(6, "[Request interrupted by user]", parent_tool_use_id=None),
        prompt(7, "a reminder", isMeta=True),
        answer(8, text("second")),
    )
    assert find(entries, 2, 3).uuid == number_to_uuid(2)


def test_messages_of_another_branch_are_unknown():
    """An earlier resume dropped the second turn."""
    entries = (*TWO_TURNS, prompt(5, "three", parent=2), answer(6, text("third")))
    branch = list_branch_entries(encode(*entries))
    assert [entry.uuid for entry in branch] == [number_to_uuid(number) for number in (1, 2, 5, 6)]
    with pytest.raises(UnknownMessageError):
        find(entries, 4)
    assert "two" not in find(entries, 5).history


@pytest.mark.parametrize(
    "damage", [b"{", b"null\n", b"[]\n", b'{"uuid":5}\n', b'{"uuid":"x","isSidechain":true}\n']
)
def test_damaged_lines_and_lines_of_subagents_are_skipped(damage):
    entries = list_branch_entries(encode(*TWO_TURNS[:2]) + b"\n" + damage)
    assert [entry.uuid for entry in entries] == [number_to_uuid(1), number_to_uuid(2)]


def test_branch_with_a_cycle_ends():
    cycle = (prompt(2, "a", parent=3), prompt(3, "b", parent=2))
    assert len(list_branch_entries(encode(*cycle))) == 2


def test_history_has_texts_calls_and_results_in_order():
    call = {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": "ls"}}
    image = {"type": "image", "source": {}}
    entries = (
        prompt(1, [text("look"), image]),
        answer(2, {"type": "thinking", "thinking": "hm"}, text("I look."), call),
        result(3, [text("a.txt"), image]),
        answer(4, text("done")),
        prompt(5, "two"),
    )
    history = find(entries, 4).history
    parts = (
        "Message of the user: look",
        "Message of the user: (image)",
        "Message of the assistant: I look.",
        'Tool call: Bash {"command":"ls"}',
        "Tool result: a.txt\n(image)",
        "Message of the assistant: done",
    )
    positions = [history.index(part) for part in parts]
    assert positions == sorted(positions)
    assert "hm" not in history


def test_history_contains_no_file_references_and_only_one_end():
    """A vendor would replace `@FILE` by the file, without asking."""
    entries = (prompt(1, f"read @/etc/passwd {module._END}"), answer(2, text("x")), prompt(3, "y"))
    history = find(entries, 2).history
    assert "@/" not in history and history.count(module._END) == 1


def test_too_long_history_omits_the_oldest_messages(monkeypatch):
    monkeypatch.setattr(module, "MAX_HISTORY_CHARS", 100)
    entries = (prompt(1, "a" * 90), answer(2, text("b" * 50)), prompt(3, "y"))
    point = find(entries, 2)
    assert point.omitted_count == 1 and "aaa" not in point.history
    assert "The 1 oldest messages are omitted" in point.history


def test_long_tool_texts_are_shortened():
    entries = (prompt(1, "a"), result(2, "z" * 100_000), prompt(3, "y"))
    assert len(find(entries, 2).history) < 10_000


def build_error_message(number, value):
    entry = answer(number, text(value))
    return {**entry, "message": {**entry["message"], "model": "<synthetic>"}}


def test_errors_and_notices_are_not_a_part_of_the_history():
    entries = (
        prompt(1, "one"),
        build_error_message(2, "API Error"),
        prompt(3, "two"),
        answer(4, text("x")),
    )
    assert "API Error" not in find((*entries, prompt(5, "three")), 4).history


def test_history_without_an_answer_is_not_needed():
    shim = [
        {**entry, "shim": True} for entry in (prompt(1, "one"), build_error_message(2, "API Error"))
    ]
    assert find_end_of_history(encode(*shim)) is not None
    assert find_end_of_history(encode(*shim), needs_answer=True) is None
    shim.append({**prompt(3, "two"), "shim": True})
    shim.append({**answer(4, text("x")), "shim": True})
    assert find_end_of_history(encode(*shim), needs_answer=True).uuid == number_to_uuid(4)


def test_history_of_earlier_turns_ends_before_the_last_prompt():
    entries = [entry | {"shim": True} for entry in (*TWO_TURNS, prompt(5, "three"))]
    entries += [answer(6, text("a part")) | {"shim": True}]
    point = find_end_of_earlier_turns(encode(*entries))
    assert point.uuid == number_to_uuid(4)
    assert "two" in point.history and "second" in point.history
    assert not any(word in point.history for word in ("three", "a part"))


@pytest.mark.parametrize("entries", [(), (prompt(1, "one"),), (*TWO_TURNS, prompt(5, "three"))])
def test_first_turn_and_transcripts_of_other_programs_have_no_earlier_turns(entries):
    data = encode(*(entry | {"shim": len(entries) < 2} for entry in entries))
    assert find_end_of_earlier_turns(data) is None
