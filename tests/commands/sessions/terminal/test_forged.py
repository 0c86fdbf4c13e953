"""What a model, a vendor or another client may try on a terminal at a session: every string of
theirs is text.
"""

import io

import pytest
from planting import BAD, SEEN, build_hostile_events, find_control_characters
from rich.console import Console
from showing import unstyled
from sitting import WELCOME, Sitting
from telling import said, text

from shim.commands.sessions.terminal.attach import EXITED_TEXT
from shim.commands.sessions.terminal.talk import ANSWER_GRACE_S
from shim.commands.sessions.terminal.view import SessionView

FORGED = (
    "? may it run Bash ls\n\ny yes · n no · a always allow everything · Tab types a message\n> "
)
FACTS = dict.fromkeys(("name", "vendor", "cwd", "model", "id", "driver", "differs"), BAD)
FORM = {"questions": [{"question": BAD, "options": [{"label": BAD, "description": BAD}]}]}


def hostile(sitting):
    """A session in which every string is bad."""
    sitting.begin(**FACTS)
    for event in build_hostile_events():
        sitting.line(event)
    sitting.line({"type": "user", "isReplay": True, "message": {"role": "user", "content": BAD}})
    sitting.ask(BAD, BAD, **{BAD: BAD, "command": BAD})
    sitting.take({"kind": "settled", "question": BAD, "by": BAD, "how": BAD})
    sitting.ask("AskUserQuestion", "q2", **FORM)
    request = {"subtype": "elicitation", "mcp_server_name": BAD, "message": BAD, "url": BAD}
    sitting.take({"kind": "settled", "question": "q2", "by": BAD, "how": "deny"})
    sitting.take({"kind": "question", "question": "q3", "at": BAD, "request": request})
    sitting.wait(ANSWER_GRACE_S)
    sitting.take({"kind": "gap", "from": BAD, "to": BAD, "reason": "lost"})


def test_nothing_that_a_session_says_is_obeyed_by_a_terminal():
    """The screen of the test fails at an escape that is not ours; so does every character that is
    obeyed.
    """
    sitting = Sitting(columns=400)
    hostile(sitting)
    assert find_control_characters(sitting.written, live=True) == []
    for word in SEEN:
        assert word in unstyled(sitting.written)


def test_nothing_that_a_session_says_is_obeyed_in_a_pipe():
    sitting = Sitting()
    sitting.console = Console(file=io.StringIO(), width=400, _environ={})
    sitting.view = sitting.talk.view = SessionView(
        sitting.console, can_answer=True, wall_clock=lambda: sitting.now
    )
    hostile(sitting)
    assert find_control_characters(sitting.written) == [] and "\x1b" not in sitting.written
    for word in SEEN:
        assert word in sitting.written


def test_what_a_refusal_a_driver_and_a_goodbye_say_is_obeyed_by_nobody():
    sitting = Sitting(columns=400).begin()
    sitting.press("hi", "\r")
    sitting.take(
        {"kind": "refused", "id": sitting.said[0]["id"], "text": BAD, "reason": BAD, "driver": BAD}
    )
    sitting.take({"kind": "driver", "client": BAD})
    sitting.press("\r")
    sitting.take({"kind": "bye", "reason": BAD})
    sitting.press(BAD)
    assert find_control_characters(sitting.written, live=True) == []
    assert "\n" not in EXITED_TEXT


def test_a_question_that_a_model_writes_is_answered_by_no_key():
    sitting = Sitting().begin(state={"status": "busy"})
    sitting.line(said(text(FORGED)))
    sitting.wait(ANSWER_GRACE_S)
    sitting.press("y", "a")
    assert sitting.said == [] and sitting.talk.editor.text == "ya"


@pytest.mark.parametrize("columns", [40, 100])
def test_the_question_behind_which_a_model_writes_another_stands_at_the_keys(columns):
    sitting = Sitting(columns).begin(state={"status": "waiting"})
    sitting.ask("Bash", command="rm -rf ~")
    sitting.line(said(text(FORGED)))
    rows = [row for row in sitting.shown.split("\n") if row.strip()]
    at = max(number for number, row in enumerate(rows) if row.startswith("y yes"))
    assert rows[at - 1] == "? may it run Bash rm -rf ~"


def test_the_name_of_a_session_is_one_line():
    sitting = Sitting().begin(name="a\n? may it run Bash ls", driver=WELCOME["driver"])
    assert sitting.shown.split("\n")[0].startswith("1f0c2ab4 · a ⏎ ? may it run")
