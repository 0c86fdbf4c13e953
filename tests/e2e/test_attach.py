"""`claude attach` on real terminals, for background sessions of real vendors. A scripted model
answers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from frontend import DropInFrontend
from model_scripts import REPLY_AFTER_TOOL, ScriptedServer
from sandbox import TURN_SECONDS
from terminal import CTRL_C, CTRL_D, Terminal, on_terminal
from test_background import Desk, desk, each_vendor, is_turn_over
from vendor_setups import CLAUDE_ITSELF, QWEN, Vendor

pytestmark = pytest.mark.e2e

__all__ = ["desk"]
CTRL_T = "\x14"
HELLO = "Hello from the model"
asking_vendors = pytest.mark.parametrize(
    "vendor",
    [pytest.param(each, marks=pytest.mark.full) for each in (QWEN, CLAUDE_ITSELF)],
    ids=str,
    indirect=True,
)


class Seats:
    """Terminals that are attached to the sessions of a frontend."""

    def __init__(self, frontend: DropInFrontend) -> None:
        self._frontend = frontend

    def attach(self, session: str) -> AbstractContextManager[Terminal]:
        return self._at(str(self._frontend.claude), "attach", session)

    def watch(self, session: str) -> AbstractContextManager[Terminal]:
        return self._at(sys.executable, "-I", "-m", "shim", "bridge", "watch", session)

    @contextmanager
    def _at(self, *command: str) -> Iterator[Terminal]:
        environment = {**self._frontend.environment}
        with on_terminal(
            command, env=environment, cwd=str(self._frontend.folder), timeout_s=TURN_SECONDS
        ) as terminal:
            yield terminal


@pytest.fixture
def seats(frontend: DropInFrontend) -> Seats:
    return Seats(frontend)


@each_vendor
def test_session_is_attached_watched_taken_over_detached_and_resumed(
    desk: Desk, seats: Seats, vendor: Vendor, model: ScriptedServer
) -> None:
    session_id = desk.begin("[[shell]] touch made")
    with seats.attach(session_id) as first, seats.watch(session_id) as watcher:
        first.wait_for_text("? Allow Bash touch made")
        first.wait_for_text("y yes · n no")
        watcher.wait_for_text("? Allow Bash touch made")
        assert not (desk.frontend.folder / "made").exists()
        first.type_keys("y")
        first.wait_for_text("→ allowed after")
        watcher.wait_for_text(f"→ allowed by terminal {first.process.pid} after")
        first.wait_for_text(REPLY_AFTER_TOOL)
        watcher.wait_for_text("✓ done")
        assert (desk.frontend.folder / "made").exists()
        desk.reaches(session_id, is_turn_over)
        with seats.attach(session_id) as second:
            second.wait_for_text(REPLY_AFTER_TOOL)
            second.wait_for_text(f"terminal {first.process.pid} has control · Ctrl-T takes control")
            first.type_keys("[[slow]]\r")
            first.wait_for_condition(
                lambda: bool(model.list_requests("slow")), "the model to be asked"
            )
            second.wait_for_text("Ctrl-C interrupts")
            second.type_keys(CTRL_T)
            first.wait_for_text(f"terminal {second.process.pid} has control now")
            second.type_keys(CTRL_C)
            second.wait_for_text("■ interrupted")
            first.wait_for_text("■ interrupted")
            first.type_keys(CTRL_D)
            assert first.wait_for_exit() == 0 and first.clean
            second.type_keys("[[text]]\r")
            second.wait_for_text(HELLO)
            watcher.wait_for_text(HELLO)
            second.wait_for_text("✓ done")
            second.process.kill()
        watcher.type_keys(CTRL_C)
        assert watcher.wait_for_exit() == 0 and watcher.clean
    assert desk.reaches(session_id, is_turn_over)["status"] == "idle"
    with seats.attach(session_id) as third:
        third.wait_for_text(HELLO)
        assert desk.claude("stop", session_id).returncode == 0
        third.wait_for_text(
            f"Session {session_id} has exited — run `claude attach {session_id}` to resume it."
        )
        assert third.wait_for_exit() == 0 and third.clean
    if vendor.resumes:
        with seats.attach(session_id) as fourth:
            fourth.wait_for_text(f"Waking session {session_id}…")
            fourth.wait_for_text(HELLO)
            fourth.type_keys("[[text]] again\r")
            fourth.wait_for_condition(
                lambda: len(model.list_requests("text")) == 2, "the model to be asked"
            )
            fourth.wait_for_text("> [[text]] again")
            fourth.wait_for_text(HELLO)
            fourth.type_keys(CTRL_D)
            assert fourth.wait_for_exit() == 0 and fourth.clean


@asking_vendors
def test_user_question_is_answered_by_option_number(
    desk: Desk, seats: Seats, vendor: Vendor
) -> None:
    session_id = desk.begin("[[ask]] Which colour?")
    with seats.attach(session_id) as terminal:
        terminal.wait_for_text("2  blue")
        terminal.wait_for_text("? Which colour?")
        terminal.wait_for_text("a number or your own text")
        terminal.type_keys("2\r")
        terminal.wait_for_text("→ allowed after")
        terminal.wait_for_text("✓ done")
        assert "blue" in terminal.plain[terminal.plain.index("→ allowed") :]
