"""What the drivers have in common: a pump that lets others work, and that comes to an end."""

from types import SimpleNamespace

import anyio
import pytest

from shim.conversation.drivers.child_per_turn import ChildPerTurn
from shim.conversation.drivers.driver import LATE_BYTES
from shim.conversation.drivers.open_translation import open_translation
from tests.conversation.test_message_loop import Launched, Paper

MANY = 1000


class Flood:
    """A child whose stdout always has something that says nothing, until `enough`."""

    def __init__(self, enough):
        self.reads = 0
        self._enough = enough

    async def read(self):
        self.reads += 1
        return b"" if self._enough() or self.reads > MANY else b"\n" * (LATE_BYTES // 4)


def driver():
    launcher = Launched(open_translation("demo", stable=True), 5.0)
    launcher.vendor = SimpleNamespace(name="demo", interrupt="SIGINT")
    return ChildPerTurn(launcher, Paper()), launcher.turns.pump(None)


@pytest.mark.anyio
async def test_a_flood_that_says_nothing_holds_nobody_up():
    pumping, pump = driver()
    heard = anyio.Event()
    child = Flood(heard.is_set)

    async def hear():
        heard.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hear)
        await pumping._pump(child, pump)
    assert child.reads < MANY


@pytest.mark.anyio
async def test_behind_its_deadline_no_more_is_read_than_a_pipe_holds():
    pumping, pump = driver()
    pumping._deadlines.hurry(0)
    child = Flood(lambda: False)
    assert await pumping._pump(child, pump) is False
    assert child.reads == 5
