"""The moment between two vendors: what a frontend does then. The test runs in this process, where
the order of events is certain.
"""

from functools import partial
from types import SimpleNamespace

import anyio
import pytest
from box import TIMEOUT_S
from stream_invariants import check_turns
from stream_lines import find_result

from shim.adapters import get_adapter
from shim.conversation.drivers.driver import ChildDriver
from shim.conversation.drivers.open_translation import create_standalone_child_stream
from shim.conversation.fallback.buffered_stream import BufferedChildStream, FallbackOutputBuffer
from shim.conversation.fallback.chain import FallbackCandidate, FallbackChain
from shim.conversation.fallback.driver import FallbackDriver
from shim.core.claude.messages import UserMessage
from shim.state.config import DEFAULT_TIMEOUTS_S
from tests.conversation.test_message_loop import FakeOutput


class VendorLauncher:
    """The attributes of a launcher that the drivers need."""

    replays_user_messages = False
    timeouts = DEFAULT_TIMEOUTS_S

    def __init__(self, name):
        self.adapter = SimpleNamespace(name=name, unattended=False)
        self.resume_state = SimpleNamespace(failed_attempts=())
        self.recorder = None

    @property
    def turn_lifecycle(self):
        return self

    def open_child_stream(self, previous_stream, wrap_translator, create_stream):
        demo = create_standalone_child_stream(
            "demo", include_partial_messages=False, stable_ids=True
        )
        translator_class = get_adapter("demo").translator_class
        return create_stream(translator_class, demo.turn.config, demo.writer)

    def store_session(self, translation):
        pass

    def record_diagnostics(self, translation):
        pass


class Vendor(ChildDriver):
    """A driver without a child. It writes `text`; without a text it is not logged in."""

    def __init__(self, launcher, output, buffer, text=""):
        super().__init__(launcher, output, create_stream=partial(BufferedChildStream, buffer))
        self._text = text
        self.fails = False  # after its text
        self.turns = 0
        self.leaving = anyio.Event()
        self.exit_allowed = anyio.Event()

    async def run_turn(self, message):
        self.turns += 1
        self.open_stream(self.stream)
        if self._text:
            self.stream.turn.add_block(self._text)
            if self.fails:
                self.stream.turn.record_failure("the disk is full")
            else:
                self.stream.turn.record_turn_end()
        else:
            self.stream.turn.stop("nobody is logged in", "auth")
        await self._write_turn_end(*self.stream.finish())

    def _apply_stage(self, stage):
        pass

    async def interrupt(self):
        pass

    async def stop(self):
        """Stop only after `exit_allowed` is set."""
        self.leaving.set()
        await self.exit_allowed.wait()


def build_fallback():
    """Build a fallback list of two vendors, and the output of its driver."""
    paper, buffer = FakeOutput(), FallbackOutputBuffer()
    drivers = {
        "ant": Vendor(VendorLauncher("ant"), paper, buffer),
        "bee": Vendor(VendorLauncher("bee"), paper, buffer, "I am bee."),
    }
    chain = FallbackChain(
        tuple(drivers), (), lambda name: FallbackCandidate(drivers[name].launcher, persistent=False)
    )
    driver = FallbackDriver(
        drivers["ant"], chain, buffer, lambda candidate: drivers[candidate.launcher.adapter.name]
    )
    return SimpleNamespace(paper=paper, driver=driver, **drivers)


@pytest.mark.anyio
async def test_interrupt_between_vendors_starts_no_second_vendor():
    two = build_fallback()
    with anyio.fail_after(TIMEOUT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(two.driver.run_turn, UserMessage("hi"))
            await two.ant.leaving.wait()
            await two.driver.interrupt()
            two.ant.exit_allowed.set()
    (turn,) = check_turns(two.paper.written_bytes, False)
    assert find_result(turn)["shim"]["cause"] == "interrupted" and two.bee.turns == 0


@pytest.mark.anyio
async def test_turn_cancelled_between_vendors_reports_its_cause():
    two = build_fallback()
    with anyio.fail_after(TIMEOUT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(two.driver.run_turn, UserMessage("hi"))
            await two.ant.leaving.wait()
            tasks.cancel_scope.cancel()
    assert two.driver.active_child_driver.stream is not None and two.bee.turns == 0
    two.driver.active_child_driver.stream.turn.stop("the turn was stopped by SIGTERM", "signal")
    output, _ = two.driver.active_child_driver.stream.close(None)
    (turn,) = check_turns(output, False)
    assert find_result(turn)["shim"]["cause"] == "signal"


@pytest.mark.anyio
async def test_vendor_that_answered_stays_selected_after_a_failed_turn():
    two = build_fallback()
    two.bee.fails = True
    two.ant.exit_allowed.set()
    with anyio.fail_after(TIMEOUT_S):
        for text in ("hi", "go on"):
            await two.driver.run_turn(UserMessage(text))
    assert (two.ant.turns, two.bee.turns) == (1, 2)


@pytest.mark.anyio
async def test_next_vendor_starts_after_the_previous_vendor_exits():
    two = build_fallback()
    with anyio.fail_after(TIMEOUT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(two.driver.run_turn, UserMessage("hi"))
            await two.ant.leaving.wait()
            assert two.bee.turns == 0
            two.ant.exit_allowed.set()
    assert (two.ant.turns, two.bee.turns) == (1, 1) and b"I am bee." in two.paper.written_bytes
    # The attempts were passed to its turn, and then the turn was over.
    assert [attempt.vendor for attempt in two.bee.launcher.resume_state.failed_attempts] == []
