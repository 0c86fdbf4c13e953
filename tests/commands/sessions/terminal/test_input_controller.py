"""A person's input at a session, and its effect."""

import pytest
from story_builder import (
    INIT,
    build_assistant_line,
    build_delta,
    build_message_start,
    build_result_line,
    build_text_block,
    build_tool_result_line,
    build_tool_use,
)
from terminal_session import ME, Sitting

from shim.commands.sessions.terminal import composer
from shim.commands.sessions.terminal.input_controller import ANSWER_GRACE_S, DOUBLE_INTERRUPT_S

OTHER = {"kind": "driver", "client": "the page"}
BUSY = {"kind": "state", "state": "working", "status": "busy"}
FORM = {
    "questions": [
        {"question": "Which colour?", "options": [{"label": "red"}, {"label": "blue"}]},
        {
            "question": "How?",
            "multiSelect": True,
            "options": [{"label": "soon"}, {"label": "well"}],
        },
    ]
}


@pytest.fixture
def sitting():
    return Sitting().start_session()


def kinds(sitting):
    return [frame["kind"] for frame in sitting.sent_frames]


# -- messages --------------------------------------------------------------------------------------


def test_sent_message_is_pending_until_its_echo_arrives(sitting):
    sitting.press_keys("hello", "\r")
    (message,) = sitting.sent_frames
    assert message["kind"] == "message" and message["message"] == {
        "role": "user",
        "content": "hello",
    }
    assert "next: hello" in sitting.screen_text
    sitting.receive_line(
        {"type": "user", "isReplay": True, "uuid": message["id"], "message": {"content": "hello"}}
    )
    assert "next:" not in sitting.screen_text and "> hello" in sitting.screen_text


def test_refused_message_returns_to_the_input_line(sitting):
    sitting.press_keys("hello", "\r")
    sitting.receive_frames(
        {"kind": "refused", "id": sitting.sent_frames[0]["id"], "text": "no room", "reason": "busy"}
    )
    assert (
        "✗ no room" in sitting.screen_text
        and sitting.talk.editor.text == "hello"
        and sitting.talk.has_no_unanswered_frames
    )


def test_message_is_not_sent_while_another_client_has_control(sitting):
    sitting.receive_frames(OTHER)
    sitting.press_keys("hello", "\r")
    assert sitting.sent_frames == [] and "✗ the page has control" in sitting.screen_text
    assert sitting.talk.editor.text == "hello"
    sitting.press_keys("\x14")
    assert kinds(sitting) == ["take"]
    sitting.receive_frames(
        {"kind": "accepted", "id": sitting.sent_frames[0]["id"]}, {"kind": "driver", "client": ME}
    )
    sitting.press_keys("\r")
    assert kinds(sitting) == ["take", "message"]


@pytest.mark.parametrize(
    ("line", "frame"),
    [("/take", {"kind": "take"}), ("/release", {"kind": "release"}), ("/mode plan", {"kind": "mode", "mode": "plan"}),
     ("/model  m2 ", {"kind": "model", "model": "m2"}), ("/model", {"kind": "model", "model": None}),
     ("/compact", {"kind": "message", "message": {"role": "user", "content": "/compact"}})],
)  # fmt: skip
def test_slash_command_sends_its_frame(sitting, line, frame):
    sitting.press_keys(line, "\r")
    (sent_frame,) = sitting.sent_frames
    assert {key: sent_frame[key] for key in frame} == frame


def test_unanswered_frame_is_resent_after_a_reconnect(sitting):
    sitting.press_keys("hello", "\r")
    sitting.start_session()
    assert [frame["id"] for frame in sitting.sent_frames] == [sitting.sent_frames[0]["id"]] * 2


def test_slash_command_reports_its_result(sitting):
    sitting.start_session(mode="default")
    for line, notice in (
        ("/model zzz", "· model from the next turn: zzz"),
        ("/model", "· model from the next turn: the default model"),
        ("/mode default", "· the permission mode is already default"),
        ("/release", "· control released; the next client that sends a message takes control"),
    ):
        sitting.press_keys(line, "\r")
        assert notice not in sitting.screen_text
        sitting.receive_frames({"kind": "accepted", "id": sitting.sent_frames[-1]["id"]})
        assert notice in sitting.screen_text
    sitting.press_keys("/mode nope", "\r")
    sitting.receive_frames(
        {
            "kind": "refused",
            "id": sitting.sent_frames[-1]["id"],
            "text": "no such mode",
            "reason": "failed",
        }
    )
    assert "✗ no such mode" in sitting.screen_text and sitting.screen_text.endswith("mode default")


def test_mode_command_without_an_argument_prints_its_usage(sitting):
    sitting.press_keys("/mode", "\r")
    assert (
        sitting.sent_frames == [] and "✗ /mode MODE sets the permission mode" in sitting.screen_text
    )


