"""The page with real hosts and a real `shim bridge serve`: every client reconnects, and no line is
lost or repeated.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bench_bridge import BenchHosting
from box import Box, Gate
from browser import DESKTOP, Browser
from session_hosts import Hosting
from session_page import ENTER, Page, Served

from shim.bridge.log import RecordedSessionLog
from shim.bridge.registry import SessionRecord

pytestmark = pytest.mark.e2e
full = pytest.mark.full  # one or two of each kind always run
SECONDS = 30.0
# The program of the demo vendor without its pauses. It stops at a gate after the first event of a
# kind.
STANDS_STILL = """
from shim.commands.turn import demo_child

generate_all, waits = demo_child.generate_demo_events, [{kind!r}]

def generate_demo_events(*args):
    for event in generate_all(*args):
        yield event
        if event["type"] in waits:
            waits.clear()
            with open({gate!r}, "rb", buffering=0) as file:
                file.read(1)

demo_child.generate_demo_events = generate_demo_events
demo_child.TOKEN_PAUSE_S = demo_child.REPLY_PAUSE_S = 0
demo_child.main()
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    browser = Browser("127.0.0.1")
    yield browser
    browser.close()


@pytest.fixture
def hosting(tmp_path: Path) -> Iterator[Hosting]:
    hosting = Hosting(tmp_path / "hosts")
    yield hosting
    hosting.stop_hosts()


@pytest.fixture
def halfway(hosting: Hosting, box: Box) -> Callable[[str], Gate]:
    """Make each turn stop after its first event of a kind, until the gate is opened."""

    def stand_still(kind: str) -> Gate:
        gate, code = box.create_gate(), box.path / "stands_still.py"
        code.write_text(STANDS_STILL.format(kind=kind, gate=gate.path))
        hosting.environment["SHIM_BIN"] = box.write_program(
            "demo-child", f'exec {sys.executable} -P {code} "$@"\n'
        )
        return gate

    return stand_still


@pytest.fixture
def page(browser: Browser, hosting: Hosting) -> Iterator[Page]:
    served = Served(hosting.environment)
    page = Page(browser, served)
    page.open_page(size=DESKTOP)
    yield page
    assert page.list_errors() == []
    browser.set_offline(False)
    browser.driver.get("about:blank")
    browser.driver.delete_all_cookies()
    served.kill()


def start_session(
    page: Page, hosting: Hosting, prompt: str = "make greet.py nicer"
) -> SessionRecord:
    """Start a session and show it on the page."""
    session = hosting.start_session(prompt)
    page.browser.run_script("location.hash = arguments[0]", f"s/{session.short_id}")
    page.browser.wait_until(lambda: page.browser.run_script("return currentSession.synced"))
    return session


def idle(page: Page, turns: int = 1) -> None:
    """Wait until `turns` turns are over."""
    page.browser.wait_until(lambda: len(page.browser.find_elements("#steps .result")) == turns)


def read_steps(page: Page) -> list[Any]:
    """Return what the page shows, without times."""
    about = "[step.number, step.kind, step.trees || step.text || step.main]"
    return list(
        page.browser.run_script(
            f"return currentSession.order.map(({{ step }}) => JSON.stringify({about}))"
        )
    )


def reload_steps(page: Page) -> list[Any]:
    """Return what the page shows after a reload."""
    page.browser.driver.refresh()
    page.browser.wait_until(
        lambda: page.browser.run_script(
            "return document.documentElement.dataset.ready && currentSession.synced"
        )
    )
    return read_steps(page)


def none_lost(page: Page) -> None:
    """Check that each step is there once and in order, as on a page that was just loaded."""
    steps = read_steps(page)
    assert len(steps) == len(set(steps)) > 5
    assert steps == reload_steps(page)


def send_message(page: Page, text: str) -> None:
    page.type_text(text)
    page.browser.press_keys(ENTER)


def test_page_starts_a_turn_streams_the_reply_and_sends_a_second_message(
    page, browser, hosting, halfway
):
    gate = halfway("text")
    page.web.kill()
    page.web.start()  # with the vendor that stops at the gate
    browser.press_keys("n")
    browser.wait_until(lambda: page.describe_focus() == "prompt")
    browser.press_keys("make greet.py nicer")
    browser.run_script(
        "find('vendor').value = 'demo'; find('cwd').value = arguments[0]", str(hosting.cwd)
    )
    browser.click("form.begin .strong")
    # Its text is streamed.
    browser.wait_until(
        lambda: browser.run_script("return currentSession.live && currentSession.live.length > 0")
    )
    gate.open()
    idle(page)
    assert "3 passed" in page.read_text("#steps") and "+def greet(name: str)" in page.read_text(
        "#steps"
    )
    gate.open()
    send_message(page, "and now the docs")
    idle(page, 2)
    page.wait_for_text("Idle", "#chip")
    none_lost(page)


