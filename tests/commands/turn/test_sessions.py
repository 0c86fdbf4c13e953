"""`shim sessions`: the resumable sessions, how to resume them, and how to delete one."""

import json
import os
import subprocess

import pytest

from shim.state import store
from shim.state.store import StoredSession

ID_1, ID_2, ID_3 = (
    f"{digit * 8}-{digit * 4}-4{digit * 3}-8{digit * 3}-{digit * 12}" for digit in "123"
)


@pytest.fixture
def sessions_box(local_box, monkeypatch):
    """Create three sessions, the last of them in this folder."""
    monkeypatch.setenv("SHIM_STATE", str(local_box.path / "state"))
    now = 1_795_000_000.0
    for age, (each, session) in enumerate(
        [
            (ID_1, StoredSession("qwen", "q-1", "/elsewhere/a folder", "qwen3-coder")),
            (ID_2, StoredSession("pi", "p-1", "/elsewhere", "unknown")),
            (ID_3, StoredSession("pi", "p-2", os.getcwd())),
        ]
    ):
        assert store.store_session(each, session, os.environ)
        path = os.path.join(os.environ["SHIM_STATE"], "sessions", f"{each}.json")
        os.utime(path, (now + age, now + age))
    return local_box


def test_sessions_list_prints_resume_commands(shim, sessions_box):
    status, stdout, complaint = shim("sessions")
    lines = stdout.decode().splitlines()
    assert (status, complaint) == (0, "")
    assert lines[2::3] == [
        '  shim run --resume 33333333 "PROMPT"',
        '  cd /elsewhere && shim run --resume 22222222 "PROMPT"',
        "  cd '/elsewhere/a folder' && shim run --resume 11111111 \"PROMPT\"",
    ]
    assert lines[0] == "(no prompt stored)" and "unknown" not in lines[4]
    assert lines[7].startswith("  11111111 · ")
    assert lines[7].endswith(" · qwen · qwen3-coder · /elsewhere/a folder")
    assert [row["session_id"] for row in json.loads(shim("sessions", "--json")[1])] == [
        ID_3,
        ID_2,
        ID_1,
    ]
    assert ID_3[:8] in (here := shim("sessions", "--here")[1].decode()) and ID_2[:8] not in here


def test_resume_updates_the_stored_session(box):
    hasty = box.build_environment(SHIM_BIN=box.create_demo_program())
    first = box.run_shim("run", "-v", "demo", "hi", environment=hasty)
    assert first.status == 0
    (session,) = json.loads(box.run_shim("sessions", "--json").stdout)
    done = box.run_shim("run", "--resume", session["id"], "more", environment=hasty)
    assert done.status == 0
    (resumed_session,) = json.loads(box.run_shim("sessions", "--json").stdout)
    assert (
        resumed_session["session_id"] == session["session_id"]
        and resumed_session["updated"] > session["updated"]
    )


def test_session_title_is_the_first_prompt_without_line_breaks(box):
    hasty = box.build_environment(SHIM_BIN=box.create_demo_program())
    prompt = "first\x1b[31m line\n" + "and a long second line " * 10
    assert box.run_shim("run", "-v", "demo", prompt, environment=hasty).status == 0
    (session,) = json.loads(box.run_shim("sessions", "--json").stdout)
    assert (
        session["title"].startswith("first\\x1b[31m line and a long")
        and len(session["title"]) == 80
    )
    assert box.run_shim("sessions").stdout.decode().splitlines()[0] == session["title"]
    assert box.run_shim("run", "--resume", session["id"], "more", environment=hasty).status == 0
    (resumed_session,) = json.loads(box.run_shim("sessions", "--json").stdout)
    assert resumed_session["title"] == session["title"]


def test_sessions_are_deleted_by_id_prefix_or_age(shim, sessions_box):
    assert shim("sessions", "delete", "2222")[1] == b"deleted 1 session\n"
    assert ID_2[:8] not in shim("sessions")[1].decode()
    assert shim("sessions", "delete", "--older", "0")[1] == b"deleted 2 sessions\n"
    assert b"no sessions; start one" in shim("sessions")[1]


@pytest.mark.parametrize("id_prefix", ["999999", "1", "../../config", ""])
def test_unknown_or_ambiguous_id_prefix_deletes_no_session(shim, sessions_box, id_prefix):
    status, stdout, complaint = shim("sessions", "delete", id_prefix)
    assert (status, stdout) == (1, b"") and "no session begins with" in complaint
    assert len(json.loads(shim("sessions", "--json")[1])) == 3


def test_hostile_model_and_folder_names_are_escaped(shim, sessions_box):
    hostile_text = "/x'; touch /tmp/evil; '\x1b]52;c;ZXZpbA==\x07"
    assert store.store_session(
        ID_1, StoredSession("qwen", "q", hostile_text, hostile_text), os.environ
    )
    output = shim("sessions")[1].decode()
    assert "\x1b" not in output and "\x07" not in output
    (line,) = [line for line in output.splitlines() if f"--resume {ID_1[:8]}" in line]
    echo_run = subprocess.run(
        ["sh", "-c", line.replace("cd ", "echo ", 1).partition(" && ")[0]], capture_output=True
    )
    assert echo_run.stdout.decode().startswith("/x'; touch /tmp/evil; '")
