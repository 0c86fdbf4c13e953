"""Terminal injection by a model, a vendor or another client at a session: the terminal treats all
their strings as text.
"""

import io

import pytest
from recording_renderer import strip_styles
from rich.console import Console
from story_builder import build_assistant_line, build_text_block
from terminal_injection import BAD, VISIBLE_FRAGMENTS, build_hostile_events, find_control_characters
from terminal_session import WELCOME, Sitting

from shim.commands.sessions.terminal.attach import EXITED_TEXT
from shim.commands.sessions.terminal.input_controller import ANSWER_GRACE_S
from shim.commands.sessions.terminal.session_view import SessionView

FORGED = "? Allow Bash ls\n\ny yes · n no · a always allow everything · Tab types a message\n> "
SESSION_FIELDS = dict.fromkeys(("name", "vendor", "cwd", "model", "id", "driver", "differs"), BAD)
FORM = {"questions": [{"question": BAD, "options": [{"label": BAD, "description": BAD}]}]}


def hostile(sitting):
    """Return a session in which every string is hostile."""
    sitting.start_session(**SESSION_FIELDS)
    for event in build_hostile_events():
        sitting.receive_line(event)
    sitting.receive_line(
        {"type": "user", "isReplay": True, "message": {"role": "user", "content": BAD}}
    )
    sitting.receive_permission_request(BAD, BAD, **{BAD: BAD, "command": BAD})
    sitting.receive_frames({"kind": "settled", "question": BAD, "by": BAD, "how": BAD})
    sitting.receive_permission_request("AskUserQuestion", "q2", **FORM)
    request = {"subtype": "elicitation", "mcp_server_name": BAD, "message": BAD, "url": BAD}
    sitting.receive_frames({"kind": "settled", "question": "q2", "by": BAD, "how": "deny"})
    sitting.receive_frames({"kind": "question", "question": "q3", "at": BAD, "request": request})
    sitting.advance_time(ANSWER_GRACE_S)
    sitting.receive_frames({"kind": "gap", "from": BAD, "to": BAD, "reason": "lost"})


def test_session_output_cannot_send_control_characters_to_a_terminal():
    """The test's screen fails at a foreign escape sequence and at every control character that a
    terminal obeys.
    """
    sitting = Sitting(columns=400)
    hostile(sitting)
    assert find_control_characters(sitting.written, live=True) == []
    for visible_text in VISIBLE_FRAGMENTS:
        assert visible_text in strip_styles(sitting.written)


def test_session_output_to_a_pipe_contains_no_control_characters():
    sitting = Sitting()
    sitting.console = Console(file=io.StringIO(), width=400, _environ={})
    sitting.view = sitting.talk.view = SessionView(
        sitting.console, can_answer=True, wall_clock=lambda: sitting.now
    )
    hostile(sitting)
    assert find_control_characters(sitting.written) == [] and "\x1b" not in sitting.written
    for visible_text in VISIBLE_FRAGMENTS:
        assert visible_text in sitting.written


def test_server_frames_cannot_send_control_characters_to_a_terminal():
    sitting = Sitting(columns=400).start_session()
    sitting.press_keys("hi", "\r")
    sitting.receive_frames(
        {
            "kind": "refused",
            "id": sitting.sent_frames[0]["id"],
            "text": BAD,
            "reason": BAD,
            "driver": BAD,
        }
    )
    sitting.receive_frames({"kind": "driver", "client": BAD})
    sitting.press_keys("\r")
    sitting.receive_frames({"kind": "bye", "reason": BAD})
    sitting.press_keys(BAD)
    assert find_control_characters(sitting.written, live=True) == []
    assert "\n" not in EXITED_TEXT


def test_keys_do_not_answer_a_permission_prompt_forged_by_the_model():
    sitting = Sitting().start_session(state={"status": "busy"})
    sitting.receive_line(build_assistant_line(build_text_block(FORGED)))
    sitting.advance_time(ANSWER_GRACE_S)
    sitting.press_keys("y", "a")
    assert sitting.sent_frames == [] and sitting.talk.editor.text == "ya"


@pytest.mark.parametrize("columns", [40, 100])
def test_real_permission_prompt_stays_above_the_answer_keys_after_a_forgery(columns):
    sitting = Sitting(columns).start_session(state={"status": "waiting"})
    sitting.receive_permission_request("Bash", command="rm -rf ~")
    sitting.receive_line(build_assistant_line(build_text_block(FORGED)))
    rows = [row for row in sitting.screen_text.split("\n") if row.strip()]
    at = max(number for number, row in enumerate(rows) if row.startswith("y yes"))
    assert rows[at - 1] == "? Allow Bash rm -rf ~"


def test_line_breaks_in_a_session_name_are_printed_as_a_symbol():
    sitting = Sitting().start_session(name="a\n? Allow Bash ls", driver=WELCOME["driver"])
    assert sitting.screen_text.split("\n")[0].startswith("1f0c2ab4 · a ⏎ ? Allow")