def test_help_lists_local_commands_and_sends_nothing(sitting):
    sitting.press_keys("/help", "\r", "/no", "\r")
    assert sitting.sent_frames == [] and "✗ there is no open prompt for /no" in sitting.screen_text
    assert "/model [NAME]  sets the model" in sitting.screen_text
    for command in ("/take", "/release", "/mode MODE", "/no", "/leave"):
        assert f"\n{command} " in sitting.screen_text


def test_mode_change_is_reported_once():
    sitting = Sitting().start_session(mode="default")
    for number, mode in enumerate(("default", "acceptEdits", "acceptEdits")):
        sitting.receive_line(
            {"type": "system", "subtype": "status", "status": None, "permissionMode": mode}
        )
        assert sitting.screen_text.count("permission mode: acceptEdits") == min(number, 1)
    sitting.start_session(mode="plan")
    assert "permission mode: plan" in sitting.screen_text


# -- permission requests ---------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "behaviour"), [("y", "allow"), ("n", "deny")])
def test_key_answers_a_prompt_once(sitting, key, behaviour):
    sitting.receive_permission_request("Bash", command="ls")
    sitting.press_keys(key, key)
    assert [answer["behavior"] for answer in sitting.answers] == [behaviour]


def test_always_is_not_offered_for_a_command_with_a_wildcard(sitting):
    sitting.receive_permission_request("Bash", command="rm *")
    assert "a always" not in sitting.screen_text
    sitting.press_keys("a")
    assert sitting.answers == [] and sitting.talk.editor.text == "a"


def test_long_command_is_printed_once_in_a_prompt(sitting):
    command = "python -m pytest -q tests/test_posts.py --maxfail=1 && git commit -am 'All at once' && make"
    sitting.receive_permission_request("Bash", command=command, description="Try it")
    assert (
        sitting.screen_text.replace("\n", " ").count(
            "--maxfail=1 && git commit -am 'All at once' && make"
        )
        == 1
    )
    assert "    description: Try it" in sitting.screen_text
    assert "a always allow exactly this call in this session" in sitting.screen_text


def test_prompt_is_drawn_once_after_its_call(sitting):
    sitting.receive_line(build_assistant_line(build_tool_use("t", "Bash", command="make all")))
    sitting.receive_permission_request("Bash", command="make all")
    assert sitting.screen_text.count("make all") == 3, (
        "the call, the question, and the rule that always allows it"
    )
    sitting.receive_permission_request("Bash", "q2", command="make none")
    assert sitting.screen_text.count("? Allow Bash make none") == 1, "another call is named"


def test_key_within_the_grace_period_does_not_answer_a_prompt(sitting):
    sitting.receive_frames(question(command="ls"))
    sitting.advance_time(ANSWER_GRACE_S / 2)
    sitting.press_keys("y")
    assert sitting.answers == [] and "y yes" not in sitting.screen_text


def question(prompt_id="q1", **tool_input):
    request = {
        "subtype": "can_use_tool",
        "tool_name": "Bash",
        "tool_use_id": "t",
        "input": tool_input,
    }
    return {"kind": "question", "question": prompt_id, "at": 1, "request": request}


@pytest.mark.parametrize(
    "keys", [["ye"], ["y\r"], ["\x1b[200~y\x1b[201~", ""], ["\t", "y"], ["x", "y"]]
)
def test_typed_text_does_not_answer_a_prompt(sitting, keys):
    """The keys come several in one read, in a paste, after Tab, or in a started line."""
    sitting.receive_permission_request("Bash", command="ls")
    sitting.press_keys(*keys)
    assert sitting.answers == []


@pytest.mark.parametrize(
    "typed",
    [
        "y\r",
        "yes\r",
        "n\r",
        "1\r",
        "allow\r",
        "Y\r\r",
        "y\r\n",
        "y\n\r",
        "y\ry\r",
        "\ry\r",
        "\x1b[200~y\r\x1b[201~\r",
    ],
)
def test_answer_and_enter_in_a_single_read_are_ignored(sitting, typed):
    sitting.receive_permission_request("Bash", command="ls")
    sitting.press_keys(typed)
    assert sitting.sent_frames == [] and "✗ not answered" in sitting.screen_text
    assert sitting.talk.editor.text == ""
    sitting.press_keys("y")
    assert sitting.answers != []


@pytest.mark.parametrize("before", ["y", "\x1b[200~yes\x1b[201~", " n "])
def test_answer_typed_before_its_prompt_is_not_sent_as_a_message(sitting, before):
    sitting.receive_frames(question(command="ls"))
    sitting.press_keys(before)
    sitting.advance_time(ANSWER_GRACE_S)
    sitting.press_keys("\r")
    assert sitting.sent_frames == [] and "✗ not answered" in sitting.screen_text
    sitting.press_keys("y")
    assert [answer["behavior"] for answer in sitting.answers] == ["allow"]