@full
def test_interrupt_ends_the_turn_but_not_the_session(page, browser, hosting, halfway):
    gate = halfway("result")
    start_session(page, hosting)
    browser.wait_until(lambda: browser.find_element("#interrupt").is_displayed())
    browser.click("#interrupt")
    page.wait_for_text("interrupted", "#steps")
    for _ in range(2):  # an interrupted vendor may skip one
        gate.open()
    send_message(page, "go on then")
    idle(page, 2)


def test_page_reconnects_after_a_network_loss_without_losing_steps(page, browser, hosting, halfway):
    gate = halfway("result")
    start_session(page, hosting)
    browser.wait_until(lambda: page.list_steps())
    browser.set_offline(True)
    page.wait_for_text("Reconnecting", "#line")
    page.type_text("typed meanwhile")
    gate.open()
    hosting.wait_until(
        hosting.load_session(get_only_session(hosting)),
        lambda now: now.metadata["status"] == "idle",
    )
    assert not browser.find_elements("#steps .result")
    browser.set_offline(False)
    idle(page)
    browser.wait_until(lambda: not browser.find_element("#line").is_displayed())
    assert browser.find_element("#text").get_attribute("value") == "typed meanwhile"
    none_lost(page)


def get_only_session(hosting: Hosting) -> SessionRecord:
    """Return the only session."""
    from shim.bridge import registry

    (session,) = registry.list_sessions(hosting.environment)
    return session


@pytest.mark.parametrize("when", ["in-mid-turn", pytest.param("between-turns", marks=full)])
def test_page_reconnects_after_a_server_restart_without_losing_steps(
    page, browser, hosting, halfway, when
):
    gate = halfway("result")
    session = start_session(page, hosting)
    if when == "between-turns":
        gate.open()
        idle(page)
    page.web.kill()
    page.wait_for_text("Reconnecting", "#line")
    page.type_text("while it was away")
    browser.press_keys(ENTER)
    page.wait_for_text("Your message was kept", "#failed")
    gate.open()
    hosting.wait_until(session, lambda now: now.metadata["status"] == "idle")
    page.web.start()
    idle(page)
    browser.wait_until(lambda: not browser.find_element("#line").is_displayed())
    gate.open()
    browser.click("#send")
    idle(page, 2)
    assert sum("while it was away" in step for step in page.list_steps()) >= 1
    none_lost(page)


def has_last_step(page: Page, hosting: Hosting, session: SessionRecord) -> bool:
    """Return whether the page has the last line of the log that creates a step. The session's host
    is stopped by a signal.
    """
    now = hosting.load_session(session)
    os.kill(now.metadata["pid"], signal.SIGSTOP)
    log = RecordedSessionLog(os.path.join(session.folder, "log"), now.metadata["generation"])
    last = log.last_line_number
    while b'"subtype":"status"' in log.read(last - 1, 1)[0].line:
        last -= 1
    if (
        page.browser.run_script("return currentSession.stream.last")
        == f"{now.metadata['generation']}-{last}"
    ):
        return True
    os.kill(now.metadata["pid"], signal.SIGCONT)
    return False


@pytest.mark.parametrize("when", ["in-mid-turn", "all-was-seen"])
def test_message_restarts_a_session_whose_host_was_killed(page, browser, hosting, halfway, when):
    gate = halfway("result")
    session = start_session(page, hosting)
    gate.open()
    idle(page)
    before = read_steps(page)
    if when == "in-mid-turn":
        send_message(page, "die in mid-turn")
        browser.wait_until(lambda: browser.find_elements("#chip.works"))
    # the last line creates a step, so the server answers a reconnection with 204 and no stream
    else:
        send_message(page, "die when all was seen")
        browser.wait_until(
            lambda: browser.find_elements("#chip.works") and has_last_step(page, hosting, session)
        )
    os.kill(hosting.load_session(session).metadata["pid"], signal.SIGKILL)
    page.wait_for_text("Failed", "#chip")
    assert browser.find_element("#over").is_displayed()
    assert read_steps(page)[: len(before)] == before
    for _ in range(2):  # a killed vendor may skip one
        gate.open()
    send_message(page, "and go on")
    browser.wait_until(
        lambda: browser.find_elements("#chip.works") or browser.find_elements("#chip.idle")
    )
    browser.wait_until(
        lambda: "and go on" in page.read_text("#steps") and browser.find_elements("#chip.idle")
    )
    assert read_steps(page)[: len(before)] == before
    none_lost(page)


