"""`claude attach` on real terminals, at background sessions of real vendors; a scripted model
answers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from frontend import DropInFrontend
from place import TURN_SECONDS
from scripts import REPLY_AFTER_TOOL, ScriptedServer
from terminal import CTRL_C, CTRL_D, Terminal, on_terminal
from test_background import Desk, desk, is_turn_over, one_vendor
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
    """Terminals at the sessions of a desk."""

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
            command, env=environment, cwd=str(self._frontend.folder), patience=TURN_SECONDS
        ) as terminal:
            yield terminal


@pytest.fixture
def seats(frontend: DropInFrontend) -> Seats:
    return Seats(frontend)


@one_vendor
def test_a_session_is_driven_watched_taken_over_left_and_woken(
    desk: Desk, seats: Seats, vendor: Vendor, model: ScriptedServer
) -> None:
    begun = desk.begin("[[shell]] touch made")
    with seats.attach(begun) as first, seats.watch(begun) as watcher:
        first.until("? may it run Bash touch made")
        first.until("y yes · n no")
        watcher.until("? may it run Bash touch made")
        assert not (desk.frontend.folder / "made").exists()
        first.type("y")
        first.until("→ allowed after")
        watcher.until(f"→ allowed by terminal {first.process.pid} after")
        first.until(REPLY_AFTER_TOOL)
        watcher.until("✓ done")
        assert (desk.frontend.folder / "made").exists()
        desk.reaches(begun, is_turn_over)
        with seats.attach(begun) as second:
            second.until(REPLY_AFTER_TOOL)
            second.until(f"terminal {first.process.pid} drives · Ctrl-T takes over")
            first.type("[[slow]]\r")
            first.when(lambda: bool(model.list_requests("slow")), "the model to be asked")
            second.until("Ctrl-C interrupts")
            second.type(CTRL_T)
            first.until(f"terminal {second.process.pid} drives now")
            second.type(CTRL_C)
            second.until("■ interrupted")
            first.until("■ interrupted")
            first.type(CTRL_D)
            assert first.end() == 0 and first.clean
            second.type("[[text]]\r")
            second.until(HELLO)
            watcher.until(HELLO)
            second.until("✓ done")
            second.process.kill()
        watcher.type(CTRL_C)
        assert watcher.end() == 0 and watcher.clean
    assert desk.reaches(begun, is_turn_over)["status"] == "idle"
    with seats.attach(begun) as third:
        third.until(HELLO)
        assert desk.claude("stop", begun).returncode == 0
        third.until(f"Session {begun} has exited — run `claude attach {begun}` to resume it.")
        assert third.end() == 0 and third.clean
    if vendor.resumes:
        with seats.attach(begun) as fourth:
            fourth.until(f"Waking session {begun}…")
            fourth.until(HELLO)
            fourth.type("[[text]] again\r")
            fourth.when(lambda: len(model.list_requests("text")) == 2, "the model to be asked")
            fourth.until("> [[text]] again")
            fourth.until(HELLO)
            fourth.type(CTRL_D)
            assert fourth.end() == 0 and fourth.clean


@asking_vendors
def test_a_question_to_the_person_is_answered_with_a_number(
    desk: Desk, seats: Seats, vendor: Vendor
) -> None:
    begun = desk.begin("[[ask]] Which colour?")
    with seats.attach(begun) as terminal:
        terminal.until("2  blue")
        terminal.until("? Which colour?")
        terminal.until("a number or your own words")
        terminal.type("2\r")
        terminal.until("→ allowed after")
        terminal.until("✓ done")
        assert "blue" in terminal.plain[terminal.plain.index("→ allowed") :]