@pytest.mark.parametrize(
    ("answer_text", "behaviour"), [("yes", "allow"), ("no", "deny"), ("always", "allow")]
)
def test_rest_of_an_answer_word_is_not_sent_as_a_message(sitting, answer_text, behaviour):
    sitting.receive_permission_request("Bash", command="ls")
    sitting.press_keys(*answer_text)
    sitting.press_keys("\r")
    assert kinds(sitting) == ["answer"] and sitting.talk.editor.text == ""
    assert [answer["behavior"] for answer in sitting.answers] == [behaviour]
    sitting.press_keys("es", "\r")
    assert kinds(sitting) == ["answer", "message"], "only once"


def test_message_sent_while_a_prompt_is_open_does_not_answer_the_prompt(sitting):
    sitting.receive_permission_request("Bash", command="ls")
    sitting.press_keys("\t", "yes", "\r")
    assert kinds(sitting) == ["message"]


def test_prompts_are_answered_in_sequence(sitting):
    sitting.receive_permission_request("Bash", "q1", command="ls")
    sitting.receive_permission_request("Bash", "q2", command="pwd")
    assert "? Allow Bash ls  (and 1 more)" in sitting.screen_text
    sitting.press_keys("y")
    sitting.receive_frames({"kind": "settled", "question": "q1", "by": ME, "how": "allow"})
    assert sitting.screen_text.rstrip().split("\n")[-4] == "? Allow Bash pwd"
    sitting.press_keys("y")
    assert len(sitting.answers) == 1, "it has only just come to be asked"
    sitting.advance_time(ANSWER_GRACE_S)
    sitting.press_keys("\x7f", "n")
    assert [frame["question"] for frame in sitting.sent_frames if frame["kind"] == "answer"] == [
        "q1",
        "q2",
    ]


def test_prompt_answered_by_another_client_is_removed(sitting):
    sitting.receive_permission_request("Bash", command="ls")
    sitting.advance_time(2)
    sitting.receive_frames({"kind": "settled", "question": "q1", "by": "the page", "how": "deny"})
    assert (
        "→ denied by the page after 2.5 s" in sitting.screen_text
        and "y yes" not in sitting.screen_text
    )
    sitting.press_keys("y")
    assert sitting.answers == []


def test_form_is_answered_with_option_numbers(sitting):
    sitting.receive_permission_request("AskUserQuestion", **FORM)
    assert "? Which colour? (1 of 2)" in sitting.screen_text and "  2  blue" in sitting.screen_text
    sitting.press_keys("3", "\r")
    assert "✗ type a number from 1 to 2, or your own answer" in sitting.screen_text
    sitting.press_keys("2", "\r")
    assert "? How? (2 of 2)" in sitting.screen_text and sitting.answers == []
    sitting.press_keys("1, 2", "\r")
    (answer,) = sitting.answers
    assert answer["behavior"] == "allow"
    assert answer["updatedInput"] == FORM | {
        "answers": {"Which colour?": "blue", "How?": "soon, well"}
    }


def test_form_accepts_free_text_and_can_be_declined(sitting):
    sitting.receive_permission_request("AskUserQuestion", **FORM)
    sitting.press_keys("1 2", "\r")
    assert "✗ choose only one answer" in sitting.screen_text
    sitting.press_keys("green, as 2 trees", "\r", "/no", "\r")
    assert [answer["behavior"] for answer in sitting.answers] == ["deny"]


def test_mcp_elicitation_form_is_answered_with_content(sitting):
    schema = {"type": "object", "properties": {"size": {"type": "integer", "title": "Which size?"}}}
    request = {
        "subtype": "elicitation",
        "mcp_server_name": "shop",
        "message": "Your shoes",
        "requested_schema": schema,
    }
    sitting.receive_frames({"kind": "question", "question": "q", "at": 1, "request": request})
    sitting.press_keys("43", "\r")
    assert sitting.answers == [{"action": "accept", "content": {"size": 43}}]


def test_mcp_elicitation_without_a_form_is_declined_with_a_key(sitting):
    request = {
        "subtype": "elicitation",
        "mcp_server_name": "shop",
        "message": "Log in",
        "url": "https://a.example",
    }
    sitting.receive_frames({"kind": "question", "question": "q", "at": 1, "request": request})
    sitting.advance_time(ANSWER_GRACE_S)
    assert (
        "the MCP server shop https://a.example" in sitting.screen_text
        and "a always" not in sitting.screen_text
    )
    sitting.press_keys("n")
    assert sitting.answers == [{"action": "decline"}]


# -- Ctrl-C and detaching --------------------------------------------------------------------------