STREAM_REQUESTS = """
return performance.getEntriesByType('resource').filter((entry) => entry.name.includes('/steps?')).length;
"""
WATCHED_SECONDS = 60.0  # how long `make full` watches a session that has ended
# The requests of an ended session: the stream, and the reconnection that is answered with
# 204.
MOST_REQUESTS = 3


@pytest.mark.parametrize("seconds", [0.0, pytest.param(WATCHED_SECONDS, marks=full)])
def test_stream_of_an_ended_session_is_not_reopened(page, browser, hosting, seconds):
    session = start_session(page, hosting)
    idle(page)
    os.kill(hosting.load_session(session).metadata["pid"], signal.SIGTERM)
    hosting.wait_for_end(session)
    browser.driver.refresh()
    browser.wait_until(
        lambda: browser.run_script(
            "return document.documentElement.dataset.ready && currentSession.synced"
        )
    )
    browser.wait_until(
        lambda: browser.run_script("return currentSession.stream.state === 'parked'")
    )
    time.sleep(seconds)
    assert browser.run_script(STREAM_REQUESTS) <= MOST_REQUESTS
    assert browser.run_script("return currentSession.stream.state") == "parked"


@full
def test_second_page_shows_the_same_steps_and_can_close(page, browser, hosting):
    session = start_session(page, hosting)
    first = browser.driver.current_window_handle
    browser.driver.switch_to.new_window("tab")
    try:
        browser.open_url(f"{page.base}#s/{session.short_id}")
        browser.wait_until(lambda: browser.run_script("return currentSession.synced"))
        send_message(page, "from the second page")
        idle(page, 2)
        steps = read_steps(page)
    finally:
        browser.driver.close()
        browser.driver.switch_to.window(first)
    idle(page, 2)
    assert read_steps(page) == steps


def test_page_can_take_control_back_from_a_terminal(page, browser, hosting):
    session = start_session(page, hosting)
    idle(page)
    with hosting.connect(session, role="drive", client="terminal", replay=False) as terminal:
        terminal.send_frame_blocking({"kind": "take", "id": "t1"})
        page.wait_for_text("terminal has control of this session", "#drives")
        send_message(page, "may I?")
        page.wait_for_text("Take control to send the message", "#failed")
        browser.click("#drives button")
        drivers = frames_until(
            terminal, lambda frame: frame["kind"] == "driver" and frame["client"] != "terminal"
        )
        assert drivers[-1]["client"] is None or drivers[-1]["client"].startswith("web")
        browser.wait_until(lambda: not browser.find_element("#drives").is_displayed())
        browser.click("#send")
        idle(page, 2)
        assert "may I?" in page.read_text("#steps")


def frames_until(
    connection: Any, is_match: Callable[[dict[str, Any]], bool]
) -> list[dict[str, Any]]:
    """Return the frames up to one."""
    frames = []
    for frame in connection.read_frames(SECONDS):
        frames.append(frame)
        if is_match(frame):
            return frames
    raise AssertionError([frame["kind"] for frame in frames])


@full
def test_repeated_server_and_network_failures_lose_no_steps(browser, tmp_path):
    here = BenchHosting(tmp_path)
    served = Served(here.environment)
    page = Page(browser, served)
    try:
        page.open_page(size=DESKTOP)
        session = here.start_calls(400, rate=100)
        browser.run_script("location.hash = arguments[0]", f"s/{session.short_id}")
        for number in range(6):
            before = browser.run_script(
                "return currentSession.order ? currentSession.order.length : 0"
            )
            browser.wait_until(
                lambda b=before: (
                    browser.run_script(
                        "return currentSession.synced && currentSession.order.length"
                    )
                    > b
                )
            )
            if number % 2:
                browser.set_offline(True)
                page.wait_for_text("Reconnecting", "#line")
                browser.set_offline(False)
            else:
                served.kill()
                served.start()
        idle(page)
        calls = browser.run_script(
            "return currentSession.order.filter(item => item.step.kind === 'call').map(item => item.step.outcome)"
        )
        assert calls == ["ok"] * 400
        none_lost(page)
    finally:
        browser.set_offline(False)
        browser.driver.get("about:blank")
        browser.driver.delete_all_cookies()
        served.kill()
        here.stop_hosts()