def test_ctrl_c_interrupts_and_double_ctrl_c_leaves(sitting):
    sitting.receive_frames(BUSY)
    sitting.press_keys("\x03")
    assert kinds(sitting) == ["interrupt"] and not sitting.talk.has_left
    sitting.advance_time(DOUBLE_INTERRUPT_S)
    sitting.press_keys("\x03")
    assert not sitting.talk.has_left
    sitting.press_keys("\x03")
    assert sitting.talk.has_left


def test_ctrl_c_clears_the_line_when_idle(sitting):
    sitting.press_keys("abc", "\x03")
    assert sitting.talk.editor.text == "" and sitting.sent_frames == []


# -- drawing ---------------------------------------------------------------------------------------


def test_partial_text_is_drawn_while_streaming(sitting):
    sitting.receive_frames(BUSY)
    sitting.receive_line(build_message_start())
    sitting.receive_line(build_delta("Hello **you"))
    sitting.advance_time(0.1)
    assert "Hello **you" in sitting.screen_text
    sitting.receive_line(build_assistant_line(build_text_block("Hello **you**.")))
    assert "Hello you." in sitting.screen_text and sitting.screen_text.count("Hello") == 1


def test_history_is_limited_to_the_last_screens():
    sitting = Sitting(lines=10)
    events = [INIT]
    for number in map(str, range(50)):
        events += [
            build_assistant_line(build_tool_use(number), message_id=number),
            build_tool_result_line(number),
        ]
    frames = [
        {"kind": "line", "number": number, "generation": 1, "at": 1, "line": line}
        for number, line in enumerate(events, 1)
    ]
    sitting.start_session(*frames)
    rows = sitting.screen_text.split("\n")
    assert rows[0] == "1f0c2ab4 · a test · demo · /repo"
    assert rows[1].startswith("… 4") and rows[1].endswith(
        "earlier steps: `shim bridge watch 1f0c2ab4` shows all steps"
    )
    assert len(rows) < 35 and "    out" in rows


def test_repeated_lines_after_a_gap_are_drawn_once(sitting):
    sitting.receive_line(build_assistant_line(build_text_block("one")))
    sitting.receive_frames({"kind": "gap", "from": 1, "to": 1, "reason": "generation"})
    sitting.receive_line(build_assistant_line(build_text_block("one")), number=1)
    sitting.receive_frames({"kind": "gap", "from": 2, "to": 9, "reason": "lost"})
    assert sitting.screen_text.count("one") == 1
    assert "lines 2 to 9 of the session are no longer available" in sitting.screen_text


@pytest.mark.parametrize("columns", [12, 30, 200])
def test_footer_is_drawn_once_after_a_resize(sitting, columns):
    sitting.receive_permission_request(
        "Bash", command="python -m pytest -q tests/test_posts.py && git commit -am 'all at once'"
    )
    sitting.press_keys("\t", "a message that is longer than a narrow terminal " * 2)
    sitting.resize(columns)
    sitting.press_keys("!")
    assert sitting.screen_text.replace("\n", "").count("Ctrl-D") == 1
    footer = "".join(row.strip() for row in sitting.screen_text.split("\n")[-8:])
    assert "!" in footer and sitting.screen.column < columns


@pytest.mark.parametrize("line", ["a long line " * 20, "one\n"])
def test_long_message_is_wrapped_only_near_the_cursor(sitting, monkeypatch, line):
    """With a megabyte, each key took a second."""
    sizes, lay_out = [], composer.wrap_rows
    monkeypatch.setattr(
        composer, "wrap_rows", lambda *args: sizes.append(len(args[0])) or lay_out(*args)
    )
    sitting.press_keys(f"\x1b[200~the beginning {line * 2000}\nthe end\x1b[201~")
    sitting.press_keys("!")
    assert sitting.screen_text.split("\n")[-2] == "  the end!" and sitting.screen.column == len(
        "  the end!"
    )
    sitting.press_keys("\x1b[D" * 5 + "#")
    assert sitting.screen_text.split("\n")[-2] == "  the# end!" and sitting.screen.column == len(
        "  the#"
    )
    assert "the beginning" not in sitting.screen_text
    assert max(sizes) < 10_000
    sitting.press_keys("\x01")
    assert "> the beginning" in sitting.screen_text


def test_busy_status_is_cleared_at_the_end_of_a_turn(sitting):
    sitting.receive_frames(BUSY)
    sitting.receive_line(build_assistant_line(build_text_block("hi")))
    assert (
        "waiting for the agent" in sitting.screen_text
        and "Ctrl-C interrupts" in sitting.screen_text
    )
    sitting.receive_line(build_result_line(0.1))
    sitting.receive_frames({"kind": "state", "state": "done", "status": "idle"})
    assert (
        "waiting for the agent" not in sitting.screen_text
        and "Ctrl-C interrupts" not in sitting.screen_text
    )
